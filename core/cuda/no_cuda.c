/* Chosen by CMake where CUDA is absent. Asking for the device is the error, so the rest of the library needs no #ifdef.
 */
#include "core/kernels_author.h"

bool wf_cuda_found(void)
{
    return false;
}

const wf_kernels *wf_kernels_cuda(void)
{
    WF_FAIL_NULL(WF_ERR_UNSUPPORTED, "device \"cuda\": this build of Weft has no CUDA; use \"cpu\"");
}
