/* Call sites: errors of communication and the flight recorder name the file and line where the program called the
 * library.
 *
 * A function that communicates is marked WF_PLACED in its header. The build makes weft_places.h from the marks: a macro
 * of the function's name, which records the file and line of the call. weft.h includes weft_places.h. Calls may nest
 * (wf_apply inside wf_apply); the outermost call site is reported. A program that includes single headers, or writes
 * (wf_send)(...), calls the function itself, and its errors name no place.
 */
#ifndef WF_CORE_SITE_H
#define WF_CORE_SITE_H

#include "core/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define WF_PLACED

void wf_site_enter(const char *file, int line);
/* Each returns its argument. */
wf_status wf_site_leave(wf_status status) WF_NODISCARD;
void *wf_site_leave_with(void *object);
wf_status wf_site_leave_lax(wf_status status); /* which may be ignored */

/* Inside the library the macros do not exist, so the call site that the program recorded stays. */
#ifndef WF_LIBRARY
#define WF_SITE(call)          (wf_site_enter(__FILE__, __LINE__), wf_site_leave(call))
#define WF_SITE_OF(type, call) (wf_site_enter(__FILE__, __LINE__), (type *)wf_site_leave_with(call))
#define WF_SITE_LAX(call)      (wf_site_enter(__FILE__, __LINE__), wf_site_leave_lax(call))
#endif

#ifdef __cplusplus
}
#endif
#endif
