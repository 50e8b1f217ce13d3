/* DLPack's description of a tensor from ours, and back. Programs call it. It never copies elements. */
#include "core/dlpack.h"

#include "core/tensor_author.h"

#include <dlpack/dlpack.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    wf_dtype dtype;
    uint8_t code, bits;
} types[] = {
    {WF_F32, kDLFloat, 32}, {WF_F64, kDLFloat, 64}, {WF_F16, kDLFloat, 16}, {WF_BF16, kDLBfloat, 16},
    {WF_I32, kDLInt, 32},   {WF_I64, kDLInt, 64},   {WF_U8, kDLUInt, 8},
};
#define TYPES (sizeof types / sizeof *types)

/* What a DLPack tensor of ours holds. */
typedef struct exported {
    DLManagedTensor managed;
    wf_tensor *held;
    int64_t dim[WF_MAX_RANK], stride[WF_MAX_RANK];
} exported;

/* The consumer calls it, maybe long after the program freed its own handle: `held` kept the storage alive. */
static void drop_exported(DLManagedTensor *managed)
{
    exported *e = managed->manager_ctx;
    wf_tensor_free(e->held);
    free(e);
}

static wf_status describe(exported *e, const wf_tensor *tensor)
{
    const wf_kernels *k = tensor->ctx->k;
    DLTensor *to = &e->managed.dl_tensor;
    size_t i = 0;
    int ordinal = 0;
    /* The consumer may use another stream, which knows nothing of ours, so the work must be done before. */
    if (!k->host)
        WF_TRY(k->stream_finish(tensor->ctx, NULL));
    if (wf_tensor_count(tensor) > 0)
        WF_TRY(k->device_of(tensor->ctx, tensor->data, &ordinal));
    /* Every type that a tensor can have is in the table. */
    while (types[i].dtype != tensor->dtype)
        i++;
    memcpy(e->dim, tensor->shape.dim, sizeof e->dim);
    memcpy(e->stride, tensor->stride, sizeof e->stride);
    *to = (DLTensor){.data = tensor->data,
                     .ndim = tensor->shape.rank,
                     .dtype = {types[i].code, types[i].bits, 1},
                     .shape = e->dim,
                     .strides = e->stride};
    to->device.device_type = k->host ? kDLCPU : kDLCUDA;
    to->device.device_id = ordinal;
    return WF_OK;
}

DLManagedTensor *wf_tensor_to_dlpack(const wf_tensor *tensor)
{
    WF_NEED_NULL(tensor);
    exported *e = calloc(1, sizeof *e);
    WF_CHECK_NULL(e, WF_ERR_MEMORY, "no memory for a DLPack tensor");
    e->managed.manager_ctx = e;
    e->managed.deleter = drop_exported;
    e->held = wf_tensor_alias(tensor);
    if (e->held && describe(e, tensor) == WF_OK)
        return &e->managed;
    wf_tensor_free(e->held);
    free(e);
    return wf_error_null();
}

static wf_status dtype_of(DLDataType type, wf_dtype *dtype)
{
    for (size_t i = 0; i < TYPES; i++)
        if (types[i].code == type.code && types[i].bits == type.bits && type.lanes == 1) {
            *dtype = types[i].dtype;
            return WF_OK;
        }
    WF_FAIL(WF_ERR_DTYPE,
            "a DLPack tensor of type code %d with %d bits and %d lanes: should be f32, f64, f16, bf16, i32, i64 or u8",
            type.code, type.bits, type.lanes);
}

/* Pinned and managed memory can be read from both sides; the others only where they lie. */
static wf_status check_device(const wf_ctx *ctx, DLDevice device)
{
    const bool host = device.device_type == kDLCPU || device.device_type == kDLCUDAHost,
               managed = device.device_type == kDLCUDAManaged || device.device_type == kDLCUDAHost;
    WF_CHECK(ctx->k->host ? host : managed || device.device_type == kDLCUDA, WF_ERR_ARGUMENT,
             "a DLPack tensor in memory of device type %d, and the context's device is %s", (int)device.device_type,
             ctx->k->name);
    return WF_OK;
}

/* A producer without a deleter keeps its memory itself. */
static void drop_imported(void *user)
{
    DLManagedTensor *managed = user;
    if (managed->deleter)
        managed->deleter(managed);
}

wf_tensor *wf_tensor_from_dlpack(wf_ctx *ctx, DLManagedTensor *managed)
{
    wf_dtype dtype;
    WF_NEED_NULL(ctx);
    WF_NEED_NULL(managed);
    const DLTensor *from = &managed->dl_tensor;
    WF_CHECK_NULL(from->ndim >= 0 && from->ndim <= WF_MAX_RANK, WF_ERR_SHAPE,
                  "a DLPack tensor of %d dimensions: should be at most %d", from->ndim, WF_MAX_RANK);
    WF_TRY_NULL(dtype_of(from->dtype, &dtype));
    WF_TRY_NULL(check_device(ctx, from->device));
    /* On an error the caller still owns `managed`: release is stored last. */
    const wf_wrap_opts opts = {.stride = from->strides, .release = drop_imported, .user = managed};
    return wf_tensor_wrap(ctx, dtype, wf_shape_make(from->ndim, from->shape),
                          from->data ? (char *)from->data + from->byte_offset : NULL, opts);
}
