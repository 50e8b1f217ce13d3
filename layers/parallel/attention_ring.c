/* Attention over tokens that ranks share, as a ring (Liu et al. 2023, "Ring Attention"): a rank keeps its queries;
 * blocks of keys and values go round.
 *
 * At step j rank r computes with the block of rank r - j while an exchange takes that block to rank r + 1 and brings
 * the next one. Results of parts are joined by their lse. In backward the sums of dk and dv of a block follow it one
 * step later: the message of step j is the block of rank r - j and the gradients of the block of rank r - j + 1, which
 * this rank has added its own to. One more message takes them home. A message is one run of bytes, so nothing is
 * packed.
 *
 * Paired: of 2 P blocks of tokens rank r computes with the r-th first and the r-th last, so that with a causal mask all
 * ranks have equal work. Tokens move there and back by exchanges. */
#include "layers/parallel/ring_impl.h"

#include <math.h>

/* --- a step's arithmetic ------------------------------------------------------------------------------------------ */

/* Some rows and columns of a table of integers that every rank has whole, dense, as kernels take them. */
static wf_tensor *part_of_numbers(const wf_tensor *whole, wf_range rows, wf_range columns, bool all_rows)
{
    const wf_box box = {.rank = 2,
                        .lo = {all_rows ? 0 : rows.lo, columns.lo},
                        .hi = {all_rows ? whole->shape.dim[0] : rows.hi, columns.hi}};
    wf_tensor *view = wf_tensor_view(whole, box), *dense = view ? wf_tensor_dense(view, WF_I32, WF_ROW_MAJOR) : NULL;
    wf_tensor_free(view);
    return dense;
}

/* Options for some queries and keys. */
typedef struct pair_options {
    wf_tensor *of[3]; /* index, regions of queries and of keys */
    wf_array array[3], bias, lengths;
    wf_strided mask;
    wf_random random;
} pair_options;

/* Options are those of all tokens, on every rank; a kernel gets those of its queries and keys, counted from their first
 * ones. */
static wf_status cut_options(const wf_ring_pass *p, wf_range q, wf_range k, pair_options *o, wf_attention_args *args)
{
    const wf_ring_call *const c = p->call;
    const wf_tensor *const whole[3] = {p->saved[WF_RING_INDEX], p->saved[WF_RING_QUERIES], p->saved[WF_RING_KEYS]};
    const wf_array **const to[3] = {&args->index, &args->q_region, &args->k_region};
    for (int i = 0; i < 3; i++) {
        if (!whole[i])
            continue;
        WF_NEED(o->of[i] = part_of_numbers(whole[i], q, i == 1 ? q : k, i > 0));
        o->array[i] = wf_tensor_array(o->of[i]);
        *to[i] = &o->array[i];
    }
    o->bias = wf_tensor_array(p->saved[WF_RING_BIAS]);
    o->lengths = wf_tensor_array(p->saved[WF_RING_LENGTHS]);
    args->bias = p->saved[WF_RING_BIAS] ? &o->bias : NULL;
    args->lengths = p->saved[WF_RING_LENGTHS] ? &o->lengths : NULL;
    if (p->saved[WF_RING_MASK]) {
        const int64_t extent[4] = {c->n, c->heads, q.hi - q.lo, k.hi - k.lo}, at[4] = {0, 0, q.lo, k.lo};
        o->mask = wf_tensor_strided(p->saved[WF_RING_MASK]);
        /* A dimension of length 1 serves all: with a stride of 0 it does not move. */
        for (int d = 0; d < 4; d++) {
            o->mask.stride[d] = o->mask.dim[d] == 1 ? 0 : o->mask.stride[d];
            o->mask.dim[d] = extent[d];
            o->mask.data = (char *)o->mask.data + at[d] * o->mask.stride[d] * (int64_t)wf_dtype_size(o->mask.dtype);
        }
        args->mask = &o->mask;
    }
    if (c->dropout > 0) {
        o->random = c->random;
        /* Numbers of dropout belong to places among all queries and keys, so the mask is that of the serial
         * function. */
        o->random.box.lo[2] = q.lo;
        o->random.box.lo[3] = k.lo;
        args->random = &o->random;
    }
    return WF_OK;
}

/* Run x of the queries with run z of a rank's keys; grads: of that block, NULL in forward. */
static wf_status run_pair(const wf_ring_pass *p, int rank, const void *block, void *grads, const int run[2])
{
    const wf_ring_call *const c = p->call;
    const int x = run[0], z = run[1];
    const wf_range q = wf_ring_run(c, false, c->rank, x), k = wf_ring_run(c, true, rank, z);
    /* Nothing to add: no elements, or all keys of the run come after its last query. Messages do not depend on this, so
     * ranks stay in step. */
    if (c->heads == 0 || q.lo == q.hi || k.lo == k.hi || (c->causal && k.lo >= q.hi))
        return WF_OK;
    const bool back = p->dy[x];
    const wf_tensor *const of[7] = {p->saved[WF_RING_Q + x],
                                    back ? p->saved[WF_RING_Y + x] : p->y[x],
                                    back ? p->saved[WF_RING_LSE + x] : p->lse[x],
                                    p->dy[x],
                                    p->dq[x],
                                    p->dbias};
    wf_array a[10];
    pair_options options = {0};
    for (int i = 0; i < 6; i++)
        a[i] = wf_tensor_array(of[i]);
    a[6] = wf_ring_array(c, (void *)(uintptr_t)block, c->dtype, rank, false, z);
    a[7] = wf_ring_array(c, (void *)(uintptr_t)block, c->dtype, rank, true, z);
    a[8] = wf_ring_array(c, grads, c->wide, rank, false, z);
    a[9] = wf_ring_array(c, grads, c->wide, rank, true, z);
    wf_attention_args args = {.heads = c->heads, .scale = c->scale, .causal = c->causal, .dropout = c->dropout};
    args.first_query = q.lo;
    args.first_key = k.lo;
    args.first_sample = c->first_sample;
    args.q = &a[0];
    args.y = &a[1];
    args.lse = &a[2];
    args.dy = back ? &a[3] : NULL;
    args.dq = p->dq[x] ? &a[4] : NULL;
    args.dbias = p->dbias ? &a[5] : NULL;
    args.k = &a[6];
    args.v = &a[7];
    args.dk = back && p->keys ? &a[8] : NULL;
    args.dv = back && p->values ? &a[9] : NULL;
    /* Forward joins a block's result to those before it; backward adds to gradients. */
    args.joins = !back;
    args.adds = back;
    wf_status status = cut_options(p, q, k, &options, &args);
    if (status == WF_OK)
        status = back ? p->ctx->k->attention_backward(p->ctx, &args) : p->ctx->k->attention_forward(p->ctx, &args);
    for (int i = 0; i < 3; i++)
        wf_tensor_free(options.of[i]);
    return status;
}

/* The context's progress while an exchange is in flight: kernels poll it between their pieces. */
typedef struct ring_polls {
    wf_ctx *ctx;
    wf_exchange *exchange;
    void (*before)(void *own); /* the progress that was there */
    void *before_state;
    wf_status status;
} ring_polls;

/* The progress that was there may remove itself, so it is in its place while it runs. */
static void poll_in_kernel(void *own)
{
    ring_polls *const polls = own;
    wf_ctx *const ctx = polls->ctx;
    ctx->progress = polls->before;
    ctx->progress_state = polls->before_state;
    wf_ctx_progress(ctx);
    polls->before = ctx->progress;
    polls->before_state = ctx->progress_state;
    ctx->progress = poll_in_kernel;
    ctx->progress_state = polls;
    if (polls->status == WF_OK)
        polls->status = wf_exchange_poll(polls->exchange);
}

wf_status wf_ring_compute(const wf_ring_pass *p, int step, const void *block, void *grads, wf_exchange *exchange)
{
    /* Only this thread calls the communicator, so kernels lend it to the exchange between their pieces. */
    const wf_ring_call *const c = p->call;
    wf_ctx *const ctx = p->ctx;
    ring_polls polls = {ctx, exchange, ctx->progress, ctx->progress_state, WF_OK};
    wf_status status = WF_OK;
    if (exchange) {
        ctx->progress = poll_in_kernel;
        ctx->progress_state = &polls;
    }
    for (int i = 0; i < c->runs * c->runs && status == WF_OK; i++)
        status = run_pair(p, wf_ring_owner(c, c->rank, step), block, grads, (int[]){i / c->runs, i % c->runs});
    if (exchange) {
        ctx->progress = polls.before;
        ctx->progress_state = polls.before_state;
    }
    return status == WF_OK ? polls.status : status;
}

wf_tensor *wf_ring_zeros(const wf_ring_pass *p, wf_shape shape)
{
    wf_tensor *t = wf_tensor_new_step(p->ctx, p->call->wide, shape, WF_ROW_MAJOR);
    if (!t || wf_tensor_fill(t, 0) == WF_OK)
        return t;
    wf_tensor_free(t);
    return wf_error_null();
}

/* --- forward ------------------------------------------------------------------------------------------------------ */

/* Collective over the axis: every rank makes the same number of steps, also with no tokens of its own. */
static wf_status forward_ring(const wf_ring_pass *p)
{
    const wf_ring_call *const c = p->call;
    wf_tensor *block = wf_ring_pack(c, p->saved + WF_RING_K, p->saved + WF_RING_V, p->ctx);
    wf_status status = block ? WF_OK : wf_error_code();
    for (int step = 0; step < c->size && status == WF_OK; step++) {
        wf_exchange *exchange = NULL;
        wf_tensor *next = NULL;
        if (step + 1 < c->size) {
            /* Blocks of ranks differ in length, so the next one is made for what its owner has. */
            next = wf_ring_new_bytes(p->ctx, wf_ring_bytes(c, wf_ring_owner(c, c->rank, step + 1), c->dtype));
            status = next ? wf_ring_send(c, &(wf_ring_message){.step = step, .keys = true}, block, next, &exchange)
                          : wf_error_code();
        }
        if (status == WF_OK)
            status = wf_ring_compute(p, step, block->data, NULL, exchange);
        /* The exchange ends in any case before `block` and `next` are freed: messages may still arrive in them. */
        status = wf_ring_end(exchange, status);
        wf_tensor_free(block);
        block = next;
    }
    wf_tensor_free(block);
    return status;
}

static const wf_op ring_op = {.name = "attention_ring", .backward = wf_ring_backward};

/* --- the function ------------------------------------------------------------------------------------------------- */

static wf_ring_call describe_ring(const wf_var *q, const wf_var *k, const wf_attention_opts *o, int axis)
{
    const wf_layout *const layout = &q->value->layout, *const other = &k->value->layout;
    const wf_dtype dtype = q->value->dtype;
    wf_ring_call c = {
        .mesh = layout->mesh, .axis = (wf_axis)axis, .runs = o->paired ? WF_RING_RUNS : 1, .causal = o->causal};
    c.size = wf_mesh_size(c.mesh, c.axis);
    c.rank = wf_mesh_rank(c.mesh, c.axis);
    c.n = q->value->shape.dim[0];
    const int64_t each = layout->global.dim[2] / o->heads;
    c.features = q->value->shape.dim[2];
    c.heads = c.features / each;
    c.first_head = layout->box.lo[2] / each;
    c.t = layout->global.dim[1];
    c.s = other->global.dim[1];
    c.queries = layout->bounds[axis];
    c.keys = other->bounds[axis];
    c.dtype = dtype;
    c.wide = dtype == WF_F64 ? WF_F64 : WF_F32;
    c.first_sample = layout->box.lo[0];
    c.scale = wf_opt(o->scale, 1 / sqrt((double)each));
    c.dropout = wf_tape_mode(q->tape) == WF_TRAIN ? o->dropout : 0;
    if (c.dropout > 0) {
        /* Drawn as for the whole tensor of probabilities; the box says which part is here. */
        c.random = wf_tape_random(q->tape, WF_SHAPE(c.n, o->heads, c.t, c.s), NULL);
        c.random.global.dim[0] = layout->global.dim[0];
        c.random.box.lo[1] = c.first_head;
        c.random.box.hi[1] = c.first_head + c.heads;
        c.random.box.lo[0] = layout->box.lo[0];
        c.random.box.hi[0] = layout->box.hi[0];
    }
    /* The table's gradient is a part on each rank: the optimizer's sums complete it for a parameter, and backward for
     * another variable. */
    if (o->bias && o->bias->param)
        wf_param_sum_parts(o->bias->param, layout, ~0u);
    else if (o->bias && o->bias->value->layout.known)
        c.axes = wf_layout_axes(layout, ~0u);
    return c;
}

/* Dense options. */
static wf_status save_options(const wf_ring_call *c, const wf_attention_opts *o, wf_tensor **saved)
{
    const wf_tensor *const of[WF_RING_SAVED] = {[WF_RING_MASK] = o->mask,
                                                [WF_RING_INDEX] = o->bias_index,
                                                [WF_RING_LENGTHS] = o->lengths,
                                                [WF_RING_QUERIES] = o->query_regions,
                                                [WF_RING_KEYS] = o->key_regions};
    if (o->bias) {
        wf_tensor *columns = wf_attention_columns(o->bias->value, c->first_head, c->heads);
        saved[WF_RING_BIAS] = columns ? wf_tensor_dense(columns, c->wide, WF_ROW_MAJOR) : NULL;
        wf_tensor_free(columns);
        WF_NEED(saved[WF_RING_BIAS]);
    }
    for (int i = WF_RING_MASK; i < WF_RING_SAVED; i++)
        if (of[i])
            WF_NEED(saved[i] = wf_tensor_dense(of[i], i > WF_RING_MASK ? WF_I32 : c->wide, WF_ROW_MAJOR));
    return WF_OK;
}

static wf_status forward_all(const wf_ring_call *c, wf_var *const *x, const wf_attention_opts *o, wf_tensor **saved,
                             wf_tensor **y)
{
    wf_ring_pass p = {.call = c, .ctx = x[0]->value->ctx, .saved = (const wf_tensor *const *)saved};
    WF_TRY(save_options(c, o, saved));
    for (int run = 0; run < c->runs; run++) {
        WF_TRY(wf_ring_take(c, x[0]->value, false, run, &saved[WF_RING_Q + run]));
        WF_TRY(wf_ring_take(c, x[1]->value, true, run, &saved[WF_RING_K + run]));
        WF_TRY(wf_ring_take(c, x[2]->value, true, run, &saved[WF_RING_V + run]));
        const wf_shape shape = saved[WF_RING_Q + run]->shape;
        WF_NEED(saved[WF_RING_Y + run] = wf_ring_zeros(&p, shape));
        WF_NEED(saved[WF_RING_LSE + run] = wf_ring_zeros(&p, WF_SHAPE(shape.dim[0], c->heads, shape.dim[1])));
        /* No key has been seen: the first block replaces this. */
        WF_TRY(wf_tensor_fill(saved[WF_RING_LSE + run], -INFINITY));
        p.y[run] = saved[WF_RING_Y + run];
        p.lse[run] = saved[WF_RING_LSE + run];
    }
    WF_TRY(forward_ring(&p));
    WF_NEED(*y = wf_ring_put(c, p.y, false, p.ctx));
    /* Wide only while parts are joined: backward reads y in the type in which the next layer got it. */
    for (int run = 0; run < c->runs; run++) {
        wf_tensor *narrow = wf_tensor_dense(p.y[run], c->dtype, WF_ROW_MAJOR);
        WF_NEED(narrow);
        wf_tensor_free(saved[WF_RING_Y + run]);
        saved[WF_RING_Y + run] = narrow;
    }
    return WF_OK;
}

wf_var *wf_attention_ring(wf_var *q, wf_var *k, wf_var *v, wf_attention_opts o)
{
    if (!q || !k || !v)
        return NULL;
    WF_TRY_NULL(wf_function_check("attention ring", q, WF_ANY_FUNCTION));
    const int axis = wf_token_axis(&q->value->layout);
    o.heads = o.heads == 0 ? 1 : o.heads;
    /* Tokens are whole on every rank, so nothing goes round. */
    if (axis < 0)
        return wf_attention(q, k, v, o);
    WF_TRY_NULL(wf_tokens_check("attention ring", q, k, v, &o, false));
    WF_TRY_NULL(wf_tokens_check_opts(q, k, &o, false));
    const wf_ring_call call = describe_ring(q, k, &o, axis);
    wf_comm *comm = wf_mesh_comm(call.mesh, 1u << axis | call.axes);
    wf_tensor *saved[WF_RING_SAVED] = {0}, *y = NULL;
    WF_NEED_NULL(comm);
    wf_status status = forward_all(&call, (wf_var *const[]){q, k, v}, &o, saved, &y);
    if (status == WF_OK)
        status = wf_tensor_set_layout(y, q->value->layout);
    /* Others would wait for what this rank lacks. */
    status = wf_comm_post_failure(wf_mesh_world(call.mesh), status);
    wf_var *out = wf_function_finish(status, q->tape,
                                     &(wf_node_spec){.op = &ring_op,
                                                     .n_in = WF_RING_INPUTS,
                                                     .in = (wf_var *const[]){q, k, v, o.bias},
                                                     .n_saved = WF_RING_SAVED,
                                                     .saved = saved,
                                                     .state = &call,
                                                     .state_bytes = sizeof call,
                                                     .comm = comm},
                                     y);
    for (int i = 0; i < WF_RING_SAVED; i++)
        wf_tensor_free(saved[i]);
    return out;
}
