#include "comm/collective/collective_impl.h"

#include <string.h>

static int from_root(const wf_comm *comm, int root)
{
    return (comm->rank - root + comm->size) % comm->size;
}

/* A chain of ranks, each of which passes on a piece while the next one arrives. */
static wf_status bcast_long(wf_comm *comm, char *data, size_t bytes, int root)
{
    const int place = from_root(comm, root), before = (comm->rank + comm->size - 1) % comm->size;
    const int after = (comm->rank + 1) % comm->size;
    wf_requests *requests = &comm->requests;
    const size_t piece = WF_BCAST_PIECE;
    for (size_t at = 0; place > 0 && at < bytes; at += piece)
        WF_TRY(wf_requests_recv(requests, data + at, bytes - at < piece ? bytes - at : piece, before));
    const int received = requests->count, each = (int)((piece + comm->chunk_bytes - 1) / comm->chunk_bytes);
    int first = 0;
    for (size_t at = 0; place < comm->size - 1 && at < bytes; at += piece) {
        const int last = first + each < received ? first + each : received;
        if (place > 0)
            WF_TRY(wf_requests_wait(requests, first, last));
        WF_TRY(wf_requests_send(requests, data + at, bytes - at < piece ? bytes - at : piece, after));
        first = last;
    }
    return wf_requests_wait_all(requests);
}

/* A binomial tree: at distance d, the ranks below d serve those d further. */
static wf_status bcast_short(wf_comm *comm, char *data, size_t bytes, int root)
{
    const int place = from_root(comm, root);
    int distance = 1;
    while (distance < comm->size)
        distance *= 2;
    int served = place == 0 ? distance : place & -place;
    if (place > 0) {
        WF_TRY(wf_requests_recv(&comm->requests, data, bytes, (place - served + root) % comm->size));
        WF_TRY(wf_requests_wait_all(&comm->requests));
    }
    for (served /= 2; served > 0; served /= 2)
        if (place + served < comm->size)
            WF_TRY(wf_requests_send(&comm->requests, data, bytes, (place + served + root) % comm->size));
    return wf_requests_wait_all(&comm->requests);
}

wf_status wf_coll_bcast(wf_comm *comm, void *data, size_t bytes, int root)
{
    if (bytes == 0)
        return WF_OK;
    if (comm->transport->bcast) {
        WF_TRY(wf_requests_collective(&comm->requests));
        WF_TRY(comm->transport->bcast(comm, data, bytes, root, &comm->requests.transfer[0]));
        return wf_requests_wait_all(&comm->requests);
    }
    return bytes > WF_BCAST_PIECE ? bcast_long(comm, data, bytes, root) : bcast_short(comm, data, bytes, root);
}

/* In ceil(log2 P) steps (Bruck): slot j holds what rank + j has, and every step doubles the slots that are known. */
static wf_status allgather_short(wf_comm *comm, const void *mine, size_t bytes, char *all)
{
    const int size = comm->size, rank = comm->rank;
    const size_t total = (size_t)size * bytes;
    void *memory;
    wf_status status = WF_OK;
    WF_TRY(wf_host_take(comm, total, &memory));
    char *slot = memory;
    memcpy(slot, mine, bytes);
    for (int known = 1; known < size; known *= 2) {
        const int more = known < size - known ? known : size - known;
        const size_t part = (size_t)more * bytes;
        WF_TRY_OUT(wf_requests_recv(&comm->requests, slot + (size_t)known * bytes, part, (rank + known) % size));
        WF_TRY_OUT(wf_requests_send(&comm->requests, slot, part, (rank + size - known) % size));
        WF_TRY_OUT(wf_requests_wait_all(&comm->requests));
    }
    for (int j = 0; j < size; j++)
        memcpy(all + (size_t)((rank + j) % size) * bytes, slot + (size_t)j * bytes, bytes);
out:
    wf_host_give(comm, memory, total);
    return status;
}

static wf_status allgather_long(wf_comm *comm, const void *mine, size_t bytes, char *all)
{
    for (int step = 1; step < comm->size; step++) {
        const int from = (comm->rank + comm->size - step) % comm->size;
        WF_TRY(wf_requests_recv(&comm->requests, all + (size_t)from * bytes, bytes, from));
    }
    for (int step = 1; step < comm->size; step++)
        WF_TRY(wf_requests_send(&comm->requests, mine, bytes, (comm->rank + step) % comm->size));
    WF_TRY(wf_requests_wait_all(&comm->requests));
    memmove(all + (size_t)comm->rank * bytes, mine, bytes);
    return WF_OK;
}

wf_status wf_coll_allgather(wf_comm *comm, const void *mine, size_t bytes, void *all)
{
    if (bytes == 0)
        return WF_OK;
    if (bytes <= WF_SMALL_BYTES / (size_t)comm->size)
        return allgather_short(comm, mine, bytes, all);
    return allgather_long(comm, mine, bytes, all);
}

wf_status wf_coll_gather_shards(wf_comm *comm, void *data, const int64_t *shard, size_t size)
{
    char *first = data;
    for (int step = 1; step < comm->size; step++) {
        const int from = (comm->rank + comm->size - step) % comm->size;
        WF_TRY(wf_requests_recv(&comm->requests, first + (size_t)shard[from] * size,
                                (size_t)(shard[from + 1] - shard[from]) * size, from));
    }
    const size_t own = (size_t)(shard[comm->rank + 1] - shard[comm->rank]) * size;
    for (int step = 1; step < comm->size; step++)
        WF_TRY(wf_requests_send(&comm->requests, first + (size_t)shard[comm->rank] * size, own,
                                (comm->rank + step) % comm->size));
    return wf_requests_wait_all(&comm->requests);
}

wf_status wf_coll_barrier(wf_comm *comm)
{
    for (int distance = 1; distance < comm->size; distance *= 2) {
        WF_TRY(
            wf_requests_recv(&comm->requests, &comm->token[0], 1, (comm->rank + comm->size - distance) % comm->size));
        WF_TRY(wf_requests_send(&comm->requests, &comm->token[1], 1, (comm->rank + distance) % comm->size));
        WF_TRY(wf_requests_wait_all(&comm->requests));
    }
    return WF_OK;
}
