#!/bin/sh
# Builds one fuzz target for libFuzzer with clang and runs it: tests/fuzz/proof.sh SOURCE BUILD NAME RUNS [SEED]. What libFuzzer
# finds beyond the corpus stays in BUILD/found-NAME; an input that fails, in BUILD/failed-NAME-*.
set -eu
source=$1 build=$2 name=$3 runs=$4 seed=${5-1}
if [ ! -f "$build/build.ninja" ]; then
    cmake -S "$source" -B "$build" -G Ninja -DCMAKE_C_COMPILER=clang -DCMAKE_BUILD_TYPE=RelWithDebInfo -DWEFT_FUZZ=ON \
        -DWEFT_CUDA=OFF -DWEFT_EXAMPLES=OFF >/dev/null
fi
ninja -C "$build" "fuzz_$name" >/dev/null
mkdir -p "$build/found-$name"
export LSAN_OPTIONS=suppressions="$source/tests/lsan.supp":print_suppressions=0 OMP_NUM_THREADS=1
exec "$build/tests/fuzz_$name" -runs="$runs" -seed="$seed" -max_len=8192 -malloc_limit_mb=512 -rss_limit_mb=2048 -timeout=20 \
    -print_final_stats=1 -verbosity=0 -artifact_prefix="$build/failed-$name-" "$build/found-$name" "$source/tests/fuzz/corpus/$name"
