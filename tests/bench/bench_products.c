/* Speed of products: linear layers, stacks, and convolutions of the kinds that networks for images have. Beside each
 * stands its share of a bound: the longer of the times that its arithmetic takes at the speed of a large product and
 * that its bytes take at the speed of a large copy, both measured first.
 *
 *     bench_products [THREADS] [f32|bf16] [linear|stack|conv] [NAME]
 *
 * NAME: the convolutions whose names begin with it alone.
 */
#include "tests/bench/bench_conv.h"
#include "tests/bench/bench_usage.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

static wf_ctx *ctx;
static wf_dtype dtype = WF_F32;
static double peak, bandwidth; /* flop and bytes a second */

static wf_array array_new(wf_shape shape)
{
    return bench_array(ctx, dtype, shape);
}

static double seconds_of(wf_status (*call)(void *), void *job)
{
    return bench_best(ctx, NULL, 0.02, call, job);
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
                        .dw = bench_array(ctx, WF_F32, WF_SHAPE(out, in))};
}

static void linear_free(linear_job *j)
{
    bench_array_free(ctx, &j->x);
    bench_array_free(ctx, &j->w);
    bench_array_free(ctx, &j->b);
    bench_array_free(ctx, &j->y);
    bench_array_free(ctx, &j->dw);
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

/* Stacks of products, as attention has them: queries by keys, and probabilities by values. */

typedef struct stack_job {
    wf_product_stack stack;
    wf_array a, b, c;
    bool tb;
} stack_job;

static wf_status stack_forward(void *p)
{
    const stack_job *j = p;
    return ctx->k->matmul_stack(
        ctx, &(wf_matmul_stack_args){.stack = &j->stack, .a = &j->a, .b = &j->b, .c = &j->c, .b_transposed = j->tb});
}

static void stack_row(int64_t count, int64_t m, int64_t n, int64_t k, bool tb)
{
    stack_job j = {.stack = {.m = m, .n = n, .k = k, .rank = 1, .dim = {count}, .step = {{1}, {1}, {1}}},
                   .a = array_new(WF_SHAPE(count, m, k)),
                   .b = array_new(WF_SHAPE(count, k, n)),
                   .c = array_new(WF_SHAPE(count, m, n)),
                   .tb = tb};
    printf("%5lld x [%lld,%lld] by [%lld,%lld]%s %8.0f\n", (long long)count, (long long)m, (long long)k, (long long)k,
           (long long)n, tb ? "'" : "", 2e-9 * (double)(count * m * n * k) / seconds_of(stack_forward, &j));
    fflush(stdout);
    bench_array_free(ctx, &j.a);
    bench_array_free(ctx, &j.b);
    bench_array_free(ctx, &j.c);
}

static void stack_table(void)
{
    static const int64_t tokens[] = {16, 49, 196, 1024};
    printf("\nstacks of products, %s: GFLOP/s\n", wf_dtype_name(dtype));
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
        stack_row(48, tokens[i], tokens[i], 64, true);
        stack_row(48, tokens[i], 64, tokens[i], false);
    }
}

/* Convolutions. */

typedef struct conv_case {
    const char *name;
    bench_conv_shape shape;
} conv_case;

static void conv_row(const conv_case *t)
{
    static wf_status (*const pass[])(void *) = {bench_conv_forward, bench_conv_data, bench_conv_filter};
    const bench_conv_shape *const g = &t->shape;
    bench_conv j;
    bench_conv_open(&j, ctx, dtype, *g);
    const double flop = bench_conv_flop(&j), bytes = bench_bytes(&j.x) + bench_bytes(&j.w) + bench_bytes(&j.y);
    const double by_flop = flop / peak, by_bytes = bytes / bandwidth, bound = by_flop > by_bytes ? by_flop : by_bytes;
    printf("%-14s %3lld x %4lld -> %4lld %3lld k%lld s%lld g%-4lld %7.2f %7.1f %s", t->name, (long long)g->n,
           (long long)g->c, (long long)g->f, (long long)g->h, (long long)g->k, (long long)g->s, (long long)g->groups,
           1e-9 * flop, 1e-6 * bytes, by_flop > by_bytes ? "flop " : "bytes");
    for (int i = 0; i < 3; i++) {
        const double t_pass = seconds_of(pass[i], &j);
        printf(" %8.3f %3.0f %%", 1e3 * t_pass, 100 * bound / t_pass);
    }
    printf("\n");
    fflush(stdout);
    bench_conv_close(&j);
}

static wf_status copy(void *p)
{
    const bench_conv *j = p;
    const wf_strided from = wf_array_strided(&j->x), to = wf_array_strided(&j->y);
    return ctx->k->copy(ctx, &from, &to, false);
}

static void measure_bounds(void)
{
    linear_job large = linear_new(1024, 1024, 1024);
    peak = 2.0 * 1024 * 1024 * 1024 / seconds_of(linear_data, &large);
    linear_free(&large);
    bench_conv j = {.x = array_new(WF_SHAPE(16, 64, 112, 112)), .y = array_new(WF_SHAPE(16, 64, 112, 112))};
    bandwidth = 2 * bench_bytes(&j.x) / seconds_of(copy, &j);
    bench_array_free(ctx, &j.x);
    bench_array_free(ctx, &j.y);
    printf("a product of 1024 x 1024 x 1024: %.0f GFLOP/s; a copy of %s: %.1f GB/s read and written\n", 1e-9 * peak,
           wf_dtype_name(dtype), 1e-9 * bandwidth);
}

static void conv_table(const char *name)
{
    static const conv_case list[] = {
        {"depthwise", {16, 32, 32, 112, 3, 1, 1, 32}},   {"depthwise", {16, 64, 64, 112, 3, 2, 1, 64}},
        {"depthwise", {16, 128, 128, 56, 3, 1, 1, 128}}, {"depthwise", {16, 128, 128, 56, 3, 2, 1, 128}},
        {"depthwise", {16, 256, 256, 28, 3, 1, 1, 256}}, {"depthwise", {16, 512, 512, 14, 3, 1, 1, 512}},
        {"depthwise", {16, 512, 512, 14, 3, 2, 1, 512}}, {"depthwise", {16, 1024, 1024, 7, 3, 1, 1, 1024}},
        {"depthwise", {16, 144, 144, 56, 5, 1, 2, 144}}, {"depthwise", {16, 24, 24, 56, 3, 1, 1, 24}},
        {"ConvNeXt", {16, 96, 96, 56, 7, 1, 3, 96}},     {"ConvNeXt", {16, 192, 192, 28, 7, 1, 3, 192}},
        {"ConvNeXt", {16, 384, 384, 14, 7, 1, 3, 384}},  {"ConvNeXt", {16, 768, 768, 7, 7, 1, 3, 768}},
        {"ResNeXt", {16, 128, 128, 56, 3, 1, 1, 32}},    {"ResNeXt", {16, 256, 256, 28, 3, 1, 1, 32}},
        {"ResNeXt", {16, 256, 256, 56, 3, 2, 1, 32}},    {"ResNeXt", {16, 512, 512, 14, 3, 1, 1, 32}},
        {"ResNeXt", {16, 1024, 1024, 7, 3, 1, 1, 32}},   {"groups", {16, 64, 64, 56, 3, 1, 1, 2}},
        {"groups", {16, 96, 96, 28, 3, 1, 1, 3}},        {"1x1", {16, 64, 64, 56, 1, 1, 0, 1}},
        {"1x1", {16, 64, 256, 56, 1, 1, 0, 1}},          {"1x1", {16, 256, 64, 56, 1, 1, 0, 1}},
        {"1x1", {16, 256, 512, 56, 1, 2, 0, 1}},         {"1x1", {16, 512, 128, 28, 1, 1, 0, 1}},
        {"1x1", {16, 1024, 256, 14, 1, 1, 0, 1}},        {"1x1", {16, 512, 2048, 7, 1, 1, 0, 1}},
        {"1x1", {16, 32, 16, 112, 1, 1, 0, 1}},          {"1x1", {16, 24, 144, 56, 1, 1, 0, 1}},
        {"large", {16, 3, 64, 224, 7, 2, 3, 1}},         {"large", {16, 64, 64, 56, 7, 1, 3, 1}},
        {"large", {16, 64, 64, 28, 9, 1, 4, 1}},         {"large", {16, 32, 32, 56, 5, 1, 2, 1}},
        {"dense", {16, 64, 64, 56, 3, 1, 1, 1}},         {"dense", {16, 256, 256, 14, 3, 1, 1, 1}},
        {"batch1", {1, 64, 64, 56, 3, 1, 1, 1}},         {"batch1", {1, 512, 512, 7, 3, 1, 1, 1}},
        {"batch1", {1, 512, 512, 2, 3, 1, 1, 1}},        {"batch1", {1, 256, 64, 56, 1, 1, 0, 1}},
        {"batch1", {1, 512, 2048, 7, 1, 1, 0, 1}},       {"batch1", {1, 3, 64, 224, 7, 2, 3, 1}},
        {"batch1", {1, 128, 128, 56, 3, 1, 1, 128}},     {"batch1", {1, 1, 16, 28, 5, 1, 2, 1}},
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
    bench_usage(argc, argv, 4, NULL, "bench_products [THREADS] [f32|bf16] [linear|stack|conv] [NAME]");
    wf_ctx_opts opts = {0};
    const char *only = NULL, *name = NULL;
    for (int i = 1; i < argc; i++) {
        if (isdigit((unsigned char)argv[i][0]) && argv[i][1] == '\0')
            opts.threads = atoi(argv[i]);
        else if (strcmp(argv[i], "f32") == 0 || strcmp(argv[i], "bf16") == 0)
            dtype = argv[i][0] == 'f' ? WF_F32 : WF_BF16;
        else if (strcmp(argv[i], "linear") == 0 || strcmp(argv[i], "stack") == 0 || strcmp(argv[i], "conv") == 0)
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
    if (!only || *only == 's')
        stack_table();
    if (!only || *only == 'c')
        conv_table(name);
    WF_MUST(wf_ctx_free(ctx));
    return 0;
}
