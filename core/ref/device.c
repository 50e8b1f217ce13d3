/* The device slots of a filling whose memory is the host's: allocation, transfers, and streams and events on which
 * all work is done at once. */
#include "core/ref/ref_impl.h"

#include <stdio.h>
#include <unistd.h>

/* What handles point to: never read or written. */
static char handle;

int wf_ref_device_count(void)
{
    return 1;
}

wf_status wf_ref_device_choose(wf_ctx *ctx, int ordinal)
{
    WF_CHECK(ordinal == 0, WF_ERR_ARGUMENT, "there is no device %d: the host is device 0", ordinal);
    return WF_OK;
}

/* The memory of a process is its own. */
wf_status wf_ref_device_identity(wf_ctx *ctx, char identity[WF_DEVICE_IDENTITY])
{
    snprintf(identity, WF_DEVICE_IDENTITY, "host memory of process %ld", (long)getpid());
    return WF_OK;
}

/* Memory that this process can read is device 0's. */
wf_status wf_ref_device_of(wf_ctx *ctx, const void *data, int *ordinal)
{
    *ordinal = 0;
    return WF_OK;
}

wf_status wf_ref_stream_new(wf_ctx *ctx, wf_stream **stream)
{
    *stream = (wf_stream *)(void *)&handle;
    return WF_OK;
}

void wf_ref_stream_free(wf_ctx *ctx, wf_stream *stream)
{
}

wf_status wf_ref_stream_done(wf_ctx *ctx, wf_stream *stream)
{
    return WF_OK;
}

wf_status wf_ref_event_new(wf_ctx *ctx, wf_event **event)
{
    *event = (wf_event *)(void *)&handle;
    return WF_OK;
}

void wf_ref_event_free(wf_ctx *ctx, wf_event *event)
{
}

/* Work is done when its call returns, so an event has always passed. */
wf_status wf_ref_event_pass(wf_ctx *ctx, wf_event *event, wf_stream *stream)
{
    return WF_OK;
}

wf_status wf_ref_event_done(wf_ctx *ctx, wf_event *event, bool *done)
{
    *done = true;
    return WF_OK;
}

wf_status wf_ref_transfer_begin(wf_ctx *ctx, void *to, const void *from, size_t bytes, wf_stream *stream)
{
    return wf_ref_transfer(ctx, to, from, bytes);
}

wf_status wf_ref_share(wf_ctx *ctx, void *data, size_t bytes, wf_share *share)
{
    WF_FAIL(WF_ERR_UNSUPPORTED, "device \"%s\" shares no memory between processes", ctx->k->name);
}

wf_status wf_ref_map(wf_ctx *ctx, const wf_share *share, void **data)
{
    WF_FAIL(WF_ERR_UNSUPPORTED, "device \"%s\" shares no memory between processes", ctx->k->name);
}

void wf_ref_unmap(wf_ctx *ctx, void *data)
{
}
