/* A run of a schedule on one rank, over a link of this file whose messages end as a test says: with bytes missing, with
 * an error, or never. */
#include "comm/engine/run_author.h"
#include "comm/proof/proof_author.h"
#include "tests/test.h"

#include <string.h>

enum { BYTES = 100, RANKS = 3 };

static wf_ctx *ctx;
static wf_agreed agreed;

/* --- a link ---------------------------------------------------------------------------------------------------------
 */

typedef struct fate {
    bool arrives;
    wf_status status;
    size_t arrived;
} fate;

static wf_status start(void *own, wf_transfer *t)
{
    return WF_OK;
}

static wf_status test(void *own, wf_transfer *t)
{
    const fate *f = own;
    t->done = f->arrives;
    t->status = f->status;
    t->arrived = f->arrived;
    return WF_OK;
}

static void cancel(void *own, wf_transfer *t)
{
}

static wf_link link_of(fate *f)
{
    return (wf_link){.own = f, .start = start, .test = test, .cancel = cancel};
}

/* --- runs -----------------------------------------------------------------------------------------------------------
 */

/* Receives from rank 2, with a send to rank 1 before it where `sends`. */
static wf_schedule *receiver(bool sends)
{
    wf_schedule *s;
    wf_builder *b = wf_builder_new(ctx, &agreed, 0);
    const wf_address to = wf_builder_operand(b, WF_OPERAND_OUTPUT, 0, BYTES);
    if (sends)
        wf_add_send(b, wf_builder_operand(b, WF_OPERAND_INPUT, 1, BYTES), BYTES, 1);
    wf_add_recv(b, to, BYTES, 2);
    WF_EXPECT_OK(wf_builder_end(b, &s));
    return s;
}

/* Returns the status of a run whose receive has this fate, on ranks that have these numbers in the world (NULL: their
 * own). */
static wf_status end_among(const int32_t *world_rank, fate f)
{
    char memory[BYTES] = {0};
    void *data[] = {memory};
    const wf_link link = link_of(&f);
    bool moved = false;
    wf_schedule *s = receiver(false);
    wf_run *run = wf_run_new(ctx, s);
    run->link = &link;
    run->data = data;
    run->world_rank = world_rank;
    wf_run_begin(run, false);
    const wf_status status = wf_run_advance(run, &moved);
    wf_run_free(run);
    wf_schedule_free(s);
    return status;
}

static wf_status end_of(fate f)
{
    return end_among(NULL, f);
}

static void refused(const int32_t *world_rank, size_t arrived, const char *text)
{
    const wf_status status = end_among(world_rank, (fate){.arrives = true, .arrived = arrived});
    WF_EXPECT(status == WF_ERR_COMM && !strcmp(wf_error_message(), text), "%d: %s", (int)status, wf_error_message());
    wf_error_clear();
}

static void other_length(void)
{
    static const int32_t in_world[] = {1, 4, 6, 7};
    WF_EXPECT_OK(end_of((fate){.arrives = true, .arrived = BYTES}));
    refused(NULL, BYTES - 4, "rank 2 sent 96 bytes where 100 are expected");
    refused(NULL, SIZE_MAX, "rank 2 sent more than the 100 bytes that are expected");
    refused(in_world, BYTES - 4, "rank 6 (2) sent 96 bytes where 100 are expected");
    refused(in_world, SIZE_MAX, "rank 6 (2) sent more than the 100 bytes that are expected");
}

/* What the transport says of a message is the run's error, not a wrong length. */
static void failed_message(void)
{
    WF_EXPECT(end_of((fate){.arrives = true, .status = WF_ERR_IO}) == WF_ERR_IO, "the status of a message is lost");
    wf_error_clear();
}

/* What a message may still write to is never given to anybody else. */
static void unfinished_memory(void)
{
    void *data[1], *next;
    fate never = {0};
    const wf_link link = link_of(&never);
    bool moved = false;
    wf_schedule *s = receiver(false);
    wf_run *run = wf_run_new(ctx, s);
    WF_EXPECT_OK(wf_pool_take(ctx, BYTES, &data[0]));
    run->link = &link;
    run->data = data;
    wf_run_begin(run, false);
    WF_EXPECT_OK(wf_run_advance(run, &moved));
    WF_EXPECT(!wf_run_done(run), "a receive ends by itself");
    WF_EXPECT(!wf_run_cancel(run), "a message that cannot be called back is said to be over");
    wf_pool_give(ctx, data[0], BYTES);
    WF_EXPECT_OK(wf_pool_take(ctx, BYTES, &next));
    WF_EXPECT(next != data[0], "memory of a message under way is used again");
    wf_pool_give(ctx, next, BYTES);
    wf_run_free(run);
    wf_schedule_free(s);
}

/* A rank that others wait for is one that has not sent; who has not received may wait for it, too. */
static void awaited(void)
{
    char memory[2][BYTES] = {{0}};
    void *data[] = {memory[0], memory[1]};
    fate never = {0};
    const wf_link link = link_of(&never);
    bool moved = false;
    wf_schedule *s = receiver(true);
    wf_run *run = wf_run_new(ctx, s);
    run->link = &link;
    run->data = data;
    wf_run_begin(run, false);
    WF_EXPECT_OK(wf_run_advance(run, &moved));
    WF_EXPECT(wf_run_awaited(run) == 2, "rank %d is awaited, not 2", wf_run_awaited(run));
    (void)wf_run_cancel(run);
    wf_run_free(run);
    wf_schedule_free(s);
}

static int calls;

static wf_status count_call(void *own, const void *from, size_t from_bytes, void *to, size_t to_bytes)
{
    calls++;
    return WF_OK;
}

/* As many local steps in one advance as the owner allows. */
static void steps_at_once(void)
{
    wf_schedule *s;
    bool moved = false;
    wf_builder *b = wf_builder_new(ctx, &agreed, 0);
    for (int i = 0; i < 5; i++)
        wf_add_call(b, (wf_step_call){.run = count_call}, WF_NOWHERE, WF_NOWHERE, 0);
    WF_EXPECT_OK(wf_builder_end(b, &s));
    wf_run *run = wf_run_new(ctx, s);
    run->steps_at_once = 2;
    wf_run_begin(run, false);
    for (int advances = 1; advances <= 3; advances++) {
        WF_EXPECT_OK(wf_run_advance(run, &moved));
        WF_EXPECT(calls == (advances < 3 ? 2 * advances : 5), "%d steps after %d advances", calls, advances);
    }
    WF_EXPECT(wf_run_done(run), "steps are left");
    wf_run_free(run);
    wf_schedule_free(s);
}

/* Rank 0 waits for a flag of rank 2, and makes a call that waits for nothing. */
static wf_schedule *awaiter(const wf_agreed *near)
{
    wf_schedule *s;
    wf_builder *b = wf_builder_new(ctx, near, 0);
    wf_builder_ring(b, 1);
    wf_add_await(b, 2, 0, 1);
    wf_add_call(b, (wf_step_call){.run = count_call}, WF_NOWHERE, WF_NOWHERE, 0);
    WF_EXPECT_OK(wf_builder_end(b, &s));
    return s;
}

/* One by one, what waits for a flag holds up all behind it; and a flag that was seen is not looked at again. */
static void in_line(void)
{
    static const int32_t node[RANKS];
    static _Alignas(WF_FLAG_LINE) char flags[RANKS][WF_FLAGS * WF_FLAG_LINE];
    char *const flag_of[RANKS] = {flags[0], flags[1], flags[2]};
    int64_t seen[RANKS * WF_FLAGS] = {0};
    wf_ring_flag *raised = (wf_ring_flag *)(void *)flags[2];
    wf_agreed near;
    WF_EXPECT_OK(wf_agreed_make(ctx, RANKS, node, &near));
    wf_schedule *s = awaiter(&near);
    wf_run *run = wf_run_new(ctx, s);
    for (int line = 0; line < 2; line++) {
        bool moved = false;
        calls = 0;
        atomic_store(raised, 0);
        run->flags = flag_of;
        run->seen = seen;
        wf_run_begin(run, line);
        WF_EXPECT_OK(wf_run_advance(run, &moved));
        WF_EXPECT(calls == !line && !wf_run_done(run), "%d calls before the flag is raised", calls);
        WF_EXPECT(wf_run_awaited(run) == 2, "rank %d is awaited, not 2", wf_run_awaited(run));
        atomic_store(raised, 1);
        WF_EXPECT_OK(wf_run_advance(run, &moved));
        WF_EXPECT(calls == 1 && wf_run_done(run), "%d calls after the flag was raised", calls);
        WF_EXPECT(seen[2 * WF_FLAGS] == 1, "the flag was not remembered");
        seen[2 * WF_FLAGS] = 0;
    }
    seen[2 * WF_FLAGS] = 1;
    atomic_store(raised, 0);
    run->flags = flag_of;
    run->seen = seen;
    wf_run_begin(run, true);
    WF_EXPECT_OK(wf_run_advance(run, &(bool){false}));
    WF_EXPECT(wf_run_done(run), "a flag that was seen is looked at again");
    wf_run_free(run);
    wf_schedule_free(s);
    wf_agreed_clear(&near);
}

/* A slot is awaited until it holds the piece, of this call, whatever it held before. */
static void slot_of_another_call(void)
{
    enum { TAG = 77 };
    static const int32_t node[RANKS];
    static const int64_t others[] = {0, (int64_t)5 << 32 | TAG, (int64_t)7 << 32 | TAG, (int64_t)6 << 32 | (TAG + 1)};
    _Alignas(64) int64_t slot[8] = {0};
    void *data[] = {&slot[1]};
    wf_agreed near;
    wf_schedule *s;
    WF_EXPECT_OK(wf_agreed_make(ctx, RANKS, node, &near));
    wf_builder *b = wf_builder_new(ctx, &near, 0);
    const int64_t piece = wf_builder_ring(b, 1);
    wf_add_slot_await(b, 2, wf_builder_shared(b, 2, piece), piece + 1);
    WF_EXPECT_OK(wf_builder_end(b, &s));
    wf_run *run = wf_run_new(ctx, s);
    for (int line = 0; line < 2; line++) {
        bool moved = false;
        run->data = data;
        run->ring_pieces = 5;
        run->tag = TAG;
        wf_run_begin(run, line);
        for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
            slot[0] = others[i];
            WF_EXPECT_OK(wf_run_advance(run, &moved));
            WF_EXPECT(!wf_run_done(run), "a slot with flag %llx is taken", (unsigned long long)others[i]);
        }
        slot[0] = (int64_t)6 << 32 | TAG;
        WF_EXPECT_OK(wf_run_advance(run, &moved));
        WF_EXPECT(wf_run_done(run), "the slot is not taken");
    }
    wf_run_free(run);
    wf_schedule_free(s);
    wf_agreed_clear(&near);
}

int main(int argc, char **argv)
{
    const int32_t node[RANKS] = {0, 1, 2};
    ctx = wf_ctx_new((wf_ctx_opts){.device = "cpu", .threads = 1});
    WF_EXPECT_OK(wf_agreed_make(ctx, RANKS, node, &agreed));
    const int failed = test_main(argc, argv,
                                 (test_case[]){{"other_length", other_length},
                                               {"failed_message", failed_message},
                                               {"unfinished_memory", unfinished_memory},
                                               {"awaited", awaited},
                                               {"steps_at_once", steps_at_once},
                                               {"in_line", in_line},
                                               {"slot_of_another_call", slot_of_another_call},
                                               {0}});
    wf_agreed_clear(&agreed);
    return wf_ctx_free(ctx) != WF_OK || failed;
}
