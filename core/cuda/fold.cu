/* Folds: arithmetic of strided arrays with broadcasting, and sums over any dimensions in the same pass. The elements of
 * y are numbered by the dimensions that are kept, the terms of a sum by those that are folded. */
#include "core/cuda/kernel_impl.h"

#include <stdlib.h>

/* Numbers of elements of some of the dimensions, outermost first, and the steps of a, b, c and y along them. An array
 * that is not there has steps of 0 and is never read. */
struct fold_walk {
    int64_t n;
    divider dim[WF_MAX_RANK]; /* 1s in front */
    int64_t step[WF_MAX_RANK][4];

    /* Adds the places of element i to `at`, so that the places of a kept and of a folded element add up. */
    __device__ void place(int64_t i, int64_t at[4]) const
    {
#pragma unroll
        for (int d = WF_MAX_RANK - 1; d >= 0; d--) {
            const int64_t rest = dim[d].of(i), here = i - rest * dim[d].d;
#pragma unroll
            for (int o = 0; o < 4; o++)
                at[o] += here * step[d][o];
            i = rest;
        }
    }
};

/* One term. The operations are those of wf_fold_op; x, y and z here are a, b and c there. */
template <class T> struct fold_terms {
    wf_fold_op op;
    double alpha, beta;
    const T *a, *b, *c;
    const uint8_t *mask; /* in place of c */

    __device__ wide<T> of(const int64_t at[4]) const
    {
        using W = wide<T>;
        const W x = a ? widen(a[at[0]]) : (W)0, y = b ? widen(b[at[1]]) : (W)0;
        const W z = mask ? (W)mask[at[2]] : c ? widen(c[at[2]]) : (W)0;
        switch (op) {
        case WF_FOLD_LINEAR:
            return b ? (W)alpha * x + (W)beta * y : (W)alpha * x;
        case WF_FOLD_MUL:
            return (W)alpha * x * y;
        case WF_FOLD_DIV:
            return (W)alpha * x / y;
        case WF_FOLD_MULDIV:
            /* The gradient of a quotient. */
            return (W)alpha * x * y / z;
        case WF_FOLD_WHERE:
            return z != 0 ? x : y;
        case WF_FOLD_CLIP:
            return x < (W)alpha ? (W)alpha : x > (W)beta ? (W)beta : x;
        case WF_FOLD_CLIP_X:
            return y < (W)alpha || y > (W)beta ? (W)0 : x;
        case WF_FOLD_PRELU:
            return x < 0 ? x * y : x;
        case WF_FOLD_PRELU_X:
            /* At 0 the slope applies, as in PyTorch. */
            return y <= 0 ? x * z : x;
        default: /* WF_FOLD_PRELU_SLOPE */
            return y < 0 ? x * y : (W)0;
        }
    }
};

/* y is one of two walks' sum: kept dimensions number its elements, folded ones their terms. */
template <class T> struct fold_arrays {
    fold_walk kept, folded;
    fold_terms<T> terms;
    bool accumulate;
    any_float old;
    any_output y;
    int64_t parts; /* of the terms of a sum */
    double *part;  /* [parts][kept.n]; NULL: one part */
};

template <class T> __device__ inline void fold_put(const fold_arrays<T> &f, int64_t at, double v)
{
    f.y.put(at, f.accumulate ? v + f.old.at(at, 0) : v);
}

/* A thread for each element of y and part of its terms. */
template <class T> __global__ void fold_kernel(const __grid_constant__ fold_arrays<T> f)
{
    const int64_t step = threads_of_grid(), block = (f.folded.n + f.parts - 1) / f.parts;
    /* Blocks of terms are cut by their number alone, so a sum's order depends only on the shape and the device's
     * size. */
    for (int64_t i = thread_of_grid(); i < f.kept.n * f.parts; i += step) {
        const int64_t p = i / f.kept.n, e = i - p * f.kept.n;
        const int64_t end = (p + 1) * block < f.folded.n ? (p + 1) * block : f.folded.n;
        int64_t base[4] = {0, 0, 0, 0};
        double sum = 0;
        f.kept.place(e, base);
        for (int64_t t = p * block; t < end; t++) {
            int64_t at[4] = {base[0], base[1], base[2], base[3]};
            f.folded.place(t, at);
            sum += f.terms.of(at);
        }
        if (f.part)
            f.part[i] = sum;
        else
            fold_put(f, base[3], sum);
    }
}

/* A block for each element of y and part of its terms, whose neighbours are neighbours in memory. */
template <class T> __global__ void fold_rows_kernel(const __grid_constant__ fold_arrays<T> f)
{
    const int64_t block = (f.folded.n + f.parts - 1) / f.parts;
    for (int64_t i = blockIdx.x; i < f.kept.n * f.parts; i += gridDim.x) {
        const int64_t p = i / f.kept.n, e = i - p * f.kept.n;
        const int64_t end = (p + 1) * block < f.folded.n ? (p + 1) * block : f.folded.n;
        int64_t base[4] = {0, 0, 0, 0};
        double sum = 0;
        f.kept.place(e, base);
        for (int64_t t = p * block + (int64_t)threadIdx.x; t < end; t += THREADS) {
            int64_t at[4] = {base[0], base[1], base[2], base[3]};
            f.folded.place(t, at);
            sum += f.terms.of(at);
        }
        sum = block_sum(sum);
        if (threadIdx.x == 0 && f.part)
            f.part[i] = sum;
        else if (threadIdx.x == 0)
            fold_put(f, base[3], sum);
    }
}

/* The parts of a sum in their order. */
template <class T> __global__ void fold_join_kernel(const __grid_constant__ fold_arrays<T> f)
{
    for (int64_t e = thread_of_grid(); e < f.kept.n; e += threads_of_grid()) {
        int64_t base[4] = {0, 0, 0, 0};
        double sum = 0;
        for (int64_t p = 0; p < f.parts; p++)
            sum += f.part[p * f.kept.n + e];
        f.kept.place(e, base);
        fold_put(f, base[3], sum);
    }
}

/* The dimensions of y whose step is 0 (or is not), outermost first by the steps of the inputs: neighbouring threads
 * then read neighbours. */
static fold_walk walk_of(const wf_fold_args *args, bool folded, int64_t *inner_step)
{
    const wf_strided *const of[4] = {args->a, args->b, args->c, args->y};
    int dims[WF_MAX_RANK], rank = 0;
    int64_t most[WF_MAX_RANK];
    fold_walk w = {};
    w.n = 1;
    for (int d = 0; d < args->y->rank; d++) {
        /* A dimension of length 1 is kept, whatever its step: it adds no term. */
        if ((args->y->stride[d] == 0 && args->y->dim[d] != 1) != folded)
            continue;
        w.n *= args->y->dim[d];
        int64_t step = 0;
        for (int o = 0; o < 4; o++)
            if (of[o] && of[o]->stride[d] > step)
                step = of[o]->stride[d];
        /* By insertion, since the rank is small. */
        int k = rank++;
        for (; k > 0 && most[k - 1] < step; k--) {
            most[k] = most[k - 1];
            dims[k] = dims[k - 1];
        }
        most[k] = step;
        dims[k] = d;
    }
    *inner_step = rank > 0 ? most[rank - 1] : INT64_MAX;
    for (int k = 0; k < WF_MAX_RANK; k++) {
        const int from = k - (WF_MAX_RANK - rank);
        w.dim[k] = divide_by(from < 0 ? 1 : args->y->dim[dims[from]]);
        for (int o = 0; o < 4; o++)
            w.step[k][o] = from < 0 || !of[o] ? 0 : of[o]->stride[dims[from]];
    }
    return w;
}

/* A few sums of many terms would leave most of the device idle: their terms are cut into parts, which a second kernel
 * adds. */
template <class T> static wf_status fold_sums(wf_cuda *own, fold_arrays<T> *f, bool rows)
{
    const int64_t most = (int64_t)own->processors * 8, tasks = rows ? f->kept.n : ceil_div(f->kept.n, THREADS);
    const int64_t least = rows ? 4 * THREADS : 64; /* terms that are worth a part of their own */
    void *part = nullptr;
    f->parts = tasks >= most ? 1 : at_most(ceil_div(most, tasks), ceil_div(f->folded.n, least));
    f->parts = f->parts < 1 ? 1 : f->parts;
    if (f->parts > 1)
        WF_TRY(wf_cuda_workspace(own, (size_t)(f->parts * f->kept.n) * sizeof(double), &part));
    f->part = static_cast<double *>(part);
    if (rows) {
        const unsigned blocks = (unsigned)at_most(f->kept.n * f->parts, most);
        WF_TRY(launch(own, fold_rows_kernel<T>, blocks, THREADS, *f));
    } else {
        WF_TRY(launch(own, fold_kernel<T>, blocks_for(own, f->kept.n * f->parts), THREADS, *f));
    }
    return part ? launch(own, fold_join_kernel<T>, blocks_for(own, f->kept.n), THREADS, *f) : WF_OK;
}

template <class T> static const T *data_of(const wf_strided *a)
{
    return a ? static_cast<const T *>(a->data) : nullptr;
}

wf_status wf_cuda_fold(wf_ctx *ctx, const wf_fold_args *args)
{
    const bool mask = args->c && args->c->dtype == WF_U8;
    wf_cuda *own;
    WF_TRY(wf_cuda_here(ctx, &own));
    return of_float((args->a ? args->a : args->b)->dtype, [&](auto zero) {
        using T = decltype(zero);
        int64_t kept_step, folded_step;
        fold_arrays<T> f = {};
        f.kept = walk_of(args, false, &kept_step);
        f.folded = walk_of(args, true, &folded_step);
        f.terms = fold_terms<T>{args->op,
                                args->alpha,
                                args->beta,
                                data_of<T>(args->a),
                                data_of<T>(args->b),
                                mask ? nullptr : data_of<T>(args->c),
                                mask ? data_of<uint8_t>(args->c) : nullptr};
        f.accumulate = args->accumulate;
        f.old = any_float{args->y->data, args->y->dtype};
        f.y = any_output{args->y->data, args->y->dtype};
        if (f.kept.n == 0)
            return (wf_status)WF_OK;
        /* If the folded dimensions are the innermost, threads of a block share one sum and read side by side. */
        return fold_sums(own, &f, folded_step < kept_step);
    });
}
