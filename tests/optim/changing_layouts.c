/* One layer meets inputs of several layouts: sharded here, whole there. Whole inputs are the same on the ranks of an
 * axis, and so are the gradients that they give; the steps are those of the serial model all the same. */
#include "comm/comm_author.h"
#include "layers/loss.h"
#include "layers/parallelize.h"
#include "layers/redistribute.h"
#include "optim/multi_node.h"
#include "tests/layers/channel_fixture.h"
#include "tests/world.h"

#include <string.h>

enum { N = 4, C = 3, SIDE = 6, VALUES = N * C * SIDE * SIDE };

typedef wf_var *(*forward)(wf_layer *model, wf_var *x, int step);

typedef struct pair {
    fixture b;
    wf_layer *mine, *serial;
    wf_optim *optim, *reference;
    wf_tensor *part, *whole;
} pair;

static int ranks(void)
{
    wf_comm *comm = test_comm_open("flat", (wf_ctx_opts){0});
    const int size = wf_comm_size(comm);
    WF_EXPECT_OK(wf_comm_close(comm));
    return size;
}

static wf_layer *norm_new(wf_ctx *ctx)
{
    return wf_batchnorm(ctx, (wf_batchnorm_opts){.channels = C,
                                                 .gamma_init = {WF_INIT_UNIFORM, 0.5, 2},
                                                 .beta_init = {WF_INIT_UNIFORM, -1, 1}});
}

static wf_layer *linear_new(wf_ctx *ctx)
{
    return wf_linear(ctx, (wf_linear_opts){.in = C * SIDE * SIDE, .out = C * SIDE * SIDE});
}

static pair pair_open(wf_mesh_opts opts, wf_shape shape, wf_layer *(*layer_new)(wf_ctx *), wf_multi_node_opts how)
{
    pair p = {.b = fixture_open("ref", WF_F64, opts)};
    wf_layout layout;
    double *values = numbers(VALUES, 9);
    p.b.tolerance = 1e-10;
    p.mine = layer_new(p.b.ctx);
    p.serial = layer_new(p.b.ctx);
    same_name(p.mine, p.serial);
    WF_EXPECT_OK(wf_parallelize(p.mine, p.b.mesh, WF_PARALLEL_SPATIAL | WF_PARALLEL_SYNC_BN));
    p.optim = wf_mesh_multi_node(p.b.mesh, wf_sgd(p.mine, (wf_sgd_opts){.lr = 0.5}), how);
    p.reference = wf_sgd(p.serial, (wf_sgd_opts){.lr = 0.5});
    WF_EXPECT(p.optim, "no optimizer: %s", wf_error_message());
    WF_EXPECT_OK(wf_mesh_layout_activation(p.b.mesh, shape, &layout));
    p.part = tensor_of(&p.b, values, layout);
    p.whole = wf_tensor_new(p.b.ctx, WF_F64, shape);
    values_set(p.whole, values);
    free(values);
    return p;
}

static void pair_close(pair *p)
{
    wf_tensor_free(p->part);
    wf_tensor_free(p->whole);
    wf_optim_free(p->optim);
    wf_optim_free(p->reference);
    wf_layer_free(p->mine);
    wf_layer_free(p->serial);
    fixture_close(&p->b);
}

static wf_var *loss_of(pair *p, wf_layer *model, const wf_tensor *x, forward apply, int step)
{
    wf_var *y = apply(model, wf_input(p->b.tape, x), step);
    return wf_mean(wf_mul(y, y));
}

static void train(pair *p, const char *what, forward apply, int steps)
{
    for (int i = 0; i < steps; i++) {
        wf_var *loss = loss_of(p, p->mine, p->part, apply, i);
        WF_EXPECT_OK(wf_optim_step(p->optim, loss));
        wf_var *should = loss_of(p, p->serial, p->whole, apply, i);
        WF_EXPECT_OK(wf_optim_step(p->reference, should));
        WF_EXPECT(fabs(wf_item(loss) - wf_item(should)) < 1e-9, "%s, step %d: the loss is %.12g, should be %.12g", what,
                  i, wf_item(loss), wf_item(should));
        WF_EXPECT_OK(wf_tape_reset(p->b.tape));
    }
    expect_params(&p->b, what, p->serial, p->mine, false);
}

/* --- a normalisation, sharded by pixels --------------------------------------------------------------------------- */

/* Samples stay where they are. */
static wf_var *whole_pixels(wf_var *x)
{
    wf_layout layout = wf_tensor_layout(wf_value(x));
    if (!layout.known)
        return x;
    layout.placement[WF_AXIS_HEIGHT] = WF_REPLICATED;
    layout.box.lo[2] = 0;
    layout.box.hi[2] = SIDE;
    return wf_redistribute(x, layout);
}

static wf_var *sharded_then_whole(wf_layer *model, wf_var *x, int step)
{
    return wf_apply(model, step < 2 ? x : whole_pixels(x));
}

static wf_var *whole_then_sharded(wf_layer *model, wf_var *x, int step)
{
    return wf_apply(model, step == 1 ? x : whole_pixels(x));
}

static wf_var *both_at_once(wf_layer *model, wf_var *x, int step)
{
    wf_var *y = wf_apply(model, x);
    return wf_apply(model, whole_pixels(y));
}

static wf_var *whole_first(wf_layer *model, wf_var *x, int step)
{
    const wf_layout layout = wf_tensor_layout(wf_value(x));
    wf_var *y = wf_apply(model, wf_unshard(x));
    return wf_apply(model, layout.known ? wf_redistribute(y, layout) : y);
}

static void norms(void)
{
    static const struct {
        const char *name;
        forward apply;
    } cases[] = {{"sharded, then whole", sharded_then_whole},
                 {"whole, then sharded", whole_then_sharded},
                 {"sharded and whole", both_at_once},
                 {"whole and sharded", whole_first}};
    const int size = ranks();
    for (int i = 0; i < 4; i++)
        for (int data = 1; data <= size; data++) {
            if (size % data != 0 || size / data > 3)
                continue;
            pair p = pair_open((wf_mesh_opts){.data = data, .height = size / data}, WF_SHAPE(N, C, SIDE, SIDE),
                               norm_new, (wf_multi_node_opts){0});
            train(&p, cases[i].name, cases[i].apply, 4);
            pair_close(&p);
        }
}

/* --- a linear layer, whose input is whole on all ranks for a while ------------------------------------------------ */

static wf_var *gathered_samples(wf_layer *model, wf_var *x, int step)
{
    const wf_layout layout = wf_tensor_layout(wf_value(x));
    wf_var *y = wf_apply(model, wf_unshard(x));
    return layout.known ? wf_redistribute(y, layout) : y;
}

static void linears(void)
{
    pair p = pair_open((wf_mesh_opts){0}, WF_SHAPE(N, C * SIDE * SIDE), linear_new, (wf_multi_node_opts){0});
    train(&p, "gathered samples", gathered_samples, 3);
    pair_close(&p);
}

/* --- what cannot be right is an error ----------------------------------------------------------------------------- */

/* The gradients of the first part of the step are laid out, and accumulated, as if no other parameter used them. */
static void learned_between_accumulated(void)
{
    const int size = ranks();
    if (size != 2)
        return;
    pair p = pair_open((wf_mesh_opts){.height = size}, WF_SHAPE(N, C, SIDE, SIDE), norm_new, (wf_multi_node_opts){0});
    WF_EXPECT_OK(wf_optim_accumulate(p.optim, loss_of(&p, p.mine, p.part, whole_then_sharded, 0)));
    WF_EXPECT_OK(wf_tape_reset(p.b.tape));
    const wf_status status = wf_optim_step(p.optim, loss_of(&p, p.mine, p.part, whole_then_sharded, 1));
    WF_EXPECT(status == WF_ERR_STATE && strstr(wf_error_message(), "summed over height since"), "%s: %s",
              wf_status_name(status), wf_error_message());
    wf_error_clear();
    (void)!wf_tape_reset(p.b.tape);
    wf_error_clear();
    pair_close(&p);
    wf_error_clear();
}

static int on_ranks(int argc, char **argv)
{
    return test_main(
        argc, argv,
        (test_case[]){
            {"norms", norms}, {"linears", linears}, {"learned_between_accumulated", learned_between_accumulated}, {0}});
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
