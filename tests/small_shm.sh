#!/bin/sh
# Where the node has no memory to share, one line says so and gradients go by messages: tests/small_shm.sh MPIEXEC PROGRAM
set -eu
if [ "${3:-}" != inside ]; then
    unshare --mount true 2>/dev/null || {
        echo "SKIP: no file system of its own can be mounted here"
        exit 77
    }
    exec unshare --mount "$0" "$1" "$2" inside
fi
mount -t tmpfs -o size=256k tmpfs /dev/shm || {
    echo "SKIP: no small /dev/shm can be mounted here"
    exit 77
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OMPI_MCA_btl_vader_backing_directory="$work"
"$1" -np 3 "$2" sums_in_parts 2>"$work/said" || {
    cat "$work/said"
    exit 1
}
grep -q 'no memory is shared.*/dev/shm has 256 KiB free' "$work/said" || {
    echo "it should say that no memory is shared; it says:"
    cat "$work/said"
    exit 1
}
