/* A small model twice, with the same values: trained by all ranks, and by the serial program that they should equal. */
#ifndef WF_TESTS_OPTIM_REFERENCE_H
#define WF_TESTS_OPTIM_REFERENCE_H

#include "layers/layers.h"
#include "optim/multi_node.h"
#include "tests/optim/optim_model.h"
#include "tests/world.h"

enum { IN = 4, HIDDEN = 5, CLASSES = 3 };

static wf_comm *comm;
static wf_ctx *ctx;
static int rank, size;

/* For the ranks, and for the serial program. */
static wf_layer *model, *whole_model;
static wf_optim *optim, *whole_optim;
static wf_tape *tape;

static inline wf_layer *net_new(void)
{
    return wf_sequential(ctx,
                         WF_LAYERS(wf_linear(ctx, (wf_linear_opts){.in = IN, .out = HIDDEN}), wf_lambda(ctx, wf_tanh),
                                   wf_linear(ctx, (wf_linear_opts){.in = HIDDEN, .out = CLASSES})));
}

static inline void open_models(const char *name, wf_multi_node_opts opts)
{
    const wf_sgd_opts sgd = {.lr = 0.5, .momentum = 0.9};
    comm = test_comm_open(name, (wf_ctx_opts){.device = "ref", .dtype = WF_F64, .threads = 1});
    ctx = wf_comm_ctx(comm);
    rank = wf_comm_rank(comm);
    size = wf_comm_size(comm);
    model = net_new();
    whole_model = net_new();
    optim = wf_multi_node(comm, wf_sgd(model, sgd), opts);
    whole_optim = wf_sgd(whole_model, sgd);
    WF_EXPECT(optim && whole_optim, "%s", wf_error_message());
    WF_EXPECT_OK(wf_optim_clip_norm(optim, 0.3));
    WF_EXPECT_OK(wf_optim_clip_norm(whole_optim, 0.3));
    for (int i = 0; param_of(model, i); i++)
        WF_EXPECT_OK(wf_tensor_assign(wf_param_value(param_of(whole_model, i)), wf_param_value(param_of(model, i))));
    tape = wf_tape_new(ctx);
}

static inline void close_models(void)
{
    wf_tape_free(tape);
    wf_optim_free(optim);
    wf_optim_free(whole_optim);
    wf_layer_free(model);
    wf_layer_free(whole_model);
    WF_EXPECT_OK(wf_comm_close(comm));
    wf_error_clear();
}

#endif
