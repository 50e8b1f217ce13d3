/* The two halves of an outbox: messages of the host (outbox.c), and tensors that move natively (outbox_native.c). */
#ifndef WF_COMM_COLLECTIVE_OUTBOX_IMPL_H
#define WF_COMM_COLLECTIVE_OUTBOX_IMPL_H

#include "comm/collective/collective_impl.h"
#include "comm/outbox_author.h"

struct wf_outbox_message;
struct wf_outbox_transfer;

struct wf_outbox {
    wf_comm *comm;
    struct wf_outbox_message *first, **last; /* on their way, in order */
    struct wf_outbox_message *spare;         /* so that a steady loop allocates nothing */
    struct wf_outbox_transfer *group;        /* asked for, and not given to the transport */
    struct wf_outbox_transfer *under_way;    /* the latest one first */
    struct wf_outbox_transfer *unused;
    uint64_t launches; /* of the transport */
    bool grouping;
};

/* --- outbox.c --- */

/* Type and shape alone. */
wf_status wf_outbox_send_frame(wf_outbox *outbox, const wf_tensor *x, int to) WF_NODISCARD;

/* --- outbox_native.c --- */

/* The context's stream goes behind all that is under way. */
wf_status wf_outbox_join(wf_outbox *outbox) WF_NODISCARD;
void wf_outbox_transfers_free(wf_outbox *outbox);

#endif
