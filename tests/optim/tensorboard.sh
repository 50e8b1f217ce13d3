#!/bin/sh
# Event files for TensorBoard, written on ranks and read by Python: tensorboard.sh MPIEXEC RANKS PROGRAM. Python needs no
# package, and uses `tensorboard` where it has that.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
needs=zlib
. "$here/../file/python.sh"
TENSORBOARD_RUNS=$(mktemp -d)
export TENSORBOARD_RUNS
trap 'rm -rf "$TENSORBOARD_RUNS"' EXIT
"$1" -np "$2" "$3"
"$found" "$here/tensorboard_read.py" "$TENSORBOARD_RUNS" "$2"
