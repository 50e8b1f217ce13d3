#include "datasets/dataset_author.h"

#include <stdlib.h>

wf_dataset *wf_dataset_new(wf_ctx *ctx, const wf_dataset_kind *kind, wf_dataset *inner, size_t state_bytes)
{
    if (!ctx) {
        wf_dataset_free(inner);
        return NULL;
    }
    wf_dataset *dataset = wf_calloc(ctx, 1, sizeof *dataset);
    void *state = dataset ? wf_calloc(ctx, 1, state_bytes ? state_bytes : 1) : NULL;
    if (!state) {
        free(dataset);
        wf_dataset_free(inner);
        return wf_error_null();
    }
    *dataset = (wf_dataset){.kind = kind, .ctx = ctx, .inner = inner, .state = state};
    wf_live_add(ctx, WF_LIVE_DATASET, 1);
    return dataset;
}

void wf_dataset_free(wf_dataset *dataset)
{
    if (!dataset)
        return;
    if (dataset->kind->free)
        dataset->kind->free(dataset);
    if (!dataset->inner)
        free(dataset->parts);
    wf_dataset_free(dataset->inner);
    free(dataset->state);
    wf_live_add(dataset->ctx, WF_LIVE_DATASET, -1);
    free(dataset);
}

wf_status wf_dataset_open(wf_dataset *dataset)
{
    WF_NEED(dataset);
    if (dataset->opened)
        return WF_OK;
    if (dataset->inner) {
        WF_TRY(wf_dataset_open(dataset->inner));
        dataset->info = dataset->inner->info;
        dataset->comm = dataset->inner->comm;
        dataset->parts = dataset->inner->parts;
        dataset->reshuffled = dataset->inner->reshuffled;
    }
    if (dataset->kind->open)
        WF_TRY(dataset->kind->open(dataset));
    dataset->opened = true;
    return WF_OK;
}

wf_status wf_dataset_info_get(wf_dataset *dataset, wf_dataset_info *info)
{
    WF_TRY(wf_dataset_open(dataset));
    WF_NEED(info);
    *info = dataset->info;
    return WF_OK;
}

int64_t wf_dataset_count(wf_dataset *dataset)
{
    if (!dataset || wf_dataset_open(dataset) != WF_OK)
        return 0;
    return dataset->info.count;
}

wf_status wf_dataset_read(wf_dataset *dataset, int64_t index, const wf_sample_key *key, void *x, int64_t *label)
{
    WF_CHECK(index >= 0 && index < dataset->info.count, WF_ERR_ARGUMENT, "%s: sample %lld is not in [0, %lld)",
             dataset->kind->name, (long long)index, (long long)dataset->info.count);
    int64_t unused;
    WF_TRY(dataset->kind->read(dataset, index, key, x, label ? label : &unused));
    return WF_OK;
}

size_t wf_dataset_sample_bytes(const wf_dataset *dataset)
{
    return (size_t)wf_shape_count(dataset->info.shape) * wf_dtype_size(dataset->info.dtype);
}

uint64_t wf_dataset_depth(const wf_dataset *dataset)
{
    uint64_t depth = 0;
    for (const wf_dataset *d = dataset->inner; d; d = d->inner)
        depth++;
    return depth;
}
