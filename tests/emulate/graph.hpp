/* A graph of the emulated cuDNN, once its descriptors have been checked. */
#ifndef WF_TESTS_EMULATE_GRAPH_H
#define WF_TESTS_EMULATE_GRAPH_H

/* Before the names of CUDA, some of which the standard library uses for its own. */
#include <map>
#include <memory>
#include <vector>

#include "tests/emulate/dnn.h"
#include "tests/emulate/emulate.h"

#include <cudnn_graph.h>

struct dnn_tensor {
    int64_t uid, align;
    cudnnDataType_t type;
    int rank;
    int64_t dim[8], stride[8];
    bool inner;

    int64_t count() const
    {
        int64_t n = 1;
        for (int d = 0; d < rank; d++)
            n *= dim[d];
        return n;
    }
};

struct dnn_geometry {
    cudnnDataType_t arithmetic;
    int64_t nd, stride[3], dilation[3], lo[3], hi[3];
};

enum dnn_kind { DNN_FORWARD, DNN_DATA, DNN_FILTER, DNN_ADD, DNN_RELU, DNN_IDENTITY };

/* Convolutions: x, w, y, of which one is the result. Others: y from x, and w where two are added. */
struct dnn_operation {
    dnn_kind kind;
    dnn_tensor x, w, y;
    dnn_geometry geometry;
    double slope;
    bool nan; /* an activation lets NaN through, in an engine that is strict; else it is 0 */

    const dnn_tensor &result() const
    {
        return kind == DNN_DATA ? x : kind == DNN_FILTER ? w : y;
    }
    std::vector<const dnn_tensor *> sources() const
    {
        if (kind == DNN_RELU || kind == DNN_IDENTITY)
            return {&x};
        return {kind == DNN_DATA ? &y : &x, kind == DNN_FILTER ? &y : &w};
    }
};

struct dnn_graph {
    std::vector<dnn_operation> operations;
};

struct dnn_engine {
    unsigned name;
    std::vector<cudnnBackendNumericalNote_t> notes;
    bool tensor, even, compiled;
    size_t workspace;
    int cost; /* empty tasks behind the work, which events count as time */

    bool strict() const
    {
        for (const cudnnBackendNumericalNote_t note : notes)
            if (note == CUDNN_NUMERICAL_NOTE_STRICT_NAN_PROP)
                return true;
        return false;
    }
};

/* Those present that one mode of the heuristics names for a graph, the best first. */
std::vector<const dnn_engine *> dnn_engines(const dnn_graph &graph, cudnnBackendHeurMode_t mode);
/* Puts a graph on a stream. data[i] belongs to uid[i]. */
void dnn_put(cudaStream_t stream, const dnn_engine &engine, std::shared_ptr<dnn_graph> graph,
             const std::vector<int64_t> &uid, const std::vector<void *> &data, void *workspace);
/* The input of an f32 tensor core. */
float dnn_tf32(float v);

#endif
