/* Elements at given places of a larger image: the other way of maximum pooling. Images must be whole on their rank; no
 * message is sent. Places are those that wf_max_pool_places gives: numbers of pixels of the larger image. */
#include "layers/functions/functions_impl.h"
#include "layers/serial/serial_impl.h"

static wf_status backward(wf_node *node)
{
    /* dx[i] = dy[index[i]]: each input went to one place, so its gradient is read there. */
    const wf_tensor *dy = wf_node_dy(node), *index = wf_node_saved(node, 0);
    wf_tensor *dx = wf_tensor_new_step(dy->ctx, dy->dtype, index->shape, WF_CHANNELS_LAST);
    WF_NEED(dx);
    const wf_array from = wf_tensor_array(dy), at = wf_tensor_array(index), to = wf_tensor_array(dx);
    const wf_status status = dy->ctx->k->pick_pixels(dy->ctx, &from, &at, &to);
    if (status == WF_OK)
        return wf_node_give(node, 0, dx, false);
    wf_tensor_free(dx);
    return wf_error_frame(status, __FILE__, __LINE__, __func__);
}

static const wf_op unpool_op = {.name = "max_unpool", .backward = backward};

static wf_status check_unpooled(const wf_var *x, const wf_var *places)
{
    char text[2][WF_SHAPE_TEXT], layout[WF_LAYOUT_TEXT];
    const wf_shape shape = wf_var_shape(x);
    WF_TRY(wf_function_check("max_unpool", x, WF_ANY_FUNCTION));
    WF_TRY(wf_take_check("max_unpool", places));
    WF_CHECK(shape.rank >= 3 && shape.rank <= 5, WF_ERR_SHAPE,
             "max_unpool of %s, should be [N,C] and 1 to 3 spatial dimensions", wf_shape_text(shape, text[0]));
    WF_CHECK(wf_shape_equal(shape, wf_var_shape(places)), WF_ERR_SHAPE,
             "max_unpool of %s by places %s, should be of one shape", wf_shape_text(shape, text[0]),
             wf_shape_text(wf_var_shape(places), text[1]));
    /* Before any length is asked for: a rank may have no pixel, and says the same as the others. */
    for (int d = 2; d < shape.rank; d++)
        WF_CHECK(!wf_layout_is_sharded(&x->value->layout, d), WF_ERR_SHAPE,
                 "max_unpool needs all pixels of an image, and its input is %s; wf_redistribute it first",
                 wf_layout_text(&x->value->layout, layout));
    WF_CHECK(x->tape == places->tape, WF_ERR_ARGUMENT, "max_unpool takes variables of one tape");
    return wf_function_check_layouts("max_unpool", x, places);
}

/* Options may be left out if the size is whole. */
static wf_status check_given(const wf_pool_opts *o, bool needed, wf_pool_geom *g)
{
    int64_t given = o->kernel | o->stride | o->pad | o->dilation;
    for (int d = 0; d < WF_MAX_SPATIAL; d++)
        given |= o->kernel_nd[d] | o->stride_nd[d] | o->dilation_nd[d] | o->pad_lo_nd[d] | o->pad_hi_nd[d];
    WF_CHECK(!wf_boundary_given(&o->boundary, g->nd), WF_ERR_UNSUPPORTED,
             "max_unpool: with a boundary maxima may lie beyond the edges, which have no places");
    return needed || given ? wf_pool_geometry(o, "max_unpool", g) : WF_OK;
}

/* The larger image's shape. Pixels of both images are numbered in i32. */
static wf_status fit_larger(const wf_var *x, const wf_pool_opts *o, wf_shape size, wf_shape *y)
{
    char text[2][WF_SHAPE_TEXT];
    wf_pool_geom g = {.nd = wf_var_shape(x).rank - 2};
    int64_t left = INT32_MAX, own_left = INT32_MAX;
    bool by_options = size.rank == 0;
    *y = wf_var_shape(x);
    WF_CHECK(size.rank == 0 || size.rank == g.nd, WF_ERR_SHAPE,
             "max_unpool of %s to size %s, should have %d dimensions", wf_shape_text(*y, text[0]),
             wf_shape_text(size, (char[WF_SHAPE_TEXT]){0}), g.nd);
    for (int d = 0; d < size.rank; d++)
        by_options = by_options || size.dim[d] == 0;
    WF_TRY(check_given(o, by_options, &g));
    /* By division, so that no product of lengths can overflow before it is refused. */
    for (int d = 0; d < g.nd; d++)
        own_left = y->dim[2 + d] > 0 ? own_left / y->dim[2 + d] : own_left;
    WF_CHECK(own_left > 0, WF_ERR_UNSUPPORTED, "max_unpool of %s, should be at most %d pixels",
             wf_shape_text(*y, text[0]), INT32_MAX);
    for (int d = 0; d < g.nd; d++) {
        const int64_t own = size.rank > 0 ? size.dim[d] : 0;
        /* The inverse of the formula of pooling's output length; several lengths pool to the same one, and this is the
         * smallest. */
        y->dim[2 + d] = own != 0 ? own
                                 : (y->dim[2 + d] - 1) * g.stride[d] - g.pad_lo[d] - g.pad_hi[d] +
                                       wf_window_extent(wf_pool_window(&g, d));
        WF_CHECK(y->dim[2 + d] >= 1, WF_ERR_SHAPE,
                 "max_unpool to %lld pixels in spatial dimension %d, should be 1 or more", (long long)y->dim[2 + d], d);
        left /= y->dim[2 + d];
    }
    WF_CHECK(left > 0, WF_ERR_UNSUPPORTED, "max_unpool to %s, should be at most %d pixels", wf_shape_text(*y, text[0]),
             INT32_MAX);
    return WF_OK;
}

/* y from x; `index` becomes what backward reads. `taken` says for each pixel of y which pixel of x lies there, so y is
 * gathered: where two maxima name one place, the kernel decides which, always in the same way. */
static wf_status run_unpool(const wf_tensor *x, const wf_tensor *places, const wf_tensor *index, const wf_tensor *y)
{
    WF_NEED(x);
    WF_NEED(places);
    WF_NEED(index);
    WF_NEED(y);
    wf_ctx *ctx = x->ctx;
    wf_tensor *taken = wf_tensor_new_step(ctx, WF_I32, y->shape, WF_CHANNELS_LAST);
    WF_NEED(taken);
    const wf_array in = wf_tensor_array(x), named = wf_tensor_array(places), at = wf_tensor_array(index);
    const wf_array from = wf_tensor_array(taken), out = wf_tensor_array(y);
    wf_status status = ctx->k->unpool_index(ctx, &(wf_unpool_args){.places = &named, .index = &at, .taken = &from});
    if (status == WF_OK)
        status = ctx->k->pick_pixels(ctx, &in, &from, &out);
    wf_tensor_free(taken);
    return status;
}

wf_var *wf_max_unpool(wf_var *x, const wf_var *places, wf_pool_opts opts, wf_shape size)
{
    wf_shape shape;
    if (!x)
        return NULL;
    if (!places)
        return wf_error_need_null("max_unpool", "the variable of places", __FILE__, __LINE__);
    WF_TRY_NULL(check_unpooled(x, places));
    WF_TRY_NULL(fit_larger(x, &opts, size, &shape));
    wf_tensor *y = wf_output("max_unpool", x, shape, WF_CHANNELS_LAST, (int[]){0, 1, -1, -1, -1});
    wf_tensor *in = wf_dense_value(x);
    wf_tensor *at = wf_tensor_dense(places->value, places->value->dtype, WF_CHANNELS_LAST);
    wf_tensor *index = wf_tensor_new_step(x->value->ctx, WF_I32, wf_var_shape(x), WF_CHANNELS_LAST);
    wf_var *out =
        wf_function_finish(run_unpool(in, at, index, y), x->tape,
                           &(wf_node_spec){.op = &unpool_op, .n_in = 1, .in = &x, .n_saved = 1, .saved = &index}, y);
    wf_tensor_free(index);
    wf_tensor_free(at);
    wf_tensor_free(in);
    return out;
}
