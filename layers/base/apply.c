/* Applies a layer to its inputs: checks them, gives them the type and distribution that the layer wants, and tells
 * other ranks where that fails. Called by programs, by modules and by layers that apply others in a way of their own.
 */
#include "layers/functions/functions_impl.h"
#include "layers/layer_author.h"

#include "core/profile_author.h"

enum { FEW = 8 }; /* inputs without memory of the pool */

/* Sets own[i] to the variable that the layer gets for x[i]: x[i] itself, or a cast or redistributed one. */
static wf_status prepare_inputs(const wf_layer *layer, wf_var *const *x, int n, wf_var **own)
{
    for (int i = 0; i < n; i++) {
        /* Layers that multiply take the type of the computation (bf16, for example); others take any. */
        own[i] = layer->kind->computes ? wf_cast_to_compute(x[i]) : x[i];
        if (own[i] && layer->prepare)
            own[i] = layer->prepare(layer, own[i]);
        WF_NEED(own[i]);
    }
    return WF_OK;
}

/* `forward`: of a layer above that applies this one in a way of its own; NULL: the kind's. */
static wf_var *call_forward(wf_layer *layer, wf_var *const *x, int n, wf_forward_n forward, void *user)
{
    if (forward)
        return forward(layer, user, x, n);
    return layer->kind->forward_n ? layer->kind->forward_n(layer, x, n) : layer->kind->forward(layer, x[0]);
}

/* Inputs are prepared here, inside of a segment: a cast or a distribution is then computed again with the layer. */
static wf_var *compute_forward(wf_layer *layer, wf_var *const *x, int n, wf_forward_n forward, void *user)
{
    if (!layer->kind->computes && !layer->prepare)
        return call_forward(layer, x, n, forward, user);
    wf_var *few[FEW] = {0};
    void *many = few;
    const size_t bytes = (size_t)n * sizeof *few;
    if (n > FEW)
        WF_TRY_NULL(wf_pool_take_host(layer->ctx, bytes, &many));
    wf_var *y = prepare_inputs(layer, x, n, many) == WF_OK ? call_forward(layer, many, n, forward, user) : NULL;
    if (n > FEW)
        wf_pool_give_host(layer->ctx, many, bytes);
    return y;
}

/* compute_forward as a wf_segment_run. */
static wf_var *compute_segment(wf_var *const *x, int n, void *layer, int64_t part)
{
    (void)part;
    return compute_forward(layer, x, n, NULL, NULL);
}

static wf_status check_count(const wf_layer *layer, int n)
{
    const char *kind = layer->kind->name, *path = wf_layer_path(layer);
    WF_CHECK(n >= layer->least || layer->most > 0, WF_ERR_ARGUMENT, "%s \"%s\" takes %d inputs or more, not %d", kind,
             path, layer->least, n);
    WF_CHECK((n >= layer->least && n <= layer->most) || layer->most == 0 || layer->least == layer->most,
             WF_ERR_ARGUMENT, "%s \"%s\" takes %d to %d inputs, not %d", kind, path, layer->least, layer->most, n);
    WF_CHECK((n >= layer->least && n <= layer->most) || layer->most == 0, WF_ERR_ARGUMENT,
             "%s \"%s\" takes %d input%s, not %d", kind, path, layer->least, layer->least == 1 ? "" : "s", n);
    return WF_OK;
}

static wf_status check_inputs(const wf_layer *layer, wf_var *const *x, int n)
{
    const char *kind = layer->kind->name, *path = wf_layer_path(layer);
    for (int i = 0; i < n; i++) {
        WF_CHECK(wf_tape_ctx(x[i]->tape) == layer->ctx, WF_ERR_ARGUMENT,
                 "%s \"%s\": its input belongs to another context", kind, path);
        WF_CHECK(x[i]->tape == x[0]->tape, WF_ERR_ARGUMENT,
                 "%s \"%s\": its inputs 0 and %d belong to two tapes; should be variables of one", kind, path, i);
        WF_CHECK(x[i]->value, WF_ERR_STATE,
                 "%s \"%s\": its input's value went with the backward that passed it; apply it before", kind, path);
    }
    return WF_OK;
}

static wf_var *apply_layer(wf_layer *layer, wf_var *const *x, int n, wf_forward_n forward, void *user)
{
    WF_TRY_NULL(check_inputs(layer, x, n));
    if (!forward)
        WF_TRY_NULL(check_count(layer, n));
    wf_tape *tape = x[0]->tape;
    const bool recomputed = layer->segments == 1;
    WF_CHECK_NULL(!recomputed || !forward, WF_ERR_UNSUPPORTED,
                  "%s \"%s\": wf_recompute of a layer that the layer above applies in its own way; recompute that one",
                  layer->kind->name, wf_layer_path(layer));
    uint64_t applied;
    /* A layer that is applied twice in a step draws other numbers the second time. */
    WF_TRY_NULL(wf_tape_count_application(tape, layer->id, &applied));
    const wf_scope scope = wf_tape_enter(tape, (wf_scope){.stream = wf_hash_u64(wf_layer_stream(layer), applied),
                                                          .kind = layer->kind->name,
                                                          .path = wf_layer_path(layer),
                                                          .comm = layer->comm});
    /* Ranges show in the profiler's time line (core/cuda/nvtx.c); elsewhere they do nothing. */
    wf_range_push(layer->ctx, layer->kind->name);
    const char *outside = wf_profile_layer(layer->ctx, wf_layer_path(layer));
    wf_var *y =
        recomputed ? wf_tape_segment(x, n, compute_segment, layer, 0) : compute_forward(layer, x, n, forward, user);
    wf_profile_layer(layer->ctx, outside);
    wf_range_pop(layer->ctx);
    wf_tape_leave(tape, scope);
    return y;
}

/* The first input that is NULL; n: none is. */
static int missing_input(wf_var *const *x, int n)
{
    int i = 0;
    while (i < n && x && x[i])
        i++;
    return i;
}

/* The layer gave no variable: notes an error if there is none. */
static wf_status reason_of(const wf_layer *layer, int missing, int n)
{
    const char *kind = layer->kind->name, *path = wf_layer_path(layer);
    wf_status status = wf_error_pending();
    if (status != WF_OK)
        return status;
    if (missing == n)
        status = WF_RAISE(WF_ERR_STATE, "%s \"%s\" returned NULL and no error", kind, path);
    else if (n == 1)
        status = WF_RAISE(WF_ERR_ARGUMENT, "%s \"%s\": its input is NULL; should be a variable", kind, path);
    else
        status =
            WF_RAISE(WF_ERR_ARGUMENT, "%s \"%s\": its input %d is NULL; should be a variable", kind, path, missing);
    wf_error_null();
    return status;
}

/* The one place that tells other ranks of a layer that failed here: they wait in its exchanges for what this rank will
 * not send. An input that is NULL because of an earlier failure, of any function, leaves them waiting just the same. A
 * layer that every rank computes by itself tells no rank: the optimizer's step will (optim/multi_node.c). */
wf_var *wf_apply_with(wf_layer *layer, wf_var *const *x, int n, wf_forward_n forward, void *user)
{
    if (!layer)
        return NULL;
    const int missing = missing_input(x, n);
    wf_var *y = NULL;
    if (n < 1)
        (void)WF_RAISE(WF_ERR_ARGUMENT, "%s \"%s\" of %d inputs; should be 1 or more", layer->kind->name,
                       wf_layer_path(layer), n);
    else if (missing == n)
        y = apply_layer(layer, x, n, forward, user);
    if (n < 1)
        wf_error_null();
    if (!y && layer->comm)
        wf_comm_post_failure(layer->comm, reason_of(layer, missing, n));
    return y;
}

wf_var *wf_apply(wf_layer *layer, wf_var *x)
{
    WF_NEED_NULL(layer);
    return wf_apply_with(layer, &x, 1, NULL, NULL);
}

wf_var *wf_apply_n(wf_layer *layer, wf_var *const *inputs, int n)
{
    WF_NEED_NULL(layer);
    return wf_apply_with(layer, inputs, n, NULL, NULL);
}
