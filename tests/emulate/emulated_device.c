/* The state of a device in a context, on the emulated device: what it is taken for, and how the host waits for it. */
#include "core/context_author.h"
#include "tests/emulate/dnn.h"
#include "tests/test.h"

#include <string.h>

static wf_ctx *ctx;

/* A GPU that cannot run the kernels is none, and one line says why. */
static void too_old(void)
{
    emulated_capability(75);
    WF_EXPECT(!wf_kernels_cuda(), "a device of compute capability 7.5 is taken");
    WF_EXPECT(wf_error_code() == WF_ERR_STATE && strstr(wf_error_message(), "7.5, and 8.0 is the least") &&
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

static wf_status count(void *comm, int64_t *since)
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

/* Whoever waits for a stream lets the watchdog look on: the stream may be behind a kernel that waits for other ranks.
 */
static void waits(void)
{
    const wf_kernels *const k = ctx->k;
    const wf_array x = array_new(100), total = array_new(1);
    wf_stream *stream = NULL;
    ctx->waiting = count;
    WF_EXPECT_OK(k->stream_new(ctx, &stream));
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

int main(int argc, char **argv)
{
    ctx = wf_ctx_new((wf_ctx_opts){.device = "cuda"});
    WF_MUST(wf_check(ctx));
    const int code = test_main(argc, argv, (test_case[]){{"too_old", too_old}, {"waits", waits}, {0}});
    WF_MUST(wf_ctx_free(ctx));
    return code;
}
