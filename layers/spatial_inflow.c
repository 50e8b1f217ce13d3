/* Inputs with their halos, on their way. */
#include "layers/spatial_impl.h"

static bool is_whole(const wf_parts *parts)
{
    return parts->n == 1 && parts->part[0].at == 0;
}

static wf_status make_buffers(wf_inflow *flow)
{
    wf_ctx *ctx = flow->own->ctx;
    const wf_dtype dtype = flow->own->dtype;
    if (is_whole(&flow->parts)) {
        flow->assembled = wf_tensor_new_step(ctx, dtype, wf_box_shape(flow->halo.need), WF_CHANNELS_LAST);
        WF_NEED(flow->assembled);
        return WF_OK;
    }
    flow->arriving = wf_tensor_new_step(ctx, dtype, wf_box_shape(flow->halo.need), WF_CHANNELS_LAST);
    WF_NEED(flow->arriving);
    if (flow->parts.elements > 0) {
        flow->assembled = wf_tensor_new_step(ctx, dtype, WF_SHAPE(flow->parts.elements), WF_ROW_MAJOR);
        WF_NEED(flow->assembled);
    }
    return WF_OK;
}

wf_status wf_inflow_begin(wf_inflow *flow)
{
    if (!flow->halo.exchange)
        return WF_OK;
    WF_TRY(make_buffers(flow));
    flow->under_way = true;
    if (flow->arriving)
        return wf_exchange_begin_halo(flow->halo.exchange, flow->own, flow->arriving);
    return wf_exchange_begin(flow->halo.exchange, flow->own, flow->assembled);
}

/* The elements of `box` from a tensor that holds `from` to one that holds `to`. */
static wf_status copy_box(const wf_tensor *src, wf_box from, wf_tensor *dst, wf_box to, wf_box box)
{
    wf_tensor *a = wf_tensor_view(src, wf_box_relative(box, from)), *b = wf_tensor_view(dst, wf_box_relative(box, to));
    const wf_status status = a && b ? wf_tensor_assign(b, a) : wf_error_take("a view of a halo", __FILE__, __LINE__);
    wf_tensor_free(a);
    wf_tensor_free(b);
    return status;
}

/* The inputs of a rim: what is own, and what arrived. */
static wf_status assemble(const wf_inflow *flow, const wf_part *part)
{
    wf_box rest[2 * WF_MAX_RANK];
    const wf_box own = wf_box_intersect(part->in, flow->own_box);
    const size_t size = wf_dtype_size(flow->own->dtype);
    if (wf_box_empty(part->in))
        return WF_OK;
    wf_tensor *to = wf_tensor_wrap(flow->own->ctx, flow->own->dtype, wf_box_shape(part->in), WF_CHANNELS_LAST,
                                   (char *)flow->assembled->data + (size_t)part->at * size);
    WF_NEED(to);
    wf_status status = WF_OK;
    if (!wf_box_empty(own))
        status = copy_box(flow->own, flow->own_box, to, part->in, own);
    const int n = wf_box_subtract(part->in, flow->own_box, rest);
    for (int i = 0; i < n && status == WF_OK; i++)
        status = copy_box(flow->arriving, flow->halo.need, to, part->in, rest[i]);
    wf_tensor_free(to);
    return status;
}

wf_status wf_inflow_end(wf_inflow *flow)
{
    if (!flow->under_way)
        return WF_OK;
    flow->under_way = false;
    WF_TRY(wf_exchange_end(flow->halo.exchange));
    for (int i = 0; flow->arriving && i < flow->parts.n; i++)
        if (flow->parts.part[i].at >= 0)
            WF_TRY(assemble(flow, &flow->parts.part[i]));
    wf_tensor_free(flow->arriving);
    flow->arriving = NULL;
    return WF_OK;
}

void wf_inflow_free(wf_inflow *flow)
{
    /* After an error: messages must not arrive in memory that is someone else's by then. */
    if (flow->under_way && wf_exchange_end(flow->halo.exchange) != WF_OK)
        flow->under_way = false;
    wf_tensor_free(flow->arriving);
    wf_tensor_free(flow->assembled);
    flow->arriving = flow->assembled = NULL;
}

wf_status wf_inflow_run(wf_inflow *flow, const wf_part_run *run)
{
    wf_part_run rest = *run;
    if (!flow->under_way)
        WF_TRY(wf_inflow_begin(flow));
    WF_TRY(wf_parts_run(run, flow->own, flow->own_box, &flow->parts, NULL, true));
    WF_TRY(wf_inflow_end(flow));
    rest.poll = NULL;
    return wf_parts_run(&rest, flow->own, flow->own_box, &flow->parts, flow->assembled, false);
}

wf_tensor *wf_inflow_whole(const wf_tensor *own, const wf_halo *halo)
{
    if (!halo->exchange)
        return wf_tensor_alias(own);
    wf_tensor *whole = wf_tensor_new_step(own->ctx, own->dtype, wf_box_shape(halo->need), WF_CHANNELS_LAST);
    wf_status status;
    if (!whole)
        return NULL;
    WF_TRY_OUT(wf_exchange_begin(halo->exchange, own, whole));
    WF_TRY_OUT(wf_exchange_end(halo->exchange));
    return whole;
out:
    wf_tensor_free(whole);
    return wf_error_null();
}

wf_tensor *wf_inflow_return(wf_tensor *whole, const wf_tensor *own, const wf_halo *halo)
{
    if (!whole || !halo->exchange)
        return whole;
    wf_tensor *dx = wf_tensor_new_step(own->ctx, own->dtype, own->shape, WF_CHANNELS_LAST);
    wf_status status = dx ? WF_OK : wf_error_take("a gradient", __FILE__, __LINE__);
    if (status == WF_OK)
        WF_TRY_OUT(wf_tensor_fill(dx, 0));
    if (status == WF_OK)
        WF_TRY_OUT(wf_exchange_reverse_begin(halo->exchange, whole, dx));
    if (status == WF_OK)
        WF_TRY_OUT(wf_exchange_end(halo->exchange));
out:
    wf_tensor_free(whole);
    if (status == WF_OK)
        return dx;
    wf_tensor_free(dx);
    return wf_error_null();
}
