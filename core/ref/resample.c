/* Upsampling in plain loops, and which inputs an output reads, which all fillings use. */
#include "core/ref/ref_impl.h"

#include <string.h>

wf_resample_tap wf_resample_taps(const wf_resample_geom *geom, int d, int64_t o)
{
    const int64_t scale = geom->scale[d], last = geom->in[d] - 1;
    if (!geom->linear)
        return (wf_resample_tap){.at = {o / scale, o / scale}};
    const int64_t outputs = geom->in[d] * scale;
    /* Places are fractions of integers, so that no rounding puts two fillings, or two ranks, between different pixels.
     */
    const int64_t whole = geom->align_corners ? (outputs > 1 ? outputs - 1 : 1) : 2 * scale;
    const int64_t wanted = geom->align_corners ? o * last : 2 * o + 1 - scale;
    /* Half-pixel centres: the first outputs lie before the first input's centre and take its value. */
    const int64_t place = wanted > 0 ? wanted : 0, at = place / whole;
    return (wf_resample_tap){.at = {at, at < last ? at + 1 : last}, .weight = (double)(place % whole) / (double)whole};
}

/* Spatial dimensions filled up to three: 1s in front. */
typedef struct grid {
    int64_t n, c, in[3], out[3];
} grid;

static grid grid_of(const wf_resample_geom *geom, const wf_array *x, const wf_array *y)
{
    grid g = {.n = x->shape.dim[0], .c = x->shape.dim[1], .in = {1, 1, 1}, .out = {1, 1, 1}};
    for (int d = 0; d < geom->nd; d++) {
        g.in[3 - geom->nd + d] = x->shape.dim[2 + d];
        g.out[3 - geom->nd + d] = y->shape.dim[2 + d];
    }
    return g;
}

/* The input pixels of an output pixel and their weights; returns how many. */
static int corners(const wf_resample_geom *geom, const grid *g, int64_t p, int64_t pixel[8], double weight[8])
{
    const int64_t o[3] = {p / g->out[2] / g->out[1], p / g->out[2] % g->out[1], p % g->out[2]};
    int count = 1;
    pixel[0] = 0;
    weight[0] = 1;
    for (int d = 0; d < geom->nd; d++) {
        const int at = 3 - geom->nd + d;
        const wf_resample_tap tap = wf_resample_taps(geom, d, o[at] + geom->out_lo[d]);
        const int both = tap.weight > 0 ? 2 : 1;
        /* From the end, since entry i is made of entry i / both, which must not be overwritten before. */
        for (int i = count * both - 1; i >= 0; i--) {
            pixel[i] = pixel[i / both] * g->in[at] + tap.at[i % both] - geom->in_lo[d];
            weight[i] = weight[i / both] * (i % both ? tap.weight : 1 - tap.weight);
        }
        count *= both;
    }
    return count;
}

wf_status wf_ref_resample_forward(wf_ctx *ctx, const wf_resample_args *args)
{
    const wf_array *const y = args->y;
    const grid g = grid_of(args->geom, args->x, y);
    const int64_t count = wf_array_count(y), in_pixels = g.in[0] * g.in[1] * g.in[2],
                  out_pixels = g.out[0] * g.out[1] * g.out[2];
    wf_ref_frame frame = wf_ref_begin(ctx);
    const double *const xv = wf_ref_in(&frame, args->x);
    double *const yv = wf_ref_out(&frame, y, false);
    if (frame.status != WF_OK || count == 0)
        return wf_ref_end(&frame);
    memset(yv, 0, (size_t)count * sizeof *yv);
    for (int64_t p = 0; p < out_pixels; p++) {
        int64_t pixel[8];
        double weight[8];
        const int n_corners = corners(args->geom, &g, p, pixel, weight);
        for (int64_t n = 0; n < g.n; n++)
            for (int i = 0; i < n_corners; i++)
                for (int64_t c = 0; c < g.c; c++)
                    yv[(n * out_pixels + p) * g.c + c] += weight[i] * xv[(n * in_pixels + pixel[i]) * g.c + c];
    }
    return wf_ref_end(&frame);
}

wf_status wf_ref_resample_backward(wf_ctx *ctx, const wf_resample_args *args)
{
    const wf_array *const dx = args->x;
    const grid g = grid_of(args->geom, dx, args->y);
    const int64_t count = wf_array_count(dx), in_pixels = g.in[0] * g.in[1] * g.in[2],
                  out_pixels = g.out[0] * g.out[1] * g.out[2];
    wf_ref_frame frame = wf_ref_begin(ctx);
    const double *const dyv = wf_ref_in(&frame, args->y);
    double *const dxv = wf_ref_out(&frame, dx, args->accumulate);
    if (frame.status != WF_OK || count == 0)
        return wf_ref_end(&frame);
    if (!args->accumulate)
        memset(dxv, 0, (size_t)count * sizeof *dxv);
    for (int64_t p = 0; p < out_pixels; p++) {
        int64_t pixel[8];
        double weight[8];
        const int n_corners = corners(args->geom, &g, p, pixel, weight);
        for (int64_t n = 0; n < g.n; n++)
            for (int i = 0; i < n_corners; i++)
                for (int64_t c = 0; c < g.c; c++)
                    dxv[(n * in_pixels + pixel[i]) * g.c + c] += weight[i] * dyv[(n * out_pixels + p) * g.c + c];
    }
    return wf_ref_end(&frame);
}
