/* The end of a process: exits MODE, under mpirun.
 *
 * fork: a child calls exit(), and the ranks go on. early: rank 1 ends well, rank 0 a while after its time-out. thread:
 * Weft is used by another thread than main. finalize: the program finalizes MPI before it closes. recorder: alone; a
 * program that starts while this one runs leaves its flight recorder alone, however old, and removes that of one that
 * is gone. */
#include "comm/comm.h"
#include "tests/test.h"
#include "tests/timeouts.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PATH = 512 };

static wf_comm *open_comm(void)
{
    wf_comm *comm = wf_comm_open(NULL, NULL, "flat", (wf_ctx_opts){0});
    WF_MUST(wf_check(comm));
    test_timeouts_begin();
    return comm;
}

static void forked(void)
{
    wf_comm *comm = open_comm();
    WF_MUST(wf_barrier(comm));
    int status = 0;
    const pid_t child = fork();
    if (child == 0)
        exit(5);
    WF_EXPECT(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 5,
              "the child ended with status %x", (unsigned)status);
    for (int i = 0; i < 3; i++)
        WF_EXPECT_OK(wf_barrier(comm));
    double one = 1;
    WF_EXPECT_OK(wf_allreduce_f64(comm, &one, 1, WF_SUM));
    WF_EXPECT(one == wf_comm_size(comm), "the sum is %g", one);
    WF_EXPECT_OK(wf_comm_close(comm));
}

static void early(void)
{
    wf_comm *comm = open_comm();
    const int rank = wf_comm_rank(comm);
    WF_MUST(wf_barrier(comm));
    WF_EXPECT_OK(wf_comm_close(comm));
    if (rank == 0) {
        test_sleep_ms(3 * wf_config_get()->timeout_ms);
        fprintf(stderr, "results are written\n");
    }
}

int MPI_Finalize(void);

static void finalized(void)
{
    wf_comm *comm = open_comm(), *child = wf_comm_split(comm, 0, 0);
    double one = 1;
    WF_MUST(wf_barrier(child));
    WF_EXPECT(MPI_Finalize() == 0, "MPI_Finalize fails");
    WF_EXPECT(wf_allreduce_f64(comm, &one, 1, WF_SUM) == WF_ERR_STATE && strstr(wf_error_message(), "finalized MPI"),
              "a call after MPI_Finalize: %s", wf_error_message());
    wf_error_clear();
    WF_EXPECT(wf_bcast_bytes(child, &one, sizeof one, 99) == WF_ERR_ARGUMENT, "root 99 after MPI_Finalize: %s",
              wf_error_message());
    wf_error_clear();
    WF_EXPECT_OK(wf_comm_close(child));
    WF_EXPECT_OK(wf_comm_close(comm));
}

static void *train(void *unused)
{
    wf_comm *comm = open_comm();
    double one = 1;
    WF_EXPECT_OK(wf_allreduce_f64(comm, &one, 1, WF_SUM));
    WF_EXPECT(one == wf_comm_size(comm), "the sum is %g", one);
    WF_EXPECT_OK(wf_comm_close(comm));
    return NULL;
}

static void threaded(void)
{
    pthread_t thread;
    WF_EXPECT(pthread_create(&thread, NULL, train, NULL) == 0, "no thread");
    pthread_join(thread, NULL);
}

/* The folder of recorders of this process. */
static bool find_folder(const char *home, char folder[PATH])
{
    char file[PATH], suffix[32];
    snprintf(suffix, sizeof suffix, "-%ld.", (long)getpid());
    DIR *dir = opendir(home);
    bool found = false;
    for (struct dirent *e = dir ? readdir(dir) : NULL; e && !found; e = readdir(dir)) {
        snprintf(folder, PATH, "%.200s/%.200s", home, e->d_name);
        DIR *inner = strncmp(e->d_name, "weft-", 5) == 0 ? opendir(folder) : NULL;
        for (struct dirent *f = inner ? readdir(inner) : NULL; f && !found; f = readdir(inner))
            found = strstr(f->d_name, suffix) && snprintf(file, PATH, "%s", f->d_name) > 0;
        if (inner)
            closedir(inner);
    }
    if (dir)
        closedir(dir);
    return found;
}

static void make_old(const char *name)
{
    const struct timespec day[2] = {{.tv_sec = time(NULL) - 200000}, {.tv_sec = time(NULL) - 200000}};
    WF_EXPECT(utimensat(AT_FDCWD, name, day, 0) == 0, "cannot date %s", name);
}

static void recorder(const char *self)
{
    char folder[PATH], gone[PATH], file[PATH + 32], command[2 * PATH];
    struct stat is;
    wf_comm *comm = open_comm();
    if (!find_folder("/dev/shm", folder) && !find_folder("/tmp", folder)) {
        WF_EXPECT(false, "no folder of recorders");
        return;
    }
    snprintf(gone, sizeof gone, "%.*s/weft-%u-gone%ld", (int)(strrchr(folder, '/') - folder), folder,
             (unsigned)geteuid(), (long)getpid());
    snprintf(file, sizeof file, "%s/host-1.trace", gone);
    WF_EXPECT(mkdir(gone, 0700) == 0, "cannot make %s", gone);
    const int empty = open(file, O_CREAT | O_WRONLY, 0600);
    close(empty);
    make_old(gone);
    make_old(folder);
    snprintf(command, sizeof command,
             "env -u PMIX_NAMESPACE -u PMIX_RANK -u OMPI_COMM_WORLD_RANK -u PMI_RANK -u PMI_SIZE -u PMI_FD -u PMI_PORT "
             "-u SLURM_STEP_ID WEFT_DEVICE=ref %s nothing",
             self);
    WF_EXPECT(system(command) == 0, "the other program failed");
    char again[PATH];
    WF_EXPECT(find_folder("/dev/shm", again) || find_folder("/tmp", again), "the recorder of a running job is gone");
    WF_EXPECT(stat(gone, &is) != 0, "the recorder of a job that is gone stays");
    WF_EXPECT_OK(wf_comm_close(comm));
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    if (!strcmp(mode, "fork"))
        forked();
    else if (!strcmp(mode, "early"))
        early();
    else if (!strcmp(mode, "thread"))
        threaded();
    else if (!strcmp(mode, "finalize"))
        finalized();
    else if (!strcmp(mode, "recorder"))
        recorder(argv[0]);
    else if (!strcmp(mode, "nothing"))
        WF_MUST(wf_comm_close(open_comm()));
    else
        return 2;
    return test_failures() > 0;
}
