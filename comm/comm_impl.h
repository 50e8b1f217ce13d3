/* The inside of a communicator. */
#ifndef WF_COMM_COMM_IMPL_H
#define WF_COMM_COMM_IMPL_H

#include "comm/comm_author.h"
#include "comm/mesh_impl.h"
#include "comm/recorder_author.h"
#include "comm/reducer_author.h"
#include "comm/transport_author.h"
#include "core/context_author.h"
#include "core/tensor_author.h"

#define WF_WHY          160
#define WF_GRACE_MS     1000  /* how long ranks wait to agree on one error */
#define WF_TAGS         16384 /* of users; collectives use the next as many */
#define WF_SMALL_BYTES  32768
#define WF_REDUCE_PIECE ((int64_t)1 << 20)
#define WF_PROMPT_BYTES ((size_t)65280) /* what MPI sends over TCP at once, without asking the receiver */
#define WF_BCAST_PIECE  ((size_t)128 << 10)
#define WF_HOST_BLOCKS  64

/* What travels ahead of a tensor whose type and shape the receiver has to check. */
typedef struct wf_frame {
    int32_t dtype, rank;
    int64_t dim[WF_MAX_RANK];
} wf_frame;

/* Messages in flight, of one call. */
typedef struct wf_batch {
    wf_comm *comm;
    wf_transfer *transfer;
    int count, capacity;
    int head; /* the first that is not done */
    int tag;
    size_t most_bytes; /* of a message; 0: the communicator's limit alone */
} wf_batch;

/* A block of host memory of tasks, which is used again. */
typedef struct wf_host_block {
    void *data;
    size_t bytes;
    bool taken;
} wf_host_block;

typedef struct wf_queue wf_queue;

/* What a communicator and those split from it share. */
typedef struct wf_family {
    wf_ctx *ctx;
    int64_t members;
    bool headless; /* the first communicator is closed */
    bool in_order; /* some calls are matched by their order alone: tasks run where they are added */
    wf_host_block host[WF_HOST_BLOCKS];
    wf_queue *queue; /* NULL until a communicator is opened for tasks */
} wf_family;

/* The elements of a tensor on their way: dense in the default order of the rank, in memory that the transport takes. */
typedef struct wf_buffer {
    wf_comm *comm;
    const wf_tensor *tensor;
    void *data;
    size_t bytes;
    void *packed, *staged; /* owned */
} wf_buffer;

/* What goes to and comes from one rank in a call on tensors. */
typedef struct wf_lane {
    const wf_tensor *out;
    wf_tensor *in;
    wf_frame frame_out, frame_in;
    wf_frame go_out, go_in; /* the receiver has come: no type and shape */
    wf_buffer buffer_out, buffer_in;
    bool native_out, native_in; /* by NCCL */
} wf_lane;

typedef enum wf_way {
    WF_WAY_STAGED = 0, /* device memory goes through the host's */
    WF_WAY_NATIVE,     /* by NCCL where it is there: of a collective */
    WF_WAY_POINT       /* between two ranks: by NCCL what is long */
} wf_way;

struct wf_control;

struct wf_comm {
    wf_family *family;
    wf_comm *parent; /* holds a reference */
    int references;
    bool closed;
    bool inside;      /* a collective was entered and is not over */
    bool lost;        /* memory of unfinished messages is never used again */
    bool nested;      /* works inside calls of its parent, whose ranks know better who is missing */
    bool board_asked; /* for `board` */
    bool wired;       /* wire_type was set */
    wf_way way;       /* of the lanes */
    const wf_transport *transport;
    const wf_reducer *reducer;
    const char *name;
    int rank, size, intra_rank, intra_size, inter_rank, inter_size;
    size_t chunk_bytes;         /* the least of all ranks */
    int tags;                   /* how many the transport has beyond those of users, and one more */
    void *wire;                 /* the transport's */
    struct wf_control *control; /* NULL where there is one rank */
    wf_mesh mesh;
    wf_comm *beside; /* the same ranks once more, for tasks; NULL until then */
    wf_comm *alone;  /* this rank by itself; made at the first need */
    wf_status dead;
    char death[WF_FAILURE_TEXT];
    wf_record doing;      /* the call in progress */
    uint64_t id;          /* the same on all ranks */
    uint64_t event;       /* of the flight recorder; 0: no call is in progress */
    uint64_t sent_before; /* in all, when it began */
    uint64_t sequence;
    wf_batch batch;
    char token[2];
    struct wf_lane *lane; /* one per rank */
    wf_traffic traffic;
    struct wf_board *board;   /* of exchanges inside a node; NULL where there is none */
    struct wf_nccl *nccl;     /* NULL: device memory goes through the host's */
    wf_dtype wire_type;       /* of gradients on their way */
    char board_why[WF_WHY];   /* a node's memory is not shared for exchanges; empty: it is, or was not asked for */
    char why[WF_WHY];         /* auto did not take NCCL; empty: it did, or there is no GPU */
    struct wf_levels *levels; /* nodes, for reducers that use them; NULL until then */
    double probe_ms[2];       /* of 1 MiB, in shared memory and by messages, where auto has tried */
};

/* --- names.c -------------------------------------------------------------------------------------------------------
 */
/* Sets name and reducer by name; NULL is "auto", which is left to wf_comm_settle. Local. */
wf_status wf_comm_choose(const char *name, wf_comm *comm) WF_NODISCARD;
/* Once ranks, nodes and device are known: chooses for "auto", refuses what cannot be, and connects what the reducer
 * needs. The same outcome on all ranks. Collective. */
wf_status wf_comm_settle(wf_comm *comm) WF_NODISCARD;
/* What moves gradients, and how: for one line to the user. */
const char *wf_comm_what_it_does(const wf_comm *comm, char text[WF_RECORD_TEXT]);
const char *wf_comm_ways(const wf_comm *comm);

/* --- levels.c ------------------------------------------------------------------------------------------------------
 */
typedef enum wf_levels_form {
    WF_LEVELS_NODE = 0, /* one node */
    WF_LEVELS_LEADERS,  /* one rank of each node speaks for it */
    WF_LEVELS_SHARDS    /* as many as the smallest node has ranks */
} wf_levels_form;
typedef struct wf_levels wf_levels;
/* Connects the ranks of each node, and the nodes. Where a node has no memory to share, says so in one line and leaves
 * all-reduces to messages. Collective. */
wf_status wf_levels_open(wf_comm *comm, wf_levels_form form) WF_NODISCARD;
void wf_levels_close(wf_comm *comm);
/* Whether memory is shared. */
bool wf_levels_shared(const wf_comm *comm);
/* Sums in place, in device memory. Collective. */
wf_status wf_levels_sum(wf_comm *comm, void *data, int64_t count, wf_dtype dtype) WF_NODISCARD;

/* --- shards.c ------------------------------------------------------------------------------------------------------
 */
/* As the two of move_*.c, in device memory: by NCCL, else by shared memory where all ranks share some. Collective. */
wf_status wf_shards_sum(wf_comm *comm, void *data, const int64_t *shard, wf_dtype dtype) WF_NODISCARD;
wf_status wf_shards_gather(wf_comm *comm, void *data, const int64_t *shard, wf_dtype dtype) WF_NODISCARD;

/* --- open.c --------------------------------------------------------------------------------------------------------
 */
/* This rank by itself; owned by comm. */
wf_comm *wf_comm_alone(wf_comm *comm);

/* --- mpi_setup.c: everything of MPI that a communicator has
 * ------------------------------------------------------------ */
/* Fills rank, size, nodes, wire and control from a pointer to an MPI_Comm (NULL: the world), and agrees with the
 * others: where `status` (this rank's so far) is an error on some rank, the lowest such rank's error becomes
 * everybody's. */
wf_status wf_mpi_attach(wf_comm *comm, const void *mpi_comm, wf_status status);
/* Splits a live communicator of several ranks; fills `child` where color is not negative. */
wf_status wf_mpi_split(wf_comm *comm, int color, int key, wf_comm *child);
/* Shares `bytes` zeroed bytes of each rank among the ranks of every node; base[i] and rank[i] are of the rank of place
 * i in this node. Where some node has no memory for it, WF_OK with base[0] NULL on all ranks, and `why` says what is
 * missing. The memory stays until the process ends. */
wf_status wf_mpi_share(wf_comm *comm, size_t bytes, void **base, int *rank, char why[WF_FAILURE_TEXT]) WF_NODISCARD;
/* Frees what was shared; at the end, when all ranks are there. */
void wf_mpi_unshare_all(void);
/* Initialises MPI if nobody has. */
wf_status wf_mpi_start(int *argc, char ***argv);
/* A communicator died: the process does not wait long for the others at its end. */
void wf_mpi_broken(void);
/* Ends the job. */
void wf_mpi_abort(int code);

/* --- transports ------------------------------------------------------------------------------------------------------
 */
extern const wf_transport wf_transport_self;
extern const wf_transport wf_transport_mpi;

/* --- reducers --------------------------------------------------------------------------------------------------------
 */
extern const wf_reducer wf_reducer_naive;
extern const wf_reducer wf_reducer_flat;
extern const wf_reducer wf_reducer_dummy;
extern const wf_reducer wf_reducer_single_node;
extern const wf_reducer wf_reducer_hierarchical;
extern const wf_reducer wf_reducer_two_dimensional;
extern const wf_reducer wf_reducer_non_cuda_aware;
extern const wf_reducer wf_reducer_pure_nccl;

/* --- call.c: the frame of every call
 * ----------------------------------------------------------------------------------- */
wf_record wf_record_plain(const char *operation, int root);
wf_record wf_record_tensor(const char *operation, const wf_tensor *x, int op, int root);
wf_record wf_record_values(const char *operation, wf_dtype dtype, int64_t count, int op, int root);
/* Notes where the program called. */
void wf_record_place(wf_record *record);

/* Starts a collective: alive, numbered, announced to the neighbour. */
wf_status wf_call_enter(wf_comm *comm, const wf_record *record) WF_NODISCARD;
/* Waits until the left neighbour is known to do the same. */
wf_status wf_call_settle(wf_comm *comm) WF_NODISCARD;
/* Ends every public call: an error kills the communicator and reaches the others. */
wf_status wf_call_end(wf_comm *comm, const char *operation, wf_status status) WF_NODISCARD;
/* Starts a message between two. */
wf_status wf_call_point(wf_comm *comm, const char *operation, int peer, int tag) WF_NODISCARD;
wf_status wf_check_rank(const wf_comm *comm, const char *what, int rank) WF_NODISCARD;
wf_status wf_check_op(wf_reduce_op op) WF_NODISCARD;

/* --- control.c: records and notices on a communicator of their own --------------------------------------------------
 */
wf_status wf_control_announce(wf_comm *comm, const wf_record *record) WF_NODISCARD;
bool wf_control_confirmed(const wf_comm *comm);
/* The rank whose record is awaited; -1: none. */
int wf_control_missing(const wf_comm *comm);
/* Looks for records and notices, here and in the communicators that this one was split from. */
wf_status wf_control_poll(wf_comm *comm) WF_NODISCARD;
void wf_control_tell(wf_comm *comm, wf_status status, const char *text);
/* Whether the program of a rank is known to have ended: a notice of no error said so. */
bool wf_control_gone(const wf_comm *comm, int rank);
/* A notice of an error that has come, if any: false if none. `verdict`: rank 0 has decided that this is the error. */
bool wf_control_notice(wf_comm *comm, wf_status *status, bool *verdict, char text[WF_FAILURE_TEXT]);
/* This rank is going to call nothing more, by "close" or "exit": a neighbour that calls then knows. */
void wf_control_leave(wf_comm *comm, const char *operation);
void wf_control_close(wf_comm *comm);
/* Frees what the neighbours of closed communicators have left, too. */
void wf_control_sweep(void);

/* --- failure.c -------------------------------------------------------------------------------------------------------
 */
/* This rank has seen that the communicator failed: tells the others, agrees on one error, and returns it. */
wf_status wf_failure_seen(wf_comm *comm, wf_status status, const char *text);
/* Another rank has told so. */
wf_status wf_failure_heard(wf_comm *comm, wf_status status, bool verdict, const char *text);
/* A communicator that this one was split from is dead. */
wf_status wf_failure_inherit(wf_comm *comm, const wf_comm *from);
/* Before it closes: it is dead if one that it was split from is, though nothing was called on it since. */
void wf_failure_settle(wf_comm *comm);

/* --- queue.c ---------------------------------------------------------------------------------------------------------
 */
/* In a wait. Of a task: gives the processor to the main program, and returns true when it is back. Of the main program:
 * gives the tasks a turn. False: nothing else is to be done, the wait goes on. */
bool wf_queue_yield(wf_comm *comm);
/* Whether a task has the processor. */
bool wf_queue_within(const wf_comm *comm);
/* Whether one has that leaves what it brings to wf_queue_wait. */
bool wf_queue_leaves(const wf_comm *comm);
void wf_queue_free(wf_queue *queue);
void wf_queue_close(wf_comm *comm);

/* --- wait.c ----------------------------------------------------------------------------------------------------------
 */
typedef struct wf_patience {
    int64_t start_ns; /* of the wait, or of the last progress */
    int64_t polls;
    int peer; /* the rank that is awaited, for the message of a time-out; -1: the batch's */
} wf_patience;
wf_patience wf_patience_new(void);
/* More ranks than processors: whoever waits leaves the processor to others at once. */
bool wf_patience_crowded(const wf_comm *comm);
int64_t wf_now_ns(void);
/* Between two looks at what is awaited: polls control and time-out, then yields. batch (may be NULL) is for messages.
 */
wf_status wf_patience_poll(wf_comm *comm, wf_patience *patience, const wf_batch *batch) WF_NODISCARD;

/* --- batch.c ---------------------------------------------------------------------------------------------------------
 */
void wf_batch_start(wf_batch *batch, int tag);
wf_status wf_batch_send(wf_batch *batch, const void *data, size_t bytes, int to) WF_NODISCARD;
wf_status wf_batch_recv(wf_batch *batch, void *data, size_t bytes, int from) WF_NODISCARD;
/* As the two above, uncounted. */
wf_status wf_batch_send_frame(wf_batch *batch, const wf_frame *frame, int to) WF_NODISCARD;
wf_status wf_batch_recv_frame(wf_batch *batch, wf_frame *frame, int from) WF_NODISCARD;
/* Room for one transfer that the transport fills: a collective of its own. */
wf_status wf_batch_collective(wf_batch *batch) WF_NODISCARD;
/* Waits for the transfers [first, last), moving all others on. */
wf_status wf_batch_wait(wf_batch *batch, int first, int last) WF_NODISCARD;
wf_status wf_batch_wait_all(wf_batch *batch) WF_NODISCARD;
/* Moves messages on, without waiting. */
wf_status wf_batch_poll(wf_batch *batch) WF_NODISCARD;
/* The same, and says whether the transfers [first, last) are over. */
wf_status wf_batch_look(wf_batch *batch, int first, int last, bool *done) WF_NODISCARD;
/* Gives up what is in flight. False where memory could not be freed of it. */
bool wf_batch_cancel(wf_batch *batch);

/* --- buffer.c --------------------------------------------------------------------------------------------------------
 */
void wf_host_free_all(wf_family *family);
/* free(data), but of a communicator whose unfinished messages may still come to rest there: then it is kept. */
void wf_comm_release(const wf_comm *comm, void *data);

/* With the tensor's elements in it; or only room for them. x NULL gives an empty buffer. native: for NCCL, in device
 * memory. */
wf_status wf_buffer_read(wf_comm *comm, const wf_tensor *x, bool native, wf_buffer *buffer) WF_NODISCARD;
wf_status wf_buffer_room(wf_comm *comm, const wf_tensor *y, bool native, wf_buffer *buffer) WF_NODISCARD;
/* Puts what arrived into the tensor. */
wf_status wf_buffer_store(wf_buffer *buffer) WF_NODISCARD;
void wf_buffer_free(wf_buffer *buffer);

/* --- lanes.c ---------------------------------------------------------------------------------------------------------
 */
/* Clears what was asked of the lanes. */
void wf_lanes_start(wf_comm *comm, wf_way way);
/* Sends lane.out to and receives lane.in from every rank that has one; for this rank itself copies. The sender's type
 * and shape come first and must be those of lane.in. */
wf_status wf_lanes_exchange(wf_comm *comm) WF_NODISCARD;
/* The same in parts: make the buffers (of what goes out; of both); post the messages ahead and see that all that come
 * are as expected, without or with the data. The caller then waits for the batch and frees the lanes. */
wf_status wf_lanes_read(wf_comm *comm) WF_NODISCARD;
wf_status wf_lanes_prepare(wf_comm *comm) WF_NODISCARD;
wf_status wf_lanes_agree(wf_comm *comm) WF_NODISCARD;
wf_status wf_lanes_post(wf_comm *comm) WF_NODISCARD;
/* Whether a message between two goes by NCCL: its sender then waits for its receiver, as MPI's do of that length. */
bool wf_lanes_native_point(const wf_comm *comm, const wf_tensor *x);
/* What is left of such a message once its type and shape have come. */
wf_status wf_lanes_take(wf_comm *comm, wf_tensor *y, int from) WF_NODISCARD;
wf_status wf_lanes_copy_own(wf_comm *comm) WF_NODISCARD; /* from this rank to itself */
void wf_lanes_free(wf_comm *comm);
/* The shape in a message ahead, if it is one. */
wf_status wf_frame_shape(const wf_frame *frame, int from, wf_shape *shape) WF_NODISCARD;

/* --- native.c: collectives on device memory that is not the host's: by NCCL, or among one rank
 * ------------------------- */
bool wf_native(const wf_comm *comm);
wf_status wf_native_bcast(wf_comm *comm, void *data, size_t bytes, int root) WF_NODISCARD;
wf_status wf_native_allgather(wf_comm *comm, const void *mine, size_t bytes, void *all) WF_NODISCARD;
/* Whether it combines as wf_allreduce says: not in NCCL's max and min of floats, in which NaN may lose. */
bool wf_native_reduces(const wf_comm *comm, wf_dtype dtype, wf_reduce_op op);
/* Of 16-bit types in f32, which is rounded once; root -1: the result is everywhere. */
wf_status wf_native_reduce(wf_comm *comm, const void *x, void *y, int64_t count, wf_dtype dtype, wf_reduce_op op,
                           int root) WF_NODISCARD;
/* y is the reduction over all ranks of their x[rank], which has count[rank] elements. */
wf_status wf_native_reduce_scatter(wf_comm *comm, const void *const *x, const int64_t *count, void *y, wf_dtype dtype,
                                   wf_reduce_op op) WF_NODISCARD;
/* As the two of move_*.c. */
wf_status wf_native_sum_shards(wf_comm *comm, void *data, const int64_t *shard, wf_dtype dtype) WF_NODISCARD;
wf_status wf_native_gather_shards(wf_comm *comm, void *data, const int64_t *shard, wf_dtype dtype) WF_NODISCARD;

/* --- combine.c -------------------------------------------------------------------------------------------------------
 */
/* y[i] = in[0][i] op in[1][i] op ...; y may be one of the inputs. Host memory. */
wf_status wf_combine(wf_ctx *ctx, wf_reduce_op op, wf_dtype dtype, int inputs, const void *const *in, void *y,
                     int64_t count) WF_NODISCARD;

/* --- move_*.c: collectives on buffers, from messages. The call has been entered.
 * ---------------------------------------- */
wf_status wf_move_bcast(wf_comm *comm, void *data, size_t bytes, int root) WF_NODISCARD;
/* The result on `root`, or everywhere where root is -1; y is not used elsewhere. y may be x. */
wf_status wf_move_reduce(wf_comm *comm, const void *x, void *y, int64_t count, wf_dtype dtype, wf_reduce_op op,
                         int root) WF_NODISCARD;
/* all holds size blocks of equal length in rank order. */
wf_status wf_move_allgather(wf_comm *comm, const void *mine, size_t bytes, void *all) WF_NODISCARD;
/* In place, in a vector of which rank r has the part [shard[r], shard[r + 1]); shard[0] is 0. The parts are summed,
 * each on its rank, in rank order; the rest is left as it is. Or they are brought together. */
wf_status wf_move_sum_shards(wf_comm *comm, void *data, const int64_t *shard, wf_dtype dtype) WF_NODISCARD;
wf_status wf_move_gather_shards(wf_comm *comm, void *data, const int64_t *shard, size_t size) WF_NODISCARD;
wf_status wf_move_barrier(wf_comm *comm) WF_NODISCARD;

#endif
