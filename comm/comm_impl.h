/* The inside of a communicator. */
#ifndef WF_COMM_COMM_IMPL_H
#define WF_COMM_COMM_IMPL_H

#include "comm/comm_author.h"
#include "comm/mesh.h"
#include "comm/recorder_author.h"
#include "comm/reducer_author.h"
#include "comm/transport_author.h"
#include "core/context_author.h"
#include "core/tensor_author.h"

#define WF_WHY          160
#define WF_GRACE_MS     1000            /* how long ranks wait to agree on one error */
#define WF_TAGS         16384           /* of users; collectives use the next as many */
#define WF_PROMPT_BYTES ((size_t)65280) /* what MPI sends over TCP at once, without asking the receiver */

/* What travels ahead of a tensor whose type and shape the receiver has to check. */
typedef struct wf_frame {
    int32_t dtype, rank;
    int64_t dim[WF_MAX_RANK];
} wf_frame;

/* Host memory of the background stream, which is used again. */
typedef struct wf_host_block {
    void *data;
    size_t bytes;
    bool taken;
} wf_host_block;

/* What a communicator and those split from it share. */
typedef struct wf_comm_shared {
    wf_ctx *ctx;
    int64_t members;
    bool in_order;        /* some calls are matched by their order alone: tasks run where they are added */
    bool background_runs; /* an operation of the background stream is running, not the main program */
    bool waits;           /* the main program waits: set while a wait advances the background stream */
    wf_host_block block;
    struct wf_background *background; /* NULL until a communicator is opened for it */
} wf_comm_shared;

/* The elements of a tensor on their way: dense in the default order of the rank, in memory that the transport takes. */
typedef struct wf_buffer {
    wf_comm *comm;
    const wf_tensor *tensor;
    void *data;
    size_t bytes;
    void *packed, *staged; /* owned */
} wf_buffer;

/* What goes to and comes from one rank in a call on tensors. */
typedef struct wf_peer_slot {
    const wf_comm *comm;
    const wf_tensor *out;
    wf_tensor *in;
    int rank;
    size_t bytes; /* of metadata that comes: what the frame must say */
    wf_buffer buffer_out, buffer_in;
    bool native_out, native_in; /* by the native transport */
} wf_peer_slot;

/* A call on the peer slots in the form that the engine takes (WF_CALL_LISTS): by rank, then the frames in the engine's
 * order. */
typedef struct wf_peer_lists {
    int64_t *part;
    const void **in;
    void **out;
    wf_frame *frame_out, *frame_in;
} wf_peer_lists;

typedef enum wf_way {
    WF_WAY_STAGED = 0, /* device memory goes through the host's */
    WF_WAY_NATIVE,     /* by the native transport where it is there: of a collective */
    WF_WAY_POINT       /* between two ranks: what is long natively */
} wf_way;

struct wf_mesh_kept;

struct wf_mesh {
    wf_ctx *ctx;
    wf_comm *world; /* all its ranks */
    int size[WF_AXES], place[WF_AXES];
    struct wf_mesh_kept *kept;
};

struct wf_control;

struct wf_comm {
    wf_comm_shared *shared;
    wf_comm *parent;    /* holds a reference */
    wf_comm *next_open; /* of all that have several ranks */
    int references;
    bool closed;
    bool inside;       /* a collective was entered and is not over */
    bool parting;      /* a part is made, which some ranks do by themselves between two collectives */
    bool lost;         /* memory of unfinished messages is never used again */
    bool nested;       /* works inside calls of its parent, whose ranks know better who is missing */
    bool pairs_asked;  /* for memory of exchanges */
    bool shares_asked; /* for memory of sums */
    wf_way way;        /* of the peer slots */
    wf_link link;      /* where there are several ranks */
    const wf_reducer *reducer;
    const char *name;
    int rank, size, intra_rank, intra_size, inter_rank, inter_size;
    int windows;                /* made so far */
    size_t chunk_bytes;         /* the least of all ranks */
    int tags;                   /* how many the transport has beyond those of users, and one more */
    uint64_t mpi_comm;          /* the transport's */
    struct wf_control *control; /* NULL where there is one rank */
    wf_mesh mesh;
    wf_comm *async; /* the same ranks once more, for the background stream; NULL until it is opened */
    wf_status dead;
    char death[WF_FAILURE_TEXT];
    wf_call_record doing; /* the call in progress */
    uint64_t id;          /* the same on all ranks */
    uint64_t event;       /* of the flight recorder; 0: no call is in progress */
    uint64_t sent_before; /* in all, when it began */
    uint64_t sequence;
    struct wf_engine *engine;
    int32_t *node;             /* of each rank: its number */
    int64_t *pid;              /* of each rank: its process, on its machine */
    int32_t *world_rank;       /* of each rank: its number in the communicator that was opened */
    int tag;                   /* of the messages of the call in progress */
    struct wf_peer_slot *slot; /* one per rank */
    wf_peer_lists lists;
    wf_traffic traffic;
    struct wf_ipc_buffers *ipc; /* of exchanges inside a node, in device memory; NULL: none */
    struct wf_native *native;   /* the native transport's; NULL: device memory goes through the host's */
    char pairs_why[WF_WHY];     /* a node's memory is not shared for exchanges; empty: it is, or was not asked for */
    char why[WF_WHY];           /* auto did not take the native transport; empty: it did, or there is no GPU */
    double probe_ms[2];         /* of 1 MiB, in shared memory and by messages, where auto has tried */
};

#endif
