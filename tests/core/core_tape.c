/* The tape with two small operations: order of completion, pruning, accumulation, releases, errors, steady memory. */
#include "core/tape_author.h"
#include "tests/test.h"

#include <math.h>
#include <string.h>

static wf_ctx *ctx;
static wf_tape *tape;
static int backwards;

/* y = a b, all of one shape. */
static wf_status mul_backward(wf_node *node)
{
    const wf_array dy = wf_tensor_array(wf_node_dy(node));
    backwards++;
    for (int i = 0; i < 2; i++) {
        if (!wf_node_wants(node, i))
            continue;
        bool accumulate;
        wf_tensor *dx = wf_node_grad(node, i, &accumulate);
        WF_NEED(dx);
        const wf_array other = wf_tensor_array(wf_node_saved(node, 1 - i)), out = wf_tensor_array(dx);
        const wf_binary_args args = {
            .op = WF_BINARY_MUL, .alpha = 1, .a = &dy, .beta = 1, .b = &other, .y = &out, .accumulate = accumulate};
        WF_TRY(ctx->k->binary(ctx, &args));
    }
    return WF_OK;
}

static const wf_op mul_op = {"mul", mul_backward, false};

static wf_var *mul(wf_var *a, wf_var *b)
{
    if (!a || !b)
        return NULL;
    wf_tensor *y = wf_tensor_new_like(a->value);
    const wf_array in[2] = {wf_tensor_array(a->value), wf_tensor_array(b->value)}, out = wf_tensor_array(y);
    WF_TRY_NULL(ctx->k->binary(
        ctx, &(wf_binary_args){.op = WF_BINARY_MUL, .alpha = 1, .a = &in[0], .beta = 1, .b = &in[1], .y = &out}));
    return wf_tape_record(tape,
                          &(wf_node_spec){.op = &mul_op,
                                          .n_in = 2,
                                          .in = (wf_var *[]){a, b},
                                          .n_saved = 2,
                                          .saved = (wf_tensor *[]){a->value, b->value}},
                          y);
}

/* y = a + b, passing dy on without a copy. */
static wf_status add_backward(wf_node *node)
{
    backwards++;
    for (int i = 0; i < 2; i++)
        WF_TRY(wf_node_give(node, i, wf_tensor_alias(wf_node_dy(node)), true));
    return WF_OK;
}

static const wf_op add_op = {"add", add_backward, false}, pair_op = {"pair", add_backward, true};

static wf_var *add_as(const wf_op *op, wf_var *a, wf_var *b)
{
    if (!a || !b)
        return NULL;
    wf_tensor *y = wf_tensor_new_like(a->value);
    const wf_array in[2] = {wf_tensor_array(a->value), wf_tensor_array(b->value)}, out = wf_tensor_array(y);
    WF_TRY_NULL(ctx->k->binary(
        ctx, &(wf_binary_args){.op = WF_BINARY_LINEAR, .alpha = 1, .a = &in[0], .beta = 1, .b = &in[1], .y = &out}));
    return wf_tape_record(tape, &(wf_node_spec){.op = op, .n_in = 2, .in = (wf_var *[]){a, b}}, y);
}

static wf_var *add(wf_var *a, wf_var *b)
{
    return add_as(&add_op, a, b);
}

static const char *path_of(void *owner, uint64_t *stream)
{
    if (stream)
        *stream = 1;
    (void)owner;
    return "";
}

static wf_param *scalar(const char *name, double value)
{
    wf_param *p = wf_param_new(
        ctx, name, (wf_param_opts){.dtype = WF_F64, .shape = WF_SHAPE(1), .init = {WF_INIT_CONSTANT, value, 0}});
    p->path_of = path_of;
    return p;
}

static wf_param *p, *q, *r;

static wf_var *use(wf_param *param)
{
    return wf_param_var(tape, param);
}

static double grad(wf_param *param)
{
    return wf_tensor_item(wf_param_grad(param));
}

static void chain(void)
{
    /* f = p^2 q + p: f' = 2 p q + 1, p^2; the parameter is used three times. */
    wf_var *square = mul(use(p), use(p)), *cubic = mul(square, use(q));
    wf_var *f = add(cubic, use(p));
    WF_EXPECT(fabs(wf_item(f) - (4 * 3 + 2)) < 1e-12, "f = %g", wf_item(f));
    WF_EXPECT_OK(wf_backward(f));
    WF_EXPECT(grad(p) == 2 * 2 * 3 + 1 && grad(q) == 4, "%g %g", grad(p), grad(q));
    WF_EXPECT_ERROR(WF_ERR_STATE, wf_backward(f));
    WF_EXPECT_OK(wf_tape_reset(tape));
    /* Gradients are set, not added to those of the last step. */
    WF_EXPECT_OK(wf_backward(mul(use(p), use(q))));
    WF_EXPECT(grad(p) == 3 && grad(q) == 2, "%g %g", grad(p), grad(q));
    WF_EXPECT_OK(wf_tape_reset(tape));
}

static void leaves(void)
{
    wf_tensor *x = wf_tensor_from_host(ctx, WF_F64, WF_SHAPE(1), (double[]){5});
    wf_var *leaf = wf_leaf(tape, x), *input = wf_input(tape, x);
    wf_var *f = add(mul(leaf, leaf), input);
    WF_EXPECT_OK(wf_backward(f));
    WF_EXPECT(wf_tensor_item(wf_grad(leaf)) == 10 && wf_grad(input) == NULL, "%g", wf_tensor_item(wf_grad(leaf)));
    WF_EXPECT_ERROR(WF_ERR_STATE, wf_backward(add(input, input)));
    WF_EXPECT_OK(wf_tape_reset(tape));
    WF_EXPECT_OK(wf_backward_from(mul(wf_leaf(tape, x), input = wf_input(tape, x)), x));
    WF_EXPECT_OK(wf_tape_reset(tape));
    wf_tensor_free(x);
}

static char seen[64];

static wf_status plan(void *user, int64_t n, wf_param *const *order)
{
    (void)user;
    for (int64_t i = 0; i < n; i++)
        strcat(seen, wf_param_name(order[i]));
    strcat(seen, ":");
    return WF_OK;
}

static wf_status ready(void *user, wf_param *param)
{
    (void)user;
    strcat(seen, wf_param_name(param));
    return WF_OK;
}

static void order_and_pruning(void)
{
    /* p is used first and last: its gradient is complete last. */
    wf_var *f = mul(mul(mul(use(p), use(q)), use(r)), use(p));
    seen[0] = '\0';
    wf_backward_opts opts = {.plan = plan, .ready = ready};
    WF_EXPECT_OK(wf_backward_run(f, NULL, &opts));
    WF_EXPECT(strcmp(seen, "rqp:rqp") == 0, "%s", seen);
    WF_EXPECT_OK(wf_tape_reset(tape));
    /* Towards q alone: p's gradient and the nodes that lead only to p stay as they are. */
    WF_EXPECT_OK(wf_tensor_fill(wf_param_grad(p), 77));
    wf_var *lone = mul(use(p), use(p));
    f = mul(lone, use(q));
    seen[0] = '\0';
    backwards = 0;
    opts = (wf_backward_opts){.plan = plan, .ready = ready, .n_params = 1, .params = (wf_param *[]){q}, .seed = 2};
    WF_EXPECT_OK(wf_backward_run(f, NULL, &opts));
    WF_EXPECT(strcmp(seen, "q:q") == 0 && backwards == 1, "%s, %d nodes", seen, backwards);
    WF_EXPECT(grad(p) == 77 && grad(q) == 8, "%g %g", grad(p), grad(q));
    WF_EXPECT_OK(wf_tape_reset(tape));
}

static void always(void)
{
    /* A point-to-point node runs with zeros although the loss does not depend on it. */
    wf_var *aside = add_as(&pair_op, use(r), use(r));
    wf_var *f = mul(use(p), use(q));
    (void)aside;
    backwards = 0;
    WF_EXPECT_OK(wf_backward(f));
    WF_EXPECT(backwards == 2 && grad(r) == 0, "%d nodes, %g", backwards, grad(r));
    WF_EXPECT_OK(wf_tape_reset(tape));
}

static void changed_parameter(void)
{
    wf_var *f = mul(use(p), use(q));
    WF_EXPECT_OK(wf_tensor_fill(wf_param_value(p), 2));
    WF_EXPECT(wf_backward(f) == WF_ERR_STATE, "a changed parameter");
    WF_EXPECT(strstr(wf_error_message(), "mul") != NULL, "%s", wf_error_message());
    WF_EXPECT_OK(wf_tape_reset(tape));
}

static void not_trainable(void)
{
    WF_EXPECT_OK(wf_param_set_trainable(q, false));
    WF_EXPECT_OK(wf_tensor_fill(wf_param_grad(q), 5));
    WF_EXPECT_OK(wf_backward(mul(use(p), use(q))));
    WF_EXPECT(grad(p) == 3 && grad(q) == 5, "%g %g", grad(p), grad(q));
    WF_EXPECT_OK(wf_param_set_trainable(q, true));
    WF_EXPECT_OK(wf_tape_reset(tape));
}

static void evaluation(void)
{
    WF_EXPECT_OK(wf_tape_set_mode(tape, WF_EVAL));
    WF_EXPECT_ERROR(WF_ERR_STATE, wf_backward(mul(use(p), use(q))));
    WF_EXPECT_OK(wf_tape_set_mode(tape, WF_TRAIN));
    WF_EXPECT_OK(wf_tape_reset(tape));
}

static void held_tensors(void)
{
    wf_var *f = mul(use(p), use(q));
    wf_tensor *stray = wf_tensor_alias(wf_value(f));
    WF_EXPECT_ERROR(WF_ERR_STATE, wf_tape_reset(tape));
    wf_tensor_free(stray);
    wf_tensor *kept = wf_keep(mul(use(p), use(q)));
    WF_EXPECT_OK(wf_tape_reset(tape));
    WF_EXPECT(wf_tensor_item(kept) == 6, "%g", wf_tensor_item(kept));
    wf_tensor_free(kept);
    WF_EXPECT(wf_item(NULL) != wf_item(NULL) && wf_keep(NULL) == NULL && wf_input(tape, NULL) == NULL, "NULL passes");
}

static void released_values(void)
{
    wf_tensor *x = wf_tensor_from_host(ctx, WF_F64, WF_SHAPE(2), (double[]){5, 6});
    wf_var *leaf = wf_leaf(tape, x), *y = mul(leaf, leaf);
    WF_EXPECT_OK(wf_backward_from(y, x));
    WF_EXPECT(wf_value(y) == NULL && wf_keep(y) == NULL, "the value went with its backward");
    wf_error_clear();
    WF_EXPECT_OK(wf_tape_reset(tape));
    wf_tensor_free(x);
}

static void flat_gradients(void)
{
    wf_grads *g = wf_grads_new(ctx, 2, (wf_param *[]){q, p}, 3);
    WF_EXPECT(g && g->offset[1] == 8 && g->offset[2] == 16 && wf_tensor_count(g->flat) == 19, "offsets");
    WF_EXPECT_OK(wf_backward(mul(use(p), use(q))));
    double flat[19];
    WF_EXPECT_OK(wf_tensor_export(g->flat, flat, sizeof flat));
    WF_EXPECT(flat[0] == 2 && flat[8] == 3, "gradients were written in place: %g %g", flat[0], flat[8]);
    wf_grads_free(g);
    WF_EXPECT_OK(wf_tape_reset(tape));
}

static void steady_memory(void)
{
    int64_t before = 0;
    for (int i = 0; i < 6; i++) {
        if (i == 2)
            before = wf_ctx_memory(ctx).system_allocations;
        wf_var *f = use(p);
        for (int j = 0; j < 500; j++)
            f = mul(f, use(q));
        WF_EXPECT_OK(wf_backward(f));
        WF_EXPECT_OK(wf_tape_reset(tape));
    }
    const int64_t now = wf_ctx_memory(ctx).system_allocations;
    WF_EXPECT(now == before, "%ld allocations in steady state", (long)(now - before));
}

static void random_streams(void)
{
    const wf_random a = wf_tape_random(tape, WF_SHAPE(4), NULL), b = wf_tape_random(tape, WF_SHAPE(4), NULL);
    const wf_scope scope = wf_tape_enter(tape, (wf_scope){.stream = 9});
    const wf_random c = wf_tape_random(tape, WF_SHAPE(4), NULL);
    wf_tape_leave(tape, scope);
    WF_EXPECT(a.stream != b.stream && c.stream != a.stream && c.stream != b.stream, "streams differ");
    const int64_t before = wf_tape_iteration(tape);
    WF_EXPECT_OK(wf_tape_reset(tape));
    const wf_random again = wf_tape_random(tape, WF_SHAPE(4), NULL);
    WF_EXPECT(again.stream == a.stream && wf_tape_iteration(tape) == before + 1, "the iteration tells steps apart");
    const wf_layout batch = wf_layout_batch(NULL, WF_SHAPE(10), 3, 7);
    const wf_random part = wf_tape_random(tape, WF_SHAPE(4), &batch);
    WF_EXPECT(part.global.dim[0] == 10 && part.box.lo[0] == 3, "global coordinates");
    WF_EXPECT_OK(wf_tape_reset(tape));
}

/* What a layer keeps for its backward may be long: a number for each of a thousand ranks. */
typedef struct long_state {
    int64_t number[20000];
} long_state;

static wf_status long_backward(wf_node *node)
{
    const long_state *state = node->state;
    for (int i = 0; i < 20000; i++)
        WF_CHECK(state->number[i] == i * 3, WF_ERR_STATE, "number %d is %lld", i, (long long)state->number[i]);
    return wf_node_give(node, 0, wf_tensor_alias(wf_node_dy(node)), true);
}

static void long_states(void)
{
    static const wf_op op = {"long", long_backward, false};
    static long_state state;
    int64_t before = 0;
    for (int i = 0; i < 20000; i++)
        state.number[i] = i * 3;
    for (int step = 0; step < 4; step++) {
        wf_var *x = wf_param_var(tape, p);
        for (int i = 0; i < 3; i++)
            x = wf_tape_record(
                tape,
                &(wf_node_spec){
                    .op = &op, .n_in = 1, .in = (wf_var *[]){x}, .state = &state, .state_bytes = sizeof state},
                wf_tensor_alias(x->value));
        WF_EXPECT(x, "%s", wf_error_message());
        WF_EXPECT_OK(wf_backward(x));
        WF_EXPECT_OK(wf_tape_reset(tape));
        before = step == 1 ? wf_ctx_memory(ctx).system_allocations : before;
    }
    WF_EXPECT(wf_ctx_memory(ctx).system_allocations == before, "steps of known length allocate");
}

int main(int argc, char **argv)
{
    ctx = wf_ctx_new((wf_ctx_opts){.dtype = WF_F64});
    tape = wf_tape_new(ctx);
    p = scalar("p", 2);
    q = scalar("q", 3);
    r = scalar("r", 5);
    const int failed = test_main(argc, argv,
                                 (test_case[]){{"chain", chain},
                                               {"long_states", long_states},
                                               {"leaves", leaves},
                                               {"order_and_pruning", order_and_pruning},
                                               {"always", always},
                                               {"changed_parameter", changed_parameter},
                                               {"not_trainable", not_trainable},
                                               {"evaluation", evaluation},
                                               {"held_tensors", held_tensors},
                                               {"released_values", released_values},
                                               {"flat_gradients", flat_gradients},
                                               {"steady_memory", steady_memory},
                                               {"random_streams", random_streams},
                                               {0}});
    wf_param_free(p);
    wf_param_free(q);
    wf_param_free(r);
    wf_tape_free(tape);
    WF_EXPECT_OK(wf_ctx_free(ctx));
    return failed || test_failures() > 0;
}
