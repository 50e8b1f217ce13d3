#!/bin/sh
# clang-tidy on the library, with a build of clang's: tools/tidy.sh BUILD [STATES]. STATES bounds how many states of one
# function the analyzer looks at: with 40,000 it finds 58 of 59 double frees planted at the ends of functions in a third
# of the time that its own bound of 225,000 takes.
set -eu
cd "$(dirname "$0")/.."
build=$1 states=${2:-225000}
find core comm layers optim datasets fit -name '*.c' | grep -v '^core/cuda/' | sort |
    xargs -P "$(nproc)" -n 3 clang-tidy --quiet -p "$build" --extra-arg=-Xclang --extra-arg=-analyzer-config \
        --extra-arg=-Xclang --extra-arg=max-nodes="$states"
