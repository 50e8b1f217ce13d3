/* Lengths around the transport's limit, at which a message is cut, and around that of short sums: run with a small
 * WEFT_CHUNK_BYTES. */
#include "core/config_author.h"
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
        for (int root = 0; root < size; root += size - 1) {
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
        free(data);
        free(all);
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
    for (int l = 0; l < LENGTHS; l++) {
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
    return ranks_close(
        test_main(argc, argv, (test_case[]){{"bytes", bytes}, {"tensors", tensors}, {"sums", sums}, {0}}));
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
