/* Forward of attention: each block of queries goes over the keys once, with a running maximum and sum (Milakov and
 * Gimelshein 2018; Dao et al. 2022). The kernel table calls it; f64 and wrong indices go to `ref`, which says what is
 * wrong. The matrix of scores never exists: one block of LANES queries by KEYS keys does. */
#include "core/cpu/attention_impl.h"
#include "core/cpu/vmath_impl.h"

#include <math.h>
#include <string.h>

/* A worker's memory for one block of queries. The result so far is sums / sum, both relative to exp(most), so that a
 * larger score that comes later only rescales them. */
typedef struct forward_room {
    float *queries, *scores, *kept, *sums, *rows;
    float most[LANES], sum[LANES], fade[LANES];
} forward_room;

static forward_room split_room(const attention_job *job, int64_t worker)
{
    forward_room r = {.queries = job->room + (size_t)worker * job->each};
    r.scores = r.queries + job->z.d * LANES;
    r.kept = r.scores + KEYS * LANES;
    r.sums = r.kept + KEYS * LANES;
    r.rows = r.sums + job->z.e * LANES;
    for (int i = 0; i < LANES; i++) {
        r.most[i] = -INFINITY;
        r.sum[i] = 0;
    }
    return r;
}

/* The result of other keys is that of one key, of score lse and value y. */
static void join_block(const attention_job *job, const attention_block *b, forward_room *r)
{
    const float *const lse = (const float *)job->a->lse->data + (b->n * job->a->heads + b->h) * job->z.t + b->i;
    wf_attention_turn(job, job->a->y, b, 1, r->rows, r->sums);
    for (int64_t i = 0; i < b->count; i++) {
        r->most[i] = lse[i];
        r->sum[i] = lse[i] == -INFINITY ? 0.0F : 1.0F;
    }
}

/* Scores become exp(score - maximum so far); fade is what earlier sums are multiplied by. */
static void soften(forward_room *r, int64_t count, int64_t width)
{
    float next[LANES], base[LANES], sum[LANES] = {0};
    memcpy(next, r->most, sizeof next);
    for (int64_t j = 0; j < count; j++) {
        const float *const s = r->scores + j * LANES;
#pragma omp simd
        for (int64_t i = 0; i < width; i++)
            next[i] = s[i] > next[i] ? s[i] : next[i];
    }
#pragma omp simd
    for (int64_t i = 0; i < width; i++) {
        /* Nothing seen so far: infinities must not be subtracted from each other. */
        base[i] = next[i] == -INFINITY ? 0.0F : next[i];
        r->fade[i] = vm_exp_falling(r->most[i] - base[i]);
    }
    for (int64_t j = 0; j < count; j++) {
        float *const s = r->scores + j * LANES;
#pragma omp simd
        for (int64_t i = 0; i < width; i++) {
            s[i] = vm_exp_falling(s[i] - base[i]);
            sum[i] += s[i];
        }
    }
#pragma omp simd
    for (int64_t i = 0; i < width; i++) {
        r->sum[i] = r->sum[i] * r->fade[i] + sum[i];
        r->most[i] = next[i];
    }
}

static void add_values(const attention_job *job, const attention_block *b, forward_room *r, int64_t first,
                       int64_t count)
{
    /* `sums` is relative to the maximum before this block of keys: it is rescaled even if no value is added to it. */
    for (int64_t c = 0; c < job->z.e; c++)
#pragma omp simd
        for (int64_t i = 0; i < b->width; i++)
            r->sums[c * LANES + i] *= r->fade[i];
    /* Dropout comes after softmax, so `sum` already has the probabilities that are dropped here. */
    if (job->a->dropout > 0) {
        wf_attention_kept(job, b, first, count, r->kept);
        for (int64_t j = 0; j < count; j++)
            for (int64_t i = 0; i < b->count; i++)
                r->scores[j * LANES + i] *= r->kept[j * LANES + i];
    }
    const attention_rows values = wf_attention_rows(job, job->a->v, b->n, b->h, first, count, r->rows);
    wf_attention_multiply(&(attention_product){.m = job->z.e,
                                               .n = b->width,
                                               .k = count,
                                               .a = values.data,
                                               .row = 1,
                                               .column = values.step,
                                               .b = r->scores,
                                               .ldb = LANES,
                                               .c = r->sums,
                                               .ldc = LANES});
}

/* Divides by the sum, and keeps the logarithm of the sum, from which backward makes each probability again. A query
 * that sees no key gets 0 and -infinity, never 0 / 0. */
static void put_block(const attention_job *job, const attention_block *b, const forward_room *r)
{
    const int64_t all = job->a->heads * job->z.e;
    float *const lse = (float *)job->a->lse->data + (b->n * job->a->heads + b->h) * job->z.t + b->i;
    float scale[LANES];
    for (int64_t i = 0; i < b->width; i++)
        scale[i] = r->sum[i] == 0 ? 0.0F : 1.0F / r->sum[i];
    for (int64_t c = 0; c < job->z.e; c++)
#pragma omp simd
        for (int64_t i = 0; i < b->width; i++)
            r->sums[c * LANES + i] *= scale[i];
    const int64_t first = (b->n * job->z.t + b->i) * all + b->h * job->z.e;
    const bool narrow = wf_cpu_is_narrow(job->a->y);
    /* The block has read all its keys and values, so their room may hold rows of y. */
    wf_attention_transpose(r->sums, LANES, job->z.e, b->count, 1, narrow ? r->rows : (float *)job->a->y->data + first,
                           narrow ? job->z.e : all);
    for (int64_t i = 0; i < b->count; i++) {
        wf_cpu_put(job->a->y, first + i * all, job->z.e, r->rows + i * job->z.e);
        lse[i] = r->sum[i] == 0 ? -INFINITY : r->most[i] + logf(r->sum[i]);
    }
}

/* A unit is one block of queries of one head of one sample. It writes rows of y and lse that no other unit writes. */
static void forward_block(const attention_job *job, int64_t unit, int64_t blocks, int64_t worker)
{
    const int64_t row = unit / blocks;
    const attention_block b = wf_attention_block(job, row / job->a->heads, row % job->a->heads, unit % blocks * LANES);
    forward_room r = split_room(job, worker);
    wf_attention_turn(job, job->a->q, &b, (float)job->a->scale, r.rows, r.queries);
    if (job->a->joins)
        join_block(job, &b, &r);
    else
        memset(r.sums, 0, (size_t)(job->z.e * LANES) * sizeof *r.sums);
    /* No query of the block sees a key from `reach` on: with a causal mask half of the products are never made. */
    for (int64_t first = 0; first < b.reach; first += KEYS) {
        const int64_t count = wf_cpu_min(KEYS, b.reach - first);
        const attention_rows keys = wf_attention_rows(job, job->a->k, b.n, b.h, first, count, r.rows);
        wf_attention_scores(job, &b, r.queries, keys, first, count, r.scores);
        soften(&r, count, b.width);
        add_values(job, &b, &r, first, count);
    }
    put_block(job, &b, &r);
}

bool wf_attention_gathers(const wf_attention_args *args, const wf_attention_sizes *z)
{
    enum { LEAST_SAMPLES = 4, LONGEST = 256 };
    return args->bias && z->n >= LEAST_SAMPLES && z->t <= LONGEST && z->s <= LONGEST;
}

static void gather_bias(const attention_job *job)
{
    const wf_attention_args *const a = job->a;
    const wf_attention_sizes *const z = &job->z;
    const int32_t *const index = a->index ? a->index->data : NULL;
    for (int64_t h = 0; h < a->heads; h++)
        for (int64_t j = 0; j < z->s; j++) {
            float *const to = job->places + (h * z->s + j) * job->across;
            for (int64_t i = 0; i < z->t; i++)
                to[i] = job->bias[h * z->rows + (index ? index[i * z->s + j] : wf_attention_row(a, z->rows, i, j))];
            for (int64_t i = z->t; i < job->across; i++)
                to[i] = 0;
        }
}

wf_status wf_attention_begin(wf_ctx *ctx, const wf_attention_args *args, size_t each, int64_t workers,
                             attention_job *job, size_t *bytes)
{
    const wf_attention_sizes z = wf_attention_sizes_of(args);
    const int64_t across = wf_attention_across(&z);
    const size_t table = (size_t)wf_pack_up(args->heads * z.rows);
    const size_t places = wf_attention_gathers(args, &z) ? (size_t)(args->heads * z.s * across) : 0;
    *bytes = (table + places + (size_t)workers * each) * sizeof(float);
    void *data = NULL;
    WF_TRY(wf_pool_take(ctx, *bytes, &data));
    float *const bias = data;
    *job = (attention_job){
        .a = args, .z = z, .across = across, .dw = wf_pack_up(z.d), .ew = wf_pack_up(z.e), .each = each};
    job->base = data;
    job->room = bias + table + places;
    if (!args->bias)
        return WF_OK;
    job->bias = bias;
    /* From [row][head] to [head][row]: a block reads entries of one head only. */
    for (int64_t h = 0; h < args->heads; h++)
        for (int64_t row = 0; row < z.rows; row++)
            bias[h * z.rows + row] = ((const float *)args->bias->data)[row * args->heads + h];
    job->places = places > 0 ? bias + table : NULL;
    if (job->places)
        gather_bias(job);
    return WF_OK;
}

wf_status wf_cpu_attention_forward(wf_ctx *ctx, const wf_attention_args *args)
{
    const wf_attention_sizes z = wf_attention_sizes_of(args);
    /* Without an index the rows of the table are computed; an index is data, and may point beyond the table. */
    if (args->q->dtype == WF_F64 ||
        (args->index && !wf_cpu_integers_fit(args->index, z.t * z.s, z.rows, WF_NONE_IGNORED)))
        return REF->attention_forward(ctx, args);
    const int64_t blocks = (z.t + LANES - 1) / LANES, units = z.n * args->heads * blocks;
    const int64_t team = wf_cpu_team(ctx, z.n * args->heads * z.t * (z.s + 1) * (z.d + z.e));
    const int64_t workers = units > 0 ? wf_cpu_min(team, units) : 1, turn = wf_cpu_turn(ctx, units);
    const int64_t widest = z.d > z.e ? z.d : z.e;
    attention_job job;
    size_t bytes = 0;
    WF_TRY(
        wf_attention_begin(ctx, args, (size_t)((z.d + z.e + 2 * KEYS) * LANES + KEYS * widest), workers, &job, &bytes));
    for (int64_t first = 0; first < units; first += turn) {
        const int64_t last = wf_cpu_min(first + turn, units);
#pragma omp parallel for num_threads((int)workers) schedule(static, 1)
        for (int64_t w = 0; w < workers; w++)
            /* Not a run of neighbours each: with a causal mask the later blocks take longer. */
            for (int64_t unit = first + w; unit < last; unit += workers)
                forward_block(&job, unit, blocks, w);
        wf_ctx_progress(ctx);
    }
    wf_pool_give(ctx, job.base, bytes);
    return WF_OK;
}
