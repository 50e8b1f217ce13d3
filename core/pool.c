/* The memory pool of a context: tensors and workspace come from here, so that a loop of fixed shape allocates only in
 * its first steps. Main thread only, no lock. Blocks are kept by size class, four to each power of two: at most a
 * quarter is lost. A table by address finds the record of a block, since device memory cannot be written from the host.
 * A block is in use or not; it may also be held (for good: a message may still write to it), and claimed by captured
 * steps, for which it stays reserved. It is free if it is none of these. If the pool would hold much more than was ever
 * in use, larger free blocks are cut, and their parts joined when free. A block of the host is handed out untouched:
 * the system places each page where it is written first, which a kernel does with its threads, so that on several
 * sockets the pages lie beside the processors that computed them. */
#include "core/pool_impl.h"

#include <stdlib.h>
#include <string.h>

enum { CLASSES = 4 * 64, SMALLEST = 256, SLACK = 16 << 20, SMALLEST_PART = 16 << 10 };

typedef struct block {
    void *data;
    size_t bytes;
    int class;          /* the largest whose size is not above its own: the free list that it goes to */
    bool held;          /* stays out of use for good */
    bool used;          /* handed out */
    bool mine;          /* was taken since a claim began */
    int claims;         /* by how many captured steps it is claimed */
    struct block *next; /* free list of its class, or of held blocks, or of spare records */
    /* A block of the system may be cut into parts, each a block: those beside it, by address. NULL at its ends. */
    struct block *before, *after;
} block;

/* Blocks of one kind of memory; the table is open addressing by address. */
typedef struct store {
    bool host;
    block *free[CLASSES];
    block *spare; /* records of parts that were joined */
    size_t bytes; /* of all blocks */
    block **table;
    size_t capacity, used;
} store;

struct wf_pool {
    wf_ctx *ctx;
    wf_memory_counters counters;
    size_t marked;      /* most bytes in use since wf_pool_mark */
    store device, host; /* host: page-locked, where device memory is not the host's */
    wf_handles handles;
    bool claiming;
    block *mine[CLASSES]; /* free blocks of the claim that is being made */
};

/* Held blocks of pools that were freed; the list keeps them visible to a leak checker. */
static block *held;

wf_pool *wf_pool_new(wf_ctx *ctx)
{
    wf_pool *pool = calloc(1, sizeof *pool);
    if (!pool) {
        WF_RAISE(WF_ERR_MEMORY, "no memory for a pool");
        return NULL;
    }
    pool->ctx = ctx;
    pool->host.host = true;
    return pool;
}

static void release(wf_ctx *ctx, const store *s, void *data, size_t bytes)
{
    (s->host ? ctx->k->pinned_release : ctx->k->release)(ctx, data, bytes);
}

/* Frees a block of the system, given its first part; if any part is held, the whole block is. */
static void release_parts(wf_ctx *ctx, const store *s, block *first)
{
    size_t bytes = 0;
    bool holds = false;
    for (const block *b = first; b; b = b->after) {
        bytes += b->bytes;
        holds = holds || b->held;
    }
    if (!holds)
        release(ctx, s, first->data, bytes);
    for (block *b = first, *after; b; b = after) {
        after = b->after;
        b->next = held;
        if (holds)
            held = b;
        else
            free(b);
    }
}

static void release_all(wf_ctx *ctx, store *s)
{
    for (size_t i = 0; i < s->capacity; i++)
        if (s->table[i] && s->table[i]->before)
            s->table[i] = NULL; /* goes with the first part */
    for (size_t i = 0; i < s->capacity; i++)
        if (s->table[i])
            release_parts(ctx, s, s->table[i]);
    free(s->table);
    for (block *b = s->spare, *next; b; b = next) {
        next = b->next;
        free(b);
    }
}

void wf_pool_free(wf_pool *pool)
{
    if (!pool)
        return;
    release_all(pool->ctx, &pool->device);
    release_all(pool->ctx, &pool->host);
    wf_handles_free(&pool->handles);
    free(pool);
}

wf_memory_counters wf_ctx_memory(const wf_ctx *ctx)
{
    if (!ctx)
        return (wf_memory_counters){0};
    wf_memory_counters counters = ctx->pool->counters;
    counters.plans = ctx->plans;
    return counters;
}

/* The smallest class that holds `bytes`, and its size. */
static int class_of(size_t bytes, size_t *size)
{
    if (bytes <= SMALLEST) {
        *size = SMALLEST;
        return 0;
    }
    /* Position of the highest bit of bytes - 1: 2^log < bytes <= 2^(log + 1), in four equal parts. */
    const int log = 63 - __builtin_clzll(bytes - 1);
    const size_t quarter = (size_t)1 << (log - 2);
    const size_t part = (bytes - 1 - ((size_t)1 << log)) / quarter;
    *size = ((size_t)1 << log) + (part + 1) * quarter;
    return 4 * log + (int)part;
}

/* The largest class whose size is at most `bytes`. */
static int class_within(size_t bytes)
{
    size_t size;
    const int class = class_of(bytes, &size);
    return size > bytes ? class - 1 : class;
}

/* The entry at which the search for a block begins. Fibonacci hashing: blocks are 64-byte aligned, so the low six bits
 * say nothing, and the product's middle bits are the mixed ones. */
static size_t home_of(const store *s, const void *data)
{
    return ((uintptr_t)data >> 6) * 0x9e3779b97f4a7c15u >> 20 & (s->capacity - 1);
}

static size_t table_slot(const store *s, const void *data)
{
    size_t i = home_of(s, data);
    while (s->table[i] && s->table[i]->data != data)
        i = (i + 1) & (s->capacity - 1);
    return i;
}

/* Moves later entries of the probe sequence into the gap unless their search begins after it. */
static void table_remove(store *s, const void *data)
{
    size_t gap = table_slot(s, data);
    for (size_t i = (gap + 1) & (s->capacity - 1); s->table[i]; i = (i + 1) & (s->capacity - 1)) {
        const size_t from_home = (i - home_of(s, s->table[i]->data)) & (s->capacity - 1);
        if (from_home < ((i - gap) & (s->capacity - 1)))
            continue;
        s->table[gap] = s->table[i];
        gap = i;
    }
    s->table[gap] = NULL;
    s->used--;
}

static wf_status grow_table(wf_pool *pool, store *s)
{
    block **old = s->table;
    const size_t n = s->capacity;
    block **table = calloc(n ? 2 * n : 256, sizeof *table);
    WF_CHECK(table, WF_ERR_MEMORY, "no memory for the pool's table");
    wf_pool_count_allocation(pool->ctx);
    s->table = table;
    s->capacity = n ? 2 * n : 256;
    for (size_t i = 0; i < n; i++)
        if (old[i])
            s->table[table_slot(s, old[i]->data)] = old[i];
    free(old);
    return WF_OK;
}

/* --- parts of blocks ---------------------------------------------------------------------------------------------- */

static bool is_free(const block *b)
{
    return b && !b->used && !b->held && !b->mine && b->claims == 0;
}

static void list_remove(block **at, const block *b)
{
    while (*at && *at != b)
        at = &(*at)->next;
    if (*at)
        *at = b->next;
}

static void list_add(block **list, block *b)
{
    b->next = *list;
    *list = b;
}

/* Appends the next part by address, which is of the same system block. */
static void join(store *s, block *b)
{
    block *const gone = b->after;
    b->bytes += gone->bytes;
    b->after = gone->after;
    if (b->after)
        b->after->before = b;
    table_remove(s, gone->data);
    list_add(&s->spare, gone);
}

/* Makes a block available again, joined with free neighbours, unless something keeps it. */
static void set_free(store *s, block *b)
{
    if (!is_free(b))
        return;
    if (is_free(b->after)) {
        list_remove(&s->free[b->after->class], b->after);
        join(s, b);
    }
    if (is_free(b->before)) {
        b = b->before;
        list_remove(&s->free[b->class], b);
        join(s, b);
    }
    b->class = class_within(b->bytes);
    list_add(&s->free[b->class], b);
}

static wf_status record_new(wf_pool *pool, store *s, block **b)
{
    if (2 * (s->used + 1) > s->capacity)
        WF_TRY(grow_table(pool, s));
    *b = s->spare;
    if (*b) {
        s->spare = (*b)->next;
        **b = (block){0};
        return WF_OK;
    }
    *b = calloc(1, sizeof **b);
    WF_CHECK(*b, WF_ERR_MEMORY, "no memory for a block's record");
    wf_pool_count_allocation(pool->ctx);
    return WF_OK;
}

static void table_add(store *s, block *b)
{
    s->table[table_slot(s, b->data)] = b;
    s->used++;
}

/* Leaves `size` bytes of a block that is in no list, and makes the rest a free one. Sizes of classes from SMALLEST_PART
 * on are multiples of 4 KiB, so parts lie as the block does. */
static wf_status split(wf_pool *pool, store *s, block *b, size_t size)
{
    block *rest;
    if (b->bytes - size < SMALLEST_PART)
        return WF_OK;
    WF_TRY(record_new(pool, s, &rest));
    *rest = (block){.data = (char *)b->data + size, .bytes = b->bytes - size, .before = b, .after = b->after};
    if (rest->after)
        rest->after->before = rest;
    b->after = rest;
    b->bytes = size;
    b->class = class_within(size);
    table_add(s, rest);
    set_free(s, rest);
    return WF_OK;
}

/* --- blocks of the system ----------------------------------------------------------------------------------------- */

/* Returns the link to the largest free block of which no part is in use, held or claimed; NULL: there is none. */
static block **largest_whole(store *s)
{
    for (int class = CLASSES - 1; class >= 0; class --)
        for (block **at = &s->free[class]; *at; at = &(*at)->next)
            if (!(*at)->before && !(*at)->after)
                return at;
    return NULL;
}

/* Returns such blocks to the system until it has `enough` bytes more. */
static wf_status trim(wf_pool *pool, store *s, size_t enough)
{
    const size_t least = s->bytes > enough ? s->bytes - enough : 0;
    if (enough == 0 || !largest_whole(s))
        return WF_OK;
    /* CUDA waits for the whole device before it frees memory, also for kernels that wait for ranks that have died, and
     * nothing ends that wait. The context's own waits return an error if a rank fails. */
    WF_TRY(pool->ctx->await ? pool->ctx->await(pool->ctx->comm) : WF_OK);
    WF_TRY(pool->ctx->k->stream_finish(pool->ctx, NULL));
    for (block **at = largest_whole(s); at && s->bytes > least; at = largest_whole(s)) {
        block *const b = *at;
        *at = b->next;
        table_remove(s, b->data);
        s->bytes -= b->bytes;
        pool->counters.bytes_reserved -= b->bytes;
        release(pool->ctx, s, b->data, b->bytes);
        list_add(&s->spare, b);
    }
    return WF_OK;
}

/* The most that was ever in use, this block included. */
static size_t peak_with(const wf_pool *pool, size_t size)
{
    const size_t wanted = pool->counters.bytes_in_use + size, peak = pool->counters.bytes_peak;
    return wanted > peak ? wanted : peak;
}

/* How many bytes the store would hold beyond a quarter more than was ever in use. For small blocks no large one is cut
 * or given back. */
static size_t excess(const wf_pool *pool, const store *s, size_t size)
{
    if (size < SMALLEST_PART)
        return 0;
    const size_t peak = peak_with(pool, size), most = peak + peak / 4 + SLACK;
    return s->bytes + size > most ? s->bytes + size - most : 0;
}

/* Cuts the part that is needed off a larger free block; *out is NULL if there is none. Used before the store grows
 * beyond its bound, and when the system has no more. Requests of many sizes leave free blocks of all of them; steps of
 * a fixed shape leave none to cut. */
static wf_status larger_block(wf_pool *pool, store *s, size_t size, int class, block **out)
{
    *out = NULL;
    for (int above = class + 1; above < CLASSES && !*out; above++)
        *out = s->free[above];
    if (!*out)
        return WF_OK;
    block *const b = *out;
    s->free[b->class] = b->next;
    b->used = true; /* not joined with its rest */
    const wf_status status = split(pool, s, b, size < SMALLEST_PART ? SMALLEST_PART : size);
    if (status != WF_OK) {
        b->used = false;
        set_free(s, b);
    }
    return status;
}

static wf_status new_block(wf_pool *pool, store *s, size_t size, int class, block **out)
{
    block *b;
    wf_alloc_fn *const alloc = s->host ? pool->ctx->k->pinned_alloc : pool->ctx->k->alloc;
    WF_TRY(record_new(pool, s, &b));
    const wf_status status = alloc(pool->ctx, size, &b->data);
    if (status != WF_OK) {
        list_add(&s->spare, b);
        return wf_error_frame(status, __FILE__, __LINE__, __func__);
    }
    b->bytes = size;
    b->class = class;
    wf_pool_count_allocation(pool->ctx);
    pool->counters.bytes_reserved += size;
    s->bytes += size;
    table_add(s, b);
    *out = b;
    return WF_OK;
}

/* Before the store grows beyond its bound a larger block is cut, or else free ones that are too small go back. A system
 * that has no more memory is asked again once no block can be cut and all free ones are returned. While a step is
 * captured nothing of this is done. */
static wf_status find_block(wf_pool *pool, store *s, size_t size, int class, block **out)
{
    if (pool->claiming)
        return new_block(pool, s, size, class, out);
    const size_t more = excess(pool, s, size);
    if (more > 0)
        WF_TRY(larger_block(pool, s, size, class, out));
    if (*out)
        return WF_OK;
    WF_TRY(trim(pool, s, more));
    const wf_status status = new_block(pool, s, size, class, out);
    if (status != WF_ERR_MEMORY)
        return status;
    wf_error_clear();
    WF_TRY(larger_block(pool, s, size, class, out));
    if (*out)
        return WF_OK;
    WF_TRY(trim(pool, s, SIZE_MAX));
    return new_block(pool, s, size, class, out);
}

static wf_status take_block(wf_pool *pool, store *s, size_t bytes, void **data)
{
    *data = NULL;
    if (bytes == 0)
        return WF_OK;
    /* 64 TiB: a negative count that became unsigned is refused here with its number, not by the system. */
    WF_CHECK(bytes <= (size_t)1 << 46, WF_ERR_MEMORY, "%zu bytes asked for at once", bytes);
    size_t size;
    const int class = class_of(bytes, &size);
    /* A captured step keeps the device memory that it takes, for every replay; host memory is not part of a graph. */
    const bool claiming = pool->claiming && !s->host;
    block **from = claiming && pool->mine[class] ? &pool->mine[class] : &s->free[class];
    block *b = *from;
    if (b)
        *from = b->next;
    else
        WF_TRY(find_block(pool, s, size, class, &b));
    b->next = NULL;
    b->used = true;
    b->mine = claiming;
    pool->counters.pool_takes++;
    pool->counters.bytes_in_use += b->bytes;
    if (pool->counters.bytes_in_use > pool->marked)
        pool->marked = pool->counters.bytes_in_use;
    if (pool->counters.bytes_in_use > pool->counters.bytes_peak)
        pool->counters.bytes_peak = pool->counters.bytes_in_use;
    *data = b->data;
    return WF_OK;
}

static void give_block(wf_pool *pool, store *s, void *data)
{
    if (!data)
        return;
    block *const b = s->table[table_slot(s, data)];
    pool->counters.bytes_in_use -= b->bytes;
    b->used = false;
    if (b->mine && !b->held && b->claims == 0)
        list_add(&pool->mine[b->class], b);
    else
        set_free(s, b);
}

wf_status wf_pool_take(wf_ctx *ctx, size_t bytes, void **data)
{
    return take_block(ctx->pool, &ctx->pool->device, bytes, data);
}

void wf_pool_give(wf_ctx *ctx, void *data, size_t bytes)
{
    give_block(ctx->pool, &ctx->pool->device, data);
}

/* On a device whose memory is the host's there is one store: blocks freed as tensors serve as host lists. */
static store *host_store(wf_ctx *ctx)
{
    return ctx->k->host ? &ctx->pool->device : &ctx->pool->host;
}

wf_status wf_pool_take_host(wf_ctx *ctx, size_t bytes, void **data)
{
    return take_block(ctx->pool, host_store(ctx), bytes, data);
}

void wf_pool_give_host(wf_ctx *ctx, void *data, size_t bytes)
{
    give_block(ctx->pool, host_store(ctx), data);
}

/* A block that is free is removed from its free list. */
static void hold_block(wf_pool *pool, store *s, block *b)
{
    b->held = true;
    list_remove(b->mine ? &pool->mine[b->class] : &s->free[b->class], b);
}

static void hold_within(wf_pool *pool, store *s, uintptr_t address)
{
    for (size_t i = 0; i < s->capacity; i++) {
        block *b = s->table[i];
        if (b && !b->held && (uintptr_t)b->data <= address && address < (uintptr_t)b->data + b->bytes)
            hold_block(pool, s, b);
    }
}

void wf_pool_hold(wf_ctx *ctx, const void *data)
{
    hold_within(ctx->pool, &ctx->pool->device, (uintptr_t)data);
    hold_within(ctx->pool, &ctx->pool->host, (uintptr_t)data);
}

struct wf_claim {
    size_t n;
    block *list[];
};

void wf_pool_claim_begin(wf_ctx *ctx)
{
    ctx->pool->claiming = true;
}

static bool claimed(const block *b)
{
    return b && (b->used || b->mine);
}

wf_status wf_pool_claim_end(wf_ctx *ctx, wf_claim **out)
{
    wf_pool *pool = ctx->pool;
    store *s = &pool->device;
    size_t n = 0;
    pool->claiming = false;
    memset(pool->mine, 0, sizeof pool->mine);
    for (size_t i = 0; i < s->capacity; i++)
        n += claimed(s->table[i]);
    wf_claim *claim = wf_malloc(ctx, sizeof *claim + n * sizeof(block *));
    if (claim)
        claim->n = 0;
    for (size_t i = 0; i < s->capacity; i++) {
        block *b = s->table[i];
        if (!claimed(b))
            continue;
        b->mine = false;
        b->claims += claim != NULL;
        if (claim)
            claim->list[claim->n++] = b;
        else if (is_free(b))
            list_add(&s->free[b->class], b); /* not joined, which would change the table */
    }
    *out = claim;
    return claim ? WF_OK : wf_error_code();
}

void wf_pool_claim_drop(wf_ctx *ctx, wf_claim *claim)
{
    for (size_t i = 0; claim && i < claim->n; i++) {
        claim->list[i]->claims--;
        set_free(&ctx->pool->device, claim->list[i]);
    }
    free(claim);
}

void wf_pool_count_allocation(wf_ctx *ctx)
{
    /* A thread that makes batches ahead allocates too. */
    __atomic_fetch_add(&ctx->pool->counters.system_allocations, 1, __ATOMIC_RELAXED);
}

wf_handles *wf_pool_handles(const wf_ctx *ctx)
{
    return &ctx->pool->handles;
}

size_t wf_pool_mark(wf_ctx *ctx)
{
    wf_pool *pool = ctx->pool;
    const size_t most = pool->marked;
    pool->marked = pool->counters.bytes_in_use;
    return most;
}
