/* MNIST by a network whose layers are on two ranks: ChainerMN's recipes of model parallelism.
 *
 *     mpirun -np 2 mnist_parallel --parallel model     (the middle of the network on rank 1, its two ends on rank 0)
 *     mpirun -np 4 mnist_parallel --parallel dual      (a network on every two ranks)
 *     mpirun -np 2 mnist_parallel --parallel data      (the whole network on every rank)
 *
 * Every form takes the same batch in a step, so its losses are those of one rank. mnist.c is the program for data
 * parallelism alone.
 */
#include "examples/common.h"

#include <string.h>

typedef struct settings {
    const char *communicator, *parallel, *data;
    int64_t units, batch, epochs, steps, every, seed;
    double lr;
} settings;

static settings read_settings(int argc, char **argv)
{
    settings s = {.communicator = "auto",
                  .parallel = "model",
                  .units = 1000,
                  .batch = 100,
                  .epochs = 5,
                  .every = 100,
                  .lr = 1e-3};
    const example_option table[] = {
        {"communicator", "NAME", "how ranks talk: auto, flat, hierarchical, ...", .text = &s.communicator},
        {"parallel", "HOW", "model: a network on two ranks; dual: one on every two ranks; data: one on every rank",
         .text = &s.parallel},
        {"units", "N", "of the two hidden layers", .number = &s.units, .most = EXAMPLE_MOST_SIZE, .least = 1},
        {"batch", "N", "images in a step, of all ranks", .number = &s.batch, .most = EXAMPLE_MOST_SIZE, .least = 1},
        {"epochs", "N", "times all images", .number = &s.epochs, .most = EXAMPLE_MOST_COUNT, .least = 1},
        {"steps", "N", "ends an epoch after so many steps; 0: after all images", .number = &s.steps,
         .most = EXAMPLE_MOST_COUNT},
        {"log-every", "N", "steps between two lines", .number = &s.every, .most = EXAMPLE_MOST_COUNT, .least = 1},
        {"data", "DIR", "folder of MNIST's or Fashion-MNIST's IDX files", .text = &s.data},
        {"lr", "X", "learning rate", .real = &s.lr},
        {"seed", "N", "of all random numbers", .number = &s.seed, .most = EXAMPLE_MOST_COUNT},
        {0}};
    example_options(argc, argv, "Trains a classifier of 28x28 images, whose layers are on two ranks.", table);
    return s;
}

typedef struct training {
    const settings *s;
    wf_comm *comm;  /* all ranks */
    wf_comm *model; /* the ranks of one network; rank 0 has its two ends */
    wf_comm *data;  /* the ranks that have the same layers, of all networks */
    wf_layer *net;
    wf_optim *optim;
    wf_tape *tape;
    wf_iter *train, *test;
} training;

static int ranks_of_network(const settings *s)
{
    return strcmp(s->parallel, "data") == 0 ? 1 : 2;
}

static void check_ranks(wf_comm *comm, const settings *s)
{
    const int size = wf_comm_size(comm);
    const bool model = strcmp(s->parallel, "model") == 0, dual = strcmp(s->parallel, "dual") == 0;
    char complaint[256] = "";
    if (!model && !dual && strcmp(s->parallel, "data") != 0)
        snprintf(complaint, sizeof complaint, "--parallel %s: should be model, dual or data", s->parallel);
    else if (model && size != 2)
        snprintf(complaint, sizeof complaint, "--parallel model on %d ranks, should be 2", size);
    else if (dual && size % 2 != 0)
        snprintf(complaint, sizeof complaint, "--parallel dual on %d ranks, should be an even number", size);
    example_agree(comm, *complaint ? complaint : NULL);
}

/* --- the network -------------------------------------------------------------------------------------------------- */

static wf_layer *dense(wf_ctx *ctx, int64_t in, int64_t out)
{
    return wf_linear(ctx, (wf_linear_opts){.in = in, .out = out});
}

static wf_layer *hidden(wf_ctx *ctx, int64_t in, int64_t out)
{
    return wf_sequential(ctx, WF_LAYERS(dense(ctx, in, out), wf_lambda(ctx, wf_relu)));
}

static void add_part(const training *t, const char *name, wf_layer *layer, int from, int to)
{
    WF_MUST(wf_multi_node_chain_add(
        t->net, (wf_component){.name = name, .layer = layer, WF_FROM({.rank = from}), WF_TO({.rank = to})}));
}

/* 784-units-units-10. On one rank the three parts send to themselves. */
static void make_network(training *t)
{
    wf_ctx *ctx = wf_comm_ctx(t->comm);
    const int64_t units = t->s->units;
    const int own = wf_comm_rank(t->model), middle = wf_comm_size(t->model) - 1;
    t->net = wf_layer_named(wf_multi_node_chain(t->model), "mnist");
    if (own == 0)
        add_part(t, "below", hidden(ctx, 784, units), WF_OUTSIDE, middle);
    if (own == middle)
        add_part(t, "middle", hidden(ctx, units, units), 0, 0);
    if (own == 0)
        add_part(t, "above", dense(ctx, units, 10), middle, WF_OUTSIDE);
    WF_MUST(wf_multi_node_chain_connect(t->net));
}

/* --- training ----------------------------------------------------------------------------------------------------- */

/* Rows [lo, hi) of what all networks get together. */
static wf_tensor *rows_of(const training *t, const wf_tensor *x)
{
    wf_box box = wf_box_of_shape(wf_tensor_shape(x));
    const int64_t n = box.hi[0], part = wf_comm_rank(t->data), parts = wf_comm_size(t->data);
    box.lo[0] = n * part / parts;
    box.hi[0] = n * (part + 1) / parts;
    return wf_tensor_view(x, box);
}

/* The scores of this network's images, or on its other rank a token; *labels: theirs, for the caller to free. */
static wf_var *scores_of(const training *t, wf_iter *iter, wf_tensor **labels)
{
    wf_batch b;
    WF_MUST(wf_iter_next(iter, &b));
    wf_tensor *x = rows_of(t, b.x);
    *labels = rows_of(t, b.labels);
    /* A rank without an input gives any variable of its tape. */
    wf_var *y = wf_apply(t->net, wf_comm_rank(t->model) == 0 ? wf_input(t->tape, x) : wf_no_loss(t->tape));
    WF_MUST(wf_check(y));
    wf_tensor_free(x);
    return y;
}

static void train_step(training *t, double sums[2])
{
    wf_tensor *labels;
    wf_var *loss = scores_of(t, t->train, &labels);
    if (wf_comm_rank(t->model) == 0) {
        const double n = (double)wf_tensor_count(labels);
        loss = wf_softmax_cross_entropy(loss, labels, (wf_label_opts){0});
        sums[0] += n > 0 ? wf_item(loss) * n : 0;
        sums[1] += n;
    }
    WF_MUST(wf_optim_step(t->optim, loss));
    WF_MUST(wf_tape_reset(t->tape));
    wf_tensor_free(labels);
}

static void train_epoch(training *t, int64_t steps)
{
    double sums[2] = {0, 0};
    for (int64_t step = 1; step <= steps; step++) {
        train_step(t, sums);
        if (step % t->s->every != 0 && step != steps)
            continue;
        WF_MUST(wf_allreduce_f64(t->comm, sums, 2, WF_SUM));
        if (wf_comm_rank(t->comm) == 0) {
            example_finite("loss", sums[0] / sums[1], step);
            printf("step %lld: loss %.6f\n", (long long)step, sums[0] / sums[1]);
        }
        sums[0] = sums[1] = 0;
    }
}

static void evaluate(const training *t, int64_t epoch)
{
    double right[2] = {0, 0};
    WF_MUST(wf_tape_set_mode(t->tape, WF_EVAL));
    for (int64_t i = wf_iter_epoch_length(t->test); i > 0; i--) {
        wf_tensor *labels;
        wf_var *scores = scores_of(t, t->test, &labels);
        if (wf_comm_rank(t->model) == 0) {
            right[0] += (double)wf_count_correct(scores, labels, (wf_label_opts){0});
            right[1] += (double)wf_tensor_count(labels);
        }
        wf_tensor_free(labels);
        WF_MUST(wf_tape_reset(t->tape));
    }
    WF_MUST(wf_tape_set_mode(t->tape, WF_TRAIN));
    WF_MUST(wf_allreduce_f64(t->comm, right, 2, WF_SUM));
    if (wf_comm_rank(t->comm) == 0)
        printf("epoch %lld: accuracy %.4f of %.0f images\n", (long long)epoch, right[0] / right[1], right[1]);
}

static wf_iter *open_images(const training *t, wf_dataset_split split)
{
    wf_dataset *images = wf_mnist(wf_comm_ctx(t->comm), t->s->data, split);
    const wf_batch_opts opts = {
        .size = t->s->batch, .shuffle = split == WF_TRAIN_SET, .seed = (uint64_t)t->s->seed + 1};
    wf_iter *iter = wf_batches(images, opts);
    /* The files are opened here, where every rank can complain. */
    example_check_each(t->comm, iter && wf_iter_epoch_length(iter) > 0 ? WF_OK : wf_check(NULL));
    return iter;
}

int main(int argc, char **argv)
{
    const settings s = read_settings(argc, argv);
    wf_comm *comm = wf_comm_open(&argc, &argv, s.communicator, (wf_ctx_opts){.seed = (uint64_t)s.seed});
    example_check(comm, wf_check(comm));
    check_ranks(comm, &s);
    const int rank = wf_comm_rank(comm), width = ranks_of_network(&s);
    training t = {.s = &s, .comm = comm, .tape = wf_tape_new(wf_comm_ctx(comm))};
    t.train = open_images(&t, WF_TRAIN_SET);
    t.test = open_images(&t, WF_TEST_SET);
    t.model = wf_comm_split(comm, rank / width, rank);
    t.data = wf_comm_split(comm, rank % width, rank);
    make_network(&t);
    t.optim = wf_multi_node(t.data, wf_adam(t.net, (wf_adam_opts){.lr = s.lr}), (wf_multi_node_opts){0});
    example_check(comm, wf_check(t.optim));

    const int64_t all = wf_iter_epoch_length(t.train);
    for (int64_t epoch = 1; epoch <= s.epochs; epoch++) {
        train_epoch(&t, s.steps > 0 && s.steps < all ? s.steps : all);
        evaluate(&t, epoch);
    }
    wf_optim_free(t.optim);
    wf_layer_free(t.net);
    wf_iter_free(t.test);
    wf_iter_free(t.train);
    wf_tape_free(t.tape);
    WF_MUST(wf_comm_close(t.data));
    WF_MUST(wf_comm_close(t.model));
    WF_MUST(wf_comm_close(comm));
    return 0;
}
