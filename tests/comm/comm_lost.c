/* A message that MPI cannot call back: the memory that it may still write to is not used again. The linker diverts
 * MPI_Cancel to this file (--wrap); in the shared form of the library it does not, and nothing is lost. */
#include "comm/comm_author.h"
#include "tests/comm/comm_cases.h"
#include "tests/ranks.h"
#include "tests/timeouts.h"
#include "tests/world.h"

#include <mpi.h>

int __real_MPI_Cancel(MPI_Request *request);
int __wrap_MPI_Cancel(MPI_Request *request);

static bool stuck;
static int cancelled;

int __wrap_MPI_Cancel(MPI_Request *request)
{
    cancelled += stuck;
    return stuck ? MPI_SUCCESS : __real_MPI_Cancel(request);
}

/* Rank 1 never sends; the tensor of rank 0 is not dense, so its elements come to a block of the pool first. */
static void packed_receive(void)
{
    wf_comm *part = wf_comm_split(comm, 0, 0);
    wf_tensor *x = tensor_in_form(ctx, WF_F32, WF_SHAPE(100, 30), FORM_VIEW);
    const size_t before = wf_ctx_memory(ctx).bytes_in_use;
    wf_status status = WF_OK;
    WF_EXPECT_OK(wf_barrier(comm));
    test_timeouts_begin();
    stuck = true;
    if (rank == 0)
        status = wf_recv(part, x, 1, 7);
    while (rank > 0 && status == WF_OK)
        status = wf_comm_alive(part);
    stuck = false;
    test_timeouts_end();
    WF_EXPECT(status == WF_ERR_TIMEOUT, "%s", wf_error_message());
    wf_error_clear();
    const size_t kept = wf_ctx_memory(ctx).bytes_in_use - before;
    WF_EXPECT(cancelled == 0 ? kept == 0 : kept >= sizeof(float) * 100 * 30,
              "%d messages are under way, %zu bytes kept", cancelled, kept);
    wf_tensor_free(x);
    WF_EXPECT_OK(wf_comm_close(part));
}

static int on_ranks(int argc, char **argv)
{
    test_timeouts_end();
    if (!ranks_open("flat"))
        return 1;
    return ranks_close(test_main(argc, argv, (test_case[]){{"packed_receive", packed_receive}, {0}}));
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
