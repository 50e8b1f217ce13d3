/* Parameters: name, path, value and gradient. Layers make them; the tape, optimizers and archives use them. The
 * value is made at its first use, not before, since seed and path must be final. */
#include "core/param_author.h"

#include "core/context_author.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

wf_param *wf_param_new(wf_ctx *ctx, const char *name, wf_param_opts opts)
{
    if (!ctx)
        return NULL;
    WF_CHECK_NULL(opts.init.kind >= WF_INIT_DEFAULT && opts.init.kind <= WF_INIT_TRUNC_NORMAL, WF_ERR_ARGUMENT,
                  "%d is not an initialiser of \"%s\": should be one of wf_init_kind", (int)opts.init.kind, name);
    wf_param *p = wf_calloc(ctx, 1, sizeof *p);
    if (!p)
        return wf_error_null();
    *p = (wf_param){.ctx = ctx,
                    .dtype = opts.dtype,
                    .order = opts.order,
                    .shape = opts.shape,
                    .fan_in = opts.fan_in,
                    .fan_out = opts.fan_out,
                    .init = opts.init,
                    .global = opts.shape,
                    .box = wf_box_of_shape(opts.shape),
                    /* Running statistics and the like are saved with the model but have no gradient. */
                    .trainable = !opts.state,
                    /* Every replica of a model sees other samples; layers that split otherwise change this. */
                    .axes = WF_AXIS_BIT(WF_AXIS_DATA)};
    p->name = wf_strdup(ctx, name);
    if (!p->name) {
        wf_param_free(p);
        return wf_error_null();
    }
    return p;
}

/* --- tied parameters ------------------------------------------------------------------------------------------------
 */

wf_param *wf_param_of(wf_param *param)
{
    return param && param->tied ? param->tied : param;
}

void wf_param_sum_parts(wf_param *param, const wf_layout *x, unsigned dims)
{
    if (param)
        wf_param_of(param)->axes |= wf_layout_axes(x, dims);
}

static wf_status check_tie(const wf_param *a, const wf_param *b)
{
    char one[WF_SHAPE_TEXT], other[WF_SHAPE_TEXT];
    WF_CHECK(a != b, WF_ERR_ARGUMENT, "%s tied with itself", wf_param_path(a));
    WF_CHECK(!a->tied, WF_ERR_STATE, "%s is tied already, with %s", wf_param_path(a), wf_param_path(a->tied));
    WF_CHECK(a->ctx == b->ctx, WF_ERR_ARGUMENT, "%s and %s belong to two contexts", wf_param_path(a), wf_param_path(b));
    WF_CHECK(wf_shape_equal(a->shape, b->shape) && a->dtype == b->dtype && a->order == b->order, WF_ERR_ARGUMENT,
             "%s is %s %s, and %s, with which it should be tied, is %s %s", wf_param_path(a), wf_dtype_name(a->dtype),
             wf_shape_text(a->shape, one), wf_param_path(b), wf_dtype_name(b->dtype), wf_shape_text(b->shape, other));
    WF_CHECK(a->axes == b->axes && a->shard_axes == b->shard_axes && wf_box_equal(a->box, b->box) &&
                 a->trainable == b->trainable,
             WF_ERR_ARGUMENT, "%s and %s should be tied, but one is trained or shared by ranks otherwise",
             wf_param_path(a), wf_param_path(b));
    return WF_OK;
}

wf_status wf_param_tie(wf_param *param, wf_param *with)
{
    WF_NEED(param);
    WF_NEED(with);
    with = wf_param_of(with);
    WF_TRY(check_tie(param, with));
    wf_tensor_free(param->value);
    wf_tensor_free(param->rounded);
    wf_tensor_free(param->grad);
    param->value = param->rounded = param->grad = NULL;
    param->tied = with;
    wf_param *last = param;
    for (; last->tied_next; last = last->tied_next)
        last->tied_next->tied = with;
    last->tied_next = with->tied_next;
    with->tied_next = param;
    return WF_OK;
}

static void untie(wf_param *param)
{
    wf_param *heir = param->tied_next;
    if (param->tied) {
        wf_param **place = &param->tied->tied_next;
        while (*place != param)
            place = &(*place)->tied_next;
        *place = heir;
        return;
    }
    if (!heir)
        return;
    heir->tied = NULL;
    heir->trainable = param->trainable;
    heir->value = param->value;
    heir->rounded = param->rounded;
    heir->grad = param->grad;
    param->value = param->rounded = param->grad = NULL;
    for (wf_param *other = heir->tied_next; other; other = other->tied_next)
        other->tied = heir;
}

/* --- values ---------------------------------------------------------------------------------------------------------
 */

void wf_param_free(wf_param *param)
{
    if (!param)
        return;
    untie(param);
    wf_tensor_free(param->value);
    wf_tensor_free(param->rounded);
    wf_tensor_free(param->grad);
    free(param->name);
    free(param->path);
    free(param->serial);
    free(param);
}

const char *wf_param_name(const wf_param *param)
{
    return param ? param->name : "";
}

/* Remade if a layer above has been moved since, which changes the path. */
const char *wf_param_path(const wf_param *param)
{
    if (!param)
        return "";
    /* Compared and remade on every call, not noted at a move: a parameter is not told when a layer far above it gets a
     * parent. */
    const char *above = param->path_of ? param->path_of(param->owner, NULL) : "";
    const size_t bytes = strlen(above) + strlen(param->name) + 2;
    const size_t cut = strlen(above) + (*above ? 1 : 0);
    if (param->path && strncmp(param->path, above, strlen(above)) == 0 &&
        strlen(param->path) == cut + strlen(param->name))
        return param->path;
    char *path = wf_malloc(param->ctx, bytes);
    if (!path)
        return param->name;
    snprintf(path, bytes, "%s%s%s", above, *above ? "/" : "", param->name);
    free(param->path);
    ((wf_param *)param)->path = path;
    return path;
}

wf_tensor *wf_param_value(wf_param *param)
{
    param = wf_param_of(param);
    if (!param || param->value)
        return param ? param->value : NULL;
    param->value = wf_tensor_new_ordered(param->ctx, param->dtype, param->shape, param->order);
    if (!param->value)
        return NULL;
    /* Parameters alone are packed by backends, once per change of the value; packing an activation would cost more than
     * it gains. */
    param->value->storage->packable = true;
    const wf_status status = wf_param_initialise(param);
    if (status != WF_OK) {
        wf_tensor_free(param->value);
        param->value = NULL;
        return (wf_error_frame(status, __FILE__, __LINE__, __func__), wf_error_null());
    }
    return param->value;
}

wf_tensor *wf_param_grad(wf_param *param)
{
    param = wf_param_of(param);
    return param ? param->grad : NULL;
}

wf_shape wf_param_shape(const wf_param *param)
{
    return param ? param->shape : wf_shape_scalar();
}

wf_layout wf_param_layout(const wf_param *param)
{
    if (!param)
        return wf_layout_none();
    wf_layout layout = {.known = true, .global = param->global, .box = param->box};
    int dim = 0;
    for (int axis = 0; axis < WF_AXES; axis++) {
        /* Which dimension an axis cuts is not stored: the n-th axis in use cuts the n-th dimension of which this rank
         * has a part. */
        if (!(param->shard_axes >> axis & 1u))
            continue;
        while (dim + 1 < param->global.rank && param->box.hi[dim] - param->box.lo[dim] == param->global.dim[dim])
            dim++;
        layout.placement[axis] = WF_SHARDED;
        layout.dim[axis] = (uint8_t)dim;
    }
    return layout;
}

bool wf_param_trainable(const wf_param *param)
{
    return param && (param->tied ? param->tied : param)->trainable;
}

wf_status wf_param_set_trainable(wf_param *param, bool trainable)
{
    WF_NEED(param);
    wf_param_of(param)->trainable = trainable;
    return WF_OK;
}

/* --- the value as a number ------------------------------------------------------------------------------------------
 */

enum { PIECE = 1 << 18 };

/* Each word goes in by a bijection, so that no single difference is lost. */
static uint64_t hash_words(uint64_t hash, const char *bytes, size_t n)
{
    for (size_t at = 0; at < n; at += sizeof(uint64_t)) {
        uint64_t word = 0;
        memcpy(&word, bytes + at, n - at < sizeof word ? n - at : sizeof word);
        hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
        hash = hash << 29 | hash >> 35;
    }
    return hash;
}

wf_status wf_param_hash(wf_param *param, int64_t *hash)
{
    const wf_tensor *value = wf_param_value(param);
    WF_NEED(value);
    const size_t bytes = wf_tensor_bytes(value), most = bytes < PIECE ? bytes : PIECE;
    wf_status status = WF_OK;
    void *piece = NULL;
    uint64_t h = 0;
    /* By pieces of 256 KiB, so that no copy of a model is needed on the host. */
    WF_TRY(wf_pool_take_host(param->ctx, most, &piece));
    for (size_t at = 0; at < bytes && status == WF_OK; at += most) {
        const size_t n = bytes - at < most ? bytes - at : most;
        status = wf_ctx_capture_read(param->ctx, piece, (const char *)value->data + at, n);
        h = status == WF_OK ? hash_words(h, piece, n) : h;
    }
    wf_pool_give_host(param->ctx, piece, most);
    *hash = (int64_t)h;
    return status;
}
