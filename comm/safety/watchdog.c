/* The watchdog thread: ends the process if its main thread is stuck in a call of the library, or if the launcher is
 * gone, and beats for other processes (peers.c). Started before MPI. It never calls MPI and takes no lock. */
#include "comm/safety/safety_impl.h"

#include "core/config_author.h"
#include "core/log.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define TICK_MS   100
#define MARGIN_MS 2000 /* beyond the time-out: a main thread that can look at the clock speaks first */

static _Atomic(const char *) watching; /* what the main thread does; NULL: something of its own */
static atomic_uint beats;
static atomic_long last_ms; /* the limit once the process is about to leave; else 0 */
static _Atomic(wf_watchdog_hook) on_end;
static pid_t parent;

void wf_watchdog_set_hook(wf_watchdog_hook hook)
{
    atomic_store(&on_end, hook);
}

void wf_watch_beat(void)
{
    /* One thread writes: a load and a store are cheaper than an atomic addition, in a function that every poll calls.
     */
    atomic_store_explicit(&beats, atomic_load_explicit(&beats, memory_order_relaxed) + 1, memory_order_relaxed);
}

bool wf_watch_running(void)
{
    return atomic_load(&watching) != NULL;
}

void wf_watch_begin(const char *what)
{
    wf_watch_beat();
    if (!atomic_load_explicit(&last_ms, memory_order_relaxed))
        atomic_store_explicit(&watching, what, memory_order_relaxed);
}

void wf_watch_end(void)
{
    if (!atomic_load_explicit(&last_ms, memory_order_relaxed))
        atomic_store_explicit(&watching, NULL, memory_order_relaxed);
}

const char *wf_watch_swap(const char *what)
{
    const char *before = atomic_load_explicit(&watching, memory_order_relaxed);
    if (what)
        wf_watch_begin(what);
    else
        wf_watch_end();
    return before;
}

void wf_watch_last(const char *what, long limit_ms)
{
    atomic_store(&watching, what);
    atomic_store(&last_ms, limit_ms);
    wf_watch_beat();
}

static void end_process(const char *text)
{
    const wf_watchdog_hook hook = atomic_load(&on_end);
    wf_recorder_error(text);
    fprintf(stderr, "weft: rank %d: %s; the process ends\n", wf_recorder_rank(), text);
    wf_recorder_print();
    fflush(stderr);
    if (hook)
        hook(text);
    _exit(WF_WATCHDOG_EXIT);
}

static void check_launcher(void)
{
    char text[WF_FAILURE_TEXT];
    /* The launcher is gone: a signal to it does not reach ranks on other machines, nor one that MPI holds in a call. */
    if (!wf_config_get()->launched || getppid() == parent)
        return;
    snprintf(text, sizeof text, "the process that started this one (%ld) is gone", (long)parent);
    end_process(text);
}

static int64_t milliseconds(void)
{
    return wf_now_ns() / 1000000;
}

/* Time in which this thread was stopped, or the machine slept, does not count. The first beat comes at once: without
 * one a process passes for one that has no watchdog, and if it is stopped within the first tick no rank notices. */
static void *watch(void *unused)
{
    int64_t waited = 0, before = milliseconds();
    unsigned seen = atomic_load(&beats);
    char text[WF_FAILURE_TEXT];
    wf_recorder_beat();
    for (;;) {
        nanosleep(&(struct timespec){.tv_nsec = TICK_MS * 1000000}, NULL);
        const int64_t now = milliseconds(), passed = now - before < 2 * TICK_MS ? now - before : 2 * TICK_MS;
        const char *what = atomic_load(&watching);
        const unsigned beat = atomic_load(&beats);
        const long last = atomic_load(&last_ms), limit = last ? last : wf_config_get()->timeout_ms + MARGIN_MS;
        waited = what && beat == seen ? waited + passed : 0;
        before = now;
        seen = beat;
        wf_recorder_beat();
        check_launcher();
        if (waited <= limit)
            continue;
        snprintf(text, sizeof text, "%s has not come back for %lld ms", what, (long long)waited);
        end_process(text);
    }
    return NULL;
}

/* Signals are the main thread's business. */
void wf_watchdog_start(void)
{
    static bool running;
    pthread_t thread;
    sigset_t all, old;
    if (running)
        return;
    running = true;
    (void)wf_config_get(); /* read here, before another thread looks */
    parent = getppid();
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    const int failed = pthread_create(&thread, NULL, watch, NULL);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (failed)
        wf_log_write(WF_LOG_WARN, "no watchdog: %s", strerror(failed));
    else
        pthread_detach(thread);
}
