/* The internals of a parameter, for layers, tape and optimizers. */
#ifndef WF_CORE_PARAM_AUTHOR_H
#define WF_CORE_PARAM_AUTHOR_H

#include "core/param.h"
#include "core/tensor_author.h"

struct wf_param {
    wf_ctx *ctx;
    char *name;
    char *path;  /* made by wf_param_path; NULL when stale */
    void *owner; /* the layer; path_of(owner) gives its path and stream */
    const char *(*path_of)(void *owner, uint64_t *stream);
    wf_dtype dtype;
    wf_order order;
    wf_shape shape;
    int64_t fan_in, fan_out; /* for the initialisers */
    wf_init init;
    wf_shape
        global; /* shape of the serial parameter of which this one is the part `box`: the initial value is a slice */
    wf_box box;
    bool trainable;
    /* Bit a: ranks along mesh axis a each compute a part of the sum that is this parameter's gradient. Set by the
     * constructor of a parallel layer (a spatial convolution adds the spatial axes), or, where the layer works
     * on any layout, by its forward from the layout of x (wf_param_sum_parts); a bit that is set stays,
     * and of an input that is whole along such an axis one rank gives the gradient (wf_node_wants). The optimizer of a
     * mesh sums the gradient over the ranks along these axes alone; along the others ranks have equal gradients, or
     * other parts (shard_axes). wf_multi_node takes the default alone. Opaque to core. Default: WF_AXIS_DATA's bit. */
    uint32_t axes;
    uint32_t
        shard_axes; /* bit a: the ranks along mesh axis a hold different parts of the serial parameter. Default: 0 */

    wf_tensor *value; /* NULL until first use */
    wf_tensor
        *rounded;    /* the value in the type that layers compute with, where that is another; NULL until first use */
    wf_tensor *grad; /* a view into a flat buffer, or a tensor of its own; NULL until the first backward */
    bool grad_set;   /* the running backward has written to grad */

    /* Scratch of one backward. */
    uint64_t run; /* the last backward that named this parameter as a target (wf_backward_opts.params) */
    int64_t uses; /* contributions still to come */

    uint64_t segment; /* the segment that has listed this parameter, a number of wf_ctx.segments; in backward a mark */

    wf_param *tied;      /* the parameter that stands for this one; NULL: it stands for itself */
    wf_param *tied_next; /* the first of those for which this one stands; of those, the next */
    char *serial;        /* the path of the one that stood for it in the whole model, if a pipeline dropped the layer of
                            that one on this stage; files have it by this path. NULL: its own */
    int beyond;      /* of a filter: 4 bits for each side of a spatial dimension, the lower one first: 1 + the wf_edge
                        by which its layer pads it, 0 where it does not */
    int64_t batches; /* of running statistics: how many they have seen, as the model file that they are from says */
    bool counted;    /* in norms, by another stage of a pipeline, which has it too */
    int stage_tie;   /* its number, from 1, among those that several stages of a pipeline have; 0: it is none */
    int stage_ties;  /* how many those are; of every parameter of a pipeline */
};

typedef struct wf_param_opts {
    wf_dtype dtype;
    wf_shape shape;
    wf_order order;
    int64_t fan_in, fan_out;
    wf_init init;
    bool state; /* not trainable: running statistics */
} wf_param_opts;

/* A parameter without a value, which is made at its first use. The name is copied; the caller owns the parameter
 * (wf_layer_add_param gives it to a layer). NULL and a recorded error on failure. */
wf_param *wf_param_new(wf_ctx *ctx, const char *name, wf_param_opts opts);
/* Frees the parameter. If others are tied to it, the first of them takes over its value. */
void wf_param_free(wf_param *param);
/* The parameter that stands for this one: itself, where it is not tied. */
wf_param *wf_param_of(wf_param *param);
/* From now on the gradient of the parameter is a sum over the parts of x along the axes that shard its dimensions
 * `dims` (bit d): for the forward of a layer that works on any layout, which learns it from its input. NULL: nothing.
 */
void wf_param_sum_parts(wf_param *param, const wf_layout *x, unsigned dims);
/* From now on `with`, or the parameter that stands for it, stands for `param` and for those that are tied with that
 * one: they have its value and gradient. WF_ERR_ARGUMENT where the two differ in shape, type, or how ranks share them,
 * or are one already; WF_ERR_STATE where `param` is tied already. */
wf_status wf_param_tie(wf_param *param, wf_param *with) WF_NODISCARD;
/* Fills `value`, which exists, by init, keyed by (seed, hash of the path): of a part, the slice of the serial values.
 */
wf_status wf_param_initialise(wf_param *param) WF_NODISCARD;

/* A hash of the value's bits, which ranks that keep copies compare: values that differ in one element have different
 * ones, others almost always. Not in a captured step. */
wf_status wf_param_hash(wf_param *param, int64_t *hash) WF_NODISCARD;

#endif
