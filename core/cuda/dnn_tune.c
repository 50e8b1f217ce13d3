/* Choice of an engine by measurement, on arrays of its own: those of the call may be in use, or not there yet. Only
 * with WEFT_AUTOTUNE, and never while a step is captured. Ranks measure for themselves, so they may choose different
 * engines; results then differ by rounding. */
#include "core/cuda/dnn_impl.h"

#include "core/profile_author.h"

/* The first run pays for loading the kernel. Compiled engines take seconds each to make, so only a few are tried. */
enum { WARM = 1, TIMED = 5, ENGINES = 12, MOST_COMPILED = 2 };

typedef struct trial {
    wf_cuda *own;
    void *data[CUDA_ROLES];
    size_t bytes[CUDA_ROLES];
    cudaEvent_t start, stop;
} trial;

static wf_status trial_open(trial *t, const cuda_conv_key *key)
{
    static const wf_random numbers = {.seed = 1, .stream = 2};
    for (int r = 0; r < CUDA_ROLES; r++) {
        /* The key has no bias. */
        if (r == CUDA_B && key->align[CUDA_B] == 0)
            continue;
        t->bytes[r] = wf_cuda_key_bytes(key, (cuda_role)r);
        WF_TRY(wf_pool_take(t->own->ctx, t->bytes[r], &t->data[r]));
        const wf_dtype dtype = wf_cuda_key_dtype(key, (cuda_role)r);
        const int64_t n = (int64_t)(t->bytes[r] / wf_dtype_size(dtype));
        const wf_array a = {.data = t->data[r], .dtype = dtype, .shape = WF_SHAPE(n)};
        wf_random random = numbers;
        random.global = a.shape;
        random.box = wf_box_of_shape(a.shape);
        /* Numbers that the work in question has: zeros draw less power, and so run faster. */
        WF_TRY(wf_cuda_random(t->own->ctx, WF_NORMAL, &random, 0, 1, &a));
    }
    TRY_CUDA(cudaEventCreateWithFlags(&t->start, cudaEventDefault));
    TRY_CUDA(cudaEventCreateWithFlags(&t->stop, cudaEventDefault));
    return WF_OK;
}

/* The stream may still use the memory: the next owner's work comes behind it on the same stream. */
static void trial_close(trial *t)
{
    for (int r = 0; r < CUDA_ROLES; r++)
        wf_pool_give(t->own->ctx, t->data[r], t->bytes[r]);
    if (t->start)
        cudaEventDestroy(t->start);
    if (t->stop)
        cudaEventDestroy(t->stop);
}

/* What follows a plan in a second pass: the bias and activation of a key, or the step of its result to f32. */
typedef struct second {
    const cuda_conv_key *key; /* NULL: nothing follows */
    void *narrow;             /* where the first pass puts what the second one converts */
} second;

/* A dense array of the role's size, whatever its shape: the passes that are measured read every element once. */
static wf_array flat(const cuda_conv_key *key, cuda_role role, wf_dtype dtype, void *data)
{
    const size_t size = wf_dtype_size(wf_cuda_key_dtype(key, role));
    const wf_shape shape = WF_SHAPE((int64_t)(wf_cuda_key_bytes(key, role) / size));
    return (wf_array){.data = data, .dtype = dtype, .shape = shape};
}

/* What the caller would do after a plan without the fused part, so that both ways are compared by their whole time. */
static wf_status second_pass(const trial *t, const second *then)
{
    const cuda_conv_key *const key = then->key;
    const cuda_role result = wf_cuda_key_result(key);
    const wf_dtype dtype = (wf_dtype)key->dtype;
    const wf_epilogue act = {.act = (wf_act)key->act, .slope = (double)key->slope};
    if (key->wide) {
        const wf_array from = flat(key, result, dtype, then->narrow), to = flat(key, result, WF_F32, t->data[result]);
        const wf_strided of = wf_array_strided(&from), into = wf_array_strided(&to);
        return wf_cuda_copy(t->own->ctx, &of, &into, false);
    }
    wf_array y = flat(key, result, dtype, t->data[result]), bias = flat(key, CUDA_B, dtype, t->data[CUDA_B]);
    const int64_t c = bias.shape.dim[0], rows = y.shape.dim[0] / c;
    y.shape = WF_SHAPE(rows, c);
    return wf_cuda_bias_epilogue(t->own->ctx, key->align[CUDA_B] ? &bias : NULL, &act, &y);
}

/* The shortest of some runs, in milliseconds; below 0 where the engine fails. The shortest, since whatever else runs on
 * the device only adds. */
static wf_status trial_run(const trial *t, cuda_conv_plan *plan, const second *then, float *best)
{
    cudnnHandle_t const handle = t->own->dnn->cudnn;
    void *workspace = NULL, *data[CUDA_ROLES];
    for (int r = 0; r < CUDA_ROLES; r++)
        data[r] = t->data[r];
    if (then->narrow)
        data[wf_cuda_key_result(&plan->key)] = then->narrow;
    *best = -1;
    WF_TRY(wf_cuda_workspace(t->own, plan->workspace, &workspace));
    for (int i = 0; i < WARM + TIMED; i++) {
        float ms = 0;
        TRY_CUDA(cudaEventRecord(t->start, t->own->stream));
        if (wf_cuda_plan_put(handle, plan, data, workspace) != CUDNN_STATUS_SUCCESS) {
            *best = -1;
            return WF_OK;
        }
        if (then->key)
            WF_TRY(second_pass(t, then));
        TRY_CUDA(cudaEventRecord(t->stop, t->own->stream));
        WF_TRY(wf_cuda_wait(t->own, t->stop));
        TRY_CUDA(cudaEventElapsedTime(&ms, t->start, t->stop));
        if (i >= WARM && (*best < 0 || ms < *best))
            *best = ms;
    }
    return WF_OK;
}

/* Moves what cuDNN knows a plan by. The key and the place in the cache stay with `to`. */
static void plan_move(cuda_conv_plan *to, cuda_conv_plan *from)
{
    wf_cuda_plan_drop(to);
    to->plan = from->plan;
    to->items = from->items;
    to->workspace = from->workspace;
    to->candidate = from->candidate;
    to->compiled = from->compiled;
    from->plan = NULL;
    from->items.count = 0;
}

/* The fastest candidate and its milliseconds; -1 where none runs. The graph is built once, a plan finalised once. */
static wf_status fastest(const trial *t, cuda_conv_plan *plan, float *least)
{
    static const second nothing = {0};
    cuda_search search;
    wf_status status = WF_OK;
    int compiled = MOST_COMPILED;
    *least = -1;
    wf_cuda_search_open(t->own->dnn->cudnn, &plan->key, &search);
    for (int i = 0; i < ENGINES && status == WF_OK; i++) {
        /* `now` owns a plan until it turns out to be the fastest; then `plan` does. */
        cuda_conv_plan now = {.key = plan->key};
        float ms = -1;
        if (!wf_cuda_search_next(&search, compiled, &now))
            break;
        compiled -= now.compiled;
        status = trial_run(t, &now, &nothing, &ms);
        if (status == WF_OK && ms >= 0 && (*least < 0 || ms < *least)) {
            *least = ms;
            plan_move(plan, &now);
        }
        wf_cuda_plan_drop(&now);
    }
    wf_cuda_search_close(&search, plan);
    return status;
}

/* The milliseconds of the two passes that compute the same as a composed key; -1 where the first has no engine. */
static wf_status two_passes(const trial *t, const cuda_conv_key *key, float *ms)
{
    cuda_conv_key first = *key;
    cuda_conv_plan *plan = NULL;
    second then = {.key = key};
    first.act = WF_ACT_NONE;
    first.slope = 0;
    first.align[CUDA_B] = 0;
    first.wide = 0;
    *ms = -1;
    /* Found by the cache, so measured as well, once. */
    WF_TRY(wf_cuda_plan_find(t->own, &first, &plan));
    if (!plan)
        return WF_OK;
    const size_t bytes = wf_cuda_key_bytes(&first, CUDA_W);
    if (key->wide)
        WF_TRY(wf_pool_take(t->own->ctx, bytes, &then.narrow));
    const wf_status status = trial_run(t, plan, &then, ms);
    wf_pool_give(t->own->ctx, then.narrow, bytes);
    return status;
}

static wf_status try_all(wf_cuda *own, cuda_conv_plan *plan, float *ms)
{
    trial t = {.own = own};
    float two = -1;
    WF_TRY(wf_cuda_dnn_stream(own));
    wf_status status = trial_open(&t, &plan->key);
    if (status == WF_OK)
        status = fastest(&t, plan, ms);
    /* Only composed keys can be computed in two passes. */
    if (status == WF_OK && plan->plan && wf_cuda_key_composed(&plan->key))
        status = two_passes(&t, &plan->key, &two);
    /* If two passes are as fast, the fused plan is not kept: the caller then takes the two passes at once. */
    if (status != WF_OK || (two >= 0 && two <= *ms))
        wf_cuda_plan_drop(plan);
    trial_close(&t);
    return status;
}

wf_status wf_cuda_plan_tune(wf_cuda *own, cuda_conv_plan *plan)
{
    enum cudaStreamCaptureStatus capture;
    float ms;
    TRY_CUDA(cudaStreamIsCapturing(own->stream, &capture));
    /* A stream that is being captured cannot be waited for, so the first choice of the heuristics is taken. */
    if (capture != cudaStreamCaptureStatusNone) {
        wf_cuda_plan_build_timed(own, 0, plan);
        return WF_OK;
    }
    const int64_t start = wf_profile_clock();
    const wf_status status = try_all(own, plan, &ms);
    own->ctx->tuning_ns += wf_profile_clock() - start;
    return status;
}

wf_status wf_cuda_plan_best(wf_cuda *own, const cuda_conv_key *key, double *ms)
{
    wf_cuda_dnn *dnn = NULL;
    cuda_conv_plan plan = {.key = *key};
    float least = -1;
    WF_TRY(wf_cuda_dnn_here(own, &dnn));
    WF_TRY(try_all(own, &plan, &least));
    wf_cuda_plan_drop(&plan);
    *ms = (double)least;
    return WF_OK;
}
