/* Opening, closing and walking HDF5 files; the one lock. Callers are the writers and readers of checkpoints and the h5
 * tool. Nothing in comm/file knows tensors or ranks. */
#include "comm/file/file_impl.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* HDF5 is not safe for several threads unless it was built so, and its printer of errors is global state of the
 * program. Threads of one program that use HDF5 past this file are not held off. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static H5E_auto2_t printer; /* the program's own, while we hold the lock */
static void *printer_data;
static char reason[256]; /* of the first call that failed while we hold the lock */

/* The innermost record, but for those of the search for plugins, which say where a filter was looked for and not which.
 * Where it has the system's message among numbers, the message is what a user can read. */
static herr_t note_innermost(unsigned n, const H5E_error2_t *error, void *none)
{
    static const char mark[] = "error message = '";
    const char *text = error->desc ? error->desc : "", *system = strstr(text, mark);
    const char *from = system ? system + strlen(mark) : text;
    if (*reason || error->maj_num == H5E_PLUGIN)
        return 0;
    snprintf(reason, sizeof reason, "%.*s", (int)(system ? strcspn(from, "'") : strlen(from)), from);
    for (char *at = reason; *at; at++)
        if (*at == '\n')
            *at = ' ';
    return 0;
}

/* HDF5 calls it at the end of each of its functions that fails, while its stack is whole. */
static herr_t note_reason(hid_t stack, void *none)
{
    if (!*reason)
        H5Ewalk2(stack, H5E_WALK_UPWARD, note_innermost, NULL);
    return 0;
}

/* The printer is exchanged for the time of the lock: a program that uses HDF5 itself keeps its own messages. */
void wf_h5_lock(void)
{
    pthread_mutex_lock(&lock);
    *reason = '\0';
    H5Eget_auto2(H5E_DEFAULT, &printer, &printer_data);
    H5Eset_auto2(H5E_DEFAULT, note_reason, NULL);
}

void wf_h5_unlock(void)
{
    H5Eset_auto2(H5E_DEFAULT, printer, printer_data);
    pthread_mutex_unlock(&lock);
}

/* After a call that was allowed to fail: its reason must not be given for a later failure. */
void wf_h5_forget(void)
{
    H5Eclear2(H5E_DEFAULT);
    *reason = '\0';
}

wf_status wf_h5_failed(wf_status code, wf_h5 *file, const char *what, const char *name)
{
    /* errno of the driver comes first: HDF5 itself was told that all writes went well (driver.c). */
    const char *why = file->error ? strerror(file->error) : reason;
    WF_RAISE(code, "%s: cannot %s%s%s%s%s", file->path, what, *name ? " " : "", name, *why ? ": " : "", why);
    wf_h5_forget();
    return code;
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

/* A driver that is still there was not closed by HDF5, and must not point to a wf_h5 that is gone. */
static void file_free(wf_h5 *file)
{
    if (file->driver)
        wf_h5_driver_leave(file->driver);
    free(file->path);
    free(file);
}

/* Closing is strong: closing the file closes what is open in it, so an error on the way leaves nothing behind. No times
 * are noted, so equal contents give equal bytes. */
static void make_file(wf_h5 *file)
{
    const hid_t access = H5Pcreate(H5P_FILE_ACCESS), creation = H5Pcreate(H5P_FILE_CREATE);
    /* Elements begin at a multiple of 64 bytes, for readers that go past the library. The lower bound of the version
     * keeps the files readable by old libraries. */
    if (wf_h5_driver_set(access, file) && H5Pset_alignment(access, 1, 64) >= 0 &&
        H5Pset_fclose_degree(access, H5F_CLOSE_STRONG) >= 0 &&
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

/* HDF5 would wait for a pipe. */
static wf_status check_regular(const char *path)
{
    struct stat info;
    WF_CHECK(stat(path, &info) == 0 && access(path, R_OK) == 0, WF_ERR_IO, "%s: cannot read this file: %s", path,
             strerror(errno));
    WF_CHECK(S_ISREG(info.st_mode), WF_ERR_IO, "%s: cannot read this file: it is %s", path,
             S_ISDIR(info.st_mode) ? "a folder" : "not a regular file");
    return WF_OK;
}

wf_h5 *wf_h5_open(const char *path)
{
    WF_CHECK_NULL(path, WF_ERR_ARGUMENT, "the name of a file to open is NULL");
    WF_TRY_NULL(check_regular(path));
    return file_at(path, false);
}

wf_status wf_h5_close(wf_h5 *file)
{
    if (!file)
        return WF_OK;
    wf_h5_lock();
    const herr_t closed = H5Fclose(file->id);
    /* H5Fclose may succeed although bytes are missing: the driver lies to it. */
    const bool whole = closed >= 0 && !file->error;
    const wf_status status = whole ? WF_OK : wf_h5_failed(WF_ERR_IO, file, "end this file", "");
    wf_h5_unlock();
    file_free(file);
    return status;
}

/* --- Walking ------------------------------------------------------------------------------------------------------ */

typedef struct names {
    char **name;
    size_t n, room;
} names;

/* Links are followed by HDF5 no further than the file; only data sets are wanted. */
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
 * lock. The order is that of names, so all readers visit alike. */
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

static bool write_text(hid_t holder, const char *name, const char *text)
{
    const hid_t type = H5Tcopy(H5T_C_S1), space = H5Screate(H5S_SCALAR);
    hid_t attribute = -1;
    if (H5Tset_size(type, strlen(text) + 1) >= 0)
        attribute = H5Acreate2(holder, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
    const bool written = attribute >= 0 && H5Awrite(attribute, type, text) >= 0;
    if (attribute >= 0)
        H5Aclose(attribute);
    H5Sclose(space);
    H5Tclose(type);
    return written;
}

/* Returns what has the attribute: a data set to be closed, or, where `set` is NULL, the file's root group. The root
 * group's id is the file's own, and must not be closed. */
static hid_t open_holder(const wf_h5 *file, const char *set)
{
    return set ? H5Dopen2(file->id, set, H5P_DEFAULT) : file->id;
}

static void close_holder(const wf_h5 *file, hid_t holder)
{
    if (holder >= 0 && holder != file->id)
        H5Dclose(holder);
}

wf_status wf_h5_set_text(wf_h5 *file, const char *set, const char *name, const char *text)
{
    WF_NEED(file);
    wf_h5_lock();
    const hid_t holder = open_holder(file, set);
    const wf_status status = holder >= 0 && write_text(holder, name, text) && !file->error
                                 ? WF_OK
                                 : wf_h5_failed(WF_ERR_IO, file, "write the attribute", name);
    close_holder(file, holder);
    wf_h5_unlock();
    return status;
}

/* A string of variable length is the library's memory. */
static bool read_variable_text(hid_t attribute, hid_t type, char *text, size_t size)
{
    char *value = NULL;
    if (H5Aread(attribute, type, &value) < 0)
        return false;
    /* A text that does not fit is an error, not cut: names and versions are compared as a whole. */
    const bool fits = !value || strlen(value) < size;
    if (fits)
        snprintf(text, size, "%s", value ? value : "");
    H5free_memory(value);
    return fits;
}

/* Attributes of other programs may be numbers where ours are texts: version 1 is "1". */
static bool read_integer_text(hid_t attribute, hid_t type, char *text, size_t size)
{
    int64_t value;
    uint64_t large;
    if (H5Tget_sign(type) == H5T_SGN_NONE)
        return H5Aread(attribute, H5T_NATIVE_UINT64, &large) >= 0 &&
               snprintf(text, size, "%llu", (unsigned long long)large) < (int)size;
    return H5Aread(attribute, H5T_NATIVE_INT64, &value) >= 0 &&
           snprintf(text, size, "%lld", (long long)value) < (int)size;
}

static bool read_fixed_text(hid_t attribute, char *text, size_t size)
{
    const hid_t memory = H5Tcopy(H5T_C_S1);
    const bool read = H5Tset_size(memory, size) >= 0 && H5Aread(attribute, memory, text) >= 0;
    H5Tclose(memory);
    return read;
}

static bool read_text(hid_t holder, const char *name, char *text, size_t size)
{
    const hid_t attribute = H5Aopen(holder, name, H5P_DEFAULT);
    if (attribute < 0)
        return false;
    const hid_t type = H5Aget_type(attribute), space = H5Aget_space(attribute);
    const H5T_class_t kind = H5Tget_class(type);
    /* One value; a list of them is no text. */
    bool read = H5Sget_simple_extent_npoints(space) == 1;
    if (read && kind == H5T_INTEGER)
        read = read_integer_text(attribute, type, text, size);
    else if (read && kind == H5T_STRING)
        read = H5Tis_variable_str(type) > 0 ? read_variable_text(attribute, type, text, size)
                                            : read_fixed_text(attribute, text, size);
    else
        read = false;
    /* A fixed text of the full size has no end of its own. */
    text[size - 1] = '\0';
    H5Sclose(space);
    H5Tclose(type);
    H5Aclose(attribute);
    return read;
}

wf_status wf_h5_get_text(wf_h5 *file, const char *set, const char *name, char *text, size_t size)
{
    WF_NEED(file);
    memset(text, 0, size);
    wf_h5_lock();
    wf_status status = WF_OK;
    const hid_t holder = open_holder(file, set);
    /* An attribute that is not there is an empty text: callers treat it so. */
    if (holder < 0 || (H5Aexists(holder, name) > 0 && !read_text(holder, name, text, size)))
        status = wf_h5_failed(WF_ERR_FORMAT, file, "read as a text the attribute", name);
    close_holder(file, holder);
    wf_h5_unlock();
    return status;
}
