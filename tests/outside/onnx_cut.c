/* Cuts the inputs of a node over a mesh. */
#include "tests/outside/onnx.h"

#include <string.h>

static bool starts_with(const char *text, const char *start)
{
    return strncmp(text, start, strlen(start)) == 0;
}

int onnx_axes(const onnx_call *call, int axis[WF_MAX_RANK])
{
    int64_t given[WF_MAX_RANK] = {0};
    const char *op = call->node->op;
    const int rank = onnx_rank(call->in[0]);
    int n = onnx_ints(call, "axes", WF_MAX_RANK, given);
    if (starts_with(op, "Reduce")) {
        n = n ? n : onnx_read(call, 1, WF_MAX_RANK, given);
        if (n == 0 && onnx_int(call, "noop_with_empty_axes", 0) == 0)
            for (; n < rank; n++)
                given[n] = n;
    } else {
        given[0] = onnx_int(call, "axis", starts_with(op, "Arg") ? 0 : -1);
        n = 1;
    }
    for (int i = 0; i < n; i++)
        axis[i] = onnx_axis(call->in[0], given[i]);
    return n;
}

/* Dimension of a result of this rank that an axis of the mesh cuts, or -1. */
static int cut_dim(wf_axis axis, int dims)
{
    const int back[WF_AXES] = {[WF_AXIS_DEPTH] = 3, [WF_AXIS_HEIGHT] = 2, [WF_AXIS_WIDTH] = 1};
    if (axis == WF_AXIS_DATA)
        return dims > 0 ? 0 : -1;
    if (axis == WF_AXIS_CHANNEL)
        return dims > 2 ? 1 : -1;
    return back[axis] && dims - back[axis] > 0 ? dims - back[axis] : -1;
}

/* x sharded along dimensions of the result that it has, and does not repeat. */
static wf_var *cut_element(wf_var *x, const wf_mesh *mesh, wf_shape result)
{
    wf_layout_opts opts = {0};
    wf_layout layout;
    const wf_shape shape = wf_var_shape(x);
    for (int a = 0; a < WF_AXES; a++) {
        const int dim = wf_mesh_size(mesh, (wf_axis)a) > 1 ? cut_dim((wf_axis)a, result.rank) : -1;
        const int own = dim - (result.rank - shape.rank);
        if (dim >= 0 && own >= 0 && shape.dim[own] == result.dim[dim] && result.dim[dim] > 1)
            opts.dim[a] = WF_DIM(own);
    }
    WF_EXPECT_OK(wf_mesh_layout(mesh, shape, opts, &layout));
    return wf_redistribute(x, layout);
}

static wf_shape broadcast_shape(wf_shape a, wf_shape b)
{
    wf_shape result = a.rank >= b.rank ? a : b;
    for (int d = 1; d <= a.rank && d <= b.rank; d++)
        if (a.dim[a.rank - d] > b.dim[b.rank - d])
            result.dim[result.rank - d] = a.dim[a.rank - d];
        else
            result.dim[result.rank - d] = b.dim[b.rank - d];
    return result;
}

/* x sharded over data along one dimension; -1: replicated. */
static wf_var *cut_along(wf_var *x, const wf_mesh *mesh, int dim)
{
    wf_layout_opts opts = {0};
    wf_layout layout;
    if (dim >= 0)
        opts.dim[WF_AXIS_DATA] = WF_DIM(dim);
    WF_EXPECT_OK(wf_mesh_layout(mesh, wf_var_shape(x), opts, &layout));
    return wf_redistribute(x, layout);
}

static void cut_rows(onnx_call *call, const wf_mesh *mesh)
{
    const int rank = onnx_rank(call->in[0]), rows = onnx_int(call, "transA", 0) ? rank - 1 : rank - 2;
    const int64_t length = wf_var_shape(call->in[0]).dim[rows];
    call->in[0] = cut_along(call->in[0], mesh, rows);
    call->in[1] = cut_along(call->in[1], mesh, -1);
    if (call->in[2]) {
        const wf_shape sum = wf_var_shape(call->in[2]);
        call->in[2] = cut_along(call->in[2], mesh, sum.rank == 2 && sum.dim[0] == length && length > 1 ? 0 : -1);
    }
}

/* The first dimension that the node does not go over. */
static int first_line(const onnx_call *call)
{
    int axis[WF_MAX_RANK], n = onnx_axes(call, axis);
    bool over[WF_MAX_RANK + 1] = {0};
    for (int i = 0; i < n; i++)
        over[axis[i]] = true;
    int dim = 0;
    while (over[dim])
        dim++;
    return dim < onnx_rank(call->in[0]) ? dim : -1;
}

void onnx_cut_inputs(onnx_call *call, onnx_cut cut)
{
    const wf_mesh *mesh = call->run->mesh;
    wf_shape result = wf_var_shape(call->in[0]);
    if (cut == ONNX_IMAGES || cut == ONNX_CHANNELS)
        call->in[0] = wf_shard(call->in[0], mesh);
    if (cut == ONNX_FIRST)
        call->in[0] = cut_element(call->in[0], mesh, result);
    if (cut == ONNX_ROWS)
        cut_rows(call, mesh);
    if (cut == ONNX_LINES)
        call->in[0] = cut_along(call->in[0], mesh, first_line(call));
    for (int i = 1; cut == ONNX_ELEMENTS && i < call->node->n_in; i++)
        if (call->in[i])
            result = broadcast_shape(result, wf_var_shape(call->in[i]));
    for (int i = 0; cut == ONNX_ELEMENTS && i < call->node->n_in; i++)
        if (call->in[i])
            call->in[i] = cut_element(call->in[i], mesh, result);
}

/* True if an axis may cut dimension `dim` of the inputs of an operator of this kind. */
static bool may_cut(onnx_cut cut, wf_axis axis, int dim)
{
    if (dim < 0)
        return false;
    switch (cut) {
    case ONNX_LINES:
    case ONNX_ROWS:
        return axis == WF_AXIS_DATA;
    case ONNX_IMAGES:
        return axis == WF_AXIS_DATA || (axis != WF_AXIS_CHANNEL && dim >= 2);
    case ONNX_CHANNELS:
        return axis == WF_AXIS_DATA || axis == WF_AXIS_CHANNEL || dim >= 2;
    default:
        return true;
    }
}

bool onnx_can_cut(const onnx_case *c, onnx_cut cut, const wf_mesh *mesh)
{
    int dims = 0;
    for (int i = 0; i < c->n_tensors && (i == 0 || cut == ONNX_ELEMENTS); i++)
        dims = c->tensor[i].shape.rank > dims ? c->tensor[i].shape.rank : dims;
    for (int a = 0; a < WF_AXES; a++)
        if (wf_mesh_size(mesh, (wf_axis)a) > 1 && !may_cut(cut, (wf_axis)a, cut_dim((wf_axis)a, dims)))
            return false;
    /* Each rank of the channel axis holds at least one of the outputs of a transposed convolution. */
    const bool transposed = strcmp(c->node[0].op, "ConvTranspose") == 0;
    return !transposed || c->tensor[1].shape.dim[1] >= wf_mesh_size(mesh, WF_AXIS_CHANNEL);
}
