/* Folds: arithmetic of strided arrays with broadcasting, and sums over any dimensions in the same pass. Dimensions are
 * sorted by their steps and merged, so that the innermost loop runs over neighbours in memory; it works on chunks that
 * stay in the first-level cache. Sums are made in double, in parts whose bounds depend on the shapes alone: the number
 * of threads does not show in the result. */
#include "core/cpu/narrow_impl.h"

#include <stdlib.h>

enum { PARTS = 64, OPERANDS = 4, A = 0, B = 1, C = 2, Y = 3 };

typedef struct walk {
    wf_fold_op op;
    float alpha, beta;
    bool accumulate;
    const wf_strided *of[OPERANDS]; /* NULL: absent */
    int rank;                       /* at least 1; the last dimension is the innermost one */
    int64_t dim[WF_MAX_RANK], step[OPERANDS][WF_MAX_RANK];
    bool inner_folded;
    int64_t pieces; /* chunks of the innermost dimension */
    int64_t kept;   /* elements of y: where the innermost dimension is kept, rows of them */
    int64_t lines;  /* runs of the innermost dimension, or chunks of them, that are summed into each */
    int64_t parts;  /* in which lines are summed */
    double *part;   /* [parts][elements of y]; NULL where parts is 1 */
    int64_t count;  /* elements of y */
} walk;

/* --- the walk ------------------------------------------------------------------------------------------------------
 */

/* The step that decides the order of the dimensions: the largest of all arrays. Broadcast dimensions have step 0 in
 * some. */
static int64_t largest_step(const walk *w, int d)
{
    int64_t most = 0;
    for (int o = 0; o < OPERANDS; o++)
        most = w->step[o][d] > most ? w->step[o][d] : most;
    return most;
}

static void swap_dims(walk *w, int d, int e)
{
    const int64_t dim = w->dim[d];
    w->dim[d] = w->dim[e];
    w->dim[e] = dim;
    for (int o = 0; o < OPERANDS; o++) {
        const int64_t step = w->step[o][d];
        w->step[o][d] = w->step[o][e];
        w->step[o][e] = step;
    }
}

/* Returns true if dimension d, behind dimension e, continues it in every array. */
static bool continues(const walk *w, int e, int d)
{
    for (int o = 0; o < OPERANDS; o++)
        if (w->of[o] && w->step[o][e] != w->step[o][d] * w->dim[d])
            return false;
    return true;
}

static void merge_dims(walk *w)
{
    /* Insertion sort, largest steps first. It is stable, so equal shapes are walked in one order on all machines. */
    int last = 0;
    for (int d = 1; d < w->rank; d++)
        for (int e = d; e > 0 && largest_step(w, e - 1) < largest_step(w, e); e--)
            swap_dims(w, e - 1, e);
    /* Merged dimensions keep the steps of the inner one. */
    for (int d = 1; d < w->rank; d++) {
        const int64_t dim = w->dim[d];
        if (continues(w, last, d))
            w->dim[last] *= dim;
        else
            w->dim[++last] = dim;
        for (int o = 0; o < OPERANDS; o++)
            w->step[o][last] = w->step[o][d];
    }
    w->rank = last + 1;
}

/* A dimension that y lacks has step 0 there, and is summed over. */
static bool is_folded(const walk *w, int d)
{
    return w->step[Y][d] == 0 && w->dim[d] > 1;
}

static void count_work(walk *w)
{
    const int inner = w->rank - 1;
    int64_t total = 1;
    w->inner_folded = is_folded(w, inner);
    w->pieces = (w->dim[inner] + WF_CPU_CHUNK - 1) / WF_CPU_CHUNK;
    w->kept = w->lines = 1;
    for (int d = 0; d < w->rank; d++) {
        total *= w->dim[d];
        if (d == inner)
            continue;
        if (is_folded(w, d))
            w->lines *= w->dim[d];
        else
            w->kept *= w->dim[d];
    }
    w->count = w->kept * (w->inner_folded ? 1 : w->dim[inner]);
    if (w->inner_folded)
        w->lines *= w->pieces;
    const int64_t tasks = w->inner_folded ? w->kept : w->kept * w->pieces;
    /* A part is worth its own sums if there are several lines to a part and too few tasks without: threads would idle.
     * The choice depends on shapes only. */
    w->parts = tasks < PARTS && total >= 16384 ? wf_cpu_min(PARTS, w->lines) : 1;
}

/* False: an array of y without elements, or sums without terms. */
static bool plan_walk(walk *w, const wf_fold_args *args)
{
    const wf_strided *const y = args->y;
    *w = (walk){.op = args->op,
                .alpha = (float)args->alpha,
                .beta = (float)args->beta,
                .accumulate = args->accumulate,
                .of = {args->a, args->b, args->c, y}};
    for (int d = 0; d < y->rank; d++) {
        if (y->dim[d] == 0)
            return false;
        if (y->dim[d] == 1)
            continue;
        w->dim[w->rank] = y->dim[d];
        for (int o = 0; o < OPERANDS; o++)
            w->step[o][w->rank] = w->of[o] ? w->of[o]->stride[d] : 0;
        w->rank++;
    }
    /* A scalar is a walk of one element. */
    if (w->rank == 0)
        w->dim[w->rank++] = 1;
    merge_dims(w);
    count_work(w);
    return true;
}

/* Offsets of all operands at number i of the outer dimensions that are kept, or folded; they are added to `at`. */
static void add_steps(const walk *w, bool folded, int64_t i, int64_t at[OPERANDS])
{
    for (int d = w->rank - 2; d >= 0; d--) {
        if (is_folded(w, d) != folded)
            continue;
        const int64_t rest = i / w->dim[d], here = i - rest * w->dim[d];
        for (int o = 0; o < OPERANDS; o++)
            at[o] += here * w->step[o][d];
        i = rest;
    }
}

/* --- one chunk -----------------------------------------------------------------------------------------------------
 */

static float one_float(const wf_strided *a, int64_t at)
{
    float v;
    switch (a->dtype) {
    case WF_F32:
        return ((const float *)a->data)[at];
    case WF_U8:
        return ((const uint8_t *)a->data)[at];
    default:
        wf_cpu_widen(a->dtype, 1, (const uint16_t *)a->data + at, &v);
        return v;
    }
}

/* n elements from `at` on, as floats side by side: where they are, or in `room`. */
static const float *read_run(const walk *w, int o, int64_t at, int64_t n, float *room)
{
    const wf_strided *const a = w->of[o];
    const int64_t step = w->step[o][w->rank - 1];
    if (!a)
        return NULL;
    if (step == 1 && a->dtype == WF_F32)
        return (const float *)a->data + at;
    /* Broadcast along the inner dimension: one number, read once. */
    if (step == 0) {
        const float v = one_float(a, at);
        for (int64_t i = 0; i < n; i++)
            room[i] = v;
    } else if (step == 1 && a->dtype != WF_U8) {
        wf_cpu_widen(a->dtype, n, (const uint16_t *)a->data + at, room);
    } else if (a->dtype == WF_F32) {
        const float *const from = (const float *)a->data + at;
        for (int64_t i = 0; i < n; i++)
            room[i] = from[i * step];
    } else {
        for (int64_t i = 0; i < n; i++)
            room[i] = one_float(a, at + i * step);
    }
    return room;
}

#define EACH(value)                                                                                                    \
    do {                                                                                                               \
        _Pragma("omp simd") for (int64_t i = 0; i < n; i++) out[i] = (value);                                          \
    } while (0)

static void compute_run(const walk *w, int64_t n, const float *a, const float *b, const float *c, float *out)
{
    const float alpha = w->alpha, beta = w->beta;
    switch (w->op) {
    case WF_FOLD_LINEAR:
        if (b)
            EACH(__builtin_fmaf(alpha, a[i], beta * b[i]));
        else
            EACH(alpha * a[i]);
        break;
    case WF_FOLD_MUL:
        EACH(alpha * a[i] * b[i]);
        break;
    case WF_FOLD_DIV:
        EACH(alpha * a[i] / b[i]);
        break;
    case WF_FOLD_MULDIV:
        EACH(alpha * a[i] * b[i] / c[i]);
        break;
    /* An absent operand is 0, and its selection needs no array of zeros. */
    case WF_FOLD_WHERE:
        if (a && b)
            EACH(c[i] != 0.0F ? a[i] : b[i]);
        else if (a)
            EACH(c[i] != 0.0F ? a[i] : 0.0F);
        else
            EACH(c[i] != 0.0F ? 0.0F : b[i]);
        break;
    case WF_FOLD_CLIP:
        EACH(a[i] < alpha ? alpha : a[i] > beta ? beta : a[i]);
        break;
    case WF_FOLD_CLIP_X:
        EACH(b[i] < alpha || b[i] > beta ? 0.0F : a[i]);
        break;
    case WF_FOLD_PRELU:
        EACH(a[i] < 0.0F ? a[i] * b[i] : a[i]);
        break;
    case WF_FOLD_PRELU_X:
        EACH(b[i] <= 0.0F ? a[i] * c[i] : a[i]);
        break;
    case WF_FOLD_PRELU_SLOPE:
        EACH(b[i] < 0.0F ? a[i] * b[i] : 0.0F);
        break;
    case WF_FOLD_OPS:
        break;
    }
}

/* op of n elements at these offsets; inside of the innermost dimension from element `lo` on. */
static void fold_chunk(const walk *w, const int64_t at[OPERANDS], int64_t lo, int64_t n, float *out)
{
    float room[3][WF_CPU_CHUNK];
    const float *in[3];
    for (int o = 0; o < 3; o++)
        in[o] = read_run(w, o, at[o] + lo * w->step[o][w->rank - 1], n, room[o]);
    compute_run(w, n, in[A], in[B], in[C], out);
}

/* 32 sums side by side, added in a fixed order: vectors of any width give the same bits. */
static double sum_run(int64_t n, const float *v)
{
    enum { LANES = 32 };
    double lane[LANES] = {0}, total = 0;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++)
            lane[l] += v[i + l];
    for (; i < n; i++)
        lane[i % LANES] += v[i];
    for (int l = 0; l < LANES; l++)
        total += lane[l];
    return total;
}

/* n results go to y from element `at` on. */
static void put_run(const walk *w, int64_t at, int64_t n, const float *v)
{
    const wf_strided *const y = w->of[Y];
    const int64_t step = w->step[Y][w->rank - 1];
    float old[WF_CPU_CHUNK];
    if (w->accumulate) {
        /* The sum with the old y is made in f32 and rounded once. */
        for (int64_t i = 0; i < n; i++)
            old[i] = v[i] + one_float(y, at + i * step);
        v = old;
    }
    if (y->dtype != WF_F32) {
        for (int64_t i = 0; i < n && step != 1; i++)
            wf_cpu_narrow(y->dtype, 1, v + i, (uint16_t *)y->data + at + i * step);
        if (step == 1)
            wf_cpu_narrow(y->dtype, n, v, (uint16_t *)y->data + at);
        return;
    }
    float *const to = (float *)y->data + at;
    for (int64_t i = 0; i < n; i++)
        to[i * step] = v[i];
}

/* --- the three kinds of walk ---------------------------------------------------------------------------------------
 */

/* Nothing is folded. */
static void fold_nothing(const wf_ctx *ctx, const walk *w)
{
    const int inner = w->rank - 1;
    /* Results in f32 that overwrite need no second buffer. */
    const bool direct = w->of[Y]->dtype == WF_F32 && w->step[Y][inner] == 1 && !w->accumulate;
#pragma omp parallel for num_threads(wf_cpu_team(ctx, w->count)) schedule(static)
    for (int64_t task = 0; task < w->kept * w->pieces; task++) {
        float out[WF_CPU_CHUNK];
        int64_t at[OPERANDS] = {0};
        const int64_t lo = task % w->pieces * WF_CPU_CHUNK, n = wf_cpu_min(WF_CPU_CHUNK, w->dim[inner] - lo);
        add_steps(w, false, task / w->pieces, at);
        const int64_t to = at[Y] + lo * w->step[Y][inner];
        fold_chunk(w, at, lo, n, direct ? (float *)w->of[Y]->data + to : out);
        if (!direct)
            put_run(w, to, n, out);
    }
}

/* The sums of lines [from, to) of the piece of row `row` that starts at lo. */
static void sum_kept_rows(const walk *w, int64_t row, int64_t lo, int64_t n, int64_t from, int64_t to, double *sum)
{
    float out[WF_CPU_CHUNK];
    for (int64_t i = 0; i < n; i++)
        sum[i] = 0;
    for (int64_t line = from; line < to; line++) {
        int64_t at[OPERANDS] = {0};
        add_steps(w, false, row, at);
        add_steps(w, true, line, at);
        fold_chunk(w, at, lo, n, out);
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            sum[i] += out[i];
    }
}

/* The sum of lines [from, to), which are chunks of the innermost dimension, of element `row` of y. */
static double sum_lines(const walk *w, int64_t row, int64_t from, int64_t to)
{
    float out[WF_CPU_CHUNK];
    double sum = 0;
    for (int64_t line = from; line < to; line++) {
        int64_t at[OPERANDS] = {0};
        const int64_t lo = line % w->pieces * WF_CPU_CHUNK;
        const int64_t n = wf_cpu_min(WF_CPU_CHUNK, w->dim[w->rank - 1] - lo);
        add_steps(w, false, row, at);
        add_steps(w, true, line / w->pieces, at);
        fold_chunk(w, at, lo, n, out);
        sum += sum_run(n, out);
    }
    return sum;
}

static void put_sums(const walk *w, int64_t row, int64_t lo, int64_t n, const double *sum)
{
    float v[WF_CPU_CHUNK];
    int64_t at[OPERANDS] = {0};
    add_steps(w, false, row, at);
    for (int64_t i = 0; i < n; i++)
        v[i] = (float)sum[i];
    put_run(w, at[Y] + lo * w->step[Y][w->rank - 1], n, v);
}

/* One part of the lines, for one piece of a row of y. */
static void fold_task(const walk *w, int64_t part, int64_t task)
{
    const int64_t length = w->inner_folded ? 1 : w->dim[w->rank - 1], pieces = w->inner_folded ? 1 : w->pieces;
    const int64_t row = task / pieces, lo = task % pieces * WF_CPU_CHUNK, n = wf_cpu_min(WF_CPU_CHUNK, length - lo);
    /* The sum of this part, or, without parts, of all lines. */
    double sum[WF_CPU_CHUNK], *const to = w->part ? w->part + part * w->count + row * length + lo : sum;
    int64_t from, end;
    wf_block(w->lines, w->parts, part, &from, &end);
    if (w->inner_folded)
        *to = sum_lines(w, row, from, end);
    else
        sum_kept_rows(w, row, lo, n, from, end, to);
    if (!w->part)
        put_sums(w, row, lo, n, sum);
}

/* Adds the parts, in order, to the first. */
static void join_sums(const walk *w)
{
    const int64_t length = w->inner_folded ? 1 : w->dim[w->rank - 1];
    for (int64_t p = 1; p < w->parts; p++)
        for (int64_t i = 0; i < w->count; i++)
            w->part[i] += w->part[p * w->count + i];
    for (int64_t row = 0; row < w->kept; row++)
        for (int64_t lo = 0; lo < length; lo += WF_CPU_CHUNK)
            put_sums(w, row, lo, wf_cpu_min(WF_CPU_CHUNK, length - lo), w->part + row * length + lo);
}

static wf_status fold_sums(wf_ctx *ctx, walk *w)
{
    const int64_t tasks = w->kept * (w->inner_folded ? 1 : w->pieces);
    const size_t bytes = (size_t)(w->parts * w->count) * sizeof(double);
    void *part = NULL;
    if (w->parts > 1)
        WF_TRY(wf_pool_take(ctx, bytes, &part));
    w->part = part;
#pragma omp parallel for num_threads(wf_cpu_team(ctx, w->count * w->lines)) schedule(static)
    for (int64_t i = 0; i < w->parts * tasks; i++)
        fold_task(w, i / tasks, i % tasks);
    if (w->part) {
        join_sums(w);
        wf_pool_give(ctx, part, bytes);
    }
    return WF_OK;
}

static bool is_fast(const wf_strided *a)
{
    return !a || a->dtype == WF_F32 || a->dtype == WF_BF16 || a->dtype == WF_F16;
}

wf_status wf_cpu_fold(wf_ctx *ctx, const wf_fold_args *args)
{
    walk w;
    /* A mask of WF_FOLD_WHERE may be of bytes; no other operand may. */
    const bool mask = args->c && args->c->dtype == WF_U8;
    if (!is_fast(args->a) || !is_fast(args->b) || !is_fast(args->y) || !(mask || is_fast(args->c)) ||
        !plan_walk(&w, args))
        return REF->fold(ctx, args);
    /* No element of y has more than one line, so there is nothing to sum. */
    if (w.lines == 1 && !w.inner_folded) {
        fold_nothing(ctx, &w);
        return WF_OK;
    }
    return fold_sums(ctx, &w);
}
