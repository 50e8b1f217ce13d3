/* Convolutions of groups of four or eight channels with kernels three pixels wide (ResNeXt). oneDNN's vectors hold one
 * group there, of the 16 floats that fit.
 *
 * Here a vector holds 16 neighbouring channels of one pixel: a block, four groups of four or two of eight. A channel's
 * members are the channels of its group. In
 *
 *     y[channel] = sum over taps and i of w[channel][tap][i] * x[member i of the channel's group]
 *
 * a permutation of a pixel's vector puts member i of each group into all lanes of that group. So one multiplication of
 * vectors serves one tap and one i for all 16 channels. The gradient of the data is the same sum with the filter
 * flipped; that of the filter multiplies a spread vector of dy by vectors of x.
 *
 * Images are computed in strips of rows. A thread copies the strip's inputs of one block into rows of f32 that have the
 * pads and stay in its cache: then no tap asks where the image ends, and 16-bit numbers are widened once. */
#include "core/cpu/narrow_impl.h"
#include "core/cpu/simd_impl.h"

#include <omp.h>
#include <string.h>

#if defined(__AVX512F__)

enum {
    LANES = 16,
    TAPS = 3,               /* of one row of the kernel */
    TILE = 14,              /* pixels whose sums stay in registers; images of 224 pixels halve to multiples of 7 */
    TILE_HALF = 7,          /* the same for what is left of a row */
    QUARTET = 4,            /* members whose gradients for one row of the kernel fit in registers: 4 x 3 sums */
    STRIP_FLOATS = 1 << 14, /* 64 KiB of a second-level cache */
    SLICES_MOST = 16,       /* parts of the batch with sums of their own in the filter's gradient */
};

/* What the threads share. `from` is x and `to` is y, or dy and dx in the gradient of the data. */
typedef struct plan {
    const wf_array *from, *to;
    int64_t channels, members, blocks, height; /* blocks: of 16 channels; height of the kernel */
    int64_t from_h, from_w, to_h, to_w, pad[2], stride;
    int64_t strip, strips;        /* rows of `to` in a strip at most; strips of an image */
    int64_t rows, width;          /* of the padded copy of a strip's inputs */
    int64_t items, padded_floats; /* strips of all images; floats of one padded copy */
} plan;

/* Rows [first, first + count) of one image of `to`. */
typedef struct strip {
    int64_t image, first, count;
} strip;

static strip strip_of(const plan *p, int64_t item)
{
    const int64_t first = item % p->strips * p->strip;
    return (strip){item / p->strips, first, wf_cpu_min(p->strip, p->to_h - first)};
}

/* flipped: for the gradient of the data, whose pads are what the kernel reaches beyond the forward ones. */
static plan grouped_plan(const wf_conv_geom *geom, const wf_array *from, const wf_array *to, bool flipped)
{
    plan p = {.from = from,
              .to = to,
              .channels = from->shape.dim[1],
              .members = from->shape.dim[1] / geom->groups,
              .blocks = from->shape.dim[1] / LANES,
              .height = geom->kernel[0],
              .from_h = from->shape.dim[2],
              .from_w = from->shape.dim[3],
              .to_h = to->shape.dim[2],
              .to_w = to->shape.dim[3],
              .stride = geom->stride[0]};
    for (int d = 0; d < 2; d++)
        p.pad[d] = flipped ? geom->kernel[d] - 1 - geom->pad_lo[d] : geom->pad_lo[d];
    p.width = (p.to_w - 1) * p.stride + TAPS;
    /* As many rows as fit, then strips of equal size. */
    const int64_t fit = STRIP_FLOATS / (p.width * LANES);
    const int64_t most = fit > p.height ? (fit - p.height) / p.stride + 1 : 1;
    p.strips = (p.to_h + most - 1) / most;
    p.strip = (p.to_h + p.strips - 1) / p.strips;
    p.strips = (p.to_h + p.strip - 1) / p.strip;
    p.rows = (p.strip - 1) * p.stride + p.height;
    p.items = from->shape.dim[0] * p.strips;
    p.padded_floats = p.rows * p.width * LANES;
    return p;
}

/* 16 channels from element `at` on. */
static inline vec load_lanes(const wf_array *a, int64_t at)
{
    return a->dtype == WF_BF16 ? vec_load_bf16((const uint16_t *)a->data + at) : vec_load((const float *)a->data + at);
}

/* Copies what the taps of a strip read, with zeros around the image. */
static void pad_strip(const plan *p, int64_t block, strip s, float *padded)
{
    /* The first input row may lie above the image, and pads may be wider than it. */
    const int64_t from = s.first * p->stride - p->pad[0], rows = (s.count - 1) * p->stride + p->height;
    const int64_t left = wf_cpu_min(p->pad[1], p->width), pixels = wf_cpu_min(p->from_w, p->width - left);
    for (int64_t r = 0; r < rows; r++) {
        float *const row = padded + r * p->width * LANES;
        const bool inside = from + r >= 0 && from + r < p->from_h;
        const int64_t at = ((s.image * p->from_h + from + r) * p->from_w) * p->channels + block * LANES;
        const int64_t copied = inside ? pixels : 0, right = p->width - left - copied;
        memset(row, 0, (size_t)(left * LANES) * sizeof *row);
        for (int64_t i = 0; i < copied; i++)
            vec_store(row + (left + i) * LANES, load_lanes(p->from, at + i * p->channels));
        memset(row + (left + copied) * LANES, 0, (size_t)(right * LANES) * sizeof *row);
    }
}

/* For each lane, the lane that holds member i of its group. */
static inline __m512i lanes_of(int64_t members, int64_t i)
{
    int32_t lane[LANES];
    for (int l = 0; l < LANES; l++)
        lane[l] = (int32_t)(l / members * members + i);
    return _mm512_loadu_si512(lane);
}

static inline vec spread(__m512i lanes, vec v)
{
    return (vec)_mm512_permutexvar_ps(lanes, (__m512)v);
}

/* What the sums begin with, and the slope of the leaky ReLU that ends them. */
typedef struct epilogue {
    vec bias, slope;
} epilogue;

/* Computes `tile` pixels of a row of `to`, of which the first is element `at`; `under` is where its first tap reads.
 * tile and stride are constants where this is inlined, so that the sums are registers and the loops are unrolled. Each
 * input pixel is loaded and spread once for the up to three outputs that it belongs to. */
WF_CPU_INLINE void result_tile(const plan *p, int tile, int stride, const float *under, const float *filter,
                               const __m512i *lanes, const epilogue *end, int64_t at)
{
    vec sum[TILE];
    for (int t = 0; t < tile; t++)
        sum[t] = end->bias;
    for (int64_t k = 0; k < p->height; k++)
        for (int64_t i = 0; i < p->members; i++, filter += TAPS * LANES) {
            const float *const row = under + k * p->width * LANES;
            const vec weight[TAPS] = {vec_load(filter), vec_load(filter + LANES), vec_load(filter + 2 * LANES)};
            const __m512i lane = lanes[i];
#pragma GCC unroll 32
            for (int j = 0; j < (tile - 1) * stride + TAPS; j++) {
                const vec x = spread(lane, vec_load(row + j * LANES));
#pragma GCC unroll 3
                for (int tap = 0; tap < TAPS; tap++)
                    if (j >= tap && (j - tap) % stride == 0 && (j - tap) / stride < tile)
                        sum[(j - tap) / stride] = vec_fma(weight[tap], x, sum[(j - tap) / stride]);
            }
        }
    for (int t = 0; t < tile; t++) {
        const int64_t to = at + t * p->channels;
        const vec y = vec_leak(sum[t], end->slope);
        if (p->to->dtype == WF_BF16)
            vec_store_bf16((uint16_t *)p->to->data + to, y);
        else
            vec_store((float *)p->to->data + to, y);
    }
}

WF_CPU_INLINE void result_strip(const plan *p, int stride, int64_t block, strip s, const float *padded,
                                const float *filter, const __m512i *lanes, const epilogue *end)
{
    for (int64_t r = 0; r < s.count; r++)
        for (int64_t o = 0, tile; o < p->to_w; o += tile) {
            const int64_t row = s.image * p->to_h + s.first + r, left = p->to_w - o;
            const int64_t at = (row * p->to_w + o) * p->channels + block * LANES;
            const float *const under = padded + (r * stride * p->width + o * stride) * LANES;
            tile = left >= TILE ? TILE : left >= TILE_HALF ? TILE_HALF : 1;
            if (tile == TILE)
                result_tile(p, TILE, stride, under, filter, lanes, end, at);
            else if (tile == TILE_HALF)
                result_tile(p, TILE_HALF, stride, under, filter, lanes, end, at);
            else
                result_tile(p, 1, stride, under, filter, lanes, end, at);
        }
}

static wf_status result(wf_ctx *ctx, const plan *p, const float *filter, const wf_array *bias, float slope)
{
    const int team = ctx->threads < 1 ? 1 : ctx->threads;
    const int64_t units = p->items * p->blocks, turn = wf_cpu_turn(ctx, units);
    const size_t bytes = (size_t)(team * p->padded_floats) * sizeof(float);
    __m512i lanes[2 * QUARTET];
    void *room = NULL;
    WF_TRY(wf_pool_take(ctx, bytes, &room));
    float *const work = room;
    for (int64_t i = 0; i < p->members; i++)
        lanes[i] = lanes_of(p->members, i);
    for (int64_t from = 0; from < units; from += turn) {
        const int64_t to = wf_cpu_min(from + turn, units);
#pragma omp parallel for num_threads(team) schedule(static)
        for (int64_t u = from; u < to; u++) {
            const int64_t block = u % p->blocks;
            const strip s = strip_of(p, u / p->blocks);
            float *const padded = work + omp_get_thread_num() * p->padded_floats;
            const float *const own = filter + block * p->height * p->members * TAPS * LANES;
            const epilogue end = {wf_cpu_data(bias) ? load_lanes(bias, block * LANES) : vec_of(0), vec_of(slope)};
            pad_strip(p, block, s, padded);
            if (p->stride == 1)
                result_strip(p, 1, block, s, padded, own, lanes, &end);
            else
                result_strip(p, 2, block, s, padded, own, lanes, &end);
        }
        wf_ctx_progress(ctx);
    }
    wf_pool_give(ctx, room, bytes);
    return WF_OK;
}

/* Writes the filter as [block][row][member][tap][lane]: what a lane multiplies that member of its group by. w is
 * [channel][row][tap][member] in memory; flipped, inputs and outputs change places and taps are in reverse. */
static void filter_make(const wf_array *w, bool flipped, float *form)
{
    const int64_t channels = w->shape.dim[0], members = w->shape.dim[1], height = w->shape.dim[2];
    for (int64_t c = 0; c < channels; c++)
        for (int64_t k = 0; k < height * TAPS; k++)
            for (int64_t i = 0; i < members; i++) {
                const int64_t out = flipped ? c / members * members + i : c, in = flipped ? c % members : i;
                const int64_t tap = flipped ? height * TAPS - 1 - k : k;
                const int64_t row = c / LANES * height + k / TAPS;
                form[((row * members + i) * TAPS + k % TAPS) * LANES + c % LANES] =
                    wf_cpu_at(w->data, w->dtype == WF_BF16, (out * height * TAPS + tap) * members + in);
            }
}

static wf_status make_form(wf_ctx *ctx, const void *flipped, const wf_array *w, void *form)
{
    filter_make(w, *(const bool *)flipped, form);
    return WF_OK;
}

static wf_status result_of(wf_ctx *ctx, const plan *p, const wf_conv_args *args, bool flipped, float slope)
{
    wf_filter_form form;
    const size_t bytes = (size_t)wf_array_count(args->w) * sizeof(float);
    WF_TRY(wf_filter_form_take(ctx, args->w, wf_hash_u64(91, flipped), bytes, make_form, &flipped, &form));
    const wf_status status = result(ctx, p, form.data, flipped ? NULL : args->bias, slope);
    wf_filter_form_give(ctx, &form);
    return status;
}

wf_status wf_grouped_forward(wf_ctx *ctx, const wf_conv_args *args, float slope)
{
    const plan p = grouped_plan(args->geom, args->x, args->y, false);
    return result_of(ctx, &p, args, false, slope);
}

wf_status wf_grouped_data(wf_ctx *ctx, const wf_conv_args *args)
{
    const plan p = grouped_plan(args->geom, args->y, args->x, true);
    return result_of(ctx, &p, args, true, 1);
}

/* The filter's gradient. Lanes are channels of x, members those of dy: the sum of lane c and member i belongs to
 * w[member i of c's group][row][tap][c's place in its group]. */

/* Adds the products of a strip for one row of the kernel and four members to `sums`, which are [member][tap][lane]; x
 * is where that row of the kernel begins to read. The sums stay in registers for the whole strip. */
WF_CPU_INLINE void sum_row(const plan *p, int stride, const wf_array *dy, const __m512i *lanes, strip s, int64_t block,
                           const float *x, float *sums)
{
    vec sum[QUARTET * TAPS];
    for (int e = 0; e < QUARTET * TAPS; e++)
        sum[e] = vec_load(sums + e * LANES);
    for (int64_t r = 0; r < s.count; r++) {
        const int64_t at = (s.image * p->to_h + s.first + r) * p->to_w * p->channels + block * LANES;
        for (int64_t o = 0; o < p->to_w; o++) {
            const float *const under = x + (r * stride * p->width + o * stride) * LANES;
            const vec dy_pixel = load_lanes(dy, at + o * p->channels);
            const vec in[TAPS] = {vec_load(under), vec_load(under + LANES), vec_load(under + 2 * LANES)};
#pragma GCC unroll 4
            for (int i = 0; i < QUARTET; i++) {
                const vec member = spread(lanes[i], dy_pixel);
#pragma GCC unroll 3
                for (int tap = 0; tap < TAPS; tap++)
                    sum[i * TAPS + tap] = vec_fma(member, in[tap], sum[i * TAPS + tap]);
            }
        }
    }
    for (int e = 0; e < QUARTET * TAPS; e++)
        vec_store(sums + e * LANES, sum[e]);
}

/* Sums the strips [first, last) of all images for one block: `sums` becomes [row][member][tap][lane]. */
static void sum_slice(const plan *p, const wf_array *dy, int64_t block, int64_t first, int64_t last, float *padded,
                      float *sums)
{
    __m512i lanes[2 * QUARTET];
    for (int64_t i = 0; i < p->members; i++)
        lanes[i] = lanes_of(p->members, i);
    memset(sums, 0, (size_t)(p->height * p->members * TAPS * LANES) * sizeof *sums);
    for (int64_t item = first; item < last; item++) {
        const strip s = strip_of(p, item);
        pad_strip(p, block, s, padded);
        for (int64_t k = 0; k < p->height; k++)
            for (int64_t i = 0; i < p->members; i += QUARTET) {
                const float *const x = padded + k * p->width * LANES;
                float *const to = sums + (k * p->members + i) * TAPS * LANES;
                if (p->stride == 1)
                    sum_row(p, 1, dy, lanes + i, s, block, x, to);
                else
                    sum_row(p, 2, dy, lanes + i, s, block, x, to);
            }
    }
}

/* Writes or adds to dw of a block: the sums of its slices, added in their order. */
static void finish_block(const plan *p, const wf_conv_args *args, int64_t block, int64_t slices, float *sums)
{
    const int64_t m = p->members, count = p->height * m * TAPS * LANES;
    float *const dw = (float *)args->w->data + block * count;
    for (int64_t s = 1; s < slices; s++)
        for (int64_t i = 0; i < count; i++)
            sums[i] += sums[s * count + i];
    for (int64_t c = 0; c < LANES; c++)
        for (int64_t k = 0; k < p->height; k++)
            for (int64_t e = 0; e < m * TAPS; e++) {
                const int64_t out = c / m * m + e / TAPS;
                const int64_t at = (out * p->height * TAPS + k * TAPS + e % TAPS) * m + c % m;
                dw[at] = (args->accumulate ? dw[at] : 0) + sums[(k * m * TAPS + e) * LANES + c];
            }
}

wf_status wf_grouped_gradient(wf_ctx *ctx, const wf_conv_args *args)
{
    const plan p = grouped_plan(args->geom, args->x, args->y, false);
    const int team = ctx->threads < 1 ? 1 : ctx->threads;
    /* Their number does not depend on the threads, so that the sums do not either. */
    const int64_t slices = wf_cpu_min(p.items, SLICES_MOST), units = slices * p.blocks;
    const int64_t count = p.height * p.members * TAPS * LANES;
    const size_t bytes = (size_t)(team * p.padded_floats + units * count) * sizeof(float);
    void *room = NULL;
    WF_TRY(wf_pool_take(ctx, bytes, &room));
    float *const work = room, *const sums = work + team * p.padded_floats;
    const int64_t turn = wf_cpu_turn(ctx, units);
    for (int64_t from = 0; from < units; from += turn) {
        const int64_t to = wf_cpu_min(from + turn, units);
#pragma omp parallel for num_threads(team) schedule(static)
        for (int64_t u = from; u < to; u++) {
            const int64_t slice = u / p.blocks, block = u % p.blocks;
            sum_slice(&p, args->y, block, slice * p.items / slices, (slice + 1) * p.items / slices,
                      work + omp_get_thread_num() * p.padded_floats, sums + (block * slices + slice) * count);
        }
        wf_ctx_progress(ctx);
    }
#pragma omp parallel for num_threads(wf_cpu_team(ctx, units *count)) schedule(static)
    for (int64_t block = 0; block < p.blocks; block++)
        finish_block(&p, args, block, slices, sums + block * slices * count);
    wf_pool_give(ctx, room, bytes);
    return WF_OK;
}

/* Returns true if these kernels can run the call: groups of four or eight channels, and the geometry that they
 * assume. */
static bool has(const wf_conv_args *args)
{
    const wf_conv_geom *const geom = args->geom;
    const int64_t channels = args->x->shape.dim[1], members = channels / geom->groups;
    return geom->nd == 2 && geom->groups > 1 && channels == args->y->shape.dim[1] && channels % LANES == 0 &&
           (members == 4 || members == 8) && geom->kernel[1] == TAPS && geom->dilation[0] == 1 &&
           geom->dilation[1] == 1 && geom->stride[0] == geom->stride[1] && geom->stride[0] <= 2;
}

/* The rules: times of oneDNN 2.6 over those of these kernels, least of four runs in turns (bench_products), two threads
 * of a Sapphire Rapids, images of 14 to 112 pixels:
 *
 *     members, type           4, f32        4, bf16       8, f32        8, bf16
 *     forward and data        1.4 to 2.0    2.6 to 2.9    1.0 to 1.2    1.6 to 1.8
 *     forward, stride 2       1.3           1.6           0.6 to 0.8    1.1 to 1.2
 *     filter                  1.8 to 5.1    1.8 to 3.4    1.4 to 1.8    0.9 to 1.1
 *     filter, stride 2        2.0           5.6           1.6 to 1.8    1.9 to 2.6
 *
 * Eight channels in f32 are oneDNN's in forward, and in bf16 in the filter's gradient without a stride. */
static bool fours(const wf_conv_args *args)
{
    return args->x->shape.dim[1] / args->geom->groups == 4;
}

bool wf_grouped_pays(const wf_conv_args *args)
{
    return has(args) && (fours(args) || args->x->dtype == WF_BF16);
}

bool wf_grouped_data_pays(const wf_conv_args *args)
{
    const wf_conv_geom *const geom = args->geom;
    return wf_grouped_pays(args) && geom->stride[0] == 1 && geom->pad_lo[0] < geom->kernel[0] &&
           geom->pad_lo[1] < geom->kernel[1];
}

bool wf_grouped_gradient_pays(const wf_conv_args *args)
{
    return has(args) && args->w->dtype == WF_F32 &&
           (fours(args) || args->x->dtype == WF_F32 || args->geom->stride[0] == 2);
}

#else

/* Without AVX-512 vectors have eight lanes, which a group of eight fills, and registers are too few for the sums. */
bool wf_grouped_pays(const wf_conv_args *args)
{
    return false;
}

bool wf_grouped_data_pays(const wf_conv_args *args)
{
    return false;
}

bool wf_grouped_gradient_pays(const wf_conv_args *args)
{
    return false;
}

wf_status wf_grouped_forward(wf_ctx *ctx, const wf_conv_args *args, float slope)
{
    return WF_RAISE(WF_ERR_UNSUPPORTED, "groups of %lld", (long long)args->geom->groups);
}

wf_status wf_grouped_data(wf_ctx *ctx, const wf_conv_args *args)
{
    return wf_grouped_forward(ctx, args, 1);
}

wf_status wf_grouped_gradient(wf_ctx *ctx, const wf_conv_args *args)
{
    return wf_grouped_forward(ctx, args, 1);
}

#endif
