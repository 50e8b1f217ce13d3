/* All or none: ranks that are about to make a call of MPI which nobody can look into agree that all of them make it.
 * Once they have, they make it whatever they hear; a rank that fails before takes the others out of it. */
#include "comm/guard/guard_impl.h"

#include "core/config_author.h"

#include <time.h>

#define SLEEP_NS 50000

static const char yes = 'y', no = 'n';
/* Static: a message that was given up may still arrive. */
static char answer;

static int member_at(const int *member, int i)
{
    return member ? member[i] : i;
}

/* Without a look at notices, which the one that decides looks at. */
static wf_status wait_deaf(wf_comm *comm, wf_requests *requests, int peer)
{
    const int64_t start = wf_now_ns();
    const int64_t limit = ((int64_t)wf_config_get()->timeout_ms + 2 * WF_GRACE_MS) * 1000000;
    for (bool done = false;;) {
        WF_TRY(wf_requests_look(requests, 0, requests->count, &done));
        if (done)
            return WF_OK;
        const int64_t waited = wf_now_ns() - start;
        WF_CHECK(waited < limit, WF_ERR_TIMEOUT, "rank %d waited %lld ms for rank %d to agree", comm->rank,
                 (long long)(waited / 1000000), peer);
        wf_watch_beat();
        nanosleep(&(struct timespec){.tv_nsec = SLEEP_NS}, NULL);
    }
}

/* The first member hears of failures until it has answered. */
static wf_status decide(wf_comm *comm, const int *member, int members, wf_status status)
{
    wf_requests *requests = &comm->requests;
    const int tag = requests->tag;
    for (int i = 1; i < members && status == WF_OK; i++) {
        status = wf_requests_recv(requests, &answer, 1, member_at(member, i));
        if (status == WF_OK)
            status = wf_requests_wait_all(requests);
        if (status == WF_OK)
            wf_requests_start(requests, tag);
    }
    const int first = requests->count;
    for (int i = 1; i < members; i++) {
        const wf_status sent = wf_requests_send(requests, status == WF_OK ? &yes : &no, 1, member_at(member, i));
        status = status == WF_OK ? sent : status;
    }
    return status == WF_OK && requests->count > first ? wait_deaf(comm, requests, member_at(member, 1)) : status;
}

static wf_status follow(wf_comm *comm, int leader)
{
    wf_requests *requests = &comm->requests;
    wf_deadline deadline = wf_deadline_new();
    WF_TRY(wf_requests_send(requests, &yes, 1, leader));
    WF_TRY(wf_requests_recv(requests, &answer, 1, leader));
    WF_TRY(wait_deaf(comm, requests, leader));
    /* Why not says a notice, which is on its way. */
    deadline.peer = leader;
    while (answer != yes)
        WF_TRY(wf_deadline_poll(comm, &deadline, NULL));
    return WF_OK;
}

wf_status wf_guard_commit(wf_comm *comm, const char *operation, const int *member, int members, wf_status status)
{
    const int leader = member_at(member, 0);
    if (members == 1 || (status != WF_OK && comm->rank != leader))
        return status;
    const wf_status started = wf_guard_meet(comm, operation);
    status = status == WF_OK ? started : status;
    return comm->rank == leader ? decide(comm, member, members, status)
           : status == WF_OK    ? follow(comm, leader)
                                : status;
}
