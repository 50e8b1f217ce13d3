/* The three directions of a convolution, for benches: core kernels alone, no layer. */
#ifndef WF_TESTS_BENCH_CONV_H
#define WF_TESTS_BENCH_CONV_H

#include "tests/bench/bench.h"

typedef struct bench_conv {
    wf_ctx *ctx;
    wf_conv_geom geom;
    wf_array x, w, b, y, dw, db; /* gradients of parameters are f32 at least, as in layers */
    wf_packed_form *forms;       /* of the filter */
    bool no_bias;                /* false after bench_conv_open */
} bench_conv;

/* A square kernel over square images; h: pixels of a side. */
typedef struct bench_conv_shape {
    int64_t n, c, f, h, k, s, pad, groups;
} bench_conv_shape;

/* Fills *j, which stays where it is until bench_conv_close: the filter's packed forms are kept in it. */
static inline void bench_conv_open(bench_conv *j, wf_ctx *ctx, wf_dtype dtype, bench_conv_shape t)
{
    const int64_t o = (t.h + 2 * t.pad - t.k) / t.s + 1;
    const wf_dtype wide = dtype == WF_F64 ? WF_F64 : WF_F32;
    *j = (bench_conv){.ctx = ctx,
                      .geom = {.nd = 2,
                               .groups = t.groups,
                               .kernel = {t.k, t.k},
                               .stride = {t.s, t.s},
                               .dilation = {1, 1},
                               .pad_lo = {t.pad, t.pad},
                               .pad_hi = {t.pad, t.pad}}};
    j->x = bench_array(ctx, dtype, WF_SHAPE(t.n, t.c, t.h, t.h));
    j->w = bench_array(ctx, dtype, WF_SHAPE(t.f, t.c / t.groups, t.k, t.k));
    j->b = bench_array(ctx, dtype, WF_SHAPE(t.f));
    j->y = bench_array(ctx, dtype, WF_SHAPE(t.n, t.f, o, o));
    j->dw = bench_array(ctx, wide, j->w.shape);
    j->db = bench_array(ctx, wide, j->b.shape);
    j->w.forms = &j->forms;
}

static inline void bench_conv_close(bench_conv *j)
{
    bench_array_free(j->ctx, &j->x);
    bench_array_free(j->ctx, &j->w);
    bench_array_free(j->ctx, &j->b);
    bench_array_free(j->ctx, &j->y);
    bench_array_free(j->ctx, &j->dw);
    bench_array_free(j->ctx, &j->db);
}

static inline double bench_conv_flop(const bench_conv *j)
{
    return 2.0 * (double)wf_array_count(&j->y) * (double)wf_array_count(&j->w) / (double)j->w.shape.dim[0];
}

static inline wf_status bench_conv_forward(void *p)
{
    const bench_conv *j = p;
    const wf_conv_args args = {.geom = &j->geom, .x = &j->x, .w = &j->w, .bias = j->no_bias ? NULL : &j->b, .y = &j->y};
    return j->ctx->k->conv_forward(j->ctx, &args);
}

static inline wf_status bench_conv_data(void *p)
{
    const bench_conv *j = p;
    return j->ctx->k->conv_backward_data(j->ctx, &(wf_conv_args){.geom = &j->geom, .y = &j->y, .w = &j->w, .x = &j->x});
}

static inline wf_status bench_conv_filter(void *p)
{
    const bench_conv *j = p;
    const wf_conv_args args = {
        .geom = &j->geom, .x = &j->x, .y = &j->y, .w = &j->dw, .bias = j->no_bias ? NULL : &j->db};
    return j->ctx->k->conv_backward_filter(j->ctx, &args);
}

#endif
