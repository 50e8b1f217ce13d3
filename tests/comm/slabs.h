/* A halo that an exchange holds in slabs, made of an array of the need-box and written to one. */
#ifndef TESTS_COMM_SLABS_H
#define TESTS_COMM_SLABS_H

#include "comm/exchange_author.h"
#include "tests/ranks.h"

#include <stdlib.h>
#include <string.h>

/* Copies all slabs into `whole`, the need-box in row-major order, or back. */
static inline void slabs_copy(const wf_exchange *e, wf_order order, double *in_slabs, double *whole, bool back)
{
    const wf_slabs *slabs = wf_exchange_slabs(e);
    const wf_box need = slabs->need;
    for (int s = 0; s < slabs->n; s++) {
        const wf_box box = slabs->box[s];
        int64_t stride[WF_MAX_RANK], at[WF_MAX_RANK];
        int d = 0;
        wf_order_strides(wf_box_shape(box), order, stride);
        memcpy(at, box.lo, sizeof at);
        while (d >= 0) {
            int64_t from = slabs->at[s], to = 0;
            for (int k = 0; k < box.rank; k++) {
                from += (at[k] - box.lo[k]) * stride[k];
                to = to * (need.hi[k] - need.lo[k]) + at[k] - need.lo[k];
            }
            if (back)
                in_slabs[from] = whole[to];
            else
                whole[to] = in_slabs[from];
            for (d = box.rank - 1; d >= 0 && ++at[d] == box.hi[d]; d--)
                at[d] = box.lo[d];
        }
    }
}

static inline double *slabs_read(const wf_tensor *x)
{
    wf_tensor *host = wf_tensor_copy(x, WF_F64, WF_ROW_MAJOR);
    double *values = calloc((size_t)wf_tensor_count(x) + 1, sizeof *values);
    WF_EXPECT_OK(wf_tensor_export(host, values, wf_tensor_bytes(host)));
    wf_tensor_free(host);
    return values;
}

/* The slabs of the halo of y, which holds the need-box. order: of the exchange. */
static inline wf_tensor *slabs_of(const wf_exchange *e, wf_order order, const wf_tensor *y)
{
    const wf_shape shape = WF_SHAPE(wf_exchange_slabs(e)->elements);
    double *whole = slabs_read(y), *in_slabs = calloc((size_t)shape.dim[0] + 1, sizeof *in_slabs);
    slabs_copy(e, order, in_slabs, whole, true);
    wf_tensor *host = wf_tensor_from_host(ctx, WF_F64, shape, in_slabs);
    wf_tensor *slabs = wf_tensor_copy(host, wf_tensor_dtype(y), WF_ROW_MAJOR);
    wf_tensor_free(host);
    free(whole);
    free(in_slabs);
    return slabs;
}

/* Writes the slabs to y and frees them. */
static inline void slabs_put(const wf_exchange *e, wf_order order, wf_tensor *slabs, wf_tensor *y)
{
    double *whole = slabs_read(y), *in_slabs = slabs_read(slabs);
    slabs_copy(e, order, in_slabs, whole, false);
    wf_tensor *host = wf_tensor_from_host(ctx, WF_F64, wf_tensor_shape(y), whole);
    WF_EXPECT_OK(wf_tensor_assign(y, host));
    wf_tensor_free(host);
    wf_tensor_free(slabs);
    free(whole);
    free(in_slabs);
}

#endif
