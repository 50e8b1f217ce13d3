/* Filters into the transformed domain. Made once per change of a filter and kept as a packed form; laid out in the
 * panels that wino_multiply.c reads in order. */
#include "core/cpu/simd_impl.h"
#include "core/cpu/wino_impl.h"

int64_t wf_wino_filter_count(const wf_wino *p)
{
    return p->out_phases * p->out_phases * p->points * p->k * p->width;
}

uint64_t wf_wino_filter_key(const wf_wino *p)
{
    uint64_t key = wf_hash_text(p->backward ? 1 : 0, "minimal filtering");
    key = wf_hash_u64(key, (uint64_t)(p->a + 8 * p->planes));
    /* Backwards, the parity of the pads says which taps belong to which phase. */
    return p->backward && p->stride == 2 ? wf_hash_u64(key, (uint64_t)(2 * (p->pad[0] % 2) + p->pad[1] % 2)) : key;
}

/* The tap of the stored filter that is tap j of the small filter of a phase. Backwards at stride 2 row 2 t + phase of
 * dx gets dy at (2 t + phase + pad - tap) / 2, so taps of one parity count, the larger ones first. */
static int64_t tap_of(const wf_wino *p, int d, int64_t phase, int64_t j)
{
    if (!p->backward)
        return p->stride * j + (p->stride == 2 ? phase : 0);
    if (p->stride == 1)
        return p->taps - 1 - j;
    return 2 * (1 - j) + (phase + p->pad[d]) % 2;
}

int64_t wf_wino_tap(const wf_wino *p, wf_wino_phase phase, int i, int j)
{
    const int64_t side = p->stride == 2 ? 4 : 3;
    const int64_t plane = p->backward ? p->planes - 1 - phase.plane : phase.plane;
    return (plane * side + tap_of(p, 0, phase.h, i)) * side + tap_of(p, 1, phase.w, j);
}

/* G g of Winograd's F(4,3) at the points of wino_tile.c: 6 products for 4 outputs of 3 taps. */
static inline void line_6(const pack *g, int64_t s, pack *o, int64_t t)
{
    const pack g0 = g[0], g1 = g[s], g2 = g[2 * s], third = pack_of(1.0F / 3.0F), fifteenth = pack_of(1.0F / 15.0F);
    const pack outer = (g0 + g2) * third, middle = g1 * third;
    o[0] = g0;
    o[t] = outer + middle;
    o[2 * t] = middle - outer;
    o[3 * t] = (pack_of(-16.0F) * g0 - pack_of(8.0F) * g1 - pack_of(4.0F) * g2) * fifteenth;
    o[4 * t] = (g0 - pack_of(2.0F) * g1 + pack_of(4.0F) * g2) * fifteenth;
    o[5 * t] = g2;
}

/* G g of F(4,2), for one phase of a filter of 4 taps and stride 2. */
static inline void line_5(const pack *g, int64_t s, pack *o, int64_t t)
{
    const pack g0 = g[0], g1 = g[s], third = pack_of(1.0F / 3.0F);
    o[0] = pack_of(-2.0F) * g0;
    o[t] = (g0 + g1) * third;
    o[2 * t] = g1 - g0;
    o[3 * t] = (pack_of(8.0F) * g0 - pack_of(4.0F) * g1) * third;
    o[4 * t] = g1;
}

/* Channels [c, c + PACK) of one filter in all points; those from `channels` on are 0. */
static void transform(const wf_wino *p, const float *w, int64_t c, int64_t channels, wf_wino_phase phase, pack *out)
{
    /* `half` has a row of `a` values for each row of taps; its columns, of as many values as taps, are transformed
     * next. */
    pack row[3], half[18];
    const int64_t left = c < channels ? wf_cpu_min(PACK, channels - c) : 0;
    for (int i = 0; i < p->taps; i++) {
        for (int j = 0; j < p->taps; j++)
            row[j] = pack_load_part(w + wf_wino_tap(p, phase, i, j) * channels + c, left);
        p->a == 6 ? line_6(row, 1, half + i * 6, 1) : line_5(row, 1, half + i * 5, 1);
    }
    for (int j = 0; j < p->a; j++)
        p->a == 6 ? line_6(half + j, 6, out + j, 6) : line_5(half + j, 5, out + j, 5);
}

/* The place of input k of the panel of output o, in a matrix of `width` columns. */
static int64_t packed_at(const wf_wino *p, int64_t k, int64_t o)
{
    const int64_t panel = o / WINO_PANEL * WINO_PANEL, width = wf_cpu_min(WINO_PANEL, p->width - panel);
    return panel * p->k + k * width + o - panel;
}

/* Backwards the stored channels are outputs, so vectors of them go where they belong. k: plane and filter. */
static void filter_backward(const wf_wino *p, const float *w, int64_t k, int64_t phase, float *out)
{
    const int64_t matrix = p->k * p->width, f = k % p->in_c;
    const wf_wino_phase of = {(int32_t)(phase / p->out_phases), (int32_t)(phase % p->out_phases), k / p->in_c};
    pack point[36];
    for (int64_t c = 0; c < p->width; c += PACK) {
        transform(p, w + f * wf_wino_taps(p) * p->out_c, c, p->out_c, of, point);
        for (int64_t i = 0; i < p->points; i++)
            pack_store(out + (phase * p->points + i) * matrix + packed_at(p, k, c), point[i]);
    }
}

/* Forwards they are inputs: 16 filters by PACK channels are transposed. */
static void filter_forward(const wf_wino *p, const float *w, int64_t f, int64_t part, float *out)
{
    const int64_t taps = wf_wino_taps(p), matrix = p->k * p->width, count = wf_cpu_min(16, p->out_c - f);
    const wf_wino_phase phase = wf_wino_part(p, part);
    pack point[16][36];
    /* PACK channels of 16 filters at a time, so that a store writes 16 neighbouring outputs. */
    for (int64_t c = 0; c < p->in_c; c += PACK) {
        for (int64_t i = 0; i < count; i++)
            transform(p, w + (f + i) * taps * p->in_c, c, p->in_c, phase, point[i]);
        for (int64_t i = 0; i < p->points; i++)
            for (int64_t l = 0; l < PACK; l++) {
                float *const to = out + i * matrix + packed_at(p, part * p->in_c + c + l, f);
                for (int64_t j = 0; j < 16; j++)
                    to[j] = j < count ? point[j][i][l] : 0.0F;
            }
    }
}

void wf_wino_filter(const wf_ctx *ctx, const wf_wino *p, const float *w, float *out)
{
    /* Threads divide the filters: each writes places of its own, so the result does not depend on them. */
    const int64_t filters = p->backward ? p->k : p->width / 16;
    const int64_t phases = p->backward ? p->out_phases * p->out_phases : wf_wino_parts(p);
#pragma omp parallel for num_threads(wf_cpu_team(ctx, wf_wino_filter_count(p))) schedule(static)
    for (int64_t at = 0; at < filters * phases; at++)
        if (p->backward)
            filter_backward(p, w, at / phases, at % phases, out);
        else
            filter_forward(p, w, at / phases * 16, at % phases, out);
}
