/* Threads that wait and that are waited for, as one test program sees them: its own pthread_cond_wait and pthread_join,
 * which call a function of the test before those of the system. */
#ifndef WF_TESTS_DATASETS_WATCHED_THREADS_H
#define WF_TESTS_DATASETS_WATCHED_THREADS_H

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

/* Called by the thread that is about to wait, with the mutex locked, or to join; NULL: nothing. */
static _Atomic(void (*)(void)) before_wait, before_join;

int pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex)
{
    static const struct timespec never = {.tv_sec = INT32_MAX};
    void (*const look)(void) = atomic_load(&before_wait);
    if (look)
        look();
    return pthread_cond_timedwait(cond, mutex, &never);
}

int pthread_join(pthread_t thread, void **result)
{
    int (*join)(pthread_t, void **) = NULL;
    void (*const look)(void) = atomic_load(&before_join);
    if (look)
        look();
    *(void **)&join = dlsym(RTLD_NEXT, "pthread_join");
    return join ? join(thread, result) : ENOSYS;
}

#endif
