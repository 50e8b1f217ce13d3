/* Attention over tokens that ranks share: y, the gradients of q, k, v and of a bias are those of the serial one. For
 * equiv_attention. */
#ifndef WF_TESTS_ATTENTION_TOKENS_H
#define WF_TESTS_ATTENTION_TOKENS_H

#include "layers/attention.h"
#include "tests/layers/attention_parts.h"

#include <math.h>

typedef struct token_outcome {
    double y[MOST], dx[3][MOST], table[MOST];
} token_outcome;

typedef wf_var *token_form(wf_var *q, wf_var *k, wf_var *v, wf_attention_opts opts);

/* N is 2, E 12. */
typedef struct token_case {
    const char *name;
    int64_t heads, t, s;
    bool empty;                                /* the last rank has all tokens */
    bool causal, bias, lengths, mask, regions; /* regions: with an index of the bias */
    double dropout;
} token_case;

static wf_tensor *token_numbers(int64_t rows, int64_t columns, int32_t most)
{
    int32_t host[MOST];
    wf_tensor *t = wf_tensor_new(ctx, WF_I32, WF_SHAPE(rows, columns));
    for (int64_t i = 0; i < rows * columns; i++)
        host[i] = (int32_t)(i * i + i / 3) % most;
    WF_EXPECT_OK(wf_tensor_import(t, host, wf_tensor_bytes(t)));
    return t;
}

/* Options of this rank's samples; tensors to be freed go to `own`. */
static wf_attention_opts token_options(const token_case *c, int64_t first, int64_t n, wf_tensor **own)
{
    double host[MOST];
    const int32_t lengths[2] = {(int32_t)c->s - 2, 3};
    wf_attention_opts o = {.heads = c->heads, .causal = c->causal, .dropout = c->dropout};
    if (c->lengths) {
        own[0] = wf_tensor_new(ctx, WF_I32, WF_SHAPE(n));
        WF_EXPECT_OK(wf_tensor_import(own[0], lengths + first, (size_t)n * sizeof *lengths));
        o.lengths = own[0];
    }
    if (c->mask) {
        for (int64_t i = 0; i < c->t * c->s; i++)
            host[i] = i % 5 == 0 ? -INFINITY : 0.25 * (double)(i % 3);
        own[1] = wf_tensor_new(ctx, WF_F64, WF_SHAPE(1, 1, c->t, c->s));
        values_set(own[1], host);
        o.mask = own[1];
    }
    if (c->regions) {
        o.query_regions = own[2] = token_numbers(2, c->t, 2);
        o.key_regions = own[3] = token_numbers(2, c->s, 2);
        o.bias_index = own[4] = token_numbers(c->t, c->s, 5);
    }
    return o;
}

/* layout: of q, and of k and v; NULL: serial. */
static void attend_tokens(const wf_layout *layout, const token_case *c, token_form *form, wf_tape *tape,
                          wf_tensor *const *x, token_outcome *to)
{
    wf_var *leaf[3];
    wf_tensor *own[3], *table = wf_tensor_new(ctx, WF_F64, WF_SHAPE(5, c->heads)), *made[5] = {0};
    double host[MOST];
    for (int i = 0; i < MOST; i++)
        host[i] = 0.1 * i;
    values_set(table, host);
    if (layout)
        WF_EXPECT_OK(wf_tensor_set_layout(table, wf_mesh_layout_same(layout->mesh, table->shape)));
    WF_EXPECT_OK(wf_tape_set_iteration(tape, 2));
    for (int i = 0; i < 3; i++) {
        own[i] = layout ? wf_tensor_redistribute(x[i], layout[i > 0]) : wf_tensor_alias(x[i]);
        leaf[i] = wf_leaf(tape, own[i]);
    }
    wf_var *bias = wf_leaf(tape, table);
    wf_attention_opts o = token_options(c, layout ? layout->box.lo[0] : 0, own[0]->shape.dim[0], made);
    o.bias = c->bias ? bias : NULL;
    wf_var *y = form(leaf[0], leaf[1], leaf[2], o);
    wf_var *loss = wf_sum(wf_mul(y, wf_mul(y, y)));
    WF_EXPECT(loss, "%s: %s", c->name, wf_error_message());
    values_get(wf_value(y), to->y);
    WF_EXPECT_OK(wf_backward(loss));
    for (int i = 0; i < 3; i++)
        values_get(wf_grad(leaf[i]), to->dx[i]);
    if (c->bias)
        values_get(wf_grad(bias), to->table);
    WF_EXPECT_OK(wf_tape_reset(tape));
    for (int i = 0; i < 3; i++)
        wf_tensor_free(own[i]);
    for (int i = 0; i < 5; i++)
        wf_tensor_free(made[i]);
    wf_tensor_free(table);
}

/* Features are cut between heads, of which a rank may have none, if there are ranks for it. */
static wf_layout cut_tokens_at(const wf_mesh *mesh, int64_t length, bool empty, int64_t heads)
{
    const int parts = wf_mesh_size(mesh, WF_AXIS_HEIGHT), columns = wf_mesh_size(mesh, WF_AXIS_CHANNEL);
    int64_t bounds[9], features[9];
    for (int r = 0; r <= columns; r++)
        features[r] = heads * r / columns * (12 / heads);
    wf_layout layout;
    for (int r = 0; r <= parts; r++)
        bounds[r] = empty && r < parts ? 0 : (length * r + parts - 1) / parts;
    WF_EXPECT_OK(wf_mesh_layout(
        mesh, WF_SHAPE(2, length, 12),
        (wf_layout_opts){
            .dim = {[WF_AXIS_DATA] = WF_DIM(0), [WF_AXIS_CHANNEL] = WF_DIM(2), [WF_AXIS_HEIGHT] = WF_DIM(1)},
            .bounds = {[WF_AXIS_HEIGHT] = bounds, [WF_AXIS_CHANNEL] = features}},
        &layout));
    return layout;
}

static void compare_tokens(const wf_mesh *mesh, const token_case *c, token_form *form)
{
    static token_outcome serial, parallel;
    double host[MOST];
    test_rng rng = {5};
    const wf_layout layout[2] = {cut_tokens_at(mesh, c->t, c->empty, c->heads),
                                 cut_tokens_at(mesh, c->s, false, c->heads)};
    wf_tape *tape = wf_tape_new(ctx);
    wf_tensor *x[3];
    for (int i = 0; i < 3; i++) {
        for (int j = 0; j < MOST; j++)
            host[j] = test_uniform(&rng, -1, 1);
        x[i] = wf_tensor_new(ctx, WF_F64, layout[i > 0].global);
        values_set(x[i], host);
    }
    attend_tokens(NULL, c, wf_attention, tape, x, &serial);
    attend_tokens(layout, c, form, tape, x, &parallel);
    const double error = part_error(layout, serial.y, parallel.y);
    WF_EXPECT(error < 1e-12, "%s: y is off by %g", c->name, error);
    for (int i = 0; i < 3; i++) {
        const double off = part_error(&layout[i > 0], serial.dx[i], parallel.dx[i]);
        WF_EXPECT(off < 1e-12, "%s: the gradient of input %d is off by %g", c->name, i, off);
        wf_tensor_free(x[i]);
    }
    if (c->bias)
        WF_EXPECT(test_distance(5 * c->heads, parallel.table, serial.table) < 1e-12,
                  "%s: the table's gradient is off by %g", c->name,
                  test_distance(5 * c->heads, parallel.table, serial.table));
    wf_tape_free(tape);
}

static const token_case token_cases[] = {
    {.name = "one head", .heads = 1, .t = 7, .s = 7, .causal = true, .dropout = 0.3, .bias = true},
    {.name = "two heads", .heads = 2, .t = 7, .s = 7, .empty = true, .causal = true, .dropout = 0.3, .bias = true},
    {.name = "three heads", .heads = 3, .t = 7, .s = 7, .lengths = true, .mask = true},
    {.name = "four heads", .heads = 4, .t = 6, .s = 6, .causal = true},
    {.name = "more keys", .heads = 3, .t = 5, .s = 8, .dropout = 0.3, .bias = true},
    {.name = "regions", .heads = 2, .t = 6, .s = 7, .regions = true, .bias = true},
    {.name = "fewer keys", .heads = 2, .t = 8, .s = 3, .empty = true, .causal = true, .lengths = true},
};

static wf_var *paired_ring(wf_var *q, wf_var *k, wf_var *v, wf_attention_opts opts)
{
    opts.paired = true;
    return wf_attention_ring(q, k, v, opts);
}

static void tokens(void)
{
    begin_ranks();
    for (int high = 1; high <= size; high++) {
        if (size % high)
            continue;
        wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.data = size / high, .height = high});
        WF_EXPECT(mesh, "%s", wf_error_message());
        for (size_t i = 0; i < sizeof token_cases / sizeof *token_cases; i++)
            for (int form = 0; form < 3; form++)
                compare_tokens(mesh, &token_cases[i],
                               (token_form *const[]){wf_attention_by_heads, wf_attention_ring, paired_ring}[form]);
        wf_mesh_close(mesh);
    }
    WF_EXPECT_OK(wf_comm_close(comm));
}

/* Heads and tokens at once: as rings, since tokens for some of the heads would cut these once more. */
static void tokens_of_heads(void)
{
    begin_ranks();
    for (int high = 2; 2 * high <= size; high++) {
        if (size % (2 * high))
            continue;
        wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.data = size / high / 2, .channel = 2, .height = high});
        WF_EXPECT(mesh, "%s", wf_error_message());
        for (size_t i = 0; i < sizeof token_cases / sizeof *token_cases; i++)
            for (int form = 0; form < 3; form++)
                compare_tokens(mesh, &token_cases[i],
                               (token_form *const[]){wf_attention_tokens, wf_attention_ring, paired_ring}[form]);
        wf_mesh_close(mesh);
    }
    WF_EXPECT_OK(wf_comm_close(comm));
}

static void expect_choice(const wf_mesh *mesh, int64_t t, int64_t s, wf_attention_opts o, wf_attention_cut cut)
{
    const wf_layout layout[2] = {cut_tokens_at(mesh, t, false, o.heads), cut_tokens_at(mesh, s, false, o.heads)};
    wf_tape *tape = wf_tape_new(ctx);
    wf_var *x[2];
    for (int i = 0; i < 2; i++) {
        wf_tensor *part = wf_tensor_new(ctx, WF_F64, wf_box_shape(layout[i].box));
        WF_EXPECT_OK(wf_tensor_fill(part, 0));
        WF_EXPECT_OK(wf_tensor_set_layout(part, layout[i]));
        x[i] = wf_input(tape, part);
        wf_tensor_free(part);
    }
    const wf_attention_choice c = wf_attention_choose(x[0], x[1], &o);
    WF_EXPECT(c.cut == cut,
              "%lld queries, %lld keys, %lld heads: the choice is %d (%g bytes by heads, %g as a ring), "
              "should be %d",
              (long long)t, (long long)s, (long long)o.heads, (int)c.cut, c.by_heads, c.by_ring, (int)cut);
    wf_tape_free(tape);
}

static void choices(void)
{
    begin_ranks();
    wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.data = 1, .height = size});
    const wf_attention_cut heads = size > 1 ? WF_ATTENTION_BY_HEADS : WF_ATTENTION_CHEAPER;
    const wf_attention_cut ring = size > 1 ? WF_ATTENTION_RING : WF_ATTENTION_CHEAPER;
    expect_choice(mesh, 20, 20, (wf_attention_opts){.heads = 12}, heads);
    expect_choice(mesh, 20, 20, (wf_attention_opts){.heads = 1}, ring);
    expect_choice(mesh, 40, 1, (wf_attention_opts){.heads = 12}, ring);
    expect_choice(mesh, 40, 1, (wf_attention_opts){.heads = 12, .paired = true}, heads);
    expect_choice(mesh, 20, 20, (wf_attention_opts){.heads = 12, .cut = WF_ATTENTION_RING}, ring);
    expect_choice(mesh, 20, 20, (wf_attention_opts){.heads = 1, .cut = WF_ATTENTION_BY_HEADS}, heads);
    wf_mesh_close(mesh);
    WF_EXPECT_OK(wf_comm_close(comm));
}

/* --- on the fast kernels, which poll the exchange ------------------------------------------------------------------
 */

enum { EACH = 160, FLOATS = 8 * EACH * 16 };

/* y and the gradients of q, k and v of EACH tokens a rank, as doubles; *sent: bytes of this rank, forward and back. */
static void attend_floats(const wf_layout *layout, token_form *form, wf_dtype type, double (*to)[FLOATS],
                          uint64_t *sent)
{
    static double host[FLOATS];
    const wf_shape shape = WF_SHAPE(1, size * EACH, 16);
    const wf_comm *group = layout ? wf_mesh_comm(layout->mesh, WF_AXIS_BIT(WF_AXIS_HEIGHT)) : comm;
    wf_tape *tape = wf_tape_new(ctx);
    wf_var *leaf[3], *x[3];
    test_rng rng = {3};
    for (int i = 0; i < 3; i++) {
        for (int64_t j = 0; j < wf_shape_count(shape); j++)
            host[j] = test_uniform(&rng, -1, 1);
        wf_tensor *whole = wf_tensor_new(ctx, WF_F32, shape);
        values_set(whole, host);
        wf_tensor *part = layout ? wf_tensor_redistribute(whole, *layout) : wf_tensor_alias(whole);
        leaf[i] = wf_leaf(tape, part);
        x[i] = wf_cast(leaf[i], type);
        wf_tensor_free(part);
        wf_tensor_free(whole);
    }
    sent[0] = wf_comm_traffic(group).bytes_sent;
    wf_var *y = form(x[0], x[1], x[2], (wf_attention_opts){.heads = 2, .causal = true});
    sent[0] = wf_comm_traffic(group).bytes_sent - sent[0];
    WF_EXPECT(y, "%s", wf_error_message());
    y = wf_cast(y, WF_F32);
    values_get(wf_value(y), to[0]);
    sent[1] = wf_comm_traffic(group).bytes_sent;
    WF_EXPECT_OK(wf_backward(wf_sum(wf_mul(y, y))));
    sent[1] = wf_comm_traffic(group).bytes_sent - sent[1];
    for (int i = 0; i < 3; i++)
        values_get(wf_grad(leaf[i]), to[1 + i]);
    WF_EXPECT_OK(wf_tape_reset(tape));
    wf_tape_free(tape);
}

/* In f32 and bf16, with the bytes that a ring sends: blocks to the last rank but one, gradients once round. */
static void ring_floats(void)
{
    static double serial[4][FLOATS], parallel[4][FLOATS];
    static const wf_dtype types[] = {WF_F32, WF_BF16};
    uint64_t sent[2];
    comm = test_comm_open("flat", (wf_ctx_opts){.device = "cpu", .threads = 1});
    ctx = wf_comm_ctx(comm);
    size = wf_comm_size(comm);
    wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.data = 1, .height = size});
    wf_layout layout;
    WF_EXPECT_OK(wf_mesh_layout(mesh, WF_SHAPE(1, size * EACH, 16),
                                (wf_layout_opts){.dim = {[WF_AXIS_HEIGHT] = WF_DIM(1)}}, &layout));
    const int64_t first = wf_mesh_rank(mesh, WF_AXIS_HEIGHT) * EACH * 16;
    for (int i = 0; i < 4; i++) {
        const wf_dtype type = types[i / 2];
        const uint64_t block = (uint64_t)(2 * EACH * 16) * wf_dtype_size(type), wide = (uint64_t)(2 * EACH * 16 * 4);
        const uint64_t turns = (uint64_t)size - 1;
        attend_floats(NULL, wf_attention, type, serial, sent);
        attend_floats(&layout, i % 2 ? paired_ring : wf_attention_ring, type, parallel, sent);
        for (int a = 0; a < 4; a++) {
            const double off = test_distance(EACH * 16, parallel[a], serial[a] + first);
            WF_EXPECT(off < (type == WF_F32 ? 1e-5 : 2e-2), "%s: array %d is off by %g", wf_dtype_name(type), a, off);
        }
        if (i % 2 == 0 && turns > 0)
            WF_EXPECT(sent[0] == turns * block && sent[1] == turns * block + (turns + 1) * wide,
                      "%s: %llu and %llu bytes, should be %llu and %llu", wf_dtype_name(type),
                      (unsigned long long)sent[0], (unsigned long long)sent[1], (unsigned long long)(turns * block),
                      (unsigned long long)(turns * block + (turns + 1) * wide));
    }
    wf_mesh_close(mesh);
    WF_EXPECT_OK(wf_comm_close(comm));
}

/* What is stacked or reshaped to rank 4 travels also where a rank has no token, or one. */
static void stacked(void)
{
    begin_ranks();
    wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.data = 1, .height = size});
    double host[MOST], got[MOST], want[MOST];
    for (int empty = 0; empty < 2; empty++) {
        const wf_layout layout = cut_tokens_at(mesh, size + 1, empty == 1, 1);
        wf_tape *tape = wf_tape_new(ctx);
        wf_tensor *whole = wf_tensor_new(ctx, WF_F64, layout.global);
        for (int j = 0; j < MOST; j++)
            host[j] = j;
        values_set(whole, host);
        wf_tensor *part = wf_tensor_redistribute(whole, layout);
        wf_var *x = wf_leaf(tape, part), *y = wf_unshard(wf_stack(2, (wf_var *const[]){x, x}, 0));
        WF_EXPECT(y, "%s", wf_error_message());
        values_get(wf_value(y), got);
        WF_EXPECT_OK(wf_backward(wf_sum(wf_mul(y, y))));
        const int64_t n = wf_tensor_count(whole);
        WF_EXPECT(test_distance(n, got, host) == 0 && test_distance(n, got + n, host) == 0, "the stack is off");
        values_get(wf_grad(x), got);
        for (int j = 0; j < MOST; j++)
            want[j] = 4 * host[j];
        WF_EXPECT(part_error(&layout, want, got) == 0, "the gradient of the stack is off");
        WF_EXPECT_OK(wf_tape_reset(tape));
        wf_tensor_free(part);
        wf_tensor_free(whole);
        wf_tape_free(tape);
    }
    wf_mesh_close(mesh);
    WF_EXPECT_OK(wf_comm_close(comm));
}

/* Lengths that are wrong on one rank are an error of all, before anything is sent. */
static void wrong_lengths(void)
{
    begin_ranks();
    wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.data = 1, .height = size});
    const wf_layout layout = cut_tokens_at(mesh, 7, false, 1);
    wf_tape *tape = wf_tape_new(ctx);
    wf_tensor *whole = wf_tensor_new(ctx, WF_F64, layout.global);
    WF_EXPECT_OK(wf_tensor_fill(whole, 1));
    wf_tensor *part = wf_tensor_redistribute(whole, layout);
    wf_tensor *lengths = wf_tensor_new(ctx, WF_I32, WF_SHAPE(wf_comm_rank(comm) == 0 ? 3 : 2));
    WF_EXPECT_OK(wf_tensor_fill(lengths, 1));
    wf_var *x = wf_input(tape, part);
    WF_EXPECT_OK(wf_barrier(comm)); /* what fails here is the function under test */
    wf_var *y = wf_attention_by_heads(x, x, x, (wf_attention_opts){.heads = 3, .lengths = lengths});
    WF_EXPECT(!y && strstr(wf_error_message(), "lengths of shape [3], should be [2]"), "is \"%s\"", wf_error_message());
    wf_error_clear();
    wf_tensor_free(lengths);
    wf_tensor_free(part);
    wf_tensor_free(whole);
    wf_tape_free(tape);
    wf_mesh_close(mesh);
    (void)wf_comm_close(comm);
    wf_error_clear();
}

#endif
