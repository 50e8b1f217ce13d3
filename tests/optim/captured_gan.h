/* What the tests of captured steps share: a small DCGAN (two optimizers with a schedule, one of which clips, batch
 * normalisation, noise, dropout, random inputs, a new batch in every run), and what its training leaves behind. */
#ifndef WF_TESTS_CAPTURED_GAN_H
#define WF_TESTS_CAPTURED_GAN_H

#include "comm/comm.h"
#include "core/captured.h"
#include "layers/layers.h"
#include "optim/ema.h"
#include "optim/multi_node.h"
#include "optim/schedule.h"
#include "tests/optim/optim_model.h"
#include "tests/world.h"

#include <stdio.h>
#include <string.h>

enum { BATCH = 3, SIDE = 8, LATENT = 5, STEPS = 10, IMAGE = BATCH * 3 * SIDE * SIDE };

typedef struct gan {
    wf_ctx *ctx;
    wf_comm *comm; /* NULL: local optimizers */
    wf_layer *gen, *dis;
    wf_optim *opt_gen, *opt_dis;
    wf_ema *ema; /* of the generator, which has the averages at the end; NULL: none */
    wf_tape *tape;
    wf_tensor *x, *loss_dis, *loss_gen, *z, *fake;
    int runs;                         /* of the function */
    wf_status (*also)(struct gan *g); /* what the step does besides; NULL: nothing */
    int mode, when;                   /* for it */
} gan;

/* What a training leaves behind. */
typedef struct history {
    double loss[STEPS][2], z[STEPS][BATCH * LATENT], rate[STEPS];
    int64_t iteration, steps;
    double *value;
    int64_t n;
} history;

/* What the next one computes in; WF_F32: no mixed precision. In f16 the losses are scaled, at first far too much. */
static wf_dtype gan_computes;
/* The type in which gradients are sent. */
static wf_dtype gan_grad_dtype;
/* True: both models recompute. */
static bool gan_recomputes;
static bool gan_averages;
static bool gan_layerwise; /* the generator is trained by LAMB */

static inline wf_var *to_square(wf_var *x)
{
    return wf_reshape(x, WF_SHAPE(wf_var_shape(x).dim[0], -1, 4, 4));
}

static inline wf_var *noisy(wf_var *x)
{
    return wf_gaussian_noise(x, 0.2);
}

static inline wf_var *drop(wf_var *x)
{
    return wf_dropout(x, 0.25);
}

static inline wf_layer *generator(wf_ctx *ctx)
{
    return wf_sequential(
        ctx, WF_LAYERS(wf_linear(ctx, (wf_linear_opts){.in = LATENT, .out = 8 * 16}),
                       wf_batchnorm(ctx, (wf_batchnorm_opts){.channels = 8 * 16, .act = WF_ACT_RELU}),
                       wf_lambda(ctx, to_square),
                       wf_conv_transpose2d(ctx, (wf_conv_opts){.in = 8, .out = 3, .kernel = 4, .stride = 2, .pad = 1}),
                       wf_lambda(ctx, wf_sigmoid)));
}

static inline wf_layer *discriminator(wf_ctx *ctx)
{
    const wf_conv_opts first = {
        .in = 3, .out = 4, .kernel = 3, .pad = 1, .noise = 0.2, .act = WF_ACT_LEAKY_RELU, .slope = 0.2};
    const wf_batchnorm_opts norm = {
        .channels = 8, .no_gamma = true, .noise = 0.2, .act = WF_ACT_LEAKY_RELU, .slope = 0.2};
    return wf_sequential(
        ctx, WF_LAYERS(wf_lambda(ctx, noisy), wf_conv2d(ctx, first),
                       wf_conv2d(ctx, (wf_conv_opts){.in = 4, .out = 8, .kernel = 4, .stride = 2, .pad = 1}),
                       wf_batchnorm(ctx, norm), wf_lambda(ctx, drop),
                       wf_linear(ctx, (wf_linear_opts){.in = 8 * 16, .out = 1})));
}

static inline wf_optim *scheduled(gan *g, wf_optim *optim)
{
    optim = wf_lr_schedule(optim, (wf_schedule_opts){.kind = WF_SCHEDULE_COSINE, .total = STEPS, .warmup = 3});
    WF_EXPECT_OK(
        wf_optim_group(optim, "*", (wf_group_opts){.vectors = true, .lr_scale = 0.5, .weight_decay = WF_ZERO}));
    if (gan_computes == WF_F16)
        WF_EXPECT_OK(wf_optim_scale_loss(
            optim, (wf_loss_scale_opts){.init = 0x1p40, .backoff = 0x1p-5, .growth = 0x1p10, .interval = 2}));
    return g->comm ? wf_multi_node(g->comm, optim, (wf_multi_node_opts){.grad_dtype = gan_grad_dtype}) : optim;
}

static inline void gan_fill(gan *g)
{
    WF_EXPECT_OK(wf_ctx_set_compute(g->ctx, gan_computes));
    g->gen = generator(g->ctx);
    g->dis = discriminator(g->ctx);
    if (gan_recomputes) {
        wf_recompute(g->dis);
        WF_EXPECT(wf_recompute_chain(g->gen, 2), "%s", wf_error_message());
    }
    const wf_adam_opts adam = {.lr = 1e-2, .beta1 = 0.5, .weight_decay = 1e-4};
    const wf_lamb_opts lamb = {.lr = 1e-2, .beta1 = 0.5};
    g->opt_gen = scheduled(g, gan_layerwise ? wf_lamb(g->gen, lamb) : wf_adam(g->gen, adam));
    g->opt_dis = scheduled(g, wf_adam(g->dis, adam));
    g->ema = gan_averages ? wf_ema_new(g->gen, (wf_ema_opts){.warm_up = true}) : NULL;
    g->tape = wf_tape_new(g->ctx);
    g->x = wf_tensor_new(g->ctx, WF_F32, WF_SHAPE(BATCH, 3, SIDE, SIDE));
    WF_EXPECT(g->gen && g->dis && g->opt_gen && g->opt_dis && g->tape && g->x, "%s", wf_error_message());
    WF_EXPECT_OK(wf_optim_clip_norm(g->opt_dis, 0.5));
}

static inline gan gan_new(void)
{
    gan g = {.ctx = ctx_of("cpu", WF_F32)};
    gan_fill(&g);
    return g;
}

static inline gan gan_of_ranks(void)
{
    gan g = {.comm =
                 test_comm_open(test_communicator("auto"), (wf_ctx_opts){.device = test_device("cpu"), .threads = 1})};
    g.ctx = wf_comm_ctx(g.comm);
    WF_EXPECT(g.comm, "%s: %s", test_communicator("auto"), wf_error_message());
    gan_fill(&g);
    return g;
}

static inline void gan_free(gan *g)
{
    wf_tensor_free(g->x);
    wf_tensor_free(g->loss_dis);
    wf_tensor_free(g->loss_gen);
    wf_tensor_free(g->z);
    wf_tensor_free(g->fake);
    wf_tape_free(g->tape);
    wf_ema_free(g->ema);
    wf_optim_free(g->opt_gen);
    wf_optim_free(g->opt_dis);
    wf_layer_free(g->gen);
    wf_layer_free(g->dis);
    if (g->comm)
        WF_EXPECT_OK(wf_comm_close(g->comm));
    else
        WF_EXPECT_OK(wf_ctx_free(g->ctx));
}

static inline void put(wf_tensor **place, wf_tensor *tensor)
{
    wf_tensor_free(*place);
    *place = tensor;
}

/* The two halves of a step, each a step of its own where they are captured as two. The generator makes its images anew.
 */
static inline wf_status step_dis(void *arg)
{
    gan *g = arg;
    wf_var *real = wf_input(g->tape, g->x);
    wf_var *z = wf_rand_uniform(g->tape, WF_SHAPE(BATCH, LATENT), -1, 1, real);
    put(&g->z, wf_keep(z));
    wf_var *fake = wf_apply(g->gen, z);
    put(&g->fake, wf_keep(fake));
    wf_var *loss_real = wf_bce_logits_constant(wf_apply(g->dis, real), 1);
    wf_var *loss_fake = wf_bce_logits_constant(wf_apply(g->dis, wf_detach(fake)), 0);
    wf_var *loss = wf_add(loss_real, loss_fake);
    const wf_status status = wf_optim_step(g->opt_dis, loss);
    put(&g->loss_dis, wf_keep(loss));
    return status == WF_OK ? wf_tape_reset(g->tape) : status;
}

static inline wf_status step_gen(void *arg)
{
    gan *g = arg;
    wf_var *z = wf_rand_uniform(g->tape, WF_SHAPE(BATCH, LATENT), -1, 1, wf_input(g->tape, g->x));
    wf_var *loss = wf_bce_logits_constant(wf_apply(g->dis, wf_apply(g->gen, z)), 1);
    wf_status status = wf_optim_step(g->opt_gen, loss);
    if (status == WF_OK && g->ema)
        status = wf_ema_update(g->ema);
    put(&g->loss_gen, wf_keep(loss));
    return status == WF_OK ? wf_tape_reset(g->tape) : status;
}

static inline wf_status step(void *arg)
{
    gan *g = arg;
    g->runs++;
    wf_status status = step_dis(g);
    if (status == WF_OK)
        status = step_gen(g);
    if (status == WF_OK && g->also)
        status = g->also(g);
    return status;
}

static inline void next_batch(gan *g, int i)
{
    static float x[IMAGE];
    test_rng rng = {(uint64_t)i + 1 + 100 * (g->comm ? (uint64_t)wf_comm_rank(g->comm) : 0)};
    for (int k = 0; k < IMAGE; k++)
        x[k] = (float)test_uniform(&rng, 0, 1);
    WF_EXPECT_OK(wf_tensor_import(g->x, x, sizeof x));
}

static inline bool captures(const gan *g)
{
    return g->ctx->k->capture_begin != NULL;
}

static inline void note(const gan *g, history *h, int i)
{
    h->loss[i][0] = wf_tensor_item(g->loss_dis);
    h->loss[i][1] = wf_tensor_item(g->loss_gen);
    h->rate[i] = wf_optim_lr(g->opt_gen);
    values_get(g->z, h->z[i]);
}

/* All values of both models, running statistics among them. */
static inline void note_end(const gan *g, history *h)
{
    h->iteration = wf_tape_iteration(g->tape);
    h->steps = wf_optim_steps(g->opt_dis) + 1000 * wf_optim_steps(g->opt_gen);
    h->n = 0;
    if (g->ema)
        WF_EXPECT_OK(wf_ema_swap(g->ema));
    h->value = calloc(1 << 16, sizeof *h->value);
    for (int m = 0; m < 2; m++)
        for (int64_t i = 0; param_of(m ? g->gen : g->dis, i); i++) {
            const wf_tensor *value = wf_param_value(param_of(m ? g->gen : g->dis, i));
            values_get(value, h->value + h->n);
            h->n += wf_tensor_count(value);
        }
}

static inline void expect_equal(history *a, history *b, const char *what)
{
    for (int i = 0; i < STEPS; i++) {
        WF_EXPECT(memcmp(a->loss[i], b->loss[i], sizeof a->loss[i]) == 0,
                  "%s, step %d: losses %.9g and %.9g, eager %.9g and %.9g", what, i, a->loss[i][0], a->loss[i][1],
                  b->loss[i][0], b->loss[i][1]);
        WF_EXPECT(memcmp(a->z[i], b->z[i], sizeof a->z[i]) == 0, "%s, step %d: other random numbers", what, i);
        WF_EXPECT(a->rate[i] == b->rate[i], "%s, step %d: a rate of %g, eager %g", what, i, a->rate[i], b->rate[i]);
        WF_EXPECT(i == 0 || memcmp(a->z[i], a->z[i - 1], sizeof a->z[i]) != 0, "%s: random numbers repeat", what);
    }
    WF_EXPECT(a->iteration == b->iteration && a->steps == b->steps, "%s: iteration %lld, steps %lld; eager %lld, %lld",
              what, (long long)a->iteration, (long long)a->steps, (long long)b->iteration, (long long)b->steps);
    int64_t differ = a->n != b->n;
    for (int64_t i = 0; i < a->n && a->n == b->n; i++)
        differ += memcmp(&a->value[i], &b->value[i], sizeof *a->value) != 0;
    WF_EXPECT(differ == 0 && a->n > 0, "%s: %lld of %lld values differ", what, (long long)differ, (long long)a->n);
    free(a->value);
    free(b->value);
}

static inline void train_eager(gan *g, history *h)
{
    for (int i = 0; i < STEPS; i++) {
        next_batch(g, i);
        WF_EXPECT_OK(step(g));
        note(g, h, i);
    }
    note_end(g, h);
}

static inline history eager(bool ranks)
{
    static history h;
    gan g = ranks ? gan_of_ranks() : gan_new();
    train_eager(&g, &h);
    gan_free(&g);
    return h;
}

#endif
