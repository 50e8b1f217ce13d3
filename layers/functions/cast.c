/* Casts: on request (wf_cast), for layers that compute in 16 bits, and for functions that widen 16-bit inputs to f32.
 * The gradient is always cast back to the input's type. Layers never cast by themselves. */
#include "layers/functions.h"
#include "layers/functions/functions_impl.h"

static wf_status cast_backward(wf_node *node)
{
    const wf_tensor *x = node->in[0]->value;
    return wf_function_give(node, 0, wf_tensor_dense(wf_node_dy(node), x->dtype, x->order));
}

static const wf_op cast_op = {.name = "cast", .backward = cast_backward};

/* To or from an integer type: a variable without history. */
static wf_var *cast_whole(wf_var *x, wf_dtype dtype)
{
    char text[WF_LAYOUT_TEXT];
    WF_CHECK_NULL(!wf_layout_is_partial(&x->value->layout), WF_ERR_SHAPE,
                  "cast to %s is not linear, and its input is one rank's part of a sum: %s", wf_dtype_name(dtype),
                  wf_layout_text(&x->value->layout, text));
    wf_tensor *y = wf_tensor_dense(x->value, dtype, x->value->order);
    if (!y)
        return NULL;
    y->layout = x->value->layout;
    wf_var *out = wf_input(x->tape, y);
    wf_tensor_free(y);
    return out;
}

wf_var *wf_cast(wf_var *x, wf_dtype dtype)
{
    if (!x || x->no_loss)
        return x;
    WF_TRY_NULL(wf_function_check_value("cast", x));
    WF_CHECK_NULL((unsigned)dtype < WF_DTYPES, WF_ERR_DTYPE, "cast to type %d, which does not exist", (int)dtype);
    if (x->value->dtype == dtype)
        return x;
    if (!wf_dtype_is_float(dtype) || !wf_dtype_is_float(x->value->dtype))
        return cast_whole(x, dtype);
    wf_tensor *y = wf_tensor_dense(x->value, dtype, x->value->order);
    /* A loss stays the mean over as many samples in another type. */
    const wf_reduction reduction = wf_reduction_of(x);
    if (!y)
        return NULL;
    y->layout = x->value->layout;
    return wf_reduction_mark(wf_tape_record(x->tape, &(wf_node_spec){.op = &cast_op, .n_in = 1, .in = &x}, y),
                             &reduction);
}

/* The types between which mixed precision converts. */
static bool mixes(wf_dtype dtype)
{
    return dtype == WF_F32 || dtype == WF_BF16 || dtype == WF_F16;
}

wf_var *wf_cast_to_compute(wf_var *x)
{
    const wf_ctx *ctx = wf_tape_ctx(x->tape);
    return wf_ctx_compute(ctx) != wf_ctx_dtype(ctx) && mixes(x->value->dtype) ? wf_cast(x, wf_ctx_compute(ctx)) : x;
}

wf_var *wf_widened(wf_var *x)
{
    const bool narrow = x && x->value && (x->value->dtype == WF_BF16 || x->value->dtype == WF_F16);
    return narrow ? wf_cast(x, WF_F32) : x;
}

bool wf_promoted(wf_dtype a, wf_dtype b, wf_dtype *both)
{
    *both = a == b ? a : WF_F32;
    return a == b || (mixes(a) && mixes(b));
}

wf_status wf_function_promote(wf_var **a, wf_var **b)
{
    wf_dtype both;
    if (!(*a)->value || !(*b)->value || !wf_promoted((*a)->value->dtype, (*b)->value->dtype, &both))
        return WF_OK;
    *a = wf_cast(*a, both);
    WF_NEED(*a);
    *b = wf_cast(*b, both);
    WF_NEED(*b);
    return WF_OK;
}
