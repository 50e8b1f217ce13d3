/* Steps of recurrent cells: all that follows the two products, with a thread for each feature of each sample. The layer
 * calls these once a step (layers/serial/recurrent_pass.c), and makes the products itself. Gates lie as in PyTorch and
 * cuDNN: blocks i, f, g, o of an LSTM, r, z, n of a GRU. core/cpu/gates.c has the same formulas. */
#include "core/cuda/kernel_impl.h"

/* The arguments of a step as pointers. Products, memory cells and gradients of states are wide whatever T is, since
 * they are added up over all steps; only what a layer hands on is T. */
template <class T> struct gates_step {
    bool lstm;
    /* `size` is the number of features; a divider, since each thread has to split its index by it. */
    int64_t step;
    divider size;
    const int32_t *lengths;
    const wide<T> *input, *recurrent, *cell_before;
    any_float bias, recurrent_bias;
    const T *before, *dy;
    /* NULL where the cell or the pass has no such array: the kernels read no field that theirs does not need. */
    T *gates, *h, *y, *dinput, *drecurrent;
    wide<T> *kept, *dh, *dcell;

    /* A sample whose sequence is over neither changes its state nor gets a gradient. */
    __device__ bool takes_part(int64_t n) const
    {
        return !lengths || step < lengths[n];
    }
};

template <class W> __device__ inline W logistic(W v)
{
    return 1 / (1 + exp(-v));
}

/* c = f c' + i g and h = o tanh(c). `at` is the place in block i; the blocks of a sample are contiguous, with `size`
 * elements each. */
template <class T> __device__ void lstm_step(const gates_step<T> &a, int64_t e, int64_t n, int64_t j)
{
    using W = wide<T>;
    const int64_t at = 4 * n * a.size.d + j;
    W g[4];
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const int64_t column = k * a.size.d + j;
        const W sum = a.input[at + k * a.size.d] + (W)a.bias.at(column, 0) + a.recurrent[at + k * a.size.d] +
                      (W)a.recurrent_bias.at(column, 0);
        g[k] = k == 2 ? tanh(sum) : logistic(sum);
        narrow(g[k], a.gates + at + k * a.size.d);
    }
    /* g[0] to g[3] are i, f, g, o. c is kept wide, or it would lose digits at every step of a long sequence. */
    const W c = g[1] * a.cell_before[e] + g[0] * g[2];
    a.kept[e] = c;
    narrow(g[3] * tanh(c), a.h + e);
    a.y[e] = a.h[e];
}

/* h = (1 - z) c + z h', where c = tanh(x + r (U h' + b)), the cell's gate n: the reset gate multiplies the product, not
 * the state, as in PyTorch and cuDNN. */
template <class T> __device__ void gru_step(const gates_step<T> &a, int64_t e, int64_t n, int64_t j)
{
    using W = wide<T>;
    const int64_t at = 3 * n * a.size.d + j;
    W x[3], h[3];
#pragma unroll
    for (int k = 0; k < 3; k++) {
        const int64_t column = k * a.size.d + j;
        x[k] = a.input[at + k * a.size.d] + (W)a.bias.at(column, 0);
        h[k] = a.recurrent[at + k * a.size.d] + (W)a.recurrent_bias.at(column, 0);
    }
    const W r = logistic(x[0] + h[0]), z = logistic(x[1] + h[1]), c = tanh(x[2] + r * h[2]);
    narrow(r, a.gates + at);
    narrow(z, a.gates + at + a.size.d);
    narrow(c, a.gates + at + 2 * a.size.d);
    /* The backward pass needs U h' + b of the third block, which only a division by r could bring back. */
    a.kept[e] = h[2];
    narrow((1 - z) * c + z * widen(a.before[e]), a.h + e);
    a.y[e] = a.h[e];
}

template <class T> __global__ void gates_forward_kernel(int64_t count, const __grid_constant__ gates_step<T> a)
{
    for (int64_t e = thread_of_grid(); e < count; e += threads_of_grid()) {
        const int64_t n = a.size.of(e), j = e - n * a.size.d;
        if (a.takes_part(n)) {
            if (a.lstm)
                lstm_step(a, e, n, j);
            else
                gru_step(a, e, n, j);
            continue;
        }
        const int blocks = a.lstm ? 4 : 3;
        /* The backward pass never reads these gates, but the array is handed on as a whole and must not hold old
         * numbers. */
        for (int k = 0; k < blocks; k++)
            narrow((wide<T>)0, a.gates + (blocks * n + k) * a.size.d + j);
        a.kept[e] = a.lstm ? a.cell_before[e] : 0;
        a.h[e] = a.before[e];
        narrow((wide<T>)0, a.y + e);
    }
}

/* Gradients of what stands under the sigmoids and tanhs: s' = s (1 - s) and tanh' = 1 - tanh^2. dinput serves as the
 * gradient of both products, since they are added. */
template <class T> __device__ void lstm_step_back(const gates_step<T> &a, int64_t e, int64_t n, int64_t j)
{
    using W = wide<T>;
    const int64_t at = 4 * n * a.size.d + j, width = a.size.d;
    const W i = widen(a.gates[at]), f = widen(a.gates[at + width]), g = widen(a.gates[at + 2 * width]);
    /* d: the gradient of h, from this step's output and from the step after it. */
    const W o = widen(a.gates[at + 3 * width]), t = tanh(a.kept[e]), d = widen(a.dy[e]) + a.dh[e];
    const W c = a.dcell[e] + d * o * (1 - t * t);
    narrow(c * g * i * (1 - i), a.dinput + at);
    narrow(c * a.cell_before[e] * f * (1 - f), a.dinput + at + width);
    narrow(c * i * (1 - g * g), a.dinput + at + 2 * width);
    narrow(d * t * o * (1 - o), a.dinput + at + 3 * width);
    a.dcell[e] = c * f;
    /* What flows back to h' comes through the product of dinput with the recurrent weights, which the layer adds to dh
     * next. */
    a.dh[e] = 0;
}

/* The third block differs between the two products: r multiplies only the recurrent one. */
template <class T> __device__ void gru_step_back(const gates_step<T> &a, int64_t e, int64_t n, int64_t j)
{
    using W = wide<T>;
    const int64_t at = 3 * n * a.size.d + j, width = a.size.d;
    const W r = widen(a.gates[at]), z = widen(a.gates[at + width]), c = widen(a.gates[at + 2 * width]);
    const W d = widen(a.dy[e]) + a.dh[e], dc = d * (1 - z) * (1 - c * c);
    const W dr = dc * a.kept[e] * r * (1 - r), dz = d * (widen(a.before[e]) - c) * z * (1 - z);
    narrow(dr, a.dinput + at);
    narrow(dr, a.drecurrent + at);
    narrow(dz, a.dinput + at + width);
    narrow(dz, a.drecurrent + at + width);
    narrow(dc, a.dinput + at + 2 * width);
    narrow(dc * r, a.drecurrent + at + 2 * width);
    /* Only the direct way through z h'; the layer adds the way through the gates. */
    a.dh[e] = d * z;
}

template <class T> __global__ void gates_backward_kernel(int64_t count, const __grid_constant__ gates_step<T> a)
{
    for (int64_t e = thread_of_grid(); e < count; e += threads_of_grid()) {
        const int64_t n = a.size.of(e), j = e - n * a.size.d;
        if (a.takes_part(n)) {
            if (a.lstm)
                lstm_step_back(a, e, n, j);
            else
                gru_step_back(a, e, n, j);
            continue;
        }
        /* A sample that takes no part leaves dh and dcell as they are: its state passed this step by unchanged. */
        const int blocks = a.lstm ? 4 : 3;
        for (int k = 0; k < blocks; k++) {
            narrow((wide<T>)0, a.dinput + (blocks * n + k) * a.size.d + j);
            if (!a.lstm)
                narrow((wide<T>)0, a.drecurrent + (blocks * n + k) * a.size.d + j);
        }
    }
}

/* Array or NULL, to be written. */
template <class T> T *to_of(const wf_array *a)
{
    return a ? static_cast<T *>(a->data) : nullptr;
}

template <class T> gates_step<T> step_of(const wf_gates_args *args, int64_t size)
{
    using W = wide<T>;
    gates_step<T> a = {};
    a.lstm = args->cell == WF_CELL_LSTM;
    a.step = args->step;
    a.size = divide_by(size);
    a.lengths = in_of<int32_t>(args->lengths);
    a.input = in_of<W>(args->input);
    a.recurrent = in_of<W>(args->recurrent);
    a.cell_before = in_of<W>(args->cell_before);
    a.bias = any_of(args->bias);
    a.recurrent_bias = any_of(args->recurrent_bias);
    a.before = in_of<T>(args->before);
    a.dy = in_of<T>(args->dy);
    a.gates = to_of<T>(args->gates);
    a.h = to_of<T>(args->h);
    a.y = to_of<T>(args->y);
    a.dinput = to_of<T>(args->dinput);
    a.drecurrent = to_of<T>(args->drecurrent);
    a.kept = to_of<W>(args->kept);
    a.dh = to_of<W>(args->dh);
    a.dcell = to_of<W>(args->dcell);
    return a;
}

/* Local. The caller (the layer, through the kernel table) has checked shapes and types. */
wf_status wf_cuda_gates_forward(wf_ctx *ctx, const wf_gates_args *args)
{
    wf_cuda *own;
    const int64_t count = wf_array_count(args->h);
    if (count == 0)
        return WF_OK;
    WF_TRY(wf_cuda_here(ctx, &own));
    return of_float(args->h->dtype, [&](auto zero) {
        using T = decltype(zero);
        return launch_over(own, gates_forward_kernel<T>, count, count, step_of<T>(args, args->h->shape.dim[1]));
    });
}

wf_status wf_cuda_gates_backward(wf_ctx *ctx, const wf_gates_args *args)
{
    wf_cuda *own;
    const int64_t count = wf_array_count(args->dy);
    if (count == 0)
        return WF_OK;
    WF_TRY(wf_cuda_here(ctx, &own));
    return of_float(args->dy->dtype, [&](auto zero) {
        using T = decltype(zero);
        return launch_over(own, gates_backward_kernel<T>, count, count, step_of<T>(args, args->dy->shape.dim[1]));
    });
}
