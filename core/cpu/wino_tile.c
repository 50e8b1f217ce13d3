/* Tiles in and out of the transformed domain. One line transform is applied to rows and then to columns, on as many
 * channels at once as a register holds. input_x, output_x and spread_x are B', A' and A of the papers in wino_impl.h
 * for x products a line; the filter's G is in wino_filter.c, at the same points. */
#include "core/cpu/simd_impl.h"
#include "core/cpu/wino_impl.h"

/* Points 0, 1, -1, 1/2, -2, infinity. */
static inline void input_6(const pack *d, int64_t s, pack *o, int64_t t)
{
    const pack d0 = d[0], d1 = d[s], d2 = d[2 * s], d3 = d[3 * s], d4 = d[4 * s], d5 = d[5 * s];
    const pack odd = d3 - d1, even = d4 - d2;
    o[0] = pack_scaled(1.5F, odd, pack_scaled(-2.0F, d2, d0 + d4));
    o[t] = pack_scaled(2.5F, d3, pack_scaled(0.5F, d2, d4 - d1));
    o[2 * t] = pack_scaled(0.5F, d3, pack_scaled(-2.5F, d2, d4 + d1));
    o[3 * t] = pack_scaled(2.0F, odd, even);
    o[4 * t] = pack_scaled(-0.5F, odd, even);
    o[5 * t] = pack_scaled(1.5F, even, pack_scaled(-2.0F, d3, d1 + d5));
}

/* pack_scaled(a, x, y) is a x + y, in one rounding. The coefficients are powers of two, so the products are exact. */
static inline void output_6(const pack *m, int64_t s, pack *o, int64_t t)
{
    const pack m0 = m[0], m1 = m[s], m2 = m[2 * s], m3 = m[3 * s], m4 = m[4 * s], m5 = m[5 * s];
    const pack sum = m1 + m2, difference = m1 - m2;
    o[0] = (m0 + sum) + (m3 + m4);
    o[t] = pack_scaled(0.5F, m3, pack_scaled(-2.0F, m4, difference));
    o[2 * t] = pack_scaled(0.25F, m3, pack_scaled(4.0F, m4, sum));
    o[3 * t] = pack_scaled(0.125F, m3, pack_scaled(-8.0F, m4, difference + m5));
}

/* Points 0, 1, -1, -1/2, infinity. */
static inline void input_5(const pack *d, int64_t s, pack *o, int64_t t)
{
    const pack d0 = d[0], d1 = d[s], d2 = d[2 * s], d3 = d[3 * s], d4 = d[4 * s];
    o[0] = pack_scaled(0.5F, d2 - d0, d3 - d1);
    o[t] = pack_scaled(0.5F, d1, pack_scaled(1.5F, d2, d3));
    o[2 * t] = pack_scaled(-0.5F, d1 + d2, d3);
    o[3 * t] = d3 - d1;
    o[4 * t] = pack_scaled(0.5F, d3 - d1, d4 - d2);
}

static inline void output_5(const pack *m, int64_t s, pack *o, int64_t t)
{
    const pack m0 = m[0], m1 = m[s], m2 = m[2 * s], m3 = m[3 * s], m4 = m[4 * s];
    const pack sum = m1 + m2, difference = m1 - m2;
    o[0] = (m0 + sum) + m3;
    o[t] = pack_scaled(-0.5F, m3, difference);
    o[2 * t] = pack_scaled(0.25F, m3, sum);
    o[3 * t] = pack_scaled(-0.125F, m3, difference + m4);
}

/* The transpositions of output_6 and output_5: gradients of outputs into the domain. */
static inline void spread_6(const pack *y, int64_t s, pack *o, int64_t t)
{
    const pack y0 = y[0], y1 = y[s], y2 = y[2 * s], y3 = y[3 * s], even = y0 + y2, odd = y1 + y3;
    o[0] = y0;
    o[t] = even + odd;
    o[2 * t] = even - odd;
    o[3 * t] = pack_scaled(0.125F, y3, pack_scaled(0.25F, y2, pack_scaled(0.5F, y1, y0)));
    o[4 * t] = pack_scaled(-8.0F, y3, pack_scaled(4.0F, y2, pack_scaled(-2.0F, y1, y0)));
    o[5 * t] = y3;
}

static inline void spread_5(const pack *y, int64_t s, pack *o, int64_t t)
{
    const pack y0 = y[0], y1 = y[s], y2 = y[2 * s], y3 = y[3 * s], even = y0 + y2, odd = y1 + y3;
    o[0] = y0;
    o[t] = even + odd;
    o[2 * t] = even - odd;
    o[3 * t] = pack_scaled(-0.125F, y3, pack_scaled(0.25F, y2, pack_scaled(-0.5F, y1, y0)));
    o[4 * t] = y3;
}

/* The row pass makes WINO_TILE rows of `a` values, the column pass `a` columns of `a`. */
static inline void spread_square(int a, const float *const *at, int64_t c, float *to, int64_t step)
{
    pack row[WINO_TILE], half[24], column[6];
    for (int i = 0; i < WINO_TILE; i++) {
        for (int j = 0; j < WINO_TILE; j++)
            row[j] = pack_load(at[i * WINO_TILE + j] + c);
        a == 6 ? spread_6(row, 1, half + i * a, 1) : spread_5(row, 1, half + i * a, 1);
    }
    for (int j = 0; j < a; j++) {
        a == 6 ? spread_6(half + j, a, column, 1) : spread_5(half + j, a, column, 1);
        for (int i = 0; i < a; i++)
            pack_store(to + (i * a + j) * step, column[i]);
    }
}

/* Row by row, then column by column. */
static inline void input_square(int a, const float *const *at, int64_t c, float *to, int64_t step)
{
    pack row[6], half[36], column[6];
    for (int i = 0; i < a; i++) {
        for (int j = 0; j < a; j++)
            row[j] = pack_load(at[i * a + j] + c);
        /* `a` is a constant wherever this is inlined, so the choice costs nothing. */
        a == 6 ? input_6(row, 1, half + i * a, 1) : input_5(row, 1, half + i * a, 1);
    }
    for (int j = 0; j < a; j++) {
        a == 6 ? input_6(half + j, a, column, 1) : input_5(half + j, a, column, 1);
        for (int i = 0; i < a; i++)
            pack_store(to + (i * a + j) * step, column[i]);
    }
}

static inline void output_square(int a, const float *from, int64_t step, pack *result)
{
    pack row[6], half[24];
    for (int i = 0; i < a; i++) {
        for (int j = 0; j < a; j++)
            row[j] = pack_load(from + (i * a + j) * step);
        a == 6 ? output_6(row, 1, half + i * WINO_TILE, 1) : output_5(row, 1, half + i * WINO_TILE, 1);
    }
    for (int j = 0; j < WINO_TILE; j++)
        a == 6 ? output_6(half + j, WINO_TILE, result + j, WINO_TILE)
               : output_5(half + j, WINO_TILE, result + j, WINO_TILE);
}

/* Tiles are counted along the width first, then the height, then the planes of outputs of all samples. */
typedef struct place {
    int64_t n, h, w; /* plane and tile */
} place;

static place place_of(const wf_wino *p, int64_t tile)
{
    return (place){tile / p->tiles_w / p->tiles_h, tile / p->tiles_w % p->tiles_h, tile % p->tiles_w};
}

/* The plane of inputs, over all samples, that outputs of plane n read by this tap; negative: it lies outside. */
static int64_t input_plane(const wf_wino *p, int64_t n, int64_t tap)
{
    const int64_t at = n % p->out_d + p->off_d + tap;
    return at >= 0 && at < p->in_d ? n / p->out_d * p->in_d + at : -1;
}

/* Finds the addresses of the inputs of a tile in plane n; those outside are zeros. */
static void input_pixels(const wf_wino *p, const float *in, const float *zeros, int64_t n, int64_t y0, int64_t x0,
                         const float **pixel)
{
    /* At stride 2 a phase reads every second row and column, from the offset of its tile 0. */
    const int a = p->a;
    const int64_t step = p->in_phases, reach = (a - 1) * step;
    const int64_t column = step * p->in_c, row = p->in_w * column;
    const float *const corner = in + ((n * p->in_h + y0) * p->in_w + x0) * p->in_c;
    /* Most tiles lie inside and need no test for each pixel. */
    if (n >= 0 && y0 >= 0 && x0 >= 0 && y0 + reach < p->in_h && x0 + reach < p->in_w) {
        for (int i = 0; i < a; i++)
            for (int j = 0; j < a; j++)
                pixel[i * a + j] = corner + i * row + j * column;
        return;
    }
    for (int i = 0; i < a; i++)
        for (int j = 0; j < a; j++) {
            const int64_t y = y0 + i * step, x = x0 + j * step;
            const bool inside = n >= 0 && y >= 0 && y < p->in_h && x >= 0 && x < p->in_w;
            /* `zeros` is not moved by `first`: all of it is 0. */
            pixel[i * a + j] = inside ? corner + i * row + j * column : zeros;
        }
}

void wf_wino_input_tile(const wf_wino *p, wf_wino_source in, int64_t tile, wf_wino_phase phase, int64_t first,
                        int64_t channels, float *values, int64_t point_step)
{
    const place at = place_of(p, tile);
    const int64_t step = p->in_phases, y0 = step * at.h * WINO_TILE + p->off[0][phase.h];
    const int64_t x0 = step * at.w * WINO_TILE + p->off[1][phase.w];
    const float *pixel[36];
    input_pixels(p, in.data + first, in.zeros, input_plane(p, at.n, phase.plane), y0, x0, pixel);
    if (p->a == 6)
        for (int64_t c = 0; c < channels; c += PACK)
            input_square(6, pixel, c, values + c, point_step);
    else
        for (int64_t c = 0; c < channels; c += PACK)
            input_square(5, pixel, c, values + c, point_step);
}

static inline void output_channels(const wf_wino *p, int a, const float *products, int64_t point_step,
                                   float *const *pixel, const float *bias, float slope)
{
    const pack leak = pack_of(slope);
    for (int64_t c = 0; c < p->out_c; c += PACK) {
        pack result[WINO_TILE * WINO_TILE];
        /* The last pack of few outputs is partial; the other products are those of zeros in the filter. */
        const int64_t count = wf_cpu_min(PACK, p->out_c - c);
        const pack add = bias ? pack_load_part(bias + c, count) : pack_of(0.0F);
        output_square(a, products + c, point_step, result);
        for (int i = 0; i < WINO_TILE * WINO_TILE; i++)
            if (pixel[i]) {
                const pack v = result[i] + add;
                pack_store_part(pixel[i] + c, count, slope == 1.0F ? v : pack_leak(v, leak));
            }
    }
}

void wf_wino_output_tile(const wf_wino *p, const float *products, int64_t point_step, int64_t tile, wf_wino_phase phase,
                         const float *bias, float slope, float *out)
{
    const place at = place_of(p, tile);
    const int64_t step = p->out_phases, y0 = step * at.h * WINO_TILE + phase.h, x0 = step * at.w * WINO_TILE + phase.w;
    float *pixel[WINO_TILE * WINO_TILE];
    for (int i = 0; i < WINO_TILE; i++)
        for (int j = 0; j < WINO_TILE; j++) {
            const int64_t y = y0 + i * step, x = x0 + j * step;
            /* NULL marks pixels beyond the output, since a tile may hang over its end. */
            const bool inside = y < p->out_h && x < p->out_w;
            pixel[i * WINO_TILE + j] = inside ? out + ((at.n * p->out_h + y) * p->out_w + x) * p->out_c : NULL;
        }
    if (p->a == 6)
        output_channels(p, 6, products, point_step, pixel, bias, slope);
    else
        output_channels(p, 5, products, point_step, pixel, bias, slope);
}

void wf_wino_gradient_tile(const wf_wino *p, wf_wino_source dy, int64_t tile, float *values, int64_t point_step,
                           int64_t panel_step)
{
    const place at = place_of(p, tile);
    const int64_t y0 = at.h * WINO_TILE, x0 = at.w * WINO_TILE;
    const float *pixel[WINO_TILE * WINO_TILE];
    for (int i = 0; i < WINO_TILE; i++)
        for (int j = 0; j < WINO_TILE; j++) {
            /* Gradients beyond the output are read as 0, so products over whole tiles add nothing for them. */
            const bool inside = y0 + i < p->out_h && x0 + j < p->out_w;
            pixel[i * WINO_TILE + j] =
                inside ? dy.data + ((at.n * p->out_h + y0 + i) * p->out_w + x0 + j) * p->out_c : dy.zeros;
        }
    if (p->a == 6)
        for (int64_t c = 0; c < p->out_c; c += PACK)
            spread_square(6, pixel, c, values + c / WINO_PANEL * panel_step + c % WINO_PANEL, point_step);
    else
        for (int64_t c = 0; c < p->out_c; c += PACK)
            spread_square(5, pixel, c, values + c / WINO_PANEL * panel_step + c % WINO_PANEL, point_step);
}
