/* Upsampling by one dimension after the other: outputs of one row share their taps across the other dimensions, so the
 * rows of inputs under them are blended first, as one long vector, and outputs are made of neighbours in that line.
 * Backward takes the same two steps in the other order. */
#include "core/cpu/narrow_impl.h"
#include "core/cpu/simd_impl.h"

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

/* What a thread computes with: a line, the inputs under a row of outputs as floats, and rows of the arrays where those
 * are narrow. */
typedef struct lines {
    void *data;
    size_t bytes, each; /* each: bytes of a thread */
    int64_t line, row;  /* floats */
} lines;

static wf_status lines_take(wf_ctx *ctx, const grid *g, int threads, bool narrow, lines *made)
{
    /* A line of zeros, too: an image without pixels has none. */
    made->line = g->in[2] * g->c;
    made->row = narrow ? (g->out[2] > g->in[2] ? g->out[2] : g->in[2]) * g->c : 0;
    made->each = ((size_t)(made->line + made->row) * sizeof(float) + 63) / 64 * 64;
    made->bytes = (size_t)threads * made->each;
    return wf_pool_take(ctx, made->bytes, &made->data);
}

static float *line_here(const lines *l)
{
    return (float *)((char *)l->data + (size_t)omp_get_thread_num() * l->each);
}

static void add_scaled(int64_t n, float weight, const float *restrict from, float *restrict to)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        to[i] = wf_fma(weight, from[i], to[i]);
}

/* The weighted sum of `count` rows of n numbers. Inlined with a constant count. */
WF_CPU_INLINE void blend(int count, int64_t n, const float *const from[4], const float *weight, float *restrict to)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float sum = weight[0] * from[0][i];
        for (int t = 1; t < count; t++)
            sum = wf_fma(weight[t], from[t][i], sum);
        to[i] = sum;
    }
}

/* The line under a row of outputs of sample n: in the array, or in `room`. */
static const float *blend_rows(const grid *g, const row *v, const wf_array *x, int64_t n, float *room, float *narrow)
{
    const int64_t length = g->in[2] * g->c;
    const float *from[4];
    for (int i = 0; i < v->count; i++) {
        from[i] = wf_cpu_read(x, (n * g->in_pixels + v->base[i]) * g->c, length, v->count == 1 ? room : narrow);
        if (!wf_cpu_is_narrow(x) || v->count == 1)
            continue;
        /* Room for one narrow row, so rows are added as they come, in the same order and with the same roundings. */
        if (i == 0)
            memset(room, 0, (size_t)length * sizeof *room);
        add_scaled(length, v->weight[i], narrow, room);
    }
    if (v->count == 1)
        return from[0];
    if (wf_cpu_is_narrow(x))
        return room;
    if (v->count == 2)
        blend(2, length, from, v->weight, room);
    else
        blend(4, length, from, v->weight, room);
    return room;
}

/* A pixel of c channels: a times its weight, and b, which may be NULL, times its. */
WF_CPU_INLINE void make_pixel(int64_t c, const side_taps *side, const float *a, const float *b, float *to)
{
    const float first = side->weight[0], second = side->weight[1];
    int64_t i = 0;
    /* Only a weight of 1 comes by itself. */
    if (!b) {
        for (; i + PACK <= c; i += PACK)
            pack_store(to + i, pack_load(a + i));
        for (; i < c; i++)
            to[i] = a[i];
        return;
    }
    for (; i + PACK <= c; i += PACK)
        pack_store(to + i, pack_fma(pack_of(second), pack_load(b + i), pack_of(first) * pack_load(a + i)));
    for (; i < c; i++)
        to[i] = wf_fma(second, b[i], first * a[i]);
}

/* Row r of the outputs of sample n. */
static void forward_row(const wf_resample_geom *geom, const grid *g, int64_t n, int64_t r, const wf_array *x,
                        const wf_array *y, const lines *l)
{
    const row v = make_row(geom, g, r);
    const int64_t c = g->c, at = (n * g->out_pixels + r * g->out[2]) * c;
    float *const room = line_here(l), *const narrow = room + l->line;
    const float *const line = blend_rows(g, &v, x, n, room, narrow);
    float *const out = wf_cpu_place(y, at, g->out[2] * c, false, narrow);
    for (int64_t p = 0; p < g->out[2]; p++) {
        const side_taps *const side = &g->last[p];
        make_pixel(c, side, line + side->at[0] * c, side->count > 1 ? line + side->at[1] * c : NULL, out + p * c);
    }
    wf_cpu_put(y, at, g->out[2] * c, out);
}

wf_status wf_cpu_resample_forward(wf_ctx *ctx, const wf_resample_args *args)
{
    const wf_array *const x = args->x, *const y = args->y;
    if (!wf_cpu_is_float(x) || !wf_cpu_is_float(y))
        return REF->resample_forward(ctx, args);
    if (wf_array_count(y) == 0)
        return WF_OK;
    grid g;
    lines l;
    const int team = wf_cpu_team(ctx, wf_array_count(y));
    WF_TRY(grid_take(ctx, args->geom, x, y, &g));
    const wf_status status = lines_take(ctx, &g, team, wf_cpu_is_narrow(x) || wf_cpu_is_narrow(y), &l);
    const int64_t rows = status == WF_OK ? g.out[0] * g.out[1] : 0;
#pragma omp parallel for num_threads(team) schedule(static)
    for (int64_t i = 0; i < g.n * rows; i++)
        forward_row(args->geom, &g, i / rows, i % rows, x, y, &l);
    if (status == WF_OK)
        wf_pool_give(ctx, l.data, l.bytes);
    wf_pool_give(ctx, g.last, g.bytes);
    return status;
}

WF_CPU_INLINE void add_pixel(int64_t c, float weight, const float *from, float *to)
{
    int64_t i = 0;
    for (; i + PACK <= c; i += PACK)
        pack_store(to + i, pack_fma(pack_of(weight), pack_load(from + i), pack_load(to + i)));
    for (; i < c; i++)
        to[i] = wf_fma(weight, from[i], to[i]);
}

/* What row r of the outputs of sample n gives to rows [lo, hi) of the sample's inputs. */
static void backward_row(const wf_resample_geom *geom, const grid *g, int64_t n, int64_t r, const wf_array *dy,
                         float *in, int64_t lo, int64_t hi, const lines *l)
{
    const row v = make_row(geom, g, r);
    const int64_t c = g->c, length = g->in[2] * c;
    float *const room = line_here(l);
    bool here[4], any = false;
    for (int i = 0; i < v.count; i++) {
        here[i] = v.base[i] >= lo * g->in[2] && v.base[i] < hi * g->in[2];
        any = any || here[i];
    }
    if (!any)
        return;
    /* A row that gives to one row of inputs is added to it at once. */
    float *const line = v.count == 1 ? in + v.base[0] * c : room;
    if (line == room)
        memset(room, 0, (size_t)length * sizeof *room);
    const float *const from = wf_cpu_read(dy, (n * g->out_pixels + r * g->out[2]) * c, g->out[2] * c, room + l->line);
    for (int64_t p = 0; p < g->out[2]; p++) {
        const side_taps *const side = &g->last[p];
        for (int s = 0; s < side->count; s++)
            add_pixel(c, side->weight[s], from + p * c, line + side->at[s] * c);
    }
    for (int i = 0; i < v.count && line == room; i++)
        if (here[i])
            add_scaled(length, v.weight[i], room, in + v.base[i] * c);
}

/* Rows of outputs add to the same rows of inputs, so a band of these belongs to one thread. A sum has one order however
 * many bands there are. Sums of 16 bits are made in f32, a sample's at a time. */
static void backward_samples(const wf_resample_args *args, const grid *g, const lines *l, int team, float *sums)
{
    const wf_array *const dy = args->y, *const dx = args->x;
    const int64_t rows = g->out[0] * g->out[1], in_rows = g->in[0] * g->in[1], image = g->in_pixels * g->c;
    const int64_t bands = sums || g->n % team == 0 ? 1 : wf_cpu_min(team, in_rows);
#pragma omp parallel for num_threads(team) schedule(static)
    for (int64_t task = 0; task < g->n * bands; task++) {
        const int64_t n = task / bands;
        float *const own = sums ? sums + omp_get_thread_num() * image : NULL;
        float *const in = wf_cpu_place(dx, n * image, image, true, own);
        int64_t lo, hi;
        wf_block(in_rows, bands, task % bands, &lo, &hi);
        for (int64_t r = 0; r < rows; r++)
            backward_row(args->geom, g, n, r, dy, in, lo, hi, l);
        wf_cpu_put(dx, n * image, image, in);
    }
}

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
    lines l = {0};
    WF_TRY(grid_take(ctx, args->geom, dx, dy, &g));
    const int team = wf_cpu_team(ctx, wf_array_count(dy));
    const int64_t image = g.in_pixels * g.c;
    const size_t bytes = wf_cpu_is_narrow(dx) ? (size_t)(team * image) * sizeof(float) : 0;
    void *sums = NULL;
    wf_status status = wf_pool_take(ctx, bytes, &sums);
    if (status == WF_OK)
        status = lines_take(ctx, &g, team, wf_cpu_is_narrow(dy), &l);
    if (status == WF_OK)
        backward_samples(args, &g, &l, team, sums);
    wf_pool_give(ctx, l.data, l.bytes);
    wf_pool_give(ctx, sums, bytes);
    wf_pool_give(ctx, g.last, g.bytes);
    return status;
}
