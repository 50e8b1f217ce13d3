/* Resampling to any length: the layer, the tables of weights, and the passes, one for each dimension. Backward runs the
 * same kernel with the tables turned round, so that a sum of gradients is one element's, in a fixed order.
 * layers/parallel/spatial_resize.c is the parallel form. */
#include "layers/serial/serial_impl.h"

#include <math.h>
#include <stdlib.h>

/* Lengths fit i32, and products of two lengths fit 63 bits. */
#define MOST_RESIZED (INT64_C(1) << 30)

/* --- tables ------------------------------------------------------------------------------------------------------- */

/* A table on the host, of `rows` rows. */
typedef struct host_taps {
    int64_t rows, taps;
    int32_t *start;
    double *weight;
} host_taps;

static wf_status take_taps(wf_ctx *ctx, int64_t rows, int64_t taps, host_taps *t)
{
    *t = (host_taps){.rows = rows, .taps = taps};
    t->start = wf_calloc(ctx, (size_t)rows, sizeof *t->start);
    t->weight = wf_calloc(ctx, (size_t)(rows * taps), sizeof *t->weight);
    return t->start && t->weight ? WF_OK : wf_error_code();
}

/* Weights are computed in f64 and rounded once, so every type and every rank has the same ones. */
static wf_status send_taps(wf_ctx *ctx, wf_dtype dtype, const host_taps *t, wf_taps *to)
{
    wf_tensor *wide = wf_tensor_from_host(ctx, WF_F64, WF_SHAPE(t->rows, t->taps), t->weight);
    to->weight = wide ? wf_tensor_copy(wide, dtype, WF_ROW_MAJOR) : NULL;
    to->start = wf_tensor_from_host(ctx, WF_I32, WF_SHAPE(t->rows), t->start);
    wf_tensor_free(wide);
    return to->weight && to->start ? WF_OK : wf_error_code();
}

/* The inputs of each output of dimension d, and the outputs of each input, which follow one another: reads of later
 * outputs never begin earlier, so the readers of an input are a run too. */
static wf_status list_taps(wf_ctx *ctx, const wf_resize_geom *g, int d, host_taps *forward, host_taps *back)
{
    const int64_t in = g->in[d], out = g->out[d];
    /* `first` only goes forwards: both ends of reads grow with o, so this is one walk. */
    int64_t most = 1, readers = 1, first = 0;
    for (int64_t o = 0; o < out; o++) {
        const wf_range r = wf_resize_reads(g, d, o);
        most = r.hi - r.lo > most ? r.hi - r.lo : most;
        /* Outputs from `first` to o read the first input of o. */
        while (wf_resize_reads(g, d, first).hi <= r.lo)
            first++;
        readers = o + 1 - first > readers ? o + 1 - first : readers;
    }
    WF_TRY(take_taps(ctx, out, most, forward));
    WF_TRY(take_taps(ctx, in, readers, back));
    /* From the last output to the first, so that the first reader of each input is left in `start`. */
    for (int64_t o = out - 1; o >= 0; o--)
        for (wf_range r = wf_resize_reads(g, d, o); r.lo < r.hi; r.lo++)
            back->start[r.lo] = (int32_t)o;
    for (int64_t o = 0; o < out; o++) {
        const wf_range r = wf_resize_reads(g, d, o);
        forward->start[o] = (int32_t)r.lo;
        wf_resize_weights(g, d, o, forward->weight + o * most);
        for (int64_t i = r.lo; i < r.hi; i++)
            back->weight[i * readers + o - back->start[i]] = forward->weight[o * most + i - r.lo];
    }
    return WF_OK;
}

/* Each output is the input of its number: a pass along this dimension would only copy. */
static bool reads_itself(const host_taps *t)
{
    for (int64_t o = 0; o < t->rows; o++)
        for (int64_t i = 0; i < t->taps; i++)
            if (t->weight[o * t->taps + i] != (t->start[o] + i == o))
                return false;
    return true;
}

static void free_table(wf_resize_table *table)
{
    for (int d = 0; table && d < WF_MAX_SPATIAL; d++)
        for (int back = 0; back < 2; back++) {
            wf_tensor_free(table->taps[d][back].start);
            wf_tensor_free(table->taps[d][back].weight);
        }
    free(table);
}

/* The tables of one dimension are freed on the host as soon as the device has them. */
static wf_status fill_table(wf_ctx *ctx, const wf_resize_geom *g, wf_resize_table *table)
{
    for (int d = 0; d < g->nd; d++) {
        host_taps taps[2] = {{0}};
        wf_status status = list_taps(ctx, g, d, &taps[0], &taps[1]);
        table->same[d] = status == WF_OK && g->in[d] == g->out[d] && reads_itself(&taps[0]);
        for (int back = 0; back < 2; back++) {
            if (status == WF_OK)
                status = send_taps(ctx, table->dtype, &taps[back], &table->taps[d][back]);
            free(taps[back].start);
            free(taps[back].weight);
        }
        WF_TRY(status);
    }
    return WF_OK;
}

/* Tables are kept with the layer and found again: models have few sizes of images, and each table costs a transfer to
 * the device. */
static const wf_resize_table *find_table(const wf_layer *layer, const wf_resize_geom *g, wf_dtype x)
{
    /* Weights are wide for 16-bit inputs too: a sum of taps in 16 bits would lose more than the result's rounding. */
    wf_resize_state *s = layer->state;
    const wf_dtype dtype = x == WF_F64 ? WF_F64 : WF_F32;
    for (const wf_resize_table *t = s->tables; t; t = t->next) {
        bool same = t->dtype == dtype && t->nd == g->nd;
        for (int d = 0; d < g->nd && same; d++)
            same = t->in[d] == g->in[d] && t->out[d] == g->out[d];
        if (same)
            return t;
    }
    wf_resize_table *table = wf_calloc(layer->ctx, 1, sizeof *table);
    if (!table)
        return NULL;
    table->dtype = dtype;
    table->nd = g->nd;
    for (int d = 0; d < g->nd; d++) {
        table->in[d] = g->in[d];
        table->out[d] = g->out[d];
    }
    if (fill_table(layer->ctx, g, table) != WF_OK) {
        free_table(table);
        return NULL;
    }
    table->next = s->tables;
    s->tables = table;
    return table;
}

void wf_resize_free(wf_layer *layer)
{
    wf_resize_state *s = layer->state;
    while (s->tables) {
        wf_resize_table *const first = s->tables;
        s->tables = first->next;
        free_table(first);
    }
}

/* --- passes ------------------------------------------------------------------------------------------------------- */

/* An array [N,L...,C] as [outer, length of dimension d, inner]: channels last, so the channels and all dimensions
 * behind d are inner. A pass along any dimension is one kernel. */
static wf_array lines_of(const wf_array *a, const int64_t *length, int nd, int d)
{
    wf_array lines = *a;
    int64_t outer = a->shape.dim[0], inner = a->shape.dim[1];
    for (int i = 0; i < nd; i++)
        if (i < d)
            outer *= length[i];
        else if (i > d)
            inner *= length[i];
    lines.shape = WF_SHAPE(outer, length[d], inner);
    lines.order = WF_ROW_MAJOR;
    return lines;
}

/* From x to y along dimension d; gradients of inputs are added to what is there. The places of both arrays among the
 * whole's come along: a part may begin anywhere. */
static wf_status run_taps(const wf_resize_call *call, int d, bool back, const wf_spatial_part_arrays *a,
                          const wf_array *x, const wf_array *y, bool add)
{
    const wf_taps *taps = &call->table->taps[d][back];
    wf_ctx *ctx = taps->start->ctx;
    const wf_array start = wf_tensor_array(taps->start), weight = wf_tensor_array(taps->weight);
    const int64_t in = a->in_box.lo[2 + d], out = a->out_box.lo[2 + d];
    return ctx->k->taps(ctx, &(wf_taps_args){.x = x,
                                             .y = y,
                                             .start = &start,
                                             .weight = &weight,
                                             .x_lo = back ? out : in,
                                             .y_lo = back ? in : out,
                                             .accumulate = add});
}

/* The dimensions to be resampled, in the order of passes: those that change, or one, so that y is written. Backward
 * takes them in the reverse order, so its intermediate arrays are those of forward. */
static int list_passes(const wf_resize_call *call, const wf_spatial_part_arrays *a, bool back, int *pass)
{
    const int nd = call->plain.index_map.nd;
    int n = 0;
    for (int i = 0; i < nd; i++) {
        const int d = back ? nd - 1 - i : i;
        /* A dimension of equal lengths still needs a pass where the part's inputs and outputs are different ranges. */
        const bool stays = call->table->same[d] && a->in_box.lo[2 + d] == a->out_box.lo[2 + d] &&
                           a->in_box.hi[2 + d] == a->out_box.hi[2 + d];
        if (!stays || (n == 0 && i == nd - 1))
            pass[n++] = d;
    }
    return n;
}

/* A pass for each dimension: separable weights cost the sum of the taps, not their product. */
static wf_status run_passes(const wf_resize_call *call, wf_ctx *ctx, const wf_spatial_part_arrays *a, bool back)
{
    const int nd = call->plain.index_map.nd;
    const wf_box from_box = back ? a->out_box : a->in_box, to_box = back ? a->in_box : a->out_box;
    const wf_array *const to = back ? &a->in : &a->out;
    wf_array now = back ? a->out : a->in;
    int64_t length[WF_MAX_SPATIAL];
    int pass[WF_MAX_SPATIAL];
    size_t held = 0; /* bytes of what lies between two passes */
    wf_status status = WF_OK;
    /* A rank may have no pixel of this array. */
    if (wf_array_count(&now) == 0 || wf_array_count(to) == 0)
        return WF_OK;
    for (int d = 0; d < nd; d++)
        length[d] = from_box.hi[2 + d] - from_box.lo[2 + d];
    const int n = list_passes(call, a, back, pass);
    for (int i = 0; i < n && status == WF_OK; i++) {
        const int d = pass[i];
        const bool last = i == n - 1;
        const wf_array x = lines_of(&now, length, nd, d);
        /* `next` borrows its form from `now`; its memory is the result's, or the pool's for one more pass. */
        wf_array next = last ? *to : now;
        length[d] = to_box.hi[2 + d] - to_box.lo[2 + d];
        wf_array y = lines_of(&next, length, nd, d);
        const size_t bytes = last ? 0 : (size_t)wf_array_count(&y) * wf_dtype_size(y.dtype);
        if (!last)
            status = wf_pool_take(ctx, bytes, &next.data);
        y.data = next.data;
        /* Only the last pass of backward adds: what lies between two passes belongs to this call. */
        if (status == WF_OK)
            status = run_taps(call, d, back, a, &x, &y, last && back);
        /* What the pass has read is of no more use; two intermediate arrays exist at most. */
        if (held > 0)
            wf_pool_give(ctx, now.data, held);
        now = next;
        held = next.data ? bytes : 0;
    }
    if (held > 0)
        wf_pool_give(ctx, now.data, held);
    return status;
}

static wf_status resize_part(const wf_window_op_call *call, wf_ctx *ctx, const wf_spatial_part_arrays *a)
{
    return run_passes((const wf_resize_call *)call, ctx, a, false);
}

static wf_status resize_part_back(const wf_window_op_call *call, wf_ctx *ctx, const wf_spatial_part_arrays *a)
{
    return run_passes((const wf_resize_call *)call, ctx, a, true);
}

/* --- the layer ---------------------------------------------------------------------------------------------------- */

wf_status wf_resize_fit(const wf_layer *layer, const wf_var *x, wf_shape shape, wf_resize_call *call, wf_shape *y)
{
    const wf_resize_state *s = layer->state;
    char text[WF_SHAPE_TEXT];
    WF_CHECK(shape.rank >= 3 && shape.rank <= 5 && (s->nd == 0 || shape.rank == s->nd + 2), WF_ERR_SHAPE,
             "%s \"%s\": input %s, should be [N,C] and %s spatial dimensions", s->name, wf_layer_path(layer),
             wf_shape_text(shape, text),
             s->nd == 0   ? "1 to 3"
             : s->nd == 1 ? "1"
             : s->nd == 2 ? "2"
                          : "3");
    WF_CHECK(wf_dtype_is_float(x->value->dtype), WF_ERR_DTYPE, "%s \"%s\": input of %s, should be a float type",
             s->name, wf_layer_path(layer), wf_dtype_name(x->value->dtype));
    wf_resize_geom g = s->geom;
    g.nd = shape.rank - 2;
    *y = shape;
    for (int d = 0; d < g.nd; d++) {
        const int64_t length = shape.dim[2 + d], size = s->size[d];
        const double scaled = floor(g.scale[d] * (double)length);
        g.in[d] = length;
        /* Comparing with the limit as a double: a scale may make a number that no integer holds, and -1 fails below. */
        g.out[d] = size > 0 ? size : g.scale[d] == 0 ? length : scaled < (double)MOST_RESIZED ? (int64_t)scaled : -1;
        WF_CHECK(length >= 1 && length <= MOST_RESIZED && g.out[d] >= 1, WF_ERR_SHAPE,
                 "%s \"%s\": input %s times %g in spatial dimension %d; lengths should be 1 to %lld", s->name,
                 wf_layer_path(layer), wf_shape_text(shape, text), size > 0 ? 1 : g.scale[d], d,
                 (long long)MOST_RESIZED);
        y->dim[2 + d] = g.out[d];
    }
    *call = (wf_resize_call){.plain = {.index_map = {.kind = WF_INDEX_MAP_RESIZE, .nd = g.nd, .resize = g},
                                       .forward = resize_part,
                                       .backward = resize_part_back},
                             .table = find_table(layer, &g, x->value->dtype)};
    return call->table ? WF_OK : wf_error_code();
}

static const wf_op resize_op = {.name = "resize", .backward = wf_window_op_backward};

static wf_var *forward_resize(wf_layer *layer, wf_var *x)
{
    const wf_resize_state *s = layer->state;
    wf_resize_call call;
    wf_shape shape;
    WF_TRY_NULL(wf_resize_fit(layer, x, wf_var_shape(x), &call, &shape));
    WF_TRY_NULL(wf_window_op_plan_whole(&call.plain, x, NULL, shape));
    return wf_window_op_apply(layer, x, &resize_op, &call.plain, sizeof call,
                              wf_output(s->name, x, shape, WF_CHANNELS_LAST, (int[]){0, 1, -1, -1, -1}));
}

const wf_layer_kind wf_resize_serial = {.name = "resize", .forward = forward_resize, .free = wf_resize_free};

static wf_status check_modes(const char *name, const wf_resize_opts *o)
{
    WF_CHECK(o->mode >= WF_RESIZE_NEAREST && o->mode <= WF_RESIZE_AREA, WF_ERR_ARGUMENT,
             "%s: mode is %d, should be nearest, linear, cubic or area", name, (int)o->mode);
    WF_CHECK(o->places >= WF_PLACES_DEFAULT && o->places <= WF_PLACES_ALIGNED, WF_ERR_ARGUMENT,
             "%s: places is %d, should be left, centres or aligned", name, (int)o->places);
    WF_CHECK(o->rounding >= WF_ROUND_DOWN && o->rounding <= WF_ROUND_HALF_UP, WF_ERR_ARGUMENT,
             "%s: rounding is %d, should be down, up, half down or half up", name, (int)o->rounding);
    WF_CHECK(o->rounding == WF_ROUND_DOWN || o->mode == WF_RESIZE_NEAREST, WF_ERR_ARGUMENT,
             "%s: rounding is for the nearest mode", name);
    WF_CHECK(o->places == WF_PLACES_DEFAULT || o->mode != WF_RESIZE_AREA, WF_ERR_ARGUMENT,
             "%s: the area mode has no places", name);
    WF_CHECK(o->cubic == 0 || o->mode == WF_RESIZE_CUBIC, WF_ERR_ARGUMENT, "%s: cubic is %g and the mode is none", name,
             o->cubic);
    WF_CHECK(!o->antialias || ((o->mode == WF_RESIZE_LINEAR || o->mode == WF_RESIZE_CUBIC) &&
                               (o->places == WF_PLACES_DEFAULT || o->places == WF_PLACES_CENTRES)),
             WF_ERR_ARGUMENT, "%s: antialias is for linear and cubic at centres", name);
    for (int d = 0; d < 3; d++) {
        WF_CHECK(o->size[d] >= 0 && o->size[d] <= MOST_RESIZED, WF_ERR_ARGUMENT,
                 "%s: size is %lld in spatial dimension %d, should be 0 to %lld", name, (long long)o->size[d], d,
                 (long long)MOST_RESIZED);
        WF_CHECK(o->scale[d] >= 0 && o->scale[d] <= (double)MOST_RESIZED, WF_ERR_ARGUMENT,
                 "%s: scale is %g in spatial dimension %d, should be 0 to %lld", name, o->scale[d], d,
                 (long long)MOST_RESIZED);
        WF_CHECK(o->size[d] == 0 || o->scale[d] == 0, WF_ERR_ARGUMENT,
                 "%s: size %lld and scale %g in spatial dimension %d, should be one of them", name,
                 (long long)o->size[d], o->scale[d], d);
        WF_CHECK(o->scale[d] == 0 || (o->mode != WF_RESIZE_AREA && o->places != WF_PLACES_ALIGNED), WF_ERR_ARGUMENT,
                 "%s: scale is %g, and area and aligned places go by size", name, o->scale[d]);
    }
    return WF_OK;
}

wf_layer *wf_resize_layer(wf_ctx *ctx, const wf_layer_kind *kind, const char *name, int nd, const wf_resize_opts *o,
                          size_t bytes)
{
    if (!ctx)
        return NULL;
    WF_TRY_NULL(check_modes(name, o));
    wf_layer *layer = wf_layer_new(ctx, kind, bytes);
    if (!layer)
        return NULL;
    /* The defaults of PyTorch: nearest takes the left place, others go by centres. */
    const wf_resize_places usual = o->mode == WF_RESIZE_NEAREST ? WF_PLACES_LEFT : WF_PLACES_CENTRES;
    wf_resize_state s = {.name = name, .opts = *o, .nd = nd};
    /* Cubic interpolation (Keys, 1981) has two constants in use: libraries of images take -0.5, PyTorch -0.75. */
    s.geom = (wf_resize_geom){.mode = o->mode,
                              .places = o->places ? o->places : usual,
                              .rounding = o->rounding,
                              .cubic = o->cubic != 0  ? o->cubic
                                       : o->antialias ? -0.5
                                                      : -0.75,
                              .antialias = o->antialias};
    for (int d = 0; d < WF_MAX_SPATIAL; d++) {
        s.size[d] = o->size[d];
        s.geom.scale[d] = o->scale[d];
    }
    *(wf_resize_state *)layer->state = s;
    /* What ranks compare: all options that change which inputs an output reads. */
    wf_layer_note(layer, "%s of mode %d, places %d, rounding %d, cubic %g%s", name, (int)o->mode, (int)s.geom.places,
                  (int)o->rounding, s.geom.cubic, o->antialias ? ", antialias" : "");
    for (int d = 0; d < WF_MAX_SPATIAL; d++)
        wf_layer_note(layer, ", %lld or %g", (long long)o->size[d], o->scale[d]);
    return layer;
}

wf_layer *wf_resize(wf_ctx *ctx, wf_resize_opts opts)
{
    WF_NEED_NULL(ctx);
    return wf_resize_layer(ctx, &wf_resize_serial, "resize", 0, &opts, sizeof(wf_resize_state));
}

/* Adaptive pooling is area resampling to a given size: means over windows that cover the input. */
wf_status wf_adaptive_opts(const char *name, wf_shape size, wf_resize_opts *o)
{
    char text[WF_SHAPE_TEXT];
    *o = (wf_resize_opts){.mode = WF_RESIZE_AREA};
    WF_CHECK(size.rank >= 1 && size.rank <= WF_MAX_SPATIAL, WF_ERR_ARGUMENT,
             "%s: size %s, should have 1 to 3 dimensions", name, wf_shape_text(size, text));
    for (int d = 0; d < size.rank; d++)
        o->size[d] = size.dim[d];
    return WF_OK;
}

wf_layer *wf_adaptive_avg_pool(wf_ctx *ctx, wf_shape size)
{
    wf_resize_opts opts;
    WF_NEED_NULL(ctx);
    WF_TRY_NULL(wf_adaptive_opts("adaptive_avg_pool", size, &opts));
    return wf_resize_layer(ctx, &wf_resize_serial, "adaptive_avg_pool", size.rank, &opts, sizeof(wf_resize_state));
}
