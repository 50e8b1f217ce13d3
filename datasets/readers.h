/* Readers: data sets from files, memory and random numbers. Constructors are lazy and local; the first use returns
 * an error that names a file which is missing (WF_ERR_IO) or malformed (WF_ERR_FORMAT). Texts and arrays are copied.
 * The caller frees a data set, unless a decorator, wf_scatter_dataset or an iterator owns it. */
#ifndef WF_DATASETS_READERS_H
#define WF_DATASETS_READERS_H

#include "datasets/dataset.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A file of the IDX format, plain or gzip: u8, i32, f32 or f64; a file of rank 3 gives images [1,H,W], others samples
 * of the file's own shape. labels_path (u8 or i32, as many as samples) may be NULL; classes is the largest label
 * plus 1. */
wf_dataset *wf_idx(wf_ctx *ctx, const char *images_path, const char *labels_path);

/* MNIST or Fashion-MNIST, u8 [1,28,28], 10 classes, by the standard names (train-images-idx3-ubyte, with or without
 * .gz). dir NULL: $WEFT_DATA or $WEFT_DATA/fashion-mnist; where that is not set, Debian's
 * /usr/share/datasets/fashion-mnist. */
wf_dataset *wf_mnist(wf_ctx *ctx, const char *dir, wf_dataset_split split);

/* CIFAR's binary files, u8 [3,32,32], in dir or in dir/cifar-10-batches-bin (cifar-100-binary). dir NULL: $WEFT_DATA.
 * CIFAR-100 gives the fine labels. */
wf_dataset *wf_cifar10(wf_ctx *ctx, const char *dir, wf_dataset_split split);
wf_dataset *wf_cifar100(wf_ctx *ctx, const char *dir, wf_dataset_split split);

typedef struct wf_image_folder_opts {
    int64_t height, width; /* pixels; every image is resized to them; default: those of the first image */
    int64_t channels;      /* 1 (grey) to 4 (RGBA); default 3 */
} wf_image_folder_opts;

/* The PNG and JPEG files of a folder in the order of their names, u8 [channels,height,width]. Where it has
 * subfolders those, in order, are the classes, and every image must be in one. An image is read when it is needed,
 * and turned upright as its EXIF data say; a damaged image, or a JPEG of four channels without Adobe's marker, is
 * WF_ERR_FORMAT at that time. */
wf_dataset *wf_image_folder(wf_ctx *ctx, const char *dir, wf_image_folder_opts opts);

typedef struct wf_catalogue_opts {
    const char *path;     /* a folder of message catalogues (*.mo), or one; default:
                             /usr/share/locale/LANGUAGE/LC_MESSAGES */
    const char *language; /* such as "de"; required where there is no path */
    int64_t least, most;  /* bytes of a sentence; default 4 and 60 */
} wf_catalogue_opts;

/* Pairs of sentences from GNU gettext's message catalogues, which programs of every Linux system have: a message in
 * English and its translation, u8 [2,most], each in the catalogue's encoding (UTF-8 in Debian) and filled with zeros.
 * Left out are plural forms, messages with a context or of several lines, those beyond the lengths, and those that the
 * translation repeats. A message that several catalogues have is one sample, the first in the order of their names.
 * Every tenth by a hash of the message is of the test set, so the two share no message. A damaged file is
 * WF_ERR_FORMAT. */
wf_dataset *wf_catalogue(wf_ctx *ctx, wf_catalogue_opts opts, wf_dataset_split split);

/* shape is [count, sample...]; x lists the elements row-major; labels (0 or more each) may be NULL. */
wf_dataset *wf_memory_dataset(wf_ctx *ctx, wf_dtype dtype, wf_shape shape, const void *x, const int64_t *labels);
/* Like wf_memory_dataset, from tensors; labels are i64 [count] or NULL ("no labels": an error on the way to it is
 * reported later). */
wf_dataset *wf_tensor_dataset(const wf_tensor *x, const wf_tensor *labels);

typedef struct wf_synthetic_opts {
    int64_t count;   /* default 1000 */
    wf_shape shape;  /* of one sample; default [3,32,32] */
    int64_t classes; /* default 10 */
    uint64_t seed;   /* default: the context's */
} wf_synthetic_opts;

/* Synthetic u8 images that a model can learn to classify: a pattern of waves for each class, plus noise. Sample i
 * has label i mod classes; the same seed gives the same images, and a longer set begins with the shorter one. */
wf_dataset *wf_synthetic(wf_ctx *ctx, wf_synthetic_opts opts);

/* No samples, of the shape, type and classes of `like`; NULL: scalars without labels. */
wf_dataset *wf_empty_dataset(wf_ctx *ctx, const wf_dataset_info *like);

/* Samples index[0], index[1], ... of a data set that is not scattered. Owns it. */
wf_dataset *wf_subset(wf_dataset *dataset, int64_t count, const int64_t *index);

#ifdef __cplusplus
}
#endif
#endif
