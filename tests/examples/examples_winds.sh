#!/bin/sh
# winds gives the same losses and scores however its maps are cut, and wherever their columns begin; its scores of what needs no training are those of plain
# loops, and it leaves its table and pictures; wrong options end in one line: EXAMPLES MPIEXEC RANKS MAKER
. "$(dirname "$0")/begin.sh"
maker=$4
"$maker" "$work/winds.nc" "$work/turned.nc" "$work/heights.nc" >"$work/made" || { cat "$work/made" && fail "areas or seams are wrong"; }
expected=$(tail -n 1 "$work/made" | cut -d ' ' -f 1,2)
small="--period 4 --held-out 8 --channels 4 --batch 4 --inputs 2 --steps 2 --log-every 2 --seed 7"

# run NAME DATA RANKS MESH [OPTION...]: a file of losses and scores in the folder NAME
run() {
    name=$1 data=$2 ranks=$3 mesh=$4
    shift 4
    "$mpiexec" -np "$ranks" "$examples/winds" $small --data "$work/$data.nc" --iterations 4 --mesh "$mesh" --out "$work/$name" \
        "$@" >"$work/out"
    grep -q "Look at $work/$name/winds.png" "$work/out" || fail "$name: it does not say where to look"
    head -c 4 "$work/$name/winds.png" | grep -q PNG || fail "$name: there is no picture"
    sed -n 's/^iteration.* loss \([0-9.]*\)  held out \([0-9.]*\)$/\1 \2/p' "$work/out" >"$work/$name/said"
    [ "$(wc -l <"$work/$name/said")" = 2 ] || fail "$name: there are not two lines of loss and score"
    sed -n 's/^\(\(.*persistence\|climatology\|network\)  *\)\([0-9.]*\)  *\([0-9.]*\)$/\3 \4/p' "$work/$name/table.txt" >>"$work/$name/said"
    [ "$(wc -l <"$work/$name/said")" = 6 ] || fail "$name: the table has not four such lines"
}
# same NAME: prints what is not as on one rank
same() {
    paste "$work/one/said" "$work/$1/said" | awk -v name="$1" '
        function far(a, b) { return (a - b > 1e-4 || b - a > 1e-4) }
        far($1, $3) || far($2, $4) || $1 == last { print name ": " $0; failed = 1 }
        { last = $1 }
        END { exit failed }'
}
run one winds 1 data=1
run two winds 2 width=2
run four winds 4 height=2,width=2
same two
same four
# The seam lies elsewhere: nothing changes on a globe, and the network with zeros around it.
run turned turned 1 data=1
same turned
run open turned 1 data=1 --edge zeros
! same open >/dev/null || fail "zeros make no difference"
is=$(sed -n 's/^\(persistence\|climatology\)  *\([0-9.]*\) .*/\2/p' "$work/one/table.txt" | xargs)
echo "$is $expected" | awk '{ d = $1 - $3; e = $2 - $4; exit (d * d > 1e-6 || e * e > 1e-6) }' ||
    fail "persistence and climatology: $is, should be $expected"

run undecayed winds 1 data=1 --decay 0
! cmp -s "$work/one/said" "$work/undecayed/said" || fail "--decay 0 is not none"

# refuses TEXT OPTION...
refuses() {
    text=$1
    shift
    "$mpiexec" -np 2 "$examples/winds" $small --data "$work/winds.nc" --out "$work/wrong" "$@" >"$work/said" 2>&1 && fail "$*: no error"
    grep -qF -- "$text" "$work/said" || { cat "$work/said" && fail "\"$text\" is not said"; }
}
refuses "--mesh channel=2: should be axes out of data, depth, height, width" --mesh channel=2
refuses "there is no variable RAIN; there are LAT, UWND, VWND" --variables RAIN
refuses "--batch 14: 16 of 24 months make 13 samples to train on" --batch 14
