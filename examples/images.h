/* Images to train on. */
#ifndef EXAMPLES_IMAGES_H
#define EXAMPLES_IMAGES_H

#include "examples/common.h"

/* dir: CIFAR-10's binary files, MNIST's or Fashion-MNIST's; a file FILE.h5 that wf-data made, of which each rank reads
 * its own part; or, if images without `labels` will do, a folder of PNG and JPEG files. NULL: CIFAR-10 or MNIST's files
 * below WEFT_DATA, and where that is not set, Debian's Fashion-MNIST. Rank 0 opens it and says what it is; each place
 * along the mesh's data axis gets its part as [3,32,32]. With `labels`, of which there may be 10 kinds, images without
 * are an error. Ends the program, with one line, if it fails. Collective over `comm`, which is the whole mesh. */
wf_dataset *images_open(wf_comm *comm, const wf_mesh *mesh, const char *dir, wf_dataset_split split, bool labels);

/* Images with labels as they are in files, of any size and number of classes, for images_labelled. */
typedef struct images_opts {
    /* A folder of CIFAR-10, CIFAR-100, MNIST or Fashion-MNIST; HDF5 files of wf-data ("train-*.h5"); a folder with
     * a subfolder for each class; or one that has "train" and "val" of such subfolders, or "train*.h5" and "val*.h5",
     * as ImageNet is kept. fashion-mnist, cifar10 or cifar100: those below WEFT_DATA, or Debian's. */
    const char *dir;
    wf_dataset_split split; /* of what is in dir; other files have one part alone */
    int64_t side;           /* pixels to which the pictures of a folder are brought */
    int64_t limit;          /* so many images, evenly out of all; 0: all */
} images_opts;

/* u8 [C,H,W], shuffled for training; each place along the mesh's data axis gets its part. Rank 0 opens and scatters
 * what is small; HDF5 files and folders of pictures are read by each rank for itself. Ends the program, with one line,
 * if it fails. Collective over the whole mesh. */
wf_dataset *images_labelled(wf_comm *comm, const wf_mesh *mesh, images_opts o);

#endif
