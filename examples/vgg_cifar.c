/* VGG-16 on images of 32x32 pixels, trained by all ranks together:
 *
 *     mpirun -np 4 vgg_cifar --width 16 --epochs 5
 *     mpirun -np 4 vgg_cifar --parallel spatial --mesh height=2,width=2 --sync-bn
 */
#include "examples/images.h"
#include "examples/models/vgg.h"
#include "examples/parallel.h"

#include <math.h>

typedef struct settings {
    const char *communicator, *data, *compute;
    int64_t batch, epochs, iterations, width, seed;
    double lr;
    example_saves saves;
    parallel how;
} settings;

typedef struct trainer {
    wf_comm *comm;
    settings *s;
    wf_layer *model;
    wf_optim *optim;
    wf_tape *tape;
    wf_iter *training, *test;
    wf_checkpoint *saves;
    int64_t step; /* steps made */
    bool left;    /* a signal has come */
} trainer;

static void read_settings(int argc, char **argv, settings *s)
{
    *s = (settings){.communicator = "auto",
                    .batch = 64,
                    .epochs = 10,
                    .width = 64,
                    .lr = 0.05,
                    .saves = {.keep = 3, .folder = "snapshots"},
                    .how = {.how = "data"}};
    const example_option table[] = {
        {"communicator", "NAME", "how ranks talk: auto, naive, flat, dummy", .text = &s->communicator},
        {"batch", "N", "images in a step for each place along the data axis", .number = &s->batch, .least = 1},
        {"epochs", "N", "stop after N times all images", .number = &s->epochs, .least = 1},
        {"iterations", "N", "steps of an epoch, if that is fewer; 0: all", .number = &s->iterations},
        {"width", "N", "channels of the first group of convolutions", .number = &s->width, .least = 1},
        {"data", "DIR", "CIFAR-10's binary files, or Fashion-MNIST's IDX files", .text = &s->data},
        {"lr", "X", "learning rate for 64 images a step", .real = &s->lr},
        {"seed", "N", "of all random numbers", .number = &s->seed},
        EXAMPLE_COMPUTE(&s->compute),
        {"parallel", "HOW", "what is split beside the batch: data (nothing), channel, spatial or mesh",
         .text = &s->how.how},
        {"mesh", "AXES", "ranks along axes, as height=2,width=2; data takes the rest", .text = &s->how.axes},
        {"sync-bn", NULL, "normalise with the statistics of the whole batch", .flag = &s->how.sync_bn},
        EXAMPLE_SAVES(&s->saves),
        {0}};
    example_options(argc, argv, "Trains VGG-16 on images of 32x32 pixels, on all ranks of mpirun together.", table);
}

static wf_iter *open_images(wf_comm *comm, const settings *s, wf_split split)
{
    wf_dataset *images = images_open(comm, s->how.mesh, s->data, split, false);
    if (split == WF_TRAIN_SET)
        images = wf_transform_random_flip(images);
    wf_iter *iter = wf_batches(
        images, (wf_batch_opts){.size = s->batch, .shuffle = split == WF_TRAIN_SET, .sharded = s->how.sharded});
    iter = wf_prefetch(iter, 2);
    example_check(comm, wf_check(iter));
    return iter;
}

static int64_t epoch_steps(const settings *s, wf_iter *iter)
{
    const int64_t all = wf_iter_epoch_length(iter);
    return s->iterations > 0 && s->iterations < all ? s->iterations : all;
}

static wf_optim *optim_new(wf_layer *model, const settings *s, int64_t steps)
{
    const double images = (double)(s->batch * wf_comm_size(s->how.samples));
    const wf_sgd_opts sgd = {.lr = s->lr * sqrt(images / 64), .momentum = 0.9, .weight_decay = 5e-4};
    wf_optim *optim = wf_lr_schedule(
        wf_sgd(model, sgd),
        (wf_schedule_opts){.kind = WF_SCHEDULE_COSINE, .warmup = steps / 2, .total = s->epochs * steps, .end = 0.01});
    return example_scaled(wf_mesh_multi_node(s->how.mesh, optim));
}

/* An epoch; the mean of its losses. */
/* The rest of an epoch; the mean of its losses. */
static double train(trainer *t)
{
    double sum = 0;
    const int64_t steps = epoch_steps(t->s, t->training), first = t->step % steps;
    for (int64_t i = first; i < steps && !t->left; i++) {
        wf_batch b;
        WF_MUST(wf_iter_next(t->training, &b));
        wf_var *scores = wf_apply(t->model, wf_input(t->tape, b.x));
        wf_var *loss = wf_softmax_cross_entropy(scores, b.labels);
        WF_MUST(wf_optim_step(t->optim, loss));
        sum += wf_item(loss);
        WF_MUST(wf_tape_reset(t->tape));
        t->left = example_saves_step(t->comm, t->saves, ++t->step);
    }
    if (!isfinite(sum))
        example_abort("the mean loss of an epoch is %g", sum / (double)(steps - first));
    return sum / (double)(steps - first);
}

/* Every test image once: the ranks along data have different ones, the others share them. */
static void evaluate(const trainer *t, int64_t count[2])
{
    count[0] = count[1] = 0;
    WF_MUST(wf_tape_set_mode(t->tape, WF_EVAL));
    const int64_t steps = wf_iter_epoch_length(t->test);
    for (int64_t i = 0; i < steps; i++) {
        wf_batch b;
        WF_MUST(wf_iter_next(t->test, &b));
        wf_var *scores = wf_apply(t->model, wf_input(t->tape, b.x));
        WF_MUST(wf_check(scores));
        count[0] += wf_count_correct(scores, b.labels);
        count[1] += b.size;
        WF_MUST(wf_tape_reset(t->tape));
    }
    WF_MUST(wf_tape_set_mode(t->tape, WF_TRAIN));
    WF_MUST(wf_allreduce_i64(t->s->how.samples, count, 2, WF_SUM));
}

static void saves_open(trainer *t)
{
    t->saves = example_saves_open(t->comm, &t->s->saves);
    if (!t->saves)
        return;
    WF_MUST(wf_checkpoint_add_model(t->saves, "model", t->model));
    WF_MUST(wf_checkpoint_add_optim(t->saves, "optimizer", t->optim));
    WF_MUST(wf_checkpoint_add(t->saves, "tape", wf_tape_visit, t->tape));
    WF_MUST(wf_checkpoint_add(t->saves, "batches", wf_iter_visit, t->training));
    t->step = example_saves_load(t->comm, t->saves, &t->s->saves);
}

static void run(trainer *t)
{
    while (t->step < t->s->epochs * epoch_steps(t->s, t->training)) {
        int64_t count[2];
        const int64_t epoch = t->step / epoch_steps(t->s, t->training);
        const double start = example_seconds(), loss = train(t), seconds = example_seconds() - start;
        if (t->left)
            return;
        evaluate(t, count);
        if (wf_comm_rank(t->comm) == 0)
            printf("epoch %lld  loss %.4f  accuracy %.4f (%lld of %lld)  %.1f s\n", (long long)epoch + 1, loss,
                   (double)count[0] / (double)count[1], (long long)count[0], (long long)count[1], seconds);
        fflush(stdout);
    }
}

int main(int argc, char **argv)
{
    settings s;
    read_settings(argc, argv, &s);
    wf_comm *comm = wf_comm_open_with(&argc, &argv, s.communicator, (wf_ctx_opts){.seed = (uint64_t)s.seed});
    example_check(comm, wf_check(comm));
    example_compute(comm, s.compute);
    parallel_open(&s.how, comm);

    trainer t = {.comm = comm, .s = &s};
    t.model = vgg16(wf_comm_ctx(comm), (vgg_opts){.width = s.width});
    parallel_model(&s.how, comm, t.model);
    t.training = open_images(comm, &s, WF_TRAIN_SET);
    t.test = open_images(comm, &s, WF_TEST_SET);
    t.optim = optim_new(t.model, &s, epoch_steps(&s, t.training));
    t.tape = wf_tape_new(wf_comm_ctx(comm));
    example_check(comm, wf_check(t.optim));
    saves_open(&t);
    run(&t);
    const int code = example_saves_end(comm, t.saves, t.left);

    wf_tape_free(t.tape);
    wf_optim_free(t.optim);
    wf_layer_free(t.model);
    wf_iter_free(t.test);
    wf_iter_free(t.training);
    parallel_close(&s.how);
    WF_MUST(wf_comm_close(comm));
    return code;
}
