/* Weighted sums of neighbouring rows: rows of outputs in the outer loops, their elements in the inner one. */
#include "core/cpu/narrow_impl.h"

static void add_weighted(int64_t n, float weight, const float *restrict from, float *restrict to)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        to[i] = wf_fma(weight, from[i], to[i]);
}

/* Elements [first, first + n) of row `row` of y, of which there are y's length for each outer index. */
static void sum_row(const wf_taps_args *args, int64_t row, int64_t first, int64_t n)
{
    const int64_t length = args->x->shape.dim[1], outputs = args->y->shape.dim[1], inner = args->y->shape.dim[2],
                  taps = args->weight->shape.dim[1], outer = row / outputs, at = args->y_lo + row % outputs;
    const float *const weight = (const float *)args->weight->data + at * taps;
    const int64_t start = ((const int32_t *)args->start->data)[at] - args->x_lo;
    float room[WF_CPU_CHUNK], from[WF_CPU_CHUNK];
    float *const sum = wf_cpu_place(args->y, row * inner + first, n, args->accumulate, room);
    if (!args->accumulate)
        memset(sum, 0, (size_t)n * sizeof *sum);
    for (int64_t t = start < 0 ? -start : 0; t < taps && start + t < length; t++)
        if (weight[t] != 0)
            add_weighted(n, weight[t], wf_cpu_read(args->x, (outer * length + start + t) * inner + first, n, from),
                         sum);
    wf_cpu_put(args->y, row * inner + first, n, sum);
}

wf_status wf_cpu_taps(wf_ctx *ctx, const wf_taps_args *args)
{
    const wf_array *const x = args->x, *const y = args->y;
    const int64_t rows = y->shape.dim[0] * y->shape.dim[1], inner = y->shape.dim[2];
    if (!wf_cpu_is_float(x) || !wf_cpu_is_float(y) || !wf_cpu_is(args->weight, WF_F32))
        return REF->taps(ctx, args);
#pragma omp parallel for num_threads(wf_cpu_team(ctx, rows *inner)) schedule(static)
    for (int64_t r = 0; r < rows; r++)
        for (int64_t first = 0; first < inner; first += WF_CPU_CHUNK)
            sum_row(args, r, first, wf_cpu_min(WF_CPU_CHUNK, inner - first));
    return WF_OK;
}
