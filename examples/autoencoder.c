/* An autoencoder of images, cut into stages of which each rank has one:
 *
 *     mpirun -np 2 autoencoder --split pipeline --chunks 8
 *     mpirun -np 2 autoencoder --model convolutional --batch 32 --epochs 10
 *
 * It writes pictures of inputs, reconstructions and codes, compare.png with five of each, and a table that says how
 * long a step takes and how much memory each stage needs.
 */
#include "examples/models/autoencoder.h"
#include "examples/common.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SHOWN = 8, SIDE = 28 }; /* pictures in a row, and rows of them; pixels of a side */
enum { TIMED = 4096 };         /* steps whose time is known: the newest */

typedef struct settings {
    const char *communicator, *model, *split, *schedule, *recompute, *plan, *data, *out, *timeline;
    int64_t stages, chunks, batch, steps, epochs, depth, width, log_every, seed;
    double lr;
    bool diagram, profile;
} settings;

static settings read_settings(int argc, char **argv)
{
    settings s = {.communicator = "auto",
                  .model = "dense",
                  .split = "pipeline",
                  .schedule = "1f1b",
                  .recompute = "never",
                  .out = "autoencoder",
                  .batch = 256,
                  .steps = 200,
                  .depth = 2,
                  .width = 512,
                  .log_every = 20,
                  .lr = 1e-3};
    const example_option table[] = {
        {"communicator", "NAME", "how ranks talk: auto, flat, hierarchical, ...", .text = &s.communicator},
        {"model", "NAME", "dense, or convolutional: convolutions, 36864-32 and back, by squared errors",
         .text = &s.model},
        {"split", "HOW",
         "none: every rank has the whole model; naive: stages that compute one after the other; pipeline",
         .text = &s.split},
        {"stages", "N", "of the model; 0: one on each rank. Ranks beyond take other images", .number = &s.stages,
         .most = EXAMPLE_MOST_SIZE},
        {"chunks", "N", "of a batch, in a pipeline; 0: 8, or its images where these are fewer", .number = &s.chunks,
         .most = EXAMPLE_MOST_SIZE},
        {"schedule", "NAME", "gpipe, 1f1b or interleaved", .text = &s.schedule},
        {"recompute", "WHEN", "never, except_last or always: activations in backward", .text = &s.recompute},
        {"plan", "FILE", "of wf-plan, in place of these; --batch is that of all ranks then", .text = &s.plan},
        {"depth", "N", "dense: hidden layers on each side of the code", .number = &s.depth, .most = 1000},
        {"width", "N", "dense: numbers in a hidden layer", .number = &s.width, .most = EXAMPLE_MOST_SIZE, .least = 1},
        {"batch", "N", "images in a step, for each place along data", .number = &s.batch, .most = EXAMPLE_MOST_SIZE,
         .least = 1},
        {"steps", "N", "of the training", .number = &s.steps, .most = EXAMPLE_MOST_COUNT, .least = 1},
        {"epochs", "N", "of the training, in place of --steps; 0: --steps", .number = &s.epochs,
         .most = EXAMPLE_MOST_COUNT},
        {"log-every", "N", "steps between two lines", .number = &s.log_every, .most = EXAMPLE_MOST_COUNT, .least = 1},
        {"lr", "X", "learning rate", .real = &s.lr},
        {"data", "DIR", "folder of MNIST's or Fashion-MNIST's IDX files", .text = &s.data},
        {"out", "DIR", "folder of the pictures", .text = &s.out},
        {"diagram", NULL, "print the schedule, and write it as schedule.svg", .flag = &s.diagram},
        {"timeline", "FILE", "time line of all ranks in the training, for chrome://tracing", .text = &s.timeline},
        {"profile", NULL, "a table of where the time went, by kernel and by layer", .flag = &s.profile},
        {"seed", "N", "of all random numbers", .number = &s.seed, .most = EXAMPLE_MOST_COUNT},
        {0}};
    example_options(argc, argv, "Trains an autoencoder of 28x28 images, cut into stages along the ranks.", table);
    if (s.chunks == 0)
        s.chunks = s.batch < 8 ? s.batch : 8;
    return s;
}

/* The place of a word in a list; the program ends where it is not in it. */
static int choice(wf_comm *comm, const char *option, const char *word, const char *const *words)
{
    char complaint[256] = "", all[128] = "";
    for (int i = 0; words[i]; i++) {
        if (strcmp(word, words[i]) == 0)
            return i;
        snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", i ? ", " : "", words[i]);
    }
    snprintf(complaint, sizeof complaint, "--%s %.60s: should be one of %s", option, word, all);
    example_agree(comm, complaint);
    return -1;
}

enum { NONE, NAIVE, PIPELINE };
enum { DENSE, CONVOLUTIONAL };

/* What a step works with. */
typedef struct training {
    wf_comm *comm;
    const settings *settings;
    int kind; /* DENSE or CONVOLUTIONAL */
    wf_pipeline_loss loss;
    wf_training_plan *plan; /* NULL: options say how */
    wf_mesh *mesh;
    wf_pipeline *pipe; /* NULL: not split */
    wf_layer *model;   /* of the whole, or of this stage */
    wf_optim *optim;
    wf_tape *tape;
    wf_iter *images;
    autoencoder_codes codes;
    int64_t steps;
    double took[TIMED]; /* seconds of step i at i % TIMED */
} training;

static wf_var *squared_errors(wf_var *y, const wf_tensor *target)
{
    return wf_mse(y, wf_input(wf_var_tape(y), target));
}

static wf_layer *serial_model(training *t)
{
    wf_ctx *ctx = wf_comm_ctx(t->comm);
    return t->kind == DENSE ? autoencoder(ctx, t->settings->depth, t->settings->width, &t->codes)
                            : autoencoder_convolutional(ctx, &t->codes);
}

static void choose_model(training *t)
{
    static const char *const models[] = {"dense", "convolutional", NULL};
    t->kind = choice(t->comm, "model", t->settings->model, models);
    t->loss = t->kind == DENSE ? wf_bce_logits : squared_errors;
}

/* As the plan says. */
static void planned_model(training *t, const settings *s)
{
    const wf_mesh_opts mesh = wf_training_plan_mesh(t->plan);
    wf_pipeline_opts opts = wf_training_plan_pipeline(t->plan);
    opts.loss = t->loss;
    char complaint[128];
    const int64_t batch = wf_training_plan_batch(t->plan);
    snprintf(complaint, sizeof complaint, "--batch %lld: the plan is for %lld", (long long)s->batch, (long long)batch);
    example_agree(t->comm, batch != s->batch ? complaint : NULL);
    t->mesh = wf_mesh_open(t->comm, mesh);
    example_check(t->comm, wf_check(t->mesh));
    t->model = serial_model(t);
    example_check(t->comm, wf_training_plan_apply(t->plan, t->mesh, t->model, false));
    if (mesh.stage > 1) {
        t->pipe = wf_pipeline_new(t->mesh, t->model, opts);
        example_check(t->comm, wf_check(t->pipe));
        t->model = wf_pipeline_model(t->pipe);
    }
    t->optim = wf_mesh_multi_node(t->mesh, wf_adam(t->model, (wf_adam_opts){.lr = s->lr}),
                                  wf_training_plan_multi_node(t->plan));
    example_check(t->comm, wf_check(t->optim));
}

/* Gives wf-plan the serial model. */
static int answer(training *t, const settings *s)
{
    wf_layer *model = serial_model(t);
    wf_optim *optim = wf_adam(model, (wf_adam_opts){.lr = s->lr});
    example_check(t->comm, wf_check(optim));
    example_check(t->comm, wf_planner_answer(t->comm, model, optim, WF_SHAPE(s->batch, 1, 28, 28),
                                             WF_PLANNER_STAGE | WF_PLANNER_RECOMPUTE));
    wf_optim_free(optim);
    wf_layer_free(model);
    WF_MUST(wf_comm_close(t->comm));
    return 0;
}

static void model_new(training *t, const settings *s)
{
    static const char *const splits[] = {"none", "naive", "pipeline", NULL};
    static const char *const schedules[] = {"1f1b", "gpipe", "interleaved", NULL};
    static const char *const recomputations[] = {"never", "except_last", "always", NULL};
    const int split = choice(t->comm, "split", s->split, splits);
    const wf_pipeline_opts opts = {
        .loss = t->loss,
        .chunks = split == NAIVE ? 1 : (int)s->chunks,
        .schedule = (wf_pipeline_kind)choice(t->comm, "schedule", s->schedule, schedules),
        .recompute = (wf_pipeline_recompute)choice(t->comm, "recompute", s->recompute, recomputations)};
    char complaint[128];
    snprintf(complaint, sizeof complaint, "--chunks %lld: should be at most the %lld images of a batch",
             (long long)s->chunks, (long long)s->batch);
    example_agree(t->comm, split == PIPELINE && s->chunks > s->batch ? complaint : NULL);
    const int64_t stages = split == NONE ? 1 : s->stages ? s->stages : wf_comm_size(t->comm);
    t->mesh = wf_mesh_open(t->comm, (wf_mesh_opts){.stage = (int)stages});
    example_check(t->comm, wf_check(t->mesh));
    t->model = serial_model(t);
    if (split != NONE) {
        t->pipe = wf_pipeline_new(t->mesh, t->model, opts);
        example_check(t->comm, wf_check(t->pipe));
        t->model = wf_pipeline_model(t->pipe);
    }
    t->optim = wf_mesh_multi_node(t->mesh, wf_adam(t->model, (wf_adam_opts){.lr = s->lr}), (wf_multi_node_opts){0});
    example_check(t->comm, wf_check(t->optim));
}

/* The samples of this place along the data axis. */
static int64_t samples_of(const training *t, const settings *s)
{
    return t->plan ? s->batch / wf_mesh_size(t->mesh, WF_AXIS_DATA) : s->batch;
}

static wf_iter *open_images(const training *t, const settings *s)
{
    wf_dataset *files = wf_comm_rank(t->comm) == 0 ? wf_mnist(wf_comm_ctx(t->comm), s->data, WF_TRAIN_SET) : NULL;
    wf_dataset *part = wf_mesh_scatter_dataset(t->mesh, files, (wf_scatter_opts){.shuffle = true});
    wf_iter *iter = wf_batches(part, (wf_batch_opts){.size = samples_of(t, s), .drop_last = true});
    example_check(t->comm, wf_check(iter));
    if (wf_iter_epoch_length(iter) == 0) {
        char complaint[128];
        snprintf(complaint, sizeof complaint, "--batch %lld: there are not as many images", (long long)s->batch);
        example_agree(t->comm, complaint);
    }
    return iter;
}

/* --- training -------------------------------------------------------------------------------------------------------
 */

static wf_var *forward(const training *t, const wf_batch *b)
{
    if (t->pipe)
        return wf_pipeline_step(t->pipe, t->tape, b->x, b->x);
    wf_var *y = wf_apply(t->model, wf_input(t->tape, b->x));
    return t->loss(y, b->x);
}

static wf_status train_step(wf_trainer *trainer, void *user)
{
    training *t = user;
    wf_batch b;
    const int64_t i = wf_trainer_iteration(trainer);
    WF_MUST(wf_barrier(t->comm));
    const double begin = example_seconds();
    WF_MUST(wf_iter_next(t->images, &b));
    wf_var *loss = forward(t, &b);
    WF_MUST(wf_optim_step(t->optim, loss));
    const double value = wf_item(loss);
    WF_MUST(wf_tape_reset(t->tape));
    if (t->plan)
        WF_MUST(wf_training_plan_compare(t->plan, t->comm, STDOUT_FILENO));
    const double took = example_seconds() - begin;
    t->took[i % TIMED] = took;
    if ((i + 1) % t->settings->log_every == 0 || i + 1 == t->steps)
        wf_trainer_print(trainer, "step %lld: loss %.6f, %.2f ms", (long long)i + 1, value, 1e3 * took);
    wf_trainer_add_samples(trainer, b.global);
    return wf_trainer_observe(trainer, "loss", value, (double)b.size);
}

static int by_size(const void *left, const void *right)
{
    const double *a = left, *b = right;
    return *a < *b ? -1 : *a > *b;
}

/* The median time of the newest steps. The first two, which make what the others use again, count only where there are
 * no more. */
static double median_step(training *t)
{
    const int64_t from = t->steps > 2 && t->steps <= TIMED ? 2 : 0, to = t->steps < TIMED ? t->steps : TIMED;
    qsort(t->took + from, (size_t)(to - from), sizeof *t->took, by_size);
    return t->took[from + (to - from) / 2];
}

static double train(training *t, const settings *s)
{
    const int64_t length = wf_iter_epoch_length(t->images);
    t->steps = s->epochs ? s->epochs * length : s->steps;
    wf_trainer *trainer = wf_trainer_new(t->comm, train_step, t,
                                         (wf_trainer_opts){.epoch_length = length,
                                                           .iterations = t->steps,
                                                           .report = {.iterations = s->log_every, .end = true},
                                                           .progress = STDOUT_FILENO,
                                                           .unit = "images",
                                                           .optim = t->optim,
                                                           .finite = true,
                                                           .timeline = s->timeline,
                                                           .profile = s->profile ? STDOUT_FILENO : 0});
    example_check(t->comm, wf_check(trainer));
    example_check(t->comm, wf_trainer_run(trainer));
    wf_trainer_free(trainer);
    return median_step(t);
}

/* --- pictures -------------------------------------------------------------------------------------------------------
 */

static void write_picture(const settings *s, const char *name, const wf_tensor *x, double lo, double hi)
{
    WF_MUST(wf_write_png_grid(example_path(s->out, name), x, SHOWN, SHOWN, lo, hi));
}

/* Codes as pictures of 4x8 pixels, from the smallest number to the largest. */
static void write_codes(const training *t, const settings *s)
{
    const int64_t n = t->codes.count;
    double lo = 0, hi = 0;
    if (n == 0)
        return;
    for (int64_t i = 0; i < n * AUTOENCODER_CODE; i++) {
        lo = t->codes.code[i] < lo ? t->codes.code[i] : lo;
        hi = t->codes.code[i] > hi ? t->codes.code[i] : hi;
    }
    wf_tensor *x = wf_tensor_from_host(wf_comm_ctx(t->comm), WF_F32, WF_SHAPE(n, 1, 4, 8), t->codes.code);
    WF_MUST(wf_check(x));
    write_picture(s, "codes.png", x, lo, hi > lo ? hi : lo + 1);
    wf_tensor_free(x);
}

/* compare.png: the first test images, below them their codes as rows of squares, below these the reconstructions. */
enum {
    COMPARED = 5,
    ZOOM = 8,                              /* a pixel of an image is ZOOM x ZOOM of the picture */
    CELL = ZOOM * SIDE / AUTOENCODER_CODE, /* width of a square of a code */
    STRIP = 4 * CELL,                      /* height of a code */
    GAP = 12,
    WIDTH = COMPARED * (ZOOM * SIDE + GAP) + GAP,
    HEIGHT = 2 * ZOOM * SIDE + STRIP + 4 * GAP
};

/* One after the other: an image, its code, its reconstruction. */
typedef double compared[2 * SIDE * SIDE + AUTOENCODER_CODE];

static void draw_block(float *picture, int top, int left, const double *value, int rows, int columns, int high,
                       int wide)
{
    for (int y = 0; y < rows * high; y++)
        for (int x = 0; x < columns * wide; x++)
            picture[(top + y) * WIDTH + left + x] = (float)value[y / high * columns + x / wide];
}

/* The codes that are shown, from the smallest number, black, to the largest, white. */
static void scale_codes(compared *c, int64_t n)
{
    double lo = INFINITY, hi = -INFINITY;
    for (int64_t i = 0; i < n; i++)
        for (int k = 0; k < AUTOENCODER_CODE; k++) {
            lo = fmin(lo, c[i][SIDE * SIDE + k]);
            hi = fmax(hi, c[i][SIDE * SIDE + k]);
        }
    for (int64_t i = 0; i < n; i++)
        for (int k = 0; k < AUTOENCODER_CODE; k++)
            c[i][SIDE * SIDE + k] = hi > lo ? (c[i][SIDE * SIDE + k] - lo) / (hi - lo) : 0;
}

static void draw_comparison(const training *t, compared *c, int64_t n)
{
    float *picture = malloc(sizeof *picture * WIDTH * HEIGHT);
    if (!picture)
        example_abort("out of memory for compare.png");
    for (int i = 0; i < WIDTH * HEIGHT; i++)
        picture[i] = 1;
    scale_codes(c, n);
    for (int64_t i = 0; i < n; i++) {
        const int left = GAP + (int)i * (ZOOM * SIDE + GAP), code = GAP + ZOOM * SIDE + GAP;
        draw_block(picture, GAP, left, c[i], SIDE, SIDE, ZOOM, ZOOM);
        draw_block(picture, code, left, c[i] + SIDE * SIDE, 1, AUTOENCODER_CODE, STRIP, CELL);
        draw_block(picture, code + STRIP + GAP, left, c[i] + SIDE * SIDE + AUTOENCODER_CODE, SIDE, SIDE, ZOOM, ZOOM);
    }
    wf_tensor *x = wf_tensor_from_host(wf_comm_ctx(t->comm), WF_F32, WF_SHAPE(1, 1, HEIGHT, WIDTH), picture);
    WF_MUST(wf_check(x));
    WF_MUST(wf_write_png_grid(example_path(t->settings->out, "compare.png"), x, 1, 1, 0, 1));
    wf_tensor_free(x);
    free(picture);
}

/* x [N,1,28,28] as floats of the host, which the caller frees. */
static float *pixels_of(const wf_tensor *x)
{
    float *pixels = malloc(wf_tensor_bytes(x));
    if (!pixels)
        example_abort("out of memory for %lld images", (long long)wf_tensor_shape(x).dim[0]);
    WF_MUST(wf_tensor_export(x, pixels, wf_tensor_bytes(x)));
    return pixels;
}

/* Every rank adds what it has, to zeros: the stages of the first place along data have it all. y may be NULL. */
static void write_comparison(const training *t, const wf_tensor *x, const wf_tensor *y)
{
    const int64_t most = wf_tensor_shape(x).dim[0], n = most < COMPARED ? most : COMPARED;
    const bool first = wf_mesh_rank(t->mesh, WF_AXIS_STAGE) == 0, has = wf_mesh_rank(t->mesh, WF_AXIS_DATA) == 0;
    compared c[COMPARED] = {0};
    float *in = has && first ? pixels_of(x) : NULL, *out = has && y ? pixels_of(y) : NULL;
    for (int64_t i = 0; i < n; i++) {
        for (int k = 0; k < SIDE * SIDE; k++) {
            c[i][k] = in ? in[i * SIDE * SIDE + k] : 0;
            c[i][SIDE * SIDE + AUTOENCODER_CODE + k] = out ? out[i * SIDE * SIDE + k] : 0;
        }
        for (int k = 0; k < AUTOENCODER_CODE; k++)
            c[i][SIDE * SIDE + k] = has && i < t->codes.count ? t->codes.code[i * AUTOENCODER_CODE + k] : 0;
    }
    free(in);
    free(out);
    WF_MUST(wf_allreduce_f64(t->comm, &c[0][0], COMPARED * (int64_t)(sizeof c[0] / sizeof c[0][0]), WF_SUM));
    if (wf_comm_rank(t->comm) == 0)
        draw_comparison(t, c, n);
}

/* The first images of the test set: the first stage has the input, the last one the output, and one in between the
 * codes. */
static void write_pictures(training *t, const settings *s)
{
    const bool first = wf_mesh_rank(t->mesh, WF_AXIS_STAGE) == 0,
               last = wf_mesh_rank(t->mesh, WF_AXIS_STAGE) == wf_mesh_size(t->mesh, WF_AXIS_STAGE) - 1;
    wf_dataset *test = wf_mnist(wf_comm_ctx(t->comm), s->data, WF_TEST_SET);
    wf_iter *iter = wf_batches(test, (wf_batch_opts){.size = SHOWN * SHOWN});
    wf_batch b;
    t->codes = (autoencoder_codes){.most = SHOWN * SHOWN};
    t->codes.code = calloc(SHOWN * SHOWN * AUTOENCODER_CODE, sizeof *t->codes.code);
    if (!t->codes.code)
        example_abort("out of memory for the codes");
    WF_MUST(wf_iter_next(iter, &b));
    WF_MUST(wf_tape_set_mode(t->tape, WF_EVAL));
    wf_var *y = t->pipe ? wf_pipeline_apply(t->pipe, t->tape, b.x) : wf_apply(t->model, wf_input(t->tape, b.x));
    WF_MUST(wf_check(y));
    wf_var *shown = !last ? NULL : t->kind == DENSE ? wf_sigmoid(y) : y;
    if (wf_mesh_rank(t->mesh, WF_AXIS_DATA) == 0) {
        if (first)
            write_picture(s, "input.png", b.x, 0, 1);
        if (last)
            write_picture(s, "reconstruction.png", wf_value(shown), 0, 1);
        write_codes(t, s);
    }
    write_comparison(t, b.x, wf_value(shown));
    WF_MUST(wf_tape_reset(t->tape));
    free(t->codes.code);
    wf_iter_free(iter);
}

/* --- report ---------------------------------------------------------------------------------------------------------
 */

static void write_line(void *file, const char *text)
{
    fprintf(file, "%s\n", text);
}

static void show_schedule(const training *t, const settings *s)
{
    FILE *file = example_create(t->comm, s->out, "schedule.svg");
    if (!file)
        return;
    wf_pipeline_schedule_print(wf_pipeline_schedule_of(t->pipe), write_line, stdout);
    wf_pipeline_schedule_svg(wf_pipeline_schedule_of(t->pipe), write_line, file);
    if (fclose(file) != 0)
        example_abort("schedule.svg: cannot write");
}

/* The most that the pool of a rank held so far, in MiB, of each stage: the rank that held most speaks for its stage. */
static void stages_memory(const training *t, char *text, size_t bytes)
{
    const int stages = wf_mesh_size(t->mesh, WF_AXIS_STAGE);
    double *mib = calloc((size_t)stages, sizeof *mib);
    if (!mib)
        example_abort("out of memory for the numbers of %d stages", stages);
    mib[wf_mesh_rank(t->mesh, WF_AXIS_STAGE)] = (double)wf_ctx_memory(wf_comm_ctx(t->comm)).bytes_peak / (1 << 20);
    WF_MUST(wf_allreduce_f64(t->comm, mib, stages, WF_MAX));
    for (int i = 0, used = 0; i < stages && used + 12 < (int)bytes; i++)
        used += snprintf(text + used, bytes - (size_t)used, "%s%.1f", i ? "+" : "", mib[i]);
    free(mib);
}

static void print_times(FILE *file, const training *t, const settings *s, double seconds, const char *memory)
{
    int parts = 0;
    const int *cuts = wf_pipeline_cuts(t->pipe, &parts);
    const double images = (double)samples_of(t, s) * wf_mesh_size(t->mesh, WF_AXIS_DATA);
    fprintf(file, "%-10s %-12s %7s %-12s %-16s %10s %10s  %s\n", "split", "schedule", "chunks", "recompute", "layers",
            "ms/step", "images/s", "MiB/stage");
    char layers[64] = "all";
    for (int p = 0, used = 0; p < parts && used + 8 < (int)sizeof layers; p++)
        used += snprintf(layers + used, sizeof layers - (size_t)used, "%s%d", p ? "+" : "", cuts[p]);
    fprintf(file, "%-10s %-12s %7lld %-12s %-16s %10.2f %10.0f  %s\n", s->split, t->pipe ? s->schedule : "-",
            (long long)(t->pipe && strcmp(s->split, "naive") != 0 ? s->chunks : 1), t->pipe ? s->recompute : "-",
            layers, 1e3 * seconds, images / seconds, memory);
}

/* Printed, and left beside the pictures. */
static void show_times(const training *t, const settings *s, double seconds, const char *memory)
{
    if (t->plan) /* it has a table of its own */
        return;
    FILE *file = example_create(t->comm, s->out, "times.txt");
    if (!file)
        return;
    printf("\n");
    print_times(stdout, t, s, seconds, memory);
    print_times(file, t, s, seconds, memory);
    if (fclose(file) != 0)
        example_abort("times.txt: cannot write");
}

int main(int argc, char **argv)
{
    const settings s = read_settings(argc, argv);
    char memory[256] = "";
    training t = {.settings = &s,
                  .comm = wf_comm_open(&argc, &argv, s.communicator, (wf_ctx_opts){.seed = (uint64_t)s.seed})};
    example_check(t.comm, wf_check(t.comm));
    choose_model(&t);
    if (wf_planner_asks())
        return answer(&t, &s);
    if (s.plan) {
        t.plan = wf_training_plan_read(t.comm, s.plan);
        example_check(t.comm, wf_check(t.plan));
        planned_model(&t, &s);
    } else {
        model_new(&t, &s);
    }
    t.images = open_images(&t, &s);
    t.tape = wf_tape_new(wf_comm_ctx(t.comm));
    example_folder(t.comm, s.out);
    if (s.diagram && t.pipe)
        show_schedule(&t, &s);
    const double seconds = train(&t, &s);
    stages_memory(&t, memory, sizeof memory);
    write_pictures(&t, &s);
    show_times(&t, &s, seconds, memory);

    wf_tape_free(t.tape);
    wf_iter_free(t.images);
    wf_optim_free(t.optim);
    if (t.pipe)
        wf_pipeline_free(t.pipe);
    else
        wf_layer_free(t.model);
    wf_mesh_close(t.mesh);
    wf_training_plan_free(t.plan);
    WF_MUST(wf_comm_close(t.comm));
    return 0;
}
