/* A page of plots of all studies in a folder: halo-P.csv of P ranks, and extrapolation.csv. */
#ifndef EXAMPLES_HALO_PLOTS_H
#define EXAMPLES_HALO_PLOTS_H

/* Writes halo.gnuplot and, with it, halo.svg. 0, or -1 where there is no gnuplot or it failed. */
int halo_plots(const char *dir);

#endif
