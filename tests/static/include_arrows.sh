#!/bin/sh
# Reads the include lines of all sources and fails on an arrow that the design does not draw.
#     tests/static/include_arrows.sh [ROOT]     check the tree at ROOT (default: this one)
#     tests/static/include_arrows.sh --self     make trees with one wrong line each, and check that each is found
set -eu
here=$(cd "$(dirname "$0")" && pwd)

arrows() {
    cd "$1"
    find core comm layers optim datasets fit examples tests weft.h -name '*.[ch]' -o -name '*.cu' |
        xargs awk -f "$here/rooms.awk" -f "$here/include_arrows.awk"
}

# One wrong line in a file of an otherwise empty tree must be reported.
wrong=0
reported() {
    tree=$(mktemp -d)
    mkdir -p "$tree/core/ref" "$tree/comm/safety" "$tree/comm/mesh" "$tree/layers/functions" "$tree/optim" "$tree/datasets" "$tree/examples" "$tree/tests"
    : >"$tree/weft.h"
    printf '%s\n' "$2" >"$tree/$1"
    if arrows "$tree" >/dev/null; then
        echo "not found: $1: $2"
        wrong=1
    fi
    rm -rf "$tree"
}

self() {
    reported core/x.c '#include "comm/comm.h"'
    reported comm/x.c '#include "layers/layer.h"'
    reported layers/x.c '#include "optim/optim.h"'
    reported layers/x.c '#include "datasets/dataset.h"'
    reported optim/x.c '#include "datasets/dataset.h"'
    reported datasets/x.c '#include "layers/layer.h"'
    reported layers/x.c '#include "../core/tensor.h"'
    reported layers/x.c '#include "tensor.h"'
    reported layers/x.c '#include <mpi.h>'
    reported core/x.c '#include <oneapi/dnnl/dnnl.h>'
    reported core/processor.c '#include <oneapi/dnnl/dnnl.h>'
    reported core/ref/x.c '#include <omp.h>'
    reported comm/x.c '#include <cudnn.h>'
    reported comm/x.h '#include <mpi.h>'
    reported datasets/x.h '#  include <zlib.h>'
    reported core/x.h '#include "core/status_author.h"'
    reported core/x_author.h '#include "core/x_impl.h"'
    reported comm/x.c '#include "core/x_impl.h"'
    reported comm/safety/x.c '#include "comm/mesh/mesh_impl.h"'
    reported layers/functions/x.c '#include "layers/parallel/parallel_impl.h"'
    reported examples/x.c '#include "core/tensor.h"'
    reported layers/x.c 'const char *home = getenv("HOME");'
    reported comm/x.c '#include <ucontext.h>'
    reported layers/x.c '#include <unheard_of.h>'
    exit $wrong
}

case ${1-} in
--self) self ;;
*) arrows "${1:-$here/../..}" ;;
esac
