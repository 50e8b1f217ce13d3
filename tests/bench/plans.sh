# What bench_plan.sh and bench_plan_by_hand.sh share: both source it, with their folder in $here and the programs' in $build. It
# makes a folder $work, which is removed at the end, and in it images and a cache of measured times.
export OMP_NUM_THREADS=1 WEFT_LOG=error
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. "$here/../examples/small_images.sh"
small_images "$work/images" 1024 100
export WEFT_CACHE="${WEFT_CACHE:-$work/cache}" WEFT_DATA="$work/images"

# model NAME BATCH: sets $program, with its options, and $run, the options of a run by a plan: ten steps are compared, behind
# three others.
model() {
    case $1 in
    vgg16) program="$build/examples/vgg_cifar --width 16" run="--iterations 14 --epochs 1" ;;
    vgg16-wide) program="$build/examples/vgg_cifar --width 32" run="--iterations 14 --epochs 1" ;;
    unet*) program="$build/examples/segment --size 256 --channels 8" run="--iterations 14 --log-every 100 --out $work/segment" ;;
    autoencoder) program="$build/examples/autoencoder --width 512" run="--steps 14 --log-every 100 --out $work/autoencoder" ;;
    *) echo "no model $1" && exit 2 ;;
    esac
    program="$program --batch $2"
}

# plan FILE OPTION ...: a plan of the model, by these options of wf-plan, whose output is left in $work/out.
plan() {
    plan_file=$1
    shift
    "$build/tools/wf-plan" "$@" -o "$plan_file" -- $program >"$work/out" 2>&1 || { cat "$work/out"; return 1; }
}
