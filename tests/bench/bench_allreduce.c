/* The sum of f32 gradients over all ranks, by every communicator's name and by MPI_Allreduce, in one run that takes
 * them in turn: medians over repetitions of the slowest rank's time.
 *
 *     mpirun -np 2 --bind-to none bench_allreduce [--most BYTES] [--out FOLDER]
 *
 * Algorithm bandwidth is n / t; bus bandwidth is 2 n (P-1) / P / t, what every rank must send and receive at least.
 * With a folder: allreduce.csv, and allreduce.svg where there is gnuplot.
 */
#include "comm/comm_author.h"
#include "comm/reducer_author.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WAYS  8
#define REPS  101
#define LEAST ((int64_t)1 << 10)

static const char *const names[WAYS] = {"MPI_Allreduce",   "naive",       "flat",  "hierarchical",
                                        "two_dimensional", "single_node", "dummy", "auto"};

typedef struct bench {
    wf_comm *comm[WAYS]; /* the first is MPI's */
    float *data;
    int rank, size;
    FILE *csv;
} bench;

static void open_all(bench *b)
{
    b->comm[0] = NULL;
    for (int w = 1; w < WAYS; w++) {
        const MPI_Comm world = MPI_COMM_WORLD;
        b->comm[w] = wf_comm_from_mpi(&world, names[w], (wf_ctx_opts){.device = "cpu", .threads = 1});
        if (!b->comm[w] && b->rank == 0)
            fprintf(stderr, "%s is left out: %s\n", names[w], wf_error_message());
    }
}

static double once(const bench *b, int way, int64_t count)
{
    /* As if from four parameters. */
    const int64_t offset[] = {0, count / 8, count / 4, count / 2, count};
    const wf_reduce_job job = {.flat = b->data, .dtype = WF_F32, .segments = 4, .offset = offset};
    double seconds;
    MPI_Barrier(MPI_COMM_WORLD);
    const double start = MPI_Wtime();
    if (way == 0)
        MPI_Allreduce(MPI_IN_PLACE, b->data, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    else
        WF_MUST(wf_comm_reducer(b->comm[way])->reduce(b->comm[way], &job));
    const double mine = MPI_Wtime() - start;
    MPI_Allreduce(&mine, &seconds, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return seconds;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void report(const bench *b, int way, int64_t bytes, double seconds, double mpi)
{
    const double algorithm = (double)bytes / seconds * 1e-9, bus = algorithm * 2 * (b->size - 1) / b->size;
    if (b->rank > 0)
        return;
    printf("%12lld  %-16s %12.1f %10.3f %10.3f %8.2f\n", (long long)bytes, names[way], seconds * 1e6, algorithm, bus,
           mpi / seconds);
    if (b->csv)
        fprintf(b->csv, "%s,%d,%lld,%.3f,%.4f,%.4f\n", names[way], b->size, (long long)bytes, seconds * 1e6, algorithm,
                bus);
}

static void run_size(bench *b, int64_t bytes)
{
    static double time[WAYS][REPS];
    const int64_t count = bytes / (int64_t)sizeof *b->data, fit = ((int64_t)1 << 30) / bytes;
    const int reps = fit > REPS ? REPS : fit < 7 ? 7 : (int)fit;
    for (int i = -2; i < reps; i++)
        for (int w = 0; w < WAYS; w++)
            if (w == 0 || b->comm[w])
                time[w][i < 0 ? 0 : i] = once(b, w, count);
    for (int w = 0; w < WAYS; w++)
        qsort(time[w], (size_t)reps, sizeof **time, ascending);
    for (int w = 0; w < WAYS; w++)
        if (w == 0 || b->comm[w])
            report(b, w, bytes, time[w][reps / 2], time[0][reps / 2]);
}

static FILE *create(const char *folder, const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    if (!file)
        fprintf(stderr, "cannot write %s\n", path);
    return file;
}

static void draw(const bench *b, const char *folder)
{
    FILE *script = create(folder, "allreduce.gp");
    char command[4200];
    if (!script)
        return;
    fprintf(script,
            "set terminal svg size 800,500\nset output '%s/allreduce.svg'\nset datafile separator ','\nset datafile "
            "missing NaN\nset logscale xy\n"
            "set xlabel 'bytes'\nset ylabel 'bus bandwidth, GB/s'\nset key left top\nset grid\nplot ",
            folder);
    for (int w = 0; w < WAYS; w++)
        if ((w == 0 || b->comm[w]) && strcmp(names[w], "dummy") != 0)
            fprintf(
                script,
                "'%s/allreduce.csv' using 3:(strcol(1) eq '%s' ? $6 : NaN) with linespoints title '%s' noenhanced, ",
                folder, names[w], names[w]);
    fprintf(script, "\n");
    fclose(script);
    snprintf(command, sizeof command, "gnuplot '%s/allreduce.gp'", folder);
    if (system(command) != 0)
        fprintf(stderr, "there is no picture: gnuplot is missing or failed\n");
}

int main(int argc, char **argv)
{
    bench b = {0};
    int64_t most = (int64_t)256 << 20;
    const char *folder = NULL;
    MPI_Init(&argc, &argv);
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--most"))
            most = atoll(argv[i + 1]);
        if (!strcmp(argv[i], "--out"))
            folder = argv[i + 1];
    }
    MPI_Comm_rank(MPI_COMM_WORLD, &b.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &b.size);
    open_all(&b);
    b.data = calloc((size_t)most, 1);
    if (folder && b.rank == 0 && (b.csv = create(folder, "allreduce.csv")))
        fprintf(b.csv, "communicator,ranks,bytes,microseconds,algorithm_GB_per_s,bus_GB_per_s\n");
    if (b.rank == 0)
        printf("%d ranks\n%12s  %-16s %12s %10s %10s %8s\n", b.size, "bytes", "communicator", "us", "alg GB/s",
               "bus GB/s", "x MPI");
    for (int64_t bytes = LEAST; bytes <= most; bytes *= 4) {
        if (bytes == 256 << 20)
            run_size(&b, 100 << 20);
        run_size(&b, bytes);
    }
    if (b.csv) {
        fclose(b.csv);
        draw(&b, folder);
    }
    for (int w = 1; w < WAYS; w++)
        WF_MUST(wf_comm_close(b.comm[w]));
    free(b.data);
    MPI_Finalize();
    return 0;
}
