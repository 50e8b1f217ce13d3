/* An archive in host memory: a list of entries, found by path. Tests, the broadcast of a model and copies of a state
 * use it. It never converts: shape and type must be those that were saved. */
#include "core/archive_author.h"
#include "core/context_author.h"

#include <stdlib.h>
#include <string.h>

typedef struct entry {
    struct entry *next;
    char *path;
    wf_dtype dtype;
    wf_shape shape;
    size_t bytes;
    void *data;
} entry;

typedef struct memory {
    wf_ctx *ctx;
    entry *first, *last;
} memory;

static void entry_free(entry *e)
{
    free(e->path);
    free(e->data);
    free(e);
}

static wf_status entry_new(memory *m, const char *path, wf_dtype dtype, wf_shape shape, entry **out)
{
    /* A search from the front for each entry: an archive has hundreds of entries, saved once and loaded once. */
    for (const entry *e = m->first; e; e = e->next)
        WF_CHECK(strcmp(e->path, path) != 0, WF_ERR_STATE, "%s is saved twice", path);
    entry *e = wf_calloc(m->ctx, 1, sizeof *e);
    WF_NEED(e);
    e->dtype = dtype;
    e->shape = shape;
    e->bytes = (size_t)wf_shape_count(shape) * wf_dtype_size(dtype);
    e->path = wf_strdup(m->ctx, path);
    e->data = wf_malloc(m->ctx, e->bytes);
    if (!e->path || !e->data) {
        entry_free(e);
        return WF_RAISE(WF_ERR_MEMORY, "no memory to keep %s", path);
    }
    /* At the end, in the order of saving: an archive is compared and printed in it. */
    if (m->last)
        m->last->next = e;
    else
        m->first = e;
    m->last = e;
    *out = e;
    return WF_OK;
}

/* A layout may have changed, shape and type may not: the caller learns which entry is at fault, and how. */
static wf_status entry_find(const memory *m, const char *path, wf_dtype dtype, wf_shape shape, entry **out)
{
    char text[2][WF_SHAPE_TEXT];
    for (entry *e = m->first; e; e = e->next) {
        if (strcmp(e->path, path) != 0)
            continue;
        WF_CHECK(e->dtype == dtype && wf_shape_equal(e->shape, shape), WF_ERR_FORMAT,
                 "%s is %s %s in the archive, should be %s %s", path, wf_dtype_name(e->dtype),
                 wf_shape_text(e->shape, text[0]), wf_dtype_name(dtype), wf_shape_text(shape, text[1]));
        *out = e;
        return WF_OK;
    }
    WF_FAIL(WF_ERR_FORMAT, "%s is not in the archive", path);
}

/* The values are copied to the host at once, so that the tensor may change or go. */
static wf_status visit_tensor(wf_archive *archive, const char *path, wf_tensor *tensor)
{
    memory *m = wf_archive_state(archive);
    entry *e = NULL;
    const wf_shape shape = wf_tensor_shape(tensor);
    const wf_dtype dtype = wf_tensor_dtype(tensor);
    if (wf_archive_loading(archive)) {
        WF_TRY(entry_find(m, path, dtype, shape, &e));
        return wf_tensor_import(tensor, e->data, e->bytes);
    }
    WF_TRY(entry_new(m, path, dtype, shape, &e));
    return wf_tensor_export(tensor, e->data, e->bytes);
}

/* Numbers are scalars of the same list, so that wf_archive_has and the check for double names hold for them too. */
static wf_status visit_number(wf_archive *archive, const char *path, wf_dtype dtype, void *value)
{
    memory *m = wf_archive_state(archive);
    entry *e = NULL;
    if (wf_archive_loading(archive)) {
        WF_TRY(entry_find(m, path, dtype, wf_shape_scalar(), &e));
        memcpy(value, e->data, e->bytes);
        return WF_OK;
    }
    WF_TRY(entry_new(m, path, dtype, wf_shape_scalar(), &e));
    memcpy(e->data, value, e->bytes);
    return WF_OK;
}

static wf_status visit_i64(wf_archive *archive, const char *path, int64_t *value)
{
    return visit_number(archive, path, WF_I64, value);
}

static wf_status visit_f64(wf_archive *archive, const char *path, double *value)
{
    return visit_number(archive, path, WF_F64, value);
}

static bool visit_has(wf_archive *archive, const char *path)
{
    const memory *m = wf_archive_state(archive);
    for (const entry *e = m->first; e; e = e->next)
        if (strcmp(e->path, path) == 0)
            return true;
    return false;
}

static void free_memory(wf_archive *archive)
{
    memory *m = wf_archive_state(archive);
    for (entry *e = m->first, *next; e; e = next) {
        next = e->next;
        entry_free(e);
    }
    free(m);
}

static const wf_archive_ops memory_ops = {
    .tensor = visit_tensor, .has = visit_has, .i64 = visit_i64, .f64 = visit_f64, .free = free_memory};

/* Writes first; wf_archive_memory_rewind makes it readable, as often as wanted. */
wf_archive *wf_archive_memory(wf_ctx *ctx)
{
    WF_NEED_NULL(ctx);
    memory *m = wf_calloc(ctx, 1, sizeof *m);
    if (!m)
        return wf_error_null();
    m->ctx = ctx;
    wf_archive *archive = wf_archive_new(ctx, &memory_ops, false, m);
    if (!archive)
        free(m);
    return archive;
}

/* Nothing is moved: entries are found by path, so reading needs no place to start from. */
wf_status wf_archive_memory_rewind(wf_archive *archive)
{
    WF_NEED(archive);
    wf_archive_set_loading(archive, true);
    return WF_OK;
}
