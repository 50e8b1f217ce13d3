#!/bin/sh
# Programs on a processor that qemu emulates: tests/core/processor.sh PROCESSOR CORE_PROCESSOR KNOWN_ANSWERS CPU_BF16 CPU_CONVOLUTION
set -eu
processor=$1 names=$2 answers=$3 bf16=$4 convolution=$5
command -v qemu-x86_64 >/dev/null || {
    echo "SKIP: no qemu-x86_64 (package qemu-user)"
    exit 77
}
case $processor in
Haswell) level=x86-64-v3 ;;
*) level=x86-64 ;;
esac
export OMP_NUM_THREADS=1 WEFT_DEVICE=cpu
said=$(qemu-x86_64 -cpu "$processor" "$names" 2>/dev/null | head -1)
[ "$said" = "level $level, device cpu" ] || {
    echo "on $processor it says: $said"
    exit 1
}
emulated() {
    qemu-x86_64 -cpu "$processor" "$@" || {
        echo "$1 fails on $processor: $?"
        exit 1
    }
}
emulated "$answers"
emulated "$bf16" fault_cases random_cases # products of many channels would take a minute
emulated "$convolution" minimal
