/* Runs a grouped convolution on the channels of one rank, which may begin and end inside a group. The kernels take
 * whole groups, so the work is done in pieces: the rest of a group, whole groups, the beginning of a group. */
#include "layers/parallel/parallel_impl.h"

static wf_range relative(wf_range range, wf_range to)
{
    return (wf_range){range.lo - to.lo, range.hi - to.lo};
}

/* Pure arithmetic, once for each layer: pieces depend on the split and never on the data. */
wf_channel_local wf_channel_local_of(const wf_channel_split *s)
{
    wf_channel_local local = {0};
    const wf_range outer = s->by_input ? wf_channel_inputs(s) : wf_channel_outputs(s);
    const wf_range inner = s->by_input ? wf_channel_outputs(s) : wf_channel_inputs(s);
    /* "Outer" is the side by which the filter is cut, "inner" the other one; rows and columns are those of one group.
     */
    const int64_t rows = (s->by_input ? s->in.channels : s->out.channels) / s->groups;
    const int64_t columns = (s->by_input ? s->out.channels : s->in.channels) / s->groups;
    /* Without groups every output reads every input: one piece. */
    if (s->groups == 1) {
        local.pieces = 1;
        local.piece[0] = (wf_channel_piece){relative(outer, outer), relative(inner, inner), 1};
        return local;
    }
    /* At most three rounds: a group's rest, all whole groups together, a group's beginning. */
    for (int64_t at = outer.lo; at < outer.hi;) {
        const int64_t group = at / rows, whole = at % rows == 0 ? (outer.hi - at) / rows : 0;
        const int64_t groups = whole > 0 ? whole : 1;
        const int64_t end = (group + groups) * rows < outer.hi ? (group + groups) * rows : outer.hi;
        const wf_range a = {at, end}, b = {group * columns, (group + groups) * columns};
        local.piece[local.pieces++] = (wf_channel_piece){relative(a, outer), relative(b, inner), groups};
        at = end;
    }
    return local;
}

/* The filter of a piece. */
static wf_array rows_of(const wf_array *w, wf_range rows)
{
    wf_array a = *w;
    if (rows.lo == 0 && rows.hi == a.shape.dim[0])
        return a;
    const int64_t row = a.shape.dim[0] > 0 ? wf_shape_count(a.shape) / a.shape.dim[0] : 0;
    /* A rank without rows has no memory. */
    if (a.data)
        a.data = (char *)a.data + (size_t)(rows.lo * row) * wf_dtype_size(a.dtype);
    a.shape.dim[0] = rows.hi - rows.lo;
    /* The packed forms are those of the whole filter. */
    a.forms = NULL;
    return a;
}

static wf_field field_of(const wf_array *a)
{
    return (wf_field){a->data, a->dtype, wf_box_of_shape(a->shape)};
}

static wf_box channels_of(const wf_array *a, wf_range channels)
{
    wf_box box = wf_box_of_shape(a->shape);
    box.lo[1] = channels.lo;
    box.hi[1] = channels.hi;
    return box;
}

/* All of the geometry holds for a piece but the number of groups. */
static wf_conv_geom geom_of(const wf_channel_call *call, const wf_channel_piece *piece)
{
    wf_conv_geom geom = call->geom;
    geom.groups = piece->groups;
    return geom;
}

static wf_status run_kernel(const wf_channel_call *call, const wf_channel_piece *piece, const wf_array *from,
                            const wf_array *w, const wf_array *bias, const wf_epilogue *epilogue, const wf_array *to)
{
    const wf_conv_geom geom = geom_of(call, piece);
    const wf_kernels *k = call->ctx->k;
    wf_conv_args args = {.geom = &geom, .w = w, .bias = bias, .epilogue = epilogue};
    if (call->way == WF_TO_OUTER) {
        args.x = from;
        args.y = to;
        return k->conv_forward(call->ctx, &args);
    }
    /* Toward the inner side the same filter is applied backward: what is read plays the gradient. */
    args.x = to;
    args.y = from;
    return k->conv_backward_data(call->ctx, &args);
}

static wf_status run_piece(const wf_channel_call *call, const wf_channel_piece *piece, const wf_array *from,
                           const wf_array *w, const wf_array *to)
{
    const wf_range read = call->way == WF_TO_OUTER ? piece->inner : piece->outer;
    const wf_range made = call->way == WF_TO_OUTER ? piece->outer : piece->inner;
    const wf_array rows = rows_of(w, piece->outer);
    const wf_field source = field_of(from), target = field_of(to);
    const wf_box place = channels_of(to, made);
    wf_block_of in, out = {.bytes = 0};
    wf_status status;
    /* Kernels want dense arrays; a range of channels is not one in the order with channels last. */
    WF_TRY_OUT(wf_block_gather(call->ctx, &source, channels_of(from, read), true, &in));
    WF_TRY_OUT(wf_block_gather(call->ctx, &target, place, false, &out));
    WF_TRY_OUT(run_kernel(call, piece, &in.array, &rows, NULL, NULL, &out.array));
    WF_TRY_OUT(wf_block_scatter(call->ctx, &target, place, &out));
out:
    wf_block_give(call->ctx, &out);
    wf_block_give(call->ctx, &in);
    return status;
}

wf_status wf_channel_local_run(const wf_channel_call *call, const wf_array *from, const wf_array *w,
                               const wf_array *bias, const wf_epilogue *epilogue, const wf_array *to)
{
    /* One piece takes the whole arrays without a copy, and with bias and activation in the same pass. */
    if (call->local->pieces == 1)
        return run_kernel(call, &call->local->piece[0], from, w, bias, epilogue, to);
    for (int i = 0; i < call->local->pieces; i++)
        WF_TRY(run_piece(call, &call->local->piece[i], from, w, to));
    return WF_OK;
}

static wf_status filter_piece(const wf_channel_call *call, const wf_channel_piece *piece, const wf_array *inner,
                              const wf_array *outer, const wf_array *dw, bool add)
{
    const wf_conv_geom geom = geom_of(call, piece);
    const wf_array rows = rows_of(dw, piece->outer);
    const wf_field interior = field_of(inner), outside = field_of(outer);
    wf_block_of x, dy = {.bytes = 0};
    wf_status status;
    WF_TRY_OUT(wf_block_gather(call->ctx, &interior, channels_of(inner, piece->inner), true, &x));
    WF_TRY_OUT(wf_block_gather(call->ctx, &outside, channels_of(outer, piece->outer), true, &dy));
    WF_TRY_OUT(call->ctx->k->conv_backward_filter(
        call->ctx, &(wf_conv_args){.geom = &geom, .x = &x.array, .y = &dy.array, .w = &rows, .accumulate = add}));
out:
    wf_block_give(call->ctx, &dy);
    wf_block_give(call->ctx, &x);
    return status;
}

wf_status wf_channel_local_filter(const wf_channel_call *call, const wf_array *inner, const wf_array *outer,
                                  const wf_array *dw, const wf_array *dbias, bool add)
{
    if (call->local->pieces == 1) {
        /* The kernel adds the bias's gradient along; several pieces would add it once each, so the caller makes it by
         * itself then. */
        const wf_conv_geom geom = geom_of(call, &call->local->piece[0]);
        const wf_conv_args args = {.geom = &geom, .x = inner, .y = outer, .w = dw, .bias = dbias, .accumulate = add};
        return call->ctx->k->conv_backward_filter(call->ctx, &args);
    }
    for (int i = 0; i < call->local->pieces; i++)
        WF_TRY(filter_piece(call, &call->local->piece[i], inner, outer, dw, add));
    return WF_OK;
}
