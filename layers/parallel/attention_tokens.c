/* Attention over tokens that ranks share, by heads: tokens of all ranks come for some of the heads, and go back to
 * their ranks (Jacobs et al. 2023, "DeepSpeed Ulysses"). */
#include "layers/attention.h"
#include "layers/functions/functions_impl.h"
#include "layers/parallel/parallel_impl.h"

#include <stdlib.h>

/* Tokens are the dimension before the features: 1 of [N,T,E]. */
int wf_token_axis(const wf_layout *layout)
{
    for (int a = 0; layout->known && a < WF_AXES; a++)
        if (layout->placement[a] == WF_SHARDED && layout->dim[a] == layout->global.rank - 2)
            return a;
    return -1;
}

/* The layout with dimension `from`, which the axis cuts, whole, and dimension `to` cut at these bounds. */
static wf_layout moved_cut(const wf_layout *layout, int axis, int from, int to, const int64_t *bounds)
{
    wf_layout target = *layout;
    target.placement[axis] = WF_REPLICATED;
    target.dim[axis] = 0;
    target.bounds[axis] = NULL;
    /* The box is whole first; the cut then sets the part of this rank. */
    target.box.lo[from] = 0;
    target.box.hi[from] = target.global.dim[from];
    wf_layout_shard(layout->mesh, &target, (wf_axis)axis, to, bounds);
    return target;
}

/* Bounds of balanced blocks of heads, in features. */
static const int64_t *head_bounds(const wf_layout *layout, int axis, int64_t heads)
{
    const wf_mesh *const mesh = layout->mesh;
    const int size = wf_mesh_size(mesh, (wf_axis)axis);
    const int64_t each = layout->global.dim[2] / heads;
    const int64_t *const blocks = wf_mesh_blocks(mesh, (wf_axis)axis, heads);
    int64_t *bounds = blocks ? wf_calloc(wf_comm_ctx(wf_mesh_world(mesh)), (size_t)size + 1, sizeof *bounds) : NULL;
    if (!bounds)
        return wf_error_null();
    for (int r = 0; r <= size; r++)
        bounds[r] = blocks[r] * each;
    /* Equal bounds of a mesh are one pointer, so layouts may be compared by their pointers. */
    const int64_t *own = wf_mesh_bounds_recent(mesh, (wf_axis)axis, bounds);
    free(bounds);
    return own;
}

/* A cut at bounds that ranks do not know cannot be compared by them, and each would judge its own part alone. */
static wf_status check_known_bounds(const char *what, const wf_var *x)
{
    char text[WF_LAYOUT_TEXT];
    const wf_layout *const layout = &x->value->layout;
    for (int a = 0; layout->known && a < WF_AXES; a++)
        WF_CHECK(layout->placement[a] != WF_SHARDED || layout->dim[a] == 0 || layout->bounds[a], WF_ERR_SHAPE,
                 "%s takes tokens and features that are cut at bounds which all ranks know, not %s; wf_redistribute it "
                 "first",
                 what, wf_layout_text(layout, text));
    return WF_OK;
}

/* All ranks come to one verdict here, as they look at global shapes and shared bounds only. */
wf_status wf_tokens_check(const char *what, const wf_var *q, const wf_var *k, const wf_var *v,
                          const wf_attention_opts *o, bool by_heads)
{
    char left[WF_LAYOUT_TEXT], right[WF_LAYOUT_TEXT];
    const wf_layout *const layout = &q->value->layout, *const other = &k->value->layout;
    const wf_var *const of[] = {q, k, v};
    WF_TRY(wf_attention_check_heads(o));
    for (int i = 0; i < 3; i++)
        if (of[i]->value) /* the next check tells of a missing one */
            WF_TRY(check_known_bounds(what, of[i]));
    WF_TRY(wf_function_check_pair(what, k, v, WF_ANY_FUNCTION));
    WF_TRY(wf_function_check_layouts(what, k, v));
    WF_CHECK(q->tape == k->tape, WF_ERR_ARGUMENT, "attention of variables of two tapes");
    WF_CHECK(q->value->dtype == k->value->dtype, WF_ERR_DTYPE, "%s takes equal types, not %s and %s", what,
             wf_dtype_name(q->value->dtype), wf_dtype_name(k->value->dtype));
    WF_CHECK(layout->global.rank == 3 && layout->global.dim[2] > 0 && layout->global.dim[2] % o->heads == 0,
             WF_ERR_SHAPE, "attention of %lld heads: tokens %s, should be [N,T,E] with E a multiple above 0",
             (long long)o->heads, wf_layout_text(layout, left));
    bool alike = other->known && other->mesh == layout->mesh && other->global.rank == 3 &&
                 other->global.dim[0] == layout->global.dim[0] && other->global.dim[2] == layout->global.dim[2];
    /* Queries and keys may be cut at different places of their tokens, but in no other way. */
    for (int a = 0; a < WF_AXES && alike; a++) {
        const bool tokens = layout->placement[a] == WF_SHARDED && layout->dim[a] == 1;
        alike = layout->placement[a] == other->placement[a] && layout->dim[a] == other->dim[a] &&
                (tokens || !layout->bounds[a] || !other->bounds[a] || layout->bounds[a] == other->bounds[a]);
    }
    WF_CHECK(alike, WF_ERR_SHAPE,
             "%s takes queries and keys [N,T,E] and [N,S,E] that the same axes cut, not (%s) and (%s)", what,
             wf_layout_text(layout, left), wf_layout_text(other, right));
    const bool cut = wf_layout_is_sharded(layout, 2);
    WF_CHECK(!cut || !by_heads, WF_ERR_SHAPE, "%s takes whole features, not %s; wf_redistribute it first", what,
             wf_layout_text(layout, left));
    WF_CHECK(!cut || wf_attention_has_heads(layout, o->heads), WF_ERR_SHAPE,
             "%s of %lld heads of %lld features cannot be cut inside a head: %s", what, (long long)o->heads,
             (long long)(layout->global.dim[2] / o->heads), wf_layout_text(layout, left));
    return WF_OK;
}

/* An option may be wrong on some ranks alone, and the others would wait. */
wf_status wf_tokens_check_opts(const wf_var *q, const wf_var *k, const wf_attention_opts *o, bool by_heads)
{
    const wf_layout *const layout = &q->value->layout;
    const int64_t each = layout->global.dim[2] / o->heads;
    const wf_attention_extent of = {.n = q->value->shape.dim[0],
                                    .heads = by_heads ? 1 : q->value->shape.dim[2] / each,
                                    .t = layout->global.dim[1],
                                    .s = k->value->layout.global.dim[1],
                                    .heads_cut = by_heads || wf_layout_is_sharded(layout, 2)};
    wf_status status = wf_attention_check_opts(q, o, &of);
    const wf_box *const own = &layout->box, *const other = &k->value->layout.box;
    /* Bounds of samples may differ between q and k on one rank and not on others. */
    if (other->lo[0] != own->lo[0] || other->hi[0] != own->hi[0]) /* at bounds that ranks may not know */
        status =
            WF_RAISE(WF_ERR_SHAPE,
                     "attention of queries of samples %lld to %lld here, and keys of samples %lld to %lld: should "
                     "be the same ones",
                     (long long)own->lo[0], (long long)own->hi[0], (long long)other->lo[0], (long long)other->hi[0]);
    return wf_comm_post_failure(wf_mesh_world(layout->mesh), status);
}

/* --- several in one tensor [3,N,T,E] ------------------------------------------------------------------------------ */

/* Tensor number i of them. Row-major on every rank: an exchange must have one order, and wf_stack takes that of the
 * memory, which may be another one for a rank without tokens. */
static wf_strided view_tensor(const wf_tensor *all, int64_t i)
{
    wf_strided a = wf_tensor_strided(all);
    if (a.data)
        a.data = (char *)a.data + i * a.stride[0] * (int64_t)wf_dtype_size(a.dtype);
    a.rank = 3;
    for (int d = 0; d < 3; d++) {
        a.dim[d] = a.dim[d + 1];
        a.stride[d] = a.stride[d + 1];
    }
    return a;
}

static wf_status backward_joined(wf_node *node)
{
    const wf_tensor *const dy = wf_node_dy(node);
    for (int i = 0; i < dy->shape.dim[0]; i++) {
        if (!wf_node_wants(node, i))
            continue;
        bool add = false;
        wf_tensor *grad = wf_node_grad(node, i, &add);
        WF_NEED(grad);
        const wf_strided from = view_tensor(dy, i), to = wf_tensor_strided(grad);
        WF_TRY(dy->ctx->k->copy(dy->ctx, &from, &to, add));
    }
    return WF_OK;
}

static const wf_op joined_op = {.name = "attention_tokens", .backward = backward_joined};

static wf_var *join_tokens(wf_var *const *x, int count)
{
    const wf_shape s = x[0]->value->shape;
    wf_tensor *y = wf_output("attention by heads", x[0], WF_SHAPE(count, s.dim[0], s.dim[1], s.dim[2]), WF_ROW_MAJOR,
                             (int[]){-1, 0, 1, 2});
    wf_status status = y ? WF_OK : wf_error_code();
    for (int i = 0; i < count && status == WF_OK; i++) {
        const wf_strided from = wf_tensor_strided(x[i]->value), to = view_tensor(y, i);
        status = y->ctx->k->copy(y->ctx, &from, &to, false);
    }
    return wf_function_finish(status, x[0]->tape, &(wf_node_spec){.op = &joined_op, .n_in = count, .in = x}, y);
}

static wf_status backward_taken(wf_node *node)
{
    const int64_t *const i = node->state;
    const wf_tensor *const dy = wf_node_dy(node);
    bool add = false;
    wf_tensor *grad = wf_node_grad(node, 0, &add);
    WF_NEED(grad);
    if (!add) /* the others come later */
        WF_TRY(wf_tensor_fill(grad, 0));
    const wf_strided from = wf_tensor_strided(dy), to = view_tensor(grad, *i);
    return dy->ctx->k->copy(dy->ctx, &from, &to, true);
}

static const wf_op taken_op = {.name = "attention_heads", .backward = backward_taken};

/* Not wf_split and wf_squeeze: reshaping cannot tell where a sharded dimension of length 1 went. */
static wf_var *take_part(wf_var *all, int64_t i)
{
    if (!all)
        return NULL;
    const wf_shape s = all->value->shape;
    wf_tensor *y =
        wf_output("attention by heads", all, WF_SHAPE(s.dim[1], s.dim[2], s.dim[3]), WF_ROW_MAJOR, (int[]){1, 2, 3});
    wf_status status = y ? WF_OK : wf_error_code();
    if (status == WF_OK) {
        const wf_strided from = view_tensor(all->value, i), to = wf_tensor_strided(y);
        status = y->ctx->k->copy(y->ctx, &from, &to, false);
    }
    return wf_function_finish(
        status, all->tape,
        &(wf_node_spec){.op = &taken_op, .n_in = 1, .in = &all, .state = &i, .state_bytes = sizeof i}, y);
}

/* Whole tokens of this rank's heads: `count` variables of one layout in one exchange. One exchange for all of them
 * instead of one each: a message costs its latency once. */
static bool gather_tokens(wf_var *const *x, int count, int axis, const int64_t *bounds, wf_var **part)
{
    wf_var *all = join_tokens(x, count);
    if (!all)
        return false;
    all = wf_redistribute_along(all, moved_cut(&all->value->layout, axis, 2, 3, bounds), 1u << axis);
    for (int i = 0; i < count; i++)
        part[i] = take_part(all, i);
    return all;
}

wf_var *wf_attention_by_heads(wf_var *q, wf_var *k, wf_var *v, wf_attention_opts o)
{
    if (!q || !k || !v)
        return NULL;
    WF_TRY_NULL(wf_function_check("attention by heads", q, WF_ANY_FUNCTION));
    const wf_layout own = q->value->layout;
    const int axis = wf_token_axis(&own);
    o.heads = o.heads == 0 ? 1 : o.heads;
    if (axis < 0)
        return wf_attention(q, k, v, o);
    WF_TRY_NULL(wf_tokens_check("attention by heads", q, k, v, &o, true));
    WF_TRY_NULL(wf_tokens_check_opts(q, k, &o, true));
    const int64_t *const bounds = head_bounds(&own, axis, o.heads);
    wf_var *const x[3] = {q, k, v};
    wf_var *part[3] = {0};
    /* Keys of the length and cut of the queries travel with them; others need an exchange of their own, since their
     * shape is another. */
    const bool equal =
        own.global.dim[1] == k->value->layout.global.dim[1] && own.bounds[axis] == k->value->layout.bounds[axis];
    if (!bounds || !gather_tokens(x, equal ? 3 : 1, axis, bounds, part) ||
        (!equal && !gather_tokens(x + 1, 2, axis, bounds, part + 1)))
        return NULL;
    wf_var *y = wf_attention(part[0], part[1], part[2], o);
    if (!y) { /* the others may wait for its heads */
        (void)wf_comm_post_failure(wf_mesh_world(own.mesh), wf_error_code());
        return NULL;
    }
    /* The output goes back to the ranks of its tokens, whatever the cut of the heads was. */
    return wf_redistribute_along(y, moved_cut(&y->value->layout, axis, 2, 1, own.bounds[axis]), 1u << axis);
}

/* --- the choice --------------------------------------------------------------------------------------------------- */

/* Bytes that a rank moves forward and backward, for one sample and feature. By heads q, k, v and y change their cut and
 * back again in backward: 2 (2 t + 2 s) elements, of which (p - 1) / p leave the rank. The ring sends k and v p - 1
 * times in each direction, and their gradients p times. */
wf_attention_choice wf_attention_choose(const wf_var *q, const wf_var *k, const wf_attention_opts *o)
{
    wf_attention_choice choice = {.cut = WF_ATTENTION_CHEAPER};
    const int axis = q && k && q->value && k->value ? wf_token_axis(&q->value->layout) : -1;
    if (axis < 0 || q->value->shape.rank != 3 || k->value->layout.global.rank != 3)
        return choice;
    const wf_layout *const layout = &q->value->layout;
    const double p = wf_mesh_size(layout->mesh, (wf_axis)axis), b = (double)wf_dtype_size(q->value->dtype);
    const double wide = q->value->dtype == WF_F64 ? 8 : 4, t = (double)layout->global.dim[1];
    const double s = (double)k->value->layout.global.dim[1];
    /* Samples and heads are those of an average rank, so that all ranks choose alike. */
    double each = (double)layout->global.dim[0] * (double)layout->global.dim[2] / p;
    /* Other axes leave each rank a part of the samples or heads. */
    for (int a = 0; a < WF_AXES; a++)
        if (layout->placement[a] == WF_SHARDED && layout->dim[a] != 1)
            each /= wf_mesh_size(layout->mesh, (wf_axis)a);
    const double move = 2 * (2 * t + 2 * s) * (p - 1) / p * b;
    choice.by_heads = each * move;
    choice.by_ring = each * (2 * s * (2 * (p - 1) * b + p * wide) + (o->paired ? move : 0));
    choice.cut = o->cut;
    /* A cut inside features or fewer heads than ranks leave the ring only. */
    if (choice.cut == WF_ATTENTION_CHEAPER)
        choice.cut = wf_layout_is_sharded(layout, 2) || (double)o->heads < p || choice.by_ring < choice.by_heads
                         ? WF_ATTENTION_RING
                         : WF_ATTENTION_BY_HEADS;
    return choice;
}

wf_var *wf_attention_tokens(wf_var *q, wf_var *k, wf_var *v, wf_attention_opts o)
{
    if (!q || !k || !v)
        return NULL;
    WF_CHECK_NULL(o.cut >= WF_ATTENTION_CHEAPER && o.cut <= WF_ATTENTION_RING, WF_ERR_ARGUMENT,
                  "attention over tokens: cut is %d, should be WF_ATTENTION_CHEAPER, _BY_HEADS or _RING", (int)o.cut);
    o.heads = o.heads == 0 ? 1 : o.heads;
    return wf_attention_choose(q, k, &o).cut == WF_ATTENTION_RING ? wf_attention_ring(q, k, v, o)
                                                                  : wf_attention_by_heads(q, k, v, o);
}
