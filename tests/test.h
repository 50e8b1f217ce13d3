/* The test harness: a case is a function, a check prints what it saw and goes on, the program's exit code tells.
 *
 *     static void adds(void) { WF_EXPECT(1 + 1 == 2, "1 + 1 = %d", 1 + 1); }
 *     int main(int argc, char **argv) { return test_main(argc, argv, (test_case[]){{"adds", adds}, {0}}); }
 *
 * An argument picks the cases whose name contains it. Under mpirun every rank runs every case, and a case that failed
 * on one rank fails the program; the exit code is not 0 on that rank.
 */
#ifndef WF_TESTS_TEST_H
#define WF_TESTS_TEST_H

#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct test_case {
    const char *name;
    void (*run)(void);
} test_case;

int test_main(int argc, char **argv, const test_case *cases);
void test_failed(const char *file, int line, const char *format, ...) WF_PRINTF(3, 4);
/* Failed checks so far. */
int64_t test_failures(void);

/* Checks a condition; the message says what was seen. */
#define WF_EXPECT(condition, ...)                                                                                      \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            test_failed(__FILE__, __LINE__, __VA_ARGS__);                                                              \
    } while (0)
/* A verb that must work, one that must fail with this code. */
#define WF_EXPECT_OK(call)                                                                                             \
    do {                                                                                                               \
        const wf_status test_status_ = (call);                                                                         \
        if (test_status_ != WF_OK)                                                                                     \
            test_failed(__FILE__, __LINE__, "%s: %s\n%s", #call, wf_error_message(), wf_error_trail());                \
    } while (0)
#define WF_EXPECT_ERROR(code, call)                                                                                    \
    do {                                                                                                               \
        const wf_status test_status_ = (call);                                                                         \
        if (test_status_ != (code))                                                                                    \
            test_failed(__FILE__, __LINE__, "%s: is %s, should be %s", #call, wf_status_name(test_status_),            \
                        wf_status_name(code));                                                                         \
        wf_error_clear();                                                                                              \
    } while (0)

/* Returns earlier where a signal comes. */
void test_sleep_ms(int64_t ms);

/* How many of `all` drawn samples this run takes: one in TEST_SAMPLES, or in ten where that is not set. */
int test_samples(int all);

/* The device under test: WEFT_DEVICE, or `otherwise` where that is not set. */
const char *test_device(const char *otherwise);
/* The name of the communicator under test: TEST_COMMUNICATOR, or `otherwise`. */
const char *test_communicator(const char *otherwise);

/* A small deterministic generator for test data, not the library's. */
typedef struct test_rng {
    uint64_t state;
} test_rng;
uint64_t test_u64(test_rng *rng);
int64_t test_int(test_rng *rng, int64_t lo, int64_t hi); /* in [lo, hi] */
double test_uniform(test_rng *rng, double lo, double hi);
/* True one time in n. */
static inline bool one_in(test_rng *rng, int64_t n)
{
    return test_int(rng, 1, n) == 1;
}

/* Largest |a - b| / (1 + |b|) of n numbers; NaN on either side alone counts as infinity. */
double test_distance(int64_t n, const double *a, const double *b);

#endif
