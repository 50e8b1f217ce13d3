/* How library code raises and passes on errors. */
#ifndef WF_CORE_STATUS_AUTHOR_H
#define WF_CORE_STATUS_AUTHOR_H

#include "core/status.h"

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Records an error (replacing the last one) and returns its code. */
wf_status wf_error_set(wf_status code, const char *file, int line, const char *format, ...) WF_PRINTF(4, 5);

/* Adds a frame to the last error and returns status. */
wf_status wf_error_frame(wf_status status, const char *file, int line, const char *function);

/* Makes the last error the pending one, unless there is one already, and returns NULL: for a function that returns a
 * pointer and has just seen a wf_status that is not WF_OK. A plain `return NULL` is for what came as NULL, from an
 * argument or from another function of this kind, whose error is pending already. */
void *wf_error_null(void);

/* The pending error, which stays pending, becomes the last one: its code, or WF_OK if there is none. */
wf_status wf_error_pending(void);

/* The pending error taken over, or WF_ERR_ARGUMENT "<what> is NULL" if there is none. */
wf_status wf_error_take(const char *what, const char *file, int line);

/* Copies of an error for another thread or rank: the code and the message of the last error. */
void wf_error_save(wf_status *code, char *message, size_t size);

/* Swaps this thread's error records with those kept here, for tasks that alternate with other work on one thread.
 * wf_errors_new returns NULL if memory is exhausted. */
typedef struct wf_errors wf_errors;
wf_errors *wf_errors_new(void);
void wf_errors_swap(wf_errors *kept);
void wf_errors_free(wf_errors *kept);

/* Like wf_error_take, with the name of the function whose argument it is; and for a function that returns a pointer,
 * where the error stays pending for the verb at the end. */
wf_status wf_error_need(const char *function, const char *what, const char *file, int line);
void *wf_error_need_null(const char *function, const char *what, const char *file, int line);

#define WF_RAISE(code, ...) wf_error_set((code), __FILE__, __LINE__, __VA_ARGS__)

/* In a verb: leave with a new error; leave if a call fails; leave if a needed object is NULL. The code stands in the
 * return itself, so that compilers and analysers see which one it is. */
#define WF_FAIL(code, ...) return (WF_RAISE(code, __VA_ARGS__), (code))
#define WF_TRY(call)                                                                                                   \
    do {                                                                                                               \
        const wf_status wf_try_status_ = (call);                                                                       \
        if (wf_try_status_ != WF_OK)                                                                                   \
            return wf_error_frame(wf_try_status_, __FILE__, __LINE__, __func__);                                       \
    } while (0)
#define WF_NEED(object)                                                                                                \
    do {                                                                                                               \
        if (!(object))                                                                                                 \
            return wf_error_need(__func__, #object, __FILE__, __LINE__);                                               \
    } while (0)
#define WF_CHECK(condition, code, ...)                                                                                 \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            return (WF_RAISE(code, __VA_ARGS__), (code));                                                              \
    } while (0)

/* WF_FAIL and WF_TRY in a function that returns a pointer. */
#define WF_FAIL_NULL(code, ...) return (WF_RAISE(code, __VA_ARGS__), wf_error_null())
#define WF_TRY_NULL(call)                                                                                              \
    do {                                                                                                               \
        const wf_status wf_try_status_ = (call);                                                                       \
        if (wf_try_status_ != WF_OK)                                                                                   \
            return (wf_error_frame(wf_try_status_, __FILE__, __LINE__, __func__), wf_error_null());                    \
    } while (0)
#define WF_NEED_NULL(object)                                                                                           \
    do {                                                                                                               \
        if (!(object))                                                                                                 \
            return wf_error_need_null(__func__, #object, __FILE__, __LINE__);                                          \
    } while (0)
#define WF_CHECK_NULL(condition, code, ...)                                                                            \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            return (WF_RAISE(code, __VA_ARGS__), wf_error_null());                                                     \
    } while (0)

/* Leaves through `out:` with the status in `status`, for functions that must clean up. */
#define WF_TRY_OUT(call)                                                                                               \
    do {                                                                                                               \
        status = (call);                                                                                               \
        if (status != WF_OK) {                                                                                         \
            wf_error_frame(status, __FILE__, __LINE__, __func__);                                                      \
            goto out;                                                                                                  \
        }                                                                                                              \
    } while (0)

/* Hook for the default handler of WF_MUST: comm sets it to abort the job and to name the rank. Does not return. */
typedef struct wf_abort_hook {
    int rank; /* -1: no rank */
    void (*abort)(int code);
} wf_abort_hook;
void wf_abort_hook_set(wf_abort_hook hook);

#ifdef __cplusplus
}
#endif
#endif
