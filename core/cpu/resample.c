/* Upsampling: pixels in the outer loops, channels in the inner one. */
#include "core/cpu/cpu_impl.h"
#include "core/cpu/wide_impl.h"

#include <string.h>

/* Spatial dimensions filled up to three: 1s in front. */
typedef struct grid {
    int64_t n, c, in_pixels, out_pixels, in[3], out[3];
} grid;

static grid grid_of(const wf_resample_geom *geom, const wf_array *x, const wf_array *y)
{
    grid g = {.n = x->shape.dim[0], .c = x->shape.dim[1], .in = {1, 1, 1}, .out = {1, 1, 1}};
    for (int d = 0; d < geom->nd; d++) {
        g.in[3 - geom->nd + d] = x->shape.dim[2 + d];
        g.out[3 - geom->nd + d] = y->shape.dim[2 + d];
    }
    g.in_pixels = g.in[0] * g.in[1] * g.in[2];
    g.out_pixels = g.out[0] * g.out[1] * g.out[2];
    return g;
}

/* What a row of outputs (along the last dimension) reads across the others. */
typedef struct row {
    int count;
    int64_t base[4]; /* first pixel of a row of inputs */
    float weight[4];
} row;

static row row_of(const wf_resample_geom *geom, const grid *g, int64_t r)
{
    const int64_t o[2] = {r / g->out[1], r % g->out[1]};
    row v = {.count = 1, .weight = {1}};
    for (int d = 0; d < geom->nd - 1; d++) {
        const int at = 3 - geom->nd + d;
        const wf_resample_tap tap = wf_resample_taps(geom, d, o[at] + geom->out_lo[d]);
        const int both = tap.weight > 0 ? 2 : 1;
        for (int i = v.count * both - 1; i >= 0; i--) {
            v.base[i] = v.base[i / both] * g->in[at] + tap.at[i % both] - geom->in_lo[d];
            v.weight[i] = v.weight[i / both] * (float)(i % both ? tap.weight : 1 - tap.weight);
        }
        v.count *= both;
    }
    for (int i = 0; i < v.count; i++)
        v.base[i] *= g->in[2];
    return v;
}

static void add_scaled(int64_t c, float weight, const float *restrict from, float *restrict to)
{
    for (int64_t i = 0; i < c; i++)
        to[i] = __builtin_fmaf(weight, from[i], to[i]);
}

/* Between row r of the outputs and the inputs that it reads, of one sample; `back` adds to the inputs. */
static void run_row(const wf_resample_geom *geom, const grid *g, int64_t r, bool back, float *in, float *out)
{
    const row v = row_of(geom, g, r);
    const int last = geom->nd - 1;
    for (int64_t p = 0; p < g->out[2]; p++) {
        const wf_resample_tap tap = wf_resample_taps(geom, last, p + geom->out_lo[last]);
        float *const y = out + (r * g->out[2] + p) * g->c;
        if (!back)
            memset(y, 0, (size_t)g->c * sizeof *y);
        for (int i = 0; i < v.count; i++)
            for (int side = 0; side < (tap.weight > 0 ? 2 : 1); side++) {
                const float weight = v.weight[i] * (float)(side ? tap.weight : 1 - tap.weight);
                float *const x = in + (v.base[i] + tap.at[side] - geom->in_lo[last]) * g->c;
                add_scaled(g->c, weight, back ? y : x, back ? x : y);
            }
    }
}

wf_status wf_cpu_resample_forward(wf_ctx *ctx, const wf_resample_args *args)
{
    const wf_array *const x = args->x, *const y = args->y;
    if (x->dtype != WF_F32)
        return wf_wide_resample_forward(ctx, args);
    const grid g = grid_of(args->geom, x, y);
    const int64_t rows = g.out[0] * g.out[1];
    float *const in = x->data, *const out = y->data;
    if (wf_array_count(y) == 0)
        return WF_OK;
#pragma omp parallel for num_threads(wf_cpu_team(ctx, wf_array_count(y))) schedule(static)
    for (int64_t i = 0; i < g.n * rows; i++)
        run_row(args->geom, &g, i % rows, false, in + i / rows * g.in_pixels * g.c,
                out + i / rows * g.out_pixels * g.c);
    return WF_OK;
}

wf_status wf_cpu_resample_backward(wf_ctx *ctx, const wf_resample_args *args)
{
    const wf_array *const dy = args->y, *const dx = args->x;
    if (dx->dtype != WF_F32)
        return wf_wide_resample_backward(ctx, args);
    const grid g = grid_of(args->geom, dx, dy);
    const int64_t rows = g.out[0] * g.out[1];
    float *const in = dx->data, *const out = dy->data;
    if (!args->accumulate)
        WF_TRY(wf_cpu_fill(ctx, dx, 0));
    if (wf_array_count(dx) == 0 || wf_array_count(dy) == 0)
        return WF_OK;
        /* Rows of one sample add to the same inputs, so a sample belongs to one thread. */
#pragma omp parallel for num_threads(wf_cpu_team(ctx, wf_array_count(dy))) schedule(static)
    for (int64_t n = 0; n < g.n; n++)
        for (int64_t r = 0; r < rows; r++)
            run_row(args->geom, &g, r, true, in + n * g.in_pixels * g.c, out + n * g.out_pixels * g.c);
    return WF_OK;
}
