/* The watchdog beside the main thread, under ThreadSanitizer (tests/comm/comm.cmake): calls that begin, beat and end
 * while it looks; and with "stuck" a main thread that no longer does, of which it prints the last calls before it ends
 * the process. */
#include "comm/safety/safety_impl.h"
#include "tests/test.h"

#include <string.h>
#include <time.h>

enum { CALLS = 300, OPEN = 3 };

static wf_comm_shared shared;
static wf_comm comm = {.name = "threads", .size = 1, .shared = &shared};

static void call(bool settles)
{
    comm.call.record = wf_call_record_plain("barrier", -1);
    wf_watch_begin("a call of the test");
    wf_recorder_enter(&comm);
    wf_watch_beat();
    wf_recorder_step(&comm, "a step of it");
    wf_recorder_wait(&comm, 1, 2);
    if (settles)
        wf_recorder_settle(&comm);
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    wf_recorder_end(&comm, "barrier", false);
    wf_watch_end();
}

static void calls(void)
{
    for (int i = 0; i < CALLS; i++) {
        const char *before = wf_watch_swap(NULL);
        wf_recorder_place(i % 2, 2);
        (void)wf_watch_swap(before);
        call(i % 2);
    }
    const wf_trace *trace = wf_recorder_trace();
    WF_EXPECT(trace->events == CALLS && __atomic_load_n(&trace->state.beat_ns, __ATOMIC_RELAXED) > 0, "%d events",
              (int)trace->events);
}

/* Longer than the time-out and what the watchdog waits beyond it. */
static int stuck(void)
{
    for (int i = 0; i < OPEN; i++)
        call(false);
    wf_recorder_enter(&comm);
    wf_watch_begin("a call that is stuck");
    nanosleep(&(struct timespec){.tv_sec = 20}, NULL);
    return 0;
}

int main(int argc, char **argv)
{
    shared.ctx = wf_ctx_new((wf_ctx_opts){.device = "ref", .threads = 1});
    wf_recorder_open();
    wf_watchdog_start();
    if (argc == 2 && !strcmp(argv[1], "stuck"))
        return stuck();
    const int failed = test_main(argc, argv, (test_case[]){{"calls", calls}, {0}});
    wf_recorder_remove();
    return wf_ctx_free(shared.ctx) != WF_OK || failed;
}
