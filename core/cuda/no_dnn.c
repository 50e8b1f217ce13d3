/* Chosen where cuDNN and cuBLASLt are absent: convolutions and products say so. */
#include "core/cuda/cuda_impl.h"

#define NEEDS(library) WF_FAIL(WF_ERR_UNSUPPORTED, "device \"cuda\": this build of Weft has no " library)

void wf_cuda_dnn_free(wf_cuda *own)
{
}

wf_status wf_cuda_conv_forward(wf_ctx *ctx, const wf_conv_geom *geom, const wf_array *x, const wf_array *w,
                               const wf_array *bias, const wf_epilogue *epilogue, const wf_array *y)
{
    NEEDS("cuDNN");
}

wf_status wf_cuda_conv_backward_data(wf_ctx *ctx, const wf_conv_geom *geom, const wf_array *dy, const wf_array *w,
                                     const wf_array *bias, const wf_epilogue *epilogue, const wf_array *dx)
{
    NEEDS("cuDNN");
}

wf_status wf_cuda_conv_backward_filter(wf_ctx *ctx, const wf_conv_geom *geom, const wf_array *x, const wf_array *dy,
                                       const wf_array *dw, const wf_array *dbias, bool accumulate)
{
    NEEDS("cuDNN");
}

wf_status wf_cuda_matmul(wf_ctx *ctx, const wf_array *a, bool a_transposed, const wf_array *b, bool b_transposed,
                         const wf_array *bias, const wf_array *c, bool accumulate)
{
    NEEDS("cuBLASLt");
}
