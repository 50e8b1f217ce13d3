#!/bin/sh
# Reads README.md, CONTRIBUTING.md, CHANGELOG.md and docs/*.md: every relative link leads to a file, every path of a
# source file in backticks exists, and docs/running.md names every environment variable that core/config.c reads. CITATION.cff has
# the version of core/version.h.
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
    for path in $(grep -oE '`(core|comm|layers|optim|datasets|examples|tests|tools|docs)/[A-Za-z0-9_./-]+\.[a-z]+`' "$page" | tr -d '`' | sort -u); do
        [ -e "$path" ] || complain "$page: names $path, which is not there"
    done
done
for variable in $(grep -oE '"(WEFT|PMIX|OMP)_[A-Z_]+"' core/config.c | tr -d '"' | sort -u); do
    grep -q "$variable" docs/running.md || complain "docs/running.md: says nothing of $variable"
done
version=$(sed -n 's/^#define WF_VERSION_[A-Z]* //p' core/version.h | paste -sd .)
grep -qx "version: $version" docs/CITATION.cff || complain "CITATION.cff: its version is not $version"
exit $failed
