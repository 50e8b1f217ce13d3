/* For layers whose outputs read windows of their inputs: which inputs an output reads, and how outputs are
 * computed part by part while inputs arrive or are continued beyond the edges. For layers/serial and layers/parallel.
 *
 * Boxes of activations [N,C,...] are local in dimension 0 and global in the others. A layer makes outputs
 * from inputs; an index map says which inputs an output reads. Its inverse, inputs' gradients from outputs' gradients,
 * is a map as well, so one mechanism serves both directions of convolution and of transposed convolution.
 */
#ifndef WF_LAYERS_WINDOW_IMPL_H
#define WF_LAYERS_WINDOW_IMPL_H

#include "comm/exchange_author.h"
#include "core/boundary_author.h"
#include "core/tensor_author.h"
#include "core/window.h"
#include "layers/layer_author.h"
#include "layers/resize.h"

/* Resampling to any length, dimension by dimension. */
typedef struct wf_resize_geom {
    int nd;
    wf_resize_mode mode;
    wf_resize_places places; /* not the default */
    wf_resize_rounding rounding;
    double cubic;
    bool antialias;
    int64_t in[WF_MAX_SPATIAL], out[WF_MAX_SPATIAL]; /* of the whole */
    double scale[WF_MAX_SPATIAL];                    /* 0: out / in */
} wf_resize_geom;
/* The inputs that output o reads along dimension d; both ends never fall as o grows. */
wf_range wf_resize_reads(const wf_resize_geom *geom, int d, int64_t o);
/* The weight of each of those inputs. */
void wf_resize_weights(const wf_resize_geom *geom, int d, int64_t o, double *weight);
/* The first output at or after the place of input a. */
int64_t wf_resize_place(const wf_resize_geom *geom, int d, int64_t a);

typedef enum wf_index_map_kind {
    WF_INDEX_MAP_WINDOW = 0,    /* an output reads what lies under its window */
    WF_INDEX_MAP_WINDOW_BACK,   /* an output lies under the windows of the inputs that it reads: backward-data */
    WF_INDEX_MAP_RESAMPLE,      /* upsampling */
    WF_INDEX_MAP_RESIZE,        /* resampling to any length */
    WF_INDEX_MAP_NEIGHBOURHOOD, /* attention to pixels around: the window's kernel and dilation, moved inside at borders
                                   (core/neighbourhood_author.h) */
    WF_INDEX_MAP_ALL,           /* every rank reads everything */
    WF_INDEX_MAP_CHAIN,         /* several index maps, one after the other */
} wf_index_map_kind;

typedef struct wf_index_map {
    wf_index_map_kind kind;
    int nd;
    wf_window window[WF_MAX_SPATIAL];
    wf_resample_geom resample;
    wf_resize_geom resize;
    int64_t in[WF_MAX_SPATIAL], out[WF_MAX_SPATIAL]; /* global lengths */
    const struct wf_index_map *link;                 /* of a chain: `links` index maps, the first one reads the input */
    int links;
    /* Beyond the edges lie lo[d] elements before the first input and hi[d] after the last, of dimensions 2 + d of this
     * boundary; NULL: none. resample.in counts them. */
    const wf_boundary *boundary;
    int64_t lo[WF_MAX_SPATIAL], hi[WF_MAX_SPATIAL];
    /* A link of a chain over a circular dimension: its inputs and outputs go on without an end. */
    bool round[WF_MAX_SPATIAL];
} wf_index_map;

/* Inputs go on beyond every edge that is not the default one, as far as outputs read them: for a map with all but a
 * boundary, which is borrowed. NULL is fine. */
void wf_index_map_continue(wf_index_map *index_map, const wf_boundary *boundary);
/* An edge of the boundary is not the default one. */
bool wf_boundary_given(const wf_boundary *boundary, int nd);
wf_index_map wf_index_map_inverse(const wf_index_map *index_map); /* of windows, without a boundary */
wf_range wf_index_map_reads(const wf_index_map *index_map, int d, wf_range outputs);
/* Nothing of an image, of the samples and channels of `like`. */
wf_box wf_index_map_nothing(wf_box like);
/* What the outputs of a box read; `in` says the samples and channels of the result. */
wf_box wf_index_map_box(const wf_index_map *index_map, wf_box outputs, wf_box in);
/* The window of kernels that compute `out` from `in` alone. */
wf_window wf_index_map_local(const wf_index_map *index_map, int d, wf_range out, wf_range in);
/* The geometry of convolution kernels between these boxes, but for groups; that of upsampling kernels. */
wf_conv_geom wf_index_map_geom(const wf_index_map *index_map, wf_box out, wf_box in);
wf_resample_geom wf_index_map_resample(const wf_index_map *index_map, wf_box out, wf_box in);

/* What outputs read beyond what a rank has. An exchange brings it; without one it is nothing, or the continuation of
 * own inputs beyond the edges, which is copied. */
typedef struct wf_halo {
    wf_exchange *exchange;      /* NULL: nothing moves between any ranks */
    wf_box need;                /* of this rank */
    double pixels;              /* of each channel and sample that move in all */
    const wf_boundary *beyond;  /* without an exchange: makes the need of own inputs; NULL: it is among them */
    wf_shape whole;             /* beyond: of the array that goes on */
    int64_t first[WF_MAX_RANK]; /* beyond: the coordinates of its first element */
} wf_halo;
/* A need without an exchange, whose box is set, comes of own inputs and the boundary, which is borrowed. The errors of
 * wf_boundary_pieces. */
wf_status wf_halo_continue(wf_halo *halo, const wf_boundary *boundary, wf_shape whole) WF_NODISCARD;
/* Something arrives, or is copied. */
bool wf_halo_needed(const wf_halo *halo);
/* The slabs of the exchange, in the coordinates of `need`. */
wf_slabs wf_halo_slabs(const wf_halo *halo);

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
/* Slab i, of which the tensor holds all. */
wf_field wf_slabs_field(const wf_slabs *slabs, int i, const wf_tensor *tensor);
/* The first of several sums: what `from` holds of `to`, and 0 elsewhere. */
wf_status wf_field_start(wf_ctx *ctx, const wf_field *from, const wf_field *to) WF_NODISCARD;
/* The elements of `part` from one field to another, or added to what is there. */
wf_status wf_field_copy(wf_ctx *ctx, const wf_field *from, const wf_field *to, wf_box part, bool add) WF_NODISCARD;
/* Continuations of own inputs (halo->beyond): the elements of to's box, or the gradients of `place` added to those of
 * their sources. */
wf_status wf_field_read(wf_ctx *ctx, const wf_halo *halo, const wf_field *from, const wf_field *to) WF_NODISCARD;
wf_status wf_field_add(wf_ctx *ctx, const wf_halo *halo, const wf_field *place, const wf_field *source) WF_NODISCARD;

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
 *      need-box     own is this rank's input. arriving has the halo (H) alone, in slabs, which messages
 *     +---------+   write. The parts of the output are the interior, which reads own, and the
 *     |H H H H H|   boundaries; the inputs of each boundary, of own and of H, are copied to assembled, where
 *     |H+-----+H|   one follows the other (wf_spatial_part.at). Without an interior one boundary is the whole
 *     |H| own |H|   output: assembled has the shape of the need-box, messages write to it, and arriving is NULL.
 *     |H+-----+H|
 *     |H H H H H|   In backward the same arrays hold gradients and the way is reversed: own (which is `back`)
 *     +---------+   collects the gradient of this rank's input, boundaries add to assembled, from there the
 *                   gradients are added to own and to H of arriving, and messages take H to its owners, who add
 *                   it to their `back`.
 *
 * Without an exchange, where own inputs go on beyond the edges, there is no arriving: pieces of own are copied to
 * assembled, and added back from there. */
typedef struct wf_halo_input {
    const wf_tensor *own; /* dense, channels-last; holds own_box */
    wf_tensor *back;      /* backward: the gradient being accumulated, the same tensor as own */
    wf_box own_box;
    wf_halo halo;
    wf_output_regions parts;
    wf_tensor *arriving; /* the slabs of the halo (wf_exchange_slabs) while messages travel */
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
wf_tensor *wf_halo_input_whole(const wf_tensor *own, wf_box own_box, const wf_halo *halo);
/* Its gradient (whose handle is taken) back to where it came from: the gradient of `own`; a handle to be freed. */
wf_tensor *wf_halo_input_return(wf_tensor *whole, const wf_tensor *own, wf_box own_box, const wf_halo *halo);

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

/* What is inside while the input's halo travels, which it begins to where it has not; then the rest. */
wf_status wf_halo_input_run(wf_halo_input *flow, const wf_spatial_part_run *run) WF_NODISCARD;
/* Backward (WF_PART_INPUT) to `back`: the boundaries first; the part that other ranks own is sent to them while the
 * interior is computed, and what other ranks computed of own inputs is added in the order of ranks. */
wf_status wf_halo_input_run_back(wf_halo_input *flow, const wf_spatial_part_run *run) WF_NODISCARD;

/* Gradients of inputs whose outputs also read what is beyond them. */
typedef struct wf_slab_run {
    wf_ctx *ctx;
    const wf_index_map *back; /* inputs from outputs */
    const wf_halo *halo;
    wf_spatial_part_kernel kernel; /* writes gradients of a box of inputs */
    void *user;
} wf_slab_run;
/* Writes dx, of own inputs, from dy, of all own outputs; what is beyond has no exchange. */
wf_status wf_slabs_run_back(const wf_slab_run *run, const wf_field *dy, const wf_field *dx) WF_NODISCARD;
/* In two steps for an exchange in reverse: writes the slabs of the halo, which are sent back, but for what of them is
 * `own`; and dx, but for what comes back. */
wf_status wf_slabs_run_halo(const wf_slab_run *run, const wf_field *dy, wf_box own,
                            const wf_tensor *slabs) WF_NODISCARD;
wf_status wf_slabs_run_own(const wf_slab_run *run, const wf_field *dy, const wf_field *dx) WF_NODISCARD;

/* Layers without parameters whose outputs read inputs by an index map: pooling and upsampling. */

typedef struct wf_window_op_call wf_window_op_call;
/* The kernel on one part. `beside` has rank 0 where the call has no index. */
typedef wf_status (*wf_window_op_kernel)(const wf_window_op_call *call, wf_ctx *ctx,
                                         const wf_spatial_part_arrays *part);

/* One application: what backward is told. The call of a layer starts with this. */
struct wf_window_op_call {
    wf_index_map index_map;
    wf_halo halo;
    wf_box in, out;               /* of this rank */
    wf_window_op_kernel forward;  /* writes outputs */
    wf_window_op_kernel backward; /* adds to inputs' gradients */
    bool indexed;                 /* outputs come with i32, which backward gets */
};

/* Writes y, whose handle it takes (NULL after an error). The interior is computed while halos travel. The call is
 * `bytes` long; op's backward is wf_window_op_backward, or one that knows better. */
wf_var *wf_window_op_apply(wf_layer *layer, wf_var *x, const wf_op *op, const wf_window_op_call *call, size_t bytes,
                           wf_tensor *y);
/* Sends gradients of inputs that other ranks own first, and computes the interior while they travel. */
wf_status wf_window_op_backward(wf_node *node) WF_NODISCARD;
/* For a layer on one rank, with the map's kind and windows set: its lengths, boundary, need and boxes, for an output of
 * this shape. */
wf_status wf_window_op_plan_whole(wf_window_op_call *call, const wf_var *x, const wf_boundary *boundary,
                                  wf_shape y) WF_NODISCARD;
/* The kernels of upsampling, whose call has nothing else. */
wf_status wf_window_op_resample(const wf_window_op_call *call, wf_ctx *ctx,
                                const wf_spatial_part_arrays *part) WF_NODISCARD;
wf_status wf_window_op_resample_back(const wf_window_op_call *call, wf_ctx *ctx,
                                     const wf_spatial_part_arrays *part) WF_NODISCARD;

#endif
