/* The largest elements of rows. A chunk's largest number is found by vectors, its place by a second look at the chunk
 * where it is the best one so far. */
#include "core/cpu/narrow_impl.h"

#include <string.h>

typedef struct best_element {
    float value;
    int64_t place; /* -1: none so far */
} best_element;

/* NaN counts as the largest, and the first of equal elements wins, as in PyTorch. Chunks come in order, so a later one
 * wins only if it is larger. */
static void look_at_chunk(const float *x, int64_t at, int64_t n, best_element *best)
{
    float most = -INFINITY;
    int nans = 0;
#pragma omp simd reduction(max : most) reduction(| : nans)
    for (int64_t i = 0; i < n; i++) {
        most = x[i] > most ? x[i] : most;
        nans |= x[i] != x[i];
    }
    if (best->place >= 0 && (isnan(best->value) || (!nans && !(most > best->value))))
        return;
    /* The second look is rare: a chunk is searched only if it has the best element so far. */
    for (int64_t i = 0; i < n; i++)
        if (nans ? isnan(x[i]) : x[i] == most) {
            *best = (best_element){x[i], at + i};
            return;
        }
}

wf_status wf_cpu_row_most(wf_ctx *ctx, const wf_array *x, const wf_array *y, const wf_array *index)
{
    const int64_t rows = x->shape.dim[0], n = x->shape.dim[1];
    int64_t *const place = index->data;
    if (!wf_cpu_is_float(x) || !wf_cpu_is_float(y))
        return REF->row_most(ctx, x, y, index);
#pragma omp parallel for num_threads(wf_cpu_team(ctx, rows *n)) schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        float room[WF_CPU_CHUNK];
        best_element best = {0, -1};
        for (int64_t at = 0; at < n; at += WF_CPU_CHUNK) {
            const int64_t few = wf_cpu_min(WF_CPU_CHUNK, n - at);
            look_at_chunk(wf_cpu_read(x, r * n + at, few, room), at, few, &best);
        }
        place[r] = best.place;
        if (y) {
            float *const to = wf_cpu_place(y, r, 1, false, room);
            *to = best.value;
            wf_cpu_put(y, r, 1, to);
        }
    }
    return WF_OK;
}

/* Zeros of all types are zero bytes, so rows are cleared and one element is copied. */
wf_status wf_cpu_row_most_backward(wf_ctx *ctx, const wf_array *index, const wf_array *dy, const wf_array *dx)
{
    const int64_t rows = dx->shape.dim[0], n = dx->shape.dim[1], *const place = index->data;
    const size_t size = wf_dtype_size(dx->dtype);
    if (dy->dtype != dx->dtype)
        return REF->row_most_backward(ctx, index, dy, dx);
#pragma omp parallel for num_threads(wf_cpu_team(ctx, rows *n)) schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        char *const row = (char *)dx->data + (size_t)(r * n) * size;
        memset(row, 0, (size_t)n * size);
        memcpy(row + (size_t)place[r] * size, (const char *)dy->data + (size_t)r * size, size);
    }
    return WF_OK;
}
