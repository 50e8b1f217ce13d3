/* wf_netcdf_dataset against the numbers that the test wrote, bit for bit: every format, packed and missing elements,
 * levels, frames; boxes of any rank; climatologies, which are the same on any number of ranks; and files that are not
 * as they should be, with one line on all ranks. */
#include "comm/mesh.h"
#include "datasets/dataset_author.h"
#include "datasets/datasets.h"
#include "tests/file/folder.h"
#include "tests/ranks.h"
#include "tests/world.h"

#include <math.h>
#include <netcdf.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { T = 9, L = 3, H = 5, W = 6, PLANE = H * W };

#define NC(call)                                                                                                       \
    do {                                                                                                               \
        const int nc_error_ = (call);                                                                                  \
        WF_EXPECT(nc_error_ == NC_NOERR, "%s: %s", #call, nc_strerror(nc_error_));                                     \
    } while (0)

/* What is stored: a float with holes, and a packed integer with levels. */
static float stored_wind(int64_t t, int64_t i)
{
    return (t * 5 + i) % 11 == 0 ? -1e34f : (float)((t * 31 + i * 7 + t * i % 5) % 41) / 8 - 2;
}

static short stored_heat(int64_t t, int64_t l, int64_t i)
{
    return (t + l + i) % 13 == 0 ? -999 : (short)((t * 17 + l * 5 + i * 3) % 97);
}

static double value_of(int64_t t, int64_t channel, int64_t i)
{
    if (channel == 0)
        return stored_wind(t, i) == -1e34f ? NAN : (double)stored_wind(t, i);
    const short heat = stored_heat(t, channel - 1, i);
    return heat == -999 ? NAN : heat * 0.5 + 10;
}

static void write_values(int file, int wind, int heat)
{
    float u[PLANE];
    short q[L * PLANE];
    for (int64_t t = 0; t < T; t++) {
        for (int64_t i = 0; i < L * PLANE; i++)
            q[i] = stored_heat(t, i / PLANE, i % PLANE);
        for (int64_t i = 0; i < PLANE; i++)
            u[i] = stored_wind(t, i);
        NC(nc_put_vara_float(file, wind, (size_t[]){(size_t)t, 0, 0}, (size_t[]){1, H, W}, u));
        NC(nc_put_vara_short(file, heat, (size_t[]){(size_t)t, 0, 0, 0}, (size_t[]){1, L, H, W}, q));
    }
}

/* TIME is unlimited, or has units of time. */
static void make_file(const char *path, int format, bool unlimited)
{
    const double missing = -1e34, scale = 0.5, offset = 10, rows[H] = {-90, -45, 0, 45, 90};
    const short fill = -999;
    int f, dim[4], wind, heat, lat, time, text;
    NC(nc_create(path, format, &f));
    NC(nc_def_dim(f, "TIME", unlimited ? NC_UNLIMITED : T, &dim[0]));
    NC(nc_def_dim(f, "DEPTH", L, &dim[1]));
    NC(nc_def_dim(f, "LAT", H, &dim[2]));
    NC(nc_def_dim(f, "LON", W, &dim[3]));
    NC(nc_def_var(f, "LAT", NC_DOUBLE, 1, &dim[2], &lat));
    NC(nc_def_var(f, "TIME", NC_DOUBLE, 1, &dim[0], &time));
    NC(nc_put_att_text(f, time, "units", 18, "days since 1982-1-"));
    NC(nc_def_var(f, "WIND", NC_FLOAT, 3, (int[]){dim[0], dim[2], dim[3]}, &wind));
    NC(nc_put_att_double(f, wind, "missing_value", NC_DOUBLE, 1, &missing));
    NC(nc_def_var(f, "HEAT", NC_SHORT, 4, dim, &heat));
    NC(nc_put_att_short(f, heat, "_FillValue", NC_SHORT, 1, &fill));
    NC(nc_put_att_double(f, heat, "scale_factor", NC_DOUBLE, 1, &scale));
    NC(nc_put_att_double(f, heat, "add_offset", NC_DOUBLE, 1, &offset));
    NC(nc_def_var(f, "LETTERS", NC_CHAR, 2, &dim[2], &text));
    if (format & NC_NETCDF4)
        NC(nc_def_var_deflate(f, heat, 1, 1, 4));
    NC(nc_enddef(f));
    NC(nc_put_var_double(f, lat, rows));
    write_values(f, wind, heat);
    NC(nc_close(f));
}

static void make_once(const char *name, int format, bool unlimited)
{
    WF_EXPECT_OK(wf_barrier(comm));
    if (rank == 0)
        make_file(in_folder(name), format, unlimited);
    WF_EXPECT_OK(wf_barrier(comm));
}

/* --- Values ------------------------------------------------------------------------------------------------------- */

/* Every element of a rank's box: two frames of WIND with a distance of three times and two levels of HEAT, and their
 * masks. */
static void expect_box(wf_dataset *d, const wf_box *box)
{
    enum { C = 3, FRAMES = 2, AHEAD = 3 };
    static float x[4 * C * PLANE];
    for (int64_t sample = 0; sample < T - AHEAD; sample++) {
        const float *at = x;
        int64_t wrong = 0;
        WF_EXPECT_OK(wf_dataset_read_box(d, sample, &(wf_sample_key){0}, box, x, NULL));
        for (int64_t c = box->lo[0]; c < box->hi[0]; c++)
            for (int64_t row = box->lo[1]; row < box->hi[1]; row++)
                for (int64_t column = box->lo[2]; column < box->hi[2]; column++, at++) {
                    const int64_t time = sample + c / C % FRAMES * AHEAD, channel = c % C;
                    const double v = value_of(time, channel ? channel + 1 : 0, row * W + column);
                    const float expected = c >= FRAMES * C ? !isnan(v) : isnan(v) ? 7 : (float)v;
                    wrong += *at != expected;
                }
        WF_EXPECT(wrong == 0, "sample %lld: %lld elements are wrong", (long long)sample, (long long)wrong);
    }
}

static void values(void)
{
    static const int formats[] = {0, NC_64BIT_OFFSET, NC_64BIT_DATA, NC_NETCDF4};
    for (int i = 0; i < 8; i++) {
        make_once("a.nc", NC_CLOBBER | formats[i % 4], i < 4);
        wf_dataset *d = wf_netcdf_dataset(
            ctx, in_folder("a.nc"),
            (wf_netcdf_opts){.variables = "WIND,HEAT[1:3]", .frames = 2, .ahead = 3, .mask = true, .missing = 7});
        wf_dataset_info info = {0};
        WF_EXPECT_OK(wf_dataset_info_get(d, &info));
        WF_EXPECT(info.count == T - 3 && wf_shape_equal(info.shape, WF_SHAPE(12, H, W)) && !info.labels, "its shape");
        wf_box box = wf_box_of_shape(info.shape);
        wf_block(H, size, rank, &box.lo[1], &box.hi[1]);
        wf_block(W, 2, rank % 2, &box.lo[2], &box.hi[2]);
        wf_block(12, 3, i % 3, &box.lo[0], &box.hi[0]);
        expect_box(d, &box);
        expect_box(d, &(wf_box){.rank = 3, .hi = {12, H, W}});
        wf_dataset_free(d);
    }
}

/* Sharded batches, by way of a subset: every rank reads its rows alone. */
static void sharded(void)
{
    const int64_t chosen[] = {4, 1, 6};
    float x[PLANE];
    make_once("s.nc", NC_CLOBBER | NC_NETCDF4, true);
    wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.height = size});
    wf_dataset *d = wf_netcdf_dataset(ctx, in_folder("s.nc"), (wf_netcdf_opts){.variables = "WIND"});
    d = wf_mesh_scatter_dataset(mesh, wf_subset(d, 3, chosen), (wf_scatter_opts){.each_reads = true});
    wf_iter *iter = wf_batches(d, (wf_batch_opts){.size = 1, .sharded = true, .raw = true});
    for (wf_batch b = {0}; !b.last;) {
        WF_EXPECT_OK(wf_iter_next(iter, &b));
        if (!b.x)
            break;
        const wf_box box = wf_tensor_layout(b.x).box;
        int64_t wrong = 0;
        WF_EXPECT_OK(wf_tensor_export(b.x, x, wf_tensor_bytes(b.x)));
        for (int64_t i = 0; i < wf_tensor_count(b.x); i++) {
            const double v = value_of(chosen[box.lo[0] + b.index], 0, box.lo[2] * W + i);
            wrong += x[i] != (isnan(v) ? 0 : (float)v);
        }
        WF_EXPECT(wrong == 0 && (size == 1 || box.hi[2] - box.lo[2] < H), "%lld pixels are wrong", (long long)wrong);
    }
    wf_iter_free(iter);
    wf_mesh_close(mesh);
}

static wf_status count_variable(void *user, const char *name, const char *type, wf_shape shape, const char *dimensions)
{
    int *n = user;
    ++*n;
    if (strcmp(name, "HEAT") == 0)
        WF_EXPECT(strcmp(type, "i16") == 0 && wf_shape_equal(shape, WF_SHAPE(T, L, H, W)) &&
                      strcmp(dimensions, "TIME, DEPTH, LAT, LON") == 0,
                  "HEAT is %s of %s", type, dimensions);
    return WF_OK;
}

static void names(void)
{
    double rows[H];
    wf_netcdf_info info = {0};
    int n = 0;
    make_once("n.nc", NC_CLOBBER, true);
    wf_dataset *d = wf_netcdf_dataset(ctx, in_folder("n.nc"), (wf_netcdf_opts){.variables = "HEAT", .y = "LAT"});
    WF_EXPECT_OK(wf_netcdf_info_get(d, &info));
    WF_EXPECT(info.times == T && info.channels == L && info.rows == H && info.columns == W &&
                  strcmp(info.time, "TIME") == 0 && strcmp(info.y, "LAT") == 0 && strcmp(info.x, "LON") == 0,
              "its dimensions");
    WF_EXPECT_OK(wf_netcdf_coordinate(d, info.y, H, rows));
    WF_EXPECT(rows[0] == -90 && rows[4] == 90, "rows from %g to %g", rows[0], rows[4]);
    WF_EXPECT_ERROR(WF_ERR_SHAPE, wf_netcdf_coordinate(d, info.y, H - 1, rows));
    WF_EXPECT_ERROR(WF_ERR_FORMAT, wf_netcdf_coordinate(d, info.x, W, rows));
    WF_EXPECT_OK(wf_netcdf_each(in_folder("n.nc"), count_variable, &n));
    WF_EXPECT(n == 5, "%d variables", n);
    wf_dataset_free(d);
    /* Levels alone: what would be the time is not. */
    d = wf_netcdf_dataset(ctx, in_folder("n.nc"), (wf_netcdf_opts){.variables = "WIND", .time = ""});
    WF_EXPECT_OK(wf_netcdf_info_get(d, &info));
    WF_EXPECT(info.times == 1 && info.channels == T && !*info.time, "%lld channels", (long long)info.channels);
    wf_dataset_free(d);
}

/* --- Climatology -------------------------------------------------------------------------------------------------- */

enum { PERIOD = 3, FIRST = 1, LAST = 7, C = 2 };

/* Computes it in plain loops: rows one by one, each in the order of time. */
static void expected_climatology(float mean[PERIOD][C][PLANE], double deviation[C])
{
    for (int64_t c = 0; c < C; c++) {
        double squares = 0, count = 0;
        for (int64_t m = 0; m < PERIOD; m++)
            for (int64_t i = 0; i < PLANE; i++) {
                double sum = 0, n = 0;
                for (int64_t t = FIRST; t < LAST; t++)
                    if (t % PERIOD == m && !isnan(value_of(t, c, i))) {
                        sum += value_of(t, c, i);
                        n++;
                    }
                mean[m][c][i] = n > 0 ? (float)(sum / n) : NAN;
            }
        for (int64_t row = 0; row < H; row++) {
            double of_row = 0;
            for (int64_t t = FIRST; t < LAST; t++)
                for (int64_t i = row * W; i < (row + 1) * W; i++) {
                    const double d = value_of(t, c, i) - (double)mean[t % PERIOD][c][i];
                    of_row += isnan(d) ? 0 : d * d;
                    count += !isnan(d);
                }
            squares += of_row;
        }
        deviation[c] = sqrt(squares / count);
    }
}

static void expect_normal(const float *x, int64_t t, const float mean[PERIOD][C][PLANE], const double deviation[C])
{
    int64_t wrong = 0;
    for (int64_t i = 0; i < C * PLANE; i++) {
        const double v = value_of(t, i / PLANE, i % PLANE), m = (double)mean[t % PERIOD][i / PLANE][i % PLANE];
        wrong += x[i] != (isnan(v) || isnan(m) ? 0 : (float)((v - m) / deviation[i / PLANE]));
    }
    WF_EXPECT(wrong == 0, "time %lld: %lld elements are wrong", (long long)t, (long long)wrong);
}

static void climatology(void)
{
    static float mean[PERIOD][C][PLANE], x[2 * C * PLANE], m[C * PLANE];
    double deviation[C], found[C], sum = 0, squares = 0;
    const wf_box whole = {.rank = 3, .hi = {C, H, W}};
    int64_t n = 0, wrong = 0;
    make_once("c.nc", NC_CLOBBER, true);
    expected_climatology(mean, deviation);
    wf_dataset *d = wf_netcdf_dataset(ctx, in_folder("c.nc"), (wf_netcdf_opts){.variables = "WIND,HEAT[0:1]"});
    WF_EXPECT_OK(wf_netcdf_normalise(
        comm, d, (wf_climatology_opts){.period = PERIOD, .first = FIRST, .last = LAST, .channels = true}));
    WF_EXPECT(wf_dataset_count(d) == T, "%s", wf_error_message());
    for (int64_t t = 0; t < T; t++) {
        WF_EXPECT_OK(wf_dataset_read(d, t, &(wf_sample_key){0}, x, NULL));
        expect_normal(x, t, (const float(*)[C][PLANE])mean, deviation);
        WF_EXPECT_OK(wf_netcdf_climatology(d, t, &whole, m, found));
        for (int64_t i = 0; i < C * PLANE; i++)
            wrong += m[i] != mean[t % PERIOD][i / PLANE][i % PLANE] && !isnan(mean[t % PERIOD][i / PLANE][i % PLANE]);
        /* Over whole periods the channels of climatology have mean 0 and deviation 1. */
        for (int64_t i = 0; t < 2 * PERIOD && i < PLANE; i++, n++) {
            sum += (double)x[C * PLANE + i];
            squares += (double)x[C * PLANE + i] * (double)x[C * PLANE + i];
        }
    }
    WF_EXPECT(wrong == 0 && found[0] == deviation[0] && found[1] == deviation[1], "the climatology");
    WF_EXPECT(fabs(sum / (double)n) < 0.05 && fabs(squares / (double)n - 1) < 0.1, "its channels: mean %g, squares %g",
              sum / (double)n, squares / (double)n);
    WF_EXPECT_ERROR(WF_ERR_ARGUMENT, wf_netcdf_normalise(comm, d, (wf_climatology_opts){.period = PERIOD}));
    wf_dataset_free(d);
}

/* --- Files that are not as they should be ------------------------------------------------------------------------- */

static void expect_line(wf_status status, wf_status code, const char *what, const char *text)
{
    WF_EXPECT(status == code && strstr(wf_error_message(), text) && !strchr(wf_error_message(), '\n'),
              "%s: %s, \"%s\" does not say \"%s\"", what, wf_status_name(status), wf_error_message(), text);
    wf_error_clear();
}

/* Every rank has this error, on one line. */
static void expect_refused(const char *name, wf_netcdf_opts opts, wf_status code, const char *text)
{
    wf_dataset *d =
        wf_scatter_dataset(comm, wf_netcdf_dataset(ctx, in_folder(name), opts), (wf_scatter_opts){.each_reads = true});
    WF_EXPECT(!d, "%s with %s was opened", name, opts.variables);
    expect_line(wf_error_code(), code, opts.variables, text);
    wf_dataset_free(d);
}

static void bad_files(void)
{
    make_once("b.nc", NC_CLOBBER, true);
    expect_refused("none.nc", (wf_netcdf_opts){.variables = "WIND"}, WF_ERR_IO, "none.nc: cannot open: No such file");
    expect_refused("b.nc", (wf_netcdf_opts){.variables = "RAIN"}, WF_ERR_FORMAT,
                   "there is no variable RAIN; there are LAT, TIME, WIND, HEAT, LETTERS");
    expect_refused("b.nc", (wf_netcdf_opts){.variables = "LETTERS"}, WF_ERR_DTYPE, "LETTERS is text");
    expect_refused("b.nc", (wf_netcdf_opts){.variables = "LAT"}, WF_ERR_SHAPE, "LAT has 1 dimensions");
    expect_refused("b.nc", (wf_netcdf_opts){.variables = "WIND,"}, WF_ERR_ARGUMENT, "names with commas");
    expect_refused("b.nc", (wf_netcdf_opts){.variables = "HEAT[1:4]"}, WF_ERR_ARGUMENT, "HEAT has 3 levels");
    expect_refused("b.nc", (wf_netcdf_opts){.variables = "HEAT[1]"}, WF_ERR_ARGUMENT, "should be [A:B]");
    expect_refused("b.nc", (wf_netcdf_opts){.variables = "WIND", .y = "ROWS"}, WF_ERR_SHAPE, "should be ROWS and any");
    expect_refused("b.nc", (wf_netcdf_opts){.variables = "WIND", .time = "DAY"}, WF_ERR_SHAPE, "no dimension DAY");
    expect_refused("b.nc", (wf_netcdf_opts){.variables = "HEAT", .level = "HEIGHT"}, WF_ERR_SHAPE,
                   "no dimension HEIGHT");
    expect_refused("b.nc", (wf_netcdf_opts){.variables = "WIND", .frames = 4, .ahead = 3}, WF_ERR_SHAPE,
                   "4 frames, each 3 after the last, need 10 times: there are 9");
}

static void cut_files(void)
{
    static const int formats[] = {0, NC_64BIT_OFFSET, NC_64BIT_DATA, NC_NETCDF4};
    for (int i = 0; i < 8; i++) {
        make_once("cut.nc", NC_CLOBBER | formats[i % 4], i < 4);
        FILE *file = fopen(in_folder("cut.nc"), "r");
        fseek(file, 0, SEEK_END);
        const long length = ftell(file);
        fclose(file);
        WF_EXPECT_OK(wf_barrier(comm));
        WF_EXPECT(rank != 0 || truncate(in_folder("cut.nc"), i % 3 ? length - 8 : length / 2) == 0, "cannot cut");
        WF_EXPECT_OK(wf_barrier(comm));
        expect_refused("cut.nc", (wf_netcdf_opts){.variables = "WIND"}, WF_ERR_FORMAT, "cut off");
    }
}

/* --- Missing values ----------------------------------------------------------------------------------------------- */

static void write_missing(const char *path)
{
    const unsigned char bytes[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    const double several[9] = {1, 2, 3, 4, 6, 7, 7, 7, 7}, fill = 5;
    int f, dim[2], v[4];
    NC(nc_create(path, NC_CLOBBER | NC_NETCDF4, &f));
    NC(nc_def_dim(f, "y", 2, &dim[0]));
    NC(nc_def_dim(f, "x", 4, &dim[1]));
    NC(nc_def_var(f, "none", NC_UBYTE, 2, dim, &v[0]));
    NC(nc_def_var(f, "text", NC_UBYTE, 2, dim, &v[1]));
    NC(nc_put_att_text(f, v[1], "missing_value", 1, "-"));
    NC(nc_def_var(f, "eight", NC_FLOAT, 2, dim, &v[2]));
    NC(nc_put_att_double(f, v[2], "_FillValue", NC_FLOAT, 1, &fill));
    NC(nc_put_att_double(f, v[2], "missing_value", NC_DOUBLE, 8, several));
    NC(nc_def_var(f, "nine", NC_SHORT, 2, dim, &v[3]));
    NC(nc_put_att_double(f, v[3], "missing_value", NC_DOUBLE, 9, several));
    NC(nc_enddef(f));
    for (int i = 0; i < 4; i++)
        NC(nc_put_var_uchar(f, v[i], bytes));
    NC(nc_close(f));
}

static void missing_values(void)
{
    const float expected[16] = {0, -1, -1, -1, -1, -1, -1, -1, 1};
    float x[16] = {0};
    int n = 0;
    if (rank == 0)
        write_missing(in_folder("m.nc"));
    WF_EXPECT_OK(wf_barrier(comm));
    wf_dataset *d = wf_netcdf_dataset(ctx, in_folder("m.nc"), (wf_netcdf_opts){.variables = "none", .missing = -1});
    WF_EXPECT_OK(wf_dataset_open(d));
    WF_EXPECT_OK(wf_dataset_read(d, 0, &(wf_sample_key){0}, x, NULL));
    WF_EXPECT(x[0] == 0 && x[7] == 7, "from %g to %g", (double)x[0], (double)x[7]);
    wf_dataset_free(d);
    d = wf_netcdf_dataset(ctx, in_folder("m.nc"), (wf_netcdf_opts){.variables = "eight", .mask = true, .missing = -1});
    WF_EXPECT_OK(wf_dataset_open(d));
    WF_EXPECT_OK(wf_dataset_read(d, 0, &(wf_sample_key){0}, x, NULL));
    for (int i = 0; i < 16; i++)
        WF_EXPECT(x[i] == expected[i], "element %d is %g, should be %g", i, (double)x[i], (double)expected[i]);
    wf_dataset_free(d);
    expect_refused("m.nc", (wf_netcdf_opts){.variables = "text"}, WF_ERR_FORMAT,
                   "m.nc: missing_value of text is text: should be numbers");
    expect_refused("m.nc", (wf_netcdf_opts){.variables = "nine"}, WF_ERR_FORMAT,
                   "m.nc: missing_value of nine has 9 numbers: should be at most 8");
    /* A list shows them all. */
    WF_EXPECT_OK(wf_netcdf_each(in_folder("m.nc"), count_variable, &n));
    WF_EXPECT(n == 4, "%d variables", n);
}

/* Bytes that are unsigned by an attribute, and a time that is one by units which are a string of netCDF-4. */
static void write_attributes(const char *path)
{
    const signed char bytes[8] = {0, 127, -128, -56, -1, -2, 1, 2}, missing = -1;
    const char *since = "days since 2000-01-01", *yes = "true";
    int f, dim[3], v, time;
    NC(nc_create(path, NC_CLOBBER | NC_NETCDF4, &f));
    NC(nc_def_dim(f, "day", 2, &dim[0]));
    NC(nc_def_dim(f, "y", 2, &dim[1]));
    NC(nc_def_dim(f, "x", 2, &dim[2]));
    NC(nc_def_var(f, "day", NC_INT, 1, dim, &time));
    NC(nc_put_att_string(f, time, "units", 1, &since));
    NC(nc_def_var(f, "v", NC_BYTE, 3, dim, &v));
    NC(nc_put_att_schar(f, v, "missing_value", NC_BYTE, 1, &missing));
    NC(nc_put_att_text(f, v, "_Unsigned", strlen(yes), yes));
    NC(nc_enddef(f));
    NC(nc_put_var_schar(f, v, bytes));
    NC(nc_close(f));
}

/* Each variable has an attribute that CF does not allow. */
static void write_packing(const char *path)
{
    static const char *const name[4] = {"scaled", "moved", "twice", "string"};
    const char *half = "0.5";
    const double two[2] = {1, 2};
    int f, dim[2], v[4];
    NC(nc_create(path, NC_CLOBBER | NC_NETCDF4, &f));
    NC(nc_def_dim(f, "y", 2, &dim[0]));
    NC(nc_def_dim(f, "x", 4, &dim[1]));
    for (int i = 0; i < 4; i++)
        NC(nc_def_var(f, name[i], NC_SHORT, 2, dim, &v[i]));
    NC(nc_put_att_text(f, v[0], "scale_factor", 3, half));
    NC(nc_put_att_text(f, v[1], "add_offset", 3, half));
    NC(nc_put_att_double(f, v[2], "scale_factor", NC_DOUBLE, 2, two));
    NC(nc_put_att_string(f, v[3], "add_offset", 1, &half));
    NC(nc_close(f));
}

static void packing(void)
{
    int n = 0;
    if (rank == 0)
        write_packing(in_folder("p.nc"));
    WF_EXPECT_OK(wf_barrier(comm));
    expect_refused("p.nc", (wf_netcdf_opts){.variables = "scaled"}, WF_ERR_FORMAT,
                   "p.nc: scale_factor of scaled is text: should be a number");
    expect_refused("p.nc", (wf_netcdf_opts){.variables = "moved"}, WF_ERR_FORMAT,
                   "p.nc: add_offset of moved is text: should be a number");
    expect_refused("p.nc", (wf_netcdf_opts){.variables = "twice"}, WF_ERR_FORMAT,
                   "p.nc: scale_factor of twice has 2 numbers: should be one");
    expect_refused("p.nc", (wf_netcdf_opts){.variables = "string"}, WF_ERR_FORMAT,
                   "p.nc: add_offset of string is text: should be a number");
    /* A list shows them all. */
    WF_EXPECT_OK(wf_netcdf_each(in_folder("p.nc"), count_variable, &n));
    WF_EXPECT(n == 4, "%d variables", n);
}

static wf_status expect_u8(void *user, const char *name, const char *type, wf_shape shape, const char *dimensions)
{
    WF_EXPECT(strcmp(name, "v") != 0 || strcmp(type, "u8") == 0, "%s is %s", name, type);
    return WF_OK;
}

static void attributes(void)
{
    const float expected[8] = {0, 127, 128, 200, 7, 254, 1, 2};
    float x[8] = {0};
    if (rank == 0)
        write_attributes(in_folder("u.nc"));
    WF_EXPECT_OK(wf_barrier(comm));
    wf_dataset *d = wf_netcdf_dataset(ctx, in_folder("u.nc"), (wf_netcdf_opts){.variables = "v", .missing = 7});
    WF_EXPECT(wf_dataset_count(d) == 2, "%lld times", (long long)wf_dataset_count(d));
    for (int t = 0; t < 2; t++)
        WF_EXPECT_OK(wf_dataset_read(d, t, &(wf_sample_key){0}, x + 4 * t, NULL));
    for (int i = 0; i < 8; i++)
        WF_EXPECT(x[i] == expected[i], "element %d is %g, should be %g", i, (double)x[i], (double)expected[i]);
    WF_EXPECT_OK(wf_netcdf_each(in_folder("u.nc"), expect_u8, NULL));
    wf_dataset_free(d);
}

/* Element 0 is there at time 7, but at no time of its season, 1 and 4, of which the mean is made. */
static void normalised_mask(void)
{
    static float x[2 * PLANE];
    const float missing = -1e34f;
    int f, wind;
    make_once("k.nc", NC_CLOBBER, true);
    if (rank == 0) {
        NC(nc_open(in_folder("k.nc"), NC_WRITE, &f));
        NC(nc_inq_varid(f, "WIND", &wind));
        NC(nc_put_var1_float(f, wind, (size_t[]){1, 0, 0}, &missing));
        NC(nc_put_var1_float(f, wind, (size_t[]){4, 0, 0}, &missing));
        NC(nc_close(f));
    }
    WF_EXPECT_OK(wf_barrier(comm));
    wf_dataset *d =
        wf_netcdf_dataset(ctx, in_folder("k.nc"), (wf_netcdf_opts){.variables = "WIND", .mask = true, .missing = 77});
    WF_EXPECT_OK(wf_dataset_open(d));
    WF_EXPECT_OK(wf_dataset_read(d, 7, &(wf_sample_key){0}, x, NULL));
    WF_EXPECT(x[0] != 77 && x[PLANE] == 1, "before: %g, mask %g", (double)x[0], (double)x[PLANE]);
    WF_EXPECT_OK(wf_netcdf_normalise(comm, d, (wf_climatology_opts){.period = PERIOD, .first = FIRST, .last = LAST}));
    WF_EXPECT_OK(wf_dataset_read(d, 7, &(wf_sample_key){0}, x, NULL));
    WF_EXPECT(x[0] == 77, "without a mean: %g", (double)x[0]);
    for (int i = 0; i < PLANE; i++)
        WF_EXPECT(x[PLANE + i] == (x[i] == 77 ? 0 : 1), "element %d is %g, its mask %g", i, (double)x[i],
                  (double)x[PLANE + i]);
    wf_dataset_free(d);
}

static void bad_times(void)
{
    make_once("t.nc", NC_CLOBBER, true);
    wf_dataset *d = wf_netcdf_dataset(ctx, in_folder("t.nc"), (wf_netcdf_opts){.variables = "WIND"});
    expect_line(wf_netcdf_normalise(comm, d, (wf_climatology_opts){.period = 4}), WF_ERR_ARGUMENT, "nine times",
                "the 9 times [0, 9) do not divide into periods of 4");
    expect_line(wf_netcdf_normalise(comm, d, (wf_climatology_opts){.period = 3, .last = 12}), WF_ERR_ARGUMENT,
                "too many", "of times [0, 12): should lie in [0, 9)");
    /* A file that rank 0 lacks alone. */
    wf_dataset *other =
        wf_netcdf_dataset(ctx, in_folder(rank ? "t.nc" : "none.nc"), (wf_netcdf_opts){.variables = "WIND"});
    expect_line(wf_netcdf_normalise(comm, other, (wf_climatology_opts){.period = 3}), WF_ERR_IO, "no file", "none.nc");
    wf_dataset_free(other);
    wf_dataset_free(d);
}

/* NaN in the last row, which is that of the last rank, and no missing value: all ranks learn of it when it is read.
 * The communicator is dead afterwards. */
static void not_a_number(void)
{
    static const char line[] = "WIND is nan at time 2, level 0, row 4, column 3: should be a finite number or missing";
    const float nan = NAN;
    int f, wind;
    make_once("nan.nc", NC_CLOBBER, true);
    if (rank == 0) {
        NC(nc_open(in_folder("nan.nc"), NC_WRITE, &f));
        NC(nc_inq_varid(f, "WIND", &wind));
        NC(nc_put_var1_float(f, wind, (size_t[]){2, H - 1, 3}, &nan));
        NC(nc_close(f));
    }
    WF_EXPECT_OK(wf_barrier(comm));
    wf_dataset *d = wf_netcdf_dataset(ctx, in_folder("nan.nc"), (wf_netcdf_opts){.variables = "WIND"});
    expect_line(wf_netcdf_normalise(comm, d, (wf_climatology_opts){.period = 3}), WF_ERR_FORMAT, "its climatology",
                line);
    wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.height = size});
    wf_iter *iter = wf_batches(wf_mesh_scatter_dataset(mesh, d, (wf_scatter_opts){.each_reads = true}),
                               (wf_batch_opts){.size = 1, .sharded = true});
    wf_batch b = {0};
    wf_status status = WF_OK;
    double one = 1;
    for (int i = 0; i < T && status == WF_OK; i++) {
        status = wf_iter_next(iter, &b);
        if (status == WF_OK) /* as a step would: ranks whose rows are good learn of it in their next collective */
            status = wf_allreduce_f64(comm, &one, 1, WF_MAX);
    }
    expect_line(status, WF_ERR_FORMAT, "its batches", line);
    wf_iter_free(iter);
    wf_mesh_close(mesh);
}

static int run(int argc, char **argv)
{
    if (!ranks_open("auto"))
        return 1;
    folder_make();
    const int failed = test_main(argc, argv,
                                 (test_case[]){{"values", values},
                                               {"sharded", sharded},
                                               {"names", names},
                                               {"climatology", climatology},
                                               {"bad_files", bad_files},
                                               {"cut_files", cut_files},
                                               {"missing_values", missing_values},
                                               {"packing", packing},
                                               {"attributes", attributes},
                                               {"normalised_mask", normalised_mask},
                                               {"bad_times", bad_times},
                                               {0}});
    folder_remove();
    return ranks_close(failed);
}

static int run_last(int argc, char **argv)
{
    if (!ranks_open("auto"))
        return 1;
    folder_make();
    const int failed = test_main(argc, argv, (test_case[]){{"not_a_number", not_a_number}, {0}});
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    WF_EXPECT(rank != 0 || system(command) == 0, "cannot remove %s", folder);
    wf_error_clear();
    if (wf_comm_close(comm) != WF_OK)
        wf_error_clear();
    return failed || test_failures() > 0;
}

static int run_all(int argc, char **argv)
{
    const int failed = run(argc, argv);
    return run_last(argc, argv) || failed;
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, run_all);
}
