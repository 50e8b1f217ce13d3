/* Messages whose sender goes on: all ranks send to all others before anybody receives; lengths around the limit at
 * which messages are cut, empty tensors, views that are not dense; order; a rank that fails. */
#include "comm/comm_author.h"
#include "comm/outbox_author.h"
#include "tests/ranks.h"
#include "tests/world.h"

#include <stdlib.h>
#include <string.h>

enum { MESSAGES = 12, MOST = 300 * 300, MANY = 80, LONG = 5000 };

/* The shape of message i: from empty to longer than MPI sends at once. */
static wf_shape shape_of(int i)
{
    static const int64_t rows[] = {1, 0, 300, 7, 64, 300};
    return i % 5 == 4 ? wf_shape_scalar() : WF_SHAPE(rows[i % 6], i % 2 ? 300 : 11);
}

static float value_of(int from, int to, int i, int64_t element)
{
    return (float)(100 * from + 10 * to + i) + (float)(element % 1000) / 1024;
}

/* Every second one is a transposed view. */
static wf_tensor *message_of(int from, int to, int i)
{
    wf_shape shape = shape_of(i);
    const bool turned = i % 2 && shape.rank == 2;
    const int64_t rows = shape.rank == 2 ? shape.dim[0] : 1, columns = shape.rank == 2 ? shape.dim[1] : 1;
    float *host = malloc((size_t)(rows * columns + 1) * sizeof *host);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c++)
            host[turned ? c * rows + r : r * columns + c] = value_of(from, to, i, r * columns + c);
    wf_tensor *x = wf_tensor_from_host(ctx, WF_F32, turned ? WF_SHAPE(columns, rows) : shape, host);
    free(host);
    if (!turned)
        return x;
    wf_tensor *view = wf_tensor_permute(x, (int[]){1, 0});
    wf_tensor_free(x);
    return view;
}

static void expect_message(const wf_tensor *y, int from, int i)
{
    static float host[MOST];
    WF_EXPECT(y && wf_shape_equal(wf_tensor_shape(y), shape_of(i)), "message %d from rank %d: %s", i, from,
              wf_error_message());
    if (!y)
        return;
    WF_EXPECT_OK(wf_tensor_export(y, host, wf_tensor_bytes(y)));
    for (int64_t k = 0; k < wf_tensor_count(y); k++)
        if (host[k] != value_of(from, rank, i, k)) {
            WF_EXPECT(false, "message %d from rank %d: element %lld is %g, not %g", i, from, (long long)k, host[k],
                      value_of(from, rank, i, k));
            return;
        }
}

static void all_send_first(void)
{
    wf_outbox *outbox = wf_outbox_new(comm);
    const wf_traffic before = wf_comm_traffic(comm);
    uint64_t payload = 0;
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < MESSAGES; i++)
            for (int step = 1; step < size; step++) {
                wf_tensor *x = message_of(rank, (rank + step) % size, i);
                WF_EXPECT_OK(wf_outbox_send(outbox, x, (rank + step) % size));
                payload += wf_tensor_bytes(x);
                wf_tensor_free(x); /* the outbox has a handle of its own */
            }
        for (int step = 1; step < size; step++)
            for (int i = 0; i < MESSAGES; i++) {
                wf_tensor *y = wf_outbox_receive(comm, (rank + step) % size);
                expect_message(y, (rank + step) % size, i);
                wf_tensor_free(y);
            }
        WF_EXPECT_OK(wf_outbox_wait(outbox));
    }
    const wf_traffic after = wf_comm_traffic(comm);
    WF_EXPECT(after.bytes_sent - before.bytes_sent == payload, "%llu bytes are counted, not %llu",
              (unsigned long long)(after.bytes_sent - before.bytes_sent), (unsigned long long)payload);
    wf_outbox_free(outbox);
}

/* From every rank to the one `step` further: MANY messages on their way at once. */
static void send_many(wf_outbox *outbox, int step, int64_t first, int64_t growth)
{
    const int to = (rank + step) % size, from = (rank + size - step) % size;
    for (int i = 0; i < MANY; i++) {
        wf_tensor *x = wf_tensor_new(ctx, WF_F32, WF_SHAPE(first + i * growth));
        WF_EXPECT_OK(wf_tensor_fill(x, 1000 * rank + i));
        WF_EXPECT_OK(wf_outbox_send(outbox, x, to));
        wf_tensor_free(x);
    }
    for (int i = 0; i < MANY; i++) {
        static float host[LONG];
        host[0] = -1;
        wf_tensor *y = wf_outbox_receive(comm, from);
        const int64_t count = y ? wf_tensor_count(y) : 0;
        WF_EXPECT(count == first + i * growth, "%lld elements of %lld", (long long)count,
                  (long long)(first + i * growth));
        if (count == first + i * growth)
            WF_EXPECT_OK(wf_tensor_export(y, host, wf_tensor_bytes(y)));
        WF_EXPECT(host[0] == (float)(1000 * from + i), "message %d is %g", i, (double)host[0]);
        wf_tensor_free(y);
    }
    WF_EXPECT_OK(wf_outbox_wait(outbox));
}

/* Messages that are over are used for others, of another length, or to another rank: these are so long that more are on
 * their way than an outbox keeps spare. */
static void many_lengths(void)
{
    wf_outbox *outbox = wf_outbox_new(comm);
    if (size > 1) {
        send_many(outbox, 1, LONG, 0);
        send_many(outbox, size - 1, LONG, 0);
        send_many(outbox, size - 1, LONG - 2 * MANY, 1);
        send_many(outbox, 1, MANY, 1);
    }
    wf_outbox_free(outbox);
}

/* A message that no rank receives is given up, and a failure reaches the rank that waits. */
static void failure(void)
{
    wf_comm *part = test_comm_open("naive", (wf_ctx_opts){0});
    wf_outbox *outbox = wf_outbox_new(part);
    if (rank == 0) {
        wf_tensor *x = wf_tensor_new(wf_comm_ctx(part), WF_F32, WF_SHAPE(300, 300));
        WF_EXPECT_OK(wf_tensor_fill(x, 1));
        WF_EXPECT_OK(wf_outbox_send(outbox, x, 1));
        wf_tensor_free(x);
        wf_error_set(WF_ERR_IO, __FILE__, __LINE__, "no more");
        wf_comm_post_failure(part, WF_ERR_IO);
    } else {
        wf_tensor *y = wf_outbox_receive(part, 0), *more = y ? wf_outbox_receive(part, 0) : NULL;
        WF_EXPECT(!more && strstr(wf_error_message(), "no more"), "%s", wf_error_message());
        wf_tensor_free(y);
    }
    wf_error_clear();
    wf_outbox_free(outbox);
    wf_comm_close(part);
    wf_error_clear();
}

static int on_ranks(int argc, char **argv)
{
    if (!ranks_open("naive"))
        return 1;
    const int failed = test_main(
        argc, argv,
        (test_case[]){{"all_send_first", all_send_first}, {"many_lengths", many_lengths}, {"failure", failure}, {0}});
    return ranks_close(failed);
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
