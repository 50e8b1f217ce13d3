/* Messages of the library: to stderr, never to stdout, one line each. */
#ifndef WF_CORE_LOG_H
#define WF_CORE_LOG_H

#include "core/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum wf_log_level {
    WF_LOG_ERROR = 0,
    WF_LOG_WARN,
    WF_LOG_INFO,
    WF_LOG_DEBUG,
} wf_log_level;

/* Prints "weft: ..." if the level is enabled by WEFT_LOG (error, warn, info, debug; default info). Ranks other than
 * 0 print no info lines once a communicator is open. */
void wf_log_write(wf_log_level level, const char *format, ...) WF_PRINTF(2, 3);
void wf_log_set_level(wf_log_level level);

#ifdef __cplusplus
}
#endif
#endif
