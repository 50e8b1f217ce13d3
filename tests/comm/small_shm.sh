#!/bin/sh
# Where the node has no memory to share, one line says so and messages take its place:
# tests/comm/small_shm.sh MPIEXEC LINE PROGRAM [ARGUMENT...]
set -eu
if [ "$1" != inside ]; then
    unshare --mount true 2>/dev/null || {
        echo "SKIP: no file system of its own can be mounted here"
        exit 77
    }
    exec unshare --mount "$0" inside "$@"
fi
mpiexec=$2 line=$3
shift 3
mount -t tmpfs -o size=256k tmpfs /dev/shm || {
    echo "SKIP: no small /dev/shm can be mounted here"
    exit 77
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OMPI_MCA_btl_vader_backing_directory="$work" UCX_POSIX_DIR="$work" # of OpenMPI, and of MPICH over UCX
"$mpiexec" -np 3 "$@" 2>"$work/said" || {
    cat "$work/said"
    exit 1
}
grep -q "$line.*/dev/shm has 25[26] KiB free" "$work/said" || {
    echo "it should say: $line; it says:"
    cat "$work/said"
    exit 1
}
