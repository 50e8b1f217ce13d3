/* Collectives that go on beside the computation: tasks that a process runs one after the other, in turns with what it
 * computes, on the same thread.
 *
 * A task is a function that communicates by blocking calls. Where such a call waits, the computation goes on; the task
 * goes on when backward or a long kernel comes between two of its pieces (wf_ctx_progress), or when the main program
 * waits for a message itself. So whatever the main program waits for, tasks never hold it up, and only wf_queue_wait
 * waits for them. All ranks must add the tasks that belong together in the same order.
 *
 * Tasks communicate through the functions named beside, whose communicators are apart from those of the main program:
 * its own collectives may be under way at the same time.
 *
 * Where NCCL connects the ranks, calls are only put on its stream, where they are matched by their order: a task then
 * runs to its end where it is added, which must be the same place among the collectives of the main program on all
 * ranks. What it does on the GPU goes on beside the computation.
 */
#ifndef WF_COMM_QUEUE_AUTHOR_H
#define WF_COMM_QUEUE_AUTHOR_H

#include "comm/comm.h"
#include "comm/reducer_author.h"
#include "core/status_author.h"

/* Stays the caller's, and must live until wf_queue_wait returns. */
typedef struct wf_task {
    wf_status (*run)(struct wf_task *task);
    bool leaves;          /* what its last calls bring is not looked at before wf_queue_wait, by it or by others */
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
/* In a task: it has copied so much on the way of what is summed (wf_traffic). Local. */
void wf_count_staged_async(wf_comm *comm, size_t bytes);

#endif
