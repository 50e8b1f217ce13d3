/* The wrapper of libnetcdf (netcdf_file.c, or no_netcdf.c where it is absent), and what wf_netcdf_dataset and its
 * climatology share. */
#ifndef WF_DATASETS_NETCDF_IMPL_H
#define WF_DATASETS_NETCDF_IMPL_H

#include "datasets/dataset_author.h"
#include "datasets/netcdf.h"

/* --- netcdf_file.c: may be called from any thread ------------------------------------------------------------------
 */

typedef struct wf_nc wf_nc; /* an open file */

/* Numbers in one of _FillValue and missing_value, at most. */
enum { WF_NC_MISSING = 8 };

typedef struct wf_nc_variable {
    char name[WF_NETCDF_NAME];
    const char *type;
    int id, rank;
    bool numbers; /* its type is one of integers or floats */
    bool single;  /* stored as f32, so that missing values are compared as f32 */
    int64_t dim[WF_MAX_RANK];
    char dim_name[WF_MAX_RANK][WF_NETCDF_NAME];
    double scale, offset; /* of wf_nc_find only */
    double wrap;          /* added to negative numbers, which an attribute declares unsigned; 0: none */
    double fill;          /* the library's fill value of its type; 0: none */
    int n_missing;
    double missing[2 * WF_NC_MISSING]; /* of wf_nc_find only */
} wf_nc_variable;

/* Reads the header of a classic file of `length` bytes (netcdf_header.c, without libnetcdf). WF_ERR_FORMAT: it is cut
 * off, or has a name or a variable that overflows libnetcdf's buffers. Other formats pass. */
wf_status wf_nc_check_header(const char *path, int64_t length) WF_NODISCARD;
/* WF_ERR_IO where there is no file, WF_ERR_FORMAT where it is no netCDF file or is cut off. */
wf_status wf_nc_open(const char *path, wf_nc **file) WF_NODISCARD;
void wf_nc_close(wf_nc *file); /* NULL is fine */
int wf_nc_variables(const wf_nc *file);
/* The variable of this number, without its missing values and how it is packed. */
wf_status wf_nc_describe(wf_nc *file, int id, wf_nc_variable *variable) WF_NODISCARD;
/* The variable of this name. WF_ERR_FORMAT: there is none (with a list), its missing values are no numbers, or its
 * scale or offset is not one number. */
wf_status wf_nc_find(wf_nc *file, const char *name, wf_nc_variable *variable) WF_NODISCARD;
/* Returns true if the dimension of this name is unlimited, or its coordinate has units of time. */
bool wf_nc_is_time(wf_nc *file, const char *dimension);
/* Numbers as they are stored, row-major, but for those of signed types that the file declares unsigned. */
wf_status wf_nc_read(wf_nc *file, const wf_nc_variable *variable, const wf_box *box, double *values) WF_NODISCARD;

/* --- netcdf.c ------------------------------------------------------------------------------------------------------
 */

/* A variable's place in the sample: channels [first, first + levels) of a frame. */
typedef struct wf_netcdf_field {
    wf_nc_variable variable;
    int time, level; /* dimensions; -1: none */
    int64_t first, levels, lowest;
} wf_netcdf_field;

typedef struct wf_netcdf {
    char *path, *variables, *time, *level, *y, *x;
    wf_netcdf_opts opts; /* its texts are those above */
    wf_nc *file;
    wf_netcdf_field *field;
    int n_fields;
    wf_netcdf_info info;
    double *room;
    size_t room_count;
    struct wf_climatology *climatology; /* NULL: values are as in the file */
} wf_netcdf;

/* One channel of one time: rows and columns of `plane`, a box of rank 2. NaN where an element is missing. */
wf_status wf_netcdf_plane(wf_netcdf *s, int64_t time, int64_t channel, const wf_box *plane,
                          double *values) WF_NODISCARD;
/* The state of a data set of this kind, which is opened. */
wf_status wf_netcdf_state(wf_dataset *dataset, wf_netcdf **state) WF_NODISCARD;

/* --- climatology.c -------------------------------------------------------------------------------------------------
 */

typedef struct wf_climatology {
    wf_climatology_opts opts;
    float *mean;                         /* [period,channels,rows,columns]; NaN: never there */
    double *deviation, *center, *spread; /* of each channel; the last two of the means */
} wf_climatology;
void wf_climatology_free(wf_climatology *c); /* NULL is fine */
/* Means at a place of a channel, and the climatology as a channel. */
float wf_climatology_mean(const wf_netcdf *s, int64_t time, int64_t channel, int64_t row, int64_t column);

#endif
