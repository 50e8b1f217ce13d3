/* Speed of the kernels that training spends its time in: convolutions of the DCGAN in GFLOP/s, memory-bound passes in
 * GB/s (bytes that must be read and written at least once). bench_kernels [device] [threads]. */
#include "core/context_author.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static wf_ctx *ctx;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static wf_array array_new(wf_shape shape)
{
    wf_array a = {.dtype = WF_F32, .order = wf_order_default(shape.rank), .shape = shape};
    const wf_random random = {
        .seed = 1, .stream = (uint64_t)wf_shape_count(shape), .global = shape, .box = wf_box_of_shape(shape)};
    WF_MUST(wf_pool_take(ctx, (size_t)wf_array_count(&a) * sizeof(float), &a.data));
    WF_MUST(ctx->k->random(ctx, WF_NORMAL, &random, 0, 1, &a));
    return a;
}

static void array_free(wf_array *a)
{
    if (a->forms)
        wf_packed_free(ctx, a->forms);
    wf_pool_give(ctx, a->data, (size_t)wf_array_count(a) * sizeof(float));
}

/* Seconds of one call: the best of some rounds of about 30 ms. */
static double seconds_of(wf_status (*call)(void *), void *job)
{
    WF_MUST(call(job));
    const double first = now();
    WF_MUST(call(job));
    const int calls = 1 + (int)(0.03 / (now() - first + 1e-9));
    double best = 1e9;
    for (int round = 0; round < 7; round++) {
        const double start = now();
        for (int i = 0; i < calls; i++)
            WF_MUST(call(job));
        const double each = (now() - start) / calls;
        best = each < best ? each : best;
    }
    return best;
}

typedef struct conv_job {
    wf_conv_geom geom;
    wf_array x, w, b, y;
} conv_job;

static wf_status forward(void *p)
{
    const conv_job *j = p;
    return ctx->k->conv_forward(ctx, &j->geom, &j->x, &j->w, &j->b, NULL, &j->y);
}

static wf_status backward_data(void *p)
{
    const conv_job *j = p;
    return ctx->k->conv_backward_data(ctx, &j->geom, &j->y, &j->w, NULL, NULL, &j->x);
}

static wf_status transposed(void *p)
{
    const conv_job *j = p;
    const wf_epilogue relu = {.act = WF_ACT_RELU};
    wf_array bias = j->b;
    bias.shape = WF_SHAPE(j->x.shape.dim[1]);
    return ctx->k->conv_backward_data(ctx, &j->geom, &j->y, &j->w, &bias, &relu, &j->x);
}

static wf_status backward_filter(void *p)
{
    const conv_job *j = p;
    return ctx->k->conv_backward_filter(ctx, &j->geom, &j->x, &j->y, &j->w, &j->b, false);
}

static void conv_row(int64_t n, int64_t c, int64_t f, int64_t h, int64_t k, int64_t s)
{
    const int64_t o = (h + 2 - k) / s + 1;
    wf_packed_form *forms = NULL;
    conv_job j = {.geom = {.nd = 2,
                           .groups = 1,
                           .kernel = {k, k},
                           .stride = {s, s},
                           .dilation = {1, 1},
                           .pad_lo = {1, 1},
                           .pad_hi = {1, 1}}};
    j.x = array_new(WF_SHAPE(n, c, h, h));
    j.w = array_new(WF_SHAPE(f, c, k, k));
    j.b = array_new(WF_SHAPE(c > f ? c : f));
    j.b.shape = WF_SHAPE(f);
    j.y = array_new(WF_SHAPE(n, f, o, o));
    j.w.forms = &forms;
    const double flop = 2.0 * (double)(n * c * f) * (double)(o * o * k * k) * 1e-9;
    printf("%4lld -> %4lld %3lldx%-3lld k%lld s%lld %8.2f", (long long)c, (long long)f, (long long)h, (long long)h,
           (long long)k, (long long)s, flop);
    printf(" %8.0f", flop / seconds_of(forward, &j));
    printf(" %8.0f", flop / seconds_of(backward_data, &j));
    printf(" %8.0f", flop / seconds_of(transposed, &j));
    printf(" %8.0f\n", flop / seconds_of(backward_filter, &j));
    fflush(stdout);
    array_free(&j.x);
    array_free(&j.w);
    array_free(&j.b);
    array_free(&j.y);
}

static void conv_table(int64_t ch)
{
    const int64_t n = 64;
    printf("\nDCGAN, ch %lld, batch %lld: GFLOP/s\n", (long long)ch, (long long)n);
    printf("%-24s %8s %8s %8s %8s %8s\n", "layer", "GFLOP", "forward", "data", "transp.", "filter");
    conv_row(n, 3, ch / 8, 32, 3, 1);
    conv_row(n, ch / 8, ch / 4, 32, 4, 2);
    conv_row(n, ch / 4, ch / 4, 16, 3, 1);
    conv_row(n, ch / 4, ch / 2, 16, 4, 2);
    conv_row(n, ch / 2, ch / 2, 8, 3, 1);
    conv_row(n, ch / 2, ch, 8, 4, 2);
    conv_row(n, ch, ch, 4, 3, 1);
}

typedef struct pass_job {
    wf_array x, y, dy, mean, m2, invstd, gamma;
    wf_epilogue relu, noisy;
    uint64_t iteration;
} pass_job;

static wf_status stats(void *p)
{
    const pass_job *j = p;
    return ctx->k->norm_stats(ctx, &j->x, &j->mean, &j->m2);
}

static wf_status norm_forward(void *p)
{
    const pass_job *j = p;
    return ctx->k->norm_forward(ctx, &j->x, &j->mean, &j->invstd, &j->gamma, &j->gamma, &j->relu, &j->y);
}

static wf_status norm_noisy(void *p)
{
    const pass_job *j = p;
    return ctx->k->norm_forward(ctx, &j->x, &j->mean, &j->invstd, &j->gamma, &j->gamma, &j->noisy, &j->y);
}

static wf_status norm_backward_stats(void *p)
{
    const pass_job *j = p;
    return ctx->k->norm_backward_stats(ctx, &j->x, &j->mean, &j->invstd, &j->relu, &j->y, &j->dy, &j->gamma, &j->m2);
}

static wf_status norm_backward(void *p)
{
    const pass_job *j = p;
    return ctx->k->norm_backward(ctx, &j->x, &j->mean, &j->invstd, &j->gamma, &j->relu, &j->y, &j->dy, &j->mean, &j->m2,
                                 1000, &j->dy);
}

static wf_status epilogue_backward(void *p)
{
    const pass_job *j = p;
    return ctx->k->epilogue_backward(ctx, &j->relu, &j->y, &j->dy, &j->dy);
}

static wf_status tanh_forward(void *p)
{
    const pass_job *j = p;
    return ctx->k->act_forward(ctx, WF_ACT_TANH, 0, &j->x, &j->y);
}

static wf_status add(void *p)
{
    const pass_job *j = p;
    return ctx->k->binary(ctx, WF_BINARY_LINEAR, 1, &j->x, 1, &j->dy, &j->y, false);
}

static wf_status squares(void *p)
{
    const pass_job *j = p;
    double out;
    const wf_array sum = {.data = &out, .dtype = WF_F64};
    return ctx->k->sum_squares(ctx, &j->x, &sum, false);
}

static wf_status adam(void *p)
{
    const pass_job *j = p;
    const wf_optim_hyper hyper = {.lr = 1e-4,
                                  .beta1 = 0.5,
                                  .beta2 = 0.999,
                                  .eps = 1e-8,
                                  .bias1 = 0.5,
                                  .bias2 = 0.1,
                                  .grad_scale = 1,
                                  .decay = 1e-4};
    const wf_optim_segment run = {j->x.data, j->dy.data, j->y.data, j->y.data, wf_array_count(&j->x)};
    return ctx->k->optim_update(ctx, WF_OPTIM_ADAM, &hyper, WF_F32, 1, &run);
}

static wf_status transpose(void *p)
{
    const pass_job *j = p;
    const wf_strided from = wf_array_strided(&j->x);
    wf_strided to = wf_array_strided(&j->y);
    wf_order_strides(j->y.shape, WF_ROW_MAJOR, to.stride);
    return ctx->k->copy(ctx, &from, &to, false);
}

static void pass_table(int64_t n, int64_t c, int64_t h)
{
    static const struct {
        const char *name;
        int arrays; /* read and written */
        wf_status (*call)(void *);
    } row[] = {{"norm_stats", 1, stats},
               {"norm_forward, ReLU", 2, norm_forward},
               {"norm_forward, noise", 2, norm_noisy},
               {"norm_backward_stats", 3, norm_backward_stats},
               {"norm_backward", 4, norm_backward},
               {"epilogue_backward", 3, epilogue_backward},
               {"tanh", 2, tanh_forward},
               {"add", 3, add},
               {"sum_squares", 1, squares},
               {"Adam", 6, adam},
               {"copy to NCHW", 2, transpose}};
    const wf_shape shape = WF_SHAPE(n, c, h, h);
    pass_job j = {.x = array_new(shape), .y = array_new(shape), .dy = array_new(shape)};
    j.mean = array_new(WF_SHAPE(c));
    j.m2 = array_new(WF_SHAPE(c));
    j.invstd = array_new(WF_SHAPE(c));
    j.gamma = array_new(WF_SHAPE(c));
    j.relu = (wf_epilogue){.act = WF_ACT_LEAKY_RELU, .slope = 0.2};
    j.noisy = j.relu;
    j.noisy.noise = 0.2;
    j.noisy.random = (wf_random){.seed = 3, .global = shape, .box = wf_box_of_shape(shape)};
    const double bytes = (double)wf_array_count(&j.x) * sizeof(float) * 1e-9;
    printf("\n[%lld,%lld,%lld,%lld], %.1f MB each: GB/s, microseconds\n", (long long)n, (long long)c, (long long)h,
           (long long)h, bytes * 1e3);
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        const double t = seconds_of(row[i].call, &j);
        printf("%-24s %8.1f %8.0f\n", row[i].name, bytes * row[i].arrays / t, t * 1e6);
    }
}

int main(int argc, char **argv)
{
    ctx = wf_ctx_new((wf_ctx_opts){.device = argc > 1 ? argv[1] : NULL, .threads = argc > 2 ? atoi(argv[2]) : 0});
    WF_MUST(wf_check(ctx));
    printf("device %s, %d threads\n", wf_ctx_device(ctx), wf_ctx_threads(ctx));
    conv_table(128);
    conv_table(512);
    pass_table(64, 16, 32);
    pass_table(64, 128, 4);
    pass_table(64, 64, 32);
    return 0;
}
