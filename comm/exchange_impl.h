#ifndef WF_COMM_EXCHANGE_IMPL_H
#define WF_COMM_EXCHANGE_IMPL_H

#include "comm/comm_impl.h"
#include "comm/exchange_author.h"

/* All that goes to, or comes from, one peer: one message, or parts through shared memory. */
typedef struct wf_packet {
    int peer;
    int64_t first, pieces; /* of the side's */
    int64_t from, to;      /* of the side's parts */
    size_t bytes;
    bool parted; /* goes by parts where it can: short, of several pieces, or not dense in the boxes of both ranks */

    /* Of the exchange in progress. */
    void *packed, *staged; /* owned */
    void *moves;           /* what a message or NCCL takes it from, or NCCL brings it to */
    wf_event *copied;      /* between host and device; where they are apart */
    bool begun;            /* packed, and on its way to the host */
    int posted, last;      /* its transfers in the batch */
    bool shared;           /* by parts */
    int64_t part;          /* the next */
    bool done;
} wf_packet;

/* One end of the plan: what this rank has and sends on, or needs and receives; the reverse swaps the two. */
typedef struct wf_exchange_side {
    wf_box box;
    const wf_piece *piece;
    wf_packet *packet;
    int packets;
    wf_box *part; /* pieces of such packets in boxes that fit into a slot of the board */
    int64_t parts;
} wf_exchange_side;

struct wf_exchange {
    wf_comm *comm;
    wf_dtype dtype;
    wf_order order;
    wf_plan *plan;
    wf_exchange_side have, need;
    wf_record record, reverse_record;
    bool parted; /* some packet of some rank may be: the same on every rank */
    bool active, reversed;
    void *blocks_out, *blocks_in; /* owned; of a collective in progress */
    const wf_tensor *from;
    wf_tensor *to;
};

#endif
