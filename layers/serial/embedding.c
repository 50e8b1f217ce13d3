/* Embedding, of a table that a rank has whole or, with the merge of layers/parallel/channel_embedding.c, in part. */
#include "layers/embedding.h"

#include "layers/functions/functions_impl.h"
#include "layers/serial/serial_impl.h"

typedef struct embedding_state {
    wf_embedding_opts opts; /* as they were given */
    wf_param *w;
    const wf_mesh *mesh; /* whose channel axis cuts the table; NULL: it is whole */
    wf_take_part part;
} embedding_state;

/* Over the channel axis the table is cut, so all its ranks must have the same indices. */
static wf_status check_indices(const wf_layer *layer, const wf_var *x)
{
    const embedding_state *s = layer->state;
    const wf_layout *const layout = &x->value->layout;
    char text[WF_LAYOUT_TEXT];
    WF_TRY(wf_take_check(layer->kind->name, x));
    WF_CHECK(x->value->shape.rank < WF_MAX_RANK, WF_ERR_SHAPE,
             "%s \"%s\": indices %s, should have at most %d dimensions", layer->kind->name, wf_layer_path(layer),
             wf_shape_text(x->value->shape, text), WF_MAX_RANK - 1);
    WF_CHECK(!s->mesh || !layout->known || layout->placement[WF_AXIS_CHANNEL] != WF_SHARDED, WF_ERR_SHAPE,
             "%s \"%s\": indices are sharded over the channel axis, along which the table is: %s; wf_redistribute them "
             "first",
             layer->kind->name, wf_layer_path(layer), wf_layout_text(layout, text));
    return WF_OK;
}

static wf_var *look_up(wf_layer *layer, wf_var *x)
{
    const embedding_state *s = layer->state;
    WF_TRY_NULL(check_indices(layer, x));
    /* Each rank has the gradient of the rows that its part of x takes. */
    wf_param_sum_parts(s->w, &x->value->layout, ~0u);
    wf_var *w = wf_param_var(x->tape, s->w);
    return w ? wf_take_rows(layer->kind->name, w, x, &s->part) : NULL;
}

const wf_layer_kind wf_embedding_serial = {.name = "embedding", .forward = look_up};
static const wf_layer_kind cut_kind = {.name = "channel_embedding", .forward = look_up};

wf_embedding_opts wf_embedding_options(const wf_layer *layer)
{
    return ((const embedding_state *)layer->state)->opts;
}

wf_layer *wf_embedding(wf_ctx *ctx, wf_embedding_opts o)
{
    WF_NEED_NULL(ctx);
    WF_CHECK_NULL(o.count >= 1 && o.features >= 1, WF_ERR_ARGUMENT,
                  "embedding: count is %lld and features is %lld, should be at least 1", (long long)o.count,
                  (long long)o.features);
    WF_TRY_NULL(wf_ignored_check("embedding", o.ignores, o.ignored));
    wf_layer *layer = wf_layer_new(ctx, &wf_embedding_serial, sizeof(embedding_state));
    if (!layer)
        return NULL;
    embedding_state *s = layer->state;
    /* The part is the whole table; wf_embedding_cut changes it. */
    *s = (embedding_state){.opts = o, .part = {.whole = o.count, .ignored = o.ignores ? o.ignored : WF_NONE_IGNORED}};
    if (o.ignores)
        wf_layer_note(layer, "embedding that ignores %lld", (long long)o.ignored);
    else
        wf_layer_note(layer, "embedding");
    if (o.w_init.kind == WF_INIT_DEFAULT)
        o.w_init = (wf_init){WF_INIT_NORMAL, 0, 1};
    s->w = wf_layer_add_param(
        layer, "W", (wf_param_opts){.dtype = ctx->dtype, .shape = WF_SHAPE(o.count, o.features), .init = o.w_init});
    if (s->w)
        return layer;
    wf_layer_free(layer);
    return NULL;
}

/* The caller has cut the parameter to the rows from `first` on before. */
void wf_embedding_cut(wf_layer *layer, const wf_mesh *mesh, wf_comm *comm, int64_t first)
{
    embedding_state *s = layer->state;
    layer->kind = &cut_kind;
    s->mesh = mesh;
    s->part.first = first;
    s->part.comm = comm;
}
