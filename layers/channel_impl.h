/* What channel-parallel layers share: who computes with which channels, and how they get there and back. */
#ifndef WF_LAYERS_CHANNEL_IMPL_H
#define WF_LAYERS_CHANNEL_IMPL_H

#include "comm/mesh_author.h"
#include "layers/form.h"
#include "layers/layer_author.h"

/* The channels (dimension 1) of a layer's input or output. */
typedef struct wf_channel_side {
    const wf_mesh *mesh;
    int size, rank; /* of the group that shares the channels, and in it: the channel axis, or this rank alone */
    int64_t channels;
    wf_range *part; /* for each rank of the group: what it computes with, or adds to */
    bool apart;     /* the parts follow each other and are everything: they are not to be summed */
} wf_channel_side;

/* What rank computes with what. */
typedef struct wf_channel_split {
    const char *name; /* of the kind of layer, for errors */
    wf_channel_side in, out;
    const int64_t *cut;      /* how the layer's output is sharded; NULL: replicated */
    const int64_t *part_cut; /* of the outputs' parts, where they are apart */
    int64_t groups;
    bool by_input; /* dimension 0 of the weights are the inputs: transposed convolution */
    int rank;      /* in the group */
} wf_channel_split;

typedef struct wf_channel_opts {
    int64_t in, out, groups;
    double growth; /* output pixels for each input pixel */
    bool by_input, replicate;
    bool whole; /* every rank computes with all channels, whatever the mesh */
    wf_form form;
} wf_channel_opts;

wf_status wf_channel_split_init(wf_channel_split *split, const char *name, const wf_mesh *mesh,
                                const wf_channel_opts *opts) WF_NODISCARD;
void wf_channel_split_free(wf_channel_split *split);
/* This rank's inputs and outputs, and the outputs whose bias it holds. */
wf_range wf_channel_inputs(const wf_channel_split *split);
wf_range wf_channel_outputs(const wf_channel_split *split);
wf_range wf_channel_biases(const wf_channel_split *split);

/* More than one rank shares the channels. */
bool wf_channel_is_split(const wf_channel_split *split);

/* Makes a parameter that has no value yet the part `box` of what it was. `cut`: other ranks of the channel axis hold
 * other parts. NULL passes. */
void wf_channel_cut_param(wf_param *param, wf_box box, bool cut);
/* The same to wf_channel_biases. */
void wf_channel_cut_bias(wf_param *param, const wf_channel_split *split);

/* Checks that x is laid out as the layer can take it; *cut: how it is sharded along dimension 1, NULL: replicated. */
wf_status wf_channel_check_input(const wf_layer *layer, const char *name, const wf_mesh *mesh, const wf_var *x,
                                 const int64_t **cut) WF_NODISCARD;
/* The layout of a tensor of this local shape that has x's samples, and `channels` channels cut at `cut`. */
wf_layout wf_channel_layout(const wf_mesh *mesh, const wf_var *x, wf_shape local, int64_t channels, const int64_t *cut);

/* Some rank's part is not what it holds: channels move. The same on every rank. */
bool wf_channel_moves(const wf_channel_side *side, const int64_t *cut);
/* What each rank of the group holds: `size` ranges in memory of the pool, to be given back. */
wf_status wf_channel_held(const wf_channel_side *side, const int64_t *cut, wf_ctx *ctx, wf_range **held) WF_NODISCARD;
/* Channels of all parts together. */
int64_t wf_channel_width(const wf_channel_side *side);

/* This rank's part of a tensor held as `cut` says: dense, channels-last from rank 3 on; a handle to be freed.
 * Collective. */
wf_tensor *wf_channel_take(const wf_channel_side *side, const int64_t *cut, const wf_tensor *held);
/* The reverse: the sum of the ranks' parts, held as `cut` says. Takes the handle of `part`, which may be written to.
 * Collective. */
wf_tensor *wf_channel_put(const wf_channel_side *side, const int64_t *cut, wf_tensor *part);

/* y += b along dimension 1. */
wf_status wf_channel_bias(const wf_tensor *y, const wf_tensor *b) WF_NODISCARD;
/* Channels [lo, hi) of a tensor: dense, in its order; a handle to be freed. */
wf_tensor *wf_channel_pick(const wf_tensor *tensor, int64_t lo, int64_t hi);

#endif
