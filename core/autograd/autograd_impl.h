/* The inside of a tape. */
#ifndef WF_CORE_TAPE_IMPL_H
#define WF_CORE_TAPE_IMPL_H

#include "core/tape_author.h"

/* Bump memory for variables and nodes: chunks are kept from step to step. */
typedef struct wf_arena {
    void **chunk;
    size_t *room; /* bytes of each */
    size_t n, current, used;
} wf_arena;

/* How often a layer was applied; key 0: an empty entry. */
typedef struct wf_applied {
    uint64_t key, count;
} wf_applied;

struct wf_tape {
    wf_ctx *ctx;
    wf_mode mode;
    wf_arena arena;
    wf_var **vars;
    wf_node **nodes;
    int64_t n_vars, n_nodes, cap_vars, cap_nodes;
    uint64_t runs; /* backwards started */
    bool paired;   /* a backward with point-to-point nodes has run */
    int64_t iteration;
    uint64_t *iteration_device;
    uint64_t name; /* hash of its name; 0: it has none */
    wf_scope scope;
    uint64_t draws_in_scope;
    wf_draw *draw; /* those since the last reset */
    int64_t n_draws, cap_draws;
    wf_applied *applied; /* how often a layer was applied since the last reset: a hash table of `cap_applied` entries */
    size_t n_applied, cap_applied;
};

void *wf_arena_take(wf_ctx *ctx, wf_arena *arena, size_t bytes); /* zeroed; NULL on failure */
void wf_arena_reset(wf_arena *arena);
void wf_arena_free(wf_arena *arena);

/* Random streams begin anew, as at the begin of a step. */
void wf_tape_restart_draws(wf_tape *tape);

/* Frees what a node saved. */
void wf_node_release(wf_node *node);

#endif
