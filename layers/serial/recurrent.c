/* LSTM and GRU layers: parameters, inputs, levels and directions. What a level computes is in recurrent_pass.c. Samples
 * may be split among ranks, steps and features may not: no message is sent but the optimizer's. Names and shapes of
 * parameters are PyTorch's. */
#include "layers/recurrent.h"

#include "core/opts.h"
#include "layers/functions.h"
#include "layers/functions/functions_impl.h"
#include "layers/serial/recurrent_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Parameters of a level in one direction. An LSTM needs only the sum of a level's two biases; there are two as in
 * PyTorch and cuDNN, so that models can be exchanged. */
typedef struct level_params {
    wf_param *w, *u, *b, *ub;
} level_params;

typedef struct recurrent_state {
    wf_recurrent_opts opts;
    wf_cell cell;
    int directions;
    level_params *level; /* levels times directions */
} recurrent_state;

/* The inputs of a call by what they are. */
typedef struct recurrent_call {
    wf_layer *layer;
    wf_var *x, *state; /* [T,N,E], and [S,N,H] or NULL */
    const wf_tensor *lengths;
    wf_var **last; /* where final states go; NULL: nowhere */
} recurrent_call;

static const wf_layer_kind lstm_kind, gru_kind;

/* h of each level and direction, and c of an LSTM behind all h. */
static int state_rows(const recurrent_state *s)
{
    return s->opts.levels * s->directions * (s->cell == WF_CELL_LSTM ? 2 : 1);
}

/* --- inputs ------------------------------------------------------------------------------------------------------- */

static wf_status check_x(const wf_layer *layer, const wf_var *x)
{
    const recurrent_state *s = layer->state;
    const wf_shape shape = wf_var_shape(x);
    const char *const kind = layer->kind->name, *const path = wf_layer_path(layer);
    char text[WF_SHAPE_TEXT];
    WF_TRY(wf_function_check(kind, x, WF_ANY_FUNCTION));
    WF_TRY(wf_layer_check_whole(kind, layer, x));
    WF_CHECK(shape.rank == 3 && shape.dim[2] == s->opts.in, WF_ERR_SHAPE, "%s \"%s\": input %s, should be [N,T,%lld]",
             kind, path, wf_shape_text(shape, text), (long long)s->opts.in);
    WF_CHECK(x->value->dtype == wf_ctx_compute(layer->ctx), WF_ERR_DTYPE, "%s \"%s\": input of %s, should be %s", kind,
             path, wf_dtype_name(x->value->dtype), wf_dtype_name(wf_ctx_compute(layer->ctx)));
    return WF_OK;
}

static wf_status check_state(const wf_layer *layer, const wf_var *state, int64_t samples)
{
    const recurrent_state *s = layer->state;
    const wf_shape shape = wf_var_shape(state);
    const char *const kind = layer->kind->name, *const path = wf_layer_path(layer);
    char text[WF_SHAPE_TEXT];
    WF_TRY(wf_function_check(kind, state, WF_ANY_FUNCTION));
    WF_TRY(wf_layer_check_whole(kind, layer, state));
    WF_CHECK(shape.rank == 3 && shape.dim[0] == samples && shape.dim[1] == state_rows(s) &&
                 shape.dim[2] == s->opts.hidden,
             WF_ERR_SHAPE, "%s \"%s\": initial state %s, should be [%lld,%d,%lld]", kind, path,
             wf_shape_text(shape, text), (long long)samples, state_rows(s), (long long)s->opts.hidden);
    WF_CHECK(state->value->dtype == wf_ctx_compute(layer->ctx), WF_ERR_DTYPE,
             "%s \"%s\": initial state of %s, should be %s", kind, path, wf_dtype_name(state->value->dtype),
             wf_dtype_name(wf_ctx_compute(layer->ctx)));
    return WF_OK;
}

static wf_status check_lengths(const wf_layer *layer, const wf_var *lengths, int64_t samples)
{
    const wf_shape shape = wf_var_shape(lengths);
    char text[WF_SHAPE_TEXT];
    WF_CHECK(lengths->value->dtype == WF_I32 && shape.rank == 1 && shape.dim[0] == samples, WF_ERR_SHAPE,
             "%s \"%s\": lengths %s of %s, should be [%lld] of i32", layer->kind->name, wf_layer_path(layer),
             wf_shape_text(shape, text), wf_dtype_name(lengths->value->dtype), (long long)samples);
    return WF_OK;
}

/* Sorts the inputs; those of a float type after x are states, others lengths: so either may be left out. */
static wf_status read_inputs(wf_layer *layer, wf_var *const *x, int n, recurrent_call *call)
{
    const char *const kind = layer->kind->name, *const path = wf_layer_path(layer);
    WF_CHECK(n <= 3, WF_ERR_ARGUMENT, "%s \"%s\" takes 1 to 3 inputs, not %d", kind, path, n);
    WF_TRY(check_x(layer, x[0]));
    const int64_t samples = wf_var_shape(x[0]).dim[0];
    call->x = x[0];
    for (int i = 1; i < n; i++) {
        const bool floats = wf_dtype_is_float(x[i]->value->dtype);
        WF_CHECK(floats ? !call->state : !call->lengths, WF_ERR_ARGUMENT, "%s \"%s\" takes one %s, not two", kind, path,
                 floats ? "initial state" : "tensor of lengths");
        if (floats) {
            WF_TRY(check_state(layer, x[i], samples));
            call->state = x[i];
            continue;
        }
        WF_TRY(check_lengths(layer, x[i], samples));
        call->lengths = x[i]->value;
    }
    return WF_OK;
}

/* --- levels ------------------------------------------------------------------------------------------------------- */

/* Rows [lo, hi) of the first dimension. */
static wf_var *rows_between(wf_var *x, int64_t lo, int64_t hi)
{
    if (!x)
        return NULL;
    wf_box box = wf_box_of_shape(wf_var_shape(x));
    box.lo[0] = lo;
    box.hi[0] = hi;
    return wf_slice(x, box);
}

/* [N,T,E] of callers and [T,N,E] inside, where a step is contiguous. */
static wf_var *swap_time(wf_var *x)
{
    return wf_transpose(x, (const int[]){1, 0, 2});
}

/* Fills in the variables of a level; false on failure. A parameter's gradient is a sum over this rank's samples,
 * whichever axes split them, but features are whole. */
static bool open_level(const recurrent_call *call, int index, wf_recurrent_params *out)
{
    const recurrent_state *s = call->layer->state;
    const level_params *const p = &s->level[index];
    wf_tape *const tape = wf_var_tape(call->x);
    const int half = s->opts.levels * s->directions;
    wf_param *const all[] = {p->w, p->u, p->b, p->ub};
    for (int i = 0; i < 4; i++)
        if (all[i])
            wf_param_sum_parts(all[i], &call->x->value->layout, 1u << 1);
    /* Weights in the type of computation, biases in their own. */
    *out = (wf_recurrent_params){.w = wf_compute_var(tape, p->w), .u = wf_compute_var(tape, p->u)};
    if (p->b) {
        out->b = wf_param_var(tape, p->b);
        out->ub = wf_param_var(tape, p->ub);
    }
    const bool lstm = s->cell == WF_CELL_LSTM;
    if (call->state) {
        out->h = rows_between(call->state, index, index + 1);
        out->c = lstm ? rows_between(call->state, half + index, half + index + 1) : NULL;
    }
    return out->w && out->u && (out->b || !p->b) && (out->ub || !p->ub) &&
           (!call->state || (out->h && (out->c || !lstm)));
}

/* y of one level in one direction; final states go to their places in `last`. */
static wf_var *run_direction(const recurrent_call *call, wf_var *x, int index, wf_var **last)
{
    const recurrent_state *s = call->layer->state;
    wf_recurrent_params params;
    if (!x || !open_level(call, index, &params))
        return NULL;
    const wf_recurrent_pass pass = {
        .cell = s->cell, .backward = index % s->directions == 1, .states = call->last != NULL};
    wf_var *y = wf_recurrent_run(&pass, x, &params, call->lengths);
    if (!call->last)
        return y;
    /* The pass puts final states behind its outputs, so that they are outputs of the same node and have gradients. */
    const int64_t steps = wf_var_shape(x).dim[0];
    last[index] = rows_between(y, steps, steps + 1);
    if (s->cell == WF_CELL_LSTM)
        last[s->opts.levels * s->directions + index] = rows_between(y, steps + 1, steps + 2);
    return rows_between(y, 0, steps);
}

/* The input of a level is the output of the level below, of both directions side by side. */
static wf_var *run_levels(const recurrent_call *call, wf_var **last)
{
    const recurrent_state *s = call->layer->state;
    wf_var *x = call->x;
    for (int l = 0; l < s->opts.levels; l++) {
        wf_var *side[2] = {0};
        for (int d = 0; d < s->directions; d++)
            side[d] = run_direction(call, x, l * s->directions + d, last);
        /* A failed direction is NULL, which concat and all that follows pass on. */
        x = s->directions == 1 ? side[0] : wf_concat(2, side, 2);
        /* Between levels only, as in PyTorch: not behind the last one. */
        if (l + 1 < s->opts.levels)
            x = wf_dropout(x, s->opts.dropout);
    }
    return x;
}

/* user: where the final state goes (wf_var **), or NULL. */
static wf_var *compute_call(wf_layer *layer, void *user, wf_var *const *inputs, int n)
{
    const recurrent_state *s = layer->state;
    recurrent_call call = {.layer = layer, .last = user};
    void *last = NULL;
    const size_t bytes = (size_t)state_rows(s) * sizeof(wf_var *);
    WF_TRY_NULL(read_inputs(layer, inputs, n, &call));
    /* Swapped once for all levels. */
    call.x = swap_time(call.x);
    const bool begun = call.state != NULL;
    call.state = begun ? swap_time(call.state) : NULL;
    if (!call.x || (begun && !call.state))
        return NULL;
    /* A list for the final states of all levels; only wf_recurrent asks for them. */
    if (user)
        WF_TRY_NULL(wf_pool_take_host(layer->ctx, bytes, &last));
    wf_var *y = swap_time(run_levels(&call, last));
    if (user) {
        *call.last = y ? swap_time(wf_concat(state_rows(s), last, 0)) : NULL;
        y = *call.last ? y : NULL;
        wf_pool_give_host(layer->ctx, last, bytes);
    }
    return y;
}

static wf_var *forward(wf_layer *layer, wf_var *const *x, int n)
{
    return compute_call(layer, NULL, x, n);
}

wf_var *wf_recurrent(wf_layer *layer, wf_var *const *inputs, int n, wf_var **last)
{
    if (last)
        *last = NULL;
    WF_NEED_NULL(layer);
    WF_NEED_NULL(last);
    WF_CHECK_NULL(layer->kind == &lstm_kind || layer->kind == &gru_kind, WF_ERR_ARGUMENT,
                  "wf_recurrent of %s \"%s\", should be an lstm or a gru", layer->kind->name, wf_layer_path(layer));
    return wf_apply_with(layer, inputs, n, compute_call, last);
}

/* --- construction ------------------------------------------------------------------------------------------------- */

static void free_levels(wf_layer *layer)
{
    free(((recurrent_state *)layer->state)->level);
}

static const wf_layer_kind lstm_kind = {.name = "lstm", .forward_n = forward, .free = free_levels, .computes = true};
static const wf_layer_kind gru_kind = {.name = "gru", .forward_n = forward, .free = free_levels, .computes = true};

static wf_param *add_param(wf_layer *layer, const char *what, int index, wf_shape shape)
{
    const recurrent_state *s = layer->state;
    char name[64];
    /* The names that PyTorch gives: weight_ih_l0, weight_ih_l0_reverse. */
    snprintf(name, sizeof name, "%s_l%d%s", what, index / s->directions, index % s->directions ? "_reverse" : "");
    return wf_layer_add_param(
        layer, name,
        (wf_param_opts){.dtype = layer->ctx->dtype, .shape = shape, .fan_in = s->opts.hidden, .init = s->opts.init});
}

static bool add_levels(wf_layer *layer)
{
    recurrent_state *s = layer->state;
    const int64_t width = wf_cell_gates(s->cell) * s->opts.hidden;
    for (int i = 0; i < s->opts.levels * s->directions; i++) {
        level_params *const p = &s->level[i];
        /* Levels above the first read the features of all directions. */
        const int64_t in = i < s->directions ? s->opts.in : s->directions * s->opts.hidden;
        p->w = add_param(layer, "weight_ih", i, WF_SHAPE(width, in));
        p->u = add_param(layer, "weight_hh", i, WF_SHAPE(width, s->opts.hidden));
        if (!p->w || !p->u)
            return false;
        if (s->opts.no_bias)
            continue;
        p->b = add_param(layer, "bias_ih", i, WF_SHAPE(width));
        p->ub = add_param(layer, "bias_hh", i, WF_SHAPE(width));
        if (!p->b || !p->ub)
            return false;
    }
    return true;
}

static wf_layer *make(wf_ctx *ctx, const wf_layer_kind *kind, wf_cell cell, wf_recurrent_opts o)
{
    WF_CHECK_NULL(o.in >= 1 && o.hidden >= 1, WF_ERR_ARGUMENT,
                  "%s: in is %lld and hidden is %lld, should be at least 1", kind->name, (long long)o.in,
                  (long long)o.hidden);
    WF_CHECK_NULL(o.levels >= 0, WF_ERR_ARGUMENT, "%s: %d levels, should be at least 1", kind->name, o.levels);
    WF_CHECK_NULL(o.dropout >= 0 && o.dropout < 1, WF_ERR_ARGUMENT, "%s: dropout rate %g is not in [0, 1)", kind->name,
                  o.dropout);
    o.levels = o.levels == 0 ? 1 : o.levels;
    /* PyTorch's default: uniform in +- 1 / sqrt(hidden), for weights and biases alike. */
    if (o.init.kind == WF_INIT_DEFAULT)
        o.init = (wf_init){WF_INIT_UNIFORM, -1 / sqrt((double)o.hidden), 1 / sqrt((double)o.hidden)};
    wf_layer *layer = wf_layer_new(ctx, kind, sizeof(recurrent_state));
    if (!layer)
        return NULL;
    recurrent_state *s = layer->state;
    *s = (recurrent_state){.opts = o, .cell = cell, .directions = o.both ? 2 : 1};
    layer->most = 3;
    wf_layer_note(layer, "%s, dropout %g", kind->name, o.dropout);
    s->level = wf_calloc(ctx, (size_t)o.levels * (size_t)s->directions, sizeof *s->level);
    if (s->level && add_levels(layer))
        return layer;
    wf_layer_free(layer);
    return NULL;
}

wf_layer *wf_lstm(wf_ctx *ctx, wf_recurrent_opts o)
{
    WF_NEED_NULL(ctx);
    return make(ctx, &lstm_kind, WF_CELL_LSTM, o);
}

wf_layer *wf_gru(wf_ctx *ctx, wf_recurrent_opts o)
{
    WF_NEED_NULL(ctx);
    return make(ctx, &gru_kind, WF_CELL_GRU, o);
}
