/* The communicator for authors of reducers, layers and data sets. */
#ifndef WF_COMM_COMM_AUTHOR_H
#define WF_COMM_COMM_AUTHOR_H

#include "comm/comm.h"
#include "comm/recorder_author.h"
#include "core/status_author.h"

/* How messages name rank `rank` of comm: "5 (1)" where the world counts it as 5 and comm as 1, "1" where both do. The
 * world is the communicator that the program opened (wf_comm_open, wf_comm_from_mpi) and comm descends from. comm NULL:
 * `rank` is the world's number. Writes into text and returns it. Local. */
const char *wf_rank_text(const wf_comm *comm, int rank, char text[WF_RANK_TEXT]);
/* wf_rank_text into memory that lasts as long as the enclosing block: for the arguments of one message. */
#define WF_RANK(comm, rank) wf_rank_text(comm, rank, (char[WF_RANK_TEXT]){0})

/* Reports a failure that only this rank knows of (a file, memory, an argument) to all ranks: they return the calling
 * thread's last error, of code `status`, from the call in which they wait, or from their next one. The communicator
 * and those split from it are dead afterwards. Returns the status, with a message that names the rank. Does nothing
 * where status is WF_OK or the communicator is dead already. Where several ranks post at once, rank 0 decides whose
 * error all return; if it is busy, this rank waits a second for it, and then takes its own. Local. */
wf_status wf_comm_post_failure(wf_comm *comm, wf_status status);

/* Agrees on the result of a step that every rank did locally: if some ranks failed, all ranks return the error, with
 * its message, of the lowest such rank. The communicator stays usable, since all ranks know of the error.
 * Collective. */
wf_status wf_agree_status(wf_comm *comm, wf_status status) WF_NODISCARD;

/* WF_OK, or the error that the communicator died of; looks for notices of other ranks before. Local. */
wf_status wf_comm_alive(wf_comm *comm) WF_NODISCARD;

/* How gradients move, and why: "4 ranks on 2 nodes, device cpu, ...", in `text`, which is returned. Local. */
const char *wf_comm_choice(const wf_comm *comm, char *text, size_t size);
/* Returns true if the reducer of this communicator uses memory that the ranks of a node share. Local. */
bool wf_comm_shares_memory(const wf_comm *comm);

/* Host memory from the pool for the time of a call. 0 bytes give NULL. Give it back after the collectives that use
 * it. Memory that an unfinished message may still write to is not reused. Local. */
wf_status wf_host_take(wf_comm *comm, size_t bytes, void **data) WF_NODISCARD;
void wf_host_give(wf_comm *comm, void *data, size_t bytes);

/* As wf_allreduce, on `count` elements in device memory; y may be x. Collective. */
wf_status wf_allreduce_raw(wf_comm *comm, const void *x, void *y, int64_t count, wf_dtype dtype,
                           wf_reduce_op op) WF_NODISCARD;
/* `bytes` of device memory of every rank into device memory of all, in rank order. Collective. */
wf_status wf_allgather_raw(wf_comm *comm, const void *mine, size_t bytes, void *all) WF_NODISCARD;

#endif
