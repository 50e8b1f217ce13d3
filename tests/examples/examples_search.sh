#!/bin/sh
# search_mnist makes its trials on two groups, goes on where it was, and leaves a table and pictures; without Optuna one
# line says what to install: EXAMPLES MPIEXEC RANKS
. "$(dirname "$0")/begin.sh"
. "$(dirname "$0")/small_images.sh"
small_images "$work/images" 400 100

fail() {
    echo "$1"
    cat "$work/said.txt"
    exit 1
}

search() {
    "$mpiexec" -np "$ranks" "$examples/search_mnist" --data "$work/images" --out "$work/out" --groups 2 --batch 20 \
        --epochs 2 "$@" >"$work/said.txt" 2>&1
}

! WEFT_PYTHON=/nowhere/python search || fail "it runs without Python"
[ "$(grep -c '^search_mnist: .*apt-get install python3-optuna' "$work/said.txt")" = 1 ] || fail "no clear line"

for python in ${WEFT_PYTHON-} /usr/bin/python3 python3; do
    if "$python" -c 'import optuna' 2>/dev/null; then
        found=$python
        break
    fi
done
if [ -z "${found-}" ]; then
    echo "SKIP: no Python has Optuna (package python3-optuna)"
    exit 77
fi
export WEFT_PYTHON="$found"

! search --trials 2 --data /nowhere/images --out "$work/none" || fail "it finds settings without data"
grep -q '^search_mnist: no trial came to its end; .*/nowhere/images' "$work/said.txt" || fail "no reason of the failure"

search --trials 5 || fail "the search failed"
[ "$(grep -c '^trial ' "$work/said.txt")" = 5 ] || fail "not five trials"
search --trials 12 || fail "the search failed to go on"
[ "$(grep -c '^trial ' "$work/said.txt")" = 7 ] || fail "not seven more trials"
grep -qE '^best: trial [0-9]+, accuracy 0\.[0-9]{4}, lr .*, split (data|channel), width [0-9]+$' "$work/said.txt" ||
    fail "no best trial"
[ "$(wc -l <"$work/out/trials.csv")" = 13 ] || fail "not twelve trials in the table"
head -1 "$work/out/trials.csv" | grep -qx 'trial,state,value,seconds,lr,split,width,reason' || fail "another table"
for split in data channel; do
    grep -q "^[0-9]*,complete,0[.][0-9]*,.*,\"$split\"," "$work/out/trials.csv" || fail "no trial split by $split"
done
# The best of them has learnt something.
awk -F, '$2 == "complete" && $3 > best { best = $3 } END { exit best < 0.4 }' "$work/out/trials.csv" ||
    fail "no trial has learnt: $(cat "$work/out/trials.csv")"
for picture in history importances; do
    grep -q '</svg>' "$work/out/$picture.svg" || fail "there is no $picture.svg"
done
