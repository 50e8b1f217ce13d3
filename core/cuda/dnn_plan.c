/* The handles of a context, and its cache of convolution plans. A plan is found by its key and made at the first use of
 * a shape; what no engine takes is remembered as well. Models of changing shapes do not fill the memory: beyond
 * WF_PLANS_MOST the oldest plan goes. */
#include "core/cuda/dnn_impl.h"

#include "core/captured_author.h"
#include "core/config_author.h"
#include "core/log.h"
#include "core/profile_author.h"

#include <stdlib.h>
#include <string.h>

wf_status wf_cuda_dnn_error(cudnnStatus_t status, const char *call, const char *file, int line)
{
    return wf_error_set(WF_ERR_STATE, file, line, "%s: %s", call, cudnnGetErrorString(status));
}

uint64_t wf_cuda_hash(const void *key, size_t bytes)
{
    /* Keys are whole words, and zeroed before they are filled, so their bytes can be compared and hashed. */
    uint64_t hash = 1;
    for (size_t at = 0; at + sizeof hash <= bytes; at += sizeof hash) {
        uint64_t word;
        memcpy(&word, (const char *)key + at, sizeof word);
        hash = (hash ^ word) * 0x9E3779B97F4A7C15U;
        hash ^= hash >> 29;
    }
    return hash;
}

int32_t wf_cuda_alignment(const void *data)
{
    int32_t align = 16;
    /* Engines ask for up to 16 bytes; views and halo frames may begin anywhere. */
    while ((uintptr_t)data % (uintptr_t)align != 0)
        align /= 2;
    return align;
}

wf_status wf_cuda_dnn_here(wf_cuda *own, wf_cuda_dnn **dnn)
{
    if (!own->dnn) {
        own->dnn = wf_calloc(own->ctx, 1, sizeof *own->dnn);
        if (!own->dnn)
            return wf_error_take("plans", __FILE__, __LINE__);
    }
    if (!own->dnn->cudnn)
        TRY_DNN(cudnnCreate(&own->dnn->cudnn));
    /* Made at first use: a program without convolutions pays for neither library. */
    if (!own->dnn->blas)
        TRY_BLAS(cublasLtCreate(&own->dnn->blas));
    *dnn = own->dnn;
    return WF_OK;
}

static void plan_free(wf_cuda *own, cuda_conv_plan *plan)
{
    wf_cuda_plan_drop(plan);
    free(plan);
    own->dnn->convolutions--;
    own->ctx->plans--;
}

/* Frees the plan that was not used for the longest time, once the device is done with it. What a captured step replays
 * stays, and while one is captured the host cannot wait: then the cache grows. */
static wf_status drop_oldest_plan(wf_cuda *own)
{
    cuda_conv_plan **oldest = NULL;
    if (own->dnn->convolutions < WF_PLANS_MOST || wf_ctx_capturing(own->ctx))
        return WF_OK;
    for (int b = 0; b < CUDA_BUCKETS; b++)
        for (cuda_conv_plan **at = &own->dnn->convolution[b]; *at; at = &(*at)->next)
            if (!(*at)->captured && (!oldest || (*at)->used < (*oldest)->used))
                oldest = at;
    if (!oldest)
        return WF_OK;
    WF_TRY(wf_cuda_wait_stream(own, own->stream));
    cuda_conv_plan *const plan = *oldest;
    *oldest = plan->next;
    plan_free(own, plan);
    return WF_OK;
}

void wf_cuda_dnn_free(wf_cuda *own)
{
    wf_cuda_dnn *const dnn = own->dnn;
    if (!dnn)
        return;
    for (int b = 0; b < CUDA_BUCKETS; b++)
        for (cuda_conv_plan *plan = dnn->convolution[b], *next; plan; plan = next) {
            next = plan->next;
            plan_free(own, plan);
        }
    wf_cuda_products_free(own);
    if (dnn->cudnn)
        cudnnDestroy(dnn->cudnn);
    if (dnn->blas)
        cublasLtDestroy(dnn->blas);
    free(dnn);
    own->dnn = NULL;
}

/* Returns true for the composed keys that cuDNN has engines for without compiling them, so that it is worth a question:
 * tests/offline says if that still holds. No such engine has a ReLU that keeps NaN. */
static bool precompiled(const cuda_conv_key *key)
{
    return key->direction == WF_CUDA_FORWARD && key->align[CUDA_B] != 0 && key->act == WF_ACT_NONE;
}

void wf_cuda_plan_build_timed(wf_cuda *own, int from, cuda_conv_plan *plan)
{
    const int64_t start = wf_profile_clock();
    wf_cuda_plan_build(own->dnn->cudnn, from, plan);
    own->ctx->planning_ns += wf_profile_clock() - start;
}

/* Without measurement, composed keys are not built unless an engine is ready made: the caller has the two passes. */
static wf_status plan_new(wf_cuda *own, const cuda_conv_key *key, cuda_conv_plan **out)
{
    cuda_conv_plan *const plan = wf_calloc(own->ctx, 1, sizeof *plan);
    *out = plan;
    if (!plan)
        return wf_error_take("plan of a convolution", __FILE__, __LINE__);
    plan->key = *key;
    if (wf_config_get()->autotune)
        return wf_cuda_plan_tune(own, plan);
    if (!wf_cuda_key_composed(key) || precompiled(key))
        wf_cuda_plan_build_timed(own, 0, plan);
    return WF_OK;
}

wf_status wf_cuda_plan_find(wf_cuda *own, const cuda_conv_key *key, cuda_conv_plan **plan)
{
    _Static_assert(sizeof *key % sizeof(uint64_t) == 0, "a key is a whole number of words");
    wf_cuda_dnn *dnn = NULL;
    WF_TRY(wf_cuda_dnn_here(own, &dnn));
    cuda_conv_plan **const head = &dnn->convolution[wf_cuda_hash(key, sizeof *key) % CUDA_BUCKETS];
    cuda_conv_plan *found = *head;
    while (found && memcmp(&found->key, key, sizeof *key) != 0)
        found = found->next;
    if (!found) {
        WF_TRY(drop_oldest_plan(own));
        const wf_status status = plan_new(own, key, &found);
        /* A failure is not remembered, so the next call asks again. */
        if (status != WF_OK) {
            free(found);
            return wf_error_frame(status, __FILE__, __LINE__, __func__);
        }
        found->next = *head;
        *head = found;
        dnn->convolutions++;
        own->ctx->plans++;
    }
    /* A count, not a time: only the order matters. */
    found->used = ++dnn->uses;
    found->captured = found->captured || wf_ctx_capturing(own->ctx);
    /* An entry without a plan says that no engine takes this key; it is not asked for again. */
    *plan = found->plan ? found : NULL;
    return WF_OK;
}

/* A handle works on one stream at a time; setting it is a call, so it is made only when the stream has changed. */
wf_status wf_cuda_dnn_stream(wf_cuda *own)
{
    wf_cuda_dnn *const dnn = own->dnn;
    if (dnn->stream == own->stream)
        return WF_OK;
    TRY_DNN(cudnnSetStream(dnn->cudnn, own->stream));
    dnn->stream = own->stream;
    return WF_OK;
}

wf_status wf_cuda_plan_run(wf_cuda *own, cuda_conv_plan *plan, void *const data[CUDA_ROLES], void *workspace,
                           bool *done)
{
    cudnnHandle_t const handle = own->dnn->cudnn;
    WF_TRY(wf_cuda_dnn_stream(own));
    const cudnnStatus_t status = wf_cuda_plan_put(handle, plan, data, workspace);
    *done = status == CUDNN_STATUS_SUCCESS;
    /* A plan that has run once does not fail for its shape: the error is the device's. */
    if (!*done && plan->ran)
        TRY_DNN(status);
    /* An engine may refuse only when it runs: the next candidate takes its place, for this and all later calls. */
    if (!*done) {
        wf_log_write(WF_LOG_DEBUG, "cuDNN: candidate %d fails in its first run: %s", plan->candidate,
                     cudnnGetErrorString(status));
        wf_cuda_plan_drop(plan);
        wf_cuda_plan_build_timed(own, plan->candidate + 1, plan);
    }
    plan->ran = *done;
    return WF_OK;
}

cuda_role wf_cuda_key_result(const cuda_conv_key *key)
{
    if (key->direction == WF_CUDA_FORWARD)
        return CUDA_Y;
    return key->direction == WF_CUDA_BACKWARD_DATA ? CUDA_X : CUDA_W;
}

wf_dtype wf_cuda_key_dtype(const cuda_conv_key *key, cuda_role role)
{
    return key->wide && role == wf_cuda_key_result(key) ? WF_F32 : (wf_dtype)key->dtype;
}

/* As many bytes as the dense arrays of a call with this key, to be measured with. */
size_t wf_cuda_key_bytes(const cuda_conv_key *key, cuda_role role)
{
    const int64_t *const length = role == CUDA_X ? key->in : role == CUDA_W ? key->kernel : key->out;
    int64_t count = role == CUDA_X   ? key->n * key->c
                    : role == CUDA_W ? key->f * (key->c / key->groups)
                                     : key->n * key->f;
    if (role == CUDA_B)
        count = key->direction == WF_CUDA_FORWARD ? key->f : key->c;
    for (int d = 0; role != CUDA_B && d < key->nd; d++)
        count *= length[d];
    return (size_t)count * wf_dtype_size(wf_cuda_key_dtype(key, role));
}
