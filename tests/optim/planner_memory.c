/* The memory of a rank that a plan predicts is what training by the plan takes at its peak, by the pool's own count: of
 * channels that are split, with and without a limit, under which layers are recomputed. */
#include "tests/test.h"
#include "tests/world.h"

#include "core/context_author.h"
#include "layers/functions.h"
#include "layers/layers.h"
#include "layers/loss.h"
#include "optim/planner_author.h"

#include <math.h>
#include <string.h>

static wf_comm *comm;
static wf_ctx *ctx;

enum { SAMPLES = 16, SIDE = 32, STEPS = 4, CLASSES = 5 };

static wf_layer *block(int64_t in, int64_t out)
{
    return wf_sequential(ctx,
                         WF_LAYERS(wf_conv2d(ctx, (wf_conv_opts){.in = in, .out = out, .kernel = 3, .pad = 1}),
                                   wf_batchnorm(ctx, (wf_batchnorm_opts){.channels = out}), wf_lambda(ctx, wf_relu)));
}

static wf_layer *pool(void)
{
    return wf_max_pool2d(ctx, (wf_pool_opts){.kernel = 2, .stride = 2});
}

static wf_layer *model_new(void)
{
    const wf_linear_opts head = {.in = 64, .out = CLASSES, .replicate = true};
    return wf_layer_named(
        wf_sequential(ctx, WF_LAYERS(block(3, 16), block(16, 16), pool(), block(16, 32), block(32, 32), pool(),
                                     block(32, 64), block(64, 64), wf_global_avg_pool(ctx), wf_linear(ctx, head))),
        "net");
}

static wf_optim *optim_new(wf_layer *model)
{
    return wf_sgd(model, (wf_sgd_opts){.lr = 0.01, .momentum = 0.9});
}

/* --- predicted ------------------------------------------------------------------------------------------------------
 */

static wf_gauge gauge;
static wf_planner_meter library; /* which measures a step's memory */

/* Its bytes are measured, and its times are chosen, so that the plan does not depend on them. */
static wf_status step_of(void *own, const wf_planner_model *m, int64_t batch, wf_planner_times *t)
{
    WF_TRY(library.step(library.own, m, batch, t));
    t->forward_s = t->backward_s = t->update_s = 0;
    for (int i = 0; i < m->n_leaves; i++) {
        t->leaf_forward_s[i] = t->leaf_backward_s[i] = 1e-9 * (double)wf_shape_count(m->leaf[i].y);
        t->forward_s += t->leaf_forward_s[i];
        t->backward_s += t->leaf_backward_s[i];
    }
    return WF_OK;
}

static wf_status part_of(void *own, const wf_planner_leaf *leaf, wf_shape x, int64_t in, int64_t out,
                         wf_planner_part *t)
{
    WF_TRY(library.part(library.own, leaf, x, in, out, t));
    t->seconds = 1e-9 * (double)wf_shape_count(x) / (double)out;
    return WF_OK;
}

static wf_training_plan *plan_new(wf_mesh_opts mesh, int split, double memory)
{
    const wf_planner_opts o = {.ranks = wf_comm_size(comm),
                               .nodes = 1,
                               .batch = SAMPLES,
                               .mesh = mesh,
                               .split = split,
                               .memory = memory,
                               .can = WF_PLANNER_CHANNEL | WF_PLANNER_SPATIAL | WF_PLANNER_RECOMPUTE};
    wf_layer *model = model_new();
    wf_planner_model m;
    wf_training_plan *plan = NULL;
    gauge = (wf_gauge){.comm = comm, .optim = optim_new(model)};
    WF_EXPECT_OK(wf_planner_trace(model, WF_SHAPE(2, 3, SIDE, SIDE), &m));
    WF_EXPECT_OK(wf_gauge_open(&gauge, &m, &library));
    wf_planner_meter meter = library;
    meter.step = step_of;
    meter.part = part_of;
    meter.split = NULL;
    plan = wf_planner_search(&m, &meter, &o);
    wf_gauge_close(&gauge);
    wf_optim_free(gauge.optim);
    wf_planner_model_clear(&m);
    wf_layer_free(model);
    return plan;
}

/* --- measured -------------------------------------------------------------------------------------------------------
 */

static void train(const wf_mesh *mesh, wf_layer *model, wf_optim *optim)
{
    float x[SAMPLES * 3 * SIDE * SIDE];
    int64_t label[SAMPLES];
    const wf_shape shape = WF_SHAPE(SAMPLES, 3, SIDE, SIDE);
    for (int i = 0; i < SAMPLES * 3 * SIDE * SIDE; i++)
        x[i] = (float)sin(0.1 * i);
    for (int i = 0; i < SAMPLES; i++)
        label[i] = i % CLASSES;
    wf_layout layout = wf_mesh_layout_same(mesh, shape);
    wf_tensor *all = wf_tensor_from_host(ctx, WF_F32, shape, x);
    wf_tensor *labels = wf_tensor_from_host(ctx, WF_I64, WF_SHAPE(SAMPLES), label);
    WF_EXPECT_OK(wf_tensor_set_layout(all, layout));
    WF_EXPECT_OK(wf_tensor_set_layout(labels, wf_mesh_layout_same(mesh, WF_SHAPE(SAMPLES))));
    wf_tape *tape = wf_tape_new(ctx);
    for (int i = 0; i < STEPS; i++) {
        wf_var *y = wf_apply(model, wf_input(tape, all));
        WF_EXPECT_OK(wf_optim_step(optim, wf_softmax_cross_entropy(y, labels, (wf_label_opts){0})));
        WF_EXPECT_OK(wf_tape_reset(tape));
    }
    wf_tape_free(tape);
    wf_tensor_free(all);
    wf_tensor_free(labels);
}

/* The most of all ranks. */
static double peak_of(const wf_training_plan *plan)
{
    wf_mesh *mesh = wf_mesh_open(comm, wf_training_plan_mesh(plan));
    const size_t before = wf_ctx_memory(ctx).bytes_in_use;
    (void)wf_pool_mark(ctx);
    wf_layer *model = model_new();
    WF_EXPECT_OK(wf_training_plan_apply(plan, mesh, model, false));
    wf_optim *optim = wf_mesh_multi_node(mesh, optim_new(model), wf_training_plan_multi_node(plan));
    train(mesh, model, optim);
    double peak = (double)(wf_pool_mark(ctx) - before);
    wf_optim_free(optim);
    wf_layer_free(model);
    wf_mesh_close(mesh);
    WF_EXPECT_OK(wf_allreduce_f64(comm, &peak, 1, WF_MAX));
    return peak;
}

static double compare(wf_mesh_opts mesh, int split, double limit, bool *again)
{
    wf_training_plan *plan = plan_new(mesh, split, limit);
    WF_EXPECT(plan, "%s", wf_error_message());
    const double predicted = plan ? plan->memory : 0, measured = plan ? peak_of(plan) : 1;
    WF_EXPECT(fabs(predicted / measured - 1) < 0.1,
              "split %d, limit %.3g: %.0f bytes predicted, %.0f measured (%+.1f %%)", split, limit, predicted, measured,
              100 * (predicted / measured - 1));
    *again = false;
    for (int i = 0; plan && i < plan->n_units; i++)
        *again = *again || plan->unit[i].recompute;
    wf_training_plan_free(plan);
    return predicted;
}

static void channels(void)
{
    const int n = wf_comm_size(comm);
    const wf_mesh_opts mesh = {1, n, 1, 1, 1, 1};
    bool again;
    const double all = compare(mesh, WF_PARALLEL_CHANNEL, 0, &again);
    WF_EXPECT(!again, "layers are recomputed without a limit");
    (void)compare(mesh, WF_PARALLEL_CHANNEL, 0.9 * all, &again);
    WF_EXPECT(again, "no layer is recomputed under a limit");
}

/* A mesh that is asked for and cannot be: the message names it, and says why. */
static void refused_meshes(void)
{
    static const struct {
        int ranks;
        wf_mesh_opts mesh;
        const char *says;
    } cases[] = {
        {2, {3, 1, 1, 1, 1, 1}, "a mesh of data 3 has 3 ranks: should have 2"},
        {8, {.data = 2, .channel = 2, .depth = 1, .height = 1, .width = 1, .stage = 1}, "has 4 ranks: should have 8"},
        {SAMPLES + 1, {SAMPLES + 1, 1, 1, 1, 1, 1}, "data should be a number that divides it"},
        {99,
         {.data = 1, .channel = 1, .depth = 1, .height = 1, .width = 1, .stage = 99},
         "a mesh of stage 99 for a model"},
        {2, {.data = 1, .channel = 2, .depth = 1, .height = 1, .width = 1, .stage = 1}, "does not take such a mesh"}};
    wf_layer *model = model_new();
    wf_planner_model m;
    WF_EXPECT_OK(wf_planner_trace(model, WF_SHAPE(2, 3, SIDE, SIDE), &m));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const wf_planner_opts o = {.ranks = cases[i].ranks,
                                   .nodes = 1,
                                   .batch = SAMPLES,
                                   .mesh = cases[i].mesh,
                                   .split = -1,
                                   .can = WF_PLANNER_STAGE};
        const wf_planner_meter none = {0};
        wf_training_plan *plan = wf_planner_search(&m, &none, &o);
        WF_EXPECT(!plan && wf_error_code() == WF_ERR_ARGUMENT && strstr(wf_error_message(), cases[i].says),
                  "\"%s\" does not say \"%s\"", wf_error_message(), cases[i].says);
        wf_error_clear();
    }
    wf_planner_model_clear(&m);
    wf_layer_free(model);
}

static int run_all(int argc, char **argv)
{
    comm = test_comm_open("auto", (wf_ctx_opts){.device = "cpu", .threads = 1});
    ctx = wf_comm_ctx(comm);
    const int failed =
        test_main(argc, argv, (test_case[]){{"channels", channels}, {"refused_meshes", refused_meshes}, {0}});
    return wf_comm_close(comm) != WF_OK || failed;
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, run_all);
}
