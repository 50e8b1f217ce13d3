#!/bin/sh
# Runs tests with ctest: tools/test.sh BUILD [CTEST OPTION...]. A processor of ctest is a quarter of a core, since many tests wait
# more than they work. The last line names the tests that were skipped and why, and says what is left to other commands.
# BUILD/test-times.csv keeps the latest time and result of every test, slowest first.
set -u
tools=$(cd "$(dirname "$0")" && pwd)
build=$(cd "$1" && pwd) || exit 1
shift
results=$build/Testing/results.xml
mkdir -p "$build/Testing" && rm -f "$results"
# OpenMPI 4 makes a folder for all jobs of a user, and removes it when it is empty: a job that starts meanwhile fails.
session=${TMPDIR:-/tmp}/ompi.$(uname -n | cut -d. -f1).$(id -u)/weft-$$
mkdir -p -m 700 "$(dirname "$session")" && mkdir -p "$session"
trap 'rm -rf "$session"; rmdir "$(dirname "$session")" 2>/dev/null' EXIT
trap 'exit 130' INT TERM HUP
ctest --test-dir "$build" --output-on-failure --parallel $((4 * $(nproc))) --output-junit "$results" "$@"
code=$?
[ -s "$results" ] || { echo "ctest wrote no $results" && exit 1; }

times=$build/test-times.csv
[ -e "$times" ] || : >"$times"
skipped=$(find "$build" -name CTestTestfile.cmake -exec cat {} + | awk -v csv="$times.new" -f "$tools/test.awk" - "$times" "$results") || exit 1
{ echo "test,seconds,processors,label,result" && sort -t, -k2,2nr -k1,1 "$times.new"; } >"$times"
rm -f "$times.new"

count() {
    ctest --test-dir "$build" -N -L "$1" | awk '/^Total Tests:/ { print $3 }'
}
echo "Skipped: ${skipped:-none}. Left to make check: $(count long) tests (label long); to make proof: $(count proof)."
exit $code
