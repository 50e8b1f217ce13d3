/* The inside of meshes and exchanges. For comm/mesh and the files of comm itself. */
#ifndef WF_COMM_MESH_IMPL_H
#define WF_COMM_MESH_IMPL_H

#include "comm/collective/collective_impl.h"
#include "comm/exchange_author.h"
#include "comm/mesh.h"

#include <stdatomic.h>

#define WF_MESH_TEXT    240
#define WF_MESH_BUCKETS 64

/* One set of shard bounds. */
typedef struct wf_mesh_bound_list {
    struct wf_mesh_bound_list *next;
    int64_t at[]; /* size + 1 of its axis */
} wf_mesh_bound_list;

/* One exchange, under what describes it in full. */
typedef struct wf_mesh_entry {
    struct wf_mesh_entry *next;
    wf_exchange *exchange;
    uint64_t hash;
    int64_t words;
    int64_t key[];
} wf_mesh_entry;

/* What grows while a mesh is used. */
typedef struct wf_mesh_kept {
    wf_comm *comm[1 << WF_AXES]; /* by set of axes of more than one rank */
    wf_mesh_bound_list *bounds[WF_AXES];
    wf_mesh_entry *entry[WF_MESH_BUCKETS];
    int64_t *block; /* room for the shard bounds of any axis */
    int64_t *key;   /* room for `capacity` words */
    int64_t capacity;
    void *scratch;
    size_t scratch_bytes;
    char text[WF_MESH_TEXT];
} wf_mesh_kept;

/* Axes from the one whose place changes slowest with the rank to the fastest. */
extern const wf_axis wf_mesh_order[WF_AXES];

/* The product of the sizes is that of `world`. Local. */
wf_status wf_mesh_init(wf_mesh *mesh, wf_comm *world, const int size[WF_AXES]) WF_NODISCARD;
void wf_mesh_clear(wf_mesh *mesh);
/* Host memory until the next call of this: NULL on failure. */
void *wf_mesh_scratch(const wf_mesh *mesh, size_t bytes);
/* The axes of the set that have more than one rank. */
unsigned wf_mesh_split_axes(const wf_mesh *mesh, unsigned axes);
/* Whether this rank's place is 0 along each of these axes. */
bool wf_mesh_is_first(const wf_mesh *mesh, unsigned axes);

/* All that goes to, or comes from, one peer: one message, or parts through shared memory. */
typedef struct wf_packet {
    int peer;
    int64_t first, pieces; /* of the side's */
    int64_t from, to;      /* of the side's parts */
    size_t bytes;
    bool parted; /* goes by parts where it can: short, of several pieces, or not dense in the boxes of both ranks */

    /* Of the exchange in progress. */
    void *packed, *staged; /* owned */
    void *moves;           /* what a message or NCCL takes it from, or NCCL brings it to */
    wf_event *copied;      /* between host and device; where they are apart */
    bool begun;            /* packed, and on its way to the host */
    int posted, last;      /* its transfers in the batch */
    bool shared;           /* by parts */
    int64_t part;          /* the next */
    bool done;
} wf_packet;

/* One end of the plan: what this rank has and sends on, or needs and receives; the reverse swaps the two. */
typedef struct wf_exchange_side {
    wf_box box;
    const wf_piece *piece;
    wf_packet *packet;
    int packets;
    wf_box *part; /* pieces of such packets in boxes that fit into a slot of the ring */
    int64_t parts;
} wf_exchange_side;

struct wf_exchange {
    wf_comm *comm;
    wf_dtype dtype;
    wf_order order;
    wf_plan *plan;
    wf_exchange_side have, need;
    wf_call_record record, reverse_record;
    bool parted; /* some packet of some rank may be: the same on every rank */
    bool active, reversed;
    void *blocks_out, *blocks_in; /* owned; of a collective in progress */
    const wf_tensor *from;
    wf_tensor *to;
};

/* Messages through memory that the ranks of a node share, for exchanges: a ring of slots for each pair of ranks, which
 * the sender packs into and the receiver unpacks from. What is strided is then copied twice, not four times.
 *
 * Where device memory is not the host's, the slots are in the memory of the receiver's device, and the sender's kernels
 * write there: every rank has mapped the others' slots (the table's `share` and `map`), which works for ranks on one
 * device too. Flags stay in the host's memory; one is raised when the kernels before it are done, by whoever of the two
 * looks at the ring (wf_shm_ring_poll). That such memory works is tried when the ring is made: what one rank writes the
 * other reads, both ways.
 */

#define WF_SHM_RING_SMALL ((size_t)256 << 10) /* bytes: longer messages that need no packing go faster through MPI */
#define WF_SHM_RING_RANKS 8                   /* of a node; with more, the rings would take too much memory */

typedef struct wf_shm_ring wf_shm_ring;

/* Makes the ring of a communicator whose ranks have all entered this call; comm->ring stays NULL where memory cannot
 * be shared, and comm->ring_why says why. Collective. */
wf_status wf_shm_ring_open(wf_comm *comm) WF_NODISCARD;
void wf_shm_ring_close(wf_comm *comm);
/* Whether parts can go to and come from this rank; the same on both. */
bool wf_shm_ring_reaches(const wf_shm_ring *ring, int peer);
/* How long a part may be: in host memory it stays in the caches between packing and unpacking. */
size_t wf_shm_ring_slot_bytes(const wf_ctx *ctx);
/* A free slot for the next part to a peer, 64-byte aligned, in device memory; NULL where there is none at the moment.
 * post hands it over, behind what the context's stream has to do. */
void *wf_shm_ring_slot(wf_shm_ring *ring, int peer);
wf_status wf_shm_ring_post(wf_shm_ring *ring, int peer) WF_NODISCARD;
/* Whether the peer has been told of all that was posted to it. */
bool wf_shm_ring_told(const wf_shm_ring *ring, int peer);
/* The next part that came from a peer; NULL where there is none yet. took gives the slot back, likewise. */
void *wf_shm_ring_next(wf_shm_ring *ring, int peer);
wf_status wf_shm_ring_took(wf_shm_ring *ring, int peer) WF_NODISCARD;
/* Raises the flags whose kernels are done. Nothing to do for NULL, and in host memory. */
wf_status wf_shm_ring_poll(wf_shm_ring *ring) WF_NODISCARD;

/* --- ipc_buffers.c: device memory that the ranks of a node map from each other --- */
typedef atomic_uint_least64_t wf_flag;

typedef struct wf_ipc_buffers {
    int rank, size; /* in the node */
    size_t bytes;   /* of a block: size - 1 equal pieces, one for each other rank */
    char *of[WF_SHM_RING_RANKS];
} wf_ipc_buffers;

/* The piece of `owner`'s block for what comes from `from`. */
char *wf_ipc_buffers_piece(const wf_ipc_buffers *buffers, int owner, int from);
/* Allocates, maps and tries it; `member` is the rank in the communicator of each of the node, whose size is 0 on a node
 * that takes no part. Where it fails on one rank, WF_OK with *works false on all, and `why` says what failed.
 * Collective over the communicator; the call has been entered. */
wf_status wf_ipc_buffers_open(wf_comm *comm, wf_ipc_buffers *buffers, const int *member, bool *works,
                              char why[WF_FAILURE_TEXT]) WF_NODISCARD;
/* Unmaps the others' blocks and says so: gone[owner][user] are flags in host memory that lasts as long as the process.
 * This rank's own is released once all others have unmapped it, now or when another ring is made or closed. Does not
 * wait. */
void wf_ipc_buffers_close(wf_ctx *ctx, wf_ipc_buffers *buffers,
                          wf_flag *(*gone)(const wf_shm_ring *ring, int owner, int user), const wf_shm_ring *ring);

#endif
