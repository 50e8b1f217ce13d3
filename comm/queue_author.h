/* Asynchronous collectives: tasks that a process runs one after the other, on the main thread, alternating with the
 * computation.
 *
 * A task is a function that communicates by blocking calls. While such a call waits, the computation continues; the
 * task resumes when backward or a long kernel is between two of its pieces (wf_ctx_progress), or when the main program
 * waits for a message. Only wf_queue_wait waits for tasks; no other call of the main program does. All ranks must add
 * the tasks that belong together in the same order.
 *
 * Tasks communicate by the functions whose names end in _async. These use communicators of their own, so collectives of
 * the main program may be in flight at the same time.
 *
 * Where NCCL connects the ranks, calls are only put on its stream, and NCCL matches them by their order: a task then
 * runs to its end when it is added, which must happen at the same place among the collectives of the main program on
 * all ranks. Its work on the GPU overlaps with the computation.
 */
#ifndef WF_COMM_QUEUE_AUTHOR_H
#define WF_COMM_QUEUE_AUTHOR_H

#include "comm/comm.h"
#include "comm/reducer_author.h"
#include "core/status_author.h"

/* Stays the caller's, and must live until wf_queue_wait returns. */
typedef struct wf_task {
    wf_status (*run)(struct wf_task *task);
    bool leaves;          /* true if nothing reads the results of its last calls before wf_queue_wait */
    struct wf_task *next; /* the queue's */
} wf_task;

/* Prepares the communicator for tasks: connects its ranks a second time, as its name asks. Once is enough; further
 * calls do nothing. Collective. */
wf_status wf_queue_open(wf_comm *comm) WF_NODISCARD;
/* Adds a task to the queue that comm shares with the communicators split from it. It starts at the next turn. Local. */
void wf_queue_add(wf_comm *comm, wf_task *task);
/* WF_OK, or the first error of a task since the last wait; the tasks behind it are not run. Local. */
wf_status wf_queue_status(const wf_comm *comm) WF_NODISCARD;
/* Waits for all tasks, and returns the first error. Local. */
wf_status wf_queue_wait(wf_comm *comm) WF_NODISCARD;
/* The same after a failure, whose error stays the last one; tasks of a dead communicator end at once. Local. */
void wf_queue_end(wf_comm *comm);

/* In a task: sums as the reducer of comm, which is open for tasks, does. What is sent counts as sent by comm; an error
 * of it is one of comm. Collective among the tasks of the ranks. */
wf_status wf_reduce_async(wf_comm *comm, const wf_reduce_job *job) WF_NODISCARD;
/* The same of a vector of which rank r keeps the part [shard[r], shard[r + 1]) (size + 1 entries, the first 0): sums
 * each part on its rank, in rank order, and leaves the rest as it is; brings the parts together on all ranks. Device
 * memory, in place. Each sends n (P-1)/P elements of n, where the parts are equal; nothing where all ranks share memory
 * for sums. */
wf_status wf_sum_shards_async(wf_comm *comm, void *data, const int64_t *shard, wf_dtype dtype) WF_NODISCARD;
wf_status wf_gather_shards_async(wf_comm *comm, void *data, const int64_t *shard, wf_dtype dtype) WF_NODISCARD;
/* As wf_allgather_bytes, in host memory. */
wf_status wf_allgather_bytes_async(wf_comm *comm, const void *mine, size_t bytes, void *all) WF_NODISCARD;
/* In a task: counts bytes that were copied to staging buffers for a reduction (wf_traffic). Local. */
void wf_count_staged_async(wf_comm *comm, size_t bytes);

#endif
