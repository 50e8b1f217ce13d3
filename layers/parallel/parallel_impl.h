/* What the parallel layers share. For layers/parallel alone. */
#ifndef WF_LAYERS_PARALLEL_IMPL_H
#define WF_LAYERS_PARALLEL_IMPL_H

#include "comm/comm_author.h"
#include "comm/mesh_author.h"
#include "core/tensor_author.h"
#include "layers/form.h"
#include "layers/layer_author.h"
#include "layers/serial/serial_impl.h"

/* Dense arrays of parts of activations, for kernels that take nothing else. */

/* Memory that holds a box of an activation, channels-last. */
typedef struct wf_field {
    char *data;
    wf_dtype dtype;
    wf_box box;
} wf_field;

/* A dense array of a part: where it lies, or in memory of the pool. */
typedef struct wf_block_of {
    wf_array array;
    size_t bytes; /* taken from the pool; 0: none */
} wf_block_of;

/* The part lies dense in memory. */
bool wf_field_dense(const wf_field *field, wf_box part);
/* `load`: with what is there. After a failure too, the block is to be given back. */
wf_status wf_block_gather(wf_ctx *ctx, const wf_field *field, wf_box part, bool load, wf_block_of *block) WF_NODISCARD;
/* What was written to the block goes where the part is. */
wf_status wf_block_scatter(wf_ctx *ctx, const wf_field *field, wf_box part, const wf_block_of *block) WF_NODISCARD;
void wf_block_give(wf_ctx *ctx, const wf_block_of *block);
/* The first of several sums: what `from` holds of `to`, and 0 elsewhere. */
wf_status wf_field_start(wf_ctx *ctx, const wf_field *from, const wf_field *to) WF_NODISCARD;
/* The elements of `part` from one field to another, or added to what is there. */
wf_status wf_field_copy(wf_ctx *ctx, const wf_field *from, const wf_field *to, wf_box part, bool add) WF_NODISCARD;

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

/* What spatially parallel layers share: who has and needs which part of an image, and how parts are computed while
 * halos travel.
 *
 * Boxes of activations [N,C,...] are local in dimension 0 and global in the others. A layer makes outputs
 * from inputs; an index map says which inputs an output reads. Its inverse, inputs' gradients from outputs' gradients,
 * is a map as well, so one mechanism serves both directions of convolution and of transposed convolution.
 */

typedef enum wf_index_map_kind {
    WF_INDEX_MAP_WINDOW = 0,  /* an output reads what lies under its window */
    WF_INDEX_MAP_WINDOW_BACK, /* an output lies under the windows of the inputs that it reads: backward-data */
    WF_INDEX_MAP_RESAMPLE,    /* upsampling */
    WF_INDEX_MAP_ALL,         /* every rank reads everything */
    WF_INDEX_MAP_CHAIN,       /* several index maps, one after the other */
} wf_index_map_kind;

typedef struct wf_index_map {
    wf_index_map_kind kind;
    int nd;
    wf_window window[WF_MAX_SPATIAL];
    wf_resample_geom resample;
    int64_t in[WF_MAX_SPATIAL], out[WF_MAX_SPATIAL]; /* global lengths */
    const struct wf_index_map *link;                 /* of a chain: `links` index maps, the first one reads the input */
    int links;
} wf_index_map;

wf_index_map wf_index_map_inverse(const wf_index_map *index_map); /* of windows */
wf_range wf_index_map_reads(const wf_index_map *index_map, int d, wf_range outputs);
/* Nothing of an image, of the samples and channels of `like`. */
wf_box wf_index_map_nothing(wf_box like);
/* What the outputs of a box read; `in` says the samples and channels of the result. */
wf_box wf_index_map_box(const wf_index_map *index_map, wf_box outputs, wf_box in);
/* The window of kernels that compute `out` from `in` alone. */
wf_window wf_index_map_local(const wf_index_map *index_map, int d, wf_range out, wf_range in);

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

/* Channels on the way together with pixels: what each rank along the channel axis has and needs. */
typedef struct wf_halo_channels {
    int64_t all;
    const wf_range *have, *need;
} wf_halo_channels;

/* The exchange that brings every rank what it needs of an array cut like `have` to compute its part of one cut like
 * `want`, which is made by `index_map`. channels NULL: those that a rank has are those that it needs. */
typedef struct wf_halo {
    wf_exchange *exchange; /* NULL: nothing moves between any ranks */
    wf_box need;           /* of this rank */
    double pixels;         /* of each channel and sample that move in all */
} wf_halo;
/* Elements of a sample that move in all. */
wf_status wf_halo_volume(const wf_sharding *have, const wf_index_map *index_map, const wf_sharding *want,
                         double *volume) WF_NODISCARD;
wf_status wf_halo_make(const wf_sharding *have, const wf_index_map *index_map, const wf_sharding *want,
                       const wf_halo_channels *channels, wf_dtype dtype, wf_halo *halo) WF_NODISCARD;

/* A part of what is to be made, and what it reads. */
typedef struct wf_spatial_part {
    wf_box out, in;
    /* `out` and `in`, wider where that spares copies. Outputs that only wide_out has lack inputs; boundaries compute
     * them again. */
    wf_box wide_out, wide_in;
    int64_t at; /* where the copy of `in` starts in the assembled inputs, in elements; -1: reads its own input */
} wf_spatial_part;
#define WF_OUTPUT_REGIONS (1 + 2 * WF_MAX_SPATIAL)
typedef struct wf_output_regions {
    int n;
    wf_spatial_part part[WF_OUTPUT_REGIONS];
    int64_t elements; /* of the assembled inputs */
} wf_output_regions;
/* The interior, which comes first and reads own inputs, and the boundaries; or all at once where the interior is small.
 */
wf_output_regions wf_output_regions_make(const wf_index_map *index_map, wf_box out, wf_box own, wf_box need);

/* An input on its way: begin, compute what needs no halo, end, compute the rest. Or its gradient on the way back.
 *
 *      need-box     own is this rank's input. arriving has the shape of the need-box; only its halo (H) is
 *     +---------+   used, which messages write. The parts of the output are the interior, which reads own, and
 *     |H H H H H|   the boundaries; the inputs of each boundary, of own and of H, are copied to assembled, where
 *     |H+-----+H|   one follows the other (wf_spatial_part.at). Without an interior one boundary is the whole
 *     |H| own |H|   output: assembled has the shape of the need-box, messages write to it, and arriving is NULL.
 *     |H+-----+H|
 *     |H H H H H|   In backward the same arrays hold gradients and the way is reversed: own (which is `back`)
 *     +---------+   collects the gradient of this rank's input, boundaries add to assembled, from there the
 *                   gradients are added to own and to H of arriving, and messages take H to its owners, who add
 *                   it to their `back`. */
typedef struct wf_halo_input {
    const wf_tensor *own; /* dense, channels-last; holds own_box */
    wf_tensor *back;      /* backward: the gradient being accumulated, the same tensor as own */
    wf_box own_box;
    wf_halo halo;
    wf_output_regions parts;
    wf_tensor *arriving; /* holds the need-box while messages travel, of which it uses the halo */
    wf_tensor *assembled;
    bool under_way;
} wf_halo_input;
wf_status wf_halo_input_begin(wf_halo_input *flow) WF_NODISCARD;
/* Waits, and assembles the inputs of the boundaries. */
wf_status wf_halo_input_end(wf_halo_input *flow) WF_NODISCARD;
/* Waits for what is under way, after an error too. */
void wf_halo_input_free(wf_halo_input *flow);
/* For layers that take their input as a whole: the need-box, or where nothing moves the own one, as it is.
 * A handle to be freed. */
wf_tensor *wf_halo_input_whole(const wf_tensor *own, const wf_halo *halo);
/* Its gradient (whose handle is taken) back to where it came from: the gradient of `own`; a handle to be freed. */
wf_tensor *wf_halo_input_return(wf_tensor *whole, const wf_tensor *own, const wf_halo *halo);

/* What a kernel makes of inputs and outputs. */
typedef enum wf_spatial_part_way {
    WF_PART_OUTPUT = 0, /* writes outputs */
    WF_PART_SUM,        /* reads both */
    WF_PART_INPUT,      /* reads outputs, adds to inputs */
} wf_spatial_part_way;

/* Computes with dense arrays of an input and an output box. */
typedef struct wf_spatial_part_arrays {
    wf_box in_box, out_box;
    wf_array in, out, beside;
    bool again; /* a sum over the same outputs as before, with other inputs */
} wf_spatial_part_arrays;
typedef wf_status (*wf_spatial_part_kernel)(void *user, const wf_spatial_part_arrays *part);
typedef struct wf_spatial_part_run {
    const wf_index_map *index_map;
    wf_spatial_part_way way;
    const wf_tensor *out; /* dense, channels-last; holds out_box */
    wf_box out_box;
    const wf_tensor *beside; /* NULL, or like `out` of another type, made or read with it; what it says may be relative
                                to the box of inputs, which is the same for outputs and, the way back, for inputs */
    wf_spatial_part_kernel kernel;
    void *user;
    wf_exchange *poll; /* moved on between blocks; NULL: none */
} wf_spatial_part_run;
/* Runs the parts that read own inputs (`interior`), or the others. */
wf_status wf_output_regions_run(const wf_spatial_part_run *run, const wf_tensor *own, wf_box own_box,
                                const wf_output_regions *parts, const wf_tensor *assembled, bool interior) WF_NODISCARD;

/* What the depth of a chain is chosen by, in seconds. */
typedef struct wf_chain_costs {
    double message, byte, work;
} wf_chain_costs;
/* Fills what is 0, the same on every rank of a stage. Collective over the stage's ranks where something is 0. */
wf_status wf_chain_costs_complete(const wf_mesh *mesh, wf_chain_costs *costs) WF_NODISCARD;

/* What is inside while the input's halo travels, which it begins to where it has not; then the rest. */
wf_status wf_halo_input_run(wf_halo_input *flow, const wf_spatial_part_run *run) WF_NODISCARD;
/* Backward (WF_PART_INPUT) to `back`: the boundaries first; the part that other ranks own is sent to them while the
 * interior is computed, and what other ranks computed of own inputs is added in the order of ranks. */
wf_status wf_halo_input_run_back(wf_halo_input *flow, const wf_spatial_part_run *run) WF_NODISCARD;

/* Layers without parameters whose outputs read inputs by an index map: pooling and upsampling. */

typedef struct wf_window_op_call wf_window_op_call;
/* The kernel on one part. `beside` has rank 0 where the call has no index. */
typedef wf_status (*wf_window_op_kernel)(const wf_window_op_call *call, wf_ctx *ctx,
                                         const wf_spatial_part_arrays *part);

/* One application: what backward is told. The call of a layer starts with this. */
struct wf_window_op_call {
    const wf_mesh *mesh;
    wf_index_map index_map;
    wf_halo halo;
    wf_box in, out;               /* of this rank */
    wf_window_op_kernel forward;  /* writes outputs */
    wf_window_op_kernel backward; /* adds to inputs' gradients */
    bool indexed;                 /* outputs come with i32, which backward gets */
};

/* With the map's kind and windows set: its lengths, the halo, the boxes, and the output's layout for outputs of this
 * global shape. `in`: how x is cut. */
wf_status wf_window_op_plan(wf_window_op_call *call, const wf_var *x, const wf_sharding *in, wf_shape y,
                            wf_layout *layout) WF_NODISCARD;
/* The interior is computed while halos travel. The call is `bytes` long; op's backward is wf_window_op_backward, or one
 * that knows better. */
wf_var *wf_window_op_apply(wf_layer *layer, wf_var *x, const wf_op *op, const wf_window_op_call *call, size_t bytes,
                           const wf_layout *layout);
/* Sends gradients of inputs that other ranks own first, and computes the interior while they travel. */
wf_status wf_window_op_backward(wf_node *node) WF_NODISCARD;

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

typedef struct wf_mesh_conv {
    wf_conv_state conv;
    const wf_mesh *mesh;
    bool by_channels, by_pixels;
    wf_channel_split split; /* without channels: every rank has all of them */
    wf_channel_local local;
} wf_mesh_conv;

/* One application: what backward is told. Boxes hold the channels of tensors that are computed with. */
typedef struct wf_mesh_call {
    const wf_mesh_conv *conv;
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
    const wf_mesh_conv *conv;
    const wf_index_map *index_map;
    wf_array w, bias;
    const wf_epilogue *epilogue; /* NULL: none */
} wf_output_run;
/* A wf_spatial_part_kernel; user: wf_output_run. */
wf_status wf_mesh_conv_output(void *user, const wf_spatial_part_arrays *arrays) WF_NODISCARD;
/* The kernels' geometry, but for groups, between these boxes. */
wf_conv_geom wf_mesh_conv_geom(const wf_index_map *index_map, wf_box out, wf_box in);
/* Bias and activation are applied while outputs are computed. */
bool wf_mesh_conv_in_one_pass(const wf_mesh_conv *conv);

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

#endif
