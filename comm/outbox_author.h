/* Messages between two ranks whose sender does not wait: it hands over a tensor and goes on. For pipelines.
 *
 * In host memory they go by the transport's messages on every device, and the receiver waits. An outbox that connects
 * the ranks natively moves tensors from device to device on the transport's stream, while the context's stream
 * computes; then types and shapes alone go through the host, also while a step is captured. */
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
/* Numbers of the host, which are copied; the receiver knows how many there are. They are not counted as payload. */
wf_status wf_outbox_send_bytes(wf_outbox *outbox, const void *data, size_t bytes, int to) WF_NODISCARD;
/* Waits until all messages of the host are sent. For tensors that move natively the host does not wait: later work on
 * the context's stream does. */
wf_status wf_outbox_wait(wf_outbox *outbox) WF_NODISCARD;
/* The next tensor from that rank's outbox: a new one of the type and shape that was sent; NULL on failure. */
wf_tensor *wf_outbox_receive(wf_comm *comm, int from);
/* The next message of wf_outbox_send_bytes from that rank, into data; WF_ERR_COMM if that has another length. Waits. */
wf_status wf_outbox_receive_bytes(wf_comm *comm, void *data, size_t bytes, int from) WF_NODISCARD;

/* --- natively, where a transport does that ------------------------------------------------------------------------ */

/* Returns true if a native transport connects the ranks. A message then blocks later ones of both its ranks until
 * both have called it, so all ranks must agree on one order of all native messages, of the outbox and of every other
 * call. */
bool wf_outbox_connects(const wf_outbox *outbox);
/* wf_outbox_send and wf_outbox_receive; natively, if it connects the ranks. Then the tensor that is received must not
 * be read before wf_outbox_await: its elements are on their way. */
wf_status wf_outbox_post(wf_outbox *outbox, const wf_tensor *x, int to) WF_NODISCARD;
wf_tensor *wf_outbox_expect(wf_outbox *outbox, int from);
/* What the context's stream does from now on waits for the elements of x. Fine for any tensor. */
wf_status wf_outbox_await(wf_outbox *outbox, const wf_tensor *x) WF_NODISCARD;
/* All that is posted and expected between begin and end is one launch of the transport, so its order may differ between
 * ranks. All is posted before the first is expected. */
void wf_outbox_group_begin(wf_outbox *outbox);
wf_status wf_outbox_group_end(wf_outbox *outbox) WF_NODISCARD;

#endif
