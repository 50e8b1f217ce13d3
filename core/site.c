/* The call site that the program recorded last, one for each thread. The macros of weft_places.h set it; errors of
 * communication and the flight recorder read it. */
#include "core/site_author.h"

#include <string.h>

static _Thread_local wf_site site;
static _Thread_local int depth;
static _Thread_local const char *purpose;

void wf_site_enter(const char *file, int line)
{
    /* Public functions call each other: the outermost call is the one that the program wrote. */
    if (depth++ == 0)
        site = (wf_site){.file = file, .line = line};
}

static void leave(void)
{
    if (depth > 0)
        depth--;
}

wf_status wf_site_leave(wf_status status)
{
    leave();
    return status;
}

wf_status wf_site_leave_lax(wf_status status)
{
    leave();
    return status;
}

void *wf_site_leave_with(void *object)
{
    leave();
    return object;
}

wf_site wf_site_now(void)
{
    if (depth == 0)
        return (wf_site){0};
    const char *slash = strrchr(site.file, '/');
    return (wf_site){.file = slash ? slash + 1 : site.file, .line = site.line};
}

void wf_site_purpose(const char *text)
{
    purpose = text;
}

const char *wf_site_purpose_now(void)
{
    return purpose ? purpose : "";
}
