/* Weighted sums of neighbouring rows. A thread holds a pack of neighbouring elements of an output; taps go in pairs,
 * whose loads are in flight together. */
#include "core/cuda/kernel_impl.h"

struct tap_rows {
    int64_t count;            /* packs in all */
    int64_t in, inner;        /* inner: packs of a row */
    divider by_inner, by_out; /* of packs, of rows */
    int64_t taps, x_lo, y_lo;
    const int32_t *start;
};

template <class T, int V>
__global__ void __launch_bounds__(THREADS)
    taps_kernel(const __grid_constant__ tap_rows r, const T *x, const wide<T> *weight, T *y, bool accumulate)
{
    for (int64_t i = thread_of_grid(); i < r.count; i += threads_of_grid()) {
        /* start: of this output's inputs among those at hand, so it may be negative: what lies outside is left out. */
        const int64_t row = r.by_inner.of(i), pack_at = i - row * r.inner, outer = r.by_out.of(row),
                      at = r.y_lo + row - outer * r.by_out.d, start = r.start[at] - r.x_lo;
        const wide<T> *const w = weight + at * r.taps;
        const int64_t first = most(0, -start), last = least(r.taps, r.in - start);
        wide<T> sum[V] = {};
        if (accumulate)
            load<V>(y, i * V, sum);
        const T *const column = x + (outer * r.in * r.inner + pack_at) * V;
        for (int64_t t = first; t < last; t += 2) {
            /* Without a second tap the first is loaded again, with weight 0: no branch between the two loads. */
            const int64_t next = t + 1 < last ? t + 1 : t;
            const pack<T, V> a = load_raw<V>(column, (start + t) * r.inner * V),
                             b = load_raw<V>(column, (start + next) * r.inner * V);
            const wide<T> wa = w[t], wb = next > t ? w[next] : 0;
            /* Taps of weight 0 fill a row up, and may be of inputs that are not finite. */
#pragma unroll
            for (int k = 0; k < V; k++) {
                sum[k] += wa == 0 ? 0 : wa * widen(a.v[k]);
                sum[k] += wb == 0 ? 0 : wb * widen(b.v[k]);
            }
        }
        store<V>(sum, y, i * V);
    }
}

template <class T, int V> static wf_status run(wf_cuda *own, const wf_taps_args *args)
{
    const wf_array *const x = args->x, *const y = args->y;
    tap_rows r = {};
    r.count = wf_array_count(y) / V;
    r.in = x->shape.dim[1];
    r.inner = y->shape.dim[2] / V;
    r.by_inner = divide_by(r.inner);
    r.by_out = divide_by(y->shape.dim[1]);
    r.taps = args->weight->shape.dim[1];
    r.x_lo = args->x_lo;
    /* Tables are those of the whole array: y_lo is the number of the first output here. */
    r.y_lo = args->y_lo;
    r.start = in_of<int32_t>(args->start);
    return launch_over(own, (taps_kernel<T, V>), r.count, r, in_of<T>(x), in_of<wide<T>>(args->weight), out_of<T>(y),
                       args->accumulate);
}

wf_status wf_cuda_taps(wf_ctx *ctx, const wf_taps_args *args)
{
    const wf_array *const x = args->x, *const y = args->y;
    wf_cuda *own;
    if (wf_array_count(y) == 0)
        return WF_OK;
    WF_TRY(wf_cuda_here(ctx, &own));
    return of_float(y->dtype, [&](auto zero) {
        using T = decltype(zero);
        constexpr int V = pack_size<T>;
        const bool vector = y->shape.dim[2] % V == 0 && aligned(x->data) && aligned(y->data);
        return vector ? run<T, V>(own, args) : run<T, 1>(own, args);
    });
}
