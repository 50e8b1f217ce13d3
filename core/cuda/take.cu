/* Rows of a table by their numbers.
 *
 * Backward sums in the order of places, without atomics: a group of lanes looks back from each place for the one before
 * it that asks for the same row, which links the places of a row into a list; then a thread for each element of the
 * table walks the list of its row. Looking back is work of the square of the places, but 32 of them a turn: 64 thousand
 * places are 70 million turns of a warp at most, where no row is asked for twice. */
#include "core/cuda/labels_impl.h"
#include "core/cuda/rows_impl.h"

/* Which row of the table a place asks for. */
struct row_source {
    label_source index;
    int64_t first, rows;
    /* -1: the table has no such row. That of another rank may have it, and the caller adds both up. */
    __device__ int64_t at(int64_t i) const
    {
        const int64_t number = index.at(i), here = number - first;
        return number >= 0 && here >= 0 && here < rows ? here : -1;
    }
};

static wf_status rows_source_of(wf_ctx *ctx, const wf_take_args *args, wf_cuda **own, row_source *out)
{
    out->first = args->first;
    out->rows = args->table->shape.dim[0];
    return labels_of(ctx, args->index, args->ignored, args->whole, own, &out->index, CUDA_INDEX);
}

template <class T> struct take_rows {
    using state = nothing;
    row_source source;
    const T *table;
    T *y;
    __device__ void begin(nothing *) const
    {
    }
    __device__ void end(nothing *) const
    {
    }
    __device__ void run(nothing *, const row_set &a, int64_t place, int lane) const
    {
        /* A row of zeros for places that are ignored or another rank's. */
        const int64_t c = place < 0 ? 0 : a.c, row = place < 0 ? -1 : source.at(place);
        for (int64_t j = lane; j < c; j += a.group)
            narrow(row < 0 ? (wide<T>)0 : widen(table[row * c + j]), y + place * c + j);
    }
};

wf_status wf_cuda_take_forward(wf_ctx *ctx, const wf_take_args *args)
{
    wf_cuda *own;
    row_source source = {};
    const row_set rows = rows_by(wf_array_count(args->index), args->table->shape.dim[1]);
    WF_TRY(rows_source_of(ctx, args, &own, &source));
    return of_float(args->y->dtype, [&](auto zero) {
        using T = decltype(zero);
        return row_map(ctx, rows, take_rows<T>{source, in_of<T>(args->table), out_of<T>(args->y)});
    });
}

/* first[row]: its first place; next[place]: the next one of the same row; -1: none. All were -1. */
struct link_places {
    using state = nothing;
    row_source source;
    int64_t *first, *next;
    __device__ void begin(nothing *) const
    {
    }
    __device__ void end(nothing *) const
    {
    }
    __device__ void run(nothing *, const row_set &a, int64_t place, int lane) const
    {
        /* Only the nearest place before is linked, so each place has one follower and the list needs no lock. */
        const int64_t row = place < 0 ? -1 : source.at(place);
        int64_t before = -1;
        /* A group is a whole warp, so its lanes have one place and leave the loop together. */
        for (int64_t turn = 0; row >= 0 && before < 0 && turn < place; turn += a.group) {
            const int64_t at = place - 1 - turn - lane;
            /* All lanes look at 32 places at once, and the largest of those that match is the nearest. */
            before = at >= 0 && source.at(at) == row ? at : -1;
            for (int m = a.group / 2; m > 0; m /= 2)
                before = most(before, (int64_t)__shfl_xor_sync(0xffffffffu, (long long)before, m));
        }
        /* The first place of a row is noted in `first`, each other one behind its predecessor: every entry has one
         * writer. */
        if (row >= 0 && lane == 0)
            (before < 0 ? first[row] : next[before]) = place;
    }
};

template <class T> struct place_sums {
    const int64_t *first, *next;
    const T *dy;
    any_output table;
    any_float held; /* what the table holds, to be added to */
    int64_t width;
};

/* In f64 and in the order of places, as in `ref`. */
template <class T> __global__ void place_sum_kernel(int64_t n, const __grid_constant__ place_sums<T> a)
{
    for (int64_t e = thread_of_grid(); e < n; e += threads_of_grid()) {
        const int64_t row = e / a.width, column = e - row * a.width;
        int64_t place = a.first[row];
        /* No place has asked for this row: what is there stays. */
        if (a.held.data && place < 0)
            continue;
        double sum = a.held.data ? a.held.at(e, 0) : 0;
        for (; place >= 0; place = a.next[place])
            sum += widen(a.dy[place * a.width + column]);
        a.table.put(e, sum);
    }
}

wf_status wf_cuda_take_backward(wf_ctx *ctx, const wf_take_args *args)
{
    wf_cuda *own;
    void *work;
    row_source source = {};
    const int64_t n = wf_array_count(args->index), rows = args->table->shape.dim[0], width = args->table->shape.dim[1];
    WF_TRY(rows_source_of(ctx, args, &own, &source));
    if (rows == 0 || width == 0)
        return WF_OK;
    WF_TRY(wf_cuda_workspace(own, (size_t)(rows + n) * sizeof(int64_t), &work));
    int64_t *const first = static_cast<int64_t *>(work), *const next = first + rows;
    TRY_CUDA(cudaMemsetAsync(work, 0xff, (size_t)(rows + n) * sizeof(int64_t), own->stream));
    WF_TRY(row_map(ctx, row_set{n, 1, 32}, link_places{source, first, next}));
    const any_float held = args->accumulate ? any_of(args->table) : any_of(nullptr);
    return of_float(args->y->dtype, [&](auto zero) {
        using T = decltype(zero);
        const place_sums<T> a = {first, next, in_of<T>(args->y), output_of(args->table), held, width};
        return launch_over(own, place_sum_kernel<T>, rows * width, rows * width, a);
    });
}
