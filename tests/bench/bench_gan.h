/* The DCGAN in training on given images, for benches. */
#ifndef WF_TESTS_BENCH_GAN_H
#define WF_TESTS_BENCH_GAN_H

#include "examples/common.h"
#include "examples/models/dcgan.h"

typedef struct bench_gan {
    wf_layer *gen, *dis;
    wf_optim *opt_gen, *opt_dis;
    wf_tape *tape;
    const wf_tensor *images;
    int64_t latent; /* inputs of the generator */
} bench_gan;

/* Tape and images are borrowed; sync_bn: batch statistics of all ranks. */
static inline bench_gan bench_gan_new(wf_comm *comm, wf_tape *tape, const wf_tensor *images, int64_t channels,
                                      int64_t latent, bool sync_bn)
{
    const wf_adam_opts adam = {.lr = 2e-4, .beta1 = 0.5, .weight_decay = 1e-4};
    wf_ctx *ctx = wf_comm_ctx(comm);
    bench_gan g = {.gen = dcgan_generator(ctx, channels, latent),
                   .dis = dcgan_discriminator(ctx, channels),
                   .tape = tape,
                   .images = images,
                   .latent = latent};
    if (sync_bn) {
        WF_MUST(wf_to_sync_batchnorm(g.gen, comm));
        WF_MUST(wf_to_sync_batchnorm(g.dis, comm));
    }
    g.opt_gen = wf_multi_node(comm, example_scaled(wf_adam(g.gen, adam)), (wf_multi_node_opts){0});
    g.opt_dis = wf_multi_node(comm, example_scaled(wf_adam(g.dis, adam)), (wf_multi_node_opts){0});
    WF_MUST(wf_check(g.opt_gen));
    WF_MUST(wf_check(g.opt_dis));
    return g;
}

static inline void bench_gan_free(bench_gan *g)
{
    wf_optim_free(g->opt_gen);
    wf_optim_free(g->opt_dis);
    wf_layer_free(g->gen);
    wf_layer_free(g->dis);
}

/* The discriminator's step on real and fake images, then the generator's. */
static inline wf_status bench_gan_step(void *gan)
{
    const bench_gan *g = gan;
    wf_var *real = wf_input(g->tape, g->images);
    wf_var *z = wf_rand_uniform(g->tape, WF_SHAPE(wf_var_shape(real).dim[0], g->latent), -1, 1, real);
    wf_var *fake = wf_apply(g->gen, z);
    wf_var *loss_real = wf_bce_logits_constant(wf_apply(g->dis, real), 1);
    wf_var *loss_fake = wf_bce_logits_constant(wf_apply(g->dis, wf_detach(fake)), 0);
    WF_MUST(wf_optim_step(g->opt_dis, wf_add(loss_real, loss_fake)));
    wf_var *loss_gen = wf_bce_logits_constant(wf_apply(g->dis, fake), 1);
    WF_MUST(wf_optim_step(g->opt_gen, loss_gen));
    return wf_tape_reset(g->tape);
}

#endif
