/* The engines of the emulated cuDNN: what they take, and in which order its heuristics name them. They refuse what the
 * real one was seen to refuse (tests/offline). */
#include "tests/emulate/graph.hpp"

static unsigned present = EMULATED_ENGINES;

static const dnn_engine engines[] = {
    {EMULATED_LATE, {}, false, false, false, 0, 1},
    {EMULATED_BROKEN, {}, false, false, false, 0, 1},
    {EMULATED_ROUGH,
     {CUDNN_NUMERICAL_NOTE_TENSOR_CORE, CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS},
     false,
     false,
     false,
     0,
     1},
    {EMULATED_ATOMIC, {CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC}, false, true, false, 0, 3},
    {EMULATED_TENSOR, {CUDNN_NUMERICAL_NOTE_TENSOR_CORE}, true, true, false, 4096, 2},
    {EMULATED_PLAIN, {}, false, true, false, 64, 4},
    {EMULATED_STRICT,
     {CUDNN_NUMERICAL_NOTE_TENSOR_CORE, CUDNN_NUMERICAL_NOTE_STRICT_NAN_PROP},
     true,
     true,
     false,
     4096,
     2},
    {EMULATED_COMPILED, {CUDNN_NUMERICAL_NOTE_TENSOR_CORE}, false, true, true, 0, 2},
    {EMULATED_CRAWLING, {CUDNN_NUMERICAL_NOTE_TENSOR_CORE}, false, true, true, 0, 9},
    {EMULATED_UNEVEN, {}, false, false, false, 0, 5},
};

void emulated_engines(unsigned some)
{
    present = some;
}

unsigned emulated_present(void)
{
    return present;
}

/* What the real cuDNN has without compiling: a convolution, and forward with a bias, or with a bias and ReLU. No
 * convolution whose tensors differ in type; a result of another type is that of a pointwise operation. */
static bool patterned(const dnn_graph &graph)
{
    const std::vector<dnn_operation> &op = graph.operations;
    return op.size() == 1 || (op[0].kind == DNN_FORWARD && op[1].kind == DNN_ADD &&
                              (op.size() == 2 || (op[2].kind == DNN_RELU && op[2].slope == 0)));
}

/* What an engine takes. */
static bool takes(const dnn_engine &e, const dnn_graph &graph)
{
    const dnn_operation &conv = graph.operations[0];
    const std::vector<const dnn_tensor *> inputs = conv.sources();
    const bool alone = graph.operations.size() == 1, failing = e.name == EMULATED_LATE || e.name == EMULATED_BROKEN;
    const bool mixed = inputs[0]->type != inputs[1]->type || (alone && conv.result().type != inputs[0]->type);
    bool fits =
        (present & e.name) != 0 && !mixed && (e.compiled || ((e.tensor || failing) && patterned(graph)) || alone);
    for (int i = 0; i < conv.geometry.nd; i++)
        fits = fits && (!e.even || conv.geometry.lo[i] == conv.geometry.hi[i]);
    if (!e.tensor)
        return fits;
    const int64_t pack = 16 / (conv.x.type == CUDNN_DATA_DOUBLE ? 8 : conv.x.type == CUDNN_DATA_FLOAT ? 4 : 2);
    fits = fits && conv.w.dim[1] % pack == 0 && conv.y.dim[1] / (conv.x.dim[1] / conv.w.dim[1]) % pack == 0;
    for (const dnn_operation &op : graph.operations)
        for (const dnn_tensor *t : op.sources())
            fits = fits && t->align >= 16;
    return fits && graph.operations.back().result().align >= 16;
}

std::vector<const dnn_engine *> dnn_engines(const dnn_graph &graph, cudnnBackendHeurMode_t mode)
{
    std::vector<const dnn_engine *> list;
    const bool last = mode == CUDNN_HEUR_MODE_FALLBACK;
    for (const dnn_engine &e : engines)
        if (last == (e.name == EMULATED_UNEVEN) && takes(e, graph))
            list.push_back(&e);
    return list;
}
