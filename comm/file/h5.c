/* Opening, closing and walking HDF5 files; the one lock. Callers are the writers and readers of checkpoints and the h5
 * tool. Nothing in comm/file knows tensors or ranks. */
#include "comm/file/file_impl.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* HDF5 is not safe for several threads unless it was built so, and its printer of errors is global state of the
 * program. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static H5E_auto2_t printer; /* the program's own, while we hold the lock */
static void *printer_data;

void wf_h5_lock(void)
{
    pthread_mutex_lock(&lock);
    H5Eget_auto2(H5E_DEFAULT, &printer, &printer_data);
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
}

void wf_h5_unlock(void)
{
    H5Eset_auto2(H5E_DEFAULT, printer, printer_data);
    pthread_mutex_unlock(&lock);
}

static herr_t first_reason(unsigned n, const H5E_error2_t *error, void *reason)
{
    if (n == 0)
        snprintf(reason, 160, "%s", error->desc ? error->desc : "");
    return 0;
}

wf_status wf_h5_failed(wf_status code, const wf_h5 *file, const char *what, const char *name)
{
    char reason[160] = "";
    H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, first_reason, reason);
    H5Eclear2(H5E_DEFAULT);
    WF_FAIL(code, "%s: cannot %s%s%s%s%s", file->path, what, *name ? " " : "", name, *reason ? ": " : "", reason);
}

/* Plain malloc, without a context: the thread that writes a checkpoint opens files, too. */
static wf_h5 *file_new(const char *path, bool writes)
{
    wf_h5 *file = malloc(sizeof *file);
    char *copy = strdup(path);
    if (file && copy) {
        *file = (wf_h5){.id = -1, .path = copy, .writes = writes};
        return file;
    }
    free(file);
    free(copy);
    WF_FAIL_NULL(WF_ERR_MEMORY, "%s: no memory to open it", path);
}

static void file_free(wf_h5 *file)
{
    free(file->path);
    free(file);
}

static void make_file(wf_h5 *file)
{
    const hid_t access = H5Pcreate(H5P_FILE_ACCESS), creation = H5Pcreate(H5P_FILE_CREATE);
    /* Elements begin at a multiple of 64 bytes, for readers that go past the library. The lower bound of the version
     * keeps the files readable by old libraries. */
    if (H5Pset_alignment(access, 1, 64) >= 0 && H5Pset_fclose_degree(access, H5F_CLOSE_STRONG) >= 0 &&
        H5Pset_libver_bounds(access, H5F_LIBVER_EARLIEST, H5F_LIBVER_LATEST) >= 0 &&
        H5Pset_obj_track_times(creation, false) >= 0)
        file->id = H5Fcreate(file->path, H5F_ACC_TRUNC, creation, access);
    H5Pclose(access);
    H5Pclose(creation);
}

static void open_to_read(wf_h5 *file)
{
    const hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    if (H5Pset_fclose_degree(access, H5F_CLOSE_STRONG) >= 0)
        file->id = H5Fopen(file->path, H5F_ACC_RDONLY, access);
    H5Pclose(access);
}

static wf_h5 *file_at(const char *path, bool writes)
{
    wf_h5 *file = file_new(path, writes);
    if (!file)
        return NULL;
    wf_h5_lock();
    (writes ? make_file : open_to_read)(file);
    if (file->id < 0)
        wf_h5_failed(writes ? WF_ERR_IO : WF_ERR_FORMAT, file, writes ? "create this file" : "open it as an HDF5 file",
                     "");
    wf_h5_unlock();
    if (file->id >= 0)
        return file;
    file_free(file);
    return wf_error_null();
}

wf_h5 *wf_h5_create(const char *path)
{
    WF_CHECK_NULL(path, WF_ERR_ARGUMENT, "the name of a file to create is NULL");
    return file_at(path, true);
}

wf_h5 *wf_h5_open(const char *path)
{
    WF_CHECK_NULL(path, WF_ERR_ARGUMENT, "the name of a file to open is NULL");
    WF_CHECK_NULL(access(path, R_OK) == 0, WF_ERR_IO, "%s: cannot read this file: %s", path, strerror(errno));
    return file_at(path, false);
}

wf_status wf_h5_close(wf_h5 *file)
{
    if (!file)
        return WF_OK;
    wf_h5_lock();
    const herr_t closed = H5Fclose(file->id);
    const wf_status status = closed >= 0 ? WF_OK : wf_h5_failed(WF_ERR_IO, file, "end this file", "");
    wf_h5_unlock();
    file_free(file);
    return status;
}

/* --- Walking ------------------------------------------------------------------------------------------------------ */

typedef struct names {
    char **name;
    size_t n, room;
} names;

static herr_t note(hid_t group, const char *name, const H5O_info_t *info, void *user)
{
    names *all = user;
    if (info->type != H5O_TYPE_DATASET)
        return 0;
    if (all->n == all->room) {
        const size_t room = all->room ? 2 * all->room : 64;
        char **longer = realloc(all->name, room * sizeof *longer);
        if (!longer)
            return -1;
        all->name = longer;
        all->room = room;
    }
    all->name[all->n] = strdup(name);
    return all->name[all->n++] ? 0 : -1;
}

/* Names are noted first and visited after the lock is released: the visitor opens data sets itself, which takes the
 * lock. */
wf_status wf_h5_each(wf_h5 *file, wf_h5_visit visit, void *user)
{
    names all = {0};
    WF_NEED(file);
    wf_h5_lock();
    wf_status status = WF_OK;
    if (H5Ovisit2(file->id, H5_INDEX_NAME, H5_ITER_INC, note, &all, H5O_INFO_BASIC) < 0)
        status = wf_h5_failed(WF_ERR_FORMAT, file, "list what is in it", "");
    wf_h5_unlock();
    for (size_t i = 0; i < all.n; i++) {
        if (status == WF_OK)
            status = visit(user, file, all.name[i]);
        free(all.name[i]);
    }
    free(all.name);
    return status;
}

/* --- Texts -------------------------------------------------------------------------------------------------------- */

static bool write_text(hid_t file, const char *name, const char *text)
{
    const hid_t type = H5Tcopy(H5T_C_S1), space = H5Screate(H5S_SCALAR);
    hid_t attribute = -1;
    if (H5Tset_size(type, strlen(text) + 1) >= 0)
        attribute = H5Acreate2(file, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
    const bool written = attribute >= 0 && H5Awrite(attribute, type, text) >= 0;
    if (attribute >= 0)
        H5Aclose(attribute);
    H5Sclose(space);
    H5Tclose(type);
    return written;
}

wf_status wf_h5_set_text(wf_h5 *file, const char *name, const char *text)
{
    WF_NEED(file);
    wf_h5_lock();
    const wf_status status =
        write_text(file->id, name, text) ? WF_OK : wf_h5_failed(WF_ERR_IO, file, "write the attribute", name);
    wf_h5_unlock();
    return status;
}

static bool read_text(hid_t file, const char *name, char *text, size_t size)
{
    const hid_t attribute = H5Aopen(file, name, H5P_DEFAULT);
    if (attribute < 0)
        return false;
    const hid_t type = H5Aget_type(attribute), memory = H5Tcopy(H5T_C_S1), space = H5Aget_space(attribute);
    bool read = H5Tget_class(type) == H5T_STRING && H5Tis_variable_str(type) == 0 &&
                H5Sget_simple_extent_npoints(space) == 1 && H5Tset_size(memory, size) >= 0 &&
                H5Aread(attribute, memory, text) >= 0;
    text[size - 1] = '\0';
    H5Sclose(space);
    H5Tclose(memory);
    H5Tclose(type);
    H5Aclose(attribute);
    return read;
}

wf_status wf_h5_get_text(wf_h5 *file, const char *name, char *text, size_t size)
{
    WF_NEED(file);
    memset(text, 0, size);
    wf_h5_lock();
    wf_status status = WF_OK;
    if (H5Aexists(file->id, name) > 0 && !read_text(file->id, name, text, size))
        status = wf_h5_failed(WF_ERR_FORMAT, file, "read as a text the attribute", name);
    wf_h5_unlock();
    return status;
}
