/* The inside of a tape, for the files of this folder alone: tape.c records, backward.c walks, segment.c recomputes,
 * draws.c chooses random numbers, arena.c has the memory. */
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

/* A segment that is computed again draws the numbers of the first time, whose streams the tape has noted. */
typedef struct wf_repeat {
    bool on;
    int64_t draw; /* the next one */
    uint64_t seed;
} wf_repeat;

struct wf_tape {
    wf_ctx *ctx;
    wf_mode mode;
    wf_arena arena;
    wf_var **vars;
    wf_node **nodes;
    int64_t n_vars, n_nodes, cap_vars, cap_nodes;
    int64_t iteration;
    uint64_t *iteration_device;
    const uint64_t
        *iteration_drawn; /* that random numbers are drawn by: its own, or that of the tape that it follows */
    uint64_t name;        /* hash of its name; 0: it has none */
    wf_scope scope;
    uint64_t draws_in_scope;
    wf_draw *draw; /* those since the last reset */
    int64_t n_draws, cap_draws;
    bool draws_lost; /* there was no memory to note one */
    wf_repeat repeat;
    uint64_t segment;           /* that is computed and not recorded; 0: none */
    wf_var **outside;           /* n_outside inputs of that segment: parameters, and variables made before it */
    struct wf_comm *collective; /* whose ranks compute it together; NULL: each rank computes it alone */
    int64_t n_outside, cap_outside;
    wf_applied *applied; /* how often a layer was applied since the last reset: a hash table of `cap_applied` entries */
    size_t n_applied, cap_applied;
    uint64_t applied_before; /* of every layer, on the tape that this one follows */
};

void *wf_arena_take(wf_ctx *ctx, wf_arena *arena, size_t bytes); /* zeroed; NULL on failure */
void wf_arena_reset(wf_arena *arena);
void wf_arena_free(wf_arena *arena);

/* Random streams begin anew, as at the begin of a step. */
void wf_tape_restart_draws(wf_tape *tape);

/* Frees what a node saved. */
void wf_node_release(wf_node *node);

/* Records a node of which nothing is needed but op, inputs, saved tensors, state and comm; `out` is its output. */
wf_status wf_tape_add_node(wf_tape *tape, const wf_node_spec *record, wf_var *out) WF_NODISCARD;
/* Inside of a segment: lists in `outside` the inputs of a node that come from there. */
wf_status wf_segment_note(wf_tape *tape, const wf_node_spec *record) WF_NODISCARD;
/* Computes the segment of this node again, and records it: the variables and nodes are the last ones of the tape. NULL
 * and a recorded error on failure. */
wf_var *wf_segment_repeat(wf_node *node);
/* Frees what the tape holds beyond these numbers of nodes and variables. */
void wf_tape_cut(wf_tape *tape, int64_t n_nodes, int64_t n_vars);
extern const wf_op wf_segment_op;

#endif
