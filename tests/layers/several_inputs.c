/* Layers of several inputs: values and gradients against central differences, in every way in which they are applied
 * (alone, recomputed, in a chain, over a cut image, in a pipeline, under a plan), and what is refused. */
#include "layers/parallelize.h"
#include "layers/recompute.h"
#include "layers/redistribute.h"
#include "layers/skip.h"
#include "optim/planner_author.h"
#include "tests/layers/pipeline_fixture.h"

enum { WIDE = 6, MORE = 3 };

static void open_ref(int stages, int height)
{
    on.comm =
        test_comm_open("flat", (wf_ctx_opts){.device = test_device("ref"), .dtype = WF_F64, .threads = 1, .seed = 3});
    on.ctx = wf_comm_ctx(on.comm);
    on.rank = wf_comm_rank(on.comm);
    on.mesh = wf_mesh_open(on.comm, (wf_mesh_opts){.stage = stages, .height = height});
    WF_EXPECT(on.mesh, "%s", wf_error_trail());
}

static wf_tensor *numbers(wf_shape shape, uint64_t seed)
{
    const int64_t n = wf_shape_count(shape);
    double *host = malloc((size_t)(n + 1) * sizeof *host);
    test_rng rng = {seed};
    for (int64_t i = 0; i < n; i++)
        host[i] = test_uniform(&rng, -1, 1);
    wf_tensor *t = wf_tensor_new(on.ctx, WF_F64, shape);
    values_set(t, host);
    free(host);
    return t;
}

static void expect_error(const wf_var *y, wf_status code, const char *what)
{
    WF_EXPECT(!y && wf_error_code() == code && strstr(wf_error_message(), what), "\"%s\" expected: %s", what,
              wf_error_message());
    wf_error_clear();
}

/* --- a layer of one to three inputs ---------------------------------------------------------------------------------
 */

/* Each input counts in its own way, and the layer draws. */
static wf_var *mix(wf_layer *self, void *user, wf_var *const *x, int n)
{
    wf_var *y = wf_tanh(wf_apply(wf_layer_child(self, "in"), x[0]));
    if (n > 1)
        y = wf_mul(y, wf_sigmoid(x[1]));
    if (n > 2)
        y = wf_add(y, wf_mul(x[2], wf_scale(x[2], 0.5)));
    return wf_apply(wf_layer_child(self, "out"), wf_dropout(y, 0.25));
}

static wf_layer *mixer(void)
{
    wf_layer *layer = wf_module_n(on.ctx, 1, 3, mix, NULL);
    wf_module_add(layer, "in", dense(WIDE, WIDE));
    wf_module_add(layer, "out", dense(WIDE, WIDE));
    return layer;
}

static double objective(wf_tape *tape, wf_layer *layer, wf_tensor *const *x, int n, wf_var **leaf, wf_var **loss)
{
    WF_EXPECT_OK(wf_tape_reset(tape));
    WF_EXPECT_OK(wf_tape_set_iteration(tape, 0));
    for (int i = 0; i < n; i++)
        leaf[i] = wf_leaf(tape, x[i]);
    wf_var *y = wf_apply_n(layer, leaf, n);
    *loss = wf_mean(wf_mul(y, wf_mul(y, y)));
    WF_EXPECT(*loss, "%s", wf_error_message());
    return wf_item(*loss);
}

static void differences(wf_layer *layer, int n)
{
    enum { ROWS = 4, ALL = ROWS * WIDE };
    wf_tape *tape = wf_tape_new(on.ctx);
    wf_tensor *x[MORE];
    wf_var *leaf[MORE], *loss;
    double gradient[MORE][ALL], host[ALL];
    for (int i = 0; i < n; i++)
        x[i] = numbers(WF_SHAPE(ROWS, WIDE), 10 + (uint64_t)i);
    (void)objective(tape, layer, x, n, leaf, &loss);
    WF_EXPECT_OK(wf_backward(loss));
    for (int i = 0; i < n; i++)
        values_get(wf_grad(leaf[i]), gradient[i]);
    for (int i = 0; i < n; i++) {
        values_get(x[i], host);
        for (int k = 0; k < ALL; k++) {
            const double old = host[k], h = 1e-5;
            host[k] = old + h;
            values_set(x[i], host);
            const double up = objective(tape, layer, x, n, leaf, &loss);
            host[k] = old - h;
            values_set(x[i], host);
            const double numeric = (up - objective(tape, layer, x, n, leaf, &loss)) / (2 * h);
            host[k] = old;
            WF_EXPECT(fabs(numeric - gradient[i][k]) < 1e-9, "%d inputs: d/dx%d[%d] is %.12g, numeric %.12g", n, i, k,
                      gradient[i][k], numeric);
        }
        values_set(x[i], host);
    }
    for (int i = 0; i < n; i++)
        wf_tensor_free(x[i]);
    wf_tape_free(tape);
}

static void gradients(void)
{
    open_ref(1, 1);
    for (int n = 1; n <= MORE; n++)
        for (int again = 0; again < 2; again++) {
            wf_layer *layer = wf_layer_named(mixer(), "mix");
            differences(again ? wf_recompute(layer) : layer, n);
            wf_layer_free(layer);
        }
    close_on();
}

/* Batches without samples give empty outputs, and gradients of zero. */
static void empty(void)
{
    open_ref(1, 1);
    wf_layer *layer = mixer();
    wf_tape *tape = wf_tape_new(on.ctx);
    wf_tensor *none = wf_tensor_new(on.ctx, WF_F64, WF_SHAPE(0, WIDE));
    wf_var *x = wf_leaf(tape, none), *y = wf_apply_n(layer, WF_INPUTS(x, x, x));
    WF_EXPECT(y && wf_var_shape(y).dim[0] == 0, "%s", wf_error_message());
    WF_EXPECT_OK(wf_backward(wf_mean(y)));
    double db[WIDE] = {1};
    values_get(wf_param_grad(wf_layer_param(layer, "in/b")), db);
    WF_EXPECT(db[0] == 0, "the gradient of nothing is %g", db[0]);
    wf_tensor_free(none);
    wf_tape_free(tape);
    wf_layer_free(layer);
    close_on();
}

/* --- what is refused ------------------------------------------------------------------------------------------------
 */

static wf_var *nothing(wf_layer *self, void *user, wf_var *const *x, int n)
{
    return NULL;
}

static void counts(void)
{
    open_ref(1, 1);
    wf_tape *tape = wf_tape_new(on.ctx), *other = wf_tape_new(on.ctx);
    wf_tensor *t = numbers(WF_SHAPE(2, WIDE), 1);
    wf_layer *linear = dense(WIDE, WIDE), *layer = mixer(), *pair = wf_module_n(on.ctx, 2, 2, mix, NULL);
    wf_layer *many = wf_module_n(on.ctx, 2, 0, nothing, NULL), *chain = wf_sequential(on.ctx, 0, NULL);
    wf_var *x = wf_input(tape, t), *far = wf_input(other, t);
    expect_error(wf_apply_n(linear, WF_INPUTS(x, x)), WF_ERR_ARGUMENT, "linear \"\" takes 1 input, not 2");
    expect_error(wf_apply_n(layer, WF_INPUTS(x, x, x, x)), WF_ERR_ARGUMENT, "takes 1 to 3 inputs, not 4");
    expect_error(wf_apply(pair, x), WF_ERR_ARGUMENT, "module \"\" takes 2 inputs, not 1");
    expect_error(wf_apply(many, x), WF_ERR_ARGUMENT, "takes 2 inputs or more, not 1");
    expect_error(wf_apply_n(layer, NULL, 0), WF_ERR_ARGUMENT, "of 0 inputs");
    expect_error(wf_apply_n(layer, WF_INPUTS(x, far)), WF_ERR_ARGUMENT, "inputs 0 and 1 belong to two tapes");
    expect_error(wf_apply_n(chain, WF_INPUTS(x, x)), WF_ERR_ARGUMENT, "has no layer that could take them");
    expect_error(wf_apply_n(NULL, WF_INPUTS(x, x)), WF_ERR_ARGUMENT, "NULL");
    WF_EXPECT(!wf_apply_n(layer, WF_INPUTS(x, NULL)) && wf_error_pending() == WF_OK, "NULL is no error: %s",
              wf_error_message());
    WF_EXPECT(!wf_module_n(on.ctx, 0, 1, mix, NULL) && strstr(wf_error_message(), "of 0 to 1 inputs"), "%s",
              wf_error_message());
    wf_error_clear();
    WF_EXPECT(!wf_module_n(on.ctx, 3, 2, mix, NULL) && !wf_module_n(on.ctx, 1, 1, NULL, NULL), "a module");
    wf_error_clear();
    wf_tensor_free(t);
    wf_tape_free(tape);
    wf_tape_free(other);
    wf_layer *const layers[] = {linear, layer, pair, many, chain};
    for (int i = 0; i < 5; i++)
        wf_layer_free(layers[i]);
    close_on();
}

/* --- chains ---------------------------------------------------------------------------------------------------------
 */

/* A chain of three inputs: the second is taken by one layer, the third with it and by none else. */
static wf_layer *chain_new(bool again)
{
    wf_layer *taken = wf_skip_apply(mixer(), WF_NAMES("scale", "shift"));
    wf_layer *chain =
        wf_sequential(on.ctx, WF_LAYERS(wf_skip_inputs(on.ctx, WF_NAMES("scale", "late", "shift")), dense(WIDE, WIDE),
                                        wf_skip_stash(on.ctx, "here"), again ? wf_recompute(taken) : taken,
                                        dense(WIDE, WIDE), wf_skip_apply(mixer(), WF_NAMES("here")),
                                        wf_skip_pop(on.ctx, "late", wf_mul), dense(WIDE, CLASSES)));
    return wf_layer_named(chain, "net");
}

/* Applies the layers of that chain without names. */
static wf_var *by_hand(wf_layer *net, wf_var *const *x)
{
    wf_var *h = wf_apply(wf_layer_child(net, "1"), x[0]);
    wf_var *y = wf_apply_n(wf_layer_child(wf_layer_child(net, "3"), "layer"), WF_INPUTS(h, x[1], x[3]));
    y = wf_apply(wf_layer_child(net, "4"), y);
    y = wf_apply_n(wf_layer_child(wf_layer_child(net, "5"), "layer"), WF_INPUTS(y, h));
    return wf_apply(wf_layer_child(net, "7"), wf_mul(y, x[2]));
}

static void chains(void)
{
    enum { ROWS = 5, INPUTS = 4 };
    open_ref(1, 1);
    wf_tape *tape = wf_tape_new(on.ctx);
    double value[2], gradient[2][INPUTS][ROWS * WIDE];
    for (int way = 0; way < 2; way++) {
        wf_layer *net = chain_new(way);
        wf_var *x[INPUTS];
        WF_EXPECT_OK(wf_tape_set_iteration(tape, 0));
        for (int i = 0; i < INPUTS; i++) {
            wf_tensor *t = numbers(WF_SHAPE(ROWS, WIDE), 20 + (uint64_t)i);
            x[i] = wf_leaf(tape, t);
            wf_tensor_free(t);
        }
        wf_var *y = way ? by_hand(net, x) : wf_apply_n(net, x, INPUTS), *loss = wf_mean(wf_mul(y, y));
        WF_EXPECT_OK(wf_backward(loss));
        value[way] = wf_item(loss);
        for (int i = 0; i < INPUTS; i++)
            values_get(wf_grad(x[i]), gradient[way][i]);
        WF_EXPECT_OK(wf_tape_reset(tape));
        wf_layer_free(net);
    }
    WF_EXPECT(value[0] == value[1], "the chain gives %.17g, its layers %.17g", value[0], value[1]);
    WF_EXPECT(memcmp(gradient[0], gradient[1], sizeof gradient[0]) == 0, "gradients of the inputs differ");
    wf_tape_free(tape);
    close_on();
}

static void wrong_chains(void)
{
    open_ref(1, 1);
    wf_ctx *ctx = on.ctx;
    wf_tape *tape = wf_tape_new(ctx);
    wf_tensor *t = numbers(WF_SHAPE(2, WIDE), 1);
    wf_var *x = wf_input(tape, t);
    wf_layer *net = chain_new(false);
    expect_error(wf_apply_n(net, WF_INPUTS(x, x)), WF_ERR_ARGUMENT, "skip_inputs \"net/0\" takes 4 inputs, not 2");
    expect_error(wf_apply(wf_layer_child(net, "3"), x), WF_ERR_STATE, "nothing is kept under \"scale\"");
    wf_layer *alone = wf_sequential(ctx, WF_LAYERS(wf_skip_apply(mixer(), WF_NAMES("a"))));
    expect_error(wf_apply(alone, x), WF_ERR_STATE, "no layer of its chains is a wf_skip_stash of \"a\"");
    WF_EXPECT(!wf_skip_apply(mixer(), 0, NULL) && !wf_skip_inputs(ctx, WF_NAMES("")), "an end without a name");
    wf_error_clear();
    wf_layer_free(net);
    wf_layer_free(alone);
    wf_tensor_free(t);
    wf_tape_free(tape);
    close_on();
}

/* --- over a cut image -----------------------------------------------------------------------------------------------
 */

static wf_var *blend(wf_layer *self, void *user, wf_var *const *x, int n)
{
    wf_var *a = wf_apply(wf_layer_child(self, "a"), x[0]);
    wf_var *b = wf_apply(wf_layer_child(self, "b"), x[1]);
    return wf_apply_n(wf_layer_child(self, "norm"), WF_INPUTS(a, b));
}

static wf_layer *blender(void)
{
    const wf_conv_opts conv = {.in = 2, .out = 4, .kernel = 3, .pad = 1};
    wf_layer *layer = wf_layer_named(wf_module_n(on.ctx, 2, 2, blend, NULL), "blend");
    wf_module_add(layer, "a", wf_conv2d(on.ctx, conv));
    wf_module_add(layer, "b", wf_conv2d(on.ctx, conv));
    wf_module_add(layer, "norm", wf_batchnorm(on.ctx, (wf_batchnorm_opts){.channels = 4, .act = WF_ACT_RELU}));
    return layer;
}

/* The loss; gradients of the filters, over all ranks. */
static double train_image(wf_layer *layer, const wf_mesh *mesh, double dw[72])
{
    wf_tape *tape = wf_tape_new(on.ctx);
    wf_var *x[2];
    for (int i = 0; i < 2; i++) {
        wf_tensor *whole = numbers(WF_SHAPE(3, 2, 7, 5), 30 + (uint64_t)i), *part = whole;
        wf_layout layout;
        if (mesh) {
            WF_EXPECT_OK(wf_mesh_layout_activation(mesh, wf_tensor_shape(whole), &layout));
            part = wf_tensor_redistribute(whole, layout);
            wf_tensor_free(whole);
        }
        x[i] = wf_input(tape, part);
        wf_tensor_free(part);
    }
    wf_var *y = wf_apply_n(layer, x, 2), *loss = wf_mean(wf_mul(y, wf_tanh(y)));
    WF_EXPECT(loss, "%s", wf_error_message());
    WF_EXPECT_OK(wf_backward(loss));
    double value = wf_item(loss);
    values_get(wf_param_grad(wf_layer_param(layer, "b/W")), dw);
    if (mesh) {
        WF_EXPECT_OK(wf_allreduce_f64(on.comm, &value, 1, WF_SUM));
        WF_EXPECT_OK(wf_allreduce_f64(on.comm, dw, 72, WF_SUM));
    }
    WF_EXPECT_OK(wf_tape_reset(tape));
    wf_tape_free(tape);
    return value;
}

static void parallel(void)
{
    const int size = world_size();
    for (int again = 0; again < 2; again++) {
        open_ref(1, size);
        double dw[2][72];
        wf_layer *serial = blender(), *cut = blender();
        WF_EXPECT_OK(wf_parallelize(cut, on.mesh, WF_PARALLEL_SPATIAL | WF_PARALLEL_SYNC_BN));
        const double expected = train_image(serial, NULL, dw[0]);
        const double got = train_image(again ? wf_recompute(cut) : cut, on.mesh, dw[1]);
        WF_EXPECT(fabs(got - expected) < 1e-13 * size, "the loss is %.17g on %d ranks, %.17g on one", got, size,
                  expected);
        WF_EXPECT(test_distance(72, dw[0], dw[1]) < 1e-12, "the gradient is off by %g",
                  test_distance(72, dw[0], dw[1]));
        wf_layer_free(serial);
        wf_layer_free(cut);
        close_on();
    }
}

/* A rank that gives another number of inputs, or none at its second place, tells the others, which wait. */
static void told(void)
{
    const int size = world_size();
    for (int way = 0; way < 2 && size > 1; way++) {
        open_ref(1, size);
        wf_layer *layer = wf_layer_child(blender(), "norm");
        wf_layer *whole = layer->parent;
        WF_EXPECT_OK(wf_to_sync_batchnorm(whole, on.comm));
        wf_tape *tape = wf_tape_new(on.ctx);
        wf_tensor *t = numbers(WF_SHAPE(2, 4), 1);
        wf_var *x = wf_leaf(tape, t);
        WF_EXPECT_OK(wf_barrier(on.comm));
        wf_var *y = NULL;
        if (on.rank > 0)
            y = wf_apply_n(layer, WF_INPUTS(x, x));
        else if (way == 0)
            y = wf_apply_n(layer, WF_INPUTS(x, x, x));
        else
            y = wf_apply_n(layer, WF_INPUTS(x, NULL));
        WF_EXPECT(!y && strstr(wf_error_message(), way ? "its input 1 is NULL" : "takes 1 to 2 inputs, not 3"),
                  "rank %d: %s", on.rank, wf_error_message());
        wf_error_clear();
        wf_tensor_free(t);
        wf_tape_free(tape);
        wf_layer_free(whole);
        wf_mesh_close(on.mesh);
        (void)wf_comm_close(on.comm);
        wf_error_clear();
    }
}

/* --- pipelines ------------------------------------------------------------------------------------------------------
 */

enum { SAMPLES = 7, PIPE_INPUTS = 4 };

typedef struct trained {
    double loss;
    int n;
    char path[32][64];
    double gradient[32][WIDE * WIDE];
} trained;

static void take_gradients(wf_layer *model, trained *t)
{
    int64_t n = 0;
    wf_param *const *param;
    WF_EXPECT_OK(wf_layer_params(model, &n, &param));
    for (int64_t i = 0; i < n; i++) {
        snprintf(t->path[t->n], sizeof t->path[0], "%s", wf_param_path(param[i]));
        values_get(wf_param_grad(param[i]), t->gradient[t->n++]);
    }
}

/* In a loop over the chunks on one tape, whose draws a pipeline repeats. */
static void train_serial(wf_tensor *const *x, const wf_tensor *labels, int chunks, trained *t)
{
    wf_layer *net = chain_new(false);
    wf_tape *tape = wf_tape_new(on.ctx);
    t->loss = 0;
    for (int c = 0; c < chunks; c++) {
        int64_t lo, hi;
        wf_block(SAMPLES, chunks, c, &lo, &hi);
        wf_var *in[PIPE_INPUTS];
        for (int i = 0; i < PIPE_INPUTS; i++) {
            wf_tensor *part = wf_tensor_view(x[i], (wf_box){.rank = 2, .lo = {lo, 0}, .hi = {hi, WIDE}});
            in[i] = wf_input(tape, part);
            wf_tensor_free(part);
        }
        wf_tensor *wanted = wf_tensor_view(labels, (wf_box){.rank = 1, .lo = {lo}, .hi = {hi}});
        wf_var *one = wf_softmax_cross_entropy(wf_apply_n(net, in, PIPE_INPUTS), wanted, (wf_label_opts){0});
        wf_tensor_free(wanted);
        const double weight = (double)(hi - lo) / SAMPLES;
        t->loss += weight > 0 ? weight * wf_item(one) : 0;
        if (weight > 0)
            WF_EXPECT_OK(wf_backward_run(one, NULL, &(wf_backward_opts){.seed = weight, .add = c > 0}));
    }
    t->n = 0;
    take_gradients(net, t);
    WF_EXPECT_OK(wf_tape_reset(tape));
    wf_tape_free(tape);
    wf_layer_free(net);
}

static void expect_stage(const trained *serial, wf_pipeline *pipe, double loss, const char *what)
{
    trained own = {.n = 0};
    take_gradients(wf_pipeline_model(pipe), &own);
    WF_EXPECT(fabs(loss - serial->loss) < 1e-13, "%s: the loss is %.17g, not %.17g", what, loss, serial->loss);
    for (int i = 0; i < own.n; i++)
        for (int k = 0; k < serial->n; k++)
            if (strcmp(own.path[i], serial->path[k]) == 0) {
                const double off = test_distance(WIDE, own.gradient[i], serial->gradient[k]);
                WF_EXPECT(off < 1e-13, "%s: the gradient of %s is off by %g", what, own.path[i], off);
            }
}

/* The last stage's output in evaluation is that of the whole chain, to the bit. */
static void expect_output(wf_pipeline *pipe, wf_tape *tape, wf_tensor *const *x, const char *what)
{
    WF_EXPECT_OK(wf_tape_set_mode(tape, WF_EVAL));
    wf_layer *net = chain_new(false);
    wf_var *in[PIPE_INPUTS];
    for (int k = 0; k < PIPE_INPUTS; k++)
        in[k] = wf_input(tape, x[k]);
    wf_var *expected = wf_apply_n(net, in, PIPE_INPUTS);
    wf_var *y = wf_pipeline_apply_n(pipe, tape, (const wf_tensor *const *)x, PIPE_INPUTS);
    if (on.rank == world_size() - 1 && y) {
        double got[SAMPLES * CLASSES], want[SAMPLES * CLASSES];
        values_get(wf_value(y), got);
        values_get(wf_value(expected), want);
        WF_EXPECT(test_distance(SAMPLES * CLASSES, got, want) == 0, "%s: the output is off", what);
    }
    WF_EXPECT(y, "%s: %s", what, wf_error_message());
    wf_layer_free(net);
}

static void pipelines(void)
{
    const int size = world_size();
    static trained serial;
    for (int i = 0; i < 6; i++) {
        const int chunks = i % 2 ? 3 : 9;
        char what[64];
        snprintf(what, sizeof what, "pipeline %d of %d stages", i, size);
        open_ref(size, 1);
        wf_tensor *x[PIPE_INPUTS], *few[PIPE_INPUTS];
        for (int k = 0; k < PIPE_INPUTS; k++) {
            x[k] = numbers(WF_SHAPE(SAMPLES, WIDE), 50 + (uint64_t)k);
            few[k] = wf_tensor_view(x[k], (wf_box){.rank = 2, .hi = {2, WIDE}});
        }
        const int64_t label[SAMPLES] = {0, 3, 1, 2, 0, 1, 2};
        wf_tensor *labels = wf_tensor_from_host(on.ctx, WF_I64, WF_SHAPE(SAMPLES), label);
        train_serial(x, labels, chunks, &serial);
        wf_pipeline_opts opts = {.loss = wf_mean_cross_entropy,
                                 .chunks = chunks,
                                 .schedule =
                                     i % 3 == 2 && size <= 3 ? WF_PIPELINE_INTERLEAVED : (wf_pipeline_kind)(i % 2),
                                 .recompute = (wf_pipeline_recompute)(i % 3)};
        if (i >= 3) { /* cut by time, which is measured on a sample of each input */
            opts.sample = few[0];
            opts.n_more_samples = PIPE_INPUTS - 1;
            opts.more_samples = (const wf_tensor *const *)few + 1;
            opts.by_memory = i == 4;
        }
        wf_pipeline *pipe = wf_pipeline_new(on.mesh, chain_new(i % 2), opts);
        WF_EXPECT(pipe, "%s: %s", what, wf_error_trail());
        wf_tape *tape = wf_tape_new(on.ctx);
        const bool first = on.rank == 0;
        wf_var *loss =
            wf_pipeline_step_n(pipe, tape, first ? (const wf_tensor *const *)x : NULL, first ? PIPE_INPUTS : 0, labels);
        WF_EXPECT(loss, "%s: %s", what, wf_error_message());
        WF_EXPECT_OK(wf_backward(loss));
        expect_stage(&serial, pipe, wf_item(loss), what);
        WF_EXPECT_OK(wf_tape_reset(tape));
        expect_output(pipe, tape, x, what);
        for (int k = 0; k < PIPE_INPUTS; k++) {
            wf_tensor_free(x[k]);
            wf_tensor_free(few[k]);
        }
        wf_tensor_free(labels);
        wf_tape_free(tape);
        wf_pipeline_free(pipe);
        close_on();
    }
}

/* Every rank is told of what the first stage got. */
static void wrong_steps(void)
{
    static const char *const why[] = {"takes 4 inputs, not 2", "input 2 has 3 samples, and x has 7", "input 1 NULL",
                                      "with 0 inputs"};
    const int size = world_size();
    for (int i = 0; i < 4 && size <= 3; i++) {
        open_ref(size, 1);
        wf_pipeline *pipe =
            wf_pipeline_new(on.mesh, chain_new(false), (wf_pipeline_opts){.loss = wf_mean_cross_entropy});
        wf_tape *tape = wf_tape_new(on.ctx);
        wf_tensor *x = numbers(WF_SHAPE(SAMPLES, WIDE), 1), *few = numbers(WF_SHAPE(3, WIDE), 2);
        const int64_t label[SAMPLES] = {0};
        wf_tensor *labels = wf_tensor_from_host(on.ctx, WF_I64, WF_SHAPE(SAMPLES), label);
        const wf_tensor *const list[4][PIPE_INPUTS] = {{x, x, x, x}, {x, x, few, x}, {x, NULL, x, x}, {x, x, x, x}};
        static const int number[] = {2, PIPE_INPUTS, PIPE_INPUTS, 0};
        WF_EXPECT(!wf_pipeline_step_n(pipe, tape, list[i], number[i], labels) && strstr(wf_error_message(), why[i]),
                  "rank %d: \"%s\" expected: %s", on.rank, why[i], wf_error_message());
        wf_error_clear();
        wf_tensor_free(x);
        wf_tensor_free(few);
        wf_tensor_free(labels);
        wf_tape_free(tape);
        wf_pipeline_free(pipe);
        wf_mesh_close(on.mesh);
        (void)wf_comm_close(on.comm);
        wf_error_clear();
    }
}

/* A stash of inputs in the middle of a chain. */
static void wrong_place(void)
{
    if (world_size() != 2)
        return;
    open_ref(2, 1);
    wf_layer *model = wf_sequential(on.ctx, WF_LAYERS(dense(WIDE, WIDE), wf_skip_inputs(on.ctx, WF_NAMES("a")),
                                                      wf_skip_pop(on.ctx, "a", NULL), dense(WIDE, WIDE)));
    WF_EXPECT(!wf_pipeline_new(on.mesh, model, (wf_pipeline_opts){.loss = wf_mean_cross_entropy}) &&
                  strstr(wf_error_message(), "is layer 1 of the pipeline's; should be the first one"),
              "%s", wf_error_message());
    wf_error_clear();
    wf_mesh_close(on.mesh);
    (void)wf_comm_close(on.comm);
    wf_error_clear();
}

/* --- plans ----------------------------------------------------------------------------------------------------------
 */

static void plans(void)
{
    open_ref(1, 1);
    wf_layer *net = chain_new(false);
    const wf_planner_input inputs[PIPE_INPUTS] = {{.shape = WF_SHAPE(4, WIDE)},
                                                  {.shape = WF_SHAPE(4, WIDE)},
                                                  {.shape = WF_SHAPE(4, WIDE)},
                                                  {.shape = WF_SHAPE(4, WIDE)}};
    wf_planner_model m;
    WF_EXPECT_OK(wf_planner_trace_n(net, PIPE_INPUTS, inputs, &m));
    int linears = 0;
    for (int i = 0; i < m.n_leaves; i++)
        linears += m.leaf[i].layer && m.leaf[i].params == WIDE * WIDE + WIDE;
    WF_EXPECT(m.n_units == 8 && linears == 6, "%d units, and %d layers of %d", m.n_units, linears, WIDE * WIDE + WIDE);
    wf_planner_model_clear(&m);
    WF_EXPECT_ERROR(WF_ERR_ARGUMENT, wf_planner_trace_n(net, 0, NULL, &m));
    const wf_planner_input uneven[2] = {{.shape = WF_SHAPE(4, WIDE)}, {.shape = WF_SHAPE(3, WIDE)}};
    WF_EXPECT_ERROR(WF_ERR_ARGUMENT, wf_planner_trace_n(net, 2, uneven, &m));
    /* Whole numbers stay below their limit, and all of them come. */
    const wf_planner_input words = {.shape = WF_SHAPE(2000, 1), .below = 3};
    m = (wf_planner_model){.ctx = on.ctx, .n_inputs = 1, .inputs = (wf_planner_input *)&words};
    wf_tape *tape = wf_tape_new(on.ctx);
    wf_tensor **x = wf_planner_noise(&m, tape, 2000);
    int64_t host[2000], seen[3] = {0};
    WF_EXPECT_OK(wf_tensor_export(x[0], host, sizeof host));
    for (int i = 0; i < 2000; i++)
        seen[host[i] >= 0 && host[i] < 3 ? host[i] : 0] += host[i] >= 0 && host[i] < 3 ? 1 : -10000;
    WF_EXPECT(seen[0] > 300 && seen[1] > 300 && seen[2] > 100, "%lld, %lld, %lld", (long long)seen[0],
              (long long)seen[1], (long long)seen[2]);
    wf_planner_noise_free(&m, x);
    WF_EXPECT_OK(wf_tape_reset(tape));
    wf_tape_free(tape);
    wf_layer_free(net);
    close_on();
}

static int run(int argc, char **argv)
{
    return test_main(argc, argv,
                     (test_case[]){{"gradients", gradients},
                                   {"empty", empty},
                                   {"counts", counts},
                                   {"chains", chains},
                                   {"wrong_chains", wrong_chains},
                                   {"parallel", parallel},
                                   {"told", told},
                                   {"pipelines", pipelines},
                                   {"wrong_steps", wrong_steps},
                                   {"wrong_place", wrong_place},
                                   {"plans", plans},
                                   {0}});
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, run);
}
