/* Looks at other processes of this machine: their flight recorders, mapped to be read. A wait asks here before it gives
 * up: a rank that lives and works is no fault, and ranks that wait for each other will do so for ever. */
#include "comm/safety/safety_impl.h"

#include "core/config_author.h"
#include "core/random_author.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define LONGEST  64         /* circle */
#define FRESH_NS 1000000000 /* a process with a later beat runs */

typedef struct peer {
    int64_t pid;
    const wf_trace *trace; /* NULL: there is none */
} peer;

static peer *peers;
static int known;

/* Mapped as long as this process lives: a recorder outlives its process. */
static const wf_trace *map_recorder(int64_t pid)
{
    char path[512];
    struct stat is;
    void *map = MAP_FAILED;
    wf_recorder_path(pid, path, sizeof path);
    const int file = path[0] ? open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW) : -1;
    if (file >= 0 && fstat(file, &is) == 0 && is.st_size >= (off_t)sizeof(wf_trace))
        map = mmap(NULL, sizeof(wf_trace), PROT_READ, MAP_SHARED, file, 0);
    if (file >= 0)
        close(file);
    if (map == MAP_FAILED)
        return NULL;
    const wf_trace *trace = map;
    /* A folder that the user chose may hold those of several jobs. */
    if (!memcmp(trace->magic, WF_TRACE_MAGIC, sizeof WF_TRACE_MAGIC) && trace->pid == pid &&
        !strncmp(trace->job, wf_recorder_trace()->job, sizeof trace->job))
        return trace;
    munmap(map, sizeof(wf_trace));
    return NULL;
}

static const wf_trace *recorder_of(int64_t pid)
{
    if (pid == (int64_t)getpid())
        return wf_recorder_trace();
    for (int i = 0; i < known; i++)
        if (peers[i].pid == pid)
            return peers[i].trace;
    peer *more = pid > 0 ? realloc(peers, ((size_t)known + 1) * sizeof *more) : NULL;
    if (!more)
        return NULL;
    peers = more;
    peers[known] = (peer){.pid = pid, .trace = map_recorder(pid)};
    return peers[known++].trace;
}

static int64_t word(const int64_t *at)
{
    return __atomic_load_n(at, __ATOMIC_ACQUIRE);
}

static int64_t silent_ns(const wf_trace *trace)
{
    return wf_now_ns() - word(&trace->state.beat_ns);
}

bool wf_peer_lives(int64_t pid, int64_t lost_ns)
{
    const wf_trace *trace = recorder_of(pid);
    return trace && silent_ns(trace) - lost_ns <= (int64_t)wf_config_get()->timeout_ms * 1000000;
}

bool wf_peer_stopped(int64_t pid)
{
    /* No beat at all: its watchdog could not start. */
    const wf_trace *trace = pid == (int64_t)getpid() ? NULL : recorder_of(pid);
    return trace && word(&trace->state.beat_ns) > 0 && silent_ns(trace) > FRESH_NS && kill((pid_t)pid, 0) == 0;
}

bool wf_peer_closed(int64_t pid, uint64_t comm)
{
    const wf_trace *trace = pid > 0 ? recorder_of(pid) : NULL;
    for (int i = 0; trace && i < WF_TRACE_EVENTS; i++) {
        const wf_trace_event *event = &trace->event[i];
        if (event->number > 0 && event->comm == comm && event->state == WF_EVENT_DONE &&
            !strncmp(event->call.operation, "close", sizeof event->call.operation))
            return true;
    }
    return false;
}

/* The call that waits; NULL: it is over, or its process computes or does not run. */
static const wf_trace_event *waiting(const wf_trace *trace, int64_t *awaits, uint64_t *stamp)
{
    const wf_trace_state *state = &trace->state;
    *awaits = word(&state->awaits);
    const uint64_t number = __atomic_load_n(&state->wait_event, __ATOMIC_ACQUIRE);
    const wf_trace_event *event = &trace->event[number % WF_TRACE_EVENTS];
    if (*awaits == 0 || silent_ns(trace) > FRESH_NS || number == 0 || event->number != number)
        return NULL;
    *stamp = wf_hash_u64(wf_hash_u64(*stamp, (uint64_t)trace->pid), number);
    *stamp = wf_hash_u64(*stamp, (uint64_t)word(&state->since_ns));
    return event;
}

/* Ranks in one collective wait for each other as a matter of course, for a while. */
static bool same_collective(const wf_trace_event *a, const wf_trace_event *b)
{
    return a->call.sequence > 0 && a->comm == b->comm && a->call.sequence == b->call.sequence;
}

bool wf_peer_circle(uint64_t *stamp, bool *unlike, char text[WF_FAILURE_TEXT])
{
    const wf_trace *at = wf_recorder_trace();
    const int64_t start = (int64_t)getpid();
    const wf_trace_event *first = NULL;
    int used = snprintf(text, WF_FAILURE_TEXT, "ranks wait for each other: ");
    *stamp = 1;
    *unlike = false;
    for (int n = 0; at && n < LONGEST; n++) {
        char call[WF_RECORD_TEXT], rank[WF_RANK_TEXT];
        int64_t awaits = 0;
        const wf_trace_event *event = waiting(at, &awaits, stamp);
        if (!event)
            return false;
        first = first ? first : event;
        *unlike = *unlike || (n > 0 && !same_collective(first, event));
        if (used < WF_FAILURE_TEXT)
            used += snprintf(text + used, (size_t)(WF_FAILURE_TEXT - used), "%srank %s in %.150s", n ? ", " : "",
                             wf_rank_numbers(event->world_rank, event->comm_rank, rank),
                             wf_call_record_text(&event->call, call));
        if (awaits == start)
            return true;
        at = recorder_of(awaits);
    }
    return false;
}
