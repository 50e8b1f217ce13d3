/* Gradients of inputs that go on beyond the edges without an exchange: those of the inputs themselves in one call, then
 * those of each slab beyond, which are added to where its elements came from. The slabs are disjoint and thin. */
#include "layers/window/window_impl.h"

static wf_array dense(void *data, wf_dtype dtype, wf_box box)
{
    return (wf_array){.data = data, .dtype = dtype, .order = WF_CHANNELS_LAST, .shape = wf_box_shape(box)};
}

static wf_status add_slab(const wf_slab_run *run, const wf_field *dy, const wf_field *dx, wf_box slab)
{
    wf_box like = dy->box;
    like.lo[0] = slab.lo[0];
    like.hi[0] = slab.hi[0];
    const wf_box read = wf_box_intersect(wf_index_map_box(run->back, slab, like), dy->box);
    const size_t bytes = (size_t)wf_shape_count(wf_box_shape(slab)) * wf_dtype_size(dx->dtype);
    wf_block_of block = {.bytes = 0};
    void *memory;
    if (wf_box_empty(read) || bytes == 0)
        return WF_OK;
    WF_TRY(wf_pool_take(run->ctx, bytes, &memory));
    wf_status status;
    WF_TRY_OUT(wf_block_gather(run->ctx, dy, read, true, &block));
    const wf_spatial_part_arrays arrays = {
        .in_box = read, .out_box = slab, .in = block.array, .out = dense(memory, dx->dtype, slab)};
    WF_TRY_OUT(run->kernel(run->user, &arrays));
    WF_TRY_OUT(wf_field_add(run->ctx, run->halo, &(wf_field){memory, dx->dtype, slab}, dx));
out:
    wf_block_give(run->ctx, &block);
    wf_pool_give(run->ctx, memory, bytes);
    return status;
}

wf_status wf_slabs_run_back(const wf_slab_run *run, const wf_field *dy, const wf_field *dx)
{
    wf_box slab[2 * WF_MAX_RANK];
    const wf_spatial_part_arrays all = {.in_box = dy->box,
                                        .out_box = dx->box,
                                        .in = dense(dy->data, dy->dtype, dy->box),
                                        .out = dense(dx->data, dx->dtype, dx->box)};
    if (!wf_box_empty(dx->box))
        WF_TRY(run->kernel(run->user, &all));
    const int n = wf_box_subtract(run->halo->need, dx->box, slab);
    for (int i = 0; i < n; i++)
        WF_TRY(add_slab(run, dy, dx, slab[i]));
    return WF_OK;
}
