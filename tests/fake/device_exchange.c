/* Exchanges between ranks whose devices have no NCCL between them: by device memory that they map from each other, or,
 * where that does not work, through the host's; the same numbers and the same bytes. */
#include "comm/comm_author.h"
#include "comm/exchange_author.h"
#include "core/tensor_author.h"
#include "tests/fake/guard.h"
#include "tests/test.h"
#include "tests/world.h"

#include <stdlib.h>
#include <string.h>

enum { ROWS = 6, HALO = 3 };

static int rank, size;
static wf_comm *comm;
static wf_ctx *ctx;

/* How the device of this rank shares its memory. */
static void open_comm(guard_sharing how)
{
    guard_share_so(how);
    comm = test_comm_open("flat", (wf_ctx_opts){0});
    WF_EXPECT(comm, "%s", wf_error_message());
    ctx = wf_comm_ctx(comm);
    rank = wf_comm_rank(comm);
    size = wf_comm_size(comm);
}

static void close_comm(void)
{
    WF_EXPECT_OK(wf_comm_close(comm));
    guard_share_so(GUARD_SHARES);
    wf_error_clear();
}

static float at(int64_t row, int64_t column)
{
    return (float)(row * 17 + column % 1000);
}

static int64_t clipped(int64_t v, int64_t most)
{
    return v < 0 ? 0 : v > most ? most : v;
}

/* An array of which every rank has ROWS rows, or columns, and needs HALO more on both sides. */
typedef struct halos {
    wf_box have[64], need[64];
    int64_t width;
    bool columns;
} halos;

static halos halos_of(int64_t width, bool columns)
{
    halos h = {.width = width, .columns = columns};
    const int cut = columns, other = !columns;
    for (int r = 0; r < size; r++) {
        h.have[r].rank = h.need[r].rank = 2;
        h.have[r].hi[other] = h.need[r].hi[other] = width;
        h.have[r].lo[cut] = r * ROWS;
        h.have[r].hi[cut] = (r + 1) * ROWS;
        h.need[r].lo[cut] = clipped(r * ROWS - HALO, size * ROWS);
        h.need[r].hi[cut] = clipped((r + 1) * ROWS + HALO, size * ROWS);
    }
    return h;
}

static wf_tensor *filled(wf_box box)
{
    float *value = malloc((size_t)wf_shape_count(wf_box_shape(box)) * sizeof *value);
    int64_t n = 0;
    for (int64_t i = box.lo[0]; i < box.hi[0]; i++)
        for (int64_t j = box.lo[1]; j < box.hi[1]; j++)
            value[n++] = at(i, j);
    wf_tensor *x = wf_tensor_from_host(ctx, WF_F32, wf_box_shape(box), value);
    free(value);
    return x;
}

/* Every element is `times` what it was filled with, where times(row or column) is how many ranks have given it. */
static void expect_filled(const halos *h, const wf_tensor *y, wf_box box, bool sums)
{
    float *value = malloc(wf_tensor_bytes(y));
    int64_t n = 0, wrong = 0;
    WF_EXPECT_OK(wf_tensor_export(y, value, wf_tensor_bytes(y)));
    for (int64_t i = box.lo[0]; i < box.hi[0]; i++)
        for (int64_t j = box.lo[1]; j < box.hi[1]; j++) {
            const int64_t place = h->columns ? j : i;
            int givers = 0;
            for (int r = 0; r < size; r++)
                givers += place >= h->need[r].lo[h->columns] && place < h->need[r].hi[h->columns];
            wrong += value[n++] != (sums ? (float)givers : 1) * at(i, j);
        }
    WF_EXPECT(wrong == 0, "rank %d: %d of %d elements are wrong", rank, (int)wrong, (int)n);
    free(value);
}

/* There and back; the reads of the host that it took. */
static int64_t exchange(const halos *h)
{
    wf_exchange *e = wf_exchange_new(comm, WF_F32, WF_ROW_MAJOR, h->have, h->need);
    wf_tensor *x = filled(h->have[rank]), *y = wf_tensor_new(ctx, WF_F32, wf_box_shape(h->need[rank]));
    wf_tensor *dx = wf_tensor_new(ctx, WF_F32, wf_box_shape(h->have[rank]));
    WF_EXPECT(e && x && y && dx, "%s", wf_error_message());
    WF_EXPECT_OK(wf_tensor_fill(dx, 0));
    const wf_traffic before = wf_comm_traffic(comm);
    int64_t reads = guard_reads();
    WF_EXPECT_OK(wf_exchange_begin(e, x, y));
    WF_EXPECT_OK(wf_exchange_poll(e));
    WF_EXPECT_OK(wf_exchange_end(e));
    WF_EXPECT_OK(wf_exchange_reverse_begin(e, y, dx));
    WF_EXPECT_OK(wf_exchange_end(e));
    reads = guard_reads() - reads;
    const int64_t edge = (int64_t)HALO * h->width * 4, neighbours = (rank > 0) + (rank < size - 1);
    WF_EXPECT((int64_t)(wf_comm_traffic(comm).bytes_sent - before.bytes_sent) == 2 * neighbours * edge,
              "%d bytes went there and back", (int)(wf_comm_traffic(comm).bytes_sent - before.bytes_sent));
    expect_filled(h, y, h->need[rank], false);
    expect_filled(h, dx, h->have[rank], true);
    wf_tensor_free(x);
    wf_tensor_free(y);
    wf_tensor_free(dx);
    wf_exchange_free(e);
    return reads;
}

/* Rows and columns, short and longer than all slots of a ring together; several in turn. */
static void exchanges(const char *way, bool large)
{
    static const int64_t widths[] = {5, 1000, 200000};
    char text[400];
    WF_EXPECT_OK(wf_exchange_way(comm, text, sizeof text)); /* tries it */
    WF_EXPECT(strstr(text, size > 1 ? way : "one rank"), "exchanges go %s, not %s", text, way);
    for (int i = 0; i < (large ? 6 : 4) && size > 1; i++) {
        const halos h = halos_of(widths[large ? i % 3 : i % 2], large ? i >= 3 : i >= 2);
        const int64_t reads = exchange(&h);
        const bool mapped = strstr(way, "map from each other") != NULL;
        WF_EXPECT(mapped ? reads == 0 : reads > 0, "%s: the host has read the device %d times", way, (int)reads);
    }
}

static void mapped_of(bool large)
{
    open_comm(GUARD_SHARES);
    exchanges("device memory that the ranks of a node map from each other", large);
    close_comm();
}

static void mapped(void)
{
    mapped_of(true);
}

/* Each half has a ring of its own. */
static void splits(void)
{
    open_comm(GUARD_SHARES);
    wf_comm *world = comm;
    const int all = size;
    comm = wf_comm_split(world, rank % 2, rank);
    rank = wf_comm_rank(comm);
    size = wf_comm_size(comm);
    WF_EXPECT(size == (all + 1) / 2 || all % 2, "%d of %d", size, all);
    exchanges("device memory that the ranks of a node map from each other", false);
    WF_EXPECT_OK(wf_comm_close(comm));
    comm = world;
    close_comm();
}

/* Memory of boards that are closed is used again, or given back: the same numbers after many. */
static void again(void)
{
    for (int i = 0; i < 3; i++)
        mapped_of(false);
}

static void staged(guard_sharing how, bool large, const char *why)
{
    open_comm(how);
    exchanges(why, large);
    close_comm();
}

static void nothing_shared(void)
{
    staged(GUARD_SHARES_NOTHING, true, "through page-locked host memory: rank 0: the guarded device shares nothing");
}

static void nothing_mapped(void)
{
    staged(GUARD_MAPS_NOTHING, false, "through page-locked host memory: rank 0: the guarded device maps nothing");
}

/* What is mapped takes bytes and gives others back: only a trial shows it. */
static void copies_mapped(void)
{
    staged(GUARD_MAPS_COPIES, false, "through page-locked host memory: rank 0: what one process writes");
}

/* On the last rank alone. */
static void one_fails(void)
{
    static const guard_sharing ways[] = {GUARD_SHARES_NOTHING, GUARD_MAPS_NOTHING, GUARD_MAPS_COPIES};
    open_comm(GUARD_SHARES);
    const bool last = rank == size - 1;
    close_comm();
    for (int i = 0; i < 3; i++)
        staged(last ? ways[i] : GUARD_SHARES, false, "through page-locked host memory: rank ");
}

/* A sum of vectors takes memory of the host once, beside the room that the sum itself needs, and leaves what it reads
 * as it was. */
static void sums_through_the_host(void)
{
    enum { N = 100000 };
    open_comm(GUARD_SHARES);
    wf_tensor *x = wf_tensor_new(ctx, WF_F32, WF_SHAPE(N)), *y = wf_tensor_new(ctx, WF_F32, WF_SHAPE(N));
    float *got = malloc(N * sizeof *got);
    WF_EXPECT_OK(wf_tensor_fill(x, rank + 1));
    WF_EXPECT_OK(wf_allreduce_raw(comm, x->data, y->data, N, WF_F32, WF_SUM));
    const wf_memory_counters before = wf_ctx_memory(ctx);
    WF_EXPECT_OK(wf_allreduce_raw(comm, x->data, y->data, N, WF_F32, WF_SUM));
    const int64_t taken = wf_ctx_memory(ctx).pool_takes - before.pool_takes;
    WF_EXPECT(taken == (size > 1 ? 2 : 0), "%lld blocks are taken for a sum", (long long)taken);
    WF_EXPECT_OK(wf_tensor_export(y, got, N * sizeof *got));
    WF_EXPECT(got[N - 1] == (float)(size * (size + 1) / 2), "the sum is %g in %d ranks", (double)got[N - 1], size);
    WF_EXPECT_OK(wf_tensor_export(x, got, N * sizeof *got));
    WF_EXPECT(got[0] == (float)(rank + 1), "what was summed is %g afterwards", (double)got[0]);
    WF_EXPECT_OK(wf_allreduce_raw(comm, x->data, x->data, N, WF_F32, WF_MAX));
    WF_EXPECT_OK(wf_tensor_export(x, got, N * sizeof *got));
    WF_EXPECT(got[1] == (float)size, "the maximum is %g in %d ranks", (double)got[1], size);
    free(got);
    wf_tensor_free(x);
    wf_tensor_free(y);
    close_comm();
}

static int on_ranks(int argc, char **argv)
{
    return test_main(argc, argv,
                     (test_case[]){{"mapped", mapped},
                                   {"splits", splits},
                                   {"again", again},
                                   {"nothing_shared", nothing_shared},
                                   {"nothing_mapped", nothing_mapped},
                                   {"copies_mapped", copies_mapped},
                                   {"one_fails", one_fails},
                                   {"sums_through_the_host", sums_through_the_host},
                                   {0}});
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
