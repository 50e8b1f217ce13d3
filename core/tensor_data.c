/* The elements of tensors: import, export, copies and conversions of order and type, all through the kernel table,
 * since the memory may be a device's. */
#include "core/captured_author.h"
#include "core/tensor_author.h"

#include <math.h>

/* Host buffers of programs are row-major. */
static wf_strided host_view(const wf_tensor *t, void *data)
{
    const wf_array a = {.data = data, .dtype = t->dtype, .order = WF_ROW_MAJOR, .shape = t->shape};
    return wf_array_strided(&a);
}

/* Refuses a buffer of another size, since its end cannot be seen: too short a one would be read beyond. */
static wf_status check_bytes(const wf_tensor *tensor, size_t bytes)
{
    char text[WF_SHAPE_TEXT];
    WF_CHECK(bytes == wf_tensor_bytes(tensor), WF_ERR_SHAPE, "a host buffer of %zu bytes for a tensor %s of %zu bytes",
             bytes, wf_shape_text(tensor->shape, text), wf_tensor_bytes(tensor));
    return WF_OK;
}

wf_status wf_tensor_import(wf_tensor *tensor, const void *host, size_t bytes)
{
    WF_NEED(tensor);
    WF_TRY(check_bytes(tensor, bytes));
    if (bytes == 0)
        return WF_OK;
    WF_NEED(host);
    wf_ctx *ctx = tensor->ctx;
    WF_TRY(wf_ctx_forbid_capture(ctx, "fill a tensor from host memory", "fill it between runs"));
    const wf_kernels *k = ctx->k;
    const wf_strided dst = wf_tensor_strided(tensor);
    wf_tensor_touch(tensor);
    if (k->host) {
        /* The buffer itself is read: no copy between. */
        const wf_strided src = host_view(tensor, (void *)host);
        return k->copy(ctx, &src, &dst, false);
    }
    void *stage;
    WF_TRY(wf_pool_take(ctx, bytes, &stage));
    wf_status status;
    /* Bytes cross as they lie; order and type change on the device, by the same kernel as everywhere. */
    WF_TRY_OUT(k->to_device(ctx, stage, host, bytes));
    const wf_strided src = host_view(tensor, stage);
    WF_TRY_OUT(k->copy(ctx, &src, &dst, false));
out:
    wf_pool_give(ctx, stage, bytes);
    return status;
}

wf_status wf_tensor_export(const wf_tensor *tensor, void *host, size_t bytes)
{
    WF_NEED(tensor);
    WF_TRY(check_bytes(tensor, bytes));
    if (bytes == 0)
        return WF_OK;
    WF_NEED(host);
    wf_ctx *ctx = tensor->ctx;
    const wf_kernels *k = ctx->k;
    const wf_strided src = wf_tensor_strided(tensor);
    if (k->host) {
        const wf_strided dst = host_view(tensor, host);
        return k->copy(ctx, &src, &dst, false);
    }
    /* As in import, the other way: order and type change on the device, then the bytes cross. */
    void *stage;
    WF_TRY(wf_pool_take(ctx, bytes, &stage));
    wf_status status;
    const wf_strided dst = host_view(tensor, stage);
    WF_TRY_OUT(k->copy(ctx, &src, &dst, false));
    WF_TRY_OUT(wf_ctx_read(ctx, host, stage, bytes));
out:
    wf_pool_give(ctx, stage, bytes);
    return status;
}

wf_status wf_tensor_assign(wf_tensor *dst, const wf_tensor *src)
{
    char text[2][WF_SHAPE_TEXT];
    WF_NEED(dst);
    WF_NEED(src);
    WF_CHECK(wf_shape_equal(dst->shape, src->shape), WF_ERR_SHAPE, "a tensor %s assigned to one of %s",
             wf_shape_text(src->shape, text[0]), wf_shape_text(dst->shape, text[1]));
    WF_CHECK(
        dst->ctx == src->ctx || (dst->ctx->k->host && src->ctx->k->host), WF_ERR_ARGUMENT,
        "a tensor of another context is assigned to one of device %s; copy it by wf_tensor_export and wf_tensor_import",
        wf_ctx_device(dst->ctx));
    const wf_strided from = wf_tensor_strided(src), to = wf_tensor_strided(dst);
    /* Before the copy, which may fail half way: a saved tensor counts as changed then, too. */
    wf_tensor_touch(dst);
    return dst->ctx->k->copy(dst->ctx, &from, &to, false);
}

wf_status wf_tensor_fill(wf_tensor *tensor, double value)
{
    WF_NEED(tensor);
    wf_ctx *ctx = tensor->ctx;
    wf_tensor_touch(tensor);
    if (tensor->dense) {
        const wf_array a = wf_tensor_array(tensor);
        return ctx->k->fill(ctx, &a, value);
    }
    wf_tensor *one = wf_tensor_new_step(ctx, tensor->dtype, wf_shape_scalar(), WF_ROW_MAJOR);
    WF_NEED(one);
    const wf_array a = wf_tensor_array(one);
    wf_status status;
    WF_TRY_OUT(ctx->k->fill(ctx, &a, value));
    wf_strided src = wf_tensor_strided(tensor);
    const wf_strided dst = src;
    src.data = one->data;
    for (int d = 0; d < src.rank; d++)
        /* One element, read again for every place: strides of 0 make the copy kernel fill a view. */
        src.stride[d] = 0;
    WF_TRY_OUT(ctx->k->copy(ctx, &src, &dst, false));
out:
    wf_tensor_free(one);
    return status;
}

/* NaN tells of a failure whose error is pending; a tensor may hold a NaN too. */
double wf_tensor_item(const wf_tensor *tensor)
{
    char text[WF_SHAPE_TEXT];
    if (!tensor)
        return NAN;
    if (wf_tensor_count(tensor) != 1) {
        WF_RAISE(WF_ERR_SHAPE, "the value of a tensor %s, which should have one element",
                 wf_shape_text(tensor->shape, text));
        return NAN;
    }
    wf_ctx *ctx = tensor->ctx;
    double value = NAN;
    /* Converted on the device: the host then reads one type, whatever the tensor's is. */
    wf_tensor *wide = wf_tensor_new_step(ctx, WF_F64, wf_shape_scalar(), WF_ROW_MAJOR);
    wf_strided src, dst;
    if (!wide)
        return NAN;
    src = wf_tensor_strided(tensor);
    /* One element: as a scalar, whatever rank the tensor has. */
    src.rank = 0;
    dst = wf_tensor_strided(wide);
    if (ctx->k->copy(ctx, &src, &dst, false) != WF_OK || wf_ctx_read(ctx, &value, wide->data, sizeof value) != WF_OK)
        value = NAN;
    wf_tensor_free(wide);
    return value;
}

/* Takes `fresh` over: it is freed if the copy fails. */
static wf_tensor *copy_into(wf_tensor *fresh, const wf_tensor *tensor)
{
    if (!fresh)
        return NULL;
    const wf_status status = wf_tensor_assign(fresh, tensor);
    if (status != WF_OK) {
        wf_tensor_free(fresh);
        return wf_error_null();
    }
    fresh->layout = tensor->layout;
    return fresh;
}

wf_tensor *wf_tensor_copy(const wf_tensor *tensor, wf_dtype dtype, wf_order order)
{
    return tensor ? copy_into(wf_tensor_new_ordered(tensor->ctx, dtype, tensor->shape, order), tensor) : NULL;
}

/* The caller frees the result in both cases. Below rank 3 the two orders are the same memory. */
wf_tensor *wf_tensor_dense(const wf_tensor *tensor, wf_dtype dtype, wf_order order)
{
    if (!tensor)
        return NULL;
    if (tensor->dense && tensor->dtype == dtype && (tensor->order == order || tensor->shape.rank < 3))
        return wf_tensor_alias(tensor);
    return copy_into(wf_tensor_new_step(tensor->ctx, dtype, tensor->shape, order), tensor);
}
