#!/bin/sh
# What is wrong ends the program within seconds, with a code that is not 0 and one line that names it, and leaves nothing
# that looks whole: EXAMPLES MPIEXEC RANKS
. "$(dirname "$0")/begin.sh"
failed=0
launch="$mpiexec -np $ranks"
[ "$ranks" != 1 ] || launch= # alone, without a launcher

# refused TEXT PROGRAM ARGUMENTS...: the program must say TEXT, in one line with its name.
refused() {
    text=$1 program=$2
    shift 2
    code=0
    timeout 60 $launch "$examples/$program" "$@" >"$work/output" 2>&1 || code=$?
    lines=$(grep -E "^(.*/)?$program: " "$work/output" | grep -cF -- "$text" || true)
    if [ "$code" = 0 ] || [ "$code" = 124 ] || [ "$lines" != 1 ] || grep -q '^epoch' "$work/output"; then
        echo "$program $*: code $code, $lines lines with '$text':"
        cat "$work/output"
        failed=1
    fi
    if [ -e "$work/out/samples.png" ]; then
        echo "$program $*: there are samples of nothing"
        failed=1
    fi
}

gan() {
    text=$1
    shift
    refused "$text" dcgan_cifar --channels 8 --batch 2 --iterations 1 --out "$work/out" "$@"
}

# Arguments.
gan "--batch 0: should be" --batch 0
gan "--epochs many: should be" --epochs many
gan "--epochs 9000000000000000000: should be" --epochs 9000000000000000000
for minutes in -1 nan 1e10 2m; do
    gan "--minutes $minutes: should be a number of 0 or more" --minutes "$minutes"
done
gan "--lr 0: should be a number above 0" --lr 0
gan "'--no-such-option'" --no-such-option
gan "unexpected: there are" unexpected
gan "no_such_name" --communicator no_such_name
refused "--model resnet: should be" mnist --model resnet
refused "--lr -1: should be" mnist --lr -1

# Places that cannot be written.
: >"$work/file"
gan "$work/file: is a file, should be a folder" --out "$work/file"
gan "$work/no/folder" --out "$work/no/folder"

# CIFAR-10: 10000 records of a label and 3072 bytes in each of five files, all 0.
cifar=$work/cifar
good() {
    rm -rf "$cifar"
    mkdir "$cifar"
    for i in 1 2 3 4 5; do
        truncate -s 30730000 "$cifar/data_batch_$i.bin"
    done
}
gan "$work/nowhere" --data "$work/nowhere"
export WEFT_DATA="$work/nowhere"
gan "WEFT_DATA is $work/nowhere"
refused "WEFT_DATA, which is $work/nowhere" mnist
unset WEFT_DATA
mkdir "$work/empty"
gan "$work/empty" --data "$work/empty"
good
rm "$cifar/data_batch_3.bin"
gan "data_batch_3.bin" --data "$cifar"
good
: >"$cifar/data_batch_2.bin"
gan "data_batch_2.bin" --data "$cifar"
good
truncate -s 30729999 "$cifar/data_batch_5.bin"
gan "data_batch_5.bin" --data "$cifar"
good
printf 'x' >>"$cifar/data_batch_1.bin"
gan "data_batch_1.bin" --data "$cifar"
good
printf '\012' | dd of="$cifar/data_batch_4.bin" bs=3073 seek=77 conv=notrunc 2>/dev/null
gan "data_batch_4.bin" --data "$cifar"

# A folder of images with one that is none.
mkdir "$work/images"
printf 'this is no picture' >"$work/images/a.png"
gan "a.png" --data "$work/images"

# IDX files.
idx=$work/idx
fashion=/usr/share/datasets/fashion-mnist
copy() {
    rm -rf "$idx"
    mkdir "$idx"
    cp "$fashion"/*.gz "$idx"
}
refused "$work/nowhere" mnist --data "$work/nowhere"
copy
: >"$idx/train-images-idx3-ubyte.gz"
refused "train-images-idx3-ubyte.gz" mnist --data "$idx"
copy
head -c 1000000 "$fashion/train-images-idx3-ubyte.gz" >"$idx/train-images-idx3-ubyte.gz"
refused "train-images-idx3-ubyte.gz" mnist --data "$idx"
copy
printf 'wrong magic number' >"$idx/train-labels-idx1-ubyte.gz"
refused "train-labels-idx1-ubyte.gz" mnist --data "$idx"
copy
{
    gzip -dc "$fashion/train-labels-idx1-ubyte.gz"
    printf 'too much'
} | gzip -1 >"$idx/train-labels-idx1-ubyte.gz"
refused "train-labels-idx1-ubyte.gz" mnist --data "$idx"
copy
cp "$fashion/t10k-labels-idx1-ubyte.gz" "$idx/train-labels-idx1-ubyte.gz"
refused "train-labels-idx1-ubyte.gz" mnist --data "$idx"
if ! timeout 15 $launch "$examples/dcgan_cifar" --help >"$work/help.txt" || [ "$(grep -c Usage "$work/help.txt")" != 1 ]; then
    echo "--help should be shown once, and the program end"
    failed=1
fi
exit $failed
