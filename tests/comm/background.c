/* The background stream: what it sends counts as its communicator's, what comes behind a failure is left out, and a
 * communicator that closes takes its operations with it. */
#include "comm/background_author.h"
#include "core/config_author.h"
#include "core/context_author.h"
#include "tests/ranks.h"

#include <stdlib.h>
#include <string.h>

enum { COUNT = 3000 };

static const int64_t ends[2] = {0, COUNT};

static wf_call job_of(float *data)
{
    for (int i = 0; i < COUNT; i++)
        data[i] = (float)(rank + 1);
    return (wf_call){.out = data, .dtype = WF_F32, .parts = 1, .part = ends};
}

static float sum_of_ranks(void)
{
    return (float)(size * (size + 1) / 2);
}

static wf_status note(void *own)
{
    *(bool *)own = true;
    return WF_OK;
}

static wf_status fail(void *own)
{
    WF_FAIL(WF_ERR_IO, "%s", (const char *)own);
}

/* As many bytes and messages as the same sum in the foreground. */
static void counted(void)
{
    float data[COUNT];
    wf_call job = job_of(data);
    const wf_traffic first = wf_comm_traffic(comm);
    WF_EXPECT_OK(wf_reducer_sum(comm, &job));
    const wf_traffic second = wf_comm_traffic(comm);
    job = job_of(data);
    wf_background_sum(comm, &job);
    WF_EXPECT_OK(wf_background_wait(comm));
    const wf_traffic third = wf_comm_traffic(comm);
    WF_EXPECT(data[COUNT - 1] == sum_of_ranks(), "the sum is %g", (double)data[COUNT - 1]);
    const uint64_t bytes = second.bytes_sent - first.bytes_sent, messages = second.messages - first.messages;
    WF_EXPECT(bytes > 0 && third.bytes_sent - second.bytes_sent == bytes, "%d bytes in front, %d behind", (int)bytes,
              (int)(third.bytes_sent - second.bytes_sent));
    WF_EXPECT(third.messages - second.messages == messages, "%d messages in front, %d behind", (int)messages,
              (int)(third.messages - second.messages));
}

/* The first error is the stream's; the next wait begins anew. */
static void left_out(void)
{
    float data[COUNT];
    bool called = false;
    wf_call job = job_of(data);
    wf_background_call(comm, fail, (void *)"disk full");
    wf_background_sum(comm, &job);
    wf_background_call(comm, fail, (void *)"another one");
    wf_background_call(comm, note, &called);
    const wf_status status = wf_background_wait(comm);
    WF_EXPECT(status == WF_ERR_IO && strstr(wf_error_message(), "disk full"), "%s", wf_error_message());
    wf_error_clear();
    WF_EXPECT(!called && data[0] == (float)(rank + 1), "what was added behind a failure ran");
    wf_background_sum(comm, &job);
    wf_background_call(comm, note, &called);
    WF_EXPECT_OK(wf_background_wait(comm));
    WF_EXPECT(called && data[0] == sum_of_ranks(), "the stream does not go on: %g", (double)data[0]);
}

/* A sum that has begun ends, and well, although the next operation cannot be added; that error is the stream's. */
static void not_added(void)
{
    float data[COUNT];
    bool called = false;
    const wf_call job = job_of(data);
    wf_comm *part = wf_comm_split(comm, 0, 0);
    wf_background_sum(comm, &job);
    wf_ctx_progress(ctx);
    wf_background_call(part, note, &called);
    WF_EXPECT_ERROR(WF_ERR_STATE, wf_background_wait(comm));
    WF_EXPECT(!called && data[0] == sum_of_ranks(), "sum %g, %s", (double)data[0], called ? "called" : "not called");
    left_out();
    WF_EXPECT_OK(wf_comm_close(part));
}

/* The first sum waits for rank 0, which adds it when the part is closed. */
static void abandoned(void)
{
    float data[COUNT];
    bool called = false;
    const wf_call job = job_of(data);
    wf_comm *part = wf_comm_split(comm, 0, 0);
    WF_EXPECT_OK(wf_background_open(part));
    if (rank > 0)
        wf_background_sum(comm, &job);
    wf_background_call(part, fail, (void *)"of a communicator that is closed");
    if (rank > 0)
        wf_background_call(part, note, &called);
    if (rank == 0)
        WF_EXPECT_ERROR(WF_ERR_IO, wf_background_wait(part));
    WF_EXPECT_OK(wf_comm_close(part));
    if (rank == 0)
        wf_background_sum(comm, &job);
    WF_EXPECT_OK(wf_background_wait(comm));
    WF_EXPECT(!called && data[0] == sum_of_ranks(), "sum %g, %s", (double)data[0], called ? "called" : "not called");
}

/* How long ranks wait, where nothing else is said: five minutes where a peer's signs are seen, half an hour between
 * nodes, an hour for one that works. */
static void usual_limits(void)
{
    const wf_config *config = wf_config_get();
    if (getenv("WEFT_TIMEOUT_MS") || getenv("WEFT_IDLE_MS") || getenv("TEST_TIMEOUT_MS"))
        return;
    WF_EXPECT(config->timeout_ms == 300000 && config->far_ms == 1800000 && config->idle_ms == 3600000,
              "%ld, %ld and %ld ms", config->timeout_ms, config->far_ms, config->idle_ms);
}

static int on_ranks(int argc, char **argv)
{
    if (!ranks_open("flat"))
        return 1;
    WF_EXPECT_OK(wf_background_open(comm));
    return ranks_close(test_main(argc, argv,
                                 (test_case[]){{"counted", counted},
                                               {"left_out", left_out},
                                               {"not_added", not_added},
                                               {"abandoned", abandoned},
                                               {"usual_limits", usual_limits},
                                               {0}}));
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
