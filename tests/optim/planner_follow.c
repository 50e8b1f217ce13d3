/* A model that follows a plan read from a file computes what the serial one does, whatever each layer's form is, and
 * its exchanges send the bytes that the plan predicts. With stages it trains as the serial one. */
#include "tests/test.h"
#include "tests/world.h"

#include "core/profile_author.h"
#include "layers/functions.h"
#include "layers/layers.h"
#include "optim/planner_author.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static wf_comm *comm;
static wf_ctx *ctx;

static wf_status step_of(void *own, const wf_planner_model *m, int64_t batch, wf_planner_times *t)
{
    t->batch = batch;
    t->forward_s = t->backward_s = 1e-3;
    t->update_s = t->kept = t->fixed = t->more = 0;
    for (int i = 0; i < m->n_leaves; i++)
        t->leaf_forward_s[i] = t->leaf_backward_s[i] = 1e-3 / m->n_leaves;
    return WF_OK;
}

static wf_status part_of(void *own, const wf_planner_leaf *leaf, wf_shape x, int64_t in, int64_t out, double *seconds)
{
    *seconds = 1e-6;
    return WF_OK;
}

static wf_layer *conv(int64_t in, int64_t out, int64_t kernel)
{
    return wf_conv2d(ctx, (wf_conv_opts){.in = in, .out = out, .kernel = kernel, .pad = kernel / 2});
}

static wf_layer *model_new(void)
{
    wf_layer *chain =
        wf_sequential(ctx, WF_LAYERS(conv(3, 8, 3), wf_lambda(ctx, wf_relu), conv(8, 8, 5),
                                     wf_max_pool2d(ctx, (wf_pool_opts){.kernel = 2, .stride = 2}), conv(8, 4, 3)));
    return wf_layer_named(chain, "net");
}

/* Of an input that does not depend on the rank: the output, whole, and the gradient of the first filter. */
static void run(wf_layer *model, const wf_mesh *mesh, double *y, int64_t n, double *sent)
{
    float x[2 * 3 * 32 * 32];
    for (int i = 0; i < 2 * 3 * 32 * 32; i++)
        x[i] = (float)sin(0.1 * i);
    wf_tensor *in = wf_tensor_from_host(ctx, WF_F32, WF_SHAPE(2, 3, 32, 32), x);
    wf_tape *tape = wf_tape_new(ctx);
    if (mesh)
        WF_EXPECT_OK(wf_tensor_set_layout(in, wf_mesh_layout_same(mesh, WF_SHAPE(2, 3, 32, 32))));
    WF_EXPECT_OK(wf_profile_begin(ctx, 0));
    wf_var *out = wf_apply(model, wf_input(tape, in));
    WF_EXPECT_OK(wf_check(out));
    wf_tensor *ones = wf_tensor_new_like(wf_value(out));
    WF_EXPECT_OK(wf_tensor_fill(ones, 1));
    wf_tensor *kept = wf_keep(wf_unshard(out));
    const wf_profile_row *row;
    double before = 0;
    int64_t rows = wf_profile_rows(ctx->profile, &row);
    /* The gathering of the output here is no part of the plan. */
    for (int64_t i = 0; i < rows; i++)
        before += *row[i].layer ? 0 : row[i].sent;
    WF_EXPECT_OK(wf_backward_from(out, ones));
    rows = wf_profile_rows(ctx->profile, &row);
    *sent = -before;
    for (int64_t i = 0; i < rows; i++)
        *sent += row[i].sent;
    wf_profile_free(ctx->profile);
    float *host = calloc((size_t)n, sizeof *host);
    WF_EXPECT(wf_tensor_count(kept) == n, "%lld outputs", (long long)wf_tensor_count(kept));
    WF_EXPECT_OK(wf_tensor_export(kept, host, (size_t)n * sizeof *host));
    for (int64_t i = 0; i < n; i++)
        y[i] = host[i];
    free(host);
    wf_tensor_free(kept);
    wf_tensor_free(ones);
    wf_tensor_free(in);
    WF_EXPECT_OK(wf_tape_reset(tape));
    wf_tape_free(tape);
}

static wf_training_plan *plan_new(wf_mesh_opts mesh, int split)
{
    const wf_planner_meter meter = {
        .step = step_of, .part = part_of, .links = wf_price_model_default(), .exchange = {{1e-6, 1e-10}}};
    const wf_planner_opts o = {.ranks = wf_comm_size(comm),
                               .nodes = 1,
                               .batch = 2,
                               .mesh = mesh,
                               .split = split,
                               .can = WF_PLANNER_CHANNEL | WF_PLANNER_SPATIAL};
    wf_planner_model m;
    wf_layer *model = model_new();
    WF_EXPECT_OK(wf_planner_trace(model, WF_SHAPE(2, 3, 32, 32), &m));
    wf_training_plan *plan = wf_planner_search(&m, &meter, &o);
    wf_planner_model_clear(&m);
    wf_layer_free(model);
    return plan;
}

/* `forms`: of each layer, a digit of wf_parallel; NULL: as the search has it, and then the bytes are compared. */
static void follow(wf_mesh_opts opts, int split, const char *forms)
{
    enum { OUTPUTS = 2 * 4 * 16 * 16 };
    static double serial[OUTPUTS], planned[OUTPUTS];
    char path[64] = "plan-0.json";
    double sent = 0, bytes = 0, alone;
    wf_training_plan *made = plan_new(opts, split);
    WF_EXPECT_OK(wf_check(made));
    if (!made)
        return;
    for (int i = 0; forms && forms[i]; i++) {
        made->unit[i].split = (unsigned)(forms[i] - '0');
        made->unit[i].recompute = i == 0;
    }
    int64_t id = getpid();
    WF_EXPECT_OK(wf_bcast_bytes(comm, &id, sizeof id, 0));
    snprintf(path, sizeof path, "plan-%lld.json", (long long)id);
    if (wf_comm_rank(comm) == 0)
        WF_EXPECT_OK(wf_training_plan_write(made, path));
    wf_training_plan_free(made);
    wf_training_plan *plan = wf_training_plan_read(comm, path);
    WF_EXPECT_OK(wf_check(plan));
    wf_mesh *mesh = wf_mesh_open(comm, wf_training_plan_mesh(plan));
    wf_layer *one = model_new(), *all = model_new();
    run(one, NULL, serial, OUTPUTS, &alone);
    WF_EXPECT_OK(wf_training_plan_apply(plan, mesh, all, false));
    run(all, mesh, planned, OUTPUTS, &sent);
    double worst = 0;
    for (int i = 0; i < OUTPUTS; i++)
        worst = fmax(worst, fabs(serial[i] - planned[i]));
    WF_EXPECT(worst < 1e-5, "split %d, forms %s: outputs differ by %g", split, forms ? forms : "chosen", worst);
    for (int i = 0; i < plan->n_units; i++)
        bytes += plan->unit[i].bytes;
    WF_EXPECT_OK(wf_allreduce_f64(comm, &sent, 1, WF_SUM));
    bytes *= wf_comm_size(comm);
    if (!forms && wf_comm_size(comm) > 1)
        WF_EXPECT(sent > 0 && fabs(sent - bytes) < 0.5, "split %d: %g bytes are sent, %g predicted", split, sent,
                  bytes);
    wf_layer_free(one);
    wf_layer_free(all);
    wf_mesh_close(mesh);
    wf_training_plan_free(plan);
    WF_EXPECT_OK(wf_barrier(comm));
    if (wf_comm_rank(comm) == 0)
        unlink(path);
}

static void pixels(void)
{
    const int n = wf_comm_size(comm);
    follow((wf_mesh_opts){1, 1, 1, n, 1, 1}, WF_PARALLEL_SPATIAL, NULL);
    follow((wf_mesh_opts){1, 1, 1, 1, n, 1}, WF_PARALLEL_SPATIAL, NULL);
    if (n == 4)
        follow((wf_mesh_opts){1, 1, 1, 2, 2, 1}, WF_PARALLEL_SPATIAL, NULL);
}

static void forms_that_change(void)
{
    const int n = wf_comm_size(comm);
    static const char *const forms[] = {"20222", "22000", "00222", "22220", "20020"};
    for (int i = 0; i < 5; i++)
        follow((wf_mesh_opts){1, 1, 1, n, 1, 1}, 0, forms[i]);
    static const char *const channels[] = {"10110", "00110", "10000", "11010"};
    for (int i = 0; i < 4; i++)
        follow((wf_mesh_opts){1, n, 1, 1, 1, 1}, 0, channels[i]);
    static const char *const both[] = {"30130", "12320", "20130", "32012", "10222"};
    for (int i = 0; i < 5 && n == 4; i++)
        follow((wf_mesh_opts){1, 2, 1, 2, 1, 1}, 0, both[i]);
}

/* --- stages --------------------------------------------------------------------------------------------------------
 */

enum { SAMPLES = 8, STEPS = 3, CLASSES = 5 };

static wf_layer *staged_model(void)
{
    const wf_linear_opts head = {.in = 4 * 8 * 8, .out = CLASSES, .replicate = true};
    wf_layer *chain =
        wf_sequential(ctx, WF_LAYERS(conv(3, 8, 3), wf_lambda(ctx, wf_relu), conv(8, 8, 3), wf_lambda(ctx, wf_relu),
                                     conv(8, 4, 3), wf_avg_pool2d(ctx, (wf_pool_opts){.kernel = 2, .stride = 2}),
                                     wf_lambda(ctx, wf_flatten), wf_linear(ctx, head)));
    return wf_layer_named(chain, "net");
}

/* The samples from lo on, of those of the batch. */
static wf_tensor *samples_of(const wf_mesh *mesh, int lo, int n, wf_tensor **labels)
{
    float x[SAMPLES * 3 * 16 * 16];
    int64_t label[SAMPLES];
    for (int i = 0; i < n * 3 * 16 * 16; i++)
        x[i] = (float)sin(0.1 * (i + lo * 3 * 16 * 16));
    for (int i = 0; i < n; i++)
        label[i] = (lo + i) % CLASSES;
    wf_tensor *t = wf_tensor_from_host(ctx, WF_F32, WF_SHAPE(n, 3, 16, 16), x);
    *labels = wf_tensor_from_host(ctx, WF_I64, WF_SHAPE(n), label);
    if (mesh) {
        WF_EXPECT_OK(wf_tensor_set_layout(t, wf_layout_batch(mesh, WF_SHAPE(SAMPLES, 3, 16, 16), lo, lo + n)));
        WF_EXPECT_OK(wf_tensor_set_layout(*labels, wf_layout_batch(mesh, WF_SHAPE(SAMPLES), lo, lo + n)));
    }
    return t;
}

/* The losses of some steps, of the serial model or along a plan. */
static void train(const wf_training_plan *plan, const wf_mesh *mesh, double *losses)
{
    const int n = SAMPLES / (mesh ? wf_mesh_size(mesh, WF_AXIS_DATA) : 1);
    wf_layer *model = staged_model();
    wf_pipeline *pipe = NULL;
    wf_tensor *labels, *x = samples_of(mesh, n * (mesh ? wf_mesh_rank(mesh, WF_AXIS_DATA) : 0), n, &labels);
    if (plan) {
        wf_pipeline_opts opts = wf_training_plan_pipeline(plan);
        opts.loss = wf_softmax_cross_entropy;
        WF_EXPECT_OK(wf_training_plan_apply(plan, mesh, model, false));
        pipe = wf_pipeline_new(mesh, model, opts);
        WF_EXPECT(pipe, "%s", wf_error_message());
        model = wf_pipeline_model(pipe);
    }
    wf_optim *optim = wf_sgd(model, (wf_sgd_opts){.lr = 0.5});
    optim = mesh ? wf_mesh_multi_node(mesh, optim) : optim;
    wf_tape *tape = wf_tape_new(ctx);
    for (int i = 0; i < STEPS; i++) {
        wf_var *loss = pipe ? wf_pipeline_step(pipe, tape, x, labels)
                            : wf_softmax_cross_entropy(wf_apply(model, wf_input(tape, x)), labels);
        WF_EXPECT_OK(wf_optim_step(optim, loss));
        losses[i] = wf_item(loss);
        WF_EXPECT_OK(wf_tape_reset(tape));
    }
    wf_tape_free(tape);
    wf_optim_free(optim);
    if (pipe)
        wf_pipeline_free(pipe);
    else
        wf_layer_free(model);
    wf_tensor_free(x);
    wf_tensor_free(labels);
}

/* A plan with stages, through a file and back. */
static wf_training_plan *staged_plan(wf_mesh_opts mesh, int split)
{
    const wf_planner_meter meter = {
        .step = step_of, .part = part_of, .links = wf_price_model_default(), .exchange = {{1e-9, 1e-15}}};
    const wf_planner_opts o = {.ranks = wf_comm_size(comm),
                               .nodes = 1,
                               .batch = SAMPLES,
                               .mesh = mesh,
                               .split = split,
                               .can = WF_PLANNER_CHANNEL | WF_PLANNER_SPATIAL | WF_PLANNER_STAGE};
    wf_planner_model m;
    char path[64];
    int64_t id = getpid();
    wf_layer *model = staged_model();
    WF_EXPECT_OK(wf_planner_trace(model, WF_SHAPE(2, 3, 16, 16), &m));
    wf_training_plan *made = wf_planner_search(&m, &meter, &o), *plan = NULL;
    WF_EXPECT(made, "%s", wf_error_message());
    WF_EXPECT_OK(wf_bcast_bytes(comm, &id, sizeof id, 0));
    snprintf(path, sizeof path, "staged-%lld.json", (long long)id);
    if (made && wf_comm_rank(comm) == 0)
        WF_EXPECT_OK(wf_training_plan_write(made, path));
    if (made)
        plan = wf_training_plan_read(comm, path);
    WF_EXPECT(!made || (plan && plan->schedule == made->schedule && plan->parts == made->parts), "%s",
              wf_error_message());
    WF_EXPECT_OK(wf_barrier(comm));
    if (wf_comm_rank(comm) == 0)
        unlink(path);
    wf_training_plan_free(made);
    wf_planner_model_clear(&m);
    wf_layer_free(model);
    return plan;
}

/* Stages together with every other axis train as the serial model. */
static void stages(void)
{
    const int n = wf_comm_size(comm);
    const struct {
        int ranks, split;
        wf_mesh_opts mesh; /* data, channel, depth, height, width, stage */
    } grids[] = {{2, 0, {1, 1, 1, 1, 1, 2}},
                 {4, 0, {2, 1, 1, 1, 1, 2}},
                 {4, 0, {1, 1, 1, 1, 1, 4}},
                 {4, WF_PARALLEL_CHANNEL, {1, 2, 1, 1, 1, 2}},
                 {4, WF_PARALLEL_SPATIAL, {1, 1, 1, 2, 1, 2}}};
    double serial[STEPS], planned[STEPS];
    for (size_t g = 0; g < sizeof grids / sizeof *grids; g++) {
        wf_training_plan *plan = grids[g].ranks == n ? staged_plan(grids[g].mesh, grids[g].split) : NULL;
        if (!plan)
            continue;
        /* Messages cost next to nothing here, so the schedule with the least idle time is the fastest. */
        WF_EXPECT(plan->mesh.stage > 2 || (plan->schedule == WF_PIPELINE_INTERLEAVED && plan->parts > 1),
                  "grid %zu: schedule %d of %d parts", g, (int)plan->schedule, plan->parts);
        for (int i = 0; i < plan->n_units; i++)
            WF_EXPECT(i % 2 || i > 4 || plan->unit[i].split == (unsigned)grids[g].split, "grid %zu, layer %d: %u", g, i,
                      plan->unit[i].split);
        wf_mesh *mesh = wf_mesh_open(comm, wf_training_plan_mesh(plan));
        train(NULL, NULL, serial);
        train(plan, mesh, planned);
        for (int i = 0; i < STEPS; i++)
            WF_EXPECT(fabs(serial[i] - planned[i]) < 1e-5 && serial[0] > serial[STEPS - 1],
                      "grid %zu, step %d: loss %g, not %g", g, i, planned[i], serial[i]);
        wf_mesh_close(mesh);
        wf_training_plan_free(plan);
    }
}

/* Of another number of ranks, and of another model. */
static void strangers(void)
{
    wf_training_plan *plan = plan_new((wf_mesh_opts){1, 1, 1, wf_comm_size(comm), 1, 1}, 0);
    WF_EXPECT_OK(wf_check(plan));
    wf_mesh *mesh = wf_mesh_open(comm, wf_training_plan_mesh(plan));
    wf_layer *other = wf_layer_named(wf_sequential(ctx, WF_LAYERS(conv(3, 4, 3))), "net");
    WF_EXPECT_ERROR(WF_ERR_ARGUMENT, wf_training_plan_apply(plan, mesh, other, false));
    wf_error_clear();
    WF_EXPECT(!wf_training_plan_read(comm, "there is none.json"), "a file that is not there is read");
    wf_error_clear();
    wf_layer_free(other);
    wf_mesh_close(mesh);
    wf_training_plan_free(plan);
}

static int run_all(int argc, char **argv)
{
    comm = test_comm_open("auto", (wf_ctx_opts){.device = "cpu", .threads = 1});
    ctx = wf_comm_ctx(comm);
    const int failed = test_main(argc, argv,
                                 (test_case[]){{"pixels", pixels},
                                               {"forms_that_change", forms_that_change},
                                               {"stages", stages},
                                               {"strangers", strangers},
                                               {0}});
    return wf_comm_close(comm) != WF_OK || failed;
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, run_all);
}
