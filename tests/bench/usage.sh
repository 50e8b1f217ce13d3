#!/bin/sh
# Every program that measures, and every tool, prints its usage at --help, with code 0 and without a complaint; and measuring
# programs refuse a word that is wrong in one line: tests/bench/usage.sh FOLDER PROGRAM...; FOLDER: that of the programs in Python.
set -u
folder=$1
shift
failed=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

complain() {
    echo "$1"
    head -5 "$work/out" "$work/err"
    failed=1
}
helps() {
    timeout 60 "$@" --help >"$work/out" 2>"$work/err" </dev/null
    code=$?
    for name in "$@"; do :; done
    name=$(basename "$name")
    [ $code = 0 ] && [ ! -s "$work/err" ] && grep -q "$name" "$work/out" ||
        complain "$name --help: code $code, should print its usage, end with 0 and complain of nothing:"
}
# refused PROGRAM LINE ARGUMENT...
refused() {
    program=$1 line=$2
    shift 2
    timeout 60 "$program" "$@" >"$work/out" 2>"$work/err" </dev/null
    code=$?
    [ $code = 2 ] && [ "$(cat "$work/err")" = "$line" ] || complain "$program $*: code $code, should be 2 and \"$line\":"
}

for program; do
    helps "$program"
    case $(basename "$program") in
        bench_overlap)
            refused "$program" 'bench_overlap: channels 0: should be a whole number from 1 to 65536; see bench_overlap --help' 0
            refused "$program" 'bench_overlap: repeats 102: should be a whole number from 1 to 101; see bench_overlap --help' \
                1 3 8 0 102
            refused "$program" 'bench_overlap: kernel 3x: should be a whole number from 1 to 128; see bench_overlap --help' 4 3x
            refused "$program" 'bench_overlap: 6 arguments: should be at most 5; see bench_overlap --help' 1 1 1 1 1 1
            ;;
        bench_boundary) refused "$program" 'bench_boundary: there is no option --side; see bench_boundary --help' --side 64 ;;
        bench_ring) refused "$program" 'bench_ring: HEADS 1e3: should be a whole number from 1 to 65536; see bench_ring --help' 64 1e3 ;;
        bench_spatial) refused "$program" 'bench_spatial: side : should be a whole number from 1 to 65536; see bench_spatial --help' '' ;;
        bench_saves) refused "$program" 'bench_saves: ROUNDS 100: should be a whole number from 1 to 99; see bench_saves --help' x 100 ;;
    esac
done
# The others read their options by argparse, behind imports that this machine may lack.
for program in attention boundary spatial; do
    helps python3 "$folder/bench_$program.py"
done
exit $failed
