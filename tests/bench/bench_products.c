/* Speed of products: linear layers, and convolutions of the kinds that networks for images have. Beside each stands its
 * share of a bound: the longer of the times that its arithmetic takes at the speed of a large product and that its
 * bytes take at the speed of a large copy, both measured first.
 *
 *     bench_products [THREADS] [f32|bf16] [linear|conv] [NAME]
 *
 * NAME: the convolutions whose names begin with it alone.
 */
#include "tests/bench/bench.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

static wf_ctx *ctx;
static wf_dtype dtype = WF_F32;
static double peak, bandwidth; /* flop and bytes a second */

static wf_array array_of(wf_dtype type, wf_shape shape)
{
    wf_array a = {.dtype = type, .order = wf_order_default(shape.rank), .shape = shape};
    const wf_random random = {
        .seed = 1, .stream = (uint64_t)wf_shape_count(shape), .global = shape, .box = wf_box_of_shape(shape)};
    WF_MUST(wf_pool_take(ctx, (size_t)wf_array_count(&a) * wf_dtype_size(type), &a.data));
    WF_MUST(ctx->k->random(ctx, WF_NORMAL, &random, 0, 1, &a));
    return a;
}

static wf_array array_new(wf_shape shape)
{
    return array_of(dtype, shape);
}

static void array_free(wf_array *a)
{
    if (a->forms)
        wf_packed_free(ctx, a->forms);
    wf_pool_give(ctx, a->data, 0);
}

/* Seconds of one call: the best of some rounds of about 20 ms. */
static double seconds_of(wf_status (*call)(void *), void *job)
{
    WF_MUST(call(job));
    const double first = bench_seconds();
    WF_MUST(call(job));
    const int calls = 1 + (int)(0.02 / (bench_seconds() - first + 1e-9));
    double best = 1e9;
    for (int round = 0; round < 5; round++) {
        const double start = bench_seconds();
        for (int i = 0; i < calls; i++)
            WF_MUST(call(job));
        const double each = (bench_seconds() - start) / calls;
        best = each < best ? each : best;
    }
    return best;
}

/* Linear layers: their three products, and the first two with weights that serve several products. */

typedef struct linear_job {
    wf_array x, w, b, y, dw;
    bool reused;
} linear_job;

static wf_status linear_forward(void *p)
{
    const linear_job *j = p;
    const wf_matmul_args args = {
        .a = &j->x, .b = &j->w, .b_transposed = true, .b_reused = j->reused, .bias = &j->b, .c = &j->y};
    return ctx->k->matmul(ctx, &args);
}

static wf_status linear_data(void *p)
{
    const linear_job *j = p;
    return ctx->k->matmul(ctx, &(wf_matmul_args){.a = &j->y, .b = &j->w, .b_reused = j->reused, .c = &j->x});
}

static wf_status linear_filter(void *p)
{
    const linear_job *j = p;
    return ctx->k->matmul(
        ctx, &(wf_matmul_args){.a = &j->y, .a_transposed = true, .b = &j->x, .c = &j->dw, .accumulate = true});
}

static linear_job linear_new(int64_t n, int64_t in, int64_t out)
{
    return (linear_job){.x = array_new(WF_SHAPE(n, in)),
                        .w = array_new(WF_SHAPE(out, in)),
                        .b = array_new(WF_SHAPE(out)),
                        .y = array_new(WF_SHAPE(n, out)),
                        .dw = array_of(WF_F32, WF_SHAPE(out, in))};
}

static void linear_free(linear_job *j)
{
    array_free(&j->x);
    array_free(&j->w);
    array_free(&j->b);
    array_free(&j->y);
    array_free(&j->dw);
}

static void linear_row(int64_t n, int64_t in, int64_t out)
{
    wf_packed_form *forms = NULL;
    linear_job j = linear_new(n, in, out);
    const double gflop = 2e-9 * (double)(n * in * out);
    j.w.forms = &forms;
    printf("%5lld x %4lld -> %4lld", (long long)n, (long long)in, (long long)out);
    for (int reused = 0; reused < 2; reused++) {
        j.reused = reused;
        printf(" %8.0f", gflop / seconds_of(linear_forward, &j));
        printf(" %8.0f", gflop / seconds_of(linear_data, &j));
    }
    printf(" %8.0f\n", gflop / seconds_of(linear_filter, &j));
    fflush(stdout);
    linear_free(&j);
}

static void linear_table(void)
{
    static const int64_t side[][2] = {{784, 1000}, {320, 320}, {1024, 1024}, {4096, 1024}, {512, 10}};
    static const int64_t rows[] = {1, 8, 32, 64, 128, 256, 512, 2048};
    printf("\nlinear layers, %s: GFLOP/s; *: weights that serve several products\n", wf_dtype_name(dtype));
    printf("%-20s %8s %8s %8s %8s %8s\n", "rows, in, out", "forward", "data", "forward*", "data*", "filter");
    for (size_t i = 0; i < sizeof side / sizeof *side; i++)
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
            linear_row(rows[r], side[i][0], side[i][1]);
}

/* Convolutions. */

typedef struct conv_case {
    const char *name;
    int64_t n, c, f, h, k, s, groups;
} conv_case;

typedef struct conv_job {
    wf_conv_geom geom;
    wf_array x, w, b, y, dw;
} conv_job;

static wf_status conv_forward(void *p)
{
    const conv_job *j = p;
    return ctx->k->conv_forward(ctx,
                                &(wf_conv_args){.geom = &j->geom, .x = &j->x, .w = &j->w, .bias = &j->b, .y = &j->y});
}

static wf_status conv_data(void *p)
{
    const conv_job *j = p;
    return ctx->k->conv_backward_data(ctx, &(wf_conv_args){.geom = &j->geom, .y = &j->y, .w = &j->w, .x = &j->x});
}

static wf_status conv_filter(void *p)
{
    const conv_job *j = p;
    return ctx->k->conv_backward_filter(ctx, &(wf_conv_args){.geom = &j->geom, .x = &j->x, .y = &j->y, .w = &j->dw});
}

static double bytes_of(const wf_array *a)
{
    return (double)wf_array_count(a) * (double)wf_dtype_size(a->dtype);
}

static conv_job conv_new(const conv_case *t)
{
    const int64_t lo = (t->k - 1) / 2, o = (t->h + 2 * lo - t->k) / t->s + 1;
    conv_job j = {.geom = {.nd = 2,
                           .groups = t->groups,
                           .kernel = {t->k, t->k},
                           .stride = {t->s, t->s},
                           .dilation = {1, 1},
                           .pad_lo = {lo, lo},
                           .pad_hi = {lo, lo}}};
    j.x = array_new(WF_SHAPE(t->n, t->c, t->h, t->h));
    j.w = array_new(WF_SHAPE(t->f, t->c / t->groups, t->k, t->k));
    j.b = array_new(WF_SHAPE(t->f));
    j.y = array_new(WF_SHAPE(t->n, t->f, o, o));
    j.dw = array_of(WF_F32, j.w.shape);
    return j;
}

static void conv_row(const conv_case *t)
{
    static wf_status (*const pass[])(void *) = {conv_forward, conv_data, conv_filter};
    wf_packed_form *forms = NULL;
    conv_job j = conv_new(t);
    j.w.forms = &forms;
    const double flop = 2.0 * (double)wf_array_count(&j.y) * (double)wf_array_count(&j.w) / (double)t->f;
    const double bytes = bytes_of(&j.x) + bytes_of(&j.w) + bytes_of(&j.y);
    const double by_flop = flop / peak, by_bytes = bytes / bandwidth, bound = by_flop > by_bytes ? by_flop : by_bytes;
    printf("%-14s %3lld x %4lld -> %4lld %3lld k%lld s%lld g%-4lld %7.2f %7.1f %s", t->name, (long long)t->n,
           (long long)t->c, (long long)t->f, (long long)t->h, (long long)t->k, (long long)t->s, (long long)t->groups,
           1e-9 * flop, 1e-6 * bytes, by_flop > by_bytes ? "flop " : "bytes");
    for (int i = 0; i < 3; i++) {
        const double t_pass = seconds_of(pass[i], &j);
        printf(" %8.3f %3.0f %%", 1e3 * t_pass, 100 * bound / t_pass);
    }
    printf("\n");
    fflush(stdout);
    array_free(&j.x);
    array_free(&j.w);
    array_free(&j.b);
    array_free(&j.y);
    array_free(&j.dw);
}

static wf_status copy(void *p)
{
    const conv_job *j = p;
    const wf_strided from = wf_array_strided(&j->x), to = wf_array_strided(&j->y);
    return ctx->k->copy(ctx, &from, &to, false);
}

static void measure_bounds(void)
{
    linear_job large = linear_new(1024, 1024, 1024);
    peak = 2.0 * 1024 * 1024 * 1024 / seconds_of(linear_data, &large);
    linear_free(&large);
    conv_job j = {.x = array_new(WF_SHAPE(16, 64, 112, 112)), .y = array_new(WF_SHAPE(16, 64, 112, 112))};
    bandwidth = 2 * bytes_of(&j.x) / seconds_of(copy, &j);
    array_free(&j.x);
    array_free(&j.y);
    printf("a product of 1024 x 1024 x 1024: %.0f GFLOP/s; a copy of %s: %.1f GB/s read and written\n", 1e-9 * peak,
           wf_dtype_name(dtype), 1e-9 * bandwidth);
}

static void conv_table(const char *name)
{
    static const conv_case list[] = {
        {"depthwise", 16, 32, 32, 112, 3, 1, 32},   {"depthwise", 16, 64, 64, 112, 3, 2, 64},
        {"depthwise", 16, 128, 128, 56, 3, 1, 128}, {"depthwise", 16, 128, 128, 56, 3, 2, 128},
        {"depthwise", 16, 256, 256, 28, 3, 1, 256}, {"depthwise", 16, 512, 512, 14, 3, 1, 512},
        {"depthwise", 16, 512, 512, 14, 3, 2, 512}, {"depthwise", 16, 1024, 1024, 7, 3, 1, 1024},
        {"depthwise", 16, 144, 144, 56, 5, 1, 144}, {"depthwise", 16, 24, 24, 56, 3, 1, 24},
        {"ConvNeXt", 16, 96, 96, 56, 7, 1, 96},     {"ConvNeXt", 16, 192, 192, 28, 7, 1, 192},
        {"ConvNeXt", 16, 384, 384, 14, 7, 1, 384},  {"ConvNeXt", 16, 768, 768, 7, 7, 1, 768},
        {"ResNeXt", 16, 128, 128, 56, 3, 1, 32},    {"ResNeXt", 16, 256, 256, 28, 3, 1, 32},
        {"ResNeXt", 16, 256, 256, 56, 3, 2, 32},    {"ResNeXt", 16, 512, 512, 14, 3, 1, 32},
        {"ResNeXt", 16, 1024, 1024, 7, 3, 1, 32},   {"groups", 16, 64, 64, 56, 3, 1, 2},
        {"groups", 16, 96, 96, 28, 3, 1, 3},        {"1x1", 16, 64, 64, 56, 1, 1, 1},
        {"1x1", 16, 64, 256, 56, 1, 1, 1},          {"1x1", 16, 256, 64, 56, 1, 1, 1},
        {"1x1", 16, 256, 512, 56, 1, 2, 1},         {"1x1", 16, 512, 128, 28, 1, 1, 1},
        {"1x1", 16, 1024, 256, 14, 1, 1, 1},        {"1x1", 16, 512, 2048, 7, 1, 1, 1},
        {"1x1", 16, 32, 16, 112, 1, 1, 1},          {"1x1", 16, 24, 144, 56, 1, 1, 1},
        {"large", 16, 3, 64, 224, 7, 2, 1},         {"large", 16, 64, 64, 56, 7, 1, 1},
        {"large", 16, 64, 64, 28, 9, 1, 1},         {"large", 16, 32, 32, 56, 5, 1, 1},
        {"dense", 16, 64, 64, 56, 3, 1, 1},         {"dense", 16, 256, 256, 14, 3, 1, 1},
        {"batch1", 1, 64, 64, 56, 3, 1, 1},         {"batch1", 1, 512, 512, 7, 3, 1, 1},
        {"batch1", 1, 512, 512, 2, 3, 1, 1},        {"batch1", 1, 256, 64, 56, 1, 1, 1},
        {"batch1", 1, 512, 2048, 7, 1, 1, 1},       {"batch1", 1, 3, 64, 224, 7, 2, 1},
        {"batch1", 1, 128, 128, 56, 3, 1, 128},     {"batch1", 1, 1, 16, 28, 5, 1, 1},
    };
    printf("\nconvolutions, %s: milliseconds and share of the bound\n", wf_dtype_name(dtype));
    printf("%-45s %7s %7s %-5s %14s %14s %14s\n", "samples, channels, pixels, kernel", "GFLOP", "MB", "bound",
           "forward", "data", "filter");
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        if (!name || strncmp(list[i].name, name, strlen(name)) == 0)
            conv_row(&list[i]);
}

int main(int argc, char **argv)
{
    wf_ctx_opts opts = {0};
    const char *only = NULL, *name = NULL;
    for (int i = 1; i < argc; i++) {
        if (isdigit((unsigned char)argv[i][0]) && argv[i][1] == '\0')
            opts.threads = atoi(argv[i]);
        else if (strcmp(argv[i], "f32") == 0 || strcmp(argv[i], "bf16") == 0)
            dtype = argv[i][0] == 'f' ? WF_F32 : WF_BF16;
        else if (strcmp(argv[i], "linear") == 0 || strcmp(argv[i], "conv") == 0)
            only = argv[i];
        else
            name = argv[i];
    }
    ctx = wf_ctx_new(opts);
    WF_MUST(wf_check(ctx));
    printf("device %s, %d threads\n", wf_ctx_device(ctx), wf_ctx_threads(ctx));
    measure_bounds();
    if (!only || *only == 'l')
        linear_table();
    if (!only || *only == 'c')
        conv_table(name);
    WF_MUST(wf_ctx_free(ctx));
    return 0;
}
