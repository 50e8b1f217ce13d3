/* The store of a mesh, for what it would otherwise make anew: exchanges and shard bounds, of each kind those that were
 * used last. Called where an exchange or bounds are asked for. Each rank drops by itself, since both are made without a
 * message, here and again. */
#include "comm/mesh/mesh_impl.h"
#include "comm/mesh_author.h"

#include "core/captured_author.h"
#include "core/random_author.h"

#include <stdlib.h>
#include <string.h>

static uint64_t hash_of(const int64_t *key, int64_t words)
{
    uint64_t hash = (uint64_t)words;
    for (int64_t i = 0; i < words; i++)
        hash = wf_hash_u64(hash, (uint64_t)key[i]);
    return hash;
}

static wf_mesh_entry *use(const wf_ctx *ctx, wf_mesh_list *list, wf_mesh_entry *entry)
{
    entry->used = ++list->uses;
    entry->emptied = ctx->emptied;
    return entry;
}

/* Returns true if backward may still use an entry that forward asked for: until every tape is empty. */
static bool may_be_held(const wf_ctx *ctx, const wf_mesh_entry *entry)
{
    return entry->lasting || (entry->exchange && entry->exchange->flight) || wf_ctx_capturing(ctx) ||
           (ctx->vars > 0 && entry->emptied == ctx->emptied);
}

/* Returns true if the layout of the tensor points to these bounds. */
static bool has_bounds(const wf_tensor *tensor, const void *bounds)
{
    for (int a = 0; a < WF_AXES; a++)
        if (tensor->layout.bounds[a] == bounds)
            return true;
    return false;
}

static void entry_drop(wf_mesh_list *list, wf_mesh_entry **at)
{
    wf_mesh_entry *entry = *at;
    *at = entry->next;
    list->count -= !entry->lasting;
    wf_exchange_free(entry->exchange);
    free(entry);
}

static wf_mesh_entry **oldest_of(const wf_ctx *ctx, wf_mesh_list *list)
{
    wf_mesh_entry **oldest = NULL;
    for (int i = 0; i < WF_MESH_BUCKETS; i++)
        for (wf_mesh_entry **at = &list->bucket[i]; *at; at = &(*at)->next)
            if (!may_be_held(ctx, *at) && (!oldest || (*at)->used < (*oldest)->used))
                oldest = at;
    return oldest;
}

/* Frees the entry that was not used for the longest time; false: all are held, or were just asked for. */
static bool drop_oldest(wf_ctx *ctx, wf_mesh_list *list)
{
    for (;;) {
        wf_mesh_entry **oldest = oldest_of(ctx, list);
        if (!oldest || (*oldest)->used + WF_PLANS_MOST / 2 > list->uses)
            return false;
        if (!wf_any_tensor(ctx, has_bounds, (*oldest)->key)) {
            entry_drop(list, oldest);
            return true;
        }
        /* What a tensor has is in use. That is no use of the list, by which others would grow older. */
        (*oldest)->used = list->uses;
    }
}

wf_mesh_entry *wf_mesh_find(wf_ctx *ctx, wf_mesh_list *list, const int64_t *key, int64_t words)
{
    const uint64_t hash = hash_of(key, words);
    for (wf_mesh_entry *entry = list->bucket[hash % WF_MESH_BUCKETS]; entry; entry = entry->next)
        /* The whole key is compared: two entries of one hash must not be taken for each other. */
        if (entry->hash == hash && entry->words == words && !memcmp(entry->key, key, (size_t)words * sizeof *key))
            return use(ctx, list, entry);
    return NULL;
}

wf_mesh_entry *wf_mesh_add(wf_ctx *ctx, wf_mesh_list *list, const int64_t *key, int64_t words)
{
    const size_t bytes = (size_t)words * sizeof *key;
    wf_mesh_entry *entry = wf_malloc(ctx, sizeof *entry + bytes);
    if (!entry)
        return wf_error_null();
    /* A loop of fixed shapes stays far below the limit. */
    while (list->count >= WF_PLANS_MOST && drop_oldest(ctx, list))
        ;
    const uint64_t hash = hash_of(key, words);
    wf_mesh_entry **bucket = &list->bucket[hash % WF_MESH_BUCKETS];
    *entry = (wf_mesh_entry){.next = *bucket, .hash = hash, .words = words};
    memcpy(entry->key, key, bytes);
    *bucket = entry;
    list->count++;
    return use(ctx, list, entry);
}

void wf_mesh_list_clear(wf_mesh_list *list)
{
    for (int i = 0; i < WF_MESH_BUCKETS; i++)
        while (list->bucket[i])
            entry_drop(list, &list->bucket[i]);
}
