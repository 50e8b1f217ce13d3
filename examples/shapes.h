/* Endless noisy images, or volumes, of round and square things, and exact masks of what is round. A pixel depends on
 * the seed, the number of its image and its place in the whole alone, so that any rank can make any part. */
#ifndef EXAMPLES_SHAPES_H
#define EXAMPLES_SHAPES_H

#include <weft/weft.h>

/* The part `box` of images `first`, `first` + 1, ... [N,1,(D,)H,W] of sides `side`: values of about 0 to 1 into x, 0
 * and 1 into mask, which both take as many numbers as the box has pixels. Local. */
void shapes_draw(uint64_t seed, int64_t first, int64_t side, wf_box box, float *x, float *mask);

#endif
