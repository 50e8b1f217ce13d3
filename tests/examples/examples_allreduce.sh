#!/bin/sh
# allreduce_bench writes a row for each size and each name that can be here, beside MPI's own and a copy, with bandwidths that follow
# from the times, and draws them; wrong options end in one line: EXAMPLES MPIEXEC RANKS
. "$(dirname "$0")/begin.sh"

fail() {
    echo "$1"
    cat "$work/output"
    exit 1
}

bench() {
    "$mpiexec" -np "$ranks" "$examples/allreduce_bench" --out "$work/out" "$@" >"$work/output" 2>&1
}

bench --most 65536 --repeat 3 || fail "the program failed"
awk -F, -v ranks="$ranks" '
    function far(a, b) { return a - b > 0.02 * b + 1e-3 || b - a > 0.02 * b + 1e-3 }
    NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i; width = NF; next }
    NF != width || $at["ranks"] != ranks || $at["nodes"] != 1 { print "row " NR ": " $0; failed = 1 }
    {
        algorithm = $at["bytes"] / $at["microseconds"] / 1e3
        bus = algorithm * 2 * (ranks - 1) / ranks
        rows[$at["communicator"]]++
        sizes[$at["bytes"]]++
    }
    $at["communicator"] == "MPI_Allreduce" { mpi = $at["microseconds"] }
    far($at["algorithm_GB_per_s"], algorithm) || far($at["bus_GB_per_s"], bus) ||
        far($at["times_as_fast_as_mpi"], mpi / $at["microseconds"]) { print "row " NR " does not add up: " $0; failed = 1 }
    END {
        n = split("MPI_Allreduce wf_allreduce naive flat hierarchical two_dimensional single_node dummy auto copy", names, " ")
        for (i = 1; i <= n; i++)
            if (rows[names[i]] != 4) { print names[i] " has " rows[names[i]] + 0 " rows, should have 4"; failed = 1 }
        for (bytes = 1024; bytes <= 65536; bytes *= 4)
            if (sizes[bytes] != n) { print bytes " bytes have " sizes[bytes] + 0 " rows, should have " n; failed = 1 }
        exit failed
    }' "$work/out/allreduce-$ranks.csv" || fail "allreduce-$ranks.csv is not what it should be"
for name in non_cuda_aware pure_nccl; do
    [ "$(grep -c "^$name is left out: .*communicator" "$work/output")" = 1 ] || fail "$name: it is not said once why it is left out"
done

picture=$work/out/allreduce-$ranks.svg
[ "$(head -c 5 "$picture")" = "<?xml" ] || fail "the picture does not start as SVG"
grep -q 'two_dimensional' "$picture" || fail "the picture does not show two_dimensional"
grep -q '</svg>' "$picture" || fail "the picture is not whole"

! bench --least 3 || fail "a buffer of 3 bytes was taken"
[ "$(grep -cF 'allreduce_bench: --least 3: should be' "$work/output")" = 1 ] || fail "--least 3: no clear line"
