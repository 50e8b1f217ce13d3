/* Many products of matrices in one slot of the kernel table (core/kernels_author.h). */
#ifndef WF_CORE_STACK_AUTHOR_H
#define WF_CORE_STACK_AUTHOR_H

#include "core/array_author.h"

typedef enum wf_stack_factor { WF_STACK_A = 0, WF_STACK_B, WF_STACK_C, WF_STACK_FACTORS } wf_stack_factor;

/* Products counted row-major over `dim`. Factor f of product (i0, i1, ...) is matrix number
 * i0 step[f][0] + i1 step[f][1] + ... of its array, whose matrices are dense and row-major and follow each other. A
 * step of 0 repeats a factor. Where steps of c are 0 the products of that dimension are summed into one matrix; other
 * steps reach every matrix of c once. Steps are not negative. */
typedef struct wf_product_stack {
    int64_t m, n, k; /* of a product, as in matmul */
    int rank;        /* 0: one product */
    int64_t dim[WF_MAX_RANK], step[WF_STACK_FACTORS][WF_MAX_RANK];
} wf_product_stack;

typedef struct wf_matmul_stack_args {
    const wf_product_stack *stack;
    const wf_array *a, *b, *c;
    bool a_transposed, b_transposed, accumulate;
} wf_matmul_stack_args;

static inline int64_t wf_stack_count(const wf_product_stack *stack)
{
    int64_t count = 1;
    for (int d = 0; d < stack->rank; d++)
        count *= stack->dim[d];
    return count;
}

/* The number of the matrix that a product reads, or writes for WF_STACK_C. */
static inline int64_t wf_stack_matrix(const wf_product_stack *stack, wf_stack_factor factor, int64_t product)
{
    int64_t matrix = 0;
    for (int d = stack->rank - 1; d >= 0; d--) {
        matrix += product % stack->dim[d] * stack->step[factor][d];
        product /= stack->dim[d];
    }
    return matrix;
}

/* Splits a stack in two: `sums` keeps the dimensions that are summed, `results` the others, of which each product has
 * its own matrix of c. */
static inline void wf_stack_split(const wf_product_stack *stack, wf_product_stack *results, wf_product_stack *sums)
{
    *results = *stack;
    results->rank = 0;
    *sums = *results;
    for (int d = 0; d < stack->rank; d++) {
        wf_product_stack *const to = stack->step[WF_STACK_C][d] == 0 ? sums : results;
        to->dim[to->rank] = stack->dim[d];
        for (int f = 0; f < WF_STACK_FACTORS; f++)
            to->step[f][to->rank] = stack->step[f][d];
        to->rank++;
    }
}

#endif
