/* The share of a run that is over. A run that ends by time ends in the same iteration on all ranks: rank 0 reads its
 * clock and broadcasts what it read. It does so about once a second, and in every iteration close to the end; between
 * two such looks all ranks extrapolate by the same seconds per iteration, so that they agree without messages. */
#include "optim/trainer_impl.h"

#include <math.h>

#define LOOK_SECONDS 1.0  /* longest time between two looks; a broadcast costs microseconds */
#define ROUNDING     1e-9 /* 3 of 10 iterations are 3 tenths, though 0.3 / 0.1 < 3 */

/* What rank 0 broadcasts. */
typedef struct look {
    double limit;   /* its wf_trainer_opts.seconds */
    double seconds; /* of all runs so far */
    double each;    /* seconds of an iteration since the last look; 0: unknown */
    int64_t next;   /* the iteration of the next look */
} look;

/* Half of what is left before the next look, at most LOOK_SECONDS: looks become denser near the end. */
static look look_at_clock(const wf_trainer *t)
{
    const int64_t made = t->iteration - t->share.at;
    look l = {.limit = t->opts.seconds, .seconds = wf_trainer_seconds(t), .next = t->iteration + 1};
    if (l.limit == 0)
        return l;
    if (made > 0)
        l.each = fmax(l.seconds - t->share.seconds, 0) / (double)made;
    const double wait = fmin((l.limit - l.seconds) / 2, LOOK_SECONDS);
    if (l.each > 0 && wait > l.each)
        l.next = t->iteration + (int64_t)fmin(wait / l.each, INT32_MAX);
    return l;
}

/* Collective, in an iteration that all ranks know from the last look. */
static wf_status agree(wf_trainer *t)
{
    look l = {0};
    if (t->first)
        l = look_at_clock(t);
    WF_TRY(wf_bcast_bytes(t->comm, &l, sizeof l, 0));
    WF_CHECK(l.limit == t->opts.seconds, WF_ERR_ARGUMENT,
             "a trainer of %g seconds on rank %s and of %g on rank %s: should be the same on all ranks",
             t->opts.seconds, WF_RANK(t->comm, wf_comm_rank(t->comm)), l.limit, WF_RANK(t->comm, 0));
    t->share.seconds = l.seconds;
    t->share.each = l.each;
    t->share.at = t->iteration;
    t->share.next = l.next;
    return WF_OK;
}

/* Time and iterations both may end the run: the larger share counts. */
static double share_now(const wf_trainer *t)
{
    const int64_t total = wf_trainer_total(t);
    double share = total > 0 ? (double)t->iteration / (double)total : 0;
    if (t->opts.seconds > 0) {
        const double since = (double)(t->iteration - t->share.at) * t->share.each;
        share = fmax(share, (t->share.seconds + since) / t->opts.seconds);
    }
    return fmin(share, 1);
}

wf_status wf_trainer_share_begin(wf_trainer *t)
{
    t->share = (wf_trainer_part){.at = t->iteration};
    WF_TRY(agree(t));
    t->share.now = t->share.last = share_now(t);
    return WF_OK;
}

wf_status wf_trainer_share_step(wf_trainer *t)
{
    if (t->opts.seconds > 0 && t->iteration >= t->share.next)
        WF_TRY(agree(t));
    t->share.last = t->share.now;
    t->share.now = fmax(t->share.last, share_now(t)); /* iterations that become faster take nothing back */
    return WF_OK;
}

/* Extrapolation alone ends no run. */
bool wf_trainer_time_over(const wf_trainer *t)
{
    /* A run has one iteration, however short its time. */
    return t->opts.seconds > 0 && t->iteration > 0 && t->share.seconds >= t->opts.seconds;
}

/* Due when a multiple of `each` was passed since the last iteration; several at once count once. */
bool wf_trainer_share_due(const wf_trainer *t, double each)
{
    return each > 0 && floor(t->share.now / each + ROUNDING) > floor(t->share.last / each + ROUNDING);
}

double wf_trainer_share(const wf_trainer *trainer)
{
    return trainer ? trainer->share.now : 0;
}
