/* What the equality tests of layers on meshes share: one communicator and its meshes, layers, parts of whole tensors,
 * and what a rank needs by the formula. */
#ifndef WF_TESTS_MESH_FIXTURE_H
#define WF_TESTS_MESH_FIXTURE_H

#include "comm/mesh_author.h"
#include "core/config_author.h"
#include "layers/layer_author.h"
#include "layers/layers.h"
#include "tests/layers/spatial_geometry.h"
#include "tests/world.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One communicator, and the meshes that were made on it. */
#define MESHES 64
static struct {
    wf_comm *comm;
    wf_ctx *ctx;
    wf_tape *tape;
    wf_dtype dtype, flows; /* of parameters, and of what goes from layer to layer */
    bool exact;
    double tolerance;
    int64_t recomputed, added; /* backward passes that moved something, by formula */
    int n;
    wf_mesh_opts grid[MESHES];
    wf_mesh *mesh[MESHES];
} run;

/* `compute`: WF_F32 or that of mixed precision. */
static inline void open_mixed_run(const char *device, wf_dtype dtype, wf_dtype compute, double tolerance)
{
    memset(&run, 0, sizeof run);
    run.comm =
        test_comm_open(test_communicator("flat"),
                       (wf_ctx_opts){.device = test_device(device), .dtype = dtype, .compute = compute, .seed = 5});
    WF_EXPECT(run.comm, "%s", wf_error_trail());
    run.ctx = wf_comm_ctx(run.comm);
    run.tape = wf_tape_new(run.ctx);
    run.dtype = dtype;
    run.flows = wf_ctx_compute(run.ctx);
    run.exact = dtype == WF_F64;
    run.tolerance = tolerance;
}

static inline void open_run(const char *device, wf_dtype dtype, double tolerance)
{
    open_mixed_run(device, dtype, WF_F32, tolerance);
}

static inline void close_run(void)
{
    for (int i = 0; i < run.n; i++)
        wf_mesh_close(run.mesh[i]);
    wf_tape_free(run.tape);
    WF_EXPECT_OK(wf_comm_close(run.comm));
}

static inline wf_mesh *mesh_of(wf_mesh_opts grid)
{
    for (int i = 0; i < run.n; i++)
        if (memcmp(&grid, &run.grid[i], sizeof grid) == 0)
            return run.mesh[i];
    run.grid[run.n] = grid;
    run.mesh[run.n] = wf_mesh_open(run.comm, grid);
    WF_EXPECT(run.mesh[run.n], "%s", wf_error_trail());
    return run.mesh[run.n++];
}

/* Layers. */

/* Biases are not 0, so that a lost one shows. */
static inline wf_conv_opts biased(wf_conv_opts opts)
{
    opts.b_init = (wf_init){.kind = WF_INIT_NORMAL, .b = 1};
    return opts;
}

static inline wf_shape adaptive_size(const geometry *g)
{
    return (wf_shape){.rank = g->nd, .dim = {g->resize.size[0], g->resize.size[1], g->resize.size[2]}};
}

static inline wf_conv_opts conv_opts(const geometry *g)
{
    wf_conv_opts opts = biased(g->conv);
    opts.nd = g->nd;
    return opts;
}

static inline wf_pool_opts pool_opts(const geometry *g)
{
    wf_pool_opts opts = g->pool;
    opts.nd = g->nd;
    return opts;
}

static inline wf_upsample_opts upsample_opts(const geometry *g)
{
    wf_upsample_opts opts = g->upsample;
    opts.nd = g->nd;
    return opts;
}

static inline wf_layer *serial_layer(const geometry *g)
{
    if (g->kind <= TRANSPOSE)
        return g->kind == TRANSPOSE ? wf_conv_transpose(run.ctx, conv_opts(g)) : wf_conv(run.ctx, conv_opts(g));
    if (g->kind <= AVG_POOL)
        return g->kind == AVG_POOL ? wf_avg_pool(run.ctx, pool_opts(g)) : wf_max_pool(run.ctx, pool_opts(g));
    if (g->kind == UPSAMPLE)
        return wf_upsample(run.ctx, upsample_opts(g));
    if (g->kind == RESIZE && g->largest)
        return wf_adaptive_max_pool(run.ctx, adaptive_size(g));
    if (g->kind == RESIZE)
        return wf_resize(run.ctx, g->resize);
    return g->kind == GLOBAL_MAX ? wf_global_max_pool(run.ctx) : wf_global_avg_pool(run.ctx);
}

static inline wf_layer *spatial_layer(const wf_mesh *mesh, const geometry *g)
{
    if (g->kind <= TRANSPOSE)
        return g->kind == TRANSPOSE ? wf_spatial_conv_transpose(mesh, conv_opts(g))
                                    : wf_spatial_conv(mesh, conv_opts(g));
    if (g->kind <= AVG_POOL)
        return g->kind == AVG_POOL ? wf_spatial_avg_pool(mesh, pool_opts(g)) : wf_spatial_max_pool(mesh, pool_opts(g));
    if (g->kind == UPSAMPLE)
        return wf_spatial_upsample(mesh, upsample_opts(g));
    if (g->kind == RESIZE && g->largest)
        return wf_spatial_adaptive_max_pool(mesh, adaptive_size(g));
    if (g->kind == RESIZE)
        return wf_spatial_resize(mesh, g->resize);
    return g->kind == GLOBAL_MAX ? wf_spatial_global_max_pool(mesh) : wf_spatial_global_avg_pool(mesh);
}

/* Tensors. */

static inline wf_tensor *random_tensor(wf_shape shape, test_rng *rng)
{
    const int64_t n = wf_shape_count(shape);
    double *host = malloc((size_t)(n + 1) * sizeof *host);
    for (int64_t i = 0; i < n; i++)
        host[i] = (double)test_int(rng, -64, 64) / 64;
    wf_tensor *wide = wf_tensor_from_host(run.ctx, WF_F64, shape, host);
    wf_tensor *t = wf_tensor_copy(wide, run.flows, shape.rank >= 3 ? WF_CHANNELS_LAST : WF_ROW_MAJOR);
    wf_tensor_free(wide);
    free(host);
    return t;
}

/* The part of a whole that a layout says, with that layout. */
static inline wf_tensor *part_of(const wf_tensor *whole, wf_layout layout)
{
    wf_tensor *view = wf_tensor_view(whole, layout.box);
    wf_tensor *part = wf_tensor_copy(view, run.flows, WF_CHANNELS_LAST);
    WF_EXPECT_OK(wf_tensor_set_layout(part, layout));
    wf_tensor_free(view);
    return part;
}

static inline double *values(const wf_tensor *t)
{
    const int64_t n = wf_tensor_count(t);
    double *host = calloc((size_t)n + 1, sizeof *host);
    if (n == 0)
        return host;
    wf_tensor *wide = wf_tensor_copy(t, WF_F64, wf_tensor_order(t));
    WF_EXPECT_OK(wf_tensor_export(wide, host, wf_tensor_bytes(wide)));
    wf_tensor_free(wide);
    return host;
}

/* `seen` against `should`, relative to the largest element of `whole`. */
static inline void expect_equal(const char *name, const char *what, const wf_tensor *seen, const wf_tensor *should,
                                const wf_tensor *whole, bool exact)
{
    if (!seen || !should) {
        WF_EXPECT(!seen && !should, "%s: %s is %s", name, what, seen ? "there" : "missing");
        return;
    }
    const int64_t n = wf_tensor_count(should), all = wf_tensor_count(whole);
    WF_EXPECT(wf_tensor_count(seen) == n, "%s: %s has %lld elements, should have %lld", name, what,
              (long long)wf_tensor_count(seen), (long long)n);
    if (wf_tensor_count(seen) != n)
        return;
    double *a = values(seen), *b = values(should), *c = values(whole), most = 1e-3, off = 0;
    for (int64_t i = 0; i < all; i++)
        most = fmax(most, isfinite(c[i]) ? fabs(c[i]) : 0);
    for (int64_t i = 0; i < n; i++) {
        const double d = a[i] == b[i] || (isnan(a[i]) && isnan(b[i])) ? 0 : fabs(a[i] - b[i]);
        off = d <= off ? off : isnan(d) ? INFINITY : d;
    }
    WF_EXPECT(off <= (exact ? 0 : run.tolerance * most), "%s: %s is off by %g of %g%s", name, what, off, most,
              exact ? " and should be equal bit for bit" : "");
    free(a);
    free(b);
    free(c);
}

/* Over all ranks, each element once. */
static inline double dot(const wf_tensor *a, const wf_tensor *b)
{
    const wf_layout layout = wf_tensor_layout(a);
    const int64_t n = wf_tensor_count(a);
    double *x = values(a), *y = values(b), sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * y[i];
    for (int axis = 0; axis < WF_AXES; axis++)
        if (layout.placement[axis] != WF_SHARDED)
            sum /= wf_mesh_size(layout.mesh, (wf_axis)axis);
    free(x);
    free(y);
    return sum;
}

/* <F x, dy> = <x, F* dy> where F is linear, or a choice among elements. Collective. */
static inline void expect_adjoint(const char *name, const wf_tensor *x, const wf_tensor *dx, const wf_tensor *y,
                                  const wf_tensor *dy)
{
    if (!dx)
        return;
    double sums[2] = {dot(y, dy), dot(x, dx)};
    WF_EXPECT_OK(wf_allreduce_f64(run.comm, sums, 2, WF_SUM));
    const double scale = sqrt((double)wf_shape_count(wf_tensor_layout(y).global)) + fabs(sums[1]);
    WF_EXPECT(!isfinite(sums[0]) || fabs(sums[0] - sums[1]) <= 100 * run.tolerance * scale,
              "%s: <y, dy> is %.15g and <x, dx> %.15g", name, sums[0], sums[1]);
}

static inline bool is_linear(const geometry *g)
{
    const wf_conv_opts *o = &g->conv;
    return g->kind > TRANSPOSE || (o->no_bias && o->act == WF_ACT_NONE && o->noise == 0);
}

/* How channels lie over the channel axis. */
typedef enum held { HELD_WHOLE = 0, HELD_BLOCKS, HELD_RANDOM, HELDS } held;

static inline int64_t *random_cuts(int size, int64_t length, int64_t cut[65], test_rng *rng)
{
    cut[0] = 0;
    for (int i = 1; i < size; i++) {
        const int64_t at = test_int(rng, 0, length);
        int j = i;
        for (; j > 1 && cut[j - 1] > at; j--)
            cut[j] = cut[j - 1];
        cut[j] = at;
    }
    cut[size] = length;
    return cut;
}

/* Pixels in balanced blocks or at random shard bounds. */
static inline wf_layout random_layout(const wf_mesh *mesh, wf_shape global, held channels, test_rng *rng)
{
    wf_layout layout;
    int64_t cut[65];
    WF_EXPECT_OK(wf_mesh_layout_activation(mesh, global, &layout));
    const bool random = test_int(rng, 0, 2) > 0;
    for (int a = WF_AXIS_CHANNEL; a <= WF_AXIS_WIDTH; a++)
        if (layout.placement[a] == WF_SHARDED && (a == WF_AXIS_CHANNEL ? channels == HELD_RANDOM : random))
            wf_layout_shard(mesh, &layout, (wf_axis)a, layout.dim[a],
                            random_cuts(wf_mesh_size(mesh, (wf_axis)a), global.dim[layout.dim[a]], cut, rng));
    if (channels == HELD_WHOLE && layout.placement[WF_AXIS_CHANNEL] == WF_SHARDED) {
        layout.placement[WF_AXIS_CHANNEL] = WF_REPLICATED;
        layout.dim[WF_AXIS_CHANNEL] = 0;
        layout.bounds[WF_AXIS_CHANNEL] = NULL;
        layout.box.lo[1] = 0;
        layout.box.hi[1] = global.dim[1];
    }
    return layout;
}

/* What a rank needs, by the formula. */

/* The inputs of an output of upsampling: the source is a quotient, and the one after it counts where it is not whole.
 */
static inline wf_range sources(const geometry *g, int d, int64_t at, int64_t length)
{
    const wf_upsample_opts *o = &g->upsample;
    const int64_t u = o->scale_nd[d] ? o->scale_nd[d] : o->scale ? o->scale : 2;
    int64_t over = at, under = u;
    if (g->upsample.mode == WF_UPSAMPLE_LINEAR) {
        over = g->upsample.align_corners ? at * (length - 1) : 2 * at + 1 - u;
        under = g->upsample.align_corners ? length * u - 1 : 2 * u;
    }
    if (over <= 0 || under <= 0)
        return (wf_range){0, 1};
    const int64_t lo = over / under, hi = lo + 1 + (g->upsample.mode == WF_UPSAMPLE_LINEAR && over % under > 0);
    return (wf_range){lo, hi < length ? hi : length};
}

/* The inputs of output o of a length: the mean's bounds, what a kernel reaches, or the neighbours of the place. */
static inline wf_range resized(const geometry *g, int d, int64_t o, int64_t length)
{
    const wf_resize_opts *r = &g->resize;
    const int64_t n = r->size[d] > 0 ? r->size[d] : length;
    const double step = (double)length / (double)n, centre = step * ((double)o + 0.5);
    const bool cubic = r->mode == WF_RESIZE_CUBIC;
    int64_t lo = o * length / n, hi = ((o + 1) * length + n - 1) / n; /* of the mean */
    if (r->antialias) {
        const double reach = (cubic ? 2 : 1) * (step > 1 ? step : 1);
        lo = (int64_t)floor(centre - reach + 0.5);
        hi = (int64_t)floor(centre + reach + 0.5);
    } else if (r->mode != WF_RESIZE_AREA) {
        const bool left = r->places == WF_PLACES_LEFT || (r->places == 0 && r->mode == WF_RESIZE_NEAREST);
        const bool aligned = r->places == WF_PLACES_ALIGNED;
        const int64_t over = aligned ? o * (length - 1)
                             : left  ? o * length
                                     : (2 * o + 1) * length - n,
                      under = aligned ? (n > 1 ? n - 1 : 1)
                              : left  ? n
                                      : 2 * n,
                      at = over >= 0 ? over / under : -((under - 1 - over) / under);
        lo = at - cubic;
        hi = at + 1 + (cubic ? 2 : r->mode == WF_RESIZE_LINEAR && at * under != over);
    }
    const wf_range inside = {lo < 0 ? 0 : lo < length ? lo : length - 1, hi < 1 ? 1 : hi < length ? hi : length};
    return inside;
}

static inline wf_range reads(const geometry *g, bool back, int d, wf_range out, int64_t length)
{
    if (g->kind == GLOBAL_MAX)
        return (wf_range){0, length};
    if (g->kind == RESIZE)
        return out.lo < out.hi ? (wf_range){resized(g, d, out.lo, length).lo, resized(g, d, out.hi - 1, length).hi}
                               : (wf_range){0, 0};
    if (g->kind == UPSAMPLE)
        return out.lo < out.hi ? (wf_range){sources(g, d, out.lo, length).lo, sources(g, d, out.hi - 1, length).hi}
                               : (wf_range){0, 0};
    const bool conv = g->kind <= TRANSPOSE;
    const int64_t k = (conv ? g->conv.kernel_nd : g->pool.kernel_nd)[d],
                  s = (conv ? g->conv.stride_nd : g->pool.stride_nd)[d],
                  p = (conv ? g->conv.pad_lo_nd : g->pool.pad_lo_nd)[d],
                  extent = (conv ? g->conv.dilation_nd : g->pool.dilation_nd)[d] * (k - 1) + 1;
    int64_t lo = s * out.lo - p, hi = s * (out.hi - 1) - p + extent;
    if (back) {
        const int64_t first = out.lo + p - extent + 1, last = out.hi - 1 + p;
        lo = first <= 0 ? 0 : (first + s - 1) / s;
        hi = last < 0 ? 0 : last / s + 1;
    }
    lo = lo < 0 ? 0 : lo > length ? length : lo;
    hi = hi > length ? length : hi;
    return out.lo < out.hi && lo < hi ? (wf_range){lo, hi} : (wf_range){0, 0};
}

/* All settings of fixed lists are in *_nd fields. */

#define ALL(v)                                                                                                         \
    {                                                                                                                  \
        (v), (v), (v)                                                                                                  \
    }
#define PAD(v) .pad_lo_nd = ALL(v), .pad_hi_nd = ALL(v)
#define CONV_OF(i, o, k, s, d, ...)                                                                                    \
    .conv = {.in = (i), .out = (o), .kernel_nd = ALL(k), .stride_nd = ALL(s), .dilation_nd = ALL(d), __VA_ARGS__}

#endif
