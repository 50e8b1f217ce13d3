#!/bin/sh
# The rungs of docs/tutorial-ladder.md on one rank and on two, on so few images that an epoch is one step on all of them:
# rung 1 prints the same losses on both; rungs 2 to 4, whose dropout depends on the order of the images, those of each
# other, and of images that are all alike the same losses on both. ladder.sh MPIEXEC PROGRAMS
set -eu
mpiexec=$1 programs=$2
. "$(dirname "$0")/../examples/small_images.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
small_images "$work/mnist" 64 32
export WEFT_DATA="$work/mnist"
cd "$work"

for rung in loop net prepare fit; do
    for ranks in 1 2; do
        "$mpiexec" -np $ranks "$programs/ladder_$rung" >"$rung.$ranks"
        grep -E '^(epoch .: the losses|loss )' "$rung.$ranks" >"$rung.$ranks.losses" ||
            { echo "ladder_$rung on $ranks ranks prints no loss:" && cat "$rung.$ranks" && exit 1; }
    done
done
same() {
    diff "$1.losses" "$2.losses" || { echo "ladder_$1 and ladder_$2 print other losses" && exit 1; }
}
same loop.1 loop.2
for ranks in 1 2; do
    same net.$ranks prepare.$ranks
    same net.$ranks fit.$ranks
done
small_images alike 64 32
for name in train t10k; do
    head -c 16 "alike/$name-images-idx3-ubyte" >one && rest=$(($(wc -c <"alike/$name-images-idx3-ubyte") - 16))
    tail -c +17 "alike/$name-images-idx3-ubyte" | head -c 784 >image
    while [ "$(wc -c <one)" -lt $((rest + 16)) ]; do cat image >>one; done
    mv one "alike/$name-images-idx3-ubyte"
    { head -c 8 "alike/$name-labels-idx1-ubyte" && head -c $((rest / 784)) /dev/zero; } >one
    mv one "alike/$name-labels-idx1-ubyte"
done
for ranks in 1 2; do
    WEFT_DATA="$work/alike" "$mpiexec" -np $ranks "$programs/ladder_net" | grep '^loss ' >alike.$ranks.losses
done
same alike.1 alike.2

[ -s model.h5 ] && [ -s best.h5 ] || { echo "no model is left" && exit 1; }
grep -q '^samples          64, 32 of the test$' fit.2 || { echo "no banner:" && cat fit.2 && exit 1; }
