#!/bin/sh
# A pipeline of two stages against one process: tests/bench/bench_pipeline.sh BUILD. An autoencoder of 42 equal layers, batch
# 2,048, one thread a rank. In each of ROUNDS rounds one after the other: two unconnected processes at once, each with the
# whole model and the whole batch, whose mean step is that of "one process"; the naive split; pipelines of 8 and 32 chunks.
# Prints the median and the quartiles of each form's time over that of the same round's process, then, from time lines of
# IDLE_ROUNDS further runs, the idle time of both stages in the median step beside the formula 1 / (chunks + 1) of equal
# stages and that of stages which compute as long as these, and a line for each of the targets: whether it is met. Two minutes and a half.
set -eu
build=$1
export OMP_NUM_THREADS=1 WEFT_LOG=error
rounds=${ROUNDS:-7} idle_rounds=${IDLE_ROUNDS:-3}
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. "$here/../examples/small_images.sh"
. "$here/stages.sh"
small_images "$work/images" 4096 64

# step NAME RANKS OPTIONS: milliseconds of a step
step() {
    name=$1 ranks=$2
    shift 2
    mpirun -np "$ranks" --bind-to none "$build/examples/autoencoder" --data "$work/images" --depth 20 --width 320 \
        --batch 2048 --steps 12 --log-every 100 --out "$work/out-$name" "$@" >"$work/$name.txt" 2>&1 ||
        { cat "$work/$name.txt" >&2; exit 1; }
    awk 'NR == 2 { print $6 }' "$work/out-$name/times.txt"
}

for _ in $(seq "$rounds"); do
    step other 1 --split none >"$work/other" &
    step one 1 --split none >"$work/one"
    wait $!
    one=$(cat "$work/one" "$work/other" | awk '{ sum += $1 } END { print sum / 2 }')
    echo "$one" >>"$work/process"
    for form in "naive" "pipeline --chunks 8" "pipeline --chunks 32"; do
        # shellcheck disable=SC2086
        step split 2 --split $form | awk -v one="$one" '{ print $1 / one }' >>"$work/$form"
    done
done

for chunks in 8 32; do
    for _ in $(seq "$idle_rounds"); do
        step idle 2 --split pipeline --chunks $chunks --timeline "$work/timeline.json" >/dev/null
        waits "$work/timeline.json" >>"$work/waits $chunks"
    done
    cut -d' ' -f1 "$work/waits $chunks" >"$work/idle $chunks"
done

echo "one process beside an unconnected one: $(quartiles <"$work/process") ms (median, quartiles)"
for form in "naive" "pipeline --chunks 8" "pipeline --chunks 32"; do
    printf '%-22s %s of its time\n' "$form" "$(quartiles <"$work/$form")"
done
# column N CHUNKS: the median of a column of the waits
column() {
    cut -d' ' -f"$1" "$work/waits $2" | quartiles | cut -d' ' -f1
}
# own CHUNKS: the idle time of stages of which one takes longer in each chunk: the longer one computes without a pause, behind
# or before a chunk of the other
own() {
    echo "$1 $(column 3 "$1") $(column 4 "$1")" | awk '{
        long = $2 > $3 ? $2 : $3; short = $2 + $3 - long
        printf "%.4f", 1 - (long + short) / (2 * (long + short / $1)) }'
}
for chunks in 8 32; do
    printf '%-22s %s of a step idle, %s for equal stages, %s for these, which compute %s and %s ms; messages take %s of a step\n' \
        "$chunks chunks" "$(quartiles <"$work/idle $chunks")" "$(echo $chunks | awk '{ printf "%.4f", 1 / ($1 + 1) }')" \
        "$(own $chunks)" "$(column 3 $chunks)" "$(column 4 $chunks)" "$(column 2 $chunks)"
done

# verdict WHAT NUMBER MOST
verdict() {
    echo "$2 $3" | awk -v what="$1" '{ printf "%-6s %s: %.3f, at most %.3f\n", $1 <= $2 ? "met" : "MISSED", what, $1, $2 }'
}
median() {
    quartiles <"$work/$1" | cut -d' ' -f1
}
verdict "time of 32 chunks" "$(median "pipeline --chunks 32")" 0.60
verdict "time of the naive split" "$(median naive)" 1.02
for chunks in 8 32; do
    verdict "idle time of $chunks chunks" "$(median "idle $chunks")" "$(echo $chunks | awk '{ print 1 / ($1 + 1) + 0.02 }')"
    verdict "idle time of $chunks chunks, by these stages' times" "$(median "idle $chunks")" "$(own $chunks | awk '{ print $1 + 0.02 }')"
done
