/* Steps as CUDA graphs: begin, end, launch. Called by core/autograd/captured.c through the table. Nothing here decides
 * what may be captured; it only refuses what would wait. */
#include "core/cuda/cuda_impl.h"

/* What this thread calls that waits for the device, or that CUDA may make wait, is refused at once instead of giving a
 * graph that lacks it; what other threads do, those of NCCL among them, is no part of the step. */
wf_status wf_cuda_capture_begin(wf_ctx *ctx)
{
    wf_cuda *own;
    WF_TRY(wf_cuda_here(ctx, &own));
    WF_TRY(wf_cuda_not_capturing(own, "a capture begins"));
    WF_CHECK(own->stream == own->own, WF_ERR_STATE,
             "a capture begins while another stream than the context's is in use");
    /* ThreadLocal: a wait by a thread of NCCL or of MPI would otherwise break this capture. */
    TRY_CUDA(cudaStreamBeginCapture(own->own, cudaStreamCaptureModeThreadLocal));
    own->capturing = true;
    return WF_OK;
}

static wf_status instantiate(cudaGraph_t made, wf_graph **graph)
{
    cudaGraphExec_t ready;
    TRY_CUDA(cudaGraphInstantiate(&ready, made, 0));
    *graph = (wf_graph *)(void *)ready;
    return WF_OK;
}

wf_status wf_cuda_capture_end(wf_ctx *ctx, wf_graph **graph)
{
    wf_cuda *own;
    cudaGraph_t made = NULL;
    WF_TRY(wf_cuda_here(ctx, &own));
    /* Cleared first: the steps below may fail, and the context must be usable for further work on its own stream. */
    own->capturing = false;
    own->stream = own->own;
    const cudaError_t ended = cudaStreamEndCapture(own->own, &made);
    wf_status status = WF_OK;
    if (graph && ended != cudaSuccess)
        status = wf_cuda_error(ended, "cudaStreamEndCapture(own->own, &made)", __FILE__, __LINE__);
    else if (graph)
        status = instantiate(made, graph);
    if (made)
        cudaGraphDestroy(made);
    cudaGetLastError(); /* the error of a capture that was given up is not reported */
    return status;
}

wf_status wf_cuda_graph_launch(wf_ctx *ctx, wf_graph *graph)
{
    wf_cuda *own;
    WF_TRY(wf_cuda_here(ctx, &own));
    TRY_CUDA(cudaGraphLaunch((cudaGraphExec_t)(void *)graph, own->own));
    return WF_OK;
}

void wf_cuda_graph_free(wf_ctx *ctx, wf_graph *graph)
{
    if (graph)
        cudaGraphExecDestroy((cudaGraphExec_t)(void *)graph);
}
