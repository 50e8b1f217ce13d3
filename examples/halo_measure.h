/* Times and bytes of one convolution, serial and spatially parallel. */
#ifndef EXAMPLES_HALO_MEASURE_H
#define EXAMPLES_HALO_MEASURE_H

#include "examples/common.h"
#include "examples/halo_model.h"

enum { FORWARD, BOTH, DIRECTIONS }; /* BOTH: forward and backward */

/* Seconds are medians over repeats of what the slowest rank took. All ranks compute at once, also what is serial, and
 * what is compared takes turns, so that what disturbs the machine disturbs all of it. Exchanges alone are so short that
 * some are not disturbed at all: of them the least counts. */
typedef struct halo_row {
    halo_case what;
    double compute[DIRECTIONS];  /* the serial layer on this rank's part, without halos */
    double share[DIRECTIONS];    /* what a rank would take if the work split at no cost */
    double spatial[DIRECTIONS];  /* the parallel layer */
    double exposed[DIRECTIONS];  /* what of that was spent inside exchanges: packing, moving on, waiting */
    double exchange;             /* the forward halo alone; what a rank has itself stays where it is */
    double shortest;             /* the same with halos of a few bytes */
    int64_t bytes[DIRECTIONS];   /* sent by all ranks in one pass, counted in the transport */
    int64_t formula[DIRECTIONS]; /* what they should send */
    int64_t off;                 /* the ranks whose own bytes are not those of the formula */
    halo_sent busiest, busiest_shortest;
} halo_row;

/* Collective. */
halo_row halo_measure(wf_comm *comm, const halo_case *what, int64_t repeats);

#endif
