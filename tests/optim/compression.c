/* Reductions that take the place of the sum, and the compressing ones of the examples: exact error feedback, the bytes
 * of the formula, the same bits on all ranks, and a loss that falls as without. */
#include "examples/compression.h"
#include "comm/comm_author.h"
#include "core/random_author.h"
#include "core/tape_author.h"
#include "layers/layers.h"
#include "optim/reduce_author.h"
#include "tests/optim/optim_model.h"
#include "tests/world.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { IN = 24, HIDDEN = 40, CLASSES = 6, BATCH = 16, STEPS = 120, N = 50, LINE = 16 };

static wf_comm *comm;
static wf_ctx *ctx;
static int rank, size;

static void open_comm(const char *name)
{
    comm = test_comm_open(name, (wf_ctx_opts){.device = "cpu", .threads = 1});
    ctx = wf_comm_ctx(comm);
    rank = wf_comm_rank(comm);
    size = wf_comm_size(comm);
}

static void close_comm(void)
{
    WF_EXPECT_OK(wf_comm_close(comm));
    wf_error_clear();
}

static compression *made(const char *text)
{
    char complaint[COMPRESSION_COMPLAINT];
    compression *c = compression_new(text, complaint);
    WF_EXPECT(c, "%s: %s", text, complaint);
    return c;
}

/* --- a gradient that the test chooses ------------------------------------------------------------------------------
 */

typedef struct fixture {
    wf_layer *model;
    wf_optim *optim;
    wf_tape *tape;
    wf_tensor *x;
} fixture;

static fixture open_fixture(wf_shape shape, wf_multi_node_opts opts)
{
    fixture f = {.tape = wf_tape_new(ctx), .x = wf_tensor_new(ctx, WF_F32, shape)};
    static const wf_layer_kind kind = {.name = "dot", .forward = dot_forward};
    f.model = wf_layer_new(ctx, &kind, 0);
    wf_param *w = wf_layer_add_param(f.model, "w", (wf_param_opts){.dtype = WF_F32, .shape = shape});
    WF_EXPECT_OK(wf_tensor_fill(wf_param_value(w), 0));
    f.optim = wf_multi_node(comm, wf_sgd(f.model, (wf_sgd_opts){.lr = 1}), opts);
    WF_EXPECT(f.optim, "no optimizer: %s", wf_error_message());
    return f;
}

static void close_fixture(fixture *f)
{
    wf_tensor_free(f->x);
    wf_tape_free(f->tape);
    wf_optim_free(f->optim);
    wf_layer_free(f->model);
}

/* The gradient of this rank is `x`; what came of all is in `sum`. */
static wf_status step(fixture *f, const double *x, double *sum)
{
    values_set(f->x, x);
    wf_var *loss = wf_apply(f->model, wf_input(f->tape, f->x));
    loss->loss_mean = true;
    loss->loss_count = 1;
    const wf_status status = wf_optim_step(f->optim, loss);
    if (status == WF_OK)
        values_get(wf_param_grad(param_of(f->model, 0)), sum);
    WF_EXPECT_OK(wf_tape_reset(f->tape));
    return status;
}

/* Numbers of few bits, so that sums are exact. */
static void gradient(int t, int r, int64_t n, double *x)
{
    test_rng rng = {(uint64_t)(100 * t + r + 1)};
    for (int64_t i = 0; i < n; i++)
        x[i] = (double)test_int(&rng, -64, 64) / 8;
}

/* What all ranks put in so far is what came out so far, and what they still keep. */
static void feedback(const char *text, double distance)
{
    double in[N * N], out[N * N], seen[N * N], left[N * N], x[N * N];
    open_comm("flat");
    compression *c = made(text);
    fixture f = open_fixture(WF_SHAPE(N, N), compression_opts(c, (wf_multi_node_opts){0}));
    memset(in, 0, sizeof in);
    memset(out, 0, sizeof out);
    for (int t = 0; t < 5; t++) {
        for (int r = 0; r < size; r++) {
            gradient(t, r, N * N, x);
            for (int i = 0; i < N * N; i++)
                in[i] += x[i];
        }
        gradient(t, rank, N * N, x);
        WF_EXPECT_OK(step(&f, x, seen));
        int64_t n = 0, zeros = 0;
        const float *error = compression_error(c, 0, &n);
        WF_EXPECT(n >= N * N, "%lld elements of error", (long long)n);
        for (int i = 0; i < N * N && error; i++) {
            out[i] += seen[i];
            left[i] = (double)error[i];
            zeros += error[i] == 0;
        }
        WF_EXPECT(zeros < N * N, "nothing was left out");
        WF_EXPECT_OK(wf_allreduce_f64(comm, left, N * N, WF_SUM));
        for (int i = 0; i < N * N; i++)
            left[i] += out[i];
        WF_EXPECT(test_distance(N * N, left, in) <= distance, "%s, step %d: off by %g", text, t,
                  test_distance(N * N, left, in));
    }
    close_fixture(&f);
    compression_free(c);
    close_comm();
}

static void error_feedback(void)
{
    feedback("topk:0.03", 0);
    feedback("powersgd:2", 1e-4);
}

/* All elements, or a matrix of that rank, come through. */
static void nothing_left_out(void)
{
    double x[N * N], y[N * N], u[N], seen[N * N];
    open_comm("flat");
    for (int power = 0; power < 2; power++) {
        compression *c = made(power ? "powersgd:3" : "topk:1");
        fixture f = open_fixture(WF_SHAPE(N, N), compression_opts(c, (wf_multi_node_opts){0}));
        memset(y, 0, sizeof y);
        for (int r = 0; r < size; r++) { /* of rank 1 together */
            gradient(7, 0, N, u);
            for (int i = 0; i < N * N; i++) {
                const double value = power ? u[i / N] * u[i % N] * (r + 1) / 64 : u[i % N] + r;
                y[i] += value;
                x[i] = r == rank ? value : x[i];
            }
        }
        WF_EXPECT_OK(step(&f, x, seen));
        WF_EXPECT(test_distance(N * N, seen, y) <= (power ? 1e-4 : 0), "power %d: off by %g", power,
                  test_distance(N * N, seen, y));
        close_fixture(&f);
        compression_free(c);
    }
    close_comm();
}

/* topk: 8 bytes for each that is kept, to every other rank. powersgd: all-reduces of both factors. */
static void bytes(void)
{
    double x[N * N], seen[N * N];
    open_comm("flat");
    for (int power = 0; power < 2 && size <= 2; power++) {
        compression *c = made(power ? "powersgd:2" : "topk:0.01");
        fixture f = open_fixture(WF_SHAPE(N, N), compression_opts(c, (wf_multi_node_opts){0}));
        gradient(0, rank, N * N, x);
        WF_EXPECT_OK(step(&f, x, seen));
        const uint64_t before = wf_comm_traffic(comm).bytes_sent;
        WF_EXPECT_OK(step(&f, x, seen));
        const int64_t sent = (int64_t)(wf_comm_traffic(comm).bytes_sent - before),
                      padded = (N * N + LINE - 1) / LINE * LINE;
        const int64_t elements = power ? 2 * (N + N) : 2 * (int64_t)ceil(0.01 * (double)padded);
        const int64_t should = (size - 1) * 4 * (elements + 25); /* and what rides along */
        WF_EXPECT(sent == should, "power %d: rank %d sent %lld bytes, should be %lld", power, rank, (long long)sent,
                  (long long)should);
        WF_EXPECT(compression_sent(c) == elements && compression_given(c) == padded, "%lld of %lld elements",
                  (long long)compression_sent(c), (long long)compression_given(c));
        close_fixture(&f);
        compression_free(c);
    }
    close_comm();
}

/* --- training ------------------------------------------------------------------------------------------------------
 */

static void batch_of(int t, wf_tensor *x, wf_tensor *labels)
{
    test_rng rng = {(uint64_t)(1000 * t + rank + 1)};
    double value[BATCH * IN];
    int64_t label[BATCH];
    for (int i = 0; i < BATCH; i++) {
        label[i] = test_int(&rng, 0, CLASSES - 1);
        for (int k = 0; k < IN; k++)
            value[i * IN + k] = test_uniform(&rng, -1, 1) + (k % CLASSES == label[i] ? 0.8 : 0);
    }
    values_set(x, value);
    WF_EXPECT_OK(wf_tensor_import(labels, label, sizeof label));
}

static uint64_t hash_of(wf_layer *net)
{
    double values[IN * HIDDEN];
    uint64_t hash = 0;
    for (int64_t i = 0; param_of(net, i); i++) {
        const int64_t n = wf_tensor_count(wf_param_value(param_of(net, i)));
        values_get(wf_param_value(param_of(net, i)), values);
        for (int64_t e = 0; e < n; e++) {
            uint64_t bits;
            memcpy(&bits, &values[e], sizeof bits);
            hash = wf_hash_u64(hash, bits);
        }
    }
    return hash;
}

/* The mean loss of the last ten steps. */
static double trained(const char *text)
{
    compression *c = text ? made(text) : NULL;
    const wf_multi_node_opts plain = {.bucket_bytes = 2000, .first_bucket_bytes = 1};
    wf_layer *net =
        wf_sequential(ctx, WF_LAYERS(wf_linear(ctx, (wf_linear_opts){.in = IN, .out = HIDDEN}), wf_lambda(ctx, wf_relu),
                                     wf_linear(ctx, (wf_linear_opts){.in = HIDDEN, .out = CLASSES})));
    wf_optim *optim =
        wf_multi_node(comm, wf_sgd(net, (wf_sgd_opts){.lr = 0.1, .momentum = 0.9}), compression_opts(c, plain));
    wf_tape *tape = wf_tape_new(ctx);
    wf_tensor *x = wf_tensor_new(ctx, WF_F32, WF_SHAPE(BATCH, IN)),
              *labels = wf_tensor_new(ctx, WF_I64, WF_SHAPE(BATCH));
    double last = 0;
    for (int t = 0; t < STEPS; t++) {
        batch_of(t, x, labels);
        if (t == STEPS / 2) /* buckets are cut anew */
            WF_EXPECT_OK(wf_param_set_trainable(param_of(net, 1), false));
        wf_var *loss = wf_softmax_cross_entropy(wf_apply(net, wf_input(tape, x)), labels, (wf_label_opts){0});
        WF_EXPECT_OK(wf_optim_step(optim, loss));
        last += t >= STEPS - 10 ? wf_item(loss) / 10 : 0;
        WF_EXPECT_OK(wf_tape_reset(tape));
    }
    uint64_t mine = hash_of(net), first = mine;
    WF_EXPECT_OK(wf_bcast_bytes(comm, &first, sizeof first, 0));
    WF_EXPECT(mine == first, "%s: rank %d has other parameters than rank 0", text ? text : "plain", rank);
    if (c)
        WF_EXPECT(compression_sent(c) < compression_given(c) / 3, "%s: %lld of %lld elements", text,
                  (long long)compression_sent(c), (long long)compression_given(c));
    wf_tensor_free(x);
    wf_tensor_free(labels);
    wf_tape_free(tape);
    wf_optim_free(optim);
    wf_layer_free(net);
    compression_free(c);
    return last;
}

static void training(void)
{
    open_comm("auto");
    const double plain = trained(NULL), power = trained("powersgd:2"), top = trained("topk:0.05");
    if (rank == 0)
        printf("loss %.4f, powersgd %.4f, topk %.4f\n", plain, power, top);
    WF_EXPECT(plain < 0.4, "the loss without compression is %g", plain);
    WF_EXPECT(power < 1.5 * plain + 0.05, "powersgd: %g, without %g", power, plain);
    WF_EXPECT(top < 1.5 * plain + 0.05, "topk: %g, without %g", top, plain);
    close_comm();
}

/* Places along channel hold other parts of one layer and the whole of another, of which both keep the same elements:
 * parameters of another sharding are in other buckets. Each step compares them. */
static void beside_shards(void)
{
    open_comm("flat");
    wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.channel = size % 2 ? 1 : 2});
    const int places = wf_mesh_size(mesh, WF_AXIS_DATA), place = wf_mesh_rank(mesh, WF_AXIS_DATA);
    const wf_linear_opts cut = {.in = IN, .out = HIDDEN, .form = WF_FORM_FILTER, .replicate = true};
    compression *c = made("topk:0.05");
    wf_layer *net = wf_sequential(ctx, WF_LAYERS(wf_channel_linear(mesh, cut), wf_lambda(ctx, wf_tanh),
                                                 wf_linear(ctx, (wf_linear_opts){.in = HIDDEN, .out = CLASSES})));
    wf_optim *optim = wf_mesh_multi_node(mesh, wf_sgd(net, (wf_sgd_opts){.lr = 0.1}),
                                         compression_opts(c, (wf_multi_node_opts){.compare_every = 1}));
    WF_EXPECT(optim, "no optimizer: %s", wf_error_message());
    wf_tape *tape = wf_tape_new(ctx);
    wf_tensor *x = wf_tensor_new(ctx, WF_F32, WF_SHAPE(BATCH, IN));
    double value[BATCH * IN];
    wf_status status = WF_OK;
    for (int t = 0; t < 4 && status == WF_OK; t++) {
        gradient(t, place, BATCH * IN, value);
        values_set(x, value);
        WF_EXPECT_OK(wf_tensor_set_layout(
            x, wf_layout_batch(mesh, WF_SHAPE(BATCH * places, IN), BATCH * place, BATCH * (place + 1))));
        wf_var *y = wf_apply(net, wf_input(tape, x));
        status = wf_optim_step(optim, wf_mean(wf_mul(y, y)));
        WF_EXPECT(status == WF_OK, "step %d: %s", t, wf_error_message());
        status = status == WF_OK ? wf_tape_reset(tape) : status;
    }
    wf_error_clear();
    wf_tensor_free(x);
    wf_tape_free(tape);
    wf_optim_free(optim);
    wf_layer_free(net);
    compression_free(c);
    wf_mesh_close(mesh);
    close_comm();
}

/* --- the hook ------------------------------------------------------------------------------------------------------
 */

static int hooked;

/* A function of a hook has the whole stack of the program. */
static wf_status halve(void *own)
{
    volatile char deep[(size_t)3 << 20];
    const wf_grad_bucket *b = own;
    for (size_t i = 0; i < sizeof deep; i += 4096)
        deep[i] = 1;
    const wf_array flat = {.data = b->flat, .dtype = b->dtype, .shape = WF_SHAPE(b->count)};
    WF_CHECK(hooked < 3 || wf_comm_rank(b->comm) > 0, WF_ERR_IO, "the third time fails");
    return b->ctx->k->binary(b->ctx, &(wf_binary_args){.op = WF_BINARY_LINEAR, .alpha = 0.5, .a = &flat, .y = &flat});
}

static wf_status halved(void *user, const wf_grad_bucket *b)
{
    int *calls = user;
    WF_EXPECT(b->segments == 1 && b->param[0] && b->offset[1] == b->count && b->index == 0 && b->plan == 1,
              "bucket %lld of plan %lld has %lld segments", (long long)b->index, (long long)b->plan,
              (long long)b->segments);
    hooked = ++*calls;
    wf_background_sum(b->comm,
                      &(wf_call){.out = b->flat, .dtype = b->dtype, .parts = (int)b->segments, .part = b->offset});
    wf_background_call(b->comm, halve, (void *)b);
    return WF_OK;
}

static void hook(void)
{
    double x[N], seen[N], should[N];
    int calls = 0;
    open_comm("flat");
    fixture f = open_fixture(WF_SHAPE(N), (wf_multi_node_opts){.reduce = halved, .reduce_user = &calls});
    for (int i = 0; i < N; i++) {
        x[i] = rank + 1;
        should[i] = size * (size + 1) / 4.0;
    }
    WF_EXPECT_OK(step(&f, x, seen));
    WF_EXPECT_OK(step(&f, x, seen));
    WF_EXPECT(test_distance(N, seen, should) == 0 && calls == 2, "%g after %d calls, should be %g", seen[0], calls,
              should[0]);
    const wf_status status = step(&f, x, seen);
    WF_EXPECT(status == WF_ERR_IO && strstr(wf_error_message(), "the third time fails"), "rank %d: %s", rank,
              wf_error_message());
    wf_error_clear();
    close_fixture(&f);
    close_comm();
}

/* The communicator closes while the sums of the last step are on their way: it says what is left alive, and that can go
 * after it, the context last. */
static void closed_before_its_optimizer(void)
{
    double x[N], seen[N];
    open_comm("flat");
    fixture f = open_fixture(WF_SHAPE(N), (wf_multi_node_opts){.double_buffering = true});
    for (int i = 0; i < N; i++)
        x[i] = rank;
    WF_EXPECT_OK(step(&f, x, seen));
    WF_EXPECT_OK(step(&f, x, seen));
    WF_EXPECT(wf_comm_close(comm) == WF_ERR_STATE, "%s", wf_error_message());
    wf_error_clear();
    WF_EXPECT(wf_ctx_free(ctx) == WF_ERR_STATE, "the context went before its objects");
    wf_error_clear();
    close_fixture(&f);
    WF_EXPECT_OK(wf_ctx_free(ctx));
}

static void expect_refused(wf_multi_node_opts opts, const char *why)
{
    open_comm("flat");
    wf_layer *net = wf_linear(ctx, (wf_linear_opts){.in = 3, .out = 2});
    wf_optim *optim = wf_multi_node(comm, wf_sgd(net, (wf_sgd_opts){.lr = 1}), opts);
    WF_EXPECT(!optim && strstr(wf_error_message(), why), "'%s' does not say '%s'", wf_error_message(), why);
    wf_error_clear();
    wf_optim_free(optim);
    wf_layer_free(net);
    close_comm();
}

static void misuse(void)
{
    const char *const wrong[] = {
        "", "topk", "topk:0", "topk:2", "topk:0.1x", "powersgd:0", "powersgd:-1", "powersgd:12345678", "zip:3"};
    char complaint[COMPRESSION_COMPLAINT];
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        WF_EXPECT(!compression_new(wrong[i], complaint) && strstr(complaint, wrong[i]), "'%s' was taken", wrong[i]);
    expect_refused((wf_multi_node_opts){.reduce = halved, .grad_dtype = WF_BF16}, "takes the place of the sum");
    expect_refused((wf_multi_node_opts){.reduce = halved, .shard_optimizer = true}, "takes the place of the sum");
}

static int on_ranks(int argc, char **argv)
{
    return test_main(argc, argv,
                     (test_case[]){{"error_feedback", error_feedback},
                                   {"nothing_left_out", nothing_left_out},
                                   {"bytes", bytes},
                                   {"training", training},
                                   {"beside_shards", beside_shards},
                                   {"hook", hook},
                                   {"closed_before_its_optimizer", closed_before_its_optimizer},
                                   {"misuse", misuse},
                                   {0}});
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
