#!/bin/sh
# The rungs of docs/tutorial-ladder.md on one rank and on two, on so few images that an epoch is one step on all of them:
# rung 1 prints the same losses on both; rungs 2 to 4, whose dropout depends on the order of the images, those of each
# other. ladder.sh MPIEXEC PROGRAMS
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
[ -s model.h5 ] && [ -s best.h5 ] || { echo "no model is left" && exit 1; }
grep -q '^samples          64, 32 of the test$' fit.2 || { echo "no banner:" && cat fit.2 && exit 1; }
