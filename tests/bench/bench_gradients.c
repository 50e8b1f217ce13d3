/* What overlap is worth: seconds of a training step of VGG-16 or of the DCGAN, by turns
 *
 *     alone       every rank trains for itself, unconnected: computation
 *     sums        one sum of as many bytes as a step's gradients have: communication
 *     blocking    sums after backward
 *     overlap     sums while backward goes on
 *     bf16, f16   the same with half the bytes
 *     sums bf16   sums of as many numbers in bf16
 *
 *     mpirun -np 2 --bind-to none bench_gradients --model dcgan --batch 64
 *     tests/comm/cluster.sh -r 1gbit -n 1 mpirun bench_gradients --model vgg --batch 48 --width 32
 *
 * Prints the median, the lower quartile and the least of all rounds, and the ratios of the quartiles, which a machine
 * that does other things as well moves least: a step with overlap to the longer of computation and communication, to
 * one without overlap, and to one alone.
 */
#include "comm/reducer_author.h"
#include "examples/common.h"
#include "examples/models/dcgan.h"
#include "examples/models/vgg.h"

#include <stdlib.h>
#include <string.h>

enum { ALONE, SUMS, BLOCKING, OVERLAP, BF16, F16, SUMS_BF16, KINDS };

static const char *const names[KINDS] = {"alone", "sums", "blocking", "overlap", "bf16", "f16", "sums bf16"};

typedef struct settings {
    const char *model, *comm;
    int64_t batch, width, rounds, steps, bucket, first;
    bool gan, narrow;
} settings;

typedef struct trainee {
    wf_layer *net[2]; /* the second of a DCGAN: the discriminator */
    wf_optim *optim[2];
} trainee;

typedef struct bench {
    settings s;
    wf_comm *comm;
    wf_ctx *ctx;
    wf_tape *tape;
    wf_tensor *images, *labels;
    void *flat;
    int64_t count; /* of all gradients */
    trainee of[KINDS];
} bench;

static settings read_settings(int argc, char **argv)
{
    settings s = {.model = "vgg", .comm = "auto", .batch = 64, .rounds = 9, .steps = 1};
    const example_option table[] = {
        {"model", "NAME", "vgg or dcgan", .text = &s.model},
        {"comm", "NAME", "communicator", .text = &s.comm},
        {"batch", "N", "images per rank", .number = &s.batch, .most = EXAMPLE_MOST_SIZE, .least = 1},
        {"width", "N", "channels: of VGG's first group (64), of the DCGAN (128)", .number = &s.width,
         .most = EXAMPLE_MOST_SIZE, .least = 8},
        {"rounds", "N", "turns of every kind", .number = &s.rounds, .most = EXAMPLE_MOST_COUNT, .least = 1},
        {"steps", "N", "in each turn", .number = &s.steps, .most = EXAMPLE_MOST_COUNT, .least = 1},
        {"bucket", "BYTES", "of a bucket; 0: the default", .number = &s.bucket, .most = EXAMPLE_MOST_COUNT},
        {"first", "BYTES", "of the first bucket; 0: the default", .number = &s.first, .most = EXAMPLE_MOST_COUNT},
        {"narrow", NULL, "also bf16 and f16 on the wire", .flag = &s.narrow},
        {0}};
    example_options(argc, argv, "Seconds of a training step with and without overlap.", table);
    s.gan = !strcmp(s.model, "dcgan");
    if (!s.width)
        s.width = s.gan ? 128 : 64;
    return s;
}

static int kinds_of(const bench *b)
{
    return b->s.narrow ? KINDS : BF16;
}

static wf_optim *optim_of(const bench *b, int kind, wf_layer *net)
{
    wf_optim *own = wf_adam(net, (wf_adam_opts){.lr = 1e-4});
    const wf_multi_node_opts opts = {.bucket_bytes = b->s.bucket,
                                     .first_bucket_bytes = b->s.first,
                                     .grad_dtype = kind == BF16  ? WF_BF16
                                                   : kind == F16 ? WF_F16
                                                                 : WF_F32,
                                     .no_overlap = kind == BLOCKING};
    wf_optim *optim = kind == ALONE ? own : wf_multi_node(b->comm, own, opts);
    WF_MUST(wf_check(optim));
    return optim;
}

static trainee trainee_new(const bench *b, int kind)
{
    trainee t = {0};
    if (b->s.gan) {
        t.net[0] = dcgan_generator(b->ctx, b->s.width, 100);
        t.net[1] = dcgan_discriminator(b->ctx, b->s.width);
    } else {
        t.net[0] = vgg16(b->ctx, (vgg_opts){.width = b->s.width});
    }
    for (int i = 0; i < 2 && t.net[i]; i++)
        t.optim[i] = optim_of(b, kind, t.net[i]);
    return t;
}

static void train(const bench *b, const trainee *t)
{
    wf_var *x = wf_input(b->tape, b->images);
    if (b->s.gan) {
        wf_var *z = wf_rand_uniform(b->tape, WF_SHAPE(b->s.batch, 100), -1, 1, x);
        wf_var *fake = wf_apply(t->net[0], z);
        wf_var *real_loss = wf_bce_logits_constant(wf_apply(t->net[1], x), 1);
        wf_var *fake_loss = wf_bce_logits_constant(wf_apply(t->net[1], wf_detach(fake)), 0);
        WF_MUST(wf_optim_step(t->optim[1], wf_add(real_loss, fake_loss)));
        wf_var *loss = wf_bce_logits_constant(wf_apply(t->net[1], fake), 1);
        WF_MUST(wf_optim_step(t->optim[0], loss));
    } else {
        WF_MUST(wf_optim_step(t->optim[0],
                              wf_softmax_cross_entropy(wf_apply(t->net[0], x), b->labels, (wf_label_opts){0})));
    }
    WF_MUST(wf_tape_reset(b->tape));
}

static bool only_sums(int kind)
{
    return kind == SUMS || kind == SUMS_BF16;
}

static void sum_all(const bench *b, wf_dtype dtype)
{
    const int64_t offset[2] = {0, b->count};
    const wf_call job = {.out = b->flat, .dtype = dtype, .parts = 1, .part = offset};
    WF_MUST(wf_reducer_sum(b->comm, &job));
}

/* Seconds of a step, the mean over the ranks, which start together and end each for itself. */
static double timed(const bench *b, int kind)
{
    WF_MUST(wf_barrier(b->comm));
    const double start = example_seconds();
    for (int64_t i = 0; i < b->s.steps; i++)
        if (only_sums(kind))
            sum_all(b, kind == SUMS ? WF_F32 : WF_BF16);
        else
            train(b, &b->of[kind]);
    double seconds = (example_seconds() - start) / (double)b->s.steps;
    WF_MUST(wf_allreduce_f64(b->comm, &seconds, 1, WF_SUM));
    return seconds / wf_comm_size(b->comm);
}

static int64_t parameters(const trainee *t)
{
    int64_t count = 0;
    for (int i = 0; i < 2 && t->net[i]; i++) {
        wf_param *const *params;
        int64_t n = 0;
        WF_MUST(wf_layer_params(t->net[i], &n, &params));
        for (int64_t p = 0; p < n; p++)
            count += wf_param_trainable(params[p]) ? wf_tensor_count(wf_param_value(params[p])) : 0;
    }
    return count;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* seconds: of every kind, in ascending order */
static void report(const bench *b, double *const *seconds)
{
    double of[KINDS] = {0};
    const int64_t rounds = b->s.rounds;
    for (int kind = 0; kind < kinds_of(b); kind++)
        of[kind] = seconds[kind][rounds / 4];
    const double longer = of[ALONE] > of[SUMS] ? of[ALONE] : of[SUMS];
    if (wf_comm_rank(b->comm) > 0)
        return;
    printf("%s, width %lld, batch %lld a rank, %d ranks, %s, %.1f MiB of gradients\n", b->s.model,
           (long long)b->s.width, (long long)b->s.batch, wf_comm_size(b->comm), wf_comm_name(b->comm),
           (double)b->count * sizeof(float) / 1048576);
    printf("  %-9s %12s %12s %12s   ms\n", "", "median", "quartile", "least");
    for (int kind = 0; kind < kinds_of(b); kind++)
        printf("  %-9s %12.2f %12.2f %12.2f\n", names[kind], 1e3 * seconds[kind][rounds / 2], 1e3 * of[kind],
               1e3 * seconds[kind][0]);
    printf("  sums / alone %.3f   overlap / max(alone, sums) %.3f   blocking / overlap %.3f   alone / overlap %.3f\n",
           of[SUMS] / of[ALONE], of[OVERLAP] / longer, of[BLOCKING] / of[OVERLAP], of[ALONE] / of[OVERLAP]);
}

static void measure(bench *b)
{
    double *seconds[KINDS];
    const int kinds = kinds_of(b);
    for (int kind = 0; kind < kinds; kind++) {
        seconds[kind] = calloc((size_t)b->s.rounds, sizeof(double));
        if (!seconds[kind])
            example_abort("no memory");
    }
    for (int64_t i = -2; i < b->s.rounds; i++)
        for (int turn = 0; turn < kinds; turn++) {
            const int kind = (int)((turn + i + 2) % kinds);
            const double t = timed(b, kind);
            if (i >= 0)
                seconds[kind][i] = t;
        }
    for (int kind = 0; kind < kinds; kind++)
        qsort(seconds[kind], (size_t)b->s.rounds, sizeof(double), ascending);
    report(b, seconds);
    for (int kind = 0; kind < kinds; kind++)
        free(seconds[kind]);
}

static void prepare(bench *b)
{
    b->ctx = wf_comm_ctx(b->comm);
    b->tape = wf_tape_new(b->ctx);
    b->images = wf_tensor_new(b->ctx, WF_F32, WF_SHAPE(b->s.batch, 3, 32, 32));
    b->labels = wf_tensor_new(b->ctx, WF_I64, WF_SHAPE(b->s.batch));
    WF_MUST(wf_tensor_fill(b->images, 0.5));
    WF_MUST(wf_tensor_fill(b->labels, 3));
    for (int kind = 0; kind < kinds_of(b); kind++)
        if (!only_sums(kind))
            b->of[kind] = trainee_new(b, kind);
    b->count = parameters(&b->of[ALONE]);
    b->flat = calloc((size_t)b->count, sizeof(float));
    if (!b->flat)
        example_abort("no memory for %lld gradients", (long long)b->count);
}

static void clear(bench *b)
{
    for (int kind = 0; kind < KINDS; kind++)
        for (int i = 0; i < 2; i++) {
            wf_optim_free(b->of[kind].optim[i]);
            wf_layer_free(b->of[kind].net[i]);
        }
    wf_tensor_free(b->images);
    wf_tensor_free(b->labels);
    wf_tape_free(b->tape);
    free(b->flat);
    WF_MUST(wf_comm_close(b->comm));
}

int main(int argc, char **argv)
{
    bench b = {.s = read_settings(argc, argv)};
    b.comm = wf_comm_open(&argc, &argv, b.s.comm, (wf_ctx_opts){0});
    WF_MUST(wf_check(b.comm));
    prepare(&b);
    measure(&b);
    clear(&b);
    return 0;
}
