/* Products of matrices, with any leading dimensions, which broadcast as in arithmetic. Where b is one matrix for all of
 * a, the leading dimensions of a are rows of one product. Layouts: leading dimensions, rows of a and columns of b may
 * be cut; the gradient of what is replicated over an axis that cuts the result is summed over it in backward. */
#include "comm/comm_author.h"
#include "comm/mesh.h"
#include "layers/functions.h"
#include "layers/functions/functions_impl.h"

typedef struct product_state {
    bool transposed[2];
    unsigned axes[2];             /* of the mesh: over which the gradient of a factor is summed */
    int64_t m, n, k, count;       /* count: products */
    int lead;                     /* leading dimensions of the result */
    int64_t dim[WF_MAX_RANK];     /* their lengths */
    int64_t step[2][WF_MAX_RANK]; /* and the matrices of a factor from one to the next: 0 if it repeats */
    bool repeats[2];
} product_state;

static void swap_last(wf_shape *shape)
{
    const int64_t last = shape->dim[shape->rank - 1];
    shape->dim[shape->rank - 1] = shape->dim[shape->rank - 2];
    shape->dim[shape->rank - 2] = last;
}

/* Makes of x what the rule of broadcasting sees: [..., m, 1] of a, [..., 1, n] of b. */
static wf_tensor outer_side(const wf_tensor *x, bool transposed, bool is_a)
{
    wf_tensor side = *x;
    const int rank = x->shape.rank, inner = is_a ? rank - 1 : rank - 2;
    wf_layout *layout = &side.layout;
    if (transposed) {
        swap_last(&side.shape);
        swap_last(&layout->global);
        const int64_t lo = layout->box.lo[rank - 1], hi = layout->box.hi[rank - 1];
        layout->box.lo[rank - 1] = layout->box.lo[rank - 2], layout->box.hi[rank - 1] = layout->box.hi[rank - 2];
        layout->box.lo[rank - 2] = lo, layout->box.hi[rank - 2] = hi;
        for (int a = 0; a < WF_AXES; a++)
            if (layout->placement[a] == WF_SHARDED && layout->dim[a] >= rank - 2)
                layout->dim[a] = (uint8_t)(2 * rank - 3 - layout->dim[a]);
    }
    side.shape.dim[inner] = layout->global.dim[inner] = layout->box.hi[inner] = 1;
    layout->box.lo[inner] = 0;
    return side;
}

static wf_status check_factors(const wf_var *a, const wf_var *b, const bool transposed[2])
{
    char left[WF_LAYOUT_TEXT], right[WF_LAYOUT_TEXT];
    const wf_var *const of[2] = {a, b};
    int64_t depth[2];
    WF_TRY(wf_function_check("matmul", a, WF_ANY_FUNCTION));
    WF_TRY(wf_function_check("matmul", b, WF_ANY_FUNCTION));
    WF_CHECK(a->tape == b->tape, WF_ERR_ARGUMENT, "matmul of variables of two tapes");
    WF_CHECK(a->value->dtype == b->value->dtype, WF_ERR_DTYPE, "matmul takes equal types, not %s and %s",
             wf_dtype_name(a->value->dtype), wf_dtype_name(b->value->dtype));
    WF_CHECK(a->value->shape.rank >= 2 && b->value->shape.rank >= 2, WF_ERR_SHAPE,
             "matmul takes shapes of rank 2 and up, not %s and %s", wf_shape_text(a->value->shape, left),
             wf_shape_text(b->value->shape, right));
    for (int i = 0; i < 2; i++) {
        const wf_tensor *v = of[i]->value;
        const int inner = v->shape.rank - 1 - (transposed[i] != (i == 1));
        depth[i] = v->shape.dim[inner];
        WF_CHECK(!wf_layout_is_sharded(&v->layout, inner), WF_ERR_SHAPE,
                 "matmul sums over dimension %d of its %s, which is sharded: %s; wf_redistribute it first", inner,
                 i == 0 ? "first factor" : "second factor", wf_layout_text(&v->layout, left));
    }
    WF_CHECK(depth[0] == depth[1], WF_ERR_SHAPE, "matmul of %s%s and %s%s sums over %lld and %lld elements",
             wf_shape_text(a->value->shape, left), transposed[0] ? " transposed" : "",
             wf_shape_text(b->value->shape, right), transposed[1] ? " transposed" : "", (long long)depth[0],
             (long long)depth[1]);
    return WF_OK;
}

static void describe_factor(product_state *s, const wf_tensor *x, int i)
{
    int64_t matrices = 1;
    const int lead = x->shape.rank - 2;
    for (int d = s->lead - 1; d >= 0; d--) {
        const int from = d - (s->lead - lead);
        const int64_t length = from < 0 ? 1 : x->shape.dim[from];
        s->step[i][d] = length == 1 && s->dim[d] != 1 ? 0 : matrices;
        s->repeats[i] |= s->step[i][d] == 0;
        matrices *= length;
    }
}

static product_state describe_product(const wf_tensor *a, const wf_tensor *b, const bool transposed[2],
                                      const wf_broadcast *to)
{
    product_state s = {.transposed = {transposed[0], transposed[1]},
                       .axes = {to->axes[0], to->axes[1]},
                       .m = to->shape.dim[to->shape.rank - 2],
                       .n = to->shape.dim[to->shape.rank - 1],
                       .k = a->shape.dim[a->shape.rank - (transposed[0] ? 2 : 1)],
                       .count = 1,
                       .lead = to->shape.rank - 2};
    for (int d = 0; d < s.lead; d++) {
        s.dim[d] = to->shape.dim[d];
        s.count *= s.dim[d];
    }
    if (b->shape.rank == 2 && !transposed[0]) {
        s.m *= s.count;
        s.count = 1;
        s.lead = 0;
        return s;
    }
    describe_factor(&s, a, 0);
    describe_factor(&s, b, 1);
    return s;
}

/* Which of a's or b's matrices product number i reads. */
static int64_t matrix_of(const product_state *s, int factor, int64_t i)
{
    int64_t at = 0;
    for (int d = s->lead - 1; d >= 0; d--) {
        at += i % s->dim[d] * s->step[factor][d];
        i /= s->dim[d];
    }
    return at;
}

/* Matrix number i of a dense tensor. */
static wf_array matrix_at(const wf_tensor *x, int64_t i, int64_t rows, int64_t columns)
{
    wf_array a = wf_tensor_array(x);
    a.shape = WF_SHAPE(rows, columns);
    a.order = WF_ROW_MAJOR;
    if (i > 0) {
        a.forms = NULL;
        a.data = (char *)a.data + i * rows * columns * (int64_t)wf_dtype_size(x->dtype);
    }
    return a;
}

static wf_array factor_at(const product_state *s, const wf_tensor *x, int factor, int64_t i)
{
    const int64_t rows = factor == 0 ? s->m : s->k, columns = factor == 0 ? s->k : s->n;
    const bool t = s->transposed[factor];
    return matrix_at(x, matrix_of(s, factor, i), t ? columns : rows, t ? rows : columns);
}

static wf_status multiply_all(const product_state *s, const wf_tensor *a, const wf_tensor *b, const wf_tensor *y)
{
    WF_NEED(a);
    WF_NEED(b);
    WF_NEED(y);
    for (int64_t i = 0; i < s->count; i++) {
        const wf_array left = factor_at(s, a, 0, i), right = factor_at(s, b, 1, i), to = matrix_at(y, i, s->m, s->n);
        WF_TRY(y->ctx->k->matmul(y->ctx, &(wf_matmul_args){.a = &left,
                                                           .b = &right,
                                                           .c = &to,
                                                           .a_transposed = s->transposed[0],
                                                           .b_transposed = s->transposed[1]}));
    }
    return WF_OK;
}

/* The gradient of a factor by one product: dy and the other factor, in the order and transposed so that the result is
 * the factor as it lies. */
static wf_matmul_args gradient_args(const product_state *s, int factor, const wf_array *dy, const wf_array *other)
{
    const bool own = s->transposed[factor], across = s->transposed[1 - factor];
    if (factor == 0)
        return own ? (wf_matmul_args){.a = other, .b = dy, .a_transposed = across, .b_transposed = true}
                   : (wf_matmul_args){.a = dy, .b = other, .b_transposed = !across};
    return own ? (wf_matmul_args){.a = dy, .b = other, .a_transposed = true, .b_transposed = across}
               : (wf_matmul_args){.a = other, .b = dy, .a_transposed = !across};
}

static wf_status factor_gradient(const wf_node *node, int factor, wf_tensor *dx, bool add)
{
    const product_state *s = node->state;
    const wf_tensor *dy = wf_node_dy(node), *other = wf_node_saved(node, 1 - factor);
    wf_tensor *up = wf_tensor_dense(dy, dy->dtype, WF_ROW_MAJOR);
    WF_NEED(up);
    wf_status status = WF_OK;
    /* What several products add to starts from 0. */
    const bool sums = s->repeats[factor] || s->count == 0;
    if (sums && !add)
        status = wf_tensor_fill(dx, 0);
    for (int64_t i = 0; i < s->count && status == WF_OK; i++) {
        const wf_array from = matrix_at(up, i, s->m, s->n), with = factor_at(s, other, 1 - factor, i);
        const wf_array to = factor_at(s, dx, factor, i);
        wf_matmul_args args = gradient_args(s, factor, &from, &with);
        args.c = &to;
        args.accumulate = add || sums;
        status = dy->ctx->k->matmul(dy->ctx, &args);
    }
    wf_tensor_free(up);
    return status;
}

static wf_status give_factor_gradient(wf_node *node, int factor)
{
    const product_state *s = node->state;
    const wf_tensor *x = node->in[factor]->value;
    bool add = false;
    if (s->axes[factor] == 0 && (x->order == WF_ROW_MAJOR || x->shape.rank < 3)) {
        wf_tensor *dx = wf_node_grad(node, factor, &add);
        WF_NEED(dx);
        return factor_gradient(node, factor, dx, add);
    }
    wf_tensor *dx = wf_tensor_new_step(x->ctx, x->dtype, x->shape, WF_ROW_MAJOR);
    WF_NEED(dx);
    wf_status status = factor_gradient(node, factor, dx, false);
    if (status == WF_OK && s->axes[factor] != 0 && wf_tensor_count(dx) > 0)
        status = wf_allreduce_raw(wf_mesh_comm_of(x->layout.mesh, s->axes[factor]), dx->data, dx->data,
                                  wf_tensor_count(dx), dx->dtype, WF_SUM);
    if (status == WF_OK)
        return wf_function_give(node, factor, dx);
    wf_tensor_free(dx);
    return status;
}

static wf_status matmul_backward(wf_node *node)
{
    for (int i = 0; i < 2; i++)
        if (wf_node_wants(node, i))
            WF_TRY(give_factor_gradient(node, i));
    return WF_OK;
}

static const wf_op matmul_op = {.name = "matmul", .backward = matmul_backward};

wf_var *wf_matmul(wf_var *a, wf_var *b, wf_matmul_opts opts)
{
    const bool transposed[2] = {opts.a_transposed, opts.b_transposed};
    wf_broadcast to;
    wf_comm *comm = NULL;
    if (!a || !b)
        return NULL;
    WF_TRY_NULL(wf_function_promote(&a, &b));
    WF_TRY_NULL(check_factors(a, b, transposed));
    const wf_tensor left = outer_side(a->value, transposed[0], true),
                    right = outer_side(b->value, transposed[1], false);
    WF_TRY_NULL(wf_broadcast_of("matmul", &left, &right, &to));
    if ((to.axes[0] | to.axes[1]) != 0)
        WF_NEED_NULL(comm = wf_mesh_comm_of(to.layout.mesh, to.axes[0] | to.axes[1]));
    const product_state state = describe_product(a->value, b->value, transposed, &to);
    wf_tensor *av = wf_tensor_dense(a->value, a->value->dtype, WF_ROW_MAJOR);
    wf_tensor *bv = wf_tensor_dense(b->value, b->value->dtype, WF_ROW_MAJOR);
    wf_tensor *y = wf_tensor_new_step(a->value->ctx, a->value->dtype, to.shape, WF_ROW_MAJOR);
    wf_status status = multiply_all(&state, av, bv, y);
    if (status == WF_OK)
        status = wf_tensor_set_layout(y, to.layout);
    wf_var *out = wf_function_finish(status, a->tape,
                                     &(wf_node_spec){.op = &matmul_op,
                                                     .n_in = 2,
                                                     .in = (wf_var *const[]){a, b},
                                                     .n_saved = 2,
                                                     .saved = (wf_tensor *const[]){av, bv},
                                                     .state = &state,
                                                     .state_bytes = sizeof state,
                                                     .comm = comm},
                                     y);
    wf_tensor_free(av);
    wf_tensor_free(bv);
    return out;
}
