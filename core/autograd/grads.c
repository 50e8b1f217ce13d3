/* Flat gradients: one buffer in which the gradients of many parameters lie one after the other, so that a bucket is
 * a pointer and a length. Optimizers make it after the first backward has told the order. */
#include "core/tape_author.h"

#include <stdlib.h>

wf_tensor *wf_grads_view(const wf_grads *grads, const wf_tensor *buffer, int64_t i)
{
    const wf_param *p = grads->param[i];
    const int64_t lo = grads->offset[i];
    wf_tensor *part = wf_tensor_view(buffer, (wf_box){.rank = 1, .lo = {lo}, .hi = {lo + wf_shape_count(p->shape)}});
    if (!part)
        return NULL;
    wf_tensor *view = wf_tensor_recast(part, p->shape, p->order);
    wf_tensor_free(part);
    return view;
}

static wf_status view_of(wf_grads *g, int64_t i)
{
    wf_tensor *view = wf_grads_view(g, g->flat, i);
    WF_NEED(view);
    wf_tensor_free(g->param[i]->grad);
    g->param[i]->grad = view;
    return WF_OK;
}

static wf_status build_grads(wf_grads *g, int64_t n, wf_param *const *param)
{
    const wf_dtype dtype = n > 0 ? param[0]->dtype : g->ctx->dtype;
    /* 64 bytes: a cache line, and what vector kernels and the pool align to. */
    const int64_t align = 64 / (int64_t)wf_dtype_size(dtype);
    g->param = wf_malloc(g->ctx, (size_t)n * sizeof *g->param);
    g->offset = wf_malloc(g->ctx, (size_t)(n + 1) * sizeof *g->offset);
    WF_CHECK(g->param && g->offset, WF_ERR_MEMORY, "no memory for the list of %lld gradients", (long long)n);
    g->n = n;
    g->offset[0] = 0;
    for (int64_t i = 0; i < n; i++) {
        WF_CHECK(param[i]->dtype == dtype, WF_ERR_DTYPE, "parameter %s is %s, others are %s", wf_param_path(param[i]),
                 wf_dtype_name(param[i]->dtype), wf_dtype_name(dtype));
        g->param[i] = param[i];
        g->offset[i + 1] = (g->offset[i] + wf_shape_count(param[i]->shape) + align - 1) / align * align;
    }
    g->flat = wf_tensor_new(g->ctx, dtype, WF_SHAPE(g->offset[n] + g->tail));
    WF_NEED(g->flat);
    /* The gaps between parameters are summed over ranks with the rest; they must not hold NaN, which a check for
     * overflow would see. */
    WF_TRY(wf_tensor_fill(g->flat, 0));
    for (int64_t i = 0; i < n; i++)
        WF_TRY(view_of(g, i));
    return WF_OK;
}

wf_grads *wf_grads_new(wf_ctx *ctx, int64_t n, wf_param *const *param, int64_t tail)
{
    if (!ctx)
        return NULL;
    wf_grads *g = wf_calloc(ctx, 1, sizeof *g);
    if (!g)
        return wf_error_null();
    g->ctx = ctx;
    g->tail = tail;
    const wf_status status = build_grads(g, n, param);
    if (status != WF_OK) {
        wf_grads_free(g);
        return wf_error_null();
    }
    return g;
}

/* The views belong to the parameters, which may be gone by now. */
void wf_grads_free(wf_grads *grads)
{
    if (!grads)
        return;
    wf_tensor_free(grads->flat);
    free(grads->param);
    free(grads->offset);
    free(grads);
}
