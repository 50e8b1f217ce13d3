/* The control channel: how ranks learn that all make the same call, and that one of them has failed.
 *
 * Actors. Each rank compares its calls with those of its left neighbour in the ring of ranks: all are equal if each
 * pair is. Rank 0 decides which of several failures counts (the verdict). The channel is an MPI communicator of its own
 * with two tags. It is polled by every wait (wf_control_poll); here only wf_control_announce waits, for a free place.
 *
 * A rank announces a call: its record is number n, in place n % RECORDS, and nothing is sent yet. Each rank confirms
 * call n, that is, knows that its left neighbour makes the same one, by the first of these:
 *   - wf_control_confirm: messages or slot flags of the call itself, which hold its hash, came from all ranks;
 *   - shared memory: the left neighbour's cell of call n has the same hash, or, after a look, an equal record;
 *   - without it, a message with an equal record n, or a later one: its sender could end call n only if all agree.
 * wf_control_show sends that message: at once if nothing else will confirm the call, else after LATE_NS of waiting, so
 * that a rank in another call can compare it. A record that differs fails the communicator (disagree).
 *
 * Who owns what. A record is the sender's; its place is used again when the right neighbour has confirmed it in shared
 * memory, or when its message, if any, is sent. The number of a cell is stored with release after hash and record.
 *
 * Failures. A notice of one goes to all ranks with its position: 2 n in collective n, 2 n + 1 after it. A rank in an
 * earlier call goes on up to that position, so that calls which can end do. Notices may cross: a rank holds the lowest
 * position and the verdict, if it has come; failure.c waits for that.
 *
 * The end. A farewell tells the right neighbour that no call follows. A closed channel is swept until the left one's
 * farewell has come and all is sent; MPI frees its communicator then, but never that of a dead one. */
#include "comm/guard/guard_impl.h"
#include "comm/transport/transport_impl.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RECORDS    64 /* collectives that may be under way at once */
#define TAG_RECORD 1
#define TAG_NOTICE 2
#define LINE       128      /* ranks do not disturb each other's caches */
#define LATE_NS    20000000 /* until an unconfirmed record is sent; between looks for notices, out of waits */

/* Tells all ranks of a failure; with status 0 and busy_ms 0, of the end of a program; with busy_ms, of a rank that
 * computes for that long. */
typedef struct notice {
    int32_t status, verdict;
    uint64_t position; /* where it happened (position_of): calls before that go on */
    int64_t busy_ms;
    char text[WF_FAILURE_TEXT];
} notice;

/* A record as a message, with the number of its call, from 0; the number that users see (sequence) begins with 1. */
typedef struct numbered {
    uint64_t number;
    wf_call_record call;
} numbered;

/* A notice on its way. */
typedef struct telling {
    struct telling *next;
    notice told;
    MPI_Request request[]; /* one per rank */
} telling;

/* What one rank shows the others. Record n is in place n % RECORDS. */
typedef struct shared_records {
    _Alignas(LINE) atomic_uint_least64_t confirmed; /* records of its left neighbour that it needs no more */
    _Alignas(LINE) struct {
        atomic_uint_least64_t number; /* n + 1: the record is there */
        uint64_t hash;
    } cell[RECORDS];
    wf_call_record record[RECORDS];
} shared_records;

struct wf_control {
    MPI_Comm mpi;
    int left, right;
    numbered own[RECORDS]; /* announced, until the left neighbour's is known to be equal, where memory is not shared */
    MPI_Request sent[RECORDS];
    bool met[RECORDS]; /* messages or flags of the call itself have shown that all ranks make it */
    uint64_t announced, confirmed;
    int64_t unsent_ns; /* when the last one was announced, by the tick of the system; 0: it is sent, or need not be */
    shared_records **shared; /* of each rank; NULL: records are messages */
    uint64_t taken;          /* own records that the right neighbour had confirmed when last asked */
    int64_t heard_ns;        /* when MPI was last asked for them, by the tick of the system */
    numbered theirs;
    bool arrived; /* theirs holds a record */
    MPI_Request record, notice;
    notice heard;
    notice held;       /* the failure received, at the lowest position of all; no status: none */
    int64_t held_ns;   /* since when */
    numbered farewell; /* announces that no call follows; no operation: not sent yet */
    MPI_Request leaving;
    telling *told;         /* the last first */
    uint64_t failed;       /* the lowest position of a failure that was told; 0: none was */
    int64_t busy_until_ns; /* of any other rank, as far as is known */
    char busy_with[80];
    bool dead;
    int rank, ranks;
    struct wf_control *next;
    bool gone[]; /* one per rank: its program has ended */
};

static wf_call_record *mine(struct wf_control *c, uint64_t n)
{
    return c->shared ? &c->shared[c->rank]->record[n % RECORDS] : &c->own[n % RECORDS].call;
}

/* Closed, but messages of theirs are not over, and may still touch their memory. */
static struct wf_control *unfinished;

static wf_status await_record(struct wf_control *c)
{
    c->arrived = false;
    TRY_MPI(MPI_Irecv(&c->theirs, (int)sizeof c->theirs, MPI_BYTE, c->left, TAG_RECORD, c->mpi, &c->record));
    return WF_OK;
}

static wf_status await_notice(struct wf_control *c)
{
    TRY_MPI(MPI_Irecv(&c->heard, (int)sizeof c->heard, MPI_BYTE, MPI_ANY_SOURCE, TAG_NOTICE, c->mpi, &c->notice));
    return WF_OK;
}

wf_status wf_control_new(wf_comm *comm)
{
    struct wf_control *c = calloc(1, sizeof *c + (size_t)comm->size * sizeof *c->gone);
    WF_CHECK(c, WF_ERR_MEMORY, "no memory for a communicator");
    comm->control = c;
    c->mpi = MPI_COMM_NULL;
    c->rank = comm->rank;
    c->ranks = comm->size;
    c->right = (comm->rank + 1) % comm->size;
    c->left = (comm->rank + comm->size - 1) % comm->size;
    for (int i = 0; i < RECORDS; i++)
        c->sent[i] = MPI_REQUEST_NULL;
    c->record = c->notice = c->leaving = MPI_REQUEST_NULL;
    return WF_OK;
}

wf_status wf_control_open(wf_comm *comm, const void *mpi_comm)
{
    comm->control->mpi = *(const MPI_Comm *)mpi_comm;
    WF_TRY(await_record(comm->control));
    return await_notice(comm->control);
}

size_t wf_control_shared_bytes(void)
{
    return sizeof(shared_records);
}

wf_status wf_control_share(wf_comm *comm, char *first, size_t stride)
{
    struct wf_control *c = comm->control;
    if (!c)
        return WF_OK;
    c->shared = wf_malloc(comm->shared->ctx, (size_t)comm->size * sizeof *c->shared);
    if (!c->shared)
        return wf_error_code();
    for (int r = 0; r < comm->size; r++)
        c->shared[r] = (shared_records *)(void *)(first + (size_t)r * stride);
    c->taken = c->announced;
    atomic_store_explicit(&c->shared[comm->rank]->confirmed, c->confirmed, memory_order_release);
    return WF_OK;
}

void wf_control_unshare(wf_comm *comm)
{
    struct wf_control *c = comm->control;
    if (!c)
        return;
    free(c->shared);
    c->shared = NULL;
}

/* The right neighbour needs no more what was announced RECORDS calls ago. */
static wf_status look_for_place(struct wf_control *c, bool *is_free)
{
    int done = 1;
    if (!c->shared)
        TRY_MPI(MPI_Test(&c->sent[c->announced % RECORDS], &done, MPI_STATUS_IGNORE));
    else if (c->announced - c->taken >= RECORDS)
        c->taken = atomic_load_explicit(&c->shared[c->right]->confirmed, memory_order_acquire);
    *is_free = done && (!c->shared || c->announced - c->taken < RECORDS);
    return WF_OK;
}

/* Receives the left neighbour's record of call n, or of a later one, into c->theirs; *there: it has come. Earlier
 * records are of calls that are over. */
static wf_status next_record(struct wf_control *c, uint64_t n, bool *there)
{
    int done = c->arrived;
    for (;;) {
        if (!done)
            TRY_MPI(MPI_Test(&c->record, &done, MPI_STATUS_IGNORE));
        c->arrived = done;
        *there = done && c->theirs.number >= n;
        if (!done || *there)
            return WF_OK;
        WF_TRY(await_record(c));
        done = 0;
    }
}

wf_status wf_control_show(wf_comm *comm)
{
    struct wf_control *c = comm->control;
    if (!c || c->unsent_ns == 0)
        return WF_OK;
    const uint64_t n = c->announced - 1;
    numbered *own = &c->own[n % RECORDS];
    own->number = n;
    c->unsent_ns = 0;
    TRY_MPI(MPI_Isend(own, (int)sizeof *own, MPI_BYTE, c->right, TAG_RECORD, c->mpi, &c->sent[n % RECORDS]));
    return WF_OK;
}

void wf_control_confirm(wf_comm *comm)
{
    struct wf_control *c = comm->control;
    if (!c)
        return;
    c->unsent_ns = 0;
    c->met[(c->announced - 1) % RECORDS] = true;
    while (c->confirmed < c->announced && c->met[c->confirmed % RECORDS])
        c->confirmed++; /* not past calls under way whose records have not come yet */
    if (c->shared)
        atomic_store_explicit(&c->shared[c->rank]->confirmed, c->confirmed, memory_order_release);
}

wf_status wf_control_announce(wf_comm *comm, const wf_call_record *record, uint64_t hash)
{
    struct wf_control *c = comm->control;
    wf_deadline deadline = {.polls = -1};
    for (;;) {
        bool is_free = false;
        if (c->announced - c->confirmed < RECORDS)
            WF_TRY(look_for_place(c, &is_free));
        if (is_free)
            break;
        if (deadline.polls < 0)
            deadline = wf_deadline_new();
        WF_TRY(wf_deadline_poll(comm, &deadline));
    }
    const uint64_t n = c->announced++, place = n % RECORDS;
    *mine(c, n) = *record;
    c->met[place] = false;
    if (c->shared) {
        shared_records *own = c->shared[comm->rank];
        own->cell[place].hash = hash;
        atomic_store_explicit(&own->cell[place].number, n + 1, memory_order_release);
        return WF_OK;
    }
    c->unsent_ns = wf_tick_ns();
    return WF_OK;
}

bool wf_control_has_room(wf_comm *comm)
{
    struct wf_control *c = comm->control;
    bool is_free = true;
    return !c || (c->announced - c->confirmed < RECORDS && look_for_place(c, &is_free) == WF_OK && is_free);
}

bool wf_control_confirmed(const wf_comm *comm)
{
    return !comm->control || comm->control->confirmed == comm->control->announced;
}

int wf_control_missing(const wf_comm *comm)
{
    return wf_control_confirmed(comm) ? -1 : comm->control->left;
}

static bool is_farewell(const wf_call_record *record)
{
    return !strncmp(record->operation, "close", sizeof record->operation) ||
           !strncmp(record->operation, "exit", sizeof record->operation);
}

static wf_status disagree(wf_comm *comm, const wf_call_record *ours, const wf_call_record *theirs)
{
    char own[WF_RECORD_TEXT], other[WF_RECORD_TEXT], text[WF_FAILURE_TEXT];
    const int left = comm->control->left;
    snprintf(text, sizeof text, "ranks disagree in collective %llu: rank %s calls %.250s, rank %s calls %.250s",
             (unsigned long long)ours->sequence, WF_RANK(comm, left), wf_call_record_text(theirs, other),
             WF_RANK(comm, comm->rank), wf_call_record_text(ours, own));
    return wf_failure_seen(comm, WF_ERR_COMM, text);
}

/* Equal hashes count as equal records: the record itself stays in the neighbour's cache. */
static bool shows_equal(const wf_comm *comm, uint64_t n)
{
    const struct wf_control *c = comm->control;
    const uint64_t place = n % RECORDS;
    if (!c->shared)
        return false;
    const shared_records *left = c->shared[c->left], *own = c->shared[comm->rank];
    return atomic_load_explicit(&left->cell[place].number, memory_order_acquire) == n + 1 &&
           left->cell[place].hash == own->cell[place].hash;
}

/* What the left neighbour calls where this rank makes call n; NULL: it has not come. A farewell comes as a message,
 * also where records do not. A message of a later call says that the neighbour has ended call n without a record, which
 * it can only where all ranks make the same call. */
static wf_status look_for_record(struct wf_control *c, uint64_t n, const wf_call_record **theirs)
{
    const shared_records *left = c->shared ? c->shared[c->left] : NULL;
    bool there = false;
    *theirs = NULL;
    if (left && atomic_load_explicit(&left->cell[n % RECORDS].number, memory_order_acquire) == n + 1) {
        *theirs = &left->record[n % RECORDS];
        return WF_OK;
    }
    WF_TRY(next_record(c, n, &there));
    if (there && c->theirs.number == n)
        *theirs = &c->theirs.call;
    else if (there && !left)
        *theirs = mine(c, n);
    return WF_OK;
}

/* Compares with the left neighbour, which suffices: in a ring all are equal if each equals its left one. */
static wf_status compare_records(wf_comm *comm)
{
    struct wf_control *c = comm->control;
    for (; c->confirmed < c->announced; c->confirmed++) {
        const wf_call_record *ours = mine(c, c->confirmed), *theirs;
        if (!c->met[c->confirmed % RECORDS] && !shows_equal(comm, c->confirmed)) {
            WF_TRY(look_for_record(c, c->confirmed, &theirs));
            if (!theirs)
                break;
            if (!wf_call_record_equal(ours, theirs))
                return disagree(comm, ours, theirs);
        }
        if (c->shared)
            atomic_store_explicit(&c->shared[comm->rank]->confirmed, c->confirmed + 1, memory_order_release);
    }
    return WF_OK;
}

static void note_busy(wf_comm *comm, int rank)
{
    struct wf_control *c = comm->control;
    const int64_t until = wf_now_ns() + c->heard.busy_ms * 1000000;
    if (until <= c->busy_until_ns)
        return;
    c->busy_until_ns = until;
    snprintf(c->busy_with, sizeof c->busy_with, "rank %s: %.40s", WF_RANK(comm, rank), c->heard.text);
}

int64_t wf_control_busy_until_ns(const wf_comm *comm, const char **what)
{
    int64_t until = 0;
    for (; comm; comm = comm->parent)
        if (comm->control && comm->control->busy_until_ns > until) {
            until = comm->control->busy_until_ns;
            *what = comm->control->busy_with;
        }
    return until;
}

static wf_status tell_all(wf_comm *comm, notice what)
{
    struct wf_control *c = comm->control;
    telling *t = calloc(1, sizeof *t + (size_t)comm->size * sizeof *t->request);
    WF_CHECK(t, WF_ERR_MEMORY, "no memory for a notice");
    *t = (telling){.next = c->told, .told = what};
    c->told = t;
    for (int r = 0; r < comm->size; r++)
        t->request[r] = MPI_REQUEST_NULL;
    for (int r = 0; r < comm->size; r++)
        if (r != comm->rank)
            TRY_MPI(MPI_Isend(&t->told, (int)sizeof t->told, MPI_BYTE, r, TAG_NOTICE, c->mpi, &t->request[r]));
    return WF_OK;
}

/* Tells of the first failure alone, since later ones follow from it; but of one in an earlier call, again. */
static void tell_failure(wf_comm *comm, notice what)
{
    struct wf_control *c = comm->control;
    if (c->failed && c->failed <= what.position)
        return;
    c->failed = what.position;
    what.verdict = comm->rank == 0;
    if (tell_all(comm, what) != WF_OK)
        wf_error_clear();
}

/* The call that this rank is in, or makes next: collective n is 2 n, and what some ranks make by themselves after it
 * (wf_comm_part) is 2 n + 1. */
static uint64_t position_of(const wf_comm *comm)
{
    return 2 * comm->sequence + (comm->call.entered ? 0 : comm->call.parting ? 1 : 2);
}

/* Keeps the notice that has come. Rank 0 decides at once which failure counts, even while it is in an earlier call. */
static void hold_failure(wf_comm *comm)
{
    struct wf_control *c = comm->control;
    notice held = c->held;
    if (held.status == WF_OK)
        c->held_ns = wf_now_ns();
    if (held.status == WF_OK || (c->heard.verdict && !held.verdict))
        held = c->heard;
    if (c->held.status != WF_OK && c->held.position < held.position)
        held.position = c->held.position;
    if (c->heard.position < held.position)
        held.position = c->heard.position;
    c->held = held;
    if (comm->rank > 0)
        return;
    tell_failure(comm, held);
    c->held.verdict = true;
}

static void hear_notices(wf_comm *comm)
{
    struct wf_control *c = comm->control;
    int done = 1;
    MPI_Status from;
    c->heard_ns = wf_tick_ns();
    while (c->notice != MPI_REQUEST_NULL && MPI_Test(&c->notice, &done, &from) == MPI_SUCCESS && done) {
        if (c->heard.status != WF_OK)
            hold_failure(comm);
        else if (c->heard.busy_ms > 0)
            note_busy(comm, from.MPI_SOURCE);
        else
            c->gone[from.MPI_SOURCE] = true;
        if (await_notice(c) != WF_OK)
            c->notice = MPI_REQUEST_NULL;
    }
}

bool wf_control_verdict(wf_comm *comm, wf_status *status, char text[WF_FAILURE_TEXT])
{
    struct wf_control *c = comm->control;
    hear_notices(comm);
    *status = (wf_status)c->held.status;
    memcpy(text, c->held.text, WF_FAILURE_TEXT);
    return c->held.status != WF_OK && c->held.verdict;
}

bool wf_control_gone(const wf_comm *comm, int rank)
{
    return comm->control && rank >= 0 && comm->control->gone[rank];
}

/* A rank that failed in a later collective finished wf_comm_part before, unless it skipped it: this rank then stops
 * waiting after a while. */
static bool is_overdue(const wf_comm *comm)
{
    return comm->call.parting && wf_now_ns() - comm->control->held_ns > (int64_t)WF_GRACE_MS * 1000000;
}

static wf_status poll_channel(wf_comm *comm, bool waits)
{
    struct wf_control *c = comm->control;
    const int64_t now = wf_tick_ns();
    bool there;
    if (waits || now - c->heard_ns > LATE_NS) {
        for (int looks = waits ? 1 : WF_MPI_LOOKS; looks > 0; looks--)
            hear_notices(comm);
        if (c->confirmed == c->announced) /* else records are compared below */
            WF_TRY(next_record(c, c->announced, &there));
    }
    if (c->unsent_ns != 0 && now - c->unsent_ns > LATE_NS)
        WF_TRY(wf_control_show(comm));
    if (c->held.status != WF_OK && (c->held.position <= position_of(comm) || is_overdue(comm)))
        return wf_failure_heard(comm, (wf_status)c->held.status, c->held.text);
    return compare_records(comm);
}

/* Failures are told on the communicator where they happened, or above it: both end this one. */
wf_status wf_control_poll(wf_comm *comm, bool waits)
{
    for (wf_comm *c = comm; c; c = c->parent) {
        if (!c->death.status && c->control && !c->closed) {
            const wf_status status = poll_channel(c, waits);
            if (status != WF_OK && !c->death.status)
                return status;
        }
        if (c->death.status)
            return wf_failure_inherit(comm, c);
    }
    return WF_OK;
}

void wf_control_tell(wf_comm *comm, wf_status status, const char *text, bool refused)
{
    /* Between two collectives, a rank that fails makes no part any more. */
    const bool between = !comm->call.entered && !refused;
    notice what = {.status = (int32_t)status, .position = between ? 2 * comm->sequence + 1 : position_of(comm)};
    strncpy(what.text, text, sizeof what.text - 1);
    tell_failure(comm, what);
}

static bool is_sent(MPI_Request *request)
{
    int done = 0;
    return MPI_Test(request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done;
}

static bool cancel_request(MPI_Request *request)
{
    return *request == MPI_REQUEST_NULL || (MPI_Cancel(request) == MPI_SUCCESS && is_sent(request));
}

static bool all_sent(struct wf_control *c)
{
    for (telling *t = c->told; t; t = t->next)
        for (int r = 0; r < c->ranks; r++)
            if (!is_sent(&t->request[r]))
                return false;
    for (int i = 0; i < RECORDS; i++)
        if (!is_sent(&c->sent[i]))
            return false;
    return is_sent(&c->leaving);
}

wf_status wf_control_busy(wf_comm *comm, const char *what, int64_t ms)
{
    notice told = {.busy_ms = ms};
    snprintf(told.text, sizeof told.text, "%.200s", what);
    return tell_all(comm, told);
}

/* Returns true if the left neighbour's farewell has come, after which it sends nothing, and all is sent here. */
static bool farewell_came(struct wf_control *c)
{
    bool there = c->arrived;
    while (!there || !is_farewell(&c->theirs.call))
        if (next_record(c, c->theirs.number + there, &there) != WF_OK || !there)
            return false;
    return all_sent(c);
}

/* A communicator whose context is free may get it again: no rank's farewell may be under way then. */
static bool release_channel(struct wf_control *c)
{
    if (c->dead)
        return all_sent(c) && cancel_request(&c->record) && cancel_request(&c->notice);
    return farewell_came(c) && cancel_request(&c->notice) && MPI_Comm_free(&c->mpi) == MPI_SUCCESS;
}

static void control_free(struct wf_control *c)
{
    for (telling *t = c->told, *next; t; t = next) {
        next = t->next;
        free(t);
    }
    free(c);
}

void wf_control_sweep(void)
{
    for (struct wf_control **at = &unfinished; *at;) {
        struct wf_control *c = *at;
        if (!release_channel(c)) {
            at = &c->next;
            continue;
        }
        *at = c->next;
        control_free(c);
    }
}

void wf_control_leave(wf_comm *comm, const char *operation)
{
    struct wf_control *c = comm->control;
    if (comm->death.status || c->farewell.call.operation[0])
        return;
    if (wf_control_show(comm) != WF_OK)
        wf_error_clear();
    c->farewell = (numbered){.number = c->announced, .call = wf_call_record_plain(operation, -1)};
    c->farewell.call.sequence = comm->sequence + 1;
    wf_call_record_place(&c->farewell.call);
    comm->call.record = c->farewell.call;
    wf_recorder_enter(comm);
    wf_recorder_end(comm, operation, false);
    MPI_Isend(&c->farewell, (int)sizeof c->farewell, MPI_BYTE, c->right, TAG_RECORD, c->mpi, &c->leaving);
}

/* MPI_Comm_free of a broken communicator might wait, and its context must not be given to another one. */
void wf_control_close(wf_comm *comm)
{
    struct wf_control *c = comm->control;
    if (!c)
        return;
    wf_control_unshare(comm);
    /* It never came to be, or the program finalized MPI first, which ended all messages. */
    if (c->mpi == MPI_COMM_NULL || wf_mpi_gone()) {
        comm->control = NULL;
        control_free(c);
        return;
    }
    wf_control_leave(comm, "close");
    comm->control = NULL;
    c->dead = comm->death.status;
    c->next = unfinished;
    unfinished = c;
    wf_control_sweep();
}
