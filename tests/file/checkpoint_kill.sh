#!/bin/sh
# SIGKILL at random moments of saving; after each one the newest generation that was whole is found again, and it is no
# older than the one found before: tests/file/checkpoint_kill.sh MPIEXEC RANKS KILLS PROGRAM
set -eu
range=60000 # microseconds before a kill, at most; it follows how long this machine takes to save
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export WEFT_TRACE="$folder/trace" WEFT_LOG=error
mkdir "$folder/trace"
seed=${SEED:-$(date +%s)} before=0 kill=0 advanced=0
echo "seed $seed"
while [ "$kill" -le "$3" ]; do
    after=$(awk -v seed="$((seed + kill))" 'BEGIN { srand(seed); print int(500 + rand() * '"$range"') }')
    [ "$kill" -lt "$3" ] || after=0
    status=0
    timeout 60 "$1" -np "$2" "$4" "$folder/saves" "$after" "$kill" >"$folder/out" 2>"$folder/err" || status=$?
    set -- "$1" "$2" "$3" "$4" $(awk '/^found/ { print $2, $3 }' "$folder/out")
    if [ $# -ne 6 ] || { [ "$after" -gt 0 ] && [ "$status" -eq 0 ]; } || { [ "$after" -eq 0 ] && [ "$status" -ne 0 ]; } ||
        [ "$6" -lt "$before" ] || grep -q "elements are wrong" "$folder/err"; then
        echo "kill $kill after $after us: exit code $status, found '${5-}' '${6-}' after step $before"
        cat "$folder/err"
        exit 1
    fi
    if [ "$6" -eq "$before" ]; then
        [ "$range" -gt 10000000 ] || range=$((range * 3 / 2))
    else
        advanced=$((advanced + 1))
        [ "$range" -lt 60000 ] || range=$((range * 3 / 4))
    fi
    before=$6
    kill=$((kill + 1))
    rm -rf "$folder"/trace/*
    set -- "$1" "$2" "$3" "$4"
done
ls "$folder/saves"
echo "$3 kills on $2 ranks: $3 survived; step $before in the end, later than before after $advanced of them"
[ "$before" -gt 0 ]
