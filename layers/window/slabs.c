/* Gradients of inputs whose outputs also read what is beyond them: those of the inputs themselves in one call, which
 * writes them where they belong, and those of each slab beyond. Without an exchange slabs are added to where their
 * elements came from; else they lie in an array that an exchange sends back. Slabs are disjoint and thin. */
#include "layers/window/window_impl.h"

static wf_array dense(void *data, wf_dtype dtype, wf_box box)
{
    return (wf_array){.data = data, .dtype = dtype, .order = WF_CHANNELS_LAST, .shape = wf_box_shape(box)};
}

/* Computes the gradient of one slab in a buffer of its own and adds it to where the slab's elements came from. */
static wf_status add_slab(const wf_slab_run *run, const wf_field *dy, const wf_field *dx, wf_box slab)
{
    wf_box like = dy->box;
    like.lo[0] = slab.lo[0];
    like.hi[0] = slab.hi[0];
    const wf_box read = wf_box_intersect(wf_index_map_box(run->back, slab, like), dy->box);
    const size_t bytes = (size_t)wf_shape_count(wf_box_shape(slab)) * wf_dtype_size(dx->dtype);
    wf_block_of block = {.bytes = 0};
    void *memory;
    /* No output reads this slab. */
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

/* Zeros where no output reads anything: the exchange sends the slab as a whole. */
static wf_status write_part(const wf_slab_run *run, const wf_field *dy, const wf_field *slab, wf_box part)
{
    const wf_box read = wf_box_intersect(wf_index_map_box(run->back, part, dy->box), dy->box);
    wf_block_of from = {.bytes = 0}, to = {.bytes = 0};
    wf_status status;
    WF_TRY_OUT(wf_block_gather(run->ctx, slab, part, false, &to));
    if (wf_box_empty(read)) {
        WF_TRY_OUT(run->ctx->k->fill(run->ctx, &to.array, 0));
    } else {
        WF_TRY_OUT(wf_block_gather(run->ctx, dy, read, true, &from));
        const wf_spatial_part_arrays arrays = {.in_box = read, .out_box = part, .in = from.array, .out = to.array};
        WF_TRY_OUT(run->kernel(run->user, &arrays));
    }
    WF_TRY_OUT(wf_block_scatter(run->ctx, slab, part, &to));
out:
    wf_block_give(run->ctx, &from);
    wf_block_give(run->ctx, &to);
    return status;
}

/* Parts of slabs that are this rank's own are not computed: they are in the gradient of the inputs. */
wf_status wf_slabs_run_halo(const wf_slab_run *run, const wf_field *dy, wf_box own, const wf_tensor *tensor)
{
    const wf_slabs slabs = wf_halo_slabs(run->halo);
    wf_box rest[2 * WF_MAX_RANK];
    for (int i = 0; i < slabs.n; i++) {
        const wf_field slab = wf_slabs_field(&slabs, i, tensor);
        /* The only slab may be the whole need, whose own part is not sent back. */
        const int n = wf_box_subtract(slab.box, own, rest);
        for (int k = 0; k < n; k++)
            WF_TRY(write_part(run, dy, &slab, rest[k]));
    }
    return WF_OK;
}

wf_status wf_slabs_run_own(const wf_slab_run *run, const wf_field *dy, const wf_field *dx)
{
    const wf_spatial_part_arrays all = {.in_box = dy->box,
                                        .out_box = dx->box,
                                        .in = dense(dy->data, dy->dtype, dy->box),
                                        .out = dense(dx->data, dx->dtype, dx->box)};
    if (wf_box_empty(dx->box))
        return WF_OK;
    /* Without outputs here the gradient is 0, and the kernel is not called. */
    return wf_box_empty(dy->box) ? run->ctx->k->fill(run->ctx, &all.out, 0) : run->kernel(run->user, &all);
}

wf_status wf_slabs_run_back(const wf_slab_run *run, const wf_field *dy, const wf_field *dx)
{
    wf_box slab[2 * WF_MAX_RANK];
    WF_TRY(wf_slabs_run_own(run, dy, dx));
    const int n = wf_box_subtract(run->halo->need, dx->box, slab);
    for (int i = 0; i < n; i++)
        WF_TRY(add_slab(run, dy, dx, slab[i]));
    return WF_OK;
}
