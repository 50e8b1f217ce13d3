#!/bin/sh
# relief gives the same losses and scores however its map is cut, its bilinear score is that of plain loops, the network
# is better after a few steps, and a rank of two or four needs about its share of the memory: EXAMPLES MPIEXEC RANKS MAKER
. "$(dirname "$0")/begin.sh"
maker=$4
"$maker" "$work/winds.nc" "$work/turned.nc" "$work/heights.nc" >"$work/made" || { cat "$work/made" && fail "areas or seams are wrong"; }
expected=$(tail -n 1 "$work/made" | cut -d ' ' -f 3)
small="--factor 4 --channels 8 --band-from 0 --band-to 60 --seed 3"

# run RANKS MESH: a file of losses, scores and memory
run() {
    "$mpiexec" -np "$1" "$examples/relief" --data "$work/heights.nc" $small --iterations 6 --log-every 3 --mesh "$2" --out "$work/$2" >"$work/out"
    head -c 4 "$work/$2/relief.png" | grep -q PNG || fail "$2: there is no picture"
    sed -n 's/^iteration.* loss \([0-9.e-]*\)$/\1/p; s/^\(bilinear\|network\)  *[0-9.]*  *\([0-9.]*\)$/\2/p; s/^memory.*: \([0-9.]*\) MiB$/\1/p' \
        "$work/out" >"$work/$2/said"
    [ "$(wc -l <"$work/$2/said")" = 5 ] || { cat "$work/out" && fail "$2: there are not five numbers"; }
}
run 1 width=1
# The most memory, as a part of what one rank needs; docs/planet.md has that of the whole Earth.
for cut in "2 height=2 0.56" "4 height=2,width=2 0.32"; do
    run ${cut% *}
    mesh=${cut#* }
    paste "$work/width=1/said" "$work/${mesh% *}/said" | awk -v name="$cut" -v most="${cut##* }" '
        function far(a, b) { return (a - b > 1e-5 * a || b - a > 1e-5 * a) }
        NR < 5 && far($1, $2) || NR == 5 && ($2 > most * $1 || $2 < $1 / 8) { print name ": " $0; failed = 1 }
        END { exit failed }'
done
awk -v expected="$expected" '
    NR == 3 && ($1 - expected > 1e-3 || expected - $1 > 1e-3) { print "bilinear: " $1 ", should be " expected; failed = 1 }
    NR == 3 { bilinear = $1 }
    NR == 4 && $1 >= bilinear { print "network: " $1 " is no better than " bilinear; failed = 1 }
    END { exit failed }' "$work/width=1/said"

# refuses TEXT OPTION...
refuses() {
    text=$1
    shift
    "$mpiexec" -np 2 "$examples/relief" --data "$work/heights.nc" $small --out "$work/wrong" "$@" >"$work/said" 2>&1 && fail "$*: no error"
    grep -qF -- "$text" "$work/said" || { cat "$work/said" && fail "\"$text\" is not said"; }
}
refuses "--factor 6: should divide 513 rows but for the last one, and 1024 columns" --factor 6
