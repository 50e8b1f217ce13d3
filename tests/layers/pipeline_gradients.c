/* Gradients of a pipeline that a serial program does not show: the order in which stages sum those of tied weights,
 * zeros for what the loss does not depend on, parameters that change between steps, and ranks whose labels are all
 * ignored. */
#include "tests/layers/pipeline_fixture.h"

static wf_var *mean(wf_var *y, const wf_tensor *target)
{
    (void)target;
    return wf_mean(y);
}

/* Forward and backward of a pipeline on x [1,1], which is 0. */
static void step(wf_pipeline *pipe, wf_tape *tape)
{
    wf_tensor *x = wf_tensor_new(on.ctx, wf_ctx_dtype(on.ctx), WF_SHAPE(1, 1));
    WF_EXPECT_OK(wf_tensor_fill(x, 0));
    const wf_status status = wf_backward(wf_pipeline_step(pipe, tape, x, x));
    WF_EXPECT(status == WF_OK, "%s", wf_error_message());
    wf_tensor_free(x);
    WF_EXPECT_OK(wf_tape_reset(tape));
}

/* --- tied weights --------------------------------------------------------------------------------------------------
 */

typedef struct shift {
    double factor;
} shift;

static wf_var *shift_forward(wf_layer *layer, wf_var *x)
{
    const shift *s = layer->state;
    return wf_add(x, wf_scale(wf_param_var(x->tape, layer->params[0]), s->factor));
}

/* Adds its parameter times a factor, which is that parameter's gradient. */
static wf_layer *shift_new(double factor)
{
    static const wf_layer_kind kind = {.name = "shift", .forward = shift_forward};
    wf_layer *layer = wf_layer_new(on.ctx, &kind, sizeof(shift));
    ((shift *)layer->state)->factor = factor;
    WF_EXPECT(wf_layer_add_param(layer, "w", (wf_param_opts){.dtype = wf_ctx_dtype(on.ctx), .shape = WF_SHAPE(1, 1)}),
              "%s", wf_error_trail());
    return layer;
}

/* In f32, 1 + 1e8 - 1e8 is 0 in the order of the stages, and 1 in the other. */
static void sum_of_ties(void)
{
    static const double factors[] = {1, 1e8, -1e8, 0};
    static const char *const paths[] = {"0/w", "1/w", "2/w", "3/w"};
    const int stages = open_stages(WF_F32);
    if (stages >= 3) {
        wf_layer *list[4];
        for (int i = 0; i < stages; i++)
            list[i] = shift_new(factors[i]);
        wf_layer *model = wf_layer_named(wf_sequential(on.ctx, stages, list), "net");
        for (int i = 1; i < stages; i++)
            WF_EXPECT_OK(wf_layer_tie(model, paths[i], paths[0]));
        wf_pipeline *pipe = wf_pipeline_new(on.mesh, model, (wf_pipeline_opts){.loss = mean, .chunks = 1});
        WF_EXPECT(pipe, "%s", wf_error_trail());
        wf_tape *tape = wf_tape_new(on.ctx);
        step(pipe, tape);
        double sum = NAN;
        values_get(wf_param_grad(param_of(wf_pipeline_model(pipe), 0)), &sum);
        WF_EXPECT(sum == 0, "stage %d: 1 + 1e8 - 1e8 is %g; should be 0, in the order of the stages", on.rank, sum);
        wf_tape_free(tape);
        wf_pipeline_free(pipe);
    }
    close_on();
}

/* --- zeros ---------------------------------------------------------------------------------------------------------
 */

enum { BETWEEN = 37, MANY = 32 };

/* What is free in the pool now is no number. */
static void poison(wf_shape shape)
{
    wf_tensor *tensor[MANY];
    for (int i = 0; i < MANY; i++) {
        tensor[i] = wf_tensor_new(on.ctx, WF_F64, shape);
        WF_EXPECT_OK(wf_tensor_fill(tensor[i], NAN));
    }
    for (int i = 0; i < MANY; i++)
        wf_tensor_free(tensor[i]);
}

static wf_var *poisoned_entropy(wf_var *y, const wf_tensor *target)
{
    wf_var *loss = wf_softmax_cross_entropy(y, target, (wf_label_opts){0});
    poison(WF_SHAPE(2, BETWEEN));
    return loss;
}

static wf_var *detached(wf_layer *self, void *user, wf_var *x)
{
    (void)user;
    return wf_apply(wf_layer_child(self, "dense"), wf_detach(x));
}

/* The last layer does not depend on its input, so all stages before it get zeros. */
static void zeros(void)
{
    const int stages = open_stages(WF_F64);
    const batch b = {.n = 4};
    wf_layer *list[4];
    for (int i = 0; i < stages - 1; i++)
        list[i] = dense(i == 0 ? IN : BETWEEN, BETWEEN);
    list[stages - 1] = wf_module(on.ctx, detached, NULL);
    WF_EXPECT(wf_module_add(list[stages - 1], "dense", dense(BETWEEN, CLASSES)), "%s", wf_error_trail());
    wf_pipeline *pipe = wf_pipeline_new(on.mesh, wf_layer_named(wf_sequential(on.ctx, stages, list), "net"),
                                        (wf_pipeline_opts){.loss = poisoned_entropy, .chunks = 2});
    WF_EXPECT(pipe, "%s", wf_error_trail());
    wf_tape *tape = wf_tape_new(on.ctx);
    wf_tensor *x = x_of(&b, WF_F64, 0, 4), *labels = labels_of(&b, 0, 4);
    WF_EXPECT_OK(wf_tensor_fill(x, 1));
    const wf_status status = wf_backward(wf_pipeline_step(pipe, tape, x, labels));
    WF_EXPECT(status == WF_OK, "%s", wf_error_message());
    wf_param *const *params;
    int64_t n = 0;
    WF_EXPECT_OK(wf_layer_params(wf_pipeline_model(pipe), &n, &params));
    for (int64_t i = 0; i < n && status == WF_OK; i++) {
        static double grad[BETWEEN * BETWEEN];
        double most = 0;
        values_get(wf_param_grad(params[i]), grad);
        for (int64_t k = 0; k < wf_shape_count(wf_param_shape(params[i])); k++)
            most = fabs(grad[k]) <= most ? most : fabs(grad[k]);
        WF_EXPECT((on.rank == stages - 1) == (most > 0) && isfinite(most), "stage %d: a gradient of %s is %g", on.rank,
                  wf_param_path(params[i]), most);
    }
    wf_tensor_free(x);
    wf_tensor_free(labels);
    wf_tape_free(tape);
    wf_pipeline_free(pipe);
    close_on();
}

/* --- parameters that change ----------------------------------------------------------------------------------------
 */

static wf_var *squares_forward(wf_layer *layer, wf_var *x)
{
    wf_var *w = wf_param_var(x->tape, layer->params[0]);
    return wf_add(x, wf_reshape(wf_sum(wf_mul(w, w)), WF_SHAPE(1, 1)));
}

static const wf_param_opts forms[] = {
    {.shape = {.rank = 1, .dim = {2}}},          {.shape = {.rank = 2, .dim = {3, 2}}},
    {.shape = {.rank = 4, .dim = {2, 3, 2, 2}}}, {.shape = {.rank = 4, .dim = {2, 3, 2, 2}}, .order = WF_CHANNELS_LAST},
    {.shape = {.rank = 1, .dim = {1}}},
};

/* The layer's only parameter becomes one of another form. */
static void take_form(wf_layer *layer, int form)
{
    wf_param_opts opts = forms[form];
    opts.dtype = WF_F64;
    opts.init = (wf_init){.kind = WF_INIT_NORMAL, .b = 1};
    if (layer->n_params > 0)
        wf_param_free(layer->params[0]);
    layer->n_params = 0;
    WF_EXPECT(wf_layer_add_param(layer, "w", opts), "%s", wf_error_trail());
}

/* A layer's parameter has another shape or order in every step: gradients of the step before do not serve it. */
static void changing_parameters(void)
{
    static const wf_layer_kind kind = {.name = "squares", .forward = squares_forward};
    const int stages = open_stages(WF_F64);
    wf_layer *list[4];
    for (int i = 0; i < stages; i++) {
        list[i] = wf_layer_new(on.ctx, &kind, 0);
        take_form(list[i], 0);
    }
    wf_pipeline *pipe = wf_pipeline_new(on.mesh, wf_layer_named(wf_sequential(on.ctx, stages, list), "net"),
                                        (wf_pipeline_opts){.loss = mean, .chunks = 1});
    WF_EXPECT(pipe, "%s", wf_error_trail());
    wf_tape *tape = wf_tape_new(on.ctx);
    for (int form = 0; form < (int)(sizeof forms / sizeof *forms); form++) {
        wf_layer *mine = wf_pipeline_model(pipe)->children[0];
        double value[24], grad[24];
        if (form > 0)
            take_form(mine, form);
        step(pipe, tape);
        const int64_t n = wf_shape_count(forms[form].shape);
        WF_EXPECT(wf_param_grad(mine->params[0]), "form %d: no gradient", form);
        if (!wf_param_grad(mine->params[0]))
            break;
        values_get(wf_param_value(mine->params[0]), value);
        values_get(wf_param_grad(mine->params[0]), grad);
        for (int64_t i = 0; i < n; i++)
            value[i] *= 2;
        const double distance = test_distance(n, grad, value);
        WF_EXPECT(distance < 1e-12, "form %d: the gradient is off by %g", form, distance);
    }
    wf_tape_free(tape);
    wf_pipeline_free(pipe);
    close_on();
}

/* --- ranks whose labels are all ignored ----------------------------------------------------------------------------
 */

enum { EACH = 4, WEIGHTLESS_STEPS = 3, IGNORED = -1 };

/* Which labels of a batch are ignored, and how it is trained. */
typedef struct weightless {
    bool all;    /* of all ranks, in the last step; else those of the last rank along data, in every step */
    bool twice;  /* two batches make one step; with `all` the first one of the second step has no label that counts */
    bool scales; /* the loss; parameters are f32 then, else f64 */
    bool adds;   /* the program's loss is half of the pipeline's, plus squares of a parameter of this stage */
    int chunks;
} weightless;

static wf_var *ignoring(wf_var *y, const wf_tensor *labels)
{
    return wf_softmax_cross_entropy(y, labels, (wf_label_opts){.ignores = true, .ignored = IGNORED});
}

/* The normalisation sums over the ranks of data, so each has gradients of the others' losses. */
static wf_layer *shared_norm_model(wf_comm *data)
{
    const wf_batchnorm_opts opts = {.channels = 6, .eps = 0.5};
    return wf_layer_named(
        wf_sequential(on.ctx, WF_LAYERS(dense(IN, 6), data ? wf_sync_batchnorm(data, opts) : wf_batchnorm(on.ctx, opts),
                                        dense(6, CLASSES))),
        "net");
}

/* EACH samples of each place along data. */
static batch draw_weightless(const weightless *w, test_rng *rng, int step, bool last)
{
    const int places = wf_mesh_size(on.mesh, WF_AXIS_DATA);
    const bool none = step == WEIGHTLESS_STEPS - 1 || (step == 1 && !last);
    batch b = batch_of(rng, EACH * places);
    for (int i = 0; i < b.n; i++)
        if (w->all ? none : i >= EACH * (places - 1))
            b.label[i] = IGNORED;
    return b;
}

/* Chunk c of all places together. */
static batch chunk_of_all(const batch *b, int c, int chunks)
{
    batch chunk = {0};
    for (int place = 0; place < b->n / EACH; place++) {
        int64_t lo, hi;
        wf_block(EACH, chunks, c, &lo, &hi);
        memcpy(chunk.x + chunk.n * IN, b->x + (place * EACH + lo) * IN, (size_t)((hi - lo) * IN) * sizeof *b->x);
        memcpy(chunk.label + chunk.n, b->label + place * EACH + lo, (size_t)(hi - lo) * sizeof *b->label);
        chunk.n += (int)(hi - lo);
    }
    return chunk;
}

/* The first parameters of the two stages. */
static const char *const squared[] = {"0/W", "2/W"};

static wf_var *plus_squares(wf_var *loss, wf_layer *model, int stage, bool first)
{
    wf_param *param = wf_layer_param(model, squared[stage]);
    WF_EXPECT(param, "%s", wf_error_message());
    wf_var *const value = wf_param_var(wf_var_tape(loss), param);
    wf_var *const squares = wf_scale(wf_sum(wf_mul(value, value)), 0.125);
    return first ? wf_add(squares, loss) : wf_add(loss, squares);
}

/* The serial program: a loop over the chunks, each of which it normalises by itself. Returns the loss of the last one,
 * which the optimizer has not seen. */
static wf_var *serial_loss(const weightless *w, wf_optim *optim, wf_tape *tape, const batch *b)
{
    const int stages = wf_mesh_size(on.mesh, WF_AXIS_STAGE);
    for (int c = 0;; c++) {
        const batch chunk = chunk_of_all(b, c, w->chunks);
        wf_tensor *x = x_of(&chunk, wf_ctx_dtype(on.ctx), 0, chunk.n), *labels = labels_of(&chunk, 0, chunk.n);
        wf_var *loss = ignoring(wf_apply(wf_optim_model(optim), wf_input(tape, x)), labels);
        loss = w->adds ? wf_scale(loss, 0.5) : loss;
        for (int stage = 0; w->adds && stage < stages; stage++)
            loss = plus_squares(loss, wf_optim_model(optim), stage, w->twice);
        wf_tensor_free(x);
        wf_tensor_free(labels);
        if (c == w->chunks - 1)
            return loss;
        WF_EXPECT_OK(wf_optim_accumulate(optim, loss));
    }
}

static wf_var *parallel_loss(const weightless *w, wf_pipeline *pipe, wf_tape *tape, const batch *b)
{
    const int64_t first = (int64_t)EACH * wf_mesh_rank(on.mesh, WF_AXIS_DATA);
    wf_tensor *x = x_of(b, wf_ctx_dtype(on.ctx), first, first + EACH), *labels = labels_of(b, first, first + EACH);
    wf_var *loss = wf_pipeline_step(pipe, tape, x, labels);
    WF_EXPECT(loss, "%s", wf_error_message());
    if (w->adds)
        loss =
            plus_squares(wf_scale(loss, 0.5), wf_pipeline_model(pipe), wf_mesh_rank(on.mesh, WF_AXIS_STAGE), w->twice);
    wf_tensor_free(x);
    wf_tensor_free(labels);
    return loss;
}

static void compare_with_serial(const weightless *w, int step, wf_layer *model, wf_layer *serial)
{
    wf_param *const *params;
    int64_t n = 0;
    WF_EXPECT_OK(wf_layer_params(model, &n, &params));
    for (int64_t i = 0; i < n; i++) {
        wf_param *other = wf_layer_param(serial, wf_param_path(params[i]) + strlen("net/"));
        double own[IN * 6], expected[IN * 6];
        values_get(wf_param_value(params[i]), own);
        values_get(wf_param_value(other), expected);
        const double distance = test_distance(wf_shape_count(wf_param_shape(other)), own, expected);
        WF_EXPECT(distance <= (w->scales ? 1e-5 : 1e-12),
                  "rank %d, %d chunks, %s labels ignored%s%s%s, step %d: %s is off by %g", on.rank, w->chunks,
                  w->all ? "all" : "a rank's", w->twice ? ", accumulated" : "", w->scales ? ", scaled" : "",
                  w->adds ? ", with squares" : "", step, wf_param_path(params[i]), distance);
    }
}

/* One step of both. */
static void step_weightless(const weightless *w, int step, wf_pipeline *pipe, wf_optim *const optim[2],
                            wf_tape *const tape[2], test_rng *rng)
{
    wf_var *expected = NULL, *loss = NULL;
    for (int part = w->twice ? 0 : 1; part < 2; part++) {
        const batch b = draw_weightless(w, rng, step, part == 1);
        expected = serial_loss(w, optim[0], tape[0], &b);
        loss = parallel_loss(w, pipe, tape[1], &b);
        if (part == 0) {
            WF_EXPECT_OK(wf_optim_accumulate(optim[0], expected));
            WF_EXPECT_OK(wf_optim_accumulate(optim[1], loss));
        }
    }
    WF_EXPECT_OK(wf_optim_step(optim[0], expected));
    const wf_status status = wf_optim_step(optim[1], loss);
    WF_EXPECT(status == WF_OK, "%s", wf_error_message());
    const double want = wf_item(expected), got = wf_item(loss);
    WF_EXPECT(w->adds || test_distance(1, &got, &want) <= 1e-6, "rank %d, step %d: a loss of %g, not %g", on.rank, step,
              got, want);
    compare_with_serial(w, step, wf_optim_model(optim[1]), wf_optim_model(optim[0]));
    for (int i = 0; i < 2; i++)
        WF_EXPECT_OK(wf_tape_reset(tape[i]));
}

static void run_weightless(const weightless *w)
{
    static const wf_mesh_opts meshes[] = {{.stage = 1, .data = 2}, {.stage = 1, .data = 3}, {.stage = 2, .data = 2}};
    const wf_sgd_opts sgd = {.lr = 0.5, .momentum = 0.5};
    test_rng rng = {53};
    on.comm = test_comm_open(
        "flat",
        (wf_ctx_opts){.device = test_device("ref"), .dtype = w->scales ? WF_F32 : WF_F64, .threads = 1, .seed = 3});
    on.ctx = wf_comm_ctx(on.comm);
    on.rank = wf_comm_rank(on.comm);
    on.mesh = wf_mesh_open(on.comm, meshes[wf_comm_size(on.comm) - 2]);
    WF_EXPECT(on.mesh, "%s", wf_error_trail());
    wf_layer *serial = shared_norm_model(NULL);
    wf_pipeline *pipe = wf_pipeline_new(on.mesh, shared_norm_model(wf_mesh_comm(on.mesh, WF_AXIS_BIT(WF_AXIS_DATA))),
                                        (wf_pipeline_opts){.loss = ignoring, .chunks = w->chunks});
    WF_EXPECT(pipe, "%s", wf_error_message());
    wf_optim *optim[2] = {wf_sgd(serial, sgd),
                          wf_mesh_multi_node(on.mesh, wf_sgd(wf_pipeline_model(pipe), sgd), (wf_multi_node_opts){0})};
    wf_tape *tape[2] = {wf_tape_new(on.ctx), wf_tape_new(on.ctx)};
    if (w->scales)
        WF_EXPECT_OK(wf_optim_scale_loss(optim[1], (wf_loss_scale_opts){.init = 4096}));
    for (int step = 0; step < WEIGHTLESS_STEPS; step++)
        step_weightless(w, step, pipe, optim, tape, &rng);
    WF_EXPECT(wf_optim_skipped(optim[1]) == 0, "an update was skipped");
    for (int i = 0; i < 2; i++) {
        wf_tape_free(tape[i]);
        wf_optim_free(optim[i]);
    }
    wf_pipeline_free(pipe);
    wf_layer_free(serial);
    close_on();
}

/* A rank whose labels are all ignored counts for nothing, and still has its share of the gradients. */
static void weightless_ranks(void)
{
    for (int i = 0; i < 16; i++)
        run_weightless(
            &(weightless){.twice = i & 1, .scales = i >> 1 & 1, .adds = i >> 2 & 1, .chunks = i >> 3 ? 3 : 1});
}

/* Labels that are all ignored, on all ranks: the loss is 0, gradients are 0, and momentum goes on. */
static void weightless_batches(void)
{
    for (int i = 0; i < 8; i++)
        run_weightless(&(weightless){.all = true, .twice = i & 1, .scales = i >> 1 & 1, .chunks = i >> 2 ? 3 : 1});
}

static int run(int argc, char **argv)
{
    return test_main(argc, argv,
                     (test_case[]){{"sum_of_ties", sum_of_ties},
                                   {"zeros", zeros},
                                   {"changing_parameters", changing_parameters},
                                   {"weightless_ranks", weightless_ranks},
                                   {"weightless_batches", weightless_batches},
                                   {0}});
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, run);
}
