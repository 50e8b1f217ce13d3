# For a test to source: $found is a Python that has the modules of $needs ("h5py, torch"), or the test is skipped.
for python in ${WEFT_TORCH_PYTHON-} /usr/bin/python3 python3; do
    if "$python" -c "import $needs" 2>/dev/null; then
        found=$python
        break
    fi
done
if [ -z "${found-}" ]; then
    echo "skipped: no Python has $needs. A virtual environment with 'pip install torch h5py' is named by WEFT_TORCH_PYTHON"
    exit 77
fi
