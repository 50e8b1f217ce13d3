#!/bin/sh
# A signal while the disk is full: the program says that its last save failed, and leaves with a code of its own; nothing
# is in the folder: tests/examples/examples_unsaved.sh EXAMPLES MPIEXEC RANKS
set -eu
size=256k
. "$(dirname "$0")/../file/own_mounts.sh"
examples=$1 mpiexec=$2 ranks=$3
work=$(mktemp -d)
trap 'umount "$folder" 2>/dev/null || true; rmdir "$folder"; rm -rf "$work"' EXIT
"$mpiexec" -np "$ranks" "$examples/dcgan_cifar" --channels 8 --batch 4 --iterations 1000000 --sample-every 0 --log-every 1 \
    --out "$work" --snapshots "$folder/saves" --resume auto >"$work/said" 2>&1 &
job=$!
tries=0
until [ -s "$work/log.jsonl" ] && [ -e "$folder/saves/.weft-lock" ]; do
    tries=$((tries + 1))
    [ $tries -lt 1200 ] || { cat "$work/said" && exit 1; }
    sleep 0.05
done
head -c 1048576 /dev/zero >"$folder/junk" 2>/dev/null || true
kill -s USR1 $job
code=0
wait $job || code=$?
if [ $code != 86 ] || [ "$(grep -c 'a signal asks the run to leave, and step [0-9]* is not saved: .*No space left' "$work/said")" != 1 ] ||
    [ -n "$(ls -A "$folder/saves")" ]; then
    echo "the exit code is $code, and these files are there: $(ls -A "$folder/saves")"
    cat "$work/said"
    exit 1
fi
