#!/bin/sh
# Boundaries beside PyTorch's padding_mode and F.pad, on numbers that it makes now:
# tests/layers/boundary_torch.sh MPIEXEC BOUNDARY_TORCH [SEED CASES]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
mpiexec=$1 program=$2
shift 2
needs="torch, numpy"
. "$here/../file/python.sh"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$found" "$here/boundary_torch.py" "$folder/cases" "$@"
"$mpiexec" -np 1 "$program" "$folder/cases"
