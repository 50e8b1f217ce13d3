#!/bin/sh
# classify prints the same losses and accuracies on one rank and on several, goes on from a checkpoint as if it had not
# ended, tests what it kept, and reads files of wf-data and folders of pictures: EXAMPLES MPIEXEC RANKS PICTURE
. "$(dirname "$0")/begin.sh"
picture=$4
. "$(dirname "$0")/small_images.sh"
small_images "$work/images" 96 50
export WEFT_DATA="$work/images"

# run RANKS OPTIONS: of each epoch its loss and accuracies
run() {
    launch=
    [ "$1" = 1 ] || launch="$mpiexec -np $1"
    $launch "$examples/classify" $2 >"$work/out" 2>"$work/err" || fail "classify $2: $(cat "$work/out" "$work/err")"
    sed -n 's/^epoch \([0-9]*  loss [0-9.]*  top-1 [0-9.]* ([0-9]* of [0-9]*)  top-5 [0-9.]*\)  .* s$/\1/p' "$work/out"
}

# same RANKS OPTIONS
same() {
    seen=$(run "$1" "$2")
    [ "$seen" = "$should" ] || fail "classify on $1 ranks, $2: $seen; should be $should"
}

# The ranks share the layers of one batch.
convnext="--model convnext-t --data fashion-mnist --width 8 --patch 4 --batch 16 --lr 0.05 --limit 48 --epochs 1"
should=$(run 1 "$convnext --log $work/log --device-statistics")
classes=$(grep -e '^class ' -e '^precision ' "$work/out")
[ "$(echo "$classes" | grep -c 'precision [01][.][0-9]*  recall [01][.][0-9]*')" = 11 ] || fail "not a line for each of ten classes: $classes"
# Each class has five test images or so: the recall of all is their mean, and near the accuracy.
echo "$classes" | awk '/^class/ { sum += $6 } /^precision/ { exit !($4 - sum / 10 < 1e-4 && sum / 10 - $4 < 1e-4 && sum > 0) }' ||
    fail "the means are not those of the classes: $classes"
grep -q '"device/cpu_percent": [0-9].*"device/resident_mib": [0-9]' "$work/log" || fail "no statistics: $(cat "$work/log")"
echo "$should" | grep -q ' of 50)' || fail "not every test image once: $should"
same "$ranks" "$convnext --parallel spatial"
[ "$(grep -e '^class ' -e '^precision ' "$work/out")" = "$classes" ] || fail "other classes on $ranks ranks: $(cat "$work/out")"
same "$ranks" "$convnext --parallel channel"

# They share the samples: each step has all of them, in whatever order.
vit="--model vit-ti --width 12 --limit 64 --epochs 2"
should=$(run 1 "$vit --batch 64")
classes=$(grep -e '^class ' -e '^precision ' "$work/out")
same "$ranks" "$vit --batch $((64 / ranks))"
[ "$(grep -e '^class ' -e '^precision ' "$work/out")" = "$classes" ] || fail "other classes on $ranks ranks: $(cat "$work/out")"
same "$ranks" "$vit --batch 64 --parallel channel"

decayed=$(run 1 "$vit --batch 64 --weight-decay 0.05 --lr 1") undecayed=$(run 1 "$vit --batch 64 --weight-decay 0 --lr 1")
[ "$(run 1 "$vit --batch 64 --lr 1")" = "$decayed" ] || fail "the decay of vit-ti is not 0.05"
[ "$undecayed" != "$decayed" ] || fail "--weight-decay 0 is not none"
[ "$(run 1 "$vit --batch 64 --optimizer radam")" != "$should" ] || fail "radam learns as adamw does"

# A run that ends after its first step, and goes on; with what large batches need.
resnet="--model resnet18 --width 4 --limit 64 --batch 16 --lr 1 --epochs 2 --optimizer rmsprop-sgd --grow 1:2 --bn-pass --workers 2"
run 1 "$resnet --best $work/best.h5" >"$work/epochs"
should=$(tail -n 1 "$work/epochs")
saves="--snapshots $work/saves --snapshot-every 1 --resume auto"
[ -z "$(run 1 "$resnet $saves --seconds 0.000001" | grep '^[12] ')" ] || fail "--seconds does not end the run"
seen=$(run 1 "$resnet $saves" | tail -n 1)
[ "$seen" = "$should" ] && grep -q 'goes on from step 1,' "$work/out" || fail "resumed: $seen; should be $should"

# The best model, the first of equals, tested by itself on more ranks.
should=$(sed 's/.*  top-1 /top-1 /' "$work/epochs" | sort -s -r -k 2,2 | head -n 1)
run "$ranks" "$resnet --weights $work/best.h5 --test-only --seed 7"
grep -qxF "$should" "$work/out" || fail "the best model is tested otherwise: $(cat "$work/out"); should be $should"

# Files and folders as ImageNet's: train and val, of which each rank reads its part.
mkdir "$work/files" "$work/folders"
"$examples/../tools/wf-data" mnist "$work/images" -o "$work/files/train-0.h5" >/dev/null
"$examples/../tools/wf-data" mnist "$work/images" --test -o "$work/files/val-0.h5" >/dev/null
for class in train/bags train/shoes val/bags val/shoes; do
    mkdir -p "$work/folders/$class"
    cp "$picture" "$work/folders/$class/a.png"
done
should=$(run 1 "$convnext --data $work/files --no-flip")
echo "$should" | grep -q ' of 50)' || fail "not every image of val-0.h5: $should"
same "$ranks" "$convnext --data $work/files --no-flip --parallel spatial"
[ "$(run 1 "$convnext --data $work/files")" != "$should" ] || fail "--no-flip changes nothing"
should=$(run 1 "$resnet --data $work/folders --size 32")
echo "$should" | grep -q ' of 2)  top-5 1.0000$' || fail "not every picture of val, or a top-5 of two classes below 1: $should"
grep -q '^resnet18 for 2 classes of images of 32 x 32' "$work/out" || fail "not the classes of folders: $(cat "$work/out")"

# refused PATTERN OPTIONS
refused() {
    code=0
    "$mpiexec" -np "$ranks" "$examples/classify" $2 >"$work/out" 2>&1 || code=$?
    [ "$code" != 0 ] && [ "$(grep -c '^classify: ' "$work/out")" = 1 ] && grep -q "^classify: $1" "$work/out" ||
        fail "classify $2: $(cat "$work/out")"
}
refused '--model alexnet: should be one of resnet18, ' "--model alexnet"
refused '--parallel spatial: vit-ti can be split by data or channel' "--model vit-ti --parallel spatial"
refused '--grow 2:2,1:4: should be at most 8 pairs EPOCH:TIMES' "--grow 2:2,1:4"
refused '--model vit-ti: images of 30 pixels: should be a multiple of the patch, 4' "--model vit-ti --size 30"
