/* A model of a matrix and a vector whose gradient is its input, another one on every rank, for tests of optimizers that
 * have their formula written out. */
#ifndef WF_TESTS_OPTIM_PAIR_H
#define WF_TESTS_OPTIM_PAIR_H

#include "tests/optim/optim_nets.h"

enum { ROWS = 37, COLUMNS = 5, MATRIX = ROWS * COLUMNS, VECTOR = 9, ALL = MATRIX + VECTOR };

static inline wf_var *pair_forward(wf_layer *layer, wf_var *x)
{
    wf_var *w = wf_reshape(wf_param_var(x->tape, layer->params[0]), WF_SHAPE(MATRIX));
    wf_var *b = wf_param_var(x->tape, layer->params[1]);
    wf_var *both = wf_concat(2, (wf_var *[]){w, b}, 0);
    return wf_sum(wf_mul(both, x));
}

static inline double start_of(int i)
{
    return i % 11 / 5.0 - 1;
}

static inline double gradient_of(int step, int i, int of_rank)
{
    return ((i * 7 + step * 3 + of_rank * 5) % 13 - 6) / 8.0;
}

static inline wf_layer *pair_new(void)
{
    static const wf_layer_kind kind = {.name = "pair", .forward = pair_forward};
    wf_layer *layer = wf_layer_new(ctx, &kind, 0);
    double start[ALL];
    for (int i = 0; i < ALL; i++)
        start[i] = start_of(i);
    wf_layer_add_param(layer, "W", (wf_param_opts){.dtype = wf_ctx_dtype(ctx), .shape = WF_SHAPE(ROWS, COLUMNS)});
    wf_layer_add_param(layer, "b", (wf_param_opts){.dtype = wf_ctx_dtype(ctx), .shape = WF_SHAPE(VECTOR)});
    values_set(wf_param_value(param_of(layer, 0)), start);
    values_set(wf_param_value(param_of(layer, 1)), start + MATRIX);
    return layer;
}

static inline wf_status pair_step(wf_layer *model, wf_optim *optim, int step)
{
    wf_tape *tape = wf_tape_new(ctx);
    wf_tensor *x = wf_tensor_new(ctx, wf_ctx_dtype(ctx), WF_SHAPE(ALL));
    double g[ALL];
    for (int i = 0; i < ALL; i++)
        g[i] = gradient_of(step, i, rank);
    values_set(x, g);
    wf_var *loss = wf_apply(model, wf_input(tape, x));
    loss->loss_mean = true; /* of one sample */
    loss->loss_count = 1;
    const wf_status status = wf_optim_step(optim, loss);
    wf_tensor_free(x);
    wf_tape_free(tape);
    return status;
}

static inline void visit_pair(wf_layer *model, wf_optim *optim, wf_archive *archive)
{
    WF_EXPECT_OK(wf_layer_archive(model, archive));
    WF_EXPECT_OK(wf_archive_enter(archive, "optim"));
    WF_EXPECT_OK(wf_optim_archive(optim, archive));
    WF_EXPECT_OK(wf_archive_leave(archive));
}

#endif
