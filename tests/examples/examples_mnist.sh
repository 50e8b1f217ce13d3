#!/bin/sh
# mnist on Fashion-MNIST reaches an accuracy, over the whole test set: EXAMPLES MPIEXEC RANKS MODEL EPOCHS ACCURACY [OPTIONS]
set -eu
examples=$1 mpiexec=$2 ranks=$3 model=$4 epochs=$5 accuracy=$6
shift 6

"$mpiexec" -np "$ranks" "$examples/mnist" --model "$model" --epochs "$epochs" "$@" | tee /dev/stderr |
    awk -v least="$accuracy" -v epochs="$epochs" '
        $1 == "epoch" { last = $2; reached = $6; of = $9 }
        END {
            if (last != epochs || of + 0 != 10000) { print "not every test image once, or not all epochs"; exit 1 }
            if (reached < least) { print "accuracy " reached " is below " least; exit 1 }
        }'
