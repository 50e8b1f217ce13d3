/* Replicas stay together where ranks differ in seed, in the number of tapes or of models, and where they cannot,
 * because they draw other random numbers or hold other values, every rank gets an error that names rank, layer and
 * value. */
#include "comm/mesh.h"
#include "layers/layers.h"
#include "optim/multi_node.h"
#include "tests/test.h"
#include "tests/world.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { IN = 5, WIDTH = 8, OUT = 3, BATCH = 4, STEPS = 3 };

typedef struct run {
    wf_comm *comm;
    wf_ctx *ctx;
    wf_mesh *mesh;
    int rank, size;
    wf_layer *model;
    wf_optim *optim;
    wf_tape *tape;
} run;

static wf_var *dropped(wf_var *x)
{
    return wf_dropout(x, 0.5);
}

/* What one rank alone does before its model is made. */
typedef struct habits {
    uint64_t seed;
    int tapes, models;
    bool sharded;
    int64_t compare_every;
} habits;

/* All ranks compute the same on a mesh of channels; the last layer's features are sharded where `sharded`. */
static wf_layer *model_of(run *r, bool sharded)
{
    const wf_linear_opts last = {.in = WIDTH, .out = OUT};
    wf_layer *a = wf_linear(r->ctx, (wf_linear_opts){.in = IN, .out = WIDTH}), *b = wf_lambda(r->ctx, dropped);
    wf_layer *c = sharded ? wf_channel_linear(r->mesh, last) : wf_linear(r->ctx, last);
    return wf_sequential(r->ctx, WF_LAYERS(a, b, c));
}

static void run_open(run *r, habits h)
{
    *r = (run){0};
    r->comm = test_comm_open(
        "flat",
        (wf_ctx_opts){.device = test_device("ref"), .dtype = WF_F64, .threads = 1, .seed = h.seed ? h.seed : 7});
    WF_EXPECT(r->comm, "no communicator: %s", wf_error_message());
    r->ctx = wf_comm_ctx(r->comm);
    r->rank = wf_comm_rank(r->comm);
    r->size = wf_comm_size(r->comm);
    r->mesh = wf_mesh_open(r->comm, (wf_mesh_opts){.channel = r->size});
    for (int i = 0; i < h.tapes; i++)
        wf_tape_free(wf_tape_new(r->ctx));
    for (int i = 0; i < h.models; i++) {
        wf_layer *other = wf_linear(r->ctx, (wf_linear_opts){.in = 2, .out = 2});
        WF_EXPECT(wf_param_value(wf_layer_param(other, "W")), "%s", wf_error_message());
        wf_layer_free(other);
    }
    r->model = model_of(r, h.sharded);
    r->optim = wf_mesh_multi_node(r->mesh, wf_sgd(r->model, (wf_sgd_opts){.lr = 0.2}),
                                  (wf_multi_node_opts){.compare_every = h.compare_every});
    WF_EXPECT(r->optim, "no optimizer: %s", wf_error_trail());
    r->tape = wf_tape_new(r->ctx);
}

static void run_close(run *r)
{
    wf_tape_free(r->tape);
    wf_optim_free(r->optim);
    wf_layer_free(r->model);
    wf_mesh_close(r->mesh);
    WF_EXPECT_OK(wf_comm_close(r->comm));
}

static wf_var *loss_of(run *r, int step)
{
    double x[BATCH * IN];
    test_rng rng = {.state = (uint64_t)step};
    for (int i = 0; i < BATCH * IN; i++)
        x[i] = test_uniform(&rng, -1, 1);
    wf_tensor *in = wf_tensor_from_host(r->ctx, WF_F64, WF_SHAPE(BATCH, IN), x);
    wf_var *y = wf_apply(r->model, wf_input(r->tape, in));
    wf_tensor_free(in);
    return wf_mean(wf_mul(y, y));
}

static wf_status one_step(run *r, int step)
{
    const wf_status status = wf_optim_step(r->optim, loss_of(r, step));
    if (status == WF_OK)
        WF_EXPECT_OK(wf_tape_reset(r->tape));
    return status;
}

/* The serial form of this rank's parameters: sum and sum of squares, in f64. */
static double weigh(run *r, bool sharded)
{
    double sum = 0, value[WIDTH * WIDTH];
    int64_t n;
    wf_param *const *params;
    WF_EXPECT_OK(wf_layer_params(r->model, &n, &params));
    for (int64_t i = 0; i < n - (sharded ? 2 : 0); i++) {
        const int64_t count = wf_shape_count(wf_param_shape(params[i]));
        WF_EXPECT_OK(wf_tensor_export(wf_param_value(params[i]), value, sizeof *value * (size_t)count));
        for (int64_t k = 0; k < count; k++)
            sum += value[k] * (1 + 0.1 * (double)(k + i));
    }
    return sum;
}

static void expect_together(run *r, const char *what, bool sharded)
{
    double own = weigh(r, sharded), range[2] = {own, -own};
    WF_EXPECT_OK(wf_allreduce_f64(r->comm, range, 2, WF_MAX));
    WF_EXPECT(range[0] == -range[1], "%s: replicas differ by %g", what, range[0] + range[1]);
}

static double trained(habits h, const char *what)
{
    run r;
    run_open(&r, h);
    for (int i = 0; i < STEPS; i++) {
        WF_EXPECT_OK(one_step(&r, i));
        expect_together(&r, what, h.sharded);
    }
    const double sum = weigh(&r, h.sharded);
    run_close(&r);
    return sum;
}

static int rank_of_world(void)
{
    wf_comm *comm = test_comm_open("flat", (wf_ctx_opts){0});
    const int rank = wf_comm_rank(comm);
    WF_EXPECT_OK(wf_comm_close(comm));
    return rank;
}

/* Checks that a rank computes what all compute, whatever it did before; the seed of rank 0 counts. */
static void habits_of_one(void)
{
    const int rank = rank_of_world(), odd = rank % 2;
    for (int sharded = 0; sharded < 2; sharded++) {
        const double should = trained((habits){.sharded = sharded}, "alike");
        const double seeds = trained((habits){.seed = 7 + (uint64_t)rank, .sharded = sharded}, "seeds");
        const double tapes = trained((habits){.tapes = 2 * odd, .sharded = sharded}, "tapes");
        const double models = trained((habits){.models = 3 * odd, .sharded = sharded}, "models");
        WF_EXPECT(seeds == should, "seeds of their own: %.17g, should be %.17g", seeds, should);
        WF_EXPECT(tapes == should, "tapes of their own: %.17g, should be %.17g", tapes, should);
        WF_EXPECT(models == should, "models of their own: %.17g, should be %.17g", models, should);
    }
}

static void expect_error(run *r, wf_status status, const char *const words[4])
{
    if (r->size == 1) {
        WF_EXPECT(status == WF_OK, "one rank: %s", wf_error_message());
        return;
    }
    WF_EXPECT(status == WF_ERR_COMM, "is %s, should be %s", wf_status_name(status), wf_status_name(WF_ERR_COMM));
    for (int i = 0; i < 4 && words[i]; i++)
        WF_EXPECT(strstr(wf_error_message(), words[i]), "no \"%s\" in \"%s\"", words[i], wf_error_message());
    wf_error_clear();
}

static void resets_differ(void)
{
    run r;
    run_open(&r, (habits){0});
    WF_EXPECT_OK(one_step(&r, 0));
    if (r.rank == 1)
        WF_EXPECT_OK(wf_tape_reset(r.tape));
    expect_error(&r, one_step(&r, 1), (const char *const[4]){"wf_tape_reset", "1 on rank 0", "2 on rank 1"});
    run_close(&r);
}

static void applications_differ(void)
{
    run r;
    run_open(&r, (habits){0});
    WF_EXPECT_OK(one_step(&r, 0));
    if (r.rank == 1)
        WF_EXPECT(loss_of(&r, 5), "%s", wf_error_message());
    expect_error(&r, one_step(&r, 1), (const char *const[4]){"draw 2", "missing on rank 0", "lambda \"1\" on rank 1"});
    run_close(&r);
}

/* An evaluation on one rank, on a tape of its own, needs no other rank. */
static void evaluation_aside(void)
{
    run r;
    run_open(&r, (habits){0});
    const double should = trained((habits){0}, "alike");
    for (int i = 0; i < STEPS; i++) {
        wf_tape *train = r.tape, *aside = r.rank == 1 ? wf_tape_new(r.ctx) : NULL;
        r.tape = aside ? aside : train;
        if (aside)
            WF_EXPECT(loss_of(&r, 9), "%s", wf_error_message());
        r.tape = train;
        wf_tape_free(aside);
        WF_EXPECT_OK(one_step(&r, i));
    }
    const double sum = weigh(&r, false);
    WF_EXPECT(sum == should, "with an evaluation aside: %.17g, should be %.17g", sum, should);
    run_close(&r);
}

static void change_a_value(run *r)
{
    wf_tensor *value = wf_param_value(wf_layer_param(r->model, "2/W"));
    double all[OUT * WIDTH];
    WF_EXPECT_OK(wf_tensor_export(value, all, sizeof all));
    all[8] = 0.75;
    WF_EXPECT_OK(wf_tensor_import(value, all, sizeof all));
}

static void values_differ(void)
{
    run r;
    run_open(&r, (habits){.compare_every = 2});
    for (int i = 0; i < 3; i++) {
        const char *const others[3] = {"0/W", "0/b", "2/b"};
        WF_EXPECT_OK(wf_param_set_trainable(wf_layer_param(r.model, others[i]), false));
    }
    WF_EXPECT_OK(one_step(&r, 0));
    WF_EXPECT_OK(one_step(&r, 1));
    WF_EXPECT_OK(one_step(&r, 2));
    if (r.rank == 1)
        change_a_value(&r);
    WF_EXPECT_OK(one_step(&r, 3));
    expect_error(&r, one_step(&r, 4),
                 (const char *const[4]){"element 8 of 2/W", "on rank 1 (parameters that differ: 1)", "after step 5",
                                        "after step 3 they were equal"});
    run_close(&r);
}

static void layouts_of_parameters(void)
{
    run r;
    run_open(&r, (habits){.sharded = true});
    const wf_layout whole = wf_param_layout(wf_layer_param(r.model, "0/W")),
                    part = wf_param_layout(wf_layer_param(r.model, "2/W"));
    const wf_shape shape = wf_param_shape(wf_layer_param(r.model, "2/W"));
    WF_EXPECT(whole.known && !wf_layout_is_sharded(&whole, 0) && whole.global.dim[0] == WIDTH, "0/W is whole");
    WF_EXPECT(part.global.dim[0] == OUT && part.global.dim[1] == WIDTH, "the serial shape of 2/W");
    WF_EXPECT(wf_shape_equal(wf_box_shape(part.box), shape), "the box of 2/W has its shape");
    WF_EXPECT(r.size == 1 || part.placement[WF_AXIS_CHANNEL] == WF_SHARDED, "2/W is sharded");
    run_close(&r);
}

/* A model of another name on each of two contexts starts otherwise; of the same name, alike. */
static void names(void)
{
    double first[3];
    const char *const name[3] = {"gen", "gen", "dis"};
    wf_ctx *ctx = wf_ctx_new((wf_ctx_opts){.device = "ref", .dtype = WF_F64});
    for (int i = 0; i < 3; i++) {
        wf_layer *model = wf_layer_named(wf_linear(ctx, (wf_linear_opts){.in = 1, .out = 1}), name[i]);
        WF_EXPECT_OK(wf_tensor_export(wf_param_value(wf_layer_param(model, "W")), &first[i], sizeof *first));
        char path[16];
        snprintf(path, sizeof path, "%s/W", name[i]);
        WF_EXPECT(!strcmp(wf_param_path(wf_layer_param(model, "W")), path), "the path is %s",
                  wf_param_path(wf_layer_param(model, "W")));
        WF_EXPECT(!wf_layer_named(model, "late") && wf_error_code() == WF_ERR_STATE, "named after its first use");
        wf_error_clear();
    }
    WF_EXPECT(first[0] == first[1] && first[0] != first[2], "initial values: %g %g %g", first[0], first[1], first[2]);
    wf_tape *a = wf_tape_new(ctx), *b = wf_tape_new(ctx), *c = wf_tape_new(ctx);
    WF_EXPECT_OK(wf_tape_set_name(c, "second"));
    const double x = wf_item(wf_randn(a, WF_SHAPE(1), NULL)), y = wf_item(wf_randn(b, WF_SHAPE(1), NULL)),
                 z = wf_item(wf_randn(c, WF_SHAPE(1), NULL));
    WF_EXPECT(x == y && x != z, "draws on tapes: %g %g %g", x, y, z);
    WF_EXPECT_ERROR(WF_ERR_STATE, wf_tape_set_name(c, "third"));
    wf_tape_free(a);
    wf_tape_free(b);
    wf_tape_free(c);
    WF_EXPECT_OK(wf_ctx_free(ctx));
}

static int on_ranks(int argc, char **argv)
{
    return test_main(argc, argv,
                     (test_case[]){{"habits_of_one", habits_of_one},
                                   {"resets_differ", resets_differ},
                                   {"applications_differ", applications_differ},
                                   {"evaluation_aside", evaluation_aside},
                                   {"values_differ", values_differ},
                                   {"names", names},
                                   {"layouts_of_parameters", layouts_of_parameters},
                                   {0}});
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
