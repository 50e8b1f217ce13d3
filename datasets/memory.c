/* Samples in host memory: data sets from arrays and tensors, the parts that scatter sends, and the empty data set. The
 * file readers keep their samples in the same rows. */
#include "datasets/datasets_impl.h"
#include "datasets/readers.h"

#include <stdlib.h>
#include <string.h>

/* Frees what the rows had: an open that failed may be tried again. */
wf_status wf_rows_alloc(wf_ctx *ctx, const char *what, wf_rows *rows, int64_t count, size_t sample_bytes, bool labels)
{
    wf_rows_free(rows);
    WF_CHECK(sample_bytes == 0 || (uint64_t)count <= (uint64_t)PTRDIFF_MAX / sample_bytes, WF_ERR_MEMORY,
             "%s: %lld samples of %zu bytes do not fit in memory", what, (long long)count, sample_bytes);
    const size_t bytes = (size_t)count * sample_bytes;
    /* malloc(0) may return NULL, which would look like a failure. */
    rows->x = wf_malloc(ctx, bytes ? bytes : 1);
    if (rows->x && labels)
        rows->labels = wf_calloc(ctx, count ? (size_t)count : 1, sizeof *rows->labels);
    if (!rows->x || (labels && !rows->labels)) {
        wf_rows_free(rows);
        WF_FAIL(WF_ERR_MEMORY, "%s: no memory for %lld samples of %zu bytes", what, (long long)count, sample_bytes);
    }
    rows->count = count;
    rows->sample_bytes = sample_bytes;
    return WF_OK;
}

/* Safe to call twice. */
void wf_rows_free(wf_rows *rows)
{
    free(rows->x);
    free(rows->labels);
    *rows = (wf_rows){0};
}

/* Samples are read only, so threads may do it together. */
wf_status wf_rows_read(wf_dataset *dataset, int64_t index, const wf_sample_key *key, void *x, int64_t *label)
{
    const wf_rows *rows = dataset->state;
    memcpy(x, rows->x + (size_t)index * rows->sample_bytes, rows->sample_bytes);
    *label = rows->labels ? rows->labels[index] : 0;
    return WF_OK;
}

wf_status wf_rows_read_box(wf_dataset *dataset, int64_t index, const wf_sample_key *key, const wf_box *box, void *x,
                           int64_t *label)
{
    const wf_rows *rows = dataset->state;
    wf_box_copy(dataset->info.shape, wf_dtype_size(dataset->info.dtype), box,
                rows->x + (size_t)index * rows->sample_bytes, x);
    *label = rows->labels ? rows->labels[index] : 0;
    return WF_OK;
}

void wf_rows_dataset_free(wf_dataset *dataset)
{
    wf_rows_free(dataset->state);
}

static const wf_dataset_kind memory_kind = {
    .name = "memory",
    .read = wf_rows_read,
    .read_box = wf_rows_read_box,
    .free = wf_rows_dataset_free,
    .concurrent = true,
};

/* The caller fills the rows: scatter with what comes from the root, readers from their files. */
wf_dataset *wf_rows_dataset_new(wf_ctx *ctx, const wf_dataset_info *info, wf_rows **rows)
{
    wf_dataset *dataset = wf_dataset_new(ctx, &memory_kind, NULL, sizeof(wf_rows));
    if (!dataset)
        return NULL;
    dataset->info = *info;
    *rows = dataset->state;
    const size_t bytes = wf_dataset_sample_bytes(dataset);
    if (wf_rows_alloc(ctx, memory_kind.name, *rows, info->count, bytes, info->labels) != WF_OK) {
        wf_dataset_free(dataset);
        return wf_error_null();
    }
    return dataset;
}

static wf_shape sample_shape(wf_shape shape)
{
    return wf_shape_make(shape.rank - 1, shape.dim + 1);
}

/* The code says whose mistake it is: the program's or the file's. */
wf_status wf_label_check(wf_status code, const char *what, int64_t label, int64_t sample, int64_t classes)
{
    WF_CHECK(label >= 0, code, "%s: label %lld of sample %lld is negative", what, (long long)label, (long long)sample);
    WF_CHECK(classes == 0 || label < classes, code, "%s: label %lld of sample %lld is not in [0, %lld)", what,
             (long long)label, (long long)sample, (long long)classes);
    /* There is one class more than the largest label. */
    WF_CHECK(label < INT64_MAX, code, "%s: label %lld of sample %lld is too large", what, (long long)label,
             (long long)sample);
    return WF_OK;
}

/* The number of classes of a data set without a description. */
static wf_status count_classes(int64_t count, const int64_t *labels, int64_t *classes)
{
    int64_t most = -1;
    for (int64_t i = 0; i < count; i++) {
        WF_TRY(wf_label_check(WF_ERR_ARGUMENT, "a memory data set", labels[i], i, 0));
        /* Classes count from 0, so one more than the largest label. */
        most = labels[i] > most ? labels[i] : most;
    }
    *classes = most + 1;
    return WF_OK;
}

/* Copies: the program may free its arrays. */
wf_dataset *wf_memory_dataset(wf_ctx *ctx, wf_dtype dtype, wf_shape shape, const void *x, const int64_t *labels)
{
    WF_NEED_NULL(ctx);
    char text[WF_SHAPE_TEXT];
    const int64_t elements = wf_shape_count(shape);
    WF_CHECK_NULL(shape.rank >= 1 && elements >= 0, WF_ERR_SHAPE,
                  "a memory data set of shape %s: should be [count, ...]", wf_shape_text(shape, text));
    WF_CHECK_NULL(wf_dtype_size(dtype) > 0, WF_ERR_DTYPE, "%d is no type", (int)dtype);
    WF_CHECK_NULL(x || elements == 0, WF_ERR_ARGUMENT, "a memory data set of shape %s without data",
                  wf_shape_text(shape, text));
    wf_dataset_info info = {
        .count = shape.dim[0], .dtype = dtype, .shape = sample_shape(shape), .labels = labels != NULL};
    if (labels)
        WF_TRY_NULL(count_classes(info.count, labels, &info.classes));
    wf_rows *rows;
    wf_dataset *dataset = wf_rows_dataset_new(ctx, &info, &rows);
    if (!dataset)
        return NULL;
    if (elements > 0)
        memcpy(rows->x, x, (size_t)elements * wf_dtype_size(dtype));
    if (labels && info.count > 0)
        memcpy(rows->labels, labels, (size_t)info.count * sizeof *labels);
    return dataset;
}

static wf_status import_tensors(const wf_tensor *x, const wf_tensor *labels, wf_rows *rows, int64_t *classes)
{
    /* Rows are dense and row-major, whatever the tensor's order. */
    WF_TRY(wf_tensor_export(x, rows->x, wf_tensor_bytes(x)));
    if (!labels)
        return WF_OK;
    WF_TRY(wf_tensor_export(labels, rows->labels, wf_tensor_bytes(labels)));
    WF_TRY(count_classes(rows->count, rows->labels, classes));
    return WF_OK;
}

/* The values are copied to the host: batches are made by the prefetch thread, which may not use the device. */
wf_dataset *wf_tensor_dataset(const wf_tensor *x, const wf_tensor *labels)
{
    if (!x)
        return NULL;
    char text[WF_SHAPE_TEXT];
    const wf_shape shape = wf_tensor_shape(x), label_shape = labels ? wf_tensor_shape(labels) : WF_SHAPE(0);
    WF_CHECK_NULL(shape.rank >= 1, WF_ERR_SHAPE, "a data set of a scalar: should be [count, ...]");
    WF_CHECK_NULL(!labels || wf_tensor_dtype(labels) == WF_I64, WF_ERR_DTYPE, "labels of type %s: should be i64",
                  wf_dtype_name(wf_tensor_dtype(labels)));
    WF_CHECK_NULL(!labels || wf_shape_equal(label_shape, WF_SHAPE(shape.dim[0])), WF_ERR_SHAPE,
                  "labels of shape %s: should be [%lld]", wf_shape_text(label_shape, text), (long long)shape.dim[0]);
    wf_dataset_info info = {
        .count = shape.dim[0], .dtype = wf_tensor_dtype(x), .shape = sample_shape(shape), .labels = labels != NULL};
    wf_rows *rows;
    wf_dataset *dataset = wf_rows_dataset_new(wf_tensor_ctx(x), &info, &rows);
    if (!dataset)
        return NULL;
    if (import_tensors(x, labels, rows, &dataset->info.classes) != WF_OK) {
        wf_dataset_free(dataset);
        return wf_error_null();
    }
    return dataset;
}

/* A rank without data takes part in everything, with 0 samples. */
wf_dataset *wf_empty_dataset(wf_ctx *ctx, const wf_dataset_info *like)
{
    WF_NEED_NULL(ctx);
    wf_dataset_info info = like ? *like : (wf_dataset_info){.shape = wf_shape_scalar()};
    info.count = 0;
    wf_rows *rows;
    return wf_rows_dataset_new(ctx, &info, &rows);
}
