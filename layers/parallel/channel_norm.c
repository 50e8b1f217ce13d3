/* Channel-parallel batch normalisation. Statistics are per channel, so it is the serial layer on this rank's
 * channels and parameters, and nothing moves. */
#include "layers/channel.h"
#include "layers/parallel/parallel_impl.h"

static wf_layer *shard_channels(const wf_mesh *mesh, wf_layer *layer, int64_t channels)
{
    const int size = wf_mesh_size(mesh, WF_AXIS_CHANNEL);
    wf_range own;
    if (!layer || size == 1)
        return layer;
    if (channels < size) {
        WF_RAISE(WF_ERR_ARGUMENT,
                 "channel_batchnorm: %lld channels are fewer than the %d ranks that share them; use a smaller channel "
                 "axis or the serial layer",
                 (long long)channels, size);
        wf_layer_free(layer);
        return wf_error_null();
    }
    wf_block(channels, size, wf_mesh_rank(mesh, WF_AXIS_CHANNEL), &own.lo, &own.hi);
    wf_norm_set_own_channels(layer, own);
    for (int i = 0; i < layer->n_params; i++)
        wf_channel_shard_param(layer->params[i], (wf_box){.rank = 1, .lo = {own.lo}, .hi = {own.hi}}, true);
    return layer;
}

wf_layer *wf_channel_batchnorm(const wf_mesh *mesh, wf_batchnorm_opts opts)
{
    WF_NEED_NULL(mesh);
    return mesh ? shard_channels(mesh, wf_batchnorm(wf_comm_ctx(wf_mesh_world(mesh)), opts), opts.channels) : NULL;
}

wf_layer *wf_channel_sync_batchnorm(const wf_mesh *mesh, wf_batchnorm_opts opts)
{
    WF_NEED_NULL(mesh);
    const unsigned axes = WF_AXIS_BIT(WF_AXIS_DATA) | WF_AXIS_BIT(WF_AXIS_DEPTH) | WF_AXIS_BIT(WF_AXIS_HEIGHT) |
                          WF_AXIS_BIT(WF_AXIS_WIDTH);
    wf_comm *comm = mesh ? wf_mesh_comm(mesh, axes) : NULL;
    if (!comm)
        return NULL;
    wf_norm_merge merge;
    WF_TRY_NULL(wf_norm_merge_over("channel_sync_batchnorm", comm, &merge));
    /* Ranks with other channels are told of a failure too: they would wait for the failed one in a later layer. */
    merge.comm = wf_mesh_world(mesh);
    wf_layer *layer = wf_batchnorm_merged(wf_comm_ctx(comm), opts, merge);
    return shard_channels(mesh, layer, opts.channels);
}
