/* Convolution, matmul, pooling: the slots with geometry. */
#include "tests/core/contract_bodies.h"

#include <math.h>
#include <string.h>

static void check_conv(const conv_case *t, uint64_t seed)
{
    conv_case wide = *t;
    wide.wide = true;
    contract_check("conv_backward_filter, wide", conv_filter_body, &wide, seed);
    contract_check("conv_forward", conv_forward_body, t, seed);
    contract_check("conv_backward_data", conv_data_body, t, seed);
    contract_check("conv_backward_filter", conv_filter_body, t, seed);
}

/* A case with equal numbers in every dimension, unless a row says otherwise. */
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

/* A NaN in x is a NaN in every result that it reaches, whatever is fused with the convolution. */
static void conv_nan(void)
{
    enum { C = 16, F = 32, LENGTH = 6 };
    static const wf_dtype types[] = {WF_F32, WF_BF16, WF_F16};
    static const wf_act acts[] = {WF_ACT_NONE, WF_ACT_RELU, WF_ACT_LEAKY_RELU};
    const wf_conv_geom g = {.nd = 2,
                            .groups = 1,
                            .kernel = {3, 3},
                            .stride = {1, 1},
                            .dilation = {1, 1},
                            .pad_lo = {1, 1},
                            .pad_hi = {1, 1}};
    double x_values[2 * C * LENGTH * LENGTH] = {NAN};
    for (int i = 0; i < 9; i++) {
        run r = run_on(contract_device(), types[i % 3]);
        r.round = types[i % 3];
        const wf_epilogue epilogue = {.act = acts[i / 3], .slope = 0.25};
        const wf_array x = run_array(&r, r.dtype, WF_SHAPE(2, C, LENGTH, LENGTH), LAST, x_values),
                       w = run_in(&r, WF_SHAPE(F, C, 3, 3), LAST, -1, 1), bias = run_in(&r, WF_SHAPE(F), ROW, -1, 1),
                       y = run_out(&r, WF_SHAPE(2, F, LENGTH, LENGTH), LAST, false);
        run_call(
            &r,
            r.k->conv_forward(
                r.ctx,
                &(wf_conv_args){
                    .geom = &g, .x = &x, .w = &w, .bias = &bias, .epilogue = acts[i / 3] ? &epilogue : NULL, .y = &y}));
        const double *v = values(&r, &y);
        int64_t nans = 0;
        for (int64_t k = 0; k < wf_array_count(&y); k++)
            nans += isnan(v[k]);
        /* oneDNN's ReLU makes it 0. */
        const bool may_lose = r.k->library && strstr(r.k->library(), "oneDNN") && acts[i / 3] == WF_ACT_RELU;
        WF_EXPECT(nans == 4 * F || (may_lose && nans == 0), "%s, activation %d: %lld of %d NaN", wf_dtype_name(r.dtype),
                  (int)acts[i / 3], (long long)nans, 4 * F);
        run_free(&r);
    }
}

static void conv_random(void)
{
    for (uint64_t i = 0; i < 60; i++) {
        test_rng rng = {contract_seed() * 1000 + i};
        const conv_case t = random_conv(&rng);
        check_conv(&t, rng.state);
    }
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

static void matmul_reused(void)
{
    static const int64_t sizes[][2] = {{3, 64}, {4, 64}, {33, 96}, {256, 70}, {257, 64}, {8, 63}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int bits = 0; bits < 8; bits++) {
            const matmul_case t = {
                .m = sizes[i][0], .n = sizes[i][1], .bias = bits & 1, .accumulate = bits & 2, .wide = bits & 4};
            contract_check("matmul, reused", matmul_reused_body, &t, contract_seed() + i);
        }
}

/* Steps as of broadcast operands in any order: a factor that misses a dimension repeats along it. */
static wf_product_stack random_stack(test_rng *rng)
{
    wf_product_stack s = {.m = test_int(rng, 0, 9) ? test_int(rng, 1, 20) : 0,
                          .n = test_int(rng, 0, 9) ? test_int(rng, 1, 20) : 0,
                          .k = test_int(rng, 0, 9) ? test_int(rng, 1, 20) : 0,
                          .rank = (int)test_int(rng, 0, 3)};
    int64_t matrices[WF_STACK_FACTORS] = {1, 1, 1};
    for (int d = s.rank - 1; d >= 0; d--) {
        s.dim[d] = test_int(rng, 0, 14) ? test_int(rng, 1, 5) : 0;
        const int64_t has = test_int(rng, 1, 7);
        for (int f = 0; f < WF_STACK_FACTORS; f++) {
            s.step[f][d] = has >> f & 1 ? matrices[f] : 0;
            matrices[f] *= has >> f & 1 ? s.dim[d] : 1;
        }
    }
    return s;
}

static void matmul_stack(void)
{
    for (uint64_t i = 0; i < 120; i++) {
        test_rng rng = {contract_seed() * 1000 + i};
        const stack_case t = {random_stack(&rng), i & 1, i & 2, i & 4};
        contract_check("matmul, stack", matmul_stack_body, &t, rng.state);
    }
    const stack_case large = {
        {.m = 70, .n = 33, .k = 40, .rank = 2, .dim = {9, 30}, .step = {{30, 1}, {0, 1}, {30, 1}}}, .tb = true};
    contract_check("matmul, a large stack", matmul_stack_body, &large, contract_seed());
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

/* Some of the windows of a whole, and what they read with up to one input more at either end. */
static pool_case random_adaptive(test_rng *rng)
{
    pool_case t = random_pool(rng);
    wf_pool_geom *const g = &t.geom;
    g->adaptive = true;
    for (int d = 0; d < g->nd; d++) {
        g->inputs[d] = test_int(rng, 1, 12);
        g->outputs[d] = test_int(rng, 1, 12);
        g->out_lo[d] = test_int(rng, 0, g->outputs[d] - 1);
        t.out[d] = test_int(rng, 1, g->outputs[d] - g->out_lo[d]);
        const int64_t lo = wf_pool_adaptive(g, d, 0).lo, hi = wf_pool_adaptive(g, d, t.out[d] - 1).hi;
        g->in_lo[d] = lo - (lo > 0 && test_int(rng, 0, 1));
        t.in[d] = hi + (hi < g->inputs[d] && test_int(rng, 0, 1)) - g->in_lo[d];
        g->kernel[d] = g->inputs[d] / g->outputs[d] + 2;
        g->stride[d] = g->dilation[d] = 1;
        g->pad_lo[d] = g->pad_hi[d] = 0;
    }
    return t;
}

static void pool_adaptive(void)
{
    for (uint64_t i = 0; i < 60; i++) {
        test_rng rng = {contract_seed() * 7000 + i};
        const pool_case t = random_adaptive(&rng);
        contract_check("adaptive pool", pool_body, &t, rng.state);
    }
}

static void pool_places(void)
{
    static const wf_dtype types[] = {WF_U8, WF_I32, WF_I64};
    for (uint64_t i = 0; i < 40; i++) {
        test_rng rng = {contract_seed() * 9000 + i};
        places_case t = {.nd = (int)test_int(&rng, 1, 3), .dtype = types[i % 3], .equal = i % 2};
        t.n = test_int(&rng, 0, 7) ? test_int(&rng, 1, 3) : 0;
        t.c = test_int(&rng, 0, 9) ? test_int(&rng, 1, 40) : 0;
        for (int d = 0; d < t.nd; d++) {
            t.large[d] = test_int(&rng, 1, 6);
            t.small[d] = test_int(&rng, 1, 5);
            t.lo[d] = i % 4 == 3 || d == 0 ? test_int(&rng, 0, t.large[d] - 1) : 0;
            t.length[d] = i % 4 == 3 || d == 0 ? test_int(&rng, 1, t.large[d] - t.lo[d]) : t.large[d];
        }
        contract_check("places", places_body, &t, rng.state);
    }
}

/* A number that is no place is an error of this call, or of the next one that reads. */
static void refuse_place(wf_ctx *ctx, int64_t place, const char *text)
{
    const int64_t both[2] = {1, place};
    run r = run_on(ctx, WF_F32);
    const wf_array places = {
        .data = run_bytes(&r, both, sizeof both), .dtype = WF_I64, .order = LAST, .shape = WF_SHAPE(1, 1, 2)};
    const wf_array index = run_array(&r, WF_I32, WF_SHAPE(1, 1, 2), LAST, LIST(0, 0));
    const wf_array taken = run_array(&r, WF_I32, WF_SHAPE(1, 1, 5), LAST, LIST(0, 0, 0, 0, 0));
    int32_t host[2];
    wf_status status = r.k->unpool_index(r.ctx, &(wf_unpool_args){.places = &places, .index = &index, .taken = &taken});
    if (status == WF_OK)
        status = r.k->to_host(r.ctx, host, index.data, sizeof host);
    WF_EXPECT(status == WF_ERR_ARGUMENT && strstr(wf_error_message(), text), "%s: \"%s\", should say \"%s\"", r.k->name,
              wf_error_message(), text);
    wf_error_clear();
    WF_EXPECT_OK(r.k->to_host(r.ctx, host, index.data, sizeof host));
    run_free(&r);
}

static void wrong_places(void)
{
    wf_ctx *const contexts[] = {contract_ref(), contract_device()};
    for (int i = 0; i < 2; i++) {
        refuse_place(contexts[i], 5, "place 5 of element 1 is outside [0, 5)");
        refuse_place(contexts[i], -2, "place -2 of element 1 is outside [0, 5)");
        refuse_place(contexts[i], INT64_MIN, "place -9223372036854775808 of element 1 is outside [0, 5)");
    }
}

static void pool_random(void)
{
    for (uint64_t i = 0; i < 150; i++) {
        test_rng rng = {contract_seed() * 2000 + i};
        const pool_case t = random_pool(&rng);
        contract_check("pool", pool_body, &t, rng.state);
    }
}

/* The first NaN of a window is its largest, in whole registers of channels and in what is left of them. */
static void pool_nan(void)
{
    enum { C = 19, WIDTH = 4 };
    const wf_pool_geom g = {.kind = WF_POOL_MAX, .nd = 1, .kernel = {WIDTH}, .stride = {WIDTH}, .dilation = {1}};
    wf_ctx *const contexts[] = {contract_ref(), contract_device()};
    double x_values[C * WIDTH];
    const double none[C] = {0};
    for (int i = 0; i < C * WIDTH; i++)
        x_values[i] = i / C % 2 ? NAN : i; /* channels lie last */
    for (int i = 0; i < 2; i++) {
        run r = run_on(contexts[i], WF_F32);
        const wf_array x = run_array(&r, WF_F32, WF_SHAPE(1, C, WIDTH), LAST, x_values),
                       y = run_array(&r, WF_F32, WF_SHAPE(1, C, 1), LAST, none),
                       index = run_array(&r, WF_I32, WF_SHAPE(1, C, 1), LAST, none);
        run_call(&r, r.k->pool_forward(r.ctx, &(wf_pool_args){.geom = &g, .x = &x, .y = &y, .index = &index}));
        for (int c = 0; c < C; c++) {
            const double got = values(&r, &y)[c], place = values(&r, &index)[c];
            WF_EXPECT(isnan(got) && place == 1, "%s, channel %d: %g of pixel %g, should be NaN of pixel 1", r.k->name,
                      c, got, place);
        }
        run_free(&r);
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

static void taps(void)
{
    for (uint64_t i = 0; i < 60; i++) {
        test_rng rng = {contract_seed() * 7000 + i};
        taps_case t = {.outer = test_int(&rng, 0, 5), .in = test_int(&rng, 0, 9), .taps = test_int(&rng, 1, 8)};
        t.inner = i % 3 == 0 ? 16 : i % 3 == 1 ? 600 : test_int(&rng, 1, 17);
        t.y_lo = test_int(&rng, 0, 9);
        t.x_lo = test_int(&rng, 0, 9);
        t.out = test_int(&rng, 0, 9);
        t.rows = t.y_lo + t.out + test_int(&rng, 1, 3);
        t.accumulate = test_int(&rng, 0, 1);
        contract_check("taps", taps_body, &t, rng.state);
    }
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
                                       {"conv_nan", conv_nan},
                                       {"conv_random", conv_random},
                                       {"matmul", matmul},
                                       {"matmul_reused", matmul_reused},
                                       {"matmul_stack", matmul_stack},
                                       {"pool_nan", pool_nan},
                                       {"pool_fixed", pool_fixed},
                                       {"pool_random", pool_random},
                                       {"pool_adaptive", pool_adaptive},
                                       {"pool_places", pool_places},
                                       {"wrong_places", wrong_places},
                                       {"resample", resample},
                                       {"taps", taps},
                                       {"bias_backward", bias_backward},
                                       {0}});
}
