/* cuDNN's graph API as core/cuda uses it. What the real one answers with BAD_PARAM ends the program here: wrong types
 * and counts of attributes, what is missing, unfinished descriptors, shapes that do not fit, incomplete packs. What it
 * may refuse (NOT_SUPPORTED), the engines refuse. */
#include "tests/emulate/graph.hpp"

#include <chrono>
#include <stdio.h>
#include <stdlib.h>
#include <thread>

static unsigned last_engine;
static int descriptors, graphs, questions, plans, plan_takes, compiled, runs, last_pads, packs, streams_told;

struct cudnnContext {
    cudaStream_t stream;
};

typedef cudnnBackendAttributeName_t attribute_name;
typedef cudnnBackendAttributeType_t attribute_type;

struct attribute {
    attribute_name name;
    attribute_type type;
    int64_t count;
    std::vector<char> bytes;
};

struct descriptor {
    cudnnBackendDescriptorType_t type;
    bool final;
    std::vector<attribute> attributes;
    dnn_tensor tensor;
    dnn_geometry geometry;
    dnn_operation operation;
    std::shared_ptr<dnn_graph> graph;
    cudnnBackendHeurMode_t mode;
    const dnn_engine *engine;
};

/* The attributes that core/cuda sets: type and count (0: any number), and whether they must be there. */
struct rule {
    cudnnBackendDescriptorType_t of;
    attribute_name name;
    attribute_type type;
    int64_t count;
    bool needed;
};

#define OPERATION(type, direction, first, second, third)                                                               \
    {type, CUDNN_ATTR_OPERATION_CONVOLUTION_##direction##_ALPHA, CUDNN_TYPE_FLOAT, 1, true},                           \
        {type, CUDNN_ATTR_OPERATION_CONVOLUTION_##direction##_BETA, CUDNN_TYPE_FLOAT, 1, true},                        \
        {type, CUDNN_ATTR_OPERATION_CONVOLUTION_##direction##_CONV_DESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, true},      \
        {type, CUDNN_ATTR_OPERATION_CONVOLUTION_##direction##_##first, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, true},        \
        {type, CUDNN_ATTR_OPERATION_CONVOLUTION_##direction##_##second, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, true},       \
    {                                                                                                                  \
        type, CUDNN_ATTR_OPERATION_CONVOLUTION_##direction##_##third, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, true           \
    }

static const cudnnBackendDescriptorType_t tensor_type = CUDNN_BACKEND_TENSOR_DESCRIPTOR,
                                          geometry_type = CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR,
                                          pointwise_type = CUDNN_BACKEND_POINTWISE_DESCRIPTOR,
                                          forward_type = CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                                          data_type = CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                                          filter_type = CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                                          apply_type = CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR,
                                          graph_type = CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR,
                                          heuristics_type = CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR,
                                          plan_type = CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR,
                                          pack_type = CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR;

static const rule rules[] = {
    {tensor_type, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, true},
    {tensor_type, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 0, true},
    {tensor_type, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 0, true},
    {tensor_type, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, true},
    {tensor_type, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, true},
    {tensor_type, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, false},
    {geometry_type, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, true},
    {geometry_type, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, true},
    {geometry_type, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, true},
    {geometry_type, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 0, true},
    {geometry_type, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 0, true},
    {geometry_type, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 0, true},
    {geometry_type, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 0, true},
    {pointwise_type, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, true},
    {pointwise_type, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, true},
    {pointwise_type, CUDNN_ATTR_POINTWISE_NAN_PROPAGATION, CUDNN_TYPE_NAN_PROPOGATION, 1, false},
    {pointwise_type, CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP_SLOPE, CUDNN_TYPE_DOUBLE, 1, false},
    OPERATION(forward_type, FORWARD, X, W, Y),
    OPERATION(data_type, BWD_DATA, DX, W, DY),
    OPERATION(filter_type, BWD_FILTER, X, DW, DY),
    {apply_type, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, true},
    {apply_type, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, true},
    {apply_type, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, false},
    {apply_type, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, true},
    {graph_type, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, true},
    {graph_type, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, true},
    {heuristics_type, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, true},
    {heuristics_type, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, true},
    {plan_type, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, true},
    {plan_type, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, true},
    {pack_type, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, 0, true},
    {pack_type, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, 0, true},
    {pack_type, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, true},
};

int emulated_graphs(void)
{
    return graphs;
}

int emulated_questions(void)
{
    return questions;
}

int emulated_compiled(void)
{
    return compiled;
}

int emulated_plans(void)
{
    return plans;
}

void emulated_plans_take(int milliseconds)
{
    plan_takes = milliseconds;
}

int emulated_runs(void)
{
    return runs;
}

int emulated_packs(void)
{
    return packs;
}

int emulated_streams_told(void)
{
    return streams_told;
}

unsigned emulated_last_engine(void)
{
    return last_engine;
}

int emulated_last_pads(void)
{
    return last_pads;
}

static size_t size_of(attribute_type type)
{
    return type == CUDNN_TYPE_BOOLEAN ? sizeof(bool)
           : type == CUDNN_TYPE_INT64 || type == CUDNN_TYPE_DOUBLE || type == CUDNN_TYPE_VOID_PTR ||
                   type == CUDNN_TYPE_BACKEND_DESCRIPTOR || type == CUDNN_TYPE_HANDLE
               ? 8
               : 4;
}

static const attribute *find(const descriptor *d, attribute_name name)
{
    for (const attribute &a : d->attributes)
        if (a.name == name)
            return &a;
    return nullptr;
}

template <class T> static T value_of(const descriptor *d, attribute_name name, T otherwise = T())
{
    const attribute *const a = find(d, name);
    if (a)
        memcpy(&otherwise, a->bytes.data(), sizeof otherwise);
    return otherwise;
}

static int64_t count_of(const descriptor *d, attribute_name name)
{
    return find(d, name)->count;
}

template <class T> static std::vector<T> values_of(const descriptor *d, attribute_name name)
{
    const attribute *const a = find(d, name);
    std::vector<T> v((size_t)a->count);
    memcpy(v.data(), a->bytes.data(), a->bytes.size());
    return v;
}

static descriptor *child(const descriptor *d, attribute_name name, cudnnBackendDescriptorType_t type)
{
    descriptor *const c = value_of<descriptor *>(d, name);
    if (!c || c->type != type || !c->final)
        emulated_fail("attribute %d of a descriptor of type %d is no finished descriptor of type %d", (int)name,
                      (int)d->type, (int)type);
    return c;
}

static void check_tensor(descriptor *d)
{
    dnn_tensor *const t = &d->tensor;
    const std::vector<int64_t> dim = values_of<int64_t>(d, CUDNN_ATTR_TENSOR_DIMENSIONS),
                               stride = values_of<int64_t>(d, CUDNN_ATTR_TENSOR_STRIDES);
    t->rank = (int)dim.size();
    t->type = value_of<cudnnDataType_t>(d, CUDNN_ATTR_TENSOR_DATA_TYPE);
    t->uid = value_of<int64_t>(d, CUDNN_ATTR_TENSOR_UNIQUE_ID);
    t->align = value_of<int64_t>(d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT);
    t->inner = value_of<bool>(d, CUDNN_ATTR_TENSOR_IS_VIRTUAL);
    if (dim.size() != stride.size() || t->rank < 4 || t->rank > 5)
        emulated_fail("a tensor of %zu dimensions and %zu strides", dim.size(), stride.size());
    if (t->align < 1 || (t->align & (t->align - 1)) != 0)
        emulated_fail("an alignment of %lld bytes", (long long)t->align);
    for (int i = 0; i < t->rank; i++) {
        t->dim[i] = dim[(size_t)i];
        t->stride[i] = stride[(size_t)i];
        if (t->dim[i] < 1 || t->stride[i] < 1)
            emulated_fail("dimension %d is %lld, its stride %lld", i, (long long)t->dim[i], (long long)t->stride[i]);
    }
    if (t->stride[1] != 1)
        emulated_fail("a tensor whose channels are not innermost");
}

static void check_geometry(descriptor *d)
{
    static const attribute_name names[] = {CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_ATTR_CONVOLUTION_DILATIONS,
                                           CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS};
    dnn_geometry *const g = &d->geometry;
    int64_t *const to[] = {g->stride, g->dilation, g->lo, g->hi};
    g->nd = value_of<int64_t>(d, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS);
    for (int k = 0; k < 4; k++) {
        const std::vector<int64_t> v = values_of<int64_t>(d, names[k]);
        if ((int64_t)v.size() != g->nd)
            emulated_fail("%zu numbers for %lld dimensions", v.size(), (long long)g->nd);
        for (size_t i = 0; i < v.size(); i++) {
            to[k][i] = v[i];
            if (v[i] < (k < 2 ? 1 : 0))
                emulated_fail("number %zu of attribute %d is %lld", i, (int)names[k], (long long)v[i]);
        }
    }
    g->arithmetic = value_of<cudnnDataType_t>(d, CUDNN_ATTR_CONVOLUTION_COMP_TYPE);
    if (value_of<cudnnConvolutionMode_t>(d, CUDNN_ATTR_CONVOLUTION_CONV_MODE) != CUDNN_CROSS_CORRELATION)
        emulated_fail("a convolution with its filter turned round");
}

/* A scale: f32, or f64. */
static double number_of(const descriptor *d, attribute_name name)
{
    return find(d, name)->type == CUDNN_TYPE_DOUBLE ? value_of<double>(d, name) : (double)value_of<float>(d, name);
}

static void check_convolution(descriptor *d)
{
    static const attribute_name names[3][6] = {
        {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA},
        {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA},
        {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA}};
    dnn_operation *const op = &d->operation;
    op->kind = d->type == forward_type ? DNN_FORWARD : d->type == data_type ? DNN_DATA : DNN_FILTER;
    const attribute_name *const name = names[op->kind];
    op->x = child(d, name[0], tensor_type)->tensor;
    op->w = child(d, name[1], tensor_type)->tensor;
    op->y = child(d, name[2], tensor_type)->tensor;
    op->geometry = child(d, name[3], geometry_type)->geometry;
    const dnn_geometry &g = op->geometry;
    if (number_of(d, name[4]) != 1 || number_of(d, name[5]) != 0)
        emulated_fail("a convolution that is scaled or added to");
    if (g.arithmetic != (op->x.type == CUDNN_DATA_DOUBLE ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT))
        emulated_fail("a convolution that is computed in type %d", (int)g.arithmetic);
    if (op->x.rank != g.nd + 2 || op->w.rank != g.nd + 2 || op->y.rank != g.nd + 2)
        emulated_fail("tensors of %d, %d, %d dimensions in a convolution of %lld", op->x.rank, op->w.rank, op->y.rank,
                      (long long)g.nd);
    if (op->x.dim[0] != op->y.dim[0] || op->w.dim[0] != op->y.dim[1] || op->x.dim[1] % op->w.dim[1] != 0 ||
        op->y.dim[1] % (op->x.dim[1] / op->w.dim[1]) != 0)
        emulated_fail("samples or channels of a convolution do not fit");
    for (int i = 0; i < g.nd; i++) {
        const int64_t room = op->x.dim[2 + i] + g.lo[i] + g.hi[i] - g.dilation[i] * (op->w.dim[2 + i] - 1) - 1;
        if (room < 0 || room / g.stride[i] + 1 != op->y.dim[2 + i])
            emulated_fail("length %lld of y where %lld is due", (long long)op->y.dim[2 + i],
                          (long long)(room < 0 ? 0 : room / g.stride[i] + 1));
    }
}

static void check_pointwise(descriptor *d)
{
    dnn_operation *const op = &d->operation;
    const descriptor *const what = child(d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, pointwise_type);
    const cudnnPointwiseMode_t mode = value_of<cudnnPointwiseMode_t>(what, CUDNN_ATTR_POINTWISE_MODE);
    const bool add = mode == CUDNN_POINTWISE_ADD;
    op->kind = add ? DNN_ADD : mode == CUDNN_POINTWISE_RELU_FWD ? DNN_RELU : DNN_IDENTITY;
    op->nan = value_of<cudnnNanPropagation_t>(what, CUDNN_ATTR_POINTWISE_NAN_PROPAGATION, CUDNN_NOT_PROPAGATE_NAN) ==
              CUDNN_PROPAGATE_NAN;
    op->slope = value_of<double>(what, CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP_SLOPE, 0);
    op->x = child(d, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, tensor_type)->tensor;
    op->y = child(d, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, tensor_type)->tensor;
    if (add != (find(d, CUDNN_ATTR_OPERATION_POINTWISE_BDESC) != nullptr))
        emulated_fail("an addition of one tensor, or an activation of two");
    if (add)
        op->w = child(d, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, tensor_type)->tensor;
    for (int i = 0; i < op->y.rank; i++)
        if (op->x.dim[i] != op->y.dim[i] || (add && op->w.dim[i] != (i == 1 ? op->y.dim[1] : 1)))
            emulated_fail("dimension %d of a pointwise operation does not fit", i);
}

static bool same(const dnn_tensor &a, const dnn_tensor &b)
{
    bool equal = a.uid == b.uid && a.align == b.align && a.type == b.type && a.rank == b.rank && a.inner == b.inner;
    for (int i = 0; equal && i < a.rank; i++)
        equal = a.dim[i] == b.dim[i] && a.stride[i] == b.stride[i];
    return equal;
}

/* Every number names one tensor; what is virtual is made by one operation and used by a later one. */
static void check_graph(descriptor *d)
{
    std::vector<dnn_tensor> seen, made;
    d->graph = std::make_shared<dnn_graph>();
    for (const descriptor *o : values_of<descriptor *>(d, CUDNN_ATTR_OPERATIONGRAPH_OPS)) {
        if (!o || !o->final ||
            (o->type != forward_type && o->type != data_type && o->type != filter_type && o->type != apply_type))
            emulated_fail("a graph of something that is no finished operation");
        std::vector<const dnn_tensor *> all = o->operation.sources();
        for (const dnn_tensor *t : all) {
            bool found = !t->inner;
            for (size_t i = 0; i < made.size() && !found; i++)
                found = same(made[i], *t);
            if (!found)
                emulated_fail("virtual tensor %lld is used before it is made", (long long)t->uid);
        }
        all.push_back(&o->operation.result());
        for (const dnn_tensor *t : all) {
            for (const dnn_tensor &other : seen)
                if (other.uid == t->uid && !same(other, *t))
                    emulated_fail("two tensors have the number %lld", (long long)t->uid);
            seen.push_back(*t);
        }
        made.push_back(o->operation.result());
        d->graph->operations.push_back(o->operation);
    }
    if (made.empty() || made.back().inner)
        emulated_fail("a graph without a result");
}

static cudnnStatus_t finish(descriptor *d)
{
    switch (d->type) {
    case CUDNN_BACKEND_TENSOR_DESCRIPTOR:
        check_tensor(d);
        break;
    case CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR:
        check_geometry(d);
        break;
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR:
        check_convolution(d);
        break;
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
        check_pointwise(d);
        break;
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR:
        check_graph(d);
        graphs++;
        break;
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR:
        d->graph = child(d, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph_type)->graph;
        d->mode = value_of<cudnnBackendHeurMode_t>(d, CUDNN_ATTR_ENGINEHEUR_MODE);
        questions++;
        return dnn_engines(*d->graph, d->mode).empty() ? CUDNN_STATUS_NOT_SUPPORTED : CUDNN_STATUS_SUCCESS;
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR: {
        const descriptor *const config =
            child(d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
        d->engine = config->engine;
        d->graph = config->graph;
        plans++;
        std::this_thread::sleep_for(std::chrono::milliseconds(plan_takes));
        compiled += d->engine->compiled;
        return d->engine->name == EMULATED_LATE ? CUDNN_STATUS_NOT_SUPPORTED : CUDNN_STATUS_SUCCESS;
    }
    case CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR:
        if (count_of(d, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS) != count_of(d, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS))
            emulated_fail("a pack with more numbers than pointers, or fewer");
        break;
    default:
        break;
    }
    return CUDNN_STATUS_SUCCESS;
}

const char *cudnnGetErrorString(cudnnStatus_t status)
{
    return status == CUDNN_STATUS_SUCCESS ? "CUDNN_STATUS_SUCCESS" : "a status of the emulated cuDNN";
}

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle)
{
    *handle = static_cast<cudnnHandle_t>(calloc(1, sizeof **handle));
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle)
{
    if (descriptors != 0)
        emulated_fail("%d descriptors of cuDNN were not destroyed", descriptors);
    free(handle);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream)
{
    handle->stream = stream;
    streams_told++;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *out)
{
    descriptor *const d = new descriptor();
    d->type = type;
    packs += type == CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR;
    *out = d;
    descriptors++;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t d)
{
    delete static_cast<descriptor *>(d);
    descriptors--;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t of, attribute_name name, attribute_type type,
                                       int64_t count, const void *elements)
{
    descriptor *const d = static_cast<descriptor *>(of);
    for (const rule &r : rules)
        if (r.of == d->type && r.name == name) {
            const bool number = r.type == CUDNN_TYPE_FLOAT && type == CUDNN_TYPE_DOUBLE;
            if ((r.type != type && !number) || count < 1 || (r.count != 0 && r.count != count) || !elements ||
                d->final || find(d, name))
                emulated_fail("attribute %d is set with type %d and %lld elements, or twice, or too late", (int)name,
                              (int)type, (long long)count);
            const char *const from = static_cast<const char *>(elements);
            d->attributes.push_back({name, type, count, std::vector<char>(from, from + (size_t)count * size_of(type))});
            return CUDNN_STATUS_SUCCESS;
        }
    emulated_fail("a descriptor of type %d has no attribute %d", (int)d->type, (int)name);
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t of)
{
    descriptor *const d = static_cast<descriptor *>(of);
    for (const rule &r : rules)
        if (r.of == d->type && r.needed && !find(d, r.name))
            emulated_fail("a descriptor of type %d is finalised without attribute %d", (int)d->type, (int)r.name);
    const cudnnStatus_t status = finish(d);
    d->final = status == CUDNN_STATUS_SUCCESS;
    return status;
}

/* Into descriptors that the caller has made. */
static void give_configs(const descriptor *heuristics, int64_t room, int64_t *count, descriptor **out)
{
    const std::vector<const dnn_engine *> list = dnn_engines(*heuristics->graph, heuristics->mode);
    *count = (int64_t)list.size();
    for (int64_t i = 0; i < room && i < *count; i++) {
        if (!out[i] || out[i]->type != CUDNN_BACKEND_ENGINECFG_DESCRIPTOR)
            emulated_fail("a configuration is read into something else");
        out[i]->engine = list[(size_t)i];
        out[i]->graph = heuristics->graph;
        out[i]->final = true;
    }
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t of, attribute_name name, attribute_type type,
                                       int64_t requested, int64_t *count, void *elements)
{
    const descriptor *const d = static_cast<const descriptor *>(of);
    if (!d->final)
        emulated_fail("attribute %d of an unfinished descriptor is read", (int)name);
    if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS && d->type == heuristics_type && type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
        give_configs(d, requested, count, static_cast<descriptor **>(elements));
    } else if (name == CUDNN_ATTR_ENGINECFG_ENGINE && d->type == CUDNN_BACKEND_ENGINECFG_DESCRIPTOR &&
               type == CUDNN_TYPE_BACKEND_DESCRIPTOR && requested == 1) {
        descriptor *const engine = *static_cast<descriptor **>(elements);
        engine->engine = d->engine;
        engine->final = true;
        *count = 1;
    } else if (name == CUDNN_ATTR_ENGINE_NUMERICAL_NOTE && d->type == CUDNN_BACKEND_ENGINE_DESCRIPTOR &&
               type == CUDNN_TYPE_NUMERICAL_NOTE && requested >= (int64_t)d->engine->notes.size()) {
        *count = (int64_t)d->engine->notes.size();
        for (size_t i = 0; i < d->engine->notes.size(); i++)
            static_cast<cudnnBackendNumericalNote_t *>(elements)[i] = d->engine->notes[i];
    } else if (name == CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE && d->type == CUDNN_BACKEND_ENGINE_DESCRIPTOR &&
               type == CUDNN_TYPE_BEHAVIOR_NOTE && requested >= 1) {
        *count = d->engine->compiled;
        if (d->engine->compiled)
            *static_cast<cudnnBackendBehaviorNote_t *>(elements) = CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION;
    } else if (name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE && d->type == plan_type && type == CUDNN_TYPE_INT64) {
        *static_cast<int64_t *>(elements) = (int64_t)d->engine->workspace;
        *count = 1;
    } else {
        emulated_fail("attribute %d of a descriptor of type %d is read as type %d", (int)name, (int)d->type, (int)type);
    }
    return CUDNN_STATUS_SUCCESS;
}

/* All tensors that are not virtual, each at an address as promised, and nothing else. */
static void check_pack(const dnn_graph &graph, const std::vector<int64_t> &uid, const std::vector<void *> &data)
{
    std::vector<bool> used(uid.size());
    for (const dnn_operation &op : graph.operations) {
        std::vector<const dnn_tensor *> all = op.sources();
        all.push_back(&op.result());
        for (const dnn_tensor *t : all) {
            bool found = t->inner;
            for (size_t i = 0; i < uid.size() && !t->inner; i++)
                if (uid[i] == t->uid) {
                    found = used[i] = true;
                    if (!data[i] || reinterpret_cast<uintptr_t>(data[i]) % (uintptr_t)t->align != 0)
                        emulated_fail("tensor %lld is at %p and was promised at multiples of %lld", (long long)uid[i],
                                      data[i], (long long)t->align);
                    emulated_check_argument(&data[i], sizeof data[i]);
                }
            if (!found)
                emulated_fail("a pack without tensor %lld", (long long)t->uid);
        }
    }
    for (size_t i = 0; i < used.size(); i++)
        if (!used[i])
            emulated_fail("a pack with tensor %lld, which the graph lacks", (long long)uid[i]);
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack)
{
    const descriptor *const p = static_cast<const descriptor *>(plan), *const v = static_cast<const descriptor *>(pack);
    if (!p->final || p->type != plan_type || !v->final || v->type != pack_type)
        emulated_fail("what is executed is no finished plan with a finished pack");
    const std::vector<int64_t> uid = values_of<int64_t>(v, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    const std::vector<void *> data = values_of<void *>(v, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
    void *const workspace = value_of<void *>(v, CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
    check_pack(*p->graph, uid, data);
    if (p->engine->workspace > 0 && !workspace)
        emulated_fail("a plan that wants %zu bytes gets none", p->engine->workspace);
    if (p->engine->name == EMULATED_BROKEN)
        return CUDNN_STATUS_EXECUTION_FAILED;
    dnn_put(handle->stream, *p->engine, p->graph, uid, data, p->engine->workspace > 0 ? workspace : nullptr);
    runs++;
    last_pads = 0;
    for (int i = 0; i < p->graph->operations[0].geometry.nd; i++)
        last_pads += (int)(p->graph->operations[0].geometry.lo[i] + p->graph->operations[0].geometry.hi[i]);
    last_engine = p->engine->name;
    return CUDNN_STATUS_SUCCESS;
}
