#!/bin/sh
# With WEFT_DETERMINISTIC=1 one run leaves the bits of the other: tests/optim/same_bits.sh MPIEXEC RANKS PROGRAM
# A rank that is alone has two threads.
set -eu
export WEFT_DETERMINISTIC=1
[ "$2" != 1 ] || export OMP_NUM_THREADS=2
first=$("$1" -np "$2" "$3" | grep ' [0-9a-f]\{16\}$')
second=$("$1" -np "$2" "$3" | grep ' [0-9a-f]\{16\}$')
[ "$(echo "$first" | wc -l)" = 3 ] || {
    echo "not three models: $first"
    exit 1
}
[ "$first" = "$second" ] || {
    echo "first: $first"
    echo "then: $second"
    exit 1
}
