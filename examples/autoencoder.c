/* An autoencoder of images, cut into stages of which each rank has one:
 *
 *     mpirun -np 2 autoencoder --split pipeline --chunks 8
 *
 * It writes pictures of inputs, reconstructions and codes, and a table that says how long a step takes.
 */
#include "examples/models/autoencoder.h"
#include "examples/common.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SHOWN = 8 }; /* pictures in a row, and rows of them */

typedef struct settings {
    const char *communicator, *split, *schedule, *recompute, *plan, *data, *out, *timeline;
    int64_t stages, chunks, batch, steps, depth, width, log_every, seed;
    double lr;
    bool diagram, profile;
} settings;

static settings read_settings(int argc, char **argv)
{
    settings s = {.communicator = "auto",
                  .split = "pipeline",
                  .schedule = "1f1b",
                  .recompute = "never",
                  .out = "autoencoder",
                  .chunks = 8,
                  .batch = 256,
                  .steps = 200,
                  .depth = 2,
                  .width = 512,
                  .log_every = 20,
                  .lr = 1e-3};
    const example_option table[] = {
        {"communicator", "NAME", "how ranks talk: auto, flat, hierarchical, ...", .text = &s.communicator},
        {"split", "HOW",
         "none: every rank has the whole model; naive: stages that compute one after the other; pipeline",
         .text = &s.split},
        {"stages", "N", "of the model; 0: one on each rank. Ranks beyond take other images", .number = &s.stages,
         .most = EXAMPLE_MOST_SIZE},
        {"chunks", "N", "of a batch, in a pipeline", .number = &s.chunks, .most = EXAMPLE_MOST_SIZE, .least = 1},
        {"schedule", "NAME", "gpipe, 1f1b or interleaved", .text = &s.schedule},
        {"recompute", "WHEN", "never, except_last or always: activations in backward", .text = &s.recompute},
        {"plan", "FILE", "of wf-plan, in place of these; --batch is that of all ranks then", .text = &s.plan},
        {"depth", "N", "hidden layers on each side of the code", .number = &s.depth, .most = 1000},
        {"width", "N", "numbers in a hidden layer", .number = &s.width, .most = EXAMPLE_MOST_SIZE, .least = 1},
        {"batch", "N", "images in a step, for each place along data", .number = &s.batch, .most = EXAMPLE_MOST_SIZE,
         .least = 1},
        {"steps", "N", "of the training", .number = &s.steps, .most = EXAMPLE_MOST_COUNT, .least = 1},
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

/* What a step works with. */
typedef struct training {
    wf_comm *comm;
    wf_training_plan *plan; /* NULL: options say how */
    wf_mesh *mesh;
    wf_pipeline *pipe; /* NULL: not split */
    wf_layer *model;   /* of the whole, or of this stage */
    wf_optim *optim;
    wf_tape *tape;
    wf_iter *images;
    autoencoder_codes codes;
} training;

/* As the plan says. */
static void planned_model(training *t, const settings *s)
{
    const wf_mesh_opts mesh = wf_training_plan_mesh(t->plan);
    wf_pipeline_opts opts = wf_training_plan_pipeline(t->plan);
    opts.loss = wf_bce_logits_with;
    example_agree(t->comm, wf_training_plan_batch(t->plan) != s->batch ? "--batch: the plan is for another one" : NULL);
    t->mesh = wf_mesh_open(t->comm, mesh);
    example_check(t->comm, wf_check(t->mesh));
    t->model = autoencoder(wf_comm_ctx(t->comm), s->depth, s->width, &t->codes);
    example_check(t->comm, wf_training_plan_apply(t->plan, t->mesh, t->model, false));
    if (mesh.stage > 1) {
        t->pipe = wf_pipeline_new(t->mesh, t->model, opts);
        example_check(t->comm, wf_check(t->pipe));
        t->model = wf_pipeline_model(t->pipe);
    }
    t->optim = wf_mesh_multi_node_with(t->mesh, wf_adam(t->model, (wf_adam_opts){.lr = s->lr}),
                                       wf_training_plan_multi_node(t->plan));
    example_check(t->comm, wf_check(t->optim));
}

/* Gives wf-plan the serial model. */
static int answer(training *t, const settings *s)
{
    wf_layer *model = autoencoder(wf_comm_ctx(t->comm), s->depth, s->width, &t->codes);
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
        .loss = wf_bce_logits_with,
        .chunks = split == NAIVE ? 1 : (int)s->chunks,
        .schedule = (wf_pipeline_kind)choice(t->comm, "schedule", s->schedule, schedules),
        .recompute = (wf_pipeline_recompute)choice(t->comm, "recompute", s->recompute, recomputations)};
    const int64_t stages = split == NONE ? 1 : s->stages ? s->stages : wf_comm_size(t->comm);
    t->mesh = wf_mesh_open(t->comm, (wf_mesh_opts){.stage = (int)stages});
    example_check(t->comm, wf_check(t->mesh));
    t->model = autoencoder(wf_comm_ctx(t->comm), s->depth, s->width, &t->codes);
    if (split != NONE) {
        t->pipe = wf_pipeline_new(t->mesh, t->model, opts);
        example_check(t->comm, wf_check(t->pipe));
        t->model = wf_pipeline_model(t->pipe);
    }
    t->optim = wf_mesh_multi_node(t->mesh, wf_adam(t->model, (wf_adam_opts){.lr = s->lr}));
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

static double train_step(training *t)
{
    wf_batch b;
    WF_MUST(wf_iter_next(t->images, &b));
    wf_var *loss = t->pipe ? wf_pipeline_step(t->pipe, t->tape, b.x, b.x)
                           : wf_bce_logits_with(wf_apply(t->model, wf_input(t->tape, b.x)), b.x);
    WF_MUST(wf_optim_step(t->optim, loss));
    const double value = wf_item(loss);
    WF_MUST(wf_tape_reset(t->tape));
    if (t->plan)
        WF_MUST(wf_training_plan_compare(t->plan, t->comm, STDOUT_FILENO));
    return value;
}

static int by_size(const void *left, const void *right)
{
    const double *a = left, *b = right;
    return *a < *b ? -1 : *a > *b;
}

/* The median time of a step, of those behind the first two, which make what the others use again. */
static double train(training *t, const settings *s)
{
    const bool prints = wf_comm_rank(t->comm) == 0;
    double *took = calloc((size_t)s->steps, sizeof *took), loss = 0;
    if (!took)
        example_abort("out of memory for the times");
    for (int64_t i = 0; i < s->steps; i++) {
        WF_MUST(wf_barrier(t->comm));
        const double begin = example_seconds();
        loss = train_step(t);
        took[i] = example_seconds() - begin;
        if (prints && ((i + 1) % s->log_every == 0 || i + 1 == s->steps))
            printf("step %lld: loss %.6f, %.2f ms\n", (long long)i + 1, loss, 1e3 * took[i]);
    }
    const int64_t from = s->steps > 2 ? 2 : 0;
    qsort(took + from, (size_t)(s->steps - from), sizeof *took, by_size);
    const double median = took[from + (s->steps - from) / 2];
    free(took);
    return median;
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
    if (wf_mesh_rank(t->mesh, WF_AXIS_DATA) == 0) {
        wf_var *shown = last ? wf_sigmoid(y) : NULL;
        if (first)
            write_picture(s, "input.png", b.x, 0, 1);
        if (last)
            write_picture(s, "reconstruction.png", wf_value(shown), 0, 1);
        write_codes(t, s);
    }
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

static void print_times(FILE *file, const training *t, const settings *s, double seconds)
{
    int parts = 0;
    const int *cuts = wf_pipeline_cuts(t->pipe, &parts);
    const double images = (double)samples_of(t, s) * wf_mesh_size(t->mesh, WF_AXIS_DATA);
    fprintf(file, "%-10s %-12s %7s %-12s %-16s %10s %10s\n", "split", "schedule", "chunks", "recompute", "layers",
            "ms/step", "images/s");
    char layers[64] = "all";
    for (int p = 0, used = 0; p < parts && used + 8 < (int)sizeof layers; p++)
        used += snprintf(layers + used, sizeof layers - (size_t)used, "%s%d", p ? "+" : "", cuts[p]);
    fprintf(file, "%-10s %-12s %7lld %-12s %-16s %10.2f %10.0f\n", s->split, t->pipe ? s->schedule : "-",
            (long long)(t->pipe && strcmp(s->split, "naive") != 0 ? s->chunks : 1), t->pipe ? s->recompute : "-",
            layers, 1e3 * seconds, images / seconds);
}

/* Printed, and left beside the pictures. */
static void show_times(const training *t, const settings *s, double seconds)
{
    if (t->plan) /* it has a table of its own */
        return;
    FILE *file = example_create(t->comm, s->out, "times.txt");
    if (!file)
        return;
    printf("\n");
    print_times(stdout, t, s, seconds);
    print_times(file, t, s, seconds);
    if (fclose(file) != 0)
        example_abort("times.txt: cannot write");
}

int main(int argc, char **argv)
{
    const settings s = read_settings(argc, argv);
    training t = {.comm = wf_comm_open_with(&argc, &argv, s.communicator, (wf_ctx_opts){.seed = (uint64_t)s.seed})};
    example_check(t.comm, wf_check(t.comm));
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
    wf_profiler *profiler = NULL;
    if (s.profile || s.timeline) {
        profiler = wf_profiler_open(t.comm,
                                    (wf_profiler_opts){.table = s.profile ? STDOUT_FILENO : 0, .timeline = s.timeline});
        example_check(t.comm, wf_check(profiler));
    }
    const double seconds = train(&t, &s);
    if (profiler)
        WF_MUST(wf_profiler_close(profiler));
    write_pictures(&t, &s);
    show_times(&t, &s, seconds);

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
