/* The call site that the program recorded (core/site.h). */
#ifndef WF_CORE_SITE_AUTHOR_H
#define WF_CORE_SITE_AUTHOR_H

#include "core/site.h"

typedef struct wf_site {
    const char *file; /* without folders; NULL: nothing is noted */
    int line;
} wf_site;

/* The current call site of this thread. */
wf_site wf_site_now(void);

/* What this thread's calls are for; errors of communication add it: "the gradient of what encoder gives". The text is
 * borrowed until it is replaced; NULL: nothing. */
void wf_site_purpose(const char *text);
const char *wf_site_purpose_now(void);

#endif
