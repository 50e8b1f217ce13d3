/* A transformer block whose heads and hidden features are cut over ranks, unevenly: y, dx and the gradients of all
 * parameters are those of the serial block, and it sends two sums forward and two backward. */
#include "layers/attention.h"
#include "tests/layers/attention_tokens.h"
#include "tests/layers/language.h"
#include "tests/layers/vocabulary.h"

#include <math.h>

enum { FEATURES = 12 };

typedef struct block_case {
    const char *name;
    int64_t heads, hidden, relative, rotary;
    bool causal;
    double dropout;
    wf_attention_cut cut; /* of tokens */
    bool paired;
} block_case;

static const block_case cases[] = {
    {"plain", 6, 24, 0, 0, false, 0, WF_ATTENTION_CHEAPER, false},
    {"causal, dropout, relative positions", 4, 9, 5, 0, true, 0.3, WF_ATTENTION_CHEAPER, false},
    {"rotary", 3, 8, 0, 7, true, 0, WF_ATTENTION_CHEAPER, false},
};
static const block_case token_blocks[] = {
    {"tokens, the cheaper", 4, 8, 5, 0, true, 0.3, WF_ATTENTION_CHEAPER, false},
    {"tokens by heads", 3, 8, 0, 5, true, 0, WF_ATTENTION_BY_HEADS, false},
    {"tokens as a ring", 2, 8, 3, 0, false, 0.3, WF_ATTENTION_RING, false},
    {"tokens as a paired ring", 1, 8, 3, 5, true, 0, WF_ATTENTION_RING, true},
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
                                                                                .mesh = mesh,
                                                                                .cut = t->cut,
                                                                                .paired = t->paired}),
                          "block");
}
static const block_case shared_blocks[] = {
    {"heads and tokens", 3, 9, 5, 0, true, 0.3, WF_ATTENTION_CHEAPER, false},
    {"heads and tokens, paired", 2, 8, 0, 5, true, 0, WF_ATTENTION_RING, true},
};

/* y and dx of this rank's samples. Sums of the step count in `sums`. */
static wf_layer *train_block(const block_case *t, const wf_mesh *mesh, wf_tape *tape, const wf_tensor *x, double *y,
                             double *dx, uint64_t *sums)
{
    wf_layer *layer = make_block(t, mesh);
    WF_EXPECT(layer, "%s: %s", t->name, wf_error_message());
    set_biases(layer);
    WF_EXPECT_OK(wf_tape_set_iteration(tape, 3));
    const wf_comm *group = mesh ? wf_mesh_comm(mesh, WF_AXIS_BIT(WF_AXIS_CHANNEL)) : comm;
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
    WF_EXPECT_OK(wf_mesh_layout(
        mesh, shape, (wf_layout_opts){.dim = {[WF_AXIS_DATA] = WF_DIM(0), [WF_AXIS_HEIGHT] = WF_DIM(1)}}, &layout));
    wf_tensor *part = wf_tensor_redistribute(x, layout);
    wf_layer *parallel = train_block(t, mesh, tape, part, y[1], dx[1], &sums);
    WF_EXPECT(sums == (cut ? 4 : 0), "%s: %llu collectives, should be 2 forward and 2 backward", t->name,
              (unsigned long long)sums);
    WF_EXPECT(part_error(&layout, y[0], y[1]) < 1e-12, "%s: y is off by %g", t->name, part_error(&layout, y[0], y[1]));
    WF_EXPECT(part_error(&layout, dx[0], dx[1]) < 1e-12, "%s: dx is off by %g", t->name,
              part_error(&layout, dx[0], dx[1]));
    /* Ranks compare texts, and measured times are kept by them: forward leaves them as they were. */
    const char *const text = wf_layer_child(parallel, "attention")->options;
    WF_EXPECT(strcmp(text, wf_layer_child(serial, "attention")->options) == 0, "%s: the text is \"%s\"", t->name, text);
    int64_t count = 0, others = 0;
    wf_param *const *a, *const *b;
    WF_EXPECT_OK(wf_layer_params(serial, &count, &a));
    WF_EXPECT_OK(wf_layer_params(parallel, &others, &b));
    WF_EXPECT(count == others && count == 16 + (t->relative > 0), "%s: %lld and %lld parameters", t->name,
              (long long)count, (long long)others);
    for (int64_t i = 0; i < count && i < others; i++)
        compare_gradient(t->name, mesh, a[i], b[i]);
    wf_layer_free(serial);
    wf_layer_free(parallel);
    wf_tensor_free(part);
    wf_tensor_free(x);
    wf_tape_free(tape);
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
    for (int high = 2; high <= size; high++) {
        if (size % high)
            continue;
        wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.data = size / high, .height = high});
        for (size_t i = 0; i < sizeof token_blocks / sizeof *token_blocks; i++)
            compare_block(mesh, &token_blocks[i]);
        wf_mesh_close(mesh);
    }
    for (int high = 2; 2 * high <= size; high++) {
        if (size % (2 * high))
            continue;
        wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.data = size / high / 2, .channel = 2, .height = high});
        for (size_t i = 0; i < sizeof shared_blocks / sizeof *shared_blocks; i++)
            compare_block(mesh, &shared_blocks[i]);
        wf_mesh_close(mesh);
    }
    WF_EXPECT_OK(wf_comm_close(comm));
}

/* --- queries of one text, keys of another ------------------------------------------------------------------------- */

static void attend_other(const wf_mesh *mesh, wf_tape *tape, wf_tensor *const *x, token_outcome *to)
{
    const wf_init init = {WF_INIT_UNIFORM, -0.5, 0.5};
    wf_layer *layer = wf_layer_named(
        wf_multihead(
            ctx,
            (wf_multihead_opts){
                .features = FEATURES, .heads = 4, .dropout = 0.3, .relative = 5, .w_init = init, .mesh = mesh}),
        "other");
    WF_EXPECT_OK(wf_tape_set_iteration(tape, 3));
    wf_var *leaf[2] = {wf_leaf(tape, x[0]), wf_leaf(tape, x[1])}, *y = wf_apply_n(layer, leaf, 2);
    WF_EXPECT(y, "%s", wf_error_message());
    values_get(wf_value(y), to->y);
    WF_EXPECT_OK(wf_backward(wf_sum(wf_mul(y, y))));
    for (int i = 0; i < 2; i++)
        values_get(wf_grad(leaf[i]), to->dx[i]);
    WF_EXPECT_OK(wf_tape_reset(tape));
    wf_layer_free(layer);
}

/* wf_multihead of two inputs, of other numbers of tokens, by heads and by samples. */
static void compare_cross(const wf_mesh *mesh)
{
    static token_outcome serial, parallel;
    double host[MOST];
    test_rng rng = {11};
    wf_layout layout[2];
    wf_tensor *x[2], *part[2];
    wf_tape *tape = wf_tape_new(ctx);
    for (int i = 0; i < 2; i++) {
        x[i] = wf_tensor_new(ctx, WF_F64, WF_SHAPE(3, i == 0 ? 4 : 7, FEATURES));
        for (int j = 0; j < MOST; j++)
            host[j] = test_uniform(&rng, -1, 1);
        values_set(x[i], host);
        WF_EXPECT_OK(wf_mesh_layout(mesh, x[i]->shape, (wf_layout_opts){.dim[WF_AXIS_DATA] = WF_DIM(0)}, &layout[i]));
        part[i] = wf_tensor_redistribute(x[i], layout[i]);
    }
    attend_other(NULL, tape, x, &serial);
    attend_other(mesh, tape, part, &parallel);
    WF_EXPECT(part_error(layout, serial.y, parallel.y) < 1e-12, "y of two inputs is off");
    for (int i = 0; i < 2; i++) {
        WF_EXPECT(part_error(&layout[i], serial.dx[i], parallel.dx[i]) < 1e-12,
                  "the gradient of input %d of two is off", i);
        wf_tensor_free(x[i]);
        wf_tensor_free(part[i]);
    }
    wf_tape_free(tape);
}

static void cross(void)
{
    begin_ranks();
    for (int heads = 1; heads <= size && heads <= 4; heads++) {
        if (size % heads)
            continue;
        wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.data = size / heads, .channel = heads});
        compare_cross(mesh);
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

/* Rank 0 has a whole head, others a part of one: an error of all. */
static void cut_heads_inside(const wf_mesh *mesh)
{
    int64_t bounds[9] = {0, 6, 7};
    wf_layout layout;
    wf_tape *tape = wf_tape_new(ctx);
    wf_tensor *whole = wf_tensor_new(ctx, WF_F64, WF_SHAPE(1, 3, 12));
    WF_EXPECT_OK(wf_tensor_fill(whole, 1));
    for (int r = 3; r <= size; r++)
        bounds[r] = 12;
    WF_EXPECT_OK(wf_mesh_layout(
        mesh, whole->shape, (wf_layout_opts){.dim = {[WF_AXIS_CHANNEL] = WF_DIM(2)}, .bounds[WF_AXIS_CHANNEL] = bounds},
        &layout));
    wf_tensor *part = wf_tensor_redistribute(whole, layout);
    wf_var *x = wf_input(tape, part);
    refuse("cannot be cut inside a head", wf_attention(x, x, x, (wf_attention_opts){.heads = 2}));
    wf_tensor_free(part);
    wf_tensor_free(whole);
    wf_tape_free(tape);
}

/* An index beyond the table: ranks without heads, which read none of it, get the error too. */
static void index_outside(void)
{
    begin_ranks();
    int32_t number[64] = {[3] = 77};
    wf_layout layout;
    wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.data = 1, .height = size});
    wf_tape *tape = wf_tape_new(ctx);
    WF_EXPECT_OK(
        wf_mesh_layout(mesh, WF_SHAPE(2, 8, FEATURES), (wf_layout_opts){.dim[WF_AXIS_HEIGHT] = WF_DIM(1)}, &layout));
    wf_tensor *x = wf_tensor_new(ctx, WF_F64, wf_box_shape(layout.box)),
              *index = wf_tensor_new(ctx, WF_I32, WF_SHAPE(8, 8));
    wf_tensor *table = wf_tensor_new(ctx, WF_F64, WF_SHAPE(5, 2));
    WF_EXPECT_OK(wf_tensor_fill(x, 1));
    WF_EXPECT_OK(wf_tensor_fill(table, 1));
    WF_EXPECT_OK(wf_tensor_import(index, number, sizeof number));
    WF_EXPECT_OK(wf_tensor_set_layout(x, layout));
    WF_EXPECT_OK(wf_tensor_set_layout(table, wf_mesh_layout_same(mesh, table->shape)));
    wf_var *leaf = wf_leaf(tape, x);
    const wf_attention_opts o = {.heads = 2, .bias = wf_leaf(tape, table), .bias_index = index};
    WF_EXPECT_OK(wf_barrier(comm)); /* the error ends the communicator */
    refuse("77", wf_attention_by_heads(leaf, leaf, leaf, o));
    wf_tape_free(tape);
    wf_tensor_free(x);
    wf_tensor_free(index);
    wf_tensor_free(table);
    wf_mesh_close(mesh);
    WF_EXPECT_OK(wf_comm_close(comm));
}

/* Features that are cut at bounds which ranks do not know: an error of all, before anything is sent, whether queries
 * and keys have the same heads or others. */
static void unknown_features(void)
{
    begin_ranks();
    const int64_t cut[2][3] = {{0, 3, 12}, {0, 9, 12}};
    wf_layout layout[2];
    wf_tensor *part[2];
    wf_var *x[2];
    if (size == 4) {
        wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.data = 1, .channel = 2, .height = 2});
        wf_tape *tape = wf_tape_new(ctx);
        wf_tensor *whole = wf_tensor_new(ctx, WF_F64, WF_SHAPE(2, 8, FEATURES));
        WF_EXPECT_OK(wf_tensor_fill(whole, 1));
        for (int i = 0; i < 2; i++) {
            const wf_layout_opts of = {.dim = {[WF_AXIS_CHANNEL] = WF_DIM(2), [WF_AXIS_HEIGHT] = WF_DIM(1)},
                                       .bounds[WF_AXIS_CHANNEL] = cut[i]};
            WF_EXPECT_OK(wf_mesh_layout(mesh, whole->shape, of, &layout[i]));
            part[i] = wf_tensor_redistribute(whole, layout[i]);
            layout[i].bounds[WF_AXIS_CHANNEL] = NULL;
            WF_EXPECT_OK(wf_tensor_set_layout(part[i], layout[i]));
            x[i] = wf_leaf(tape, part[i]);
        }
        for (int i = 0; i < 2; i++)
            refuse("cut at bounds which all ranks know",
                   wf_attention_ring(x[0], x[i], x[i], (wf_attention_opts){.heads = 4}));
        for (int i = 0; i < 2; i++)
            wf_tensor_free(part[i]);
        wf_tensor_free(whole);
        wf_tape_free(tape);
        wf_mesh_close(mesh);
    }
    WF_EXPECT_OK(wf_comm_close(comm));
}

/* Tokens without features have no heads. */
static void no_features(const wf_mesh *mesh)
{
    static const wf_attention_cut cut[] = {WF_ATTENTION_BY_HEADS, WF_ATTENTION_RING};
    wf_layout layout;
    wf_tape *tape = wf_tape_new(ctx);
    WF_EXPECT_OK(
        wf_mesh_layout(mesh, WF_SHAPE(2, 8, 0), (wf_layout_opts){.dim = {[WF_AXIS_CHANNEL] = WF_DIM(1)}}, &layout));
    wf_tensor *x = wf_tensor_new(ctx, WF_F64, wf_box_shape(layout.box));
    WF_EXPECT_OK(wf_tensor_set_layout(x, layout));
    wf_var *leaf = wf_leaf(tape, x);
    for (int i = 0; i < 2; i++)
        refuse("a multiple", wf_attention_tokens(leaf, leaf, leaf, (wf_attention_opts){.heads = 2, .cut = cut[i]}));
    wf_tensor_free(x);
    wf_tape_free(tape);
}

static void errors(void)
{
    begin_ranks();
    refuse("should be a multiple", wf_multihead(ctx, (wf_multihead_opts){.features = 10, .heads = 3}));
    refuse("an odd number", wf_multihead(ctx, (wf_multihead_opts){.features = 9, .heads = 3, .relative = 4}));
    refuse("cut is 3", wf_multihead(ctx, (wf_multihead_opts){.features = 9, .heads = 3, .cut = 3}));
    refuse("should be even", wf_rotary(ctx, (wf_rotary_opts){.length = 4, .features = 3}));
    refuse("at least 1", wf_token_linear(ctx, (wf_token_linear_opts){.in = 4}));
    refuse("should be in [0, 1)",
           wf_transformer_block(ctx, (wf_transformer_block_opts){.features = 4, .heads = 2, .dropout = 1}));
    wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.data = 1, .channel = size});
    refuse("WF_FORM_FILTER or WF_FORM_CHANNEL",
           wf_token_linear(ctx, (wf_token_linear_opts){.in = 16, .out = 16, .mesh = mesh}));
    if (size > 1)
        refuse("are fewer than the", wf_multihead(ctx, (wf_multihead_opts){.features = 6, .heads = 1, .mesh = mesh}));
    if (size > 2)
        cut_heads_inside(mesh);
    no_features(mesh);
    WF_EXPECT_OK(wf_barrier(comm)); /* the next error ends the communicator */
    if (size > 1)
        cut_tokens(mesh);
    wf_mesh_close(mesh);
    WF_EXPECT_OK(wf_comm_close(comm));
}

static int run(int argc, char **argv)
{
    return test_main(argc, argv,
                     (test_case[]){{"blocks", blocks},
                                   {"tokens", tokens},
                                   {"tokens_of_heads", tokens_of_heads},
                                   {"stacked", stacked},
                                   {"choices", choices},
                                   {"ring_floats", ring_floats},
                                   {"wrong_lengths", wrong_lengths},
                                   {"cross", cross},
                                   {"regions", regions},
                                   {"vocabulary", vocabulary},
                                   {"hits", hits},
                                   {"languages", languages},
                                   {"wrong_labels", wrong_labels},
                                   {"unknown_features", unknown_features},
                                   {"index_outside", index_outside},
                                   {"errors", errors},
                                   {0}});
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, run);
}
