/* How a function with a gradient is written; for layers and functions (layers/functions/arith.c is the model of one
 * with two inputs). Local: nothing here sends, an op may.
 *
 * Forward: compute y through the kernel table, then wf_tape_record. Backward: an op's function, called once, asks with
 * wf_node_wants(node, i) whether input i needs a gradient and gives it by one of
 *   wf_node_grad  - a destination to write into (parameters: straight into the flat gradient buffer), or
 *   wf_node_give  - a tensor that it made or passes through.
 *
 * An op that computes through slots alone works in captured steps (core/captured_author.h) and in segments that are
 * recomputed (wf_tape_segment) without knowing of them. Its state is copied once: what changes from step to step does
 * not belong there.
 */
#ifndef WF_CORE_TAPE_AUTHOR_H
#define WF_CORE_TAPE_AUTHOR_H

#include "core/param_author.h"
#include "core/tape.h"

typedef struct wf_node wf_node;

typedef struct wf_op {
    const char *name;
    wf_status (*backward)(wf_node *node);
    bool always; /* runs in every backward, with a zero gradient where none arrived: for point-to-point communication */
} wf_op;

struct wf_var {
    wf_tape *tape;
    wf_tensor *value;
    wf_tensor *grad;
    wf_param *param; /* of a parameter's leaf */
    wf_tensor *used; /* of a leaf by wf_compute_var: the tensor in the compute type; borrowed from the parameter */
    wf_node *node;   /* that made it; NULL for leaves */
    bool needs_grad;
    bool leaf; /* wf_leaf */
    bool no_loss;
    bool loss_mean;    /* a mean over `loss_count` local samples (no layout): weighted by it across ranks */
    double loss_count; /* of a mean over a sharded batch: samples of all ranks, or the sum of their weights */
    double loss_part;  /* and of this rank */
    bool loss_counted; /* the mean is over elements counted in this value (labels that are not ignored), so those of two
                          parts of a batch are weighted by loss_count, layout or not */
    bool loss_mixed;   /* a sum of means over different elements: no weight makes a batch's of those of its parts */
    bool loss_relays;  /* loss_count is 0, and backward still has gradients to give: those of other ranks' losses */
    bool grad_shared;  /* grad was given by reference: do not add in place */
    uint64_t run;      /* the backward that wants this variable's gradient */
    uint64_t segment;  /* in which it was made, unrecorded; 0: in none */
    uint64_t listed_in; /* the segment that has listed it as one of its inputs */
};

typedef struct wf_saved {
    wf_tensor *tensor;
    uint64_t version;
} wf_saved;

struct wf_node {
    const wf_op *op;
    wf_tape *tape;
    int n_in, n_saved;
    wf_var **in;
    wf_var *out;
    wf_saved *saved;
    void *state;
    struct wf_comm *comm; /* whose ranks run this node's backward together; NULL: this rank runs it alone */
    const char *layer;    /* for a profile, which owns the text; NULL without one */
    bool done;
    uint64_t run; /* the backward that reaches this node */
};

/* The arguments of wf_tape_record. */
typedef struct wf_node_spec {
    const wf_op *op;
    int n_in;
    wf_var *const *in; /* entries may be NULL (an absent bias). Backward may read the value of one it wants */
    int n_saved;
    wf_tensor *const *saved; /* aliased; entries may be NULL. Values that backward reads */
    const void *state;       /* copied */
    size_t state_bytes;
    struct wf_comm *comm; /* whose ranks run backward together and learn of its failure on one of them; NULL: those of
                             the layer that is applied */
} wf_node_spec;

/* Returns the variable of y, which lives until the reset, and takes over y's handle, even on failure. `record` is read
 * during the call. If no input needs a gradient or the tape is in WF_EVAL, no node is recorded; a record of zeros makes
 * y a variable without inputs. NULL where y is NULL, so that a failed constructor passes; WF_ERR_STATE where an input
 * belongs to another tape. */
wf_var *wf_tape_record(wf_tape *tape, const wf_node_spec *record, wf_tensor *y);

/* A variable with the value of a parameter, or of that which stands for it: one for each use. NULL on failure, or where
 * param is NULL. */
wf_var *wf_param_var(wf_tape *tape, wf_param *param);
/* Like wf_param_var, for layers that compute in the context's compute type: they read (and save) var->used, which has
 * that type. The gradient has the parameter's type. */
wf_var *wf_compute_var(wf_tape *tape, wf_param *param);

/* In backward. Both are borrowed, until it returns. */
const wf_tensor *wf_node_dy(const wf_node *node);           /* dense, shape and order of the output; never NULL */
const wf_tensor *wf_node_saved(const wf_node *node, int i); /* number i of wf_node_spec.saved; NULL where that was */
/* A tensor like dy for this op to write into, and to give: dy's own memory where nothing else holds it, so that a
 * kernel which works in place needs no more, otherwise new memory. A handle for the caller; NULL on failure. */
wf_tensor *wf_node_reuse_dy(const wf_node *node);
/* Depends on the graph and on the targets of this backward, never on values. Ranks that compute a layer together must
 * have the same graph and targets, so all get the same answer, and backward may leave out an exchange of theirs where
 * it is false. A parameter's answer alone differs: where the output is replicated over axes along which the gradient is
 * summed (wf_param.axes), the first of the ranks that compute the same gives it, and no exchange depends on it. */
bool wf_node_wants(const wf_node *node, int i);
/* wf_node_grad is for a kernel that can write or add where it is told to: no copy, and for a parameter no memory
 * besides the flat buffer. wf_node_give is for a gradient that exists as a tensor: one that an exchange or a sum over
 * several steps made, or dy itself; the first one of an intermediate value is taken without a copy. Both only for
 * inputs that are wanted (wf_node_give frees the others). */
/* The destination of the gradient of input i: dense, with the shape, order and type of the input; borrowed. *accumulate
 * says whether to add to what it holds or to overwrite it. No further call is needed after writing. NULL on failure. */
wf_tensor *wf_node_grad(wf_node *node, int i, bool *accumulate);
/* Gives dx, whose handle is taken even on failure; it may be the alias of another gradient (`shared`: must not be
 * written to, as when dy is passed on). */
wf_status wf_node_give(wf_node *node, int i, wf_tensor *dx, bool shared) WF_NODISCARD;

/* Segments: y = run(x, n, owner, part), of n inputs, is computed without being recorded, so nothing inside is kept.
 * Backward calls `run` again, when it reaches this place, records what it does, with the same random numbers, and
 * differentiates that: the gradients are those of a segment that was recorded at once, and complete in the same order.
 * `run` computes the same both times: it depends on its inputs, variables from outside, parameters and `owner`, which
 * must live until backward. A change of an input in between is an error; a change of what nodes inside only save
 * (labels, an index) is not noticed. Only y leaves the segment: the values of other variables made inside go at its
 * end. Communication inside is repeated, so all ranks of it have the same segment; point-to-point messages and wf_leaf
 * are WF_ERR_UNSUPPORTED. A segment inside of another is computed with it, and a third time in backward. In WF_EVAL
 * this is run(x, n, owner, part). The array is read during the call; n is 1 or more, and all inputs are variables of
 * one tape.
 */
typedef wf_var *(*wf_segment_run)(wf_var *const *x, int n, void *owner, int64_t part);
wf_var *wf_tape_segment(wf_var *const *x, int n, wf_segment_run run, void *owner, int64_t part);
/* True while a segment is computed again. A layer that changes a state of its own in forward (running statistics)
 * leaves it as it is then. */
bool wf_tape_repeats(const wf_tape *tape);
/* WF_ERR_UNSUPPORTED inside of a segment: asked by functions with point-to-point messages before they send one. */
wf_status wf_tape_check_message(const wf_tape *tape, const char *name) WF_NODISCARD;

/* True where parameters serve several products before they change, as far as the library knows: in WF_EVAL, and in the
 * chunks of a pipeline of several (on all tapes of the context during its step). It depends on what the program does
 * now, not on earlier calls, so equal runs give equal bits. */
bool wf_tape_reuses(const wf_tape *tape);

/* Sets *nodes to the nodes recorded since the last reset, in their order, and returns their number; borrowed until more
 * are recorded. */
int64_t wf_tape_nodes(const wf_tape *tape, wf_node *const **nodes);

wf_ctx *wf_tape_ctx(const wf_tape *tape);

/* Scopes: wf_apply of a layer sets the stream of the random numbers that are drawn inside. A stream is made of the
 * tape's name, the path of the layer, how often it was applied in this step, and how many draws came before this one
 * inside that application: nothing that a rank counts for itself. */
typedef struct wf_scope {
    uint64_t stream;
    const char *kind, *path; /* of the layer, for errors; NULL: outside of all layers */
    struct wf_comm *comm;    /* whose ranks compute the layer together; NULL: as outside */
} wf_scope;
/* Returns what wf_tape_leave takes: the scope outside, which goes on with other numbers than before. */
wf_scope wf_tape_enter(wf_tape *tape, wf_scope scope);
void wf_tape_leave(wf_tape *tape, wf_scope scope);
/* How often this was called for the layer of this number (1 or more, one number a layer) since the last reset. */
wf_status wf_tape_count_application(wf_tape *tape, uint64_t layer, uint64_t *count) WF_NODISCARD;
/* An empty tape computes a part of another one's step, until its reset: it gets the mode, name and iteration of that,
 * also in every replay of a captured step, and layers count their applications on it from `applied` on. */
wf_status wf_tape_follow(wf_tape *tape, const wf_tape *of, uint64_t applied) WF_NODISCARD;
/* A stream for the next use of random numbers; for the tensor `like` (its layout's global shape and box, or its own
 * shape). */
wf_random wf_tape_random(wf_tape *tape, wf_shape shape, const wf_layout *layout);

/* The uses of random numbers since the last reset, in their order. Ranks that compute the same have the same ones. */
typedef struct wf_draw {
    uint64_t stream;
    const char *kind, *path; /* as in wf_scope; the tape's own copy of the path */
} wf_draw;
const wf_draw *wf_tape_draws(const wf_tape *tape, int64_t *count);

/* The full form of backward, for optimizers. */
typedef struct wf_backward_opts {
    int64_t n_params;        /* 0: every trainable parameter */
    wf_param *const *params; /* the targets */
    double seed;             /* gradient of the loss; 0 means 1 */
    const float *scale;      /* in device memory: the seed is multiplied by it; NULL: by 1 */
    bool add;                /* to the gradients that the parameters have */
    /* Called once all uses are known, before anything runs: the target parameters that this backward reaches, in the
     * order in which their gradients will be complete. May allocate param->grad. */
    wf_status (*plan)(void *user, int64_t n, wf_param *const *order);
    /* Called when the gradient of a parameter is complete. */
    wf_status (*ready)(void *user, wf_param *param);
    void *user;
} wf_backward_opts;
/* Differentiates the loss (grad NULL: it is a scalar), towards the targets of opts. Local, but for what ops send: ranks
 * whose ops communicate run it alike. An error of plan or ready ends it and is returned. */
wf_status wf_backward_run(wf_var *loss, const wf_tensor *grad, const wf_backward_opts *opts) WF_NODISCARD;

/* Flat gradients: one buffer, in the order given, each parameter at a 64-byte boundary, `tail` more elements at the
 * end. param->grad of each becomes a view. */
typedef struct wf_grads {
    wf_ctx *ctx;
    wf_tensor *flat; /* rank 1, of the parameters' type */
    int64_t n;
    wf_param **param; /* in flat order */
    int64_t *offset;  /* n + 1 entries, in elements; offset[n] is where the tail starts */
    int64_t tail;
} wf_grads;
/* The list is copied; its parameters are of one type, else WF_ERR_DTYPE. The buffer is zero. The caller frees it; the
 * views, which keep its memory, stay with the parameters. */
wf_grads *wf_grads_new(wf_ctx *ctx, int64_t n, wf_param *const *param, int64_t tail);
/* Parameter i's part of a buffer that is laid out as `flat`, in the parameter's shape and order: a handle for the
 * caller. */
wf_tensor *wf_grads_view(const wf_grads *grads, const wf_tensor *buffer, int64_t i);
void wf_grads_free(wf_grads *grads);

#endif
