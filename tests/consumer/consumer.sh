#!/bin/sh
# Installs the library, static or shared as BUILD has it, into an empty folder, compares the installed headers with those
# of the tree, and builds tests/consumer, once with CMake's find_package and once with pkg-config:
#     tests/consumer/consumer.sh CMAKE BUILD CC [ON with CUDA]
set -eu
cmake=$1 build=$2 cc=$3
case ${4-} in
ON) without=/none ;;
*) without='core/cuda/*' ;; # what the build has not
esac
source=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$cmake" --install "$build" --prefix "$work/prefix" >"$work/install.log"
(cd "$source/../.." && find weft.h core comm layers optim datasets fit -name '*.h' ! -name '*_impl.h' ! -path "$without" && echo weft_places.h) | sort >"$work/wanted"
(cd "$work/prefix/include/weft" && find . -type f -o -type d -empty | sed 's|^\./||' | sort) >"$work/installed"
diff "$work/wanted" "$work/installed" || { echo "above: headers that should be installed (<), and that are (>)"; exit 1; }
cp -r "$source" "$work/source" # so that nothing is found by being near

"$cmake" -S "$work/source" -B "$work/build" -DCMAKE_PREFIX_PATH="$work/prefix" -DCMAKE_C_COMPILER="$cc" >"$work/cmake.log"
"$cmake" --build "$work/build" >>"$work/cmake.log" || { cat "$work/cmake.log"; exit 1; }
"$work/build/consumer"
"$work/prefix/bin/wf-doctor" --help >"$work/doctor.log"
version=$(sed -n 's/^#define WF_VERSION_[A-Z]* //p' "$source/../../core/version.h" | paste -sd .)
"$work/prefix/bin/wf-doctor" --version | grep -q "^Weft $version  *built with " || { echo "wf-doctor does not say $version"; exit 1; }
grep -q "^Version: $version\$" "$(find "$work/prefix" -name weft.pc)" || { echo "weft.pc does not say $version"; exit 1; }

PKG_CONFIG_PATH=$(dirname "$(find "$work/prefix" -name weft.pc)")
export PKG_CONFIG_PATH LD_LIBRARY_PATH="$work/prefix/lib"
make -s -C "$work/source" CC="$cc"
"$work/source/consumer"
