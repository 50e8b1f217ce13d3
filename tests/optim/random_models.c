/* Random models on random meshes: steps on the ranks are those of one rank, in f64 on `ref`. Layers, options, meshes,
 * how the model is parallel, how samples and pixels lie on the ranks, losses, optimizers, loops, layers that are
 * applied twice and layers that join later are all drawn from the model's number, so that every pair of features that
 * may meet does (random_models_plan.h lists them, random_models_draw.h draws).
 *
 *     random_models FIRST COUNT          models FIRST to FIRST + COUNT - 1, shared by the counts of ranks
 */
#include "core/param_author.h"
#include "layers/layer_author.h"
#include "optim/evaluator.h"
#include "optim/trainer.h"
#include "tests/optim/random_models_draw.h"
#include "tests/optim/random_models_make.h"
#include "tests/optim/random_training.h"
#include "tests/test.h"
#include "tests/world.h"

#include <math.h>

enum { MOST = 1 << 16, IGNORED = -1 };

static wf_optim *make_optim(const plan *p, wf_layer *model)
{
    /* A large eps, which magnifies no rounding of gradients that are zero. */
    wf_optim *optim = p->optimizer == 0   ? wf_sgd(model, (wf_sgd_opts){.lr = 0.02, .momentum = 0.9})
                      : p->optimizer == 1 ? wf_adamw(model, (wf_adam_opts){.lr = 0.02, .eps = 0.5})
                                          : wf_lamb(model, (wf_lamb_opts){.lr = 0.02, .eps = 0.5});
    if (p->schedule.kind != WF_SCHEDULE_CONSTANT)
        optim = wf_lr_schedule(optim, p->schedule);
    if (p->clip_norm > 0)
        WF_EXPECT_OK(wf_optim_clip_norm(optim, p->clip_norm));
    if (p->clip_value > 0)
        WF_EXPECT_OK(wf_optim_clip_value(optim, p->clip_value));
    return optim;
}

/* --- two programs ------------------------------------------------------------------------------------------------- */

/* One rank's program; the serial one has no mesh. */
typedef struct program {
    const plan *p;
    wf_comm *comm;
    wf_mesh *mesh;
    wf_ctx *ctx;
    wf_layer *model;
    wf_optim *optim;
    wf_tape *tape;
    wf_evaluator *evaluator;
    double sum, count; /* of outputs of the serial program */
    int64_t sums;      /* of the program's own */
} program;

static late_update late; /* double buffering, in the serial program */

static wf_layout layout_of(const program *r, wf_shape shape)
{
    const plan *p = r->p;
    const int place = wf_mesh_rank(r->mesh, WF_AXIS_DATA);
    wf_layout_opts opts = {.dim = {[WF_AXIS_DATA] = WF_DIM(0)}, .bounds = {[WF_AXIS_DATA] = p->cut}};
    wf_layout layout = wf_layout_none();
    if (!p->bounds && p->words == 0)
        return wf_layout_batch(r->mesh, shape, p->cut[place], p->cut[place + 1]);
    if (is_spatial(p) && p->words > 0) {
        opts.dim[WF_AXIS_HEIGHT] = WF_DIM(1);
        opts.bounds[WF_AXIS_HEIGHT] = p->bounds ? p->cut_points[0] : NULL;
    } else if (is_spatial(p)) {
        opts.dim[WF_AXIS_HEIGHT] = WF_DIM(2);
        opts.dim[WF_AXIS_WIDTH] = WF_DIM(3);
        opts.bounds[WF_AXIS_HEIGHT] = p->cut_points[0];
        opts.bounds[WF_AXIS_WIDTH] = p->cut_points[1];
    }
    WF_EXPECT_OK(wf_mesh_layout(r->mesh, shape, opts, &layout));
    return layout;
}

/* This rank's part of a batch, of the whole one that goes; the serial program keeps it. */
static wf_tensor *own_part(const program *r, wf_tensor *all, wf_order order)
{
    if (!r->mesh)
        return all;
    const wf_layout layout = layout_of(r, wf_tensor_shape(all));
    wf_tensor *view = wf_tensor_view(all, layout.box), *mine = wf_tensor_copy(view, wf_tensor_dtype(all), order);
    WF_EXPECT_OK(wf_tensor_set_layout(mine, layout));
    wf_tensor_free(view);
    wf_tensor_free(all);
    return mine;
}

static wf_tensor *batch_of(const program *r, int64_t which)
{
    static double value[MOST];
    const wf_shape shape = r->p->image;
    test_rng rng = {r->p->number * 1000 + (uint64_t)which};
    for (int64_t i = 0; i < wf_shape_count(shape); i++)
        value[i] = test_uniform(&rng, -1, 1);
    return own_part(r, wf_tensor_from_host(r->ctx, WF_F64, shape, value), WF_CHANNELS_LAST);
}

/* Words [N,T] of a text, or those that follow them. */
static wf_tensor *words_of(const program *r, int64_t which, bool ignores)
{
    static int64_t word[MOST];
    const wf_shape shape = WF_SHAPE(r->p->image.dim[0], r->p->image.dim[2]);
    test_rng rng = {r->p->number * 1000 + (uint64_t)which};
    for (int64_t i = 0; i < wf_shape_count(shape); i++)
        word[i] = ignores && i > 0 && one_in(&rng, 3) ? IGNORED : test_int(&rng, 0, r->p->words - 1);
    return own_part(r, wf_tensor_from_host(r->ctx, WF_I64, shape, word), WF_ROW_MAJOR);
}

/* Labels of all pixels, of which one in three is ignored where any is, though never the first. */
static wf_tensor *labels_of(const program *r, wf_shape shape, int64_t which)
{
    static int64_t label[MOST];
    test_rng rng = {r->p->number * 1000 + 500 + (uint64_t)which};
    const wf_shape pixels = WF_SHAPE(shape.dim[0], shape.dim[2], shape.dim[3]);
    for (int64_t i = 0; i < wf_shape_count(pixels); i++)
        label[i] = r->p->ignores && i > 0 && one_in(&rng, 3) ? IGNORED : test_int(&rng, 0, shape.dim[1] - 1);
    return wf_tensor_from_host(r->ctx, WF_I64, pixels, label);
}

/* With an odd number of classes these have weights, and targets are smoothed. */
static wf_var *with_weights(const program *r, wf_var *scores, const wf_tensor *labels, int64_t classes)
{
    wf_label_opts own = {.ignores = r->p->ignores, .ignored = IGNORED};
    wf_tensor *weight = NULL;
    if (classes % 2) {
        static double each[MOST];
        for (int64_t c = 0; c < classes; c++)
            each[c] = 0.5 + (double)(c % 3);
        own.weight = weight = wf_tensor_from_host(r->ctx, WF_F64, WF_SHAPE(classes), each);
        own.smoothing = 0.125;
    }
    wf_var *loss = (r->p->words > 0 ? wf_token_cross_entropy : wf_softmax_cross_entropy)(scores, labels, own);
    wf_tensor_free(weight);
    return loss;
}

static wf_var *cross_entropy(const program *r, wf_var *y, int64_t which, wf_tensor **held)
{
    wf_var *scores = whole_along(y, 1u << WF_AXIS_CHANNEL);
    if (!scores)
        return NULL;
    const wf_layout layout = wf_tensor_layout(wf_value(scores));
    const wf_shape shape = wf_tensor_shape(wf_value(scores));
    const wf_box all = layout.known ? layout.box : wf_box_of_shape(shape);
    wf_box box = {.rank = 3, .lo = {all.lo[0], all.lo[2], all.lo[3]}, .hi = {all.hi[0], all.hi[2], all.hi[3]}};
    wf_tensor *whole = labels_of(r, layout.known ? layout.global : shape, which), *view = wf_tensor_view(whole, box);
    *held = wf_tensor_copy(view, WF_I64, WF_ROW_MAJOR);
    wf_tensor_free(view);
    wf_tensor_free(whole);
    return with_weights(r, scores, *held, shape.dim[1]);
}

/* The mean output of all ranks: those that hold the same part count alike. */
static void observe(program *r, const wf_var *y)
{
    static double value[MOST];
    double sum = 0;
    if (!y || !r->p->evaluator)
        return;
    const wf_tensor *held = wf_value((wf_var *)y);
    const int64_t n = wf_tensor_count(held);
    values_get(held, value);
    for (int64_t i = 0; i < n; i++)
        sum += value[i];
    if (r->evaluator)
        WF_EXPECT_OK(wf_evaluator_add_sum(r->evaluator, "output", sum, (double)n));
    r->sum += sum;
    r->count += (double)n;
}

static wf_var *loss_of(program *r, int64_t which, wf_tensor **labels)
{
    const bool text = r->p->words > 0;
    wf_tensor *x = text ? words_of(r, which, false) : batch_of(r, which);
    wf_var *y = wf_apply(r->model, wf_input(r->tape, x));
    wf_tensor_free(x);
    observe(r, y);
    if (r->p->labels && text)
        return with_weights(r, y, *labels = words_of(r, which + 500, r->p->ignores), r->p->words);
    if (r->p->labels)
        return cross_entropy(r, y, which, labels);
    wf_var *square = wf_mul(y, y);
    return wf_mean(square);
}

static wf_status one_step(program *r, int64_t i, double *loss)
{
    wf_tensor *labels[2] = {NULL};
    wf_status status = WF_OK;
    const bool delays = !r->comm && r->p->opts.double_buffering;
    if (r->p->accumulates)
        status = wf_optim_accumulate(r->optim, loss_of(r, 2 * i, &labels[0]));
    if (status == WF_OK) {
        wf_var *last = loss_of(r, 2 * i + 1, &labels[1]);
        status = delays ? wf_optim_gradients(r->optim, last) : wf_optim_step(r->optim, last);
        *loss = status == WF_OK ? wf_item(last) : 0;
    }
    if (delays && status == WF_OK)
        late_step(&late, r->model, r->optim);
    wf_tensor_free(labels[0]);
    wf_tensor_free(labels[1]);
    return status == WF_OK ? wf_tape_reset(r->tape) : status;
}

static wf_optim *program_optim(program *r)
{
    wf_multi_node_opts opts = r->p->opts;
    wf_optim *one = make_optim(r->p, r->model);
    if (r->p->own_sum) {
        opts.reduce = sum_halves;
        opts.reduce_user = &r->sums;
    }
    return r->comm ? wf_mesh_multi_node(r->mesh, one, opts) : one;
}

static bool program_open(program *r, const plan *p, wf_comm *comm)
{
    *r = (program){.p = p, .comm = comm};
    r->ctx = comm ? wf_comm_ctx(comm)
                  : wf_ctx_new((wf_ctx_opts){.device = "ref", .dtype = WF_F64, .threads = 1, .seed = p->number + 1});
    r->mesh = comm ? wf_mesh_open(comm, p->mesh) : NULL;
    r->model = make_model(r->ctx, r->mesh, p);
    r->tape = wf_tape_new(r->ctx);
    if (!r->model || (comm && wf_parallelize(r->model, r->mesh, p->how) != WF_OK))
        return false;
    if (p->labels && p->tied &&
        (wf_layer_tie(r->model, "scores/W", "0/W") != WF_OK ||
         wf_param_set_trainable(wf_layer_param(r->model, "0/W"), !p->frozen) != WF_OK))
        return false;
    if (comm && p->evaluator)
        r->evaluator = wf_evaluator_new(comm);
    r->optim = program_optim(r);
    return r->optim;
}

static void program_close(program *r)
{
    wf_evaluator_free(r->evaluator);
    wf_tape_free(r->tape);
    wf_optim_free(r->optim);
    wf_layer_free(r->model);
    wf_mesh_close(r->mesh);
    if (!r->comm)
        WF_EXPECT_OK(wf_ctx_free(r->ctx));
}

static wf_status join_late(program *r)
{
    wf_layer *more = make_part(r->ctx, r->mesh, &r->p->part[r->p->joins]);
    WF_NEED(more);
    if (r->mesh)
        WF_TRY(wf_parallelize(more, r->mesh, r->p->how));
    return wf_check(wf_module_add(r->model, "late", more));
}

static void compare(const plan *p, const program *all, const program *one)
{
    int64_t n, m;
    wf_param *const *seen, *const *should;
    static double a[MOST], b[MOST];
    WF_EXPECT_OK(wf_layer_params(all->model, &n, &seen));
    WF_EXPECT_OK(wf_layer_params(one->model, &m, &should));
    WF_EXPECT(n == m, "%s: %lld parameters, should be %lld", p->text, (long long)n, (long long)m);
    for (int64_t i = 0; i < n && n == m; i++) {
        wf_tensor *view = wf_tensor_view(wf_param_value(should[i]), seen[i]->box);
        const int64_t count = wf_tensor_count(view);
        WF_EXPECT_OK(wf_tensor_export(wf_param_value(seen[i]), a, (size_t)count * sizeof *a));
        WF_EXPECT_OK(wf_tensor_export(view, b, (size_t)count * sizeof *b));
        const double d = test_distance(count, a, b);
        WF_EXPECT(d <= 1e-8, "%s: %s is off by %g", p->text, wf_param_path(should[i]), d);
        wf_tensor_free(view);
    }
}

/* --- steps -------------------------------------------------------------------------------------------------------- */

/* Both programs of a sample. */
typedef struct twins {
    const plan *p;
    program one, all;
    double last; /* the loss of the ranks */
    double late; /* double buffering: the serial loss of the step before */
    bool waits;  /* double buffering: there is one */
} twins;

/* Before a save, and before the model changes. */
static wf_status flush(twins *t)
{
    late_flush(&late, t->one.model, t->one.optim);
    t->waits = false;
    return t->p->opts.double_buffering ? wf_optim_flush(t->all.optim) : WF_OK;
}

/* The mean of all outputs, by the evaluator. */
static void compare_outputs(twins *t)
{
    if (!t->p->evaluator)
        return;
    WF_EXPECT_OK(wf_evaluator_finish(t->all.evaluator));
    const double is = wf_evaluator_mean(t->all.evaluator, "output"), should = t->one.sum / t->one.count;
    WF_EXPECT(fabs(is - should) <= 1e-9 * (1 + fabs(should)), "%s: a mean output of %.15g, should be %.15g", t->p->text,
              is, should);
}

static wf_status join_both(twins *t)
{
    WF_TRY(flush(t));
    WF_TRY(join_late(&t->one));
    return join_late(&t->all);
}

/* With double buffering the loss is that of the step before; the first one stays the rank's own. */
static wf_status twin_step(twins *t, int64_t i)
{
    const plan *p = t->p;
    const bool delays = p->opts.double_buffering;
    double now = 0;
    if (i == 1 && p->joins < p->n)
        WF_TRY(join_both(t));
    wf_status status = one_step(&t->one, i, &now);
    WF_EXPECT(status == WF_OK, "%s: serial step %lld: %s", p->text, (long long)i, wf_error_trail());
    WF_TRY(status);
    WF_TRY(one_step(&t->all, i, &t->last));
    const double should = delays ? t->late : now;
    WF_EXPECT((delays && !t->waits) || fabs(t->last - should) <= 1e-9 * (1 + fabs(should)),
              "%s: step %lld has loss %.15g, should be %.15g", p->text, (long long)i, t->last, should);
    t->late = now;
    t->waits = true;
    if (i == 0 && p->saved) {
        WF_TRY(flush(t));
        const saved_run saved = save_run(t->all.ctx, t->all.model, t->all.optim);
        t->all.optim = program_optim(&t->all);
        WF_NEED(t->all.optim);
        load_run(saved, t->all.model, t->all.optim);
    }
    return WF_OK;
}

static wf_status train(wf_trainer *trainer, void *user)
{
    twins *t = user;
    WF_TRY(twin_step(t, wf_trainer_iteration(trainer)));
    return wf_trainer_observe(trainer, "loss", t->last, 1);
}

/* Every rank has the loss of all, and so has their mean. */
static wf_status look_at_mean(wf_trainer *trainer, void *user)
{
    const twins *t = user;
    const double mean = wf_trainer_mean(trainer, "loss");
    WF_EXPECT(t->p->opts.double_buffering || fabs(mean - t->last) <= 1e-9 * (1 + fabs(t->last)),
              "%s: a mean loss of %.15g, should be %.15g", t->p->text, mean, t->last);
    return WF_OK;
}

static wf_status run_trainer(twins *t)
{
    const wf_trainer_opts opts = {.iterations = STEPS, .report = {.iterations = 1}};
    wf_trainer *trainer = wf_trainer_new(t->all.comm, train, t, opts);
    WF_NEED(trainer);
    WF_EXPECT_OK(
        wf_trainer_add_hook(trainer, "mean", look_at_mean, t, (wf_when){.iterations = 1, .after_report = true}));
    const wf_status status = wf_trainer_run(trainer);
    WF_EXPECT(status != WF_OK || wf_trainer_iteration(trainer) == STEPS, "%s: %lld iterations", t->p->text,
              (long long)wf_trainer_iteration(trainer));
    wf_trainer_free(trainer);
    return status;
}

static wf_status steps(twins *t)
{
    if (t->p->trainer)
        return run_trainer(t);
    for (int64_t i = 0; i < STEPS; i++)
        WF_TRY(twin_step(t, i));
    return WF_OK;
}

static void run_model(const plan *p)
{
    const wf_ctx_opts opts = {.device = "ref", .dtype = WF_F64, .threads = 1, .seed = p->number + 1};
    static twins t;
    wf_comm *comm = test_comm_open(p->communicator, opts);
    late.waits = false;
    t = (twins){.p = p};
    WF_EXPECT(program_open(&t.one, p, NULL), "%s: serial: %s", p->text, wf_error_trail());
    const bool opened = program_open(&t.all, p, comm);
    WF_EXPECT(opened, "%s: %s", p->text, wf_error_trail());
    wf_status status = opened ? steps(&t) : WF_ERR_STATE;
    if (status == WF_OK)
        status = flush(&t);
    WF_EXPECT(!opened || status == WF_OK, "%s: %s", p->text, wf_error_message());
    WF_EXPECT(status != WF_OK || !p->own_sum || !sums_gradients(p) || t.all.sums > 0,
              "%s: no sum was the program's own", p->text);
    if (status == WF_OK) {
        compare(p, &t.all, &t.one);
        compare_outputs(&t);
    }
    wf_error_clear();
    program_close(&t.all);
    program_close(&t.one);
    WF_EXPECT_OK(wf_comm_close(comm));
    wf_error_clear();
}

/* --- all samples -------------------------------------------------------------------------------------------------- */

enum { SHARES = 9, COVERS = 300 };

/* Ranks of model i. */
static int ranks_of(uint64_t i)
{
    static const int shares[SHARES] = {1, 2, 2, 3, 3, 4, 4, 4, 8};
    return shares[i % SHARES];
}

/* Draws all samples, since each has what those before it lack, and runs those from `first` on of this count of ranks.
 */
static int on_ranks(int argc, char **argv)
{
    static pairs table;
    static plan p;
    static unsigned counts;
    wf_comm *comm = test_comm_open("flat", (wf_ctx_opts){0});
    const int size = wf_comm_size(comm), rank = wf_comm_rank(comm);
    WF_EXPECT_OK(wf_comm_close(comm));
    const uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 10) : 0,
                   count = argc > 2 ? strtoull(argv[2], NULL, 10) : 8;
    int64_t models = 0;
    unsigned all = 0;
    open_pairs(&table);
    for (uint64_t i = 0; i < first + count; i++) {
        draw_plan(&table, i, ranks_of(i), &p);
        if (ranks_of(i) != size || i < first)
            continue;
        run_model(&p);
        models++;
    }
    printf("%d ranks: %lld models, %lld failures\n", size, (long long)models, (long long)test_failures());
    counts |= 1u << size;
    for (uint64_t i = 0; i < SHARES; i++)
        all |= 1u << ranks_of(i);
    if (counts == all && rank == 0 && first == 0)
        pairs_report(&table, WF_TEST_FOLDER, "pairs_of_models", count >= COVERS);
    return test_failures() > 0;
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
