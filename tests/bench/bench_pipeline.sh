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
small_images "$work/images" 4096 64

# quartiles: the median, and the first and the third quartile, of numbers
quartiles() {
    sort -n | awk '
        function at(q, i) { i = 1 + q * (NR - 1); return v[int(i)] + (i - int(i)) * (v[int(i) + (i > int(i))] - v[int(i)]) }
        { v[NR] = $1 }
        END { printf "%.4f %.4f %.4f\n", at(0.5), at(0.25), at(0.75) }'
}

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

# waits FILE: of each step on the time line between two barriers, the fraction in which a stage is idle: it waits for what the
# other one has not sent, or for its end of the step. Then the fraction that the messages take, and what each stage computes,
# in ms.
waits() {
    sed -n 's/.*"name": "\([^"]*\)", "cat": "collective".*"pid": \([0-9]*\),.*"ts": \([0-9.]*\), "dur": \([0-9.]*\).*/\2 \1 \3 \4/p' "$1" |
        sort -k1,1n -k3,3n | awk '
            { n = ++events[$1]; what[$1, n] = $2; at[$1, n] = $3; took[$1, n] = $4 }
            # The calls of this name in the events `from` to `to`: how many, and where.
            function count(rank, from, to, name,   i, n) {
                for (i = from; i <= to; i++)
                    if (what[rank, i] == name)
                        place[rank, name, ++n] = i
                return n
            }
            # The last call of a stage goes with the last one of the other, and so on backward. Until the other stage has begun
            # its call there is nothing to compute; what a call takes from then on is the handling of a message.
            function meet(rank, name, other, n, m,   k, i, late) {
                for (k = 0; k < n && k < m; k++) {
                    i = place[rank, name, n - k]
                    late = at[1 - rank, place[1 - rank, other, m - k]] - at[rank, i]
                    idle += late < 0 ? 0 : late < took[rank, i] ? late : took[rank, i]
                }
            }
            function bounds(rank,   i, n) {
                for (i = 1; i <= events[rank]; i++)
                    if (what[rank, i] == "barrier")
                        end[rank, ++n] = i
                return n
            }
            END {
                steps = bounds(0)
                if (bounds(1) != steps)
                    exit 1
                split("recv send barrier bcast bcast_bytes", names, " ")
                for (step = 4; step <= steps; step++) {
                    idle = calls = all = 0
                    for (r = 0; r < 2; r++) {
                        from = end[r, step - 1] + 1
                        to = end[r, step]
                        wall[r] = at[r, to] + took[r, to] - at[r, from - 1] - took[r, from - 1]
                        all += wall[r]
                        wait[r] = 0
                        for (i = from; i <= to; i++)
                            wait[r] += took[r, i]
                        calls += wait[r]
                        for (k in names)
                            calls_of[r, names[k]] = count(r, from, to, names[k])
                    }
                    for (r = 0; r < 2; r++) {
                        meet(r, "recv", "send", calls_of[r, "recv"], calls_of[1 - r, "send"])
                        for (k = 3; k <= 5; k++)
                            meet(r, names[k], names[k], calls_of[r, names[k]], calls_of[1 - r, names[k]])
                    }
                    print idle / all, (calls - idle) / all, (wall[0] - wait[0]) / 1e3, (wall[1] - wait[1]) / 1e3
                }
            }'
}

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
