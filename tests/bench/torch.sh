# The Python that has PyTorch, for benches: $WEFT_TORCH_PYTHON, else python3, else one that is installed into $build/torch. Sourced
# by bench_comm.sh and bench_all.sh.
has_torch() {
    "$1" -c 'import torch' >/dev/null 2>&1
}

find_torch() {
    if [ -n "${WEFT_TORCH_PYTHON:-}" ] && ! has_torch "$WEFT_TORCH_PYTHON"; then
        echo "bench: WEFT_TORCH_PYTHON=$WEFT_TORCH_PYTHON has no PyTorch" >&2
        return
    fi
    for python in "${WEFT_TORCH_PYTHON:-}" python3 "$build/torch/bin/python"; do
        if [ -n "$python" ] && has_torch "$python"; then
            echo "$python"
            return
        fi
    done
    echo "bench: installing PyTorch into $build/torch" >&2
    python3 -m venv "$build/torch" >&2 && "$build/torch/bin/pip" --quiet install torch torchvision numpy >&2 || return 0
    if has_torch "$build/torch/bin/python"; then
        echo "$build/torch/bin/python"
    fi
}
