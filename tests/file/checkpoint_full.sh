#!/bin/sh
# Saves on a file system in memory that gets full: tests/file/checkpoint_full.sh MPIEXEC RANKS CHECKPOINT_FAULTS
set -eu
if [ "${4-}" != mounted ]; then
    unshare --user --map-root-user --mount true 2>/dev/null || unshare --mount true 2>/dev/null || {
        echo "skipped: no mount of one's own here (unshare)"
        exit 77
    }
    [ "$(id -u)" = 0 ] && exec unshare --mount "$0" "$@" mounted
    exec unshare --user --map-root-user --mount "$0" "$@" mounted
fi
folder=$(mktemp -d)
trap 'umount "$folder" 2>/dev/null || true; rmdir "$folder"' EXIT
mount -t tmpfs -o size=9m weft "$folder" || {
    echo "skipped: no file system in memory can be mounted"
    exit 77
}
TEST_RANKS=$2 "$1" -np "$2" "$3" "$folder"
