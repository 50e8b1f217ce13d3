/* One rank's part of a data set that every rank can read: the samples at some places of the scattered order, each read
 * when it is needed. scatter.c makes it (wf_scatter_opts.each_reads) and says of which mesh and place it is. */
#include "datasets/datasets_impl.h"

#include <stdlib.h>
#include <string.h>

typedef struct state {
    wf_dataset_part part;
    int64_t *index; /* NULL: part.first and the following */
    uint64_t seed;  /* of the scatter */
} state;

static int64_t place_of(const wf_dataset *dataset, int64_t index)
{
    const state *s = dataset->state;
    return s->index ? s->index[index] : s->part.first + index;
}

/* Transforms before the scatter draw in the first epoch what they draw where the root reads, and anew in every epoch.
 */
static wf_sample_key part_key(const wf_dataset *dataset, const wf_sample_key *key, int64_t place)
{
    const state *s = dataset->state;
    return wf_sample_key_before_scatter(s->seed, key->epoch, place);
}

static wf_status part_read(wf_dataset *dataset, int64_t index, const wf_sample_key *key, void *x, int64_t *label)
{
    const int64_t place = place_of(dataset, index);
    const wf_sample_key own = part_key(dataset, key, place);
    WF_TRY(wf_dataset_read(dataset->inner, place, &own, x, label));
    return WF_OK;
}

static wf_status part_read_box(wf_dataset *dataset, int64_t index, const wf_sample_key *key, const wf_box *box, void *x,
                               int64_t *label)
{
    const int64_t place = place_of(dataset, index);
    const wf_sample_key own = part_key(dataset, key, place);
    WF_TRY(wf_dataset_read_box(dataset->inner, place, &own, box, x, label));
    return WF_OK;
}

static void part_free(wf_dataset *dataset)
{
    free(((state *)dataset->state)->index);
    free(dataset->parts);
}

static const wf_dataset_kind part_kind = {
    .name = "part",
    .read = part_read,
    .read_box = part_read_box,
    .free = part_free,
    .concurrent = true,
};

wf_dataset *wf_part_dataset(wf_dataset *inner, wf_dataset_part part, const int64_t *order, uint64_t seed)
{
    wf_dataset *dataset = wf_dataset_new(inner->ctx, &part_kind, inner, sizeof(state));
    if (!dataset)
        return NULL;
    state *s = dataset->state;
    s->part = part;
    s->seed = seed;
    if (order) {
        s->index = wf_malloc(dataset->ctx, ((size_t)part.count + 1) * sizeof *s->index);
        if (!s->index) {
            wf_dataset_free(dataset);
            return wf_error_null();
        }
        /* Only this rank's part of the order is kept. */
        memcpy(s->index, order + part.first, (size_t)part.count * sizeof *s->index);
    }
    /* The inner data set is open already, so nothing is left to be done by an open of this kind. */
    dataset->info = inner->info;
    dataset->info.count = part.count;
    dataset->opened = true;
    return dataset;
}
