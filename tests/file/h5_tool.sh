#!/bin/sh
# wf-h5 on checkpoints and model files, whole and damaged: tests/file/h5_tool.sh MPIEXEC WF_H5 CHECKPOINT_KILL MODEL_FILES H5_PAIRS
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export WEFT_LOG=error
tool=$2
# expect CODE TEXT COMMAND...: the exit code, and a line that is printed.
expect() {
    code=0
    expected=$1 text=$2
    shift 2
    "$@" >"$folder/out" 2>&1 || code=$?
    if [ "$code" = "$expected" ] && { [ -z "$text" ] || grep -q -e "$text" "$folder/out"; }; then
        return
    fi
    echo "exit code $code, expected $expected and a line \"$text\": $*"
    cat "$folder/out"
    exit 1
}
"$1" -np 1 "$3" "$folder" 300000 0 >/dev/null 2>&1 || true
"$1" -np 2 "$4" --save "$folder/net.h5" >/dev/null
"$5" "$folder"
set -- "$folder"/ckpt-*.h5
[ $# -ge 2 ]
expect 0 "model/fc0/W  *f32  *.601,500." "$tool" ls "$1"
expect 0 "generation .*by 1 rank" "$tool" show "$1"
expect 0 "least .*norm" "$tool" show "$1" model/fc0/W
expect 2 "not in it" "$tool" show "$1" model/none
expect 0 "blocks are whole" "$tool" verify "$1"
expect 0 "" "$tool" diff "$1" "$1"
expect 1 "model/fc0/W .*differs: norm" "$tool" diff "$1" "$2"
expect 1 "first file alone" "$tool" diff "$folder/net.h5" "$1"
expect 0 "there are no sums" "$tool" verify "$folder/net.h5"
expect 2 "usage" "$tool" nonsense
expect 2 "cannot read" "$tool" ls "$folder/nothing.h5"

# Numbers that a double, or the square of one, does not hold.
expect 1 "x .*differs: .*1 of 1 elements" "$tool" diff "$folder/integer0.h5" "$folder/integer1.h5"
expect 1 "x .*differs: norm 2e-200" "$tool" diff "$folder/tiny0.h5" "$folder/tiny1.h5"
expect 1 "x .*differs" "$tool" diff "$folder/nan0.h5" "$folder/nan1.h5"
expect 0 "" "$tool" diff "$folder/nan0.h5" "$folder/nan0.h5"
expect 0 "" "$tool" diff "$folder/zero0.h5" "$folder/zero1.h5"

# Code 1: damaged. Code 2: cannot be read, or is none.
head -c -1 "$2" >"$folder/short.h5"
expect 1 "torn" "$tool" verify "$folder/short.h5"
head -c 5000 "$2" >"$folder/torn.h5"
expect 1 "truncated" "$tool" verify "$folder/torn.h5"
expect 2 "truncated" "$tool" ls "$folder/torn.h5"
expect 2 "truncated" "$tool" diff "$folder/torn.h5" "$1"
echo "no HDF5" >"$folder/text.h5"
expect 2 "as an HDF5 file" "$tool" verify "$folder/text.h5"
expect 2 "No such file" "$tool" verify "$folder/nothing.h5"
expect 2 "is a folder" "$tool" verify "$folder"
mkfifo "$folder/fifo"
for command in verify ls show; do
    expect 2 "not a regular file" timeout 20 "$tool" $command "$folder/fifo"
done
expect 2 "not a regular file" timeout 20 "$tool" diff "$1" "$folder/fifo"
other=x
! tail -c +700002 "$1" | head -c 1 | grep -aq x || other=y # the byte may be an x
printf $other | dd of="$1" bs=1 seek=700001 conv=notrunc 2>/dev/null
expect 1 "are damaged" "$tool" verify "$1"
