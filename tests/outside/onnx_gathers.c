/* Elements and slices by index. Indices are read by the test, and the slices joined. */
#include "tests/outside/onnx.h"

#include <stdlib.h>
#include <string.h>

enum { INDICES = 8192 };

/* Entries of the flattened x, in this shape. */
static wf_var *pick_flat(wf_var *x, wf_shape shape, const int64_t *index)
{
    wf_var *flat = wf_reshape(x, WF_SHAPE(-1));
    return wf_reshape(onnx_pick(flat, 0, wf_shape_count(shape), index), shape);
}

/* Numbers that are read from an input, negative ones counted from `length`. */
static int read_indices(const onnx_call *call, int port, int64_t length, int64_t index[INDICES])
{
    const int n = onnx_read(call, port, INDICES, index);
    for (int i = 0; i < n; i++)
        index[i] += index[i] < 0 ? length : 0;
    return n;
}

static wf_var *say_gather(onnx_call *call)
{
    static int64_t index[INDICES];
    wf_var *x = call->in[0];
    const int axis = onnx_axis(x, onnx_int(call, "axis", 0));
    const wf_shape from = wf_var_shape(x), by = wf_var_shape(call->in[1]);
    const int n = read_indices(call, 1, from.dim[axis], index);
    wf_shape to = {.rank = from.rank - 1 + by.rank};
    for (int d = 0; d < to.rank; d++)
        to.dim[d] = d < axis ? from.dim[d] : d < axis + by.rank ? by.dim[d - axis] : from.dim[d - by.rank + 1];
    return wf_reshape(onnx_pick(x, axis, n, index), to);
}

/* Steps from one index of each dimension to the next, row-major. */
static void row_major_steps(wf_shape shape, int64_t step[WF_MAX_RANK])
{
    wf_order_strides(shape, WF_ROW_MAJOR, step);
}

/* The place in x of element i of a tensor of shape `by`, with the index in place of its coordinate along an axis. */
static int64_t place_along(wf_shape by, wf_shape x, int64_t i, int axis, int64_t index)
{
    int64_t in[WF_MAX_RANK], step[WF_MAX_RANK], at = 0;
    row_major_steps(by, in);
    row_major_steps(x, step);
    for (int d = 0; d < by.rank; d++)
        at += step[d] * (d == axis ? index : i / in[d] % by.dim[d]);
    return at;
}

static wf_var *say_gather_elements(onnx_call *call)
{
    static int64_t index[INDICES];
    const int axis = onnx_axis(call->in[0], onnx_int(call, "axis", 0));
    const wf_shape x = wf_var_shape(call->in[0]), by = wf_var_shape(call->in[1]);
    const int n = read_indices(call, 1, x.dim[axis], index);
    for (int i = 0; i < n; i++)
        index[i] = place_along(by, x, i, axis, index[i]);
    return pick_flat(call->in[0], by, index);
}

/* The first row, of `inner` elements, that each tuple of indices names in x, after `batches` dimensions that both have.
 */
static int rows_of_tuples(const onnx_call *call, int port, int batches, int64_t row[INDICES], wf_shape *rest)
{
    const wf_shape x = wf_var_shape(call->in[0]), by = wf_var_shape(call->in[port]);
    static int64_t index[INDICES];
    const int n = read_indices(call, port, 0, index), tuple = (int)by.dim[by.rank - 1];
    const int tuples = n / tuple;
    int64_t batch_count = 1;
    for (int d = 0; d < batches; d++)
        batch_count *= x.dim[d];
    for (int i = 0; i < tuples; i++) {
        row[i] = (int64_t)i / (tuples / batch_count);
        for (int t = 0; t < tuple; t++) {
            const int64_t at = index[i * tuple + t], length = x.dim[batches + t];
            row[i] = row[i] * length + (at < 0 ? at + length : at);
        }
    }
    rest->rank = x.rank - batches - tuple;
    for (int d = 0; d < rest->rank; d++)
        rest->dim[d] = x.dim[batches + tuple + d];
    return tuples;
}

static wf_var *say_gather_nd(onnx_call *call)
{
    static int64_t row[INDICES];
    wf_shape rest = {0}, to = wf_var_shape(call->in[1]);
    const int n = rows_of_tuples(call, 1, (int)onnx_int(call, "batch_dims", 0), row, &rest);
    to.rank--;
    for (int d = 0; d < rest.rank; d++)
        to.dim[to.rank + d] = rest.dim[d];
    to = wf_shape_make(to.rank + rest.rank, to.dim);
    wf_var *rows = wf_reshape(call->in[0], WF_SHAPE(-1, wf_shape_count(rest)));
    return wf_reshape(onnx_pick(rows, 0, n, row), to);
}

/* x with updates: each element of the result is one of x or one of the updates, which follow x in one list. */
static wf_var *choose_updates(wf_var *x, wf_var *updates, const int64_t *place, int n)
{
    static int64_t index[INDICES];
    const wf_shape shape = wf_var_shape(x);
    const int64_t count = wf_shape_count(shape);
    if (count > INDICES)
        return NULL;
    for (int64_t i = 0; i < count; i++)
        index[i] = i;
    for (int i = 0; i < n; i++)
        index[place[i]] = count + i;
    wf_var *old = wf_reshape(x, WF_SHAPE(-1)), *new = wf_reshape(updates, WF_SHAPE(-1));
    return pick_flat(wf_concat(2, (wf_var *[]){old, new}, 0), shape, index);
}

/* x with updates added: a product with a matrix that has a 1 where an update goes. */
static wf_var *add_updates(onnx_call *call, const int64_t *place, int n)
{
    const wf_shape shape = wf_var_shape(call->in[0]);
    const int64_t count = wf_shape_count(shape);
    if (count * n > 64 * INDICES)
        return NULL;
    double *goes = calloc((size_t)(count * n) + 1, sizeof *goes);
    for (int i = 0; i < n; i++)
        goes[place[i] * n + i] = 1;
    wf_var *matrix = onnx_constant(call, onnx_dtype(call->in[0]), WF_SHAPE(count, n), goes);
    free(goes);
    wf_var *sums = wf_matmul(matrix, wf_reshape(call->in[2], WF_SHAPE(n, 1)), (wf_matmul_opts){0});
    return wf_add(call->in[0], wf_reshape(sums, shape));
}

/* Chosen or added, as the node says; others are not said. */
static wf_var *update(onnx_call *call, const int64_t *place, int n)
{
    if (onnx_word_is(call, "reduction", "add"))
        return add_updates(call, place, n);
    if (onnx_find(call, "reduction") && !onnx_word_is(call, "reduction", "none"))
        return NULL;
    return choose_updates(call->in[0], call->in[2], place, n);
}

static wf_var *say_scatter_elements(onnx_call *call)
{
    static int64_t index[INDICES];
    const int axis = onnx_axis(call->in[0], onnx_int(call, "axis", 0));
    const wf_shape x = wf_var_shape(call->in[0]), by = wf_var_shape(call->in[1]);
    const int n = read_indices(call, 1, x.dim[axis], index);
    for (int i = 0; i < n; i++)
        index[i] = place_along(by, x, i, axis, index[i]);
    return update(call, index, n);
}

static wf_var *say_scatter_nd(onnx_call *call)
{
    static int64_t row[INDICES], place[INDICES];
    wf_shape rest = {0};
    const int n = rows_of_tuples(call, 1, 0, row, &rest);
    const int64_t inner = wf_shape_count(rest);
    if (n * inner > INDICES)
        return NULL;
    for (int i = 0; i < n; i++)
        for (int64_t j = 0; j < inner; j++)
            place[i * inner + j] = row[i] * inner + j;
    return update(call, place, (int)(n * inner));
}

static wf_var *say_compress(onnx_call *call)
{
    static int64_t kept[INDICES], index[INDICES];
    const int n = onnx_read(call, 1, INDICES, kept);
    int count = 0;
    for (int i = 0; i < n; i++)
        if (kept[i])
            index[count++] = i;
    if (!onnx_find(call, "axis"))
        return pick_flat(call->in[0], WF_SHAPE(count), index);
    return onnx_pick(call->in[0], onnx_axis(call->in[0], onnx_int(call, "axis", 0)), count, index);
}

/* From start towards end in steps, both limited to the dimension as ONNX says. */
static int slice_indices(int64_t length, int64_t start, int64_t end, int64_t step, int64_t index[INDICES])
{
    const int64_t least = step > 0 ? 0 : -1, most = step > 0 ? length : length - 1;
    start += start < 0 ? length : 0;
    end += end < 0 ? length : 0;
    start = start < 0 ? 0 : start > most ? most : start;
    end = end < least ? least : end > most ? most : end;
    int n = 0;
    for (int64_t i = start; step > 0 ? i < end : i > end; i += step)
        index[n++] = i;
    return n;
}

static wf_var *say_slice(onnx_call *call)
{
    static int64_t index[INDICES];
    int64_t start[WF_MAX_RANK], end[WF_MAX_RANK], axis[WF_MAX_RANK], step[WF_MAX_RANK];
    wf_var *y = call->in[0];
    const int n = onnx_read(call, 1, WF_MAX_RANK, start);
    onnx_read(call, 2, WF_MAX_RANK, end);
    const bool all = onnx_read(call, 3, WF_MAX_RANK, axis) == 0, ones = onnx_read(call, 4, WF_MAX_RANK, step) == 0;
    for (int i = 0; i < n; i++) {
        const int dim = all ? i : onnx_axis(y, axis[i]);
        const int count = slice_indices(wf_var_shape(y).dim[dim], start[i], end[i], ones ? 1 : step[i], index);
        y = onnx_pick(y, dim, count, index);
    }
    return y;
}

static wf_var *say_reverse_sequence(onnx_call *call)
{
    static int64_t length[INDICES], index[INDICES];
    const int batch = (int)onnx_int(call, "batch_axis", 1), time = (int)onnx_int(call, "time_axis", 0);
    const wf_shape x = wf_var_shape(call->in[0]);
    int64_t step[WF_MAX_RANK];
    row_major_steps(x, step);
    onnx_read(call, 1, INDICES, length);
    for (int64_t i = 0; i < wf_shape_count(x); i++) {
        const int64_t b = i / step[batch] % x.dim[batch], t = i / step[time] % x.dim[time];
        index[i] = t < length[b] ? i + (length[b] - 1 - 2 * t) * step[time] : i;
    }
    return pick_flat(call->in[0], x, index);
}

/* `on` where the index is that of the place along the new axis. */
static wf_var *say_one_hot(onnx_call *call)
{
    static int64_t index[INDICES];
    static double hot[INDICES];
    const wf_shape by = wf_var_shape(call->in[0]);
    const int64_t depth = (int64_t)onnx_number(call, 1, 0), axis = onnx_int(call, "axis", -1);
    const int dim = (int)(axis < 0 ? axis + by.rank + 1 : axis), n = read_indices(call, 0, depth, index);
    int64_t inner = 1;
    wf_shape to = {.rank = by.rank + 1};
    for (int d = 0; d < to.rank; d++)
        to.dim[d] = d < dim ? by.dim[d] : d == dim ? depth : by.dim[d - 1];
    for (int d = dim; d < by.rank; d++)
        inner *= by.dim[d];
    memset(hot, 0, sizeof hot);
    for (int i = 0; i < n; i++)
        if (index[i] >= 0 && index[i] < depth)
            hot[(i / inner * depth + index[i]) * inner + i % inner] = 1;
    wf_var *where = onnx_constant(call, WF_U8, to, hot);
    wf_var *off = onnx_float(onnx_pick(call->in[2], 0, 1, (int64_t[]){0}));
    wf_var *on = onnx_float(onnx_pick(call->in[2], 0, 1, (int64_t[]){1}));
    return onnx_like(call, wf_where(where, on, off), call->in[2]);
}

const onnx_operator onnx_gathers[] = {{"Gather", say_gather, ONNX_WHOLE},
                                      {"GatherElements", say_gather_elements, ONNX_WHOLE},
                                      {"GatherND", say_gather_nd, ONNX_WHOLE},
                                      {"Scatter", say_scatter_elements, ONNX_WHOLE},
                                      {"ScatterElements", say_scatter_elements, ONNX_WHOLE},
                                      {"ScatterND", say_scatter_nd, ONNX_WHOLE},
                                      {"Compress", say_compress, ONNX_WHOLE},
                                      {"Slice", say_slice, ONNX_WHOLE},
                                      {"ReverseSequence", say_reverse_sequence, ONNX_WHOLE},
                                      {"OneHot", say_one_hot, ONNX_WHOLE},
                                      {0}};
