/* Attention within windows of an image (Swin, Liu et al., 2021), of other functions: windows as samples of tokens, and
 * attention with regions and a table of relative positions. Both are tables of whole numbers: one of a window, one of
 * the windows of an image, made again where another size of image comes. */
#include "core/opts.h"
#include "layers/attention.h"
#include "layers/functions.h"
#include "layers/parallel/parallel_impl.h"
#include "layers/parallelize_author.h"
#include "layers/transformer.h"

#include <stdlib.h>

typedef struct window_state {
    int64_t heads, length[2], shift[2];
    double dropout;
    const wf_mesh *mesh;
    wf_projections of;
    wf_param *relative;
    wf_tensor *index;   /* [T,T] */
    wf_tensor *regions; /* [windows,T] of images of so many windows, shifted so; NULL: none yet */
    int64_t regions_of[2], regions_shift[2];
} window_state;

/* --- tables ------------------------------------------------------------------------------------------------------- */

/* Takes over the numbers, whatever happens. */
static wf_tensor *import_numbers(wf_ctx *ctx, wf_shape shape, int32_t *number)
{
    wf_tensor *t = number ? wf_tensor_new(ctx, WF_I32, shape) : NULL;
    const wf_status status = t ? wf_tensor_import(t, number, wf_tensor_bytes(t)) : wf_error_code();
    free(number);
    if (status == WF_OK)
        return t;
    wf_tensor_free(t);
    return NULL;
}

/* The row of the table for each query and key of a window, by the difference of their places. Differences begin at
 * -(length - 1). */
static wf_tensor *index_places(wf_ctx *ctx, const int64_t length[2])
{
    const int64_t t = length[0] * length[1];
    int32_t *row = wf_malloc(ctx, (size_t)(t * t) * sizeof *row);
    for (int64_t i = 0; row && i < t * t; i++) {
        const int64_t q = i / t, k = i % t, down = q / length[1] - k / length[1], right = q % length[1] - k % length[1];
        row[i] = (int32_t)((down + length[0] - 1) * (2 * length[1] - 1) + right + length[1] - 1);
    }
    return import_numbers(ctx, WF_SHAPE(t, t), row);
}

/* Which part of the image a row, or column, of the shifted image is from: the last window has two. Pixels that came
 * around the edge are strangers to the others, so they get another number. */
static int32_t number_side(const wf_windows *w, int d, int64_t at)
{
    const int64_t last = (w->all[d] - 1) * w->length[d];
    return w->shift[d] == 0 || at < last ? 0 : at < last + w->length[d] - w->shift[d] ? 1 : 2;
}

static wf_tensor *number_regions(wf_ctx *ctx, const wf_windows *w)
{
    const int64_t wide = w->length[1], t = w->length[0] * wide, windows = w->all[0] * w->all[1];
    int32_t *region = wf_malloc(ctx, (size_t)(windows * t + 1) * sizeof *region);
    for (int64_t i = 0; region && i < windows * t; i++) {
        const int64_t g = i / t, p = i % t;
        /* A region is a pair of sides: three numbers each. */
        region[i] = 3 * number_side(w, 0, g / w->all[1] * w->length[0] + p / wide) +
                    number_side(w, 1, g % w->all[1] * wide + p % wide);
    }
    return import_numbers(ctx, WF_SHAPE(windows, t), region);
}

/* Images of one size follow each other, so one table is kept. */
static wf_status find_regions(wf_layer *layer, const wf_windows *w)
{
    window_state *s = layer->state;
    bool same = s->regions != NULL;
    for (int d = 0; d < 2; d++)
        same = same && s->regions_of[d] == w->all[d] && s->regions_shift[d] == w->shift[d];
    if (same)
        return WF_OK;
    wf_tensor_free(s->regions);
    s->regions = number_regions(layer->ctx, w);
    for (int d = 0; d < 2; d++) {
        s->regions_of[d] = w->all[d];
        s->regions_shift[d] = w->shift[d];
    }
    return s->regions ? WF_OK : wf_error_code();
}

/* --- forward ------------------------------------------------------------------------------------------------------ */

static wf_var *attend_windows(wf_layer *layer, wf_var *x, const wf_windows *w)
{
    const window_state *s = layer->state;
    /* A rank's gradient of x is a sum over the heads of all ranks along channel. */
    x = wf_channel_copied(s->mesh, x);
    wf_var *q = wf_project(s->of.query, x);
    wf_var *k = wf_project(s->of.key, x);
    wf_var *v = wf_project(s->of.value, x);
    wf_var *bias = q ? wf_param_var(wf_var_tape(q), s->relative) : NULL;
    wf_attention_opts o = {.heads = s->heads, .dropout = s->dropout, .bias = bias, .bias_index = s->index};
    if (!bias)
        return NULL;
    /* Without a shift every window is one region. */
    if (w->all[0] * w->all[1] > 0 && (w->shift[0] || w->shift[1])) {
        WF_TRY_NULL(find_regions(layer, w));
        o.query_regions = o.key_regions = s->regions;
    }
    return wf_apply(s->of.out, wf_attention(q, k, v, o));
}

static wf_var *forward_windows(wf_layer *layer, wf_var *x)
{
    const window_state *s = layer->state;
    const wf_layout *const layout = &x->value->layout;
    /* Only with a cut along rows or columns other ranks wait here. */
    wf_comm *comm = wf_layout_axes(layout, 1u << 2 | 1u << 3) ? wf_mesh_world(layout->mesh) : NULL;
    wf_windows windows;
    wf_var *y = wf_windows_cut(x, s->length, s->shift, &windows);
    if (!y)
        return NULL;
    y = attend_windows(layer, y, &windows);
    /* The other ranks wait for the exchange that takes windows back. */
    if (!y && comm)
        return (wf_comm_post_failure(comm, wf_error_code()), NULL);
    return wf_windows_join(y, &windows);
}

static void free_windows(wf_layer *layer)
{
    window_state *s = layer->state;
    wf_tensor_free(s->index);
    wf_tensor_free(s->regions);
}

static void describe_part(const wf_layer *layer, wf_part_info *info)
{
    const window_state *s = layer->state;
    *info = (wf_part_info){.kind = WF_PART_WINDOWS, .nd = 2, .heads = s->heads};
    for (int d = 0; d < 2; d++) {
        info->window[d] = (wf_window){.kernel = s->length[d], .stride = s->length[d], .dilation = 1};
        info->shift[d] = s->shift[d];
    }
}

static const wf_layer_kind window_kind = {.name = "window_attention",
                                          .forward = forward_windows,
                                          .free = free_windows,
                                          .computes = true,
                                          .describe = describe_part};

/* --- construction ------------------------------------------------------------------------------------------------- */

static bool add_children(wf_layer *layer, const wf_window_attention_opts *o)
{
    window_state *s = layer->state;
    /* A row for each difference of two places, in both directions. */
    const int64_t rows = (2 * s->length[0] - 1) * (2 * s->length[1] - 1);
    const wf_token_linear_opts each = {
        .in = o->features, .no_bias = o->no_bias, .w_init = o->w_init, .mesh = o->mesh, .unit = o->features / o->heads};
    const bool added = wf_projections_add(layer, each, true, &s->of);
    s->relative = wf_layer_add_param(layer, "relative",
                                     (wf_param_opts){.dtype = layer->ctx->dtype,
                                                     .shape = WF_SHAPE(rows, o->heads),
                                                     .init = {WF_INIT_TRUNC_NORMAL, 0, 0.02}});
    s->index = index_places(layer->ctx, s->length);
    return added && s->relative && s->index;
}

static wf_status check_options(const wf_window_attention_opts *o, const window_state *s)
{
    WF_CHECK(o->features >= 1 && o->heads >= 1 && o->features % o->heads == 0, WF_ERR_ARGUMENT,
             "window_attention: %lld features of %lld heads, should be a multiple", (long long)o->features,
             (long long)o->heads);
    WF_CHECK(o->dropout >= 0 && o->dropout < 1, WF_ERR_ARGUMENT, "window_attention: dropout rate %g is not in [0, 1)",
             o->dropout);
    for (int d = 0; d < 2; d++) {
        /* The table of a window is as long as the square of its pixels. */
        WF_CHECK(s->length[d] >= 1 && s->length[d] <= 256, WF_ERR_ARGUMENT,
                 "window_attention: windows of %lld by %lld pixels, should be 1 to 256", (long long)s->length[0],
                 (long long)s->length[1]);
        WF_CHECK(s->shift[d] >= 0 && s->shift[d] < s->length[d], WF_ERR_ARGUMENT,
                 "window_attention: windows of %lld pixels are shifted by %lld, should be less than their length",
                 (long long)s->length[d], (long long)s->shift[d]);
    }
    return WF_OK;
}

wf_layer *wf_window_attention(wf_ctx *ctx, wf_window_attention_opts o)
{
    WF_NEED_NULL(ctx);
    window_state s = {.heads = o.heads, .dropout = o.dropout, .mesh = o.mesh};
    for (int d = 0; d < 2; d++) {
        s.length[d] = o.window_nd[d] ? o.window_nd[d] : o.window;
        s.shift[d] = o.shift_nd[d] ? o.shift_nd[d] : o.shift;
    }
    WF_TRY_NULL(check_options(&o, &s));
    wf_layer *layer = wf_layer_new(ctx, &window_kind, sizeof s);
    if (!layer)
        return NULL;
    *(window_state *)layer->state = s;
    layer->takes_children = true;
    if (o.mesh)
        layer->comm = wf_mesh_world(o.mesh);
    wf_layer_note(layer, "window_attention of %lld heads, windows %lld by %lld shifted by %lld, %lld, dropout %g",
                  (long long)s.heads, (long long)s.length[0], (long long)s.length[1], (long long)s.shift[0],
                  (long long)s.shift[1], s.dropout);
    if (add_children(layer, &o))
        return layer;
    wf_layer_free(layer);
    return NULL;
}
