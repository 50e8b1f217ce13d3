/* The harness itself: runs the cases, counts failures, prints one line for each case. */
#include "tests/test.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int64_t failures;

int64_t test_failures(void)
{
    return failures;
}

void test_failed(const char *file, int line, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "%s:%d: ", file, line);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    failures++;
}

void test_sleep_ms(int64_t ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

int test_samples(int all)
{
    const char *text = getenv("TEST_SAMPLES");
    const int part = text ? atoi(text) : 10;
    return (all + part - 1) / part;
}

const char *test_device(const char *otherwise)
{
    const char *device = getenv("WEFT_DEVICE");
    return device && *device ? device : otherwise;
}

const char *test_communicator(const char *otherwise)
{
    const char *name = getenv("TEST_COMMUNICATOR");
    return name && *name ? name : otherwise;
}

static bool picked(int argc, char **argv, const char *name)
{
    for (int i = 1; i < argc; i++)
        if (strstr(name, argv[i]))
            return true;
    return argc < 2;
}

int test_main(int argc, char **argv, const test_case *cases)
{
    int run = 0;
    for (const test_case *c = cases; c->name; c++) {
        if (!picked(argc, argv, c->name))
            continue;
        const int64_t before = failures;
        wf_error_clear();
        c->run();
        run++;
        printf("%-4s %s\n", failures == before ? "ok" : "FAIL", c->name);
        fflush(stdout);
    }
    if (run == 0)
        fprintf(stderr, "no case was picked\n");
    return failures > 0 || run == 0;
}

uint64_t test_u64(test_rng *rng)
{
    uint64_t z = (rng->state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

int64_t test_int(test_rng *rng, int64_t lo, int64_t hi)
{
    return lo + (int64_t)(test_u64(rng) % (uint64_t)(hi - lo + 1));
}

double test_uniform(test_rng *rng, double lo, double hi)
{
    return lo + (hi - lo) * ((double)(test_u64(rng) >> 11) * 0x1p-53);
}

double test_distance(int64_t n, const double *a, const double *b)
{
    double most = 0;
    for (int64_t i = 0; i < n; i++) {
        if (isnan(a[i]) && isnan(b[i]))
            continue;
        const double d = a[i] == b[i] ? 0 : fabs(a[i] - b[i]) / (1 + fabs(b[i]));
        if (!(d <= most))
            most = isnan(d) ? INFINITY : d;
    }
    return most;
}
