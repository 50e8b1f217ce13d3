#!/bin/sh
# The plan that wf-plan picks against plans made by hand, on two ranks of one thread: tests/bench/bench_plan_by_hand.sh
# BUILD [MODEL ...]. MODELs: vgg16 vgg16-wide unet unet-one (one image a step) autoencoder. By hand: every mesh of two ranks that the program can have,
# all layers split alike, and of stages several numbers of chunks and schedules. In ROUNDS rounds each plan is run once for
# ten steps; the table has medians and quartiles. The verdict is "ok" where the picked plan's median is not above the best
# one's by more than the larger of the two's distances between quartiles.
set -eu
build=$1
shift
export OMP_NUM_THREADS=1 WEFT_LOG=error
rounds=${ROUNDS:-7}
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. "$here/../examples/small_images.sh"
small_images "$work/images" 1024 100
export WEFT_CACHE="${WEFT_CACHE:-$work/cache}" WEFT_DATA="$work/images"

# plan NAME [OPTION ...]: makes the plan of this name
plan() {
    plan_name=$1
    shift
    "$build/tools/wf-plan" --ranks 2 --mpirun "mpirun --bind-to none" "$@" -o "$work/$model/$plan_name.json" -- \
        $program >"$work/out" 2>&1 || { cat "$work/out"; return 1; }
    [ "$plan_name" != picked ] || echo "$model: picked $(sed -n 's/^predicted: .* samples on \(.*\); .* MiB.*/\1/p; s/^stages: /, /p' "$work/out" | tr -d '\n')"
}

# pipelined CHUNKS SCHEDULE STAGES: the plan of stages, edited
pipelined() {
    sed "s/\"chunks\": [0-9]*/\"chunks\": $1/; s/\"schedule\": \"[a-z0-9]*\"/\"schedule\": \"$2\"/
        s/\"stages\": \[[^]]*\]/\"stages\": [$3]/" "$work/$model/staged.json" >"$work/$model/$2-$1-chunks.json"
}

compare() {
    for _ in $(seq "$rounds"); do
        for file in "$work/$model"/*.json; do
            each=$(basename "$file" .json)
            mpirun -np 2 --bind-to none $program $run --plan "$file" 2>"$work/err" |
                sed -n "s/^plan: a step takes \\([0-9.]*\\) ms .*/$each \\1/p" >>"$work/$model/times"
        done
    done
    sort -k1,1 -k2,2n "$work/$model/times" | awk -v model="$model" '
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
for model in ${*:-vgg16 vgg16-wide unet unet-one autoencoder}; do
    mkdir -p "$work/$model"
    meshes="data=2 channel=2 height=2 width=2" run="--iterations 14 --epochs 1"
    case $model in
    vgg16) program="$build/examples/vgg_cifar --width 16 --batch 64" ;;
    vgg16-wide) program="$build/examples/vgg_cifar --width 32 --batch 32" ;;
    unet) program="$build/examples/segment --size 256 --channels 8 --batch 2" run="--iterations 14 --log-every 100 --out $work/segment" ;;
    unet-one)
        program="$build/examples/segment --size 256 --channels 8 --batch 1" run="--iterations 14 --log-every 100 --out $work/segment"
        meshes="channel=2 height=2 width=2"
        ;;
    autoencoder)
        program="$build/examples/autoencoder --width 512 --batch 512" run="--steps 14 --log-every 100 --out $work/autoencoder"
        meshes=data=2
        ;;
    *) echo "no model $model" && exit 2 ;;
    esac
    plan picked
    for mesh in $meshes; do
        case $mesh in
        data*) how=data ;;
        channel*) how=channel ;;
        *) how=spatial ;;
        esac
        plan "$mesh-$how" --mesh "$mesh" --split $how
    done
    if [ $model = autoencoder ]; then
        plan staged --mesh stage=2
        for chunks in 1 2 4 8 16 32; do
            pipelined $chunks 1f1b "3, 3"
            pipelined $chunks gpipe "3, 3"
            pipelined $chunks interleaved "1, 2, 2, 1"
        done
    fi
    compare || failed=1
done
exit $failed
