#!/bin/sh
# Runs the search of docs/running.md in a folder of its own: tests/docs/study_page.sh MPIEXEC PROGRAM
set -eu
for python in ${WEFT_PYTHON-} /usr/bin/python3 python3; do
    ! "$python" -c 'import optuna' 2>/dev/null || WEFT_PYTHON=$python found=1
done
[ "${found-}" ] || {
    echo "SKIP: no Python has Optuna (package python3-optuna)"
    exit 77
}
export WEFT_PYTHON
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
"$1" -np 2 "$2"
