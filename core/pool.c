/* The pool of the context: every tensor and every workspace comes from here, so that a loop of fixed shape calls
 * malloc and cudaMalloc only in its first steps. Main thread only. There are four size classes to each power of two,
 * so at most a quarter of a block is lost. A block's class is kept in a table that is searched by address, since
 * device memory cannot be written from the host.
 *
 * A block of the host is handed out untouched: the system places each page where it is written first, which a kernel
 * does with its threads, so that on several sockets the pages lie beside the processors that computed them. */
#include "core/pool_impl.h"

#include <stdlib.h>
#include <string.h>

enum { CLASSES = 4 * 64, SMALLEST = 256, SPARE = 64 << 20 };

typedef struct block {
    void *data;
    size_t bytes;
    int class;
    bool held;          /* stays out of use for good */
    bool used;          /* is with somebody */
    bool mine;          /* was taken since a claim began */
    bool returned;      /* is about to go back to the system */
    int claims;         /* by how many captured steps it is claimed */
    struct block *next; /* free list of its class, or of held blocks */
    struct block *also; /* list of all */
} block;

/* Blocks of one kind of memory; the table is open addressing by address. */
typedef struct store {
    bool host;
    block *free[CLASSES];
    block *all;
    size_t bytes; /* of all blocks */
    block **table;
    size_t capacity, used;
} store;

struct wf_pool {
    wf_ctx *ctx;
    wf_memory_counters counters;
    size_t marked;        /* most bytes in use since wf_pool_mark */
    store device, host;   /* host: page-locked, where device memory is not the host's */
    wf_tensor *tensors;   /* free handles, linked through data */
    wf_storage *storages; /* free storages, linked through next */
    wf_storage *steps;
    void **chunks; /* memory of handles and storages */
    size_t n_chunks;
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

static void free_block(wf_ctx *ctx, const store *s, block *b)
{
    if (b && b->held) {
        b->next = held;
        held = b;
    } else if (b) {
        (s->host ? ctx->k->pinned_release : ctx->k->release)(ctx, b->data, b->bytes);
        free(b);
    }
}

static void release_all(wf_ctx *ctx, store *s)
{
    for (size_t i = 0; i < s->capacity; i++)
        free_block(ctx, s, s->table[i]);
    free(s->table);
}

void wf_pool_free(wf_pool *pool)
{
    if (!pool)
        return;
    release_all(pool->ctx, &pool->device);
    release_all(pool->ctx, &pool->host);
    for (size_t i = 0; i < pool->n_chunks; i++)
        free(pool->chunks[i]);
    free(pool->chunks);
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

static size_t slot_of(const store *s, const void *data)
{
    /* Fibonacci hashing: blocks are 64-byte aligned, so the low six bits say nothing, and the product's middle bits are
     * the mixed ones. */
    size_t i = ((uintptr_t)data >> 6) * 0x9e3779b97f4a7c15u >> 20;
    for (i &= s->capacity - 1; s->table[i] && s->table[i]->data != data; i = (i + 1) & (s->capacity - 1))
        ;
    return i;
}

static wf_status grow_table(wf_pool *pool, store *s)
{
    block **old = s->table;
    const size_t n = s->capacity;
    block **table = calloc(n ? 2 * n : 256, sizeof *table);
    WF_CHECK(table, WF_ERR_MEMORY, "no memory for the pool's table");
    pool->counters.system_allocations++;
    s->table = table;
    s->capacity = n ? 2 * n : 256;
    for (size_t i = 0; i < n; i++)
        if (old[i])
            s->table[slot_of(s, old[i]->data)] = old[i];
    free(old);
    return WF_OK;
}

/* Returns the free blocks to the system: those that nobody has, holds or claims. */
static void trim(wf_pool *pool, store *s)
{
    for (int class = 0; class < CLASSES; class ++)
        for (block *b = s->free[class]; b; b = b->next)
            b->returned = true;
    /* The table is rebuilt, not mended: with open addressing, removing an entry would break the search for those behind
     * it. */
    memset(s->free, 0, sizeof s->free);
    if (s->table)
        memset(s->table, 0, s->capacity * sizeof(block *));
    s->used = 0;
    for (block **at = &s->all; *at;) {
        block *b = *at;
        if (b->returned) {
            *at = b->also;
            s->bytes -= b->bytes;
            pool->counters.bytes_reserved -= b->bytes;
            free_block(pool->ctx, s, b);
            continue;
        }
        s->table[slot_of(s, b->data)] = b;
        s->used++;
        at = &b->also;
    }
}

/* The most that was ever in use, this block included. */
static size_t peak_with(const wf_pool *pool, size_t size)
{
    const size_t wanted = pool->counters.bytes_in_use + size, peak = pool->counters.bytes_peak;
    return wanted > peak ? wanted : peak;
}

/* What is asked for in many sizes leaves free blocks of all of them: they go back when the store would hold more than
 * twice what was ever in use. Steps of fixed shape never come here. While a step is captured nothing is returned. */
static bool is_wasteful(const wf_pool *pool, const store *s, size_t size)
{
    return s->bytes + size > 2 * peak_with(pool, size) + SPARE;
}

/* Before the store grows beyond a quarter more than was ever in use, a free block that is up to twice as large serves:
 * NULL where there is none. With images of many sizes the store stays half as large, and goes to the system for one
 * block of forty. It is not split: a device takes memory back as it gave it, so a part in use would keep the rest from
 * being returned, and a captured step claims, and others hold, whole blocks. */
static block *larger_block(const wf_pool *pool, store *s, size_t size, int class)
{
    const size_t peak = peak_with(pool, size);
    if (s->bytes + size <= peak + peak / 4 + SPARE / 4)
        return NULL;
    for (int above = class + 1; above <= class + 4 && above < CLASSES; above++) {
        block *b = s->free[above];
        if (!b)
            continue;
        s->free[above] = b->next;
        return b;
    }
    return NULL;
}

/* A device that has no more memory is asked again once the free blocks are returned. */
static wf_status alloc_block(wf_pool *pool, store *s, size_t size, void **data)
{
    wf_ctx *ctx = pool->ctx;
    wf_alloc_fn *const alloc = s->host ? ctx->k->pinned_alloc : ctx->k->alloc;
    if (!pool->claiming && is_wasteful(pool, s, size))
        trim(pool, s);
    const wf_status status = alloc(ctx, size, data);
    if (status != WF_ERR_MEMORY || pool->claiming)
        return status;
    wf_error_clear();
    trim(pool, s);
    return alloc(ctx, size, data);
}

static wf_status new_block(wf_pool *pool, store *s, size_t size, int class, block **out)
{
    if (2 * (s->used + 1) > s->capacity)
        WF_TRY(grow_table(pool, s));
    block *b = calloc(1, sizeof *b);
    WF_CHECK(b, WF_ERR_MEMORY, "no memory for a block's record");
    const wf_status status = alloc_block(pool, s, size, &b->data);
    if (status != WF_OK) {
        free(b);
        return wf_error_frame(status, __FILE__, __LINE__, __func__);
    }
    b->bytes = size;
    b->class = class;
    pool->counters.system_allocations += 2;
    pool->counters.bytes_reserved += size;
    s->bytes += size;
    b->also = s->all;
    s->all = b;
    s->table[slot_of(s, b->data)] = b;
    s->used++;
    *out = b;
    return WF_OK;
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
    /* What a captured step takes stays its own for every replay; host memory is not part of a graph. */
    const bool claiming = pool->claiming && !s->host;
    block **from = claiming && pool->mine[class] ? &pool->mine[class] : &s->free[class];
    block *b = *from;
    if (b)
        *from = b->next;
    else if (!pool->claiming)
        b = larger_block(pool, s, size, class);
    if (!b)
        WF_TRY(new_block(pool, s, size, class, &b));
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
    block *b = s->table[slot_of(s, data)];
    pool->counters.bytes_in_use -= b->bytes;
    b->used = false;
    if (b->held || b->claims > 0)
        return;
    block **to = b->mine ? &pool->mine[b->class] : &s->free[b->class];
    b->next = *to;
    *to = b;
}

wf_status wf_pool_take(wf_ctx *ctx, size_t bytes, void **data)
{
    return take_block(ctx->pool, &ctx->pool->device, bytes, data);
}

void wf_pool_give(wf_ctx *ctx, void *data, size_t bytes)
{
    (void)bytes;
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
    (void)bytes;
    give_block(ctx->pool, host_store(ctx), data);
}

/* A block that is free is removed from its free list. */
static void hold_block(wf_pool *pool, store *s, block *b)
{
    block **at = b->mine ? &pool->mine[b->class] : &s->free[b->class];
    b->held = true;
    while (*at && *at != b)
        at = &(*at)->next;
    if (*at)
        *at = b->next;
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

/* Makes a block available again, unless it is in use. */
static void set_free(store *s, block *b)
{
    if (b->used || b->held || b->claims > 0)
        return;
    b->next = s->free[b->class];
    s->free[b->class] = b;
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
        set_free(s, b);
        if (claim)
            claim->list[claim->n++] = b;
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

static void *counted(wf_ctx *ctx, void *p, size_t bytes)
{
    /* A thread that makes batches ahead allocates too. */
    __atomic_fetch_add(&ctx->pool->counters.system_allocations, 1, __ATOMIC_RELAXED);
    if (!p)
        WF_RAISE(WF_ERR_MEMORY, "no memory for %zu bytes", bytes);
    return p;
}

void *wf_malloc(wf_ctx *ctx, size_t bytes)
{
    return counted(ctx, malloc(bytes ? bytes : 1), bytes);
}

void *wf_calloc(wf_ctx *ctx, size_t count, size_t size)
{
    return counted(ctx, calloc(count ? count : 1, size ? size : 1), count * size);
}

void *wf_realloc(wf_ctx *ctx, void *old, size_t bytes)
{
    return counted(ctx, realloc(old, bytes ? bytes : 1), bytes);
}

void *wf_grow(wf_ctx *ctx, void *list, int64_t *room, int64_t count, size_t size)
{
    int64_t more = *room > 0 ? *room : 16;
    if (count <= *room)
        return list;
    /* Doubling keeps the cost of an element constant. */
    while (more < count)
        more *= 2;
    void *grown = wf_realloc(ctx, list, (size_t)more * size);
    *room = grown ? more : *room;
    return grown;
}

char *wf_strdup(wf_ctx *ctx, const char *text)
{
    const size_t bytes = strlen(text) + 1;
    char *copy = wf_malloc(ctx, bytes);
    if (copy)
        memcpy(copy, text, bytes);
    return copy;
}

void wf_packed_free(wf_ctx *ctx, wf_packed_form **forms)
{
    while (*forms) {
        wf_packed_form *form = *forms;
        *forms = form->next;
        wf_pool_give(ctx, form->data, form->bytes);
        free(form);
    }
}

/* One allocation for many small objects. */
static void *chunk(wf_ctx *ctx, size_t bytes)
{
    wf_pool *pool = ctx->pool;
    void **chunks = wf_realloc(ctx, pool->chunks, (pool->n_chunks + 1) * sizeof *chunks);
    if (!chunks)
        return NULL;
    /* Handles are made by the dozen and never freed before the pool: a loop of fixed shape reuses those of its first
     * steps. */
    pool->chunks = chunks;
    void *memory = wf_calloc(ctx, 1, bytes);
    if (memory)
        chunks[pool->n_chunks++] = memory;
    return memory;
}

enum { CHUNK = 64 };

wf_tensor *wf_pool_tensor(wf_ctx *ctx)
{
    wf_pool *pool = ctx->pool;
    if (!pool->tensors) {
        wf_tensor *many = chunk(ctx, CHUNK * sizeof *many);
        for (int i = 0; many && i < CHUNK; i++)
            wf_pool_tensor_give(ctx, &many[i]);
    }
    wf_tensor *tensor = pool->tensors;
    if (tensor) {
        pool->tensors = tensor->data;
        *tensor = (wf_tensor){.ctx = ctx};
    }
    return tensor;
}

void wf_pool_tensor_give(wf_ctx *ctx, wf_tensor *tensor)
{
    tensor->data = ctx->pool->tensors;
    ctx->pool->tensors = tensor;
}

wf_storage *wf_pool_storage(wf_ctx *ctx)
{
    wf_pool *pool = ctx->pool;
    if (!pool->storages) {
        wf_storage *many = chunk(ctx, CHUNK * sizeof *many);
        for (int i = 0; many && i < CHUNK; i++)
            wf_pool_storage_give(ctx, &many[i]);
    }
    wf_storage *storage = pool->storages;
    if (storage) {
        pool->storages = storage->next;
        *storage = (wf_storage){.ctx = ctx};
    }
    return storage;
}

void wf_pool_storage_give(wf_ctx *ctx, wf_storage *storage)
{
    storage->next = ctx->pool->storages;
    ctx->pool->storages = storage;
}

wf_storage **wf_pool_steps(wf_ctx *ctx)
{
    return &ctx->pool->steps;
}

size_t wf_pool_mark(wf_ctx *ctx)
{
    wf_pool *pool = ctx->pool;
    const size_t most = pool->marked;
    pool->marked = pool->counters.bytes_in_use;
    return most;
}
