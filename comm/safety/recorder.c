/* The flight recorder: the last calls of this rank in a mapped file that survives the process, one folder a job. The
 * guard writes it at every call, wf-doctor reads it, the watchdog prints it. It never fails a call: without a file it
 * keeps its record in memory. */
#include "comm/safety/safety_impl.h"

#include "core/config_author.h"
#include "core/log.h"
#include "core/profile_author.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#define KEEP_SECONDS 86400 /* of a job that did not end well */
#define TAIL         8     /* events that are printed */
#define ROOM         ((uint64_t)64 << 20)
#define PATH         512

static wf_trace *trace;
static char folder[PATH / 2], path[PATH];
static int life = -1; /* the folder, with a shared lock as long as this process lives */

/* One whose name others can guess is to be this user's; the one that the user names may be anybody's. */
static bool make_folder(const char *name, bool named)
{
    struct stat is;
    if (mkdir(name, 0700) != 0 && errno != EEXIST)
        return false;
    if ((named ? stat : lstat)(name, &is) != 0)
        return false;
    /* lstat, not stat: a link that another user put there must not lead our files elsewhere. */
    errno = S_ISDIR(is.st_mode) ? EPERM : ENOTDIR;
    return S_ISDIR(is.st_mode) && (named || is.st_uid == geteuid());
}

static void remove_folder(const char *name)
{
    DIR *dir = opendir(name);
    char file[PATH];
    for (struct dirent *e = dir ? readdir(dir) : NULL; e; e = readdir(dir))
        if (strstr(e->d_name, WF_TRACE_SUFFIX) && snprintf(file, sizeof file, "%s/%s", name, e->d_name) < PATH)
            unlink(file);
    if (dir)
        closedir(dir);
    rmdir(name);
}

/* No process of the job lives, on this machine: each has a shared lock. */
static bool is_dead(const char *name)
{
    const int file = open(name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    const bool dead = file >= 0 && flock(file, LOCK_EX | LOCK_NB) == 0;
    if (file >= 0)
        close(file);
    return dead;
}

static void lock_folder(void)
{
    if (life >= 0)
        close(life);
    life = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (life >= 0 && flock(life, LOCK_SH) != 0)
        wf_log_write(WF_LOG_WARN,
                     "the flight recorder in %s cannot be locked (%s): after a day another program may remove it",
                     folder, strerror(errno));
}

/* What jobs that did not end well have left here long ago. The age spares those that have just made their folder. */
static void remove_old(const char *home)
{
    DIR *dir = opendir(home);
    char prefix[32], old[PATH / 2];
    struct stat is;
    snprintf(prefix, sizeof prefix, "weft-%u-", (unsigned)geteuid());
    for (struct dirent *e = dir ? readdir(dir) : NULL; e; e = readdir(dir)) {
        if (strncmp(e->d_name, prefix, strlen(prefix)) != 0 ||
            snprintf(old, sizeof old, "%s/%s", home, e->d_name) >= (int)sizeof old)
            continue;
        if (lstat(old, &is) == 0 && S_ISDIR(is.st_mode) && is.st_uid == geteuid() &&
            time(NULL) - is.st_mtime > KEEP_SECONDS && is_dead(old))
            remove_folder(old);
    }
    if (dir)
        closedir(dir);
}

static wf_trace *map_file(const char *host, bool named)
{
    snprintf(path, sizeof path, "%s/%s-%ld" WF_TRACE_SUFFIX, folder, host, (long)getpid());
    if (!make_folder(folder, named))
        return NULL;
    lock_folder();
    const int file = open(path, O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (file < 0)
        return NULL;
    /* Room is taken now: a write to a mapped file on a full disk kills the process. */
    const int full = posix_fallocate(file, 0, sizeof(wf_trace));
    void *map = full ? MAP_FAILED : mmap(NULL, sizeof(wf_trace), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (map != MAP_FAILED)
        return map;
    unlink(path);
    if (!named)
        rmdir(folder);
    errno = full ? full : errno;
    return NULL;
}

/* A small one is left to MPI and to the communicators, which need it more. */
static bool has_room(const char *home)
{
    struct statvfs s;
    return statvfs(home, &s) == 0 && (uint64_t)s.f_bavail * s.f_frsize >= ROOM;
}

static wf_trace *map_somewhere(const char *host)
{
    static const char *const homes[] = {"/dev/shm", "/tmp"};
    const wf_config *config = wf_config_get();
    wf_trace *map = NULL;
    if (config->trace) {
        errno = ENAMETOOLONG;
        return snprintf(folder, sizeof folder, "%s", config->trace) < (int)sizeof folder ? map_file(host, true) : NULL;
    }
    for (int i = 0; !map && i < 2; i++) {
        snprintf(folder, sizeof folder, "%s", homes[i]);
        errno = ENOSPC;
        if (!has_room(homes[i]))
            continue;
        remove_old(homes[i]);
        snprintf(folder, sizeof folder, "%s/weft-%u-%s", homes[i], (unsigned)geteuid(), config->job);
        map = map_file(host, false);
    }
    return map;
}

static void describe(const char *host)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    trace->start_ns = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    trace->offset_ns = trace->start_ns - wf_now_ns();
    trace->pid = getpid();
    trace->rank = wf_config_get()->rank;
    trace->size = -1;
    snprintf(trace->job, sizeof trace->job, "%s", wf_config_get()->job);
    snprintf(trace->host, sizeof trace->host, "%s", host);
    /* The first letter of the magic word is written last: a reader takes no file that is half described. */
    memcpy(trace->magic + 1, &WF_TRACE_MAGIC[1], sizeof WF_TRACE_MAGIC - 1);
    __atomic_store_n(&trace->magic[0], WF_TRACE_MAGIC[0], __ATOMIC_RELEASE);
}

void wf_recorder_open(void)
{
    static wf_trace own;
    char host[WF_TRACE_STRINGS] = "";
    if (trace)
        return;
    gethostname(host, sizeof host - 1);
    trace = map_somewhere(host);
    if (!trace) {
        wf_log_write(WF_LOG_WARN, "the flight recorder keeps no file in %s: %s", folder, strerror(errno));
        trace = &own;
        path[0] = '\0';
    }
    describe(host);
}

void wf_recorder_place(int rank, int size)
{
    __atomic_store_n(&trace->rank, rank, __ATOMIC_RELAXED);
    trace->size = size;
}

/* Release and acquire: the watchdog's thread, which finds the number, finds what was written before it. */
static void publish(wf_trace_event *event, uint64_t number)
{
    __atomic_store_n(&event->number, number, __ATOMIC_RELEASE);
}

static wf_trace_event *event_of(uint64_t number)
{
    wf_trace_event *event = &trace->event[number % WF_TRACE_EVENTS];
    return __atomic_load_n(&event->number, __ATOMIC_ACQUIRE) == number ? event : NULL;
}

/* A profile measures calls; who looks at a dead job needs no more than ticks, and the clock takes a tenth of a short
 * call. */
static int64_t time_of(const wf_comm *comm)
{
    return comm->shared->ctx->profile ? wf_now_ns() : wf_tick_ns();
}

void wf_recorder_enter(wf_comm *comm)
{
    const uint64_t number = comm->call.event ? comm->call.event : trace->events + 1;
    wf_trace_event *event = &trace->event[number % WF_TRACE_EVENTS];
    /* An event is invalid while it is written, for a reader of the file and for the watchdog's thread alike. */
    publish(event, 0);
    atomic_signal_fence(memory_order_seq_cst);
    event->comm = comm->id;
    event->comm_rank = comm->rank;
    event->comm_size = comm->size;
    event->world_rank = wf_world_rank(comm, comm->rank);
    event->state = WF_EVENT_ENTERED;
    event->call = comm->call.record;
    event->bytes = 0;
    event->start_ns = time_of(comm);
    event->end_ns = 0;
    event->step[0] = '\0';
    publish(event, number);
    if (number > trace->events)
        __atomic_store_n(&trace->events, number, __ATOMIC_RELEASE);
    comm->call.event = number;
    comm->call.sent_before = comm->traffic.bytes_sent;
}

void wf_recorder_step(wf_comm *comm, const char *step)
{
    wf_trace_event *event = comm->call.event ? event_of(comm->call.event) : NULL;
    if (!event)
        return;
    snprintf(event->step, sizeof event->step, "%s", step);
    publish(event, comm->call.event);
}

void wf_recorder_settle(wf_comm *comm)
{
    wf_trace_event *event = event_of(comm->call.event);
    if (!comm->call.event || !event)
        return;
    event->state = WF_EVENT_SETTLED;
    publish(event, comm->call.event);
}

/* The clock of a profile may be moved, so the event ends now and begins as long before as it took. */
static void add_to_profile(struct wf_profile *profile, const wf_trace_event *event)
{
    const wf_call_record *call = &event->call;
    double bytes = call->dtype >= 0 ? (double)wf_dtype_size((wf_dtype)call->dtype) : 0;
    for (int d = 0; d < call->dims; d++)
        bytes *= (double)call->dim[d];
    const int64_t end_ns = wf_profile_clock();
    wf_profile_add(profile, WF_PROFILE_COLLECTIVE, call->operation,
                   &(wf_profile_event){.start_ns = end_ns - (event->end_ns - event->start_ns),
                                       .end_ns = end_ns,
                                       .bytes = call->dims >= 0 ? bytes : 0,
                                       .sent = (double)event->bytes});
}

/* A call that was refused before it began leaves its name all the same. */
void wf_recorder_end(wf_comm *comm, const char *operation, bool failed)
{
    /* Without a trace nothing was noted: tests of a few files open none. */
    if (trace && trace->state.awaits)
        wf_recorder_wait(comm, 0, 0);
    if (!comm->call.event && failed && comm->control) {
        comm->call.record = wf_call_record_plain(operation, -1);
        wf_call_record_place(&comm->call.record);
        wf_recorder_enter(comm);
    }
    wf_trace_event *event = comm->call.event ? event_of(comm->call.event) : NULL;
    comm->call.event = 0;
    if (!event)
        return;
    event->bytes = comm->traffic.bytes_sent - comm->call.sent_before;
    event->end_ns = time_of(comm);
    event->state = failed ? WF_EVENT_FAILED : WF_EVENT_DONE;
    publish(event, event->number);
    if (comm->shared->ctx->profile && !failed)
        add_to_profile(comm->shared->ctx->profile, event);
}

void wf_recorder_where(const char *where)
{
    snprintf(trace->where, sizeof trace->where, "%s", where);
}

void wf_recorder_error(const char *text)
{
    if (!trace->error[0])
        snprintf(trace->error, sizeof trace->error, "%s", text);
}

void wf_recorder_remove(void)
{
    if (!path[0] || wf_config_get()->trace)
        return;
    unlink(path);
    rmdir(folder); /* by the last rank of the node */
    path[0] = '\0';
}

void wf_recorder_print(void)
{
    const uint64_t last = __atomic_load_n(&trace->events, __ATOMIC_ACQUIRE), first = last > TAIL ? last - TAIL : 0;
    char text[WF_FAILURE_TEXT];
    for (uint64_t n = first + 1; n <= last; n++) {
        const wf_trace_event *event = event_of(n);
        if (event)
            fprintf(stderr, "weft: rank %d:   %s\n", wf_recorder_rank(), wf_trace_event_text(event, wf_now_ns(), text));
    }
    if (path[0])
        fprintf(stderr, "weft: rank %d: the flight recorders are in %s; wf-doctor --trace reads them\n",
                wf_recorder_rank(), folder);
}

int wf_recorder_rank(void)
{
    return __atomic_load_n(&trace->rank, __ATOMIC_RELAXED);
}

wf_trace *wf_recorder_trace(void)
{
    return trace;
}

void wf_recorder_path(int64_t pid, char *file, size_t size)
{
    file[0] = '\0';
    if (path[0] && snprintf(file, size, "%s/%s-%lld" WF_TRACE_SUFFIX, folder, trace->host, (long long)pid) >= (int)size)
        file[0] = '\0';
}

void wf_recorder_beat(void)
{
    __atomic_store_n(&trace->state.beat_ns, wf_now_ns(), __ATOMIC_RELAXED);
}

void wf_recorder_wait(const wf_comm *comm, int64_t pid, int64_t since_ns)
{
    wf_trace_state *state = &trace->state;
    __atomic_store_n(&state->awaits, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&state->since_ns, since_ns, __ATOMIC_RELAXED);
    __atomic_store_n(&state->wait_event, comm->call.event, __ATOMIC_RELEASE);
    __atomic_store_n(&state->awaits, pid, __ATOMIC_RELEASE);
}

bool wf_recorder_finds_stopped(void)
{
    bool found = false;
    DIR *dir = trace && *folder ? opendir(folder) : NULL;
    for (struct dirent *e = dir ? readdir(dir) : NULL; e && !found; e = readdir(dir)) {
        const char *number = strstr(e->d_name, WF_TRACE_SUFFIX) ? strrchr(e->d_name, '-') : NULL;
        found = number && wf_peer_stopped(strtoll(number + 1, NULL, 10));
    }
    if (dir)
        closedir(dir);
    return found;
}
