/* The tape: variables, leaves, recorded nodes and the reset that ends a step. Layers and functions record here;
 * backward.c walks what is recorded. Nothing here computes on elements. */
#include "core/archive.h"
#include "core/autograd/autograd_impl.h"
#include "core/captured_author.h"
#include "core/profile_author.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

wf_tape *wf_tape_new(wf_ctx *ctx)
{
    WF_NEED_NULL(ctx);
    wf_tape *tape = wf_calloc(ctx, 1, sizeof *tape);
    if (!tape)
        return wf_error_null();
    tape->ctx = ctx;
    wf_live_add(ctx, WF_LIVE_TAPE, 1);
    /* Random kernels read the iteration in device memory, so a replay of a captured step draws new numbers. */
    void *counter = NULL;
    const wf_status status = wf_pool_take(ctx, sizeof *tape->iteration_device, &counter);
    tape->iteration_device = counter;
    if (status != WF_OK || wf_tape_set_iteration(tape, 0) != WF_OK) {
        wf_tape_free(tape);
        return wf_error_null();
    }
    return tape;
}

/* Called by the reset, and by backward after a segment that it has computed again. The memory of nodes and variables
 * stays in the arena until the reset, also of those that are cut off here. */
void wf_tape_cut(wf_tape *tape, int64_t n_nodes, int64_t n_vars)
{
    for (int64_t i = n_nodes; i < tape->n_nodes; i++)
        wf_node_release(tape->nodes[i]);
    for (int64_t i = n_vars; i < tape->n_vars; i++) {
        wf_tensor_free(tape->vars[i]->value);
        wf_tensor_free(tape->vars[i]->grad);
        /* A caller that still holds the variable gets an error, until its memory is reused for another one. */
        tape->vars[i]->value = NULL;
        tape->vars[i]->grad = NULL;
    }
    /* Counted per context, since wf_tape_reset can tell a forgotten tensor only where no other tape has any. */
    tape->ctx->vars -= tape->n_vars - n_vars;
    tape->ctx->emptied += tape->ctx->vars == 0;
    tape->n_nodes = n_nodes;
    tape->n_vars = n_vars;
}

static void clear(wf_tape *tape)
{
    wf_tape_cut(tape, 0, 0);
    /* Variables, nodes and their state lie in the arena and go at once; only tensors have counts to be kept. */
    wf_arena_reset(&tape->arena);
}

void wf_tape_free(wf_tape *tape)
{
    if (!tape)
        return;
    clear(tape);
    wf_arena_free(&tape->arena);
    wf_pool_give(tape->ctx, tape->iteration_device, sizeof *tape->iteration_device);
    wf_live_add(tape->ctx, WF_LIVE_TAPE, -1);
    free(tape->vars);
    free(tape->nodes);
    free(tape->draw);
    free(tape->outside);
    free(tape->applied);
    free(tape);
}

wf_status wf_tape_set_mode(wf_tape *tape, wf_mode mode)
{
    WF_NEED(tape);
    WF_CHECK(mode == WF_TRAIN || mode == WF_EVAL, WF_ERR_ARGUMENT, "%d is not a mode", (int)mode);
    tape->mode = mode;
    return WF_OK;
}

wf_mode wf_tape_mode(const wf_tape *tape)
{
    return tape ? tape->mode : WF_TRAIN;
}

bool wf_tape_reuses(const wf_tape *tape)
{
    return tape->mode == WF_EVAL || tape->ctx->reusing > 0;
}

int64_t wf_tape_nodes(const wf_tape *tape, wf_node *const **nodes)
{
    *nodes = tape->nodes;
    return tape->n_nodes;
}

wf_ctx *wf_tape_ctx(const wf_tape *tape)
{
    return tape ? tape->ctx : NULL;
}

int64_t wf_tape_iteration(const wf_tape *tape)
{
    return tape ? tape->iteration : 0;
}

static wf_status move_to(void *own, double by, void *value)
{
    wf_tape *tape = own;
    tape->iteration += (int64_t)by;
    const uint64_t count = (uint64_t)tape->iteration;
    memcpy(value, &count, sizeof count);
    return WF_OK;
}

/* An abandoned capture has counted on the host alone; its copy to the device was recorded and not done. */
static void move_back(void *own, double by)
{
    wf_tape *tape = own;
    tape->iteration -= (int64_t)by;
}

/* Counts so many iterations, on the host and in device memory; before every replay once more. A tape that followed
 * another draws by its own count again. */
static wf_status count_iteration(wf_tape *tape, int by)
{
    tape->iteration_drawn = tape->iteration_device;
    return wf_ctx_capture_host_op(tape->ctx, (wf_host_op){.act = move_to,
                                                          .own = tape,
                                                          .number = by,
                                                          .device = tape->iteration_device,
                                                          .bytes = sizeof *tape->iteration_device,
                                                          .undo = move_back});
}

wf_status wf_tape_visit(void *tape, wf_archive *archive)
{
    int64_t iteration = wf_tape_iteration(tape);
    WF_TRY(wf_archive_i64(archive, "iteration", &iteration));
    /* The iteration is part of every random stream: a resumed run goes on with the numbers that it would have drawn. */
    return wf_archive_loading(archive) ? wf_tape_set_iteration(tape, iteration) : WF_OK;
}

wf_status wf_tape_set_iteration(wf_tape *tape, int64_t iteration)
{
    WF_NEED(tape);
    /* A replay adds to the count; a number that the step sets would have to be set anew each time. */
    WF_TRY(wf_ctx_forbid_capture(tape->ctx, "set the iteration of a tape, nor make one", "do so between runs"));
    tape->iteration = iteration;
    wf_tape_restart_draws(tape);
    return count_iteration(tape, 0);
}

wf_status wf_tape_reset(wf_tape *tape)
{
    WF_NEED(tape);
    clear(tape);
    wf_tape_restart_draws(tape);
    WF_TRY(count_iteration(tape, 1));
    /* While another tape has variables, step tensors of its variables and of the program cannot be distinguished, so
     * nothing is reported. */
    const int64_t left = tape->ctx->vars == 0 ? wf_step_storages(tape->ctx) : 0;
    WF_CHECK(left == 0, WF_ERR_STATE, "%lld tensors of this step are still held; wf_keep makes one outlive its step",
             (long long)left);
    return WF_OK;
}

/* Every variable of the tape is made here. Its memory is the arena's; its value goes in backward or in wf_tape_cut. */
static wf_var *new_var(wf_tape *tape, wf_tensor *value)
{
    wf_var *var = NULL;
    if (tape->n_vars == tape->cap_vars) {
        const int64_t cap = tape->cap_vars ? 2 * tape->cap_vars : 256;
        wf_var **vars = wf_realloc(tape->ctx, tape->vars, (size_t)cap * sizeof *vars);
        if (vars) {
            tape->vars = vars;
            tape->cap_vars = cap;
        }
    }
    /* The value's handle is taken in any case, so callers pass a fresh tensor without a check of their own. */
    if (value && tape->n_vars < tape->cap_vars)
        var = wf_arena_take(tape->ctx, &tape->arena, sizeof *var);
    if (!var) {
        wf_tensor_free(value);
        return wf_error_null();
    }
    *var = (wf_var){.tape = tape, .value = value, .segment = tape->segment};
    tape->vars[tape->n_vars++] = var;
    tape->ctx->vars++;
    return var;
}

wf_var *wf_input(wf_tape *tape, const wf_tensor *tensor)
{
    if (!tape || !tensor)
        return NULL;
    /* Dense: functions take their inputs' strides for granted. */
    return new_var(tape, wf_tensor_dense(tensor, tensor->dtype, tensor->order));
}

wf_var *wf_leaf(wf_tape *tape, const wf_tensor *tensor)
{
    if (!tape || !tensor)
        return NULL;
    char text[WF_SHAPE_TEXT];
    WF_CHECK_NULL(wf_dtype_is_float(tensor->dtype), WF_ERR_DTYPE, "a gradient for a tensor %s of %s: only for floats",
                  wf_shape_text(tensor->shape, text), wf_dtype_name(tensor->dtype));
    WF_CHECK_NULL(!tape->segment && !tape->repeat.on, WF_ERR_UNSUPPORTED,
                  "wf_leaf inside of a segment that is recomputed, where its gradient would be lost: make it outside");
    wf_var *var = wf_input(tape, tensor);
    if (var) {
        var->leaf = true;
        var->needs_grad = tape->mode == WF_TRAIN;
    }
    return var;
}

wf_var *wf_no_loss(wf_tape *tape)
{
    if (!tape)
        return NULL;
    wf_tensor *zero = wf_tensor_new_step(tape->ctx, tape->ctx->dtype, wf_shape_scalar(), WF_ROW_MAJOR);
    if (!zero)
        return NULL;
    const wf_status status = wf_tensor_fill(zero, 0);
    wf_var *var = new_var(tape, zero);
    WF_TRY_NULL(status);
    if (var) {
        /* A mean over 0 samples, so its weight among the losses of the ranks is 0. */
        var->no_loss = true;
        var->loss_mean = true;
    }
    return var;
}

/* One variable for each use of the parameter; backward knows by param->uses which use is its last. */
wf_var *wf_param_var(wf_tape *tape, wf_param *param)
{
    /* Tied parameters have one value and one gradient, those of the parameter that stands for them. */
    param = wf_param_of(param);
    wf_tensor *value = tape && param ? wf_param_value(param) : NULL;
    if (!value)
        return NULL;
    wf_var *var = new_var(tape, wf_tensor_alias(value));
    if (var) {
        var->param = param;
        var->needs_grad = param->trainable && tape->mode == WF_TRAIN;
    }
    return var;
}

wf_var *wf_compute_var(wf_tape *tape, wf_param *param)
{
    param = wf_param_of(param);
    wf_var *var = wf_param_var(tape, param);
    const wf_dtype dtype = wf_ctx_compute(tape ? tape->ctx : NULL);
    if (!var)
        return NULL;
    /* Master and compute copy have one version, so an update between forward and backward is found whichever was saved.
     */
    var->used = param->value;
    if (param->dtype == dtype || wf_ctx_dtype(tape->ctx) == dtype)
        return var;
    WF_TRY_NULL(wf_tensor_follow(param->value, dtype, &param->rounded));
    var->used = param->rounded;
    return var;
}

const wf_tensor *wf_value(const wf_var *var)
{
    if (!var)
        return NULL;
    WF_CHECK_NULL(var->value, WF_ERR_STATE,
                  "the variable's value went with the backward or the wf_tape_reset that passed it; keep it before "
                  "(wf_keep)");
    return var->value;
}

const wf_tensor *wf_grad(const wf_var *var)
{
    return var ? var->grad : NULL;
}

wf_tape *wf_var_tape(const wf_var *var)
{
    return var ? var->tape : NULL;
}

wf_shape wf_var_shape(const wf_var *var)
{
    return var ? wf_tensor_shape(var->value) : wf_shape_scalar();
}

wf_tensor *wf_keep(const wf_var *var)
{
    if (!var)
        return NULL;
    WF_CHECK_NULL(var->value, WF_ERR_STATE,
                  "the variable's value went with the backward or the wf_tape_reset that passed it; keep it before");
    wf_tensor *tensor = wf_tensor_alias(var->value);
    if (tensor)
        /* The reset of the tape does not count it among what was forgotten. */
        tensor->storage->kept = true;
    return tensor;
}

double wf_item(const wf_var *var)
{
    return var ? wf_tensor_item(var->value) : NAN;
}

wf_status wf_tape_add_node(wf_tape *tape, const wf_node_spec *r, wf_var *out)
{
    wf_ctx *ctx = tape->ctx;
    if (tape->n_nodes == tape->cap_nodes) {
        const int64_t cap = tape->cap_nodes ? 2 * tape->cap_nodes : 256;
        wf_node **nodes = wf_realloc(ctx, tape->nodes, (size_t)cap * sizeof *nodes);
        if (!nodes)
            return WF_ERR_MEMORY;
        tape->nodes = nodes;
        tape->cap_nodes = cap;
    }
    wf_node *node = wf_arena_take(ctx, &tape->arena, sizeof *node);
    if (!node)
        return WF_ERR_MEMORY;
    *node = (wf_node){.op = r->op, .tape = tape, .n_in = r->n_in, .out = out};
    /* Functions name their communicator; in a layer it is the layer's. */
    node->comm = r->comm ? r->comm : tape->scope.comm;
    node->layer = ctx->profile ? wf_profile_current(ctx->profile) : NULL;
    node->in = wf_arena_take(ctx, &tape->arena, (size_t)r->n_in * sizeof *node->in);
    node->saved = wf_arena_take(ctx, &tape->arena, (size_t)r->n_saved * sizeof *node->saved);
    node->state = wf_arena_take(ctx, &tape->arena, r->state_bytes);
    if (!node->in || !node->saved || !node->state)
        return WF_ERR_MEMORY;
    /* In the list before its saved tensors are filled in, so that a reset frees those also if one of them fails. */
    tape->nodes[tape->n_nodes++] = node;
    if (r->n_in)
        memcpy(node->in, r->in, (size_t)r->n_in * sizeof *node->in);
    if (r->state_bytes)
        memcpy(node->state, r->state, r->state_bytes);
    for (; node->n_saved < r->n_saved; node->n_saved++) {
        const wf_tensor *t = r->saved[node->n_saved];
        if (!t)
            continue;
        wf_saved *s = &node->saved[node->n_saved];
        s->tensor = wf_tensor_alias(t);
        s->version = wf_tensor_version(t);
        if (!s->tensor)
            return WF_ERR_MEMORY;
    }
    out->node = node;
    return WF_OK;
}

wf_var *wf_tape_record(wf_tape *tape, const wf_node_spec *r, wf_tensor *y)
{
    if (!tape || !y) {
        wf_tensor_free(y);
        return NULL;
    }
    /* Backward gives gradients in the shape and order of the value, and kernels write them densely. */
    if (!y->dense) {
        wf_tensor *dense = wf_tensor_dense(y, y->dtype, y->order);
        wf_tensor_free(y);
        y = dense;
    }
    wf_var *var = new_var(tape, y);
    if (!var)
        return NULL;
    bool needs = r->op && r->op->always;
    for (int i = 0; i < r->n_in; i++) {
        if (r->in[i])
            WF_CHECK_NULL(r->in[i]->tape == tape, WF_ERR_STATE, "%s: an input belongs to another tape", r->op->name);
        needs = needs || (r->in[i] && r->in[i]->needs_grad);
    }
    if (tape->mode == WF_EVAL)
        return var;
    var->needs_grad = needs;
    /* Nothing is saved for backward where no gradient will pass. */
    if (!needs && !tape->segment)
        return var;
    /* Inside of a segment also where no gradient passes: the segment saves what it reads, to notice a change before it
     * is computed again. */
    const wf_status status = tape->segment ? wf_segment_note(tape, r) : wf_tape_add_node(tape, r, var);
    if (status != WF_OK)
        return (wf_error_frame(status, __FILE__, __LINE__, __func__), wf_error_null());
    return var;
}

/* After its backward, or with the tape, whichever comes first; the node itself is the arena's. */
void wf_node_release(wf_node *node)
{
    for (int i = 0; i < node->n_saved; i++) {
        wf_tensor_free(node->saved[i].tensor);
        node->saved[i].tensor = NULL;
    }
}
