/* Curves as a picture, drawn by gnuplot. */
#ifndef EXAMPLES_PLOT_H
#define EXAMPLES_PLOT_H

#include <stdint.h>

#define CURVES 2

/* Points of two curves over x. Zero is an empty start. */
typedef struct curves {
    const char *x_name, *name[CURVES];
    int64_t count, capacity;
    double (*point)[1 + CURVES];
} curves;

void curves_add(curves *c, double x, const double y[CURVES]);
void curves_free(curves *c);
/* Writes `script` (gnuplot's, with the numbers) and, under its name when it is whole, the SVG file `picture`. 0, or -1
 * where there is no gnuplot or it failed; the script is there then. */
int curves_draw(const curves *c, const char *script, const char *picture);
/* Draws the picture of a script that exists. */
int script_draw(const char *script, const char *picture);

#endif
