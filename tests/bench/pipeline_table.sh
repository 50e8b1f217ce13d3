#!/bin/sh
# The table of the text on an autoencoder on two GPUs: tests/bench/pipeline_table.sh BUILD. The convolutional autoencoder,
# batch 32, as one process, split naively, and as pipelines of two stages in both orders, with each mode of recomputation and
# each number of chunks; one thread a rank, nothing beside it. A row is one run of STEPS steps: the median step, in parts of
# that of the one process and as seconds of the text's ten epochs; the most that the pool of a stage held; the idle share of
# both stages in the median step (stages.sh); and the text's seconds, which are of Pipe, whose order is GPipe's. The
# environment says what is run: STEPS (100), CHUNKS ("8 16 32"), SCHEDULES ("1f1b gpipe"), RECOMPUTE ("never except_last
# always"). All rows take some minutes on two cores.
set -eu
build=$1
export OMP_NUM_THREADS=1 WEFT_LOG=error
steps=${STEPS:-100} chunks_of=${CHUNKS:-8 16 32} schedules=${SCHEDULES:-1f1b gpipe} modes=${RECOMPUTE:-never except_last always}
case $steps in
'' | 0* | *[!0-9]* | ????*) steps=0 ;;
esac
# The first steps make what later ones use again; a time line holds so many events.
if [ "$steps" -lt 6 ] || [ "$steps" -gt 200 ]; then
    echo "pipeline_table: STEPS=${STEPS:-}: should be a whole number from 6 to 200" >&2
    exit 2
fi
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. "$here/../examples/small_images.sh"
. "$here/stages.sh"
small_images "$work/images" 2048 64

# seconds WORDS: those of the text; "-" where it has none
seconds() {
    case $* in
    "one process") echo 103.67 ;;
    "split naively") echo 112.99 ;;
    "gpipe 8 never") echo 87.23 ;;
    "gpipe 16 never") echo 79.36 ;;
    "gpipe 32 never") echo 75.99 ;;
    "gpipe 8 except_last") echo 130.96 ;;
    *) echo - ;;
    esac
}

# row WORDS RANKS OPTIONS
row() {
    words=$1 ranks=$2
    shift 2
    "$here/../../tools/run.sh" -np "$ranks" "$build/examples/autoencoder" --model convolutional --batch 32 --steps "$steps" \
        --log-every 1000 --data "$work/images" --out "$work/out" --timeline "$work/timeline.json" "$@" >"$work/printed" 2>&1 ||
        { cat "$work/printed" >&2; exit 1; }
    idle=-
    if [ "$ranks" = 2 ]; then
        waits "$work/timeline.json" >"$work/waits"
        idle=$(cut -d' ' -f1 "$work/waits" | quartiles | cut -d' ' -f1)
    fi
    awk 'NR == 2 { print $6, $8 }' "$work/out/times.txt" >"$work/row"
    read -r took memory <"$work/row"
    one=${one:-$took}
    echo "$took $one $idle $(seconds "$words")" | awk -v words="$words" -v memory="$memory" '{
        idle = $3 == "-" ? "-" : sprintf("%.1f %%", 100 * $3)
        text = $4 == "-" ? "" : sprintf("  %9.2f  %5.2f", $4, $4 / 103.67)
        printf "%-22s %9.2f  %5.2f  %9.0f  %14s  %7s%s\n", words, $1, $1 / $2, $1 * 18.75, memory, idle, text }'
}

printf '%-22s %9s  %5s  %9s  %14s  %7s  %9s  %5s\n' "" "this tree:" "" "10 epochs" "MiB of" "" "the text:" "" \
    "" "ms a step" "of 1" "in s" "stages" "idle" "s" "of 1"
row "one process" 1 --split none
row "split naively" 2 --split naive
for schedule in $schedules; do
    for mode in $modes; do
        for chunks in $chunks_of; do
            row "$schedule $chunks $mode" 2 --split pipeline --schedule "$schedule" --chunks "$chunks" --recompute "$mode"
        done
    done
done
