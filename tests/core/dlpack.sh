#!/bin/sh
# Runs tests/core/dlpack.py with a Python that has NumPy, and PyTorch if there is one: tests/core/dlpack.sh LIBRARY.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
needs="numpy; numpy.from_dlpack"
. "$here/../file/python.sh"
exec "$found" "$here/dlpack.py" "$1"
