/* A 3-D U-Net tells fractals apart in volumes that no rank has whole: the problem of LBANN's ScaFFold benchmark, by its
 * figure of merit, the seconds until the Dice score of volumes that were never trained on is 0.95. It is the same
 * problem, and no entry: the benchmark's rules ask for PyTorch.
 *
 *     mpirun -np 2 volume --scale 5 --channels 16 --mesh depth=2
 */
#include "examples/fractals.h"
#include "examples/models/unet.h"
#include "examples/parallel.h"

#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* Samples that are held out have numbers from here on. */
#define HELD_OUT ((int64_t)1 << 40)

typedef struct settings {
    const char *communicator, *out, *compute, *write;
    int64_t scale, channels, levels, batch, volumes, held_out, epochs, restart, seed, steps;
    double lr, dice;
    bool grey;
    example_saves saves;
    parallel how;
} settings;

typedef struct part {
    wf_layout layout, scores; /* of volumes and of scores, [N,C,D,H,W] */
    wf_tensor *x, *labels;
    float *host_x;
    int64_t *host_labels;
} part;

typedef struct training {
    wf_comm *comm;
    const settings *s;
    wf_layer *model;
    wf_optim *optim;
    wf_tape *tape;
    wf_tensor *weight; /* of the classes in the cross entropy */
    part part;
    double reached; /* seconds until the Dice score was reached; 0: not yet */
    int64_t steps;  /* until then */
} training;

static settings read_settings(int argc, char **argv)
{
    settings s = {.communicator = "auto",
                  .out = "volume",
                  .scale = 5,
                  .channels = 16,
                  .levels = 0,
                  .batch = 4,
                  .volumes = 512,
                  .held_out = 56,
                  .epochs = 300,
                  .restart = 10,
                  .lr = 1e-3,
                  .dice = 0.95,
                  .saves = {.keep = 3, .folder = "snapshots"},
                  .how = {.how = "spatial", .dims = 3}};
    const example_option table[] = {
        {"communicator", "NAME", "how ranks talk: auto, naive, flat", .text = &s.communicator},
        {"scale", "N", "volumes have sides of 2^N voxels", .number = &s.scale, .most = 12, .least = 3},
        {"channels", "N", "channels of the U-Net at full resolution", .number = &s.channels, .most = EXAMPLE_MOST_SIZE,
         .least = 1},
        {"levels", "N", "times that the U-Net halves the sides; 0: scale - 3", .number = &s.levels, .most = 12},
        {"batch", "N", "volumes in a step, over all ranks", .number = &s.batch, .most = EXAMPLE_MOST_SIZE, .least = 1},
        {"volumes", "N", "volumes to train on", .number = &s.volumes, .most = EXAMPLE_MOST_COUNT, .least = 1},
        {"held-out", "N", "volumes to score on", .number = &s.held_out, .most = EXAMPLE_MOST_COUNT, .least = 1},
        {"epochs", "N", "at most so many times all volumes", .number = &s.epochs, .most = EXAMPLE_MOST_COUNT,
         .least = 1},
        {"dice", "X", "end when the Dice score is at least this", .real = &s.dice},
        {"restart", "N", "epochs of the first cosine of the learning rate; the next is twice as long",
         .number = &s.restart, .most = EXAMPLE_MOST_COUNT, .least = 1},
        {"lr", "X", "learning rate", .real = &s.lr},
        {"parallel", "HOW", "spatial, or mesh: channels and voxels", .text = &s.how.how},
        {"mesh", "AXES", "ranks along axes, as depth=2,height=2; data takes the rest (height: all)",
         .text = &s.how.axes},
        {"grey", NULL, "all kinds are equally bright, not coloured: their form alone tells them apart",
         .flag = &s.grey},
        {"seed", "N", "of volumes and all random numbers", .number = &s.seed, .most = EXAMPLE_MOST_COUNT},
        EXAMPLE_COMPUTE(&s.compute),
        {"out", "DIR", "folder for log.jsonl and volume.png", .text = &s.out},
        {"steps", "N", "only measure so many steps, after two that are not measured", .number = &s.steps,
         .most = EXAMPLE_MOST_COUNT},
        {"write", "FILE", "write all volumes to this file, for other programs (tests/bench/bench_volume.py), and end",
         .text = &s.write},
        EXAMPLE_SAVES(&s.saves),
        {0}};
    example_options(argc, argv, "Trains a 3-D U-Net on volumes of fractals that all ranks of mpirun share.", table);
    s.levels = s.levels ? s.levels : s.scale > 4 ? s.scale - 3 : 1;
    return s;
}

static int64_t side_of(const settings *s)
{
    return (int64_t)1 << s->scale;
}

/* Channels of a volume. */
static int64_t inputs_of(const settings *s)
{
    return s->grey ? 1 : FRACTAL_COLOURS;
}

static void check_settings(wf_comm *comm, const settings *s)
{
    char complaint[256] = "";
    if (s->levels >= s->scale)
        snprintf(complaint, sizeof complaint, "--levels %lld: sides of 2^%lld halve at most %lld times",
                 (long long)s->levels, (long long)s->scale, (long long)s->scale - 1);
    else if (s->volumes % s->batch != 0 || s->held_out % s->batch != 0)
        snprintf(complaint, sizeof complaint, "--batch %lld: should divide %lld volumes and %lld that are held out",
                 (long long)s->batch, (long long)s->volumes, (long long)s->held_out);
    else if (s->dice > 1)
        snprintf(complaint, sizeof complaint, "--dice %g: should be at most 1", s->dice);
    example_agree(comm, *complaint ? complaint : NULL);
}

/* The volumes for other programs: side, volumes, those that are held out, channels, and classes as i64, and of each
 * volume in turn its numbers (f32), channel by channel, and the class of its voxels (u8). */
static const char *write_volumes(const settings *s)
{
    const int64_t side = side_of(s), inputs = inputs_of(s), voxels = side * side * side;
    const wf_box one = wf_box_of_shape(WF_SHAPE(1, inputs, side, side, side));
    float *x = calloc((size_t)(inputs * voxels), sizeof *x);
    int64_t *labels = calloc((size_t)voxels, sizeof *labels);
    uint8_t *classes = calloc((size_t)voxels, 1);
    FILE *file = x && labels && classes ? fopen(s->write, "wb") : NULL;
    bool good = file && fwrite((int64_t[]){side, s->volumes, s->held_out, inputs, FRACTAL_CLASSES}, 8, 5, file) == 5;
    for (int64_t n = 0; good && n < s->volumes + s->held_out; n++) {
        fractals_draw((uint64_t)s->seed, n < s->volumes ? n : HELD_OUT + n - s->volumes, side, one, x, labels);
        for (int64_t i = 0; i < voxels; i++)
            classes[i] = (uint8_t)labels[i];
        good = fwrite(x, sizeof *x, (size_t)(inputs * voxels), file) == (size_t)(inputs * voxels) &&
               fwrite(classes, 1, (size_t)voxels, file) == (size_t)voxels;
    }
    good = file && fclose(file) == 0 && good;
    free(x);
    free(labels);
    free(classes);
    return good ? NULL : "--write: the file cannot be written, or there is no memory for a volume";
}

/* --- A batch, of which this rank has its part ----------------------------------------------------------------------
 */

static wf_tensor *tensor_of(wf_comm *comm, wf_dtype dtype, wf_layout layout)
{
    wf_tensor *t = wf_tensor_new(wf_comm_ctx(comm), dtype, wf_box_shape(layout.box));
    WF_MUST(wf_check(t));
    WF_MUST(wf_tensor_set_layout(t, layout));
    return t;
}

/* Labels [N,D,H,W] are cut as the volumes [N,C,D,H,W] are. */
static part part_new(wf_comm *comm, const settings *s)
{
    part p = {0};
    wf_layout labels;
    const int64_t side = side_of(s);
    const wf_layout_opts cut = {.dim = {[WF_AXIS_DATA] = WF_DIM(0),
                                        [WF_AXIS_DEPTH] = WF_DIM(2),
                                        [WF_AXIS_HEIGHT] = WF_DIM(3),
                                        [WF_AXIS_WIDTH] = WF_DIM(4)}};
    const wf_layout_opts flat = {.dim = {[WF_AXIS_DATA] = WF_DIM(0),
                                         [WF_AXIS_DEPTH] = WF_DIM(1),
                                         [WF_AXIS_HEIGHT] = WF_DIM(2),
                                         [WF_AXIS_WIDTH] = WF_DIM(3)}};
    example_check(comm,
                  wf_mesh_layout(s->how.mesh, WF_SHAPE(s->batch, inputs_of(s), side, side, side), cut, &p.layout));
    example_check(comm,
                  wf_mesh_layout(s->how.mesh, WF_SHAPE(s->batch, FRACTAL_CLASSES, side, side, side), cut, &p.scores));
    example_check(comm, wf_mesh_layout(s->how.mesh, WF_SHAPE(s->batch, side, side, side), flat, &labels));
    p.x = tensor_of(comm, WF_F32, p.layout);
    p.labels = tensor_of(comm, WF_I64, labels);
    /* A rank may have no voxels. */
    p.host_x = calloc((size_t)wf_tensor_count(p.x) + 1, sizeof *p.host_x);
    p.host_labels = calloc((size_t)wf_tensor_count(p.labels) + 1, sizeof *p.host_labels);
    if (!p.host_x || !p.host_labels)
        example_abort("no memory for %lld voxels", (long long)wf_tensor_count(p.labels));
    return p;
}

static void part_free(part *p)
{
    free(p->host_x);
    free(p->host_labels);
    wf_tensor_free(p->x);
    wf_tensor_free(p->labels);
}

static void part_draw(part *p, const settings *s, int64_t first)
{
    fractals_draw((uint64_t)s->seed, first, side_of(s), p->layout.box, p->host_x, p->host_labels);
    WF_MUST(wf_tensor_import(p->x, p->host_x, wf_tensor_bytes(p->x)));
    WF_MUST(wf_tensor_import(p->labels, p->host_labels, wf_tensor_bytes(p->labels)));
}

/* --- A step, and the score ------------------------------------------------------------------------------------------
 */

/* Cut as the labels are, also where the layers would have cut them elsewhere; in f32, as they are read here. */
static wf_var *scores_of(const training *t)
{
    return wf_redistribute(wf_cast(wf_apply(t->model, wf_input(t->tape, t->part.x)), WF_F32), t->part.scores);
}

/* Cross entropy, in which background weighs less, and the Dice loss of what is not background. */
static wf_var *loss_of(const training *t, wf_var *scores)
{
    const wf_tensor *labels = t->part.labels;
    wf_var *entropy = wf_softmax_cross_entropy(scores, labels, (wf_label_opts){.weight = t->weight});
    wf_var *dice = wf_dice(wf_softmax(scores), labels, (wf_dice_opts){.skip_background = true, .batch = true});
    return wf_add(entropy, dice);
}

/* Returns the loss of step number `step`. */
static wf_var *train_on(training *t, int64_t step)
{
    const int64_t steps = t->s->volumes / t->s->batch;
    part_draw(&t->part, t->s, step % steps * t->s->batch);
    wf_var *loss = loss_of(t, scores_of(t));
    WF_MUST(wf_optim_step(t->optim, loss));
    return loss;
}

static wf_status train_step(wf_trainer *trainer, void *user)
{
    training *t = user;
    WF_MUST(wf_trainer_observe_var(trainer, "loss", train_on(t, wf_trainer_iteration(trainer)), 1));
    wf_trainer_add_samples(trainer, t->s->batch);
    return wf_tape_reset(t->tape);
}

/* Steps a second, as bench_volume.py prints them; the processor's are those of rank 0. */
static void measure_steps(training *t)
{
    enum { WARM = 2 };
    double begin = 0;
    clock_t busy = 0;
    for (int64_t step = 0; step < WARM + t->s->steps; step++) {
        if (step == WARM) {
            WF_MUST(wf_barrier(t->comm));
            begin = example_seconds();
            busy = clock();
        }
        (void)train_on(t, step);
        WF_MUST(wf_tape_reset(t->tape));
    }
    WF_MUST(wf_barrier(t->comm));
    const double took = example_seconds() - begin, used = (double)(clock() - busy) / CLOCKS_PER_SEC;
    if (wf_comm_rank(t->comm) == 0)
        printf("%.3f steps/s, %.3f steps a second of the processor\n", (double)t->s->steps / took,
               (double)t->s->steps / used);
}

/* The Dice score: 2 |P and T| / (|P| + |T|) of the voxels that are found and those that are, over all volumes held out,
 * for each class; the mean over the classes without background. Whole numbers, so the same on any number of ranks. */
static wf_status evaluate(wf_trainer *trainer, void *user)
{
    training *t = user;
    int64_t count[3][FRACTAL_CLASSES] = {{0}};
    WF_MUST(wf_tape_set_mode(t->tape, WF_EVAL));
    for (int64_t first = 0; first < t->s->held_out; first += t->s->batch) {
        part_draw(&t->part, t->s, HELD_OUT + first);
        wf_var *largest = wf_argmax_over(scores_of(t), WF_DIMS(1), false);
        WF_MUST(wf_check(largest));
        const wf_tensor *found = wf_value(largest);
        int64_t *host = calloc((size_t)wf_tensor_count(found) + 1, sizeof *host);
        if (!host)
            example_abort("no memory for %lld voxels", (long long)wf_tensor_count(found));
        WF_MUST(wf_tensor_export(found, host, wf_tensor_bytes(found)));
        for (int64_t i = 0; i < wf_tensor_count(found); i++) {
            const int64_t is = t->part.host_labels[i];
            count[0][is] += host[i] == is;
            count[1][host[i]]++;
            count[2][is]++;
        }
        free(host);
        WF_MUST(wf_tape_reset(t->tape));
    }
    WF_MUST(wf_allreduce_i64(t->comm, count[0], 3 * FRACTAL_CLASSES, WF_SUM));
    double sum = 0;
    for (int c = 1; c < FRACTAL_CLASSES; c++)
        sum += count[1][c] + count[2][c] ? 2.0 * (double)count[0][c] / (double)(count[1][c] + count[2][c]) : 1;
    const double dice = sum / (FRACTAL_CLASSES - 1);
    WF_MUST(wf_trainer_observe(trainer, "dice", dice, 1));
    if (dice >= t->s->dice)
        wf_trainer_stop(trainer); /* with the report of this epoch, which comes after this hook */
    return wf_tape_set_mode(t->tape, WF_TRAIN);
}

/* It runs behind the report, whose mean all ranks have. */
static wf_status look(wf_trainer *trainer, void *user)
{
    training *t = user;
    const double dice = wf_trainer_mean(trainer, "dice"), seconds = wf_trainer_seconds(trainer);
    wf_trainer_print(trainer, "epoch %lld  loss %.4f  dice %.4f  %.1f s", (long long)wf_trainer_epoch(trainer),
                     wf_trainer_mean(trainer, "loss"), dice, seconds);
    if (dice >= t->s->dice && t->reached == 0) {
        t->reached = seconds;
        t->steps = wf_trainer_iteration(trainer);
    }
    return WF_OK;
}

/* [N,D,H,W] -> [N,C,D,H,W] in grey, for C channels of a volume. */
static wf_var *paint_classes(const training *t, wf_var *classes)
{
    wf_var *grey = wf_scale(wf_unsqueeze(wf_cast(classes, WF_F32), 1), 1.0 / (FRACTAL_CLASSES - 1));
    return wf_concat((int)inputs_of(t->s), (wf_var *[FRACTAL_COLOURS]){grey, grey, grey}, 1);
}

/* Slices through the middle of held-out volumes: themselves, classes, and classes found. */
static void draw_picture(training *t)
{
    const int64_t side = side_of(t->s);
    WF_MUST(wf_tape_set_mode(t->tape, WF_EVAL));
    part_draw(&t->part, t->s, HELD_OUT);
    wf_var *found = wf_argmax_over(scores_of(t), WF_DIMS(1), false);
    wf_var *const column[3] = {wf_input(t->tape, t->part.x), paint_classes(t, wf_input(t->tape, t->part.labels)),
                               paint_classes(t, found)};
    wf_var *whole = wf_unshard(wf_concat(3, column, 1));
    WF_MUST(wf_check(whole));
    wf_box slice = wf_box_of_shape(wf_var_shape(whole));
    slice.lo[2] = side / 2;
    slice.hi[2] = slice.lo[2] + 1;
    wf_var *images = wf_reshape(wf_slice(whole, slice), WF_SHAPE(t->s->batch * 3, inputs_of(t->s), side, side));
    WF_MUST(wf_check(images));
    if (wf_comm_rank(t->comm) == 0)
        WF_MUST(wf_write_png_grid(example_path(t->s->out, "volume.png"), wf_value(images), t->s->batch, 3, 0, 1));
    WF_MUST(wf_tape_reset(t->tape));
}

/* --- The whole -------------------------------------------------------------------------------------------------------
 */

static wf_tensor *weight_new(wf_comm *comm)
{
    float weight[FRACTAL_CLASSES];
    for (int c = 0; c < FRACTAL_CLASSES; c++)
        weight[c] = c == 0 ? 0.1f : 1;
    return wf_tensor_from_host(wf_comm_ctx(comm), WF_F32, WF_SHAPE(FRACTAL_CLASSES), weight);
}

static wf_optim *optim_new(const training *t)
{
    const settings *s = t->s;
    const int64_t steps = s->volumes / s->batch;
    wf_optim *adam = wf_adam(t->model, (wf_adam_opts){.lr = s->lr});
    return wf_lr_schedule(
        adam, (wf_schedule_opts){.kind = WF_SCHEDULE_RESTARTS, .total = s->restart * steps, .power = 2, .end = 0.1});
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
    wf_trainer *trainer = wf_trainer_new(t->comm, train_step, t,
                                         (wf_trainer_opts){.epoch_length = s->volumes / s->batch,
                                                           .epochs = s->epochs,
                                                           .log = example_path(s->out, "log.jsonl"),
                                                           .progress = STDOUT_FILENO,
                                                           .timeline = s->saves.timeline,
                                                           .profile = s->saves.profile ? STDOUT_FILENO : 0,
                                                           .unit = "volumes",
                                                           .optim = t->optim,
                                                           .finite = true});
    WF_MUST(wf_trainer_add_hook(trainer, "evaluate", evaluate, t, (wf_when){.epochs = 1}));
    WF_MUST(wf_trainer_add_hook(trainer, "look", look, t, (wf_when){.epochs = 1, .after_report = true}));
    return trainer;
}

static void tell_end(const training *t)
{
    const settings *s = t->s;
    if (wf_comm_rank(t->comm) != 0)
        return;
    if (t->reached > 0)
        printf("\nDice %.4g after %lld steps, %lld volumes, %.1f s.\n", s->dice, (long long)t->steps,
               (long long)(t->steps * s->batch), t->reached);
    else
        printf("\nDice %.4g was not reached in %lld epochs.\n", s->dice, (long long)s->epochs);
    printf("Look at %s/volume.png: volumes, classes, and classes found; numbers are in %s/log.jsonl.\n", s->out,
           s->out);
}

static int train(training *t)
{
    wf_checkpoint *saves = saves_open(t);
    wf_trainer *trainer = trainer_new(t);
    const int code = example_train(trainer, saves, &t->s->saves);
    if (!wf_trainer_left(trainer)) {
        draw_picture(t);
        tell_end(t);
    }
    wf_trainer_free(trainer);
    return code;
}

int main(int argc, char **argv)
{
    settings s = read_settings(argc, argv);
    wf_comm *comm = wf_comm_open(&argc, &argv, s.communicator, (wf_ctx_opts){.seed = (uint64_t)s.seed});
    example_check(comm, wf_check(comm));
    check_settings(comm, &s);
    if (s.write) {
        example_agree(comm, wf_comm_rank(comm) == 0 ? write_volumes(&s) : NULL);
        WF_MUST(wf_comm_close(comm));
        return 0;
    }
    example_compute(comm, s.compute);
    parallel_open(&s.how, comm);

    const unet_opts opts = {.dims = 3,
                            .in = inputs_of(&s),
                            .classes = FRACTAL_CLASSES,
                            .width = s.channels,
                            .levels = (int)s.levels,
                            .norm = UNET_GROUP};
    training t = {.comm = comm, .s = &s, .model = unet(wf_comm_ctx(comm), opts), .weight = weight_new(comm)};
    (void)parallel_batch(&s.how, comm, s.batch);
    parallel_model(&s.how, comm, t.model);
    t.optim = example_scaled(parallel_optim(&s.how, optim_new(&t)));
    t.tape = wf_tape_new(wf_comm_ctx(comm));
    example_check(comm, wf_check(t.optim));
    t.part = part_new(comm, &s);
    int code = 0;
    if (s.steps)
        measure_steps(&t);
    else
        code = train(&t);

    part_free(&t.part);
    wf_tensor_free(t.weight);
    wf_tape_free(t.tape);
    wf_optim_free(t.optim);
    wf_layer_free(t.model);
    parallel_close(&s.how);
    WF_MUST(wf_comm_close(comm));
    return code;
}
