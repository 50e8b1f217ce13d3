#!/bin/sh
# Saves on a file system in memory that gets full, or is mounted to be read only:
# tests/file/checkpoint_full.sh MPIEXEC RANKS CHECKPOINT_FAULTS CHECKPOINT_HDF5
set -eu
size=12m
. "$(dirname "$0")/own_mounts.sh"
for test in "$3" "$4"; do
    TEST_RANKS=$2 "$1" -np "$2" "$test" "$folder"
done
