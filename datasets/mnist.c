/* Finds MNIST's or Fashion-MNIST's files by their standard names, and reads them by idx.c. Nothing is downloaded. */
#include "core/config_author.h"
#include "datasets/datasets_impl.h"
#include "datasets/readers.h"

#include <stdio.h>
#include <stdlib.h>

/* The folder of Debian's package dataset-fashion-mnist. */
static const char debian_folder[] = "/usr/share/datasets/fashion-mnist";

typedef struct mnist {
    wf_rows rows;
    char *dir; /* NULL: look in the usual places */
    wf_dataset_split split;
} mnist;

static const char *const images_name[] = {"train-images-idx3-ubyte", "t10k-images-idx3-ubyte"};
static const char *const labels_name[] = {"train-labels-idx1-ubyte", "t10k-labels-idx1-ubyte"};

/* The path of a file or of its compressed form; false if neither is there. The plain one is preferred: nothing has to
 * be unpacked. */
static wf_status locate(const char *dir, const char *name, char path[WF_PATH_MAX], bool *found)
{
    char gz[80];
    snprintf(gz, sizeof gz, "%s.gz", name);
    WF_TRY(wf_path_join(path, dir, name));
    *found = wf_path_is_file(path);
    if (*found)
        return WF_OK;
    WF_TRY(wf_path_join(path, dir, gz));
    *found = wf_path_is_file(path);
    return WF_OK;
}

static wf_status locate_both(const char *dir, wf_dataset_split split, char images[WF_PATH_MAX],
                             char labels[WF_PATH_MAX])
{
    bool found;
    WF_CHECK(wf_path_is_folder(dir), WF_ERR_IO, "%s: there is no such folder", dir);
    WF_TRY(locate(dir, images_name[split], images, &found));
    WF_CHECK(found, WF_ERR_IO, "%s: there is no %s or %s.gz", dir, images_name[split], images_name[split]);
    WF_TRY(locate(dir, labels_name[split], labels, &found));
    WF_CHECK(found, WF_ERR_IO, "%s: there is no %s or %s.gz", dir, labels_name[split], labels_name[split]);
    return WF_OK;
}

/* WEFT_DATA is used alone where it is set: falling back to another folder would train on other data without a word. */
static wf_status usual_folder(wf_dataset_split split, char dir[WF_PATH_MAX])
{
    const char *data = wf_config_get()->data;
    char path[WF_PATH_MAX];
    bool found = false;
    if (!data) {
        snprintf(dir, WF_PATH_MAX, "%s", debian_folder);
        return WF_OK;
    }
    snprintf(dir, WF_PATH_MAX, "%s", data);
    WF_TRY(locate(dir, images_name[split], path, &found));
    if (found)
        return WF_OK;
    /* A folder of all data sets, or the one of this. */
    WF_TRY(wf_path_join(dir, data, "fashion-mnist"));
    WF_TRY(locate(dir, images_name[split], path, &found));
    WF_CHECK(found, WF_ERR_IO, "no %s[.gz] in WEFT_DATA, which is %s, or in %s", images_name[split], data, dir);
    return WF_OK;
}

static wf_status mnist_open(wf_dataset *dataset)
{
    mnist *state = dataset->state;
    char usual[WF_PATH_MAX], images[WF_PATH_MAX], labels[WF_PATH_MAX];
    if (!state->dir)
        WF_TRY(usual_folder(state->split, usual));
    WF_TRY(locate_both(state->dir ? state->dir : usual, state->split, images, labels));
    /* Ten classes even if a short file lacks some of them. */
    WF_TRY(wf_idx_load(dataset->ctx, images, labels, 10, &state->rows, &dataset->info));
    return WF_OK;
}

static void mnist_free(wf_dataset *dataset)
{
    mnist *state = dataset->state;
    free(state->dir);
    wf_rows_free(&state->rows);
}

static const wf_dataset_kind mnist_kind = {
    .name = "mnist",
    .open = mnist_open,
    .read = wf_rows_read,
    .read_box = wf_rows_read_box,
    .free = mnist_free,
    .concurrent = true,
};

wf_dataset *wf_mnist(wf_ctx *ctx, const char *dir, wf_dataset_split split)
{
    WF_NEED_NULL(ctx);
    WF_CHECK_NULL(split == WF_TRAIN_SET || split == WF_TEST_SET, WF_ERR_ARGUMENT, "mnist: %d is no split", (int)split);
    wf_dataset *dataset = wf_dataset_new(ctx, &mnist_kind, NULL, sizeof(mnist));
    if (!dataset)
        return NULL;
    mnist *state = dataset->state;
    state->split = split;
    state->dir = dir ? wf_strdup(ctx, dir) : NULL;
    if (dir && !state->dir) {
        wf_dataset_free(dataset);
        return wf_error_null();
    }
    return dataset;
}
