/* Attention: checks, the arguments of the kernels, and the gradient of the bias. Where features are sharded, a rank has
 * whole heads and computes them alone; where samples are, its own. Tokens that are cut are attention of layers/parallel
 * (ring and heads), which calls the checks here. */
#include "layers/attention.h"

#include "comm/comm_author.h"
#include "comm/mesh.h"
#include "core/opts.h"
#include "layers/functions/functions_impl.h"
#include "layers/layer_author.h"

#include <math.h>

enum { INPUT_Q, INPUT_K, INPUT_V, INPUT_BIAS, INPUTS };
enum {
    SAVED_Q,
    SAVED_K,
    SAVED_V,
    SAVED_Y,
    SAVED_LSE,
    SAVED_BIAS,
    SAVED_MASK,
    SAVED_INDEX,
    SAVED_LENGTHS,
    SAVED_QUERIES,
    SAVED_KEYS,
    SAVED
};

/* State of the node: what the kernels need beside arrays. */
typedef struct attention_call {
    int64_t heads, first, all; /* of this rank, its first one, and of all ranks */
    int64_t first_sample;      /* of this rank, among those of all ranks */
    wf_attention_grid grid;
    double scale, dropout;
    bool causal;
    wf_random random;
    unsigned axes; /* over which backward sums the gradient of the bias */
} attention_call;

/* The type of sums, log sums and masks, whatever the inputs are rounded to. */
static wf_dtype wide_of(wf_dtype dtype)
{
    return dtype == WF_F64 ? WF_F64 : WF_F32;
}

/* Tokens are the last dimension but one, features the last; samples are all dimensions before. */
static int64_t samples_in(wf_shape s)
{
    int64_t n = 1;
    for (int d = 0; d < s.rank - 2; d++)
        n *= s.dim[d];
    return n;
}

static bool equal_samples(wf_shape a, wf_shape b)
{
    bool same = a.rank == b.rank;
    for (int d = 0; d < a.rank - 2 && same; d++)
        same = a.dim[d] == b.dim[d];
    return same;
}

/* --- checks ------------------------------------------------------------------------------------------------------- */

static wf_status check_three(const wf_var *q, const wf_var *k, const wf_var *v, int64_t heads)
{
    char text[3][WF_LAYOUT_TEXT];
    const wf_var *const of[3] = {q, k, v};
    for (int i = 0; i < 3; i++) {
        WF_TRY(wf_function_check("attention", of[i], WF_ANY_FUNCTION));
        WF_CHECK(of[i]->tape == q->tape, WF_ERR_ARGUMENT, "attention of variables of two tapes");
        WF_CHECK(of[i]->value->dtype == q->value->dtype, WF_ERR_DTYPE, "attention takes equal types, not %s and %s",
                 wf_dtype_name(q->value->dtype), wf_dtype_name(of[i]->value->dtype));
    }
    const wf_shape a = q->value->shape, b = k->value->shape, c = v->value->shape;
    const int last = a.rank - 1;
    WF_CHECK(a.rank >= 3 && a.rank <= 5 && equal_samples(a, b) && equal_samples(a, c) && a.dim[last] == b.dim[last] &&
                 b.dim[last - 1] == c.dim[last - 1],
             WF_ERR_SHAPE, "attention of %s, %s and %s, should be [N,T,E], [N,S,E] and [N,S,F]",
             wf_shape_text(a, text[0]), wf_shape_text(b, text[1]), wf_shape_text(c, text[2]));
    for (int i = 0; i < 3; i++) {
        const wf_layout *const layout = &of[i]->value->layout;
        const int64_t features = layout->known ? layout->global.dim[last] : of[i]->value->shape.dim[last];
        WF_CHECK(features > 0 && features % heads == 0, WF_ERR_SHAPE,
                 "attention of %lld heads: %lld features, should be a multiple", (long long)heads, (long long)features);
        WF_CHECK(!wf_layout_is_sharded(layout, last - 1), WF_ERR_SHAPE,
                 "attention needs all tokens, which are sharded: %s; wf_redistribute gathers them, or cuts heads",
                 wf_layout_text(layout, text[0]));
    }
    return WF_OK;
}

/* Both are cut between the same heads, on every rank of the axis, so that all ranks come to one answer. */
static bool same_heads(const wf_layout *a, const wf_layout *b, int axis, int64_t heads)
{
    const int last = a->global.rank - 1;
    const int64_t d = a->global.dim[last] / heads, e = b->global.dim[last] / heads;
    const int64_t *const left = a->bounds[axis], *const right = b->bounds[axis];
    /* Only this rank's part is known: then its own bounds decide. */
    if (!left || !right)
        return a->box.lo[last] * e == b->box.lo[last] * d && a->box.hi[last] * e == b->box.hi[last] * d;
    for (int r = 0; r <= wf_mesh_size(a->mesh, (wf_axis)axis); r++)
        if (left[r] * e != right[r] * d)
            return false;
    return true;
}

/* Queries, keys and values of one head and one sample must be on one rank: both layouts cut the same dimensions over
 * the same axes, samples at the same places, features between the same heads. */
static bool cuts_alike(const wf_layout *a, const wf_layout *b, int64_t heads)
{
    if (a->known != b->known || (a->known && a->mesh != b->mesh))
        return false;
    for (int axis = 0; axis < WF_AXES && a->known; axis++) {
        if (a->placement[axis] != b->placement[axis])
            return false;
        if (a->placement[axis] != WF_SHARDED)
            continue;
        const bool features = a->dim[axis] == a->global.rank - 1;
        if (a->dim[axis] != b->dim[axis] || (features && !same_heads(a, b, axis, heads)))
            return false;
        /* Bounds of samples may be kept in two lists; equal lists are one pointer. */
        if (!features && a->bounds[axis] && b->bounds[axis] && a->bounds[axis] != b->bounds[axis])
            return false;
    }
    return true;
}

/* The bounds of all ranks, where they are known, and not only this rank's, so that all refuse or none does. */
bool wf_attention_has_heads(const wf_layout *layout, int64_t heads)
{
    const int last = layout->global.rank - 1;
    const int64_t d = layout->global.dim[last] / heads;
    for (int axis = 0; axis < WF_AXES; axis++)
        if (layout->placement[axis] == WF_SHARDED && layout->dim[axis] == last && layout->bounds[axis])
            for (int r = 0; r <= wf_mesh_size(layout->mesh, (wf_axis)axis); r++)
                if (layout->bounds[axis][r] % d != 0)
                    return false;
    return layout->box.lo[last] % d == 0 && layout->box.hi[last] % d == 0;
}

/* The three are cut alike, into whole heads. */
static wf_status check_cut(const wf_var *q, const wf_var *k, const wf_var *v, int64_t heads)
{
    char left[WF_LAYOUT_TEXT], right[WF_LAYOUT_TEXT];
    const wf_layout *const first = &q->value->layout;
    const int last = q->value->shape.rank - 1;
    const wf_var *const of[2] = {k, v};
    for (int i = 0; i < 2; i++)
        WF_CHECK(cuts_alike(first, &of[i]->value->layout, heads), WF_ERR_SHAPE,
                 "attention takes queries, keys and values of one layout, not (%s) and (%s)",
                 wf_layout_text(first, left), wf_layout_text(&of[i]->value->layout, right));
    WF_CHECK(!wf_layout_is_sharded(first, last) || wf_attention_has_heads(first, heads), WF_ERR_SHAPE,
             "attention of %lld heads of %lld features cannot be cut inside a head: %s", (long long)heads,
             (long long)(first->global.dim[last] / heads), wf_layout_text(first, left));
    return WF_OK;
}

/* A list (columns below 0) or a table of i32; rows below 0: any number of them. NULL: the option is not used. */
static wf_status check_whole_numbers(const char *what, const wf_tensor *t, int64_t rows, int64_t columns)
{
    char text[WF_SHAPE_TEXT];
    if (!t)
        return WF_OK;
    WF_CHECK(t->dtype == WF_I32, WF_ERR_DTYPE, "attention: %s of %s, should be of i32", what, wf_dtype_name(t->dtype));
    const bool fits = columns < 0 ? t->shape.rank == 1 && t->shape.dim[0] == rows
                                  : t->shape.rank == 2 && t->shape.dim[1] == columns &&
                                        (rows < 0 ? t->shape.dim[0] > 0 : t->shape.dim[0] == rows);
    if (columns < 0)
        WF_CHECK(fits, WF_ERR_SHAPE, "attention: %s of shape %s, should be [%lld]", what, wf_shape_text(t->shape, text),
                 (long long)rows);
    else if (rows < 0)
        WF_CHECK(fits, WF_ERR_SHAPE, "attention: %s of shape %s, should be [G,%lld]", what,
                 wf_shape_text(t->shape, text), (long long)columns);
    else
        WF_CHECK(fits, WF_ERR_SHAPE, "attention: %s of shape %s, should be [%lld,%lld]", what,
                 wf_shape_text(t->shape, text), (long long)rows, (long long)columns);
    return WF_OK;
}

static wf_status check_mask(const wf_tensor *mask, const int64_t whole[4])
{
    char text[WF_SHAPE_TEXT];
    if (!mask)
        return WF_OK;
    WF_CHECK(wf_dtype_is_float(mask->dtype), WF_ERR_DTYPE, "attention: a mask of %s, should be of a float type",
             wf_dtype_name(mask->dtype));
    bool fits = mask->shape.rank == 4;
    for (int d = 0; d < 4 && fits; d++)
        fits = mask->shape.dim[d] == 1 || mask->shape.dim[d] == whole[d];
    WF_CHECK(fits, WF_ERR_SHAPE, "attention: a mask of shape %s, should be [%lld,%lld,%lld,%lld], or 1 in their place",
             wf_shape_text(mask->shape, text), (long long)whole[0], (long long)whole[1], (long long)whole[2],
             (long long)whole[3]);
    return WF_OK;
}

static wf_status check_bias(const wf_var *q, const wf_attention_opts *o, bool heads_cut)
{
    char text[WF_SHAPE_TEXT];
    if (!o->bias)
        return WF_OK;
    WF_TRY(wf_function_check("attention", o->bias, WF_ANY_FUNCTION));
    WF_CHECK(o->bias->tape == q->tape, WF_ERR_ARGUMENT, "attention of variables of two tapes");
    const wf_shape shape = o->bias->value->shape;
    WF_CHECK(shape.rank == 2 && shape.dim[0] > 0 && shape.dim[1] == o->heads &&
                 (o->bias_index || shape.dim[0] % 2 == 1),
             WF_ERR_SHAPE, "attention: a bias of shape %s, should be [rows,%lld]%s", wf_shape_text(shape, text),
             (long long)o->heads, o->bias_index ? "" : " of an odd number of rows");
    /* A parameter is whole on every rank. */
    for (int d = 0; d < 2; d++)
        WF_CHECK(!wf_layout_is_sharded(&o->bias->value->layout, d), WF_ERR_SHAPE,
                 "attention: the bias is sharded, should be whole");
    WF_CHECK(
        o->bias->param || o->bias->value->layout.known || !heads_cut, WF_ERR_SHAPE,
        "attention: a bias that was computed needs a layout where heads are sharded; say with wf_tensor_set_layout "
        "that every rank has it whole");
    return WF_OK;
}

wf_status wf_attention_check_heads(const wf_attention_opts *o)
{
    WF_CHECK(o->heads >= 1, WF_ERR_ARGUMENT, "attention of %lld heads, should be at least 1", (long long)o->heads);
    WF_CHECK(o->dropout >= 0 && o->dropout < 1, WF_ERR_ARGUMENT, "attention: dropout rate %g is not in [0, 1)",
             o->dropout);
    WF_CHECK(!o->query_regions == !o->key_regions, WF_ERR_ARGUMENT,
             "attention: regions of %s alone, should be of both or none", o->query_regions ? "queries" : "keys");
    WF_CHECK(o->bias || !o->bias_index, WF_ERR_ARGUMENT, "attention: an index of a bias, and no bias");
    return WF_OK;
}

wf_status wf_attention_check_opts(const wf_var *q, const wf_attention_opts *o, const wf_attention_extent *of)
{
    WF_TRY(check_whole_numbers("lengths", o->lengths, of->n, -1));
    WF_TRY(check_whole_numbers("regions of queries", o->query_regions, -1, of->t));
    WF_TRY(check_whole_numbers("regions of keys", o->key_regions,
                               o->query_regions ? o->query_regions->shape.dim[0] : -1, of->s));
    WF_TRY(check_whole_numbers("the index of the bias", o->bias_index, of->t, of->s));
    WF_TRY(check_mask(o->mask, (int64_t[]){of->n, of->heads, of->t, of->s}));
    return check_bias(q, o, of->heads_cut);
}

static wf_status check_attention(const wf_var *q, const wf_var *k, const wf_var *v, const wf_attention_opts *o)
{
    WF_TRY(wf_attention_check_heads(o));
    WF_TRY(check_three(q, k, v, o->heads));
    WF_TRY(check_cut(q, k, v, o->heads));
    const wf_shape shape = q->value->shape;
    const wf_layout *const layout = &q->value->layout;
    const int last = shape.rank - 1;
    const int64_t d = (layout->known ? layout->global.dim[last] : shape.dim[last]) / o->heads;
    return wf_attention_check_opts(q, o,
                                   &(wf_attention_extent){.n = samples_in(shape),
                                                          .heads = shape.dim[last] / d,
                                                          .t = shape.dim[last - 1],
                                                          .s = k->value->shape.dim[last - 1],
                                                          .heads_cut = wf_layout_is_sharded(layout, last)});
}

/* --- arguments of the kernels --------------------------------------------------------------------------------------
 */

/* Dense copies, or handles, of all that the kernels read. */
typedef struct attention_values {
    wf_tensor *of[SAVED];
} attention_values;

static void free_values(attention_values *v)
{
    for (int i = 0; i < SAVED; i++)
        wf_tensor_free(v->of[i]);
}

/* Arrays that args point to. */
typedef struct attention_arrays {
    wf_array of[SAVED];
    wf_strided mask;
} attention_arrays;

/* Samples become one dimension. */
static wf_array flat_array(const wf_tensor *t)
{
    wf_array a = wf_tensor_array(t);
    const wf_shape s = a.shape;
    if (s.rank > 3)
        a.shape = WF_SHAPE(samples_in(s), s.dim[s.rank - 2], s.dim[s.rank - 1]);
    return a;
}

/* NULL for an option that is not used, as the slots take it. */
static const wf_array *array_of(attention_arrays *a, const wf_tensor *const *of, int i)
{
    a->of[i] = flat_array(of[i]);
    return of[i] ? &a->of[i] : NULL;
}

static wf_attention_args args_of(const attention_call *call, const wf_tensor *const *of, attention_arrays *a)
{
    wf_attention_args args = {.heads = call->heads,
                              .scale = call->scale,
                              .causal = call->causal,
                              .first_sample = call->first_sample,
                              .grid = call->grid,
                              .dropout = call->dropout,
                              .random = call->dropout > 0 ? &call->random : NULL};
    args.q = array_of(a, of, SAVED_Q);
    args.k = array_of(a, of, SAVED_K);
    args.v = array_of(a, of, SAVED_V);
    args.y = array_of(a, of, SAVED_Y);
    args.lse = array_of(a, of, SAVED_LSE);
    args.bias = array_of(a, of, SAVED_BIAS);
    args.index = array_of(a, of, SAVED_INDEX);
    args.lengths = array_of(a, of, SAVED_LENGTHS);
    args.q_region = array_of(a, of, SAVED_QUERIES);
    args.k_region = array_of(a, of, SAVED_KEYS);
    if (!of[SAVED_MASK])
        return args;
    /* Repeated by steps of 0, not copied: a mask of all samples and heads would be larger than the inputs. */
    a->mask = wf_tensor_strided(of[SAVED_MASK]);
    const int64_t whole[4] = {args.q->shape.dim[0], call->heads, args.q->shape.dim[1], args.k->shape.dim[1]};
    for (int d = 0; d < 4; d++) {
        a->mask.stride[d] = a->mask.dim[d] == 1 ? 0 : a->mask.stride[d];
        a->mask.dim[d] = whole[d];
    }
    args.mask = &a->mask;
    return args;
}

wf_tensor *wf_attention_columns(const wf_tensor *table, int64_t first, int64_t heads)
{
    return wf_tensor_view(table, (wf_box){.rank = 2, .lo = {0, first}, .hi = {table->shape.dim[0], first + heads}});
}

/* The columns of this rank's heads, in the type of sums. */
static wf_tensor *own_table(const attention_call *call, const wf_tensor *table, wf_dtype wide)
{
    wf_tensor *part = wf_attention_columns(table, call->first, call->heads);
    wf_tensor *dense = part ? wf_tensor_dense(part, wide, WF_ROW_MAJOR) : NULL;
    wf_tensor_free(part);
    return dense;
}

/* y has the features of v and the tokens of q. Its layout follows from whichever has all its dimensions. */
static wf_tensor *new_result(const wf_var *q, const wf_var *v)
{
    const wf_layout *const layout = &q->value->layout, *const other = &v->value->layout;
    wf_shape shape = q->value->shape;
    const int last = shape.rank - 1;
    int from[] = {0, 1, 2, 3, 4};
    /* A rank without heads has 0 features of both. */
    const bool equal = layout->known ? layout->global.dim[last] == other->global.dim[last]
                                     : v->value->shape.dim[last] == shape.dim[last];
    shape.dim[last] = v->value->shape.dim[last];
    from[last - 1] = equal ? last - 1 : -1;
    return wf_output("attention", equal ? q : v, shape, WF_ROW_MAJOR, from);
}

/* Fills `to`; false: some could not be made, and the caller frees the others. */
static bool gather_values(const attention_call *call, const wf_var *q, const wf_var *k, const wf_var *v,
                          const wf_attention_opts *o, attention_values *to)
{
    const wf_dtype dtype = q->value->dtype, wide = wide_of(dtype);
    const wf_tensor *const given[SAVED] = {[SAVED_Q] = q->value,
                                           [SAVED_K] = k->value,
                                           [SAVED_V] = v->value,
                                           [SAVED_MASK] = o->mask,
                                           [SAVED_INDEX] = o->bias_index,
                                           [SAVED_LENGTHS] = o->lengths,
                                           [SAVED_QUERIES] = o->query_regions,
                                           [SAVED_KEYS] = o->key_regions};
    bool whole = true;
    *to = (attention_values){0};
    for (int i = 0; i < SAVED; i++) {
        if (!given[i])
            continue;
        /* Everything behind the mask is a list or table of i32. */
        const wf_dtype type = i == SAVED_MASK ? wide : i > SAVED_MASK ? WF_I32 : dtype;
        to->of[i] = wf_tensor_dense(given[i], type, WF_ROW_MAJOR);
        whole = whole && to->of[i];
    }
    if (o->bias)
        to->of[SAVED_BIAS] = own_table(call, o->bias->value, wide);
    to->of[SAVED_Y] = new_result(q, v);
    const wf_shape shape = q->value->shape;
    to->of[SAVED_LSE] = wf_tensor_new_step(
        q->value->ctx, wide, WF_SHAPE(samples_in(shape), call->heads, shape.dim[shape.rank - 2]), WF_ROW_MAJOR);
    return whole && to->of[SAVED_Y] && to->of[SAVED_LSE] && (to->of[SAVED_BIAS] || !o->bias);
}

/* --- backward ----------------------------------------------------------------------------------------------------- */

/* The gradient of the whole table from that of this rank's columns. */
static wf_status give_table(wf_node *node, const wf_tensor *columns)
{
    const attention_call *const call = node->state;
    const wf_tensor *const table = node->in[INPUT_BIAS]->value;
    bool add = false;
    /* A table that was computed is summed over the ranks here; the gradient of a parameter by its optimizer. */
    wf_tensor *whole = call->axes ? wf_tensor_new_step(table->ctx, table->dtype, table->shape, WF_ROW_MAJOR)
                                  : wf_node_grad(node, INPUT_BIAS, &add);
    WF_NEED(whole);
    /* The columns of heads that other ranks have are theirs to fill. */
    wf_status status = call->heads < call->all && !add ? wf_tensor_fill(whole, 0) : WF_OK;
    wf_tensor *part = wf_attention_columns(whole, call->first, call->heads);
    if (status == WF_OK && !part)
        status = wf_error_code();
    if (status == WF_OK) {
        const wf_strided from = wf_tensor_strided(columns), to = wf_tensor_strided(part);
        status = table->ctx->k->copy(table->ctx, &from, &to, add);
    }
    wf_tensor_free(part);
    if (!call->axes)
        return status;
    if (status == WF_OK)
        status = wf_allreduce_raw(wf_mesh_comm(node->in[INPUT_Q]->value->layout.mesh, call->axes), whole->data,
                                  whole->data, wf_tensor_count(whole), whole->dtype, WF_SUM);
    if (status == WF_OK)
        return wf_function_give(node, INPUT_BIAS, whole);
    wf_tensor_free(whole);
    return status;
}

static wf_tensor *gradient_like(const wf_node *node, int saved)
{
    const wf_tensor *const x = wf_node_saved(node, saved);
    return wf_tensor_new_step(x->ctx, x->dtype, x->shape, WF_ROW_MAJOR);
}

static wf_status run_backward(wf_node *node, wf_tensor *const to[INPUTS], const wf_tensor *dy)
{
    wf_array grad[INPUTS];
    const wf_tensor *of[SAVED];
    attention_arrays arrays;
    const attention_call *const call = node->state;
    /* A rank without heads has no gradient, but takes part in the sums over ranks that follow. */
    if (call->heads == 0)
        return WF_OK;
    for (int i = 0; i < SAVED; i++)
        of[i] = wf_node_saved(node, i);
    for (int i = 0; i < INPUTS; i++)
        grad[i] = flat_array(to[i]);
    wf_attention_args args = args_of(call, of, &arrays);
    const wf_array up = flat_array(dy);
    args.dy = &up;
    args.dq = to[INPUT_Q] ? &grad[INPUT_Q] : NULL;
    args.dk = to[INPUT_K] ? &grad[INPUT_K] : NULL;
    args.dv = to[INPUT_V] ? &grad[INPUT_V] : NULL;
    args.dbias = to[INPUT_BIAS] ? &grad[INPUT_BIAS] : NULL;
    return dy->ctx->k->attention_backward(dy->ctx, &args);
}

static wf_status attention_backward(wf_node *node)
{
    static const int saved[INPUTS] = {SAVED_Q, SAVED_K, SAVED_V, SAVED_BIAS};
    wf_tensor *to[INPUTS] = {0}, *dy = wf_tensor_dense(wf_node_dy(node), wf_node_dy(node)->dtype, WF_ROW_MAJOR);
    wf_status status = dy ? WF_OK : wf_error_code();
    for (int i = 0; i < INPUTS && status == WF_OK; i++) {
        if (!node->in[i] || !wf_node_wants(node, i))
            continue;
        to[i] = gradient_like(node, saved[i]);
        status = to[i] ? WF_OK : wf_error_code();
    }
    if (status == WF_OK)
        status = run_backward(node, to, dy);
    if (status == WF_OK && to[INPUT_BIAS])
        status = give_table(node, to[INPUT_BIAS]);
    wf_tensor_free(to[INPUT_BIAS]);
    for (int i = 0; i < INPUT_BIAS; i++)
        if (status == WF_OK && to[i])
            status = wf_function_give(node, i, to[i]);
        else
            wf_tensor_free(to[i]);
    wf_tensor_free(dy);
    return status;
}

static const wf_op attention_op = {.name = "attention", .backward = attention_backward};

/* --- forward ------------------------------------------------------------------------------------------------------ */

/* Dropout of weights [N,heads,T,S] that no rank ever has as an array: each is drawn by its place among all samples and
 * heads, so the cut of the model does not change it. */
static wf_random draw_weights(const wf_var *q, const wf_var *k, const attention_call *call)
{
    const wf_tensor *const x = q->value;
    const wf_layout *const layout = &x->layout;
    const int tokens = x->shape.rank - 2;
    const int64_t n = x->shape.dim[0], t = x->shape.dim[tokens], s = k->value->shape.dim[tokens];
    wf_random random = wf_tape_random(q->tape, WF_SHAPE(n, call->all, t, s), NULL);
    random.box.lo[1] = call->first;
    random.box.hi[1] = call->first + call->heads;
    if (layout->known) {
        random.global.dim[0] = layout->global.dim[0];
        random.box.lo[0] = layout->box.lo[0];
        random.box.hi[0] = layout->box.hi[0];
    }
    return random;
}

/* Samples of more than one dimension: windows of images. */
static wf_attention_grid grid_of(const wf_tensor *x)
{
    const wf_layout *const layout = &x->layout;
    wf_attention_grid grid = {.columns = 1, .all_columns = 1};
    if (x->shape.rank == 3)
        return (wf_attention_grid){0};
    grid.first_row = layout->known ? layout->box.lo[1] : 0;
    grid.rows = x->shape.dim[1];
    grid.all_rows = layout->known ? layout->global.dim[1] : grid.rows;
    if (x->shape.rank == 5) {
        grid.first_column = layout->known ? layout->box.lo[2] : 0;
        grid.columns = x->shape.dim[2];
        grid.all_columns = layout->known ? layout->global.dim[2] : grid.columns;
    }
    return grid;
}

static attention_call describe_call(const wf_var *q, const wf_var *k, const wf_attention_opts *o)
{
    const wf_tensor *const x = q->value;
    const wf_layout *const layout = &x->layout;
    const int last = x->shape.rank - 1;
    const int64_t d = (layout->known ? layout->global.dim[last] : x->shape.dim[last]) / o->heads;
    /* Without heads here d is still that of a head, from the whole. */
    attention_call call = {.heads = x->shape.dim[last] / d, .all = o->heads, .causal = o->causal, .grid = grid_of(x)};
    call.first = layout->known ? layout->box.lo[last] / d : 0;
    call.first_sample = layout->known ? layout->box.lo[0] : 0;
    call.scale = wf_opt(o->scale, 1 / sqrt((double)d));
    call.dropout = wf_tape_mode(q->tape) == WF_TRAIN ? o->dropout : 0;
    if (call.dropout > 0)
        call.random = draw_weights(q, k, &call);
    /* The gradient of a parameter is summed by its optimizer: over all axes that cut samples or heads. */
    if (o->bias && o->bias->param)
        wf_param_sum_parts(o->bias->param, layout, ~0u);
    else if (o->bias && o->bias->value->layout.known)
        call.axes = wf_layout_axes(layout, ~0u);
    return call;
}

static wf_status run_forward(const attention_call *call, const attention_values *v)
{
    if (call->heads == 0) /* the other ranks have all heads */
        return WF_OK;
    attention_arrays arrays;
    const wf_tensor *of[SAVED];
    for (int i = 0; i < SAVED; i++)
        of[i] = v->of[i];
    const wf_attention_args args = args_of(call, of, &arrays);
    wf_ctx *ctx = v->of[SAVED_Y]->ctx;
    return ctx->k->attention_forward(ctx, &args);
}

wf_var *wf_attention(wf_var *q, wf_var *k, wf_var *v, wf_attention_opts o)
{
    if (!q || !k || !v)
        return NULL;
    o.heads = o.heads == 0 ? 1 : o.heads;
    /* Three types become one; k once more, since v may have widened q. */
    WF_TRY_NULL(wf_function_promote(&q, &k));
    WF_TRY_NULL(wf_function_promote(&q, &v));
    WF_TRY_NULL(wf_function_promote(&q, &k));
    WF_TRY_NULL(check_attention(q, k, v, &o));
    const attention_call call = describe_call(q, k, &o);
    wf_comm *comm = NULL;
    if (call.axes)
        WF_NEED_NULL(comm = wf_mesh_comm(q->value->layout.mesh, call.axes));
    attention_values values;
    wf_var *out = NULL;
    const wf_status status = gather_values(&call, q, k, v, &o, &values) ? run_forward(&call, &values) : wf_error_code();
    wf_tensor *y = values.of[SAVED_Y];
    out = wf_function_finish(status, q->tape,
                             &(wf_node_spec){.op = &attention_op,
                                             .n_in = INPUTS,
                                             .in = (wf_var *const[]){q, k, v, o.bias},
                                             .n_saved = SAVED,
                                             .saved = values.of,
                                             .state = &call,
                                             .state_bytes = sizeof call,
                                             .comm = comm},
                             y);
    values.of[SAVED_Y] = NULL; /* the variable has it */
    free_values(&values);
    return out;
}
