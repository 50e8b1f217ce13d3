/* A transformer block whose heads and hidden features are cut over ranks, unevenly: y, dx and the gradients of all
 * parameters are those of the serial block, and it sends two sums forward and two backward. */
#include "comm/mesh_author.h"
#include "layers/layers.h"
#include "tests/optim/optim_model.h"
#include "tests/ranks.h"

#include <string.h>

enum { MOST = 600, FEATURES = 12 };

typedef struct block_case {
    const char *name;
    int64_t heads, hidden, relative, rotary;
    bool causal;
    double dropout;
} block_case;

static const block_case cases[] = {
    {"plain", 6, 24, 0, 0, false, 0},
    {"causal, dropout, relative positions", 4, 9, 5, 0, true, 0.3},
    {"rotary", 3, 8, 0, 7, true, 0},
};

static wf_layer *make_block(const block_case *t, const wf_mesh *mesh)
{
    const wf_init init = {WF_INIT_UNIFORM, -0.5, 0.5};
    return wf_layer_named(wf_transformer_block(ctx, (wf_transformer_block_opts){.features = FEATURES,
                                                                                .heads = t->heads,
                                                                                .hidden = t->hidden,
                                                                                .causal = t->causal,
                                                                                .dropout = t->dropout,
                                                                                .drop_path = t->dropout,
                                                                                .relative = t->relative,
                                                                                .rotary = t->rotary,
                                                                                .w_init = init,
                                                                                .mesh = mesh}),
                          "block");
}

/* Biases are 0 at first, by which one that is added too often would not show. */
static void set_biases(wf_layer *layer)
{
    int64_t count = 0;
    wf_param *const *param;
    WF_EXPECT_OK(wf_layer_params(layer, &count, &param));
    for (int64_t i = 0; i < count; i++)
        if (strcmp(param[i]->name, "b") == 0)
            WF_EXPECT_OK(wf_tensor_fill(wf_param_value(param[i]), 0.25));
}

/* y and dx of this rank's samples. Sums of the step count in `sums`. */
static wf_layer *train_block(const block_case *t, const wf_mesh *mesh, wf_tape *tape, const wf_tensor *x, double *y,
                             double *dx, uint64_t *sums)
{
    wf_layer *layer = make_block(t, mesh);
    WF_EXPECT(layer, "%s: %s", t->name, wf_error_message());
    set_biases(layer);
    WF_EXPECT_OK(wf_tape_set_iteration(tape, 3));
    const wf_comm *group = mesh ? wf_mesh_comm(mesh, WF_AXIS_CHANNEL) : comm;
    const uint64_t before = wf_comm_traffic(group).collectives;
    wf_var *leaf = wf_leaf(tape, x), *out = wf_apply(layer, leaf), *loss = wf_sum(wf_mul(out, wf_mul(out, out)));
    WF_EXPECT(loss, "%s: %s", t->name, wf_error_message());
    values_get(wf_value(out), y);
    WF_EXPECT_OK(wf_backward(loss));
    *sums = wf_comm_traffic(group).collectives - before;
    values_get(wf_grad(leaf), dx);
    WF_EXPECT_OK(wf_tape_reset(tape));
    return layer;
}

/* The gradient of one parameter, summed over the ranks as an optimizer does, beside its part of the serial one. */
static void compare_gradient(const block_case *t, const wf_mesh *mesh, wf_param *serial, wf_param *parallel)
{
    double want[MOST] = {0}, got[MOST] = {0}, part[MOST];
    values_get(wf_param_grad(serial), want);
    values_get(wf_param_grad(parallel), got);
    const int64_t n = wf_tensor_count(wf_param_grad(parallel));
    for (int a = 0; a < WF_AXES; a++)
        if ((parallel->axes >> a & 1) && wf_mesh_size(mesh, (wf_axis)a) > 1)
            WF_EXPECT_OK(wf_allreduce_f64(wf_mesh_comm(mesh, (wf_axis)a), got, (int)n, WF_SUM));
    wf_tensor *whole = wf_tensor_new(ctx, WF_F64, serial->shape);
    values_set(whole, want);
    wf_tensor *view = parallel->shard_axes ? wf_tensor_view(whole, parallel->box) : wf_tensor_alias(whole);
    values_get(view, part);
    WF_EXPECT(test_distance(n, got, part) < 1e-12, "%s: the gradient of %s is off by %g", t->name,
              wf_param_path(parallel), test_distance(n, got, part));
    wf_tensor_free(view);
    wf_tensor_free(whole);
}

static void compare_block(const wf_mesh *mesh, const block_case *t)
{
    static double host[MOST], y[2][MOST], dx[2][MOST];
    const wf_shape shape = WF_SHAPE(3, 5, FEATURES);
    const bool cut = wf_mesh_size(mesh, WF_AXIS_CHANNEL) > 1;
    test_rng rng = {7};
    uint64_t sums;
    wf_tape *tape = wf_tape_new(ctx);
    wf_tensor *x = wf_tensor_new(ctx, WF_F64, shape);
    for (int i = 0; i < MOST; i++)
        host[i] = test_uniform(&rng, -1, 1);
    values_set(x, host);
    wf_layer *serial = train_block(t, NULL, tape, x, y[0], dx[0], &sums);
    wf_layout layout;
    WF_EXPECT_OK(wf_mesh_layout(mesh, shape, (wf_layout_opts){.dim[WF_AXIS_DATA] = WF_DIM(0)}, &layout));
    wf_tensor *part = wf_tensor_redistribute(x, layout);
    wf_layer *parallel = train_block(t, mesh, tape, part, y[1], dx[1], &sums);
    WF_EXPECT(sums == (cut ? 4 : 0), "%s: %llu collectives, should be 2 forward and 2 backward", t->name,
              (unsigned long long)sums);
    const int64_t first = layout.box.lo[0] * 5 * FEATURES, n = wf_tensor_count(part);
    WF_EXPECT(test_distance(n, y[1], y[0] + first) < 1e-12, "%s: y is off by %g", t->name,
              test_distance(n, y[1], y[0] + first));
    WF_EXPECT(test_distance(n, dx[1], dx[0] + first) < 1e-12, "%s: dx is off by %g", t->name,
              test_distance(n, dx[1], dx[0] + first));
    int64_t count = 0, others = 0;
    wf_param *const *a, *const *b;
    WF_EXPECT_OK(wf_layer_params(serial, &count, &a));
    WF_EXPECT_OK(wf_layer_params(parallel, &others, &b));
    WF_EXPECT(count == others && count == 16 + (t->relative > 0), "%s: %lld and %lld parameters", t->name,
              (long long)count, (long long)others);
    for (int64_t i = 0; i < count && i < others; i++)
        compare_gradient(t, mesh, a[i], b[i]);
    wf_layer_free(serial);
    wf_layer_free(parallel);
    wf_tensor_free(part);
    wf_tensor_free(x);
    wf_tape_free(tape);
}

static void begin_ranks(void)
{
    comm =
        test_comm_open("flat", (wf_ctx_opts){.device = test_device("ref"), .dtype = WF_F64, .threads = 1, .seed = 3});
    ctx = wf_comm_ctx(comm);
    size = wf_comm_size(comm);
}

/* All cuts by samples and heads for which each rank has a head. */
static void blocks(void)
{
    begin_ranks();
    for (int heads = 1; heads <= size; heads++) {
        if (size % heads)
            continue;
        wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.data = size / heads, .channel = heads});
        WF_EXPECT(mesh, "%s", wf_error_message());
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
            if (cases[i].heads >= heads)
                compare_block(mesh, &cases[i]);
        wf_mesh_close(mesh);
    }
    WF_EXPECT_OK(wf_comm_close(comm));
}

/* --- tokens ------------------------------------------------------------------------------------------------------- */

typedef struct token_outcome {
    double y[MOST], dx[3][MOST], table[MOST];
} token_outcome;

static void attend_tokens(const wf_layout *layout, int64_t heads, wf_tape *tape, wf_tensor *const *x, token_outcome *to)
{
    wf_var *leaf[3];
    wf_tensor *own[3], *table = wf_tensor_new(ctx, WF_F64, WF_SHAPE(5, heads));
    double host[MOST];
    for (int i = 0; i < MOST; i++)
        host[i] = 0.1 * i;
    values_set(table, host);
    if (layout)
        WF_EXPECT_OK(wf_tensor_set_layout(table, wf_mesh_layout_same(layout->mesh, table->shape)));
    WF_EXPECT_OK(wf_tape_set_iteration(tape, 2));
    for (int i = 0; i < 3; i++) {
        own[i] = layout ? wf_tensor_redistribute(x[i], *layout) : wf_tensor_alias(x[i]);
        leaf[i] = wf_leaf(tape, own[i]);
    }
    wf_var *bias = wf_leaf(tape, table);
    wf_var *y = wf_attention_by_heads(
        leaf[0], leaf[1], leaf[2], (wf_attention_opts){.heads = heads, .causal = true, .dropout = 0.3, .bias = bias});
    wf_var *loss = wf_sum(wf_mul(y, wf_mul(y, y)));
    WF_EXPECT(loss, "%lld heads: %s", (long long)heads, wf_error_message());
    values_get(wf_value(y), to->y);
    WF_EXPECT_OK(wf_backward(loss));
    for (int i = 0; i < 3; i++)
        values_get(wf_grad(leaf[i]), to->dx[i]);
    values_get(wf_grad(bias), to->table);
    WF_EXPECT_OK(wf_tape_reset(tape));
    for (int i = 0; i < 3; i++)
        wf_tensor_free(own[i]);
    wf_tensor_free(table);
}

static double part_error(const wf_layout *layout, const double *whole, const double *part)
{
    double host[MOST];
    wf_tensor *all = wf_tensor_new(ctx, WF_F64, layout->global);
    values_set(all, whole);
    wf_tensor *view = wf_tensor_view(all, layout->box);
    values_get(view, host);
    const double error = test_distance(wf_tensor_count(view), host, part);
    wf_tensor_free(view);
    wf_tensor_free(all);
    return error;
}

static void compare_tokens(const wf_mesh *mesh, int64_t heads, bool empty)
{
    static token_outcome serial, parallel;
    const wf_shape shape = WF_SHAPE(2, 7, 12);
    const int parts = wf_mesh_size(mesh, WF_AXIS_HEIGHT);
    int64_t bounds[9];
    double host[MOST];
    test_rng rng = {5};
    wf_layout layout;
    wf_tape *tape = wf_tape_new(ctx);
    wf_tensor *x[3];
    for (int i = 0; i < 3; i++) {
        for (int j = 0; j < MOST; j++)
            host[j] = test_uniform(&rng, -1, 1);
        x[i] = wf_tensor_new(ctx, WF_F64, shape);
        values_set(x[i], host);
    }
    for (int r = 0; r <= parts; r++)
        bounds[r] = empty && r < parts ? 0 : (7 * r + parts - 1) / parts;
    WF_EXPECT_OK(wf_mesh_layout(mesh, shape,
                                (wf_layout_opts){.dim = {[WF_AXIS_DATA] = WF_DIM(0), [WF_AXIS_HEIGHT] = WF_DIM(1)},
                                                 .bounds[WF_AXIS_HEIGHT] = bounds},
                                &layout));
    attend_tokens(NULL, heads, tape, x, &serial);
    attend_tokens(&layout, heads, tape, x, &parallel);
    WF_EXPECT(part_error(&layout, serial.y, parallel.y) < 1e-13, "%lld heads: y is off", (long long)heads);
    for (int i = 0; i < 3; i++) {
        WF_EXPECT(part_error(&layout, serial.dx[i], parallel.dx[i]) < 1e-13,
                  "%lld heads: the gradient of input %d is off", (long long)heads, i);
        wf_tensor_free(x[i]);
    }
    WF_EXPECT(test_distance(5 * heads, parallel.table, serial.table) < 1e-12,
              "%lld heads: the table's gradient is off by %g", (long long)heads,
              test_distance(5 * heads, parallel.table, serial.table));
    wf_tape_free(tape);
}

static void tokens(void)
{
    begin_ranks();
    for (int high = 1; high <= size; high++) {
        if (size % high)
            continue;
        wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.data = size / high, .height = high});
        WF_EXPECT(mesh, "%s", wf_error_message());
        for (int64_t heads = 1; heads <= 6; heads += heads)
            compare_tokens(mesh, heads, heads == 2);
        compare_tokens(mesh, 3, false);
        wf_mesh_close(mesh);
    }
    WF_EXPECT_OK(wf_comm_close(comm));
}

/* --- regions, and values of another width --------------------------------------------------------------------------
 */

enum { SAMPLES = 5, TOKENS = 4, HEADS = 2 };

/* Whole heads of `each` features, of which a rank may have none; samples as they come. */
static wf_layout cut_heads(const wf_mesh *mesh, int64_t each)
{
    const int parts = wf_mesh_size(mesh, WF_AXIS_CHANNEL);
    int64_t bounds[9];
    wf_layout layout;
    for (int r = 0; r <= parts; r++)
        bounds[r] = HEADS * r / parts * each;
    WF_EXPECT_OK(wf_mesh_layout(mesh, WF_SHAPE(SAMPLES, TOKENS, HEADS * each),
                                (wf_layout_opts){.dim = {[WF_AXIS_DATA] = WF_DIM(0), [WF_AXIS_CHANNEL] = WF_DIM(2)},
                                                 .bounds[WF_AXIS_CHANNEL] = bounds},
                                &layout));
    return layout;
}

static void attend_regions(const wf_mesh *mesh, wf_tape *tape, wf_tensor *const *x, wf_tensor *table,
                           const wf_tensor *regions, token_outcome *to, wf_layout *of)
{
    wf_var *leaf[3];
    wf_tensor *own[3];
    for (int i = 0; i < 3; i++) {
        own[i] =
            mesh ? wf_tensor_redistribute(x[i], cut_heads(mesh, x[i]->shape.dim[2] / HEADS)) : wf_tensor_alias(x[i]);
        leaf[i] = wf_leaf(tape, own[i]);
    }
    wf_var *bias = wf_leaf(tape, table);
    wf_var *y = wf_attention(
        leaf[0], leaf[1], leaf[2],
        (wf_attention_opts){.heads = HEADS, .query_regions = regions, .key_regions = regions, .bias = bias});
    WF_EXPECT(y, "regions: %s", wf_error_message());
    *of = wf_value(y)->layout;
    values_get(wf_value(y), to->y);
    WF_EXPECT_OK(wf_backward(wf_sum(wf_mul(y, y))));
    for (int i = 0; i < 3; i++)
        values_get(wf_grad(leaf[i]), to->dx[i]);
    values_get(wf_grad(bias), to->table);
    WF_EXPECT_OK(wf_tape_reset(tape));
    for (int i = 0; i < 3; i++)
        wf_tensor_free(own[i]);
}

/* The row of regions of a sample does not depend on the rank that has it, nor y's layout on whether it has a head. */
static void compare_regions(const wf_mesh *mesh)
{
    static token_outcome serial, parallel;
    const int32_t host_regions[2][TOKENS] = {{0, 0, 1, 1}, {0, 1, 1, 1}};
    const int64_t widths[3] = {HEADS * 3, HEADS * 3, HEADS * 5};
    double host[MOST];
    test_rng rng = {7};
    wf_layout layout;
    wf_tape *tape = wf_tape_new(ctx);
    wf_tensor *x[3], *regions = wf_tensor_new(ctx, WF_I32, WF_SHAPE(2, TOKENS));
    wf_tensor *table = wf_tensor_new(ctx, WF_F64, WF_SHAPE(3, HEADS));
    for (int j = 0; j < MOST; j++)
        host[j] = test_uniform(&rng, -1, 1);
    for (int i = 0; i < 3; i++) {
        x[i] = wf_tensor_new(ctx, WF_F64, WF_SHAPE(SAMPLES, TOKENS, widths[i]));
        values_set(x[i], host + i);
    }
    values_set(table, host);
    WF_EXPECT_OK(wf_tensor_import(regions, host_regions, sizeof host_regions));
    attend_regions(NULL, tape, x, table, regions, &serial, &layout);
    WF_EXPECT_OK(wf_tensor_set_layout(table, wf_mesh_layout_same(mesh, table->shape)));
    attend_regions(mesh, tape, x, table, regions, &parallel, &layout);
    WF_EXPECT(wf_shape_equal(layout.global, WF_SHAPE(SAMPLES, TOKENS, widths[2])), "y has another layout");
    WF_EXPECT(part_error(&layout, serial.y, parallel.y) < 1e-13, "regions: y is off");
    for (int i = 0; i < 3; i++) {
        layout = cut_heads(mesh, widths[i] / HEADS);
        WF_EXPECT(part_error(&layout, serial.dx[i], parallel.dx[i]) < 1e-13, "regions: the gradient of input %d is off",
                  i);
        wf_tensor_free(x[i]);
    }
    WF_EXPECT(test_distance(3 * HEADS, parallel.table, serial.table) < 1e-12, "regions: the table's gradient is off");
    wf_tensor_free(regions);
    wf_tensor_free(table);
    wf_tape_free(tape);
}

static void regions(void)
{
    begin_ranks();
    for (int heads = 1; heads <= size; heads++) {
        if (size % heads)
            continue;
        wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.data = size / heads, .channel = heads});
        WF_EXPECT(mesh, "%s", wf_error_message());
        compare_regions(mesh);
        wf_mesh_close(mesh);
    }
    WF_EXPECT_OK(wf_comm_close(comm));
}

static void refuse(const char *words, const void *made)
{
    WF_EXPECT(!made && strstr(wf_error_message(), words), "is \"%s\", should have \"%s\"", wf_error_message(), words);
    wf_error_clear();
}

/* A channel axis that cuts weights cuts no tokens. */
static void cut_tokens(const wf_mesh *mesh)
{
    wf_layout layout;
    wf_tape *tape = wf_tape_new(ctx);
    wf_layer *layer = wf_multihead(ctx, (wf_multihead_opts){.features = 8 * size, .heads = size, .mesh = mesh});
    wf_tensor *whole = wf_tensor_new(ctx, WF_F64, WF_SHAPE(1, 2 * size, 8 * size));
    WF_EXPECT_OK(wf_tensor_fill(whole, 1));
    WF_EXPECT_OK(wf_mesh_layout(mesh, whole->shape, (wf_layout_opts){.dim = {[WF_AXIS_CHANNEL] = WF_DIM(1)}}, &layout));
    wf_tensor *x = wf_tensor_redistribute(whole, layout);
    refuse("has samples or tokens cut there", wf_apply(layer, wf_input(tape, x)));
    wf_tensor_free(whole);
    wf_tensor_free(x);
    wf_layer_free(layer);
    wf_tape_free(tape);
}

static void errors(void)
{
    begin_ranks();
    refuse("should be a multiple", wf_multihead(ctx, (wf_multihead_opts){.features = 10, .heads = 3}));
    refuse("an odd number", wf_multihead(ctx, (wf_multihead_opts){.features = 9, .heads = 3, .relative = 4}));
    refuse("should be even", wf_rotary(ctx, (wf_rotary_opts){.length = 4, .features = 3}));
    refuse("at least 1", wf_token_linear(ctx, (wf_token_linear_opts){.in = 4}));
    refuse("should be in [0, 1)",
           wf_transformer_block(ctx, (wf_transformer_block_opts){.features = 4, .heads = 2, .dropout = 1}));
    wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.data = 1, .channel = size});
    refuse("WF_FORM_FILTER or WF_FORM_CHANNEL",
           wf_token_linear(ctx, (wf_token_linear_opts){.in = 16, .out = 16, .mesh = mesh}));
    if (size > 1)
        refuse("are fewer than the", wf_multihead(ctx, (wf_multihead_opts){.features = 6, .heads = 1, .mesh = mesh}));
    if (size > 1)
        cut_tokens(mesh);
    wf_mesh_close(mesh);
    WF_EXPECT_OK(wf_comm_close(comm));
}

static int run(int argc, char **argv)
{
    return test_main(
        argc, argv,
        (test_case[]){{"blocks", blocks}, {"tokens", tokens}, {"regions", regions}, {"errors", errors}, {0}});
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, run);
}
