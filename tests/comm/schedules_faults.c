/* Schedules of all ranks that fail, or are wrong: a rank fails at any step of any call, and the others end; no
 * rank waits for ever without a message that says so; planted mistakes are found, by the proof and by the simulation.
 */
#include "tests/comm/schedules.h"

static wf_ctx *ctx;

/* --- failures
 * --------------------------------------------------------------------------------------------------------- */

/* The step after which a rank fails, for every rank: every one, or some that are drawn. */
static void fail_in(const fixture *f, const wf_call *call, uint64_t seed)
{
    char text[200];
    test_rng rng = {seed};
    wf_schedule **all = fixture_schedules(ctx, f, call);
    for (int rank = 0; rank < f->agreed.ranks; rank++)
        for (int32_t step = 0; step <= all[rank]->steps; step++) {
            const uint64_t drawn = test_u64(&rng);
            if (drawn % 1000 >= (uint64_t)test_samples(1000))
                continue;
            const wf_status status = fixture_simulate(ctx, f, call, (const wf_schedule *const *)all, (drawn >> 12) + 1,
                                                      all[rank]->in_place, rank, step);
            WF_EXPECT(status == WF_OK, "%s, rank %d fails at step %d: %s", fixture_text(f, call, text), rank, (int)step,
                      wf_error_message());
            wf_error_clear();
            const int wrong =
                step > 0 ? 0 : wrong_ends(ctx, (const wf_schedule *const *)all, f->agreed.ranks, rank, f->ended);
            WF_EXPECT(wrong == 0, "%s, rank %d never begins: %d ranks end well", fixture_text(f, call, text), rank,
                      wrong);
        }
    fixture_free(all, f->agreed.ranks);
}

/* A rank fails at one of its steps, in every call: the others come to its error, or to the right result. It tells them,
 * or not, as when it is killed. */
static void a_rank_fails(void)
{
    for (int ranks = 3; ranks <= 8; ranks++)
        for (int form = 0; form < FIXTURE_FORMS; form++) {
            fixture f;
            if (form == FIXTURE_WIDE)
                continue;
            fixture_open(ctx, &f, ranks, form);
            fixture_each_call(&f, (uint64_t)ranks + (uint64_t)form, fail_in);
            fixture_close(&f);
        }
}

/* A rank that never comes is no circle of waits, but no rank can go on: that is said, with the rank and its step. */
static void comes_not(int form, const char *text)
{
    fixture f;
    fixture_open(ctx, &f, 3, form);
    const wf_call call = {.operation = WF_CALL_ALLREDUCE, .dtype = WF_F32, .count = 333};
    wf_schedule **all = fixture_schedules(ctx, &f, &call);
    all[1]->steps = 0;
    const wf_status status = fixture_simulate(ctx, &f, &call, (const wf_schedule *const *)all, 1, true, -1, 0);
    WF_EXPECT(status == WF_ERR_TIMEOUT && strstr(wf_error_message(), text), "%s", wf_error_message());
    wf_error_clear();
    fixture_free(all, 3);
    fixture_close(&f);
}

static void nobody_comes(void)
{
    comes_not(FIXTURE_UNSHARED, "rank 0 waits for: receive");
    comes_not(0, "rank 0 waits for: await rank 1");
}

/* A killed rank of which no other one says that it waits for it, would hang them all: it is a send without a receive
 * here, which is awaited of a rank that has ended well. */
static void nobody_notices(void)
{
    fixture f;
    fixture_open(ctx, &f, 4, 0);
    const wf_call call = {.operation = WF_CALL_LISTS, .dtype = WF_U8, .count = 333, .parts = LISTS_ONE};
    wf_schedule **all = fixture_schedules(ctx, &f, &call);
    all[1]->steps = 0;
    const wf_status status = fixture_simulate(ctx, &f, &call, (const wf_schedule *const *)all, 2, true, 3, 0);
    WF_EXPECT(status == WF_ERR_TIMEOUT && strstr(wf_error_message(), "rank 0 waits for: send"), "%s",
              wf_error_message());
    wf_error_clear();
    fixture_free(all, 4);
    fixture_close(&f);
}

/* --- what is found --------------------------------------------------------------------------------------------------
 */

/* The step number `which` of a kind. */
static wf_step *step_of(const wf_schedule *s, wf_step_kind kind, int which)
{
    for (int32_t i = 0; i < s->steps; i++)
        if (s->step[i].kind == kind && which-- == 0)
            return &s->step[i];
    WF_EXPECT(false, "no such step");
    return s->step;
}

/* It does nothing any more, but keeps its place. */
static void drop(wf_step *step)
{
    step->kind = WF_STEP_STAGE;
    step->from = step->to = step->also = WF_NOWHERE;
}

/* The last one to its rank, so that the others still meet. */
static void drop_send(wf_schedule *const *all)
{
    wf_step *last = NULL;
    for (int32_t i = 0; i < all[2]->steps; i++)
        last = all[2]->step[i].kind == WF_STEP_SEND && all[2]->step[i].peer == 3 ? &all[2]->step[i] : last;
    drop(last);
}

static void skip_last_receive(wf_schedule *const *all)
{
    wf_step *last = NULL;
    for (int32_t i = 0; i < all[1]->steps; i++)
        last = all[1]->step[i].kind == WF_STEP_RECV ? &all[1]->step[i] : last;
    drop(last);
}

static void swap_order(wf_schedule *const *all)
{
    wf_step *a = step_of(all[1], WF_STEP_SEND, 0), *b = NULL;
    for (int32_t i = 0; i < all[1]->steps; i++)
        if (all[1]->step[i].kind == WF_STEP_SEND && all[1]->step[i].peer == a->peer &&
            all[1]->step[i].bytes != a->bytes)
            b = &all[1]->step[i];
    WF_EXPECT(b, "messages of one length only");
    const wf_step kept = *a;
    a->from = b->from;
    a->bytes = b->bytes;
    b->from = kept.from;
    b->bytes = kept.bytes;
}

static void wrong_bytes(wf_schedule *const *all)
{
    step_of(all[0], WF_STEP_SEND, 1)->bytes -= 4;
}

static void more_bytes(wf_schedule *const *all)
{
    step_of(all[0], WF_STEP_SEND, 1)->bytes += 4;
}

static void wrong_peer(wf_schedule *const *all)
{
    wf_step *step = step_of(all[0], WF_STEP_RECV, 0);
    step->peer = step->peer == 1 ? 2 : 1;
}

/* Makes the first send of every rank wait for its first result, which waits for all first sends. */
static void circle(wf_schedule *const *all)
{
    for (int r = 0; r < 4; r++) {
        wf_step *combine = step_of(all[r], WF_STEP_COMBINE, 0);
        for (int i = 0; i < 3; i++) {
            wf_step *send = step_of(all[r], WF_STEP_SEND, i);
            send->wait = all[r]->step[all[r]->steps - 1].wait; /* a list of one entry, of the last collecting send */
            send->waits = 1;
            all[r]->wait[send->wait] = (int32_t)(combine - all[r]->step);
        }
    }
}

/* The second result is written where the first one is sent from. */
static void overlap(wf_schedule *const *all)
{
    step_of(all[3], WF_STEP_COMBINE, 1)->to = step_of(all[3], WF_STEP_COMBINE, 0)->to;
}

static void no_wait(wf_schedule *const *all)
{
    wf_step *combine = step_of(all[2], WF_STEP_COMBINE, 0);
    combine->wait++;
    combine->waits--;
}

/* The result of others arrives in the place of what has not been sent yet. */
static void collect_early(wf_schedule *const *all)
{
    wf_schedule *s = all[1];
    for (int32_t i = 0; i < s->steps; i++)
        if (s->step[i].kind == WF_STEP_RECV && s->operand[s->step[i].to.operand].kind == WF_OPERAND_OUTPUT)
            s->step[i].waits = 0;
}

static void beyond_the_end(wf_schedule *const *all)
{
    for (int32_t i = 0; i < all[0]->operands; i++)
        all[0]->operand[i].bytes -= all[0]->operand[i].kind == WF_OPERAND_OUTPUT;
}

static void never_written(wf_schedule *const *all)
{
    for (int32_t i = 0; i < all[0]->operands; i++)
        all[0]->operand[i].bytes += all[0]->operand[i].kind == WF_OPERAND_OUTPUT ? 4 : 0;
}

static void reads_what_is_not_there(wf_schedule *const *all)
{
    wf_step *combine = step_of(all[0], WF_STEP_COMBINE, 0);
    const wf_address more = {.operand = all[0]->operands - 1, .at = all[0]->operand[all[0]->operands - 1].bytes};
    all[0]->operand[more.operand].bytes += combine->bytes;
    all[0]->input[combine->list + 2] = more;
}

static void no_flag(wf_schedule *const *all)
{
    wf_schedule *s = all[1];
    for (int32_t i = 0; i < s->steps; i++)
        if (s->step[i].kind == WF_STEP_NOTIFY)
            s->step[i].value -= 1;
}

/* Raises the flag of a later slot in place of that of the first. */
static void other_slot(wf_schedule *const *all)
{
    wf_step *notify = step_of(all[1], WF_STEP_NOTIFY, 0);
    int which = 1;
    while (step_of(all[1], WF_STEP_NOTIFY, which)->to.operand < 0)
        which++;
    notify->to = step_of(all[1], WF_STEP_NOTIFY, which)->to;
}

/* A slot's flag goes on to its next piece, whoever waits for the last one. */
static void flag_in_haste(wf_schedule *const *all)
{
    for (int32_t i = 0; i < all[1]->steps; i++)
        if (all[1]->step[i].kind == WF_STEP_NOTIFY && all[1]->step[i].to.operand >= 0)
            all[1]->step[i].waits = 0;
}

/* Reads the others' copies before they say that they are there. */
static void no_await(wf_schedule *const *all)
{
    wf_step *combine = step_of(all[0], WF_STEP_COMBINE, 0);
    combine->waits = 0;
}

/* Writes into a slot that others still read. */
static void no_room(wf_schedule *const *all)
{
    for (int32_t i = 0; i < all[0]->steps; i++)
        if (all[0]->step[i].kind == WF_STEP_COPY &&
            all[0]->operand[all[0]->step[i].to.operand].kind == WF_OPERAND_SHARED)
            all[0]->step[i].waits = 0;
}

/* Says that a copy is there in the list before it is made: right for who waits as told, but not one by one. */
static void notify_in_front(wf_schedule *const *all)
{
    wf_schedule *s = all[0];
    wf_step *notify = step_of(s, WF_STEP_NOTIFY, 0), *last = &s->step[s->steps - 1], kept = *notify;
    const int32_t at = (int32_t)(notify - s->step);
    *notify = notify[-1];
    notify[-1] = kept;
    for (int32_t w = 0; w < last->wait + last->waits; w++)
        s->wait[w] = s->wait[w] == at || s->wait[w] == at - 1 ? 2 * at - 1 - s->wait[w] : s->wait[w];
}

static void no_frame(wf_schedule *const *all)
{
    for (int32_t i = 0; i < all[2]->steps; i++)
        if (all[2]->step[i].kind == WF_STEP_CALL)
            all[2]->step[i].waits = 0;
}

typedef struct mistake {
    const char *name;
    void (*make)(wf_schedule *const *all);
    const char *text; /* in the verifier's words */
    const wf_call *call;
    bool races; /* the simulation finds it too */
} mistake;

static const wf_call allreduce = {.operation = WF_CALL_ALLREDUCE, .dtype = WF_F32, .count = 333};
static const wf_call in_ring = {.operation = WF_CALL_SUM, .reducer = "single_node", .dtype = WF_F32, .count = 4000};
static const wf_call lists = {
    .operation = WF_CALL_LISTS, .dtype = WF_U8, .count = 36, .parts = LISTS_ALL, .check = fixture_check_frame};

static const mistake mistakes[] = {
    {"a dropped send", drop_send, "a receive without a send", &allreduce, false},
    {"a rank that skips its last step", skip_last_receive, "a send without a receive", &allreduce, false},
    {"swapped order", swap_order, "a send meets a receive of other bytes", &allreduce, false},
    {"wrong bytes", wrong_bytes, "a send meets a receive of other bytes", &allreduce, false},
    {"more bytes", more_bytes, "a send meets a receive of other bytes", &allreduce, false},
    {"another peer", wrong_peer, "a send ", &allreduce, false},
    {"a circle", circle, "in a circle", &allreduce, false},
    {"an overlap", overlap, "may run together", &allreduce, true},
    {"a sum that does not wait", no_wait, "may run together", &allreduce, true},
    {"a result that comes too early", collect_early, "may run together", &allreduce, true},
    {"beyond the end", beyond_the_end, "beyond the end", &allreduce, false},
    {"an output that is not written", never_written, "is never written", &allreduce, false},
    {"scratch that is not written", reads_what_is_not_there, "read before it is written", &allreduce, true},
    {"a flag that is not raised", no_flag, "never raised", &in_ring, false},
    {"a flag of another slot", other_slot, "never raised", &in_ring, false},
    {"a flag of a slot that changes too early", flag_in_haste, "may change before it is seen", &in_ring, true},
    {"a flag that is raised too early in line", notify_in_front, "in a circle", &in_ring, false},
    {"a flag that is not awaited", no_await, "may run together", &in_ring, true},
    {"a slot that is not free", no_room, "may run together", &in_ring, true},
    {"a frame that is looked at too early", no_frame, "may run together", &lists, true},
};

static void found(const mistake *m)
{
    fixture f;
    fixture_open(ctx, &f, 4, m->call == &in_ring ? 0 : FIXTURE_UNSHARED);
    f.agreed.pieces_ahead = 2;
    wf_call call = *m->call;
    if (call.check)
        fixture_checks(&call);
    wf_schedule **all = fixture_schedules(ctx, &f, &call);
    m->make(all);
    for (int r = 0; r < 4; r++)
        WF_EXPECT_OK(wf_schedule_link(ctx, all[r]));
    const wf_status status = wf_schedule_verify(ctx, (const wf_schedule *const *)all, 4);
    WF_EXPECT(status == WF_ERR_STATE && strstr(wf_error_message(), m->text), "%s: %s", m->name,
              status == WF_OK ? "not found" : wf_error_message());
    wf_error_clear();
    int caught = 0;
    for (uint64_t seed = 1; seed <= 40 && m->races; seed++)
        caught += !fixture_right(ctx, &f, &call, (const wf_schedule *const *)all, seed);
    WF_EXPECT(!m->races || caught > 0, "%s: the simulation finds nothing wrong", m->name);
    wf_error_clear();
    fixture_free(all, 4);
    fixture_close(&f);
}

static void planted_mistakes(void)
{
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++)
        found(&mistakes[i]);
}

int main(int argc, char **argv)
{
    ctx = wf_ctx_new((wf_ctx_opts){.device = "cpu", .threads = 1});
    const int failed = test_main(argc, argv,
                                 (test_case[]){{"a_rank_fails", a_rank_fails},
                                               {"nobody_comes", nobody_comes},
                                               {"nobody_notices", nobody_notices},
                                               {"planted_mistakes", planted_mistakes},
                                               {0}});
    return wf_ctx_free(ctx) != WF_OK || failed;
}
