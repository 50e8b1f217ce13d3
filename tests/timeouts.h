/* Short time-outs of a test. On a busy machine a rank may be seconds late for anything, so that they hold only where
 * the test awaits one, between ranks that have just met. */
#ifndef WF_TESTS_TIMEOUTS_H
#define WF_TESTS_TIMEOUTS_H

#include "core/config_author.h"

#include <stdlib.h>

/* TEST_TIMEOUT_MS and TEST_IDLE_MS stand for WEFT_TIMEOUT_MS and WEFT_IDLE_MS from here on. Those bound MPI_Init too,
 * which takes many seconds on a busy machine. Called where MPI has started. */
static inline void test_timeouts_begin(void)
{
    wf_config *const config = (wf_config *)wf_config_get();
    const char *const timeout = getenv("TEST_TIMEOUT_MS"), *const idle = getenv("TEST_IDLE_MS");
    if (timeout)
        config->timeout_ms = config->far_ms = strtol(timeout, NULL, 10);
    if (idle)
        config->idle_ms = strtol(idle, NULL, 10);
}

/* From here on, until the next begin, ranks wait for each other as long as without these variables. */
static inline void test_timeouts_end(void)
{
    wf_config *const config = (wf_config *)wf_config_get();
    config->timeout_ms = 300000;
    config->far_ms = 1800000;
    config->idle_ms = 3600000;
}

#endif
