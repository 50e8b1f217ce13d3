/* Shapes, boxes and orders of memory: plain arithmetic on values, called everywhere. It never allocates and never
 * records an error; a result that does not exist is an empty box, rank -1 or count -1. */
#include "core/shape.h"

#include <inttypes.h>
#include <stdio.h>

wf_shape wf_shape_make(int rank, const int64_t *dim)
{
    /* Ranks of shapes come from callers and files, and dim is an array of fixed length. */
    if (rank < 0 || rank > WF_MAX_RANK || (rank > 0 && !dim))
        return (wf_shape){.rank = -1};
    wf_shape shape = {.rank = rank};
    for (int d = 0; d < rank; d++)
        shape.dim[d] = dim[d];
    return shape;
}

wf_shape wf_shape_scalar(void)
{
    return (wf_shape){0};
}

bool wf_shape_equal(wf_shape a, wf_shape b)
{
    if (a.rank != b.rank)
        return false;
    for (int d = 0; d < a.rank; d++)
        if (a.dim[d] != b.dim[d])
            return false;
    return true;
}

int64_t wf_shape_count(wf_shape shape)
{
    if (shape.rank < 0 || shape.rank > WF_MAX_RANK)
        return -1;
    /* Emptiness is found first: [0, huge, huge] has no elements, whereas its product would overflow on the way. */
    bool empty = false;
    for (int d = 0; d < shape.rank; d++) {
        if (shape.dim[d] < 0)
            return -1;
        empty = empty || shape.dim[d] == 0;
    }
    if (empty)
        return 0;
    int64_t count = 1;
    for (int d = 0; d < shape.rank; d++)
        if (__builtin_mul_overflow(count, shape.dim[d], &count))
            return -1;
    return count;
}

const char *wf_shape_text(wf_shape shape, char text[WF_SHAPE_TEXT])
{
    if (!text)
        return "";
    int at = snprintf(text, WF_SHAPE_TEXT, "[");
    for (int d = 0; d < shape.rank && d < WF_MAX_RANK; d++)
        at += snprintf(text + at, (size_t)(WF_SHAPE_TEXT - at), "%s%" PRId64, d ? "," : "", shape.dim[d]);
    snprintf(text + at, (size_t)(WF_SHAPE_TEXT - at), "%s]", shape.rank < 0 ? "impossible rank" : "");
    return text;
}

/* Images and volumes have their channels innermost, since most kernels read all channels of a pixel together. */
wf_order wf_order_default(int rank)
{
    return rank >= 4 ? WF_CHANNELS_LAST : WF_ROW_MAJOR;
}

void wf_order_strides(wf_shape shape, wf_order order, int64_t stride[WF_MAX_RANK])
{
    if (!stride)
        return;
    /* Channels (dimension 1) are innermost; the other dimensions keep their order around them. */
    const bool last = order == WF_CHANNELS_LAST && shape.rank > 1;
    int64_t step = 1;
    if (last) {
        stride[1] = 1;
        step = shape.dim[1];
    }
    for (int d = shape.rank - 1; d >= 0; d--) {
        /* The stride of the channels is set already. */
        if (last && d == 1)
            continue;
        stride[d] = step;
        step *= shape.dim[d];
    }
}

/* The dimension that lies at place i of memory, the outermost first. */
int wf_order_dim(wf_order order, int rank, int i)
{
    /* Channels last: sample, the spatial dimensions, channel. */
    if (order == WF_ROW_MAJOR || rank < 3)
        return i;
    return i == 0 ? 0 : i == rank - 1 ? 1 : i + 1;
}

wf_box wf_box_of_shape(wf_shape shape)
{
    wf_box box = {.rank = shape.rank};
    for (int d = 0; d < shape.rank; d++)
        box.hi[d] = shape.dim[d];
    return box;
}

/* A box whose upper bound is below the lower one has length 0 there. */
wf_shape wf_box_shape(wf_box box)
{
    wf_shape shape = {.rank = box.rank};
    for (int d = 0; d < box.rank; d++)
        shape.dim[d] = box.hi[d] > box.lo[d] ? box.hi[d] - box.lo[d] : 0;
    return shape;
}

bool wf_box_empty(wf_box box)
{
    for (int d = 0; d < box.rank; d++)
        if (box.hi[d] <= box.lo[d])
            return true;
    return false;
}

bool wf_box_equal(wf_box a, wf_box b)
{
    if (a.rank != b.rank)
        return false;
    for (int d = 0; d < a.rank; d++)
        if (a.lo[d] != b.lo[d] || a.hi[d] != b.hi[d])
            return false;
    return true;
}

wf_box wf_box_intersect(wf_box a, wf_box b)
{
    wf_box box = {.rank = a.rank};
    for (int d = 0; d < a.rank; d++) {
        box.lo[d] = a.lo[d] > b.lo[d] ? a.lo[d] : b.lo[d];
        box.hi[d] = a.hi[d] < b.hi[d] ? a.hi[d] : b.hi[d];
    }
    if (a.rank == b.rank && !wf_box_empty(box))
        return box;
    /* All empty boxes of an intersection are this one, so they compare equal. */
    return (wf_box){.rank = a.rank};
}

/* An empty box lies in every box, wherever its bounds are. */
bool wf_box_contains(wf_box outer, wf_box inner)
{
    return wf_box_empty(inner) || wf_box_equal(wf_box_intersect(outer, inner), inner);
}

/* Both boxes are in the same coordinates; the result counts from the lower corner of `origin`. */
wf_box wf_box_relative(wf_box box, wf_box origin)
{
    for (int d = 0; d < box.rank; d++) {
        box.lo[d] -= origin.lo[d];
        box.hi[d] -= origin.lo[d];
    }
    return box;
}

void wf_block(int64_t n, int64_t p, int64_t r, int64_t *lo, int64_t *hi)
{
    if (!lo || !hi)
        return;
    *lo = *hi = 0;
    if (p <= 0)
        return;
    /* The first n mod p blocks are longer by one. Layouts, shards and data sets all divide by this rule, so their
     * blocks agree without a message. */
    const int64_t base = n / p, more = n % p;
    *lo = r * base + (r < more ? r : more);
    *hi = *lo + base + (r < more ? 1 : 0);
}
