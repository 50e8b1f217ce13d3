/* What a job has, and what Weft makes of it, in one screen:
 *
 *     mpirun -np N wf-doctor            MPI, nodes, binding, shared memory, CUDA, links, what "auto" chooses
 *     wf-doctor --trace FOLDER          the flight recorders of a job: who was where, and what differs
 *     wf-doctor --schedule CALL ...     what the ranks of a cluster would send in a call, and what that costs
 *     wf-doctor --version               the version of Weft, and what it was built with
 */
#include "tools/doctor/links.h"
#include "tools/doctor/schedule.h"
#include "tools/doctor/trace.h"

#include "comm/comm_author.h"
#include "comm/exchange_author.h"
#include "core/config_author.h"
#include "core/kernels_author.h"
#include "core/log.h"
#include "core/processor_author.h"
#include "core/version.h"

#include <dlfcn.h>
#include <mpi.h>
#include <netdb.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LINE        256
#define RANK_LINES  16
#define PROBE       "--probe-cuda"
#define PROBE_LIMIT 20  /* seconds */
#define NAME_LIMIT  0.5 /* seconds; a file or a name server nearby answers within milliseconds */

typedef struct patient {
    char host[64], bound[64], level[96], cuda[LINE];
    int64_t pid, node;
    int threads;
    double shared_gib, shared_free_gib;
    bool name_found;
    double name_seconds;
} patient;

/* --- CUDA: in a child, since a broken driver may take the process with it ------------------------------------------
 */

static int probe_cuda(void)
{
    alarm(PROBE_LIMIT);
    wf_ctx *ctx = wf_ctx_new((wf_ctx_opts){.device = "cuda"});
    wf_tensor *x = ctx ? wf_tensor_new(ctx, WF_F32, WF_SHAPE(1024)) : NULL;
    if (x && strcmp(wf_ctx_device(ctx), "cuda") != 0)
        printf("none: no GPU, or no driver that this build can use\n");
    else if (x && wf_tensor_fill(x, 1) == WF_OK)
        printf("a device works\n");
    else
        printf("none: %s\n", wf_error_message());
    wf_tensor_free(x);
    return ctx && wf_ctx_free(ctx) != WF_OK;
}

static void ask_child(char text[LINE])
{
    char self[LINE] = "", command[2 * LINE];
    snprintf(text, LINE, "the probe says nothing");
    if (readlink("/proc/self/exe", self, sizeof self - 1) < 0)
        return;
    snprintf(command, sizeof command, "exec '%s' " PROBE " 2>/dev/null", self);
    FILE *child = popen(command, "r");
    if (!child)
        return;
    if (fgets(text, LINE, child))
        text[strcspn(text, "\n")] = '\0';
    const int status = pclose(child);
    if (WIFSIGNALED(status))
        snprintf(text, LINE, "the probe was killed by signal %d", WTERMSIG(status));
}

/* --- the name of this machine: MPI looks it up at its start, and waits as long as that takes ------------------------
 */

static void look_up_own_name(patient *p)
{
    struct addrinfo *found = NULL;
    gethostname(p->host, sizeof p->host - 1);
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    p->name_found = getaddrinfo(p->host, NULL, NULL, &found) == 0;
    clock_gettime(CLOCK_MONOTONIC, &end);
    p->name_seconds = (double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec) / 1e9;
    if (found)
        freeaddrinfo(found);
}

/* --- this rank -----------------------------------------------------------------------------------------------------
 */

/* "0-3,8" */
static void list_processors(char text[64])
{
    cpu_set_t mask;
    int used = 0, from = -1;
    text[0] = '\0';
    if (sched_getaffinity(0, sizeof mask, &mask) != 0)
        return;
    for (int i = 0; i <= CPU_SETSIZE && used < 48; i++) {
        const bool in = i < CPU_SETSIZE && CPU_ISSET(i, &mask);
        if (in && from < 0)
            from = i;
        if (in || from < 0)
            continue;
        used +=
            snprintf(text + used, 64 - (size_t)used, i - 1 > from ? "%s%d-%d" : "%s%d", used ? "," : "", from, i - 1);
        from = -1;
    }
}

static void examine(wf_comm *comm, patient *p)
{
    struct statvfs s;
    list_processors(p->bound);
    snprintf(p->level, sizeof p->level, "level %s, %s", wf_processor_level(), wf_kernels_cpu()->library());
    p->pid = getpid();
    p->node = wf_comm_inter_rank(comm);
    p->threads = wf_ctx_threads(wf_comm_ctx(comm));
    if (statvfs("/dev/shm", &s) == 0) {
        p->shared_gib = (double)s.f_blocks * (double)s.f_frsize / 0x1p30;
        p->shared_free_gib = (double)s.f_bavail * (double)s.f_frsize / 0x1p30;
    }
}

/* --- the report ----------------------------------------------------------------------------------------------------
 */

static void report_version(void)
{
    printf("Weft %s     built with %s\n", wf_version(), wf_configuration());
}

static void report_mpi(void)
{
    static const char *const levels[] = {"single", "funneled", "serialized", "multiple"};
    char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length, version, part, level;
    MPI_Get_library_version(text, &length);
    MPI_Get_version(&version, &part);
    MPI_Query_thread(&level);
    text[strcspn(text, ",\n")] = '\0';
    char *tab = strchr(text, '\t'); /* MPICH writes one before its version */
    if (tab)
        *tab = ' ';
    printf("MPI            %s, MPI %d.%d, threads: %s\n", text, version, part,
           levels[level == MPI_THREAD_SINGLE       ? 0
                  : level == MPI_THREAD_FUNNELED   ? 1
                  : level == MPI_THREAD_SERIALIZED ? 2
                                                   : 3]);
}

/* What an MPI says that has such a question; Weft takes no word for it (comm/transport_author.h). */
static void report_device_memory(void)
{
    int (*ask)(void) = NULL;
    *(void **)(void *)&ask = dlsym(RTLD_DEFAULT, "MPIX_Query_cuda_support");
    printf("MPI and GPUs   it %s; Weft gives it host memory alone\n",
           !ask    ? "does not say whether it takes device memory"
           : ask() ? "says that it takes device memory"
                   : "says that it takes no device memory");
}

static void report_nodes(const patient *all, int size, int nodes)
{
    printf("nodes          %d rank%s on %d node%s\n", size, size == 1 ? "" : "s", nodes, nodes == 1 ? "" : "s");
    for (int node = 0; node < nodes; node++) {
        bool named = false;
        for (int r = 0; r < size; r++) {
            if (all[r].node != node)
                continue;
            if (!named)
                printf("  node %d       %s, /dev/shm %.1f GiB, %.1f GiB free: ranks", node, all[r].host,
                       all[r].shared_gib, all[r].shared_free_gib);
            named = true;
            printf(" %d", r);
        }
        printf("\n");
    }
}

static void report_ranks(const patient *all, int size)
{
    for (int r = 0; r < size && r < RANK_LINES; r++)
        printf("  rank %-2d      %s, process %lld, processors %s, %d thread%s\n", r, all[r].host, (long long)all[r].pid,
               all[r].bound, all[r].threads, all[r].threads == 1 ? "" : "s");
    if (size > RANK_LINES)
        printf("               and %d more\n", size - RANK_LINES);
}

/* The rank whose machine's name took longest; one whose name was not found counts as longer. */
static void report_names(const patient *all, int size)
{
    int worst = 0;
    for (int r = 1; r < size; r++)
        if (all[r].name_found < all[worst].name_found ||
            (all[r].name_found == all[worst].name_found && all[r].name_seconds > all[worst].name_seconds))
            worst = r;
    const patient *p = &all[worst];
    printf("own names      ");
    if (p->name_found && p->name_seconds < NAME_LIMIT)
        printf("%s, found within %.1f ms\n", size == 1 ? p->host : "of all ranks", p->name_seconds * 1e3);
    else
        printf("%s of rank %d %s after %.1f s: MPI asks for it at its start; put it into /etc/hosts there\n", p->host,
               worst, p->name_found ? "was found only" : "was not found", p->name_seconds);
}

/* Kernels of rank 0, and of the first rank that runs others. */
static void report_level(const patient *all, int size)
{
    int other = 0;
    while (other < size && !strcmp(all[other].level, all[0].level))
        other++;
    printf("kernels        %s", all[0].level);
    if (other < size)
        printf(" (on rank 0; on rank %d %s)", other, all[other].level);
    printf("\n");
}

static void report_cuda(const patient *all, int size)
{
    int same = 0;
    for (int r = 0; r < size; r++)
        same += !strcmp(all[r].cuda, all[0].cuda);
    printf("CUDA           %s%s\n", all[0].cuda, same < size ? " (on rank 0; not the same on all)" : "");
}

/* Every rank opens the name; rank 0 says how it works here. */
static void report_shared(wf_comm *world)
{
    const MPI_Comm mpi = MPI_COMM_WORLD;
    if (wf_comm_size(world) == wf_comm_inter_size(world)) {
        if (wf_comm_rank(world) == 0)
            printf("shared memory  not needed: one rank a node\n");
        return;
    }
    wf_comm *comm = wf_comm_from_mpi(&mpi, "hierarchical", (wf_ctx_opts){.device = "cpu", .threads = 1});
    const bool shared = comm && wf_comm_shares_memory(comm);
    if (wf_comm_rank(world) == 0)
        printf("shared memory  %s\n", !comm ? wf_error_message()
                                      : shared
                                          ? "works between the ranks of every node"
                                          : "does not work on every node (the warning says why): messages instead");
    WF_MUST(wf_comm_close(comm));
}

static void report(wf_comm *comm, patient *mine)
{
    const int rank = wf_comm_rank(comm), size = wf_comm_size(comm), nodes = wf_comm_inter_size(comm);
    patient *all = calloc((size_t)size, sizeof *all);
    char text[LINE * 4], way[LINE * 2];
    examine(comm, mine);
    WF_MUST(wf_allgather_bytes(comm, mine, sizeof *mine, all));
    if (rank == 0) {
        report_version();
        report_mpi();
        report_device_memory();
        report_nodes(all, size, nodes);
        report_ranks(all, size);
        report_names(all, size);
        report_level(all, size);
        report_cuda(all, size);
    }
    report_shared(comm);
    links_report(comm);
    WF_MUST(wf_exchange_way(comm, way, sizeof way));
    if (rank == 0) {
        printf("exchanges      %s\n", way);
        const wf_config *config = wf_config_get();
        printf("auto           %s\n", wf_comm_choice(comm, text, sizeof text));
        printf("time-out       %ld ms; flight recorders: %s\n", config->timeout_ms,
               config->trace ? config->trace : "/dev/shm, removed at a clean end");
    }
    free(all);
}

/* Returns the exit code. */
static int report_usage(int argc, const char *option)
{
    if (!strcmp(option, "--help")) {
        puts("usage: mpirun -np N wf-doctor\n       wf-doctor --trace FOLDER\n       wf-doctor --schedule CALL ...\n"
             "       wf-doctor --version");
        return 0;
    }
    const bool known = !strcmp(option, "--trace") || !strcmp(option, "--version");
    if (known)
        fprintf(stderr,
                "wf-doctor: %s with %d arguments; should be --trace FOLDER or --version; see wf-doctor --help\n",
                option, argc - 2);
    else
        fprintf(stderr, "wf-doctor: there is no option %s; see wf-doctor --help\n", option);
    return 2;
}

int main(int argc, char **argv)
{
    patient mine = {0};
    if (argc == 2 && !strcmp(argv[1], PROBE))
        return probe_cuda();
    if (argc == 3 && !strcmp(argv[1], "--trace"))
        return trace_report(argv[2]);
    if (argc >= 2 && !strcmp(argv[1], "--schedule"))
        return schedule_report(argc - 2, argv + 2);
    if (argc == 2 && !strcmp(argv[1], "--version")) {
        report_version();
        return 0;
    }
    if (argc > 1) {
        return report_usage(argc, argv[1]);
    }
    look_up_own_name(&mine);
    ask_child(mine.cuda); /* before MPI, which does not like to be forked */
    wf_log_set_level(WF_LOG_WARN);
    wf_comm *comm = wf_comm_open(&argc, &argv, "auto", (wf_ctx_opts){0});
    WF_MUST(wf_check(comm));
    report(comm, &mine);
    WF_MUST(wf_comm_close(comm));
    return 0;
}
