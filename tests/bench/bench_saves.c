/* Saving 400 MB from the ranks of a job: against plain writing and fsync of the same bytes by one process; and what an
 * asynchronous save takes from a step, against a copy in memory of what a rank writes: bench_saves FOLDER [ROUNDS].
 * Runs alternate; the table shows medians and their ratio. */

#include "layers/layers.h"
#include "optim/checkpoint.h"
#include "tests/bench/bench.h"
#include "tests/bench/bench_usage.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { SIDE = 10000, MOST = 99 };

typedef struct bench {
    wf_comm *comm;
    const char *folder;
    size_t bytes; /* of the model */
    unsigned char *from, *to;
    wf_checkpoint *waits, *goes_on;
} bench;

static wf_var *no_forward(wf_layer *self, void *user, wf_var *x)
{
    return x;
}

static double since(bench *b, double start)
{
    WF_MUST(wf_barrier(b->comm));
    return bench_seconds() - start;
}

static double begin(bench *b)
{
    WF_MUST(wf_barrier(b->comm));
    return bench_seconds();
}

/* On rank 0, in one piece after the other. */
static double plain(bench *b)
{
    enum { PIECE = 1 << 23 };
    char path[4096];
    snprintf(path, sizeof path, "%s/plain", b->folder);
    const double start = begin(b);
    if (wf_comm_rank(b->comm) == 0) {
        const int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
        for (size_t at = 0; at < b->bytes; at += PIECE) {
            const size_t n = b->bytes - at < PIECE ? b->bytes - at : PIECE;
            if (write(file, b->from + at, n) != (ssize_t)n)
                abort();
        }
        if (fsync(file) != 0 || close(file) != 0)
            abort();
    }
    const double seconds = since(b, start);
    if (wf_comm_rank(b->comm) == 0)
        unlink(path);
    return seconds;
}

static double saved(bench *b)
{
    const double start = begin(b);
    WF_MUST(wf_checkpoint_save(b->waits, 1));
    return since(b, start);
}

static double copied(bench *b)
{
    const double start = begin(b);
    memcpy(b->to, b->from, b->bytes / (size_t)wf_comm_size(b->comm));
    return since(b, start);
}

/* The time of the call; then the write is waited for. */
static double stalled(bench *b)
{
    bool leave;
    const int64_t before = wf_checkpoint_generation(b->goes_on);
    const double start = begin(b);
    WF_MUST(wf_checkpoint_save(b->goes_on, 1));
    const double seconds = since(b, start);
    while (wf_checkpoint_generation(b->goes_on) == before) {
        usleep(1000);
        WF_MUST(wf_checkpoint_step(b->goes_on, 1, &leave));
    }
    return seconds;
}

static wf_checkpoint *open_saves(bench *b, wf_layer *model, const char *name, bool async)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", b->folder, name);
    wf_checkpoint *saves = wf_checkpoint_open(b->comm, path, (wf_checkpoint_opts){.keep = 1, .async = async});
    WF_MUST(wf_checkpoint_add_model(saves, "model", model));
    return saves;
}

static void measure(bench *b, int rounds)
{
    double (*const what[4])(bench *) = {plain, saved, copied, stalled};
    double seconds[4][MOST], m[4];
    for (int r = -1; r < rounds; r++)
        for (int k = 0; k < 4; k++) {
            const double s = what[k](b);
            seconds[k][r < 0 ? 0 : r] = s;
        }
    for (int k = 0; k < 4; k++)
        m[k] = bench_median(seconds[k], rounds);
    if (wf_comm_rank(b->comm) != 0)
        return;
    const double mb = (double)b->bytes / 1e6;
    printf("%d ranks, %.0f MB, medians of %d\n", wf_comm_size(b->comm), mb, rounds);
    printf("write and fsync  %7.3f s  %6.0f MB/s\n", m[0], mb / m[0]);
    printf("save             %7.3f s  %6.0f MB/s  %.2f times that (at most 1.2)\n", m[1], mb / m[1], m[1] / m[0]);
    printf("copy in memory   %7.3f s\n", m[2]);
    printf("stall of a step  %7.3f s  %.2f times that (at most 1.2)\n", m[3], m[3] / m[2]);
}

int main(int argc, char **argv)
{
    bench_usage(argc, argv, 2, NULL, "mpirun -np N bench_saves FOLDER [ROUNDS]");
    const int rounds = (int)bench_number(argc, argv, 2, "ROUNDS", 1, MOST, 5);
    wf_comm *comm = wf_comm_open(&argc, &argv, "auto", (wf_ctx_opts){0});
    WF_MUST(wf_check(comm));
    if (argc < 2) {
        fprintf(stderr, "bench_saves: no FOLDER is named; see bench_saves --help\n");
        return 2;
    }
    wf_ctx *ctx = wf_comm_ctx(comm);
    bench b = {.comm = comm, .folder = argv[1], .bytes = (size_t)SIDE * SIDE * sizeof(float)};
    wf_layer *model = wf_module(ctx, no_forward, NULL);
    wf_layer *fc =
        wf_module_add(model, "fc", wf_linear(ctx, (wf_linear_opts){.in = SIDE, .out = SIDE, .no_bias = true}));
    WF_MUST(wf_check(wf_param_value(wf_layer_param(fc, "W"))));
    b.from = malloc(b.bytes);
    b.to = malloc(b.bytes);
    if (!b.from || !b.to)
        abort();
    memset(b.from, 7, b.bytes);
    memset(b.to, 0, b.bytes);
    b.waits = open_saves(&b, model, "waits", false);
    b.goes_on = open_saves(&b, model, "goes-on", true);
    measure(&b, rounds);
    WF_MUST(wf_checkpoint_close(b.waits));
    WF_MUST(wf_checkpoint_close(b.goes_on));
    free(b.from);
    free(b.to);
    wf_layer_free(model);
    WF_MUST(wf_comm_close(comm));
    return 0;
}
