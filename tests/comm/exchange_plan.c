/* Plans on random partitions with random needs: every needed element arrives exactly once, from a rank that has it;
 * sends and receives of two ranks are the same lists. */
#include "comm/plan_author.h"
#include "tests/boxes.h"
#include "tests/test.h"

#include <stdio.h>
#include <string.h>

enum { MOST = 30, SIDE = 12 };

static wf_ctx *ctx;

/* Uneven blocks along every dimension of a grid; some parts are empty. */
static int random_partition(test_rng *rng, wf_shape shape, wf_box have[MOST])
{
    const int rows = (int)test_int(rng, 1, 6), columns = (int)test_int(rng, 1, 5);
    int64_t cut[2][7];
    for (int d = 0; d < 2; d++) {
        const int parts = d == 0 ? rows : columns;
        cut[d][0] = 0;
        for (int i = 1; i < parts; i++)
            cut[d][i] = test_int(rng, cut[d][i - 1], shape.dim[d]);
        cut[d][parts] = shape.dim[d];
    }
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j++) {
            wf_box *box = &have[i * columns + j];
            *box = wf_box_of_shape(shape);
            box->lo[0] = cut[0][i];
            box->hi[0] = cut[0][i + 1];
            box->lo[1] = cut[1][j];
            box->hi[1] = cut[1][j + 1];
        }
    return rows * columns;
}

static void mark(unsigned char *seen, wf_box box)
{
    for (int64_t i = box.lo[0]; i < box.hi[0]; i++)
        for (int64_t j = box.lo[1]; j < box.hi[1]; j++)
            seen[i * SIDE + j]++;
}

/* Every needed element comes once, from the first rank that has it, from this one on. */
static void check_rank(const wf_plan *plan, const wf_box *have, wf_box need)
{
    unsigned char seen[SIDE * SIDE] = {0};
    for (int64_t i = 0; i < plan->n_recv; i++) {
        const wf_piece *p = &plan->recv[i];
        WF_EXPECT(!wf_box_empty(p->box) && wf_box_contains(have[p->peer], p->box), "piece %ld is not rank %d's",
                  (long)i, p->peer);
        WF_EXPECT(i == 0 || plan->recv[i - 1].peer <= p->peer, "receives are ordered by peer");
        for (int q = plan->rank; q != p->peer; q = (q + 1) % plan->size)
            WF_EXPECT(wf_box_empty(wf_box_intersect(have[q], p->box)), "rank %d has what comes from %d", q, p->peer);
        mark(seen, p->box);
    }
    for (int64_t i = 0; i < SIDE; i++)
        for (int64_t j = 0; j < SIDE; j++) {
            const bool in = i >= need.lo[0] && i < need.hi[0] && j >= need.lo[1] && j < need.hi[1];
            WF_EXPECT(seen[i * SIDE + j] == in, "element %ld,%ld comes %d times", (long)i, (long)j, seen[i * SIDE + j]);
        }
}

/* The pieces that a sends to b are those that b receives from a, in order. */
static void check_pair(const wf_plan *a, const wf_plan *b)
{
    int64_t i = 0, j = 0;
    for (;; i++, j++) {
        while (i < a->n_send && a->send[i].peer != b->rank)
            i++;
        while (j < b->n_recv && b->recv[j].peer != a->rank)
            j++;
        if (i == a->n_send || j == b->n_recv)
            break;
        WF_EXPECT(wf_box_equal(a->send[i].box, b->recv[j].box), "piece %ld to %d differs", (long)i, b->rank);
    }
    WF_EXPECT(i == a->n_send && j == b->n_recv, "rank %d sends more or less than %d receives", a->rank, b->rank);
}

static void check_all(int size, const wf_box *have, const wf_box *need)
{
    wf_plan *plan[MOST] = {0};
    int64_t sent = 0, received = 0;
    for (int r = 0; r < size; r++) {
        WF_EXPECT_OK(wf_plan_make(ctx, r, size, NULL, have, need, NULL, &plan[r]));
        if (!plan[r])
            return;
        check_rank(plan[r], have, need[r]);
        sent += plan[r]->elements_sent;
        received += plan[r]->elements_received;
    }
    WF_EXPECT(sent == received, "%ld sent, %ld received", (long)sent, (long)received);
    for (int r = 0; r < size; r++)
        WF_EXPECT(plan[r]->moves == (sent > 0), "rank %d says %d of %ld elements sent", r, plan[r]->moves, (long)sent);
    for (int a = 0; a < size; a++)
        for (int b = 0; b < size; b++)
            check_pair(plan[a], plan[b]);
    for (int r = 0; r < size; r++)
        wf_plan_free(plan[r]);
}

static void random_plans(void)
{
    test_rng rng = {.state = 20261121};
    printf("seed %llu\n", (unsigned long long)rng.state);
    for (int i = 0; i < 400; i++) {
        const wf_shape shape = WF_SHAPE(SIDE, test_int(&rng, 1, SIDE));
        wf_box have[MOST], need[MOST];
        const int size = random_partition(&rng, shape, have);
        for (int r = 0; r < size; r++)
            need[r] = box_random(&rng, shape);
        check_all(size, have, need);
    }
}

static void replicas(void)
{
    test_rng rng = {.state = 7};
    for (int i = 0; i < 200; i++) {
        const wf_shape shape = WF_SHAPE(SIDE, SIDE);
        wf_box have[MOST], need[MOST];
        const int size = random_partition(&rng, shape, have);
        for (int r = 0; r < size; r++) { /* overlapping haves that still cover everything */
            for (int d = 0; d < 2; d++) {
                have[r].lo[d] = test_int(&rng, 0, have[r].lo[d]);
                have[r].hi[d] = test_int(&rng, have[r].hi[d], SIDE);
            }
            need[r] = box_random(&rng, shape);
        }
        check_all(size, have, need);
    }
}

/* L=10 on P=4 (3,3,2,2), k=s=2, outputs 2,1,1,1: rank 0 needs one element from its right, rank 1 trims its first. */
static void known_answer(void)
{
    wf_box have[4], need[4];
    const int64_t first[5] = {0, 3, 6, 8, 10}, wanted[5] = {0, 4, 6, 8, 10};
    for (int r = 0; r < 4; r++) {
        have[r] = (wf_box){.rank = 1, .lo = {first[r]}, .hi = {first[r + 1]}};
        need[r] = (wf_box){.rank = 1, .lo = {wanted[r]}, .hi = {wanted[r + 1]}};
    }
    const int64_t sent[4] = {0, 1, 0, 0}, received[4] = {1, 0, 0, 0}, kept[4] = {3, 2, 2, 2};
    for (int r = 0; r < 4; r++) {
        wf_plan *plan = NULL;
        WF_EXPECT_OK(wf_plan_make(ctx, r, 4, NULL, have, need, NULL, &plan));
        WF_EXPECT(plan->elements_sent == sent[r] && plan->elements_received == received[r] &&
                      plan->elements_kept == kept[r],
                  "rank %d sends %ld, receives %ld, keeps %ld", r, (long)plan->elements_sent,
                  (long)plan->elements_received, (long)plan->elements_kept);
        wf_plan_free(plan);
    }
}

static void nobody_has(void)
{
    const wf_box have[2] = {{.rank = 1, .lo = {0}, .hi = {3}}, {.rank = 1, .lo = {4}, .hi = {6}}};
    const wf_box need[2] = {{.rank = 1, .lo = {2}, .hi = {5}}, {.rank = 1}};
    for (int r = 0; r < 2; r++) { /* on both ranks, though rank 1 needs nothing */
        wf_plan *plan = NULL;
        const wf_status status = wf_plan_make(ctx, r, 2, NULL, have, need, NULL, &plan);
        WF_EXPECT(status == WF_ERR_SHAPE && strstr(wf_error_message(), "rank 0 needs a box of shape [1]"), "%s",
                  wf_error_message());
    }
    wf_error_clear();
}

int main(int argc, char **argv)
{
    ctx = wf_ctx_new((wf_ctx_opts){0});
    const int failed = test_main(argc, argv,
                                 (test_case[]){{"random_plans", random_plans},
                                               {"replicas", replicas},
                                               {"known_answer", known_answer},
                                               {"nobody_has", nobody_has},
                                               {0}});
    WF_EXPECT_OK(wf_ctx_free(ctx));
    return failed || test_failures() > 0;
}
