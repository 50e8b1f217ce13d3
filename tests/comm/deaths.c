/* One rank dies or stops at a chosen place, as tests/comm/deaths.sh asks: deaths PLACE FAULT [COMMUNICATOR [RANK]].
 *
 * PLACE: start (before the communicator), forward (computing, the others reduce), reduction, sample (rank 0 writes a
 * file, the others wait), message (each waits for one from the next rank), shutdown (after the communicator is closed),
 * device (it has begun a sum, of which the others read the result), exchange (halos go there and back), two (computing,
 * the others wait in a reduction while a sum of theirs is in the background). Beside that: differ (it calls something
 * else, and no rank dies), twice (the same on two communicators that are closed then), loop (nothing happens, without
 * end). FAULT: kill, segv, exit (1), leave (exit 0), stop, of RANK (default 0); none of any. */
#include "comm/background_author.h"
#include "comm/comm.h"
#include "comm/exchange_author.h"
#include "core/config_author.h"
#include "tests/test.h"
#include "tests/timeouts.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
#include <weft_places.h>

#define COUNT   ((int64_t)1 << 18)
#define MOMENT  100 /* ms: long enough for the others to wait already */
#define SAMPLES 5

static const char *fault;
static wf_comm *comm;
static wf_tensor *x;

static void (*leave)(int) = exit;

static void happen(int unused)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    fprintf(stderr, "fault %lld.%03ld\n", (long long)now.tv_sec, now.tv_nsec / 1000000);
    if (!strcmp(fault, "kill"))
        raise(SIGKILL);
    if (!strcmp(fault, "segv")) {
        signal(SIGSEGV, SIG_DFL);
        raise(SIGSEGV);
    }
    if (!strcmp(fault, "stop"))
        raise(SIGSTOP);
    if (!strcmp(fault, "exit"))
        leave(1);
    if (!strcmp(fault, "leave"))
        leave(0);
}

static void happen_at_exit(void)
{
    leave = _exit; /* exit has been called */
    happen(0);
}

/* In the midst of whatever this rank does then. */
static void happen_soon(void)
{
    const struct itimerval once = {.it_value.tv_usec = MOMENT * 1000};
    signal(SIGALRM, happen);
    setitimer(ITIMER_REAL, &once, NULL);
}

static void steps(int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        WF_MUST(wf_tensor_fill(x, 1));
        WF_MUST(wf_allreduce(comm, x, x, WF_SUM));
    }
}

static void message(bool culprit)
{
    steps(3);
    if (culprit)
        happen(0);
    WF_MUST(wf_recv(comm, x, (wf_comm_rank(comm) + 1) % wf_comm_size(comm), 0));
}

static void write_samples(void)
{
    FILE *file = tmpfile();
    for (int i = 0; file && i < SAMPLES; i++) {
        fprintf(file, "sample %d\n", i);
        fflush(file);
        test_sleep_ms(MOMENT / 2);
    }
    if (file)
        fclose(file);
}

static void forward(bool culprit)
{
    steps(3);
    if (culprit) {
        test_sleep_ms(MOMENT);
        happen(0);
    }
    steps(1);
}

static void two(bool culprit)
{
    static float values[8];
    static const int64_t offset[2] = {0, 8};
    const wf_call job = {.out = values, .dtype = WF_F32, .parts = 1, .part = offset};
    WF_MUST(wf_background_open(comm));
    steps(3);
    if (culprit) {
        test_sleep_ms(MOMENT);
        happen(0);
    }
    wf_background_sum(comm, &job);
    steps(1);
}

static void reduction(bool culprit)
{
    steps(3);
    if (culprit)
        happen_soon();
    steps(INT64_MAX);
}

static void sample(bool culprit)
{
    steps(3);
    if (culprit)
        happen_soon();
    if (wf_comm_rank(comm) == 0)
        write_samples();
    WF_MUST(wf_barrier(comm));
    test_sleep_ms(2 * MOMENT);
    WF_MUST(wf_barrier(comm));
}

static void device(bool culprit)
{
    float *values = malloc(COUNT * sizeof *values);
    for (int i = 0; i < 3 && values; i++) {
        steps(1);
        WF_MUST(wf_tensor_export(x, values, wf_tensor_bytes(x)));
    }
    steps(1);
    if (culprit) {
        test_sleep_ms(MOMENT);
        happen(0);
    }
    if (values)
        WF_MUST(wf_tensor_export(x, values, wf_tensor_bytes(x)));
    free(values);
    steps(1); /* the sum of one that leaves may have come to its end */
}

/* Rows of which each rank needs one more on both sides. */
static void exchange(bool culprit)
{
    enum { ROWS = 4, WIDTH = 20000, RANKS = 8 };
    wf_box have[RANKS], need[RANKS];
    const int size = wf_comm_size(comm), rank = wf_comm_rank(comm);
    if (size > RANKS)
        exit(2); /* have and need hold a box of each rank */
    for (int r = 0; r < size; r++) {
        have[r] = need[r] = (wf_box){.rank = 2, .lo = {(int64_t)r * ROWS}, .hi = {(int64_t)(r + 1) * ROWS, WIDTH}};
        need[r].lo[0] -= r > 0;
        need[r].hi[0] += r < size - 1;
    }
    wf_exchange *e = wf_exchange_new(comm, WF_F32, WF_ROW_MAJOR, have, need);
    wf_tensor *from = wf_tensor_new(wf_comm_ctx(comm), WF_F32, wf_box_shape(have[rank]));
    wf_tensor *to = wf_tensor_new(wf_comm_ctx(comm), WF_F32, wf_box_shape(need[rank]));
    WF_MUST(wf_check(e));
    WF_MUST(wf_tensor_fill(from, 1));
    steps(3);
    if (culprit)
        happen_soon();
    for (;;) {
        WF_MUST(wf_exchange_begin(e, from, to));
        WF_MUST(wf_exchange_end(e));
        WF_MUST(wf_exchange_reverse_begin(e, to, from));
        WF_MUST(wf_exchange_end(e));
        WF_MUST(wf_tensor_fill(from, 1));
    }
}

static void differ(bool culprit)
{
    steps(3);
    if (culprit) {
        test_sleep_ms(MOMENT);
        WF_MUST(wf_barrier(comm));
    }
    steps(1);
}

/* Ranks disagree on two communicators, one after the other, and the program goes on. */
static void twice(bool culprit)
{
    for (int i = 0; i < 2; i++) {
        double value = 1;
        wf_comm *part = wf_comm_split(comm, 0, 0);
        WF_MUST(wf_check(part));
        const wf_status status = !culprit ? wf_allreduce_f64(part, &value, 1, WF_SUM)
                                 : i == 0 ? wf_barrier(part)
                                          : wf_bcast_bytes(part, &value, sizeof value, 1);
        if (status == WF_OK)
            exit(3);
        wf_error_clear();
        WF_MUST(wf_comm_close(part));
    }
    steps(1);
}

static void shutdown(bool culprit)
{
    steps(3);
    if (culprit)
        atexit(happen_at_exit);
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    const char *place = argv[1];
    fault = argv[2];
    /* The launcher says it before MPI starts; without a launcher this is the only rank. */
    const int own = wf_config_get()->rank > 0 ? wf_config_get()->rank : 0;
    const bool culprit = strcmp(fault, "none") != 0 && own == atoi(argc > 4 ? argv[4] : "0");
    if (culprit && !strcmp(place, "start"))
        happen(0);
    comm = wf_comm_open(&argc, &argv, argc > 3 ? argv[3] : "flat", (wf_ctx_opts){0});
    WF_MUST(wf_check(comm));
    test_timeouts_begin();
    x = wf_tensor_new(wf_comm_ctx(comm), WF_F32, WF_SHAPE(COUNT));
    if (!strcmp(place, "forward"))
        forward(culprit);
    if (!strcmp(place, "two"))
        two(culprit);
    if (!strcmp(place, "reduction"))
        reduction(culprit);
    if (!strcmp(place, "message"))
        message(culprit);
    if (!strcmp(place, "sample"))
        sample(culprit);
    if (!strcmp(place, "device"))
        device(culprit);
    if (!strcmp(place, "exchange"))
        exchange(culprit);
    if (!strcmp(place, "differ"))
        differ(culprit);
    if (!strcmp(place, "twice"))
        twice(culprit);
    if (!strcmp(place, "shutdown"))
        shutdown(culprit);
    if (!strcmp(place, "loop")) {
        fprintf(stderr, "loop\n");
        steps(INT64_MAX);
    }
    wf_tensor_free(x);
    WF_MUST(wf_comm_close(comm));
    return 0;
}
