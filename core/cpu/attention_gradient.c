/* Backward of attention: probabilities are made again, block by block. A thread takes a head of a sample. If there are
 * few heads, it takes a block of queries for dq and one of keys for dk and dv, which makes scores twice. Sums have one
 * order either way. With P the probabilities and D = sum of dy y for each query, the scores' gradient is P (dy v - D),
 * so rows of P are never needed whole (Dao et al. 2022). */
#include "core/cpu/attention_impl.h"
#include "core/cpu/vmath_impl.h"

#include <math.h>
#include <string.h>

typedef struct backward_room {
    float *queries, *up, *scores, *grads, *kept, *dq; /* [features or keys][LANES] */
    float *q_rows, *dy_rows;                          /* [LANES][dw], [LANES][ew] */
    float *keys, *values;                             /* widened rows */
    float *dk, *dv;                                   /* [keys of the span][dw], [..][ew] */
    float *sums; /* dbias of each query and key, of the samples so far: [s][across] */
    float lse[LANES], mean[LANES];
} backward_room;

/* Some queries and keys of a head, in one sample or, if all of it, in several. */
typedef struct backward_span {
    int64_t n, samples, h;
    int64_t query, queries_end, key, keys_end; /* query and key begin blocks */
    bool q, kv;                                /* which gradients are made: dq, or dk and dv */
    double *dbias;                             /* [rows]; NULL: not wanted */
} backward_span;

static int64_t room_floats(const wf_attention_args *args, const wf_attention_sizes *z, int64_t keys)
{
    const int64_t sums = args->dbias && wf_attention_gathers(args, z) ? z->s * wf_attention_across(z) : 0;
    const int64_t dw = wf_pack_up(z->d), ew = wf_pack_up(z->e);
    return (2 * z->d + z->e + 3 * KEYS + dw + ew) * LANES + KEYS * (z->d + z->e) + keys * (dw + ew) + sums;
}

static backward_room split_room(const attention_job *job, const backward_span *s, int64_t worker)
{
    const wf_attention_sizes *const z = &job->z;
    const int64_t keys = s->kv ? s->keys_end - s->key : 0;
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
    r.dv = r.dk + keys * job->dw;
    r.sums = job->places && s->dbias ? r.dv + keys * job->ew : NULL;
    return r;
}

/* Rows of `each` features, times scale and padded to whole packs. */
static void copy_rows(attention_rows from, int64_t each, int64_t count, int64_t width, float scale, float *to)
{
    for (int64_t i = 0; i < count; i++) {
        const float *const row = from.data + i * from.step;
#pragma omp simd
        for (int64_t c = 0; c < each; c++)
            to[i * width + c] = scale * row[c];
        for (int64_t c = each; c < width; c++)
            to[i * width + c] = 0;
    }
}

/* Rows of q or dy, both ways round: to [features][LANES] and rows [..][width]. */
static void load_rows(const attention_job *job, const wf_array *of, const attention_block *b, float scale, float *room,
                      float *to, float *rows)
{
    const int64_t each = of->shape.dim[2] / job->a->heads;
    wf_attention_turn(job, of, b, scale, room, to);
    copy_rows(wf_attention_rows(job, of, b->n, b->h, b->i, b->count, room), each, b->count, wf_pack_up(each), scale,
              rows);
}

/* Queries and dy of a block, both ways round; its lse and the sums of dy y. */
static void load_block(const attention_job *job, const attention_block *b, backward_room *r)
{
    const wf_attention_args *const a = job->a;
    const float *const lse = (const float *)a->lse->data + (b->n * a->heads + b->h) * job->z.t + b->i;
    load_rows(job, a->q, b, (float)a->scale, r->keys, r->queries, r->q_rows);
    load_rows(job, a->dy, b, 1, r->values, r->up, r->dy_rows);
    memset(r->dq, 0, (size_t)(job->z.d * LANES) * sizeof *r->dq);
    for (int64_t i = 0; i < LANES; i++) {
        /* A query that sees no key has probabilities of 0, and so has a lane without a query. */
        r->lse[i] = i < b->count && lse[i] != -INFINITY ? lse[i] : INFINITY;
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
    /* exp(score - lse) is the probability itself: lse has the sum in it, so nothing is divided. */
    for (int64_t j = 0; j < count; j++) {
        float *const s = r->scores + j * LANES, *const g = r->grads + j * LANES, *const k = r->kept + j * LANES;
#pragma omp simd
        for (int64_t i = 0; i < b->width; i++)
            s[i] = vm_exp_falling(s[i] - r->lse[i]);
        /* mean (D) was made of y, which dropout is part of already; only dy v gets the factor here. */
        if (drops)
            for (int64_t i = 0; i < b->count; i++) {
                g[i] = s[i] * (g[i] * k[i] - r->mean[i]);
                s[i] *= k[i];
            }
        else
#pragma omp simd
            for (int64_t i = 0; i < b->width; i++)
                g[i] = s[i] * (g[i] - r->mean[i]);
    }
}

static void add_bias_gradient(const attention_job *job, const attention_block *b, const float *grads, int64_t step,
                              double *dbias, int64_t first, int64_t count)
{
    const int32_t *const index = job->a->index ? job->a->index->data : NULL;
    for (int64_t i = 0; i < b->count; i++)
        for (int64_t j = 0; j < count; j++) {
            const int64_t row = index ? index[(b->i + i) * job->z.s + first + j]
                                      : wf_attention_row(job->a, job->z.rows, b->i + i, first + j);
            dbias[row] += grads[j * step + i];
        }
}

static void add_places(const attention_job *job, const attention_block *b, const backward_room *r, int64_t first,
                       int64_t count)
{
    for (int64_t j = 0; j < count; j++) {
        const float *const g = r->grads + j * LANES;
        float *const to = r->sums + (first + j) * job->across + b->i;
#pragma omp simd
        for (int64_t i = 0; i < b->width; i++)
            to[i] += g[i];
    }
}

/* The products that scores go into, and their gradients. */
static void add_key_products(const attention_job *job, const attention_block *b, const backward_room *r, int64_t row,
                             int64_t count)
{
    /* q_rows have the scale in them, so dk is complete; dq is a product with plain keys and gets the scale in
     * put_row. */
    attention_product p = {.m = count, .k = b->count, .row = LANES, .column = 1};
    if (job->a->dv) {
        p.n = job->ew, p.a = r->scores, p.b = r->dy_rows, p.ldb = job->ew, p.c = r->dv + row * job->ew, p.ldc = job->ew;
        wf_attention_multiply(&p);
    }
    if (job->a->dk) {
        p.n = job->dw, p.a = r->grads, p.b = r->q_rows, p.ldb = job->dw, p.c = r->dk + row * job->dw, p.ldc = job->dw;
        wf_attention_multiply(&p);
    }
}

static void backward_keys(const attention_job *job, const backward_span *s, const attention_block *b, backward_room *r,
                          int64_t first, int64_t count)
{
    const wf_attention_args *const a = job->a;
    const attention_rows keys = wf_attention_rows(job, a->k, b->n, b->h, first, count, r->keys);
    const attention_rows values = wf_attention_rows(job, a->v, b->n, b->h, first, count, r->values);
    wf_attention_scores(job, b, r->queries, keys, first, count, r->scores);
    wf_attention_multiply(&(attention_product){.fresh = true,
                                               .m = count,
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
    if (r->sums)
        add_places(job, b, r, first, count);
    else if (s->dbias)
        add_bias_gradient(job, b, r->grads, LANES, s->dbias, first, count);
    if (s->kv)
        add_key_products(job, b, r, first - s->key, count);
    if (s->q)
        wf_attention_multiply(&(attention_product){.m = job->z.d,
                                                   .n = b->width,
                                                   .k = count,
                                                   .a = keys.data,
                                                   .row = 1,
                                                   .column = keys.step,
                                                   .b = r->grads,
                                                   .ldb = LANES,
                                                   .c = r->dq,
                                                   .ldc = LANES});
}

/* Row `t` of head h. */
static void put_row(const attention_job *job, const wf_array *to, const attention_block *b, int64_t t,
                    const float *from, float *room)
{
    const int64_t all = to->shape.dim[2], each = all / job->a->heads;
    const int64_t at = (b->n * to->shape.dim[1] + t) * all + b->h * each;
    const bool adds = job->a->adds;
    float *const row = wf_cpu_place(to, at, each, adds, room);
    for (int64_t c = 0; c < each; c++)
        row[c] = from[c] + (adds ? row[c] : 0);
    wf_cpu_put(to, at, each, room);
}

static void run_sample(const attention_job *job, const backward_span *s, int64_t n, backward_room *r)
{
    const wf_attention_args *const a = job->a;
    /* n and h are set before the loop, since a span without queries still writes dk and dv. */
    attention_block b = {.n = n, .h = s->h};
    if (s->kv)
        memset(r->dk, 0, (size_t)((s->keys_end - s->key) * (job->dw + job->ew)) * sizeof *r->dk);
    for (int64_t i = s->query; i < s->queries_end; i += LANES) {
        b = wf_attention_block(job, n, s->h, i);
        /* A span begins and ends at whole blocks of keys; the block's reach may end before both. */
        const int64_t end = wf_cpu_min(b.reach, s->keys_end);
        load_block(job, &b, r);
        for (int64_t first = s->key; first < end; first += KEYS)
            backward_keys(job, s, &b, r, first, wf_cpu_min(KEYS, end - first));
        /* The keys of the block have used the rows of queries. */
        if (s->q)
            wf_attention_transpose(r->dq, LANES, job->z.d, b.count, (float)a->scale, r->q_rows, job->dw);
        for (int64_t x = 0; x < b.count && s->q; x++)
            put_row(job, a->dq, &b, i + x, r->q_rows + x * job->dw, r->keys);
    }
    for (int64_t j = 0; s->kv && j < s->keys_end - s->key; j++) {
        if (a->dk)
            put_row(job, a->dk, &b, s->key + j, r->dk + j * job->dw, r->keys);
        if (a->dv)
            put_row(job, a->dv, &b, s->key + j, r->dv + j * job->ew, r->values);
    }
}

static void run_span(const attention_job *job, const backward_span *s, int64_t worker)
{
    const wf_attention_sizes *const z = &job->z;
    backward_room r = split_room(job, s, worker);
    if (r.sums)
        memset(r.sums, 0, (size_t)(z->s * job->across) * sizeof *r.sums);
    for (int64_t n = s->n; n < s->n + s->samples; n++)
        run_sample(job, s, n, &r);
    const attention_block all = {.h = s->h, .count = z->t};
    if (r.sums)
        add_bias_gradient(job, &all, r.sums, job->across, s->dbias, 0, z->s);
}

/* How the queries and keys of all heads are divided into spans, which no two share a gradient. */
typedef struct backward_pass {
    bool q, kv;
    int64_t queries, keys; /* of a span; 0: all */
    int64_t samples;       /* of a span that is a whole head; 0: one */
} backward_pass;

/* Gradients of a gathered bias are summed over so many samples before they go to their rows. A number that does not
 * depend on the threads: sums have one order. */
static int64_t samples_of_span(const wf_attention_args *args)
{
    enum { MOST = 16, LEAST_SPANS = 64 };
    const wf_attention_sizes z = wf_attention_sizes_of(args);
    const int64_t fair = z.n * args->heads / LEAST_SPANS;
    return !args->dbias || !wf_attention_gathers(args, &z) || fair < 1 ? 1 : wf_cpu_min(fair, MOST);
}

static int64_t spans_along(int64_t all, int64_t each)
{
    return each == 0 ? 1 : (all + each - 1) / each;
}

static backward_span span_of(const attention_job *job, const backward_pass *p, int64_t unit, double *dbias)
{
    const wf_attention_sizes *const z = &job->z;
    const int64_t along = spans_along(z->s, p->keys), each = spans_along(z->t, p->queries) * along;
    const int64_t head = unit / each, query = unit % each / along, key = unit % along;
    const int64_t samples = p->samples > 0 ? p->samples : 1, n = head / job->a->heads * samples;
    backward_span s = {.n = n, .h = head % job->a->heads, .q = p->q, .kv = p->kv};
    s.samples = wf_cpu_min(samples, z->n - n);
    s.query = query * p->queries;
    s.queries_end = p->queries > 0 ? wf_cpu_min(s.query + p->queries, z->t) : z->t;
    s.key = key * p->keys;
    s.keys_end = p->keys > 0 ? wf_cpu_min(s.key + p->keys, z->s) : z->s;
    /* A span adds to a row of its own, which fold_bias sums: threads share none. */
    s.dbias = job->a->dbias ? dbias + head * z->rows : NULL;
    return s;
}

static wf_status run_pass(wf_ctx *ctx, const wf_attention_args *args, const backward_pass *p, int64_t team,
                          double *dbias)
{
    const wf_attention_sizes z = wf_attention_sizes_of(args);
    const int64_t groups = spans_along(z.n, p->samples > 0 ? p->samples : 1);
    const int64_t units = groups * args->heads * spans_along(z.t, p->queries) * spans_along(z.s, p->keys);
    const int64_t workers = units > 0 ? wf_cpu_min(team, units) : 1, turn = wf_cpu_turn(ctx, units);
    attention_job job;
    size_t bytes = 0;
    /* Rooms are sized for the largest span; the last one of a head may be shorter. */
    WF_TRY(wf_attention_begin(ctx, args, (size_t)room_floats(args, &z, p->kv ? p->keys > 0 ? p->keys : z.s : 0),
                              workers, &job, &bytes));
    for (int64_t first = 0; first < units; first += turn) {
        const int64_t last = wf_cpu_min(first + turn, units);
#pragma omp parallel for num_threads((int)workers) schedule(static, 1)
        for (int64_t w = 0; w < workers; w++)
            for (int64_t unit = first + w; unit < last; unit += workers) {
                const backward_span s = span_of(&job, p, unit, dbias);
                run_span(&job, &s, w);
            }
        wf_ctx_progress(ctx);
    }
    wf_pool_give(ctx, job.base, bytes);
    return WF_OK;
}

/* Over the samples, in their order. */
static void fold_bias(const wf_attention_args *args, const double *part, int64_t groups)
{
    const wf_attention_sizes z = wf_attention_sizes_of(args);
    const int64_t heads = args->heads, rows = z.rows;
    float *const to = args->dbias->data;
    for (int64_t row = 0; row < rows; row++)
        for (int64_t h = 0; h < heads; h++) {
            double sum = 0;
            for (int64_t n = 0; n < groups; n++)
                sum += part[(n * heads + h) * rows + row];
            to[row * heads + h] = (float)(args->adds ? to[row * heads + h] + sum : sum);
        }
}

/* Scores made twice are 7 products instead of 5, so two passes pay from twice as many threads as heads on. */
static wf_status run_passes(wf_ctx *ctx, const wf_attention_args *args, double *dbias)
{
    const wf_attention_sizes z = wf_attention_sizes_of(args);
    const int64_t units = z.n * args->heads, team = wf_cpu_team(ctx, units * (z.t + 1) * (z.s + 1) * (z.d + z.e));
    const backward_pass queries = {.q = true, .queries = LANES}, keys = {.kv = true, .keys = KEYS};
    const backward_pass all = {.q = args->dq, .kv = args->dk || args->dv, .samples = samples_of_span(args)};
    /* dbias sums over queries and keys of a head, so a head must be one span to have one order. */
    if (args->dbias || team < 2 * units)
        return run_pass(ctx, args, &all, team, dbias);
    if (all.q)
        WF_TRY(run_pass(ctx, args, &queries, team, NULL));
    return all.kv ? run_pass(ctx, args, &keys, team, NULL) : WF_OK;
}

wf_status wf_cpu_attention_backward(wf_ctx *ctx, const wf_attention_args *args)
{
    if (args->q->dtype == WF_F64)
        return REF->attention_backward(ctx, args);
    const wf_attention_sizes z = wf_attention_sizes_of(args);
    const int64_t groups = spans_along(z.n, samples_of_span(args));
    const size_t parts = args->dbias ? (size_t)(groups * args->heads * z.rows) * sizeof(double) : 0;
    void *dbias = NULL;
    WF_TRY(wf_pool_take(ctx, parts, &dbias));
    if (parts > 0)
        memset(dbias, 0, parts);
    const wf_status status = run_passes(ctx, args, dbias);
    if (status == WF_OK && args->dbias)
        fold_bias(args, dbias, groups);
    wf_pool_give(ctx, dbias, parts);
    return status;
}
