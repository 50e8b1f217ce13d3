/* Choice of an engine by measurement, on arrays of its own: those of the call may be in use, or not there yet. */
#include "core/cuda/dnn_impl.h"

enum { WARM = 1, TIMED = 5, ENGINES = 12 };

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
        if (r == CUDA_B && key->align[CUDA_B] == 0)
            continue;
        t->bytes[r] = wf_cuda_key_bytes(key, (cuda_role)r);
        WF_TRY(wf_pool_take(t->own->ctx, t->bytes[r], &t->data[r]));
        const int64_t n = (int64_t)(t->bytes[r] / wf_dtype_size((wf_dtype)key->dtype));
        const wf_array a = {.data = t->data[r], .dtype = (wf_dtype)key->dtype, .shape = WF_SHAPE(n)};
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

static void trial_close(trial *t)
{
    for (int r = 0; r < CUDA_ROLES; r++)
        wf_pool_give(t->own->ctx, t->data[r], t->bytes[r]);
    if (t->start)
        cudaEventDestroy(t->start);
    if (t->stop)
        cudaEventDestroy(t->stop);
}

/* The shortest of some runs, in milliseconds; below 0 where the engine fails. */
static wf_status trial_run(const trial *t, const cuda_conv_plan *plan, float *best)
{
    cudnnHandle_t const handle = t->own->dnn->cudnn;
    void *workspace = NULL;
    *best = -1;
    WF_TRY(wf_cuda_workspace(t->own, plan->workspace, &workspace));
    for (int i = 0; i < WARM + TIMED; i++) {
        float ms = 0;
        TRY_CUDA(cudaEventRecord(t->start, t->own->stream));
        if (wf_cuda_plan_put(handle, plan, t->data, workspace) != CUDNN_STATUS_SUCCESS) {
            *best = -1;
            return WF_OK;
        }
        TRY_CUDA(cudaEventRecord(t->stop, t->own->stream));
        TRY_CUDA(cudaEventSynchronize(t->stop));
        TRY_CUDA(cudaEventElapsedTime(&ms, t->start, t->stop));
        if (i >= WARM && (*best < 0 || ms < *best))
            *best = ms;
    }
    return WF_OK;
}

/* Its place among the candidates and its milliseconds; both -1 where none runs. */
static wf_status fastest(const trial *t, cuda_conv_plan *plan, int *place, float *least)
{
    cudnnHandle_t const handle = t->own->dnn->cudnn;
    *least = -1;
    *place = -1;
    for (int i = 0, from = 0; i < ENGINES; i++) {
        float ms = -1;
        wf_cuda_plan_build(handle, from, plan);
        if (!plan->plan)
            break;
        from = plan->candidate + 1;
        const wf_status status = trial_run(t, plan, &ms);
        wf_cuda_plan_drop(plan);
        WF_TRY(status);
        if (ms >= 0 && (*least < 0 || ms < *least)) {
            *least = ms;
            *place = plan->candidate;
        }
    }
    return WF_OK;
}

static wf_status try_all(wf_cuda *own, cuda_conv_plan *plan, int *place, float *ms)
{
    trial t = {.own = own};
    TRY_DNN(cudnnSetStream(own->dnn->cudnn, own->stream));
    wf_status status = trial_open(&t, &plan->key);
    if (status == WF_OK)
        status = fastest(&t, plan, place, ms);
    trial_close(&t);
    return status;
}

wf_status wf_cuda_plan_tune(wf_cuda *own, cuda_conv_plan *plan)
{
    enum cudaStreamCaptureStatus capture;
    int place = 0;
    float ms;
    TRY_CUDA(cudaStreamIsCapturing(own->stream, &capture));
    /* A stream that is being captured cannot be waited for. */
    if (capture == cudaStreamCaptureStatusNone)
        WF_TRY(try_all(own, plan, &place, &ms));
    if (place >= 0)
        wf_cuda_plan_build(own->dnn->cudnn, place, plan);
    return WF_OK;
}

wf_status wf_cuda_plan_best(wf_cuda *own, const cuda_conv_key *key, double *ms)
{
    wf_cuda_dnn *dnn = NULL;
    cuda_conv_plan plan = {.key = *key};
    float least = -1;
    int place;
    WF_TRY(wf_cuda_dnn_here(own, &dnn));
    WF_TRY(try_all(own, &plan, &place, &least));
    *ms = (double)least;
    return WF_OK;
}
