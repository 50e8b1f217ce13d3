/* Messages between two ranks whose sender does not wait: it hands over a tensor and goes on. For pipelines. The
 * receiver waits. They go by the transport's messages on every device, in host memory. */
#ifndef WF_COMM_OUTBOX_AUTHOR_H
#define WF_COMM_OUTBOX_AUTHOR_H

#include "comm/comm.h"

/* The tag of these messages on their communicator. */
#define WF_OUTBOX_TAG 16383

typedef struct wf_outbox wf_outbox;

/* The communicator is borrowed and must outlive the outbox. */
wf_outbox *wf_outbox_new(wf_comm *comm);
/* Gives up what is on its way. NULL is fine. */
void wf_outbox_free(wf_outbox *outbox);
/* Begins to send x, of which the outbox keeps a handle until it is gone; its elements must not change before. Messages
 * to one rank arrive in their order. They move while the context's kernels compute, and in every wait. */
wf_status wf_outbox_send(wf_outbox *outbox, const wf_tensor *x, int to) WF_NODISCARD;
/* Waits until all is gone. */
wf_status wf_outbox_wait(wf_outbox *outbox) WF_NODISCARD;
/* The next tensor from that rank's outbox: a new one of the type and shape that was sent; NULL on failure. */
wf_tensor *wf_outbox_receive(wf_comm *comm, int from);

#endif
