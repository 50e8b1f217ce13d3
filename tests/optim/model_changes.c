/* A model that changes after wf_multi_node: the ranks that change it alike go on as the serial program does, those
 * whose new values differ take rank 0's, and where one rank alone changes it every rank gets the difference by name. */
#include "layers/layers.h"
#include "optim/multi_node.h"
#include "tests/test.h"
#include "tests/world.h"

#include <stdio.h>
#include <string.h>

enum { IN = 5, WIDTH = 6, BATCH = 4, KINDS = 5 };

typedef struct run {
    wf_comm *comm;
    wf_ctx *ctx;
    int rank, size;
    wf_layer *model;
    wf_optim *optim;
    wf_tape *tape;
} run;

static const char *const kind_name[KINDS] = {"plain", "sharded state", "bf16 in flight", "f16 in flight", "buffered"};

static wf_multi_node_opts options(int kind)
{
    return (wf_multi_node_opts){.shard_optimizer = kind == 1,
                                .grad_dtype = kind == 2   ? WF_BF16
                                              : kind == 3 ? WF_F16
                                                          : WF_F32,
                                .double_buffering = kind == 4,
                                .bucket_bytes = 64,
                                .first_bucket_bytes = 64};
}

static wf_layer *dense(wf_ctx *ctx)
{
    return wf_linear(ctx, (wf_linear_opts){.in = WIDTH, .out = WIDTH});
}

static run run_open(int kind)
{
    run r = {.comm = test_comm_open("flat", (wf_ctx_opts){.device = test_device("ref"), .threads = 1, .seed = 7})};
    WF_EXPECT(r.comm, "no communicator: %s", wf_error_message());
    r.ctx = wf_comm_ctx(r.comm);
    r.rank = wf_comm_rank(r.comm);
    r.size = wf_comm_size(r.comm);
    r.model = wf_sequential(
        r.ctx, WF_LAYERS(wf_linear(r.ctx, (wf_linear_opts){.in = IN, .out = WIDTH}), wf_lambda(r.ctx, wf_relu)));
    r.optim = wf_multi_node(r.comm, wf_adam(r.model, (wf_adam_opts){.lr = 0.02}), options(kind));
    WF_EXPECT(r.optim, "no optimizer: %s", wf_error_trail());
    r.tape = wf_tape_new(r.ctx);
    return r;
}

static void run_close(run *r)
{
    wf_tape_free(r->tape);
    wf_optim_free(r->optim);
    wf_layer_free(r->model);
    WF_EXPECT_OK(wf_comm_close(r->comm));
}

/* On every rank the same batch, so one rank computes the same. */
static wf_var *loss_of(run *r, int step)
{
    float x[BATCH * IN];
    test_rng rng = {.state = (uint64_t)step};
    for (int i = 0; i < BATCH * IN; i++)
        x[i] = (float)test_uniform(&rng, -1, 1);
    wf_tensor *in = wf_tensor_from_host(r->ctx, WF_F32, WF_SHAPE(BATCH, IN), x);
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

/* A number of all values, every one with a weight of its own. */
static double weigh(run *r)
{
    double sum = 0;
    int64_t n;
    wf_param *const *params;
    float value[WIDTH * WIDTH];
    WF_EXPECT_OK(wf_layer_params(r->model, &n, &params));
    for (int64_t i = 0; i < n; i++) {
        const int64_t count = wf_shape_count(wf_param_shape(params[i]));
        WF_EXPECT_OK(wf_tensor_export(wf_param_value(params[i]), value, sizeof *value * (size_t)count));
        for (int64_t k = 0; k < count; k++)
            sum += (double)value[k] * (1 + 0.1 * (double)(k + i));
    }
    return sum;
}

static double together(run *r, const char *what)
{
    const double own = weigh(r);
    double range[2] = {own, -own};
    WF_EXPECT_OK(wf_allreduce_f64(r->comm, range, 2, WF_MAX));
    WF_EXPECT(range[0] == -range[1], "%s: replicas differ by %g", what, range[0] + range[1]);
    return own;
}

/* A layer that joins has the values that it would have from the start. */
static void all_add(void)
{
    for (int kind = 0; kind < KINDS; kind++) {
        run r = run_open(kind);
        wf_layer *serial = wf_sequential(r.ctx, WF_LAYERS(dense(r.ctx), dense(r.ctx), dense(r.ctx)));
        wf_layer_free(serial);
        for (int i = 0; i < 2; i++)
            WF_EXPECT_OK(one_step(&r, i));
        WF_EXPECT_OK(wf_optim_flush(r.optim));
        const int64_t steps = wf_optim_steps(r.optim);
        WF_EXPECT(wf_module_add(r.model, "more", dense(r.ctx)), "%s", wf_error_message());
        const double before = together(&r, "added");
        for (int i = 2; i < 5; i++) {
            WF_EXPECT_OK(one_step(&r, i));
            together(&r, kind_name[kind]);
        }
        WF_EXPECT_OK(wf_optim_flush(r.optim));
        WF_EXPECT(wf_optim_steps(r.optim) == steps + 3, "%s: %lld steps, should be %lld", kind_name[kind],
                  (long long)wf_optim_steps(r.optim), (long long)steps + 3);
        WF_EXPECT(together(&r, kind_name[kind]) != before, "%s: nothing was updated", kind_name[kind]);
        run_close(&r);
    }
}

/* A layer that every rank has trained for itself before it joins. */
static void values_of_their_own(void)
{
    for (int kind = 0; kind < KINDS; kind++) {
        run r = run_open(kind);
        for (int i = 0; i < 2; i++)
            WF_EXPECT_OK(one_step(&r, i));
        WF_EXPECT_OK(wf_optim_flush(r.optim));
        const int64_t steps = wf_optim_steps(r.optim), skipped = r.size > 1;
        wf_layer *more = dense(r.ctx);
        WF_EXPECT_OK(wf_tensor_fill(wf_param_value(wf_layer_param(more, "W")), 0.1 + 0.01 * r.rank));
        WF_EXPECT(wf_module_add(r.model, "more", more), "%s", wf_error_message());
        for (int i = 2; i < 5; i++) {
            WF_EXPECT_OK(one_step(&r, i));
            together(&r, kind_name[kind]);
        }
        WF_EXPECT_OK(wf_optim_flush(r.optim));
        together(&r, kind_name[kind]);
        WF_EXPECT(wf_optim_steps(r.optim) == steps + 3 - skipped, "%s: %lld steps, should be %lld", kind_name[kind],
                  (long long)wf_optim_steps(r.optim), (long long)(steps + 3 - skipped));
        run_close(&r);
    }
}

static void expect_named(run *r, int kind, wf_status status, const char *const words[3])
{
    if (r->size > 1)
        WF_EXPECT(status == WF_ERR_COMM, "%s: is %s, should be %s: %s", kind_name[kind], wf_status_name(status),
                  wf_status_name(WF_ERR_COMM), wf_error_message());
    else
        WF_EXPECT(status == WF_OK, "one rank: %s", wf_error_message());
    for (int i = 0; i < 3 && words[i] && r->size > 1; i++)
        WF_EXPECT(strstr(wf_error_message(), words[i]), "%s: no \"%s\" in \"%s\"", kind_name[kind], words[i],
                  wf_error_message());
    wf_error_clear();
}

enum { ALONE, SHAPE, FROZEN, CHANGES };

static void change_alone(run *r, int change)
{
    const bool odd = r->rank == r->size - 1;
    if (change == FROZEN && odd)
        WF_EXPECT_OK(wf_param_set_trainable(wf_layer_param(r->model, "0/b"), false));
    if ((change == ALONE && odd) || change == SHAPE)
        WF_EXPECT(
            wf_module_add(r->model, "more",
                          wf_linear(r->ctx, (wf_linear_opts){.in = WIDTH, .out = change == SHAPE && odd ? 2 : WIDTH})),
            "%s", wf_error_message());
}

/* Before the first step and before a later one; with double buffering some ranks learn of it a step later. */
static void one_alone(void)
{
    static const char *const words[CHANGES][3] = {{"the ranks have different models", "more", "nothing on rank 0"},
                                                  {"the ranks have different models", "more", "[2,6]"},
                                                  {"the ranks have different models", "0/b", "not trained on rank"}};
    for (int at = 0; at < KINDS * CHANGES * 2; at++) {
        const int kind = at % KINDS, change = at / KINDS % CHANGES, steps = at / KINDS / CHANGES * 2;
        run r = run_open(kind);
        const bool odd = r.rank == r.size - 1;
        wf_status status = WF_OK;
        for (int i = 0; i < steps; i++)
            WF_EXPECT_OK(one_step(&r, i));
        WF_EXPECT_OK(wf_optim_flush(r.optim));
        change_alone(&r, change);
        for (int i = 0; i < 2 && status == WF_OK; i++)
            status = one_step(&r, steps + i);
        expect_named(&r, kind, status, words[change]);
        if (change == FROZEN && odd)
            WF_EXPECT_OK(wf_param_set_trainable(wf_layer_param(r.model, "0/b"), true));
        WF_EXPECT_OK(wf_tape_reset(r.tape));
        if (change == FROZEN && kind != 4) {
            WF_EXPECT_OK(one_step(&r, steps + 2));
            together(&r, "after it was mended");
        }
        run_close(&r);
    }
}

static int on_ranks(int argc, char **argv)
{
    return test_main(
        argc, argv,
        (test_case[]){
            {"all_add", all_add}, {"values_of_their_own", values_of_their_own}, {"one_alone", one_alone}, {0}});
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
