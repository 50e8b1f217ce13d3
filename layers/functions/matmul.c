/* Products of matrices, with any leading dimensions, which broadcast as in arithmetic. Where b is one matrix for all of
 * a, the leading dimensions of a are rows of one product. Layouts: leading dimensions, rows of a and columns of b may
 * be cut; the gradient of what is replicated over an axis that cuts the result is summed over it in backward. */
#include "comm/comm_author.h"
#include "comm/mesh.h"
#include "layers/functions.h"
#include "layers/functions/functions_impl.h"

#include <string.h>

typedef struct product_state {
    bool transposed[2];
    unsigned axes[2]; /* of the mesh: over which the gradient of a factor is summed */
    wf_product_stack stack;
} product_state;

/* A factor that is transposed is never copied: shapes and layouts are turned around, and the slot reads it the other
 * way. */
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
        /* An axis that cut one of the last two dimensions cuts the other one now. */
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

/* How many matrices further the factor of the next product lies, for each leading dimension of the result; 0 where the
 * factor repeats. */
static void describe_factor(wf_product_stack *stack, const wf_shape *shape, wf_stack_factor factor)
{
    int64_t matrices = 1;
    const int lead = shape->rank - 2;
    for (int d = stack->rank - 1; d >= 0; d--) {
        const int from = d - (stack->rank - lead);
        const int64_t length = from < 0 ? 1 : shape->dim[from];
        stack->step[factor][d] = length == 1 && stack->dim[d] != 1 ? 0 : matrices;
        matrices *= length;
    }
}

static product_state describe_product(const wf_tensor *a, const wf_tensor *b, const bool transposed[2],
                                      const wf_broadcast *to)
{
    product_state s = {.transposed = {transposed[0], transposed[1]},
                       .axes = {to->axes[0], to->axes[1]},
                       .stack = {.m = to->shape.dim[to->shape.rank - 2],
                                 .n = to->shape.dim[to->shape.rank - 1],
                                 .k = a->shape.dim[a->shape.rank - (transposed[0] ? 2 : 1)],
                                 .rank = to->shape.rank - 2}};
    wf_product_stack *const stack = &s.stack;
    memcpy(stack->dim, to->shape.dim, (size_t)stack->rank * sizeof *stack->dim);
    const int64_t count = wf_stack_count(stack);
    /* One b for all: the matrices of a lie one after the other, so they are one matrix of more rows. Of a that is
     * transposed they are not. */
    if (count == 1 || (b->shape.rank == 2 && !transposed[0])) {
        stack->m *= count;
        stack->rank = 0;
        return s;
    }
    describe_factor(stack, &a->shape, WF_STACK_A);
    describe_factor(stack, &b->shape, WF_STACK_B);
    describe_factor(stack, &to->shape, WF_STACK_C);
    return s;
}

static wf_array as_matrix(const wf_array *x, int64_t rows, int64_t columns)
{
    wf_array matrix = *x;
    matrix.shape = WF_SHAPE(rows, columns);
    matrix.order = WF_ROW_MAJOR;
    return matrix;
}

/* A single product goes to the slot that knows packed factors. */
static wf_status multiply(wf_ctx *ctx, const wf_matmul_stack_args *args)
{
    const wf_product_stack *const s = args->stack;
    const bool ta = args->a_transposed, tb = args->b_transposed;
    if (s->rank > 0)
        return ctx->k->matmul_stack(ctx, args);
    const wf_array a = as_matrix(args->a, ta ? s->k : s->m, ta ? s->m : s->k);
    const wf_array b = as_matrix(args->b, tb ? s->n : s->k, tb ? s->k : s->n), c = as_matrix(args->c, s->m, s->n);
    return ctx->k->matmul(
        ctx, &(wf_matmul_args){
                 .a = &a, .b = &b, .c = &c, .a_transposed = ta, .b_transposed = tb, .accumulate = args->accumulate});
}

static wf_status multiply_all(const product_state *s, const wf_tensor *a, const wf_tensor *b, const wf_tensor *y)
{
    WF_NEED(a);
    WF_NEED(b);
    WF_NEED(y);
    const wf_array left = wf_tensor_array(a), right = wf_tensor_array(b), to = wf_tensor_array(y);
    return multiply(y->ctx, &(wf_matmul_stack_args){.stack = &s->stack,
                                                    .a = &left,
                                                    .b = &right,
                                                    .c = &to,
                                                    .a_transposed = s->transposed[0],
                                                    .b_transposed = s->transposed[1]});
}

/* The stack of a factor's gradient: products of dy and the other factor, in the order that gives the factor as it
 * lies. Where the factor repeats its steps are 0, so that the products are summed. */
static wf_product_stack gradient_stack(const product_state *s, wf_stack_factor factor, bool dy_first)
{
    const wf_product_stack *const of = &s->stack;
    const bool own = s->transposed[factor];
    wf_product_stack to = *of;
    to.k = factor == WF_STACK_A ? of->n : of->m;
    const int64_t rows = factor == WF_STACK_A ? of->m : of->k, columns = factor == WF_STACK_A ? of->k : of->n;
    to.m = own ? columns : rows;
    to.n = own ? rows : columns;
    memcpy(to.step[WF_STACK_C], of->step[factor], sizeof *to.step);
    memcpy(to.step[dy_first ? WF_STACK_A : WF_STACK_B], of->step[WF_STACK_C], sizeof *to.step);
    memcpy(to.step[dy_first ? WF_STACK_B : WF_STACK_A], of->step[1 - factor], sizeof *to.step);
    return to;
}

/* For c = a b: da = dc b', db = a' dc. If a factor is transposed, its gradient is the transpose of this, which is
 * computed as such by changing the places of dc and the other factor. `across`: that one is transposed. */
static wf_status factor_gradient(const wf_node *node, int factor, wf_tensor *dx, bool add)
{
    const product_state *s = node->state;
    const bool own = s->transposed[factor], across = s->transposed[1 - factor], dy_first = own == (factor == 1);
    const wf_product_stack stack = gradient_stack(s, (wf_stack_factor)factor, dy_first);
    const wf_tensor *dy = wf_node_dy(node);
    wf_tensor *up = wf_tensor_dense(dy, dy->dtype, WF_ROW_MAJOR);
    WF_NEED(up);
    const wf_array from = wf_tensor_array(up), with = wf_tensor_array(wf_node_saved(node, 1 - factor)),
                   to = wf_tensor_array(dx);
    wf_matmul_stack_args args = {.stack = &stack, .c = &to, .accumulate = add};
    args.a = dy_first ? &from : &with;
    args.b = dy_first ? &with : &from;
    args.a_transposed = dy_first ? factor == 1 : (factor == 0 ? across : !across);
    args.b_transposed = dy_first ? (factor == 0 ? !across : across) : factor == 0;
    const wf_status status = multiply(dy->ctx, &args);
    wf_tensor_free(up);
    return status;
}

/* For a factor that is whole on every rank of an axis that cuts the result, each rank has the summand of its gradient
 * that comes from this rank's part of the result. These are summed, so backward is collective over that axis. */
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
        status = wf_allreduce_raw(wf_mesh_comm(x->layout.mesh, s->axes[factor]), dx->data, dx->data,
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
        WF_NEED_NULL(comm = wf_mesh_comm(to.layout.mesh, to.axes[0] | to.axes[1]));
    const product_state state = describe_product(a->value, b->value, transposed, &to);
    /* Row-major, as the slots take them; saved so, too, that backward converts nothing. */
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
