/* Steps until a signal comes: checkpoint_signals FOLDER MILLISECONDS (of a step). Rank r writes its process into
 * FOLDER/pid.r after its first step; rank 0 prints the step that it found, and the one that it left at. */
#include "optim/checkpoint.h"
#include "tests/ranks.h"

#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static void tell(const char *folder)
{
    char path[2][512];
    snprintf(path[0], sizeof path[0], "%s/pid.%d.tmp", folder, rank);
    snprintf(path[1], sizeof path[1], "%s/pid.%d", folder, rank);
    FILE *file = fopen(path[0], "w");
    if (!file || fprintf(file, "%ld\n", (long)getpid()) < 0 || fclose(file) != 0 || rename(path[0], path[1]) != 0)
        abort();
}

int main(int argc, char **argv)
{
    if (argc != 3 || !ranks_open("auto"))
        return 2;
    const long ms = atol(argv[2]);
    const struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    int64_t step = 0, own = 0;
    bool leave = false;
    wf_checkpoint *saves = wf_checkpoint_open(comm, argv[1], (wf_checkpoint_opts){.signals = true});
    WF_MUST(wf_checkpoint_add_i64(saves, "own", &own));
    WF_MUST(wf_checkpoint_load_latest(saves, &step));
    if (rank == 0)
        printf("found %lld\n", (long long)step);
    if (own != step)
        abort();
    for (const int64_t first = step; !leave && step < 100000;) {
        nanosleep(&pause, NULL);
        own = ++step;
        WF_MUST(wf_checkpoint_step(saves, step, &leave));
        if (step == first + 1 && !leave)
            tell(argv[1]);
    }
    WF_MUST(wf_checkpoint_close(saves));
    raise(SIGUSR1); /* too late, and harmless */
    if (rank == 0)
        printf("left %lld\n", (long long)step);
    fflush(stdout);
    WF_MUST(wf_barrier(comm));
    const int failed = ranks_close(0);
    return failed ? failed : leave ? WF_CHECKPOINT_EXIT : 0;
}
