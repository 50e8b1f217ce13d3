/* The death of a communicator: which error counts, how all ranks return the same one, and what those split from it
 * inherit. Disagreements come from control.c, time-outs and circles from deadline.c, errors of calls from operation.c.
 *
 *     this rank fails (wf_failure_own), or sees a disagreement, a circle or a time-out (wf_failure_seen)
 *       --> tell all ranks by a notice, with this rank's text
 *       --> rank 0 decides at once: the first text that it has, its own or one of a notice, is the verdict
 *           other ranks wait up to WF_GRACE_MS for the verdict, and take their own text if there is none
 *     a notice arrives in a wait (wf_failure_heard)
 *       --> as above, with the text of the notice
 *
 * A communicator dies once, and sends nothing after that: later calls return the same error. */
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

/* Marks the communicator as dead. */
static void mark_dead(wf_comm *comm, wf_status status, const char *text)
{
    comm->death.status = status;
    snprintf(comm->death.text, sizeof comm->death.text, "%s", text);
    /* Before anything else: kernels that wait for the failed rank would hold the GPU for ever. */
    wf_native_give_up(comm);
    if (!comm->control)
        return;
    wf_recorder_error(text);
    happened = true;
}

static wf_status die(wf_comm *comm, wf_status status, const char *text)
{
    if (!comm->death.status)
        mark_dead(comm, status, text);
    return WF_RAISE(comm->death.status, "%s", comm->death.text);
}

/* Waits for the verdict of rank 0, WF_GRACE_MS at most, and dies of it, or of the candidate if rank 0 is silent. */
static wf_status await_verdict(wf_comm *comm, wf_status status, const char *candidate)
{
    char text[WF_FAILURE_TEXT];
    wf_status heard;
    wf_wait wait = {0};
    while (wf_wait_ns(&wait) < (int64_t)WF_GRACE_MS * 1000000) {
        if (wf_control_verdict(comm, &heard, text))
            return die(comm, heard, text);
        wf_watch_beat();
        sched_yield();
    }
    return die(comm, status, candidate);
}

/* Tells all ranks of a failure, and dies of the error that counts. */
static wf_status tell_and_die(wf_comm *comm, wf_status status, const char *text, bool refused)
{
    char other[WF_FAILURE_TEXT];
    wf_status heard;
    if (comm->death.status)
        return die(comm, comm->death.status, comm->death.text);
    if (!comm->control || wf_mpi_gone())
        return die(comm, status, text);
    /* The verdict received so far may be for a later call; ranks still in this call must be told as well. */
    if (wf_control_verdict(comm, &heard, other)) {
        wf_control_tell(comm, heard, other, refused);
        return die(comm, heard, other);
    }
    wf_control_tell(comm, status, text, refused);
    return comm->rank == 0 ? die(comm, status, text) : await_verdict(comm, status, text);
}

wf_status wf_failure_seen(wf_comm *comm, wf_status status, const char *text)
{
    return tell_and_die(comm, status, text, false);
}

wf_status wf_failure_heard(wf_comm *comm, wf_status status, const char *text)
{
    char candidate[WF_FAILURE_TEXT];
    if (comm->death.status)
        return die(comm, comm->death.status, comm->death.text);
    /* A copy, since another notice may replace the one that holds the text. */
    snprintf(candidate, sizeof candidate, "%s", text);
    return await_verdict(comm, status, candidate);
}

/* Writes the text that all ranks return; it begins with the rank that failed. */
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
    return tell_and_die(comm, status, text, refused);
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
    if (comm->death.status)
        return die(comm, comm->death.status, comm->death.text);
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
    return die(comm, from->death.status, from->death.text);
}

void wf_failure_settle(wf_comm *comm)
{
    for (const wf_comm *from = comm->parent; from && !comm->death.status; from = from->parent)
        if (from->death.status)
            mark_dead(comm, from->death.status, from->death.text);
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
