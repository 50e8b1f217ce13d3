/* Slots with a label for each row: the negative log likelihood, and softmax and cross entropy in one pass each. All in
 * f32 with sums in double; bf16 scores are widened in registers; other types go through core/cpu/wide.c. Labels that
 * are wrong go to ref, which says what is wrong. */
#include "core/cpu/narrow_impl.h"
#include "core/cpu/side_impl.h"
#include "core/cpu/vmath_impl.h"

/* Parts of fixed bounds, so that the number of threads does not show. */
enum { ROWS_PART = 1024 };

static double nll_sum(const wf_array *labels, int64_t ignored, int64_t first, int64_t last, int64_t c,
                      const float *logp)
{
    double sum = 0;
    for (int64_t r = first; r < last; r++) {
        const int64_t label = wf_cpu_integer(labels, r);
        sum -= label != ignored ? (double)logp[r * c + label] : 0;
    }
    return sum;
}

wf_status wf_cpu_nll_forward(wf_ctx *ctx, const wf_array *logp, const wf_array *labels, int64_t ignored, double scale,
                             const wf_array *loss)
{
    int64_t c = 0;
    const int64_t rows = wf_cpu_rows(logp, &c), parts = (rows + ROWS_PART - 1) / ROWS_PART;
    if (logp->dtype != WF_F32 || loss->dtype != WF_F32 || !wf_cpu_integers_fit(labels, rows, c, ignored))
        return REF->nll_forward(ctx, logp, labels, ignored, scale, loss);
    void *work = NULL;
    double total = 0;
    WF_TRY(wf_pool_take(ctx, (size_t)parts * sizeof(double), &work));
    double *const part = work;
#pragma omp parallel for num_threads(wf_cpu_team(ctx, 8 * rows)) schedule(static)
    for (int64_t p = 0; p < parts; p++)
        part[p] = nll_sum(labels, ignored, p * ROWS_PART, wf_cpu_min((p + 1) * ROWS_PART, rows), c, logp->data);
    for (int64_t p = 0; p < parts; p++)
        total += part[p];
    *(float *)loss->data = (float)(scale * total);
    wf_pool_give(ctx, work, (size_t)parts * sizeof(double));
    return WF_OK;
}

wf_status wf_cpu_nll_backward(wf_ctx *ctx, const wf_array *labels, int64_t ignored, const wf_array *dloss, double scale,
                              const wf_array *dx)
{
    int64_t c = 0;
    const int64_t rows = wf_cpu_rows(dx, &c);
    if (dx->dtype != WF_F32 || dloss->dtype != WF_F32 || rows == 0 || !wf_cpu_integers_fit(labels, rows, c, ignored))
        return wf_wide_nll_backward(ctx, labels, ignored, dloss, scale, dx);
    /* One value for every row: the gradient of a mean. */
    const float value = (float)(-*(const float *)dloss->data * scale);
    float *const out = dx->data;
#pragma omp parallel for num_threads(wf_cpu_team(ctx, rows *c)) schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        memset(out + r * c, 0, (size_t)c * sizeof *out);
        if (wf_cpu_integer(labels, r) != ignored)
            out[r * c + wf_cpu_integer(labels, r)] = value;
    }
    return WF_OK;
}

/* Softmax and cross entropy. Of short rows sixteen are computed side by side, since few classes fill no vector; long
 * ones one by one. Functions are inlined with a constant `bf16`. */
typedef struct side_rows {
    int64_t first, n; /* rows of x, n <= SIDE */
    /* Aligned: else loops over SIDE begin and end with single floats. */
    _Alignas(64) float most[SIDE];
    _Alignas(64) float log_sum[SIDE];
    _Alignas(64) float x[SHORT_ROW * SIDE]; /* [class][row] */
    float room[SIDE * SHORT_ROW];
} side_rows;

/* Reads rows and finds their largest scores. A NaN is left out of these, and shows in the sums. */
static void take_rows(const wf_array *x, int64_t c, side_rows *s)
{
    const float *const from = wf_cpu_read(x, s->first * c, s->n * c, s->room);
    _Alignas(64) float most[SIDE];
    side_take(s->n, c, from, s->x);
    for (int64_t r = 0; r < SIDE; r++)
        most[r] = -INFINITY;
    /* After all rows are there: vectors cannot be read at once from where single floats were just written. */
    for (int64_t j = 0; j < c; j++) {
#pragma omp simd
        for (int64_t r = 0; r < SIDE; r++)
            most[r] = s->x[j * SIDE + r] > most[r] ? s->x[j * SIDE + r] : most[r];
    }
    memcpy(s->most, most, sizeof most);
}

static void sum_rows(int64_t c, side_rows *s)
{
    _Alignas(64) float sum[SIDE] = {0};
    for (int64_t j = 0; j < c; j++) {
#pragma omp simd
        for (int64_t r = 0; r < SIDE; r++)
            sum[r] += vm_exp(s->x[j * SIDE + r] - s->most[r]);
    }
#pragma omp simd
    for (int64_t r = 0; r < SIDE; r++)
        s->log_sum[r] = vm_log(sum[r]);
}

/* What smoothing and weights make of a row of the label y: hit q_y + rest sum_c w_c q_c, where q = -log softmax. */
typedef struct entropy_terms {
    const float *weight; /* NULL: 1 */
    float keep, rest, total;
} entropy_terms;

/* Label smoothing as in PyTorch: (1 - smoothing) on the label, and smoothing / classes on every class, each times its
 * weight. `whole` counts the classes of all ranks. */
static entropy_terms terms_of(const wf_entropy_args *args, int64_t c)
{
    const int64_t whole = wf_entropy_classes(args, c);
    entropy_terms t = {wf_cpu_data(args->weight), (float)(1 - args->smoothing),
                       (float)(args->smoothing / (double)whole), 0};
    float total = t.weight ? 0.0F : (float)whole;
#pragma omp simd reduction(+ : total)
    for (int64_t j = 0; j < (t.weight ? whole : 0); j++)
        total += t.weight[j];
    t.total = total;
    return t;
}

static float hit_of(const entropy_terms *t, int64_t label)
{
    return t->weight ? t->keep * t->weight[label] : t->keep;
}

/* low[r] = sum_c w_c (x_c - most) of each row: with the logarithm of the sum this is all that smoothing needs, so no
 * probability is stored. */
static void weigh_rows(const entropy_terms *t, int64_t c, const side_rows *s, float *low)
{
    for (int64_t r = 0; r < SIDE; r++)
        low[r] = 0;
    for (int64_t j = 0; j < c; j++) {
        const float w = t->weight ? t->weight[j] : 1.0F;
#pragma omp simd
        for (int64_t r = 0; r < SIDE; r++)
            low[r] += w * (s->x[j * SIDE + r] - s->most[r]);
    }
}

/* A row counts by this; `each` gets its loss, unless it is NULL. */
static double entropy_count(const wf_entropy_args *args, float *each, int64_t row, double loss)
{
    if (each)
        each[row] = (float)(args->scale * loss);
    return loss;
}

static float *each_of(const wf_entropy_args *args)
{
    return args->loss->shape.rank > 0 ? args->loss->data : NULL;
}

/* log_sum of rows [first, last); returns what they add to the loss. */
static double entropy_short(const wf_entropy_args *args, int64_t c, int64_t first, int64_t last)
{
    const entropy_terms t = terms_of(args, c);
    float *const each = each_of(args), low[SIDE] = {0};
    double sum = 0;
    side_rows s;
    for (s.first = first; s.first < last; s.first += SIDE) {
        s.n = wf_cpu_min(SIDE, last - s.first);
        take_rows(args->x, c, &s);
        sum_rows(c, &s);
        memcpy((float *)args->log_sum->data + s.first, s.log_sum, (size_t)s.n * sizeof(float));
        if (t.rest > 0)
            weigh_rows(&t, c, &s, low);
        for (int64_t r = 0; r < s.n; r++) {
            const int64_t label = wf_cpu_integer(args->labels, s.first + r);
            double loss = 0;
            /* An ignored label may be any number, so it is compared before it is used as an index. */
            if (label != args->ignored)
                loss = -(double)(hit_of(&t, label) * (s.x[label * SIDE + r] - s.most[r] - s.log_sum[r]));
            if (label != args->ignored && t.rest > 0)
                loss += (double)(t.rest * (t.total * s.log_sum[r] - low[r]));
            sum += entropy_count(args, each, s.first + r, loss);
        }
    }
    return sum;
}

WF_CPU_INLINE float most_of(const void *x, bool bf16, int64_t at, int64_t c)
{
    /* A NaN is left out of the maximum and shows in the sum. */
    float most = -INFINITY;
#pragma omp simd reduction(max : most)
    for (int64_t j = 0; j < c; j++) {
        const float v = wf_cpu_at(x, bf16, at + j);
        most = v > most ? v : most;
    }
    return most;
}

WF_CPU_INLINE float low_of(const void *x, bool bf16, int64_t at, int64_t c, float most, const float *weight)
{
    float low = 0;
    if (!weight) {
#pragma omp simd reduction(+ : low)
        for (int64_t j = 0; j < c; j++)
            low += wf_cpu_at(x, bf16, at + j) - most;
        return low;
    }
#pragma omp simd reduction(+ : low)
    for (int64_t j = 0; j < c; j++)
        low += weight[j] * (wf_cpu_at(x, bf16, at + j) - most);
    return low;
}

WF_CPU_INLINE double entropy_long(const wf_entropy_args *args, bool bf16, int64_t c, int64_t first, int64_t last)
{
    const entropy_terms t = terms_of(args, c);
    float *const each = each_of(args);
    double total = 0;
    const void *const x = args->x->data;
    for (int64_t r = first; r < last; r++) {
        const int64_t label = wf_cpu_integer(args->labels, r);
        const float most = most_of(x, bf16, r * c, c);
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t j = 0; j < c; j++)
            sum += vm_exp(wf_cpu_at(x, bf16, r * c + j) - most);
        sum = logf(sum);
        ((float *)args->log_sum->data)[r] = sum;
        double loss = 0;
        if (label != args->ignored)
            loss = -(double)(hit_of(&t, label) * (wf_cpu_at(x, bf16, r * c + label) - most - sum));
        if (label != args->ignored && t.rest > 0)
            loss += (double)(t.rest * (t.total * sum - low_of(x, bf16, r * c, c, most, t.weight)));
        total += entropy_count(args, each, r, loss);
    }
    return total;
}

/* --- parts of the classes: one row after the other, however short ---------------------------------------------- */

static float *most_in(const wf_entropy_args *args)
{
    return args->most->data;
}

/* Each rank has some classes of every row. A first call, without a loss, finds the largest score and the logarithm of
 * the sum of these; layers/functions/entropy_merge.c joins the ranks' numbers, and a second call makes losses from the
 * joined ones. */
WF_CPU_INLINE void part_sums(const wf_entropy_args *args, bool bf16, int64_t c, int64_t row)
{
    const void *const x = args->x->data;
    const float most = most_of(x, bf16, row * c, c);
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < c; j++)
        sum += vm_exp(wf_cpu_at(x, bf16, row * c + j) - most);
    sum = logf(sum);
    /* No score is above -infinity: the sum is that of nothing, unless one is NaN. */
    if (most == -INFINITY) {
        sum = -INFINITY;
        for (int64_t j = 0; j < c; j++)
            sum += wf_cpu_at(x, bf16, row * c + j);
    }
    most_in(args)[row] = most;
    ((float *)args->log_sum->data)[row] = sum;
}

/* sum_c w_c (x_c - most - log_sum) of the part. */
WF_CPU_INLINE double part_low(const wf_entropy_args *args, const entropy_terms *t, bool bf16, int64_t c, int64_t row)
{
    const float most = most_in(args)[row], sum = ((const float *)args->log_sum->data)[row];
    const float *const w = t->weight ? t->weight + args->first : NULL;
    float mine = w ? 0.0F : (float)c;
    for (int64_t j = 0; w && j < c; j++)
        mine += w[j];
    return (double)(low_of(args->x->data, bf16, row * c, c, most, w) - mine * sum);
}

WF_CPU_INLINE double part_losses(const wf_entropy_args *args, bool bf16, int64_t c, int64_t first, int64_t last)
{
    const entropy_terms t = terms_of(args, c);
    float *const each = each_of(args);
    double total = 0;
    for (int64_t r = first; r < last; r++) {
        const int64_t label = wf_cpu_integer(args->labels, r), own = label - args->first;
        const float most = most_in(args)[r], sum = ((const float *)args->log_sum->data)[r];
        double loss = 0;
        /* The label's own term is added by the rank that has its class; every rank adds the smoothing of its
         * classes. */
        if (label != args->ignored && own >= 0 && own < c)
            loss = -(double)(hit_of(&t, label) * (wf_cpu_at(args->x->data, bf16, r * c + own) - most - sum));
        if (label != args->ignored && t.rest > 0)
            loss -= (double)t.rest * part_low(args, &t, bf16, c, r);
        total += entropy_count(args, each, r, loss);
    }
    return total;
}

static double entropy_of_part(const wf_entropy_args *args, int64_t c, int64_t first, int64_t last)
{
    const bool bf16 = args->x->dtype == WF_BF16;
    if (args->loss)
        return bf16 ? part_losses(args, true, c, first, last) : part_losses(args, false, c, first, last);
    for (int64_t r = first; r < last; r++)
        if (bf16)
            part_sums(args, true, c, r);
        else
            part_sums(args, false, c, r);
    return 0;
}

static bool entropy_takes(const wf_entropy_args *args, const wf_array *scalar, int64_t rows, int64_t c)
{
    return (args->x->dtype == WF_F32 || args->x->dtype == WF_BF16) && wf_cpu_is(args->dx, args->x->dtype) &&
           args->log_sum->dtype == WF_F32 && scalar->dtype == WF_F32 && wf_cpu_is(args->weight, WF_F32) &&
           wf_cpu_is(args->most, WF_F32) && c > 0 &&
           wf_cpu_integers_fit(args->labels, rows, wf_entropy_classes(args, c), args->ignored);
}

static double entropy_part(const wf_entropy_args *args, int64_t c, int64_t first, int64_t last)
{
    if (args->most)
        return entropy_of_part(args, c, first, last);
    if (c <= SHORT_ROW)
        return entropy_short(args, c, first, last);
    return args->x->dtype == WF_BF16 ? entropy_long(args, true, c, first, last)
                                     : entropy_long(args, false, c, first, last);
}

wf_status wf_cpu_entropy_forward(wf_ctx *ctx, const wf_entropy_args *args)
{
    int64_t c = 0;
    const int64_t rows = wf_cpu_rows(args->x, &c);
    if (!entropy_takes(args, args->loss ? args->loss : args->log_sum, rows, c))
        return wf_wide_entropy_forward(ctx, args);
    /* Long rows make smaller parts, so that a part has about as many elements for any number of classes. */
    const int64_t part_rows = c <= SHORT_ROW ? ROWS_PART : SHORT_ROW * ROWS_PART / c + 1;
    const int64_t parts = (rows + part_rows - 1) / part_rows;
    void *work = NULL;
    double total = 0;
    WF_TRY(wf_pool_take(ctx, (size_t)parts * sizeof(double), &work));
    double *const part = work;
#pragma omp parallel for num_threads(wf_cpu_team(ctx, 4 * rows * c)) schedule(static)
    for (int64_t p = 0; p < parts; p++)
        part[p] = entropy_part(args, c, p * part_rows, wf_cpu_min((p + 1) * part_rows, rows));
    for (int64_t p = 0; p < parts; p++)
        total += part[p];
    if (args->loss && args->loss->shape.rank == 0)
        *(float *)args->loss->data = (float)(args->scale * total);
    wf_pool_give(ctx, work, (size_t)parts * sizeof(double));
    return WF_OK;
}

/* What a row's gradient is multiplied by; 0 where it does not count. */
static float up_of(const wf_entropy_args *args, int64_t row)
{
    /* A loss without reduction has a gradient for each row, a reduced one has a single one. */
    const float *const dloss = args->dloss->data;
    const bool counts = wf_cpu_integer(args->labels, row) != args->ignored;
    return counts ? (float)(dloss[args->dloss->shape.rank > 0 ? row : 0] * args->scale) : 0;
}

/* dx of the rows that start at `first`. */
static void slopes_short(const wf_entropy_args *args, const entropy_terms *t, int64_t c, int64_t first, int64_t rows)
{
    side_rows s; /* not cleared: it is large, and of it only what is written is read */
    s.first = first;
    s.n = wf_cpu_min(SIDE, rows - first);
    _Alignas(64) float up[SIDE] = {0}, all[SIDE] = {0};
    float *const to = wf_cpu_place(args->dx, first * c, s.n * c, false, s.room);
    take_rows(args->x, c, &s);
    memset(s.log_sum, 0, sizeof s.log_sum);
    memcpy(s.log_sum, (const float *)args->log_sum->data + first, (size_t)s.n * sizeof(float));
    for (int64_t r = 0; r < s.n; r++) {
        const int64_t label = wf_cpu_integer(args->labels, first + r);
        up[r] = up_of(args, first + r);
        all[r] = label != args->ignored ? up[r] * (hit_of(t, label) + t->rest * t->total) : 0;
    }
    for (int64_t j = 0; j < c; j++) {
        const float smooth = t->weight ? t->rest * t->weight[j] : t->rest;
#pragma omp simd
        for (int64_t r = 0; r < SIDE; r++)
            s.x[j * SIDE + r] = all[r] * vm_exp(s.x[j * SIDE + r] - s.most[r] - s.log_sum[r]) - up[r] * smooth;
    }
    side_put(s.n, c, s.x, to);
    for (int64_t r = 0; r < s.n; r++) {
        const int64_t label = wf_cpu_integer(args->labels, first + r);
        if (label != args->ignored)
            to[r * c + label] -= up[r] * hit_of(t, label);
        else
            memset(to + r * c, 0, (size_t)c * sizeof *to);
    }
    wf_cpu_put(args->dx, first * c, s.n * c, to);
}

WF_CPU_INLINE void slopes_long(const wf_entropy_args *args, const entropy_terms *t, bool bf16, bool weighted, int64_t c,
                               int64_t r)
{
    const void *const x = args->x->data;
    void *const dx = args->dx->data;
    const int64_t label = wf_cpu_integer(args->labels, r), at = r * c, begin = args->most ? args->first : 0;
    const float most = args->most ? most_in(args)[r] : most_of(x, bf16, at, c),
                log_sum = ((const float *)args->log_sum->data)[r];
    if (label == args->ignored) {
        memset((char *)dx + at * (bf16 ? 2 : 4), 0, (size_t)c * (bf16 ? 2 : 4));
        return;
    }
    const float up = up_of(args, r), hit = up * hit_of(t, label), all = hit + up * t->rest * t->total;
    const float rest = up * t->rest, *const w = weighted ? t->weight + begin : NULL;
#pragma omp simd
    for (int64_t j = 0; j < c; j++)
        wf_cpu_set(dx, bf16, at + j,
                   all * vm_exp(wf_cpu_at(x, bf16, at + j) - most - log_sum) - (weighted ? rest * w[j] : rest));
    const int64_t own = label - begin;
    if (own < 0 || own >= c)
        return;
    /* Subtracts from the product before it is rounded to bf16. */
    const float smooth = weighted ? rest * w[own] : rest;
    wf_cpu_set(dx, bf16, at + own, all * vm_exp(wf_cpu_at(x, bf16, at + own) - most - log_sum) - smooth - hit);
}

wf_status wf_cpu_entropy_backward(wf_ctx *ctx, const wf_entropy_args *args)
{
    int64_t c = 0;
    const int64_t rows = wf_cpu_rows(args->x, &c), step = c <= SHORT_ROW && !args->most ? SIDE : 1;
    if (!entropy_takes(args, args->dloss, rows, c))
        return wf_wide_entropy_backward(ctx, args);
    const bool bf16 = args->x->dtype == WF_BF16;
    const entropy_terms t = terms_of(args, c);
#pragma omp parallel for num_threads(wf_cpu_team(ctx, 4 * rows * c)) schedule(static)
    for (int64_t r = 0; r < rows; r += step)
        if (step > 1)
            slopes_short(args, &t, c, r, rows);
        else if (bf16 && t.weight)
            slopes_long(args, &t, true, true, c, r);
        else if (bf16)
            slopes_long(args, &t, true, false, c, r);
        else if (t.weight)
            slopes_long(args, &t, false, true, c, r);
        else
            slopes_long(args, &t, false, false, c, r);
    return WF_OK;
}
