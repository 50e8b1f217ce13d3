/* Blocks of keys and values of ring attention, and how they travel. Everything that a rank must know of the others
 * follows from the bounds in the call: no function here asks another rank. A block is one run of bytes: the keys of all
 * runs, the values of all runs, each [N,tokens,features]. */
#include "layers/parallel/ring_impl.h"

/* --- who has what ------------------------------------------------------------------------------------------------- */

/* Paired: the r-th block of 2 P from the front and the r-th from the end. Under a causal mask an early and a late block
 * together see as much as any other such pair. */
wf_range wf_ring_run(const wf_ring_call *c, bool keys, int rank, int x)
{
    wf_range r;
    const int64_t *const bounds = keys ? c->keys : c->queries;
    if (c->runs == 1)
        return (wf_range){bounds[rank], bounds[rank + 1]};
    wf_block(keys ? c->s : c->t, WF_RING_RUNS * c->size, x == 0 ? rank : WF_RING_RUNS * c->size - 1 - rank, &r.lo,
             &r.hi);
    return r;
}

/* Step j has the block of the rank j places before: `size` is added since the remainder of a negative number is
 * negative in C. */
int wf_ring_owner(const wf_ring_call *c, int rank, int step)
{
    return ((rank - step) % c->size + c->size) % c->size;
}

int64_t wf_ring_keys(const wf_ring_call *c, int rank)
{
    int64_t sum = 0;
    for (int x = 0; x < c->runs; x++) {
        const wf_range r = wf_ring_run(c, true, rank, x);
        sum += r.hi - r.lo;
    }
    return sum;
}

/* Whole cache lines, so that what follows is aligned for any type. */
int64_t wf_ring_bytes(const wf_ring_call *c, int rank, wf_dtype dtype)
{
    /* Twice: keys and values. */
    const int64_t bytes = 2 * c->n * wf_ring_keys(c, rank) * c->features * (int64_t)wf_dtype_size(dtype);
    return (bytes + 63) / 64 * 64;
}

/* A message may have both, the gradients being those of the block before it. */
static int64_t message_bytes(const wf_ring_call *c, int rank, const wf_ring_message *m)
{
    return (m->keys ? wf_ring_bytes(c, wf_ring_owner(c, rank, m->step), c->dtype) : 0) +
           (m->grads ? wf_ring_bytes(c, wf_ring_owner(c, rank, m->step - 1), c->wide) : 0);
}

/* have: `size` ranges along dimension dim of an array, then those that are needed. */
static wf_exchange *plan_exchange(const wf_ring_call *c, const wf_range *range, wf_shape global, int dim,
                                  wf_dtype dtype)
{
    wf_regions have = {.global = global}, need;
    for (int a = 0; a < WF_AXES; a++)
        have.dim[a] = -1;
    have.dim[c->axis] = dim;
    need = have;
    have.range[c->axis] = range;
    need.range[c->axis] = range + c->size;
    return wf_mesh_exchange(c->mesh, &have, &need, dtype, WF_ROW_MAJOR);
}

static wf_range *take_ranges(const wf_ring_call *c, size_t *bytes)
{
    void *ranges = NULL;
    *bytes = 2 * (size_t)c->size * sizeof(wf_range);
    return wf_pool_take_host(wf_comm_ctx(wf_mesh_world(c->mesh)), *bytes, &ranges) == WF_OK ? ranges : NULL;
}

/* The bytes of all ranks in one row: a rank has its message, and needs that of the rank before it. */
static wf_exchange *message_exchange(const wf_ring_call *c, const wf_ring_message *m)
{
    size_t bytes;
    wf_range *const range = take_ranges(c, &bytes);
    int64_t at = 0;
    WF_NEED_NULL(range);
    for (int r = 0; r < c->size; r++) {
        range[r] = (wf_range){at, at + message_bytes(c, r, m)};
        at = range[r].hi;
    }
    /* Every rank needs the message of the rank before it, so the ring is closed. */
    for (int r = 0; r < c->size; r++)
        range[c->size + r] = range[wf_ring_owner(c, r, 1)];
    wf_exchange *exchange = plan_exchange(c, range, WF_SHAPE(at), 0, WF_U8);
    wf_pool_give_host(wf_comm_ctx(wf_mesh_world(c->mesh)), range, bytes);
    return exchange;
}

/* From the cut of the tokens to run x of paired blocks; of tensors of the call's type. */
static wf_exchange *run_exchange(const wf_ring_call *c, bool keys, int x)
{
    size_t bytes;
    wf_range *const range = take_ranges(c, &bytes);
    const int64_t *const bounds = keys ? c->keys : c->queries;
    WF_NEED_NULL(range);
    for (int r = 0; r < c->size; r++) {
        range[r] = (wf_range){bounds[r], bounds[r + 1]};
        range[c->size + r] = wf_ring_run(c, keys, r, x);
    }
    wf_exchange *exchange = plan_exchange(c, range, WF_SHAPE(c->n, keys ? c->s : c->t, c->features), 1, c->dtype);
    wf_pool_give_host(wf_comm_ctx(wf_mesh_world(c->mesh)), range, bytes);
    return exchange;
}

wf_status wf_ring_take(const wf_ring_call *c, const wf_tensor *x, bool keys, int run, wf_tensor **to)
{
    const wf_range r = wf_ring_run(c, keys, c->rank, run);
    if (c->runs == 1) {
        WF_NEED(*to = wf_tensor_dense(x, c->dtype, WF_ROW_MAJOR));
        return WF_OK;
    }
    wf_exchange *exchange = run_exchange(c, keys, run);
    WF_NEED(exchange);
    WF_NEED(*to = wf_tensor_new_step(x->ctx, c->dtype, WF_SHAPE(c->n, r.hi - r.lo, c->features), WF_ROW_MAJOR));
    WF_TRY(wf_exchange_begin(exchange, x, *to));
    return wf_exchange_end(exchange);
}

/* The reversed exchange adds to zeros; every token is in one run, so this is a copy. */
wf_tensor *wf_ring_put(const wf_ring_call *c, wf_tensor *const *from, bool keys, wf_ctx *ctx)
{
    const int64_t *const bounds = keys ? c->keys : c->queries;
    if (c->runs == 1)
        return wf_tensor_dense(from[0], c->dtype, WF_ROW_MAJOR);
    wf_tensor *to = wf_tensor_new_step(
        ctx, c->dtype, WF_SHAPE(c->n, bounds[c->rank + 1] - bounds[c->rank], c->features), WF_ROW_MAJOR);
    wf_status status = to ? wf_tensor_fill(to, 0) : wf_error_code();
    for (int x = 0; x < c->runs && status == WF_OK; x++) {
        wf_exchange *exchange = run_exchange(c, keys, x);
        wf_tensor *part = exchange ? wf_tensor_dense(from[x], c->dtype, WF_ROW_MAJOR) : NULL;
        status = part ? wf_exchange_reverse_begin(exchange, part, to) : wf_error_code();
        if (status == WF_OK)
            status = wf_exchange_end(exchange);
        wf_tensor_free(part);
    }
    if (status == WF_OK)
        return to;
    wf_tensor_free(to);
    return wf_error_null();
}

/* --- a block of keys and values, and its gradients ---------------------------------------------------------------- */

wf_array wf_ring_array(const wf_ring_call *c, void *data, wf_dtype dtype, int rank, bool values, int x)
{
    const wf_range r = wf_ring_run(c, true, rank, x);
    /* Values follow all keys; runs follow each other in both. */
    int64_t at = values ? c->n * wf_ring_keys(c, rank) * c->features : 0;
    for (int before = 0; before < x; before++) {
        const wf_range b = wf_ring_run(c, true, rank, before);
        at += c->n * (b.hi - b.lo) * c->features;
    }
    return (wf_array){.data = data ? (char *)data + at * (int64_t)wf_dtype_size(dtype) : NULL,
                      .dtype = dtype,
                      .order = WF_ROW_MAJOR,
                      .shape = WF_SHAPE(c->n, r.hi - r.lo, c->features)};
}

wf_tensor *wf_ring_new_bytes(wf_ctx *ctx, int64_t bytes)
{
    return wf_tensor_new_step(ctx, WF_U8, WF_SHAPE(bytes), WF_ROW_MAJOR);
}

wf_status wf_ring_copy(wf_ctx *ctx, const wf_array *from, const wf_array *to, bool add)
{
    const wf_strided a = wf_array_strided(from), b = wf_array_strided(to);
    return ctx->k->copy(ctx, &a, &b, add);
}

wf_tensor *wf_ring_pack(const wf_ring_call *c, const wf_tensor *const *k, const wf_tensor *const *v, wf_ctx *ctx)
{
    wf_tensor *block = wf_ring_new_bytes(ctx, wf_ring_bytes(c, c->rank, c->dtype));
    wf_status status = block ? WF_OK : wf_error_code();
    for (int i = 0; i < 2 * c->runs && status == WF_OK; i++) {
        const wf_array from = wf_tensor_array(i % 2 ? v[i / 2] : k[i / 2]);
        const wf_array to = wf_ring_array(c, block->data, c->dtype, c->rank, i % 2, i / 2);
        status = wf_ring_copy(ctx, &from, &to, false);
    }
    if (status == WF_OK)
        return block;
    wf_tensor_free(block);
    return wf_error_null();
}

wf_status wf_ring_send(const wf_ring_call *c, const wf_ring_message *m, const wf_tensor *from, wf_tensor *to,
                       wf_exchange **exchange)
{
    WF_NEED(*exchange = message_exchange(c, m));
    const wf_status status = wf_exchange_begin(*exchange, from, to);
    if (status != WF_OK)
        *exchange = NULL;
    return status;
}

/* Ends the exchange after an error of the computation too, and returns the first error of the two. */
wf_status wf_ring_end(wf_exchange *exchange, wf_status status)
{
    if (!exchange)
        return status;
    const wf_status ended = wf_exchange_end(exchange);
    return status == WF_OK ? ended : status;
}
