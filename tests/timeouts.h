/* Short time-outs of a test: TEST_TIMEOUT_MS and TEST_IDLE_MS stand for WEFT_TIMEOUT_MS and WEFT_IDLE_MS from here on.
 * Those bound MPI_Init too, which takes many seconds on a busy machine. Called where MPI has started. */
#ifndef WF_TESTS_TIMEOUTS_H
#define WF_TESTS_TIMEOUTS_H

#include "core/config_author.h"

#include <stdlib.h>

static inline void test_timeouts_begin(void)
{
    wf_config *const config = (wf_config *)wf_config_get();
    const char *const timeout = getenv("TEST_TIMEOUT_MS"), *const idle = getenv("TEST_IDLE_MS");
    if (timeout)
        config->timeout_ms = config->far_ms = strtol(timeout, NULL, 10);
    if (idle)
        config->idle_ms = strtol(idle, NULL, 10);
}

#endif
