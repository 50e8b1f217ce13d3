/* The engine from inside. For comm/engine and what stands on it. */
#ifndef WF_COMM_ENGINE_ENGINE_IMPL_H
#define WF_COMM_ENGINE_ENGINE_IMPL_H

#include "comm/engine/collectives_author.h"
#include "comm/engine/run_author.h"
#include "comm/guard/guard_impl.h"

/* --- progress.c --- */

/* The engine of a communicator whose rank and size are known; node[r] is the number of rank r's node. */
wf_status wf_engine_open(wf_comm *comm, const int32_t *node) WF_NODISCARD;
void wf_engine_close(wf_comm *comm);
/* Runs a call to its end: `in` is its input 0, `out` its output 0 or what is both. They are in host memory; of a sum
 * (WF_CALL_SUM and the calls of shards) in device memory, which the schedule copies through host memory where the two
 * differ (agreed.staged). The call has been entered. */
wf_status wf_engine_run(wf_comm *comm, const wf_call *call, const void *in, void *out) WF_NODISCARD;
/* Like wf_engine_run with several operands, in[i] being input i and out[i] output i, and messages of this tag. */
wf_status wf_engine_run_lists(wf_comm *comm, const wf_call *call, int tag, const void *const *in,
                              void *const *out) WF_NODISCARD;

/* A schedule that is kept, under the call that it is of, with what one run of it needs. Between begin and end it is in
 * flight: its run is advanced until that is done or fails. Entries whose schedules use no ring may be in flight
 * together. */
typedef struct wf_engine_entry {
    struct wf_engine_entry *next; /* used longer ago */
    wf_call call;                 /* its part is owned */
    bool busy;                    /* in flight */
    bool shared;                  /* made where the ranks of a node share memory for sums */
    wf_schedule *schedule;
    wf_run *run;
    size_t scratch_bytes, device_bytes, kept_bytes; /* of all operands of one kind */
    void *scratch, *device;                         /* their memory in flight; that of kept operands is always there */
    char *kept;
} wf_engine_entry;

/* Begins a call: in[i] is input i, out[i] output i. *flight is NULL only if there is no schedule; wf_engine_end ends it
 * in any case. */
wf_status wf_engine_begin(wf_comm *comm, const wf_call *call, const void *const *in, void *const *out,
                          wf_engine_entry **flight) WF_NODISCARD;
/* Ends what is in flight, if anything is, and sets *flight to NULL; `status`: how it went. */
void wf_engine_end(wf_comm *comm, wf_engine_entry **flight, wf_status status);
/* Waits for its end, in which steps run that were left to it (wf_builder_at_wait). */
wf_status wf_engine_wait(wf_comm *comm, const wf_engine_entry *flight) WF_NODISCARD;

/* Entries, the last one used first: `most` of them, and more where so many are in flight. */
typedef struct wf_engine_store {
    wf_engine_entry *first;
    int entries, most;
} wf_engine_store;

/* For callers with a store and schedules of their own, which are begun like calls, also where that fails. */
wf_status wf_engine_post(wf_comm *comm, wf_engine_entry *entry, const void *const *in, void *const *out) WF_NODISCARD;
/* Finds an entry of an equal call that is not in flight; NULL if there is none. */
wf_engine_entry *wf_engine_find(const wf_comm *comm, wf_engine_store *store, const wf_call *call);
/* Keeps a schedule, which is taken over in any case, under its call, in place of the one used longest ago if the store
 * is full. NULL and an error on failure. */
wf_engine_entry *wf_engine_keep(wf_comm *comm, wf_engine_store *store, const wf_call *call, wf_schedule *schedule);
/* Frees all; before the communicator is freed. */
void wf_engine_store_clear(wf_engine_store *store);
/* The configuration on which later schedules are built; a change holds from the next schedule on. */
wf_agreed *wf_engine_agreed(const wf_comm *comm);
/* The flight recorder learns of the step that a run waits for, for those who look at a job that hangs or is dead. */
void wf_engine_note(wf_comm *comm, const wf_run *run);

/* Shares memory among the ranks of each node, so that sums use it (agreed.shared). WF_OK without it, on all ranks
 * alike, where one node has none; `why` says what is missing. Collective over comm; the call has been entered. */
wf_status wf_engine_share(wf_comm *comm, char why[WF_FAILURE_TEXT]) WF_NODISCARD;
void wf_engine_unshare(wf_comm *comm);

/* --- shm_window.c --- */

typedef struct wf_shm_window {
    char *base;            /* NULL: nothing is shared */
    size_t segment, bytes; /* of each rank, and of all; that of the rank of place i in this node is the i-th */
} wf_shm_window;

/* Shares `bytes` zeroed bytes of each rank, or some more, among the ranks of every node. Where some node has no memory
 * for it, WF_OK with base NULL on all ranks, and `why` says what is missing. Collective over comm; the call has been
 * entered. */
wf_status wf_shm_window_open(wf_comm *comm, size_t bytes, wf_shm_window *window,
                             char why[WF_FAILURE_TEXT]) WF_NODISCARD;
/* This rank's view of it. Local. */
void wf_shm_window_close(wf_shm_window *window);

/* --- ring.c --- */

/* Memory of the ranks of a node, by rank of the communicator; NULL for those of other nodes. */
typedef struct wf_ring {
    wf_shm_window window;
    char **flags, **slots;
    int64_t *seen;  /* of every flag, by rank */
    int64_t pieces; /* of earlier schedules: the same on all ranks of the node */
} wf_ring;

/* As wf_engine_share: ring->flags stay NULL where nothing is shared. */
wf_status wf_ring_open(wf_comm *comm, const wf_agreed *agreed, wf_ring *ring, char why[WF_FAILURE_TEXT]) WF_NODISCARD;
void wf_ring_close(wf_ring *ring);
/* The address of a slot of a schedule in this run; its flag lies before it. */
char *wf_ring_slot(const wf_ring *ring, const wf_agreed *agreed, const wf_operand *slot);

/* The rings of pairs (wf_agreed.pairs). */
typedef struct wf_pairs {
    wf_shm_window window;
    char **flags; /* of the ranks of this node, by rank; NULL: nothing is shared */
    char *slots[WF_PAIR_RANKS][WF_PAIR_RANKS];
    int64_t pieces[1 + 2 * WF_PAIR_RANKS]; /* so far in each ring, by number */
    bool asked;                            /* the ranks have tried to share this memory */
    char why[WF_WHY];                      /* it is not shared; empty: it is, or was not asked for */
    struct wf_ipc_buffers *ipc;            /* slots in device memory; NULL: none (comm/mesh/ipc_buffers.c) */
} wf_pairs;

/* Flags, and slots in host memory where `agreed` says so; else the caller fills them. As wf_ring_open: pairs->flags
 * stay NULL where nothing is shared. A node of one rank, or of too many, takes part and shares nothing. */
wf_status wf_pairs_open(wf_comm *comm, const wf_agreed *agreed, wf_pairs *pairs,
                        char why[WF_FAILURE_TEXT]) WF_NODISCARD;
/* One more flag of each two ranks of a node, which lasts as long as the process where slots are in device memory. */
wf_ring_flag *wf_pairs_flag(const wf_pairs *pairs, const wf_agreed *agreed, int owner, int user);
void wf_pairs_close(wf_pairs *pairs, const wf_agreed *agreed);

typedef struct wf_engine {
    wf_agreed agreed;
    wf_ring ring;
    wf_pairs pairs;
    bool share_asked; /* wf_engine_share has been called, with or without success */
    char token;
    wf_engine_store store;
} wf_engine;

/* --- combine.c --- */

/* y[i] = in[0][i] op in[1][i] op ...; y may be one of the inputs. Host memory. */
wf_status wf_combine(wf_ctx *ctx, wf_reduce_op op, wf_dtype dtype, int inputs, const void *const *in, void *y,
                     int64_t count) WF_NODISCARD;

#endif
