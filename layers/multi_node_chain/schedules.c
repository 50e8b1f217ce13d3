/* The steps as schedules of the engine, one step for one where something is sent: forward, then the same steps in the
 * opposite order with gradients. A value is a number, which says what it was made of. */
#include "core/random_author.h"
#include "layers/multi_node_chain/multi_node_chain_impl.h"

#include <stdlib.h>
#include <string.h>

enum { VALUE = 8 /* bytes */ };

/* The memory of a component: its inputs, its outputs; and the gradients, of everything that it gives, and of inputs. A
 * component's `grad_out` has a place for each give, not for each output: an output may go to several peers. */
typedef struct memory {
    const wf_chain_step *compute;
    int n_in, n_out;
    wf_address in, out, grad_out, grad_in;
} memory;

typedef struct making {
    const wf_chain_steps *s;
    wf_builder *b;
    int rank;
    memory *of;       /* of each component */
    wf_address *held; /* of what this rank gives itself: its address, and for backward that of the gradient */
    int given, taken;
    int inputs, outputs;
    wf_steps before;
} making;

/* Equal hashes mean the same inputs in the same order, so one number tells whether a message went astray. */
uint64_t wf_chain_mix(const char *name, bool backward, int port, int n, const uint64_t *in)
{
    uint64_t hash = wf_hash_u64(wf_hash_text(backward, name), (uint64_t)port);
    for (int i = 0; i < n; i++)
        hash = wf_hash_u64(hash, in[i]);
    return hash;
}

static wf_status mix_values(const char *name, bool backward, const void *from, size_t from_bytes, void *to,
                            size_t to_bytes)
{
    for (size_t port = 0; port < to_bytes / VALUE; port++) {
        const uint64_t value = wf_chain_mix(name, backward, (int)port, (int)(from_bytes / VALUE), from);
        memcpy((char *)to + port * VALUE, &value, VALUE);
    }
    return WF_OK;
}

static wf_status mix_forward(void *own, const void *from, size_t from_bytes, void *to, size_t to_bytes)
{
    return mix_values(((const wf_chain_step *)own)->name, false, from, from_bytes, to, to_bytes);
}

static wf_status mix_backward(void *own, const void *from, size_t from_bytes, void *to, size_t to_bytes)
{
    return mix_values(((const wf_chain_step *)own)->name, true, from, from_bytes, to, to_bytes);
}

static wf_address at(wf_address base, int i)
{
    return wf_address_add(base, (size_t)i * VALUE);
}

/* Steps come one after the other, but nothing waits for what is sent. A send reads memory that no later step writes, so
 * later steps need not wait for it. */
static void add_follower(making *m, wf_steps steps, bool sent)
{
    m->before = sent ? m->before : steps;
}

static void add_copy(making *m, wf_address from, wf_address to)
{
    wf_after(m->b, m->before);
    add_follower(m, wf_add_copy(m->b, from, to, VALUE, false), false);
}

static void add_send(making *m, wf_address from, int to)
{
    wf_after(m->b, m->before);
    add_follower(m, wf_add_send(m->b, from, VALUE, to), true);
}

static void add_recv(making *m, wf_address to, int from)
{
    wf_after(m->b, m->before);
    add_follower(m, wf_add_recv(m->b, to, VALUE, from), false);
}

static void add_call(making *m, const memory *c, wf_step_function run, wf_address from, int n_from, wf_address to,
                     int n_to)
{
    const wf_step_call call = {.run = run, .own = (void *)c->compute, .from_bytes = (size_t)n_from * VALUE};
    wf_after(m->b, m->before);
    add_follower(m, wf_add_call(m->b, call, from, to, (size_t)n_to * VALUE), false);
}

static wf_address outside(making *m, wf_operand_kind kind)
{
    return wf_builder_operand(m->b, kind, kind == WF_OPERAND_INPUT ? m->inputs++ : m->outputs++, VALUE);
}

/* The place of a give among those of its component. Gives of a component stand behind each other, so it is found by
 * counting back. */
static int place_of(const making *m, int step)
{
    const wf_chain_step *all = m->s->step[m->rank];
    int place = 0;
    while (step - place - 1 >= 0 && all[step - place - 1].verb == WF_CHAIN_GIVE)
        place++;
    return place;
}

/* Scratch is written once in a step of the chain: no two values share memory. */
static void forward(making *m, int step)
{
    const wf_chain_step *a = &m->s->step[m->rank][step];
    const memory *c = &m->of[a->component];
    if (a->verb == WF_CHAIN_COMPUTE)
        add_call(m, c, mix_forward, c->in, c->n_in, c->out, a->port);
    else if (a->verb == WF_CHAIN_TAKE && a->peer == WF_OUTSIDE)
        add_copy(m, outside(m, WF_OPERAND_INPUT), at(c->in, a->port));
    else if (a->verb == WF_CHAIN_TAKE && a->peer == m->rank)
        add_copy(m, m->held[m->taken++], at(c->in, a->port));
    else if (a->verb == WF_CHAIN_TAKE)
        add_recv(m, at(c->in, a->port), a->peer);
    else if (a->peer == WF_OUTSIDE)
        add_copy(m, at(c->out, a->port), outside(m, WF_OPERAND_OUTPUT));
    else if (a->peer == m->rank)
        /* A value that stays on the rank is not copied at its give: the take reads it from there, first given, first
         * taken. */
        m->held[m->given++] = at(c->out, a->port);
    else
        add_send(m, at(c->out, a->port), a->peer);
}

/* The mirror of forward: takes send gradients, gives receive them, and what was last is first. */
static void backward(making *m, int step)
{
    const wf_chain_step *a = &m->s->step[m->rank][step];
    const memory *c = &m->of[a->component];
    if (a->verb == WF_CHAIN_COMPUTE)
        add_call(m, c, mix_backward, c->grad_out, c->n_out, c->grad_in, c->n_in);
    else if (a->verb == WF_CHAIN_TAKE && a->peer == WF_OUTSIDE)
        add_copy(m, at(c->grad_in, a->port), outside(m, WF_OPERAND_OUTPUT));
    else if (a->verb == WF_CHAIN_TAKE && a->peer == m->rank)
        /* In the opposite order the list works as a stack, so each take meets the give that it had in forward. */
        m->held[--m->taken] = at(c->grad_in, a->port);
    else if (a->verb == WF_CHAIN_TAKE)
        add_send(m, at(c->grad_in, a->port), a->peer);
    else if (a->peer == WF_OUTSIDE)
        add_copy(m, outside(m, WF_OPERAND_INPUT), at(c->grad_out, place_of(m, step)));
    else if (a->peer == m->rank)
        add_copy(m, m->held[--m->given], at(c->grad_out, place_of(m, step)));
    else
        add_recv(m, at(c->grad_out, place_of(m, step)), a->peer);
}

static void lay_out(making *m)
{
    const wf_chain_step *all = m->s->step[m->rank];
    for (int i = 0; i < m->s->count[m->rank]; i++) {
        memory *c = &m->of[all[i].component];
        c->n_in += all[i].verb == WF_CHAIN_TAKE;
        c->n_out += all[i].verb == WF_CHAIN_GIVE;
        if (all[i].verb == WF_CHAIN_COMPUTE)
            c->compute = &all[i];
    }
    /* Components are numbered without gaps, and the room behind the last one is zero. */
    for (memory *c = m->of; c->compute; c++) {
        c->in = wf_builder_scratch(m->b, (size_t)c->n_in * VALUE);
        c->out = wf_builder_scratch(m->b, (size_t)c->compute->port * VALUE);
        c->grad_out = wf_builder_scratch(m->b, (size_t)c->n_out * VALUE);
        c->grad_in = wf_builder_scratch(m->b, (size_t)c->n_in * VALUE);
    }
}

static wf_status make_rank(const wf_chain_steps *s, const wf_agreed *agreed, int rank, wf_schedule **schedule)
{
    const int count = s->count[rank];
    making m = {.s = s, .rank = rank, .b = wf_builder_new(s->ctx, agreed, rank)};
    if (!m.b)
        return wf_error_code();
    m.of = wf_builder_room(m.b, ((size_t)count + 1) * sizeof *m.of);
    m.held = wf_builder_room(m.b, ((size_t)count + 1) * sizeof *m.held);
    const bool room = m.of && m.held;
    if (room)
        lay_out(&m);
    /* Room that could not be had is an error of the builder, which wf_builder_end reports. */
    for (int i = 0; room && i < count; i++)
        forward(&m, i);
    for (int i = count - 1; room && i >= 0; i--)
        backward(&m, i);
    return wf_builder_end(m.b, schedule);
}

wf_status wf_chain_steps_schedules(const wf_chain_steps *s, const wf_agreed *agreed, wf_schedule **all)
{
    WF_NEED(s);
    WF_NEED(agreed);
    WF_NEED(all);
    for (int rank = 0; rank < s->ranks; rank++)
        WF_TRY(make_rank(s, agreed, rank, &all[rank]));
    return WF_OK;
}
