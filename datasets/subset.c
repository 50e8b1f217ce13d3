/* Chosen samples of another data set, by number. A decorator that changes the numbers and nothing else. */
#include "datasets/dataset_author.h"
#include "datasets/readers.h"

#include <stdlib.h>
#include <string.h>

typedef struct subset {
    int64_t count;
    int64_t *index;
} subset;

/* The indices can be checked only here: the size of the inner data set is unknown until it is opened. */
static wf_status subset_open(wf_dataset *dataset)
{
    const subset *s = dataset->state;
    /* Ranks would need different numbers of samples than the scatter told the others. */
    WF_CHECK(!dataset->mesh, WF_ERR_UNSUPPORTED,
             "subset of a scattered data set: the ranks cannot know each other's choice; take it before scattering");
    for (int64_t i = 0; i < s->count; i++)
        WF_CHECK(s->index[i] >= 0 && s->index[i] < dataset->inner->info.count, WF_ERR_ARGUMENT,
                 "subset: index %lld at %lld is not in [0, %lld)", (long long)s->index[i], (long long)i,
                 (long long)dataset->inner->info.count);
    dataset->info.count = s->count;
    return WF_OK;
}

/* The key stays: transforms below draw by the number that the sample has in the subset. */
static wf_status subset_read(wf_dataset *dataset, int64_t index, const wf_sample_key *key, void *x, int64_t *label)
{
    const subset *s = dataset->state;
    WF_TRY(wf_dataset_read(dataset->inner, s->index[index], key, x, label));
    return WF_OK;
}

static wf_status subset_read_box(wf_dataset *dataset, int64_t index, const wf_sample_key *key, const wf_box *box,
                                 void *x, int64_t *label)
{
    const subset *s = dataset->state;
    WF_TRY(wf_dataset_read_box(dataset->inner, s->index[index], key, box, x, label));
    return WF_OK;
}

static void subset_free(wf_dataset *dataset)
{
    free(((subset *)dataset->state)->index);
}

static const wf_dataset_kind subset_kind = {
    .name = "subset",
    .open = subset_open,
    .read = subset_read,
    .read_box = subset_read_box,
    .free = subset_free,
    .concurrent = true,
};

wf_dataset *wf_subset(wf_dataset *inner, int64_t count, const int64_t *index)
{
    wf_dataset *dataset = wf_dataset_new(inner ? inner->ctx : NULL, &subset_kind, inner, sizeof(subset));
    if (!dataset)
        return NULL;
    subset *s = dataset->state;
    if (count < 0 || (count > 0 && !index)) {
        wf_dataset_free(dataset);
        WF_FAIL_NULL(WF_ERR_ARGUMENT, "a subset of %lld samples%s", (long long)count, index ? "" : " without indices");
    }
    s->count = count;
    /* The program's list may be gone by the first read. */
    s->index = wf_malloc(dataset->ctx, count ? (size_t)count * sizeof *index : 1);
    if (!s->index) {
        wf_dataset_free(dataset);
        return wf_error_null();
    }
    if (count > 0)
        memcpy(s->index, index, (size_t)count * sizeof *index);
    return dataset;
}
