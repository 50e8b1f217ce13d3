/* Schedules of pipelines as data: all of a range are right and cost what the formulas say, the diagrams show them, and
 * wrong ones are refused by name. */
#include "layers/pipeline_author.h"
#include "tests/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static wf_ctx *ctx;

static const char *const kinds[] = {"1F1B", "GPipe", "interleaved"};

static wf_pipeline_schedule *made(wf_pipeline_kind kind, int stages, int parts, int chunks)
{
    wf_pipeline_schedule *s = wf_pipeline_schedule_new(
        ctx, (wf_pipeline_schedule_opts){.kind = kind, .stages = stages, .parts = parts, .chunks = chunks});
    WF_EXPECT(s, "%s", wf_error_trail());
    return s;
}

static void all_are_right(void)
{
    for (int kind = WF_PIPELINE_1F1B; kind <= WF_PIPELINE_INTERLEAVED; kind++)
        for (int stages = 1; stages <= 6; stages++)
            for (int parts = 1; parts <= (kind == WF_PIPELINE_INTERLEAVED ? 4 : 1); parts++)
                for (int chunks = 1; chunks <= 17; chunks++) {
                    wf_pipeline_schedule *s = made((wf_pipeline_kind)kind, stages, parts, chunks);
                    const wf_status status = wf_pipeline_schedule_verify(s);
                    WF_EXPECT(status == WF_OK, "%s, %d stages of %d parts, %d chunks: %s", kinds[kind], stages, parts,
                              chunks, wf_error_message());
                    wf_error_clear();
                    wf_pipeline_schedule_free(s);
                }
}

/* With messages in one order no stage deadlocks, even where a message holds up both its stages until both reach it.
 * As it is, 1F1B of several chunks would wait for ever, and the verifier says so. */
static void in_order(void)
{
    const wf_pipeline_skip skip[] = {{0, 2}, {1, 2}, {0, 1}};
    for (int kind = WF_PIPELINE_1F1B; kind <= WF_PIPELINE_INTERLEAVED; kind++)
        for (int stages = 1; stages <= 5; stages++)
            for (int parts = 1; parts <= (kind == WF_PIPELINE_INTERLEAVED ? 3 : 1); parts++)
                for (int chunks = 1; chunks <= 11; chunks++) {
                    const int skips = stages * parts < 3 || chunks % 2 ? 0 : 3;
                    wf_pipeline_schedule *s = wf_pipeline_schedule_new(
                                             ctx, (wf_pipeline_schedule_opts){.kind = (wf_pipeline_kind)kind,
                                                                              .stages = stages,
                                                                              .parts = parts,
                                                                              .chunks = chunks,
                                                                              .skips = skips,
                                                                              .skip = skip}),
                                         *ordered = wf_pipeline_schedule_in_order(s);
                    wf_status status = wf_pipeline_schedule_verify(ordered);
                    WF_EXPECT(status == WF_OK, "%s, %d stages of %d parts, %d chunks: %s", kinds[kind], stages, parts,
                              chunks, wf_error_message());
                    for (int i = 0; ordered && i < stages; i++)
                        WF_EXPECT(ordered->count[i] == s->count[i], "%d actions of %d", ordered->count[i], s->count[i]);
                    wf_error_clear();
                    s->in_order = true;
                    status = wf_pipeline_schedule_verify(s);
                    const bool waits = kind == WF_PIPELINE_1F1B && stages > 1 && chunks > 1;
                    WF_EXPECT(!waits || (status == WF_ERR_STATE &&
                                         strstr(wf_error_message(), "stages wait for each other's messages: stage ")),
                              "%s, %d stages, %d chunks: %s", kinds[kind], stages, chunks, wf_error_message());
                    wf_error_clear();
                    wf_pipeline_schedule_free(s);
                    wf_pipeline_schedule_free(ordered);
                }
}

/* A message of one stage that comes later than others have it. */
static void wrong_orders_are_refused(void)
{
    wf_pipeline_schedule *plain = made(WF_PIPELINE_1F1B, 3, 1, 5), *s = wf_pipeline_schedule_in_order(plain);
    int waits = 0;
    for (int i = 0; i < s->count[1]; i++)
        for (int j = i + 1; j < s->count[1] && s->action[1][i].verb > WF_PIPELINE_BACKWARD; j++) {
            wf_pipeline_action *a = s->action[1], kept = a[i];
            const size_t bytes = (size_t)(j - i) * sizeof *a;
            memmove(a + i, a + i + 1, bytes);
            a[j] = kept;
            const wf_status status = wf_pipeline_schedule_verify(s);
            waits += status == WF_ERR_STATE && strstr(wf_error_message(), "stages wait for each other's messages");
            wf_error_clear();
            memmove(a + i + 1, a + i, bytes);
            a[i] = kept;
        }
    WF_EXPECT(waits > 10, "%d wrong orders are refused", waits);
    WF_EXPECT_OK(wf_pipeline_schedule_verify(s));
    wf_pipeline_schedule_free(plain);
    wf_pipeline_schedule_free(s);
}

/* The gradients of a parameter are summed in the same order in every schedule. */
static void chunks_come_in_order(void)
{
    for (int kind = WF_PIPELINE_1F1B; kind <= WF_PIPELINE_INTERLEAVED; kind++) {
        const int parts = kind == WF_PIPELINE_INTERLEAVED ? 3 : 1;
        wf_pipeline_schedule *s = made((wf_pipeline_kind)kind, 3, parts, 7);
        for (int stage = 0; stage < 3; stage++) {
            int next[2][9] = {{0}};
            for (int i = 0; i < s->count[stage]; i++) {
                const wf_pipeline_action *a = &s->action[stage][i];
                if (a->verb > WF_PIPELINE_BACKWARD)
                    continue;
                const int expected = next[a->verb == WF_PIPELINE_BACKWARD][a->part]++;
                WF_EXPECT(a->chunk == expected, "%s: chunk %d of part %d comes in place %d", kinds[kind], a->chunk,
                          a->part, expected);
            }
        }
        wf_pipeline_schedule_free(s);
    }
}

/* With equal stages the idle fraction is (p - 1) / (m + p - 1), and with v parts a stage (p - 1) / (v m + p - 1). */
static void bubbles(void)
{
    const double forward[12] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1},
                 backward[12] = {2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2};
    const wf_pipeline_costs costs = {.forward_s = forward, .backward_s = backward};
    const wf_price_model free_of_charge = {.gamma_s = 0};
    for (int kind = WF_PIPELINE_1F1B; kind <= WF_PIPELINE_INTERLEAVED; kind++)
        for (int stages = 1; stages <= 4; stages++)
            for (int chunks = stages; chunks <= 4 * stages; chunks += stages) {
                const int parts = kind == WF_PIPELINE_INTERLEAVED ? 3 : 1;
                wf_pipeline_schedule *s = made((wf_pipeline_kind)kind, stages, parts, chunks);
                int live[4];
                wf_pipeline_price price = {.live = live};
                WF_EXPECT_OK(wf_pipeline_schedule_price(s, &costs, &free_of_charge, &price));
                const double expected = (stages - 1.0) / (parts * chunks + stages - 1.0);
                WF_EXPECT(test_distance(1, &price.bubble, &expected) < 1e-6,
                          "%s, %d stages, %d chunks: %g idle, not %g", kinds[kind], stages, chunks, price.bubble,
                          expected);
                for (int stage = 0; stage < stages && kind != WF_PIPELINE_INTERLEAVED; stage++) {
                    const int most = kind == WF_PIPELINE_GPIPE ? chunks : stages - stage;
                    WF_EXPECT(live[stage] == (most < chunks ? most : chunks),
                              "%s: stage %d of %d holds %d of %d chunks", kinds[kind], stage, stages, live[stage],
                              chunks);
                }
                wf_pipeline_schedule_free(s);
            }
}

/* Bytes: every boundary between stages is crossed by every chunk in both directions. */
static void bytes(void)
{
    const size_t sizes[6] = {1000, 10, 20, 30, 40, 50};
    const wf_pipeline_costs costs = {.bytes = sizes};
    wf_pipeline_schedule *s = made(WF_PIPELINE_INTERLEAVED, 3, 2, 5);
    wf_pipeline_price price = {0};
    WF_EXPECT_OK(wf_pipeline_schedule_price(s, &costs, NULL, &price));
    WF_EXPECT(price.bytes == 2 * 5 * (10 + 20 + 30 + 40 + 50), "%llu bytes", (unsigned long long)price.bytes);
    WF_EXPECT(price.seconds > 0, "messages cost nothing");
    wf_pipeline_schedule_free(s);
}

static void draw_skips(test_rng *rng, int parts, int count, wf_pipeline_skip *skip)
{
    for (int k = 0; k < count; k++) {
        skip[k].from = (int)test_int(rng, 0, parts - 2);
        skip[k].to = (int)test_int(rng, skip[k].from + 1, parts - 1);
    }
}

/* Any skips leave a schedule right, and go once in each direction, straight from stage to stage. */
static void skips(void)
{
    test_rng rng = {19};
    for (int i = 0; i < 300; i++) {
        const int stages = (int)test_int(&rng, 2, 5), chunks = (int)test_int(&rng, 1, 7), count = i % 4;
        const wf_pipeline_kind kind = (wf_pipeline_kind)test_int(&rng, 0, 2);
        const int parts = kind == WF_PIPELINE_INTERLEAVED ? (int)test_int(&rng, 1, 3) : 1;
        const size_t sizes[15] = {0}, skip_bytes[3] = {100, 1000, 10000};
        wf_pipeline_skip skip[3];
        draw_skips(&rng, stages * parts, count, skip);
        wf_pipeline_schedule *s = wf_pipeline_schedule_new(
            ctx, (wf_pipeline_schedule_opts){
                     .kind = kind, .stages = stages, .parts = parts, .chunks = chunks, .skips = count, .skip = skip});
        WF_EXPECT(s, "%s", wf_error_trail());
        WF_EXPECT_OK(wf_pipeline_schedule_verify(s));
        wf_pipeline_price price = {0};
        uint64_t expected = 0;
        for (int k = 0; k < count; k++)
            if (skip[k].from % stages != skip[k].to % stages)
                expected += 2 * (uint64_t)chunks * skip_bytes[k];
        WF_EXPECT_OK(wf_pipeline_schedule_price(s, &(wf_pipeline_costs){.bytes = sizes, .skip_bytes = skip_bytes}, NULL,
                                                &price));
        WF_EXPECT(price.bytes == expected, "%llu bytes, not %llu", (unsigned long long)price.bytes,
                  (unsigned long long)expected);
        wf_pipeline_schedule_free(s);
    }
    WF_EXPECT(!wf_pipeline_schedule_new(
                  ctx,
                  (wf_pipeline_schedule_opts){
                      .stages = 2, .parts = 1, .chunks = 2, .skips = 1, .skip = &(wf_pipeline_skip){1, 1}}) &&
                  strstr(wf_error_message(), "skip 1 goes from part 1 to part 1 of 2"),
              "%s", wf_error_message());
    wf_error_clear();
}

/* --- wrong ones -----------------------------------------------------------------------------------------------------
 */

/* Two stages, three chunks, 1F1B:
 * stage 0: F0 send F1 send receive B0 F2 send receive B1 receive B2
 *          0  1    2  3    4       5  6  7    8       9  10      11
 * stage 1: receive F0 B0 send receive F1 B1 send receive F2 B2 send
 *          0       1  2  3    4       5  6  7    8       9  10 11 */
static void remove_at(wf_pipeline_schedule *s, int stage, int step)
{
    memmove(&s->action[stage][step], &s->action[stage][step + 1],
            (size_t)(s->count[stage] - step - 1) * sizeof(wf_pipeline_action));
    s->count[stage]--;
}

static void swap_at(wf_pipeline_schedule *s, int stage, int a, int b)
{
    const wf_pipeline_action kept = s->action[stage][a];
    s->action[stage][a] = s->action[stage][b];
    s->action[stage][b] = kept;
}

static void repeat(wf_pipeline_schedule *s, int stage, int step)
{
    WF_EXPECT_OK(wf_pipeline_schedule_add(s, stage, s->action[stage][step]));
}

typedef enum damage_kind { REMOVE, SWAP, REPEAT, CHUNK, PEER, PART, GRADIENT, CIRCLE, CROSS } damage_kind;

/* A wrong schedule: what is done to a step of a stage, `value` being another step or what is put there; and what is
 * refused, and where. */
typedef struct mistake {
    damage_kind kind;
    int stage, step, value;
    const char *refused;
} mistake;

static void plant(wf_pipeline_schedule *s, const mistake *m)
{
    wf_pipeline_action *action = &s->action[m->stage][m->step];
    switch (m->kind) {
    case REMOVE:
        remove_at(s, m->stage, m->step);
        break;
    case SWAP:
        swap_at(s, m->stage, m->step, m->value);
        break;
    case REPEAT:
        repeat(s, m->stage, m->step);
        break;
    case CHUNK:
        action->chunk = m->value;
        break;
    case PEER:
        action->peer = m->value;
        break;
    case PART:
        action->part = m->value;
        break;
    case GRADIENT:
        action->gradient = true;
        break;
    case CIRCLE:
        for (int i = m->step; i < m->value; i++)
            swap_at(s, m->stage, i, m->value);
        break;
    case CROSS:
        for (int i = m->step; i < m->value; i++)
            s->action[m->stage][i].chunk = 3 - s->action[m->stage][i].chunk;
        break;
    }
}

static const mistake mistakes[] = {
    /* a send is missing */
    {REMOVE, 0, 7, 0, "stage 0 ends after 11 steps and has not sent the output of chunk 2 to stage 1"},
    /* a receive is missing */
    {REMOVE, 1, 4, 0,
     "stage 1, step 4 (forward of chunk 1 through part 1): before it has received its input from stage 0"},
    /* a gradient is not sent */
    {REMOVE, 1, 11, 0, "stage 1 ends after 11 steps and has not sent the gradient of chunk 2 to stage 0"},
    /* a gradient is not received */
    {REMOVE, 0, 10, 0,
     "stage 0, step 10 (backward of chunk 2 through part 0): before it has received the gradient from stage 1"},
    /* sends of two chunks in the wrong order */
    {CHUNK, 0, 1, 1,
     "stage 0, step 1 (send the input of part 1, chunk 1, to stage 1): before the forward that makes it"},
    /* a send before the forward that makes it */
    {SWAP, 0, 0, 1,
     "stage 0, step 0 (send the input of part 1, chunk 0, to stage 1): before the forward that makes it"},
    /* a forward before its receive */
    {SWAP, 1, 0, 1,
     "stage 1, step 0 (forward of chunk 0 through part 1): before it has received its input from stage 0"},
    /* a backward before its forward */
    {SWAP, 1, 1, 2, "stage 1, step 1 (backward of chunk 0 through part 1): before its forward"},
    /* a backward before its gradient came */
    {SWAP, 0, 4, 5,
     "stage 0, step 4 (backward of chunk 0 through part 0): before it has received the gradient from stage 1"},
    /* a gradient is sent before it is made */
    {SWAP, 1, 2, 3,
     "stage 1, step 2 (send the output's gradient of part 0, chunk 0, to stage 0): before the backward that makes it"},
    /* both wait for the other at first */
    {CIRCLE, 0, 0, 4,
     "steps wait for each other in a circle, or for one that does: rank 0, step 0 (receive 8 bytes from rank 1"},
    /* a forward twice */
    {REPEAT, 0, 0, 0, "stage 0, step 12 (forward of chunk 0 through part 0): a second time"},
    /* a backward twice */
    {REPEAT, 1, 2, 0, "stage 1, step 12 (backward of chunk 0 through part 1): a second time"},
    /* a message twice */
    {REPEAT, 0, 1, 0, "stage 0, step 12 (send the input of part 1, chunk 0, to stage 1): a second time"},
    /* to a stage that is not there */
    {PEER, 0, 1, 2,
     "stage 0, step 1 (send the input of part 1, chunk 0, to stage 2): that message goes between stages 0 and 1"},
    /* to itself */
    {PEER, 0, 1, 0,
     "stage 0, step 1 (send the input of part 1, chunk 0, to stage 0): that message goes between stages 0 and 1"},
    /* a chunk that is not there */
    {CHUNK, 1, 5, 3, "stage 1, step 5 is of part 1 and chunk 3; there are 2 parts and 3 chunks"},
    /* the part of another stage */
    {PART, 0, 6, 1, "stage 0, step 6 (forward of chunk 2 through part 1): that part is on stage 1"},
    /* a gradient where the value is expected */
    {GRADIENT, 0, 3, 0,
     "stage 0, step 3 (send the output's gradient of part 1, chunk 1, to stage 1): there is no such message"},
    /* the end is missing */
    {REMOVE, 0, 11, 0, "stage 0 ends after 11 steps without the backward of chunk 2 through part 0"},
    /* messages of one stage pair cross */
    {CROSS, 1, 4, 12,
     "messages do not meet: stage 0, step 3 (send the input of part 1, chunk 1, to stage 1); stage 1, step 4 (receive"},
    /* a receive without a send */
    {REPEAT, 1, 0, 0, "stage 1, step 12 (receive the input of part 1, chunk 0, from stage 0): a second time"},
};

static void wrong_ones_are_refused(void)
{
    for (int i = 0; i < (int)(sizeof mistakes / sizeof *mistakes); i++) {
        wf_pipeline_schedule *s = made(WF_PIPELINE_1F1B, 2, 1, 3);
        plant(s, &mistakes[i]);
        const wf_status status = wf_pipeline_schedule_verify(s);
        WF_EXPECT(status == WF_ERR_STATE && strstr(wf_error_message(), mistakes[i].refused), "wrong schedule %d: %s", i,
                  status == WF_OK ? "taken for right" : wf_error_message());
        wf_error_clear();
        wf_pipeline_schedule_free(s);
    }
}

/* Three stages, two chunks, 1F1B, and skip 1 past the second stage, whose messages are (1):
 * stage 0: F0 send send(1) F1 send send(1) receive receive(1) B0 receive receive(1) B1
 *          0  1    2       3  4    5       6       7          8  9       10         11
 * stage 2 begins: receive(1) and receive in the order of their senders, F0 B0 send send(1) ... */
static const mistake skip_mistakes[] = {
    {REMOVE, 0, 2, 0, "stage 0 ends after 11 steps and has not sent the value of a skip of chunk 0 to stage 2"},
    {REPEAT, 0, 2, 0, "stage 0, step 12 (send the value of skip 1 for part 2, chunk 0, to stage 2): a second time"},
    {PEER, 0, 2, 1,
     "(send the value of skip 1 for part 2, chunk 0, to stage 1): that message goes between stages 0 and 2"},
    {SWAP, 0, 0, 2,
     "stage 0, step 0 (send the value of skip 1 for part 2, chunk 0, to stage 2): before the forward that"},
    {REMOVE, 2, 0, 0, "stage 2, step 1 (forward of chunk 0 through part 2): before it has received"},
    {REMOVE, 2, 1, 0, "stage 2, step 1 (forward of chunk 0 through part 2): before it has received"},
    {GRADIENT, 0, 2, 0, "(send the gradient of skip 1 for part 2, chunk 0, to stage 2): there is no such message"},
};

static void wrong_skips_are_refused(void)
{
    for (int i = 0; i < (int)(sizeof skip_mistakes / sizeof *skip_mistakes); i++) {
        wf_pipeline_schedule *s = wf_pipeline_schedule_new(
            ctx, (wf_pipeline_schedule_opts){
                     .stages = 3, .parts = 1, .chunks = 2, .skips = 1, .skip = &(wf_pipeline_skip){0, 2}});
        plant(s, &skip_mistakes[i]);
        const wf_status status = wf_pipeline_schedule_verify(s);
        WF_EXPECT(status == WF_ERR_STATE && strstr(wf_error_message(), skip_mistakes[i].refused), "wrong skip %d: %s",
                  i, status == WF_OK ? "taken for right" : wf_error_message());
        wf_error_clear();
        wf_pipeline_schedule_free(s);
    }
}

/* Random damage is refused too, or changes nothing that matters. */
static void damage(void)
{
    test_rng rng = {7};
    int taken = 0;
    for (int i = 0; i < 400; i++) {
        const int stages = (int)test_int(&rng, 2, 4), chunks = (int)test_int(&rng, 1, 5);
        const wf_pipeline_kind kind = (wf_pipeline_kind)test_int(&rng, 0, 2);
        const int parts = kind == WF_PIPELINE_INTERLEAVED ? 2 : 1;
        wf_pipeline_skip skip[2];
        draw_skips(&rng, stages * parts, i % 3, skip);
        wf_pipeline_schedule *s = wf_pipeline_schedule_new(
            ctx, (wf_pipeline_schedule_opts){
                     .kind = kind, .stages = stages, .parts = parts, .chunks = chunks, .skips = i % 3, .skip = skip});
        const int stage = (int)test_int(&rng, 0, stages - 1);
        remove_at(s, stage, (int)test_int(&rng, 0, s->count[stage] - 1));
        taken += wf_pipeline_schedule_verify(s) == WF_OK;
        wf_error_clear();
        wf_pipeline_schedule_free(s);
    }
    WF_EXPECT(taken == 0, "%d schedules without one of their actions are taken for right", taken);
}

static void numbers(void)
{
    WF_EXPECT(!wf_pipeline_schedule_new(ctx, (wf_pipeline_schedule_opts){.stages = 2, .parts = 1, .chunks = 0}) &&
                  wf_error_code() == WF_ERR_ARGUMENT,
              "%s", wf_error_message());
    wf_error_clear();
    WF_EXPECT(
        !wf_pipeline_schedule_new(
            ctx, (wf_pipeline_schedule_opts){.kind = (wf_pipeline_kind)7, .stages = 2, .parts = 1, .chunks = 1}) &&
            wf_error_code() == WF_ERR_ARGUMENT,
        "%s", wf_error_message());
    wf_error_clear();
}

/* --- diagrams -------------------------------------------------------------------------------------------------------
 */

typedef struct page {
    char text[4096];
} page;

static void keep_line(void *own, const char *text)
{
    page *p = own;
    const size_t used = strlen(p->text);
    snprintf(p->text + used, sizeof p->text - used, "%s\n", text);
}

static void diagrams(void)
{
    static const char expected[] = "stage 0  0   1   .   .   (0)     2   (1)     .   (2)\n"
                                   "stage 1      0   (0)     1   (1)     2   (2)\n";
    page p = {""};
    char shown[sizeof expected];
    wf_pipeline_schedule *s = made(WF_PIPELINE_1F1B, 2, 1, 3);
    wf_pipeline_schedule_print(s, keep_line, &p);
    /* Dots stand for blanks, which an editor would cut. */
    for (size_t i = 0; i < sizeof expected; i++)
        shown[i] = (char)(expected[i] == '.' ? ' ' : expected[i]);
    WF_EXPECT(strcmp(p.text, shown) == 0, "\n%s", p.text);
    p.text[0] = '\0';
    wf_pipeline_schedule_svg(s, keep_line, &p);
    WF_EXPECT(strncmp(p.text, "<svg ", 5) == 0 && strstr(p.text, ">(2)</text>") && strstr(p.text, "</svg>"), "%s",
              p.text);
    wf_pipeline_schedule_free(s);
}

int main(int argc, char **argv)
{
    ctx = wf_ctx_new((wf_ctx_opts){.device = "ref", .threads = 1});
    const int failed = test_main(argc, argv,
                                 (test_case[]){{"all_are_right", all_are_right},
                                               {"in_order", in_order},
                                               {"wrong_orders_are_refused", wrong_orders_are_refused},
                                               {"chunks_come_in_order", chunks_come_in_order},
                                               {"bubbles", bubbles},
                                               {"bytes", bytes},
                                               {"skips", skips},
                                               {"wrong_skips_are_refused", wrong_skips_are_refused},
                                               {"wrong_ones_are_refused", wrong_ones_are_refused},
                                               {"damage", damage},
                                               {"numbers", numbers},
                                               {"diagrams", diagrams},
                                               {0}});
    WF_EXPECT_OK(wf_ctx_free(ctx));
    return failed || test_failures() > 0;
}
