#!/bin/sh
# autoencoder learns the same however it is split, and leaves the same pictures; wrong words end in one line:
# EXAMPLES MPIEXEC RANKS
set -eu
examples=$1 mpiexec=$2 ranks=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. "$(dirname "$0")/small_images.sh"
small_images "$work/images" 512 64

fail() {
    echo "$1"
    cat "$work/$name.txt"
    exit 1
}

# run NAME RANKS OPTIONS: NAME.txt is what it prints
run() {
    name=$1
    processes=$2
    shift 2
    "$mpiexec" -np "$processes" "$examples/autoencoder" --data "$work/images" --depth 1 --width 48 --batch 60 --steps 8 \
        --log-every 4 --seed 3 --out "$work/$name" "$@" >"$work/$name.txt" 2>&1 || fail "$name: the program failed"
    for each in input reconstruction codes; do
        head -c 4 "$work/$name/$each.png" | grep -q PNG || fail "$name: there is no $each.png"
    done
    grep -q "ms/step" "$work/$name.txt" || fail "$name: there is no table"
    [ "$(wc -l <"$work/$name/times.txt")" = 2 ] || fail "$name: there is no times.txt"
}

losses() {
    sed -n 's/^step [0-9]*: loss \([^,]*\),.*/\1/p' "$work/$1.txt"
}

run none 1 --split none
[ "$(losses none | sort -u | wc -l)" = 2 ] || fail "the losses do not change"

same() {
    run "$@"
    { losses none && losses "$1"; } | awk -v name="$1" '
        function far(a, b) { return (a - b > 1e-5 || b - a > 1e-5) }
        NR <= 2 { first[NR] = $1; next }
        far(first[NR - 2], $1) { print name ": a loss of " $1 ", not " first[NR - 2]; failed = 1 }
        END { exit failed || NR != 4 }' || fail "$1: other losses than one process"
    cmp -s "$work/none/input.png" "$work/$1/input.png" || fail "$1: another input.png"
    # What was computed may be rounded to the next level of grey.
    for each in reconstruction codes; do
        for one in none "$1"; do
            mkdir -p "$work/$one/$each"
            cp "$work/$one/$each.png" "$work/$one/$each"
        done
        "$examples/../tests/examples_pictures" "$work/none/$each" "$work/$1/$each" >>"$work/$1.txt" ||
            fail "$1: another $each.png"
    done
}

same naive "$ranks" --split naive
same gpipe "$ranks" --split pipeline --schedule gpipe --chunks 7 --recompute always
same one_f_one_b "$ranks" --split pipeline --chunks 4 --recompute except_last --diagram --profile \
    --timeline "$work/timeline.json"
grep -q '"name": "recv"' "$work/timeline.json" || fail "there is no time line"
grep -q "collective recv" "$work/one_f_one_b.txt" || fail "there is no profile"
[ "$(grep -c '^stage' "$work/one_f_one_b.txt")" = "$ranks" ] || fail "there is no diagram"
grep -q '</svg>' "$work/one_f_one_b/schedule.svg" || fail "there is no schedule.svg"
if [ "$ranks" = 2 ]; then
    same interleaved 2 --split pipeline --schedule interleaved --chunks 4
fi

refused() {
    name=refused
    ! "$mpiexec" -np "$ranks" "$examples/autoencoder" --data "$work/images" "$1" "$2" >"$work/$name.txt" 2>&1 ||
        fail "$1 $2: should be refused"
    [ "$(grep -c "$3" "$work/$name.txt")" = 1 ] || fail "$1 $2: no clear line"
}

refused --split half "should be one of none, naive, pipeline"
refused --schedule soon "should be one of 1f1b, gpipe, interleaved"
if [ "$ranks" -gt 2 ]; then
    refused --depth 0 "would be empty"
fi
