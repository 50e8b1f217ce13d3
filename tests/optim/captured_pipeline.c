/* Pipelines whose messages NCCL moves, and captured steps of pipelines: the same as with messages through the host's
 * memory, and as without a capture, bit for bit, with skips, ties, normalisation, dropout and recomputation. */
#include "core/captured.h"
#include "layers/skip.h"
#include "optim/schedule.h"
#include "tests/layers/pipeline_fixture.h"

enum { RUNS = 7, WIDTH = 6, ROWS = 7, MOST_VALUES = 4096 };

/* How a run trains. */
typedef struct way {
    const char *communicator;
    wf_pipeline_kind kind;
    wf_pipeline_recompute recompute;
    bool captured, deferred, layout, sync; /* sync: normalisations, over data */
    int data, chunks;                      /* chunks 0: 3 */
} way;

typedef struct training {
    const way *way;
    wf_pipeline *pipe;
    wf_optim *optim;
    wf_tape *tape;
    wf_tensor *x, *labels, *loss;
    int calls; /* of the step's function */
} training;

/* What a training leaves behind. */
typedef struct history {
    double loss[RUNS], value[MOST_VALUES];
    int64_t values;
} history;

static wf_layer *chain_new(void)
{
    wf_ctx *ctx = on.ctx;
    wf_layer *model = wf_sequential(
        ctx, WF_LAYERS(dense(IN, WIDTH), wf_skip_stash(ctx, "a"), norm(WIDTH), wf_lambda(ctx, drop),
                       dense(WIDTH, WIDTH), wf_lambda(ctx, wf_tanh), wf_skip_stash(ctx, "b"), dense(WIDTH, WIDTH),
                       norm(WIDTH), wf_skip_pop(ctx, "a", NULL), dense(WIDTH, WIDTH), wf_skip_pop(ctx, "b", wf_mul)));
    WF_EXPECT(wf_module_add(model, "tied", dense(WIDTH, WIDTH)) && wf_module_add(model, "last", dense(WIDTH, CLASSES)),
              "%s", wf_error_trail());
    WF_EXPECT_OK(wf_layer_tie(model, "tied/W", "4/W"));
    return wf_layer_named(model, "net");
}

/* The batch of step i, of this place along data. */
static void next_batch(const training *t, int i)
{
    float x[ROWS * IN];
    int64_t label[ROWS];
    test_rng rng = {(uint64_t)(1 + i + 100 * wf_mesh_rank(on.mesh, WF_AXIS_DATA))};
    for (int k = 0; k < ROWS * IN; k++)
        x[k] = (float)test_uniform(&rng, -1, 1);
    for (int k = 0; k < ROWS; k++)
        label[k] = test_int(&rng, 0, CLASSES - 1);
    WF_EXPECT_OK(wf_tensor_import(t->x, x, sizeof x));
    WF_EXPECT_OK(wf_tensor_import(t->labels, label, sizeof label));
}

static wf_status step(void *arg)
{
    training *t = arg;
    wf_var *loss = wf_pipeline_step(t->pipe, t->tape, t->x, t->labels);
    t->calls++;
    WF_TRY(wf_optim_step(t->optim, loss));
    wf_tensor_free(t->loss);
    t->loss = wf_keep(loss);
    return wf_tape_reset(t->tape);
}

static training training_new(const way *w)
{
    on.comm = test_comm_open(w->communicator, (wf_ctx_opts){.device = test_device("cpu"), .threads = 1, .seed = 5});
    WF_EXPECT(on.comm, "%s: %s", w->communicator, wf_error_message());
    on.ctx = wf_comm_ctx(on.comm);
    on.rank = wf_comm_rank(on.comm);
    const int size = wf_comm_size(on.comm), places = size % w->data == 0 ? w->data : 1;
    on.mesh = wf_mesh_open(on.comm, (wf_mesh_opts){.stage = size / places, .data = places});
    training t = {.way = w, .tape = wf_tape_new(on.ctx)};
    wf_layer *chain = chain_new();
    if (w->sync)
        WF_EXPECT_OK(wf_parallelize(chain, on.mesh, WF_PARALLEL_SYNC_BN));
    t.pipe = wf_pipeline_new(on.mesh, chain,
                             (wf_pipeline_opts){.loss = wf_mean_cross_entropy,
                                                .chunks = w->chunks ? w->chunks : 3,
                                                .schedule = w->kind,
                                                .recompute = w->recompute,
                                                .deferred_batchnorm = w->deferred});
    WF_EXPECT(t.pipe, "%s", wf_error_trail());
    t.optim = wf_mesh_multi_node(on.mesh, wf_adam(wf_pipeline_model(t.pipe), (wf_adam_opts){.lr = 1e-2}),
                                 (wf_multi_node_opts){0});
    t.x = wf_tensor_new(on.ctx, WF_F32, WF_SHAPE(ROWS, IN));
    t.labels = wf_tensor_new(on.ctx, WF_I64, WF_SHAPE(ROWS));
    WF_EXPECT(t.optim && t.x && t.labels, "%s", wf_error_trail());
    const int place = wf_mesh_rank(on.mesh, WF_AXIS_DATA);
    if (w->layout) {
        const int64_t lo = place * ROWS, all = places * ROWS;
        WF_EXPECT_OK(wf_tensor_set_layout(t.x, wf_layout_batch(on.mesh, WF_SHAPE(all, IN), lo, lo + ROWS)));
        WF_EXPECT_OK(wf_tensor_set_layout(t.labels, wf_layout_batch(on.mesh, WF_SHAPE(all), lo, lo + ROWS)));
    }
    return t;
}

static void training_free(training *t)
{
    wf_tensor_free(t->x);
    wf_tensor_free(t->labels);
    wf_tensor_free(t->loss);
    wf_tape_free(t->tape);
    wf_optim_free(t->optim);
    wf_pipeline_free(t->pipe);
    wf_mesh_close(on.mesh);
    WF_EXPECT_OK(wf_comm_close(on.comm));
}

static void note_values(const training *t, history *h)
{
    int64_t n;
    wf_param *const *param;
    WF_EXPECT_OK(wf_layer_params(wf_pipeline_model(t->pipe), &n, &param));
    h->values = 0;
    for (int64_t i = 0; i < n; i++) {
        values_get(wf_param_value(param[i]), h->value + h->values);
        h->values += wf_shape_count(wf_param_shape(param[i]));
        WF_EXPECT(h->values < MOST_VALUES, "%lld values", (long long)h->values);
    }
}

static bool captures(void)
{
    return on.ctx->k->capture_begin;
}

/* Device memory that goes through the host's: nothing that a replay could repeat. */
static bool staged(void)
{
    return captures() && wf_comm_size(on.comm) > 1 && strcmp(wf_comm_name(on.comm), "pure_nccl") != 0;
}

static void train(const way *w, history *h)
{
    training t = training_new(w);
    wf_captured *c = w->captured ? wf_capture(on.ctx, step, &t) : NULL;
    for (int i = 0; i < RUNS; i++) {
        next_batch(&t, i);
        WF_EXPECT_OK(c ? wf_captured_run(c) : step(&t));
        h->loss[i] = wf_tensor_item(t.loss);
        WF_EXPECT(!c || wf_captured_replays(c) == (captures() && i > 1), "step %d: whether it replays", i);
    }
    WF_EXPECT(t.calls == (c && captures() ? 3 : RUNS), "the function was called %d times", t.calls);
    note_values(&t, h);
    wf_captured_free(c);
    training_free(&t);
}

static void expect_equal(const way *w, const history *a, const history *b)
{
    char text[120];
    snprintf(text, sizeof text, "%s, schedule %d, recompute %d%s%s%s%s, data %d", w->communicator, (int)w->kind,
             (int)w->recompute, w->captured ? ", captured" : "", w->deferred ? ", deferred" : "",
             w->layout ? ", layout" : "", w->sync ? ", sync" : "", w->data);
    for (int i = 0; i < RUNS; i++)
        WF_EXPECT(a->loss[i] == b->loss[i] && a->loss[i] > 0, "%s, step %d: a loss of %.9g, not %.9g", text, i,
                  a->loss[i], b->loss[i]);
    WF_EXPECT(a->values == b->values && a->values > 0, "%s: %lld values, not %lld", text, (long long)a->values,
              (long long)b->values);
    int64_t wrong = 0;
    for (int64_t i = 0; i < a->values; i++)
        wrong += a->value[i] != b->value[i];
    WF_EXPECT(wrong == 0, "%s: %lld of %lld values have other bits", text, (long long)wrong, (long long)a->values);
}

/* Through the host's memory, by the communicator that is asked for, and captured. */
static void three_ways(way w)
{
    static history through_host, asked, captured;
    w.communicator = "flat";
    train(&w, &through_host);
    w.communicator = test_communicator("flat");
    train(&w, &asked);
    expect_equal(&w, &asked, &through_host);
    w.captured = true;
    if (!strcmp(w.communicator, "flat") && strcmp(test_device("cpu"), "cuda") == 0)
        return; /* see refused */
    train(&w, &captured);
    expect_equal(&w, &captured, &asked);
}

static void schedules(void)
{
    for (int kind = WF_PIPELINE_1F1B; kind <= WF_PIPELINE_INTERLEAVED; kind++)
        three_ways((way){.kind = (wf_pipeline_kind)kind, .data = 1});
}

static void recomputes(void)
{
    three_ways((way){.recompute = WF_RECOMPUTE_ALWAYS, .data = 1});
    three_ways((way){.recompute = WF_RECOMPUTE_EXCEPT_LAST, .kind = WF_PIPELINE_GPIPE, .data = 1});
}

static void defers(void)
{
    three_ways((way){.deferred = true, .data = 1});
}

/* Statistics that are shared over data and deferred: the device alone knows of how many samples they are. */
static void defers_shared(void)
{
    for (int layout = 0; layout < 2; layout++)
        three_ways((way){.deferred = true, .sync = true, .layout = layout, .data = 2});
}

/* More chunks than samples: messages of the last ones are empty. */
static void empty_chunks(void)
{
    for (int kind = WF_PIPELINE_1F1B; kind <= WF_PIPELINE_INTERLEAVED; kind++)
        three_ways((way){.kind = (wf_pipeline_kind)kind,
                         .recompute = WF_RECOMPUTE_ALWAYS,
                         .deferred = true,
                         .layout = true,
                         .data = 1,
                         .chunks = 9});
}

static void with_data(void)
{
    three_ways((way){.data = 2});
    three_ways((way){.data = 2, .layout = true, .kind = WF_PIPELINE_GPIPE});
}

/* Messages through the host's memory are no part of a captured step: one line says so, on every rank, and steps that
 * are not captured go on. */
static void refused(void)
{
    const way w = {.communicator = "flat", .data = 1};
    training t = training_new(&w);
    if (staged()) {
        wf_captured *c = wf_capture(on.ctx, step, &t);
        for (int i = 0; i < 4; i++) {
            next_batch(&t, i);
            const wf_status status = i < 3 ? wf_captured_run(c) : step(&t);
            WF_EXPECT(status == (i == 2 ? WF_ERR_UNSUPPORTED : WF_OK), "run %d: %s", i, wf_error_message());
            WF_EXPECT(i != 2 || strstr(wf_error_message(), "pure_nccl"), "%s", wf_error_message());
            wf_error_clear();
        }
        wf_captured_free(c);
    }
    training_free(&t);
}

/* --- a wf_multi_node_chain ------------------------------------------------------------------------------------------
 */

typedef struct chained {
    wf_layer *model;
    wf_optim *optim;
    wf_tape *tape;
    wf_tensor *x;
} chained;

static wf_status chained_step(void *arg)
{
    const chained *c = arg;
    const int last = wf_comm_size(on.comm) - 1;
    wf_var *y = wf_apply(c->model, on.rank == 0 ? wf_input(c->tape, c->x) : wf_no_loss(c->tape));
    WF_TRY(wf_optim_step(c->optim, on.rank == last ? wf_mean(y) : y));
    return wf_tape_reset(c->tape);
}

/* A component on each rank, from the first one to the last. The step is refused by one line on every rank, whatever
 * moves the messages, and goes on without a capture. */
static void chain_refused(void)
{
    on.comm = test_comm_open(test_communicator("flat"), (wf_ctx_opts){.device = test_device("cpu"), .threads = 1});
    on.ctx = wf_comm_ctx(on.comm);
    on.rank = wf_comm_rank(on.comm);
    const int last = wf_comm_size(on.comm) - 1;
    char name[16];
    snprintf(name, sizeof name, "part%d", on.rank);
    chained c = {.model = wf_multi_node_chain(on.comm), .tape = wf_tape_new(on.ctx)};
    WF_EXPECT_OK(
        wf_multi_node_chain_add(c.model, (wf_component){.name = name,
                                                        .layer = dense(WIDTH, WIDTH),
                                                        WF_FROM({.rank = on.rank == 0 ? WF_OUTSIDE : on.rank - 1}),
                                                        WF_TO({.rank = on.rank == last ? WF_OUTSIDE : on.rank + 1})}));
    c.optim = wf_sgd(c.model, (wf_sgd_opts){.lr = 0.1});
    c.x = wf_tensor_new(on.ctx, WF_F32, WF_SHAPE(ROWS, WIDTH));
    WF_EXPECT_OK(wf_tensor_fill(c.x, 0.5));
    wf_captured *captured = wf_capture(on.ctx, chained_step, &c);
    for (int i = 0; i < 4; i++) {
        const wf_status status = i < 3 ? wf_captured_run(captured) : chained_step(&c);
        const bool refuses = captures() && i == 2;
        WF_EXPECT(status == (refuses ? WF_ERR_UNSUPPORTED : WF_OK), "run %d: %s", i, wf_error_message());
        WF_EXPECT(!refuses ||
                      strstr(wf_error_message(), "cannot apply a wf_multi_node_chain, whose messages go through "
                                                 "the host's memory; run the step without wf_capture, or cut"),
                  "%s", wf_error_message());
        wf_error_clear();
    }
    wf_captured_free(captured);
    wf_tensor_free(c.x);
    wf_tape_free(c.tape);
    wf_optim_free(c.optim);
    wf_layer_free(c.model);
    WF_EXPECT_OK(wf_comm_close(on.comm));
}

/* A captured step has the shapes of its capture: tensors of others are refused before anything is computed. A step that
 * is not captured takes them meanwhile, and replays go on with theirs. */
static void other_shapes(void)
{
    static history expected, h;
    const way w = {.communicator = test_communicator("flat"), .data = 1};
    for (int captured = 0; captured < 2; captured++) {
        history *to = captured ? &h : &expected;
        training t = training_new(&w);
        wf_captured *c = captured && !staged() ? wf_capture(on.ctx, step, &t) : NULL;
        wf_tensor *few = wf_tensor_new(on.ctx, WF_F32, WF_SHAPE(4, IN)),
                  *marks = wf_tensor_new(on.ctx, WF_I64, WF_SHAPE(4));
        WF_EXPECT_OK(wf_tensor_fill(few, 0.5));
        WF_EXPECT_OK(wf_tensor_fill(marks, 1));
        for (int i = 0; i < RUNS; i++) {
            next_batch(&t, i);
            WF_EXPECT_OK(c ? wf_captured_run(c) : step(&t));
            to->loss[i] = wf_tensor_item(t.loss);
            if (i != 4)
                continue;
            WF_EXPECT_ERROR(WF_ERR_SHAPE, wf_tensor_assign(t.x, few));
            WF_EXPECT_OK(wf_optim_step(t.optim, wf_pipeline_step(t.pipe, t.tape, few, marks)));
            WF_EXPECT_OK(wf_tape_reset(t.tape));
        }
        note_values(&t, to);
        wf_captured_free(c);
        wf_tensor_free(few);
        wf_tensor_free(marks);
        training_free(&t);
    }
    expect_equal(&w, &h, &expected);
}

/* Evaluation between two replays: the output is that of the values that the replays have left. */
static void evaluates(void)
{
    static double got[2][ROWS * CLASSES];
    const way w = {.communicator = test_communicator("flat"), .data = 1};
    for (int captured = 0; captured < 2; captured++) {
        training t = training_new(&w);
        wf_captured *c = captured && !staged() ? wf_capture(on.ctx, step, &t) : NULL;
        wf_tape *tape = wf_tape_new(on.ctx);
        WF_EXPECT_OK(wf_tape_set_mode(tape, WF_EVAL));
        for (int i = 0; i < RUNS; i++) {
            next_batch(&t, i);
            WF_EXPECT_OK(c ? wf_captured_run(c) : step(&t));
            wf_var *y = wf_pipeline_apply(t.pipe, tape, t.x);
            WF_EXPECT(y, "%s", wf_error_trail());
            if (y && wf_mesh_rank(on.mesh, WF_AXIS_STAGE) == wf_mesh_size(on.mesh, WF_AXIS_STAGE) - 1)
                values_get(wf_value(y), got[captured]);
            WF_EXPECT_OK(wf_tape_reset(tape));
        }
        wf_tape_free(tape);
        wf_captured_free(c);
        training_free(&t);
    }
    WF_EXPECT(memcmp(got[0], got[1], sizeof *got) == 0, "an evaluation between replays has other bits");
}

static int run(int argc, char **argv)
{
    setenv("WEFT_DETERMINISTIC", "1", 0);
    return test_main(argc, argv,
                     (test_case[]){{"schedules", schedules},
                                   {"recomputes", recomputes},
                                   {"defers", defers},
                                   {"defers_shared", defers_shared},
                                   {"with_data", with_data},
                                   {"empty_chunks", empty_chunks},
                                   {"refused", refused},
                                   {"chain_refused", chain_refused},
                                   {"other_shapes", other_shapes},
                                   {"evaluates", evaluates},
                                   {0}});
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, run);
}
