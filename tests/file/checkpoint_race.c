/* Two jobs in one folder: one saves, the other one is told who does. Here every rank is a job of its own. */
#include "optim/checkpoint.h"
#include "tests/file/folder.h"
#include "tests/world.h"

#include <fcntl.h>
#include <unistd.h>

enum { RACES = 200 };

static wf_comm *alone; /* this rank */

/* Saves and loads; returns 1 if this job saved, 0 if it was told that another one holds the folder. */
static int64_t save_alone(const char *name, int64_t own)
{
    int64_t value = own;
    wf_checkpoint *saves = wf_checkpoint_open(alone, in_folder(name), (wf_checkpoint_opts){.keep = 100000});
    WF_EXPECT(saves, "%s", wf_error_message());
    WF_EXPECT_OK(wf_checkpoint_add_i64(saves, "own", &value));
    const wf_status status = wf_checkpoint_save(saves, own);
    const bool told = status == WF_ERR_STATE && strstr(wf_error_message(), "saves here");
    WF_EXPECT(status == WF_OK || told, "%s: %s", wf_status_name(status), wf_error_message());
    wf_error_clear();
    if (status == WF_OK) { /* the newest generation is the one that was saved */
        int64_t step = -1;
        WF_EXPECT_OK(wf_checkpoint_load_latest(saves, &step));
        WF_EXPECT(step == own && value == own, "found %lld, saved %lld", (long long)step, (long long)own);
    }
    WF_EXPECT_OK(wf_checkpoint_close(saves));
    return status == WF_OK;
}

/* As many files as saves that were said to be good, and one at least in every race. */
static void every_save_has_its_file(void)
{
    int64_t saved = 0;
    for (int64_t race = 0; race < test_samples(RACES); race++) {
        WF_EXPECT_OK(wf_barrier(comm));
        int64_t now = save_alone("race", 1000 * race + rank);
        WF_EXPECT_OK(wf_allreduce_i64(comm, &now, 1, WF_SUM));
        WF_EXPECT(now >= 1, "race %lld: nobody has saved", (long long)race);
        saved += now;
    }
    WF_EXPECT(files_in(in_folder("race")) == saved, "%lld files, %lld saves", (long long)files_in(in_folder("race")),
              (long long)saved);
}

static void touch(const char *path, const char *text)
{
    const int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    WF_EXPECT(file >= 0 && write(file, text, strlen(text)) == (ssize_t)strlen(text), "cannot write %s", path);
    close(file);
}

static void expect_held(const char *what, const char *name, const char *text)
{
    wf_checkpoint *saves = wf_checkpoint_open(alone, in_folder(name), (wf_checkpoint_opts){.every = 1});
    WF_EXPECT(!saves && wf_error_code() == WF_ERR_STATE && strstr(wf_error_message(), text), "%s: %s", what,
              wf_error_message());
    wf_error_clear();
}

/* What another job writes stays; a job that only loads needs no lock. */
static void the_others_files_stay(void)
{
    int64_t step = -1, value = 3;
    const char *unfinished = "held/ckpt-00000007.h5.tmp";
    if (rank > 0)
        return;
    wf_checkpoint *saves = wf_checkpoint_open(alone, in_folder("held"), (wf_checkpoint_opts){.every = 1});
    WF_EXPECT_OK(wf_checkpoint_add_i64(saves, "own", &value));
    WF_EXPECT_OK(wf_checkpoint_save(saves, 5));
    touch(in_folder(unfinished), "unfinished");
    expect_held("a second job", "held", "saves here");
    wf_checkpoint *reads = wf_checkpoint_open(alone, in_folder("held"), (wf_checkpoint_opts){0});
    WF_EXPECT_OK(wf_checkpoint_add_i64(reads, "own", &value));
    WF_EXPECT_OK(wf_checkpoint_load_latest(reads, &step));
    WF_EXPECT(step == 5, "found step %lld", (long long)step);
    WF_EXPECT_OK(wf_checkpoint_close(reads));
    WF_EXPECT(access(in_folder(unfinished), F_OK) == 0, "the file of the other job was removed");
    WF_EXPECT_OK(wf_checkpoint_close(saves));
    saves = wf_checkpoint_open(alone, in_folder("held"), (wf_checkpoint_opts){.every = 1});
    WF_EXPECT(saves && access(in_folder(unfinished), F_OK) != 0, "after its end it stays");
    WF_EXPECT_OK(wf_checkpoint_close(saves));
}

/* A lock of this process number from another time, of another machine, and text. */
static void stale_locks(void)
{
    char text[2048] = "", changed[2200], host[256], rest[1024];
    unsigned long long start = 0;
    long pid = 0;
    if (rank > 0)
        return;
    wf_checkpoint *saves = wf_checkpoint_open(alone, in_folder("stale"), (wf_checkpoint_opts){.every = 1});
    FILE *file = fopen(in_folder("stale/.weft-lock"), "r");
    WF_EXPECT(file && fgets(text, sizeof text, file) &&
                  sscanf(text, "%255s %ld %llu %1023[^\n]", host, &pid, &start, rest) == 4,
              "the lock says \"%s\"", text);
    if (file)
        fclose(file);
    WF_EXPECT(pid == (long)getpid() && start > 0, "process %ld since %llu", pid, start);
    WF_EXPECT_OK(wf_checkpoint_close(saves));
    WF_EXPECT(access(in_folder("stale/.weft-lock"), F_OK) != 0, "the lock stays after the end");
    snprintf(changed, sizeof changed, "%s %ld %llu %s\n", host, pid, start + 1, rest);
    touch(in_folder("stale/.weft-lock"), changed);
    saves = wf_checkpoint_open(alone, in_folder("stale"), (wf_checkpoint_opts){.every = 1});
    WF_EXPECT(saves, "a stale lock is not taken over: %s", wf_error_message());
    WF_EXPECT_OK(wf_checkpoint_close(saves));
    snprintf(changed, sizeof changed, "elsewhere %ld %llu %s\n", pid, start + 1, rest);
    touch(in_folder("stale/.weft-lock"), changed);
    expect_held("a lock of another machine", "stale", "on elsewhere; whether it has ended cannot be seen");
    touch(in_folder("stale/.weft-lock"), "hello");
    expect_held("a file of that name", "stale", "is none of Weft's");
    WF_EXPECT(unlink(in_folder("stale/.weft-lock")) == 0 && symlink(".weft-lock", in_folder("stale/.weft-lock")) == 0,
              "no link that leads to itself");
    expect_held("a lock that cannot be opened", "stale", "cannot be read: Too many levels");
}

static int on_ranks(int argc, char **argv)
{
    if (!ranks_open(test_communicator("auto")))
        return 1;
    alone = wf_comm_split(comm, rank, 0);
    folder_make();
    const int failed = test_main(argc, argv,
                                 (test_case[]){{"every_save_has_its_file", every_save_has_its_file},
                                               {"the_others_files_stay", the_others_files_stay},
                                               {"stale_locks", stale_locks},
                                               {0}});
    folder_remove();
    WF_EXPECT_OK(wf_comm_close(alone));
    return ranks_close(failed);
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
