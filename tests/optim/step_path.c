/* A vector of gradients on its way to MPI: how many functions call each other from wf_optim_step, which waits for the
 * sums, to MPI_Isend. Their files are compiled once more for this test (tests/optim/optim.cmake), so that the compiler
 * makes one function of none of them. */
#include "optim/multi_node.h"
#include "optim/optim.h"
#include "tests/optim/optim_model.h"
#include "tests/ranks.h"

#include <execinfo.h>
#include <mpi.h>

enum { ELEMENTS = 10000, LONG_BYTES = 4096, FRAMES = 100, MOST = 10 };

static int below; /* functions under wf_optim_step; 0: none is called */
static int functions, messages;

/* In place of MPI's. What is short is no gradient: shapes, and records of calls. */
int MPI_Isend(const void *data, int count, MPI_Datatype type, int to, int tag, MPI_Comm in, MPI_Request *request)
{
    void *stack[FRAMES];
    if (below > 0 && count > LONG_BYTES) {
        const int between = backtrace(stack, FRAMES) - 1 - below;
        functions = between > functions ? between : functions;
        messages++;
    }
    return PMPI_Isend(data, count, type, to, tag, in, request);
}

static void step(wf_optim *optim, wf_var *loss)
{
    void *stack[FRAMES];
    below = backtrace(stack, FRAMES);
    WF_EXPECT_OK(wf_optim_step(optim, loss));
    below = 0;
}

static void from_step_to_message(void)
{
    double *ones = malloc(ELEMENTS * sizeof *ones);
    for (int i = 0; i < ELEMENTS; i++)
        ones[i] = 1;
    wf_layer *model = dot_new(ctx, ELEMENTS, ones);
    wf_optim *optim =
        wf_multi_node(comm, wf_sgd(model, (wf_sgd_opts){.lr = 1}), (wf_multi_node_opts){.no_overlap = true});
    wf_tape *tape = wf_tape_new(ctx);
    wf_tensor *x = wf_tensor_new(ctx, WF_F32, WF_SHAPE(ELEMENTS));
    values_set(x, ones);
    for (int i = 0; i < 3; i++) {
        step(optim, wf_mean(wf_apply(model, wf_input(tape, x))));
        WF_EXPECT_OK(wf_tape_reset(tape));
    }
    WF_EXPECT(messages >= 3 && functions <= MOST, "%d messages, %d functions from wf_optim_step to MPI_Isend", messages,
              functions);
    wf_optim_free(optim);
    wf_layer_free(model);
    wf_tape_free(tape);
    wf_tensor_free(x);
    free(ones);
}

static int on_ranks(int argc, char **argv)
{
    if (!ranks_open("flat"))
        return 1;
    return ranks_close(test_main(argc, argv, (test_case[]){{"from_step_to_message", from_step_to_message}, {0}}));
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
