/* How the contract of the kernel table is tested.
 *
 * A body makes arrays from the run's random numbers, calls a slot, and hands over what came out. It is run on `ref` in
 * f64 (the oracle), on `ref` in each float type and on the device under test in each float type, always with the same
 * numbers, already rounded to the type; the results are compared. Outputs are poisoned with NaN before the call; inputs
 * and the bytes behind every array must be as before after it.
 */
#ifndef WF_TESTS_CONTRACT_H
#define WF_TESTS_CONTRACT_H

#include "core/context_author.h"
#include "tests/test.h"

typedef struct run_held {
    void *base, *data; /* device memory; data = base + shift */
    unsigned char *before;
    size_t bytes, shift;
    bool constant;
} run_held;

#define RUN_HELD 64

typedef struct run {
    wf_ctx *ctx;
    const wf_kernels *k;
    wf_dtype dtype; /* of the float arrays in this run */
    wf_dtype round; /* of the type under test: numbers are rounded to it */
    test_rng rng;
    const void *args;
    double grid; /* where not 0, inputs are multiples of it: many are equal */
    bool skipped;
    char note[400]; /* what the case was, for messages */
    int count;
    run_held held[RUN_HELD];
    int64_t results, capacity;
    double *value, *weight;
} run;

typedef void (*contract_body)(run *r);

/* The contexts of ref and of the device under test. False, and a line on stderr: there is none. */
bool contract_open(void);
/* Frees them; on ref nothing may be in use. */
void contract_close(void);
/* Opens, runs the cases, and closes; "seed=N" among the arguments sets contract_seed. */
int contract_main(int argc, char **argv, const test_case *cases);
uint64_t contract_seed(void);

/* One body, all types, both fillings. */
void contract_check(const char *what, contract_body body, const void *args, uint64_t seed);
/* One body, one type, the device alone beside `ref` in f64. `grid`: what inputs are multiples of, unless the body says
 * otherwise: with 1 and small bounds sums are exact. */
void contract_check_type(const char *what, contract_body body, const void *args, uint64_t seed, wf_dtype type,
                         double grid);
/* What the body that runs now said of its case; empty: none runs. */
const char *contract_note(void);
/* Arrays are taken and given back by these from now on, and end where their memory ends, aligned to their element. */
typedef wf_status contract_take(wf_ctx *ctx, size_t bytes, size_t size, void **data);
typedef void contract_give(wf_ctx *ctx, void *data, size_t bytes);
void contract_arrays_by(contract_take *take, contract_give *give);
/* The context of `ref`, and that of the device under test. */
wf_ctx *contract_ref(void);
wf_ctx *contract_device(void);

/* Arrays. `_of` takes a type and the type that its numbers are rounded to; the others use the run's. */
wf_array run_in(run *r, wf_shape shape, wf_order order, double lo, double hi);
wf_array run_in_of(run *r, wf_dtype dtype, wf_dtype round, wf_shape shape, wf_order order, double lo, double hi);
/* Poisoned, or filled with numbers if keep. */
wf_array run_out(run *r, wf_shape shape, wf_order order, bool keep);
wf_array run_out_of(run *r, wf_dtype dtype, wf_dtype round, wf_shape shape, wf_order order, bool keep);
/* With these values; NULL: poisoned. */
wf_array run_array(run *r, wf_dtype dtype, wf_shape shape, wf_order order, const double *value);
void *run_bytes(run *r, const void *host, size_t bytes);
/* The array made last may be written. */
void run_mutable(run *r);
/* The types of statistics: f32, or f64 where the run's type (or the rounding) is f64. */
wf_dtype run_wide(const run *r);
wf_dtype run_wide_round(const run *r);
/* A random part of a larger tensor whose part has this shape. */
wf_random run_random(run *r, wf_shape shape);
/* Channels-last from rank 3 on: what convolution, pooling and normalisation take. */
wf_order run_order(wf_shape shape);

void run_call(run *r, wf_status status);
/* What came out: it may differ by weight times the tolerance of the type; 0: not at all. */
void run_result(run *r, const wf_array *a, double weight);
void run_result_bytes(run *r, const double *device, int64_t count, double weight);

/* For answers known beforehand: a run by hand, to be freed; on ref in f64 and on the device in f32. */
run run_on(wf_ctx *ctx, wf_dtype dtype);
void run_free(run *r);
void on_both(void (*body)(run *r));
/* The numbers of an array, until the next call. */
const double *values(run *r, const wf_array *a);
/* Equal to 1e-6. */
void expect(run *r, const char *what, const wf_array *a, const double *want);

#define LIST(...) ((const double[]){__VA_ARGS__})
#define ROW       WF_ROW_MAJOR
#define LAST      WF_CHANNELS_LAST
#define BOTH(name)                                                                                                     \
    static void name##_both(void)                                                                                      \
    {                                                                                                                  \
        on_both(name);                                                                                                 \
    }

/* Numbers of host memory, exact for numbers that the type holds; and rounding to nearest even. */
void contract_encode(wf_dtype dtype, int64_t n, const double *in, void *out);
void contract_decode(wf_dtype dtype, int64_t n, const void *in, double *out);
double contract_round(wf_dtype dtype, double v);

#endif
