/* Functions of variables. Local unless said otherwise; each returns a new variable of the same tape, or NULL on failure
 * and where an input is NULL. Inputs are of a float type. The output has the input's type, order of memory and layout
 * unless said otherwise. Softmax, sum and mean, and the losses (layers/loss.h), widen bf16 and f16 to f32; arithmetic
 * and concatenation of two types out of these three give f32.
 *
 * Where the batch is sharded over ranks, a sum or a mean is over the global tensor: the scalar that a rank holds is its
 * part (its layout is partial), the parts add up to the value of the serial program. Such a part may be summed, scaled
 * and averaged further; a function that is not linear returns WF_ERR_SHAPE. Without a layout a mean is over the local
 * elements, and records how many samples they are.
 */
#ifndef WF_LAYERS_FUNCTIONS_H
#define WF_LAYERS_FUNCTIONS_H

#include "core/act.h"
#include "core/tape.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Activations, element by element. */
wf_var *wf_relu(wf_var *x);                     /* max(x, 0) */
wf_var *wf_leaky_relu(wf_var *x, double slope); /* x, or slope x where x < 0; slope >= 0 */
wf_var *wf_elu(wf_var *x, double alpha);        /* x, or alpha (exp(x) - 1) where x < 0; alpha >= 0 */
wf_var *wf_gelu(wf_var *x);                     /* x Phi(x), exact */
wf_var *wf_sigmoid(wf_var *x);
wf_var *wf_tanh(wf_var *x);
wf_var *wf_softplus(wf_var *x);   /* log(1 + exp(x)) */
wf_var *wf_silu(wf_var *x);       /* x sigmoid(x) */
wf_var *wf_gelu_tanh(wf_var *x);  /* GELU by tanh, within 0.001 of the exact one */
wf_var *wf_hard_swish(wf_var *x); /* x min(max(x + 3, 0), 6) / 6 */
wf_var *wf_selu(wf_var *x);       /* 1.0507 x, or 1.7581 (exp(x) - 1) where x < 0 */
/* Functions of one number. Where one is not defined (the logarithm of a negative number) it is NaN. */
wf_var *wf_exp(wf_var *x);
wf_var *wf_log(wf_var *x); /* natural */
wf_var *wf_sqrt(wf_var *x);
wf_var *wf_abs(wf_var *x);                        /* derivative 0 at 0 */
wf_var *wf_pow(wf_var *x, double exponent);       /* x^exponent; derivative 0 for exponent 0 */
wf_var *wf_clip(wf_var *x, double lo, double hi); /* min(max(x, lo), hi); derivative 1 within [lo, hi], else 0 */
/* Any of these by name, after adding `noise` times standard normal numbers (in training; 0: none). `slope` is that of
 * leaky ReLU, the alpha of ELU, or the exponent of pow. */
wf_var *wf_activate(wf_var *x, wf_act act, double slope, double noise);

/* Over dimension 1 of rank 2 to 5; the output is channels-last from rank 3 on. */
wf_var *wf_softmax(wf_var *x);
wf_var *wf_log_softmax(wf_var *x);

/* a + b, a - b, a b, a / b, types as above; the output has a's order, or that of the one with more dimensions. Shapes
 * follow NumPy's rule: aligned at their last dimensions, a dimension that is missing or of length 1 is repeated.
 * Layouts must be equal; b is brought to the shard bounds of a where only these differ (an exchange, collective over
 * the axes). But where the result is sharded over an axis along a dimension that one of them repeats, or has with
 * length 1 as the result does, that one is replicated over it. Its gradient is summed over the repeated elements of all
 * ranks: backward is then collective over that axis. Losses may be added and subtracted: parts of
 * global values with each other; local means over equally many samples; a local mean and a plain number. Any other
 * combination is WF_ERR_STATE. */
wf_var *wf_add(wf_var *a, wf_var *b);
wf_var *wf_sub(wf_var *a, wf_var *b);
wf_var *wf_mul(wf_var *a, wf_var *b);
wf_var *wf_div(wf_var *a, wf_var *b);
wf_var *wf_scale(wf_var *x, double alpha);

/* Scalars: the sum and the mean of all elements. The mean of an empty tensor is 0. The weight of a mean without a
 * layout is the length of dimension 0. */
wf_var *wf_sum(wf_var *x);
wf_var *wf_mean(wf_var *x);

/* Some dimensions of a variable: WF_DIMS(2, 3), WF_DIMS(-1). Negative ones count from the last. */
typedef struct wf_dims {
    int count; /* 1 to WF_MAX_RANK */
    int dim[WF_MAX_RANK];
} wf_dims;
#define WF_DIMS(...) wf_dims_make((int)(sizeof((const int[]){__VA_ARGS__}) / sizeof(int)), (const int[]){__VA_ARGS__})
wf_dims wf_dims_make(int count, const int *dim);

/* Over these dimensions, which are left out of the result, or kept with length 1. They must be whole on each rank;
 * others keep their layout. The result is row-major. Means of no elements are 0. Softmax keeps the shape. */
wf_var *wf_sum_over(wf_var *x, wf_dims dims, bool keep);
wf_var *wf_mean_over(wf_var *x, wf_dims dims, bool keep);
/* The largest element, first of equals, whose gradient goes to it alone; NaN wins. Of no element: WF_ERR_SHAPE. */
wf_var *wf_max_over(wf_var *x, wf_dims dims, bool keep);
/* Its place among the elements of these dimensions, counted row-major, as i64; without a gradient. */
wf_var *wf_argmax_over(wf_var *x, wf_dims dims, bool keep);
wf_var *wf_softmax_over(wf_var *x, wf_dims dims);
wf_var *wf_log_softmax_over(wf_var *x, wf_dims dims);

typedef struct wf_matmul_opts {
    bool a_transposed, b_transposed; /* in their last two dimensions */
} wf_matmul_opts;
/* Products of matrices: [...,m,k] and [...,k,n] give [...,m,n], row-major. Leading dimensions broadcast. Dimensions of
 * length k must be whole on each rank; the layouts of all others follow as in wf_add. */
wf_var *wf_matmul(wf_var *a, wf_var *b, wf_matmul_opts opts);

/* a where the condition is not 0, else b; the three broadcast as in wf_add, and b and the condition are brought to the
 * shard bounds of a. The condition is of u8, or of the type of a and b, and has no gradient. */
wf_var *wf_where(wf_var *condition, wf_var *a, wf_var *b);

/* Rows of x [R,...] by their numbers, u8, i32 or i64 in [0, R): y[i...,:] = x[index[i...],:], row-major. x is whole on
 * each rank; y has the layout of the indices, along which the gradient of an x with a layout is summed (backward is
 * then collective over these axes). The gradient of a row is summed in the order of the places that take it. An index
 * out of range is WF_ERR_ARGUMENT: of this call, or on a device that computes later of the next one that reads a
 * number. */
wf_var *wf_take(wf_var *x, const wf_var *index);

/* Casts between any types. To a float type values are rounded to nearest, to an integer type cut, and limited to what
 * it holds. Between float types the gradient is cast back; through integers there is none. */
wf_var *wf_cast(wf_var *x, wf_dtype dtype);

/* Returns the value without its history: no gradient flows through it. This and the next five take any type. */
wf_var *wf_detach(wf_var *x);

/* Joins tensors along dimension `dim` (negative: from the last), in the order of the list. All other dimensions, and
 * layouts, must be equal: wf_redistribute brings one to the layout of another. Inputs that the same axes cut at other
 * shard bounds are brought to those of the first, as the skips of a U-Net whose halves are uneven: an exchange, then
 * collective over these axes. The output has the order of memory of the first tensor. `dim` must not be sharded. */
wf_var *wf_concat(int count, wf_var *const *x, int dim);
/* The elements of `box`, in this rank's coordinates; a sharded dimension must be whole in it. */
wf_var *wf_slice(wf_var *x, wf_box box);
/* Cuts dimension `dim`, which must not be sharded, into `count` parts of these lengths (NULL: equal ones): part[0] to
 * part[count - 1]. Returns false, and parts are NULL, on failure. Negative dimensions count from the last, here and in
 * the next three. */
bool wf_split(wf_var *x, int dim, int count, const int64_t *length, wf_var **part);
/* A new dimension of length 1 at `dim` of the result; away with dimension `dim` of x, which has length 1. */
wf_var *wf_unsqueeze(wf_var *x, int dim);
wf_var *wf_squeeze(wf_var *x, int dim);
/* Joins variables of equal shapes along a new dimension. */
wf_var *wf_stack(int count, wf_var *const *x, int dim);
/* Reshapes: the same elements, counted row-major, under another shape (of this rank's part). One dimension may be -1:
 * it is computed from the others. Sharded dimensions must stay as they are. Copies only if memory does not hold that
 * sequence; from rank 4 on, the output is channels-last if that needs no copy. */
wf_var *wf_reshape(wf_var *x, wf_shape shape);
/* An image [N,C,...] of rank 3 to 5 as tokens [N,T,C], T pixels row by row, and back: `pixels` are the spatial lengths
 * of this rank's part, whose product is T. The result is row-major, or a channels-last image, in x's memory where x
 * lies like that. A cut of the first spatial dimension is a cut of the tokens between rows; any other cut of pixels,
 * and a cut of tokens within a row, is WF_ERR_SHAPE. */
wf_var *wf_tokens(wf_var *x);
wf_var *wf_image(wf_var *x, wf_shape pixels);
/* Blocks of `block` by `block` pixels of an image [N,C,H,W] as channels: [N,block block C,H/block,W/block],
 * channels-last; pixel (i, j) of a block gives the channels from (j block + i) C on. H and W are multiples of block.
 * Parts of a cut are whole blocks with all channels, else WF_ERR_SHAPE. */
wf_var *wf_merge_patches(wf_var *x, int64_t block);
/* [N, product of the others]. */
wf_var *wf_flatten(wf_var *x);
/* Dimension d of the output is dimension perm[d] of x; perm has as many entries as x dimensions. */
wf_var *wf_transpose(wf_var *x, const int *perm);

/* Random numbers are keyed by (seed, layer, iteration, use, place in the global tensor), so they do not depend on
 * the partition. In evaluation dropout and noise are the identity. */
wf_var *wf_dropout(wf_var *x, double rate);       /* 0 with probability rate in [0, 1), else x / (1 - rate) */
wf_var *wf_gaussian_noise(wf_var *x, double std); /* x + std n, n standard normal */
/* New variables of the context's type, without a gradient: standard normal, uniform in [lo, hi). `like` (or NULL):
 * dimension 0 is sharded as that of `like`, of which it must have the local length; else WF_ERR_SHAPE on all ranks of
 * like's mesh, whose communicator is dead then. */
wf_var *wf_randn(wf_tape *tape, wf_shape shape, const wf_var *like);
wf_var *wf_rand_uniform(wf_tape *tape, wf_shape shape, double lo, double hi, const wf_var *like);

#ifdef __cplusplus
}
#endif
#endif
