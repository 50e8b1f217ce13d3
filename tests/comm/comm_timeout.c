/* A rank that does not come: run with a short TEST_TIMEOUT_MS and TEST_IDLE_MS (tests/timeouts.h). */
#include "comm/background_author.h"
#include "comm/comm_author.h"
#include "core/config_author.h"
#include "core/context_author.h"
#include "tests/comm/comm_cases.h"
#include "tests/timeouts.h"
#include "tests/world.h"

#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <weft_places.h>

static wf_comm *world;
static wf_ctx *ctx;
static int rank, size;
static long limit; /* the time-out, in milliseconds */

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* All ranks begin a case together, with short time-outs, and come to its end with long ones, however late. */
static void begin_together(void)
{
    WF_EXPECT_OK(wf_barrier(world));
    test_timeouts_begin();
}

static wf_comm *begin_case(void)
{
    wf_comm *comm = wf_comm_split(world, 0, 0);
    begin_together();
    return comm;
}

static void end_case(wf_comm *comm)
{
    test_timeouts_end();
    WF_EXPECT_OK(wf_comm_close(comm));
    WF_EXPECT_OK(wf_barrier(world));
}

/* Busy with other things, until it hears that the others have given up. */
static wf_status stay_away(wf_comm *comm)
{
    wf_status status = WF_OK;
    for (int i = 0; i < 2000 && status == WF_OK; i++) {
        test_sleep_ms(10);
        status = wf_comm_alive(comm);
    }
    return status;
}

static void expect_timeout(wf_status status, int missing, const char *call)
{
    char part[100];
    snprintf(part, sizeof part, "for rank %d in %s", missing, call);
    WF_EXPECT(status == WF_ERR_TIMEOUT && strstr(wf_error_message(), part), "\"%s: %s\" does not say \"%s\"",
              wf_status_name(status), wf_error_message(), part);
    wf_error_clear();
}

static void missing_in_a_collective(void)
{
    for (int i = 0; size > 1 && i < 2; i++) {
        const int missing = i == 0 ? size - 1 : 0;
        double values[3] = {0};
        wf_comm *comm = begin_case();
        const wf_status status = rank == missing ? stay_away(comm) : wf_allreduce_f64(comm, values, 3, WF_SUM);
        expect_timeout(status, missing, "allreduce_f64(f64 [3], sum)");
        end_case(comm);
    }
}

/* A short message is on its way when the root's call comes to its end, where only the record of the rank before it in
 * the ring is awaited. */
static void missing_at_the_end(void)
{
    char data[16] = "";
    if (size < 2)
        return;
    wf_comm *comm = begin_case();
    wf_status status = rank < size - 1 ? wf_bcast_bytes(comm, data, sizeof data, 0) : WF_OK;
    WF_EXPECT(rank > 0 || status != WF_OK, "a broadcast ends well though rank %d has not come", size - 1);
    if (status == WF_OK)
        status = stay_away(comm);
    expect_timeout(status, size - 1, "bcast_bytes(u8 [16], root 0)");
    end_case(comm);
}

/* A rank that has closed the communicator sends nothing more, however busy its process is. */
static void closed_by_another(void)
{
    if (size < 2)
        return;
    wf_comm *comm = begin_case();
    wf_tensor *x = wf_tensor_new(ctx, WF_F32, WF_SHAPE(4));
    if (rank == 1) {
        const wf_status status = wf_recv(comm, x, 0, 7);
        WF_EXPECT(status == WF_ERR_COMM && strstr(wf_error_message(), "for rank 0, which has closed"), "%s: %s",
                  wf_status_name(status), wf_error_message());
        wf_error_clear();
    }
    wf_tensor_free(x);
    end_case(comm);
}

static void missing_message(void)
{
    if (size < 2)
        return;
    wf_comm *comm = begin_case();
    wf_tensor *x = wf_tensor_new(ctx, WF_F32, WF_SHAPE(4));
    expect_timeout(rank == 1 ? wf_recv(comm, x, 0, 7) : stay_away(comm), 0, "recv(rank 0, tag 7)");
    wf_tensor_free(x);
    end_case(comm);
}

static wf_comm *summed;

static void add_sum(void)
{
    static float values[8];
    static const int64_t offset[2] = {0, 8};
    const wf_call job = {.out = values, .dtype = WF_F32, .parts = 1, .part = offset};
    wf_background_sum(summed, &job);
}

/* A sum beside the computation, which one rank does not start. */
static void missing_in_a_task(void)
{
    for (int i = 0; size > 1 && i < 2; i++) {
        const int missing = i == 0 ? size - 1 : 0;
        wf_status status;
        summed = wf_comm_split(world, 0, 0);
        WF_EXPECT_OK(wf_background_open(summed));
        begin_together();
        if (rank == missing) {
            status = stay_away(summed);
        } else {
            add_sum();
            status = wf_background_wait(summed);
        }
        expect_timeout(status, missing, "flat(f32 [8], sum)");
        end_case(summed);
    }
}

/* A task that waits while its rank computes for longer than the time-out, and than what tasks get beyond it: the other
 * rank computes as long before its own. */
static void computing_is_no_wait(void)
{
    if (size != 2)
        return;
    summed = wf_comm_split(world, 0, 0);
    WF_EXPECT_OK(wf_background_open(summed));
    begin_together();
    const int64_t end = now_ms() + limit + 2000;
    if (rank == 0)
        add_sum();
    while (now_ms() < end) {
        wf_ctx_progress(ctx);
        test_sleep_ms(50);
    }
    if (rank > 0)
        add_sum();
    WF_EXPECT_OK(wf_background_wait(summed));
    end_case(summed);
}

/* A rank that says how long it works is awaited as long, also in what was split off; one that says it and stays away,
 * no longer than that and the time-out. */
static void busy_for_a_while(void)
{
    if (size < 2)
        return;
    wf_comm *comm = wf_comm_split(world, 0, 0), *child = wf_comm_split(comm, 0, 0);
    begin_together();
    if (rank == 0) {
        WF_EXPECT_OK(wf_comm_busy(comm, "writing results", 3 * limit));
        WF_EXPECT_OK(wf_comm_busy(comm, "one more line", 1)); /* does not take the longer one back */
        test_sleep_ms(2 * limit);
    }
    WF_EXPECT_OK(wf_barrier(child));
    WF_EXPECT_ERROR(WF_ERR_ARGUMENT, wf_comm_busy(comm, "nothing", 0));
    const time_t start = time(NULL);
    if (rank == 0)
        WF_EXPECT_OK(wf_comm_busy(comm, "too long", limit));
    expect_timeout(rank == 0 ? stay_away(comm) : wf_barrier(comm), 0, "barrier()");
    WF_EXPECT((time(NULL) - start + 1) * 1000 > 2 * limit, "the time-out came while rank 0 was busy");
    WF_EXPECT_OK(wf_comm_close(child));
    end_case(comm);
}

/* How long a rank of this machine may work. */
static void set_idle(long ms)
{
    ((wf_config *)wf_config_get())->idle_ms = ms;
}

/* A rank that lives and works is awaited beyond the time-out, without a word from it. */
static void work_is_no_fault(void)
{
    if (size < 2)
        return;
    wf_comm *comm = begin_case();
    set_idle(3600000);
    if (rank == 0)
        test_sleep_ms(limit + 1500);
    WF_EXPECT_OK(wf_barrier(comm));
    end_case(comm);
}

/* Two ranks that each receive what the other has not sent would wait for ever, and are told so before any time-out. */
static void waits_in_a_circle(void)
{
    if (size < 2)
        return;
    wf_comm *comm = begin_case();
    wf_tensor *x = wf_tensor_new(ctx, WF_F32, WF_SHAPE(4));
    set_idle(3600000);
    const wf_status status = rank < 2 ? wf_recv(comm, x, 1 - rank, 3 + rank) : stay_away(comm);
    WF_EXPECT(status == WF_ERR_COMM && strstr(wf_error_message(), "ranks wait for each other: rank ") &&
                  strstr(wf_error_message(), "rank 0 in recv(rank 1, tag 3)") &&
                  strstr(wf_error_message(), "rank 1 in recv(rank 0, tag 4)"),
              "%s: %s", wf_status_name(status), wf_error_message());
    wf_error_clear();
    wf_tensor_free(x);
    end_case(comm);
}

/* Stops this process after a while, and continues it later; returns the process that does so. */
static pid_t stop_later(long after_ms, long ms)
{
    const pid_t self = getpid(), child = fork();
    if (child != 0)
        return child;
    test_sleep_ms(after_ms);
    const int failed = kill(self, SIGSTOP);
    test_sleep_ms(ms);
    _exit(kill(self, SIGCONT) != 0 || failed);
}

/* All processes stand still for longer than the time-out, as those of a machine that is suspended, while rank 0
 * computes and the others wait: for a moment, or for longer than the time-out already. Rank 0 is continued a little
 * later, so that the others find it without a sign of life. */
static void all_stopped(void)
{
    for (int i = 0; size > 1 && i < 2; i++) {
        const long before = i == 0 ? 200 : limit + 500, stopped = limit + 500, later = 250;
        int status = -1;
        wf_comm *comm = begin_case();
        if (i > 0)
            set_idle(3600000);
        const pid_t child = stop_later(before, rank == 0 ? stopped + later : stopped);
        if (rank == 0)
            test_sleep_ms(before + stopped + 2 * later);
        WF_EXPECT_OK(wf_barrier(comm));
        WF_EXPECT(waitpid(child, &status, 0) == child && status == 0, "nobody stopped rank %d", rank);
        end_case(comm);
    }
}

/* Rank 0, which settles disputes, hears nothing for a while. */
static void deaf_first_rank(void)
{
    if (size < 2)
        return;
    wf_comm *comm = begin_case();
    if (rank == 0)
        test_sleep_ms(limit + 2300);
    expect_timeout(wf_barrier(comm), 0, "barrier()");
    end_case(comm);
}

static int on_ranks(int argc, char **argv)
{
    world = test_comm_open("flat", (wf_ctx_opts){0});
    if (!world) {
        fprintf(stderr, "%s\n", wf_error_message());
        return 1;
    }
    /* Between nodes the program is started without TEST_RANKS, by which ranks_main does this. */
    test_timeouts_begin();
    limit = wf_config_get()->timeout_ms;
    test_timeouts_end();
    ctx = wf_comm_ctx(world);
    rank = wf_comm_rank(world);
    size = wf_comm_size(world);
    const int status = test_main(argc, argv,
                                 (test_case[]){{"missing_in_a_collective", missing_in_a_collective},
                                               {"missing_at_the_end", missing_at_the_end},
                                               {"missing_message", missing_message},
                                               {"closed_by_another", closed_by_another},
                                               {"missing_in_a_task", missing_in_a_task},
                                               {"computing_is_no_wait", computing_is_no_wait},
                                               {"busy_for_a_while", busy_for_a_while},
                                               {"work_is_no_fault", work_is_no_fault},
                                               {"waits_in_a_circle", waits_in_a_circle},
                                               {"all_stopped", all_stopped},
                                               {"deaf_first_rank", deaf_first_rank},
                                               {0}});
    WF_EXPECT_OK(wf_comm_close(world));
    return status || test_failures() > 0;
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
