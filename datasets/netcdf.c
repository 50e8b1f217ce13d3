/* wf_netcdf_dataset: variables and levels of a netCDF file as channels, several times as one sample. netcdf_file.c
 * calls the library, climatology.c normalises. */
#include "datasets/netcdf.h"

#include "datasets/datasets_impl.h"
#include "datasets/netcdf_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- Variables that fit together ---------------------------------------------------------------------------------- */

/* NULL wants nothing. */
static bool same_name(const char *wanted, const char *name)
{
    return !wanted || strcmp(wanted, name) == 0;
}

/* Finds which dimension is time and which is levels; the last two are rows and columns. Names may be given; without,
 * the time is what the file's conventions say. */
static wf_status find_dimensions(wf_netcdf *s, wf_netcdf_field *f)
{
    const wf_nc_variable *v = &f->variable;
    const int lead = v->rank - 2;
    f->time = f->level = -1;
    WF_CHECK(v->numbers, WF_ERR_DTYPE, "%s: %s is %s: should be numbers", s->path, v->name, v->type);
    WF_CHECK(lead >= 0 && lead <= 2, WF_ERR_SHAPE,
             "%s: %s has %d dimensions: should be [time,level,row,column], of which "
             "the first two may be absent",
             s->path, v->name, v->rank);
    for (int d = 0; d < lead; d++) {
        const bool is_time = s->time ? strcmp(s->time, v->dim_name[d]) == 0 : wf_nc_is_time(s->file, v->dim_name[d]);
        if (is_time && f->time < 0)
            f->time = d;
        else
            f->level = d;
    }
    WF_CHECK(lead < 2 || f->time >= 0, WF_ERR_SHAPE,
             "%s: %s has dimensions %s and %s before its rows: one should be the "
             "time%s%s",
             s->path, v->name, v->dim_name[0], v->dim_name[1], s->time ? " " : "", s->time ? s->time : "");
    WF_CHECK(!s->time || !*s->time || f->time >= 0, WF_ERR_SHAPE,
             "%s: %s has no dimension %s, which should be the time", s->path, v->name, s->time);
    WF_CHECK(!s->level || (f->level >= 0 && same_name(s->level, v->dim_name[f->level])), WF_ERR_SHAPE,
             "%s: %s has no dimension %s, which should be the levels", s->path, v->name, s->level);
    WF_CHECK(same_name(s->y, v->dim_name[lead]) && same_name(s->x, v->dim_name[lead + 1]), WF_ERR_SHAPE,
             "%s: the last dimensions of %s are %s and %s: should be %s and %s", s->path, v->name, v->dim_name[lead],
             v->dim_name[lead + 1], s->y ? s->y : "any", s->x ? s->x : "any");
    return WF_OK;
}

/* The first variable says which times, rows and columns there are; the others must have the same, as they are channels
 * of one sample. */
static wf_status check_grid(wf_netcdf *s, const wf_netcdf_field *f)
{
    const wf_nc_variable *v = &f->variable;
    const int y = v->rank - 2, x = v->rank - 1;
    const int64_t times = f->time < 0 ? 1 : v->dim[f->time];
    const char *time = f->time < 0 ? "" : v->dim_name[f->time];
    wf_netcdf_info *i = &s->info;
    if (f == s->field) {
        *i = (wf_netcdf_info){.times = times, .rows = v->dim[y], .columns = v->dim[x]};
        snprintf(i->time, sizeof i->time, "%s", time);
        snprintf(i->y, sizeof i->y, "%s", v->dim_name[y]);
        snprintf(i->x, sizeof i->x, "%s", v->dim_name[x]);
    }
    WF_CHECK(times > 0 && v->dim[y] > 0 && v->dim[x] > 0, WF_ERR_SHAPE, "%s: %s has no elements", s->path, v->name);
    WF_CHECK(strcmp(time, i->time) == 0 && strcmp(v->dim_name[y], i->y) == 0 && strcmp(v->dim_name[x], i->x) == 0,
             WF_ERR_SHAPE, "%s: %s has dimensions %s, %s, %s, and %s %s, %s, %s: should be the same", s->path, v->name,
             time, v->dim_name[y], v->dim_name[x], s->field->variable.name, i->time, i->y, i->x);
    return WF_OK;
}

/* Reads "[A:B]" at `text`, or "" for all levels. */
static wf_status read_levels(wf_netcdf *s, wf_netcdf_field *f, const char *text)
{
    const int64_t all = f->level < 0 ? 1 : f->variable.dim[f->level];
    long long lo = 0, hi = all;
    char end = '\0', rest = '\0';
    /* A fourth conversion would be a character after the bracket. */
    if (*text)
        WF_CHECK(sscanf(text, "[%lld:%lld%c%c", &lo, &hi, &end, &rest) == 3 && end == ']', WF_ERR_ARGUMENT,
                 "netcdf: %s%s: levels should be [A:B]", f->variable.name, text);
    WF_CHECK(lo >= 0 && lo < hi && hi <= all, WF_ERR_ARGUMENT, "%s: %s has %lld levels: [%lld:%lld] should lie within",
             s->path, f->variable.name, (long long)all, lo, hi);
    WF_CHECK(hi - lo <= INT32_MAX, WF_ERR_SHAPE, "%s: %s has %lld levels: too many", s->path, f->variable.name,
             hi - lo);
    f->lowest = lo;
    f->levels = hi - lo;
    return WF_OK;
}

/* "name", or "name[A:B]" for some of its levels. */
static wf_status add_field(wf_netcdf *s, const char *text, size_t length)
{
    char name[WF_NETCDF_NAME + 64];
    wf_netcdf_field *f = &s->field[s->n_fields];
    WF_CHECK(length > 0 && length < sizeof name, WF_ERR_ARGUMENT,
             "netcdf: variables %s: should be names with commas "
             "between them",
             s->variables);
    memcpy(name, text, length);
    name[length] = '\0';
    const size_t bare = strcspn(name, "[");
    const char *levels = name[bare] ? text + bare : "";
    char range[64] = "";
    snprintf(range, sizeof range, "%.*s", *levels ? (int)(length - bare) : 0, levels);
    name[bare] = '\0';
    WF_TRY(wf_nc_find(s->file, name, &f->variable));
    WF_TRY(find_dimensions(s, f));
    WF_TRY(check_grid(s, f));
    WF_TRY(read_levels(s, f, range));
    f->first = s->info.channels;
    s->info.channels += f->levels;
    s->n_fields++;
    return WF_OK;
}

static wf_status add_fields(wf_netcdf *s)
{
    size_t n = 1;
    for (const char *at = s->variables; (at = strchr(at, ',')); at++)
        n++;
    s->field = calloc(n, sizeof *s->field);
    WF_CHECK(s->field, WF_ERR_MEMORY, "%s: no memory for %zu variables", s->path, n);
    for (const char *at = s->variables;; at++) {
        const size_t length = strcspn(at, ",");
        WF_TRY(add_field(s, at, length));
        at += length;
        if (!*at)
            return WF_OK;
    }
}

/* Leaves the names that the program gave: the file may be opened again. */
static void forget_file(wf_netcdf *s)
{
    wf_nc_close(s->file);
    free(s->field);
    free(s->room);
    wf_climatology_free(s->climatology);
    s->file = NULL;
    s->field = NULL;
    s->room = NULL;
    s->climatology = NULL;
    s->n_fields = 0;
    s->room_count = 0;
}

static wf_status netcdf_open(wf_dataset *dataset)
{
    wf_netcdf *s = dataset->state;
    const wf_netcdf_opts *o = &s->opts;
    wf_netcdf_info *i = &s->info;
    /* An open that failed may be tried again, and has left what it had read until then. */
    forget_file(s);
    WF_TRY(wf_nc_open(s->path, &s->file));
    WF_TRY(add_fields(s));
    /* Written as a quotient, since the product of two large options may overflow. */
    WF_CHECK((o->frames - 1) <= (i->times - 1) / o->ahead, WF_ERR_SHAPE,
             "%s: %lld frames, each %lld after the last, need %lld times: there are %lld", s->path,
             (long long)o->frames, (long long)o->ahead, (long long)((o->frames - 1) * o->ahead + 1),
             (long long)i->times);
    /* A double, since the product of lengths in a hostile file may overflow an int64_t. */
    WF_CHECK((double)o->frames * 4 * (double)i->channels * (double)i->rows * (double)i->columns < 0x1p50, WF_ERR_SHAPE,
             "%s: samples of %lld frames, %lld channels, %lld rows and %lld columns: too many elements", s->path,
             (long long)o->frames, (long long)i->channels, (long long)i->rows, (long long)i->columns);
    /* One plane in double: all reads go through it, so the kind is not concurrent. */
    s->room_count = (size_t)(i->rows * i->columns);
    s->room = calloc(s->room_count, sizeof *s->room);
    WF_CHECK(s->room, WF_ERR_MEMORY, "%s: no memory for a plane of %zu elements", s->path, s->room_count);
    dataset->info.count = i->times - (o->frames - 1) * o->ahead;
    dataset->info.dtype = WF_F32;
    dataset->info.shape = WF_SHAPE(o->frames * i->channels * (1 + o->mask), i->rows, i->columns);
    return WF_OK;
}

/* --- Reading ------------------------------------------------------------------------------------------------------ */

/* Attributes are often f64 where the elements are f32. -1e34 as f64 is no f32, so it is rounded as the elements were
 * when they were written; otherwise no element would equal it. */
static bool is_missing(const wf_nc_variable *v, double x)
{
    for (int i = 0; i < v->n_missing; i++) {
        const double m = v->single ? (double)(float)v->missing[i] : v->missing[i];
        if (x == m || (isnan(x) && isnan(m)))
            return true;
    }
    return false;
}

/* Values in double, scaled, missing ones as NaN: the one place that reads elements. */
wf_status wf_netcdf_plane(wf_netcdf *s, int64_t time, int64_t channel, const wf_box *plane, double *values)
{
    /* Channels are the levels of the variables, one after the other. */
    int n = 0;
    while (channel >= s->field[n].first + s->field[n].levels)
        n++;
    const wf_netcdf_field *f = &s->field[n];
    const wf_nc_variable *v = &f->variable;
    const int y = v->rank - 2;
    const int64_t level = f->lowest + channel - f->first, columns = plane->hi[1] - plane->lo[1];
    wf_box box = {.rank = v->rank};
    for (int d = 0; d < y; d++) {
        box.lo[d] = d == f->time ? time : level;
        box.hi[d] = box.lo[d] + 1;
    }
    for (int d = 0; d < 2; d++) {
        box.lo[y + d] = plane->lo[d];
        box.hi[y + d] = plane->hi[d];
    }
    if (wf_box_empty(*plane))
        return WF_OK;
    WF_TRY(wf_nc_read(s->file, v, &box, values));
    /* Missing numbers are compared as stored, before they are scaled. */
    for (int64_t i = 0; i < (plane->hi[0] - plane->lo[0]) * columns; i++) {
        const double value = values[i] * v->scale + v->offset;
        if (is_missing(v, values[i])) {
            values[i] = NAN;
            continue;
        }
        /* Samples are f32, so a number that f32 cannot hold is refused as an infinity is. */
        WF_CHECK(isfinite((float)value), WF_ERR_FORMAT,
                 "%s: %s is %g at time %lld, level %lld, row %lld, column %lld: should be a finite number or missing",
                 s->path, v->name, value, (long long)time, (long long)level, (long long)(plane->lo[0] + i / columns),
                 (long long)(plane->lo[1] + i % columns));
        values[i] = value;
    }
    return WF_OK;
}

/* One channel of a sample: a value, a mask of what is there, or the climatology of that time. */
typedef struct place {
    int64_t time, channel; /* of a frame */
    enum { VALUE, MASK, CLIMATOLOGY } what;
} place;

/* A sample's channels are all values, then all masks, then all climatologies; in each part frames are outermost. */
static place locate_channel(const wf_netcdf *s, int64_t sample, int64_t channel)
{
    const int64_t all = s->opts.frames * s->info.channels, part = channel / all;
    place p = {.channel = channel % s->info.channels};
    p.time = sample + channel % all / s->info.channels * s->opts.ahead;
    p.what = part == 0 ? VALUE : part == 1 && s->opts.mask ? MASK : CLIMATOLOGY;
    return p;
}

/* The mask is of the value after normalisation. */
static float normalise(const wf_netcdf *s, const place *p, double value, int64_t row, int64_t column)
{
    const wf_climatology *c = s->climatology;
    /* A value whose season has no mean cannot be normalised. It is given as missing, so the mask must say 0 as well: a
     * loss that is masked would otherwise train on `missing`. */
    const double mean = c ? (double)wf_climatology_mean(s, p->time, p->channel, row, column) : 0;
    const bool there = !isnan(value) && !isnan(mean);
    if (p->what == MASK)
        return there;
    if (!there)
        return s->opts.missing;
    return (float)(c ? (value - mean) / c->deviation[p->channel] : value);
}

static void write_climatology(const wf_netcdf *s, const place *p, const wf_box *plane, float *x)
{
    const wf_climatology *c = s->climatology;
    for (int64_t row = plane->lo[0]; row < plane->hi[0]; row++)
        for (int64_t column = plane->lo[1]; column < plane->hi[1]; column++) {
            const double mean = (double)wf_climatology_mean(s, p->time, p->channel, row, column);
            *x++ = isnan(mean) ? s->opts.missing : (float)((mean - c->center[p->channel]) / c->spread[p->channel]);
        }
}

/* Plane by plane: a box of a sample reads only its own rows and columns from the file. */
static wf_status netcdf_read_box(wf_dataset *dataset, int64_t index, const wf_sample_key *key, const wf_box *box,
                                 void *x, int64_t *label)
{
    wf_netcdf *s = dataset->state;
    float *to = x;
    const wf_box plane = {.rank = 2, .lo = {box->lo[1], box->lo[2]}, .hi = {box->hi[1], box->hi[2]}};
    const int64_t columns = plane.hi[1] - plane.lo[1], count = (plane.hi[0] - plane.lo[0]) * columns;
    /* A data set of this kind has no labels. */
    *label = 0;
    if (wf_box_empty(*box))
        return WF_OK;
    for (int64_t channel = box->lo[0]; channel < box->hi[0]; channel++, to += count) {
        const place p = locate_channel(s, index, channel);
        if (p.what == CLIMATOLOGY) {
            write_climatology(s, &p, &plane, to);
            continue;
        }
        WF_TRY(wf_netcdf_plane(s, p.time, p.channel, &plane, s->room));
        for (int64_t i = 0; i < count; i++)
            to[i] = normalise(s, &p, s->room[i], plane.lo[0] + i / columns, plane.lo[1] + i % columns);
    }
    return WF_OK;
}

static wf_status netcdf_read(wf_dataset *dataset, int64_t index, const wf_sample_key *key, void *x, int64_t *label)
{
    const wf_box whole = wf_box_of_shape(dataset->info.shape);
    return netcdf_read_box(dataset, index, key, &whole, x, label);
}

static void netcdf_free(wf_dataset *dataset)
{
    wf_netcdf *s = dataset->state;
    forget_file(s);
    free(s->path);
    free(s->variables);
    free(s->time);
    free(s->level);
    free(s->y);
    free(s->x);
}

static const wf_dataset_kind netcdf_kind = {
    .name = "netcdf",
    .open = netcdf_open,
    .read = netcdf_read,
    .read_box = netcdf_read_box,
    .free = netcdf_free,
};

/* --- What else it can be asked ------------------------------------------------------------------------------------ */

wf_status wf_netcdf_state(wf_dataset *dataset, wf_netcdf **state)
{
    WF_NEED(dataset);
    WF_CHECK(dataset->kind == &netcdf_kind, WF_ERR_ARGUMENT, "%s is no netcdf data set", dataset->kind->name);
    WF_TRY(wf_dataset_open(dataset));
    *state = dataset->state;
    return WF_OK;
}

wf_status wf_netcdf_info_get(wf_dataset *dataset, wf_netcdf_info *info)
{
    wf_netcdf *s = NULL;
    WF_TRY(wf_netcdf_state(dataset, &s));
    WF_NEED(info);
    *info = s->info;
    return WF_OK;
}

/* A variable of one dimension, scaled as the others. */
wf_status wf_netcdf_coordinate(wf_dataset *dataset, const char *name, int64_t count, double *values)
{
    wf_netcdf *s = NULL;
    wf_nc_variable v;
    char text[WF_SHAPE_TEXT];
    WF_TRY(wf_netcdf_state(dataset, &s));
    WF_NEED(name);
    WF_NEED(values);
    WF_TRY(wf_nc_find(s->file, name, &v));
    const wf_shape shape = wf_shape_make(v.rank, v.dim);
    WF_CHECK(v.numbers && v.rank == 1 && v.dim[0] == count, WF_ERR_SHAPE, "%s: %s is %s %s: should be %lld numbers",
             s->path, name, v.type, wf_shape_text(shape, text), (long long)count);
    const wf_box box = wf_box_of_shape(shape);
    WF_TRY(wf_nc_read(s->file, &v, &box, values));
    for (int64_t i = 0; i < count; i++)
        values[i] = values[i] * v.scale + v.offset;
    return WF_OK;
}

/* Room for all names of a variable, which the library bounds. */
static wf_status visit_all(wf_nc *file, wf_netcdf_visit visit, void *user)
{
    wf_nc_variable v;
    char names[WF_MAX_RANK * (WF_NETCDF_NAME + 2)];
    for (int id = 0; id < wf_nc_variables(file); id++) {
        WF_TRY(wf_nc_describe(file, id, &v));
        *names = '\0';
        for (int d = 0; d < v.rank; d++) {
            strcat(names, d ? ", " : "");
            strcat(names, v.dim_name[d]);
        }
        WF_TRY(visit(user, v.name, v.type, wf_shape_make(v.rank, v.dim), names));
    }
    return WF_OK;
}

wf_status wf_netcdf_each(const char *path, wf_netcdf_visit visit, void *user)
{
    wf_nc *file = NULL;
    WF_NEED(path);
    WF_TRY(wf_nc_open(path, &file));
    const wf_status status = visit_all(file, visit, user);
    wf_nc_close(file);
    return status;
}

static bool copy_text(wf_ctx *ctx, char **to, const char *text)
{
    *to = text ? wf_strdup(ctx, text) : NULL;
    return !text || *to;
}

/* Options that depend on the file are checked when it is opened. */
wf_dataset *wf_netcdf_dataset(wf_ctx *ctx, const char *path, wf_netcdf_opts opts)
{
    WF_NEED_NULL(ctx);
    WF_CHECK_NULL(path && *path, WF_ERR_ARGUMENT, "netcdf: no file");
    WF_CHECK_NULL(opts.variables && *opts.variables, WF_ERR_ARGUMENT, "netcdf: no variables");
    WF_CHECK_NULL(opts.frames >= 0 && opts.ahead >= 0, WF_ERR_ARGUMENT, "netcdf: %lld frames, each %lld after the last",
                  (long long)opts.frames, (long long)opts.ahead);
    wf_dataset *dataset = wf_dataset_new(ctx, &netcdf_kind, NULL, sizeof(wf_netcdf));
    if (!dataset)
        return NULL;
    wf_netcdf *s = dataset->state;
    s->opts = opts;
    s->opts.frames = opts.frames ? opts.frames : 1;
    s->opts.ahead = opts.ahead ? opts.ahead : 1;
    if (!copy_text(ctx, &s->path, path) || !copy_text(ctx, &s->variables, opts.variables) ||
        !copy_text(ctx, &s->time, opts.time) || !copy_text(ctx, &s->level, opts.level) ||
        !copy_text(ctx, &s->y, opts.y) || !copy_text(ctx, &s->x, opts.x)) {
        wf_dataset_free(dataset);
        return wf_error_null();
    }
    return dataset;
}
