/* A folder of PNG and JPEG files as a data set. File names are listed when it is opened; an image is decoded when it is
 * read. Nothing is kept in memory but names, so a folder may be larger than memory. */
#include "datasets/dataset_author.h"
#include "datasets/datasets_impl.h"
#include "datasets/readers.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

typedef struct names {
    char **name;
    int64_t count, room;
} names;

typedef struct folder {
    char *dir;
    wf_image_folder_opts opts;
    names files; /* whole paths, in order */
    int64_t *labels;
    bool classed;
    int64_t classes;
} folder;

static void names_free(names *list)
{
    for (int64_t i = 0; i < list->count; i++)
        free(list->name[i]);
    free(list->name);
    *list = (names){0};
}

static wf_status names_add(wf_ctx *ctx, names *list, const char *name)
{
    if (list->count == list->room) {
        /* Doubling: folders of a million files are listed in linear time. */
        const int64_t room = list->room ? 2 * list->room : 64;
        char **grown = wf_realloc(ctx, list->name, (size_t)room * sizeof *grown);
        if (!grown)
            return WF_ERR_MEMORY;
        list->name = grown;
        list->room = room;
    }
    char *copy = wf_strdup(ctx, name);
    if (!copy)
        return WF_ERR_MEMORY;
    list->name[list->count++] = copy;
    return WF_OK;
}

/* By bytes, not by the locale: the order of files, and so the labels, must be the same on all machines. */
static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static bool is_image_name(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot && (strcasecmp(dot, ".png") == 0 || strcasecmp(dot, ".jpg") == 0 || strcasecmp(dot, ".jpeg") == 0);
}

/* Sorted paths of the images and the subfolders of a folder; hidden ones do not count. Files that cannot be opened are
 * found out when they are read. */
static wf_status list_folder(wf_ctx *ctx, const char *dir, names *images, names *folders)
{
    DIR *stream = opendir(dir);
    WF_CHECK(stream, WF_ERR_IO, "%s: cannot open the folder: %s", dir, strerror(errno));
    wf_status status = WF_OK;
    for (struct dirent *entry = readdir(stream); entry && status == WF_OK; entry = readdir(stream)) {
        char path[WF_PATH_MAX];
        /* Also "." and "..". */
        if (entry->d_name[0] == '.')
            continue;
        status = wf_path_join(path, dir, entry->d_name);
        if (status == WF_OK && wf_path_is_folder(path))
            status = names_add(ctx, folders, path);
        else if (status == WF_OK && is_image_name(entry->d_name))
            status = names_add(ctx, images, path);
    }
    closedir(stream);
    if (images->count > 0)
        qsort(images->name, (size_t)images->count, sizeof *images->name, by_name);
    if (folders->count > 0)
        qsort(folders->name, (size_t)folders->count, sizeof *folders->name, by_name);
    return status;
}

/* Labels are the numbers of class folders in the order of their names, also of empty ones. */
static wf_status add_class(wf_ctx *ctx, folder *f, const char *dir, int64_t label)
{
    wf_status status;
    /* Folders inside of a class are listed and left alone. */
    names images = {0}, deeper = {0};
    WF_TRY_OUT(list_folder(ctx, dir, &images, &deeper));
    if (images.count > 0) {
        /* Grown folder by folder, since the number of images is known only at the end. */
        int64_t *labels = wf_realloc(ctx, f->labels, (size_t)(f->files.count + images.count) * sizeof *labels);
        if (!labels) {
            status = WF_ERR_MEMORY;
            goto out;
        }
        f->labels = labels;
    }
    for (int64_t i = 0; i < images.count; i++) {
        f->labels[f->files.count] = label;
        WF_TRY_OUT(names_add(ctx, &f->files, images.name[i]));
    }
out:
    names_free(&images);
    names_free(&deeper);
    return status;
}

static wf_status list_classes(wf_ctx *ctx, folder *f, const names *folders)
{
    /* A mixture would leave images without a class. */
    WF_CHECK(f->files.count == 0, WF_ERR_FORMAT,
             "%s: has images (%s) beside folders (%s): should have one folder for each class, or images alone", f->dir,
             f->files.name[0], folders->name[0]);
    f->classed = true;
    f->classes = folders->count;
    for (int64_t i = 0; i < folders->count; i++)
        WF_TRY(add_class(ctx, f, folders->name[i], i));
    return WF_OK;
}

static wf_status list_images(wf_ctx *ctx, folder *f)
{
    names folders = {0};
    names_free(&f->files);
    wf_status status = list_folder(ctx, f->dir, &f->files, &folders);
    if (status == WF_OK && folders.count > 0)
        status = list_classes(ctx, f, &folders);
    names_free(&folders);
    WF_TRY(status);
    WF_CHECK(f->files.count > 0, WF_ERR_FORMAT, "%s: there is no PNG or JPEG image in the folder", f->dir);
    return WF_OK;
}

static wf_status folder_open(wf_dataset *dataset)
{
    folder *f = dataset->state;
    WF_TRY(list_images(dataset->ctx, f));
    int64_t height = f->opts.height, width = f->opts.width;
    /* The first image determines what was not given; the others are resized to it. */
    if (!height || !width) {
        int64_t h, w;
        WF_TRY(wf_picture_size(f->files.name[0], &h, &w));
        height = height ? height : h;
        width = width ? width : w;
    }
    dataset->info = (wf_dataset_info){.count = f->files.count,
                                      .dtype = WF_U8,
                                      .shape = WF_SHAPE(f->opts.channels, height, width),
                                      .labels = f->classed,
                                      .classes = f->classes};
    return WF_OK;
}

/* Called by several threads of wf_prefetch at a time; the decoder takes its memory by malloc. The picture is resized to
 * the shape of the data set, whatever its own. */
static wf_status folder_read(wf_dataset *dataset, int64_t index, const wf_sample_key *key, void *x, int64_t *label)
{
    const folder *f = dataset->state;
    const wf_shape shape = dataset->info.shape;
    *label = f->classed ? f->labels[index] : 0;
    WF_TRY(wf_picture_read(f->files.name[index], shape.dim[0], shape.dim[1], shape.dim[2], x));
    return WF_OK;
}

static void folder_free(wf_dataset *dataset)
{
    folder *f = dataset->state;
    free(f->dir);
    free(f->labels);
    names_free(&f->files);
}

static const wf_dataset_kind folder_kind = {
    .name = "image_folder",
    .open = folder_open,
    .read = folder_read,
    .free = folder_free,
    .concurrent = true,
};

wf_dataset *wf_image_folder(wf_ctx *ctx, const char *dir, wf_image_folder_opts opts)
{
    WF_NEED_NULL(ctx);
    opts.channels = opts.channels ? opts.channels : 3;
    WF_CHECK_NULL(dir, WF_ERR_ARGUMENT, "image_folder: no folder");
    WF_CHECK_NULL(opts.channels >= 1 && opts.channels <= 4, WF_ERR_ARGUMENT,
                  "image_folder: %lld channels: should be 1 to 4", (long long)opts.channels);
    WF_CHECK_NULL(opts.height >= 0 && opts.width >= 0 && opts.height < 1 << 20 && opts.width < 1 << 20, WF_ERR_ARGUMENT,
                  "image_folder: images of %lld x %lld pixels", (long long)opts.height, (long long)opts.width);
    wf_dataset *dataset = wf_dataset_new(ctx, &folder_kind, NULL, sizeof(folder));
    if (!dataset)
        return NULL;
    folder *f = dataset->state;
    *f = (folder){.opts = opts, .dir = wf_strdup(ctx, dir)};
    if (!f->dir) {
        wf_dataset_free(dataset);
        return wf_error_null();
    }
    return dataset;
}
