#!/bin/sh
# Many starts of a program that shares memory, where /dev/shm has little: none of them dies of it.
#     tests/comm/full_shm.sh MPIEXEC MIB STARTS PROGRAM [ARGUMENT...]
set -eu
if [ "$1" != inside ]; then
    unshare --mount true 2>/dev/null || {
        echo "SKIP: no file system of its own can be mounted here"
        exit 77
    }
    exec unshare --mount "$0" inside "$@"
fi
mpiexec=$2 mib=$3 starts=$4
shift 4
mount -t tmpfs -o "size=${mib}m" tmpfs /dev/shm || {
    echo "SKIP: no small /dev/shm can be mounted here"
    exit 77
}
said=$(mktemp)
trap 'rm -f "$said"' EXIT
died=0
for start in $(seq "$starts"); do
    "$mpiexec" -np 8 "$@" >"$said" 2>&1 || {
        died=$((died + 1))
        [ $died -gt 1 ] || tail -20 "$said"
    }
done
[ $died -eq 0 ] || {
    echo "$died of $starts starts died in a /dev/shm of $mib MiB"
    exit 1
}
left=$(find /dev/shm -name 'weft-window-*' | wc -l)
[ "$left" -eq 0 ] || {
    echo "$left windows are left in /dev/shm"
    exit 1
}
