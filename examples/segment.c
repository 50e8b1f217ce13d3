/* A U-Net that finds what is round in images too large for one rank: each rank makes, sees and holds its part alone.
 *
 *     mpirun -np 4 segment --size 1024 --mesh height=2,width=2
 *     mpirun -np 8 segment --dims 3 --size 128 --mesh depth=2,height=2,width=2
 */
#include "examples/models/unet.h"
#include "examples/parallel.h"
#include "examples/shapes.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NEVER_TRAINED_ON ((int64_t)1 << 40) /* images from this number on */

typedef struct settings {
    const char *communicator, *out, *compute, *norm;
    unet_norm norm_kind; /* that of the name `norm`; `how` has whose statistics it takes */
    int64_t size, dims, channels, depth, batch, iterations, log_every, seed;
    double lr;
    bool recompute;
    example_saves saves;
    parallel how;
} settings;

/* This rank's part of a batch, and room for it on the host. */
typedef struct part {
    wf_layout layout;
    wf_tensor *x, *mask;
    float *host_x, *host_mask, *host_scores;
} part;

/* What a step works with. */
typedef struct training {
    wf_comm *comm;
    const settings *s;
    wf_layer *model;
    wf_optim *optim;
    wf_tape *tape;
    part part;
} training;

static settings read_settings(int argc, char **argv)
{
    settings s = {.communicator = "auto",
                  .out = "segment",
                  .norm = "sync-batch",
                  .size = 1024,
                  .dims = 2,
                  .channels = 8,
                  .depth = 4,
                  .batch = 2,
                  .iterations = 200,
                  .log_every = 10,
                  .lr = 2e-3,
                  .saves = {.keep = 3, .folder = "snapshots"},
                  .how = {.how = "spatial"}};
    const example_option table[] = {
        {"communicator", "NAME", "how ranks talk: auto, naive, flat", .text = &s.communicator},
        {"size", "N", "pixels along each side", .number = &s.size, .most = EXAMPLE_MOST_SIZE, .least = 1},
        {"dims", "N", "2: images, 3: volumes", .number = &s.dims, .most = 3, .least = 2},
        {"channels", "N", "channels of the U-Net at full resolution", .number = &s.channels, .most = EXAMPLE_MOST_SIZE,
         .least = 1},
        {"depth", "N", "times that the U-Net halves the sides", .number = &s.depth, .most = 16, .least = 1},
        {"norm", "NAME",
         "after each convolution: sync-batch (statistics of the whole batch, as in one process), batch (of the images "
         "at one place along data, whose losses are not those of one process), group, instance, layer or none",
         .text = &s.norm},
        {"batch", "N", "images in a step, over all ranks", .number = &s.batch, .most = EXAMPLE_MOST_SIZE, .least = 1},
        {"iterations", "N", "steps", .number = &s.iterations, .most = EXAMPLE_MOST_COUNT, .least = 1},
        {"parallel", "HOW", "spatial, or mesh: channels and pixels", .text = &s.how.how},
        {"mesh", "AXES", "ranks along axes, as height=2,width=2; data takes the rest (height: all)",
         .text = &s.how.axes},
        EXAMPLE_PLAN(&s.how.plan),
        {"lr", "X", "learning rate", .real = &s.lr},
        {"seed", "N", "of images and all random numbers", .number = &s.seed, .most = EXAMPLE_MOST_COUNT},
        EXAMPLE_COMPUTE(&s.compute),
        {"recompute", NULL, "less memory: backward computes the layers again", .flag = &s.recompute},
        {"log-every", "N", "steps from line to line", .number = &s.log_every, .most = EXAMPLE_MOST_COUNT, .least = 1},
        {"out", "DIR", "folder for log.jsonl and segment.png", .text = &s.out},
        EXAMPLE_SAVES(&s.saves),
        {0}};
    example_options(argc, argv, "Trains a U-Net on images that are sharded over all ranks of mpirun.", table);
    return s;
}

static const struct {
    const char *name;
    unet_norm kind;
    bool sync;
} norms[] = {{"sync-batch", UNET_BATCH, true},   {"batch", UNET_BATCH, false}, {"group", UNET_GROUP, false},
             {"instance", UNET_INSTANCE, false}, {"layer", UNET_LAYER, false}, {"none", UNET_NO_NORM, false}};

static void check_settings(wf_comm *comm, settings *s)
{
    char complaint[256] = "";
    const size_t known = sizeof norms / sizeof *norms;
    size_t norm = 0;
    while (norm < known && strcmp(norms[norm].name, s->norm) != 0)
        norm++;
    if (norm == known)
        snprintf(complaint, sizeof complaint,
                 "--norm %.120s: should be sync-batch, batch, group, instance, layer or none", s->norm);
    else if (s->dims > 3)
        snprintf(complaint, sizeof complaint, "--dims %lld: should be 2 or 3", (long long)s->dims);
    else if (s->depth > 16 || s->size % ((int64_t)1 << s->depth) != 0)
        snprintf(complaint, sizeof complaint, "--size %lld: should be a multiple of %lld, to halve --depth %lld times",
                 (long long)s->size, (long long)1 << s->depth, (long long)s->depth);
    example_agree(comm, *complaint ? complaint : NULL);
    s->norm_kind = norms[norm].kind;
    s->how.sync_bn = norms[norm].sync;
}

static wf_shape shape_of(const settings *s)
{
    return s->dims == 3 ? WF_SHAPE(s->batch, 1, s->size, s->size, s->size) : WF_SHAPE(s->batch, 1, s->size, s->size);
}

static unsigned planner_can(const settings *s)
{
    const unsigned can = WF_PLANNER_CHANNEL | WF_PLANNER_SPATIAL | WF_PLANNER_RECOMPUTE;
    return s->dims == 3 ? can | WF_PLANNER_DEPTH : can;
}

static part part_new(wf_comm *comm, const settings *s)
{
    part p = {0};
    const wf_shape whole = shape_of(s);
    const int dims = (int)s->dims;
    const wf_layout_opts cut = {.dim = {[WF_AXIS_DATA] = WF_DIM(0),
                                        [WF_AXIS_DEPTH] = dims == 3 ? WF_DIM(2) : 0,
                                        [WF_AXIS_HEIGHT] = WF_DIM(dims),
                                        [WF_AXIS_WIDTH] = WF_DIM(dims + 1)}};
    example_check(comm, wf_mesh_layout(s->how.mesh, whole, cut, &p.layout));
    p.x = wf_tensor_new(wf_comm_ctx(comm), WF_F32, wf_box_shape(p.layout.box));
    p.mask = wf_tensor_new(wf_comm_ctx(comm), WF_F32, wf_box_shape(p.layout.box));
    WF_MUST(wf_check(p.mask));
    WF_MUST(wf_tensor_set_layout(p.x, p.layout));
    WF_MUST(wf_tensor_set_layout(p.mask, p.layout));
    const size_t count = (size_t)wf_tensor_count(p.x) + 1; /* a rank may have no pixels */
    p.host_x = calloc(count, sizeof *p.host_x);
    p.host_mask = calloc(count, sizeof *p.host_mask);
    p.host_scores = calloc(count, sizeof *p.host_scores);
    if (!p.host_x || !p.host_mask || !p.host_scores)
        example_abort("no memory for %zu pixels", count);
    return p;
}

static void part_free(part *p)
{
    free(p->host_x);
    free(p->host_mask);
    free(p->host_scores);
    wf_tensor_free(p->x);
    wf_tensor_free(p->mask);
}

static void part_draw(part *p, const settings *s, int64_t first)
{
    const size_t bytes = wf_tensor_bytes(p->x);
    shapes_draw((uint64_t)s->seed, first, s->size, p->layout.box, p->host_x, p->host_mask);
    WF_MUST(wf_tensor_import(p->x, p->host_x, bytes));
    WF_MUST(wf_tensor_import(p->mask, p->host_mask, bytes));
}

/* Cut as the images are, also where the layers would have cut them elsewhere; in f32, as they are read here. */
static wf_var *scores_of(const training *t)
{
    wf_var *scores = wf_cast(wf_apply(t->model, wf_input(t->tape, t->part.x)), WF_F32);
    return wf_redistribute(scores, t->part.layout);
}

/* Counts in this rank's part of the batch the pixels that are round and found (intersection), and those that are either
 * (union). */
static void count_round(const training *t, const wf_tensor *scores, int64_t count[2])
{
    const part *p = &t->part;
    count[0] = count[1] = 0;
    WF_MUST(wf_tensor_export(scores, p->host_scores, wf_tensor_bytes(scores)));
    for (int64_t i = 0; i < wf_tensor_count(scores); i++) {
        const bool is = p->host_mask[i] > 0.5f, found = p->host_scores[i] > 0;
        count[0] += is && found;
        count[1] += is || found;
    }
}

/* The intersection over union of all ranks together is the mean of theirs, weighted by the unions. */
static void observe_iou(const training *t, wf_trainer *trainer, const wf_tensor *scores)
{
    int64_t count[2];
    count_round(t, scores, count);
    const double either = (double)count[1];
    WF_MUST(wf_trainer_observe(trainer, "iou", (double)count[0] / either, either));
}

static wf_status train_step(wf_trainer *trainer, void *user)
{
    training *t = user;
    const int64_t i = wf_trainer_iteration(trainer) + 1;
    part_draw(&t->part, t->s, (i - 1) * t->s->batch);
    wf_var *scores = scores_of(t);
    wf_tensor *kept = wf_keep(scores);
    wf_var *loss = wf_bce_logits(scores, t->part.mask);
    WF_MUST(wf_optim_step(t->optim, loss));
    WF_MUST(wf_trainer_observe_var(trainer, "loss", loss, 1));
    if (i == t->s->iterations || i % t->s->log_every == 0)
        observe_iou(t, trainer, kept);
    wf_tensor_free(kept);
    wf_trainer_add_samples(trainer, t->s->batch);
    WF_MUST(wf_tape_reset(t->tape));
    parallel_compare(&t->s->how, t->comm);
    return WF_OK;
}

static wf_checkpoint *saves_open(const training *t)
{
    wf_checkpoint *saves = example_saves_open(t->comm, &t->s->saves);
    if (!saves)
        return NULL;
    WF_MUST(wf_checkpoint_add_model(saves, "model", t->model));
    WF_MUST(wf_checkpoint_add_optim(saves, "optimizer", t->optim));
    WF_MUST(wf_checkpoint_add(saves, "tape", wf_tape_visit, t->tape));
    return saves;
}

static wf_trainer *trainer_new(training *t)
{
    const settings *s = t->s;
    example_folder(t->comm, s->out);
    return wf_trainer_new(t->comm, train_step, t,
                          (wf_trainer_opts){.iterations = s->iterations,
                                            .report = {.iterations = s->log_every, .end = true},
                                            .log = example_path(s->out, "log.jsonl"),
                                            .progress = STDOUT_FILENO,
                                            .timeline = s->saves.timeline,
                                            .profile = s->saves.profile ? STDOUT_FILENO : 0,
                                            .unit = "images",
                                            .finite = true});
}

/* Rows of three columns: image, mask and prediction; of a volume, its middle slice. */
static wf_var *picture(const training *t, wf_var *scores)
{
    wf_var *x = wf_input(t->tape, t->part.x), *mask = wf_input(t->tape, t->part.mask);
    wf_var *whole = wf_unshard(wf_concat(3, (wf_var *[]){x, mask, wf_sigmoid(scores)}, 1));
    wf_box slice = wf_box_of_shape(wf_var_shape(whole));
    if (t->s->dims == 3) {
        slice.lo[2] = t->s->size / 2;
        slice.hi[2] = slice.lo[2] + 1;
    }
    return wf_reshape(wf_slice(whole, slice), WF_SHAPE(t->s->batch * 3, 1, t->s->size, t->s->size));
}

static void evaluate(training *t)
{
    WF_MUST(wf_tape_set_mode(t->tape, WF_EVAL));
    const int64_t held = t->part.layout.box.hi[0] - t->part.layout.box.lo[0];
    if (!t->s->how.sync_bn) /* each place along data has running statistics of its own images */
        WF_MUST(wf_allreduce_persistent(t->s->how.samples, t->model, (double)held));
    part_draw(&t->part, t->s, NEVER_TRAINED_ON);
    wf_var *scores = scores_of(t);
    WF_MUST(wf_check(scores));
    int64_t count[2];
    count_round(t, wf_value(scores), count);
    WF_MUST(wf_allreduce_i64(t->comm, count, 2, WF_SUM));
    wf_var *images = picture(t, scores);
    WF_MUST(wf_check(images));
    if (wf_comm_rank(t->comm) == 0) {
        const char *path = example_path(t->s->out, "segment.png");
        const int64_t rows = t->s->batch < 4 ? t->s->batch : 4;
        WF_MUST(wf_write_png_grid(path, wf_value(images), rows, 3, 0, 1));
        printf("\nOn images never trained on: IoU %.4f.\n", count[1] ? (double)count[0] / (double)count[1] : 1);
        printf("Look at %s: image, mask and prediction; numbers are in %s/log.jsonl.\n", path, t->s->out);
    }
    WF_MUST(wf_tape_reset(t->tape));
}

int main(int argc, char **argv)
{
    settings s = read_settings(argc, argv);
    wf_comm *comm = wf_comm_open(&argc, &argv, s.communicator, (wf_ctx_opts){.seed = (uint64_t)s.seed});
    example_check(comm, wf_check(comm));
    check_settings(comm, &s);
    example_compute(comm, s.compute);
    s.how.dims = (int)s.dims;
    parallel_open(&s.how, comm);

    const unet_opts opts = {
        .dims = (int)s.dims, .in = 1, .classes = 1, .width = s.channels, .levels = (int)s.depth, .norm = s.norm_kind};
    training t = {.comm = comm, .s = &s, .model = unet(wf_comm_ctx(comm), opts)};
    wf_layer *model = s.recompute ? wf_recompute_model(t.model) : t.model;
    const wf_adam_opts adam = {.lr = s.lr};
    if (wf_planner_asks())
        return parallel_answer(&s.how, comm, model, wf_adam(model, adam), shape_of(&s), planner_can(&s));
    (void)parallel_batch(&s.how, comm, s.batch);
    parallel_model(&s.how, comm, model);
    t.optim = example_scaled(parallel_optim(&s.how, wf_adam(t.model, adam)));
    t.tape = wf_tape_new(wf_comm_ctx(comm));
    example_check(comm, wf_check(t.optim));
    t.part = part_new(comm, &s);
    wf_checkpoint *saves = saves_open(&t);
    wf_trainer *trainer = trainer_new(&t);
    const int code = example_train(trainer, saves, &s.saves);
    if (!wf_trainer_left(trainer))
        evaluate(&t);

    wf_trainer_free(trainer);
    part_free(&t.part);
    wf_tape_free(t.tape);
    wf_optim_free(t.optim);
    wf_layer_free(t.model);
    parallel_close(&s.how);
    WF_MUST(wf_comm_close(comm));
    return code;
}
