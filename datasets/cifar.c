/* CIFAR-10 and CIFAR-100 from their binary files, read as a whole when the data set is opened. A kind of data set;
 * nothing here knows batches or ranks. */
#include "core/config_author.h"
#include "datasets/datasets_impl.h"
#include "datasets/readers.h"

#include <stdio.h>
#include <stdlib.h>

enum { PIXELS = 3 * 32 * 32, MOST_FILES = 5 };

/* One of the two collections. A record is its labels, then the pixels as [3,32,32]. */
typedef struct collection {
    const char *name, *folder;
    const char *train[MOST_FILES + 1], *test[2]; /* ended by NULL */
    int labels;                                  /* in a record, a byte each; samples get the last (the fine one) */
    int64_t classes[2];                          /* of each label */
} collection;

static const collection cifar10 = {
    .name = "cifar10",
    .folder = "cifar-10-batches-bin",
    .train = {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin", "data_batch_5.bin"},
    .test = {"test_batch.bin"},
    .labels = 1,
    .classes = {10},
};

static const collection cifar100 = {
    .name = "cifar100",
    .folder = "cifar-100-binary",
    .train = {"train.bin"},
    .test = {"test.bin"},
    .labels = 2,
    .classes = {20, 100},
};

typedef struct cifar {
    wf_rows rows;
    const collection *c;
    char *dir;
    wf_dataset_split split;
} cifar;

/* The archives unpack into a folder of their own, which people either name or enter. Both are accepted. */
static wf_status find_folder(const cifar *s, const char *first, char folder[WF_PATH_MAX])
{
    const char *dir = s->dir ? s->dir : wf_config_get()->data;
    /* WEFT_DATA is asked only without a folder of the caller's. */
    char path[WF_PATH_MAX];
    WF_CHECK(dir, WF_ERR_IO, "%s: no folder was given and WEFT_DATA is not set", s->c->name);
    WF_CHECK(wf_path_is_folder(dir), WF_ERR_IO, "%s: there is no such folder", dir);
    WF_TRY(wf_path_join(folder, dir, s->c->folder));
    WF_TRY(wf_path_join(path, folder, first));
    if (wf_path_is_file(path))
        return WF_OK;
    WF_TRY(wf_path_join(path, dir, first));
    snprintf(folder, WF_PATH_MAX, "%s", dir);
    WF_CHECK(wf_path_is_file(path), WF_ERR_IO, "%s: there is no %s, nor a folder %s with it", dir, first, s->c->folder);
    return WF_OK;
}

/* The number of records follows from the size: a file that was cut off is refused here. */
static wf_status open_batch(const cifar *s, wf_data_file *file, const char *path, int64_t *records)
{
    const uint64_t record = (uint64_t)s->c->labels + PIXELS;
    WF_TRY(wf_data_file_open(file, path));
    WF_CHECK(!file->compressed, WF_ERR_FORMAT, "%s: is compressed; unpack it first", path);
    /* A multiple of the record: the format has no header to check. */
    WF_CHECK(file->disk_bytes % record == 0, WF_ERR_FORMAT,
             "%s: has %llu bytes, should be a multiple of %llu (%d for labels and 3x32x32)", path,
             (unsigned long long)file->disk_bytes, (unsigned long long)record, s->c->labels);
    *records = (int64_t)(file->disk_bytes / record);
    return WF_OK;
}

/* Files are counted before any is read, so that the memory is taken once and a missing file is noticed early. */
static wf_status count_records(const cifar *s, const char *path, int64_t *count)
{
    wf_data_file file;
    int64_t records = 0;
    const wf_status status = open_batch(s, &file, path, &records);
    wf_data_file_close(&file);
    *count += records;
    return status;
}

/* A label outside of its classes means that the file is another one. All labels are checked, also the coarse one. */
static wf_status read_record(cifar *s, wf_data_file *file, int64_t record, int64_t sample)
{
    unsigned char labels[2] = {0};
    WF_TRY(wf_data_file_read(file, labels, (size_t)s->c->labels, file->disk_bytes));
    for (int i = 0; i < s->c->labels; i++)
        WF_TRY(wf_label_check(WF_ERR_FORMAT, file->path, labels[i], record, s->c->classes[i]));
    /* CIFAR-100 has the coarse label first and the fine one, which is the usual task, last. */
    s->rows.labels[sample] = labels[s->c->labels - 1];
    WF_TRY(wf_data_file_read(file, s->rows.x + (size_t)sample * PIXELS, PIXELS, file->disk_bytes));
    return WF_OK;
}

static wf_status read_batch(cifar *s, const char *path, int64_t *sample)
{
    wf_status status;
    wf_data_file file;
    int64_t records;
    WF_TRY_OUT(open_batch(s, &file, path, &records));
    /* At most as many records as were counted: the file may have grown since. */
    for (int64_t r = 0; r < records && *sample < s->rows.count; r++)
        WF_TRY_OUT(read_record(s, &file, r, (*sample)++));
    WF_TRY_OUT(wf_data_file_end(&file));
out:
    wf_data_file_close(&file);
    return status;
}

static wf_status cifar_open(wf_dataset *dataset)
{
    cifar *s = dataset->state;
    const char *const *names = s->split == WF_TRAIN_SET ? s->c->train : s->c->test;
    char folder[WF_PATH_MAX], path[WF_PATH_MAX];
    int64_t count = 0, sample = 0;
    WF_TRY(find_folder(s, names[0], folder));
    for (int i = 0; names[i]; i++) {
        WF_TRY(wf_path_join(path, folder, names[i]));
        WF_TRY(count_records(s, path, &count));
    }
    /* Memory for all files at once; samples are numbered through, in the order of the names. */
    WF_TRY(wf_rows_alloc(dataset->ctx, folder, &s->rows, count, PIXELS, true));
    for (int i = 0; names[i]; i++) {
        WF_TRY(wf_path_join(path, folder, names[i]));
        WF_TRY(read_batch(s, path, &sample));
    }
    /* Fewer samples than were counted: a file became shorter. */
    WF_CHECK(sample == count, WF_ERR_IO, "%s: the files changed while they were read", folder);
    dataset->info = (wf_dataset_info){.count = count,
                                      .dtype = WF_U8,
                                      .shape = WF_SHAPE(3, 32, 32),
                                      .labels = true,
                                      .classes = s->c->classes[s->c->labels - 1]};
    return WF_OK;
}

static void cifar_free(wf_dataset *dataset)
{
    cifar *s = dataset->state;
    free(s->dir);
    wf_rows_free(&s->rows);
}

static const wf_dataset_kind cifar_kind = {
    .name = "cifar",
    .open = cifar_open,
    .read = wf_rows_read,
    .read_box = wf_rows_read_box,
    .free = cifar_free,
    .concurrent = true,
};

static wf_dataset *cifar_new(wf_ctx *ctx, const collection *c, const char *dir, wf_dataset_split split)
{
    if (!ctx)
        return NULL;
    WF_CHECK_NULL(split == WF_TRAIN_SET || split == WF_TEST_SET, WF_ERR_ARGUMENT, "%s: %d is no split", c->name,
                  (int)split);
    wf_dataset *dataset = wf_dataset_new(ctx, &cifar_kind, NULL, sizeof(cifar));
    if (!dataset)
        return NULL;
    cifar *s = dataset->state;
    *s = (cifar){.c = c, .split = split, .dir = dir ? wf_strdup(ctx, dir) : NULL};
    if (dir && !s->dir) {
        wf_dataset_free(dataset);
        return wf_error_null();
    }
    return dataset;
}

wf_dataset *wf_cifar10(wf_ctx *ctx, const char *dir, wf_dataset_split split)
{
    WF_NEED_NULL(ctx);
    return cifar_new(ctx, &cifar10, dir, split);
}

wf_dataset *wf_cifar100(wf_ctx *ctx, const char *dir, wf_dataset_split split)
{
    WF_NEED_NULL(ctx);
    return cifar_new(ctx, &cifar100, dir, split);
}
