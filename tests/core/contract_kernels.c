/* Convolution, matmul, pooling: the slots with geometry. */
#include "tests/core/contract.h"

#include <stdio.h>
#include <string.h>

typedef struct conv_case {
    wf_conv_geom geom;
    int64_t n, c, f, in[3];
    bool bias, accumulate, forms;
    bool wide; /* the gradients of parameters are not narrow */
    wf_act act;
    double noise;
    bool epilogue;
} conv_case;

static int64_t conv_length(int64_t in, int64_t lo, int64_t hi, int64_t kernel, int64_t stride, int64_t dilation)
{
    const int64_t room = in + lo + hi - dilation * (kernel - 1) - 1;
    return room < 0 ? 0 : room / stride + 1;
}

static wf_shape spatial_shape(int64_t n, int64_t c, int nd, const int64_t *length)
{
    int64_t dim[5] = {n, c};
    for (int d = 0; d < nd; d++)
        dim[2 + d] = length[d];
    return wf_shape_make(nd + 2, dim);
}

static wf_shape conv_output(const conv_case *t)
{
    const wf_conv_geom *const g = &t->geom;
    int64_t out[3];
    for (int d = 0; d < g->nd; d++)
        out[d] = conv_length(t->in[d], g->pad_lo[d], g->pad_hi[d], g->kernel[d], g->stride[d], g->dilation[d]);
    return spatial_shape(t->n, t->f, g->nd, out);
}

static void conv_note(run *r, const conv_case *t)
{
    const wf_conv_geom *const g = &t->geom;
    int used = snprintf(r->note, sizeof r->note, "n %lld c %lld f %lld groups %lld bias %d acc %d act %d noise %g",
                        (long long)t->n, (long long)t->c, (long long)t->f, (long long)g->groups, t->bias, t->accumulate,
                        t->epilogue ? (int)t->act : -1, t->noise);
    for (int d = 0; d < g->nd; d++)
        used += snprintf(r->note + used, sizeof r->note - (size_t)used, " | in %lld k %lld s %lld d %lld p %lld,%lld",
                         (long long)t->in[d], (long long)g->kernel[d], (long long)g->stride[d],
                         (long long)g->dilation[d], (long long)g->pad_lo[d], (long long)g->pad_hi[d]);
}

static wf_shape filter_shape(const conv_case *t)
{
    return spatial_shape(t->f, t->c / t->geom.groups, t->geom.nd, t->geom.kernel);
}

static wf_epilogue conv_epilogue(run *r, const conv_case *t, wf_shape shape)
{
    return (wf_epilogue){.act = t->act, .slope = 0.2, .noise = t->noise, .random = run_random(r, shape)};
}

/* Both directions that give activations. With forms: a first call with other numbers in the filter, so that a packed
 * copy that outlives its version is seen; and a third with the copy in place. */
static void conv_body(run *r, wf_conv_fn *slot, bool backward)
{
    const conv_case *const t = r->args;
    const wf_shape xs = spatial_shape(t->n, t->c, t->geom.nd, t->in), ys = conv_output(t);
    const wf_shape from = backward ? ys : xs, to = backward ? xs : ys;
    conv_note(r, t);
    const wf_array x = run_in(r, from, WF_CHANNELS_LAST, -1, 1),
                   w = run_in(r, filter_shape(t), WF_CHANNELS_LAST, -1, 1);
    const wf_array b = run_in(r, WF_SHAPE(to.dim[1]), WF_ROW_MAJOR, -1, 1);
    const wf_array y = run_out(r, to, WF_CHANNELS_LAST, false);
    const wf_epilogue epilogue = conv_epilogue(r, t, to);
    wf_conv_args args = {.geom = &t->geom, .x = backward ? &y : &x, .y = backward ? &x : &y};
    wf_packed_form *forms = NULL;
    if (t->forms) {
        wf_array old = run_in(r, filter_shape(t), WF_CHANNELS_LAST, -1, 1);
        old.forms = &forms;
        old.version = 4;
        args.w = &old;
        run_call(r, slot(r->ctx, &args));
    }
    wf_array current = w;
    args.w = &current;
    if (t->forms) {
        current.forms = &forms;
        current.version = 5;
        run_call(r, slot(r->ctx, &args));
    }
    args.bias = t->bias ? &b : NULL;
    args.epilogue = t->epilogue ? &epilogue : NULL;
    run_call(r, slot(r->ctx, &args));
    wf_packed_free(r->ctx, &forms);
    run_result(r, &y, 2);
}

static void forward_body(run *r)
{
    conv_body(r, r->k->conv_forward, false);
}

static void backward_data_body(run *r)
{
    conv_body(r, r->k->conv_backward_data, true);
}

/* Of the run's type, or f32 where that is narrow. On the way to the latter a device may round once to the former. */
static wf_array gradient(run *r, wf_shape shape, wf_order order, bool wide, bool keep)
{
    return run_out_of(r, wide ? run_wide(r) : r->dtype, wide ? run_wide_round(r) : r->round, shape, order, keep);
}

static double gradient_weight(const run *r, bool wide)
{
    const bool narrow = r->dtype == WF_BF16 || r->dtype == WF_F16;
    return wide && narrow && r->k->host ? 0.1 : 3;
}

static void backward_filter_body(run *r)
{
    const conv_case *const t = r->args;
    conv_note(r, t);
    const wf_array x = run_in(r, spatial_shape(t->n, t->c, t->geom.nd, t->in), WF_CHANNELS_LAST, -1, 1);
    const wf_array dy = run_in(r, conv_output(t), WF_CHANNELS_LAST, -1, 1);
    const wf_array dw = gradient(r, filter_shape(t), WF_CHANNELS_LAST, t->wide, t->accumulate);
    const wf_array db = gradient(r, WF_SHAPE(t->f), WF_ROW_MAJOR, t->wide, t->accumulate);
    const wf_conv_args args = {
        .geom = &t->geom, .x = &x, .y = &dy, .w = &dw, .bias = t->bias ? &db : NULL, .accumulate = t->accumulate};
    run_call(r, r->k->conv_backward_filter(r->ctx, &args));
    run_result(r, &dw, gradient_weight(r, t->wide));
    if (t->bias)
        run_result(r, &db, gradient_weight(r, t->wide));
}

static void check_conv(const conv_case *t, uint64_t seed)
{
    conv_case wide = *t;
    wide.wide = true;
    contract_check("conv_backward_filter, wide", backward_filter_body, &wide, seed);
    contract_check("conv_forward", forward_body, t, seed);
    contract_check("conv_backward_data", backward_data_body, t, seed);
    contract_check("conv_backward_filter", backward_filter_body, t, seed);
}

/* The same in every dimension, unless a row says otherwise. */
static conv_case conv_of(int nd, int64_t n, int64_t c, int64_t f, int64_t in, int64_t kernel, int64_t stride,
                         int64_t dilation, int64_t pad)
{
    conv_case t = {.geom = {.nd = nd, .groups = 1}, .n = n, .c = c, .f = f, .bias = true};
    for (int d = 0; d < nd; d++) {
        t.in[d] = in + (d == 1);
        t.geom.kernel[d] = kernel;
        t.geom.stride[d] = stride;
        t.geom.dilation[d] = dilation;
        t.geom.pad_lo[d] = t.geom.pad_hi[d] = pad;
    }
    return t;
}

static void conv_fixed(void)
{
    const conv_case list[] = {
        conv_of(2, 2, 3, 5, 7, 3, 1, 1, 1),    conv_of(2, 3, 16, 32, 8, 4, 2, 1, 1),
        conv_of(2, 1, 64, 48, 5, 3, 1, 1, 1),  conv_of(2, 2, 3, 64, 9, 5, 2, 1, 2),
        conv_of(2, 2, 17, 1, 4, 4, 1, 1, 0),   conv_of(2, 5, 33, 16, 4, 4, 1, 1, 0),
        conv_of(2, 1, 1, 1, 1, 1, 1, 1, 0),    conv_of(2, 2, 8, 8, 9, 3, 1, 2, 2),
        conv_of(2, 2, 8, 8, 9, 2, 3, 1, 0),    conv_of(1, 2, 3, 4, 11, 3, 2, 2, 1),
        conv_of(3, 2, 3, 4, 4, 3, 1, 1, 1),    conv_of(3, 1, 16, 16, 4, 2, 2, 1, 0),
        conv_of(2, 0, 3, 5, 7, 3, 1, 1, 1),    conv_of(2, 2, 16, 16, 6, 1, 1, 1, 0),
        conv_of(3, 0, 2, 3, 4, 2, 1, 1, 0),    conv_of(2, 2, 3, 4, 0, 3, 1, 1, 0),
        conv_of(2, 2, 4, 8, 2, 3, 1, 1, 0),    conv_of(2, 2, 16, 32, 5, 3, 1, 1, -1),
        conv_of(2, 2, 3, 64, 17, 5, 1, 1, 2),  conv_of(2, 3, 1, 32, 20, 3, 1, 1, 1),
        conv_of(2, 1, 4, 70, 9, 7, 1, 1, 3),   conv_of(2, 2, 2, 33, 12, 4, 1, 1, 1),
        conv_of(2, 3, 32, 48, 16, 4, 2, 1, 1), conv_of(2, 2, 8, 9, 5, 1, 1, 1, 0),
        conv_of(2, 2, 9, 8, 3, 1, 1, 1, 0),    conv_of(3, 1, 8, 9, 3, 3, 2, 1, 1),
        conv_of(3, 1, 9, 8, 5, 3, 2, 1, 1),    conv_of(3, 1, 2, 2, 11, 4, 2, 1, 1),
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        for (int variant = 0; variant < 4; variant++) {
            conv_case t = list[i];
            t.bias = variant % 2 == 0;
            t.accumulate = variant >= 2;
            t.forms = variant == 3 || variant == 0;
            t.epilogue = variant != 1;
            t.act = variant == 0 ? WF_ACT_LEAKY_RELU : variant == 2 ? WF_ACT_RELU : WF_ACT_NONE;
            t.noise = variant == 3 ? 0.5 : 0;
            check_conv(&t, contract_seed() + i);
        }
}

static void conv_groups_and_pads(void)
{
    conv_case depthwise = conv_of(2, 2, 16, 16, 6, 3, 1, 1, 1), grouped = conv_of(2, 2, 12, 6, 6, 3, 2, 1, 1);
    conv_case wider = conv_of(2, 1, 4, 12, 5, 2, 1, 1, 0), uneven = conv_of(2, 2, 3, 4, 6, 3, 2, 1, 0);
    depthwise.geom.groups = 16;
    grouped.geom.groups = 3;
    wider.geom.groups = 4;
    uneven.geom.pad_lo[0] = 2;
    uneven.geom.pad_hi[0] = -1;
    uneven.geom.pad_lo[1] = -1;
    uneven.geom.pad_hi[1] = 3;
    conv_case cropped = conv_of(3, 2, 3, 2, 5, 2, 1, 1, -1);
    check_conv(&depthwise, 1);
    check_conv(&grouped, 2);
    check_conv(&wider, 3);
    check_conv(&uneven, 4);
    check_conv(&cropped, 5);
    /* Some taps lie on padding whatever the output: their gradient is 0. */
    const conv_case unseen[] = {conv_of(1, 1, 4, 3, 2, 3, 3, 1, 1), conv_of(2, 3, 8, 16, 1, 3, 1, 1, 1),
                                conv_of(2, 2, 16, 16, 2, 4, 3, 1, 3), conv_of(3, 1, 5, 9, 1, 2, 2, 1, 1)};
    for (uint64_t i = 0; i < 4; i++)
        check_conv(&unseen[i], 6 + i);
}

static conv_case random_conv(test_rng *rng)
{
    conv_case t = {.geom = {.nd = (int)test_int(rng, 1, 3), .groups = test_int(rng, 0, 2) ? 1 : test_int(rng, 2, 4)}};
    t.n = test_int(rng, 0, 7) ? test_int(rng, 1, 3) : 0;
    t.c = t.geom.groups * test_int(rng, 1, 9);
    t.f = t.geom.groups * test_int(rng, 1, 9);
    for (int d = 0; d < t.geom.nd; d++) {
        t.in[d] = test_int(rng, 1, t.geom.nd == 3 ? 6 : 9);
        t.geom.kernel[d] = test_int(rng, 1, 4);
        t.geom.stride[d] = test_int(rng, 1, 3);
        t.geom.dilation[d] = test_int(rng, 0, 2) ? 1 : test_int(rng, 2, 3);
        t.geom.pad_lo[d] = test_int(rng, -1, 3);
        t.geom.pad_hi[d] = test_int(rng, -1, 3);
    }
    t.bias = test_int(rng, 0, 1);
    t.accumulate = test_int(rng, 0, 1);
    t.forms = test_int(rng, 0, 1);
    t.epilogue = test_int(rng, 0, 1);
    t.act = (wf_act[]){WF_ACT_NONE, WF_ACT_RELU, WF_ACT_LEAKY_RELU}[test_int(rng, 0, 2)];
    t.noise = test_int(rng, 0, 2) ? 0 : 0.3;
    return t;
}

static void conv_random(void)
{
    for (uint64_t i = 0; i < 60; i++) {
        test_rng rng = {contract_seed() * 1000 + i};
        const conv_case t = random_conv(&rng);
        check_conv(&t, rng.state);
    }
}

typedef struct matmul_case {
    int64_t m, n, k;
    bool ta, tb, bias, accumulate, wide;
} matmul_case;

static void matmul_body(run *r)
{
    const matmul_case *const t = r->args;
    snprintf(r->note, sizeof r->note, "m %lld n %lld k %lld ta %d tb %d bias %d acc %d", (long long)t->m,
             (long long)t->n, (long long)t->k, t->ta, t->tb, t->bias, t->accumulate);
    const wf_array a = run_in(r, t->ta ? WF_SHAPE(t->k, t->m) : WF_SHAPE(t->m, t->k), WF_ROW_MAJOR, -1, 1);
    const wf_array b = run_in(r, t->tb ? WF_SHAPE(t->n, t->k) : WF_SHAPE(t->k, t->n), WF_ROW_MAJOR, -1, 1);
    const wf_array bias = run_in(r, WF_SHAPE(t->n), WF_ROW_MAJOR, -1, 1);
    const wf_array c = gradient(r, WF_SHAPE(t->m, t->n), WF_ROW_MAJOR, t->wide, t->accumulate);
    const wf_matmul_args args = {.a = &a,
                                 .a_transposed = t->ta,
                                 .b = &b,
                                 .b_transposed = t->tb,
                                 .bias = t->bias ? &bias : NULL,
                                 .c = &c,
                                 .accumulate = t->accumulate};
    run_call(r, r->k->matmul(r->ctx, &args));
    run_result(r, &c, t->wide ? gradient_weight(r, true) : 2);
}

static void matmul(void)
{
    static const int64_t sizes[][3] = {{1, 1, 1}, {3, 5, 7}, {16, 16, 16}, {64, 10, 100}, {17, 33, 65},  {0, 4, 5},
                                       {4, 0, 5}, {4, 5, 0}, {2, 100, 3},  {100, 1, 31},  {130, 70, 129}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int bits = 0; bits < 32; bits++) {
            const matmul_case t = {sizes[i][0], sizes[i][1], sizes[i][2], bits & 1,
                                   bits & 2,    bits & 4,    bits & 8,    bits & 16};
            contract_check("matmul", matmul_body, &t, contract_seed() + i);
        }
}

/* A matrix that serves several products, and its transpose, which has its shape: a packed copy of the other one, or of
 * the values before a change, is seen. */
static void reused_body(run *r)
{
    const matmul_case *const t = r->args;
    snprintf(r->note, sizeof r->note, "m %lld, square of %lld, bias %d acc %d", (long long)t->m, (long long)t->n,
             t->bias, t->accumulate);
    const wf_array a = run_in(r, WF_SHAPE(t->m, t->n), WF_ROW_MAJOR, -1, 1);
    const wf_array bias = run_in(r, WF_SHAPE(t->n), WF_ROW_MAJOR, -1, 1);
    wf_packed_form *forms = NULL;
    for (int version = 0; version < 2; version++) {
        wf_array b = run_in(r, WF_SHAPE(t->n, t->n), WF_ROW_MAJOR, -1, 1);
        b.forms = &forms;
        b.version = (uint64_t)version;
        for (int product = 0; product < 3; product++) {
            const wf_array c = gradient(r, WF_SHAPE(t->m, t->n), WF_ROW_MAJOR, t->wide, t->accumulate);
            const wf_matmul_args args = {.a = &a,
                                         .b = &b,
                                         .b_transposed = product != 1,
                                         .b_reused = true,
                                         .bias = t->bias ? &bias : NULL,
                                         .c = &c,
                                         .accumulate = t->accumulate};
            run_call(r, r->k->matmul(r->ctx, &args));
            run_result(r, &c, t->wide ? gradient_weight(r, true) : 2);
        }
    }
    wf_packed_free(r->ctx, &forms);
}

static void matmul_reused(void)
{
    static const int64_t sizes[][2] = {{3, 64}, {4, 64}, {33, 96}, {256, 70}, {257, 64}, {8, 63}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int bits = 0; bits < 8; bits++) {
            const matmul_case t = {
                .m = sizes[i][0], .n = sizes[i][1], .bias = bits & 1, .accumulate = bits & 2, .wide = bits & 4};
            contract_check("matmul, reused", reused_body, &t, contract_seed() + i);
        }
}

typedef struct pool_case {
    wf_pool_geom geom;
    int64_t n, c, in[3];
    bool ceil, without_index, accumulate;
} pool_case;

/* In the ceil form a window must start inside the input or the padding before it. */
static wf_shape pool_output(const pool_case *t)
{
    const wf_pool_geom *const g = &t->geom;
    int64_t out[3];
    for (int d = 0; d < g->nd; d++) {
        const int64_t more = t->ceil ? g->stride[d] - 1 : 0;
        out[d] = conv_length(t->in[d], g->pad_lo[d], g->pad_hi[d] + more, g->kernel[d], g->stride[d], g->dilation[d]);
        if (t->ceil && out[d] > 1 && (out[d] - 1) * g->stride[d] >= t->in[d] + g->pad_lo[d])
            out[d]--;
    }
    return spatial_shape(t->n, t->c, g->nd, out);
}

static void pool_note(run *r, const pool_case *t)
{
    const wf_pool_geom *const g = &t->geom;
    int used = snprintf(r->note, sizeof r->note, "kind %d n %lld c %lld ceil %d acc %d", (int)g->kind, (long long)t->n,
                        (long long)t->c, t->ceil, t->accumulate);
    for (int d = 0; d < g->nd; d++)
        used += snprintf(r->note + used, sizeof r->note - (size_t)used, " | in %lld k %lld s %lld d %lld p %lld,%lld",
                         (long long)t->in[d], (long long)g->kernel[d], (long long)g->stride[d],
                         (long long)g->dilation[d], (long long)g->pad_lo[d], (long long)g->pad_hi[d]);
}

static void pool_body(run *r)
{
    const pool_case *const t = r->args;
    const wf_shape xs = spatial_shape(t->n, t->c, t->geom.nd, t->in), ys = pool_output(t);
    const bool indexed = t->geom.kind == WF_POOL_MAX;
    pool_note(r, t);
    r->grid = 0.25;
    const wf_array x = run_in(r, xs, WF_CHANNELS_LAST, -1, 1), dy = run_in(r, ys, WF_CHANNELS_LAST, -1, 1);
    const wf_array y = run_out(r, ys, WF_CHANNELS_LAST, false), dx = run_out(r, xs, WF_CHANNELS_LAST, t->accumulate);
    const wf_array index = run_out_of(r, WF_I32, WF_I32, ys, WF_CHANNELS_LAST, false);
    run_call(r, r->k->pool_forward(
                    r->ctx, &(wf_pool_args){.geom = &t->geom, .x = &x, .y = &y, .index = indexed ? &index : NULL}));
    const wf_pool_args args = {
        .geom = &t->geom, .y = &dy, .index = indexed ? &index : NULL, .x = &dx, .accumulate = t->accumulate};
    run_call(r, r->k->pool_backward(r->ctx, &args));
    run_result(r, &y, indexed ? 0 : 1);
    if (indexed)
        run_result(r, &index, 0);
    run_result(r, &dx, 2);
}

static pool_case random_pool(test_rng *rng)
{
    pool_case t = {.geom = {.kind = (wf_pool_kind)test_int(rng, 0, 2), .nd = (int)test_int(rng, 1, 3)}};
    t.n = test_int(rng, 0, 7) ? test_int(rng, 1, 3) : 0;
    t.c = test_int(rng, 0, 9) ? test_int(rng, 1, 20) : 0;
    t.ceil = test_int(rng, 0, 1);
    t.accumulate = test_int(rng, 0, 1);
    for (int d = 0; d < t.geom.nd; d++) {
        t.in[d] = test_int(rng, 1, 8);
        t.geom.kernel[d] = test_int(rng, 1, 4);
        t.geom.stride[d] = test_int(rng, 1, 4);
        t.geom.dilation[d] = test_int(rng, 0, 3) ? 1 : 2;
        t.geom.pad_lo[d] = test_int(rng, -1, t.geom.kernel[d]);
        t.geom.pad_hi[d] = test_int(rng, -1, t.geom.kernel[d]);
    }
    return t;
}

static void pool_random(void)
{
    for (uint64_t i = 0; i < 150; i++) {
        test_rng rng = {contract_seed() * 2000 + i};
        const pool_case t = random_pool(&rng);
        contract_check("pool", pool_body, &t, rng.state);
    }
}

static void pool_fixed(void)
{
    for (int kind = 0; kind < 3; kind++)
        for (int pad = 0; pad < 3; pad++) {
            const pool_case t = {.geom = {.kind = (wf_pool_kind)kind,
                                          .nd = 2,
                                          .kernel = {2, 3},
                                          .stride = {2, 2},
                                          .dilation = {1, 1},
                                          .pad_lo = {pad, pad},
                                          .pad_hi = {0, pad}},
                                 .n = 2,
                                 .c = 16,
                                 .in = {8, 9},
                                 .ceil = pad == 1,
                                 .accumulate = pad == 2};
            const pool_case all = {
                .geom = {.kind = (wf_pool_kind)kind, .nd = 2, .kernel = {7, 5}, .stride = {1, 1}, .dilation = {1, 1}},
                .n = 3,
                .c = 33,
                .in = {7, 5}};
            const pool_case large = {.geom = {.kind = (wf_pool_kind)kind,
                                              .nd = 2,
                                              .kernel = {3, 3},
                                              .stride = {2, 2},
                                              .dilation = {1, 1},
                                              .pad_lo = {1, 1},
                                              .pad_hi = {1, 1}},
                                     .n = 3,
                                     .c = 37,
                                     .in = {33, 31}};
            contract_check("pool", pool_body, &t, contract_seed());
            contract_check("pool of all", pool_body, &all, contract_seed());
            contract_check("large pool", pool_body, &large, contract_seed());
        }
}

typedef struct resample_case {
    wf_resample_geom geom;
    wf_shape x, y; /* parts of the whole */
    bool accumulate;
} resample_case;

static void resample_body(run *r)
{
    const resample_case *const t = r->args;
    const wf_resample_geom *const g = &t->geom;
    char text[2][WF_SHAPE_TEXT];
    snprintf(r->note, sizeof r->note, "%s to %s, scale %lld %lld %lld, linear %d aligned %d acc %d",
             wf_shape_text(t->x, text[0]), wf_shape_text(t->y, text[1]), (long long)g->scale[0], (long long)g->scale[1],
             (long long)g->scale[2], g->linear, g->align_corners, t->accumulate);
    const wf_array x = run_in(r, t->x, WF_CHANNELS_LAST, -1, 1), y = run_out(r, t->y, WF_CHANNELS_LAST, false);
    const wf_array dx = run_out(r, t->x, WF_CHANNELS_LAST, t->accumulate),
                   dy = run_in(r, t->y, WF_CHANNELS_LAST, -1, 1);
    run_call(r, r->k->resample_forward(r->ctx, &(wf_resample_args){.geom = g, .x = &x, .y = &y}));
    run_call(r, r->k->resample_backward(
                    r->ctx, &(wf_resample_args){.geom = g, .y = &dy, .x = &dx, .accumulate = t->accumulate}));
    run_result(r, &y, 1);
    run_result(r, &dx, 4);
}

/* Outputs [out_lo, out_lo + y) of the whole, and the inputs that they read with up to one more at either end. */
static void cut_part(test_rng *rng, resample_case *t, int d)
{
    wf_resample_geom *const g = &t->geom;
    const int64_t outputs = g->in[d] * g->scale[d], lo = test_int(rng, 0, outputs - 1),
                  hi = test_int(rng, lo + 1, outputs);
    int64_t first = wf_resample_taps(g, d, lo).at[0], last = wf_resample_taps(g, d, hi - 1).at[1];
    first -= first > 0 ? test_int(rng, 0, 1) : 0;
    last += last + 1 < g->in[d] ? test_int(rng, 0, 1) : 0;
    g->out_lo[d] = lo;
    g->in_lo[d] = first;
    t->y.dim[2 + d] = hi - lo;
    t->x.dim[2 + d] = last + 1 - first;
}

static void resample(void)
{
    for (uint64_t i = 0; i < 120; i++) {
        test_rng rng = {contract_seed() * 5000 + i};
        resample_case t = {.geom = {.nd = (int)test_int(&rng, 1, 3), .linear = test_int(&rng, 0, 2) > 0}};
        wf_resample_geom *const g = &t.geom;
        g->align_corners = g->linear && test_int(&rng, 0, 1);
        t.x = (wf_shape){.rank = g->nd + 2, .dim = {test_int(&rng, 0, 3), test_int(&rng, 1, 17)}};
        if (i % 3 == 0)
            t.x.dim[1] = 16;
        t.y = t.x;
        for (int d = 0; d < g->nd; d++) {
            g->scale[d] = test_int(&rng, 1, 4);
            g->in[d] = t.x.dim[2 + d] = test_int(&rng, 1, 6);
            t.y.dim[2 + d] = g->in[d] * g->scale[d];
            if (i % 2)
                cut_part(&rng, &t, d);
        }
        t.accumulate = test_int(&rng, 0, 1);
        contract_check("resample", resample_body, &t, rng.state);
    }
}

static void bias_backward_body(run *r)
{
    const conv_case *const t = r->args;
    const wf_shape s = t->geom.nd ? spatial_shape(t->n, t->c, t->geom.nd, t->in) : WF_SHAPE(t->n, t->c);
    snprintf(r->note, sizeof r->note, "n %lld c %lld nd %d acc %d", (long long)t->n, (long long)t->c, t->geom.nd,
             t->accumulate);
    const wf_array dy = run_in(r, s, run_order(s), -1, 1);
    const wf_array db = gradient(r, WF_SHAPE(t->c), WF_ROW_MAJOR, t->wide, t->accumulate);
    run_call(r, r->k->bias_backward(r->ctx, &dy, &db, t->accumulate));
    run_result(r, &db, t->wide ? gradient_weight(r, true) : 2);
}

static void bias_backward(void)
{
    for (int nd = 0; nd <= 3; nd++)
        for (int v = 0; v < 16; v++) {
            const conv_case t = {.geom = {.nd = nd},
                                 .n = v % 8 < 2 ? 0 : 5,
                                 .c = v % 8 < 4 ? 3 : 65,
                                 .in = {v % 8 > 5 ? 30 : 3, 5, 17},
                                 .wide = v >= 8,
                                 .accumulate = v % 2};
            contract_check("bias_backward", bias_backward_body, &t, contract_seed());
        }
}

int main(int argc, char **argv)
{
    return contract_main(argc, argv,
                         (test_case[]){{"conv_fixed", conv_fixed},
                                       {"conv_groups_and_pads", conv_groups_and_pads},
                                       {"conv_random", conv_random},
                                       {"matmul", matmul},
                                       {"matmul_reused", matmul_reused},
                                       {"pool_fixed", pool_fixed},
                                       {"pool_random", pool_random},
                                       {"resample", resample},
                                       {"bias_backward", bias_backward},
                                       {0}});
}
