/* The inside of meshes and exchanges. For comm/mesh and the files of comm itself. */
#ifndef WF_COMM_MESH_IMPL_H
#define WF_COMM_MESH_IMPL_H

#include "comm/collective/collective_impl.h"
#include "comm/exchange_author.h"
#include "comm/mesh.h"

#define WF_MESH_TEXT    240
#define WF_MESH_BUCKETS 64

/* An exchange, or a set of shard bounds, under the numbers that describe it in full. */
typedef struct wf_mesh_entry {
    struct wf_mesh_entry *next;
    wf_exchange *exchange;  /* NULL: shard bounds, which are the key */
    bool lasting;           /* stays as long as the mesh */
    uint64_t used, emptied; /* the numbers of the list's uses and of ctx->emptied when it was last asked for */
    uint64_t hash;
    int64_t words;
    int64_t key[];
} wf_mesh_entry;

/* Entries of one kind. Of those that need not last, the WF_PLANS_MOST used last are kept (mesh_kept.c). */
typedef struct wf_mesh_list {
    wf_mesh_entry *bucket[WF_MESH_BUCKETS];
    int64_t count; /* without lasting ones */
    uint64_t uses; /* so far */
} wf_mesh_list;

/* What grows while a mesh is used. */
typedef struct wf_mesh_kept {
    wf_comm *comm[1 << WF_AXES]; /* by set of axes of more than one rank */
    wf_mesh_list bounds, exchanges;
    char text[WF_MESH_TEXT];
} wf_mesh_kept;

/* The entry with this key, which counts as used; NULL: there is none. */
wf_mesh_entry *wf_mesh_find(wf_ctx *ctx, wf_mesh_list *list, const int64_t *key, int64_t words);
/* A new one, in place of the one that was used longest ago where the list is full; NULL and an error on failure. */
wf_mesh_entry *wf_mesh_add(wf_ctx *ctx, wf_mesh_list *list, const int64_t *key, int64_t words);
void wf_mesh_list_clear(wf_mesh_list *list);

struct wf_exchange {
    wf_comm *comm;
    wf_dtype dtype;
    wf_order order;
    wf_plan *plan;
    wf_box have, need; /* of this rank */
    bool *dense;       /* of the plan's sends, then of its receives: a run of memory in the boxes of both ranks */
    wf_call call;      /* its name is that of the direction */
    wf_shape extent;   /* of all that is needed, for messages */
    wf_slabs slabs;
    bool reversed, in_slabs;
    const wf_tensor *from;
    wf_tensor *to;
    wf_engine_store store;   /* a schedule for each direction and strides */
    wf_engine_entry *flight; /* between begin and end; else NULL */
};

/* --- exchange_way.c --- */

/* Opens what exchanges go through, before the first one: nothing if they move natively, else memory that the ranks of
 * each node share; wf_pairs.why says why not. All ranks have entered this call, which cannot be captured unless they
 * move natively. Collective. */
wf_status wf_exchange_open_way(wf_comm *comm) WF_NODISCARD;
/* What of it is in device memory. Local. */
void wf_exchange_unshare(wf_comm *comm);

/* --- ipc_buffers.c: device memory that the ranks of a node map from each other --- */
typedef struct wf_ipc_buffers {
    int rank, size;        /* in the node; size 0 on a node that takes no part */
    const int32_t *member; /* the rank in the communicator of each of the node */
    size_t bytes;          /* of a block: size - 1 equal pieces, one for each other rank */
    char *of[WF_PAIR_RANKS];
} wf_ipc_buffers;

/* The piece of `owner`'s block for what comes from `from`. */
char *wf_ipc_buffers_piece(const wf_ipc_buffers *buffers, int owner, int from);
/* Allocates, maps and tries it: what one rank writes into the block of another that one reads. Where it fails on one
 * rank, WF_OK, and `why`, empty before, says on all what failed. Collective over the communicator; the call has been
 * entered. */
wf_status wf_ipc_buffers_open(wf_comm *comm, wf_ipc_buffers *buffers, char why[WF_FAILURE_TEXT]) WF_NODISCARD;
/* Unmaps the others' blocks and says so by flags of the pairs. This rank's own is released once all others have
 * unmapped it, now or when other buffers are made or closed. Does not wait. */
void wf_ipc_buffers_close(wf_comm *comm, wf_ipc_buffers *buffers);

#endif
