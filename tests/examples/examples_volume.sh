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
# The head, and of 12 volumes colours or brightness, and classes. A voxel is its kind's colour, and 0.25 of noise at most in each
# channel; no two colours are within that noise, and in grey all kinds have a brightness of 1.
for grey in "" --grey; do
    file=$work/volumes$grey inputs=$([ "$grey" ] && echo 1 || echo 3)
    bytes=$((512 * (4 * inputs + 1)))
    "$mpiexec" -np 2 "$examples/volume" $grey --scale 3 --volumes 8 --held-out 4 --write "$file" >"$work/out" 2>&1 || fail "$(cat "$work/out")"
    [ "$(wc -c <"$file")" = $((40 + 12 * bytes)) ] || fail "--write: $(wc -c <"$file") bytes"
    head=$(od -An -t d8 -N 40 -w40 "$file" | tr -s ' ')
    [ "$head" = " 8 8 4 $inputs 6" ] || fail "--write: $head"
    for n in 0 1 2 3 4 5 6 7 8 9 10 11; do
        od -An -v -t f4 -w4 -j $((40 + n * bytes)) -N $((2048 * inputs)) "$file"
        od -An -v -t u1 -w1 -j $((40 + n * bytes + 2048 * inputs)) -N 512 "$file"
    done | awk -v inputs=$inputs '
        { number[(NR - 1) % (512 * (inputs + 1))] = $1 }
        NR % (512 * (inputs + 1)) == 0 {
            for (v = 0; v < 512; v++) {
                k = number[512 * inputs + v]
                for (c = 0; c < inputs; c++) {
                    x = number[512 * c + v]
                    if (!((k, c) in least) || x < least[k, c]) least[k, c] = x
                    if (!((k, c) in most) || x > most[k, c]) most[k, c] = x
                }
            }
        }
        END {
            for (k = 0; k < 6; k++)
                for (c = 0; c < inputs; c++) {
                    middle[k, c] = (least[k, c] + most[k, c]) / 2
                    if (!((k, c) in least) || most[k, c] - least[k, c] > 0.5) print "kind " k ": from " least[k, c] " to " most[k, c]
                    if ((k == 0 || inputs == 1) && (middle[k, c] - (k > 0)) ^ 2 > 0.01) print "kind " k ": around " middle[k, c]
                }
            for (k = 0; k < 6 && inputs == 3; k++)
                for (l = 0; l < k; l++) {
                    far = 0
                    for (c = 0; c < 3; c++) far += (middle[k, c] - middle[l, c]) ^ 2
                    if (far < 0.16) print "kinds " k " and " l " have a distance of " sqrt(far)
                }
        }' >"$work/wrong"
    [ ! -s "$work/wrong" ] || { cat "$work/wrong" && fail "--write $grey: the colours are wrong"; }
    tail -c 512 "$file" >"$work/classes$grey"
done
cmp "$work/classes" "$work/classes--grey" || fail "--write: other classes in grey"

# Noise does not come again within a volume, also not where it has more than 2^20 voxels: 4096 near a corner and those 2^20 later.
"$examples/volume" --grey --scale 7 --batch 1 --volumes 1 --held-out 1 --write "$work/large" >"$work/out" 2>&1 || fail "$(cat "$work/out")"
tail -c +41 "$work/large" | head -c 16384 >"$work/one"
tail -c +$((41 + (1 << 22))) "$work/large" | head -c 16384 >"$work/other"
[ "$(wc -c <"$work/other")" = 16384 ] && ! cmp -s "$work/one" "$work/other" || fail "noise comes again after 2^20 voxels"
refuses "--write: the file cannot be written" --write "$work/nowhere/volumes"
refuses "--batch 3: should divide 512 volumes" --batch 3
refuses "--levels 5: sides of 2^5 halve at most 4 times" --levels 5
refuses "--dice 1.5: should be at most 1" --dice 1.5
