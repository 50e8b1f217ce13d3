/* Data sets: numbered samples of one shape and type, with an optional integer label each.
 *
 * Constructors of readers are lazy: files are opened at the first use, or by wf_scatter_dataset on the root. A
 * decorator (a data set that wraps another one) owns the data set that it is given, also when it fails.
 */
#ifndef WF_DATASETS_DATASET_H
#define WF_DATASETS_DATASET_H

#include "core/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct wf_dataset wf_dataset;

typedef enum wf_dataset_split {
    WF_TRAIN_SET = 0,
    WF_TEST_SET,
} wf_dataset_split;

typedef struct wf_dataset_info {
    int64_t count;   /* samples held here */
    wf_dtype dtype;  /* of x */
    wf_shape shape;  /* of one sample, without the batch dimension */
    bool labels;     /* there is a label for each sample */
    int64_t classes; /* labels are in [0, classes); 0: no labels */
} wf_dataset_info;

/* Opens the files if they are not open. */
wf_status wf_dataset_open(wf_dataset *dataset) WF_NODISCARD;
wf_status wf_dataset_info_get(wf_dataset *dataset, wf_dataset_info *info) WF_NODISCARD;
/* Samples held here; 0 on failure or NULL. */
int64_t wf_dataset_count(wf_dataset *dataset);
void wf_dataset_free(wf_dataset *dataset);

#ifdef __cplusplus
}
#endif
#endif
