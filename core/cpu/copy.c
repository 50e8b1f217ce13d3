/* Strided copies: dimensions are sorted, merged and cut into two-dimensional tiles, which the team shares. Called for
 * every pack, unpack, transpose and change of type; types without a loop of their own go to `ref`. */
#include "core/cpu/narrow_impl.h"

#define LONG_COPY ((int64_t)4 << 20) /* bytes */

typedef struct tile {
    const void *src;
    void *dst;
    int64_t n0, n1;                                     /* n0 is the inner loop */
    int64_t src_step0, src_step1, dst_step0, dst_step1; /* in elements */
} tile;

/* The first form has steps that the compiler knows, and becomes vectors. */
#define TILE(name, source, target, assign)                                                                             \
    static void name(const tile *t)                                                                                    \
    {                                                                                                                  \
        for (int64_t j = 0; j < t->n1; j++) {                                                                          \
            const source *const restrict s = (const source *)t->src + j * t->src_step1;                                \
            target *const restrict d = (target *)t->dst + j * t->dst_step1;                                            \
            if (t->src_step0 == 1 && t->dst_step0 == 1)                                                                \
                _Pragma("omp simd") for (int64_t i = 0; i < t->n0; i++) assign(d[i], s[i]);                            \
            else                                                                                                       \
                for (int64_t i = 0; i < t->n0; i++)                                                                    \
                    assign(d[i * t->dst_step0], s[i * t->src_step0]);                                                  \
        }                                                                                                              \
    }
#define PLAIN(d, s)       (d) = (s)
#define ADDED(d, s)       (d) += (s)
#define FROM_BF16(d, s)   (d) = wf_from_bf16(s)
#define TO_BF16(d, s)     (d) = wf_to_bf16(s)
#define ADD_BF16(d, s)    (d) += wf_from_bf16(s)
#define ADD_IN_BF16(d, s) (d) = wf_to_bf16(wf_from_bf16(d) + wf_from_bf16(s))
#define ADD_TO_BF16(d, s) (d) = wf_to_bf16(wf_from_bf16(d) + (s))
#define FROM_F16(d, s)    (d) = wf_from_f16(s)
#define TO_F16(d, s)      (d) = wf_to_f16(s)
#define ADD_F16(d, s)     (d) += wf_from_f16(s)
#define ADD_IN_F16(d, s)  (d) = wf_to_f16(wf_from_f16(d) + wf_from_f16(s))
#define ADD_TO_F16(d, s)  (d) = wf_to_f16(wf_from_f16(d) + (s))

TILE(tile_8, uint8_t, uint8_t, PLAIN)
TILE(tile_16, uint16_t, uint16_t, PLAIN)
TILE(tile_32, uint32_t, uint32_t, PLAIN)
TILE(tile_64, uint64_t, uint64_t, PLAIN)
TILE(tile_add_f32, float, float, ADDED)
TILE(tile_add_f64, double, double, ADDED)
TILE(tile_bf16_f32, uint16_t, float, FROM_BF16)
TILE(tile_f32_bf16, float, uint16_t, TO_BF16)
TILE(tile_add_bf16_f32, uint16_t, float, ADD_BF16)
TILE(tile_add_bf16, uint16_t, uint16_t, ADD_IN_BF16)
TILE(tile_add_f32_bf16, float, uint16_t, ADD_TO_BF16)
TILE(tile_f16_f32, uint16_t, float, FROM_F16)
TILE(tile_f32_f16, float, uint16_t, TO_F16)
TILE(tile_add_f16_f32, uint16_t, float, ADD_F16)
TILE(tile_add_f16, uint16_t, uint16_t, ADD_IN_F16)
TILE(tile_add_f32_f16, float, uint16_t, ADD_TO_F16)
TILE(tile_u8_f32, uint8_t, float, PLAIN)
TILE(tile_f32_f64, float, double, PLAIN)
TILE(tile_f64_f32, double, float, PLAIN)

/* Short runs of a length that the compiler knows: packing a few channels copies runs of 8 to 256 bytes, and a loop or a
 * memcpy of variable length takes longer than they do. */
#define RUNS(name, bytes)                                                                                              \
    static void name(const tile *t)                                                                                    \
    {                                                                                                                  \
        const int64_t size = (bytes) / t->n0;                                                                          \
        const char *restrict s = t->src;                                                                               \
        char *restrict d = t->dst;                                                                                     \
        for (int64_t j = 0; j < t->n1; j++)                                                                            \
            memcpy(d + j * t->dst_step1 * size, s + j * t->src_step1 * size, (bytes));                                 \
    }
RUNS(runs_8, 8)
RUNS(runs_16, 16)
RUNS(runs_32, 32)
RUNS(runs_64, 64)
RUNS(runs_128, 128)
RUNS(runs_256, 256)

/* Copies one tile. Tiles of a call write disjoint parts of dst, so threads need no order. */
typedef void (*tile_copy)(const tile *t);

/* NULL: no such length. */
static tile_copy runs_of(int64_t bytes)
{
    switch (bytes) {
    case 8:
        return runs_8;
    case 16:
        return runs_16;
    case 32:
        return runs_32;
    case 64:
        return runs_64;
    case 128:
        return runs_128;
    case 256:
        return runs_256;
    default:
        return NULL;
    }
}

/* By source and target. NULL: no fast form. */
static tile_copy copy_of(wf_dtype from, wf_dtype to, bool accumulate)
{
    static const tile_copy by_size[9] = {[1] = tile_8, [2] = tile_16, [4] = tile_32, [8] = tile_64};
    static const tile_copy converted[WF_DTYPES][WF_DTYPES] = {
        [WF_F32] = {[WF_BF16] = tile_f32_bf16, [WF_F16] = tile_f32_f16, [WF_F64] = tile_f32_f64},
        [WF_BF16] = {[WF_F32] = tile_bf16_f32},
        [WF_F16] = {[WF_F32] = tile_f16_f32},
        [WF_F64] = {[WF_F32] = tile_f64_f32},
        [WF_U8] = {[WF_F32] = tile_u8_f32},
    };
    static const tile_copy added[WF_DTYPES][WF_DTYPES] = {
        [WF_F32] = {[WF_F32] = tile_add_f32, [WF_BF16] = tile_add_f32_bf16, [WF_F16] = tile_add_f32_f16},
        [WF_F64] = {[WF_F64] = tile_add_f64},
        [WF_BF16] = {[WF_F32] = tile_add_bf16_f32, [WF_BF16] = tile_add_bf16},
        [WF_F16] = {[WF_F32] = tile_add_f16_f32, [WF_F16] = tile_add_f16},
    };
    /* Absent entries are NULL: such a sum of types goes to `ref`. */
    if (accumulate)
        return added[from][to];
    /* Equal types are moved as words of their size: there is no float in a plain copy, and NaN keeps its bits. */
    return from == to ? by_size[wf_dtype_size(to)] : converted[from][to];
}

/* Dimensions from the innermost of dst outwards: writes are in order, and reads jump if one side must. */
typedef struct walk {
    int rank; /* at least 2 */
    int64_t dim[WF_MAX_RANK + 2], src[WF_MAX_RANK + 2], dst[WF_MAX_RANK + 2];
} walk;

static void walk_swap(walk *w, int a, int b)
{
    const int64_t dim = w->dim[a], src = w->src[a], dst = w->dst[a];
    w->dim[a] = w->dim[b];
    w->src[a] = w->src[b];
    w->dst[a] = w->dst[b];
    w->dim[b] = dim;
    w->src[b] = src;
    w->dst[b] = dst;
}

static int64_t magnitude(int64_t v)
{
    return v < 0 ? -v : v;
}

/* By the size of the step, since a flip has negative ones. */
static void walk_sort(walk *w)
{
    for (int i = 1; i < w->rank; i++)
        for (int j = i; j > 0 && magnitude(w->dst[j]) < magnitude(w->dst[j - 1]); j--)
            walk_swap(w, j, j - 1);
}

static void walk_merge(walk *w)
{
    int rank = 0;
    for (int d = 0; d < w->rank; d++) {
        const int last = rank - 1;
        /* Two dimensions that follow each other in both arrays are one long one: most packs of a whole become one run.
         */
        if (rank > 0 && w->dst[d] == w->dst[last] * w->dim[last] && w->src[d] == w->src[last] * w->dim[last]) {
            w->dim[last] *= w->dim[d];
            continue;
        }
        w->dim[rank] = w->dim[d];
        w->src[rank] = w->src[d];
        w->dst[rank++] = w->dst[d];
    }
    /* At least two dimensions, so that a tile has no cases. */
    for (; rank < 2; rank++) {
        w->dim[rank] = 1;
        w->src[rank] = w->dst[rank] = 1;
    }
    w->rank = rank;
}

/* Dimension 1 becomes the one along which src is contiguous; if it is the longer, the inner loop goes along it. */
static void walk_transpose(walk *w)
{
    if (w->src[0] == 1)
        return;
    for (int d = 1; d < w->rank; d++)
        if (w->src[d] == 1 && w->dim[d] > 1) {
            walk_swap(w, 1, d);
            if (w->dim[0] < 16 && w->dim[1] > w->dim[0])
                walk_swap(w, 0, 1);
            return;
        }
}

static int64_t walk_make(const wf_strided *src, const wf_strided *dst, walk *w)
{
    int64_t count = 1;
    w->rank = 0;
    for (int d = 0; d < dst->rank; d++) {
        count *= dst->dim[d];
        /* A dimension of one element has no step that matters. */
        if (dst->dim[d] == 1)
            continue;
        w->dim[w->rank] = dst->dim[d];
        w->src[w->rank] = src->stride[d];
        w->dst[w->rank++] = dst->stride[d];
    }
    walk_sort(w);
    walk_merge(w);
    walk_transpose(w);
    return count;
}

/* Sizes of tiles: long runs where both sides are contiguous, squares where they are transposed. */
typedef struct tiling {
    int64_t size0, size1, count0, count1, count;
} tiling;

static tiling tiling_of(const walk *w)
{
    tiling t;
    const bool straight = w->src[0] == 1 && w->dst[0] == 1;
    /* 64 by 64 elements of both sides fit the first-level cache, so each line that is touched across the grain is used
     * whole. */
    t.size0 = wf_cpu_min(w->dim[0], straight ? 16384 : 64);
    t.size1 = wf_cpu_min(w->dim[1], straight ? 1 + 16384 / t.size0 : 64);
    t.count0 = (w->dim[0] + t.size0 - 1) / t.size0;
    t.count1 = (w->dim[1] + t.size1 - 1) / t.size1;
    t.count = t.count0 * t.count1;
    for (int d = 2; d < w->rank; d++)
        t.count *= w->dim[d];
    return t;
}

static tile tile_at(const walk *w, const tiling *tiles, int64_t at, const wf_strided *src, const wf_strided *dst)
{
    const int64_t first0 = at % tiles->count0 * tiles->size0,
                  first1 = at / tiles->count0 % tiles->count1 * tiles->size1;
    int64_t from = first0 * w->src[0] + first1 * w->src[1], to = first0 * w->dst[0] + first1 * w->dst[1];
    at /= tiles->count0 * tiles->count1;
    for (int d = 2; d < w->rank; d++) {
        from += at % w->dim[d] * w->src[d];
        to += at % w->dim[d] * w->dst[d];
        at /= w->dim[d];
    }
    /* Offsets are in elements, and each side has its own size of element. */
    return (tile){.src = (const char *)src->data + from * (int64_t)wf_dtype_size(src->dtype),
                  .dst = (char *)dst->data + to * (int64_t)wf_dtype_size(dst->dtype),
                  .n0 = wf_cpu_min(tiles->size0, w->dim[0] - first0),
                  .n1 = wf_cpu_min(tiles->size1, w->dim[1] - first1),
                  .src_step0 = w->src[0],
                  .src_step1 = w->src[1],
                  .dst_step0 = w->dst[0],
                  .dst_step1 = w->dst[1]};
}

/* Memory that no cache holds, without a gap: the C library passes the caches by, which tiles of it would fill in vain.
 */
static void copy_long(wf_ctx *ctx, const void *src, void *dst, int64_t bytes)
{
    const int team = wf_cpu_team(ctx, bytes / 8);
#pragma omp parallel for num_threads(team) schedule(static)
    for (int part = 0; part < team; part++) {
        /* Cut at 64 bytes: two threads do not write the same cache line, if dst begins with one. */
        const int64_t from = bytes / 64 * part / team * 64,
                      to = part + 1 < team ? bytes / 64 * (part + 1) / team * 64 : bytes;
        memcpy((char *)dst + from, (const char *)src + from, (size_t)(to - from));
    }
}

wf_status wf_cpu_copy(wf_ctx *ctx, const wf_strided *src, const wf_strided *dst, bool accumulate)
{
    tile_copy copy = copy_of(src->dtype, dst->dtype, accumulate);
    if (!copy)
        return REF->copy(ctx, src, dst, accumulate);
    walk w;
    const int64_t count = walk_make(src, dst, &w);
    if (count == 0)
        return WF_OK;
    const int64_t bytes = count * (int64_t)wf_dtype_size(dst->dtype);
    /* One run in both arrays. */
    if (src->dtype == dst->dtype && !accumulate && w.src[0] == 1 && w.dst[0] == 1 && w.dim[0] == count &&
        bytes >= LONG_COPY) {
        copy_long(ctx, src->data, dst->data, bytes);
        return WF_OK;
    }
    if (src->dtype == dst->dtype && !accumulate && w.src[0] == 1 && w.dst[0] == 1) {
        /* The length of the inner dimension is known here, not in the tile's loop. */
        const tile_copy runs = runs_of(w.dim[0] * (int64_t)wf_dtype_size(dst->dtype));
        copy = runs ? runs : copy;
    }
    const tiling tiles = tiling_of(&w);
#pragma omp parallel for num_threads(wf_cpu_team(ctx, count)) schedule(static)
    for (int64_t at = 0; at < tiles.count; at++) {
        const tile t = tile_at(&w, &tiles, at, src, dst);
        copy(&t);
    }
    return WF_OK;
}
