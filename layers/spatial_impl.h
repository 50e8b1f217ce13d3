/* What spatially parallel layers share: who has and needs which part of an image, and how parts are computed while
 * halos travel.
 *
 * Boxes of activations [N,C,...] are local in dimension 0 and global in the others. A layer makes outputs
 * from inputs; a map says which inputs an output reads. Its inverse, inputs' gradients from outputs' gradients, is a
 * map as well, so one mechanism serves both directions of convolution and of transposed convolution.
 */
#ifndef WF_LAYERS_SPATIAL_IMPL_H
#define WF_LAYERS_SPATIAL_IMPL_H

#include "comm/comm_author.h"
#include "comm/mesh_author.h"
#include "layers/layer_author.h"

typedef enum wf_map_kind {
    WF_MAP_WINDOW = 0,  /* an output reads what lies under its window */
    WF_MAP_WINDOW_BACK, /* an output lies under the windows of the inputs that it reads: backward-data */
    WF_MAP_RESAMPLE,    /* upsampling */
    WF_MAP_ALL,         /* every rank reads everything */
    WF_MAP_CHAIN,       /* several maps, one after the other */
} wf_map_kind;

typedef struct wf_map {
    wf_map_kind kind;
    int nd;
    wf_window window[WF_MAX_SPATIAL];
    wf_resample_geom resample;
    int64_t in[WF_MAX_SPATIAL], out[WF_MAX_SPATIAL]; /* global lengths */
    const struct wf_map *link;                       /* of a chain: `links` maps, the first one reads the input */
    int links;
} wf_map;

wf_map wf_map_inverse(const wf_map *map); /* of windows */
wf_range wf_map_reads(const wf_map *map, int d, wf_range outputs);
/* Nothing of an image, of the samples and channels of `like`. */
wf_box wf_map_nothing(wf_box like);
/* What the outputs of a box read; `in` says the samples and channels of the result. */
wf_box wf_map_box(const wf_map *map, wf_box outputs, wf_box in);
/* The window of kernels that compute `out` from `in` alone. */
wf_window wf_map_local(const wf_map *map, int d, wf_range out, wf_range in);

/* How an activation is cut. */
typedef struct wf_cuts {
    const wf_mesh *mesh;
    int axis[WF_MAX_SPATIAL];           /* that cuts spatial dimension d, or -1 */
    const int64_t *cut[WF_MAX_SPATIAL]; /* NULL where no axis cuts */
    int64_t length[WF_MAX_SPATIAL];
    int64_t channels; /* of the whole */
    wf_box box;       /* of this rank */
} wf_cuts;

/* Which inputs a layer takes. */
typedef enum wf_cuts_taken {
    WF_CUTS_ANY = 0,   /* cut along samples, channels and pixels */
    WF_CUTS_SUMS,      /* and over every split axis of data, depth, height and width, since the layer's gradients are
                          summed over them; channels over the channel axis alone */
    WF_CUTS_SUMS_WHOLE /* the same with whole channels */
} wf_cuts_taken;

/* The error of a layout that a layer `name` cannot take names layer and layout. */
wf_status wf_cuts_check(const wf_layer *layer, const char *name, const wf_mesh *mesh, const wf_var *x,
                        wf_cuts_taken taken) WF_NODISCARD;
/* The cuts of x, the input of a layer `name`, which was checked. An x without a layout is whole. */
wf_status wf_cuts_read(const wf_layer *layer, const char *name, const wf_mesh *mesh, const wf_var *x,
                       wf_cuts *cuts) WF_NODISCARD;
/* Both. */
wf_status wf_cuts_of(const wf_layer *layer, const char *name, const wf_mesh *mesh, const wf_var *x, wf_cuts_taken taken,
                     wf_cuts *cuts) WF_NODISCARD;
/* Those of the outputs, with the same channels: every output is where its centre is. */
wf_status wf_cuts_outputs(const wf_cuts *in, const wf_map *map, wf_cuts *out) WF_NODISCARD;
/* x's layout, with the channels and pixels of these cuts. */
wf_layout wf_cuts_layout(const wf_cuts *cuts, const wf_layout *x);

/* Channels on the way together with pixels: what each rank along the channel axis has and needs. */
typedef struct wf_halo_channels {
    int64_t all;
    const wf_range *have, *need;
} wf_halo_channels;

/* The exchange that brings every rank what it needs of an array cut like `have` to compute its part of one cut like
 * `want`, which is made by `map`. channels NULL: those that a rank has are those that it needs. */
typedef struct wf_halo {
    wf_exchange *exchange; /* NULL: nothing moves between any ranks */
    wf_box need;           /* of this rank */
    double pixels;         /* of each channel and sample that move in all */
} wf_halo;
/* Elements of a sample that move in all. */
wf_status wf_halo_volume(const wf_cuts *have, const wf_map *map, const wf_cuts *want, double *volume) WF_NODISCARD;
wf_status wf_halo_make(const wf_cuts *have, const wf_map *map, const wf_cuts *want, const wf_halo_channels *channels,
                       wf_dtype dtype, wf_halo *halo) WF_NODISCARD;

/* A part of what is to be made, and what it reads. */
typedef struct wf_part {
    wf_box out, in;
    /* The same, wider where that spares copies. Outputs of wide_out alone lack inputs; rims make them anew. */
    wf_box wide_out, wide_in;
    int64_t at; /* where the copy of `in` starts in the assembled inputs, in elements; -1: reads its own input */
} wf_part;
#define WF_PARTS (1 + 2 * WF_MAX_SPATIAL)
typedef struct wf_parts {
    int n;
    wf_part part[WF_PARTS];
    int64_t elements; /* of the assembled inputs */
} wf_parts;
/* The inside, which comes first and reads own inputs, and the rims; or all at once where the inside is small. */
wf_parts wf_parts_make(const wf_map *map, wf_box out, wf_box own, wf_box need);

/* An input on its way: begin, compute what needs no halo, end, compute the rest. Or its gradient on the way back. */
typedef struct wf_inflow {
    const wf_tensor *own; /* dense, channels-last; holds own_box */
    wf_tensor *back;      /* where own is a gradient that comes about: the same */
    wf_box own_box;
    wf_halo halo;
    wf_parts parts;
    wf_tensor *arriving; /* holds the need-box while messages travel, of which it uses the halo */
    wf_tensor *assembled;
    bool under_way;
} wf_inflow;
wf_status wf_inflow_begin(wf_inflow *flow) WF_NODISCARD;
/* Waits, and assembles the inputs of the rims. */
wf_status wf_inflow_end(wf_inflow *flow) WF_NODISCARD;
/* Waits for what is under way, after an error too. */
void wf_inflow_free(wf_inflow *flow);
/* For layers that take their input as a whole: the need-box, or where nothing moves the own one, as it is.
 * A handle to be freed. */
wf_tensor *wf_inflow_whole(const wf_tensor *own, const wf_halo *halo);
/* Its gradient (whose handle is taken) back to where it came from: the gradient of `own`; a handle to be freed. */
wf_tensor *wf_inflow_return(wf_tensor *whole, const wf_tensor *own, const wf_halo *halo);

/* What a kernel makes of inputs and outputs. */
typedef enum wf_part_way {
    WF_PART_OUTPUT = 0, /* writes outputs */
    WF_PART_SUM,        /* reads both */
    WF_PART_INPUT,      /* reads outputs, adds to inputs */
} wf_part_way;

/* Computes with dense arrays of an input and an output box. */
typedef struct wf_part_arrays {
    wf_box in_box, out_box;
    wf_array in, out, beside;
    bool again; /* a sum over the same outputs as before, with other inputs */
} wf_part_arrays;
typedef wf_status (*wf_part_kernel)(void *user, const wf_part_arrays *part);
typedef struct wf_part_run {
    const wf_map *map;
    wf_part_way way;
    const wf_tensor *out; /* dense, channels-last; holds out_box */
    wf_box out_box;
    const wf_tensor *beside; /* NULL, or like `out` of another type, made or read with it; what it says may be relative
                                to the box of inputs, which is the same for outputs and, the way back, for inputs */
    wf_part_kernel kernel;
    void *user;
    wf_exchange *poll; /* moved on between blocks; NULL: none */
} wf_part_run;
/* Runs the parts that read own inputs (`inside`), or the others. */
wf_status wf_parts_run(const wf_part_run *run, const wf_tensor *own, wf_box own_box, const wf_parts *parts,
                       const wf_tensor *assembled, bool inside) WF_NODISCARD;

/* What the depth of a chain is chosen by, in seconds. */
typedef struct wf_chain_costs {
    double message, byte, work;
} wf_chain_costs;
/* Fills what is 0, the same on every rank. Collective over the mesh where something is 0. */
wf_status wf_chain_costs_complete(const wf_mesh *mesh, wf_chain_costs *costs) WF_NODISCARD;

/* What is inside while the input's halo travels, which it begins to where it has not; then the rest. */
wf_status wf_inflow_run(wf_inflow *flow, const wf_part_run *run) WF_NODISCARD;
/* The way back (WF_PART_INPUT) to `back`: the rims first; what is not own goes to its owners while the inside comes
 * about, and what others made of own inputs is added in the order of ranks. */
wf_status wf_inflow_run_back(wf_inflow *flow, const wf_part_run *run) WF_NODISCARD;

/* Layers without parameters whose outputs read inputs by a map: pooling and upsampling. */

typedef struct wf_plain_call wf_plain_call;
/* The kernel on one part. `beside` has rank 0 where the call has no index. */
typedef wf_status (*wf_plain_kernel)(const wf_plain_call *call, wf_ctx *ctx, const wf_part_arrays *part);

/* One application: what backward is told. The call of a layer starts with this. */
struct wf_plain_call {
    const wf_mesh *mesh;
    wf_map map;
    wf_halo halo;
    wf_box in, out;           /* of this rank */
    wf_plain_kernel forward;  /* writes outputs */
    wf_plain_kernel backward; /* adds to inputs' gradients */
    bool indexed;             /* outputs come with i32, which backward gets */
};

/* With the map's kind and windows set: its lengths, the halo, the boxes, and the output's layout for outputs of this
 * global shape. `in`: how x is cut. */
wf_status wf_plain_plan(wf_plain_call *call, const wf_var *x, const wf_cuts *in, wf_shape y,
                        wf_layout *layout) WF_NODISCARD;
/* The inside is computed while halos travel. The call is `bytes` long; op's backward is wf_plain_backward, or one that
 * knows better. */
wf_var *wf_plain_apply(wf_layer *layer, wf_var *x, const wf_op *op, const wf_plain_call *call, size_t bytes,
                       const wf_layout *layout);
/* Gradients of what others own leave first, and the inside comes about while they travel. */
wf_status wf_plain_backward(wf_node *node) WF_NODISCARD;

/* One layer of a chain: everything that it reads is in its input already. */
typedef struct wf_chain_step {
    wf_map map;
    wf_box x_box, y_box;
    wf_layout layout; /* of the output */
} wf_chain_step;
bool wf_is_spatial_conv(const wf_layer *layer, const wf_mesh *mesh);
int64_t wf_spatial_conv_channels(const wf_layer *layer); /* of its output */
/* The layer's map, and the multiplications of one output, for an input x as if it had this shape. Checks x. */
wf_status wf_spatial_conv_map(const wf_layer *layer, const wf_var *x, wf_shape shape, wf_map *map, double *work,
                              wf_shape *y) WF_NODISCARD;
/* wf_apply in a chain. */
wf_var *wf_spatial_conv_apply(wf_layer *layer, wf_var *x, const wf_chain_step *step);

/* Reports a failure to the mesh, where others may wait for this rank; returns the status. */
wf_status wf_spatial_failed(const wf_mesh *mesh, wf_status status);

#endif
