#!/bin/sh
# translate logs the same losses, and the same BLEU, on one rank, two, and with its halves on two; wrong options end in
# one line: EXAMPLES MPIEXEC RANKS MESSAGES
. "$(dirname "$0")/begin.sh"
messages=$4

# run NAME RANKS OPTIONS: a file of steps and losses, and one of the last line
run() {
    "$mpiexec" -np "$2" "$examples/translate" --data "$work/catalogues" --steps 6 --log-every 2 --batch 11 --features 8 \
        --levels 1 --pieces 280 --most 20 --tests 9 --lr 0.01 $3 >"$work/$1.out"
    sed -n 's/^step \([0-9]*\): loss \([0-9.]*\), .*/\1 \2/p' "$work/$1.out" >"$work/$1.losses"
    grep -a '^BLEU of ' "$work/$1.out" >"$work/$1.bleu" || fail "$1: there is no BLEU: $(cat "$work/$1.out")"
    [ "$(wc -l <"$work/$1.losses")" = 3 ] || fail "$1: three losses should be there: $(cat "$work/$1.out")"
    # What six steps have learned to write is any bytes.
    iconv -f UTF-8 -t UTF-8 "$work/$1.out" >/dev/null 2>&1 || fail "$1: it writes what is no UTF-8"
    ! LC_ALL=C tr -d '\n\t' <"$work/$1.out" | LC_ALL=C grep -q '[[:cntrl:]]' || fail "$1: it writes control characters"
}

# compare ONE ANOTHER
compare() {
    paste -d ' ' "$work/$1.losses" "$work/$2.losses" | awk -v name="$2" '
        $1 != $3 || $2 - $4 > 2e-5 || $4 - $2 > 2e-5 { print name ": " $0; failed = 1 }
        END { exit failed }'
    cmp "$work/$1.bleu" "$work/$2.bleu" || fail "$2: another BLEU"
}

mkdir "$work/catalogues"
"$messages" "$work/catalogues"
for model in lstm transformer; do
    run $model 1 "--model $model"
    [ "$(cut -d ' ' -f 2 "$work/$model.losses" | sort -u | wc -l)" = 3 ] || fail "the losses of $model do not change"
    run $model-halves 2 "--model $model --parallel model"
    compare $model $model-halves
    for name in $model $model-halves; do
        grep -a -A 1 'translated:' "$work/$name.out" >"$work/$name.shown"
    done
    cmp "$work/$model.shown" "$work/$model-halves.shown" || fail "$model-halves: other translations"
done
run lstm-two 2 "--model lstm"
compare lstm lstm-two
run transformer-two 2 "--model transformer"
compare transformer transformer-two

for options in "--parallel rows" "--data /no/where"; do
    code=0
    "$mpiexec" -np 1 "$examples/translate" $options >"$work/out" 2>&1 || code=$?
    [ "$code" != 0 ] || fail "translate $options goes on"
    [ "$(grep -c '^translate: ' "$work/out")" = 1 ] || fail "translate $options: $(cat "$work/out")"
done
code=0
"$mpiexec" -np 1 "$examples/translate" --data "$work/catalogues" --parallel model >"$work/out" 2>&1 || code=$?
[ "$code" != 0 ] && grep -q 'on 1 ranks, should be 2' "$work/out" || fail "one rank: $(cat "$work/out")"
