/* Random pipelines against the serial program: chains of layers, cuts, schedules, meshes, chunks, batches and
 * optimizers are drawn from a number (random_pipelines_plan.h). Losses, gradients, parameters, running statistics and,
 * in the end, the outputs of WF_EVAL are those of the serial program: the same bits where the sums have one order, else
 * to rounding.
 *
 *     TEST_RANKS=4 mpirun -np 4 random_pipelines 17          program 17 of four ranks, which a failure names
 *     TEST_RANKS=4 mpirun -np 4 random_pipelines 17 100      and the 99 that follow
 */
#include "tests/layers/random_pipelines_plan.h"

/* --- models ---------------------------------------------------------------------------------------------------------
 */

static wf_var *concat(wf_var *x, wf_var *kept)
{
    return wf_concat(2, (wf_var *[]){x, kept}, 1);
}

/* Bounded: products of products would grow out of all proportion. And not even: normalisation makes the two samples of
 * a chunk opposite; if their products were equal, the next one would make them zero but for rounding, where ReLU has
 * its corner. */
static wf_var *product(wf_var *x, wf_var *kept)
{
    wf_var *left = wf_tanh(x), *right = wf_sigmoid(kept);
    return wf_mul(left, right);
}

static const wf_skip_join joins[JOINS] = {NULL, product, concat};

static wf_var *noisy(wf_var *x)
{
    return wf_gaussian_noise(x, 0.1);
}

static wf_var *leaky(wf_var *x)
{
    return wf_leaky_relu(x, 0.1);
}

static wf_var *join_branches(wf_layer *self, void *user, wf_var *x)
{
    const join *how = user;
    wf_var *left = wf_apply(wf_layer_child(self, "left"), x);
    wf_var *right = wf_apply(wf_layer_child(self, "right"), x);
    return *how == JOIN_MUL ? product(left, right) : wf_add(left, right);
}

static bool is_deep(const part *l)
{
    return l->in.rank == 5;
}

static wf_layer *conv(const part *l, int64_t kernel)
{
    return (is_deep(l) ? wf_conv3d : wf_conv2d)(
        on.ctx,
        (wf_conv_opts){
            .in = l->in.dim[1], .out = l->out, .kernel = kernel, .stride = l->stride ? 2 : 1, .pad = kernel / 2});
}

static wf_layer *branch(const part *l)
{
    static const join hows[JOINS] = {JOIN_ADD, JOIN_MUL, JOIN_CONCAT};
    const int64_t in = l->in.dim[1];
    wf_layer *module = wf_module(on.ctx, join_branches, (void *)&hows[l->join]);
    wf_module_add(module, "left", is_image(l->in) ? conv(l, 3) : dense(in, l->out));
    wf_module_add(module, "right", is_image(l->in) ? conv(l, 1) : dense(in, l->out));
    return l->segment ? wf_recompute(module) : module;
}

static wf_layer *pool(const part *l)
{
    const wf_pool_opts opts = {.kernel = 2, .stride = 2};
    if (is_deep(l))
        return (l->max_pool ? wf_max_pool3d : wf_avg_pool3d)(on.ctx, opts);
    return (l->max_pool ? wf_max_pool2d : wf_avg_pool2d)(on.ctx, opts);
}

static wf_layer *layer_of(const part *l, bool last)
{
    static wf_var *(*const functions[])(wf_var *) = {drop, noisy, wf_tanh, wf_sigmoid, leaky};
    const wf_batchnorm_opts norms = {
        .channels = l->out, .eps = 0.5, .decay = 0.7, .act = l->function ? WF_ACT_RELU : WF_ACT_NONE};
    char name[16];
    snprintf(name, sizeof name, "skip%d", l->skip);
    switch (l->kind) {
    case DENSE:
        return wf_linear(on.ctx, (wf_linear_opts){.in = l->in.dim[1], .out = l->out, .replicate = last});
    case CONV:
        return conv(l, l->conv);
    case NORM:
        return wf_batchnorm(on.ctx, norms);
    case FUNCTION:
        return wf_lambda(on.ctx, functions[l->function]);
    case POOL:
        return pool(l);
    case UPSAMPLE:
        return (is_deep(l) ? wf_upsample3d : wf_upsample2d)(on.ctx, (wf_upsample_opts){0});
    case FLATTEN:
        return wf_lambda(on.ctx, wf_flatten);
    case BRANCH:
        return branch(l);
    case STASH:
        return wf_skip_stash(on.ctx, name);
    case POP:
        return wf_skip_pop(on.ctx, name, joins[l->join]);
    }
    return NULL;
}

/* The path of a layer's parameter below the model. */
static const char *path_of(const plan *p, int layer, const char *name, char path[64])
{
    const int lo = p->inner[0], hi = p->inner[1];
    if (lo == hi || layer < lo)
        snprintf(path, 64, "%d/%s", layer, name);
    else if (layer < hi)
        snprintf(path, 64, "%d/%d/%s", lo, layer - lo, name);
    else
        snprintf(path, 64, "%d/%s", layer - (hi - lo) + 1, name);
    return path;
}

static wf_layer *chain_of(const plan *p, bool parallel)
{
    wf_layer *layer[LAYERS], *outer[LAYERS];
    const int lo = p->inner[0], hi = p->inner[1];
    char path[64], with[64];
    int n = 0;
    for (int i = 0; i < p->n; i++)
        layer[i] = layer_of(&p->part[i], i == p->n - 1);
    for (int i = 0; i < p->n; i++) {
        if (i == lo && lo < hi)
            outer[n++] = wf_sequential(on.ctx, hi - lo, layer + lo);
        if (i < lo || i >= hi)
            outer[n++] = layer[i];
    }
    wf_layer *model = wf_layer_named(wf_sequential(on.ctx, n, outer), "net");
    WF_EXPECT(model, "%s: %s", p->text, wf_error_message());
    if (parallel && p->how)
        WF_EXPECT(wf_parallelize(model, on.mesh, p->how) == WF_OK, "%s: %s", p->text, wf_error_message());
    for (int i = 0; i < p->ties; i++)
        for (int k = 0; k <= p->ties_biases; k++) {
            const wf_status status = wf_layer_tie(model, path_of(p, p->tie[i][0], k ? "b" : "W", path),
                                                  path_of(p, p->tie[i][1], k ? "b" : "W", with));
            WF_EXPECT(status == WF_OK, "%s: %s", p->text, wf_error_message());
        }
    if (p->frozen >= 0)
        WF_EXPECT_OK(wf_param_set_trainable(wf_layer_param(model, path_of(p, p->frozen, "W", path)), false));
    return model;
}

static wf_optim *optim_of(const plan *p, wf_layer *model)
{
    /* A large eps, which magnifies no rounding of gradients that are zero. */
    const wf_adam_opts adam = {.lr = p->lr, .eps = 0.5};
    wf_optim *optim = NULL;
    switch (p->optimizer) {
    case SGD:
        optim = wf_sgd(model, (wf_sgd_opts){.lr = p->lr, .weight_decay = 0.01});
        break;
    case MOMENTUM:
        optim = wf_sgd(model, (wf_sgd_opts){.lr = p->lr, .momentum = 0.9, .nesterov = p->number % 2});
        break;
    case ADAM:
        optim = wf_adam(model, adam);
        break;
    case ADAMW:
        optim = wf_adamw(model, adam);
        break;
    case RMSPROP:
        optim = wf_rmsprop(model, (wf_rmsprop_opts){.lr = p->lr, .eps = 0.5});
        break;
    case LAMB:
        optim = wf_lamb(model, (wf_lamb_opts){.lr = p->lr, .eps = 0.5});
        break;
    case OPTIMIZERS:
        break;
    }
    WF_EXPECT(optim, "%s: %s", p->text, wf_error_message());
    if (p->clip > 0)
        WF_EXPECT_OK(wf_optim_clip_norm(optim, p->clip));
    return optim;
}

/* --- batches --------------------------------------------------------------------------------------------------------
 */

enum { PIXELS = 3 * DEEP_SIDE * DEEP_SIDE * DEEP_SIDE };

typedef struct rows {
    int n, first[PLACES + 1]; /* of each place along data */
    double x[PLACES * MOST * PIXELS];
    int64_t label[PLACES * MOST];
} rows;

static void draw_rows(const plan *p, const int *samples, test_rng *rng, rows *b)
{
    const int64_t width = wf_shape_count(p->part[0].in);
    b->n = 0;
    for (int r = 0; r < p->mesh.data; r++) {
        b->first[r] = b->n;
        b->n += samples[r];
    }
    b->first[p->mesh.data] = b->n;
    for (int64_t i = 0; i < b->n * width; i++)
        b->x[i] = test_uniform(rng, -1, 1);
    for (int i = 0; i < b->n; i++)
        b->label[i] = test_int(rng, 0, CLASSES - 1);
}

static wf_tensor *inputs(const plan *p, const rows *b, int64_t lo, int64_t hi)
{
    wf_shape shape = p->part[0].in;
    const int64_t width = wf_shape_count(shape);
    shape.dim[0] = hi - lo;
    wf_tensor *wide = wf_tensor_from_host(on.ctx, WF_F64, shape, b->x + lo * width);
    wf_tensor *x = wf_tensor_copy(wide, p->dtype, is_image(shape) ? WF_CHANNELS_LAST : WF_ROW_MAJOR);
    wf_tensor_free(wide);
    return x;
}

static wf_tensor *targets(const rows *b, int64_t lo, int64_t hi)
{
    return wf_tensor_from_host(on.ctx, WF_I64, WF_SHAPE(hi - lo), b->label + lo);
}

/* The rows of chunk c of all places. */
static void gather_chunk(const plan *p, const rows *b, int c, rows *chunk)
{
    const int64_t width = wf_shape_count(p->part[0].in);
    chunk->n = 0;
    for (int r = 0; r < p->mesh.data; r++) {
        int64_t lo, hi;
        wf_block(b->first[r + 1] - b->first[r], p->pipeline.chunks, c, &lo, &hi);
        memcpy(chunk->x + chunk->n * width, b->x + (b->first[r] + lo) * width,
               (size_t)((hi - lo) * width) * sizeof *b->x);
        memcpy(chunk->label + chunk->n, b->label + b->first[r] + lo, (size_t)(hi - lo) * sizeof *b->label);
        chunk->n += (int)(hi - lo);
    }
}

/* --- deferred running statistics ------------------------------------------------------------------------------------
 */

/* Of one normalisation: those of its chunks are taken from what each chunk adds to the running values, and are merged
 * here, by the formula for two samples. */
typedef struct merged {
    double count, mean[16], m2[16], was[2][16]; /* was: mean and variance before the step */
} merged;

enum { DECAY_TENTHS = 7 };

static wf_param *running(const plan *p, wf_layer *model, int layer, bool variance)
{
    char path[64];
    return wf_layer_param(model, path_of(p, layer, variance ? "avg_var" : "avg_mean", path));
}

static void begin_merge(const plan *p, wf_layer *serial, merged *all)
{
    for (int i = 0; i < p->n; i++) {
        if (p->part[i].kind != NORM)
            continue;
        all[i].count = 0;
        for (int v = 0; v < 2; v++)
            values_get(wf_param_value(running(p, serial, i, v)), all[i].was[v]);
    }
}

static void merge_chunk(merged *m, int64_t channels, double count, const double *mean, const double *variance)
{
    const double all = m->count + count;
    for (int64_t c = 0; c < channels && count > 0; c++) {
        const double before = m->count > 0 ? m->mean[c] : 0, m2 = m->count > 0 ? m->m2[c] : 0;
        const double step = mean[c] - before;
        m->mean[c] = before + step * count / all;
        m->m2[c] = m2 + variance[c] * (count > 1 ? count - 1 : 1) + step * step * m->count * count / all;
    }
    m->count = all;
}

/* After a chunk of so many samples: its statistics, and the running values as they were. */
static void take_chunk(const plan *p, wf_layer *serial, int64_t samples, merged *all)
{
    const double decay = DECAY_TENTHS / 10.0;
    for (int i = 0; i < p->n && samples > 0; i++) {
        const part *l = &p->part[i];
        double now[2][16];
        if (l->kind != NORM)
            continue;
        for (int v = 0; v < 2; v++) {
            wf_tensor *value = wf_param_value(running(p, serial, i, v));
            values_get(value, now[v]);
            for (int64_t c = 0; c < l->out; c++)
                now[v][c] = (now[v][c] - decay * all[i].was[v][c]) / (1 - decay);
            values_set(value, all[i].was[v]);
        }
        const double count = (double)samples * (double)(wf_shape_count(l->in) / l->in.dim[1]);
        merge_chunk(&all[i], l->out, count, now[0], now[1]);
    }
}

static void end_merge(const plan *p, wf_layer *serial, const merged *all)
{
    const double decay = DECAY_TENTHS / 10.0;
    for (int i = 0; i < p->n; i++) {
        const merged *m = &all[i];
        double next[2][16];
        if (p->part[i].kind != NORM || m->count == 0)
            continue;
        for (int64_t c = 0; c < p->part[i].out; c++) {
            next[0][c] = decay * m->was[0][c] + (1 - decay) * m->mean[c];
            next[1][c] = decay * m->was[1][c] + (1 - decay) * m->m2[c] / (m->count > 1 ? m->count - 1 : 1);
        }
        for (int v = 0; v < 2; v++)
            values_set(wf_param_value(running(p, serial, i, v)), next[v]);
    }
}

/* --- two programs ---------------------------------------------------------------------------------------------------
 */

/* The serial one, and this rank's part of the other. */
typedef struct programs {
    const plan *p;
    wf_layer *serial;
    wf_pipeline *pipe;
    wf_optim *local, *optim;
    wf_tape *own[PLACES], *tape;
    merged norms[LAYERS];
} programs;

/* How a backward ends. */
typedef enum ending { ACCUMULATE, STEP, GRADIENTS } ending;

static wf_status finish(wf_optim *optim, wf_var *loss, ending end)
{
    return end == ACCUMULATE ? wf_optim_accumulate(optim, loss)
           : end == STEP     ? wf_optim_step(optim, loss)
                             : wf_optim_gradients(optim, loss);
}

/* Rows [lo, hi); returns the sum of their losses. */
static double apply_rows(programs *r, wf_tape *tape, const rows *b, int64_t lo, int64_t hi, ending end)
{
    wf_tensor *x = inputs(r->p, b, lo, hi), *labels = targets(b, lo, hi);
    wf_var *loss = wf_softmax_cross_entropy(wf_apply(r->serial, wf_input(tape, x)), labels);
    WF_EXPECT(loss, "%s: serial: %s", r->p->text, wf_error_message());
    const double sum = hi > lo ? (double)(hi - lo) * wf_item(loss) : 0;
    const wf_status status = finish(r->local, loss, end);
    WF_EXPECT(status == WF_OK, "%s: serial: %s", r->p->text, wf_error_message());
    wf_tensor_free(x);
    wf_tensor_free(labels);
    if (r->p->pipeline.deferred_batchnorm)
        take_chunk(r->p, r->serial, hi - lo, r->norms);
    return sum;
}

/* One batch by the serial program; returns its loss. */
static double serial_batch(programs *r, const rows *b, ending end)
{
    const plan *p = r->p;
    static rows chunk;
    double sum = 0;
    const int chunks = p->reference == WHOLE ? 1 : p->pipeline.chunks,
              places = p->reference == BY_PLACE ? p->mesh.data : 1;
    if (p->pipeline.deferred_batchnorm)
        begin_merge(p, r->serial, r->norms);
    for (int place = 0; place < places; place++)
        for (int c = 0; c < chunks; c++) {
            const ending now = place == places - 1 && c == chunks - 1 ? end : ACCUMULATE;
            int64_t lo = 0, hi = b->n, first = b->first[place];
            if (p->reference == ACROSS) {
                gather_chunk(p, b, c, &chunk);
                sum += apply_rows(r, r->own[0], &chunk, 0, chunk.n, now);
                continue;
            }
            if (p->reference == BY_PLACE)
                wf_block(b->first[place + 1] - first, chunks, c, &lo, &hi);
            sum += apply_rows(r, r->own[place], b, first + lo, first + hi, now);
        }
    if (p->pipeline.deferred_batchnorm)
        end_merge(p, r->serial, r->norms);
    return sum / b->n;
}

static wf_tensor *placed(const plan *p, wf_tensor *x, int64_t lo, int64_t all)
{
    wf_shape global = wf_tensor_shape(x);
    const int64_t n = global.dim[0];
    global.dim[0] = all;
    if (p->layout)
        WF_EXPECT_OK(wf_tensor_set_layout(x, wf_layout_batch(on.mesh, global, lo, lo + n)));
    return x;
}

/* The same batch by the pipeline. */
static double pipeline_batch(programs *r, const rows *b, ending end)
{
    const plan *p = r->p;
    const int place = wf_mesh_rank(on.mesh, WF_AXIS_DATA), stage = wf_mesh_rank(on.mesh, WF_AXIS_STAGE);
    const int64_t lo = b->first[place], hi = b->first[place + 1];
    wf_tensor *x = placed(p, inputs(p, b, lo, hi), lo, b->n), *labels = placed(p, targets(b, lo, hi), lo, b->n);
    wf_var *loss =
        wf_pipeline_step(r->pipe, r->tape, stage == 0 ? x : NULL, stage == p->mesh.stage - 1 ? labels : NULL);
    const wf_status status = finish(r->optim, loss, end);
    WF_EXPECT(status == WF_OK, "%s: %s", p->text, wf_error_message());
    const double value = end == ACCUMULATE ? 0 : wf_item(loss);
    wf_tensor_free(x);
    wf_tensor_free(labels);
    return value;
}

/* The path under which the serial model lists a parameter. */
static const char *listed(const plan *p, const char *path, char room[64])
{
    for (int i = 0; i < p->ties; i++)
        for (int k = 0; k <= p->ties_biases; k++)
            if (strcmp(path, path_of(p, p->tie[i][0], k ? "b" : "W", room)) == 0)
                return path_of(p, p->tie[i][1], k ? "b" : "W", room);
    return path;
}

/* Parameters, or their gradients. */
static void compare(const programs *r, int step, bool gradients)
{
    const plan *p = r->p;
    wf_param *const *params;
    int64_t n = 0;
    char room[64];
    WF_EXPECT_OK(wf_layer_params(wf_pipeline_model(r->pipe), &n, &params));
    for (int64_t i = 0; i < n; i++) {
        static double a[4096], b[4096];
        wf_param *other = wf_layer_param(r->serial, listed(p, wf_param_path(params[i]) + strlen("net/"), room));
        WF_EXPECT(other, "%s: %s", p->text, wf_error_message());
        const bool trains = other && wf_param_trainable(other);
        /* Running statistics of a place along data are those of its own samples. */
        if (!other || (!trains && (gradients || (p->mesh.data > 1 && p->reference != ACROSS))))
            continue;
        wf_tensor *view = wf_tensor_view(gradients ? wf_param_grad(other) : wf_param_value(other), params[i]->box);
        values_get(gradients ? wf_param_grad(params[i]) : wf_param_value(params[i]), a);
        values_get(view, b);
        const double distance = test_distance(wf_tensor_count(view), a, b);
        const bool exact = p->exact && (trains || !p->pipeline.deferred_batchnorm);
        WF_EXPECT(distance <= (exact ? 0 : p->tolerance), "%s: step %d: %s%s is off by %g", p->text, step,
                  gradients ? "the gradient of " : "", wf_param_path(params[i]), distance);
        wf_tensor_free(view);
    }
}

/* In WF_EVAL: the output of this place's samples. */
static void compare_outputs(programs *r, const rows *b)
{
    const plan *p = r->p;
    static double a[2 * MOST * CLASSES], all[PLACES * MOST * CLASSES];
    const int place = wf_mesh_rank(on.mesh, WF_AXIS_DATA);
    const int64_t lo = b->first[place], hi = b->first[place + 1];
    if (p->norms && p->mesh.data > 1 && p->reference != ACROSS)
        return;
    WF_EXPECT_OK(wf_tape_set_mode(r->tape, WF_EVAL));
    WF_EXPECT_OK(wf_tape_set_mode(r->own[0], WF_EVAL));
    wf_tensor *x = placed(p, inputs(p, b, lo, hi), lo, b->n), *whole = inputs(p, b, 0, b->n);
    wf_var *expected = wf_apply(r->serial, wf_input(r->own[0], whole)), *y = wf_pipeline_apply(r->pipe, r->tape, x);
    WF_EXPECT(y && expected, "%s: %s", p->text, wf_error_message());
    if (y && expected && wf_mesh_rank(on.mesh, WF_AXIS_STAGE) == p->mesh.stage - 1) {
        values_get(wf_value(expected), all);
        values_get(wf_value(y), a);
        const double distance = test_distance((hi - lo) * CLASSES, a, all + lo * CLASSES);
        WF_EXPECT(distance <= p->tolerance, "%s: the output is off by %g", p->text, distance);
    }
    wf_tensor_free(x);
    wf_tensor_free(whole);
}

/* On all ranks, which go on together. */
static bool any_failed(int64_t before)
{
    int64_t failed = test_failures() > before;
    return wf_allreduce_i64(on.comm, &failed, 1, WF_MAX) != WF_OK || failed;
}

static wf_status reset(programs *r)
{
    for (int i = 0; i < PLACES; i++)
        WF_TRY(wf_tape_reset(r->own[i]));
    return wf_tape_reset(r->tape);
}

/* The gradients of a first batch, and then steps. */
static void run_steps(programs *r, test_rng *rng)
{
    const plan *p = r->p;
    static rows b;
    const int first = p->multi.shard_optimizer ? 0 : -1;
    for (int step = first; step < p->steps && r->optim; step++) {
        const int64_t before = test_failures();
        double loss = 0, expected = 0, samples = 0;
        for (int i = 0; i <= p->accumulates; i++) {
            const ending end = i < p->accumulates ? ACCUMULATE : step < 0 ? GRADIENTS : STEP;
            draw_rows(p, p->samples[step < 0 ? 0 : step][i], rng, &b);
            expected += serial_batch(r, &b, end) * b.n;
            samples += b.n;
            loss = pipeline_batch(r, &b, end);
        }
        expected /= samples;
        /* The pipeline sums losses in f64, too, and rounds the mean to the type of the loss. */
        if (p->dtype == WF_F32)
            expected = (double)(float)expected;
        WF_EXPECT(isfinite(expected) && test_distance(1, &loss, &expected) <= (p->exact ? 0 : p->tolerance),
                  "%s: step %d: a loss of %.17g, not %.17g", p->text, step, loss, expected);
        compare(r, step, step < 0);
        WF_EXPECT_OK(reset(r));
        if (any_failed(before))
            return;
    }
    compare_outputs(r, &b);
}

static void run_program(const plan *p)
{
    test_rng rng = {p->number ^ 0x5eed};
    wf_pipeline_opts opts = p->pipeline;
    static programs r;
    opts.layers = p->cuts;
    r = (programs){.p = p, .serial = chain_of(p, false), .tape = wf_tape_new(on.ctx)};
    r.local = optim_of(p, r.serial);
    r.pipe = wf_pipeline_new(on.mesh, chain_of(p, true), opts);
    WF_EXPECT(r.pipe, "%s: %s", p->text, wf_error_message());
    r.optim = wf_mesh_multi_node_with(on.mesh, optim_of(p, wf_pipeline_model(r.pipe)), p->multi);
    WF_EXPECT(r.optim, "%s: %s", p->text, wf_error_message());
    for (int i = 0; i < PLACES; i++)
        r.own[i] = wf_tape_new(on.ctx);
    run_steps(&r, &rng);
    wf_tape_free(r.tape);
    for (int i = 0; i < PLACES; i++)
        wf_tape_free(r.own[i]);
    wf_optim_free(r.optim);
    wf_optim_free(r.local);
    wf_pipeline_free(r.pipe);
    wf_layer_free(r.serial);
}

static void run_number(uint64_t number, int ranks)
{
    static plan p;
    p = draw_plan(number, ranks);
    const wf_ctx_opts opts = {.device = p.device, .dtype = p.dtype, .threads = 1, .seed = number + 1};
    on.comm = test_comm_open("flat", opts);
    on.ctx = wf_comm_ctx(on.comm);
    on.rank = wf_comm_rank(on.comm);
    on.mesh = wf_mesh_open(on.comm, p.mesh);
    WF_EXPECT(on.mesh, "%s: %s", p.text, wf_error_message());
    if (on.mesh)
        run_program(&p);
    wf_mesh_close(on.mesh);
    const wf_status status = wf_comm_close(on.comm);
    WF_EXPECT(status == WF_OK, "%s: %s", p.text, wf_error_message());
    wf_error_clear();
}

static int run(int argc, char **argv)
{
    static const int share[] = {1, 2, 2, 3, 3, 4, 4, 4, 4, 6, 8, 8};
    wf_comm *comm = test_comm_open("naive", (wf_ctx_opts){0});
    const int ranks = wf_comm_size(comm), all = test_samples(2000);
    WF_EXPECT_OK(wf_comm_close(comm));
    const uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 10) : 0,
                   count = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    for (uint64_t i = first; i < first + count && argc > 1; i++)
        run_number(i, ranks);
    for (int i = 0; i < all && argc == 1; i++)
        if (share[i % 12] == ranks)
            run_number((uint64_t)i, ranks);
    return test_failures() > 0;
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, run);
}
