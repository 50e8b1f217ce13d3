/* The calls of NCCL's interface over MPI, for tests of the order of calls and of failures on machines without GPUs. */
#include "tests/fake/nccl_fake_impl.h"

#include "core/config_author.h"
#include "core/random_author.h"
#include "tests/fake/guard_impl.h"

#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST     64  /* calls in a group */
#define PATIENCE 200 /* questions after a launch until it goes on by itself */
#define STREAMS  8

typedef enum { SEND, RECV, ALLREDUCE, BROADCAST, REDUCE, ALLGATHER, REDUCE_SCATTER } kind;

/* Travels ahead of the bytes. */
typedef struct header {
    uint64_t collective; /* which of the communicator; 0 between two */
    uint64_t bytes;      /* of a block, where there are some */
    int32_t kind, type, op, root;
} header;

typedef struct call {
    ncclComm_t comm;
    wf_stream *stream;
    header head;
    int peer;
    const void *x;
    void *y;
    char *out;         /* header and bytes */
    char **in;         /* of each rank: what came */
    MPI_Request *sent; /* to each rank */
    MPI_Request *got;  /* from each, once it was matched */
    int missing;
} call;

typedef struct launch {
    call call[MOST];
    int count;
    bool begun, over; /* over: on its stream */
    struct launch **here, *next;
} launch;

static launch *group;
static launch *delayed;  /* given, and not on its stream yet */
static launch *launches; /* that are not over: messages of those that were given up may still read their memory */
static int depth, asked; /* since the last launch */
static int looks;        /* at what is delayed */
static nccl_journal journal;
static char last_error[200];

static void put(launch *l);

nccl_journal nccl_fake_journal(void)
{
    return journal;
}

nccl_journal *nccl_fake_count(void)
{
    return &journal;
}

bool nccl_fake_grouping(void)
{
    return depth > 0;
}

wf_stream *nccl_fake_stream_of(const struct ncclComm *comm)
{
    const launch *l = launches;
    while (l && (l->over || l->call[0].comm != comm))
        l = l->next;
    return l ? l->call[0].stream : NULL;
}

void nccl_fake_journal_clear(void)
{
    journal = (nccl_journal){0};
}

/* NCCL's thread puts a launch on its stream between the first question and the second. */
static bool is_put(const struct ncclComm *comm)
{
    if (!delayed || delayed->call[0].comm != comm)
        return true;
    if (nccl_fake_blocks("ncclGroupEnd") || looks++ == 0)
        return false;
    launch *const l = delayed;
    delayed = NULL;
    put(l);
    return true;
}

/* Advances all streams of this rank: a rank that waits for another one polls this function, while a GPU would go on by
 * itself. */
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *code)
{
    wf_stream *stream[STREAMS];
    int streams = 0;
    if (!comm || comm->closed)
        return ncclInvalidArgument;
    if (comm->connecting)
        nccl_fake_connect(comm);
    *code = ncclInProgress;
    if (comm->connecting || !is_put(comm))
        return ncclSuccess;
    for (const launch *l = launches; l; l = l->next) {
        int i = 0;
        while (i < streams && stream[i] != l->call[0].stream)
            i++;
        if (!l->over && i == streams && i < STREAMS)
            stream[streams++] = l->call[0].stream;
    }
    if (streams > 0 && ++asked > PATIENCE)
        for (int i = 0; i < streams; i++)
            guard_stream_go_on(stream[i]);
    *code = comm->error;
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t code)
{
    return code == ncclInvalidUsage ? "invalid usage" : code == ncclSuccess ? "no error" : "error";
}

const char *ncclGetLastError(ncclComm_t comm)
{
    return comm ? comm->text : last_error;
}

static const char *text_of(const header *h, char text[80])
{
    static const char *const names[] = {"send",   "recv",       "all-reduce",    "broadcast",
                                        "reduce", "all-gather", "reduce-scatter"};
    snprintf(text, 80, "%s %llu of %llu bytes, type %d, op %d, root %d", names[h->kind],
             (unsigned long long)h->collective, (unsigned long long)h->bytes, h->type, h->op, h->root);
    return text;
}

static void fail(ncclComm_t comm, int rank, const header *mine, const header *theirs)
{
    char own[80], other[80];
    if (comm->error != ncclSuccess)
        return;
    comm->error = ncclInvalidUsage;
    snprintf(comm->text, sizeof comm->text, "rank %d calls %s, rank %d %s", comm->rank, text_of(mine, own), rank,
             text_of(theirs, other));
}

/* --- the work of a launch ------------------------------------------------------------------------------------------
 */

static bool collective(const call *c)
{
    return c->head.kind > RECV;
}

static size_t bytes_given(const call *c)
{
    if (c->head.kind == RECV || (c->head.kind == BROADCAST && c->head.root != c->comm->rank))
        return 0;
    return c->head.bytes * (c->head.kind == REDUCE_SCATTER ? (size_t)c->comm->ranks : 1);
}

static size_t bytes_taken(const call *c)
{
    if (c->head.kind == SEND || (c->head.kind == REDUCE && c->head.root != c->comm->rank))
        return 0;
    return c->head.bytes * (c->head.kind == ALLGATHER ? (size_t)c->comm->ranks : 1);
}

static bool sends_to(const call *c, int rank)
{
    return rank != c->comm->rank && (collective(c) || (c->head.kind == SEND && rank == c->peer));
}

static bool hears_from(const call *c, int rank)
{
    return rank != c->comm->rank && (collective(c) || (c->head.kind == RECV && rank == c->peer));
}

/* A rank that gives no bytes still sends the head of its call. */
static void begin(call *c)
{
    const size_t bytes = bytes_given(c);
    c->out = malloc(sizeof c->head + bytes);
    c->in = calloc((size_t)c->comm->ranks, sizeof *c->in);
    c->sent = malloc((size_t)c->comm->ranks * sizeof *c->sent);
    c->got = malloc((size_t)c->comm->ranks * sizeof *c->got);
    memcpy(c->out, &c->head, sizeof c->head);
    guard_open();
    if (bytes > 0)
        memcpy(c->out + sizeof c->head, c->x, bytes);
    guard_close();
    for (int r = 0; r < c->comm->ranks; r++) {
        c->sent[r] = c->got[r] = MPI_REQUEST_NULL;
        if (sends_to(c, r))
            MPI_Isend(c->out, (int)(sizeof c->head + bytes), MPI_BYTE, c->comm->world[r], c->comm->tag, MPI_COMM_WORLD,
                      &c->sent[r]);
        c->missing += hears_from(c, r);
    }
}

static void check(call *c, int rank)
{
    header theirs, expected = c->head;
    memcpy(&theirs, c->in[rank], sizeof theirs);
    if (c->head.kind == RECV)
        expected.kind = SEND;
    if (memcmp(&theirs, &expected, sizeof theirs) != 0)
        fail(c->comm, rank, &c->head, &theirs);
}

/* Returns true if an earlier call of the launch still awaits data of this rank, whose messages match the calls in
 * order. */
static bool behind_another(const launch *l, const call *c, int rank)
{
    for (const call *other = l->call; other < c; other++)
        if (other->comm == c->comm && hears_from(other, rank) && !other->in[rank])
            return true;
    return false;
}

static void match(call *c, int rank)
{
    MPI_Message message;
    MPI_Status status;
    int there = 0, bytes = 0;
    MPI_Improbe(c->comm->world[rank], c->comm->tag, MPI_COMM_WORLD, &there, &message, &status);
    if (!there)
        return;
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    c->in[rank] = malloc((size_t)bytes + 1);
    MPI_Imrecv(c->in[rank], bytes, MPI_BYTE, &message, &c->got[rank]);
}

/* Takes what has come; if a rank stops in the midst of sending, no rank waits for it. */
static void listen(const launch *l, call *c)
{
    for (int r = 0; r < c->comm->ranks; r++) {
        int there = 0;
        if (!hears_from(c, r))
            continue;
        if (!c->in[r] && !behind_another(l, c, r))
            match(c, r);
        if (c->got[r] != MPI_REQUEST_NULL)
            MPI_Test(&c->got[r], &there, MPI_STATUS_IGNORE);
        if (!there)
            continue;
        c->missing--;
        check(c, r);
        if (!collective(c))
            journal.received[c->comm->world[r]]++;
    }
}

static wf_dtype dtype_of(ncclDataType_t type)
{
    static const wf_dtype types[] = {
        [ncclUint8] = WF_U8,      [ncclInt32] = WF_I32,   [ncclInt64] = WF_I64,  [ncclFloat16] = WF_F16,
        [ncclBfloat16] = WF_BF16, [ncclFloat32] = WF_F32, [ncclFloat64] = WF_F64};
    return types[type];
}

static double combined(ncclRedOp_t op, double a, double b)
{
    return op == ncclSum ? a + b : op == ncclProd ? a * b : op == ncclMax ? fmax(a, b) : fmin(a, b);
}

/* Through f64, one number after the other, rounded to the type at every step, of what begins at `first`. */
static void reduce(const call *c, size_t first)
{
    const wf_kernels *ref = wf_kernels_ref();
    const wf_dtype dtype = dtype_of((ncclDataType_t)c->head.type);
    const size_t size = wf_dtype_size(dtype);
    for (size_t at = 0; at < c->head.bytes; at += size) {
        double sum = 0, next = 0;
        const wf_strided wide = {.data = &next, .dtype = WF_F64}, result = {.data = &sum, .dtype = WF_F64};
        wf_strided one = {.dtype = dtype};
        wf_status status = WF_OK;
        for (int r = 0; r < c->comm->ranks && status == WF_OK; r++) {
            one.data = (r == c->comm->rank ? c->out : c->in[r]) + sizeof c->head + first + at;
            status = ref->copy(NULL, &one, &wide, false);
            sum = r == 0 ? next : combined((ncclRedOp_t)c->head.op, sum, next);
            one.data = (char *)c->y + at;
            if (status == WF_OK)
                status = ref->copy(NULL, &result, &one, false);
            if (status == WF_OK)
                status = ref->copy(NULL, &one, &result, false);
        }
        if (status != WF_OK)
            c->comm->error = ncclSystemError;
    }
}

static void gather(const call *c)
{
    for (int r = 0; r < c->comm->ranks; r++)
        memcpy((char *)c->y + (size_t)r * c->head.bytes, (r == c->comm->rank ? c->out : c->in[r]) + sizeof c->head,
               c->head.bytes);
}

static void bring(const call *c)
{
    const int from = c->head.kind == RECV ? c->peer : c->head.root, rank = c->comm->rank;
    if (c->head.kind == ALLREDUCE || (c->head.kind == REDUCE && c->head.root == rank))
        reduce(c, 0);
    else if (c->head.kind == REDUCE_SCATTER)
        reduce(c, (size_t)rank * c->head.bytes);
    else if (c->head.kind == ALLGATHER)
        gather(c);
    else if ((c->head.kind == RECV || c->head.kind == BROADCAST) && from != rank)
        memcpy(c->y, c->in[from] + sizeof c->head, c->head.bytes);
}

static void finish(call *c)
{
    guard_open();
    if (c->comm->error == ncclSuccess)
        bring(c);
    guard_close();
    for (int r = 0; r < c->comm->ranks; r++)
        free(c->in[r]);
    free(c->in);
    free(c->sent);
    free(c->got);
    free(c->out);
}

static bool over(call *c)
{
    bool done = true;
    for (int r = 0; r < c->comm->ranks; r++) {
        int there = 0;
        const bool going = c->sent[r] != MPI_REQUEST_NULL;
        MPI_Test(&c->sent[r], &there, MPI_STATUS_IGNORE);
        if (going && there && !collective(c))
            journal.sent[c->comm->world[r]]++;
        done = done && there;
    }
    return done && c->missing == 0;
}

static void enlist(launch *l)
{
    l->next = launches;
    l->here = &launches;
    if (launches)
        launches->here = &l->next;
    launches = l;
}

static void dismiss(launch *l)
{
    *l->here = l->next;
    if (l->next)
        l->next->here = l->here;
    free(l);
}

/* One look at a launch that the stream has come to. After an error no rank waits. */
static bool step(void *of)
{
    launch *l = of;
    bool done = true;
    for (int i = 0; i < l->count && !l->begun; i++)
        begin(&l->call[i]);
    l->begun = true;
    for (int i = 0; i < l->count; i++) {
        if (l->call[i].missing > 0)
            listen(l, &l->call[i]);
        done = over(&l->call[i]) && done;
    }
    if (!done && l->call[0].comm->error == ncclSuccess)
        return false;
    l->over = true;
    for (int i = 0; i < l->count; i++) {
        if (done)
            finish(&l->call[i]);
        l->call[i].comm->pending--;
        nccl_fake_forget(l->call[i].comm);
    }
    if (done)
        dismiss(l);
    return true;
}

/* Repeats the calls of a launch that was captured. */
static void *again(void *of)
{
    launch *l = malloc(sizeof *l);
    if (!l)
        return NULL;
    *l = *(const launch *)of;
    for (int i = 0; i < l->count; i++) {
        call *c = &l->call[i];
        c->comm->pending++;
        if (collective(c))
            c->head.collective = ++c->comm->collectives;
    }
    journal.launches++;
    enlist(l);
    return l;
}

/* With the graph. */
static void let_go(void *of)
{
    launch *l = of;
    for (int i = 0; i < l->count; i++)
        l->call[i].comm->kept--;
    free(l);
}

static void put(launch *l)
{
    wf_stream *stream = l->call[0].stream;
    asked = 0;
    if (!guard_capturing()) {
        journal.launches++;
        enlist(l);
        guard_stream_step(stream, step, l);
        return;
    }
    for (int i = 0; i < l->count; i++) {
        l->call[i].comm->pending--;
        l->call[i].comm->kept++;
    }
    guard_keep_step(stream, step, again, let_go, l);
}

void nccl_fake_drop(ncclComm_t comm)
{
    if (!delayed || delayed->call[0].comm != comm)
        return;
    comm->pending -= delayed->count;
    free(delayed);
    delayed = NULL;
}

/* --- calls ---------------------------------------------------------------------------------------------------------
 */

ncclResult_t ncclGroupStart(void)
{
    if (depth++ == 0)
        group = calloc(1, sizeof *group);
    return group ? ncclSuccess : ncclSystemError;
}

ncclResult_t ncclGroupEnd(void)
{
    if (depth == 0)
        return ncclInvalidUsage;
    if (--depth > 0)
        return ncclSuccess;
    launch *const ended = group;
    group = NULL;
    if (ended->count > 0) {
        delayed = ended;
        looks = 0;
        return ncclInProgress;
    }
    free(ended);
    return nccl_fake_finish_closing();
}

static void note(const header *h)
{
    const uint64_t words[] = {h->collective,     h->bytes,        (uint64_t)h->kind,
                              (uint64_t)h->type, (uint64_t)h->op, (uint64_t)h->root};
    journal.collectives++;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        journal.order = wf_hash_u64(journal.order, words[i]);
}

static ncclResult_t refuse(const char *why)
{
    snprintf(last_error, sizeof last_error, "%s", why);
    return ncclInvalidArgument;
}

static int fails_in = -1; /* messages */

void nccl_fake_fail_message(int number)
{
    fails_in = number;
}

void nccl_fake_limit_waits(long ms)
{
    static long timeout_ms, idle_ms;
    wf_config *config = (wf_config *)wf_config_get();
    if (timeout_ms == 0) {
        timeout_ms = config->timeout_ms;
        idle_ms = config->idle_ms;
    }
    config->timeout_ms = ms ? ms : timeout_ms;
    config->idle_ms = ms ? ms : idle_ms;
}

static ncclResult_t add(ncclComm_t comm, call c, size_t count, ncclDataType_t type)
{
    if (c.head.kind <= RECV && fails_in >= 0 && fails_in-- == 0)
        return refuse("a message that shall fail");
    if (!comm || comm->closed)
        return refuse("a communicator that is not open");
    if (delayed || comm->connecting)
        guard_refuse("NCCL", "a call before the last one is on its stream");
    if (comm->elsewhere)
        return refuse("memory of another device than the communicator's");
    if (c.head.kind <= RECV && (c.peer < 0 || c.peer >= comm->ranks))
        return refuse("a peer that is not there");
    c.comm = comm;
    c.head.type = (int32_t)type;
    c.head.bytes = count * wf_dtype_size(dtype_of(type));
    c.head.collective = c.head.kind > RECV ? ++comm->collectives : 0;
    guard_need_device("NCCL", c.x, bytes_given(&c));
    guard_need_device("NCCL", c.y, bytes_taken(&c));
    ncclGroupStart();
    if (group->count == MOST)
        return refuse("more calls in a group than the double takes");
    if (c.head.kind > RECV)
        note(&c.head);
    comm->pending++;
    group->call[group->count++] = c;
    return ncclGroupEnd();
}

ncclResult_t ncclAllReduce(const void *x, void *y, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                           cudaStream_t stream)
{
    return add(comm,
               (call){.head = {.kind = ALLREDUCE, .op = (int32_t)op}, .x = x, .y = y, .stream = (wf_stream *)stream},
               count, type);
}

ncclResult_t ncclBroadcast(const void *x, void *y, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream)
{
    return add(comm, (call){.head = {.kind = BROADCAST, .root = root}, .x = x, .y = y, .stream = (wf_stream *)stream},
               count, type);
}

ncclResult_t ncclReduce(const void *x, void *y, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream)
{
    const header head = {.kind = REDUCE, .op = (int32_t)op, .root = root};
    return add(comm, (call){.head = head, .x = x, .y = y, .stream = (wf_stream *)stream}, count, type);
}

ncclResult_t ncclAllGather(const void *x, void *y, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream)
{
    return add(comm, (call){.head = {.kind = ALLGATHER}, .x = x, .y = y, .stream = (wf_stream *)stream}, count, type);
}

ncclResult_t ncclReduceScatter(const void *x, void *y, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream)
{
    const header head = {.kind = REDUCE_SCATTER, .op = (int32_t)op};
    return add(comm, (call){.head = head, .x = x, .y = y, .stream = (wf_stream *)stream}, count, type);
}

ncclResult_t ncclSend(const void *x, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream)
{
    return add(comm, (call){.head = {.kind = SEND}, .x = x, .peer = peer, .stream = (wf_stream *)stream}, count, type);
}

ncclResult_t ncclRecv(void *y, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream)
{
    return add(comm, (call){.head = {.kind = RECV}, .y = y, .peer = peer, .stream = (wf_stream *)stream}, count, type);
}
