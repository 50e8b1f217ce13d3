/* Rows with a label each: log likelihood, softmax and cross entropy in one, and hits.
 *
 * A group of lanes takes a row (rows_impl.h). Cross entropy goes over its scores for the largest, then for the sum of
 * exponentials, of which it keeps the logarithm, one number a row: backward makes the probabilities from that and the
 * scores, so none is stored. Losses are added in f64 within blocks, and one block adds the sums of all blocks in a
 * fixed order, so a loss has the same bits in every run.
 *
 * Where ranks share the classes, a first call ends after both sweeps (entropy_sums); the caller merges their results
 * over the ranks, and a second call goes on with the merged ones (entropy_part). */
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

/* Blocks' sums, then one block: two launches instead of atomics, whose order would differ from run to run. */
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

/* Ignored rows have label -1 here, which no column is. */
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

/* What smoothing and weights make of a row of the label y: hit q_y + rest sum_c w_c q_c, where q = -log softmax. */
struct entropy_terms {
    any_float weight;
    double keep, rest;

    __device__ double hit(int64_t label) const
    {
        return keep * weight.at(label, 1);
    }
    /* The sum of the weights of [first, first + c), for all lanes of a row. The range may be that of other ranks too:
     * weights are known to all. */
    template <class W> __device__ W total(int64_t first, int64_t c, int lane, int group) const
    {
        W sum = 0;
        for (int64_t j = lane; j < c; j += group)
            sum += (W)weight.at(first + j, 1);
        return group_sum(sum, group);
    }
};

static entropy_terms terms_of(const wf_entropy_args *args, int64_t c)
{
    const int64_t whole = wf_entropy_classes(args, c);
    /* Smoothing spreads its share over all classes, also those of other ranks. */
    return entropy_terms{any_of(args->weight), 1 - args->smoothing, whole > 0 ? args->smoothing / (double)whole : 0};
}

/* The classes of x among all, and the largest scores and sums of rows of all: absent where x has all. */
struct entropy_part {
    any_float most, log_sum;
    int64_t first, whole;
};

static entropy_part class_part_of(const wf_entropy_args *args, int64_t c)
{
    const bool cut = args->most != nullptr;
    return entropy_part{any_of(args->most), any_of(cut ? args->log_sum : nullptr), cut ? args->first : 0,
                        wf_entropy_classes(args, c)};
}

/* The first call of a forward by parts. Each rank's largest score and logarithm of its sum; the caller merges them with
 * a logarithm of sums, which no large score overflows. */
template <class T> struct entropy_sums {
    struct state {
    };
    const T *x;
    any_output most, log_sum;
    __device__ void begin(state *) const
    {
    }
    __device__ void end(state *) const
    {
    }
    __device__ void run(state *, const row_set &a, int64_t row, int lane) const
    {
        using W = wide<T>;
        const int64_t c = row < 0 ? 0 : a.c;
        const T *const from = x + row * c;
        const W high = row_most(from, c, lane, a.group);
        W sum = 0;
        /* A rank whose scores are all -infinity (or that has none) has a sum of 0, whose logarithm is -infinity; exp
         * would see infinity minus infinity. */
        for (int64_t j = lane; j < c; j += a.group)
            sum +=
                high == -(W)INFINITY ? (widen(from[j]) != widen(from[j]) ? (W)NAN : (W)0) : exp(widen(from[j]) - high);
        sum = log(group_sum(sum, a.group));
        if (row < 0 || lane > 0)
            return;
        most.put(row, high);
        log_sum.put(row, sum);
    }
};

template <class T> struct entropy_rows {
    struct state {
        double loss;
    };
    const T *x;
    label_source labels;
    any_output log_sum, each;
    double scale, *part;
    entropy_terms terms;
    entropy_part cut;
    __device__ void begin(state *s) const
    {
        s->loss = 0;
    }
    __device__ void run(state *s, const row_set &a, int64_t row, int lane) const
    {
        using W = wide<T>;
        const int64_t c = row < 0 ? 0 : a.c;
        const T *const from = x + row * c;
        W most, sum = 0, low = 0, total = 0;
        if (cut.most.data) { /* for all rows alike: lanes exchange below */
            most = c > 0 ? (W)cut.most.at(row, 0) : 0;
            sum = c > 0 ? (W)cut.log_sum.at(row, 0) : 0;
        } else {
            most = row_most(from, c, lane, a.group);
            for (int64_t j = lane; j < c; j += a.group)
                sum += exp(widen(from[j]) - most);
            sum = log(group_sum(sum, a.group));
        }
        if (terms.rest > 0) {
            /* sum_c w_c q_c = total log_sum - low, where low sums w_c (x_c - most). */
            for (int64_t j = lane; j < c; j += a.group)
                low += (W)terms.weight.at(cut.first + j, 1) * (widen(from[j]) - most);
            low = group_sum(low, a.group);
            total = terms.template total<W>(cut.first, c, lane, a.group);
        }
        if (row < 0 || lane > 0)
            return;
        const int64_t label = labels.at(row), own = label - cut.first;
        double loss = 0;
        log_sum.put(row, sum);
        /* Only the rank that has the label's class adds the hit; the sum over ranks has it once. */
        if (label >= 0 && own >= 0 && own < c)
            loss = terms.hit(label) * (double)(most - widen(from[own]) + sum);
        if (label >= 0 && terms.rest > 0)
            loss += terms.rest * (double)(total * sum - low);
        each.put(row, scale * loss);
        /* Lane 0 of each row adds; others have left with 0. */
        s->loss += loss;
    }
    __device__ void end(state *s) const
    {
        const double sum = block_sum(s->loss);
        if (threadIdx.x == 0)
            part[blockIdx.x] = sum;
    }
};

/* Not by row_map, which leaves rows without classes out: their sums are those of nothing. */
static wf_status run_sums(wf_ctx *ctx, const wf_entropy_args *args)
{
    wf_cuda *own;
    const row_set a = rows_of(args->x);
    if (a.rows == 0)
        return WF_OK;
    WF_TRY(wf_cuda_here(ctx, &own));
    return of_float(args->x->dtype, [&](auto zero) {
        using T = decltype(zero);
        const entropy_sums<T> f = {in_of<T>(args->x), output_of(args->most), output_of(args->log_sum)};
        return launch_over(own, row_kernel<entropy_sums<T>>, a.rows * a.group, a, f);
    });
}

wf_status wf_cuda_entropy_forward(wf_ctx *ctx, const wf_entropy_args *args)
{
    wf_cuda *own;
    label_source source = {};
    void *part;
    const row_set a = rows_of(args->x);
    if (!args->loss)
        return run_sums(ctx, args);
    const bool unreduced = args->loss->shape.rank > 0;
    WF_TRY(labels_of(ctx, args->labels, args->ignored, wf_entropy_classes(args, a.c), &own, &source));
    const unsigned blocks = blocks_for(own, a.rows * a.group);
    WF_TRY(wf_cuda_workspace(own, blocks * sizeof(double), &part));
    WF_TRY(of_float(args->x->dtype, [&](auto zero) {
        using T = decltype(zero);
        /* log_sum is kept for backward; where ranks share classes the caller has the merged one already. */
        const entropy_rows<T> f = {in_of<T>(args->x),
                                   source,
                                   output_of(args->most ? nullptr : args->log_sum),
                                   output_of(unreduced ? args->loss : nullptr),
                                   args->scale,
                                   static_cast<double *>(part),
                                   terms_of(args, a.c),
                                   class_part_of(args, a.c)};
        return launch(own, row_kernel<entropy_rows<T>>, blocks, THREADS, a, f);
    }));
    if (unreduced)
        return WF_OK;
    return launch(own, finish_kernel<scaled_output>, 1, THREADS, static_cast<const double *>(part), (int)blocks,
                  scaled_output{args->scale, output_of(args->loss)});
}

template <class T> struct entropy_backward_rows {
    struct state {
    };
    const T *x;
    label_source labels;
    any_float log_sum, dloss;
    bool each; /* dloss has a number for each row */
    double scale;
    T *dx;
    entropy_terms terms;
    entropy_part cut;
    __device__ void begin(state *) const
    {
    }
    __device__ void end(state *) const
    {
    }
    __device__ void run(state *, const row_set &a, int64_t row, int lane) const
    {
        using W = wide<T>;
        const int64_t label = row < 0 ? -1 : labels.at(row), c = row < 0 ? 0 : a.c;
        const T *const from = x + row * c;
        const W sum = c > 0 ? (W)log_sum.at(row, 0) : 0;
        const W most = !cut.most.data ? row_most(from, c, lane, a.group) : c > 0 ? (W)cut.most.at(row, 0) : 0;
        const W up = c > 0 ? (W)(dloss.at(each ? row : 0, 0) * scale) : 0, rest = up * (W)terms.rest;
        const W hit = label < 0 ? 0 : up * (W)terms.hit(label);
        /* The gradient of hit q_y + rest sum w q by x_j: (hit + rest total) softmax_j - hit [j = y] - rest w_j. */
        const W all = terms.rest > 0 ? hit + rest * terms.template total<W>(0, cut.whole, lane, a.group) : hit;
        for (int64_t j = lane; j < c; j += a.group) {
            const W slope = all * exp(widen(from[j]) - most - sum);
            const W smooth = terms.rest > 0 ? slope - rest * (W)terms.weight.at(cut.first + j, 1) : slope;
            narrow(label < 0 ? (W)0 : j == label - cut.first ? smooth - hit : smooth, dx + row * a.c + j);
        }
    }
};

wf_status wf_cuda_entropy_backward(wf_ctx *ctx, const wf_entropy_args *args)
{
    wf_cuda *own;
    label_source source = {};
    const row_set a = rows_of(args->x);
    WF_TRY(labels_of(ctx, args->labels, args->ignored, wf_entropy_classes(args, a.c), &own, &source));
    return of_float(args->dx->dtype, [&](auto zero) {
        using T = decltype(zero);
        return row_map(ctx, a,
                       entropy_backward_rows<T>{in_of<T>(args->x), source, any_of(args->log_sum), any_of(args->dloss),
                                                args->dloss->shape.rank > 0, args->scale, out_of<T>(args->dx),
                                                terms_of(args, a.c), class_part_of(args, a.c)});
    });
}

/* Element j of a part of a row that begins at `first`, by size: a NaN is largest at the head of the row and nothing
 * elsewhere. */
template <class T> __device__ inline wide<T> size_of(const T *from, int64_t first, int64_t j)
{
    const wide<T> v = widen(from[j]);
    return v == v ? v : first + j == 0 ? (wide<T>)INFINITY : -(wide<T>)INFINITY;
}

/* How many elements of a part come before that of size `own` at `place` of the row, by size and then by place; for all
 * lanes of the row. */
template <class T>
__device__ inline int64_t count_before(const T *from, int64_t c, int64_t first, int64_t place, wide<T> own, int lane,
                                       int group)
{
    long long before = 0;
    for (int64_t j = lane; j < c; j += group) {
        const wide<T> v = size_of(from, first, j);
        before += v > own || (v == own && first + j < place);
    }
    return group_sum(before, group);
}

/* Rows in which fewer than k elements come before that at the label, by size and then by place: no row is sorted. */
template <class T> struct hit_rows {
    struct state {
        double hits;
    };
    const T *x;
    label_source labels;
    int64_t k;
    double *part;
    __device__ void begin(state *s) const
    {
        s->hits = 0;
    }
    __device__ void run(state *s, const row_set &a, int64_t row, int lane) const
    {
        const int64_t label = row < 0 ? -1 : labels.at(row), c = label < 0 ? 0 : a.c;
        const T *const from = x + (row < 0 ? 0 : row) * a.c;
        const wide<T> own = label < 0 ? 0 : size_of(from, 0, label);
        /* An ignored row counts no elements and no hit, but its lanes take part in the sum. */
        const int64_t before = count_before(from, c, 0, label, own, lane, a.group);
        if (label >= 0 && lane == 0)
            s->hits += before < k;
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

wf_status wf_cuda_count_correct(wf_ctx *ctx, const wf_array *scores, const wf_array *labels, int64_t ignored, int64_t k,
                                const wf_array *correct)
{
    wf_cuda *own;
    label_source source = {};
    void *part;
    const row_set a = rows_of(scores);
    WF_TRY(labels_of(ctx, labels, ignored, a.c, &own, &source));
    /* Hits are whole numbers far below 2^53, so f64 counts them exactly. */
    const unsigned blocks = blocks_for(own, a.rows * a.group);
    WF_TRY(wf_cuda_workspace(own, blocks * sizeof(double), &part));
    WF_TRY(of_float(scores->dtype, [&](auto zero) {
        using T = decltype(zero);
        const hit_rows<T> f = {in_of<T>(scores), source, k, static_cast<double *>(part)};
        return launch(own, row_kernel<hit_rows<T>>, blocks, THREADS, a, f);
    }));
    return launch(own, finish_kernel<count_output>, 1, THREADS, static_cast<const double *>(part), (int)blocks,
                  count_output{out_of<int64_t>(correct)});
}

template <class T> struct label_place_rows {
    using state = nothing;
    const T *x;
    label_source labels;
    int64_t first;
    any_output at;
    any_float given;
    int64_t *before; /* NULL: the first call */
    __device__ void begin(nothing *) const
    {
    }
    __device__ void end(nothing *) const
    {
    }
    __device__ void run(nothing *, const row_set &a, int64_t row, int lane) const
    {
        const int64_t label = row < 0 ? -1 : labels.at(row), here = label - first, c = label < 0 ? 0 : a.c;
        const T *const from = x + (row < 0 ? 0 : row) * a.c;
        const wide<T> own = before && label >= 0 ? (wide<T>)given.at(row, 0) : 0;
        const int64_t count = before ? count_before(from, c, first, label, own, lane, a.group) : 0;
        if (row < 0 || lane > 0)
            return;
        if (before)
            before[row] = label < 0 ? -1 : count;
        else
            at.put(row, here >= 0 && here < c ? size_of(from, first, here) : -(wide<T>)INFINITY);
    }
};

/* Not by row_map, which leaves rows without classes out: what is written for them counts with other parts. */
wf_status wf_cuda_label_place(wf_ctx *ctx, const wf_label_place_args *args)
{
    wf_cuda *own;
    label_source source = {};
    const row_set a = rows_of(args->x);
    if (a.rows == 0)
        return WF_OK;
    WF_TRY(labels_of(ctx, args->labels, args->ignored, args->whole, &own, &source));
    return of_float(args->x->dtype, [&](auto zero) {
        using T = decltype(zero);
        const label_place_rows<T> f = {in_of<T>(args->x), source,
                                       args->first,       output_of(args->at),
                                       any_of(args->at),  args->before ? out_of<int64_t>(args->before) : nullptr};
        return launch_over(own, row_kernel<label_place_rows<T>>, a.rows * a.group, a, f);
    });
}

__global__ void counted_kernel(int64_t rows, const __grid_constant__ label_source labels, double *part)
{
    double sum = 0;
    for (int64_t r = thread_of_grid(); r < rows; r += threads_of_grid())
        sum += !wf_is_ignored(labels.read(r), labels.ignored);
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
