/* Layers whose parameter every rank has whole (layerscale, positions, embedding, recurrent ones), rows by indices, on
 * inputs that are cut along any dimensions, unevenly and into empty parts: y, dx and the sum of the ranks' gradients
 * are those of the serial layer.
 */
#include "layers/layers.h"
#include "tests/optim/optim_model.h"
#include "tests/ranks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 600 };

typedef struct form {
    const char *name;
    wf_layer *(*make)(void);
    wf_shape x;
    int dim[2]; /* of x, that the mesh's first and second axis cut; -1: none */
} form;

static wf_layer *scale_channels(void)
{
    return wf_layerscale(ctx, (wf_layerscale_opts){.channels = 5, .gamma_init = {WF_INIT_UNIFORM, -1, 1}});
}

static wf_layer *scale_features(void)
{
    return wf_layerscale(ctx, (wf_layerscale_opts){.features = 6, .gamma_init = {WF_INIT_UNIFORM, -1, 1}});
}

static wf_layer *learned(void)
{
    return wf_positions(ctx, (wf_positions_opts){.length = 9, .features = 6, .w_init = {WF_INIT_UNIFORM, -1, 1}});
}

static wf_layer *learned_whole(void)
{
    return wf_positions(ctx, (wf_positions_opts){.length = 7, .features = 6, .w_init = {WF_INIT_UNIFORM, -1, 1}});
}

static wf_layer *sines(void)
{
    return wf_positions(ctx, (wf_positions_opts){.length = 9, .features = 6, .kind = WF_POSITIONS_SINE});
}

/* Indices that follow from x, so that a part has those of its elements. */
static wf_var *indices_of(wf_var *x, double rows)
{
    wf_var *places = wf_scale(wf_abs(x), 0.999 * rows);
    return wf_cast(places, WF_I32);
}

static wf_var *embed(wf_layer *self, void *user, wf_var *x)
{
    (void)user;
    wf_var *y = wf_apply(wf_layer_child(self, "table"), indices_of(x, 9));
    return wf_add(x, wf_sum_over(y, WF_DIMS(-1), false));
}

static wf_layer *embedding(void)
{
    wf_layer *module = wf_module(ctx, embed, NULL);
    wf_module_add(module, "table", wf_embedding(ctx, (wf_embedding_opts){.count = 9, .features = 4}));
    return module;
}

/* Rows of a table that all ranks have whole. */
static wf_var *rows_of(wf_layer *self, void *user, wf_var *x)
{
    (void)self;
    (void)user;
    wf_var *table = wf_value(x) && wf_tensor_layout(wf_value(x)).known ? wf_unshard(x) : x;
    wf_var *y = wf_take(wf_tanh(table), indices_of(x, 5));
    return wf_sum_over(y, WF_DIMS(-1), false);
}

static wf_layer *rows(void)
{
    return wf_module(ctx, rows_of, NULL);
}

static wf_layer *depth(void)
{
    return wf_stochastic_depth(ctx, 0.4);
}

static wf_layer *lstm(void)
{
    return wf_lstm(ctx, (wf_recurrent_opts){.in = 4, .hidden = 2, .levels = 2, .both = true, .dropout = 0.3});
}

static wf_layer *gru(void)
{
    return wf_gru(ctx, (wf_recurrent_opts){.in = 4, .hidden = 2, .levels = 2, .both = true, .dropout = 0.3});
}

static const form forms[] = {
    {"layerscale", scale_channels, {.rank = 4, .dim = {3, 5, 4, 3}}, {0, 1}},
    {"layerscale, pixels", scale_channels, {.rank = 4, .dim = {3, 5, 4, 3}}, {2, 3}},
    {"layerscale of few", scale_channels, {.rank = 2, .dim = {1, 5}}, {1, 0}},
    {"layerscale of tokens", scale_features, {.rank = 3, .dim = {2, 5, 6}}, {2, 1}},
    {"positions", learned, {.rank = 3, .dim = {2, 7, 6}}, {1, 2}},
    {"all positions", learned_whole, {.rank = 3, .dim = {2, 7, 6}}, {0, -1}},
    {"all positions, cut", learned_whole, {.rank = 3, .dim = {2, 7, 6}}, {2, 0}},
    {"sines", sines, {.rank = 3, .dim = {5, 3, 6}}, {0, 1}},
    {"embedding", embedding, {.rank = 2, .dim = {5, 7}}, {1, 0}},
    {"embedding of few", embedding, {.rank = 1, .dim = {7}}, {0, -1}},
    {"take", rows, {.rank = 2, .dim = {5, 7}}, {1, 0}},
    {"stochastic depth", depth, {.rank = 4, .dim = {5, 2, 3, 2}}, {0, 2}},
    {"stochastic depth, pixels", depth, {.rank = 4, .dim = {5, 2, 3, 2}}, {3, 0}},
    {"lstm", lstm, {.rank = 3, .dim = {5, 3, 4}}, {0, -1}},
    {"gru", gru, {.rank = 3, .dim = {5, 3, 4}}, {0, -1}},
};

typedef struct outcome {
    double y[MOST], dx[MOST], dw[MOST];
} outcome;

/* `empty`: the last rank of an axis gets nothing. */
static wf_layout cut(const wf_mesh *mesh, const form *f, bool empty, int64_t bounds[2][9])
{
    static const wf_axis axes[2] = {WF_AXIS_HEIGHT, WF_AXIS_WIDTH};
    wf_layout_opts opts = {0};
    wf_layout layout;
    for (int a = 0; a < 2; a++) {
        if (f->dim[a] < 0)
            continue;
        const int64_t length = f->x.dim[f->dim[a]], parts = wf_mesh_size(mesh, axes[a]);
        for (int64_t r = 0; r <= parts; r++)
            bounds[a][r] = r == parts ? length : (length * r + parts - 1) / parts;
        if (empty && parts > 1)
            bounds[a][parts - 1] = length;
        opts.dim[axes[a]] = WF_DIM(f->dim[a]);
        opts.bounds[axes[a]] = bounds[a];
    }
    WF_EXPECT_OK(wf_mesh_layout(mesh, f->x, opts, &layout));
    return layout;
}

static void apply_form(const form *f, wf_tape *tape, const wf_tensor *x, outcome *o)
{
    wf_layer *layer = wf_layer_named(f->make(), "small");
    WF_EXPECT_OK(wf_tape_set_iteration(tape, 3));
    wf_var *leaf = wf_leaf(tape, x), *y = wf_apply(layer, leaf), *loss = wf_sum(wf_mul(y, wf_mul(y, y)));
    WF_EXPECT(loss, "%s: %s", f->name, wf_error_message());
    values_get(wf_value(y), o->y);
    WF_EXPECT_OK(wf_backward(loss));
    values_get(wf_grad(leaf), o->dx);
    int64_t n = 0;
    wf_param *const *param;
    WF_EXPECT_OK(wf_layer_params(layer, &n, &param));
    if (n > 0)
        values_get(wf_param_grad(param[0]), o->dw);
    WF_EXPECT_OK(wf_tape_reset(tape));
    wf_layer_free(layer);
}

static double part_error(const wf_tensor *like, const form *f, const double *whole, const double *part)
{
    double host[MOST];
    wf_tensor *all = wf_tensor_new_ordered(ctx, WF_F64, f->x, wf_order_default(f->x.rank));
    values_set(all, whole);
    wf_tensor *view = wf_tensor_view(all, wf_tensor_layout(like).box);
    values_get(view, host);
    const double error = test_distance(wf_tensor_count(like), host, part);
    wf_tensor_free(view);
    wf_tensor_free(all);
    return error;
}

static void compare_form(const wf_mesh *mesh, const form *f, bool empty, uint64_t seed)
{
    static outcome serial, parallel;
    double host[MOST];
    int64_t bounds[2][9];
    memset(&serial, 0, sizeof serial);
    memset(&parallel, 0, sizeof parallel);
    test_rng rng = {seed};
    wf_tape *tape = wf_tape_new(ctx);
    wf_tensor *x = wf_tensor_new_ordered(ctx, WF_F64, f->x, wf_order_default(f->x.rank));
    for (int i = 0; i < MOST; i++)
        host[i] = test_uniform(&rng, -1, 1);
    values_set(x, host);
    apply_form(f, tape, x, &serial);
    wf_layout layout = cut(mesh, f, empty, bounds);
    wf_tensor *part = wf_tensor_redistribute(x, layout);
    WF_EXPECT(part, "%s: %s", f->name, wf_error_message());
    apply_form(f, tape, part, &parallel);
    /* Axes that cut nothing have the same on all their ranks. */
    const int copies = f->dim[1] < 0 ? wf_mesh_size(mesh, WF_AXIS_WIDTH) : 1;
    WF_EXPECT_OK(wf_allreduce_f64(comm, parallel.dw, MOST, WF_SUM));
    for (int i = 0; i < MOST; i++)
        parallel.dw[i] /= copies;
    WF_EXPECT(part_error(part, f, serial.y, parallel.y) < 1e-14, "%s: y is off", f->name);
    WF_EXPECT(part_error(part, f, serial.dx, parallel.dx) < 1e-14, "%s: dx is off", f->name);
    WF_EXPECT(test_distance(MOST, serial.dw, parallel.dw) < 1e-13, "%s: the gradient is off by %g", f->name,
              test_distance(MOST, serial.dw, parallel.dw));
    wf_tensor_free(part);
    wf_tensor_free(x);
    wf_tape_free(tape);
}

static void small_layers(void)
{
    comm =
        test_comm_open("flat", (wf_ctx_opts){.device = test_device("ref"), .dtype = WF_F64, .threads = 1, .seed = 3});
    ctx = wf_comm_ctx(comm);
    size = wf_comm_size(comm);
    for (int wide = 1; wide <= size; wide++) {
        if (size % wide)
            continue;
        wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.data = 1, .height = size / wide, .width = wide});
        WF_EXPECT(mesh, "%s", wf_error_message());
        for (size_t i = 0; i < 2 * sizeof forms / sizeof *forms; i++)
            compare_form(mesh, &forms[i / 2], i % 2, 10 + i);
        wf_mesh_close(mesh);
    }
    WF_EXPECT_OK(wf_comm_close(comm));
}

static int run(int argc, char **argv)
{
    return test_main(argc, argv, (test_case[]){{"small_layers", small_layers}, {0}});
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, run);
}
