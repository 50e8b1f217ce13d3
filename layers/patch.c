/* Patches: chains of layers that are there. An embedding is a convolution whose stride is its kernel, so a patch is
 * read once; merging brings blocks of pixels into channels (Liu et al., 2021). */
#include "layers/patch.h"

#include "comm/mesh_author.h"
#include "layers/conv.h"
#include "layers/functions.h"
#include "layers/group_norm.h"
#include "layers/layer_author.h"
#include "layers/serial/serial_impl.h"

wf_layer *wf_patch_embed(wf_ctx *ctx, wf_patch_embed_opts o)
{
    WF_NEED_NULL(ctx);
    WF_TRY_NULL(wf_nd_check("patch_embed", &o.nd));
    wf_conv_opts opts = {
        .nd = o.nd, .in = o.in, .out = o.out, .no_bias = o.no_bias, .w_init = o.w_init, .b_init = o.b_init};
    for (int d = 0; d < o.nd; d++) {
        const int64_t length = o.patch_nd[d] ? o.patch_nd[d] : o.patch;
        WF_CHECK_NULL(length >= 1, WF_ERR_ARGUMENT,
                      "patch_embed: the patch of dimension %d is %lld, should be at least 1", d, (long long)length);
        opts.kernel_nd[d] = opts.stride_nd[d] = length;
    }
    return wf_sequential(ctx, WF_LAYERS(wf_conv(ctx, opts), wf_lambda(ctx, wf_tokens)));
}

/* --- merging ------------------------------------------------------------------------------------------------------ */

typedef struct merge_layer {
    int64_t block;
} merge_layer;

/* Moves the bounds of a cut of rows or columns to whole blocks. A rank may be left without any. */
static wf_status align_bounds(wf_layout *layout, wf_axis axis, int64_t block)
{
    const wf_mesh *mesh = layout->mesh;
    const int size = wf_mesh_size(mesh, axis), dim = layout->dim[axis];
    const size_t bytes = ((size_t)size + 1) * sizeof(int64_t);
    wf_ctx *ctx = wf_comm_ctx(wf_mesh_world(mesh));
    void *memory;
    WF_TRY(wf_pool_take_host(ctx, bytes, &memory));
    /* The new bounds are computed from the old ones, so they need a buffer of their own. */
    int64_t *bounds = memory;
    for (int p = 0; p <= size; p++)
        bounds[p] = layout->bounds[axis][p] / block * block;
    wf_layout_shard(mesh, layout, axis, dim, bounds);
    wf_pool_give_host(ctx, memory, bytes);
    return layout->bounds[axis] ? WF_OK : wf_error_code();
}

/* x in parts of whole blocks; wf_merge_patches refuses an image that is not made of them. */
static wf_var *align_blocks(wf_var *x, int64_t block)
{
    wf_layout layout = x->value->layout;
    const wf_shape whole = layout.global;
    const unsigned axes = wf_layout_axes(&layout, 1u << 2 | 1u << 3);
    if (!axes || whole.rank != 4 || whole.dim[2] % block || whole.dim[3] % block)
        return x;
    /* A layout may know its own part alone; the other ranks' bounds are asked for, by a message. */
    WF_TRY_NULL(wf_layout_complete(&layout, axes));
    for (int a = 0; a < WF_AXES; a++)
        if (axes >> a & 1u)
            WF_TRY_NULL(align_bounds(&layout, (wf_axis)a, block));
    /* Only where bounds have moved something is sent. */
    return wf_redistribute_along(x, layout, axes);
}

static wf_var *forward_merge(wf_layer *layer, wf_var *x)
{
    const int64_t block = ((const merge_layer *)layer->state)->block;
    return wf_merge_patches(align_blocks(x, block), block);
}

static const wf_layer_kind merge_kind = {.name = "merge_patches", .forward = forward_merge};

static wf_layer *merge_new(wf_ctx *ctx, int64_t block)
{
    wf_layer *layer = wf_layer_new(ctx, &merge_kind, sizeof(merge_layer));
    if (!layer)
        return NULL;
    ((merge_layer *)layer->state)->block = block;
    wf_layer_note(layer, "merge_patches of blocks of %lld", (long long)block);
    return layer;
}

wf_layer *wf_patch_merging(wf_ctx *ctx, wf_patch_merging_opts o)
{
    WF_NEED_NULL(ctx);
    WF_CHECK_NULL(o.channels >= 1 && o.out >= 0 && o.block >= 0, WF_ERR_ARGUMENT,
                  "patch_merging: channels is %lld, out %lld, block %lld; channels is required, none is negative",
                  (long long)o.channels, (long long)o.out, (long long)o.block);
    const int64_t block = o.block ? o.block : 2, wide = o.channels * block * block;
    return wf_sequential(
        ctx, WF_LAYERS(
                 merge_new(ctx, block), wf_layernorm(ctx, (wf_layernorm_opts){.channels = wide, .eps = o.eps}),
                 wf_conv2d(ctx, (wf_conv_opts){
                                    .in = wide, .out = o.out ? o.out : 2 * o.channels, .kernel = 1, .no_bias = true})));
}
