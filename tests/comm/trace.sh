#!/bin/sh
# The flight recorders of jobs in one folder: tests/comm/trace.sh MPIEXEC PROGRAM WF-DOCTOR (PROGRAM is tests/comm/deaths.c).
set -u
mpiexec=$1 program=$2 doctor=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export WEFT_TRACE="$work/traces"

expect() {
    grep -Eq "$2" "$work/$1" || {
        echo "$1 does not say: $2"
        cat "$work/$1"
        exit 1
    }
}

"$doctor" --trace "$work/nowhere" >"$work/nothing" 2>&1 && expect nothing "a code that is not 0"
expect nothing "cannot read $work/nowhere"

"$mpiexec" -np 3 "$program" forward none >"$work/log" 2>&1 || expect log "a code of 0"
"$doctor" --trace "$WEFT_TRACE" >"$work/good" 2>&1 || expect good "a code of 0"
expect good ', 3 ranks here;'
expect good '^rank 2 \(.*, gone\): outside of communication since close\(\) at deaths\.c:[0-9]+, collective 5 '
expect good '^all ranks agree$'

# The newer job counts.
"$mpiexec" -np 3 "$program" differ culprit flat 1 >"$work/log" 2>&1 && expect log "a code that is not 0"
"$doctor" --trace "$WEFT_TRACE" >"$work/bad" 2>&1 && expect bad "a code that is not 0"
expect bad '^3 recorders of other jobs are left out$'
expect bad 'the first collective that differs is number 4 of communicator [0-9a-f]{4}: rank [0-2] calls'
expect bad 'rank 1 calls barrier\(\) at deaths\.c:[0-9]+$'
expect bad 'rank [02] calls allreduce\(f32 \[[0-9]+\], sum\) at deaths\.c:[0-9]+$'
expect bad '    it reported: ranks disagree in collective 4: '
# The rank that ends the job has left the call by then; its record says how.
expect bad '^rank [0-2] .* outside of communication since .*, collective 4 of .*: failed [0-9.]+ s ago(, waited for: .*)?$'

# What failed first is what is to be known.
"$mpiexec" -np 3 "$program" twice culprit flat 1 >"$work/log" 2>&1 || expect log "a code of 0"
"$doctor" --trace "$WEFT_TRACE" >"$work/twice" 2>&1 && expect twice "a code that is not 0"
expect twice '    it reported: ranks disagree in collective 1: .*barrier'
grep -q 'it reported: .*bcast_bytes' "$work/twice" && expect twice "the first failure alone"

# A folder of the user's may be a link; where there can be no file, the job goes on and says why.
ln -s "$WEFT_TRACE" "$work/link"
before=$(ls "$WEFT_TRACE" | wc -l)
WEFT_TRACE="$work/link" "$program" forward none >"$work/linked" 2>&1 || expect linked "a code of 0"
[ "$(ls "$WEFT_TRACE" | wc -l)" -gt "$before" ] || expect linked "a recorder behind the link"
refuse() {
    WEFT_TRACE=$1 "$program" forward none >"$work/refused" 2>&1 || expect refused "a code of 0"
    expect refused "the flight recorder keeps no file in .*: $2"
}
refuse "$work/log" "Not a directory"
refuse "$work/no/such/folder" "No such file or directory"
refuse "$work/$(printf '%0300d' 0)" "File name too long"

# A clean end leaves nothing if the user asks for no folder.
unset WEFT_TRACE
"$program" forward none >"$work/log" 2>&1 &
wait $! || expect log "a code of 0"
[ ! -e "/dev/shm/weft-$(id -u)-process-$!" ] || {
    echo "the flight recorder is still there"
    exit 1
}
