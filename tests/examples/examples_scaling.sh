#!/bin/sh
# A quick run of halo_scaling counts the bytes that the formula says, in every row, and draws a picture; wrong options
# end in one line: EXAMPLES MPIEXEC RANKS
. "$(dirname "$0")/begin.sh"

fail() {
    echo "$1"
    cat "$work/output"
    exit 1
}

study() {
    "$mpiexec" -np "$ranks" "$examples/halo_scaling" --out "$work/study" "$@" >"$work/output" 2>&1
}

study --quick || fail "the program failed"
awk -F, -v ranks="$ranks" '
    NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i; width = NF; next }
    NF != width { print "row " NR " has " NF " fields, should have " width; failed = 1 }
    $at["ranks"] != ranks { print "row " NR " is of " $at["ranks"] " ranks"; failed = 1 }
    $at["bytes"] != $at["formula"] || $at["bytes_both"] != $at["formula_both"] || $at["ranks_off"] != 0 {
        print "row " NR ": bytes are not those of the formula: " $0
        failed = 1
    }
    (ranks > 1) != ($at["bytes"] > 0 && $at["bytes_both"] > $at["bytes"]) { print "row " NR ": bytes: " $0; failed = 1 }
    !($at["compute_s"] > 0 && $at["spatial_s"] > 0 && $at["spatial_both_s"] > 0) { print "row " NR ": " $0; failed = 1 }
    { rows[$at["mode"]]++ }
    END {
        # two sizes, one number of channels, two kernels, on one or two grids
        if (rows["strong"] != 4 * ranks || rows["weak"] != 4 * ranks) { print NR " lines"; failed = 1 }
        exit failed
    }' "$work/study/halo-$ranks.csv" || fail "halo-$ranks.csv is not what it should be"

picture=$work/study/halo.svg
[ "$(head -c 5 "$picture")" = "<?xml" ] || fail "halo.svg does not start as SVG"
grep -q '</svg>' "$picture" || fail "halo.svg is not whole"
grep -q "of $ranks rank[s, ]" "$picture" || fail "halo.svg does not show these ranks"
[ -z "$(find "$work/study" -name '*.tmp')" ] || fail "a file was left that is not whole"
[ "$ranks" = 1 ] || [ "$ranks" -gt "$(nproc)" ] || grep -q 'EXTRAPOLATED' "$work/output" || fail "nothing is extrapolated"

for option in "--sizes 64," "--channels 0" "--kernels three"; do
    ! study $option || fail "halo_scaling $option goes on"
    [ "$(grep -cF "halo_scaling: $option: should be" "$work/output")" = 1 ] || fail "halo_scaling $option: no clear line"
done
