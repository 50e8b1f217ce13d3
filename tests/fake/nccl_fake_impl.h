/* What the files of the double of NCCL share: tests/fake/nccl_fake.c has the calls, nccl_fake_comm.c the life of
 * communicators. */
#ifndef WF_TESTS_FAKE_NCCL_FAKE_IMPL_H
#define WF_TESTS_FAKE_NCCL_FAKE_IMPL_H

#include "tests/fake/guard_impl.h"
#include "tests/fake/nccl_fake.h"

#include <nccl.h>

struct ncclComm {
    int ranks, rank, tag;
    int world[NCCL_FAKE_RANKS];
    bool connecting;
    int first, present; /* the process that made the name; ranks that have sent it a message */
    int pending;        /* launches that are not over */
    int kept;           /* calls in graphs */
    bool closed;
    bool elsewhere; /* made while another device than the context's was the current one */
    uint64_t collectives;
    ncclResult_t error;
    char text[200];
};

/* --- nccl_fake.c --- */

/* A stream on which the communicator has work; NULL: none. */
wf_stream *nccl_fake_stream_of(const struct ncclComm *comm);
bool nccl_fake_grouping(void);
/* Drops a launch of the communicator that is not on its stream yet. */
void nccl_fake_drop(ncclComm_t comm);
nccl_journal *nccl_fake_count(void);

/* --- nccl_fake_comm.c --- */

bool nccl_fake_blocks(const char *name);
/* A step of the set-up. */
void nccl_fake_connect(ncclComm_t comm);
/* Frees it once it is closed and its work is over. */
void nccl_fake_forget(ncclComm_t comm);
/* At the end of a group: those that were destroyed or aborted in it. */
ncclResult_t nccl_fake_finish_closing(void);

#endif
