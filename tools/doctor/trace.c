/* Reads the flight recorders of a job, running or dead, and says which rank is behind and in which call. It only reads
 * files; the job is not disturbed. */
#include "tools/doctor/trace.h"

#include "comm/recorder_author.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST_RANKS 4096
#define PATH       4096

typedef struct job {
    wf_trace *rank[MOST_RANKS];
    int ranks, left_out;
} job;

/* A collective of one communicator, and what the ranks called there. */
typedef struct place {
    uint64_t comm, sequence;
} place;

static wf_trace *read_trace(const char *path)
{
    FILE *file = fopen(path, "rb");
    wf_trace *trace = file ? malloc(sizeof *trace) : NULL;
    const bool good = trace && fread(trace, sizeof *trace, 1, file) == 1 &&
                      !memcmp(trace->magic, WF_TRACE_MAGIC, sizeof WF_TRACE_MAGIC);
    if (file)
        fclose(file);
    if (good)
        return trace;
    free(trace);
    return NULL;
}

static int by_rank(const void *a, const void *b)
{
    const wf_trace *x = *(wf_trace *const *)a, *y = *(wf_trace *const *)b;
    return (x->rank > y->rank) - (x->rank < y->rank);
}

static const wf_trace *newest_of(const job *j)
{
    const wf_trace *newest = j->rank[0];
    for (int i = 1; i < j->ranks; i++)
        if (j->rank[i]->start_ns > newest->start_ns)
            newest = j->rank[i];
    return newest;
}

/* A folder of the user's may hold several jobs: the newest one counts. */
static void keep_newest(job *j)
{
    char name[WF_TRACE_STRINGS];
    int kept = 0;
    memcpy(name, newest_of(j)->job, sizeof name);
    for (int i = 0; i < j->ranks; i++) {
        if (!strncmp(j->rank[i]->job, name, sizeof name))
            j->rank[kept++] = j->rank[i];
        else
            free(j->rank[i]);
    }
    j->left_out = j->ranks - kept;
    j->ranks = kept;
    qsort(j->rank, (size_t)kept, sizeof *j->rank, by_rank);
}

static bool read_job(const char *folder, job *j)
{
    DIR *dir = opendir(folder);
    char path[PATH];
    if (!dir) {
        fprintf(stderr, "wf-doctor: cannot read %s: %s\n", folder, strerror(errno));
        return false;
    }
    for (struct dirent *e = readdir(dir); e && j->ranks < MOST_RANKS; e = readdir(dir)) {
        wf_trace *trace = NULL;
        if (strstr(e->d_name, WF_TRACE_SUFFIX) && snprintf(path, sizeof path, "%s/%s", folder, e->d_name) < PATH)
            trace = read_trace(path);
        if (trace)
            j->rank[j->ranks++] = trace;
    }
    closedir(dir);
    if (j->ranks == 0) {
        fprintf(stderr, "wf-doctor: there is no flight recorder in %s\n", folder);
        return false;
    }
    keep_newest(j);
    return true;
}

/* --- what each rank was doing ------------------------------------------------------------------------------------- */

static const wf_trace_event *event_at(const wf_trace *trace, uint64_t number)
{
    const wf_trace_event *event = &trace->event[number % WF_TRACE_EVENTS];
    return number > 0 && event->number == number ? event : NULL;
}

static char process_state(int64_t pid)
{
    char path[64], state = 0;
    snprintf(path, sizeof path, "/proc/%lld/stat", (long long)pid);
    FILE *file = fopen(path, "r");
    if (!file)
        return 0;
    if (fscanf(file, "%*d (%*[^)]) %c", &state) != 1)
        state = 0;
    fclose(file);
    return state;
}

/* As the system of this machine knows it. */
static const char *life(const wf_trace *trace)
{
    char host[WF_TRACE_STRINGS] = "";
    gethostname(host, sizeof host - 1);
    if (strcmp(host, trace->host) != 0)
        return "on another node";
    const char state = process_state(trace->pid);
    return state == 0 || state == 'Z' ? "gone" : state == 'T' ? "stopped" : "alive";
}

static int64_t last_moment(const wf_trace *trace)
{
    int64_t last = 0;
    for (int i = 0; i < WF_TRACE_EVENTS; i++) {
        const wf_trace_event *e = &trace->event[i];
        const int64_t at = e->end_ns > e->start_ns ? e->end_ns : e->start_ns;
        if (e->number > 0 && at + trace->offset_ns > last)
            last = at + trace->offset_ns;
    }
    return last;
}

/* Calls beside the one that was printed which did not come to a good end: each communicator may have one. */
static void print_others(const wf_trace *trace, const wf_trace_event *printed, int64_t now)
{
    char text[WF_FAILURE_TEXT];
    for (uint64_t n = trace->events + 1; n-- > 1 && event_at(trace, n);) {
        const wf_trace_event *e = event_at(trace, n);
        if (e != printed && e->state != WF_EVENT_DONE)
            printf("    and %s %s\n", e->end_ns == 0 ? "in" : "was in", wf_trace_event_text(e, now, text));
    }
}

static void print_state(const wf_trace *trace, int64_t now)
{
    char text[WF_FAILURE_TEXT];
    const wf_trace_event *last = event_at(trace, trace->events), *open = NULL;
    for (uint64_t n = trace->events; n > 0 && event_at(trace, n); n--)
        if (event_at(trace, n)->end_ns == 0)
            open = event_at(trace, n);
    now -= trace->offset_ns;
    printf("rank %d (%s, process %lld, %s): ", trace->rank, trace->host, (long long)trace->pid, life(trace));
    if (trace->where[0])
        printf("in %.*s", WF_TRACE_STRINGS, trace->where);
    else if (open)
        printf("in %s", wf_trace_event_text(open, now, text));
    else if (last)
        printf("outside of communication since %s", wf_trace_event_text(last, now, text));
    else
        printf("no communication yet");
    printf("\n");
    print_others(trace, open ? open : last, now);
    if (trace->error[0])
        printf("    it reported: %.*s\n", WF_FAILURE_TEXT, trace->error);
}

/* --- what differs --------------------------------------------------------------------------------------------------
 */

static const wf_trace_event *find(const wf_trace *trace, place p)
{
    for (int i = 0; i < WF_TRACE_EVENTS; i++) {
        const wf_trace_event *e = &trace->event[i];
        if (e->number > 0 && e->comm == p.comm && e->call.sequence == p.sequence)
            return e;
    }
    return NULL;
}

/* Ranks that are known to be of the communicator, and the last collective that each of them entered. */
static uint64_t last_sequence(const wf_trace *trace, uint64_t comm, bool *member)
{
    uint64_t last = 0;
    for (int i = 0; i < WF_TRACE_EVENTS; i++) {
        const wf_trace_event *e = &trace->event[i];
        if (e->number == 0 || e->comm != comm)
            continue;
        *member = true;
        last = e->call.sequence > last ? e->call.sequence : last;
    }
    return last;
}

/* Counts the ranks whose call differs from `event`. */
static int strangers(const job *j, const wf_trace_event *event, place p, int *first)
{
    int count = 0;
    for (int r = j->ranks - 1; r >= 0; r--) {
        const wf_trace_event *other = find(j->rank[r], p);
        if (other && !wf_call_record_equal(&other->call, &event->call)) {
            *first = r;
            count++;
        }
    }
    return count;
}

/* The rank whose call most others do not make. */
static int odd_one(const job *j, place p)
{
    int odd = -1, most = 0, other;
    for (int r = 0; r < j->ranks; r++) {
        const wf_trace_event *mine = find(j->rank[r], p);
        const int count = mine ? strangers(j, mine, p, &other) : 0;
        if (count > most) {
            most = count;
            odd = r;
        }
    }
    return odd;
}

static bool earliest_difference(const job *j, place *found)
{
    int64_t earliest = INT64_MAX;
    for (int r = 0; r < j->ranks; r++) {
        const wf_trace *trace = j->rank[r];
        /* From the last one back: the clock ticks seldom, and of two calls at one time the first one counts. */
        for (uint64_t n = trace->events; n > 0 && n + WF_TRACE_EVENTS > trace->events; n--) {
            const wf_trace_event *e = event_at(trace, n);
            const place p = {e ? e->comm : 0, e ? e->call.sequence : 0};
            int other;
            if (p.sequence > 0 && e->start_ns + trace->offset_ns <= earliest && strangers(j, e, p, &other) > 0) {
                earliest = e->start_ns + trace->offset_ns;
                *found = p;
            }
        }
    }
    return earliest < INT64_MAX;
}

static void print_difference(const job *j, place p)
{
    char text[WF_RECORD_TEXT];
    const int odd = odd_one(j, p);
    printf("the first collective that differs is number %llu of communicator %04x: rank %d calls %s\n",
           (unsigned long long)p.sequence, (unsigned)(p.comm & 0xffff), j->rank[odd]->rank,
           wf_call_record_text(&find(j->rank[odd], p)->call, text));
    for (int r = 0; r < j->ranks; r++) {
        const wf_trace_event *e = find(j->rank[r], p);
        if (r != odd && e)
            printf("    rank %d calls %s\n", j->rank[r]->rank, wf_call_record_text(&e->call, text));
    }
}

/* Prints, for each call in which a rank is, the ranks of its communicator that have not come so far. */
static bool print_behind(const job *j)
{
    char text[WF_RECORD_TEXT];
    bool found = false;
    for (int r = 0; r < j->ranks; r++)
        for (int i = 0; i < WF_TRACE_EVENTS; i++) {
            const wf_trace_event *e = &j->rank[r]->event[i];
            const place p = {e->comm, e->call.sequence};
            if (e->number == 0 || p.sequence == 0 || e->state == WF_EVENT_DONE)
                continue;
            for (int other = 0; other < j->ranks; other++) {
                bool member = false;
                const uint64_t last = last_sequence(j->rank[other], p.comm, &member);
                if (!member || last >= p.sequence)
                    continue;
                printf("rank %d is behind: rank %d is in collective %llu of communicator %04x, %s; rank %d has not "
                       "come further than number %llu\n",
                       j->rank[other]->rank, j->rank[r]->rank, (unsigned long long)p.sequence,
                       (unsigned)(p.comm & 0xffff), wf_call_record_text(&e->call, text), j->rank[other]->rank,
                       (unsigned long long)last);
                found = true;
            }
        }
    return found;
}

static bool print_missing(const job *j)
{
    int size = j->ranks, there = 0;
    for (int r = 0; r < j->ranks; r++)
        size = j->rank[r]->size > size ? j->rank[r]->size : size;
    for (int rank = 0; rank < size; rank++) {
        while (there < j->ranks && j->rank[there]->rank < rank)
            there++;
        if (there == j->ranks || j->rank[there]->rank != rank)
            printf("rank %d has no flight recorder here: it is on another node, never started, or ended well\n", rank);
    }
    return size > j->ranks;
}

int trace_report(const char *folder)
{
    static job j;
    place p;
    int64_t now = 0;
    if (!read_job(folder, &j))
        return 2;
    for (int r = 0; r < j.ranks; r++) {
        const int64_t last = last_moment(j.rank[r]);
        now = last > now ? last : now;
    }
    printf("job %.*s, %d ranks here; times are before the last event of the job\n", WF_TRACE_STRINGS, j.rank[0]->job,
           j.ranks);
    if (j.left_out > 0)
        printf("%d recorders of other jobs are left out\n", j.left_out);
    for (int r = 0; r < j.ranks; r++)
        print_state(j.rank[r], now);
    bool wrong = print_missing(&j);
    if (earliest_difference(&j, &p)) {
        print_difference(&j, p);
        wrong = true;
    } else if (print_behind(&j)) {
        wrong = true;
    }
    if (!wrong)
        printf("all ranks agree\n");
    for (int r = 0; r < j.ranks; r++)
        free(j.rank[r]);
    return wrong;
}
