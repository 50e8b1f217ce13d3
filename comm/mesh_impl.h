#ifndef WF_COMM_MESH_IMPL_H
#define WF_COMM_MESH_IMPL_H

#include "comm/exchange_author.h"
#include "comm/mesh.h"

#define WF_MESH_TEXT    240
#define WF_MESH_BUCKETS 64

/* One set of cut points. */
typedef struct wf_mesh_cut {
    struct wf_mesh_cut *next;
    int64_t at[]; /* size + 1 of its axis */
} wf_mesh_cut;

/* One exchange, under what describes it in full. */
typedef struct wf_mesh_entry {
    struct wf_mesh_entry *next;
    wf_exchange *exchange;
    uint64_t hash;
    int64_t words;
    int64_t key[];
} wf_mesh_entry;

/* What grows while a mesh is used. */
typedef struct wf_mesh_kept {
    wf_comm *comm[1 << WF_AXES]; /* by set of axes of more than one rank */
    wf_mesh_cut *cut[WF_AXES];
    wf_mesh_entry *entry[WF_MESH_BUCKETS];
    int64_t *block; /* room for the cut points of any axis */
    int64_t *key;   /* room for `capacity` words */
    int64_t capacity;
    void *scratch;
    size_t scratch_bytes;
    char text[WF_MESH_TEXT];
} wf_mesh_kept;

struct wf_mesh {
    wf_ctx *ctx;
    wf_comm *whole; /* all its ranks */
    int size[WF_AXES], place[WF_AXES];
    wf_mesh_kept *kept;
};

/* Axes from the one whose place changes slowest with the rank to the fastest. */
extern const wf_axis wf_mesh_order[WF_AXES];

/* The product of the sizes is that of `whole`. Local. */
wf_status wf_mesh_init(wf_mesh *mesh, wf_comm *whole, const int size[WF_AXES]) WF_NODISCARD;
void wf_mesh_clear(wf_mesh *mesh);
/* Host memory until the next call of this: NULL on failure. */
void *wf_mesh_scratch(const wf_mesh *mesh, size_t bytes);
/* The axes of the set that have more than one rank. */
unsigned wf_mesh_split_axes(const wf_mesh *mesh, unsigned axes);

#endif
