/* Three steps of a linear model on data of its own: what a program that uses the installed library looks like. */
#include <weft/weft.h>

#include <stdio.h>

int main(int argc, char **argv)
{
    wf_comm *comm = wf_comm_open(&argc, &argv, "auto", (wf_ctx_opts){0});
    wf_ctx *ctx = wf_comm_ctx(comm);
    wf_layer *model = wf_linear(ctx, (wf_linear_opts){.in = 2, .out = 1});
    wf_optim *optim = wf_multi_node(comm, wf_sgd(model, (wf_sgd_opts){.lr = 0.1}), (wf_multi_node_opts){0});
    wf_tape *tape = wf_tape_new(ctx);

    const float points[] = {1, 2, 3, 4, 5, 6};
    wf_tensor *x = wf_tensor_from_host(ctx, WF_F32, WF_SHAPE(3, 2), points);
    double loss = 0;
    for (int step = 0; step < 3; step++) {
        wf_var *y = wf_apply(model, wf_input(tape, x));
        wf_var *squares = wf_mean(wf_mul(y, y));
        WF_MUST(wf_optim_step(optim, squares));
        loss = wf_item(squares);
        WF_MUST(wf_tape_reset(tape));
    }
    printf("loss %g on %d ranks\n", loss, wf_comm_size(comm));

    wf_tensor_free(x);
    wf_tape_free(tape);
    wf_optim_free(optim);
    wf_layer_free(model);
    WF_MUST(wf_comm_close(comm));
    return !(loss >= 0);
}
