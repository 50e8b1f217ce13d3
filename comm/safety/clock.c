/* The clock of waits, time-outs and traces: monotonic nanoseconds. Not the time of day, which may jump. */
#include "comm/safety/safety_impl.h"

#include <time.h>

int64_t wf_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int64_t wf_tick_ns(void)
{
    struct timespec tick;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &tick);
    return (int64_t)tick.tv_sec * 1000000000 + tick.tv_nsec;
}
