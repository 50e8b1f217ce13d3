/* The flight recorder: the last calls of a rank, in a mapped file of its process that stays when the process is killed.
 * For programs that read it (wf-doctor --trace); and the record of a call, which comm compares between ranks. */
#ifndef WF_COMM_RECORDER_AUTHOR_H
#define WF_COMM_RECORDER_AUTHOR_H

#include "core/shape.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WF_TRACE_MAGIC   "weft trace 5"
#define WF_TRACE_SUFFIX  ".trace"
#define WF_TRACE_EVENTS  256
#define WF_FAILURE_TEXT  640
#define WF_RECORD_TEXT   256
#define WF_OPERATION     20
#define WF_SITE_FILE     28
#define WF_PURPOSE       64
#define WF_TRACE_STRINGS 64
#define WF_TRACE_STEP    96
#define WF_RANK_TEXT     28

/* What a call is, for the ring neighbour to compare and for errors to print. Fields that do not matter are -1. */
typedef struct wf_call_record {
    uint64_t sequence; /* number of the collective in its communicator; 0 for a message between two */
    char operation[WF_OPERATION];
    int32_t dtype, dims; /* of the tensor; dims -1: shapes may differ */
    int32_t op, root;
    int32_t peer, tag;              /* of a message between two; -1 in collectives */
    int32_t world_root, world_peer; /* the same ranks as the world counts them */
    int64_t dim[WF_MAX_RANK];
    uint64_t plan;           /* of an exchange: who has and needs what, as a number; else 0 */
    char file[WF_SITE_FILE]; /* where the program called; empty: not known */
    int32_t line;
    char purpose[WF_PURPOSE]; /* what it is for; empty: not known */
} wf_call_record;

typedef enum wf_event_state {
    WF_EVENT_ENTERED = 1,
    WF_EVENT_SETTLED, /* the left neighbour is known to make the same call */
    WF_EVENT_DONE,
    WF_EVENT_FAILED
} wf_event_state;

typedef struct wf_trace_event {
    uint64_t number;                          /* 1, 2, ... of the events of the process; 0: there is none */
    uint64_t comm;                            /* the same on all its ranks */
    int32_t comm_rank, comm_size, world_rank; /* world_rank: what the world calls comm_rank */
    int32_t state;
    wf_call_record call;
    uint64_t bytes;           /* sent in this call */
    int64_t start_ns, end_ns; /* of the monotonic clock; end_ns 0: not over. Without a profile to a few milliseconds */
    char step[WF_TRACE_STEP]; /* of the call's schedule that is waited for, if that lasts; else empty */
} wf_trace_event;

/* What a process does, for the others of its machine; each word is read and written as a whole. */
typedef struct wf_trace_state {
    int64_t beat_ns;     /* of the monotonic clock: the last beat of its watchdog, which shows that it runs */
    int64_t awaits;      /* the process that it waits for; 0: it computes, or has not waited long */
    int64_t since_ns;    /* when that wait began, or last got on */
    uint64_t wait_event; /* the event of the call that waits */
} wf_trace_state;

typedef struct wf_trace {
    char magic[16];
    char job[WF_TRACE_STRINGS]; /* the same in all processes of a job */
    char host[WF_TRACE_STRINGS];
    int64_t pid, start_ns;        /* start: of the time of the day */
    int32_t rank, size;           /* of the job; -1 until MPI has started */
    int64_t offset_ns;            /* to be added to times for those of the day */
    char where[WF_TRACE_STRINGS]; /* a call of MPI that may wait, as MPI_Init; else empty */
    char error[WF_FAILURE_TEXT];  /* of which the first communicator died */
    wf_trace_state state;
    uint64_t events;                       /* so far */
    wf_trace_event event[WF_TRACE_EVENTS]; /* number n is at n % WF_TRACE_EVENTS */
} wf_trace;

/* How messages name a rank that the world counts as `world` and its communicator as `own`: "5 (1)", or "1" where both
 * are 1. Writes into text and returns it. */
const char *wf_rank_numbers(int world, int own, char text[WF_RANK_TEXT]);
/* wf_rank_numbers for rank `own` of a communicator whose rank r is rank world_rank[r] of the world; NULL: of the world
 * itself. */
const char *wf_rank_listed(const int32_t *world_rank, int own, char text[WF_RANK_TEXT]);
/* wf_rank_listed into memory that lasts as long as the enclosing block: for the arguments of one message. */
#define WF_RANK_LISTED(world_rank, own) wf_rank_listed(world_rank, own, (char[WF_RANK_TEXT]){0})

/* Returns true if both are the same call, wherever it was made. */
bool wf_call_record_equal(const wf_call_record *a, const wf_call_record *b);
/* "allreduce(f32 [3], sum) at train.c:40" */
const char *wf_call_record_text(const wf_call_record *record, char text[WF_RECORD_TEXT]);
/* The text, and how the call stands: "..., collective 12, entered 3.2 s ago". `now_ns` is of the monotonic clock. */
const char *wf_trace_event_text(const wf_trace_event *event, int64_t now_ns, char text[WF_FAILURE_TEXT]);

#endif
