/* The DCGAN step on synthetic images: prints images per second over all ranks.
 *
 *     mpirun -np 2 --bind-to none bench_dcgan --batch 32 --channels 128 --iterations 20
 *
 * With --compare steps with plain and with synchronised batch normalisation take turns, and it prints both and the
 * ratio of their median times. With --captured the step is replayed as a whole, where the device can; with --profile a
 * table, with --timeline a file, says where the time of the timed steps goes. With --check: what the check of the
 * ranks' calls and the flight recorder take of a step.
 */
#include "tests/bench/bench.h"
#include "tests/bench/bench_gan.h"

#include <unistd.h>

enum { CHECKS = 2001 };
enum { PLAIN, SYNC, KINDS };

typedef struct settings {
    int64_t batch, channels, iterations, latent, warmup;
    bool sync_bn, compare, check, captured, memory, profile;
    const char *compute, *timeline;
} settings;

static settings read_settings(int argc, char **argv)
{
    settings s = {.batch = 64, .channels = 128, .iterations = 20, .latent = 100, .warmup = 3};
    const example_option table[] = {
        {"batch", "N", "images per rank", .number = &s.batch, .most = EXAMPLE_MOST_SIZE, .least = 1},
        {"channels", "N", "width", .number = &s.channels, .most = EXAMPLE_MOST_SIZE, .least = 8},
        {"iterations", "N", "steps that are timed", .number = &s.iterations, .most = EXAMPLE_MOST_COUNT, .least = 1},
        {"warmup", "N", "steps before", .number = &s.warmup, .most = EXAMPLE_MOST_COUNT},
        {"latent", "N", "inputs of the generator", .number = &s.latent, .most = EXAMPLE_MOST_SIZE, .least = 1},
        {"sync-bn", NULL, "statistics of the whole batch", .flag = &s.sync_bn},
        {"compare", NULL, "plain and synchronised by turns", .flag = &s.compare},
        {"captured", NULL, "replay the step", .flag = &s.captured},
        {"memory", NULL, "print the most memory in MiB, too", .flag = &s.memory},
        {"profile", NULL, "where the time went", .flag = &s.profile},
        {"timeline", "FILE", "the same over time", .text = &s.timeline},
        {"check", NULL, "the share of the checks", .flag = &s.check},
        EXAMPLE_COMPUTE(&s.compute),
        {0}};
    example_options(argc, argv, "Images per second of the DCGAN step.", table);
    return s;
}

/* Seconds from one barrier to the next. */
static double timed_step(wf_comm *comm, bench_gan *g)
{
    WF_MUST(wf_barrier(comm));
    const double start = example_seconds();
    WF_MUST(bench_gan_step(g));
    bench_finish(wf_comm_ctx(comm));
    WF_MUST(wf_barrier(comm));
    return example_seconds() - start;
}

static void compare(wf_comm *comm, const settings *s, wf_tape *tape, const wf_tensor *images)
{
    bench_gan g[KINDS] = {bench_gan_new(comm, tape, images, s->channels, s->latent, false),
                          bench_gan_new(comm, tape, images, s->channels, s->latent, true)};
    double *seconds[KINDS] = {calloc((size_t)s->iterations, sizeof(double)),
                              calloc((size_t)s->iterations, sizeof(double))};
    for (int64_t i = -s->warmup; i < s->iterations; i++)
        for (int turn = 0; turn < KINDS; turn++) {
            const int kind = (turn + (int)(i & 1)) % KINDS;
            const double t = timed_step(comm, &g[kind]);
            if (i >= 0 && seconds[kind])
                seconds[kind][i] = t;
        }
    const double all = (double)(s->batch * wf_comm_size(comm));
    for (int kind = 0; kind < KINDS; kind++)
        qsort(seconds[kind], (size_t)s->iterations, sizeof(double), bench_ascending);
    const double plain = seconds[PLAIN][s->iterations / 2], sync = seconds[SYNC][s->iterations / 2];
    if (wf_comm_rank(comm) == 0)
        printf("plain %.1f  synchronised %.1f images/s; time: median x %.4f, least x %.4f\n", all / plain, all / sync,
               sync / plain, seconds[SYNC][0] / seconds[PLAIN][0]);
    for (int kind = 0; kind < KINDS; kind++) {
        bench_gan_free(&g[kind]);
        free(seconds[kind]);
    }
}

/* A broadcast of nothing is a check and no more. Medians. */
static void check(wf_comm *comm, const settings *s, wf_tape *tape, const wf_tensor *images)
{
    bench_gan g = bench_gan_new(comm, tape, images, s->channels, s->latent, s->sync_bn);
    double *steps = calloc((size_t)s->iterations, sizeof(double)), checks[CHECKS];
    uint64_t before = 0;
    for (int64_t i = -s->warmup; i < s->iterations; i++) {
        if (i == 0)
            before = wf_comm_traffic(comm).collectives;
        const double t = timed_step(comm, &g);
        if (i >= 0 && steps)
            steps[i] = t;
    }
    const double calls =
        (double)(wf_comm_traffic(comm).collectives - before) / (double)s->iterations - 2; /* barriers */
    for (int i = 0; i < CHECKS; i++) {
        const double start = example_seconds();
        WF_MUST(wf_bcast_bytes(comm, NULL, 0, 0));
        checks[i] = example_seconds() - start;
    }
    qsort(steps, (size_t)s->iterations, sizeof(double), bench_ascending);
    qsort(checks, CHECKS, sizeof(double), bench_ascending);
    const double took = steps[s->iterations / 2], each = checks[CHECKS / 2];
    if (wf_comm_rank(comm) == 0)
        printf("step %.2f ms, %.1f collectives; a check %.2f us: %.3f %% of the step\n", took * 1e3, calls, each * 1e6,
               100 * calls * each / took);
    bench_gan_free(&g);
    free(steps);
}

static void measure(wf_comm *comm, const settings *s, wf_tape *tape, const wf_tensor *images)
{
    bench_gan g = bench_gan_new(comm, tape, images, s->channels, s->latent, s->sync_bn);
    wf_captured *captured = s->captured ? wf_capture(wf_comm_ctx(comm), bench_gan_step, &g) : NULL;
    wf_profiler *profiler = NULL;
    double start = 0;
    for (int64_t i = -s->warmup; i < s->iterations; i++) {
        if (i == 0) {
            bench_finish(wf_comm_ctx(comm));
            WF_MUST(wf_barrier(comm));
            if (s->profile || s->timeline)
                profiler = wf_profiler_open(
                    comm, (wf_profiler_opts){.table = s->profile ? STDOUT_FILENO : 0, .timeline = s->timeline});
            start = example_seconds();
        }
        WF_MUST(captured ? wf_captured_run(captured) : bench_gan_step(&g));
    }
    bench_finish(wf_comm_ctx(comm));
    WF_MUST(wf_barrier(comm));
    const double seconds = example_seconds() - start;
    if (wf_comm_rank(comm) == 0)
        bench_report((double)(s->batch * s->iterations * wf_comm_size(comm)), seconds,
                     s->memory ? wf_comm_ctx(comm) : NULL);
    if (profiler)
        WF_MUST(wf_profiler_close(profiler));
    wf_captured_free(captured);
    bench_gan_free(&g);
}

int main(int argc, char **argv)
{
    const settings s = read_settings(argc, argv);
    wf_comm *comm = wf_comm_open(&argc, &argv, "flat", (wf_ctx_opts){0});
    wf_ctx *ctx = wf_comm_ctx(comm);
    example_compute(comm, s.compute);
    wf_tape *tape = wf_tape_new(ctx);
    wf_tensor *images = wf_tensor_new(ctx, WF_F32, WF_SHAPE(s.batch, 3, 32, 32));
    WF_MUST(wf_tensor_fill(images, 0.5));
    if (s.check)
        check(comm, &s, tape, images);
    else if (s.compare)
        compare(comm, &s, tape, images);
    else
        measure(comm, &s, tape, images);
    wf_tensor_free(images);
    wf_tape_free(tape);
    WF_MUST(wf_comm_close(comm));
    return 0;
}
