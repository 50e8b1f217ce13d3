/* Pipelines on batches with a layout, and on local batches of ranks along data, against the serial program on the whole
 * batch: losses that count labels, redistribution inside the layers, chains of spatial convolutions whose costs are
 * measured. Sums are in f64, so every loss and every parameter is the serial one to 1e-12. */
#include "comm/mesh_author.h"
#include "tests/layers/pipeline_fixture.h"

enum { SIDE = 6, WIDE = 3, DEPTH = 2, HIDDEN = 3, PIXELS = SIDE * WIDE, BLOCKS = 6, STEPS = 3, IGNORED = -1 };

/* --- where ---------------------------------------------------------------------------------------------------------
 */

typedef struct place {
    int size; /* of the world */
    wf_mesh_opts mesh;
    bool layout;
} place;

static const place places[] = {
    {1, {.stage = 1}, true},
    {2, {.stage = 2}, true},
    {2, {.stage = 1, .data = 2}, true},
    {2, {.stage = 1, .height = 2}, true},
    {4, {.stage = 2, .data = 2}, true},
    {4, {.stage = 2, .height = 2}, true},
    {4, {.stage = 1, .data = 2, .height = 2}, true},
    {2, {.stage = 2}, false},
    {2, {.stage = 1, .data = 2}, false},
    {4, {.stage = 2, .data = 2}, false},
};

/* Samples of each place along data. */
static int samples_at(const place *p, int at)
{
    return p->mesh.data == 2 ? (at ? 3 : 5) : 6;
}

static int samples_of(const place *p)
{
    return p->mesh.data == 2 ? 8 : 6;
}

/* --- batches -------------------------------------------------------------------------------------------------------
 */

enum { ROWS = 8 };

/* The whole batch: the target is labels, or numbers. */
typedef struct images {
    double x[ROWS * DEPTH * PIXELS], number[ROWS * CLASSES * PIXELS];
    int64_t label[ROWS * PIXELS];
} images;

/* A third of the labels is ignored; in samples [2, 4) all of them are, and in an `empty` batch everywhere. */
static void draw(images *b, test_rng *rng, bool empty)
{
    for (int i = 0; i < ROWS * DEPTH * PIXELS; i++)
        b->x[i] = test_uniform(rng, -1, 1);
    for (int i = 0; i < ROWS * CLASSES * PIXELS; i++)
        b->number[i] = test_uniform(rng, 0, 1);
    for (int i = 0; i < ROWS * PIXELS; i++) {
        const int sample = i / PIXELS;
        const bool ignored = empty || (sample >= 2 && sample < 4) || test_int(rng, 0, 2) == 0;
        b->label[i] = ignored ? IGNORED : test_int(rng, 0, CLASSES - 1);
    }
}

/* This rank's part of a whole tensor, by the layout if the place has one. */
static wf_tensor *own_part(const place *p, wf_tensor *whole)
{
    wf_layout_opts opts = {.dim = {[WF_AXIS_DATA] = WF_DIM(0)}};
    const wf_shape shape = wf_tensor_shape(whole);
    const int64_t bounds[] = {0, samples_at(p, 0), samples_of(p)};
    wf_layout layout;
    opts.bounds[WF_AXIS_DATA] = p->mesh.data == 2 ? bounds : NULL;
    if (p->mesh.height == 2)
        opts.dim[WF_AXIS_HEIGHT] = WF_DIM(shape.rank - 2);
    WF_EXPECT_OK(wf_mesh_layout(on.mesh, shape, opts, &layout));
    wf_tensor *view = wf_tensor_view(whole, layout.box);
    wf_tensor *part = wf_tensor_copy(view, wf_tensor_dtype(view), wf_tensor_order(view));
    if (p->layout)
        WF_EXPECT_OK(wf_tensor_set_layout(part, layout));
    wf_tensor_free(view);
    wf_tensor_free(whole);
    return part;
}

static wf_tensor *whole_x(const images *b, int64_t n)
{
    return wf_tensor_from_host(on.ctx, WF_F64, WF_SHAPE(n, DEPTH, SIDE, WIDE), b->x);
}

static wf_tensor *whole_target(const images *b, int64_t n, bool labels)
{
    if (labels)
        return wf_tensor_from_host(on.ctx, WF_I64, WF_SHAPE(n, SIDE, WIDE), b->label);
    return wf_tensor_from_host(on.ctx, WF_F64, WF_SHAPE(n, CLASSES, SIDE, WIDE), b->number);
}

/* --- losses --------------------------------------------------------------------------------------------------------
 */

static const wf_label_opts ignoring = {.ignores = true, .ignored = IGNORED};

static wf_var *entropy_ignoring(wf_var *y, const wf_tensor *target)
{
    return wf_softmax_cross_entropy(y, target, ignoring);
}

static wf_var *nll_ignoring(wf_var *y, const wf_tensor *target)
{
    return wf_nll(wf_log_softmax(y), target, ignoring);
}

/* Two terms that count the same labels. */
static wf_var *sum_ignoring(wf_var *y, const wf_tensor *target)
{
    wf_var *first = wf_softmax_cross_entropy(y, target, ignoring);
    return wf_add(wf_scale(first, 0.5), wf_softmax_cross_entropy(wf_tanh(y), target, ignoring));
}

static wf_var *entropy_weighed(wf_var *y, const wf_tensor *target)
{
    static const double each[CLASSES] = {0.5, 2, 1.25, 1};
    wf_label_opts opts = ignoring;
    opts.weight = wf_tensor_from_host(on.ctx, WF_F64, WF_SHAPE(CLASSES), each);
    opts.smoothing = 0.2;
    wf_var *loss = wf_softmax_cross_entropy(y, target, opts);
    wf_tensor_free((wf_tensor *)opts.weight);
    return loss;
}

static wf_var *dice(wf_var *y, const wf_tensor *target)
{
    return wf_dice(wf_softmax(y), target, (wf_dice_opts){.squared = true});
}

static wf_var *squares(wf_var *y, const wf_tensor *target)
{
    return wf_mse(y, wf_input(y->tape, target));
}

static wf_var *distances(wf_var *y, const wf_tensor *target)
{
    return wf_l1(y, wf_input(y->tape, target));
}

static const struct {
    const char *name;
    wf_pipeline_loss loss;
    bool labels;
} losses[] = {
    {"entropy", entropy_ignoring, true}, {"nll", nll_ignoring, true},     {"sum", sum_ignoring, true},
    {"weighed", entropy_weighed, true},  {"dice", dice, false},           {"bce", wf_bce_logits, false},
    {"squares", squares, false},         {"distances", distances, false},
};

enum { LOSSES = sizeof losses / sizeof *losses };

/* --- models --------------------------------------------------------------------------------------------------------
 */

static wf_var *convolve(wf_layer *self, void *user, wf_var *x)
{
    (void)user;
    return wf_tanh(wf_apply(wf_layer_child(self, "conv"), x));
}

/* Convolutions of 3 x 3, each with a function behind it: spatial ones on a mesh, else serial ones. */
static wf_layer *images_model(const wf_mesh *mesh, wf_forward forward)
{
    static const int64_t channels[BLOCKS + 1] = {DEPTH, HIDDEN, HIDDEN, HIDDEN, HIDDEN, HIDDEN, CLASSES};
    wf_layer *block[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) {
        const wf_conv_opts opts = {.in = channels[i], .out = channels[i + 1], .kernel = 3, .pad = 1};
        block[i] = wf_module(on.ctx, forward, NULL);
        WF_EXPECT(wf_module_add(block[i], "conv", mesh ? wf_spatial_conv2d(mesh, opts) : wf_conv2d(on.ctx, opts)), "%s",
                  wf_error_trail());
    }
    return wf_layer_named(wf_sequential(on.ctx, BLOCKS, block), "net");
}

/* Two chains of three convolutions, whose costs are measured at their first input. */
static wf_layer *chains_model(const wf_mesh *mesh, wf_forward forward)
{
    wf_layer *chain[2];
    (void)forward;
    for (int c = 0; c < 2; c++) {
        wf_layer *conv[BLOCKS / 2];
        for (int i = 0; i < BLOCKS / 2; i++) {
            const bool last = c == 1 && i == BLOCKS / 2 - 1;
            const wf_conv_opts opts = {
                .in = c == 0 && i == 0 ? DEPTH : HIDDEN, .out = last ? CLASSES : HIDDEN, .kernel = 3, .pad = 1};
            conv[i] = mesh ? wf_spatial_conv2d(mesh, opts) : wf_conv2d(on.ctx, opts);
        }
        chain[c] = mesh ? wf_spatial_chain(mesh, (wf_spatial_chain_opts){0}, BLOCKS / 2, conv)
                        : wf_sequential(on.ctx, BLOCKS / 2, conv);
    }
    return wf_layer_named(wf_sequential(on.ctx, 2, chain), "net");
}

/* --- a comparison --------------------------------------------------------------------------------------------------
 */

typedef struct sample {
    const place *place;
    wf_pipeline_opts opts;
    bool labels, twice;         /* two batches make one step */
    wf_forward serial, forward; /* of a block */
    bool chains;                /* the model is two spatial chains */
} sample;

static const char *text_of(const sample *s)
{
    static char text[200];
    snprintf(text, sizeof text, "stage %d data %d height %d, %s, schedule %d, %d chunks, recompute %d%s",
             s->place->mesh.stage, s->place->mesh.data, s->place->mesh.height, s->place->layout ? "layout" : "local",
             (int)s->opts.schedule, s->opts.chunks, (int)s->opts.recompute, s->twice ? ", accumulated" : "");
    return text;
}

static void compare_params(const sample *s, int step, wf_layer *model, wf_layer *serial)
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
        WF_EXPECT(distance <= 1e-12, "%s, step %d: %s is off by %g", text_of(s), step, wf_param_path(params[i]),
                  distance);
    }
}

static wf_var *serial_loss(const sample *s, wf_layer *model, wf_tape *tape, const images *b)
{
    const int64_t n = samples_of(s->place);
    wf_tensor *x = whole_x(b, n), *target = whole_target(b, n, s->labels);
    wf_var *loss = s->opts.loss(wf_apply(model, wf_input(tape, x)), target);
    WF_EXPECT(loss, "%s", wf_error_trail());
    wf_tensor_free(x);
    wf_tensor_free(target);
    return loss;
}

static wf_var *pipeline_loss(const sample *s, wf_pipeline *pipe, wf_tape *tape, const images *b)
{
    const int64_t n = samples_of(s->place);
    wf_tensor *x = own_part(s->place, whole_x(b, n)), *target = own_part(s->place, whole_target(b, n, s->labels));
    wf_var *loss = wf_pipeline_step(pipe, tape, x, target);
    WF_EXPECT(loss, "%s: %s%s", text_of(s), wf_error_message(), wf_error_trail());
    wf_tensor_free(x);
    wf_tensor_free(target);
    return loss;
}

/* One step of both; returns false after a failure. */
static bool run_step(const sample *s, int step, wf_pipeline *pipe, wf_optim *const optim[2], wf_tape *const tape[2],
                     test_rng *rng)
{
    wf_var *expected = NULL, *loss = NULL;
    images b;
    for (int part = s->twice ? 0 : 1; part < 2; part++) {
        draw(&b, rng, step == STEPS - 1 || (step == 1 && part == 0));
        expected = serial_loss(s, wf_optim_model(optim[0]), tape[0], &b);
        loss = pipeline_loss(s, pipe, tape[1], &b);
        if (!loss)
            return false;
        if (part == 0) {
            WF_EXPECT_OK(wf_optim_accumulate(optim[0], expected));
            WF_EXPECT_OK(wf_optim_accumulate(optim[1], loss));
        }
    }
    WF_EXPECT_OK(wf_optim_step(optim[0], expected));
    const wf_status status = wf_optim_step(optim[1], loss);
    WF_EXPECT(status == WF_OK, "%s: %s", text_of(s), wf_error_trail());
    const double want = wf_item(expected), got = wf_item(loss);
    WF_EXPECT(test_distance(1, &got, &want) <= 1e-12, "%s, step %d: a loss of %.17g, not %.17g", text_of(s), step, got,
              want);
    compare_params(s, step, wf_optim_model(optim[1]), wf_optim_model(optim[0]));
    for (int i = 0; i < 2; i++)
        WF_EXPECT_OK(wf_tape_reset(tape[i]));
    return status == WF_OK;
}

/* Returns false after a failure. */
static bool run_sample(const sample *s, test_rng *rng)
{
    wf_layer *(*const model_of)(const wf_mesh *mesh, wf_forward forward) = s->chains ? chains_model : images_model;
    wf_layer *serial = model_of(NULL, s->serial);
    wf_layer *model = model_of(s->place->layout ? on.mesh : NULL, s->forward);
    wf_pipeline *pipe = wf_pipeline_new(on.mesh, model, s->opts);
    WF_EXPECT(pipe, "%s: %s", text_of(s), wf_error_trail());
    const wf_sgd_opts sgd = {.lr = 0.5};
    wf_optim *optim[2] = {wf_sgd(serial, sgd),
                          wf_mesh_multi_node(on.mesh, wf_sgd(wf_pipeline_model(pipe), sgd), (wf_multi_node_opts){0})};
    wf_tape *tape[2] = {wf_tape_new(on.ctx), wf_tape_new(on.ctx)};
    bool good = pipe && optim[1];
    for (int step = 0; step < STEPS && good; step++)
        good = run_step(s, step, pipe, optim, tape, rng);
    for (int i = 0; i < 2; i++) {
        wf_tape_free(tape[i]);
        wf_optim_free(optim[i]);
    }
    wf_pipeline_free(pipe);
    wf_layer_free(serial);
    return good;
}

/* Opens the communicator, and the mesh if the place is for a world of this size. */
static bool open_place(const place *p)
{
    on.comm = test_comm_open("flat", (wf_ctx_opts){.device = test_device("ref"), .dtype = WF_F64, .seed = 3});
    on.ctx = wf_comm_ctx(on.comm);
    on.rank = wf_comm_rank(on.comm);
    on.mesh = wf_comm_size(on.comm) == p->size ? wf_mesh_open(on.comm, p->mesh) : NULL;
    return on.mesh;
}

/* Every loss by every schedule, at every place with another number of chunks, on batches with a layout and without:
 * chunks have different numbers of labels that count, some have none, and in the last step no label counts at all, nor
 * in the first of two batches that make the second step. */
static void counts(void)
{
    static const int chunks[] = {1, 3, 4};
    test_rng rng = {31};
    for (size_t at = 0; at < sizeof places / sizeof *places; at++) {
        bool here = open_place(&places[at]);
        for (int i = 0; here && i < 3 * LOSSES; i++) {
            const int loss = i / 3;
            const sample s = {.place = &places[at],
                              .opts = {.loss = losses[loss].loss,
                                       .chunks = chunks[(i + loss + (int)at) % 3],
                                       .schedule = (wf_pipeline_kind)(i % 3),
                                       .recompute = (wf_pipeline_recompute)((i + (int)at) % 3)},
                              .labels = losses[loss].labels,
                              .twice = (i + (int)at) % 2,
                              .serial = convolve,
                              .forward = convolve};
            here = run_sample(&s, &rng);
        }
        close_on();
    }
}

/* --- redistribution ------------------------------------------------------------------------------------------------
 */

/* The noise belongs to places in the batch. */
static wf_var *convolve_noise(wf_layer *self, void *user, wf_var *x)
{
    return convolve(self, user, wf_dropout(x, 0.2));
}

static wf_var *convolve_whole(wf_layer *self, void *user, wf_var *x)
{
    return convolve(self, user, wf_shard(wf_dropout(wf_unshard(x), 0.2), on.mesh));
}

/* Strips of columns in place of strips of rows, and back. */
static wf_var *convolve_turned(wf_layer *self, void *user, wf_var *x)
{
    const wf_layout rows = wf_tensor_layout(wf_value(x));
    wf_layout columns;
    wf_layout_opts opts = {.dim = {[WF_AXIS_DATA] = WF_DIM(0), [WF_AXIS_HEIGHT] = WF_DIM(3)}};
    WF_EXPECT_OK(wf_mesh_layout(on.mesh, rows.global, opts, &columns));
    wf_var *turned = wf_dropout(wf_redistribute(x, columns), 0.2);
    return convolve(self, user, wf_redistribute(turned, rows));
}

/* Layers that move the pixels of a chunk between ranks. Its samples stay on their ranks along data. */
static void redistributes(void)
{
    static const wf_forward forward[] = {convolve_whole, convolve_turned};
    static const int chunks[] = {1, 2, 4};
    test_rng rng = {43};
    for (size_t at = 0; at < sizeof places / sizeof *places; at++) {
        bool here = open_place(&places[at]) && places[at].layout;
        for (int i = 0; here && i < 6; i++) {
            const sample s = {.place = &places[at],
                              .opts = {.loss = i % 2 ? squares : entropy_ignoring,
                                       .chunks = chunks[i % 3],
                                       .schedule = (wf_pipeline_kind)((i + (int)at) % 3),
                                       .recompute = (wf_pipeline_recompute)(i / 2)},
                              .labels = i % 2 == 0,
                              .serial = convolve_noise,
                              .forward = forward[i / 3]};
            here = run_sample(&s, &rng);
        }
        close_on();
    }
}

/* The first input of each chain is measured by the ranks of its stage alone: others compute other layers then. */
static void chains(void)
{
    test_rng rng = {47};
    for (size_t at = 0; at < sizeof places / sizeof *places; at++) {
        bool here = open_place(&places[at]) && places[at].layout;
        for (int i = 0; here && i < 2; i++) {
            const sample s = {.place = &places[at],
                              .opts = {.loss = squares, .chunks = 3, .schedule = (wf_pipeline_kind)i},
                              .chains = true};
            here = run_sample(&s, &rng);
        }
        close_on();
    }
}

/* A mean over the labels that count plus one over all elements. */
static wf_var *mixture(wf_var *y, const wf_tensor *target)
{
    return wf_add(entropy_ignoring(y, target), wf_mean(wf_mul(y, y)));
}

/* The loss of a mixture in a serial program, which has to add the values. */
static double mixture_of(const sample *s, const images *b)
{
    const int64_t n = samples_of(s->place);
    wf_layer *serial = images_model(NULL, convolve);
    wf_tape *tape = wf_tape_new(on.ctx);
    wf_tensor *x = whole_x(b, n), *target = whole_target(b, n, true);
    wf_var *y = wf_apply(serial, wf_input(tape, x));
    const double value = wf_item(entropy_ignoring(y, target)) + wf_item(wf_mean(wf_mul(y, y)));
    wf_tensor_free(x);
    wf_tensor_free(target);
    wf_tape_free(tape);
    wf_layer_free(serial);
    return value;
}

/* No weight of a chunk is right for a mixture, so all ranks refuse it; a single chunk is the batch, and its mixture is
 * right where the mean over the labels is one of all ranks. */
static void check_mixture(const sample *s, test_rng *rng)
{
    images b;
    draw(&b, rng, false);
    wf_pipeline *pipe = wf_pipeline_new(on.mesh, images_model(s->place->layout ? on.mesh : NULL, convolve), s->opts);
    wf_tape *tape = wf_tape_new(on.ctx);
    const int64_t n = samples_of(s->place);
    wf_tensor *x = own_part(s->place, whole_x(&b, n)), *target = own_part(s->place, whole_target(&b, n, true));
    wf_var *loss = wf_pipeline_step(pipe, tape, x, target);
    if (s->opts.chunks > 1 || !s->place->layout) {
        const char *why = s->place->layout
                              ? "add means over the same labels, ignore no label, or give the pipeline 1 chunk, not 3"
                              : "add is mixing a mean over";
        WF_EXPECT(!loss && wf_error_code() == WF_ERR_STATE && strstr(wf_error_message(), why), "rank %d: %s", on.rank,
                  wf_error_message());
        wf_error_clear();
    } else {
        double value = wf_item(loss);
        const double expected = mixture_of(s, &b);
        WF_EXPECT_OK(
            wf_allreduce_f64(wf_mesh_comm(on.mesh, WF_ALL_AXES & ~WF_AXIS_BIT(WF_AXIS_STAGE)), &value, 1, WF_SUM));
        WF_EXPECT(test_distance(1, &value, &expected) <= 1e-12, "%s: %g, not %g", text_of(s), value, expected);
    }
    wf_tensor_free(x);
    wf_tensor_free(target);
    wf_tape_free(tape);
    wf_pipeline_free(pipe);
}

static void mixtures(void)
{
    test_rng rng = {37};
    for (size_t at = 0; at < 2 * sizeof places / sizeof *places; at++) {
        const sample s = {.place = &places[at / 2], .opts = {.loss = mixture, .chunks = at % 2 ? 3 : 1}};
        if (open_place(s.place) && s.place->mesh.stage == 2)
            check_mixture(&s, &rng);
        close_on();
    }
}

static int run(int argc, char **argv)
{
    return test_main(
        argc, argv,
        (test_case[]){
            {"counts", counts}, {"redistributes", redistributes}, {"chains", chains}, {"mixtures", mixtures}, {0}});
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, run);
}
