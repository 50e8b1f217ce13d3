#!/bin/sh
# dcgan_cifar gives the same losses, to rounding, under every communicator's name: EXAMPLES MPIEXEC RANKS
set -eu
examples=$1 mpiexec=$2 ranks=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

run() {
    "$mpiexec" -np "$ranks" "$examples/dcgan_cifar" --communicator "$1" --channels 16 --batch 8 --iterations 6 \
        --log-every 2 --sample-every 0 --seed 3 --out "$work/$1" >"$work/$1.txt"
}

numbers() {
    sed 's/.*"dis_loss": \([^,]*\), "gen_loss": \([^,]*\),.*/\1 \2/' "$work/$1/log.jsonl"
}

run naive
[ "$(numbers naive | wc -l)" = 3 ] || { echo "the log should have three lines"; exit 1; }
for name in flat hierarchical two_dimensional single_node auto; do
    run "$name"
    { numbers naive && numbers "$name"; } | awk -v name="$name" '
        function far(a, b) { return (a - b > 1e-4 || b - a > 1e-4) }
        NR <= 3 { a[NR] = $1; b[NR] = $2; next }
        far(a[NR - 3], $1) || far(b[NR - 3], $2) {
            printf "%s: losses %s %s, under naive %s %s\n", name, $1, $2, a[NR - 3], b[NR - 3]
            failed = 1
        }
        END { exit failed }'
done
