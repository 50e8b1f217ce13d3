/* The one file that calls libnetcdf: variables, their attributes, and parts of them as doubles. The library is not
 * thread-safe and calls HDF5, so every function holds the lock of HDF5 (comm/file_author.h). */
#include "comm/file_author.h"
#include "datasets/netcdf_impl.h"

#include <errno.h>
#include <math.h>
#include <netcdf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

struct wf_nc {
    char *path;
    int id, variables;
};

static wf_status fail_netcdf(wf_status code, const char *path, const char *what, const char *name, int error)
{
    WF_FAIL(code, "%s: cannot %s%s%s: %s", path, what, *name ? " " : "", name, nc_strerror(error));
}

/* --- Opening ------------------------------------------------------------------------------------------------------ */

static wf_status open_locked(const char *path, int64_t length, wf_nc *f)
{
    /* nc_open trusts the lengths in headers of classic files, so they are verified before it. */
    WF_TRY(wf_nc_check_header(path, length));
    const int error = nc_open(path, NC_NOWRITE, &f->id);
    if (error != NC_NOERR)
        return fail_netcdf(WF_ERR_FORMAT, path, "open (no netCDF file, damaged or cut off)", "", error);
    if (nc_inq_nvars(f->id, &f->variables) != NC_NOERR) {
        nc_close(f->id);
        WF_FAIL(WF_ERR_FORMAT, "%s: has no variables that can be listed", path);
    }
    return WF_OK;
}

wf_status wf_nc_open(const char *path, wf_nc **file)
{
    struct stat info;
    *file = NULL;
    /* The library would take "https://..." for a server. */
    WF_CHECK(stat(path, &info) == 0, WF_ERR_IO, "%s: cannot open: %s", path, strerror(errno));
    WF_CHECK(S_ISREG(info.st_mode), WF_ERR_IO, "%s: cannot open: is not a file", path);
    wf_nc *f = calloc(1, sizeof *f);
    char *name = strdup(path);
    if (!f || !name) {
        free(f);
        free(name);
        WF_FAIL(WF_ERR_MEMORY, "%s: no memory to open it", path);
    }
    f->path = name;
    /* The library is not safe for threads, and its netCDF-4 files are files of HDF5, which has one lock for all. */
    wf_h5_lock();
    const wf_status status = open_locked(path, info.st_size, f);
    wf_h5_unlock();
    if (status != WF_OK) {
        free(name);
        free(f);
        return status;
    }
    *file = f;
    return WF_OK;
}

void wf_nc_close(wf_nc *file)
{
    if (!file)
        return;
    wf_h5_lock();
    nc_close(file->id);
    wf_h5_unlock();
    free(file->path);
    free(file);
}

int wf_nc_variables(const wf_nc *file)
{
    return file->variables;
}

/* --- Variables ---------------------------------------------------------------------------------------------------- */

static const struct {
    nc_type type;
    const char *name;
    double fill; /* the library's, of elements that no program wrote; bytes have none, which is 0 here */
} types[] = {
    {NC_BYTE, "i8", 0},
    {NC_UBYTE, "u8", 0},
    {NC_CHAR, "text", 0},
    {NC_SHORT, "i16", NC_FILL_SHORT},
    {NC_USHORT, "u16", NC_FILL_USHORT},
    {NC_INT, "i32", NC_FILL_INT},
    {NC_UINT, "u32", NC_FILL_UINT},
    {NC_INT64, "i64", (double)NC_FILL_INT64},
    {NC_UINT64, "u64", (double)NC_FILL_UINT64},
    {NC_FLOAT, "f32", NC_FILL_FLOAT},
    {NC_DOUBLE, "f64", NC_FILL_DOUBLE},
};

/* Reads an attribute that is text, or one string of netCDF-4, as Python's libraries write it. Returns false if there is
 * none that fits into `size` bytes. */
static bool read_words(const wf_nc *f, int id, const char *name, char *text, size_t size)
{
    size_t length = 0;
    nc_type type = NC_NAT;
    char *string = NULL;
    if (nc_inq_att(f->id, id, name, &type, &length) != NC_NOERR)
        return false;
    if (type == NC_CHAR && length < size) {
        text[length] = '\0';
        return nc_get_att_text(f->id, id, name, text) == NC_NOERR;
    }
    if (type != NC_STRING || length != 1 || nc_get_att_string(f->id, id, name, &string) != NC_NOERR)
        return false;
    /* A text that does not fit counts as absent: none that is looked for is that long. */
    const bool fits = string && strlen(string) < size;
    if (fits)
        strcpy(text, string);
    nc_free_string(1, &string);
    return fits;
}

/* CDF-1 and CDF-2 have no unsigned types: _Unsigned = "true" says that a signed one stands for the unsigned one of its
 * size, which `types` has in its next line. */
static void apply_unsigned(const wf_nc *f, size_t type, wf_nc_variable *v)
{
    char text[8] = "";
    if (*types[type].name != 'i' || !read_words(f, v->id, "_Unsigned", text, sizeof text) ||
        strcasecmp(text, "true") != 0)
        return;
    /* The type that follows in the table is the unsigned one of the same size. */
    v->type = types[type + 1].name;
    v->wrap = ldexp(1, atoi(types[type].name + 1));
}

/* The library reads the signed type, so the upper half of an unsigned one arrives as negative numbers. */
static void wrap_negative(const wf_nc_variable *v, int64_t count, double *values)
{
    for (int64_t i = 0; v->wrap > 0 && i < count; i++)
        values[i] += values[i] < 0 ? v->wrap : 0;
}

/* Adds the numbers of an attribute to those that mean "missing". Text is refused, since no number equals it, and values
 * of which the file says that they are missing would be read as measurements. */
static wf_status add_missing(const wf_nc *f, wf_nc_variable *v, const char *name)
{
    size_t length = 0;
    nc_type type = NC_NAT;
    if (nc_inq_att(f->id, v->id, name, &type, &length) != NC_NOERR || length == 0)
        return WF_OK;
    WF_CHECK(type != NC_CHAR && type != NC_STRING, WF_ERR_FORMAT, "%s: %s of %s is text: should be numbers", f->path,
             name, v->name);
    WF_CHECK(length <= WF_NC_MISSING, WF_ERR_FORMAT, "%s: %s of %s has %zu numbers: should be at most %d", f->path,
             name, v->name, length, WF_NC_MISSING);
    const int error = nc_get_att_double(f->id, v->id, name, v->missing + v->n_missing);
    if (error != NC_NOERR)
        return fail_netcdf(WF_ERR_FORMAT, f->path, "read missing values of", v->name, error);
    v->n_missing += (int)length;
    return WF_OK;
}

/* Reads an attribute that is one number, if it is there. CF (8.1, appendix A) has no other form of it; with one that is
 * ignored the program would train on packed numbers. */
static wf_status read_factor(const wf_nc *f, const wf_nc_variable *v, const char *name, double *number)
{
    size_t length = 0;
    nc_type type = NC_NAT;
    if (nc_inq_att(f->id, v->id, name, &type, &length) != NC_NOERR)
        return WF_OK;
    WF_CHECK(type != NC_CHAR && type != NC_STRING, WF_ERR_FORMAT, "%s: %s of %s is text: should be a number", f->path,
             name, v->name);
    WF_CHECK(length == 1, WF_ERR_FORMAT, "%s: %s of %s has %zu numbers: should be one", f->path, name, v->name, length);
    const int error = nc_get_att_double(f->id, v->id, name, number);
    return error == NC_NOERR ? WF_OK
                             : fail_netcdf(WF_ERR_FORMAT, f->path, "read how numbers are packed in", v->name, error);
}

/* scale and offset keep 1 and 0 where the file has no such attribute. */
static wf_status read_packing(const wf_nc *f, wf_nc_variable *v)
{
    WF_TRY(read_factor(f, v, "scale_factor", &v->scale));
    return read_factor(f, v, "add_offset", &v->offset);
}

/* Only variables that are read need this: those with a wrong attribute can still be listed. */
static wf_status read_missing(const wf_nc *f, wf_nc_variable *v)
{
    WF_TRY(add_missing(f, v, "_FillValue"));
    /* The attribute takes the place of the library's fill value, missing_value does not. */
    if (v->n_missing == 0 && v->fill != 0)
        v->missing[v->n_missing++] = v->fill;
    WF_TRY(add_missing(f, v, "missing_value"));
    /* The attribute has the type of the variable, so it is negative where that is. */
    wrap_negative(v, v->n_missing, v->missing);
    return WF_OK;
}

static wf_status describe_locked(const wf_nc *f, int id, wf_nc_variable *v)
{
    nc_type type = NC_NAT;
    int dims[NC_MAX_VAR_DIMS];
    size_t length = 0;
    *v = (wf_nc_variable){.id = id, .type = "other", .scale = 1};
    int error = nc_inq_var(f->id, id, v->name, &type, &v->rank, dims, NULL);
    if (error != NC_NOERR)
        return fail_netcdf(WF_ERR_FORMAT, f->path, "look at a variable", "", error);
    WF_CHECK(v->rank <= WF_MAX_RANK, WF_ERR_FORMAT, "%s: %s has %d dimensions: should be at most %d", f->path, v->name,
             v->rank, WF_MAX_RANK);
    for (int d = 0; d < v->rank; d++) {
        error = nc_inq_dim(f->id, dims[d], v->dim_name[d], &length);
        if (error != NC_NOERR)
            return fail_netcdf(WF_ERR_FORMAT, f->path, "look at a dimension of", v->name, error);
        v->dim[d] = (int64_t)length;
    }
    /* A type that is not in the table keeps the name "other" and is no number: it is listed and not read. */
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].type == type) {
            v->type = types[i].name;
            v->numbers = type != NC_CHAR;
            v->single = type == NC_FLOAT;
            v->fill = types[i].fill;
            apply_unsigned(f, i, v);
        }
    return WF_OK;
}

wf_status wf_nc_describe(wf_nc *file, int id, wf_nc_variable *variable)
{
    wf_h5_lock();
    const wf_status status = describe_locked(file, id, variable);
    wf_h5_unlock();
    return status;
}

static wf_status fail_unknown(const wf_nc *f, const char *name)
{
    char list[400] = "", one[NC_MAX_NAME + 1];
    /* 8 bytes are left for a comma and the end, so the last name is whole or missing. */
    for (int v = 0; v < f->variables; v++)
        if (nc_inq_varname(f->id, v, one) == NC_NOERR && strlen(list) + strlen(one) + 8 < sizeof list)
            snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", *list ? ", " : "", one);
    WF_FAIL(WF_ERR_FORMAT, "%s: there is no variable %s; there are %s", f->path, name, *list ? list : "none");
}

static wf_status find_locked(const wf_nc *f, const char *name, wf_nc_variable *v)
{
    int id;
    if (nc_inq_varid(f->id, name, &id) != NC_NOERR)
        return fail_unknown(f, name);
    WF_TRY(describe_locked(f, id, v));
    if (!v->numbers)
        return WF_OK;
    WF_TRY(read_packing(f, v));
    return read_missing(f, v);
}

wf_status wf_nc_find(wf_nc *file, const char *name, wf_nc_variable *variable)
{
    wf_h5_lock();
    const wf_status status = find_locked(file, name, variable);
    wf_h5_unlock();
    return status;
}

/* A time either has units "... since ...", as CF asks, or is the dimension that files grow along. */
bool wf_nc_is_time(wf_nc *file, const char *dimension)
{
    char units[256] = "";
    int id, n = 0, unlimited[NC_MAX_DIMS];
    bool is_time = false;
    wf_h5_lock();
    if (nc_inq_varid(file->id, dimension, &id) == NC_NOERR && read_words(file, id, "units", units, sizeof units))
        is_time = strstr(units, " since ") || strstr(units, " SINCE ");
    if (nc_inq_unlimdims(file->id, &n, NULL) == NC_NOERR && n <= NC_MAX_DIMS &&
        nc_inq_unlimdims(file->id, &n, unlimited) == NC_NOERR && nc_inq_dimid(file->id, dimension, &id) == NC_NOERR)
        for (int i = 0; i < n; i++)
            is_time = is_time || unlimited[i] == id;
    wf_h5_unlock();
    return is_time;
}

wf_status wf_nc_read(wf_nc *file, const wf_nc_variable *variable, const wf_box *box, double *values)
{
    size_t start[WF_MAX_RANK], count[WF_MAX_RANK];
    int64_t all = 1;
    /* The box lies inside the variable; the caller has checked. */
    for (int d = 0; d < box->rank; d++) {
        start[d] = (size_t)box->lo[d];
        count[d] = (size_t)(box->hi[d] - box->lo[d]);
        all *= box->hi[d] - box->lo[d];
    }
    wf_h5_lock();
    const int error = nc_get_vara_double(file->id, variable->id, start, count, values);
    wf_h5_unlock();
    if (error != NC_NOERR)
        return fail_netcdf(WF_ERR_FORMAT, file->path, "read", variable->name, error);
    wrap_negative(variable, all, values);
    return WF_OK;
}
