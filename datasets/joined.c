/* Joins the data sets that the ranks already have into one. The only message is about their sizes; samples stay
 * where they are. */
#include "comm/comm_author.h"
#include "datasets/dataset_author.h"
#include "datasets/scatter.h"

#include <stdlib.h>
#include <string.h>

typedef struct joined {
    wf_comm *comm;
    wf_dataset_info info; /* of this rank's part */
    wf_dataset_part *parts;
} joined;

static wf_status joined_open(wf_dataset *dataset)
{
    const joined *j = dataset->state;
    dataset->mesh = wf_comm_mesh(j->comm);
    dataset->info = j->info;
    dataset->parts = j->parts;
    return WF_OK;
}

/* Reads are local: a rank reads its own samples only. */
static wf_status joined_read(wf_dataset *dataset, int64_t index, const wf_sample_key *key, void *x, int64_t *label)
{
    return wf_dataset_read(dataset->inner, index, key, x, label);
}

static void joined_free(wf_dataset *dataset)
{
    free(((joined *)dataset->state)->parts);
}

/* No read_box: wf_dataset_read_box then cuts the box out of a whole sample. */
static const wf_dataset_kind joined_kind = {
    .name = "joined", .open = joined_open, .read = joined_read, .free = joined_free, .concurrent = true};

/* Fails on this rank alone, which is why the caller agrees on the status before the first message. */
static wf_status open_mine(const wf_dataset *dataset)
{
    WF_TRY(wf_check(dataset));
    WF_TRY(wf_dataset_open(dataset->inner));
    WF_CHECK(!dataset->inner->mesh, WF_ERR_ARGUMENT, "join: the data set is spread over ranks already");
    return WF_OK;
}

/* An empty part has no shape of its own to compare. */
static bool alike(const wf_dataset_info *a, const wf_dataset_info *b)
{
    return a->dtype == b->dtype && wf_shape_equal(a->shape, b->shape) && a->labels == b->labels;
}

/* The first rank that has samples determines their shape and type. */
static wf_status compare(const wf_comm *comm, const wf_dataset_info *all, int *first)
{
    const int size = wf_comm_size(comm);
    char here[WF_SHAPE_TEXT], there[WF_SHAPE_TEXT];
    /* If all parts are empty the last rank's description stands for all. */
    *first = 0;
    while (*first < size - 1 && all[*first].count == 0)
        ++*first;
    const wf_dataset_info *a = &all[*first];
    for (int r = *first + 1; r < size; r++)
        WF_CHECK(all[r].count == 0 || alike(a, &all[r]), WF_ERR_SHAPE,
                 "join: samples are %s %s%s on rank %s, %s %s%s on rank %s", wf_dtype_name(a->dtype),
                 wf_shape_text(a->shape, here), a->labels ? " with labels" : "", WF_RANK(comm, *first),
                 wf_dtype_name(all[r].dtype), wf_shape_text(all[r].shape, there), all[r].labels ? " with labels" : "",
                 WF_RANK(comm, r));
    return WF_OK;
}

/* The parts follow each other in the order of ranks. */
static wf_status lay_out(joined *j, const wf_dataset_info *all)
{
    const int size = wf_comm_size(j->comm);
    int64_t classes = 0;
    int first;
    WF_TRY(compare(j->comm, all, &first));
    for (int r = 0; r < size; r++) {
        j->parts[r] =
            (wf_dataset_part){.first = r ? j->parts[r - 1].first + j->parts[r - 1].count : 0, .count = all[r].count};
        /* The largest number of classes: labels of all parts must fit. */
        classes = all[r].count && all[r].classes > classes ? all[r].classes : classes;
    }
    j->info = all[first];
    j->info.classes = classes;
    j->info.count = all[wf_comm_rank(j->comm)].count;
    return WF_OK;
}

static wf_status prepare(wf_comm *comm, wf_dataset *dataset, wf_dataset_info **all)
{
    const size_t size = (size_t)wf_comm_size(comm);
    WF_TRY(open_mine(dataset));
    joined *j = dataset->state;
    j->comm = comm;
    j->parts = wf_malloc(dataset->ctx, size * sizeof *j->parts);
    *all = wf_malloc(dataset->ctx, size * sizeof **all);
    return j->parts && *all ? WF_OK : WF_ERR_MEMORY;
}

static wf_status join(wf_comm *comm, wf_dataset *dataset)
{
    wf_dataset_info mine, *all = NULL;
    wf_status status;
    WF_TRY_OUT(wf_agree_status(comm, prepare(comm, dataset, &all)));
    memset(&mine, 0, sizeof mine); /* the padding is sent, too */
    mine = dataset->inner->info;
    /* One record of each rank; no sample is sent. */
    WF_TRY_OUT(wf_allgather_bytes(comm, &mine, sizeof mine, all));
    WF_TRY_OUT(lay_out(dataset->state, all));
out:
    free(all);
    return status;
}

/* Takes the inner data set over, also on failure. */
wf_dataset *wf_joined_dataset(wf_comm *comm, wf_dataset *dataset)
{
    wf_dataset *out = wf_dataset_new(dataset ? dataset->ctx : NULL, &joined_kind, dataset, sizeof(joined));
    const wf_status status = comm ? join(comm, out) : WF_OK;
    if (comm && status == WF_OK)
        return out;
    wf_dataset_free(out);
    WF_NEED_NULL(comm);
    wf_error_frame(status, __FILE__, __LINE__, __func__);
    return wf_error_null();
}
