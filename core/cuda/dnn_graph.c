/* From a convolution to a plan of cuDNN's graph API: tensors, operations, graph, engine, plan. Called by dnn_plan.c and
 * dnn_tune.c. A status of cuDNN is no error here: an engine that refuses is followed by the next. Every descriptor that
 * is made is in a list of items, which frees it. */
#include "core/cuda/dnn_impl.h"

#include "core/config_author.h"
#include "core/log.h"

#include <string.h>

/* What is being built. After the first call that fails the others do nothing. */
typedef struct build {
    cudnnHandle_t handle;
    cuda_items *items;
    cudnnStatus_t status;
} build;

typedef cudnnBackendDescriptor_t descriptor;

static descriptor make_descriptor(build *b, cudnnBackendDescriptorType_t type)
{
    descriptor d = NULL;
    /* The list is of fixed length, since descriptors of one graph are few and known. */
    if (b->status == CUDNN_STATUS_SUCCESS && b->items->count == CUDA_ITEMS)
        b->status = CUDNN_STATUS_INTERNAL_ERROR;
    if (b->status == CUDNN_STATUS_SUCCESS)
        b->status = cudnnBackendCreateDescriptor(type, &d);
    if (b->status == CUDNN_STATUS_SUCCESS)
        b->items->item[b->items->count++] = d;
    return d;
}

static void set_attribute(build *b, descriptor d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                          int64_t count, const void *value)
{
    if (b->status == CUDNN_STATUS_SUCCESS)
        b->status = cudnnBackendSetAttribute(d, name, type, count, value);
}

static void set_descriptor(build *b, descriptor d, cudnnBackendAttributeName_t name, descriptor value)
{
    set_attribute(b, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

static void finish(build *b, descriptor d)
{
    if (b->status == CUDNN_STATUS_SUCCESS)
        b->status = cudnnBackendFinalize(d);
}

static void free_items(cuda_items *items)
{
    while (items->count > 0)
        cudnnBackendDestroyDescriptor(items->item[--items->count]);
}

static cudnnDataType_t cudnn_type(wf_dtype dtype)
{
    switch (dtype) {
    case WF_F64:
        return CUDNN_DATA_DOUBLE;
    case WF_BF16:
        return CUDNN_DATA_BFLOAT16;
    case WF_F16:
        return CUDNN_DATA_HALF;
    default:
        return CUDNN_DATA_FLOAT;
    }
}

/* The type of sums, and of values passed from one operation of a graph to the next. */
static cudnnDataType_t arithmetic_of(const cuda_conv_key *key)
{
    return key->dtype == WF_F64 ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT;
}

/* Dense, channels-last. `inner`: passed from one operation to the next, and never in memory. */
static descriptor tensor(build *b, int64_t uid, cudnnDataType_t type, int32_t align, int rank, const int64_t *dim,
                         bool inner)
{
    int64_t stride[2 + WF_MAX_SPATIAL], step = dim[1];
    const int64_t alignment = align;
    const descriptor d = make_descriptor(b, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    /* Spatial dimensions from the last one outwards; channels, dimension 1, are the innermost of all. */
    for (int i = rank - 1; i >= 2; i--) {
        stride[i] = step;
        step *= dim[i];
    }
    stride[0] = step;
    stride[1] = 1;
    set_attribute(b, d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set_attribute(b, d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, rank, dim);
    set_attribute(b, d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, rank, stride);
    set_attribute(b, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &uid);
    set_attribute(b, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    if (inner)
        set_attribute(b, d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &inner);
    finish(b, d);
    return d;
}

/* The shape of an array as cuDNN orders it: samples (or filters), channels, space. */
static void dims_of(const cuda_conv_key *key, cuda_role role, int64_t dim[2 + WF_MAX_SPATIAL])
{
    const int64_t *const length = role == CUDA_X ? key->in : role == CUDA_W ? key->kernel : key->out;
    dim[0] = role == CUDA_W ? key->f : key->n;
    dim[1] = role == CUDA_X ? key->c : role == CUDA_W ? key->c / key->groups : key->f;
    memcpy(dim + 2, length, (size_t)key->nd * sizeof *dim);
}

static descriptor geometry(build *b, const cuda_conv_key *key)
{
    const cudnnDataType_t type = arithmetic_of(key);
    /* What every framework calls convolution: the filter is not flipped. */
    const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    const int64_t nd = key->nd;
    const descriptor d = make_descriptor(b, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
    set_attribute(b, d, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set_attribute(b, d, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
    set_attribute(b, d, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &nd);
    set_attribute(b, d, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, nd, key->dilation);
    set_attribute(b, d, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, nd, key->stride);
    set_attribute(b, d, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, nd, key->lo);
    set_attribute(b, d, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, nd, key->hi);
    finish(b, d);
    return d;
}

/* The names that each direction has for the same things: x, w and y in the order of their roles. */
static const struct names {
    cudnnBackendDescriptorType_t operation;
    cudnnBackendAttributeName_t alpha, beta, geometry, array[CUDA_B];
} names[WF_CUDA_DIRECTIONS] = {
    [WF_CUDA_FORWARD] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                         {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                          CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y}},
    [WF_CUDA_BACKWARD_DATA] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                               CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                               CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
                               CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                               {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY}},
    [WF_CUDA_BACKWARD_FILTER] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                                 CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                                 CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
                                 CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                                 {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                                  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                                  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY}},
};

static descriptor convolution(build *b, const cuda_conv_key *key, const descriptor array[CUDA_B])
{
    const struct names *const name = &names[key->direction];
    /* cuDNN reads alpha and beta in the type of its arithmetic. */
    const bool wide = key->dtype == WF_F64;
    const float alpha = 1, beta = 0;
    const double wide_alpha = 1, wide_beta = 0;
    const cudnnBackendAttributeType_t number = wide ? CUDNN_TYPE_DOUBLE : CUDNN_TYPE_FLOAT;
    const descriptor shape = geometry(b, key), d = make_descriptor(b, name->operation);
    set_descriptor(b, d, name->geometry, shape);
    for (int r = 0; r < CUDA_B; r++)
        set_descriptor(b, d, name->array[r], array[r]);
    set_attribute(b, d, name->alpha, number, 1, wide ? (const void *)&wide_alpha : &alpha);
    set_attribute(b, d, name->beta, number, 1, wide ? (const void *)&wide_beta : &beta);
    finish(b, d);
    return d;
}

/* y = x + with, or where there is nothing to add `mode` of x. NaN comes through. */
static descriptor pointwise(build *b, const cuda_conv_key *key, cudnnPointwiseMode_t mode, descriptor x,
                            descriptor with, descriptor y)
{
    const cudnnDataType_t type = arithmetic_of(key);
    const cudnnNanPropagation_t nan = CUDNN_PROPAGATE_NAN;
    const double slope = (double)key->slope;
    const descriptor what = make_descriptor(b, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    set_attribute(b, what, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    set_attribute(b, what, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &type);
    if (mode == CUDNN_POINTWISE_RELU_FWD) {
        set_attribute(b, what, CUDNN_ATTR_POINTWISE_NAN_PROPAGATION, CUDNN_TYPE_NAN_PROPOGATION, 1, &nan);
        set_attribute(b, what, CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP_SLOPE, CUDNN_TYPE_DOUBLE, 1, &slope);
    }
    finish(b, what);
    const descriptor d = make_descriptor(b, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    set_descriptor(b, d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, what);
    set_descriptor(b, d, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    if (with)
        set_descriptor(b, d, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, with);
    set_descriptor(b, d, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    finish(b, d);
    return d;
}

/* What follows the convolution, from `now` to `last`: the bias, the activation, the step to f32. Returns the number of
 * operations. */
static int epilogue(build *b, const cuda_conv_key *key, const int64_t *dim, descriptor now, descriptor last,
                    descriptor *op)
{
    const cudnnDataType_t type = arithmetic_of(key);
    const bool active = key->act != WF_ACT_NONE;
    const int rank = key->nd + 2;
    int count = 0;
    /* A key without a bias has no alignment of one. */
    if (key->align[CUDA_B] != 0) {
        const int64_t along[2 + WF_MAX_SPATIAL] = {1, dim[1], 1, 1, 1};
        const descriptor bias =
            tensor(b, CUDA_B, cudnn_type((wf_dtype)key->dtype), key->align[CUDA_B], rank, along, false);
        const descriptor sum = active ? tensor(b, CUDA_ROLES + 1, type, 16, rank, dim, true) : last;
        op[count++] = pointwise(b, key, CUDNN_POINTWISE_ADD, now, bias, sum);
        now = sum;
    }
    if (active)
        op[count++] = pointwise(b, key, CUDNN_POINTWISE_RELU_FWD, now, NULL, last);
    if (key->wide)
        op[count++] = pointwise(b, key, CUDNN_POINTWISE_IDENTITY, now, NULL, last);
    return count;
}

bool wf_cuda_key_composed(const cuda_conv_key *key)
{
    return key->align[CUDA_B] != 0 || key->act != WF_ACT_NONE || key->wide;
}

/* The operations of a key: the convolution and what follows. Returns their number. No engine has a convolution whose
 * result is of another type than its inputs: such a result is virtual, and is then copied. */
static int operations(build *b, const cuda_conv_key *key, descriptor op[3])
{
    const cuda_role result = wf_cuda_key_result(key);
    const int rank = key->nd + 2;
    int64_t dim[2 + WF_MAX_SPATIAL];
    descriptor array[CUDA_B];
    for (int r = 0; r < CUDA_B; r++) {
        dims_of(key, (cuda_role)r, dim);
        array[r] = tensor(b, r, cudnn_type(wf_cuda_key_dtype(key, (cuda_role)r)), key->align[r], rank, dim, false);
    }
    dims_of(key, result, dim);
    const descriptor last = array[result];
    if (wf_cuda_key_composed(key))
        array[result] = tensor(b, CUDA_ROLES, arithmetic_of(key), 16, rank, dim, true);
    op[0] = convolution(b, key, array);
    return 1 + epilogue(b, key, dim, array[result], last, op + 1);
}

static descriptor graph_of(build *b, const cuda_conv_key *key)
{
    descriptor op[3];
    const int count = operations(b, key, op);
    const descriptor d = make_descriptor(b, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    set_attribute(b, d, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &b->handle);
    set_attribute(b, d, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, count, op);
    finish(b, d);
    return d;
}

/* What an engine's notes say: whether it computes as is asked (sums in f32, inputs as they are, tf32 only where it is
 * allowed), and whether it is compiled when its plan is made, which takes seconds. An engine that says nothing is not
 * taken. */
static bool allowed(descriptor engine, const cuda_conv_key *key, bool *compiled)
{
    const wf_config *const config = wf_config_get();
    cudnnBackendNumericalNote_t note[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    cudnnBackendBehaviorNote_t behaviour[CUDNN_BEHAVIOR_NOTE_TYPE_COUNT];
    int64_t count = 0, more = 0;
    if (cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                 CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &count, note) != CUDNN_STATUS_SUCCESS ||
        cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CUDNN_TYPE_BEHAVIOR_NOTE,
                                 CUDNN_BEHAVIOR_NOTE_TYPE_COUNT, &more, behaviour) != CUDNN_STATUS_SUCCESS)
        return false;
    *compiled = false;
    bool strict = false;
    for (int64_t i = 0; i < more; i++)
        *compiled = *compiled || behaviour[i] == CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION;
    for (int64_t i = 0; i < count; i++)
        switch (note[i]) {
        /* Winograd tiles of 6 x 6 and more lose digits that the stated tolerances do not allow. */
        case CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS:
        case CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION:
        case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6:
        case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13:
            return false;
        case CUDNN_NUMERICAL_NOTE_TENSOR_CORE:
            if (key->dtype == WF_F32 && !config->tf32)
                return false;
            break;
        case CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC:
            if (config->deterministic)
                return false;
            break;
        case CUDNN_NUMERICAL_NOTE_STRICT_NAN_PROP:
            strict = true;
            break;
        default:
            break;
        }
    /* The ReLU of other engines may turn NaN into 0, which hides a failed step. */
    return strict || key->act == WF_ACT_NONE;
}

/* A configuration's engine is read into a descriptor made for it. */
static bool config_allowed(descriptor config, const cuda_conv_key *key, bool *compiled)
{
    descriptor engine = NULL;
    int64_t count = 0;
    if (cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine) != CUDNN_STATUS_SUCCESS)
        return false;
    const bool read = cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                                               &count, &engine) == CUDNN_STATUS_SUCCESS;
    const bool fits = read && allowed(engine, key, compiled);
    cudnnBackendDestroyDescriptor(engine);
    return fits;
}

/* Configurations that one mode of the heuristics names, the best first, made anew at `config`. The caller destroys
 * those that it does not use. */
static int ask(descriptor graph, cudnnBackendHeurMode_t mode, descriptor config[CUDA_CANDIDATES])
{
    cuda_items items = {.count = 0};
    build b = {.items = &items, .status = CUDNN_STATUS_SUCCESS};
    const descriptor d = make_descriptor(&b, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    int64_t wanted = 0, given = 0;
    int made = 0;
    set_descriptor(&b, d, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    set_attribute(&b, d, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    finish(&b, d);
    if (b.status == CUDNN_STATUS_SUCCESS)
        b.status =
            cudnnBackendGetAttribute(d, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &wanted, NULL);
    while (b.status == CUDNN_STATUS_SUCCESS && made < wanted && made < CUDA_CANDIDATES) {
        b.status = cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &config[made]);
        made += b.status == CUDNN_STATUS_SUCCESS;
    }
    if (b.status == CUDNN_STATUS_SUCCESS && made > 0)
        b.status = cudnnBackendGetAttribute(d, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, made,
                                            &given, config);
    /* cuDNN may give fewer than it promised; the rest goes back. */
    const int kept = b.status == CUDNN_STATUS_SUCCESS ? (int)(given < made ? given : made) : 0;
    while (made > kept)
        cudnnBackendDestroyDescriptor(config[--made]);
    free_items(&items);
    return kept;
}

/* An engine that wants more would take memory that the model needs. */
static const size_t most_workspace = (size_t)1 << 30;

/* Returns true if the engine accepts the configuration, which cuDNN only says when a plan is finalised. */
static bool accept(cudnnHandle_t handle, descriptor config, cuda_conv_plan *plan)
{
    build b = {.handle = handle, .items = &plan->items, .status = CUDNN_STATUS_SUCCESS};
    int64_t bytes = 0, count = 0;
    const descriptor d = make_descriptor(&b, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    set_attribute(&b, d, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    set_descriptor(&b, d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
    finish(&b, d);
    if (b.status == CUDNN_STATUS_SUCCESS)
        b.status =
            cudnnBackendGetAttribute(d, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &count, &bytes);
    if (b.status != CUDNN_STATUS_SUCCESS || bytes < 0 || (size_t)bytes > most_workspace) {
        free_items(&plan->items);
        return false;
    }
    plan->plan = d;
    plan->workspace = (size_t)bytes;
    /* The plan refers to its configuration as long as it lives. */
    plan->items.item[plan->items.count++] = config;
    return true;
}

/* A graph that cannot be built has no candidates: the search is then empty, not an error. */
void wf_cuda_search_open(cudnnHandle_t handle, const cuda_conv_key *key, cuda_search *search)
{
    *search = (cuda_search){.handle = handle, .key = key};
    build b = {.handle = handle, .items = &search->items, .status = CUDNN_STATUS_SUCCESS};
    const descriptor graph = graph_of(&b, key);
    search->graph = b.status == CUDNN_STATUS_SUCCESS ? graph : NULL;
}

/* The heuristics are asked one after another, each where those before it have named no engine that will do. Mode A is
 * the best and takes 1 to 2 ms a graph, INSTANT approximates it, FALLBACK takes 10 and names what is slow but takes
 * nearly everything: two passes are better than that, where there is a choice. */
static bool ask_more(cuda_search *s)
{
    static const cudnnBackendHeurMode_t modes[CUDA_MODES] = {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_INSTANT,
                                                             CUDNN_HEUR_MODE_FALLBACK};
    const bool named = s->count > 0;
    /* A composed key asks mode A alone; and once an engine was found, no further mode is asked. */
    if (!s->graph || s->mode == (wf_cuda_key_composed(s->key) ? 1 : CUDA_MODES) || s->found > 0)
        return false;
    s->mode += named && s->mode == 1; /* INSTANT only where mode A has nothing to say */
    s->at = 0;
    s->count = ask(s->graph, modes[s->mode], s->config);
    s->mode++;
    return true;
}

/* The configuration at s->at, which is taken out of the list. */
static bool take_config(cuda_search *s, int compiled_left, cuda_conv_plan *plan)
{
    const descriptor config = s->config[s->at++];
    bool compiled = false;
    /* The number of a candidate over all modes: a search that goes on after a failed run begins behind it. place counts
     * through all modes, so that `from` means the same in a second search. */
    const int place = (s->mode - 1) * CUDA_CANDIDATES + s->at - 1;
    const bool taken = place >= s->from && config_allowed(config, s->key, &compiled) &&
                       (!compiled || compiled_left > 0) && accept(s->handle, config, plan);
    if (!taken) {
        cudnnBackendDestroyDescriptor(config);
        return false;
    }
    plan->candidate = place;
    plan->compiled = compiled;
    s->found++;
    return true;
}

bool wf_cuda_search_next(cuda_search *s, int compiled_left, cuda_conv_plan *plan)
{
    do {
        while (s->at < s->count)
            if (take_config(s, compiled_left, plan))
                return true;
    } while (ask_more(s));
    return false;
}

void wf_cuda_search_close(cuda_search *s, const cuda_conv_plan *plan)
{
    while (s->at < s->count)
        cudnnBackendDestroyDescriptor(s->config[s->at++]);
    free_items(&s->items);
    wf_log_write(WF_LOG_DEBUG, "cuDNN: direction %d, %lld samples, %lld to %lld channels: candidate %d%s of %d modes",
                 (int)s->key->direction, (long long)s->key->n, (long long)s->key->c, (long long)s->key->f,
                 plan->plan ? plan->candidate : -1, plan->plan && plan->compiled ? " (compiled)" : "", s->mode);
}

/* Compilation for what may as well be computed in two passes is left to those who measure. */
void wf_cuda_plan_build(cudnnHandle_t handle, int from, cuda_conv_plan *plan)
{
    cuda_search search;
    wf_cuda_search_open(handle, &plan->key, &search);
    search.from = from;
    wf_cuda_search_next(&search, wf_cuda_key_composed(&plan->key) ? 0 : 1, plan);
    wf_cuda_search_close(&search, plan);
}

static void drop_pack(cuda_pack *p)
{
    if (p->pack)
        cudnnBackendDestroyDescriptor(p->pack);
    *p = (cuda_pack){0};
}

void wf_cuda_plan_drop(cuda_conv_plan *plan)
{
    for (int i = 0; i < CUDA_PACKS; i++)
        drop_pack(&plan->pack[i]);
    free_items(&plan->items);
    plan->plan = NULL;
    plan->workspace = 0;
}

/* Returns the pack of these arrays, in place of the oldest one if there is none; its `pack` is NULL where cuDNN refuses
 * it. Buffers of a model come back in each step, so packs are found again. */
static cuda_pack *pack_of(cudnnHandle_t handle, cuda_conv_plan *plan, void *const data[CUDA_ROLES], void *workspace,
                          cudnnStatus_t *status)
{
    static const int64_t uid[CUDA_ROLES] = {CUDA_X, CUDA_W, CUDA_Y, CUDA_B};
    const int64_t count = plan->key.align[CUDA_B] ? CUDA_ROLES : CUDA_B;
    cuda_items items = {.count = 0};
    build b = {.handle = handle, .items = &items, .status = CUDNN_STATUS_SUCCESS};
    for (int i = 0; i < CUDA_PACKS; i++) {
        cuda_pack *const kept = &plan->pack[i];
        if (kept->pack && kept->workspace == workspace && memcmp(kept->data, data, (size_t)count * sizeof *data) == 0)
            return kept;
    }
    cuda_pack *const made = &plan->pack[plan->next_pack];
    plan->next_pack = (plan->next_pack + 1) % CUDA_PACKS;
    drop_pack(made);
    const descriptor pack = make_descriptor(&b, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    set_attribute(&b, pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, uid);
    set_attribute(&b, pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, data);
    set_attribute(&b, pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    finish(&b, pack);
    *status = b.status;
    if (b.status != CUDNN_STATUS_SUCCESS) {
        free_items(&items);
        return made;
    }
    made->pack = pack;
    made->workspace = workspace;
    memcpy(made->data, data, (size_t)count * sizeof *data);
    return made;
}

cudnnStatus_t wf_cuda_plan_put(cudnnHandle_t handle, cuda_conv_plan *plan, void *const data[CUDA_ROLES],
                               void *workspace)
{
    cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
    const cuda_pack *const arrays = pack_of(handle, plan, data, workspace, &status);
    return status == CUDNN_STATUS_SUCCESS ? cudnnBackendExecute(handle, plan->plan, arrays->pack) : status;
}
