/* The background stream: a queue of sums of gradients, gathers and functions, which runs between the program's own
 * calls, one after the other, on the main thread.
 *
 * What is added runs in its order, and never blocks: it advances when backward or a long kernel is between two of its
 * pieces (wf_ctx_progress), and whenever the main program waits for a message. Only wf_background_wait waits for it.
 * All ranks must add what belongs together in the same order. It has communicators of its own, so collectives of the
 * main program may be in flight at the same time.
 *
 * A function that is added gets its turn once all before it is over, and must not communicate; what it writes may be
 * sent by what is added behind it. Nothing that is added returns an error: the first one ends the stream, the rest is
 * left out, and wf_background_wait returns it.
 *
 * Where a native transport connects the ranks, calls are only put on its stream, and match by their order: what is
 * added then runs at once, which must happen at the same place among the collectives of the main program on all ranks.
 * Its work on the GPU overlaps with the computation. */
#ifndef WF_COMM_BACKGROUND_AUTHOR_H
#define WF_COMM_BACKGROUND_AUTHOR_H

#include "comm/comm.h"
#include "comm/reducer_author.h"
#include "core/status_author.h"

/* Opens a second communicator of the same ranks and name (`async`), so that messages of the stream never meet those of
 * the program. Further calls do nothing. Collective. */
wf_status wf_background_open(wf_comm *comm) WF_NODISCARD;

/* The second connection of the ranks; NULL before it is opened, and where there is one rank. */
wf_comm *wf_background_comm(const wf_comm *comm);

/* Each adds one thing to the stream that comm shares with the communicators split from it. Memory stays the caller's
 * until wf_background_wait returns. Local. */
typedef wf_status (*wf_background_function)(void *own);
void wf_background_call(wf_comm *comm, wf_background_function run, void *own);
/* Sums as wf_reducer_sum does; *sum is copied, and what it points to (out, part) is not. What is sent counts as sent by
 * comm; an error of it is one of comm. */
void wf_background_sum(wf_comm *comm, const wf_call *sum);
/* On a vector of which rank r keeps the part [shard[r], shard[r + 1]) (size + 1 entries, the first 0). sum_shards sums
 * each part on its rank, in rank order, and leaves the rest as it is; gather_shards brings the parts together on all
 * ranks. Device memory, in place. Each sends n (P-1)/P elements of n, if the parts are equal; nothing if all ranks
 * share memory for sums. */
void wf_background_sum_shards(wf_comm *comm, void *data, const int64_t *shard, wf_dtype dtype);
void wf_background_gather_shards(wf_comm *comm, void *data, const int64_t *shard, wf_dtype dtype);
/* As wf_allgather_bytes, in host memory. */
void wf_background_allgather_bytes(wf_comm *comm, const void *mine, size_t bytes, void *all);

/* WF_OK, or the first error since the last wait. Local. */
wf_status wf_background_status(const wf_comm *comm) WF_NODISCARD;
/* Waits for all that was added, so for all ranks that take part in it, and returns the first error. It sends nothing of
 * its own: ranks need not call it at the same place. */
wf_status wf_background_wait(wf_comm *comm) WF_NODISCARD;
/* Like wf_background_wait after a failure, whose error stays the last one; operations of a dead communicator end at
 * once. Does nothing for a communicator that is closed. Local. */
void wf_background_end(wf_comm *comm);
/* In a function of the stream: counts bytes that were copied to staging buffers for a reduction (wf_traffic). Local. */
void wf_background_count_copied(wf_comm *comm, size_t bytes);

/* Keeps the communicator's handle, though not what it can do, beyond wf_comm_close; and lets it go. NULL is fine. */
wf_comm *wf_comm_hold(wf_comm *comm);
void wf_comm_let_go(wf_comm *comm);

#endif
