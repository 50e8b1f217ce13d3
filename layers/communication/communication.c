/* Collectives of comm/comm.h as functions with a gradient. Programs call them by the names of
 * layers/communication.h. They take values without a layout only; layouts are moved by redistribute.c. */
#include "layers/communication/communication_impl.h"

#include <string.h>

/* What a rank tells the others about its tensor before a collective; rank -1: it has none. */
typedef struct part {
    int32_t dtype, rank, needs, evaluates;
    int64_t dim[WF_MAX_RANK];
} part;

/* A collective in progress: the descriptions of all ranks, `per` entries each. */
typedef struct group {
    wf_comm *comm;
    wf_tape *tape;
    const char *what;
    int rank, size, per;
    part *all;
    size_t bytes;
    wf_dtype dtype;
    bool grads;
} group;

static part part_of(const wf_tape *tape, const wf_var *x)
{
    /* Backward is a collective, too: either all ranks record the node or none does, so each tells whether it wants a
     * gradient. */
    const bool evaluates = wf_tape_mode(tape) == WF_EVAL;
    part p = {.rank = -1, .evaluates = evaluates};
    if (!x)
        return p;
    p.dtype = (int32_t)x->value->dtype;
    p.rank = x->value->shape.rank;
    p.needs = x->needs_grad && !evaluates;
    memcpy(p.dim, x->value->shape.dim, sizeof p.dim);
    return p;
}

/* All ranks check the same table, so all come to the same result. */
static wf_status judge(group *g)
{
    int wants = -1, evaluates = -1, first = -1;
    /* The first rank of each kind is remembered for the message. */
    for (int i = 0; i < g->size * g->per; i++) {
        const part *p = &g->all[i];
        const int r = i / g->per;
        wants = p->needs && wants < 0 ? r : wants;
        evaluates = p->evaluates && evaluates < 0 ? r : evaluates;
        if (p->rank < 0)
            continue;
        first = first < 0 ? i : first;
        WF_CHECK(p->dtype == g->all[first].dtype, WF_ERR_DTYPE, "%s of %s on rank %s and of %s on rank %s", g->what,
                 wf_dtype_name((wf_dtype)g->all[first].dtype), WF_RANK(g->comm, first / g->per),
                 wf_dtype_name((wf_dtype)p->dtype), WF_RANK(g->comm, r));
    }
    /* One rank records a node and another does not: backward of the first would wait for ever. */
    WF_CHECK(wants < 0 || evaluates < 0, WF_ERR_STATE, "%s: rank %s wants a gradient and rank %s is in WF_EVAL",
             g->what, WF_RANK(g->comm, wants), WF_RANK(g->comm, evaluates));
    g->grads = wants >= 0;
    /* A list of nothing at all has no type of its own; any will do. */
    g->dtype = first < 0 ? WF_F32 : (wf_dtype)g->all[first].dtype;
    return WF_OK;
}

static void group_close(group *g)
{
    wf_host_give(g->comm, g->all, g->bytes);
    g->all = NULL;
}

/* Agrees on the `per` tensors x of each rank; x NULL: this rank has none. */
static wf_status group_open(group *g, wf_comm *comm, wf_tape *tape, const char *what, int per, wf_var *const *x)
{
    *g = (group){.comm = comm, .tape = tape, .what = what, .per = per};
    g->rank = wf_comm_rank(comm);
    g->size = wf_comm_size(comm);
    WF_NEED(tape);
    for (int i = 0; x && i < per; i++) {
        WF_TRY(wf_communication_check(what, x[i]));
        /* Checked by each rank for itself: the end of the call tells the others of a failure. */
        WF_CHECK(x[i]->tape == tape, WF_ERR_ARGUMENT, "%s of variables of two tapes", what);
    }
    void *memory;
    const size_t mine = (size_t)per * sizeof *g->all;
    g->bytes = mine * (size_t)(g->size + 1);
    WF_TRY(wf_host_take(comm, g->bytes, &memory));
    g->all = memory;
    /* The row of this rank follows the table in the same memory. */
    part *own = g->all + g->size * per;
    for (int i = 0; i < per; i++)
        own[i] = part_of(tape, x ? x[i] : NULL);
    /* Shapes are not known elsewhere, and types may differ by mistake: 56 bytes per tensor buy an error in place of a
     * hang or of garbage. */
    WF_TRY(wf_allgather_bytes(comm, own, mine, g->all));
    return judge(g);
}

static wf_shape shape_at(const group *g, int rank, int i)
{
    const part *p = &g->all[rank * g->per + i];
    return wf_shape_make(p->rank, p->dim);
}

/* Records y, whose handle is taken. */
static wf_var *recorded(const group *g, const wf_op *op, int n_in, wf_var *const *in, wf_group_state *state,
                        wf_tensor *y)
{
    /* No rank wants a gradient, so none records the node and backward sends nothing. */
    if (!g->grads)
        return wf_tape_record(g->tape, &(wf_node_spec){0}, y);
    const size_t bytes = sizeof *state + (size_t)state->n_out * sizeof *state->shape;
    return wf_tape_record(
        g->tape,
        &(wf_node_spec){.op = op, .n_in = n_in, .in = in, .state = state, .state_bytes = bytes, .comm = g->comm}, y);
}

/* --- lists as results ----------------------------------------------------------------------------------------------
 */

/* The range of one result in the packed value. */
typedef struct pick {
    int64_t lo, hi;
} pick;

/* Each result writes the gradient of its own range; the first of them to come clears the rest. */
static wf_status put_back(wf_tensor *grad, bool accumulate, const pick *state, const wf_tensor *dy)
{
    WF_NEED(grad);
    if (!accumulate)
        WF_TRY(wf_tensor_fill(grad, 0));
    const wf_box box = {.rank = 1, .lo = {state->lo}, .hi = {state->hi}};
    wf_tensor *place = wf_tensor_view(grad, box);
    /* dy's elements in row-major order, as they were packed. */
    wf_tensor *flat = wf_tensor_recast(dy, wf_box_shape(box), WF_ROW_MAJOR);
    const wf_status status = place && flat ? wf_tensor_assign(place, flat) : wf_error_take("view", __FILE__, __LINE__);
    wf_tensor_free(place);
    wf_tensor_free(flat);
    return status;
}

static wf_status pick_backward(wf_node *node)
{
    bool accumulate;
    if (!wf_node_wants(node, 0))
        return WF_OK;
    wf_tensor *grad = wf_node_grad(node, 0, &accumulate);
    return put_back(grad, accumulate, node->state, wf_node_dy(node));
}

static const wf_op pick_op = {.name = "part of a collective", .backward = pick_backward};

static wf_status pick_all(wf_var *packed, const wf_shape *shape, wf_tensors *parts, wf_var **y)
{
    WF_NEED(packed);
    pick state = {0};
    for (int i = 0; i < parts->n; i++) {
        state.lo = state.hi;
        state.hi += wf_shape_count(shape[i]);
        /* The record takes the handle. */
        wf_tensor *value = parts->t[i];
        parts->t[i] = NULL;
        y[i] = wf_tape_record(
            packed->tape,
            &(wf_node_spec){.op = &pick_op, .n_in = 1, .in = &packed, .state = &state, .state_bytes = sizeof state},
            value);
        WF_NEED(y[i]);
    }
    return WF_OK;
}

/* One call: fills `out` (the list of results) from `in` (the values of the inputs). */
typedef wf_status (*mover)(const group *g, const wf_tensors *in, const wf_tensors *out, int root);

static wf_status values_of(const group *g, int n, wf_var *const *x, wf_tensors *values)
{
    WF_TRY(wf_tensors_new(wf_tape_ctx(g->tape), n, values));
    for (int i = 0; i < n; i++) {
        values->t[i] = wf_exchanged_value(x[i]->value);
        WF_NEED(values->t[i]);
    }
    return WF_OK;
}

/* The results are stored one after the other in one tensor, the value of one node; y[i] are views of it. */
static wf_status listed(const group *g, const wf_op *op, int n_in, wf_var *const *x, wf_group_state *state, mover move,
                        wf_var **y)
{
    wf_tensors in = {0}, out = {0};
    wf_tensor *packed = NULL;
    wf_status status;
    int64_t count = 0;
    for (int i = 0; i < state->n_out; i++)
        count += wf_shape_count(state->shape[i]);
    WF_TRY_OUT(values_of(g, n_in, x, &in));
    packed = state->n_out ? wf_exchanged_new(wf_tape_ctx(g->tape), g->dtype, WF_SHAPE(count))
                          : wf_token_value(wf_tape_ctx(g->tape));
    status = packed ? wf_tensors_new(wf_tape_ctx(g->tape), state->n_out, &out) : wf_error_code();
    WF_TRY_OUT(status);
    WF_TRY_OUT(wf_tensors_split(&out, packed, state->shape));
    WF_TRY_OUT(move(g, &in, &out, state->root));
    wf_var *whole = recorded(g, op, n_in, x, state, packed);
    packed = NULL;
    /* A rank without results still has a node, for its part in backward: a token of no elements stands for it. */
    if (state->n_out == 0)
        y[0] = wf_token_mark(whole, x[0]);
    WF_TRY_OUT(pick_all(whole, state->shape, &out, y));
out:
    wf_tensor_free(packed);
    wf_tensors_free(&in);
    wf_tensors_free(&out);
    return status;
}

static wf_status move_gather(const group *g, const wf_tensors *in, const wf_tensors *out, int root)
{
    return wf_gather(g->comm, in->t[0], out->t, root);
}

static wf_status move_allgather(const group *g, const wf_tensors *in, const wf_tensors *out, int root)
{
    (void)root;
    return wf_allgather(g->comm, in->t[0], out->t);
}

static wf_status move_alltoall(const group *g, const wf_tensors *in, const wf_tensors *out, int root)
{
    (void)root;
    return wf_alltoall(g->comm, in->t, out->t);
}

/* Runs a collective whose result is a list of n_out on this rank; y has room for all ranks. */
static wf_status list_call(group *g, const wf_op *op, wf_var *const *x, int root, int n_out, mover move, wf_var **y)
{
    void *memory;
    const size_t bytes = sizeof(wf_group_state) + (size_t)n_out * sizeof(wf_shape);
    WF_TRY(wf_pool_take_host(wf_tape_ctx(g->tape), bytes, &memory));
    wf_group_state *state = memory;
    *state = (wf_group_state){.comm = g->comm, .root = root, .n_out = n_out};
    /* In an all-to-all this rank gets the entry that each rank has for it. */
    for (int r = 0; r < n_out; r++)
        state->shape[r] = shape_at(g, r, g->per == 1 ? 0 : g->rank);
    const wf_status status = listed(g, op, g->per, x, state, move, y);
    wf_pool_give_host(wf_tape_ctx(g->tape), memory, bytes);
    return status;
}

static wf_status list_end(group *g, wf_comm *comm, wf_status status)
{
    group_close(g);
    return wf_communication_end(comm, status);
}

/* The list is defined after a failure as well: callers free what is not NULL. */
static wf_status clear(wf_comm *comm, wf_var **y)
{
    if (!y)
        return wf_communication_end(comm, wf_error_take("y", __FILE__, __LINE__));
    for (int r = 0; r < wf_comm_size(comm); r++)
        y[r] = NULL;
    return WF_OK;
}

wf_status wf_gather_var(wf_comm *comm, wf_var *x, wf_var **y, int root)
{
    WF_NEED(comm);
    WF_TRY(clear(comm, y));
    group g;
    wf_status status = group_open(&g, comm, wf_var_tape(x), "gather", 1, &x);
    if (status == WF_OK)
        status = list_call(&g, &wf_gather_op, &x, root, g.rank == root ? g.size : 0, move_gather, y);
    return list_end(&g, comm, status);
}

wf_status wf_allgather_var(wf_comm *comm, wf_var *x, wf_var **y)
{
    WF_NEED(comm);
    WF_TRY(clear(comm, y));
    group g;
    wf_status status = group_open(&g, comm, wf_var_tape(x), "allgather", 1, &x);
    if (status == WF_OK)
        status = list_call(&g, &wf_allgather_op, &x, 0, g.size, move_allgather, y);
    return list_end(&g, comm, status);
}

wf_status wf_alltoall_var(wf_comm *comm, wf_var *const *x, wf_var **y)
{
    WF_NEED(comm);
    WF_TRY(clear(comm, y));
    group g;
    wf_status status = group_open(&g, comm, x ? wf_var_tape(x[0]) : NULL, "alltoall", wf_comm_size(comm), x);
    if (status == WF_OK)
        status = list_call(&g, &wf_alltoall_op, x, 0, g.size, move_alltoall, y);
    return list_end(&g, comm, status);
}

/* --- one result -------------------------------------------------------------------------------------------------- */

static wf_status move_bcast(const group *g, const wf_tensors *in, const wf_tensors *out, int root)
{
    (void)in;
    return wf_bcast(g->comm, out->t[0], root);
}

static wf_status move_scatter(const group *g, const wf_tensors *in, const wf_tensors *out, int root)
{
    return wf_scatter(g->comm, in->t, out->t[0], root);
}

static wf_status move_allreduce(const group *g, const wf_tensors *in, const wf_tensors *out, int root)
{
    (void)root;
    return wf_allreduce(g->comm, in->t[0], out->t[0], WF_SUM);
}

static wf_status move_reduce_scatter(const group *g, const wf_tensors *in, const wf_tensors *out, int root)
{
    (void)root;
    return wf_reduce_scatter(g->comm, in->t, out->t[0], WF_SUM);
}

/* y is a new tensor, except on the root of a broadcast, whose own tensor is used. */
static wf_status single_call(const group *g, const wf_op *op, int n_in, wf_var *const *x, wf_shape shape, int root,
                             mover move, wf_var **y)
{
    wf_tensors in = {0}, out = {0};
    wf_group_state state = {.comm = g->comm, .root = root};
    wf_status status;
    WF_TRY_OUT(values_of(g, n_in, x, &in));
    WF_TRY_OUT(wf_tensors_new(wf_tape_ctx(g->tape), 1, &out));
    /* The root's own value is not copied. An alias: the broadcast sends from it and writes nothing there. */
    const bool keeps = op == &wf_bcast_op && n_in > 0;
    out.t[0] = keeps ? wf_tensor_alias(in.t[0]) : wf_exchanged_new(wf_tape_ctx(g->tape), g->dtype, shape);
    status = out.t[0] ? move(g, &in, &out, root) : wf_error_code();
    WF_TRY_OUT(status);
    *y = recorded(g, op, n_in, x, &state, out.t[0]);
    out.t[0] = NULL;
    status = *y ? WF_OK : wf_error_code();
out:
    wf_tensors_free(&in);
    wf_tensors_free(&out);
    return status;
}

static wf_var *single_end(group *g, wf_comm *comm, wf_status status, wf_var *y)
{
    group_close(g);
    return status == WF_OK ? y : wf_communication_null(comm, status);
}

static wf_status check_root(const group *g, int root)
{
    WF_CHECK(root >= 0 && root < g->size, WF_ERR_ARGUMENT, "%s with root %d: should be 0 to %d", g->what, root,
             g->size - 1);
    return WF_OK;
}

wf_var *wf_bcast_var(wf_comm *comm, wf_tape *tape, wf_var *x, int root)
{
    WF_NEED_NULL(comm);
    group g;
    wf_var *y = NULL;
    const bool has = wf_comm_rank(comm) == root;
    wf_status status = group_open(&g, comm, tape, "bcast", 1, has ? &x : NULL);
    if (status == WF_OK)
        status = check_root(&g, root);
    if (status == WF_OK)
        status = single_call(&g, &wf_bcast_op, has, &x, shape_at(&g, root, 0), root, move_bcast, &y);
    return single_end(&g, comm, status, y);
}

wf_var *wf_scatter_var(wf_comm *comm, wf_tape *tape, wf_var *const *x, int root)
{
    WF_NEED_NULL(comm);
    group g = {.comm = comm};
    wf_var *y = NULL;
    const int size = wf_comm_size(comm);
    const bool has = wf_comm_rank(comm) == root;
    wf_status status = has && !x ? wf_error_take("x", __FILE__, __LINE__) : WF_OK;
    if (status == WF_OK)
        status = group_open(&g, comm, tape, "scatter", size, has ? x : NULL);
    if (status == WF_OK)
        status = check_root(&g, root);
    if (status == WF_OK)
        status = single_call(&g, &wf_scatter_op, has ? size : 0, x, shape_at(&g, root, g.rank), root, move_scatter, &y);
    return single_end(&g, comm, status, y);
}

wf_var *wf_allreduce_var(wf_comm *comm, wf_var *x)
{
    WF_NEED_NULL(comm);
    group g;
    wf_var *y = NULL;
    wf_status status = group_open(&g, comm, wf_var_tape(x), "allreduce", 1, &x);
    if (status == WF_OK)
        status = single_call(&g, &wf_allreduce_op, 1, &x, shape_at(&g, g.rank, 0), 0, move_allreduce, &y);
    return single_end(&g, comm, status, y);
}

wf_var *wf_reduce_scatter_var(wf_comm *comm, wf_var *const *x)
{
    WF_NEED_NULL(comm);
    group g;
    wf_var *y = NULL;
    const int size = wf_comm_size(comm);
    wf_status status = group_open(&g, comm, x ? wf_var_tape(x[0]) : NULL, "reduce_scatter", size, x);
    if (status == WF_OK)
        status =
            single_call(&g, &wf_reduce_scatter_op, size, x, shape_at(&g, g.rank, g.rank), 0, move_reduce_scatter, &y);
    return single_end(&g, comm, status, y);
}
