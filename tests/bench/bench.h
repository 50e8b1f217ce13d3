/* What measurements share. */
#ifndef WF_TESTS_BENCH_H
#define WF_TESTS_BENCH_H

#include "core/context_author.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

static inline double bench_seconds(void)
{
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static inline int bench_ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* These sort. The lower quartile is for what others on the machine may disturb, which only adds. */
static inline double bench_median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, bench_ascending);
    return v[n / 2];
}

static inline double bench_quartile(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, bench_ascending);
    return v[n / 4];
}

/* Work that was put on the device is over: a clock is read after this. */
static inline void bench_finish(wf_ctx *ctx)
{
    WF_MUST(ctx->k->stream_finish(ctx, NULL));
}

/* A rank's line: images per second, and, if asked, the most memory in MiB that its process held. */
static inline void bench_report(double images, double seconds, bool memory)
{
    struct rusage used;
    printf("%.1f", images / seconds);
    if (memory && getrusage(RUSAGE_SELF, &used) == 0)
        printf(" %.0f", (double)used.ru_maxrss / 1024);
    printf("\n");
}

#endif
