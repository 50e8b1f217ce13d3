/* Tensors as handles: construction, views, aliases, storage and its reference count, versions. It moves no elements but
 * those of a copy that follows a master; core/tensor_data.c does that through the kernel table. */
#include "core/captured_author.h"
#include "core/log.h"
#include "core/pool_impl.h"
#include "core/tensor_author.h"

#include <string.h>

static bool strides_match(const wf_tensor *t, wf_order order)
{
    int64_t stride[WF_MAX_RANK];
    wf_order_strides(t->shape, order, stride);
    for (int d = 0; d < t->shape.rank; d++)
        /* The stride of a dimension of length 1 is never used, so any will do. */
        if (t->shape.dim[d] > 1 && t->stride[d] != stride[d])
            return false;
    return true;
}

/* Which order, if any, the strides make dense; the tensor's own order is tried first. */
static void classify(wf_tensor *t)
{
    const wf_order other = t->order == WF_ROW_MAJOR ? WF_CHANNELS_LAST : WF_ROW_MAJOR;
    t->dense = wf_shape_count(t->shape) == 0 || strides_match(t, t->order);
    if (!t->dense && strides_match(t, other)) {
        t->dense = true;
        t->order = other;
    }
    /* Strides that are never used, of dimensions of length 1, become those of the order as well. */
    if (t->dense)
        wf_order_strides(t->shape, t->order, t->stride);
}

/* Makes a storage without references; new_handle adds the first. `borrowed`: memory of the program, used instead of the
 * pool's. */
static wf_status new_storage(wf_ctx *ctx, size_t bytes, void *borrowed, bool step, wf_storage **out)
{
    wf_storage *s = wf_pool_storage(ctx);
    if (!s)
        return wf_error_frame(WF_ERR_MEMORY, __FILE__, __LINE__, __func__);
    s->bytes = bytes;
    /* Memory of the program: used as it is and never freed here. */
    s->borrowed = borrowed != NULL;
    s->data = borrowed;
    if (!borrowed) {
        const wf_status status = wf_pool_take(ctx, bytes, &s->data);
        if (status != WF_OK) {
            wf_pool_storage_give(ctx, s);
            return wf_error_frame(status, __FILE__, __LINE__, __func__);
        }
    }
    /* Step storages are in a list of the pool: the reset of a tape counts those that are left. */
    s->step = step;
    if (step) {
        wf_storage **head = wf_pool_steps(ctx);
        s->next = *head;
        if (*head)
            (*head)->prev = s;
        *head = s;
    }
    *out = s;
    return WF_OK;
}

/* Kernels may still use the memory, unless it is the host's. */
static void release_borrowed(const wf_storage *s)
{
    if (!s->ctx->k->host && s->ctx->k->stream_finish(s->ctx, NULL) != WF_OK)
        wf_log_write(WF_LOG_WARN, "memory of the program is released before its work is known to be done: %s",
                     wf_error_message());
    s->release(s->user);
}

static void drop_storage(wf_storage *s)
{
    wf_ctx *ctx = s->ctx;
    if (--s->references > 0)
        return;
    if (s->step) {
        if (s->prev)
            s->prev->next = s->next;
        else
            *wf_pool_steps(ctx) = s->next;
        if (s->next)
            s->next->prev = s->prev;
    }
    /* Packed forms are copies in a backend's own layout; they have no life beyond the values that they were made of. */
    wf_packed_free(ctx, &s->forms);
    if (s->master)
        drop_storage(s->master);
    if (!s->borrowed)
        wf_pool_give(ctx, s->data, s->bytes);
    else if (s->release)
        release_borrowed(s);
    wf_pool_storage_give(ctx, s);
}

/* The one place that adds a reference for a handle; wf_tensor_free takes it back. */
static wf_tensor *new_handle(wf_ctx *ctx, wf_storage *storage)
{
    wf_tensor *t = wf_pool_tensor(ctx);
    if (!t)
        return wf_error_null();
    t->storage = storage;
    t->data = storage->data;
    storage->references++;
    /* Handles of step tensors are not counted: the tape reports those that are left over by their storages. */
    if (!storage->step)
        wf_live_add(ctx, WF_LIVE_TENSOR, 1);
    return t;
}

static wf_tensor *make_tensor(wf_ctx *ctx, wf_dtype dtype, wf_shape shape, wf_order order, void *borrowed, bool step)
{
    if (!ctx)
        return NULL;
    char text[WF_SHAPE_TEXT];
    const int64_t count = wf_shape_count(shape);
    const size_t size = wf_dtype_size(dtype);
    WF_CHECK_NULL(size > 0, WF_ERR_DTYPE, "%d is not a type", (int)dtype);
    /* 8: the largest element, so that byte counts fit as well. */
    WF_CHECK_NULL(count >= 0 && count <= INT64_MAX / 8, WF_ERR_SHAPE, "%s is not the shape of a tensor",
                  wf_shape_text(shape, text));
    WF_CHECK_NULL(order == WF_ROW_MAJOR || order == WF_CHANNELS_LAST, WF_ERR_ARGUMENT, "%d is not an order",
                  (int)order);
    wf_storage *storage = NULL;
    WF_TRY_NULL(new_storage(ctx, (size_t)count * size, borrowed, step, &storage));
    wf_tensor *t = new_handle(ctx, storage);
    if (!t) {
        /* It has no reference yet; with one, dropping it frees it. */
        storage->references = 1;
        drop_storage(storage);
        return NULL;
    }
    t->dtype = dtype;
    t->order = order;
    t->shape = shape;
    t->dense = true;
    wf_order_strides(shape, order, t->stride);
    return t;
}

wf_tensor *wf_tensor_new(wf_ctx *ctx, wf_dtype dtype, wf_shape shape)
{
    WF_NEED_NULL(ctx);
    return make_tensor(ctx, dtype, shape, wf_order_default(shape.rank), NULL, false);
}

wf_tensor *wf_tensor_new_ordered(wf_ctx *ctx, wf_dtype dtype, wf_shape shape, wf_order order)
{
    WF_NEED_NULL(ctx);
    return make_tensor(ctx, dtype, shape, order, NULL, false);
}

wf_tensor *wf_tensor_new_step(wf_ctx *ctx, wf_dtype dtype, wf_shape shape, wf_order order)
{
    return make_tensor(ctx, dtype, shape, order, NULL, true);
}

wf_tensor *wf_tensor_new_like(const wf_tensor *like)
{
    wf_tensor *t = like ? wf_tensor_new_step(like->ctx, like->dtype, like->shape, like->order) : NULL;
    if (t)
        t->layout = like->layout;
    return t;
}

/* Sorted by stride, each dimension steps over all that the ones before it reach, so that no two elements meet. Sets
 * *reach to the elements from the first to the last. */
static wf_status check_strides(wf_shape shape, const int64_t *stride, int64_t *reach)
{
    char text[WF_SHAPE_TEXT];
    bool seen[WF_MAX_RANK] = {false};
    *reach = 1;
    for (int i = 0; i < shape.rank; i++) {
        int next = -1;
        for (int d = 0; d < shape.rank; d++)
            if (!seen[d] && (next < 0 || stride[d] < stride[next]))
                next = d;
        seen[next] = true;
        if (shape.dim[next] <= 1)
            continue;
        WF_CHECK(stride[next] >= *reach, WF_ERR_ARGUMENT,
                 "memory of shape %s with a stride of %lld in dimension %d, where elements %lld apart are in use; two "
                 "elements may share memory",
                 wf_shape_text(shape, text), (long long)stride[next], next, (long long)*reach);
        *reach += (shape.dim[next] - 1) * stride[next];
    }
    return WF_OK;
}

static wf_status check_memory(wf_ctx *ctx, wf_dtype dtype, wf_shape shape, const void *data)
{
    char text[WF_SHAPE_TEXT];
    int ordinal;
    if (wf_shape_count(shape) == 0)
        return WF_OK;
    WF_CHECK(data, WF_ERR_ARGUMENT, "the memory of a tensor %s is NULL", wf_shape_text(shape, text));
    WF_CHECK(wf_dtype_size(dtype) > 0, WF_ERR_DTYPE, "%d is not a type", (int)dtype);
    WF_CHECK((uintptr_t)data % wf_dtype_size(dtype) == 0, WF_ERR_ARGUMENT,
             "memory at %p for elements of type %s: should be a multiple of %zu", data, wf_dtype_name(dtype),
             wf_dtype_size(dtype));
    return ctx->k->device_of(ctx, data, &ordinal);
}

wf_tensor *wf_tensor_wrap(wf_ctx *ctx, wf_dtype dtype, wf_shape shape, void *data, wf_wrap_opts opts)
{
    int64_t reach = 0;
    WF_NEED_NULL(ctx);
    WF_TRY_NULL(check_memory(ctx, dtype, shape, data));
    if (opts.stride && wf_shape_count(shape) > 0)
        WF_TRY_NULL(check_strides(shape, opts.stride, &reach));
    wf_tensor *t = make_tensor(ctx, dtype, shape, opts.order, data, false);
    if (!t)
        return NULL;
    /* reach is 0 without strides of the caller: the memory is dense then, in the order that the options name. */
    if (reach > 0) {
        memcpy(t->stride, opts.stride, (size_t)shape.rank * sizeof *t->stride);
        t->storage->bytes = (size_t)reach * wf_dtype_size(dtype);
        classify(t);
    }
    /* Set last: if the tensor could not be made, the memory is still the caller's and is not released. */
    t->storage->release = opts.release;
    t->storage->user = opts.user;
    return t;
}

wf_tensor *wf_tensor_from_host(wf_ctx *ctx, wf_dtype dtype, wf_shape shape, const void *host)
{
    WF_NEED_NULL(ctx);
    wf_tensor *t = wf_tensor_new(ctx, dtype, shape);
    if (!t)
        return NULL;
    const wf_status status = wf_tensor_import(t, host, wf_tensor_bytes(t));
    if (status != WF_OK) {
        wf_tensor_free(t);
        return wf_error_null();
    }
    return t;
}

wf_tensor *wf_tensor_alias(const wf_tensor *tensor)
{
    if (!tensor)
        return NULL;
    wf_tensor *t = new_handle(tensor->ctx, tensor->storage);
    if (t)
        /* new_handle has counted the storage; this copies shape, strides and place. */
        *t = *tensor;
    return t;
}

wf_tensor *wf_tensor_view(const wf_tensor *tensor, wf_box box)
{
    if (!tensor)
        return NULL;
    char text[2][WF_SHAPE_TEXT];
    WF_CHECK_NULL(box.rank == tensor->shape.rank, WF_ERR_SHAPE, "a view of rank %d of a tensor %s", box.rank,
                  wf_shape_text(tensor->shape, text[0]));
    for (int d = 0; d < box.rank; d++)
        WF_CHECK_NULL(box.lo[d] >= 0 && box.lo[d] <= box.hi[d] && box.hi[d] <= tensor->shape.dim[d], WF_ERR_SHAPE,
                      "a view of [%lld,%lld) in dimension %d of a tensor %s", (long long)box.lo[d],
                      (long long)box.hi[d], d, wf_shape_text(tensor->shape, text[0]));
    wf_tensor *t = wf_tensor_alias(tensor);
    if (!t)
        return NULL;
    int64_t offset = 0;
    for (int d = 0; d < box.rank; d++)
        offset += box.lo[d] * t->stride[d];
    t->shape = wf_box_shape(box);
    /* An empty tensor may have no memory, and NULL takes no offset. */
    if (t->data)
        t->data = (char *)t->data + (size_t)offset * wf_dtype_size(t->dtype);
    /* A part of a tensor has another place on the mesh, which is not followed here. */
    t->layout = wf_layout_none();
    classify(t);
    return t;
}

/* Names the order of a permuted part as that of the whole array would be named. A part that is empty or has one element
 * in some dimensions fits both orders, and ranks must name the same one: exchanges travel in the order of the memory.
 */
static void name_order(wf_tensor *t, const wf_tensor *tensor, const int *perm)
{
    int64_t stride[WF_MAX_RANK];
    wf_tensor whole = *t;
    if (!tensor->layout.known || !tensor->dense || !t->dense)
        return;
    wf_order_strides(tensor->layout.global, tensor->order, stride);
    whole.order = tensor->order;
    for (int d = 0; d < t->shape.rank; d++) {
        whole.shape.dim[d] = tensor->layout.global.dim[perm[d]];
        whole.stride[d] = stride[perm[d]];
    }
    classify(&whole);
    t->order = whole.order;
    /* The whole may fit neither order; then a part that does is dense in the order that was named only by its own
     * strides. */
    t->dense = wf_shape_count(t->shape) == 0 || strides_match(t, t->order);
    if (t->dense)
        wf_order_strides(t->shape, t->order, t->stride);
}

wf_tensor *wf_tensor_permute(const wf_tensor *tensor, const int *perm)
{
    if (!tensor)
        return NULL;
    unsigned seen = 0;
    const int rank = tensor->shape.rank;
    for (int d = 0; perm && d < rank; d++)
        if (perm[d] >= 0 && perm[d] < rank)
            /* Each dimension once: bits that are missing tell of one that comes twice. */
            seen |= 1u << perm[d];
    WF_CHECK_NULL((perm || rank == 0) && seen == (1u << rank) - 1, WF_ERR_ARGUMENT,
                  "not a permutation of %d dimensions", rank);
    wf_tensor *t = wf_tensor_alias(tensor);
    if (!t)
        return NULL;
    for (int d = 0; d < rank; d++) {
        t->shape.dim[d] = tensor->shape.dim[perm[d]];
        t->stride[d] = tensor->stride[perm[d]];
    }
    wf_layout_follow(&tensor->layout, t->shape, perm, &t->layout);
    classify(t);
    name_order(t, tensor, perm);
    return t;
}

wf_tensor *wf_tensor_recast(const wf_tensor *tensor, wf_shape shape, wf_order order)
{
    /* No layout: another shape has other dimensions, which its axes do not name. */
    wf_tensor *t = wf_tensor_alias(tensor);
    if (!t)
        return NULL;
    t->shape = shape;
    t->order = order;
    t->layout = wf_layout_none();
    wf_order_strides(shape, order, t->stride);
    return t;
}

void wf_tensor_free(wf_tensor *tensor)
{
    if (!tensor)
        return;
    wf_ctx *ctx = tensor->ctx;
    if (!tensor->storage->step)
        wf_live_add(ctx, WF_LIVE_TENSOR, -1);
    drop_storage(tensor->storage);
    wf_pool_tensor_give(ctx, tensor);
}

/* Readers take NULL, so that a program may call them on the result of a call that failed and look at the error
 * later. */
wf_ctx *wf_tensor_ctx(const wf_tensor *tensor)
{
    return tensor ? tensor->ctx : NULL;
}

wf_dtype wf_tensor_dtype(const wf_tensor *tensor)
{
    return tensor ? tensor->dtype : WF_F32;
}

wf_shape wf_tensor_shape(const wf_tensor *tensor)
{
    return tensor ? tensor->shape : wf_shape_scalar();
}

wf_order wf_tensor_order(const wf_tensor *tensor)
{
    return tensor ? tensor->order : WF_ROW_MAJOR;
}

int64_t wf_tensor_count(const wf_tensor *tensor)
{
    return tensor ? wf_shape_count(tensor->shape) : 0;
}

size_t wf_tensor_bytes(const wf_tensor *tensor)
{
    return tensor ? (size_t)wf_shape_count(tensor->shape) * wf_dtype_size(tensor->dtype) : 0;
}

void *wf_tensor_data(const wf_tensor *tensor)
{
    return tensor ? tensor->data : NULL;
}

const int64_t *wf_tensor_strides(const wf_tensor *tensor)
{
    return tensor ? tensor->stride : NULL;
}

bool wf_tensor_is_dense(const wf_tensor *tensor)
{
    return tensor && tensor->dense;
}

wf_layout wf_tensor_layout(const wf_tensor *tensor)
{
    return tensor ? tensor->layout : wf_layout_none();
}

wf_status wf_tensor_set_layout(wf_tensor *tensor, wf_layout layout)
{
    char text[2][WF_SHAPE_TEXT];
    WF_NEED(tensor);
    WF_CHECK(!layout.known || wf_shape_equal(wf_box_shape(layout.box), tensor->shape), WF_ERR_SHAPE,
             "a layout with a box of shape %s for a tensor %s", wf_shape_text(wf_box_shape(layout.box), text[0]),
             wf_shape_text(tensor->shape, text[1]));
    tensor->layout = layout;
    return WF_OK;
}

wf_array wf_tensor_array(const wf_tensor *tensor)
{
    if (!tensor)
        return (wf_array){0};
    wf_storage *s = tensor->storage;
    return (wf_array){.data = tensor->data,
                      .dtype = tensor->dtype,
                      .order = tensor->order,
                      .shape = tensor->shape,
                      /* The epoch of a capture is added, so that packed forms of before count as old and the captured
                       * step makes them itself. */
                      .version = wf_tensor_version(tensor) + s->ctx->epoch,
                      .forms = s->packable ? &s->forms : NULL};
}

wf_strided wf_tensor_strided(const wf_tensor *tensor)
{
    wf_strided v = {.data = tensor->data, .dtype = tensor->dtype, .rank = tensor->shape.rank};
    memcpy(v.dim, tensor->shape.dim, sizeof v.dim);
    memcpy(v.stride, tensor->stride, sizeof v.stride);
    return v;
}

/* Counted at every replay, whose kernels write without the host. */
static wf_status touch_again(void *own, double number, void *value)
{
    wf_storage *storage = own;
    storage->version++;
    return WF_OK;
}

/* Storages with packed forms or following copies (parameters and flat buffers of them) must be touched again in
 * every replay; their storage outlives the captured step. */
void wf_tensor_touch(wf_tensor *tensor)
{
    wf_storage *s = tensor->storage;
    s->version++;
    if (s->packable || s->followed)
        wf_ctx_repeat(s->ctx, touch_again, s);
}

/* A copy that follows a master is as new as its master, so packed forms of the copy get old when the master changes. */
uint64_t wf_tensor_version(const wf_tensor *tensor)
{
    const wf_storage *s = tensor->storage;
    return s->master ? s->master->version : s->version;
}

/* The copy follows this master from now on: it is new, or its parameter got another value tensor. Versions of different
 * storages cannot be compared, so packed forms of the time before go. */
static void follow_memory(wf_storage *copy, wf_storage *master)
{
    /* The copy keeps the master's storage alive: its version is read through it. */
    master->references++;
    master->followed = true;
    wf_packed_free(copy->ctx, &copy->forms);
    if (copy->master)
        drop_storage(copy->master);
    copy->master = master;
}

wf_status wf_tensor_follow(const wf_tensor *master, wf_dtype dtype, wf_tensor **copy)
{
    /* The epoch of a capture makes every copy count as old there, so that the captured step contains its making. */
    const uint64_t version = master->storage->version + master->ctx->epoch;
    wf_tensor *made = *copy;
    const bool other = made && made->dtype != dtype;
    if (made && !other && made->storage->master == master->storage && made->storage->made == version)
        return WF_OK;
    if (!made || other) {
        made = wf_tensor_new_ordered(master->ctx, dtype, master->shape, master->order);
        WF_NEED(made);
        wf_tensor_free(*copy);
        *copy = made;
        /* Kernels may keep packed forms of it, as of the parameter itself. */
        made->storage->packable = true;
    }
    if (made->storage->master != master->storage)
        follow_memory(made->storage, master->storage);
    const wf_strided from = wf_tensor_strided(master), to = wf_tensor_strided(made);
    /* Not marked as current before the copy worked: a copy that failed is made again at the next use. */
    made->storage->made = version - 1;
    WF_TRY(master->ctx->k->copy(master->ctx, &from, &to, false));
    made->storage->made = version;
    return WF_OK;
}

/* A walk through the list: at a reset it has only what is kept, or was forgotten. */
int64_t wf_step_storages(const wf_ctx *ctx)
{
    int64_t n = 0;
    for (const wf_storage *s = *wf_pool_steps((wf_ctx *)ctx); s; s = s->next)
        n += !s->kept;
    return n;
}
