/* Rows of scores whose classes several ranks share: their largest scores and sums of exponentials, merged over the axes
 * that cut the classes. Scores are never gathered (Shoeybi et al. 2019, "Megatron-LM", section 3). */
#include "comm/mesh.h"
#include "layers/functions/functions_impl.h"
#include "layers/layer_author.h"

static wf_status apply_act(wf_act act, const wf_tensor *x)
{
    const wf_array at = wf_tensor_array(x);
    return x->ctx->k->act_forward(x->ctx, &(wf_act_args){.act = act, .x = &at, .y = &at});
}

/* a += beta b */
static wf_status add_rows(const wf_tensor *a, double beta, const wf_tensor *b)
{
    const wf_array at = wf_tensor_array(a), other = wf_tensor_array(b);
    return a->ctx->k->binary(
        a->ctx, &(wf_binary_args){.op = WF_BINARY_LINEAR, .alpha = 1, .beta = beta, .a = &at, .b = &other, .y = &at});
}

/* log sum_p exp(most_p - whole + log_sum_p), with the difference first: it is exact where a rank has the largest score.
 * A part of nothing has -infinity twice, and adds 0. */
static wf_status merge_rows(wf_comm *comm, wf_tensor *most, const wf_tensor *own, wf_tensor *log_sum)
{
    WF_TRY(wf_allreduce(comm, own, most, WF_MAX));
    WF_TRY(add_rows(own, -1, most));
    WF_TRY(add_rows(log_sum, 1, own));
    WF_TRY(apply_act(WF_ACT_EXP, log_sum));
    WF_TRY(wf_allreduce(comm, log_sum, log_sum, WF_SUM));
    return apply_act(WF_ACT_LOG, log_sum);
}

wf_status wf_entropy_merge(const wf_mesh *mesh, unsigned axes, wf_tensor *most, wf_tensor *log_sum)
{
    wf_comm *comm = wf_mesh_comm(mesh, axes);
    WF_NEED(comm);
    wf_tensor *own = wf_tensor_copy(most, most->dtype, WF_ROW_MAJOR);
    WF_NEED(own);
    const wf_status status = merge_rows(comm, most, own, log_sum);
    wf_tensor_free(own);
    return status;
}

wf_status wf_entropy_sum_rows(const wf_mesh *mesh, unsigned axes, wf_tensor *rows)
{
    wf_comm *comm = wf_mesh_comm(mesh, axes);
    WF_NEED(comm);
    return wf_allreduce(comm, rows, rows, WF_SUM);
}
