#!/bin/sh
# Writes debian/libweft0.1.symbols: the names that the shared library exports without CUDA, each with the version that first
# had it; names that were listed keep theirs. tools/symbols.sh [--check]
# --check: writes nothing; a name that the list or the headers lack is printed, and an error.
set -eu
cd "$(dirname "$0")/.."
list=debian/libweft0.1.symbols
version=$(sed -n 's/^#define WF_VERSION_[A-Z]* //p' core/version.h | paste -sd .)
interface=${version%.*}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
{
    echo "WEFT_$interface"
    find weft.h core comm layers optim datasets fit -name '*.h' ! -name '*_impl.h' ! -path 'core/cuda/*' -exec \
        awk -v version="WEFT_$interface" -f cmake/statements.awk -f cmake/exports.awk {} + | sed -n 's/^    \(wf_.*\);$/\1/p'
} | LC_ALL=C sort >"$work/names"
touch "$work/old"
[ ! -e "$list" ] || sed -n 's/^ \([A-Za-z0-9_.]*\)@[^ ]* \(.*\)/\1 \2/p' "$list" >"$work/old"
if [ "${1-}" = --check ]; then
    cut -d ' ' -f 1 "$work/old" | LC_ALL=C sort | diff - "$work/names" && exit
    echo "above: names that only $list has (<), which a program may use, and that it lacks (>); tools/symbols.sh writes it"
    exit 1
fi
{
    echo "libweft.so.$interface libweft$interface #MINVER#"
    echo "* Build-Depends-Package: libweft-dev"
    awk -v tag="@WEFT_$interface" -v now="$version" '
        FILENAME ~ /\/old$/ { since[$1] = $2; next }
        { print " " $1 tag, $1 in since ? since[$1] : now }' "$work/old" "$work/names"
} >"$work/new"
cat "$work/new" >"$list"
