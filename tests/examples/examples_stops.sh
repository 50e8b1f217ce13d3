#!/bin/sh
# A DCGAN that was stopped after any step goes on bit for bit: its losses and all that it saves in the end are those of the
# run without a stop: tests/examples/examples_stops.sh EXAMPLES MPIEXEC RANKS WF_H5 STOPS
set -eu
examples=$1 mpiexec=$2 ranks=$3 tool=$4 stops=$5
steps=24
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export WEFT_LOG=error

run() {
    out=$1
    shift
    "$mpiexec" -np "$ranks" "$examples/dcgan_cifar" --channels 16 --batch 5 --iterations $steps --sample-every 0 \
        --log-every 1 --out "$folder/$out" --snapshots "$folder/$out/saves" --snapshot-every 1 "$@" >"$folder/said" 2>&1 || {
        cat "$folder/said"
        exit 1
    }
}

losses() {
    sed 's/, "images_per_second.*//' "$folder/$1/log.jsonl"
}

run whole --keep 1000
[ "$(losses whole | wc -l)" = $steps ]
seed=${SEED:-$(date +%s)}
echo "seed $seed"
for stop in $(awk -v seed="$seed" -v n="$stops" -v steps=$steps \
    'BEGIN { srand(seed); for (i = 0; i < n; i++) print 1 + int(rand() * (steps - 1)) }'); do
    mkdir -p "$folder/parts/saves"
    head -n "$stop" "$folder/whole/log.jsonl" >"$folder/parts/log.jsonl"
    for generation in $(seq 0 $((stop - 1))); do
        ln "$folder/whole/saves/$(printf 'ckpt-%08d.h5' "$generation")" "$folder/parts/saves"
    done
    run parts --resume auto --keep 1000
    grep -q "goes on from step $stop," "$folder/said"
    losses whole >"$folder/expected"
    losses parts >"$folder/seen"
    cmp "$folder/expected" "$folder/seen" || {
        echo "stopped after step $stop:"
        diff "$folder/expected" "$folder/seen" | head
        exit 1
    }
    last=$(printf 'saves/ckpt-%08d.h5' $((steps - 1)))
    code=0
    "$tool" diff "$folder/whole/$last" "$folder/parts/$last" >"$folder/said" || code=$?
    # Time passes as it will, and the log has as many digits of it.
    if [ $code -gt 1 ] || grep -v 'trainer/\(seconds\|log_bytes\) .*differs' "$folder/said"; then
        echo "stopped after step $stop: another end, or code $code"
        exit 1
    fi
    rm -rf "$folder/parts"
done
echo "$stops stops on $ranks ranks: $stops went on bit for bit"
