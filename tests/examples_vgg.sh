#!/bin/sh
# vgg_cifar and dcgan_cifar print the same losses however the ranks share the work, and vgg_cifar sees every test image
# once; wrong options end in one line: EXAMPLES MPIEXEC RANKS
set -eu
examples=$1 mpiexec=$2 ranks=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
    echo "$1"
    exit 1
}

vgg() {
    "$mpiexec" -np "$1" "$examples/vgg_cifar" --width 4 --batch 16 --iterations 3 --epochs 1 $2 >"$work/out"
    sed -n 's/^epoch 1  loss \([0-9.]*\)  accuracy [0-9.]* (\([0-9]* of 10000\)).*/\1 \2/p' "$work/out"
}

gan() {
    "$mpiexec" -np "$1" "$examples/dcgan_cifar" --channels 24 --batch 8 --iterations 3 --log-every 1 --out "$work/gan" \
        $2 >"$work/out"
    sed -n 's/^\(epoch 0 .*generator [0-9.]*\) .*/\1/p' "$work/out"
}

for program in vgg gan; do
    should=$($program 1 "")
    [ -n "$should" ] || fail "$program prints no losses"
    for how in "--parallel channel" "--parallel spatial" "--parallel spatial --mesh width=$ranks --sync-bn"; do
        seen=$($program "$ranks" "$how")
        [ "$seen" = "$should" ] || fail "$program $how: $seen; one rank: $should"
    done
done

for options in "--parallel rows" "--mesh height" "--mesh height=0" "--mesh tower=2" "--mesh height=7"; do
    code=0
    "$mpiexec" -np "$ranks" "$examples/vgg_cifar" $options >"$work/out" 2>&1 || code=$?
    [ "$code" != 0 ] || fail "vgg_cifar $options goes on"
    [ "$(grep -c '^vgg_cifar: ' "$work/out")" = 1 ] || fail "vgg_cifar $options: $(cat "$work/out")"
done
