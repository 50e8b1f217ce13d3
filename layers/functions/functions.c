/* Checks and steps that all functions share: arguments, layouts, the output of a function, and the bookkeeping of
 * sums and means that are parts of a global one. */
#include "layers/functions/functions_impl.h"

#include "comm/mesh.h"

#include "layers/layer_author.h"

#include <stdio.h>

/* wf_backward frees values that nothing needs any more; a program that wants one keeps it. */
wf_status wf_function_check_value(const char *what, const wf_var *x)
{
    WF_CHECK(x->value, WF_ERR_STATE, "%s of a variable whose value went with the backward that passed it", what);
    WF_CHECK(!x->no_loss, WF_ERR_STATE, "%s of wf_no_loss, which has no value", what);
    return WF_OK;
}

wf_status wf_function_check(const char *what, const wf_var *x, wf_linearity linearity)
{
    char text[WF_LAYOUT_TEXT];
    WF_TRY(wf_function_check_value(what, x));
    WF_CHECK(wf_dtype_is_float(x->value->dtype), WF_ERR_DTYPE, "%s takes a float type, not %s", what,
             wf_dtype_name(x->value->dtype));
    /* f(a + b) is not f(a) + f(b): applied to each rank's part, the sum over ranks would be wrong without an error. */
    WF_CHECK(linearity == WF_LINEAR || !wf_layout_is_partial(&x->value->layout), WF_ERR_SHAPE,
             "%s is not linear, and its input is one rank's part of a sum: %s", what,
             wf_layout_text(&x->value->layout, text));
    return WF_OK;
}

static wf_shape whole_shape(const wf_tensor *t)
{
    return t->layout.known ? t->layout.global : t->shape;
}

const char *wf_part_text(const wf_layout *layout, char text[WF_PART_TEXT])
{
    char global[WF_SHAPE_TEXT];
    text[0] = '\0';
    if (layout->known && !wf_box_equal(layout->box, wf_box_of_shape(layout->global)))
        snprintf(text, WF_PART_TEXT, " (this rank's part of %s)", wf_shape_text(layout->global, global));
    return text;
}

wf_status wf_function_check_pair(const char *what, const wf_var *a, const wf_var *b, wf_linearity linearity)
{
    char left[WF_SHAPE_TEXT], right[WF_SHAPE_TEXT];
    WF_TRY(wf_function_check(what, a, linearity));
    WF_TRY(wf_function_check(what, b, linearity));
    WF_CHECK(a->tape == b->tape, WF_ERR_ARGUMENT, "%s of variables of two tapes", what);
    if (!wf_shape_equal(a->value->shape, b->value->shape)) {
        /* Equal wholes in other parts: their layouts say why the shapes differ here. */
        if (wf_shape_equal(whole_shape(a->value), whole_shape(b->value)))
            WF_TRY(wf_function_check_layouts(what, a, b));
        WF_FAIL(WF_ERR_SHAPE, "%s takes equal shapes, not %s and %s", what, wf_shape_text(a->value->shape, left),
                wf_shape_text(b->value->shape, right));
    }
    WF_CHECK(a->value->dtype == b->value->dtype, WF_ERR_DTYPE, "%s takes equal types, not %s and %s", what,
             wf_dtype_name(a->value->dtype), wf_dtype_name(b->value->dtype));
    return WF_OK;
}

wf_status wf_function_check_layouts(const char *what, const wf_var *a, const wf_var *b)
{
    char left[WF_LAYOUT_TEXT], right[WF_LAYOUT_TEXT];
    WF_CHECK(wf_layout_equal(&a->value->layout, &b->value->layout), WF_ERR_SHAPE,
             "%s takes equal layouts, not (%s) and (%s); wf_redistribute one of them", what,
             wf_layout_text(&a->value->layout, left), wf_layout_text(&b->value->layout, right));
    return WF_OK;
}

/* In its own order: for functions of each element. */
wf_tensor *wf_function_value(const wf_var *x)
{
    return wf_tensor_dense(x->value, x->value->dtype, x->value->order);
}

wf_tensor *wf_dense_value(const wf_var *x)
{
    if (!x)
        return NULL;
    WF_CHECK_NULL(x->value, WF_ERR_STATE,
                  "a variable whose value went with the backward that passed it; keep it before");
    /* The order in which the kernels of layers compute. */
    const wf_order order = x->value->shape.rank >= 3 ? WF_CHANNELS_LAST : WF_ROW_MAJOR;
    return wf_tensor_dense(x->value, x->value->dtype, order);
}

/* `from` says which dimension of x each dimension of y is, -1 for a new one: its cut goes along. */
wf_tensor *wf_output(const char *what, const wf_var *x, wf_shape shape, wf_order order, const int *from)
{
    char text[WF_LAYOUT_TEXT];
    wf_layout layout;
    if (!x || !x->value)
        return NULL;
    WF_CHECK_NULL(wf_layout_follow(&x->value->layout, shape, from, &layout), WF_ERR_SHAPE,
                  "%s cannot take an input that is %s; wf_redistribute it first", what,
                  wf_layout_text(&x->value->layout, text));
    wf_tensor *y = wf_tensor_new_step(x->value->ctx, x->value->dtype, shape, order);
    if (y)
        y->layout = layout;
    return y;
}

/* On failure y is freed, and NULL says so; the caller only frees its own. */
wf_var *wf_function_finish(wf_status status, wf_tape *tape, const wf_node_spec *record, wf_tensor *y)
{
    if (status == WF_OK)
        return wf_tape_record(tape, record, y);
    wf_tensor_free(y);
    return wf_error_null();
}

wf_status wf_function_give(wf_node *node, int i, wf_tensor *dx)
{
    WF_NEED(dx);
    /* A gradient that is dy itself must not be added to in place. */
    return wf_node_give(node, i, dx, dx->storage == wf_node_dy(node)->storage);
}

/* The mean is over the global batch: each rank divides by the global count, so the sum over ranks of losses, and of
 * gradients, is the mean. */
wf_reduction wf_reduction_mean(const wf_var *x, int without)
{
    const wf_layout *layout = &x->value->layout;
    wf_shape shape = layout->known ? layout->global : x->value->shape;
    /* Elements here and of all ranks: their share of the samples. */
    const int64_t own = wf_shape_count(x->value->shape), all = wf_shape_count(shape);
    wf_reduction reduction = wf_reduction_of(x);
    reduction.loss_mean = !layout->known;
    /* The first reduction notes how many samples the loss stands for; later ones only rescale. */
    if (x->loss_count == 0) {
        reduction.loss_count = x->loss_mean ? 0 : shape.rank > 0 ? (double)shape.dim[0] : 1;
        reduction.loss_part = all > 0 ? (double)own / (double)all * reduction.loss_count : 0;
        /* Every rank has a part of all elements of a partial value. */
        for (int a = 0; a < WF_AXES; a++)
            if (layout->known && layout->placement[a] == WF_PARTIAL)
                reduction.loss_part /= wf_mesh_size(layout->mesh, (wf_axis)a);
    }
    if (without >= 0)
        shape.dim[without] = 1;
    const int64_t count = wf_shape_count(shape);
    reduction.scale = count > 0 ? 1.0 / (double)count : 0.0;
    return reduction;
}

wf_reduction wf_reduction_of(const wf_var *x)
{
    return (wf_reduction){.scale = 1,
                          .loss_mean = x->loss_mean,
                          .loss_count = x->loss_count,
                          .loss_part = x->loss_part,
                          .loss_counted = x->loss_counted,
                          .loss_mixed = x->loss_mixed,
                          .loss_relays = x->loss_relays};
}

wf_tensor *wf_reduction_scalar(const wf_var *x)
{
    /* Losses are f32 at least. */
    const bool narrow = x->value->dtype == WF_BF16 || x->value->dtype == WF_F16;
    wf_tensor *y =
        wf_tensor_new_step(x->value->ctx, narrow ? WF_F32 : x->value->dtype, wf_shape_scalar(), WF_ROW_MAJOR);
    if (!y || !x->value->layout.known)
        return y;
    wf_layout layout = {.known = true, .mesh = x->value->layout.mesh};
    for (int axis = 0; axis < WF_AXES; axis++)
        /* Along an axis on which the input is sharded each rank has a part of the sum. */
        layout.placement[axis] = x->value->layout.placement[axis] == WF_REPLICATED ? WF_REPLICATED : WF_PARTIAL;
    if (wf_tensor_set_layout(y, layout) == WF_OK)
        return y;
    wf_tensor_free(y);
    return wf_error_null();
}

wf_var *wf_reduction_mark(wf_var *y, const wf_reduction *reduction)
{
    if (!y)
        return NULL;
    const bool known = y->value->layout.known;
    y->loss_mean = reduction->loss_mean && !known;
    y->loss_count = reduction->loss_mean || known ? reduction->loss_count : 0;
    y->loss_part = reduction->loss_part;
    y->loss_counted = reduction->loss_counted;
    y->loss_mixed = reduction->loss_mixed;
    y->loss_relays = reduction->loss_relays;
    return y;
}
