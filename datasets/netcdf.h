/* Fields on a grid in netCDF files (classic, 64-bit and netCDF-4), of which every rank reads its own box.
 *
 *     wf_dataset *all = wf_netcdf_dataset(ctx, "winds.nc", (wf_netcdf_opts){.variables = "UWND,VWND", .frames = 2});
 *     WF_MUST(wf_netcdf_normalise(comm, all, (wf_climatology_opts){.period = 12, .last = 108}));
 *     wf_dataset *part = wf_mesh_scatter_dataset(mesh, all, (wf_scatter_opts){.each_reads = true});
 *
 * A sample is f32 [channels,rows,columns]. Its channels are, for each of its frames in the order of time, the variables
 * in the order of their names here, each with its levels. Numbers are unpacked: scale_factor times what is stored, plus
 * add_offset. Integers whose _Unsigned is "true" are unsigned. Elements that are _FillValue or missing_value (each up
 * to 8 numbers), or, without _FillValue, the default fill value of their type, are missing.
 *
 * netCDF's library is not thread-safe, and calls HDF5. Weft holds the lock that it holds around HDF5 during every call.
 */
#ifndef WF_DATASETS_NETCDF_H
#define WF_DATASETS_NETCDF_H

#include "core/site.h"
#include "datasets/dataset.h"
#include "datasets/scatter.h"

#ifdef __cplusplus
extern "C" {
#endif

#define WF_NETCDF_NAME 257 /* bytes of a name, with the zero */

/* Dimensions are found by their names. The last two of each variable are rows and columns. */
typedef struct wf_netcdf_opts {
    /* Required: names with commas between them. "TEMP" has a channel for each of its levels, "TEMP[A:B]" for levels A
     * to B - 1. All have the same times, rows and columns. */
    const char *variables;
    /* Default: the unlimited dimension, or one whose coordinate says "units since date"; a variable without any is one
     * time. "": no dimension is time, so the variable's first may be its levels. */
    const char *time;
    const char *level, *y, *x; /* the variables' dimensions must have these names; default: any */
    int64_t frames;            /* times in a sample; default 1 */
    int64_t ahead;             /* times from a frame to the next one; default 1. Sample i begins at time i. */
    /* As many channels more, after all values: 1 where the value is there, 0 where it is missing; after
     * wf_netcdf_normalise 0 also where its season has no mean, since the value is then given as missing. */
    bool mask;
    float missing; /* what a missing element is given as, also after wf_netcdf_normalise; default 0 */
} wf_netcdf_opts;

/* Lazy and local, as the readers of datasets/readers.h. With wf_scatter_dataset an error of opening is the same on all
 * ranks. WF_ERR_IO: there is no such file; WF_ERR_FORMAT: it is damaged or cut off, lacks a variable, says by text
 * or by more than 8 numbers what is missing, has a scale_factor or add_offset that is not one number, or, when a sample
 * is read, has an element that is neither finite nor missing; WF_ERR_SHAPE: variables that do not fit together, or
 * fewer times than a sample has; WF_ERR_UNSUPPORTED: this build of Weft has no netCDF. */
wf_dataset *wf_netcdf_dataset(wf_ctx *ctx, const char *path, wf_netcdf_opts opts);

typedef struct wf_netcdf_info {
    int64_t times, channels, rows, columns;                          /* channels: of one frame */
    char time[WF_NETCDF_NAME], y[WF_NETCDF_NAME], x[WF_NETCDF_NAME]; /* dimensions; time "": none */
} wf_netcdf_info;
/* What such a data set found; opens it. WF_ERR_ARGUMENT for another one, also below. */
wf_status wf_netcdf_info_get(wf_dataset *dataset, wf_netcdf_info *info) WF_NODISCARD;
/* The variable that has this dimension's name: its `count` numbers. WF_ERR_SHAPE if it has another number of them. */
wf_status wf_netcdf_coordinate(wf_dataset *dataset, const char *name, int64_t count, double *values) WF_NODISCARD;

typedef struct wf_climatology_opts {
    int64_t period;      /* times after which the season is the same; default 12 */
    int64_t first, last; /* of these times, [first, last), whole periods; default: all */
    /* As many channels more, after those of the mask: the climatology of each value. */
    bool channels;
} wf_climatology_opts;

/* From here on a value is (value - mean) / deviation. The mean is that of its channel, element and season (time modulo
 * period) over the times of opts, the deviation that of these differences over all elements of the channel. Channels of
 * climatology are (mean - its mean over elements and seasons) / its deviation over them. A deviation of 0 counts as 1.
 *
 * The ranks of comm share the rows, each of which one rank sums in the order of time, so that the result does not
 * depend on the number of ranks. It is in memory on every rank: period x channels x rows x columns numbers of f32.
 * Every rank gives its own data set of the same file, before anything wraps it, once. WF_ERR_ARGUMENT on all ranks:
 * times that do not divide into periods. Collective. */
WF_PLACED wf_status wf_netcdf_normalise(wf_comm *comm, wf_dataset *dataset, wf_climatology_opts opts) WF_NODISCARD;

/* The means of the season of `time` in `box`, which is one of [channels,rows,columns] of a frame, and the deviation of
 * each channel of the box; each may be NULL. The data set is normalised. Local. */
wf_status wf_netcdf_climatology(const wf_dataset *dataset, int64_t time, const wf_box *box, float *mean,
                                double *deviation) WF_NODISCARD;

/* Calls `visit` with every variable of a file, in its order: the name of its type, its shape and the names of its
 * dimensions, as "TIME, LAT, LON". An error of visit ends the walk. Local. */
typedef wf_status (*wf_netcdf_visit)(void *user, const char *name, const char *type, wf_shape shape,
                                     const char *dimensions);
wf_status wf_netcdf_each(const char *path, wf_netcdf_visit visit, void *user) WF_NODISCARD;

#ifdef __cplusplus
}
#endif
#endif
