#!/bin/sh
# Proof and figures on a machine with a GPU: tests/gpu/run.sh [--debs FOLDER] [--out FOLDER] [--device cpu] [--dry]
#
# The machine needs nvcc, cmake, ninja and a compiler; --debs names a folder of Debian packages with what else it lacks
# (MPI, oneDNN, zlib, stb), which are unpacked beside what is there. The build is for this GPU alone. Steps that fail do
# not stop the others. One line for each step, $OUT/summary.csv, $OUT/*.log; the last line counts; the exit code is 0 if
# nothing failed. Everything ends within eight minutes. --dry prints the commands; --device cpu tries the script itself.
set -u
cd "$(dirname "$0")/../.." || exit
if [ "${1-}" != call ]; then
    out=build-gpu/run debs="" device=cuda dry=""
    while [ $# -gt 0 ]; do
        case $1 in
        --debs) debs=$2 && shift ;;
        --out) out=$2 && shift ;;
        --device) device=$2 && shift ;;
        --dry) dry=yes ;;
        *) echo "usage: $0 [--debs FOLDER] [--out FOLDER] [--device cpu] [--dry]" >&2 && exit 2 ;;
        esac
        shift
    done
    mkdir -p "$out/bin"
    PATH=$(cd "$out/bin" && pwd):$PATH
    export out device PATH
fi
limit=470
build="build-gpu"
begin=$(date +%s)
passed=0 failed=0 skipped=0
csv=$out/summary.csv
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 \
    OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_hwloc_base_binding_policy=none \
    OMPI_MCA_btl_vader_single_copy_mechanism=none OMPI_MCA_btl=self,vader OMP_NUM_THREADS=2

# note NAME RESULT SECONDS FIGURE
note() {
    printf '%-5s %-28s %4s s  %s\n' "$2" "$1" "$3" "$4"
    echo "$1,$2,$3,$4" >>"$csv"
}

skip() {
    skipped=$((skipped + 1))
    note "$1" skip 0 "$2"
}

# step NAME SECONDS FUNCTION...: the last line that it prints is its figure. It runs in a process of its own, so that the
# limit holds for all that it starts.
step() {
    name=$1 most=$2
    shift 2
    if [ -n "$dry" ]; then
        echo "$name (at most $most s): $*"
        return 0
    fi
    start=$(date +%s)
    left=$((limit - start + begin))
    if [ "$left" -lt 5 ]; then
        skip "$name" "no time left"
        return 0
    fi
    [ "$most" -le "$left" ] || most=$left
    timeout -k 5 "$most" sh tests/gpu/run.sh call "$@" >"$out/$name.log" 2>&1
    code=$?
    seconds=$(($(date +%s) - start))
    if [ "$code" = 0 ]; then
        passed=$((passed + 1))
        note "$name" ok "$seconds" "$(tail -n 1 "$out/$name.log" | tr ',' ';')"
        return 0
    fi
    failed=$((failed + 1))
    note "$name" FAIL "$seconds" "exit code $code"
    tail -n 15 "$out/$name.log"
    return 1
}

unpack() {
    for deb in "$1"/*.deb; do
        dpkg-deb --fsys-tarfile "$deb" | tar -x --skip-old-files -C / || return 1
    done
    ldconfig
}

# What Debian's alternatives would have named.
names() {
    for tool in mpirun mpicc; do
        [ ! -x "/usr/bin/$tool.openmpi" ] || ln -sf "/usr/bin/$tool.openmpi" "$out/bin/$tool"
    done
}

# packaged PART: its folder in Python's packages, as nvidia/nccl.
packaged() {
    python3 -c 'import importlib.util, sys
for path in importlib.util.find_spec("nvidia").submodule_search_locations:
    print(path + "/" + sys.argv[1])' "$1" 2>/dev/null | while read -r folder; do
        [ ! -d "$folder/lib" ] || echo "$folder"
    done | head -n 1
}

# hint LIBRARY HEADER VARIABLE VARIABLE: of CMake, for the header and the library, where the toolkit lacks them.
hint() {
    [ ! -e "/usr/local/cuda/include/$2" ] || return 0
    at=$(packaged "$1")
    [ -z "$at" ] || echo "-D$3=$at/include -D$4=$(find "$at/lib" -name "lib$1.so*" | head -n 1)"
}

configure() {
    arch=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d .)
    cuda=ON
    [ "$device" = cuda ] || cuda=OFF
    # shellcheck disable=SC2046 # hints are lists of options
    cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DWEFT_CUDA=$cuda -DWEFT_CUDA_ARCHS="${arch:-90}-real" \
        $(hint nccl nccl.h NCCL_INCLUDE NCCL_LIBRARY) \
        $(hint cudnn cudnn_graph.h CUDNN_INCLUDE_DIR CUDNN_LIBRARY)
}

compile() {
    cmake --build "$build" --parallel "$(nproc)" --target contract_kernels contract_norm contract_elementwise \
        contract_memory known_answers gradcheck_functions gradcheck_layers layers_values functions_values optim_step \
        golden exchange equiv_data equiv_spatial equiv_sync_norm equiv_channel comm_reducers optim_multi_node \
        nccl_order bench_dcgan bench_exchange
}

# tests PATTERN: of the suite, on the device.
tests() {
    WEFT_DEVICE=$device ctest --test-dir "$build" --output-on-failure --parallel 4 -LE 'large|long' -R "$1" |
        awk '{ print } /tests passed/ { line = $0 } END { if (!line) exit 1; print line; exit line !~ /^100%/ }'
}

# equal COMMUNICATOR RANKS
equal() {
    for name in equiv_data equiv_spatial equiv_sync_norm equiv_channel; do
        WEFT_DEVICE=$device TEST_COMMUNICATOR=$1 mpirun -np "$2" "$build/tests/$name" f32 || return 1
    done
}

sanitize() {
    WEFT_DEVICE=cuda compute-sanitizer --error-exitcode 9 "$build/tests/$1" "seed=1" && echo "no errors"
}

# dcgan CHANNELS BATCH ITERATIONS: images per second
dcgan() {
    WEFT_DEVICE=$device mpirun -np 1 "$build/tests/bench/bench_dcgan" --channels "$1" --batch "$2" --iterations "$3"
}

gpu() {
    nvidia-smi --query-gpu=name,driver_version,compute_cap,memory.total --format=csv,noheader
}

# torch CHANNELS BATCH ITERATIONS VARIANT [OPTION]: the same step by PyTorch
torch() {
    python3 tests/bench/bench_torch.py --device "$device" --channels "$1" --batch "$2" --iterations "$3" \
        --variant "$4" ${5:+"$5"}
}

if [ "${1-}" = call ]; then
    shift
    "$@"
    exit
fi

on_gpu() {
    [ "$device" = cuda ]
}

echo "step,result,seconds,figure" >"$csv"
if on_gpu; then
    step gpu 20 gpu
fi
if [ -n "$debs" ]; then
    step packages 60 unpack "$debs"
fi
names
if step configure 60 configure && step build 240 compile; then
    step contract 120 tests '^(contract_(kernels|norm|elementwise|memory)|known_answers)$'
    step values 60 tests '^(layers_values|functions_values|gradcheck_.*|optim_step|golden)$'
    for ranks in 1 2 4; do
        step "equal_mpi_$ranks" 60 equal flat "$ranks"
    done
    step messages 60 tests '^(exchange|comm_reducers|optim_multi_node)_[24]$'
    step nccl_order 60 tests '^nccl_order_[124]$'
    if on_gpu; then
        step equal_nccl_1 60 equal pure_nccl 1
        for name in contract_memory contract_norm; do
            step "sanitizer_$name" 60 sanitize $name
        done
    fi
    step dcgan_512 60 dcgan 512 256 30
    step dcgan_128 60 dcgan 128 16 100
    variants="channels_last compile_channels_last"
    if ! python3 -c 'import torch' 2>/dev/null; then
        skip torch "python3 has no PyTorch"
        variants=
    fi
    for variant in $variants; do
        step "torch_512_$variant" 60 torch 512 256 30 "$variant"
        step "torch_512_${variant}_bf16" 60 torch 512 256 30 "$variant" --autocast
        step "torch_128_$variant" 60 torch 128 16 100 "$variant"
    done
fi
echo "$passed passed, $failed failed, $skipped skipped in $(($(date +%s) - begin)) s on $device; figures in $csv"
[ "$failed" = 0 ]
