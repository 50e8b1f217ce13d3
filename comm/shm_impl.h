/* Memory that the ranks of a node share, and what they do in it: sums and broadcasts without messages.
 *
 * Every rank has a segment of the window: flags, and a few slots of one piece each. A vector goes through the slots
 * piece by piece: a rank copies what others need of a piece into its slot, reduces its own slice of the piece as soon
 * as the others have copied theirs, and takes the other slices' results out of their slots. The three run ahead of each
 * other as far as the slots allow, so what is moved stays in the caches.
 */
#ifndef WF_COMM_SHM_IMPL_H
#define WF_COMM_SHM_IMPL_H

#include "comm/comm_impl.h"

#include <stdatomic.h>

#define WF_SHM_SLOTS 4
#define WF_SHM_SLOT  ((size_t)128 << 10) /* bytes of a piece */
#define WF_SHM_LINE  128                 /* apart from each other, so that ranks do not disturb each other's caches */
#define WF_SHM_HEAD  ((size_t)4096)

/* How many pieces of all calls so far this rank has copied in, has reduced, and has no longer to read. */
typedef struct wf_shm_flags {
    _Alignas(WF_SHM_LINE) atomic_uint_least64_t copied;
    _Alignas(WF_SHM_LINE) atomic_uint_least64_t reduced;
    _Alignas(WF_SHM_LINE) atomic_uint_least64_t taken;
} wf_shm_flags;

typedef struct wf_shm_rank {
    wf_shm_flags *flags;
    char *slots;
    int world; /* its rank in the communicator */
} wf_shm_rank;

typedef struct wf_shm {
    int rank, size;  /* in the node */
    uint64_t pieces; /* of earlier calls: the same on all ranks of the node */
    wf_shm_rank *at; /* of each rank of the node */
    const void **in; /* room for the inputs of a sum */
} wf_shm;

/* Shares memory among the ranks of each node. WF_OK and NULL, on all ranks of all nodes, where one node has no memory
 * to share; `why` says what is missing. The window is freed when the process ends. Collective over comm. */
wf_status wf_shm_open(wf_comm *comm, wf_shm **shm, char why[WF_FAILURE_TEXT]) WF_NODISCARD;
void wf_shm_close(wf_shm *shm);

/* Collective over the ranks of a node; the call has been entered. `root` is a rank in the node. */
/* As wf_move_reduce: the same bits everywhere, combined in rank order. */
wf_status wf_shm_reduce(wf_comm *comm, wf_shm *shm, const void *x, void *y, int64_t count, wf_dtype dtype,
                        wf_reduce_op op, int root) WF_NODISCARD;
wf_status wf_shm_bcast(wf_comm *comm, wf_shm *shm, void *data, size_t bytes, int root) WF_NODISCARD;

/* What all ranks of the communicator share for sums; NULL where there is nothing such. */
wf_shm *wf_levels_memory(const wf_comm *comm);

#endif
