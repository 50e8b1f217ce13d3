#!/bin/sh
# Predicted against measured: pairs of model and layout, each planned by wf-plan and then run by its plan, one thread a
# rank: tests/bench/bench_plan.sh BUILD [RATE]. Twelve pairs on this machine; with a RATE, as 1gbit, seven on two virtual
# nodes of one rank each, whose link is that slow (as superuser). Its shaper lets 72 KiB through at once, one segment of TCP's
# with its headers: below that it would cut segments into frames by itself, which takes the processors' time and halves the
# rate of a link that carries both directions. Errors are of the predicted time against the measured
# median of ROUNDS runs of ten steps, and of the predicted memory against the measured peak. PAIRS: a pattern of those that
# are run, as "vgg16 channel=2".
set -eu
build=$1 rate=${2-}
rounds=${ROUNDS:-3}
here=$(cd "$(dirname "$0")" && pwd)
. "$here/plans.sh"

median() {
    sort -n | awk '{ v[NR] = $1 } END { print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'
}

# What starts ranks: of one machine, or of two nodes.
launch() {
    if [ -n "$rate" ]; then
        "$here/../comm/cluster.sh" -r "$rate" -b 72k -n 1+1 mpirun "$@"
    else
        mpirun -np "$ranks" --bind-to none "$@"
    fi
}

# pair NAME RANKS MESH BATCH
pair() {
    name=$1 ranks=$2 mesh=$3
    case "$name $mesh" in
    ${PAIRS:-*}) ;;
    *) return 0 ;;
    esac
    nodes=1 mpirun="mpirun --bind-to none"
    [ -z "$rate" ] || nodes=2 mpirun="$here/../comm/cluster.sh -r $rate -b 72k -n 1+1 mpirun"
    model "$name" "$4"
    plan "$work/plan.json" --ranks "$ranks" --nodes $nodes --measure "$ranks" --mesh "$mesh" --mpirun "$mpirun" || return 0
    for _ in $(seq "$rounds"); do
        launch $program $run --plan "$work/plan.json" 2>/dev/null |
            sed -n 's/^plan: a step takes \([0-9.]*\) ms .* predicted \([0-9.]*\) ms .*peak of memory \([0-9.]*\) MiB, predicted \([0-9.]*\) MiB$/\1 \2 \3 \4/p'
    done >"$work/seen"
    step=$(cut -d' ' -f1 "$work/seen" | median)
    awk -v name="$name" -v mesh="$mesh" -v step="$step" 'END {
        printf "%-12s %-10s %10.2f %10.2f %+7.1f %% %10.1f %10.1f %+7.1f %%\n", name, mesh, step, $2, 100 * ($2 / step - 1),
            $3, $4, 100 * ($4 / $3 - 1) }' "$work/seen" | tee -a "$work/table"
}

printf '%-12s %-10s %10s %10s %9s %10s %10s %9s\n' model layout "step ms" predicted error "peak MiB" predicted error
[ -n "$rate" ] || pair vgg16 1 data=1 32
pair vgg16 2 data=2 64
pair vgg16 2 channel=2 64
pair vgg16 2 height=2 64
[ -n "$rate" ] || pair unet 1 data=1 1
pair unet 2 data=2 2
pair unet 2 height=2 2
[ -n "$rate" ] || pair unet 2 width=2 2
[ -n "$rate" ] || pair autoencoder 1 data=1 256
pair autoencoder 2 data=2 512
pair autoencoder 2 stage=2 512
[ -n "$rate" ] || pair vgg16-wide 2 data=2 32
awk '{ t += $5 < 0 ? -$5 : $5; m += $9 < 0 ? -$9 : $9 } END {
    printf "mean error of time %.1f %%, of memory %.1f %%, of %d pairs\n", t / NR, m / NR, NR }' "$work/table"
