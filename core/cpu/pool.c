/* Pooling: windows in the outer loops, channels in the inner one. */
#include "core/cpu/cpu_impl.h"
#include "core/cpu/wide_impl.h"

#include <math.h>
#include <string.h>

/* Spatial dimensions filled up to three: 1s in front. */
typedef struct windows {
    wf_pool_kind kind;
    int64_t n, c, in_pixels, out_pixels, taps;
    int64_t in[3], out[3], kernel[3], stride[3], dilation[3], lo[3], hi[3];
} windows;

static windows windows_of(const wf_pool_geom *geom, const wf_array *x, const wf_array *y)
{
    windows w = {
        .kind = geom->kind, .n = x->shape.dim[0], .c = x->shape.dim[1], .in_pixels = 1, .out_pixels = 1, .taps = 1};
    for (int d = 0; d < 3; d++) {
        const int s = d - (3 - geom->nd);
        w.in[d] = s < 0 ? 1 : x->shape.dim[2 + s];
        w.out[d] = s < 0 ? 1 : y->shape.dim[2 + s];
        w.kernel[d] = s < 0 ? 1 : geom->kernel[s];
        w.stride[d] = s < 0 ? 1 : geom->stride[s];
        w.dilation[d] = s < 0 ? 1 : geom->dilation[s];
        w.lo[d] = s < 0 ? 0 : geom->pad_lo[s];
        w.hi[d] = s < 0 ? 0 : geom->pad_hi[s];
        w.in_pixels *= w.in[d];
        w.out_pixels *= w.out[d];
        w.taps *= w.kernel[d];
    }
    return w;
}

/* The taps of a window along one dimension that count. */
typedef struct span {
    int64_t first, count; /* taps on real elements */
    int64_t padded;       /* taps that are not beyond the padded input */
    int64_t at;           /* the input under tap `first` */
} span;

static span span_of(const windows *w, int d, int64_t o)
{
    const int64_t start = o * w->stride[d] - w->lo[d], step = w->dilation[d];
    const int64_t end = w->in[d] + w->hi[d], real_end = wf_cpu_min(end, w->in[d]);
    span s = {0};
    while (s.first < w->kernel[d] && start + s.first * step < 0)
        s.first++;
    for (int64_t k = 0; k < w->kernel[d]; k++) {
        const int64_t i = start + k * step;
        s.padded += i < end;
        s.count += k >= s.first && i < real_end;
    }
    s.at = start + s.first * step;
    return s;
}

typedef struct window {
    span s[3];
    int64_t count, divisor;
} window;

static window window_of(const windows *w, int64_t p)
{
    const int64_t o[3] = {p / w->out[2] / w->out[1], p / w->out[2] % w->out[1], p % w->out[2]};
    window v = {.count = 1, .divisor = 1};
    for (int d = 0; d < 3; d++) {
        v.s[d] = span_of(w, d, o[d]);
        v.count *= v.s[d].count;
        v.divisor *= w->kind == WF_POOL_AVG_PADDED ? v.s[d].padded : v.s[d].count;
    }
    return v;
}

/* The pixel of the input under the t-th real tap. */
static int64_t pixel_of(const windows *w, const window *v, int64_t t)
{
    const int64_t k2 = t % v->s[2].count, k1 = t / v->s[2].count % v->s[1].count,
                  k0 = t / v->s[2].count / v->s[1].count;
    const int64_t i0 = v->s[0].at + k0 * w->dilation[0], i1 = v->s[1].at + k1 * w->dilation[1];
    return (i0 * w->in[1] + i1) * w->in[2] + v->s[2].at + k2 * w->dilation[2];
}

static void max_start(int64_t c, const float *x, int32_t pixel, float *restrict y, int32_t *restrict index)
{
    memcpy(y, x, (size_t)c * sizeof *y);
    for (int64_t i = 0; i < c && index; i++)
        index[i] = pixel;
}

static void max_step(int64_t c, const float *restrict x, int32_t pixel, float *restrict y, int32_t *restrict index)
{
    if (!index) {
        for (int64_t i = 0; i < c; i++)
            y[i] = ((x[i] > y[i]) | (x[i] != x[i])) ? x[i] : y[i];
        return;
    }
    for (int64_t i = 0; i < c; i++) {
        const float v = x[i], best = y[i];
        const int wins = (v > best) | ((v != v) & (best == best));
        y[i] = wins ? v : best;
        index[i] = wins ? pixel : index[i];
    }
}

static void max_window(const windows *w, const window *v, const float *image, float *y, int32_t *index)
{
    if (v->count == 0) {
        for (int64_t i = 0; i < w->c; i++) {
            y[i] = -INFINITY;
            if (index)
                index[i] = -1;
        }
        return;
    }
    for (int64_t t = 0; t < v->count; t++) {
        const int64_t pixel = pixel_of(w, v, t);
        (t == 0 ? max_start : max_step)(w->c, image + pixel * w->c, (int32_t)pixel, y, index);
    }
}

static void average_window(const windows *w, const window *v, const float *image, float *restrict y)
{
    const float scale = v->divisor > 0 ? 1.0F / (float)v->divisor : 0.0F;
    memset(y, 0, (size_t)w->c * sizeof *y);
    for (int64_t t = 0; t < v->count; t++) {
        const float *const restrict x = image + pixel_of(w, v, t) * w->c;
        for (int64_t i = 0; i < w->c; i++)
            y[i] += x[i];
    }
    for (int64_t i = 0; i < w->c; i++)
        y[i] *= scale;
}

wf_status wf_cpu_pool_forward(wf_ctx *ctx, const wf_pool_args *args)
{
    const wf_array *const x = args->x, *const y = args->y;
    if (x->dtype != WF_F32 || y->dtype != WF_F32 || wf_array_count(x) == 0 || wf_array_count(y) == 0)
        return wf_wide_pool_forward(ctx, args);
    const windows w = windows_of(args->geom, x, y);
    const float *const in = x->data;
    float *const out = y->data;
    int32_t *const places = wf_cpu_data(args->index);
#pragma omp parallel for num_threads(wf_cpu_team(ctx, w.n *w.out_pixels *w.c *w.taps)) schedule(static)
    for (int64_t i = 0; i < w.n * w.out_pixels; i++) {
        const window v = window_of(&w, i % w.out_pixels);
        const float *const image = in + i / w.out_pixels * w.in_pixels * w.c;
        if (w.kind == WF_POOL_MAX)
            max_window(&w, &v, image, out + i * w.c, places ? places + i * w.c : NULL);
        else
            average_window(&w, &v, image, out + i * w.c);
    }
    return WF_OK;
}

static void max_spread(int64_t c, int32_t pixel, const float *restrict dy, const int32_t *restrict index,
                       float *restrict dx)
{
    for (int64_t i = 0; i < c; i++)
        dx[i] += index[i] == pixel ? dy[i] : 0.0F;
}

static void average_spread(int64_t c, float scale, const float *restrict dy, float *restrict dx)
{
    for (int64_t i = 0; i < c; i++)
        dx[i] = __builtin_fmaf(dy[i], scale, dx[i]);
}

/* One sample: windows may overlap, so it belongs to one thread. */
static void spread_sample(const windows *w, const float *dy, const int32_t *index, float *dx)
{
    for (int64_t p = 0; p < w->out_pixels; p++) {
        const window v = window_of(w, p);
        const float scale = v.divisor > 0 ? 1.0F / (float)v.divisor : 0.0F;
        for (int64_t t = 0; t < v.count; t++) {
            const int64_t pixel = pixel_of(w, &v, t);
            if (w->kind == WF_POOL_MAX)
                max_spread(w->c, (int32_t)pixel, dy + p * w->c, index + p * w->c, dx + pixel * w->c);
            else
                average_spread(w->c, scale, dy + p * w->c, dx + pixel * w->c);
        }
    }
}

wf_status wf_cpu_pool_backward(wf_ctx *ctx, const wf_pool_args *args)
{
    const wf_array *const dy = args->y, *const dx = args->x;
    if (dy->dtype != WF_F32 || dx->dtype != WF_F32 || wf_array_count(dx) == 0 || wf_array_count(dy) == 0)
        return wf_wide_pool_backward(ctx, args);
    const windows w = windows_of(args->geom, dx, dy);
    const float *const in = dy->data;
    const int32_t *const places = wf_cpu_data(args->index);
    float *const out = dx->data;
#pragma omp parallel for num_threads(wf_cpu_team(ctx, w.n *w.in_pixels *w.c)) schedule(static)
    for (int64_t n = 0; n < w.n; n++) {
        float *const image = out + n * w.in_pixels * w.c;
        if (!args->accumulate)
            memset(image, 0, (size_t)(w.in_pixels * w.c) * sizeof *image);
        spread_sample(&w, in + n * w.out_pixels * w.c, places ? places + n * w.out_pixels * w.c : NULL, image);
    }
    return WF_OK;
}
