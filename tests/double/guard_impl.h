#ifndef WF_TESTS_DOUBLE_GUARD_IMPL_H
#define WF_TESTS_DOUBLE_GUARD_IMPL_H

#include "tests/double/guard.h"

void guard_refuse(const char *what, const char *why);

/* guard_memory.c */
wf_status guard_alloc(wf_ctx *ctx, size_t bytes, void **data);
void guard_release(wf_ctx *ctx, void *data, size_t bytes);
wf_status guard_share(wf_ctx *ctx, void *data, size_t bytes, wf_share *share);
wf_status guard_map(wf_ctx *ctx, const wf_share *share, void **data);
void guard_unmap(wf_ctx *ctx, void *data);
void guard_need_host(const char *what, const void *data, size_t bytes);

/* guard_stream.c */
wf_status guard_stream_new(wf_ctx *ctx, wf_stream **stream);
void guard_stream_free(wf_ctx *ctx, wf_stream *stream);
wf_status guard_stream_use(wf_ctx *ctx, wf_stream *stream);
wf_status guard_stream_finish(wf_ctx *ctx, wf_stream *stream);
wf_status guard_event_new(wf_ctx *ctx, wf_event **event);
void guard_event_free(wf_ctx *ctx, wf_event *event);
wf_status guard_event_record(wf_ctx *ctx, wf_event *event, wf_stream *stream);
wf_status guard_event_wait(wf_ctx *ctx, wf_event *event, wf_stream *stream);
wf_status guard_event_done(wf_ctx *ctx, wf_event *event, bool *done);
wf_status guard_to_device_begin(wf_ctx *ctx, void *device, const void *host, size_t bytes, wf_stream *stream);
wf_status guard_to_host_begin(wf_ctx *ctx, void *host, const void *device, size_t bytes, wf_stream *stream);
/* All that the stream in use has to do before the next slot works on it. */
void guard_stream_catch_up(void);

#endif
