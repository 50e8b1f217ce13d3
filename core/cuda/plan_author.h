/* The time of a convolution by the best engine that cuDNN itself offers: for benchmarks, which measure the slots
 * against it. The library does not call it. Exchanges have plans of their own (comm/plan_author.h). */
#ifndef WF_CORE_CUDA_PLAN_AUTHOR_H
#define WF_CORE_CUDA_PLAN_AUTHOR_H

#include "core/kernels_author.h"

typedef enum wf_cuda_direction {
    WF_CUDA_FORWARD = 0,
    WF_CUDA_BACKWARD_DATA,
    WF_CUDA_BACKWARD_FILTER,
    WF_CUDA_DIRECTIONS
} wf_cuda_direction;

/* Milliseconds of the fastest engine of cuDNN for a convolution alone, on arrays of its own, out of those whose
 * precision the settings allow; -1 where none takes it. Of args, x, w and y say shapes, type and alignment; bias and
 * epilogue are ignored. On a context of the device "cuda"; waits for the device. */
wf_status wf_cuda_conv_best(wf_ctx *ctx, wf_cuda_direction direction, const wf_conv_args *args, double *ms);

#endif
