/* A head that is tied to an embedding, both cut by vocabulary, and the cross entropy of its scores: losses and the
 * gradient of the matrix are those of the serial model, and what is sent does not depend on the vocabulary. For
 * equiv_attention. */
#ifndef WF_TESTS_VOCABULARY_H
#define WF_TESTS_VOCABULARY_H

#include "layers/loss.h"
#include "tests/layers/attention_parts.h"

#include <math.h>

enum { TEXTS = 3, PLACES = 5, WIDTH = 4, NOT_COUNTED = -7 };

typedef struct word_case {
    int64_t symbols;
    bool ignores;
    double smoothing;
    wf_loss_reduction reduction;
} word_case;

typedef struct word_outcome {
    double loss, rows[TEXTS * PLACES], slopes[MOST];
    uint64_t bytes;
    wf_layer *model; /* with its gradients */
} word_outcome;

static wf_layer *make_words(const word_case *c, const wf_mesh *mesh)
{
    const wf_embedding_opts table = {.count = c->symbols, .features = WIDTH, .w_init = {WF_INIT_UNIFORM, -2, 2}};
    const wf_token_linear_opts head = {
        .in = WIDTH, .out = c->symbols, .no_bias = true, .mesh = mesh, .form = WF_FORM_FILTER};
    wf_layer *model = wf_sequential(ctx, WF_LAYERS(mesh ? wf_channel_embedding(mesh, table) : wf_embedding(ctx, table),
                                                   wf_lambda(ctx, wf_tanh), wf_token_linear(ctx, head)));
    WF_EXPECT(wf_layer_named(model, "words"), "%s", wf_error_message());
    WF_EXPECT_OK(wf_layer_tie(model, "2/W", "0/W"));
    return model;
}

/* This rank's part of numbers of the whole [TEXTS,PLACES]. */
static wf_tensor *part_of_texts(const int32_t *host, const wf_layout *layout)
{
    wf_tensor *whole = wf_tensor_from_host(ctx, WF_I32, WF_SHAPE(TEXTS, PLACES), host);
    wf_tensor *view = layout ? wf_tensor_view(whole, layout->box) : wf_tensor_alias(whole);
    wf_tensor *part = wf_tensor_copy(view, WF_I32, WF_ROW_MAJOR);
    if (layout)
        WF_EXPECT_OK(wf_tensor_set_layout(part, *layout));
    wf_tensor_free(view);
    wf_tensor_free(whole);
    return part;
}

/* The sum of what all ranks have, where a replica counts once. */
static double total_of(const wf_mesh *mesh, const wf_var *y)
{
    const wf_layout layout = wf_tensor_layout(wf_value(y));
    double value = wf_item(y);
    for (int a = 0; mesh && a < WF_AXES; a++)
        if (layout.placement[a] != WF_PARTIAL)
            value /= wf_mesh_size(mesh, (wf_axis)a);
    if (mesh)
        WF_EXPECT_OK(wf_allreduce_f64(comm, &value, 1, WF_SUM));
    return value;
}

/* Each rank that has some of the classes says so. */
static void refuse_hits(const wf_mesh *mesh, wf_var *scores, const wf_tensor *labels)
{
    if (!mesh || wf_mesh_size(mesh, WF_AXIS_CHANNEL) == 1)
        return;
    wf_var *pixels = wf_image(scores, WF_SHAPE(wf_var_shape(scores).dim[1]));
    WF_EXPECT(wf_count_correct(pixels, labels, (wf_label_opts){0}) == -1 &&
                  strstr(wf_error_message(), "needs all of dimension 1, which is sharded"),
              "hits of cut classes: %s", wf_error_message());
    wf_error_clear();
}

static void run_words(const word_case *c, const wf_mesh *mesh, wf_tape *tape, word_outcome *to)
{
    int32_t text[TEXTS * PLACES], next[TEXTS * PLACES];
    wf_layout layout;
    for (int i = 0; i < TEXTS * PLACES; i++) {
        text[i] = (int32_t)((i * i + 3) % c->symbols);
        next[i] = c->ignores && i % 4 == 1 ? NOT_COUNTED : (int32_t)((5 * i + 1) % c->symbols);
    }
    if (mesh)
        WF_EXPECT_OK(wf_mesh_layout(mesh, WF_SHAPE(TEXTS, PLACES),
                                    (wf_layout_opts){.dim = {[WF_AXIS_DATA] = WF_DIM(0), [WF_AXIS_HEIGHT] = WF_DIM(1)}},
                                    &layout));
    wf_tensor *x = part_of_texts(text, mesh ? &layout : NULL), *t = part_of_texts(next, mesh ? &layout : NULL);
    to->model = make_words(c, mesh);
    const wf_comm *group = mesh ? wf_mesh_comm(mesh, WF_AXIS_BIT(WF_AXIS_CHANNEL)) : comm;
    const uint64_t before = wf_comm_traffic(group).bytes_sent;
    const wf_label_opts opts = {
        .ignores = c->ignores, .ignored = NOT_COUNTED, .smoothing = c->smoothing, .reduction = c->reduction};
    wf_var *scores = wf_apply(to->model, wf_input(tape, x));
    refuse_hits(mesh, scores, t);
    wf_var *each = wf_token_cross_entropy(scores, t, opts);
    WF_EXPECT(each, "%s", wf_error_message());
    if (c->reduction == WF_REDUCTION_NONE) {
        WF_EXPECT(wf_shape_equal(wf_var_shape(each), wf_tensor_shape(t)), "losses of another shape");
        values_get(wf_value(each), to->rows);
    }
    wf_var *loss = c->reduction == WF_REDUCTION_NONE ? wf_mean(wf_mul(each, each)) : each;
    to->loss = total_of(mesh, loss);
    WF_EXPECT_OK(wf_backward(loss));
    to->bytes = wf_comm_traffic(group).bytes_sent - before;
    WF_EXPECT_OK(wf_tape_reset(tape));
    wf_tensor_free(x);
    wf_tensor_free(t);
}

static void compare_words(const wf_mesh *mesh, const word_case *c)
{
    static word_outcome serial, parallel;
    char name[96];
    wf_tape *tape = wf_tape_new(ctx);
    snprintf(name, sizeof name, "%s, %lld symbols, reduction %d", wf_mesh_text(mesh), (long long)c->symbols,
             (int)c->reduction);
    run_words(c, NULL, tape, &serial);
    run_words(c, mesh, tape, &parallel);
    WF_EXPECT(fabs(parallel.loss - serial.loss) <= 1e-12 * (1 + fabs(serial.loss)), "%s: loss %.15g, should be %.15g",
              name, parallel.loss, serial.loss);
    if (c->reduction == WF_REDUCTION_NONE) {
        wf_layout layout;
        WF_EXPECT_OK(wf_mesh_layout(mesh, WF_SHAPE(TEXTS, PLACES),
                                    (wf_layout_opts){.dim = {[WF_AXIS_DATA] = WF_DIM(0), [WF_AXIS_HEIGHT] = WF_DIM(1)}},
                                    &layout));
        WF_EXPECT(part_error(&layout, serial.rows, parallel.rows) < 1e-12, "%s: losses of rows are off", name);
    }
    compare_gradient(name, mesh, wf_layer_param(serial.model, "0/W"), wf_layer_param(parallel.model, "0/W"));
    wf_layer_free(serial.model);
    wf_layer_free(parallel.model);
    wf_tape_free(tape);
}

/* Twenty times the vocabulary is as many bytes. */
static void compare_bytes(const wf_mesh *mesh)
{
    word_outcome few, many;
    wf_tape *tape = wf_tape_new(ctx);
    run_words(&(word_case){.symbols = 9}, mesh, tape, &few);
    run_words(&(word_case){.symbols = 180}, mesh, tape, &many);
    const bool sends = wf_mesh_size(mesh, WF_AXIS_CHANNEL) > 1 && wf_mesh_rank(mesh, WF_AXIS_DATA) < TEXTS &&
                       wf_mesh_rank(mesh, WF_AXIS_HEIGHT) < PLACES;
    WF_EXPECT(few.bytes == many.bytes && (few.bytes > 0) == sends, "%s: 9 symbols send %llu bytes, 180 %llu",
              wf_mesh_text(mesh), (unsigned long long)few.bytes, (unsigned long long)many.bytes);
    wf_layer_free(few.model);
    wf_layer_free(many.model);
    wf_tape_free(tape);
}

static void vocabulary(void)
{
    static const word_case cases[] = {{.symbols = 7, .ignores = true},
                                      {.symbols = 10, .smoothing = 0.1},
                                      {.symbols = 7, .ignores = true, .reduction = WF_REDUCTION_SUM},
                                      {.symbols = 9, .ignores = true, .reduction = WF_REDUCTION_NONE}};
    begin_ranks();
    for (int channel = 1; channel <= size && channel <= 4; channel++)
        for (int high = 1; channel * high <= size; high++) {
            if (size % (channel * high) != 0)
                continue;
            wf_mesh *mesh =
                wf_mesh_open(comm, (wf_mesh_opts){.data = size / channel / high, .channel = channel, .height = high});
            WF_EXPECT(mesh, "%s", wf_error_message());
            for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
                compare_words(mesh, &cases[i]);
            compare_bytes(mesh);
            wf_mesh_close(mesh);
        }
    WF_EXPECT_OK(wf_comm_close(comm));
}

typedef struct wrong_label {
    bool tokens, absent;
    int64_t texts, places;
    wf_dtype type;
    const char *says;
} wrong_label;

/* Rank 1 alone has them. */
static void refuse_label(const wrong_label *w)
{
    begin_ranks();
    wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.data = 1, .channel = size});
    const wf_shape shape = WF_SHAPE(TEXTS, PLACES, 12);
    const bool bad = wf_comm_rank(comm) == 1;
    wf_layout layout;
    wf_tape *tape = wf_tape_new(ctx);
    wf_tensor *whole = wf_tensor_new(ctx, WF_F64, shape);
    WF_EXPECT_OK(wf_tensor_fill(whole, 1));
    WF_EXPECT_OK(wf_mesh_layout(mesh, shape, (wf_layout_opts){.dim = {[WF_AXIS_CHANNEL] = WF_DIM(2)}}, &layout));
    wf_tensor *part = wf_tensor_redistribute(whole, layout);
    wf_tensor *labels = bad ? wf_tensor_new(ctx, w->type, WF_SHAPE(w->texts, w->places))
                            : wf_tensor_new(ctx, WF_I32, WF_SHAPE(TEXTS, PLACES));
    WF_EXPECT_OK(wf_tensor_fill(labels, 1));
    const wf_tensor *given = bad && w->absent ? NULL : labels;
    wf_var *x = wf_leaf(tape, part), *image = wf_image(x, WF_SHAPE(PLACES));
    WF_EXPECT(image, "%s", wf_error_message());
    WF_EXPECT_OK(wf_barrier(comm)); /* what fails here is the function under test */
    const wf_var *y = w->tokens ? wf_token_cross_entropy(x, given, (wf_label_opts){0})
                                : wf_softmax_cross_entropy(image, given, (wf_label_opts){0});
    WF_EXPECT(!y && strstr(wf_error_message(), w->says), "is \"%s\", should say \"%s\"", wf_error_message(), w->says);
    wf_error_clear();
    wf_tensor_free(labels);
    wf_tensor_free(part);
    wf_tensor_free(whole);
    wf_tape_free(tape);
    wf_mesh_close(mesh);
    (void)wf_comm_close(comm);
    wf_error_clear();
}

/* Labels that are wrong on one of the ranks that share the classes are an error of all, before anything is sent. */
static void wrong_labels(void)
{
    static const wrong_label cases[] = {
        {true, false, TEXTS, PLACES + 1, WF_I32, "labels [N,T], not [3,5,6] and [3,6]"},
        {true, true, TEXTS, PLACES, WF_I32, "token_cross_entropy: the tensor of labels is NULL"},
        {true, false, TEXTS, PLACES, WF_F32, "u8, i32 or i64, not f32"},
        {false, false, TEXTS + 1, PLACES, WF_I32, "and [4,5]"},
        {false, true, TEXTS, PLACES, WF_I32, "softmax_cross_entropy: the tensor of labels is NULL"},
    };
    begin_ranks();
    const bool two = size == 2;
    WF_EXPECT_OK(wf_comm_close(comm));
    for (size_t i = 0; two && i < sizeof cases / sizeof *cases; i++)
        refuse_label(&cases[i]);
}

#endif
