/* Sums over rows: the sums of normalisation backward, and bias gradients. */
#include "core/cpu/rows_impl.h"

/* What is summed. A slope of 1 means that there is no activation, and y is not read. */
typedef struct sums_job {
    const wf_array *x, *y, *dy;
    const wf_array *g;         /* takes dy through the activation, may be dy itself; NULL: it is not kept */
    const float *mean;         /* wide, as the next two; NULL: sums of dy alone */
    const float *scale, *beta; /* what made the input of the activation from x; NULL: y is read */
    float slope;
    bool bf16; /* all arrays are */
} sums_job;

static inline float through(float dy, float y, float slope)
{
    return y <= 0.0F ? slope * dy : dy;
}

/* n rows of w elements, of bf16 or as floats. */
typedef struct row_block {
    int64_t n, w;
    float slope;
    const void *x, *y, *dy;
    void *kept; /* g, as the others; NULL: it is not kept */
    const float *mean, *scale, *beta;
} row_block;

/* Two rows at a time, so that the sums in memory are touched half as often. Without an activation y is not read at all:
 * a third less memory traffic. */
#define SUM_ROWS(gradient, keep)                                                                                       \
    do {                                                                                                               \
        int64_t r = 0;                                                                                                 \
        for (; r + 2 <= n; r += 2) {                                                                                   \
            const int64_t r0 = r * w, r1 = r0 + w;                                                                     \
            _Pragma("omp simd") for (int64_t e = 0; e < w; e++)                                                        \
            {                                                                                                          \
                const float g0 = gradient(r0 + e, e), g1 = gradient(r1 + e, e);                                        \
                const float x0 = wf_cpu_at(x, bf16, r0 + e), x1 = wf_cpu_at(x, bf16, r1 + e);                          \
                keep(r0 + e, g0);                                                                                      \
                keep(r1 + e, g1);                                                                                      \
                g[e] += g0 + g1;                                                                                       \
                gx[e] += wf_fma(g0, x0 - mean[e], g1 * (x1 - mean[e]));                                                \
            }                                                                                                          \
        }                                                                                                              \
        for (; r < n; r++) {                                                                                           \
            const int64_t r0 = r * w;                                                                                  \
            _Pragma("omp simd") for (int64_t e = 0; e < w; e++)                                                        \
            {                                                                                                          \
                const float g0 = gradient(r0 + e, e);                                                                  \
                keep(r0 + e, g0);                                                                                      \
                g[e] += g0;                                                                                            \
                gx[e] = wf_fma(g0, wf_cpu_at(x, bf16, r0 + e) - mean[e], gx[e]);                                       \
            }                                                                                                          \
        }                                                                                                              \
    } while (0)
#define IDENTITY(at, e) wf_cpu_at(dy, bf16, (at))
#define THROUGH(at, e)  through(wf_cpu_at(dy, bf16, (at)), wf_cpu_at(y, bf16, (at)), slope)
/* The value whose sign y has, in forward's operations. */
#define OF_X(at, e)                                                                                                    \
    through(wf_cpu_at(dy, bf16, (at)), wf_fma(wf_cpu_at(x, bf16, (at)) - mean[e], scale[e], beta[e]), slope)
#define FORGET(at, v)
#define KEEP(at, v) wf_cpu_set(kept, bf16, (at), (v))

WF_CPU_INLINE void both(bool bf16, const row_block *b, float *restrict g, float *restrict gx)
{
    const int64_t n = b->n, w = b->w;
    const void *const x = b->x, *const dy = b->dy, *const y = b->y;
    void *const kept = b->kept;
    const float *const mean = b->mean, *const scale = b->scale, *const beta = b->beta, slope = b->slope;
    if (kept)
        SUM_ROWS(THROUGH, KEEP);
    else if (slope == 1.0F)
        SUM_ROWS(IDENTITY, FORGET);
    else if (scale)
        SUM_ROWS(OF_X, FORGET);
    else
        SUM_ROWS(THROUGH, FORGET);
}

WF_CPU_INLINE void one(bool bf16, const row_block *rows, float *restrict g)
{
    const int64_t n = rows->n, w = rows->w;
    const void *const dy = rows->dy;
    int64_t r = 0;
    /* Four rows for each access to the sums, which are in memory. */
    for (; r + 4 <= n; r += 4) {
        const int64_t a = r * w, b = a + w, c = b + w, d = c + w;
#pragma omp simd
        for (int64_t e = 0; e < w; e++)
            g[e] += (wf_cpu_at(dy, bf16, a + e) + wf_cpu_at(dy, bf16, b + e)) +
                    (wf_cpu_at(dy, bf16, c + e) + wf_cpu_at(dy, bf16, d + e));
    }
    for (; r < n; r++)
#pragma omp simd
        for (int64_t e = 0; e < w; e++)
            g[e] += wf_cpu_at(dy, bf16, r * w + e);
}

/* n rows of `w` elements from element `at` on, added to g and gx. What is narrow and not bf16 goes through room. */
static void sum_block(const sums_job *job, int64_t at, int64_t n, int64_t w, float *g, float *gx, float *room)
{
    const int64_t size = n * w, next = job->bf16 ? 0 : size;
    float *const narrow_dy = room;
    row_block b = {.n = n, .w = w, .slope = job->slope, .mean = job->mean, .scale = job->scale, .beta = job->beta};
    b.dy = long_read(job->dy, at, size, job->bf16, room);
    room += wf_cpu_is_narrow(job->dy) ? next : 0;
    if (!job->mean) {
        if (job->bf16)
            one(true, &b, g);
        else
            one(false, &b, g);
        return;
    }
    b.x = long_read(job->x, at, size, job->bf16, room);
    room += wf_cpu_is_narrow(job->x) ? next : 0;
    b.y = (job->slope == 1.0F && !job->g) || job->scale ? NULL : long_read(job->y, at, size, job->bf16, room);
    if (job->bf16) {
        b.kept = job->g ? (uint16_t *)job->g->data + at : NULL;
        both(true, &b, g, gx);
        return;
    }
    /* In f16 g takes the room of dy, of which every element is read before it is written. */
    float *const kept = job->g ? wf_cpu_place(job->g, at, size, false, narrow_dy) : NULL;
    b.kept = kept;
    both(false, &b, g, gx);
    if (kept)
        wf_cpu_put(job->g, at, size, kept);
}

/* work: 2 w floats, then room. */
static void sum_segment(const sums_job *job, const long_rows *r, int64_t lo, int64_t hi, float *work, double *total)
{
    const int64_t w = r->w, step = long_block(r);
    memset(total, 0, (size_t)(2 * w) * sizeof *total);
    for (int64_t at = lo; at < hi; at += step) {
        /* Floats within a block, doubles across blocks: error grows with the block's length alone. */
        memset(work, 0, (size_t)(2 * w) * sizeof *work);
        sum_block(job, at * w, wf_cpu_min(step, hi - at), w, work, work + w, work + 2 * w);
        for (int64_t e = 0; e < 2 * w; e++)
            total[e] += work[e];
    }
}

/* The sums of dy into fold[0..c), of dy (x - mean) into fold[c..2c). */
static void sums_fold(const sums_job *job, const long_rows *r, int64_t segments, const double *part, float *work,
                      double *fold)
{
    memset(fold, 0, (size_t)(2 * r->c) * sizeof *fold);
    /* Rows of `part` alternate: sums of dy, then of dy (x - mean); m pieces of a long row are the same channels. */
    for (int64_t row = 0; row < 2 * segments; row++)
        for (int64_t j = 0; j < r->m; j++)
            for (int64_t c = 0; c < r->c; c++)
                fold[row % 2 * r->c + c] += part[row * r->w + j * r->c + c];
    memset(work, 0, (size_t)(2 * r->c) * sizeof *work);
    /* The tail is shorter than a long row, so its width is c; constants of the first c entries serve it. */
    sum_block(job, r->full * r->w, r->tail, r->c, work, work + r->c, work + 2 * r->c);
    for (int64_t c = 0; c < 2 * r->c; c++)
        fold[c] += work[c];
}

/* Workspace: mean, scale and beta in wide form, sums of each segment, the result. */
typedef struct sums_work {
    void *data;
    size_t bytes;
    int64_t segments, each; /* floats of a segment */
    double *part, *fold;
    float *mean, *scale, *beta, *work;
} sums_work;

/* Takes the workspace, whose size depends only on the arrays of the job. */
static wf_status sums_take(wf_ctx *ctx, const long_rows *r, const sums_job *job, sums_work *s)
{
    s->segments = long_segments(r);
    s->each =
        2 * r->w + long_room(r, job->x, job->bf16) + long_room(r, job->y, job->bf16) + long_room(r, job->dy, job->bf16);
    const int64_t part = 2 * s->segments * r->w;
    s->bytes = (size_t)(part + 2 * r->c) * sizeof(double) + (size_t)(s->segments * s->each + 3 * r->w) * sizeof(float);
    WF_TRY(wf_pool_take(ctx, s->bytes, &s->data));
    s->part = s->data;
    s->fold = s->part + part;
    s->mean = (float *)(s->fold + 2 * r->c);
    s->scale = s->mean + r->w;
    s->beta = s->scale + r->w;
    s->work = s->beta + r->w;
    return WF_OK;
}

static void sums_run(const wf_ctx *ctx, const sums_job *job, const long_rows *r, const sums_work *s)
{
#pragma omp parallel for num_threads(wf_cpu_team(ctx, r->rows * r->c)) schedule(static)
    for (int64_t i = 0; i < s->segments; i++) {
        int64_t lo, hi;
        wf_block(r->full, s->segments, i, &lo, &hi);
        sum_segment(job, r, lo, hi, s->work + i * s->each, s->part + 2 * i * r->w);
    }
    sums_fold(job, r, s->segments, s->part, s->work, s->fold);
}

size_t wf_cpu_column_sums_room(const wf_array *x, const wf_array *dy)
{
    const long_rows r = long_rows_of(x);
    const bool bf16 = wf_cpu_is(x, WF_BF16) && wf_cpu_is(dy, WF_BF16);
    const size_t doubles = (size_t)(2 * (r.w + r.c)) * sizeof(double);
    return doubles + (size_t)(2 * r.w + long_room(&r, x, bf16) + long_room(&r, dy, bf16)) * sizeof(float);
}

void wf_cpu_column_sums(const wf_array *x, const wf_array *dy, const float *mean, void *work, double *sum_g,
                        double *sum_gx)
{
    const long_rows r = long_rows_of(x);
    const sums_job job = {
        .x = x, .dy = dy, .mean = mean, .slope = 1.0F, .bf16 = wf_cpu_is(x, WF_BF16) && wf_cpu_is(dy, WF_BF16)};
    double *const part = work, *const fold = part + 2 * r.w;
    float *const rest = (float *)(fold + 2 * r.c);
    sum_segment(&job, &r, 0, r.full, rest, part);
    sums_fold(&job, &r, 1, part, rest, fold);
    memcpy(sum_g, fold, (size_t)r.c * sizeof *fold);
    memcpy(sum_gx, fold + r.c, (size_t)r.c * sizeof *fold);
}

wf_status wf_cpu_norm_backward_stats(wf_ctx *ctx, const wf_norm_args *args)
{
    const wf_array *const x = args->x, *const dy = args->dy, *const sum_g = args->sum_g;
    const long_rows r = long_rows_of(dy);
    if (!wf_cpu_is_float(dy) || !wf_cpu_is_float(x) || sum_g->dtype != WF_F32 || r.rows == 0 || r.c == 0)
        return REF->norm_backward_stats(ctx, args);
    sums_work s;
    const bool through_act = wf_cpu_data(args->y) && args->epilogue;
    /* If g is kept without an activation, dy stands for y: with a slope of 1 its sign does not matter. */
    sums_job job = {.x = x, .y = args->g && !through_act ? dy : args->y, .dy = dy, .g = args->g};
    job.slope = through_act ? wf_epilogue_slope(args->epilogue) : 1.0F;
    job.bf16 = wf_cpu_is(x, WF_BF16) && wf_cpu_is(dy, WF_BF16) && wf_cpu_is(args->y, WF_BF16);
    WF_TRY(sums_take(ctx, &r, &job, &s));
    /* Long rows repeat the constants, so vectors go across the borders of channels. */
    job.mean = s.mean;
    long_fill(&r, args->mean, 0, s.mean);
    if (wf_cpu_sign_of_x(args) && through_act && !args->g) {
        long_fill(&r, args->invstd, 1, s.scale);
        long_fill(&r, args->gamma, 1, s.beta);
        for (int64_t e = 0; e < r.w; e++)
            s.scale[e] *= s.beta[e];
        long_fill(&r, args->beta, 0, s.beta);
        job.scale = s.scale;
        job.beta = s.beta;
    }
    sums_run(ctx, &job, &r, &s);
    const float *const scale = args->invstd->data;
    for (int64_t c = 0; c < r.c; c++) {
        ((float *)sum_g->data)[c] = (float)s.fold[c];
        /* sum_gx is of the normalised x: multiplied once here, not for each element. */
        ((float *)args->sum_gx->data)[c] = (float)(s.fold[r.c + c] * scale[c]);
    }
    wf_pool_give(ctx, s.data, s.bytes);
    return WF_OK;
}

wf_status wf_cpu_bias_backward(wf_ctx *ctx, const wf_array *dy, const wf_array *db, bool accumulate)
{
    const long_rows r = long_rows_of(dy);
    if (!wf_cpu_is_float(dy) || !wf_cpu_is_float(db) || r.rows == 0 || r.c == 0)
        return REF->bias_backward(ctx, dy, db, accumulate);
    sums_work s;
    const sums_job job = {.dy = dy, .slope = 1.0F, .bf16 = dy->dtype == WF_BF16};
    WF_TRY(sums_take(ctx, &r, &job, &s));
    sums_run(ctx, &job, &r, &s);
    float *const out = wf_cpu_place(db, 0, r.c, accumulate, s.mean);
    for (int64_t c = 0; c < r.c; c++)
        out[c] = (float)(accumulate ? out[c] + s.fold[c] : s.fold[c]);
    wf_cpu_put(db, 0, r.c, out);
    wf_pool_give(ctx, s.data, s.bytes);
    return WF_OK;
}
