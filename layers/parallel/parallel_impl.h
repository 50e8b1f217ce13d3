/* Channel splits, shardings, halos and window operations on parts, for the parallel layers: layers/parallel alone. */
#ifndef WF_LAYERS_PARALLEL_IMPL_H
#define WF_LAYERS_PARALLEL_IMPL_H

#include "comm/comm_author.h"
#include "comm/mesh_author.h"
#include "core/tensor_author.h"
#include "layers/attention.h"
#include "layers/form.h"
#include "layers/layer_author.h"
#include "layers/serial/serial_impl.h"
#include "layers/transformer.h"
#include "layers/window/window_impl.h"

/* What channel-parallel layers share: who computes with which channels, and how they get there and back. */

/* The channels (dimension 1) of a layer's input or output. */
typedef struct wf_channel_side {
    const wf_mesh *mesh;
    int size, rank; /* of the group that shares the channels, and in it: the channel axis, or this rank alone */
    int64_t channels;
    wf_range *part; /* for each rank of the group: what it computes with, or adds to */
    bool partition; /* the parts follow each other and are everything: they are not to be summed */
} wf_channel_side;

/* What rank computes with what. */
typedef struct wf_channel_split {
    const char *name; /* of the kind of layer, for errors */
    wf_channel_side in, out;
    const int64_t *bounds;      /* how the layer's output is sharded; NULL: replicated */
    const int64_t *part_bounds; /* of the outputs' parts, where they are a partition */
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

/* Makes a parameter that has no value yet the part `box` of what it was. `sharded`: other ranks of the channel axis
 * hold other parts. NULL passes. */
void wf_channel_shard_param(wf_param *param, wf_box box, bool sharded);
/* Shards a bias in the blocks of wf_channel_biases. */
void wf_channel_shard_bias(wf_param *param, const wf_channel_split *split);

/* Checks that x is laid out as the layer can take it; *bounds: how it is sharded along dimension 1, NULL: replicated.
 */
wf_status wf_channel_check_input(const wf_layer *layer, const char *name, const wf_mesh *mesh, const wf_var *x,
                                 const int64_t **bounds) WF_NODISCARD;
/* The layout of a tensor of this local shape that has x's samples, and `channels` channels cut at `bounds`. */
wf_layout wf_channel_layout(const wf_mesh *mesh, const wf_var *x, wf_shape local, int64_t channels,
                            const int64_t *bounds);

/* Some rank's part is not what it holds: channels move. The same on every rank. */
bool wf_channel_moves(const wf_channel_side *side, const int64_t *bounds);
/* What each rank of the group holds: `size` ranges in memory of the pool, to be given back. */
wf_status wf_channel_held(const wf_channel_side *side, const int64_t *bounds, wf_ctx *ctx,
                          wf_range **held) WF_NODISCARD;
/* Channels of all parts together. */
int64_t wf_channel_width(const wf_channel_side *side);

/* This rank's part of a tensor held as `bounds` says: dense, channels-last from rank 3 on; a handle to be freed.
 * bounds NULL: every rank holds all channels, and the part is picked without a message. Else collective, if channels
 * move. */
wf_tensor *wf_channel_gather(const wf_channel_side *side, const int64_t *bounds, const wf_tensor *held);
/* The reverse: the sum of the ranks' parts, held as `bounds` says. Takes the handle of `part`, which may be written to.
 * Collective. */
wf_tensor *wf_channel_scatter(const wf_channel_side *side, const int64_t *bounds, wf_tensor *part);

/* y += b along dimension 1. */
wf_status wf_channel_bias(const wf_tensor *y, const wf_tensor *b) WF_NODISCARD;
/* Channels [lo, hi) of a tensor: dense, in its order; a handle to be freed. */
wf_tensor *wf_channel_pick(const wf_tensor *tensor, int64_t lo, int64_t hi);

/* Tokens (layers/transformer.h). */

/* x, which all ranks of the channel axis have; its gradient is the sum of theirs. A mesh of NULL, or with one rank on
 * the axis: x. */
wf_var *wf_channel_copied(const wf_mesh *mesh, wf_var *x);
/* Applies a wf_token_linear to tokens that wf_channel_copied has passed. NULL is told to the other ranks, as by
 * wf_apply.
 */
wf_var *wf_project(wf_layer *linear, wf_var *x);

/* Children of attention, each a wf_token_linear. */
typedef struct wf_projections {
    wf_layer *query, *key, *value, *out;
} wf_projections;
/* Adds them: `each` has `in`, `unit` (the features of a head), the mesh, and whether queries, keys and values have a
 * bias. False on failure. */
bool wf_projections_add(wf_layer *layer, wf_token_linear_opts each, bool out_bias, wf_projections *to);

/* Windows of an image [N,C,H,W]. Entry 0 of a pair is of rows, 1 of columns. */
typedef struct wf_windows {
    int64_t length[2], shift[2]; /* of a window; by so many pixels windows begin late, 0 where there is one window */
    int64_t all[2];              /* windows of the whole image */
    /* Private to layers/parallel/windows.c. */
    int64_t padding[2];      /* of dimensions that ranks share */
    wf_layout layout, parts; /* of the image with that padding, and of its windows */
    wf_shape own;            /* of this rank's part of that image */
    wf_order order;
    int64_t count[2]; /* windows of this rank */
    wf_range need[2]; /* their pixels, of dimensions that ranks share; they go on beyond the image */
    unsigned axes[2]; /* that cut the dimension; at most one */
} wf_windows;

/* [N,C,H,W] -> [N,rows,columns,T,C], of length[0] by length[1] = T pixels each, row by row, as torchvision has them:
 * the image is padded with zeros at its end to whole windows, then rolled back by `shift` (0 to length - 1), along a
 * dimension of more than one window. Fills *windows. Where ranks share rows or columns, each gets the windows whose
 * first pixel it has, in one exchange. */
wf_var *wf_windows_cut(wf_var *x, const int64_t length[2], const int64_t shift[2], wf_windows *windows);
/* The image of such windows, in one exchange. Every rank has the part that it had. */
wf_var *wf_windows_join(wf_var *y, const wf_windows *windows);
/* Attention of pixels to those around them (core/neighbourhood_author.h), of [N,pixels,heads D], row-major. */
typedef struct wf_near_opts {
    int64_t heads; /* of all ranks */
    double scale;  /* 0: 1 / sqrt(D) */
    int64_t kernel[WF_MAX_SPATIAL], dilation[WF_MAX_SPATIAL];
    wf_param *bias; /* [heads,2 kernel - 1,...]; NULL: none */
} wf_near_opts;
/* q, k and v of one layout: samples, one axis a dimension of pixels, and whole heads may be sharded. Collective over
 * the axes that cut pixels: one exchange brings keys and values that a part lacks, backward has it reversed. */
wf_var *wf_near_attention(wf_var *q, wf_var *k, wf_var *v, const wf_near_opts *opts);
/* Attention over tokens that an axis cuts (attention_tokens.c). */

/* The axis that cuts dimension 1; -1: none. */
int wf_token_axis(const wf_layout *layout);
/* What all ranks judge alike of q, k and v, whose tokens are cut: types, layouts, heads. By heads: features are whole;
 * otherwise other axes may cut them between heads. */
wf_status wf_tokens_check(const char *what, const wf_var *q, const wf_var *k, const wf_var *v,
                          const wf_attention_opts *o, bool by_heads) WF_NODISCARD;
/* Options, which are those of whole tokens, before anything is sent: a wrong one on any rank is an error of all. By
 * heads: a rank gets some heads. */
wf_status wf_tokens_check_opts(const wf_var *q, const wf_var *k, const wf_attention_opts *o,
                               bool by_heads) WF_NODISCARD;

/* The convolution that a rank does on its part of the channels. */

/* Groups that are whole, or one of which a part is here. */
typedef struct wf_channel_piece {
    wf_range outer, inner; /* relative to the tensors */
    int64_t groups;
} wf_channel_piece;

/* Between the outer channels, dimension 0 of the filter, and the inner ones, dimension 1 for each group. A convolution
 * goes from the inner to the outer ones, its transposed form the other way. */
typedef struct wf_channel_local {
    int pieces; /* 1: bias and epilogue may be given */
    wf_channel_piece piece[3];
} wf_channel_local;

typedef enum wf_channel_way {
    WF_TO_OUTER = 0, /* conv_forward */
    WF_TO_INNER,     /* conv_backward_data */
} wf_channel_way;

typedef struct wf_channel_call {
    const wf_channel_local *local;
    wf_conv_geom geom; /* but for groups */
    wf_ctx *ctx;
    wf_channel_way way;
} wf_channel_call;

wf_channel_local wf_channel_local_of(const wf_channel_split *split);
/* Arrays are dense and channels-last. `from` is the other side of what the way says. bias and epilogue may be NULL. */
wf_status wf_channel_local_run(const wf_channel_call *call, const wf_array *from, const wf_array *w,
                               const wf_array *bias, const wf_epilogue *epilogue, const wf_array *to) WF_NODISCARD;
/* dbias (may be NULL) as conv_backward_filter has it, where there is one piece. */
wf_status wf_channel_local_filter(const wf_channel_call *call, const wf_array *inner, const wf_array *outer,
                                  const wf_array *dw, const wf_array *dbias, bool add) WF_NODISCARD;

/* What spatially parallel layers share: who has and needs which part of an image. How parts are computed is in
 * layers/window/window_impl.h. */

/* How an activation is sharded along its spatial dimensions. */
typedef struct wf_sharding {
    const wf_mesh *mesh;
    int axis[WF_MAX_SPATIAL];              /* the mesh axis that shards spatial dimension d, or -1 */
    const int64_t *bounds[WF_MAX_SPATIAL]; /* of the shards; NULL where axis is -1 */
    int64_t length[WF_MAX_SPATIAL];        /* global */
    int64_t channels;                      /* global */
    wf_box box;                            /* what this rank holds */
} wf_sharding;

/* Which inputs a layer takes. */
typedef enum wf_sharding_taken {
    /* Layers without parameters: sharded along samples, channels and pixels in any way, or replicated. */
    WF_SHARDING_ANY = 0,
    /* Layers whose parameters' gradients are summed over the mesh: sharded over every one of data, depth, height and
     * width that the mesh splits, or a replicated part would count twice. Channels may be sharded over the channel axis
     * only. */
    WF_SHARDING_SUMS,
    /* As WF_SHARDING_SUMS, with all channels on every rank. */
    WF_SHARDING_SUMS_WHOLE
} wf_sharding_taken;

/* WF_ERR_SHAPE, which names layer and layout, where a layer `name` cannot take x. Local. */
wf_status wf_sharding_check(const wf_layer *layer, const char *name, const wf_mesh *mesh, const wf_var *x,
                            wf_sharding_taken taken) WF_NODISCARD;
/* How x, the input of a layer `name`, is sharded; it was checked. An x without a layout is the whole. */
wf_status wf_sharding_read(const wf_layer *layer, const char *name, const wf_mesh *mesh, const wf_var *x,
                           wf_sharding *sharding) WF_NODISCARD;
/* wf_sharding_check, then wf_sharding_read. */
wf_status wf_sharding_of(const wf_layer *layer, const char *name, const wf_mesh *mesh, const wf_var *x,
                         wf_sharding_taken taken, wf_sharding *sharding) WF_NODISCARD;
/* The sharding of the outputs, with the same channels: an output belongs to the rank that holds its window's centre. */
wf_status wf_sharding_outputs(const wf_sharding *in, const wf_index_map *index_map, wf_sharding *out) WF_NODISCARD;
/* x's layout, with the channels and pixels of this sharding. */
wf_layout wf_sharding_layout(const wf_sharding *sharding, const wf_layout *x);
/* An output of this layout, of x's type. */
wf_tensor *wf_sharding_tensor(const wf_var *x, const wf_layout *layout);

/* Channels on the way together with pixels: what each rank along the channel axis has and needs. */
typedef struct wf_halo_channels {
    int64_t all;
    const wf_range *have, *need;
} wf_halo_channels;

/* Elements of a sample that move in all. */
wf_status wf_halo_volume(const wf_sharding *have, const wf_index_map *index_map, const wf_sharding *want,
                         double *volume) WF_NODISCARD;
/* The exchange that brings every rank what it needs of an array cut like `have` to compute its part of one cut like
 * `want`, which is made by `index_map`. channels NULL: those that a rank has are those that it needs. */
wf_status wf_halo_make(const wf_sharding *have, const wf_index_map *index_map, const wf_sharding *want,
                       const wf_halo_channels *channels, wf_dtype dtype, wf_halo *halo) WF_NODISCARD;

/* What the depth of a chain is chosen by, in seconds. */
typedef struct wf_chain_costs {
    double message, byte, work;
} wf_chain_costs;
/* Fills what is 0, the same on every rank of a stage. Collective over the stage's ranks where something is 0. */
wf_status wf_chain_costs_complete(const wf_mesh *mesh, wf_chain_costs *costs) WF_NODISCARD;

/* The spatial form of pooling, and its forward, as wf_pool_run. */
extern const wf_layer_kind wf_pool_spatial;
wf_var *wf_spatial_pool_run(wf_layer *layer, wf_var *x, wf_tensor **places);
/* Plans pooling or upsampling, with the map's kind and windows set: its lengths and boundary, the halo, the boxes, and
 * the output's layout for outputs of this global shape. `in`: how x is cut. */
wf_status wf_window_op_plan(wf_window_op_call *call, const wf_var *x, const wf_boundary *boundary,
                            const wf_sharding *in, wf_shape y, wf_layout *layout) WF_NODISCARD;

/* One layer of a chain: everything that it reads is in its input already. */
typedef struct wf_spatial_link {
    wf_index_map index_map;
    wf_box x_box, y_box;
    wf_layout layout; /* of the output */
} wf_spatial_link;
bool wf_is_spatial_conv(const wf_layer *layer, const wf_mesh *mesh);
int64_t wf_spatial_conv_channels(const wf_layer *layer); /* of its output */
/* The layer's map, and the multiplications of one output, for an input x as if it had this shape. Checks x. */
wf_status wf_spatial_conv_map(const wf_layer *layer, const wf_var *x, wf_shape shape, wf_index_map *index_map,
                              double *work, wf_shape *y) WF_NODISCARD;
/* wf_apply in a chain. */
wf_var *wf_spatial_conv_apply(wf_layer *layer, wf_var *x, wf_spatial_link *step);

/* A convolution of which every rank does a part: of the channels, of the pixels, or of both. layers/channel.h,
 * layers/spatial.h and layers/mesh_conv.h are constructors over it.
 *
 * Forward brings every rank the channels and the pixels that it computes with, in one exchange (x_halo), convolves, and
 * puts the result where y is held. Where outputs are to be summed over the channel axis, bias and activation come after
 * the sum, else in the same pass. Backward does the reverse. */

typedef struct wf_mesh_conv_state {
    wf_conv_state conv;
    const wf_mesh *mesh;
    bool by_channels, by_pixels;
    wf_channel_split split; /* without channels: every rank has all of them */
    wf_channel_local local;
} wf_mesh_conv_state;

/* One application: what backward is told. Boxes hold the channels of tensors that are computed with. */
typedef struct wf_mesh_call {
    const wf_mesh_conv_state *conv;
    const int64_t *x_bounds; /* how x is sharded along channels; NULL: it is not */
    wf_index_map index_map;  /* y from x */
    wf_box x_box, y_box;     /* own inputs as they are sent from, own part of the outputs */
    wf_output_regions parts;
    wf_halo x_halo, dy_halo;
    bool gathers; /* x_halo moves channels too */
    bool follows; /* an activation follows */
    bool recompute;
    wf_epilogue epilogue;
} wf_mesh_call;

enum { WF_MESH_CONV_X, WF_MESH_CONV_HALO, WF_MESH_CONV_W, WF_MESH_CONV_Y, WF_MESH_CONV_SAVED };

/* What makes outputs by an index map. */
typedef struct wf_output_run {
    const wf_mesh_conv_state *conv;
    const wf_index_map *index_map;
    wf_array w, bias;
    const wf_epilogue *epilogue; /* NULL: none */
} wf_output_run;
/* A wf_spatial_part_kernel; user: wf_output_run. */
wf_status wf_mesh_conv_output(void *user, const wf_spatial_part_arrays *arrays) WF_NODISCARD;
/* Bias and activation are applied while outputs are computed. */
bool wf_mesh_conv_in_one_pass(const wf_mesh_conv_state *conv);

wf_var *wf_mesh_conv_forward(wf_layer *layer, wf_var *x);
wf_status wf_mesh_conv_backward(wf_node *node) WF_NODISCARD;

/* --- sync_norm.c: two merges of statistics --- */

/* Over the ranks of a communicator, which is borrowed. *merge is for one layer. Errors begin with `name`, a literal. */
wf_status wf_norm_merge_over(const char *name, wf_comm *comm, wf_norm_merge *merge) WF_NODISCARD;
/* Over the ranks of a mesh, which is borrowed, along the spatial axes that shard the input at hand, and with `samples`
 * along data too. *merge is for one layer. Without `samples` the statistics are those of this rank's samples, over all
 * their pixels. */
wf_status wf_norm_merge_mesh(const char *name, const wf_mesh *mesh, bool samples, wf_norm_merge *merge) WF_NODISCARD;

/* --- mesh_norm.c --- */

/* The merge of layer, RMS, group and instance normalisation on this mesh, which is borrowed. */
wf_group_merge wf_group_merge_mesh(const wf_mesh *mesh);

/* The spatial form of a wf_resize_serial. */
wf_layer *wf_spatial_resize_of(const wf_layer *layer, const wf_mesh *mesh);

#endif
