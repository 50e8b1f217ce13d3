/* Optimizer updates: one parallel pass over all segments. The formulas are those of core/ref/optim.c, rearranged so
 * that constants are computed once a step. */
#include "core/cpu/cpu_impl.h"

#include <math.h>

typedef struct hyper32 {
    float lr, momentum, beta1, beta2, rest1, rest2, eps, alpha, rest, decay, shrink, step, root, scale, clip;
    bool nesterov;
} hyper32;

/* (m / bias1) / (sqrt(v / bias2) + eps): the biases go into a step and a factor of the square root. */
static hyper32 hyper_of(const wf_optim_hyper *h, wf_optim_kind kind)
{
    hyper32 r = {.lr = (float)h->lr,
                 .momentum = (float)h->momentum,
                 .beta1 = (float)h->beta1,
                 .beta2 = (float)h->beta2,
                 .rest1 = (float)(1 - h->beta1),
                 .rest2 = (float)(1 - h->beta2),
                 .eps = (float)h->eps,
                 .alpha = (float)h->alpha,
                 .rest = (float)(1 - h->alpha),
                 .decay = (float)h->decay,
                 .scale = (float)h->grad_scale,
                 /* Without clipping the bound is infinite, so the loop needs no branch. */
                 .clip = h->clip_value > 0 ? (float)h->clip_value : INFINITY,
                 .nesterov = h->nesterov != 0};
    if (kind == WF_OPTIM_ADAM || kind == WF_OPTIM_ADAMW) {
        r.step = (float)(h->lr / h->bias1);
        r.root = (float)(1 / sqrt(h->bias2));
    }
    if (kind == WF_OPTIM_ADAMW) {
        r.shrink = (float)(h->lr * h->decay);
        r.decay = 0;
    }
    return r;
}

static inline float prepared(const hyper32 *h, float g)
{
    g *= h->scale;
    g = g > h->clip ? h->clip : g;
    return g < -h->clip ? -h->clip : g;
}

static void sgd(const hyper32 h, int64_t n, const float *restrict g, float *restrict p)
{
    for (int64_t i = 0; i < n; i++)
        p[i] -= h.lr * (prepared(&h, g[i]) + h.decay * p[i]);
}

static void sgd_momentum(const hyper32 h, int64_t n, const float *restrict g, float *restrict p, float *restrict m)
{
    const float of_m = h.nesterov ? h.momentum : 1.0F, of_g = h.nesterov ? 1.0F : 0.0F;
    for (int64_t i = 0; i < n; i++) {
        const float step = prepared(&h, g[i]) + h.decay * p[i];
        m[i] = __builtin_fmaf(h.momentum, m[i], step);
        p[i] -= h.lr * __builtin_fmaf(of_m, m[i], of_g * step);
    }
}

static void adam(const hyper32 h, int64_t n, const float *restrict gradient, float *restrict p, float *restrict m,
                 float *restrict v)
{
    for (int64_t i = 0; i < n; i++) {
        const float g = __builtin_fmaf(h.decay, p[i], prepared(&h, gradient[i]));
        m[i] = __builtin_fmaf(h.beta1, m[i], h.rest1 * g);
        v[i] = __builtin_fmaf(h.beta2, v[i], h.rest2 * g * g);
        const float move = h.step * m[i] / __builtin_fmaf(sqrtf(v[i]), h.root, h.eps);
        p[i] -= __builtin_fmaf(h.shrink, p[i], move);
    }
}

static void rmsprop(const hyper32 h, int64_t n, const float *restrict gradient, float *restrict p, float *restrict v)
{
    for (int64_t i = 0; i < n; i++) {
        const float g = __builtin_fmaf(h.decay, p[i], prepared(&h, gradient[i]));
        v[i] = __builtin_fmaf(h.alpha, v[i], h.rest * g * g);
        p[i] -= h.lr * g / (sqrtf(v[i]) + h.eps);
    }
}

static void update(wf_optim_kind kind, const hyper32 *h, const wf_optim_segment *segment, int64_t lo, int64_t hi)
{
    const float *const g = (const float *)segment->g + lo;
    float *const p = (float *)segment->p + lo;
    float *const s = segment->state1 ? (float *)segment->state1 + lo : NULL;
    float *const t = segment->state2 ? (float *)segment->state2 + lo : NULL;
    if (kind == WF_OPTIM_RMSPROP)
        rmsprop(*h, hi - lo, g, p, s);
    else if (kind != WF_OPTIM_SGD)
        adam(*h, hi - lo, g, p, s, t);
    else if (h->momentum != 0)
        sgd_momentum(*h, hi - lo, g, p, s);
    else
        sgd(*h, hi - lo, g, p);
}

/* Part `part` of `parts` of the segments laid end to end. */
static void update_part(wf_optim_kind kind, const hyper32 *h, int64_t segments, const wf_optim_segment *segment,
                        int64_t total, int64_t parts, int64_t part)
{
    /* Cut by elements, not by segments: one large parameter must not be one thread's work. */
    int64_t lo, hi, start = 0;
    wf_block(total, parts, part, &lo, &hi);
    for (int64_t s = 0; s < segments && start < hi; s++) {
        const int64_t from = lo > start ? lo - start : 0, until = wf_cpu_min(segment[s].n, hi - start);
        if (from < until)
            update(kind, h, &segment[s], from, until);
        start += segment[s].n;
    }
}

wf_status wf_cpu_optim_update(wf_ctx *ctx, wf_optim_kind kind, const wf_optim_hyper *hyper, wf_dtype dtype,
                              int64_t segments, const wf_optim_segment *segment)
{
    if (dtype != WF_F32)
        return REF->optim_update(ctx, kind, hyper, dtype, segments, segment);
    if (hyper->skip != 0)
        return WF_OK;
    const hyper32 h = hyper_of(hyper, kind);
    int64_t total = 0;
    for (int64_t s = 0; s < segments; s++)
        total += segment[s].n;
    const int team = wf_cpu_team(ctx, total);
#pragma omp parallel for num_threads(team) schedule(static)
    for (int part = 0; part < team; part++)
        update_part(kind, &h, segments, segment, total, team, part);
    return WF_OK;
}
