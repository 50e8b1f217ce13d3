/* Options of pooling checked and turned into geometry, for the serial and the parallel layers. The extent of global
 * pooling is known only when an input comes. */
#include "layers/serial/serial_impl.h"

/* Bounds that keep products of window and input inside 64 bits. */
#define MOST        (INT64_C(1) << 20)
#define MOST_PLACES (INT64_C(1) << 30)

wf_window wf_pool_window(const wf_pool_geom *g, int d)
{
    return (wf_window){g->kernel[d], g->stride[d], g->dilation[d], g->pad_lo[d], g->pad_hi[d]};
}

/* The place of a maximum is stored as i32, which limits the size of the input: this rank's, since places are local. */
static wf_status check_places(const wf_layer *layer, const wf_var *x)
{
    const wf_pool_state *s = layer->state;
    const wf_shape shape = wf_var_shape(x);
    char text[WF_SHAPE_TEXT];
    int64_t left = INT32_MAX;
    /* Divided step by step, so no product overflows; an empty dimension counts as 1. */
    for (int d = 2; d < shape.rank; d++)
        left = shape.dim[d] > 0 ? left / shape.dim[d] : left;
    WF_CHECK(left > 0, WF_ERR_UNSUPPORTED,
             "%s \"%s\": input %s has more than %d pixels; cut it over more ranks (wf_spatial_max_pool2d)", s->name,
             wf_layer_path(layer), wf_shape_text(shape, text), INT32_MAX);
    return WF_OK;
}

/* Windows of about equal length over a dimension. */
static wf_status fit_adaptive(const wf_layer *layer, wf_shape shape, int d, wf_pool_geom *g, int64_t *outputs)
{
    const wf_pool_state *s = layer->state;
    const int64_t length = shape.dim[2 + d];
    char text[WF_SHAPE_TEXT];
    WF_CHECK(length >= 1 && length <= MOST_PLACES, WF_ERR_SHAPE,
             "%s \"%s\": input %s in spatial dimension %d; lengths should be 1 to %lld", s->name, wf_layer_path(layer),
             wf_shape_text(shape, text), d, (long long)MOST_PLACES);
    *outputs = s->size.dim[d] > 0 ? s->size.dim[d] : length;
    /* The last input of a window may be cut by the next one. Windows begin at floor and end at ceil of the exact
     * bounds, so one may be longer than the quotient by 1. */
    const int64_t longest = (length + *outputs - 1) / *outputs + 1;
    g->kernel[d] = longest < length ? longest : length;
    g->stride[d] = g->dilation[d] = 1;
    g->inputs[d] = length;
    g->outputs[d] = *outputs;
    return WF_OK;
}

wf_status wf_pool_fit(const wf_layer *layer, const wf_var *x, wf_shape shape, wf_pool_geom *g, wf_shape *y)
{
    static const char *const dimensions[WF_MAX_SPATIAL + 1] = {"1 to 3", "1", "2", "3"};
    const wf_pool_state *s = layer->state;
    char text[WF_SHAPE_TEXT];
    *g = s->geom;
    *y = shape;
    WF_CHECK(shape.rank >= 3 && shape.rank <= 5 && (g->nd == 0 || shape.rank == g->nd + 2), WF_ERR_SHAPE,
             "%s \"%s\": input %s, should be [N,C] and %s spatial dimensions", s->name, wf_layer_path(layer),
             wf_shape_text(shape, text), dimensions[g->nd]);
    WF_CHECK(wf_dtype_is_float(x->value->dtype), WF_ERR_DTYPE, "%s \"%s\": input of %s, should be a float type",
             s->name, wf_layer_path(layer), wf_dtype_name(x->value->dtype));
    for (int d = 0; d < shape.rank - 2; d++) {
        const int64_t length = shape.dim[2 + d];
        if (g->adaptive) {
            WF_TRY(fit_adaptive(layer, shape, d, g, &y->dim[2 + d]));
            continue;
        }
        /* Global pooling: one window that covers the input. */
        if (s->geom.nd == 0) {
            g->kernel[d] = length;
            g->stride[d] = g->dilation[d] = 1;
        }
        y->dim[2 + d] = length > 0 ? wf_window_outputs(wf_pool_window(g, d), length, s->ceil) : 0;
        WF_CHECK(y->dim[2 + d] >= 1, WF_ERR_SHAPE, "%s \"%s\": input %s has no window of %lld in spatial dimension %d",
                 s->name, wf_layer_path(layer), wf_shape_text(shape, text), (long long)g->kernel[d], d);
    }
    g->nd = shape.rank - 2;
    return g->kind == WF_POOL_MAX ? check_places(layer, x) : WF_OK;
}

/* 0 means not given, for one dimension as for all. */
static int64_t pick(int64_t own, int64_t all, int64_t otherwise)
{
    return own != 0 ? own : all != 0 ? all : otherwise;
}

wf_status wf_pool_geometry(const wf_pool_opts *o, const char *name, wf_pool_geom *g)
{
    bool own_pads = false;
    for (int d = 0; d < 3; d++)
        own_pads = own_pads || o->pad_lo_nd[d] || o->pad_hi_nd[d];
    WF_CHECK(!own_pads || o->pad == 0, WF_ERR_ARGUMENT, "%s: pad is %lld beside pad_lo_nd and pad_hi_nd", name,
             (long long)o->pad);
    for (int d = 0; d < g->nd; d++) {
        g->kernel[d] = pick(o->kernel_nd[d], o->kernel, 0);
        /* Without a stride windows lie side by side. */
        g->stride[d] = pick(o->stride_nd[d], o->stride, g->kernel[d]);
        g->dilation[d] = pick(o->dilation_nd[d], o->dilation, 1);
        g->pad_lo[d] = own_pads ? o->pad_lo_nd[d] : o->pad;
        g->pad_hi[d] = own_pads ? o->pad_hi_nd[d] : o->pad;
        WF_CHECK(g->kernel[d] >= 1 && g->stride[d] >= 1 && g->dilation[d] >= 1, WF_ERR_ARGUMENT,
                 "%s: kernel %lld, stride %lld, dilation %lld in spatial dimension %d, should be at least 1", name,
                 (long long)g->kernel[d], (long long)g->stride[d], (long long)g->dilation[d], d);
        WF_CHECK(g->kernel[d] <= MOST && g->stride[d] <= MOST && g->dilation[d] <= MOST, WF_ERR_ARGUMENT,
                 "%s: kernel %lld, stride %lld, dilation %lld in spatial dimension %d, should be at most %lld", name,
                 (long long)g->kernel[d], (long long)g->stride[d], (long long)g->dilation[d], d, (long long)MOST);
        /* Wider pads would give many windows on padding alone, whose maximum is no element. With a dilation a window
         * may still step over the image; PyTorch takes it, too, and its place is -1. */
        const int64_t most = wf_window_extent(wf_pool_window(g, d)) / 2;
        WF_CHECK(g->pad_lo[d] >= 0 && g->pad_hi[d] >= 0 && g->pad_lo[d] <= most && g->pad_hi[d] <= most,
                 WF_ERR_ARGUMENT,
                 "%s: pads %lld and %lld in spatial dimension %d, should be 0 to half the window, %lld", name,
                 (long long)g->pad_lo[d], (long long)g->pad_hi[d], d, (long long)most);
    }
    return WF_OK;
}

static void note_options(wf_layer *layer, const wf_pool_state *s)
{
    const wf_pool_geom *g = &s->geom;
    wf_layer_note(layer, "%s of kind %d%s", s->name, (int)g->kind, s->ceil ? ", ceil_mode" : "");
    wf_boundary_note(layer, &s->opts.boundary, g->nd);
    for (int d = 0; d < s->size.rank; d++)
        wf_layer_note(layer, ", size %lld", (long long)s->size.dim[d]);
    for (int d = 0; d < g->nd && !g->adaptive; d++) {
        const wf_window w = wf_pool_window(g, d);
        wf_layer_note(layer, ", dimension %d: kernel %lld, stride %lld, dilation %lld, pads %lld and %lld", d,
                      (long long)w.kernel, (long long)w.stride, (long long)w.dilation, (long long)w.pad_lo,
                      (long long)w.pad_hi);
    }
}

wf_layer *wf_pool_layer(wf_ctx *ctx, const wf_layer_kind *kind, const char *name, wf_pool_kind pool, int nd,
                        const wf_pool_opts *o, size_t bytes)
{
    wf_pool_state s = {.name = name, .geom = {.kind = pool, .nd = nd}};
    if (!ctx)
        return NULL;
    if (o) {
        s.opts = *o;
        s.ceil = o->ceil_mode;
        /* Counted or not is decided by the kind, so that kernels do not ask for each element. */
        if (pool == WF_POOL_AVG && o->count_include_pad)
            s.geom.kind = WF_POOL_AVG_PADDED;
        WF_TRY_NULL(wf_pool_geometry(o, name, &s.geom));
        WF_TRY_NULL(wf_boundary_check_layer(name, &o->boundary, nd));
    }
    wf_layer *layer = wf_layer_new(ctx, kind, bytes + wf_boundary_list_bytes(&s.opts.boundary));
    if (!layer)
        return NULL;
    wf_boundary_keep_list(&s.opts.boundary, (char *)layer->state + bytes);
    *(wf_pool_state *)layer->state = s;
    note_options(layer, &s);
    return layer;
}

wf_layer *wf_pool_adaptive_layer(wf_ctx *ctx, const wf_layer_kind *kind, const char *name, wf_shape size, size_t bytes)
{
    wf_resize_opts opts;
    if (!ctx)
        return NULL;
    WF_TRY_NULL(wf_adaptive_opts(name, size, &opts));
    for (int d = 0; d < size.rank; d++)
        WF_CHECK_NULL(size.dim[d] >= 0 && size.dim[d] <= MOST_PLACES, WF_ERR_ARGUMENT,
                      "%s: size is %lld in spatial dimension %d, should be 0 to %lld", name, (long long)size.dim[d], d,
                      (long long)MOST_PLACES);
    wf_layer *layer = wf_layer_new(ctx, kind, bytes);
    if (!layer)
        return NULL;
    wf_pool_state *s = layer->state;
    *s = (wf_pool_state){.name = name, .geom = {.kind = WF_POOL_MAX, .nd = size.rank, .adaptive = true}, .size = size};
    note_options(layer, s);
    return layer;
}
