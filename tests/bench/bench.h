/* What measurements share. */
#ifndef WF_TESTS_BENCH_H
#define WF_TESTS_BENCH_H

#include "core/context_author.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

static inline double bench_seconds(void)
{
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static inline int bench_ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* These sort. The lower quartile is for what others on the machine may disturb, which only adds. */
static inline double bench_median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, bench_ascending);
    return v[n / 2];
}

static inline double bench_quartile(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, bench_ascending);
    return v[n / 4];
}

/* Work that was put on the device is over: a clock is read after this. */
static inline void bench_finish(wf_ctx *ctx)
{
    WF_MUST(ctx->k->stream_finish(ctx, NULL));
}

/* An array of normal numbers in memory of the pool, in the order of its rank. */
static inline wf_array bench_array(wf_ctx *ctx, wf_dtype type, wf_shape shape)
{
    wf_array a = {.dtype = type, .order = wf_order_default(shape.rank), .shape = shape};
    const wf_random random = {
        .seed = 1, .stream = (uint64_t)wf_shape_count(shape), .global = shape, .box = wf_box_of_shape(shape)};
    WF_MUST(wf_pool_take(ctx, (size_t)wf_array_count(&a) * wf_dtype_size(type), &a.data));
    WF_MUST(ctx->k->random(ctx, WF_NORMAL, &random, 0, 1, &a));
    return a;
}

static inline void bench_array_free(wf_ctx *ctx, wf_array *a)
{
    if (a->forms)
        wf_packed_free(ctx, a->forms);
    wf_pool_give(ctx, a->data, 0);
}

static inline double bench_bytes(const wf_array *a)
{
    return (double)wf_array_count(a) * (double)wf_dtype_size(a->dtype);
}

/* Seconds of one call, whose work goes to `stream`: the best of some rounds, each of about `round` seconds; one round
 * of one call where it is 0. */
static inline double bench_best(wf_ctx *ctx, wf_stream *stream, double round, wf_status (*call)(void *), void *job)
{
    double best = 1e9;
    int calls = 1;
    for (int i = -2; i < (round > 0 ? 7 : 1); i++) {
        const double start = bench_seconds();
        for (int c = 0; c < calls; c++)
            WF_MUST(call(job));
        WF_MUST(ctx->k->stream_finish(ctx, stream));
        const double each = (bench_seconds() - start) / calls;
        if (i == -1)
            calls += (int)(round / (each + 1e-9));
        best = i >= 0 && each < best ? each : best;
    }
    return best;
}

typedef struct bench_product {
    wf_ctx *ctx;
    wf_array a, b, c;
} bench_product;

static inline wf_status bench_multiply(void *p)
{
    const bench_product *b = p;
    return b->ctx->k->matmul(b->ctx, &(wf_matmul_args){.a = &b->a, .b = &b->b, .c = &b->c});
}

/* flop a second of a large product. */
static inline double bench_peak(wf_ctx *ctx, wf_dtype dtype)
{
    enum { SIDE = 1024 };
    bench_product b = {.ctx = ctx};
    wf_array *const all[] = {&b.a, &b.b, &b.c};
    for (int i = 0; i < 3; i++)
        *all[i] = bench_array(ctx, dtype, WF_SHAPE(SIDE, SIDE));
    const double seconds = bench_best(ctx, NULL, 0.05, bench_multiply, &b);
    for (int i = 0; i < 3; i++)
        bench_array_free(ctx, all[i]);
    return 2.0 * SIDE * SIDE * SIDE / seconds;
}

/* A rank's line: images per second, and, unless ctx is NULL, the most memory in MiB that its process held and the
 * seconds that it took to prepare steps. */
static inline void bench_report(double images, double seconds, const wf_ctx *ctx)
{
    struct rusage used;
    const double rate = images / seconds;
    printf("%.*f", rate < 100 ? 3 : 1, rate);
    if (ctx && getrusage(RUSAGE_SELF, &used) == 0) {
        const wf_setup_seconds setup = wf_ctx_setup_seconds(ctx);
        printf(" %.0f %.2f", (double)used.ru_maxrss / 1024, setup.planning + setup.tuning + setup.capturing);
    }
    printf("\n");
}

#endif
