/* Tensors with known contents for the tests of the communicator. */
#ifndef WF_TESTS_COMM_CASES_H
#define WF_TESTS_COMM_CASES_H

#include "comm/comm.h"
#include "core/tensor.h"
#include "tests/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How a tensor of a shape lies in memory. */
typedef enum comm_form { FORM_DENSE = 0, FORM_VIEW, FORM_PERMUTED, FORM_ROW_MAJOR, FORMS } comm_form;

static inline wf_tensor *tensor_in_form(wf_ctx *ctx, wf_dtype dtype, wf_shape shape, comm_form form)
{
    wf_shape wide = shape, turned = shape;
    wf_box box = wf_box_of_shape(shape);
    int perm[WF_MAX_RANK];
    for (int d = 0; d < shape.rank; d++) {
        wide.dim[d] += 2;
        box.lo[d] += 1;
        box.hi[d] += 1;
        turned.dim[d] = shape.dim[shape.rank - 1 - d];
        perm[d] = shape.rank - 1 - d;
    }
    wf_tensor *base = form == FORM_VIEW       ? wf_tensor_new(ctx, dtype, wide)
                      : form == FORM_PERMUTED ? wf_tensor_new(ctx, dtype, turned)
                      : form == FORM_DENSE    ? wf_tensor_new(ctx, dtype, shape)
                                              : wf_tensor_new_ordered(ctx, dtype, shape, WF_ROW_MAJOR);
    WF_EXPECT_OK(wf_tensor_fill(base, 77));
    if (form != FORM_VIEW && form != FORM_PERMUTED)
        return base;
    wf_tensor *view = form == FORM_VIEW ? wf_tensor_view(base, box) : wf_tensor_permute(base, perm);
    wf_tensor_free(base);
    return view;
}

/* Small whole numbers: exact in every type, also their sums and products over a few ranks. */
static inline double known_value(int64_t salt, int rank, int64_t i)
{
    return (double)((salt * 5 + rank * 7 + i * 3 + i / 11) % 4);
}

/* Elements i, in logical order, are known_value(salt, rank, i). */
static inline void put_known(wf_tensor *x, int64_t salt, int rank)
{
    const int64_t n = wf_tensor_count(x);
    double *values = malloc((size_t)(n + 1) * sizeof *values);
    for (int64_t i = 0; i < n; i++)
        values[i] = known_value(salt, rank, i);
    wf_tensor *plain = wf_tensor_from_host(wf_tensor_ctx(x), WF_F64, wf_tensor_shape(x), values);
    WF_EXPECT_OK(wf_tensor_assign(x, plain));
    wf_tensor_free(plain);
    free(values);
}

/* The elements as doubles, in logical order; the caller frees them. */
static inline double *elements_of(const wf_tensor *x)
{
    const size_t bytes = (size_t)wf_tensor_count(x) * sizeof(double);
    double *values = malloc(bytes + 1);
    wf_tensor *plain = wf_tensor_copy(x, WF_F64, WF_ROW_MAJOR);
    WF_EXPECT_OK(wf_tensor_export(plain, values, bytes));
    wf_tensor_free(plain);
    return values;
}

static inline double combined_two(wf_reduce_op op, double a, double b)
{
    return op == WF_SUM ? a + b : op == WF_PROD ? a * b : op == WF_MAX ? fmax(a, b) : fmin(a, b);
}

/* What the ranks' known values give; member[r] is the world rank of rank r. */
static inline double combined(wf_reduce_op op, int64_t salt, const int *member, int size, int64_t i)
{
    double value = known_value(salt, member[0], i);
    for (int r = 1; r < size; r++)
        value = combined_two(op, value, known_value(salt, member[r], i));
    return value;
}

static inline void expect_known(const wf_tensor *y, int64_t salt, int rank, const char *what)
{
    double *values = elements_of(y);
    for (int64_t i = 0; i < wf_tensor_count(y); i++)
        if (values[i] != known_value(salt, rank, i)) {
            test_failed(__FILE__, __LINE__, "%s: element %lld from rank %d is %g, should be %g", what, (long long)i,
                        rank, values[i], known_value(salt, rank, i));
            break;
        }
    free(values);
}

static inline void expect_combined(const wf_tensor *y, wf_reduce_op op, int64_t salt, const int *member, int size,
                                   const char *what)
{
    double *values = elements_of(y);
    for (int64_t i = 0; i < wf_tensor_count(y); i++)
        if (values[i] != combined(op, salt, member, size, i)) {
            test_failed(__FILE__, __LINE__, "%s, op %d, %s: element %lld of %lld is %g, should be %g", what, (int)op,
                        wf_dtype_name(wf_tensor_dtype(y)), (long long)i, (long long)wf_tensor_count(y), values[i],
                        combined(op, salt, member, size, i));
            break;
        }
    free(values);
}

/* The error of this rank, in which `part` must be, is that of all ranks of `world`, word for word. */
static inline void expect_same_error(wf_comm *world, wf_status status, wf_status code, const char *part,
                                     const char *what, int culprit)
{
    enum { TEXT = 700 };
    const int size = wf_comm_size(world);
    char mine[TEXT] = "", *all = malloc((size_t)size * TEXT);
    snprintf(mine, sizeof mine, "%s: %s", wf_status_name(status), status == WF_OK ? "" : wf_error_message());
    WF_EXPECT(status == code, "%s, culprit %d: %s", what, culprit, mine);
    WF_EXPECT(strstr(mine, part), "%s, culprit %d: \"%s\" does not say \"%s\"", what, culprit, mine, part);
    wf_error_clear();
    WF_EXPECT_OK(wf_allgather_bytes(world, mine, TEXT, all));
    for (int r = 0; r < size; r++)
        WF_EXPECT(!strcmp(all + (size_t)r * TEXT, mine), "%s, culprit %d: rank %d has \"%s\", this rank \"%s\"", what,
                  culprit, r, all + (size_t)r * TEXT, mine);
    free(all);
}

#endif
