/* Folds: arithmetic of strided arrays with broadcasting, and sums over any dimensions, in one slot of the kernel table
 * (core/kernels_author.h). */
#ifndef WF_CORE_FOLD_AUTHOR_H
#define WF_CORE_FOLD_AUTHOR_H

#include "core/array_author.h"

/* What a fold makes of its inputs a, b and c, element by element. */
typedef enum wf_fold_op {
    WF_FOLD_LINEAR = 0,  /* alpha a + beta b; b NULL: alpha a */
    WF_FOLD_MUL,         /* alpha a b */
    WF_FOLD_DIV,         /* alpha a / b */
    WF_FOLD_MULDIV,      /* alpha a b / c */
    WF_FOLD_WHERE,       /* a where c is not 0, else b; a or b NULL: 0. c is of u8, or of a float type */
    WF_FOLD_CLIP,        /* a cut to [alpha, beta] */
    WF_FOLD_CLIP_X,      /* its derivative, times a: a where b is within [alpha, beta], else 0 */
    WF_FOLD_PRELU,       /* b a where a is below 0, else a */
    WF_FOLD_PRELU_X,     /* its derivative by x, times a: c a where b is 0 or below, else a */
    WF_FOLD_PRELU_SLOPE, /* and by the slope: a b where b is below 0, else 0 */
    WF_FOLD_OPS
} wf_fold_op;

/* All strided arrays have one rank and the same dims: those of the whole. A stride of 0 in an input repeats it along
 * that dimension, one in y folds the dimension: its elements are summed. Other strides of y reach every element of y
 * once. Strides are not negative. a, b and y are of one float type; y may be wide. */
typedef struct wf_fold_args {
    wf_fold_op op;
    double alpha, beta;
    const wf_strided *a, *b, *c; /* NULL: absent */
    const wf_strided *y;
    bool accumulate;
} wf_fold_args;

#endif
