#!/bin/sh
# A captured dcgan_cifar has the losses and the pictures of a plain one: PROGRAM MPIEXEC RANKS
set -eu
program=$1 mpiexec=$2 ranks=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

run() {
    name=$1
    shift
    "$mpiexec" -np "$ranks" "$program" --channels 8 --batch 4 --iterations 7 --log-every 1 --sample-every 3 \
        --out "$work/$name" "$@" >"$work/$name.txt"
    sed 's/, "images_per_second.*//' "$work/$name/log.jsonl" >"$work/$name.losses"
}

run plain
run captured --captured
[ "$(wc -l <"$work/plain.losses")" = 7 ]
cmp "$work/plain.losses" "$work/captured.losses"
for picture in samples-000003 samples-000006 samples; do
    cmp "$work/plain/$picture.png" "$work/captured/$picture.png"
done
