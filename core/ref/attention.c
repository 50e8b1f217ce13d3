/* Attention in plain loops, a row of scores at a time: the oracle. */
#include "core/ref/ref_impl.h"

#include <math.h>
#include <string.h>

/* What the loops read, and a row's scores and keys. */
typedef struct score_rows {
    const wf_attention_args *a;
    wf_attention_sizes z;
    const double *q, *k, *v, *bias;
    const int32_t *index, *lengths, *q_region, *k_region;
    double *score, *mask; /* [S] */
} score_rows;

static const int32_t *whole_numbers(const wf_array *a)
{
    return a ? a->data : NULL;
}

static score_rows read_rows(wf_ref_frame *frame, const wf_attention_args *a)
{
    score_rows o = {.a = a, .z = wf_attention_sizes_of(a)};
    o.q = wf_ref_in(frame, a->q);
    o.k = wf_ref_in(frame, a->k);
    o.v = wf_ref_in(frame, a->v);
    o.bias = wf_ref_in(frame, a->bias);
    o.index = whole_numbers(a->index);
    o.lengths = whole_numbers(a->lengths);
    o.q_region = whole_numbers(a->q_region);
    o.k_region = whole_numbers(a->k_region);
    o.score = wf_ref_work(frame, o.z.s);
    o.mask = wf_ref_work(frame, o.z.s);
    return o;
}

/* Head h of token t of sample n, of `length` tokens with `each` features a head. Tokens lie inside samples, heads
 * inside tokens. */
static int64_t head_at(const score_rows *o, int64_t n, int64_t h, int64_t t, int64_t length, int64_t each)
{
    return ((n * length + t) * o->a->heads + h) * each;
}

/* The row of the bias' table for query i and key j: by the index if there is one, else by their distance. */
static int64_t bias_at(const score_rows *o, int64_t h, int64_t i, int64_t j)
{
    const int64_t row = o->index ? o->index[i * o->z.s + j] : wf_attention_row(o->a, o->z.rows, i, j);
    return row * o->a->heads + h;
}

static void load_mask(const score_rows *o, int64_t n, int64_t h, int64_t i)
{
    const wf_strided *const m = o->a->mask;
    if (!m) {
        memset(o->mask, 0, (size_t)o->z.s * sizeof *o->mask);
        return;
    }
    const int64_t at = n * m->stride[0] + h * m->stride[1] + i * m->stride[2];
    wf_ref_load(m->dtype, (const char *)m->data + at * (int64_t)wf_dtype_size(m->dtype), m->stride[3], o->z.s, o->mask);
}

/* The scores of query i, with -infinity for keys that it does not see. A key is hidden beyond the query's reach
 * (causal, or the sample's length), or where its region is another. */
static void score_row(const score_rows *o, int64_t n, int64_t h, int64_t i)
{
    const int64_t reach = wf_attention_reach(o->a, o->z.s, o->lengths ? o->lengths[n] : INT64_MAX, i);
    const int64_t group = o->z.groups > 0 ? wf_attention_sample(o->a, n) % o->z.groups : 0;
    const double *const q = o->q + head_at(o, n, h, i, o->z.t, o->z.d);
    load_mask(o, n, h, i);
    for (int64_t j = 0; j < o->z.s; j++) {
        const double *const k = o->k + head_at(o, n, h, j, o->z.s, o->z.d);
        const bool hidden = o->q_region && o->q_region[group * o->z.t + i] != o->k_region[group * o->z.s + j];
        double sum = 0;
        for (int64_t c = 0; c < o->z.d; c++)
            sum += q[c] * k[c];
        sum = o->a->scale * sum + o->mask[j] + (o->bias ? o->bias[bias_at(o, h, i, j)] : 0);
        o->score[j] = j >= reach || hidden ? -INFINITY : sum;
    }
}

/* What dropout multiplies the probability of key j by. */
static double kept(const score_rows *o, int64_t n, int64_t h, int64_t i, int64_t j)
{
    const wf_random *const r = o->a->random;
    if (o->a->dropout <= 0)
        return 1;
    uint32_t word[4];
    /* The place counts in the whole array of scores, so ranks that hold parts of it drop the same keys. */
    const uint64_t at = (uint64_t)(wf_attention_place(r, wf_attention_sample(o->a, n), h, i) + j);
    wf_philox(r->seed, r->stream, r->iteration ? *r->iteration : 0, at / 4, word);
    return (double)(word[at % 4] >> 8) * 0x1p-24 < o->a->dropout ? 0 : 1 / (1 - o->a->dropout);
}

/* Checked before anything is written. */
static wf_status check_bias_rows(const score_rows *o)
{
    for (int64_t i = 0; o->index && i < o->z.t * o->z.s; i++)
        WF_CHECK(o->index[i] >= 0 && o->index[i] < o->z.rows, WF_ERR_ARGUMENT,
                 "index %lld in place %lld is outside [0, %lld)", (long long)o->index[i], (long long)i,
                 (long long)o->z.rows);
    return WF_OK;
}

/* The logarithm of the sum of exponentials; -infinity if the query sees no key. */
static double log_sum(const double *score, int64_t s)
{
    double most = -INFINITY, sum = 0;
    for (int64_t j = 0; j < s; j++)
        most = score[j] > most ? score[j] : most;
    if (most == -INFINITY)
        return -INFINITY;
    for (int64_t j = 0; j < s; j++)
        sum += exp(score[j] - most);
    return most + log(sum);
}

/* The logarithm of exp(a) + exp(b). */
static double join_logs(double a, double b)
{
    const double most = a > b ? a : b;
    return most == -INFINITY ? most : most + log(exp(a - most) + exp(b - most));
}

/* With `joins` the keys are one part of several: y and lse hold the parts before, and both are scaled to the new
 * sum. */
static void attend_query(const score_rows *o, int64_t n, int64_t h, int64_t i, double *y, double *lse)
{
    const double before = o->a->joins ? *lse : -INFINITY;
    score_row(o, n, h, i);
    *lse = join_logs(before, log_sum(o->score, o->z.s));
    for (int64_t c = 0; c < o->z.e; c++)
        y[c] = before == -INFINITY ? 0 : y[c] * exp(before - *lse);
    for (int64_t j = 0; j < o->z.s; j++) {
        if (o->score[j] == -INFINITY)
            continue;
        const double p = exp(o->score[j] - *lse) * kept(o, n, h, i, j);
        const double *const v = o->v + head_at(o, n, h, j, o->z.s, o->z.e);
        for (int64_t c = 0; c < o->z.e; c++)
            y[c] += p * v[c];
    }
}

wf_status wf_ref_attention_forward(wf_ctx *ctx, const wf_attention_args *args)
{
    wf_ref_frame frame = wf_ref_begin(ctx);
    const score_rows o = read_rows(&frame, args);
    double *const y = wf_ref_out(&frame, args->y, args->joins), *const lse = wf_ref_out(&frame, args->lse, args->joins);
    const int64_t each = args->heads * o.z.t;
    if (frame.status == WF_OK)
        frame.status = check_bias_rows(&o);
    for (int64_t r = 0; r < o.z.n * each && frame.status == WF_OK; r++) {
        const int64_t n = r / each, h = r % each / o.z.t, i = r % o.z.t;
        attend_query(&o, n, h, i, y + head_at(&o, n, h, i, o.z.t, o.z.e), lse + r);
    }
    return wf_ref_end(&frame);
}

typedef struct attention_grads {
    const double *y, *dy, *lse;
    double *dq, *dk, *dv, *dbias; /* NULL: not wanted */
} attention_grads;

static double dot(const double *a, const double *b, int64_t n)
{
    double sum = 0;
    for (int64_t c = 0; c < n; c++)
        sum += a[c] * b[c];
    return sum;
}

static void add_times(double *to, double factor, const double *x, int64_t n)
{
    for (int64_t c = 0; c < n; c++)
        to[c] += factor * x[c];
}

/* The gradient of one row. ds = p (keep dy v - dy y): dy y is the mean of the first term over the softmax, dropout
 * included. */
static void differentiate_query(const score_rows *o, const attention_grads *g, int64_t n, int64_t h, int64_t i)
{
    const wf_attention_sizes *const z = &o->z;
    const int64_t at = head_at(o, n, h, i, z->t, z->e), to = head_at(o, n, h, i, z->t, z->d);
    const double lse = g->lse[(n * o->a->heads + h) * z->t + i], *const dy = g->dy + at;
    const double mean = dot(dy, g->y + at, z->e);
    score_row(o, n, h, i);
    for (int64_t j = 0; j < z->s; j++) {
        /* Scores at -infinity have no probability, and -infinity minus itself would be NaN. */
        if (o->score[j] == -INFINITY || lse == -INFINITY)
            continue;
        const int64_t from = head_at(o, n, h, j, z->s, z->d), value = head_at(o, n, h, j, z->s, z->e);
        const double p = exp(o->score[j] - lse), keep = kept(o, n, h, i, j);
        const double ds = p * (keep * dot(dy, o->v + value, z->e) - mean);
        if (g->dv)
            add_times(g->dv + value, p * keep, dy, z->e);
        if (g->dq)
            add_times(g->dq + to, o->a->scale * ds, o->k + from, z->d);
        if (g->dk)
            add_times(g->dk + from, o->a->scale * ds, o->q + to, z->d);
        if (g->dbias)
            g->dbias[bias_at(o, h, i, j)] += ds;
    }
}

static double *gradient_sums(wf_ref_frame *frame, const wf_array *a, bool adds)
{
    double *const v = wf_ref_out(frame, a, adds);
    if (v && !adds && frame->status == WF_OK)
        memset(v, 0, (size_t)wf_array_count(a) * sizeof *v);
    return v;
}

wf_status wf_ref_attention_backward(wf_ctx *ctx, const wf_attention_args *args)
{
    wf_ref_frame frame = wf_ref_begin(ctx);
    const score_rows o = read_rows(&frame, args);
    attention_grads g = {.y = wf_ref_in(&frame, args->y), .dy = wf_ref_in(&frame, args->dy)};
    g.lse = wf_ref_in(&frame, args->lse);
    g.dq = gradient_sums(&frame, args->dq, args->adds);
    g.dk = gradient_sums(&frame, args->dk, args->adds);
    g.dv = gradient_sums(&frame, args->dv, args->adds);
    g.dbias = gradient_sums(&frame, args->dbias, args->adds);
    const int64_t each = args->heads * o.z.t;
    for (int64_t r = 0; r < o.z.n * each && frame.status == WF_OK; r++)
        differentiate_query(&o, &g, r / each, r % each / o.z.t, r % o.z.t);
    return wf_ref_end(&frame);
}
