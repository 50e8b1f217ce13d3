/* Shared by programs about the planet: a globe's boundary, areas of rows, the seam of an array, and pictures. Fields
 * are [rows,columns] on the host, rows are latitudes and columns longitudes. */
#ifndef EXAMPLES_PLANET_H
#define EXAMPLES_PLANET_H

#include "examples/common.h"

/* Circular along columns, and across the poles, on which the first and the last row lie if `on_poles`. The channels
 * listed change their sign there, as components of vectors do. */
wf_boundary planet_globe(bool on_poles, int n_negated, const int64_t *negated);

/* Areas of rows at these latitudes (degrees), with a mean of 1: each reaches half way to its neighbours, or to a pole.
 */
void planet_area(int64_t rows, const double *latitude, double *area);

/* Sums of absolute differences between each column and the next one, weighted by area. The last column's, to the first
 * one, is the seam of the array. Zero is an empty start. */
typedef struct planet_jumps {
    int64_t columns;
    double *sum, *weight; /* of each column */
} planet_jumps;
void planet_add_jumps(planet_jumps *j, const float *field, int64_t rows, int64_t columns, const double *area);
void planet_jumps_free(planet_jumps *j);
/* The mean jump behind a column over that of all other columns. */
double planet_jump(const planet_jumps *j, int64_t column);

/* A field in a picture: blue at -limit, white at 0, red at limit, grey where it is not finite. */
typedef struct planet_panel {
    const float *field;
    double limit;
} planet_panel;
/* `down` rows of `across` panels, as a PNG: north is up, and the columns are turned by half, so that the seam of the
 * array is in the middle of each. A large field is thinned. Rank 0 calls it. */
void planet_picture(wf_ctx *ctx, const char *path, int down, int across, const planet_panel *panels, int64_t rows,
                    int64_t columns, bool south_first);

#endif
