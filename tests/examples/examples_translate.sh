#!/bin/sh
# translate logs the same losses, and the same BLEU, on one rank, two, and with its halves on two; wrong options end in
# one line: EXAMPLES MPIEXEC RANKS MESSAGES
set -eu
examples=$1 mpiexec=$2 messages=$4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
    echo "$1"
    exit 1
}

# run NAME RANKS OPTIONS: a file of steps and losses, and one of the last line
run() {
    "$mpiexec" -np "$2" "$examples/translate" --data "$work/catalogues" --steps 6 --log-every 2 --batch 11 --features 8 \
        --hidden 12 --most 20 --tests 9 --lr 0.01 $3 >"$work/$1.out"
    sed -n 's/^step \([0-9]*\): loss \([0-9.]*\), .*/\1 \2/p' "$work/$1.out" >"$work/$1.losses"
    grep -a '^BLEU of ' "$work/$1.out" >"$work/$1.bleu" || fail "$1: there is no BLEU: $(cat "$work/$1.out")"
    [ "$(wc -l <"$work/$1.losses")" = 3 ] || fail "$1: three losses should be there: $(cat "$work/$1.out")"
}

compare() {
    paste -d ' ' "$work/one.losses" "$work/$1.losses" | awk -v name="$1" '
        $1 != $3 || $2 - $4 > 2e-5 || $4 - $2 > 2e-5 { print name ": " $0; failed = 1 }
        END { exit failed }'
    cmp "$work/one.bleu" "$work/$1.bleu" || fail "$1: another BLEU"
}

mkdir "$work/catalogues"
"$messages" "$work/catalogues"
run one 1 ""
[ "$(cut -d ' ' -f 2 "$work/one.losses" | sort -u | wc -l)" = 3 ] || fail "the losses do not change"
run two 2 ""
compare two
run halves 2 "--parallel model"
compare halves
for name in one halves; do
    grep -a -A 1 'translated:' "$work/$name.out" >"$work/$name.shown"
done
cmp "$work/one.shown" "$work/halves.shown" || fail "halves: other translations"

for options in "--parallel rows" "--data /no/where"; do
    code=0
    "$mpiexec" -np 1 "$examples/translate" $options >"$work/out" 2>&1 || code=$?
    [ "$code" != 0 ] || fail "translate $options goes on"
    [ "$(grep -c '^translate: ' "$work/out")" = 1 ] || fail "translate $options: $(cat "$work/out")"
done
code=0
"$mpiexec" -np 1 "$examples/translate" --data "$work/catalogues" --parallel model >"$work/out" 2>&1 || code=$?
[ "$code" != 0 ] && grep -q 'on 1 ranks, should be 2' "$work/out" || fail "one rank: $(cat "$work/out")"
