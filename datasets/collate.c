/* Batches of several tensors: a function of the program makes them from the samples of a batch. Threads of wf_prefetch
 * run it; the length of fields that vary is agreed on by the main thread, which may send. */
#include "comm/comm.h"
#include "datasets/iterator_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Local: fields are the program's, and the same on all ranks of a mesh (datasets/shared.c compares them). */
static wf_status check_field(const wf_batch_field *all, const wf_batch_field *f)
{
    char text[WF_SHAPE_TEXT];
    WF_CHECK(strlen(f->name) > 0 && strlen(f->name) < WF_FIELD_NAME, WF_ERR_ARGUMENT,
             "collate: the name \"%s\" of a field has %zu characters: should be 1 to %d", f->name, strlen(f->name),
             WF_FIELD_NAME - 1);
    for (const wf_batch_field *other = all; other < f; other++)
        WF_CHECK(strcmp(other->name, f->name) != 0, WF_ERR_ARGUMENT, "collate: two fields are named %s", f->name);
    WF_CHECK(wf_dtype_size(f->dtype) > 0, WF_ERR_DTYPE, "collate: %d, of field %s, is no type", (int)f->dtype, f->name);
    WF_CHECK(f->shape.rank >= 0 && f->shape.rank < WF_MAX_RANK && wf_shape_count(f->shape) >= 0, WF_ERR_SHAPE,
             "collate: rows of field %s have shape %s: rank should be below %d", f->name, wf_shape_text(f->shape, text),
             WF_MAX_RANK);
    WF_CHECK(!f->varies || (f->shape.rank >= 1 && f->shape.dim[0] >= 1), WF_ERR_SHAPE,
             "collate: field %s varies, with rows of shape %s: should have the most of dimension 0", f->name,
             wf_shape_text(f->shape, text));
    /* Trimming moves rows of one order in memory; floats of three dimensions are channels-last. */
    WF_CHECK(
        !f->varies || f->shape.rank < 3 || !wf_dtype_is_float(f->dtype), WF_ERR_UNSUPPORTED,
        "collate: field %s varies, with rows of shape %s: of floats that vary it should have one or two dimensions",
        f->name, wf_shape_text(f->shape, text));
    return WF_OK;
}

/* The iterator has copies: the program's list may be gone by the first batch. */
static wf_iter_field copy_field(const wf_batch_field *f)
{
    const wf_dataset_info row = {.dtype = f->dtype, .shape = f->shape};
    wf_iter_field copy = {.present = true,
                          .varies = f->varies,
                          .target = f->target,
                          .pad = f->pad,
                          .dtype = f->dtype,
                          .shape = f->shape,
                          .row_bytes = (size_t)wf_shape_count(f->shape) * wf_dtype_size(f->dtype),
                          .format = wf_row_format_make(&row, f->dtype, true)};
    copy.order = copy.format.order;
    snprintf(copy.name, sizeof copy.name, "%s", f->name);
    return copy;
}

wf_status wf_collate_check(wf_iter *iter, const wf_collate *collate)
{
    int n = 0;
    WF_CHECK(!collate->function == !collate->fields, WF_ERR_ARGUMENT, "collate: %s",
             collate->function ? "a function without fields" : "fields without a function");
    if (!collate->function)
        return WF_OK;
    /* A function reads whole samples, of which a rank of a sharded batch has a box. */
    WF_CHECK(!iter->batcher.opts.sharded, WF_ERR_ARGUMENT,
             "collate: the function reads whole samples: wf_batch_opts.sharded should not be set");
    for (const wf_batch_field *f = collate->fields; f->name; f++) {
        WF_CHECK(n < WF_BATCH_FIELDS, WF_ERR_ARGUMENT, "collate: more than %d fields", WF_BATCH_FIELDS);
        WF_TRY(check_field(collate->fields, f));
        iter->field[n++] = copy_field(f);
    }
    WF_CHECK(n > 0, WF_ERR_ARGUMENT, "collate: the first field has no name");
    return WF_OK;
}

/* One element of the padding, as the library converts numbers: the same bits as a tensor that is filled. */
static wf_status make_pad(const wf_iter *iter, wf_iter_field *f)
{
    wf_tensor *one = wf_tensor_new(iter->ctx, f->dtype, wf_shape_scalar());
    wf_status status;
    WF_TRY_OUT(wf_check(one));
    WF_TRY_OUT(wf_tensor_fill(one, f->pad));
    WF_TRY_OUT(wf_tensor_export(one, f->padding, wf_tensor_bytes(one)));
out:
    wf_tensor_free(one);
    return status;
}

wf_status wf_collate_open(wf_iter *iter)
{
    for (int i = 0; i < WF_BATCH_FIELDS && iter->field[i].present; i++)
        WF_TRY(make_pad(iter, &iter->field[i]));
    return WF_OK;
}

/* One slot for each batch that is prefetched; its memory is taken once and written by the threads. */
wf_status wf_collate_slot_open(const wf_iter *iter, wf_slot *slot)
{
    wf_ctx *ctx = iter->ctx;
    const wf_dataset *d = iter->batcher.dataset;
    const size_t rows = (size_t)iter->rows;
    slot->sample_memory = wf_malloc(ctx, rows * wf_dataset_sample_bytes(d) + 1);
    slot->number = wf_calloc(ctx, rows + 1, sizeof *slot->number);
    slot->label_memory = d->info.labels ? wf_calloc(ctx, rows + 1, sizeof *slot->label_memory) : NULL;
    bool made = slot->sample_memory && slot->number && (slot->label_memory || !d->info.labels);
    for (int i = 0; i < WF_BATCH_FIELDS && iter->field[i].present; i++) {
        wf_slot_tensor *t = &slot->tensor[i];
        const bool same = iter->field[i].format.direct;
        /* If the order of memory is that of the rows, the function writes into the tensor's memory itself. */
        t->row_major = same ? t->host : wf_malloc(ctx, rows * iter->field[i].row_bytes + 1);
        made = made && (t->row_major || rows == 0);
    }
    return made ? WF_OK : WF_ERR_MEMORY;
}

void wf_collate_slot_free(const wf_iter *iter, wf_slot *slot)
{
    for (int i = 0; iter->collates && i < WF_BATCH_FIELDS; i++)
        if (!iter->field[i].format.direct)
            free(slot->tensor[i].row_major);
    free(slot->sample_memory);
    free(slot->label_memory);
    free(slot->number);
}

/* Before each batch, so that what the function does not write is padding. */
static void fill_rows(const wf_iter_field *f, int64_t rows, unsigned char *to)
{
    const size_t size = wf_dtype_size(f->dtype), bytes = (size_t)rows * f->row_bytes;
    bool alike = true; /* every byte of the element */
    for (size_t i = 1; i < size; i++)
        alike = alike && f->padding[i] == f->padding[0];
    if (alike)
        memset(to, f->padding[0], bytes);
    else
        for (size_t i = 0; i < bytes; i += size)
            memcpy(to + i, f->padding, size);
}

/* What the function left is checked, and brought into the order of the tensor's memory. Called by a thread, so it
 * neither sends nor touches a device. */
static wf_status accept_rows(const wf_iter_field *f, int64_t rows, const wf_batch_rows *made, wf_slot_tensor *t)
{
    if (f->varies)
        WF_CHECK(made->longest >= 0 && made->longest <= f->shape.dim[0], WF_ERR_ARGUMENT,
                 "collate: the longest row of field %s has %lld elements: should be 0 to %lld", f->name,
                 (long long)made->longest, (long long)f->shape.dim[0]);
    t->longest = made->longest;
    for (int64_t i = 0; i < rows && !f->format.direct; i++)
        wf_row_store(&f->format, (char *)t->row_major + (size_t)i * f->row_bytes,
                     (char *)t->host + (size_t)i * f->row_bytes);
    return WF_OK;
}

wf_status wf_collate_run(const wf_iter *iter, wf_slot *slot)
{
    const wf_batcher *b = &iter->batcher;
    const wf_collate *collate = &b->opts.collate;
    const wf_batch_plan *plan = &slot->plan;
    wf_batch_rows rows[WF_BATCH_FIELDS] = {{0}};
    for (int i = 0; i < WF_BATCH_FIELDS; i++) {
        wf_slot_tensor *t = &slot->tensor[i];
        t->longest = 0;
        rows[i].data = t->row_major;
        if (iter->field[i].present)
            fill_rows(&iter->field[i], plan->size, t->row_major);
    }
    /* Other ranks may have samples: an empty batch is no error, and asks the function nothing. */
    if (plan->size == 0)
        return WF_OK;
    const wf_batch_samples samples = {.count = plan->size,
                                      .x = slot->sample_memory,
                                      .bytes = wf_dataset_sample_bytes(b->dataset),
                                      .labels = slot->label_memory,
                                      .number = slot->number,
                                      .seed = b->seed,
                                      .epoch = plan->epoch,
                                      .index = plan->index};
    /* The function runs in a thread: its error is kept in the slot and raised when the batch is handed out. */
    const wf_status status = collate->function(collate->user, &samples, rows);
    WF_CHECK(status == WF_OK || wf_error_code() != WF_OK, status, "the collate function failed");
    WF_TRY(status);
    for (int i = 0; i < WF_BATCH_FIELDS && iter->field[i].present; i++)
        WF_TRY(accept_rows(&iter->field[i], plan->size, &rows[i], &slot->tensor[i]));
    return WF_OK;
}

/* At least 1, since a tensor of rows without elements has no place for padding. */
wf_shape wf_collate_row(const wf_iter_field *field, const wf_slot_tensor *tensor)
{
    wf_shape row = field->shape;
    if (field->varies)
        row.dim[0] = tensor->longest > 1 ? tensor->longest : 1;
    return row;
}

/* Rows as long as the longest one follow each other; what is cut off is padding. In place, from the front, so no row is
 * overwritten before it was moved. */
static void trim_rows(const wf_iter_field *f, int64_t rows, wf_slot_tensor *t)
{
    char *host = t->host;
    const size_t bytes = (size_t)wf_shape_count(wf_collate_row(f, t)) * wf_dtype_size(f->dtype);
    for (int64_t i = 1; i < rows && bytes < f->row_bytes; i++)
        memmove(host + (size_t)i * bytes, host + (size_t)i * f->row_bytes, bytes);
}

wf_status wf_collate_trim(const wf_iter *iter, wf_slot *slot)
{
    const wf_mesh *mesh = iter->batcher.dataset->mesh;
    int64_t longest[WF_BATCH_FIELDS];
    int n = 0;
    for (int i = 0; i < WF_BATCH_FIELDS; i++)
        if (iter->field[i].varies)
            longest[n++] = slot->tensor[i].longest;
    /* Rows must be equally long on all ranks. All ranks of the mesh are here, since batches are handed out in step. */
    if (n > 0 && mesh)
        WF_TRY(wf_allreduce_i64(wf_mesh_world(mesh), longest, n, WF_MAX));
    n = 0;
    for (int i = 0; i < WF_BATCH_FIELDS; i++)
        if (iter->field[i].varies) {
            slot->tensor[i].longest = longest[n++];
            trim_rows(&iter->field[i], slot->plan.size, &slot->tensor[i]);
        }
    return WF_OK;
}

/* --- What a program sees ------------------------------------------------------------------------------------------ */

/* From the last to the first, so that x and labels are the first fields of their kinds. */
void wf_batch_name(wf_batch *batch)
{
    for (int i = batch->names - 1; i >= 0; i--)
        *(batch->named[i].target ? &batch->labels : &batch->x) = batch->named[i].tensor;
}

wf_tensor *wf_batch_get(const wf_batch *batch, const char *name)
{
    WF_NEED_NULL(batch);
    WF_NEED_NULL(name);
    char names[WF_BATCH_FIELDS * (WF_FIELD_NAME + 2) + 1] = "";
    size_t used = 0;
    for (int i = 0; i < batch->names; i++) {
        if (strcmp(batch->named[i].name, name) == 0)
            return batch->named[i].tensor;
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", i > 0 ? ", " : "", batch->named[i].name);
    }
    WF_FAIL_NULL(WF_ERR_ARGUMENT, "the batch has no tensor %s: it has %s", name, names);
}
