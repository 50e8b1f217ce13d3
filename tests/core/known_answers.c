/* What the slots must give, worked out by hand or by identities: not resting on `ref`, which is tested here too. */
#include "tests/core/contract.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void conv_1d(run *r)
{
    const wf_conv_geom g = {
        .nd = 1, .groups = 1, .kernel = {3}, .stride = {2}, .dilation = {1}, .pad_lo = {1}, .pad_hi = {0}};
    const wf_array x = run_array(r, r->dtype, WF_SHAPE(1, 1, 5), LAST, LIST(1, 2, 3, 4, 5));
    const wf_array w = run_array(r, r->dtype, WF_SHAPE(1, 1, 3), LAST, LIST(1, 10, 100));
    const wf_array b = run_array(r, r->dtype, WF_SHAPE(1), ROW, LIST(0.5));
    const wf_array y = run_out(r, WF_SHAPE(1, 1, 2), LAST, false), dx = run_out(r, WF_SHAPE(1, 1, 5), LAST, false);
    const wf_array dy = run_array(r, r->dtype, WF_SHAPE(1, 1, 2), LAST, LIST(1, 7));
    const wf_array dw = run_out(r, WF_SHAPE(1, 1, 3), LAST, false), db = run_out(r, WF_SHAPE(1), ROW, false);
    run_call(r, r->k->conv_forward(r->ctx, &(wf_conv_args){.geom = &g, .x = &x, .w = &w, .bias = &b, .y = &y}));
    expect(r, "y", &y, LIST(210.5, 432.5));
    run_call(r, r->k->conv_backward_data(r->ctx, &(wf_conv_args){.geom = &g, .y = &dy, .w = &w, .x = &dx}));
    expect(r, "dx", &dx, LIST(10, 107, 70, 700, 0));
    run_call(r,
             r->k->conv_backward_filter(r->ctx, &(wf_conv_args){.geom = &g, .x = &x, .y = &dy, .w = &dw, .bias = &db}));
    expect(r, "dw", &dw, LIST(14, 22, 30));
    expect(r, "db", &db, LIST(8));
}

/* 2 channels, 2 outputs, 2x2 image, 2x2 filter of step 1 with dilation 2 and padding 1: every output sees one corner.
 */
static void conv_2d(run *r)
{
    const wf_conv_geom g = {.nd = 2,
                            .groups = 1,
                            .kernel = {2, 2},
                            .stride = {1, 1},
                            .dilation = {2, 2},
                            .pad_lo = {1, 1},
                            .pad_hi = {1, 1}};
    /* Channels-last: pixel by pixel (channel 0, channel 1). */
    const wf_array x = run_array(r, r->dtype, WF_SHAPE(1, 2, 2, 2), LAST, LIST(1, 10, 2, 20, 3, 30, 4, 40));
    /* Filter by filter, tap by tap (channel 0, channel 1). */
    const wf_array w =
        run_array(r, r->dtype, WF_SHAPE(2, 2, 2, 2), LAST, LIST(1, 0, 2, 0, 3, 0, 4, 0, 0, 1, 0, -1, 0, 2, 1, 1));
    const wf_array y = run_out(r, WF_SHAPE(1, 2, 2, 2), LAST, false);
    run_call(r, r->k->conv_forward(r->ctx, &(wf_conv_args){.geom = &g, .x = &x, .w = &w, .y = &y}));
    expect(r, "y", &y, LIST(16, 44, 9, 60, 4, -20, 1, 10));
}

static void conv_groups(run *r)
{
    const wf_conv_geom g = {.nd = 1, .groups = 2, .kernel = {1}, .stride = {1}, .dilation = {1}};
    const wf_array x = run_array(r, r->dtype, WF_SHAPE(1, 4, 1), LAST, LIST(1, 2, 3, 4));
    const wf_array w = run_array(r, r->dtype, WF_SHAPE(2, 2, 1), LAST, LIST(10, 100, 1000, 1));
    const wf_array y = run_out(r, WF_SHAPE(1, 2, 1), LAST, false);
    run_call(r, r->k->conv_forward(r->ctx, &(wf_conv_args){.geom = &g, .x = &x, .w = &w, .y = &y}));
    expect(r, "y", &y, LIST(210, 3004));
}

static double dot(run *r, const wf_array *a, const wf_array *b)
{
    const int64_t n = wf_array_count(a);
    double *const u = malloc((size_t)n * sizeof *u), sum = 0;
    memcpy(u, values(r, a), (size_t)n * sizeof *u);
    const double *const v = values(r, b);
    for (int64_t i = 0; i < n; i++)
        sum += u[i] * v[i];
    free(u);
    return sum;
}

/* Convolution is linear in x and in w, so both backward directions are given by <y,dy> = <x,dx> = <w,dw>. */
static void conv_adjoint(run *r)
{
    const wf_conv_geom g = {.nd = 3,
                            .groups = 2,
                            .kernel = {3, 2, 1},
                            .stride = {1, 2, 1},
                            .dilation = {2, 1, 1},
                            .pad_lo = {2, -1, 0},
                            .pad_hi = {1, 2, -1}};
    const wf_shape xs = WF_SHAPE(2, 4, 5, 6, 3), ys = WF_SHAPE(2, 6, 4, 3, 2), ws = WF_SHAPE(6, 2, 3, 2, 1);
    const wf_array x = run_in(r, xs, LAST, -1, 1), w = run_in(r, ws, LAST, -1, 1), dy = run_in(r, ys, LAST, -1, 1);
    const wf_array y = run_out(r, ys, LAST, false), dx = run_out(r, xs, LAST, false), dw = run_out(r, ws, LAST, false);
    run_call(r, r->k->conv_forward(r->ctx, &(wf_conv_args){.geom = &g, .x = &x, .w = &w, .y = &y}));
    run_call(r, r->k->conv_backward_data(r->ctx, &(wf_conv_args){.geom = &g, .y = &dy, .w = &w, .x = &dx}));
    run_call(r, r->k->conv_backward_filter(r->ctx, &(wf_conv_args){.geom = &g, .x = &x, .y = &dy, .w = &dw}));
    const double a = dot(r, &y, &dy), b = dot(r, &x, &dx), c = dot(r, &w, &dw);
    WF_EXPECT(fabs(a) > 1e-3 && fabs(a - b) < 1e-4 && fabs(a - c) < 1e-4, "%s: %g, %g, %g", r->k->name, a, b, c);
}

/* Rows [lo, hi) of an output need rows [2 lo - 1, 2 hi + 2) of the input: computed from those alone, with zeros where
 * the image ends, they are the same bits. Only ref promises this. */
static void conv_of_part_is_part(void)
{
    run r = run_on(contract_ref(), WF_F32);
    const wf_conv_geom whole = {.nd = 2,
                                .groups = 1,
                                .kernel = {4, 3},
                                .stride = {2, 1},
                                .dilation = {1, 1},
                                .pad_lo = {1, 1},
                                .pad_hi = {1, 1}};
    wf_conv_geom part = whole;
    const wf_array x = run_in(&r, WF_SHAPE(1, 7, 12, 5), LAST, -1, 1),
                   w = run_in(&r, WF_SHAPE(9, 7, 4, 3), LAST, -1, 1);
    const wf_array y = run_out(&r, WF_SHAPE(1, 9, 6, 5), LAST, false),
                   some = run_out(&r, WF_SHAPE(1, 9, 3, 5), LAST, false);
    run_call(&r, r.k->conv_forward(r.ctx, &(wf_conv_args){.geom = &whole, .x = &x, .w = &w, .y = &y}));
    part.pad_lo[0] = 0;
    part.pad_hi[0] = 1;
    wf_array lower = x;
    lower.shape.dim[2] = 7;
    lower.data = (float *)x.data + 5 * 5 * 7;
    run_call(&r, r.k->conv_forward(r.ctx, &(wf_conv_args){.geom = &part, .x = &lower, .w = &w, .y = &some}));
    WF_EXPECT(memcmp((float *)y.data + 3 * 5 * 9, some.data, 3 * 5 * 9 * sizeof(float)) == 0, "the part differs");
    run_free(&r);
}

static void pooling(run *r)
{
    wf_pool_geom g = {.kind = WF_POOL_MAX,
                      .nd = 2,
                      .kernel = {2, 2},
                      .stride = {2, 2},
                      .dilation = {1, 1},
                      .pad_lo = {0, 0},
                      .pad_hi = {1, 1}};
    const wf_shape ys = WF_SHAPE(1, 1, 2, 2);
    const wf_array x = run_array(r, r->dtype, WF_SHAPE(1, 1, 3, 3), LAST, LIST(1, 5, 2, 5, 3, -1, -4, -3, -6));
    const wf_array dy = run_array(r, r->dtype, ys, LAST, LIST(1, 2, 3, 4)), y = run_out(r, ys, LAST, false);
    const wf_array dx = run_out(r, WF_SHAPE(1, 1, 3, 3), LAST, false);
    const wf_array index = run_out_of(r, WF_I32, WF_I32, ys, LAST, false);
    run_call(r, r->k->pool_forward(r->ctx, &(wf_pool_args){.geom = &g, .x = &x, .y = &y, .index = &index}));
    expect(r, "max", &y, LIST(5, 2, -3, -6));
    expect(r, "index", &index, LIST(1, 2, 7, 8));
    run_call(r, r->k->pool_backward(r->ctx, &(wf_pool_args){.geom = &g, .y = &dy, .index = &index, .x = &dx}));
    expect(r, "max back", &dx, LIST(0, 1, 2, 0, 0, 0, 0, 3, 4));
    g.kind = WF_POOL_AVG;
    run_call(r, r->k->pool_forward(r->ctx, &(wf_pool_args){.geom = &g, .x = &x, .y = &y}));
    expect(r, "average", &y, LIST(3.5, 0.5, -3.5, -6));
    g.kind = WF_POOL_AVG_PADDED;
    run_call(r, r->k->pool_forward(r->ctx, &(wf_pool_args){.geom = &g, .x = &x, .y = &y}));
    expect(r, "padded average", &y, LIST(3.5, 0.25, -1.75, -1.5));
    run_call(r, r->k->pool_backward(r->ctx, &(wf_pool_args){.geom = &g, .y = &dy, .x = &dx}));
    expect(r, "padded average back", &dx, LIST(.25, .25, .5, .25, .25, .5, .75, .75, 1));
    g.pad_hi[0] = g.pad_hi[1] = 0; /* the windows of the ceil form end at the input */
    run_call(r, r->k->pool_forward(r->ctx, &(wf_pool_args){.geom = &g, .x = &x, .y = &y}));
    expect(r, "cut average", &y, LIST(3.5, 0.5, -3.5, -6));
}

static void pooling_edges(run *r)
{
    const wf_pool_geom g = {
        .kind = WF_POOL_MAX, .nd = 1, .kernel = {2}, .stride = {2}, .dilation = {1}, .pad_lo = {2}, .pad_hi = {0}};
    const wf_array x = run_array(r, r->dtype, WF_SHAPE(1, 1, 6), LAST, LIST(-INFINITY, -INFINITY, 3, NAN, NAN, 9));
    const wf_array y = run_out(r, WF_SHAPE(1, 1, 4), LAST, false);
    const wf_array index = run_out_of(r, WF_I32, WF_I32, WF_SHAPE(1, 1, 4), LAST, false);
    run_call(r, r->k->pool_forward(r->ctx, &(wf_pool_args){.geom = &g, .x = &x, .y = &y, .index = &index}));
    const double *const got = values(r, &y);
    WF_EXPECT(got[0] == -INFINITY && got[1] == -INFINITY && isnan(got[2]) && isnan(got[3]), "%s: %g %g %g %g",
              r->k->name, got[0], got[1], got[2], got[3]);
    expect(r, "index", &index, LIST(-1, 0, 3, 4));
}

/* Rows 1 to 2 of a picture of 3 x 3, by itself; and of four elements of two channels two that ask for pixel 1. */
static void places(run *r)
{
    const wf_shape two = WF_SHAPE(1, 2, 2), three = WF_SHAPE(1, 2, 3);
    const wf_array index = run_array(r, WF_I32, WF_SHAPE(1, 1, 1, 4), LAST, LIST(0, 3, -1, 2));
    const wf_array whole = run_array(r, WF_I64, WF_SHAPE(1, 1, 1, 4), LAST, NULL);
    wf_places_args args = {.nd = 2, .index = &index, .y = &whole, .length = {2, 2}, .lo = {1, 1}, .whole = {3, 3}};
    run_call(r, r->k->pool_places(r->ctx, &args));
    expect(r, "places of the whole", &whole, LIST(4, 8, -1, 7));
    const wf_array x = run_array(r, r->dtype, two, LAST, LIST(1, 2, 3, 4));
    const wf_array at = run_array(r, WF_I64, two, LAST, LIST(1, 0, 1, 2)); /* channel 0: 1, 1; channel 1: 0, 2 */
    const wf_array kept = run_array(r, WF_I32, two, LAST, NULL), taken = run_array(r, WF_I32, three, LAST, NULL);
    const wf_array y = run_out(r, three, LAST, false), dx = run_out(r, two, LAST, false);
    const wf_array dy = run_array(r, r->dtype, three, LAST, LIST(10, 20, 30, 40, 50, 60));
    run_call(r, r->k->unpool_index(r->ctx, &(wf_unpool_args){.places = &at, .index = &kept, .taken = &taken}));
    expect(r, "taken", &taken, LIST(-1, 0, 1, -1, -1, 1));
    expect(r, "kept", &kept, LIST(-1, 0, 1, 2));
    run_call(r, r->k->pick_pixels(r->ctx, &x, &taken, &y));
    run_call(r, r->k->pick_pixels(r->ctx, &dy, &kept, &dx));
    expect(r, "y", &y, LIST(0, 2, 3, 0, 0, 4));
    expect(r, "dx", &dx, LIST(0, 20, 30, 60));
}

/* Windows of PyTorch's adaptive pool of 3 outputs over 5 inputs, 1 and 2 of which are here: [1, 4) and [3, 5). */
static void adaptive_windows(run *r)
{
    const wf_pool_geom g = {.kind = WF_POOL_MAX,
                            .nd = 1,
                            .kernel = {3},
                            .stride = {1},
                            .dilation = {1},
                            .adaptive = true,
                            .inputs = {5},
                            .outputs = {3},
                            .in_lo = {1},
                            .out_lo = {1}};
    const wf_array x = run_array(r, r->dtype, WF_SHAPE(1, 1, 4), LAST, LIST(5, 3, 4, 1));
    const wf_array y = run_out(r, WF_SHAPE(1, 1, 2), LAST, false), dx = run_out(r, WF_SHAPE(1, 1, 4), LAST, false);
    const wf_array dy = run_array(r, r->dtype, WF_SHAPE(1, 1, 2), LAST, LIST(10, 20));
    const wf_array index = run_out_of(r, WF_I32, WF_I32, WF_SHAPE(1, 1, 2), LAST, false);
    run_call(r, r->k->pool_forward(r->ctx, &(wf_pool_args){.geom = &g, .x = &x, .y = &y, .index = &index}));
    expect(r, "y", &y, LIST(5, 4));
    expect(r, "index", &index, LIST(0, 2));
    run_call(r, r->k->pool_backward(r->ctx, &(wf_pool_args){.geom = &g, .x = &dx, .y = &dy, .index = &index}));
    expect(r, "dx", &dx, LIST(10, 0, 20, 0));
}

static void normalisation(run *r)
{
    const wf_dtype wide = run_wide(r);
    const wf_array x = run_array(r, r->dtype, WF_SHAPE(4, 2), ROW, LIST(1, 10, 2, 10, 3, 10, 6, 14));
    const wf_array mean = run_out(r, WF_SHAPE(2), ROW, false), m2 = run_out(r, WF_SHAPE(2), ROW, false);
    const wf_array invstd = run_out(r, WF_SHAPE(2), ROW, false), y = run_out(r, WF_SHAPE(4, 2), ROW, false);
    const wf_array rm = run_array(r, wide, WF_SHAPE(2), ROW, LIST(1, 0)),
                   rv = run_array(r, wide, WF_SHAPE(2), ROW, LIST(1, 1));
    const wf_array gamma = run_array(r, r->dtype, WF_SHAPE(2), ROW, LIST(2, 1)),
                   beta = run_array(r, r->dtype, WF_SHAPE(2), ROW, LIST(0, 5));
    run_call(r, r->k->norm_stats(r->ctx, &(wf_norm_args){.x = &x, .mean = &mean, .m2 = &m2}));
    expect(r, "mean", &mean, LIST(3, 11));
    expect(r, "m2", &m2, LIST(14, 12));
    run_call(r, r->k->norm_finish(r->ctx, &(wf_norm_args){.mean = &mean,
                                                          .m2 = &m2,
                                                          .count = {.value = 4},
                                                          .eps = 0.5,
                                                          .decay = 0.9,
                                                          .invstd = &invstd,
                                                          .running_mean = &rm,
                                                          .running_var = &rv}));
    expect(r, "invstd", &invstd, LIST(0.5, 1 / sqrt(3.5)));
    expect(r, "running mean", &rm, LIST(1.2, 1.1));
    expect(r, "running variance", &rv, LIST(0.9 + 0.1 * 14 / 3, 1.3));
    run_call(r, r->k->norm_forward(
                    r->ctx, &(wf_norm_args){
                                .x = &x, .mean = &mean, .invstd = &invstd, .gamma = &gamma, .beta = &beta, .y = &y}));
    const double s = 1 / sqrt(3.5);
    expect(r, "y", &y, LIST(-2, 5 - s, -1, 5 - s, 0, 5 - s, 3, 5 + 3 * s));
}

/* The gradient of a normalisation over its own batch is orthogonal to 1 and (for eps 0) to x. */
static void normalisation_back(run *r)
{
    const wf_shape s = WF_SHAPE(3, 4, 2, 2), c = WF_SHAPE(4);
    const wf_array x = run_in(r, s, LAST, -1, 1), dy = run_in(r, s, LAST, -1, 1), dx = run_out(r, s, LAST, false);
    const wf_array mean = run_out(r, c, ROW, false), m2 = run_out(r, c, ROW, false), invstd = run_out(r, c, ROW, false);
    const wf_array sg = run_out(r, c, ROW, false), sgx = run_out(r, c, ROW, false), sums = run_out(r, c, ROW, false);
    run_call(r, r->k->norm_stats(r->ctx, &(wf_norm_args){.x = &x, .mean = &mean, .m2 = &m2}));
    run_call(r, r->k->norm_finish(
                    r->ctx, &(wf_norm_args){
                                .mean = &mean, .m2 = &m2, .count = {.value = 12}, .decay = 0.9, .invstd = &invstd}));
    run_call(r, r->k->norm_backward_stats(
                    r->ctx, &(wf_norm_args){
                                .x = &x, .mean = &mean, .invstd = &invstd, .dy = &dy, .sum_g = &sg, .sum_gx = &sgx}));
    run_call(r, r->k->norm_backward(r->ctx, &(wf_norm_args){.x = &x,
                                                            .mean = &mean,
                                                            .invstd = &invstd,
                                                            .dy = &dy,
                                                            .sum_g = &sg,
                                                            .sum_gx = &sgx,
                                                            .count = {.value = 12},
                                                            .dx = &dx}));
    run_call(r, r->k->bias_backward(r->ctx, &dx, &sums, false));
    const double *const got = values(r, &sums);
    for (int i = 0; i < 4; i++)
        WF_EXPECT(fabs(got[i]) < 1e-5, "%s: gradient of channel %d sums to %g", r->k->name, i, got[i]);
    WF_EXPECT(fabs(dot(r, &dx, &x)) < 1e-4 && dot(r, &dx, &dx) > 0.1, "%s: gradient along x is %g", r->k->name,
              dot(r, &dx, &x));
}

static void losses(run *r)
{
    const wf_array x = run_array(r, r->dtype, WF_SHAPE(2, 2), ROW, LIST(0, 0, log(3), 0));
    const wf_array p = run_out(r, WF_SHAPE(2, 2), ROW, false),
                   labels = run_array(r, WF_I32, WF_SHAPE(2), ROW, LIST(1, 0));
    const wf_array loss = run_out(r, wf_shape_scalar(), ROW, false),
                   up = run_array(r, r->dtype, wf_shape_scalar(), ROW, LIST(2));
    const wf_array dx = run_out(r, WF_SHAPE(2, 2), ROW, false);
    const wf_array correct = run_out_of(r, WF_I64, WF_I64, wf_shape_scalar(), ROW, false);
    run_call(r, r->k->softmax_forward(r->ctx, false, &x, &p));
    expect(r, "softmax", &p, LIST(0.5, 0.5, 0.75, 0.25));
    run_call(r, r->k->count_correct(r->ctx, &x, &labels, WF_NONE_IGNORED, 1, &correct));
    expect(r, "correct", &correct, LIST(1));
    run_call(r, r->k->softmax_forward(r->ctx, true, &x, &p));
    expect(r, "log softmax", &p, LIST(log(.5), log(.5), log(.75), log(.25)));
    run_call(r, r->k->nll_forward(r->ctx, &p, &labels, WF_NONE_IGNORED, 0.5, &loss));
    expect(r, "nll", &loss, LIST(-0.5 * (log(.5) + log(.75))));
    run_call(r, r->k->nll_backward(r->ctx, &labels, WF_NONE_IGNORED, &up, 0.5, &dx));
    expect(r, "nll back", &dx, LIST(0, -1, -1, 0));
    const wf_array some = run_array(r, WF_I32, WF_SHAPE(2), ROW, LIST(-100, 0));
    run_call(r, r->k->nll_forward(r->ctx, &p, &some, -100, 0.5, &loss));
    expect(r, "nll of one", &loss, LIST(-0.5 * log(.75)));
    run_call(r, r->k->nll_backward(r->ctx, &some, -100, &up, 0.5, &dx));
    expect(r, "nll of one back", &dx, LIST(0, 0, -1, 0));
    const wf_array sums = run_out(r, WF_SHAPE(2), ROW, false);
    wf_entropy_args both = {
        .x = &x, .labels = &labels, .ignored = -100, .scale = 0.5, .log_sum = &sums, .loss = &loss, .dloss = &up};
    both.dx = &dx;
    run_call(r, r->k->entropy_forward(r->ctx, &both));
    expect(r, "cross entropy", &loss, LIST(-0.5 * (log(.5) + log(.75))));
    expect(r, "its sums", &sums, LIST(log(2), log(4. / 3)));
    run_call(r, r->k->entropy_backward(r->ctx, &both));
    expect(r, "cross entropy back", &dx, LIST(0.5, -0.5, -0.25, 0.25));
    both.labels = &some;
    run_call(r, r->k->entropy_forward(r->ctx, &both));
    expect(r, "cross entropy of one", &loss, LIST(-0.5 * log(.75)));
    run_call(r, r->k->entropy_backward(r->ctx, &both));
    expect(r, "cross entropy of one back", &dx, LIST(0, 0, -0.25, 0.25));
    run_call(r, r->k->count_correct(r->ctx, &x, &some, -100, 1, &correct));
    expect(r, "correct of one", &correct, LIST(1));
    run_call(r, r->k->count_labels(r->ctx, &some, -100, &correct));
    expect(r, "one", &correct, LIST(1));
    run_call(r,
             r->k->loss_forward(
                 r->ctx, &(wf_loss_args){.kind = WF_LOSS_BCE_LOGITS, .x = &x, .value = 1, .scale = 1, .loss = &loss}));
    expect(r, "bce", &loss, LIST(3 * log(2) - log(.75)));
    run_call(r, r->k->loss_backward(
                    r->ctx, &(wf_loss_args){
                                .kind = WF_LOSS_BCE_LOGITS, .x = &x, .value = 1, .dloss = &up, .scale = 1, .dx = &dx}));
    expect(r, "bce back", &dx, LIST(-1, -1, -0.5, -1));
    run_call(r, r->k->loss_forward(
                    r->ctx, &(wf_loss_args){.kind = WF_LOSS_MSE, .x = &x, .value = 2, .scale = 0.25, .loss = &loss}));
    expect(r, "mse", &loss, LIST((12 + (log(3) - 2) * (log(3) - 2)) / 4));
    run_call(r, r->k->loss_backward(r->ctx,
                                    &(wf_loss_args){.kind = WF_LOSS_L1, .x = &x, .dloss = &up, .scale = 3, .dx = &dx}));
    expect(r, "l1 back", &dx, LIST(0, 0, 6, 0));
}

/* Three of five classes are here: the scores of labels, and how many of the scores here rank before them. One label is
 * a class that is not here, one is ignored. */
static void label_places(run *r)
{
    const wf_array three = run_array(r, r->dtype, WF_SHAPE(2, 3), ROW, LIST(NAN, 2, 1, NAN, 2, 3));
    const wf_array at = run_out_of(r, run_wide(r), run_wide_round(r), WF_SHAPE(2), ROW, false);
    const wf_array before = run_out_of(r, WF_I64, WF_I64, WF_SHAPE(2), ROW, false);
    const wf_array fourth = run_array(r, WF_I32, WF_SHAPE(2), ROW, LIST(1, 3));
    const wf_array one = run_array(r, WF_I32, WF_SHAPE(2), ROW, LIST(-100, 0));
    wf_label_place_args place = {.x = &three, .labels = &fourth, .ignored = -100, .whole = 5, .at = &at};
    run_call(r, r->k->label_place(r->ctx, &place));
    expect(r, "scores of labels", &at, LIST(2, -INFINITY));
    place.before = &before;
    run_call(r, r->k->label_place(r->ctx, &place));
    expect(r, "before labels", &before, LIST(1, 3));
    place.labels = &one;
    place.first = 1;
    run_call(r, r->k->label_place(r->ctx, &place));
    expect(r, "before an ignored one", &before, LIST(-1, 2));
}

/* The gradient of an activation against central differences. */
static void activation_slopes(run *r)
{
    static const double step = 1e-3;
    enum { N = 13 };
    double at[N], above[N], below[N], ones[N];
    for (int i = 0; i < N; i++) {
        at[i] = -3.05 + 0.5 * i;
        above[i] = at[i] + step;
        below[i] = at[i] - step;
        ones[i] = 1;
    }
    const wf_shape s = WF_SHAPE(N);
    const wf_array x = run_array(r, r->dtype, s, ROW, at), hi = run_array(r, r->dtype, s, ROW, above);
    const wf_array lo = run_array(r, r->dtype, s, ROW, below), dy = run_array(r, r->dtype, s, ROW, ones);
    const wf_array y = run_out(r, s, ROW, false), dx = run_out(r, s, ROW, false);
    for (int act = 0; act < WF_ACTS; act++) {
        double up[N], down[N];
        run_call(r, r->k->act_forward(r->ctx, &(wf_act_args){.act = (wf_act)act, .slope = 0.3, .x = &hi, .y = &y}));
        memcpy(up, values(r, &y), sizeof up);
        run_call(r, r->k->act_forward(r->ctx, &(wf_act_args){.act = (wf_act)act, .slope = 0.3, .x = &lo, .y = &y}));
        memcpy(down, values(r, &y), sizeof down);
        run_call(r, r->k->act_forward(r->ctx, &(wf_act_args){.act = (wf_act)act, .slope = 0.3, .x = &x, .y = &y}));
        const wf_act_args args = {.act = (wf_act)act, .slope = 0.3, .x = &x, .y = &y, .dy = &dy, .dx = &dx};
        run_call(r, r->k->act_backward(r->ctx, &args));
        const double *const got = values(r, &dx);
        const bool positive = act == WF_ACT_LOG || act == WF_ACT_SQRT || act == WF_ACT_POW; /* arguments only */
        for (int i = 0; i < N; i++)
            WF_EXPECT((positive && at[i] < 0) || fabs(got[i] - (up[i] - down[i]) / (2 * step)) < 2e-3,
                      "%s: activation %d at %g: slope %g, should be %g", r->k->name, act, at[i], got[i],
                      (up[i] - down[i]) / (2 * step));
    }
}

static void activation_values(run *r)
{
    const wf_shape s = WF_SHAPE(3);
    const wf_array x = run_array(r, r->dtype, s, ROW, LIST(-1, 0, 2)), y = run_out(r, s, ROW, false);
    const wf_array positive = run_array(r, r->dtype, s, ROW, LIST(1, 0.25, 4));
    static const double want[WF_ACTS][3] = {{-1, 0, 2},
                                            {0, 0, 2},
                                            {-0.5, 0, 2},
                                            {-0.31606027941427883, 0, 2},
                                            {-0.15865525393145707, 0, 1.9544997361036416},
                                            {0.2689414213699951, 0.5, 0.8807970779778823},
                                            {-0.7615941559557649, 0, 0.9640275800758169},
                                            {0.31326168751822286, 0.6931471805599453, 2.1269280110429727},
                                            {-0.2689414213699951, 0, 1.7615941559557649},
                                            {-0.15880800939172324, 0, 1.954597694087775},
                                            {-0.3333333333333333, 0, 1.6666666666666667},
                                            {-1.1113307378125628, 0, 2.101401974710961},
                                            {0.36787944117144233, 1, 7.38905609893065},
                                            {0, -1.3862943611198906, 1.3862943611198906}, /* log */
                                            {1, 0.5, 2},                                  /* sqrt */
                                            {1, 0.5, 2},                                  /* pow */
                                            {1, 0, 2}};
    for (int act = 0; act < WF_ACTS; act++) {
        const bool needs_positive = act == WF_ACT_LOG || act == WF_ACT_SQRT || act == WF_ACT_POW;
        run_call(r, r->k->act_forward(
                        r->ctx, &(wf_act_args){
                                    .act = (wf_act)act, .slope = 0.5, .x = needs_positive ? &positive : &x, .y = &y}));
        expect(r, "activation", &y, want[act]);
    }
}

static void matmul_and_sums(run *r)
{
    const wf_array a = run_array(r, r->dtype, WF_SHAPE(2, 3), ROW, LIST(1, 2, 3, 4, 5, 6));
    const wf_array b = run_array(r, r->dtype, WF_SHAPE(2, 3), ROW, LIST(1, 0, 1, 2, 1, 0));
    const wf_array bias = run_array(r, r->dtype, WF_SHAPE(2), ROW, LIST(100, 200)),
                   c = run_out(r, WF_SHAPE(2, 2), ROW, false);
    const wf_array big = run_out(r, WF_SHAPE(3, 3), ROW, false), s = run_out(r, wf_shape_scalar(), ROW, false);
    const wf_array squares = run_out_of(r, WF_F64, WF_F64, wf_shape_scalar(), ROW, false);
    run_call(r,
             r->k->matmul(r->ctx, &(wf_matmul_args){.a = &a, .b = &b, .b_transposed = true, .bias = &bias, .c = &c}));
    expect(r, "a b^T", &c, LIST(104, 204, 110, 213));
    run_call(r, r->k->matmul(r->ctx,
                             &(wf_matmul_args){.a = &a, .b = &b, .b_transposed = true, .c = &c, .accumulate = true}));
    expect(r, "a b^T added", &c, LIST(108, 208, 120, 226));
    run_call(r, r->k->matmul(r->ctx, &(wf_matmul_args){.a = &a, .a_transposed = true, .b = &b, .c = &big}));
    expect(r, "a^T b", &big, LIST(9, 4, 1, 12, 5, 2, 15, 6, 3));
    run_call(r, r->k->sum(r->ctx, &a, 2, &s));
    expect(r, "sum", &s, LIST(42));
    run_call(r, r->k->sum_squares(r->ctx, &a, &squares, false));
    run_call(r, r->k->sum_squares(r->ctx, &b, &squares, true));
    expect(r, "squares", &squares, LIST(98));
}

static void one_step(run *r, wf_optim_kind kind, const wf_optim_hyper *h, const double *want)
{
    const wf_array p = run_array(r, r->dtype, WF_SHAPE(1), ROW, LIST(1)),
                   g = run_array(r, r->dtype, WF_SHAPE(1), ROW, LIST(4));
    const wf_array s1 = run_array(r, r->dtype, WF_SHAPE(1), ROW, LIST(0.5)),
                   s2 = run_array(r, r->dtype, WF_SHAPE(1), ROW, LIST(0.25));
    const double squares[2] = {4, 0.25};
    const wf_optim_segment segment = {
        .p = p.data, .g = g.data, .state1 = s1.data, .state2 = s2.data, .n = 1, .squares = run_bytes(r, squares, 16)};
    run_call(r, r->k->optim_update(r->ctx, kind, run_bytes(r, h, sizeof *h), r->dtype, 1, &segment));
    expect(r, "parameter", &p, want);
    expect(r, "first state", &s1, want + 1);
    expect(r, "second state", &s2, want + 2);
}

static void optimizer_steps(run *r)
{
    wf_optim_hyper h = {.lr = 0.1,
                        .momentum = 0.5,
                        .beta1 = 0.5,
                        .beta2 = 0.75,
                        .alpha = 0.5,
                        .eps = 0,
                        .decay = 1,
                        .bias1 = 0.5,
                        .bias2 = 0.25,
                        .grad_scale = 0.25};
    /* g = 1; with decay 2; m = 2.25 */
    one_step(r, WF_OPTIM_SGD, &h, LIST(1 - 0.225, 2.25, 0.25));
    h.nesterov = 1;
    one_step(r, WF_OPTIM_SGD, &h, LIST(1 - 0.1 * (2 + 1.125), 2.25, 0.25));
    /* m = 1.25, v = 0.1875 + 1 */
    one_step(r, WF_OPTIM_ADAM, &h, LIST(1 - 0.1 * 2.5 / sqrt(4.75), 1.25, 1.1875));
    /* m = 0.75, v = 0.1875 + 0.25 */
    one_step(r, WF_OPTIM_ADAMW, &h, LIST(0.9 - 0.1 * 1.5 / sqrt(1.75), 0.75, 0.4375));
    h.clip_value = 0.5; /* g = 0.5, with decay 1.5; v = 0.25 + 1.125 */
    h.momentum = 0;
    one_step(r, WF_OPTIM_SGD, &h, LIST(1 - 0.15, 0.5, 0.25));
    one_step(r, WF_OPTIM_RMSPROP, &h, LIST(1 - 0.15 / sqrt(1.375), 1.375, 0.25));
    one_step(r, WF_OPTIM_TRUST, &h, LIST(1 - 0.1 * 4 * 4, 0.5, 0.25)); /* twice as long as 0.5 */
}

BOTH(conv_1d)
BOTH(conv_2d)
BOTH(conv_groups)
BOTH(conv_adjoint)
BOTH(pooling)
BOTH(pooling_edges)
BOTH(places)
BOTH(adaptive_windows)
BOTH(normalisation)
BOTH(normalisation_back)
BOTH(losses)
BOTH(label_places)
BOTH(activation_slopes)
BOTH(activation_values)
BOTH(matmul_and_sums)
BOTH(optimizer_steps)

int main(int argc, char **argv)
{
    return contract_main(argc, argv,
                         (test_case[]){{"conv_1d", conv_1d_both},
                                       {"conv_2d", conv_2d_both},
                                       {"conv_groups", conv_groups_both},
                                       {"conv_adjoint", conv_adjoint_both},
                                       {"conv_of_part_is_part", conv_of_part_is_part},
                                       {"pooling", pooling_both},
                                       {"pooling_edges", pooling_edges_both},
                                       {"places", places_both},
                                       {"adaptive_windows", adaptive_windows_both},
                                       {"normalisation", normalisation_both},
                                       {"normalisation_back", normalisation_back_both},
                                       {"losses", losses_both},
                                       {"label_places", label_places_both},
                                       {"activation_slopes", activation_slopes_both},
                                       {"activation_values", activation_values_both},
                                       {"matmul_and_sums", matmul_and_sums_both},
                                       {"optimizer_steps", optimizer_steps_both},
                                       {0}});
}
