/* Whole training steps of models that all ranks share, against one rank:
 *
 *     mpirun -np 2 --bind-to none bench_models --vgg-width 64 --unet-size 1024
 *
 * VGG-16 by channels, a U-Net by rows, one of volumes with group normalisation by depth (64 x 64 x 64) and a GPT of 30
 * M by heads, one thread a rank. The step of one rank is taken while all ranks take it, each with a model of its own,
 * unconnected, since cores share memory and clocks; it and the parallel step take turns, and medians of the slowest
 * rank's times count. Efficiency is the time of one rank over ranks times the parallel one.
 */
#include "examples/common.h"
#include "examples/models/gpt.h"
#include "examples/models/unet.h"
#include "examples/models/vgg.h"
#include "tests/bench/bench.h"

#include <string.h>

enum { MOST = 101 };

typedef struct settings {
    int64_t vgg_width, vgg_batch, unet_width, unet_size, unet3_size, unet_batch, gpt_batch, repeats;
    const char *compute, *only;
} settings;

/* A model in training: by itself, or shared. */
typedef struct trainee {
    wf_layer *model;
    wf_optim *optim;
    wf_tensor *x, *target; /* labels, or a mask */
    bool mask, tokens;
    double took[MOST];
} trainee;

static settings read_settings(int argc, char **argv)
{
    settings s = {.vgg_width = 64,
                  .vgg_batch = 64,
                  .unet_width = 8,
                  .unet_size = 1024,
                  .unet3_size = 64,
                  .unet_batch = 2,
                  .gpt_batch = 1,
                  .repeats = 9};
    const example_option table[] = {
        {"vgg-width", "N", "channels of VGG's first group", .number = &s.vgg_width, .most = EXAMPLE_MOST_SIZE,
         .least = 2},
        {"vgg-batch", "N", "images of a step", .number = &s.vgg_batch, .most = EXAMPLE_MOST_SIZE, .least = 1},
        {"unet-width", "N", "channels of the U-Nets at full resolution", .number = &s.unet_width,
         .most = EXAMPLE_MOST_SIZE, .least = 1},
        {"unet-size", "N", "height and width of its images, a multiple of 16", .number = &s.unet_size,
         .most = EXAMPLE_MOST_SIZE, .least = 16},
        {"unet3-size", "N", "sides of the other U-Net's volumes, a multiple of 16", .number = &s.unet3_size,
         .most = EXAMPLE_MOST_SIZE, .least = 16},
        {"unet-batch", "N", "images of a step", .number = &s.unet_batch, .most = EXAMPLE_MOST_SIZE, .least = 1},
        {"gpt-batch", "N", "texts of a step", .number = &s.gpt_batch, .most = EXAMPLE_MOST_SIZE, .least = 1},
        {"only", "NAME", "vgg, unet, unet3 or gpt; else all", .text = &s.only},
        {"repeats", "N", "steps of which the median counts", .number = &s.repeats, .most = EXAMPLE_MOST_COUNT,
         .least = 1},
        EXAMPLE_COMPUTE(&s.compute),
        {0}};
    example_options(argc, argv, "Efficiency of models that the ranks of mpirun share.", table);
    s.repeats = s.repeats < MOST ? s.repeats : MOST;
    return s;
}

/* Noise, or what is above the middle of noise. */
static wf_tensor *noise(wf_tape *tape, wf_shape shape, bool mask, const wf_layout *layout)
{
    wf_var *x = wf_rand_uniform(tape, shape, -1, 1, NULL);
    if (mask)
        x = wf_sigmoid(wf_scale(x, 100));
    WF_MUST(wf_check(x));
    wf_tensor *kept = wf_keep(x);
    if (layout)
        WF_MUST(wf_tensor_set_layout(kept, *layout));
    return kept;
}

static wf_tensor *labels_of(wf_ctx *ctx, int64_t n)
{
    wf_tensor *labels = wf_tensor_new(ctx, WF_I32, WF_SHAPE(n));
    WF_MUST(wf_check(labels));
    WF_MUST(wf_tensor_fill(labels, 3));
    return labels;
}

static trainee vgg_new(wf_comm *comm, wf_tape *tape, const settings *s, const wf_mesh *mesh)
{
    wf_ctx *ctx = wf_comm_ctx(comm);
    const wf_shape shape = WF_SHAPE(s->vgg_batch, 3, 32, 32), count = WF_SHAPE(s->vgg_batch);
    const wf_layout images = mesh ? wf_layout_batch(mesh, shape, 0, s->vgg_batch) : wf_layout_none();
    trainee t = {.model = vgg16(ctx, (vgg_opts){.width = s->vgg_width})};
    WF_MUST(wf_check(t.model));
    if (mesh)
        WF_MUST(wf_parallelize(t.model, mesh, WF_PARALLEL_CHANNEL));
    t.x = noise(tape, shape, false, mesh ? &images : NULL);
    t.target = labels_of(ctx, s->vgg_batch);
    if (mesh)
        WF_MUST(wf_tensor_set_layout(t.target, wf_layout_batch(mesh, count, 0, s->vgg_batch)));
    return t;
}

static trainee unet_of(wf_comm *comm, wf_tape *tape, unet_opts opts, wf_shape shape, const wf_mesh *mesh)
{
    trainee t = {.model = unet(wf_comm_ctx(comm), opts), .mask = true};
    wf_layout part = wf_layout_none();
    WF_MUST(wf_check(t.model));
    if (mesh) {
        WF_MUST(wf_parallelize(t.model, mesh, WF_PARALLEL_SPATIAL));
        WF_MUST(wf_mesh_layout_activation(mesh, shape, &part));
    }
    const wf_shape own = mesh ? wf_box_shape(part.box) : shape;
    t.x = noise(tape, own, false, mesh ? &part : NULL);
    t.target = noise(tape, own, true, mesh ? &part : NULL);
    return t;
}

static trainee unet_new(wf_comm *comm, wf_tape *tape, const settings *s, const wf_mesh *mesh)
{
    const unet_opts opts = {.in = 1, .classes = 1, .width = s->unet_width, .levels = 4};
    return unet_of(comm, tape, opts, WF_SHAPE(s->unet_batch, 1, s->unet_size, s->unet_size), mesh);
}

static trainee unet3_new(wf_comm *comm, wf_tape *tape, const settings *s, const wf_mesh *mesh)
{
    const unet_opts opts = {.dims = 3, .in = 1, .classes = 1, .width = s->unet_width, .levels = 3, .norm = UNET_GROUP};
    return unet_of(comm, tape, opts, WF_SHAPE(s->unet_batch, 1, s->unet3_size, s->unet3_size, s->unet3_size), mesh);
}

static trainee gpt_new(wf_comm *comm, wf_tape *tape, const settings *s, const wf_mesh *mesh)
{
    wf_ctx *ctx = wf_comm_ctx(comm);
    const gpt_opts opts = gpt_with_defaults((gpt_opts){.size = GPT_MEDIUM, .mesh = mesh});
    const wf_shape shape = WF_SHAPE(s->gpt_batch, opts.tokens);
    trainee t = {.model = gpt(ctx, opts), .tokens = true};
    WF_MUST(wf_check(t.model));
    wf_tensor **const of[] = {&t.x, &t.target};
    for (int i = 0; i < 2; i++) {
        *of[i] = wf_tensor_new(ctx, WF_I32, shape);
        WF_MUST(wf_check(*of[i]));
        WF_MUST(wf_tensor_fill(*of[i], 3 + i));
        if (mesh)
            WF_MUST(wf_tensor_set_layout(*of[i], wf_layout_batch(mesh, shape, 0, s->gpt_batch)));
    }
    (void)tape;
    return t;
}

static void trainee_free(trainee *t)
{
    wf_optim_free(t->optim);
    wf_layer_free(t->model);
    wf_tensor_free(t->x);
    wf_tensor_free(t->target);
}

static void step(wf_comm *comm, wf_tape *tape, trainee *t, int64_t i)
{
    WF_MUST(wf_barrier(comm));
    const double start = bench_seconds();
    wf_var *scores = wf_apply(t->model, wf_input(tape, t->x));
    wf_var *loss = t->mask     ? wf_bce_logits(scores, t->target)
                   : t->tokens ? wf_token_cross_entropy(scores, t->target, (wf_label_opts){0})
                               : wf_softmax_cross_entropy(scores, t->target, (wf_label_opts){0});
    WF_MUST(wf_optim_step(t->optim, loss));
    WF_MUST(wf_tape_reset(tape));
    bench_finish(wf_comm_ctx(comm));
    double took = bench_seconds() - start;
    WF_MUST(wf_allreduce_f64(comm, &took, 1, WF_MAX));
    t->took[i] = took;
}

typedef trainee (*maker)(wf_comm *comm, wf_tape *tape, const settings *s, const wf_mesh *mesh);

static void compare(wf_comm *comm, const settings *s, const char *name, const char *how, maker make, wf_mesh_opts grid)
{
    wf_mesh *mesh = wf_mesh_open(comm, grid);
    WF_MUST(wf_check(mesh));
    wf_tape *tape = wf_tape_new(wf_comm_ctx(comm));
    trainee alone = make(comm, tape, s, NULL), shared = make(comm, tape, s, mesh);
    WF_MUST(wf_tape_reset(tape));
    alone.optim = example_scaled(wf_sgd(alone.model, (wf_sgd_opts){.lr = 1e-3}));
    shared.optim = wf_mesh_multi_node(mesh, example_scaled(wf_sgd(shared.model, (wf_sgd_opts){.lr = 1e-3})),
                                      (wf_multi_node_opts){0});
    for (int64_t i = -2; i < s->repeats; i++) {
        step(comm, tape, &alone, i < 0 ? 0 : i);
        step(comm, tape, &shared, i < 0 ? 0 : i);
    }
    const double one = bench_median(alone.took, (int)s->repeats), all = bench_median(shared.took, (int)s->repeats);
    if (wf_comm_rank(comm) == 0)
        printf("%-22s %-9s one rank %9.1f ms   %d ranks %9.1f ms   efficiency %.0f %%\n", name, how, 1e3 * one,
               wf_comm_size(comm), 1e3 * all, 100 * one / all / wf_comm_size(comm));
    fflush(stdout);
    trainee_free(&shared);
    trainee_free(&alone);
    wf_tape_free(tape);
    wf_mesh_close(mesh);
}

static bool wants(const settings *s, const char *name)
{
    return !s->only || strcmp(s->only, name) == 0;
}

int main(int argc, char **argv)
{
    const settings s = read_settings(argc, argv);
    if (!wants(&s, "vgg") && !wants(&s, "unet") && !wants(&s, "unet3") && !wants(&s, "gpt")) {
        fprintf(stderr, "bench_models: --only %s: should be vgg, unet, unet3 or gpt\n", s.only);
        return 2;
    }
    wf_comm *comm = wf_comm_open(&argc, &argv, "auto", (wf_ctx_opts){.threads = 1});
    char name[64];
    WF_MUST(wf_check(comm));
    example_compute(comm, s.compute);
    const int ranks = wf_comm_size(comm);
    snprintf(name, sizeof name, "VGG-16, batch %lld", (long long)s.vgg_batch);
    if (wants(&s, "vgg"))
        compare(comm, &s, name, "channels", vgg_new, (wf_mesh_opts){.channel = ranks});
    snprintf(name, sizeof name, "U-Net, %lld x %lld", (long long)s.unet_size, (long long)s.unet_size);
    if (wants(&s, "unet"))
        compare(comm, &s, name, "rows", unet_new, (wf_mesh_opts){.height = ranks});
    snprintf(name, sizeof name, "U-Net 3-D, %lld^3", (long long)s.unet3_size);
    if (wants(&s, "unet3"))
        compare(comm, &s, name, "depth", unet3_new, (wf_mesh_opts){.depth = ranks});
    snprintf(name, sizeof name, "GPT of 30 M, batch %lld", (long long)s.gpt_batch);
    if (wants(&s, "gpt"))
        compare(comm, &s, name, "heads", gpt_new, (wf_mesh_opts){.channel = ranks});
    WF_MUST(wf_comm_close(comm));
    return 0;
}
