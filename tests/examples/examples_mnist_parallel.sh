#!/bin/sh
# mnist_parallel has the losses and the accuracy of one rank on two ranks and four, with batches that two networks share
# unevenly; wrong options end in one line: EXAMPLES MPIEXEC RANKS
. "$(dirname "$0")/begin.sh"
. "$(dirname "$0")/small_images.sh"

run() {
    "$mpiexec" -np "$2" "$examples/mnist_parallel" --parallel "$3" --data "$work/images" --units 16 --batch 15 --epochs 2 \
        --steps 3 --log-every 1 --lr 0.01 >"$work/$1" || fail "$1: $(cat "$work/$1")"
    [ "$(grep -c '^step ' "$work/$1")" = 6 ] || fail "$1: six losses should be there: $(cat "$work/$1")"
}

small_images "$work/images" 60 20
run serial 1 data
[ "$(grep '^step ' "$work/serial" | sort -u -k 4 | wc -l)" = 6 ] || fail "the losses do not change: $(cat "$work/serial")"
run model 2 model
run dual 4 dual
for name in model dual; do
    paste -d ' ' "$work/serial" "$work/$name" | awk -v name=$name '
        /^step/ { bad = $2 != $6 || $4 - $8 > 2e-5 || $8 - $4 > 2e-5 }
        /^epoch/ { bad = $4 != $11 || $6 != $13 || $6 != 20 }
        bad { print name ": " $0; failed = 1 }
        END { exit failed }'
done

for options in "--parallel rows" "--parallel model" "--parallel data --data /no/where"; do
    code=0
    "$mpiexec" -np 1 "$examples/mnist_parallel" $options >"$work/out" 2>&1 || code=$?
    [ "$code" != 0 ] || fail "mnist_parallel $options goes on"
    [ "$(grep -c '^mnist_parallel: ' "$work/out")" = 1 ] || fail "mnist_parallel $options: $(cat "$work/out")"
done
