#!/bin/bash
# Peers that bench_all.sh has not, each by turns with ours: tests/bench/bench_peers.sh BUILD [jax|ddp|sums|xsmm]... Prints medians.
#
#   jax   training steps of DCGAN 128 and ResNet-18 in JAX, one process of two threads
#   ddp   the DCGAN step over two processes of a thread, the batch split: DistributedDataParallel over gloo beside "flat"
#   sums  the sum of 16 MiB over two ranks beside MPI_Allreduce, and beside a copy of as many bytes by each rank
#   xsmm  convolutions of ResNet-50 and VGG beside LIBXSMM's, one thread (BUILD has bench_xsmm where libxsmm-dev is installed)
#
#   WEFT_BENCH_ROUNDS (3)           runs of each
#   WEFT_BENCH_LEVELS ("newest")    instructions for all, as in bench_all.sh
#   WEFT_JAX_PYTHON (python3)       a Python that has JAX
#   WEFT_TORCH_PYTHON               one that has PyTorch, as in bench_all.sh
#   WEFT_JAX_LAYOUTS (nhwc)         layouts of images in JAX, "nhwc nchw"; the fastest counts
#   WEFT_DDP_FORMS (channels_last)  forms of PyTorch, as bench_torch.py has them; the fastest counts
set -eu
stop() {
    echo "bench_peers: $*" >&2
    exit 1
}
build=${1-}
[ -x "$build/tests/bench/bench_step" ] || stop "\"$build\" has no tests/bench/bench_step: bench_peers.sh BUILD [jax|ddp|sums|xsmm]..."
shift
here=$(cd "$(dirname "$0")" && pwd)
rounds=${WEFT_BENCH_ROUNDS:-3} levels=${WEFT_BENCH_LEVELS:-newest}
[ "$rounds" -ge 1 ] 2>/dev/null || stop "WEFT_BENCH_ROUNDS=$rounds: should be 1 or more"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# shellcheck source=tests/bench/levels.sh
. "$here/levels.sh"

median() {
    sort -n "$1" | awk '{ v[NR] = $1 } END { if (NR) print v[int((NR + 1) / 2)] }'
}

# ours PROCESSES THREADS PROGRAM OPTION...
ours() {
    local processes=$1 threads=$2 program=$build/tests/bench/$3
    shift 3
    if [ "$processes" = 1 ]; then
        OMP_NUM_THREADS=$threads "$program" "$@"
    else
        OMP_NUM_THREADS=$threads mpirun -np "$processes" --bind-to none "$program" "$@"
    fi
}

# row LEVEL NAME: of $work/ours and $work/its-FORM
row() {
    local form best=0 name=- own rate
    own=$(median "$work/ours")
    for form in "$work"/its-*; do
        rate=$(median "$form")
        [ -n "$rate" ] || continue
        if awk -v a="$rate" -v b="$best" 'BEGIN { exit !(a > b) }'; then
            best=$rate name=${form##*/its-}
        fi
    done
    printf '%-8s %-26s %10s %10s %7s  %s\n' "$1" "$2" "$own" "$best" "$(awk -v w="$own" -v t="$best" 'BEGIN { if (t > 0) printf "%.2f", w / t; else printf "-" }')" "$name"
    rm -f "$work"/its-* "$work/ours"
}

# jax_row LEVEL NAME PROGRAM MODEL OPTIONS_OF_OURS OPTION...
jax_row() {
    local level=$1 name=$2 program=$3 model=$4 ours=$5 layout
    shift 5
    for _ in $(seq "$rounds"); do
        # shellcheck disable=SC2086
        at "$level" ours 1 2 "$program" $ours "$@" >>"$work/ours"
        for layout in ${WEFT_JAX_LAYOUTS:-nhwc}; do
            at "$level" "${WEFT_JAX_PYTHON:-python3}" "$here/bench_jax.py" --model "$model" --layout "$layout" "$@" >>"$work/its-$layout"
        done
    done
    row "$level" "$name"
}

jax() {
    "${WEFT_JAX_PYTHON:-python3}" -c 'import jax; print("JAX", jax.__version__)' || stop "${WEFT_JAX_PYTHON:-python3} has no JAX: WEFT_JAX_PYTHON names a Python that has it"
    local level
    for level in $levels; do
        jax_row "$level" "DCGAN 128, 64" bench_dcgan dcgan "" --channels 128 --batch 64 --iterations 20 --warmup 3
        jax_row "$level" "ResNet-18 224x224, 16" bench_step resnet18 "--model resnet18" --size 224 --batch 16 --iterations 3 --warmup 2
    done
}

ddp() {
    # shellcheck source=tests/bench/torch.sh
    . "$here/torch.sh"
    local level form python
    python=$(find_torch)
    [ -n "$python" ] || stop "PyTorch is not there and cannot be installed (WEFT_TORCH_PYTHON names a python that has it)"
    "$python" -c 'import torch; print("PyTorch", torch.__version__)'
    for level in $levels; do
        for _ in $(seq "$rounds"); do
            at "$level" ours 2 1 bench_dcgan --batch 32 --channels 128 --iterations 20 >>"$work/ours"
            for form in ${WEFT_DDP_FORMS:-channels_last}; do
                at "$level" "$python" "$here/bench_torch.py" --batch 32 --channels 128 --processes 2 --threads 1 --iterations 20 \
                    --variant "$form" 2>"$work/why" >>"$work/its-$form" || echo "DDP $form: $(tail -n 1 "$work/why")" >&2
            done
        done
        row "$level" "DCGAN 128, 2 x 1, 32 each"
    done
}

sums() {
    mpirun -np 2 --bind-to none "$build/examples/allreduce_bench" --least $((16 << 20)) --most $((16 << 20)) --repeat 101 --out "$work/sums" |
        grep -E 'us|MPI_|wf_|single|copy'
}

xsmm() {
    [ -x "$build/tests/bench/bench_xsmm" ] || stop "$build/tests/bench/bench_xsmm is not there: it is built where libxsmm-dev is installed"
    local level
    for level in $levels; do
        at "$level" "$build/tests/bench/bench_xsmm"
    done
}

[ $# -gt 0 ] || set -- jax ddp sums xsmm
for what; do
    case $what in
    jax | ddp | sums | xsmm) "$what" ;;
    *) stop "$what: should be jax, ddp, sums or xsmm" ;;
    esac
done
