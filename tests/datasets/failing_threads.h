/* Threads that do not start, in one test program: its own pthread_create, which calls that of the system. */
#ifndef WF_TESTS_DATASETS_FAILING_THREADS_H
#define WF_TESTS_DATASETS_FAILING_THREADS_H

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

static atomic_bool threads_are_counted;
static atomic_int threads_left;

/* From now on so many threads start, and no more; -1: all. */
static inline void allow_threads(int most)
{
    atomic_store(&threads_left, most);
    atomic_store(&threads_are_counted, most >= 0);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument)
{
    int (*start)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) = NULL;
    if (atomic_load(&threads_are_counted) && atomic_fetch_sub(&threads_left, 1) <= 0)
        return EAGAIN;
    *(void **)&start = dlsym(RTLD_NEXT, "pthread_create");
    return start ? start(thread, attributes, run, argument) : ENOSYS;
}

#endif
