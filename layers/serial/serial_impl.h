/* Parts of serial layers that several of them, or their parallel forms, use. For layers/serial and layers/parallel. */
#ifndef WF_LAYERS_SERIAL_IMPL_H
#define WF_LAYERS_SERIAL_IMPL_H

#include "comm/mesh.h"
#include "core/window.h"
#include "layers/conv.h"
#include "layers/embedding.h"
#include "layers/layer_author.h"
#include "layers/linear.h"
#include "layers/norm.h"
#include "layers/pool.h"
#include "layers/upsample.h"
#include "layers/window/window_impl.h"

/* The activation and noise that convolution and normalisation apply in the pass that makes their output. */

typedef struct wf_epilogue_opts {
    wf_act act;
    double slope, noise;
} wf_epilogue_opts;

/* Checks the options of a layer `what` and fills in the default slope. */
wf_status wf_epilogue_check(const char *what, wf_epilogue_opts *opts) WF_NODISCARD;
/* What the options mean for the output y on this tape: no noise in evaluation; random numbers for y's part. */
wf_epilogue wf_epilogue_on(const wf_epilogue_opts *opts, wf_tape *tape, const wf_tensor *y);
/* That of a box of the output, whose samples count from this rank's first. */
wf_epilogue wf_epilogue_part(const wf_epilogue *epilogue, wf_box out);
/* Returns true if backward needs y: an activation follows. Noise alone is added and has no derivative of its own. */
bool wf_epilogue_acts(const wf_epilogue *epilogue);

/* The boundary of a layer, among its options. Its list of channels is copied behind the layer's state. */

/* WF_ERR_ARGUMENT, which names the layer, for a boundary that images of nd spatial dimensions cannot have. */
wf_status wf_boundary_check_layer(const char *name, const wf_boundary *boundary, int nd) WF_NODISCARD;
size_t wf_boundary_list_bytes(const wf_boundary *boundary);
/* The list goes to memory of that many bytes. */
void wf_boundary_keep_list(wf_boundary *boundary, void *memory);
/* Adds it to the options in words, if it is given. */
void wf_boundary_note(wf_layer *layer, const wf_boundary *boundary, int nd);

/* What the forms of a convolution share: options, geometry, shapes, parameters. The serial, spatial and other forms
 * differ in how forward and backward run. */

/* The state of a convolution layer starts with this. */
typedef struct wf_conv_state {
    const char *name;
    wf_conv_opts opts; /* as they were given */
    bool transposed;   /* the backward-data of the convolution from its output to its input */
    int64_t in, out;
    wf_conv_geom geom;
    int64_t output_pad[WF_MAX_SPATIAL];
    wf_epilogue_opts epilogue;
    wf_param *w, *b; /* b NULL: no bias */
} wf_conv_state;

extern const wf_layer_kind wf_conv_serial;

/* The option `nd` of layers with spatial dimensions: 0 becomes 2, its default. WF_ERR_ARGUMENT, which names `what`, if
 * it is not 1 to 3. */
wf_status wf_nd_check(const char *what, int *nd) WF_NODISCARD;
/* Checks the options and fills in the state of a form `name` with nd spatial dimensions, but for its parameters. */
wf_status wf_conv_state_make(const char *name, int nd, bool transposed, const wf_conv_opts *opts,
                             wf_conv_state *state) WF_NODISCARD;
/* A layer of this kind whose state is `bytes` long and starts with a copy of *state, with parameters W and b. */
wf_layer *wf_conv_layer(wf_ctx *ctx, const wf_layer_kind *kind, const wf_conv_opts *opts, const wf_conv_state *state,
                        size_t bytes);
wf_window wf_conv_window(const wf_conv_geom *geom, int d);
/* The map from an input of these lengths to its output, with the boundary. */
wf_status wf_conv_map(const wf_layer *layer, wf_shape in, wf_shape out, wf_index_map *index_map) WF_NODISCARD;
/* A serial convolution whose input goes on beyond the edges: y, and the gradients, from parts. */
wf_var *wf_conv_beyond(wf_layer *layer, wf_var *x, const wf_index_map *index_map, wf_tensor *y);
/* The output for x as if it had this shape (the global one). Checks x. */
wf_status wf_conv_output_shape(const wf_layer *layer, const wf_var *x, wf_shape shape, wf_shape *y) WF_NODISCARD;

/* The serial form of the fully connected layer, for those that swap it. */

extern const wf_layer_kind wf_linear_serial;
/* The options of such a layer. */
wf_linear_opts wf_linear_options(const wf_layer *layer);

extern const wf_layer_kind wf_embedding_serial;
wf_embedding_opts wf_embedding_options(const wf_layer *layer);
/* The layer has the rows from `first` on, as many as its parameter; the ranks of `comm`, those of the mesh's channel
 * axis, have the others. */
void wf_embedding_cut(wf_layer *layer, const wf_mesh *mesh, wf_comm *comm, int64_t first);

/* Batch normalisation with the statistics of several ranks: what comes between computing and using them. */

/* All zero: this rank's statistics alone. A merge is owned by its layer. The arrays have K columns, the same number on
 * all ranks, each of which is merged by itself: in batch normalisation the channels. Of x the context, the shape and
 * the layout are read, never the elements; without a layout it is this rank's own samples. Both functions are called in
 * training alone, and are collective over the ranks that share statistics (layers/parallel/sync_norm.c makes merges).
 */
typedef struct wf_norm_merge {
    wf_comm *comm; /* whose ranks are told of a failure on one of them */
    /* mean and m2 of x (rows 0 and 1 of stats [2,K]), of which this rank has `count` elements per column, become those
     * of all that share statistics, and `all` (f64 scalar) the count of those. */
    wf_status (*stats)(void *user, const wf_tensor *x, double count, const wf_array *stats, const wf_array *all);
    /* Sums of g and g xhat (rows of [2,K]) become those of all. */
    wf_status (*sums)(void *user, const wf_tensor *x, const wf_array *sums);
    void (*free)(void *user);
    void *user;
} wf_norm_merge;

/* Takes `merge`, even on failure. */
wf_layer *wf_batchnorm_merged(wf_ctx *ctx, wf_batchnorm_opts opts, wf_norm_merge merge);

/* The layer is a batch normalisation, merged or not. */
bool wf_norm_is(const wf_layer *layer);
bool wf_norm_is_merged(const wf_layer *layer);
/* The options of a batch normalisation. */
wf_batchnorm_opts wf_norm_options(const wf_layer *layer);
/* From now on a batch normalisation that was not merged shares its statistics; takes `merge`. Parameters, name and path
 * stay. */
void wf_norm_set_merge(wf_layer *layer, wf_norm_merge merge);
/* Makes the layer take inputs that hold only these channels; the caller shards the parameters in the same way. */
void wf_norm_set_own_channels(wf_layer *layer, wf_range own);

/* From now on running statistics wait for the commit: chunk after chunk is noted, and the commit lets them follow the
 * statistics of all together, once. Off: what is noted is forgotten, and they follow every batch again. */
wf_status wf_norm_defer(wf_layer *layer, bool on) WF_NODISCARD;
wf_status wf_norm_commit(wf_layer *layer) WF_NODISCARD;

/* --- norm_deferred.c: what is noted --- */
typedef struct wf_norm_chunks wf_norm_chunks;
typedef struct wf_norm_running {
    wf_tensor *mean, *var;
} wf_norm_running;
wf_norm_chunks *wf_norm_chunks_new(wf_ctx *ctx);
void wf_norm_chunks_free(wf_norm_chunks *chunks);
void wf_norm_chunks_clear(wf_norm_chunks *chunks);
wf_status wf_norm_chunks_add(wf_norm_chunks *chunks, wf_ctx *ctx, const wf_array *mean, const wf_array *m2,
                             wf_count count) WF_NODISCARD;
/* Lets the running statistics follow the chunks, and forgets the chunks. */
wf_status wf_norm_chunks_commit(wf_norm_chunks *chunks, wf_ctx *ctx, double decay,
                                const wf_norm_running *running) WF_NODISCARD;

/* Row `row` of a [rows, columns] array. */
wf_array wf_norm_row(const wf_array *rows, int64_t row);

/* --- group_norm.c ------------------------------------------------------------------------------------------------- */

/* How the ranks along these axes of a mesh (a bit each), which share groups, put their sums together. Both functions
 * are collective over those ranks. Arrays are those of the kernel table. */
typedef struct wf_group_merge {
    const wf_mesh *mesh; /* NULL: groups are whole on every rank */
    /* sums [2,K] of whole groups, from x and the geometry in `args`, which says what this rank has of them. */
    wf_status (*stats)(const wf_mesh *mesh, unsigned axes, wf_ctx *ctx, const wf_group_norm_args *args,
                       const wf_array *sums);
    /* Sums [2,K] become those of all. */
    wf_status (*sums)(const wf_mesh *mesh, unsigned axes, const wf_array *sums);
} wf_group_merge;

/* The layer is a layer, RMS, group or instance normalisation, with a merge or without. */
bool wf_group_norm_is(const wf_layer *layer);
/* The channels over which inputs are grouped; 0: the last dimensions are. */
int64_t wf_group_norm_channels(const wf_layer *layer);
/* From now on groups may be cut. Parameters, name and path stay. NULL passes. */
wf_layer *wf_group_norm_merged(wf_layer *layer, wf_group_merge merge);

/* What the serial and the spatial form of pooling share: options, geometry, shapes. */

/* The state of a pooling layer starts with this. */
typedef struct wf_pool_state {
    const char *name;
    wf_pool_opts opts; /* as they were given */
    wf_pool_geom geom; /* nd 0: one window over the whole input */
    bool ceil;
    wf_shape size; /* adaptive: the outputs of each spatial dimension, 0: as many as inputs; else rank 0 */
} wf_pool_state;

extern const wf_layer_kind wf_pool_serial;

/* A layer of this kind whose state is `bytes` long and starts with a wf_pool_state. opts NULL: a global pool, nd 0. */
wf_layer *wf_pool_layer(wf_ctx *ctx, const wf_layer_kind *kind, const char *name, wf_pool_kind pool, int nd,
                        const wf_pool_opts *opts, size_t bytes);
/* An adaptive maximum, whose state is as long. */
wf_layer *wf_pool_adaptive_layer(wf_ctx *ctx, const wf_layer_kind *kind, const char *name, wf_shape size, size_t bytes);
/* Kernels, strides, dilations and pads of geom->nd dimensions. Checks them. */
wf_status wf_pool_geometry(const wf_pool_opts *opts, const char *name, wf_pool_geom *geom) WF_NODISCARD;
wf_window wf_pool_window(const wf_pool_geom *geom, int d);
/* Geometry and output for x as if it had this shape (the global one). Checks x. */
wf_status wf_pool_fit(const wf_layer *layer, const wf_var *x, wf_shape shape, wf_pool_geom *geom,
                      wf_shape *y) WF_NODISCARD;

/* One application, part by part: what backward is told. */
typedef struct wf_pool_call {
    wf_window_op_call plain;
    wf_pool_geom geom;
    const wf_tensor *places; /* forward writes them there, counted in the whole image; NULL: not wanted */
} wf_pool_call;
/* The layer takes maxima, whose places can be told: a check for `wf_max_pool_with_places`. */
wf_status wf_pool_check_places(const wf_layer *layer) WF_NODISCARD;
/* Uninitialised places of y; NULL for NULL. */
wf_tensor *wf_pool_new_places(const wf_tensor *y);
/* Forward of the serial layer; *places is NULL or a handle to be freed. places NULL: they are not wanted. */
wf_var *wf_pool_run(wf_layer *layer, wf_var *x, wf_tensor **places);
/* The kernels, and the map but for its lengths: of this kind, or that of the adaptive windows. */
wf_pool_call wf_pool_call_of(const wf_pool_geom *geom, wf_index_map_kind kind);

/* What the serial and the spatial form of upsampling share. */

/* The state of an upsampling layer starts with this. */
typedef struct wf_upsample_state {
    const char *name;
    wf_upsample_opts opts; /* as they were given */
    wf_resample_geom geom; /* without lengths and places */
} wf_upsample_state;

extern const wf_layer_kind wf_upsample_serial;

/* A layer of this kind whose state is `bytes` long and starts with a wf_upsample_state. */
wf_layer *wf_upsample_layer(wf_ctx *ctx, const wf_layer_kind *kind, const char *name, int nd,
                            const wf_upsample_opts *opts, size_t bytes);
/* Geometry and output for x as if it had this shape (the global one). Checks x. */
wf_status wf_upsample_fit(const wf_layer *layer, const wf_var *x, wf_shape shape, wf_resample_geom *geom,
                          wf_shape *y) WF_NODISCARD;

/* What the serial and the spatial form of resampling share. */

/* Rows of a table on the device (wf_taps_args). */
typedef struct wf_taps {
    wf_tensor *start, *weight;
} wf_taps;

/* The weights between these lengths. */
typedef struct wf_resize_table {
    struct wf_resize_table *next;
    wf_dtype dtype; /* of weights */
    int nd;
    int64_t in[WF_MAX_SPATIAL], out[WF_MAX_SPATIAL];
    bool same[WF_MAX_SPATIAL];       /* outputs are the inputs */
    wf_taps taps[WF_MAX_SPATIAL][2]; /* of outputs, and of the gradients of inputs */
} wf_resize_table;

/* The state of a resampling layer starts with this. */
typedef struct wf_resize_state {
    const char *name;
    wf_resize_opts opts; /* as they were given */
    int nd;              /* that inputs must have; 0: any */
    int64_t size[WF_MAX_SPATIAL];
    wf_resize_geom geom;     /* without lengths */
    wf_resize_table *tables; /* one for each pair of sizes; they live as long as the layer */
} wf_resize_state;

/* One application: what backward is told. The table is the layer's, which outlives what is differentiated through it.
 */
typedef struct wf_resize_call {
    wf_window_op_call plain;
    const wf_resize_table *table;
} wf_resize_call;

extern const wf_layer_kind wf_resize_serial;

/* A layer of this kind whose state is `bytes` long and starts with a wf_resize_state, which wf_resize_free empties. */
wf_layer *wf_resize_layer(wf_ctx *ctx, const wf_layer_kind *kind, const char *name, int nd, const wf_resize_opts *opts,
                          size_t bytes);
void wf_resize_free(wf_layer *layer);
/* The options of adaptive average pooling. */
wf_status wf_adaptive_opts(const char *name, wf_shape size, wf_resize_opts *opts) WF_NODISCARD;
/* The call but for lengths and boxes, and the output, for x as if it had this shape (the global one). Checks x. */
wf_status wf_resize_fit(const wf_layer *layer, const wf_var *x, wf_shape shape, wf_resize_call *call,
                        wf_shape *y) WF_NODISCARD;

/* The ends of a skip connection, for pipelines. */
bool wf_skip_is_stash(const wf_layer *layer);
bool wf_skip_is_pop(const wf_layer *layer);
/* True for wf_skip_inputs, which is a stash of several places. */
bool wf_skip_is_inputs(const wf_layer *layer);
/* The names of an end, each a place for one value. */
int wf_skip_count(const wf_layer *end);
const char *wf_skip_name(const wf_layer *end, int i);
/* The stash of place i of a pop, and its place there. WF_ERR_STATE where there is none, or not one alone. */
wf_layer *wf_skip_stash_of(const wf_layer *pop, int i, int *at);
/* What the next application takes at place i: of a stash's pop, or of a pop, before that of its stash. */
void wf_skip_keep(wf_layer *end, int i, wf_var *value);

#endif
