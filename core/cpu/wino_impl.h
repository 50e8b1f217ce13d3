/* Convolution by minimal filtering (S. Winograd, "Arithmetic Complexity of Computations", 1980; A. Lavin and S. Gray,
 * "Fast Algorithms for Convolutional Neural Networks", 2016), f32, channels-last, of two dimensions, and of the last
 * two of three.
 *
 * Tiles of 4 x 4 outputs. Kernel 3 at stride 1: 6 x 6 products a tile where the direct form has 144. Kernel 4 at stride
 * 2: the four phases of the input (backwards: of the output) see kernels of 2, 5 x 5 products where the direct form has
 * 64. The points (0, 1, -1, 1/2, -2, infinity) and (0, 1, -1, -1/2, infinity) keep the rounding error at about twice
 * that of the direct sum.
 *
 * A volume's tiles lie in planes. The taps along the depth are not filtered minimally: they are further input channels
 * of a tile, those of the planes that its outputs read. A direct form of 3 x 3 x 3 has 4 times the products.
 */
#ifndef WF_CORE_CPU_WINO_IMPL_H
#define WF_CORE_CPU_WINO_IMPL_H

#include "core/cpu/cpu_impl.h"

static inline int64_t wf_wino_ceiling(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* From one row or point to the next it is an odd number of cache lines, so that they do not fall on the same sets. */
static inline int64_t wf_wino_step(int64_t floats)
{
    return (wf_wino_ceiling(floats, 16) | 1) * 16;
}

/* Rows of a product come in multiples of WINO_ROWS, its columns in panels, whose rows are next to each other in memory.
 * A panel has as many columns as there are sums in registers, so that it is read from the first-level cache for all
 * rows but the first ones. With AVX2 panels of 32, read in halves, take 1.1 to 1.35 times as long on a Zen 3 (64 to 256
 * channels, one thread). */
#if defined(__AVX512F__)
enum { WINO_TILE = 4, WINO_ROWS = 8, WINO_PANEL = 32 };
#else
enum { WINO_TILE = 4, WINO_ROWS = 4, WINO_PANEL = 16 };
#endif

typedef struct wf_wino {
    bool backward;
    int a, taps;                                      /* products and taps per dimension: 6 and 3, or 5 and 2 */
    int64_t points;                                   /* a a */
    int64_t stride, pad[2];                           /* of the convolution */
    int64_t n, in_h, in_w, in_c, out_h, out_w, out_c; /* in and out as this direction reads and writes them */
    int64_t in_d, out_d, planes;                      /* 1 in two dimensions; planes: taps along the depth */
    int64_t off_d;                                    /* first input plane of output plane 0 */
    int64_t in_phases, out_phases;                    /* 1 or 2 per dimension */
    int64_t off[2][2]; /* first input of tile 0, by dimension and phase; phases are of the input, or the output */
    int64_t k;         /* planes in_phases^2 in_c */
    int64_t width;     /* out_c, filled up to whole vectors */
    int64_t tiles_h, tiles_w, tiles;
} wf_wino;

/* Returns true if this form can run the call and is faster; fills the plan. x and y are the input and output of the
 * direction. */
bool wf_wino_plan(const wf_ctx *ctx, bool backward, const wf_conv_geom *geom, const wf_array *in, const wf_array *w,
                  const wf_array *out, wf_wino *plan);
/* Floats of the transformed filter, and the transformation: [out phase][point][panel of outputs][k][WINO_PANEL];
 * outputs are filled up with 0. */
int64_t wf_wino_filter_count(const wf_wino *plan);
void wf_wino_filter(const wf_ctx *ctx, const wf_wino *plan, const float *w, float *out);
uint64_t wf_wino_filter_key(const wf_wino *plan);

/* The convolution; bias may be NULL; values below 0 are multiplied by slope (1: no activation). */
wf_status wf_wino_run(wf_ctx *ctx, const wf_wino *plan, const float *in, const float *filter, const float *bias,
                      float slope, float *out);

/* dw, or dw += it with `accumulate`; the plan is the forward one. */
wf_status wf_wino_gradient(wf_ctx *ctx, const wf_wino *plan, const float *x, const float *dy, bool accumulate,
                           float *dw);

/* These structs are of two words, so that calls pass them in registers. plane: the tap along the depth, as this
 * direction counts them. */
typedef struct wf_wino_phase {
    int32_t h, w;
    int64_t plane;
} wf_wino_phase;

/* Channels of a tile come in parts of in_c: by tap along the depth, then by phase of the input. */
static inline int64_t wf_wino_parts(const wf_wino *p)
{
    return p->planes * p->in_phases * p->in_phases;
}

static inline wf_wino_phase wf_wino_part(const wf_wino *p, int64_t part)
{
    const int64_t phases = p->in_phases * p->in_phases;
    return (wf_wino_phase){(int32_t)(part % phases / p->in_phases), (int32_t)(part % p->in_phases), part / phases};
}

/* Taps of a stored filter, over all of its dimensions. */
static inline int64_t wf_wino_taps(const wf_wino *p)
{
    return p->planes * (p->stride == 2 ? 16 : 9);
}

/* What is read: data, and zeros (as many as a pixel has channels) where a tile reaches beyond it. */
typedef struct wf_wino_source {
    const float *data, *zeros;
} wf_wino_source;

/* Rows with `step` floats from one to the next. */
typedef struct wf_wino_rows {
    const float *data;
    int64_t step;
} wf_wino_rows;

/* Channels [first, first + channels) of one tile of one phase into values[point][channel]. */
void wf_wino_input_tile(const wf_wino *plan, wf_wino_source in, int64_t tile, wf_wino_phase phase, int64_t first,
                        int64_t channels, float *values, int64_t point_step);
/* One tile of output gradients into values[point][panel][WINO_PANEL]. */
void wf_wino_gradient_tile(const wf_wino *plan, wf_wino_source dy, int64_t tile, float *values, int64_t point_step,
                           int64_t panel_step);
/* One tile of one phase out of products[point][width]. */
void wf_wino_output_tile(const wf_wino *plan, const float *products, int64_t point_step, int64_t tile,
                         wf_wino_phase phase, const float *bias, float slope, float *out);
typedef struct wf_wino_size {
    int64_t m, n, k;
} wf_wino_size;

/* c[m][n] = a[m][k] b[k][n]; m is a multiple of WINO_ROWS, n WINO_PANEL or 16. `next`, as large as b, is fetched
 * meanwhile. */
void wf_wino_multiply(wf_wino_size size, wf_wino_rows a, const float *b, const float *next, float *c, int64_t c_step);
/* c[m][n] = (or +=) a[k][m] transposed times b[k][n], whose rows have WINO_PANEL floats from one to the next; m and n
 * as above. */
void wf_wino_multiply_transposed(wf_wino_size size, wf_wino_rows a, const float *b, const float *next, bool accumulate,
                                 float *c, int64_t c_step);
/* The tap of the stored filter, row-major, that is tap (i, j) of the small filter of a phase. */
int64_t wf_wino_tap(const wf_wino *plan, wf_wino_phase phase, int i, int j);

#endif
