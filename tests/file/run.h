/* A run to be stopped and continued: model, optimizer, tape and batches, made anew as a program would. */
#ifndef WF_TESTS_FILE_RUN_H
#define WF_TESTS_FILE_RUN_H

#include "datasets/datasets.h"
#include "layers/layers.h"
#include "optim/checkpoint.h"
#include "optim/multi_node.h"
#include "optim/schedule.h"
#include "tests/file/folder.h"

/* How a run trains. */
typedef struct way {
    const char *name;
    wf_multi_node_opts opts;
    bool scales;        /* f16 and a loss scale that falls and grows within the run */
    bool plain;         /* momentum SGD; else AdamW */
    int64_t accumulate; /* backwards of a step */
    int64_t before;     /* of these, how many a stop comes after; rank 0 makes one fewer */
    bool wide;          /* scaled, but computed in f32, which has the same bits as without a scale */
    bool async;
    bool channel; /* the model is sharded by channels, over a mesh */
} way;

typedef struct run {
    const way *how;
    wf_comm *comm;
    wf_mesh *mesh;
    wf_layer *model;
    wf_optim *optim;
    wf_tape *tape;
    wf_iter *iter;
    wf_checkpoint *saves;
    int64_t step, done; /* done: backwards of the step that is not ended */
} run;

static inline wf_var *run_forward(wf_layer *self, void *user, wf_var *x)
{
    wf_var *h = wf_relu(wf_apply(wf_layer_child(self, "bn"), wf_apply(wf_layer_child(self, "conv"), x)));
    h = wf_dropout(wf_flatten(h), 0.3);
    return wf_apply(wf_layer_child(self, "fc"), h);
}

static inline wf_layer *run_model(const run *r)
{
    const wf_conv_opts conv = {.in = 1, .out = 8, .kernel = 3, .stride = 2, .replicate = true};
    wf_layer *model = wf_layer_named(wf_module(ctx, run_forward, NULL), "net");
    wf_module_add(model, "conv", r->mesh ? wf_channel_conv2d(r->mesh, conv) : wf_conv2d(ctx, conv));
    wf_module_add(model, "bn", wf_batchnorm(ctx, (wf_batchnorm_opts){.channels = 8}));
    wf_module_add(model, "fc", wf_linear(ctx, (wf_linear_opts){.in = 8 * 5 * 5, .out = 4}));
    return model;
}

static inline wf_optim *run_optim(const run *r)
{
    const way *w = r->how;
    wf_optim *optim = w->plain ? wf_sgd(r->model, (wf_sgd_opts){.lr = 0.05, .momentum = 0.9})
                               : wf_adamw(r->model, (wf_adam_opts){.lr = 2e-3});
    optim = wf_lr_schedule(optim, (wf_schedule_opts){.kind = WF_SCHEDULE_COSINE, .warmup = 4, .total = 40, .end = 0.1});
    if (optim && w->scales)
        WF_EXPECT_OK(wf_optim_scale_loss(optim, (wf_loss_scale_opts){.init = 0x1p24, .interval = 3}));
    return r->mesh ? wf_mesh_multi_node(r->mesh, optim, w->opts) : wf_multi_node(r->comm, optim, w->opts);
}

/* 53 samples: no number of ranks divides them, and an epoch is a few batches. */
static inline run run_open(const way *how, wf_comm *over, const char *name)
{
    run r = {.how = how, .comm = over};
    WF_EXPECT_OK(wf_ctx_set_compute(ctx, how->scales && !how->wide ? WF_F16 : WF_F32));
    if (how->channel)
        r.mesh = wf_mesh_open(over, (wf_mesh_opts){.channel = wf_comm_size(over)});
    r.model = run_model(&r);
    r.optim = run_optim(&r);
    r.tape = wf_tape_new(ctx);
    wf_dataset *all =
        wf_synthetic(ctx, (wf_synthetic_opts){.count = 53, .shape = {3, {1, 12, 12}}, .classes = 4, .seed = 5});
    if (!how->channel)
        all = wf_scatter_dataset(over, all, (wf_scatter_opts){.shuffle = true});
    r.iter = wf_prefetch(wf_batches(all, (wf_batch_opts){.size = 5, .shuffle = true}), (wf_prefetch_opts){.depth = 3});
    r.saves = wf_checkpoint_open(over, in_folder(name), (wf_checkpoint_opts){.async = how->async, .mesh = r.mesh});
    WF_EXPECT(r.optim && r.iter && r.saves, "cannot open: %s", wf_error_trail());
    WF_EXPECT_OK(wf_checkpoint_add_model(r.saves, "model", r.model));
    WF_EXPECT_OK(wf_checkpoint_add_optim(r.saves, "optim", r.optim));
    WF_EXPECT_OK(wf_checkpoint_add(r.saves, "tape", wf_tape_visit, r.tape));
    WF_EXPECT_OK(wf_checkpoint_add(r.saves, "batches", wf_iter_visit, r.iter));
    return r;
}

static inline void run_close(run *r)
{
    WF_EXPECT_OK(wf_checkpoint_close(r->saves));
    wf_iter_free(r->iter);
    wf_tape_free(r->tape);
    wf_optim_free(r->optim);
    wf_layer_free(r->model);
    wf_mesh_close(r->mesh);
}

static inline wf_var *run_loss(run *r)
{
    wf_batch b;
    WF_EXPECT_OK(wf_iter_next(r->iter, &b));
    wf_var *scores = wf_apply(r->model, wf_input(r->tape, b.x));
    return wf_softmax_cross_entropy(scores, b.labels, (wf_label_opts){0});
}

/* Backwards until so many of the step are done. */
static inline void run_accumulate(run *r, int64_t until)
{
    for (; r->done < until; r->done++) {
        WF_EXPECT_OK(wf_optim_accumulate(r->optim, run_loss(r)));
        WF_EXPECT_OK(wf_tape_reset(r->tape));
    }
}

/* One step; its loss. */
static inline double run_step(run *r)
{
    run_accumulate(r, r->how->accumulate - 1);
    r->done = 0;
    wf_var *loss = run_loss(r);
    WF_EXPECT_OK(wf_optim_step(r->optim, loss));
    const double value = wf_item(loss);
    WF_EXPECT_OK(wf_tape_reset(r->tape));
    r->step++;
    return value;
}

#endif
