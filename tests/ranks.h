/* What a test on the ranks of one communicator begins and ends with. */
#ifndef WF_TESTS_RANKS_H
#define WF_TESTS_RANKS_H

#include "comm/comm.h"
#include "tests/test.h"
#include "tests/world.h"

#include <stdio.h>

static wf_comm *comm;
static wf_ctx *ctx;
static int rank, size;

static inline bool ranks_open(const char *name)
{
    comm = test_comm_open(name, (wf_ctx_opts){0});
    if (!comm)
        fprintf(stderr, "%s: %s\n", name, wf_error_message());
    ctx = wf_comm_ctx(comm);
    rank = wf_comm_rank(comm);
    size = wf_comm_size(comm);
    return comm;
}

/* The exit code: not 0 where the cases failed, or objects of the communicator's context are left. */
static inline int ranks_close(int failed)
{
    WF_EXPECT_OK(wf_comm_close(comm));
    return failed || test_failures() > 0;
}

#endif
