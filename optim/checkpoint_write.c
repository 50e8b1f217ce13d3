/* Second part of a save: the file. HDF5 makes its layout once; files of equal layout differ in their elements alone,
 * so the bytes between these are kept and written again. It may run in a thread and never calls MPI there. */
#include "optim/checkpoint_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Bytes that are handed to the disk at a time: large enough for its throughput, small enough to begin early. */
#define WRITE_BACK ((int64_t)8 << 20) /* bytes */

/* --- Layout ------------------------------------------------------------------------------------------------------- */

/* A layout is good for one set of names, types and shapes; it is made again if c->layout changes. */
void wf_checkpoint_drop_layout(wf_checkpoint *c)
{
    for (int64_t i = 0; i < c->n_gaps; i++)
        free(c->gap[i].data);
    free(c->gap);
    free(c->offset);
    c->gap = NULL;
    c->offset = NULL;
    c->n_gaps = 0;
    c->laid = 0;
}

/* All data sets are made before any offset is asked for: the library places them one after the other. */
static wf_status add_all(wf_checkpoint *c, wf_h5 *file)
{
    const wf_manifest *m = &c->manifest;
    for (int64_t i = 0; i < m->n; i++)
        WF_TRY(wf_h5_add(file, m->entry[i].name, m->entry[i].dtype, m->entry[i].shape));
    for (int64_t i = 0; i < m->n; i++) {
        wf_h5_info info;
        WF_TRY(wf_h5_stat(file, m->entry[i].name, &info));
        c->offset[i] = info.contiguous ? info.offset : 0;
        /* Contiguous data sets have one place in the file; HDF5 gives none to those without elements. */
        WF_CHECK(info.contiguous || wf_shape_count(m->entry[i].shape) == 0, WF_ERR_IO, "%s: %s has no place in it",
                 c->temporary, m->entry[i].name);
    }
    return WF_OK;
}

static int by_offset(const void *a, const void *b)
{
    const wf_checkpoint_gap *x = a, *y = b;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* The gaps hold HDF5's own structures. They are the same in every file of this layout, so later files are written
 * without HDF5. */
static wf_status read_gap(const wf_checkpoint *c, int file, wf_checkpoint_gap *gap)
{
    gap->data = malloc((size_t)gap->bytes);
    WF_CHECK(gap->data, WF_ERR_MEMORY, "no memory for %lld bytes of a file's layout", (long long)gap->bytes);
    WF_CHECK(pread(file, gap->data, (size_t)gap->bytes, gap->offset) == gap->bytes, WF_ERR_IO, "%s: cannot read: %s",
             c->temporary, strerror(errno));
    return WF_OK;
}

/* What lies between the data sets; `set` has their places, ascending, and room for one more. */
static wf_status read_gaps(wf_checkpoint *c, int file, int64_t n, wf_checkpoint_gap *set)
{
    int64_t at = 0;
    /* The end of the file closes the last gap. */
    set[n] = (wf_checkpoint_gap){.offset = c->laid_bytes};
    c->gap = wf_calloc(c->ctx, (size_t)n + 1, sizeof *c->gap);
    if (!c->gap)
        return wf_error_code();
    for (int64_t i = 0; i <= n; i++) {
        if (set[i].offset > at) {
            c->gap[c->n_gaps++] = (wf_checkpoint_gap){.offset = at, .bytes = set[i].offset - at};
            WF_TRY(read_gap(c, file, &c->gap[c->n_gaps - 1]));
        }
        at = set[i].offset + set[i].bytes;
    }
    return WF_OK;
}

static wf_status find_gaps(wf_checkpoint *c, int file)
{
    struct stat info;
    int64_t n = 0;
    const wf_manifest *m = &c->manifest;
    WF_CHECK(fstat(file, &info) == 0, WF_ERR_IO, "%s: cannot look at it: %s", c->temporary, strerror(errno));
    c->laid_bytes = info.st_size;
    wf_checkpoint_gap *set = wf_calloc(c->ctx, (size_t)m->n + 1, sizeof *set);
    if (!set)
        return wf_error_code();
    for (int64_t i = 0; i < m->n; i++) {
        const int64_t bytes = wf_shape_count(m->entry[i].shape) * (int64_t)wf_dtype_size(m->entry[i].dtype);
        if (bytes > 0)
            set[n++] = (wf_checkpoint_gap){.offset = c->offset[i], .bytes = bytes};
    }
    /* HDF5 need not place data sets in the order in which they were made. */
    qsort(set, (size_t)n, sizeof *set, by_offset);
    const wf_status status = read_gaps(c, file, n, set);
    free(set);
    return status;
}

/* The first failure says why, not those that follow from it. What cannot be asked of a file that is being written is a
 * failure to write, which does not end a run. */
static wf_status lay_out_h5(wf_checkpoint *c)
{
    char message[512];
    wf_h5 *h5 = wf_h5_create(c->temporary);
    WF_NEED(h5);
    wf_status status = wf_h5_set_text(h5, NULL, "weft", "checkpoint 1");
    if (status == WF_OK)
        status = add_all(c, h5);
    if (status == WF_OK)
        return wf_h5_close(h5);
    wf_error_save(&status, message, sizeof message);
    if (wf_h5_close(h5) != WF_OK)
        wf_error_clear();
    WF_FAIL(status == WF_ERR_FORMAT ? WF_ERR_IO : status, "%s", message);
}

static wf_status make_layout(wf_checkpoint *c)
{
    WF_TRY(lay_out_h5(c));
    const int file = open(c->temporary, O_RDONLY | O_CLOEXEC);
    WF_CHECK(file >= 0, WF_ERR_IO, "%s: cannot open: %s", c->temporary, strerror(errno));
    const wf_status status = find_gaps(c, file);
    close(file);
    return status;
}

/* Rank 0 makes the file with HDF5; the others need the places of elements only. */
static wf_status renew_layout(wf_checkpoint *c)
{
    wf_checkpoint_drop_layout(c);
    c->offset = wf_calloc(c->ctx, (size_t)c->manifest.n + 1, sizeof *c->offset);
    WF_TRY(wf_agree_status(c->comm, c->offset ? WF_OK : wf_error_code()));
    WF_TRY(wf_bcast_status(c->comm, c->rank == 0 ? make_layout(c) : WF_OK, 0));
    WF_TRY(wf_bcast_bytes(c->comm, c->offset, (size_t)c->manifest.n * sizeof *c->offset, 0));
    WF_TRY(wf_bcast_bytes(c->comm, &c->laid_bytes, sizeof c->laid_bytes, 0));
    c->laid = c->layout;
    return WF_OK;
}

/* A file that did not exist, which no other job writes. */
static wf_status make_file(const wf_checkpoint *c)
{
    const int file = open(c->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    WF_CHECK(file >= 0, WF_ERR_IO, "%s: cannot make this file: %s", c->temporary, strerror(errno));
    close(file);
    /* From here the layout counts as made. */
    return WF_OK;
}

static wf_status lay_out_file(wf_checkpoint *c)
{
    wf_manifest *m = &c->manifest;
    /* Equal layouts are the usual case: this costs nothing after the first save. */
    if (c->laid != c->layout)
        WF_TRY(renew_layout(c));
    for (int64_t i = 0; i < m->n; i++)
        m->entry[i].offset = c->offset[i];
    m->bytes = c->laid_bytes;
    /* Sums of blocks, and one number more: the bytes of elements that were written. */
    m->blocks = m->bytes / WF_FILE_BLOCK + (m->bytes % WF_FILE_BLOCK > 0);
    m->sums = wf_calloc(c->ctx, (size_t)m->blocks + 1, sizeof *m->sums);
    return wf_agree_status(c->comm, m->sums ? WF_OK : wf_error_code());
}

/* Collective. After it each rank knows where its pieces go, and the rest may be done by a thread. */
wf_status wf_checkpoint_lay_out(wf_checkpoint *c)
{
    wf_manifest *m = &c->manifest;
    wf_checkpoint_folder_settle(c); /* there is room for what is written */
    WF_TRY(wf_checkpoint_folder_hold(c));
    /* Numbers only grow, so a file is never replaced by another. */
    WF_CHECK(c->newest < INT64_MAX, WF_ERR_STATE, "%s: after generation %lld there is no number for another one",
             c->folder, (long long)c->newest);
    m->generation = c->newest + 1;
    wf_checkpoint_folder_path(c, m->generation, ".tmp", c->temporary);
    wf_checkpoint_folder_path(c, m->generation, "", c->path);
    WF_TRY(wf_bcast_status(c->comm, c->rank == 0 ? make_file(c) : WF_OK, 0));
    const wf_status status = lay_out_file(c);
    /* Nothing of a failed attempt stays in the folder. */
    if (status != WF_OK && c->rank == 0)
        unlink(c->temporary);
    return status;
}

/* --- Writing: no call of MPI from here on, nor of the pool ---------------------------------------------------------
 */

typedef struct writing {
    wf_checkpoint *c;
    int file;
    const unsigned char *data;
    int64_t offset; /* of the entry */
    int64_t size;   /* of an element */
} writing;

/* The disk begins with what is written while the rest is copied. Only whole pieces that are complete: a started piece
 * would be written twice. */
static void write_back(const writing *w, int64_t offset, int64_t bytes)
{
    const int64_t from = offset / WRITE_BACK * WRITE_BACK, to = (offset + bytes) / WRITE_BACK * WRITE_BACK;
    if (to > from)
        sync_file_range(w->file, from, to - from, SYNC_FILE_RANGE_WRITE);
}

/* Checksums are computed block by block while the data is in the cache. Blocks that two ranks write in part are sums of
 * both parts, so the ranks' numbers are added. */
static wf_status write_bytes(const writing *w, const unsigned char *data, int64_t bytes, int64_t offset)
{
    while (bytes > 0) {
        /* Never across a block, so a sum belongs to one. */
        const int64_t room = WF_FILE_BLOCK - offset % WF_FILE_BLOCK;
        const ssize_t n = pwrite(w->file, data, (size_t)(bytes < room ? bytes : room), offset);
        if (n < 0 && errno == EINTR)
            continue;
        /* A short write is continued; 0 bytes mean that the disk is full. */
        WF_CHECK(n > 0, WF_ERR_IO, "%s: cannot write: %s", w->c->temporary, strerror(n < 0 ? errno : ENOSPC));
        wf_file_sums(w->c->manifest.sums, 0, offset, data, n);
        write_back(w, offset, n);
        data += n;
        offset += n;
        bytes -= n;
    }
    return WF_OK;
}

/* A run of elements that is contiguous in the file and in this rank's box. */
static wf_status write_run(void *user, int64_t in_array, int64_t in_box, int64_t count)
{
    const writing *w = user;
    return write_bytes(w, w->data + in_box * w->size, count * w->size, w->offset + in_array * w->size);
}

/* Below "ranks", a rank that has a part of a tensor writes that part alone of what it would have of all. */
static bool has_holes(const wf_manifest_entry *e)
{
    return strncmp(e->name, "ranks/", 6) == 0;
}

static int64_t bytes_of(const wf_manifest_entry *e, wf_shape shape)
{
    return has_holes(e) ? 0 : wf_shape_count(shape) * (int64_t)wf_dtype_size(e->dtype);
}

static wf_status write_pieces(wf_checkpoint *c, int file)
{
    for (int64_t i = 0; i < c->n_pieces; i++) {
        const wf_checkpoint_piece *p = &c->piece[i];
        const wf_manifest_entry *e = &c->manifest.entry[p->entry];
        /* A piece is in the stage, or, without a thread, where the tensor has it. */
        const unsigned char *data = p->view ? p->view->data : c->stage + p->at;
        writing w = {c, file, data, e->offset, (int64_t)wf_dtype_size(e->dtype)};
        WF_TRY(wf_box_runs(e->shape, p->box, write_run, &w));
        c->manifest.sums[c->manifest.blocks] += (uint64_t)bytes_of(e, wf_box_shape(p->box));
    }
    /* Rank 0 has the gaps; the others have none. */
    const writing w = {.c = c, .file = file};
    for (int64_t i = 0; i < c->n_gaps; i++)
        WF_TRY(write_bytes(&w, c->gap[i].data, c->gap[i].bytes, c->gap[i].offset));
    return WF_OK;
}

static wf_status write_own(wf_checkpoint *c)
{
    const int file = open(c->temporary, O_RDWR | O_CLOEXEC);
    WF_CHECK(file >= 0, WF_ERR_IO, "%s: cannot open this file: %s", c->temporary, strerror(errno));
    wf_status status = write_pieces(c, file);
    /* Data before name: a file that has its name is whole on disk. */
    if (status == WF_OK && fsync(file) != 0)
        status = WF_RAISE(WF_ERR_IO, "%s: cannot bring it to disk: %s", c->temporary, strerror(errno));
    if (close(file) != 0 && status == WF_OK)
        status = WF_RAISE(WF_ERR_IO, "%s: cannot end it: %s", c->temporary, strerror(errno));
    return status;
}

/* The thread writes nothing but these fields, and `done` last. */
static void *work(void *argument)
{
    wf_checkpoint *c = argument;
    c->job_status = write_own(c);
    if (c->job_status != WF_OK)
        wf_error_save(&c->job_status, c->job_message, sizeof c->job_message);
    atomic_store(&c->done, true);
    return NULL;
}

void wf_checkpoint_write(wf_checkpoint *c)
{
    atomic_store(&c->done, false);
    c->pending = true;
    /* A thread that cannot be made is no failure: the program waits instead. */
    c->threaded = c->opts.async && wf_checkpoint_thread(&c->thread, work, c);
    if (!c->threaded)
        work(c);
}

/* --- The end ------------------------------------------------------------------------------------------------------ */

/* A link, unlike a rename, replaces no file that another job made. */
static wf_status give_name(const wf_checkpoint *c)
{
    WF_TRY(wf_file_sync(c->temporary));
    if (link(c->temporary, c->path) == 0) {
        unlink(c->temporary);
        return wf_folder_sync(c->folder);
    }
    WF_CHECK(errno != EEXIST, WF_ERR_IO, "%s: another job has made this file", c->path);
    return wf_file_commit(c->temporary, c->path); /* a file system without links */
}

/* The manifest is the last part of the file: without it no reader takes the file. */
static wf_status name_it(wf_checkpoint *c)
{
    const int file = open(c->temporary, O_RDWR | O_CLOEXEC);
    WF_CHECK(file >= 0, WF_ERR_IO, "%s: cannot open: %s", c->temporary, strerror(errno));
    wf_status status = WF_OK;
    if (ftruncate(file, c->manifest.bytes) != 0)
        status = WF_RAISE(WF_ERR_IO, "%s: cannot set its length: %s", c->temporary, strerror(errno));
    if (status == WF_OK)
        status = wf_manifest_write(file, c->temporary, &c->manifest);
    if (close(file) != 0 && status == WF_OK)
        status = WF_RAISE(WF_ERR_IO, "%s: cannot end it: %s", c->temporary, strerror(errno));
    return status == WF_OK ? give_name(c) : status;
}

/* Every element is one rank's: no file gets its name in which one was left out, or written twice. How many bytes were
 * written comes behind the sums of the blocks. */
static wf_status check_written(const wf_checkpoint *c)
{
    const wf_manifest *m = &c->manifest;
    const int64_t written = (int64_t)m->sums[m->blocks];
    int64_t bytes = 0;
    for (int64_t i = 0; i < m->n; i++)
        bytes += bytes_of(&m->entry[i], m->entry[i].shape);
    WF_CHECK(written == bytes, WF_ERR_STATE, "%s: the ranks wrote %lld bytes of elements, should be %lld", c->temporary,
             (long long)written, (long long)bytes);
    return WF_OK;
}

/* The reduction adds checksums of blocks that several ranks wrote. */
static wf_status commit(wf_checkpoint *c)
{
    const wf_manifest *m = &c->manifest;
    WF_TRY(wf_agree_status(c->comm, c->job_status == WF_OK ? WF_OK : WF_RAISE(c->job_status, "%s", c->job_message)));
    WF_TRY(wf_allreduce_i64(c->comm, (int64_t *)m->sums, m->blocks + 1, WF_SUM));
    WF_TRY(check_written(c));
    return wf_bcast_status(c->comm, c->rank == 0 ? name_it(c) : WF_OK, 0);
}

/* Collective: all ranks come here in the same call. */
wf_status wf_checkpoint_finish(wf_checkpoint *c)
{
    if (!c->pending)
        return WF_OK;
    if (c->threaded)
        pthread_join(c->thread, NULL);
    c->pending = false;
    /* Views of tensors are let go before any message, so that the next step does not wait for it. */
    wf_checkpoint_release(c);
    const wf_status status = commit(c);
    if (status != WF_OK) {
        if (c->rank == 0)
            unlink(c->temporary);
        return status;
    }
    c->generation = c->newest = c->manifest.generation;
    if (c->rank == 0)
        wf_checkpoint_folder_prune(c);
    return WF_OK;
}
