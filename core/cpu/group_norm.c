/* Normalisation of groups that have several places (group and instance normalisation): a sample is an array of rows of
 * channels, whose columns have moments and sums as those of batch normalisation have; groups are made of them, and
 * each channel gets the constants of its group. Groups of one place are done by group_runs.c. */
#include "core/cpu/group_impl.h"

/* A sample is cut at every SEGMENT elements, into SEGMENTS parts at most; below that a part is not worth a thread.
 * ALIGNED: bytes of a cache line, which two threads should not share. */
enum { SEGMENT = 65536, SEGMENTS = 32, ALIGNED = 64 };

typedef struct job job;
/* A pass over segment s of sample n, with a room of its own. */
typedef void (*phase)(const job *j, int64_t n, int64_t s, void *room);

struct job {
    const wf_group_norm_args *a;
    int64_t segments; /* of a sample; they depend on the shape alone, so the number of threads does not show */
    int64_t team;     /* threads */
    int64_t workers;  /* threads that take samples, if those have one segment */
    size_t each;      /* bytes of a room */
    size_t bytes;
    void *work;
    double *part; /* two numbers for each channel of each segment */
    double *own;  /* [2,K]: what groups have, if the caller gives no room for it */
    float *gamma, *beta;
    char *room;
};

static size_t rounded_up(size_t bytes)
{
    return (bytes + ALIGNED - 1) / ALIGNED * ALIGNED;
}

/* Segment s of sample n of an array, as rows of channels. */
static wf_array segment_of(const job *j, const wf_array *of, int64_t n, int64_t s)
{
    const wf_group_norm_args *const a = j->a;
    int64_t lo, hi;
    wf_block(a->places, j->segments, s, &lo, &hi);
    wf_array part = {.dtype = of->dtype, .order = WF_ROW_MAJOR, .shape = WF_SHAPE(hi - lo, a->channels)};
    part.data = (char *)of->data + (size_t)((n * a->places + lo) * a->channels) * wf_dtype_size(of->dtype);
    return part;
}

/* Two rows of channels: moments in forward, sums in backward. */
static double *rows_part(const job *j, int64_t n, int64_t s)
{
    return j->part + 2 * (n * j->segments + s) * j->a->channels;
}

static int64_t places_of(const job *j, int64_t s)
{
    int64_t lo, hi;
    wf_block(j->a->places, j->segments, s, &lo, &hi);
    return hi - lo;
}

/* One piece of memory holds everything of a call: sums of segments, sums of groups, factors as floats, and a room for
 * each thread or segment. A room has the work of the passes and five wide rows of constants. */
static wf_status begin_rows(wf_ctx *ctx, const wf_group_norm_args *a, job *j)
{
    const int64_t wanted = a->places * a->channels / SEGMENT,
                  most = wf_cpu_min(wanted, wf_cpu_min(a->places, SEGMENTS));
    *j = (job){.a = a, .segments = most > 1 ? most : 1};
    j->team = wf_cpu_team(ctx, a->rows * a->places * a->channels);
    j->workers = wf_cpu_min(j->team, a->rows);
    const wf_array x = segment_of(j, a->x, 0, 0);
    const long_rows r = long_rows_of(&x);
    size_t most_work = wf_cpu_column_moments_room(&x);
    if (a->dy) {
        const wf_array dy = segment_of(j, a->dy, 0, 0);
        most_work = wf_cpu_column_sums_room(&x, &dy);
    }
    j->each = rounded_up(rounded_up(most_work) + (size_t)(5 * r.w) * sizeof(float));
    const int64_t rooms = j->workers > j->segments ? j->workers : j->segments;
    const size_t parts = rounded_up((size_t)(2 * a->rows * j->segments * a->channels) * sizeof(double));
    const size_t groups = rounded_up((size_t)(2 * a->rows * a->groups) * sizeof(double));
    const size_t factors = rounded_up((size_t)(2 * a->channels) * sizeof(float));
    j->bytes = parts + groups + factors + (size_t)rooms * j->each;
    WF_TRY(wf_pool_take(ctx, j->bytes, &j->work));
    char *const base = j->work;
    j->part = j->work;
    j->own = (double *)(base + parts);
    j->gamma = (float *)(base + parts + groups);
    j->beta = j->gamma + a->channels;
    j->room = base + parts + groups + factors;
    const float *const gamma = wf_cpu_read(a->gamma, 0, a->channels, j->gamma);
    const float *const beta = wf_cpu_read(a->beta, 0, a->channels, j->beta);
    for (int64_t c = 0; c < a->channels; c++) {
        /* A layer without a scale or a bias has factors of 1 and 0, so the passes need no second form. */
        j->gamma[c] = gamma ? gamma[c] : 1.0F;
        j->beta[c] = beta ? beta[c] : 0.0F;
    }
    return WF_OK;
}

static void give_rows(wf_ctx *ctx, const job *j)
{
    wf_pool_give(ctx, j->work, j->bytes);
}

/* All of a sample goes through both phases while it is in the cache: samples of one segment by one thread each, longer
 * ones by all threads together. Between the phases `fold` puts the segments together. Any may be NULL. */
static void each_sample(const job *j, phase first, void (*fold)(const job *j, int64_t n), phase second)
{
    const int64_t rows = j->a->rows;
    if (j->segments == 1) {
#pragma omp parallel for num_threads((int)j->workers) schedule(static)
        for (int64_t w = 0; w < j->workers; w++) {
            int64_t lo, hi;
            wf_block(rows, j->workers, w, &lo, &hi);
            for (int64_t n = lo; n < hi; n++) {
                if (first)
                    first(j, n, 0, j->room + (size_t)w * j->each);
                fold(j, n);
                if (second)
                    second(j, n, 0, j->room + (size_t)w * j->each);
            }
        }
        return;
    }
    for (int64_t n = 0; n < rows; n++) {
        if (first) {
#pragma omp parallel for num_threads((int)j->team) schedule(static)
            for (int64_t s = 0; s < j->segments; s++)
                first(j, n, s, j->room + (size_t)s * j->each);
        }
        fold(j, n);
        if (second) {
#pragma omp parallel for num_threads((int)j->team) schedule(static)
            for (int64_t s = 0; s < j->segments; s++)
                second(j, n, s, j->room + (size_t)s * j->each);
        }
    }
}

/* The first c entries of a wide row, over and over. */
static void widen_rows(const long_rows *r, float *row)
{
    for (int64_t i = 1; i < r->m; i++)
        memcpy(row + i * r->c, row, (size_t)r->c * sizeof *row);
}

/* --- forward ------------------------------------------------------------------------------------------------------ */

/* Mean and squared deviations of each channel in the segment. */
static void find_moments(const job *j, int64_t n, int64_t s, void *room)
{
    const wf_array x = segment_of(j, j->a->x, n, s);
    double *const part = rows_part(j, n, s);
    wf_cpu_column_moments(&x, room, part, part + j->a->channels);
}

/* Count, mean and squared deviations of group g of sample n, from the moments of its channels in each segment: parts
 * join as the sum of M2 + n (mean - whole mean)^2, which loses no digits. About zero, the whole mean counts as 0. */
static void join_moments(const job *j, int64_t n, int64_t g, double *count, double *mean, double *squares)
{
    const wf_group_norm_args *const a = j->a;
    int64_t lo, hi;
    double sum = 0;
    wf_group_channels(a, g, &lo, &hi);
    *count = lo < hi ? (double)((hi - lo) * a->places) : 0;
    *mean = *squares = 0;
    for (int64_t s = 0; s < j->segments && !a->about_zero; s++)
        for (int64_t c = lo; c < hi; c++)
            sum += (double)places_of(j, s) * rows_part(j, n, s)[c];
    if (*count > 0)
        *mean = sum / *count;
    for (int64_t s = 0; s < j->segments; s++) {
        const double *const part = rows_part(j, n, s), places = (double)places_of(j, s);
        for (int64_t c = lo; c < hi; c++)
            *squares += part[a->channels + c] + places * (part[c] - *mean) * (part[c] - *mean);
    }
}

static void fold_sums(const job *j, int64_t n)
{
    const wf_group_norm_args *const a = j->a;
    const int64_t k = a->rows * a->groups;
    double *const sums = a->sums->data;
    for (int64_t at = n * a->groups; at < (n + 1) * a->groups; at++)
        join_moments(j, n, at - n * a->groups, &sums[at], &sums[k + at], &sums[2 * k + at]);
}

/* With sums, they are of all ranks already; without, this rank has the whole group. */
static void fold_stats(const job *j, int64_t n)
{
    const wf_group_norm_args *const a = j->a;
    const int64_t k = a->rows * a->groups;
    const double *const given = a->sums ? a->sums->data : NULL;
    float *const stats = a->stats->data;
    for (int64_t at = n * a->groups; at < (n + 1) * a->groups; at++) {
        double count, mean = given ? given[at] : 0, squares = given ? given[k + at] : 0;
        if (!given)
            join_moments(j, n, at - n * a->groups, &count, &mean, &squares);
        stats[at] = (float)mean;
        stats[k + at] = wf_group_inverse(a, squares);
    }
}

/* value for the channels of group g. */
static void fill_values(const wf_group_norm_args *a, int64_t g, float value, float *row)
{
    int64_t lo, hi;
    wf_group_channels(a, g, &lo, &hi);
    for (int64_t c = lo; c < hi; c++)
        row[c] = value;
}

/* y = (x - mean) inverse gamma + beta, so three wide rows: mean, inverse gamma, beta. */
static void scale_rows(const job *j, int64_t n, int64_t s, void *room)
{
    const wf_group_norm_args *const a = j->a;
    const wf_array x = segment_of(j, a->x, n, s), y = segment_of(j, a->y, n, s);
    const long_rows r = long_rows_of(&x);
    const float *const mean = a->stats->data, *const inverse = mean + a->rows * a->groups;
    float *const k = room;
    for (int64_t g = 0; g < a->groups; g++) {
        fill_values(a, g, mean[n * a->groups + g], k);
        fill_values(a, g, inverse[n * a->groups + g], k + r.w);
    }
    for (int64_t c = 0; c < r.c; c++) {
        k[r.w + c] *= j->gamma[c];
        k[2 * r.w + c] = j->beta[c];
    }
    for (int i = 0; i < 3; i++)
        widen_rows(&r, k + i * r.w);
    wf_cpu_column_scale(&x, &y, k);
}

wf_status wf_cpu_group_norm_stats(wf_ctx *ctx, const wf_group_norm_args *args)
{
    job j;
    if (!wf_group_is_float(args, args->x))
        return REF->group_norm_stats(ctx, args);
    if (args->places == 1)
        return wf_cpu_group_runs_stats(ctx, args);
    WF_TRY(begin_rows(ctx, args, &j));
    each_sample(&j, find_moments, fold_sums, NULL);
    give_rows(ctx, &j);
    return WF_OK;
}

wf_status wf_cpu_group_norm_forward(wf_ctx *ctx, const wf_group_norm_args *args)
{
    job j;
    if (!wf_group_is_float(args, args->x) || !wf_cpu_is_float(args->gamma) || !wf_cpu_is_float(args->beta))
        return REF->group_norm_forward(ctx, args);
    if (args->places == 1)
        return wf_cpu_group_runs_forward(ctx, args);
    WF_TRY(begin_rows(ctx, args, &j));
    each_sample(&j, args->sums ? NULL : find_moments, fold_stats, scale_rows);
    give_rows(ctx, &j);
    return WF_OK;
}

/* --- backward ----------------------------------------------------------------------------------------------------- */

/* Sums of dy and of dy (x - mean) of each channel. */
static void find_sums(const job *j, int64_t n, int64_t s, void *room)
{
    const wf_group_norm_args *const a = j->a;
    const wf_array x = segment_of(j, a->x, n, s), dy = segment_of(j, a->dy, n, s);
    const long_rows r = long_rows_of(&x);
    const float *const stats = a->stats->data;
    double *const part = rows_part(j, n, s);
    float *const mean = (float *)((char *)room + rounded_up(wf_cpu_column_sums_room(&x, &dy)));
    for (int64_t g = 0; g < a->groups; g++)
        fill_values(a, g, stats[n * a->groups + g], mean);
    widen_rows(&r, mean);
    wf_cpu_column_sums(&x, &dy, mean, room, part, part + r.c);
}

/* Segments are added to the first, which store_factor reads; groups get the sums of their channels, weighted by
 * gamma. */
static void fold_channels(const job *j, int64_t n)
{
    const wf_group_norm_args *const a = j->a;
    const int64_t k = a->rows * a->groups;
    const float *const inverse = (const float *)a->stats->data + k;
    double *const first = rows_part(j, n, 0);
    for (int64_t s = 1; s < j->segments; s++)
        for (int64_t i = 0; i < 2 * a->channels; i++)
            first[i] += rows_part(j, n, s)[i];
    for (int64_t g = 0; g < a->groups; g++) {
        const int64_t at = n * a->groups + g;
        double sum = 0, sum_x = 0;
        int64_t lo, hi;
        wf_group_channels(a, g, &lo, &hi);
        for (int64_t c = lo; c < hi; c++) {
            first[a->channels + c] *= inverse[at];
            sum += j->gamma[c] * first[c];
            sum_x += j->gamma[c] * first[a->channels + c];
        }
        j->own[at] = sum;
        j->own[k + at] = sum_x;
    }
}

/* The sums were made by backward_stats and summed over the ranks since. */
static void fold_nothing(const job *j, int64_t n)
{
}

/* dx = inverse gamma dy - inverse^2 / count sum_x (x - mean) - inverse / count sum, with the group's sums of gamma dy
 * (x - mean) inverse and of gamma dy. About zero the mean has no gradient, and the last term falls away. */
static void give_dx(const job *j, int64_t n, int64_t s, void *room)
{
    const wf_group_norm_args *const a = j->a;
    const wf_array x = segment_of(j, a->x, n, s), dy = segment_of(j, a->dy, n, s), dx = segment_of(j, a->dx, n, s);
    const long_rows r = long_rows_of(&x);
    const int64_t groups = a->rows * a->groups;
    const float *const mean = a->stats->data, *const inverse = mean + groups;
    const double *const sums = a->sums ? a->sums->data : j->own;
    float *const k = room;
    for (int64_t g = 0; g < a->groups; g++) {
        const int64_t at = n * a->groups + g;
        const double share = -(double)inverse[at] / a->count;
        fill_values(a, g, mean[at], k);
        fill_values(a, g, inverse[at], k + r.w);
        fill_values(a, g, (float)(share * inverse[at] * sums[groups + at]), k + 2 * r.w);
        fill_values(a, g, a->about_zero ? 0.0F : (float)(share * sums[at]), k + 3 * r.w);
    }
    for (int64_t c = 0; c < r.c; c++)
        k[r.w + c] *= j->gamma[c];
    for (int i = 0; i < 4; i++)
        widen_rows(&r, k + i * r.w);
    wf_cpu_column_backward(&x, &dy, &dx, k);
}

/* Sums over samples, in their order. */
static void store_factor(const job *j, const wf_array *to, int64_t which)
{
    const wf_group_norm_args *const a = j->a;
    for (int64_t c = 0; to && c < a->channels; c++) {
        double sum = 0;
        for (int64_t n = 0; n < a->rows; n++)
            sum += rows_part(j, n, 0)[which * a->channels + c];
        ((float *)to->data)[c] = (float)sum;
    }
}

static bool can(const wf_group_norm_args *a)
{
    return wf_group_is_float(a, a->x) && wf_cpu_is_float(a->gamma) && wf_cpu_is_float(a->dy);
}

wf_status wf_cpu_group_norm_backward_stats(wf_ctx *ctx, const wf_group_norm_args *args)
{
    job j;
    wf_group_norm_args sums = *args;
    sums.dx = NULL;
    if (!can(args))
        return REF->group_norm_backward_stats(ctx, args);
    /* Without dx the same pass gives the sums alone. */
    if (args->places == 1)
        return wf_cpu_group_runs_backward(ctx, &sums);
    WF_TRY(begin_rows(ctx, args, &j));
    each_sample(&j, find_sums, fold_channels, NULL);
    if (args->sums)
        memcpy(args->sums->data, j.own, (size_t)(2 * args->rows * args->groups) * sizeof *j.own);
    store_factor(&j, args->dbeta, 0);
    store_factor(&j, args->dgamma, 1);
    give_rows(ctx, &j);
    return WF_OK;
}

wf_status wf_cpu_group_norm_backward(wf_ctx *ctx, const wf_group_norm_args *args)
{
    job j;
    if (!can(args))
        return REF->group_norm_backward(ctx, args);
    if (args->places == 1)
        return wf_cpu_group_runs_backward(ctx, args);
    WF_TRY(begin_rows(ctx, args, &j));
    each_sample(&j, args->sums ? NULL : find_sums, args->sums ? fold_nothing : fold_channels, give_dx);
    if (!args->sums) {
        store_factor(&j, args->dbeta, 0);
        store_factor(&j, args->dgamma, 1);
    }
    give_rows(ctx, &j);
    return WF_OK;
}
