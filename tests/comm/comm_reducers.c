/* Reducers, and tensors of a device whose memory MPI cannot read. */
#include "comm/comm_author.h"
#include "comm/reducer_author.h"
#include "core/tensor_author.h"
#include "tests/comm/comm_cases.h"
#include "tests/world.h"

#include <stdio.h>
#include <weft_places.h>

#define SEGMENTS 5

static wf_comm *comm;
static wf_ctx *ctx;
static int rank, size;

static void open_as(const char *name)
{
    comm = test_comm_open(name, (wf_ctx_opts){0});
    WF_EXPECT(comm, "%s: %s", name, wf_error_message());
    ctx = wf_comm_ctx(comm);
    rank = wf_comm_rank(comm);
    size = wf_comm_size(comm);
}

static double noise(int of_rank, int64_t i)
{
    test_rng rng = {.state = (uint64_t)(of_rank * 1000003 + i)};
    return test_uniform(&rng, -1, 1);
}

/* The sum that a reducer of this name makes of uneven segments, one of them empty; of f32. */
static float *reduced(const char *name, int64_t *count)
{
    static const int64_t offset[SEGMENTS + 1] = {0, 3, 3, 1003, 41003, 41007};
    *count = offset[SEGMENTS];
    float *values = malloc((size_t)*count * sizeof *values);
    open_as(name);
    for (int64_t i = 0; i < *count; i++)
        values[i] = (float)noise(rank, i);
    wf_tensor *flat = wf_tensor_from_host(ctx, WF_F32, WF_SHAPE(*count), values);
    const wf_call job = {.out = flat->data, .dtype = WF_F32, .parts = SEGMENTS, .part = offset};
    WF_EXPECT(!strcmp(wf_comm_name(comm), name), "reducer %s", wf_comm_name(comm));
    WF_EXPECT_OK(wf_reducer_sum(comm, &job));
    const uint64_t collectives = wf_comm_traffic(comm).collectives;
    const uint64_t expected = size > 1 && strcmp(name, "dummy") != 0;
    WF_EXPECT(collectives == expected, "%s: %d collectives", name, (int)collectives);
    WF_EXPECT_OK(wf_tensor_export(flat, values, wf_tensor_bytes(flat)));
    wf_tensor_free(flat);
    WF_EXPECT_OK(wf_comm_close(comm));
    return values;
}

static void reducers_agree(void)
{
    int64_t count;
    float *naive = reduced("naive", &count), *flat = reduced("flat", &count), *dummy = reduced("dummy", &count);
    for (int64_t i = 0; i < count; i++) {
        float sum = (float)noise(0, i);
        for (int r = 1; r < size; r++)
            sum += (float)noise(r, i);
        if (naive[i] != sum || flat[i] != sum || dummy[i] != (float)noise(rank, i)) {
            test_failed(__FILE__, __LINE__, "element %lld: naive %.9g, flat %.9g, should be %.9g; dummy %.9g",
                        (long long)i, (double)naive[i], (double)flat[i], (double)sum, (double)dummy[i]);
            break;
        }
    }
    free(naive);
    free(flat);
    free(dummy);
}

/* A device that is the host in disguise: its memory may be touched by its own slots alone. */
static int64_t to_host_calls, to_device_calls;

static wf_status counted_to_host(wf_ctx *c, void *host, const void *device, size_t bytes)
{
    to_host_calls++;
    memcpy(host, device, bytes);
    return WF_OK;
}

static wf_status counted_to_device(wf_ctx *c, void *device, const void *host, size_t bytes)
{
    to_device_calls++;
    memcpy(device, host, bytes);
    return WF_OK;
}

static void stages_device_memory(void)
{
    comm = test_comm_open("flat", (wf_ctx_opts){.device = "cpu", .threads = 1});
    ctx = wf_comm_ctx(comm);
    const wf_kernels *host = ctx->k;
    wf_kernels device = *host;
    device.host = false;
    device.to_host = counted_to_host;
    device.to_device = counted_to_device;
    ctx->k = &device;
    int members[64];
    wf_tensor *y[64];
    for (int i = 0; i < 40; i++) {
        wf_tensor *x = tensor_in_form(ctx, i % 2 ? WF_F32 : WF_BF16, WF_SHAPE(3, i * i * 4), (comm_form)(i % FORMS));
        put_known(x, i, rank);
        for (int r = 0; r < size; r++) {
            members[r] = r;
            y[r] = tensor_in_form(ctx, i % 2 ? WF_F32 : WF_BF16, WF_SHAPE(3, i * i * 4), (comm_form)((i + r) % FORMS));
        }
        to_host_calls = to_device_calls = 0;
        WF_EXPECT_OK(wf_allgather(comm, x, y));
        if (size > 1 && i > 0)
            WF_EXPECT(to_host_calls == 1 && to_device_calls == size - 1, "staged %d and %d times", (int)to_host_calls,
                      (int)to_device_calls);
        for (int r = 0; r < size; r++)
            expect_known(y[r], i, r, "staged allgather");
        WF_EXPECT_OK(wf_allreduce(comm, x, x, WF_SUM));
        expect_combined(x, WF_SUM, i, members, size, "staged allreduce");
        wf_tensor_free(x);
        for (int r = 0; r < size; r++)
            wf_tensor_free(y[r]);
    }
    float value = 1;
    WF_EXPECT_OK(wf_allreduce_raw(comm, &value, &value, 1, WF_F32, WF_SUM));
    WF_EXPECT(value == (float)size, "raw sum %g", (double)value);
    ctx->k = host;
    WF_EXPECT_OK(wf_comm_close(comm));
}

static void reports_live_objects(void)
{
    open_as("flat");
    wf_comm *child = wf_comm_split(comm, 0, 0);
    WF_EXPECT(wf_comm_close(comm) == WF_ERR_STATE && strstr(wf_error_message(), "1 communicator"), "message \"%s\"",
              wf_error_message());
    wf_error_clear();
    WF_EXPECT_OK(wf_barrier(child));
    WF_EXPECT_OK(wf_comm_close(child));
}

static int on_ranks(int argc, char **argv)
{
    return test_main(argc, argv,
                     (test_case[]){{"reducers_agree", reducers_agree},
                                   {"stages_device_memory", stages_device_memory},
                                   {"reports_live_objects", reports_live_objects},
                                   {0}});
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
