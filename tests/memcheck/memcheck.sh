#!/bin/sh
# valgrind's memcheck over one program of each kind and the demo, shortened: memory that is read before it is written,
# accesses beyond it, blocks that are lost. It sees what the sanitizers do not: reads of memory never written, and oneDNN's own
# accesses. valgrind knows no AVX-512, so kernels are those of AVX2. memcheck.sh BUILD MPIEXEC [PROGRAM]; the last line counts.
set -u
build=$1 mpiexec=$2 only=${3-}
here=$(cd "$(dirname "$0")" && pwd)
command -v valgrind >/dev/null || { echo "SKIP: no valgrind: package valgrind" && exit 77; }
"$mpiexec" --version 2>&1 | grep -qi "open \{0,1\}\(mpi\|rte\)\|prrte" || { echo "SKIP: memcheck.supp knows OpenMPI alone" && exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM HUP
. "$here/../examples/small_images.sh"
small_images "$work/images" 64 32
export WEFT_DATA="$work/images"
export WEFT_LEVEL=x86-64-v3 ONEDNN_MAX_CPU_ISA=AVX2
programs=0 bad=0

# check RANKS PROGRAM ARGUMENT...
check() {
    ranks=$1 program=$2
    shift 2
    [ -z "$only" ] || [ "$only" = "${program##*/}" ] || return
    launch=
    [ "$ranks" = 1 ] || launch="$mpiexec -np $ranks"
    begin=$(date +%s)
    TEST_RANKS=$ranks timeout 1200 $launch valgrind -q --error-exitcode=9 --leak-check=full --show-leak-kinds=definite --errors-for-leak-kinds=definite \
        --smc-check=all-non-file --num-callers=30 --suppressions="$here/memcheck.supp" "$build/$program" "$@" \
        >"$work/out" 2>&1 </dev/null
    code=$?
    programs=$((programs + 1))
    if [ $code = 0 ] && ! grep "^==[0-9]*== " "$work/out" | grep -qv "ioctl\|spurious value\|MISSING_SYSCALL"; then
        echo "ok    $program $* on $ranks ($(($(date +%s) - begin)) s)"
    else
        bad=$((bad + 1))
        cat "$work/out"
        echo "FAIL  $program $* on $ranks: exit code $code ($(($(date +%s) - begin)) s)"
    fi
}

check 1 tests/core_basics
check 1 tests/core_tape
check 1 tests/wrapped
check 1 tests/captured_errors
check 1 tests/known_answers
check 1 tests/optim_algorithms
check 1 tests/attention
check 1 tests/recurrent
check 1 tests/datasets_readers
check 2 tests/mesh
check 2 tests/exchange
export WEFT_CHUNK_BYTES=10007 # the test sends twenty chunks, whose default length is 1 GiB
check 2 tests/comm_chunks
unset WEFT_CHUNK_BYTES
check 2 tests/equiv_small
check 2 tests/checkpoint_leave
check 2 tests/pipeline_layouts
check 2 tests/evaluator
check 2 tests/trainer
check 2 examples/mnist --epochs 1 --batch 16
check 2 examples/dcgan_cifar --channels 8 --batch 4 --iterations 2 --out "$work/demo"
echo "memcheck: $programs programs, $bad with errors"
[ $bad = 0 ] && [ $programs != 0 ]
