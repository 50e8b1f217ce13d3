/* An input with its halo: starts the exchange, computes the interior meanwhile, then the boundary; in backward it
 * returns halo gradients to their owners, where they are added. Spatial layers run through it, and layers on one rank
 * whose inputs go on beyond the edges, which needs copies of thin slabs and no exchange. */
#include "layers/window/window_impl.h"

bool wf_halo_needed(const wf_halo *halo)
{
    return halo->exchange || halo->beyond;
}

/* The exchange's slabs are those of a template; these are moved to this need. */
wf_slabs wf_halo_slabs(const wf_halo *halo)
{
    wf_slabs slabs = *wf_exchange_slabs(halo->exchange);
    for (int i = 0; i < slabs.n; i++)
        for (int d = 0; d < slabs.need.rank; d++) {
            slabs.box[i].lo[d] += halo->need.lo[d] - slabs.need.lo[d];
            slabs.box[i].hi[d] += halo->need.lo[d] - slabs.need.lo[d];
        }
    slabs.need = halo->need;
    return slabs;
}

static wf_status ignore_piece(void *own, const wf_piece *piece, bool fills)
{
    return WF_OK;
}

wf_status wf_halo_continue(wf_halo *halo, const wf_boundary *boundary, wf_shape whole)
{
    halo->beyond = boundary;
    halo->whole = whole;
    /* For its errors: here every rank has them, also one without samples. Counted from the first element that is
     * there. */
    wf_box need = halo->need;
    for (int d = 0; d < need.rank; d++) {
        need.lo[d] -= halo->first[d];
        need.hi[d] -= halo->first[d];
    }
    return wf_boundary_pieces(whole, boundary, need, 0, ignore_piece, NULL);
}

/* Buffers of one step, taken only where something is received or assembled. */
static wf_status make_buffers(wf_halo_input *flow)
{
    wf_ctx *ctx = flow->own->ctx;
    const wf_dtype dtype = flow->own->dtype;
    /* Without an interior there is one boundary part, which is the whole: it is assembled by the exchange itself. */
    if (flow->parts.n == 1 && flow->parts.part[0].at == 0) {
        flow->assembled = wf_tensor_new_step(ctx, dtype, wf_box_shape(flow->halo.need), WF_CHANNELS_LAST);
        WF_NEED(flow->assembled);
        return WF_OK;
    }
    if (flow->halo.exchange) {
        const int64_t elements = wf_exchange_slabs(flow->halo.exchange)->elements;
        flow->arriving = wf_tensor_new_step(ctx, dtype, WF_SHAPE(elements), WF_ROW_MAJOR);
        WF_NEED(flow->arriving);
    }
    if (flow->parts.elements > 0) {
        flow->assembled = wf_tensor_new_step(ctx, dtype, WF_SHAPE(flow->parts.elements), WF_ROW_MAJOR);
        WF_NEED(flow->assembled);
    }
    return WF_OK;
}

/* Local until here; from here on messages are under way, and wf_halo_input_free waits for them. */
wf_status wf_halo_input_begin(wf_halo_input *flow)
{
    if (!wf_halo_needed(&flow->halo))
        return WF_OK;
    WF_TRY(make_buffers(flow));
    flow->under_way = true;
    if (!flow->halo.exchange)
        return WF_OK;
    if (flow->arriving)
        return wf_exchange_begin_slabs(flow->halo.exchange, flow->own, flow->arriving);
    return wf_exchange_begin(flow->halo.exchange, flow->own, flow->assembled);
}

/* The sources of the inputs of a boundary part: a copy of its own, and this rank's input. */
typedef struct boundary_fields {
    wf_field boundary, own;
} boundary_fields;

static boundary_fields fields_of(const wf_halo_input *flow, const wf_spatial_part *part)
{
    const wf_dtype dtype = flow->own->dtype;
    char *const assembled = flow->assembled->data;
    return (boundary_fields){{assembled + (size_t)part->at * wf_dtype_size(dtype), dtype, part->in},
                             {flow->own->data, dtype, flow->own_box}};
}

/* Copies a box of a source to a boundary's inputs, or adds it from there. Both ways go over the same boxes, so backward
 * is the transpose of forward. */
static wf_status pass_box(wf_ctx *ctx, const wf_field *source, const wf_field *boundary, wf_box box, bool back)
{
    return wf_field_copy(ctx, back ? boundary : source, back ? source : boundary, box, back);
}

/* Collects the inputs of a boundary part: this rank's own elements and the received halo. Back, adds the part's
 * gradients to this rank's own and to those that are sent back. */
static wf_status pass_inputs(const wf_halo_input *flow, const wf_spatial_part *part, bool back)
{
    wf_ctx *ctx = flow->own->ctx;
    wf_box rest[2 * WF_MAX_RANK];
    if (wf_box_empty(part->in))
        return WF_OK;
    const boundary_fields at = fields_of(flow, part);
    if (flow->halo.beyond)
        return back ? wf_field_add(ctx, &flow->halo, &at.boundary, &at.own)
                    : wf_field_read(ctx, &flow->halo, &at.own, &at.boundary);
    WF_TRY(pass_box(ctx, &at.own, &at.boundary, wf_box_intersect(part->in, flow->own_box), back));
    const wf_slabs slabs = wf_halo_slabs(&flow->halo);
    const int n = wf_box_subtract(part->in, flow->own_box, rest);
    /* Boxes of slabs and of the part may meet in several places. */
    for (int i = 0; i < n; i++)
        for (int k = 0; k < slabs.n; k++) {
            const wf_field halo = wf_slabs_field(&slabs, k, flow->arriving);
            WF_TRY(pass_box(ctx, &halo, &at.boundary, wf_box_intersect(rest[i], halo.box), back));
        }
    return WF_OK;
}

/* What has come is brought to the boundary parts, and the buffer goes. */
wf_status wf_halo_input_end(wf_halo_input *flow)
{
    if (!flow->under_way)
        return WF_OK;
    flow->under_way = false;
    if (flow->halo.exchange)
        WF_TRY(wf_exchange_end(flow->halo.exchange));
    for (int i = 0; (flow->arriving || flow->halo.beyond) && i < flow->parts.n; i++)
        if (flow->parts.part[i].at >= 0)
            WF_TRY(pass_inputs(flow, &flow->parts.part[i], false));
    wf_tensor_free(flow->arriving);
    flow->arriving = NULL;
    return WF_OK;
}

void wf_halo_input_free(wf_halo_input *flow)
{
    /* After an error: the exchange must end before its memory is reused, since messages may still arrive in it. */
    if (flow->under_way && flow->halo.exchange && wf_exchange_end(flow->halo.exchange) != WF_OK)
        flow->under_way = false;
    wf_tensor_free(flow->arriving);
    wf_tensor_free(flow->assembled);
    flow->arriving = flow->assembled = NULL;
}

wf_status wf_halo_input_run(wf_halo_input *flow, const wf_spatial_part_run *run)
{
    wf_spatial_part_run rest = *run;
    if (!flow->under_way)
        WF_TRY(wf_halo_input_begin(flow));
    /* The interior, while messages travel: kernels of blocks poll for them. */
    WF_TRY(wf_output_regions_run(run, flow->own, flow->own_box, &flow->parts, NULL, true));
    WF_TRY(wf_halo_input_end(flow));
    /* The exchange is over: the boundary's blocks need no polls. */
    rest.poll = NULL;
    return wf_output_regions_run(&rest, flow->own, flow->own_box, &flow->parts, flow->assembled, false);
}

static wf_status begin_back(wf_halo_input *flow, const wf_spatial_part_run *run)
{
    wf_spatial_part_run boundaries = *run;
    boundaries.poll = NULL;
    WF_TRY(make_buffers(flow));
    /* Boundary parts add to it. */
    if (flow->assembled)
        WF_TRY(wf_tensor_fill(flow->assembled, 0));
    /* Backward has the reverse order: boundary first, so that its halo gradients travel while the interior is computed.
     */
    WF_TRY(wf_output_regions_run(&boundaries, flow->own, flow->own_box, &flow->parts, flow->assembled, false));
    /* Boundary parts may read the same halo elements. */
    if (flow->arriving)
        WF_TRY(wf_tensor_fill(flow->arriving, 0));
    for (int i = 0; (flow->arriving || flow->halo.beyond) && i < flow->parts.n; i++)
        if (flow->parts.part[i].at >= 0)
            WF_TRY(pass_inputs(flow, &flow->parts.part[i], true));
    if (!flow->halo.exchange)
        return WF_OK;
    flow->under_way = true;
    if (flow->arriving)
        return wf_exchange_reverse_begin_slabs(flow->halo.exchange, flow->arriving, flow->back);
    return wf_exchange_reverse_begin(flow->halo.exchange, flow->assembled, flow->back);
}

wf_status wf_halo_input_run_back(wf_halo_input *flow, const wf_spatial_part_run *run)
{
    /* The interior adds to dx, the exchange does too. */
    WF_TRY(wf_tensor_fill(flow->back, 0));
    if (wf_halo_needed(&flow->halo))
        WF_TRY(begin_back(flow, run));
    WF_TRY(wf_output_regions_run(run, flow->own, flow->own_box, &flow->parts, NULL, true));
    if (!flow->under_way)
        return WF_OK;
    flow->under_way = false;
    return wf_exchange_end(flow->halo.exchange);
}

/* The whole input at once, for layers that do not cut it into interior and boundary. */
wf_tensor *wf_halo_input_whole(const wf_tensor *own, wf_box own_box, const wf_halo *halo)
{
    if (!wf_halo_needed(halo))
        return wf_tensor_alias(own);
    wf_tensor *whole = wf_tensor_new_step(own->ctx, own->dtype, wf_box_shape(halo->need), WF_CHANNELS_LAST);
    wf_status status;
    if (!whole)
        return NULL;
    if (!halo->exchange) {
        WF_TRY_OUT(wf_field_read(own->ctx, halo, &(wf_field){own->data, own->dtype, own_box},
                                 &(wf_field){whole->data, own->dtype, halo->need}));
        return whole;
    }
    WF_TRY_OUT(wf_exchange_begin(halo->exchange, own, whole));
    WF_TRY_OUT(wf_exchange_end(halo->exchange));
    return whole;
out:
    wf_tensor_free(whole);
    return wf_error_null();
}

/* The reverse: gradients of the halo go to their owners. Takes `whole` over. */
wf_tensor *wf_halo_input_return(wf_tensor *whole, const wf_tensor *own, wf_box own_box, const wf_halo *halo)
{
    if (!whole || !wf_halo_needed(halo))
        return whole;
    wf_tensor *dx = wf_tensor_new_step(own->ctx, own->dtype, own->shape, WF_CHANNELS_LAST);
    wf_status status = dx ? WF_OK : wf_error_take("a gradient", __FILE__, __LINE__);
    if (status == WF_OK)
        WF_TRY_OUT(wf_tensor_fill(dx, 0));
    if (status == WF_OK && !halo->exchange)
        WF_TRY_OUT(wf_field_add(own->ctx, halo, &(wf_field){whole->data, own->dtype, halo->need},
                                &(wf_field){dx->data, own->dtype, own_box}));
    if (status == WF_OK && halo->exchange)
        WF_TRY_OUT(wf_exchange_reverse_begin(halo->exchange, whole, dx));
    if (status == WF_OK && halo->exchange)
        WF_TRY_OUT(wf_exchange_end(halo->exchange));
out:
    wf_tensor_free(whole);
    if (status == WF_OK)
        return dx;
    wf_tensor_free(dx);
    return wf_error_null();
}
