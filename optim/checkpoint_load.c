/* Loading: finds the newest generation that is whole on all ranks, and loads it. Nothing is taken from a file before
 * its manifest and checksums are verified. */
#include "core/log.h"
#include "optim/checkpoint_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- The archive -------------------------------------------------------------------------------------------------- */

/* All ranks have the same manifest, so what is raised here is the same error on all of them. Nothing has been read
 * yet. */
static wf_status find_entry(wf_checkpoint *c, const char *path, wf_dtype dtype, wf_shape shape,
                            const wf_manifest_entry **entry)
{
    char text[2][WF_SHAPE_TEXT];
    const wf_manifest_entry *e = *entry = wf_manifest_find(&c->manifest, path);
    WF_CHECK(e, WF_ERR_FORMAT, "%s: %s is not in it", c->file, path);
    WF_CHECK(e->dtype == dtype && wf_shape_equal(e->shape, shape), WF_ERR_FORMAT,
             "%s: %s is %s %s in it, should be %s %s", c->file, path, wf_dtype_name(e->dtype),
             wf_shape_text(e->shape, text[0]), wf_dtype_name(dtype), wf_shape_text(shape, text[1]));
    return WF_OK;
}

/* Read into host memory and imported from there, since the tensor may be on a device or in another order. */
static wf_status import(wf_checkpoint *c, const wf_manifest_entry *entry, wf_box box, wf_tensor *tensor)
{
    void *host;
    const size_t bytes = wf_tensor_bytes(tensor);
    WF_TRY(wf_host_take(c->comm, bytes, &host));
    wf_status status = bytes > 0 ? wf_manifest_read_box(&c->reader, entry, box, host) : WF_OK;
    if (status == WF_OK)
        status = wf_tensor_import(tensor, host, bytes);
    /* Memory of the host stays in the pool for the next tensor. */
    wf_host_give(c->comm, host, bytes);
    return status;
}

/* A failure to read is kept until all ranks have visited everything: see wf_checkpoint_keep. */
static wf_status load_tensor(wf_archive *archive, const char *path, wf_tensor *tensor)
{
    wf_checkpoint *c = wf_archive_state(archive);
    const wf_manifest_entry *entry;
    const wf_shape shape = wf_tensor_shape(tensor);
    WF_TRY(find_entry(c, path, wf_tensor_dtype(tensor), shape, &entry));
    return wf_checkpoint_keep(c, import(c, entry, wf_box_of_shape(shape), tensor));
}

/* Loads this rank's own values, if the same number of ranks saved them. */
static const wf_manifest_entry *own_values(const wf_checkpoint *c, const char *path, const wf_tensor *tensor,
                                           const wf_archive_place *place, wf_box *box)
{
    /* Longer names cannot be in a file, so they need no search. */
    char name[2048];
    const wf_manifest_entry *entry = NULL;
    if (place->varies && snprintf(name, sizeof name, "ranks/%s", path) < (int)sizeof name)
        entry = wf_manifest_find(&c->manifest, name);
    const int rank = wf_comm_rank(wf_checkpoint_over(c)), size = wf_comm_size(wf_checkpoint_over(c));
    if (!entry || entry->shape.rank != place->box.rank + 1 || entry->shape.dim[0] != size ||
        entry->dtype != wf_tensor_dtype(tensor))
        return NULL;
    *box = (wf_box){.rank = entry->shape.rank, .lo = {rank}, .hi = {rank + 1}};
    for (int d = 0; d < place->box.rank; d++) {
        if (entry->shape.dim[d + 1] != place->global.dim[d])
            return NULL;
        box->lo[d + 1] = place->box.lo[d];
        box->hi[d + 1] = place->box.hi[d];
    }
    return entry;
}

static wf_status load_part(wf_archive *archive, const char *path, wf_tensor *tensor, const wf_archive_place *place)
{
    wf_checkpoint *c = wf_archive_state(archive);
    const wf_manifest_entry *entry;
    wf_box box = place->box;
    WF_TRY(find_entry(c, path, wf_tensor_dtype(tensor), place->global, &entry));
    /* Another number of ranks takes the common values: there is no telling whose own ones a rank should have. */
    const wf_manifest_entry *own = own_values(c, path, tensor, place, &box);
    return wf_checkpoint_keep(c, import(c, own ? own : entry, own ? box : place->box, tensor));
}

/* As own_values, for a number. */
static wf_status load_number(wf_checkpoint *c, const char *path, wf_dtype dtype, void *value)
{
    char name[2048];
    const wf_manifest_entry *entry, *own = NULL;
    wf_box box = wf_box_of_shape(wf_shape_scalar());
    WF_TRY(find_entry(c, path, dtype, wf_shape_scalar(), &entry));
    if (snprintf(name, sizeof name, "ranks/%s", path) < (int)sizeof name)
        own = wf_manifest_find(&c->manifest, name);
    if (own && own->dtype == dtype && wf_shape_equal(own->shape, WF_SHAPE(c->size))) {
        box = (wf_box){.rank = 1, .lo = {c->rank}, .hi = {c->rank + 1}};
        entry = own;
    }
    return wf_checkpoint_keep(c, wf_manifest_read_box(&c->reader, entry, box, value));
}

static wf_status load_i64(wf_archive *archive, const char *path, int64_t *value)
{
    return load_number(wf_archive_state(archive), path, WF_I64, value);
}

static wf_status load_f64(wf_archive *archive, const char *path, double *value)
{
    return load_number(wf_archive_state(archive), path, WF_F64, value);
}

/* Looks at the manifest only, so all ranks get the same answer. */
static bool has(wf_archive *archive, const char *path)
{
    const wf_checkpoint *c = wf_archive_state(archive);
    return wf_manifest_find(&c->manifest, path) != NULL;
}

static const wf_archive_ops load_ops = {
    .tensor = load_tensor, .part = load_part, .has = has, .i64 = load_i64, .f64 = load_f64};

/* --- One file ----------------------------------------------------------------------------------------------------- */

/* Divides the blocks among the ranks: each block is verified once, and the sum of them is the whole file. */
static wf_status check_blocks(wf_checkpoint *c)
{
    int64_t bytes;
    for (int64_t b = c->rank; b < c->manifest.blocks; b += c->size)
        WF_TRY(wf_manifest_block(c->reader.file, c->file, &c->manifest, b, c->reader.data, &bytes));
    return WF_OK;
}

/* Opening a pipe would wait for one who writes into it. */
static wf_status open_own(wf_checkpoint *c)
{
    struct stat info;
    /* A named pipe or device in the folder must not stop the run. */
    const int file = open(c->file, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    c->reader = (wf_manifest_reader){.file = file, .path = c->file, .block = -1};
    WF_CHECK(file >= 0, WF_ERR_IO, "%s: cannot read: %s", c->file, strerror(errno));
    WF_CHECK(fstat(file, &info) == 0 && S_ISREG(info.st_mode), WF_ERR_IO, "%s: cannot read: it is not a regular file",
             c->file);
    c->reader.manifest = &c->manifest;
    c->reader.data = malloc((size_t)WF_FILE_BLOCK);
    WF_CHECK(c->reader.data, WF_ERR_MEMORY, "no memory for a block of a file");
    return wf_manifest_read(c->reader.file, c->file, &c->manifest);
}

/* Fails on all ranks unless each finds the file whole and all find the same one. The file may be replaced between two
 * ranks' opening of it, or be on a disk that is not shared. */
static wf_status open_all(wf_checkpoint *c)
{
    wf_checkpoint_keep(c, open_own(c));
    WF_TRY(wf_checkpoint_agree(c));
    int64_t least = (int64_t)c->manifest.hash, most = least;
    WF_TRY(wf_allreduce_i64(c->comm, &least, 1, WF_MIN));
    WF_TRY(wf_allreduce_i64(c->comm, &most, 1, WF_MAX));
    WF_CHECK(least == most, WF_ERR_FORMAT, "%s: the ranks read different files of this name", c->file);
    wf_checkpoint_keep(c, check_blocks(c));
    return wf_checkpoint_agree(c);
}

/* For a file that was opened in part, too. */
static void close_file(wf_checkpoint *c)
{
    if (c->reader.file >= 0)
        close(c->reader.file);
    free(c->reader.data);
    c->reader = (wf_manifest_reader){.file = -1};
    wf_checkpoint_forget(c);
}

/* The list of entries has the file's until close_file; *damaged: another file may be better. */
static wf_status load_one(wf_checkpoint *c, int64_t *step, bool *damaged)
{
    int64_t saved = 0;
    /* Until the file is verified a failure may be due to damage; a wrong shape after that is the program's. */
    *damaged = true;
    WF_TRY(open_all(c));
    wf_archive *archive = wf_archive_new(c->ctx, &load_ops, true, c);
    *damaged = false;
    WF_NEED(archive);
    const wf_status status = wf_checkpoint_visit(c, archive, &saved);
    wf_archive_free(archive);
    if (status != WF_OK) {
        /* Every rank has this error; those that were kept follow from it. */
        c->status = WF_OK;
        return status;
    }
    *damaged = true;
    WF_TRY(wf_checkpoint_agree(c));
    *damaged = false;
    *step = saved;
    return WF_OK;
}

/* Manifests are large, so only one is held at a time. */
static wf_status load_generation(wf_checkpoint *c, int64_t generation, int64_t *step, bool *damaged)
{
    char message[512];
    wf_checkpoint_forget(c);
    free(c->manifest.entry);
    c->manifest = (wf_manifest){0};
    c->entries_room = 0;
    wf_checkpoint_folder_path(c, generation, "", c->file);
    wf_status status = load_one(c, step, damaged);
    if (status != WF_OK)
        wf_error_save(&status, message, sizeof message);
    close_file(c);
    free(c->manifest.entry);
    c->manifest = (wf_manifest){0};
    if (status == WF_OK)
        return WF_OK;
    WF_FAIL(status, "%s", message);
}

/* From the newest on. Ranks stay in step, since all get the same verdict on each file. */
static wf_status load_any(wf_checkpoint *c, int64_t n, const int64_t *list, int64_t *step)
{
    wf_status status = WF_OK;
    for (int64_t i = 0; i < n; i++) {
        bool damaged = false;
        status = load_generation(c, list[i], step, &damaged);
        if (status == WF_OK) {
            c->generation = list[i];
            return WF_OK;
        }
        /* A rank is gone: the others must not go on to the next file. */
        WF_TRY(wf_comm_alive(c->comm));
        if (!damaged)
            return status;
        wf_checkpoint_folder_note_damage(c, list[i]);
        if (c->rank == 0)
            wf_log_write(WF_LOG_WARN, "%s; %s", wf_error_message(),
                         i + 1 < n ? "the generation before is tried" : "there is none before");
    }
    return status;
}

/* The generations of now. *newest is -1 where there is none. */
static wf_status load_listed(wf_checkpoint *c, int64_t *step, int64_t *newest)
{
    int64_t n, *list;
    wf_status status = wf_checkpoint_folder_list(c, &n, &list);
    if (status == WF_OK) {
        *newest = n > 0 ? list[0] : -1;
        status = load_any(c, n, list, step);
    }
    free(list);
    return status;
}

/* Keeps the error that there is, if there is nothing newer to try. */
static bool is_newer(wf_checkpoint *c, int64_t newest)
{
    char message[512];
    wf_status status = wf_error_code();
    int64_t n, *list;
    wf_error_save(&status, message, sizeof message);
    const bool newer = wf_checkpoint_folder_list(c, &n, &list) == WF_OK && n > 0 && list[0] > newest;
    free(list);
    WF_RAISE(status, "%s", message);
    return newer;
}

/* Another job that saves may remove the files that were listed before all ranks have opened them; there is a newer one
 * then. */
wf_status wf_checkpoint_load_latest(wf_checkpoint *checkpoint, int64_t *step)
{
    int64_t newest = -1;
    wf_status status;
    wf_checkpoint *c = checkpoint;
    WF_NEED(c);
    WF_NEED(step);
    WF_TRY(wf_checkpoint_finish(c));
    WF_TRY(wf_checkpoint_find_parts(c));
    do {
        status = load_listed(c, step, &newest);
    } while (status != WF_OK && wf_comm_alive(c->comm) == WF_OK && is_newer(c, newest));
    if (status == WF_OK)
        wf_error_clear();
    return status;
}
