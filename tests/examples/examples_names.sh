#!/bin/sh
# dcgan_cifar gives the same losses, to rounding, under every communicator's name: EXAMPLES MPIEXEC RANKS [CLUSTER]
# Names that cannot be here end in one line. dummy runs; it sums nothing, so its losses are its own. CLUSTER is cluster.sh,
# for ranks on two virtual nodes.
. "$(dirname "$0")/begin.sh"
cluster=${4:-}
. "$(dirname "$0")/small_images.sh"
small_images "$work/images" 256 1
export WEFT_DATA="$work/images"

fail() {
    echo "$1"
    cat "$work/$name.txt"
    exit 1
}

launch() {
    if [ -n "$cluster" ]; then
        "$cluster" -n $((ranks / 2)) -t 60 "$mpiexec" "$@"
    else
        "$mpiexec" -np "$ranks" "$@"
    fi
}

run() {
    name=$1
    launch "$examples/dcgan_cifar" --communicator "$name" --channels 16 --batch 8 --iterations 6 \
        --log-every 2 --sample-every 0 --seed 3 --out "$work/$name" >"$work/$name.txt" 2>&1
}

numbers() {
    sed 's/.*"dis_loss": \([^,]*\), "gen_loss": \([^,]*\),.*/\1 \2/' "$work/$1/log.jsonl"
}

works() {
    code=0
    run "$1" || code=$?
    [ $code != 77 ] || { cat "$work/$1.txt"; exit 77; }
    [ $code = 0 ] || fail "$1: the program failed"
    [ "$(numbers "$1" | wc -l)" = 3 ] || fail "$1: the log should have three lines"
}

refused() {
    ! run "$1" || fail "$1: should not run here"
    [ "$(grep -c "communicator \"$1\".*$2" "$work/$1.txt")" = 1 ] || fail "$1: no clear line"
}

same() {
    works "$1"
    { numbers naive && numbers "$1"; } | awk -v name="$1" '
        function far(a, b) { return (a - b > 1e-4 || b - a > 1e-4) }
        NR <= 3 { a[NR] = $1; b[NR] = $2; next }
        far(a[NR - 3], $1) || far(b[NR - 3], $2) {
            printf "%s: losses %s %s, under naive %s %s\n", name, $1, $2, a[NR - 3], b[NR - 3]
            failed = 1
        }
        END { exit failed }'
}

works naive
for each in flat hierarchical two_dimensional auto; do
    same $each
done
if [ -n "$cluster" ]; then
    refused single_node nodes
else
    same single_node
fi
works dummy
refused pure_nccl NCCL
refused non_cuda_aware GPU
