/* Shares batches: one rank's batches are sent to all, or all ranks read in one agreed order. For ranks that divide a
 * sample, not the batch: spatial, channel or filter parallelism without a mesh's scatter. */
#include "datasets/shared.h"

#include "comm/comm_author.h"
#include "core/archive.h"
#include "datasets/iterator_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct wf_shared_iter {
    wf_comm *comm;
    wf_iter *iter; /* on the root */
    int root;
    /* Elsewhere, of the last batch: its tensors, and their names. */
    wf_tensor *tensor[WF_BATCH_FIELDS];
    char name[WF_BATCH_FIELDS][WF_FIELD_NAME];
};

/* The description of a tensor that is sent to the other ranks; rank -1: there is none. Sent as bytes, so its fields
 * have fixed sizes and no pointer. */
typedef struct form {
    int32_t dtype, order, rank, pad;
    int64_t dim[WF_MAX_RANK];
} form;

typedef struct heading {
    form tensor[WF_BATCH_FIELDS];
    char name[WF_BATCH_FIELDS][WF_FIELD_NAME];
    int64_t target[WF_BATCH_FIELDS];
    int64_t names, size, global, epoch, index, last;
} heading;

/* The root needs an iterator; what the other ranks pass is not read. */
static wf_status check_shared(const wf_comm *comm, const wf_iter *iter, int root)
{
    WF_CHECK(root >= 0 && root < wf_comm_size(comm), WF_ERR_ARGUMENT, "root %d: should be 0 to %d", root,
             wf_comm_size(comm) - 1);
    if (wf_comm_rank(comm) == root)
        WF_NEED(iter);
    return WF_OK;
}

/* The iterator is taken on all ranks; ranks that do not read free theirs. */
wf_shared_iter *wf_shared_batches(wf_comm *comm, wf_iter *iter, int root)
{
    const bool reads = comm && wf_comm_rank(comm) == root;
    const wf_status status = comm ? check_shared(comm, iter, root) : WF_OK;
    wf_shared_iter *shared = comm && status == WF_OK ? wf_calloc(wf_comm_ctx(comm), 1, sizeof *shared) : NULL;
    /* Freed before the checks can return: the caller gave the iterator away, whatever comes of it. */
    if (!shared || !reads)
        wf_iter_free(iter);
    WF_NEED_NULL(comm);
    if (!shared) {
        /* The other ranks would wait for this one's first batch; they get its failure instead. */
        wf_comm_post_failure(comm, wf_error_code());
        return wf_error_null();
    }
    *shared = (wf_shared_iter){.comm = comm, .iter = reads ? iter : NULL, .root = root};
    wf_live_add(wf_comm_ctx(comm), WF_LIVE_ITER, 1);
    return shared;
}

void wf_shared_free(wf_shared_iter *shared)
{
    if (!shared)
        return;
    wf_iter_free(shared->iter);
    for (int i = 0; i < WF_BATCH_FIELDS; i++)
        wf_tensor_free(shared->tensor[i]);
    wf_live_add(wf_comm_ctx(shared->comm), WF_LIVE_ITER, -1);
    free(shared);
}

/* Starts from zeros, since two forms are compared as bytes. */
static form form_of(const wf_tensor *tensor)
{
    form f = {.rank = -1};
    if (!tensor)
        return f;
    f.dtype = (int32_t)tensor->dtype;
    f.order = (int32_t)tensor->order;
    f.rank = tensor->shape.rank;
    memcpy(f.dim, tensor->shape.dim, sizeof f.dim);
    return f;
}

static wf_status read_batch(wf_shared_iter *shared, wf_batch *batch)
{
    WF_TRY(wf_iter_next(shared->iter, batch));
    /* A scattered batch differs from rank to rank, and only the root's would be sent. */
    WF_CHECK(!batch->named[0].tensor->layout.known, WF_ERR_UNSUPPORTED,
             "shared batches of a scattered data set: the root's data set should be whole");
    return WF_OK;
}

/* A tensor for the incoming batch; reuses that of the previous batch if shape and type are equal. */
static wf_status make_room(wf_shared_iter *shared, const form *f, wf_tensor **tensor)
{
    const form has = form_of(*tensor);
    if (memcmp(&has, f, sizeof has) == 0)
        return WF_OK;
    wf_tensor_free(*tensor);
    *tensor = NULL;
    /* A batch may lack a field that the one before had; its tensor is freed then. */
    if (f->rank < 0)
        return WF_OK;
    *tensor = wf_tensor_new_ordered(wf_comm_ctx(shared->comm), (wf_dtype)f->dtype, wf_shape_make(f->rank, f->dim),
                                    (wf_order)f->order);
    return *tensor ? WF_OK : wf_error_take("room for a batch", __FILE__, __LINE__);
}

static heading heading_of(const wf_batch *batch)
{
    heading h = {.names = batch->names,
                 .size = batch->size,
                 .global = batch->global,
                 .epoch = batch->epoch,
                 .index = batch->index,
                 .last = batch->last};
    for (int i = 0; i < WF_BATCH_FIELDS; i++)
        h.tensor[i] = form_of(i < batch->names ? batch->named[i].tensor : NULL);
    for (int i = 0; i < batch->names; i++) {
        snprintf(h.name[i], sizeof h.name[i], "%s", batch->named[i].name);
        h.target[i] = batch->named[i].target;
    }
    return h;
}

static wf_status make_batch(wf_shared_iter *shared, const heading *h, wf_batch *batch)
{
    wf_batch made = {.names = (int)h->names,
                     .size = h->size,
                     .global = h->global,
                     .epoch = h->epoch,
                     .index = h->index,
                     .last = h->last != 0};
    /* Names are copied first: the batch points to this rank's copy, which lives until the next batch. */
    memcpy(shared->name, h->name, sizeof shared->name);
    for (int i = 0; i < WF_BATCH_FIELDS; i++)
        WF_TRY(make_room(shared, &h->tensor[i], &shared->tensor[i]));
    for (int i = 0; i < made.names; i++)
        made.named[i] =
            (wf_batch_tensor){.name = shared->name[i], .tensor = shared->tensor[i], .target = h->target[i] != 0};
    wf_batch_name(&made);
    *batch = made;
    return WF_OK;
}

/* The root's batch is in its own tensors; the others receive into theirs. */
static wf_status receive(wf_shared_iter *shared, const heading *h, wf_batch *batch)
{
    if (!shared->iter)
        WF_TRY(make_batch(shared, h, batch));
    /* The heading said on all ranks which tensors there are, so that all agree on the number of messages. */
    for (int i = 0; i < batch->names; i++)
        WF_TRY(wf_bcast(shared->comm, batch->named[i].tensor, shared->root));
    return WF_OK;
}

/* Collective. The status goes first: a file that the root cannot read is an error of all, and no rank waits for
 * tensors. */
wf_status wf_shared_next(wf_shared_iter *shared, wf_batch *batch)
{
    WF_NEED(shared);
    WF_NEED(batch);
    heading h = {0};
    wf_status status = shared->iter ? read_batch(shared, batch) : WF_OK;
    WF_TRY(wf_bcast_status(shared->comm, status, shared->root));
    if (shared->iter)
        h = heading_of(batch);
    WF_TRY(wf_bcast_bytes(shared->comm, &h, sizeof h, shared->root));
    status = receive(shared, &h, batch);
    return status == WF_OK ? WF_OK : wf_comm_post_failure(shared->comm, status);
}

wf_status wf_shared_archive(wf_shared_iter *shared, wf_archive *archive)
{
    /* The position is the root's; it is sent to all, since every rank writes or reads the archive in step. */
    wf_iter_place place = {0};
    WF_NEED(shared);
    WF_NEED(archive);
    WF_TRY(wf_bcast_status(shared->comm, shared->iter ? wf_iter_place_get(shared->iter, &place) : WF_OK, shared->root));
    WF_TRY(wf_bcast_bytes(shared->comm, &place, sizeof place, shared->root));
    WF_TRY(wf_iter_place_archive(&place, archive));
    if (!wf_archive_loading(archive))
        return WF_OK;
    /* The root may refuse a place, of a data set of another length: then all ranks get its error. */
    return wf_bcast_status(shared->comm, shared->iter ? wf_iter_place_set(shared->iter, &place) : WF_OK, shared->root);
}

wf_status wf_shared_visit(void *shared, wf_archive *archive)
{
    return wf_shared_archive(shared, archive);
}

/* What must be equal; the seed is rank 0's, which the others take. */
typedef struct order {
    int64_t count, size, flags;
    uint64_t options; /* a hash of growing sizes, and of the fields of wf_collate */
    uint64_t seed;
} order;

static wf_status open_whole(wf_dataset *dataset)
{
    WF_NEED(dataset);
    WF_TRY(wf_dataset_open(dataset));
    WF_CHECK(!dataset->mesh, WF_ERR_UNSUPPORTED, "synchronized batches of a scattered data set: should be whole");
    return WF_OK;
}

/* All ranks have the same table, so all find the same difference and none waits for another. */
static wf_status compare(const wf_comm *comm, const order *table)
{
    for (int r = 1; r < wf_comm_size(comm); r++) {
        WF_CHECK(table[r].count == table[0].count, WF_ERR_ARGUMENT,
                 "synchronized batches of %lld samples on rank %s and %lld on rank %s", (long long)table[0].count,
                 WF_RANK(comm, 0), (long long)table[r].count, WF_RANK(comm, r));
        WF_CHECK(table[r].size == table[0].size && table[r].flags == table[0].flags &&
                     table[r].options == table[0].options,
                 WF_ERR_ARGUMENT, "synchronized batches with other options on rank %s than on rank %s",
                 WF_RANK(comm, r), WF_RANK(comm, 0));
    }
    return WF_OK;
}

/* Functions cannot be compared; their fields are. */
static uint64_t hash_options(const wf_batch_opts *opts)
{
    uint64_t hash = 0;
    for (int i = 0; i < WF_BATCH_GROWTHS; i++)
        hash = wf_hash_u64(wf_hash_u64(hash, (uint64_t)opts->grows[i].epoch), (uint64_t)opts->grows[i].size);
    for (const wf_batch_field *f = opts->collate.fields; f && f->name; f++) {
        hash = wf_hash_u64(wf_hash_text(hash, f->name), (uint64_t)f->dtype * 4 + f->varies * 2U + f->target);
        uint64_t pad = 0; /* its bits: they fill memory that ranks should have alike */
        memcpy(&pad, &f->pad, sizeof pad);
        hash = wf_hash_u64(hash, pad);
        for (int d = 0; d < f->shape.rank; d++)
            hash = wf_hash_u64(hash, (uint64_t)f->shape.dim[d]);
    }
    return hash;
}

/* What only this rank can know (its file, its memory) is agreed on before the orders are compared. */
static wf_status agree(wf_comm *comm, wf_dataset *dataset, wf_batch_opts *opts)
{
    void *all = NULL;
    const int ranks = wf_comm_size(comm);
    const size_t bytes = (size_t)ranks * sizeof(order);
    wf_status status = open_whole(dataset);
    if (status == WF_OK)
        status = wf_host_take(comm, bytes, &all);
    /* Judged before the table is sent: a rank that cannot open its data would send numbers of nothing. */
    WF_TRY_OUT(wf_agree_status(comm, status));
    const order mine = {.count = dataset->info.count,
                        .size = opts->size,
                        /* Options as bits of one number. */
                        .flags = opts->shuffle + 2 * opts->drop_last + 4 * opts->once + 8 * opts->raw,
                        .options = hash_options(opts),
                        .seed = opts->seed ? opts->seed : wf_ctx_seed(dataset->ctx)};
    WF_TRY_OUT(wf_allgather_bytes(comm, &mine, sizeof mine, all));
    WF_TRY_OUT(compare(comm, all));
    /* All ranks shuffle by rank 0's seed, so they draw the same order without a message a batch. */
    opts->seed = ((const order *)all)->seed;
out:
    wf_host_give(comm, all, bytes);
    return status;
}

wf_iter *wf_synchronized_batches(wf_comm *comm, wf_dataset *dataset, wf_batch_opts opts)
{
    /* The data set was given away, so it is freed even without a communicator. */
    if (!comm)
        wf_dataset_free(dataset);
    WF_NEED_NULL(comm);
    if (agree(comm, dataset, &opts) == WF_OK)
        return wf_batches(dataset, opts);
    wf_dataset_free(dataset);
    return wf_error_null();
}
