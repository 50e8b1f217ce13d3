/* The file driver by which HDF5 writes our files.
 *
 * HDF5 1.8 to 1.14 cannot give up a file: if a write fails in H5Fclose (a full disk, or a limit on the length of
 * files), the file stays in the library's tables, and the exit handler of the library, which writes it again, ends the
 * process by a fault or "infinite loop closing library". HDF5's own structures are mostly written in H5Fclose.
 *
 * So writes of this driver succeed, always, in the eyes of HDF5. The driver keeps errno of the first one that did not;
 * every function that writes to the file, and wf_h5_close, then returns it as its error. After that nothing more goes
 * to the file: HDF5's own structures are kept in memory, where HDF5 may read them again before it closes the file, and
 * elements, which it does not need to close it, are dropped. H5Fclose thus always takes the file out of the tables.
 *
 * Chosen over two other ways: to hold all structures in memory until the end needs the same list, and also where
 * nothing fails; to preallocate the file does not help against a limit or a quota that ends a file early, nor on file
 * systems that copy on write.
 *
 * A driver outlives its wf_h5 where H5Fclose could not be called or failed before it came here: the exit handler then
 * closes it, with nothing written any more.
 */
#include "comm/file/file_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#if H5_VERSION_GE(1, 13, 0)
#include <H5FDdevelop.h>
#endif

/* Bytes that did not get into the file. */
typedef struct kept {
    struct kept *next;
    haddr_t at;
    size_t bytes;
    unsigned char data[];
} kept;

struct wf_h5_driver {
    H5FD_t base; /* first, for HDF5 */
    wf_h5 *owner;
    int file;
    int error; /* errno of the first failure; 0: none */
    haddr_t eoa, eof;
    kept *first, *last; /* in the order of writing */
};

/* What a property list carries to open_driver. */
typedef struct driver_info {
    wf_h5 *owner;
} driver_info;

static wf_h5_driver *driver_of(H5FD_t *base)
{
    return (wf_h5_driver *)base;
}

/* The first failure is the cause; what follows are its consequences. */
static void note_error(wf_h5_driver *d, int error)
{
    if (!d->error)
        d->error = error;
    if (d->owner && !d->owner->error)
        d->owner->error = d->error;
}

/* The lock comes before the length is set to 0: another program may be writing this file. File systems without locks
 * refuse them with another errno. */
static bool open_file(wf_h5_driver *d, const char *name)
{
    d->file = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (d->file < 0)
        return false;
    if (flock(d->file, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return false;
    /* The old contents go only now, so a program that fails to get the lock destroys nothing. */
    return ftruncate(d->file, 0) == 0;
}

static H5FD_t *open_driver(const char *name, unsigned flags, hid_t list, haddr_t most)
{
    const driver_info *info = H5Pget_driver_info(list);
    if (!info || !info->owner)
        return NULL;
    wf_h5_driver *d = calloc(1, sizeof *d);
    if (d && open_file(d, name)) {
        d->owner = info->owner;
        d->owner->driver = d;
        return &d->base;
    }
    /* errno goes to the owner, since HDF5 would only say that it cannot open the file. */
    info->owner->error = d ? errno : ENOMEM;
    if (d && d->file >= 0)
        close(d->file);
    free(d);
    return NULL;
}

static herr_t close_driver(H5FD_t *base)
{
    wf_h5_driver *d = driver_of(base);
    /* Network file systems report a failed write at close. */
    if (close(d->file) != 0)
        note_error(d, errno);
    if (d->owner)
        d->owner->driver = NULL;
    for (kept *next, *k = d->first; k; k = next) {
        next = k->next;
        free(k);
    }
    free(d);
    return 0;
}

/* From now on nothing is written and no wf_h5 is touched: the exit handler may still call in. */
void wf_h5_driver_leave(wf_h5_driver *driver)
{
    note_error(driver, ECANCELED);
    driver->owner = NULL;
}

/* As those of HDF5's own driver, so that files have the same bytes. */
static herr_t query_features(const H5FD_t *base, unsigned long *flags)
{
    *flags = H5FD_FEAT_AGGREGATE_METADATA | H5FD_FEAT_ACCUMULATE_METADATA | H5FD_FEAT_DATA_SIEVE |
             H5FD_FEAT_AGGREGATE_SMALLDATA | H5FD_FEAT_DEFAULT_VFD_COMPATIBLE;
    return 0;
}

/* The end of what HDF5 has given out; eof is the end of what is in the file. */
static haddr_t get_eoa(const H5FD_t *base, H5FD_mem_t type)
{
    return ((const wf_h5_driver *)base)->eoa;
}

static herr_t set_eoa(H5FD_t *base, H5FD_mem_t type, haddr_t eoa)
{
    driver_of(base)->eoa = eoa;
    return 0;
}

static haddr_t get_eof(const H5FD_t *base, H5FD_mem_t type)
{
    return ((const wf_h5_driver *)base)->eof;
}

/* --- Bytes -------------------------------------------------------------------------------------------------------- */

/* In the order of writing, so the last write of a byte wins. */
static void read_kept(const wf_h5_driver *d, haddr_t at, size_t bytes, unsigned char *data)
{
    for (const kept *k = d->first; k; k = k->next) {
        const haddr_t from = k->at > at ? k->at : at, end = at + bytes, own_end = k->at + k->bytes;
        const haddr_t to = own_end < end ? own_end : end;
        if (from < to)
            memcpy(data + (from - at), k->data + (from - k->at), (size_t)(to - from));
    }
}

/* Bytes beyond the end of the file are zeros. */
static herr_t read_bytes(H5FD_t *base, H5FD_mem_t type, hid_t list, haddr_t at, size_t bytes, void *buffer)
{
    wf_h5_driver *d = driver_of(base);
    unsigned char *data = buffer;
    size_t done = 0;
    memset(data, 0, bytes);
    while (done < bytes) {
        const ssize_t n = pread(d->file, data + done, bytes - done, (off_t)(at + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            note_error(d, errno);
        if (n <= 0)
            break;
        done += (size_t)n;
    }
    read_kept(d, at, bytes, data);
    return 0;
}

/* Without memory the bytes are lost; HDF5 would read the old ones or zeros, and the file counts as failed already. */
static void keep_bytes(wf_h5_driver *d, haddr_t at, size_t bytes, const void *data)
{
    kept *k = malloc(sizeof *k + bytes);
    if (!k)
        return;
    *k = (kept){.at = at, .bytes = bytes};
    memcpy(k->data, data, bytes);
    *(d->last ? &d->last->next : &d->first) = k;
    d->last = k;
}

static herr_t write_bytes(H5FD_t *base, H5FD_mem_t type, hid_t list, haddr_t at, size_t bytes, const void *buffer)
{
    wf_h5_driver *d = driver_of(base);
    const unsigned char *data = buffer;
    for (size_t done = 0; done < bytes && !d->error;) {
        const ssize_t n = pwrite(d->file, data + done, bytes - done, (off_t)(at + done));
        if (n < 0 && errno == EINTR)
            continue;
        /* Zero bytes written without an error mean that there is no more room. */
        if (n <= 0)
            note_error(d, n < 0 ? errno : ENOSPC);
        else
            done += (size_t)n;
    }
    /* Once an error is noted, nothing more goes to the file: it would have holes that look whole. */
    if (d->error && type != H5FD_MEM_DRAW)
        keep_bytes(d, at, bytes, data);
    if (at + bytes > d->eof)
        d->eof = at + bytes;
    return 0;
}

/* The file gets the length that HDF5 gave it out to, even where the last bytes were never written. */
static herr_t set_length(H5FD_t *base, hid_t list, hbool_t closing)
{
    wf_h5_driver *d = driver_of(base);
    if (d->eof != d->eoa && !d->error && ftruncate(d->file, (off_t)d->eoa) != 0)
        note_error(d, errno);
    d->eof = d->eoa;
    return 0;
}

/* --- Making one --------------------------------------------------------------------------------------------------- */

/* Only what HDF5 calls for a file that is written: readers use its own driver. */
static const H5FD_class_t class = {
#if H5_VERSION_GE(1, 13, 0)
    .version = H5FD_CLASS_VERSION,
    .value = (H5FD_class_value_t)(H5_VFD_RESERVED + 1), /* of those that are free for any program's own */
#endif
    .name = "weft",
    .maxaddr = INT64_MAX,
    .fc_degree = H5F_CLOSE_STRONG,
    .fapl_size = sizeof(driver_info),
    .open = open_driver,
    .close = close_driver,
    .query = query_features,
    .get_eoa = get_eoa,
    .set_eoa = set_eoa,
    .get_eof = get_eof,
    .read = read_bytes,
    .write = write_bytes,
    .truncate = set_length,
    .fl_map = H5FD_FLMAP_DICHOTOMY,
};

/* Registered for each file, so that a program that closes the library between two files finds it again. The file and
 * the list hold on to it. */
bool wf_h5_driver_set(hid_t list, wf_h5 *owner)
{
    /* Registered for good: where a file has the last reference, H5FD_close frees the class and then reads it. */
    static hid_t id = H5I_INVALID_HID;
    const driver_info info = {owner};
    if (H5Iis_valid(id) <= 0)
        id = H5FDregister(&class);
    return id >= 0 && H5Pset_driver(list, id, &info) >= 0;
}
