/* The inside of a communicator: what all rooms of comm share. It declares no function. */
#ifndef WF_COMM_COMM_IMPL_H
#define WF_COMM_COMM_IMPL_H

#include "comm/comm_author.h"
#include "comm/mesh.h"
#include "comm/recorder_author.h"
#include "comm/reducer_author.h"
#include "comm/transport_author.h"
#include "core/context_author.h"
#include "core/tensor_author.h"

#define WF_WHY          160  /* bytes of a text that says why something is not used */
#define WF_GRACE_MS     1000 /* how long ranks wait to agree on one error */
#define WF_TAGS         16384 /* below: tags of users, the last WF_OUTBOX_TAG; from it on: of collectives (wf_comm.tags) */
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
    size_t chunk_bytes;   /* of a message at most: the least of all ranks */
    bool in_order;        /* native calls match by order alone: what the background stream gets runs at once */
    bool background_runs; /* an operation of the background stream is running, not the main program */
    bool waits;           /* set while a wait of the main program that lasts advances the background stream */
    wf_host_block block;
    struct wf_background *background; /* NULL until a communicator is opened for it */
} wf_comm_shared;

/* The elements of a tensor on their way: dense in the default order of the rank, in memory that the transport takes. */
typedef struct wf_buffer {
    wf_comm *comm;
    const wf_tensor *tensor; /* NULL: a vector in device memory, bytes of the host, or nothing */
    void *origin;            /* where the elements are, of the tensor or the vector */
    void *data;
    size_t bytes;
    void *packed, *staged; /* owned */
} wf_buffer;

struct wf_mesh_kept;

struct wf_mesh {
    wf_ctx *ctx;
    wf_comm *world; /* all its ranks */
    int size[WF_AXES], place[WF_AXES];
    struct wf_mesh_kept *kept;
};

struct wf_control;

/* The ranks of a communicator, each by its number in it. */
typedef struct wf_rank_table {
    int32_t *node;  /* the number of its node */
    int64_t *pid;   /* its process, on its machine */
    int32_t *world; /* its number in the communicator that was opened */
} wf_rank_table;

/* The call that a communicator is in, of which there is one at most. The guard fills it when a call is entered; it
 * keeps the last one after that. */
typedef struct wf_call_state {
    wf_call_record record;
    uint64_t event;       /* of the flight recorder; 0: no call is in progress */
    uint64_t sent_before; /* bytes in all, when it began */
    int tag;              /* of its messages */
    bool entered;         /* a collective was entered and is not over */
    bool parting;         /* a part is made, which some ranks do by themselves between two collectives */
    /* Lists, whose memory is made once (comm/collective/lists.c): by rank, what goes there and what comes from there,
     * and the same in the form that the engine takes (WF_CALL_LISTS), then the frames in the engine's order. */
    wf_buffer *outgoing, *incoming;
    int64_t *part;
    const void **in;
    void **out;
    wf_frame *frame_out, *frame_in;
    size_t stays; /* so many bytes of a tensor of another rank, and more, stay in device memory: SIZE_MAX for none */
} wf_call_state;

/* The failure of which a communicator died. */
typedef struct wf_death {
    wf_status status; /* WF_OK: it lives */
    char text[WF_FAILURE_TEXT];
} wf_death;

/* How "auto" chose, for the text that tells it. */
typedef struct wf_comm_pick {
    char no_native[WF_WHY]; /* why it did not take the native transport; empty: it did, or there is no GPU */
    double probe_ms[2];     /* of 1 MiB, in shared memory and by messages, where it has tried */
} wf_comm_pick;

/* What lasts as long as a communicator. */
struct wf_comm {
    wf_comm_shared *shared;
    wf_comm *parent;    /* holds a reference */
    wf_comm *next_open; /* of all that have several ranks */
    int references;
    bool closed;
    bool lost;    /* memory of unfinished messages is never used again */
    bool nested;  /* works inside calls of its parent, whose ranks know better who is missing */
    wf_link link; /* where there are several ranks */
    const wf_reducer *reducer;
    const char *name;
    int rank, size, intra_rank, intra_size, inter_rank, inter_size;
    wf_rank_table ranks;
    int tags;                   /* of collectives, from WF_TAGS on; two higher ones are of commits (commit.c) */
    uint64_t mpi_comm;          /* the transport's */
    struct wf_control *control; /* NULL where there is one rank */
    struct wf_engine *engine;
    struct wf_native *native; /* the native transport's; NULL: device memory goes through the host's */
    wf_mesh mesh;
    wf_comm *async; /* the same ranks once more, for the background stream; NULL until it is opened */
    wf_death death;
    uint64_t id;       /* the same on all ranks */
    uint64_t sequence; /* of the last collective */
    wf_call_state call;
    wf_traffic traffic;
    wf_comm_pick pick;
};

#endif
