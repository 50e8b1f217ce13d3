/* How a rank waits: it polls the control channel and the clock, advances the background stream, and yields the
 * processor. Every wait of a call has a limit, since it calls wf_deadline_poll, or has one of its own (commit.c,
 * failure.c). Every CONTROL_EVERY polls look at the control channel; beyond that:
 *     polls 1 to SPIN_POLLS    spin
 *     until YIELD_NS           sched_yield
 *     after it                 sleep SLEEP_NS
 *     after GONE_NS            every LOOK_NS look at the process that is awaited (comm/safety/peers.c):
 *                                it has left, or closed the communicator     error after GONE_NS more
 *                                ranks wait for each other in a circle       error after CIRCLE_NS without a change
 *                                its watchdog beats: it computes, or waits   no fault until WEFT_IDLE_MS
 *                                no beat for WEFT_TIMEOUT_MS: dead, stopped  error after WEFT_TIMEOUT_MS
 *
 * The state of a process on another machine cannot be seen: such a wait ends after a time-out of its own, which
 * wf_comm_busy of any rank extends. */
#include "comm/guard/guard_impl.h"

#include "core/config_author.h"
#include "core/log.h"

#include <sched.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define SPIN_POLLS    100     /* before the processor is offered to others */
#define YIELD_NS      5000000 /* of offering it, before sleeping */
#define SLEEP_NS      50000
#define GONE_NS       1000000000 /* from the first sight that a rank has left: what it sent before arrives meanwhile */
#define CONTROL_EVERY 4          /* polls */
#define LOOK_NS       100000000  /* from one look at the peer's state to the next */
#define CIRCLE_NS     2000000000 /* that nothing moves in a circle of waits before it is an error */
#define SAY_NS        60000000000
#define NOTE_NS       10000000 /* of a wait, until the flight recorder learns of its step; polls may take long */

wf_deadline wf_deadline_new(void)
{
    /* Control is asked in the fourth poll: most waits are over before. */
    wf_deadline deadline = {.polls = 1, .peer = -1};
    (void)wf_wait_ns(&deadline.wait);
    return deadline;
}

/* Ends the wait with an error that names the awaited rank. left: how that rank has left; NULL: it is not known to. */
static wf_status end_wait(wf_comm *comm, int64_t waited_ns, int peer, const char *left)
{
    char call[WF_RECORD_TEXT], number[48] = "", text[WF_FAILURE_TEXT], whom[48] = "its GPU";
    wf_call_record_text(&comm->call.record, call);
    if (comm->call.record.sequence > 0)
        snprintf(number, sizeof number, " (collective %llu)", (unsigned long long)comm->call.record.sequence);
    if (peer >= 0)
        snprintf(whom, sizeof whom, "rank %s", WF_RANK(comm, peer));
    snprintf(text, sizeof text, "rank %s waited %lld ms for %s%s in %s%s", WF_RANK(comm, comm->rank),
             (long long)(waited_ns / 1000000), whom, left ? left : "", call, number);
    return wf_failure_seen(comm, left ? WF_ERR_COMM : WF_ERR_TIMEOUT, text);
}

/* Returns the limit of this wait. Only the right neighbour of a missing rank knows which rank is missing, so other
 * ranks wait half a grace period longer before they report. */
static int64_t limit_ns(const wf_comm *comm, int peer)
{
    const bool far = peer >= 0 && comm->ranks.node && comm->ranks.node[peer] != comm->ranks.node[comm->rank];
    const int64_t nested = comm->nested ? (int64_t)WF_GRACE_MS * 1000000 : 0;
    const int64_t limit = (int64_t)(far ? wf_config_get()->far_ms : wf_config_get()->timeout_ms) * 1000000 + nested;
    const bool knows = comm->call.record.sequence == 0 || wf_control_missing(comm) >= 0;
    return knows ? limit : limit + (int64_t)WF_GRACE_MS * 500000;
}

/* Returns true if another rank has said that it computes for a while (wf_comm_busy): the limit counts from the end of
 * that. */
static bool is_excused(const wf_comm *comm, wf_deadline *deadline)
{
    const char *what = "";
    const int64_t until = wf_control_busy_until_ns(comm, &what);
    if (until <= deadline->wait.start_ns)
        return false;
    wf_log_write(WF_LOG_INFO, "rank %s waits for %s", WF_RANK(comm, comm->rank), what);
    deadline->wait.start_ns = until;
    return true;
}

bool wf_deadline_crowded(const wf_comm *comm)
{
    static long processors;
    if (processors == 0)
        processors = sysconf(_SC_NPROCESSORS_ONLN);
    return comm->intra_size > processors;
}

/* Returns the process of a rank of this node, or 0 for a rank of another one, whose state cannot be seen. */
static int64_t process_of(const wf_comm *comm, int peer)
{
    const bool near = peer >= 0 && comm->ranks.node && comm->ranks.node[peer] == comm->ranks.node[comm->rank];
    return near && comm->ranks.pid ? comm->ranks.pid[peer] : 0;
}

static wf_status check_circle(wf_comm *comm, wf_deadline *deadline, int64_t now)
{
    char text[WF_FAILURE_TEXT];
    uint64_t circle = 0;
    bool unlike = false;
    if (!wf_peer_circle(&circle, &unlike, text))
        circle = 0;
    if (circle != deadline->circle) {
        deadline->circle = circle;
        deadline->circle_ns = now;
    }
    return circle && unlike && now - deadline->circle_ns > CIRCLE_NS ? wf_failure_seen(comm, WF_ERR_COMM, text) : WF_OK;
}

/* Returns true if the awaited rank is of this machine and computes, or waits for one that does: that is no fault. A
 * rank that waits for this one is. */
static bool is_working(const wf_comm *comm, wf_deadline *deadline, int peer, int64_t now)
{
    char call[WF_RECORD_TEXT];
    const int64_t waited = now - deadline->wait.start_ns, process = process_of(comm, peer);
    if (process != 0 && deadline->circle)
        return now - deadline->circle_ns <= CIRCLE_NS; /* then the circle is the error, if it is one */
    if (process == 0 || waited > (int64_t)wf_config_get()->idle_ms * 1000000 ||
        !wf_peer_lives(process, deadline->wait.lost_ns))
        return false;
    if (now - deadline->said_ns > SAY_NS) {
        deadline->said_ns = now;
        wf_log_write(WF_LOG_INFO, "rank %s waits for rank %s, which works, for %lld s in %s", WF_RANK(comm, comm->rank),
                     WF_RANK(comm, peer), (long long)(waited / 1000000000),
                     wf_call_record_text(&comm->call.record, call));
    }
    return true;
}

/* Looks at the awaited process, in a wait that lasts. */
static wf_status look_around(wf_comm *comm, wf_deadline *deadline, int64_t now)
{
    const int64_t waited = now - deadline->wait.start_ns;
    const int missing = wf_control_missing(comm), peer = missing < 0 ? deadline->peer : missing;
    if (now - deadline->looked_ns < LOOK_NS)
        return WF_OK;
    deadline->looked_ns = now;
    const char *left = NULL;
    if (wf_control_gone(comm, peer))
        left = ", whose program has ended,";
    else if (wf_peer_closed(process_of(comm, peer), comm->id))
        left = ", which has closed the communicator,";
    deadline->left_ns = !left ? 0 : deadline->left_ns ? deadline->left_ns : now;
    if (left)
        return now - deadline->left_ns > GONE_NS ? end_wait(comm, waited, peer, left) : WF_OK;
    wf_recorder_wait(comm, process_of(comm, peer), deadline->wait.start_ns);
    WF_TRY(check_circle(comm, deadline, now));
    /* The awaited rank of an unheeding wait has a time-out of its own, after which it answers: that comes first. */
    const int64_t limit = limit_ns(comm, peer) + (deadline->unheeding ? (int64_t)WF_GRACE_MS * 2000000 : 0);
    const bool fault = waited > limit && !is_excused(comm, deadline) && !is_working(comm, deadline, peer, now);
    return fault ? end_wait(comm, waited, peer, NULL) : WF_OK;
}

/* Advances the background stream, which has set the context's hook if anything is queued; unless it is the stream that
 * waits. */
static void progress_background(const wf_comm *comm, bool lasts)
{
    wf_comm_shared *shared = comm->shared;
    if (!shared->background || shared->background_runs || shared->ctx->progress_state != shared->background)
        return;
    shared->waits = lasts;
    wf_ctx_progress(shared->ctx);
    shared->waits = false;
}

wf_status wf_deadline_poll(wf_comm *comm, wf_deadline *deadline)
{
    const int64_t waited = wf_wait_ns(&deadline->wait), now = deadline->wait.start_ns + waited;
    wf_watch_beat();
    deadline->noted += waited > NOTE_NS && deadline->noted < 2;
    /* Control messages are seldom there, and asking MPI for them costs as much as asking for data. */
    if (deadline->polls++ % CONTROL_EVERY == 0 && !deadline->unheeding) {
        WF_TRY(wf_control_poll(comm, true));
        WF_TRY(wf_native_poll(comm));
    }
    if (waited > GONE_NS || waited > limit_ns(comm, -1))
        WF_TRY(look_around(comm, deadline, now));
    progress_background(comm, waited > NOTE_NS);
    if (deadline->polls < SPIN_POLLS && !wf_deadline_crowded(comm))
        return WF_OK;
    /* Yield first, then sleep: a short wait is over before a sleep would end, a long one leaves the processor to those
     * who compute. */
    if (waited < YIELD_NS)
        sched_yield();
    else
        nanosleep(&(struct timespec){.tv_nsec = SLEEP_NS}, NULL);
    return WF_OK;
}
