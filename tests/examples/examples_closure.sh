#!/bin/sh
# closure learns from the memory of its solver as it lies there, as much as from stored fields, the same on any number of
# ranks, with edges that meet, and corrects a coarse run; a wrong size ends in one line: EXAMPLES MPIEXEC
. "$(dirname "$0")/begin.sh"

# run RANKS [--offline]
run() {
    "$mpiexec" -np "$1" "$examples/closure" --cells 14 --finer 3 --run 9 --steps 100 --hidden 8 --lr 0.02 --out "$work/$1" \
        ${2-} >"$work/out" 2>&1 || fail "$1 ranks: $(cat "$work/out")"
    grep -q "; 0 batches were copies" "$work/out" || fail "$1 ranks: batches were copied: $(cat "$work/out")"
    [ -z "${2-}" ] || grep -q "stored fields: 0 losses and parameters differ" "$work/out" || fail "$1 ranks: stored fields: $(cat "$work/out")"
    awk '$1 == 9 { seen = 1; bad = $4 > 0.8 * $3 } END { exit !seen || bad }' "$work/out" || fail "$1 ranks: $(cat "$work/out")"
    head -c 4 "$work/$1/closure.png" | grep -q PNG || fail "$1 ranks: there is no picture"
}
run 1
run 2 --offline
run 4
# A closure that reads zeros beyond the edges ends at 0.464, one whose edges meet at 0.371.
tail -n 1 "$work/1/losses.txt" | awk '{ exit !($1 == 99 && $2 < 0.42) }' || fail "last loss: $(tail -n 1 "$work/1/losses.txt")"
for ranks in 2 4; do
    paste "$work/1/losses.txt" "$work/$ranks/losses.txt" | awk -v ranks="$ranks" '
        { d = $2 - $4; if (d < 0) d = -d; if (!(d <= 1e-4 * $2)) { print ranks " ranks: " $0; failed = 1 } }
        END { exit failed || NR != 100 }'
done

! "$examples/closure" --cells 1 --out "$work/wrong" >"$work/out" 2>&1 || fail "--cells 1: no error"
grep -q -- "--cells 1: should be at least 2, twice the ranks" "$work/out" || fail "$(cat "$work/out")"
