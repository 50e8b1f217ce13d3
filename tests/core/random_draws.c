/* Extents are drawn with a bias to what kernels treat as special cases: few channels, no multiples of a vector, single
 * pixels, strides without padding. The work of a case is bounded, since ref computes it in plain loops. */
#include "tests/core/random_draws.h"

#include <math.h>

enum { MOST_WORK = 300000, MOST_CHANNELS = 40 };

/* In [lo, hi], small numbers as often as large ones. */
static int64_t int_by_size(test_rng *rng, int64_t lo, int64_t hi)
{
    const double at = test_uniform(rng, log((double)lo), log((double)hi + 1));
    const int64_t n = (int64_t)exp(at);
    return n < lo ? lo : n > hi ? hi : n;
}

/* Multiples of 8 are rarer than by chance; one draw in eight is beyond MOST_CHANNELS, one in three below a vector. */
static int64_t draw_channels(test_rng *rng)
{
    const int64_t most = one_in(rng, 8) ? 4 * MOST_CHANNELS : one_in(rng, 3) ? 15 : MOST_CHANNELS;
    int64_t c = test_int(rng, 1, most);
    if (c % 8 == 0 && !one_in(rng, 2))
        c = test_int(rng, 1, most);
    return c;
}

static void draw_groups(test_rng *rng, conv_case *t)
{
    const int64_t pick = test_int(rng, 0, 9);
    t->geom.groups = 1;
    t->c = draw_channels(rng);
    t->f = draw_channels(rng);
    if (pick > 2)
        return;
    if (pick == 0) { /* depthwise */
        t->geom.groups = t->c;
        t->f = t->c * test_int(rng, 1, 2);
        return;
    }
    t->geom.groups = test_int(rng, 2, 5);
    t->c = t->geom.groups * test_int(rng, 1, 12);
    t->f = t->geom.groups * test_int(rng, 1, 12);
}

static double work_of(const conv_case *t)
{
    double work = (double)(t->n * t->f) * (double)(t->c / t->geom.groups);
    for (int d = 0; d < t->geom.nd; d++)
        work *= (double)(t->geom.kernel[d] * (t->in[d] / t->geom.stride[d] + 1));
    return work;
}

static void draw_window(test_rng *rng, conv_case *t, int d, bool point, bool padded)
{
    static const int64_t longest[] = {600, 64, 12};
    wf_conv_geom *const g = &t->geom;
    const int64_t most = longest[g->nd - 1];
    g->kernel[d] = point ? 1 : test_int(rng, 1, 5);
    g->stride[d] = one_in(rng, point ? 4 : 2) ? 1 : test_int(rng, 2, 3);
    g->dilation[d] = one_in(rng, 4) ? test_int(rng, 2, 3) : 1;
    g->pad_lo[d] = padded ? test_int(rng, -2, 4) : 0;
    g->pad_hi[d] = padded ? test_int(rng, -2, 4) : 0;
    t->in[d] = one_in(rng, 2) ? test_int(rng, 1, most) : int_by_size(rng, 1, most);
}

/* A whole number of strides. */
static int64_t up_to_stride(const conv_case *t, int d)
{
    return (t->in[d] + t->geom.stride[d] - 1) / t->geom.stride[d] * t->geom.stride[d];
}

/* Halves the longest extent, or takes a sample away, until the work is bounded. `whole`: then rounds extents up to
 * whole strides. */
static void bound_work(conv_case *t, bool whole)
{
    while (work_of(t) > MOST_WORK) {
        int longest = 0;
        for (int d = 1; d < t->geom.nd; d++)
            if (t->in[d] > t->in[longest])
                longest = d;
        if (t->n > 1)
            t->n--;
        else if (t->in[longest] > 1)
            t->in[longest] = (t->in[longest] + 1) / 2;
        else
            break;
    }
    for (int d = 0; whole && d < t->geom.nd; d++)
        t->in[d] = up_to_stride(t, d);
}

static conv_case draw_conv(test_rng *rng)
{
    static const wf_act acts[] = {WF_ACT_NONE, WF_ACT_RELU, WF_ACT_LEAKY_RELU};
    conv_case t = {.geom = {.nd = (int)test_int(rng, 1, 3)}, .n = test_int(rng, 1, 4)};
    /* Filters of one pixel with strides and nothing else: oneDNN has ways of its own for them. */
    const bool lone = one_in(rng, 6), point = lone || one_in(rng, 5);
    const bool padded = !lone && !one_in(rng, 4), whole = lone || one_in(rng, 2);
    if (lone) {
        t.geom.groups = 1;
        t.c = int_by_size(rng, 1, MOST_CHANNELS);
        t.f = int_by_size(rng, 1, MOST_CHANNELS);
    } else
        draw_groups(rng, &t);
    for (int d = 0; d < t.geom.nd; d++)
        draw_window(rng, &t, d, point, padded);
    bound_work(&t, whole);
    t.bias = one_in(rng, 2);
    t.accumulate = one_in(rng, 2);
    t.wide = one_in(rng, 2);
    t.forms = one_in(rng, 3);
    t.epilogue = one_in(rng, 2);
    t.act = acts[test_int(rng, 0, 2)];
    return t;
}

static matmul_case draw_matmul(test_rng *rng, bool reused)
{
    matmul_case t = {.m = int_by_size(rng, 1, 200),
                     .n = int_by_size(rng, 1, 200),
                     .k = int_by_size(rng, 1, 200),
                     .ta = one_in(rng, 2),
                     .tb = one_in(rng, 2),
                     .bias = one_in(rng, 2),
                     .accumulate = one_in(rng, 2),
                     .wide = one_in(rng, 2)};
    if (reused) {
        t.m = int_by_size(rng, 1, 40);
        t.n = test_int(rng, 60, 100); /* from 64 on, packed copies are kept */
    }
    while (t.m * t.n * t.k > 2 * MOST_WORK)
        t.m = (t.m + 1) / 2;
    return t;
}

static pool_case draw_pool(test_rng *rng)
{
    pool_case t = {.geom = {.kind = (wf_pool_kind)test_int(rng, 0, 2), .nd = (int)test_int(rng, 1, 3)}};
    t.n = test_int(rng, 1, 3);
    t.c = draw_channels(rng);
    t.ceil = one_in(rng, 2);
    t.accumulate = one_in(rng, 2);
    for (int d = 0; d < t.geom.nd; d++) {
        t.in[d] = int_by_size(rng, 1, t.geom.nd == 3 ? 8 : 24);
        t.geom.kernel[d] = test_int(rng, 1, 4);
        t.geom.stride[d] = test_int(rng, 1, 4);
        t.geom.dilation[d] = one_in(rng, 4) ? 2 : 1;
        t.geom.pad_lo[d] = test_int(rng, -1, t.geom.kernel[d]);
        t.geom.pad_hi[d] = test_int(rng, -1, t.geom.kernel[d]);
    }
    return t;
}

static resample_case draw_resample(test_rng *rng)
{
    resample_case t = {.geom = {.nd = (int)test_int(rng, 1, 3), .linear = !one_in(rng, 3)}};
    wf_resample_geom *const g = &t.geom;
    const bool part = one_in(rng, 2);
    g->align_corners = g->linear && one_in(rng, 2);
    t.x = (wf_shape){.rank = g->nd + 2, .dim = {test_int(rng, 1, 3), draw_channels(rng)}};
    t.y = t.x;
    for (int d = 0; d < g->nd; d++) {
        g->scale[d] = test_int(rng, 1, 4);
        g->in[d] = t.x.dim[2 + d] = int_by_size(rng, 1, g->nd == 3 ? 5 : 12);
        t.y.dim[2 + d] = g->in[d] * g->scale[d];
        if (part)
            cut_part(rng, &t, d);
    }
    t.accumulate = one_in(rng, 2);
    return t;
}

static wf_shape draw_shape(test_rng *rng)
{
    wf_shape s = {.rank = (int)test_int(rng, 2, 5)};
    s.dim[0] = int_by_size(rng, 1, s.rank == 2 ? 300 : 6);
    s.dim[1] = draw_channels(rng);
    for (int d = 2; d < s.rank; d++)
        s.dim[d] = int_by_size(rng, 1, s.rank == 3 ? 200 : s.rank == 4 ? 20 : 8);
    return s;
}

static norm_case draw_norm(test_rng *rng)
{
    static const wf_act acts[] = {WF_ACT_NONE, WF_ACT_RELU, WF_ACT_LEAKY_RELU};
    return (norm_case){.shape = draw_shape(rng),
                       .gamma = one_in(rng, 2),
                       .beta = one_in(rng, 2),
                       .epilogue = one_in(rng, 2),
                       .residual = one_in(rng, 2),
                       .in_place = one_in(rng, 2),
                       .batch = one_in(rng, 2),
                       .over = one_in(rng, 2),
                       .of_x = one_in(rng, 2),
                       .wide = one_in(rng, 2),
                       .act = acts[test_int(rng, 0, 2)],
                       .offset = (double)test_int(rng, -1, 1)};
}

static bool is_convolution(drawn_kind kind)
{
    return kind <= DRAWN_FILTER || kind == DRAWN_BIAS;
}

static drawn_kind draw_kind(test_rng *rng)
{
    /* In a hundred: mostly what oneDNN computes. */
    static const int share[DRAWN_KINDS] = {22, 22, 26, 9, 2, 5, 4, 2, 2, 2, 2, 2};
    int64_t at = test_int(rng, 0, 99);
    for (int k = 0; k < DRAWN_KINDS; k++)
        if ((at -= share[k]) < 0)
            return (drawn_kind)k;
    return DRAWN_FORWARD;
}

drawn draw(uint64_t seed, int64_t index)
{
    static const wf_dtype types[] = {WF_F32, WF_F32, WF_F32, WF_BF16, WF_BF16, WF_F16};
    static const int threads[] = {1, 1, 2, 2, 3, 4, 5, 7, 13};
    test_rng rng = {seed * 1000003 + (uint64_t)index};
    drawn t = {.kind = draw_kind(&rng), .grid = 1, .seed = test_u64(&rng)};
    t.type = types[test_int(&rng, 0, 5)];
    t.threads = threads[test_int(&rng, 0, 8)];
    if (is_convolution(t.kind))
        t.of.conv = draw_conv(&rng);
    else if (t.kind == DRAWN_MATMUL || t.kind == DRAWN_REUSED)
        t.of.matmul = draw_matmul(&rng, t.kind == DRAWN_REUSED);
    else if (t.kind == DRAWN_POOL)
        t.of.pool = draw_pool(&rng);
    else if (t.kind == DRAWN_RESAMPLE)
        t.of.resample = draw_resample(&rng);
    else if (t.kind == DRAWN_SOFTMAX)
        t.of.row = (row_case){.shape = draw_shape(&rng), .logarithm = one_in(&rng, 2), .spread = 4};
    else
        t.of.norm = draw_norm(&rng);
    if (t.kind == DRAWN_SOFTMAX)
        t.grid = 0;
    return t;
}

static const struct {
    const char *name;
    contract_body body;
} kinds[DRAWN_KINDS] = {
    [DRAWN_FORWARD] = {"convolution, forward", conv_forward_body},
    [DRAWN_DATA] = {"convolution, gradient of the data, or transposed", conv_data_body},
    [DRAWN_FILTER] = {"convolution, gradient of the filter", conv_filter_body},
    [DRAWN_MATMUL] = {"product", matmul_body},
    [DRAWN_REUSED] = {"product by a packed matrix", matmul_reused_body},
    [DRAWN_POOL] = {"pooling", pool_body},
    [DRAWN_RESAMPLE] = {"resampling", resample_body},
    [DRAWN_NORM_STATS] = {"statistics", norm_stats_body},
    [DRAWN_NORM_FORWARD] = {"normalisation, forward", norm_forward_body},
    [DRAWN_NORM_BACKWARD] = {"normalisation, backward", norm_backward_body},
    [DRAWN_SOFTMAX] = {"softmax", softmax_body},
    [DRAWN_BIAS] = {"gradient of a bias", bias_backward_body},
};

const char *drawn_name(drawn_kind kind)
{
    return kinds[kind].name;
}

contract_body drawn_body(drawn_kind kind)
{
    return kinds[kind].body;
}
