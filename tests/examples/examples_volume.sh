#!/bin/sh
# volume logs the same losses and Dice scores however its volumes are cut, and leaves a picture; in grey it has one channel;
# wrong options end in one line: EXAMPLES MPIEXEC
. "$(dirname "$0")/begin.sh"

# run RANKS MESH: a file of losses and scores
run() {
    "$mpiexec" -np "$1" "$examples/volume" --scale 4 --channels 4 --volumes 8 --held-out 4 --epochs 2 --seed 3 --mesh "$2" \
        --out "$work/$2" >"$work/out"
    grep -q 'was not reached in 2 epochs' "$work/out" || fail "$2: it does not say how it ended"
    sed -n 's/.*"loss": \([0-9.e+-]*\), "dice": \([0-9.e+-]*\),.*/\1 \2/p' "$work/$2/log.jsonl" >"$work/$2/said"
    [ "$(wc -l <"$work/$2/said")" = 2 ] || fail "$2: the log has not two lines of loss and dice"
    head -c 4 "$work/$2/volume.png" | grep -q PNG || fail "$2: there is no picture"
}
run 1 data=1
for cut in "2 depth=2" "3 width=3" "4 data=2,height=2"; do
    run $cut
    paste "$work/data=1/said" "$work/${cut#* }/said" | awk -v name="${cut#* }" '
        function far(a, b) { return (a - b > 1e-5 || b - a > 1e-5) }
        far($1, $3) || far($2, $4) || $1 == last { print name ": " $0; failed = 1 }
        { last = $1 }
        END { exit failed }'
done

# In grey the first epoch of two has a score of 0.2154, which ends it, and it says how much that took.
small="--grey --scale 3 --channels 2 --volumes 8 --held-out 4 --epochs 2 --restart 1 --lr 0.004 --seed 1 --out $work/end"
"$mpiexec" -np 2 "$examples/volume" $small --dice 0.05 >"$work/out"
grep -q '^Dice 0.05 after 2 steps, 8 volumes, [0-9.]* s\.$' "$work/out" || fail "the end: $(cat "$work/out")"
[ "$(grep -c '^epoch' "$work/out")" = 1 ] || fail "it goes on after the score: $(cat "$work/out")"
"$mpiexec" -np 2 "$examples/volume" $small --steps 2 >"$work/out"
grep -q '^[0-9.]* steps/s, [0-9.]* steps a second of the processor$' "$work/out" || fail "--steps: $(cat "$work/out")"

# refuses TEXT OPTION...
refuses() {
    text=$1
    shift
    "$mpiexec" -np 2 "$examples/volume" --out "$work/wrong" "$@" >"$work/out" 2>&1 && fail "$*: no error"
    grep -qF -- "$text" "$work/out" || { cat "$work/out" && fail "\"$text\" is not said"; }
}
# The head, and of 12 volumes colours or brightness, and classes, of which some are background and some are not. The classes are
# those of the same voxels with and without colours.
for grey in "" --grey; do
    file=$work/volumes$grey inputs=$([ "$grey" ] && echo 1 || echo 3)
    "$mpiexec" -np 2 "$examples/volume" $grey --scale 3 --volumes 8 --held-out 4 --write "$file" >"$work/out" 2>&1 || fail "$(cat "$work/out")"
    [ "$(wc -c <"$file")" = $((40 + 12 * 512 * (4 * inputs + 1))) ] || fail "--write: $(wc -c <"$file") bytes"
    head=$(od -An -t d8 -N 40 -w40 "$file" | tr -s ' ')
    [ "$head" = " 8 8 4 $inputs 6" ] || fail "--write: $head"
    tail -c 512 "$file" | od -An -v -t u1 -w1 >"$work/classes$grey"
    [ "$(sort -u "$work/classes$grey" | wc -l)" -ge 2 ] || fail "--write: the last volume has one class"
done
cmp "$work/classes" "$work/classes--grey" || fail "--write: other classes in grey"
refuses "--write: the file cannot be written" --write "$work/nowhere/volumes"
refuses "--batch 3: should divide 512 volumes" --batch 3
refuses "--levels 5: sides of 2^5 halve at most 4 times" --levels 5
refuses "--dice 1.5: should be at most 1" --dice 1.5
