#include "examples/images.h"

#include <glob.h>
#include <stdlib.h>

static bool exists(const char *dir, const char *pattern)
{
    glob_t found;
    const bool any = glob(example_path(dir, pattern), 0, NULL, &found) == 0;
    globfree(&found);
    return any;
}

static wf_dataset *choose(wf_ctx *ctx, const char *dir, wf_split split, bool any, const char **what)
{
    const char *home = getenv("WEFT_DATA");
    if (!dir && home && exists(home, "cifar-10-batches-bin"))
        dir = home;
    if (!dir) {
        *what = "Fashion-MNIST, photographs of clothes, as 32x32 RGB (--data DIR takes other images)";
        return wf_mnist(ctx, NULL, split);
    }
    if (exists(dir, "*_batch*.bin") || exists(dir, "cifar-10-batches-bin")) {
        *what = "CIFAR-10";
        return wf_cifar10(ctx, dir, split);
    }
    *what = any ? "the images of a folder" : "the images of IDX files";
    return any ? wf_image_folder(ctx, dir, (wf_image_folder_opts){.height = 32, .width = 32})
               : wf_mnist(ctx, dir, split);
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
    return images;
}

wf_dataset *images_open(wf_comm *comm, wf_comm *samples, const char *dir, wf_split split, bool any)
{
    const char *what = NULL;
    wf_dataset *mine = wf_comm_rank(samples) == 0 ? choose(wf_comm_ctx(comm), dir, split, any, &what) : NULL;
    if (wf_comm_rank(comm) == 0 && split == WF_TRAIN_SET)
        printf("data: %s%s%s\n", what, dir ? " in " : "", dir ? dir : "");
    wf_dataset *images = wf_scatter_dataset(samples, mine, (wf_scatter_opts){.shuffle = split == WF_TRAIN_SET});
    example_check(comm, wf_check(images));
    images = as_rgb(images);
    example_check(comm, wf_check(images));
    return images;
}
