/* The model over several ranks as an object: components, and the agreement of all ranks on their steps. run.c runs
 * them. Each rank adds its own components; after the first forward, or wf_multi_node_chain_connect, the chain is
 * fixed. */
#include "layers/multi_node_chain/multi_node_chain_impl.h"

#include "comm/comm_author.h"
#include "core/captured_author.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static wf_var *chain_forward(wf_layer *layer, wf_var *const *x, int n);
static void chain_free(wf_layer *layer);

static const wf_layer_kind chain_kind = {.name = "multi_node_chain", .forward_n = chain_forward, .free = chain_free};

static void chain_free(wf_layer *layer)
{
    wf_chain_state *state = layer->state;
    wf_outbox_free(state->outbox);
    wf_chain_steps_free(state->steps);
    free(state->part);
    free(state->in);
}

wf_layer *wf_multi_node_chain(wf_comm *comm)
{
    WF_NEED_NULL(comm);
    wf_layer *layer = wf_layer_new(wf_comm_ctx(comm), &chain_kind, sizeof(wf_chain_state));
    if (!layer)
        return NULL;
    wf_chain_state *state = layer->state;
    layer->takes_children = true;
    layer->most = 0;
    layer->comm = comm;
    /* Parts of model files: each rank has a part of its own. */
    layer->part = wf_comm_rank(comm);
    layer->parts = wf_comm_size(comm);
    state->comm = comm;
    state->steps = wf_chain_steps_new(layer->ctx, comm, wf_comm_size(comm));
    state->outbox = wf_outbox_new(comm);
    if (state->steps && state->outbox)
        return layer;
    wf_layer_free(layer);
    return wf_error_null();
}

static wf_status check_chain(const wf_layer *chain)
{
    WF_CHECK(chain->kind == &chain_kind, WF_ERR_ARGUMENT, "\"%s\" is a %s, should be a wf_multi_node_chain",
             wf_layer_path(chain), chain->kind->name);
    return WF_OK;
}

/* --- components -----------------------------------------------------------------------------------------------------
 */

/* Local. Errors of the list of steps show when all ranks' lists are together. */
static wf_status add(wf_layer *chain, const wf_component *c)
{
    WF_NEED(chain);
    WF_TRY(check_chain(chain));
    wf_chain_state *state = chain->state;
    WF_CHECK(!state->connected, WF_ERR_STATE, "component \"%s\" comes after wf_multi_node_chain_connect",
             c->name ? c->name : "");
    char what[96];
    snprintf(what, sizeof what, "the .layer of component \"%.40s\"", c->name ? c->name : "");
    if (!c->layer) /* perhaps an error of its constructor, which says more */
        return wf_error_take(what, __FILE__, __LINE__);
    wf_chain_part *part = wf_realloc(chain->ctx, state->part, (size_t)(state->parts + 1) * sizeof *part);
    WF_NEED(part);
    state->part = part;
    WF_TRY(wf_chain_steps_add(state->steps, wf_comm_rank(state->comm), c));
    part[state->parts++] = (wf_chain_part){.layer = c->layer,
                                           .function = c->function,
                                           .user = c->user,
                                           .n_in = c->n_in,
                                           .outputs = c->outputs ? c->outputs : 1};
    return WF_OK;
}

wf_status wf_multi_node_chain_add(wf_layer *chain, wf_component component)
{
    const wf_status status = add(chain, &component);
    if (status != WF_OK) {
        /* On failure the component is freed, unless another layer owns it. */
        if (component.layer && !component.layer->parent)
            wf_layer_free(component.layer);
        return wf_error_frame(status, __FILE__, __LINE__, __func__);
    }
    if (wf_module_add(chain, component.name, component.layer))
        return WF_OK;
    /* It was freed: as if it had not been added. */
    wf_chain_state *state = chain->state;
    state->steps->count[wf_comm_rank(state->comm)] -= component.n_in + 1 + component.n_out;
    state->parts--;
    return wf_error_take("the component", __FILE__, __LINE__);
}

/* --- the steps of all ranks -----------------------------------------------------------------------------------------
 */

/* Lists are as long as the longest one on their way. Every rank then has all lists. */
static wf_status gather_steps(const wf_chain_state *state, int64_t most, const int64_t *count, wf_chain_step *mine,
                              wf_chain_step *all)
{
    wf_chain_steps *s = state->steps;
    const int rank = wf_comm_rank(state->comm);
    if (s->count[rank] > 0)
        memcpy(mine, s->step[rank], (size_t)s->count[rank] * sizeof *mine);
    WF_TRY(wf_allgather_bytes(state->comm, mine, (size_t)most * sizeof *mine, all));
    for (int r = 0; r < s->ranks; r++) {
        if (r == rank || count[r] == 0)
            continue;
        wf_chain_step *copy = wf_realloc(s->ctx, s->step[r], (size_t)count[r] * sizeof *copy);
        WF_NEED(copy);
        memcpy(copy, all + r * most, (size_t)count[r] * sizeof *copy);
        s->step[r] = copy;
        s->count[r] = (int)count[r];
    }
    return WF_OK;
}

/* Collective. */
static wf_status exchange_steps(const wf_chain_state *state)
{
    wf_chain_steps *s = state->steps;
    const int64_t mine = s->count[wf_comm_rank(state->comm)];
    int64_t most = 0, *count = wf_calloc(s->ctx, (size_t)s->ranks, sizeof *count);
    wf_status status = count ? wf_allgather_bytes(state->comm, &mine, sizeof mine, count) : wf_error_code();
    for (int r = 0; status == WF_OK && r < s->ranks; r++)
        most = count[r] > most ? count[r] : most;
    wf_chain_step *room = most > 0 ? wf_calloc(s->ctx, (size_t)((s->ranks + 1) * most), sizeof *room) : NULL;
    if (status == WF_OK && most > 0)
        status = room ? gather_steps(state, most, count, room, room + most) : wf_error_code();
    free(room);
    free(count);
    return status;
}

/* Room for a forward, so that a loop of fixed shape allocates nothing. */
static wf_status make_room(wf_layer *chain, wf_chain_state *state)
{
    const wf_chain_steps *s = state->steps;
    const int rank = wf_comm_rank(state->comm);
    const size_t n = (size_t)s->count[rank] + 1;
    /* Three lists in one piece. */
    wf_var **room = wf_realloc(chain->ctx, state->in, 3 * n * sizeof(*room));
    WF_NEED(room);
    state->in = room;
    state->out = room + n;
    state->held = room + 2 * n;
    state->inputs = state->outputs = 0;
    for (int i = 0; i < s->count[rank]; i++)
        if (s->step[rank][i].peer == WF_OUTSIDE) {
            state->inputs += s->step[rank][i].verb == WF_CHAIN_TAKE;
            state->outputs += s->step[rank][i].verb == WF_CHAIN_GIVE;
        }
    return WF_OK;
}

static wf_status connect_chain(wf_layer *chain, wf_chain_state *state)
{
    WF_TRY(exchange_steps(state));
    /* A pure function of what all ranks have: they all return the same, but for the memory. */
    wf_status status = wf_chain_steps_verify(state->steps);
    if (status == WF_OK)
        status = make_room(chain, state);
    WF_TRY(wf_agree_status(state->comm, status));
    state->connected = true;
    return WF_OK;
}

wf_status wf_multi_node_chain_connect(wf_layer *chain)
{
    WF_NEED(chain);
    WF_TRY(check_chain(chain));
    wf_chain_state *state = chain->state;
    return state->connected ? WF_OK : connect_chain(chain, state);
}

/* --- forward --------------------------------------------------------------------------------------------------------
 */

static wf_status check_call(const wf_layer *chain, const wf_chain_state *state, const wf_chain_call *call)
{
    WF_CHECK(call->n_x == state->inputs && (call->n_x == 0 || call->x), WF_ERR_ARGUMENT,
             "\"%s\" gets %d inputs; its components on this rank take %d from outside", wf_layer_path(chain), call->n_x,
             state->inputs);
    WF_CHECK(call->n_y == state->outputs && (call->n_y == 0 || call->y), WF_ERR_ARGUMENT,
             "\"%s\" is asked for %d outputs; its components on this rank give %d to the outside", wf_layer_path(chain),
             call->n_y, state->outputs);
    for (int i = 0; i < call->n_x; i++)
        WF_NEED(call->x[i]);
    /* A captured step would replay no message of the host. */
    WF_TRY(wf_ctx_forbid_capture(chain->ctx, "apply a wf_multi_node_chain, whose messages go through the host's memory",
                                 "run the step without wf_capture, or cut the model by wf_pipeline, whose steps over "
                                 "NCCL can be captured"));
    return wf_tape_check_message(call->tape, "a multi_node_chain");
}

static wf_var *run_components(wf_layer *chain, const wf_chain_call *call)
{
    wf_chain_state *state = chain->state;
    wf_var *y = NULL;
    WF_TRY_NULL(wf_multi_node_chain_connect(chain));
    WF_TRY_NULL(check_call(chain, state, call));
    WF_TRY_NULL(wf_chain_run(chain, call, &y));
    return y;
}

static wf_var *chain_forward(wf_layer *chain, wf_var *const *x, int n)
{
    wf_chain_state *state = chain->state;
    wf_var *y = NULL;
    WF_TRY_NULL(wf_multi_node_chain_connect(chain));
    /* A rank without an input gives one variable, for its tape. */
    return run_components(chain, &(wf_chain_call){.tape = x[0]->tape,
                                                  .n_x = n == 1 && state->inputs == 0 ? 0 : n,
                                                  .n_y = state->outputs > 0,
                                                  .x = x,
                                                  .y = &y});
}

static wf_var *forward_of_call(wf_layer *chain, void *call, wf_var *const *x, int n)
{
    (void)x;
    (void)n;
    return run_components(chain, call);
}

wf_var *wf_multi_node_chain_apply(wf_layer *chain, wf_tape *tape, int n_x, wf_var *const *x, int n_y, wf_var **y)
{
    WF_NEED_NULL(chain);
    WF_TRY_NULL(check_chain(chain));
    if (!tape)
        (void)wf_error_need_null(__func__, "tape", __FILE__, __LINE__); /* which wf_apply_with tells the others */
    wf_chain_call call = {.tape = tape, .n_x = n_x, .n_y = n_y, .x = x, .y = y};
    /* wf_apply enters the layer's scope, and tells the others of a failure. */
    wf_var *first = n_x > 0 && x ? x[0] : wf_no_loss(tape);
    return wf_apply_with(chain, &first, 1, forward_of_call, &call);
}
