/* The profiler: what it counts of kernels, layers, collectives and waits, the table, the time line of ranks whose
 * clocks differ, and that nothing is left of it. */
#include "optim/profiler.h"
#include "core/context_author.h"
#include "core/profile_author.h"
#include "datasets/datasets.h"
#include "layers/layers.h"
#include "optim/multi_node.h"
#include "optim/trainer.h"
#include "tests/file/folder.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SAMPLES = 8, IN = 12, OUT = 5, STEPS = 3 };

static wf_layer *model_new(void)
{
    wf_layer *model =
        wf_sequential(ctx, WF_LAYERS(wf_linear(ctx, (wf_linear_opts){.in = IN, .out = 7}), wf_lambda(ctx, wf_relu),
                                     wf_linear(ctx, (wf_linear_opts){.in = 7, .out = OUT})));
    return wf_layer_named(model, "net");
}

static wf_iter *batches_new(void)
{
    return wf_batches(wf_synthetic(ctx, (wf_synthetic_opts){.count = 64, .shape = {1, {IN}}, .classes = OUT}),
                      (wf_batch_opts){.size = SAMPLES});
}

static void train(wf_layer *model, wf_optim *optim, wf_iter *iter, wf_tape *tape)
{
    for (int i = 0; i < STEPS; i++) {
        wf_batch b;
        WF_EXPECT_OK(wf_iter_next(iter, &b));
        wf_var *loss = wf_softmax_cross_entropy(wf_apply(model, wf_input(tape, b.x)), b.labels, (wf_label_opts){0});
        WF_EXPECT_OK(wf_optim_step(optim, loss));
        WF_EXPECT_OK(wf_tape_reset(tape));
    }
}

/* The sum of the rows of this name whose layer ends so. */
static wf_profile_row sum_of(const wf_profile *p, const char *name, const char *layer)
{
    const wf_profile_row *row;
    wf_profile_row sum = {.name = name, .layer = layer};
    const int64_t n = wf_profile_rows(p, &row);
    for (int64_t i = 0; i < n; i++) {
        const size_t length = strlen(row[i].layer), end = strlen(layer);
        if (strcmp(row[i].name, name) != 0 || length < end || strcmp(row[i].layer + length - end, layer) != 0)
            continue;
        sum.kind = row[i].kind;
        sum.calls += row[i].calls;
        sum.ns += row[i].ns;
        sum.flops += row[i].flops;
        sum.bytes += row[i].bytes;
    }
    return sum;
}

static void expect_row(const wf_profile *p, const char *name, const char *layer, int64_t calls, double flops)
{
    const wf_profile_row row = sum_of(p, name, layer);
    WF_EXPECT(row.calls == calls && row.flops == flops && row.bytes > 0 && row.ns > 0,
              "%s in %s: %lld calls, %.0f operations, %.0f bytes, %lld ns; should be %lld calls, %.0f operations", name,
              layer, (long long)row.calls, row.flops, row.bytes, (long long)row.ns, (long long)calls, flops);
}

/* A linear layer is a product forward, and one for each gradient; the first has no input gradient. */
static void counts(void)
{
    const wf_kernels *before = ctx->k;
    wf_layer *model = model_new();
    wf_optim *optim = wf_multi_node(comm, wf_sgd(model, (wf_sgd_opts){.lr = 0.1}), (wf_multi_node_opts){0});
    wf_iter *iter = batches_new();
    wf_tape *tape = wf_tape_new(ctx);
    train(model, optim, iter, tape);
    WF_EXPECT_OK(wf_profile_begin(ctx, 0));
    wf_profile *p = ctx->profile;
    WF_EXPECT_ERROR(WF_ERR_STATE, wf_profile_begin(ctx, 0));
    train(model, optim, iter, tape);
    int64_t values[100] = {0};
    if (size > 1)
        WF_EXPECT_OK(wf_allreduce_i64(comm, values, 100, WF_SUM));
    wf_profile_end(p);
    WF_EXPECT(ctx->k == before && !ctx->profile, "something is left of the profile");
    train(model, optim, iter, tape); /* counts no more */
    expect_row(p, "matmul", "/0", 2 * STEPS, 2.0 * 2 * STEPS * SAMPLES * IN * 7);
    expect_row(p, "matmul", "/2", 3 * STEPS, 2.0 * 3 * STEPS * SAMPLES * 7 * OUT);
    const wf_profile_row update = sum_of(p, "optim_update", "(optimizer)"), input = sum_of(p, "next batch", "");
    WF_EXPECT(update.calls == STEPS && update.bytes == STEPS * 3 * 4.0 * (IN * 7 + 7 + 7 * OUT + OUT),
              "%lld updates of %.0f bytes", (long long)update.calls, update.bytes);
    WF_EXPECT(input.calls == STEPS && input.kind == WF_PROFILE_INPUT, "%lld waits", (long long)input.calls);
    const wf_profile_row sum = sum_of(p, "allreduce_i64", "");
    WF_EXPECT(size == 1 || (sum.kind == WF_PROFILE_COLLECTIVE && sum.calls >= 1 && sum.bytes >= 800),
              "%lld sums of %.0f bytes", (long long)sum.calls, sum.bytes);
    wf_profile_free(p);
    wf_tape_free(tape);
    wf_iter_free(iter);
    wf_optim_free(optim);
    wf_layer_free(model);
}

/* Checks the bytes of one kernel, which reads and writes this many f32 elements. */
static void expect_bytes(const wf_profile *p, const char *name, double elements)
{
    const wf_profile_row row = sum_of(p, name, "/1");
    WF_EXPECT(row.calls == 1 && row.bytes == 4 * elements, "%s: %lld calls, %.0f bytes, should be 1 call, %.0f bytes",
              name, (long long)row.calls, row.bytes, 4 * elements);
}

/* A convolution, and a normalisation with an activation, whose backward does not read y. */
static void counts_of_images(void)
{
    enum { N = 2, C = 3, F = 5, H = 6, W = 7 };
    wf_layer *model = wf_layer_named(
        wf_sequential(ctx, WF_LAYERS(wf_conv2d(ctx, (wf_conv_opts){.in = C, .out = F, .kernel = 3, .pad = 1}),
                                     wf_batchnorm(ctx, (wf_batchnorm_opts){.channels = F, .act = WF_ACT_RELU}))),
        "net");
    wf_tape *tape = wf_tape_new(ctx);
    wf_tensor *x = wf_tensor_new(ctx, WF_F32, WF_SHAPE(N, C, H, W));
    WF_EXPECT_OK(wf_tensor_fill(x, 0.5));
    WF_EXPECT_OK(wf_profile_begin(ctx, 0));
    wf_profile *p = ctx->profile;
    WF_EXPECT_OK(wf_backward(wf_sum(wf_apply(model, wf_input(tape, x)))));
    wf_profile_end(p);
    const double y = N * F * H * W;
    expect_row(p, "conv_forward", "/0", 1, 2 * y * C * 9);
    expect_row(p, "conv_backward_filter", "/0", 1, 2 * y * C * 9);
    WF_EXPECT(sum_of(p, "conv_backward_data", "/0").calls == 0, "the gradient of an input");
    expect_bytes(p, "norm_forward", 2 * y);
    expect_bytes(p, "norm_backward_stats", 2 * y);
    expect_bytes(p, "norm_backward", 3 * y);
    wf_profile_free(p);
    wf_tensor_free(x);
    wf_tape_free(tape);
    wf_layer_free(model);
}

/* --- Time line ---------------------------------------------------------------------------------------------------- */

enum { BARRIERS = 5, RANKS = 8 };

/* Reads the barriers of all ranks from the file; the number of events. */
static int read_barriers(const char *path, double start[RANKS][BARRIERS], double end[RANKS][BARRIERS])
{
    char line[1024];
    int events = 0, n[RANKS] = {0};
    FILE *file = fopen(path, "r");
    WF_EXPECT(file, "%s is not there", path);
    while (file && fgets(line, sizeof line, file)) {
        int pid, tid;
        double ts, dur;
        const char *at = strstr(line, "\"ph\": \"X\"");
        if (!at || sscanf(at, "\"ph\": \"X\", \"pid\": %d, \"tid\": %d, \"ts\": %lf, \"dur\": %lf", &pid, &tid, &ts,
                          &dur) != 4)
            continue;
        events++;
        if (strncmp(line, "{\"name\": \"barrier\"", 18) != 0 || pid >= RANKS || n[pid] == BARRIERS)
            continue;
        start[pid][n[pid]] = ts;
        end[pid][n[pid]++] = ts + dur;
    }
    if (file)
        fclose(file);
    for (int r = 0; size > 1 && r < size; r++)
        WF_EXPECT(n[r] == BARRIERS, "rank %d has %d barriers", r, n[r]);
    return events;
}

/* Rank r's clock is 7 r seconds ahead. No rank leaves a barrier before the last one has come to it. */
static void clocks_are_aligned(void)
{
    double start[RANKS][BARRIERS] = {{0}}, end[RANKS][BARRIERS] = {{0}};
    wf_profile_clock_move((int64_t)rank * 7000000000);
    wf_profiler *profiler = wf_profiler_open(comm, (wf_profiler_opts){.timeline = in_folder("line.json")});
    wf_tensor *x = wf_tensor_new(ctx, WF_F32, WF_SHAPE(100));
    WF_EXPECT_OK(wf_tensor_fill(x, 1));
    for (int i = 0; i < BARRIERS; i++) {
        if (rank == i % size)
            test_sleep_ms(3);
        WF_EXPECT_OK(wf_barrier(comm));
    }
    WF_EXPECT_OK(wf_profiler_close(profiler));
    wf_profile_clock_move(0);
    wf_tensor_free(x);
    if (rank > 0)
        return;
    const int events = read_barriers(in_folder("line.json"), start, end);
    WF_EXPECT(events > 0, "the time line is empty");
    for (int i = 0; i < BARRIERS; i++) {
        double latest = 0, earliest = INFINITY;
        for (int r = 0; r < size; r++) {
            latest = fmax(latest, start[r][i]);
            earliest = fmin(earliest, end[r][i]);
        }
        WF_EXPECT(size == 1 || latest < earliest + 2000, "barrier %d is entered %.0f us after a rank left it", i,
                  latest - earliest);
    }
}

/* The events of one kind and rank, and the sums of their numbers: NaN where one lacks its number. */
typedef struct line_sums {
    int events;
    double bytes, sent, flops;
} line_sums;

static double number_behind(const char *line, const char *key)
{
    const char *at = strstr(line, key);
    return at ? strtod(at + strlen(key), NULL) : NAN;
}

static line_sums line_sums_of(const char *path, const char *kind, int of)
{
    char line[1024], begins[64];
    line_sums sums = {0};
    snprintf(begins, sizeof begins, "\"cat\": \"%s\", \"ph\": \"X\", \"pid\": %d,", kind, of);
    FILE *file = fopen(path, "r");
    WF_EXPECT(file, "%s is not there", path);
    while (file && fgets(line, sizeof line, file)) {
        if (!strstr(line, begins))
            continue;
        sums.events++;
        sums.bytes += number_behind(line, "\"bytes\": ");
        sums.sent += number_behind(line, "\"sent\": ");
        sums.flops += number_behind(line, "\"flops\": ");
    }
    if (file)
        fclose(file);
    return sums;
}

/* Steps in a file that is JSON: products with their operations, sums of gradients with what they sent, waits. */
static void timeline_of_steps(void)
{
    wf_layer *model = model_new();
    wf_optim *optim = wf_multi_node(comm, wf_sgd(model, (wf_sgd_opts){.lr = 0.1}), (wf_multi_node_opts){0});
    wf_iter *iter = batches_new();
    wf_tape *tape = wf_tape_new(ctx);
    char path[256], command[512];
    snprintf(path, sizeof path, "%s", in_folder("steps.json"));
    wf_profiler *profiler = wf_profiler_open(comm, (wf_profiler_opts){.timeline = path});
    train(model, optim, iter, tape);
    WF_EXPECT_OK(wf_profiler_close(profiler));
    wf_tape_free(tape);
    wf_iter_free(iter);
    wf_optim_free(optim);
    wf_layer_free(model);
    for (int r = 0; rank == 0 && r < size; r++) {
        const line_sums kernels = line_sums_of(path, "kernel", r), sums = line_sums_of(path, "collective", r);
        const double flops = 2.0 * STEPS * SAMPLES * (2 * IN * 7 + 3 * 7 * OUT);
        const double gradients = size > 1 ? STEPS * 4.0 * (IN * 7 + 7 + 7 * OUT + OUT) : 0;
        WF_EXPECT(kernels.bytes > 0 && kernels.flops == flops, "rank %d: kernels of %.0f operations, %.0f bytes", r,
                  kernels.flops, kernels.bytes);
        WF_EXPECT(sums.bytes >= gradients && (size > 1 ? sums.sent > 0 : sums.events == 0),
                  "rank %d: %d collectives of %.0f bytes, %.0f sent; gradients are %.0f", r, sums.events, sums.bytes,
                  sums.sent, gradients);
        const int waits = line_sums_of(path, "input", r).events;
        WF_EXPECT(waits == STEPS, "rank %d: %d waits for batches", r, waits);
    }
    snprintf(command, sizeof command, "! command -v python3 >/dev/null || python3 -m json.tool %s >/dev/null", path);
    WF_EXPECT(rank > 0 || system(command) == 0, "%s is not JSON", path);
}

/* --- Table -------------------------------------------------------------------------------------------------------- */

typedef struct steps {
    wf_layer *model;
    wf_tape *tape;
    wf_tensor *x;
} steps;

static wf_status forward(wf_trainer *trainer, void *user)
{
    steps *s = user;
    WF_EXPECT_OK(wf_check(wf_apply(s->model, wf_input(s->tape, s->x))));
    return wf_tape_reset(s->tape);
}

/* A row each for planning, tuning and capturing, with milliseconds and a share. */
static bool has_setup(const char *shown)
{
    static const char *const words[] = {"\nplanning ", "\ntuning ", "\ncapturing "};
    for (int i = 0; i < 3; i++) {
        double ms = -1, share = -1;
        const char *row = strstr(shown, words[i]);
        if (!row || sscanf(row + strlen(words[i]), "%lf %lf%%", &ms, &share) != 2 || ms < 0 || share < 0 ||
            share > 100 || (i > 0 && ms > 0))
            return false;
    }
    return true;
}

/* By the trainer, into a pipe. Rates and shares of a machine that hardly runs are rounded to 0 or 100. */
static void table_of_a_run(void)
{
    static char text[1 << 14];
    int ends[2];
    WF_EXPECT(pipe(ends) == 0, "no pipe");
    steps s = {.model = model_new(), .tape = wf_tape_new(ctx)};
    s.x = wf_tensor_new(ctx, WF_F32, WF_SHAPE(SAMPLES, IN));
    WF_EXPECT_OK(wf_tensor_fill(s.x, 1));
    wf_trainer *t = wf_trainer_new(comm, forward, &s, (wf_trainer_opts){.iterations = 4, .profile = ends[1]});
    WF_EXPECT_OK(wf_trainer_run(t));
    wf_trainer_free(t);
    close(ends[1]);
    const ssize_t bytes = read(ends[0], text, sizeof text - 1);
    close(ends[0]);
    text[bytes > 0 ? bytes : 0] = '\0';
    long long calls = -1;
    double ms, flops, rate, share, peak;
    const char *row = strstr(text, "\nmatmul ");
    const int found =
        row ? sscanf(row, " matmul %lld %lf %lf %lf %lf%% %lf%%", &calls, &ms, &flops, &rate, &share, &peak) : 0;
    const bool good = found == 6 && calls == 8 && ms >= 0 && flops >= 0 && share >= 0 && share <= 100 && peak >= 0 &&
                      strstr(text, "/0 ") && strstr(text, "GFLOP/s in products") && has_setup(text);
    WF_EXPECT(rank == 0 ? good : !*text, "rank %d shows:\n%s", rank, text);
    wf_tensor_free(s.x);
    wf_tape_free(s.tape);
    wf_layer_free(s.model);
}

static void misuse(void)
{
    WF_EXPECT(!wf_profiler_open(comm, (wf_profiler_opts){.events = -1}), "a negative number of events");
    wf_error_clear();
    wf_profiler *profiler = wf_profiler_open(comm, (wf_profiler_opts){.timeline = in_folder("no/such/folder")});
    WF_EXPECT(!wf_profiler_open(comm, (wf_profiler_opts){0}), "two profilers");
    wf_error_clear();
    WF_EXPECT_ERROR(WF_ERR_IO, wf_profiler_close(profiler));
    WF_EXPECT_OK(wf_barrier(comm));
    WF_EXPECT(!ctx->profile, "something is left of the profile");
}

static uintptr_t slot_at(const wf_kernels *table, size_t at)
{
    uintptr_t slot;
    memcpy(&slot, (const char *)table + at, sizeof slot);
    return slot;
}

/* A slot that computes and that core/profile_kernels.c forgets would be missing in all sums. */
static void every_slot_is_timed(void)
{
    const wf_kernels *device = ctx->k;
    WF_EXPECT_OK(wf_profile_begin(ctx, 0));
    for (size_t at = offsetof(wf_kernels, copy); at < offsetof(wf_kernels, range_push); at += sizeof(void *)) {
        const bool timed = slot_at(ctx->k, at) != slot_at(device, at);
        /* These do next to nothing. */
        const bool should = at != offsetof(wf_kernels, loss_scale) && at != offsetof(wf_kernels, clip_scale) &&
                            at != offsetof(wf_kernels, step_verdict);
        WF_EXPECT(timed == should, "slot %zu of wf_kernels, counted from copy, is %stimed",
                  (at - offsetof(wf_kernels, copy)) / sizeof(void *), timed ? "" : "not ");
    }
    wf_profile *profile = ctx->profile;
    wf_profile_end(profile);
    WF_EXPECT(ctx->k == device, "the table of the profile is still in use");
    wf_profile_free(profile);
}

static int on_ranks(int argc, char **argv)
{
    if (!ranks_open("flat"))
        return 1;
    folder_make();
    const int failed = test_main(argc, argv,
                                 (test_case[]){{"counts", counts},
                                               {"counts_of_images", counts_of_images},
                                               {"every_slot_is_timed", every_slot_is_timed},
                                               {"clocks_are_aligned", clocks_are_aligned},
                                               {"timeline_of_steps", timeline_of_steps},
                                               {"table_of_a_run", table_of_a_run},
                                               {"misuse", misuse},
                                               {0}});
    folder_remove();
    return ranks_close(failed);
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
