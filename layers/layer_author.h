/* How a layer is written: a wf_layer_kind, a state struct, a constructor. layers/serial/linear.c is the model,
 * docs/tutorial-layer.md the walk through one. For this folder, and for programs with layers of their own. Local, but
 * for what a layer's forward sends. */
#ifndef WF_LAYERS_LAYER_AUTHOR_H
#define WF_LAYERS_LAYER_AUTHOR_H

#include "comm/comm_author.h"
#include "core/opts.h"
#include "core/tape_author.h"
#include "layers/layer.h"

struct wf_part_info;

typedef struct wf_layer_kind {
    const char *name; /* "linear": in errors */
    /* One of the two: of one input, or of the number that the layer takes (wf_layer.least, most). */
    wf_var *(*forward)(wf_layer *layer, wf_var *x);
    wf_var *(*forward_n)(wf_layer *layer, wf_var *const *x, int n);
    void (*free)(wf_layer *layer); /* what state holds beyond plain values; may be NULL */
    /* Set by layers that multiply by their parameters as matrices (linear, convolution): wf_apply casts their inputs to
     * the context's compute type (wf_ctx_set_compute), and they use their parameters by wf_compute_var. Other layers
     * take the type that comes and use wf_param_var. */
    bool computes;
    /* Applies its children one after the other and does nothing else: it may be cut between any two (wf_pipeline). */
    bool chain;
    /* Applies its one child to what it is given and to more (wf_skip_apply): the child may be recomputed, the layer
     * itself not. */
    bool wraps;
    /* Tells what it computes, where a layer with children computes something itself (layers/parallelize_author.h); may
     * be NULL. */
    void (*describe)(const wf_layer *layer, struct wf_part_info *info);
} wf_layer_kind;

#define WF_LAYER_OPTIONS 320

struct wf_layer {
    const wf_layer_kind *kind;
    wf_ctx *ctx;
    wf_layer *parent;
    char *name;      /* in the parent, or of wf_layer_named; NULL for a root without a name */
    char *path;      /* made on demand; NULL when stale */
    uint64_t id;     /* 1 or more, one a layer in this context; draws do not depend on it */
    uint64_t root;   /* of a root without a name, which this number tells from others in draws; 0: it has none yet */
    int least, most; /* inputs; 1 and 1 unless the constructor says otherwise; most 0: any number */
    int n_params, n_children;
    wf_param **params;
    wf_layer **children;
    void *state;
    wf_param **all; /* of wf_layer_params; NULL when stale */
    int64_t n_all;
    wf_var *(*prepare)(const wf_layer *layer, wf_var *x); /* applied to each input before forward; NULL: nothing */
    const wf_mesh *prepare_mesh;                          /* for `prepare`: of wf_parallelize */
    char options[WF_LAYER_OPTIONS];                       /* in words, of wf_layer_note: ranks must have the same */
    int segments;        /* of wf_recompute: 0: none; 1: the layer is one; a chain: so many, the last one recorded */
    bool takes_children; /* its forward applies what wf_module_add gives it; set by the constructor */
    /* The ranks that compute this layer together; borrowed, set by the constructor. wf_apply tells them where this rank
     * fails in forward, or cannot apply the layer because its input failed; wf_backward tells them where backward
     * fails. The layer itself returns its error and no more. NULL: every rank computes it alone. Layers on a mesh give
     * the world of the mesh, though they send along some axes alone: which ones may depend on the input's layout, and
     * ranks along the other axes would wait for the failed one in a later layer or in the optimizer. */
    wf_comm *comm;
    /* This rank has part number `part`, from 0, of `parts` of the layer: stages of a pipeline, ranks of a
     * multi_node_chain. parts 0 or 1: all of it. Files hold all parts together. */
    int part, parts;
};

/* A layer with a zeroed state of state_bytes, which the layer owns. The kind must live as long. The caller frees it
 * with wf_layer_free, also after a constructor that failed half way: the kind's `free` meets members that are NULL.
 * NULL on failure and where ctx is NULL. */
wf_layer *wf_layer_new(wf_ctx *ctx, const wf_layer_kind *kind, size_t state_bytes);
/* The number that tells the draws of this layer's root from those of other roots: 0 for one with a name; of those
 * without, 1 for the first that was given to an optimizer or had values drawn, and so on. */
uint64_t wf_layer_root(const wf_layer *layer);
/* The stream of its random numbers: of that number and the path. */
uint64_t wf_layer_stream(const wf_layer *layer);
/* Sets that number to the one that rank 0 has for the same model; does nothing if the root has a name. */
void wf_layer_set_root(wf_layer *layer, uint64_t root);
/* Records the layer's options as text. wf_multi_node compares the texts of all ranks and reports options that
 * differ; options that show in the shapes of parameters need not be included. At most WF_LAYER_OPTIONS characters
 * are kept. */
void wf_layer_note(wf_layer *layer, const char *format, ...) WF_PRINTF(2, 3);
/* The name of a parameter in files, relative to the layer: that in the serial model, "conv1/W". Valid as long as its
 * path. */
const char *wf_layer_param_name(const wf_layer *layer, const wf_param *param);
/* The number of the part that this rank has of the layer, or of the first layer inside it that is in parts, counted
 * from 1 (wf_layer.part counts from 0); 0: it has all. */
int wf_layer_part(const wf_layer *layer);
/* wf_apply_n with this function in place of the kind's forward, for a layer that another layer applies in its own way.
 * It takes the number of inputs that it is given. */
wf_var *wf_apply_with(wf_layer *layer, wf_var *const *x, int n, wf_forward_n forward, void *user);
/* Adds a parameter, which the layer owns and which has no value before its first use. The name is copied: letters,
 * digits and '_', and no other parameter of the layer has it (neither is checked). NULL on failure. */
wf_param *wf_layer_add_param(wf_layer *layer, const char *name, wf_param_opts opts);

/* True if the layer is a wf_sequential. */
bool wf_sequential_is(const wf_layer *layer);
/* True if the layer is wf_lambda of this function. */
bool wf_lambda_is(const wf_layer *layer, wf_var *(*function)(wf_var *x));

/* Shared by layers and functions. */

/* For layers that compute from whole samples: WF_OK if x is sharded along samples only, or not at all. WF_ERR_SHAPE
 * names the layer, x's layout and the call that would help. */
wf_status wf_layer_check_whole(const char *what, const wf_layer *layer, const wf_var *x) WF_NODISCARD;
/* The value as a dense tensor in the order that convolution, pooling and normalisation need (channels-last from rank
 * 3 on, row-major below). The caller frees the handle. */
wf_tensor *wf_dense_value(const wf_var *x);
/* As wf_redistribute, to a target that is x's own layout along all axes but these (a bit each), on every rank. Along
 * the others shard bounds may stay unknown, and parts need not follow one another, as those of a chunk of a batch do
 * not.
 */
wf_var *wf_redistribute_along(wf_var *x, wf_layout target, unsigned axes);
/* An uninitialised step tensor for an output of this shape (of this rank's part) with x's type. Its layout follows x's:
 * dimension d of the output is dimension from[d] of x, -1 one that is new and whole on every rank. `from` has at least
 * shape.rank entries. The caller frees the handle, or gives it to wf_tape_record. NULL where x is NULL; WF_ERR_SHAPE
 * names `what` and x's layout if it cannot follow. */
wf_tensor *wf_output(const char *what, const wf_var *x, wf_shape shape, wf_order order, const int *from);

#endif
