#!/bin/sh
# Signals and --resume auto: a run that was told to stop, several times, ends where an uninterrupted one does:
# tests/examples/examples_saves.sh EXAMPLES MPIEXEC RANKS
set -eu
examples=$1 mpiexec=$2 ranks=$3
export OMPI_MCA_odls_base_sigkill_timeout=2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
run() {
    exec "$mpiexec" -np "$ranks" "$examples/dcgan_cifar" --channels 8 --batch 4 --iterations 2000 --sample-every 0 \
        --log-every 1 "$@"
}

(run --out "$folder/whole" >/dev/null)
stops=0
for signal in USR1 TERM USR1; do
    run --out "$folder/parts" --snapshots "$folder/saves" --snapshot-every 150 --resume auto >"$folder/said" 2>&1 &
    job=$!
    tries=0
    : >"$folder/said"
    while ! grep -q iteration "$folder/said" && [ $tries -lt 300 ]; do
        sleep 0.05
        tries=$((tries + 1))
    done
    sleep 0.2
    kill -s $signal $job || true
    code=0
    wait $job || code=$?
    if grep -q 'a signal has come: step .* is saved' "$folder/said"; then
        stops=$((stops + 1))
    fi
    # What the launcher makes of a TERM of its own is its affair.
    if [ "$signal$code" = USR185 ] || [ "$signal" = TERM ] || [ "$code" = 0 ]; then
        continue
    fi
    echo "after SIG$signal the exit code is $code:"
    cat "$folder/said"
    exit 1
done
(run --out "$folder/parts" --snapshots "$folder/saves" --resume auto >"$folder/said" 2>&1) || {
    cat "$folder/said"
    exit 1
}
# A step that was made twice, after a stop that left the last good file, has the same losses.
losses() {
    sed 's/.*"iteration": \([0-9]*\),.*"dis_loss": \([^,]*\), "gen_loss": \([^,]*\),.*/\1 \2 \3/' "$1/log.jsonl" |
        sort -u | sort -s -n -k 1,1
}
losses "$folder/whole" >"$folder/expected"
losses "$folder/parts" >"$folder/seen"
cmp "$folder/expected" "$folder/seen" || {
    diff "$folder/expected" "$folder/seen" | head
    exit 1
}
echo "stopped $stops times, and the $(wc -l <"$folder/seen") losses are those of one run"
[ "$stops" -gt 0 ]
