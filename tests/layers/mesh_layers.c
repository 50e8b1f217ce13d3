/* What goes with mesh convolutions: losses, reductions, dropout and layouts of tensors whose channels and pixels are
 * cut mean what they mean on one rank; what cannot be taken is an error on all ranks that says what to do. */
#include "core/context_author.h"
#include "tests/layers/mesh_fixture.h"
#include "tests/world.h"

/* As many axes as there are factors. */
static wf_mesh_opts grid_of(int size)
{
    static const wf_mesh_opts grids[] = {{.channel = 1},
                                         {.channel = 2},
                                         {.channel = 3},
                                         {.channel = 2, .height = 2},
                                         {0},
                                         {.channel = 3, .width = 2},
                                         {0},
                                         {.channel = 2, .height = 2, .width = 2}};
    return grids[size - 1];
}

static wf_var *sum_of(wf_var *x)
{
    return wf_sum(wf_mul(x, x));
}

static wf_var *mean_of(wf_var *x)
{
    return wf_mean(wf_tanh(x));
}

static wf_var *squares_of(wf_var *x)
{
    return wf_mse(x, wf_detach(wf_relu(x)));
}

static wf_var *logits_of(wf_var *x)
{
    return wf_bce_logits_constant(x, 1);
}

static wf_var *dropped(wf_var *x)
{
    return wf_mean(wf_mul(wf_dropout(x, 0.4), x));
}

/* All classes are to be here. */
static wf_var *entropy_of(wf_var *x)
{
    const wf_layout is = wf_tensor_layout(wf_value(x));
    wf_layout target = is;
    if (is.placement[WF_AXIS_CHANNEL] == WF_SHARDED) {
        target.placement[WF_AXIS_CHANNEL] = WF_REPLICATED;
        target.dim[WF_AXIS_CHANNEL] = 0;
        target.bounds[WF_AXIS_CHANNEL] = NULL;
        target.box.lo[1] = 0;
        target.box.hi[1] = target.global.dim[1];
        x = wf_redistribute(x, target);
    }
    return wf_scale(wf_sum(wf_log_softmax(x)), -1e-3);
}

static wf_var *whole_of(wf_var *x)
{
    return wf_mean(wf_sigmoid(wf_unshard(x)));
}

static double item_of(const wf_mesh *mesh, const wf_var *loss)
{
    const wf_layout layout = wf_tensor_layout(wf_value(loss));
    unsigned axes = 0;
    double sum = wf_item(loss);
    for (int a = 0; a < WF_AXES; a++)
        axes |= layout.placement[a] == WF_PARTIAL ? 1u << a : 0;
    WF_EXPECT_OK(wf_allreduce_f64(wf_mesh_comm(mesh, axes), &sum, 1, WF_SUM));
    return sum;
}

static void functions(void)
{
    static wf_var *(*const list[])(wf_var *) = {sum_of, mean_of, squares_of, logits_of, dropped, entropy_of, whole_of};
    open_run("ref", WF_F64, 1e-12);
    const wf_mesh *mesh = mesh_of(grid_of(wf_comm_size(run.comm)));
    test_rng rng = {.state = 4};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        char name[32];
        snprintf(name, sizeof name, "function %d", (int)i);
        const wf_layout layout = random_layout(mesh, WF_SHAPE(3, 5, 6, 7), HELD_RANDOM, &rng);
        wf_tensor *x = random_tensor(layout.global, &rng), *part = part_of(x, layout);
        WF_EXPECT_OK(wf_tape_set_iteration(run.tape, 7));
        wf_var *a = wf_leaf(run.tape, x), *loss = list[i](a);
        const double should = wf_item(loss);
        WF_EXPECT_OK(wf_backward(loss));
        wf_tensor *whole = wf_tensor_copy(wf_grad(a), WF_F64, WF_CHANNELS_LAST), *dx = part_of(whole, layout);
        WF_EXPECT_OK(wf_tape_reset(run.tape));
        WF_EXPECT_OK(wf_tape_set_iteration(run.tape, 7));
        wf_var *b = wf_leaf(run.tape, part), *mine = list[i](b);
        WF_EXPECT(mine, "%s: %s", name, wf_error_trail());
        const double is = item_of(mesh, mine);
        WF_EXPECT(fabs(is - should) <= 1e-12 * (1 + fabs(should)), "%s is %.15g, should be %.15g", name, is, should);
        WF_EXPECT_OK(wf_backward(mine));
        expect_equal(name, "dx", wf_grad(b), dx, whole, false);
        WF_EXPECT_OK(wf_tape_reset(run.tape));
        wf_tensor_free(whole);
        wf_tensor_free(dx);
        wf_tensor_free(x);
        wf_tensor_free(part);
    }
    close_run();
}

/* A mesh keeps a bounded number of exchanges; those that a node may need in backward are not among what it drops. */
static void held_for_backward(void)
{
    open_run("ref", WF_F64, 0);
    const wf_mesh *mesh = mesh_of((wf_mesh_opts){.height = wf_comm_size(run.comm)});
    wf_layer *conv = wf_spatial_conv2d(mesh, (wf_conv_opts){.in = 2, .out = 3, .kernel = 3, .pad = 1});
    wf_layout layout;
    test_rng rng = {.state = 5};
    WF_EXPECT_OK(wf_mesh_layout_activation(mesh, WF_SHAPE(1, 2, 16, 4), &layout));
    wf_tensor *whole = random_tensor(layout.global, &rng), *x = part_of(whole, layout), *dx[2];
    for (int i = 0; i < 2; i++) {
        wf_var *leaf = wf_leaf(run.tape, x), *y = wf_sum(wf_tanh(wf_apply(conv, leaf)));
        for (int64_t n = 0; i == 1 && n < WF_PLANS_MOST; n++) {
            const wf_regions all = {.global = WF_SHAPE(1, 1 + n), .dim = {-1, -1, -1, -1, -1, -1}};
            WF_EXPECT(wf_mesh_exchange(mesh, &all, &all, WF_F32, WF_ROW_MAJOR), "%s", wf_error_message());
        }
        WF_EXPECT(i == 0 || wf_comm_size(run.comm) == 1 || wf_mesh_exchanges(mesh) > WF_PLANS_MOST, "%lld are kept",
                  (long long)wf_mesh_exchanges(mesh));
        WF_EXPECT_OK(wf_backward(y));
        dx[i] = wf_tensor_copy(wf_grad(leaf), WF_F64, WF_CHANNELS_LAST);
        WF_EXPECT_OK(wf_tape_reset(run.tape));
    }
    expect_equal("after many exchanges", "dx", dx[1], dx[0], dx[0], true);
    const wf_regions other = {.global = WF_SHAPE(2), .dim = {-1, -1, -1, -1, -1, -1}};
    WF_EXPECT(wf_mesh_exchange(mesh, &other, &other, WF_F32, WF_ROW_MAJOR), "%s", wf_error_message());
    WF_EXPECT(wf_mesh_exchanges(mesh) == WF_PLANS_MOST, "%lld are kept once the tape is empty",
              (long long)wf_mesh_exchanges(mesh));
    wf_tensor_free(dx[0]);
    wf_tensor_free(dx[1]);
    wf_tensor_free(x);
    wf_tensor_free(whole);
    wf_layer_free(conv);
    close_run();
}

/* Misuse. */

typedef enum misuse {
    LOCAL,
    CHANNELS_BY_ROWS, /* dimension 1 over height */
    ROWS_BY_CHANNELS, /* dimension 2 over channel */
    NO_CUTS,
    REPLICATED,
    PARTIAL,
    OTHER_MESH,
    WRONG_CHANNELS,
    TO_SPATIAL, /* into a layer that takes whole channels */
    TO_CHANNEL, /* whole pixels */
    TO_LINEAR,
    TO_NORM,
    MISUSES
} misuse;

static wf_layout wrong_layout(misuse how, const wf_mesh *mesh, wf_shape global)
{
    static const wf_layout_opts dims[] = {{.dim = {WF_DIM(0), 0, 0, WF_DIM(1)}},
                                          {.dim = {WF_DIM(0), WF_DIM(2), 0, WF_DIM(3)}},
                                          {.dim = {WF_DIM(0), WF_DIM(1), 0, WF_DIM(2)}},
                                          {.dim = {WF_DIM(0), WF_DIM(1)}}};
    const int which = how == CHANNELS_BY_ROWS ? 0 : how == ROWS_BY_CHANNELS ? 1 : how == REPLICATED ? 3 : 2;
    wf_layout layout;
    WF_EXPECT_OK(wf_mesh_layout(mesh, global, dims[which], &layout));
    if (how == LOCAL)
        return wf_layout_none();
    if (how == NO_CUTS)
        layout.bounds[WF_AXIS_CHANNEL] = NULL;
    if (how == PARTIAL) {
        layout.placement[WF_AXIS_CHANNEL] = WF_PARTIAL;
        layout.box.lo[1] = 0;
        layout.box.hi[1] = global.dim[1];
    }
    return layout;
}

static wf_layer *layer_for(misuse how, const wf_mesh *mesh, const wf_mesh *other)
{
    const wf_conv_opts o = {.in = 4, .out = 4, .kernel = 3, .pad = 1};
    if (how == TO_SPATIAL)
        return wf_spatial_conv2d(mesh, o);
    if (how == TO_CHANNEL)
        return wf_channel_conv2d(mesh, o);
    if (how == TO_LINEAR)
        return wf_channel_linear(mesh, (wf_linear_opts){.in = 4 * 36, .out = 4});
    if (how == TO_NORM)
        return wf_channel_batchnorm(mesh, (wf_batchnorm_opts){.channels = 4});
    return wf_mesh_conv2d(how == OTHER_MESH ? other : mesh, o);
}

static void misuse_one(misuse how)
{
    static const char *const says[MISUSES] = {"wf_tensor_set_layout",
                                              "dimension 1 over channel",
                                              "dimension 1 over channel",
                                              "shard bounds",
                                              "sharded over height too",
                                              "wf_redistribute",
                                              "other mesh",
                                              "[N,4]",
                                              "or use wf_mesh_conv2d",
                                              "or use wf_mesh_conv2d",
                                              "wf_redistribute",
                                              "wf_sync_batchnorm"};
    open_run("cpu", WF_F32, 1e-5);
    const wf_mesh *mesh = mesh_of((wf_mesh_opts){.channel = 2, .height = 2});
    wf_mesh *other = wf_mesh_open(run.comm, (wf_mesh_opts){.channel = 2, .height = 2});
    wf_layer *layer = layer_for(how, mesh, other);
    const wf_shape global = WF_SHAPE(4, how == WRONG_CHANNELS ? 5 : 4, 6, 6);
    const wf_layout layout = wrong_layout(how, mesh, global);
    wf_tensor *x = wf_tensor_new(run.ctx, WF_F32, layout.known ? wf_box_shape(layout.box) : global);
    WF_EXPECT_OK(wf_tensor_fill(x, 1));
    WF_EXPECT_OK(wf_tensor_set_layout(x, layout));
    /* A rank that still makes its layer, which splits communicators, would learn of the failure there. */
    WF_EXPECT_OK(wf_barrier(run.comm));
    const wf_var *y = wf_apply(layer, wf_input(run.tape, x));
    WF_EXPECT(layer && !y && strstr(wf_error_message(), says[how]), "misuse %d: \"%s\" says nothing of \"%s\"",
              (int)how, wf_error_message(), says[how]);
    wf_error_clear();
    wf_layer_free(layer);
    wf_tensor_free(x);
    wf_mesh_close(other);
    close_run();
}

static void misuses(void)
{
    open_run("cpu", WF_F32, 1e-5);
    const int size = wf_comm_size(run.comm);
    close_run();
    for (int how = 0; how < MISUSES && size % 4 == 0; how++)
        misuse_one((misuse)how);
}

static void expect_no_layer(wf_layer *layer, wf_status code, const char *says)
{
    WF_EXPECT(!layer && wf_error_code() == code && strstr(wf_error_message(), says), "\"%s\" says nothing of \"%s\"",
              wf_error_message(), says);
    wf_layer_free(layer);
    wf_error_clear();
}

static void constructors(void)
{
    open_run("cpu", WF_F32, 1e-5);
    const int size = wf_comm_size(run.comm);
    const wf_mesh *mesh = mesh_of((wf_mesh_opts){.channel = size});
    expect_no_layer(wf_mesh_conv2d(mesh, (wf_conv_opts){.in = 3, .out = 4}), WF_ERR_ARGUMENT, "mesh_conv2d");
    expect_no_layer(
        wf_mesh_conv3d(mesh, (wf_conv_opts){.in = 12, .out = 12, .kernel = 1, .groups = 2, .form = WF_FORM_BOTH}),
        WF_ERR_UNSUPPORTED, "WF_FORM_AUTO");
    if (size > 1)
        expect_no_layer(wf_mesh_conv_transpose2d(mesh, (wf_conv_opts){.in = size - 1, .out = size - 1, .kernel = 1}),
                        WF_ERR_ARGUMENT, "fewer than the");
    WF_EXPECT(!wf_mesh_conv1d(NULL, (wf_conv_opts){.in = 3, .out = 4, .kernel = 3}), "no mesh");
    close_run();
}

static int on_ranks(int argc, char **argv)
{
    return test_main(argc, argv,
                     (test_case[]){{"functions", functions},
                                   {"held_for_backward", held_for_backward},
                                   {"misuses", misuses},
                                   {"constructors", constructors},
                                   {0}});
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
