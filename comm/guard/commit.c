/* All or none: ranks that are about to make a call of MPI which nobody can look into agree that all of them make it.
 * Once they have, they make it whatever they hear; a rank that fails before takes the others out of it. */
#include "comm/guard/guard_impl.h"

#include "core/config_author.h"

#include <time.h>

#define SLEEP_NS 50000

/* Static: a message that was given up may still arrive, or be read. What is said is a number, or 0: no. */
static uint64_t heard, said;

/* deaf: without a look at notices, which the one that decides looks at. */
static wf_status end(wf_comm *comm, wf_transfer *t, bool deaf)
{
    wf_deadline deadline = wf_deadline_new();
    const int64_t limit = ((int64_t)wf_config_get()->timeout_ms + 2 * WF_GRACE_MS) * 1000000;
    deadline.peer = t->peer;
    for (;;) {
        WF_TRY(comm->link.test(comm, t));
        if (t->done)
            return t->status;
        if (!deaf) {
            WF_TRY(wf_deadline_poll(comm, &deadline));
            continue;
        }
        const int64_t waited = wf_now_ns() - deadline.start_ns;
        WF_CHECK(waited < limit, WF_ERR_TIMEOUT, "rank %s waited %lld ms for rank %s to agree",
                 WF_RANK(comm, comm->rank), (long long)(waited / 1000000), WF_RANK(comm, t->peer));
        wf_watch_beat();
        nanosleep(&(struct timespec){.tv_nsec = SLEEP_NS}, NULL);
    }
}

/* One number to a rank, or from it. By a tag of its own: who still meets would take an answer for a message of the
 * meeting. */
static wf_status pass(wf_comm *comm, int peer, bool sending, bool deaf)
{
    wf_transfer t = {
        .data = sending ? &said : &heard, .bytes = sizeof said, .peer = peer, .tag = comm->tag + 1, .sending = sending};
    WF_TRY(comm->link.start(comm, &t));
    const wf_status status = end(comm, &t, deaf);
    if (!t.done)
        comm->link.cancel(comm, &t);
    return status;
}

/* The first member polls failure notices until it has answered. */
static wf_status decide(wf_comm *comm, const int *member, int members, wf_status status, uint64_t id)
{
    for (int i = 1; i < members && status == WF_OK; i++)
        status = pass(comm, member[i], false, false);
    said = status == WF_OK ? id : 0;
    for (int i = 1; i < members; i++) {
        const wf_status sent = pass(comm, member[i], true, true);
        status = status == WF_OK ? sent : status;
    }
    return status;
}

static wf_status follow(wf_comm *comm, int leader, uint64_t *id)
{
    wf_deadline deadline = wf_deadline_new();
    said = *id;
    WF_TRY(pass(comm, leader, true, true));
    WF_TRY(pass(comm, leader, false, true));
    /* 0 means "no"; the reason follows in a failure notice. */
    deadline.peer = leader;
    while (heard == 0)
        WF_TRY(wf_deadline_poll(comm, &deadline));
    *id = heard;
    return WF_OK;
}

wf_status wf_guard_commit(wf_comm *comm, const char *operation, const int *member, int members, wf_status status,
                          uint64_t *id)
{
    if (status != WF_OK && comm->rank != member[0])
        return status;
    const wf_status started = wf_guard_meet(comm, operation);
    status = status == WF_OK ? started : status;
    return comm->rank == member[0] ? decide(comm, member, members, status, *id)
           : status == WF_OK       ? follow(comm, member[0], id)
                                   : status;
}
