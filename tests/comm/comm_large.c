/* More than 2^31 bytes in one call, as tensors and as gradients, with the chunk limit that users have. Takes about 5
 * GiB on two ranks. */
#include "comm/reducer_author.h"
#include "core/tensor_author.h"
#include "tests/comm/comm_names.h"

#include <stdio.h>

#define BYTES ((int64_t)2147483648 + 4099)

static wf_comm *comm;
static wf_ctx *ctx;
static wf_tensor *x;
static int rank, size;

/* The elements around every limit that a count of 32 bits could meet, and those between the calls of the transport. */
static const int64_t places[] = {0,          1,          1073741823, 1073741824, 2147483646,
                                 2147483647, 2147483648, 2147483649, BYTES - 1};

#define PLACES (int)(sizeof places / sizeof *places)

static unsigned char known(int of_rank, int64_t i)
{
    return (unsigned char)(1 + of_rank * 5 + i % 11 + i % 7);
}

static void put(void)
{
    unsigned char *data = x->data;
    for (int64_t i = 0; i < BYTES; i += 4096)
        data[i] = known(rank, i);
    for (int p = 0; p < PLACES; p++)
        data[places[p]] = known(rank, places[p]);
}

static void expect_byte(const char *what, int64_t i, int should)
{
    const unsigned char *data = x->data;
    if (data[i] != (unsigned char)should)
        test_failed(__FILE__, __LINE__, "%s: byte %lld is %d, should be %d", what, (long long)i, data[i], should);
}

/* Bytes of rank `from`, or where it is -1 their sums over all ranks. */
static void expect(const char *what, int from)
{
    for (int64_t k = 0; k < BYTES / 4096 + PLACES && test_failures() == 0; k++) {
        const int64_t i = k < PLACES ? places[k] : (k - PLACES) * 4096;
        int should = from < 0 ? 0 : known(from, i);
        for (int r = 0; r < size && from < 0; r++)
            should += known(r, i);
        expect_byte(what, i, should);
    }
}

static void bcast(void)
{
    put();
    WF_EXPECT_OK(wf_bcast(comm, x, size - 1));
    expect("bcast", size - 1);
}

static void allreduce(void)
{
    put();
    WF_EXPECT_OK(wf_allreduce(comm, x, x, WF_SUM));
    expect("allreduce", -1);
}

static void send(void)
{
    put();
    if (rank == 0)
        WF_EXPECT_OK(wf_send(comm, x, 1, 0));
    if (rank == 1)
        WF_EXPECT_OK(wf_recv(comm, x, 0, 0));
    if (rank < 2)
        expect("send", 0);
}

/* As f32: 2^29 elements and some, of which those at the limits have values of their own. */
static void gradients(void)
{
    float *flat = x->data;
    const int64_t count = BYTES / 4, offset[] = {0, 3, count - 1, count};
    const int64_t at[] = {0, 2, 3, 268435455, 268435456, 536870911, 536870912, count - 2, count - 1};
    const wf_call job = {.out = flat, .dtype = WF_F32, .parts = 3, .part = offset};
    memset(flat, 0, (size_t)BYTES);
    for (int p = 0; p < 9; p++)
        flat[at[p]] = (float)(rank + 1 + p);
    WF_EXPECT_OK(wf_reducer_sum(comm, &job));
    for (int p = 0; p < 9; p++)
        WF_EXPECT(flat[at[p]] == (float)(size * (size + 1) / 2 + size * p), "%s: element %lld is %g",
                  wf_comm_name(comm), (long long)at[p], (double)flat[at[p]]);
}

static int run_cases(const char *name, const test_case *cases)
{
    comm = comm_open_named(name, (wf_ctx_opts){.threads = 1});
    if (!comm)
        return 0;
    ctx = wf_comm_ctx(comm);
    rank = wf_comm_rank(comm);
    size = wf_comm_size(comm);
    x = wf_tensor_new(ctx, WF_U8, WF_SHAPE(BYTES));
    WF_EXPECT(x, "%s", wf_error_message());
    printf("%s\n", name);
    const int status = x ? test_main(1, NULL, cases) : 1;
    wf_tensor_free(x);
    WF_EXPECT_OK(wf_comm_close(comm));
    return status;
}

int main(int argc, char **argv)
{
    static const char *const names[] = {"hierarchical", "two_dimensional", "single_node"};
    int status = run_cases(
        "flat",
        (test_case[]){{"bcast", bcast}, {"allreduce", allreduce}, {"send", send}, {"gradients", gradients}, {0}});
    for (int n = 0; n < 3; n++)
        status |= run_cases(names[n], (test_case[]){{"gradients", gradients}, {0}});
    return status || test_failures() > 0;
}
