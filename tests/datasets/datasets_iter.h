/* What tests of iterators share. */
#ifndef WF_TESTS_DATASETS_ITER_H
#define WF_TESTS_DATASETS_ITER_H

#include "core/tensor_author.h"
#include "datasets/iterator.h"
#include "tests/test.h"

#include <math.h>

static inline wf_status next_and_free(wf_iter *iter)
{
    wf_batch b;
    const wf_status status = wf_iter_next(iter, &b);
    wf_iter_free(iter);
    return status;
}

/* The element at a place of the device's memory. */
static inline float memory_f32(const wf_tensor *x, int64_t place)
{
    float value = NAN;
    WF_EXPECT_OK(x->ctx->k->to_host(x->ctx, &value, (char *)x->data + (size_t)place * sizeof value, sizeof value));
    return value;
}

#endif
