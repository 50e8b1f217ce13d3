/* Sorts parameters by the mesh axes over which their gradients are summed, and finds the runs that share a
 * communicator and a sharding. */
#include "optim/multi_node_impl.h"

unsigned wf_grad_axes(const wf_mesh *mesh)
{
    unsigned axes = 0;
    for (int a = 0; a < WF_AXES; a++)
        if (a != WF_AXIS_STAGE && wf_mesh_size(mesh, (wf_axis)a) > 1)
            axes |= 1u << a;
    return axes;
}

static unsigned key_of(const wf_mesh *mesh, unsigned last, const wf_param *param)
{
    const unsigned split = wf_grad_axes(mesh), axes = param->axes & split, sharded = param->shard_axes & split;
    /* The group that is summed over all axes comes last: it carries the trailer, which then holds findings about all
     * others. */
    return ((axes == last) << 2 * WF_AXES) + (axes << WF_AXES) + sharded;
}

void wf_grad_sort(const wf_mesh *mesh, unsigned last, int64_t n, wf_param **order)
{
    /* Insertion sort is stable: within a group the order of completion stays. */
    for (int64_t i = 1; i < n; i++) {
        wf_param *param = order[i];
        const unsigned key = key_of(mesh, last, param);
        int64_t at = i;
        for (; at > 0 && key_of(mesh, last, order[at - 1]) > key; at--)
            order[at] = order[at - 1];
        order[at] = param;
    }
}

int64_t wf_grad_runs(const wf_mesh *mesh, int64_t n, wf_param *const *order, wf_grad_run *runs)
{
    const unsigned split = wf_grad_axes(mesh);
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++) {
        const unsigned axes = order[i]->axes & split, sharded = order[i]->shard_axes & split;
        if (count == 0 || runs[count - 1].axes != axes || runs[count - 1].sharded != sharded)
            runs[count++] = (wf_grad_run){.axes = axes, .sharded = sharded, .first = i};
        runs[count - 1].last = i + 1;
    }
    return count;
}
