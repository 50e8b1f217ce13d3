/* Filter gradients of convolutions whose kernel is one pixel: the product of dy, transposed, and x, both
 * [pixel][channel]. Called by conv.c for few channels, where oneDNN is at a half of what its arithmetic or memory
 * allows. With AVX2 that product is sgemm's, without it there is none; the rest of this comment is of AVX-512.
 *
 * Of dw a tile of 8 rows and 3 vectors of columns is summed in registers while a block of pixels passes, which stays in
 * the second-level cache for all tiles. Columns are the channels of x or of dy, whichever fill vectors better. Pixels
 * are cut into slices, whose sums are added in their order: no sum depends on the number of threads. */
#include "core/cpu/dnn_impl.h"
#include "core/cpu/narrow_impl.h"
#include "core/cpu/simd_impl.h"

#include <omp.h>

static bool is_point(const wf_conv_args *args)
{
    const wf_conv_geom *const geom = args->geom;
    bool point = geom->groups == 1 && args->w->dtype == WF_F32;
    for (int d = 0; d < geom->nd; d++)
        point = point && geom->kernel[d] == 1 && geom->stride[d] == 1 && geom->pad_lo[d] == 0 && geom->pad_hi[d] == 0;
    return point;
}

#if defined(__AVX512BW__)

enum {
    LANES = 16,
    ROWS = 8, /* of a tile at most, and its vectors */
    VECTORS = 3,
    BLOCK = 128, /* pixels of f32, or pairs of pixels of bf16 */
    SLICES = 64, /* parts of all pixels with sums of their own */
};

/* What the threads share. `thin` has the rows of the sums as channels, `wide` the columns: dy and x, or x and dy. */
typedef struct plan {
    const wf_array *thin, *wide, *dy;
    int64_t pixels, block, blocks; /* pixels of a block, and their number */
    int64_t rows, columns, outputs;
    int64_t width;                /* columns, filled up to whole vectors */
    int64_t sums;                 /* floats of a slice's sums: [rows][width], and [outputs] of the bias */
    int64_t packed;               /* pairs of bf16 of a block of a thread: [pair][channel] of thin, and of wide */
    int64_t thin_step, wide_step; /* of them, or of the arrays: to the next pair, or pixel */
    bool bias;
} plan;

static int64_t up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

static plan pointwise_plan(const wf_conv_args *args)
{
    const int64_t c = args->x->shape.dim[1], f = args->y->shape.dim[1];
    /* Multiplications of a tile's row and a vector. */
    const bool flipped = up(f, LANES) * c < up(c, LANES) * f;
    plan p = {.thin = flipped ? args->x : args->y,
              .wide = flipped ? args->y : args->x,
              .dy = args->y,
              .outputs = f,
              .bias = wf_cpu_data(args->bias) != NULL};
    p.rows = flipped ? c : f;
    p.columns = flipped ? f : c;
    p.width = up(p.columns, LANES);
    p.pixels = wf_array_count(args->x) / c;
    const bool pairs = args->x->dtype == WF_BF16;
    p.block = pairs ? 2 * BLOCK : BLOCK;
    p.blocks = (p.pixels + p.block - 1) / p.block;
    p.sums = p.rows * p.width + up(f, LANES);
    p.thin_step = pairs ? up(p.rows, 2 * LANES) : p.rows;
    p.wide_step = pairs ? up(p.columns, 2 * LANES) : p.columns;
    p.packed = pairs ? p.block / 2 * (p.thin_step + p.wide_step) : 0;
    return p;
}

/* Pixels, or pairs, that stay in the second-level cache, and where the next ones are in memory. */
typedef struct block {
    const float *thin, *wide;
    const char *thin_next, *wide_next;
    int64_t count;
} block;

/* A tile of a block: what it reads, where its first row and column are, and its sums. */
typedef struct tile {
    const float *thin, *wide;
    int64_t thin_step, wide_step, count;
    const char *thin_next, *wide_next; /* fetched meanwhile, so many bytes with each pixel */
    int64_t thin_next_step, wide_next_step;
    __mmask16 last; /* columns of the last vector */
    float *sums;
    int64_t sums_step;
} tile;

/* Selects the lanes of a vector of which `left` numbers remain. */
static inline __mmask16 mask_of(int64_t left)
{
    return (__mmask16)(left >= LANES ? 0xffff : (1U << left) - 1);
}

#define NARROW __attribute__((target("avx512bf16")))

/* sum += a b of floats; or of pairs of bf16, both products. */
WF_CPU_INLINE NARROW vec add_pairs(vec a, vec b, vec sum)
{
    return (vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
}

/* Sums are named variables, not an array: compilers keep only those in registers for certain. `rows` and `vectors` are
 * constants, so what lies beyond them goes away. */
#define EACH_ROW(DO, ...)                                                                                              \
    DO(0, __VA_ARGS__)                                                                                                 \
    DO(1, __VA_ARGS__)                                                                                                 \
    DO(2, __VA_ARGS__) DO(3, __VA_ARGS__) DO(4, __VA_ARGS__) DO(5, __VA_ARGS__) DO(6, __VA_ARGS__) DO(7, __VA_ARGS__)
#define START(r, unused)                                                                                               \
    vec p##r = {0}, q##r = {0}, s##r = {0};                                                                            \
    if ((r) < rows) {                                                                                                  \
        p##r = vec_load(sums + (r)*step);                                                                              \
        q##r = vectors > 1 ? vec_load(sums + (r)*step + LANES) : q##r;                                                 \
        s##r = vectors > 2 ? vec_load(sums + (r)*step + 2 * LANES) : s##r;                                             \
    }
#define STEP(r, ADD)                                                                                                   \
    if ((r) < rows) {                                                                                                  \
        const vec row = vec_of(thin[r]);                                                                               \
        p##r = ADD(row, a, p##r);                                                                                      \
        q##r = vectors > 1 ? ADD(row, b, q##r) : q##r;                                                                 \
        s##r = vectors > 2 ? ADD(row, c, s##r) : s##r;                                                                 \
    }
#define FINISH(r, unused)                                                                                              \
    if ((r) < rows) {                                                                                                  \
        vec_store(sums + (r)*step, p##r);                                                                              \
        if (vectors > 1)                                                                                               \
            vec_store(sums + (r)*step + LANES, q##r);                                                                  \
        if (vectors > 2)                                                                                               \
            vec_store(sums + (r)*step + 2 * LANES, s##r);                                                              \
    }
#define TILE(NAME, TARGET, ADD)                                                                                        \
    WF_CPU_INLINE TARGET void NAME(int rows, int vectors, const tile *t)                                               \
    {                                                                                                                  \
        const float *thin = t->thin, *wide = t->wide;                                                                  \
        const int64_t step = t->sums_step, thin_step = t->thin_step, wide_step = t->wide_step;                         \
        const __mmask16 last = t->last, first = vectors > 1 ? 0xffff : last, second = vectors > 2 ? 0xffff : last;     \
        float *const sums = t->sums;                                                                                   \
        const char *thin_next = t->thin_next, *wide_next = t->wide_next;                                               \
        EACH_ROW(START, 0)                                                                                             \
        for (int64_t i = t->count; i > 0; i--, thin += thin_step, wide += wide_step) {                                 \
            const vec a = (vec)_mm512_maskz_loadu_ps(first, wide);                                                     \
            const vec b = vectors > 1 ? (vec)_mm512_maskz_loadu_ps(second, wide + LANES) : a;                          \
            const vec c = vectors > 2 ? (vec)_mm512_maskz_loadu_ps(last, wide + 2 * LANES) : a;                        \
            EACH_ROW(STEP, ADD)                                                                                        \
            __builtin_prefetch(thin_next, 0, 2);                                                                       \
            __builtin_prefetch(wide_next, 0, 2);                                                                       \
            thin_next += t->thin_next_step;                                                                            \
            wide_next += t->wide_next_step;                                                                            \
        }                                                                                                              \
        EACH_ROW(FINISH, 0)                                                                                            \
    }                                                                                                                  \
    WF_CPU_INLINE TARGET void NAME##_of(int rows, int64_t vectors, const tile *t)                                      \
    {                                                                                                                  \
        if (vectors == 3)                                                                                              \
            NAME(rows, 3, t);                                                                                          \
        else if (vectors == 2)                                                                                         \
            NAME(rows, 2, t);                                                                                          \
        else                                                                                                           \
            NAME(rows, 1, t);                                                                                          \
    }                                                                                                                  \
    TARGET static void NAME##_run(int64_t rows, int64_t vectors, const tile *t)                                        \
    {                                                                                                                  \
        if (rows == 8)                                                                                                 \
            NAME##_of(8, vectors, t);                                                                                  \
        else if (rows == 4)                                                                                            \
            NAME##_of(4, vectors, t);                                                                                  \
        else if (rows == 2)                                                                                            \
            NAME##_of(2, vectors, t);                                                                                  \
        else                                                                                                           \
            NAME##_of(1, vectors, t);                                                                                  \
    }

TILE(tile_floats, , vec_fma)
TILE(tile_pairs, NARROW, add_pairs)

/* The pixels of a block in pairs: to[pair][channel] has the channel of both. */
static void pack_pairs(const uint16_t *from, int64_t channels, int64_t pixels, int64_t step, float *to)
{
    uint16_t order[2][32];
    for (int i = 0; i < 32; i++) {
        order[0][i] = (uint16_t)(i / 2 + i % 2 * 32);
        order[1][i] = (uint16_t)(order[0][i] + 16);
    }
    const __m512i low = _mm512_loadu_si512(order[0]), high = _mm512_loadu_si512(order[1]);
    for (int64_t i = 0; i < pixels; i += 2)
        for (int64_t c = 0; c < channels; c += 32) {
            const __mmask32 part = channels - c < 32 ? (__mmask32)((1U << (channels - c)) - 1) : ~(__mmask32)0;
            const uint16_t *const at = from + i * channels + c;
            const __m512i a = _mm512_maskz_loadu_epi16(part, at);
            const __m512i b = _mm512_maskz_loadu_epi16(i + 1 < pixels ? part : 0, at + channels);
            float *const pair = to + i / 2 * step + c;
            _mm512_storeu_si512(pair, _mm512_permutex2var_epi16(a, low, b));
            _mm512_storeu_si512(pair + 16, _mm512_permutex2var_epi16(a, high, b));
        }
}

/* Loads floats, or adds the two numbers of each pair of bf16. */
static inline vec numbers_of(const float *from, __mmask16 part, bool pairs)
{
    const vec v = (vec)_mm512_maskz_loadu_ps(part, from);
    return pairs ? (vec)((vec_word)v << 16) + (vec)((vec_word)v & 0xffff0000U) : v;
}

/* Adds a block of dy, by pixels or pairs, to the sums of the bias: four chains of additions, which do not wait for each
 * other. */
static void sum_bias(const plan *p, const float *dy, int64_t step, int64_t count, float *sums)
{
    const bool pairs = p->packed > 0;
    for (int64_t c = 0; c < p->outputs; c += LANES) {
        const __mmask16 part = mask_of(p->outputs - c);
        const float *from = dy + c;
        vec sum0 = vec_load(sums + c), sum1 = {0}, sum2 = {0}, sum3 = {0};
        int64_t left = count;
        for (; left >= 4; left -= 4, from += 4 * step) {
            sum0 += numbers_of(from, part, pairs);
            sum1 += numbers_of(from + step, part, pairs);
            sum2 += numbers_of(from + 2 * step, part, pairs);
            sum3 += numbers_of(from + 3 * step, part, pairs);
        }
        for (; left > 0; left--, from += step)
            sum1 += numbers_of(from, part, pairs);
        vec_store(sums + c, sum0 + sum1 + (sum2 + sum3));
    }
}

/* Rows of the next tile. */
static int64_t rows_next(int64_t left)
{
    int64_t n = ROWS;
    while (n > left)
        n /= 2;
    return n;
}

/* All tiles of a block. Meanwhile the next block is on its way to the second-level cache, a part with each tile. */
static void sum_tiles(const plan *p, const block *b, float *sums)
{
    const int64_t vectors = p->width / LANES, groups = (vectors + VECTORS - 1) / VECTORS;
    const int64_t tiles = groups * ((p->rows + ROWS - 1) / ROWS);
    tile t = {.thin_step = p->thin_step, .wide_step = p->wide_step, .count = b->count, .sums_step = p->width};
    t.thin_next = b->thin_next;
    t.wide_next = b->wide_next;
    t.thin_next_step = p->rows * (int64_t)sizeof(float) / tiles;
    t.wide_next_step = p->columns * (int64_t)sizeof(float) / tiles;
    for (int64_t g = 0; g < groups; g++) {
        const int64_t from = g * vectors / groups, to = (g + 1) * vectors / groups;
        t.wide = b->wide + from * LANES;
        t.last = mask_of(p->columns - (to - 1) * LANES);
        for (int64_t r = 0, n; r < p->rows; r += n) {
            n = rows_next(p->rows - r);
            t.thin = b->thin + r;
            t.sums = sums + r * p->width + from * LANES;
            if (p->packed > 0)
                tile_pairs_run(n, to - from, &t);
            else
                tile_floats_run(n, to - from, &t);
            t.thin_next += t.count * t.thin_next_step;
            t.wide_next += t.count * t.wide_next_step;
        }
    }
}

/* Adds the products of pixels [first, first + count). */
static void sum_block(const plan *p, int64_t first, int64_t count, float *packed, float *sums)
{
    const size_t size = wf_dtype_size(p->dy->dtype);
    const char *const thin = (const char *)p->thin->data + (size_t)(first * p->rows) * size;
    const char *const wide = (const char *)p->wide->data + (size_t)(first * p->columns) * size;
    const bool more = first + 2 * p->block <= p->pixels;
    block b = {.thin = (const float *)thin, .wide = (const float *)wide, .count = count};
    b.thin_next = more ? thin + (size_t)(p->block * p->rows) * size : thin;
    b.wide_next = more ? wide + (size_t)(p->block * p->columns) * size : wide;
    if (p->packed > 0) {
        float *const other = packed + p->block / 2 * p->thin_step;
        pack_pairs((const uint16_t *)thin, p->rows, count, p->thin_step, packed);
        pack_pairs((const uint16_t *)wide, p->columns, count, p->wide_step, other);
        b.thin = packed;
        b.wide = other;
        b.count = (count + 1) / 2;
    }
    sum_tiles(p, &b, sums);
    if (p->bias)
        sum_bias(p, p->wide == p->dy ? b.wide : b.thin, p->wide == p->dy ? p->wide_step : p->thin_step, b.count,
                 sums + p->rows * p->width);
}

static void sum_pixel_slice(const plan *p, int64_t slice, float *packed, float *sums)
{
    memset(sums, 0, (size_t)p->sums * sizeof *sums);
    for (int64_t b = slice * p->blocks / SLICES; b < (slice + 1) * p->blocks / SLICES; b++)
        sum_block(p, b * p->block, wf_cpu_min(p->block, p->pixels - b * p->block), packed, sums);
}

/* Row r of the slices' sums, added in their order, goes to dw. */
static void finish_row(const plan *p, const wf_conv_args *args, int64_t r, float *sums)
{
    const bool flipped = p->wide == p->dy;
    float *const row = sums + r * p->width, *const dw = args->w->data;
    for (int64_t s = 1; s < SLICES; s++)
        for (int64_t i = 0; i < p->columns; i++)
            row[i] += row[s * p->sums + i];
    for (int64_t i = 0; i < p->columns; i++) {
        float *const to = flipped ? dw + i * p->rows + r : dw + r * p->columns + i;
        *to = args->accumulate ? *to + row[i] : row[i];
    }
}

static void finish_bias(const plan *p, const wf_conv_args *args, const float *sums)
{
    float *const db = args->bias->data;
    for (int64_t i = 0; i < p->outputs; i++) {
        float sum = 0;
        for (int64_t s = 0; s < SLICES; s++)
            sum += sums[s * p->sums + p->rows * p->width + i];
        db[i] = args->accumulate ? db[i] + sum : sum;
    }
}

wf_status wf_pointwise_gradient(wf_ctx *ctx, const wf_conv_args *args)
{
    const plan p = pointwise_plan(args);
    const int team = ctx->threads < 1 ? 1 : ctx->threads;
    const size_t bytes = (size_t)(SLICES * p.sums + team * p.packed) * sizeof(float);
    void *room = NULL;
    WF_TRY(wf_pool_take(ctx, bytes, &room));
    float *const sums = room, *const packed = sums + SLICES * p.sums;
    const int64_t turn = wf_cpu_turn(ctx, SLICES);
    for (int64_t from = 0; from < SLICES; from += turn) {
        const int64_t to = wf_cpu_min(from + turn, SLICES);
#pragma omp parallel for num_threads(team) schedule(static)
        for (int64_t s = from; s < to; s++)
            sum_pixel_slice(&p, s, packed + omp_get_thread_num() * p.packed, sums + s * p.sums);
        wf_ctx_progress(ctx);
    }
#pragma omp parallel for num_threads(wf_cpu_team(ctx, SLICES *p.sums)) schedule(static)
    for (int64_t r = 0; r < p.rows; r++)
        finish_row(&p, args, r, sums);
    if (p.bias)
        finish_bias(&p, args, sums);
    wf_pool_give(ctx, room, bytes);
    return WF_OK;
}

/* The rule: oneDNN 2.6's time over this one's, medians of two and three runs by turns in three series, two threads of
 * an AMD EPYC with AVX-512 and bf16 but no AMX, 32 MiB of third-level cache. oneDNN falls behind where the arrays fill
 * most of that, or more:
 *
 *     f32, 25 MB and more    64 to 64: 1.2 to 1.4, 64 to 256: 1.8 to 2.0, 128 to 128: 1.4, 192 to 192: 1.4,
 *                            24 to 144: 2.2 to 2.3, 144 to 24: 1.4, 192 to 64: 1.1, 128 to 512: 1.5;
 *                            256 to 64: 1.1, 512 to 128: 1.0
 *     f32, less              64 to 64, 13 MB: 1.1; 128 to 128, 13 MB: 0.8; 96 to 576, 8 MB: 0.8
 *     bf16, 17 MB and more   144 to 24: 1.7, 192 to 32: 1.6, 192 to 64: 1.4; 256 to 64: 1.1, 24 to 144: 1.1 to 1.3,
 *                            32 to 16: 1.1 to 1.3, 64 to 256: 1.2, 64 to 128: 1.1, 128 to 512: 0.9, 3 to 64: 0.8
 *     to 10 or 1 from 64     f32: 1.6 and 1.3, bf16: 1.4 and 2.0
 *
 * It is taken where it gains a fifth without doubt, and near that. On small images oneDNN is the faster one. */
bool wf_pointwise_gradient_pays(const wf_conv_args *args)
{
    const bool f32 = args->x->dtype == WF_F32;
    const int64_t c = args->x->shape.dim[1], f = args->y->shape.dim[1], pixels = wf_array_count(args->y) / f;
    const int64_t bytes = pixels * (c + f) * (int64_t)wf_dtype_size(args->x->dtype);
    if (!is_point(args) || pixels < 1 << 15 || c > 192 || (!f32 && (c < 16 || wf_dnn_has_amx())))
        return false;
    return f < 16 || (f32 ? c * f <= 1 << 16 && bytes >= 24 << 20 : c >= 3 * f && bytes >= 16 << 20);
}

#else

#if defined(__AVX2__)
static const bool has_avx2 = true;
#else
static const bool has_avx2 = false;
#endif

/* With 16 registers a tile has half as many products for each number that it reads, so there is none of our own: with
 * AVX2 the product is sgemm's, whose sums depend on the number of threads, as those of oneDNN's convolution do. The
 * rule: the time of that of oneDNN 2.6 over sgemm's, medians of seven and nine runs by turns, two threads of an AMD
 * EPYC (Zen 3) without AVX-512, which others disturbed:
 *
 *     with a bias   96 to 384: 1.3, 384 to 96: 1.4, 192 to 768: 1.4, 768 to 192: 1.2, 384 to 1,536: 1.5, 1,536 to 384:
 *                   1.4, 768 to 3,072: 1.3, 3,072 to 768: 1.4; 64 to 64: 1.6 and 1.7, 64 to 256: 1.6, 256 to 64: 1.4,
 *                   256 to 128: 1.1; 1,024 to 512, 2,048 to 512 and 512 to 2,048: 1.5; 32 to 16: 1.8, 24 to 144: 1.4,
 *                   144 to 24: 1.2, 192 to 32: 1.7, 32 to 192: 2.1; one image, 256 to 64: 2.0, 64 to 256: 1.8
 *     without       96 to 384: 1.1 and 1.2, 384 to 96: 1.5, 768 to 192: 1.1, 64 to 64: 1.5, 64 to 256: 1.2, 256 to
 *                   64: 1.7, 256 to 128: 1.4
 *     either        128 to 512: 1.0 and 1.1, 512 to 128: 0.9 to 1.1, 512 to 256: 0.9 and 1.0, 256 to 1,024: 0.7,
 *                   1,024 to 256: 0.7 and 0.8
 *
 * Where rows are a multiple of 2 KiB, they meet in few lines of the first-level cache. sgemm copies them first, but not
 * for a small result: 1/c + 1/f from 0.0038 on. */
bool wf_pointwise_gradient_pays(const wf_conv_args *args)
{
    if (!has_avx2 || !is_point(args) || args->x->dtype != WF_F32)
        return false;
    const int64_t c = args->x->shape.dim[1], f = args->y->shape.dim[1];
    if (c < 16 || f < 16)
        return false;
    const bool copied = c * f > 264 * (c + f), meets = c % 512 == 0 || f % 512 == 0;
    return wf_array_count(args->y) / f >= 256 && (copied || !meets);
}

wf_status wf_pointwise_gradient(wf_ctx *ctx, const wf_conv_args *args)
{
    const int64_t c = args->x->shape.dim[1], f = args->y->shape.dim[1], pixels = wf_array_count(args->y) / f;
    wf_array x = *args->x, dy = *args->y, dw = *args->w;
    x.shape = WF_SHAPE(pixels, c);
    dy.shape = WF_SHAPE(pixels, f);
    dw.shape = WF_SHAPE(f, c);
    x.order = dy.order = dw.order = WF_ROW_MAJOR;
    x.forms = dy.forms = dw.forms = NULL;
    WF_TRY(wf_cpu_matmul(
        ctx, &(wf_matmul_args){.a = &dy, .a_transposed = true, .b = &x, .c = &dw, .accumulate = args->accumulate}));
    return wf_cpu_data(args->bias) ? wf_cpu_bias_backward(ctx, args->y, args->bias, args->accumulate) : WF_OK;
}

#endif
