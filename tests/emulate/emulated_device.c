/* The state of a device in a context, on the emulated device: what it is taken for, and how the host waits for it. */
#include "core/context_author.h"
#include "core/tensor.h"
#include "tests/emulate/dnn.h"
#include "tests/test.h"

#include <string.h>

static wf_ctx *ctx;

/* A GPU that cannot run the kernels is none, and one line says why. */
static void too_old(void)
{
    emulated_capability(75);
    const wf_kernels *table = wf_kernels_cuda();
    WF_EXPECT(!table, "a device of compute capability 7.5 is taken");
    WF_EXPECT(wf_check(table) == WF_ERR_STATE && strstr(wf_error_message(), "7.5, and 8.0 is the least") &&
                  !strchr(wf_error_message(), '\n'),
              "it says: %s", wf_error_message());
    wf_error_clear();
    wf_ctx *cpu = wf_ctx_new((wf_ctx_opts){.device = "auto"});
    WF_EXPECT(cpu && strcmp(cpu->k->name, "cpu") == 0 && strstr(cpu->notice, "7.5"), "auto takes %s: %s",
              cpu ? cpu->k->name : "nothing", cpu ? cpu->notice : "");
    emulated_capability(80);
    WF_EXPECT(wf_kernels_cuda() != NULL, "8.0: %s", wf_error_message());
    emulated_capability(90);
    WF_EXPECT_OK(wf_ctx_free(cpu));
}

static int asked;

static wf_status count(void *comm, wf_wait *wait)
{
    asked++;
    return WF_OK;
}

static wf_array array_new(int64_t n)
{
    wf_array a = {.dtype = WF_F32, .shape = WF_SHAPE(n)};
    WF_EXPECT_OK(wf_pool_take(ctx, (size_t)n * sizeof(float), &a.data));
    return a;
}

/* A wait for a stream lets the watchdog look on: the stream may be behind a kernel that waits for other ranks. */
static void waits(void)
{
    const wf_kernels *const k = ctx->k;
    const wf_array x = array_new(100), total = array_new(1);
    wf_stream *stream = NULL;
    ctx->waiting = count;
    WF_EXPECT(!emulated_hurries(), "the context's own stream is ahead of others");
    WF_EXPECT_OK(k->stream_new(ctx, &stream));
    WF_EXPECT(emulated_hurries(), "a stream of communication waits for room beside computation");
    WF_EXPECT_OK(k->stream_use(ctx, stream));
    WF_EXPECT_OK(k->fill(ctx, &x, 1));
    WF_EXPECT_OK(k->stream_use(ctx, NULL));
    asked = 0;
    k->stream_free(ctx, stream);
    WF_EXPECT(asked > 0, "a stream is freed without a look at the others");
    WF_EXPECT_OK(k->fill(ctx, &x, 1));
    asked = 0;
    WF_EXPECT_OK(k->sum(ctx, &x, 1, &total)); /* the first of its stream that wants workspace */
    WF_EXPECT(asked > 0, "workspace grows without a look at the others");
    ctx->waiting = NULL;
    wf_pool_give(ctx, x.data, 0);
    wf_pool_give(ctx, total.data, 0);
}

/* Up to 2 KiB go to the device as the argument of one launch. */
static void small_puts(void)
{
    static const size_t lengths[] = {1, 600, 2048};
    static unsigned char from[2048], back[2048];
    const wf_array to = array_new(512);
    for (size_t i = 0; i < sizeof from; i++)
        from[i] = (unsigned char)(i * 7 + 1);
    for (int l = 0; l < 3; l++) {
        const int before = emulated_tasks();
        WF_EXPECT_OK(ctx->k->to_device(ctx, to.data, from, lengths[l]));
        WF_EXPECT(emulated_tasks() == before + 1, "%zu bytes take %d launches", lengths[l], emulated_tasks() - before);
        WF_EXPECT_OK(ctx->k->to_host(ctx, back, to.data, lengths[l]));
        WF_EXPECT(!memcmp(back, from, lengths[l]), "%zu bytes come back as others", lengths[l]);
    }
    wf_pool_give(ctx, to.data, 0);
}

/* The driver is asked for the room of a kernel at its first launch, and not again: it takes longer than a launch. */
static void fits_once(void)
{
    const wf_array x = array_new(100), y = array_new(100);
    const wf_strided from = {.data = x.data, .dtype = WF_F32, .rank = 1, .dim = {50}, .stride = {1}};
    const wf_strided to = {.data = y.data, .dtype = WF_F32, .rank = 1, .dim = {50}, .stride = {2}};
    int before = emulated_fits_asked();
    WF_EXPECT_OK(ctx->k->binary(ctx, &(wf_binary_args){.a = &x, .y = &y, .alpha = 2}));
    WF_EXPECT(emulated_fits_asked() == before + 1, "a kernel is launched after %d questions",
              emulated_fits_asked() - before);
    for (int i = 0; i < 3; i++)
        WF_EXPECT_OK(ctx->k->binary(ctx, &(wf_binary_args){.a = &x, .y = &y, .alpha = i}));
    WF_EXPECT(emulated_fits_asked() == before + 1, "it is launched again after %d more",
              emulated_fits_asked() - before - 1);
    before = emulated_fits_asked();
    WF_EXPECT_OK(ctx->k->copy(ctx, &from, &to, true));
    WF_EXPECT(emulated_fits_asked() == before + 1, "another kernel takes the room of the first");
    wf_pool_give(ctx, x.data, 0);
    wf_pool_give(ctx, y.data, 0);
}

#define MIB ((size_t)1 << 20)

/* Returns true if every element of the array has this value. Waits for all earlier work of the device. */
static bool all_are(const wf_array *a, float value)
{
    static float got[2 * MIB / sizeof(float)];
    const int64_t n = wf_array_count(a);
    WF_EXPECT_OK(ctx->k->to_host(ctx, got, a->data, (size_t)n * sizeof(float)));
    for (int64_t i = 0; i < n; i++)
        if (got[i] != value)
            return false;
    return true;
}

/* Checks that the pool returns its free blocks, which kernels may still be writing, if cudaMalloc has no more memory,
 * and asks again; what was in use stays. A request that cannot be met is an error that leaves the device as it was. */
static void out_of_memory(void)
{
    const wf_kernels *const k = ctx->k;
    void *data = NULL;
    emulated_room(12 * MIB);
    const wf_array small = array_new(2 * MIB / sizeof(float)), a = array_new(4 * MIB / sizeof(float)),
                   b = array_new(5 * MIB / sizeof(float));
    WF_EXPECT_OK(k->fill(ctx, &small, 3));
    WF_EXPECT_OK(k->fill(ctx, &a, 4));
    WF_EXPECT_OK(k->fill(ctx, &b, 5));
    wf_pool_give(ctx, a.data, 0);
    wf_pool_give(ctx, b.data, 0);
    WF_EXPECT_OK(wf_pool_take(ctx, 10 * MIB, &data));
    WF_EXPECT(data && wf_ctx_memory(ctx).bytes_in_use >= 12 * MIB, "%zu bytes in use", wf_ctx_memory(ctx).bytes_in_use);
    WF_EXPECT(all_are(&small, 3), "a block in use is lost");
    void *more = &more;
    WF_EXPECT(wf_pool_take(ctx, 3 * MIB, &more) == WF_ERR_MEMORY && strstr(wf_error_message(), "cudaMalloc") && !more,
              "3 MiB too many: %s", wf_error_message());
    wf_error_clear();
    wf_pool_give(ctx, data, 0);
    WF_EXPECT_OK(k->fill(ctx, &small, 6));
    WF_EXPECT(all_are(&small, 6), "the device computes no more");
    WF_EXPECT_OK(wf_pool_take(ctx, 3 * MIB, &more));
    wf_pool_give(ctx, more, 0);
    wf_pool_give(ctx, small.data, 0);
    emulated_room(SIZE_MAX / 2);
}

/* A driver, or a sandbox around it, has several codes for memory that it shares with no other process. All of them mean
 * "cannot", after which the library takes another way; an argument that is wrong is an error. */
static void shares_nothing(void)
{
    static const struct {
        int error;
        wf_status status;
    } code[] = {{801, WF_ERR_UNSUPPORTED}, {217, WF_ERR_UNSUPPORTED}, {304, WF_ERR_UNSUPPORTED},
                {999, WF_ERR_UNSUPPORTED}, {205, WF_ERR_UNSUPPORTED}, {1, WF_ERR_STATE}};
    const wf_array x = array_new(100);
    for (size_t i = 0; i < sizeof code / sizeof *code; i++) {
        wf_share share = {0};
        void *data = NULL;
        emulated_bar_sharing(code[i].error);
        const wf_status shared = ctx->k->share(ctx, x.data, 400, &share);
        WF_EXPECT(shared == code[i].status, "share, error %d: %s", code[i].error, wf_status_name(shared));
        WF_EXPECT(strstr(wf_error_message(), "emulated"), "it says: %s", wf_error_message());
        const wf_status mapped = ctx->k->map(ctx, &share, &data);
        WF_EXPECT(mapped == code[i].status, "map, error %d: %s", code[i].error, wf_status_name(mapped));
        wf_error_clear();
    }
    emulated_bar_sharing(0);
    wf_pool_give(ctx, x.data, 0);
}

static void other_context(void)
{
    wf_ctx *host[2] = {wf_ctx_new((wf_ctx_opts){.device = "cpu"}), wf_ctx_new((wf_ctx_opts){.device = "cpu"})};
    wf_tensor *here = wf_tensor_new(ctx, WF_F32, WF_SHAPE(3));
    wf_tensor *there[2] = {wf_tensor_new(host[0], WF_F32, WF_SHAPE(3)), wf_tensor_new(host[1], WF_F32, WF_SHAPE(3))};
    WF_MUST(wf_tensor_fill(here, 1));
    WF_MUST(wf_tensor_fill(there[0], 2));
    WF_EXPECT_ERROR(WF_ERR_ARGUMENT, wf_tensor_assign(here, there[0]));
    WF_EXPECT_ERROR(WF_ERR_ARGUMENT, wf_tensor_assign(there[0], here));
    WF_EXPECT_OK(wf_tensor_assign(there[1], there[0]));
    float copied[3] = {0};
    WF_MUST(wf_tensor_export(there[1], copied, sizeof copied));
    WF_EXPECT(copied[0] == 2 && copied[2] == 2, "the host's memory is copied: %g", (double)copied[0]);
    wf_tensor_free(here);
    for (int i = 0; i < 2; i++) {
        wf_tensor_free(there[i]);
        WF_MUST(wf_ctx_free(host[i]));
    }
}

int main(int argc, char **argv)
{
    ctx = wf_ctx_new((wf_ctx_opts){.device = "cuda"});
    WF_MUST(wf_check(ctx));
    const int code = test_main(argc, argv,
                               (test_case[]){{"too_old", too_old},
                                             {"waits", waits},
                                             {"small_puts", small_puts},
                                             {"fits_once", fits_once},
                                             {"out_of_memory", out_of_memory},
                                             {"shares_nothing", shares_nothing},
                                             {"other_context", other_context},
                                             {0}});
    WF_MUST(wf_ctx_free(ctx));
    return code;
}
