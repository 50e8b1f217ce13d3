#!/bin/sh
# State dictionaries of torchvision's shapes become model files, which Weft loads and saves, and come back unchanged; with
# PyTorch, which computes the same scores. What is no state dictionary is refused in a line:
# tests/file/from_pytorch.sh MPIEXEC TORCH_MODELS NAMED_MODELS [torch]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
tool=$here/../../tools/from_pytorch.py
kind=${4-}
needs=h5py${kind:+, $kind}
. "$here/python.sh"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
ending=npz
[ -z "$kind" ] || ending=pt
fail() {
    echo "$1"
    exit 1
}
"$found" "$here/from_pytorch.py" make "$folder" $kind
for model in vgg resnet; do
    names=
    [ $model = vgg ] || names="--names $here/resnet18.names"
    "$found" "$tool" $names "$folder/$model.$ending" "$folder/$model.h5"
    "$1" -np 2 "$2" $model "$folder/$model.h5" "$folder/$model.images" "$folder/$model.scores" "$folder/$model-saved.h5"
    "$found" "$tool" $names "$folder/$model-saved.h5" "$folder/$model-back.$ending"
done
"$found" "$tool" "$folder/norms.npz" "$folder/norms.h5"
"$found" "$tool" "$folder/norms.h5" "$folder/norms-back.npz"
"$found" "$here/from_pytorch.py" check "$folder" $kind
"$found" -B "$here/from_pytorch_files.py" "$tool" "$folder"
[ -z "$kind" ] || exit 0
"$found" -B "$here/from_pytorch_named.py" "$tool" "$folder" "$3"

# What the table lacks, or has too much, is named.
sed '/^fc /d' "$here/resnet18.names" >"$folder/short"
! "$found" "$tool" --names "$folder/short" "$folder/resnet.$ending" "$folder/none.h5" 2>"$folder/said" ||
    fail "a table without fc was taken"
grep -q 'not in the table: fc$' "$folder/said" || fail "what is not in the table is not named: $(cat "$folder/said")"
! "$found" "$tool" --names "$here/resnet18.names" "$folder/vgg.$ending" "$folder/none.h5" 2>"$folder/said" ||
    fail "the table of another model was taken"
[ ! -e "$folder/none.h5" ] || fail "a file was written after an error"
[ "$("$found" "$tool" --list "$folder/vgg.$ending" | head -1)" = "features.0  # weight [8, 3, 3, 3], bias [8]" ] ||
    fail "the list does not begin with features.0"
