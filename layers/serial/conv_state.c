/* Options of convolutions checked and turned into geometry and parameters, for the serial and the parallel layers.
 * Every option is checked here, before a layer exists, so that no kernel meets a geometry that it cannot compute. */
#include "layers/serial/serial_impl.h"

#include <string.h>

/* Largest kernel, stride and dilation, and largest pad and channels: products of them fit 63 bits. */
#define MOST_STEPS   (INT64_C(1) << 20)
#define MOST_NUMBERS (INT64_C(1) << 31)

/* One dimension of the geometry, in the words of index maps. */
wf_window wf_conv_window(const wf_conv_geom *g, int d)
{
    return (wf_window){g->kernel[d], g->stride[d], g->dilation[d], g->pad_lo[d], g->pad_hi[d]};
}

wf_status wf_conv_output_shape(const wf_layer *layer, const wf_var *x, wf_shape shape, wf_shape *y)
{
    const wf_conv_state *s = layer->state;
    char text[WF_SHAPE_TEXT];
    WF_CHECK(shape.rank == s->geom.nd + 2 && shape.dim[1] == s->in, WF_ERR_SHAPE,
             "%s \"%s\": input %s, should be [N,%lld] and %d spatial dimensions", s->name, wf_layer_path(layer),
             wf_shape_text(shape, text), (long long)s->in, s->geom.nd);
    WF_CHECK(x->value->dtype == wf_ctx_compute(layer->ctx), WF_ERR_DTYPE, "%s \"%s\": input of %s, should be %s",
             s->name, wf_layer_path(layer), wf_dtype_name(x->value->dtype), wf_dtype_name(wf_ctx_compute(layer->ctx)));
    *y = shape;
    y->dim[1] = s->out;
    for (int d = 0; d < s->geom.nd; d++) {
        const wf_window w = wf_conv_window(&s->geom, d);
        const int64_t length = shape.dim[2 + d];
        /* The transposed form swaps input and output of the formula; output_pad picks one of the lengths that map to
         * the same input. */
        y->dim[2 + d] = s->transposed
                            ? (length - 1) * w.stride - w.pad_lo - w.pad_hi + wf_window_extent(w) + s->output_pad[d]
                            : wf_window_outputs(w, length, false);
        WF_CHECK(
            y->dim[2 + d] >= 1, WF_ERR_SHAPE,
            "%s \"%s\": input %s with kernel %lld, stride %lld, dilation %lld, pads %lld and %lld has no output in "
            "spatial dimension %d",
            s->name, wf_layer_path(layer), wf_shape_text(shape, text), (long long)w.kernel, (long long)w.stride,
            (long long)w.dilation, (long long)w.pad_lo, (long long)w.pad_hi, d);
    }
    return WF_OK;
}

/* Which inputs an output reads, for parts and exchanges: the parallel layers make their halos of it. */
wf_status wf_conv_map(const wf_layer *layer, wf_shape in, wf_shape out, wf_index_map *index_map)
{
    const wf_conv_state *s = layer->state;
    const wf_boundary *b = &s->opts.boundary;
    *index_map =
        (wf_index_map){.kind = s->transposed ? WF_INDEX_MAP_WINDOW_BACK : WF_INDEX_MAP_WINDOW, .nd = s->geom.nd};
    for (int d = 0; d < index_map->nd; d++) {
        const int64_t stride = s->geom.stride[d];
        index_map->window[d] = wf_conv_window(&s->geom, d);
        index_map->in[d] = in.dim[2 + d];
        index_map->out[d] = out.dim[2 + d];
        /* Only then the output is as circular as the input. */
        WF_CHECK(!s->transposed || out.dim[2 + d] == stride * in.dim[2 + d] ||
                     (wf_boundary_edge(b, 2 + d, false) != WF_EDGE_CIRCULAR &&
                      wf_boundary_edge(b, 2 + d, true) != WF_EDGE_CIRCULAR),
                 WF_ERR_SHAPE,
                 "%s \"%s\": %lld outputs of %lld inputs in spatial dimension %d, which is circular; should be the "
                 "stride, %lld, times as many",
                 s->name, wf_layer_path(layer), (long long)out.dim[2 + d], (long long)in.dim[2 + d], d,
                 (long long)stride);
    }
    wf_index_map_continue(index_map, b);
    return WF_OK;
}

/* Options that are 0 are unset: the own one of a dimension, then that of all, then the default. */
static int64_t pick(int64_t own, int64_t all, int64_t otherwise)
{
    return own != 0 ? own : all != 0 ? all : otherwise;
}

static bool any(const int64_t lo[3], const int64_t hi[3])
{
    return lo[0] || lo[1] || lo[2] || hi[0] || hi[1] || hi[2];
}

static bool in_steps(int64_t n)
{
    return n >= 1 && n <= MOST_STEPS;
}

/* Negative pads are allowed: they cut the input. */
static bool in_pads(int64_t n)
{
    return n >= -MOST_NUMBERS && n <= MOST_NUMBERS;
}

static wf_status conv_geometry(const wf_conv_opts *o, wf_conv_state *s)
{
    wf_conv_geom *g = &s->geom;
    const bool own_pads = any(o->pad_lo_nd, o->pad_hi_nd);
    g->groups = o->groups ? o->groups : 1;
    WF_CHECK(!own_pads || o->pad == 0, WF_ERR_ARGUMENT, "%s: pad is %lld beside pad_lo_nd and pad_hi_nd", s->name,
             (long long)o->pad);
    for (int d = 0; d < g->nd; d++) {
        g->kernel[d] = pick(o->kernel_nd[d], o->kernel, 0);
        g->stride[d] = pick(o->stride_nd[d], o->stride, 1);
        g->dilation[d] = pick(o->dilation_nd[d], o->dilation, 1);
        g->pad_lo[d] = own_pads ? o->pad_lo_nd[d] : o->pad;
        g->pad_hi[d] = own_pads ? o->pad_hi_nd[d] : o->pad;
        s->output_pad[d] = pick(o->output_pad_nd[d], o->output_pad, 0);
        WF_CHECK(in_steps(g->kernel[d]) && in_steps(g->stride[d]) && in_steps(g->dilation[d]), WF_ERR_ARGUMENT,
                 "%s: kernel %lld, stride %lld, dilation %lld in spatial dimension %d, should be 1 to %lld", s->name,
                 (long long)g->kernel[d], (long long)g->stride[d], (long long)g->dilation[d], d, (long long)MOST_STEPS);
        WF_CHECK(in_pads(g->pad_lo[d]) && in_pads(g->pad_hi[d]), WF_ERR_ARGUMENT,
                 "%s: pads %lld and %lld in spatial dimension %d are out of any range", s->name,
                 (long long)g->pad_lo[d], (long long)g->pad_hi[d], d);
        WF_CHECK(s->output_pad[d] == 0 || s->transposed, WF_ERR_ARGUMENT, "%s: output_pad is for transposed forms",
                 s->name);
        /* A larger output_pad would make outputs that no window reaches, as in PyTorch. */
        WF_CHECK(s->output_pad[d] >= 0 &&
                     (s->output_pad[d] < g->stride[d] || s->output_pad[d] < g->dilation[d] || s->output_pad[d] == 0),
                 WF_ERR_ARGUMENT, "%s: output_pad is %lld, should be less than stride %lld or dilation %lld", s->name,
                 (long long)s->output_pad[d], (long long)g->stride[d], (long long)g->dilation[d]);
    }
    return WF_OK;
}

static wf_shape filter_shape(const wf_conv_state *s)
{
    /* The filter of a transposed convolution is that of the convolution whose backward it computes. */
    const int64_t first = s->transposed ? s->in : s->out, second = s->transposed ? s->out : s->in;
    wf_shape shape = {.rank = s->geom.nd + 2, .dim = {first, second / s->geom.groups}};
    for (int d = 0; d < s->geom.nd; d++)
        shape.dim[2 + d] = s->geom.kernel[d];
    return shape;
}

static wf_status check_conv_opts(const wf_conv_opts *o, wf_conv_state *s)
{
    WF_CHECK(o->in >= 1 && o->out >= 1 && o->in <= MOST_NUMBERS && o->out <= MOST_NUMBERS, WF_ERR_ARGUMENT,
             "%s: in is %lld and out is %lld, should be at least 1 and at most %lld", s->name, (long long)o->in,
             (long long)o->out, (long long)MOST_NUMBERS);
    WF_TRY(conv_geometry(o, s));
    WF_CHECK(s->geom.groups >= 1 && o->in % s->geom.groups == 0 && o->out % s->geom.groups == 0, WF_ERR_ARGUMENT,
             "%s: groups is %lld, should divide in %lld and out %lld", s->name, (long long)s->geom.groups,
             (long long)o->in, (long long)o->out);
    s->in = o->in;
    s->out = o->out;
    s->epilogue = (wf_epilogue_opts){o->act, o->slope, o->noise};
    WF_TRY(wf_boundary_check_layer(s->name, &o->boundary, s->geom.nd));
    const wf_shape filter = filter_shape(s);
    char text[WF_SHAPE_TEXT];
    /* Each factor is bounded; their product need not be. */
    WF_CHECK(wf_shape_count(filter) >= 0, WF_ERR_ARGUMENT, "%s: filter %s is too large", s->name,
             wf_shape_text(filter, text));
    return wf_epilogue_check(s->name, &s->epilogue);
}

/* Channels last in memory, so that products run over neighbouring channels. */
static wf_param_opts filter_opts(const wf_conv_opts *o, const wf_conv_state *s, wf_dtype dtype)
{
    const wf_conv_geom *g = &s->geom;
    wf_param_opts p = {.dtype = dtype, .order = WF_CHANNELS_LAST, .shape = filter_shape(s), .init = o->w_init};
    int64_t taps = 1, steps = 1;
    for (int d = 0; d < g->nd; d++) {
        taps *= g->kernel[d];
        steps *= g->stride[d];
    }
    /* Inputs that one output sums, which the stride thins out in the transposed form. */
    p.fan_in = o->in / g->groups * taps / (s->transposed ? steps : 1);
    p.fan_out = o->out / g->groups * taps / (s->transposed ? 1 : steps);
    if (p.init.kind == WF_INIT_DEFAULT)
        p.init.kind = WF_INIT_LECUN_NORMAL;
    return p;
}

wf_status wf_nd_check(const char *what, int *nd)
{
    if (*nd == 0)
        *nd = 2;
    WF_CHECK(*nd >= 1 && *nd <= 3, WF_ERR_ARGUMENT, "%s: nd is %d, should be 1 to 3", what, *nd);
    return WF_OK;
}

/* Makes no layer: the parallel forms want the geometry before they can say which parameters a rank has. */
wf_status wf_conv_state_make(const char *name, int nd, bool transposed, const wf_conv_opts *o, wf_conv_state *s)
{
    *s = (wf_conv_state){.name = name, .opts = *o, .transposed = transposed, .geom = {.nd = nd}};
    return check_conv_opts(o, s);
}

/* What does not show in the shapes of the parameters: ranks with other options would wait for each other's messages. */
static void note_options(wf_layer *layer, const wf_conv_state *s)
{
    const wf_conv_geom *g = &s->geom;
    const wf_conv_opts *o = &s->opts;
    wf_layer_note(layer, "%s of %lld groups, act %d, slope %g, noise %g, form %d, replicate %d", s->name,
                  (long long)g->groups, (int)o->act, o->slope, o->noise, (int)o->form, o->replicate);
    wf_boundary_note(layer, &o->boundary, g->nd);
    for (int d = 0; d < g->nd; d++)
        wf_layer_note(layer, ", dimension %d: stride %lld, dilation %lld, pads %lld and %lld and %lld", d,
                      (long long)g->stride[d], (long long)g->dilation[d], (long long)g->pad_lo[d],
                      (long long)g->pad_hi[d], (long long)s->output_pad[d]);
}

/* What model files say of the filter (wf_param.beyond): four bits for each side. An edge that no window crosses does
 * not matter. */
static int edge_of_filter(const wf_conv_state *s)
{
    const wf_boundary *b = &s->opts.boundary;
    int all = 0;
    _Static_assert(WF_EDGE_POLE < 15, "an edge fits 4 bits");
    for (int i = 0; i < 2 * s->geom.nd; i++) {
        const int64_t pad = i % 2 ? s->geom.pad_hi[i / 2] : s->geom.pad_lo[i / 2];
        wf_edge edge = wf_boundary_edge(b, 2 + i / 2, i % 2);
        /* A constant of 0 is what padding does by default: one name for both. */
        if (edge == WF_EDGE_CONSTANT && b->value == 0)
            edge = WF_EDGE_DEFAULT;
        if (pad > 0)
            all |= (1 + (int)edge) << 4 * i;
    }
    return all;
}

wf_layer *wf_conv_layer(wf_ctx *ctx, const wf_layer_kind *kind, const wf_conv_opts *o, const wf_conv_state *state,
                        size_t bytes)
{
    wf_layer *layer = wf_layer_new(ctx, kind, bytes + wf_boundary_list_bytes(&o->boundary));
    if (!layer)
        return NULL;
    wf_conv_state *s = layer->state;
    /* The kind's state begins with a wf_conv_state and may be longer. */
    memcpy(s, state, sizeof *s);
    wf_boundary_keep_list(&s->opts.boundary, (char *)layer->state + bytes);
    note_options(layer, s);
    s->w = wf_layer_add_param(layer, "W", filter_opts(o, s, ctx->dtype));
    if (!o->no_bias)
        s->b = wf_layer_add_param(layer, "b",
                                  (wf_param_opts){.dtype = ctx->dtype, .shape = WF_SHAPE(o->out), .init = o->b_init});
    if (s->w)
        s->w->beyond = edge_of_filter(s);
    if (s->w && (o->no_bias || s->b))
        return layer;
    wf_layer_free(layer);
    return NULL;
}
