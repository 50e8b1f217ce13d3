/* Reductions over some dimensions. */
#include "tests/outside/onnx.h"

#include <stdlib.h>
#include <string.h>

/* The dimensions of the node; count 0 where it goes over none. */
static wf_dims dims_of(const onnx_call *call, bool *keep)
{
    wf_dims dims = {0};
    dims.count = onnx_axes(call, dims.dim);
    *keep = onnx_int(call, "keepdims", 1) != 0;
    return dims;
}

typedef wf_var *(*reduction)(wf_var *x, wf_dims dims, bool keep);

static wf_var *reduce_by(const onnx_call *call, wf_var *x, reduction f)
{
    bool keep;
    const wf_dims dims = dims_of(call, &keep);
    return dims.count == 0 ? x : f(x, dims, keep);
}

static wf_var *say_reduce_sum(onnx_call *call)
{
    wf_var *x = onnx_float(call->in[0]);
    return onnx_like(call, reduce_by(call, x, wf_sum_over), call->in[0]);
}

static wf_var *say_reduce_mean(onnx_call *call)
{
    return reduce_by(call, call->in[0], wf_mean_over);
}

static wf_var *say_reduce_max(onnx_call *call)
{
    return onnx_like(call, reduce_by(call, onnx_float(call->in[0]), wf_max_over), call->in[0]);
}

static wf_var *say_reduce_min(onnx_call *call)
{
    wf_var *least = wf_scale(reduce_by(call, wf_scale(onnx_float(call->in[0]), -1), wf_max_over), -1);
    return onnx_like(call, least, call->in[0]);
}

/* Slices of each dimension are multiplied. */
static wf_var *say_reduce_prod(onnx_call *call)
{
    bool keep;
    wf_dims dims = dims_of(call, &keep);
    wf_var *y = call->in[0];
    for (int i = 0; i < dims.count; i++) {
        wf_var *part[64];
        const int64_t length = wf_var_shape(y).dim[dims.dim[i]];
        if (length > 64 || !wf_split(y, dims.dim[i], (int)length, NULL, part))
            return NULL;
        y = part[0];
        for (int64_t j = 1; j < length; j++)
            y = wf_mul(y, part[j]);
    }
    /* Dimensions of length 1 go by a sum, which is their element. */
    return keep ? y : wf_sum_over(y, dims, false);
}

static wf_var *say_reduce_l1(onnx_call *call)
{
    return reduce_by(call, wf_abs(call->in[0]), wf_sum_over);
}

static wf_var *say_reduce_sum_square(onnx_call *call)
{
    return reduce_by(call, wf_mul(call->in[0], call->in[0]), wf_sum_over);
}

static wf_var *say_reduce_l2(onnx_call *call)
{
    return wf_sqrt(say_reduce_sum_square(call));
}

static wf_var *say_reduce_log_sum(onnx_call *call)
{
    return wf_log(reduce_by(call, call->in[0], wf_sum_over));
}

static wf_var *say_reduce_log_sum_exp(onnx_call *call)
{
    return wf_log(reduce_by(call, wf_exp(call->in[0]), wf_sum_over));
}

/* Reverses a dimension. */
static wf_var *turn_round(wf_var *x, int dim)
{
    const int64_t length = wf_var_shape(x).dim[dim];
    int64_t *index = malloc((size_t)(length + 1) * sizeof *index);
    for (int64_t i = 0; i < length; i++)
        index[i] = length - 1 - i;
    wf_var *y = onnx_pick(x, dim, length, index);
    free(index);
    return y;
}

/* The last of equals is the first of the reversed ones. */
static wf_var *arg_of(onnx_call *call, double sign)
{
    bool keep;
    const wf_dims dims = dims_of(call, &keep);
    wf_var *x = wf_scale(call->in[0], sign);
    if (onnx_int(call, "select_last_index", 0) == 0)
        return wf_argmax_over(x, dims, keep);
    const double last = (double)wf_var_shape(x).dim[dims.dim[0]] - 1;
    wf_var *back = wf_cast(wf_argmax_over(turn_round(x, dims.dim[0]), dims, keep), WF_F64);
    return wf_cast(wf_sub(onnx_scalar(call, back, last), back), WF_I64);
}

static wf_var *say_arg_max(onnx_call *call)
{
    return arg_of(call, 1);
}

static wf_var *say_arg_min(onnx_call *call)
{
    return arg_of(call, -1);
}

/* A product with a triangle of ones, along the last dimension. */
static wf_var *say_cum_sum(onnx_call *call)
{
    wf_var *x = onnx_float(call->in[0]);
    const int rank = onnx_rank(x), dim = onnx_axis(x, (int64_t)onnx_number(call, 1, 0));
    const int64_t n = wf_var_shape(x).dim[dim];
    const bool exclusive = onnx_int(call, "exclusive", 0) != 0, reverse = onnx_int(call, "reverse", 0) != 0;
    double *triangle = calloc((size_t)(n * n) + 1, sizeof *triangle);
    for (int64_t from = 0; from < n; from++)
        for (int64_t to = 0; to < n; to++)
            triangle[from * n + to] = from == to ? !exclusive : reverse ? from > to : from < to;
    int swap[WF_MAX_RANK];
    for (int d = 0; d < rank; d++)
        swap[d] = d == dim ? rank - 1 : d == rank - 1 ? dim : d;
    wf_shape rows = wf_var_shape(x);
    wf_var *line = rank == 1 ? wf_unsqueeze(x, 0) : wf_transpose(x, swap);
    wf_var *sums = wf_matmul(line, onnx_constant(call, onnx_dtype(x), WF_SHAPE(n, n), triangle), (wf_matmul_opts){0});
    free(triangle);
    return onnx_like(call, rank == 1 ? wf_reshape(sums, rows) : wf_transpose(sums, swap), call->in[0]);
}

const onnx_operator onnx_reductions[] = {{"ReduceSum", say_reduce_sum, ONNX_LINES},
                                         {"ReduceMean", say_reduce_mean, ONNX_LINES},
                                         {"ReduceMax", say_reduce_max, ONNX_LINES},
                                         {"ReduceMin", say_reduce_min, ONNX_LINES},
                                         {"ReduceProd", say_reduce_prod, ONNX_LINES},
                                         {"ReduceL1", say_reduce_l1, ONNX_LINES},
                                         {"ReduceL2", say_reduce_l2, ONNX_LINES},
                                         {"ReduceSumSquare", say_reduce_sum_square, ONNX_LINES},
                                         {"ReduceLogSum", say_reduce_log_sum, ONNX_LINES},
                                         {"ReduceLogSumExp", say_reduce_log_sum_exp, ONNX_LINES},
                                         {"ArgMax", say_arg_max, ONNX_LINES},
                                         {"ArgMin", say_arg_min, ONNX_LINES},
                                         {"CumSum", say_cum_sum, ONNX_WHOLE},
                                         {0}};
