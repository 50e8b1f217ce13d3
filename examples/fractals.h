/* Volumes with fractals of five kinds, and what is where: the problem of LBANN's ScaFFold benchmark, made in place. A
 * volume depends on the seed and its number alone, so any rank can make any part of it. */
#ifndef EXAMPLES_FRACTALS_H
#define EXAMPLES_FRACTALS_H

#include <weft/weft.h>

/* Background is class 0. */
enum { FRACTAL_CLASSES = 6, FRACTAL_COLOURS = 3 };

/* The part `box` of volumes `first`, `first` + 1, ... [N,C,D,H,W] of sides `side`. With FRACTAL_COLOURS channels a
 * voxel has the colour of its kind, as in the benchmark; with one it has a brightness, which is that of all kinds, so
 * that their form alone tells them apart. The box has all channels. Writes colours or brightness into x, as many
 * numbers as the box has, and the class of each voxel into label [N,D,H,W]. Local. */
void fractals_draw(uint64_t seed, int64_t first, int64_t side, wf_box box, float *x, int64_t *label);

#endif
