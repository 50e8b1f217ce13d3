/* Each face of a cell is computed for the cell on either side, so a cell's bits do not depend on where ranks meet. */
#include "examples/shallow.h"

#include <math.h>
#include <stdlib.h>

enum { WAVES = 6, FINEST = 4 }; /* waves of a field, and the most of them along a side */

static const float depth = 10, gravity = 0.1F;

void shallow_bounds(int64_t side, int ranks, int64_t *first)
{
    first[0] = 0;
    for (int r = 1; r <= ranks; r++)
        first[r] = side * (2 * r - 1) / (2 * ranks - 1);
}

static size_t row_length(const shallow *s)
{
    return (size_t)s->side * SHALLOW_FIELDS;
}

bool shallow_open(shallow *s, MPI_Comm comm, int64_t side, const int64_t *first, double ratio)
{
    *s = (shallow){.comm = comm, .side = side, .ratio = (float)ratio};
    MPI_Comm_rank(comm, &s->rank);
    MPI_Comm_size(comm, &s->ranks);
    s->first = first[s->rank];
    s->rows = first[s->rank + 1] - s->first;
    float *fields = calloc((size_t)(s->rows + 2) * row_length(s), sizeof *fields);
    float *next = calloc((size_t)(s->rows + 2) * row_length(s), sizeof *next);
    s->fields = fields ? fields + row_length(s) : NULL;
    s->next = next ? next + row_length(s) : NULL;
    return fields && next;
}

void shallow_close(shallow *s)
{
    free(s->fields ? s->fields - row_length(s) : NULL);
    free(s->next ? s->next - row_length(s) : NULL);
    *s = (shallow){0};
}

/* In [0, 1): Vigna's splitmix64. */
static double draw(uint64_t *state)
{
    uint64_t z = *state += 0x9E3779B97F4A7C15U;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9U;
    z = (z ^ z >> 27) * 0x94D049BB133111EBU;
    return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}

void shallow_waves(shallow *s, uint64_t number)
{
    const double turn = 8 * atan(1);
    double wave[SHALLOW_FIELDS][WAVES][4]; /* amplitude, phase, waves along x and y */
    uint64_t state = number;
    for (int f = 0; f < SHALLOW_FIELDS; f++)
        for (int w = 0; w < WAVES; w++) {
            wave[f][w][0] = draw(&state) / 2;
            wave[f][w][1] = draw(&state) * turn;
            wave[f][w][2] = floor(draw(&state) * (2 * FINEST + 1)) - FINEST;
            wave[f][w][3] = floor(draw(&state) * (2 * FINEST + 1)) - FINEST;
        }
    float *at = s->fields;
    for (int64_t j = 0; j < s->rows; j++)
        for (int64_t i = 0; i < s->side; i++)
            for (int f = 0; f < SHALLOW_FIELDS; f++, at++) {
                const double x = ((double)i + 0.5) / (double)s->side;
                const double y = ((double)(s->first + j) + 0.5) / (double)s->side;
                double sum = 0;
                for (int w = 0; w < WAVES; w++)
                    sum += wave[f][w][0] * sin(turn * (wave[f][w][2] * x + wave[f][w][3] * y) + wave[f][w][1]);
                *at = (float)sum;
            }
}

/* The row on either side, of neighbours in a ring of ranks. */
static void exchange_rows(shallow *s)
{
    const int above = (s->rank + s->ranks - 1) % s->ranks, below = (s->rank + 1) % s->ranks;
    const int length = (int)row_length(s);
    float *const first = s->fields, *const last = first + (s->rows - 1) * length;
    MPI_Sendrecv(first, length, MPI_FLOAT, above, 1, last + length, length, MPI_FLOAT, below, 1, s->comm,
                 MPI_STATUS_IGNORE);
    MPI_Sendrecv(last, length, MPI_FLOAT, below, 2, first - length, length, MPI_FLOAT, above, 2, s->comm,
                 MPI_STATUS_IGNORE);
}

/* Fluxes of a cell along an axis, 1 (x) or 2 (y); returns the fastest speed there. */
static float flux_of(const float *cell, int axis, float flux[SHALLOW_FIELDS])
{
    const float h = depth + cell[0], speed = cell[axis] / h;
    flux[0] = cell[axis];
    flux[1] = cell[1] * speed;
    flux[2] = cell[2] * speed;
    flux[axis] += gravity * cell[0] * (depth + cell[0] / 2);
    return fabsf(speed) + sqrtf(gravity * h);
}

/* Rusanov's: the mean of both sides, and a diffusion at the fastest speed. Added to `sum`, times `sign`. */
static void add_flux(const float *low, const float *high, int axis, float sign, float sum[SHALLOW_FIELDS])
{
    float a[SHALLOW_FIELDS], b[SHALLOW_FIELDS];
    const float fast = fmaxf(flux_of(low, axis, a), flux_of(high, axis, b));
    for (int f = 0; f < SHALLOW_FIELDS; f++)
        sum[f] += sign * (a[f] + b[f] - fast * (high[f] - low[f])) / 2;
}

void shallow_compute(shallow *s)
{
    const int64_t length = (int64_t)row_length(s);
    exchange_rows(s);
    for (int64_t j = 0; j < s->rows; j++)
        for (int64_t i = 0; i < s->side; i++) {
            const float *row = s->fields + j * length, *cell = row + i * SHALLOW_FIELDS;
            float sum[SHALLOW_FIELDS] = {0};
            add_flux(row + (i + s->side - 1) % s->side * SHALLOW_FIELDS, cell, 1, 1, sum);
            add_flux(cell, row + (i + 1) % s->side * SHALLOW_FIELDS, 1, -1, sum);
            add_flux(cell - length, cell, 2, 1, sum);
            add_flux(cell, cell + length, 2, -1, sum);
            for (int f = 0; f < SHALLOW_FIELDS; f++)
                s->next[j * length + i * SHALLOW_FIELDS + f] = cell[f] + s->ratio * sum[f];
        }
}

void shallow_turn(shallow *s)
{
    float *const fields = s->fields;
    s->fields = s->next;
    s->next = fields;
}

void shallow_coarsen(shallow *s, const shallow *fine, int64_t of)
{
    const int64_t length = (int64_t)row_length(fine);
    float *to = s->fields;
    for (int64_t j = 0; j < s->rows; j++)
        for (int64_t i = 0; i < s->side; i++)
            for (int f = 0; f < SHALLOW_FIELDS; f++) {
                float sum = 0;
                for (int64_t k = 0; k < of * of; k++)
                    sum += fine->fields[(j * of + k / of) * length + (i * of + k % of) * SHALLOW_FIELDS + f];
                *to++ = sum / (float)(of * of);
            }
}
