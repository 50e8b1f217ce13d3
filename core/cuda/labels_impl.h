/* Labels, and numbers of rows, that a kernel reads.
 *
 * A label out of range cannot be an error of the call, which returns before the kernel runs. The kernel leaves the row
 * out and fills in the record that the next to_host turns into the error. */
#ifndef WF_CORE_CUDA_LABELS_IMPL_H
#define WF_CORE_CUDA_LABELS_IMPL_H

#include "core/cuda/kernel_impl.h"

struct label_source {
    const void *data;
    wf_dtype dtype;
    int64_t classes, ignored;
    cuda_label_kind kind;
    int32_t *claim;
    cuda_label *record;

    __device__ int64_t read(int64_t row) const
    {
        return dtype == WF_U8    ? (int64_t) static_cast<const uint8_t *>(data)[row]
               : dtype == WF_I32 ? (int64_t) static_cast<const int32_t *>(data)[row]
                                 : static_cast<const int64_t *>(data)[row];
    }

    /* -1 where it is ignored or out of range. */
    __device__ int64_t at(int64_t row) const
    {
        const int64_t label = read(row);
        if (wf_is_ignored(label, ignored))
            return -1;
        if (label >= 0 && label < classes)
            return label;
        if (atomicCAS(claim, 0, 1) == 0) {
            record->label = label;
            record->row = row;
            record->classes = classes;
            record->kind = kind;
            __threadfence_system();
            record->filled = 1;
        }
        return -1;
    }
};

inline wf_status labels_of(wf_ctx *ctx, const wf_array *labels, int64_t ignored, int64_t classes, wf_cuda **own,
                           label_source *out, cuda_label_kind kind = CUDA_LABEL)
{
    WF_CHECK(labels->dtype == WF_U8 || labels->dtype == WF_I32 || labels->dtype == WF_I64, WF_ERR_DTYPE,
             "%s are %s; they must be u8, i32 or i64",
             kind == CUDA_LABEL   ? "labels"
             : kind == CUDA_INDEX ? "indices"
                                  : "places",
             wf_dtype_name(labels->dtype));
    WF_TRY(wf_cuda_here(ctx, own));
    *out = label_source{labels->data, labels->dtype, classes, ignored, kind, (*own)->claim, (*own)->label};
    return WF_OK;
}

#endif
