/* Small helpers on the arrays that kernels take: counts, samples-channels-pixels, strides. Pure arithmetic; it never
 * reads the elements. */
#include "core/kernels_author.h"

int64_t wf_array_count(const wf_array *a)
{
    return wf_shape_count(a->shape);
}

void wf_array_ncp(const wf_array *a, int64_t *n, int64_t *c, int64_t *pixels)
{
    /* Rank 2 has no pixel dimensions: one pixel, so that normalisation and bias treat [N,C] and [N,C,H,W] alike. */
    int64_t product = 1;
    for (int d = 2; d < a->shape.rank; d++)
        product *= a->shape.dim[d];
    if (n)
        *n = a->shape.dim[0];
    if (c)
        *c = a->shape.dim[1];
    if (pixels)
        *pixels = product;
}

wf_strided wf_array_strided(const wf_array *a)
{
    wf_strided view = {.data = a->data, .dtype = a->dtype, .rank = a->shape.rank};
    for (int d = 0; d < a->shape.rank; d++)
        view.dim[d] = a->shape.dim[d];
    wf_order_strides(a->shape, a->order, view.stride);
    return view;
}
