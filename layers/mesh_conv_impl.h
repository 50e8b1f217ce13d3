/* A convolution of which every rank does a part: of the channels, of the pixels, or of both. layers/channel.h,
 * layers/spatial.h and layers/mesh_conv.h are constructors over it.
 *
 * Forward brings every rank the channels and the pixels that it computes with, in one exchange (x_halo), convolves, and
 * puts the result where y is held. Where outputs are to be summed over the channel axis, bias and activation come after
 * the sum, else in the same pass. Backward does the reverse. */
#ifndef WF_LAYERS_MESH_CONV_IMPL_H
#define WF_LAYERS_MESH_CONV_IMPL_H

#include "layers/channel_local_impl.h"
#include "layers/conv_impl.h"
#include "layers/spatial_impl.h"

typedef struct wf_mesh_conv {
    wf_conv_state conv;
    const wf_mesh *mesh;
    bool by_channels, by_pixels;
    wf_channel_split split; /* without channels: every rank has all of them */
    wf_channel_local local;
    const wf_chain_step *step; /* of the chain that applies this layer just now */
} wf_mesh_conv;

/* One application: what backward is told. Boxes hold the channels of tensors that are computed with. */
typedef struct wf_mesh_call {
    const wf_mesh_conv *conv;
    const int64_t *x_cut; /* how x is cut along channels; NULL: it is not */
    wf_map map;           /* y from x */
    wf_box x_box, y_box;  /* own inputs as they are sent from, own part of the outputs */
    wf_parts parts;
    wf_halo x_halo, dy_halo;
    bool gathers; /* x_halo moves channels too */
    bool follows; /* an activation follows */
    bool recompute;
    wf_epilogue epilogue;
} wf_mesh_call;

enum { WF_MESH_CONV_X, WF_MESH_CONV_HALO, WF_MESH_CONV_W, WF_MESH_CONV_Y, WF_MESH_CONV_SAVED };

/* What makes outputs by a map. */
typedef struct wf_output_run {
    const wf_mesh_conv *conv;
    const wf_map *map;
    wf_array w, bias;
    const wf_epilogue *epilogue; /* NULL: none */
} wf_output_run;
/* A wf_part_kernel; user: wf_output_run. */
wf_status wf_mesh_conv_output(void *user, const wf_part_arrays *arrays) WF_NODISCARD;
/* The kernels' geometry, but for groups, between these boxes. */
wf_conv_geom wf_mesh_conv_geom(const wf_map *map, wf_box out, wf_box in);
/* Bias and activation are applied while outputs are computed. */
bool wf_mesh_conv_in_one_pass(const wf_mesh_conv *conv);

wf_var *wf_mesh_conv_forward(wf_layer *layer, wf_var *x);
wf_status wf_mesh_conv_backward(wf_node *node) WF_NODISCARD;

#endif
