/* The cpu filling's convolutions where it has several forms to choose from: minimal filtering, oneDNN, kept filters.
 * Against ref, on shapes that are large enough for the fast forms. */
#include "core/context_author.h"
#include "core/processor_author.h"
#include "tests/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static wf_ctx *cpu, *ref;

static wf_array array_new(wf_shape shape, uint64_t stream)
{
    wf_array a = {.dtype = WF_F32, .order = wf_order_default(shape.rank), .shape = shape};
    const wf_random random = {.seed = 1, .stream = stream, .global = shape, .box = wf_box_of_shape(shape)};
    WF_EXPECT_OK(wf_pool_take(cpu, (size_t)wf_array_count(&a) * sizeof(float), &a.data));
    WF_EXPECT_OK(ref->k->random(ref, WF_NORMAL, &random, 0, 1, &a));
    return a;
}

static void array_free(wf_array *a)
{
    wf_pool_give(cpu, a->data, (size_t)wf_array_count(a) * sizeof(float));
}

/* |a - b| relative to |b|, both as vectors. */
static double relative_error(const wf_array *a, const wf_array *b)
{
    const float *const x = a->data, *const y = b->data;
    double difference = 0, size = 0;
    for (int64_t i = 0; i < wf_array_count(a); i++) {
        const double d = (double)x[i] - (double)y[i];
        difference += d * d;
        size += (double)y[i] * (double)y[i];
    }
    return sqrt(difference / (size + 1e-30));
}

typedef struct layer {
    wf_conv_geom geom;
    wf_array x, w, y, bias_y, bias_x;
} layer;

static layer layer_new(int64_t n, int64_t c, int64_t f, const int64_t in[2], int64_t kernel, int64_t stride,
                       const int64_t pad[4])
{
    layer l = {.geom = {.nd = 2, .groups = 1}};
    int64_t out[2];
    for (int d = 0; d < 2; d++) {
        l.geom.kernel[d] = kernel;
        l.geom.stride[d] = stride;
        l.geom.dilation[d] = 1;
        l.geom.pad_lo[d] = pad[2 * d];
        l.geom.pad_hi[d] = pad[2 * d + 1];
        out[d] = (in[d] + pad[2 * d] + pad[2 * d + 1] - kernel) / stride + 1;
    }
    l.x = array_new(WF_SHAPE(n, c, in[0], in[1]), 1);
    l.w = array_new(WF_SHAPE(f, c, kernel, kernel), 2);
    l.y = array_new(WF_SHAPE(n, f, out[0], out[1]), 3);
    l.bias_y = array_new(WF_SHAPE(f), 4);
    l.bias_x = array_new(WF_SHAPE(c), 5);
    return l;
}

static void layer_free(layer *l)
{
    array_free(&l->x);
    array_free(&l->w);
    array_free(&l->y);
    array_free(&l->bias_y);
    array_free(&l->bias_x);
}

static void check(const char *what, const layer *l, const wf_array *got, const wf_array *want)
{
    char x[WF_SHAPE_TEXT], w[WF_SHAPE_TEXT];
    const double e = relative_error(got, want);
    WF_EXPECT(e < 4e-6, "%s of %s with %s, pads %lld,%lld %lld,%lld: relative error %g", what,
              wf_shape_text(l->x.shape, x), wf_shape_text(l->w.shape, w), (long long)l->geom.pad_lo[0],
              (long long)l->geom.pad_hi[0], (long long)l->geom.pad_lo[1], (long long)l->geom.pad_hi[1], e);
}

static void compare(const layer *l, const wf_epilogue *epilogue, bool accumulate)
{
    wf_array y = array_new(l->y.shape, 6), y_ref = array_new(l->y.shape, 7);
    wf_array dx = array_new(l->x.shape, 6), dx_ref = array_new(l->x.shape, 7);
    wf_array dw = array_new(l->w.shape, 8), dw_ref = array_new(l->w.shape, 8);
    wf_array db = array_new(l->bias_y.shape, 8), db_ref = array_new(l->bias_y.shape, 8);
    WF_EXPECT_OK(cpu->k->conv_forward(
        cpu,
        &(wf_conv_args){.geom = &l->geom, .x = &l->x, .w = &l->w, .bias = &l->bias_y, .epilogue = epilogue, .y = &y}));
    WF_EXPECT_OK(ref->k->conv_forward(
        ref, &(wf_conv_args){
                 .geom = &l->geom, .x = &l->x, .w = &l->w, .bias = &l->bias_y, .epilogue = epilogue, .y = &y_ref}));
    check("forward", l, &y, &y_ref);
    WF_EXPECT_OK(cpu->k->conv_backward_data(
        cpu,
        &(wf_conv_args){.geom = &l->geom, .y = &l->y, .w = &l->w, .bias = &l->bias_x, .epilogue = epilogue, .x = &dx}));
    WF_EXPECT_OK(ref->k->conv_backward_data(
        ref, &(wf_conv_args){
                 .geom = &l->geom, .y = &l->y, .w = &l->w, .bias = &l->bias_x, .epilogue = epilogue, .x = &dx_ref}));
    check("backward data", l, &dx, &dx_ref);
    WF_EXPECT_OK(cpu->k->conv_backward_filter(
        cpu,
        &(wf_conv_args){.geom = &l->geom, .x = &l->x, .y = &l->y, .w = &dw, .bias = &db, .accumulate = accumulate}));
    WF_EXPECT_OK(ref->k->conv_backward_filter(
        ref, &(wf_conv_args){
                 .geom = &l->geom, .x = &l->x, .y = &l->y, .w = &dw_ref, .bias = &db_ref, .accumulate = accumulate}));
    check("backward filter", l, &dw, &dw_ref);
    check("bias gradient", l, &db, &db_ref);
    wf_array *const all[] = {&y, &y_ref, &dx, &dx_ref, &dw, &dw_ref, &db, &db_ref};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        array_free(all[i]);
}

static void geometries(void)
{
    static const struct {
        int64_t n, c, f, in[2], kernel, stride, pad[4];
    } list[] = {
        {2, 32, 16, {16, 16}, 3, 1, {1, 1, 1, 1}},
        {3, 16, 48, {11, 18}, 3, 1, {0, 2, 1, 0}},
        {2, 48, 32, {15, 13}, 3, 1, {2, 1, 0, 0}},
        {8, 64, 64, {8, 8}, 3, 1, {1, 1, 1, 1}},
        {33, 16, 80, {4, 4}, 3, 1, {1, 1, 1, 1}},
        {3, 3, 32, {15, 16}, 3, 1, {1, 1, 1, 1}},
        {4, 32, 5, {12, 12}, 3, 1, {1, 1, 1, 1}},
        {2, 32, 16, {32, 32}, 4, 2, {1, 1, 1, 1}},
        {4, 16, 64, {15, 17}, 4, 2, {0, 1, 1, 2}},
        {4, 16, 32, {18, 19}, 4, 2, {2, 2, 1, 0}},
        {40, 48, 32, {8, 8}, 4, 2, {1, 1, 1, 1}},
        {6, 8, 48, {16, 16}, 4, 2, {1, 1, 1, 1}},
        {2, 32, 32, {17, 18}, 3, 1, {1, -1, -2, 1}},
        {2, 16, 16, {34, 35}, 4, 2, {-1, 1, 1, -2}},
        {130, 64, 16, {4, 4}, 3, 1, {1, 1, 1, 1}},
        /* Products of matrices with AVX2; the second in pieces. */
        {2, 64, 64, {15, 18}, 3, 2, {1, 1, 1, 1}},
        {11, 80, 96, {34, 35}, 3, 2, {0, 2, -1, 1}},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        const wf_epilogue leaky = {.act = WF_ACT_LEAKY_RELU, .slope = 0.2}, relu = {.act = WF_ACT_RELU};
        layer l = layer_new(list[i].n, list[i].c, list[i].f, list[i].in, list[i].kernel, list[i].stride, list[i].pad);
        compare(&l, i % 3 == 0 ? NULL : i % 3 == 1 ? &leaky : &relu, i % 2 == 1);
        layer_free(&l);
    }
}

/* What forward and backward to the data make of the filter that changes by `change` while its version stands. */
static void expect_kept(const layer *l, float change)
{
    wf_array y[2], dx[2];
    for (int i = 0; i < 2; i++) {
        y[i] = array_new(l->y.shape, 6);
        dx[i] = array_new(l->x.shape, 7);
        WF_EXPECT_OK(cpu->k->conv_forward(cpu, &(wf_conv_args){.geom = &l->geom, .x = &l->x, .w = &l->w, .y = &y[i]}));
        WF_EXPECT_OK(
            cpu->k->conv_backward_data(cpu, &(wf_conv_args){.geom = &l->geom, .y = &l->y, .w = &l->w, .x = &dx[i]}));
        *(float *)l->w.data += change;
    }
    WF_EXPECT(relative_error(&y[1], &y[0]) == 0, "forward reads the filter again, although its version stands");
    WF_EXPECT(relative_error(&dx[1], &dx[0]) == 0, "backward data reads the filter again, although its version stands");
    for (int i = 0; i < 2; i++) {
        array_free(&y[i]);
        array_free(&dx[i]);
    }
}

/* A kept form is used while the version stands, and made anew when it moves. */
static void kept_filters(void)
{
    static const int64_t in[2] = {12, 12}, pad[4] = {1, 1, 1, 1}, channels[2] = {32, 24};
    for (int i = 0; i < 2; i++) {
        layer l = layer_new(4, channels[i], 32, in, 3, 1, pad);
        wf_packed_form *forms = NULL;
        l.w.forms = &forms;
        compare(&l, NULL, false);
        WF_EXPECT(forms != NULL, "no form was kept");
        expect_kept(&l, 3);
        l.w.version++;
        compare(&l, NULL, false);
        const int64_t takes = wf_ctx_memory(cpu).system_allocations;
        compare(&l, NULL, false);
        WF_EXPECT(wf_ctx_memory(cpu).system_allocations == takes, "a repeated call allocates");
        wf_packed_free(cpu, &forms);
        layer_free(&l);
    }
}

/* A filter that is read in more forms than are kept: the others are dropped, and made again where they are wanted. The
 * same numbers stand for filters of several shapes, each of which wants forms of its own. */
static void bounded_forms(void)
{
    static const int64_t in[2] = {12, 12}, pad[4] = {1, 1, 1, 1};
    static const int64_t shape[][2] = {{16, 16}, {16, 32}, {48, 16}, {32, 32}, {16, 80}, {32, 48}};
    wf_packed_form *forms = NULL;
    layer l[6];
    for (int i = 0; i < 6; i++)
        l[i] = layer_new(4, shape[i][0], shape[i][1], in, 3, 1, pad);
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < 6; i++) {
            l[i].w.forms = &forms;
            l[i].w.version = 6 * (uint64_t)round + (uint64_t)i;
            compare(&l[i], NULL, false);
            int kept = 0;
            for (const wf_packed_form *form = forms; form; form = form->next)
                kept++;
            WF_EXPECT(kept >= 1 && kept <= 8, "%d forms of a filter are kept, should be 8 at most", kept);
        }
    wf_packed_free(cpu, &forms);
    for (int i = 0; i < 6; i++)
        layer_free(&l[i]);
}

/* A product with a matrix that is reused has the same bits whether or not there is a place for a packed copy. */
static void products_without_place(void)
{
    enum { M = 16, K = 1000, N = 1024 };
    wf_packed_form *forms = NULL;
    wf_array a = array_new(WF_SHAPE(M, K), 1), b = array_new(WF_SHAPE(K, N), 2), c[2];
    for (int i = 0; i < 2; i++) {
        c[i] = array_new(WF_SHAPE(M, N), 3);
        b.forms = i ? &forms : NULL;
        WF_EXPECT_OK(cpu->k->matmul(cpu, &(wf_matmul_args){.a = &a, .b = &b, .b_reused = true, .c = &c[i]}));
    }
    WF_EXPECT(memcmp(c[0].data, c[1].data, sizeof(float) * M * N) == 0, "other bits where b has a place for forms");
    wf_packed_free(cpu, &forms);
    b.forms = NULL;
    array_free(&a);
    array_free(&b);
    array_free(&c[0]);
    array_free(&c[1]);
}

/* Filter gradients of convolutions with as many groups as channels, or a quarter: strides, dilations, pads, images of
 * several strips, channels that fill no block; and the same bits whatever the threads, where the sums are this
 * library's own. */
static void grouped(void)
{
    static const struct {
        int64_t n, c, members, in[2], kernel[2], stride, dilation, pad[4];
    } list[] = {
        {2, 32, 1, {20, 20}, {7, 7}, 1, 1, {3, 3, 3, 3}}, {1, 40, 1, {90, 80}, {7, 7}, 1, 1, {3, 3, 3, 3}},
        {3, 5, 1, {9, 13}, {5, 5}, 2, 1, {2, 1, 0, 2}},   {2, 33, 1, {17, 11}, {3, 4}, 1, 2, {2, 2, 3, 3}},
        {2, 70, 1, {12, 12}, {9, 1}, 1, 1, {4, 4, 0, 0}}, {2, 16, 1, {6, 24}, {2, 15}, 3, 1, {0, 1, 7, 7}},
        {17, 48, 1, {7, 7}, {7, 7}, 1, 1, {3, 3, 3, 3}},  {1, 3, 1, {4, 4}, {6, 6}, 1, 1, {5, 5, 5, 5}},
        {0, 32, 1, {20, 20}, {7, 7}, 1, 1, {3, 3, 3, 3}}, {5, 32, 4, {70, 66}, {3, 3}, 1, 1, {1, 1, 1, 1}},
        {0, 32, 4, {70, 66}, {3, 3}, 1, 1, {1, 1, 1, 1}},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        layer l = {.geom = {.nd = 2, .groups = list[i].c / list[i].members}};
        int64_t out[2];
        for (int d = 0; d < 2; d++) {
            l.geom.kernel[d] = list[i].kernel[d];
            l.geom.stride[d] = list[i].stride;
            l.geom.dilation[d] = list[i].dilation;
            l.geom.pad_lo[d] = list[i].pad[2 * d];
            l.geom.pad_hi[d] = list[i].pad[2 * d + 1];
            const int64_t padded = list[i].in[d] + l.geom.pad_lo[d] + l.geom.pad_hi[d];
            out[d] = (padded - list[i].dilation * (list[i].kernel[d] - 1) - 1) / list[i].stride + 1;
        }
        l.x = array_new(WF_SHAPE(list[i].n, list[i].c, list[i].in[0], list[i].in[1]), 1);
        l.w = array_new(WF_SHAPE(list[i].c, list[i].members, list[i].kernel[0], list[i].kernel[1]), 2);
        l.y = array_new(WF_SHAPE(list[i].n, list[i].c, out[0], out[1]), 3);
        l.bias_y = array_new(WF_SHAPE(list[i].c), 4);
        l.bias_x = array_new(WF_SHAPE(list[i].c), 5);
        compare(&l, NULL, i % 2 == 1);
        wf_array one = array_new(l.w.shape, 9);
        wf_array three = array_new(l.w.shape, 10);
        const int64_t plans = wf_ctx_memory(cpu).plans;
        for (int t = 1; t <= 3; t += 2) {
            WF_EXPECT_OK(wf_ctx_set_threads(cpu, t));
            const wf_conv_args args = {.geom = &l.geom, .x = &l.x, .y = &l.y, .w = t == 1 ? &one : &three};
            WF_EXPECT_OK(cpu->k->conv_backward_filter(cpu, &args));
        }
        WF_EXPECT_OK(wf_ctx_set_threads(cpu, 2));
        /* Groups of four are oneDNN's without AVX-512, whose sums depend on the number of threads. */
        const bool own = wf_ctx_memory(cpu).plans == plans;
        WF_EXPECT(own || list[i].members > 1, "a depthwise filter's gradient is oneDNN's");
        WF_EXPECT(!own || !memcmp(one.data, three.data, (size_t)wf_array_count(&one) * sizeof(float)),
                  "1 and 3 threads give other bits");
        check("gradient of a filter, 3 threads beside 1", &l, &three, &one);
        array_free(&one);
        array_free(&three);
        layer_free(&l);
    }
}

/* Filter gradients of kernels of one pixel over many pixels (core/cpu/pointwise.c): columns of x and of dy, tiles of
 * every height and width, vectors that are not full, lines, images and volumes; by this library's own products with
 * AVX-512, and the same bits whatever the threads; with AVX2 by sgemm, whose sums depend on their number. */
static void points(void)
{
    static const struct {
        int nd;
        int64_t n, c, f, in[3];
    } list[] = {
        {1, 3, 17, 33, {42435}}, {2, 1, 64, 10, {181, 183}},   {2, 2, 6, 76, {193, 201}},
        {2, 2, 5, 1, {192, 97}}, {3, 2, 103, 7, {19, 31, 29}}, {2, 2, 48, 48, {181, 183}},
    };
    const bool own = strcmp(wf_processor_level(), "x86-64-v4") == 0;
    const bool avx2 = strcmp(wf_processor_level(), "x86-64-v3") == 0;
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        wf_shape x = {.rank = list[i].nd + 2, .dim = {list[i].n, list[i].c}}, y = x, w = x;
        layer l = {.geom = {.nd = list[i].nd, .groups = 1}};
        y.dim[1] = w.dim[0] = list[i].f;
        for (int d = 0; d < list[i].nd; d++) {
            x.dim[2 + d] = y.dim[2 + d] = list[i].in[d];
            w.dim[2 + d] = l.geom.kernel[d] = l.geom.stride[d] = l.geom.dilation[d] = 1;
        }
        l.x = array_new(x, 1);
        l.y = array_new(y, 3);
        wf_array dw[3], db[3];
        const int64_t plans = wf_ctx_memory(cpu).plans;
        for (int j = 0; j < 3; j++) { /* ref, 1 thread, 3 threads */
            dw[j] = array_new(w, 8);
            db[j] = array_new(WF_SHAPE(list[i].f), 9);
            wf_ctx *const ctx = j == 0 ? ref : cpu;
            if (j > 0)
                WF_EXPECT_OK(wf_ctx_set_threads(cpu, 2 * j - 1));
            const wf_conv_args args = {
                .geom = &l.geom, .x = &l.x, .y = &l.y, .w = &dw[j], .bias = &db[j], .accumulate = i % 2 == 1};
            WF_EXPECT_OK(ctx->k->conv_backward_filter(ctx, &args));
        }
        WF_EXPECT_OK(wf_ctx_set_threads(cpu, 2));
        l.w = dw[0];
        check("backward filter", &l, &dw[1], &dw[0]);
        check("gradient of a filter, 3 threads beside 1", &l, &dw[2], &dw[1]);
        const bool product = own || (avx2 && list[i].c >= 16 && list[i].f >= 16);
        /* That of oneDNN's convolution adds one number after the other. */
        WF_EXPECT(relative_error(&db[1], &db[0]) < (product ? 4e-6 : 2e-5),
                  "bias gradient of %lld channels: relative error %g", (long long)list[i].f,
                  relative_error(&db[1], &db[0]));
        WF_EXPECT(!product || wf_ctx_memory(cpu).plans == plans, "%lld to %lld channels: by oneDNN's convolution",
                  (long long)list[i].c, (long long)list[i].f);
        WF_EXPECT(!own || (!memcmp(dw[1].data, dw[2].data, (size_t)wf_array_count(&dw[1]) * sizeof(float)) &&
                           !memcmp(db[1].data, db[2].data, (size_t)wf_array_count(&db[1]) * sizeof(float))),
                  "%lld to %lld channels: 1 and 3 threads give other bits", (long long)list[i].c, (long long)list[i].f);
        for (int j = 0; j < 3; j++) {
            array_free(&dw[j]);
            array_free(&db[j]);
        }
        array_free(&l.x);
        array_free(&l.y);
    }
}

static layer volume_new(int64_t n, int64_t c, int64_t f, const int64_t in[3], const int64_t pad[6])
{
    layer l = {.geom = {.nd = 3, .groups = 1}};
    int64_t out[3];
    for (int d = 0; d < 3; d++) {
        l.geom.kernel[d] = 3;
        l.geom.stride[d] = l.geom.dilation[d] = 1;
        l.geom.pad_lo[d] = pad[2 * d];
        l.geom.pad_hi[d] = pad[2 * d + 1];
        out[d] = in[d] + pad[2 * d] + pad[2 * d + 1] - 2;
    }
    l.x = array_new(WF_SHAPE(n, c, in[0], in[1], in[2]), 1);
    l.w = array_new(WF_SHAPE(f, c, 3, 3, 3), 2);
    l.y = array_new(WF_SHAPE(n, f, out[0], out[1], out[2]), 3);
    l.bias_y = array_new(WF_SHAPE(f), 4);
    l.bias_x = array_new(WF_SHAPE(c), 5);
    return l;
}

/* Volumes, which minimal filtering computes plane by plane: pads of every kind, planes that lie outside, sums
 * in one chain, in several and in chains without a tile; without a primitive of oneDNN, and the same bits whatever the
 * threads. */
static void volumes(void)
{
    static const struct {
        int64_t n, c, f, in[3], pad[6];
    } list[] = {
        {2, 32, 16, {6, 16, 16}, {1, 1, 1, 1, 1, 1}},   {1, 16, 16, {9, 11, 18}, {0, 2, 0, 2, 1, 0}},
        {2, 48, 32, {5, 15, 13}, {2, 0, 2, 1, 0, 0}},   {4, 96, 64, {4, 8, 8}, {1, 1, 1, 1, 1, 1}},
        {1, 64, 16, {2, 16, 16}, {2, 2, 1, 1, 1, 1}},   {5, 16, 48, {3, 12, 12}, {0, 0, 1, 1, 1, 1}},
        {1, 16, 256, {12, 32, 32}, {1, 1, 1, 1, 1, 1}}, /* two rounds */
    };
    const char *const value = getenv("WEFT_MINIMAL");
    /* x86-64-v3 or v4: which instructions "native" has is not known here. */
    const bool own = strncmp(wf_processor_level(), "x86-64-v", 8) == 0 && !(value && strcmp(value, "0") == 0);
    const wf_epilogue relu = {.act = WF_ACT_RELU};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        layer l = volume_new(list[i].n, list[i].c, list[i].f, list[i].in, list[i].pad);
        const int64_t plans = wf_ctx_memory(cpu).plans;
        compare(&l, i % 2 ? &relu : NULL, i % 2 == 1);
        WF_EXPECT(!own || wf_ctx_memory(cpu).plans == plans, "volume %zu: by oneDNN", i);
        wf_array dw[2];
        for (int t = 0; t < 2; t++) {
            dw[t] = array_new(l.w.shape, 8);
            WF_EXPECT_OK(wf_ctx_set_threads(cpu, 1 + 2 * t));
            WF_EXPECT_OK(
                cpu->k->conv_backward_filter(cpu, &(wf_conv_args){.geom = &l.geom, .x = &l.x, .y = &l.y, .w = &dw[t]}));
        }
        WF_EXPECT_OK(wf_ctx_set_threads(cpu, 2));
        check("gradient of a filter, 3 threads beside 1", &l, &dw[1], &dw[0]);
        WF_EXPECT(!own || !memcmp(dw[0].data, dw[1].data, (size_t)wf_array_count(&dw[0]) * sizeof(float)),
                  "volume %zu: 1 and 3 threads give other bits", i);
        array_free(&dw[0]);
        array_free(&dw[1]);
        layer_free(&l);
    }
}

/* Checks that results do not depend on the number of threads, where the library itself sums. */
static void threads(void)
{
    static const int64_t in[2] = {16, 16}, pad[4] = {1, 1, 1, 1};
    layer l = layer_new(6, 32, 48, in, 3, 1, pad);
    wf_array first = array_new(l.w.shape, 1), second = array_new(l.w.shape, 2);
    const int before = wf_ctx_threads(cpu);
    WF_EXPECT_OK(wf_ctx_set_threads(cpu, 1));
    WF_EXPECT_OK(
        cpu->k->conv_backward_filter(cpu, &(wf_conv_args){.geom = &l.geom, .x = &l.x, .y = &l.y, .w = &first}));
    WF_EXPECT_OK(wf_ctx_set_threads(cpu, 3));
    WF_EXPECT_OK(
        cpu->k->conv_backward_filter(cpu, &(wf_conv_args){.geom = &l.geom, .x = &l.x, .y = &l.y, .w = &second}));
    WF_EXPECT_OK(wf_ctx_set_threads(cpu, before));
    WF_EXPECT(relative_error(&first, &second) < 1e-6, "1 and 3 threads differ by %g", relative_error(&first, &second));
    array_free(&first);
    array_free(&second);
    layer_free(&l);
}

/* One of many shapes; whether it is computed without making anything for it. */
static bool is_kept(int64_t i)
{
    static const int64_t pad[4] = {0, 0, 0, 0};
    const int64_t in[2] = {3 + i % 32, 3 + i / 32};
    layer l = layer_new(1, 1, 1, in, 3, 1, pad);
    wf_array y = array_new(l.y.shape, 6), want = array_new(l.y.shape, 7);
    const int64_t before = wf_ctx_memory(cpu).system_allocations;
    WF_EXPECT_OK(cpu->k->conv_forward(cpu, &(wf_conv_args){.geom = &l.geom, .x = &l.x, .w = &l.w, .y = &y}));
    const bool kept = wf_ctx_memory(cpu).system_allocations == before;
    WF_EXPECT_OK(ref->k->conv_forward(ref, &(wf_conv_args){.geom = &l.geom, .x = &l.x, .w = &l.w, .y = &want}));
    check("forward", &l, &y, &want);
    array_free(&y);
    array_free(&want);
    layer_free(&l);
    return kept;
}

/* Checks that the 1024 most recently used shapes are kept. */
static void bounded(void)
{
    for (int64_t i = 0; i < 1100; i++) {
        is_kept(i);
        if (i % 100 == 99)
            WF_EXPECT(is_kept(7), "after %lld others a shape that is used often is made anew", (long long)i);
    }
    WF_EXPECT(is_kept(1099) && is_kept(300), "shapes that were used lately are made anew");
    WF_EXPECT(!is_kept(0), "the first of 1100 shapes is kept");
    WF_EXPECT(wf_ctx_memory(cpu).plans == 1024, "%lld plans are kept", (long long)wf_ctx_memory(cpu).plans);
}

/* Checks that oneDNN makes no primitive if minimal filtering fits, with AVX2 as with AVX-512; with WEFT_MINIMAL=0, and
 * on the level below, it makes one for each direction. */
static void minimal(void)
{
    static const int64_t in[2] = {16, 16}, pad[4] = {1, 1, 1, 1};
    const char *const value = getenv("WEFT_MINIMAL");
    const char *const level = wf_processor_level();
    const bool off = value && strcmp(value, "0") == 0;
    const int plans = off || strcmp(level, "x86-64") == 0 ? 3 : 0;
    wf_ctx *const other = cpu;
    if (strcmp(level, "native") == 0 && !off)
        return; /* which instructions it has is not known here */
    cpu = wf_ctx_new((wf_ctx_opts){.device = "cpu", .threads = 2});
    WF_MUST(wf_check(cpu));
    layer l = layer_new(4, 32, 32, in, 3, 1, pad);
    compare(&l, NULL, false);
    WF_EXPECT(wf_ctx_memory(cpu).plans == plans, "level %s: %lld primitives for three directions, not %d", level,
              (long long)wf_ctx_memory(cpu).plans, plans);
    layer_free(&l);
    WF_EXPECT_OK(wf_ctx_free(cpu));
    cpu = other;
}

int main(int argc, char **argv)
{
    cpu = wf_ctx_new((wf_ctx_opts){.device = "cpu", .threads = 2});
    ref = wf_ctx_new((wf_ctx_opts){.device = "ref"});
    WF_MUST(wf_check(cpu));
    WF_MUST(wf_check(ref));
    const int code = test_main(argc, argv,
                               (test_case[]){{"geometries", geometries},
                                             {"kept_filters", kept_filters},
                                             {"bounded_forms", bounded_forms},
                                             {"products_without_place", products_without_place},
                                             {"grouped", grouped},
                                             {"points", points},
                                             {"volumes", volumes},
                                             {"threads", threads},
                                             {"minimal", minimal},
                                             {"bounded", bounded},
                                             {0}});
    WF_MUST(wf_ctx_free(cpu));
    WF_MUST(wf_ctx_free(ref));
    return code;
}
