/* The archive visitor: groups, paths, and the calls that every kind of archive shares. Layers and optimizers call it
 * to save, load or send their parts. It never touches a file or a message itself; that is the work of the archive's
 * kind (core/archive_memory.c, layers/save.c). */
#include "core/archive_author.h"
#include "core/context_author.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bytes of a path with its end. A longer path is refused, since one that is cut could name another tensor. */
enum { PATH = 1024 };

struct wf_archive {
    wf_ctx *ctx;
    const wf_archive_ops *ops;
    void *own;
    bool loading;
    /* Both texts are of fixed length, so that a visit of a model of thousands of parameters allocates nothing. */
    char group[PATH]; /* "gen/conv1/" */
    char path[PATH];
};

wf_archive *wf_archive_new(wf_ctx *ctx, const wf_archive_ops *ops, bool loading, void *own)
{
    if (!ctx || !own)
        return NULL;
    wf_archive *archive = wf_calloc(ctx, 1, sizeof *archive);
    if (!archive)
        return wf_error_null();
    archive->ctx = ctx;
    archive->ops = ops;
    archive->own = own;
    archive->loading = loading;
    return archive;
}

void *wf_archive_state(wf_archive *archive)
{
    return archive->own;
}

bool wf_archive_loading(const wf_archive *archive)
{
    return archive && archive->loading;
}

void wf_archive_set_loading(wf_archive *archive, bool loading)
{
    /* A visit that failed may have left groups entered. */
    archive->loading = loading;
    archive->group[0] = '\0';
}

/* Only such a kind keeps parts of ranks as one whole; the others store what this rank has. */
bool wf_archive_spans_ranks(const wf_archive *archive)
{
    return archive->ops->part != NULL;
}

void wf_archive_free(wf_archive *archive)
{
    if (!archive)
        return;
    if (archive->ops->free)
        archive->ops->free(archive);
    free(archive);
}

/* The group always ends with a slash or is empty, so a path is the group and a name, one behind the other. */
wf_status wf_archive_enter(wf_archive *archive, const char *name)
{
    WF_NEED(archive);
    WF_NEED(name);
    const size_t used = strlen(archive->group);
    WF_CHECK(*name && !strchr(name, '/'), WF_ERR_ARGUMENT, "\"%s\" is not the name of a group", name);
    WF_CHECK(used + strlen(name) + 2 <= PATH, WF_ERR_ARGUMENT, "the path %s%s is longer than %d bytes", archive->group,
             name, (int)PATH);
    snprintf(archive->group + used, PATH - used, "%s/", name);
    return WF_OK;
}

wf_status wf_archive_leave(wf_archive *archive)
{
    WF_NEED(archive);
    const size_t used = strlen(archive->group);
    WF_CHECK(used > 0, WF_ERR_STATE, "an archive group is left that was not entered");
    /* The slash at the end goes, then the name before it; what is left ends with a slash again, or is empty. */
    archive->group[used - 1] = '\0';
    char *slash = strrchr(archive->group, '/');
    *(slash ? slash + 1 : archive->group) = '\0';
    return WF_OK;
}

/* The path lies in the archive and is overwritten by the next call; the kinds copy what they keep. */
static wf_status make_path(wf_archive *archive, const char *name)
{
    WF_NEED(archive);
    WF_NEED(name);
    WF_CHECK(strlen(archive->group) + strlen(name) < PATH, WF_ERR_ARGUMENT, "the path %s%s is longer than %d bytes",
             archive->group, name, (int)PATH);
    strcpy(archive->path, archive->group);
    strcat(archive->path, name);
    return WF_OK;
}

const char *wf_archive_path(wf_archive *archive, const char *name)
{
    return make_path(archive, name) == WF_OK ? archive->path : "";
}

wf_status wf_archive_tensor(wf_archive *archive, const char *name, wf_tensor *tensor)
{
    WF_NEED(tensor);
    WF_TRY(make_path(archive, name));
    return archive->ops->tensor(archive, archive->path, tensor);
}

wf_status wf_archive_part(wf_archive *archive, const char *name, wf_tensor *tensor, wf_archive_place place)
{
    char text[2][WF_SHAPE_TEXT];
    WF_NEED(tensor);
    WF_TRY(make_path(archive, name));
    const wf_shape part = wf_box_shape(place.box), shape = wf_tensor_shape(tensor);
    WF_CHECK(wf_shape_equal(part, shape), WF_ERR_SHAPE, "%s is %s, its place in the whole is %s", archive->path,
             wf_shape_text(shape, text[0]), wf_shape_text(part, text[1]));
    /* An archive of one rank stores the part under the path, as if it were a tensor of its own. */
    if (!archive->ops->part)
        return archive->ops->tensor(archive, archive->path, tensor);
    return archive->ops->part(archive, archive->path, tensor, &place);
}

bool wf_archive_has(wf_archive *archive, const char *name)
{
    /* While saving everything is there: visitors ask only to skip what an older archive does not hold. */
    if (!archive || !archive->loading)
        return archive != NULL;
    return make_path(archive, name) == WF_OK && archive->ops->has(archive, archive->path);
}

wf_status wf_archive_i64(wf_archive *archive, const char *name, int64_t *value)
{
    WF_NEED(value);
    WF_TRY(make_path(archive, name));
    return archive->ops->i64(archive, archive->path, value);
}

wf_status wf_archive_f64(wf_archive *archive, const char *name, double *value)
{
    WF_NEED(value);
    WF_TRY(make_path(archive, name));
    return archive->ops->f64(archive, archive->path, value);
}
