/* Status codes and the error trail.
 *
 * A verb returns wf_status. A constructor or function that returns a pointer returns NULL on failure, takes NULL and
 * passes it on ("sticky NULL"), so calls nest; the verb at the end returns the first recorded error. Each thread keeps
 * two records: the *last* error, which wf_error_* describe, and the first *pending* one, left by a function that
 * returned NULL. A verb that is given NULL where it needs an object takes over the pending error; wf_error_clear ends
 * it. A program that goes on after a constructor failed clears the error.
 */
#ifndef WF_CORE_STATUS_H
#define WF_CORE_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

typedef enum wf_status {
    WF_OK = 0,
    WF_ERR_ARGUMENT,    /* a value that is never right */
    WF_ERR_SHAPE,       /* shapes or layouts that do not fit each other */
    WF_ERR_DTYPE,       /* a type that the operation does not take */
    WF_ERR_MEMORY,      /* host or device memory is exhausted */
    WF_ERR_IO,          /* a file cannot be opened, read or written */
    WF_ERR_FORMAT,      /* a file was read and is not what it should be */
    WF_ERR_UNSUPPORTED, /* right, but not available on this device or in this build */
    WF_ERR_COMM,        /* communication failed, or ranks disagreed */
    WF_ERR_TIMEOUT,     /* a peer did not answer in time */
    WF_ERR_NUMERIC,     /* not a number, or an overflow that was asked to be an error */
    WF_ERR_STATE,       /* the object is not in a state that allows the call */
} wf_status;

#define WF_NODISCARD    __attribute__((warn_unused_result))
#define WF_PRINTF(f, a) __attribute__((format(printf, f, a)))

/* The name of a code: "shape". Never NULL. */
const char *wf_status_name(wf_status status);

/* The calling thread's last error. wf_error_code is WF_OK if there is none; wf_error_message is one line with the
 * offending values; wf_error_trail adds one line per frame, innermost first. The texts live until the next error of
 * this thread. */
wf_status wf_error_code(void);
const char *wf_error_message(void);
const char *wf_error_trail(void);

/* Clears the last and the pending error of this thread. */
void wf_error_clear(void);

/* The handler that WF_MUST calls on failure. The default one prints rank, message and trail to stderr and then runs the
 * abort hook of the communicator (MPI_Abort), or exit(1) where there is none: a rank that exits alone would leave the
 * others waiting. */
typedef void (*wf_must_handler)(wf_status status, const char *file, int line, const char *expression);
void wf_must_set_handler(wf_must_handler handler); /* NULL: the default */
void wf_must_failed(wf_status status, const char *file, int line, const char *expression);

/* Runs a verb; on failure calls the handler. For programs, not for the library. */
#define WF_MUST(expression)                                                                                            \
    do {                                                                                                               \
        const wf_status wf_must_status_ = (expression);                                                                \
        if (wf_must_status_ != WF_OK)                                                                                  \
            wf_must_failed(wf_must_status_, __FILE__, __LINE__, #expression);                                          \
    } while (0)

/* WF_OK if p is not NULL; otherwise the error because of which p is NULL. For WF_MUST(wf_check(p)) after a
 * constructor. */
wf_status wf_check(const void *p) WF_NODISCARD;

#ifdef __cplusplus
}
#endif
#endif
