/* Statistics of normalisation. Within a block of rows: a sum, then the squares about its mean (corrected by the sum of
 * deviations); blocks are merged by counts in double. */
#include "core/cpu/rows_impl.h"

/* Four rows at a time, so that the sums in memory are touched a quarter as often. The order of additions is part of the
 * result, and the same at every width of vectors. */
WF_CPU_INLINE void add_rows(bool bf16, int64_t n, int64_t w, const void *restrict x, float *restrict sum)
{
    memset(sum, 0, (size_t)w * sizeof *sum);
    int64_t r = 0;
    for (; r + 4 <= n; r += 4) {
        const int64_t a = r * w, b = a + w, c = b + w, d = c + w;
#pragma omp simd
        for (int64_t e = 0; e < w; e++)
            sum[e] += (wf_cpu_at(x, bf16, a + e) + wf_cpu_at(x, bf16, b + e)) +
                      (wf_cpu_at(x, bf16, c + e) + wf_cpu_at(x, bf16, d + e));
    }
    for (; r < n; r++)
#pragma omp simd
        for (int64_t e = 0; e < w; e++)
            sum[e] += wf_cpu_at(x, bf16, r * w + e);
}

WF_CPU_INLINE void add_deviations(bool bf16, int64_t n, int64_t w, const void *restrict x, const float *restrict mean,
                                  float *restrict sum, float *restrict squares)
{
    memset(sum, 0, (size_t)w * sizeof *sum);
    memset(squares, 0, (size_t)w * sizeof *squares);
    int64_t r = 0;
    for (; r + 4 <= n; r += 4) {
        const int64_t p = r * w, q = p + w, s = q + w, t = s + w;
#pragma omp simd
        for (int64_t e = 0; e < w; e++) {
            const float m = mean[e], a = wf_cpu_at(x, bf16, p + e) - m, b = wf_cpu_at(x, bf16, q + e) - m;
            const float c = wf_cpu_at(x, bf16, s + e) - m, d = wf_cpu_at(x, bf16, t + e) - m;
            sum[e] += (a + b) + (c + d);
            squares[e] += wf_fma(a, a, b * b) + wf_fma(c, c, d * d);
        }
    }
    for (; r < n; r++)
#pragma omp simd
        for (int64_t e = 0; e < w; e++) {
            const float a = wf_cpu_at(x, bf16, r * w + e) - mean[e];
            sum[e] += a;
            squares[e] = wf_fma(a, a, squares[e]);
        }
}

/* The mean of a block of n rows, and sums of the deviations from it. */
WF_CPU_INLINE void block_stats(bool bf16, int64_t n, int64_t w, const void *x, float *mean, float *sum, float *squares)
{
    const float scale = 1.0F / (float)n;
    add_rows(bf16, n, w, x, mean);
    for (int64_t e = 0; e < w; e++)
        mean[e] *= scale;
    add_deviations(bf16, n, w, x, mean, sum, squares);
}

/* Mean and squares of `more` numbers joined to those of `count` (Chan, Golub and LeVeque 1983); both counts are the
 * same for all of w. */
static void merge(double count, double more, int64_t w, const double *restrict mean, const double *restrict m2,
                  double *restrict total_mean, double *restrict total_m2)
{
    const double share = more / (count + more), weight = count * share;
#pragma omp simd
    for (int64_t e = 0; e < w; e++) {
        const double d = mean[e] - total_mean[e];
        total_mean[e] += d * share;
        total_m2[e] += m2[e] + d * d * weight;
    }
}

/* work: 3 w floats, and room for a block where x is narrow. */
static void segment_stats(const long_rows *r, const wf_array *x, int64_t lo, int64_t hi, float *work, double *mean,
                          double *m2)
{
    const int64_t w = r->w, step = long_block(r);
    const bool bf16 = x->dtype == WF_BF16;
    float *const about = work, *const sum = work + w, *const squares = sum + w;
    memset(mean, 0, (size_t)w * sizeof *mean);
    memset(m2, 0, (size_t)w * sizeof *m2);
    for (int64_t at = lo; at < hi; at += step) {
        const int64_t n = wf_cpu_min(step, hi - at);
        /* Merged with the blocks before it: count is theirs. For the first block it is 0, and the terms of d vanish. */
        const double count = (double)(at - lo), inverse = 1 / (double)n, share = (double)n / (count + (double)n);
        const void *const block = long_read(x, at * w, n * w, bf16, squares + w);
        if (bf16)
            block_stats(true, n, w, block, about, sum, squares);
        else
            block_stats(false, n, w, block, about, sum, squares);
#pragma omp simd
        for (int64_t e = 0; e < w; e++) {
            /* about[] is the block's mean in float; `off` is what rounding left of it, measured by the second pass
             * (Chan, Golub and LeVeque's correction). */
            const double off = sum[e] * inverse, d = about[e] + off - mean[e];
            mean[e] += d * share;
            m2[e] += squares[e] - off * sum[e] + d * d * count * share;
        }
    }
}

/* All segments, then the m parts of each long row, then the tail row by row, into c doubles each. room: c floats. */
static void stats_fold(const long_rows *r, const wf_array *x, float *room, int64_t segments, const double *part,
                       double *mean, double *m2)
{
    double count = 0;
    memset(mean, 0, (size_t)r->c * sizeof *mean);
    memset(m2, 0, (size_t)r->c * sizeof *m2);
    for (int64_t s = 0; s < segments; s++) {
        int64_t lo, hi;
        wf_block(r->full, segments, s, &lo, &hi);
        for (int64_t j = 0; j < r->m && hi > lo; j++) {
            const double *const from = part + 2 * s * r->w + j * r->c;
            /* Segments are merged in order, and their bounds depend on the shape alone: the number of threads does not
             * show. */
            merge(count, (double)(hi - lo), r->c, from, from + r->w, mean, m2);
            count += (double)(hi - lo);
        }
    }
    /* Fewer rows than make a long one: each joins as a group of one. */
    for (int64_t row = 0; row < r->tail; row++) {
        const float *const from = wf_cpu_read(x, (r->full * r->m + row) * r->c, r->c, room);
        const double share = 1 / (count + 1), weight = count * share;
        for (int64_t c = 0; c < r->c; c++) {
            const double d = from[c] - mean[c];
            mean[c] += d * share;
            m2[c] += d * d * weight;
        }
        count++;
    }
}

/* work: `each` floats for a segment. */
static void stats_segments(const wf_ctx *ctx, const long_rows *r, const wf_array *x, int64_t segments, double *part,
                           float *work, int64_t each)
{
#pragma omp parallel for num_threads(wf_cpu_team(ctx, r->full * r->w)) schedule(static)
    for (int64_t s = 0; s < segments; s++) {
        int64_t lo, hi;
        wf_block(r->full, segments, s, &lo, &hi);
        segment_stats(r, x, lo, hi, work + each * s, part + 2 * s * r->w, part + (2 * s + 1) * r->w);
    }
}

size_t wf_cpu_column_moments_room(const wf_array *x)
{
    const long_rows r = long_rows_of(x);
    const size_t doubles = (size_t)(2 * r.w) * sizeof(double);
    return doubles + (size_t)(3 * r.w + r.c + long_room(&r, x, x->dtype == WF_BF16)) * sizeof(float);
}

void wf_cpu_column_moments(const wf_array *x, void *work, double *mean, double *m2)
{
    const long_rows r = long_rows_of(x);
    double *const part = work;
    float *const rest = (float *)(part + 2 * r.w);
    segment_stats(&r, x, 0, r.full, rest, part, part + r.w);
    stats_fold(&r, x, rest, 1, part, mean, m2);
}

wf_status wf_cpu_norm_stats(wf_ctx *ctx, const wf_norm_args *args)
{
    const wf_array *const x = args->x, *const mean = args->mean;
    const long_rows r = long_rows_of(x);
    if (!wf_cpu_is_float(x) || mean->dtype != WF_F32 || r.rows == 0 || r.c == 0)
        return REF->norm_stats(ctx, args);
    const int64_t segments = long_segments(&r), each = 3 * r.w + long_room(&r, x, x->dtype == WF_BF16);
    const size_t doubles = (size_t)(2 * segments * r.w + 2 * r.c), floats = (size_t)(segments * each);
    const size_t bytes = doubles * sizeof(double) + floats * sizeof(float);
    void *work = NULL;
    WF_TRY(wf_pool_take(ctx, bytes, &work));
    double *const part = work, *const fold = part + 2 * segments * r.w;
    float *const rest = (float *)(fold + 2 * r.c);
    stats_segments(ctx, &r, x, segments, part, rest, each);
    stats_fold(&r, x, rest, segments, part, fold, fold + r.c);
    /* Means are merged in double and rounded here, once. */
    for (int64_t c = 0; c < r.c; c++) {
        ((float *)mean->data)[c] = (float)fold[c];
        ((float *)args->m2->data)[c] = (float)fold[r.c + c];
    }
    wf_pool_give(ctx, work, bytes);
    /* Without distributed ranks nothing remains to be joined, and the inverse is made at once. */
    return args->invstd ? REF->norm_finish(ctx, args) : WF_OK;
}
