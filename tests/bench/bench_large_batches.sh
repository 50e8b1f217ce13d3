#!/bin/sh
# Accuracy against the global batch on Fashion-MNIST, with and without the recipes for large batches, on one rank and on four:
# tests/bench/bench_large_batches.sh BUILD. Every run sees the images equally often, and its rate is scaled with the batch.
# The columns: sgd (the rate at once), sgd-warmup, lars, and rmsprop-sgd (RMSprop that turns into SGD, statistics of batch
# normalisations from all images of training). Where a global batch is less than one image a rank, or more than there are,
# the cell is empty.
# EPOCHS (10), LIMIT and TEST_LIMIT (0: all images), MODEL (resnet18), WIDTH (16), SIZE (0: the images' own), RANKS ("1 4"),
# BATCHES ("64 256 1024 4096 8192"), RECIPES (all four): what is run. Prints a table of top-1 after the last epoch; the load and
# the processor stand below it.
set -eu
build=$1
epochs=${EPOCHS:-10} limit=${LIMIT:-0} model=${MODEL:-resnet18} width=${WIDTH:-16}
recipes=${RECIPES:-"sgd sgd-warmup lars rmsprop-sgd"}

options() {
    case $1 in
    sgd) echo --optimizer sgd --warmup 1 ;;
    sgd-warmup) echo --optimizer sgd ;;
    lars) echo --optimizer lars ;;
    rmsprop-sgd) echo --optimizer rmsprop-sgd --bn-pass ;;
    *) echo "bench_large_batches.sh: recipe $1, should be sgd, sgd-warmup, lars or rmsprop-sgd" >&2 && exit 2 ;;
    esac
}

# top1 RANKS BATCH RECIPE: of the last epoch.
top1() {
    given=$(options "$3")
    "$build/tools/wf-run" -np "$1" "$build/examples/classify" --model "$model" --width "$width" --size "${SIZE:-0}" --data fashion-mnist \
        --limit "$limit" --test-limit "${TEST_LIMIT:-0}" --epochs "$epochs" --batch $(($2 / $1)) --sync-bn $given |
        sed -n 's/.*top-1 \([0-9.]*\).*/\1/p' | tail -n 1
}

for recipe in $recipes; do
    options "$recipe" >/dev/null
done
printf '| ranks | global batch |'
printf ' %s |' $recipes
printf '\n|---|---|'
printf '%s' "$(for _ in $recipes; do printf -- '---|'; done)"
printf '\n'
for ranks in ${RANKS:-1 4}; do
    for batch in ${BATCHES:-64 256 1024 4096 8192}; do
        printf '| %s | %s |' "$ranks" "$batch"
        for recipe in $recipes; do
            cell=
            if [ "$batch" -ge "$ranks" ] && { [ "$limit" -eq 0 ] || [ "$batch" -le "$limit" ]; }; then
                cell=$(top1 "$ranks" "$batch" "$recipe")
                [ -n "$cell" ] || cell=failed
            fi
            printf ' %s |' "$cell"
        done
        printf '\n'
    done
done
printf '\n%s, load %s\n' "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)" "$(cut -d ' ' -f 1-3 /proc/loadavg)"
