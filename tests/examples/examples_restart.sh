#!/bin/sh
# wf-run --restarts goes on until a run is done: after a signal, after the death of a rank with one rank fewer, and after a
# signal to itself, which ends it: tests/examples/examples_restart.sh EXAMPLES MPIEXEC RANKS
set -eu
examples=$1 mpiexec=$2 ranks=$3
script=$(cd "$(dirname "$0")/../../tools" && pwd)/run.sh
folder=$(mktemp -d)
loop=
# What goes on when a check fails: the first TERM saves and ends it.
leave() {
    [ -z "$loop" ] || ! kill -TERM "$loop" 2>/dev/null || wait "$loop" || :
    rm -rf "$folder"
}
trap leave EXIT
export WEFT_TRACE="$folder" WEFT_LOG=error OMPI_MCA_odls_base_sigkill_timeout=1 PRTE_MCA_odls_base_sigkill_timeout=1
fail() {
    echo "$1"
    cat "$folder/said"
    exit 1
}
# until_said COUNT TEXT: waits until so many lines have it.
until_said() {
    tries=0
    until [ "$(grep -c "$2" "$folder/said")" -ge "$1" ]; do
        tries=$((tries + 1))
        [ $tries -lt 1200 ] || fail "\"$2\" did not come $1 times"
        sleep 0.05
    done
}
# until_made STEPS: waits until the log has so many.
until_made() {
    tries=0
    made=0
    until [ "${made:-0}" -ge "$1" ]; do
        made=$(sed -n '$s/.*"iteration": \([0-9]*\),.*/\1/p' "$folder/gan/log.jsonl")
        tries=$((tries + 1))
        [ $tries -lt 1200 ] || fail "the log does not reach step $1"
        sleep 0.05
    done
}
begin() {
    : >"$folder/said"
    "$script" --restarts 10 --least 1 -np "$ranks" "$examples/dcgan_cifar" --channels 8 --batch 4 --iterations "$1" --sample-every 0 \
        --log-every 1 --out "$folder/gan" --snapshots "$folder/saves" --snapshot-every 50 --resume auto \
        >"$folder/said" 2>&1 &
    loop=$!
}
launcher() {
    cat /proc/"$loop"/task/"$loop"/children | awk '{ print $1 }'
}

begin 100000
until_said 1 iteration
kill -USR1 "$(launcher)"
until_said 1 'goes on from step'
from=$(sed -n 's/^goes on from step \([0-9]*\),.*/\1/p' "$folder/said")
until_made $((from + 60)) # past a snapshot
rank=$(cat /proc/"$(launcher)"/task/*/children | awk '{ print $1 }')
kill -KILL "$rank"
until_said 2 'goes on from step'
grep -q "wf-run: code .*: start 1 of 10 after a failure, ranks: $((ranks - 1))$" "$folder/said" ||
    fail "the death of a rank is no failure"
kill -TERM "$loop"
code=0
wait $loop || code=$?
[ $code = 85 ] || fail "after TERM to the loop its code is $code"
[ "$(grep -c 'a signal has come' "$folder/said")" = 2 ] || fail "a signal did not save"
last=$(sed -n 's/^a signal has come: step \([0-9]*\) .*/\1/p' "$folder/said" | tail -n 1)
begin $((last + 5))
code=0
wait $loop || code=$?
[ $code = 0 ] || fail "the code at the end is $code"
grep -q "goes on from step $last," "$folder/said" || fail "the last run did not go on from step $last"

# A program that fails is not started for ever.
code=0
"$script" --restarts 3 -np 1 sh -c 'exit 7' 2>"$folder/said" || code=$?
[ $code = 7 ] && [ "$(grep -c 'after a failure' "$folder/said")" = 3 ] || fail "a program that always fails ends with code $code"
