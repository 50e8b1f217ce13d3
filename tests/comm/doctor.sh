#!/bin/sh
# What wf-doctor says of a job: tests/comm/doctor.sh RANKS NODES COMMAND... (mpirun, or tests/comm/cluster.sh, and wf-doctor).
set -u
ranks=$1 nodes=$2
shift 2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
"$@" >"$log" 2>&1
code=$?
[ $code != 77 ] || exit 77

expect() {
    grep -Eq "$1" "$log" || {
        echo "no line like: $1"
        cat "$log"
        exit 1
    }
}

[ $code = 0 ] || expect "a code of 0, not $code"
dnn=$(sed -n 's/^kernels .*oneDNN \([0-9.]*\),.*/\1/p' "$log")
expect "^Weft [0-9]+\.[0-9]+\.[0-9]+ +built with .*, (static|shared), MPI [0-9.]+, oneDNN $dnn, HDF5 [0-9.]+, (no netCDF|netCDF [0-9.]+), (no CUDA|CUDA)"
expect '^MPI +(Open MPI v|MPICH Version: )[0-9.]+, MPI [0-9.]+, threads: (funneled|serialized|multiple)$'
expect '^MPI and GPUs +it (says that it takes|does not say whether it takes)'
expect '^exchanges +(by|in|through|one rank)'
expect "^nodes +$ranks ranks? on $nodes nodes?\$"
expect "^  node $((nodes - 1)) .*/dev/shm [0-9.]+ GiB, [0-9.]+ GiB free: ranks .*$((ranks - 1))\$"
expect "^  rank $((ranks - 1)) .*, process [0-9]+, processors [0-9,-]+, [0-9]+ threads?\$"
# How long a name takes, and whether it is found, is the machine's affair: one of the two sentences is there.
found='[^ ]+, found within' && [ "$ranks" = 1 ] || found='of all ranks, found within'
expect "^own names +($found [0-9.]+ ms|[^ ]+ of rank [0-9]+ was (not found|found only) after [0-9.]+ s: .* /etc/hosts there)\$"
expect '^kernels +level (x86-64(-v[34])?|native), oneDNN [0-9]+\.[0-9]+\.[0-9]+, [A-Z0-9_]+$'
[ -z "${WEFT_LEVEL:-}" ] || expect "^kernels +level $WEFT_LEVEL, oneDNN [0-9.]+, $ONEDNN_MAX_CPU_ISA\$"
expect '^CUDA +[^ ]'
expect '^shared memory +(works|does not work|not needed)'
[ "$ranks" = 1 ] && expect '^links +none: one rank$' || expect '^links +inside node 0 .*GB/s, [0-9.]+ us$'
[ "$nodes" = 1 ] || expect '^links +to node 1 .*GB/s, [0-9.]+ us$'
expect "^auto +$ranks ranks? on $nodes nodes?, device .*: .* x [a-z_]+ \(.+\)\$"
expect '^time-out +[0-9]+ ms; flight recorders: '
[ "$(wc -l <"$log")" -le 25 ] || expect "no more than a screen"
