/* Upsampling: pixels in the outer loops, channels in the inner one. Outputs of one row share their taps across the
 * other dimensions. */
#include "core/cpu/narrow_impl.h"

#include <omp.h>

/* The one or two inputs that an output reads along one dimension. The weight of the second may be 0: then it is not
 * read, as it may lie outside. */
typedef struct side_taps {
    int count;
    float weight[2];
    int64_t at[2]; /* in x */
} side_taps;

/* Spatial dimensions filled up to three: 1s in front. `last`: what outputs read along the last dimension, found once
 * for all rows, since its divisions take longer than the few channels of a pixel. */
typedef struct grid {
    int64_t n, c, in_pixels, out_pixels, in[3], out[3];
    side_taps *last;
    size_t bytes;
} grid;

static side_taps side_of(const wf_resample_geom *geom, int d, int64_t p)
{
    const wf_resample_tap tap = wf_resample_taps(geom, d, p + geom->out_lo[d]);
    /* Places are in the whole; x and y are this rank's boxes of it, which begin at in_lo and out_lo. */
    return (side_taps){.count = tap.weight > 0 ? 2 : 1,
                       .weight = {(float)(1 - tap.weight), (float)tap.weight},
                       .at = {tap.at[0] - geom->in_lo[d], tap.at[1] - geom->in_lo[d]}};
}

/* `last` is taken from the pool. */
static wf_status grid_take(wf_ctx *ctx, const wf_resample_geom *geom, const wf_array *x, const wf_array *y, grid *made)
{
    grid g = {.n = x->shape.dim[0], .c = x->shape.dim[1], .in = {1, 1, 1}, .out = {1, 1, 1}};
    for (int d = 0; d < geom->nd; d++) {
        g.in[3 - geom->nd + d] = x->shape.dim[2 + d];
        g.out[3 - geom->nd + d] = y->shape.dim[2 + d];
    }
    g.in_pixels = g.in[0] * g.in[1] * g.in[2];
    g.out_pixels = g.out[0] * g.out[1] * g.out[2];
    g.bytes = (size_t)g.out[2] * sizeof *g.last;
    void *room = NULL;
    WF_TRY(wf_pool_take(ctx, g.bytes, &room));
    g.last = room;
    for (int64_t p = 0; p < g.out[2]; p++)
        g.last[p] = side_of(geom, geom->nd - 1, p);
    *made = g;
    return WF_OK;
}

/* What a row of outputs (along the last dimension) reads across the others. */
typedef struct row {
    int count;
    int64_t base[4]; /* first pixel of a row of inputs */
    float weight[4];
} row;

static row make_row(const wf_resample_geom *geom, const grid *g, int64_t r)
{
    const int64_t o[2] = {r / g->out[1], r % g->out[1]};
    /* Dimensions before the last give up to four rows of inputs: two for each of two dimensions. */
    row v = {.count = 1, .weight = {1}};
    for (int d = 0; d < geom->nd - 1; d++) {
        const int at = 3 - geom->nd + d;
        const wf_resample_tap tap = wf_resample_taps(geom, d, o[at] + geom->out_lo[d]);
        const int both = tap.weight > 0 ? 2 : 1;
        /* From the end, since entry i is made of entry i / both, which lies before it. */
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
#pragma omp simd
    for (int64_t i = 0; i < c; i++)
        to[i] = wf_fma(weight, from[i], to[i]);
}

/* The inputs that pixel p of a row of outputs reads, of a sample, and their weights. */
typedef struct taps {
    int count;
    int64_t pixel[8];
    float weight[8];
} taps;

static __attribute__((noinline)) taps taps_of(const grid *g, const row *v, int64_t p)
{
    const side_taps *const side = &g->last[p];
    taps all;
    all.count = 0;
    for (int i = 0; i < v->count; i++)
        for (int s = 0; s < side->count; s++) {
            all.pixel[all.count] = v->base[i] + side->at[s];
            all.weight[all.count++] = v->weight[i] * side->weight[s];
        }
    return all;
}

/* The weighted sum of `count` pixels of c channels, in the order and with the rounding of add_scaled. Inlined with a
 * constant count. */
WF_CPU_INLINE void blend(int count, int64_t c, const taps *read, const float *x, float *to)
{
    const float *from[8];
    for (int t = 0; t < count; t++)
        from[t] = x + read->pixel[t] * c;
#pragma omp simd
    for (int64_t i = 0; i < c; i++) {
        float sum = 0;
        for (int t = 0; t < count; t++)
            sum = wf_fma(read->weight[t], from[t][i], sum);
        to[i] = sum;
    }
}

/* All channels of a pixel of f32; x: of its sample. */
WF_CPU_INLINE void blend_pixel(int64_t c, const taps *read, const float *x, float *to)
{
    switch (read->count) {
    case 1:
        blend(1, c, read, x, to);
        break;
    case 2:
        blend(2, c, read, x, to);
        break;
    case 4:
        blend(4, c, read, x, to);
        break;
    default:
        blend(8, c, read, x, to);
        break;
    }
}

/* Row r of the outputs of sample n. */
static void forward_row(const wf_resample_geom *geom, const grid *g, int64_t n, int64_t r, const wf_array *x,
                        const wf_array *y)
{
    const row v = make_row(geom, g, r);
    float from[WF_CPU_CHUNK], to[WF_CPU_CHUNK];
    const bool wide = !wf_cpu_is_narrow(x) && !wf_cpu_is_narrow(y);
    for (int64_t p = 0; p < g->out[2]; p++) {
        const taps read = taps_of(g, &v, p);
        if (wide) {
            blend_pixel(g->c, &read, (const float *)x->data + n * g->in_pixels * g->c,
                        (float *)y->data + (n * g->out_pixels + r * g->out[2] + p) * g->c);
            continue;
        }
        for (int64_t first = 0; first < g->c; first += WF_CPU_CHUNK) {
            const int64_t c = wf_cpu_min(WF_CPU_CHUNK, g->c - first);
            const int64_t at = (n * g->out_pixels + r * g->out[2] + p) * g->c + first;
            float *const out = wf_cpu_place(y, at, c, false, to);
            memset(out, 0, (size_t)c * sizeof *out);
            for (int i = 0; i < read.count; i++)
                add_scaled(c, read.weight[i],
                           wf_cpu_read(x, (n * g->in_pixels + read.pixel[i]) * g->c + first, c, from), out);
            wf_cpu_put(y, at, c, out);
        }
    }
}

wf_status wf_cpu_resample_forward(wf_ctx *ctx, const wf_resample_args *args)
{
    const wf_array *const x = args->x, *const y = args->y;
    if (!wf_cpu_is_float(x) || !wf_cpu_is_float(y))
        return REF->resample_forward(ctx, args);
    if (wf_array_count(y) == 0)
        return WF_OK;
    grid g;
    WF_TRY(grid_take(ctx, args->geom, x, y, &g));
    const int64_t rows = g.out[0] * g.out[1];
#pragma omp parallel for num_threads(wf_cpu_team(ctx, wf_array_count(y))) schedule(static)
    for (int64_t i = 0; i < g.n * rows; i++)
        forward_row(args->geom, &g, i / rows, i % rows, x, y);
    wf_pool_give(ctx, g.last, g.bytes);
    return WF_OK;
}

/* What row r of the outputs of sample n gives to the sample's inputs. */
static void backward_row(const wf_resample_geom *geom, const grid *g, int64_t n, int64_t r, const wf_array *dy,
                         float *in)
{
    const row v = make_row(geom, g, r);
    float room[WF_CPU_CHUNK];
    for (int64_t p = 0; p < g->out[2]; p++) {
        const taps read = taps_of(g, &v, p);
        for (int64_t first = 0; first < g->c; first += WF_CPU_CHUNK) {
            const int64_t c = wf_cpu_min(WF_CPU_CHUNK, g->c - first);
            const float *const from = wf_cpu_read(dy, (n * g->out_pixels + r * g->out[2] + p) * g->c + first, c, room);
            for (int i = 0; i < read.count; i++)
                add_scaled(c, read.weight[i], from, in + read.pixel[i] * g->c + first);
        }
    }
}

/* Rows of one sample add to the same inputs, so a sample belongs to one thread; sums of 16 bits are made in f32. */
wf_status wf_cpu_resample_backward(wf_ctx *ctx, const wf_resample_args *args)
{
    const wf_array *const dy = args->y, *const dx = args->x;
    if (!wf_cpu_is_float(dx) || !wf_cpu_is_float(dy))
        return REF->resample_backward(ctx, args);
    /* The rows below add, whether the caller wants a sum or not. */
    if (!args->accumulate)
        WF_TRY(wf_cpu_fill(ctx, dx, 0));
    if (wf_array_count(dx) == 0 || wf_array_count(dy) == 0)
        return WF_OK;
    grid g;
    WF_TRY(grid_take(ctx, args->geom, dx, dy, &g));
    const int64_t rows = g.out[0] * g.out[1], image = g.in_pixels * g.c;
    const int team = wf_cpu_team(ctx, wf_array_count(dy));
    const size_t bytes = wf_cpu_is_narrow(dx) ? (size_t)(team * image) * sizeof(float) : 0;
    void *room = NULL;
    const wf_status status = wf_pool_take(ctx, bytes, &room);
    if (status != WF_OK) {
        wf_pool_give(ctx, g.last, g.bytes);
        return status;
    }
#pragma omp parallel for num_threads(team) schedule(static)
    for (int64_t n = 0; n < g.n; n++) {
        float *const own = room ? (float *)room + omp_get_thread_num() * image : NULL;
        float *const in = wf_cpu_place(dx, n * image, image, true, own);
        for (int64_t r = 0; r < rows; r++)
            backward_row(args->geom, &g, n, r, dy, in);
        wf_cpu_put(dx, n * image, image, in);
    }
    wf_pool_give(ctx, room, bytes);
    wf_pool_give(ctx, g.last, g.bytes);
    return WF_OK;
}
