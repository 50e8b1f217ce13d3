#!/bin/sh
# Steps to a Dice score of 0.95 on volumes of 32^3, by one rank, by two, and by PyTorch, each with the same volumes, order, batches
# and rates: tests/bench/bench_volume.sh BUILD DIR. A thread a rank; one run after another, so that a machine with other work can do it
# by the way: steps do not depend on its load, and seconds are to be measured apart, by --steps. A run that has ended in DIR is not made
# again, so a series that was stopped goes on where it was, but for the run that it was in.
# SEEDS ("1 2 3"), KINDS ("1 2 torch"), SCALE (5), CHANNELS (16), VOLUMES (512), HELD_OUT (56), BATCH (2), LR (0.004), RESTART (4), EPOCHS
# (28), DICE (0.95): what is run. Prints a row a run: steps and volumes to the score, or the last score where it was not reached.
set -eu
build=$1 dir=$2
here=$(cd "$(dirname "$0")" && pwd)
. "$here/torch.sh"
scale=${SCALE:-5} volumes=${VOLUMES:-512} held=${HELD_OUT:-56}
same="--channels ${CHANNELS:-16} --batch ${BATCH:-2} --lr ${LR:-0.004} --restart ${RESTART:-4} --epochs ${EPOCHS:-28} --dice ${DICE:-0.95}"
mkdir -p "$dir"
export OMP_NUM_THREADS=1

# volume RANKS SEED [OPTION...]
volume() {
    ranks=$1 seed=$2
    shift 2
    "$build/tools/wf-run" -np "$ranks" "$build/examples/volume" --scale "$scale" --volumes "$volumes" --held-out "$held" --seed "$seed" "$@"
}

# train KIND SEED: both programs print a line an epoch, and one at the end that begins with Dice; where the score is not reached,
# that of PyTorch ends with 1.
train() {
    case $1 in
    torch)
        [ -s "$dir/volumes$2" ] || volume 1 "$2" --write "$dir/volumes$2"
        "$python" "$here/bench_volume.py" "$dir/volumes$2" --seed "$2" --threads 1 $same || true
        rm "$dir/volumes$2"
        ;;
    *) volume "$1" "$2" $same --mesh "depth=$1" --out "$dir/$1_$2" ;;
    esac
}

python=
case " ${KINDS:-1 2 torch} " in
*" torch "*) python=$(find_torch) && [ -n "$python" ] || exit 1 ;;
esac
printf '| seed | by | steps | volumes | Dice after each epoch |\n|---|---|---|---|---|\n'
for seed in ${SEEDS:-1 2 3}; do
    for kind in ${KINDS:-1 2 torch}; do
        log=$dir/${kind}_$seed.log
        if [ ! -s "$log" ]; then
            train "$kind" "$seed" >"$log.part" 2>&1 && tr '\r' '\n' <"$log.part" | grep -q '^Dice' || { cat "$log.part" >&2 && exit 1; }
            mv "$log.part" "$log"
        fi
        tr '\r' '\n' <"$log" | awk -v seed="$seed" -v by="$kind" '
            $1 == "epoch" { scores = scores " " $6 }
            $1 == "Dice" && $3 == "after" { steps = $4; volumes = $6 }
            END { printf "| %s | %s | %s | %s |%s |\n", seed, by, steps ? steps : "not reached", volumes, scores }'
    done
done
