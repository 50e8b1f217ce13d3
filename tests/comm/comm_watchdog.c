/* The watchdog leaves alone who computes, and ends who is stuck inside MPI: run with a short TEST_TIMEOUT_MS.
 *
 * With "stuck" and a short WEFT_TIMEOUT_MS, rank 1 does not come to the opening, where MPI waits without end; the test
 * looks at what is printed. */
#include "comm/exchange_author.h"
#include "core/config_author.h"
#include "tests/comm/comm_cases.h"
#include "tests/timeouts.h"

#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#define BUSY_MS   3500 /* more than the time-out and the watchdog's margin */
#define MOMENT_MS 300  /* in which the watchdog looks */

static wf_comm *world;
static int rank, size;

void wf_watch_begin(const char *what);
void wf_watch_end(void);

static void compute(void)
{
    test_sleep_ms(BUSY_MS);
}

/* A process that is stopped, as by a suspended job, has not waited meanwhile. */
static void stopped(void)
{
    const pid_t self = getpid(), child = fork();
    if (child == 0) {
        compute();
        _exit(kill(self, SIGCONT) != 0);
    }
    wf_watch_begin("a call of the test");
    test_sleep_ms(MOMENT_MS);
    WF_EXPECT(child > 0 && raise(SIGSTOP) == 0, "no process, or no signal");
    test_sleep_ms(MOMENT_MS);
    wf_watch_end();
    WF_EXPECT(waitpid(child, NULL, 0) == child, "no child");
    test_timeouts_end(); /* a rank may be continued later than others */
    WF_EXPECT_OK(wf_barrier(world));
}

/* The others compute, and rank 0 waits for them. */
static void outside_of_calls(void)
{
    if (rank > 0)
        compute();
    WF_EXPECT_OK(wf_barrier(world));
}

/* What a layer computes while its halos travel. */
static void while_data_travels(void)
{
    wf_box have[2], need[2];
    for (int r = 0; r < 2; r++) {
        have[r] = (wf_box){.rank = 1, .lo = {2 * r}, .hi = {2 * r + 2}};
        need[r] = (wf_box){.rank = 1, .hi = {4}};
    }
    if (size != 2)
        return;
    wf_exchange *exchange = wf_exchange_new(world, WF_F32, WF_ROW_MAJOR, have, need);
    wf_tensor *x = wf_tensor_new(wf_comm_ctx(world), WF_F32, WF_SHAPE(2));
    wf_tensor *y = wf_tensor_new(wf_comm_ctx(world), WF_F32, WF_SHAPE(4));
    WF_EXPECT_OK(wf_tensor_fill(x, rank));
    WF_EXPECT_OK(wf_exchange_begin(exchange, x, y)); /* the first one connects */
    WF_EXPECT_OK(wf_exchange_end(exchange));
    WF_EXPECT_OK(wf_exchange_begin(exchange, x, y));
    compute();
    WF_EXPECT_OK(wf_exchange_poll(exchange));
    compute();
    WF_EXPECT_OK(wf_exchange_end(exchange));
    wf_tensor_free(x);
    wf_tensor_free(y);
    wf_exchange_free(exchange);
}

static void hook(const char *text)
{
    fprintf(stderr, "hook: %s\n", text);
}

static int stuck(int argc, char **argv)
{
    wf_watchdog_set_hook(hook);
    if (wf_config_get()->rank == atoi(argv[2]))
        sleep(30);
    (void)wf_comm_open(&argc, &argv, "flat", (wf_ctx_opts){0});
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 3)
        return stuck(argc, argv);
    world = wf_comm_open(&argc, &argv, "flat", (wf_ctx_opts){0});
    if (!world) {
        fprintf(stderr, "%s\n", wf_error_message());
        return 1;
    }
    test_timeouts_begin();
    rank = wf_comm_rank(world);
    size = wf_comm_size(world);
    const int status = test_main(argc, argv,
                                 (test_case[]){{"outside_of_calls", outside_of_calls},
                                               {"while_data_travels", while_data_travels},
                                               {"stopped", stopped},
                                               {0}});
    WF_EXPECT_OK(wf_comm_close(world));
    return status || test_failures() > 0;
}
