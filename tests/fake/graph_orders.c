/* The doubles of CUDA replay a graph in any order that its edges allow, so that a missing edge is seen. The same
 * program runs on the guarded and on the emulated device. */
#include "core/context_author.h"
#include "tests/test.h"

enum { LAUNCHES = 64 };

static wf_ctx *ctx;
static wf_stream *other;
static wf_event *forked, *written, *joined;
static wf_array x;

/* Captures x = 1 on the context's stream and x = 2 on another. */
static wf_graph *capture_fills(bool ordered)
{
    const wf_kernels *const k = ctx->k;
    wf_graph *graph = NULL;
    WF_EXPECT_OK(k->capture_begin(ctx));
    WF_EXPECT_OK(k->event_record(ctx, forked, NULL));
    WF_EXPECT_OK(k->event_wait(ctx, forked, other));
    WF_EXPECT_OK(k->fill(ctx, &x, 1));
    WF_EXPECT_OK(k->event_record(ctx, written, NULL));
    if (ordered)
        WF_EXPECT_OK(k->event_wait(ctx, written, other));
    WF_EXPECT_OK(k->stream_use(ctx, other));
    WF_EXPECT_OK(k->fill(ctx, &x, 2));
    WF_EXPECT_OK(k->stream_use(ctx, NULL));
    WF_EXPECT_OK(k->event_record(ctx, joined, other));
    WF_EXPECT_OK(k->event_wait(ctx, joined, NULL));
    WF_EXPECT_OK(k->capture_end(ctx, &graph));
    return graph;
}

/* Returns how many launches leave 2 in x; the others must leave 1. */
static int count_twos(bool ordered)
{
    const wf_kernels *const k = ctx->k;
    wf_graph *const graph = capture_fills(ordered);
    int twos = 0;
    for (int i = 0; i < LAUNCHES; i++) {
        float value = 0;
        WF_EXPECT_OK(k->graph_launch(ctx, graph));
        WF_EXPECT_OK(k->to_host(ctx, &value, x.data, sizeof value));
        WF_EXPECT(value == 1 || value == 2, "launch %d leaves %g", i, (double)value);
        twos += value == 2;
    }
    k->graph_free(ctx, graph);
    return twos;
}

static void with_an_edge(void)
{
    const int twos = count_twos(true);
    WF_EXPECT(twos == LAUNCHES, "an edge holds in %d of %d launches", twos, LAUNCHES);
}

static void without_an_edge(void)
{
    const int twos = count_twos(false);
    WF_EXPECT(twos > 0 && twos < LAUNCHES, "the second task comes last in %d of %d launches", twos, LAUNCHES);
}

int main(int argc, char **argv)
{
    ctx = wf_ctx_new((wf_ctx_opts){.device = "cuda"});
    WF_MUST(wf_check(ctx));
    const wf_kernels *const k = ctx->k;
    x = (wf_array){.dtype = WF_F32, .shape = WF_SHAPE(1)};
    WF_MUST(wf_pool_take(ctx, sizeof(float), &x.data));
    WF_MUST(k->stream_new(ctx, &other));
    WF_MUST(k->event_new(ctx, &forked));
    WF_MUST(k->event_new(ctx, &written));
    WF_MUST(k->event_new(ctx, &joined));
    const int code =
        test_main(argc, argv, (test_case[]){{"with_an_edge", with_an_edge}, {"without_an_edge", without_an_edge}, {0}});
    k->event_free(ctx, forked);
    k->event_free(ctx, written);
    k->event_free(ctx, joined);
    k->stream_free(ctx, other);
    wf_pool_give(ctx, x.data, 0);
    WF_MUST(wf_ctx_free(ctx));
    return code;
}
