/* Optimizer updates: one parallel pass over all segments. The formulas are those of core/ref/optim.c, rearranged so
 * that constants are computed once a step. */
#include "core/cpu/cpu_impl.h"

#include <math.h>

typedef struct hyper32 {
    float lr, momentum, beta1, beta2, rest1, rest2, eps, alpha, rest, decay, shrink, step, root, scale, clip, sgd, rms;
    bool nesterov;
} hyper32;

/* (m / bias1) / (sqrt(v / bias2) + eps): the biases go into a step and a factor of the square root. */
static hyper32 hyper_of(const wf_optim_hyper *h, wf_optim_kind kind, const wf_optim_segment *segment)
{
    /* A direction is what a learning rate of 1 would subtract. */
    const double lr = segment->direction ? 1 : h->lr * (segment->grouped ? segment->lr_scale : 1);
    const double own = segment->grouped ? segment->decay : h->decay, decay = segment->no_decay ? 0 : own;
    /* Everything that is equal for all elements is computed here in double, once for each run, and rounded once. */
    hyper32 r = {.lr = (float)lr,
                 .momentum = (float)h->momentum,
                 .beta1 = (float)h->beta1,
                 .beta2 = (float)h->beta2,
                 .rest1 = (float)(1 - h->beta1),
                 .rest2 = (float)(1 - h->beta2),
                 .eps = (float)h->eps,
                 .alpha = (float)h->alpha,
                 .rest = (float)(1 - h->alpha),
                 .decay = (float)decay,
                 .scale = (float)h->grad_scale,
                 /* Without clipping the bound is infinite, so the loop needs no branch. */
                 .clip = h->clip_value > 0 ? (float)h->clip_value : INFINITY,
                 .sgd = (float)h->sgd,
                 .rms = (float)h->rms,
                 .nesterov = h->nesterov != 0};
    if (kind == WF_OPTIM_ADAM || kind == WF_OPTIM_ADAMW) {
        r.step = (float)(lr / h->bias1);
        r.root = (float)(1 / sqrt(h->bias2));
    }
    if (kind == WF_OPTIM_RADAM) {
        /* Adam's form with another step, and a divisor that is 1 before the variance is bounded. */
        const double factor = wf_radam_factor(h->beta2, h->bias2);
        r.step = (float)(lr / h->bias1 * (factor > 0 ? factor * sqrt(h->bias2) : 1));
        r.root = factor > 0 ? 1.0F : 0.0F;
        r.eps = factor > 0 ? r.eps : 1.0F;
    }
    if (kind == WF_OPTIM_ADAGRAD)
        r.alpha = r.rest = 1.0F; /* the form of RMSprop with squares that are summed, not averaged */
    if (kind == WF_OPTIM_ADAMW) {
        /* The decay of AdamW does not go through the moments (Loshchilov and Hutter 2019), so it is a term of its
         * own. */
        r.shrink = (float)(lr * decay);
        r.decay = 0;
    }
    if (kind == WF_OPTIM_TRUST) {
        /* The ratio of norms is 1 for a parameter or direction that is 0 (You et al. 2017): such a layer moves like the
         * others. */
        const double *squares = segment->squares;
        r.step = (float)(lr * (squares[0] > 0 && squares[1] > 0 ? sqrt(squares[0] / squares[1]) : 1));
    }
    return r;
}

/* Scales (which undoes loss scaling and averages), then clips each value. NaN passes, so that a fault stays visible. */
static inline float prepared(const hyper32 *h, float g)
{
    g *= h->scale;
    g = g > h->clip ? h->clip : g;
    return g < -h->clip ? -h->clip : g;
}

/* What one element moves by. Each has a loop that moves p, and one that writes `direction` where that is asked for. */
static inline float sgd_move(const hyper32 *h, float g, float p)
{
    return h->lr * (prepared(h, g) + h->decay * p);
}

/* of_m and of_g select Nesterov's look ahead: with it the step is g + momentum m, else m. */
static inline float momentum_move(const hyper32 *h, float of_m, float of_g, float g, float p, float *m)
{
    const float step = prepared(h, g) + h->decay * p;
    *m = wf_fma(h->momentum, *m, step);
    return h->lr * wf_fma(of_m, *m, of_g * step);
}

static inline float adam_move(const hyper32 *h, float gradient, float p, float *m, float *v)
{
    const float g = wf_fma(h->decay, p, prepared(h, gradient));
    *m = wf_fma(h->beta1, *m, h->rest1 * g);
    *v = wf_fma(h->beta2, *v, h->rest2 * g * g);
    return wf_fma(h->shrink, p, h->step * *m / wf_fma(sqrtf(*v), h->root, h->eps));
}

static inline float rmsprop_move(const hyper32 *h, float gradient, float p, float *v)
{
    const float g = wf_fma(h->decay, p, prepared(h, gradient));
    *v = wf_fma(h->alpha, *v, h->rest * g * g);
    return h->lr * g / (sqrtf(*v) + h->eps);
}

static inline float rmsprop_sgd_move(const hyper32 *h, float gradient, float p, float *m, float *v)
{
    const float g = wf_fma(h->decay, p, prepared(h, gradient));
    *v = wf_fma(h->alpha, *v, h->rest * g * g);
    *m = wf_fma(h->momentum, *m, (h->sgd + h->rms / (sqrtf(*v) + h->eps)) * g);
    return h->lr * *m;
}

/* Directions are wanted by optimizers that scale a whole layer's step (LARS, LAMB): a first pass writes them, TRUST
 * applies them. */
static void sgd(const hyper32 h, int64_t n, const float *restrict g, float *restrict p, float *restrict direction)
{
    if (!direction)
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            p[i] -= sgd_move(&h, g[i], p[i]);
    else
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            direction[i] = sgd_move(&h, g[i], p[i]);
}

static void sgd_momentum(const hyper32 h, int64_t n, const float *restrict g, float *restrict p, float *restrict m,
                         float *restrict direction)
{
    const float of_m = h.nesterov ? h.momentum : 1.0F, of_g = h.nesterov ? 1.0F : 0.0F;
    if (!direction)
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            p[i] -= momentum_move(&h, of_m, of_g, g[i], p[i], &m[i]);
    else
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            direction[i] = momentum_move(&h, of_m, of_g, g[i], p[i], &m[i]);
}

static void adam(const hyper32 h, int64_t n, const float *restrict g, float *restrict p, float *restrict m,
                 float *restrict v, float *restrict direction)
{
    if (!direction)
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            p[i] -= adam_move(&h, g[i], p[i], &m[i], &v[i]);
    else
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            direction[i] = adam_move(&h, g[i], p[i], &m[i], &v[i]);
}

static void rmsprop(const hyper32 h, int64_t n, const float *restrict g, float *restrict p, float *restrict v,
                    float *restrict direction)
{
    if (!direction)
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            p[i] -= rmsprop_move(&h, g[i], p[i], &v[i]);
    else
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            direction[i] = rmsprop_move(&h, g[i], p[i], &v[i]);
}

static void rmsprop_sgd(const hyper32 h, int64_t n, const float *restrict g, float *restrict p, float *restrict m,
                        float *restrict v, float *restrict direction)
{
    if (!direction)
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            p[i] -= rmsprop_sgd_move(&h, g[i], p[i], &m[i], &v[i]);
    else
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            direction[i] = rmsprop_sgd_move(&h, g[i], p[i], &m[i], &v[i]);
}

static void trust(const hyper32 h, int64_t n, const float *restrict direction, float *restrict p)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        p[i] -= h.step * direction[i];
}

static float *from(void *data, int64_t lo)
{
    return data ? (float *)data + lo : NULL;
}

static void update_run(wf_optim_kind kind, const wf_optim_hyper *hyper, const wf_optim_segment *segment, int64_t lo,
                       int64_t hi)
{
    const hyper32 h = hyper_of(hyper, kind, segment);
    const float *const g = (const float *)segment->g + lo;
    float *const p = (float *)segment->p + lo, *const direction = from(segment->direction, lo);
    float *const s = from(segment->state1, lo), *const t = from(segment->state2, lo);
    if (kind == WF_OPTIM_TRUST)
        trust(h, hi - lo, g, p);
    else if (kind == WF_OPTIM_RMSPROP || kind == WF_OPTIM_ADAGRAD)
        rmsprop(h, hi - lo, g, p, s, direction);
    else if (kind == WF_OPTIM_RMSPROP_SGD)
        rmsprop_sgd(h, hi - lo, g, p, s, t, direction);
    else if (kind != WF_OPTIM_SGD)
        adam(h, hi - lo, g, p, s, t, direction);
    else if (h.momentum != 0)
        sgd_momentum(h, hi - lo, g, p, s, direction);
    else
        sgd(h, hi - lo, g, p, direction);
}

/* Updates the numbers before the first whole line of the cache by themselves: where p, and with it mostly all arrays,
 * begins within a line, vectors of a line's size would each touch two. */
static void update_range(wf_optim_kind kind, const wf_optim_hyper *hyper, const wf_optim_segment *segment, int64_t lo,
                         int64_t hi)
{
    enum { LINE = 64 };
    const uintptr_t within = (uintptr_t)((const float *)segment->p + lo) % LINE;
    const int64_t first = wf_cpu_min((int64_t)((LINE - within) % LINE / sizeof(float)), hi - lo);
    if (first > 0)
        update_run(kind, hyper, segment, lo, lo + first);
    update_run(kind, hyper, segment, lo + first, hi);
}

/* Part `part` of `parts` of the segments laid end to end. */
static void update_part(wf_optim_kind kind, const wf_optim_hyper *h, int64_t segments, const wf_optim_segment *segment,
                        int64_t total, int64_t parts, int64_t part)
{
    /* Cut by elements, not by segments: one large parameter must not be one thread's work. Each element is computed
     * alone, so the bounds do not show in the result. */
    int64_t lo, hi, start = 0;
    wf_block(total, parts, part, &lo, &hi);
    for (int64_t s = 0; s < segments && start < hi; s++) {
        const int64_t first = lo > start ? lo - start : 0, until = wf_cpu_min(segment[s].n, hi - start);
        if (first < until)
            update_range(kind, h, &segment[s], first, until);
        start += segment[s].n;
    }
}

wf_status wf_cpu_optim_update(wf_ctx *ctx, wf_optim_kind kind, const wf_optim_hyper *hyper, wf_dtype dtype,
                              int64_t segments, const wf_optim_segment *segment)
{
    if (dtype != WF_F32)
        return REF->optim_update(ctx, kind, hyper, dtype, segments, segment);
    /* The step's gradients were not finite on some rank. All ranks have the same verdict, so all skip. */
    if (hyper->skip != 0)
        return WF_OK;
    int64_t total = 0;
    for (int64_t s = 0; s < segments; s++)
        total += segment[s].n;
    const int team = wf_cpu_team(ctx, total);
#pragma omp parallel for num_threads(team) schedule(static)
    for (int part = 0; part < team; part++)
        update_part(kind, hyper, segments, segment, total, team, part);
    return WF_OK;
}
