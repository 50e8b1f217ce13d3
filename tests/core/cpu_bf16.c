/* The cpu filling's convolutions of bf16, in every form: against ref, on NaN in outputs and workspace, between guards.
 * The fixed cases are those of core/cpu/dnn_faults.c, one at least for each line; then random ones.
 */
#include "core/context_author.h"
#include "core/processor_author.h"
#include "tests/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD = 4096 };

static wf_ctx *cpu, *ref;
static wf_kernels poisoning;
static wf_status (*alloc)(wf_ctx *ctx, size_t bytes, void **data);

static wf_status alloc_poisoned(wf_ctx *ctx, size_t bytes, void **data)
{
    WF_TRY(alloc(ctx, bytes, data));
    memset(*data, 0xff, bytes);
    return WF_OK;
}

/* An array between guards; all of it NaN, unless it is random. */
typedef struct guarded {
    wf_array array;
    unsigned char *memory;
    size_t bytes;
} guarded;

static guarded guarded_new(wf_dtype dtype, wf_shape shape, uint64_t stream)
{
    guarded g = {.array = {.dtype = dtype, .order = wf_order_default(shape.rank), .shape = shape}};
    g.bytes = (size_t)wf_array_count(&g.array) * wf_dtype_size(dtype);
    g.memory = aligned_alloc(64, (g.bytes + 2 * GUARD + 63) / 64 * 64);
    memset(g.memory, 0xff, g.bytes + 2 * GUARD);
    g.array.data = g.memory + GUARD;
    const wf_random random = {.seed = 1, .stream = stream, .global = shape, .box = wf_box_of_shape(shape)};
    if (stream)
        WF_EXPECT_OK(ref->k->random(ref, WF_NORMAL, &random, 0, 1, &g.array));
    return g;
}

static bool guards_stand(const guarded *g)
{
    bool stand = true;
    for (size_t i = 0; i < GUARD; i++)
        stand = stand && g->memory[i] == 0xff && g->memory[GUARD + g->bytes + i] == 0xff;
    return stand;
}

static double value(const wf_array *a, int64_t i)
{
    float f;
    uint32_t bits = a->dtype == WF_BF16 ? (uint32_t)((const uint16_t *)a->data)[i] << 16 : 0;
    memcpy(&f, a->dtype == WF_BF16 ? (const void *)&bits : (const float *)a->data + i, sizeof f);
    return f;
}

/* |a - b| relative to the sizes of what was summed: NaN stays NaN. */
static double relative_error(const wf_array *a, const wf_array *b)
{
    double difference = 0, size = 1;
    for (int64_t i = 0; i < wf_array_count(a); i++) {
        const double d = value(a, i) - value(b, i);
        difference += d * d;
        size += value(b, i) * value(b, i);
    }
    return sqrt(difference / size);
}

typedef struct geometry {
    int nd;
    wf_dtype dtype;
    int64_t n, c, f, groups;
    int64_t in[3], kernel[3], stride[3], dilation[3], lo[3], hi[3];
    bool wide, accumulate;
} geometry;

typedef struct shapes {
    wf_conv_geom geom;
    wf_shape x, w, y;
} shapes;

static bool shapes_of(const geometry *g, shapes *s)
{
    *s = (shapes){.geom = {.nd = g->nd, .groups = g->groups},
                  .x = {.rank = g->nd + 2, .dim = {g->n, g->c}},
                  .w = {.rank = g->nd + 2, .dim = {g->f, g->c / g->groups}},
                  .y = {.rank = g->nd + 2, .dim = {g->n, g->f}}};
    for (int d = 0; d < g->nd; d++) {
        const int64_t extent = g->in[d] + g->lo[d] + g->hi[d] - g->dilation[d] * (g->kernel[d] - 1) - 1;
        if (extent < 0)
            return false;
        s->x.dim[2 + d] = g->in[d];
        s->w.dim[2 + d] = s->geom.kernel[d] = g->kernel[d];
        s->y.dim[2 + d] = extent / g->stride[d] + 1;
        s->geom.stride[d] = g->stride[d];
        s->geom.dilation[d] = g->dilation[d];
        s->geom.pad_lo[d] = g->lo[d];
        s->geom.pad_hi[d] = g->hi[d];
    }
    return true;
}

static void check(const char *what, const shapes *s, const geometry *g, guarded *got, guarded *want)
{
    char x[WF_SHAPE_TEXT], w[WF_SHAPE_TEXT], y[WF_SHAPE_TEXT];
    const double e = relative_error(&got->array, &want->array), bound = got->array.dtype == WF_BF16 ? 0.01 : 2e-5;
    WF_EXPECT(e < bound, "%s of %s, filter %s, to %s, %lld groups, result of %s%s: relative error %g", what,
              wf_shape_text(s->x, x), wf_shape_text(s->w, w), wf_shape_text(s->y, y), (long long)g->groups,
              wf_dtype_name(got->array.dtype), g->accumulate ? ", added" : "", e);
    WF_EXPECT(guards_stand(got), "%s of %s, filter %s: writes beside its result", what, x, w);
    free(got->memory);
    free(want->memory);
}

/* Which of x, w and y a direction makes. */
typedef enum direction { MAKES_Y, MAKES_X, MAKES_W } direction;

static wf_status run(wf_ctx *ctx, direction what, const wf_conv_args *args)
{
    return what == MAKES_Y   ? ctx->k->conv_forward(ctx, args)
           : what == MAKES_X ? ctx->k->conv_backward_data(ctx, args)
                             : ctx->k->conv_backward_filter(ctx, args);
}

/* bias: forward and to the data with a bias and an activation, to the filter with the gradient of the bias. */
static void compare_one(const geometry *g, const shapes *s, direction what, wf_conv_args args, bool bias)
{
    static const char *const name[] = {"forward", "backward data", "backward filter"};
    const wf_dtype made = g->wide ? WF_F32 : g->dtype;
    const wf_shape shape = what == MAKES_Y ? s->y : what == MAKES_X ? s->x : s->w;
    const wf_array **const out = what == MAKES_Y ? &args.y : what == MAKES_X ? &args.x : &args.w;
    args.accumulate = what == MAKES_W && g->accumulate;
    guarded got = guarded_new(made, shape, args.accumulate ? 4 : 0);
    guarded want = guarded_new(made, shape, args.accumulate ? 4 : 0);
    const bool sums = what == MAKES_W && bias;
    const wf_dtype type = what == MAKES_W ? made : g->dtype;
    const uint64_t filled = what != MAKES_W || args.accumulate ? 5 : 0;
    guarded got_sum = guarded_new(type, WF_SHAPE(what == MAKES_X ? g->c : g->f), filled);
    guarded want_sum = guarded_new(type, got_sum.array.shape, filled);
    const wf_epilogue leaky = {.act = WF_ACT_LEAKY_RELU, .slope = 0.2};
    args.epilogue = bias && what != MAKES_W ? &leaky : NULL;
    *out = &got.array;
    args.bias = bias ? &got_sum.array : NULL;
    WF_EXPECT_OK(run(cpu, what, &args));
    *out = &want.array;
    args.bias = bias ? &want_sum.array : NULL;
    WF_EXPECT_OK(run(ref, what, &args));
    check(name[what], s, g, &got, &want);
    if (sums)
        check("the sum for the bias", s, g, &got_sum, &want_sum);
    else {
        free(got_sum.memory);
        free(want_sum.memory);
    }
}

static void compare(const geometry *g, bool bias)
{
    shapes s;
    if (!shapes_of(g, &s))
        return;
    guarded x = guarded_new(g->dtype, s.x, 1), w = guarded_new(g->dtype, s.w, 2), y = guarded_new(g->dtype, s.y, 3);
    const wf_conv_args args = {.geom = &s.geom, .x = &x.array, .w = &w.array, .y = &y.array};
    for (int what = MAKES_Y; what <= MAKES_W; what++)
        compare_one(g, &s, (direction)what, args, bias);
    free(x.memory);
    free(w.memory);
    free(y.memory);
}

#define B WF_BF16
#define F WF_F32
/* Filter gradients of depthwise convolutions (core/cpu/depthwise.c), by whole vectors of channels and a rest. */
static const geometry depthwise[] = {
    {2, B, 2, 40, 40, 40, {12, 11}, {7, 7}, {1, 1}, {1, 1}, {3, 3}, {3, 3}, true, true},
    {2, B, 2, 40, 40, 40, {12, 11}, {7, 7}, {2, 1}, {1, 1}, {3, 3}, {2, 3}, false, false},
    {2, B, 3, 96, 96, 96, {7, 7}, {7, 7}, {1, 1}, {1, 1}, {3, 3}, {3, 3}, true, false},
    {2, B, 3, 96, 96, 96, {7, 7}, {7, 7}, {1, 1}, {1, 1}, {3, 3}, {3, 3}, false, true},
};

static const geometry faults[] = {
    /* windows in padding alone, forwards */
    {2, B, 5, 16, 64, 1, {1, 17}, {3, 3}, {1, 1}, {2, 1}, {3, 3}, {1, 1}, true, false},
    {2, B, 3, 32, 3, 1, {17, 33}, {4, 4}, {3, 3}, {1, 1}, {1, 1}, {5, 5}, false, false},
    {3, B, 2, 48, 4, 1, {6, 3, 2}, {3, 3, 3}, {2, 2, 1}, {1, 1, 1}, {0, 0, 5}, {5, 5, 2}, false, false},
    {3, B, 1, 64, 8, 4, {1, 8, 2}, {4, 4, 4}, {1, 1, 1}, {2, 2, 2}, {5, 5, 5}, {1, 1, 1}, true, false},
    {1, F, 1, 2, 1, 1, {1}, {2}, {1}, {1}, {2}, {4}, false, false},
    /* windows with gaps between them, forwards, on several threads */
    {2, B, 2, 200, 64, 1, {4, 6}, {1, 2}, {2, 2}, {1, 1}, {0, 1}, {0, 2}, false, false},
    {2, B, 3, 256, 64, 1, {7, 9}, {2, 1}, {3, 3}, {1, 1}, {1, 0}, {1, 0}, true, false},
    /* elements under no window, backwards */
    {2, B, 5, 2, 4, 2, {1, 8}, {3, 3}, {1, 1}, {2, 2}, {3, 3}, {1, 1}, true, false},
    /* taps on padding alone */
    {2, B, 5, 16, 32, 1, {8, 1}, {7, 7}, {3, 3}, {1, 1}, {2, 2}, {5, 5}, true, false},
    {2, B, 2, 5, 32, 1, {16, 2}, {3, 5}, {3, 3}, {1, 1}, {1, 2}, {1, 5}, false, true},
    {3, B, 2, 2, 2, 2, {6, 1, 6}, {5, 3, 5}, {1, 2, 1}, {1, 1, 1}, {0, 1, 0}, {1, 1, 1}, true, true},
    {3, F, 2, 8, 16, 1, {6, 1, 6}, {3, 3, 3}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, false, false},
    /* strides in padded depth, and in a depth of which more than one window starts in the padding */
    {3, B, 2, 48, 64, 1, {3, 9, 4}, {4, 5, 4}, {3, 1, 3}, {1, 1, 1}, {1, 0, 1}, {3, 1, 3}, false, true},
    {3, B, 5, 32, 64, 4, {4, 9, 6}, {4, 4, 4}, {2, 2, 2}, {1, 1, 1}, {1, 1, 1}, {3, 3, 3}, true, false},
    {3, F, 2, 16, 16, 1, {8, 6, 6}, {5, 3, 3}, {2, 1, 1}, {1, 1, 1}, {3, 1, 1}, {3, 1, 1}, false, false},
    /* gradients of f32: groups, volumes */
    {2, B, 2, 16, 2, 2, {12, 33}, {4, 4}, {1, 1}, {2, 2}, {1, 1}, {1, 1}, true, true},
    {3, B, 1, 64, 8, 4, {1, 6, 2}, {2, 5, 2}, {1, 2, 1}, {1, 1, 1}, {1, 1, 1}, {1, 0, 1}, true, true},
    {3, B, 3, 3, 8, 1, {6, 6, 6}, {3, 3, 3}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, true, false},
    {3, B, 2, 32, 16, 1, {8, 9, 10}, {3, 3, 3}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, true, true},
    {3, B, 2, 16, 32, 1, {8, 8, 8}, {2, 2, 2}, {2, 2, 2}, {1, 1, 1}, {0, 0, 0}, {0, 0, 0}, true, false},
    /* volumes smaller than the filter, or than a stride */
    {3, B, 3, 3, 16, 1, {2, 7, 7}, {3, 3, 3}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {1, 0, 1}, true, false},
    {3, B, 2, 24, 4, 1, {1, 5, 7}, {2, 3, 5}, {1, 1, 1}, {1, 1, 1}, {1, 0, 1}, {1, 0, 1}, true, true},
    {3, B, 2, 1, 16, 1, {7, 4, 1}, {3, 3, 1}, {1, 1, 2}, {1, 1, 1}, {0, 1, 0}, {0, 1, 0}, true, false},
    /* gradients of dilated filters with a rest of channels beyond 32 */
    {2, B, 2, 40, 16, 1, {10, 10}, {3, 3}, {1, 1}, {2, 2}, {2, 2}, {2, 2}, true, false},
    {2, B, 2, 65, 16, 1, {10, 10}, {3, 3}, {1, 1}, {3, 1}, {3, 1}, {3, 1}, true, true},
    {3, B, 2, 40, 16, 1, {6, 6, 6}, {3, 3, 3}, {1, 1, 1}, {2, 1, 1}, {2, 1, 1}, {2, 1, 1}, true, false},
    {3, B, 2, 36, 16, 1, {6, 6, 6}, {3, 3, 3}, {1, 1, 1}, {1, 2, 1}, {1, 2, 1}, {1, 2, 1}, true, false},
    /* gradients of dilated filters with a rest of channels, over more than 28 columns of y */
    {2, B, 2, 6, 15, 3, {4, 42}, {1, 4}, {1, 1}, {2, 2}, {0, 0}, {0, 0}, false, true},
    {2, B, 1, 3, 3, 3, {31, 37}, {3, 3}, {1, 1}, {2, 2}, {0, 0}, {0, 0}, false, true},
    {2, B, 1, 9, 3, 3, {31, 33}, {2, 3}, {1, 1}, {2, 1}, {0, 0}, {0, 0}, false, false},
    {2, B, 2, 20, 16, 1, {9, 40}, {3, 3}, {1, 1}, {2, 1}, {0, 0}, {0, 0}, true, false},
    {3, B, 1, 20, 8, 1, {5, 5, 40}, {2, 2, 3}, {1, 1, 1}, {1, 2, 1}, {0, 0, 0}, {0, 0, 0}, true, false},
    /* lines and rows shorter than a stride: gradients of filters */
    {1, B, 1, 1, 6, 1, {2}, {1}, {3}, {1}, {0}, {0}, false, false},
    {2, B, 2, 1, 3, 1, {10, 2}, {4, 1}, {2, 3}, {1, 1}, {0, 0}, {0, 0}, false, true},
    /* strided pixels of fewer channels than a vector: gradients of filters */
    {2, F, 4, 3, 64, 1, {64, 64}, {1, 1}, {2, 2}, {1, 1}, {0, 0}, {0, 0}, false, false},
    {2, F, 2, 7, 24, 1, {30, 15}, {1, 1}, {2, 1}, {1, 1}, {0, 0}, {0, 0}, false, true},
    {2, F, 2, 13, 24, 1, {15, 30}, {1, 1}, {1, 3}, {1, 1}, {0, 0}, {0, 0}, false, false},
    {1, F, 2, 2, 17, 1, {1024}, {1}, {4}, {1}, {0}, {0}, false, false},
    {2, B, 2, 3, 32, 1, {32, 32}, {1, 1}, {2, 2}, {1, 1}, {0, 0}, {0, 0}, true, false},
    {2, B, 2, 15, 33, 1, {32, 32}, {1, 1}, {2, 2}, {1, 1}, {0, 0}, {0, 0}, false, false},
    /* an odd number of channels, backwards */
    {2, B, 2, 16, 5, 1, {7, 7}, {1, 1}, {1, 1}, {1, 1}, {0, 0}, {0, 0}, false, false},
};

/* What is made as a product (core/cpu/columns.c): gradients of filters of bf16, in lines, images and volumes, the last
 * one in more than one piece; of f32; and all directions, the last one with more than one piece to the data. */
static const geometry products[] = {
    {1, B, 3, 128, 128, 1, {9}, {4}, {2}, {1}, {1}, {3}, true, false},
    {2, B, 2, 128, 144, 1, {8, 5}, {3, 3}, {1, 1}, {1, 2}, {1, 2}, {1, 2}, true, true},
    {2, B, 3, 130, 129, 1, {7, 9}, {3, 2}, {2, 1}, {1, 1}, {0, 1}, {2, 0}, true, false},
    {3, B, 2, 128, 128, 1, {3, 4, 5}, {3, 1, 2}, {1, 2, 1}, {1, 1, 1}, {1, 0, 0}, {1, 1, 1}, true, true},
    {2, B, 11, 128, 128, 1, {8, 8}, {7, 7}, {1, 1}, {1, 1}, {3, 3}, {3, 3}, true, false},
    {2, F, 5, 128, 129, 1, {2, 2}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, true, false},
    {2, F, 5, 131, 128, 1, {4, 3}, {3, 2}, {2, 2}, {1, 1}, {1, 0}, {1, 0}, true, true},
    {2, B, 3, 256, 257, 1, {4, 4}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, false, false},
    {1, B, 9, 300, 256, 1, {11}, {4}, {2}, {2}, {3}, {1}, false, false},
    {3, B, 2, 256, 256, 1, {3, 4, 5}, {2, 3, 3}, {2, 2, 3}, {1, 1, 2}, {0, 1, 1}, {1, 1, 2}, false, false},
    {2, B, 22, 256, 256, 1, {4, 4}, {5, 5}, {1, 1}, {1, 1}, {2, 2}, {2, 2}, false, false},
};

/* Kernels of one pixel, whose filter's gradient is a product of its own (core/cpu/pointwise.c): columns of x and of dy,
 * tiles of every height and width, vectors that are not full, an odd number of pixels, lines, images and volumes. */
static const geometry points[] = {
    {1, B, 3, 99, 33, 1, {21221}, {1}, {1}, {1}, {0}, {0}, true, true},
    {2, B, 1, 64, 10, 1, {181, 183}, {1, 1}, {1, 1}, {1, 1}, {0, 0}, {0, 0}, true, false},
    {2, B, 3, 76, 16, 1, {173, 179}, {1, 1}, {1, 1}, {1, 1}, {0, 0}, {0, 0}, true, true},
    {3, B, 2, 103, 7, 1, {19, 31, 29}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {0, 0, 0}, {0, 0, 0}, true, false},
};

/* Groups of four and eight channels (core/cpu/grouped.c): strides, pads that differ, or are wider than the kernel and
 * the image, kernels of one to five rows, several strips of an image, more samples than slices, tiles of every length.
 */
static const geometry groups[] = {
    {2, F, 2, 32, 32, 8, {9, 30}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, false, true},
    {2, F, 2, 32, 32, 8, {11, 17}, {5, 3}, {1, 1}, {1, 1}, {4, 0}, {1, 2}, false, false},
    {2, F, 3, 64, 64, 8, {15, 17}, {3, 3}, {2, 2}, {1, 1}, {1, 0}, {0, 2}, false, false},
    {2, F, 1, 64, 64, 16, {75, 70}, {3, 3}, {2, 2}, {1, 1}, {1, 1}, {1, 1}, false, true},
    {2, F, 1, 16, 16, 4, {3, 2}, {3, 3}, {1, 1}, {1, 1}, {4, 4}, {5, 5}, false, false},
    {2, F, 17, 32, 32, 4, {7, 7}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, false, false},
    {2, B, 2, 64, 64, 16, {57, 56}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, true, true},
    {2, B, 1, 48, 48, 6, {40, 70}, {5, 3}, {1, 1}, {1, 1}, {0, 2}, {3, 0}, true, false},
    {2, B, 2, 32, 32, 4, {13, 20}, {3, 3}, {2, 2}, {1, 1}, {0, 1}, {1, 0}, true, true},
    {2, B, 1, 16, 16, 4, {20, 3}, {1, 3}, {1, 1}, {1, 1}, {0, 0}, {0, 0}, false, false},
};

/* On one thread and on two, without and with a bias. */
static void compare_all(const geometry *g)
{
    for (int i = 0; i < 4; i++) {
        WF_EXPECT_OK(wf_ctx_set_threads(cpu, 1 + i % 2));
        compare(g, i >= 2);
    }
}

static void fault_cases(void)
{
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        compare_all(&faults[i]);
}

static void product_cases(void)
{
    for (size_t i = 0; i < sizeof products / sizeof *products; i++) {
        WF_EXPECT_OK(wf_ctx_set_threads(cpu, 1 + (int)(i % 2)));
        compare(&products[i], i % 2 == 1);
    }
}

static void group_cases(void)
{
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        for (int bias = 0; bias < 2; bias++) {
            WF_EXPECT_OK(wf_ctx_set_threads(cpu, 1 + (int)((i + (size_t)bias) % 2)));
            compare(&groups[i], bias);
        }
}

/* Returns true if oneDNN has kernels for bf16 here, which read filters in packed formats. */
static bool packs_bf16(void)
{
#if defined(__x86_64__)
    const char *isa = getenv("ONEDNN_MAX_CPU_ISA");
    return __builtin_cpu_supports("avx512bf16") && (!isa || strstr(isa, "AMX") || strstr(isa, "BF16"));
#else
    return false;
#endif
}

#if defined(__x86_64__)
/* Returns true if the processor has AMX for bf16; clang 14 does not know the word in __builtin_cpu_supports. */
static bool has_amx(void)
{
    char line[8192];
    bool has = false;
    FILE *const f = fopen("/proc/cpuinfo", "r");
    while (f && !has && fgets(line, sizeof line, f))
        has = strstr(line, " amx_bf16") != NULL;
    if (f)
        fclose(f);
    return has;
}
#endif

/* Returns true if the cpu table multiplies bf16 with this library's own products, not with AMX. */
static bool has_points(void)
{
#if defined(__x86_64__)
    const char *const isa = getenv("ONEDNN_MAX_CPU_ISA");
    return packs_bf16() && strcmp(wf_processor_level(), "x86-64-v4") == 0 &&
           (!has_amx() || (isa && !strstr(isa, "AMX")));
#else
    return false;
#endif
}

static void point_cases(void)
{
    for (size_t i = 0; i < sizeof points / sizeof *points; i++) {
        const geometry *const g = &points[i];
        shapes s;
        WF_EXPECT(shapes_of(g, &s), "a geometry without outputs");
        guarded x = guarded_new(B, s.x, 1), y = guarded_new(B, s.y, 3);
        const int64_t plans = wf_ctx_memory(cpu).plans;
        WF_EXPECT_OK(wf_ctx_set_threads(cpu, 1 + (int)(i % 2)));
        compare_one(g, &s, MAKES_W, (wf_conv_args){.geom = &s.geom, .x = &x.array, .y = &y.array}, i != 1);
        WF_EXPECT(!has_points() || wf_ctx_memory(cpu).plans == plans, "%lld to %lld channels: by oneDNN",
                  (long long)g->c, (long long)g->f);
        free(x.memory);
        free(y.memory);
    }
}

static void depthwise_cases(void)
{
    for (size_t i = 0; i < sizeof depthwise / sizeof *depthwise; i++)
        compare_all(&depthwise[i]);
}

static geometry random_geometry(test_rng *rng)
{
    static const int64_t channels[] = {1, 3, 4, 8, 16, 17, 32, 40, 64}, divisors[] = {1, 1, 1, 2, 4},
                         pads[] = {0, 1, 1, 2, 4};
    geometry g = {.nd = (int)test_int(rng, 1, 3), .dtype = WF_BF16, .n = test_int(rng, 1, 4)};
    g.groups = divisors[test_int(rng, 0, 4)];
    g.c = g.groups * channels[test_int(rng, 0, g.groups > 1 ? 4 : 8)];
    g.f = g.groups * channels[test_int(rng, 0, g.groups > 1 ? 4 : 8)];
    g.wide = test_int(rng, 0, 1);
    g.accumulate = test_int(rng, 0, 1);
    for (int d = 0; d < g.nd; d++) {
        g.in[d] = test_int(rng, 1, g.nd == 3 ? 8 : 17);
        g.kernel[d] = test_int(rng, 1, 5);
        g.stride[d] = test_int(rng, 0, 2) == 0 ? 2 : 1;
        g.dilation[d] = test_int(rng, 0, 3) == 0 ? 2 : 1;
        g.lo[d] = pads[test_int(rng, 0, 4)];
        g.hi[d] = pads[test_int(rng, 0, 4)];
    }
    return g;
}

static void random_cases(void)
{
    test_rng rng = {7};
    for (int i = 0; i < 80; i++) {
        const geometry g = random_geometry(&rng);
        WF_EXPECT_OK(wf_ctx_set_threads(cpu, 1 + i % 2));
        compare(&g, false);
    }
}

/* What a convolution makes of the filter, written to a new array. */
static guarded made(direction what, const shapes *s, wf_conv_args args)
{
    guarded out = guarded_new(WF_BF16, what == MAKES_Y ? s->y : s->x, 0);
    *(what == MAKES_Y ? &args.y : &args.x) = &out.array;
    WF_EXPECT_OK(run(cpu, what, &args));
    return out;
}

/* A packed filter of bf16 is made once for each version of the filter: one whose numbers change while its version
 * stands is not read again, and one with a new version is. */
static void expect_kept(const geometry *g, direction what)
{
    shapes s;
    wf_packed_form *forms = NULL;
    WF_EXPECT(shapes_of(g, &s), "a geometry without outputs");
    guarded x = guarded_new(g->dtype, s.x, 1), w = guarded_new(g->dtype, s.w, 2), y = guarded_new(g->dtype, s.y, 3);
    w.array.forms = &forms;
    const wf_conv_args args = {.geom = &s.geom, .x = &x.array, .w = &w.array, .y = &y.array, .w_reused = true};
    guarded first = made(what, &s, args);
    uint16_t *const number = w.array.data;
    for (int64_t i = 0; i < wf_array_count(&w.array); i++)
        number[i] ^= 0x8000; /* the sign */
    guarded second = made(what, &s, args);
    w.array.version++;
    guarded third = made(what, &s, args);
    WF_EXPECT(forms && memcmp(first.array.data, second.array.data, first.bytes) == 0,
              "%lld to %lld channels: a filter is packed again although its version stands", (long long)g->c,
              (long long)g->f);
    WF_EXPECT(memcmp(second.array.data, third.array.data, first.bytes) != 0,
              "%lld to %lld channels: a filter with a new version is not packed", (long long)g->c, (long long)g->f);
    wf_packed_free(cpu, &forms);
    free(first.memory);
    free(second.memory);
    free(third.memory);
    free(x.memory);
    free(w.memory);
    free(y.memory);
}

static void kept_filters(void)
{
    static const geometry list[] = {
        {2, B, 2, 32, 48, 1, {12, 12}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, false, false},
        {2, B, 2, 64, 32, 1, {9, 9}, {1, 1}, {1, 1}, {1, 1}, {0, 0}, {0, 0}, false, false},
        {3, B, 2, 16, 32, 1, {6, 6, 6}, {3, 3, 3}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, false, false},
        {2, B, 1, 512, 512, 1, {4, 4}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, {1, 1}, false, false}, /* a product forwards */
    };
    for (size_t i = 0; packs_bf16() && i < sizeof list / sizeof *list; i++)
        for (int what = MAKES_Y; what <= (i < 3 ? MAKES_X : MAKES_Y); what++)
            expect_kept(&list[i], (direction)what);
}

/* Says in one line that it is slower, where the processor has no instructions for it. */
static void compute(void)
{
    WF_EXPECT_OK(wf_ctx_set_compute(cpu, WF_BF16));
    WF_EXPECT_OK(wf_ctx_set_compute(cpu, WF_F32));
}

int main(int argc, char **argv)
{
    cpu = wf_ctx_new((wf_ctx_opts){.device = "cpu"});
    ref = wf_ctx_new((wf_ctx_opts){.device = "ref"});
    WF_MUST(wf_check(cpu));
    WF_MUST(wf_check(ref));
    poisoning = *cpu->k;
    alloc = poisoning.alloc;
    poisoning.alloc = alloc_poisoned;
    cpu->k = &poisoning;
    const int code = test_main(argc, argv,
                               (test_case[]){{"fault_cases", fault_cases},
                                             {"product_cases", product_cases},
                                             {"point_cases", point_cases},
                                             {"group_cases", group_cases},
                                             {"depthwise_cases", depthwise_cases},
                                             {"random_cases", random_cases},
                                             {"kept_filters", kept_filters},
                                             {"compute", compute},
                                             {0}});
    WF_MUST(wf_ctx_free(cpu));
    WF_MUST(wf_ctx_free(ref));
    return code;
}
