#!/bin/sh
# Compares the binary interface of two states of the tree with abidiff (Debian: abigail-tools): names, types of parameters
# and structs of all installed headers without CUDA:
#     tools/abi.sh OLD [NEW]    each a commit, or the path of a tree; NEW: this tree
#     tools/abi.sh --check      this tree with the last release of its minor version (tag vX.Y.Z), if there is one; and three
#                               changes of this tree, which abidiff must refuse, with this tree
# It fails if a program that was compiled with OLD may not run with NEW; new functions pass. The library is not compiled: each
# prototype that the compiler finds becomes a function with an empty body, whose debug information has the types.
set -eu
cd "$(dirname "$0")/.."
command -v abidiff >/dev/null || { echo "abi: no abidiff: package abigail-tools" && exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM HUP
folders="core comm layers optim datasets fit"

# unpack STATE FOLDER: the headers of a commit or of a tree.
unpack() {
    mkdir -p "$2"
    if [ -d "$1" ]; then
        (cd "$1" && find $folders -name '*.h' -exec tar -cf - {} +) | tar -C "$2" -xf -
    else
        git archive "$1" $folders >"$work/archive" && tar -C "$2" -xf "$work/archive" --wildcards '*.h'
    fi
}

# build FOLDER: makes FOLDER/interface.so of the headers in FOLDER.
build() (
    cd "$1"
    find $folders -name '*.h' ! -name '*_impl.h' ! -path 'core/cuda/*' | LC_ALL=C sort | sed 's/.*/#include "&"/' >all.h
    gcc -std=gnu11 -DWF_LIBRARY -I. -fsyntax-only -aux-info prototypes -x c all.h
    # A prototype: "/* ./core/shape.h:57:NC */ extern int64_t wf_shape_count (wf_shape);"
    sed -n 's|^/\* [^:]*:[0-9]*:NC \*/ extern \(.*[ *]wf_[a-z0-9_]* (.*)\);$|\1 { __builtin_trap(); }|p' prototypes |
        LC_ALL=C sort -u >functions
    [ "$(wc -l <functions)" -gt 600 ] || { echo "abi: only $(wc -l <functions) prototypes were found in $1" && exit 1; }
    (echo '#include "all.h"' && cat functions) >interface.c
    gcc -std=gnu2x -DWF_LIBRARY -I. -w -g -fPIC -shared interface.c -o interface.so
)

# compare OLD NEW: two folders in which build was. abidiff's report goes to $work/report.
compare() {
    abidiff --no-added-syms "$work/$1/interface.so" "$work/$2/interface.so" >"$work/report"
}

# refuse NAME HEADER SCRIPT: a change of HEADER by sed.
refuse() {
    cp -r "$work/new" "$work/$1"
    sed "$3" "$work/new/$2" >"$work/$1/$2"
    ! cmp -s "$work/new/$2" "$work/$1/$2" || { echo "abi: $2 is no longer as the change '$3' expects it" && exit 1; }
    build "$work/$1"
    ! compare new "$1" || { echo "abi: abidiff does not see the change '$3' of $2" && exit 1; }
}

check() {
    refuse parameter core/version.h 's/wf_version(void)/wf_version(int)/'
    refuse member core/context.h 's/^typedef struct wf_ctx_opts {/&\n    int new;/'
    refuse name core/version.h '/wf_configuration(void)/d'
    compare name new || { echo "abi: abidiff refuses a new function" && exit 1; }
    interface=$(sed -n 's/^#define WF_VERSION_[A-Z]* //p' core/version.h | paste -sd . | sed 's/\.[0-9]*$//')
    old=$(git tag --list "v$interface.*" --sort=version:refname 2>/dev/null | tail -n 1)
    [ "$old" ] || { echo "abi: no release of $interface to compare with; three changes were seen" && exit 0; }
}

case ${1-} in
'' | -h | --help) sed -n '2,8s/^# \{0,1\}//p' "$0" && exit 2 ;;
esac
new=.
[ "$1" = --check ] || new=${2-.}
unpack "$new" "$work/new"
build "$work/new"
old=$1
[ "$1" != --check ] || check
unpack "$old" "$work/old"
build "$work/old"
compare old new || { cat "$work/report" && echo "abi: above: changes after which a program compiled with $old may not run with $new" && exit 1; }
echo "abi: programs compiled with $old run with $new"
