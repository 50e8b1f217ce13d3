/* Functions that change shapes and types, and constants. */
#include "tests/outside/onnx.h"

#include <stdlib.h>
#include <string.h>

static wf_var *say_identity(onnx_call *call)
{
    return wf_detach(call->in[0]);
}

/* 0 keeps a dimension, unless allowzero says that it is one. */
static wf_var *say_reshape(onnx_call *call)
{
    int64_t to[WF_MAX_RANK];
    const wf_shape from = wf_var_shape(call->in[0]);
    const int rank = onnx_read(call, 1, WF_MAX_RANK, to);
    for (int d = 0; d < rank; d++)
        if (to[d] == 0 && onnx_int(call, "allowzero", 0) == 0)
            to[d] = from.dim[d];
    return wf_reshape(call->in[0], wf_shape_make(rank, to));
}

static wf_var *say_flatten(onnx_call *call)
{
    const wf_shape from = wf_var_shape(call->in[0]);
    const int axis = onnx_axis(call->in[0], onnx_int(call, "axis", 1));
    int64_t rows = 1;
    for (int d = 0; d < axis; d++)
        rows *= from.dim[d];
    return axis == 1 ? wf_flatten(call->in[0]) : wf_reshape(call->in[0], WF_SHAPE(rows, -1));
}

static wf_var *say_transpose(onnx_call *call)
{
    int64_t given[WF_MAX_RANK];
    int perm[WF_MAX_RANK];
    const int n = onnx_ints(call, "perm", WF_MAX_RANK, given), rank = onnx_rank(call->in[0]);
    for (int d = 0; d < rank; d++)
        perm[d] = n ? (int)given[d] : rank - 1 - d;
    return wf_transpose(call->in[0], perm);
}

static int descending(const void *a, const void *b)
{
    return *(const int *)b - *(const int *)a;
}

/* Axes of an input or, before version 13, of an attribute; from the last to the first. */
static int sorted_axes(const onnx_call *call, int rank, int axis[WF_MAX_RANK])
{
    int64_t given[WF_MAX_RANK];
    int n = onnx_ints(call, "axes", WF_MAX_RANK, given);
    n = n ? n : onnx_read(call, 1, WF_MAX_RANK, given);
    for (int i = 0; i < n; i++)
        axis[i] = (int)(given[i] < 0 ? given[i] + rank : given[i]);
    qsort(axis, (size_t)n, sizeof *axis, descending);
    return n;
}

static wf_var *say_squeeze(onnx_call *call)
{
    int axis[WF_MAX_RANK];
    wf_var *y = call->in[0];
    const int n = sorted_axes(call, onnx_rank(y), axis);
    for (int i = 0; i < n; i++)
        y = wf_squeeze(y, axis[i]);
    for (int d = onnx_rank(y) - 1; n == 0 && d >= 0; d--)
        if (wf_var_shape(y).dim[d] == 1)
            y = wf_squeeze(y, d);
    return y;
}

static wf_var *say_unsqueeze(onnx_call *call)
{
    int axis[WF_MAX_RANK];
    int64_t count[WF_MAX_RANK];
    wf_var *y = call->in[0];
    int n = onnx_ints(call, "axes", WF_MAX_RANK, count);
    n = n ? n : onnx_read(call, 1, WF_MAX_RANK, count);
    n = sorted_axes(call, onnx_rank(y) + n, axis);
    while (n-- > 0)
        y = wf_unsqueeze(y, axis[n]);
    return y;
}

static wf_var *say_concat(onnx_call *call)
{
    return wf_concat(call->node->n_in, call->in, onnx_axis(call->in[0], onnx_int(call, "axis", 0)));
}

static wf_var *say_split(onnx_call *call)
{
    int64_t length[ONNX_PORTS];
    int n = onnx_ints(call, "split", ONNX_PORTS, length);
    n = n ? n : onnx_read(call, 1, ONNX_PORTS, length);
    const int axis = onnx_axis(call->in[0], onnx_int(call, "axis", 0)), parts = call->node->n_out;
    const int64_t all = wf_var_shape(call->in[0]).dim[axis], each = (all + parts - 1) / parts;
    for (; n < parts && onnx_find(call, "num_outputs"); n++) /* the last part is shorter */
        length[n] = each < all - n * each ? each : all - n * each;
    return wf_split(call->in[0], axis, parts, n ? length : NULL, call->out) ? call->out[0] : NULL;
}

static wf_var *say_expand(onnx_call *call)
{
    int64_t to[WF_MAX_RANK], first[1024] = {0};
    const int rank = onnx_read(call, 1, WF_MAX_RANK, to);
    wf_var *y = call->in[0];
    while (onnx_rank(y) < rank)
        y = wf_unsqueeze(y, 0);
    for (int d = 0; d < rank; d++) {
        const int at = onnx_rank(y) - rank + d;
        if (wf_var_shape(y).dim[at] == 1 && to[d] > 1 && to[d] <= 1024)
            y = onnx_pick(y, at, to[d], first);
    }
    return y;
}

static wf_var *say_tile(onnx_call *call)
{
    int64_t times[WF_MAX_RANK];
    wf_var *y = call->in[0];
    const int rank = onnx_read(call, 1, WF_MAX_RANK, times);
    for (int d = 0; d < rank; d++) {
        wf_var *copy[ONNX_TENSORS];
        for (int64_t i = 0; i < times[d] && i < ONNX_TENSORS; i++)
            copy[i] = y;
        y = wf_concat((int)times[d], copy, d);
    }
    return y;
}

/* Widths of the dimensions of an input of axes; of all where it is not given. */
static void spread_widths(const onnx_call *call, int n, const int64_t *width, int64_t *lo, int64_t *hi)
{
    int64_t axis[WF_MAX_RANK];
    const bool all = onnx_read(call, 3, WF_MAX_RANK, axis) == 0;
    for (int i = 0; i < n; i++) {
        const int d = all ? i : onnx_axis(call->in[0], axis[i]);
        lo[d] = width[i];
        hi[d] = width[n + i];
    }
}

static wf_var *say_pad(onnx_call *call)
{
    int64_t width[2 * WF_MAX_RANK], lo[WF_MAX_RANK] = {0}, hi[WF_MAX_RANK] = {0};
    int n = onnx_ints(call, "pads", 2 * WF_MAX_RANK, width);
    n = n ? n : onnx_read(call, 1, 2 * WF_MAX_RANK, width);
    spread_widths(call, n / 2, width, lo, hi);
    wf_boundary boundary = {.edge = WF_EDGE_CONSTANT, .value = onnx_number(call, 2, onnx_real(call, "value", 0))};
    if (onnx_word_is(call, "mode", "reflect"))
        boundary.edge = WF_EDGE_REFLECT;
    if (onnx_word_is(call, "mode", "edge"))
        boundary.edge = WF_EDGE_REPLICATE;
    if (onnx_word_is(call, "mode", "wrap"))
        boundary.edge = WF_EDGE_CIRCULAR;
    return wf_pad(call->in[0], lo, hi, boundary);
}

/* As much on both sides is taken away or added; what is odd on the upper one. */
static wf_var *say_center_crop_pad(onnx_call *call)
{
    int64_t to[WF_MAX_RANK], axis[WF_MAX_RANK], lo[WF_MAX_RANK] = {0}, hi[WF_MAX_RANK] = {0};
    const int n = onnx_read(call, 1, WF_MAX_RANK, to);
    const bool all = onnx_ints(call, "axes", WF_MAX_RANK, axis) == 0;
    for (int i = 0; i < n; i++) {
        const int d = all ? i : onnx_axis(call->in[0], axis[i]);
        const int64_t more = to[i] - wf_var_shape(call->in[0]).dim[d];
        lo[d] = more / 2;
        hi[d] = more - more / 2;
    }
    return wf_pad(call->in[0], lo, hi, (wf_boundary){0});
}

/* --- types -----------------------------------------------------------------------------------------------------------
 */

static wf_var *say_cast(onnx_call *call)
{
    const int64_t to = onnx_int(call, "to", 0);
    const wf_dtype type[17] = {[1] = WF_F32, [2] = WF_U8,   [6] = WF_I32,  [7] = WF_I64,
                               [9] = WF_U8,  [10] = WF_F16, [11] = WF_F64, [16] = WF_BF16};
    if (to < 1 || to > 16 || (type[to] == WF_F32 && to != 1))
        return NULL;
    if (to != 9)
        return wf_cast(call->in[0], type[to]);
    wf_var *x = onnx_float(call->in[0]);
    return wf_cast(wf_sub(onnx_scalar(call, x, 1), onnx_zero(call, x)), WF_U8);
}

static wf_var *say_cast_like(onnx_call *call)
{
    return wf_cast(call->in[0], onnx_dtype(call->in[1]));
}

/* --- constants
 * ---------------------------------------------------------------------------------------------------------
 */

static wf_var *say_constant(onnx_call *call)
{
    const onnx_attribute *a = &call->node->attribute[0];
    if (strcmp(a->name, "value") == 0)
        return onnx_input(call->run, onnx_tensor_of(call->of, a->word));
    const bool list = a->name[strlen(a->name) - 1] == 's', real = strncmp(a->name, "value_float", 11) == 0;
    return onnx_constant(call, real ? WF_F32 : WF_I64, list ? WF_SHAPE(a->count) : wf_shape_scalar(), a->real);
}

static wf_var *say_constant_of_shape(onnx_call *call)
{
    int64_t to[WF_MAX_RANK];
    const int rank = onnx_read(call, 0, WF_MAX_RANK, to);
    const onnx_attribute *a = onnx_find(call, "value");
    const onnx_tensor *t = a ? onnx_tensor_of(call->of, a->word) : NULL;
    wf_tensor *y = wf_tensor_new(call->run->ctx, t ? onnx_held_type(t->type) : WF_F32, wf_shape_make(rank, to));
    WF_EXPECT_OK(wf_tensor_fill(y, !t ? 0 : t->real ? t->real[0] : (double)t->whole[0]));
    return wf_input(call->run->tape, onnx_hold(call, y));
}

static wf_var *say_shape(onnx_call *call)
{
    const wf_shape shape = wf_var_shape(call->in[0]);
    double length[WF_MAX_RANK];
    int64_t from = onnx_int(call, "start", 0), to = onnx_int(call, "end", shape.rank);
    from = from < 0 ? from + shape.rank : from;
    to = to < 0 ? to + shape.rank : to > shape.rank ? shape.rank : to;
    from = from < 0 ? 0 : from;
    const int64_t count = to > from ? to - from : 0;
    for (int64_t d = 0; d < count; d++)
        length[d] = (double)shape.dim[from + d];
    return onnx_constant(call, WF_I64, WF_SHAPE(count), length);
}

static wf_var *say_size(onnx_call *call)
{
    return onnx_constant(call, WF_I64, wf_shape_scalar(),
                         (double[]){(double)wf_shape_count(wf_var_shape(call->in[0]))});
}

/* A choice by a triangle of truth values. */
static wf_var *say_trilu(onnx_call *call)
{
    wf_var *x = onnx_float(call->in[0]);
    const wf_shape shape = wf_var_shape(x);
    const int64_t rows = shape.dim[shape.rank - 2], columns = shape.dim[shape.rank - 1];
    const double k = onnx_number(call, 1, 0);
    const bool upper = onnx_int(call, "upper", 1) != 0;
    double *kept = calloc((size_t)(rows * columns) + 1, sizeof *kept);
    for (int64_t i = 0; i < rows * columns; i++) {
        const double over = (double)(i % columns - i / columns) - k;
        kept[i] = upper ? over >= 0 : over <= 0;
    }
    wf_var *condition = onnx_constant(call, WF_U8, WF_SHAPE(rows, columns), kept);
    free(kept);
    return onnx_like(call, wf_where(condition, x, onnx_scalar(call, x, 0)), call->in[0]);
}

static wf_var *say_where(onnx_call *call)
{
    wf_var *a = onnx_float(call->in[1]), *b = onnx_float(call->in[2]);
    return onnx_like(call, wf_where(call->in[0], a, b), call->in[1]);
}

/* --- blocks of pixels
 * ----------------------------------------------------------------------------------------------------
 */

static wf_var *say_depth_to_space(onnx_call *call)
{
    const wf_shape s = wf_var_shape(call->in[0]);
    const int64_t b = onnx_int(call, "blocksize", 1), n = s.dim[0], c = s.dim[1] / (b * b), h = s.dim[2], w = s.dim[3];
    const bool columns_first = onnx_word_is(call, "mode", "CRD");
    wf_var *blocks = wf_reshape(call->in[0], columns_first ? WF_SHAPE(n, c, b, b, h, w) : WF_SHAPE(n, b, b, c, h, w));
    const int crd[] = {0, 1, 4, 2, 5, 3}, dcr[] = {0, 3, 4, 1, 5, 2};
    return wf_reshape(wf_transpose(blocks, columns_first ? crd : dcr), WF_SHAPE(n, c, h * b, w * b));
}

static wf_var *say_space_to_depth(onnx_call *call)
{
    const wf_shape s = wf_var_shape(call->in[0]);
    const int64_t b = onnx_int(call, "blocksize", 1), n = s.dim[0], c = s.dim[1], h = s.dim[2] / b, w = s.dim[3] / b;
    wf_var *blocks = wf_reshape(call->in[0], WF_SHAPE(n, c, h, b, w, b));
    return wf_reshape(wf_transpose(blocks, (int[]){0, 3, 5, 1, 2, 4}), WF_SHAPE(n, c * b * b, h, w));
}

const onnx_operator onnx_shapes[] = {{"Identity", say_identity, ONNX_WHOLE},
                                     {"Reshape", say_reshape, ONNX_WHOLE},
                                     {"Flatten", say_flatten, ONNX_WHOLE},
                                     {"Transpose", say_transpose, ONNX_WHOLE},
                                     {"Squeeze", say_squeeze, ONNX_WHOLE},
                                     {"Unsqueeze", say_unsqueeze, ONNX_WHOLE},
                                     {"Concat", say_concat, ONNX_WHOLE},
                                     {"Split", say_split, ONNX_WHOLE},
                                     {"Expand", say_expand, ONNX_WHOLE},
                                     {"Tile", say_tile, ONNX_WHOLE},
                                     {"Pad", say_pad, ONNX_CHANNELS},
                                     {"CenterCropPad", say_center_crop_pad, ONNX_WHOLE},
                                     {"Cast", say_cast, ONNX_WHOLE},
                                     {"CastLike", say_cast_like, ONNX_WHOLE},
                                     {"Constant", say_constant, ONNX_WHOLE},
                                     {"ConstantOfShape", say_constant_of_shape, ONNX_WHOLE},
                                     {"Shape", say_shape, ONNX_WHOLE},
                                     {"Size", say_size, ONNX_WHOLE},
                                     {"Trilu", say_trilu, ONNX_WHOLE},
                                     {"Where", say_where, ONNX_ELEMENTS},
                                     {"DepthToSpace", say_depth_to_space, ONNX_WHOLE},
                                     {"SpaceToDepth", say_space_to_depth, ONNX_WHOLE},
                                     {0}};
