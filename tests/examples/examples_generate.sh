#!/bin/sh
# generate logs the same losses and writes the same bytes on one rank and on two that share samples, heads, tokens or
# blocks; a run that goes on on other ranks ends alike; a text that repeats is written on; wrong options end in one line:
# EXAMPLES MPIEXEC RANKS
. "$(dirname "$0")/begin.sh"

# run NAME RANKS OPTIONS: a file of steps with losses and bits, and one of what is written
run() {
    "$mpiexec" -np "$2" "$examples/generate" --text "$work/text" --tokens 9 --features 16 --heads 2 --blocks 2 --batch 5 \
        --steps 80 --log-every 20 --lr 0.03 --tests 3 --top-k 1 --write 26 --prompt one --snapshots "$work/snapshots" $3 \
        >"$work/$1.out"
    sed -n 's/^step \([0-9]*\): \(loss \)\{0,1\}\([0-9.]*\)[, ].*/\1 \3/p' "$work/$1.out" >"$work/$1.losses"
    sed -n 's/^step .* accuracy //p' "$work/$1.out" >"$work/$1.accuracy"
    sed '1,/^writes:$/d' "$work/$1.out" >"$work/$1.written"
}

# compare ONE ANOTHER
compare() {
    paste -d ' ' "$work/$1.losses" "$work/$2.losses" | awk -v name="$2" '
        $1 != $3 || $2 - $4 > 5e-5 * (1 + $2) || $4 - $2 > 5e-5 * (1 + $2) { print name ": " $0; failed = 1 }
        END { exit failed }'
    cmp "$work/$1.accuracy" "$work/$2.accuracy" || fail "$2: other accuracies"
    cmp "$work/$1.written" "$work/$2.written" || fail "$2 writes $(cat "$work/$2.written")"
}

for line in 1 2 3 4 5 6 7 8 9 10 11 12; do
    printf 'one twisfab.\none twisfab.\none twisfab.\none twisfab.\none twisfab.\n'
done >"$work/text"
run one 1 "--snapshot-every 60"
[ "$(wc -l <"$work/one.losses")" = 14 ] || fail "14 losses should be there: $(cat "$work/one.out")"
tail -n 1 "$work/one.accuracy" | grep -qE '^(0\.9|1\.0)' || fail "too few bytes come first: $(cat "$work/one.out")"
printf 'one twisfab.\none twisfab.\none\n' | cmp - "$work/one.written" || fail "it writes $(cat "$work/one.written")"
for way in data heads tokens pipeline; do
    run $way 2 "--parallel $way"
    compare one $way
done
run rest 2 "--parallel pipeline --resume auto"
grep -q 'goes on from step 60' "$work/rest.out" || fail "it does not go on: $(cat "$work/rest.out")"
tail -n "$(wc -l <"$work/rest.losses")" "$work/one.losses" >"$work/end.losses"
tail -n "$(wc -l <"$work/rest.accuracy")" "$work/one.accuracy" >"$work/end.accuracy"
cp "$work/one.written" "$work/end.written"
compare rest end

# Bytes of a prompt that are no text are not sent to the terminal: controls of ASCII, of Latin 1 (alone and in UTF-8), and
# halves of characters. Letters with accents are.
"$examples/generate" --text "$work/text" --tokens 9 --features 16 --heads 2 --blocks 2 --steps 1 --write 1 --tests 1 \
    --prompt "$(printf 'a\033b\233c\302\233d\303\251e\304\201f\342\202g\342\202\254h\300\200i\355\240\200j')" >"$work/one.out"
grep -q "^$(printf 'a?b?c??d\303\251e\304\201f??g\342\202\254h??i???j')" "$work/one.out" || fail "it writes $(cat "$work/one.out")"

# refused RANKS WORDS OPTIONS...: one line with these words, of all ranks together
refused() {
    ranks=$1 words=$2
    shift 2
    ! timeout 60 "$mpiexec" -np "$ranks" "$examples/generate" --steps 1 "$@" >"$work/out" 2>&1 || fail "generate $* goes on"
    [ "$(grep -c "generate: $words" "$work/out")" = 1 ] || fail "generate $*: $(cat "$work/out")"
}
small="--text $work/text --tokens 9 --features 16 --blocks 2 --snapshots $work/snapshots --resume auto"
refused 1 "--heads 4: the checkpoint in $work/snapshots has 2" $small --heads 4
cp "$work/text" "$work/other" && echo more >>"$work/other"
refused 2 "--text $work/other: the checkpoint in $work/snapshots has learned another text" $small --heads 2 --text "$work/other"
mkfifo "$work/fifo"
refused 1 "$work/fifo: should be a file or a folder" --text "$work/fifo"
refused 1 "--mesh channel=1,channel=1: should be axes" --mesh channel=1,channel=1

: >"$work/empty"
for options in "--parallel rows" "--text /no/where" "--text $work/empty" "--size huge" "--features 10 --heads 3"; do
    code=0
    "$examples/generate" $options >"$work/out" 2>&1 || code=$?
    [ "$code" != 0 ] || fail "generate $options goes on"
    [ "$(grep -c '^\(.*/\)\{0,1\}generate: ' "$work/out")" = 1 ] || fail "generate $options: $(cat "$work/out")"
done
