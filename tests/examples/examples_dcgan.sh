#!/bin/sh
# A short run of dcgan_cifar leaves valid files, and its losses do not change from run to run: EXAMPLES MPIEXEC RANKS
. "$(dirname "$0")/begin.sh"

run() {
    name=$1 seed=$2
    shift 2
    "$mpiexec" -np "$ranks" "$examples/dcgan_cifar" --channels 16 --batch 8 --iterations 6 --log-every 2 \
        --sample-every 3 --seed "$seed" --out "$work/$name" "$@" >"$work/$name.txt"
}

run first 1
run again 1
run other 2

number='-\?[0-9][0-9.e+-]*'
good="^{\"iteration\": [0-9]*, \"epoch\": 0, \"dis_loss\": $number, \"gen_loss\": $number, "
good="$good\"images_per_second\": $number, \"elapsed_seconds\": $number}\$"
[ "$(wc -l <"$work/first/log.jsonl")" = 3 ] || fail "the log should have three lines"
[ "$(grep -c "$good" "$work/first/log.jsonl")" = 3 ] || fail "a line of the log is not what it should be"

"$examples/../tests/examples_pictures" "$work/first" 3 300
[ -z "$(find "$work/first" -name '*.tmp')" ] || fail "a file was left that is not whole"
grep -q '</svg>' "$work/first/loss.svg" || fail "there are no curves"
grep -q 'samples.png' "$work/first.txt" || fail "the program does not say where to look"

losses() {
    sed 's/, "images_per_second.*//' "$work/$1/log.jsonl"
}
[ "$(losses first)" = "$(losses again)" ] || fail "the same seed gave other losses"
[ "$(losses first)" != "$(losses other)" ] || fail "another seed gave the same losses"
cmp "$work/first/samples.png" "$work/again/samples.png"

# A run that ends by time, on however fast a machine: with pictures after tenths of it, fewer where a step takes longer.
"$mpiexec" -np "$ranks" "$examples/dcgan_cifar" --channels 8 --batch 2 --minutes 0.01 --lr-generator 2e-3 \
    --out "$work/timed" >"$work/timed.txt"
[ "$(ls "$work/timed" | grep -c '^samples-')" -ge 1 ] || fail "there are no pictures of a run that ends by time"
[ -s "$work/timed/samples.png" ] || fail "there is no last picture of a run that ends by time"
grep -q '^iteration [0-9]*  epoch' "$work/timed.txt" || fail "a run that ends by time shows: $(cat "$work/timed.txt")"

# Images in a file of which each rank reads its part.
clothes=/usr/share/datasets/fashion-mnist
if [ -z "${WEFT_DATA-}" ] && [ -d "$clothes" ]; then
    "$examples/../tools/wf-data" mnist "$clothes" -o "$work/clothes.h5"
    run file 1 --data "$work/clothes.h5"
    [ "$(losses first)" = "$(losses file)" ] || fail "the same images in an HDF5 file gave other losses"
fi
