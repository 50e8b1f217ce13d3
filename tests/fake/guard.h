/* A device for tests without one: device "cuda" of a program that links this folder instead of core/cuda. Its memory is
 * host memory that can be touched only while a slot of the kernel table runs, which then does what `ref` does (contexts
 * of f64) or `cpu` (of f32). So whoever reads or writes a tensor past the table crashes, and so does a slot that is
 * given memory of the host where it needs the device's; the process says which and ends.
 *
 * What is put on a stream other than the context's own is done late: when an event or a stream is asked for, and one
 * step at each question. So whoever uses a copy that has not been waited for finds old bytes.
 */
#ifndef WF_TESTS_FAKE_GUARD_H
#define WF_TESTS_FAKE_GUARD_H

#include "core/context_author.h"

/* How many devices there are from now on: 8 at the beginning, each with an identity of its own. */
void guard_devices(int count);

/* The program makes another device than the context's the thread's current one, until a slot runs; true if none has. */
void guard_set_device(int ordinal);
bool guard_is_here(void);

/* How memory is shared with other processes from now on: as it should be at the beginning. */
typedef enum guard_sharing {
    GUARD_SHARES = 0,
    GUARD_SHARES_NOTHING, /* `share` is WF_ERR_UNSUPPORTED */
    GUARD_MAPS_NOTHING,   /* `map` is */
    GUARD_MAPS_COPIES     /* `map` gives memory that is not the other's */
} guard_sharing;
void guard_share_so(guard_sharing how);

/* How often the host has read the device's memory so far: calls of to_host and to_host_begin. */
int64_t guard_reads(void);

/* For the double of NCCL. Opens and closes the memory; may be nested. */
void guard_open(void);
void guard_close(void);
/* Ends the process where some of these bytes are not the device's. */
void guard_need_device(const char *what, const void *data, size_t bytes);
bool guard_holds(const void *data); /* is device memory */
/* Does one step of what a stream has to do. */
void guard_stream_go_on(wf_stream *stream);
/* Puts on a stream a step that is over once it returns true. */
void guard_stream_step(wf_stream *stream, bool (*step)(void *arg), void *arg);
/* While a step is captured, instead: every launch puts it there with again(arg); drop(arg) where none follows. */
bool guard_capturing(void);
void guard_keep_step(wf_stream *stream, bool (*step)(void *arg), void *(*again)(void *arg), void (*drop)(void *arg),
                     void *arg);

#endif
