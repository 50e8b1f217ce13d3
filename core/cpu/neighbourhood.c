/* Neighbourhood attention on vectors, which lie along the features of a head: pixels that a query sees differ from
 * those of its neighbour, so lanes of several queries would make scores that no query wants. Four products are made at
 * a time, and folded into four neighbouring scores. Backward goes over the queries for dq and dbias, then over the keys
 * for dk and dv, each with the queries that see it: scores are made twice (7 products instead of 5), and no two threads
 * add to the same gradient. Memory beside the arrays: one number for each query and head. */
#include "core/cpu/narrow_impl.h"
#include "core/cpu/simd_impl.h"
#include "core/cpu/vmath_impl.h"

#include <math.h>
#include <string.h>

/* Parts of the sums of dbias: a number that does not depend on the threads. */
enum { SLICES = 16 };

typedef struct near_job {
    const wf_neighbourhood_args *a;
    wf_neighbourhood_sizes z;
    int64_t most;  /* numbers of a list in a room */
    float *mean;   /* backward: [N,heads,queries], sums of dy y */
    double *dbias; /* [SLICES,heads,rows]; NULL: not wanted */
} near_job;

/* Pixels of an array that a pixel sees, or is seen by: runs along the last dimension. */
typedef struct near_pixels {
    const wf_neighbourhood *g;
    bool keys;                  /* that it sees */
    int64_t place[3];           /* its own, in the whole */
    wf_neighbours at[3];        /* theirs */
    const int64_t *dim, *first; /* of the array in which they are */
    int64_t runs, count;
} near_pixels;

typedef struct near_run {
    int64_t pixel, row; /* of the first one, in the array and in the bias */
} near_run;

/* With `keys` the keys that a query sees, without the queries that see a key: the same relation from both ends, so both
 * passes share all that follows. */
static near_pixels find_near(const near_job *job, bool keys, const int64_t place[3])
{
    const wf_neighbourhood *const g = &job->a->around;
    near_pixels near = {.g = g, .keys = keys, .count = 1};
    near.dim = keys ? job->z.s : job->z.p;
    near.first = keys ? g->first_key : g->first_query;
    for (int d = 0; d < 3; d++) {
        near.place[d] = place[d];
        near.at[d] = keys ? wf_neighbourhood_keys(g, d, place[d])
                          : wf_neighbourhood_queries(g, d, place[d], near.first[d], near.first[d] + near.dim[d]);
        near.count *= near.at[d].count;
    }
    near.runs = near.count > 0 ? near.at[0].count * near.at[1].count : 0;
    return near;
}

/* Run i of the near pixels: its first pixel, and the bias' row of the distance to it. */
static near_run find_run(const near_pixels *near, int64_t i)
{
    const int64_t of[3] = {i / near->at[1].count, i % near->at[1].count, 0};
    near_run run = {0};
    for (int d = 0; d < 3; d++) {
        const int64_t place = near->at[d].first + of[d] * near->at[d].step;
        const int64_t query = near->keys ? near->place[d] : place, key = near->keys ? place : near->place[d];
        run.pixel = run.pixel * near->dim[d] + place - near->first[d];
        run.row = run.row * (2 * near->g->kernel[d] - 1) + wf_neighbourhood_row(near->g, d, query, key);
    }
    return run;
}

/* --- products ----------------------------------------------------------------------------------------------------- */

typedef float quad __attribute__((vector_size(16)));

/* Four sums of every fourth lane: the lanes of a pack folded onto each other. */
static inline quad fold_pack(pack v)
{
    quad part[PACK / 4], sum;
    memcpy(part, &v, sizeof v);
    sum = part[0];
    for (int i = 1; i < PACK / 4; i++)
        sum += part[i];
    return sum;
}

/* The sums of four packs. */
static inline quad fold_four(const pack v[4])
{
    /* shufflevector picks lanes by number, 4 to 7 from the second vector: two transposing additions leave one sum in
     * each lane. */
    const quad a = fold_pack(v[0]), b = fold_pack(v[1]), c = fold_pack(v[2]), d = fold_pack(v[3]);
    const quad ab = __builtin_shufflevector(a, b, 0, 4, 1, 5) + __builtin_shufflevector(a, b, 2, 6, 3, 7);
    const quad cd = __builtin_shufflevector(c, d, 0, 4, 1, 5) + __builtin_shufflevector(c, d, 2, 6, 3, 7);
    return __builtin_shufflevector(ab, cd, 0, 1, 4, 5) + __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
}

/* to[j] = x . rows[j]; up to three numbers more are written. */
static void multiply_rows(const float *x, const float *rows, int64_t step, int64_t count, int64_t each, float *to)
{
    for (int64_t j = 0; j < count; j += 4) {
        const float *row[4];
        pack sum[4] = {0};
        int64_t c = 0;
        /* The last rows are repeated instead of left out, so the loop has no rest; their sums are not used. */
        for (int i = 0; i < 4; i++)
            row[i] = rows + wf_cpu_min(j + i, count - 1) * step;
        for (; c + PACK <= each; c += PACK)
            for (int i = 0; i < 4; i++)
                sum[i] = pack_fma(pack_load(x + c), pack_load(row[i] + c), sum[i]);
        for (int i = 0; i < 4 && c < each; i++)
            sum[i] = pack_fma(pack_load_part(x + c, each - c), pack_load_part(row[i] + c, each - c), sum[i]);
        const quad sums = fold_four(sum);
        memcpy(to + j, &sums, sizeof sums);
    }
}

/* Several packs side by side stay in registers while all rows go by. */
WF_CPU_INLINE void add_columns(const float *weight, const float *rows, int64_t step, int64_t count, float *to,
                               int packs)
{
    pack sum[4];
    for (int x = 0; x < packs; x++)
        sum[x] = pack_load(to + x * PACK);
    for (int64_t j = 0; j < count; j++)
        for (int x = 0; x < packs; x++)
            sum[x] = pack_scaled(weight[j], pack_load(rows + j * step + x * PACK), sum[x]);
    for (int x = 0; x < packs; x++)
        pack_store(to + x * PACK, sum[x]);
}

/* to += sum_j weight[j] rows[j] */
static void add_rows(const float *weight, const float *rows, int64_t step, int64_t count, int64_t each, float *to)
{
    int64_t c = 0;
    for (; c + 4 * PACK <= each; c += 4 * PACK)
        add_columns(weight, rows + c, step, count, to + c, 4);
    for (; c + PACK <= each; c += PACK)
        add_columns(weight, rows + c, step, count, to + c, 1);
    if (c == each)
        return;
    pack sum = pack_load_part(to + c, each - c);
    for (int64_t j = 0; j < count; j++)
        sum = pack_scaled(weight[j], pack_load_part(rows + j * step + c, each - c), sum);
    pack_store_part(to + c, each - c, sum);
}

/* --- lists of the pixels near one -----------------------------------------------------------------------------------
 */

/* A head of a sample. */
typedef struct near_head {
    int64_t n, h;
} near_head;

static float *pixel_data(const near_job *job, const wf_array *of, near_head at, int64_t pixel)
{
    const int64_t *const dim = of->shape.dim;
    return (float *)of->data + (at.n * dim[1] * dim[2] * dim[3] + pixel) * dim[4] + at.h * (dim[4] / job->a->heads);
}

/* The products of x with what `of` has of each. */
static void multiply_near(const near_job *job, const near_pixels *near, const float *x, const wf_array *of,
                          near_head at, float *to)
{
    const int64_t all = of->shape.dim[4], run = near->at[2].count;
    for (int64_t i = 0; i < near->runs; i++)
        multiply_rows(x, pixel_data(job, of, at, find_run(near, i).pixel), near->at[2].step * all, run,
                      all / job->a->heads, to + i * run);
}

/* to += the sum of what `of` has of each, times weight. */
static void add_near(const near_job *job, const near_pixels *near, const float *weight, const wf_array *of,
                     near_head at, float *to)
{
    const int64_t all = of->shape.dim[4], run = near->at[2].count;
    for (int64_t i = 0; i < near->runs; i++)
        add_rows(weight + i * run, pixel_data(job, of, at, find_run(near, i).pixel), near->at[2].step * all, run,
                 all / job->a->heads, to);
}

/* Products of queries and keys become scores. */
static void score_near(const near_job *job, const near_pixels *near, near_head at, float *score)
{
    const float scale = (float)job->a->scale;
    const int64_t run = near->at[2].count;
#pragma omp simd
    for (int64_t i = 0; i < near->count; i++)
        score[i] *= scale;
    /* A query's distance to a key falls where a key's rises, so from a key the bias is read backwards. */
    for (int64_t i = 0; i < near->runs && job->a->bias; i++) {
        const float *const bias = (const float *)job->a->bias->data + at.h * job->z.rows + find_run(near, i).row;
        float *const to = score + i * run;
        for (int64_t j = 0; j < run; j++)
            to[j] += near->keys ? bias[j] : bias[-j];
    }
}

/* What an array [N,heads,queries] has of each query near a key. */
static void gather_near(const near_job *job, const near_pixels *near, const float *from, near_head at, float *to)
{
    const int64_t run = near->at[2].count, step = near->at[2].step;
    const int64_t first = (at.n * job->a->heads + at.h) * job->z.queries;
    for (int64_t i = 0; i < near->runs; i++) {
        const float *const pixel = from + first + find_run(near, i).pixel;
        for (int64_t j = 0; j < run; j++)
            to[i * run + j] = pixel[j * step];
    }
}

/* --- forward ------------------------------------------------------------------------------------------------------ */

/* The place of a pixel of an array. */
static void place_pixel(int64_t pixel, const int64_t dim[3], const int64_t first[3], int64_t place[3])
{
    place[0] = first[0] + pixel / (dim[1] * dim[2]);
    place[1] = first[1] + pixel / dim[2] % dim[1];
    place[2] = first[2] + pixel % dim[2];
}

/* Scores become exp(score - the largest); *sum is theirs. Returns the largest. vm_exp is given 0 or less, so no sum
 * overflows. */
static float soften_near(float *score, int64_t count, float *sum)
{
    float most = -INFINITY, all = 0;
#pragma omp simd reduction(max : most)
    for (int64_t i = 0; i < count; i++)
        most = score[i] > most ? score[i] : most;
#pragma omp simd reduction(+ : all)
    for (int64_t i = 0; i < count; i++) {
        score[i] = vm_exp(score[i] - most);
        all += score[i];
    }
    *sum = all;
    return most;
}

static void attend_pixel(const near_job *job, near_head at, int64_t pixel, float *score)
{
    int64_t place[3];
    place_pixel(pixel, job->z.p, job->a->around.first_query, place);
    const near_pixels near = find_near(job, true, place);
    float *const y = pixel_data(job, job->a->y, at, pixel), sum;
    float *const lse = (float *)job->a->lse->data + (at.n * job->a->heads + at.h) * job->z.queries + pixel;
    multiply_near(job, &near, pixel_data(job, job->a->q, at, pixel), job->a->k, at, score);
    score_near(job, &near, at, score);
    const float most = soften_near(score, near.count, &sum);
    memset(y, 0, (size_t)job->z.e * sizeof *y);
    add_near(job, &near, score, job->a->v, at, y);
    for (int64_t c = 0; c < job->z.e; c++)
        y[c] /= sum;
    *lse = most + logf(sum);
}

/* A row of pixels of a head is the unit of work; heads of a row follow each other, since their keys lie side by
 * side. */
static void forward_row(const near_job *job, int64_t unit, float *room)
{
    const int64_t row = unit / job->a->heads, rows = job->z.p[0] * job->z.p[1], wide = job->z.p[2];
    const near_head at = {row / rows, unit % job->a->heads};
    for (int64_t x = 0; x < wide; x++)
        attend_pixel(job, at, row % rows * wide + x, room);
}

typedef void near_unit_fn(const near_job *job, int64_t unit, float *room);

/* Units go round the workers, a turn at a time; between turns the context looks after its communication. Each worker
 * has a room of four lists. */
static wf_status run_near(wf_ctx *ctx, const near_job *job, near_unit_fn *run, int64_t units)
{
    const int64_t work = job->z.n * job->a->heads * job->z.keys * job->z.seen * (job->z.d + job->z.e);
    const int64_t team = wf_cpu_team(ctx, work), turn = wf_cpu_turn(ctx, units), each = 4 * job->most;
    const int64_t workers = units > 0 ? wf_cpu_min(team, units) : 1;
    const size_t bytes = (size_t)(workers * each) * sizeof(float);
    void *room = NULL;
    WF_TRY(wf_pool_take(ctx, bytes, &room));
    for (int64_t first = 0; first < units; first += turn) {
        const int64_t last = wf_cpu_min(first + turn, units);
#pragma omp parallel for num_threads((int)workers) schedule(static, 1)
        for (int64_t w = 0; w < workers; w++)
            for (int64_t unit = first + w; unit < last; unit += workers)
                run(job, unit, (float *)room + w * each);
        wf_ctx_progress(ctx);
    }
    wf_pool_give(ctx, room, bytes);
    return WF_OK;
}

/* A key near a border is seen by up to kernel / 2 queries more than it sees keys, and one near two by twice as many. */
static near_job near_job_of(const wf_neighbourhood_args *args)
{
    near_job job = {.a = args, .z = wf_neighbourhood_sizes_of(args), .most = 1};
    for (int d = 0; d < 3; d++)
        job.most *= args->around.kernel[d] + 2 * (args->around.kernel[d] / 2);
    /* Three more for the products of four, rounded up to lines of the cache. */
    job.most = (job.most + 3 + 15) / 16 * 16;
    return job;
}

wf_status wf_cpu_neighbourhood_forward(wf_ctx *ctx, const wf_neighbourhood_args *args)
{
    const near_job job = near_job_of(args);
    return run_near(ctx, &job, forward_row, job.z.n * job.z.p[0] * job.z.p[1] * args->heads);
}

/* --- backward ----------------------------------------------------------------------------------------------------- */

static void scale_row(float *x, float scale, int64_t n)
{
#pragma omp simd
    for (int64_t c = 0; c < n; c++)
        x[c] *= scale;
}

static void add_bias_near(const near_job *job, const near_pixels *near, const float *ds, double *dbias)
{
    const int64_t run = near->at[2].count;
    for (int64_t i = 0; i < near->runs; i++) {
        double *const to = dbias + find_run(near, i).row;
#pragma omp simd
        for (int64_t j = 0; j < run; j++)
            to[j] += ds[i * run + j];
    }
}

static void differentiate_query(const near_job *job, near_head at, int64_t pixel, double *dbias, float *room)
{
    const wf_neighbourhood_args *const a = job->a;
    const int64_t in_head = (at.n * a->heads + at.h) * job->z.queries + pixel;
    const float *const dy = pixel_data(job, a->dy, at, pixel), *const y = pixel_data(job, a->y, at, pixel);
    const float lse = ((const float *)a->lse->data)[in_head];
    float *const score = room, *const up = room + job->most, mean = 0;
#pragma omp simd reduction(+ : mean)
    for (int64_t c = 0; c < job->z.e; c++)
        mean += dy[c] * y[c];
    /* dy y of each query is kept: the pass over the keys reads it for all queries that it sees. */
    job->mean[in_head] = mean;
    if (!a->dq && !dbias)
        return;
    int64_t place[3];
    place_pixel(pixel, job->z.p, a->around.first_query, place);
    const near_pixels near = find_near(job, true, place);
    multiply_near(job, &near, pixel_data(job, a->q, at, pixel), a->k, at, score);
    score_near(job, &near, at, score);
    multiply_near(job, &near, dy, a->v, at, up);
#pragma omp simd
    for (int64_t i = 0; i < near.count; i++)
        score[i] = vm_exp(score[i] - lse) * (up[i] - mean);
    if (dbias)
        add_bias_near(job, &near, score, dbias);
    if (!a->dq)
        return;
    float *const dq = pixel_data(job, a->dq, at, pixel);
    memset(dq, 0, (size_t)job->z.d * sizeof *dq);
    add_near(job, &near, score, a->k, at, dq);
    scale_row(dq, (float)a->scale, job->z.d);
}

/* Rows of pixels of a slice, of a head. A slice has its own sums of dbias, so threads add to no common number. */
static void backward_queries(const near_job *job, int64_t unit, float *room)
{
    const int64_t heads = job->a->heads, slice = unit / heads, rows = job->z.p[0] * job->z.p[1], all = job->z.n * rows;
    double *const dbias = job->dbias ? job->dbias + (slice * heads + unit % heads) * job->z.rows : NULL;
    for (int64_t row = all * slice / SLICES; row < all * (slice + 1) / SLICES; row++)
        for (int64_t x = 0; x < job->z.p[2]; x++)
            differentiate_query(job, (near_head){row / rows, unit % heads}, row % rows * job->z.p[2] + x, dbias, room);
}

/* One key gathers from all queries that see it, so that its gradients have one writer. */
static void differentiate_key(const near_job *job, near_head at, int64_t pixel, float *room)
{
    const wf_neighbourhood_args *const a = job->a;
    float *const p = room, *const up = p + job->most, *const lse = up + job->most, *const mean = lse + job->most;
    int64_t place[3];
    place_pixel(pixel, job->z.s, a->around.first_key, place);
    const near_pixels near = find_near(job, false, place);
    multiply_near(job, &near, pixel_data(job, a->k, at, pixel), a->q, at, p);
    score_near(job, &near, at, p);
    multiply_near(job, &near, pixel_data(job, a->v, at, pixel), a->dy, at, up);
    gather_near(job, &near, a->lse->data, at, lse);
    gather_near(job, &near, job->mean, at, mean);
#pragma omp simd
    for (int64_t i = 0; i < near.count; i++) {
        p[i] = vm_exp(p[i] - lse[i]);
        up[i] = p[i] * (up[i] - mean[i]);
    }
    if (a->dk) {
        float *const dk = pixel_data(job, a->dk, at, pixel);
        memset(dk, 0, (size_t)job->z.d * sizeof *dk);
        add_near(job, &near, up, a->q, at, dk);
        scale_row(dk, (float)a->scale, job->z.d);
    }
    if (a->dv) {
        float *const dv = pixel_data(job, a->dv, at, pixel);
        memset(dv, 0, (size_t)job->z.e * sizeof *dv);
        add_near(job, &near, p, a->dy, at, dv);
    }
}

static void backward_keys_row(const near_job *job, int64_t unit, float *room)
{
    const int64_t row = unit / job->a->heads, rows = job->z.s[0] * job->z.s[1], wide = job->z.s[2];
    for (int64_t x = 0; x < wide; x++)
        differentiate_key(job, (near_head){row / rows, unit % job->a->heads}, row % rows * wide + x, room);
}

/* Over the slices, in their order. */
static void fold_slices(const near_job *job)
{
    const int64_t count = job->a->heads * job->z.rows;
    float *const to = job->a->dbias->data;
    for (int64_t i = 0; i < count; i++) {
        double sum = 0;
        for (int64_t s = 0; s < SLICES; s++)
            sum += job->dbias[s * count + i];
        to[i] = (float)sum;
    }
}

wf_status wf_cpu_neighbourhood_backward(wf_ctx *ctx, const wf_neighbourhood_args *args)
{
    near_job job = near_job_of(args);
    const int64_t heads = args->heads, numbers = args->dbias ? SLICES * heads * job.z.rows : 0;
    const size_t table = (size_t)numbers * sizeof(double);
    const size_t bytes = table + (size_t)(job.z.n * heads * job.z.queries) * sizeof(float);
    void *memory = NULL;
    WF_TRY(wf_pool_take(ctx, bytes, &memory));
    job.dbias = args->dbias ? memory : NULL;
    job.mean = (float *)((double *)memory + numbers);
    if (job.dbias)
        memset(job.dbias, 0, table);
    wf_status status = run_near(ctx, &job, backward_queries, SLICES * heads);
    if (status == WF_OK && job.dbias)
        fold_slices(&job);
    if (status == WF_OK && (args->dk || args->dv))
        status = run_near(ctx, &job, backward_keys_row, job.z.n * job.z.s[0] * job.z.s[1] * heads);
    wf_pool_give(ctx, memory, bytes);
    return status;
}
