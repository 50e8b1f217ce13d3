/* Pads and rolls drawn at random, and what they give by the formula of each element. */
#ifndef WF_TESTS_LAYERS_PAD_QUESTION_H
#define WF_TESTS_LAYERS_PAD_QUESTION_H

#include "core/tensor_author.h"
#include "layers/pad.h"
#include "tests/boxes.h"
#include "tests/comm/boundary_formula.h"

#include <string.h>

enum { MOST_ELEMENTS = 1 << 14 };

/* A pad of a whole, or a roll. */
typedef struct question {
    wf_shape whole, out;
    wf_boundary b;
    int64_t lo[WF_MAX_RANK], hi[WF_MAX_RANK];
    int shifts, dims[4];
    int64_t shift[4];
} question;

static inline double number_at(int salt, const int64_t *at, int dims)
{
    test_rng rng = {.state = (uint64_t)salt};
    for (int d = 0; d < dims; d++)
        rng.state = test_u64(&rng) + (uint64_t)at[d];
    return test_uniform(&rng, -1, 1);
}

static inline int64_t fill(wf_box box, int salt, double *values)
{
    int64_t at[WF_MAX_RANK], n = 0;
    memcpy(at, box.lo, sizeof at);
    if (!wf_box_empty(box))
        do
            values[n++] = number_at(salt, at, box.rank);
        while (box_next(box, at));
    return n;
}

static inline wf_tensor *tensor_of(wf_ctx *ctx, wf_shape shape, const double *values, wf_order order)
{
    wf_tensor *host = wf_tensor_from_host(ctx, WF_F64, shape, values), *x = wf_tensor_copy(host, WF_F64, order);
    wf_tensor_free(host);
    return x;
}

static inline int64_t read_all(const wf_tensor *x, double *values)
{
    wf_tensor *host = x ? wf_tensor_copy(x, WF_F64, WF_ROW_MAJOR) : NULL;
    WF_EXPECT(host, "%s", wf_error_message());
    if (!host)
        return 0;
    WF_EXPECT_OK(wf_tensor_export(host, values, wf_tensor_bytes(host)));
    wf_tensor_free(host);
    return wf_tensor_count(x);
}

/* --- questions ------------------------------------------------------------------------------------------------------
 */

static inline question random_pad(test_rng *rng, int most_rank)
{
    question q = {.whole.rank = (int)test_int(rng, 1, most_rank)};
    for (int d = 0; d < q.whole.rank; d++)
        q.whole.dim[d] = test_int(rng, 1, 5);
    q.b = formula_random(rng, &q.whole, true);
    q.out = q.whole;
    for (int d = 0; d < q.whole.rank; d++) {
        const int64_t length = q.whole.dim[d];
        if (formula_keeps(&q.b, d) || test_int(rng, 0, 3) == 0)
            continue;
        q.lo[d] = test_int(rng, -1, formula_most(&q.b, d, false, length, 3));
        q.hi[d] = test_int(rng, -1, formula_most(&q.b, d, true, length, 3));
        if (length + q.lo[d] + q.hi[d] < 0)
            q.lo[d] = q.hi[d] = 0;
        q.out.dim[d] += q.lo[d] + q.hi[d];
    }
    return q;
}

static inline question random_roll(test_rng *rng, int most_rank)
{
    question q = {.whole.rank = (int)test_int(rng, 1, most_rank), .shifts = (int)test_int(rng, 1, 4)};
    for (int d = 0; d < q.whole.rank; d++)
        q.whole.dim[d] = test_int(rng, 1, 7);
    q.out = q.whole;
    for (int i = 0; i < q.shifts; i++) {
        q.dims[i] = (int)test_int(rng, 0, q.whole.rank - 1);
        q.shift[i] = test_int(rng, -17, 17);
    }
    return q;
}

static inline wf_var *ask(const question *q, wf_var *x)
{
    return q->shifts > 0 ? wf_roll(x, q->shifts, q->shift, q->dims) : wf_pad(x, q->lo, q->hi, q->b);
}

/* Finds the source of element `at` of the result; returns its sign. */
static inline int source_of(const question *q, const int64_t *at, int64_t *source)
{
    int64_t seen[WF_MAX_RANK];
    if (q->shifts == 0) {
        for (int d = 0; d < q->whole.rank; d++)
            seen[d] = at[d] - q->lo[d];
        return formula_source(q->whole, &q->b, seen, source);
    }
    memcpy(source, at, sizeof *at * (size_t)q->whole.rank);
    for (int i = 0; i < q->shifts; i++) {
        const int d = q->dims[i];
        source[d] = ((source[d] - q->shift[i]) % q->whole.dim[d] + q->whole.dim[d]) % q->whole.dim[d];
    }
    return 1;
}

/* The result of elements number_at(1), and the gradient of a dy of elements number_at(2), by the formula. */
static inline void serial(const question *q, double *y, double *dx)
{
    int64_t at[WF_MAX_RANK] = {0}, source[WF_MAX_RANK], i = 0;
    const wf_box out = wf_box_of_shape(q->out), in = wf_box_of_shape(q->whole);
    memset(dx, 0, sizeof *dx * (size_t)wf_shape_count(q->whole));
    if (wf_box_empty(out))
        return;
    do {
        const int sign = source_of(q, at, source);
        y[i++] = sign ? sign * number_at(1, source, in.rank) : q->b.value;
        if (sign)
            dx[box_index(in, source)] += sign * number_at(2, at, in.rank);
    } while (box_next(out, at));
}

#endif
