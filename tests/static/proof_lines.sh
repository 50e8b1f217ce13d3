#!/bin/sh
# Every test with the label proof has a line in tests/PROOF.md, which keeps what it counted last: proof_lines.sh TEST...
cd "$(dirname "$0")/.." || exit 1
failed=0
for test in "$@"; do
    grep -q "^|.*\`$test\`.*|.*|.*|.*|$" PROOF.md || {
        echo "tests/PROOF.md has no line for $test"
        failed=1
    }
done
[ $# -gt 0 ] || exit 1
exit $failed
