/* The place that the program noted. */
#ifndef WF_CORE_SITE_AUTHOR_H
#define WF_CORE_SITE_AUTHOR_H

#include "core/site.h"

typedef struct wf_site {
    const char *file; /* without folders; NULL: nothing is noted */
    int line;
} wf_site;

/* Of this thread. */
wf_site wf_site_now(void);

#endif
