/* The catalog of what the ranks hold together: the union, by path, of the lists of all ranks.
 *
 * Stages of a pipeline and ranks of a multi_node_chain have different parts of one model. Every rank says by a key
 * which part it has; ranks of equal keys must have equal lists, and lists of different keys are put together. A list
 * may be made of several kinds of entries (a model in parts, another that every rank has), each with a key of its own.
 */
#ifndef WF_LAYERS_CATALOG_AUTHOR_H
#define WF_LAYERS_CATALOG_AUTHOR_H

#include "comm/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

#define WF_CATALOG_KEYS 16

typedef struct wf_catalog_entry {
    const char *path;
    wf_dtype dtype;
    wf_order order;
    wf_shape shape; /* of the whole */
    int key;        /* number of the key that decides which ranks must have it */
    int note;       /* what else the owner says of it, in the lister's meaning; ranks need not have the same */
    int owner;      /* of a catalog: the lowest rank that has it */
    bool mine;      /* of a catalog: this rank has the same key as the owner */
} wf_catalog_entry;

typedef struct wf_catalog {
    int64_t n;
    wf_catalog_entry *entry; /* rank 0's first, in its order; then what each later key adds */
    int64_t *place;          /* of each entry of this rank's list: its place in `entry` */
    int leader;              /* lowest rank of those with this rank's keys */
    int parts;               /* number of different keys; 1: all lists are equal */
    char *names;
} wf_catalog;

/* key: numbers of this rank, 0 for kinds that it has none of. The list has paths that differ, and is borrowed during
 * the call. WF_ERR_ARGUMENT on all ranks, naming path and ranks, if ranks of one key have different lists, or ranks of
 * different keys the same path with different types or shapes. `status` is this rank's so far; if it is an error, all
 * ranks get it. comm NULL: one rank. Freed by wf_catalog_free, also after an error. Collective. */
wf_status wf_catalog_make(wf_ctx *ctx, wf_comm *comm, wf_status status, const int key[WF_CATALOG_KEYS], int64_t n,
                          const wf_catalog_entry *list, wf_catalog *catalog) WF_NODISCARD;
void wf_catalog_free(wf_catalog *catalog);

#ifdef __cplusplus
}
#endif

#endif
