#!/bin/sh
# Installs the library into an empty folder and builds tests/consumer against it, once with CMake's find_package and once
# with pkg-config: tests/consumer/consumer.sh CMAKE BUILD CC
set -eu
cmake=$1 build=$2 cc=$3
source=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$cmake" --install "$build" --prefix "$work/prefix" >"$work/install.log"
if grep -q '_impl\.h' "$work/install.log"; then
    echo "headers of a folder's own were installed"
    exit 1
fi
cp -r "$source" "$work/source" # so that nothing is found by being near

"$cmake" -S "$work/source" -B "$work/build" -DCMAKE_PREFIX_PATH="$work/prefix" -DCMAKE_C_COMPILER="$cc" >"$work/cmake.log"
"$cmake" --build "$work/build" >>"$work/cmake.log" || { cat "$work/cmake.log"; exit 1; }
"$work/build/consumer"

PKG_CONFIG_PATH=$(dirname "$(find "$work/prefix" -name weft.pc)")
export PKG_CONFIG_PATH LD_LIBRARY_PATH="$work/prefix/lib"
make -s -C "$work/source" CC="$cc"
"$work/source/consumer"
