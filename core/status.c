/* The two error records of a thread, the last error and the pending one, and the end of a program by WF_MUST. The last
 * error is what the call that just failed says. The pending one is the first NULL that none has looked at yet, so that
 * a chain of calls may be checked at its end. The library itself never ends the process here: only WF_MUST, which the
 * program writes, does. */
#include "core/status_author.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MESSAGE_SIZE = 1024, TRAIL_SIZE = 2048 };

typedef struct record {
    wf_status code;
    char message[MESSAGE_SIZE];
    char trail[TRAIL_SIZE];
} record;

/* Per thread: the prefetch thread's and the checkpoint writer's errors must not mix with the program's. */
static _Thread_local record last, pending;

struct wf_errors {
    record last, pending;
};

static wf_abort_hook abort_hook = {.rank = -1};
static wf_must_handler must_handler;

const char *wf_status_name(wf_status status)
{
    static const char *const names[] = {"ok",     "argument",    "shape",         "dtype",   "memory",  "io",
                                        "format", "unsupported", "communication", "timeout", "numeric", "state"};
    return (unsigned)status < sizeof names / sizeof *names ? names[status] : "unknown";
}

wf_status wf_error_code(void)
{
    return last.code;
}

const char *wf_error_message(void)
{
    return last.code == WF_OK ? "no error" : last.message;
}

const char *wf_error_trail(void)
{
    return last.code == WF_OK ? "" : last.trail;
}

/* The texts stay, and are not shown without a code. */
void wf_error_clear(void)
{
    last.code = WF_OK;
    pending.code = WF_OK;
}

void wf_error_save(wf_status *code, char *message, size_t size)
{
    *code = last.code;
    snprintf(message, size, "%s", last.code == WF_OK ? "" : last.message);
}

/* Errors of work in the background, or of a trial that may fail: they are swapped in while it runs, so that it never
 * touches the program's. */
wf_errors *wf_errors_new(void)
{
    return calloc(1, sizeof(wf_errors));
}

void wf_errors_free(wf_errors *kept)
{
    free(kept);
}

/* Most swaps find no error on either side and copy nothing. */
static void swap(record *a, record *b)
{
    if (a->code == WF_OK && b->code == WF_OK)
        return;
    const record c = *a;
    *a = *b;
    *b = c;
}

void wf_errors_swap(wf_errors *kept)
{
    swap(&last, &kept->last);
    swap(&pending, &kept->pending);
}

/* A full trail is cut, never overrun. */
static void add_frame(const char *file, int line, const char *function)
{
    const size_t used = strlen(last.trail);
    snprintf(last.trail + used, TRAIL_SIZE - used, "    at %s:%d%s%s\n", file, line, function ? " in " : "",
             function ? function : "");
}

wf_status wf_error_set(wf_status code, const char *file, int line, const char *format, ...)
{
    /* The arguments may point into the old message. */
    char text[MESSAGE_SIZE];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    last.code = code;
    memcpy(last.message, text, sizeof text);
    last.trail[0] = '\0';
    add_frame(file, line, NULL);
    return code;
}

/* A status without a record (a callback of the program may have made it) gets one here. */
wf_status wf_error_frame(wf_status status, const char *file, int line, const char *function)
{
    /* Another code than the last one is another error, whose trail would be misleading. */
    if (last.code == status)
        add_frame(file, line, function);
    else
        wf_error_set(status, file, line, "%s error without a message", wf_status_name(status));
    return status;
}

/* The first failure is kept: those after it are mostly its consequences. */
void *wf_error_null(void)
{
    if (pending.code == WF_OK)
        pending = last;
    return NULL;
}

wf_status wf_error_pending(void)
{
    if (pending.code != WF_OK)
        last = pending;
    return pending.code;
}

/* A NULL that was handed in: its cause is pending, or the program passed NULL itself. */
wf_status wf_error_take(const char *what, const char *file, int line)
{
    if (pending.code == WF_OK)
        return wf_error_set(WF_ERR_ARGUMENT, file, line, "%s is NULL", what);
    last = pending;
    pending.code = WF_OK;
    add_frame(file, line, NULL);
    return last.code;
}

wf_status wf_error_need(const char *function, const char *what, const char *file, int line)
{
    /* The name of a static function says nothing to a program. */
    if (pending.code == WF_OK && strncmp(function, "wf_", 3) == 0)
        return wf_error_set(WF_ERR_ARGUMENT, file, line, "%s: %s is NULL", function, what);
    return wf_error_take(what, file, line);
}

void *wf_error_need_null(const char *function, const char *what, const char *file, int line)
{
    if (pending.code == WF_OK)
        wf_error_set(WF_ERR_ARGUMENT, file, line, "%s: %s is NULL", function, what);
    return wf_error_null();
}

wf_status wf_check(const void *p)
{
    return p ? WF_OK : wf_error_take("the object", __FILE__, __LINE__);
}

void wf_abort_hook_set(wf_abort_hook hook)
{
    abort_hook = hook;
}

void wf_must_set_handler(wf_must_handler handler)
{
    must_handler = handler;
}

/* Calls the hook of the communication, if there is one, so that no other rank waits for this one. */
static void must_default(wf_status status, const char *file, int line, const char *expression)
{
    /* One write, so that lines of several ranks do not mix. */
    char text[MESSAGE_SIZE + TRAIL_SIZE + 512], who[32] = "";
    if (abort_hook.rank >= 0)
        snprintf(who, sizeof who, "rank %d: ", abort_hook.rank);
    snprintf(text, sizeof text, "weft: %s%s error: %s\n%s    at %s:%d: %s\n", who, wf_status_name(status),
             wf_error_message(), wf_error_trail(), file, line, expression);
    fflush(stdout);
    fputs(text, stderr);
    fflush(stderr);
    if (abort_hook.abort)
        abort_hook.abort(1);
    exit(1);
}

void wf_must_failed(wf_status status, const char *file, int line, const char *expression)
{
    (must_handler ? must_handler : must_default)(status, file, line, expression);
}
