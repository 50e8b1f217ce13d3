/* Images of 32x32 pixels in colour, to train on. */
#ifndef EXAMPLES_IMAGES_H
#define EXAMPLES_IMAGES_H

#include "examples/common.h"

/* dir: CIFAR-10's binary files, MNIST's or Fashion-MNIST's, or, if `any` images will do, a folder of PNG and JPEG
 * files; NULL: CIFAR-10 below WEFT_DATA if it is there, else Debian's Fashion-MNIST. Rank 0 of `samples` opens it, and
 * rank 0 of `comm`, which is all ranks, says what it is; each rank of `samples` gets its part as [3,32,32]. Ends the
 * program, with one line, if that fails. Collective. */
wf_dataset *images_open(wf_comm *comm, wf_comm *samples, const char *dir, wf_split split, bool any);

#endif
