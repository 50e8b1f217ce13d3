/* Chosen where cuDNN and cuBLASLt are absent: convolutions and products say so. */
#include "core/cuda/cuda_impl.h"

#define NEEDS(library) WF_FAIL(WF_ERR_UNSUPPORTED, "device \"cuda\": this build of Weft has no " library)

void wf_cuda_dnn_free(wf_cuda *own)
{
}

wf_status wf_cuda_conv_forward(wf_ctx *ctx, const wf_conv_args *args)
{
    NEEDS("cuDNN");
}

wf_status wf_cuda_conv_backward_data(wf_ctx *ctx, const wf_conv_args *args)
{
    NEEDS("cuDNN");
}

wf_status wf_cuda_conv_backward_filter(wf_ctx *ctx, const wf_conv_args *args)
{
    NEEDS("cuDNN");
}

wf_status wf_cuda_matmul(wf_ctx *ctx, const wf_matmul_args *args)
{
    NEEDS("cuBLASLt");
}
