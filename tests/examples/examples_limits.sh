#!/bin/sh
# Every number of every example has a most: one that is above it, and one above what a number can be, is refused in one
# line before anything else: EXAMPLES MPIEXEC RANKS [whole]. Programs look at their whole table of options at their start,
# and end where a number has no most, so one option of each tells; whole: all of them.
set -eu
examples=$1 whole=${4-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
options=0
refused() {
    program=$1 option=$2 value=$3
    code=0
    timeout 60 "$examples/$program" "--$option" "$value" >"$work/said" 2>&1 || code=$?
    if [ "$code" = 0 ] || [ "$code" -ge 124 ] || [ "$(grep -c "^\(.*/\)\{0,1\}$program: --$option $value: should be" "$work/said")" != 1 ]; then
        echo "$program --$option $value: code $code:"
        cat "$work/said"
        exit 1
    fi
}
for program in allreduce_bench autoencoder classify closure dcgan_cifar generate halo_scaling mnist mnist_parallel relief search_mnist segment \
    translate vgg_cifar volume winds; do
    [ -x "$examples/$program" ] || continue
    # What --help shows with N or BYTES is a number.
    for option in $("$examples/$program" --help | sed -n 's/^ *\(-., \)\{0,1\}--\([a-z-]*\)=\(N\|BYTES\|X\|RATE\)\( .*\)\{0,1\}$/\2/p'); do
        [ -z "$whole" ] || refused $program $option 2147483648
        options=$((options + 1))
    done
    refused $program $option 99999999999999999999999 # the last one; all numbers are read alike
done
# A real number may be 0 where its help says what 0 means.
zeros=0
for program in classify dcgan_cifar generate translate; do
    for option in $("$examples/$program" --help | awk '
        function tell() { if (text ~ /=[XT] / && text ~ /[; ]0: /) print name }
        /^ *(-., )?--/ { tell(); name = $1; sub(/^--/, "", name); sub(/=.*/, "", name); text = "" }
        { text = text " " $0 }
        END { tell() }'); do
        "$examples/$program" "--$option" 0 --help >"$work/said" 2>&1 || { cat "$work/said" && exit 1; }
        zeros=$((zeros + 1))
    done
done
[ $zeros -ge 9 ] || { echo "only $zeros options tell what 0 means"; exit 1; }
[ $options -ge 90 ] || { echo "only $options options were found"; exit 1; }
# Programs that measure say it as soon as they look at a table of options in which a number has none.
for program in bench_bare bench_dcgan bench_gradients bench_models bench_step; do
    [ ! -x "$examples/../tests/bench/$program" ] || "$examples/../tests/bench/$program" --help >"$work/said" 2>&1 ||
        { cat "$work/said" && exit 1; }
done
# Sizes take memory.
refused autoencoder depth 2147483647
refused autoencoder depth 1001
[ -n "$whole" ] || exit 0
refused autoencoder width 2147483647
refused autoencoder batch 65537
refused dcgan_cifar channels 2147483647
refused mnist batch 65537
refused search_mnist batch 65537
refused segment size 65537
refused segment depth 17
refused segment dims 4
refused vgg_cifar width 65537
