/* The operation guard, around every call of a communicator: lets ranks learn that they make the same call, keeps the
 * deadline of every wait, and brings errors of one rank to all. For comm/guard and what stands on it. */
#ifndef WF_COMM_GUARD_IMPL_H
#define WF_COMM_GUARD_IMPL_H

#include "comm/call_author.h"
#include "comm/safety/safety_impl.h"

/* --- operation.c: the frame of every call --- */
/* Starts a collective on a communicator that lives: numbers, records and announces it (wf_control_announce). */
wf_status wf_guard_enter(wf_comm *comm, const wf_call *call) WF_NODISCARD;
/* Surround a run of the call's schedule. `synchronizes`: no rank ends the run before messages, or flags of slots, prove
 * that all have begun it (both hold the tag, which has the call's hash); else the call's record is sent. */
wf_status wf_guard_run_begin(wf_comm *comm, bool synchronizes) WF_NODISCARD;
void wf_guard_run_end(wf_comm *comm, bool synchronizes);
/* Waits until the left neighbour is known to make the same call. */
wf_status wf_guard_settle(wf_comm *comm) WF_NODISCARD;
/* Like wf_guard_settle without waiting: *settled says if it is known. */
wf_status wf_guard_try_settle(wf_comm *comm, bool *settled) WF_NODISCARD;
/* Ends every public call; `status`: how it went. An error kills the communicator and becomes that of all ranks. */
wf_status wf_guard_end(wf_comm *comm, const char *operation, wf_status status) WF_NODISCARD;
/* Starts a message to or from one rank, on a communicator that lives. */
wf_status wf_guard_point(wf_comm *comm, const char *operation, int peer, int tag) WF_NODISCARD;
/* Starts a meeting of some of the ranks, of which the others know nothing. */
wf_status wf_guard_meet(wf_comm *comm, const char *operation) WF_NODISCARD;
wf_status wf_check_rank(const wf_comm *comm, const char *what, int rank) WF_NODISCARD;
wf_status wf_check_op(wf_reduce_op op) WF_NODISCARD;

/* --- control.c: records and notices on a communicator of their own --- */

/* Allocates the channel, before the ranks meet; wf_control_close frees it, whether it was opened or not. */
wf_status wf_control_new(wf_comm *comm) WF_NODISCARD;
/* Takes over *mpi_comm, an MPI_Comm that carries nothing else. */
wf_status wf_control_open(wf_comm *comm, const void *mpi_comm) WF_NODISCARD;
/* Keeps the record to be compared; shared memory shows it at once, a message only after wf_control_show. hash: of what
 * wf_call_record_equal compares; in shared memory records of equal hashes count as equal. May wait for a place. */
wf_status wf_control_announce(wf_comm *comm, const wf_call_record *record, uint64_t hash) WF_NODISCARD;
/* Sends the record of the call in progress, unless that was done or is not needed. */
wf_status wf_control_show(wf_comm *comm) WF_NODISCARD;
/* All ranks are known to have begun the call in progress: nothing waits for its record. */
void wf_control_confirm(wf_comm *comm);
/* Bytes of shared memory that each rank needs for its records. */
size_t wf_control_shared_bytes(void);
/* From now on, until wf_control_unshare, records of rank r go through zeroed memory that all ranks see, r strides
 * behind `first`. To be called where all ranks have made the same calls and none of these is unconfirmed. Local. */
wf_status wf_control_share(wf_comm *comm, char *first, size_t stride) WF_NODISCARD;
void wf_control_unshare(wf_comm *comm);
/* Returns true if one more call can be announced without waiting for earlier ones to be confirmed. */
bool wf_control_has_room(wf_comm *comm);
bool wf_control_confirmed(const wf_comm *comm); /* of all that is announced */
/* The left neighbour if the call is not confirmed; else -1. */
int wf_control_missing(const wf_comm *comm);
/* Receives records and notices, here and in the communicators that this one was split from, and compares records: the
 * error of a disagreement or of a notice is returned. MPI is asked at most every 20 ms, unless the caller `waits`. */
wf_status wf_control_poll(wf_comm *comm, bool waits) WF_NODISCARD;
/* Tells all ranks of a failure in the call that this rank is in, or else after the last one; `refused`: in the next
 * one, which it did not enter. Ranks that are in earlier calls go on up to there. */
void wf_control_tell(wf_comm *comm, wf_status status, const char *text, bool refused);
/* Tells all ranks that this one works for ms. Until when another one said that it works, 0: none; *what: at what. */
wf_status wf_control_busy(wf_comm *comm, const char *what, int64_t ms) WF_NODISCARD;
int64_t wf_control_busy_until_ns(const wf_comm *comm, const char **what);
/* Returns true if the program of a rank is known to have ended: it sent a notice without an error. */
bool wf_control_gone(const wf_comm *comm, int rank);
/* Returns true if rank 0 is known to have decided which error counts, in any call; *status and text are then that
 * error. */
bool wf_control_verdict(wf_comm *comm, wf_status *status, char text[WF_FAILURE_TEXT]);
/* Says farewell to the right neighbour: this rank calls nothing more, since it closes ("close") or ends ("exit"). */
void wf_control_leave(wf_comm *comm, const char *operation);
void wf_control_close(wf_comm *comm);
/* Frees closed channels whose left neighbour has said its farewell since. */
void wf_control_sweep(void);

/* --- failure.c --- */

/* This rank has seen a disagreement, a circle or a time-out: tells the others, agrees on one error, and returns it. */
wf_status wf_failure_seen(wf_comm *comm, wf_status status, const char *text);
/* Does so with this thread's last error, which only this rank has; `refused`: it kept a collective from beginning. */
wf_status wf_failure_own(wf_comm *comm, wf_status status, bool refused);
/* Tells the other ranks that this program ends, and does not wait for them. */
void wf_failure_leave(wf_comm *comm, int code);
/* Another rank has told of this failure: waits for rank 0's decision, and returns the error that counts. */
wf_status wf_failure_heard(wf_comm *comm, wf_status status, const char *text);
/* Comm dies of the error of `from`, which it was split from, or which is its `async`. */
wf_status wf_failure_inherit(wf_comm *comm, const wf_comm *from);
/* Before comm closes: marks it as dead if one that it was split from is, as its next call would. */
void wf_failure_settle(wf_comm *comm);
/* Returns true if a communicator of several ranks has died in this process: it waits only briefly for the other ranks
 * at its exit. */
bool wf_failure_happened(void);
/* free(data), but of a communicator whose unfinished messages may still come to rest there: then it is kept. */
void wf_comm_release(const wf_comm *comm, void *data);

/* --- deadline.c --- */
typedef struct wf_deadline {
    wf_wait wait; /* since its begin, or the last progress */
    int64_t polls;
    int peer;                   /* the rank that is awaited, which a time-out names; -1: none, it awaits the GPU */
    bool unheeding;             /* failure notices are not polled: the awaited rank polls them, and answers */
    int64_t looked_ns, said_ns; /* when it last looked at the peer, and wrote to the log */
    int64_t left_ns;            /* since when the peer is seen to have left; 0: it is not */
    int64_t circle_ns;          /* since when the same ranks wait for each other */
    uint64_t circle;            /* 0: they do not */
    int noted;                  /* 1 after the poll by which the wait has lasted ten milliseconds; 2 later */
} wf_deadline;
wf_deadline wf_deadline_new(void);
/* Returns true if this node has more ranks than processors: a rank that waits then yields at once. */
bool wf_deadline_crowded(const wf_comm *comm);
/* Called between two looks at what is awaited: polls the control channel and the clock, then yields or sleeps. */
wf_status wf_deadline_poll(wf_comm *comm, wf_deadline *deadline) WF_NODISCARD;

/* --- native.c: the native transport, with waits that see a rank die --- */

/* Connects the ranks, with the communicator's time-out. Collective. */
wf_status wf_native_connect(wf_comm *comm, const wf_native_id *id) WF_NODISCARD;
/* From now on the context's waits for the device end with an error if a rank of comm, which is connected, dies. */
void wf_native_watch(wf_comm *comm);
/* Each does nothing where ranks are not connected natively: returns an asynchronous error of the transport; ends
 * kernels that wait for other ranks, once the communicator is dead; makes the context's stream wait for what the
 * background stream has summed. */
wf_status wf_native_poll(wf_comm *comm) WF_NODISCARD;
void wf_native_give_up(wf_comm *comm);
wf_status wf_native_join_sums(wf_comm *comm) WF_NODISCARD;
/* Begins a group of calls. A captured step that has any call checks before each run that comm is alive. */
wf_status wf_native_begin(wf_comm *comm) WF_NODISCARD;
/* Puts a call, or what stands between calls, on the transport's stream (wf_native_step); own is the communicator. */
wf_status wf_native_run(void *own, wf_native_kind kind, wf_reduce_op op, int peer, const wf_strided *x,
                        const wf_strided *y) WF_NODISCARD;
/* Fails while a step is captured: what follows passes through the host's memory, which a captured step cannot have. */
wf_status wf_comm_forbid_capture(wf_comm *comm, const char *what) WF_NODISCARD;
/* Waits for what is on its way, with the communicator's time-out; gives it up where the communicator is dead. */
void wf_native_close(wf_comm *comm);

/* --- commit.c --- */
/* Before a call of MPI that blocks and that the ranks member[0..members) make together, once all of them have come:
 * WF_OK on all or on none; *id, which is not 0, becomes that of the first. `status`: this rank's so far. No collective
 * may be under way. */
wf_status wf_guard_commit(wf_comm *comm, const char *operation, const int *member, int members, wf_status status,
                          uint64_t *id) WF_NODISCARD;

#endif
