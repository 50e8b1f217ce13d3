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
#include <sys/stat.h>

struct wf_nc {
    char *path;
    int id, variables;
};

static wf_status fail_netcdf(wf_status code, const char *path, const char *what, const char *name, int error)
{
    WF_FAIL(code, "%s: cannot %s%s%s: %s", path, what, *name ? " " : "", name, nc_strerror(error));
}

/* --- Is the file whole? ------------------------------------------------------------------------------------------- */

/* Returns the bytes of names and values, which the classic formats pad to multiples of 4. Sizes are doubles, since
 * those that a hostile header asks for do not fit into integers. */
static double pad4(double bytes)
{
    return 4 * ceil(bytes / 4);
}

/* Attributes of a variable, or of the file, in the header; `count` is the size of a count in this format. */
static double attribute_bytes(int id, int variable, int attributes, int64_t count)
{
    double bytes = 4 + (double)count;
    for (int a = 0; a < attributes; a++) {
        char name[NC_MAX_NAME + 1] = "";
        nc_type type;
        size_t length = 0, size = 0;
        nc_inq_attname(id, variable, a, name);
        if (nc_inq_att(id, variable, name, &type, &length) == NC_NOERR &&
            nc_inq_type(id, type, NULL, &size) == NC_NOERR)
            bytes += 2 * (double)count + 4 + pad4((double)strlen(name)) + pad4((double)length * (double)size);
    }
    return bytes;
}

typedef struct classic_size {
    double header, fixed, record; /* bytes: of the header at least, of variables, of those of one record */
    double record_unpadded;
    int record_variables;
} classic_size;

static void add_classic_variable(int id, int v, int unlimited, int64_t count, int64_t offset, classic_size *s)
{
    char name[NC_MAX_NAME + 1] = "";
    int rank = 0, attributes = 0, dims[NC_MAX_VAR_DIMS];
    nc_type type;
    size_t size = 0, length;
    if (nc_inq_var(id, v, name, &type, &rank, dims, &attributes) != NC_NOERR ||
        nc_inq_type(id, type, NULL, &size) != NC_NOERR)
        return;
    const bool is_record = rank > 0 && dims[0] == unlimited;
    double bytes = (double)size;
    for (int d = is_record; d < rank; d++)
        bytes *= nc_inq_dimlen(id, dims[d], &length) == NC_NOERR ? (double)length : 1;
    s->header += pad4((double)strlen(name)) + (double)(count * (3 + rank)) + attribute_bytes(id, v, attributes, count) +
                 4 + (double)offset;
    if (is_record) {
        s->record += pad4(bytes);
        s->record_unpadded = bytes;
        s->record_variables++;
    } else {
        s->fixed += pad4(bytes);
    }
}

/* The library reads zeros beyond the end of a classic file, so its length is compared here with what its header asks
 * for, but for the padding of the last variable. */
static wf_status check_classic_length(const char *path, int id, int format, int64_t length)
{
    const int64_t count = format == NC_FORMAT_CDF5 ? 8 : 4, offset = format == NC_FORMAT_CLASSIC ? 4 : 8;
    int dims = 0, variables = 0, attributes = 0, unlimited = -1;
    size_t records = 0;
    classic_size s = {.header = (double)(4 + count + 2 * (4 + count))};
    nc_inq(id, &dims, &variables, &attributes, &unlimited);
    if (unlimited >= 0)
        nc_inq_dimlen(id, unlimited, &records);
    for (int d = 0; d < dims; d++) {
        char name[NC_MAX_NAME + 1] = "";
        nc_inq_dimname(id, d, name);
        s.header += 2 * (double)count + pad4((double)strlen(name));
    }
    s.header += attribute_bytes(id, NC_GLOBAL, attributes, count);
    for (int v = 0; v < variables; v++)
        add_classic_variable(id, v, unlimited, count, offset, &s);
    /* Records of a single variable are not padded. */
    const double record = s.record_variables == 1 ? s.record_unpadded : s.record;
    const double least = s.header + s.fixed + (double)records * record - 3;
    WF_CHECK((double)length >= least, WF_ERR_FORMAT, "%s: is cut off: it should have %.0f bytes at least, and has %lld",
             path, least, (long long)length);
    return WF_OK;
}

/* --- Opening ------------------------------------------------------------------------------------------------------ */

static wf_status open_locked(const char *path, int64_t length, wf_nc *f)
{
    int format = 0;
    const int error = nc_open(path, NC_NOWRITE, &f->id);
    if (error != NC_NOERR)
        return fail_netcdf(WF_ERR_FORMAT, path, "open (no netCDF file, damaged or cut off)", "", error);
    wf_status status = WF_OK;
    if (nc_inq_format(f->id, &format) != NC_NOERR || nc_inq_nvars(f->id, &f->variables) != NC_NOERR)
        status = WF_RAISE(WF_ERR_FORMAT, "%s: has no variables that can be listed", path);
    else if (format != NC_FORMAT_NETCDF4 && format != NC_FORMAT_NETCDF4_CLASSIC)
        status = check_classic_length(path, f->id, format, length);
    if (status != WF_OK)
        nc_close(f->id);
    return status;
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
    double fill; /* the library's, of elements that nobody wrote; bytes have none */
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

/* The attribute if it is one number, else `otherwise`. */
static double number_attribute(const wf_nc *f, int variable, const char *name, double otherwise)
{
    size_t length = 0;
    double value;
    const bool is_number = nc_inq_attlen(f->id, variable, name, &length) == NC_NOERR && length == 1 &&
                           nc_get_att_double(f->id, variable, name, &value) == NC_NOERR;
    return is_number ? value : otherwise;
}

static void read_missing(const wf_nc *f, wf_nc_variable *v, double fill)
{
    static const char *const names[] = {"_FillValue", "missing_value"};
    size_t length;
    for (int i = 0; i < 2; i++)
        if (nc_inq_attlen(f->id, v->id, names[i], &length) == NC_NOERR && length == 1)
            v->missing[v->n_missing++] = number_attribute(f, v->id, names[i], fill);
    /* _FillValue takes the place of the library's. */
    if (fill != 0 && nc_inq_attlen(f->id, v->id, names[0], &length) != NC_NOERR)
        v->missing[v->n_missing++] = fill;
}

static wf_status describe_locked(const wf_nc *f, int id, wf_nc_variable *v)
{
    nc_type type = NC_NAT;
    int dims[NC_MAX_VAR_DIMS];
    size_t length = 0;
    *v = (wf_nc_variable){.id = id, .type = "other"};
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
    v->scale = number_attribute(f, id, "scale_factor", 1);
    v->offset = number_attribute(f, id, "add_offset", 0);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].type == type) {
            v->type = types[i].name;
            v->numbers = type != NC_CHAR;
            v->single = type == NC_FLOAT;
            read_missing(f, v, types[i].fill);
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
    for (int v = 0; v < f->variables; v++)
        if (nc_inq_varname(f->id, v, one) == NC_NOERR && strlen(list) + strlen(one) + 8 < sizeof list)
            snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", *list ? ", " : "", one);
    WF_FAIL(WF_ERR_FORMAT, "%s: there is no variable %s; there are %s", f->path, name, *list ? list : "none");
}

wf_status wf_nc_find(wf_nc *file, const char *name, wf_nc_variable *variable)
{
    int id;
    wf_h5_lock();
    const wf_status status =
        nc_inq_varid(file->id, name, &id) == NC_NOERR ? describe_locked(file, id, variable) : fail_unknown(file, name);
    wf_h5_unlock();
    return status;
}

bool wf_nc_is_time(wf_nc *file, const char *dimension)
{
    char units[256] = "";
    int id, n = 0, unlimited[NC_MAX_DIMS];
    size_t length;
    bool is_time = false;
    wf_h5_lock();
    if (nc_inq_varid(file->id, dimension, &id) == NC_NOERR &&
        nc_inq_attlen(file->id, id, "units", &length) == NC_NOERR && length < sizeof units &&
        nc_get_att_text(file->id, id, "units", units) == NC_NOERR)
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
    for (int d = 0; d < box->rank; d++) {
        start[d] = (size_t)box->lo[d];
        count[d] = (size_t)(box->hi[d] - box->lo[d]);
    }
    wf_h5_lock();
    const int error = nc_get_vara_double(file->id, variable->id, start, count, values);
    wf_h5_unlock();
    return error == NC_NOERR ? WF_OK : fail_netcdf(WF_ERR_FORMAT, file->path, "read", variable->name, error);
}
