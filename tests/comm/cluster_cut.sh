#!/bin/sh
# The link between two nodes is cut while all ranks reduce: tests/comm/cluster_cut.sh MPIEXEC PROGRAM (tests/comm/deaths.c).
# The job must end with a message and a code that is not 0, and leave no process on either node. The daemons of the
# launcher notice by TCP keep-alive, and must do so before the ranks give up.
set -u
mpiexec=$1 program=$2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
export TEST_TIMEOUT_MS=8000 OMPI_MCA_oob_tcp_keepalive_time=1 OMPI_MCA_oob_tcp_keepalive_intvl=1 \
    OMPI_MCA_oob_tcp_keepalive_probes=2
limit=13 busy=40 # seconds: the time-out and 5; what the machine may be late

"$(dirname "$0")/cluster.sh" -t 90 -c "$log" "$mpiexec" "$program" loop none >>"$log" 2>&1
code=$?
[ $code != 77 ] || exit 77

fail() {
    echo "FAIL: $1 (code $code)"
    cat "$log"
    exit 1
}
[ $code != 0 ] && [ $code != 99 ] && [ $code != 124 ] && [ $code != 137 ] || fail "the job does not end as it should"
awk -v end="$(date +%s)" -v most=$((limit + busy)) '$1 == "cut" { cut = $2 } END { exit !(cut && end - cut <= most) }' \
    "$log" || fail "it took too long"
# A launcher that is still busy with its start when the link is cut takes that for a failed start.
grep -Eq "lost communication|unable to reliably start|weft: rank" "$log" || fail "no message"
