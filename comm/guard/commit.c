/* A commit in two phases, before a call of MPI that blocks and cannot be given up (make_part in comm/open.c): all
 * members make the call, or none. Each says yes to the first one, which answers all with the number of the new
 * communicator; or with 0 for "no", if a notice of a failure comes first. After its yes a rank awaits nothing else. */
#include "comm/guard/guard_impl.h"

#include <stdlib.h>

/* Numbers that two ranks tell each other; 0 means "no". They have memory of their own, since a message that was given
 * up may still arrive in it, or be read from it. */
typedef struct answers {
    uint64_t heard, said;
} answers;

/* Waits for a transfer. `unheeding`: failure notices are not polled here, since the deciding rank polls them. */
static wf_status finish_transfer(wf_comm *comm, wf_transfer *t, bool unheeding)
{
    wf_deadline deadline = wf_deadline_new();
    deadline.peer = t->peer;
    deadline.unheeding = unheeding;
    for (;;) {
        WF_TRY(comm->link.test(comm, t));
        if (t->done)
            return t->status;
        WF_TRY(wf_deadline_poll(comm, &deadline));
    }
}

/* Passes one number to a rank, or from it, by a tag of its own: a rank that still meets would take an answer for a
 * message of the meeting. */
static wf_status pass(wf_comm *comm, answers *a, int peer, bool sending, bool unheeding)
{
    wf_transfer t = {.data = sending ? &a->said : &a->heard,
                     .bytes = sizeof a->said,
                     .peer = peer,
                     .tag = comm->call.tag + 1,
                     .sending = sending};
    WF_TRY(comm->link.start(comm, &t));
    const wf_status status = finish_transfer(comm, &t, unheeding);
    if (!t.done)
        comm->link.cancel(comm, &t);
    if (!t.done)
        comm->lost = true;
    return status;
}

/* The first member polls failure notices until it has answered. */
static wf_status decide(wf_comm *comm, answers *a, const int *member, int members, wf_status status, uint64_t id)
{
    for (int i = 1; i < members && status == WF_OK; i++)
        status = pass(comm, a, member[i], false, false);
    if (status == WF_OK)
        a->said = id;
    for (int i = 1; i < members; i++) {
        const wf_status sent = pass(comm, a, member[i], true, true);
        status = status == WF_OK ? sent : status;
    }
    return status;
}

static wf_status follow(wf_comm *comm, answers *a, int leader, uint64_t *id)
{
    wf_deadline deadline = wf_deadline_new();
    a->said = *id;
    WF_TRY(pass(comm, a, leader, true, true));
    WF_TRY(pass(comm, a, leader, false, true));
    /* 0 means "no"; the reason follows in a failure notice. */
    deadline.peer = leader;
    while (a->heard == 0)
        WF_TRY(wf_deadline_poll(comm, &deadline));
    *id = a->heard;
    return WF_OK;
}

wf_status wf_guard_commit(wf_comm *comm, const char *operation, const int *member, int members, wf_status status,
                          uint64_t *id)
{
    const bool leads = comm->rank == member[0];
    if (status != WF_OK && !leads)
        return status;
    const wf_status started = wf_guard_meet(comm, operation);
    status = status == WF_OK ? started : status;
    static answers none; /* never written: without memory a rank can only say no, and hears nothing before */
    answers *a = calloc(1, sizeof *a);
    if (!a && status == WF_OK)
        status = WF_RAISE(WF_ERR_MEMORY, "no memory for a communicator");
    if (leads)
        status = decide(comm, a ? a : &none, member, members, status, *id);
    else if (status == WF_OK)
        status = follow(comm, a, member[0], id);
    wf_comm_release(comm, a);
    return status;
}
