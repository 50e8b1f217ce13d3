/* Backward beside sums of gradients between nodes, as the library computes and sends them: what drives the messages
 * takes processor time, and messages wait until backward looks at them. Three times are measured in turn: sums alone, a
 * step alone, and a step that begins while enough sums are under way to last beyond it. */
#include "optim/planner/planner_impl.h"

#include "comm/background_author.h"
#include "comm/comm_author.h"
#include "core/profile_author.h"
#include "layers/functions.h"

#include <stdio.h>
#include <stdlib.h>

/* An odd number of rounds; the two first are not counted. */
enum { ROUNDS = 9, WARM = 2, MOST = 64 };

typedef enum part { SUMS, STEP, BESIDE, LEFT, PARTS } part;

typedef struct measuring {
    wf_gauge *g;
    const wf_planner_model *m;
    wf_tape *tape;
    wf_tensor **x, *bucket;
    int sums;
    double took[PARTS][ROUNDS]; /* SUMS: until all are over; LEFT: what remains of them behind the step */
} measuring;

/* The sum of zeros stays zero, however often. */
static void begin_sums(const measuring *c)
{
    static const int64_t ends[] = {0, WF_PLANNER_SUM};
    const wf_call job = {.out = c->bucket->data, .dtype = WF_F32, .parts = 1, .part = ends};
    for (int i = 0; i < c->sums; i++)
        wf_background_sum(c->g->comm, &job);
}

/* All sums are begun before the first is waited for, as buckets are in a step. */
static wf_status time_sums(measuring *c, int round)
{
    WF_TRY(wf_barrier(c->g->comm));
    const double start = wf_planner_now();
    begin_sums(c);
    WF_TRY(wf_background_wait(c->g->comm));
    c->took[SUMS][round] = wf_planner_now() - start;
    return WF_OK;
}

static wf_status time_step(measuring *c, bool sums, int round)
{
    wf_var *y = wf_planner_apply(c->m, c->tape, c->x);
    wf_var *loss = wf_mean(wf_mul(y, y));
    WF_TRY(wf_check(loss));
    /* All ranks begin together, or the first would wait in a sum for the last. */
    WF_TRY(wf_barrier(c->g->comm));
    const double start = wf_planner_now();
    if (sums)
        begin_sums(c);
    WF_TRY(wf_optim_step(c->g->optim, loss));
    const double end = wf_planner_now();
    c->took[sums ? BESIDE : STEP][round] = end - start;
    if (sums)
        WF_TRY(wf_background_wait(c->g->comm));
    if (sums)
        c->took[LEFT][round] = wf_planner_now() - end;
    return wf_tape_reset(c->tape);
}

/* As many sums as last half as long again as a step, so that they are under way to its end. All ranks take the same
 * number. */
static wf_status choose_sums(measuring *c)
{
    c->sums = 1;
    for (int i = 0; i < WARM; i++) {
        WF_TRY(time_sums(c, 0));
        WF_TRY(time_step(c, false, 0));
    }
    double wanted = 1.5 * c->took[STEP][0] / c->took[SUMS][0];
    WF_TRY(wf_allreduce_f64(c->g->comm, &wanted, 1, WF_MAX));
    c->sums = wanted > MOST ? MOST : (int)wanted + 1;
    return WF_OK;
}

/* By what factor; noise makes nothing faster. A divisor near 0 is noise too. */
static double slower_of(double beside_s, double alone_s)
{
    const double factor = alone_s > 0.01 * beside_s ? beside_s / alone_s : 100;
    return factor < 1 ? 1 : factor;
}

static wf_status time_rounds(measuring *c, double slower[2])
{
    double t[PARTS];
    WF_TRY(choose_sums(c));
    /* In turn, so that a drift of the clock or of other programs meets all three alike. */
    for (int i = 0; i < ROUNDS; i++) {
        WF_TRY(time_sums(c, i));
        WF_TRY(time_step(c, false, i));
        WF_TRY(time_step(c, true, i));
    }
    for (int i = 0; i < PARTS; i++)
        t[i] = wf_gauge_median(c->took[i], ROUNDS);
    slower[0] = slower_of(t[BESIDE], t[STEP]);
    /* The sums' own progress during the step is what is left of their time alone. */
    slower[1] = slower_of(t[BESIDE], t[SUMS] - t[LEFT]);
    return WF_OK;
}

static wf_status measure(wf_gauge *g, const wf_planner_model *m, int64_t batch, double slower[2])
{
    measuring c = {.g = g, .m = m, .tape = wf_tape_new(m->ctx)};
    c.x = wf_planner_noise(m, c.tape, batch);
    c.bucket = wf_tensor_new(m->ctx, WF_F32, WF_SHAPE(WF_PLANNER_SUM));
    wf_status status = c.tape && c.x && c.bucket ? wf_tensor_fill(c.bucket, 0) : wf_error_code();
    if (status == WF_OK)
        status = wf_tape_reset(c.tape);
    /* Before the background opens, all ranks must have their memory: a sum needs all of them. */
    status = wf_agree_status(g->comm, status);
    if (status == WF_OK)
        status = wf_background_open(g->comm);
    if (status == WF_OK)
        status = wf_agree_status(g->comm, time_rounds(&c, slower));
    /* A sum that is left would write to a bucket that is gone. */
    if (status != WF_OK)
        wf_background_end(g->comm);
    wf_planner_noise_free(m, c.x);
    wf_tensor_free(c.bucket);
    wf_tape_free(c.tape);
    return status;
}

wf_status wf_gauge_overlap(void *gauge, const wf_planner_model *m, int64_t batch, wf_planner_overlap *rates)
{
    wf_gauge *g = gauge;
    char key[512];
    double slower[2];
    bool found;
    *rates = (wf_planner_overlap){1, 1};
    /* Inside of one node nothing is measured: sums then take the processor's time. */
    if (wf_comm_inter_size(g->comm) == 1)
        return WF_OK;
    snprintf(key, sizeof key, "backward of %016llx beside sums between %d nodes, batch %lld, %s",
             (unsigned long long)wf_gauge_signature(m), wf_comm_inter_size(g->comm), (long long)batch, g->machine);
    WF_TRY(wf_gauge_find(g, key, 2, slower, &found));
    if (!found) {
        WF_TRY(measure(g, m, batch, slower));
        WF_TRY(wf_gauge_note(g, key, 2, slower));
    }
    *rates = (wf_planner_overlap){1 / slower[0], 1 / slower[1]};
    return WF_OK;
}
