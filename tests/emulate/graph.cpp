/* Runs graphs of the emulated cuDNN by plain loops, on the emulated device. */
#include "tests/emulate/graph.hpp"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

/* Elements in logical order. */
typedef std::vector<double> numbers;

static int64_t place(const dnn_tensor &t, int64_t i)
{
    int64_t at = 0;
    for (int d = t.rank - 1; d >= 0; d--) {
        at += i % t.dim[d] * t.stride[d];
        i /= t.dim[d];
    }
    return at;
}

static numbers read(const dnn_tensor &t, const void *data)
{
    numbers v((size_t)t.count());
    for (int64_t i = 0; i < t.count(); i++) {
        const int64_t at = place(t, i);
        v[(size_t)i] = t.type == CUDNN_DATA_DOUBLE  ? static_cast<const double *>(data)[at]
                       : t.type == CUDNN_DATA_FLOAT ? static_cast<const float *>(data)[at]
                       : t.type == CUDNN_DATA_HALF  ? __half2float(static_cast<const __half *>(data)[at])
                                                    : __bfloat162float(static_cast<const __nv_bfloat16 *>(data)[at]);
    }
    return v;
}

static void write(const dnn_tensor &t, const numbers &v, void *data)
{
    for (int64_t i = 0; i < t.count(); i++) {
        const int64_t at = place(t, i);
        const float f = (float)v[(size_t)i];
        if (t.type == CUDNN_DATA_DOUBLE)
            static_cast<double *>(data)[at] = v[(size_t)i];
        else if (t.type == CUDNN_DATA_FLOAT)
            static_cast<float *>(data)[at] = f;
        else if (t.type == CUDNN_DATA_HALF)
            static_cast<__half *>(data)[at] = __float2half_rn(f);
        else
            static_cast<__nv_bfloat16 *>(data)[at] = __float2bfloat16_rn(f);
    }
}

/* Pixel of x under a tap of pixel o of y; -1: padding. */
static int64_t under(const dnn_operation &op, int64_t o, int64_t tap)
{
    int64_t pixel = 0, scale = 1;
    for (int d = (int)op.geometry.nd - 1; d >= 0; d--) {
        const int64_t length = op.x.dim[2 + d];
        const int64_t i = o % op.y.dim[2 + d] * op.geometry.stride[d] - op.geometry.lo[d] +
                          tap % op.w.dim[2 + d] * op.geometry.dilation[d];
        o /= op.y.dim[2 + d];
        tap /= op.w.dim[2 + d];
        if (i < 0 || i >= length)
            return -1;
        pixel += i * scale;
        scale *= length;
    }
    return pixel;
}

/* One loop for three directions: each product belongs to one element of x, of w and of y. */
static numbers convolve(const dnn_operation &op, const numbers &x, const numbers &w, const numbers &y)
{
    const int64_t n = op.x.dim[0], c = op.x.dim[1], f = op.y.dim[1], cg = op.w.dim[1], fg = f / (c / cg);
    const int64_t in = op.x.count() / n / c, out = op.y.count() / n / f, taps = op.w.count() / f / cg;
    numbers sum((size_t)op.result().count());
    for (int64_t o = 0; o < out; o++)
        for (int64_t tap = 0; tap < taps; tap++) {
            const int64_t pixel = under(op, o, tap);
            for (int64_t s = 0; pixel >= 0 && s < n; s++)
                for (int64_t j = 0; j < f; j++)
                    for (int64_t i = 0; i < cg; i++) {
                        const size_t at_x = (size_t)((s * c + j / fg * cg + i) * in + pixel);
                        const size_t at_w = (size_t)((j * cg + i) * taps + tap), at_y = (size_t)((s * f + j) * out + o);
                        if (op.kind == DNN_FORWARD)
                            sum[at_y] += x[at_x] * w[at_w];
                        else if (op.kind == DNN_DATA)
                            sum[at_x] += y[at_y] * w[at_w];
                        else
                            sum[at_w] += x[at_x] * y[at_y];
                    }
        }
    return sum;
}

static numbers pointwise(const dnn_operation &op, bool strict, const numbers &x, const numbers &w)
{
    numbers v = x;
    const int64_t inner = op.y.count() / op.y.dim[0] / op.y.dim[1];
    for (size_t i = 0; i < v.size(); i++)
        if (op.kind == DNN_ADD)
            v[i] += w[(size_t)((int64_t)i / inner % op.y.dim[1])];
        else if (op.kind == DNN_RELU)
            v[i] = v[i] != v[i] ? (op.nan && strict ? v[i] : 0) : v[i] < 0 ? op.slope * v[i] : v[i];
    return v;
}

struct dnn_run : emulated_work {
    dnn_engine engine;
    std::shared_ptr<dnn_graph> graph;
    std::map<int64_t, void *> data;
    void *workspace;

    void thread() const override
    {
        std::map<int64_t, numbers> inner;
        if (workspace)
            memset(workspace, 0xee, engine.workspace);
        for (const dnn_operation &op : graph->operations) {
            numbers value[3];
            for (const dnn_tensor *t : op.sources())
                value[t == &op.x ? 0 : t == &op.w ? 1 : 2] = source(*t, op.kind < DNN_ADD, inner);
            const numbers result = op.kind < DNN_ADD ? convolve(op, value[0], value[1], value[2])
                                                     : pointwise(op, engine.strict(), value[0], value[1]);
            const dnn_tensor &to = op.result();
            if (to.inner)
                inner[to.uid] = result;
            else
                write(to, result, data.at(to.uid));
        }
    }

    numbers source(const dnn_tensor &t, bool convolved, const std::map<int64_t, numbers> &inner) const
    {
        if (t.inner)
            return inner.at(t.uid);
        numbers v = read(t, data.at(t.uid));
        if (convolved && t.type == CUDNN_DATA_FLOAT && engine.tensor)
            for (double &d : v)
                d = dnn_tf32((float)d);
        if (engine.name == EMULATED_ROUGH)
            for (double &d : v)
                d = 0;
        return v;
    }
};

struct dnn_nothing : emulated_work {
    void thread() const override
    {
    }
};

static void launch(cudaStream_t stream, emulated_work *work)
{
    cudaLaunchConfig_t config = {};
    config.stream = stream;
    emulated_launch(config, work);
}

void dnn_put(cudaStream_t stream, const dnn_engine &engine, std::shared_ptr<dnn_graph> graph,
             const std::vector<int64_t> &uid, const std::vector<void *> &data, void *workspace)
{
    dnn_run *const run = new dnn_run;
    run->engine = engine;
    run->graph = graph;
    run->workspace = workspace;
    for (size_t i = 0; i < uid.size(); i++)
        run->data[uid[i]] = data[i];
    launch(stream, run);
    for (int i = 1; i < engine.cost; i++)
        launch(stream, new dnn_nothing);
}
