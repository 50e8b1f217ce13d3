#!/usr/bin/env bash
# Proof and figures on a machine with a GPU, each within eight minutes.
#
#     tests/gpu/run.sh [--proof | --figures] [--debs FOLDER] [--out FOLDER] [--only REGEX] [--tune] [--device cpu]
#                      [--slow N] [--dry | --programs | --self | --carry FOLDER]
#
# The machine needs nvcc, cmake, ninja, a compiler, and cuDNN and NCCL beside CUDA or among Python's packages; --debs names
# a folder of Debian packages with what else it lacks (MPI, oneDNN, HDF5, zlib, stb), which are unpacked beside what is
# there, and replace nothing; --carry gathers them on a machine with a registry (tests/gpu/packages.txt, which
# tests/gpu/closed.sh proves to be whole), and NCCL 2.30 or later, which takes two ranks on one GPU: PyPI's nvidia-nccl-cu13, cut
# to the code of sm_90 (tests/gpu/cut_wheel.py). The build is for
# this GPU alone. --proof, the default, begins with contract_device, alone: streams, events, graphs, shared memory. If that
# fails, nothing else would say more, and the rest is left out. Then come, at most four steps at a time, what was never seen on a
# GPU: plans of cuDNN that run, captured steps, memory that ranks map from each other. Of the large contract programs each case
# runs in a process of its own, since CUDA forgets no fault; a case that fails runs once more under compute-sanitizer, which names
# the kernel and the address. --figures makes one measurement at a time, beside
# PyTorch's where python3 has it, with the same tuning. A step that fails or hangs stops no other. Either ends within eight
# minutes; what no time is left for is skipped, and says so.
#
# One line for each step; OUT/summary-HALF.csv has them too, OUT/log-HALF.txt what every step printed; the last line counts. The
# exit code is 0 if nothing failed.
#
# --slow N gives every step N times as long, and all of them together, on a machine that is not meant for this. --only
# runs the steps whose names match (and the build). --tune lets cuDNN's engines be timed at their first use, in Weft and in
# PyTorch: minutes.
# --dry prints the steps; --programs what they need built; --self tries this script's own machinery; --device cpu runs
# everything that needs no GPU, on small shapes.
# shellcheck disable=SC2317 # functions are called by name
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit
self=tests/gpu/run.sh
limit=470 # seconds of a half
most_beside=4

proof_programs="contract_convolution contract_kernels captured captured_errors captured_pipeline equiv_data equiv_spatial equiv_sync_norm
    equiv_channel contract_device contract_norm contract_group_norm contract_attention contract_elementwise contract_fold contract_memory known_answers gradcheck_functions gradcheck_arithmetic
    gradcheck_layers layers_values functions_values loss_values optim_step golden exchange comm_reducers optim_multi_node mixed
    optim_scale contract_comm deaths wf-doctor"
figure_programs="bench_dcgan bench_step bench_kernels bench_cuda_conv"
equal_programs="equiv_spatial equiv_channel equiv_sync_norm equiv_data" # the longest first

if [ "${1-}" != call ]; then
    out="build-gpu/out" debs="" device=cuda dry="" only=. tune=0 slow=1 mode=run half=proof carry=""
    while [ $# -gt 0 ]; do
        case $1 in
        --debs | --out | --device | --only | --slow | --carry)
            [ $# -gt 1 ] || { echo "$self: $1 needs a value" >&2 && exit 2; }
            case $1 in
            --debs) debs=$2 ;;
            --out) out=$2 ;;
            --device) device=$2 ;;
            --only) only=$2 ;;
            --slow) slow=$2 ;;
            --carry) carry=$2 mode=carry ;;
            esac
            shift
            ;;
        --tune) tune=1 ;;
        --dry) dry=yes ;;
        --proof | --figures) half=${1#--} ;;
        --programs | --self) mode=${1#--} ;;
        *) sed -n '4,5s/^# *//p' "$self" >&2 && exit 2 ;;
        esac
        shift
    done
    work="build-gpu/steps"
    export out device tune work half
fi
build="build-gpu"
csv=$out/summary-$half.csv
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 \
    OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_hwloc_base_binding_policy=none \
    OMPI_MCA_btl_vader_single_copy_mechanism=none OMPI_MCA_btl=self,vader OMPI_MCA_pml=ob1 \
    OMP_NUM_THREADS=2
# A machine without ssh: mpirun wants an agent for other machines, which it never calls.
export OMPI_MCA_plm_rsh_agent=true
export PATH=$PATH:/usr/local/cuda/bin:/usr/local/cuda/compute-sanitizer:/usr/local/nvidia/bin

on_gpu() {
    [ "$device" = cuda ]
}

# shellcheck source=tests/gpu/figures.sh
. tests/gpu/figures.sh

# --- steps -----------------------------------------------------------------------------------------------------------

# note NAME RESULT SECONDS FIGURE
note() {
    printf '%-5s %-28s %4s s  %s\n' "$2" "$1" "$3" "$4"
    printf '%s,%s,%s,%s\n' "$1" "$2" "$3" "${4//,/;}" >>"$csv"
}

# What a step is to be remembered by: the lines "figure: ..." that it printed.
figures_of() {
    sed -n 's/^figure: //p' "$1" | paste -sd ';' | sed 's/;/; /g'
}

# show LOG: the first errors of a step that failed, and its end, in one piece beside other steps.
show() {
    printf '%s\n' "$( (grep -m 5 -E '^not ok|FAIL|weft:|error' "$1"; echo ...; tail -n 10 "$1") | sed 's/^/    /')"
}

# step NAME SECONDS FUNCTION...: in a process of its own, so that the limit holds for all that it starts. Exit code 77 is
# a step that cannot be made here: its last line says why.
step() {
    local name=$1 most=$(($2 * slow)) start left code seconds log=$work/$1.log
    shift 2
    [[ $name =~ $only || $name =~ ^(packages|configure|build)$ ]] || return 0
    if [ -n "$dry" ]; then
        echo "$name (at most $most s): $*"
        return 0
    fi
    start=$(date +%s)
    left=$((until - start))
    if [ "$left" -lt 5 ]; then
        note "$name" skip 0 "no time left"
        return 0
    fi
    [ "$most" -le "$left" ] || most=$left
    timeout -k 5 "$most" bash "$self" call "$@" >"$log" 2>&1
    code=$?
    seconds=$(($(date +%s) - start))
    case $code in
    0) note "$name" ok "$seconds" "$(figures_of "$log")" ;;
    77) note "$name" skip "$seconds" "$(tail -n 1 "$log")" ;;
    124 | 137) note "$name" FAIL "$seconds" "ended after $most s" ;;
    *) note "$name" FAIL "$seconds" "exit code $code" ;;
    esac
    [ "$code" = 0 ] || [ "$code" = 77 ] || show "$log"
    [ "$code" = 0 ]
}

# Runs tests beside others: as many at a time as there are pairs of processors, from two to four.
beside() {
    local most=$(($(nproc) / 2))
    most=$((most < 2 ? 2 : most > most_beside ? most_beside : most))
    while [ "$(jobs -rp | wc -l)" -ge "$most" ]; do
        wait -n
    done
    step "$@" &
    [ -z "$dry" ] || wait
}

# --- set-up ----------------------------------------------------------------------------------------------------------

# unpack_wheels FOLDER: a carried NCCL goes into the build, and is taken before the one that is there.
unpack_wheels() {
    local wheel
    for wheel in "$1"/nvidia_nccl*.whl; do
        [ ! -e "$wheel" ] || python3 -m zipfile -e "$wheel" "$build/wheels" || return 1
    done
}

unpack() {
    local deb
    unpack_wheels "$1" || return 1
    for deb in "$1"/*.deb; do
        dpkg-deb --fsys-tarfile "$deb" | tar -x --skip-old-files --keep-directory-symlink -C / || return 1
    done
    ldconfig
    # Names for the linker that point to another version of a library than the one that is there.
    find /usr/lib/x86_64-linux-gnu -maxdepth 1 -name 'lib*.so' -xtype l | while read -r link; do
        real=$(find "$link".* -maxdepth 0 -xtype f 2>/dev/null | head -n 1)
        [ -z "$real" ] || ln -sf "$real" "$link"
    done
    echo "figure: $(find "$1" -name '*.deb' | wc -l) packages"
}

# gather FOLDER: what --debs unpacks there. NCCL of the registry has code for seven architectures in 305 MB; that of one stays,
# of Hopper unless CARRY_ARCH names another.
gather() {
    # shellcheck disable=SC2046 # a list
    mkdir -p "$1" && (cd "$1" && apt-get download -q $(sed 's/#.*//' "$OLDPWD/tests/gpu/packages.txt")) &&
        python3 -m pip download -q --no-deps -d "$1" 'nvidia-nccl-cu13>=2.30' &&
        python3 tests/gpu/cut_wheel.py "$1"/nvidia_nccl_cu13-*.whl "${CARRY_ARCH:-90}"
}

# Debian's alternatives name these without the ending; packages that are only unpacked do not.
tool() {
    command -v "$1" || command -v "$1.openmpi"
}

# Folders of CUDA's parts among Python's packages.
wheels() {
    python3 -c 'import nvidia
print("\n".join(nvidia.__path__))' 2>/dev/null
}

# wheel_file NAME...: the first such file there.
wheel_file() {
    wheels | while read -r folder; do find "$folder" -name "$1" 2>/dev/null; done | sort | head -n 1
}

# carried_file NAME: the first such file among what --debs brought.
carried_file() {
    find "$PWD/$build/wheels" -name "$1" 2>/dev/null | sort | head -n 1
}

# hint LIBRARY HEADER VARIABLE VARIABLE: options of CMake for a library and its header, where they were carried or the toolkit
# lacks them.
hint() {
    local library header
    library=$(carried_file "lib$1.so*")
    header=$(carried_file "$2")
    if [ -z "$library" ]; then
        [ ! -e "$(toolkit)/include/$2" ] || return 0
        library=$(wheel_file "lib$1.so*")
        header=$(wheel_file "$2")
    fi
    [ -z "$library" ] || [ -z "$header" ] || echo "-D$4=$library -D$3=$(dirname "$header")"
}

toolkit() {
    dirname "$(dirname "$(readlink -f "$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)")")"
}

# What the wheels' libraries look for at run time: NVRTC beside cuDNN, and each other.
libraries() {
    local folders=""
    [ -e "$(toolkit)/include/cudnn_graph.h" ] || folders=$(wheels | while read -r folder; do find "$folder" -type d -name lib; done | paste -sd :)
    echo "$(toolkit)/lib64${folders:+:$folders}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
}

# lacks NAME...: whether one of these libraries was not found.
lacks() {
    local name
    for name in "$@"; do
        ! grep "^${name}_LIBRARY.*NOTFOUND" "$build/CMakeCache.txt" || return 0
    done
    return 1
}

configure() {
    local arch cuda=ON
    arch=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d .)
    on_gpu || cuda=OFF
    # shellcheck disable=SC2046 # hints are lists of options
    cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DWEFT_CUDA="$cuda" -DWEFT_CUDA_ARCHS="${arch:-90}-real" \
        -DWEFT_WERROR=OFF -DMPI_C_COMPILER="$(tool mpicc)" -DMPIEXEC_EXECUTABLE="$(tool mpirun)" \
        $(hint nccl nccl.h NCCL_INCLUDE NCCL_LIBRARY) \
        $(hint cublasLt cublasLt.h CUBLASLT_INCLUDE_DIR CUBLASLT_LIBRARY) \
        $(hint cudnn cudnn_graph.h CUDNN_INCLUDE_DIR CUDNN_LIBRARY) || return 1
    if on_gpu && lacks CUDNN CUBLASLT; then
        echo "cuDNN or cuBLASLt is missing: neither beside the toolkit nor among Python's packages"
        return 1
    fi
    echo "figure: $(sed -n 's/^CMAKE_C_COMPILER:[A-Z]*=//p' "$build/CMakeCache.txt"), sm_${arch:-90}, CUDA $cuda"
    ! on_gpu || ! lacks NCCL || echo "figure: no NCCL"
}

# Prints the programs of the half that this tree has.
known() {
    local all program programs=$proof_programs
    [ "$half" = proof ] || programs=$figure_programs
    all=$(ninja -C "$build" -t targets all | sed 's/:.*//')
    for program in $programs; do
        ! grep -qx "$program" <<<"$all" || echo "$program"
    done
}

# One program that does not compile keeps no other from being made.
compile() {
    local wanted made=0 program
    wanted=$(known)
    # shellcheck disable=SC2086 # a list
    cmake --build "$build" --parallel "$(nproc)" --target $wanted -- -k 0
    for program in $wanted; do
        [ -z "$(find "$build/tests" -name "$program" -type f -perm -u+x)" ] || made=$((made + 1))
    done
    echo "figure: $made of $(wc -w <<<"$wanted") programs"
    [ "$made" = "$(wc -w <<<"$wanted")" ]
}

# --- proof -----------------------------------------------------------------------------------------------------------

gpu() {
    local line
    line=$(nvidia-smi --query-gpu=name,driver_version,compute_cap,memory.total --format=csv,noheader) || return 1
    echo "figure: $line"
}

has() {
    [ -x "$build/tests/$1" ] || { echo "this tree has no program $1" && exit 77; }
}

# tests PATTERN: of the suite, on the device. Products in full f32: tolerances are those of f32.
tests() {
    WEFT_DEVICE=$device ctest --test-dir "$build" --output-on-failure --parallel 16 -LE 'large|long' -R "$1" |
        awk '{ print }
             /tests passed/ { line = $0; good = /^100%/ }
             END { if (!line) exit 1
                   n = split(line, word, " "); print "figure: " word[n] " tests"; exit !good }'
}

# names PROGRAM: its cases, in their order.
names() {
    grep -oE '\{"[a-z0-9_]+", *[a-z0-9_]+\}' "tests/core/$1.c" | sed 's/{"//; s/".*//' | grep . ||
        { echo "no case is found in tests/core/$1.c" && return 1; }
}

# cases PROGRAM: each in a process of its own. A name also picks the cases that contain it.
cases() {
    local program=$1 name good=0 bad=""
    has "$program"
    export WEFT_DEVICE=$device
    for name in $(names "$program"); do
        if "$build/tests/$program" "$name"; then
            good=$((good + 1))
        else
            bad+=" $name"
        fi
    done
    echo "figure: $good cases${bad:+, failed:$bad}"
    for name in $bad; do
        echo "--- $name once more"
        CUDA_LAUNCH_BLOCKING=1 TEST_SAMPLES=50 timeout 60 \
            compute-sanitizer --tool memcheck "$build/tests/$program" "$name" 2>&1 | head -n 60
    done
    [ -z "$bad" ]
}

# alone PROGRAM [VARIABLE=VALUE...]
alone() {
    local program=$1
    shift
    has "$program"
    env WEFT_DEVICE="$device" "$@" "$build/tests/$program" && echo "figure: $program ${*:-as it is set}"
}

# with_nccl RANKS: on one GPU. One rank is connected with itself; several need an NCCL that takes them, and few of its
# blocks for each, since all must be on the GPU at once.
with_nccl() {
    local version
    { on_gpu && ! lacks NCCL; } || { echo "there is no GPU, or no NCCL" && exit 77; }
    export WEFT_NCCL_ONE_RANK=1 WEFT_TIMEOUT_MS=20000 WEFT_IDLE_MS=20000 NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_MAX_CTAS=4
    version=$(awk '/define NCCL_M[AI][JN]OR/ { n = 100 * n + $3 } END { print n }' \
        "$(sed -n 's/^NCCL_INCLUDE:[A-Z]*=//p' "$build/CMakeCache.txt")/nccl.h")
    [ "$1" = 1 ] || [ "$version" -ge 230 ] || { echo "NCCL $version takes one rank a GPU, and 230 more" && exit 77; }
}

# equal PROGRAM COMMUNICATOR RANKS [CASE...]: parallel forms beside the serial ones, or these cases, all ranks on one GPU.
equal() {
    local program=$1 by=$2 ranks=$3 said=$work/$1_$2_$3.out
    shift 3
    has "$program"
    [ "$by" != pure_nccl ] || with_nccl "$ranks"
    WEFT_LOG=debug WEFT_DEVICE=$device TEST_COMMUNICATOR=$by "$(tool mpirun)" -np "$ranks" "$build/tests/$program" \
        "${@:-f32}" 2>&1 | tee "$said"
    [ "${PIPESTATUS[0]}" = 0 ] || return 1
    echo "figure: $(grep -c '^ok ' "$said") cases in $ranks ranks"
    # With one rank NCCL copies, or does nothing in place.
    [ "$by $ranks" != "pure_nccl 1" ] || echo "figure: only fork, join, open and close are proved"
    if on_gpu && [ "$ranks" -gt 1 ] && [ "$by" != pure_nccl ]; then
        sed -n 's/.*\(exchanges inside a node go .*\)/figure: \1/p' "$said" | head -n 1 | grep . ||
            echo "figure: exchanges by memory that ranks map from each other"
    fi
}

# deaths COMMUNICATOR PLACE...: one of three ranks is killed, stopped, or ends there, and the others end with a message.
deaths() {
    local by=$1
    shift
    has deaths
    WEFT_DEVICE=$device COMMUNICATOR=$by tests/comm/deaths.sh "$(tool mpirun)" "$build/tests/deaths" "$build/tools/wf-doctor" "$@" |
        awk '{ print } / deaths ended well/ { print "figure: " $0; good = 1 } END { exit !good }'
}

# sanitize TOOL PROGRAM CASE...: of NVIDIA's compute-sanitizer.
sanitize() {
    local tool=$1 program=$2
    shift 2
    command -v compute-sanitizer || { echo "there is no compute-sanitizer" && exit 77; }
    has "$program"
    local said=$work/${tool}_$program.out
    TEST_SAMPLES=50 WEFT_DEVICE=cuda compute-sanitizer --tool "$tool" --report-api-errors no --error-exitcode 9 \
        "$build/tests/$program" "$@" 2>&1 | tee "$said"
    case "${PIPESTATUS[0]} $(grep -c 'Device not supported' "$said")" in
    "0 0") echo "figure: $(grep -c '^ok ' "$said") cases, no errors" ;;
    *" 0") return 1 ;;
    *) echo "compute-sanitizer does not support this machine" && exit 77 ;;
    esac
}

# captured PROGRAM: steps as CUDA graphs, on one rank.
captured() {
    has "$1"
    WEFT_DEVICE=$device "$(tool mpirun)" -np 1 "$build/tests/$1" | tee "$work/$1.out"
    [ "${PIPESTATUS[0]}" = 0 ] && echo "figure: $(grep -c '^ok ' "$work/$1.out") cases"
}

# --- the plan --------------------------------------------------------------------------------------------------------

proof() {
    local ranks program
    export WEFT_TF32=0
    # What all others stand on, first and alone.
    step contract_device 60 tests '^contract_device$' || [ -n "$dry" ] || [[ ! contract_device =~ $only ]] || return 0
    step contract_memory 60 tests '^contract_memory$'
    beside convolution_tf32 120 alone contract_convolution WEFT_TF32=1
    beside contract_kernels 170 cases contract_kernels
    if on_gpu || [ -n "$dry" ]; then
        beside captured 60 captured captured
    fi
    beside equiv_spatial_4 170 equal equiv_spatial flat 4
    # Ranks that die while others read and write memory that they mapped from them.
    beside deaths_exchange 120 deaths flat exchange
    if on_gpu || [ -n "$dry" ]; then
        beside equiv_spatial_nccl 120 equal equiv_spatial pure_nccl 1
        beside captured_nccl 90 equal captured pure_nccl 1 ranks sums
        beside captured_nccl_2 90 equal captured pure_nccl 2 ranks rank_fails closed_first sums
        beside captured_errors 60 captured captured_errors
        beside captured_pipeline_2 120 equal captured_pipeline pure_nccl 2 schedules recomputes with_data other_shapes
    fi
    beside convolution_f32 120 alone contract_convolution
    beside mixed 90 tests '^(mixed|optim_scale)$'
    beside values 90 tests '^(known_answers|layers_values|functions_values|loss_values|gradcheck_.*|optim_step|golden)$'
    beside contract_norm 120 cases contract_norm
    beside contract_elementwise 120 tests '^contract_elementwise$'
    beside contract_fold 120 tests '^contract_fold$'
    for program in $equal_programs; do
        for ranks in 4 2 1; do
            [ "${program}_$ranks" = equiv_spatial_4 ] || beside "${program}_$ranks" 170 equal "$program" flat "$ranks"
        done
    done
    beside messages 90 tests '^(exchange|comm_reducers|optim_multi_node)$'
    beside convolution_fixed 120 alone contract_convolution WEFT_DETERMINISTIC=1
    beside convolution_tuned 120 alone contract_convolution WEFT_TF32=1 WEFT_AUTOTUNE=1
    if on_gpu || [ -n "$dry" ]; then
        beside memcheck_kernels 120 sanitize memcheck contract_kernels conv_fixed conv_nan pool_fixed resample matmul_reused matmul_stack
        beside memcheck_memory 90 sanitize memcheck contract_memory copy_whole fill partition
        beside memcheck_norm 90 sanitize memcheck contract_norm norm_finish softmax nll
        beside memcheck_sums 90 sanitize memcheck contract_elementwise sums optimizers clip_scale
        beside racecheck 90 sanitize racecheck contract_elementwise sums
        beside initcheck 90 sanitize initcheck contract_elementwise sums
        beside synccheck 60 sanitize synccheck contract_elementwise sums
        for program in $equal_programs; do
            beside "${program}_nccl_2" 120 equal "$program" pure_nccl 2
        done
        beside collectives_nccl_2 90 equal contract_comm pure_nccl 2 broadcasts broadcasts_long reduces \
            reduces_long gathers scatters exchanges_all reduce_scatters sends_round splits_by_color
        for program in equiv_spatial equiv_data; do
            beside "${program}_host_2" 120 equal "$program" non_cuda_aware 2
        done
        for program in dcgan small vgg unet2 unet3; do # for the other half
            beside "warm_$program" 150 warm "$program" 70
        done
    fi
    wait
    unset WEFT_TF32
}

figures() {
    local model
    for model in dcgan small vgg unet2 unet3 vgg_small; do
        step "weft_$model" 60 weft "$model"
        step "torch_$model" 75 torch "$model"
    done
    step kernels_f32 40 kernels f32
    step kernels_bf16 30 kernels bf16
    if on_gpu || [ -n "$dry" ]; then
        step convolutions_bf16 45 convolutions bf16 25
        step convolutions_f32 45 convolutions f32 25
    fi
}

all() {
    echo "step,result,seconds,figure" >"$csv"
    if on_gpu; then
        step gpu 20 gpu
    fi
    [ -z "$debs" ] || step packages 60 unpack "$debs"
    step configure 60 configure || return
    # What does not compile is skipped by its steps.
    if step build 240 compile || [ "$half" = figures ] || has contract_device >/dev/null; then
        "$half"
        [ -n "$dry" ] || [ "$half" = proof ] || compare | while read -r name weft torch variant ratio wanted; do
            note "ratio_$name" ok 0 "weft $weft torch $torch ($variant): $ratio of $wanted"
        done
    fi
}

summary() {
    local name
    for name in "$work"/*.log; do
        printf '=== %s\n' "$(basename "$name" .log)"
        cat "$name"
    done >"$out/log-$half.txt"
    awk -F, -v seconds="$(($(date +%s) - begin))" -v where="$device" -v csv="$csv" '
        NR > 1 { n[$2]++ }
        END { printf "%d passed, %d failed, %d skipped in %d s on %s; figures in %s\n",
                     n["ok"], n["FAIL"], n["skip"], seconds, where, csv; exit n["FAIL"] > 0 }' "$csv"
}

# --- the script itself -----------------------------------------------------------------------------------------------

self_good() { echo "figure: 1, or 2" && echo "figure: 3" && echo "no figure"; }
self_bad() { echo "it went wrong" && return 3; }
self_hangs() { sleep 100; }
self_absent() { echo "not here" && exit 77; }

# Each kind of step, alone and beside others, and what is written about it.
try_self() {
    local want got
    out=$(mktemp -d) work=$out/steps csv=$out/summary.csv only=. device=cpu slow=1
    trap 'rm -rf "$out"' EXIT
    mkdir -p "$work"
    begin=$(date +%s) limit=60
    echo "step,result,seconds,figure" >"$csv"
    until=$((begin + limit))
    export out work device
    {
        step good 10 self_good || echo "a good step is called bad" >&2
        beside bad 10 self_bad
        beside hangs 1 self_hangs
        beside absent 10 self_absent
        wait
        until=$begin
        step late 10 self_good
    } >"$out/said"
    want="absent,skip,not here bad,FAIL,exit code 3 good,ok,1; or 2; 3 hangs,FAIL,ended after 1 s late,skip,no time left"
    got=$(sed 1d "$csv" | sort | cut -d, -f1,2,4 | paste -sd ' ')
    [ "$got" = "$want" ] || { echo "steps are noted as: $got" && return 1; }
    mkdir -p "$out/debs/nvidia/nccl/lib" "$out/debs/nvidia/nccl/include"
    touch "$out/debs/nvidia/nccl/lib/libnccl.so.2" "$out/debs/nvidia/nccl/include/nccl.h"
    (cd "$out/debs" && python3 -m zipfile -c nvidia_nccl_cu13-2.30.0.whl nvidia) && rm -r "$out/debs/nvidia"
    got=$(cd "$out" && build=built && unpack_wheels debs && hint nccl nccl.h HEADER LIBRARY)
    [[ $got == "-DLIBRARY="*"/built/wheels/nvidia/nccl/lib/libnccl.so.2 -DHEADER="*"/nccl/include" ]] ||
        { echo "an NCCL that is carried is hinted at as: $got" && return 1; }
    python3 tests/gpu/cut_wheel.py --self || return 1
    grep -q 'it went wrong' "$out/said" || { echo "a failure is not shown" && return 1; }
    printf 'rate m f32 weft 30\nrate n f32 weft 1\n' >"$work/a.log"
    printf 'rate m f32 torch 20 eager\nrate m bf16 torch 9 eager\n' >"$work/b.log"
    [ "$(compare)" = "m_f32 30.0 20.0 eager 1.50 1.1" ] || { echo "rates compare as: $(compare)" && return 1; }
    got=$(summary) && echo "failures are not counted" && return 1
    [[ $got == "1 passed, 2 failed, 2 skipped in "* ]] || { echo "the last line is: $got" && return 1; }
    echo "steps, limits, figures and counts are right"
}

case ${1-} in
call)
    shift
    # PyTorch finds its own.
    [[ $1 =~ torch|warm ]] || LD_LIBRARY_PATH=$(libraries)
    export LD_LIBRARY_PATH
    "$@"
    exit
    ;;
esac
{ # read as a whole, so that a change of this file while it runs is of no matter
    begin=$(date +%s)
    limit=$((limit * slow))
    until=$((begin + limit))
    case $mode in
    programs) tr -s " \n" "\n" <<<"$proof_programs $figure_programs" ;;
    carry) gather "$carry" ;;
    self) dry="" && try_self ;;
    run)
        if [ -n "$dry" ]; then
            csv=/dev/null
        else
            mkdir -p "$out" "$work" && rm -f "$work"/*.log
        fi
        all
        [ -n "$dry" ] || summary
        exit
        ;;
    esac
    exit
}
