/* The DCGAN step beside what oneDNN's bare primitives of its shapes take together: convolutions, transposed ones,
 * linear layers, normalisation with its ReLU, activations, in every direction that the step needs, as often as it needs
 * them.
 *
 *     bench_bare --channels 128 --batch 64 [--compute bf16] [--list]
 *
 * Each primitive runs by itself, on channels-last data in the caches and with filters in oneDNN's own form, and the
 * least of its times counts, as does the least time of a step. What the step has besides is counted for Weft alone:
 * noise in the discriminator, losses, sums of gradients, filters in oneDNN's form, the optimizers' updates.
 */
#include "tests/bench/bench.h"
#include "tests/bench/bench_gan.h"
#include "tests/bench/bench_primitive.h"

#include <string.h>

enum { ROWS_MOST = 128 };

typedef struct settings {
    int64_t batch, channels, iterations, latent, warmup;
    bool list;
    const char *compute;
} settings;

/* A primitive, and how often a step runs it. */
typedef struct row {
    bench_primitive what;
    int times;
    const char *of; /* which network */
} row;

typedef struct table {
    row rows[ROWS_MOST];
    int count;
} table;

static void put(table *t, const char *of, int times, bench_primitive what)
{
    if (t->count == ROWS_MOST)
        example_abort("more than %d rows", ROWS_MOST);
    t->rows[t->count++] = (row){what, times, of};
}

/* A layer's three directions. */
static void put_all(table *t, const char *of, const int times[3], bench_primitive what)
{
    for (int way = BENCH_FORWARD; way <= BENCH_FILTER; way++) {
        what.way = (bench_way)way;
        if (times[way] > 0)
            put(t, of, times[way], what);
    }
}

/* It sees real images, generated ones, and those again in the generator's step, which wants no gradient of filters. The
 * first layer's input has a gradient in the generator's step alone. */
static void put_discriminator(table *t, int64_t n, int64_t ch)
{
    const int64_t wide[] = {3, ch / 8, ch / 4, ch / 4, ch / 2, ch / 2, ch, ch}, side[] = {32, 32, 16, 16, 8, 8, 4, 4};
    for (int i = 0; i < 7; i++) {
        const bool halves = i % 2 == 1;
        const int times[] = {3, i == 0 ? 1 : 3, 2}, both[] = {3, 3, 0};
        put_all(t, "D", times,
                (bench_primitive){.op = BENCH_CONV,
                                  .n = n,
                                  .c = wide[i],
                                  .f = wide[i + 1],
                                  .h = side[i],
                                  .k = halves ? 4 : 3,
                                  .s = halves ? 2 : 1});
        const bench_op after = i == 0 ? BENCH_LEAKY : BENCH_NORM;
        put_all(t, "D", both, (bench_primitive){.op = after, .n = n, .c = wide[i + 1], .h = side[i + 1]});
    }
    put_all(t, "D", (const int[]){3, 3, 2},
            (bench_primitive){.op = BENCH_LINEAR, .n = n, .c = 16 * ch, .f = 1, .h = 1});
}

static void put_generator(table *t, int64_t n, int64_t ch, int64_t latent)
{
    const int once[] = {1, 1, 1}, both[] = {1, 1, 0};
    put_all(t, "G", (const int[]){1, 0, 1},
            (bench_primitive){.op = BENCH_LINEAR, .n = n, .c = latent, .f = 16 * ch, .h = 1});
    put_all(t, "G", both, (bench_primitive){.op = BENCH_NORM, .n = n, .c = 16 * ch, .h = 1});
    for (int i = 0; i < 3; i++) {
        const int64_t out = ch >> (i + 1), side = 8 << i;
        put_all(t, "G", once,
                (bench_primitive){.op = BENCH_DECONV, .n = n, .c = out, .f = ch >> i, .h = side, .k = 4, .s = 2});
        put_all(t, "G", both, (bench_primitive){.op = BENCH_NORM, .n = n, .c = out, .h = side});
    }
    put_all(t, "G", once, (bench_primitive){.op = BENCH_DECONV, .n = n, .c = 3, .f = ch / 8, .h = 32, .k = 3, .s = 1});
    put_all(t, "G", both, (bench_primitive){.op = BENCH_SIGMOID, .n = n, .c = 3, .h = 32});
}

static double bare_seconds(const table *t, bool bf16, bool list)
{
    static const char *const ops[] = {"convolution", "transposed", "linear", "norm + ReLU", "leaky ReLU", "sigmoid"};
    static const char *const ways[] = {"forward", "data", "filter"};
    double sum = 0;
    for (int i = 0; i < t->count; i++) {
        const bench_primitive *const p = &t->rows[i].what;
        const double each = bench_primitive_seconds(p, bf16);
        sum += t->rows[i].times * each;
        if (list)
            printf("%s %-12s %-8s %4lld %4lld %3lldx%-3lld k%lld s%lld %8.3f ms x %d\n", t->rows[i].of, ops[p->op],
                   ways[p->way], (long long)p->c, (long long)p->f, (long long)p->h, (long long)p->h, (long long)p->k,
                   (long long)p->s, 1e3 * each, t->rows[i].times);
    }
    return sum;
}

static settings read_settings(int argc, char **argv)
{
    settings s = {.batch = 64, .channels = 128, .iterations = 10, .latent = 100, .warmup = 3};
    const example_option options[] = {
        {"batch", "N", "images", .number = &s.batch, .most = EXAMPLE_MOST_SIZE, .least = 1},
        {"channels", "N", "width", .number = &s.channels, .most = EXAMPLE_MOST_SIZE, .least = 8},
        {"iterations", "N", "steps that are timed", .number = &s.iterations, .most = EXAMPLE_MOST_COUNT, .least = 1},
        {"warmup", "N", "steps before", .number = &s.warmup, .most = EXAMPLE_MOST_COUNT},
        {"latent", "N", "inputs of the generator", .number = &s.latent, .most = EXAMPLE_MOST_SIZE, .least = 1},
        {"list", NULL, "every primitive, with its time", .flag = &s.list},
        EXAMPLE_COMPUTE(&s.compute),
        {0}};
    example_options(argc, argv, "The DCGAN step beside the sum of oneDNN's primitives, on one process.", options);
    return s;
}

/* The least time of a step; seconds. */
static double step_seconds(const settings *s, bench_gan *gan)
{
    double best = 1e9;
    for (int64_t i = -s->warmup; i < s->iterations; i++) {
        const double start = bench_seconds();
        WF_MUST(bench_gan_step(gan));
        const double took = bench_seconds() - start;
        best = i >= 0 && took < best ? took : best;
    }
    return best;
}

int main(int argc, char **argv)
{
    const settings s = read_settings(argc, argv);
    wf_comm *comm = wf_comm_open(&argc, &argv, "flat", (wf_ctx_opts){.device = "cpu"});
    WF_MUST(wf_check(comm));
    example_compute(comm, s.compute);
    wf_ctx *ctx = wf_comm_ctx(comm);
    wf_tape *tape = wf_tape_new(ctx);
    wf_tensor *images = wf_tensor_new(ctx, WF_F32, WF_SHAPE(s.batch, 3, 32, 32));
    WF_MUST(wf_tensor_fill(images, 0.5));
    bench_gan gan = bench_gan_new(comm, tape, images, s.channels, s.latent, false);
    table t = {.count = 0};
    put_discriminator(&t, s.batch, s.channels);
    put_generator(&t, s.batch, s.channels, s.latent);
    const bool bf16 = s.compute && strcmp(s.compute, "bf16") == 0;
    const double before = step_seconds(&s, &gan), bare = bare_seconds(&t, bf16, s.list), after = step_seconds(&s, &gan);
    const double step = before < after ? before : after;
    printf("DCGAN %lld channels, batch %lld, %s, %d threads: step %.1f ms, bare primitives %.1f ms, share %.0f %%\n",
           (long long)s.channels, (long long)s.batch, bf16 ? "bf16" : "f32", wf_ctx_threads(ctx), 1e3 * step,
           1e3 * bare, 100 * bare / step);
    bench_gan_free(&gan);
    wf_tensor_free(images);
    wf_tape_free(tape);
    WF_MUST(wf_comm_close(comm));
    return 0;
}
