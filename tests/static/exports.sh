#!/bin/sh
# Compares the names that libweft.so exports with the declarations that the compiler itself finds in the installed headers:
#     tests/static/exports.sh LIBRARY CC HEADER...     from the root of the tree; CC is gcc
# It fails on an exported name that no installed header declares, on a declaration that is not exported, and on a library
# without its soname.
set -eu
cd "$(dirname "$0")/../.."
library=$1 cc=$2
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

for header; do
    [ "$header" != weft.h ] || continue # only includes the others
    "$cc" -std=c11 -D_GNU_SOURCE -DWF_LIBRARY -I. -fsyntax-only -aux-info "$work/prototypes" -x c "$header"
    cat "$work/prototypes" >>"$work/all"
done
# A prototype: "/* core/shape.h:57:NC */ extern int64_t wf_shape_count (wf_shape);"
grep -E '^/\* (\./)?(core|comm|layers|optim|datasets|fit)/' "$work/all" | grep ' \*/ extern ' |
    sed 's|.*\*/ extern ||' | grep -oE '^[^(]*' | grep -oE 'wf_[a-z0-9_]+ $' | tr -d ' ' >"$work/functions"
# Data: "extern const wf_native_transport wf_transport_native;"
grep -hE '^extern [^()]*;' "$@" | grep -oE 'wf_[a-z0-9_]+;' | tr -d ';' | sort -u - "$work/functions" >"$work/declared"
nm -D --defined-only "$library" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' | sort -u >"$work/exported"
[ -s "$work/declared" ] || { echo "no declarations were found"; exit 1; }

complain() {
    [ -z "$2" ] || { echo "$1:" $2; failed=1; }
}
complain "exported, and declared by no installed header" "$(comm -13 "$work/declared" "$work/exported")"
complain "declared by an installed header, and not exported" "$(comm -23 "$work/declared" "$work/exported")"
readelf -d "$library" | grep -q 'SONAME.*\[libweft[a-z_]*\.so\.[0-9]' || complain "the library has no versioned soname" "$library"
exit $failed
