/* Where the program called the library: errors of communication and the flight recorder name file and line.
 *
 * A function that communicates is marked WF_PLACED in its header. The build makes weft_places.h from the marks: a macro
 * of the function's name, which notes the place of the call around it. weft.h includes it. Calls nest (wf_apply in
 * wf_apply): the outermost place counts. A program that includes single headers calls the functions themselves, and its
 * errors name no place.
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

/* The library's own calls pass on the place that the program noted. */
#ifndef WF_LIBRARY
#define WF_SITE(call)          (wf_site_enter(__FILE__, __LINE__), wf_site_leave(call))
#define WF_SITE_OF(type, call) (wf_site_enter(__FILE__, __LINE__), (type *)wf_site_leave_with(call))
#define WF_SITE_LAX(call)      (wf_site_enter(__FILE__, __LINE__), wf_site_leave_lax(call))
#endif

#ifdef __cplusplus
}
#endif
#endif
