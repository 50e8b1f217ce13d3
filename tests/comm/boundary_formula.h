/* The elements beyond the edges of an array, one by one, by the formula of each edge: the oracle of boundaries.
 * And boundaries drawn at random, with boxes that reach as far as they are defined. */
#ifndef WF_TESTS_COMM_BOUNDARY_FORMULA_H
#define WF_TESTS_COMM_BOUNDARY_FORMULA_H

#include "core/boundary.h"
#include "tests/test.h"

#include <stdlib.h>

static inline wf_edge formula_edge(const wf_boundary *b, int d, bool upper)
{
    const wf_edge own = upper ? b->hi[d] : b->lo[d];
    return own ? own : b->edge;
}

/* Returns the source of element i of a dimension; -1: it has none. */
static inline int64_t formula_index(const wf_boundary *b, int d, int64_t i, int64_t length)
{
    if (i >= 0 && i < length)
        return i;
    const int64_t once = i < 0 ? -i : 2 * (length - 1) - i, twice = i < 0 ? -1 - i : 2 * length - 1 - i;
    switch (formula_edge(b, d, i >= 0)) {
    case WF_EDGE_CIRCULAR:
        return (i + length) % length;
    case WF_EDGE_REFLECT:
        return once;
    case WF_EDGE_SYMMETRIC:
        return twice;
    case WF_EDGE_REPLICATE:
        return i < 0 ? 0 : length - 1;
    case WF_EDGE_POLE:
        return b->row_on_pole ? once : twice;
    default:
        return -1;
    }
}

/* The element that lies at `at`, and its sign; sign 0: the boundary's value. */
static inline int formula_source(wf_shape whole, const wf_boundary *b, const int64_t *at, int64_t *source)
{
    const int turned = b->turned ? b->turned - 1 : whole.rank - 1;
    int sign = 1;
    bool beyond = false;
    for (int d = 0; d < whole.rank; d++) {
        source[d] = formula_index(b, d, at[d], whole.dim[d]);
        if (source[d] < 0)
            return 0;
        beyond = beyond || ((at[d] < 0 || at[d] >= whole.dim[d]) && formula_edge(b, d, at[d] >= 0) == WF_EDGE_POLE);
    }
    if (!beyond)
        return 1;
    source[turned] = (source[turned] + whole.dim[turned] / 2) % whole.dim[turned];
    for (int i = 0; i < b->n_negated; i++)
        sign = source[1] == b->negated[i] ? -1 : sign;
    return sign;
}

/* Notes an element of the whole among those that were seen, one flag each; false if it was there. */
static inline bool formula_notes(wf_shape whole, const int64_t *source, bool *seen)
{
    int64_t index = 0;
    for (int d = 0; d < whole.rank; d++)
        index = index * whole.dim[d] + source[d];
    const bool is_new = !seen[index];
    seen[index] = true;
    return is_new;
}

static inline bool *formula_none_seen(wf_shape whole)
{
    return calloc((size_t)wf_shape_count(whole) + 1, sizeof(bool));
}

/* How far the boundary reaches, `any` where it has no end. */
static inline int64_t formula_most(const wf_boundary *b, int d, bool upper, int64_t length, int64_t any)
{
    const wf_edge edge = formula_edge(b, d, upper);
    if (edge == WF_EDGE_REFLECT || (edge == WF_EDGE_POLE && b->row_on_pole))
        return length - 1;
    return edge == WF_EDGE_CIRCULAR || edge == WF_EDGE_SYMMETRIC || edge == WF_EDGE_POLE ? length : any;
}

/* Edges of every kind, mixed; every third with a pole, if there are two dimensions, and with channels that change their
 * sign, if dimension 1 is neither. The turned dimension becomes even. `floats`: there may be such channels. */
static inline wf_boundary formula_random(test_rng *rng, wf_shape *whole, bool floats)
{
    static const int64_t channels[] = {0, 2};
    wf_boundary b = {.edge = (wf_edge)test_int(rng, WF_EDGE_DEFAULT, WF_EDGE_REPLICATE)};
    b.value = (double)test_int(rng, -3, 3);
    for (int d = 0; d < whole->rank; d++) {
        b.lo[d] = (wf_edge)test_int(rng, WF_EDGE_DEFAULT, WF_EDGE_REPLICATE);
        b.hi[d] = (wf_edge)test_int(rng, WF_EDGE_DEFAULT, WF_EDGE_REPLICATE);
    }
    if (whole->rank < 2 || test_int(rng, 0, 2) > 0)
        return b;
    const int pole = (int)test_int(rng, 0, whole->rank - 1);
    const int turned = (pole + 1 + (int)test_int(rng, 0, whole->rank - 2)) % whole->rank;
    b.turned = turned == whole->rank - 1 && test_int(rng, 0, 1) ? 0 : WF_DIM(turned);
    b.lo[turned] = b.hi[turned] = WF_EDGE_CIRCULAR;
    b.row_on_pole = test_int(rng, 0, 1);
    whole->dim[turned] += whole->dim[turned] % 2;
    if (test_int(rng, 0, 2) > 0)
        b.lo[pole] = WF_EDGE_POLE;
    if (b.lo[pole] != WF_EDGE_POLE || test_int(rng, 0, 1))
        b.hi[pole] = WF_EDGE_POLE;
    if (!floats || pole == 1 || turned == 1 || whole->rank < 3)
        return b;
    b.negated = channels;
    b.n_negated = whole->dim[1] > 2 ? (int)test_int(rng, 0, 2) : 1;
    return b;
}

/* Dimensions that neither reach beyond nor are cropped: the channels that change their sign. */
static inline bool formula_keeps(const wf_boundary *b, int d)
{
    return b->n_negated > 0 && d == 1;
}

#endif
