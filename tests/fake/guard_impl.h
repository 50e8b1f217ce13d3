#ifndef WF_TESTS_FAKE_GUARD_IMPL_H
#define WF_TESTS_FAKE_GUARD_IMPL_H

#include "tests/fake/guard.h"

void guard_refuse(const char *what, const char *why);

/* guard_memory.c */
wf_status guard_alloc(wf_ctx *ctx, size_t bytes, void **data);
void guard_release(wf_ctx *ctx, void *data, size_t bytes);
wf_status guard_share(wf_ctx *ctx, void *data, size_t bytes, wf_share *share);
wf_status guard_map(wf_ctx *ctx, const wf_share *share, void **data);
void guard_unmap(wf_ctx *ctx, void *data);
void guard_need_host(const char *what, const void *data, size_t bytes);

/* guard_capture.c: arguments of a slot, copied where they lie in host memory, and what does it again. */
#define GUARD_VALUES 12
typedef struct guard_value {
    void *p;
    bool owned;
    int64_t i;
    double d;
} guard_value;
typedef wf_status (*guard_call)(wf_ctx *ctx, const guard_value *value);
guard_value guard_save(const void *host, size_t bytes);
guard_value guard_save_array(const wf_array *a);
wf_status guard_keep_call(guard_call call, const guard_value value[GUARD_VALUES]);
/* An event of the graph's own stands for the one that is recorded; *number: of the last thing before it. */
wf_event *guard_keep_record(wf_ctx *ctx, wf_stream *stream, int64_t *number);
void guard_keep_wait(wf_event *event, const wf_stream *of, int64_t number, wf_stream *stream);
wf_status guard_not_capturing(const char *what);
wf_status guard_capture_begin(wf_ctx *ctx);
wf_status guard_capture_end(wf_ctx *ctx, wf_graph **graph);
wf_status guard_graph_launch(wf_ctx *ctx, wf_graph *graph);
void guard_graph_free(wf_ctx *ctx, wf_graph *graph);

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
wf_stream *guard_stream_in_use(void);

#endif
