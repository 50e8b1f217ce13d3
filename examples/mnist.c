/* Digits, or Debian's photographs of clothes, told apart by a small network, trained by all ranks together:
 *
 *     mpirun -np 4 mnist --model cnn --epochs 5
 */
#include "examples/models/mnist.h"
#include "examples/common.h"
#include "examples/compression.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

typedef struct settings {
    const char *communicator, *model, *data, *compress, *compute;
    int64_t batch, epochs, seed;
    double lr;
    example_saves saves;
    example_best best;
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
        {"batch", "N", "images per rank in a step", .number = &s.batch, .most = EXAMPLE_MOST_SIZE, .least = 1},
        {"epochs", "N", "times all images", .number = &s.epochs, .most = EXAMPLE_MOST_COUNT, .least = 1},
        {"data", "DIR", "folder of MNIST's or Fashion-MNIST's IDX files", .text = &s.data},
        {"compress", "HOW", "gradients on the wire: powersgd:RANK or topk:SHARE", .text = &s.compress},
        {"lr", "X", "learning rate of one rank", .real = &s.lr},
        {"seed", "N", "of all random numbers", .number = &s.seed, .most = EXAMPLE_MOST_COUNT},
        EXAMPLE_COMPUTE(&s.compute),
        EXAMPLE_SAVES(&s.saves),
        EXAMPLE_BEST(&s.best),
        {0}};
    example_options(argc, argv, "Trains a classifier of 28x28 images, on all ranks of mpirun together.", table);
    return s;
}

static wf_iter *open_images(wf_comm *comm, const settings *s, wf_dataset_split split)
{
    wf_dataset *files = wf_mnist(wf_comm_ctx(comm), s->data, split);
    wf_dataset *images = wf_scatter_dataset(comm, files, (wf_scatter_opts){.shuffle = split == WF_TRAIN_SET});
    wf_iter *iter = wf_batches(images, (wf_batch_opts){.size = s->batch});
    example_check(comm, wf_check(iter));
    return wf_prefetch(iter, (wf_prefetch_opts){.depth = 2});
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
    return wf_multi_node(comm, example_scaled(optim), compression_opts(c, (wf_multi_node_opts){0}));
}

/* What a step works with. */
typedef struct training {
    wf_layer *model;
    wf_optim *optim;
    wf_tape *tape;
    wf_iter *train, *test;
} training;

static wf_status train_step(wf_trainer *trainer, void *user)
{
    training *t = user;
    wf_batch b;
    WF_MUST(wf_iter_next(t->train, &b));
    wf_var *loss = wf_softmax_cross_entropy(wf_apply(t->model, wf_input(t->tape, b.x)), b.labels, (wf_label_opts){0});
    WF_MUST(wf_optim_step(t->optim, loss));
    WF_MUST(wf_trainer_observe_var(trainer, "loss", loss, (double)b.size));
    wf_trainer_add_samples(trainer, b.global);
    return wf_tape_reset(t->tape);
}

/* Each rank counts over its own part of the test images, in which every image is once. */
static wf_status evaluate(wf_trainer *trainer, void *user)
{
    training *t = user;
    WF_MUST(wf_tape_set_mode(t->tape, WF_EVAL));
    for (int64_t i = wf_iter_epoch_length(t->test); i > 0; i--) {
        wf_batch b;
        WF_MUST(wf_iter_next(t->test, &b));
        wf_var *scores = wf_apply(t->model, wf_input(t->tape, b.x));
        WF_MUST(wf_check(scores));
        const double right = (double)wf_count_correct(scores, b.labels, (wf_label_opts){0}), of = (double)b.size;
        WF_MUST(wf_trainer_observe(trainer, "accuracy", right / of, of));
        WF_MUST(wf_tape_reset(t->tape));
    }
    return wf_tape_set_mode(t->tape, WF_TRAIN);
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

static wf_checkpoint *saves_open(wf_comm *comm, const settings *s, training *t)
{
    wf_checkpoint *saves = example_saves_open(comm, &s->saves);
    if (!saves)
        return NULL;
    WF_MUST(wf_checkpoint_add_model(saves, "model", t->model));
    WF_MUST(wf_checkpoint_add_optim(saves, "optimizer", t->optim));
    WF_MUST(wf_checkpoint_add(saves, "tape", wf_tape_visit, t->tape));
    WF_MUST(wf_checkpoint_add(saves, "batches", wf_iter_visit, t->train));
    return saves;
}

static wf_trainer *trainer_new(wf_comm *comm, const settings *s, training *t)
{
    wf_trainer *trainer = wf_trainer_new(comm, train_step, t,
                                         (wf_trainer_opts){.epoch_length = wf_iter_epoch_length(t->train),
                                                           .epochs = s->epochs,
                                                           .log = s->best.log,
                                                           .device_statistics = s->best.device_statistics,
                                                           .progress = STDOUT_FILENO,
                                                           .timeline = s->saves.timeline,
                                                           .profile = s->saves.profile ? STDOUT_FILENO : 0,
                                                           .unit = "images",
                                                           .optim = t->optim,
                                                           .finite = true});
    WF_MUST(wf_trainer_add_hook(trainer, "evaluate", evaluate, t, (wf_when){.epochs = 1}));
    WF_MUST(wf_trainer_add_hook(trainer, "print", example_epoch, NULL, (wf_when){.epochs = 1, .after_report = true}));
    example_keep_best(trainer, t->model, &s->best, false);
    return trainer;
}

int main(int argc, char **argv)
{
    const settings s = read_settings(argc, argv);
    wf_comm *comm = wf_comm_open(&argc, &argv, s.communicator, (wf_ctx_opts){.seed = (uint64_t)s.seed});
    example_check(comm, wf_check(comm));
    example_compute(comm, s.compute);

    char complaint[COMPRESSION_COMPLAINT];
    compression *compressed = compression_new(s.compress, complaint);
    example_agree(comm, *complaint ? complaint : NULL);

    training t = {.model = model_new(comm, &s), .tape = wf_tape_new(wf_comm_ctx(comm))};
    t.train = open_images(comm, &s, WF_TRAIN_SET);
    t.test = open_images(comm, &s, WF_TEST_SET);
    t.optim = optim_new(comm, t.model, &s, wf_iter_epoch_length(t.train), compressed);
    example_check(comm, wf_check(t.optim));
    wf_checkpoint *saves = saves_open(comm, &s, &t);
    wf_trainer *trainer = trainer_new(comm, &s, &t);
    const int code = example_train(trainer, saves, &s.saves);

    if (compressed && wf_comm_rank(comm) == 0)
        printf("gradients as %s: %lld elements of %lld a step\n", s.compress, (long long)compression_sent(compressed),
               (long long)compression_given(compressed));

    wf_trainer_free(trainer);
    wf_tape_free(t.tape);
    wf_optim_free(t.optim);
    compression_free(compressed);
    wf_layer_free(t.model);
    wf_iter_free(t.test);
    wf_iter_free(t.train);
    WF_MUST(wf_comm_close(comm));
    return code;
}
