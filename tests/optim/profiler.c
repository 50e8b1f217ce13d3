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
        wf_var *loss = wf_softmax_cross_entropy(wf_apply(model, wf_input(tape, b.x)), b.labels);
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
    wf_optim *optim = wf_multi_node(comm, wf_sgd(model, (wf_sgd_opts){.lr = 0.1}));
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
            usleep(3000);
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

/* By the trainer, into a pipe. */
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
    const bool good = found == 6 && calls == 8 && ms >= 0 && flops > 0 && share > 0 && share < 100 && peak > 0 &&
                      strstr(text, "/0 ") && strstr(text, "GFLOP/s in products");
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
        const bool should = at != offsetof(wf_kernels, loss_scale) && at != offsetof(wf_kernels, clip_scale);
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
                                               {"every_slot_is_timed", every_slot_is_timed},
                                               {"clocks_are_aligned", clocks_are_aligned},
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
