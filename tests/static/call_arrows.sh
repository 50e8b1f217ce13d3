#!/bin/sh
# Reads which object file defines and which one names each symbol, and fails on a call from a lower room to a higher
# one, and on too many files that call each other in a circle. The include lines cannot show either: a header may
# declare what a higher room defines.
#     tests/static/call_arrows.sh NM OBJECT...    check the library's object files
#     tests/static/call_arrows.sh --self          make up symbols with one fault each, and check that each is found
set -eu
here=$(cd "$(dirname "$0")" && pwd)

arrows() {
    awk -f "$here/rooms.awk" -f "$here/call_arrows.awk"
}

wrong=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# symbols FILE "DEFINED..." "NAMED...": what nm would say of FILE
symbols() {
    for name in $2; do
        echo "build/x.dir/$1.o: $name T 0 1"
    done
    for name in $3; do
        echo "build/x.dir/$1.o: $name U         "
    done
}

# refused WORDS CASE: what is read must be refused with these words
refused() {
    if said=$(arrows) || ! echo "$said" | grep -q "$1"; then
        echo "not found: $2: $said"
        wrong=1
    fi
}

passes() {
    if ! said=$(arrows); then
        echo "found where it is not: $1: $said"
        wrong=1
    fi
}

# ring FOLDER N: N files, each of which calls the next one, and the last one the first
ring() {
    i=0
    while [ $i -lt "$2" ]; do
        symbols "$1/f$i.c" "wf_f$i" "wf_f$(((i + 1) % $2))"
        i=$((i + 1))
    done
}

self() {
    high='a.c refers to wf_b'
    symbols comm/guard/a.c wf_a wf_b >"$work/low"
    symbols comm/engine/b.c wf_b '' | cat "$work/low" - | refused "$high" 'a call to a higher room'
    symbols comm/b.c wf_b '' | cat "$work/low" - | refused "$high" 'a call from a room to the files above it'
    echo 'build/x.dir/comm/engine/b.c.o: wf_b R 0 8' | cat "$work/low" - | refused "$high" 'a table of a higher room'
    symbols comm/transport/b.c wf_b '' | cat "$work/low" - | passes 'a call to a lower room'
    symbols core/b.c wf_b '' | cat "$work/low" - | passes 'a call to a lower folder'
    symbols comm/guard/c.c wf_c 'malloc MPI_Send' | cat "$work/low" - | passes 'names that no file defines'
    symbols comm/mesh/a.c wf_a wf_b >"$work/low"
    symbols comm/reduce/b.c wf_b '' | cat "$work/low" - | refused "$high" 'a call to a room beside'
    symbols comm/proof/b.c wf_b '' | cat "$work/low" - | refused "$high" 'a call from a room of comm to the proof'
    symbols comm/a.c wf_a wf_b >"$work/low"
    symbols comm/proof/b.c wf_b '' | cat "$work/low" - | refused "$high" 'a call from the files of comm to the proof'
    symbols layers/serial/a.c wf_a wf_b >"$work/low"
    symbols layers/parallel/b.c wf_b '' | cat "$work/low" - | refused "$high" 'a call to a higher room of layers'
    symbols optim/b.c wf_b '' | cat "$work/low" - | refused "$high" 'a call to a higher folder'
    symbols datasets/b.c wf_b '' | cat "$work/low" - | refused "$high" 'a call to a folder beside'
    ring comm 3 | passes 'a circle of 3 files of comm'
    ring comm 4 | refused 'comm: 4 files' 'a circle of 4 files of comm'
    for folder in core core/cuda layers optim datasets fit; do
        ring $folder 8 | passes "a circle of 8 files of $folder"
        ring $folder 9 | refused "$folder: 9 files" "a circle of 9 files of $folder"
    done
    refused 'no symbol is defined' 'no objects at all' </dev/null
    exit $wrong
}

[ $# -gt 0 ] || exit 1
case $1 in
--self) self ;;
*)
    nm=$1
    shift
    "$nm" -A -P "$@" >"$work/symbols"
    arrows <"$work/symbols"
    ;;
esac
