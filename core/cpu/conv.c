/* Convolution in three directions through oneDNN, on channels-last activations and filters in oneDNN's own form. Small
 * filters go by minimal filtering (core/cpu/wino.c) where that pays, many channels on few pixels as products
 * (columns.c); what oneDNN does not take goes through f32 (core/cpu/wide.c) or `ref`. Layers reach it through the
 * kernel table alone. */
#include "core/cpu/cpu_impl.h"
#include "core/cpu/dnn_impl.h"
#include "core/cpu/wino_impl.h"

#include <string.h>

static bool has_zero(const wf_array *a)
{
    return wf_array_count(a) == 0;
}

/* Two arrays that are multiplied, and the result. */
static bool takes(const wf_array *a, const wf_array *b, const wf_array *result)
{
    const bool f32 = a->dtype == WF_F32 && b->dtype == WF_F32 && result->dtype == WF_F32;
    const bool bf16 = wf_dnn_takes_bf16() && a->dtype == WF_BF16 && b->dtype == WF_BF16 &&
                      (result->dtype == WF_BF16 || result->dtype == WF_F32);
    return (f32 || bf16) && !has_zero(a) && !has_zero(b) && !has_zero(result);
}

/* The result of 16-bit numbers is f32. */
static int flag_wide(const wf_array *in, const wf_array *result)
{
    return in->dtype == WF_BF16 && result->dtype == WF_F32 ? WF_DNN_WIDE : 0;
}

/* oneDNN takes no negative pads, which transposed convolutions and slices of parallel ones have. */
static bool crops(const wf_conv_geom *geom)
{
    for (int d = 0; d < geom->nd; d++)
        if (geom->pad_lo[d] < 0 || geom->pad_hi[d] < 0)
            return true;
    return false;
}

static wf_dnn_key conv_key(const wf_ctx *ctx, wf_dnn_kind kind, int flags, const wf_conv_geom *geom, const wf_array *x,
                           const wf_array *y)
{
    wf_dnn_key key;
    const size_t bytes = (size_t)geom->nd * sizeof(int64_t);
    /* Keys are compared and hashed as bytes, so the padding between fields must be equal too. */
    memset(&key, 0, sizeof key);
    key.kind = (int32_t)kind;
    /* If the types differ, one is bf16 and the other f32 (takes); the flag WF_DNN_WIDE tells that. */
    key.dtype = (int32_t)(x->dtype == y->dtype ? x->dtype : WF_BF16);
    key.nd = geom->nd;
    key.flags = flags;
    key.threads = ctx->threads;
    key.n = x->shape.dim[0];
    key.c = x->shape.dim[1];
    key.f = y->shape.dim[1];
    key.groups = geom->groups;
    memcpy(key.in, x->shape.dim + 2, bytes);
    memcpy(key.out, y->shape.dim + 2, bytes);
    memcpy(key.kernel, geom->kernel, bytes);
    memcpy(key.stride, geom->stride, bytes);
    memcpy(key.dilation, geom->dilation, bytes);
    memcpy(key.lo, geom->pad_lo, bytes);
    memcpy(key.hi, geom->pad_hi, bytes);
    return key;
}

static wf_status minimal_filter(wf_ctx *ctx, const void *how, const wf_array *w, void *form)
{
    wf_wino_filter(ctx, how, w->data, form);
    return WF_OK;
}

static wf_status minimal(wf_ctx *ctx, const wf_wino *plan, const wf_array *in, const wf_array *w, const wf_array *bias,
                         float slope, const wf_array *out)
{
    /* The form is kept beside the parameter and made again only if that changed: a step transforms each filter once. */
    wf_filter_form form;
    const size_t bytes = (size_t)wf_wino_filter_count(plan) * sizeof(float);
    WF_TRY(wf_filter_form_take(ctx, w, wf_wino_filter_key(plan), bytes, minimal_filter, plan, &form));
    const wf_status status = wf_wino_run(ctx, plan, in->data, form.data, wf_cpu_data(bias), slope, out->data);
    wf_filter_form_give(ctx, &form);
    return status;
}

/* The part of x that negative pads leave, and a geometry without negative pads. */
typedef struct cropped {
    wf_conv_geom geom;
    wf_strided part; /* of the whole */
    wf_array x;      /* dense, in memory of the pool */
    size_t bytes;
} cropped;

static bool crop_of(const wf_conv_geom *geom, const wf_array *x, cropped *crop)
{
    *crop = (cropped){.geom = *geom, .part = wf_array_strided(x), .x = *x};
    int64_t offset = 0;
    for (int d = 0; d < geom->nd; d++) {
        const int64_t lo = geom->pad_lo[d] < 0 ? -geom->pad_lo[d] : 0, hi = geom->pad_hi[d] < 0 ? -geom->pad_hi[d] : 0;
        /* Nothing of x is left: all outputs are of padding, which the caller leaves to `ref`. */
        if (lo + hi >= x->shape.dim[2 + d])
            return false;
        offset += lo * crop->part.stride[2 + d];
        crop->part.dim[2 + d] = crop->x.shape.dim[2 + d] = x->shape.dim[2 + d] - lo - hi;
        crop->geom.pad_lo[d] += lo;
        crop->geom.pad_hi[d] += hi;
    }
    const size_t size = wf_dtype_size(x->dtype);
    crop->part.data = (char *)x->data + offset * (int64_t)size;
    crop->bytes = (size_t)wf_array_count(&crop->x) * size;
    /* The packed forms are those of the whole. */
    crop->x.forms = NULL;
    return true;
}

/* oneDNN takes arrays without gaps only, so the part is copied; backward copies the gradient back. */
static wf_status crop_in(wf_ctx *ctx, cropped *crop)
{
    WF_TRY(wf_pool_take(ctx, crop->bytes, &crop->x.data));
    const wf_strided dense = wf_array_strided(&crop->x);
    return wf_cpu_copy(ctx, &crop->part, &dense, false);
}

static wf_status forward_cropped(wf_ctx *ctx, const wf_conv_args *args)
{
    cropped crop;
    /* The part has no negative pads, so the slot does not come here again. */
    if (!crop_of(args->geom, args->x, &crop))
        return wf_wide_conv_forward(ctx, args);
    wf_conv_args part = *args;
    part.geom = &crop.geom;
    part.x = &crop.x;
    wf_status status = crop_in(ctx, &crop);
    if (status == WF_OK)
        status = wf_cpu_conv_forward(ctx, &part);
    wf_pool_give(ctx, crop.x.data, crop.bytes);
    return status;
}

static wf_status forward_dnn(wf_ctx *ctx, const wf_conv_args *args, const wf_epilogue *fused, bool *done)
{
    const wf_array *const x = args->x, *const bias = args->bias, *const y = args->y;
    const wf_dnn_op *op = NULL;
    const int flags = (wf_cpu_data(bias) ? WF_DNN_BIAS : 0) | (fused ? WF_DNN_ACT : 0) | flag_wide(x, y);
    wf_dnn_key key = conv_key(ctx, WF_DNN_FORWARD, flags, args->geom, x, y);
    key.slope = fused ? wf_epilogue_slope(fused) : 0.0F;
    WF_TRY(wf_dnn_find(ctx, &key, &op));
    *done = op != NULL;
    if (!op)
        return WF_OK;
    wf_filter_form form;
    WF_TRY(wf_dnn_form_take(ctx, op, args->w, &form));
    void *const data[WF_DNN_ROLES] = {
        [WF_DNN_X] = x->data, [WF_DNN_W] = form.data, [WF_DNN_B] = wf_cpu_data(bias), [WF_DNN_Y] = y->data};
    const wf_status status = wf_dnn_run(ctx, op, data);
    wf_filter_form_give(ctx, &form);
    return status;
}

wf_status wf_cpu_conv_forward(wf_ctx *ctx, const wf_conv_args *args)
{
    const wf_array *const x = args->x, *const w = args->w, *const bias = args->bias, *const y = args->y;
    if (!takes(x, w, y) || !wf_cpu_is(bias, x->dtype))
        return wf_wide_conv_forward(ctx, args);
    if (crops(args->geom))
        return forward_cropped(ctx, args);
    /* Each form answers only for shapes on which it was measured to be faster; the first that answers runs. */
    if (wf_cpu_columns_pay(args))
        return wf_cpu_columns_forward(ctx, args);
    wf_wino plan;
    bool done = true;
    const bool noisy = args->epilogue && args->epilogue->noise != 0;
    /* oneDNN adds no noise, and the activation comes after the noise: then both are a pass of their own. */
    const wf_epilogue *const fused = noisy || wf_epilogue_is_plain(args->epilogue) ? NULL : args->epilogue;
    if (wf_grouped_pays(args))
        WF_TRY(wf_grouped_forward(ctx, args, wf_epilogue_slope(fused)));
    else if (wf_wino_plan(ctx, false, args->geom, x, w, y, &plan))
        WF_TRY(minimal(ctx, &plan, x, w, bias, wf_epilogue_slope(fused), y));
    else
        WF_TRY(forward_dnn(ctx, args, fused, &done));
    if (!done)
        return wf_wide_conv_forward(ctx, args);
    return noisy ? wf_cpu_epilogue_forward(ctx, args->epilogue, y, y) : WF_OK;
}

/* dx without bias and epilogue, all of it written. `done` is false if oneDNN does not take it: no error, since the
 * caller has f32 copies and `ref` left. */
static wf_status backward_data(wf_ctx *ctx, const wf_conv_geom *geom, const wf_array *dy, const wf_array *w,
                               const wf_array *dx, bool *done)
{
    const wf_dnn_op *op = NULL;
    const wf_conv_args product = {.geom = geom, .x = dx, .y = dy, .w = w};
    *done = true;
    if (wf_cpu_columns_data_pay(&product))
        return wf_cpu_columns_data(ctx, &product);
    if (wf_grouped_data_pays(&product))
        return wf_grouped_data(ctx, &product);
    const wf_dnn_key key = conv_key(ctx, WF_DNN_BACKWARD_DATA, flag_wide(dy, dx), geom, dx, dy);
    WF_TRY(wf_dnn_find(ctx, &key, &op));
    *done = op != NULL;
    if (!op)
        return WF_OK;
    wf_filter_form form;
    WF_TRY(wf_dnn_form_take(ctx, op, w, &form));
    void *const data[WF_DNN_ROLES] = {[WF_DNN_X] = dx->data, [WF_DNN_W] = form.data, [WF_DNN_Y] = dy->data};
    const wf_status status = wf_dnn_run(ctx, op, data);
    wf_filter_form_give(ctx, &form);
    return status;
}

/* What was cropped away has no gradient: zeros around the part. */
static wf_status backward_data_cropped(wf_ctx *ctx, const wf_conv_geom *geom, const wf_array *dy, const wf_array *w,
                                       const wf_array *dx, bool *done)
{
    cropped crop;
    *done = crop_of(geom, dx, &crop);
    if (!*done)
        return WF_OK;
    WF_TRY(wf_pool_take(ctx, crop.bytes, &crop.x.data));
    wf_status status = backward_data(ctx, &crop.geom, dy, w, &crop.x, done);
    /* Zeros before the copy: the cropped border is not written by it. */
    if (status == WF_OK && *done)
        status = wf_cpu_fill(ctx, dx, 0);
    if (status == WF_OK && *done) {
        const wf_strided dense = wf_array_strided(&crop.x);
        status = wf_cpu_copy(ctx, &dense, &crop.part, false);
    }
    wf_pool_give(ctx, crop.x.data, crop.bytes);
    return status;
}

/* Bias and epilogue come before the result is rounded. */
static wf_status backward_data_rounded(wf_ctx *ctx, const wf_conv_args *args)
{
    wf_array sums = *args->x;
    wf_conv_args wide = *args;
    const size_t bytes = (size_t)wf_array_count(args->x) * sizeof(float);
    sums.dtype = WF_F32;
    wide.x = &sums;
    wide.bias = NULL;
    wide.epilogue = NULL;
    WF_TRY(wf_pool_take(ctx, bytes, &sums.data));
    wf_status status = wf_cpu_conv_backward_data(ctx, &wide);
    if (status == WF_OK)
        status = wf_cpu_bias_epilogue(ctx, args->bias, args->epilogue, &sums, args->x);
    wf_pool_give(ctx, sums.data, bytes);
    return status;
}

wf_status wf_cpu_conv_backward_data(wf_ctx *ctx, const wf_conv_args *args)
{
    const wf_array *const dy = args->y, *const w = args->w, *const bias = args->bias, *const dx = args->x;
    wf_wino plan;
    bool done = false;
    /* A transposed convolution's forward is this slot, with its bias and epilogue; for a gradient there is neither. */
    const bool follows = wf_cpu_data(bias) || !wf_epilogue_is_plain(args->epilogue);
    if (!takes(dy, w, dx) || (follows && !wf_cpu_is(bias, dx->dtype)))
        return wf_wide_conv_backward_data(ctx, args);
    if (follows && dx->dtype == WF_BF16)
        return backward_data_rounded(ctx, args);
    if (wf_wino_plan(ctx, true, args->geom, dy, w, dx, &plan)) {
        const bool noisy = args->epilogue && args->epilogue->noise != 0;
        /* Noise comes before the activation, which is a pass of its own then: no slope here. */
        WF_TRY(minimal(ctx, &plan, dy, w, bias, noisy ? 1.0F : wf_epilogue_slope(args->epilogue), dx));
        return noisy ? wf_cpu_epilogue_forward(ctx, args->epilogue, dx, dx) : WF_OK;
    }
    if (crops(args->geom))
        WF_TRY(backward_data_cropped(ctx, args->geom, dy, w, dx, &done));
    else
        WF_TRY(backward_data(ctx, args->geom, dy, w, dx, &done));
    if (!done)
        return wf_wide_conv_backward_data(ctx, args);
    return follows ? wf_cpu_bias_epilogue(ctx, bias, args->epilogue, dx, dx) : WF_OK;
}

static wf_status filter_cropped(wf_ctx *ctx, const wf_conv_args *args)
{
    cropped crop;
    if (!crop_of(args->geom, args->x, &crop))
        return wf_wide_conv_backward_filter(ctx, args);
    wf_conv_args part = *args;
    part.geom = &crop.geom;
    part.x = &crop.x;
    wf_status status = crop_in(ctx, &crop);
    if (status == WF_OK)
        status = wf_cpu_conv_backward_filter(ctx, &part);
    wf_pool_give(ctx, crop.x.data, crop.bytes);
    return status;
}

static wf_status filter_run(wf_ctx *ctx, const wf_dnn_op *op, const wf_array *x, const wf_array *dy, const wf_array *dw,
                            void *dbias)
{
    void *form = NULL;
    /* oneDNN's form is a copy, which the reorder adds to dw or writes there; without a reorder dw itself is the
     * result. */
    if (op->reorder)
        WF_TRY(wf_pool_take(ctx, op->form_bytes, &form));
    void *const data[WF_DNN_ROLES] = {
        [WF_DNN_X] = x->data, [WF_DNN_W] = form ? form : dw->data, [WF_DNN_B] = dbias, [WF_DNN_Y] = dy->data};
    /* Without AMX oneDNN's jit_bf16 may add to what is there, on one thread, where the gradient of a volume is f32; a
     * step of a U-Net by its next choice takes three times as long. */
    if ((op->key.flags & WF_DNN_WIDE) && op->key.nd == 3)
        memset(data[WF_DNN_W], 0, op->form_bytes);
    wf_status status = wf_dnn_run(ctx, op, data);
    if (status == WF_OK && form)
        status = wf_dnn_reorder(ctx, op, dw->data, form);
    wf_pool_give(ctx, form, op->form_bytes);
    return status;
}

wf_status wf_cpu_conv_backward_filter(wf_ctx *ctx, const wf_conv_args *args)
{
    const wf_array *const x = args->x, *const dy = args->y, *const dw = args->w, *const dbias = args->bias;
    if (!takes(x, dy, dw) || !wf_cpu_is(dbias, dw->dtype))
        return wf_wide_conv_backward_filter(ctx, args);
    if (crops(args->geom))
        return filter_cropped(ctx, args);
    if (wf_pointwise_gradient_pays(args))
        return wf_pointwise_gradient(ctx, args);
    if (wf_cpu_columns_gradient_pay(args))
        return wf_cpu_columns_gradient(ctx, args);
    wf_wino plan;
    /* The gradient's products have outputs as columns, in vectors of 16. */
    if (dy->shape.dim[1] % 16 == 0 && wf_wino_plan(ctx, false, args->geom, x, dw, dy, &plan)) {
        WF_TRY(wf_wino_gradient(ctx, &plan, x->data, dy->data, args->accumulate, dw->data));
        return wf_cpu_data(dbias) ? wf_cpu_bias_backward(ctx, dy, dbias, args->accumulate) : WF_OK;
    }
    if (wf_depthwise_has_gradient(args)) {
        WF_TRY(wf_depthwise_gradient(ctx, args));
        return wf_cpu_data(dbias) ? wf_cpu_bias_backward(ctx, dy, dbias, args->accumulate) : WF_OK;
    }
    if (wf_grouped_gradient_pays(args)) {
        WF_TRY(wf_grouped_gradient(ctx, args));
        return wf_cpu_data(dbias) ? wf_cpu_bias_backward(ctx, dy, dbias, args->accumulate) : WF_OK;
    }
    const wf_dnn_op *op = NULL;
    const int flags =
        (wf_cpu_data(dbias) ? WF_DNN_BIAS : 0) | (args->accumulate ? WF_DNN_ACCUMULATE : 0) | flag_wide(x, dw);
    const wf_dnn_key key = conv_key(ctx, WF_DNN_BACKWARD_FILTER, flags, args->geom, x, dy);
    WF_TRY(wf_dnn_find(ctx, &key, &op));
    if (!op)
        return wf_wide_conv_backward_filter(ctx, args);
    if (!wf_cpu_data(dbias) || !args->accumulate)
        return filter_run(ctx, op, x, dy, dw, wf_cpu_data(dbias));
    /* oneDNN can add to the filter's gradient but only overwrites the bias's: the sum is made here. */
    wf_array fresh = *dbias;
    const size_t bytes = (size_t)wf_array_count(dbias) * wf_dtype_size(dbias->dtype);
    WF_TRY(wf_pool_take(ctx, bytes, &fresh.data));
    wf_status status = filter_run(ctx, op, x, dy, dw, fresh.data);
    if (status == WF_OK)
        status = wf_cpu_binary(
            ctx, &(wf_binary_args){.op = WF_BINARY_LINEAR, .alpha = 1, .a = &fresh, .y = dbias, .accumulate = true});
    wf_pool_give(ctx, fresh.data, bytes);
    return status;
}
