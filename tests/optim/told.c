/* A layer, a function, a backward or a data set that fails on one rank for a reason of its own: all ranks get its error
 * from the call in which they wait for it. Nothing here posts a failure: wf_apply, wf_backward and wf_iter_next do. */
#include "comm/comm_author.h"
#include "datasets/dataset_author.h"
#include "datasets/datasets.h"
#include "layers/layer_author.h"
#include "layers/layers.h"
#include "optim/multi_node.h"
#include "tests/test.h"
#include "tests/world.h"

#include <stdio.h>
#include <string.h>

#define REASON "the culprit's own reason"

static struct {
    wf_comm *comm;
    wf_ctx *ctx;
    wf_tape *tape;
    wf_tensor *x;
    bool culprit; /* this rank fails */
} run;

static void open_run(void)
{
    run.comm = test_comm_open("flat", (wf_ctx_opts){.device = test_device("cpu"), .threads = 1});
    WF_EXPECT(run.comm, "%s", wf_error_trail());
    run.ctx = wf_comm_ctx(run.comm);
    run.tape = wf_tape_new(run.ctx);
    run.x = wf_tensor_new(run.ctx, WF_F32, WF_SHAPE(4));
    WF_EXPECT_OK(wf_tensor_fill(run.x, 1));
    run.culprit = wf_comm_rank(run.comm) == wf_comm_size(run.comm) - 1;
    /* All have opened it before the culprit fails; a rank that learns of that in here goes on with a dead one. */
    if (wf_barrier(run.comm) != WF_OK)
        wf_error_clear();
}

/* Checks that all ranks have the same error. The communicator is dead after it, and closes. */
static void close_told(const char *what, wf_status status, wf_status code, const char *says)
{
    char culprit[24];
    snprintf(culprit, sizeof culprit, "rank %d", wf_comm_size(run.comm) - 1);
    WF_EXPECT(status == code && strstr(wf_error_message(), says) && strstr(wf_error_message(), culprit),
              "%s on rank %d: %s, \"%s\"; should be %s of %s, \"%s\"", what, wf_comm_rank(run.comm),
              wf_status_name(status), wf_error_message(), wf_status_name(code), culprit, says);
    wf_error_clear();
    WF_EXPECT_ERROR(code, wf_barrier(run.comm));
    wf_tensor_free(run.x);
    wf_tape_free(run.tape);
    WF_EXPECT_OK(wf_comm_close(run.comm));
    wf_error_clear();
}

/* What a user writes: a layer that sums over ranks in forward and in backward. */

typedef enum failing { NOWHERE, FORWARD, SILENT, BACKWARD, CHILD } failing;

typedef struct user_layer {
    failing where;
    wf_layer *child; /* of CHILD: its backward fails, and it knows of no other rank */
} user_layer;

static wf_status sum_ranks(void)
{
    double one = 1;
    return wf_allreduce_f64(run.comm, &one, 1, WF_SUM);
}

static wf_status sum_backward(wf_node *node)
{
    WF_TRY(sum_ranks());
    return wf_node_give(node, 0, wf_tensor_alias(wf_node_dy(node)), true);
}

static wf_status failing_backward(wf_node *node)
{
    WF_CHECK(!run.culprit, WF_ERR_NUMERIC, REASON);
    return wf_node_give(node, 0, wf_tensor_alias(wf_node_dy(node)), true);
}

static wf_var *record(wf_var *x, const wf_op *op)
{
    return wf_tape_record(run.tape, &(wf_node_spec){.op = op, .n_in = 1, .in = &x}, wf_tensor_alias(x->value));
}

static wf_var *fails_in_backward(wf_var *x)
{
    static const wf_op op = {.name = "fails", .backward = failing_backward};
    return record(x, &op);
}

static wf_var *user_forward(wf_layer *layer, wf_var *x)
{
    static const wf_op sum_op = {.name = "sums", .backward = sum_backward};
    const user_layer *s = layer->state;
    WF_CHECK_NULL(s->where != FORWARD || !run.culprit, WF_ERR_NUMERIC, REASON);
    if (s->where == SILENT && run.culprit)
        return NULL;
    WF_TRY_NULL(sum_ranks());
    x = record(x, &sum_op);
    if (s->where == BACKWARD)
        return fails_in_backward(x);
    return s->child ? wf_apply(s->child, x) : x;
}

static void user_free(wf_layer *layer)
{
    wf_layer_free(((user_layer *)layer->state)->child);
}

static wf_layer *user_layer_new(failing where)
{
    static const wf_layer_kind kind = {.name = "users", .forward = user_forward, .free = user_free};
    wf_layer *layer = wf_layer_new(run.ctx, &kind, sizeof(user_layer));
    WF_EXPECT(layer, "%s", wf_error_message());
    *(user_layer *)layer->state =
        (user_layer){.where = where, .child = where == CHILD ? wf_lambda(run.ctx, fails_in_backward) : NULL};
    layer->comm = run.comm;
    return layer;
}

static void forward(void)
{
    open_run();
    wf_layer *layer = user_layer_new(FORWARD);
    WF_EXPECT(!wf_apply(layer, wf_input(run.tape, run.x)), "a layer that failed has an output");
    wf_layer_free(layer);
    close_told("forward", wf_error_code(), WF_ERR_NUMERIC, REASON);
}

static void without_words(void)
{
    open_run();
    wf_layer *layer = user_layer_new(SILENT);
    WF_EXPECT(!wf_apply(layer, wf_input(run.tape, run.x)), "a layer that failed has an output");
    wf_layer_free(layer);
    close_told("without words", wf_error_code(), WF_ERR_STATE, "returned NULL and no error");
}

/* The layer is not to blame: its input failed on one rank, in a function that every rank computes alone. */
static void input_failed(void)
{
    open_run();
    wf_layer *layer = user_layer_new(NOWHERE);
    wf_tensor *other = wf_tensor_new(run.ctx, WF_F32, WF_SHAPE(run.culprit ? 5 : 4));
    WF_EXPECT_OK(wf_tensor_fill(other, 1));
    wf_var *sum = wf_add(wf_input(run.tape, run.x), wf_input(run.tape, other));
    WF_EXPECT(!sum == run.culprit, "the sum of [4] and [5]");
    WF_EXPECT(!wf_apply(layer, wf_tanh(sum)), "a layer without an input on one rank has an output");
    wf_tensor_free(other);
    wf_layer_free(layer);
    close_told("input", wf_error_code(), WF_ERR_SHAPE, "[5]");
}

/* The statistics of a channel-parallel normalisation stay with the ranks of equal channels, here each rank alone. The
 * others learn of the failure all the same: the next layer sums over channels. */
static void channel_norm(void)
{
    open_run();
    const int size = wf_comm_size(run.comm);
    wf_mesh *mesh = wf_mesh_open(run.comm, (wf_mesh_opts){.channel = size});
    wf_layer *layer = mesh ? wf_channel_sync_batchnorm(mesh, (wf_batchnorm_opts){.channels = size}) : NULL;
    wf_tensor *x = wf_tensor_new(run.ctx, WF_F32, WF_SHAPE(2, 1));
    WF_EXPECT_OK(wf_tensor_fill(x, 1));
    wf_layout layout;
    if (layer && !run.culprit) {
        WF_EXPECT_OK(wf_mesh_layout_activation(mesh, WF_SHAPE(2, size), &layout));
        WF_EXPECT_OK(wf_tensor_set_layout(x, layout));
    }
    const wf_status status = layer && wf_apply(layer, wf_input(run.tape, x)) ? sum_ranks() : wf_error_code();
    wf_tensor_free(x);
    wf_layer_free(layer);
    wf_mesh_close(mesh);
    close_told("channel_norm", status, WF_ERR_SHAPE, "has channels");
}

/* The culprit fails before a layer of pooling, in which the others wait for its pixels or its sums. */
static void pooling(wf_layer *(*make)(const wf_mesh *mesh))
{
    open_run();
    const int size = wf_comm_size(run.comm);
    wf_mesh *mesh = wf_mesh_open(run.comm, (wf_mesh_opts){.height = size});
    wf_layer *layer = make(mesh);
    const wf_shape global = WF_SHAPE(1, 1, 2 * size, 4);
    wf_layout layout;
    WF_EXPECT_OK(wf_mesh_layout_activation(mesh, global, &layout));
    wf_tensor *x = wf_tensor_new(run.ctx, WF_F32, wf_box_shape(layout.box));
    WF_EXPECT_OK(wf_tensor_fill(x, 1));
    WF_EXPECT_OK(wf_tensor_set_layout(x, layout));
    /* All ranks make the exchange in the first call. */
    WF_EXPECT(wf_apply(layer, wf_input(run.tape, x)), "%s", wf_error_message());
    WF_EXPECT_OK(wf_barrier(run.comm));
    const wf_var *y = NULL;
    if (run.culprit)
        wf_comm_post_failure(run.comm, WF_RAISE(WF_ERR_NUMERIC, REASON));
    else
        y = wf_apply(layer, wf_input(run.tape, x));
    wf_status status = run.culprit ? wf_error_code() : wf_check(y);
    if (status == WF_OK) /* not beside the culprit */
        status = sum_ranks();
    wf_tensor_free(x);
    wf_layer_free(layer);
    wf_mesh_close(mesh);
    close_told("pooling", status, WF_ERR_NUMERIC, REASON);
}

static wf_layer *window_of(const wf_mesh *mesh)
{
    return wf_spatial_max_pool2d(mesh, (wf_pool_opts){.kernel = 3, .pad = 1, .stride = 1});
}

static wf_layer *average_of(const wf_mesh *mesh)
{
    return wf_spatial_global_avg_pool(mesh);
}

static void pools(void)
{
    pooling(window_of);
    pooling(average_of);
}

static void backward_of(failing where, const char *what)
{
    open_run();
    wf_layer *layer = user_layer_new(where);
    wf_var *y = wf_sum(wf_apply(layer, wf_leaf(run.tape, run.x)));
    WF_EXPECT(y || !run.culprit, "%s", wf_error_message());
    /* A rank that is still in forward when the culprit fails in backward learns of it there. */
    const wf_status status = y ? wf_backward(y) : wf_error_code();
    wf_layer_free(layer);
    close_told(what, status, WF_ERR_NUMERIC, REASON);
}

static void backward(void)
{
    backward_of(BACKWARD, "backward");
}

static void backward_of_child(void)
{
    backward_of(CHILD, "backward of a child");
}

/* Outside of all layers: backward fails on one rank behind the function that communicates. */
static void backward_of_function(void)
{
    open_run();
    wf_var *x = wf_leaf(run.tape, run.x);
    wf_var *y = wf_allreduce_var(run.comm, run.culprit ? fails_in_backward(x) : x);
    WF_EXPECT(y, "%s", wf_error_message());
    const wf_status status = wf_backward(wf_sum(y));
    WF_EXPECT((status == WF_OK) == !run.culprit, "backward is local after its sum: %s", wf_status_name(status));
    /* A node of one rank is its own affair, until the next step of an optimizer. */
    WF_EXPECT_OK(wf_comm_alive(run.comm));
    wf_error_clear();
    wf_tensor_free(run.x);
    wf_tape_free(run.tape);
    WF_EXPECT_OK(wf_comm_close(run.comm));
}

/* A layer that every rank computes alone: the optimizer's step tells the others. */
static void optimizer(void)
{
    open_run();
    wf_layer *model = wf_linear(run.ctx, (wf_linear_opts){.in = 4, .out = 1});
    wf_optim *optim = wf_multi_node(run.comm, wf_sgd(model, (wf_sgd_opts){.lr = 1}), (wf_multi_node_opts){0});
    const wf_shape shape = WF_SHAPE(1, run.culprit ? 3 : 4);
    wf_tensor *x = wf_tensor_new(run.ctx, WF_F32, shape);
    WF_EXPECT_OK(wf_tensor_fill(x, 1));
    /* NULL where the culprit has failed before this rank was done with wf_multi_node. */
    const wf_status status =
        optim ? wf_optim_step(optim, wf_mean(wf_apply(model, wf_input(run.tape, x)))) : wf_check(optim);
    wf_tensor_free(x);
    wf_optim_free(optim);
    wf_layer_free(model);
    close_told("optimizer", status, WF_ERR_SHAPE, "[1,3]");
}

/* A data set whose reader fails on one rank, which every rank reads by itself. */

static wf_status open_samples(wf_dataset *dataset)
{
    dataset->info = (wf_dataset_info){.count = 8, .shape = WF_SHAPE(2), .dtype = WF_F32};
    return WF_OK;
}

static wf_status read_sample(wf_dataset *dataset, int64_t index, const wf_sample_key *key, void *x, int64_t *label)
{
    (void)dataset, (void)index, (void)key, (void)label;
    WF_CHECK(!run.culprit, WF_ERR_IO, REASON);
    memset(x, 0, 2 * sizeof(float));
    return WF_OK;
}

static void reader_with(int prefetch)
{
    static const wf_dataset_kind kind = {.name = "fails", .open = open_samples, .read = read_sample};
    open_run();
    wf_dataset *samples = wf_dataset_new(run.ctx, &kind, NULL, 0);
    wf_dataset *part = wf_scatter_dataset(run.comm, samples, (wf_scatter_opts){.each_reads = true});
    wf_iter *iter = wf_batches(part, (wf_batch_opts){.size = 2});
    iter = prefetch > 0 ? wf_prefetch(iter, (wf_prefetch_opts){.depth = prefetch}) : iter;
    wf_batch batch;
    /* NULL where the culprit has failed before this rank was done with the scatter. */
    wf_status status = iter ? wf_iter_next(iter, &batch) : wf_check(iter);
    if (status == WF_OK)
        status = sum_ranks();
    wf_iter_free(iter);
    close_told("reader", status, WF_ERR_IO, REASON);
}

static void reader(void)
{
    reader_with(0);
    reader_with(2);
}

static int on_ranks(int argc, char **argv)
{
    return test_main(argc, argv,
                     (test_case[]){{"forward", forward},
                                   {"without_words", without_words},
                                   {"input_failed", input_failed},
                                   {"channel_norm", channel_norm},
                                   {"pools", pools},
                                   {"backward", backward},
                                   {"backward_of_child", backward_of_child},
                                   {"backward_of_function", backward_of_function},
                                   {"optimizer", optimizer},
                                   {"reader", reader},
                                   {0}});
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
