#!/bin/sh
# The DCGAN step in images per second, beside PyTorch; all-reduces; models that two ranks share, against one rank; how
# much of an exchange a convolution shows, and of the sums of gradients a step; checkpoints, against plain writing; a pipeline,
# against one process; plans, predicted and measured; samples from files:
# tests/bench/bench_comm.sh BUILD [ROUNDS]
# Runs of both alternate, so that both see the same machine; the table shows medians and their ratio.
set -eu
build=$1
rounds=${2:-3}
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# shellcheck source=tests/bench/torch.sh
. "$here/torch.sh"

# weft BATCH CHANNELS PROCESSES THREADS ITERATIONS
weft() {
    OMP_NUM_THREADS=$4 mpirun -np "$3" --bind-to none "$build/tests/bench/bench_dcgan" \
        --batch "$1" --channels "$2" --iterations "$5"
}

# torch the same, and the variant
torch() {
    "$python" "$here/bench_torch.py" --batch "$1" --channels "$2" --processes "$3" --threads "$4" --iterations "$5" \
        --variant "$6" 2>/dev/null
}

median() {
    sort -n "$1" | awk '{ v[NR] = $1 } END { if (NR) print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'
}

# row CHANNELS PROCESSES THREADS BATCH ITERATIONS
row() {
    : >"$work/weft"
    : >"$work/torch"
    if [ -n "$python" ] && [ "$2" = 1 ]; then # the row with two processes takes what was the fastest in one
        variant=$("$python" "$here/bench_torch.py" --pick --batch "$4" --channels "$1" --threads "$3" \
            --iterations "$5" 2>/dev/null)
    fi
    for _ in $(seq "$rounds"); do
        weft "$4" "$1" "$2" "$3" "$5" >>"$work/weft"
        [ -z "$python" ] || torch "$4" "$1" "$2" "$3" "$5" "$variant" >>"$work/torch"
    done
    w=$(median "$work/weft")
    t=$(median "$work/torch")
    ratio=-
    [ -z "$t" ] || ratio=$(awk -v w="$w" -v t="$t" 'BEGIN { printf "%.2f", w / t }')
    printf '%8s  %9s  %7s  %5s  %10s  %10s  %5s  %s\n' "$1" "$2" "$3" "$4" "$w" "${t:--}" "$ratio" "$variant"
}

variant=
python=$(find_torch)
if [ -n "$python" ]; then
    "$python" -c 'import torch; print("PyTorch", torch.__version__)'
else
    echo "bench: PyTorch is not there and cannot be installed (WEFT_TORCH_PYTHON names a python that has it)"
fi
printf '%8s  %9s  %7s  %5s  %10s  %10s  %5s  %s\n' channels processes threads batch weft pytorch ratio "variant of PyTorch"
row 128 1 2 64 20
row 128 2 1 32 20
row 512 1 2 64 4
row 512 2 1 32 4

echo
mpirun -np 2 --bind-to none "$build/examples/allreduce_bench" --out "$build/allreduce" 2>/dev/null

# Ranks that yield to each other's processes while they wait would show those, not messages.
export OMPI_MCA_mpi_yield_when_idle=0
echo
mpirun -np 2 --bind-to none "$build/tests/bench/bench_models" 2>/dev/null
echo
echo "exchange that a convolution shows, in a node:"
mpirun -np 2 --bind-to none "$build/tests/bench/bench_overlap" 2>/dev/null
nodes() {
    "$here/../comm/cluster.sh" -r 1gbit -n 1 "$(command -v mpirun)" "$@" 2>/dev/null || true
}
echo "and between two nodes with a link of 1 Gbit/s:"
nodes "$build/tests/bench/bench_overlap" 32 3 512 0
echo
echo "sums of gradients while backward goes on, over that link:"
OMP_NUM_THREADS=1 nodes "$build/tests/bench/bench_gradients" --model vgg --batch 48 --width 32

echo
echo "checkpoints:"
mkdir "$build/bench-saves"
mpirun -np 2 --bind-to none "$build/tests/bench/bench_saves" "$build/bench-saves" 2>/dev/null

echo
echo "a pipeline of two stages, against one process:"
"$here/bench_pipeline.sh" "$build"

echo
echo "plans, predicted and measured:"
"$here/bench_plan.sh" "$build"

echo
echo "samples from HDF5 files:"
"$build/tests/bench/bench_data" "$build/bench-saves"
rm -rf "$build/bench-saves"
