/* Updates of the optimizers, clipping and loss scaling in plain loops: the oracle. core/cuda/optim.cu and core/cpu have
 * the same formulas; the papers are named in optim/algorithms.c. */
#include "core/ref/ref_impl.h"

#include <math.h>

/* First divided by what the sum or the loss scale multiplied, then clipped. */
static double prepared(const wf_optim_hyper *h, double g)
{
    g *= h->grad_scale;
    if (h->clip_value > 0 && g > h->clip_value)
        return h->clip_value;
    return h->clip_value > 0 && g < -h->clip_value ? -h->clip_value : g;
}

/* A run in double. p moves by -lr times the direction, or the direction is what is asked for. */
typedef struct run {
    int64_t n;
    const double *g;
    double *p, *state1, *state2;
    double *direction; /* NULL: p moves */
} run;

static void move(const wf_optim_hyper *h, const run *r, int64_t i, double direction)
{
    if (r->direction)
        r->direction[i] = direction;
    else
        r->p[i] -= h->lr * direction;
}

static void sgd(const wf_optim_hyper *h, const run *r)
{
    double *const m = r->state1;
    for (int64_t i = 0; i < r->n; i++) {
        double step = prepared(h, r->g[i]) + h->decay * r->p[i];
        if (h->momentum != 0) {
            /* The learning rate is outside of the momentum, as in PyTorch: a schedule acts at once. */
            m[i] = h->momentum * m[i] + step;
            step = h->nesterov != 0 ? step + h->momentum * m[i] : m[i];
        }
        move(h, r, i, step);
    }
}

static void adam(const wf_optim_hyper *h, bool decoupled, const run *r)
{
    double *const m = r->state1, *const v = r->state2;
    for (int64_t i = 0; i < r->n; i++) {
        /* Adam with decay adds it to the gradient (L2); AdamW (Loshchilov and Hutter 2019) decays the parameter itself:
         * the decay does not pass through the moments. */
        const double decay = h->decay * r->p[i], g = prepared(h, r->g[i]) + (decoupled ? 0 : decay);
        m[i] = h->beta1 * m[i] + (1 - h->beta1) * g;
        v[i] = h->beta2 * v[i] + (1 - h->beta2) * g * g;
        move(h, r, i, (decoupled ? decay : 0) + (m[i] / h->bias1) / (sqrt(v[i] / h->bias2) + h->eps));
    }
}

static void rmsprop(const wf_optim_hyper *h, const run *r)
{
    double *const v = r->state1;
    for (int64_t i = 0; i < r->n; i++) {
        const double g = prepared(h, r->g[i]) + h->decay * r->p[i];
        v[i] = h->alpha * v[i] + (1 - h->alpha) * g * g;
        /* eps outside of the root, as in Chainer and PyTorch. */
        move(h, r, i, g / (sqrt(v[i]) + h->eps));
    }
}

double wf_radam_factor(double beta2, double bias2)
{
    const double rest = 1 - bias2, most = 2 / (1 - beta2) - 1;
    /* The number of updates that were made: a step that overflowed counts in neither. */
    const double t = rest > 0 ? rint(log(rest) / log(beta2)) : 0, rho = most - 2 * t * rest / bias2;
    return rho > 5 ? sqrt((rho - 4) * (rho - 2) * most / ((most - 4) * (most - 2) * rho)) : 0;
}

static void radam(const wf_optim_hyper *h, const run *r)
{
    const double factor = wf_radam_factor(h->beta2, h->bias2);
    double *const m = r->state1, *const v = r->state2;
    for (int64_t i = 0; i < r->n; i++) {
        const double g = prepared(h, r->g[i]) + h->decay * r->p[i];
        m[i] = h->beta1 * m[i] + (1 - h->beta1) * g;
        v[i] = h->beta2 * v[i] + (1 - h->beta2) * g * g;
        /* Without a bound of the variance the step is the momentum's alone. */
        const double scale = factor > 0 ? factor * sqrt(h->bias2) / (sqrt(v[i]) + h->eps) : 1;
        move(h, r, i, m[i] / h->bias1 * scale);
    }
}

/* Between RMSprop and SGD (Akiba, Suzuki and Fukuda, 2017): sgd and rms are the two rates of this step. */
static void rmsprop_sgd(const wf_optim_hyper *h, const run *r)
{
    double *const m = r->state1, *const v = r->state2;
    for (int64_t i = 0; i < r->n; i++) {
        const double g = prepared(h, r->g[i]) + h->decay * r->p[i];
        v[i] = h->alpha * v[i] + (1 - h->alpha) * g * g;
        m[i] = h->momentum * m[i] + (h->sgd + h->rms / (sqrt(v[i]) + h->eps)) * g;
        move(h, r, i, m[i]);
    }
}

static void adagrad(const wf_optim_hyper *h, const run *r)
{
    double *const v = r->state1;
    for (int64_t i = 0; i < r->n; i++) {
        const double g = prepared(h, r->g[i]) + h->decay * r->p[i];
        v[i] += g * g;
        move(h, r, i, g / (sqrt(v[i]) + h->eps));
    }
}

/* LAMB and its kin (You et al. 2020): a layer moves by as much as it is long, whatever the length of its direction. */
static void trust(const wf_optim_hyper *h, const run *r, const double *squares)
{
    const double ratio = squares[0] > 0 && squares[1] > 0 ? sqrt(squares[0] / squares[1]) : 1;
    for (int64_t i = 0; i < r->n; i++)
        move(h, r, i, ratio * r->g[i]);
}

static wf_array run_of(wf_dtype dtype, int64_t n, void *data)
{
    return (wf_array){.data = data, .dtype = dtype, .shape = wf_shape_make(1, &n)};
}

static void update_run(wf_optim_kind kind, const wf_optim_hyper *h, const run *r, const double *squares)
{
    switch (kind) {
    case WF_OPTIM_SGD:
        sgd(h, r);
        break;
    case WF_OPTIM_ADAM:
    case WF_OPTIM_ADAMW:
        adam(h, kind == WF_OPTIM_ADAMW, r);
        break;
    case WF_OPTIM_RMSPROP:
        rmsprop(h, r);
        break;
    case WF_OPTIM_RADAM:
        radam(h, r);
        break;
    case WF_OPTIM_ADAGRAD:
        adagrad(h, r);
        break;
    case WF_OPTIM_RMSPROP_SGD:
        rmsprop_sgd(h, r);
        break;
    case WF_OPTIM_TRUST:
        trust(h, r, squares);
        break;
    }
}

static wf_status update_segment(wf_ctx *ctx, wf_optim_kind kind, const wf_optim_hyper *hyper, wf_dtype dtype,
                                const wf_optim_segment *segment)
{
    const int64_t n = segment->n;
    const wf_array pa = run_of(dtype, n, segment->p), ga = run_of(dtype, n, (void *)segment->g);
    const wf_array sa = run_of(dtype, n, segment->state1), ta = run_of(dtype, n, segment->state2);
    const wf_array da = run_of(dtype, n, segment->direction);
    wf_optim_hyper h = *hyper;
    wf_ref_frame frame = wf_ref_begin(ctx);
    const run r = {.n = n,
                   .g = wf_ref_in(&frame, &ga),
                   .p = wf_ref_out(&frame, &pa, true),
                   .state1 = wf_ref_out(&frame, &sa, true),
                   .state2 = wf_ref_out(&frame, &ta, true),
                   .direction = wf_ref_out(&frame, &da, false)};
    h.lr *= segment->grouped ? segment->lr_scale : 1;
    h.decay = segment->grouped ? segment->decay : h.decay;
    h.decay = segment->no_decay ? 0 : h.decay;
    if (frame.status == WF_OK)
        update_run(kind, &h, &r, segment->squares);
    return wf_ref_end(&frame);
}

/* A step that is skipped changes nothing, in no segment. */
wf_status wf_ref_optim_update(wf_ctx *ctx, wf_optim_kind kind, const wf_optim_hyper *hyper, wf_dtype dtype,
                              int64_t segments, const wf_optim_segment *segment)
{
    for (int64_t i = 0; i < segments && hyper->skip == 0; i++)
        WF_TRY(update_segment(ctx, kind, hyper, dtype, &segment[i]));
    return WF_OK;
}

/* Every rank has the same sums, so all stop or none. */
static bool stops_update(const double *trailer, double ranks)
{
    const double sharded = trailer[WF_TRAILER_SHARDED], parts = trailer[WF_TRAILER_PARTS],
                 local = trailer[WF_TRAILER_LOCAL];
    bool stops = trailer[WF_TRAILER_RANKS] != ranks || trailer[WF_TRAILER_CHANGED] != 0 ||
                 trailer[WF_TRAILER_OVERFLOW] != 0 || (sharded > 0) + (parts > 0) + (local > 0) > 1;
    for (int b = 0; b < WF_DRAWS_BITS; b++) {
        const double bit = trailer[WF_TRAILER_DRAWS + b];
        stops = stops || (bit != 0 && bit != trailer[WF_TRAILER_COMPARED]);
    }
    return stops;
}

wf_status wf_ref_step_verdict(wf_ctx *ctx, const void *trailer, wf_dtype dtype, double ranks, wf_optim_hyper *hyper)
{
    (void)ctx;
    double number[WF_TRAILER];
    for (int i = 0; i < WF_TRAILER; i++)
        number[i] = dtype == WF_F64 ? ((const double *)trailer)[i] : (double)((const float *)trailer)[i];
    const double weight = number[WF_TRAILER_WEIGHT];
    if (stops_update(number, ranks))
        hyper->skip = 1;
    else
        hyper->grad_scale = number[WF_TRAILER_LOCAL] + number[WF_TRAILER_PARTS] > 0 && weight > 0 ? 1 / weight : 1;
    return WF_OK;
}

wf_status wf_ref_loss_scale(wf_ctx *ctx, const double *sum_squares, wf_loss_scaling *s, wf_optim_hyper *hyper)
{
    (void)ctx;
    if (hyper->skip != 0)
        return WF_OK;
    hyper->skip = isfinite(*sum_squares) ? 0 : 1;
    if (hyper->skip != 0) {
        s->skipped++;
        s->good = 0;
        /* The bounds keep the scale a normal float for ever, also where every step overflows. */
        s->scale = fmax(s->scale * s->backoff, 0x1p-100);
    } else {
        /* Adam's bias correction counts the updates that were made, not those that overflowed. */
        const double t = hyper->step - s->skipped;
        hyper->grad_scale /= s->scale;
        hyper->bias1 = 1 - pow(hyper->beta1, t);
        hyper->bias2 = 1 - pow(hyper->beta2, t);
        s->good++;
        if (s->good >= s->interval) {
            s->good = 0;
            s->scale = fmin(s->scale * s->growth, 0x1p100);
        }
    }
    s->seed = (float)s->scale;
    return WF_OK;
}

wf_status wf_ref_clip_scale(wf_ctx *ctx, const double *sum_squares, double max_norm, wf_optim_hyper *hyper)
{
    (void)ctx;
    /* A norm of 0 gives infinity, and the minimum 1: nothing is scaled. */
    const double factor = max_norm / (hyper->grad_scale * sqrt(*sum_squares));
    hyper->grad_scale *= factor < 1 ? factor : 1;
    return WF_OK;
}
