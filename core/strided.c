/* Copies between the two ends of a piece of a boundary, by the kernel table's `copy`: mirrored by steps of -1 in what
 * is read, repeated by steps of 0; the sums of repeated elements are made one slice after the other, in a fixed order.
 */
#include "core/boundary_author.h"

#include "core/context_author.h"

/* Makes the source of a copy run downwards along d. */
static void turn_back(wf_strided *a, int d)
{
    a->data = (char *)a->data + (a->dim[d] - 1) * a->stride[d] * (int64_t)wf_dtype_size(a->dtype);
    a->stride[d] = -a->stride[d];
}

static bool is_empty(const wf_strided *a)
{
    for (int d = 0; d < a->rank; d++)
        if (a->dim[d] == 0)
            return true;
    return false;
}

/* Each place reads one element, so any order of the copy gives the same bits, and all steps are one call of the
 * kernel. */
wf_status wf_strided_spread(wf_ctx *ctx, const wf_strided *source, const wf_strided *place, const int8_t *step,
                            bool accumulate)
{
    wf_strided from = *source;
    if (is_empty(place))
        return WF_OK;
    for (int d = 0; d < from.rank; d++) {
        if (step[d] < 0)
            turn_back(&from, d);
        /* A stride of 0 repeats the element; its length is that of the place. */
        from.stride[d] = step[d] == 0 ? 0 : from.stride[d];
        from.dim[d] = place->dim[d];
    }
    return ctx->k->copy(ctx, &from, place, accumulate);
}

/* The reverse of spread: many places may belong to one element. Adding them in one call would leave the order of the
 * sum to the kernel, so each slice of repeated places has a call of its own. */
wf_status wf_strided_gather(wf_ctx *ctx, const wf_strided *place, const wf_strided *source, const int8_t *step,
                            bool accumulate)
{
    wf_strided from = *place;
    int64_t slices = 1;
    if (is_empty(place))
        return WF_OK;
    for (int d = 0; d < from.rank; d++) {
        if (step[d] < 0)
            turn_back(&from, d);
        if (step[d] != 0)
            continue;
        slices *= from.dim[d];
        from.dim[d] = 1;
    }
    char *const first = from.data;
    /* Slices count like the digits of a number, the innermost dimension fastest: the row-major order that the header
     * promises. */
    for (int64_t i = 0; i < slices; i++) {
        int64_t rest = i, at = 0;
        for (int d = from.rank - 1; d >= 0; d--) {
            if (step[d] != 0)
                continue;
            at += rest % place->dim[d] * place->stride[d];
            rest /= place->dim[d];
        }
        from.data = first + at * (int64_t)wf_dtype_size(from.dtype);
        /* The first slice overwrites where the caller does not accumulate; all others add to it. */
        WF_TRY(ctx->k->copy(ctx, &from, source, accumulate || i > 0));
    }
    return WF_OK;
}

wf_strided wf_strided_row(const void *data, wf_dtype dtype, int64_t n)
{
    return (wf_strided){.data = (void *)data, .dtype = dtype, .rank = 1, .dim = {n}, .stride = {1}};
}

/* Through a copy of one number with strides of 0: tables have a fill for dense arrays only. */
wf_status wf_strided_fill(wf_ctx *ctx, const wf_strided *y, double value)
{
    const size_t bytes = wf_dtype_size(y->dtype);
    wf_array one = {.dtype = y->dtype, .shape = WF_SHAPE(1)};
    wf_strided from = *y;
    if (is_empty(y))
        return WF_OK;
    WF_TRY(wf_pool_take(ctx, bytes, &one.data));
    wf_status status = ctx->k->fill(ctx, &one, value);
    from.data = one.data;
    for (int d = 0; d < from.rank; d++)
        from.stride[d] = 0;
    if (status == WF_OK)
        status = ctx->k->copy(ctx, &from, y, false);
    wf_pool_give(ctx, one.data, bytes);
    return status;
}

/* y = -1 x in place, by the same kernel on every device. */
wf_status wf_negate(wf_ctx *ctx, wf_dtype dtype, void *data, int64_t count)
{
    WF_CHECK(wf_dtype_is_float(dtype), WF_ERR_DTYPE,
             "a boundary changes the sign of elements of type %s; should be of a float type", wf_dtype_name(dtype));
    const wf_array x = {.data = data, .dtype = dtype, .shape = WF_SHAPE(count)};
    return ctx->k->binary(ctx, &(wf_binary_args){.op = WF_BINARY_LINEAR, .alpha = -1, .a = &x, .y = &x});
}

/* --- boxes beyond the edges -----------------------------------------------------------------------------------------
 */

typedef struct copies {
    wf_ctx *ctx;
    const wf_boxed *source, *place; /* of which one is written */
    bool reversed;
    double value;
} copies;

static wf_strided part_at(const wf_boxed *a, wf_box part)
{
    wf_strided view = a->at;
    for (int d = 0; d < part.rank; d++) {
        view.data =
            (char *)view.data + (part.lo[d] - a->box.lo[d]) * view.stride[d] * (int64_t)wf_dtype_size(view.dtype);
        view.dim[d] = part.hi[d] - part.lo[d];
    }
    return view;
}

/* Copies through memory of its own, in which signs change: the source must keep its signs, and a copy with a factor
 * would be a kernel more on every device. */
static wf_status copy_negated(const copies *c, const wf_piece *piece, const wf_strided *source, const wf_strided *place)
{
    const wf_shape shape = wf_box_shape(piece->box);
    const wf_piece plain = wf_piece_of(0, piece->box);
    const int64_t count = wf_shape_count(shape);
    const size_t bytes = (size_t)count * wf_dtype_size(source->dtype);
    wf_strided between = *source;
    wf_order_strides(shape, shape.rank >= 3 && shape.rank <= 5 ? WF_CHANNELS_LAST : WF_ROW_MAJOR, between.stride);
    WF_TRY(wf_pool_take(c->ctx, bytes, &between.data));
    /* Forwards, the elements are taken as they are and go to their places negated; in reverse, places are summed first,
     * so that signs change once for each element. */
    wf_status status = c->reversed ? wf_strided_gather(c->ctx, place, &between, piece->step, false)
                                   : wf_strided_spread(c->ctx, source, &between, plain.step, false);
    if (status == WF_OK)
        status = wf_negate(c->ctx, between.dtype, between.data, count);
    if (status == WF_OK)
        status = c->reversed ? wf_strided_spread(c->ctx, &between, source, plain.step, true)
                             : wf_strided_spread(c->ctx, &between, place, piece->step, false);
    wf_pool_give(c->ctx, between.data, bytes);
    return status;
}

/* The visitor of wf_boundary_pieces. Gradients of places that hold the boundary's value go nowhere. */
static wf_status copy_piece(void *own, const wf_piece *piece, bool fills)
{
    const copies *c = own;
    const wf_strided place = part_at(c->place, piece->at);
    if (fills)
        return c->reversed ? WF_OK : wf_strided_fill(c->ctx, &place, c->value);
    /* A caller that asks for more than its part holds gets an error, not a read outside of it. */
    WF_CHECK(wf_box_contains(c->source->box, piece->box), WF_ERR_SHAPE,
             "a boundary reads elements that are not in the part of the array at hand");
    const wf_strided source = part_at(c->source, piece->box);
    if (piece->negate)
        return copy_negated(c, piece, &source, &place);
    return c->reversed ? wf_strided_gather(c->ctx, &place, &source, piece->step, true)
                       : wf_strided_spread(c->ctx, &source, &place, piece->step, false);
}

/* place->box may reach beyond the edges of the whole; source->box may not. */
wf_status wf_boundary_read(wf_ctx *ctx, wf_shape global, const wf_boundary *boundary, const wf_boxed *from,
                           const wf_boxed *to)
{
    copies c = {.ctx = ctx, .source = from, .place = to, .value = boundary->value};
    return wf_boundary_pieces(global, boundary, to->box, 0, copy_piece, &c);
}

wf_status wf_boundary_add(wf_ctx *ctx, wf_shape global, const wf_boundary *boundary, const wf_boxed *place,
                          const wf_boxed *source)
{
    copies c = {.ctx = ctx, .source = source, .place = place, .reversed = true};
    return wf_boundary_pieces(global, boundary, place->box, 0, copy_piece, &c);
}
