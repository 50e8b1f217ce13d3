/* Headers of classic netCDF files as a hostile or a careless program writes them: names and dimensions that would
 * overflow libnetcdf's buffers, counts that pass the end of the file, and files that are cut off although they are
 * longer than their variables. */
#include "datasets/netcdf.h"
#include "tests/datasets/datasets_files.h"

#include <netcdf.h>

enum { H = 5, W = 6 };

#define NC(call)                                                                                                       \
    do {                                                                                                               \
        const int nc_error_ = (call);                                                                                  \
        WF_EXPECT(nc_error_ == NC_NOERR, "%s: %s", #call, nc_strerror(nc_error_));                                     \
    } while (0)

static test_folder folder;

static wf_status count_variable(void *user, const char *name, const char *type, wf_shape shape, const char *dimensions)
{
    ++*(int *)user;
    return WF_OK;
}

/* --- Headers written byte by byte --------------------------------------------------------------------------------- */

typedef struct written {
    int version;                        /* 1, 2 or 5 */
    int dimension, attribute, variable; /* lengths of names */
    int rank;
    uint64_t attributes, elements, records; /* counts that the header claims */
} written;

static void put(FILE *f, uint64_t value, int bytes)
{
    while (bytes-- > 0)
        fputc((int)(value >> 8 * bytes & 0xff), f);
}

static void put_name(FILE *f, const written *w, int length)
{
    put(f, (uint64_t)length, w->version == 5 ? 8 : 4);
    for (int i = 0; i < (length + 3) / 4 * 4; i++)
        fputc(i < length ? 'a' + i % 26 : 0, f);
}

/* One dimension of length 1, an attribute f64, a variable i8 of `rank` times that dimension, and its element. */
static void write_header(const char *path, const written *w)
{
    const int count = w->version == 5 ? 8 : 4, offset = w->version == 1 ? 4 : 8;
    FILE *f = fopen(path, "wb");
    fwrite((char[]){'C', 'D', 'F', (char)w->version}, 1, 4, f);
    put(f, w->records, count);
    put(f, 10, 4);
    put(f, 1, count);
    put_name(f, w, w->dimension);
    put(f, 1, count);
    put(f, 12, 4);
    put(f, w->attributes, count);
    put_name(f, w, w->attribute);
    put(f, 6, 4);
    put(f, w->elements, count);
    put(f, 0, 8);
    put(f, 11, 4);
    put(f, 1, count);
    put_name(f, w, w->variable);
    put(f, (uint64_t)w->rank, count);
    for (int d = 0; d < w->rank; d++)
        put(f, 0, count);
    put(f, 0, 4); /* no attributes */
    put(f, 0, count);
    put(f, 1, 4);
    put(f, 4, count);
    put(f, (uint64_t)(ftell(f) + offset), offset);
    put(f, 5u << 24, 4);
    fclose(f);
}

static void expect_header(written w, wf_status code, const char *text)
{
    int n = 0;
    char what[96];
    write_header(test_path(&folder, "h.nc"), &w);
    snprintf(what, sizeof what, "CDF-%d, names of %d, %d, %d bytes, rank %d", w.version, w.dimension, w.attribute,
             w.variable, w.rank);
    const wf_status status = wf_netcdf_each(folder.file, count_variable, &n);
    WF_EXPECT(status == code && n == (code == WF_OK) && strstr(wf_error_message(), text), "%s: %s, %s, should say %s",
              what, wf_status_name(status), wf_error_message(), text);
    wf_error_clear();
}

static void bad_headers(void)
{
    static const int versions[] = {1, 2, 5};
    for (int i = 0; i < 3; i++) {
        const written good = {versions[i], 256, 256, 256, 3, 1, 1, 0};
        written w = good;
        expect_header(w, WF_OK, "");
        w.dimension = 300;
        expect_header(w, WF_ERR_FORMAT, "h.nc: has a name of 300 bytes: should be at most 256");
        w = good, w.attribute = 301;
        expect_header(w, WF_ERR_FORMAT, "h.nc: has a name of 301 bytes: should be at most 256");
        w = good, w.variable = 257;
        expect_header(w, WF_ERR_FORMAT, "h.nc: has a name of 257 bytes: should be at most 256");
        w = good, w.rank = 2000;
        expect_header(w, WF_ERR_FORMAT, "h.nc: has a variable of 2000 dimensions: should be at most 1024");
        /* Fits into the library's buffers, but has more dimensions than a tensor. */
        w = good, w.rank = 1024;
        expect_header(w, WF_ERR_FORMAT, "has 1024 dimensions: should be at most");
        w = good, w.elements = UINT32_MAX;
        expect_header(w, WF_ERR_FORMAT, "is cut off or damaged: its header has 34359738360 bytes more");
        /* The list of variables is read as a second attribute, whose name CDF-5 finds in its tag, 11, times 2^32. */
        w = good, w.attributes = 2;
        expect_header(w, WF_ERR_FORMAT, versions[i] == 5 ? "has a name of 47244640256 bytes" : "is damaged");
    }
    /* Eight times this number does not fit into 64 bits. */
    expect_header((written){5, 1, 1, 1, 1, 1, UINT64_MAX / 8 + 2, 0}, WF_ERR_FORMAT, "is cut off or damaged");
    expect_header((written){5, 1, 1, 1, 1, 1, UINT64_MAX, 0}, WF_ERR_FORMAT, "is cut off or damaged");
}

/* --- Files that are cut off --------------------------------------------------------------------------------------- */

/* A file whose header has 5000 bytes of reserve, with 30 bytes that are padded to 32: fixed, the only variable of two
 * records, or the first of two variables of them. */
static void write_reserved(const char *path, int format, int kind)
{
    const unsigned char bytes[2 * H * W] = {1};
    int f, dim[3], v, other;
    NC(nc_create(path, format, &f));
    NC(nc_def_dim(f, "t", NC_UNLIMITED, &dim[0]));
    NC(nc_def_dim(f, "y", H, &dim[1]));
    NC(nc_def_dim(f, "x", W, &dim[2]));
    NC(nc_def_var(f, "v", NC_BYTE, kind ? 3 : 2, kind ? dim : dim + 1, &v));
    if (kind == 2)
        NC(nc_def_var(f, "w", NC_BYTE, 3, dim, &other));
    NC(nc__enddef(f, 5000, 4, 0, 4));
    NC(nc_put_vara_uchar(f, v, (size_t[]){0, 0, 0}, kind ? (size_t[]){2, H, W} : (size_t[]){H, W}, bytes));
    NC(nc_close(f));
}

static void expect_cut(const char *path, int64_t length, int64_t missing)
{
    int n = 0;
    char text[96];
    WF_EXPECT(truncate(path, length - missing) == 0, "cannot cut");
    snprintf(text, sizeof text, "r.nc: is cut off: %lld bytes are missing: should have %lld", (long long)missing,
             (long long)length);
    TEST_FAILS(WF_ERR_FORMAT, wf_netcdf_each(path, count_variable, &n), text, "");
}

static void reserved_headers(void)
{
    static const int formats[] = {0, NC_64BIT_OFFSET, NC_64BIT_DATA};
    for (int i = 0; i < 9; i++) {
        const int padding = i / 3 == 1 ? 0 : 2; /* records of a single variable have none */
        const char *path = test_path(&folder, "r.nc");
        struct stat info = {0};
        int n = 0;
        write_reserved(path, NC_CLOBBER | formats[i % 3], i / 3);
        WF_EXPECT(stat(path, &info) == 0 && info.st_size > 5000, "%lld bytes", (long long)info.st_size);
        const int64_t length = info.st_size - padding;
        WF_EXPECT(truncate(path, length) == 0, "cannot cut");
        WF_EXPECT_OK(wf_netcdf_each(path, count_variable, &n));
        WF_EXPECT(n == 1 + i / 6, "%d variables", n);
        expect_cut(path, length, 1);
        expect_cut(path, length, 3000);
    }
}

int main(int argc, char **argv)
{
    folder = test_folder_new();
    const int failed =
        test_main(argc, argv, (test_case[]){{"bad_headers", bad_headers}, {"reserved_headers", reserved_headers}, {0}});
    test_folder_free(&folder);
    return failed;
}
