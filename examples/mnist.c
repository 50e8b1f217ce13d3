/* Digits, or Debian's photographs of clothes, told apart by a small network, trained by all ranks together:
 *
 *     mpirun -np 4 mnist --model cnn --epochs 5
 */
#include "examples/models/mnist.h"
#include "examples/common.h"
#include "examples/compression.h"

#include <math.h>
#include <string.h>

typedef struct settings {
    const char *communicator, *model, *data, *compress, *compute;
    int64_t batch, epochs, seed;
    double lr;
    example_saves saves;
} settings;

static settings read_settings(int argc, char **argv)
{
    settings s = {.communicator = "auto",
                  .model = "mlp",
                  .batch = 100,
                  .epochs = 5,
                  .lr = 1e-3,
                  .saves = {.keep = 3, .folder = "snapshots"}};
    const example_option table[] = {
        {"communicator", "NAME", "how ranks talk: auto, flat, hierarchical, ...", .text = &s.communicator},
        {"model", "NAME", "mlp or cnn", .text = &s.model},
        {"batch", "N", "images per rank in a step", .number = &s.batch, .least = 1},
        {"epochs", "N", "times all images", .number = &s.epochs, .least = 1},
        {"data", "DIR", "folder of MNIST's or Fashion-MNIST's IDX files", .text = &s.data},
        {"compress", "HOW", "gradients on the wire: powersgd:RANK or topk:SHARE", .text = &s.compress},
        {"lr", "X", "learning rate of one rank", .real = &s.lr},
        {"seed", "N", "of all random numbers", .number = &s.seed},
        EXAMPLE_COMPUTE(&s.compute),
        EXAMPLE_SAVES(&s.saves),
        {0}};
    example_options(argc, argv, "Trains a classifier of 28x28 images, on all ranks of mpirun together.", table);
    return s;
}

static wf_iter *open_images(wf_comm *comm, const settings *s, wf_split split)
{
    wf_dataset *files = wf_mnist(wf_comm_ctx(comm), s->data, split);
    wf_dataset *images = wf_scatter_dataset(comm, files, (wf_scatter_opts){.shuffle = split == WF_TRAIN_SET});
    wf_iter *iter = wf_batches(images, (wf_batch_opts){.size = s->batch});
    example_check(comm, wf_check(iter));
    return wf_prefetch(iter, 2);
}

/* P ranks take P times as many images in a step, so they make fewer steps, of sqrt(P) times the rate: the schedule
 * warms up to it over half an epoch and then falls as a cosine. */
static wf_optim *optim_new(wf_comm *comm, wf_layer *model, const settings *s, int64_t epoch_steps, compression *c)
{
    const wf_adam_opts adam = {.lr = s->lr * sqrt(wf_comm_size(comm))};
    wf_optim *optim = wf_lr_schedule(wf_adam(model, adam), (wf_schedule_opts){.kind = WF_SCHEDULE_COSINE,
                                                                              .warmup = epoch_steps / 2,
                                                                              .total = s->epochs * epoch_steps,
                                                                              .end = 0.01});
    return wf_multi_node_with(comm, example_scaled(optim), compression_opts(c, (wf_multi_node_opts){0}));
}

typedef struct trainer {
    wf_comm *comm;
    wf_layer *model;
    wf_optim *optim;
    wf_tape *tape;
    wf_iter *training, *test;
    wf_checkpoint *saves;
    int64_t step; /* steps made */
    bool left;    /* a signal has come */
} trainer;

/* The rest of an epoch; the mean of its losses. */
static double train(trainer *t)
{
    double sum = 0;
    const int64_t steps = wf_iter_epoch_length(t->training), first = t->step % steps;
    for (int64_t i = first; i < steps && !t->left; i++) {
        wf_batch b;
        WF_MUST(wf_iter_next(t->training, &b));
        wf_var *loss = wf_softmax_cross_entropy(wf_apply(t->model, wf_input(t->tape, b.x)), b.labels);
        WF_MUST(wf_optim_step(t->optim, loss));
        sum += wf_item(loss);
        WF_MUST(wf_tape_reset(t->tape));
        t->left = example_saves_step(t->comm, t->saves, ++t->step);
    }
    return sum / (double)(steps - first);
}

/* Each rank counts over its own part of the test images, in which every image is once. */
static void evaluate(wf_comm *comm, wf_layer *model, wf_tape *tape, wf_iter *iter, int64_t count[2])
{
    count[0] = count[1] = 0;
    WF_MUST(wf_tape_set_mode(tape, WF_EVAL));
    const int64_t steps = wf_iter_epoch_length(iter);
    for (int64_t i = 0; i < steps; i++) {
        wf_batch b;
        WF_MUST(wf_iter_next(iter, &b));
        wf_var *scores = wf_apply(model, wf_input(tape, b.x));
        WF_MUST(wf_check(scores));
        count[0] += wf_count_correct(scores, b.labels);
        count[1] += b.size;
        WF_MUST(wf_tape_reset(tape));
    }
    WF_MUST(wf_tape_set_mode(tape, WF_TRAIN));
    WF_MUST(wf_allreduce_i64(comm, count, 2, WF_SUM));
}

static wf_layer *model_new(wf_comm *comm, const settings *s)
{
    wf_ctx *ctx = wf_comm_ctx(comm);
    if (strcmp(s->model, "mlp") == 0)
        return mnist_mlp(ctx);
    if (strcmp(s->model, "cnn") == 0)
        return mnist_cnn(ctx);
    char complaint[256];
    snprintf(complaint, sizeof complaint, "--model %s: should be mlp or cnn", s->model);
    example_agree(comm, complaint);
    return NULL;
}

static void saves_open(trainer *t, const settings *s)
{
    t->saves = example_saves_open(t->comm, &s->saves);
    if (!t->saves)
        return;
    WF_MUST(wf_checkpoint_add_model(t->saves, "model", t->model));
    WF_MUST(wf_checkpoint_add_optim(t->saves, "optimizer", t->optim));
    WF_MUST(wf_checkpoint_add(t->saves, "tape", wf_tape_visit, t->tape));
    WF_MUST(wf_checkpoint_add(t->saves, "batches", wf_iter_visit, t->training));
    t->step = example_saves_load(t->comm, t->saves, &s->saves);
}

/* Until the last epoch, or a signal. */
static void run(trainer *t, int64_t epochs)
{
    while (t->step < epochs * wf_iter_epoch_length(t->training)) {
        int64_t count[2];
        const int64_t epoch = t->step / wf_iter_epoch_length(t->training);
        const double start = example_seconds(), loss = train(t);
        const double seconds = example_seconds() - start;
        if (t->left)
            return;
        evaluate(t->comm, t->model, t->tape, t->test, count);
        if (wf_comm_rank(t->comm) == 0)
            printf("epoch %lld  loss %.4f  accuracy %.4f (%lld of %lld)  %.1f s\n", (long long)epoch + 1, loss,
                   (double)count[0] / (double)count[1], (long long)count[0], (long long)count[1], seconds);
    }
}

int main(int argc, char **argv)
{
    const settings s = read_settings(argc, argv);
    wf_comm *comm = wf_comm_open_with(&argc, &argv, s.communicator, (wf_ctx_opts){.seed = (uint64_t)s.seed});
    example_check(comm, wf_check(comm));
    example_compute(comm, s.compute);

    char complaint[COMPRESSION_COMPLAINT];
    compression *compressed = compression_new(s.compress, complaint);
    example_agree(comm, *complaint ? complaint : NULL);

    trainer t = {.comm = comm, .model = model_new(comm, &s)};
    t.training = open_images(comm, &s, WF_TRAIN_SET);
    t.test = open_images(comm, &s, WF_TEST_SET);
    t.optim = optim_new(comm, t.model, &s, wf_iter_epoch_length(t.training), compressed);
    t.tape = wf_tape_new(wf_comm_ctx(comm));
    example_check(comm, wf_check(t.optim));
    saves_open(&t, &s);
    run(&t, s.epochs);

    if (compressed && wf_comm_rank(comm) == 0)
        printf("gradients as %s: %lld elements of %lld a step\n", s.compress, (long long)compression_sent(compressed),
               (long long)compression_given(compressed));

    const int code = example_saves_end(comm, t.saves, t.left);
    wf_tape_free(t.tape);
    wf_optim_free(t.optim);
    compression_free(compressed);
    wf_layer_free(t.model);
    wf_iter_free(t.test);
    wf_iter_free(t.training);
    WF_MUST(wf_comm_close(comm));
    return code;
}
