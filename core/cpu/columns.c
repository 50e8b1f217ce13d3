/* The gradient of a filter as a product of matrices: the inputs of each output pixel side by side in a row (im2col),
 * times the gradients of the outputs. conv.c takes it for many channels on few pixels, where oneDNN's convolutions of
 * bf16 leave AMX idle, and its minimal filtering and convolutions of f32 have too few tiles. */
#include "core/cpu/cpu_impl.h"

#include <string.h>

/* Bytes of rows at a time. Measured: with 2 MiB products of 512 channels take 1.6 times as long, with 24 MiB 1.3 times.
 */
enum { ROOM = 8 << 20 };

/* The geometry in three dimensions, the outer ones 1 where there are fewer. */
typedef struct columns {
    const char *x;
    int64_t in[3], out[3], kernel[3], stride[3], dilation[3], lo[3];
    size_t run; /* bytes of the channels of a pixel */
} columns;

static columns columns_of(const wf_conv_geom *geom, const wf_array *x, const wf_array *dy)
{
    columns p = {.x = x->data, .run = (size_t)x->shape.dim[1] * wf_dtype_size(x->dtype)};
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

/* Of the output pixel with this number, counted over all samples. */
static void row_fill(const columns *p, int64_t pixel, char *to)
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

bool wf_cpu_columns_pay(const wf_conv_geom *geom, const wf_array *x, const wf_array *dy, const wf_array *dw)
{
    int64_t pixels = 1;
    for (int d = 0; d < geom->nd; d++)
        pixels *= dy->shape.dim[2 + d];
    if (dw->dtype != WF_F32 || geom->groups > 1)
        return false;
    /* Measured with oneDNN 2.6 and 3.2 on two cores with AMX, in GFLOP/s, oneDNN's convolution before the product:
     * bf16, 512 channels 4x4 k3 330 and 1558, 256 -> 512 to 4x4 k4 s2 167 and 1340, 256 channels 8x8 k3 975 and 1240,
     * 128 at 16x16 930 and 790 (a loss), 64 at 8x8 638 and 426 (a loss); f32, 512 channels 2x2 k3 98 and 336. */
    const int64_t most = x->dtype == WF_BF16 ? 64 : 4;
    return pixels <= most && x->shape.dim[1] >= 128 && dy->shape.dim[1] >= 128;
}

static wf_status add_rows(wf_ctx *ctx, const columns *p, int64_t lo, int64_t hi, const wf_conv_args *args, void *room)
{
    const wf_dtype type = args->x->dtype;
    const int64_t f = args->y->shape.dim[1], width = wf_array_count(args->w) / f, size = (int64_t)wf_dtype_size(type);
    char *const rows = room;
#pragma omp parallel for num_threads(wf_cpu_team(ctx, (hi - lo) * width)) schedule(static)
    for (int64_t i = lo; i < hi; i++)
        row_fill(p, i, rows + (i - lo) * width * size);
    const wf_array cols = {.data = rows, .dtype = type, .shape = WF_SHAPE(hi - lo, width)};
    const wf_array dy = {.data = (char *)args->y->data + lo * f * size, .dtype = type, .shape = WF_SHAPE(hi - lo, f)};
    const wf_array dw = {.data = args->w->data, .dtype = WF_F32, .shape = WF_SHAPE(f, width)};
    return wf_cpu_matmul(
        ctx, &(wf_matmul_args){
                 .a = &dy, .a_transposed = true, .b = &cols, .c = &dw, .accumulate = args->accumulate || lo > 0});
}

wf_status wf_cpu_columns_gradient(wf_ctx *ctx, const wf_conv_args *args)
{
    const columns p = columns_of(args->geom, args->x, args->y);
    const int64_t f = args->y->shape.dim[1], pixels = wf_array_count(args->y) / f;
    const size_t row = (size_t)(wf_array_count(args->w) / f) * wf_dtype_size(args->x->dtype);
    /* Pieces of equal length: each reads and writes the whole gradient. */
    const int64_t pieces = pixels * (int64_t)row / ROOM + 1, step = (pixels + pieces - 1) / pieces;
    void *room = NULL;
    WF_TRY(wf_pool_take(ctx, (size_t)step * row, &room));
    wf_status status = WF_OK;
    for (int64_t lo = 0; lo < pixels && status == WF_OK; lo += step) {
        status = add_rows(ctx, &p, lo, wf_cpu_min(lo + step, pixels), args, room);
        wf_ctx_progress(ctx);
    }
    wf_pool_give(ctx, room, (size_t)step * row);
    if (status != WF_OK || !wf_cpu_data(args->bias))
        return status;
    return wf_cpu_bias_backward(ctx, args->y, args->bias, args->accumulate);
}
