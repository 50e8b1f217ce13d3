/* Decorators that change samples as they are read. They own the data set that they are given, also when they fail, and
 * nest: wf_transform_random_flip(wf_transform_random_crop(wf_cifar10(...), 4, 32, 32)).
 *
 * Random ones, which are data augmentation, depend on (seed, epoch, number of the sample), the transform's name and how
 * many of that name come before it in the chain, and on nothing else: neither on the number of ranks nor on other
 * transforms. Images and their masks, with equal seeds and the same random transforms in the same order, change alike.
 * wf_scatter_dataset reads each sample once and sends it, so apply random transforms after it, to its result: before it
 * every epoch would see the same ones. Cheap transforms are better applied after it too, since raw u8 samples are
 * smaller to send. All but normalise and scale take samples [C,H,W]; others are WF_ERR_SHAPE when the data set is
 * opened.
 */
#ifndef WF_DATASETS_TRANSFORMS_H
#define WF_DATASETS_TRANSFORMS_H

#include "datasets/dataset.h"

#ifdef __cplusplus
extern "C" {
#endif

/* (x - mean[c]) / std[c], one mean and std for each channel (dimension 0); u8 samples are divided by 255 first. Takes
 * u8 and f32, gives f32. `channels` is the length of the arrays; 1 counts for all channels. */
wf_dataset *wf_transform_normalise(wf_dataset *dataset, int64_t channels, const double *mean, const double *std);

/* u8 0 to 255 becomes f32 lo to hi. */
wf_dataset *wf_transform_scale(wf_dataset *dataset, double lo, double hi);

/* Mirrors left and right with probability 1/2. Not for digits or letters, which are others then. */
wf_dataset *wf_transform_random_flip(wf_dataset *dataset);

/* A random window of height x width (0: the sample's own) of the sample with `pad` zeros around it. A window as
 * large as the padded sample only pads. */
wf_dataset *wf_transform_random_crop(wf_dataset *dataset, int64_t pad, int64_t height, int64_t width);

/* The middle window instead; of an odd rest, the one further up and left. */
wf_dataset *wf_transform_centre_crop(wf_dataset *dataset, int64_t pad, int64_t height, int64_t width);

/* Bilinear, with averaging where the image shrinks. u8 and f32. */
wf_dataset *wf_transform_resize(wf_dataset *dataset, int64_t height, int64_t width);

/* 1 to n: copies; 3 or 4 to 1: luma (0.299, 0.587, 0.114); 4 to 3: drops alpha. u8 and f32. */
wf_dataset *wf_transform_channels(wf_dataset *dataset, int64_t channels);

#ifdef __cplusplus
}
#endif
#endif
