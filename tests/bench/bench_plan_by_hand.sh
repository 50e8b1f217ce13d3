#!/bin/sh
# The plan that wf-plan picks against plans made by hand, on two ranks of one thread: tests/bench/bench_plan_by_hand.sh
# BUILD [MODEL ...]. MODELs: vgg16 vgg16-wide unet unet-one (one image a step) autoencoder. By hand: every mesh of two ranks that the program can have,
# all layers split alike, and of stages several numbers of chunks and schedules. In ROUNDS rounds each plan is run once for
# ten steps; the table has medians and quartiles. The verdict is "ok" where the picked plan's median is not above the best
# one's by more than the larger of the two's distances between quartiles. RATE=1gbit: on two virtual nodes of one rank each, whose
# link is that slow (as superuser; bench_plan.sh says more).
set -eu
build=$1
shift
rounds=${ROUNDS:-7}
here=$(cd "$(dirname "$0")" && pwd)
. "$here/plans.sh"
rate=${RATE-}
if [ -n "$rate" ]; then
    nodes=2 start="$here/../comm/cluster.sh -r $rate -b 72k -n 1+1 mpirun" ranks=
else
    nodes=1 start="mpirun --bind-to none" ranks="-np 2"
fi

# by NAME [OPTION ...]: makes the plan of this name
by() {
    file="$work/$name/$1.json"
    shift
    plan "$file" --ranks 2 --nodes $nodes --measure 2 --mpirun "$start" "$@"
}

# pipelined CHUNKS SCHEDULE STAGES: the plan of stages, edited
pipelined() {
    sed "s/\"chunks\": [0-9]*/\"chunks\": $1/; s/\"schedule\": \"[a-z0-9]*\"/\"schedule\": \"$2\"/
        s/\"stages\": \[[^]]*\]/\"stages\": [$3]/" "$work/$name/staged.json" >"$work/$name/$2-$1-chunks.json"
}

compare() {
    for _ in $(seq "$rounds"); do
        for file in "$work/$name"/*.json; do
            each=$(basename "$file" .json)
            $start $ranks $program $run --plan "$file" 2>"$work/err" |
                sed -n "s/^plan: a step takes \\([0-9.]*\\) ms .*/$each \\1/p" >>"$work/$name/times"
        done
    done
    sort -k1,1 -k2,2n "$work/$name/times" | awk -v model="$name" '
        function close_plan() {
            if (!n)
                return
            middle[name] = v[int((n + 1) / 2)]
            lo[name] = v[int((n + 3) / 4)]
            hi[name] = v[int((3 * n + 3) / 4)]
            printf "%-12s %-24s %8.2f ms, quartiles %.2f to %.2f, of %d runs\n", model, name, middle[name], lo[name], hi[name], n
            if (name != "picked" && (best == "" || middle[name] < middle[best]))
                best = name
        }
        $1 != name { close_plan(); name = $1; n = 0 }
        { v[++n] = $2 }
        END {
            close_plan()
            spread = hi["picked"] - lo["picked"]
            if (hi[best] - lo[best] > spread)
                spread = hi[best] - lo[best]
            over = middle["picked"] - middle[best]
            printf "%s: picked %+.2f ms against the best by hand (%s), spread %.2f ms: %s\n", model, over, best, spread,
                over <= spread ? "ok" : "SLOWER"
            exit over > spread
        }'
}

failed=0
for name in ${*:-vgg16 vgg16-wide unet unet-one autoencoder}; do
    mkdir -p "$work/$name"
    meshes="data=2 channel=2 height=2 width=2"
    case $name in
    vgg16) model "$name" 64 ;;
    vgg16-wide) model "$name" 32 ;;
    unet-one) model "$name" 1 && meshes="channel=2 height=2 width=2" ;;
    autoencoder) model "$name" 512 && meshes=data=2 ;;
    *) model "$name" 2 ;;
    esac
    by picked
    echo "$name: picked $(sed -n 's/^predicted: .* samples on \(.*\); .* MiB.*/\1/p; s/^stages: /, /p' "$work/out" | tr -d '\n')"
    for mesh in $meshes; do
        case $mesh in
        data*) how=data ;;
        channel*) how=channel ;;
        *) how=spatial ;;
        esac
        by "$mesh-$how" --mesh "$mesh" --split $how
    done
    if [ $name = autoencoder ]; then
        by staged --mesh stage=2
        for chunks in 1 2 4 8 16 32; do
            pipelined $chunks 1f1b "3, 3"
            pipelined $chunks gpipe "3, 3"
            pipelined $chunks interleaved "1, 2, 2, 1"
        done
    fi
    compare || failed=1
done
exit $failed
