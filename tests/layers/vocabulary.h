/* A head that is tied to an embedding, both cut by vocabulary, and the cross entropy of its scores: losses and the
 * gradient of the matrix are those of the serial model, and what is sent does not depend on the vocabulary. Hits
 * and confusion matrices of scores whose classes are cut are those of the whole. For equiv_attention. */
#ifndef WF_TESTS_VOCABULARY_H
#define WF_TESTS_VOCABULARY_H

#include "layers/loss.h"
#include "optim/confusion.h"
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

/* Closes this mesh and opens the next one: all numbers of channels up to `most`, and with each all of heights. NULL
 * comes before the first, and is returned after the last. */
static wf_mesh *next_mesh(wf_mesh *mesh, int most)
{
    int channel = mesh ? wf_mesh_size(mesh, WF_AXIS_CHANNEL) : 1, high = mesh ? wf_mesh_size(mesh, WF_AXIS_HEIGHT) : 0;
    wf_mesh_close(mesh);
    for (high++; channel <= most; channel++, high = 1)
        for (; channel * high <= size; high++) {
            const wf_mesh_opts opts = {.data = size / channel / high, .channel = channel, .height = high};
            if (size % (channel * high) != 0)
                continue;
            wf_mesh *next = wf_mesh_open(comm, opts);
            WF_EXPECT(next, "%s", wf_error_message());
            return next;
        }
    return NULL;
}

static void vocabulary(void)
{
    static const word_case cases[] = {{.symbols = 7, .ignores = true},
                                      {.symbols = 10, .smoothing = 0.1},
                                      {.symbols = 7, .ignores = true, .reduction = WF_REDUCTION_SUM},
                                      {.symbols = 9, .ignores = true, .reduction = WF_REDUCTION_NONE}};
    begin_ranks();
    for (wf_mesh *mesh = next_mesh(NULL, 4); mesh; mesh = next_mesh(mesh, 4)) {
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
            compare_words(mesh, &cases[i]);
        compare_bytes(mesh);
    }
    WF_EXPECT_OK(wf_comm_close(comm));
}

/* --- hits ----------------------------------------------------------------------------------------------------------
 */

enum { HIT_ROWS = 6, HIT_PIXELS = 5, MOST_CLASSES = 9 };

typedef struct hit_case {
    int64_t classes;
    bool uneven; /* the last part is one class, the one before it the others, and the rest are empty */
    wf_dtype type;
    double special; /* scores of some classes */
} hit_case;

/* Few different scores, so that many are equal, also to each other's in other parts. */
static double score_at(const hit_case *c, int64_t n, int64_t k, int64_t p)
{
    const int64_t at = n * 7 + k * 5 + p * 3;
    return at % 6 == 1 || (k == 0 && n == 1) ? c->special : (double)(at * at % 4) - 1;
}

static void fill_hits(const hit_case *c, wf_tensor *scores, wf_tensor *labels)
{
    double score[HIT_ROWS * MOST_CLASSES * HIT_PIXELS];
    int32_t label[HIT_ROWS * HIT_PIXELS];
    for (int64_t n = 0; n < HIT_ROWS; n++)
        for (int64_t p = 0; p < HIT_PIXELS; p++) {
            label[n * HIT_PIXELS + p] = (n + p) % 5 == 3 ? NOT_COUNTED : (int32_t)((n * 2 + p) % c->classes);
            for (int64_t k = 0; k < c->classes; k++)
                score[(n * c->classes + k) * HIT_PIXELS + p] = score_at(c, n, k, p);
        }
    values_set(scores, score);
    WF_EXPECT_OK(wf_tensor_import(labels, label, sizeof label));
}

static wf_layout layout_of_hits(const hit_case *c, const wf_mesh *mesh, wf_shape shape, bool labels)
{
    int64_t bounds[64] = {0};
    const int parts = wf_mesh_size(mesh, WF_AXIS_CHANNEL);
    for (int r = 1; r <= parts; r++)
        bounds[r] = r == parts ? c->classes : r == parts - 1 && r > 0 ? c->classes - 1 : 0;
    wf_layout_opts cut = {.dim = {[WF_AXIS_DATA] = WF_DIM(0), [WF_AXIS_HEIGHT] = labels ? WF_DIM(1) : WF_DIM(2)}};
    wf_layout layout;
    if (!labels)
        cut.dim[WF_AXIS_CHANNEL] = WF_DIM(1);
    if (!labels && c->uneven && parts > 1)
        cut.bounds[WF_AXIS_CHANNEL] = bounds;
    WF_EXPECT_OK(wf_mesh_layout(mesh, shape, cut, &layout));
    return layout;
}

static wf_tensor *part_of_hits(const wf_tensor *whole, wf_layout layout)
{
    wf_tensor *view = wf_tensor_view(whole, layout.box);
    wf_tensor *part = wf_tensor_copy(view, wf_tensor_dtype(whole), WF_CHANNELS_LAST);
    WF_EXPECT_OK(wf_tensor_set_layout(part, layout));
    wf_tensor_free(view);
    return part;
}

/* Counts of the parts are summed over the ranks that have other rows; those that share them all have each row's. */
static void compare_hits(const wf_mesh *mesh, const hit_case *c)
{
    const wf_shape shape = WF_SHAPE(HIT_ROWS, c->classes, HIT_PIXELS), rows = WF_SHAPE(HIT_ROWS, HIT_PIXELS);
    const wf_label_opts opts = {.ignores = true, .ignored = NOT_COUNTED};
    wf_comm *others = wf_mesh_comm(mesh, WF_AXIS_BIT(WF_AXIS_DATA) | WF_AXIS_BIT(WF_AXIS_HEIGHT));
    wf_confusion *serial = wf_confusion_new(wf_mesh_comm(mesh, WF_NO_AXES), c->classes),
                 *shared = wf_confusion_new(others, c->classes);
    wf_tape *tape = wf_tape_new(ctx);
    wf_tensor *scores = wf_tensor_new(ctx, c->type, shape), *labels = wf_tensor_new(ctx, WF_I32, rows);
    fill_hits(c, scores, labels);
    wf_tensor *part = part_of_hits(scores, layout_of_hits(c, mesh, shape, false)),
              *own = part_of_hits(labels, layout_of_hits(c, mesh, rows, true));
    for (int64_t k = 1; k <= c->classes + 1; k += 2) {
        const int64_t want = wf_count_top_k(wf_input(tape, scores), labels, k, opts);
        int64_t got = wf_count_top_k(wf_input(tape, part), own, k, opts);
        WF_EXPECT(want >= 0 && got >= 0, "hits: %s", wf_error_message());
        WF_EXPECT_OK(wf_allreduce_i64(others, &got, 1, WF_SUM));
        WF_EXPECT(got == want, "%s, %lld classes, special %g: %lld are among %lld, should be %lld", wf_mesh_text(mesh),
                  (long long)c->classes, c->special, (long long)got, (long long)k, (long long)want);
    }
    WF_EXPECT_OK(wf_confusion_add(serial, wf_input(tape, scores), labels, opts));
    WF_EXPECT_OK(wf_confusion_add(shared, wf_input(tape, part), own, opts));
    WF_EXPECT_OK(wf_confusion_finish(serial));
    WF_EXPECT_OK(wf_confusion_finish(shared));
    for (int64_t at = 0; at < c->classes * c->classes; at++) {
        const int64_t label = at / c->classes, taken = at % c->classes;
        WF_EXPECT(wf_confusion_count(shared, label, taken) == wf_confusion_count(serial, label, taken),
                  "%s, %lld classes, special %g: %lld of %lld taken for %lld, should be %lld", wf_mesh_text(mesh),
                  (long long)c->classes, c->special, (long long)wf_confusion_count(shared, label, taken),
                  (long long)label, (long long)taken, (long long)wf_confusion_count(serial, label, taken));
    }
    wf_tensor *const all[] = {scores, labels, part, own};
    for (int i = 0; i < 4; i++)
        wf_tensor_free(all[i]);
    wf_confusion_free(serial);
    wf_confusion_free(shared);
    wf_tape_free(tape);
}

static void hits(void)
{
    static const hit_case cases[] = {{.classes = 9, .type = WF_F64, .special = 2},
                                     {.classes = 9, .uneven = true, .type = WF_F32, .special = NAN},
                                     {.classes = 3, .type = WF_F32, .special = INFINITY},
                                     {.classes = 7, .uneven = true, .type = WF_F64, .special = -INFINITY},
                                     {.classes = 2, .type = WF_F64, .special = NAN}};
    begin_ranks();
    for (wf_mesh *mesh = next_mesh(NULL, size); mesh; mesh = next_mesh(mesh, size))
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
            compare_hits(mesh, &cases[i]);
    WF_EXPECT_OK(wf_comm_close(comm));
}

typedef struct wrong_label {
    enum { OF_IMAGES, OF_TOKENS, OF_HITS } kind;
    bool absent;
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
    const bool passes = w->kind == OF_HITS     ? wf_count_correct(image, given, (wf_label_opts){0}) >= 0
                        : w->kind == OF_TOKENS ? wf_token_cross_entropy(x, given, (wf_label_opts){0}) != NULL
                                               : wf_softmax_cross_entropy(image, given, (wf_label_opts){0}) != NULL;
    WF_EXPECT(!passes && strstr(wf_error_message(), w->says), "is \"%s\", should say \"%s\"", wf_error_message(),
              w->says);
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
        {OF_TOKENS, false, TEXTS, PLACES + 1, WF_I32, "labels [N,T], not [3,5,6] and [3,6]"},
        {OF_TOKENS, true, TEXTS, PLACES, WF_I32, "token_cross_entropy: the tensor of labels is NULL"},
        {OF_TOKENS, false, TEXTS, PLACES, WF_F32, "u8, i32 or i64, not f32"},
        {OF_IMAGES, false, TEXTS + 1, PLACES, WF_I32, "and [4,5]"},
        {OF_IMAGES, true, TEXTS, PLACES, WF_I32, "softmax_cross_entropy: the tensor of labels is NULL"},
        {OF_HITS, false, TEXTS + 1, PLACES, WF_I32, "and [4,5]"},
        {OF_HITS, true, TEXTS, PLACES, WF_I32, "count_correct: the tensor of labels is NULL"},
    };
    begin_ranks();
    const bool two = size == 2;
    WF_EXPECT_OK(wf_comm_close(comm));
    for (size_t i = 0; two && i < sizeof cases / sizeof *cases; i++)
        refuse_label(&cases[i]);
}

#endif
