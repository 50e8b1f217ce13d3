/* Reducers: how the gradients of one step are summed over the ranks, by name. A reducer is a function that adds steps
 * to a schedule (comm/engine/builder_author.h); comm/engine/build_reducers.c has those of the library, of 5 to 30
 * lines each, and examples/quantized.c is one that a program brings along. */
#ifndef WF_COMM_REDUCER_AUTHOR_H
#define WF_COMM_REDUCER_AUTHOR_H

#include "comm/call_author.h"
#include "comm/engine/algorithms_author.h"

typedef struct wf_reducer {
    const char *name;
    const char *does; /* for the user, in half a line */
    bool keeps;       /* has memory from sum to sum of a buffer (wf_builder_kept), which is known by its number */
    bool shares;      /* sums in memory that the ranks of a node share, if they can */
    /* Adds the steps by which this rank sums a flat buffer, in place, with all others: the same bits everywhere.
     * Segment i is [offset[i], offset[i + 1]) elements of `flat`, and offset[0] need not be 0. The last `exact` of them
     * hold losses and weights, or counts: a reducer that rounds sums these in their own type. A pure function of the
     * builder's configuration and rank and of the arguments. NULL: the native transport does it. */
    void (*build)(wf_builder *b, wf_address flat, const int64_t *offset, int64_t segments, int64_t exact,
                  wf_dtype dtype);
} wf_reducer;

/* A number that no buffer of this process has had. An address is none: another buffer may get it later. Local. */
uint64_t wf_reduce_buffer_new(void);

/* Makes a reducer known under its name, for wf_comm_open: on all ranks, before they open. It is borrowed until the
 * process ends. WF_ERR_ARGUMENT for a name that is taken, longer than 31 characters, or "auto". Local. */
wf_status wf_reducer_register(const wf_reducer *reducer) WF_NODISCARD;
/* By name; NULL if there is none. Local. */
const wf_reducer *wf_reducer_find(const char *name);
/* All of them, one after the other; NULL after the last one. Local. */
const wf_reducer *wf_reducer_at(int i);

/* Sums a flat buffer of one float type in place over all ranks, as the communicator's name says. Read of `sum`: out,
 * in device memory; dtype; part[0..parts], the ends of its segments; exact; buffer (0: nothing is kept). Collective. */
wf_status wf_reducer_sum(wf_comm *comm, const wf_call *sum) WF_NODISCARD;

/* Connects what the reducer needs: memory inside nodes. A communicator that was opened by name is connected already;
 * one that was split is connected by this call, at its first sum or, on one node, at its first reduction of tensors, so
 * that communicators that never sum cost nothing. Collective. */
wf_status wf_reducer_connect(wf_comm *comm) WF_NODISCARD;

#endif
