/* Filter gradients of depthwise convolutions in two dimensions, where each channel has a filter of its own. oneDNN
 * computes those of kernels beyond 3x3 in plain loops.
 *
 * A block of channels is copied, strip by strip, into padded rows of f32 that stay in the cache of one thread: there no
 * tap needs to ask for the image's end, and 16-bit numbers are widened once. */
#include "core/cpu/narrow_impl.h"
#include "core/cpu/simd_impl.h"

#include <omp.h>
#include <string.h>

/* Channels of a block, and taps whose sums fit in registers beside it. */
#if defined(__AVX512F__)
enum { VECTORS = 2, TAPS = 7 };
#else
enum { VECTORS = 1, TAPS = 5 };
#endif
enum { LANES = 16 * VECTORS, STRIP_FLOATS = 1 << 15, SLICES_MOST = 16 };

/* What the threads share. */
typedef struct plan {
    const wf_conv_geom *geom;
    int64_t channels, in_h, in_w, out_h, out_w;
    int64_t taps, blocks;                /* of a filter; of channels */
    int64_t strip, strips;               /* output rows of a strip, at most; strips of an image */
    int64_t rows, width;                 /* of the padded rows of a strip */
    int64_t items;                       /* strips of all images */
    int64_t padded_floats, strip_floats; /* of a thread's two buffers */
} plan;

/* Some output rows of one image. */
typedef struct strip {
    int64_t image, first, count;
} strip;

static strip strip_of(const plan *p, int64_t item)
{
    const int64_t first = item % p->strips * p->strip;
    return (strip){item / p->strips, first, wf_cpu_min(p->strip, p->out_h - first)};
}

static plan plan_of(const wf_conv_geom *geom, const wf_array *in, const wf_array *out)
{
    plan p = {.geom = geom,
              .channels = in->shape.dim[1],
              .in_h = in->shape.dim[2],
              .in_w = in->shape.dim[3],
              .out_h = out->shape.dim[2],
              .out_w = out->shape.dim[3],
              .taps = geom->kernel[0] * geom->kernel[1]};
    p.blocks = (p.channels + LANES - 1) / LANES;
    p.width = (p.out_w - 1) * geom->stride[1] + (geom->kernel[1] - 1) * geom->dilation[1] + 1;
    const int64_t more = (geom->kernel[0] - 1) * geom->dilation[0] + 1, fit = STRIP_FLOATS / (p.width * LANES);
    const int64_t most = fit > more ? (fit - more) / geom->stride[0] + 1 : 1;
    p.strips = (p.out_h + most - 1) / most;
    p.strip = (p.out_h + p.strips - 1) / p.strips;
    p.strips = (p.out_h + p.strip - 1) / p.strip;
    p.rows = (p.strip - 1) * geom->stride[0] + more;
    p.items = in->shape.dim[0] * p.strips;
    p.padded_floats = p.rows * p.width * LANES;
    p.strip_floats = p.strip * p.out_w * LANES;
    return p;
}

/* The first n of sixteen; the others are 0. */
static inline vec load_bf16_part(const uint16_t *from, int64_t n)
{
    uint16_t part[16] = {0};
    memcpy(part, from, (size_t)n * sizeof *part);
    return vec_load_bf16(part);
}

/* `channels` channels of each of `pixels` pixels, from element `at` on, as f32; the rest of LANES is 0. */
static void widen_pixels(const wf_array *a, int64_t at, int64_t pixels, int64_t channels, float *to)
{
    const int64_t step = a->shape.dim[1];
    const float *const wide = (const float *)a->data + at;
    const uint16_t *const narrow = (const uint16_t *)a->data + at;
    for (int v = 0; v < VECTORS; v++) {
        const int64_t n = wf_cpu_min(16, channels - 16 * v), from = 16 * v;
        for (int64_t i = 0; i < pixels; i++) {
            vec value = {0};
            if (n == 16)
                value = a->dtype == WF_F32 ? vec_load(wide + i * step + from) : vec_load_bf16(narrow + i * step + from);
            else if (n > 0)
                value = a->dtype == WF_F32 ? vec_load_part(wide + i * step + from, n)
                                           : load_bf16_part(narrow + i * step + from, n);
            vec_store(to + i * LANES + from, value);
        }
    }
}

static int64_t lanes_of(const plan *p, int64_t block)
{
    return wf_cpu_min(LANES, p->channels - block * LANES);
}

/* The rows under the taps of a strip, with zeros around the image. */
static void pad_strip(const plan *p, const wf_array *in, int64_t block, strip s, float *padded)
{
    const int64_t from = s.first * p->geom->stride[0] - p->geom->pad_lo[0],
                  left = wf_cpu_min(p->geom->pad_lo[1], p->width);
    const int64_t rows = (s.count - 1) * p->geom->stride[0] + (p->geom->kernel[0] - 1) * p->geom->dilation[0] + 1;
    const int64_t pixels = wf_cpu_min(p->in_w, p->width - left), right = p->width - left - pixels;
    for (int64_t r = 0; r < rows; r++) {
        float *const row = padded + r * p->width * LANES;
        if (from + r < 0 || from + r >= p->in_h) {
            memset(row, 0, (size_t)(p->width * LANES) * sizeof *row);
            continue;
        }
        const int64_t at = ((s.image * p->in_h + from + r) * p->in_w) * p->channels + block * LANES;
        memset(row, 0, (size_t)(left * LANES) * sizeof *row);
        widen_pixels(in, at, pixels, lanes_of(p, block), row + left * LANES);
        memset(row + (left + pixels) * LANES, 0, (size_t)(right * LANES) * sizeof *row);
    }
}

/* The filter's gradient. */

/* Adds the products of a strip to the sums of `taps` taps of one row of the kernel. */
WF_CPU_INLINE void sum_taps(const plan *p, int taps, int64_t rows, const float *x, const float *dy, float *sums)
{
    const int64_t step = p->geom->stride[1] * LANES, to_next_tap = p->geom->dilation[1] * LANES;
    const int64_t down = p->geom->stride[0] * p->width * LANES;
    vec sum[TAPS][VECTORS];
    for (int t = 0; t < taps; t++)
        for (int v = 0; v < VECTORS; v++)
            sum[t][v] = vec_of(0);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t o = 0; o < p->out_w; o++) {
            const float *const under = x + r * down + o * step, *const g = dy + (r * p->out_w + o) * LANES;
            for (int v = 0; v < VECTORS; v++) {
                const vec slope = vec_load(g + 16 * v);
                for (int t = 0; t < taps; t++)
                    sum[t][v] = vec_fma(slope, vec_load(under + t * to_next_tap + 16 * v), sum[t][v]);
            }
        }
    for (int t = 0; t < taps; t++)
        for (int v = 0; v < VECTORS; v++)
            vec_store(sums + t * LANES + 16 * v, vec_load(sums + t * LANES + 16 * v) + sum[t][v]);
}

static void sum_strip(const plan *p, int64_t rows, const float *x, const float *dy, float *sums)
{
    for (int64_t i = 0; i < p->geom->kernel[0]; i++)
        for (int64_t j = 0; j < p->geom->kernel[1]; j += TAPS) {
            const float *const under = x + (i * p->geom->dilation[0] * p->width + j * p->geom->dilation[1]) * LANES;
            float *const to = sums + (i * p->geom->kernel[1] + j) * LANES;
            /* Constants, so that the sums are registers. */
            switch (wf_cpu_min(TAPS, p->geom->kernel[1] - j)) {
            case 1:
                sum_taps(p, 1, rows, under, dy, to);
                break;
            case 2:
                sum_taps(p, 2, rows, under, dy, to);
                break;
            case 3:
                sum_taps(p, 3, rows, under, dy, to);
                break;
            case 4:
                sum_taps(p, 4, rows, under, dy, to);
                break;
#if defined(__AVX512F__)
            case 5:
                sum_taps(p, 5, rows, under, dy, to);
                break;
            case 6:
                sum_taps(p, 6, rows, under, dy, to);
                break;
#endif
            default:
                sum_taps(p, TAPS, rows, under, dy, to);
                break;
            }
        }
}

/* The strips [first, last) of all images, for one block of channels. */
static void sum_slice(const plan *p, const wf_conv_args *args, int64_t block, int64_t first, int64_t last, float *work,
                      float *sums)
{
    float *const padded = work, *const dy = work + p->padded_floats;
    memset(sums, 0, (size_t)(p->taps * LANES) * sizeof *sums);
    for (int64_t item = first; item < last; item++) {
        const strip s = strip_of(p, item);
        const int64_t at = (s.image * p->out_h + s.first) * p->out_w * p->channels + block * LANES;
        pad_strip(p, args->x, block, s, padded);
        widen_pixels(args->y, at, s.count * p->out_w, lanes_of(p, block), dy);
        sum_strip(p, s.count, padded, dy, sums);
    }
}

/* dw of a block: the sums of its slices, in their order. */
static void finish_block(const plan *p, const wf_conv_args *args, int64_t block, int64_t slices, float *sums)
{
    const int64_t count = p->taps * LANES;
    float *const wide = args->w->data;
    uint16_t *const narrow = args->w->data;
    for (int64_t s = 1; s < slices; s++)
        for (int64_t i = 0; i < count; i++)
            sums[i] += sums[s * count + i];
    for (int64_t c = 0; c < lanes_of(p, block); c++)
        for (int64_t t = 0; t < p->taps; t++) {
            const int64_t at = (block * LANES + c) * p->taps + t;
            const float sum = sums[t * LANES + c];
            if (args->w->dtype == WF_F32)
                wide[at] = args->accumulate ? wide[at] + sum : sum;
            else
                narrow[at] = wf_to_bf16(args->accumulate ? wf_from_bf16(narrow[at]) + sum : sum);
        }
}

/* Measured on two threads at 96 to 768 channels with kernels of 5x5 and 7x7: 4 to 10 times as fast as oneDNN 2.6 in
 * f32, 20 to 45 times in bf16. With 3x3 oneDNN is as fast. */
bool wf_depthwise_has_gradient(const wf_conv_args *args)
{
    const wf_conv_geom *const geom = args->geom;
    return geom->nd == 2 && geom->groups > 1 && geom->groups == args->x->shape.dim[1] &&
           geom->groups == args->y->shape.dim[1] && (geom->kernel[0] > 3 || geom->kernel[1] > 3);
}

wf_status wf_depthwise_gradient(wf_ctx *ctx, const wf_conv_args *args)
{
    const plan p = plan_of(args->geom, args->x, args->y);
    const int team = ctx->threads < 1 ? 1 : ctx->threads;
    /* A fixed number of slices, so that no sum depends on the number of threads. */
    const int64_t slices = wf_cpu_min(p.items, SLICES_MOST), units = slices * p.blocks;
    const int64_t floats = p.padded_floats + p.strip_floats, count = p.taps * LANES;
    const size_t bytes = (size_t)(team * floats + units * count) * sizeof(float);
    void *room = NULL;
    WF_TRY(wf_pool_take(ctx, bytes, &room));
    float *const work = room, *const sums = work + team * floats;
    const int64_t turn = wf_cpu_turn(ctx, units);
    for (int64_t from = 0; from < units; from += turn) {
        const int64_t to = wf_cpu_min(from + turn, units);
#pragma omp parallel for num_threads(team) schedule(dynamic)
        for (int64_t u = from; u < to; u++) {
            const int64_t slice = u % slices;
            sum_slice(&p, args, u / slices, slice * p.items / slices, (slice + 1) * p.items / slices,
                      work + omp_get_thread_num() * floats, sums + u * count);
        }
        wf_ctx_progress(ctx);
    }
#pragma omp parallel for num_threads(wf_cpu_team(ctx, units *count)) schedule(static)
    for (int64_t block = 0; block < p.blocks; block++)
        finish_block(&p, args, block, slices, sums + block * slices * count);
    wf_pool_give(ctx, room, bytes);
    return WF_OK;
}
