/* Two jobs in one folder: one saves, the other one is told who does. Up to two ranks are a job each; of more ranks
 * those of even and of odd numbers are one, whose model is in as many stages, two of which have the same weights. */
#include "comm/file_author.h"
#include "optim/checkpoint.h"
#include "tests/file/model_parts.h"
#include "tests/file/said.h"
#include "tests/world.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { RACES = 200, JOBS = 2 };

static wf_comm *alone; /* this rank */
static wf_comm *job;   /* of which this rank is one */

static void fill(const parted *p, double value)
{
    int64_t n;
    wf_param *const *params;
    WF_EXPECT_OK(wf_layer_params(p->model, &n, &params));
    for (int64_t i = 0; i < n; i++)
        WF_EXPECT_OK(wf_tensor_fill(wf_param_value(params[i]), value));
}

/* The newest generation is the one that this job saved. */
static void expect_own(wf_checkpoint *saves, const parted *p, const int64_t *value, int64_t own)
{
    int64_t step = -1, n;
    wf_param *const *params;
    fill(p, -1);
    WF_EXPECT_OK(wf_checkpoint_load_latest(saves, &step));
    WF_EXPECT(step == own && *value == own, "found %lld, saved %lld", (long long)step, (long long)own);
    WF_EXPECT_OK(wf_layer_params(p->model, &n, &params));
    for (int64_t i = 0; i < n; i++) {
        float x[64] = {0};
        WF_EXPECT_OK(wf_tensor_export(wf_param_value(params[i]), x, wf_tensor_bytes(wf_param_value(params[i]))));
        WF_EXPECT(x[0] == (float)own, "%s is %g, saved %lld", wf_param_path(params[i]), (double)x[0], (long long)own);
    }
}

/* Saves and loads; returns true if this job saved, false if it was told that another one holds the folder. */
static bool save_own(const parted *p, const char *name, int64_t own)
{
    int64_t value = own;
    wf_checkpoint *saves = wf_checkpoint_open(job, in_folder(name), (wf_checkpoint_opts){.keep = 100000});
    WF_EXPECT(saves, "%s", wf_error_message());
    WF_EXPECT_OK(wf_checkpoint_add_model(saves, "model", p->model));
    WF_EXPECT_OK(wf_checkpoint_add_i64(saves, "own", &value));
    fill(p, (double)own);
    const wf_status status = wf_checkpoint_save(saves, own);
    const bool told = status == WF_ERR_STATE && strstr(wf_error_message(), "saves here");
    WF_EXPECT(status == WF_OK || told, "%s: %s", wf_status_name(status), wf_error_message());
    wf_error_clear();
    if (status == WF_OK)
        expect_own(saves, p, &value, own);
    WF_EXPECT_OK(wf_checkpoint_close(saves));
    return status == WF_OK;
}

/* All of a file is of one job, and no file has what another one has. */
static void expect_file(const char *path, int64_t *before)
{
    static const char *const names[] = {"model/0/W", "model/4/1/b", "model/9/b"};
    int64_t own = -1;
    wf_h5 *file = wf_h5_open(path);
    WF_EXPECT(file, "%s", wf_error_message());
    WF_EXPECT_OK(wf_h5_read(file, "own", wf_box_of_shape(wf_shape_scalar()), WF_I64, &own));
    WF_EXPECT(own / 1000 >= *before / 1000 && own != *before, "%s has %lld, the one before %lld", path, (long long)own,
              (long long)*before);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        wf_h5_info info;
        double x[64] = {0};
        WF_EXPECT_OK(wf_h5_stat(file, names[i], &info));
        WF_EXPECT_OK(wf_h5_read(file, names[i], wf_box_of_shape(info.shape), WF_F64, x));
        WF_EXPECT(x[0] == (double)own, "%s: %s is %g, of %lld", path, names[i], x[0], (long long)own);
    }
    WF_EXPECT_OK(wf_h5_close(file));
    *before = own;
}

static void touch(const char *path, const char *text)
{
    const int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    WF_EXPECT(file >= 0 && write(file, text, strlen(text)) == (ssize_t)strlen(text), "cannot write %s", path);
    close(file);
}

/* What a lock says, in the order of its words. */
typedef struct words {
    char host[256], rest[1024];
    long pid;
    unsigned long long start;
} words;

/* The lock that this process writes. */
static words own_lock(const char *name)
{
    char path[256], text[2048] = "";
    words w = {.pid = 0};
    snprintf(path, sizeof path, "%s/%s/.weft-lock", folder, name);
    wf_checkpoint *saves = wf_checkpoint_open(alone, in_folder(name), (wf_checkpoint_opts){.every = 1});
    FILE *file = fopen(path, "r");
    WF_EXPECT(file && fgets(text, sizeof text, file) &&
                  sscanf(text, "%255s %ld %llu %1023[^\n]", w.host, &w.pid, &w.start, w.rest) == 4,
              "the lock says \"%s\"", text);
    if (file)
        fclose(file);
    WF_EXPECT_OK(wf_checkpoint_close(saves));
    WF_EXPECT(access(path, F_OK) != 0, "the lock stays after the end");
    return w;
}

static void write_lock(const char *name, const char *host, unsigned long long start, const words *w)
{
    char path[256], text[2048];
    snprintf(path, sizeof path, "%s/%s/.weft-lock", folder, name);
    snprintf(text, sizeof text, "%s %ld %llu %s\n", host, w->pid, start, w->rest);
    touch(path, text);
}

/* As many files as saves that were said to be good, and one at least in every race. Every second time both jobs find
 * the lock of one that was killed. */
static void every_save_has_its_file(void)
{
    int64_t saved = 0, before = -1;
    char path[256];
    const form stages = {.name = "a job", .mesh = {.data = 1, .stage = wf_comm_size(job)}};
    parted p = parts_open(&stages, job, false);
    const words lock = rank == 0 ? own_lock("race") : (words){.pid = 0};
    wf_log_set_level(WF_LOG_ERROR);
    for (int64_t race = 0; race < test_samples(RACES); race++) {
        if (rank == 0 && race % 2)
            write_lock("race", lock.host, lock.start + 1, &lock);
        WF_EXPECT_OK(wf_barrier(comm));
        int64_t now = save_own(&p, "race", 1000 * race + rank % JOBS) && wf_comm_rank(job) == 0;
        WF_EXPECT_OK(wf_allreduce_i64(comm, &now, 1, WF_SUM));
        WF_EXPECT(now >= 1, "race %lld: no rank has saved", (long long)race);
        saved += now;
    }
    wf_log_set_level(WF_LOG_INFO);
    parts_close(&p);
    WF_EXPECT(files_in(in_folder("race")) == saved, "%lld files, %lld saves", (long long)files_in(in_folder("race")),
              (long long)saved);
    for (int64_t i = 0; rank == 0 && i < saved; i++) {
        snprintf(path, sizeof path, "%s/race/ckpt-%08lld.h5", folder, (long long)i);
        expect_file(path, &before);
    }
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

/* A job that only loads, while another one saves and keeps one generation: it always finds one that is whole, and none
 * that is older than the one before. */
static void one_loads_while_another_saves(void)
{
    enum { LAST = 40 };
    int64_t value = 0, step = 0;
    wf_checkpoint *saves = wf_checkpoint_open(alone, in_folder("read"), (wf_checkpoint_opts){.keep = 1});
    WF_EXPECT_OK(wf_checkpoint_add_i64(saves, "own", &value));
    for (int64_t i = 0; rank == 0 && i <= LAST; i++) {
        value = i;
        WF_EXPECT_OK(wf_checkpoint_save(saves, i));
    }
    wf_log_set_level(WF_LOG_ERROR);
    while (rank > 0 && step < LAST) {
        const int64_t before = step;
        const wf_status status = wf_checkpoint_load_latest(saves, &step);
        WF_EXPECT(status == WF_OK && step >= before && value == step, "after step %lld: %lld, %lld: %s",
                  (long long)before, (long long)step, (long long)value, wf_error_message());
        wf_error_clear();
        if (status != WF_OK)
            break;
    }
    wf_log_set_level(WF_LOG_INFO);
    WF_EXPECT_OK(wf_checkpoint_close(saves));
}

static void expect_text(const char *path, const char *text)
{
    char found[64] = "";
    FILE *file = fopen(path, "r");
    WF_EXPECT(file && fgets(found, sizeof found, file) && strcmp(found, text) == 0, "%s has \"%s\"", path, found);
    if (file)
        fclose(file);
}

/* Files of the next names, made by one who knows no lock, after this job has looked: both stay, and the save is an
 * error. */
static void no_file_is_overwritten(void)
{
    int64_t value = 3;
    char temporary[256], path[256];
    snprintf(temporary, sizeof temporary, "%s/taken/ckpt-00000000.h5.tmp", folder);
    snprintf(path, sizeof path, "%s/taken/ckpt-00000000.h5", folder);
    if (rank > 0)
        return;
    wf_checkpoint *saves =
        wf_checkpoint_open(alone, in_folder("taken"), (wf_checkpoint_opts){.every = 1, .async = true});
    WF_EXPECT_OK(wf_checkpoint_add_i64(saves, "own", &value));
    touch(temporary, "unfinished");
    wf_status status = wf_checkpoint_save(saves, 1);
    WF_EXPECT(status == WF_ERR_IO && strstr(wf_error_message(), "cannot make this file: File exists"), "%s: %s",
              wf_status_name(status), wf_error_message());
    wf_error_clear();
    expect_text(temporary, "unfinished");
    unlink(temporary);
    WF_EXPECT_OK(wf_checkpoint_save(saves, 2));
    touch(path, "finished");
    status = wf_checkpoint_close(saves);
    WF_EXPECT(status == WF_ERR_IO && strstr(wf_error_message(), "another job has made this file"), "%s: %s",
              wf_status_name(status), wf_error_message());
    wf_error_clear();
    expect_text(path, "finished");
    WF_EXPECT(access(temporary, F_OK) != 0, "the temporary file stays");
}

/* A lock of this process number from another time, of another machine, and text. */
static void stale_locks(void)
{
    if (rank > 0)
        return;
    const words lock = own_lock("stale");
    WF_EXPECT(lock.pid == (long)getpid() && lock.start > 0, "process %ld since %llu", lock.pid, lock.start);
    write_lock("stale", lock.host, lock.start + 1, &lock);
    said_begin();
    wf_checkpoint *saves = wf_checkpoint_open(alone, in_folder("stale"), (wf_checkpoint_opts){.every = 1});
    WF_EXPECT(said_end("has ended without removing its lock") == 1, "nothing is said of a stale lock");
    WF_EXPECT(saves, "a stale lock is not taken over: %s", wf_error_message());
    WF_EXPECT_OK(wf_checkpoint_close(saves));
    write_lock("stale", "elsewhere", lock.start + 1, &lock);
    expect_held("a lock of another machine", "stale", "on elsewhere; whether it has ended cannot be seen");
    touch(in_folder("stale/.weft-lock"), "hello");
    expect_held("a file of that name", "stale", "is none of Weft's");
    WF_EXPECT(unlink(in_folder("stale/.weft-lock")) == 0 && symlink(".weft-lock", in_folder("stale/.weft-lock")) == 0,
              "no link that leads to itself");
    expect_held("a lock that cannot be opened", "stale", "cannot be read: Too many levels");
    WF_EXPECT(unlink(in_folder("stale/.weft-lock")) == 0 && mkfifo(in_folder("stale/.weft-lock"), 0666) == 0,
              "no pipe");
    expect_held("a pipe of that name", "stale", "is none of Weft's");
}

/* Another user's lock, in a folder where each removes his own files alone. */
static void a_stale_lock_that_stays(void)
{
    enum { NOBODY = 65534 };
    if (rank > 0 || geteuid() != 0)
        return;
    const words lock = own_lock("shared");
    write_lock("shared", lock.host, lock.start + 1, &lock);
    WF_EXPECT(chmod(folder, 0755) == 0 && chmod(in_folder("shared"), 01777) == 0 && seteuid(NOBODY) == 0,
              "cannot be another user");
    said_begin();
    wf_checkpoint *saves = wf_checkpoint_open(alone, in_folder("shared"), (wf_checkpoint_opts){.every = 1});
    const int lines = said_end("");
    WF_EXPECT(seteuid(0) == 0, "cannot be root again");
    WF_EXPECT(!saves && wf_error_code() == WF_ERR_STATE &&
                  strstr(wf_error_message(), "cannot be removed: Operation not permitted"),
              "%s", wf_error_message());
    wf_error_clear();
    WF_EXPECT(lines == 0, "%d lines are said of what was not done", lines);
}

static int on_ranks(int argc, char **argv)
{
    if (!ranks_open(test_communicator("auto")))
        return 1;
    alone = wf_comm_split(comm, rank, 0);
    job = size > JOBS ? wf_comm_split(comm, rank % JOBS, rank) : alone;
    folder_make();
    const int failed = test_main(argc, argv,
                                 (test_case[]){{"every_save_has_its_file", every_save_has_its_file},
                                               {"the_others_files_stay", the_others_files_stay},
                                               {"one_loads_while_another_saves", one_loads_while_another_saves},
                                               {"no_file_is_overwritten", no_file_is_overwritten},
                                               {"stale_locks", stale_locks},
                                               {"a_stale_lock_that_stays", a_stale_lock_that_stays},
                                               {0}});
    folder_remove();
    WF_EXPECT_OK(size > JOBS ? wf_comm_close(job) : WF_OK);
    WF_EXPECT_OK(wf_comm_close(alone));
    return ranks_close(failed);
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
