/* Data sets of HDF5 files: what they are, and elements in and out. wf_h5_stat, wf_h5_read, wf_h5_write and wf_h5_add
 * are the entry points; checkpoints and the h5 tool call them. Every public function takes the one lock (h5.c), the
 * statics assume it. */
#include "comm/file/file_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_LINKS = 16, MOST_PATH = 4096 };

/* Writes the path that the soft link at path[0 .. end) leads to, with what follows it: the last name of the link is
 * replaced by its target. Returns false if that is too long. */
static bool follow_link(hid_t file, const char *path, const char *end, size_t bytes, char next[MOST_PATH])
{
    char link[MOST_PATH], target[MOST_PATH];
    if (bytes > sizeof target || (size_t)(end - path) >= sizeof link)
        return false;
    snprintf(link, sizeof link, "%.*s", (int)(end - path), path);
    if (H5Lget_val(file, link, target, sizeof target, H5P_DEFAULT) < 0)
        return false;
    target[sizeof target - 1] = '\0';
    char *name = strrchr(link, '/');
    *(name ? name + 1 : link) = '\0';
    return snprintf(next, MOST_PATH, "%s%s%s", *target == '/' ? "" : link, target, end) < MOST_PATH;
}

/* No link on the way leaves the file: soft ones are followed, external ones, which lead where the maker of the file
 * wants, are not. `links` stops circles of links. */
static bool is_inside(hid_t file, const char *name, int links)
{
    char next[MOST_PATH], path[MOST_PATH];
    if (links > MOST_LINKS || snprintf(path, sizeof path, "%s", name) >= MOST_PATH)
        return false;
    /* Each prefix of the path in turn: a link on the way counts as much as one at the end. */
    for (char *end = path; end;) {
        H5L_info_t link;
        end = strchr(end + 1, '/');
        if (end)
            *end = '\0';
        if (*path != '\0' &&
            (H5Lexists(file, path, H5P_DEFAULT) <= 0 || H5Lget_info(file, path, &link, H5P_DEFAULT) < 0))
            return false;
        const bool soft = *path != '\0' && link.type == H5L_TYPE_SOFT;
        if (*path != '\0' && !soft && link.type != H5L_TYPE_HARD)
            return false;
        const size_t length = strlen(path);
        if (end)
            *end = '/';
        /* The rest of the path is looked at anew, behind the link's target. */
        if (soft)
            return follow_link(file, path, path + length, link.u.val_size, next) && is_inside(file, next, links + 1);
    }
    return true;
}

static bool is_dataset(hid_t file, const char *name)
{
    H5O_info_t info;
    /* An address that leads out of the file is treated like a data set that is not there. */
    return *name && is_inside(file, name, 0) &&
           H5Oget_info_by_name2(file, name, &info, H5O_INFO_BASIC, H5P_DEFAULT) >= 0 && info.type == H5O_TYPE_DATASET;
}

bool wf_h5_has(wf_h5 *file, const char *name)
{
    if (!file || !name)
        return false;
    wf_h5_lock();
    const bool has = is_dataset(file->id, name);
    wf_h5_forget();
    wf_h5_unlock();
    return has;
}

typedef wf_status (*on_dataset)(wf_h5 *file, const char *name, hid_t set, void *own);

/* Opens the data set, which no external link leads to, and looks at it or moves its elements. */
static wf_status with_dataset(wf_h5 *file, const char *name, on_dataset work, void *own)
{
    wf_h5_lock();
    const hid_t set = is_dataset(file->id, name) ? H5Dopen2(file->id, name, H5P_DEFAULT) : -1;
    const wf_status status =
        set >= 0 ? work(file, name, set, own) : wf_h5_failed(WF_ERR_FORMAT, file, "find the data set", name);
    if (set >= 0)
        H5Dclose(set);
    wf_h5_unlock();
    return status;
}

/* --- What it is --------------------------------------------------------------------------------------------------- */

static wf_status describe_space(wf_h5 *file, const char *name, hid_t space, wf_h5_info *info)
{
    hsize_t dim[H5S_MAX_RANK];
    const H5S_class_t kind = H5Sget_simple_extent_type(space);
    info->empty = kind == H5S_NULL;
    /* HDF5 allows more dimensions than a shape has here. */
    const int rank = kind == H5S_SIMPLE ? H5Sget_simple_extent_dims(space, dim, NULL) : 0;
    WF_CHECK(rank >= 0 && rank <= WF_MAX_RANK, WF_ERR_FORMAT, "%s: %s has rank %d, above %d", file->path, name, rank,
             WF_MAX_RANK);
    info->shape.rank = rank;
    for (int d = 0; d < rank; d++) {
        WF_CHECK(dim[d] <= INT64_MAX, WF_ERR_FORMAT, "%s: dimension %d of %s does not fit 63 bits", file->path, d,
                 name);
        info->shape.dim[d] = (int64_t)dim[d];
    }
    /* The bytes, at most 8 an element, then fit 63 bits wherever callers multiply. */
    const int64_t count = wf_shape_count(info->shape);
    WF_CHECK(count >= 0 && count <= INT64_MAX / 8, WF_ERR_FORMAT, "%s: %s has more elements than fit 60 bits",
             file->path, name);
    return WF_OK;
}

/* A reader that knows the offset reads contiguous elements without the library, from any number of threads. A virtual
 * or external data set would read other files than the one that was opened. */
static wf_status describe_place(wf_h5 *file, const char *name, hid_t set, hid_t how, wf_h5_info *info)
{
    hsize_t chunk[H5S_MAX_RANK];
    const H5D_layout_t layout = H5Pget_layout(how);
    WF_CHECK(layout != H5D_VIRTUAL && H5Pget_external_count(how) == 0, WF_ERR_FORMAT,
             "%s: the elements of %s lie in another file", file->path, name);
    info->chunked = layout == H5D_CHUNKED;
    if (info->chunked) {
        const int rank = H5Pget_chunk(how, WF_MAX_RANK, chunk);
        info->chunk.rank = rank < 0 ? 0 : rank;
        for (int d = 0; d < info->chunk.rank; d++)
            info->chunk.dim[d] = (int64_t)chunk[d];
    }
    const haddr_t at = layout == H5D_CONTIGUOUS ? H5Dget_offset(set) : HADDR_UNDEF;
    /* H5Dget_offset fails for data sets that were never written; that is no error here. */
    wf_h5_forget();
    info->contiguous = at != HADDR_UNDEF;
    const hsize_t stored = H5Dget_storage_size(set);
    info->stored = stored <= INT64_MAX ? (int64_t)stored : 0;
    info->offset = info->contiguous ? (int64_t)at : -1;
    return WF_OK;
}

static wf_status describe(wf_h5 *file, const char *name, hid_t set, void *own)
{
    wf_h5_info *info = own;
    const hid_t type = H5Dget_type(set), space = H5Dget_space(set), how = H5Dget_create_plist(set);
    *info = (wf_h5_info){.dtype = wf_h5_dtype(type), .size = H5Tget_size(type)};
    wf_status status = describe_space(file, name, space, info);
    if (status == WF_OK && info->dtype == WF_DTYPES)
        status =
            WF_RAISE(WF_ERR_FORMAT, "%s: the elements of %s are no numbers of a type that is known", file->path, name);
    if (status == WF_OK) {
        const hid_t ours = wf_h5_type(info->dtype);
        /* Native elements may be read by pread as they lie; all others must go through the library. */
        info->native = H5Tequal(type, ours) > 0;
        H5Tclose(ours);
        status = describe_place(file, name, set, how, info);
    }
    H5Pclose(how);
    H5Sclose(space);
    H5Tclose(type);
    return status;
}

wf_status wf_h5_stat(wf_h5 *file, const char *name, wf_h5_info *info)
{
    WF_NEED(file);
    WF_NEED(name);
    WF_NEED(info);
    return with_dataset(file, name, describe, info);
}

/* --- Elements ----------------------------------------------------------------------------------------------------- */

/* The box in the file's space, and the space of a dense array of its shape. HDF5 copies between the two. */
static bool select_box(hid_t space, wf_box box, hid_t *memory)
{
    hsize_t start[WF_MAX_RANK], count[WF_MAX_RANK];
    if (box.rank == 0) {
        *memory = H5Screate(H5S_SCALAR);
        return *memory >= 0;
    }
    for (int d = 0; d < box.rank; d++) {
        start[d] = (hsize_t)box.lo[d];
        count[d] = (hsize_t)(box.hi[d] - box.lo[d]);
    }
    *memory = H5Screate_simple(box.rank, count, NULL);
    return *memory >= 0 && H5Sselect_hyperslab(space, H5S_SELECT_SET, start, NULL, count, NULL) >= 0;
}

/* Elements of a box, in one direction. */
typedef struct movement {
    wf_box box;
    wf_dtype dtype; /* in memory; what is written has that of the file */
    void *data;
    bool writes;
} movement;

/* Unsigned numbers of 64 bits are read as such, and refused above 2^63: i64 is the widest of our types. */
static bool is_u64(hid_t set)
{
    const hid_t type = H5Dget_type(set);
    const bool is = H5Tget_class(type) == H5T_INTEGER && H5Tget_size(type) == 8 && H5Tget_sign(type) == H5T_SGN_NONE;
    H5Tclose(type);
    return is;
}

static bool transfer(hid_t set, const movement *m, hid_t type)
{
    const hid_t space = H5Dget_space(set);
    hid_t memory = -1;
    const bool moved = select_box(space, m->box, &memory) &&
                       (m->writes ? H5Dwrite(set, type, memory, space, H5P_DEFAULT, m->data)
                                  : H5Dread(set, type, memory, space, H5P_DEFAULT, m->data)) >= 0;
    if (memory >= 0)
        H5Sclose(memory);
    H5Sclose(space);
    return moved;
}

/* HDF5 would make the largest number of what does not fit 63 bits. */
static wf_status check_unsigned(const wf_h5 *file, const char *name, const movement *m)
{
    const uint64_t *values = m->data;
    const int64_t n = wf_shape_count(wf_box_shape(m->box));
    for (int64_t i = 0; i < n; i++)
        WF_CHECK(values[i] <= INT64_MAX, WF_ERR_FORMAT, "%s: %s has %llu: should be below 2^63", file->path, name,
                 (unsigned long long)values[i]);
    return WF_OK;
}

static wf_status check_box(const wf_h5 *file, const char *name, const wf_h5_info *info, wf_box box)
{
    char text[2][WF_SHAPE_TEXT];
    const wf_shape shape = wf_box_shape(box);
    WF_CHECK(box.rank == info->shape.rank && !info->empty && wf_box_contains(wf_box_of_shape(info->shape), box),
             WF_ERR_SHAPE, "%s: a box of shape %s of %s, which has %s%s", file->path, wf_shape_text(shape, text[0]),
             name, info->empty ? "no elements and shape " : "", wf_shape_text(info->shape, text[1]));
    return WF_OK;
}

static wf_status move_box(wf_h5 *file, const char *name, hid_t set, void *own)
{
    const movement *m = own;
    wf_h5_info info;
    WF_TRY(describe(file, name, set, &info));
    WF_TRY(check_box(file, name, &info, m->box));
    const wf_dtype dtype = m->writes ? info.dtype : m->dtype;
    /* HDF5 would convert silently, with rounding and saturation. */
    WF_CHECK(wf_dtype_is_float(info.dtype) == wf_dtype_is_float(dtype), WF_ERR_DTYPE, "%s: %s is %s, cannot become %s",
             file->path, name, wf_dtype_name(info.dtype), wf_dtype_name(dtype));
    if (wf_box_empty(m->box))
        return WF_OK;
    const bool u64 = !m->writes && dtype == WF_I64 && is_u64(set);
    const hid_t type = u64 ? H5Tcopy(H5T_NATIVE_UINT64) : wf_h5_type(dtype);
    const bool moved = transfer(set, m, type) && !file->error;
    H5Tclose(type);
    if (moved)
        return u64 ? check_unsigned(file, name, m) : WF_OK;
    return wf_h5_failed(WF_ERR_IO, file, m->writes ? "write" : "read", name);
}

wf_status wf_h5_read(wf_h5 *file, const char *name, wf_box box, wf_dtype dtype, void *data)
{
    WF_NEED(file);
    WF_NEED(name);
    return with_dataset(file, name, move_box, &(movement){.box = box, .dtype = dtype, .data = data});
}

wf_status wf_h5_write(wf_h5 *file, const char *name, wf_box box, const void *data)
{
    WF_NEED(file);
    WF_NEED(name);
    return with_dataset(file, name, move_box, &(movement){.box = box, .data = (void *)data, .writes = true});
}

/* --- New ones ----------------------------------------------------------------------------------------------------- */

static void dims_of(wf_shape shape, hsize_t dim[WF_MAX_RANK])
{
    for (int d = 0; d < shape.rank; d++)
        dim[d] = (hsize_t)shape.dim[d];
}

/* How it lies in the file. chunk.rank is 0 for a contiguous one. */
static hid_t layout_of(wf_shape chunk, int level)
{
    hsize_t dim[WF_MAX_RANK];
    const hid_t how = H5Pcreate(H5P_DATASET_CREATE);
    /* No times in the file: equal contents give equal bytes. No fill values: every element is written by its owner. */
    bool good = how >= 0 && H5Pset_obj_track_times(how, false) >= 0 && H5Pset_fill_time(how, H5D_FILL_TIME_NEVER) >= 0;
    dims_of(chunk, dim);
    /* Compression needs chunks, and chunks alone may be compressed. */
    if (chunk.rank > 0)
        good = good && H5Pset_chunk(how, chunk.rank, dim) >= 0 &&
               (level <= 0 || H5Pset_deflate(how, (unsigned)level) >= 0);
    else
        /* Allocated early, so that its offset in the file is known before the first element is written. */
        good = good && H5Pset_layout(how, H5D_CONTIGUOUS) >= 0 && H5Pset_alloc_time(how, H5D_ALLOC_TIME_EARLY) >= 0;
    if (good)
        return how;
    H5Pclose(how);
    return -1;
}

static bool add(hid_t file, const char *name, wf_dtype dtype, wf_shape shape, wf_shape chunk, int level)
{
    hsize_t dim[WF_MAX_RANK];
    dims_of(shape, dim);
    /* Groups on the way are made, too: names such as "model/conv1/weight" need no other call. */
    const hid_t type = wf_h5_type(dtype), how = layout_of(chunk, level), links = H5Pcreate(H5P_LINK_CREATE);
    const hid_t space = shape.rank == 0 ? H5Screate(H5S_SCALAR) : H5Screate_simple(shape.rank, dim, NULL);
    hid_t set = -1;
    if (how >= 0 && space >= 0 && type >= 0 && H5Pset_create_intermediate_group(links, 1) >= 0)
        set = H5Dcreate2(file, name, type, space, links, how, H5P_DEFAULT);
    if (set >= 0)
        H5Dclose(set);
    if (space >= 0)
        H5Sclose(space);
    if (how >= 0)
        H5Pclose(how);
    if (type >= 0)
        H5Tclose(type);
    H5Pclose(links);
    return set >= 0;
}

/* The elements are undefined until they are written: no fill values. */
wf_status wf_h5_add_chunked(wf_h5 *file, const char *name, wf_dtype dtype, wf_shape shape, wf_shape chunk, int level)
{
    WF_NEED(file);
    WF_NEED(name);
    wf_h5_lock();
    const wf_status status = add(file->id, name, dtype, shape, chunk, level) && !file->error
                                 ? WF_OK
                                 : wf_h5_failed(WF_ERR_IO, file, "make the data set", name);
    wf_h5_unlock();
    return status;
}

wf_status wf_h5_add(wf_h5 *file, const char *name, wf_dtype dtype, wf_shape shape)
{
    return wf_h5_add_chunked(file, name, dtype, shape, wf_shape_scalar(), 0);
}
