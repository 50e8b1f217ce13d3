#!/bin/sh
# Reads README.md, CONTRIBUTING.md, CHANGELOG.md and docs/*.md: every relative link leads to a file, every path of a
# source file in backticks exists, every script that is called by its path may be, and every target of make exists. docs/running.md names every environment variable that core/config.c
# reads, docs/policies.md only names and tests that exist. CITATION.cff has the version of core/version.h.
set -eu
cd "$(dirname "$0")/../.."
failed=0
complain() {
    echo "$1"
    failed=1
}

for page in README.md CONTRIBUTING.md CHANGELOG.md docs/*.md; do
    folder=$(dirname "$page")
    for link in $(grep -oE '\]\([^)#]+' "$page" | sed 's/^](//' | grep -v '^https\?:'); do
        [ -e "$folder/$link" ] || complain "$page: a link to $link, which is not there"
    done
    for path in $(grep -oE '`(core|comm|layers|optim|datasets|fit|examples|tests|tools|docs|cmake|packaging)/[A-Za-z0-9_./-]+\.[a-z]+`' "$page" | tr -d '`' | sort -u); do
        [ -e "$path" ] || complain "$page: names $path, which is not there"
    done
    for script in $(grep -oE '(^    |`)([A-Z_]+=[^ ]+ )*(tests|tools)/[A-Za-z0-9_./-]+\.(sh|py)( |$)' "$page" | grep -oE '(tests|tools)/[^ ]+' | sort -u); do
        [ -x "$script" ] || complain "$page: calls $script, which is not executable"
    done
    for target in $(grep -oE '`make [a-z0-9-]+`' "$page" | sed 's/`make \(.*\)`/\1/' | sort -u); do
        grep -qE "^([a-z0-9-]+ )*$target( [a-z0-9-]+)*:" Makefile || complain "$page: names make $target, which the Makefile lacks"
    done
done
# What meets a policy is there: a name of a header, a test.
for name in $(grep -oE '`wf_[a-z0-9_]+' docs/policies.md | tr -d '`' | sort -u); do
    grep -rqw --include='*.h' "$name" core comm layers optim datasets fit || complain "docs/policies.md: no header has $name"
done
for test in $(grep -oE 'test `[a-z_]+`' docs/policies.md | sed 's/test `\(static_\)\{0,1\}\(.*\)`/\2/' | sort -u); do
    grep -rqE --include='*.cmake' "(weft_static\(|NAME )$test " tests || complain "docs/policies.md: there is no test $test"
done
for variable in $(grep -oE '"(WEFT|PMIX|OMP)_[A-Z_]+"' core/config.c | tr -d '"' | sort -u); do
    grep -q "$variable" docs/running.md || complain "docs/running.md: says nothing of $variable"
done
version=$(sed -n 's/^#define WF_VERSION_[A-Z]* //p' core/version.h | paste -sd .)
grep -qx "version: $version" docs/CITATION.cff || complain "CITATION.cff: its version is not $version"
exit $failed
