/* The two halves of an outbox: messages of the host (outbox.c), and tensors that move natively (outbox_native.c). */
#ifndef WF_COMM_COLLECTIVE_OUTBOX_IMPL_H
#define WF_COMM_COLLECTIVE_OUTBOX_IMPL_H

#include "comm/collective/collective_impl.h"
#include "comm/outbox_author.h"

typedef struct wf_outbox_message {
    struct wf_outbox_message *next;
    wf_tensor *x; /* its own handle */
    wf_buffer buffer;
    /* Fields of messages of the host. */
    wf_engine_entry *flight;
    wf_status status; /* of progress */
    wf_frame frame;
    /* Fields of native ones. */
    int peer;
    bool sends;
    uint64_t launch;
    wf_event *event; /* of what is received: it has come */
} wf_outbox_message;

struct wf_outbox {
    wf_comm *comm;
    wf_outbox_message *first, **last; /* of the host: on their way, in order */
    wf_outbox_message *group;         /* native: asked for, and not given to the transport */
    wf_outbox_message *under_way;     /* native: the latest one first */
    wf_outbox_message *spare;         /* of the host, so that a steady loop allocates nothing */
    wf_outbox_message *unused;        /* native: they keep their events */
    uint64_t launches;                /* of the transport */
    bool grouping;
};

/* --- outbox.c --- */

/* Returns a message, from the list of spare ones if there is one; recycle puts it back. */
wf_outbox_message *wf_outbox_take(wf_outbox *outbox, wf_outbox_message **spare);
void wf_outbox_recycle(wf_outbox_message *message, wf_outbox_message **spare);
/* Type and shape alone. */
wf_status wf_outbox_send_frame(wf_outbox *outbox, const wf_tensor *x, int to) WF_NODISCARD;

/* --- outbox_native.c --- */

/* The context's stream goes behind all that is under way. */
wf_status wf_outbox_join(wf_outbox *outbox) WF_NODISCARD;

#endif
