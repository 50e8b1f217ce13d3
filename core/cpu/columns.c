/* Convolutions as products of matrices. A row has the inputs of an output pixel side by side (im2col); rows times the
 * filter are the outputs, gradients of outputs times rows the filter's gradient, and gradients of outputs times the
 * filter are rows, whose elements are summed by input (col2im). conv.c takes this for many channels on few pixels,
 * where oneDNN's convolutions of bf16 leave AMX idle, and those of f32 and minimal filtering have too few tiles, and
 * with AVX2 for kernels of 3 at stride 2. */
#include "core/cpu/narrow_impl.h"

#include <string.h>

/* Bytes of rows at a time. Measured: with 2 MiB products of 512 channels take 1.6 times as long, with 24 MiB 1.3 times.
 */
enum { ROOM = 8 << 20 };

/* The geometry in three dimensions, the outer ones 1 where there are fewer. */
typedef struct column_plan {
    const char *x;
    int64_t c, in[3], out[3], kernel[3], stride[3], dilation[3], lo[3];
    size_t run; /* bytes of the channels of a pixel */
} column_plan;

static column_plan column_plan_of(const wf_conv_geom *geom, const wf_array *x, const wf_array *dy)
{
    column_plan p = {.x = x->data, .c = x->shape.dim[1], .run = (size_t)x->shape.dim[1] * wf_dtype_size(x->dtype)};
    for (int d = 0; d < 3; d++) {
        const int from = d - (3 - geom->nd);
        const bool has = from >= 0;
        p.in[d] = has ? x->shape.dim[2 + from] : 1;
        p.out[d] = has ? dy->shape.dim[2 + from] : 1;
        p.kernel[d] = has ? geom->kernel[from] : 1;
        p.stride[d] = has ? geom->stride[from] : 1;
        p.dilation[d] = has ? geom->dilation[from] : 1;
        p.lo[d] = has ? geom->pad_lo[from] : 0;
    }
    return p;
}

/* Fills the row of the output pixel with this number, counted over all samples. */
static void row_fill(const column_plan *p, int64_t pixel, char *to)
{
    int64_t at[3];
    for (int d = 2; d >= 0; d--) {
        at[d] = pixel % p->out[d] * p->stride[d] - p->lo[d];
        pixel /= p->out[d];
    }
    for (int64_t i = 0; i < p->kernel[0]; i++)
        for (int64_t j = 0; j < p->kernel[1]; j++)
            for (int64_t k = 0; k < p->kernel[2]; k++, to += p->run) {
                const int64_t a = at[0] + i * p->dilation[0], b = at[1] + j * p->dilation[1];
                const int64_t c = at[2] + k * p->dilation[2];
                const bool inside = a >= 0 && a < p->in[0] && b >= 0 && b < p->in[1] && c >= 0 && c < p->in[2];
                const int64_t from = ((pixel * p->in[0] + a) * p->in[1] + b) * p->in[2] + c;
                if (inside)
                    memcpy(to, p->x + (size_t)from * p->run, p->run);
                else
                    memset(to, 0, p->run);
            }
}

static int64_t pixels_of(const wf_conv_geom *geom, const wf_array *y)
{
    int64_t pixels = 1;
    for (int d = 0; d < geom->nd; d++)
        pixels *= y->shape.dim[2 + d];
    return pixels;
}

static bool has_channels(const wf_conv_args *args, int64_t least)
{
    return args->geom->groups == 1 && args->x->shape.dim[1] >= least && args->y->shape.dim[1] >= least;
}

/* One sample of few pixels, or some of fewer: the filter is what is read, once for all rows, where oneDNN's convolution
 * of f32 reads it for each row of pixels. One thread, oneDNN 2.6, ms of the convolution and of the product, its filter
 * packed: 512 channels 4x4 k3 0.94 and 0.76, 2x2 0.50 and 0.44, 256 -> 512 to 4x4 0.49 and 0.40; but 256 at 4x4 0.16
 * and 0.17, 512 at 7x7 1.95 and 2.08. */
static bool reads_filter(const wf_conv_args *args)
{
    const int64_t rows = args->y->shape.dim[0] * pixels_of(args->geom, args->y);
    return args->w_reused && has_channels(args, 256) && args->y->shape.dim[1] >= 512 && rows >= 4 && rows <= 16;
}

#if defined(__AVX2__) && !defined(__AVX512F__)
/* Kernel 3 at stride 2, which minimal filtering does not take. Share of the speed of a large product, one thread,
 * oneDNN 2.6, of its kernels for AVX2 and of the product: 128 channels at 56x56 forward 35 and 92 %, to the filter 52
 * and 75. With AVX-512 oneDNN's own are at 104 and 76 %. */
static bool strides(const wf_conv_args *args)
{
    const wf_conv_geom *g = args->geom;
    for (int d = 0; d < g->nd; d++)
        if (g->kernel[d] != 3 || g->stride[d] != 2)
            return false;
    return has_channels(args, 64);
}
#else
static bool strides(const wf_conv_args *args)
{
    return false;
}
#endif

/* The rules are measured with oneDNN 2.6 and 3.2 on two cores with AMX; figures are GFLOP/s of 2.6, batch 64, of the
 * convolution and of the product. Forward of bf16: 512 channels 4x4 k3 826 and 1567, 2x2 280 and 1415, 256 -> 512 to
 * 4x4 k4 s2 833 and 1510; but 128 channels 4x4 1806 and 1558, 256 at 8x8 2769 and 835. */
bool wf_cpu_columns_pay(const wf_conv_args *args)
{
    if (args->x->dtype == WF_F32)
        return args->y->dtype == WF_F32 && (reads_filter(args) || strides(args));
    return args->y->dtype == WF_BF16 && has_channels(args, 256) && pixels_of(args->geom, args->y) <= 16;
}

/* bf16: 512 channels 4x4 k3 662 and 1356, 2x2 221 and 1700, 256 -> 512 to 4x4 k4 s2 437 and 1336; but 128 channels 4x4
 * 998 and 968, 256 at 8x8 2152 and 1178. */
bool wf_cpu_columns_data_pay(const wf_conv_args *args)
{
    return args->y->dtype == WF_BF16 && has_channels(args, 256) && pixels_of(args->geom, args->y) <= 16;
}

/* bf16: 512 channels 4x4 k3 300 and 1429, 64 -> 128 to 4x4 k4 s2 148 and 850, 256 at 8x8 k3 939 and 1137; but 64 at 8x8
 * 558 and 399, 128 at 16x16 929 and 790. f32: 512 channels 2x2 k3 98 and 336. */
bool wf_cpu_columns_gradient_pay(const wf_conv_args *args)
{
    const int64_t pixels = pixels_of(args->geom, args->y);
    if (args->w->dtype != WF_F32)
        return false;
    if (args->x->dtype == WF_F32)
        return (pixels <= 4 && has_channels(args, 128)) || strides(args);
    return pixels <= 64 && has_channels(args, pixels <= 16 ? 64 : 128);
}

/* What a matrix is multiplied by, or gives: all of a dense array, in rows of this length. */
static wf_array matrix_of(const wf_array *a, int64_t width)
{
    return (wf_array){.data = a->data, .dtype = a->dtype, .shape = WF_SHAPE(wf_array_count(a) / width, width)};
}

/* Rows [lo, lo + n) of a matrix. */
static wf_array rows_of(wf_array matrix, int64_t lo, int64_t n)
{
    matrix.data = (char *)matrix.data + lo * matrix.shape.dim[1] * (int64_t)wf_dtype_size(matrix.dtype);
    matrix.shape.dim[0] = n;
    return matrix;
}

/* A product of the rows of output pixels [lo, ...) and what belongs to them. */
typedef wf_status (*multiply)(wf_ctx *ctx, const wf_conv_args *args, const wf_array *rows, int64_t lo);

static wf_status multiply_rows(wf_ctx *ctx, const wf_conv_args *args, multiply product)
{
    const column_plan p = column_plan_of(args->geom, args->x, args->y);
    const int64_t f = args->y->shape.dim[1], width = wf_array_count(args->w) / f, pixels = wf_array_count(args->y) / f;
    const int64_t row = width * (int64_t)wf_dtype_size(args->x->dtype);
    /* Pieces of equal length: each reads or writes the whole filter. */
    const int64_t pieces = pixels * row / ROOM + 1, step = (pixels + pieces - 1) / pieces;
    void *room = NULL;
    WF_TRY(wf_pool_take(ctx, (size_t)(step * row), &room));
    char *const data = room;
    wf_status status = WF_OK;
    for (int64_t lo = 0; lo < pixels && status == WF_OK; lo += step) {
        const int64_t n = wf_cpu_min(step, pixels - lo);
#pragma omp parallel for num_threads(wf_cpu_team(ctx, n *width)) schedule(static)
        for (int64_t i = 0; i < n; i++)
            row_fill(&p, lo + i, data + i * row);
        const wf_array rows = {.data = data, .dtype = args->x->dtype, .shape = WF_SHAPE(n, width)};
        status = product(ctx, args, &rows, lo);
        wf_ctx_progress(ctx);
    }
    wf_pool_give(ctx, room, (size_t)(step * row));
    return status;
}

static wf_status multiply_gradient(wf_ctx *ctx, const wf_conv_args *args, const wf_array *rows, int64_t lo)
{
    const wf_array dy = rows_of(matrix_of(args->y, args->y->shape.dim[1]), lo, rows->shape.dim[0]);
    const wf_array dw = matrix_of(args->w, rows->shape.dim[1]);
    const wf_matmul_args product = {
        .a = &dy, .a_transposed = true, .b = rows, .c = &dw, .accumulate = args->accumulate || lo > 0};
    return wf_cpu_matmul(ctx, &product);
}

wf_status wf_cpu_columns_gradient(wf_ctx *ctx, const wf_conv_args *args)
{
    WF_TRY(multiply_rows(ctx, args, multiply_gradient));
    return wf_cpu_data(args->bias) ? wf_cpu_bias_backward(ctx, args->y, args->bias, args->accumulate) : WF_OK;
}

static wf_status multiply_forward(wf_ctx *ctx, const wf_conv_args *args, const wf_array *rows, int64_t lo)
{
    const wf_array y = rows_of(matrix_of(args->y, args->y->shape.dim[1]), lo, rows->shape.dim[0]);
    wf_array w = matrix_of(args->w, rows->shape.dim[1]);
    /* As a matrix it has the same elements in the same places, so its packed copies are kept beside it. */
    w.version = args->w->version;
    w.forms = args->w->forms;
    const wf_matmul_args product = {.a = rows, .b = &w, .b_transposed = true, .b_reused = args->w_reused, .c = &y};
    return wf_cpu_matmul(ctx, &product);
}

wf_status wf_cpu_columns_forward(wf_ctx *ctx, const wf_conv_args *args)
{
    if (!wf_cpu_data(args->bias) && wf_epilogue_is_plain(args->epilogue))
        return multiply_rows(ctx, args, multiply_forward);
    /* Bias and epilogue come before the result is rounded. */
    wf_array sums = *args->y;
    wf_conv_args wide = *args;
    const size_t bytes = (size_t)wf_array_count(args->y) * sizeof(float);
    sums.dtype = WF_F32;
    wide.y = &sums;
    WF_TRY(wf_pool_take(ctx, bytes, &sums.data));
    wf_status status = multiply_rows(ctx, &wide, multiply_forward);
    if (status == WF_OK)
        status = wf_cpu_bias_epilogue(ctx, args->bias, args->epilogue, &sums, args->y);
    wf_pool_give(ctx, sums.data, bytes);
    return status;
}

/* Adds to sum[0..n) what the rows of a sample have for channels [c, c + n) of the input at `at`. */
static void sum_taps(const column_plan *p, const float *rows, const int64_t at[3], int64_t c, int64_t n, float *sum)
{
    const int64_t taps = p->kernel[0] * p->kernel[1] * p->kernel[2];
    for (int64_t tap = 0; tap < taps; tap++) {
        const int64_t k[3] = {tap / p->kernel[2] / p->kernel[1], tap / p->kernel[2] % p->kernel[1], tap % p->kernel[2]};
        int64_t row = 0;
        bool inside = true;
        for (int d = 0; d < 3; d++) {
            const int64_t o = at[d] + p->lo[d] - k[d] * p->dilation[d];
            inside = inside && o >= 0 && o % p->stride[d] == 0 && o / p->stride[d] < p->out[d];
            row = row * p->out[d] + o / p->stride[d];
        }
        const float *const from = rows + (row * taps + tap) * p->c + c;
        if (inside)
#pragma omp simd
            for (int64_t e = 0; e < n; e++)
                sum[e] += from[e];
    }
}

/* dx of an input pixel, counted from the first of the samples whose rows these are. */
static void pixel_sum(const column_plan *p, const float *rows, int64_t pixel, const wf_array *dx, int64_t first)
{
    const int64_t inputs = p->in[0] * p->in[1] * p->in[2], outputs = p->out[0] * p->out[1] * p->out[2];
    const int64_t taps = p->kernel[0] * p->kernel[1] * p->kernel[2], within = pixel % inputs;
    const int64_t at[3] = {within / p->in[2] / p->in[1], within / p->in[2] % p->in[1], within % p->in[2]};
    for (int64_t c = 0; c < p->c; c += WF_CPU_CHUNK) {
        float sum[WF_CPU_CHUNK];
        const int64_t n = wf_cpu_min(WF_CPU_CHUNK, p->c - c), place = (first * inputs + pixel) * p->c + c;
        float *const out = wf_cpu_place(dx, place, n, false, sum);
        memset(out, 0, (size_t)n * sizeof *out);
        sum_taps(p, rows + pixel / inputs * outputs * taps * p->c, at, c, n, out);
        wf_cpu_put(dx, place, n, out);
    }
}

/* All of dx of n samples from their rows. */
static void rows_sum(const wf_ctx *ctx, const column_plan *p, const float *rows, int64_t n, const wf_array *dx,
                     int64_t first)
{
    const int64_t pixels = n * p->in[0] * p->in[1] * p->in[2];
#pragma omp parallel for num_threads(wf_cpu_team(ctx, pixels * p->c)) schedule(static)
    for (int64_t pixel = 0; pixel < pixels; pixel++)
        pixel_sum(p, rows, pixel, dx, first);
}

wf_status wf_cpu_columns_data(wf_ctx *ctx, const wf_conv_args *args)
{
    const column_plan p = column_plan_of(args->geom, args->x, args->y);
    const int64_t f = args->y->shape.dim[1], width = wf_array_count(args->w) / f, samples = args->x->shape.dim[0];
    const int64_t outputs = pixels_of(args->geom, args->y);
    const int64_t bytes = outputs * width * (int64_t)sizeof(float), fit = ROOM / bytes, most = fit < 1 ? 1 : fit;
    const int64_t pieces = (samples + most - 1) / most, step = (samples + pieces - 1) / pieces;
    const wf_array w = matrix_of(args->w, width);
    void *room = NULL;
    WF_TRY(wf_pool_take(ctx, (size_t)(step * bytes), &room));
    wf_status status = WF_OK;
    for (int64_t lo = 0; lo < samples && status == WF_OK; lo += step) {
        const int64_t n = wf_cpu_min(step, samples - lo);
        const wf_array dy = rows_of(matrix_of(args->y, f), lo * outputs, n * outputs);
        const wf_array rows = {.data = room, .dtype = WF_F32, .shape = WF_SHAPE(n * outputs, width)};
        status = wf_cpu_matmul(ctx, &(wf_matmul_args){.a = &dy, .b = &w, .c = &rows});
        if (status == WF_OK)
            rows_sum(ctx, &p, room, n, args->x, lo);
        wf_ctx_progress(ctx);
    }
    wf_pool_give(ctx, room, (size_t)(step * bytes));
    return status;
}
