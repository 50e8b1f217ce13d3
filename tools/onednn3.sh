#!/bin/sh
# Unpacks oneDNN 3.2 (headers and library, from PyPI) into FOLDER, unless it is there: tools/onednn3.sh FOLDER
# A build takes it with -DDNNL_INCLUDE=FOLDER/include -DDNNL_LIBRARY=FOLDER/lib/libdnnl.so
set -eu
folder=$1
version=2023.2.0
[ ! -e "$folder/lib/libdnnl.so" ] || exit 0
parts=$(mktemp -d)
trap 'rm -rf "$parts"' EXIT
python3 -m pip download --quiet --no-deps --dest "$parts" \
    "onednn-cpu-gomp==$version" "onednn-devel-cpu-gomp==$version"
for wheel in "$parts"/*.whl; do
    python3 -m zipfile -e "$wheel" "$parts"
done
rm -rf "$folder"
mkdir -p "$folder/lib"
cp -r "$parts"/onednn_devel_cpu_gomp-*.data/data/include "$folder"
cp "$parts"/onednn_cpu_gomp-*.data/data/lib/libdnnl.so.3 "$folder/lib"
ln -s libdnnl.so.3 "$folder/lib/libdnnl.so" # last: says that the rest is there
