/* The catalog of what the ranks hold together. All ranks exchange a hash of their lists and their keys. Where these are
 * equal, the usual case, that is all. Otherwise the lowest rank of every key broadcasts its list, and all ranks put the
 * same lists together in the same order, so that they find the same catalog, or the same error. Checkpoints, archives
 * and model files of several ranks begin with it. */
#include "layers/catalog_author.h"

#include "comm/comm_author.h"
#include "core/context_author.h"
#include "core/random_author.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An entry on its way, with numbers of a fixed size. `unused` keeps the padding defined. */
typedef struct line {
    int32_t dtype, order, key, rank, note, unused;
    int64_t dim[WF_MAX_RANK];
    int64_t path; /* bytes from the beginning of the names */
} line;

/* What every rank tells all others. */
typedef struct head {
    uint64_t hash;
    int64_t n, bytes; /* of the list: lines, then names */
    int32_t key[WF_CATALOG_KEYS];
} head;

typedef struct making {
    wf_comm *comm;
    wf_ctx *ctx;
    wf_catalog *catalog;
    const wf_catalog_entry *list;
    int64_t n;
    head *head;  /* of every rank */
    int *leader; /* of every rank: the lowest one with its keys */
    char *mine;  /* the list as it is sent */
    char *came;
    int64_t *slot; /* hash table of places in the catalog, from 1 */
    int64_t slots, names;
    bool *has; /* by entry and leader */
    int leaders, size, rank;
} making;

/* --- Lists on their way ------------------------------------------------------------------------------------------- */

/* Lines first, then names, so that a line lies at a multiple of its size. */
static int64_t bytes_of(int64_t n, const wf_catalog_entry *list)
{
    int64_t bytes = n * (int64_t)sizeof(line);
    for (int64_t i = 0; i < n; i++)
        bytes += (int64_t)strlen(list[i].path) + 1;
    return bytes;
}

/* The hash covers what must be equal on ranks of one key. Notes may differ. */
static void encode(making *m, head *mine)
{
    line *at = (line *)m->mine;
    char *names = m->mine + m->n * (int64_t)sizeof *at;
    int64_t used = 0;
    for (int64_t i = 0; i < m->n; i++) {
        const wf_catalog_entry *e = &m->list[i];
        at[i] = (line){.dtype = (int32_t)e->dtype,
                       .order = (int32_t)e->order,
                       .key = e->key,
                       .rank = e->shape.rank,
                       .note = e->note,
                       .path = used};
        memcpy(at[i].dim, e->shape.dim, (size_t)e->shape.rank * sizeof *e->shape.dim);
        strcpy(names + used, e->path);
        used += (int64_t)strlen(e->path) + 1;
        mine->hash = wf_hash_text(mine->hash, e->path);
        mine->hash = wf_hash_u64(mine->hash, (uint64_t)e->dtype << 32 | (uint64_t)e->order << 16 | (uint64_t)e->key);
        for (int d = 0; d < e->shape.rank; d++)
            mine->hash = wf_hash_u64(mine->hash, (uint64_t)e->shape.dim[d]);
    }
}

static wf_catalog_entry decode(const char *list, int64_t n, int64_t i, int owner)
{
    const line *l = (const line *)list + i;
    return (wf_catalog_entry){.path = list + n * (int64_t)sizeof *l + l->path,
                              .dtype = (wf_dtype)l->dtype,
                              .order = (wf_order)l->order,
                              .shape = wf_shape_make(l->rank, l->dim),
                              .key = l->key,
                              .note = l->note,
                              .owner = owner};
}

static bool same_keys(const making *m, int r, int q)
{
    return memcmp(m->head[r].key, m->head[q].key, sizeof m->head[r].key) == 0;
}

/* Ranks of one key hold the same list, so one of them can speak for all. */
static void find_leaders(making *m)
{
    for (int r = 0; r < m->size; r++) {
        int q = 0;
        while (!same_keys(m, r, q))
            q++;
        m->leader[r] = q;
        m->leaders += q == r;
    }
}

/* The list of one rank, on all: this rank's own where it is that rank. Collective, in the same order on all ranks. */
static wf_status spread_list(making *m, int from)
{
    char *data = m->rank == from ? m->mine : m->came;
    WF_TRY(wf_bcast_bytes(m->comm, data, (size_t)m->head[from].bytes, from));
    if (m->rank == from)
        memcpy(m->came, m->mine, (size_t)m->head[from].bytes);
    return WF_OK;
}

/* --- Lists that should be equal ----------------------------------------------------------------------------------- */

static const char *text_of(const wf_catalog_entry *e, char text[96])
{
    char shape[WF_SHAPE_TEXT];
    snprintf(text, 96, "%s %s", wf_dtype_name(e->dtype), wf_shape_text(e->shape, shape));
    return text;
}

static wf_status check_equal(const wf_comm *comm, const wf_catalog_entry *a, int rank_a, const wf_catalog_entry *b,
                             int rank_b)
{
    char text[2][96];
    WF_CHECK(a->dtype == b->dtype && wf_shape_equal(a->shape, b->shape), WF_ERR_ARGUMENT,
             "%s is %s on rank %s and %s on rank %s; should be the same on all ranks", a->path, text_of(a, text[0]),
             WF_RANK(comm, rank_a), text_of(b, text[1]), WF_RANK(comm, rank_b));
    return WF_OK;
}

static wf_status missing(const wf_comm *comm, const char *path, int has, int lacks)
{
    WF_FAIL(WF_ERR_ARGUMENT, "%s is on rank %s and not on rank %s, which should have the same parts of the run", path,
            WF_RANK(comm, has), WF_RANK(comm, lacks));
}

/* Entries of list a, of rank `from`, that list b, of rank `to`, lacks or has otherwise. From the front for each: this
 * only runs when something is wrong already. */
static wf_status compare_lists(const making *m, const char *a, int from, const char *b, int to)
{
    const int64_t n_a = m->head[from].n, n_b = m->head[to].n;
    for (int64_t i = 0; i < n_a; i++) {
        const wf_catalog_entry e = decode(a, n_a, i, from);
        int64_t k = 0;
        while (k < n_b && strcmp(decode(b, n_b, k, to).path, e.path) != 0)
            k++;
        if (k == n_b)
            return missing(m->comm, e.path, from, to);
        const wf_catalog_entry other = decode(b, n_b, k, to);
        WF_TRY(check_equal(m->comm, &e, from, &other, to));
    }
    return WF_OK;
}

/* All ranks broadcast and compare the same two lists, so all find the same difference. */
static wf_status name_difference(making *m, int one, int other)
{
    char *first = wf_malloc(m->ctx, (size_t)m->head[one].bytes + 1);
    m->came = wf_malloc(m->ctx, (size_t)(m->head[one].bytes + m->head[other].bytes) + 1);
    /* A rank without memory must not miss the broadcasts. */
    wf_status status = wf_agree_status(m->comm, first && m->came ? WF_OK : wf_error_code());
    if (status == WF_OK)
        status = spread_list(m, one);
    if (status == WF_OK && first)
        memcpy(first, m->came, (size_t)m->head[one].bytes);
    if (status == WF_OK)
        status = spread_list(m, other);
    if (status == WF_OK)
        status = compare_lists(m, first, one, m->came, other);
    if (status == WF_OK)
        status = compare_lists(m, m->came, other, first, one);
    /* Nothing differs by name: then it is the order. */
    if (status == WF_OK)
        status = WF_RAISE(WF_ERR_ARGUMENT, "ranks %s and %s hold the same things in another order, or in other memory",
                          WF_RANK(m->comm, one), WF_RANK(m->comm, other));
    free(first);
    return status;
}

/* Every rank has all heads, so all take the same branch. */
static wf_status check_same(making *m)
{
    for (int r = 1; r < m->size; r++) {
        const int leader = m->leader[r];
        if (m->head[r].hash != m->head[leader].hash || m->head[r].n != m->head[leader].n)
            return name_difference(m, leader, r);
    }
    return WF_OK;
}

/* --- Lists that are put together ---------------------------------------------------------------------------------- */

/* The slot of a path: its own, or the free one where it would be. */
static int64_t slot_of(const making *m, const char *path)
{
    int64_t s = (int64_t)(wf_hash_text(0, path) & (uint64_t)(m->slots - 1));
    while (m->slot[s] > 0 && strcmp(m->catalog->entry[m->slot[s] - 1].path, path) != 0)
        s = (s + 1) & (m->slots - 1);
    return s;
}

/* The first rank that has an entry owns it. */
static wf_status add_entry(making *m, wf_catalog_entry e, int nth)
{
    wf_catalog *c = m->catalog;
    const int64_t s = slot_of(m, e.path);
    if (m->slot[s] > 0) {
        const wf_catalog_entry *known = &c->entry[m->slot[s] - 1];
        /* For check_missing: which leaders have the entry. */
        m->has[(m->slot[s] - 1) * m->leaders + nth] = true;
        return check_equal(m->comm, known, known->owner, &e, e.owner);
    }
    char *path = c->names + m->names;
    strcpy(path, e.path);
    m->names += (int64_t)strlen(path) + 1;
    e.path = path;
    m->has[c->n * m->leaders + nth] = true;
    c->entry[c->n++] = e;
    m->slot[s] = c->n;
    return WF_OK;
}

static wf_status add_list(making *m, int leader, int nth)
{
    for (int64_t i = 0; i < m->head[leader].n; i++)
        WF_TRY(add_entry(m, decode(m->came, m->head[leader].n, i, leader), nth));
    return WF_OK;
}

/* Ranks whose key of an entry is the owner's must have it. Others may lack it: it belongs to another stage, or another
 * part of the channels. */
static wf_status check_missing(const making *m)
{
    const wf_catalog *c = m->catalog;
    for (int64_t i = 0; i < c->n; i++) {
        const wf_catalog_entry *e = &c->entry[i];
        for (int r = 0, nth = 0; r < m->size; r++) {
            if (m->leader[r] != r)
                continue;
            if (!m->has[i * m->leaders + nth++] && m->head[r].key[e->key] == m->head[e->owner].key[e->key])
                return missing(m->comm, e->path, e->owner, r);
        }
    }
    return WF_OK;
}

/* Twice as many slots as entries, and a power of two: a search meets a free slot, and ends. */
static wf_status make_room(making *m, int64_t entries, int64_t names, int64_t longest)
{
    wf_catalog *c = m->catalog;
    for (m->slots = 16; m->slots < 2 * entries;)
        m->slots *= 2;
    m->slot = wf_calloc(m->ctx, (size_t)m->slots, sizeof *m->slot);
    m->has = wf_calloc(m->ctx, (size_t)(entries * m->leaders) + 1, sizeof *m->has);
    m->came = wf_malloc(m->ctx, (size_t)longest + 1);
    c->entry = wf_calloc(m->ctx, (size_t)entries + 1, sizeof *c->entry);
    c->names = wf_malloc(m->ctx, (size_t)names + 1);
    return m->slot && m->has && m->came && c->entry && c->names ? WF_OK : wf_error_code();
}

/* Only the first error counts: all ranks find the same one, and every list is broadcast. Ranks of a pipeline or of a
 * channel axis hold different parts. */
static wf_status put_together(making *m)
{
    int64_t entries = 0, names = 0, longest = 0;
    wf_status status = WF_OK;
    for (int r = 0; r < m->size; r++) {
        if (m->leader[r] != r)
            continue;
        entries += m->head[r].n;
        names += m->head[r].bytes;
        longest = m->head[r].bytes > longest ? m->head[r].bytes : longest;
    }
    WF_TRY(wf_agree_status(m->comm, make_room(m, entries, names, longest)));
    for (int r = 0, nth = 0; r < m->size; r++) {
        if (m->leader[r] != r)
            continue;
        WF_TRY(spread_list(m, r));
        if (status == WF_OK)
            status = add_list(m, r, nth);
        nth++;
    }
    WF_TRY(status);
    WF_TRY(check_missing(m));
    for (int64_t i = 0; i < m->catalog->n; i++) {
        wf_catalog_entry *e = &m->catalog->entry[i];
        /* This rank has the entry, as one of the ranks with the owner's key. */
        e->mine = m->head[m->rank].key[e->key] == m->head[e->owner].key[e->key];
    }
    for (int64_t i = 0; i < m->n; i++)
        m->catalog->place[i] = m->slot[slot_of(m, m->list[i].path)] - 1;
    return WF_OK;
}

/* This rank's list is that of all: no list was sent. */
static wf_status take_own(making *m)
{
    wf_catalog *c = m->catalog;
    int64_t used = 0;
    c->names = wf_malloc(m->ctx, (size_t)bytes_of(m->n, m->list) + 1);
    c->entry = wf_calloc(m->ctx, (size_t)m->n + 1, sizeof *c->entry);
    if (!c->names || !c->entry)
        return wf_error_code();
    for (int64_t i = 0; i < m->n; i++) {
        c->entry[i] = m->list[i];
        c->entry[i].path = strcpy(c->names + used, m->list[i].path);
        c->entry[i].owner = 0;
        c->entry[i].mine = true;
        used += (int64_t)strlen(m->list[i].path) + 1;
        c->place[i] = i;
    }
    c->n = m->n;
    return WF_OK;
}

/* --- All of it ---------------------------------------------------------------------------------------------------- */

static wf_status prepare(making *m)
{
    m->mine = wf_malloc(m->ctx, (size_t)bytes_of(m->n, m->list) + 1);
    m->head = wf_calloc(m->ctx, (size_t)m->size, sizeof *m->head);
    m->leader = wf_calloc(m->ctx, (size_t)m->size, sizeof *m->leader);
    m->catalog->place = wf_calloc(m->ctx, (size_t)m->n + 1, sizeof *m->catalog->place);
    return m->mine && m->head && m->leader && m->catalog->place ? WF_OK : wf_error_code();
}

static wf_status make(making *m, const int key[WF_CATALOG_KEYS])
{
    head mine = {.n = m->n, .bytes = bytes_of(m->n, m->list)};
    for (int k = 0; k < WF_CATALOG_KEYS; k++)
        mine.key[k] = key[k];
    encode(m, &mine);
    WF_TRY(wf_allgather_bytes(m->comm, &mine, sizeof mine, m->head));
    find_leaders(m);
    WF_TRY(check_same(m));
    m->catalog->leader = m->leader[m->rank];
    m->catalog->parts = m->leaders;
    return m->leaders > 1 ? put_together(m) : wf_agree_status(m->comm, take_own(m));
}

wf_status wf_catalog_make(wf_ctx *ctx, wf_comm *comm, wf_status status, const int key[WF_CATALOG_KEYS], int64_t n,
                          const wf_catalog_entry *list, wf_catalog *catalog)
{
    making m = {.ctx = ctx, .comm = comm, .catalog = catalog, .list = list, .n = n, .size = 1};
    *catalog = (wf_catalog){.parts = 1};
    if (comm) {
        m.size = wf_comm_size(comm);
        m.rank = wf_comm_rank(comm);
    }
    /* A status of before comes along, so that a rank which has failed is not waited for. */
    if (status == WF_OK)
        status = prepare(&m);
    if (comm)
        status = wf_agree_status(comm, status);
    if (status == WF_OK)
        status = comm ? make(&m, key) : take_own(&m);
    free(m.mine);
    free(m.head);
    free(m.leader);
    free(m.came);
    free(m.slot);
    free(m.has);
    return status;
}

void wf_catalog_free(wf_catalog *catalog)
{
    free(catalog->entry);
    free(catalog->place);
    free(catalog->names);
    *catalog = (wf_catalog){0};
}
