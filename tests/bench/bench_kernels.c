/* Speed of the kernels that training spends its time in: convolutions of the DCGAN in GFLOP/s, memory-bound passes in
 * GB/s (bytes that must be read and written at least once) and as a share of what a plain copy of as many bytes does.
 *
 *     bench_kernels [DEVICE] [THREADS] [f32|bf16|f16] [passes] [quick] [--level x86-64|v3|v4]
 *
 * passes: no convolutions; quick: one table, and too short to be believed; --level: the kernels of this level of the
 * processor, and oneDNN's.
 *
 * The last line has the least share of each group of passes.
 */
#include "core/processor_author.h"
#include "tests/bench/bench_conv.h"
#include "tests/bench/bench_copy.h"
#include "tests/bench/bench_slots.h"
#include "tests/bench/bench_usage.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static wf_ctx *ctx;
static wf_stream *stream;
static wf_dtype dtype = WF_F32;
static bool quick;

static void *bytes_new(const void *host, size_t bytes)
{
    void *data;
    WF_MUST(wf_pool_take(ctx, bytes, &data));
    if (host)
        WF_MUST(ctx->k->to_device(ctx, data, host, bytes));
    return data;
}

static wf_array array_of(wf_dtype type, wf_shape shape)
{
    return bench_array(ctx, type, shape);
}

static wf_array array_new(wf_shape shape)
{
    return array_of(dtype, shape);
}

static double seconds_of(wf_status (*call)(void *), void *job)
{
    return bench_best(ctx, stream, quick ? 0 : 0.03, call, job);
}

/* The data's direction, as a transposed convolution has it: bias and ReLU follow. */
typedef struct transposed_job {
    const bench_conv *conv;
    wf_array bias;
} transposed_job;

static wf_status transposed(void *p)
{
    const transposed_job *t = p;
    const bench_conv *const j = t->conv;
    const wf_epilogue relu = {.act = WF_ACT_RELU};
    const wf_conv_args args = {
        .geom = &j->geom, .y = &j->y, .w = &j->w, .bias = &t->bias, .epilogue = &relu, .x = &j->x};
    return ctx->k->conv_backward_data(ctx, &args);
}

static void conv_row(int64_t n, int64_t c, int64_t f, int64_t h, int64_t k, int64_t s)
{
    bench_conv j;
    bench_conv_open(&j, ctx, dtype,
                    (bench_conv_shape){.n = n, .c = c, .f = f, .h = h, .k = k, .s = s, .pad = 1, .groups = 1});
    transposed_job t = {&j, array_new(WF_SHAPE(c))};
    const double flop = 1e-9 * bench_conv_flop(&j);
    printf("%4lld -> %4lld %3lldx%-3lld k%lld s%lld %8.2f", (long long)c, (long long)f, (long long)h, (long long)h,
           (long long)k, (long long)s, flop);
    printf(" %8.0f", flop / seconds_of(bench_conv_forward, &j));
    printf(" %8.0f", flop / seconds_of(bench_conv_data, &j));
    printf(" %8.0f", flop / seconds_of(transposed, &t));
    printf(" %8.0f\n", flop / seconds_of(bench_conv_filter, &j));
    fflush(stdout);
    bench_array_free(ctx, &t.bias);
    bench_conv_close(&j);
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

enum { SEGMENTS = 100 };

typedef struct pass_job {
    wf_array x, y, z, dy, mean, m2, invstd, gamma, sum;
    wf_array pixel_stats, group_stats, beta, narrow;
    wf_array labels, log_sum, loss; /* of the classes that x's channels are */
    wf_epilogue relu, noisy;
    wf_optim_hyper *hyper; /* in device memory */
    wf_optim_segment whole, part[SEGMENTS];
    wf_strided face, packed; /* a side of x, and where it is gathered */
    void *pinned;
    size_t copied; /* bytes of a plain copy */
} pass_job;

static wf_status stats(void *p)
{
    const pass_job *j = p;
    return ctx->k->norm_stats(ctx, &(wf_norm_args){.x = &j->x, .mean = &j->mean, .m2 = &j->m2});
}

static wf_status normalise(const pass_job *j, const wf_epilogue *epilogue, const wf_array *residual)
{
    const wf_norm_args args = {.x = &j->x,
                               .residual = residual,
                               .mean = &j->mean,
                               .invstd = &j->invstd,
                               .gamma = &j->gamma,
                               .beta = &j->gamma,
                               .epilogue = epilogue,
                               .y = &j->y};
    return ctx->k->norm_forward(ctx, &args);
}

static wf_status norm_forward(void *p)
{
    const pass_job *j = p;
    return normalise(j, &j->relu, NULL);
}

static wf_status norm_residual(void *p)
{
    const pass_job *j = p;
    return normalise(j, &j->relu, &j->dy);
}

static wf_status norm_noisy(void *p)
{
    const pass_job *j = p;
    return normalise(j, &j->noisy, NULL);
}

static wf_status norm_backward_stats(void *p)
{
    const pass_job *j = p;
    const wf_norm_args args = {.x = &j->x,
                               .mean = &j->mean,
                               .invstd = &j->invstd,
                               .epilogue = &j->relu,
                               .y = &j->y,
                               .dy = &j->dy,
                               .sum_g = &j->gamma,
                               .sum_gx = &j->m2};
    return ctx->k->norm_backward_stats(ctx, &args);
}

static wf_status norm_backward(void *p)
{
    const pass_job *j = p;
    const wf_norm_args args = {.x = &j->x,
                               .mean = &j->mean,
                               .invstd = &j->invstd,
                               .gamma = &j->gamma,
                               .epilogue = &j->relu,
                               .y = &j->y,
                               .dy = &j->dy,
                               .sum_g = &j->mean,
                               .sum_gx = &j->m2,
                               .count = {.value = 1000},
                               .dx = &j->dy};
    return ctx->k->norm_backward(ctx, &args);
}

static wf_status epilogue_backward(void *p)
{
    const pass_job *j = p;
    return ctx->k->epilogue_backward(ctx, &j->relu, &j->y, &j->dy, &j->dy);
}

static wf_status tanh_forward(void *p)
{
    const pass_job *j = p;
    return ctx->k->act_forward(ctx, &(wf_act_args){.act = WF_ACT_TANH, .x = &j->x, .y = &j->y});
}

static wf_status add(void *p)
{
    const pass_job *j = p;
    return ctx->k->binary(
        ctx, &(wf_binary_args){.op = WF_BINARY_LINEAR, .alpha = 1, .a = &j->x, .beta = 1, .b = &j->dy, .y = &j->y});
}

/* x times a number of each channel, and the sums over all other dimensions of x dy. */
static wf_status fold(const pass_job *j, wf_strided a, wf_strided b, wf_strided y)
{
    return ctx->k->fold(ctx, &(wf_fold_args){.op = WF_FOLD_MUL, .alpha = 1, .a = &a, .b = &b, .y = &y});
}

static wf_strided channels_of(const pass_job *j, const wf_array *one)
{
    wf_strided view = wf_array_strided(&j->x);
    view.data = one->data;
    view.dtype = one->dtype;
    for (int d = 0; d < view.rank; d++)
        view.stride[d] = d == 1;
    return view;
}

static wf_status repeat(void *p)
{
    const pass_job *j = p;
    return fold(j, wf_array_strided(&j->x), channels_of(j, &j->narrow), wf_array_strided(&j->y));
}

static wf_status fold_sums(void *p)
{
    const pass_job *j = p;
    return fold(j, wf_array_strided(&j->x), wf_array_strided(&j->dy), channels_of(j, &j->gamma));
}

static wf_entropy_args entropy_args(const pass_job *j)
{
    return (wf_entropy_args){.x = &j->x,
                             .labels = &j->labels,
                             .ignored = WF_NONE_IGNORED,
                             .scale = 1e-3,
                             .log_sum = &j->log_sum,
                             .loss = &j->loss,
                             .dloss = &j->loss,
                             .dx = &j->dy};
}

static wf_status entropy_forward(void *p)
{
    const wf_entropy_args args = entropy_args(p);
    return ctx->k->entropy_forward(ctx, &args);
}

static wf_status entropy_backward(void *p)
{
    const wf_entropy_args args = entropy_args(p);
    return ctx->k->entropy_backward(ctx, &args);
}

static wf_status squares(void *p)
{
    const pass_job *j = p;
    return ctx->k->sum_squares(ctx, &j->x, &j->sum, false);
}

static wf_status adam(void *p)
{
    const pass_job *j = p;
    return ctx->k->optim_update(ctx, WF_OPTIM_ADAM, j->hyper, dtype, 1, &j->whole);
}

static wf_status adam_parts(void *p)
{
    const pass_job *j = p;
    return ctx->k->optim_update(ctx, WF_OPTIM_ADAM, j->hyper, dtype, SEGMENTS, j->part);
}

static wf_status transpose(void *p)
{
    const pass_job *j = p;
    const wf_strided from = wf_array_strided(&j->x);
    wf_strided to = wf_array_strided(&j->y);
    wf_order_strides(j->y.shape, WF_ROW_MAJOR, to.stride);
    return ctx->k->copy(ctx, &from, &to, false);
}

static wf_status pack(void *p)
{
    const pass_job *j = p;
    return ctx->k->copy(ctx, &j->face, &j->packed, false);
}

static wf_status unpack_add(void *p)
{
    const pass_job *j = p;
    return ctx->k->copy(ctx, &j->packed, &j->face, true);
}

static wf_status stage(void *p)
{
    const pass_job *j = p;
    return ctx->k->to_host_begin(ctx, j->pinned, j->packed.data, j->copied, stream);
}

static wf_status pack_and_stage(void *p)
{
    WF_TRY(pack(p));
    return stage(p);
}

static wf_status plain_copy(void *p)
{
    const pass_job *j = p;
    return bench_copy(ctx, stream, j->y.data, j->x.data, j->copied);
}

/* Layer normalisation over the channels of a pixel, and group normalisation of eight groups. */
static wf_group_norm_args groups_of(const pass_job *j, bool pixels)
{
    const int64_t n = j->x.shape.dim[0], c = j->x.shape.dim[1], places = wf_array_count(&j->x) / (n * c);
    const int64_t groups = pixels ? 1 : 8, size = c / groups;
    return (wf_group_norm_args){.rows = pixels ? n * places : n,
                                .places = pixels ? 1 : places,
                                .channels = c,
                                .groups = groups,
                                .size = size,
                                .count = (double)(size * (pixels ? 1 : places)),
                                .eps = 1e-5,
                                .x = &j->x,
                                .gamma = &j->gamma,
                                .stats = pixels ? &j->pixel_stats : &j->group_stats};
}

static wf_status group_forward(const pass_job *j, bool pixels)
{
    wf_group_norm_args args = groups_of(j, pixels);
    args.y = &j->y;
    args.beta = &j->beta;
    return ctx->k->group_norm_forward(ctx, &args);
}

static wf_status group_backward(const pass_job *j, bool pixels)
{
    wf_group_norm_args args = groups_of(j, pixels);
    args.dy = &j->dy;
    args.dx = &j->z;
    args.dgamma = &j->mean;
    args.dbeta = &j->m2;
    return ctx->k->group_norm_backward(ctx, &args);
}

static wf_status layer_forward(void *p)
{
    return group_forward(p, true);
}

static wf_status layer_backward(void *p)
{
    return group_backward(p, true);
}

static wf_status groups_forward(void *p)
{
    return group_forward(p, false);
}

static wf_status groups_backward(void *p)
{
    return group_backward(p, false);
}

static size_t bytes_of(const wf_strided *s)
{
    size_t n = wf_dtype_size(s->dtype);
    for (int d = 0; d < s->rank; d++)
        n *= (size_t)s->dim[d];
    return n;
}

/* The first `length` elements of a side. */
static void take_face(pass_job *j, int side, int64_t length)
{
    int64_t stride = 1;
    j->face = wf_array_strided(&j->x);
    j->face.dim[side] = length;
    j->packed = j->face;
    j->packed.data = j->y.data;
    static const int inner_first[] = {1, 3, 2, 0};
    for (int i = 0; i < 4; i++) {
        j->packed.stride[inner_first[i]] = stride;
        stride *= j->packed.dim[inner_first[i]];
    }
}

static pass_job job_new(wf_shape shape)
{
    const wf_dtype wide = dtype == WF_F64 ? WF_F64 : WF_F32;
    const wf_optim_hyper hyper = {.lr = 1e-4,
                                  .beta1 = 0.5,
                                  .beta2 = 0.999,
                                  .eps = 1e-8,
                                  .bias1 = 0.5,
                                  .bias2 = 0.1,
                                  .grad_scale = 1,
                                  .decay = 1e-4};
    const wf_shape channels = WF_SHAPE(shape.dim[1]);
    pass_job j = {.x = array_new(shape), .y = array_new(shape), .z = array_new(shape), .dy = array_new(shape)};
    j.mean = array_of(wide, channels);
    j.m2 = array_of(wide, channels);
    j.invstd = array_of(wide, channels);
    j.gamma = array_of(wide, channels);
    j.beta = array_of(wide, channels);
    j.narrow = array_of(dtype, channels);
    j.pixel_stats = array_of(wide, WF_SHAPE(2, shape.dim[0] * shape.dim[2] * shape.dim[3]));
    j.group_stats = array_of(wide, WF_SHAPE(2, shape.dim[0] * 8));
    j.sum = array_of(WF_F64, wf_shape_scalar());
    const wf_shape rows = WF_SHAPE(shape.dim[0], shape.dim[2], shape.dim[3]);
    uint8_t *zeros = calloc((size_t)wf_shape_count(rows), 1);
    j.labels = (wf_array){.dtype = WF_U8, .order = WF_ROW_MAJOR, .shape = rows};
    j.labels.data = bytes_new(zeros, (size_t)wf_shape_count(rows));
    free(zeros);
    j.log_sum = array_of(wide, rows);
    j.log_sum.order = WF_ROW_MAJOR;
    j.loss = array_of(wide, wf_shape_scalar());
    j.relu = (wf_epilogue){.act = WF_ACT_LEAKY_RELU, .slope = 0.2};
    j.noisy = j.relu;
    j.noisy.noise = 0.2;
    j.noisy.random = (wf_random){.seed = 3, .global = shape, .box = wf_box_of_shape(shape)};
    j.hyper = bytes_new(&hyper, sizeof hyper);
    const int64_t n = wf_array_count(&j.x), part = n / SEGMENTS, size = (int64_t)wf_dtype_size(dtype);
    j.whole = (wf_optim_segment){.p = j.x.data, .g = j.dy.data, .state1 = j.y.data, .state2 = j.z.data, .n = n};
    for (int64_t i = 0; i < SEGMENTS; i++) {
        char *const at[] = {j.x.data, j.dy.data, j.y.data, j.z.data};
        const int64_t from = i * part * size;
        j.part[i] = (wf_optim_segment){
            .p = at[0] + from, .g = at[1] + from, .state1 = at[2] + from, .state2 = at[3] + from, .n = part};
    }
    take_face(&j, 3, 1);
    WF_MUST(wf_pool_take_host(ctx, bytes_of(&j.face) * 2, &j.pinned));
    return j;
}

static void job_free(pass_job *j)
{
    wf_array *const arrays[] = {&j->x,      &j->y,           &j->z,           &j->dy,     &j->mean,    &j->m2,
                                &j->invstd, &j->gamma,       &j->sum,         &j->labels, &j->log_sum, &j->loss,
                                &j->beta,   &j->pixel_stats, &j->group_stats, &j->narrow};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        bench_array_free(ctx, arrays[i]);
    wf_pool_give(ctx, j->hyper, sizeof *j->hyper);
    wf_pool_give_host(ctx, j->pinned, 0);
}

typedef enum group { OTHER, NORM, OPTIMIZER, PACK, STAGE, GROUPS } group;

static double least[GROUPS] = {1e9, 1e9, 1e9, 1e9, 1e9};
static double copy_rate; /* bytes a second that the fastest plain copy reads and writes */

/* `moved`: bytes read and written; the copy beside it reads half of them, or is the staging alone. */
static void slot_row(pass_job *j, const char *name, group g, wf_status (*call)(void *), void *job, double moved)
{
    const double whole = (double)wf_array_count(&j->x) * (double)wf_dtype_size(dtype);
    const double wanted = g == STAGE ? moved : moved / 2;
    j->copied = (size_t)(wanted < whole ? wanted : whole);
    const double t = seconds_of(call, job);
    const double limit = seconds_of(g == STAGE ? stage : plain_copy, j) * wanted / (double)j->copied, share = limit / t;
    least[g] = share < least[g] ? share : least[g];
    if (g != STAGE && moved / limit > copy_rate)
        copy_rate = moved / limit;
    printf("%-26s %8.1f %8.1f %5.0f %%\n", name, 1e-9 * moved / t, t * 1e6, 100 * share);
}

static void pass_row(pass_job *j, const char *name, group g, wf_status (*call)(void *), double moved)
{
    slot_row(j, name, g, call, j, moved);
}

static void slot_table(pass_job *j, double bytes)
{
    bench_slots *const slots = bench_slots_open(ctx, dtype, j->x.shape);
    for (int i = 0; i < bench_slot_count; i++) {
        const bench_slot *const s = &bench_slot_table[i];
        if (!s->wide_only || dtype == WF_F32)
            slot_row(j, s->name, OTHER, s->call, slots, bytes * s->arrays);
    }
    bench_slots_close(slots);
}

static void pass_table(int64_t n, int64_t c, int64_t h)
{
    static const struct {
        const char *name;
        group group;
        double arrays; /* read and written */
        wf_status (*call)(void *);
    } row[] = {{"norm_stats", NORM, 1, stats},
               {"norm_forward, ReLU", NORM, 2, norm_forward},
               {"norm_forward, residual", OTHER, 3, norm_residual},
               {"norm_forward, noise", OTHER, 2, norm_noisy},
               {"norm_backward_stats", NORM, 3, norm_backward_stats},
               {"norm_backward", NORM, 4, norm_backward},
               {"layer norm", OTHER, 2, layer_forward},
               {"layer norm, backward", OTHER, 3, layer_backward},
               {"group norm", OTHER, 2, groups_forward},
               {"group norm, backward", OTHER, 3, groups_backward},
               {"epilogue_backward", OTHER, 3, epilogue_backward},
               {"tanh", OTHER, 2, tanh_forward},
               {"entropy_forward", OTHER, 1, entropy_forward},
               {"entropy_backward", OTHER, 2, entropy_backward},
               {"add", OTHER, 3, add},
               {"mul, one of a channel", OTHER, 2, repeat},
               {"mul, sums of channels", OTHER, 2, fold_sums},
               {"sum_squares", OTHER, 1, squares},
               {"copy to NCHW", OTHER, 2, transpose},
               {"Adam", OPTIMIZER, 7, adam},
               {"Adam, 100 segments", OPTIMIZER, 7, adam_parts}};
    pass_job j = job_new(WF_SHAPE(n, c, h, h));
    const double bytes = (double)wf_array_count(&j.x) * (double)wf_dtype_size(dtype);
    printf("\n[%lld,%lld,%lld,%lld] of %s, %.1f MB each: GB/s, microseconds, share of a copy\n", (long long)n,
           (long long)c, (long long)h, (long long)h, wf_dtype_name(dtype), bytes * 1e-6);
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        if (row[i].group != OPTIMIZER || dtype == WF_F32 || dtype == WF_F64) /* masters are not of 16 bits */
            pass_row(&j, row[i].name, row[i].group, row[i].call, bytes * row[i].arrays);
    slot_table(&j, bytes);
    for (int side = 2; side < 4; side++) {
        char name[3][64];
        take_face(&j, side, 1);
        const double face = (double)bytes_of(&j.face);
        snprintf(name[0], sizeof name[0], "pack a %s", side == 2 ? "row" : "column");
        snprintf(name[1], sizeof name[1], "add a %s back", side == 2 ? "row" : "column");
        snprintf(name[2], sizeof name[2], "pack and stage a %s", side == 2 ? "row" : "column");
        pass_row(&j, name[0], PACK, pack, 2 * face);
        pass_row(&j, name[1], PACK, unpack_add, 3 * face);
        pass_row(&j, name[2], STAGE, pack_and_stage, face);
    }
    job_free(&j);
}

/* Before the first context: the library and oneDNN ask the environment once. */
static void take_level(const char *level)
{
    static const char *const names[][3] = {
        {"x86-64", "x86-64", "SSE41"}, {"v3", "x86-64-v3", "AVX2"}, {"v4", "x86-64-v4", "AVX512_CORE"}};
    for (int i = 0; i < 3; i++)
        if (level && (strcmp(level, names[i][0]) == 0 || strcmp(level, names[i][1]) == 0)) {
            setenv("WEFT_LEVEL", names[i][1], 1);
            setenv("ONEDNN_MAX_CPU_ISA", names[i][2], 1);
            return;
        }
    fprintf(stderr, "--level is \"%s\", should be x86-64, v3 or v4\n", level ? level : "");
    exit(2);
}

int main(int argc, char **argv)
{
    static const wf_dtype types[] = {WF_F32, WF_BF16, WF_F16};
    bench_usage(argc, argv, 7, "--level",
                "bench_kernels [DEVICE] [THREADS] [f32|bf16|f16] [passes] [quick] [--level x86-64|v3|v4]");
    wf_ctx_opts opts = {0};
    bool passes = false;
    for (int i = 1; i < argc; i++) {
        bool type = false;
        for (int t = 0; t < 3; t++)
            if (strcmp(argv[i], wf_dtype_name(types[t])) == 0)
                dtype = types[t], type = true;
        if (strcmp(argv[i], "--level") == 0)
            take_level(argv[++i]);
        else if (strcmp(argv[i], "passes") == 0)
            passes = true;
        else if (strcmp(argv[i], "quick") == 0)
            quick = true;
        else if (isdigit((unsigned char)argv[i][0]))
            opts.threads = atoi(argv[i]);
        else if (!type)
            opts.device = argv[i];
    }
    ctx = wf_ctx_new(opts);
    WF_MUST(wf_check(ctx));
    WF_MUST(ctx->k->stream_new(ctx, &stream));
    WF_MUST(ctx->k->stream_use(ctx, stream));
    printf("device %s, %d threads, level %s\n", wf_ctx_device(ctx), wf_ctx_threads(ctx), wf_processor_level());
    if (!passes) {
        conv_table(128);
        conv_table(512);
    }
    pass_table(64, 16, 32);
    if (!quick) {
        pass_table(64, 128, 4);
        pass_table(64, 64, 32);
    }
    if (!ctx->k->host) { /* the same where caches are larger */
        for (int g = 0; g < GROUPS; g++)
            least[g] = 1e9;
        copy_rate = 0;
        pass_table(256, 64, 64);
        pass_table(32, 64, 256);
    }
    printf("\nfigure: copy %.2f TB/s\n", 1e-12 * copy_rate);
    printf("figure: of a copy at least: normalisation %.0f %%, ", 100 * least[NORM]);
    if (dtype == WF_F32)
        printf("optimizer %.0f %%, ", 100 * least[OPTIMIZER]);
    printf("pack %.0f %%; pack and staging %.0f %% of staging\n", 100 * least[PACK], 100 * least[STAGE]);
    ctx->k->stream_free(ctx, stream);
    WF_MUST(wf_ctx_free(ctx));
    return 0;
}
