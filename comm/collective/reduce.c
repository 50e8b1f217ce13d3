#include "comm/collective/collective_impl.h"

#include <string.h>

#define LEAST_BLOCK 4096 /* elements */
#define AHEAD                                                                                                          \
    4 /* pieces on their way at once: a rank that looks at its messages only now and then keeps a link busy            \
       */

/* Long vectors: the vector is cut into pieces, each piece into one block per rank. Every rank receives its block of a
 * piece from all others, combines the copies in rank order, and sends the result on; the next pieces are already on
 * their way meanwhile. */
typedef struct plan {
    wf_comm *comm;
    const char *x;
    char *y;   /* the result; not used where it is not wanted on this rank */
    char *own; /* where it is not: the combined blocks of this rank, one after the other */
    char *work[AHEAD];
    const void **in;
    int64_t count, piece;
    size_t size, slot; /* bytes of an element, of the longest block */
    wf_dtype dtype;
    wf_reduce_op op;
    int root;
    const int64_t *shard; /* of a reduce-scatter: rank r keeps [shard[r], shard[r + 1]) of the vector; else NULL */
} plan;

static int64_t longest_shard(const plan *p)
{
    int64_t longest = 0;
    for (int r = 0; r < p->comm->size; r++)
        longest = p->shard[r + 1] - p->shard[r] > longest ? p->shard[r + 1] - p->shard[r] : longest;
    return longest;
}

static int64_t pieces_of(const plan *p)
{
    const int64_t each = p->piece / p->comm->size;
    return p->shard ? (longest_shard(p) + each - 1) / each : (p->count + p->piece - 1) / p->piece;
}

static void block_of_shard(const plan *p, int64_t k, int rank, size_t *at, size_t *bytes)
{
    const int64_t each = p->piece / p->comm->size, end = p->shard[rank + 1];
    const int64_t lo = end < p->shard[rank] + k * each ? end : p->shard[rank] + k * each;
    *at = (size_t)lo * p->size;
    *bytes = (size_t)(end - lo < each ? end - lo : each) * p->size;
}

static void block_of(const plan *p, int64_t k, int rank, size_t *at, size_t *bytes)
{
    if (p->shard) {
        block_of_shard(p, k, rank, at, bytes);
        return;
    }
    const int64_t base = k * p->piece, n = p->count - base < p->piece ? p->count - base : p->piece;
    int64_t lo, hi;
    wf_block(n, p->comm->size, rank, &lo, &hi);
    *at = (size_t)(base + lo) * p->size;
    *bytes = (size_t)(hi - lo) * p->size;
}

static wf_status spread_piece(const plan *p, int64_t k)
{
    wf_comm *comm = p->comm;
    size_t at, bytes;
    block_of(p, k, comm->rank, &at, &bytes);
    for (int step = 1; step < comm->size; step++) {
        const int from = (comm->rank + comm->size - step) % comm->size;
        WF_TRY(wf_requests_recv(&comm->requests, p->work[k % AHEAD] + (size_t)from * p->slot, bytes, from));
    }
    for (int step = 1; step < comm->size; step++) {
        const int to = (comm->rank + step) % comm->size;
        block_of(p, k, to, &at, &bytes);
        WF_TRY(wf_requests_send(&comm->requests, p->x + at, bytes, to));
    }
    return WF_OK;
}

static wf_status combine_piece(const plan *p, int64_t k, char **result)
{
    wf_comm *comm = p->comm;
    size_t at, bytes;
    block_of(p, k, comm->rank, &at, &bytes);
    for (int r = 0; r < comm->size; r++)
        p->in[r] = r == comm->rank ? p->x + at : p->work[k % AHEAD] + (size_t)r * p->slot;
    *result = p->own ? p->own + (size_t)k * p->slot : p->y + at;
    return wf_combine(comm->shared->ctx, p->op, p->dtype, comm->size, p->in, *result, (int64_t)(bytes / p->size));
}

static wf_status collect_piece(const plan *p, int64_t k, const char *result)
{
    wf_comm *comm = p->comm;
    size_t at, bytes, own_at, own_bytes;
    block_of(p, k, comm->rank, &own_at, &own_bytes);
    for (int step = 1; step < comm->size; step++) {
        const int from = (comm->rank + comm->size - step) % comm->size;
        block_of(p, k, from, &at, &bytes);
        if (p->root < 0 || p->root == comm->rank)
            WF_TRY(wf_requests_recv(&comm->requests, p->y + at, bytes, from));
    }
    for (int step = 1; step < comm->size; step++) {
        const int to = (comm->rank + step) % comm->size;
        if (p->root < 0 || p->root == to)
            WF_TRY(wf_requests_send(&comm->requests, result, own_bytes, to));
    }
    return WF_OK;
}

/* To other nodes in messages that need no answer: each answer waits until its rank looks at its messages, and a rank
 * that computes meanwhile does so only now and then. What is buffered for that is no more than the pieces ahead.
 * Before the result of a piece is received into y, which may be x, the piece has left x. */
static wf_status run_pieces(const plan *p)
{
    wf_requests *requests = &p->comm->requests;
    const int64_t pieces = pieces_of(p);
    int first[AHEAD], last[AHEAD]; /* transfers that spread a piece */
    int64_t spread = 0;
    char *result;
    requests->most_bytes = p->comm->inter_size > 1 ? WF_PROMPT_BYTES : 0;
    for (int64_t k = 0; k < pieces; k++) {
        for (; spread < pieces && spread < k + AHEAD; spread++) {
            first[spread % AHEAD] = requests->count;
            WF_TRY(spread_piece(p, spread));
            last[spread % AHEAD] = requests->count;
        }
        WF_TRY(wf_requests_wait(requests, first[k % AHEAD], last[k % AHEAD]));
        WF_TRY(combine_piece(p, k, &result));
        if (!p->shard)
            WF_TRY(collect_piece(p, k, result));
    }
    return wf_requests_wait_all(requests);
}

static wf_status reduce_long(plan *p)
{
    wf_comm *comm = p->comm;
    const int size = comm->size;
    const bool wanted = p->root < 0 || p->root == comm->rank;
    int64_t piece = WF_REDUCE_PIECE / (int64_t)p->size / size;
    const size_t table = (size_t)size * sizeof *p->in;
    if (piece < LEAST_BLOCK)
        piece = LEAST_BLOCK;
    if (piece > p->count / size + 1)
        piece = p->count / size + 1;
    p->piece = piece * size;
    p->slot = (size_t)piece * p->size;
    const size_t work = (size_t)size * p->slot, own = wanted ? 0 : (size_t)pieces_of(p) * p->slot;
    void *memory, *rest, *in;
    wf_status status;
    WF_TRY(wf_host_take(comm, AHEAD * work, &memory));
    for (int i = 0; i < AHEAD; i++)
        p->work[i] = (char *)memory + (size_t)i * work;
    rest = in = NULL;
    WF_TRY_OUT(wf_host_take(comm, own, &rest));
    WF_TRY_OUT(wf_host_take(comm, table, &in));
    p->own = rest;
    p->in = in;
    WF_TRY_OUT(run_pieces(p));
out:
    wf_host_give(comm, in, table);
    wf_host_give(comm, rest, own);
    wf_host_give(comm, memory, AHEAD * work);
    return status;
}

/* Short vectors: every rank that wants the result gets all of them. */
static wf_status gather_to(wf_comm *comm, const void *x, size_t bytes, int root, char *all)
{
    if (comm->rank != root)
        WF_TRY(wf_requests_send(&comm->requests, x, bytes, root));
    for (int r = 0; r < comm->size && comm->rank == root; r++) {
        if (r == root)
            memcpy(all + (size_t)r * bytes, x, bytes);
        else
            WF_TRY(wf_requests_recv(&comm->requests, all + (size_t)r * bytes, bytes, r));
    }
    return wf_requests_wait_all(&comm->requests);
}

static wf_status combine_all(const plan *p, char *all, const void **in)
{
    for (int r = 0; r < p->comm->size; r++)
        in[r] = all + (size_t)r * p->slot;
    return wf_combine(p->comm->shared->ctx, p->op, p->dtype, p->comm->size, in, p->y, p->count);
}

static wf_status reduce_short(plan *p)
{
    wf_comm *comm = p->comm;
    const size_t vectors = (size_t)comm->size * p->slot, table = (size_t)comm->size * sizeof *p->in;
    void *all, *in = NULL;
    wf_status status;
    comm->traffic.bytes_copied += p->slot;
    WF_TRY(wf_host_take(comm, vectors, &all));
    WF_TRY_OUT(wf_host_take(comm, table, &in));
    if (p->root < 0)
        WF_TRY_OUT(wf_coll_allgather(comm, p->x, p->slot, all));
    else
        WF_TRY_OUT(gather_to(comm, p->x, p->slot, p->root, all));
    if (p->root < 0 || p->root == comm->rank)
        WF_TRY_OUT(combine_all(p, all, in));
out:
    wf_host_give(comm, in, table);
    wf_host_give(comm, all, vectors);
    return status;
}

static wf_status reduce_by_transport(plan *p)
{
    wf_requests *requests = &p->comm->requests;
    WF_TRY(wf_requests_collective(requests));
    WF_TRY(p->comm->transport->allreduce(p->comm, p->x, p->y, p->count, p->dtype, p->op, &requests->transfer[0]));
    return wf_requests_wait_all(requests);
}

wf_status wf_coll_reduce(wf_comm *comm, const void *x, void *y, int64_t count, wf_dtype dtype, wf_reduce_op op,
                         int root)
{
    plan p = {.comm = comm, .x = x, .y = y, .count = count, .dtype = dtype, .op = op, .root = root};
    p.size = wf_dtype_size(dtype);
    if (count == 0)
        return WF_OK;
    if (comm->transport->allreduce && (root < 0 || comm->size == 1))
        return reduce_by_transport(&p);
    p.slot = (size_t)count * p.size;
    return p.slot <= WF_SMALL_BYTES / (size_t)comm->size ? reduce_short(&p) : reduce_long(&p);
}

wf_status wf_coll_sum_shards(wf_comm *comm, void *data, const int64_t *shard, wf_dtype dtype)
{
    plan p = {.comm = comm, .x = data, .y = data, .dtype = dtype, .op = WF_SUM, .root = -1, .shard = shard};
    p.count = shard[comm->size];
    p.size = wf_dtype_size(dtype);
    return longest_shard(&p) > 0 ? reduce_long(&p) : WF_OK;
}
