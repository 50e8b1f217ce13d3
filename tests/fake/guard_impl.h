#ifndef WF_TESTS_FAKE_GUARD_IMPL_H
#define WF_TESTS_FAKE_GUARD_IMPL_H

#include "tests/fake/guard.h"

void guard_refuse(const char *what, const char *why);

/* guard_memory.c */
wf_alloc_fn guard_alloc;
wf_release_fn guard_release;
wf_share_fn guard_share;
wf_map_fn guard_map;
wf_unmap_fn guard_unmap;
/* Opens the memory for a slot, which may compute on all threads of the context. */
void guard_open_for(const wf_ctx *ctx);
void guard_need_host(const char *what, const void *data, size_t bytes);

/* guard_table.c: the context's device becomes the thread's current one, as in every slot. */
void guard_here(void);

/* guard_capture.c: arguments of a slot, copied where they lie in host memory, and what does it again. */
#define GUARD_VALUES 32
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
wf_capture_begin_fn guard_capture_begin;
wf_capture_end_fn guard_capture_end;
wf_graph_launch_fn guard_graph_launch;
wf_graph_free_fn guard_graph_free;

/* guard_stream.c */
wf_stream_new_fn guard_stream_new;
wf_stream_free_fn guard_stream_free;
wf_stream_fn guard_stream_use, guard_stream_finish;
wf_event_new_fn guard_event_new;
wf_event_free_fn guard_event_free;
wf_event_stream_fn guard_event_record, guard_event_wait;
wf_event_done_fn guard_event_done;
wf_transfer_begin_fn guard_to_device_begin, guard_to_host_begin;
/* All that the stream in use has to do before the next slot works on it. */
void guard_stream_catch_up(void);
wf_stream *guard_stream_in_use(void);
/* True if the context's own stream waits for events; true if a stream has work left. */
bool guard_stream_awaits(void);
bool guard_stream_busy(const wf_stream *stream);
bool guard_streams_idle(void);
/* True if a stream has a step left (guard_stream_step). */
bool guard_streams_step(void);

#endif
