/* A call of NCCL that never comes back: nccl_blocked CALL. The watchdog ends the process and names the call. */
#include "comm/comm.h"
#include "tests/fake/nccl_fake.h"
#include "tests/test.h"

int main(int argc, char **argv)
{
    nccl_fake_block(argc > 1 ? argv[1] : "");
    wf_comm *comm = wf_comm_open(&argc, &argv, "pure_nccl");
    wf_comm *part = wf_comm_split(comm, 0, 0);
    WF_EXPECT(part, "%s", wf_error_message());
    WF_EXPECT_OK(wf_comm_close(part));
    WF_EXPECT_OK(wf_comm_close(comm));
    return 0;
}
