/* A call of NCCL that never ends: nccl_blocked CALL. Where NCCL can be asked meanwhile, the time-out is an error; else
 * the watchdog ends the process and names the call. */
#include "comm/comm.h"
#include "core/tensor.h"
#include "tests/fake/nccl_fake.h"
#include "tests/test.h"
#include "tests/timeouts.h"

#include <stdio.h>
#include <string.h>

static wf_status sum(wf_comm *comm)
{
    wf_tensor *x = wf_tensor_new(wf_comm_ctx(comm), WF_F32, WF_SHAPE(8));
    WF_EXPECT_OK(wf_tensor_fill(x, 1));
    const wf_status status = wf_allreduce(comm, x, x, WF_SUM);
    wf_tensor_free(x);
    return status;
}

int main(int argc, char **argv)
{
    const char *const call = argc > 1 ? argv[1] : "";
    const bool opens = strcmp(call, "ncclCommInitRankConfig") != 0;
    wf_comm *comm = wf_comm_open(&argc, &argv, "flat", (wf_ctx_opts){0}); /* starts MPI */
    WF_MUST(wf_check(comm));
    WF_MUST(wf_comm_close(comm));
    if (!opens) {
        test_timeouts_begin();
        nccl_fake_block(call);
    }
    comm = wf_comm_open(&argc, &argv, "pure_nccl", (wf_ctx_opts){0});
    test_timeouts_begin();
    nccl_fake_block(call);
    const wf_status status = opens ? sum(comm) : wf_error_code();
    if (status != WF_OK)
        printf("an error: %s\n", wf_error_message());
    wf_error_clear();
    (void)wf_comm_close(comm);
    return 0;
}
