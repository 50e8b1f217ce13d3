/* The agreed configuration: what all ranks of a communicator know alike before the first schedule is made.
 *
 * It is made with the communicator; `native`, `shared` and `pairs` may change later, in a collective call, so on all
 * ranks. Schedules are pure functions of it, of the rank and of the call. So the schedules that two ranks make, each
 * for itself, are parts of one plan, and any process can make those of all ranks. */
#ifndef WF_COMM_ENGINE_AGREED_AUTHOR_H
#define WF_COMM_ENGINE_AGREED_AUTHOR_H

#include "core/context_author.h"
#include "core/status_author.h"

#define WF_RING_SLOTS 4 /* at most */
#define WF_PAIR_RANKS 8 /* of a node; with more, the rings of all pairs would take too much memory */

typedef struct wf_agreed {
    int ranks, nodes;
    int32_t *node;   /* of each rank */
    int32_t *place;  /* of each rank among those of its node */
    int32_t *first;  /* nodes + 1 entries: the ranks of node n are member[first[n] .. first[n + 1]), ascending */
    int32_t *member; /* all ranks, node by node */
    int smallest;    /* ranks of the smallest node */

    bool staged; /* tensors are in device memory that messages and the host's rings cannot reach */
    bool native; /* the ranks are connected by the native transport, which moves device memory */
    bool shared; /* the ranks of every node share memory for sums: a ring of ring_slots slots a rank */
    int ring_slots;
    size_t ring_slot_bytes;
    size_t ring_short_bytes; /* of a vector that every rank reduces as a whole: one step instead of two */
    bool pairs;              /* any two ranks of a node of at most WF_PAIR_RANKS share rings for exchanges, one for each
                                direction: in device memory where `staged` */
    size_t pair_slot_bytes;
    size_t pair_short_bytes; /* longer messages that need no packing do not go through these rings */

    size_t chunk_bytes;       /* most bytes of a message */
    size_t prompt_bytes;      /* of a message between nodes that its receiver need not answer */
    size_t small_bytes;       /* P times as much and less goes in the fewest steps, whatever the bytes */
    size_t bcast_piece_bytes; /* of a broadcast along a chain */
    size_t piece_bytes;       /* of a long reduction */
    int64_t least_block;      /* elements of such a piece for each rank, at least */
    int pieces_ahead;         /* of it on their way at once */
} wf_agreed;

/* node[r] is the node of rank r: 0 to nodes - 1, each with a rank. Limits get their defaults; the caller may change
 * them before the first schedule. Local. */
wf_status wf_agreed_make(wf_ctx *ctx, int ranks, const int32_t *node, wf_agreed *agreed) WF_NODISCARD;
void wf_agreed_clear(wf_agreed *agreed);

/* Returns true for one rank that the native transport does not connect with itself: nothing is sent. */
static inline bool wf_agreed_alone(const wf_agreed *agreed)
{
    return agreed->ranks == 1 && !agreed->native;
}

static inline int wf_node_size(const wf_agreed *agreed, int rank)
{
    const int32_t *first = agreed->first + agreed->node[rank];
    return (int)(first[1] - first[0]);
}

/* Returns true if these two ranks share rings; wf_pair_slots returns the slots of each ring. */
static inline bool wf_pair_shares(const wf_agreed *agreed, int a, int b)
{
    return agreed->pairs && a != b && agreed->node[a] == agreed->node[b] && wf_node_size(agreed, a) <= WF_PAIR_RANKS;
}
static inline int wf_pair_slots(const wf_agreed *agreed, int rank)
{
    return wf_node_size(agreed, rank) == 2 ? WF_RING_SLOTS : WF_RING_SLOTS / 2;
}

/* Some of the ranks, in an order of their own: all of them; the members list[0..size); or member `column` of every
 * node. */
typedef struct wf_group {
    int size, place;     /* this rank's place in it; -1: it is not in it */
    const int32_t *list; /* NULL: rank i is member i */
    const int32_t *start;
    int32_t column;
} wf_group;

static inline int wf_group_rank(const wf_group *group, int member)
{
    if (group->start)
        return group->list[group->start[member] + group->column];
    return group->list ? group->list[member] : member;
}

/* All ranks; those of this rank's node; and the rank of place `column` in every node (which all must have). */
wf_group wf_group_all(const wf_agreed *agreed, int rank);
wf_group wf_group_node(const wf_agreed *agreed, int rank);
wf_group wf_group_column(const wf_agreed *agreed, int rank, int column);

#endif
