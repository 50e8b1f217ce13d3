/* Ranks with data of their own, of any lengths, one of them without any: who has run out joins in with weight zero
 * until the longest is through, and every step is that of the serial program on what is left; under every name. */
#include "datasets/datasets.h"
#include "layers/layers.h"
#include "optim/multi_node.h"
#include "tests/comm/comm_names.h"
#include "tests/optim/optim_model.h"
#include "tests/world.h"

enum { IN = 3, CLASSES = 4, BATCH = 2, MOST = 9, RANKS = 4, EPOCHS = 2 };

static const int64_t held[RANKS] = {5, 0, MOST, 1};

typedef struct fixture {
    wf_comm *comm;
    wf_ctx *ctx;
    int rank, size;
    wf_layer *model, *serial;
    wf_optim *optim, *reference;
    wf_tape *tape;
} fixture;

static void samples(int of_rank, int64_t lo, int64_t n, double *x, int64_t *label)
{
    for (int64_t i = 0; i < n; i++) {
        test_rng rng = {.state = (uint64_t)(of_rank * 100 + lo + i)};
        for (int k = 0; k < IN; k++)
            x[i * IN + k] = test_uniform(&rng, -1, 1);
        label[i] = test_int(&rng, 0, CLASSES - 1);
    }
}

static bool fixture_open(fixture *f, const char *name)
{
    const wf_sgd_opts sgd = {.lr = 0.3, .momentum = 0.9};
    *f = (fixture){
        .comm = comm_open_named(name, (wf_ctx_opts){.device = test_device("ref"), .dtype = WF_F64, .threads = 1})};
    if (!f->comm)
        return false;
    f->ctx = wf_comm_ctx(f->comm);
    f->rank = wf_comm_rank(f->comm);
    f->size = wf_comm_size(f->comm);
    f->model = wf_linear(f->ctx, (wf_linear_opts){.in = IN, .out = CLASSES});
    f->serial = wf_linear(f->ctx, (wf_linear_opts){.in = IN, .out = CLASSES});
    f->optim = wf_multi_node(f->comm, wf_sgd(f->model, sgd), (wf_multi_node_opts){0});
    f->reference = wf_sgd(f->serial, sgd);
    for (int i = 0; param_of(f->model, i); i++)
        WF_EXPECT_OK(wf_tensor_assign(wf_param_value(param_of(f->serial, i)), wf_param_value(param_of(f->model, i))));
    f->tape = wf_tape_new(f->ctx);
    return true;
}

static void fixture_close(fixture *f)
{
    wf_tape_free(f->tape);
    wf_optim_free(f->optim);
    wf_optim_free(f->reference);
    wf_layer_free(f->model);
    wf_layer_free(f->serial);
    WF_EXPECT_OK(wf_comm_close(f->comm));
}

static int64_t at_most(int64_t value, int64_t limit)
{
    return value < limit ? value : limit;
}

/* How many samples of rank r are in batch k. */
static int64_t batch_of(int r, int64_t k)
{
    return held[r] > k * BATCH ? at_most(held[r] - k * BATCH, BATCH) : 0;
}

static wf_var *loss_of(fixture *f, wf_layer *model, int64_t n, const double *x, const int64_t *label, wf_tensor **kept)
{
    wf_tensor *in = wf_tensor_from_host(f->ctx, WF_F64, WF_SHAPE(n, IN), x);
    *kept = wf_tensor_from_host(f->ctx, WF_I64, WF_SHAPE(n), label);
    wf_var *scores = wf_apply(model, wf_input(f->tape, in));
    wf_tensor_free(in);
    return wf_softmax_cross_entropy(scores, *kept, (wf_label_opts){0});
}

/* The step of the serial program on batch k of all ranks, and what it leaves: the same as `mine` and the model. */
static void expect_serial(fixture *f, const char *name, int64_t k, const wf_var *mine)
{
    double x[RANKS * BATCH * IN], a[IN * CLASSES], b[IN * CLASSES];
    int64_t label[RANKS * BATCH], n = 0;
    wf_tensor *kept;
    for (int r = 0; r < f->size; r++) {
        samples(r, k * BATCH, batch_of(r, k), x + n * IN, label + n);
        n += batch_of(r, k);
    }
    wf_var *whole = loss_of(f, f->serial, n, x, label, &kept);
    WF_EXPECT_OK(wf_optim_step(f->reference, whole));
    const double seen = wf_item(mine), should = wf_item(whole);
    WF_EXPECT(test_distance(1, &seen, &should) < 1e-13, "%s, batch %d on rank %d: loss %g, should be %g", name, (int)k,
              f->rank, seen, should);
    for (int i = 0; param_of(f->model, i); i++) {
        const wf_tensor *value = wf_param_value(param_of(f->model, i));
        values_get(value, a);
        values_get(wf_param_value(param_of(f->serial, i)), b);
        WF_EXPECT(test_distance(wf_tensor_count(value), a, b) < 1e-13, "%s, batch %d on rank %d: parameter %d is off",
                  name, (int)k, f->rank, i);
    }
    wf_tensor_free(kept);
}

static int64_t longest(int size)
{
    int64_t most = 0;
    for (int r = 0; r < size; r++)
        most = held[r] > most ? held[r] : most;
    return (most + BATCH - 1) / BATCH;
}

static wf_dataset *own_data(const fixture *f)
{
    double x[MOST * IN];
    int64_t label[MOST];
    if (held[f->rank] == 0)
        return wf_empty_dataset(f->ctx, NULL);
    samples(f->rank, 0, held[f->rank], x, label);
    return wf_memory_dataset(f->ctx, WF_F64, WF_SHAPE(held[f->rank], IN), x, label);
}

/* Batches know the sizes of all. */
static void joined(void)
{
    for (int n = 0; comm_names[n]; n++) {
        fixture f;
        if (!strcmp(comm_names[n], "dummy") || !fixture_open(&f, comm_names[n]))
            continue;
        wf_iter *iter = wf_batches(wf_joined_dataset(f.comm, own_data(&f)), (wf_batch_opts){.size = BATCH});
        for (int64_t step = 0; step < EPOCHS * longest(f.size); step++) {
            wf_batch b = {0};
            const int64_t k = step % longest(f.size);
            WF_EXPECT_OK(wf_iter_next(iter, &b));
            WF_EXPECT(b.size == batch_of(f.rank, k), "batch %d has %d samples", (int)k, (int)b.size);
            wf_var *loss =
                wf_softmax_cross_entropy(wf_apply(f.model, wf_input(f.tape, b.x)), b.labels, (wf_label_opts){0});
            WF_EXPECT_OK(wf_optim_step(f.optim, loss));
            expect_serial(&f, comm_names[n], k, loss);
            WF_EXPECT_OK(wf_tape_reset(f.tape));
        }
        WF_EXPECT(wf_iter_epoch(iter) == EPOCHS, "%d epochs", (int)wf_iter_epoch(iter));
        wf_iter_free(iter);
        fixture_close(&f);
    }
}

/* Local means; a rank that has run out says so by wf_no_loss. */
static void run_out(void)
{
    for (int n = 0; comm_names[n]; n++) {
        fixture f;
        if (!strcmp(comm_names[n], "dummy") || !fixture_open(&f, comm_names[n]))
            continue;
        for (int64_t k = 0; k < longest(f.size); k++) {
            double x[BATCH * IN];
            int64_t label[BATCH];
            wf_tensor *kept = NULL;
            const int64_t count = batch_of(f.rank, k);
            samples(f.rank, k * BATCH, count, x, label);
            wf_var *loss = count > 0 ? loss_of(&f, f.model, count, x, label, &kept) : wf_no_loss(f.tape);
            WF_EXPECT_OK(wf_optim_step(f.optim, loss));
            expect_serial(&f, comm_names[n], k, loss);
            wf_tensor_free(kept);
            WF_EXPECT_OK(wf_tape_reset(f.tape));
        }
        fixture_close(&f);
    }
}

/* Checks that all ranks have the same error, and that the communicator lives on. */
static void not_alike(void)
{
    wf_comm *comm = test_comm_open("flat", (wf_ctx_opts){0});
    wf_ctx *ctx = wf_comm_ctx(comm);
    const bool last = wf_comm_rank(comm) == wf_comm_size(comm) - 1, several = wf_comm_size(comm) > 1;
    const float x[6] = {0};
    wf_dataset *d =
        wf_joined_dataset(comm, wf_memory_dataset(ctx, WF_F32, last ? WF_SHAPE(3, 2) : WF_SHAPE(2, 3), x, NULL));
    WF_EXPECT((d == NULL) == several, "%s", wf_error_message());
    WF_EXPECT(!several || (wf_error_code() == WF_ERR_SHAPE && strstr(wf_error_message(), "f32 [2] on rank")), "\"%s\"",
              wf_error_message());
    wf_error_clear();
    wf_dataset_free(d);
    d = wf_joined_dataset(comm, last ? wf_mnist(ctx, "/nowhere/at/all", WF_TRAIN_SET) : wf_empty_dataset(ctx, NULL));
    WF_EXPECT(!d && wf_error_code() == WF_ERR_IO && strstr(wf_error_message(), "nowhere"), "\"%s\"",
              wf_error_message());
    wf_error_clear();
    WF_EXPECT_OK(wf_barrier(comm));
    WF_EXPECT_OK(wf_comm_close(comm));
}

static int on_ranks(int argc, char **argv)
{
    return test_main(argc, argv,
                     (test_case[]){{"joined", joined}, {"run_out", run_out}, {"not_alike", not_alike}, {0}});
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
