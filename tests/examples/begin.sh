# The head of the tests of examples: the programs, the launcher and the number of ranks in variables, and a folder
# that is removed in the end; fail TEXT ends the test.
set -eu
examples=$1 mpiexec=$2 ranks=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
    echo "$1"
    exit 1
}
