/* The IDX format, for wf_idx and wf_mnist. */
#ifndef WF_DATASETS_IDX_IMPL_H
#define WF_DATASETS_IDX_IMPL_H

#include "datasets/rows_impl.h"

/* Loads both files (labels may be NULL) and fills info. classes 0: the largest label plus 1; else every label is
 * checked against it. */
wf_status wf_idx_load(wf_ctx *ctx, const char *images, const char *labels, int64_t classes, wf_rows *rows,
                      wf_dataset_info *info) WF_NODISCARD;

#endif
