/* Speed of exchanges between two ranks, against MPI alone in the same run: faces that are contiguous in memory against
 * MPI_Sendrecv of the same bytes, strided ones against MPI_Sendrecv with a derived type. Both directions at once; each
 * rank sends and receives `bytes`. Times are medians and bests of rounds that take turns. mpirun -np 2 bench_exchange
 */
#include "comm/exchange_author.h"
#include "core/tensor_author.h"
#include "tests/bench/bench.h"
#include "tests/bench/bench_usage.h"

#include <mpi.h>
#include <stdio.h>
#include <string.h>

enum { ROUNDS = 15 };

static wf_comm *comm;
static int rank;

/* An image cut in two along `dim`, of which each rank needs `halo` layers of the other. */
typedef struct job {
    wf_exchange *exchange;
    wf_tensor *y, *x; /* with halo; x is the own part of y */
    char *out, *in;   /* where MPI sends from and receives to */
    MPI_Datatype type;
} job;

static void faces(wf_shape whole, int dim, int64_t halo, wf_box have[2], wf_box need[2])
{
    const int64_t half = whole.dim[dim] / 2;
    for (int r = 0; r < 2; r++)
        have[r] = need[r] = wf_box_of_shape(whole);
    have[0].hi[dim] = have[1].lo[dim] = half;
    need[0].hi[dim] = half + halo;
    need[1].lo[dim] = half - halo;
}

static char *address(const wf_tensor *y, wf_box at, wf_box origin)
{
    int64_t offset = 0;
    for (int d = 0; d < at.rank; d++)
        offset += (at.lo[d] - origin.lo[d]) * y->stride[d];
    return (char *)y->data + offset * (int64_t)wf_dtype_size(y->dtype);
}

/* The face as MPI sees it: one vector type for each dimension, the innermost first. */
static MPI_Datatype type_of(const wf_tensor *y, wf_box face)
{
    MPI_Datatype type = MPI_FLOAT;
    int64_t left = 0, dense = 1;
    for (int d = 0; d < face.rank; d++)
        left += face.hi[d] - face.lo[d] > 1;
    while (left > 0) {
        int next = -1;
        for (int d = 0; d < face.rank; d++)
            if (face.hi[d] - face.lo[d] > 1 && (next < 0 || y->stride[d] < y->stride[next]))
                next = d;
        const int64_t n = face.hi[next] - face.lo[next];
        MPI_Datatype outer;
        if (y->stride[next] == dense) {
            MPI_Type_contiguous((int)n, type, &outer);
            dense *= n;
        } else {
            MPI_Type_create_hvector((int)n, 1, (MPI_Aint)(y->stride[next] * 4), type, &outer);
            dense = -1;
        }
        type = outer;
        face.hi[next] = face.lo[next] + 1;
        left--;
    }
    MPI_Type_commit(&type);
    return type;
}

static job job_new(wf_shape whole, wf_order order, int dim, int64_t halo)
{
    job j = {0};
    wf_box have[2], need[2];
    faces(whole, dim, halo, have, need);
    j.exchange = wf_exchange_new(comm, WF_F32, order, have, need);
    j.y = wf_tensor_new_ordered(wf_comm_ctx(comm), WF_F32, wf_box_shape(need[rank]), order);
    j.x = wf_tensor_view(j.y, wf_box_relative(have[rank], need[rank]));
    if (!j.exchange || !j.x)
        WF_MUST(wf_error_code());
    WF_MUST(wf_tensor_fill(j.y, rank + 1));
    const wf_box theirs = wf_box_intersect(need[rank], have[1 - rank]),
                 mine = wf_box_intersect(need[1 - rank], have[rank]);
    j.out = address(j.y, mine, need[rank]);
    j.in = address(j.y, theirs, need[rank]);
    j.type = type_of(j.y, mine);
    return j;
}

static void job_free(job *j)
{
    MPI_Type_free(&j->type);
    wf_tensor_free(j->x);
    wf_tensor_free(j->y);
    wf_exchange_free(j->exchange);
}

static void by_weft(const job *j)
{
    WF_MUST(wf_exchange_begin_halo(j->exchange, j->x, j->y));
    WF_MUST(wf_exchange_end(j->exchange));
}

static void by_mpi(const job *j)
{
    MPI_Sendrecv(j->out, 1, j->type, 1 - rank, 0, j->in, 1, j->type, 1 - rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static double seconds_of(void (*call)(const job *), const job *j, int calls)
{
    MPI_Barrier(MPI_COMM_WORLD);
    const double start = MPI_Wtime();
    for (int i = 0; i < calls; i++)
        call(j);
    double each = (MPI_Wtime() - start) / calls;
    MPI_Allreduce(MPI_IN_PLACE, &each, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return each;
}

static void measure(const char *what, wf_shape whole, wf_order order, int dim, int64_t halo)
{
    double weft[ROUNDS], mpi[ROUNDS];
    job j = job_new(whole, order, dim, halo);
    const int64_t bytes = wf_exchange_bytes(j.exchange);
    const int calls = bytes < 1 << 20 ? 200 : bytes < 4 << 20 ? 40 : 10;
    seconds_of(by_mpi, &j, 3);
    seconds_of(by_weft, &j, 3);
    for (int i = 0; i < ROUNDS; i++) {
        mpi[i] = seconds_of(by_mpi, &j, calls);
        weft[i] = seconds_of(by_weft, &j, calls);
    }
    const double our = bench_median(weft, ROUNDS), their = bench_median(mpi, ROUNDS);
    if (rank == 0)
        printf("%-22s %6lld KiB  weft %9.1f us (best %9.1f)  mpi %9.1f us (best %9.1f)  ratio %5.2f (best %5.2f)\n",
               what, (long long)bytes >> 10, our * 1e6, weft[0] * 1e6, their * 1e6, mpi[0] * 1e6, our / their,
               weft[0] / mpi[0]);
    job_free(&j);
}

int main(int argc, char **argv)
{
    bench_usage(argc, argv, 0, NULL, "mpirun -np 2 bench_exchange");
    comm = wf_comm_open(&argc, &argv, "naive", (wf_ctx_opts){0});
    if (!comm)
        WF_MUST(wf_error_code());
    rank = wf_comm_rank(comm);
    if (wf_comm_size(comm) != 2) {
        fprintf(stderr, "bench_exchange runs on 2 ranks\n");
        return 1;
    }
    for (int64_t k = 1; k <= 256; k *= 4) /* 64 KiB a row of 256 pixels with 64 channels */
        measure("rows, channels-last", WF_SHAPE(1, 64, 2 * k + 2, 256), WF_CHANNELS_LAST, 2, k);
    for (int64_t k = 1; k <= 64; k *= 4) /* 64 KiB a column of 1024 pixels with 16 channels */
        measure("columns, channels-last", WF_SHAPE(1, 16, 1024, 256), WF_CHANNELS_LAST, 3, k);
    for (int64_t k = 1; k <= 16; k *= 4) /* 64 KiB a channel of 128 x 128 pixels */
        measure("channels, channels-last", WF_SHAPE(1, 64, 128, 128), WF_CHANNELS_LAST, 1, k);
    for (int64_t k = 1; k <= 64; k *= 4)
        measure("columns, row-major", WF_SHAPE(1, 16, 1024, 256), WF_ROW_MAJOR, 3, k);
    WF_MUST(wf_comm_close(comm));
    return 0;
}
