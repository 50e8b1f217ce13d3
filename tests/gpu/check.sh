#!/usr/bin/env bash
# Checks that tests/gpu/run.sh, which few machines can run, still fits this tree: tests/gpu/check.sh BUILD. Tests its
# own functions, and that the programs, tests and cases that its plan names exist.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit
build=$1
failed=0

complain() {
    echo "tests/gpu/run.sh: $*"
    failed=1
}

if command -v shellcheck >/dev/null; then
    shellcheck tests/gpu/*.sh || failed=1
fi
tests/gpu/run.sh --self || failed=1

targets=$(cmake --build "$build" --target help 2>/dev/null | sed 's/^\.\.\. //; s/[: ].*//')
for program in $(tests/gpu/run.sh --programs); do
    [ "$program" = bench_cuda_conv ] || grep -qx "$program" <<<"$targets" || complain "there is no program $program"
done

# What the build needs of Debian travels to a machine that has nothing.
while read -r package; do
    sed 's/#.*//' tests/gpu/packages.txt | grep -qw -e "$package" || complain "tests/gpu/packages.txt lacks $package"
done < <(awk 'NF == 1 && /^[a-z0-9]*lib[a-z0-9.-]*-dev$/' packages.txt)

plan=$(tests/gpu/run.sh --proof --dry && tests/gpu/run.sh --figures --dry)
[ "$(wc -l <<<"$plan")" -gt 30 ] || complain "the plan is short: $plan"
while read -r pattern; do
    ctest --test-dir "$build" -N -LE 'large|long' -R "$pattern" | grep -q 'Total Tests: [1-9]' || complain "no test is $pattern"
done < <(sed -n 's/^.* s): tests //p' <<<"$plan")
while read -r program; do
    [ "$(out=. half=proof tests/gpu/run.sh call names "$program" | wc -l)" -gt 3 ] || complain "$program has no cases"
done < <(sed -n 's/^.* s): cases //p' <<<"$plan")
while read -r program cases; do
    for name in $cases; do
        grep -q "{\"[a-z_]*${name}[a-z_]*\"," tests/*/"$program.c" || complain "$program has no case $name"
    done
done < <(sed -n 's/^.* s): sanitize [a-z]* //p' <<<"$plan")
exit $failed
