/* Limits of the guard that whole calls reach only by chance: a full ring of records, a wait for a rank that has left
 * and then for another one, a tensor of another type for oneself, and ranks that work long, or are stopped, in the
 * midst of a commit or of a failure. Run with a short TEST_TIMEOUT_MS (tests/timeouts.h). */
#include "comm/comm_author.h"
#include "comm/guard/guard_impl.h"
#include "comm/reducer_author.h"
#include "tests/comm/comm_cases.h"
#include "tests/ranks.h"
#include "tests/timeouts.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RECORDS = 64 }; /* of comm/guard/control.c */

static wf_status announce(wf_comm *part, int number)
{
    wf_call_record record = wf_call_record_plain("records", -1);
    record.sequence = (uint64_t)number;
    record.dim[0] = number;
    return wf_control_announce(part, &record, (uint64_t)number);
}

/* All ranks have announced as many records as there is room for, and all but the last one have compared theirs. Its
 * left neighbour knows its own calls to be right, but must not overwrite a record that the last rank has not read. */
static void a_full_ring_of_records(void)
{
    wf_comm *part = wf_comm_split(comm, 0, 0);
    WF_EXPECT_OK(wf_reducer_connect(part));
    WF_EXPECT_OK(wf_barrier(part));
    WF_EXPECT_OK(wf_guard_settle(part));
    WF_EXPECT_OK(wf_barrier(comm)); /* now all have read the records of this */
    WF_EXPECT(wf_comm_shares_memory(part), "no memory is shared");
    for (int i = 1; i <= RECORDS; i++) {
        WF_EXPECT(wf_control_has_room(part), "no room for record %d", i);
        WF_EXPECT_OK(announce(part, i));
    }
    WF_EXPECT_OK(wf_barrier(comm));
    if (rank < size - 1)
        WF_EXPECT_OK(wf_control_poll(part, false));
    WF_EXPECT(wf_control_confirmed(part) == (rank < size - 1), "rank %d: the records are compared where they are not",
              rank);
    WF_EXPECT_OK(wf_barrier(comm));
    WF_EXPECT(wf_control_has_room(part) == (rank < size - 2), "rank %d of %d: room for record %d", rank, size,
              RECORDS + 1);
    WF_EXPECT_OK(wf_barrier(comm));
    WF_EXPECT_OK(wf_control_poll(part, false));
    WF_EXPECT_OK(wf_barrier(comm));
    WF_EXPECT(wf_control_has_room(part), "rank %d: no room though all records are read", rank);
    WF_EXPECT_OK(wf_comm_close(part));
}

/* One look of a wait for `peer`, which is long enough to look around. */
static wf_status look_for(wf_comm *part, wf_deadline *wait, int peer)
{
    wait->peer = peer;
    wait->looked_ns = 0;
    return wf_deadline_poll(part, wait);
}

/* What a rank sent before it left may arrive for a second after this rank has seen it leave; a sight of it in an
 * earlier part of the wait does not count. */
static void leaving_is_seen_anew(void)
{
    wf_comm *part = wf_comm_split(comm, 0, 0);
    if (rank > 0)
        WF_EXPECT_OK(wf_comm_close(part));
    WF_EXPECT_OK(wf_barrier(comm));
    if (rank == 0) {
        wf_deadline wait = wf_deadline_new();
        wait.wait.start_ns -= 1500000000;
        WF_EXPECT_OK(look_for(part, &wait, 1));
        WF_EXPECT(wait.left_ns > 0, "rank 1 has closed, and is not seen to");
        wait.left_ns = 1; /* long ago */
        WF_EXPECT_OK(look_for(part, &wait, -1));
        WF_EXPECT_OK(look_for(part, &wait, 1));
        wait.left_ns = 1;
        WF_EXPECT(look_for(part, &wait, 1) == WF_ERR_COMM && strstr(wf_error_message(), "which has closed"), "\"%s\"",
                  wf_error_message());
        wf_error_clear();
        WF_EXPECT_OK(wf_comm_close(part));
    }
}

/* What a rank keeps for itself is compared like what it sends. */
static void own_slot_of_another_type(void)
{
    wf_comm *part = wf_comm_split(comm, 0, 0);
    wf_tensor *x[8], *y[8];
    for (int r = 0; r < size; r++) {
        x[r] = wf_tensor_new(ctx, WF_I32, WF_SHAPE(3));
        y[r] = wf_tensor_new(ctx, r == 0 && rank == 0 ? WF_F32 : WF_I32, WF_SHAPE(3));
        WF_EXPECT_OK(wf_tensor_fill(x[r], 1));
    }
    wf_status status = wf_alltoall(part, x, y);
    status = status == WF_OK ? wf_barrier(part) : status;
    expect_same_error(comm, status, WF_ERR_COMM, "rank 0 sent i32 [3] where f32 [3] is expected", "own slot", 0);
    for (int r = 0; r < size; r++) {
        wf_tensor_free(x[r]);
        wf_tensor_free(y[r]);
    }
    WF_EXPECT_OK(wf_comm_close(part));
}

/* A commit of all ranks, to which one comes later than any time-out, since it works: none gives it up. */
static void work_in_a_commit_is_no_fault(void)
{
    for (int late = 0; late < size; late += size - 1) {
        int member[8];
        uint64_t id = (uint64_t)rank + 5;
        wf_comm *part = wf_comm_split(comm, 0, 0);
        WF_EXPECT_OK(wf_barrier(comm));
        test_timeouts_begin();
        const long limit = wf_config_get()->timeout_ms;
        ((wf_config *)wf_config_get())->idle_ms = 3600000;
        for (int r = 0; r < size; r++)
            member[r] = r;
        part->call.parting = true;
        if (rank == late)
            test_sleep_ms(limit + 2 * WF_GRACE_MS + 1500);
        wf_status status = wf_guard_commit(part, "commit", member, size, WF_OK, &id);
        status = wf_guard_end(part, "commit", status);
        WF_EXPECT(status == WF_OK && id == 5, "rank %d comes late: %s, number %d: %s", late, wf_status_name(status),
                  (int)id, status == WF_OK ? "" : wf_error_message());
        wf_error_clear();
        test_timeouts_end();
        WF_EXPECT_OK(wf_comm_close(part));
        WF_EXPECT_OK(wf_barrier(comm));
    }
}

/* The first rank waits for the last one in a commit, which waits for a message of the second one, which is in the
 * commit: ranks learn of the circle before any time-out. */
static void a_commit_in_a_circle(void)
{
    int member[8];
    uint64_t id = 5;
    wf_comm *part = wf_comm_split(comm, 0, 0);
    wf_tensor *x = wf_tensor_new(ctx, WF_F32, WF_SHAPE(4));
    WF_EXPECT_OK(wf_barrier(comm));
    test_timeouts_begin();
    ((wf_config *)wf_config_get())->idle_ms = 3600000;
    ((wf_config *)wf_config_get())->timeout_ms = 60000;
    for (int r = 0; r < size; r++)
        member[r] = r;
    wf_status status;
    if (rank == size - 1) {
        status = wf_recv(part, x, size - 2, 3);
    } else {
        part->call.parting = true;
        status = wf_guard_end(part, "commit", wf_guard_commit(part, "commit", member, size, WF_OK, &id));
    }
    WF_EXPECT(status == WF_ERR_COMM && strstr(wf_error_message(), "ranks wait for each other"), "%s: \"%s\"",
              wf_status_name(status), status == WF_OK ? "" : wf_error_message());
    wf_error_clear();
    test_timeouts_end();
    wf_tensor_free(x);
    WF_EXPECT_OK(wf_comm_close(part));
    WF_EXPECT_OK(wf_barrier(comm));
}

static volatile sig_atomic_t continued;

static void note_continued(int signal)
{
    continued = 1;
}

/* Another process stops this one for longer than ranks wait for the verdict, and tells the first rank when this one
 * goes on. */
static pid_t stop_soon(pid_t first)
{
    const pid_t self = getpid(), child = fork();
    if (child != 0)
        return child;
    test_sleep_ms(100);
    int failed = kill(self, SIGSTOP);
    test_sleep_ms(WF_GRACE_MS + 500);
    failed += kill(self, SIGCONT);
    test_sleep_ms(50);
    _exit(kill(first, SIGUSR1) != 0 || failed);
}

/* The last rank has learned of a failure, and is stopped while it waits for the verdict of the first one, which comes
 * after it goes on: that is the error, as on all ranks. */
static void stopped_before_the_verdict(void)
{
    wf_comm *part = wf_comm_split(comm, 0, 0);
    wf_status status;
    continued = 0;
    signal(SIGUSR1, note_continued);
    WF_EXPECT_OK(wf_barrier(comm));
    if (rank == size - 1) {
        int code = -1;
        const pid_t child = stop_soon((pid_t)part->ranks.pid[0]);
        status = wf_failure_heard(part, WF_ERR_IO, "what this rank has heard");
        WF_EXPECT(waitpid(child, &code, 0) == child && code == 0, "the process was not stopped");
    } else {
        while (rank == 0 && !continued)
            test_sleep_ms(5);
        status = rank == 0 ? wf_comm_post_failure(part, WF_RAISE(WF_ERR_IO, "disk full")) : wf_barrier(part);
    }
    WF_EXPECT(status == WF_ERR_IO && strcmp(wf_error_message(), "rank 0: disk full") == 0, "\"%s\"",
              wf_error_message());
    wf_error_clear();
    WF_EXPECT_OK(wf_comm_close(part));
    WF_EXPECT_OK(wf_barrier(comm));
    signal(SIGUSR1, SIG_DFL);
}

static int on_ranks(int argc, char **argv)
{
    test_timeouts_end(); /* only the cases that await time-outs have short ones */
    if (!ranks_open("single_node"))
        return 1;
    return ranks_close(test_main(argc, argv,
                                 (test_case[]){{"a_full_ring_of_records", a_full_ring_of_records},
                                               {"leaving_is_seen_anew", leaving_is_seen_anew},
                                               {"own_slot_of_another_type", own_slot_of_another_type},
                                               {"work_in_a_commit_is_no_fault", work_in_a_commit_is_no_fault},
                                               {"a_commit_in_a_circle", a_commit_in_a_circle},
                                               {"stopped_before_the_verdict", stopped_before_the_verdict},
                                               {0}}));
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
