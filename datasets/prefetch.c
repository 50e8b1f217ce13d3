/* The threads that make batches ahead. They touch the batcher and the memory of free slots, nothing else: no MPI, no
 * pool, no tensor handles. iterator.c starts them, waits for slots and stops them.
 *
 * Batches are begun in order, by any thread that finds a free slot, and the rows of the batch begun last are taken in
 * order, a few at a time, by all threads. What a row is (its sample, its random numbers) is fixed when it is taken,
 * under the lock, so that it does not depend on the number of threads, and the next epoch may be shuffled while rows of
 * this one are still being read. Rows are read without the lock: they have memory of their own. Two batches may be in
 * the making at a time, at most as many as there are free slots; the main thread takes them in order.
 *
 *     begun - released <= slot_count       slot of batch n: n modulo slot_count
 *     slot complete:  no row left or one failed, and none flying
 *
 * After a failed row no thread takes another one. Rows before it were taken before it and are finished, so the first
 * failed row of the first failed batch is known, whatever thread failed first. */
#include "datasets/iterator_impl.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

/* Most rows that a thread takes at a time: many enough that small samples do not wait for the lock. */
enum { TAKEN = 16 };

typedef struct loader_thread {
    pthread_t thread;
    wf_iter *iter;
    int number;
} loader_thread;

struct wf_loader {
    pthread_mutex_t mutex;
    pthread_cond_t work, done; /* for the threads, and for the main thread */
    int64_t begun, released;   /* batches; the slots in between are in the making, or the main thread's */
    bool stop, failed;
    int started;
    loader_thread thread[];
};

/* Rows of one batch that a thread reads. */
typedef struct piece {
    wf_slot *slot;
    int64_t count;
    wf_batch_row row[TAKEN];
} piece;

static void begin_batch(wf_iter *iter)
{
    wf_loader *l = iter->loader;
    wf_slot *slot = &iter->slots[l->begun++ % iter->slot_count];
    slot->plan = wf_batcher_plan(&iter->batcher);
    wf_batcher_advance(&iter->batcher);
    slot->left = slot->plan.size;
    slot->flying = 0;
    slot->status = WF_OK;
    for (int i = 0; i < WF_BATCH_FIELDS; i++)
        slot->tensor[i].longest = 0; /* an empty batch is not collated */
    if (slot->left == 0)
        pthread_cond_signal(&l->done);
}

/* The batch of which rows are to be taken; NULL where there is none. */
static wf_slot *open_slot(wf_iter *iter)
{
    wf_loader *l = iter->loader;
    for (;;) {
        wf_slot *slot = l->begun > 0 ? &iter->slots[(l->begun - 1) % iter->slot_count] : NULL;
        if (slot && slot->left > 0)
            return slot;
        if (l->begun - l->released >= iter->slot_count)
            return NULL;
        begin_batch(iter);
    }
}

/* Takes the next rows, and waits until there are some; false to end. */
static bool claim_rows(wf_iter *iter, piece *p)
{
    wf_loader *l = iter->loader;
    pthread_mutex_lock(&l->mutex);
    p->slot = NULL;
    while (!l->stop && !l->failed && !(p->slot = open_slot(iter)))
        pthread_cond_wait(&l->work, &l->mutex);
    const bool go = !l->stop && !l->failed;
    if (go) {
        wf_slot *slot = p->slot;
        /* A quarter of a thread's share at most: the main thread waits for the slowest piece of its batch. */
        const int64_t share = slot->plan.size / (4 * iter->workers), most = share < TAKEN ? share : TAKEN;
        p->count = slot->left < most ? slot->left : most > 1 ? most : 1;
        for (int64_t i = 0; i < p->count; i++)
            p->row[i] = wf_batcher_row(&iter->batcher, &slot->plan, slot->plan.size - slot->left + i);
        slot->left -= p->count;
        slot->flying += p->count;
    }
    pthread_mutex_unlock(&l->mutex);
    return go;
}

/* Errors belong to a thread. The text is carried to the main thread, which raises it again. */
static void note_failure(wf_slot *slot, int64_t row)
{
    if (slot->status != WF_OK && slot->failed_row < row)
        return;
    wf_error_save(&slot->status, slot->message, sizeof slot->message);
    slot->failed_row = row;
}

static void fail_slot(wf_loader *l, wf_slot *slot, int64_t row)
{
    note_failure(slot, row);
    l->failed = true;
    pthread_cond_broadcast(&l->work);
}

/* The thread that finishes the last rows of a batch collates it, while the others read the next one. It asks the flag
 * that makes threads skip rows, which is set before l->stop: a thread that skipped its rows has seen it, and a
 * thread that locks after it sees it too. */
static void finish_rows(wf_iter *iter, const piece *p, wf_status status, int64_t read)
{
    wf_loader *l = iter->loader;
    wf_slot *slot = p->slot;
    pthread_mutex_lock(&l->mutex);
    if (status != WF_OK)
        fail_slot(l, slot, p->row[read].row);
    if (iter->collates && slot->left == 0 && slot->flying == p->count && slot->status == WF_OK &&
        !atomic_load(&iter->batcher.stop)) {
        pthread_mutex_unlock(&l->mutex);
        status = wf_collate_run(iter, slot);
        pthread_mutex_lock(&l->mutex);
        if (status != WF_OK)
            fail_slot(l, slot, slot->plan.size);
    }
    slot->flying -= p->count;
    if (slot->flying == 0)
        pthread_cond_signal(&l->done);
    pthread_mutex_unlock(&l->mutex);
}

static void *run_loader(void *argument)
{
    const loader_thread *t = argument;
    wf_iter *iter = t->iter;
    wf_batcher *b = &iter->batcher;
    piece p;
    while (claim_rows(iter, &p)) {
        const wf_rows_out out = wf_slot_rows(iter, p.slot);
        wf_status status = WF_OK;
        int64_t read = 0;
        /* The flag ends a batch in the middle when the iterator is freed or sought; what was filled is thrown away, so
         * no order with other memory is needed. */
        for (; read < p.count && !atomic_load_explicit(&b->stop, memory_order_relaxed); read++) {
            status = wf_batcher_read(b, &b->room[t->number], &p.row[read], &out);
            if (status != WF_OK)
                break;
        }
        finish_rows(iter, &p, status, read);
    }
    return NULL;
}

static wf_status start_threads(wf_iter *iter)
{
    wf_loader *l = iter->loader;
    for (; l->started < iter->workers; l->started++) {
        loader_thread *t = &l->thread[l->started];
        *t = (loader_thread){.iter = iter, .number = l->started};
        const int failed = pthread_create(&t->thread, NULL, run_loader, t);
        WF_CHECK(!failed, WF_ERR_MEMORY, "prefetch: cannot start thread %d of %d: %s", l->started + 1, iter->workers,
                 strerror(failed));
    }
    return WF_OK;
}

wf_status wf_loader_start(wf_iter *iter)
{
    wf_loader *l = wf_calloc(iter->ctx, 1, sizeof *l + (size_t)iter->workers * sizeof *l->thread);
    if (!l)
        return WF_ERR_MEMORY;
    pthread_mutex_init(&l->mutex, NULL);
    pthread_cond_init(&l->work, NULL);
    pthread_cond_init(&l->done, NULL);
    iter->loader = l;
    /* A start that failed has left the flag set and, by the threads that did start, the batcher further on. */
    atomic_store(&iter->batcher.stop, false);
    wf_batcher_seek(&iter->batcher, iter->next_epoch, iter->next_index);
    /* Signals stay with the program's own threads. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const wf_status status = start_threads(iter);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (status != WF_OK)
        wf_loader_stop(iter);
    return status;
}

wf_slot *wf_loader_wait(wf_iter *iter)
{
    wf_loader *l = iter->loader;
    wf_slot *slot = &iter->slots[iter->given % iter->slot_count];
    pthread_mutex_lock(&l->mutex);
    l->released = iter->given;
    pthread_cond_broadcast(&l->work);
    /* After an error the failed slot is the last one, and it is given again and again: `given` does not count it. */
    while (l->begun == iter->given || slot->flying > 0 || (slot->left > 0 && slot->status == WF_OK))
        pthread_cond_wait(&l->done, &l->mutex);
    pthread_mutex_unlock(&l->mutex);
    return slot;
}

void wf_loader_stop(wf_iter *iter)
{
    wf_loader *l = iter->loader;
    if (!l)
        return;
    /* Ends a batch in the middle; otherwise freeing an iterator would wait for a whole batch. */
    atomic_store(&iter->batcher.stop, true);
    pthread_mutex_lock(&l->mutex);
    l->stop = true;
    pthread_cond_broadcast(&l->work);
    pthread_mutex_unlock(&l->mutex);
    for (int i = 0; i < l->started; i++)
        pthread_join(l->thread[i].thread, NULL);
    pthread_cond_destroy(&l->done);
    pthread_cond_destroy(&l->work);
    pthread_mutex_destroy(&l->mutex);
    free(l);
    iter->loader = NULL;
}
