/* Rows of a table by their numbers. Forward copies rows of any type. Backward first links the places of each row into
 * a list, so that every row of the table is one thread's, which adds in the order of places. Numbers that are wrong go
 * to ref, which says what is wrong. */
#include "core/cpu/narrow_impl.h"

/* The row of the table that place i asks for; -1: the table has none. */
static int64_t row_here(const wf_take_args *a, int64_t i)
{
    const int64_t number = wf_cpu_integer(a->index, i), here = number - a->first;
    return number != a->ignored && here >= 0 && here < a->table->shape.dim[0] ? here : -1;
}

wf_status wf_cpu_take_forward(wf_ctx *ctx, const wf_take_args *a)
{
    const int64_t n = wf_array_count(a->index), width = a->table->shape.dim[1];
    const size_t bytes = (size_t)width * wf_dtype_size(a->table->dtype);
    if (a->y->dtype != a->table->dtype || !wf_cpu_integers_fit(a->index, n, a->whole, a->ignored))
        return REF->take_forward(ctx, a);
    const char *const table = a->table->data;
    char *const y = a->y->data;
    /* A table may have rows of no elements; memcpy must not see its null pointer. */
    if (bytes == 0)
        return WF_OK;
#pragma omp parallel for num_threads(wf_cpu_team(ctx, n *width)) schedule(static)
    for (int64_t i = 0; i < n; i++) {
        const int64_t row = row_here(a, i);
        if (row >= 0)
            memcpy(y + (size_t)i * bytes, table + (size_t)row * bytes, bytes);
        else
            memset(y + (size_t)i * bytes, 0, bytes);
    }
    return WF_OK;
}

/* The places of each row: the first one, and after each the next one; -1: no more. */
typedef struct place_lists {
    int64_t *first, *next;
} place_lists;

static void link_places(const wf_take_args *a, int64_t rows, int64_t n, const place_lists *lists)
{
    for (int64_t r = 0; r < rows; r++)
        lists->first[r] = -1;
    /* From the last place, so that lists ascend. */
    for (int64_t i = n - 1; i >= 0; i--) {
        const int64_t row = row_here(a, i);
        if (row < 0)
            continue;
        lists->next[i] = lists->first[row];
        lists->first[row] = i;
    }
}

static void add_places(const wf_take_args *a, const place_lists *lists, int64_t row)
{
    const int64_t width = a->table->shape.dim[1];
    float room[WF_CPU_CHUNK], from[WF_CPU_CHUNK];
    /* Nothing is added to this row, and it stays as it is. */
    if (a->accumulate && lists->first[row] < 0)
        return;
    for (int64_t at = 0; at < width; at += WF_CPU_CHUNK) {
        /* The width is cut, not the list, so that a sum stays in the cache while its list is walked. */
        const int64_t few = wf_cpu_min(WF_CPU_CHUNK, width - at);
        float *const sum = wf_cpu_place(a->table, row * width + at, few, a->accumulate, room);
        if (!a->accumulate)
            memset(sum, 0, (size_t)few * sizeof *sum);
        for (int64_t i = lists->first[row]; i >= 0; i = lists->next[i]) {
            const float *const dy = wf_cpu_read(a->y, i * width + at, few, from);
#pragma omp simd
            for (int64_t j = 0; j < few; j++)
                sum[j] += dy[j];
        }
        wf_cpu_put(a->table, row * width + at, few, sum);
    }
}

wf_status wf_cpu_take_backward(wf_ctx *ctx, const wf_take_args *a)
{
    const int64_t n = wf_array_count(a->index), rows = a->table->shape.dim[0], width = a->table->shape.dim[1];
    if (!wf_cpu_is_float(a->table) || !wf_cpu_is_float(a->y) || !wf_cpu_integers_fit(a->index, n, a->whole, a->ignored))
        return REF->take_backward(ctx, a);
    /* `next` is as long as the places, `first` as long as the table. */
    const size_t bytes = (size_t)(rows + n) * sizeof(int64_t);
    void *work = NULL;
    if (rows == 0 || width == 0)
        return WF_OK;
    WF_TRY(wf_pool_take(ctx, bytes, &work));
    const place_lists lists = {work, (int64_t *)work + rows};
    link_places(a, rows, n, &lists);
#pragma omp parallel for num_threads(wf_cpu_team(ctx, (rows + n) * width)) schedule(static)
    for (int64_t r = 0; r < rows; r++)
        add_places(a, &lists, r);
    wf_pool_give(ctx, work, bytes);
    return WF_OK;
}
