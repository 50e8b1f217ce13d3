/* Convolutions that cuDNN is to have an engine for, in all directions and types: those of a ResNet and a ConvNeXt, and
 * random ones. Nothing is computed: the emulated device idles. */
#include "core/config_author.h"
#include "core/context_author.h"
#include "tests/emulate/dnn.h"
#include "tests/offline/offline.h"
#include "tests/test.h"

#include <stdlib.h>
#include <string.h>

static wf_ctx *ctx;
static int random_count = 25;
static uint64_t seed = 1;

typedef struct layer {
    wf_dtype dtype;
    wf_conv_geom geom;
    int64_t n, c, f, in[WF_MAX_SPATIAL];
} layer;

/* Only the address and the shape of an array matter. */
static wf_array array_new(wf_dtype dtype, int rank, const int64_t *dim)
{
    wf_array a = {.dtype = dtype, .order = wf_order_default(rank), .shape = wf_shape_make(rank, dim)};
    WF_EXPECT_OK(wf_pool_take(ctx, (size_t)wf_array_count(&a) * wf_dtype_size(dtype), &a.data));
    return a;
}

static void array_free(const wf_array *a)
{
    wf_pool_give(ctx, a->data, (size_t)wf_array_count(a) * wf_dtype_size(a->dtype));
}

static void all_directions(const layer *l)
{
    int64_t xs[5] = {l->n, l->c}, ys[5] = {l->n, l->f}, ws[5] = {l->f, l->c / l->geom.groups};
    const wf_conv_geom *const g = &l->geom;
    for (int d = 0; d < g->nd; d++) {
        const int64_t reach = g->dilation[d] * (g->kernel[d] - 1) + 1;
        xs[2 + d] = l->in[d];
        ws[2 + d] = g->kernel[d];
        ys[2 + d] = (l->in[d] + g->pad_lo[d] + g->pad_hi[d] - reach) / g->stride[d] + 1;
    }
    const wf_array x = array_new(l->dtype, g->nd + 2, xs), w = array_new(l->dtype, g->nd + 2, ws),
                   y = array_new(l->dtype, g->nd + 2, ys), b = array_new(l->dtype, 1, ys + 1),
                   wide = array_new(l->dtype == WF_F64 ? WF_F64 : WF_F32, g->nd + 2, ws);
    WF_EXPECT_OK(ctx->k->conv_forward(ctx, &(wf_conv_args){.geom = g, .x = &x, .w = &w, .y = &y}));
    WF_EXPECT_OK(ctx->k->conv_forward(ctx, &(wf_conv_args){.geom = g, .x = &x, .w = &w, .bias = &b, .y = &y}));
    WF_EXPECT_OK(ctx->k->conv_backward_data(ctx, &(wf_conv_args){.geom = g, .x = &x, .w = &w, .y = &y}));
    WF_EXPECT_OK(ctx->k->conv_backward_filter(ctx, &(wf_conv_args){.geom = g, .x = &x, .w = &w, .y = &y}));
    WF_EXPECT_OK(ctx->k->conv_backward_filter(
        ctx, &(wf_conv_args){.geom = g, .x = &x, .w = &wide, .y = &y, .accumulate = true}));
    const wf_array *const all[] = {&x, &w, &y, &b, &wide};
    for (int i = 0; i < 5; i++)
        array_free(all[i]);
}

static layer square(wf_dtype dtype, int64_t n, int64_t c, int64_t f, int64_t length, int64_t kernel, int64_t stride,
                    int64_t pad)
{
    layer l = {.dtype = dtype, .geom = {.nd = 2, .groups = 1}, .n = n, .c = c, .f = f};
    for (int d = 0; d < 2; d++) {
        l.in[d] = length;
        l.geom.kernel[d] = kernel;
        l.geom.stride[d] = stride;
        l.geom.dilation[d] = 1;
        l.geom.pad_lo[d] = l.geom.pad_hi[d] = pad;
    }
    return l;
}

/* ResNet-50 on images of 224 x 224: channels, filters, length, kernel, stride, pad. */
static void resnet(void)
{
    static const int64_t shape[][6] = {
        {3, 64, 224, 7, 2, 3},     {64, 64, 56, 1, 1, 0},    {64, 64, 56, 3, 1, 1},    {64, 256, 56, 1, 1, 0},
        {256, 64, 56, 1, 1, 0},    {256, 128, 56, 1, 1, 0},  {128, 128, 56, 3, 2, 1},  {128, 512, 28, 1, 1, 0},
        {256, 512, 56, 1, 2, 0},   {512, 128, 28, 1, 1, 0},  {128, 128, 28, 3, 1, 1},  {512, 256, 28, 1, 1, 0},
        {256, 256, 28, 3, 2, 1},   {256, 1024, 14, 1, 1, 0}, {512, 1024, 28, 1, 2, 0}, {1024, 256, 14, 1, 1, 0},
        {256, 256, 14, 3, 1, 1},   {1024, 512, 14, 1, 1, 0}, {512, 512, 14, 3, 2, 1},  {512, 2048, 7, 1, 1, 0},
        {1024, 2048, 14, 1, 2, 0}, {2048, 512, 7, 1, 1, 0},  {512, 512, 7, 3, 1, 1}};
    static const wf_dtype types[] = {WF_F32, WF_BF16, WF_F16};
    for (size_t i = 0; i < sizeof shape / sizeof *shape; i++)
        for (int t = 0; t < 3; t++) {
            const int64_t *const s = shape[i];
            const layer l = square(types[t], 32, s[0], s[1], s[2], s[3], s[4], s[5]);
            all_directions(&l);
        }
}

/* Asks about convolutions of ConvNeXt-T: patches, and one filter a channel at its first and last stage. */
static void convnext(void)
{
    static const int64_t shape[][7] = {
        {3, 96, 224, 4, 4, 0, 1}, {96, 96, 56, 7, 1, 3, 96}, {96, 192, 56, 2, 2, 0, 1}, {768, 768, 7, 7, 1, 3, 768}};
    static const wf_dtype types[] = {WF_F32, WF_BF16};
    for (size_t i = 0; i < sizeof shape / sizeof *shape; i++)
        for (int t = 0; t < 2; t++) {
            const int64_t *const s = shape[i];
            layer l = square(types[t], 32, s[0], s[1], s[2], s[3], s[4], s[5]);
            l.geom.groups = (int)s[6];
            all_directions(&l);
        }
}

/* Channels that fit packs, and others. */
static int64_t channels(test_rng *rng)
{
    const int64_t packs = test_int(rng, 1, 24) * 8;
    return test_int(rng, 0, 3) ? packs : test_int(rng, 1, 70);
}

/* Pads may differ, leave windows wholly in the padding, and crop. */
static layer random_layer(test_rng *rng)
{
    static const wf_dtype types[] = {WF_F32, WF_BF16, WF_F16, WF_F64};
    layer l = {
        .dtype = types[test_int(rng, 0, 3)], .geom = {.nd = (int)test_int(rng, 1, 3)}, .n = test_int(rng, 1, 16)};
    wf_conv_geom *const g = &l.geom;
    g->groups = test_int(rng, 0, 9) ? 1 : test_int(rng, 2, 4);
    l.c = channels(rng) * g->groups;
    l.f = channels(rng) * g->groups;
    for (int d = 0; d < g->nd; d++) {
        const bool even = test_int(rng, 0, 3) > 0;
        g->kernel[d] = test_int(rng, 1, g->nd == 3 ? 4 : 7);
        g->stride[d] = test_int(rng, 1, 3);
        g->dilation[d] = test_int(rng, 0, 3) ? 1 : test_int(rng, 2, 3);
        const int64_t reach = g->dilation[d] * (g->kernel[d] - 1) + 1;
        g->pad_lo[d] = even ? test_int(rng, 0, g->kernel[d] / 2) : test_int(rng, -1, reach);
        g->pad_hi[d] = even ? g->pad_lo[d] : test_int(rng, -1, reach);
        l.in[d] = reach + 2 + test_int(rng, 0, g->nd == 3 ? 20 : 60);
    }
    return l;
}

static void random_ones(void)
{
    test_rng rng = {.state = seed};
    for (int i = 0; i < random_count; i++) {
        const layer l = random_layer(&rng);
        all_directions(&l);
    }
}

/* Forms that core/cuda takes for precompiled have engines that are not compiled, and those that it does not ask about
 * have none, or none whose ReLU keeps NaN: where this changes, core/cuda/dnn_plan.c is to ask. */
static void forms(void)
{
    static const struct {
        wf_cuda_direction direction;
        bool bias, wide;
        wf_act act;
        bool engine;
    } form[] = {{WF_CUDA_FORWARD, true, false, WF_ACT_NONE, true},
                {WF_CUDA_FORWARD, true, false, WF_ACT_RELU, false},
                {WF_CUDA_FORWARD, true, false, WF_ACT_LEAKY_RELU, false},
                {WF_CUDA_FORWARD, false, false, WF_ACT_RELU, false},
                {WF_CUDA_BACKWARD_DATA, true, false, WF_ACT_NONE, false},
                {WF_CUDA_BACKWARD_DATA, true, false, WF_ACT_RELU, false},
                {WF_CUDA_BACKWARD_FILTER, false, true, WF_ACT_NONE, false}};
    for (size_t i = 0; i < sizeof form / sizeof *form; i++) {
        cuda_conv_key key;
        memset(&key, 0, sizeof key);
        key = (cuda_conv_key){.direction = (int32_t)form[i].direction,
                              .dtype = WF_BF16,
                              .nd = 2,
                              .n = 8,
                              .c = 64,
                              .f = 64,
                              .groups = 1,
                              .act = (int32_t)form[i].act,
                              .wide = form[i].wide,
                              .align = {16, 16, 16, form[i].bias ? 16 : 0},
                              .slope = form[i].act == WF_ACT_LEAKY_RELU ? 0.2F : 0};
        for (int d = 0; d < 2; d++) {
            key.in[d] = key.out[d] = 16;
            key.kernel[d] = 3;
            key.stride[d] = key.dilation[d] = key.lo[d] = key.hi[d] = 1;
        }
        cuda_conv_plan plan = {.key = key};
        wf_cuda_plan_build(NULL, 0, &plan);
        WF_EXPECT((plan.plan != NULL) == form[i].engine, "form %zu: %s", i,
                  plan.plan ? "has an engine that needs no compilation" : "has no engine that needs no compilation");
        wf_cuda_plan_drop(&plan);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1)
        random_count = atoi(argv[1]);
    if (argc > 2)
        seed = strtoull(argv[2], NULL, 10);
    emulated_idle();
    ctx = wf_ctx_new((wf_ctx_opts){.device = "cuda"});
    WF_MUST(wf_check(ctx));
    const int code = test_main(
        1, argv,
        (test_case[]){{"resnet", resnet}, {"convnext", convnext}, {"random", random_ones}, {"forms", forms}, {0}});
    WF_MUST(wf_ctx_free(ctx));
    return code;
}
