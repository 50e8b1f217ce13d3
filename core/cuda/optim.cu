/* One launch for the update of all parameters, and the small kernels around it.
 *
 * A block updates one chunk of one parameter at a time; chunks are numbered through all parameters of a launch, so
 * small ones share a launch and large ones many blocks. Numbers that change from step to step (rate, scale of the loss,
 * whether gradients were finite) are read from device memory (wf_optim_hyper), so that a captured step can be replayed:
 * verdict_kernel, scale_kernel and clip_kernel write them there, in f64, by one thread. */
#include "core/cuda/kernel_impl.h"

/* The segments of a launch travel as its argument, of at most 4096 bytes. A chunk is what a block updates in one turn.
 */
enum { SEGMENTS = 46, CHUNK = 4096 };

/* A segment of one parameter, as the kernel sees it. `first` numbers chunks through all segments of the launch. */
template <class T> struct run_of_parameters {
    T *p;
    const T *g;
    T *state1, *state2, *direction;
    const double *squares;
    int64_t n, first; /* first: number of its first chunk */
    double lr_scale, decay;
    bool vector, no_decay, grouped;
};

template <class T> struct batch_of_runs {
    wf_optim_kind kind;
    const wf_optim_hyper *hyper;
    int count;
    int64_t chunks;
    run_of_parameters<T> run[SEGMENTS];
};

/* wf_radam_factor on the device: rho is the length of the approximated moving average (Liu et al., 2020); up to 5 its
 * variance has no bound, and 0 says so. */
__device__ inline double radam_factor(double beta2, double bias2)
{
    const double rest = 1 - bias2, most = 2 / (1 - beta2) - 1;
    /* t from bias2 = 1 - beta2^t, since a replayed step has no other count. */
    const double t = rest > 0 ? rint(log(rest) / log(beta2)) : 0, rho = most - 2 * t * rest / bias2;
    return rho > 5 ? sqrt((rho - 4) * (rho - 2) * most / ((most - 4) * (most - 2) * rho)) : 0;
}

/* The numbers of wf_optim_hyper as an update uses them. */
template <class W> struct update_rule {
    wf_optim_kind kind;
    W lr, momentum, beta1, rest1, beta2, rest2, eps, decay, bias1, bias2, scale, clip, sgd, rms;
    bool nesterov, first, second; /* first, second: which states there are */

    __device__ static bool by_alpha(wf_optim_kind k)
    {
        return k == WF_OPTIM_RMSPROP || k == WF_OPTIM_RMSPROP_SGD;
    }

    /* Everything that differs by algorithm but not by parameter is settled here, once a thread. */
    __device__ update_rule(wf_optim_kind k, const wf_optim_hyper &h)
        : kind(k), lr((W)h.lr), momentum((W)h.momentum), beta1((W)h.beta1), rest1((W)(1 - h.beta1)),
          beta2((W)(by_alpha(k) ? h.alpha : h.beta2)), rest2((W)(1 - (by_alpha(k) ? h.alpha : h.beta2))), eps((W)h.eps),
          decay((W)h.decay), bias1((W)(1 / h.bias1)), bias2((W)(1 / h.bias2)), scale((W)h.grad_scale),
          clip((W)h.clip_value), sgd((W)h.sgd), rms((W)h.rms), nesterov(h.nesterov != 0),
          first(k == WF_OPTIM_SGD ? h.momentum != 0 : k != WF_OPTIM_TRUST),
          second(k == WF_OPTIM_ADAM || k == WF_OPTIM_ADAMW || k == WF_OPTIM_RADAM || k == WF_OPTIM_RMSPROP_SGD)
    {
        if (k == WF_OPTIM_ADAGRAD)
            beta2 = rest2 = 1; /* the form of RMSprop with squares that are summed, not averaged */
        if (k == WF_OPTIM_RADAM) {
            /* Adam's form with another step, and a divisor that is 1 before the variance is bounded. */
            const double factor = radam_factor(h.beta2, h.bias2);
            bias1 = (W)((factor > 0 ? factor * sqrt(h.bias2) : 1) / h.bias1);
            bias2 = factor > 0 ? 1 : 0;
            eps = factor > 0 ? eps : 1;
        }
    }

    /* What is another in each run: the factors of groups of parameters, and the trust ratio of LARS and LAMB. */
    template <class T> __device__ void take(const run_of_parameters<T> &r)
    {
        if (r.grouped) {
            lr *= (W)r.lr_scale;
            decay = (W)r.decay;
        }
        if (r.no_decay)
            decay = 0;
        /* A norm of 0, of a new parameter or a gradient, leaves the rate alone. */
        if (kind == WF_OPTIM_TRUST && r.squares[0] > 0 && r.squares[1] > 0)
            lr = (W)(lr * sqrt(r.squares[0] / r.squares[1]));
    }

    /* Comparisons are written so that a NaN of the gradient reaches the parameter. */
    __device__ W prepared(W g) const
    {
        g *= scale;
        if (clip > 0)
            g = g > clip ? clip : g < -clip ? -clip : g;
        return g;
    }

    /* What p moves by, without the sign and lr. */
    __device__ W direction(W p, W gradient, W *s, W *t) const
    {
        /* The direction was made by an update before; only the trusted rate was missing. */
        if (kind == WF_OPTIM_TRUST)
            return gradient;
        W g = prepared(gradient);
        /* AdamW (Loshchilov and Hutter, 2019) takes the decay out of the gradient's moments, and adds it to the step
         * below. */
        if (kind != WF_OPTIM_ADAMW)
            g += decay * p;
        if (kind == WF_OPTIM_SGD) {
            if (!first)
                return g;
            *s = momentum * *s + g;
            return nesterov ? g + momentum * *s : *s;
        }
        if (kind == WF_OPTIM_RMSPROP || kind == WF_OPTIM_ADAGRAD) {
            *s = beta2 * *s + rest2 * g * g;
            return g / (sqrt(*s) + eps);
        }
        if (kind == WF_OPTIM_RMSPROP_SGD) {
            *t = beta2 * *t + rest2 * g * g;
            *s = momentum * *s + (sgd + rms / (sqrt(*t) + eps)) * g;
            return *s;
        }
        *s = beta1 * *s + rest1 * g;
        *t = beta2 * *t + rest2 * g * g;
        /* (s / (1 - beta1^t)) / (sqrt(t / (1 - beta2^t)) + eps), as in the paper of Adam (Kingma and Ba, 2015). */
        return (kind == WF_OPTIM_ADAMW ? decay * p : 0) + (*s * bias1) / (sqrt(*t * bias2) + eps);
    }
};

template <int V, class T>
__device__ void update_run(const run_of_parameters<T> &r, const update_rule<wide<T>> &rule, int64_t from, int64_t to)
{
    for (int64_t i = from + (int64_t)threadIdx.x * V; i + V <= to; i += THREADS * V) {
        wide<T> p[V], g[V], s[V] = {}, t[V] = {};
        load<V>(r.p, i, p);
        load<V>(r.g, i, g);
        if (rule.first)
            load<V>(r.state1, i, s);
        if (rule.second)
            load<V>(r.state2, i, t);
#pragma unroll
        for (int k = 0; k < V; k++) {
            g[k] = rule.direction(p[k], g[k], &s[k], &t[k]);
            p[k] -= rule.lr * g[k];
        }
        /* LARS and LAMB first need the direction's norm: the parameter moves in a second launch. */
        if (r.direction)
            store<V>(g, r.direction, i);
        else
            store<V>(p, r.p, i);
        if (rule.first)
            store<V>(s, r.state1, i);
        if (rule.second)
            store<V>(t, r.state2, i);
    }
}

template <class T> __global__ void optim_kernel(const __grid_constant__ batch_of_runs<T> batch)
{
    constexpr int V = pack_size<T>;
    /* Gradients that are not finite, or ranks that disagree: no parameter and no state changes. */
    if (batch.hyper->skip != 0)
        return;
    const update_rule<wide<T>> common(batch.kind, *batch.hyper);
    for (int64_t chunk = blockIdx.x; chunk < batch.chunks; chunk += gridDim.x) {
        /* The segment of a chunk: the last one whose first chunk is not behind it. */
        int low = 0, high = batch.count - 1;
        while (low < high) {
            const int middle = (low + high + 1) / 2;
            if (batch.run[middle].first <= chunk)
                low = middle;
            else
                high = middle - 1;
        }
        const run_of_parameters<T> &r = batch.run[low];
        update_rule<wide<T>> rule = common;
        rule.take(r);
        const int64_t from = (chunk - r.first) * CHUNK, to = from + CHUNK < r.n ? from + CHUNK : r.n;
        const int64_t packed = r.vector ? from + (to - from) / V * V : from;
        update_run<V>(r, rule, from, packed);
        update_run<1>(r, rule, packed, to);
    }
}

template <class T> static run_of_parameters<T> run_from(const wf_optim_segment &s, int64_t first)
{
    run_of_parameters<T> r = {};
    r.p = static_cast<T *>(s.p);
    r.g = static_cast<const T *>(s.g);
    r.state1 = static_cast<T *>(s.state1);
    r.state2 = static_cast<T *>(s.state2);
    r.direction = static_cast<T *>(s.direction);
    r.squares = s.squares;
    r.n = s.n;
    r.first = first;
    r.no_decay = s.no_decay;
    r.grouped = s.grouped;
    r.lr_scale = s.lr_scale;
    r.decay = s.decay;
    r.vector = aligned(s.p) && aligned(s.g) && aligned(s.state1) && aligned(s.state2) && aligned(s.direction);
    return r;
}

template <class T>
static wf_status update(wf_cuda *own, wf_optim_kind kind, const wf_optim_hyper *hyper, int64_t segments,
                        const wf_optim_segment *segment)
{
    batch_of_runs<T> batch = {};
    batch.kind = kind;
    batch.hyper = hyper;
    for (int64_t i = 0; i < segments; i++) {
        if (segment[i].n > 0) {
            batch.run[batch.count++] = run_from<T>(segment[i], batch.chunks);
            batch.chunks += ceil_div(segment[i].n, CHUNK);
        }
        /* A full batch, or the end: segments beyond what an argument holds go into the next launch. */
        if (batch.count > 0 && (batch.count == SEGMENTS || i + 1 == segments)) {
            /* More blocks than the device holds at once would wait; each takes several chunks. */
            const unsigned blocks = (unsigned)at_most(batch.chunks, (int64_t)own->processors * 8);
            WF_TRY(launch(own, optim_kernel<T>, blocks, THREADS, batch));
            batch.count = 0;
            batch.chunks = 0;
        }
    }
    return WF_OK;
}

wf_status wf_cuda_optim_update(wf_ctx *ctx, wf_optim_kind kind, const wf_optim_hyper *hyper, wf_dtype dtype,
                               int64_t segments, const wf_optim_segment *segment)
{
    wf_cuda *own;
    WF_TRY(wf_cuda_here(ctx, &own));
    return of_float(dtype, [&](auto zero) { return update<decltype(zero)>(own, kind, hyper, segments, segment); });
}

/* Every rank reads the same sums of the trailer, so all stop or none. */
template <class T> __device__ bool stops_update(const T *trailer, double ranks)
{
    const int kinds =
        (trailer[WF_TRAILER_SHARDED] > 0) + (trailer[WF_TRAILER_PARTS] > 0) + (trailer[WF_TRAILER_LOCAL] > 0);
    bool stops = trailer[WF_TRAILER_RANKS] != ranks || trailer[WF_TRAILER_CHANGED] != 0 ||
                 trailer[WF_TRAILER_OVERFLOW] != 0 || kinds > 1;
    for (int b = 0; b < WF_DRAWS_BITS; b++) {
        const T bit = trailer[WF_TRAILER_DRAWS + b];
        /* Each bit of the hash of what was drawn: all ranks that compare have it, or none. */
        stops = stops || (bit != 0 && bit != trailer[WF_TRAILER_COMPARED]);
    }
    return stops;
}

template <class T> __global__ void verdict_kernel(const T *trailer, double ranks, wf_optim_hyper *hyper)
{
    /* Local means, and several parts of global ones, count by their samples, so their sum is divided by the weight of
     * all. A single sharded loss is a part of a global mean already: see optim/multi_node.c. */
    const double weight = trailer[WF_TRAILER_WEIGHT];
    if (stops_update(trailer, ranks))
        hyper->skip = 1;
    else
        hyper->grad_scale = trailer[WF_TRAILER_LOCAL] + trailer[WF_TRAILER_PARTS] > 0 && weight > 0 ? 1 / weight : 1;
}

wf_status wf_cuda_step_verdict(wf_ctx *ctx, const void *trailer, wf_dtype dtype, double ranks, wf_optim_hyper *hyper)
{
    wf_cuda *own;
    WF_TRY(wf_cuda_here(ctx, &own));
    if (dtype == WF_F64)
        return launch(own, verdict_kernel<double>, 1, 1, static_cast<const double *>(trailer), ranks, hyper);
    return launch(own, verdict_kernel<float>, 1, 1, static_cast<const float *>(trailer), ranks, hyper);
}

/* Loss scaling of mixed precision (Micikevicius et al., 2018): halved where gradients overflow, raised after `interval`
 * good steps. */
static __global__ void scale_kernel(const double *sum_squares, wf_loss_scaling *s, wf_optim_hyper *hyper)
{
    if (hyper->skip != 0)
        return;
    hyper->skip = isfinite(*sum_squares) ? 0 : 1;
    if (hyper->skip != 0) {
        s->skipped++;
        s->good = 0;
        /* Bounds, so that a long row of bad or good steps leaves a number that can come back. */
        s->scale = fmax(s->scale * s->backoff, 0x1p-100);
    } else {
        /* Steps that were skipped do not count for the bias of Adam's moments. */
        const double t = hyper->step - s->skipped;
        hyper->grad_scale /= s->scale;
        hyper->bias1 = 1 - pow(hyper->beta1, t);
        hyper->bias2 = 1 - pow(hyper->beta2, t);
        s->good++;
        if (s->good >= s->interval) {
            s->good = 0;
            s->scale = fmin(s->scale * s->growth, 0x1p100);
        }
    }
    s->seed = (float)s->scale;
}

wf_status wf_cuda_loss_scale(wf_ctx *ctx, const double *sum_squares, wf_loss_scaling *scaling, wf_optim_hyper *hyper)
{
    wf_cuda *own;
    WF_TRY(wf_cuda_here(ctx, &own));
    return launch(own, scale_kernel, 1, 1, sum_squares, scaling, hyper);
}

static __global__ void clip_kernel(const double *sum_squares, double max_norm, wf_optim_hyper *hyper)
{
    /* Gradients are still to be multiplied by grad_scale, so their norm is, too. A norm of 0 makes the factor infinite:
     * no change. */
    const double factor = max_norm / (hyper->grad_scale * sqrt(*sum_squares));
    hyper->grad_scale *= factor < 1 ? factor : 1;
}

wf_status wf_cuda_clip_scale(wf_ctx *ctx, const double *sum_squares, double max_norm, wf_optim_hyper *hyper)
{
    wf_cuda *own;
    WF_TRY(wf_cuda_here(ctx, &own));
    return launch(own, clip_kernel, 1, 1, sum_squares, max_norm, hyper);
}
