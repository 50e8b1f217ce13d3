/* Backward of attention: probabilities are made again, block by block. With P the probabilities and D = sum of dy y for
 * each query, the scores' gradient is P (dy v - D), so rows of P are never needed whole (Dao et al. 2022).
 *
 * A thread takes a head of a sample. If there are few heads, it takes a span of a head's keys, as a stage of a
 * pipeline: a block of queries comes to a span after the span before has added to the block's dq. dq is summed over the
 * keys in order and dk and dv over the queries in order, so sums have one order either way. Two threads, one head of 64
 * and 4,096 tokens, AMD EPYC (Zen 3): 1.8 times as fast as a pass for dq and one for dk and dv, which makes scores
 * twice. */
#include "core/cpu/attention_impl.h"
#include "core/cpu/vmath_impl.h"

#include <math.h>
#include <omp.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

typedef struct backward_room {
    float *queries, *up, *scores, *grads, *kept; /* [features or keys][LANES] */
    float *dq;                                   /* [blocks][d][LANES], or of one block */
    float *q_rows, *dy_rows;                     /* [LANES][dw], [LANES][ew] */
    float *keys, *values;                        /* widened rows */
    float *dk, *dv;                              /* [keys of the span][dw], [..][ew] */
    float *sums;                                 /* dbias of each query and key, of the samples so far: [s][across] */
    float lse[LANES], mean[LANES];
} backward_room;

/* Queries that a span has done with, in a cache line of its own: the thread of the next span polls it. */
typedef struct span_progress {
    _Alignas(64) _Atomic int64_t queries;
} span_progress;

/* All queries and some keys of a head, in one sample or, if all keys, in several. */
typedef struct backward_span {
    int64_t n, samples, h;
    int64_t key, keys_end; /* key begins a block */
    double *dbias;         /* [rows]; NULL: not wanted */
    float *dq;             /* what the spans of the head share; NULL: they are one thread's, whose room has it */
    span_progress *own;    /* behind it lies that of the next span; NULL if dq is */
} backward_span;

/* How a pass divides keys: `keys` of a span, shared if spans of a head are different threads'. */
typedef struct backward_cut {
    int64_t keys;    /* of a span */
    bool shared;     /* spans of a head are different threads', so dq is shared */
    int64_t samples; /* of a unit that has all keys of a head */
} backward_cut;

static bool wants_keys(const wf_attention_args *args)
{
    return args->dk || args->dv;
}

static int64_t room_floats(const wf_attention_args *args, const wf_attention_sizes *z, const backward_cut *cut)
{
    const int64_t sums = args->dbias && wf_attention_gathers(args, z) ? z->s * wf_attention_across(z) : 0;
    const int64_t dw = wf_pack_up(z->d), ew = wf_pack_up(z->e), keys = wants_keys(args) ? cut->keys : 0;
    return (2 * z->d + z->e + 3 * KEYS + dw + ew) * LANES + KEYS * (z->d + z->e) + keys * (dw + ew) + sums;
}

static backward_room split_room(const attention_job *job, const backward_cut *cut, const backward_span *s,
                                int64_t worker)
{
    const wf_attention_sizes *const z = &job->z;
    const int64_t keys = wants_keys(job->a) ? cut->keys : 0;
    backward_room r = {.queries = job->room + (size_t)worker * job->each};
    r.up = r.queries + z->d * LANES;
    r.scores = r.up + z->e * LANES;
    r.grads = r.scores + KEYS * LANES;
    r.kept = r.grads + KEYS * LANES;
    r.q_rows = r.kept + KEYS * LANES;
    r.dy_rows = r.q_rows + job->dw * LANES;
    r.keys = r.dy_rows + job->ew * LANES;
    r.values = r.keys + KEYS * z->d;
    r.dk = r.values + KEYS * z->e;
    r.dv = r.dk + keys * job->dw;
    float *const own = r.dv + keys * job->ew;
    r.dq = cut->shared ? s->dq : own;
    r.sums = job->places && s->dbias ? own + z->d * LANES : NULL;
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
                          float *dq, int64_t first, int64_t count)
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
    if (wants_keys(a))
        add_key_products(job, b, r, first - s->key, count);
    if (a->dq)
        wf_attention_multiply(&(attention_product){.m = job->z.d,
                                                   .n = b->width,
                                                   .k = count,
                                                   .a = keys.data,
                                                   .row = 1,
                                                   .column = keys.step,
                                                   .b = r->grads,
                                                   .ldb = LANES,
                                                   .c = dq,
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

static void put_queries(const attention_job *job, const attention_block *b, backward_room *r, const float *dq)
{
    /* The keys of the block have used the rows of queries. */
    wf_attention_transpose(dq, LANES, job->z.d, b->count, (float)job->a->scale, r->q_rows, job->dw);
    for (int64_t x = 0; x < b->count; x++)
        put_row(job, job->a->dq, b, b->i + x, r->q_rows + x * job->dw, r->keys);
}

static void put_keys(const attention_job *job, const backward_span *s, int64_t n, const backward_room *r)
{
    const attention_block b = {.n = n, .h = s->h};
    for (int64_t j = 0; j < s->keys_end - s->key; j++) {
        if (job->a->dk)
            put_row(job, job->a->dk, &b, s->key + j, r->dk + j * job->dw, r->keys);
        if (job->a->dv)
            put_row(job, job->a->dv, &b, s->key + j, r->dv + j * job->ew, r->values);
    }
}

/* Returns after the span before has done with the queries up to `end`. Units are handed out in order, so that span is
 * some thread's already, or done. */
static void wait_for_span_before(const backward_span *s, int64_t end)
{
    enum { POLLS = 1000 };
    if (!s->own || s->key == 0)
        return;
    int polls = 0;
    while (atomic_load_explicit(&s->own[-1].queries, memory_order_acquire) < end)
        if (polls < POLLS)
            polls++;
        else
            sched_yield();
}

/* The queries of a sample pass the keys of a span. */
static void run_keys(const attention_job *job, const backward_cut *cut, const backward_span *s, int64_t n,
                     backward_room *r)
{
    if (wants_keys(job->a))
        memset(r->dk, 0, (size_t)(cut->keys * (job->dw + job->ew)) * sizeof *r->dk);
    for (int64_t i = 0; i < job->z.t; i += LANES) {
        const attention_block b = wf_attention_block(job, n, s->h, i);
        float *const dq = r->dq + (cut->shared ? i * job->z.d : 0);
        /* A span begins at a whole block of keys; the block's reach may end before the span's end. */
        const int64_t end = wf_cpu_min(b.reach, s->keys_end);
        if (end > s->key)
            load_block(job, &b, r);
        wait_for_span_before(s, i + b.count);
        if (s->key == 0)
            memset(dq, 0, (size_t)(job->z.d * LANES) * sizeof *dq);
        for (int64_t first = s->key; first < end; first += KEYS)
            backward_keys(job, s, &b, r, dq, first, wf_cpu_min(KEYS, end - first));
        if (job->a->dq && s->keys_end == job->z.s)
            put_queries(job, &b, r, dq);
        if (s->own)
            atomic_store_explicit(&s->own->queries, i + b.count, memory_order_release);
    }
    put_keys(job, s, n, r);
}

static void run_span(const attention_job *job, const backward_cut *cut, const backward_span *s, int64_t worker)
{
    const wf_attention_sizes *const z = &job->z;
    backward_room r = split_room(job, cut, s, worker);
    if (r.sums)
        memset(r.sums, 0, (size_t)(z->s * job->across) * sizeof *r.sums);
    for (int64_t n = s->n; n < s->n + s->samples; n++)
        run_keys(job, cut, s, n, &r);
    const attention_block all = {.h = s->h, .count = z->t};
    if (r.sums)
        add_bias_gradient(job, &all, r.sums, job->across, s->dbias, 0, z->s);
}

/* Gradients of a gathered bias are summed over so many samples before they go to their rows. A number that does not
 * depend on the threads: sums have one order. */
static int64_t samples_of_span(const wf_attention_args *args)
{
    enum { MOST = 16, LEAST_SPANS = 64 };
    const wf_attention_sizes z = wf_attention_sizes_of(args);
    const int64_t fair = z.n * args->heads / LEAST_SPANS;
    return !args->dbias || !wf_attention_gathers(args, &z) || fair < 1 ? 1 : wf_cpu_min(fair, MOST);
}

static int64_t pieces_of(int64_t all, int64_t each)
{
    return (all + each - 1) / each;
}

/* A pass over all heads, and what threads share if the spans of a head are not one thread's. */
typedef struct backward_pass {
    backward_cut cut;
    int64_t spans, units; /* of a head; of all */
    double *dbias;
    float *dq;               /* [sample and head][blocks][d][LANES] */
    span_progress *progress; /* of each unit */
} backward_pass;

static backward_span span_of(const attention_job *job, const backward_pass *p, int64_t unit)
{
    const wf_attention_sizes *const z = &job->z;
    const int64_t head = unit / p->spans, n = head / job->a->heads * p->cut.samples;
    backward_span s = {.n = n, .h = head % job->a->heads, .keys_end = z->s};
    s.samples = wf_cpu_min(p->cut.samples, z->n - n);
    /* A unit adds to a row of its own, which fold_bias sums: threads share none. */
    s.dbias = job->a->dbias ? p->dbias + head * z->rows : NULL;
    if (!p->cut.shared)
        return s;
    s.key = unit % p->spans * p->cut.keys;
    s.keys_end = wf_cpu_min(s.key + p->cut.keys, z->s);
    s.dq = p->dq + head * job->across * z->d;
    s.own = p->progress + unit;
    return s;
}

static wf_status run_units(wf_ctx *ctx, const wf_attention_args *args, const backward_pass *p, int64_t team)
{
    const wf_attention_sizes z = wf_attention_sizes_of(args);
    const int64_t workers = p->units > 0 ? wf_cpu_min(team, p->units) : 1, turn = wf_cpu_turn(ctx, p->units);
    attention_job job;
    size_t bytes = 0;
    WF_TRY(wf_attention_begin(ctx, args, (size_t)room_floats(args, &z, &p->cut), workers, &job, &bytes));
    for (int64_t first = 0; first < p->units; first += turn) {
        const int64_t last = wf_cpu_min(first + turn, p->units);
        /* In order: a span that waits for the one before it would wait forever for one that no thread has. */
#pragma omp parallel for num_threads((int)workers) schedule(monotonic : dynamic, 1)
        for (int64_t unit = first; unit < last; unit++) {
            const backward_span s = span_of(&job, p, unit);
            run_span(&job, &p->cut, &s, omp_get_thread_num());
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

/* Spans of a head are different threads' where heads are few and do not divide the threads evenly. dbias sums over
 * queries and keys of a head, so a head must be one unit to have one order. */
static backward_cut cut_keys(const wf_attention_args *args, int64_t team)
{
    /* Four spans of a thread let threads end together, also with a causal mask. Of d and e of 64 k, v, dk and dv of a
     * span are 256 KiB at most, which the second-level cache holds. */
    enum { SPANS_OF_THREAD = 4, MOST_KEYS = 256 };
    const wf_attention_sizes z = wf_attention_sizes_of(args);
    const int64_t heads = z.n * args->heads;
    backward_cut cut = {.samples = samples_of_span(args)};
    cut.shared = !args->dbias && heads < 2 * team && heads % team != 0 && z.s > KEYS;
    const int64_t fair = pieces_of(pieces_of(heads * z.s, SPANS_OF_THREAD * team), KEYS) * KEYS;
    cut.keys = cut.shared ? wf_cpu_min(fair, MOST_KEYS) : z.s;
    return cut;
}

static wf_status run_heads(wf_ctx *ctx, const wf_attention_args *args, double *dbias)
{
    const wf_attention_sizes z = wf_attention_sizes_of(args);
    const int64_t heads = z.n * args->heads, team = wf_cpu_team(ctx, heads * (z.t + 1) * (z.s + 1) * (z.d + z.e));
    backward_pass p = {.cut = cut_keys(args, team), .spans = 1, .dbias = dbias};
    if (!p.cut.shared) {
        p.units = pieces_of(z.n, p.cut.samples) * args->heads;
        return run_units(ctx, args, &p, team);
    }
    p.spans = pieces_of(z.s, p.cut.keys);
    p.units = heads * p.spans;
    const size_t sums = (size_t)(heads * wf_attention_across(&z) * z.d) * sizeof *p.dq;
    const size_t bytes = (size_t)p.units * sizeof *p.progress + sums;
    void *room = NULL;
    WF_TRY(wf_pool_take(ctx, bytes, &room));
    p.progress = room;
    p.dq = (float *)(p.progress + p.units);
    for (int64_t unit = 0; unit < p.units; unit++)
        atomic_init(&p.progress[unit].queries, 0);
    const wf_status status = run_units(ctx, args, &p, team);
    wf_pool_give(ctx, room, bytes);
    return status;
}

wf_status wf_cpu_attention_backward(wf_ctx *ctx, const wf_attention_args *args)
{
    if (args->q->dtype == WF_F64)
        return REF->attention_backward(ctx, args);
    const wf_attention_sizes z = wf_attention_sizes_of(args);
    const int64_t groups = pieces_of(z.n, samples_of_span(args));
    const size_t parts = args->dbias ? (size_t)(groups * args->heads * z.rows) * sizeof(double) : 0;
    void *dbias = NULL;
    WF_TRY(wf_pool_take(ctx, parts, &dbias));
    if (parts > 0)
        memset(dbias, 0, parts);
    const wf_status status = run_heads(ctx, args, dbias);
    if (status == WF_OK && args->dbias)
        fold_bias(args, dbias, groups);
    wf_pool_give(ctx, dbias, parts);
    return status;
}
