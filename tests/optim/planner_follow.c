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

static double kept_bytes; /* of a step */

static wf_status step_of(void *own, const wf_planner_model *m, int64_t batch, wf_planner_times *t)
{
    t->batch = batch;
    t->forward_s = t->backward_s = 1e-3;
    t->update_s = t->fixed = t->more = 0;
    t->kept = kept_bytes;
    for (int i = 0; i < m->n_leaves; i++)
        t->leaf_forward_s[i] = t->leaf_backward_s[i] = 1e-3 / m->n_leaves;
    return WF_OK;
}

/* The form that each layer of a chain shall have, a digit of wf_parallel each: any other one would take a second. NULL:
 * what is split takes no time. */
static const char *wanted;

static wf_status part_of(void *own, const wf_planner_leaf *leaf, wf_shape x, int64_t in, int64_t out,
                         wf_planner_part *t)
{
    unsigned form = in * out > 1 ? WF_PARALLEL_CHANNEL : 0;
    for (int d = 2; d < x.rank; d++)
        form |= x.dim[d] != leaf->x.dim[d] ? WF_PARALLEL_SPATIAL : 0;
    const char *number = strrchr(leaf->path, '/');
    const bool right = !wanted || !number || (unsigned)(wanted[atoi(number + 1)] - '0') == form;
    *t = (wf_planner_part){.seconds = right ? 1e-6 : 1};
    return WF_OK;
}

static wf_layer *conv(int64_t in, int64_t out, int64_t kernel)
{
    return wf_conv2d(ctx, (wf_conv_opts){.in = in, .out = out, .kernel = kernel, .pad = kernel / 2});
}

static wf_layer *(*end_of_model)(wf_ctx *ctx); /* a global pool, or NULL */

/* Layers 0, 3 and 5 are convolutions. */
static wf_layer *model_new(void)
{
    const wf_conv_opts last = {.in = 8, .out = 4, .kernel = 3, .pad = 1, .replicate = true};
    const wf_pool_opts pool = {.kernel = 3, .stride = 2, .pad = 1};
    wf_layer *layer[] = {conv(3, 8, 3),
                         wf_batchnorm(ctx, (wf_batchnorm_opts){.channels = 8}),
                         wf_lambda(ctx, wf_relu),
                         conv(8, 8, 5),
                         wf_max_pool2d(ctx, pool),
                         wf_conv2d(ctx, last),
                         end_of_model ? end_of_model(ctx) : NULL};
    return wf_layer_named(wf_sequential(ctx, end_of_model ? 7 : 6, layer), "net");
}

/* Runs the model forward and backward on an input that does not depend on the rank. y: the whole output; *sent: the
 * bytes that the layers send. */
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

/* memory: of a rank; 0: no limit. */
static wf_training_plan *plan_new(wf_mesh_opts mesh, int split, double memory)
{
    const wf_planner_meter meter = {
        .step = step_of, .part = part_of, .links = wf_price_model_default(), .exchange = {{1e-6, 1e-10}}};
    const wf_planner_opts o = {.ranks = wf_comm_size(comm),
                               .nodes = 1,
                               .batch = 2,
                               .mesh = mesh,
                               .split = split,
                               .memory = memory,
                               .can = WF_PLANNER_CHANNEL | WF_PLANNER_SPATIAL | WF_PLANNER_RECOMPUTE};
    wf_planner_model m;
    wf_layer *model = model_new();
    WF_EXPECT_OK(wf_planner_trace(model, WF_SHAPE(2, 3, 32, 32), &m));
    wf_training_plan *plan = wf_planner_search(&m, &meter, &o);
    wf_planner_model_clear(&m);
    wf_layer_free(model);
    return plan;
}

/* The plan goes through a file; the caller frees it. */
static wf_training_plan *through_file(wf_training_plan *made, const char *name)
{
    char path[64];
    int64_t id = getpid();
    WF_EXPECT(made, "%s", wf_error_message());
    WF_EXPECT_OK(wf_bcast_bytes(comm, &id, sizeof id, 0));
    snprintf(path, sizeof path, "%s-%lld.json", name, (long long)id);
    if (made && wf_comm_rank(comm) == 0)
        WF_EXPECT_OK(wf_training_plan_write(made, path));
    wf_training_plan *plan = made ? wf_training_plan_read(comm, path) : NULL;
    WF_EXPECT(!made || plan, "%s", wf_error_message());
    WF_EXPECT_OK(wf_barrier(comm));
    if (wf_comm_rank(comm) == 0)
        unlink(path);
    wf_training_plan_free(made);
    return plan;
}

/* Runs a plan and frees it; the bytes that it predicts are sent. */
static void run_plan(wf_training_plan *plan, const char *what)
{
    enum { OUTPUTS = 2 * 4 * 16 * 16 };
    static double serial[OUTPUTS], planned[OUTPUTS];
    double sent = 0, bytes = 0, alone, worst = 0;
    wf_mesh *mesh = wf_mesh_open(comm, wf_training_plan_mesh(plan));
    wf_layer *one = model_new(), *all = model_new();
    const int outputs = end_of_model ? 2 * 4 : OUTPUTS;
    run(one, NULL, serial, outputs, &alone);
    WF_EXPECT_OK(wf_training_plan_apply(plan, mesh, all, false));
    run(all, mesh, planned, outputs, &sent);
    for (int i = 0; i < outputs; i++)
        worst = fmax(worst, fabs(serial[i] - planned[i]));
    WF_EXPECT(worst < 1e-5, "%s: outputs differ by %g", what, worst);
    for (int i = 0; i < plan->n_units; i++)
        bytes += plan->unit[i].bytes * wf_comm_size(comm);
    WF_EXPECT_OK(wf_allreduce_f64(comm, &sent, 1, WF_SUM));
    /* What layers only add up goes through memory. */
    const bool moves = wf_comm_size(comm) > 1 && strcmp(what, "00.1.1") != 0;
    WF_EXPECT(fabs(sent - bytes) < 0.5 && (sent > 0) == moves, "%s: %g bytes are sent, %g predicted", what, sent,
              bytes);
    wf_layer_free(one);
    wf_layer_free(all);
    wf_mesh_close(mesh);
    wf_training_plan_free(plan);
}

/* `forms`: which convolutions, and the normalisation, shall be the fastest; NULL: all of them are split as `split`. */
static void follow(wf_mesh_opts opts, int split, const char *forms)
{
    const char *what = forms ? forms : "one form";
    wanted = forms;
    wf_training_plan *plan = through_file(plan_new(opts, forms ? -1 : split, 0), "plan");
    wanted = NULL;
    if (!plan)
        return;
    for (int i = 0; i < plan->n_units && wf_comm_size(comm) > 1; i++)
        WF_EXPECT(i == 1 || i == 2 || i == 4 || i > 5 ||
                      plan->unit[i].split == (forms ? (unsigned)(forms[i] - '0') : (unsigned)split),
                  "%s: layer %d is split by %u", what, i, plan->unit[i].split);
    run_plan(plan, what);
}

static void pixels(void)
{
    const int n = wf_comm_size(comm);
    follow((wf_mesh_opts){1, 1, 1, n, 1, 1}, WF_PARALLEL_SPATIAL, NULL);
    follow((wf_mesh_opts){1, 1, 1, 1, n, 1}, WF_PARALLEL_SPATIAL, NULL);
    if (n == 4)
        follow((wf_mesh_opts){1, 1, 1, 2, 2, 1}, WF_PARALLEL_SPATIAL, NULL);
    end_of_model = wf_global_avg_pool;
    follow((wf_mesh_opts){1, 1, 1, n, 1, 1}, WF_PARALLEL_SPATIAL, NULL);
    end_of_model = wf_global_max_pool;
    follow((wf_mesh_opts){1, 1, 1, n, 1, 1}, WF_PARALLEL_SPATIAL, NULL);
    end_of_model = NULL;
}

static void channels(void)
{
    const int n = wf_comm_size(comm);
    follow((wf_mesh_opts){1, n, 1, 1, 1, 1}, WF_PARALLEL_CHANNEL, NULL);
    if (n == 4)
        follow((wf_mesh_opts){1, 2, 1, 2, 1, 1}, WF_PARALLEL_CHANNEL | WF_PARALLEL_SPATIAL, NULL);
}

/* Layers whose forms differ, so that values move between them. Of pooling the fastest is taken. */
static void forms_that_change(void)
{
    const int n = wf_comm_size(comm);
    static const char *const forms[] = {"22.2.2", "20.2.0", "00.0.2", "22.2.0", "20.0.2", "02.2.2"};
    for (int i = 0; i < 6; i++)
        follow((wf_mesh_opts){1, 1, 1, n, 1, 1}, 0, forms[i]);
    static const char *const by_channels[] = {"11.1.0", "00.1.1", "11.0.0", "00.1.0", "11.0.1"};
    for (int i = 0; i < 5; i++)
        follow((wf_mesh_opts){1, n, 1, 1, 1, 1}, 0, by_channels[i]);
    static const char *const both[] = {"33.1.0", "11.2.0", "22.1.0", "33.0.2", "11.2.2"};
    for (int i = 0; i < 5 && n == 4; i++)
        follow((wf_mesh_opts){1, 2, 1, 2, 1, 1}, 0, both[i]);
}

/* The plan that fits into the least memory. */
static wf_training_plan *leanest(wf_mesh_opts mesh, int split)
{
    wf_training_plan *plan = plan_new(mesh, split, 0), *next = plan;
    for (double part = 0.95; next; part -= 0.05) {
        next = plan_new(mesh, split, part * plan->memory);
        if (next)
            wf_training_plan_free(plan);
        plan = next ? next : plan;
    }
    wf_error_clear();
    return plan;
}

/* A layer that is recomputed sends what its forward sends once more. */
static void recomputed(void)
{
    const int n = wf_comm_size(comm);
    const wf_mesh_opts mesh[] = {{1, 1, 1, n, 1, 1}, {1, n, 1, 1, 1, 1}};
    const int split[] = {WF_PARALLEL_SPATIAL, WF_PARALLEL_CHANNEL};
    kept_bytes = 1e8;
    for (int i = 0; i < 2; i++) {
        wf_training_plan *plan = through_file(leanest(mesh[i], split[i]), "recomputed");
        int again = 0;
        for (int u = 0; plan && u < plan->n_units; u++)
            again += plan->unit[u].recompute && plan->unit[u].bytes > 0;
        WF_EXPECT(again > 0 || n == 1, "mesh %d: no layer is recomputed that sends something", i);
        if (plan)
            run_plan(plan, "recomputed");
    }
    kept_bytes = 0;
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

/* From stage to stage, and in layers; what carries the loss, or agrees on something, is no part of a plan. */
static double sent_for_layers(const wf_profile *profile)
{
    const wf_profile_row *row;
    const int64_t rows = wf_profile_rows(profile, &row);
    double all = 0;
    for (int64_t i = 0; i < rows; i++)
        all += *row[i].layer || strcmp(row[i].name, "send") == 0 ? row[i].sent : 0;
    return all;
}

/* The losses, and the bytes of a step, of some steps, of the serial model or along a plan. */
static void train(const wf_training_plan *plan, const wf_mesh *mesh, double *losses, double *sent)
{
    const int n = SAMPLES / (mesh ? wf_mesh_size(mesh, WF_AXIS_DATA) : 1);
    wf_layer *model = staged_model();
    wf_pipeline *pipe = NULL;
    wf_tensor *labels, *x = samples_of(mesh, n * (mesh ? wf_mesh_rank(mesh, WF_AXIS_DATA) : 0), n, &labels);
    if (plan) {
        wf_pipeline_opts opts = wf_training_plan_pipeline(plan);
        opts.loss = wf_mean_cross_entropy;
        WF_EXPECT_OK(wf_training_plan_apply(plan, mesh, model, false));
        pipe = wf_pipeline_new(mesh, model, opts);
        WF_EXPECT(pipe, "%s", wf_error_message());
        model = wf_pipeline_model(pipe);
    }
    wf_optim *optim = wf_sgd(model, (wf_sgd_opts){.lr = 0.5});
    optim = mesh ? wf_mesh_multi_node(mesh, optim, wf_training_plan_multi_node(plan)) : optim;
    wf_tape *tape = wf_tape_new(ctx);
    WF_EXPECT_OK(wf_profile_begin(ctx, 0));
    wf_profile *profile = ctx->profile;
    for (int i = 0; i < STEPS; i++) {
        wf_var *loss = pipe ? wf_pipeline_step(pipe, tape, x, labels)
                            : wf_softmax_cross_entropy(wf_apply(model, wf_input(tape, x)), labels, (wf_label_opts){0});
        WF_EXPECT_OK(wf_optim_step(optim, loss));
        losses[i] = wf_item(loss);
        WF_EXPECT_OK(wf_tape_reset(tape));
    }
    *sent = sent_for_layers(profile) / STEPS;
    wf_profile_free(profile);
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
    wf_layer *model = staged_model();
    WF_EXPECT_OK(wf_planner_trace(model, WF_SHAPE(2, 3, 16, 16), &m));
    wf_training_plan *made = wf_planner_search(&m, &meter, &o);
    const int schedule = made ? (int)made->schedule : -1, parts = made ? made->parts : 0;
    wf_training_plan *plan = through_file(made, "staged");
    WF_EXPECT(plan && (int)plan->schedule == schedule && plan->parts == parts, "%s", wf_error_message());
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
        bool zero;
    } grids[] = {{2, 0, {1, 1, 1, 1, 1, 2}, false},
                 {4, 0, {2, 1, 1, 1, 1, 2}, false},
                 {4, 0, {2, 1, 1, 1, 1, 2}, true},
                 {4, 0, {1, 1, 1, 1, 1, 4}, false},
                 {4, WF_PARALLEL_CHANNEL, {1, 2, 1, 1, 1, 2}, false},
                 {4, WF_PARALLEL_SPATIAL, {1, 1, 1, 2, 1, 2}, false}};
    double serial[STEPS], planned[STEPS];
    for (size_t g = 0; g < sizeof grids / sizeof *grids; g++) {
        wf_training_plan *plan = grids[g].ranks == n ? staged_plan(grids[g].mesh, grids[g].split) : NULL;
        if (!plan)
            continue;
        plan->zero = grids[g].zero;
        /* Messages cost next to nothing here, so the schedule with the least idle time is the fastest. */
        WF_EXPECT(plan->mesh.stage > 2 || (plan->schedule == WF_PIPELINE_INTERLEAVED && plan->parts > 1),
                  "grid %zu: schedule %d of %d parts", g, (int)plan->schedule, plan->parts);
        for (int i = 0; i < plan->n_units; i++)
            WF_EXPECT(i % 2 || i > 4 || plan->unit[i].split == (unsigned)grids[g].split, "grid %zu, layer %d: %u", g, i,
                      plan->unit[i].split);
        wf_mesh *mesh = wf_mesh_open(comm, wf_training_plan_mesh(plan));
        double none, sent;
        train(NULL, NULL, serial, &none);
        train(plan, mesh, planned, &sent);
        WF_EXPECT_OK(wf_allreduce_f64(comm, &sent, 1, WF_SUM));
        WF_EXPECT(fabs(sent - n * plan->bytes) < 0.5, "grid %zu: %g bytes are sent in a step, %g predicted", g, sent,
                  n * plan->bytes);
        for (int i = 0; i < STEPS; i++)
            WF_EXPECT(fabs(serial[i] - planned[i]) < 1e-5 && serial[0] > serial[STEPS - 1],
                      "grid %zu, step %d: loss %g, not %g", g, i, planned[i], serial[i]);
        wf_mesh_close(mesh);
        wf_training_plan_free(plan);
    }
}

/* Checks that plans for another number of ranks and for another model are refused. */
static void strangers(void)
{
    wf_training_plan *plan = plan_new((wf_mesh_opts){1, 1, 1, wf_comm_size(comm), 1, 1}, 0, 0);
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
    /* Plans count on memory that the ranks of a node share; "auto" takes what it finds faster. */
    comm = test_comm_open("single_node", (wf_ctx_opts){.device = "cpu", .threads = 1});
    ctx = wf_comm_ctx(comm);
    const int failed = test_main(argc, argv,
                                 (test_case[]){{"pixels", pixels},
                                               {"channels", channels},
                                               {"forms_that_change", forms_that_change},
                                               {"recomputed", recomputed},
                                               {"stages", stages},
                                               {"strangers", strangers},
                                               {0}});
    return wf_comm_close(comm) != WF_OK || failed;
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, run_all);
}
