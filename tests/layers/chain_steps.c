/* Models over several ranks as steps: the topologies are right and, simulated with random delays, every component gets
 * what it should, forward and backward; wrong ones are refused before anything is sent, with ranks and step. */
#include "layers/chain_author.h"
#include "tests/layers/chain_topologies.h"
#include "tests/test.h"

static wf_ctx *ctx;

static wf_status function_of_none(wf_layer *layer, void *user, wf_var *const *x, wf_var **y)
{
    return WF_OK;
}

static wf_chain_steps *steps_of(const specs *all)
{
    wf_chain_steps *steps = wf_chain_steps_new(ctx, NULL, all->ranks);
    for (int i = 0; i < all->n; i++) {
        wf_component component = component_of(&all->of[i]);
        component.function = function_of_none;
        WF_EXPECT_OK(wf_chain_steps_add(steps, all->of[i].rank, &component));
    }
    return steps;
}

/* --- simulated ------------------------------------------------------------------------------------------------------
 */

/* A value of every message, by its name. */
typedef struct value {
    const char *message;
    uint64_t number;
} value;

typedef struct reference {
    const specs *all;
    value forward[MOST_SPECS * MOST_ENDS], backward[MOST_SPECS * MOST_ENDS];
    int forwards, backwards, outputs_seen;
} reference;

static bool find(const value *list, int n, const char *message, uint64_t *number)
{
    for (int i = 0; i < n; i++)
        if (strcmp(list[i].message, message) == 0) {
            *number = list[i].number;
            return true;
        }
    return false;
}

/* What comes from outside under a name. */
static uint64_t outside_number(const char *message, bool gradient)
{
    uint64_t number = gradient ? 77 : 5;
    for (; *message; message++)
        number = number * 131 + (unsigned char)*message;
    return number;
}

static bool forward_of(reference *f, const spec *s)
{
    uint64_t in[MOST_ENDS], done;
    if (find(f->forward, f->forwards, s->out_name[0], &done))
        return false;
    for (int i = 0; i < s->n_in; i++)
        if (s->in[i].rank == WF_OUTSIDE)
            in[i] = outside_number(s->in_name[i], false);
        else if (!find(f->forward, f->forwards, s->in_name[i], &in[i]))
            return false;
    for (int i = 0; i < s->n_out; i++)
        f->forward[f->forwards++] =
            (value){s->out_name[i], wf_chain_mix(s->name, false, s->out[i].output, s->n_in, in)};
    return true;
}

static bool backward_of(reference *f, const spec *s)
{
    uint64_t out[MOST_ENDS], done;
    if (find(f->backward, f->backwards, s->in_name[0], &done))
        return false;
    for (int i = 0; i < s->n_out; i++)
        if (s->out[i].rank == WF_OUTSIDE)
            out[i] = outside_number(s->out_name[i], true);
        else if (!find(f->backward, f->backwards, s->out_name[i], &out[i]))
            return false;
    for (int i = 0; i < s->n_in; i++)
        f->backward[f->backwards++] = (value){s->in_name[i], wf_chain_mix(s->name, true, i, s->n_out, out)};
    return true;
}

static void work_out(reference *f, const specs *all)
{
    *f = (reference){.all = all};
    for (int round = 0; round < all->n; round++)
        for (int i = 0; i < all->n; i++)
            (void)forward_of(f, &all->of[i]);
    for (int round = 0; round < all->n; round++)
        for (int i = all->n - 1; i >= 0; i--)
            (void)backward_of(f, &all->of[i]);
}

/* The name of operand `index` of a rank: outside inputs in their order, then outside outputs from the last; or the
 * other way round. */
static const char *operand_name(const specs *all, int rank, bool input, int index, bool *gradient)
{
    const char *ins[MOST_SPECS], *outs[MOST_SPECS];
    int n_in = 0, n_out = 0;
    for (int i = 0; i < all->n; i++) {
        const spec *s = &all->of[i];
        for (int e = 0; s->rank == rank && e < s->n_in; e++)
            if (s->in[e].rank == WF_OUTSIDE)
                ins[n_in++] = s->in_name[e];
        for (int e = 0; s->rank == rank && e < s->n_out; e++)
            if (s->out[e].rank == WF_OUTSIDE)
                outs[n_out++] = s->out_name[e];
    }
    const int first = input ? n_in : n_out;
    *gradient = index >= first;
    if (!*gradient)
        return input ? ins[index] : outs[index];
    return input ? outs[n_out - 1 - (index - first)] : ins[n_in - 1 - (index - first)];
}

static void fill(void *own, int rank, const wf_operand *operand, void *data)
{
    const reference *f = own;
    bool gradient;
    const char *name = operand_name(f->all, rank, true, operand->index, &gradient);
    const uint64_t number = outside_number(name, gradient);
    memcpy(data, &number, sizeof number);
}

static void check(void *own, int rank, const wf_operand *operand, const void *data)
{
    reference *f = own;
    bool gradient;
    uint64_t seen, should = 0;
    const char *name = operand_name(f->all, rank, false, operand->index, &gradient);
    memcpy(&seen, data, sizeof seen);
    const bool found =
        gradient ? find(f->backward, f->backwards, name, &should) : find(f->forward, f->forwards, name, &should);
    WF_EXPECT(found && seen == should, "rank %d: %s of %s is another", rank, gradient ? "the gradient" : "the value",
              name);
    f->outputs_seen++;
}

static int outside_ends(const specs *all)
{
    int n = 0;
    for (int i = 0; i < all->n; i++) {
        for (int e = 0; e < all->of[i].n_in; e++)
            n += all->of[i].in[e].rank == WF_OUTSIDE;
        for (int e = 0; e < all->of[i].n_out; e++)
            n += all->of[i].out[e].rank == WF_OUTSIDE;
    }
    return n;
}

static void simulate(const specs *all, const wf_chain_steps *steps, const char *what, bool spread)
{
    static reference f;
    wf_agreed agreed;
    int32_t node[16];
    wf_schedule *schedule[16] = {NULL};
    for (int r = 0; r < all->ranks; r++)
        node[r] = spread ? r : 0;
    WF_EXPECT_OK(wf_agreed_make(ctx, all->ranks, node, &agreed));
    WF_EXPECT_OK(wf_chain_steps_schedules(steps, &agreed, schedule));
    work_out(&f, all);
    for (uint64_t seed = 1; seed <= 8; seed++) {
        const wf_simulation s = {
            .seed = seed, .most_delay = (int)seed - 1, .failing_rank = -1, .fill = fill, .check = check, .own = &f};
        f.outputs_seen = 0;
        const wf_status status = wf_schedule_simulate(ctx, (const wf_schedule *const *)schedule, all->ranks, &s);
        WF_EXPECT(status == WF_OK, "%s on %d ranks: %s", what, all->ranks, wf_error_message());
        WF_EXPECT(f.outputs_seen == outside_ends(all), "%s on %d ranks: %d results, should be %d", what, all->ranks,
                  f.outputs_seen, outside_ends(all));
    }
    for (int r = 0; r < all->ranks; r++)
        wf_schedule_free(schedule[r]);
    wf_agreed_clear(&agreed);
}

static void topologies(void)
{
    static specs all;
    for (int kind = 0; kind < TOPOLOGIES; kind++)
        for (int ranks = kind == SELF ? 1 : 2; ranks <= 6; ranks++)
            for (int named = 0; named < 2; named++) {
                topology_of((topology)kind, ranks, named, &all);
                wf_chain_steps *steps = steps_of(&all);
                const wf_status status = wf_chain_steps_verify(steps);
                WF_EXPECT(status == WF_OK, "%s on %d ranks: %s", topology_name[kind], ranks, wf_error_message());
                wf_error_clear();
                if (status == WF_OK)
                    simulate(&all, steps, topology_name[kind], named);
                wf_chain_steps_free(steps);
            }
}

/* --- wrong ones -----------------------------------------------------------------------------------------------------
 */

typedef enum damage { REMOVE, SWAP, PEER, RENAME, RESHAPE, DOUBLE, COMPONENT, NOTHING } damage;

/* In the steps of a topology of three ranks: what is done to a step of a rank. Refused: what the message says. */
typedef struct mistake {
    topology of;
    damage kind;
    int rank, step, value;
    const char *refused[3];
} mistake;

/* CYCLE: rank 0: take x, compute, give round_1 to 1 | take round_3 from 2, compute, give y
 *        rank 1: take round_1 from 0, compute, give round_2 to 2
 *        rank 2: take round_2 from 1, compute, give round_3 to 0
 * CROSS: ranks 0 and 1: take x, compute, give to the other | take from the other, compute, give y
 * TUPLE: rank 0: take x, take x, compute, give second to 1, give first to 1, give y | take back from 1, compute, give y
 *        rank 1: take second, take first, compute, give back to 0, give y, give on to 2
 *        rank 2: take on from 1, compute, give y */
static const mistake mistakes[] = {
    {CYCLE, REMOVE, 0, 2, 0, {"rank 1, step 0 (pass_1 takes \"round_1\" from rank 0)", "rank 0 never gives it"}},
    {CYCLE, REMOVE, 1, 0, 0, {"rank 0, step 2 (pass_0 gives \"round_1\" to rank 1)", "rank 1 never takes it"}},
    {CYCLE, REMOVE, 2, 2, 0, {"rank 0, step 3 (last_0 takes \"round_3\" from rank 2)", "rank 2 never gives it"}},
    {CYCLE, PEER, 1, 2, 0, {"rank 1, step 2 (pass_1 gives \"round_2\" to rank 0)", "rank 0 never takes it"}},
    {CYCLE,
     PEER,
     1,
     0,
     2,
     {"rank 0, step 2 (pass_0 gives \"round_1\" to rank 1)", "rank 1 never takes it",
      "rank 1 takes \"round_1\" from rank 2"}},
    {CYCLE, PEER, 0, 2, 0, {"rank 0, step 2 (pass_0 gives \"round_1\" to rank 0)", "rank 0 never takes it"}},
    {CYCLE,
     RENAME,
     1,
     2,
     0,
     {"messages do not meet", "rank 1, step 2 (pass_1 gives \"other\" to rank 2)",
      "rank 2, step 0 (pass_2 takes \"round_2\" from rank 1)"}},
    {CYCLE,
     RESHAPE,
     2,
     0,
     7,
     {"shapes do not fit", "rank 1, step 2 (pass_1 gives \"round_2\" to rank 2), [4,5]",
      "rank 2, step 0 (pass_2 takes \"round_2\" from rank 1), [4,7]"}},
    {CYCLE, DOUBLE, 2, 2, 0, {"rank 2, step 3 (pass_2 gives \"round_3\" to rank 0)", "rank 0 never takes it"}},
    {CYCLE, COMPONENT, 2, 1, 0, {"rank 2, step 1: a component \"last_0\" is on rank 0 already"}},
    /* Rank 0 waits for what comes round before it gives what goes round. */
    {CYCLE,
     SWAP,
     0,
     2,
     3,
     {"ranks wait for each other in a circle", "(last_0 takes \"round_3\" from rank 2)",
      "rank 2, step 0 (pass_2 takes \"round_2\" from rank 1)"}},
    /* One of both may, both may not. */
    {CROSS, SWAP, 0, 2, 3, {NULL}},
    {CROSS,
     SWAP,
     3,
     2,
     3,
     {"ranks wait for each other in a circle", "rank 1, step 2 (b_1 takes \"over_0\" from rank 0)",
      "rank 0, step 2 (b_0 takes \"over_1\" from rank 1)"}},
    {TUPLE,
     SWAP,
     0,
     3,
     4,
     {"messages do not meet", "rank 0, step 3 (a_0 gives \"first_0\" to rank 1)",
      "rank 1, step 0 (b_1 takes \"second_0\" from rank 0)"}},
    {TUPLE,
     SWAP,
     1,
     0,
     1,
     {"messages do not meet", "rank 0, step 3 (a_0 gives \"second_0\" to rank 1)",
      "rank 1, step 0 (b_1 takes \"first_0\" from rank 0)"}},
    {TUPLE, DOUBLE, 1, 0, 0, {"rank 1, step 6 (b_1 takes \"second_0\" from rank 0)", "rank 0 never gives it"}},
    {TUPLE, REMOVE, 0, 6, 0, {"rank 1, step 3 (b_1 gives \"back_0\" to rank 0)", "rank 0 never takes it"}},
    {TUPLE,
     PEER,
     2,
     0,
     0,
     {"rank 2, step 0 (d_2 takes \"on_0\" from rank 0)", "rank 0 never gives it", "rank 1 gives \"on_0\" to rank 2"}},
    {SELF, SWAP, 0, 2, 3, {"messages do not meet: rank 0, step 2 (a_0 gives \"again_0\" to rank 0)"}},
    {SELF, REMOVE, 2, 3, 0, {"rank 2, step 4 (b_2 takes \"again_2\" from rank 2)", "rank 2 never gives it"}},
    {MIXED, SWAP, 0, 2, 5, {"rank 0, step 2 (b_0 takes \"down_0\" from rank 0)", "before it is given"}},
    {MIXED, PEER, 0, 2, 1, {"rank 0, step 5 (b_0 takes \"down_0\" from rank 0)", "rank 0 never gives it"}},
    /* Undamaged. */
    {CYCLE, NOTHING, 0, 0, 0, {NULL}},
};

static void plant(wf_chain_steps *s, const mistake *m)
{
    const int rank = m->rank % s->ranks;
    wf_chain_step *a = &s->step[rank][m->step];
    if (m->kind == REMOVE) {
        memmove(a, a + 1, (size_t)(s->count[rank] - m->step - 1) * sizeof *a);
        s->count[rank]--;
    } else if (m->kind == SWAP) {
        /* Rank 3 stands for ranks 0 and 1. */
        for (int r = m->rank == 3 ? 0 : rank; r <= (m->rank == 3 ? 1 : rank); r++) {
            const wf_chain_step kept = s->step[r][m->step];
            s->step[r][m->step] = s->step[r][m->value];
            s->step[r][m->value] = kept;
        }
    } else if (m->kind == PEER) {
        a->peer = m->value;
    } else if (m->kind == RENAME) {
        snprintf(a->message, sizeof a->message, "other");
    } else if (m->kind == RESHAPE) {
        s->step[1][2].rank = a->rank = 2;
        s->step[1][2].dim[0] = a->dim[0] = 4;
        s->step[1][2].dim[1] = 5;
        a->dim[1] = m->value;
    } else if (m->kind == DOUBLE) {
        s->step[rank] = realloc(s->step[rank], (size_t)(s->count[rank] + 1) * sizeof *a);
        s->step[rank][s->count[rank]] = s->step[rank][m->step];
        s->count[rank]++;
    } else if (m->kind == COMPONENT) {
        snprintf(a->name, sizeof a->name, "last_0");
    }
}

static void refused(void)
{
    static specs all;
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
        const mistake *m = &mistakes[i];
        topology_of(m->of, 3, true, &all);
        wf_chain_steps *s = steps_of(&all);
        plant(s, m);
        const wf_status status = wf_chain_steps_verify(s);
        WF_EXPECT(status == (m->refused[0] ? WF_ERR_STATE : WF_OK), "mistake %zu: %s: %s", i, wf_status_name(status),
                  wf_error_message());
        for (int k = 0; k < 3 && m->refused[k]; k++)
            WF_EXPECT(strstr(wf_error_message(), m->refused[k]), "mistake %zu: '%s' does not say '%s'", i,
                      wf_error_message(), m->refused[k]);
        wf_error_clear();
        wf_chain_steps_free(s);
    }
}

/* A length of 0, and an end that says nothing, fit any. */
static void shapes_that_fit(void)
{
    static specs all;
    topology_of(CYCLE, 3, true, &all);
    wf_chain_steps *s = steps_of(&all);
    s->step[1][2].rank = 2;
    s->step[1][2].dim[0] = 4;
    WF_EXPECT_OK(wf_chain_steps_verify(s));
    s->step[2][0].rank = 2;
    s->step[2][0].dim[1] = 6;
    WF_EXPECT_OK(wf_chain_steps_verify(s));
    s->step[2][0].rank = 3;
    WF_EXPECT_ERROR(WF_ERR_STATE, wf_chain_steps_verify(s));
    wf_chain_steps_free(s);
}

static void expect_component(const char *why, wf_component c)
{
    wf_chain_steps *s = wf_chain_steps_new(ctx, NULL, 3);
    const wf_status status = wf_chain_steps_add(s, 0, &c);
    WF_EXPECT(status == WF_ERR_ARGUMENT && strstr(wf_error_message(), why), "'%s' does not say '%s'",
              wf_error_message(), why);
    WF_EXPECT(s->count[0] == 0, "steps of a component that cannot be");
    wf_error_clear();
    wf_chain_steps_free(s);
}

static void components(void)
{
    const char *const longest = "a_name_of_more_than_thirty_one_letters";
    expect_component("without a name", (wf_component){WF_FROM({.rank = 0}), WF_TO({.rank = 1})});
    expect_component("at most 31", (wf_component){.name = longest, WF_FROM({.rank = 0}), WF_TO({.rank = 1})});
    expect_component("at most 31",
                     (wf_component){.name = "c", WF_FROM({.rank = 0, .name = longest}), WF_TO({.rank = 1})});
    expect_component("takes from rank 3", (wf_component){.name = "c", WF_FROM({.rank = 3}), WF_TO({.rank = 1})});
    expect_component("gives to rank -2", (wf_component){.name = "c", WF_FROM({.rank = 0}), WF_TO({.rank = -2})});
    expect_component("names 0 inputs", (wf_component){.name = "c", WF_TO({.rank = 1})});
    expect_component("1 inputs and 0 places", (wf_component){.name = "c", WF_FROM({.rank = 0})});
    expect_component(
        "2 outputs; a layer has one",
        (wf_component){.name = "c", .outputs = 2, WF_FROM({.rank = 0}), WF_TO({.rank = 1}, {.rank = 2, .output = 1})});
    expect_component("output 1; it has 1",
                     (wf_component){.name = "c", WF_FROM({.rank = 0}), WF_TO({.rank = 1, .output = 1})});
    expect_component("output 1 of component \"c\" goes nowhere", (wf_component){.name = "c",
                                                                                .function = function_of_none,
                                                                                .outputs = 2,
                                                                                WF_FROM({.rank = 0}),
                                                                                WF_TO({.rank = 1}, {.rank = 2})});
}

int main(int argc, char **argv)
{
    ctx = wf_ctx_new((wf_ctx_opts){.device = "ref", .threads = 1});
    const int failed = test_main(argc, argv,
                                 (test_case[]){{"topologies", topologies},
                                               {"refused", refused},
                                               {"shapes_that_fit", shapes_that_fit},
                                               {"components", components},
                                               {0}});
    return wf_ctx_free(ctx) != WF_OK || failed;
}
