/* The files in a folder of checkpoints: which generations exist and which are removed. Rank 0 reads the folder and
 * removes files; the other ranks get the result from it. */
#include "comm/file_author.h"
#include "core/log.h"
#include "optim/checkpoint_impl.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define START "ckpt-"
#define NAME  START "%08lld.h5"

void wf_checkpoint_folder_path(const wf_checkpoint *c, int64_t generation, const char *end,
                               char path[WF_CHECKPOINT_PATH])
{
    snprintf(path, WF_CHECKPOINT_PATH, "%s/" NAME "%s", c->folder, (long long)generation, end);
}

/* The generation in a file's name; -1 if the name is not that of a checkpoint. *whole is false for a temporary name.
 * Other files of the folder are the user's and are left alone. */
static int64_t number_of(const char *name, bool *whole)
{
    char expected[64];
    if (strncmp(name, START, strlen(START)) != 0)
        return -1;
    const long long generation = strtoll(name + strlen(START), NULL, 10);
    snprintf(expected, sizeof expected, NAME, generation);
    /* Printed again and compared: strtoll takes signs, numbers that are too large, and anything after them. */
    *whole = strcmp(name, expected) == 0;
    strcat(expected, ".tmp");
    return generation >= 0 && (*whole || strcmp(name, expected) == 0) ? generation : -1;
}

static int newest_first(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x > y ? -1 : x < y;
}

/* Also removes files of temporary names, if asked. On failure the list holds what was found so far, for the caller to
 * free. */
static wf_status look(const wf_checkpoint *c, bool remove, int64_t *n, int64_t **list)
{
    int64_t room = 0;
    wf_status status = WF_OK;
    DIR *folder = opendir(c->folder);
    *n = 0;
    *list = NULL;
    WF_CHECK(folder, WF_ERR_IO, "%s: cannot look into this folder: %s", c->folder, strerror(errno));
    for (const struct dirent *file; status == WF_OK && (file = readdir(folder));) {
        bool whole = false;
        const int64_t generation = number_of(file->d_name, &whole);
        if (generation >= 0 && !whole && remove)
            unlinkat(dirfd(folder), file->d_name, 0);
        if (generation < 0 || !whole)
            continue;
        if (*n == room) {
            room = room ? 2 * room : 16;
            int64_t *longer = realloc(*list, (size_t)room * sizeof *longer);
            status = longer ? WF_OK : WF_RAISE(WF_ERR_MEMORY, "no memory for a list of checkpoints");
            *list = longer ? longer : *list;
        }
        if (status == WF_OK)
            (*list)[(*n)++] = generation;
    }
    closedir(folder);
    if (*n > 0)
        qsort(*list, (size_t)*n, sizeof **list, newest_first);
    return status;
}

/* --- Opening ------------------------------------------------------------------------------------------------------ */

/* The newest generation that is there. `clean` removes what unfinished saves left, which is for the holder of the lock:
 * another job may be writing. */
static wf_status find_newest(wf_checkpoint *c, bool clean)
{
    int64_t n, *list;
    const wf_status status = look(c, clean, &n, &list);
    if (status == WF_OK && n > 0 && list[0] > c->newest)
        c->newest = list[0];
    free(list);
    return status;
}

/* A file that only this job has: ranks look for it to see if they have the same folder. */
static wf_status make_token(const wf_checkpoint *c, char token[64])
{
    char path[WF_CHECKPOINT_PATH];
    snprintf(token, 64, ".weft-%ld", (long)getpid());
    snprintf(path, sizeof path, "%s/%s", c->folder, token);
    FILE *file = fopen(path, "w");
    if (file && fclose(file) == 0)
        return WF_OK;
    *token = '\0';
    WF_FAIL(WF_ERR_IO, "%s: cannot write into this folder: %s", c->folder, strerror(errno));
}

/* A folder that cannot be written is no reason to refuse a run that can be resumed from it; without a generation the
 * run would only find at its first save that nothing of it is kept. */
static wf_status open_first(wf_checkpoint *c, char token[64])
{
    WF_TRY(wf_folder_make(c->folder));
    /* A run that may save takes the lock now; one that only loads needs none. */
    wf_status status = c->opts.every > 0 || c->opts.signals ? wf_checkpoint_lock(c) : WF_OK;
    if (status != WF_OK && status != WF_ERR_IO)
        return status;
    WF_TRY(find_newest(c, c->locked));
    if (status == WF_OK)
        status = make_token(c, token);
    if (status == WF_OK || c->newest < 0)
        return status;
    wf_log_write(WF_LOG_WARN, "%s; generation %lld can be loaded from it, and saves will fail", wf_error_message(),
                 (long long)c->newest);
    wf_error_clear();
    return WF_OK;
}

/* Without a token, which a folder that cannot be written has not, only that there is a folder. */
static wf_status look_for(const wf_checkpoint *c, const char *token)
{
    char path[WF_CHECKPOINT_PATH];
    snprintf(path, sizeof path, "%s/%s", c->folder, token);
    WF_CHECK(access(path, F_OK) == 0, WF_ERR_IO, "%s: not the folder that rank %s has: %s", c->folder,
             WF_RANK(c->comm, 0), strerror(errno));
    return WF_OK;
}

/* Rank 0 makes the token, all look for it, rank 0 removes it. */
wf_status wf_checkpoint_folder_open(wf_checkpoint *c)
{
    char token[64] = "", path[WF_CHECKPOINT_PATH];
    WF_TRY(wf_bcast_status(c->comm, c->rank == 0 ? open_first(c, token) : WF_OK, 0));
    WF_TRY(wf_bcast_bytes(c->comm, token, sizeof token, 0));
    WF_TRY(wf_bcast_bytes(c->comm, &c->newest, sizeof c->newest, 0));
    const wf_status status = wf_agree_status(c->comm, look_for(c, token));
    snprintf(path, sizeof path, "%s/%s", c->folder, token);
    if (c->rank == 0 && *token)
        unlink(path);
    return status;
}

/* Generations may have been added by another job before this one had the lock. */
static wf_status hold_first(wf_checkpoint *c)
{
    const bool held = c->locked;
    if (!held)
        WF_TRY(wf_checkpoint_lock(c));
    return find_newest(c, !held);
}

wf_status wf_checkpoint_folder_hold(wf_checkpoint *c)
{
    WF_TRY(wf_bcast_status(c->comm, c->rank == 0 ? hold_first(c) : WF_OK, 0));
    return wf_bcast_bytes(c->comm, &c->newest, sizeof c->newest, 0);
}

/* settle first: a file that is being removed should not be listed. */
wf_status wf_checkpoint_folder_list(wf_checkpoint *c, int64_t *n, int64_t **generation)
{
    *n = 0;
    *generation = NULL;
    wf_checkpoint_folder_settle(c);
    WF_TRY(wf_bcast_status(c->comm, c->rank == 0 ? look(c, false, n, generation) : WF_OK, 0));
    WF_TRY(wf_bcast_bytes(c->comm, n, sizeof *n, 0));
    /* The list's length comes first, so that the others can take memory. */
    if (c->rank > 0)
        *generation = calloc((size_t)*n + 1, sizeof **generation);
    WF_TRY(wf_agree_status(c->comm, *n == 0 || *generation ? WF_OK : WF_RAISE(WF_ERR_MEMORY, "no memory for a list")));
    if (*n == 0)
        return WF_OK;
    WF_TRY(wf_bcast_bytes(c->comm, *generation, (size_t)*n * sizeof **generation, 0));
    c->newest = (*generation)[0] > c->newest ? (*generation)[0] : c->newest;
    return WF_OK;
}

/* --- Removing ----------------------------------------------------------------------------------------------------- */

/* Without memory the file is only not known to be damaged. */
void wf_checkpoint_folder_note_damage(wf_checkpoint *c, int64_t generation)
{
    int64_t *longer = realloc(c->damaged, (size_t)(c->n_damaged + 1) * sizeof *longer);
    if (!longer)
        return;
    c->damaged = longer;
    c->damaged[c->n_damaged++] = generation;
}

static bool is_damaged(const wf_checkpoint *c, int64_t generation)
{
    for (int64_t i = 0; i < c->n_damaged; i++)
        if (c->damaged[i] == generation)
            return true;
    return false;
}

/* In a thread of its own: removing a file of many gigabytes may take seconds. */
static void *remove_outdated(void *argument)
{
    char path[WF_CHECKPOINT_PATH];
    const wf_checkpoint *c = argument;
    for (int64_t i = 0; i < c->n_outdated; i++) {
        wf_checkpoint_folder_path(c, c->outdated[i], "", path);
        unlink(path);
    }
    return NULL;
}

/* At most one remover runs at a time. */
void wf_checkpoint_folder_settle(wf_checkpoint *c)
{
    if (!c->outdated)
        return;
    pthread_join(c->remover, NULL);
    free(c->outdated);
    c->outdated = NULL;
}

/* Files that are known to be damaged are not counted and not removed, so that they can be inspected. Rank 0 only, after
 * a save was committed: a failure here leaves files and ends no run. */
void wf_checkpoint_folder_prune(wf_checkpoint *c)
{
    int64_t n, *list, kept = 0;
    wf_checkpoint_folder_settle(c);
    if (look(c, false, &n, &list) != WF_OK)
        wf_error_clear();
    c->n_outdated = 0;
    for (int64_t i = 0; i < n; i++) {
        if (is_damaged(c, list[i]))
            continue;
        if (kept++ < c->opts.keep || (c->opts.keep_every > 0 && list[i] % c->opts.keep_every == 0))
            continue;
        /* The list is filled from its front while it is read: names move to lower places only. */
        list[c->n_outdated++] = list[i];
    }
    c->outdated = list;
    if (c->n_outdated > 0 && wf_checkpoint_thread(&c->remover, remove_outdated, c))
        return;
    remove_outdated(c);
    free(list);
    c->outdated = NULL;
}
