/* Learning-rate schedules as a factor of the update number: a pure function, so that a resumed run continues exactly.
 * The optimizer asks once a step. */
#include "optim/optim_impl.h"

#include <math.h>

wf_status wf_schedule_check(const wf_schedule_opts *o)
{
    const bool restarts = o->kind == WF_SCHEDULE_RESTARTS;
    const bool needs_total = o->kind == WF_SCHEDULE_COSINE || o->kind == WF_SCHEDULE_POLYNOMIAL || restarts;
    WF_CHECK((int)o->kind >= WF_SCHEDULE_CONSTANT && o->kind <= WF_SCHEDULE_RESTARTS, WF_ERR_ARGUMENT,
             "%d is not a kind of schedule", (int)o->kind);
    WF_CHECK(o->warmup >= 0, WF_ERR_ARGUMENT, "a schedule with warmup %lld; it must be 0 or more",
             (long long)o->warmup);
    WF_CHECK(o->kind != WF_SCHEDULE_STEP || o->every > 0, WF_ERR_ARGUMENT,
             "a step schedule with every = %lld; it must be 1 or more", (long long)o->every);
    WF_CHECK(!needs_total || o->total > 0, WF_ERR_ARGUMENT,
             "a cosine or polynomial schedule, or one of restarts, with total = %lld; it must be 1 or more",
             (long long)o->total);
    WF_CHECK(o->gamma >= 0 && isfinite(o->gamma), WF_ERR_ARGUMENT, "a schedule with gamma %g; it must be 0 or more",
             o->gamma);
    WF_CHECK(o->power > 0 && isfinite(o->power), WF_ERR_ARGUMENT, "a schedule with power %g; it must be above 0",
             o->power);
    WF_CHECK(!restarts || o->power >= 1, WF_ERR_ARGUMENT, "a schedule of restarts with power %g; it must be 1 or more",
             o->power);
    WF_CHECK(o->end >= 0 && isfinite(o->end), WF_ERR_ARGUMENT, "a schedule with end %g; it must be 0 or more", o->end);
    WF_CHECK(o->scale >= 0 && isfinite(o->scale), WF_ERR_ARGUMENT,
             "a schedule with scale %g; it must be above 0, or 0 for none", o->scale);
    return WF_OK;
}

static double warm_up(const wf_schedule_opts *o, int64_t t)
{
    /* Goyal et al. 2017, 2.2: from the rate of the small batch. */
    if (o->scale > 0)
        return 1 + (o->scale - 1) * (double)t / (double)o->warmup;
    /* The first update has a rate above 0, and the last of the warm-up the full one. */
    return (double)(t + 1) / (double)o->warmup;
}

/* The place of update t in its cycle, from 0 to 1. */
static double part_of_cycle(const wf_schedule_opts *o, int64_t t)
{
    double at = (double)t, length = (double)o->total;
    if (o->power == 1)
        return fmod(at, length) / length;
    while (at >= length) {
        at -= length;
        length *= o->power;
    }
    return at / length;
}

static double factor_of_kind(const wf_schedule_opts *o, int64_t t)
{
    const int64_t drops = o->every > 0 ? t / o->every : 0;
    /* After the end the schedule keeps its last value. */
    const double part = t < o->total ? (double)t / (double)o->total : 1;
    switch (o->kind) {
    case WF_SCHEDULE_STEP:
        return pow(o->gamma, (double)drops);
    case WF_SCHEDULE_EXPONENTIAL:
        return pow(o->gamma, (double)t);
    case WF_SCHEDULE_COSINE:
        return o->end + (1 - o->end) * (1 + cos(acos(-1.0) * part)) / 2;
    case WF_SCHEDULE_POLYNOMIAL:
        return o->end + (1 - o->end) * pow(1 - part, o->power);
    case WF_SCHEDULE_RESTARTS:
        return o->end + (1 - o->end) * (1 + cos(acos(-1.0) * part_of_cycle(o, t))) / 2;
    case WF_SCHEDULE_CONSTANT:
        break;
    }
    return 1;
}

static double factor_at(const wf_schedule_opts *o, int64_t t)
{
    if (t < o->warmup)
        return warm_up(o, t);
    return (o->scale > 0 ? o->scale : 1) * factor_of_kind(o, t - o->warmup);
}

double wf_optim_lr(const wf_optim *optim)
{
    return optim ? optim->hyper.lr * factor_at(&optim->schedule, optim->steps) : 0;
}
