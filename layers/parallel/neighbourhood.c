/* Attention of pixels to those around them, of an image that ranks may share. Queries stay where they are. One exchange
 * brings the keys and values that a part lacks, side by side as channels of one image; backward makes the gradients of
 * all keys that the part's queries saw, and the reverse of that exchange adds them up at their owners. Windows are
 * moved inside at the borders of the image, never at those of a part, because kernels count pixels in the whole image.
 */
#include "layers/functions/functions_impl.h"
#include "layers/parallel/parallel_impl.h"

#include <math.h>

enum { NEAR_Q, NEAR_K, NEAR_V, NEAR_BIAS, NEAR_INPUTS, NEAR_Y = NEAR_INPUTS, NEAR_LSE, NEAR_SAVED };

/* State of the node. */
typedef struct near_call {
    int nd;
    int64_t heads, first, all; /* of this rank, its first one, and of all ranks */
    double scale;
    wf_neighbourhood around;
    wf_halo halo; /* of keys and values as [N,C,pixels] */
} near_call;

/* --- the part of this rank ------------------------------------------------------------------------------------------
 */

/* The kernel moves a window inside at the image's border, which needs an image of at least one window. Looks at global
 * numbers, so all ranks judge alike. */
static wf_status check_near(const wf_var *q, const wf_near_opts *o, int nd)
{
    char text[WF_SHAPE_TEXT];
    const wf_layout *const layout = &q->value->layout;
    const wf_shape whole = layout->known ? layout->global : q->value->shape;
    wf_shape image = whole;
    image.dim[1] = whole.dim[1 + nd];
    for (int d = 0; d < nd; d++)
        image.dim[2 + d] = whole.dim[1 + d];
    for (int d = 0; d < nd; d++)
        WF_CHECK(
            o->kernel[d] * o->dilation[d] <= whole.dim[1 + d], WF_ERR_SHAPE,
            "neighbourhood_attention: %lld pixels in steps of %lld do not fit into dimension %d of %s, should be at "
            "most %lld",
            (long long)o->kernel[d], (long long)o->dilation[d], 2 + d, wf_shape_text(image, text),
            (long long)(whole.dim[1 + d] / o->dilation[d]));
    return WF_OK;
}

/* How [N,pixels,C] is cut, as [N,C,pixels] with `channels` that are here. */
static wf_status shard_pixels_of(const wf_tensor *x, int nd, int64_t channels, wf_sharding *s)
{
    char text[WF_LAYOUT_TEXT];
    wf_layout layout = x->layout;
    *s = (wf_sharding){.channels = channels, .box = {.rank = 2 + nd}};
    s->box.hi[0] = x->shape.dim[0];
    s->box.hi[1] = channels;
    /* Bounds of pixels may be known to their rank only; the halo needs those of all ranks. */
    if (layout.known)
        WF_TRY(wf_layout_complete(&layout, wf_layout_axes(&layout, ((1u << nd) - 1) << 1)));
    s->mesh = layout.known ? layout.mesh : NULL;
    for (int d = 0; d < nd; d++) {
        const unsigned axes = wf_layout_axes(&layout, 1u << (1 + d));
        /* Two axes on one dimension would make a grid of parts along it, which the plan below does not have. */
        WF_CHECK((axes & (axes - 1)) == 0, WF_ERR_SHAPE,
                 "neighbourhood_attention: dimension %d of its input is cut twice: %s", 2 + d,
                 wf_layout_text(&layout, text));
        s->axis[d] = -1;
        for (int a = 0; a < WF_AXES; a++)
            if (axes >> a & 1u) {
                s->axis[d] = a;
                s->bounds[d] = layout.bounds[a];
            }
        s->length[d] = layout.known ? layout.global.dim[1 + d] : x->shape.dim[1 + d];
        s->box.lo[2 + d] = layout.known ? layout.box.lo[1 + d] : 0;
        s->box.hi[2 + d] = layout.known ? layout.box.hi[1 + d] : x->shape.dim[1 + d];
    }
    return WF_OK;
}

static wf_status find_halo(const wf_near_opts *o, const wf_sharding *s, wf_dtype dtype, near_call *call)
{
    wf_index_map map = {.kind = WF_INDEX_MAP_NEIGHBOURHOOD, .nd = call->nd};
    for (int d = 0; d < call->nd; d++) {
        map.window[d] = (wf_window){.kernel = o->kernel[d], .stride = 1, .dilation = o->dilation[d]};
        map.in[d] = map.out[d] = s->length[d];
    }
    if (s->mesh)
        return wf_halo_make(s, &map, s, NULL, dtype, &call->halo);
    /* Without a mesh all pixels are here. */
    call->halo.need = s->box;
    return WF_OK;
}

static wf_status plan_near(const wf_var *q, const wf_var *v, const wf_near_opts *o, near_call *call)
{
    const wf_tensor *const x = q->value;
    const wf_layout *const layout = &x->layout;
    const int nd = x->shape.rank - 2, last = nd + 1;
    const int64_t d = (layout->known ? layout->global.dim[last] : x->shape.dim[last]) / o->heads;
    wf_sharding s;
    *call = (near_call){.nd = nd, .heads = x->shape.dim[last] / d, .all = o->heads, .scale = o->scale};
    call->first = layout->known ? layout->box.lo[last] / d : 0;
    if (call->scale == 0)
        call->scale = 1 / sqrt((double)d);
    WF_TRY(check_near(q, o, nd));
    /* One image with the channels of keys and values: they travel in the same messages. */
    WF_TRY(shard_pixels_of(x, nd, x->shape.dim[last] + v->value->shape.dim[last], &s));
    WF_TRY(find_halo(o, &s, x->dtype, call));
    wf_neighbourhood *const g = &call->around;
    for (int i = 0; i < 3; i++) {
        const int from = i - (3 - nd);
        /* Dimensions are filled up with 1s in front: the kernels know three. */
        g->length[i] = from < 0 ? 1 : s.length[from];
        g->kernel[i] = from < 0 ? 1 : o->kernel[from];
        g->dilation[i] = from < 0 ? 1 : o->dilation[from];
        g->first_query[i] = from < 0 ? 0 : s.box.lo[2 + from];
        g->first_key[i] = from < 0 ? 0 : call->halo.need.lo[2 + from];
    }
    return WF_OK;
}

/* --- keys and values on the way ----------------------------------------------------------------------------------- */

/* [N,pixels,C] of `each` copied to or from channels [at, at + C) of [N,C,pixels]. */
static wf_status copy_channels(const wf_tensor *each, const wf_tensor *both, int64_t at, bool back)
{
    const int rank = each->shape.rank, last = rank - 1;
    const wf_strided pixels = wf_tensor_strided(each);
    wf_strided one = pixels, all = wf_tensor_strided(both);
    for (int d = 1; d < rank; d++) {
        one.dim[d] = pixels.dim[d == 1 ? last : d - 1];
        one.stride[d] = pixels.stride[d == 1 ? last : d - 1];
    }
    all.dim[1] = one.dim[1];
    /* An empty part has no memory to move in. */
    if (all.data)
        all.data = (char *)all.data + at * all.stride[1] * (int64_t)wf_dtype_size(all.dtype);
    return each->ctx->k->copy(each->ctx, back ? &all : &one, back ? &one : &all, false);
}

/* `pixels`: a shape [N,pixels,C] of one of them. */
static wf_tensor *new_joined(const wf_tensor *like, wf_shape pixels, int64_t channels)
{
    wf_shape shape = pixels;
    for (int d = shape.rank - 1; d > 1; d--)
        shape.dim[d] = pixels.dim[d - 1];
    shape.dim[1] = channels;
    return wf_tensor_new_step(like->ctx, like->dtype, shape, WF_CHANNELS_LAST);
}

static wf_shape need_shape(const near_call *call, const wf_tensor *own)
{
    wf_shape shape = own->shape;
    for (int d = 0; d < call->nd; d++)
        shape.dim[1 + d] = call->halo.need.hi[2 + d] - call->halo.need.lo[2 + d];
    return shape;
}

/* Two tensors that lie side by side on the way, as they are here and as they are there. */
typedef struct near_two {
    wf_tensor *k, *v;
} near_two;

static wf_status exchange_two(wf_exchange *exchange, const wf_tensor *from, wf_tensor *to, bool reverse)
{
    /* Gradients of one key come from several ranks and are added, to zeros. */
    if (reverse) {
        WF_TRY(wf_tensor_fill(to, 0));
        WF_TRY(wf_exchange_reverse_begin(exchange, from, to));
    } else {
        WF_TRY(wf_exchange_begin(exchange, from, to));
    }
    return wf_exchange_end(exchange);
}

/* From the own pixels to those that are needed or, in reverse, gradients back. */
static wf_status move_two(const near_call *call, near_two from, near_two to, bool reverse)
{
    const int64_t first = from.k->shape.dim[call->nd + 1], all = first + from.v->shape.dim[call->nd + 1];
    wf_tensor *out = new_joined(from.k, from.k->shape, all), *in = new_joined(to.k, to.k->shape, all);
    wf_status status = out && in ? copy_channels(from.k, out, 0, false) : wf_error_code();
    if (status == WF_OK)
        status = copy_channels(from.v, out, first, false);
    if (status == WF_OK)
        status = exchange_two(call->halo.exchange, out, in, reverse);
    if (status == WF_OK)
        status = copy_channels(to.k, in, 0, true);
    if (status == WF_OK)
        status = copy_channels(to.v, in, first, true);
    wf_tensor_free(out);
    wf_tensor_free(in);
    return status;
}

/* Dense keys and values of all pixels that are needed. */
static wf_status read_near(const near_call *call, const wf_var *k, const wf_var *v, wf_tensor **saved)
{
    near_two own = {wf_tensor_dense(k->value, k->value->dtype, WF_ROW_MAJOR),
                    wf_tensor_dense(v->value, v->value->dtype, WF_ROW_MAJOR)};
    wf_status status = own.k && own.v ? WF_OK : wf_error_code();
    /* All pixels are here: the own arrays are what is saved. */
    if (!call->halo.exchange || status != WF_OK) {
        saved[NEAR_K] = own.k;
        saved[NEAR_V] = own.v;
        return status;
    }
    saved[NEAR_K] = wf_tensor_new_step(own.k->ctx, own.k->dtype, need_shape(call, own.k), WF_ROW_MAJOR);
    saved[NEAR_V] = wf_tensor_new_step(own.v->ctx, own.v->dtype, need_shape(call, own.v), WF_ROW_MAJOR);
    status = saved[NEAR_K] && saved[NEAR_V] ? move_two(call, own, (near_two){saved[NEAR_K], saved[NEAR_V]}, false)
                                            : wf_error_code();
    wf_tensor_free(own.k);
    wf_tensor_free(own.v);
    return status;
}

/* --- kernels ------------------------------------------------------------------------------------------------------ */

/* Statistics of softmax are at least f32. */
static wf_dtype wide_for(wf_dtype dtype)
{
    return dtype == WF_F64 ? WF_F64 : WF_F32;
}

/* The rows of the table for the heads that are here. */
static wf_box own_rows(const near_call *call, wf_shape table)
{
    wf_box box = wf_box_of_shape(table);
    box.lo[0] = call->first;
    box.hi[0] = call->first + call->heads;
    return box;
}

/* With three dimensions of pixels. */
static wf_array pixel_array(const wf_tensor *t)
{
    wf_array a = wf_tensor_array(t);
    const wf_shape s = a.shape;
    const int nd = s.rank - 2;
    if (!t)
        return a;
    a.shape = WF_SHAPE(s.dim[0], 1, 1, s.dim[nd], s.dim[nd + 1]);
    /* Pixel dimensions move to the end of the three. */
    for (int d = 1; d < nd; d++)
        a.shape.dim[3 - d] = s.dim[nd - d];
    return a;
}

static wf_array table_array(const near_call *call, const wf_tensor *t)
{
    wf_array a = wf_tensor_array(t);
    if (t)
        a.shape = WF_SHAPE(call->heads, call->heads > 0 ? wf_array_count(&a) / call->heads : 0);
    return a;
}

typedef struct near_arrays {
    wf_array of[NEAR_SAVED];
} near_arrays;

static wf_neighbourhood_args near_args(const near_call *call, const wf_tensor *const *of, near_arrays *a)
{
    for (int i = 0; i < NEAR_SAVED; i++)
        a->of[i] = i == NEAR_BIAS  ? table_array(call, of[i])
                   : i == NEAR_LSE ? wf_tensor_array(of[i])
                                   : pixel_array(of[i]);
    return (wf_neighbourhood_args){.around = call->around,
                                   .heads = call->heads,
                                   .scale = call->scale,
                                   .q = &a->of[NEAR_Q],
                                   .k = &a->of[NEAR_K],
                                   .v = &a->of[NEAR_V],
                                   .y = &a->of[NEAR_Y],
                                   .lse = &a->of[NEAR_LSE],
                                   .bias = of[NEAR_BIAS] ? &a->of[NEAR_BIAS] : NULL};
}

/* --- backward ----------------------------------------------------------------------------------------------------- */

static wf_status give_table_rows(wf_node *node, const wf_tensor *rows)
{
    const near_call *const call = node->state;
    const wf_tensor *const table = node->in[NEAR_BIAS]->value;
    bool add = false;
    wf_tensor *whole = wf_node_grad(node, NEAR_BIAS, &add);
    WF_NEED(whole);
    /* Heads that other ranks have get a gradient of 0 here; the sum over ranks completes the table. */
    if (call->heads < call->all && !add)
        WF_TRY(wf_tensor_fill(whole, 0));
    wf_tensor *part = wf_tensor_view(whole, own_rows(call, table->shape));
    WF_NEED(part);
    const wf_strided from = wf_tensor_strided(rows), to = wf_tensor_strided(part);
    const wf_status status = table->ctx->k->copy(table->ctx, &from, &to, add);
    wf_tensor_free(part);
    return status;
}

static wf_status run_near_back(wf_node *node, wf_tensor *const grad[NEAR_INPUTS], const wf_tensor *dy)
{
    const near_call *const call = node->state;
    /* A rank without a head takes part in exchanges only. */
    const wf_tensor *of[NEAR_SAVED];
    near_arrays arrays;
    if (call->heads == 0)
        return WF_OK;
    for (int i = 0; i < NEAR_SAVED; i++)
        of[i] = wf_node_saved(node, i);
    wf_neighbourhood_args args = near_args(call, of, &arrays);
    const wf_array up = pixel_array(dy), dq = pixel_array(grad[NEAR_Q]), dk = pixel_array(grad[NEAR_K]);
    const wf_array dv = pixel_array(grad[NEAR_V]), dbias = table_array(call, grad[NEAR_BIAS]);
    args.dy = &up;
    args.dq = grad[NEAR_Q] ? &dq : NULL;
    args.dk = grad[NEAR_K] ? &dk : NULL;
    args.dv = grad[NEAR_V] ? &dv : NULL;
    args.dbias = grad[NEAR_BIAS] ? &dbias : NULL;
    return dy->ctx->k->neighbourhood_backward(dy->ctx, &args);
}

/* Gradients of all keys that were read become those of the own ones. Both are made if one is wanted: the exchange has
 * both. */
static wf_status return_near(wf_node *node, wf_tensor **grad)
{
    const near_call *const call = node->state;
    /* Nothing was exchanged, or no gradient of keys is wanted, which all ranks know alike. */
    const near_two from = {grad[NEAR_K], grad[NEAR_V]};
    if (!call->halo.exchange || !from.k)
        return WF_OK;
    near_two own = {0};
    own.k = wf_tensor_new_step(from.k->ctx, from.k->dtype, node->in[NEAR_K]->value->shape, WF_ROW_MAJOR);
    own.v = wf_tensor_new_step(from.v->ctx, from.v->dtype, node->in[NEAR_V]->value->shape, WF_ROW_MAJOR);
    const wf_status status = own.k && own.v ? move_two(call, from, own, true) : wf_error_code();
    grad[NEAR_K] = own.k;
    grad[NEAR_V] = own.v;
    wf_tensor_free(from.k);
    wf_tensor_free(from.v);
    return status;
}

static wf_status new_gradients(wf_node *node, wf_tensor **grad)
{
    const bool both = wf_node_wants(node, NEAR_K) || wf_node_wants(node, NEAR_V);
    for (int i = 0; i < NEAR_INPUTS; i++) {
        const bool pair = i == NEAR_K || i == NEAR_V;
        if (!node->in[i] || (pair ? !both : !wf_node_wants(node, i)))
            continue;
        const wf_tensor *const like = wf_node_saved(node, i);
        grad[i] = wf_tensor_new_step(like->ctx, like->dtype, like->shape, WF_ROW_MAJOR);
        WF_NEED(grad[i]);
    }
    return WF_OK;
}

static wf_status backward_near(wf_node *node)
{
    wf_tensor *grad[NEAR_INPUTS] = {0}, *dy = wf_tensor_dense(wf_node_dy(node), wf_node_dy(node)->dtype, WF_ROW_MAJOR);
    wf_status status = dy ? new_gradients(node, grad) : wf_error_code();
    if (status == WF_OK)
        status = run_near_back(node, grad, dy);
    if (status == WF_OK)
        status = return_near(node, grad);
    if (status == WF_OK && grad[NEAR_BIAS])
        status = give_table_rows(node, grad[NEAR_BIAS]);
    wf_tensor_free(grad[NEAR_BIAS]);
    /* Given gradients belong to the tape; what was made and is not wanted is freed. */
    for (int i = 0; i < NEAR_BIAS; i++)
        if (status == WF_OK && grad[i] && wf_node_wants(node, i))
            status = wf_function_give(node, i, grad[i]);
        else
            wf_tensor_free(grad[i]);
    wf_tensor_free(dy);
    return status;
}

static const wf_op near_op = {.name = "neighbourhood_attention", .backward = backward_near};

/* --- forward ------------------------------------------------------------------------------------------------------ */

static wf_status save_near(const near_call *call, const wf_var *q, const wf_var *k, const wf_var *v, const wf_var *bias,
                           wf_tensor **saved)
{
    const wf_tensor *const x = q->value;
    WF_TRY(read_near(call, k, v, saved));
    saved[NEAR_Q] = wf_tensor_dense(x, x->dtype, WF_ROW_MAJOR);
    if (bias) {
        /* Only the rows of this rank's heads are used, so only they are widened. */
        wf_tensor *rows = wf_tensor_view(bias->value, own_rows(call, bias->value->shape));
        saved[NEAR_BIAS] = rows ? wf_tensor_dense(rows, wide_for(x->dtype), WF_ROW_MAJOR) : NULL;
        wf_tensor_free(rows);
    }
    int64_t pixels = 1;
    for (int d = 0; d < call->nd; d++)
        pixels *= x->shape.dim[1 + d];
    saved[NEAR_Y] =
        wf_output("neighbourhood_attention", v, v->value->shape, WF_ROW_MAJOR, (const int[]){0, 1, 2, 3, 4});
    saved[NEAR_LSE] =
        wf_tensor_new_step(x->ctx, wide_for(x->dtype), WF_SHAPE(x->shape.dim[0], call->heads, pixels), WF_ROW_MAJOR);
    return saved[NEAR_Q] && (saved[NEAR_BIAS] || !bias) && saved[NEAR_Y] && saved[NEAR_LSE] ? WF_OK : wf_error_code();
}

static wf_status run_near(const near_call *call, wf_tensor *const *saved)
{
    const wf_tensor *of[NEAR_SAVED];
    near_arrays arrays;
    if (call->heads == 0)
        return WF_OK;
    for (int i = 0; i < NEAR_SAVED; i++)
        of[i] = saved[i];
    const wf_neighbourhood_args args = near_args(call, of, &arrays);
    return of[NEAR_Q]->ctx->k->neighbourhood_forward(of[NEAR_Q]->ctx, &args);
}

wf_var *wf_near_attention(wf_var *q, wf_var *k, wf_var *v, const wf_near_opts *o)
{
    near_call call;
    wf_tensor *saved[NEAR_SAVED] = {0};
    if (!q || !k || !v)
        return NULL;
    wf_var *bias = o->bias ? wf_param_var(q->tape, o->bias) : NULL;
    if (o->bias && !bias)
        return NULL;
    /* Each rank sees its own queries: the gradient of the table is a sum over everything that cuts x. */
    if (o->bias)
        wf_param_sum_parts(o->bias, &q->value->layout, ~0u);
    WF_TRY_NULL(plan_near(q, v, o, &call));
    wf_status status = save_near(&call, q, k, v, bias, saved);
    if (status == WF_OK)
        status = run_near(&call, saved);
    wf_tensor *y = saved[NEAR_Y];
    wf_var *out =
        wf_function_finish(status, q->tape,
                           &(wf_node_spec){.op = &near_op,
                                           .n_in = NEAR_INPUTS,
                                           .in = (wf_var *const[]){q, k, v, bias},
                                           .n_saved = NEAR_SAVED,
                                           .saved = saved,
                                           .state = &call,
                                           .state_bytes = sizeof call,
                                           .comm = call.halo.exchange ? wf_mesh_world(q->value->layout.mesh) : NULL},
                           y);
    saved[NEAR_Y] = NULL; /* the variable has it */
    for (int i = 0; i < NEAR_SAVED; i++)
        wf_tensor_free(saved[i]);
    return out;
}
