#!/bin/sh
# PyTorch's own samples through Weft: tests/outside/torch_samples.sh TORCH_SAMPLES. The Python is $WEFT_TORCH_PYTHON, else python3; it needs
# PyTorch, NumPy and expecttest (pip install torch numpy expecttest).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
python=${WEFT_TORCH_PYTHON:-python3}
if ! "$python" -c 'import torch.testing._internal.common_methods_invocations' >/dev/null 2>&1; then
    echo "SKIP: $python has no PyTorch with its tests' samples (pip install torch numpy expecttest)"
    exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" "$here/torch_samples.py" "$work/samples.txt"
"$1" "$work/samples.txt"
