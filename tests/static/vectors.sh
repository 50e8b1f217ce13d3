#!/bin/sh
# Reads the instructions of a level's kernels: no loop over elements computes with one float at a time.
#     tests/static/vectors.sh OBJDUMP REGISTERS OBJECT...    REGISTERS: xmm, ymm or zmm, what the level has
#     tests/static/vectors.sh --self OBJDUMP CC              compile loops with one fault each, and check that each is found
# Convolutions and products are left out: most of them are oneDNN's, the others are measured by their GFLOP/s.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
kernels='activation|copy|elementwise|group_norm|group_runs|labels|loss|narrow|norm_apply|norm_stats|norm_sums|optim|pool|random|resample|softmax'

read_loops() {
    registers=$1
    shift
    "$objdump" -dr --no-show-raw-insn "$@" | awk -v wide="$registers" -v allowed="$here/vectors_allowed" -f "$here/vectors.awk"
}

# case_of WORDS CODE OPTION...: this code is refused with these words, or, without words, passes
case_of() {
    words=$1
    printf '#include <math.h>\n%s\n' "$2" >"$work/made_up.c"
    shift 2
    "$cc" -O3 -std=c11 -fno-math-errno "$@" -c "$work/made_up.c" -o "$work/made_up.c.o"
    said=$(read_loops "$registers" "$work/made_up.c.o") && code=0 || code=$?
    if [ -z "$words" ]; then
        [ $code = 0 ] || { echo "found where it is not: $said" && wrong=1; }
    elif [ $code = 0 ] || ! echo "$said" | grep -q "$words"; then
        echo "not found: $words: $said" && wrong=1
    fi
}

self() {
    wrong=0
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    leak='void leak(long n, float a, const float *restrict x, float *restrict y)
        { for (long i = 0; i < n; i++) y[i] = x[i] < 0 ? a * x[i] : x[i]; }'
    sum='float sum(long n, const float *x) { float s = 0; for (long i = 0; i < n; i++) s += x[i]; return s; }'
    twice='void twice(long n, const float *x, float *y) { for (long i = 0; i < n; i++) y[i] = x[i] + x[i]; }'
    fused='void fused(long n, const float *x, float *y) { for (long i = 0; i < n; i++) y[i] = fmaf(x[i], x[i], y[i]); }'
    called='__attribute__((noinline)) static float third(float x) { return x / 3; }
        void thirds(long n, const float *x, float *y) { for (long i = 0; i < n; i++) y[i] = third(x[i]); }'
    chosen='float chosen(long n, const float *x, const int *k) { float s = 0; for (long i = 0; i < n; i++) switch (k[i]) {
        case 0: s += x[i]; break; case 1: s += 3; break; case 2: s += x[0]; break; case 3: s += x[i + 1]; break;
        case 4: s += x[i + 2]; break; case 5: s += 7; break; case 6: s += x[i + 4]; break; case 7: s += x[i + 5]; }
        return s; }'
    registers=ymm
    case_of 'thirds: an innermost loop calls third' "$called$twice" -march=x86-64-v3
    case_of 'leak: the loop .* has single floats: .*select' "$leak" -march=x86-64-v3
    case_of '' "$leak" -march=x86-64-v3 -fno-trapping-math
    case_of 'sum: the loop .* has single floats: add' "$sum$twice" -march=x86-64-v3
    case_of '' "$twice" -march=x86-64-v3
    case_of 'chosen: the loop .* has single floats: add' "$chosen$twice" -march=x86-64-v3
    registers=xmm
    case_of 'fused: the loop .* calls fmaf' "$fused" -march=x86-64
    registers=zmm
    case_of 'no loop has vectors of zmm' "$twice" -march=x86-64-v3
    exit $wrong
}

if [ "$1" = --self ]; then
    objdump=$2
    cc=$3
    self
fi
objdump=$1
registers=$2
shift 2
for object; do
    shift
    if echo "$object" | grep -qE "/core/cpu/($kernels)\.c\.o\$"; then
        set -- "$@" "$object"
    fi
done
read_loops "$registers" "$@"
