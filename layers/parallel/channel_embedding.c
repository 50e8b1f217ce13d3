/* Embedding whose table is cut by rows over the ranks of the channel axis. Each rank looks up the indices that its rows
 * have, zeros elsewhere, and one sum joins them; the gradient of a rank's rows needs no message. */
#include "layers/channel.h"
#include "layers/parallel/parallel_impl.h"

wf_layer *wf_channel_embedding(const wf_mesh *mesh, wf_embedding_opts opts)
{
    WF_NEED_NULL(mesh);
    const int size = wf_mesh_size(mesh, WF_AXIS_CHANNEL);
    wf_range own;
    WF_CHECK_NULL(
        opts.count < 1 || opts.count >= size, WF_ERR_ARGUMENT,
        "channel_embedding: %lld rows are fewer than the %d ranks that share them; use a smaller channel axis "
        "or wf_embedding",
        (long long)opts.count, size);
    wf_layer *layer = wf_embedding(wf_comm_ctx(wf_mesh_world(mesh)), opts);
    if (!layer || size == 1)
        return layer;
    wf_comm *comm = wf_mesh_comm(mesh, WF_AXIS_BIT(WF_AXIS_CHANNEL));
    if (!comm) {
        wf_layer_free(layer);
        return NULL;
    }
    wf_block(opts.count, size, wf_mesh_rank(mesh, WF_AXIS_CHANNEL), &own.lo, &own.hi);
    const wf_box box = {.rank = 2, .lo = {own.lo}, .hi = {own.hi, opts.features}};
    wf_channel_shard_param(layer->params[0], box, true);
    wf_embedding_cut(layer, mesh, comm, own.lo);
    layer->comm = wf_mesh_world(mesh);
    return layer;
}
