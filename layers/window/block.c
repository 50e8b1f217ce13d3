/* Blocks of a field, for layers that compute on parts of a dense array: gather a part into a block of its own,
 * scatter it back, copy or add parts between fields. Local; all copies go through the kernel table. */
#include "layers/window/window_impl.h"

/* A part as a strided array: nothing is copied. Fields are channels last. */
static wf_strided view(const wf_field *f, wf_box part)
{
    const wf_shape whole = wf_box_shape(f->box), shape = wf_box_shape(part);
    wf_strided v = {.data = f->data, .dtype = f->dtype, .rank = shape.rank};
    int64_t offset = 0;
    wf_order_strides(whole, WF_CHANNELS_LAST, v.stride);
    for (int d = 0; d < shape.rank; d++) {
        v.dim[d] = shape.dim[d];
        offset += (part.lo[d] - f->box.lo[d]) * v.stride[d];
    }
    if (f->data && !wf_box_empty(part))
        v.data = f->data + offset * (int64_t)wf_dtype_size(f->dtype);
    return v;
}

static bool is_dense(const wf_strided *v, wf_shape shape)
{
    int64_t stride[WF_MAX_RANK];
    wf_order_strides(shape, WF_CHANNELS_LAST, stride);
    /* An empty part is dense: no element lies wrong. */
    for (int d = 0; d < shape.rank; d++)
        if (shape.dim[d] == 0)
            return true;
    for (int d = 0; d < shape.rank; d++)
        if (shape.dim[d] > 1 && stride[d] != v->stride[d])
            return false;
    return true;
}

bool wf_field_dense(const wf_field *f, wf_box part)
{
    const wf_strided v = view(f, part);
    return is_dense(&v, wf_box_shape(part));
}

/* load: the kernel reads the block. Without it the block is only written. */
wf_status wf_block_gather(wf_ctx *ctx, const wf_field *f, wf_box part, bool load, wf_block_of *b)
{
    const wf_strided v = view(f, part);
    *b = (wf_block_of){
        .array = {.data = v.data, .dtype = f->dtype, .order = WF_CHANNELS_LAST, .shape = wf_box_shape(part)}};
    /* Kernels take "no data" for an empty part, wherever the field is. */
    if (wf_array_count(&b->array) == 0)
        b->array.data = NULL;
    /* In place: kernels read dense arrays, and a part that is dense needs no copy and no scatter. */
    if (is_dense(&v, b->array.shape))
        return WF_OK;
    const size_t bytes = (size_t)wf_array_count(&b->array) * wf_dtype_size(f->dtype);
    WF_TRY(wf_pool_take(ctx, bytes, &b->array.data));
    b->bytes = bytes;
    const wf_strided dense = wf_array_strided(&b->array);
    return load ? ctx->k->copy(ctx, &v, &dense, false) : WF_OK;
}

/* A part that is used in place was written there by the kernel. */
wf_status wf_block_scatter(wf_ctx *ctx, const wf_field *f, wf_box part, const wf_block_of *b)
{
    const wf_strided v = view(f, part), dense = wf_array_strided(&b->array);
    return b->bytes > 0 ? ctx->k->copy(ctx, &dense, &v, false) : WF_OK;
}

void wf_block_give(wf_ctx *ctx, const wf_block_of *b)
{
    if (b->bytes > 0)
        wf_pool_give(ctx, b->array.data, b->bytes);
}

wf_status wf_field_copy(wf_ctx *ctx, const wf_field *from, const wf_field *to, wf_box part, bool add)
{
    const wf_strided src = view(from, part), dst = view(to, part);
    return wf_box_empty(part) ? WF_OK : ctx->k->copy(ctx, &src, &dst, add);
}

/* Slabs of one buffer, one behind the other. */
wf_field wf_slabs_field(const wf_slabs *slabs, int i, const wf_tensor *tensor)
{
    char *const data = tensor->data;
    return (wf_field){data + (size_t)slabs->at[i] * wf_dtype_size(tensor->dtype), tensor->dtype, slabs->box[i]};
}

/* In the coordinates of the array that goes on: halos count from the first element that is there. */
static wf_boxed boxed(const wf_halo *halo, const wf_field *f)
{
    wf_boxed b = {f->box, view(f, f->box)};
    for (int d = 0; d < b.box.rank; d++) {
        b.box.lo[d] -= halo->first[d];
        b.box.hi[d] -= halo->first[d];
    }
    return b;
}

wf_status wf_field_read(wf_ctx *ctx, const wf_halo *halo, const wf_field *from, const wf_field *to)
{
    const wf_boxed source = boxed(halo, from), place = boxed(halo, to);
    return wf_boundary_read(ctx, halo->whole, halo->beyond, &source, &place);
}

wf_status wf_field_add(wf_ctx *ctx, const wf_halo *halo, const wf_field *place, const wf_field *source)
{
    const wf_boxed from = boxed(halo, place), to = boxed(halo, source);
    return wf_boundary_add(ctx, halo->whole, halo->beyond, &from, &to);
}

/* `to` begins as the part of `from` that it has. */
wf_status wf_field_start(wf_ctx *ctx, const wf_field *from, const wf_field *to)
{
    wf_box rest[2 * WF_MAX_RANK];
    const int n = wf_box_subtract(to->box, from->box, rest);
    /* The remainder of the field gets zeros, since parts that arrive are added to it. */
    if (n > 0) {
        const wf_array all = {to->data, to->dtype, WF_CHANNELS_LAST, wf_box_shape(to->box), 0, NULL};
        WF_TRY(ctx->k->fill(ctx, &all, 0));
    }
    return wf_field_copy(ctx, from, to, wf_box_intersect(to->box, from->box), false);
}
