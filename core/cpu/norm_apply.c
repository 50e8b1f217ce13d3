/* Passes that write: normalisation forward and backward, bias and epilogue. An array is cut into chunks of whole wide
 * rows; noise is added to a chunk while it is in the first-level cache. Statistics are made elsewhere (norm_stats.c,
 * norm_sums.c). */
#include "core/cpu/rows_impl.h"

/* Constants per element of a long row, from the pool. */
typedef struct constants {
    size_t bytes;
    float *row[5];
} constants;

static wf_status constants_take(wf_ctx *ctx, const long_rows *r, constants *k)
{
    void *data = NULL;
    k->bytes = (size_t)(5 * r->w) * sizeof(float);
    WF_TRY(wf_pool_take(ctx, k->bytes, &data));
    for (int i = 0; i < 5; i++)
        k->row[i] = (float *)data + i * r->w;
    return WF_OK;
}

typedef struct pass {
    const wf_array *x, *y, *dy, *residual; /* NULL: not read */
    const wf_array *out;
    const wf_epilogue *epilogue; /* NULL: none */
    float slope;
    const constants *k;
    bool bf16; /* all arrays are, and nothing follows: they are read and written where they are */
} pass;

/* A run of elements of one long row, as floats or of bf16, and the constants of the first. */
typedef struct run {
    const char *x, *y, *dy, *residual;
    char *out;
    float slope;
    const float *k[5];
} run;

/* n elements. A kind of piece has two: of floats, and of bf16. */
typedef void (*piece)(const run *p, int64_t n);

static inline bool noisy(const wf_epilogue *epilogue)
{
    return epilogue && epilogue->noise != 0;
}

static bool all_bf16(const pass *p)
{
    return wf_cpu_is(p->x, WF_BF16) && wf_cpu_is(p->y, WF_BF16) && wf_cpu_is(p->dy, WF_BF16) &&
           wf_cpu_is(p->residual, WF_BF16) && wf_cpu_is(p->out, WF_BF16) && !noisy(p->epilogue);
}

static char *bf16_at(const wf_array *a, int64_t at)
{
    return wf_cpu_data(a) ? (char *)a->data + at * (int64_t)sizeof(uint16_t) : NULL;
}

/* The long rows of n elements. */
static void pieces(const long_rows *r, run *part, int64_t n, int64_t size, piece work)
{
    const int64_t step = r->w * size;
    for (int64_t e = 0; e < n; e += r->w) {
        work(part, wf_cpu_min(r->w, n - e));
        part->x += part->x ? step : 0;
        part->y += part->y ? step : 0;
        part->dy += part->dy ? step : 0;
        part->residual += part->residual ? step : 0;
        part->out += step;
    }
}

/* Elements [at, at + n) of which the first is number `within` of its long row; more rows follow only if that is 0. */
static void chunk(const long_rows *r, const pass *p, int64_t at, int64_t within, int64_t n, piece work)
{
    run part = {.slope = p->slope};
    for (int i = 0; i < 5; i++)
        part.k[i] = p->k->row[i] + within;
    if (p->bf16) {
        part.x = bf16_at(p->x, at);
        part.y = bf16_at(p->y, at);
        part.dy = bf16_at(p->dy, at);
        part.residual = bf16_at(p->residual, at);
        part.out = bf16_at(p->out, at);
        pieces(r, &part, n, sizeof(uint16_t), work);
        return;
    }
    float x[WF_CPU_CHUNK], y[WF_CPU_CHUNK], dy[WF_CPU_CHUNK], residual[WF_CPU_CHUNK], made[WF_CPU_CHUNK];
    float *const out = wf_cpu_place(p->out, at, n, false, made);
    part.x = (const char *)wf_cpu_read(p->x, at, n, x);
    part.dy = (const char *)wf_cpu_read(p->dy, at, n, dy);
    part.residual = (const char *)wf_cpu_read(p->residual, at, n, residual);
    part.y = p->y == p->dy ? part.dy : (const char *)wf_cpu_read(p->y, at, n, y);
    part.out = (char *)out;
    pieces(r, &part, n, sizeof(float), work);
    if (noisy(p->epilogue))
        wf_epilogue_apply(p->epilogue, p->out->order, at, n, out, out);
    wf_cpu_put(p->out, at, n, out);
}

/* Elements of several long rows, or of one that is long enough. Threads get whole runs, so a run begins with the
 * constants of channel 0. */
static int64_t run_length(const long_rows *r)
{
    return r->w >= 1024 ? r->w : 1024 / r->w * r->w;
}

/* Elements [lo, hi), the first of which begins a long row. */
static void run_rows(const long_rows *r, const pass *p, int64_t lo, int64_t hi, piece work)
{
    for (int64_t at = lo; at < hi; at += WF_CPU_CHUNK)
        chunk(r, p, at, at - lo, wf_cpu_min(WF_CPU_CHUNK, hi - at), work);
}

static void run_all(const wf_ctx *ctx, const long_rows *r, pass *p, const piece kind[2])
{
    p->bf16 = all_bf16(p);
    const piece work = kind[p->bf16];
    const int64_t total = r->rows * r->c, size = run_length(r);
#pragma omp parallel for num_threads(wf_cpu_team(ctx, total)) schedule(static)
    for (int64_t lo = 0; lo < total; lo += size)
        run_rows(r, p, lo, wf_cpu_min(lo + size, total), work);
}

/* Runs all rows by the thread that calls, for normalisation of groups, whose samples the caller shares among threads.
 * k: five rows of constants, one after the other. */
static void run_here(const long_rows *r, pass *p, float *k, const piece kind[2])
{
    constants rows;
    for (int i = 0; i < 5; i++)
        rows.row[i] = k + i * r->w;
    p->k = &rows;
    p->bf16 = all_bf16(p);
    const int64_t total = r->rows * r->c, size = run_length(r);
    for (int64_t lo = 0; lo < total; lo += size)
        run_rows(r, p, lo, wf_cpu_min(lo + size, total), kind[p->bf16]);
}

/* Not `leaked` with a slope of 0, which would make -0 of negative numbers, and NaN of -infinity. */
static inline float clipped(float v)
{
    return v < 0.0F ? 0.0F : v;
}

static inline float leaked(float v, float slope)
{
    return v < 0.0F ? slope * v : v;
}

/* The two forms of a piece. */
#define FORMS(name)                                                                                                    \
    static void name##_f32(const run *p, int64_t n)                                                                    \
    {                                                                                                                  \
        name(false, p, n);                                                                                             \
    }                                                                                                                  \
    static void name##_bf16(const run *p, int64_t n)                                                                   \
    {                                                                                                                  \
        name(true, p, n);                                                                                              \
    }                                                                                                                  \
    static const piece name##_forms[2] = {name##_f32, name##_bf16};

/* `value` is of element e of the piece; then the activation, unless noise comes in between. */
#define PIECE(value)                                                                                                   \
    do {                                                                                                               \
        if (slope == 1.0F)                                                                                             \
            _Pragma("omp simd") for (int64_t e = 0; e < n; e++) wf_cpu_set(out, bf16, e, (value));                     \
        else if (slope == 0.0F)                                                                                        \
            _Pragma("omp simd") for (int64_t e = 0; e < n; e++) wf_cpu_set(out, bf16, e, clipped(value));              \
        else                                                                                                           \
            _Pragma("omp simd") for (int64_t e = 0; e < n; e++) wf_cpu_set(out, bf16, e, leaked((value), slope));      \
    } while (0)

WF_CPU_INLINE void affine(bool bf16, const run *p, int64_t n)
{
    const float *const mean = p->k[0], *const scale = p->k[1], *const beta = p->k[2], slope = p->slope;
    const void *const x = p->x;
    void *const out = p->out;
    PIECE(wf_fma(wf_cpu_at(x, bf16, e) - mean[e], scale[e], beta[e]));
}
FORMS(affine)

WF_CPU_INLINE void affine_add(bool bf16, const run *p, int64_t n)
{
    const float *const mean = p->k[0], *const scale = p->k[1], *const beta = p->k[2], slope = p->slope;
    const void *const x = p->x, *const residual = p->residual;
    void *const out = p->out;
    PIECE(wf_fma(wf_cpu_at(x, bf16, e) - mean[e], scale[e], beta[e]) + wf_cpu_at(residual, bf16, e));
}
FORMS(affine_add)

WF_CPU_INLINE void add_bias(bool bf16, const run *p, int64_t n)
{
    const float *const bias = p->k[0], slope = p->slope;
    const void *const x = p->x;
    void *const out = p->out;
    PIECE(wf_cpu_at(x, bf16, e) + bias[e]);
}
FORMS(add_bias)

/* The slope that a piece applies: with noise, the activation comes after it. */
static float piece_slope(const wf_epilogue *epilogue)
{
    return noisy(epilogue) ? 1.0F : wf_epilogue_slope(epilogue);
}

wf_status wf_cpu_norm_forward(wf_ctx *ctx, const wf_norm_args *args)
{
    const wf_array *const x = args->x, *const y = args->y;
    const long_rows r = long_rows_of(x);
    if (!wf_cpu_is_float(x) || !wf_cpu_is_float(y) || r.rows == 0 || r.c == 0 || !wf_cpu_is_float(args->mean))
        return REF->norm_forward(ctx, args);
    constants k;
    WF_TRY(constants_take(ctx, &r, &k));
    long_fill(&r, args->mean, 0, k.row[0]);
    long_fill(&r, args->invstd, 1, k.row[1]);
    long_fill(&r, args->beta, 0, k.row[2]);
    long_fill(&r, args->gamma, 1, k.row[3]);
    /* One product for each channel and not one for each element. */
    for (int64_t e = 0; e < r.w; e++)
        k.row[1][e] *= k.row[3][e];
    pass p = {.x = x,
              .residual = args->residual,
              .out = y,
              .epilogue = args->epilogue,
              .slope = piece_slope(args->epilogue),
              .k = &k};
    run_all(ctx, &r, &p, args->residual ? affine_add_forms : affine_forms);
    wf_pool_give(ctx, k.row[0], k.bytes);
    return WF_OK;
}

wf_status wf_cpu_bias_epilogue(wf_ctx *ctx, const wf_array *bias, const wf_epilogue *epilogue, const wf_array *x,
                               const wf_array *y)
{
    const long_rows r = long_rows_of(x);
    constants k;
    WF_TRY(constants_take(ctx, &r, &k));
    long_fill(&r, bias, 0, k.row[0]);
    pass p = {.x = x, .out = y, .epilogue = epilogue, .slope = piece_slope(epilogue), .k = &k};
    run_all(ctx, &r, &p, add_bias_forms);
    wf_pool_give(ctx, k.row[0], k.bytes);
    return WF_OK;
}

WF_CPU_INLINE void backward(bool bf16, const run *p, int64_t n)
{
    const void *const x = p->x, *const dy = p->dy, *const y = p->y;
    const float *const mean = p->k[0], *const of_g = p->k[1], *const of_x = p->k[2], *const rest = p->k[3];
    const float *const beta = p->k[4], slope = p->slope;
    void *const out = p->out;
    if (slope == 1.0F)
#pragma omp simd
        for (int64_t e = 0; e < n; e++) {
            const float g = wf_cpu_at(dy, bf16, e), d = wf_cpu_at(x, bf16, e) - mean[e];
            wf_cpu_set(out, bf16, e, wf_fma(of_g[e], g, wf_fma(of_x[e], d, rest[e])));
        }
    /* y is not there: its sign is found from x by forward's own operations, with the same roundings. */
    else if (!y)
#pragma omp simd
        for (int64_t e = 0; e < n; e++) {
            const float v = wf_cpu_at(dy, bf16, e), d = wf_cpu_at(x, bf16, e) - mean[e];
            /* The input of the activation has the sign of y; of_g is forward's scale. */
            const float g = wf_fma(d, of_g[e], beta[e]) <= 0.0F ? slope * v : v;
            wf_cpu_set(out, bf16, e, wf_fma(of_g[e], g, wf_fma(of_x[e], d, rest[e])));
        }
    else
#pragma omp simd
        for (int64_t e = 0; e < n; e++) {
            const float v = wf_cpu_at(dy, bf16, e), d = wf_cpu_at(x, bf16, e) - mean[e];
            const float g = wf_cpu_at(y, bf16, e) <= 0.0F ? slope * v : v;
            wf_cpu_set(out, bf16, e, wf_fma(of_g[e], g, wf_fma(of_x[e], d, rest[e])));
        }
}
FORMS(backward)

/* Statistics were constants (evaluation): nothing flows back through mean and variance. */
WF_CPU_INLINE void backward_fixed(bool bf16, const run *p, int64_t n)
{
    const void *const dy = p->dy, *const y = p->y;
    const float *const of_g = p->k[1], slope = p->slope;
    void *const out = p->out;
#pragma omp simd
    for (int64_t e = 0; e < n; e++) {
        const float v = wf_cpu_at(dy, bf16, e), g = wf_cpu_at(y, bf16, e) <= 0.0F ? slope * v : v;
        wf_cpu_set(out, bf16, e, of_g[e] * g);
    }
}
FORMS(backward_fixed)

/* dx = of_g g + of_x (x - mean) + rest, per channel: rows 1, 2, 3 and 0 of k. of_g is the product, rounded once, by
 * which forward multiplies. */
static void backward_constants(const long_rows *r, const wf_norm_args *args, double count, const constants *k)
{
    /* A count of 0 says that the statistics were fixed. */
    const bool batch = count > 0;
    float *const of_g = k->row[1], *const of_x = k->row[2], *const rest = k->row[3];
    long_fill(r, args->gamma, 1, of_g);
    long_fill(r, batch ? args->sum_gx : NULL, 0, of_x);
    long_fill(r, batch ? args->sum_g : NULL, 0, rest);
    long_fill(r, args->invstd, 1, k->row[0]);
    for (int64_t e = 0; e < r->w; e++) {
        /* In double and rounded once: these constants are few, and every element is multiplied by them. */
        const double scale = of_g[e] * (double)k->row[0][e];
        of_x[e] = batch ? (float)(-scale * k->row[0][e] * of_x[e] / count) : 0.0F;
        rest[e] = batch ? (float)(-scale * rest[e] / count) : 0.0F;
        of_g[e] = (float)scale;
    }
    long_fill(r, batch ? args->mean : NULL, 0, k->row[0]);
}

wf_status wf_cpu_norm_backward(wf_ctx *ctx, const wf_norm_args *args)
{
    const wf_array *const dy = args->dy, *const dx = args->dx;
    const double count = args->count.device ? *args->count.device : args->count.value;
    const long_rows r = long_rows_of(dy);
    if (!wf_cpu_is_float(dy) || !wf_cpu_is_float(dx) || r.rows == 0 || r.c == 0 || !wf_cpu_is_float(args->invstd))
        return REF->norm_backward(ctx, args);
    constants k;
    WF_TRY(constants_take(ctx, &r, &k));
    backward_constants(&r, args, count, &k);
    const bool through = wf_cpu_data(args->y) && args->epilogue;
    /* backward_fixed reads no x, so the sign must come from y there. */
    const bool of_x = through && count > 0 && wf_cpu_sign_of_x(args);
    if (of_x)
        long_fill(&r, args->beta, 0, k.row[4]);
    /* With no activation to go through any readable array stands for y, since its slope is 1. */
    pass p = {.x = args->x,
              .y = of_x      ? NULL
                   : through ? args->y
                             : dy,
              .dy = dy,
              .out = dx,
              .slope = through ? wf_epilogue_slope(args->epilogue) : 1.0F,
              .k = &k};
    run_all(ctx, &r, &p, count > 0 ? backward_forms : backward_fixed_forms);
    wf_pool_give(ctx, k.row[0], k.bytes);
    return WF_OK;
}

void wf_cpu_column_scale(const wf_array *x, const wf_array *y, float *k)
{
    const long_rows r = long_rows_of(x);
    pass p = {.x = x, .out = y, .slope = 1.0F};
    run_here(&r, &p, k, affine_forms);
}

void wf_cpu_column_backward(const wf_array *x, const wf_array *dy, const wf_array *dx, float *k)
{
    const long_rows r = long_rows_of(x);
    pass p = {.x = x, .y = dy, .dy = dy, .out = dx, .slope = 1.0F};
    run_here(&r, &p, k, backward_forms);
}
