/* Reads what a data set has. */
#ifndef WF_TESTS_FUZZ_SAMPLES_H
#define WF_TESTS_FUZZ_SAMPLES_H

#include "datasets/dataset_author.h"
#include "tests/fuzz/fuzz.h"

static inline wf_status fuzz_read(wf_dataset *dataset, int64_t most)
{
    wf_dataset_info info;
    wf_status status;
    WF_TRY(wf_dataset_info_get(dataset, &info));
    const size_t bytes = wf_dataset_sample_bytes(dataset);
    fuzz_need(info.count >= 0 && wf_shape_count(info.shape) >= 0, "impossible sizes");
    /* Exactly as long as a sample, so that the sanitizer sees a byte too many. */
    unsigned char *x = info.count > 0 ? malloc(bytes) : NULL;
    for (int64_t i = 0; i < info.count && i < most; i++) {
        int64_t label = -1;
        WF_TRY_OUT(wf_dataset_read(dataset, i, &(wf_sample_key){0}, x, &label));
        fuzz_need(!info.labels || (label >= 0 && label < info.classes), "a label that is none");
    }
    status = WF_OK;
out:
    free(x);
    return status;
}

/* Reads it and frees it. */
static inline void fuzz_dataset(wf_dataset *dataset, int64_t most)
{
    fuzz_end(fuzz_read(dataset, most));
    wf_dataset_free(dataset);
}

static inline wf_ctx *fuzz_ctx(void)
{
    static wf_ctx *ctx;
    if (!ctx)
        ctx = wf_ctx_new((wf_ctx_opts){.device = "ref"});
    fuzz_need(ctx != NULL, "no context");
    return ctx;
}

#endif
