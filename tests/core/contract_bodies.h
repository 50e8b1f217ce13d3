/* Calls of slots that contract_check runs, each of one geometry or shape, for the contract tests and for the random
 * ones. `args` of the run is the case that a body takes. */
#ifndef WF_TESTS_CONTRACT_BODIES_H
#define WF_TESTS_CONTRACT_BODIES_H

#include "tests/core/contract.h"

typedef struct conv_case {
    wf_conv_geom geom;
    int64_t n, c, f, in[3];
    bool bias, accumulate, forms;
    bool wide; /* the gradients of parameters are not narrow */
    wf_act act;
    double noise;
    bool epilogue;
} conv_case;

typedef struct matmul_case {
    int64_t m, n, k;
    bool ta, tb, bias, accumulate, wide;
} matmul_case;

typedef struct stack_case {
    wf_product_stack stack;
    bool ta, tb, accumulate;
} stack_case;

typedef struct pool_case {
    wf_pool_geom geom;
    int64_t n, c, in[3];
    int64_t out[3]; /* of an adaptive pool */
    bool ceil, without_index, accumulate;
} pool_case;

/* Places of a smaller image in a larger one. */
typedef struct places_case {
    int nd;
    int64_t n, c, small[3], large[3];
    int64_t lo[3], length[3]; /* a box of the larger image */
    wf_dtype dtype;           /* of the places */
    bool equal;               /* many are */
} places_case;

typedef struct resample_case {
    wf_resample_geom geom;
    wf_shape x, y; /* parts of the whole */
    bool accumulate;
} resample_case;

typedef struct taps_case {
    int64_t outer, in, out, inner, taps, rows; /* rows of the tables */
    int64_t x_lo, y_lo;
    bool accumulate;
} taps_case;

typedef struct norm_case {
    wf_shape shape;
    bool gamma, beta, epilogue, residual, in_place, batch;
    bool over; /* gradients are written over dy */
    bool of_x; /* y is what forward makes of x */
    bool wide; /* gamma and beta are not narrow */
    wf_act act;
    double noise, offset;
} norm_case;

typedef struct group_case {
    int64_t rows, places, channels, size, first;
    bool gamma, beta, wide, about_zero, given, over;
    double offset;
} group_case;

typedef struct row_case {
    wf_shape shape;
    bool logarithm, target;
    double spread;
    wf_loss_kind kind;
    wf_dtype labels;
    int64_t ignored;
    bool weighted, each; /* weights of classes; losses that are not summed */
    double smoothing;
} row_case;

/* Take a conv_case. bias_backward_body reads n, c, nd, in, wide and accumulate; nd 0 is a matrix. */
void conv_forward_body(run *r);
void conv_data_body(run *r);
void conv_filter_body(run *r);
void bias_backward_body(run *r);
/* The length of the output in one dimension, and its shape. */
int64_t conv_length(int64_t in, int64_t lo, int64_t hi, int64_t kernel, int64_t stride, int64_t dilation);
wf_shape conv_output(const conv_case *t);

/* Take a matmul_case. matmul_reused_body multiplies by square matrices [n,n] that have room for packed copies. */
void matmul_body(run *r);
void matmul_reused_body(run *r);
void matmul_stack_body(run *r); /* takes a stack_case */

/* Take a pool_case and a resample_case; each runs both directions. */
void pool_body(run *r);
void places_body(run *r); /* takes a places_case */
void resample_body(run *r);
void taps_body(run *r);
/* Outputs [out_lo, out_lo + y) of the whole, and the inputs that they read with up to one more at either end. */
void cut_part(test_rng *rng, resample_case *t, int d);

/* Take a norm_case. */
void norm_stats_body(run *r);
void norm_forward_body(run *r);
void norm_backward_body(run *r);
/* Arrays of statistics, and how exact those are that a slot makes: they are not rounded to a narrow type. */
wf_array statistic(run *r, int64_t c, double lo, double hi);
wf_array statistic_out(run *r, int64_t c, bool keep);
double statistic_weight(const run *r);
/* A count that the device alone knows. */
wf_count count_in_memory(run *r, double count);

/* Take a group_case. */
void group_stats_body(run *r);
void group_forward_body(run *r);
void group_backward_body(run *r);
/* Only whole groups have statistics of their own; the parts of a case are of groups three times as large. */
bool is_whole_groups(const group_case *t);

/* Takes a row_case; runs both directions. */
void softmax_body(run *r);
void row_note(run *r, const row_case *t);

#endif
