/* Losses over all elements, in f32 with sums in double; other types go through core/cpu/wide.c. */
#include "core/cpu/narrow_impl.h"
#include "core/cpu/vmath_impl.h"

/* The stable form: see core/ref/loss.c. */
WF_CPU_INLINE float bce(float x, float t)
{
    return (x < 0.0F ? 0.0F : x) - x * t + vm_log1p_unit(vm_exp(-vm_abs(x)));
}

/* What some kinds are told. */
typedef struct loss_shape {
    float delta, gamma, alpha;
} loss_shape;

static loss_shape shape_of(const wf_loss_args *args)
{
    return (loss_shape){(float)args->delta, (float)args->gamma, (float)args->alpha};
}

/* d^2 / 2 near 0 and a line beyond delta, which meet with the same slope. */
WF_CPU_INLINE float huber(float x, float t, float delta)
{
    const float d = vm_abs(x - t), near = d * d * 0.5F, far = delta * (d - delta * 0.5F);
    return d <= delta ? near : far;
}

/* Terms of t = 0 are 0 in the limit; computed, they would be 0 times -infinity. */
WF_CPU_INLINE float divergence(float x, float t)
{
    return t == 0.0F ? 0.0F : t * (vm_log(t) - x);
}

WF_CPU_INLINE float focal_weight(float t, float alpha)
{
    return alpha < 0.0F ? 1.0F : alpha * t + (1.0F - alpha) * (1.0F - t);
}

/* The probability of the wrong class, 1 - p_t of Lin et al. 2017, from sigmoids of both signs: 1 - sigmoid(x) would
 * lose all digits for large x. */
WF_CPU_INLINE float focal_miss(float x, float t)
{
    return (1.0F - t) * vm_sigmoid(x) + t * vm_sigmoid(-x);
}

/* m^gamma for m of 0 or more. */
WF_CPU_INLINE float focal_power(float m, float gamma)
{
    const float power = vm_exp(gamma * vm_log(m));
    return gamma == 0.0F ? 1.0F : m == 0.0F ? 0.0F : power;
}

WF_CPU_INLINE float focal(float x, float t, const loss_shape *s)
{
    return focal_weight(t, s->alpha) * focal_power(focal_miss(x, t), s->gamma) * bce(x, t);
}

/* d/dx of weight m^gamma bce: the product rule, with m' = (1 - 2 t) p q for targets 0 and 1 and in between. m = 0 has
 * no rise: gamma m^(gamma - 1) would be infinite for gamma below 1. */
WF_CPU_INLINE float focal_slope(float x, float t, const loss_shape *s)
{
    const float p = vm_sigmoid(x), q = vm_sigmoid(-x), m = focal_miss(x, t), power = focal_power(m, s->gamma);
    const float rise = s->gamma * power / m * (1.0F - 2.0F * t) * p * q, off = t < 0.5F ? p - t : 1.0F - t - q;
    return focal_weight(t, s->alpha) * (off * power + bce(x, t) * (m > 0.0F ? rise : 0.0F));
}

/* Parts of fixed bounds, so that the number of threads does not show. */
enum { PART = 4096 };

/* y[i] = up * expression of x[i] = v and its target u. */
#define EACH(expression)                                                                                               \
    do {                                                                                                               \
        _Pragma("omp simd") for (int64_t i = 0; i < n; i++)                                                            \
        {                                                                                                              \
            const float v = x[i], u = each ? t[i] : *t;                                                                \
            (void)v;                                                                                                   \
            y[i] = up * (expression);                                                                                  \
        }                                                                                                              \
    } while (0)

#define PART_SUM(value)                                                                                                \
    do {                                                                                                               \
        if (y) {                                                                                                       \
            EACH(value);                                                                                               \
            break;                                                                                                     \
        }                                                                                                              \
        _Pragma("omp simd reduction(+ : sum)") for (int64_t i = 0; i < n; i++)                                         \
        {                                                                                                              \
            const float v = x[i], u = each ? t[i] : *t;                                                                \
            sum += (double)(value);                                                                                    \
        }                                                                                                              \
    } while (0)

/* each: every element has a target; else *t is that of all. Inlined with a constant. y: NULL, or no sum but each value
 * times up. */
WF_CPU_INLINE double part_sum(wf_loss_kind kind, const loss_shape *s, bool each, int64_t n, float up, const float *x,
                              const float *t, float *y)
{
    double sum = 0;
    switch (kind) {
    case WF_LOSS_BCE_LOGITS:
        PART_SUM(bce(v, u));
        break;
    case WF_LOSS_MSE:
        PART_SUM((v - u) * (v - u));
        break;
    case WF_LOSS_L1:
        PART_SUM(vm_abs(v - u));
        break;
    case WF_LOSS_HUBER:
        PART_SUM(huber(v, u, s->delta));
        break;
    case WF_LOSS_KL:
        PART_SUM(divergence(v, u));
        break;
    case WF_LOSS_FOCAL:
        PART_SUM(focal(v, u, s));
        break;
    }
    return sum;
}

wf_status wf_cpu_loss_forward(wf_ctx *ctx, const wf_loss_args *args)
{
    const wf_array *const x = args->x, *const target = args->target;
    if (x->dtype != WF_F32 || !wf_cpu_is(target, WF_F32) || args->loss->dtype != WF_F32)
        return wf_wide_loss_forward(ctx, args);
    const int64_t n = wf_array_count(x), parts = (n + PART - 1) / PART;
    const float constant = (float)args->value, *const in = x->data, *const t = wf_cpu_data(target);
    const size_t bytes = (size_t)parts * sizeof(double);
    const loss_shape shape = shape_of(args);
    float *const out = args->loss->data, up = (float)args->scale;
    const bool unreduced = args->loss->shape.rank > 0;
    void *work = NULL;
    double total = 0;
    WF_TRY(wf_pool_take(ctx, bytes, &work));
    /* Each part has a place of its own and one thread adds them in order: the sum has the same bits on any number of
     * threads. */
    double *const part = work;
#pragma omp parallel for num_threads(wf_cpu_team(ctx, 4 * n)) schedule(static)
    for (int64_t p = 0; p < parts; p++) {
        const int64_t at = p * PART, size = wf_cpu_min(PART, n - at);
        float *const y = unreduced ? out + at : NULL;
        part[p] = t ? part_sum(args->kind, &shape, true, size, up, in + at, t + at, y)
                    : part_sum(args->kind, &shape, false, size, up, in + at, &constant, y);
    }
    for (int64_t p = 0; p < parts; p++)
        total += part[p];
    if (!unreduced)
        *out = (float)(args->scale * total);
    wf_pool_give(ctx, work, bytes);
    return WF_OK;
}

WF_CPU_INLINE void slopes(wf_loss_kind kind, const loss_shape *s, bool each, int64_t n, float up, const float *x,
                          const float *t, float *y)
{
    switch (kind) {
    case WF_LOSS_BCE_LOGITS:
        EACH(vm_sigmoid(v) - u);
        break;
    case WF_LOSS_MSE:
        EACH(2.0F * (v - u));
        break;
    case WF_LOSS_L1:
        EACH(v > u ? 1.0F : v < u ? -1.0F : v - u);
        break;
    case WF_LOSS_HUBER:
        EACH(v - u > s->delta ? s->delta : v - u < -s->delta ? -s->delta : v - u);
        break;
    case WF_LOSS_KL:
        EACH(-u);
        break;
    case WF_LOSS_FOCAL:
        EACH(focal_slope(v, u, s));
        break;
    }
}

wf_status wf_cpu_loss_backward(wf_ctx *ctx, const wf_loss_args *args)
{
    const wf_array *const x = args->x, *const target = args->target;
    if (x->dtype != WF_F32 || !wf_cpu_is(target, WF_F32) || args->dloss->dtype != WF_F32 || args->dx->dtype != WF_F32)
        return wf_wide_loss_backward(ctx, args);
    const int64_t n = wf_array_count(x);
    const bool unreduced = args->dloss->shape.rank > 0;
    const float *const given = args->dloss->data, *const in = x->data, *const t = wf_cpu_data(target);
    const float constant = (float)args->value, up = (float)((unreduced ? 1 : *given) * args->scale);
    float *const out = args->dx->data;
    const loss_shape shape = shape_of(args);
#pragma omp parallel for num_threads(wf_cpu_team(ctx, n)) schedule(static)
    for (int64_t at = 0; at < n; at += PART) {
        const int64_t size = wf_cpu_min(PART, n - at);
        if (t)
            slopes(args->kind, &shape, true, size, up, in + at, t + at, out + at);
        else
            slopes(args->kind, &shape, false, size, up, in + at, &constant, out + at);
/* The gradient of each element's loss is multiplied in afterwards: `up` holds the scale only. */
#pragma omp simd
        for (int64_t i = at; i < at + (unreduced ? size : 0); i++)
            out[i] *= given[i];
    }
    return WF_OK;
}
