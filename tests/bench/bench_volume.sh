#!/bin/sh
# Steps and seconds to a Dice score on volumes of 32^3, by one rank, by two, and by PyTorch, each with the same volumes, order, batches and
# rates, and the same cores: tests/bench/bench_volume.sh BUILD DIR. One run after another. Steps do not depend on what else the machine
# does, so a series may be made by the way; seconds do. A run that has ended in DIR is not made again, so a series that was stopped goes
# on where it was, but for the run that it was in.
# SEEDS ("1 2 3"), KINDS ("1 2 torch"), CORES (2), SCALE (5), CHANNELS (16), VOLUMES (512), HELD_OUT (56), BATCH (4), LR (0.001), RESTART
# (10), EPOCHS (30), DICE (0.95), GREY (empty; else without colours): what is run. Prints a row a run: steps and volumes to the score and
# seconds, or the last score where it was not reached.
set -eu
build=$1 dir=$2
here=$(cd "$(dirname "$0")" && pwd)
. "$here/torch.sh"
cores=${CORES:-2} scale=${SCALE:-5} volumes=${VOLUMES:-512} held=${HELD_OUT:-56} grey=${GREY:+--grey}
same="--channels ${CHANNELS:-16} --batch ${BATCH:-4} --lr ${LR:-0.001} --restart ${RESTART:-10} --epochs ${EPOCHS:-30} --dice ${DICE:-0.95}"
mkdir -p "$dir"

# volume RANKS SEED [OPTION...]
volume() {
    ranks=$1 seed=$2
    shift 2
    OMP_NUM_THREADS=$((cores < ranks ? 1 : cores / ranks)) "$build/tools/wf-run" -np "$ranks" "$build/examples/volume" --scale "$scale" --volumes "$volumes" --held-out "$held" --seed "$seed" $grey "$@"
}

# train KIND SEED: both programs print a line an epoch, and one at the end that begins with Dice; where the score is not reached,
# that of PyTorch ends with 1.
train() {
    case $1 in
    torch)
        [ -s "$dir/volumes$2" ] || volume 1 "$2" --write "$dir/volumes$2"
        "$python" "$here/bench_volume.py" "$dir/volumes$2" --seed "$2" --threads "$cores" $same || true
        rm "$dir/volumes$2"
        ;;
    *) volume "$1" "$2" $same --mesh "depth=$1" --out "$dir/$1_$2" ;;
    esac
}

python=
case " ${KINDS:-1 2 torch} " in
*" torch "*) python=$(find_torch) && [ -n "$python" ] || exit 1 ;;
esac
printf '| seed | by | steps | volumes | seconds | Dice after each epoch |\n|---|---|---|---|---|---|\n'
for seed in ${SEEDS:-1 2 3}; do
    for kind in ${KINDS:-1 2 torch}; do
        log=$dir/${kind}_$seed.log
        if [ ! -s "$log" ]; then
            train "$kind" "$seed" >"$log.part" 2>&1 && tr '\r' '\n' <"$log.part" | grep -q '^Dice' || { cat "$log.part" >&2 && exit 1; }
            mv "$log.part" "$log"
        fi
        tr '\r' '\n' <"$log" | awk -v seed="$seed" -v by="$kind" '
            $1 == "epoch" { scores = scores " " $6 }
            $1 == "Dice" && $3 == "after" { steps = $4; volumes = $6; seconds = $8 }
            END { printf "| %s | %s | %s | %s | %s |%s |\n", seed, by, steps ? steps : "not reached", volumes, seconds, scores }'
    done
done
