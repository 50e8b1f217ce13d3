/* How fast the ranks of mpirun sum gradients: by every communicator's name, by plain MPI_Allreduce, and by wf_allreduce
 * on a tensor (communicator "auto"), in one run that takes them in turn. Medians over repetitions of the slowest rank's
 * time. "copy" is what memory allows for long buffers in a node: all ranks copy as many bytes at the same time, since a
 * sum reads and writes each byte of every rank once at least.
 *
 *     mpirun -np 2 allreduce_bench --out allreduce
 *
 * allreduce/allreduce-2.csv has all numbers, allreduce/allreduce-2.svg shows them. Algorithm bandwidth is n / t; bus
 * bandwidth is 2 n (P-1) / P / t, what every rank must send and receive at least.
 *
 * It also shows Weft on an MPI communicator of the program's own, and the sum of a buffer without an optimizer.
 */
#include "examples/common.h"
#include "examples/plot.h"

#include <weft/comm/reducer_author.h>
#include <weft/core/tensor_author.h>

#include <errno.h>
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

#define MIB        ((int64_t)1 << 20)
#define MOST_BYTES ((int64_t)1 << 30) /* in all repetitions of a size, where that leaves enough of them */
#define LEAST_REPS 7
#define SEGMENTS   4

static const char *const way[] = {"MPI_Allreduce", "wf_allreduce",    "naive",       "flat",
                                  "hierarchical",  "two_dimensional", "single_node", "non_cuda_aware",
                                  "pure_nccl",     "dummy",           "auto",        "copy"};

enum { MPI_WAY, TENSOR_WAY, WAYS = sizeof way / sizeof *way, COPY_WAY = WAYS - 1 };

typedef struct settings {
    const char *out;
    int64_t least, most, repeat;
} settings;

typedef struct bench {
    wf_comm *comm[WAYS]; /* NULL: MPI's way, the copy, and names that cannot be here */
    float *data, *copy;
    wf_tensor *tensor; /* the first elements of data */
    double *seconds[WAYS];
    int rank, size, nodes;
    FILE *csv; /* on rank 0 */
} bench;

static settings read_settings(int argc, char **argv)
{
    settings s = {.out = "allreduce", .least = 1024, .most = 256 * MIB, .repeat = 101};
    const example_option table[] = {
        {"least", "BYTES", "the smallest buffer", .number = &s.least, .most = EXAMPLE_MOST_COUNT,
         .least = SEGMENTS * (int64_t)sizeof(float)},
        {"most", "BYTES", "the largest buffer; there are four times as many bytes from size to size", .number = &s.most,
         .most = EXAMPLE_MOST_COUNT, .least = SEGMENTS * (int64_t)sizeof(float)},
        {"repeat", "N", "repetitions of small sizes; large ones have fewer", .number = &s.repeat, .most = 1000000,
         .least = 1},
        {"out", "DIR", "folder of the results", .text = &s.out},
        {0}};
    example_options(argc, argv, "Measures the sum of f32 gradients over the ranks of mpirun.", table);
    return s;
}

static bool runs(const bench *b, int w)
{
    return w == MPI_WAY || w == COPY_WAY || b->comm[w];
}

static void open_all(bench *b, const settings *s)
{
    const MPI_Comm world = MPI_COMM_WORLD;
    b->data = calloc((size_t)s->most, 1);
    b->copy = calloc((size_t)s->most, 1);
    for (int w = 0; w < WAYS; w++) {
        b->seconds[w] = calloc((size_t)s->repeat + LEAST_REPS, sizeof **b->seconds);
        if (!b->data || !b->copy || !b->seconds[w])
            example_abort("out of memory for buffers of %lld bytes", (long long)s->most);
    }
    for (int w = 1; w < COPY_WAY; w++) {
        const char *name = w == TENSOR_WAY ? "auto" : way[w];
        b->comm[w] = wf_comm_from_mpi(&world, name, (wf_ctx_opts){.device = "cpu", .threads = 1});
        if (!b->comm[w] && b->rank == 0)
            fprintf(stderr, "%s is left out: %s\n", way[w], wf_error_message());
        wf_error_clear();
        if (b->comm[w])
            b->nodes = wf_comm_inter_size(b->comm[w]);
    }
}

/* One sum, as if of the gradients of SEGMENTS parameters; the time of the slowest rank. */
static double sum(const bench *b, int w, int64_t count)
{
    const int64_t offset[SEGMENTS + 1] = {0, count / 8, count / 4, count / 2, count};
    const wf_call job = {.out = b->data, .dtype = WF_F32, .parts = SEGMENTS, .part = offset};
    double seconds;
    MPI_Barrier(MPI_COMM_WORLD);
    const double start = MPI_Wtime();
    if (w == MPI_WAY)
        MPI_Allreduce(MPI_IN_PLACE, b->data, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    else if (w == COPY_WAY)
        memcpy(b->copy, b->data, (size_t)count * sizeof *b->data);
    else if (w == TENSOR_WAY)
        WF_MUST(wf_allreduce(b->comm[w], b->tensor, b->tensor, WF_SUM));
    else
        WF_MUST(wf_reducer_sum(b->comm[w], &job));
    const double mine = MPI_Wtime() - start;
    MPI_Allreduce(&mine, &seconds, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return seconds;
}

/* The first time of a size, which also shows that the sum is one. */
static void try(const bench *b, int w, int64_t count)
{
    const bool sums = w != COPY_WAY && strcmp(way[w], "dummy") != 0;
    const float should = (float)(sums ? b->size * (b->size + 1) / 2 : b->rank + 1);
    b->data[0] = b->data[count - 1] = (float)(b->rank + 1);
    sum(b, w, count);
    if (b->data[0] != should || b->data[count - 1] != should)
        example_abort("%s: the sum over %d ranks is %g, should be %g", way[w], b->size, (double)b->data[count - 1],
                      (double)should);
    b->data[0] = b->data[count - 1] = 0;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void report(const bench *b, int w, int64_t bytes, double seconds, double mpi)
{
    const double algorithm = (double)bytes / seconds * 1e-9, bus = algorithm * 2 * (b->size - 1) / b->size;
    if (b->rank > 0)
        return;
    printf("%12lld  %-16s %12.1f %10.3f %10.3f %8.2f\n", (long long)bytes, way[w], seconds * 1e6, algorithm, bus,
           mpi / seconds);
    fprintf(b->csv, "%s,%d,%d,%lld,%.3f,%.4f,%.4f,%.3f\n", way[w], b->size, b->nodes, (long long)bytes, seconds * 1e6,
            algorithm, bus, mpi / seconds);
}

static void measure(bench *b, int64_t bytes, int64_t repeat)
{
    const int64_t count = bytes / (int64_t)sizeof *b->data, fit = MOST_BYTES / bytes;
    const int64_t few = repeat < LEAST_REPS ? repeat : LEAST_REPS;
    const int64_t reps = fit > repeat ? repeat : fit < few ? few : fit;
    b->tensor = wf_tensor_wrap(wf_comm_ctx(b->comm[TENSOR_WAY]), WF_F32, WF_SHAPE(count), b->data, (wf_wrap_opts){0});
    if (!b->tensor)
        example_abort("%s", wf_error_message());
    for (int w = 0; w < WAYS; w++)
        if (runs(b, w))
            try(b, w, count);
    for (int64_t i = 0; i < reps; i++)
        for (int w = 0; w < WAYS; w++)
            if (runs(b, w))
                b->seconds[w][i] = sum(b, w, count);
    for (int w = 0; w < WAYS; w++)
        qsort(b->seconds[w], (size_t)reps, sizeof **b->seconds, ascending);
    for (int w = 0; w < WAYS; w++)
        if (runs(b, w))
            report(b, w, bytes, b->seconds[w][reps / 2], b->seconds[MPI_WAY][reps / 2]);
    wf_tensor_free(b->tensor);
}

/* Four times as much each time; and 100 MiB, the gradients of a ResNet-50. */
static void measure_all(bench *b, const settings *s)
{
    if (b->rank == 0)
        printf("%d rank%s on %d node%s\n%12s  %-16s %12s %10s %10s %8s\n", b->size, b->size == 1 ? "" : "s", b->nodes,
               b->nodes == 1 ? "" : "s", "bytes", "communicator", "us", "alg GB/s", "bus GB/s", "x MPI");
    for (int64_t bytes = s->least; bytes <= s->most; bytes *= 4) {
        measure(b, bytes, s->repeat);
        if (bytes < 100 * MIB && 4 * bytes > 100 * MIB && s->most >= 100 * MIB)
            measure(b, 100 * MIB, s->repeat);
    }
}

/* One panel: a curve of every name. */
static void panel(const bench *b, FILE *script, const char *csv, const char *column, const char *what)
{
    fprintf(script, "set ylabel '%s'\nplot \\\n", what);
    for (int w = 0; w < WAYS; w++)
        if (runs(b, w) && strcmp(way[w], "dummy") != 0)
            fprintf(script,
                    "'%s' using (strcol('communicator') eq '%s' ? column('bytes') : NaN):(column('%s')) with "
                    "linespoints title '%s' noenhanced, \\\n",
                    csv, way[w], column, way[w]);
    fprintf(script, "NaN notitle\n");
}

static bool draw(const bench *b, const char *csv, const char *script, const char *picture)
{
    FILE *file = fopen(script, "w");
    if (!file)
        example_abort("%s: cannot write: %s", script, strerror(errno));
    fprintf(file,
            "set terminal svg size 1200,520 background 'white'\nset datafile separator ','\n"
            "set datafile columnheaders\nset datafile missing NaN\nset grid\nset key left top\nset logscale xy\n"
            "set xlabel 'bytes'\nset multiplot layout 1,2 title 'Sum of f32 gradients over %d rank%s, %d node%s'\n",
            b->size, b->size == 1 ? "" : "s", b->nodes, b->nodes == 1 ? "" : "s");
    panel(b, file, csv, "bus_GB_per_s", "bus bandwidth, GB/s");
    panel(b, file, csv, "microseconds", "microseconds");
    if (fclose(file) != 0)
        example_abort("%s: cannot write: %s", script, strerror(errno));
    return script_draw(script, picture) == 0;
}

static FILE *create(const bench *b, const settings *s, const char *name)
{
    int w = 1;
    while (!b->comm[w])
        w++;
    FILE *csv = example_create(b->comm[w], s->out, name);
    if (csv)
        fprintf(csv,
                "communicator,ranks,nodes,bytes,microseconds,algorithm_GB_per_s,bus_GB_per_s,times_as_fast_as_mpi\n");
    return csv;
}

static void finish(bench *b, const settings *s, const char *csv)
{
    char script[64], picture[64];
    snprintf(script, sizeof script, "allreduce-%d.gnuplot", b->size);
    snprintf(picture, sizeof picture, "allreduce-%d.svg", b->size);
    if (b->rank > 0)
        return;
    if (fclose(b->csv) != 0)
        example_abort("%s: cannot write: %s", csv, strerror(errno));
    const bool drawn = draw(b, csv, example_path(s->out, script), example_path(s->out, picture));
    printf("look at %s and %s\n", csv, example_path(s->out, drawn ? picture : script));
}

int main(int argc, char **argv)
{
    const settings s = read_settings(argc, argv);
    bench b = {0};
    char name[64];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &b.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &b.size);
    open_all(&b, &s);
    snprintf(name, sizeof name, "allreduce-%d.csv", b.size);
    b.csv = create(&b, &s, name);
    measure_all(&b, &s);
    finish(&b, &s, example_path(s.out, name));
    for (int w = 0; w < WAYS; w++) {
        WF_MUST(wf_comm_close(b.comm[w]));
        free(b.seconds[w]);
    }
    free(b.data);
    free(b.copy);
    MPI_Finalize();
    return 0;
}
