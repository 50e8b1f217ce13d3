/* VGG-16 on images of 32x32 pixels, trained by all ranks together:
 *
 *     mpirun -np 4 vgg_cifar --width 16 --epochs 5
 *     mpirun -np 4 vgg_cifar --parallel spatial --mesh height=2,width=2 --sync-bn
 *     mpirun -np 4 vgg_cifar --data digits.h5 --test digits-test.h5 --no-flip
 */
#include "examples/images.h"
#include "examples/models/vgg.h"
#include "examples/parallel.h"

#include <math.h>
#include <unistd.h>

typedef struct settings {
    const char *communicator, *data, *test, *compute;
    int64_t batch, epochs, iterations, width, seed;
    double lr;
    bool no_flip;
    example_saves saves;
    example_best best;
    parallel how;
} settings;

/* What a step works with. */
typedef struct training {
    wf_comm *comm;
    const settings *s;
    wf_layer *model;
    wf_optim *optim;
    wf_tape *tape;
    wf_iter *train, *test;
} training;

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
        {"batch", "N", "images in a step for each place along the data axis; with --plan: of all ranks",
         .number = &s->batch, .most = EXAMPLE_MOST_SIZE, .least = 1},
        {"epochs", "N", "stop after N times all images", .number = &s->epochs, .most = EXAMPLE_MOST_COUNT, .least = 1},
        {"iterations", "N", "steps of an epoch, if that is fewer; 0: all", .number = &s->iterations,
         .most = EXAMPLE_MOST_COUNT},
        {"width", "N", "channels of the first group of convolutions", .number = &s->width, .most = EXAMPLE_MOST_SIZE,
         .least = 1},
        {"data", "DIR", "CIFAR-10's binary files, MNIST's IDX files, or FILE.h5 of wf-data with labels",
         .text = &s->data},
        {"test", "FILE", "where --data is a file: images to test on, FILE.h5 too; default: those of --data",
         .text = &s->test},
        {"no-flip", NULL, "do not mirror images, which makes other digits of digits", .flag = &s->no_flip},
        {"lr", "X", "learning rate for 64 images a step", .real = &s->lr},
        {"seed", "N", "of all random numbers", .number = &s->seed, .most = EXAMPLE_MOST_COUNT},
        EXAMPLE_COMPUTE(&s->compute),
        {"parallel", "HOW", "what is split beside the batch: data (nothing), channel, spatial or mesh",
         .text = &s->how.how},
        {"mesh", "AXES", "ranks along axes, as height=2,width=2; data takes the rest", .text = &s->how.axes},
        {"sync-bn", NULL, "normalise with the statistics of the whole batch", .flag = &s->how.sync_bn},
        EXAMPLE_PLAN(&s->how.plan),
        EXAMPLE_SAVES(&s->saves),
        EXAMPLE_BEST(&s->best),
        {0}};
    example_options(argc, argv, "Trains VGG-16 on images of 32x32 pixels, on all ranks of mpirun together.", table);
}

static wf_iter *open_images(wf_comm *comm, const settings *s, wf_dataset_split split)
{
    const char *data = split == WF_TEST_SET && s->test ? s->test : s->data;
    wf_dataset *images = images_open(comm, s->how.mesh, data, split, true);
    if (split == WF_TRAIN_SET && !s->no_flip)
        images = wf_transform_random_flip(images);
    wf_iter *iter = wf_batches(
        images, (wf_batch_opts){.size = s->batch, .shuffle = split == WF_TRAIN_SET, .sharded = s->how.sharded});
    iter = wf_prefetch(iter, (wf_prefetch_opts){.depth = 2});
    example_check(comm, wf_check(iter));
    return iter;
}

static int64_t epoch_steps(const settings *s, wf_iter *iter)
{
    const int64_t all = wf_iter_epoch_length(iter);
    return s->iterations > 0 && s->iterations < all ? s->iterations : all;
}

static wf_optim *sgd_new(wf_layer *model, const settings *s)
{
    const double images = (double)(s->batch * wf_comm_size(s->how.samples));
    return wf_sgd(model, (wf_sgd_opts){.lr = s->lr * sqrt(images / 64), .momentum = 0.9, .weight_decay = 5e-4});
}

static wf_optim *optim_new(wf_layer *model, const settings *s, int64_t steps)
{
    wf_optim *optim = wf_lr_schedule(
        sgd_new(model, s),
        (wf_schedule_opts){.kind = WF_SCHEDULE_COSINE, .warmup = steps / 2, .total = s->epochs * steps, .end = 0.01});
    return example_scaled(parallel_optim(&s->how, optim));
}

static wf_status train_step(wf_trainer *trainer, void *user)
{
    training *t = user;
    wf_batch b;
    WF_MUST(wf_iter_next(t->train, &b));
    wf_var *scores = wf_apply(t->model, wf_input(t->tape, b.x));
    wf_var *loss = wf_softmax_cross_entropy(scores, b.labels, (wf_label_opts){0});
    WF_MUST(wf_optim_step(t->optim, loss));
    WF_MUST(wf_trainer_observe_var(trainer, "loss", loss, (double)b.size));
    wf_trainer_add_samples(trainer, b.global);
    WF_MUST(wf_tape_reset(t->tape));
    parallel_compare(&t->s->how, t->comm);
    return WF_OK;
}

/* Every test image once: the ranks along data have different ones, the others share them. */
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
        WF_MUST(wf_trainer_observe(trainer, "accuracy", right / of, t->s->how.counts ? of : 0));
        WF_MUST(wf_tape_reset(t->tape));
    }
    return wf_tape_set_mode(t->tape, WF_TRAIN);
}

static wf_checkpoint *saves_open(wf_comm *comm, training *t)
{
    wf_checkpoint *saves = example_saves_open(comm, &t->s->saves);
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
                                         (wf_trainer_opts){.epoch_length = epoch_steps(s, t->train),
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
    settings s;
    read_settings(argc, argv, &s);
    wf_comm *comm = wf_comm_open(&argc, &argv, s.communicator, (wf_ctx_opts){.seed = (uint64_t)s.seed});
    example_check(comm, wf_check(comm));
    example_compute(comm, s.compute);
    parallel_open(&s.how, comm);

    wf_layer *model = vgg16(wf_comm_ctx(comm), (vgg_opts){.width = s.width});
    if (wf_planner_asks())
        return parallel_answer(&s.how, comm, model, sgd_new(model, &s), WF_SHAPE(s.batch, 3, 32, 32),
                               WF_PLANNER_CHANNEL | WF_PLANNER_SPATIAL | WF_PLANNER_RECOMPUTE);
    s.batch = parallel_batch(&s.how, comm, s.batch);
    training t = {.comm = comm, .s = &s, .model = model, .tape = wf_tape_new(wf_comm_ctx(comm))};
    parallel_model(&s.how, comm, t.model);
    t.train = open_images(comm, &s, WF_TRAIN_SET);
    t.test = open_images(comm, &s, WF_TEST_SET);
    t.optim = optim_new(t.model, &s, epoch_steps(&s, t.train));
    example_check(comm, wf_check(t.optim));
    wf_checkpoint *saves = saves_open(comm, &t);
    wf_trainer *trainer = trainer_new(comm, &s, &t);
    const int code = example_train(trainer, saves, &s.saves);

    wf_trainer_free(trainer);
    wf_tape_free(t.tape);
    wf_optim_free(t.optim);
    wf_layer_free(t.model);
    wf_iter_free(t.test);
    wf_iter_free(t.train);
    parallel_close(&s.how);
    WF_MUST(wf_comm_close(comm));
    return code;
}
