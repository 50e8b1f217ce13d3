#!/bin/sh
# What `make check` does beyond `make test`: tools/check.sh BUILD. One line for each check, the whole output of those that
# fail, and how many there were.
set -u
cd "$(dirname "$0")/.."
build=$1
jobs=$(nproc)
passed=0 failed=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT

check() {
    name=$1
    shift
    start=$(date +%s)
    if "$@" >"$log" 2>&1; then
        passed=$((passed + 1))
        echo "ok    $name ($(($(date +%s) - start)) s)"
    else
        failed=$((failed + 1))
        cat "$log"
        echo "FAIL  $name ($(($(date +%s) - start)) s)"
    fi
}

# Everything again with the other compiler, and with the shared form of the library, so that tests, examples and tools link
# what it exports, and with the Fortran module where there is a compiler for it; warnings are errors in every build. They
# come before code is optimised, which would take most of the time; make proof builds with it. Kernels for GPUs are the same
# nvcc's in both builds, so here they are PTX alone.
clang_build() {
    fortran=$(command -v gfortran >/dev/null && echo ON || echo OFF)
    cmake --preset clang -B "$build-clang" -DWEFT_FORTRAN="$fortran" -DWEFT_CUDA_ARCHS=90-virtual \
        -DCMAKE_C_FLAGS_RELEASE="-O0 -DNDEBUG" -DCMAKE_CXX_FLAGS_RELEASE="-O0 -DNDEBUG" \
        -DCMAKE_CUDA_FLAGS_RELEASE="-O0 -Xcicc -O0 -DNDEBUG" &&
        cmake --build "$build-clang" --parallel "$jobs"
}

shared_form() {
    ctest --test-dir "$build-clang" --output-on-failure -R '^(consumer|fortran|static_exports)$'
}

format() {
    find . -path './build*' -prune -o -name '*.[ch]' -print | xargs clang-format --dry-run -Werror
}

# What `make test` leaves out because it takes minutes.
long() {
    tools/test.sh "$build" -L long
}

# What goes through oneDNN, with version 3; Debian 12 has version 2.
onednn3() {
    tests="contract_kernels cpu_bf16 cpu_convolution known_answers gradcheck_layers equiv_spatial"
    tools/onednn3.sh "$build-onednn3/onednn" || return 1
    from=$(cd "$build-onednn3/onednn" && pwd)
    cmake --preset release -B "$build-onednn3" -DWEFT_CUDA=OFF -DDNNL_INCLUDE="$from/include" \
        -DDNNL_LIBRARY="$from/lib/libdnnl.so" &&
        cmake --build "$build-onednn3" --parallel "$jobs" --target $tests &&
        find "$build-onednn3" -name known_answers -type f -exec ldd {} + | grep "libdnnl.so.3 => $from" &&
        ctest --test-dir "$build-onednn3" --output-on-failure --parallel $((4 * jobs)) -R "^($(echo $tests | tr ' ' '|'))\$"
}

# The suite once more: tests of one process, and the others on two ranks. Left out are what takes long for code that others
# run too (examples, virtual nodes, all sizes of schedules, the planner's memory, the same on a guarded device or by other
# settings), which make proof has, and tests in which HDF5 fails on purpose, which leave what it holds and so count as lost
# memory.
sanitizers() {
    cmake --preset asan -B "$build-asan" &&
        cmake --build "$build-asan" --parallel "$jobs" &&
        tools/test.sh "$build-asan" -LE 'static|large|long|proof' -E '_[13-9]$|^example_(vgg|autoencoder|classify|closure|generate|names|plan|translate|winds)|^ladder$|^schedules$|^schedules_(faults|folded)|^planner_memory|^hdf5_faults|^full_disk|^full_shm|^cluster_(comm_random|contract|exchange|optim|reducers|sum_bits)|^contract_comm_chunks$|^cpu_bf16_masked$|^emulated_convolution_(autotune|tf32)|^recompute$|^doctor_schedule$|^contract_elementwise$|^guard_|^nccl_order_(captured|equiv)|^from_pytorch'
}

[ ! -e .git ] || check "source archive" tools/dist.sh "$build" --try
check "names of the shared library, as Debian's package lists them" tools/symbols.sh --check
check "binary interface, as the last release had it" tools/abi.sh --check
check "clang-format" format
check "long tests" long
check "oneDNN 3" onednn3
check "clang, warnings as errors" clang_build
check "shared library: exported names, and a program that uses it" shared_form
check "clang-tidy on the library" tools/tidy.sh "$build-clang" 40000
check "address and undefined-behaviour sanitizers" sanitizers
echo "checks: $passed passed, $failed failed"
[ "$failed" = 0 ]
