/* What the functions of the families share: attributes, constants, casts, and the few functions of numbers that several
 * operators are made of. */
#include "tests/outside/onnx.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const onnx_attribute *onnx_find(const onnx_call *call, const char *name)
{
    for (int i = 0; i < call->node->n_attributes; i++)
        if (strcmp(call->node->attribute[i].name, name) == 0)
            return &call->node->attribute[i];
    return NULL;
}

int64_t onnx_int(const onnx_call *call, const char *name, int64_t otherwise)
{
    const onnx_attribute *a = onnx_find(call, name);
    return a ? (int64_t)a->real[0] : otherwise;
}

double onnx_real(const onnx_call *call, const char *name, double otherwise)
{
    const onnx_attribute *a = onnx_find(call, name);
    return a ? a->real[0] : otherwise;
}

bool onnx_word_is(const onnx_call *call, const char *name, const char *word)
{
    const onnx_attribute *a = onnx_find(call, name);
    return a && a->word && strcmp(a->word, word) == 0;
}

int onnx_ints(const onnx_call *call, const char *name, int most, int64_t *to)
{
    const onnx_attribute *a = onnx_find(call, name);
    for (int i = 0; a && i < a->count && i < most; i++)
        to[i] = (int64_t)a->real[i];
    return !a ? 0 : a->count < most ? a->count : most;
}

const onnx_tensor *onnx_tensor_of(const onnx_case *c, const char *name)
{
    for (int i = 0; i < c->n_tensors; i++)
        if (strcmp(c->tensor[i].name, name) == 0)
            return &c->tensor[i];
    return NULL;
}

double *onnx_numbers(const wf_var *x)
{
    wf_tensor *wide = wf_tensor_copy(wf_value(x), WF_F64, WF_ROW_MAJOR);
    double *number = calloc((size_t)wf_tensor_count(wide) + 1, sizeof *number);
    WF_EXPECT_OK(wf_tensor_export(wide, number, wf_tensor_bytes(wide)));
    wf_tensor_free(wide);
    return number;
}

int onnx_read(const onnx_call *call, int port, int most, int64_t *to)
{
    if (port >= call->node->n_in || !call->in[port])
        return 0;
    const int64_t count = wf_tensor_count(wf_value(call->in[port]));
    double *number = onnx_numbers(call->in[port]);
    WF_EXPECT(count <= most, "%s: input %d of %s has %lld numbers, room is for %d", call->of->name, port,
              call->node->op, (long long)count, most);
    for (int i = 0; i < count && i < most; i++)
        to[i] = number[i] > 0x1p62 ? INT64_MAX : number[i] < -0x1p62 ? INT64_MIN : (int64_t)number[i];
    free(number);
    return (int)(count < most ? count : most);
}

double onnx_number(const onnx_call *call, int port, double otherwise)
{
    if (port >= call->node->n_in || !call->in[port])
        return otherwise;
    double *number = onnx_numbers(call->in[port]);
    const double first = number[0];
    free(number);
    return first;
}

const wf_tensor *onnx_hold(onnx_call *call, wf_tensor *tensor)
{
    onnx_run *run = call->run;
    WF_EXPECT(run->n_held < ONNX_HELD, "%s: more than %d constants", call->of->name, ONNX_HELD);
    if (run->n_held < ONNX_HELD)
        run->held[run->n_held++] = tensor;
    return tensor;
}

wf_dtype onnx_held_type(const char *type)
{
    for (int t = 0; t < WF_DTYPES; t++)
        if (strcmp(wf_dtype_name((wf_dtype)t), type) == 0)
            return (wf_dtype)t;
    return strcmp(type, "bool") == 0 ? WF_U8 : WF_DTYPES;
}

/* Integers go in as i64, since a double does not hold all of them. */
wf_var *onnx_input(onnx_run *run, const onnx_tensor *t)
{
    const wf_dtype type = onnx_held_type(t->type), wide = t->real ? WF_F64 : WF_I64;
    if (type == WF_DTYPES)
        return NULL;
    wf_tensor *given = wf_tensor_from_host(run->ctx, wide, t->shape, t->real ? (void *)t->real : (void *)t->whole);
    wf_tensor *tensor = wf_tensor_copy(given, type, wf_order_default(t->shape.rank));
    wf_tensor_free(given);
    WF_EXPECT(run->n_held < ONNX_HELD, "more than %d constants", ONNX_HELD);
    if (run->n_held == ONNX_HELD)
        return NULL;
    run->held[run->n_held++] = tensor;
    return wf_input(run->tape, tensor);
}

wf_var *onnx_constant(onnx_call *call, wf_dtype dtype, wf_shape shape, const double *value)
{
    wf_tensor *wide = wf_tensor_new_ordered(call->run->ctx, WF_F64, shape, WF_ROW_MAJOR);
    WF_EXPECT_OK(wf_tensor_import(wide, value, wf_tensor_bytes(wide)));
    wf_tensor *tensor = wf_tensor_copy(wide, dtype, wf_order_default(shape.rank));
    wf_tensor_free(wide);
    if (call->run->mesh)
        WF_EXPECT_OK(wf_tensor_set_layout(tensor, wf_mesh_layout_same(call->run->mesh, shape)));
    return wf_input(call->run->tape, onnx_hold(call, tensor));
}

wf_var *onnx_scalar(onnx_call *call, const wf_var *like, double value)
{
    wf_tensor *tensor = wf_tensor_new(call->run->ctx, onnx_dtype(like), wf_shape_scalar());
    WF_EXPECT_OK(wf_tensor_fill(tensor, value));
    const wf_layout layout = wf_tensor_layout(wf_value(like));
    if (layout.known)
        WF_EXPECT_OK(wf_tensor_set_layout(tensor, wf_mesh_layout_same(layout.mesh, wf_shape_scalar())));
    return wf_input(call->run->tape, onnx_hold(call, tensor));
}

wf_layer *onnx_layer(onnx_call *call, wf_layer *layer)
{
    if (layer && call->run->n_layers < ONNX_NODES)
        call->run->layer[call->run->n_layers++] = layer;
    return layer;
}

void onnx_set_param(wf_layer *layer, const char *name, const wf_var *value)
{
    if (!layer)
        return;
    wf_param *param = wf_layer_param(layer, name);
    WF_EXPECT(param, "no parameter %s", name);
    if (param)
        WF_EXPECT_OK(wf_param_import(param, wf_value(value)));
}

wf_dtype onnx_dtype(const wf_var *x)
{
    return wf_tensor_dtype(wf_value(x));
}

int onnx_rank(const wf_var *x)
{
    return wf_var_shape(x).rank;
}

wf_shape onnx_whole_shape(const wf_var *x)
{
    const wf_layout layout = wf_tensor_layout(wf_value(x));
    return layout.known ? layout.global : wf_var_shape(x);
}

int onnx_axis(const wf_var *x, int64_t axis)
{
    return (int)(axis < 0 ? axis + onnx_rank(x) : axis);
}

wf_var *onnx_float(wf_var *x)
{
    if (!x || wf_dtype_is_float(onnx_dtype(x)))
        return x;
    return wf_cast(x, onnx_dtype(x) == WF_U8 ? WF_F32 : WF_F64);
}

/* Integers of f32 are not rounded to more than 2^23, which no case here reaches. */
wf_var *onnx_round(onnx_call *call, wf_var *x)
{
    wf_var *large = onnx_scalar(call, x, onnx_dtype(x) == WF_F64 ? 0x1.8p52 : 0x1.8p23);
    wf_var *shifted = wf_add(x, large);
    return wf_sub(shifted, large);
}

wf_var *onnx_like(onnx_call *call, wf_var *x, const wf_var *like)
{
    if (!x || onnx_dtype(x) == onnx_dtype(like))
        return x;
    return wf_cast(wf_dtype_is_float(onnx_dtype(like)) ? x : onnx_round(call, x), onnx_dtype(like));
}

wf_var *onnx_positive(onnx_call *call, wf_var *x)
{
    wf_var *one = onnx_scalar(call, x, 1), *none = onnx_scalar(call, x, 0);
    return wf_where(wf_relu(x), one, none);
}

wf_var *onnx_zero(onnx_call *call, wf_var *x)
{
    wf_var *one = onnx_scalar(call, x, 1), *none = onnx_scalar(call, x, 0);
    return wf_where(x, none, one);
}

wf_var *onnx_larger(wf_var *a, wf_var *b, double sign)
{
    return wf_where(wf_relu(wf_scale(wf_sub(b, a), sign)), b, a);
}

wf_var *onnx_pick(wf_var *x, int dim, int64_t count, const int64_t *index)
{
    wf_box box = wf_box_of_shape(wf_var_shape(x));
    wf_var **part = calloc((size_t)count + 1, sizeof(wf_var *));
    int parts = 0;
    for (int64_t i = 0, next; i < count; i = next) {
        for (next = i + 1; next < count && index[next] == index[next - 1] + 1;)
            next++;
        box.lo[dim] = index[i];
        box.hi[dim] = index[next - 1] + 1;
        part[parts++] = wf_slice(x, box);
    }
    if (count == 0) {
        box.hi[dim] = box.lo[dim] = 0;
        part[parts++] = wf_slice(x, box);
    }
    wf_var *y = parts == 1 ? part[0] : wf_concat(parts, part, dim);
    free(part);
    return y;
}
