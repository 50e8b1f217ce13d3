/* Backward of attention: probabilities are made again, block by block. A thread takes a head of a sample, so that the
 * sums of dk and dv over the queries have one order. */
#include "core/cpu/attention_impl.h"
#include "core/cpu/vmath_impl.h"

#include <math.h>
#include <string.h>

typedef struct backward_room {
    float *queries, *up, *scores, *grads, *kept, *dq; /* [features or keys][LANES] */
    float *q_rows, *dy_rows;                          /* [LANES][dw], [LANES][ew] */
    float *keys, *values;                             /* widened rows */
    float *dk, *dv;                                   /* [S][dw], [S][ew] */
    double *dbias;                                    /* [rows]; NULL: not wanted */
    float lse[LANES], mean[LANES];
} backward_room;

static int64_t room_floats(const wf_attention_sizes *z)
{
    const int64_t dw = wf_pack_up(z->d), ew = wf_pack_up(z->e);
    return (2 * z->d + z->e + 3 * KEYS + dw + ew) * LANES + KEYS * (z->d + z->e) + z->s * (dw + ew);
}

static backward_room split_room(const attention_job *job, int64_t worker)
{
    const wf_attention_sizes *const z = &job->z;
    backward_room r = {.queries = job->room + (size_t)worker * job->each};
    r.up = r.queries + z->d * LANES;
    r.scores = r.up + z->e * LANES;
    r.grads = r.scores + KEYS * LANES;
    r.kept = r.grads + KEYS * LANES;
    r.dq = r.kept + KEYS * LANES;
    r.q_rows = r.dq + z->d * LANES;
    r.dy_rows = r.q_rows + job->dw * LANES;
    r.keys = r.dy_rows + job->ew * LANES;
    r.values = r.keys + KEYS * z->d;
    r.dk = r.values + KEYS * z->e;
    r.dv = r.dk + z->s * job->dw;
    memset(r.dk, 0, (size_t)(z->s * (job->dw + job->ew)) * sizeof *r.dk);
    return r;
}

/* Rows of `each` features from [features][LANES], which is padded to whole packs. */
static void turn_back(const float *from, int64_t each, int64_t count, int64_t width, float *to)
{
    for (int64_t i = 0; i < count; i++) {
        for (int64_t c = 0; c < each; c++)
            to[i * width + c] = from[c * LANES + i];
        for (int64_t c = each; c < width; c++)
            to[i * width + c] = 0;
    }
}

/* Queries and dy of a block, both ways round; its lse and the sums of dy y. */
static void load_block(const attention_job *job, const attention_block *b, backward_room *r)
{
    const wf_attention_args *const a = job->a;
    const float *const lse = (const float *)a->lse->data + (b->n * a->heads + b->h) * job->z.t + b->i;
    wf_attention_turn(job, a->q, b, (float)a->scale, r->queries);
    wf_attention_turn(job, a->dy, b, 1, r->up);
    turn_back(r->queries, job->z.d, b->count, job->dw, r->q_rows);
    turn_back(r->up, job->z.e, b->count, job->ew, r->dy_rows);
    memset(r->dq, 0, (size_t)(job->z.d * LANES) * sizeof *r->dq);
    for (int64_t i = 0; i < LANES; i++) {
        r->lse[i] = i < b->count ? lse[i] : -INFINITY;
        r->mean[i] = 0;
    }
    for (int64_t i = 0; i < b->count; i++) {
        /* One row of values has room for a row of y. */
        const attention_rows y = wf_attention_rows(job, a->y, b->n, b->h, b->i + i, 1, r->values);
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t c = 0; c < job->z.e; c++)
            sum += y.data[c] * r->dy_rows[i * job->ew + c];
        r->mean[i] = sum;
    }
}

/* Scores become probabilities as they multiply dy, `grads` (products of dy and v) the gradients of the scores. */
static void differentiate(const attention_job *job, const attention_block *b, backward_room *r, int64_t first,
                          int64_t count)
{
    const bool drops = job->a->dropout > 0;
    if (drops)
        wf_attention_kept(job, b, first, count, r->kept);
    for (int64_t j = 0; j < count; j++) {
        float *const s = r->scores + j * LANES, *const g = r->grads + j * LANES, *const k = r->kept + j * LANES;
#pragma omp simd
        for (int i = 0; i < LANES; i++) {
            const bool hidden = s[i] == -INFINITY || r->lse[i] == -INFINITY;
            const float p = hidden ? 0.0F : vm_exp(s[i] - r->lse[i]);
            s[i] = p;
        }
        if (drops)
            for (int64_t i = 0; i < b->count; i++) {
                g[i] = s[i] * (g[i] * k[i] - r->mean[i]);
                s[i] *= k[i];
            }
        else
#pragma omp simd
            for (int i = 0; i < LANES; i++)
                g[i] = s[i] * (g[i] - r->mean[i]);
    }
}

static void add_bias_gradient(const attention_job *job, const attention_block *b, const backward_room *r, int64_t first,
                              int64_t count)
{
    const int32_t *const index = job->a->index ? job->a->index->data : NULL;
    for (int64_t i = 0; i < b->count; i++)
        for (int64_t j = 0; j < count; j++) {
            const int64_t row = index ? index[(b->i + i) * job->z.s + first + j]
                                      : wf_attention_row(job->a, job->z.rows, b->i + i, first + j);
            r->dbias[row] += r->grads[j * LANES + i];
        }
}

/* The products that scores and their gradients go into. */
static void add_products(const attention_job *job, const attention_block *b, const backward_room *r,
                         attention_rows keys, int64_t first, int64_t count)
{
    attention_product p = {.m = count, .n = job->ew, .k = b->count, .a = r->scores, .row = LANES, .column = 1};
    p.b = r->dy_rows, p.ldb = job->ew, p.c = r->dv + first * job->ew, p.ldc = job->ew;
    wf_attention_multiply(&p);
    p.n = job->dw, p.a = r->grads, p.b = r->q_rows, p.ldb = job->dw, p.c = r->dk + first * job->dw, p.ldc = job->dw;
    wf_attention_multiply(&p);
    p.m = job->z.d, p.n = b->width, p.k = count, p.a = keys.data, p.row = 1, p.column = keys.step;
    p.b = r->grads, p.ldb = LANES, p.c = r->dq, p.ldc = LANES;
    wf_attention_multiply(&p);
}

static void backward_keys(const attention_job *job, const attention_block *b, backward_room *r, int64_t first,
                          int64_t count)
{
    const wf_attention_args *const a = job->a;
    const attention_rows keys = wf_attention_rows(job, a->k, b->n, b->h, first, count, r->keys);
    const attention_rows values = wf_attention_rows(job, a->v, b->n, b->h, first, count, r->values);
    wf_attention_scores(job, b, r->queries, keys, first, count, r->scores);
    memset(r->grads, 0, (size_t)(count * LANES) * sizeof *r->grads);
    wf_attention_multiply(&(attention_product){.m = count,
                                               .n = b->width,
                                               .k = job->z.e,
                                               .a = values.data,
                                               .row = values.step,
                                               .column = 1,
                                               .b = r->up,
                                               .ldb = LANES,
                                               .c = r->grads,
                                               .ldc = LANES});
    differentiate(job, b, r, first, count);
    if (r->dbias)
        add_bias_gradient(job, b, r, first, count);
    add_products(job, b, r, keys, first, count);
}

/* Row `t` of head h, scaled. */
static void put_row(const attention_job *job, const wf_array *to, const attention_block *b, int64_t t,
                    const float *from, int64_t step, float scale, float *room)
{
    const int64_t all = to->shape.dim[2], each = all / job->a->heads;
    const int64_t at = (b->n * to->shape.dim[1] + t) * all + b->h * each;
    float *const row = wf_cpu_place(to, at, each, false, room);
    for (int64_t c = 0; c < each; c++)
        row[c] = scale * from[c * step];
    wf_cpu_put(to, at, each, room);
}

static void backward_head(const attention_job *job, int64_t unit, int64_t worker, double *dbias)
{
    const wf_attention_args *const a = job->a;
    backward_room r = split_room(job, worker);
    attention_block b = {.n = unit / a->heads, .h = unit % a->heads};
    r.dbias = a->dbias ? dbias + unit * job->z.rows : NULL;
    for (int64_t i = 0; i < job->z.t; i += LANES) {
        b = wf_attention_block(job, b.n, b.h, i);
        load_block(job, &b, &r);
        for (int64_t first = 0; first < b.reach; first += KEYS)
            backward_keys(job, &b, &r, first, wf_cpu_min(KEYS, b.reach - first));
        for (int64_t x = 0; x < b.count; x++)
            put_row(job, a->dq, &b, i + x, r.dq + x, LANES, (float)a->scale, r.keys);
    }
    for (int64_t j = 0; j < job->z.s; j++) {
        put_row(job, a->dk, &b, j, r.dk + j * job->dw, 1, 1, r.keys);
        put_row(job, a->dv, &b, j, r.dv + j * job->ew, 1, 1, r.values);
    }
}

/* Over the samples, in their order. */
static void fold_bias(const attention_job *job, const double *part)
{
    const int64_t heads = job->a->heads, rows = job->z.rows;
    float *const to = job->a->dbias->data;
    for (int64_t row = 0; row < rows; row++)
        for (int64_t h = 0; h < heads; h++) {
            double sum = 0;
            for (int64_t n = 0; n < job->z.n; n++)
                sum += part[(n * heads + h) * rows + row];
            to[row * heads + h] = (float)sum;
        }
}

wf_status wf_cpu_attention_backward(wf_ctx *ctx, const wf_attention_args *args)
{
    const wf_attention_sizes z = wf_attention_sizes_of(args);
    if (args->q->dtype == WF_F64)
        return REF->attention_backward(ctx, args);
    const int64_t units = z.n * args->heads, turn = wf_cpu_turn(ctx, units);
    const int64_t team = wf_cpu_team(ctx, units * (z.t + 1) * (z.s + 1) * (z.d + z.e));
    const int64_t workers = units > 0 ? wf_cpu_min(team, units) : 1;
    const size_t parts = args->dbias ? (size_t)(units * z.rows) * sizeof(double) : 0;
    attention_job job;
    size_t bytes = 0;
    void *dbias = NULL;
    WF_TRY(wf_attention_begin(ctx, args, (size_t)room_floats(&z), workers, &job, &bytes));
    wf_status status = wf_pool_take(ctx, parts, &dbias);
    if (status == WF_OK && parts > 0)
        memset(dbias, 0, parts);
    for (int64_t first = 0; first < units && status == WF_OK; first += turn) {
        const int64_t last = wf_cpu_min(first + turn, units);
#pragma omp parallel for num_threads((int)workers) schedule(static, 1)
        for (int64_t w = 0; w < workers; w++)
            for (int64_t unit = first + w; unit < last; unit += workers)
                backward_head(&job, unit, w, dbias);
        wf_ctx_progress(ctx);
    }
    if (status == WF_OK && args->dbias)
        fold_bias(&job, dbias);
    wf_pool_give(ctx, dbias, parts);
    wf_pool_give(ctx, job.base, bytes);
    return status;
}
