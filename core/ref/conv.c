/* Convolution in plain loops, in any direction and any float type, summed in double in a fixed order: the oracle for
 * every other filling, so it is never optimised. */
#include "core/ref/ref_impl.h"

#include <string.h>

/* Every element of an output is a sum of its own, over taps (outer) and channels (inner) in ascending order without the
 * padding. So it does not depend on how an image was cut into parts. */

typedef struct conv {
    wf_ref_window w;
    int64_t n, c, f, groups, cg, fg; /* channels in all and by group */
    int64_t taps, in_pixels, out_pixels;
} conv;

static conv conv_make(const wf_conv_geom *geom, const wf_array *x, const wf_array *y)
{
    conv v = {.n = x->shape.dim[0], .c = x->shape.dim[1], .f = y->shape.dim[1], .groups = geom->groups, .taps = 1};
    v.w = wf_ref_window_make(geom->nd, &x->shape, &y->shape, geom->kernel, geom->stride, geom->dilation, geom->pad_lo,
                             geom->pad_hi);
    v.cg = v.c / v.groups;
    v.fg = v.f / v.groups;
    /* 1D and 2D fill the outer dimensions with windows of 1, so one set of loops serves all ranks. */
    v.in_pixels = v.out_pixels = 1;
    for (int d = 0; d < 3; d++) {
        v.taps *= v.w.kernel[d];
        v.in_pixels *= v.w.in[d];
        v.out_pixels *= v.w.out[d];
    }
    return v;
}

/* Place `flat` of a grid as coordinates. */
static void split_index(const int64_t extent[3], int64_t flat, int64_t at[3])
{
    at[2] = flat % extent[2];
    at[1] = flat / extent[2] % extent[1];
    at[0] = flat / extent[2] / extent[1];
}

/* The input pixel under a tap of an output pixel; -1: padding. */
static int64_t pixel_under(const wf_ref_window *w, const int64_t o[3], int64_t tap)
{
    int64_t k[3], pixel = 0;
    split_index(w->kernel, tap, k);
    for (int d = 0; d < 3; d++) {
        const int64_t i = wf_ref_window_at(w, d, o[d], k[d]);
        if (i < 0 || i >= w->in[d])
            return -1;
        pixel = pixel * w->in[d] + i;
    }
    return pixel;
}

/* The output pixel whose tap lies on an input pixel; -1: none. */
static int64_t pixel_above(const wf_ref_window *w, const int64_t i[3], int64_t tap)
{
    int64_t k[3], pixel = 0;
    split_index(w->kernel, tap, k);
    for (int d = 0; d < 3; d++) {
        const int64_t t = i[d] + w->pad_lo[d] - k[d] * w->dilation[d];
        /* With a stride some inputs lie between the windows of this tap. */
        if (t < 0 || t % w->stride[d] != 0 || t / w->stride[d] >= w->out[d])
            return -1;
        pixel = pixel * w->out[d] + t / w->stride[d];
    }
    return pixel;
}

/* sum[j] += v[i] m[i,j] for i in [0, rows): i ascending for each j. */
static void add_product(int64_t rows, int64_t columns, const double *restrict v, const double *restrict m,
                        double *restrict sum)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
            sum[j] += v[i] * m[i * columns + j];
}

static void add_bias(int64_t rows, int64_t channels, const double *bias, double *v)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < channels; c++)
            v[r * channels + c] += bias[c];
}

/* The filter [F,taps,C/g] as [groups,taps,C/g,F/g]: the innermost loop then runs over outputs. */
static const double *filter_by_tap(wf_ref_frame *frame, const conv *v, const double *w)
{
    double *const t = wf_ref_work(frame, v->f * v->taps * v->cg);
    if (!t)
        return NULL;
    for (int64_t f = 0; f < v->f; f++)
        for (int64_t tc = 0; tc < v->taps * v->cg; tc++)
            t[(f / v->fg * v->taps * v->cg + tc) * v->fg + f % v->fg] = w[f * v->taps * v->cg + tc];
    return t;
}

/* One output pixel of all channels. */
static void forward_pixel(const conv *v, const double *x, const double *w, const int64_t o[3], double *y)
{
    for (int64_t tap = 0; tap < v->taps; tap++) {
        const int64_t pixel = pixel_under(&v->w, o, tap);
        if (pixel < 0)
            continue;
        for (int64_t g = 0; g < v->groups; g++)
            add_product(v->cg, v->fg, x + pixel * v->c + g * v->cg, w + (g * v->taps + tap) * v->cg * v->fg,
                        y + g * v->fg);
    }
}

wf_status wf_ref_conv_forward(wf_ctx *ctx, const wf_conv_args *args)
{
    const wf_array *const y = args->y;
    const conv v = conv_make(args->geom, args->x, y);
    const int64_t count = wf_array_count(y);
    wf_ref_frame frame = wf_ref_begin(ctx);
    const double *const xv = wf_ref_in(&frame, args->x), *const wv = wf_ref_in(&frame, args->w),
                        *const biasv = wf_ref_in(&frame, args->bias);
    double *const yv = wf_ref_out(&frame, y, false);
    /* A call that fails notes it in the frame and the calls behind it do no work, so one look is enough. */
    const double *const tap_filter = filter_by_tap(&frame, &v, wv);
    if (frame.status != WF_OK || count == 0)
        return wf_ref_end(&frame);
    /* Outputs that see only padding keep the 0. */
    memset(yv, 0, (size_t)count * sizeof *yv);
    for (int64_t n = 0; n < v.n; n++)
        for (int64_t p = 0; p < v.out_pixels; p++) {
            int64_t o[3];
            split_index(v.w.out, p, o);
            forward_pixel(&v, xv + n * v.in_pixels * v.c, tap_filter, o, yv + (n * v.out_pixels + p) * v.f);
        }
    if (biasv)
        add_bias(v.n * v.out_pixels, v.f, biasv, yv);
    wf_ref_epilogue(&frame, args->epilogue, y->order, count, yv);
    return wf_ref_end(&frame);
}

/* One input pixel of all channels. It gathers from the outputs that used it, so that each element is one sum. */
static void backward_pixel(const conv *v, const double *dy, const double *w, const int64_t i[3], double *dx)
{
    for (int64_t tap = 0; tap < v->taps; tap++) {
        const int64_t pixel = pixel_above(&v->w, i, tap);
        if (pixel < 0)
            continue;
        for (int64_t f = 0; f < v->f; f++)
            add_product(1, v->cg, dy + pixel * v->f + f, w + (f * v->taps + tap) * v->cg, dx + f / v->fg * v->cg);
    }
}

wf_status wf_ref_conv_backward_data(wf_ctx *ctx, const wf_conv_args *args)
{
    const wf_array *const dx = args->x;
    const conv v = conv_make(args->geom, dx, args->y);
    const int64_t count = wf_array_count(dx);
    wf_ref_frame frame = wf_ref_begin(ctx);
    const double *const dyv = wf_ref_in(&frame, args->y), *const wv = wf_ref_in(&frame, args->w),
                        *const biasv = wf_ref_in(&frame, args->bias);
    double *const dxv = wf_ref_out(&frame, dx, false);
    if (frame.status != WF_OK || count == 0)
        return wf_ref_end(&frame);
    memset(dxv, 0, (size_t)count * sizeof *dxv);
    for (int64_t n = 0; n < v.n; n++)
        for (int64_t p = 0; p < v.in_pixels; p++) {
            int64_t i[3];
            split_index(v.w.in, p, i);
            backward_pixel(&v, dyv + n * v.out_pixels * v.f, wv, i, dxv + (n * v.in_pixels + p) * v.c);
        }
    if (biasv)
        add_bias(v.n * v.in_pixels, v.c, biasv, dxv);
    wf_ref_epilogue(&frame, args->epilogue, dx->order, count, dxv);
    return wf_ref_end(&frame);
}

/* What one output pixel adds to the filter's gradient. */
static void filter_pixel(const conv *v, const double *x, const double *dy, const int64_t o[3], double *dw)
{
    for (int64_t tap = 0; tap < v->taps; tap++) {
        const int64_t pixel = pixel_under(&v->w, o, tap);
        if (pixel < 0)
            continue;
        for (int64_t f = 0; f < v->f; f++) {
            const double *const xs = x + pixel * v->c + f / v->fg * v->cg;
            double *const row = dw + (f * v->taps + tap) * v->cg;
            for (int64_t c = 0; c < v->cg; c++)
                row[c] += dy[f] * xs[c];
        }
    }
}

/* a, or where what was there is kept, the sum of both. */
static void put(int64_t n, const double *sum, bool accumulate, double *out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = accumulate ? out[i] + sum[i] : sum[i];
}

static void sum_rows(int64_t rows, int64_t channels, const double *v, double *sum)
{
    memset(sum, 0, (size_t)channels * sizeof *sum);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < channels; c++)
            sum[c] += v[r * channels + c];
}

wf_status wf_ref_conv_backward_filter(wf_ctx *ctx, const wf_conv_args *args)
{
    const wf_array *const dy = args->y;
    const conv v = conv_make(args->geom, args->x, dy);
    const int64_t count = wf_array_count(args->w);
    wf_ref_frame frame = wf_ref_begin(ctx);
    const double *const xv = wf_ref_in(&frame, args->x), *const dyv = wf_ref_in(&frame, dy);
    double *const dwv = wf_ref_out(&frame, args->w, args->accumulate), *const sum = wf_ref_work(&frame, count);
    if (frame.status == WF_OK && count > 0) {
        /* Summed from 0 and added to the old gradient once, so the sum is the same with and without accumulation. */
        memset(sum, 0, (size_t)count * sizeof *sum);
        for (int64_t n = 0; n < v.n; n++)
            for (int64_t p = 0; p < v.out_pixels; p++) {
                int64_t o[3];
                split_index(v.w.out, p, o);
                filter_pixel(&v, xv + n * v.in_pixels * v.c, dyv + (n * v.out_pixels + p) * v.f, o, sum);
            }
        put(count, sum, args->accumulate, dwv);
    }
    WF_TRY(wf_ref_end(&frame));
    return wf_ref_present(args->bias) ? wf_ref_bias_backward(ctx, dy, args->bias, args->accumulate) : WF_OK;
}

wf_status wf_ref_bias_backward(wf_ctx *ctx, const wf_array *dy, const wf_array *db, bool accumulate)
{
    int64_t rows, channels;
    wf_ref_rows(dy, &rows, &channels);
    wf_ref_frame frame = wf_ref_begin(ctx);
    const double *const dyv = wf_ref_in(&frame, dy);
    double *const dbv = wf_ref_out(&frame, db, accumulate), *const sum = wf_ref_work(&frame, channels);
    if (frame.status == WF_OK) {
        sum_rows(rows, channels, dyv, sum);
        put(channels, sum, accumulate, dbv);
    }
    return wf_ref_end(&frame);
}
