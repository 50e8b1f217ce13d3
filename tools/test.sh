#!/bin/sh
# Runs tests with ctest; the last line says what was skipped and why, and what is left to other commands:
# tools/test.sh BUILD [CTEST OPTION...]. A processor of ctest is half a core, since many tests wait more than they work.
set -u
build=$1
shift
ctest --test-dir "$build" --output-on-failure --parallel $((2 * $(nproc))) "$@"
code=$?

# "3 (no virtual nodes here: that takes the superuser)", one for each reason.
skipped=$(awk '
    /^SKIP: / { sub(/^SKIP: /, ""); times[$0]++ }
    END { for (why in times) printf "%s%d (%s)", n++ ? ", " : "", times[why], why }' "$build/Testing/Temporary/LastTest.log")
count() {
    ctest --test-dir "$build" -N -L "$1" | awk '/^Total Tests:/ { print $3 }'
}
echo "Skipped: ${skipped:-none}. Left to make check: $(count long) tests (label long); to make proof: $(count proof)."
exit $code
