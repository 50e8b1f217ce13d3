/* Volumes with fractals of five kinds, and what is where: the problem of LBANN's ScaFFold benchmark, made in place. A
 * volume depends on the seed and its number alone, so any rank can make any part of it. */
#ifndef EXAMPLES_FRACTALS_H
#define EXAMPLES_FRACTALS_H

#include <weft/weft.h>

/* Background is class 0. */
enum { FRACTAL_CLASSES = 6 };

/* The part `box` of volumes `first`, `first` + 1, ... [N,1,D,H,W] of sides `side`: brightness into x, the class of each
 * voxel into label, which both take as many numbers as the box has voxels. Local. */
void fractals_draw(uint64_t seed, int64_t first, int64_t side, wf_box box, float *x, int64_t *label);

#endif
