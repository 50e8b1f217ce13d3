/* Around the lines of docs/planning.md: what a program has before them and after. */
#include <weft/weft.h>

static wf_status train(wf_mesh *mesh, wf_optim *optim, int64_t batch)
{
    (void)batch;
    wf_optim_free(optim);
    wf_mesh_close(mesh);
    return WF_OK;
}

#include "tests/planned_page_body.c"

int main(int argc, char **argv)
{
    wf_comm *comm = wf_comm_open(&argc, &argv, "auto", (wf_ctx_opts){0});
    wf_layer *model = wf_conv2d(wf_comm_ctx(comm), (wf_conv_opts){.in = 3, .out = 10, .kernel = 3});
    WF_MUST(wf_check(model));
    WF_MUST(begin(comm, model, 16, argc > 1 ? argv[1] : "plan.json"));
    wf_layer_free(model);
    return wf_comm_close(comm) == WF_OK ? 0 : 1;
}
