/* A call of NCCL that never comes back: nccl_blocked CALL. The watchdog ends the process and names the call. */
#include "comm/comm.h"
#include "tests/fake/nccl_fake.h"
#include "tests/test.h"

int main(int argc, char **argv)
{
    nccl_fake_block(argc > 1 ? argv[1] : "");
    wf_comm *comm = wf_comm_open(&argc, &argv, "pure_nccl");
    WF_EXPECT_OK(wf_comm_close(comm));
    return 0;
}
