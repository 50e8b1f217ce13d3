/* Finds images for the examples. Rank 0 reads and scatters them, but for files of wf-data and labelled folders of
 * pictures, of which each rank reads its part. */
#include "examples/images.h"

#include <glob.h>
#include <stdlib.h>
#include <string.h>

static bool exists(const char *dir, const char *pattern)
{
    glob_t found;
    const bool any = glob(example_path(dir, pattern), 0, NULL, &found) == 0;
    globfree(&found);
    return any;
}

static bool has_cifar(const char *dir)
{
    return exists(dir, "*_batch*.bin") || exists(dir, "cifar-10-batches-bin");
}

static bool has_idx(const char *dir)
{
    return exists(dir, "*-images-idx3-ubyte*") || exists(dir, "fashion-mnist/*-images-idx3-ubyte*");
}

/* WEFT_DATA, if it says where. Ends the program if there is nothing of what is looked for. */
static const char *usual_folder(wf_comm *comm)
{
    char complaint[512] = "";
    const char *home = getenv("WEFT_DATA");
    if (home && !has_cifar(home) && !has_idx(home))
        snprintf(complaint, sizeof complaint,
                 "WEFT_DATA is %s, where there is no cifar-10-batches-bin, and no MNIST or Fashion-MNIST", home);
    example_agree(comm, *complaint ? complaint : NULL);
    return home;
}

static bool is_hdf5(const char *dir)
{
    const size_t length = dir ? strlen(dir) : 0;
    return length > 3 && strcmp(dir + length - 3, ".h5") == 0;
}

static wf_dataset *choose(wf_comm *comm, const char *dir, const char *home, wf_dataset_split split, bool labels)
{
    wf_ctx *ctx = wf_comm_ctx(comm);
    const char *what = "CIFAR-10", *from = dir ? dir : home;
    wf_dataset *images;
    if (is_hdf5(dir)) {
        what = "the images";
        images = wf_hdf5_dataset(ctx, dir, (wf_hdf5_opts){0});
    } else if (from && has_cifar(from)) {
        images = wf_cifar10(ctx, from, split);
    } else if (!dir) {
        what = home ? "MNIST's files, as 32x32 RGB"
                    : "Fashion-MNIST, photographs of clothes, as 32x32 RGB (--data DIR takes other images)";
        images = wf_mnist(ctx, NULL, split);
    } else {
        what = labels ? "the images of IDX files" : "the images of a folder";
        images = labels ? wf_mnist(ctx, dir, split)
                        : wf_image_folder(ctx, dir, (wf_image_folder_opts){.height = 32, .width = 32});
    }
    if (split == WF_TRAIN_SET && wf_comm_rank(comm) == 0)
        printf("data: %s%s%s\n", what, from ? " in " : "", from ? from : "");
    return images;
}

/* [3,32,32], whatever the files hold; batches turn bytes into numbers from 0 to 1. */
static wf_dataset *as_rgb(wf_dataset *images)
{
    wf_dataset_info info;
    if (wf_dataset_info_get(images, &info) != WF_OK)
        return NULL;
    if (info.shape.dim[0] != 3)
        images = wf_transform_channels(images, 3);
    if (info.shape.dim[1] == 28 && info.shape.dim[2] == 28)
        images = wf_transform_random_crop(images, 2, 32, 32); /* two black pixels all around */
    else if (info.shape.dim[1] != 32 || info.shape.dim[2] != 32)
        images = wf_transform_resize(images, 32, 32);
    return images;
}

/* The losses of the examples take the labels 0 to 9. */
static void check_labels(wf_comm *comm, const char *dir, wf_dataset *images)
{
    char complaint[512] = "";
    wf_dataset_info info;
    WF_MUST(wf_dataset_info_get(images, &info));
    if (!info.labels || info.classes > 10)
        snprintf(complaint, sizeof complaint, "%.400s: labels of %lld classes, should be 1 to 10",
                 dir ? dir : "WEFT_DATA", (long long)info.classes);
    example_agree(comm, *complaint ? complaint : NULL);
}

wf_dataset *images_open(wf_comm *comm, const wf_mesh *mesh, const char *dir, wf_dataset_split split, bool labels)
{
    const char *home = dir ? NULL : usual_folder(comm);
    const bool each = is_hdf5(dir);
    wf_dataset *files = each || wf_comm_rank(comm) == 0 ? choose(comm, dir, home, split, labels) : NULL;
    wf_dataset *images =
        wf_mesh_scatter_dataset(mesh, files, (wf_scatter_opts){.shuffle = split == WF_TRAIN_SET, .each_reads = each});
    example_check(comm, wf_check(images));
    if (labels)
        check_labels(comm, dir, images);
    images = as_rgb(images);
    example_check(comm, wf_check(images));
    return images;
}

/* --- With labels, as they are ------------------------------------------------------------------------------------- */

/* In `from` (room for 4096 bytes) what dir has for this split, or dir itself. */
static const char *part_of(const char *dir, wf_dataset_split split, char *from)
{
    static const char *const parts[][2] = {{"train", "train*.h5"}, {"val", "val*.h5"}};
    snprintf(from, 4096, "%s", dir);
    if (is_hdf5(dir))
        return from;
    for (int i = 0; i < 2; i++)
        if (exists(dir, parts[0][i]) && exists(dir, parts[1][i])) {
            snprintf(from, 4096, "%.4000s/%s", dir, parts[split == WF_TEST_SET][i]);
            break;
        }
    return from;
}

static bool is_word(const char *dir)
{
    return !strcmp(dir, "fashion-mnist") || !strcmp(dir, "cifar10") || !strcmp(dir, "cifar100");
}

/* Too many to be kept in memory: each rank reads its own. */
static bool is_large(const char *from)
{
    return !is_word(from) &&
           (is_hdf5(from) || (!has_cifar(from) && !exists(from, "cifar-100-binary") && !has_idx(from)));
}

static wf_dataset *labelled_files(wf_ctx *ctx, const char *from, const images_opts *o)
{
    if (strcmp(from, "fashion-mnist") == 0)
        return wf_mnist(ctx, NULL, o->split);
    if (strcmp(from, "cifar10") == 0)
        return wf_cifar10(ctx, NULL, o->split);
    if (strcmp(from, "cifar100") == 0)
        return wf_cifar100(ctx, NULL, o->split);
    if (is_hdf5(from))
        return wf_hdf5_dataset(ctx, from, (wf_hdf5_opts){0});
    if (exists(from, "cifar-100-binary"))
        return wf_cifar100(ctx, from, o->split);
    if (has_cifar(from))
        return wf_cifar10(ctx, from, o->split);
    if (has_idx(from))
        return wf_mnist(ctx, from, o->split);
    return wf_image_folder(ctx, from, (wf_image_folder_opts){.height = o->side, .width = o->side});
}

/* Evenly out of all, since files are often in the order of their classes. An error shows when the files are used. */
static wf_dataset *some_of(wf_dataset *files, int64_t limit)
{
    const int64_t count = wf_dataset_count(files);
    if (limit == 0 || count <= limit)
        return files;
    int64_t *index = malloc((size_t)limit * sizeof *index);
    if (!index)
        example_abort("no memory for %lld numbers", (long long)limit);
    for (int64_t i = 0; i < limit; i++)
        index[i] = i * count / limit;
    files = wf_subset(files, limit, index);
    free(index);
    return files;
}

/* The classes of a folder of pictures are its subfolders in their order, so train and val need the same ones. */
static void compare_classes(const char *dir, char complaint[512])
{
    static const char *const part[2] = {"train", "val"};
    glob_t found[2] = {0};
    char pattern[4200];
    size_t head[2];
    for (int i = 0; i < 2; i++) {
        head[i] = (size_t)snprintf(pattern, sizeof pattern, "%.4000s/%s/*/", dir, part[i]) - 2;
        if (glob(pattern, 0, NULL, &found[i]) == GLOB_NOSPACE)
            example_abort("no memory for the folders of %s", dir);
    }
    const size_t n = found[0].gl_pathc, m = found[1].gl_pathc;
    for (size_t i = 0; (i < n || i < m) && !*complaint; i++) {
        const char *const train = i < n ? found[0].gl_pathv[i] + head[0] : "none";
        const char *const val = i < m ? found[1].gl_pathv[i] + head[1] : "none";
        if (strcmp(train, val) != 0)
            snprintf(complaint, 512,
                     "%.300s: folder %zu is %.60s in train and %.60s in val: should be the same classes", dir, i + 1,
                     train, val);
    }
    globfree(&found[0]);
    globfree(&found[1]);
}

wf_dataset *images_labelled(wf_comm *comm, const wf_mesh *mesh, images_opts o)
{
    char path[4096];
    const char *from = part_of(o.dir, o.split, path);
    const bool each = is_large(from);
    wf_dataset *files = NULL;
    if (each || wf_comm_rank(comm) == 0)
        files = some_of(labelled_files(wf_comm_ctx(comm), from, &o), o.limit);
    wf_dataset *images =
        wf_mesh_scatter_dataset(mesh, files, (wf_scatter_opts){.shuffle = o.split == WF_TRAIN_SET, .each_reads = each});
    example_check(comm, wf_check(images));
    wf_dataset_info info;
    example_check(comm, wf_dataset_info_get(images, &info));
    char complaint[512] = "";
    if (o.split == WF_TEST_SET && exists(o.dir, "train") && strcmp(from, o.dir) != 0 && !is_hdf5(from))
        compare_classes(o.dir, complaint);
    if (!info.labels || info.classes < 1 || info.shape.rank != 3)
        snprintf(complaint, sizeof complaint, "%.400s: should be images with labels", from);
    example_agree(comm, *complaint ? complaint : NULL);
    return images;
}
