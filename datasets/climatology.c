/* Normalises a netCDF data set by its climatology. The ranks share the rows; a row is summed by one rank in the order
 * of time, and what the others add to it are zeros, so the sums over ranks are exact and all results are the same on
 * any number of ranks. */
#include "comm/comm_author.h"
#include "datasets/netcdf_impl.h"

#include <math.h>
#include <stdlib.h>

void wf_climatology_free(wf_climatology *c)
{
    if (!c)
        return;
    free(c->mean);
    free(c->deviation);
    free(c);
}

/* Returns the place of the first mean of a channel's row. Means are [season][channel][row][column]. */
static int64_t mean_place(const wf_netcdf *s, int64_t season, int64_t channel, int64_t row)
{
    const wf_netcdf_info *i = &s->info;
    return ((season * i->channels + channel) * i->rows + row) * i->columns;
}

float wf_climatology_mean(const wf_netcdf *s, int64_t time, int64_t channel, int64_t row, int64_t column)
{
    const wf_climatology *c = s->climatology;
    return c->mean[mean_place(s, time % c->opts.period, channel, row) + column];
}

/* One computation: the rows of `part` are this rank's. Sums of one channel at a time: the memory is that of a plane,
 * whatever the length of the file. */
typedef struct summing {
    wf_netcdf *s;
    wf_comm *comm;
    wf_climatology *c;
    wf_box part; /* rows and columns */
    double *sum, *plane;
    int64_t *count, *rows_count; /* elements; of each channel and row */
    double *rows_sum;
} summing;

static int64_t part_count(const summing *m)
{
    return (m->part.hi[0] - m->part.lo[0]) * m->s->info.columns;
}

/* Means of one season and channel, of this rank's rows; the other rows stay 0. Missing values count in neither sum nor
 * number. */
static wf_status sum_season(summing *m, int64_t season, int64_t channel)
{
    const wf_climatology_opts *o = &m->c->opts;
    const int64_t n = part_count(m), start = m->part.lo[0] * m->s->info.columns;
    /* Seasons count from the file's beginning, the sum from `first`: the first time of the season at or after it. */
    const int64_t shift = (season - o->first % o->period + o->period) % o->period;
    for (int64_t i = 0; i < n; i++)
        m->count[i] = 0;
    for (int64_t time = o->first + shift; time < o->last; time += o->period) {
        WF_TRY(wf_netcdf_plane(m->s, time, channel, &m->part, m->plane));
        for (int64_t i = 0; i < n; i++)
            if (!isnan(m->plane[i])) {
                m->sum[start + i] += m->plane[i];
                m->count[i]++;
            }
    }
    for (int64_t i = 0; i < n; i++)
        m->sum[start + i] = m->count[i] ? m->sum[start + i] / (double)m->count[i] : NAN;
    return WF_OK;
}

/* The means of all seasons and channels, on all ranks. Each sum adds one rank's number to zeros, so it is exact. */
static wf_status sum_means(summing *m)
{
    const wf_netcdf_info *i = &m->s->info;
    const int64_t plane = i->rows * i->columns;
    for (int64_t season = 0; season < m->c->opts.period; season++)
        for (int64_t channel = 0; channel < i->channels; channel++) {
            for (int64_t e = 0; e < plane; e++)
                m->sum[e] = 0;
            /* A rank that cannot read must not leave the others in the sum. */
            WF_TRY(wf_agree_status(m->comm, sum_season(m, season, channel)));
            WF_TRY(wf_allreduce_f64(m->comm, m->sum, plane, WF_SUM));
            for (int64_t e = 0; e < plane; e++)
                m->c->mean[mean_place(m->s, season, channel, 0) + e] = (float)m->sum[e];
        }
    return WF_OK;
}

/* Squares of the differences from the means, row by row of this rank, in the order of time. A second pass over the
 * file: squares of the values themselves would cancel. */
static wf_status sum_differences(summing *m)
{
    const wf_netcdf_info *info = &m->s->info;
    const wf_climatology_opts *o = &m->c->opts;
    for (int64_t channel = 0; channel < info->channels; channel++)
        for (int64_t time = o->first; time < o->last; time++) {
            WF_TRY(wf_netcdf_plane(m->s, time, channel, &m->part, m->plane));
            for (int64_t i = 0; i < part_count(m); i++) {
                const int64_t row = m->part.lo[0] + i / info->columns, at = channel * info->rows + row;
                const float mean = m->c->mean[mean_place(m->s, time % o->period, channel, row) + i % info->columns];
                const double d = m->plane[i] - (double)mean;
                if (isnan(d))
                    continue;
                m->rows_sum[at] += d * d;
                m->rows_count[at]++;
            }
        }
    return WF_OK;
}

/* 1 for a constant channel, which is then only centred. */
static double deviation_of(double squares, double count)
{
    const double d = count > 0 ? sqrt(squares / count) : 0;
    return d > 0 ? d : 1;
}

static wf_status sum_deviations(summing *m)
{
    const wf_netcdf_info *info = &m->s->info;
    const int64_t rows = info->rows, n = info->channels * rows;
    WF_TRY(wf_agree_status(m->comm, sum_differences(m)));
    WF_TRY(wf_allreduce_f64(m->comm, m->rows_sum, n, WF_SUM));
    /* Rows are added in their order on every rank, so no partition shows. */
    WF_TRY(wf_allreduce_i64(m->comm, m->rows_count, n, WF_SUM));
    for (int64_t channel = 0; channel < info->channels; channel++) {
        double squares = 0, count = 0;
        for (int64_t at = channel * rows; at < (channel + 1) * rows; at++) {
            squares += m->rows_sum[at];
            count += (double)m->rows_count[at];
        }
        m->c->deviation[channel] = deviation_of(squares, count);
    }
    return WF_OK;
}

/* Center and spread of the means of a channel: every rank has all of them, and sums them in one order. */
static void describe_means(summing *m, int64_t channel)
{
    const wf_netcdf_info *info = &m->s->info;
    const int64_t plane = info->rows * info->columns;
    double sum = 0, squares = 0, count = 0;
    /* Mean first, then the squares about it. */
    for (int pass = 0; pass < 2; pass++)
        for (int64_t season = 0; season < m->c->opts.period; season++)
            for (int64_t e = 0; e < plane; e++) {
                const double mean = (double)m->c->mean[mean_place(m->s, season, channel, 0) + e];
                if (isnan(mean))
                    continue;
                if (pass == 0) {
                    sum += mean;
                    count++;
                } else {
                    squares += (mean - sum / count) * (mean - sum / count);
                }
            }
    m->c->center[channel] = count > 0 ? sum / count : 0;
    m->c->spread[channel] = deviation_of(squares, count);
}

static wf_status check_times(const wf_netcdf *s, wf_climatology_opts *o)
{
    o->period = o->period ? o->period : 12;
    o->last = o->last ? o->last : s->info.times;
    WF_CHECK(!s->climatology, WF_ERR_ARGUMENT, "%s: is normalised already", s->path);
    WF_CHECK(o->period > 0 && o->first >= 0 && o->first < o->last && o->last <= s->info.times, WF_ERR_ARGUMENT,
             "%s: a climatology of period %lld of times [%lld, %lld): should lie in [0, %lld)", s->path,
             (long long)o->period, (long long)o->first, (long long)o->last, (long long)s->info.times);
    /* Whole periods, so that every season has the same number of times. */
    WF_CHECK((o->last - o->first) % o->period == 0, WF_ERR_ARGUMENT,
             "%s: the %lld times [%lld, %lld) do not divide into periods of %lld", s->path,
             (long long)(o->last - o->first), (long long)o->first, (long long)o->last, (long long)o->period);
    return WF_OK;
}

static wf_status prepare_sums(summing *m, wf_climatology_opts opts)
{
    const wf_netcdf_info *i = &m->s->info;
    const size_t plane = (size_t)(i->rows * i->columns), channels = (size_t)i->channels;
    m->c = calloc(1, sizeof *m->c);
    WF_CHECK(m->c, WF_ERR_MEMORY, "%s: no memory for a climatology", m->s->path);
    m->c->opts = opts;
    m->c->mean = calloc((size_t)opts.period * channels * plane, sizeof *m->c->mean);
    m->c->deviation = calloc(3 * channels, sizeof *m->c->deviation);
    m->c->center = m->c->deviation ? m->c->deviation + channels : NULL;
    m->c->spread = m->c->deviation ? m->c->center + channels : NULL;
    m->sum = calloc(plane, sizeof *m->sum);
    m->plane = calloc(plane, sizeof *m->plane);
    m->count = calloc(plane, sizeof *m->count);
    m->rows_sum = calloc(channels * (size_t)i->rows, sizeof *m->rows_sum);
    m->rows_count = calloc(channels * (size_t)i->rows, sizeof *m->rows_count);
    WF_CHECK(m->c->mean && m->c->deviation && m->sum && m->plane && m->count && m->rows_sum && m->rows_count,
             WF_ERR_MEMORY, "%s: no memory for a climatology of %lld seasons", m->s->path, (long long)opts.period);
    m->part = (wf_box){.rank = 2, .hi = {0, i->columns}};
    /* Rows are divided among the ranks, columns are not. */
    wf_block(i->rows, wf_comm_size(m->comm), wf_comm_rank(m->comm), &m->part.lo[0], &m->part.hi[0]);
    return WF_OK;
}

static wf_status compute_climatology(summing *m)
{
    WF_TRY(sum_means(m));
    WF_TRY(sum_deviations(m));
    for (int64_t channel = 0; channel < m->s->info.channels; channel++)
        describe_means(m, channel);
    return WF_OK;
}

static wf_status start_climatology(wf_dataset *dataset, wf_climatology_opts *opts, summing *m)
{
    WF_TRY(wf_netcdf_state(dataset, &m->s));
    WF_TRY(check_times(m->s, opts));
    return prepare_sums(m, *opts);
}

wf_status wf_netcdf_normalise(wf_comm *comm, wf_dataset *dataset, wf_climatology_opts opts)
{
    WF_NEED(comm);
    summing m = {.comm = comm};
    wf_status status = wf_agree_status(comm, start_climatology(dataset, &opts, &m));
    if (status == WF_OK)
        status = compute_climatology(&m);
    free(m.sum);
    free(m.plane);
    free(m.count);
    free(m.rows_sum);
    free(m.rows_count);
    /* Nothing of a failed computation stays in the data set. */
    if (status != WF_OK) {
        wf_climatology_free(m.c);
        return wf_error_frame(status, __FILE__, __LINE__, __func__);
    }
    m.s->climatology = m.c;
    /* The climatology becomes channels of each frame: the shape that a program sees changes here. */
    if (opts.channels)
        dataset->info.shape.dim[0] += m.s->opts.frames * m.s->info.channels;
    return WF_OK;
}

static wf_status check_climatology(const wf_netcdf *s, int64_t time, const wf_box *box)
{
    char text[WF_SHAPE_TEXT];
    const wf_box whole = wf_box_of_shape(WF_SHAPE(s->info.channels, s->info.rows, s->info.columns));
    WF_CHECK(s->climatology, WF_ERR_ARGUMENT, "%s: is not normalised", s->path);
    WF_CHECK(time >= 0 && box->rank == 3 && wf_box_contains(whole, *box), WF_ERR_ARGUMENT,
             "%s: a climatology of time %lld, box of %s: should lie in [channels,rows,columns]", s->path,
             (long long)time, wf_shape_text(wf_box_shape(*box), text));
    return WF_OK;
}

wf_status wf_netcdf_climatology(const wf_dataset *dataset, int64_t time, const wf_box *box, float *mean,
                                double *deviation)
{
    wf_netcdf *s = NULL;
    WF_NEED(dataset);
    WF_NEED(box);
    WF_TRY(wf_netcdf_state((wf_dataset *)dataset, &s));
    WF_TRY(check_climatology(s, time, box));
    for (int64_t channel = box->lo[0]; channel < box->hi[0]; channel++) {
        if (deviation)
            *deviation++ = s->climatology->deviation[channel];
        for (int64_t row = box->lo[1]; mean && row < box->hi[1]; row++)
            for (int64_t column = box->lo[2]; column < box->hi[2]; column++)
                *mean++ = wf_climatology_mean(s, time, channel, row, column);
    }
    return WF_OK;
}
