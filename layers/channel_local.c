/* A rank's channels may begin and end inside a group; the kernels know whole groups. So they are done in pieces: the
 * rest of a group, groups, the beginning of a group. */
#include "layers/channel_local_impl.h"

static wf_range relative(wf_range range, wf_range to)
{
    return (wf_range){range.lo - to.lo, range.hi - to.lo};
}

wf_channel_local wf_channel_local_of(const wf_channel_split *s, wf_conv_geom geom)
{
    wf_channel_local local = {.geom = geom};
    const wf_range outer = s->by_input ? wf_channel_inputs(s) : wf_channel_outputs(s);
    const wf_range inner = s->by_input ? wf_channel_outputs(s) : wf_channel_inputs(s);
    const int64_t rows = (s->by_input ? s->in.channels : s->out.channels) / s->groups;
    const int64_t columns = (s->by_input ? s->out.channels : s->in.channels) / s->groups;
    if (s->groups == 1) {
        local.pieces = 1;
        local.piece[0] = (wf_channel_piece){relative(outer, outer), relative(inner, inner), 1};
        return local;
    }
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
static wf_array rows_of(const wf_tensor *w, wf_range rows)
{
    wf_array a = wf_tensor_array(w);
    if (rows.lo == 0 && rows.hi == a.shape.dim[0])
        return a;
    const int64_t row = a.shape.dim[0] > 0 ? wf_shape_count(a.shape) / a.shape.dim[0] : 0;
    if (a.data)
        a.data = (char *)a.data + (size_t)(rows.lo * row) * wf_dtype_size(a.dtype);
    a.shape.dim[0] = rows.hi - rows.lo;
    a.forms = NULL;
    return a;
}

/* Room for the channels of a piece. */
static wf_tensor *room_for(const wf_tensor *like, wf_range channels)
{
    wf_shape shape = like->shape;
    shape.dim[1] = channels.hi - channels.lo;
    return wf_tensor_new_step(like->ctx, like->dtype, shape, WF_CHANNELS_LAST);
}

static wf_status put_back(const wf_tensor *whole, wf_range channels, const wf_tensor *part)
{
    wf_box box = wf_box_of_shape(whole->shape);
    box.lo[1] = channels.lo;
    box.hi[1] = channels.hi;
    wf_tensor *view = wf_tensor_view(whole, box);
    WF_NEED(view);
    const wf_status status = wf_tensor_assign(view, part);
    wf_tensor_free(view);
    return status;
}

static wf_conv_geom geom_of(const wf_channel_local *local, const wf_channel_piece *piece)
{
    wf_conv_geom geom = local->geom;
    geom.groups = piece->groups;
    return geom;
}

static wf_status call(wf_ctx *ctx, const wf_conv_geom *geom, wf_channel_way way, const wf_tensor *from,
                      const wf_array *w, const wf_array *bias, const wf_epilogue *epilogue, const wf_tensor *to)
{
    const wf_array in = wf_tensor_array(from), out = wf_tensor_array(to);
    return (way == WF_TO_OUTER ? ctx->k->conv_forward : ctx->k->conv_backward_data)(ctx, geom, &in, w, bias, epilogue,
                                                                                    &out);
}

static wf_status run_piece(const wf_channel_local *local, const wf_channel_piece *piece, wf_channel_way way,
                           const wf_tensor *from, const wf_tensor *w, const wf_tensor *to)
{
    const wf_conv_geom geom = geom_of(local, piece);
    const wf_range read = way == WF_TO_OUTER ? piece->inner : piece->outer;
    const wf_range made = way == WF_TO_OUTER ? piece->outer : piece->inner;
    const wf_array rows = rows_of(w, piece->outer);
    wf_tensor *in = wf_channel_pick(from, read.lo, read.hi), *out = room_for(to, made);
    wf_status status = in && out ? WF_OK : wf_error_take("a piece", __FILE__, __LINE__);
    if (status == WF_OK)
        status = call(to->ctx, &geom, way, in, &rows, NULL, NULL, out);
    if (status == WF_OK)
        status = put_back(to, made, out);
    wf_tensor_free(in);
    wf_tensor_free(out);
    return status;
}

wf_status wf_channel_local_run(const wf_channel_local *local, wf_channel_way way, const wf_tensor *from,
                               const wf_tensor *w, const wf_array *bias, const wf_epilogue *epilogue,
                               const wf_tensor *to)
{
    WF_NEED(from);
    WF_NEED(w);
    WF_NEED(to);
    if (local->pieces == 1) {
        const wf_conv_geom geom = geom_of(local, &local->piece[0]);
        const wf_array filter = wf_tensor_array(w);
        return call(to->ctx, &geom, way, from, &filter, bias, epilogue, to);
    }
    for (int i = 0; i < local->pieces; i++)
        WF_TRY(run_piece(local, &local->piece[i], way, from, w, to));
    return WF_OK;
}

static wf_status filter_piece(const wf_channel_local *local, const wf_channel_piece *piece, const wf_tensor *inner,
                              const wf_tensor *outer, const wf_tensor *dw, bool add)
{
    const wf_conv_geom geom = geom_of(local, piece);
    const wf_array rows = rows_of(dw, piece->outer);
    wf_tensor *x = wf_channel_pick(inner, piece->inner.lo, piece->inner.hi);
    wf_tensor *dy = wf_channel_pick(outer, piece->outer.lo, piece->outer.hi);
    wf_status status = x && dy ? WF_OK : wf_error_take("a piece", __FILE__, __LINE__);
    if (status == WF_OK) {
        const wf_array a = wf_tensor_array(x), b = wf_tensor_array(dy);
        status = dw->ctx->k->conv_backward_filter(dw->ctx, &geom, &a, &b, &rows, NULL, add);
    }
    wf_tensor_free(x);
    wf_tensor_free(dy);
    return status;
}

wf_status wf_channel_local_filter(const wf_channel_local *local, const wf_tensor *inner, const wf_tensor *outer,
                                  const wf_tensor *dw, const wf_array *dbias, bool add)
{
    if (local->pieces == 1) {
        const wf_conv_geom geom = geom_of(local, &local->piece[0]);
        const wf_array x = wf_tensor_array(inner), dy = wf_tensor_array(outer), out = wf_tensor_array(dw);
        return dw->ctx->k->conv_backward_filter(dw->ctx, &geom, &x, &dy, &out, dbias, add);
    }
    for (int i = 0; i < local->pieces; i++)
        WF_TRY(filter_piece(local, &local->piece[i], inner, outer, dw, add));
    return WF_OK;
}
