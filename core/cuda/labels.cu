/* Rows with a label each: log likelihood, softmax and cross entropy in one, and hits. */
#include "core/cuda/labels_impl.h"
#include "core/cuda/reduce_impl.h"
#include "core/cuda/rows_impl.h"

template <class T>
__global__ void nll_kernel(int64_t rows, int64_t c, const T *logp, const __grid_constant__ label_source labels,
                           double *part)
{
    double sum = 0;
    for (int64_t r = thread_of_grid(); r < rows; r += threads_of_grid()) {
        const int64_t label = labels.at(r);
        if (label >= 0)
            sum -= widen(logp[r * c + label]);
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        part[blockIdx.x] = sum;
}

struct scaled_output {
    double scale;
    any_output y;
    __device__ void finish(double sum) const
    {
        y.put(0, scale * sum);
    }
};

wf_status wf_cuda_nll_forward(wf_ctx *ctx, const wf_array *logp, const wf_array *labels, int64_t ignored, double scale,
                              const wf_array *loss)
{
    wf_cuda *own;
    label_source source = {};
    void *part;
    const row_set a = rows_of(logp);
    WF_TRY(labels_of(ctx, labels, ignored, a.c, &own, &source));
    const unsigned blocks = blocks_for(own, a.rows);
    WF_TRY(wf_cuda_workspace(own, blocks * sizeof(double), &part));
    WF_TRY(of_float(logp->dtype, [&](auto zero) {
        using T = decltype(zero);
        return launch(own, nll_kernel<T>, blocks, THREADS, a.rows, a.c, in_of<T>(logp), source,
                      static_cast<double *>(part));
    }));
    return launch(own, finish_kernel<scaled_output>, 1, THREADS, static_cast<const double *>(part), (int)blocks,
                  scaled_output{scale, output_of(loss)});
}

/* Zeros but for -dloss scale at the label. */
template <class T> struct nll_backward_rows {
    struct state {
        wide<T> hit;
    };
    label_source labels;
    any_float dloss;
    double scale;
    T *dx;
    __device__ void begin(state *s) const
    {
        s->hit = (wide<T>)(-dloss.at(0, 0) * scale);
    }
    __device__ void end(state *) const
    {
    }
    __device__ void run(state *s, const row_set &a, int64_t row, int lane) const
    {
        const int64_t label = row < 0 ? -1 : labels.at(row), c = row < 0 ? 0 : a.c;
        for (int64_t j = lane; j < c; j += a.group)
            narrow(j == label ? s->hit : (wide<T>)0, dx + row * a.c + j);
    }
};

wf_status wf_cuda_nll_backward(wf_ctx *ctx, const wf_array *labels, int64_t ignored, const wf_array *dloss,
                               double scale, const wf_array *dx)
{
    wf_cuda *own;
    label_source source = {};
    const row_set a = rows_of(dx);
    WF_TRY(labels_of(ctx, labels, ignored, a.c, &own, &source));
    return of_float(dx->dtype, [&](auto zero) {
        using T = decltype(zero);
        return row_map(ctx, a, nll_backward_rows<T>{source, any_of(dloss), scale, out_of<T>(dx)});
    });
}

template <class T> struct entropy_rows {
    struct state {
        double loss;
    };
    const T *x;
    label_source labels;
    any_output log_sum;
    double *part;
    __device__ void begin(state *s) const
    {
        s->loss = 0;
    }
    __device__ void run(state *s, const row_set &a, int64_t row, int lane) const
    {
        using W = wide<T>;
        const int64_t c = row < 0 ? 0 : a.c;
        const T *const from = x + row * c;
        const W most = row_most(from, c, lane, a.group);
        W sum = 0;
        for (int64_t j = lane; j < c; j += a.group)
            sum += exp(widen(from[j]) - most);
        sum = log(group_sum(sum, a.group));
        if (row < 0 || lane > 0)
            return;
        const int64_t label = labels.at(row);
        log_sum.put(row, sum);
        if (label >= 0)
            s->loss -= widen(from[label]) - most - sum;
    }
    __device__ void end(state *s) const
    {
        const double sum = block_sum(s->loss);
        if (threadIdx.x == 0)
            part[blockIdx.x] = sum;
    }
};

wf_status wf_cuda_entropy_forward(wf_ctx *ctx, const wf_entropy_args *args)
{
    wf_cuda *own;
    label_source source = {};
    void *part;
    const row_set a = rows_of(args->x);
    WF_TRY(labels_of(ctx, args->labels, args->ignored, a.c, &own, &source));
    const unsigned blocks = blocks_for(own, a.rows * a.group);
    WF_TRY(wf_cuda_workspace(own, blocks * sizeof(double), &part));
    WF_TRY(of_float(args->x->dtype, [&](auto zero) {
        using T = decltype(zero);
        const entropy_rows<T> f = {in_of<T>(args->x), source, output_of(args->log_sum), static_cast<double *>(part)};
        return launch(own, row_kernel<entropy_rows<T>>, blocks, THREADS, a, f);
    }));
    return launch(own, finish_kernel<scaled_output>, 1, THREADS, static_cast<const double *>(part), (int)blocks,
                  scaled_output{args->scale, output_of(args->loss)});
}

template <class T> struct entropy_backward_rows {
    struct state {
        wide<T> up;
    };
    const T *x;
    label_source labels;
    any_float log_sum, dloss;
    double scale;
    T *dx;
    __device__ void begin(state *s) const
    {
        s->up = (wide<T>)(dloss.at(0, 0) * scale);
    }
    __device__ void end(state *) const
    {
    }
    __device__ void run(state *s, const row_set &a, int64_t row, int lane) const
    {
        using W = wide<T>;
        const int64_t label = row < 0 ? -1 : labels.at(row), c = row < 0 ? 0 : a.c;
        const T *const from = x + row * c;
        const W most = row_most(from, c, lane, a.group), sum = c > 0 ? (W)log_sum.at(row, 0) : 0;
        for (int64_t j = lane; j < c; j += a.group) {
            const W slope = exp(widen(from[j]) - most - sum) * s->up;
            narrow(label < 0 ? (W)0 : j == label ? slope - s->up : slope, dx + row * c + j);
        }
    }
};

wf_status wf_cuda_entropy_backward(wf_ctx *ctx, const wf_entropy_args *args)
{
    wf_cuda *own;
    label_source source = {};
    const row_set a = rows_of(args->x);
    WF_TRY(labels_of(ctx, args->labels, args->ignored, a.c, &own, &source));
    return of_float(args->dx->dtype, [&](auto zero) {
        using T = decltype(zero);
        return row_map(ctx, a,
                       entropy_backward_rows<T>{in_of<T>(args->x), source, any_of(args->log_sum), any_of(args->dloss),
                                                args->scale, out_of<T>(args->dx)});
    });
}

/* The place of the largest element, first of equals; a NaN is largest at the head of a row and nothing elsewhere. */
template <class T> struct hit_rows {
    struct state {
        double hits;
    };
    const T *x;
    label_source labels;
    double *part;
    __device__ void begin(state *s) const
    {
        s->hits = 0;
    }
    __device__ void run(state *s, const row_set &a, int64_t row, int lane) const
    {
        using W = wide<T>;
        const int64_t c = row < 0 ? 0 : a.c;
        W best = -(W)INFINITY;
        int64_t place = a.c;
        for (int64_t j = lane; j < c; j += a.group) {
            W v = widen(x[row * a.c + j]);
            if (v != v)
                v = j == 0 ? (W)INFINITY : -(W)INFINITY;
            if (place == a.c || v > best) {
                best = v;
                place = j;
            }
        }
        for (int m = a.group / 2; m > 0; m /= 2) {
            const W other = __shfl_xor_sync(0xffffffffu, best, m);
            const int64_t at = (int64_t)__shfl_xor_sync(0xffffffffu, (long long)place, m);
            if (other > best || (other == best && at < place)) {
                best = other;
                place = at;
            }
        }
        if (row >= 0 && lane == 0)
            s->hits += labels.at(row) == place;
    }
    __device__ void end(state *s) const
    {
        const double sum = block_sum(s->hits);
        if (threadIdx.x == 0)
            part[blockIdx.x] = sum;
    }
};

struct count_output {
    int64_t *correct;
    __device__ void finish(double sum) const
    {
        *correct = (int64_t)sum;
    }
};

wf_status wf_cuda_count_correct(wf_ctx *ctx, const wf_array *scores, const wf_array *labels, int64_t ignored,
                                const wf_array *correct)
{
    wf_cuda *own;
    label_source source = {};
    void *part;
    const row_set a = rows_of(scores);
    WF_TRY(labels_of(ctx, labels, ignored, a.c, &own, &source));
    const unsigned blocks = blocks_for(own, a.rows * a.group);
    WF_TRY(wf_cuda_workspace(own, blocks * sizeof(double), &part));
    WF_TRY(of_float(scores->dtype, [&](auto zero) {
        using T = decltype(zero);
        const hit_rows<T> f = {in_of<T>(scores), source, static_cast<double *>(part)};
        return launch(own, row_kernel<hit_rows<T>>, blocks, THREADS, a, f);
    }));
    return launch(own, finish_kernel<count_output>, 1, THREADS, static_cast<const double *>(part), (int)blocks,
                  count_output{out_of<int64_t>(correct)});
}

__global__ void counted_kernel(int64_t rows, const __grid_constant__ label_source labels, double *part)
{
    double sum = 0;
    for (int64_t r = thread_of_grid(); r < rows; r += threads_of_grid())
        sum += labels.read(r) != labels.ignored;
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        part[blockIdx.x] = sum;
}

wf_status wf_cuda_count_labels(wf_ctx *ctx, const wf_array *labels, int64_t ignored, const wf_array *count)
{
    wf_cuda *own;
    label_source source = {};
    void *part;
    const int64_t rows = wf_array_count(labels);
    WF_TRY(labels_of(ctx, labels, ignored, 0, &own, &source));
    const unsigned blocks = blocks_for(own, rows);
    WF_TRY(wf_cuda_workspace(own, blocks * sizeof(double), &part));
    WF_TRY(launch(own, counted_kernel, blocks, THREADS, rows, source, static_cast<double *>(part)));
    return launch(own, finish_kernel<count_output>, 1, THREADS, static_cast<const double *>(part), (int)blocks,
                  count_output{out_of<int64_t>(count)});
}
