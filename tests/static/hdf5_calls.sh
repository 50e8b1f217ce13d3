#!/bin/sh
# Each function of HDF5 that the library calls is one of those that tests/file/failing_hdf5.c lets fail:
# tests/static/hdf5_calls.sh NM OBJECT_OF_THE_TEST... -- OBJECT_OF_THE_LIBRARY...
set -eu
nm=$1
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
while [ "$1" != -- ]; do
    "$nm" "$1" | awk '$2 == "T" && $3 ~ /^H5/ { print $3 }' >>"$work/fails"
    shift
done
shift
# Types and classes are variables of HDF5 (..._g); H5check_version is called by a macro of its headers.
"$nm" -u "$@" | awk '$1 == "U" && $2 ~ /^H5/ && $2 !~ /_g$/ && $2 != "H5check_version" { print $2 }' | sort -u >"$work/called"
[ "$(wc -l <"$work/called")" -gt 50 ] || { echo "the library calls only these functions:" && cat "$work/called" && exit 1; }
sort -u "$work/fails" | comm -13 - "$work/called" >"$work/lacking"
[ ! -s "$work/lacking" ] || { echo "failing_hdf5.c lacks" $(cat "$work/lacking") && exit 1; }
