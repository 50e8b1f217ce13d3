/* What nccl.c and nccl_calls.c share. */
#ifndef WF_COMM_COLLECTIVE_NCCL_IMPL_H
#define WF_COMM_COLLECTIVE_NCCL_IMPL_H

#include "comm/collective/collective_impl.h"
#include "comm/nccl_author.h"

#include <nccl.h>

#define WF_NCCL_STREAMS 2 /* of the program's calls; of sums behind backward */

typedef struct wf_nccl_stream {
    wf_ctx *ctx;
    wf_stream *stream;
    wf_event *ready, *done; /* the context's stream had so much; the last call is over */
    bool pending;           /* since the host last waited */
    bool owed;              /* the context's stream is not behind the last call */
} wf_nccl_stream;

/* What a communicator and those split from it share. */
typedef struct wf_nccl_streams {
    wf_ctx *ctx;
    wf_nccl_stream stream[WF_NCCL_STREAMS];
    int count;
    int families;
    wf_comm *spoilt; /* died with calls on their way, and the host has not read since */
    wf_comm *dead;   /* its members are to be aborted when the capture has ended */
    wf_nccl *members;
} wf_nccl_streams;

struct wf_nccl {
    ncclComm_t nccl; /* NULL once it was given up */
    wf_comm *comm;
    wf_nccl_streams *streams; /* NULL: closed by their owner */
    wf_nccl_stream *stream;   /* of these */
    int family;               /* members of one share NCCL's resources, and are given up together */
    bool owner;               /* of the streams: the communicator that opened them */
    bool grouped;
    bool marked; /* to be aborted */
    wf_nccl *next;
};

/* --- nccl.c --- */

wf_status wf_nccl_raise(const wf_comm *comm, ncclResult_t code, const char *call, const char *file, int line);

#define TRY_NCCL(comm, call)                                                                                           \
    do {                                                                                                               \
        const ncclResult_t try_nccl_code_ = (call);                                                                    \
        if (try_nccl_code_ != ncclSuccess)                                                                             \
            return wf_nccl_raise((comm), try_nccl_code_, #call, __FILE__, __LINE__);                                   \
    } while (0)

#endif
