/* Measured numbers, kept in a file: a line each of key, count and numbers, appended. Several processes may append; a
 * line that is torn or foreign is passed over. */
#include "optim/planner/planner_impl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define PATH 4096

typedef struct entry {
    char *line; /* "KEY\tNUMBER NUMBER ..." */
    size_t key;
} entry;

struct wf_plan_cache {
    wf_ctx *ctx;
    char path[PATH];
    entry *entry;
    int entries, room;
};

/* A line that cannot be kept, for lack of memory or of a tab, is only measured again. */
static void keep_line(wf_plan_cache *c, const char *line)
{
    const size_t key = strcspn(line, "\t");
    if (line[key] != '\t')
        return;
    if (c->entries == c->room) {
        const int room = c->room ? 2 * c->room : 64;
        entry *longer = wf_realloc(c->ctx, c->entry, (size_t)room * sizeof *longer);
        if (!longer)
            return;
        c->entry = longer;
        c->room = room;
    }
    char *copy = wf_strdup(c->ctx, line);
    if (copy)
        c->entry[c->entries++] = (entry){copy, key};
}

/* Failures are ignored: the file cannot be opened then, and the cache lives in memory alone. */
static void make_folders(const char *folder)
{
    char path[PATH];
    snprintf(path, sizeof path, "%s", folder);
    for (char *c = path + 1; *c; c++)
        if (*c == '/') {
            *c = '\0';
            (void)mkdir(path, 0777);
            *c = '/';
        }
    (void)mkdir(path, 0777);
}

wf_plan_cache *wf_plan_cache_open(wf_ctx *ctx, const char *folder)
{
    wf_plan_cache *c = wf_calloc(ctx, 1, sizeof *c);
    char *line = NULL;
    size_t size = 0;
    ssize_t length;
    if (!c)
        return NULL;
    c->ctx = ctx;
    /* Without a folder, or with one whose path is too long, nothing is read or written. */
    if (!folder || strlen(folder) + 16 > sizeof c->path)
        return c;
    make_folders(folder);
    snprintf(c->path, sizeof c->path, "%s/kernels", folder);
    FILE *file = fopen(c->path, "r");
    /* A line without its end was torn by a process that died, or is being written now. */
    while (file && (length = getline(&line, &size, file)) > 0)
        if (line[length - 1] == '\n') {
            line[length - 1] = '\0';
            keep_line(c, line);
        }
    free(line);
    if (file)
        fclose(file);
    return c;
}

void wf_plan_cache_close(wf_plan_cache *c)
{
    if (!c)
        return;
    for (int i = 0; i < c->entries; i++)
        free(c->entry[i].line);
    free(c->entry);
    free(c);
}

bool wf_plan_cache_find(const wf_plan_cache *c, const char *key, int count, double *numbers)
{
    const size_t length = strlen(key);
    /* The newest first. */
    for (int i = c ? c->entries - 1 : -1; i >= 0; i--) {
        const entry *e = &c->entry[i];
        if (e->key != length || memcmp(e->line, key, length) != 0)
            continue;
        char *at = e->line + length + 1, *end = at;
        int n = 0;
        for (; n < count; n++, at = end) {
            numbers[n] = strtod(at, &end);
            if (end == at)
                break;
        }
        /* A line with fewer numbers, or more, is of another version: an older line may fit. */
        if (n == count && strspn(end, " ") == strlen(end))
            return true;
    }
    return false;
}

void wf_plan_cache_add(wf_plan_cache *c, const char *key, int count, const double *numbers)
{
    /* A number has at most 16 characters by %.9g, with its space; 32 leave room. */
    const size_t room = strlen(key) + 32 * (size_t)count + 8;
    char *line = c ? wf_malloc(c->ctx, room) : NULL;
    size_t used;
    if (!line)
        return;
    used = (size_t)snprintf(line, room, "%s\t", key);
    for (int i = 0; i < count; i++)
        used += (size_t)snprintf(line + used, room - used, "%s%.9g", i ? " " : "", numbers[i]);
    /* Kept before it is written: this process finds it even where the file cannot be written. */
    keep_line(c, line);
    /* Opened for each line and appended in one write, as long as it fits the buffer, so lines of several processes do
     * not mix. */
    FILE *file = *c->path ? fopen(c->path, "a") : NULL;
    if (file) {
        fprintf(file, "%s\n", line);
        fclose(file);
    }
    free(line);
}
