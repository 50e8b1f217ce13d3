#!/bin/sh
# Recurrent layers beside PyTorch's: tests/outside/torch_recurrent.sh TORCH_RECURRENT [CASES [SEED]]. The Python is
# $WEFT_TORCH_PYTHON, else python3; it needs PyTorch (pip install torch numpy).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
python=${WEFT_TORCH_PYTHON:-python3}
if ! "$python" -c 'import torch' >/dev/null 2>&1; then
    echo "SKIP: $python has no PyTorch (pip install torch numpy)"
    exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" "$here/torch_recurrent.py" "$work/cases.txt" "${2:-400}" "${3:-1}"
"$1" "$work/cases.txt"
