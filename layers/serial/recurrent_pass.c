/* One level of a recurrent layer in one direction, as a node. The products with x are one for all steps; a step is a
 * product with the state before it and one kernel (core/gates_author.h). Arrays have time first, so what belongs to a
 * step is contiguous, and the gradients of the weights are one product each. */
#include "layers/serial/recurrent_impl.h"

#include "layers/functions/functions_impl.h"

enum { INPUT_X, INPUT_W, INPUT_U, INPUT_B, INPUT_UB, INPUT_H, INPUT_C, INPUTS };
/* States are those before the first step and after each: T + 1 rows, in the order of time. */
enum { SAVED_X, SAVED_W, SAVED_U, SAVED_STATES, SAVED_GATES, SAVED_KEPT, SAVED_LENGTHS, SAVED };

static wf_dtype wide_type(wf_dtype dtype)
{
    return dtype == WF_F64 ? WF_F64 : WF_F32;
}

/* Rows [lo, hi) of the first dimension, all rows of the second, as a matrix: T and N together are the rows of one
 * product. */
static wf_array steps_of(const wf_tensor *t, int64_t lo, int64_t hi)
{
    wf_array a = wf_tensor_array(t);
    const int64_t rows = t->shape.dim[1], columns = t->shape.dim[2];
    a.data = a.data ? (char *)a.data + (size_t)(lo * rows * columns) * wf_dtype_size(a.dtype) : NULL;
    a.shape = WF_SHAPE((hi - lo) * rows, columns);
    a.order = WF_ROW_MAJOR;
    /* Prepared forms of a tensor do not belong to a part of it. */
    a.forms = NULL;
    return a;
}

static wf_status copy_step(wf_ctx *ctx, const wf_array *from, const wf_array *to)
{
    const wf_strided a = wf_array_strided(from), b = wf_array_strided(to);
    return ctx->k->copy(ctx, &a, &b, false);
}

/* What the two passes have in common: sizes, and where states are. */
typedef struct pass {
    wf_ctx *ctx;
    const wf_recurrent_pass *of;
    int64_t steps, samples, size, blocks;
    /* Row t of `states` is what comes before step t in time, row t + 1 what comes after; running backward the two
     * change places. */
    int behind; /* place of the state before a step, next to that of the step: 1 if time runs backward */
    wf_array lengths;
    bool reused; /* parameters serve more products than this pass has */
} pass;

static pass describe_pass(const wf_recurrent_pass *of, const wf_tensor *states, const wf_tensor *lengths)
{
    const wf_shape shape = states->shape;
    return (pass){.ctx = states->ctx,
                  .of = of,
                  .steps = shape.dim[0] - 1,
                  .samples = shape.dim[1],
                  .size = shape.dim[2],
                  .blocks = wf_cell_gates(of->cell),
                  .behind = of->backward ? 1 : 0,
                  .lengths = wf_tensor_array(lengths)};
}

/* The place in time of step i of the pass. */
static int64_t step_time(const pass *p, int64_t i)
{
    return p->of->backward ? p->steps - 1 - i : i;
}

/* --- forward ------------------------------------------------------------------------------------------------------ */

/* The tensors that forward makes. */
typedef struct made {
    wf_tensor *x, *states, *gates, *kept, *y;
    /* f32 gates take the sums and are written over by their own values: each element is read before it is written. */
    wf_tensor *input, *recurrent; /* products; input is gates where types are equal */
} made;

static void free_made(made *m)
{
    if (m->input != m->gates)
        wf_tensor_free(m->input);
    wf_tensor_free(m->recurrent);
    wf_tensor_free(m->x);
    wf_tensor_free(m->states);
    wf_tensor_free(m->gates);
    wf_tensor_free(m->kept);
}

static bool make_tensors(const wf_recurrent_pass *of, const wf_var *x, int64_t size, made *m)
{
    wf_ctx *const ctx = x->value->ctx;
    const wf_dtype dtype = x->value->dtype, wide = wide_type(dtype);
    const int64_t t = x->value->shape.dim[0], n = x->value->shape.dim[1], width = wf_cell_gates(of->cell) * size;
    const bool lstm = of->cell == WF_CELL_LSTM;
    *m = (made){.x = wf_tensor_dense(x->value, dtype, WF_ROW_MAJOR)};
    m->states = wf_tensor_new_step(ctx, dtype, WF_SHAPE(t + 1, n, size), WF_ROW_MAJOR);
    m->gates = wf_tensor_new_step(ctx, dtype, WF_SHAPE(t, n, width), WF_ROW_MAJOR);
    /* An LSTM keeps its memory cells, T + 1 of them with the first; a GRU one product a step. */
    m->kept = wf_tensor_new_step(ctx, wide, WF_SHAPE(lstm ? t + 1 : t, n, size), WF_ROW_MAJOR);
    m->recurrent = wf_tensor_new_step(ctx, wide, WF_SHAPE(1, n, width), WF_ROW_MAJOR);
    m->input = wide == dtype ? m->gates : wf_tensor_new_step(ctx, wide, WF_SHAPE(t, n, width), WF_ROW_MAJOR);
    /* Final states lie behind the outputs, as rows of the same tensor. */
    const int64_t rows = of->states ? t + (lstm ? 2 : 1) : t;
    m->y = wf_output("recurrent layer", x, WF_SHAPE(rows, n, size), WF_ROW_MAJOR, (int[]){-1, 1, -1});
    return m->x && m->states && m->gates && m->kept && m->recurrent && m->input && m->y;
}

/* The state of row `row` of `states`: what `from` has, or 0. Running backward, the first state is the last row. */
static wf_status begin_state(const pass *p, const wf_tensor *states, const wf_var *from)
{
    const int64_t row = p->of->backward ? p->steps : 0;
    const wf_array to = steps_of(states, row, row + 1);
    if (!from)
        return p->ctx->k->fill(p->ctx, &to, 0);
    const wf_array first = steps_of(from->value, 0, 1);
    return copy_step(p->ctx, &first, &to);
}

/* One step: the product with the weights of the state, then one kernel for all the rest. The weights serve every step,
 * so it pays to bring them into a form for products. */
static wf_status compute_step(const pass *p, const made *m, const wf_recurrent_params *w, int64_t time)
{
    const int before = p->behind, after = 1 - p->behind;
    const bool lstm = p->of->cell == WF_CELL_LSTM;
    const wf_array u = wf_tensor_array(w->u->used), bias = wf_tensor_array(w->b ? w->b->value : NULL);
    const wf_array other = wf_tensor_array(w->ub ? w->ub->value : NULL), product = steps_of(m->recurrent, 0, 1);
    const wf_array earlier = steps_of(m->states, time + before, time + before + 1);
    const wf_array h = steps_of(m->states, time + after, time + after + 1);
    const wf_array input = steps_of(m->input, time, time + 1), gates = steps_of(m->gates, time, time + 1);
    const int64_t at = lstm ? time + after : time;
    const wf_array kept = steps_of(m->kept, at, at + 1), y = steps_of(m->y, time, time + 1);
    const wf_array cell = lstm ? steps_of(m->kept, time + before, time + before + 1) : (wf_array){0};
    WF_TRY(p->ctx->k->matmul(
        p->ctx,
        &(wf_matmul_args){
            .a = &earlier, .b = &u, .b_transposed = true, .b_reused = p->steps > 1 || p->reused, .c = &product}));
    return p->ctx->k->gates_forward(p->ctx, &(wf_gates_args){.cell = p->of->cell,
                                                             .step = time,
                                                             .lengths = p->lengths.data ? &p->lengths : NULL,
                                                             .input = &input,
                                                             .recurrent = &product,
                                                             .bias = w->b ? &bias : NULL,
                                                             .recurrent_bias = w->ub ? &other : NULL,
                                                             .gates = &gates,
                                                             .kept = &kept,
                                                             .cell_before = lstm ? &cell : NULL,
                                                             .before = &earlier,
                                                             .h = &h,
                                                             .y = &y});
}

/* Copies the last states behind the outputs. */
static wf_status give_states(const pass *p, const made *m)
{
    const int64_t row = p->of->backward ? 0 : p->steps;
    const wf_array h = steps_of(m->states, row, row + 1), to = steps_of(m->y, p->steps, p->steps + 1);
    WF_TRY(copy_step(p->ctx, &h, &to));
    if (p->of->cell != WF_CELL_LSTM)
        return WF_OK;
    const wf_array c = steps_of(m->kept, row, row + 1), next = steps_of(m->y, p->steps + 1, p->steps + 2);
    return copy_step(p->ctx, &c, &next);
}

static wf_status run_forward(const pass *p, const made *m, const wf_recurrent_params *w)
{
    const wf_array x = steps_of(m->x, 0, p->steps), weights = wf_tensor_array(w->w->used);
    const wf_array products = steps_of(m->input, 0, p->steps);
    /* All steps in one product: it is as large as it can be, and the loop over steps is left with the small ones. */
    WF_TRY(p->ctx->k->matmul(
        p->ctx,
        &(wf_matmul_args){.a = &x, .b = &weights, .b_transposed = true, .b_reused = p->reused, .c = &products}));
    WF_TRY(begin_state(p, m->states, w->h));
    if (p->of->cell == WF_CELL_LSTM)
        WF_TRY(begin_state(p, m->kept, w->c));
    for (int64_t i = 0; i < p->steps; i++)
        WF_TRY(compute_step(p, m, w, step_time(p, i)));
    return p->of->states ? give_states(p, m) : WF_OK;
}

/* --- backward ----------------------------------------------------------------------------------------------------- */

/* Gradients of the gates of all steps, of the recurrent products (those of the gates, for an LSTM), and of the states
 * before the step at hand. h and c are wide, since every step adds to them. */
typedef struct gradients {
    wf_tensor *gates, *recurrent, *h, *c;
} gradients;

static void free_gradients(gradients *g)
{
    if (g->recurrent != g->gates)
        wf_tensor_free(g->recurrent);
    wf_tensor_free(g->gates);
    wf_tensor_free(g->h);
    wf_tensor_free(g->c);
}

static bool make_gradients(const pass *p, const wf_tensor *gates, gradients *g)
{
    const wf_dtype wide = wide_type(gates->dtype);
    const wf_shape state = WF_SHAPE(1, p->samples, p->size);
    /* In an LSTM both products are added under the same gate, so one gradient serves both. */
    const bool lstm = p->of->cell == WF_CELL_LSTM;
    *g = (gradients){.gates = wf_tensor_new_step(p->ctx, gates->dtype, gates->shape, WF_ROW_MAJOR)};
    g->recurrent = lstm ? g->gates : wf_tensor_new_step(p->ctx, gates->dtype, gates->shape, WF_ROW_MAJOR);
    g->h = wf_tensor_new_step(p->ctx, wide, state, WF_ROW_MAJOR);
    g->c = lstm ? wf_tensor_new_step(p->ctx, wide, state, WF_ROW_MAJOR) : NULL;
    return g->gates && g->recurrent && g->h && (g->c || !lstm);
}

/* The gradients of the last states, from the rows behind the outputs. */
static wf_status begin_gradients(const pass *p, const wf_tensor *dy, const gradients *g)
{
    wf_tensor *const of[] = {g->h, g->c};
    for (int i = 0; i < 2; i++) {
        if (!of[i])
            continue;
        const wf_array to = steps_of(of[i], 0, 1);
        /* Without final states none can have a gradient, and the rows are not there. */
        if (!p->of->states) {
            WF_TRY(p->ctx->k->fill(p->ctx, &to, 0));
            continue;
        }
        const wf_array from = steps_of(dy, p->steps + i, p->steps + i + 1);
        WF_TRY(copy_step(p->ctx, &from, &to));
    }
    return WF_OK;
}

/* dh and dc hold the gradients of the states after the step, and become those of the states before it. */
static wf_status step_back(const pass *p, const wf_node *node, const wf_tensor *dy, const gradients *g, int64_t time)
{
    const wf_tensor *const states = wf_node_saved(node, SAVED_STATES), *const kept = wf_node_saved(node, SAVED_KEPT);
    const int before = p->behind, after = 1 - p->behind;
    const bool lstm = p->of->cell == WF_CELL_LSTM;
    const int64_t at = lstm ? time + after : time;
    const wf_array gates = steps_of(wf_node_saved(node, SAVED_GATES), time, time + 1);
    const wf_array own = steps_of(kept, at, at + 1), up = steps_of(dy, time, time + 1);
    const wf_array cell = lstm ? steps_of(kept, time + before, time + before + 1) : (wf_array){0};
    const wf_array earlier = steps_of(states, time + before, time + before + 1);
    const wf_array dh = steps_of(g->h, 0, 1), dc = lstm ? steps_of(g->c, 0, 1) : (wf_array){0};
    const wf_array dinput = steps_of(g->gates, time, time + 1), drecurrent = steps_of(g->recurrent, time, time + 1);
    return p->ctx->k->gates_backward(p->ctx, &(wf_gates_args){.cell = p->of->cell,
                                                              .step = time,
                                                              .lengths = p->lengths.data ? &p->lengths : NULL,
                                                              .gates = &gates,
                                                              .kept = &own,
                                                              .cell_before = lstm ? &cell : NULL,
                                                              .before = &earlier,
                                                              .dy = &up,
                                                              .dh = &dh,
                                                              .dcell = lstm ? &dc : NULL,
                                                              .dinput = &dinput,
                                                              .drecurrent = lstm ? NULL : &drecurrent});
}

/* All steps, the last one first. The gradient of the initial h is left in g->h only if it is wanted: it takes a product
 * more. */
static wf_status run_steps_back(const pass *p, const wf_node *node, const wf_tensor *dy, const gradients *g)
{
    const wf_array u = wf_tensor_array(wf_node_saved(node, SAVED_U)), dh = steps_of(g->h, 0, 1);
    const bool first = node->in[INPUT_H] && wf_node_wants(node, INPUT_H);
    WF_TRY(begin_gradients(p, dy, g));
    for (int64_t i = p->steps - 1; i >= 0; i--) {
        const int64_t time = step_time(p, i);
        WF_TRY(step_back(p, node, dy, g, time));
        /* The last product would only serve an initial state without a gradient. */
        if (i == 0 && !first)
            break;
        const wf_array drecurrent = steps_of(g->recurrent, time, time + 1);
        WF_TRY(p->ctx->k->matmul(
            p->ctx,
            &(wf_matmul_args){
                .a = &drecurrent, .b = &u, .b_reused = p->steps > 1 || p->reused, .c = &dh, .accumulate = true}));
    }
    return WF_OK;
}

/* The gradient of weights, of d^T x; of a bias, of the sum of d's rows (x NULL). One product over all steps: sums in a
 * fixed order, and only now, when all d are known. */
static wf_status give_weights(const pass *p, wf_node *node, int input, const wf_array *d, const wf_array *x)
{
    bool add = false;
    if (!node->in[input] || !wf_node_wants(node, input))
        return WF_OK;
    wf_tensor *const grad = wf_node_grad(node, input, &add);
    WF_NEED(grad);
    const wf_array to = wf_tensor_array(grad);
    if (!x)
        return p->ctx->k->bias_backward(p->ctx, d, &to, add);
    return p->ctx->k->matmul(p->ctx,
                             &(wf_matmul_args){.a = d, .a_transposed = true, .b = x, .c = &to, .accumulate = add});
}

static wf_status give_input(const pass *p, wf_node *node, const wf_array *d)
{
    if (!wf_node_wants(node, INPUT_X))
        return WF_OK;
    const wf_tensor *const x = wf_node_saved(node, SAVED_X);
    wf_tensor *dx = wf_tensor_new_step(p->ctx, x->dtype, x->shape, WF_ROW_MAJOR);
    WF_NEED(dx);
    const wf_array w = wf_tensor_array(wf_node_saved(node, SAVED_W)), to = steps_of(dx, 0, p->steps);
    const wf_status status =
        p->ctx->k->matmul(p->ctx, &(wf_matmul_args){.a = d, .b = &w, .b_reused = p->reused, .c = &to});
    if (status == WF_OK)
        return wf_function_give(node, INPUT_X, dx);
    wf_tensor_free(dx);
    return status;
}

static wf_status give_state(wf_node *node, int input, const wf_tensor *d)
{
    if (!node->in[input] || !wf_node_wants(node, input))
        return WF_OK;
    return wf_function_give(node, input, wf_tensor_dense(d, node->in[input]->value->dtype, WF_ROW_MAJOR));
}

static wf_status give_gradients(const pass *p, wf_node *node, const gradients *g)
{
    const wf_array d = steps_of(g->gates, 0, p->steps), r = steps_of(g->recurrent, 0, p->steps);
    const wf_array x = steps_of(wf_node_saved(node, SAVED_X), 0, p->steps);
    /* The states before each step are T neighbouring rows, whichever way time runs. */
    const wf_array before = steps_of(wf_node_saved(node, SAVED_STATES), p->behind, p->behind + p->steps);
    WF_TRY(give_weights(p, node, INPUT_W, &d, &x));
    WF_TRY(give_weights(p, node, INPUT_U, &r, &before));
    WF_TRY(give_weights(p, node, INPUT_B, &d, NULL));
    WF_TRY(give_weights(p, node, INPUT_UB, &r, NULL));
    WF_TRY(give_state(node, INPUT_H, g->h));
    if (g->c)
        WF_TRY(give_state(node, INPUT_C, g->c));
    return give_input(p, node, &d);
}

static wf_status backward(wf_node *node)
{
    pass p = describe_pass(node->state, wf_node_saved(node, SAVED_STATES), wf_node_saved(node, SAVED_LENGTHS));
    p.reused = wf_tape_reuses(node->tape);
    gradients g;
    wf_tensor *dy = wf_tensor_dense(wf_node_dy(node), wf_node_dy(node)->dtype, WF_ROW_MAJOR);
    wf_status status = dy ? WF_OK : wf_error_code();
    const bool made_all = make_gradients(&p, wf_node_saved(node, SAVED_GATES), &g);
    if (status == WF_OK && !made_all)
        status = wf_error_code();
    if (status == WF_OK)
        status = run_steps_back(&p, node, dy, &g);
    if (status == WF_OK)
        status = give_gradients(&p, node, &g);
    free_gradients(&g);
    wf_tensor_free(dy);
    return status;
}

static const wf_op recurrent_op = {.name = "recurrent", .backward = backward};

/* The caller owns the inputs; what the pass made is saved by the node or freed here. */
wf_var *wf_recurrent_run(const wf_recurrent_pass *of, wf_var *x, const wf_recurrent_params *w, const wf_tensor *lengths)
{
    made m;
    const bool complete = make_tensors(of, x, w->u->value->shape.dim[1], &m);
    wf_status status = complete ? WF_OK : wf_error_code();
    if (complete) {
        pass p = describe_pass(of, m.states, lengths);
        p.reused = wf_tape_reuses(x->tape);
        status = run_forward(&p, &m, w);
    }
    wf_var *y = wf_function_finish(status, x->tape,
                                   &(wf_node_spec){.op = &recurrent_op,
                                                   .n_in = INPUTS,
                                                   .in = (wf_var *const[]){x, w->w, w->u, w->b, w->ub, w->h, w->c},
                                                   .n_saved = SAVED,
                                                   .saved = (wf_tensor *const[]){m.x, w->w->used, w->u->used, m.states,
                                                                                 m.gates, m.kept, (wf_tensor *)lengths},
                                                   .state = of,
                                                   .state_bytes = sizeof *of},
                                   m.y);
    free_made(&m);
    return y;
}
