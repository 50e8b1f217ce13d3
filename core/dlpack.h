/* Tensors of other libraries, by DLPack: the same memory, shape and type, and no copy. NumPy, PyTorch, JAX and CuPy
 * speak it. Local. */
#ifndef WF_CORE_DLPACK_H
#define WF_CORE_DLPACK_H

#include "core/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DLManagedTensor DLManagedTensor; /* as in <dlpack/dlpack.h> */

/* Returns a DLPack tensor on the memory of `tensor`. It keeps that memory until its deleter is called, also after
 * wf_tensor_free, and counts as a tensor of the context: the deleter is called before the context is freed, on the
 * thread that uses the context. The layout of a distributed tensor is not told, only this rank's part. With a device
 * the call waits for the work on the context's stream. A value that is written through it while a tape needs it makes
 * wrong gradients, without an error. */
DLManagedTensor *wf_tensor_to_dlpack(const wf_tensor *tensor);

/* Returns a tensor on the memory of `managed`, whose deleter is called with it once, when the last handle on the memory
 * is freed: see wf_tensor_wrap. The caller sees to it that what was written there is done. If the call fails, `managed`
 * stays the caller's. WF_ERR_DTYPE for types that Weft does not have, for vectors of several lanes, complex numbers and
 * booleans; WF_ERR_ARGUMENT for memory of another device than the context's, and as wf_tensor_wrap. */
wf_tensor *wf_tensor_from_dlpack(wf_ctx *ctx, DLManagedTensor *managed);

#ifdef __cplusplus
}
#endif
#endif
