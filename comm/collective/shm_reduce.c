#include "comm/collective/collective_impl.h"

#include <string.h>
#include <unistd.h>

#define TILE        ((size_t)8 << 10)  /* bytes: a result is copied on while it is in the first-level cache */
#define SHORT_BYTES ((size_t)16 << 10) /* every rank reduces all of it: one step instead of two */
#define GRAIN       16                 /* elements: slices begin at whole cache lines */
#define SPINS       64

typedef struct work {
    wf_comm *comm;
    wf_shm *shm;
    const char *x; /* of a broadcast: read on the root alone */
    char *y;       /* not used where the result is not wanted */
    int64_t count, piece, pieces;
    size_t size; /* of an element */
    wf_dtype dtype;
    wf_reduce_op op;
    int root;
    bool bcast, whole; /* whole: pieces are not cut into slices */
    bool wanted;
    int64_t copied, reduced, taken; /* pieces of this call */
} work;

typedef struct span {
    size_t at, bytes; /* of the vector */
    size_t in_slot;
} span;

static char *slot_of(const work *w, int rank, int64_t k)
{
    return w->shm->at[rank].slots + (w->shm->pieces + (uint64_t)k) % WF_SHM_SLOTS * WF_SHM_SLOT;
}

static span whole_of(const work *w, int64_t k)
{
    const int64_t base = k * w->piece, n = w->count - base < w->piece ? w->count - base : w->piece;
    return (span){.at = (size_t)base * w->size, .bytes = (size_t)n * w->size};
}

/* The part of piece k that `rank` reduces. */
static span slice_of(const work *w, int64_t k, int rank)
{
    span s = whole_of(w, k);
    const int64_t n = (int64_t)(s.bytes / w->size);
    int64_t lo, hi;
    if (w->whole)
        return s;
    wf_block((n + GRAIN - 1) / GRAIN, w->shm->size, rank, &lo, &hi);
    lo = lo * GRAIN < n ? lo * GRAIN : n;
    hi = hi * GRAIN < n ? hi * GRAIN : n;
    s.in_slot = (size_t)lo * w->size;
    s.at += s.in_slot;
    s.bytes = (size_t)(hi - lo) * w->size;
    return s;
}

static uint64_t number_of(const work *w, int64_t k)
{
    return w->shm->pieces + (uint64_t)k;
}

static uint64_t look(const atomic_uint_least64_t *flag)
{
    return atomic_load_explicit(flag, memory_order_acquire);
}

static void show(atomic_uint_least64_t *flag, uint64_t value)
{
    atomic_store_explicit(flag, value, memory_order_release);
}

/* The first rank whose copies in piece k's slot are not all read: -1 where the slot is free. */
static int reader_of(const work *w, int64_t k)
{
    for (int r = 0; r < w->shm->size; r++)
        if (r != w->shm->rank && look(&w->shm->at[r].flags->taken) + WF_SHM_SLOTS <= number_of(w, k))
            return r;
    return -1;
}

static int not_copied(const work *w, int64_t k)
{
    for (int r = 0; r < w->shm->size && !w->bcast; r++)
        if (r != w->shm->rank && look(&w->shm->at[r].flags->copied) <= number_of(w, k))
            return r;
    return -1;
}

static int not_reduced(const work *w, int64_t k)
{
    if (!w->wanted || (w->whole && !w->bcast))
        return -1;
    if (w->bcast)
        return w->root != w->shm->rank && look(&w->shm->at[w->root].flags->copied) <= number_of(w, k) ? w->root : -1;
    for (int r = 0; r < w->shm->size; r++)
        if (r != w->shm->rank && look(&w->shm->at[r].flags->reduced) <= number_of(w, k))
            return r;
    return -1;
}

static void copy_in(work *w, int64_t k)
{
    wf_shm *shm = w->shm;
    const span all = whole_of(w, k), own = slice_of(w, k, shm->rank);
    char *slot = slot_of(w, shm->rank, k);
    const size_t after = own.in_slot + own.bytes;
    if (w->whole && (!w->bcast || w->root == shm->rank)) {
        memcpy(slot, w->x + all.at, all.bytes);
        w->comm->traffic.bytes_copied += all.bytes;
    } else if (!w->whole) {
        memcpy(slot, w->x + all.at, own.in_slot);
        memcpy(slot + after, w->x + all.at + after, all.bytes - after);
        w->comm->traffic.bytes_copied += all.bytes - own.bytes;
    }
    w->copied++;
    show(&shm->at[shm->rank].flags->copied, number_of(w, w->copied));
}

static wf_status reduce_slice(work *w, int64_t k)
{
    wf_shm *shm = w->shm;
    const span own = slice_of(w, k, shm->rank);
    char *slot = slot_of(w, shm->rank, k) + own.in_slot;
    for (size_t at = 0; at < own.bytes; at += TILE) {
        const size_t bytes = own.bytes - at < TILE ? own.bytes - at : TILE;
        for (int r = 0; r < shm->size; r++)
            shm->in[r] = r == shm->rank ? w->x + own.at + at : slot_of(w, r, k) + own.in_slot + at;
        void *to = w->whole ? w->y + own.at + at : slot + at;
        WF_TRY(wf_combine(w->comm->shared->ctx, w->op, w->dtype, shm->size, shm->in, to, (int64_t)(bytes / w->size)));
        if (w->wanted && !w->whole)
            memcpy(w->y + own.at + at, slot + at, bytes);
    }
    return WF_OK;
}

static wf_status reduce_next(work *w)
{
    if (!w->bcast && (!w->whole || w->wanted))
        WF_TRY(reduce_slice(w, w->reduced));
    w->reduced++;
    show(&w->shm->at[w->shm->rank].flags->reduced, number_of(w, w->reduced));
    return WF_OK;
}

static void take_next(work *w)
{
    const wf_shm *shm = w->shm;
    const int64_t k = w->taken;
    for (int r = 0; r < shm->size && w->wanted && !w->whole; r++) {
        const span s = slice_of(w, k, r);
        if (r != shm->rank)
            memcpy(w->y + s.at, slot_of(w, r, k) + s.in_slot, s.bytes);
    }
    if (w->bcast && w->root != shm->rank) {
        const span s = whole_of(w, k);
        memcpy(w->y + s.at, slot_of(w, w->root, k), s.bytes);
    }
    w->taken++;
    show(&shm->at[shm->rank].flags->taken, number_of(w, w->taken));
}

/* Does what can be done without waiting; what frees the slots of others comes first. `missing` is the rank that is
 * awaited where nothing could be done, -1 otherwise. */
static wf_status step(work *w, int *missing)
{
    const bool take = w->taken < w->reduced, reduce = w->reduced < w->copied, copy = w->copied < w->pieces;
    bool moved = false;
    int late = -1, rank;
    if (take && (rank = not_reduced(w, w->taken)) < 0) {
        take_next(w);
        moved = true;
    } else if (take) {
        late = rank;
    }
    if (reduce && (rank = not_copied(w, w->reduced)) < 0) {
        WF_TRY(reduce_next(w));
        moved = true;
    } else if (reduce && late < 0) {
        late = rank;
    }
    if (copy && (rank = reader_of(w, w->copied)) < 0) {
        copy_in(w, w->copied);
        moved = true;
    } else if (copy && late < 0) {
        late = rank;
    }
    *missing = moved ? -1 : late;
    return WF_OK;
}

static wf_status run(work *w)
{
    wf_deadline deadline = wf_deadline_new();
    int missing = -1, tries = 0;
    while (w->taken < w->pieces) {
        WF_TRY(step(w, &missing));
        if (missing < 0) {
            if (deadline.polls > 0)
                deadline = wf_deadline_new();
            tries = 0;
        } else if (++tries > SPINS) {
            deadline.peer = w->shm->at[missing].world;
            WF_TRY(wf_deadline_poll(w->comm, &deadline, NULL));
            tries = wf_deadline_crowded(w->comm) ? SPINS : 0;
        }
    }
    w->shm->pieces += (uint64_t)w->pieces;
    return WF_OK;
}

/* Some pieces even of a vector that fits into one slot, so that ranks overlap. */
static void cut(work *w)
{
    const int64_t most = (int64_t)(WF_SHM_SLOT / w->size), least = (int64_t)(SHORT_BYTES / w->size);
    w->piece = w->count / WF_SHM_SLOTS;
    w->piece = w->piece < least ? least : w->piece > most ? most : w->piece;
    w->pieces = (w->count + w->piece - 1) / w->piece;
}

wf_status wf_shm_reduce(wf_comm *comm, wf_shm *shm, const void *x, void *y, int64_t count, wf_dtype dtype,
                        wf_reduce_op op, int root)
{
    work w = {.comm = comm, .shm = shm, .x = x, .y = y, .count = count, .dtype = dtype, .op = op, .root = root};
    w.size = wf_dtype_size(dtype);
    w.wanted = root < 0 || root == shm->rank;
    w.whole = (size_t)count * w.size <= SHORT_BYTES;
    if (shm->size == 1) {
        if (x != y && count > 0)
            memcpy(y, x, (size_t)count * w.size);
        return WF_OK;
    }
    cut(&w);
    return run(&w);
}

wf_status wf_shm_bcast(wf_comm *comm, wf_shm *shm, void *data, size_t bytes, int root)
{
    work w = {.comm = comm, .shm = shm, .x = data, .y = data, .count = (int64_t)bytes, .size = 1, .root = root};
    w.bcast = w.whole = w.wanted = true;
    if (shm->size == 1)
        return WF_OK;
    cut(&w);
    return run(&w);
}
