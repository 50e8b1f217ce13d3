/* Pipelines against the serial program: the same bits, evaluation, running statistics, gradients; errors. Random
 * models, meshes and optimizers are in random_pipelines.c, cuts and what stages compute and hold in pipeline_cuts.c.
 *
 * equiv_pipeline every: every schedule with every number of chunks and samples, and every recomputation. */
#include "tests/layers/pipeline_fixture.h"

enum { STEPS = 5 };

typedef struct sample {
    wf_dtype dtype;
    const char *device;
    wf_pipeline_kind kind;
    int stages, data, parts, chunks, samples[2]; /* of each place along data */
    bool draws, momentum;
    wf_pipeline_recompute recompute;
    double tolerance;
} sample;

static const char *text_of(const sample *s)
{
    static char text[160];
    snprintf(text, sizeof text,
             "%s %s, kind %d, %d stages x data %d, %d parts, %d chunks of %d and %d samples%s, recompute %d", s->device,
             wf_dtype_name(s->dtype), (int)s->kind, s->stages, s->data, s->parts, s->chunks, s->samples[0],
             s->samples[1], s->draws ? ", draws" : "", (int)s->recompute);
    return text;
}

static wf_optim *optim_new(wf_layer *model, const sample *s)
{
    return wf_sgd(model, (wf_sgd_opts){.lr = 0.1, .momentum = s->momentum ? 0.9 : 0});
}

/* --- the serial program ---------------------------------------------------------------------------------------------
 */

static wf_var *serial_loss(wf_layer *model, wf_tape *tape, const batch *b, wf_dtype dtype, int64_t lo, int64_t hi)
{
    wf_tensor *x = x_of(b, dtype, lo, hi), *labels = labels_of(b, lo, hi);
    wf_var *loss = wf_softmax_cross_entropy(wf_apply(model, wf_input(tape, x)), labels, (wf_label_opts){0});
    WF_EXPECT(loss, "%s", wf_error_trail());
    wf_tensor_free(x);
    wf_tensor_free(labels);
    return loss;
}

/* One step: of all samples at once, or of the chunks of each place along data. */
static double serial_step(wf_optim *optim, wf_tape *const *tape, const batch *b, const sample *s, bool whole)
{
    wf_layer *model = wf_optim_model(optim);
    wf_var *loss = NULL;
    const int chunks = whole ? 1 : s->chunks, places = whole ? 1 : s->data;
    int64_t first = 0;
    for (int r = 0; r < places; r++) {
        const int64_t n = whole ? b->n : s->samples[r];
        for (int c = 0; c < chunks; c++) {
            int64_t lo, hi;
            wf_block(n, chunks, c, &lo, &hi);
            loss = serial_loss(model, tape[r], b, s->dtype, first + lo, first + hi);
            if (r == places - 1 && c == chunks - 1)
                WF_EXPECT_OK(wf_optim_step(optim, loss));
            else
                WF_EXPECT_OK(wf_optim_accumulate(optim, loss));
        }
        first += n;
    }
    const double value = wf_item(loss);
    for (int r = 0; r < 2; r++)
        WF_EXPECT_OK(wf_tape_reset(tape[r]));
    return value;
}

/* --- a sample -------------------------------------------------------------------------------------------------------
 */

static void compare(const sample *s, int step, wf_layer *model, wf_layer *serial, double tolerance)
{
    wf_param *const *params;
    int64_t n = 0;
    WF_EXPECT_OK(wf_layer_params(model, &n, &params));
    for (int64_t i = 0; i < n; i++) {
        wf_param *other = wf_layer_param(serial, wf_param_path(params[i]) + strlen("net/"));
        double a[128], b[128];
        WF_EXPECT(other, "%s: %s", text_of(s), wf_error_message());
        if (!other)
            return;
        values_get(wf_param_value(params[i]), a);
        values_get(wf_param_value(other), b);
        const double distance = test_distance(wf_shape_count(wf_param_shape(other)), a, b);
        WF_EXPECT(distance <= tolerance, "%s, step %d: %s is off by %g", text_of(s), step, wf_param_path(params[i]),
                  distance);
    }
}

static double pipeline_step(wf_pipeline *pipe, wf_optim *optim, wf_tape *tape, const batch *b, const sample *s)
{
    const int place = wf_mesh_rank(on.mesh, WF_AXIS_DATA), stage = wf_mesh_rank(on.mesh, WF_AXIS_STAGE);
    const int64_t lo = place ? s->samples[0] : 0, hi = lo + s->samples[place];
    wf_tensor *x = x_of(b, s->dtype, lo, hi), *labels = labels_of(b, lo, hi);
    wf_var *loss = wf_pipeline_step(pipe, tape, stage == 0 ? x : NULL, stage == s->stages - 1 ? labels : NULL);
    /* The optimizer sums the loss with the gradients, times its samples and in their type, which rounds it once more.
     */
    const double exact = wf_item(loss);
    WF_EXPECT_OK(wf_optim_step(optim, loss));
    const double value = s->tolerance > 0 ? wf_item(loss) : exact;
    wf_tensor_free(x);
    wf_tensor_free(labels);
    WF_EXPECT_OK(wf_tape_reset(tape));
    return value;
}

static wf_pipeline *pipeline_new(const sample *s)
{
    return wf_pipeline_new(on.mesh, model_new(s->draws, false),
                           (wf_pipeline_opts){.loss = wf_mean_cross_entropy,
                                              .chunks = s->chunks,
                                              .schedule = s->kind,
                                              .recompute = s->recompute,
                                              .parts = s->kind == WF_PIPELINE_INTERLEAVED ? s->parts : 0});
}

/* What is drawn belongs to chunks. */
static void run_steps(const sample *s, test_rng *rng)
{
    wf_layer *serial = model_new(s->draws, false);
    wf_optim *local = optim_new(serial, s);
    wf_pipeline *pipe = pipeline_new(s);
    WF_EXPECT(pipe, "%s: %s", text_of(s), wf_error_trail());
    wf_optim *optim = wf_mesh_multi_node(on.mesh, optim_new(wf_pipeline_model(pipe), s), (wf_multi_node_opts){0});
    WF_EXPECT(optim, "%s: %s", text_of(s), wf_error_trail());
    wf_tape *tape = wf_tape_new(on.ctx), *own[2] = {wf_tape_new(on.ctx), wf_tape_new(on.ctx)};
    for (int step = 0; step < STEPS && optim; step++) {
        const batch b = batch_of(rng, s->samples[0] + (s->data > 1 ? s->samples[1] : 0));
        const double expected = serial_step(local, own, &b, s, !s->draws);
        const double loss = pipeline_step(pipe, optim, tape, &b, s);
        WF_EXPECT(isfinite(expected) && test_distance(1, &loss, &expected) <= s->tolerance,
                  "%s, step %d: a loss of %.17g, not %.17g", text_of(s), step, loss, expected);
        compare(s, step, wf_pipeline_model(pipe), serial, s->tolerance);
    }
    wf_tape_free(tape);
    wf_tape_free(own[0]);
    wf_tape_free(own[1]);
    wf_optim_free(optim);
    wf_optim_free(local);
    wf_pipeline_free(pipe);
    wf_layer_free(serial);
}

static void run_sample(const sample *s, test_rng *rng)
{
    if (open_on(s->device, s->dtype, s->stages))
        run_steps(s, rng);
    close_on();
}

/* Returns true if the world divides into this many stages, and into at most two places along data. */
static bool fits(int size, int stages)
{
    return size % stages == 0 && size / stages <= 2 && stages <= 4;
}

static void every(void)
{
    const int size = world_size();
    test_rng rng = {23};
    for (int stages = 1; stages <= 4; stages++)
        for (int i = 0; i < 3 * MOST * MOST * 3 && fits(size, stages); i++) {
            const bool wide = i % 2;
            sample s = {.dtype = wide ? WF_F64 : WF_F32,
                        .device = "ref",
                        .kind = (wf_pipeline_kind)(i % 3),
                        .stages = stages,
                        .data = size / stages,
                        .parts = 2,
                        .chunks = 1 + i / 3 % MOST,
                        .samples = {1 + i / (3 * MOST) % MOST, (int)test_int(&rng, 1, MOST)},
                        .draws = test_int(&rng, 0, 1),
                        .recompute = (wf_pipeline_recompute)(i / (3 * MOST * MOST)),
                        .tolerance = wide ? 1e-12 : 1e-5};
            run_sample(&s, &rng);
        }
}

/* Without data parallelism a step of the pipeline has the bits of a step that accumulates over the same chunks. */
static void bits(void)
{
    const int size = world_size();
    test_rng rng = {5};
    for (int kind = 0; kind <= WF_PIPELINE_INTERLEAVED && size <= 4; kind++) {
        const sample s = {.dtype = WF_F32,
                          .device = "ref",
                          .kind = (wf_pipeline_kind)kind,
                          .stages = size,
                          .data = 1,
                          .parts = 2,
                          .chunks = 4,
                          .samples = {7, 0},
                          .draws = true,
                          .momentum = true,
                          .recompute = (wf_pipeline_recompute)kind,
                          .tolerance = 0};
        run_sample(&s, &rng);
    }
}

/* wf_pipeline_apply gives the outputs of the serial model, and a step in WF_EVAL its loss. */
static void evaluates(void)
{
    const int size = world_size();
    test_rng rng = {9};
    for (int kind = 0; kind <= WF_PIPELINE_INTERLEAVED && size <= 4; kind++) {
        const sample s = {.dtype = WF_F64,
                          .device = "cpu",
                          .kind = (wf_pipeline_kind)kind,
                          .stages = size,
                          .data = 1,
                          .parts = 2,
                          .chunks = 3,
                          .samples = {8, 0}};
        if (!open_on(s.device, s.dtype, s.stages))
            return;
        const batch b = batch_of(&rng, 8);
        wf_layer *serial = model_new(false, false);
        wf_pipeline *pipe = pipeline_new(&s);
        wf_tape *tape = wf_tape_new(on.ctx);
        WF_EXPECT_OK(wf_tape_set_mode(tape, WF_EVAL));
        wf_tensor *x = x_of(&b, WF_F64, 0, 8), *labels = labels_of(&b, 0, 8);
        wf_var *expected = wf_apply(serial, wf_input(tape, x)), *y = wf_pipeline_apply(pipe, tape, x);
        WF_EXPECT(y, "%s", wf_error_trail());
        double got[8 * CLASSES], want[8 * CLASSES];
        if (wf_mesh_rank(on.mesh, WF_AXIS_STAGE) == size - 1 && y) {
            values_get(wf_value(y), got);
            values_get(wf_value(expected), want);
            WF_EXPECT(test_distance(8 * CLASSES, got, want) < 1e-12, "the output is off");
        }
        const double serial_value = wf_item(wf_softmax_cross_entropy(expected, labels, (wf_label_opts){0}));
        const double value = wf_item(wf_pipeline_step(pipe, tape, x, labels));
        WF_EXPECT(test_distance(1, &value, &serial_value) < 1e-12, "a loss of %g, not %g", value, serial_value);
        wf_tensor_free(x);
        wf_tensor_free(labels);
        wf_tape_free(tape);
        wf_pipeline_free(pipe);
        wf_layer_free(serial);
        close_on();
    }
}

/* Deferred running statistics are those of the whole batch; the input of the first normalisation is the same. */
static void deferred(void)
{
    const int size = world_size();
    test_rng rng = {17};
    for (int chunks = 1; chunks <= 7 && size <= 4; chunks++) {
        if (!open_on("ref", WF_F64, size))
            return;
        wf_layer *serial = model_new(false, true);
        wf_pipeline *pipe = wf_pipeline_new(on.mesh, model_new(false, true),
                                            (wf_pipeline_opts){.loss = wf_mean_cross_entropy,
                                                               .chunks = chunks,
                                                               .deferred_batchnorm = true,
                                                               .recompute = WF_RECOMPUTE_ALWAYS});
        wf_tape *tape = wf_tape_new(on.ctx), *own = wf_tape_new(on.ctx);
        for (int step = 0; step < 3; step++) {
            const batch b = batch_of(&rng, 6);
            wf_tensor *x = x_of(&b, WF_F64, 0, 6), *labels = labels_of(&b, 0, 6);
            WF_EXPECT(serial_loss(serial, own, &b, WF_F64, 0, 6), "%s", wf_error_trail());
            WF_EXPECT_OK(wf_backward(wf_pipeline_step(pipe, tape, x, labels)));
            wf_tensor_free(x);
            wf_tensor_free(labels);
            WF_EXPECT_OK(wf_tape_reset(tape));
            WF_EXPECT_OK(wf_tape_reset(own));
        }
        wf_param *const *params;
        int64_t n = 0;
        int seen = 0;
        WF_EXPECT_OK(wf_layer_params(wf_pipeline_model(pipe), &n, &params));
        for (int64_t i = 0; i < n; i++) {
            double got[8], want[8];
            if (strncmp(wf_param_path(params[i]), "net/1/avg_", 10) != 0)
                continue;
            values_get(wf_param_value(params[i]), got);
            values_get(wf_param_value(wf_layer_param(serial, wf_param_path(params[i]) + strlen("net/"))), want);
            WF_EXPECT(test_distance(8, got, want) < 1e-12, "%d chunks: %s is off", chunks, wf_param_path(params[i]));
            seen++;
        }
        double all = seen;
        WF_EXPECT_OK(wf_allreduce_f64(on.comm, &all, 1, WF_SUM));
        WF_EXPECT(all == 2, "%g running statistics of the first normalisation", all);
        wf_tape_free(tape);
        wf_tape_free(own);
        wf_pipeline_free(pipe);
        wf_layer_free(serial);
        close_on();
    }
}

/* --- gradients, errors ----------------------------------------------------------------------------------------------
 */

/* Any backward of the loss gives the gradients, and other losses of the tape add theirs. */
static void gradients(void)
{
    const int size = world_size();
    test_rng rng = {13};
    const sample s = {.kind = WF_PIPELINE_1F1B, .stages = size, .data = 1, .chunks = 2, .samples = {5, 0}};
    if (size > 4 || !open_on("ref", WF_F64, size))
        return;
    const batch b = batch_of(&rng, 5);
    wf_layer *serial = model_new(false, false);
    wf_pipeline *pipe = pipeline_new(&s);
    wf_tape *tape = wf_tape_new(on.ctx), *own = wf_tape_new(on.ctx);
    wf_tensor *x = x_of(&b, WF_F64, 0, 5), *labels = labels_of(&b, 0, 5);
    WF_EXPECT_OK(wf_backward(wf_scale(serial_loss(serial, own, &b, WF_F64, 0, 5), 3)));
    WF_EXPECT_OK(wf_backward(wf_scale(wf_pipeline_step(pipe, tape, x, labels), 3)));
    wf_param *const *params;
    int64_t n = 0;
    WF_EXPECT_OK(wf_layer_params(wf_pipeline_model(pipe), &n, &params));
    for (int64_t i = 0; i < n; i++) {
        double got[128], want[128];
        wf_param *other = wf_layer_param(serial, wf_param_path(params[i]) + strlen("net/"));
        values_get(wf_param_grad(params[i]), got);
        values_get(wf_param_grad(other), want);
        WF_EXPECT(test_distance(wf_shape_count(wf_param_shape(other)), got, want) < 1e-12, "the gradient of %s is off",
                  wf_param_path(params[i]));
    }
    wf_tensor_free(x);
    wf_tensor_free(labels);
    wf_tape_free(tape);
    wf_tape_free(own);
    wf_pipeline_free(pipe);
    wf_layer_free(serial);
    close_on();
}

static void refuse(wf_layer *chain, wf_pipeline_opts opts, wf_status code, const char *what)
{
    wf_pipeline *pipe = wf_pipeline_new(on.mesh, chain, opts);
    WF_EXPECT(!pipe && wf_error_code() == code && strstr(wf_error_message(), what), "\"%s\" expected: %s", what,
              wf_error_message());
    wf_error_clear();
    wf_pipeline_free(pipe);
}

static void wrong_options(void)
{
    const int size = world_size();
    const wf_pipeline_opts good = {.loss = wf_mean_cross_entropy};
    wf_pipeline_opts bad = good;
    if (size != 2 || !open_on("ref", WF_F32, 2))
        return;
    refuse(model_new(false, false), (wf_pipeline_opts){0}, WF_ERR_ARGUMENT, "without a loss");
    bad.chunks = -1;
    refuse(model_new(false, false), bad, WF_ERR_ARGUMENT, "-1 chunks; should be 1 or more");
    bad = good;
    bad.parts = 2;
    refuse(model_new(false, false), bad, WF_ERR_ARGUMENT, "2 parts on each stage");
    bad = good;
    bad.layers = (int[]){9, 0};
    refuse(model_new(false, false), bad, WF_ERR_ARGUMENT,
           "part 1 of the pipeline has 0 layers; each should have 1 or more");
    bad.layers = (int[]){3, 3};
    refuse(model_new(false, false), bad, WF_ERR_ARGUMENT, "6 layers together; the chain has 9");
    bad = good;
    bad.by_memory = true;
    refuse(model_new(false, false), bad, WF_ERR_ARGUMENT, "give a sample, and neither costs nor layers");
    refuse(wf_sequential(on.ctx, WF_LAYERS(dense(3, 3))), good, WF_ERR_ARGUMENT, "a chain of 1 layers in 2 parts");
    refuse(dense(3, 3), good, WF_ERR_ARGUMENT, "a layer of kind linear");
    refuse(NULL, good, WF_ERR_ARGUMENT, "NULL");
    bad = good;
    bad.chunks = 1 + on.rank;
    refuse(model_new(false, false), bad, WF_ERR_COMM, "different chains or options");
    wf_error_clear();
    wf_mesh_close(on.mesh);
    wf_comm_close(on.comm);
    wf_error_clear();
}

/* A failure on one stage is told to all. */
static void failures(void)
{
    const int size = world_size();
    for (int which = 0; which < 3 && size == 2; which++) {
        const sample s = {.kind = WF_PIPELINE_1F1B, .stages = 2, .data = 1, .chunks = 2, .samples = {4, 0}};
        if (!open_on("ref", WF_F32, 2))
            return;
        test_rng rng = {2};
        const batch b = batch_of(&rng, 4);
        wf_pipeline *pipe = pipeline_new(&s);
        wf_tape *tape = wf_tape_new(on.ctx);
        wf_tensor *x = x_of(&b, WF_F32, 0, 4), *labels = labels_of(&b, 0, which == 1 ? 3 : 4);
        static const char *const expected[] = {"gets x NULL", "2 samples and 1 targets", "gets target NULL"};
        wf_var *loss = wf_pipeline_step(pipe, tape, which == 0 ? NULL : x, which == 2 ? NULL : labels);
        WF_EXPECT(!loss && strstr(wf_error_message(), expected[which]), "%d: %s", which, wf_error_message());
        wf_error_clear();
        wf_tensor_free(x);
        wf_tensor_free(labels);
        wf_tape_free(tape);
        wf_pipeline_free(pipe);
        wf_mesh_close(on.mesh);
        WF_EXPECT_OK(wf_comm_close(on.comm));
    }
}

static int run(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "every") == 0)
        return test_main(argc, argv, (test_case[]){{"every", every}, {0}});
    return test_main(argc, argv,
                     (test_case[]){{"bits", bits},
                                   {"evaluates", evaluates},
                                   {"deferred", deferred},
                                   {"gradients", gradients},
                                   {"wrong_options", wrong_options},
                                   {"failures", failures},
                                   {0}});
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, run);
}
