/* Pooling in plain loops: the oracle. The first of equal maxima wins, and NaN wins over every number. */
#include "core/ref/ref_impl.h"

#include <math.h>
#include <string.h>

/* One window of one sample: visited taps are listed by their input pixels. */
typedef struct window_taps {
    int64_t count;   /* of taps on real elements */
    int64_t divisor; /* of the average */
} window_taps;

typedef struct pool {
    const wf_pool_geom *geom;
    wf_ref_window w;
    int64_t n, c, in_pixels, out_pixels, taps;
} pool;

static pool pool_make(const wf_pool_geom *geom, const wf_array *x, const wf_array *y)
{
    /* Everything is three-dimensional here; missing dimensions have one element. */
    pool v = {.geom = geom, .n = x->shape.dim[0], .c = x->shape.dim[1], .in_pixels = 1, .out_pixels = 1, .taps = 1};
    v.w = wf_ref_window_make(geom->nd, &x->shape, &y->shape, geom->kernel, geom->stride, geom->dilation, geom->pad_lo,
                             geom->pad_hi);
    for (int d = 0; d < 3; d++) {
        v.in_pixels *= v.w.in[d];
        v.out_pixels *= v.w.out[d];
        v.taps *= v.w.kernel[d];
    }
    return v;
}

/* The input under tap k of window o, and in *end that of the window's taps that count: windows of adaptive pooling
 * differ in length, and the kernel is the longest. */
static int64_t tap_at(const pool *v, int d, int64_t o, int64_t k, int64_t *end)
{
    /* Spatial dimensions are the last of three. */
    const int s = d - (3 - v->geom->nd);
    *end = v->w.in[d] + v->w.pad_hi[d];
    if (!v->geom->adaptive || s < 0)
        return wf_ref_window_at(&v->w, d, o, k);
    const wf_range r = wf_pool_adaptive(v->geom, s, o);
    *end = r.hi;
    return r.lo + k;
}

/* The real elements under window p, row-major, into pixel[]; negative padding cuts the input. */
static window_taps list_taps(const pool *v, int64_t p, int64_t *pixel)
{
    const wf_pool_kind kind = v->geom->kind;
    const wf_ref_window *const w = &v->w;
    const int64_t o[3] = {p / w->out[2] / w->out[1], p / w->out[2] % w->out[1], p % w->out[2]};
    window_taps taps = {0};
    for (int64_t t = 0; t < v->taps; t++) {
        const int64_t k[3] = {t / w->kernel[2] / w->kernel[1], t / w->kernel[2] % w->kernel[1], t % w->kernel[2]};
        bool real = true, padded = true;
        int64_t at = 0;
        for (int d = 0; d < 3; d++) {
            int64_t end;
            const int64_t i = tap_at(v, d, o[d], k[d], &end);
            padded = padded && i < end;
            real = real && i >= 0 && i < w->in[d] && i < end;
            at = at * w->in[d] + i;
        }
        if (real)
            pixel[taps.count++] = at;
        /* Padding counts as zeros in one kind of average and not at all in the other; beyond the padding nothing ever
         * counts. */
        if (kind == WF_POOL_AVG_PADDED ? padded : real)
            taps.divisor++;
    }
    return taps;
}

static void max_window(int64_t c, int64_t count, const int64_t *pixel, const double *x, double *y, int32_t *index)
{
    for (int64_t ch = 0; ch < c; ch++) {
        double best = -INFINITY;
        int64_t place = -1;
        for (int64_t t = 0; t < count; t++) {
            const double v = x[pixel[t] * c + ch];
            /* place < 0 takes the first tap even where it is -infinity, so that every output has a place to send its
             * gradient to. */
            if (place < 0 || v > best || (isnan(v) && !isnan(best))) {
                best = v;
                place = pixel[t];
            }
        }
        y[ch] = best;
        if (index)
            index[ch] = (int32_t)place;
    }
}

static void average_window(int64_t c, const window_taps *taps, const int64_t *pixel, const double *x, double *y)
{
    memset(y, 0, (size_t)c * sizeof *y);
    for (int64_t t = 0; t < taps->count; t++)
        for (int64_t ch = 0; ch < c; ch++)
            y[ch] += x[pixel[t] * c + ch];
    /* A window on nothing but padding gives 0, not a division by 0. */
    for (int64_t ch = 0; ch < c; ch++)
        y[ch] = taps->divisor > 0 ? y[ch] / (double)taps->divisor : 0;
}

wf_status wf_ref_pool_forward(wf_ctx *ctx, const wf_pool_args *args)
{
    const wf_array *const y = args->y;
    const pool v = pool_make(args->geom, args->x, y);
    wf_ref_frame frame = wf_ref_begin(ctx);
    const double *const xv = wf_ref_in(&frame, args->x);
    double *const yv = wf_ref_out(&frame, y, false);
    /* Work is counted in doubles, which are as long as these numbers. */
    int64_t *const pixel = (int64_t *)(void *)wf_ref_work(&frame, v.taps);
    int32_t *const places = args->index ? args->index->data : NULL;
    if (frame.status != WF_OK || wf_array_count(y) == 0)
        return wf_ref_end(&frame);
    for (int64_t p = 0; p < v.out_pixels; p++) {
        const window_taps taps = list_taps(&v, p, pixel);
        /* The taps of a window are the same in all samples. */
        for (int64_t n = 0; n < v.n; n++) {
            const int64_t at = (n * v.out_pixels + p) * v.c;
            const double *const image = xv + n * v.in_pixels * v.c;
            if (args->geom->kind == WF_POOL_MAX)
                max_window(v.c, taps.count, pixel, image, yv + at, places ? places + at : NULL);
            else
                average_window(v.c, &taps, pixel, image, yv + at);
        }
    }
    return wf_ref_end(&frame);
}

/* Windows may overlap, so gradients are added. */
static void max_spread(const pool *v, const double *dy, const int32_t *index, double *dx)
{
    for (int64_t n = 0; n < v->n; n++)
        for (int64_t p = 0; p < v->out_pixels; p++)
            for (int64_t c = 0; c < v->c; c++) {
                const int64_t at = (n * v->out_pixels + p) * v->c + c;
                /* -1: the window had no element. */
                if (index[at] >= 0)
                    dx[(n * v->in_pixels + index[at]) * v->c + c] += dy[at];
            }
}

static void average_spread(const pool *v, const double *dy, int64_t *pixel, double *dx)
{
    for (int64_t p = 0; p < v->out_pixels; p++) {
        const window_taps taps = list_taps(v, p, pixel);
        for (int64_t n = 0; n < v->n; n++)
            for (int64_t t = 0; t < taps.count; t++)
                for (int64_t c = 0; c < v->c; c++)
                    dx[(n * v->in_pixels + pixel[t]) * v->c + c] +=
                        dy[(n * v->out_pixels + p) * v->c + c] / (double)taps.divisor;
    }
}

wf_status wf_ref_pool_backward(wf_ctx *ctx, const wf_pool_args *args)
{
    const wf_array *const dy = args->y, *const dx = args->x;
    const pool v = pool_make(args->geom, dx, dy);
    const int64_t count = wf_array_count(dx);
    wf_ref_frame frame = wf_ref_begin(ctx);
    const double *const dyv = wf_ref_in(&frame, dy);
    double *const dxv = wf_ref_out(&frame, dx, args->accumulate);
    int64_t *const pixel = (int64_t *)(void *)wf_ref_work(&frame, v.taps);
    if (frame.status != WF_OK || count == 0)
        return wf_ref_end(&frame);
    if (!args->accumulate)
        memset(dxv, 0, (size_t)count * sizeof *dxv);
    if (args->geom->kind != WF_POOL_MAX)
        average_spread(&v, dyv, pixel, dxv);
    else if (wf_array_count(dy) > 0)
        max_spread(&v, dyv, args->index->data, dxv);
    return wf_ref_end(&frame);
}
