/* Elements of boxes: the next one, whether a box has one, where it lies; and boxes at random. */
#ifndef WF_TESTS_BOXES_H
#define WF_TESTS_BOXES_H

#include "core/shape.h"
#include "tests/test.h"

/* Moves `at` to the next element of the box, the last dimension fastest; false after the last one. */
static inline bool box_next(wf_box box, int64_t *at)
{
    for (int d = box.rank - 1; d >= 0; d--) {
        if (++at[d] < box.hi[d])
            return true;
        at[d] = box.lo[d];
    }
    return false;
}

static inline bool box_has(wf_box box, const int64_t *at)
{
    for (int d = 0; d < box.rank; d++)
        if (at[d] < box.lo[d] || at[d] >= box.hi[d])
            return false;
    return true;
}

/* The number of an element in the box, by box_next from 0. */
static inline int64_t box_index(wf_box box, const int64_t *at)
{
    int64_t index = 0;
    for (int d = 0; d < box.rank; d++)
        index = index * (box.hi[d] - box.lo[d]) + at[d] - box.lo[d];
    return index;
}

/* A box within the shape; some are empty. */
static inline wf_box box_random(test_rng *rng, wf_shape shape)
{
    wf_box box = {.rank = shape.rank};
    for (int d = 0; d < shape.rank; d++) {
        const int64_t a = test_int(rng, 0, shape.dim[d]), b = test_int(rng, 0, shape.dim[d]);
        box.lo[d] = a < b ? a : b;
        box.hi[d] = a < b ? b : a;
    }
    return box;
}

#endif
