#!/bin/sh
# Compiles every user header alone, as C11 and as C++17: tests/static/headers_alone.sh CC CXX BUILD
set -eu
cd "$(dirname "$0")/../.."
cc=$1 cxx=$2
flags="-Wall -Wextra -Wpedantic -Werror -fsyntax-only -I. -I$3/include"
failed=0

for header in weft.h $(find core comm layers optim datasets fit -name '*.h' ! -name '*_author.h' ! -name '*_impl.h' | sort); do
    echo "#include \"$header\"" | $cc -std=c11 $flags -x c - || { echo "not alone in C11: $header"; failed=1; }
    echo "#include \"$header\"" | $cxx -std=c++17 $flags -x c++ - || { echo "not alone in C++17: $header"; failed=1; }
done
# A set of axes is written alike in both languages.
set_of_axes='#include "weft.h"
wf_comm *both(const wf_mesh *m) { return wf_mesh_comm(m, WF_AXIS_BIT(WF_AXIS_HEIGHT) | WF_AXIS_BIT(WF_AXIS_WIDTH)); }'
echo "$set_of_axes" | $cc -std=c11 $flags -x c - || { echo "no set of axes in C11"; failed=1; }
echo "$set_of_axes" | $cxx -std=c++17 $flags -x c++ - || { echo "no set of axes in C++17"; failed=1; }
exit $failed
