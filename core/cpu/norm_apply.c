/* Passes that write: normalisation forward and backward, bias and epilogue. An array is cut into chunks of whole wide
 * rows; noise is added to a chunk while it is in the first-level cache. */
#include "core/cpu/rows_impl.h"
#include "core/cpu/wide_impl.h"

/* Constants per element of a wide row, from the pool. */
typedef struct constants {
    size_t bytes;
    float *row[4];
} constants;

static wf_status constants_take(wf_ctx *ctx, const wide_rows *r, constants *k)
{
    void *data = NULL;
    k->bytes = (size_t)(4 * r->w) * sizeof(float);
    WF_TRY(wf_pool_take(ctx, k->bytes, &data));
    for (int i = 0; i < 4; i++)
        k->row[i] = (float *)data + i * r->w;
    return WF_OK;
}

typedef struct pass {
    const float *x, *y, *dy;
    float *out;
    const wf_epilogue *epilogue; /* NULL: none */
    wf_order order;
    float slope;
    const constants *k;
} pass;

/* n elements from `at`, which begins a wide row; n is at most its length. */
typedef void (*piece)(const pass *p, int64_t at, int64_t n);

static void run(const wf_ctx *ctx, const wide_rows *r, const pass *p, piece work)
{
    const int64_t total = r->rows * r->c, size = r->w >= 1024 ? r->w : 1024 / r->w * r->w;
    const bool finish = p->epilogue && p->epilogue->noise != 0;
#pragma omp parallel for num_threads(wf_cpu_team(ctx, total)) schedule(static)
    for (int64_t lo = 0; lo < total; lo += size) {
        const int64_t hi = wf_cpu_min(lo + size, total);
        for (int64_t at = lo; at < hi; at += r->w)
            work(p, at, wf_cpu_min(r->w, hi - at));
        if (finish)
            wf_epilogue_apply(p->epilogue, p->order, lo, hi - lo, p->out + lo, p->out + lo);
    }
}

static inline float clipped(float v)
{
    return v < 0.0F ? 0.0F : v;
}

static inline float leaked(float v, float slope)
{
    return v < 0.0F ? slope * v : v;
}

/* `value` is of element e of the piece; then the activation, unless noise comes in between. */
#define PIECE(value)                                                                                                   \
    do {                                                                                                               \
        if (p->slope == 1.0F)                                                                                          \
            _Pragma("omp simd") for (int64_t e = 0; e < n; e++) out[e] = (value);                                      \
        else if (p->slope == 0.0F)                                                                                     \
            _Pragma("omp simd") for (int64_t e = 0; e < n; e++) out[e] = clipped(value);                               \
        else                                                                                                           \
            _Pragma("omp simd") for (int64_t e = 0; e < n; e++) out[e] = leaked(value, slope);                         \
    } while (0)

static void piece_affine(const pass *p, int64_t at, int64_t n)
{
    const float *const x = p->x + at, *const mean = p->k->row[0], *const scale = p->k->row[1],
                       *const beta = p->k->row[2];
    float *const out = p->out + at;
    const float slope = p->slope;
    PIECE(__builtin_fmaf(x[e] - mean[e], scale[e], beta[e]));
}

static void piece_bias(const pass *p, int64_t at, int64_t n)
{
    const float *const x = p->x + at, *const bias = p->k->row[0];
    float *const out = p->out + at;
    const float slope = p->slope;
    PIECE(x[e] + bias[e]);
}

/* The slope that a piece applies: with noise, the activation comes after it. */
static float piece_slope(const wf_epilogue *epilogue)
{
    return epilogue && epilogue->noise != 0 ? 1.0F : wf_epilogue_slope(epilogue);
}

wf_status wf_cpu_norm_forward(wf_ctx *ctx, const wf_norm_args *args)
{
    const wf_array *const x = args->x, *const y = args->y;
    const wide_rows r = wide_rows_of(x);
    if (x->dtype != WF_F32 || y->dtype != WF_F32 || r.rows == 0 || r.c == 0)
        return wf_wide_norm_forward(ctx, args);
    constants k;
    WF_TRY(constants_take(ctx, &r, &k));
    wide_fill(&r, args->mean, 0, k.row[0]);
    wide_fill(&r, args->invstd, 1, k.row[1]);
    wide_fill(&r, args->beta, 0, k.row[2]);
    wide_fill(&r, args->gamma, 1, k.row[3]);
    for (int64_t e = 0; e < r.w; e++)
        k.row[1][e] *= k.row[3][e];
    const pass p = {.x = x->data,
                    .out = y->data,
                    .epilogue = args->epilogue,
                    .order = y->order,
                    .slope = piece_slope(args->epilogue),
                    .k = &k};
    run(ctx, &r, &p, piece_affine);
    wf_pool_give(ctx, k.row[0], k.bytes);
    return WF_OK;
}

wf_status wf_cpu_bias_epilogue(wf_ctx *ctx, const wf_array *bias, const wf_epilogue *epilogue, const wf_array *x)
{
    const wide_rows r = wide_rows_of(x);
    constants k;
    WF_TRY(constants_take(ctx, &r, &k));
    wide_fill(&r, bias, 0, k.row[0]);
    const pass p = {
        .x = x->data, .out = x->data, .epilogue = epilogue, .order = x->order, .slope = piece_slope(epilogue), .k = &k};
    run(ctx, &r, &p, piece_bias);
    wf_pool_give(ctx, k.row[0], k.bytes);
    return WF_OK;
}

static void piece_backward(const pass *p, int64_t at, int64_t n)
{
    const float *const x = p->x + at, *const dy = p->dy + at, *const y = p->y + at;
    const float *const mean = p->k->row[0], *const of_g = p->k->row[1], *const of_x = p->k->row[2];
    const float *const rest = p->k->row[3], slope = p->slope;
    float *const out = p->out + at;
    if (slope == 1.0F)
#pragma omp simd
        for (int64_t e = 0; e < n; e++)
            out[e] = __builtin_fmaf(of_g[e], dy[e], __builtin_fmaf(of_x[e], x[e] - mean[e], rest[e]));
    else
#pragma omp simd
        for (int64_t e = 0; e < n; e++) {
            const float g = y[e] <= 0.0F ? slope * dy[e] : dy[e];
            out[e] = __builtin_fmaf(of_g[e], g, __builtin_fmaf(of_x[e], x[e] - mean[e], rest[e]));
        }
}

static void piece_backward_fixed(const pass *p, int64_t at, int64_t n)
{
    const float *const dy = p->dy + at, *const y = p->y + at, *const of_g = p->k->row[1], slope = p->slope;
    float *const out = p->out + at;
#pragma omp simd
    for (int64_t e = 0; e < n; e++) {
        const float g = y[e] <= 0.0F ? slope * dy[e] : dy[e];
        out[e] = of_g[e] * g;
    }
}

/* dx = of_g g + of_x (x - mean) + rest, per channel. */
static void backward_constants(const wide_rows *r, const wf_norm_args *args, double count, const constants *k)
{
    const float *const iv = args->invstd->data, *const gv = wf_cpu_data(args->gamma);
    const float *const mv = count > 0 ? args->mean->data : NULL, *const sg = count > 0 ? args->sum_g->data : NULL;
    const float *const sgx = count > 0 ? args->sum_gx->data : NULL;
    for (int64_t e = 0; e < r->w; e++) {
        const int64_t c = e % r->c;
        const double scale = (gv ? gv[c] : 1.0) * (double)iv[c];
        k->row[0][e] = mv ? mv[c] : 0.0F;
        k->row[1][e] = (float)scale;
        k->row[2][e] = sgx ? (float)(-scale * iv[c] * sgx[c] / count) : 0.0F;
        k->row[3][e] = sg ? (float)(-scale * sg[c] / count) : 0.0F;
    }
}

wf_status wf_cpu_norm_backward(wf_ctx *ctx, const wf_norm_args *args)
{
    const wf_array *const dy = args->dy, *const dx = args->dx;
    const double count = args->count.device ? *args->count.device : args->count.value;
    const wide_rows r = wide_rows_of(dy);
    if (dy->dtype != WF_F32 || dx->dtype != WF_F32 || r.rows == 0 || r.c == 0)
        return wf_wide_norm_backward(ctx, args);
    constants k;
    WF_TRY(constants_take(ctx, &r, &k));
    backward_constants(&r, args, count, &k);
    const bool through = wf_cpu_data(args->y) && args->epilogue;
    const pass p = {.x = wf_cpu_data(args->x),
                    .y = through ? args->y->data : dy->data,
                    .dy = dy->data,
                    .out = dx->data,
                    .order = dx->order,
                    .slope = through ? wf_epilogue_slope(args->epilogue) : 1.0F,
                    .k = &k};
    run(ctx, &r, &p, count > 0 ? piece_backward : piece_backward_fixed);
    wf_pool_give(ctx, k.row[0], k.bytes);
    return WF_OK;
}
