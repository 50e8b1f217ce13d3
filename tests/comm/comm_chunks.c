/* Lengths around the transport's limit, at which a message is cut, and around that of short sums: run with a small
 * WEFT_CHUNK_BYTES. Also bytes whose length the receiver does not know. */
#include "core/config_author.h"
#include "tests/comm/comm_cases.h"
#include "tests/ranks.h"
#include "tests/world.h"

#include <stdlib.h>
#include <string.h>

#define LENGTHS 6

static size_t length_of(int i)
{
    const size_t chunk = wf_config_get()->chunk_bytes;
    const size_t length[LENGTHS] = {1, chunk - 1, chunk, chunk + 1, 2 * chunk + 1, 20 * chunk + 1};
    return length[i];
}

static unsigned char byte_of(int from, size_t i)
{
    return (unsigned char)(7 * i + i / 251 + 31 * (size_t)from + 1);
}

static void fill(unsigned char *data, int from, size_t n)
{
    for (size_t i = 0; i < n; i++)
        data[i] = byte_of(from, i);
}

/* Every byte differs from what is to come. */
static void poison(unsigned char *data, int from, size_t n)
{
    fill(data, from, n);
    for (size_t i = 0; i < n; i++)
        data[i] = (unsigned char)~data[i];
}

static void expect_bytes(const unsigned char *data, int from, size_t n, const char *what)
{
    size_t i = 0;
    while (i < n && data[i] == byte_of(from, i))
        i++;
    WF_EXPECT(i == n, "%s of %zu: byte %zu from rank %d is %d, should be %d", what, n, i, from, i < n ? data[i] : 0,
              byte_of(from, i));
}

static void bytes(void)
{
    for (int l = 0; l < LENGTHS; l++) {
        const size_t n = length_of(l);
        unsigned char *data = malloc(n), *all = malloc((size_t)size * n);
        const void *x[64];
        size_t part[64];
        void *gathered = NULL;
        for (int root = 0; root<size; root += size> 1 ? size - 1 : 1) {
            poison(data, root, n);
            if (rank == root)
                fill(data, root, n);
            WF_EXPECT_OK(wf_bcast_bytes(comm, data, n, root));
            expect_bytes(data, root, n, "bcast_bytes");
        }
        fill(data, rank, n);
        for (int r = 0; r < size; r++)
            poison(all + (size_t)r * n, r, n);
        WF_EXPECT_OK(wf_allgather_bytes(comm, data, n, all));
        for (int r = 0; r < size; r++) {
            expect_bytes(all + (size_t)r * n, r, n, "allgather_bytes");
            x[r] = all + (size_t)r * n;
            part[r] = n;
        }
        poison(data, rank, n);
        WF_EXPECT_OK(wf_scatter_bytes(comm, x, part, data, n, size - 1));
        expect_bytes(data, rank, n, "scatter_bytes");
        WF_EXPECT_OK(wf_gather_bytes(comm, data, n, part, &gathered, size - 1));
        for (int r = 0; r < size && rank == size - 1; r++)
            expect_bytes((unsigned char *)gathered + (size_t)r * n, r, n, "gather_bytes");
        free(gathered);
        free(data);
        free(all);
    }
}

/* None, one, a few, and more than a megabyte: in turn of each rank. */
static size_t uneven_length(int from, int round)
{
    static const size_t lengths[] = {0, 1, 300, 1500001};
    return lengths[(from + round) % 4];
}

static void gathers_uneven_bytes(void)
{
    unsigned char *mine = malloc(1500001);
    fill(mine, rank, 1500001);
    for (int round = 0; round < 4; round++) {
        const int root = round % size;
        size_t lengths[64];
        void *all = &all;
        WF_EXPECT_OK(wf_gather_bytes(comm, mine, uneven_length(rank, round), lengths, &all, root));
        const unsigned char *at = rank == root ? all : NULL;
        for (int r = 0; r < size; r++) {
            WF_EXPECT(lengths[r] == uneven_length(r, round), "%zu bytes of rank %d", lengths[r], r);
            if (rank != root)
                continue;
            expect_bytes(at, r, lengths[r], "gather_bytes");
            at += lengths[r];
        }
        WF_EXPECT(rank == root ? !*at : all == &all, "no NUL at the end, or a buffer on another rank");
        free(rank == root ? all : NULL);
    }
    free(mine);
}

/* Each rank to the next one, round by round: the receiver is told nothing. */
static void sends_uneven_bytes(void)
{
    unsigned char *data = malloc(1500001);
    fill(data, rank, 1500001);
    for (int round = 0; size > 1 && round < 4 * size; round++) {
        const int from = round % size, to = (from + 1) % size;
        const size_t n = uneven_length(from, round / size);
        if (rank == from)
            WF_EXPECT_OK(wf_send_bytes(comm, n > 0 ? data : NULL, n, to, 5));
        if (rank != to)
            continue;
        size_t came = 77;
        unsigned char *got = wf_receive_bytes(comm, &came, from, 5);
        WF_EXPECT(got && came == n && !got[n], "%zu bytes, should be %zu", came, n);
        if (got && came == n)
            expect_bytes(got, from, n, "receive_bytes");
        free(got);
    }
    free(data);
}

/* A call may have ended before the failure; then the next one fails. */
static wf_status at_the_latest_now(wf_comm *part, wf_status status)
{
    return status == WF_OK ? wf_barrier(part) : status;
}

/* A tensor where bytes are expected, and bytes where a tensor is. */
static void bytes_for_tensors(void)
{
    for (int i = 0; size > 1 && i < 2; i++) {
        wf_comm *part = wf_comm_split(comm, 0, 0);
        wf_tensor *x = wf_tensor_new(ctx, WF_F32, WF_SHAPE(2));
        size_t n;
        WF_EXPECT_OK(wf_tensor_fill(x, 1));
        wf_status status = WF_OK;
        if (rank == 0)
            status = i == 0 ? wf_send(part, x, 1, 5) : wf_send_bytes(part, "abc", 3, 1, 5);
        else if (rank == 1)
            status = i == 1 ? wf_recv(part, x, 0, 5) : wf_receive_bytes(part, &n, 0, 5) ? WF_OK : wf_error_code();
        expect_same_error(comm, at_the_latest_now(part, status), WF_ERR_COMM,
                          i == 0 ? "rank 0 sent f32 [2] where bytes are expected"
                                 : "rank 0 sent u8 [3] where f32 [2] is expected",
                          i == 0 ? "receive_bytes" : "recv", 0);
        wf_tensor_free(x);
        WF_EXPECT_OK(wf_comm_close(part));
    }
}

/* All ranks give no memory, name themselves or no rank, or, one of them, no place for what comes. */
static void wrong_arguments(void)
{
    static const char *const says[] = {"data is NULL, and bytes is 3",
                                       "this rank itself",
                                       "data is NULL, and bytes is 3",
                                       "all is NULL",
                                       "root",
                                       "this rank itself",
                                       "lengths is NULL",
                                       "bytes is NULL"};
    const bool last = rank == size - 1; /* it alone is wrong in the last two */
    for (int i = 0; i < 8; i++) {
        size_t n = 0, lengths[64];
        void *all = NULL;
        wf_comm *part = wf_comm_split(comm, 0, 0);
        const wf_status status = i == 0   ? wf_send_bytes(part, NULL, 3, (rank + 1) % size, 0)
                                 : i == 1 ? wf_send_bytes(part, "a", 1, rank, 0)
                                 : i == 2 ? wf_gather_bytes(part, NULL, 3, lengths, &all, 0)
                                 : i == 3 ? wf_gather_bytes(part, "a", 1, lengths, rank == 0 ? NULL : &all, 0)
                                 : i == 4 ? wf_gather_bytes(part, "a", 1, lengths, &all, size)
                                 : i == 6 ? wf_gather_bytes(part, "a", 1, last ? NULL : lengths, &all, 0)
                                 : (i == 7 && !last) || wf_receive_bytes(part, i == 7 ? NULL : &n, rank, 0)
                                     ? WF_OK
                                     : wf_error_code();
        WF_EXPECT(at_the_latest_now(part, status) == WF_ERR_ARGUMENT && !all && strstr(wf_error_message(), says[i]),
                  "argument %d: %s", i, wf_error_message());
        wf_error_clear();
        WF_EXPECT_OK(wf_comm_close(part));
    }
}

static wf_tensor *tensor_of(int from, size_t n, void (*write)(unsigned char *, int, size_t))
{
    unsigned char *data = malloc(n);
    write(data, from, n);
    wf_tensor *x = wf_tensor_from_host(ctx, WF_U8, WF_SHAPE((int64_t)n), data);
    free(data);
    return x;
}

static void expect_tensor(const wf_tensor *y, int from, size_t n, const char *what)
{
    unsigned char *data = malloc(n);
    WF_EXPECT_OK(wf_tensor_export(y, data, n));
    expect_bytes(data, from, n, what);
    free(data);
}

static void tensors(void)
{
    const int to = (rank + 1) % size, from = (rank + size - 1) % size;
    for (int l = 0; size > 1 && l < LENGTHS; l++) {
        const size_t n = length_of(l);
        wf_tensor *x = tensor_of(rank, n, fill), *y = tensor_of(from, n, poison), *all[64];
        for (int r = 0; r < size; r++)
            all[r] = tensor_of(r, n, poison);
        WF_EXPECT_OK(wf_sendrecv(comm, x, to, y, from, 3));
        expect_tensor(y, from, n, "sendrecv");
        if (rank == 0)
            WF_EXPECT_OK(wf_send(comm, x, size - 1, 4));
        if (rank == size - 1) {
            wf_tensor *came = wf_recv_new(comm, 0, 4);
            expect_tensor(came, 0, n, "recv_new");
            wf_tensor_free(came);
        }
        WF_EXPECT_OK(wf_allgather(comm, x, all));
        for (int r = 0; r < size; r++)
            expect_tensor(all[r], r, n, "allgather");
        WF_EXPECT_OK(wf_bcast(comm, rank == 0 ? x : all[0], 0));
        expect_tensor(rank == 0 ? x : all[0], 0, n, "bcast");
        for (int r = 0; r < size; r++)
            wf_tensor_free(all[r]);
        wf_tensor_free(x);
        wf_tensor_free(y);
    }
}

static uint64_t bytes_of_sum(double *values, int64_t n)
{
    const uint64_t before = wf_comm_traffic(comm).bytes_sent;
    WF_EXPECT_OK(wf_allreduce_f64(comm, values, n, WF_SUM));
    return wf_comm_traffic(comm).bytes_sent - before;
}

/* The longest vector that every rank sends to all, and one that is cut into blocks. */
static void sums(void)
{
    const int64_t others = size - 1, most = 32768 / 8 / size, longer = (most + size) / size * size;
    double *values = calloc((size_t)longer, sizeof *values);
    uint64_t bytes = bytes_of_sum(values, most);
    WF_EXPECT(bytes == (uint64_t)(most * 8 * others), "%llu bytes of a short sum", (unsigned long long)bytes);
    bytes = bytes_of_sum(values, longer);
    WF_EXPECT(bytes == (uint64_t)(2 * longer * 8 * others / size), "%llu bytes of a sum in blocks",
              (unsigned long long)bytes);
    free(values);
}

static int on_ranks(int argc, char **argv)
{
    if (!ranks_open("flat"))
        return 1;
    return ranks_close(test_main(argc, argv,
                                 (test_case[]){{"bytes", bytes},
                                               {"gathers_uneven_bytes", gathers_uneven_bytes},
                                               {"sends_uneven_bytes", sends_uneven_bytes},
                                               {"bytes_for_tensors", bytes_for_tensors},
                                               {"wrong_arguments", wrong_arguments},
                                               {"tensors", tensors},
                                               {"sums", sums},
                                               {0}}));
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
