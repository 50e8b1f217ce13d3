/* Updates of the optimizers, clipping and loss scaling in plain loops: the oracle. */
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

static void sgd(const wf_optim_hyper *h, int64_t n, const double *gradient, double *p, double *m)
{
    for (int64_t i = 0; i < n; i++) {
        double step = prepared(h, gradient[i]) + h->decay * p[i];
        if (h->momentum != 0) {
            /* The learning rate is outside of the momentum, as in PyTorch: a schedule acts at once. */
            m[i] = h->momentum * m[i] + step;
            step = h->nesterov != 0 ? step + h->momentum * m[i] : m[i];
        }
        p[i] -= h->lr * step;
    }
}

static void adam(const wf_optim_hyper *h, bool decoupled, int64_t n, const double *gradient, double *p, double *m,
                 double *v)
{
    for (int64_t i = 0; i < n; i++) {
        /* Adam with decay adds it to the gradient (L2); AdamW decays the parameter itself. */
        const double g = prepared(h, gradient[i]) + (decoupled ? 0 : h->decay * p[i]);
        m[i] = h->beta1 * m[i] + (1 - h->beta1) * g;
        v[i] = h->beta2 * v[i] + (1 - h->beta2) * g * g;
        /* AdamW (Loshchilov and Hutter 2019): the decay does not pass through the moments. */
        const double shrink = decoupled ? h->lr * h->decay * p[i] : 0;
        p[i] -= shrink + h->lr * (m[i] / h->bias1) / (sqrt(v[i] / h->bias2) + h->eps);
    }
}

static void rmsprop(const wf_optim_hyper *h, int64_t n, const double *gradient, double *p, double *v)
{
    for (int64_t i = 0; i < n; i++) {
        const double g = prepared(h, gradient[i]) + h->decay * p[i];
        v[i] = h->alpha * v[i] + (1 - h->alpha) * g * g;
        /* eps outside of the root, as in Chainer and PyTorch. */
        p[i] -= h->lr * g / (sqrt(v[i]) + h->eps);
    }
}

static wf_array run_of(wf_dtype dtype, int64_t n, void *data)
{
    return (wf_array){.data = data, .dtype = dtype, .shape = wf_shape_make(1, &n)};
}

static wf_status update(wf_ctx *ctx, wf_optim_kind kind, const wf_optim_hyper *hyper, wf_dtype dtype,
                        const wf_optim_segment *segment)
{
    const int64_t n = segment->n;
    const wf_array pa = run_of(dtype, n, segment->p), ga = run_of(dtype, n, (void *)segment->g);
    const wf_array sa = run_of(dtype, n, segment->state1), ta = run_of(dtype, n, segment->state2);
    wf_ref_frame frame = wf_ref_begin(ctx);
    const double *g = wf_ref_in(&frame, &ga);
    double *const p = wf_ref_out(&frame, &pa, true), *const s = wf_ref_out(&frame, &sa, true);
    double *const t = wf_ref_out(&frame, &ta, true);
    if (frame.status != WF_OK)
        return wf_ref_end(&frame);
    switch (kind) {
    case WF_OPTIM_SGD:
        sgd(hyper, n, g, p, s);
        break;
    case WF_OPTIM_ADAM:
    case WF_OPTIM_ADAMW:
        adam(hyper, kind == WF_OPTIM_ADAMW, n, g, p, s, t);
        break;
    case WF_OPTIM_RMSPROP:
        rmsprop(hyper, n, g, p, s);
        break;
    }
    return wf_ref_end(&frame);
}

wf_status wf_ref_optim_update(wf_ctx *ctx, wf_optim_kind kind, const wf_optim_hyper *hyper, wf_dtype dtype,
                              int64_t segments, const wf_optim_segment *segment)
{
    for (int64_t i = 0; i < segments && hyper->skip == 0; i++)
        WF_TRY(update(ctx, kind, hyper, dtype, &segment[i]));
    return WF_OK;
}

wf_status wf_ref_loss_scale(wf_ctx *ctx, const double *sum_squares, wf_loss_scaling *s, wf_optim_hyper *hyper)
{
    (void)ctx;
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
    const double factor = max_norm / (hyper->grad_scale * sqrt(*sum_squares));
    hyper->grad_scale *= factor < 1 ? factor : 1;
    return WF_OK;
}
