/* The death of a communicator: whose words count, how all ranks come to the same error, and what children inherit. A
 * dead communicator sends nothing any more. */
#include "comm/guard/guard_impl.h"
#include "comm/transport/transport_impl.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool happened; /* a communicator of several ranks died in this process */

bool wf_failure_happened(void)
{
    return happened;
}

static void mark(wf_comm *comm, wf_status status, const char *text)
{
    comm->dead = status;
    snprintf(comm->death, sizeof comm->death, "%s", text);
    /* First: kernels that wait for the failed rank would hold the GPU for ever. */
    if (comm->native)
        wf_transport_native.give_up(comm);
    if (!comm->control)
        return;
    wf_recorder_error(text);
    happened = true;
}

static wf_status die(wf_comm *comm, wf_status status, const char *text)
{
    if (!comm->dead)
        mark(comm, status, text);
    return WF_RAISE(comm->dead, "%s", comm->death);
}

/* Several ranks may see a failure at once, each in its own words. Rank 0 takes the first that it receives and tells
 * all; the others wait a moment for that, and believe the candidate if rank 0 is silent. */
static wf_status decide(wf_comm *comm, wf_status status, const char *candidate)
{
    char text[WF_FAILURE_TEXT];
    wf_status heard;
    const int64_t end = wf_now_ns() + (int64_t)WF_GRACE_MS * 1000000;
    while (wf_now_ns() < end) {
        if (wf_control_verdict(comm, &heard, text))
            return die(comm, heard, text);
        wf_watch_beat();
        sched_yield();
    }
    return die(comm, status, candidate);
}

static wf_status agree(wf_comm *comm, wf_status status, const char *text, bool refused)
{
    char other[WF_FAILURE_TEXT];
    wf_status heard;
    if (comm->dead)
        return die(comm, comm->dead, comm->death);
    if (!comm->control || wf_mpi_gone())
        return die(comm, status, text);
    /* The verdict received so far may be for a later call; ranks still in this call must be told as well. */
    if (wf_control_verdict(comm, &heard, other)) {
        wf_control_tell(comm, heard, other, refused);
        return die(comm, heard, other);
    }
    wf_control_tell(comm, status, text, refused);
    return comm->rank == 0 ? die(comm, status, text) : decide(comm, status, text);
}

wf_status wf_failure_seen(wf_comm *comm, wf_status status, const char *text)
{
    return agree(comm, status, text, false);
}

wf_status wf_failure_heard(wf_comm *comm, wf_status status, const char *text)
{
    char candidate[WF_FAILURE_TEXT];
    if (comm->dead)
        return die(comm, comm->dead, comm->death);
    /* Copied: the notice that holds it may be replaced meanwhile. */
    snprintf(candidate, sizeof candidate, "%s", text);
    return decide(comm, status, candidate);
}

/* The text that all ranks will return: it begins with who failed. */
static void describe_own(const wf_comm *comm, char text[WF_FAILURE_TEXT])
{
    char message[WF_FAILURE_TEXT];
    wf_status code;
    wf_error_save(&code, message, sizeof message);
    snprintf(text, WF_FAILURE_TEXT, "rank %s: %.600s", WF_RANK(comm, comm->rank), message);
}

wf_status wf_failure_own(wf_comm *comm, wf_status status, bool refused)
{
    char text[WF_FAILURE_TEXT];
    describe_own(comm, text);
    return agree(comm, status, text, refused);
}

void wf_failure_leave(wf_comm *comm, int code)
{
    char text[WF_FAILURE_TEXT];
    (void)WF_RAISE(WF_ERR_COMM, "the program ended with exit code %d", code);
    describe_own(comm, text);
    wf_control_tell(comm, WF_ERR_COMM, text, false);
    (void)die(comm, WF_ERR_COMM, text);
}

wf_status wf_comm_post_failure(wf_comm *comm, wf_status status)
{
    return !comm || status == WF_OK ? status : wf_failure_own(comm, status, false);
}

wf_status wf_comm_alive(wf_comm *comm)
{
    WF_NEED(comm);
    if (comm->dead)
        return die(comm, comm->dead, comm->death);
    if (comm->control && wf_mpi_gone())
        return die(comm, WF_ERR_STATE, "the program has finalized MPI, which the communicator needs");
    return wf_control_poll(comm, false);
}

wf_status wf_comm_busy(wf_comm *comm, const char *what, int64_t ms)
{
    WF_NEED(comm);
    WF_CHECK(ms > 0, WF_ERR_ARGUMENT, "busy for %lld ms", (long long)ms);
    WF_TRY(wf_comm_alive(comm));
    return comm->control ? wf_control_busy(comm, what ? what : "busy", ms) : WF_OK;
}

wf_status wf_failure_inherit(wf_comm *comm, const wf_comm *from)
{
    return die(comm, from->dead, from->death);
}

void wf_failure_settle(wf_comm *comm)
{
    for (const wf_comm *from = comm->parent; from && !comm->dead; from = from->parent)
        if (from->dead)
            mark(comm, from->dead, from->death);
}

void wf_comm_release(const wf_comm *comm, void *data)
{
    /* Kept in sight, so that a leak checker does not take it for forgotten. */
    static void **kept;
    static size_t count;
    if (!comm->lost || !data) {
        free(data);
        return;
    }
    void **more = realloc(kept, (count + 1) * sizeof *more);
    /* Better a leak than memory that a late message writes into. */
    if (!more)
        return;
    kept = more;
    kept[count++] = data;
}
