/* Images of 32x32 pixels in colour, to train on. */
#ifndef EXAMPLES_IMAGES_H
#define EXAMPLES_IMAGES_H

#include "examples/common.h"

/* dir: CIFAR-10's binary files, MNIST's or Fashion-MNIST's; a file FILE.h5 that wf-data made, of which each rank reads
 * its own part; or, if images without `labels` will do, a folder of PNG and JPEG files. NULL: CIFAR-10 or MNIST's files
 * below WEFT_DATA, and where that is not set, Debian's Fashion-MNIST. Rank 0 opens it and says what it is; each place
 * along the mesh's data axis gets its part as [3,32,32]. With `labels`, of which there may be 10 kinds, images without
 * are an error. Ends the program, with one line, if it fails. Collective over `comm`, which is the whole mesh. */
wf_dataset *images_open(wf_comm *comm, const wf_mesh *mesh, const char *dir, wf_dataset_split split, bool labels);

#endif
