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
} settings;

static settings read_settings(int argc, char **argv)
{
    settings s = {.communicator = "auto", .model = "mlp", .batch = 100, .epochs = 5, .lr = 1e-3};
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
    wf_optim *optim = wf_schedule(wf_adam(model, adam), (wf_schedule_opts){.kind = WF_SCHEDULE_COSINE,
                                                                           .warmup = epoch_steps / 2,
                                                                           .total = s->epochs * epoch_steps,
                                                                           .end = 0.01});
    return wf_multi_node_with(comm, example_scaled(optim), compression_opts(c, (wf_multi_node_opts){0}));
}

/* An epoch of training; the mean of its losses. */
static double train(wf_layer *model, wf_optim *optim, wf_tape *tape, wf_iter *iter)
{
    double sum = 0;
    const int64_t steps = wf_iter_epoch_length(iter);
    for (int64_t i = 0; i < steps; i++) {
        wf_batch b;
        WF_MUST(wf_iter_next(iter, &b));
        wf_var *loss = wf_softmax_cross_entropy(wf_apply(model, wf_input(tape, b.x)), b.labels);
        WF_MUST(wf_optim_step(optim, loss));
        sum += wf_item(loss);
        WF_MUST(wf_tape_reset(tape));
    }
    return sum / (double)steps;
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

int main(int argc, char **argv)
{
    const settings s = read_settings(argc, argv);
    wf_comm *comm = wf_comm_open_with(&argc, &argv, s.communicator, (wf_ctx_opts){.seed = (uint64_t)s.seed});
    example_check(comm, wf_check(comm));
    example_compute(comm, s.compute);

    char complaint[COMPRESSION_COMPLAINT];
    compression *compressed = compression_new(s.compress, complaint);
    example_agree(comm, *complaint ? complaint : NULL);

    wf_layer *model = model_new(comm, &s);
    wf_iter *training = open_images(comm, &s, WF_TRAIN_SET), *test = open_images(comm, &s, WF_TEST_SET);
    wf_optim *optim = optim_new(comm, model, &s, wf_iter_epoch_length(training), compressed);
    wf_tape *tape = wf_tape_new(wf_comm_ctx(comm));
    example_check(comm, wf_check(optim));

    for (int64_t epoch = 0; epoch < s.epochs; epoch++) {
        int64_t count[2];
        const double start = example_seconds(), loss = train(model, optim, tape, training);
        const double seconds = example_seconds() - start;
        evaluate(comm, model, tape, test, count);
        if (wf_comm_rank(comm) == 0)
            printf("epoch %lld  loss %.4f  accuracy %.4f (%lld of %lld)  %.1f s\n", (long long)epoch + 1, loss,
                   (double)count[0] / (double)count[1], (long long)count[0], (long long)count[1], seconds);
    }

    if (compressed && wf_comm_rank(comm) == 0)
        printf("gradients as %s: %lld elements of %lld a step\n", s.compress, (long long)compression_sent(compressed),
               (long long)compression_given(compressed));

    wf_tape_free(tape);
    wf_optim_free(optim);
    compression_free(compressed);
    wf_layer_free(model);
    wf_iter_free(test);
    wf_iter_free(training);
    WF_MUST(wf_comm_close(comm));
    return 0;
}
