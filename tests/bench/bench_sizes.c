/* Slots that are bound by memory, at the sizes that models give them: the normalisations of ConvNeXt-T, ResNet-50 and a
 * U-Net in three dimensions, pooling, upsampling, softmax, an optimizer's step, an embedding.
 *
 *     bench_sizes [DEVICE] [THREADS] [--level x86-64|v3|v4] [NAME]
 *
 * NAME: only rows whose name begins so. A row has the microseconds, the bytes that must be read and written at least
 * once in GB/s, and the time of a plain copy that moves as many bytes, between arrays as large, as a share of it.
 */
#include "core/processor_author.h"
#include "tests/bench/bench_copy.h"
#include "tests/bench/bench_usage.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct job {
    wf_ctx *ctx;
    wf_stream *stream;
    wf_array x, y, dy, dx;                       /* of the large shape */
    wf_array few, index;                         /* of the small one, and places of pooling */
    wf_array a, b, c, d, stats, labels, numbers; /* of channels, of groups, of rows */
    int64_t groups;
    wf_pool_geom pool;
    wf_resample_geom resample;
    wf_optim_hyper hyper;
    wf_optim_segment segment;
    size_t copied;
} job;

typedef struct row {
    const char *name;
    wf_shape shape, few; /* few: where a slot has two */
    double arrays;       /* read and written at least once, of the shape */
    wf_status (*call)(void *job);
    int64_t groups, kernel;
    bool linear;
} row;

static wf_norm_args norm_args(const job *j)
{
    static const wf_epilogue relu = {.act = WF_ACT_RELU};
    return (wf_norm_args){.x = &j->x,
                          .mean = &j->a,
                          .invstd = &j->b,
                          .gamma = &j->c,
                          .beta = &j->d,
                          .epilogue = &relu,
                          .y = &j->y,
                          .y_of_x = true};
}

static wf_status norm_stats(void *p)
{
    const job *j = p;
    return j->ctx->k->norm_stats(j->ctx, &(wf_norm_args){.x = &j->x, .mean = &j->a, .m2 = &j->b});
}

static wf_status norm_forward(void *p)
{
    const job *j = p;
    const wf_norm_args args = norm_args(p);
    return j->ctx->k->norm_forward(j->ctx, &args);
}

static wf_status norm_sums(void *p)
{
    const job *j = p;
    wf_norm_args args = norm_args(p);
    args.dy = &j->dy;
    args.sum_g = &j->a;
    args.sum_gx = &j->b;
    return j->ctx->k->norm_backward_stats(j->ctx, &args);
}

static wf_status norm_backward(void *p)
{
    const job *j = p;
    wf_norm_args args = norm_args(p);
    args.dy = &j->dy;
    args.sum_g = &j->a;
    args.sum_gx = &j->b;
    args.count.value = 1000;
    args.dx = &j->dx;
    return j->ctx->k->norm_backward(j->ctx, &args);
}

/* groups 0: the channels of each pixel. */
static wf_group_norm_args group_args(const job *j)
{
    const int64_t n = j->x.shape.dim[0], c = j->x.shape.dim[1], places = wf_array_count(&j->x) / (n * c);
    const bool pixels = j->groups == 0;
    const int64_t groups = pixels ? 1 : j->groups, size = c / groups;
    return (wf_group_norm_args){.rows = pixels ? n * places : n,
                                .places = pixels ? 1 : places,
                                .channels = c,
                                .groups = groups,
                                .size = size,
                                .count = (double)(size * (pixels ? 1 : places)),
                                .eps = 1e-5,
                                .x = &j->x,
                                .gamma = &j->c,
                                .stats = &j->stats};
}

static wf_status group_forward(void *p)
{
    const job *j = p;
    wf_group_norm_args args = group_args(p);
    args.y = &j->y;
    args.beta = &j->d;
    return j->ctx->k->group_norm_forward(j->ctx, &args);
}

static wf_status group_backward(void *p)
{
    const job *j = p;
    wf_group_norm_args args = group_args(p);
    args.dy = &j->dy;
    args.dx = &j->dx;
    args.dgamma = &j->a;
    args.dbeta = &j->b;
    return j->ctx->k->group_norm_backward(j->ctx, &args);
}

static wf_status pool(void *p)
{
    const job *j = p;
    const wf_pool_args args = {.geom = &j->pool, .x = &j->x, .y = &j->few, .index = &j->index};
    return j->ctx->k->pool_forward(j->ctx, &args);
}

static wf_status pool_backward(void *p)
{
    const job *j = p;
    const wf_pool_args args = {.geom = &j->pool, .x = &j->dx, .y = &j->few, .index = &j->index};
    return j->ctx->k->pool_backward(j->ctx, &args);
}

static wf_status upsample(void *p)
{
    const job *j = p;
    const wf_resample_args args = {.geom = &j->resample, .x = &j->few, .y = &j->y};
    return j->ctx->k->resample_forward(j->ctx, &args);
}

static wf_status upsample_backward(void *p)
{
    const job *j = p;
    const wf_resample_args args = {.geom = &j->resample, .x = &j->few, .y = &j->dy};
    return j->ctx->k->resample_backward(j->ctx, &args);
}

static wf_status softmax(void *p)
{
    const job *j = p;
    return j->ctx->k->softmax_forward(j->ctx, false, &j->x, &j->y);
}

static wf_status softmax_backward(void *p)
{
    const job *j = p;
    return j->ctx->k->softmax_backward(j->ctx, false, &j->y, &j->dy, &j->dx);
}

static wf_entropy_args entropy_args(const job *j)
{
    return (wf_entropy_args){.x = &j->x,
                             .labels = &j->labels,
                             .ignored = WF_NONE_IGNORED,
                             .scale = 1e-3,
                             .log_sum = &j->stats,
                             .loss = &j->a,
                             .dloss = &j->b,
                             .dx = &j->dx};
}

static wf_status entropy(void *p)
{
    const job *j = p;
    const wf_entropy_args args = entropy_args(p);
    return j->ctx->k->entropy_forward(j->ctx, &args);
}

static wf_status entropy_backward(void *p)
{
    const job *j = p;
    const wf_entropy_args args = entropy_args(p);
    return j->ctx->k->entropy_backward(j->ctx, &args);
}

static wf_status adam(void *p)
{
    job *j = p;
    return j->ctx->k->optim_update(j->ctx, WF_OPTIM_ADAM, &j->hyper, WF_F32, 1, &j->segment);
}

/* As many numbers as `few` has rows, of rows of the large array. */
static wf_status take(void *p)
{
    const job *j = p;
    const wf_take_args args = {
        .table = &j->x, .index = &j->numbers, .y = &j->few, .whole = j->x.shape.dim[0], .ignored = WF_NONE_IGNORED};
    return j->ctx->k->take_forward(j->ctx, &args);
}

static wf_status take_backward(void *p)
{
    const job *j = p;
    const wf_take_args args = {
        .table = &j->dx, .index = &j->numbers, .y = &j->few, .whole = j->x.shape.dim[0], .ignored = WF_NONE_IGNORED};
    return j->ctx->k->take_backward(j->ctx, &args);
}

#define BATCH(...)                                                                                                     \
    {.name = "norm_stats", .shape = WF_SHAPE(__VA_ARGS__), .arrays = 1, .call = norm_stats},                           \
        {.name = "norm_forward", .shape = WF_SHAPE(__VA_ARGS__), .arrays = 2, .call = norm_forward},                   \
        {.name = "norm_backward_stats", .shape = WF_SHAPE(__VA_ARGS__), .arrays = 2, .call = norm_sums},               \
    {                                                                                                                  \
        .name = "norm_backward", .shape = WF_SHAPE(__VA_ARGS__), .arrays = 3, .call = norm_backward                    \
    }
#define GROUP(n, ...)                                                                                                  \
    {.name = n > 0 ? "group norm" : "layer norm",                                                                      \
     .shape = WF_SHAPE(__VA_ARGS__),                                                                                   \
     .arrays = 2,                                                                                                      \
     .call = group_forward,                                                                                            \
     .groups = n},                                                                                                     \
    {                                                                                                                  \
        .name = n > 0 ? "group norm, backward" : "layer norm, backward", .shape = WF_SHAPE(__VA_ARGS__), .arrays = 3,  \
        .call = group_backward, .groups = n                                                                            \
    }
#define LIST(...) __VA_ARGS__
#define POOL(k, large, small, part)                                                                                    \
    {.name = "pool " #k,                                                                                               \
     .shape = WF_SHAPE(large),                                                                                         \
     .few = WF_SHAPE(small),                                                                                           \
     .arrays = 1 + 2 * (part),                                                                                         \
     .call = pool,                                                                                                     \
     .kernel = k},                                                                                                     \
    {                                                                                                                  \
        .name = "pool " #k ", backward", .shape = WF_SHAPE(large), .few = WF_SHAPE(small), .arrays = 1 + 2 * (part),   \
        .call = pool_backward, .kernel = k                                                                             \
    }
#define RESAMPLE(smooth, large, small, part)                                                                           \
    {.name = smooth ? "linear x2" : "nearest x2",                                                                      \
     .shape = WF_SHAPE(large),                                                                                         \
     .few = WF_SHAPE(small),                                                                                           \
     .arrays = 1 + (part),                                                                                             \
     .call = upsample,                                                                                                 \
     .linear = smooth},                                                                                                \
    {                                                                                                                  \
        .name = smooth ? "linear x2, backward" : "nearest x2, backward", .shape = WF_SHAPE(large),                     \
        .few = WF_SHAPE(small), .arrays = 1 + (part), .call = upsample_backward, .linear = smooth                      \
    }
#define CLASSES(...)                                                                                                   \
    {.name = "softmax", .shape = WF_SHAPE(__VA_ARGS__), .arrays = 2, .call = softmax},                                 \
        {.name = "softmax, backward", .shape = WF_SHAPE(__VA_ARGS__), .arrays = 3, .call = softmax_backward},          \
        {.name = "entropy", .shape = WF_SHAPE(__VA_ARGS__), .arrays = 1, .call = entropy},                             \
    {                                                                                                                  \
        .name = "entropy, backward", .shape = WF_SHAPE(__VA_ARGS__), .arrays = 2, .call = entropy_backward             \
    }

static wf_array filled(wf_ctx *ctx, wf_dtype dtype, wf_shape shape, double value)
{
    wf_array a = {.dtype = dtype, .order = wf_order_default(shape.rank), .shape = shape};
    WF_MUST(wf_pool_take(ctx, (size_t)wf_shape_count(shape) * wf_dtype_size(dtype), &a.data));
    WF_MUST(ctx->k->fill(ctx, &a, value));
    return a;
}

/* Different rows in a mixed order: 7919 is a prime. */
static wf_array numbers_of(wf_ctx *ctx, int64_t n, int64_t below)
{
    int32_t *const host = calloc((size_t)n, sizeof *host);
    for (int64_t i = 0; i < n; i++)
        host[i] = (int32_t)(i * 7919 % below);
    wf_array a = filled(ctx, WF_I32, WF_SHAPE(n), 0);
    WF_MUST(ctx->k->to_device(ctx, a.data, host, (size_t)n * sizeof *host));
    free(host);
    return a;
}

static void take_geometry(job *j, const row *r)
{
    const int nd = r->shape.rank - 2;
    j->pool = (wf_pool_geom){.kind = WF_POOL_MAX, .nd = nd};
    j->resample = (wf_resample_geom){.nd = nd, .linear = r->linear};
    for (int d = 0; d < nd && d < 3; d++) {
        j->pool.kernel[d] = r->kernel;
        j->pool.stride[d] = 2;
        j->pool.dilation[d] = 1;
        j->pool.pad_lo[d] = j->pool.pad_hi[d] = r->kernel / 2 - (r->kernel == 2);
        j->resample.scale[d] = 2;
        j->resample.in[d] = r->few.rank > 0 ? r->few.dim[2 + d] : 0;
    }
}

static job job_new(wf_ctx *ctx, wf_stream *stream, const row *r)
{
    job j = {.ctx = ctx, .stream = stream, .groups = r->groups};
    const int64_t n = r->shape.dim[0], c = r->shape.rank > 1 ? r->shape.dim[1] : 1;
    const int64_t rows = wf_shape_count(r->shape) / c;
    wf_array *const large[] = {&j.x, &j.y, &j.dy, &j.dx}, *const channels[] = {&j.a, &j.b, &j.c, &j.d};
    for (int i = 0; i < 4; i++) {
        *large[i] = bench_array(ctx, WF_F32, r->shape);
        *channels[i] = filled(ctx, WF_F32, WF_SHAPE(c), 0.5);
    }
    const wf_shape few = r->few.rank > 0 ? r->few : WF_SHAPE(1);
    j.few = bench_array(ctx, WF_F32, few);
    j.index = filled(ctx, WF_I32, few, 0);
    /* Two numbers for each pixel, or for each group of a sample. */
    const int64_t most = rows > n * r->groups ? rows : n * r->groups;
    j.stats = filled(ctx, WF_F32, WF_SHAPE(2, most), 0.5);
    j.labels = filled(ctx, WF_U8, WF_SHAPE(rows), 1);
    j.numbers = numbers_of(ctx, few.dim[0], n);
    if (r->call == take || r->call == take_backward)
        j.x.order = j.dx.order = j.few.order = WF_ROW_MAJOR;
    if (r->call == entropy || r->call == entropy_backward) {
        j.stats.shape = WF_SHAPE(rows);
        j.a.shape = j.b.shape = wf_shape_scalar();
    }
    take_geometry(&j, r);
    if (r->call == pool_backward)
        WF_MUST(pool(&j));
    j.hyper = (wf_optim_hyper){
        .lr = 1e-6, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .bias1 = 0.5, .bias2 = 0.1, .grad_scale = 1};
    j.segment = (wf_optim_segment){
        .p = j.x.data, .g = j.dy.data, .state1 = j.y.data, .state2 = j.dx.data, .n = wf_shape_count(r->shape)};
    if (r->call == adam)
        WF_MUST(ctx->k->fill(ctx, &j.dx, 1));
    return j;
}

static void job_free(job *j)
{
    wf_array *const arrays[] = {&j->x, &j->y, &j->dy, &j->dx,    &j->few,    &j->index,  &j->a,
                                &j->b, &j->c, &j->d,  &j->stats, &j->labels, &j->numbers};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        bench_array_free(j->ctx, arrays[i]);
}

static wf_status copy(void *p)
{
    const job *j = p;
    return bench_copy(j->ctx, j->stream, j->y.data, j->x.data, j->copied);
}

static void print_row(wf_ctx *ctx, wf_stream *stream, const row *r)
{
    job j = job_new(ctx, stream, r);
    const double whole = bench_bytes(&j.x), moved = whole * r->arrays;
    char shape[64];
    int at = 0;
    for (int d = 0; d < r->shape.rank; d++)
        at += snprintf(shape + at, sizeof shape - (size_t)at, "%s%lld", d > 0 ? "," : "[", (long long)r->shape.dim[d]);
    j.copied = (size_t)whole;
    const double t = bench_best(ctx, stream, 0.02, r->call, &j), plain = bench_best(ctx, stream, 0.01, copy, &j);
    printf("%-22s %s]%*s %9.1f %7.1f %5.0f %%\n", r->name, shape, 20 - at, "", t * 1e6, 1e-9 * moved / t,
           100 * plain * r->arrays / 2 / t);
    fflush(stdout);
    job_free(&j);
}

static void print_table(wf_ctx *ctx, wf_stream *stream, const char *only)
{
    const row table[] = {
        BATCH(64, 16, 32, 32),
        BATCH(8, 64, 112, 112),
        BATCH(8, 256, 56, 56),
        BATCH(8, 512, 14, 14),
        GROUP(0, 8, 96, 56, 56),
        GROUP(0, 8, 192, 28, 28),
        GROUP(0, 8, 384, 14, 14),
        GROUP(0, 8, 768, 7, 7),
        GROUP(0, 64, 16, 32, 32),
        GROUP(8, 64, 16, 32, 32),
        GROUP(8, 2, 16, 64, 64, 64),
        GROUP(8, 2, 32, 32, 32, 32),
        GROUP(8, 2, 64, 16, 16, 16),
        GROUP(8, 1, 64, 64, 64, 64),
        POOL(2, LIST(64, 16, 32, 32), LIST(64, 16, 16, 16), 0.25),
        POOL(2, LIST(8, 64, 112, 112), LIST(8, 64, 56, 56), 0.25),
        POOL(3, LIST(8, 64, 112, 112), LIST(8, 64, 56, 56), 0.25),
        POOL(2, LIST(2, 16, 64, 64, 64), LIST(2, 16, 32, 32, 32), 0.125),
        RESAMPLE(false, LIST(4, 32, 256, 256), LIST(4, 32, 128, 128), 0.25),
        RESAMPLE(true, LIST(4, 32, 256, 256), LIST(4, 32, 128, 128), 0.25),
        RESAMPLE(true, LIST(64, 16, 32, 32), LIST(64, 16, 16, 16), 0.25),
        RESAMPLE(false, LIST(2, 16, 64, 64, 64), LIST(2, 16, 32, 32, 32), 0.125),
        RESAMPLE(true, LIST(2, 16, 64, 64, 64), LIST(2, 16, 32, 32, 32), 0.125),
        CLASSES(4096, 1024),
        CLASSES(8192, 10),
        CLASSES(65536, 16),
        {.name = "Adam", .shape = WF_SHAPE(1 << 20), .arrays = 7, .call = adam},
        {.name = "Adam", .shape = WF_SHAPE(1 << 24), .arrays = 7, .call = adam},
        {.name = "take", .shape = WF_SHAPE(8192, 512), .few = WF_SHAPE(2048, 512), .arrays = 0.5, .call = take},
        {.name = "take, backward",
         .shape = WF_SHAPE(8192, 512),
         .few = WF_SHAPE(2048, 512),
         .arrays = 1.25,
         .call = take_backward},
        {.name = "take, backward",
         .shape = WF_SHAPE(65536, 16),
         .few = WF_SHAPE(65536, 16),
         .arrays = 2,
         .call = take_backward},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (strncmp(table[i].name, only, strlen(only)) == 0)
            print_row(ctx, stream, &table[i]);
}

/* Before the first context: the library asks the environment once. */
static void take_level(const char *level)
{
    static const char *const names[][2] = {{"x86-64", "x86-64"}, {"v3", "x86-64-v3"}, {"v4", "x86-64-v4"}};
    for (int i = 0; i < 3; i++)
        if (level && strcmp(level, names[i][0]) == 0) {
            setenv("WEFT_LEVEL", names[i][1], 1);
            return;
        }
    fprintf(stderr, "--level is \"%s\", should be x86-64, v3 or v4\n", level ? level : "");
    exit(2);
}

int main(int argc, char **argv)
{
    bench_usage(argc, argv, 5, "--level", "bench_sizes [DEVICE] [THREADS] [--level x86-64|v3|v4] [NAME]");
    wf_ctx_opts opts = {0};
    wf_stream *stream;
    const char *only = "";
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--level") == 0)
            take_level(argv[++i]);
        else if (isdigit((unsigned char)argv[i][0]))
            opts.threads = atoi(argv[i]);
        else if (strcmp(argv[i], "cpu") == 0 || strncmp(argv[i], "cuda", 4) == 0)
            opts.device = argv[i];
        else
            only = argv[i];
    }
    wf_ctx *const ctx = wf_ctx_new(opts);
    WF_MUST(wf_check(ctx));
    WF_MUST(ctx->k->stream_new(ctx, &stream));
    WF_MUST(ctx->k->stream_use(ctx, stream));
    printf("device %s, %d threads, level %s\n%-22s %-22s %9s %7s %7s\n", wf_ctx_device(ctx), wf_ctx_threads(ctx),
           wf_processor_level(), "slot", "shape", "us", "GB/s", "copy");
    print_table(ctx, stream, only);
    ctx->k->stream_free(ctx, stream);
    WF_MUST(wf_ctx_free(ctx));
    return 0;
}
