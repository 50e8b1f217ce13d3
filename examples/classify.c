/* Trains any of the classifiers of examples/models on labelled images, by all ranks together, as torchvision's
 * reference script does: warm-up and a cosine, random crops and flips, top-1 and top-5 of every test image.
 *
 *     mpirun -np 2 classify --model convnext-t --data fashion-mnist --limit 4000 --epochs 3
 *     mpirun -np 8 classify --model resnet50 --data imagenet --epochs 90 --batch 32 --snapshot-every 1000 --resume auto
 *     mpirun -np 4 classify --model resnet18 --data cifar10 --parallel spatial --mesh height=2 --sync-bn
 *     mpirun -np 8 classify --model resnet50 --data imagenet --weights resnet50.h5 --test-only    (wf-from-pytorch made
 * it)
 */
#include "examples/images.h"
#include "examples/models/classifier.h"
#include "examples/parallel.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct settings {
    const char *communicator, *model, *data, *test, *optimizer, *weights, *compute, *grow;
    int64_t batch, epochs, iterations, size, classes, limit, test_limit, width, patch, warmup, seed, workers;
    wf_batch_growth grows[WF_BATCH_GROWTHS];
    double seconds, lr, decay, smoothing, ema;
    bool no_flip, test_only, bn_pass;
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
    wf_ema *ema; /* NULL: the parameters themselves are tested and kept */
    wf_tape *tape;
    wf_iter *train, *test;
    wf_iter *again;    /* the images of training once more, for --bn-pass */
    wf_archive *begin; /* the first batch of `again` */
    wf_confusion *confusion;
} training;

/* Test images: how many there are, and whose label has the largest score, or one of the five largest. */
typedef struct tally {
    int64_t top1, top5, images;
} tally;

static const settings defaults = {.communicator = "auto",
                                  .model = "resnet18",
                                  .data = "fashion-mnist",
                                  .batch = 64,
                                  .epochs = 10,
                                  .saves = {.keep = 3, .folder = "snapshots"},
                                  .decay = -1, /* the optimizer's own */
                                  .how = {.how = "data"}};

/* The help of --model. */
static const char *which_models(void)
{
    static char models[300];
    snprintf(models, sizeof models, "one of %s", classifier_names());
    return models;
}

static void read_options(int argc, char **argv, settings *s)
{
    *s = defaults;
    const example_option table[] = {
        {"communicator", "NAME", "how ranks talk: auto, naive, flat, dummy", .text = &s->communicator},
        {"model", "NAME", which_models(), .text = &s->model},
        {"width", "N", "channels of the first stage; 0: the model's own", .number = &s->width,
         .most = EXAMPLE_MOST_SIZE},
        {"patch", "N", "of ConvNeXt and Swin, and of ViT; 0: 4 and 16, for images up to 64 pixels 2 and 4",
         .number = &s->patch, .most = EXAMPLE_MOST_SIZE},
        {"data", "WHERE",
         "fashion-mnist, cifar10, cifar100, their folder, FILE.h5 of wf-data, or a folder with train and val, of "
         "folders of pictures or of .h5 files",
         .text = &s->data},
        {"test", "WHERE", "images to test on, if --data has none", .text = &s->test},
        {"size", "N", "pixels along a side; 0: the images' own, at most 224", .number = &s->size,
         .most = EXAMPLE_MOST_SIZE},
        {"limit", "N", "images to train on, evenly out of all; 0: all", .number = &s->limit,
         .most = EXAMPLE_MOST_COUNT},
        {"test-limit", "N", "images to test on, evenly out of all; 0: all", .number = &s->test_limit,
         .most = EXAMPLE_MOST_COUNT},
        {"batch", "N", "images in a step for each place along the data axis; with --plan: of all ranks",
         .number = &s->batch, .most = EXAMPLE_MOST_SIZE, .least = 1},
        {"epochs", "N", "stop after N times all images", .number = &s->epochs, .most = EXAMPLE_MOST_COUNT, .least = 1},
        {"iterations", "N", "steps of an epoch, if that is fewer; 0: all", .number = &s->iterations,
         .most = EXAMPLE_MOST_COUNT},
        {"seconds", "X", "stop after so long, if that is earlier; 0: do not", .real = &s->seconds, .zero = true},
        {"no-flip", NULL, "do not mirror images, which makes other digits of digits", .flag = &s->no_flip},
        {"workers", "N", "threads that read images; 0: one", .number = &s->workers, .most = 256},
        {"grow", "LIST", "larger batches instead of a smaller rate: from epoch 30 on twice, then 4 times: 30:2,60:4",
         .text = &s->grow},
        {"optimizer", "NAME",
         "sgd, adamw, radam, lars, or rmsprop-sgd (RMSprop for the steps of --warmup); default: the model's usual",
         .text = &s->optimizer},
        {"bn-pass", NULL, "before a test, make the statistics of batch normalisations from all images of training",
         .flag = &s->bn_pass},
        {"lr", "X",
         "learning rate for 256 images a step; 0: 0.1 of sgd and rmsprop-sgd, 0.01 of lars, 0.001 of adamw and radam",
         .real = &s->lr, .zero = true},
        {"weight-decay", "X", "0: none; default: 0.05 of adamw, 0.0001 of the others", .real = &s->decay, .zero = true},
        {"label-smoothing", "X", "part of the target that is spread over all classes, as 0.1; 0: none",
         .real = &s->smoothing, .zero = true},
        {"ema", "X", "test and keep moving averages of parameters of this decay, as 0.999; 0: none", .real = &s->ema,
         .zero = true},
        {"warmup", "N", "steps in which the rate rises; 0: a tenth of all", .number = &s->warmup,
         .most = EXAMPLE_MOST_COUNT},
        {"weights", "FILE", "begin from this model file (HDF5)", .text = &s->weights},
        {"test-only", NULL, "test the model, and end", .flag = &s->test_only},
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
    example_options(argc, argv, "Trains a classifier of images on all ranks of mpirun together.", table);
}

static bool is_optimizer(const char *name)
{
    static const char *const names[] = {"sgd", "adamw", "radam", "lars", "rmsprop-sgd"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i], name) == 0)
            return true;
    return false;
}

static double default_rate(const char *optimizer)
{
    if (strcmp(optimizer, "adamw") == 0 || strcmp(optimizer, "radam") == 0)
        return 1e-3;
    return strcmp(optimizer, "lars") == 0 ? 0.01 : 0.1;
}

/* Pairs EPOCH:TIMES; `size` is how many times larger a batch becomes. */
static bool read_growth(const char *text, wf_batch_growth grows[WF_BATCH_GROWTHS])
{
    int64_t before = 0;
    for (int i = 0; i < WF_BATCH_GROWTHS; i++) {
        char *end;
        grows[i].epoch = strtoll(text, &end, 10);
        if (*end != ':' || grows[i].epoch <= before)
            return false;
        grows[i].size = strtoll(end + 1, &end, 10);
        if (grows[i].size < 1 || grows[i].size > EXAMPLE_MOST_SIZE || (*end && *end != ','))
            return false;
        if (!*end)
            return true;
        before = grows[i].epoch;
        text = end + 1;
    }
    return false;
}

/* Fills in the defaults that depend on the model. */
static const classifier *choose_model(wf_comm *comm, settings *s)
{
    char complaint[512] = "";
    const classifier *c = classifier_find(s->model);
    if (!c)
        snprintf(complaint, sizeof complaint, "--model %.100s: should be one of %s", s->model, classifier_names());
    else if (s->optimizer && !is_optimizer(s->optimizer))
        snprintf(complaint, sizeof complaint, "--optimizer %.100s: should be sgd, adamw, radam, lars or rmsprop-sgd",
                 s->optimizer);
    else if (s->grow && !read_growth(s->grow, s->grows))
        snprintf(complaint, sizeof complaint,
                 "--grow %.100s: should be at most %d pairs EPOCH:TIMES with rising epochs, as 30:2,60:4", s->grow,
                 WF_BATCH_GROWTHS);
    else if (c->transformer && strcmp(s->how.how, "data") != 0 && strcmp(s->how.how, "channel") != 0)
        snprintf(complaint, sizeof complaint, "--parallel %.100s: %s can be split by data or channel (heads)",
                 s->how.how, c->name);
    else if (strncmp(c->name, "swin", 4) == 0 && strcmp(s->how.how, "data") != 0 && strcmp(s->how.how, "spatial") != 0)
        snprintf(complaint, sizeof complaint, "--parallel %.100s: %s can be split by data or spatial", s->how.how,
                 c->name);
    else if (s->smoothing > 1)
        snprintf(complaint, sizeof complaint, "--label-smoothing %g: should be at most 1", s->smoothing);
    else if (s->ema >= 1)
        snprintf(complaint, sizeof complaint, "--ema %g: should be below 1", s->ema);
    else if (!s->optimizer)
        s->optimizer = c->adamw ? "adamw" : "sgd";
    example_agree(comm, *complaint ? complaint : NULL);
    const bool adamw = strcmp(s->optimizer, "adamw") == 0;
    if (s->lr == 0)
        s->lr = default_rate(s->optimizer);
    if (s->decay < 0)
        s->decay = adamw ? 0.05 : 1e-4;
    if (s->decay == 0)
        s->decay = WF_ZERO; /* 0 would be the optimizer's default */
    return c;
}

/* --- Images ------------------------------------------------------------------------------------------------------- */

/* Pictures are brought to 256 pixels for a window of 224, and to others alike. */
static int64_t before_crop(int64_t size)
{
    return size * 8 / 7;
}

/* u8 [C,H,W]. */
static wf_dataset *find_images(wf_comm *comm, const settings *s, wf_dataset_split split)
{
    const bool train = split == WF_TRAIN_SET;
    return images_labelled(comm, s->how.mesh,
                           (images_opts){.dir = !train && s->test ? s->test : s->data,
                                         .split = split,
                                         .side = before_crop(s->size ? s->size : 224),
                                         .limit = train ? s->limit : s->test_limit});
}

/* The side of the images that the model sees: as --size says, or their own; 28 become 32, and 256 become 224. */
static int64_t choose_size(const settings *s, const classifier *c, wf_dataset *images)
{
    wf_dataset_info info;
    WF_MUST(wf_dataset_info_get(images, &info));
    const int64_t own = info.shape.dim[1];
    return s->size ? s->size : c->size ? c->size : own == 28 ? 32 : own > 224 ? 224 : own;
}

/* Training sees random windows, mirrored or not; testing sees the middle. Images of another size are first brought to
 * one a little larger; those of the right size get zeros around them. */
static wf_dataset *transformed(wf_dataset *images, const settings *s, const classifier *c, bool train)
{
    static const double mean[] = {0.485, 0.456, 0.406}, std[] = {0.229, 0.224, 0.225}; /* ImageNet's */
    wf_dataset_info info;
    WF_MUST(wf_dataset_info_get(images, &info));
    const int64_t height = info.shape.dim[1], width = info.shape.dim[2], size = s->size, larger = before_crop(size);
    int64_t pad = 0, around = 0; /* zeros: those that every image gets, and those for a random place */
    if (info.shape.dim[0] != c->channels)
        images = wf_transform_channels(images, c->channels);
    if (height == width && height <= size && size - height <= 4) {
        pad = (size - height + 1) / 2;
        around = size / 8;
    } else if (height != larger || width != larger) {
        images = wf_transform_resize(images, larger, larger);
    }
    images = train ? wf_transform_random_crop(images, pad + around, size, size)
                   : wf_transform_centre_crop(images, pad, size, size);
    if (train && !s->no_flip)
        images = wf_transform_random_flip(images);
    return wf_transform_normalise(images, c->channels, mean, std);
}

static wf_iter *batches(wf_comm *comm, wf_dataset *images, const settings *s, const classifier *c, bool train)
{
    wf_batch_opts opts = {.size = s->batch, .shuffle = train, .sharded = s->how.sharded};
    for (int i = 0; train && i < WF_BATCH_GROWTHS; i++)
        opts.grows[i] = (wf_batch_growth){s->grows[i].epoch, s->grows[i].size * s->batch};
    wf_iter *iter =
        wf_prefetch(wf_batches(transformed(images, s, c, train), opts), (wf_prefetch_opts){.workers = (int)s->workers});
    example_check(comm, wf_check(iter));
    return iter;
}

/* --- Training ----------------------------------------------------------------------------------------------------- */

/* Steps of an epoch, for the trainer too. */
static int64_t steps_at(void *user, int64_t epoch)
{
    const training *t = user;
    const int64_t all = wf_iter_length_at(t->train, epoch), most = t->s->iterations;
    return most > 0 && most < all ? most : all;
}

static int64_t all_steps(training *t)
{
    int64_t steps = 0;
    for (int64_t e = 0; e < t->s->epochs; e++)
        steps += steps_at(t, e);
    return steps;
}

/* The rate grows with the images of a step (Goyal et al. 2017). */
static wf_optim *optim_base(wf_layer *model, const settings *s, int64_t rise)
{
    const double lr = s->lr * (double)(s->batch * wf_comm_size(s->how.samples)) / 256;
    if (strcmp(s->optimizer, "adamw") == 0)
        return wf_adamw(model, (wf_adam_opts){.lr = lr, .weight_decay = s->decay});
    if (strcmp(s->optimizer, "radam") == 0)
        return wf_radam(model, (wf_adam_opts){.lr = lr, .weight_decay = s->decay});
    if (strcmp(s->optimizer, "lars") == 0)
        return wf_lars(model, (wf_lars_opts){.lr = lr, .weight_decay = s->decay});
    if (strcmp(s->optimizer, "rmsprop-sgd") == 0)
        return wf_rmsprop_sgd(model, (wf_rmsprop_sgd_opts){.lr = lr, .weight_decay = s->decay, .centre = rise});
    return wf_sgd(model, (wf_sgd_opts){.lr = lr, .momentum = 0.9, .weight_decay = s->decay});
}

/* RMSprop takes the place of a rate that rises. */
static wf_optim *scheduled(training *t)
{
    const settings *s = t->s;
    const int64_t all = all_steps(t), start = s->warmup ? s->warmup : all / 10;
    const bool turns = strcmp(s->optimizer, "rmsprop-sgd") == 0;
    const int64_t rise = turns ? 0 : start;
    const wf_schedule_opts cosine = {
        .kind = WF_SCHEDULE_COSINE, .warmup = rise, .total = all > rise ? all - rise : 1, .end = 0.01};
    return example_scaled(
        parallel_optim(&s->how, wf_lr_schedule(optim_base(t->model, s, start > 0 ? start : 1), cosine)));
}

static wf_status step(wf_trainer *trainer, void *user)
{
    training *t = user;
    wf_batch b;
    WF_MUST(wf_iter_next(t->train, &b));
    wf_var *scores = wf_apply(t->model, wf_input(t->tape, b.x));
    wf_var *loss = wf_softmax_cross_entropy(scores, b.labels, (wf_label_opts){.smoothing = t->s->smoothing});
    WF_MUST(wf_optim_step(t->optim, loss));
    WF_MUST(wf_trainer_observe_var(trainer, "loss", loss, (double)b.size));
    wf_trainer_add_samples(trainer, b.global);
    WF_MUST(wf_tape_reset(t->tape));
    parallel_compare(&t->s->how, t->comm);
    return WF_OK;
}

/* --- Testing ------------------------------------------------------------------------------------------------------ */

/* Every test image once. The ranks along data have different ones; the others share them, and one of them counts. */
static tally test_images(training *t)
{
    tally all = {0};
    WF_MUST(wf_tape_set_mode(t->tape, WF_EVAL));
    for (int64_t i = wf_iter_epoch_length(t->test); i > 0; i--) {
        wf_batch b;
        WF_MUST(wf_iter_next(t->test, &b));
        wf_var *scores = wf_apply(t->model, wf_input(t->tape, b.x));
        WF_MUST(wf_check(scores));
        WF_MUST(wf_confusion_add(t->confusion, scores, b.labels, (wf_label_opts){0}));
        const int64_t top1 = wf_count_correct(scores, b.labels, (wf_label_opts){0}),
                      top5 = wf_count_top_k(scores, b.labels, 5, (wf_label_opts){0});
        if (t->s->how.counts) {
            all.top1 += top1;
            all.top5 += top5;
            all.images += b.size;
        }
        WF_MUST(wf_tape_reset(t->tape));
    }
    WF_MUST(wf_tape_set_mode(t->tape, WF_TRAIN));
    WF_MUST(wf_confusion_finish(t->confusion));
    return all;
}

/* Precision and recall of the newest test: of each class, if there are few, and as means over the classes. */
static void print_classes(const training *t)
{
    enum { FEW = 20 };
    const wf_confusion *c = t->confusion;
    if (wf_comm_rank(t->comm) > 0 || isnan(wf_confusion_accuracy(c))) /* a run that was over before tests nothing */
        return;
    for (int64_t k = 0; k < t->s->classes && t->s->classes <= FEW; k++)
        printf("class %-3lld precision %.4f  recall %.4f\n", (long long)k, wf_confusion_of_class(c, WF_PRECISION, k),
               wf_confusion_of_class(c, WF_RECALL, k));
    printf("precision %.4f  recall %.4f  F1 %.4f (means over classes)\n", wf_confusion_macro(c, WF_PRECISION),
           wf_confusion_macro(c, WF_RECALL), wf_confusion_macro(c, WF_F1));
}

/* Statistics of batch normalisations as plain means over the images of training, with the weights as they are. */
static void make_statistics(training *t)
{
    const int64_t length = wf_iter_epoch_length(t->again);
    /* Every pass begins at the first batch, so that a run that goes on has the statistics of one that did not end. */
    WF_MUST(wf_archive_memory_rewind(t->begin));
    WF_MUST(wf_iter_archive(t->again, t->begin));
    for (int64_t k = 1; k <= length; k++) {
        wf_batch b;
        WF_MUST(wf_batchnorm_average(t->model, k));
        WF_MUST(wf_iter_next(t->again, &b));
        WF_MUST(wf_check(wf_apply(t->model, wf_input(t->tape, b.x))));
        WF_MUST(wf_tape_reset(t->tape));
    }
    WF_MUST(wf_batchnorm_average(t->model, 0));
}

static wf_status evaluate(wf_trainer *trainer, void *user)
{
    training *t = user;
    if (t->ema)
        WF_MUST(wf_ema_swap(t->ema));
    if (t->s->bn_pass)
        make_statistics(t);
    const tally here = test_images(t);
    if (t->ema)
        WF_MUST(wf_ema_swap(t->ema));
    const double images = (double)here.images;
    WF_MUST(wf_trainer_observe(trainer, "accuracy", (double)here.top1 / images, images));
    WF_MUST(wf_trainer_observe(trainer, "top5", (double)here.top5 / images, images));
    return WF_OK;
}

static wf_status print_epoch(wf_trainer *trainer, void *unused)
{
    const double top1 = wf_trainer_mean(trainer, "accuracy"), of = wf_trainer_weight(trainer, "accuracy");
    wf_trainer_print(trainer, "epoch %lld  loss %.4f  top-1 %.4f (%.0f of %.0f)  top-5 %.4f  %.1f s",
                     (long long)wf_trainer_epoch(trainer), wf_trainer_mean(trainer, "loss"), top1, top1 * of, of,
                     wf_trainer_mean(trainer, "top5"), wf_trainer_seconds(trainer));
    return WF_OK;
}

static int only_test(training *t)
{
    const tally here = test_images(t);
    int64_t all[] = {here.top1, here.top5, here.images};
    WF_MUST(wf_allreduce_i64(t->comm, all, 3, WF_SUM));
    const double of = all[2] > 0 ? (double)all[2] : 1;
    if (wf_comm_rank(t->comm) == 0)
        printf("top-1 %.4f (%lld of %lld)  top-5 %.4f\n", (double)all[0] / of, (long long)all[0], (long long)all[2],
               (double)all[1] / of);
    print_classes(t);
    return 0;
}

/* --- A run -------------------------------------------------------------------------------------------------------- */

static wf_checkpoint *snapshots(training *t)
{
    wf_checkpoint *saves = example_saves_open(t->comm, &t->s->saves);
    if (!saves)
        return NULL;
    WF_MUST(wf_checkpoint_add_model(saves, "model", t->model));
    WF_MUST(wf_checkpoint_add_optim(saves, "optimizer", t->optim));
    WF_MUST(wf_checkpoint_add(saves, "tape", wf_tape_visit, t->tape));
    WF_MUST(wf_checkpoint_add(saves, "batches", wf_iter_visit, t->train));
    return saves;
}

static int train(training *t)
{
    const settings *s = t->s;
    wf_checkpoint *saves = snapshots(t);
    wf_trainer *trainer = wf_trainer_new(t->comm, step, t,
                                         (wf_trainer_opts){.length_at = steps_at,
                                                           .length_user = t,
                                                           .epochs = s->epochs,
                                                           .seconds = s->seconds,
                                                           .log = s->best.log,
                                                           .device_statistics = s->best.device_statistics,
                                                           .progress = STDOUT_FILENO,
                                                           .timeline = s->saves.timeline,
                                                           .profile = s->saves.profile ? STDOUT_FILENO : 0,
                                                           .unit = "images",
                                                           .optim = t->optim,
                                                           .ema = t->ema,
                                                           .finite = true});
    const wf_when always = {.epochs = 1, .end = true}, after = {.epochs = 1, .end = true, .after_report = true};
    WF_MUST(wf_trainer_add_hook(trainer, "evaluate", evaluate, t, always));
    WF_MUST(wf_trainer_add_hook(trainer, "print", print_epoch, NULL, after));
    example_keep_best(trainer, t->model, &s->best, t->ema != NULL);
    const int code = example_train(trainer, saves, &s->saves);
    wf_trainer_free(trainer);
    if (code == 0)
        print_classes(t);
    return code;
}

/* Checks what only the images tell, and makes the model for them. */
static wf_layer *model_for(wf_comm *comm, settings *s, const classifier *c, wf_dataset *images, wf_dataset *others)
{
    wf_dataset_info info, test;
    WF_MUST(wf_dataset_info_get(images, &info));
    WF_MUST(wf_dataset_info_get(others, &test));
    s->size = choose_size(s, c, images);
    s->classes = info.classes;
    const classifier_opts o = {.size = s->size,
                               .classes = info.classes,
                               .width = s->width,
                               .patch = s->patch,
                               .heads = strcmp(s->how.how, "channel") == 0 ? s->how.mesh : NULL};
    char complaint[512] = "";
    if (test.classes > info.classes)
        snprintf(complaint, sizeof complaint, "images of %lld classes to test on, and of %lld to train on",
                 (long long)test.classes, (long long)info.classes);
    else if (classifier_complaint(c, &o))
        snprintf(complaint, sizeof complaint, "--model %s", classifier_complaint(c, &o));
    example_agree(comm, *complaint ? complaint : NULL);
    if (wf_comm_rank(comm) == 0 && !wf_planner_asks())
        printf("%s for %lld classes of images of %lld x %lld\n", c->name, (long long)info.classes, (long long)s->size,
               (long long)s->size);
    return classifier_new(wf_comm_ctx(comm), c, o);
}

int main(int argc, char **argv)
{
    settings s;
    read_options(argc, argv, &s);
    wf_comm *comm = wf_comm_open(&argc, &argv, s.communicator, (wf_ctx_opts){.seed = (uint64_t)s.seed});
    example_check(comm, wf_check(comm));
    example_compute(comm, s.compute);
    const classifier *c = choose_model(comm, &s);
    parallel_open(&s.how, comm);

    training t = {.comm = comm, .s = &s, .tape = wf_tape_new(wf_comm_ctx(comm))};
    wf_dataset *images = find_images(comm, &s, WF_TRAIN_SET), *others = find_images(comm, &s, WF_TEST_SET);
    t.model = model_for(comm, &s, c, images, others);
    if (wf_planner_asks()) {
        wf_dataset_free(images);
        wf_dataset_free(others);
        wf_tape_free(t.tape);
        return parallel_answer(&s.how, comm, t.model, optim_base(t.model, &s, 1),
                               WF_SHAPE(s.batch, c->channels, s.size, s.size), c->can);
    }
    s.batch = parallel_batch(&s.how, comm, s.batch);
    if (!c->transformer || s.how.plan)
        parallel_model(&s.how, comm, t.model);
    example_check(comm, wf_check(t.model));
    if (s.weights)
        example_check(comm, wf_load(t.model, s.weights));
    t.train = batches(comm, images, &s, c, true);
    t.test = batches(comm, others, &s, c, false);
    if (s.bn_pass) {
        t.again = batches(comm, find_images(comm, &s, WF_TRAIN_SET), &s, c, true);
        t.begin = wf_archive_memory(wf_comm_ctx(comm));
        WF_MUST(wf_iter_archive(t.again, t.begin));
    }
    t.optim = scheduled(&t);
    example_check(comm, wf_check(t.optim));
    if (s.ema > 0) {
        t.ema = wf_ema_new(t.model, (wf_ema_opts){.decay = s.ema});
        example_check(comm, wf_check(t.ema));
    }
    t.confusion = wf_confusion_new(s.how.samples, s.classes);
    example_check(comm, wf_check(t.confusion));
    const int code = s.test_only ? only_test(&t) : train(&t);

    wf_tape_free(t.tape);
    wf_ema_free(t.ema);
    wf_confusion_free(t.confusion);
    wf_optim_free(t.optim);
    wf_layer_free(t.model);
    wf_iter_free(t.test);
    wf_iter_free(t.train);
    wf_iter_free(t.again);
    wf_archive_free(t.begin);
    parallel_close(&s.how);
    WF_MUST(wf_comm_close(comm));
    return code;
}
