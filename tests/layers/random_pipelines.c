/* Random pipelines against the serial program: chains of layers, cuts, schedules, meshes, chunks, batches, optimizers
 * and loops are drawn from a number, so that every pair of features that may meet does (random_pipelines_plan.h lists
 * them, random_pipelines_draw.h draws). Losses, gradients, parameters, running statistics and, in the end, the outputs
 * of WF_EVAL and what the serial model loads from the file that the stages save are those of the serial program: the
 * same bits where the sums have one order, else to rounding.
 *
 *     TEST_RANKS=4 mpirun -np 4 random_pipelines 17          program 17, which a failure names, on its 4 ranks
 *     TEST_RANKS=4 mpirun -np 4 random_pipelines 17 100      and those of the 99 that follow
 */
#include "layers/save.h"
#include "optim/evaluator.h"
#include "optim/trainer.h"
#include "tests/layers/random_pipelines_draw.h"
#include "tests/layers/random_pipelines_serial.h"

#include <unistd.h>

/* --- the pipeline ---------------------------------------------------------------------------------------------------
 */

/* The part of this rank of all pixels, by the program's own bounds. */
static wf_layout own_layout(const plan *p, const rows *b, wf_shape global)
{
    static const wf_axis axes[] = {WF_AXIS_DEPTH, WF_AXIS_HEIGHT, WF_AXIS_WIDTH};
    int64_t samples[PLACES + 1];
    wf_layout_opts opts = {.dim = {[WF_AXIS_DATA] = WF_DIM(0)}, .bounds = {[WF_AXIS_DATA] = samples}};
    wf_layout layout = wf_layout_none();
    for (int r = 0; r <= p->mesh.data; r++)
        samples[r] = b->first[r];
    for (int k = 0; k < 3 && is_image(global) && is_spatial(p); k++) {
        const int d = global.rank - 3 + k;
        if (d < 2)
            continue;
        opts.dim[axes[k]] = WF_DIM(d);
        opts.bounds[axes[k]] = p->cut_points[k];
    }
    if (p->words && global.rank == 2) {
        opts.dim[WF_AXIS_HEIGHT] = WF_DIM(1);
        opts.bounds[WF_AXIS_HEIGHT] = p->cut_points[1];
    }
    WF_EXPECT_OK(wf_mesh_layout(on.mesh, global, opts, &layout));
    return layout;
}

/* Takes this place's samples, and returns this rank's part of them. */
static wf_tensor *placed(const plan *p, const rows *b, wf_tensor *x)
{
    const int64_t lo = b->first[wf_mesh_rank(on.mesh, WF_AXIS_DATA)];
    wf_shape global = wf_tensor_shape(x);
    const int64_t n = global.dim[0];
    global.dim[0] = b->n;
    if (p->layout && !p->bounds)
        WF_EXPECT_OK(wf_tensor_set_layout(x, wf_layout_batch(on.mesh, global, lo, lo + n)));
    if (!p->bounds)
        return x;
    const wf_layout layout = own_layout(p, b, global);
    wf_box box = layout.box;
    box.lo[0] = 0;
    box.hi[0] = n;
    wf_tensor *view = wf_tensor_view(x, box), *mine = wf_tensor_copy(view, wf_tensor_dtype(x), wf_tensor_order(x));
    WF_EXPECT_OK(wf_tensor_set_layout(mine, layout));
    wf_tensor_free(view);
    wf_tensor_free(x);
    return mine;
}

/* Runs the batch in the pipeline. */
static double pipeline_batch(programs *r, const rows *b, ending end)
{
    const plan *p = r->p;
    const int place = wf_mesh_rank(on.mesh, WF_AXIS_DATA), stage = wf_mesh_rank(on.mesh, WF_AXIS_STAGE);
    const int64_t lo = b->first[place], hi = b->first[place + 1];
    wf_tensor *x = placed(p, b, inputs(p, b, lo, hi)), *labels = placed(p, b, targets(b, lo, hi));
    wf_var *loss =
        wf_pipeline_step(r->pipe, r->tape, stage == 0 ? x : NULL, stage == p->mesh.stage - 1 ? labels : NULL);
    const wf_status status = finish(r->optim, loss, end);
    WF_EXPECT(status == WF_OK, "%s: %s", p->text, wf_error_message());
    const double value = end == ACCUMULATE || status != WF_OK ? 0 : wf_item(loss);
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

/* The share of right answers, over all places: of the serial program's output, and by the evaluator of the ranks that
 * have outputs. */
static void compare_metrics(programs *r, const rows *b, wf_var *expected, wf_var *y)
{
    const plan *p = r->p;
    const wf_label_opts opts = {.ignores = p->ignores, .ignored = IGNORED};
    const int place = wf_mesh_rank(on.mesh, WF_AXIS_DATA);
    const int64_t lo = b->first[place], hi = b->first[place + 1];
    wf_evaluator *evaluator = wf_evaluator_new(on.comm);
    wf_tensor *labels = targets(b, lo, hi), *all = targets(b, 0, b->n);
    if (wf_mesh_rank(on.mesh, WF_AXIS_STAGE) == p->mesh.stage - 1) {
        const double n = (double)wf_count_labels(labels, opts), right = (double)wf_count_correct(y, labels, opts);
        WF_EXPECT_OK(wf_evaluator_add_sum(evaluator, "accuracy", right, n));
    }
    WF_EXPECT_OK(wf_evaluator_finish(evaluator));
    const double is = wf_evaluator_mean(evaluator, "accuracy"),
                 should = (double)wf_count_correct(expected, all, opts) / (double)counted(b, 0, b->n);
    WF_EXPECT(fabs(is - should) <= 1e-12, "%s: an accuracy of %.17g, not %.17g", p->text, is, should);
    wf_tensor_free(labels);
    wf_tensor_free(all);
    wf_evaluator_free(evaluator);
}

/* In WF_EVAL: the output of this place's samples. */
static void compare_outputs(programs *r)
{
    const plan *p = r->p;
    const rows *b = &r->b;
    static double a[2 * MOST * CLASSES], all[PLACES * MOST * CLASSES];
    const int place = wf_mesh_rank(on.mesh, WF_AXIS_DATA);
    const int64_t lo = b->first[place], hi = b->first[place + 1];
    if (p->norms && p->mesh.data > 1 && p->reference != ACROSS)
        return;
    WF_EXPECT_OK(wf_tape_set_mode(r->tape, WF_EVAL));
    WF_EXPECT_OK(wf_tape_set_mode(r->own[0], WF_EVAL));
    wf_tensor *x = placed(p, b, inputs(p, b, lo, hi)), *whole = inputs(p, b, 0, b->n);
    wf_var *expected = wf_apply(r->serial, wf_input(r->own[0], whole)), *y = wf_pipeline_apply(r->pipe, r->tape, x);
    WF_EXPECT(y && expected, "%s: %s", p->text, wf_error_message());
    if (y && expected && wf_mesh_rank(on.mesh, WF_AXIS_STAGE) == p->mesh.stage - 1) {
        values_get(wf_value(expected), all);
        values_get(wf_value(y), a);
        const double distance = test_distance((hi - lo) * CLASSES, a, all + lo * CLASSES);
        WF_EXPECT(distance <= p->tolerance, "%s: the output is off by %g", p->text, distance);
    }
    if (p->evaluator)
        compare_metrics(r, b, expected, y);
    wf_tensor_free(x);
    wf_tensor_free(whole);
}

/* The file that the stages write together is that of the serial model, which loads it. */
static void compare_file(programs *r)
{
    const plan *p = r->p;
    char path[64];
    snprintf(path, sizeof path, "/tmp/weft-test-pipelines-%ld.h5", (long)getpid());
    WF_EXPECT_OK(wf_bcast_bytes(on.comm, path, sizeof path, 0));
    wf_layer *loaded = chain_of(p, false);
    wf_param *const *params;
    int64_t n = 0;
    WF_EXPECT(wf_save(wf_pipeline_model(r->pipe), path) == WF_OK, "%s: %s", p->text, wf_error_message());
    WF_EXPECT(wf_load(loaded, path) == WF_OK, "%s: %s", p->text, wf_error_message());
    WF_EXPECT_OK(wf_layer_params(loaded, &n, &params));
    for (int64_t i = 0; i < n; i++) {
        static double a[4096], b[4096];
        wf_param *other = wf_layer_param(r->serial, wf_param_path(params[i]) + strlen("net/"));
        const bool trains = wf_param_trainable(params[i]);
        if (!trains && p->mesh.data > 1 && p->reference != ACROSS)
            continue; /* running statistics of the first place */
        values_get(wf_param_value(params[i]), a);
        values_get(wf_param_value(other), b);
        const double distance = test_distance(wf_tensor_count(wf_param_value(other)), a, b);
        const bool exact = p->exact && (trains || !p->pipeline.deferred_batchnorm);
        WF_EXPECT(distance <= (exact ? 0 : p->tolerance), "%s: %s of the file is off by %g", p->text,
                  wf_param_path(params[i]), distance);
    }
    wf_layer_free(loaded);
    if (on.rank == 0)
        unlink(path);
}

/* --- a run ----------------------------------------------------------------------------------------------------------
 */

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

/* The updates of double buffering that wait. */
static void flush(programs *r, int step)
{
    late_flush(&late, r->serial, r->local);
    WF_EXPECT_OK(wf_optim_flush(r->optim));
    compare(r, step, false);
}

/* Goes on from a file in memory. */
static void save_and_load(programs *r)
{
    wf_layer *model = wf_pipeline_model(r->pipe);
    const saved_run saved = save_run(on.ctx, model, r->optim);
    r->optim = multi_node_optim_of(r->p, model, &r->sums);
    load_run(saved, model, r->optim);
}

/* The loss of both, which with double buffering is that of the step before; the first one then stays a rank's own. */
static void compare_losses(programs *r, int step, double expected)
{
    const plan *p = r->p;
    const bool delays = p->multi.double_buffering;
    /* The pipeline sums losses in f64, too, and rounds the mean to the type of the loss. */
    const double now = p->dtype == WF_F32 ? (double)(float)expected : expected;
    const double should = delays ? r->late_loss : now;
    WF_EXPECT(isfinite(now), "%s: step %d: the serial loss is %.17g", p->text, step, now);
    WF_EXPECT((delays && r->first) || test_distance(1, &r->loss, &should) <= (p->exact ? 0 : p->tolerance),
              "%s: step %d: a loss of %.17g, not %.17g", p->text, step, r->loss, should);
    r->late_loss = now;
    r->first = false;
}

/* A step of both programs; step -1: the gradients alone. False if a rank found them different. */
static bool run_step(programs *r, int step)
{
    const plan *p = r->p;
    const int64_t before = test_failures();
    double expected = 0, samples = 0;
    for (int i = 0; i <= p->accumulates; i++) {
        const ending end = i < p->accumulates ? ACCUMULATE : step < 0 ? GRADIENTS : STEP;
        draw_rows(p, p->samples[step < 0 ? 0 : step][i], &r->rng, &r->b);
        expected += serial_batch(r, &r->b, end);
        samples += weight_of_rows(p, &r->b, 0, r->b.n);
        r->loss = pipeline_batch(r, &r->b, end);
    }
    if (test_failures() == before) {
        compare_losses(r, step, expected / samples);
        compare(r, step, step < 0);
    }
    WF_EXPECT_OK(reset(r));
    if (step == 0 && p->saved && !any_failed(before)) {
        if (p->multi.double_buffering) {
            flush(r, step);
            r->first = true;
        }
        save_and_load(r);
        compare(r, step, false);
    }
    return !any_failed(before);
}

static wf_status train(wf_trainer *trainer, void *user)
{
    programs *r = user;
    const int place = wf_mesh_rank(on.mesh, WF_AXIS_DATA);
    if (!run_step(r, (int)wf_trainer_iteration(trainer)))
        wf_trainer_stop(trainer);
    return wf_trainer_observe(trainer, "loss", r->loss, r->b.first[place + 1] - r->b.first[place]);
}

/* Every rank has the loss of all; in the first step with double buffering its own. */
static wf_status look_at_means(wf_trainer *trainer, void *user)
{
    const programs *r = user;
    const double mean = wf_trainer_mean(trainer, "loss");
    WF_EXPECT(r->p->multi.double_buffering || test_distance(1, &mean, &r->loss) <= r->p->tolerance,
              "%s: a mean loss of %.17g, not %.17g", r->p->text, mean, r->loss);
    return WF_OK;
}

static void run_trainer(programs *r)
{
    const wf_trainer_opts opts = {.iterations = r->p->steps, .report = {.iterations = 1}, .optim = NULL};
    wf_trainer *trainer = wf_trainer_new(on.comm, train, r, opts);
    WF_EXPECT_OK(
        wf_trainer_add_hook(trainer, "means", look_at_means, r, (wf_when){.iterations = 1, .after_report = true}));
    const wf_status status = wf_trainer_run(trainer);
    WF_EXPECT(status == WF_OK, "%s: %s", r->p->text, wf_error_message());
    WF_EXPECT(test_failures() || wf_trainer_iteration(trainer) == r->p->steps, "%s: %lld iterations", r->p->text,
              (long long)wf_trainer_iteration(trainer));
    wf_trainer_free(trainer);
}

/* The gradients of a first batch, where the optimizer can show them, and then steps. */
static void run_steps(programs *r)
{
    const plan *p = r->p;
    const int64_t before = test_failures();
    r->first = true;
    if (!p->multi.shard_optimizer && !p->multi.double_buffering && !p->scales && !run_step(r, -1))
        return;
    if (p->trainer)
        run_trainer(r);
    for (int step = 0; step < p->steps && !p->trainer; step++)
        if (!run_step(r, step))
            return;
    if (p->multi.double_buffering)
        flush(r, p->steps);
    if (!any_failed(before))
        compare_outputs(r);
    if (p->number % 2 == 0 && !any_failed(before))
        compare_file(r);
}

static void run_program(const plan *p)
{
    wf_pipeline_opts opts = p->pipeline;
    static programs r;
    late.waits = false;
    opts.layers = p->cuts;
    opts.loss = loss_of(p);
    r = (programs){.p = p, .serial = chain_of(p, false), .tape = wf_tape_new(on.ctx), .rng = {p->number ^ 0x5eed}};
    r.local = optim_of(p, r.serial);
    r.pipe = wf_pipeline_new(on.mesh, chain_of(p, true), opts);
    WF_EXPECT(r.pipe, "%s: %s", p->text, wf_error_message());
    r.optim = multi_node_optim_of(p, wf_pipeline_model(r.pipe), &r.sums);
    for (int i = 0; i < PLACES; i++)
        r.own[i] = wf_tape_new(on.ctx);
    if (r.optim)
        run_steps(&r);
    WF_EXPECT(!p->own_sum || r.sums > 0 || p->mesh.data == 1, "%s: no sum was the program's own", p->text);
    wf_tape_free(r.tape);
    for (int i = 0; i < PLACES; i++)
        wf_tape_free(r.own[i]);
    wf_optim_free(r.optim);
    wf_optim_free(r.local);
    wf_pipeline_free(r.pipe);
    wf_layer_free(r.serial);
}

static void run_plan(const plan *p)
{
    const wf_ctx_opts opts = {.device = p->device, .dtype = p->dtype, .threads = 1, .seed = p->number + 1};
    on.comm = test_comm_open(p->communicator, opts);
    on.ctx = wf_comm_ctx(on.comm);
    on.rank = wf_comm_rank(on.comm);
    on.mesh = wf_mesh_open(on.comm, p->mesh);
    WF_EXPECT(on.mesh, "%s: %s", p->text, wf_error_message());
    if (on.mesh)
        run_program(p);
    wf_mesh_close(on.mesh);
    const wf_status status = wf_comm_close(on.comm);
    WF_EXPECT(status == WF_OK, "%s: %s", p->text, wf_error_message());
    wf_error_clear();
}

/* --- all samples ----------------------------------------------------------------------------------------------------
 */

enum { SAMPLES = 2000, SHARES = 12, COVERS = SAMPLES / 10 };

/* Ranks of sample i. */
static int ranks_of(int i)
{
    static const int share[SHARES] = {1, 2, 2, 3, 3, 4, 4, 4, 4, 6, 8, 8};
    return share[i % SHARES];
}

/* The table of pairs, once samples on all counts of ranks were run in this process. */
static void report(const pairs *table, int ranks)
{
    static unsigned counts;
    unsigned all = 0;
    counts |= 1u << ranks;
    for (int i = 0; i < SHARES; i++)
        all |= 1u << ranks_of(i);
    if (counts == all && on.rank == 0)
        pairs_report(table, WF_TEST_FOLDER, "pairs_of_pipelines", table->samples >= COVERS);
}

/* --- what is refused ------------------------------------------------------------------------------------------------
 */

static void refuse_optim(wf_multi_node_opts opts, bool scales)
{
    int64_t sums = 0;
    wf_layer *model = wf_layer_named(dense(IN, CLASSES), "net");
    wf_optim *optim = wf_sgd(model, (wf_sgd_opts){.lr = 0.1});
    opts.reduce_user = &sums;
    optim = wf_mesh_multi_node(on.mesh, optim, opts);
    if (scales && optim)
        WF_EXPECT_ERROR(wf_ctx_dtype(on.ctx) == WF_F64 ? WF_ERR_DTYPE : WF_ERR_ARGUMENT,
                        wf_optim_scale_loss(optim, (wf_loss_scale_opts){0}));
    else
        WF_EXPECT(!optim && wf_error_code() == WF_ERR_ARGUMENT, "an optimizer is %s", wf_status_name(wf_error_code()));
    wf_error_clear();
    wf_optim_free(optim);
    wf_layer_free(model);
}

/* A concatenation along shards of channels. */
static void refuse_concat(void)
{
    const wf_shape shape = WF_SHAPE(2, 4);
    wf_layout layout;
    wf_tape *tape = wf_tape_new(on.ctx);
    WF_EXPECT_OK(wf_mesh_layout(on.mesh, shape, (wf_layout_opts){.dim = {[WF_AXIS_DATA] = WF_DIM(1)}}, &layout));
    wf_tensor *x = wf_tensor_new(on.ctx, wf_ctx_dtype(on.ctx), wf_box_shape(layout.box));
    WF_EXPECT_OK(wf_tensor_set_layout(x, layout));
    wf_var *input = wf_input(tape, x);
    WF_EXPECT(!concat(input, input) && wf_error_code() == WF_ERR_SHAPE, "a concatenation is %s",
              wf_status_name(wf_error_code()));
    wf_error_clear();
    wf_tensor_free(x);
    wf_tape_free(tape);
}

/* Pairs of options that the library refuses, by the errors that the rules name. */
static void refuse_options(wf_dtype dtype)
{
    const wf_multi_node_opts delayed = {.double_buffering = true};
    on.comm = test_comm_open("flat", (wf_ctx_opts){.device = "ref", .dtype = dtype, .threads = 1});
    on.ctx = wf_comm_ctx(on.comm);
    on.mesh = wf_mesh_open(on.comm, (wf_mesh_opts){0});
    WF_EXPECT(on.mesh, "%s", wf_error_trail());
    refuse_optim((wf_multi_node_opts){.shard_optimizer = true, .double_buffering = true}, false);
    refuse_optim((wf_multi_node_opts){.shard_optimizer = true, .reduce = sum_halves}, false);
    refuse_optim(dtype == WF_F64 ? (wf_multi_node_opts){0} : delayed, true);
    refuse_concat();
    wf_mesh_close(on.mesh);
    WF_EXPECT_OK(wf_comm_close(on.comm));
}

/* Draws all samples, since each has what those before it lack, and runs those of this count of ranks, or of these
 * [first, first + count). */
static int run(int argc, char **argv)
{
    static pairs table;
    static plan p;
    wf_comm *comm = test_comm_open("naive", (wf_ctx_opts){0});
    const int ranks = wf_comm_size(comm);
    on.rank = wf_comm_rank(comm);
    WF_EXPECT_OK(wf_comm_close(comm));
    const int first = argc > 1 ? atoi(argv[1]) : 0, count = argc > 2 ? atoi(argv[2]) : 1;
    const int all = argc > 1 ? first + count : test_samples(SAMPLES);
    open_pairs(&table);
    /* A refusal ends the communicator, which a slower rank may meet in the call before. */
    for (int d = 0; d < 2 && ranks == 1; d++)
        refuse_options(d == 0 ? WF_F64 : WF_F32);
    for (int i = 0; i < all; i++) {
        draw_plan(&table, (uint64_t)i, ranks_of(i), &p);
        if (ranks_of(i) == ranks && i >= first)
            run_plan(&p);
    }
    if (argc == 1)
        report(&table, ranks);
    return test_failures() > 0;
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, run);
}
