/* Compressed gradients as a reducer of wf_multi_node: a model of how a program replaces the sum of gradients without
 * touching the library. The memory of what was left out is kept per bucket. */
#include "examples/compression.h"

#include <weft/core/context_author.h>
#include <weft/core/kernels_author.h>
#include <weft/core/status_author.h>
#include <weft/optim/reduce_author.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_RANK 9999999

typedef struct entry {
    int32_t at;
    float value;
} entry;

/* What is kept of a bucket between steps, in host memory but for `room`. */
typedef struct memory {
    const compression *c;
    const wf_grad_bucket *b; /* of this step */
    wf_ctx *ctx;
    int64_t count, sent;
    float *given;     /* the gradient and what was left out before */
    float *error;     /* what is left out */
    float *magnitude; /* topk: scratch */
    entry *mine, *all;
    float *left, *right; /* powersgd: the factors, and what is sent as it is */
    int64_t n_left, n_right, left_span[2], right_span[2];
    void *room; /* in device memory, for the longer of them */
    size_t room_bytes;
} memory;

struct compression {
    double share; /* topk; 0: powersgd */
    int64_t rank;
    int64_t plan, n;
    memory **bucket; /* each stays where it is while the background stream works on it */
};

compression *compression_new(const char *text, char complaint[COMPRESSION_COMPLAINT])
{
    compression c = {0};
    char end;
    *complaint = '\0';
    if (!text)
        return NULL;
    const bool top = sscanf(text, "topk:%lf%c", &c.share, &end) == 1 && c.share > 0 && c.share <= 1;
    const bool power = !top && sscanf(text, "powersgd:%7" SCNd64 "%c", &c.rank, &end) == 1 && c.rank > 0;
    if (power)
        c.share = 0;
    compression *made = top || power ? malloc(sizeof *made) : NULL;
    if (made)
        *made = c;
    else
        snprintf(complaint, COMPRESSION_COMPLAINT,
                 "compression %.60s: should be powersgd:R with a rank R of 1 to %d, or topk:S with a share S above 0 "
                 "and up to 1",
                 text, MOST_RANK);
    return made;
}

static void forget(compression *c)
{
    for (int64_t i = 0; i < c->n; i++) {
        memory *m = c->bucket[i];
        if (!m)
            continue;
        void *const host[] = {m->given, m->error, m->magnitude, m->mine, m->all, m->left, m->right};
        for (size_t k = 0; k < sizeof host / sizeof *host; k++)
            free(host[k]);
        wf_pool_give(m->ctx, m->room, m->room_bytes);
        free(m);
    }
    free(c->bucket);
    c->bucket = NULL;
    c->n = 0;
}

void compression_free(compression *c)
{
    if (!c)
        return;
    forget(c);
    free(c);
}

/* --- memory ------------------------------------------------------------------------------------------------------ */

typedef struct matrix {
    int64_t rows, columns;
    bool whole; /* sent as it is */
} matrix;

/* Parameters lie with their first dimension outermost in either order of memory. */
static matrix matrix_of(const compression *c, const wf_grad_bucket *b, int64_t i)
{
    const wf_shape shape = wf_param_shape(b->param[i]);
    const int64_t count = wf_shape_count(shape), rows = shape.rank > 1 ? shape.dim[0] : 1;
    matrix m = {rows, rows > 0 ? count / rows : 0, false};
    m.whole = shape.rank < 2 || c->rank * (m.rows + m.columns) >= count;
    return m;
}

static int64_t kept_of(const compression *c, int64_t count)
{
    const int64_t k = (int64_t)ceil(c->share * (double)count);
    return k < 1 ? 1 : k > count ? count : k;
}

/* Fills the factor with equal numbers on all ranks. */
static void start_factor(float *right, int64_t n)
{
    uint64_t state = 88172645463325252u;
    for (int64_t i = 0; i < n; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        right[i] = (float)(state >> 40) / (float)(1 << 23) - 1;
    }
}

static wf_status make_factors(const compression *c, const wf_grad_bucket *b, memory *m)
{
    for (int64_t i = 0; i < b->segments; i++) {
        const matrix x = matrix_of(c, b, i);
        m->n_left += x.whole ? x.rows * x.columns : c->rank * x.rows;
        m->n_right += x.whole ? 0 : c->rank * x.columns;
    }
    const int64_t most = m->n_left > m->n_right ? m->n_left : m->n_right;
    m->left = wf_calloc(b->ctx, (size_t)m->n_left + 1, sizeof *m->left);
    m->right = wf_calloc(b->ctx, (size_t)m->n_right + 1, sizeof *m->right);
    WF_NEED(m->left);
    WF_NEED(m->right);
    start_factor(m->right, m->n_right);
    m->room_bytes = (size_t)most * sizeof(float);
    return wf_pool_take(b->ctx, m->room_bytes, &m->room);
}

static wf_status make_memory(const compression *c, const wf_grad_bucket *b, memory *m)
{
    const size_t count = (size_t)b->count, k = (size_t)kept_of(c, b->count);
    WF_CHECK(b->dtype == WF_F32 && b->count <= INT32_MAX, WF_ERR_UNSUPPORTED,
             "compression of %lld elements of type %s; it takes f32, and fewer than 2^31 in a bucket",
             (long long)b->count, wf_dtype_name(b->dtype));
    *m = (memory){.ctx = b->ctx, .count = b->count};
    m->given = wf_calloc(b->ctx, count, sizeof *m->given);
    m->error = wf_calloc(b->ctx, count, sizeof *m->error);
    WF_NEED(m->given);
    WF_NEED(m->error);
    if (c->share == 0)
        return make_factors(c, b, m);
    m->magnitude = wf_calloc(b->ctx, count, sizeof *m->magnitude);
    m->mine = wf_calloc(b->ctx, k, sizeof *m->mine);
    m->all = wf_calloc(b->ctx, k * (size_t)wf_comm_size(b->comm), sizeof *m->all);
    WF_NEED(m->magnitude);
    WF_NEED(m->mine);
    WF_NEED(m->all);
    return WF_OK;
}

/* Buckets that were laid out anew begin without errors. */
static wf_status memory_of(compression *c, const wf_grad_bucket *b, memory **m)
{
    if (b->plan != c->plan)
        forget(c);
    c->plan = b->plan;
    if (b->index >= c->n) {
        memory **more = wf_realloc(b->ctx, c->bucket, (size_t)(b->index + 1) * sizeof *more);
        WF_NEED(more);
        memset(more + c->n, 0, (size_t)(b->index + 1 - c->n) * sizeof *more);
        c->bucket = more;
        c->n = b->index + 1;
    }
    if (!c->bucket[b->index])
        c->bucket[b->index] = wf_calloc(b->ctx, 1, sizeof **c->bucket);
    *m = c->bucket[b->index];
    WF_NEED(*m);
    return (*m)->given ? WF_OK : make_memory(c, b, *m);
}

/* --- from and to the bucket --------------------------------------------------------------------------------------- */

/* With what earlier steps left out. */
static wf_status take_up(const memory *m)
{
    WF_TRY(m->ctx->k->to_host(m->ctx, m->given, m->b->flat, (size_t)m->count * sizeof *m->given));
    for (int64_t i = 0; i < m->count; i++)
        m->given[i] += m->error[i];
    return WF_OK;
}

static wf_status put_back(const memory *m)
{
    return m->ctx->k->to_device(m->ctx, m->b->flat, m->given, (size_t)m->count * sizeof *m->given);
}

/* --- topk -------------------------------------------------------------------------------------------------------- */

/* The k-th largest of x, which is reordered (Hoare's selection). */
static float largest(float *x, int64_t n, int64_t k)
{
    int64_t lo = 0, hi = n - 1;
    while (lo < hi) {
        const float pivot = x[lo + (hi - lo) / 2];
        int64_t i = lo, j = hi;
        while (i <= j) {
            while (x[i] > pivot)
                i++;
            while (x[j] < pivot)
                j--;
            if (i > j)
                break;
            const float swap = x[i];
            x[i++] = x[j];
            x[j--] = swap;
        }
        if (k - 1 <= j)
            hi = j;
        else if (k - 1 >= i)
            lo = i;
        else
            break;
    }
    return x[k - 1];
}

/* What is sent leaves the error; of equals the first. */
static void pick(memory *m, int64_t k)
{
    int64_t taken = 0;
    for (int64_t i = 0; i < m->count; i++)
        m->magnitude[i] = isfinite(m->given[i]) ? fabsf(m->given[i]) : INFINITY;
    const float least = largest(m->magnitude, m->count, k);
    memcpy(m->error, m->given, (size_t)m->count * sizeof *m->error);
    for (int equals = 0; equals < 2; equals++)
        for (int64_t i = 0; i < m->count && taken < k; i++) {
            const float size = isfinite(m->given[i]) ? fabsf(m->given[i]) : INFINITY;
            if (equals ? size != least : !(size > least))
                continue;
            m->mine[taken++] = (entry){(int32_t)i, m->given[i]};
            m->error[i] = 0;
        }
}

static wf_status take_top(void *own)
{
    memory *m = own;
    const int64_t k = kept_of(m->c, m->count) * wf_comm_size(m->b->comm);
    memset(m->given, 0, (size_t)m->count * sizeof *m->given);
    for (int64_t i = 0; i < k; i++)
        m->given[m->all[i].at] += m->all[i].value;
    return put_back(m);
}

static wf_status pick_top(void *own)
{
    memory *m = own;
    WF_TRY(take_up(m));
    pick(m, kept_of(m->c, m->count));
    return WF_OK;
}

static void reduce_top(memory *m)
{
    const int64_t k = kept_of(m->c, m->count);
    m->sent = 2 * k;
    wf_background_call(m->b->comm, pick_top, m);
    wf_background_allgather_bytes(m->b->comm, m->mine, (size_t)k * sizeof *m->mine, m->all);
    wf_background_call(m->b->comm, take_top, m);
}

/* --- powersgd ---------------------------------------------------------------------------------------------------- */

/* left = x right; columns beside each other. */
static void times(const float *x, matrix m, int64_t rank, const float *right, float *left)
{
    for (int64_t i = 0; i < m.rows; i++)
        for (int64_t r = 0; r < rank; r++) {
            double dot = 0;
            for (int64_t j = 0; j < m.columns; j++)
                dot += (double)x[i * m.columns + j] * right[r * m.columns + j];
            left[r * m.rows + i] = (float)dot;
        }
}

/* right = x^T left. */
static void times_back(const float *x, matrix m, int64_t rank, const float *left, float *right)
{
    memset(right, 0, (size_t)(rank * m.columns) * sizeof *right);
    for (int64_t r = 0; r < rank; r++)
        for (int64_t i = 0; i < m.rows; i++)
            for (int64_t j = 0; j < m.columns; j++)
                right[r * m.columns + j] += x[i * m.columns + j] * left[r * m.rows + i];
}

static double dot(const float *a, const float *b, int64_t n)
{
    double sum_of = 0;
    for (int64_t i = 0; i < n; i++)
        sum_of += (double)a[i] * b[i];
    return sum_of;
}

/* Gram-Schmidt; a column that depends on those before becomes zero. */
static void orthonormalise(float *left, int64_t rows, int64_t rank)
{
    for (int64_t r = 0; r < rank; r++) {
        float *column = left + r * rows;
        const double before = dot(column, column, rows);
        for (int64_t s = 0; s < r; s++) {
            const double along = dot(column, left + s * rows, rows);
            for (int64_t i = 0; i < rows; i++)
                column[i] -= (float)along * left[s * rows + i];
        }
        const double after = dot(column, column, rows);
        const float scale = after > 1e-8 * before ? (float)(1 / sqrt(after)) : 0;
        for (int64_t i = 0; i < rows; i++)
            column[i] *= scale;
    }
}

/* x (+)= factor * left right^T */
static void add_product(float *x, matrix m, int64_t rank, float factor, const float *left, const float *right)
{
    for (int64_t r = 0; r < rank; r++)
        for (int64_t i = 0; i < m.rows; i++)
            for (int64_t j = 0; j < m.columns; j++)
                x[i * m.columns + j] += factor * left[r * m.rows + i] * right[r * m.columns + j];
}

/* The factors of this rank, whose product leaves the error. */
static void factors(const compression *c, const wf_grad_bucket *b, memory *m, bool back)
{
    float *left = m->left, *right = m->right;
    for (int64_t i = 0; i < b->segments; i++) {
        const matrix x = matrix_of(c, b, i);
        float *given = m->given + b->offset[i], *error = m->error + b->offset[i];
        if (x.whole) {
            if (!back)
                memcpy(left, given, (size_t)(x.rows * x.columns) * sizeof *left);
            memset(error, 0, (size_t)(x.rows * x.columns) * sizeof *error);
            left += x.rows * x.columns;
            continue;
        }
        if (back) {
            orthonormalise(left, x.rows, c->rank);
            times_back(given, x, c->rank, left, right);
            memcpy(error, given, (size_t)(x.rows * x.columns) * sizeof *error);
            add_product(error, x, c->rank, -1, left, right);
        } else {
            times(given, x, c->rank, right, left);
        }
        left += c->rank * x.rows;
        right += c->rank * x.columns;
    }
}

static void products(const compression *c, const wf_grad_bucket *b, memory *m)
{
    const float *left = m->left, *right = m->right;
    memset(m->given, 0, (size_t)m->count * sizeof *m->given);
    for (int64_t i = 0; i < b->segments; i++) {
        const matrix x = matrix_of(c, b, i);
        float *given = m->given + b->offset[i];
        if (x.whole) {
            memcpy(given, left, (size_t)(x.rows * x.columns) * sizeof *left);
            left += x.rows * x.columns;
            continue;
        }
        add_product(given, x, c->rank, 1, left, right);
        left += c->rank * x.rows;
        right += c->rank * x.columns;
    }
}

/* The sums are made in device memory. */
static wf_status first_half(void *own)
{
    memory *m = own;
    WF_TRY(take_up(m));
    factors(m->c, m->b, m, false);
    return m->ctx->k->to_device(m->ctx, m->room, m->left, (size_t)m->n_left * sizeof *m->left);
}

static wf_status second_half(void *own)
{
    memory *m = own;
    WF_TRY(m->ctx->k->to_host(m->ctx, m->left, m->room, (size_t)m->n_left * sizeof *m->left));
    factors(m->c, m->b, m, true);
    return m->ctx->k->to_device(m->ctx, m->room, m->right, (size_t)m->n_right * sizeof *m->right);
}

static wf_status multiply(void *own)
{
    memory *m = own;
    WF_TRY(m->ctx->k->to_host(m->ctx, m->right, m->room, (size_t)m->n_right * sizeof *m->right));
    products(m->c, m->b, m);
    return put_back(m);
}

static void sum(const memory *m, const int64_t span[2])
{
    if (span[1] > 0)
        wf_background_sum(m->b->comm, &(wf_call){.out = m->room, .dtype = WF_F32, .parts = 1, .part = span});
}

static void reduce_power(memory *m)
{
    m->sent = m->n_left + m->n_right;
    m->left_span[1] = m->n_left;
    m->right_span[1] = m->n_right;
    wf_background_call(m->b->comm, first_half, m);
    sum(m, m->left_span);
    wf_background_call(m->b->comm, second_half, m);
    sum(m, m->right_span);
    wf_background_call(m->b->comm, multiply, m);
}

/* --- the hook ---------------------------------------------------------------------------------------------------- */

/* Adds what is to be done to the background stream, and returns. */
static wf_status reduce(void *user, const wf_grad_bucket *b)
{
    compression *c = user;
    memory *m = NULL;
    WF_TRY(memory_of(c, b, &m));
    m->c = c;
    m->b = b;
    if (c->share > 0)
        reduce_top(m);
    else
        reduce_power(m);
    return WF_OK;
}

wf_multi_node_opts compression_opts(compression *c, wf_multi_node_opts opts)
{
    opts.reduce = c ? reduce : NULL;
    opts.reduce_user = c;
    return opts;
}

int64_t compression_sent(const compression *c)
{
    int64_t elements = 0;
    for (int64_t i = 0; i < c->n; i++)
        elements += c->bucket[i] ? c->bucket[i]->sent : 0;
    return elements;
}

int64_t compression_given(const compression *c)
{
    int64_t elements = 0;
    for (int64_t i = 0; i < c->n; i++)
        elements += c->bucket[i] ? c->bucket[i]->count : 0;
    return elements;
}

const float *compression_error(const compression *c, int64_t bucket, int64_t *count)
{
    const memory *m = bucket < c->n ? c->bucket[bucket] : NULL;
    *count = m ? m->count : 0;
    return m ? m->error : NULL;
}
