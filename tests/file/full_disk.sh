#!/bin/sh
# Model files and converted data sets on a file system in memory that gets full before, while or after HDF5 writes what
# it keeps for itself: tests/file/full_disk.sh HDF5_FAULTS WF_DATA STEP; every STEPth number of pages is free.
set -eu
size=512k
. "$(dirname "$0")/own_mounts.sh"
"$1" "$folder"
rm -f "$folder"/*

# 60 images of 28 x 28 and labels, in 60 compressed chunks, whose index HDF5 writes at the end.
{ printf '\0\0\10\3\0\0\0\74\0\0\0\34\0\0\0\34'; head -c 47040 /dev/urandom; } >"$folder/images"
{ printf '\0\0\10\1\0\0\0\74'; head -c 60 /dev/zero; } >"$folder/labels"
convert() {
    "$tool" idx "$folder/images" "$folder/labels" -o "$folder/set.h5" $1
}
tool=$2 step=$3
for options in "" "--chunk 1 --compress 1"; do
    convert "$options"
    cp "$folder/set.h5" "$folder/good"
    pages=$(($(wc -c <"$folder/good") / 4096))
    free=0
    while [ $free -lt $pages ]; do
        head -c 524288 /dev/zero >"$folder/junk" 2>/dev/null || true
        truncate -s -$((free * 4096)) "$folder/junk"
        code=0
        said=$(convert "$options" 2>&1) || code=$?
        rm "$folder/junk"
        lines=$(printf '%s\n' "$said" | wc -l)
        if [ $code != 1 ] || [ "$lines" != 1 ] || ! printf '%s' "$said" | grep -q 'No space left on device'; then
            echo "with $free pages free, wf-data $options ends with code $code and says: $said"
            exit 1
        fi
        cmp "$folder/set.h5" "$folder/good"
        [ ! -e "$folder/set.h5.unfinished" ]
        free=$((free + step))
    done
done
