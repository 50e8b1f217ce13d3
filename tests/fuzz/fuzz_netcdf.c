/* netCDF files as wf_netcdf_dataset meets them: variables of any type, shape and attributes. The input says what is in
 * the file, which netCDF's library writes, so that the file is sound. A classic one may be damaged and cut off
 * afterwards: Weft reads its header before the library does. Damaged files of netCDF-4 are HDF5's own matter. */
#include "datasets/netcdf.h"
#include "tests/fuzz/fuzz_samples.h"

#include <netcdf.h>

enum { DIMS = 4, VARIABLES = 4, ELEMENTS = 512, MOST_TEXT = 12 };

static const char *const dim_names[DIMS] = {"t", "z", "y", "x"};
static const char *const names[VARIABLES] = {"a", "b", "t", "y"};

/* Seldom long. Damage makes dimensions that the file has no room for. */
static size_t any_length(input *in)
{
    const unsigned n = take(in);
    return n < 240 ? n % 7 : 16;
}

static void add_attribute(input *in, int file, int variable)
{
    static const char *const list[] = {"_FillValue", "missing_value", "scale_factor",
                                       "add_offset", "_Unsigned",     "units"};
    const char *name = list[take(in) % 6], *text = take(in) % 2 ? "true" : "days since 2000-01-01";
    const unsigned how = take(in) % 8;
    double number[MOST_TEXT] = {0};
    const size_t n = take(in) % MOST_TEXT;
    for (size_t i = 0; i < n; i++)
        number[i] = (int8_t)take(in) / 4.0;
    if (how == 0)
        nc_put_att_text(file, variable, name, n < strlen(text) ? n : strlen(text), text);
    else if (how == 1)
        nc_put_att_string(file, variable, name, 1, &text);
    else
        nc_put_att_double(file, variable, name, how == 2 ? NC_SHORT : how == 3 ? NC_BYTE : NC_DOUBLE, n, number);
}

static void add_variable(input *in, int file, const char *name, int dims)
{
    int id, dim[NC_MAX_VAR_DIMS];
    const nc_type type = (nc_type)(1 + take(in) % 12); /* from NC_BYTE to NC_STRING */
    const int rank = (int)(take(in) % 8);
    for (int d = 0; d < rank; d++)
        dim[d] = (int)(take(in) % (unsigned)dims);
    if (nc_def_var(file, name, type, rank, dim, &id) != NC_NOERR)
        return;
    for (unsigned n = take(in) % 4; n > 0; n--)
        add_attribute(in, file, id);
}

/* Elements of a variable that is small, out of the input; two records of one that is unlimited. */
static void write_elements(input *in, int file, int id)
{
    double x[ELEMENTS];
    size_t first[NC_MAX_VAR_DIMS] = {0}, count[NC_MAX_VAR_DIMS], all = 1;
    int rank = 0, unlimited = -1, dim[NC_MAX_VAR_DIMS];
    if (nc_inq_var(file, id, NULL, NULL, &rank, dim, NULL) != NC_NOERR || nc_inq_unlimdim(file, &unlimited) != NC_NOERR)
        return;
    for (int d = 0; d < rank; d++) {
        nc_inq_dimlen(file, dim[d], &count[d]);
        count[d] = dim[d] == unlimited ? 2 : count[d];
        all = count[d] > ELEMENTS || all * count[d] > ELEMENTS ? ELEMENTS + 1 : all * count[d];
    }
    if (all > ELEMENTS)
        return;
    const unsigned step = take(in);
    for (size_t i = 0; i < all; i++)
        x[i] = step < 128 ? (double)(i * step) / 8 : (int8_t)take(in);
    nc_put_vara_double(file, id, first, count, x);
}

/* Returns true if the file is classic. */
static bool make_file(input *in, const char *path)
{
    static const int formats[] = {0, NC_64BIT_OFFSET, NC_64BIT_DATA, NC_NETCDF4};
    const int format = formats[take(in) % 4], dims = 1 + (int)(take(in) % DIMS);
    const unsigned unlimited = take(in) % 8;
    int file, id, filled;
    fuzz_need(nc_create(path, NC_CLOBBER | format, &file) == NC_NOERR, "netCDF cannot create a file");
    nc_set_fill(file, NC_NOFILL, &filled);
    for (int d = 0; d < dims; d++)
        nc_def_dim(file, dim_names[d], d == (int)unlimited ? NC_UNLIMITED : any_length(in), &id);
    const unsigned variables = 1 + take(in) % VARIABLES;
    for (unsigned v = 0; v < variables; v++)
        add_variable(in, file, names[v], dims);
    if (nc_enddef(file) != NC_NOERR) {
        nc_abort(file); /* which removes the file; a close that fails would keep the number of the file for ever */
        return false;
    }
    for (unsigned v = 0; v < variables; v++)
        write_elements(in, file, (int)v);
    nc_close(file);
    return format != NC_NETCDF4;
}

/* Replaces some bytes and cuts off the end. */
static void damage(input *in, const char *path)
{
    const int file = open(path, O_RDWR);
    fuzz_need(file >= 0, "cannot open a file");
    const off_t bytes = lseek(file, 0, SEEK_END);
    for (unsigned n = take(in) % 8; n > 0 && bytes > 0; n--) {
        const off_t at = (off_t)(take(in) + 256 * (take(in) % 4)) % bytes;
        const uint8_t byte = (uint8_t)take(in);
        fuzz_need(pwrite(file, &byte, 1, at) == 1, "cannot damage a file");
    }
    const off_t less = take(in) % 32 ? 0 : (off_t)take(in);
    fuzz_need(ftruncate(file, bytes > less ? bytes - less : 0) == 0, "cannot cut a file off");
    close(file);
}

static wf_status visit(void *user, const char *name, const char *type, wf_shape shape, const char *dimensions)
{
    fuzz_need(*type && shape.rank <= WF_MAX_RANK && strlen(name) < WF_NETCDF_NAME && dimensions, "an odd variable");
    return WF_OK;
}

static wf_netcdf_opts any_options(input *in)
{
    static const char *const variables[] = {"a", "b", "a,b", "a[0:1]", "b[1:3],a", "t", "y", "a[2:1]"};
    static const char *const times[] = {NULL, NULL, "t", ""};
    const unsigned how = take(in), more = take(in);
    return (wf_netcdf_opts){.variables = variables[how % 8],
                            .time = times[how / 8 % 4],
                            .level = how & 32 ? "z" : NULL,
                            .y = how & 64 ? "y" : NULL,
                            .x = how & 128 ? "x" : NULL,
                            .frames = more % 4,
                            .ahead = more / 4 % 4,
                            .mask = more & 16,
                            .missing = -1};
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    input in = {data, size};
    double place[4];
    if (!fuzz_named.fd)
        make_name();
    if (size < 1 || size > 1 << 12)
        return 0;
    const wf_netcdf_opts opts = any_options(&in);
    if (make_file(&in, fuzz_named.path))
        damage(&in, fuzz_named.path);
    fuzz_end(wf_netcdf_each(fuzz_named.path, visit, NULL));
    wf_dataset *dataset = wf_netcdf_dataset(fuzz_ctx(), fuzz_named.path, opts);
    fuzz_end(wf_netcdf_coordinate(dataset, "y", 4, place));
    fuzz_dataset(dataset, 16);
    return 0;
}
