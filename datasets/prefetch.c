/* The thread that makes batches ahead. It touches the batcher and the memory of free slots, nothing else: no MPI, no
 * pool, no tensor handles. iterator.c starts it, waits for slots and stops it. */
#include "datasets/iterator_impl.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

struct wf_worker {
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int64_t produced, released; /* batches; the slots in between are the main thread's */
    bool stop;
};

/* Waits for a free slot; false to end. */
static bool next_slot(wf_iter *iter, wf_slot **slot)
{
    wf_worker *w = iter->worker;
    pthread_mutex_lock(&w->mutex);
    /* Two counters instead of a queue: batches come in order, so slot and number determine each other. */
    while (!w->stop && w->produced - w->released >= iter->slot_count)
        pthread_cond_wait(&w->changed, &w->mutex);
    const bool go = !w->stop;
    *slot = &iter->slots[w->produced % iter->slot_count];
    pthread_mutex_unlock(&w->mutex);
    return go;
}

static void *run_worker(void *argument)
{
    wf_iter *iter = argument;
    wf_worker *w = iter->worker;
    wf_slot *slot;
    wf_status status = WF_OK;
    while (status == WF_OK && next_slot(iter, &slot)) {
        /* The lock is not held here: until `produced` counts it, the slot is the thread's alone. */
        status = wf_slot_fill(iter, slot);
        slot->status = status;
        if (status != WF_OK)
            /* Errors belong to a thread. The text is carried to the main thread, which raises it again. */
            wf_error_save(&slot->status, slot->message, sizeof slot->message);
        pthread_mutex_lock(&w->mutex);
        w->produced++;
        pthread_cond_signal(&w->changed);
        pthread_mutex_unlock(&w->mutex);
    }
    return NULL;
}

wf_status wf_worker_start(wf_iter *iter)
{
    wf_worker *w = wf_calloc(iter->ctx, 1, sizeof *w);
    if (!w)
        return WF_ERR_MEMORY;
    pthread_mutex_init(&w->mutex, NULL);
    pthread_cond_init(&w->changed, NULL);
    iter->worker = w;
    /* Signals stay with the program's own threads. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int failed = pthread_create(&w->thread, NULL, run_worker, iter);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!failed)
        return WF_OK;
    iter->worker = NULL;
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->mutex);
    free(w);
    WF_FAIL(WF_ERR_MEMORY, "prefetch: cannot start a thread: %s", strerror(failed));
}

wf_slot *wf_worker_wait(wf_iter *iter)
{
    wf_worker *w = iter->worker;
    pthread_mutex_lock(&w->mutex);
    w->released = iter->given;
    pthread_cond_signal(&w->changed);
    /* After an error the failed slot is the last one, and it is given again and again: `given` does not count it. */
    while (w->produced == iter->given)
        pthread_cond_wait(&w->changed, &w->mutex);
    pthread_mutex_unlock(&w->mutex);
    return &iter->slots[iter->given % iter->slot_count];
}

void wf_worker_stop(wf_iter *iter)
{
    wf_worker *w = iter->worker;
    if (!w)
        return;
    /* Ends a batch in the middle; otherwise freeing an iterator would wait for a whole batch. */
    atomic_store(&iter->batcher.stop, true);
    pthread_mutex_lock(&w->mutex);
    w->stop = true;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->mutex);
    pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->mutex);
    free(w);
    iter->worker = NULL;
}
