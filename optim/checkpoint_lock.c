/* The lock of a folder: one job saves into it at a time. Rank 0 makes a file ".weft-lock" that did not exist, and
 * removes it at the end. A job that was killed leaves its lock. The next one breaks it if it can prove that the holder
 * has ended: the same machine since the same boot, in the same space of process numbers, where that process is gone, or
 * one of its number has started at another time. Of a holder on another machine nothing can be proved.
 *
 * Two jobs may find the same stale lock. flock makes them look one after the other; the later one sees that the name
 * has another file than the one that it opened, and begins anew. */
#include "core/config_author.h"
#include "core/log.h"
#include "optim/checkpoint_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TRIES = 200, PAUSE_US = 10000, TEXT = 1024 };

typedef struct holder {
    char host[256], boot[64], space[64], job[256];
    long pid;
    unsigned long long start; /* of the process, in ticks since the boot; 0: it is not there */
} holder;

/* --- Who holds it ------------------------------------------------------------------------------------------------- */

static void first_word(const char *path, char word[64])
{
    FILE *file = fopen(path, "r");
    if (!file || fscanf(file, "%63s", word) != 1)
        strcpy(word, "-");
    if (file)
        fclose(file);
}

/* When a process began. One that has ended and waits for its parent does not count. */
static unsigned long long start_of(long pid)
{
    char path[64], text[TEXT], state = 'Z';
    unsigned long long start = 0;
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    FILE *file = fopen(path, "r");
    if (!file)
        return 0;
    const size_t bytes = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[bytes] = '\0';
    /* The name of the program, in brackets, may hold anything. */
    const char *at = strrchr(text, ')');
    const int found =
        at ? sscanf(at + 1, " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu", &state,
                    &start)
           : 0;
    return found == 2 && state != 'Z' && state != 'X' ? start : 0;
}

static holder this_process(void)
{
    holder h = {.pid = (long)getpid()};
    char link[64] = "-";
    if (gethostname(h.host, sizeof h.host - 1) != 0 || !*h.host)
        strcpy(h.host, "-");
    first_word("/proc/sys/kernel/random/boot_id", h.boot);
    if (readlink("/proc/self/ns/pid", link, sizeof link - 1) < 0)
        strcpy(link, "-");
    memcpy(h.space, link, sizeof h.space);
    snprintf(h.job, sizeof h.job, "%s", wf_config_get()->job);
    h.start = start_of(h.pid);
    return h;
}

static void format_holder(const holder *h, char text[TEXT])
{
    snprintf(text, TEXT, "%s %ld %llu %s %s %s\n", h->host, h->pid, h->start, h->boot, h->space, h->job);
}

static bool parse(const char *text, holder *h)
{
    *h = (holder){0};
    return sscanf(text, "%255s %ld %llu %63s %63s %255s", h->host, &h->pid, &h->start, h->boot, h->space, h->job) == 6;
}

static bool same_machine(const holder *a, const holder *b)
{
    return strcmp(a->host, b->host) == 0 && strcmp(a->boot, b->boot) == 0 && strcmp(a->space, b->space) == 0 &&
           strcmp(a->boot, "-") != 0 && strcmp(a->space, "-") != 0;
}

/* Removes the lock if its holder has ended; else it is an error that says who it is. */
static wf_status remove_stale(const wf_checkpoint *c, const char *lock, const char *text)
{
    holder other, own = this_process();
    WF_CHECK(parse(text, &other), WF_ERR_STATE, "%s: the lock %s is none of Weft's; if no job saves here, remove it",
             c->folder, lock);
    WF_CHECK(
        same_machine(&own, &other), WF_ERR_STATE,
        "%s: job %s saves here, process %ld on %s; whether it has ended cannot be seen from %s: if it has, remove %s",
        c->folder, other.job, other.pid, other.host, own.host, lock);
    WF_CHECK(
        other.start == 0 || start_of(other.pid) != other.start, WF_ERR_STATE,
        "%s: job %s saves here, process %ld on %s%s; give this run another folder, or wait until that one has ended",
        c->folder, other.job, other.pid, other.host, other.pid == own.pid ? " (this one)" : "");
    /* Another user's may stay, in a folder where each removes his own files. */
    WF_CHECK(unlink(lock) == 0 || errno == ENOENT, WF_ERR_STATE,
             "%s: job %s has ended without removing its lock (process %ld), and %s cannot be removed: %s", c->folder,
             other.job, other.pid, lock, strerror(errno));
    wf_log_write(WF_LOG_WARN, "%s: job %s has ended without removing its lock (process %ld); this run takes it",
                 c->folder, other.job, other.pid);
    return WF_OK;
}

/* --- Taking it ---------------------------------------------------------------------------------------------------- */

static wf_status write_lock(int file, const char *lock)
{
    char text[TEXT];
    const holder own = this_process();
    format_holder(&own, text);
    const bool written = write(file, text, strlen(text)) == (ssize_t)strlen(text);
    const int error = errno;
    close(file);
    if (written)
        return WF_OK;
    unlink(lock);
    WF_FAIL(WF_ERR_IO, "%s: cannot write: %s", lock, strerror(error));
}

static bool is_still_there(int file, const char *lock)
{
    struct stat opened, named;
    return fstat(file, &opened) == 0 && stat(lock, &named) == 0 && opened.st_ino == named.st_ino &&
           opened.st_dev == named.st_dev;
}

/* A pipe or a folder of this name stays empty. */
static bool is_regular(int file)
{
    struct stat info;
    return fstat(file, &info) == 0 && S_ISREG(info.st_mode);
}

/* Removes the lock of a holder that has ended. WF_OK also if it is gone, or is being written. */
static wf_status break_lock(const wf_checkpoint *c, const char *lock)
{
    char text[TEXT] = "";
    const int file = open(lock, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0) {
        WF_CHECK(errno == ENOENT, WF_ERR_STATE, "%s: the lock %s cannot be read: %s; if no job saves here, remove it",
                 c->folder, lock, strerror(errno));
        return WF_OK;
    }
    wf_status status = WF_OK;
    flock(file, LOCK_EX);
    const ssize_t bytes = is_still_there(file, lock) ? read(file, text, sizeof text - 1) : 0;
    if (bytes > 0 || !is_regular(file))
        status = remove_stale(c, lock, text);
    else
        usleep(PAUSE_US);
    close(file);
    return status;
}

static void lock_path(const wf_checkpoint *c, char path[WF_CHECKPOINT_PATH])
{
    snprintf(path, WF_CHECKPOINT_PATH, "%s/.weft-lock", c->folder);
}

wf_status wf_checkpoint_lock(wf_checkpoint *c)
{
    char lock[WF_CHECKPOINT_PATH];
    lock_path(c, lock);
    /* Asked first: no lock matters in a folder that cannot be written, nor could one be broken. */
    WF_CHECK(access(c->folder, W_OK) == 0, WF_ERR_IO, "%s: cannot write into this folder: %s", c->folder,
             strerror(errno));
    for (int i = 0; i < TRIES; i++) {
        const int file = open(lock, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        WF_CHECK(file >= 0 || errno == EEXIST, WF_ERR_IO, "%s: cannot write into this folder: %s", c->folder,
                 strerror(errno));
        if (file >= 0) {
            WF_TRY(write_lock(file, lock));
            c->locked = true;
            return WF_OK;
        }
        WF_TRY(break_lock(c, lock));
    }
    WF_FAIL(WF_ERR_STATE, "%s: the lock %s is empty; if no job saves here, remove it", c->folder, lock);
}

void wf_checkpoint_unlock(wf_checkpoint *c)
{
    char lock[WF_CHECKPOINT_PATH], text[2][TEXT] = {"", ""};
    if (!c->locked)
        return;
    c->locked = false;
    lock_path(c, lock);
    const holder own = this_process();
    format_holder(&own, text[0]);
    const int file = open(lock, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    const bool mine = file >= 0 && read(file, text[1], TEXT - 1) > 0 && strcmp(text[0], text[1]) == 0;
    if (file >= 0)
        close(file);
    if (mine)
        unlink(lock);
}
