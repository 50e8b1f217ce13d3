/* Waves on shallow water, in a square whose edges meet: a solver as many have one, with ranks, memory and messages of
 * its own. It knows MPI and nothing of the library.
 *
 * Finite volumes with Rusanov's flux, which is robust and smears waves that have few cells; one step of Euler's. The
 * mean depth is 10 and waves go at speed 1, so that depth and momentum of small waves are of size 1.
 */
#ifndef EXAMPLES_SHALLOW_H
#define EXAMPLES_SHALLOW_H

#include <mpi.h>
#include <stdbool.h>
#include <stdint.h>

/* Fields of a cell: the water above the mean depth, and momentum along x (columns) and y (rows). */
enum { SHALLOW_FIELDS = 3 };

typedef struct shallow {
    MPI_Comm comm; /* borrowed */
    int rank, ranks;
    int64_t side;        /* cells along each side */
    int64_t first, rows; /* of this rank */
    float ratio;         /* of a time step to the width of a cell */
    float *fields;       /* [rows][side][SHALLOW_FIELDS]; a row more on either side is the neighbours' */
    float *next;         /* as `fields` */
} shallow;

/* The first row of each rank, and after them `side`: the first rank, which also writes the output, has half as many
 * rows as the others. */
void shallow_bounds(int64_t side, int ranks, int64_t *first);
/* `first` as by shallow_bounds. False if there is no memory. Local. */
bool shallow_open(shallow *s, MPI_Comm comm, int64_t side, const int64_t *first, double ratio);
void shallow_close(shallow *s);

/* Random waves of this number, the same on any number of ranks and cells. Local. */
void shallow_waves(shallow *s, uint64_t number);
/* Computes into `next` what `fields` are a time step later. Collective. */
void shallow_compute(shallow *s);
/* `next` becomes `fields`. Local. */
void shallow_turn(shallow *s);
/* Means over blocks of cells of a finer solver, whose sides are `of` times as many, into `fields`. Local. */
void shallow_coarsen(shallow *s, const shallow *fine, int64_t of);

#endif
