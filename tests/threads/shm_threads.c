/* What the ranks of a node do in memory that they share, under ThreadSanitizer: sums, broadcasts, exchanges and records
 * of calls by threads of one process, each with a communicator and a context of its own over the same memory.
 *
 * It sees accesses of two ranks to the same bytes with no release and acquire between them, also where the machine does
 * not show it: x86 does not reorder stores. It looks into the files that CMake compiles for it (tests/comm/comm.cmake)
 * and into memcpy, and knows the order of events of this run alone. It cannot see what processes add: how a window is
 * mapped, MPI, ranks that die, memory of a device. */
#include "comm/mesh/mesh_impl.h"
#include "comm/transport/transport_impl.h"
#include "core/config_author.h"
#include "tests/test.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 4, WINDOWS = 8, ROWS = 64 * RANKS, COLUMNS = 2048 * RANKS, LONGEST = 100003 };

typedef struct view {
    wf_comm comm;
    wf_comm_shared shared;
    wf_agreed agreed;
    wf_ring ring;
    wf_status (*run)(struct view *v);
    wf_status status;
    int64_t wrong; /* elements so far */
} view;

static view views[RANKS];
static pthread_barrier_t meeting;
static char *windows[WINDOWS];
static int made;

/* --- in place of windows and MPI: the files of comm/ are compiled with these names
 * -------------------------------------------- */

wf_status wf_coll_barrier(wf_comm *comm)
{
    pthread_barrier_wait(&meeting);
    return WF_OK;
}

wf_status wf_shm_window_open(wf_comm *comm, size_t bytes, wf_shm_window *w, char why[WF_FAILURE_TEXT])
{
    if (comm->rank == 0)
        windows[made++] = calloc(RANKS, bytes);
    pthread_barrier_wait(&meeting);
    *w = (wf_shm_window){.base = windows[made - 1], .segment = bytes};
    pthread_barrier_wait(&meeting);
    return WF_OK;
}

/* Windows are freed at the end of all threads. */
void wf_shm_window_close(wf_shm_window *w)
{
    *w = (wf_shm_window){0};
}

/* No message comes. */
int MPI_Test(MPI_Request *request, int *done, MPI_Status *status)
{
    *done = 0;
    return MPI_SUCCESS;
}

static void view_open(view *v, int rank)
{
    *v = (view){.comm = {.name = "threads", .references = 1, .rank = rank, .size = RANKS}};
    v->shared.ctx = wf_ctx_new((wf_ctx_opts){.device = "ref", .threads = 1});
    v->comm.shared = &v->shared;
    v->comm.intra_rank = rank;
    v->comm.intra_size = RANKS;
    v->comm.inter_size = 1;
    v->shared.chunk_bytes = (size_t)1 << 30;
}

static void *on_thread(void *one)
{
    view *v = one;
    v->status = v->run(v);
    return NULL;
}

static void on_all(wf_status (*run)(view *v))
{
    pthread_t thread[RANKS];
    made = 0;
    pthread_barrier_init(&meeting, NULL, RANKS);
    for (int r = 0; r < RANKS; r++) {
        view_open(&views[r], r);
        views[r].run = run;
    }
    for (int r = 0; r < RANKS; r++)
        pthread_create(&thread[r], NULL, on_thread, &views[r]);
    for (int r = 0; r < RANKS; r++)
        pthread_join(thread[r], NULL);
    for (int r = 0; r < RANKS; r++) {
        view *v = &views[r];
        WF_EXPECT(v->status == WF_OK && v->wrong == 0, "rank %d: %s, %lld elements are wrong", r,
                  wf_status_name(v->status), (long long)v->wrong);
        wf_ring_close(&v->ring);
        wf_agreed_clear(&v->agreed);
        wf_exchange_unshare(&v->comm);
        wf_control_close(&v->comm);
        wf_engine_close(&v->comm);
        WF_EXPECT_OK(wf_ctx_free(v->shared.ctx));
    }
    while (made > 0)
        free(windows[--made]);
    pthread_barrier_destroy(&meeting);
}

/* --- sums and broadcasts ------------------------------------------------------------------------------------------ */

static float value_of(int rank, int64_t i, int64_t salt)
{
    return (float)((rank + 1) * (i % 1009 + 1) + salt);
}

/* Runs a schedule in the ring as the engine does (comm/engine/progress.c). */
static wf_status run_schedule(view *v, void *data, wf_builder *b)
{
    static const wf_link no_link;
    void *memory[1 + RANKS * WF_RING_SLOTS];
    wf_schedule *s;
    WF_TRY(wf_builder_end(b, &s));
    for (int32_t i = 0; i < s->operands; i++) {
        const wf_operand *o = &s->operand[i];
        memory[i] = o->kind == WF_OPERAND_SHARED ? wf_ring_slot(&v->ring, &v->agreed, o) : data;
    }
    wf_run *run = wf_run_new(v->shared.ctx, s);
    wf_status status = run ? WF_OK : wf_error_code();
    if (run) {
        run->link = &no_link;
        run->data = memory;
        run->flags = v->ring.flags;
        run->ring_pieces = v->ring.pieces;
        run->seen = v->ring.seen;
        /* In turn as a rank that waits runs it, and as one that computes meanwhile. */
        wf_run_begin(run, v->ring.pieces % 2 == v->comm.rank % 2);
    }
    while (status == WF_OK && !wf_run_done(run)) {
        bool moved = false;
        status = wf_run_advance(run, &moved);
        if (!moved)
            sched_yield();
    }
    v->ring.pieces += s->ring_pieces;
    wf_run_free(run);
    wf_schedule_free(s);
    return status;
}

static wf_status reduce(view *v, float *data, int64_t count, int root)
{
    wf_builder *b = wf_builder_new(v->shared.ctx, &v->agreed, v->comm.rank);
    WF_NEED(b);
    const wf_address x = wf_builder_operand(b, WF_OPERAND_BOTH, 0, (size_t)count * sizeof *data);
    wf_build_node_reduce(b, x, x, count, WF_F32, WF_SUM, root);
    return run_schedule(v, data, b);
}

static wf_status spread(view *v, float *data, int64_t count, int root)
{
    wf_builder *b = wf_builder_new(v->shared.ctx, &v->agreed, v->comm.rank);
    WF_NEED(b);
    const wf_address x = wf_builder_operand(b, WF_OPERAND_BOTH, 0, (size_t)count * sizeof *data);
    wf_build_node_bcast(b, x, (size_t)count * sizeof *data, root);
    return run_schedule(v, data, b);
}

static wf_status sum(view *v, float *data, int64_t count, int root)
{
    const int rank = v->comm.rank;
    for (int64_t i = 0; i < count; i++)
        data[i] = value_of(rank, i, count);
    WF_TRY(reduce(v, data, count, root));
    for (int64_t i = 0; i < count && (root < 0 || root == rank); i++) {
        float want = 0;
        for (int r = 0; r < RANKS; r++)
            want += value_of(r, i, count);
        v->wrong += data[i] != want;
    }
    return WF_OK;
}

static wf_status bcast(view *v, float *data, int64_t count, int root)
{
    for (int64_t i = 0; i < count; i++)
        data[i] = v->comm.rank == root ? value_of(root, i, count) : 0;
    WF_TRY(spread(v, data, count, root));
    for (int64_t i = 0; i < count; i++)
        v->wrong += data[i] != value_of(root, i, count);
    return WF_OK;
}

/* Lengths follow each other as they come, so that slots of one call are read while the next one wants them. */
static wf_status sum_all(view *v, float *data)
{
    static const int64_t counts[] = {1, 4096, 300, 9001, LONGEST, 17, 40000};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        WF_TRY(sum(v, data, counts[i], -1));
        WF_TRY(sum(v, data, counts[i], (int)i % RANKS));
        WF_TRY(bcast(v, data, counts[i], (int)(i + 1) % RANKS));
    }
    return WF_OK;
}

static wf_status sums_of(view *v)
{
    char why[WF_FAILURE_TEXT];
    static const int32_t node[RANKS];
    wf_status status = wf_agreed_make(v->shared.ctx, RANKS, node, &v->agreed);
    if (status == WF_OK)
        status = wf_ring_open(&v->comm, &v->agreed, &v->ring, why);
    float *data = malloc(LONGEST * sizeof *data);
    for (int round = 0; round < 2 && status == WF_OK; round++)
        status = sum_all(v, data);
    free(data);
    return status;
}

static void sums(void)
{
    on_all(sums_of);
}

/* --- exchanges ---------------------------------------------------------------------------------------------------- */

/* Rows become columns, in several parts a pair, and back: each element comes home once. */
static wf_status there_and_back(view *v, wf_exchange *exchange, wf_tensor *x, wf_tensor *y)
{
    const int64_t rows = ROWS / RANKS, columns = COLUMNS / RANKS;
    float *a = x->data, *b = y->data;
    for (int64_t i = 0; i < rows * COLUMNS; i++)
        a[i] = (float)(v->comm.rank * rows * COLUMNS + i);
    WF_TRY(wf_exchange_begin(exchange, x, y));
    WF_TRY(wf_exchange_poll(exchange));
    WF_TRY(wf_exchange_end(exchange));
    for (int64_t i = 0; i < ROWS * columns; i++)
        v->wrong += b[i] != (float)(i / columns * COLUMNS + v->comm.rank * columns + i % columns);
    WF_TRY(wf_exchange_reverse_begin(exchange, y, x));
    WF_TRY(wf_exchange_end(exchange));
    for (int64_t i = 0; i < rows * COLUMNS; i++)
        v->wrong += a[i] != 2 * (float)(v->comm.rank * rows * COLUMNS + i);
    return WF_OK;
}

static wf_status exchanges_of(view *v)
{
    static const int32_t node[RANKS];
    wf_box have[RANKS], need[RANKS];
    WF_TRY(wf_engine_open(&v->comm, node));
    for (int r = 0; r < RANKS; r++) {
        have[r] = need[r] = (wf_box){.rank = 2, .hi = {ROWS, COLUMNS}};
        wf_block(ROWS, RANKS, r, &have[r].lo[0], &have[r].hi[0]);
        wf_block(COLUMNS, RANKS, r, &need[r].lo[1], &need[r].hi[1]);
    }
    wf_exchange *exchange = wf_exchange_new(&v->comm, WF_F32, WF_ROW_MAJOR, have, need);
    wf_tensor *x = wf_tensor_new(v->shared.ctx, WF_F32, wf_box_shape(have[v->comm.rank]));
    wf_tensor *y = wf_tensor_new(v->shared.ctx, WF_F32, wf_box_shape(need[v->comm.rank]));
    wf_status status = exchange && x && y ? WF_OK : wf_error_code();
    for (int round = 0; round < 2 && status == WF_OK; round++)
        status = there_and_back(v, exchange, x, y);
    if (!wf_engine_agreed(&v->comm)->pairs)
        v->wrong++; /* it went by messages */
    wf_tensor_free(x);
    wf_tensor_free(y);
    wf_exchange_free(exchange);
    return status;
}

static void exchanges(void)
{
    on_all(exchanges_of);
}

/* --- records of calls --------------------------------------------------------------------------------------------- */

/* Ranks are ahead of each other as far as they may be, and every fourth record is another one for the hash than for the
 * comparison, which so reads it. */
static wf_status records_of(view *v)
{
    enum { CALLS = 5000 };
    static const int32_t node[RANKS];
    char why[WF_FAILURE_TEXT];
    wf_comm *comm = &v->comm;
    WF_TRY(wf_control_new(comm));
    WF_TRY(wf_agreed_make(v->shared.ctx, RANKS, node, &v->agreed));
    WF_TRY(wf_ring_open(comm, &v->agreed, &v->ring, why));
    for (uint64_t i = 1; i <= CALLS; i++) {
        wf_call_record record = wf_call_record_plain("records", -1);
        record.sequence = i;
        record.dim[0] = (int64_t)i;
        while (!wf_control_has_room(comm)) {
            WF_TRY(wf_control_poll(comm, false));
            sched_yield();
        }
        WF_TRY(wf_control_announce(comm, &record, i % 4 ? i : i + (uint64_t)comm->rank));
    }
    while (!wf_control_confirmed(comm))
        WF_TRY(wf_control_poll(comm, false));
    wf_control_unshare(comm);
    return WF_OK;
}

static void records(void)
{
    on_all(records_of);
}

int main(int argc, char **argv)
{
    wf_config_get(); /* read once, before there are threads: each rank has a process of its own elsewhere */
    return test_main(argc, argv, (test_case[]){{"sums", sums}, {"exchanges", exchanges}, {"records", records}, {0}});
}
