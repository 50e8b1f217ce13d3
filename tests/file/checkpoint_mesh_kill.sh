#!/bin/sh
# SIGKILL to one rank of a pipeline at random writes of a save: the next run finds one generation on all ranks, the one
# before or the one that was being saved: tests/file/checkpoint_mesh_kill.sh MPIEXEC RANKS KILLS PROGRAM FORM...
set -eu
mpiexec=$1 ranks=$2 kills=$3 program=$4
shift 4
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export WEFT_TRACE="$folder/trace" WEFT_LOG=error
mkdir "$folder/trace"
seed=${SEED:-$(date +%s)}
echo "seed $seed"
for form in "$@"; do
    before=-1 kill=0 whole=0
    while [ "$kill" -le "$kills" ]; do
        number=$(awk -v seed="$((seed + kill))" 'BEGIN { srand(seed); print int(rand() * 1000000) }')
        [ "$kill" -lt "$kills" ] || number=-1
        status=0
        timeout 60 "$mpiexec" -np "$ranks" "$program" "$folder/$form" "$form" "$number" "$kill" >"$folder/out" \
            2>"$folder/err" || status=$?
        found=$(sed -n 's/^found //p' "$folder/out")
        case "$((${found:-0} - before)) $status" in
        "1 0" | "2 0") [ "$number" = -1 ] || found= ;;
        "1 "* | "2 "*) [ "$number" != -1 ] || found= ;;
        *) found= ;;
        esac
        if [ -z "$found" ] || grep -q "of another step\|the next loss" "$folder/out" "$folder/err"; then
            echo "$form, kill $kill at $number: exit code $status after step $before:"
            cat "$folder/out" "$folder/err"
            exit 1
        fi
        [ $((found - before)) = 1 ] || whole=$((whole + 1))
        before=$found
        kill=$((kill + 1))
        rm -rf "$folder"/trace/*
    done
    echo "$form on $ranks ranks: $kills kills, $kills survived; step $before in the end, $whole of the killed saves whole"
done
