/* Steps that the functions of this folder share: a function checks its inputs, computes y by a slot, and ends in
 * wf_function_finish; arith.c is the model. For this room and for layers that call it. Local unless said otherwise. A
 * `what` is the function's name in errors. */
#ifndef WF_LAYERS_FUNCTIONS_IMPL_H
#define WF_LAYERS_FUNCTIONS_IMPL_H

#include "core/tape_author.h"

/* What an input must be for a function `what`. */
typedef enum wf_linearity {
    WF_ANY_FUNCTION = 0, /* refuses a partial value: f(a + b) is not f(a) + f(b) */
    WF_LINEAR,
} wf_linearity;

/* Fails unless x has a value: it is no wf_no_loss, and was not freed in an earlier backward. */
wf_status wf_function_check_value(const char *what, const wf_var *x) WF_NODISCARD;
/* Fails unless x has a value of a float type, which is not partial unless the function is linear. */
wf_status wf_function_check(const char *what, const wf_var *x, wf_linearity linearity) WF_NODISCARD;
/* Checks both, and that they are on one tape, of equal shape and type. */
wf_status wf_function_check_pair(const char *what, const wf_var *a, const wf_var *b,
                                 wf_linearity linearity) WF_NODISCARD;
wf_status wf_function_check_layouts(const char *what, const wf_var *a, const wf_var *b) WF_NODISCARD;
/* x at the shard bounds of `to` along the axes that cut both along one dimension, whose lengths are equal: halves that
 * were doubled again come back at others. x itself where that moves nothing; NULL passes. Collective over these axes.
 */
wf_var *wf_function_align(wf_var *x, const wf_var *to);
/* Writes " (this rank's part of [8,3])" into text, or "" for a tensor that is whole here, and returns it. */
#define WF_PART_TEXT (WF_SHAPE_TEXT + 32)
const char *wf_part_text(const wf_layout *layout, char text[WF_PART_TEXT]);

/* x as a layer of the context computes with it: cast, if the context computes in another type and x is of a type that
 * it takes for that. And x as functions take it that compute in f32: 16 bits are widened, NULL passes. */
wf_var *wf_cast_to_compute(wf_var *x);
wf_var *wf_widened(wf_var *x);
/* The type of what is made of a and b; false: there is none. */
bool wf_promoted(wf_dtype a, wf_dtype b, wf_dtype *both);
/* Both become variables of it, if there is one. */
wf_status wf_function_promote(wf_var **a, wf_var **b) WF_NODISCARD;

/* x's value, dense in x's own order: a handle to be freed. */
wf_tensor *wf_function_value(const wf_var *x);
/* Records y, whose handle is taken, if `status` is WF_OK, which is that of the forward slot; else frees y (which may be
 * NULL), makes the error pending and returns NULL. */
wf_var *wf_function_finish(wf_status status, wf_tape *tape, const wf_node_spec *record, wf_tensor *y);
/* Gives dx, whose handle is taken, to input i; a dx that shares memory with dy goes as shared. */
wf_status wf_function_give(wf_node *node, int i, wf_tensor *dx) WF_NODISCARD;

/* The result of a function of two variables of different shapes. */
typedef struct wf_broadcast {
    wf_shape shape;   /* of this rank's part */
    wf_layout layout; /* of the result */
    wf_order order;
    unsigned axes[2]; /* of the mesh: the result is cut over them along dimensions that variable 0 or 1 repeats */
} wf_broadcast;

/* The function that is meant; wf_binary (core/kernels_author.h) is the operation of a slot. */
typedef enum wf_binary_kind {
    WF_BINARY_ADD_OF = 0,
    WF_BINARY_SUB_OF,
    WF_BINARY_MUL_OF,
    WF_BINARY_DIV_OF,
} wf_binary_kind;

/* WF_ERR_SHAPE where shapes do not broadcast to each other or layouts do not fit. */
wf_status wf_broadcast_of(const char *what, const wf_tensor *a, const wf_tensor *b, wf_broadcast *out) WF_NODISCARD;
/* x as an array of a result of this shape: steps of 0 along what x repeats. As an output: what is summed. */
wf_strided wf_broadcast_view(const wf_tensor *x, wf_shape shape);
/* a op b of one type and any shapes. */
wf_var *wf_broadcast_binary(wf_binary_kind kind, wf_var *a, wf_var *b);
/* Returns true if shapes or layouts differ so that one of the two is repeated. */
bool wf_broadcasts(const wf_var *a, const wf_var *b);

/* Which rows of a whole table the table at hand has, and where the rest is. */
typedef struct wf_take_part {
    int64_t first, whole, ignored; /* as in wf_take_args */
    struct wf_comm *comm;          /* whose ranks have the other rows: each result is summed over it; NULL: none */
} wf_take_part;

/* Fails unless indices have a value, of an integer type. */
wf_status wf_take_check(const char *what, const wf_var *index) WF_NODISCARD;
/* Rows of a table of at least one dimension by indices that were checked. The gradient of a table with a layout is
 * summed over the axes that cut the indices; one without is this rank's part. Collective over part->comm. */
wf_var *wf_take_rows(const char *what, wf_var *table, const wf_var *index, const wf_take_part *part);

/* What options of attention are for: samples, heads, queries and keys. */
typedef struct wf_attention_extent {
    int64_t n, heads, t, s;
    bool heads_cut; /* ranks have, or get, some of the heads */
} wf_attention_extent;

struct wf_attention_opts;
/* Options of attention: those that need no shape, and the others. Local. */
wf_status wf_attention_check_heads(const struct wf_attention_opts *o) WF_NODISCARD;
wf_status wf_attention_check_opts(const wf_var *q, const struct wf_attention_opts *o,
                                  const wf_attention_extent *of) WF_NODISCARD;
/* Returns true if every rank of the axes that cut features has whole heads. */
bool wf_attention_has_heads(const wf_layout *layout, int64_t heads);
/* A view of the columns of a table [rows,heads] that belong to some heads. */
wf_tensor *wf_attention_columns(const wf_tensor *table, int64_t first, int64_t heads);
struct wf_label_opts;
/* Fails unless labels [N,...] of an integer type are those of scores [N,C,...]; and, wf_labels_check, all classes are
 * here. */
wf_status wf_labels_check_rows(const char *what, const wf_var *scores, const wf_tensor *labels) WF_NODISCARD;
wf_status wf_labels_check(const char *what, const wf_var *scores, const wf_tensor *labels) WF_NODISCARD;
/* The axes that cut the classes, all of whose ranks have the same rows. */
unsigned wf_labels_class_axes(const wf_layout *layout);
/* What kernels take for the ignored label. */
int64_t wf_labels_ignored(const struct wf_label_opts *opts);
/* Fails if the ignored number is WF_NONE_IGNORED, which kernels take for none. */
wf_status wf_ignored_check(const char *what, bool ignores, int64_t ignored) WF_NODISCARD;
/* Labels or options that are wrong on some ranks alone: tells the others, which would wait in the sums over the axes
 * that cut the classes (0: none). Returns `status`. */
wf_status wf_labels_post(const wf_layout *layout, unsigned axes, wf_status status) WF_NODISCARD;
/* Makes the largest scores of rows and their log_sum, which are those of this rank's classes, those of all classes.
 * Collective over the axes that cut these: two all-reduces of a number a row. */
wf_status wf_entropy_merge(const wf_mesh *mesh, unsigned axes, wf_tensor *most, wf_tensor *log_sum) WF_NODISCARD;
/* Losses of rows of which each rank of the axes has its classes' part, summed over them. Collective. */
wf_status wf_entropy_sum_rows(const wf_mesh *mesh, unsigned axes, wf_tensor *rows) WF_NODISCARD;
/* WF_ERR_ARGUMENT unless it is one of wf_loss_reduction. */
wf_status wf_loss_check_reduction(const char *what, int reduction) WF_NODISCARD;

/* A mean over x: what each element weighs, and for how much the result stands. */
typedef struct wf_reduction {
    double scale;
    bool loss_mean;
    double loss_count, loss_part;
    bool loss_counted, loss_mixed, loss_relays;
} wf_reduction;
/* `without`: a dimension that does not count (-1: every one does). */
wf_reduction wf_reduction_mean(const wf_var *x, int without);
/* What stands for as much as x. */
wf_reduction wf_reduction_of(const wf_var *x);
/* The uninitialised scalar of a reduction of x: its type, f32 for 16 bits; a layout that is partial where x is sharded.
 */
wf_tensor *wf_reduction_scalar(const wf_var *x);
/* Marks the result; NULL passes. */
wf_var *wf_reduction_mark(wf_var *y, const wf_reduction *reduction);

#endif
