/* Normalisation of groups that are one run of neighbouring elements (layer and RMS normalisation): a run is read twice,
 * the second time from the first-level cache. Sums of a run are kept in four vectors, so that no addition waits for the
 * one before it; long runs are summed in blocks, and those in double. Of rows of few channels sixteen are computed side
 * by side. */
#include "core/cpu/group_impl.h"
#include "core/cpu/side_impl.h"

/* A block of 4096 floats is summed in f32 before it goes into double. Segments are bounded in number, since each has
 * sums of parameters of its own, and 64 rows are summed in f32 before those go into double. */
enum { BLOCK = 4096, ROW_SEGMENTS = 32, ROW_FLUSH = 64 };

typedef float four __attribute__((vector_size(16)));

/* The sum of a pack, by halves: rows of few elements wait for it. */
WF_CPU_INLINE double lanes(pack v)
{
    four f[PACK / 4];
    memcpy(f, &v, sizeof v);
    for (int n = PACK / 8; n > 0; n /= 2)
        for (int i = 0; i < n; i++)
            f[i] += f[i + n];
    return (f[0][0] + f[0][2]) + (f[0][1] + f[0][3]);
}

WF_CPU_INLINE pack load(const void *a, bool bf16, int64_t e)
{
    pack_half h;
    if (!bf16)
        return pack_load((const float *)a + e);
    memcpy(&h, (const uint16_t *)a + e, sizeof h);
    return (pack)(__builtin_convertvector(h, pack_word) << 16);
}

/* Ones for the first n of a pack, zeros after them. */
WF_CPU_INLINE pack first_of(int64_t n)
{
    static const float mask[32] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    /* The load begins n places before the first zero. */
    return pack_load(mask + 16 - n);
}

/* The last elements [e, n), fewer than a pack; the others are 0. */
WF_CPU_INLINE pack load_last(const void *a, bool bf16, int64_t e, int64_t n)
{
    float last[PACK] = {0};
#if defined(__AVX512F__)
    if (!bf16)
        return vec_load_part((const float *)a + e, n - e);
#endif
    for (int i = 0; i < n - e; i++)
        last[i] = wf_cpu_at(a, bf16, e + i);
    return pack_load(last);
}

/* Only the first pass needs it: the mean need not be exact, as the second pass measures what is missing. */
WF_CPU_INLINE double sum_of(const void *x, bool bf16, int64_t n)
{
    pack s[4] = {{0}};
    int64_t e = 0;
    for (; e + 4 * PACK <= n; e += 4 * PACK)
        for (int i = 0; i < 4; i++)
            s[i] += load(x, bf16, e + PACK * i);
    for (; e + PACK <= n; e += PACK)
        s[0] += load(x, bf16, e);
    if (e < n)
        s[1] += load_last(x, bf16, e, n);
    return lanes((s[0] + s[1]) + (s[2] + s[3]));
}

/* Sums of the deviations from `about` and of their squares. */
WF_CPU_INLINE void deviations_of(const void *x, bool bf16, int64_t n, float about, double *sum, double *squares)
{
    const pack m = about - (pack){0};
    pack s[4] = {{0}}, q[4] = {{0}};
    int64_t e = 0;
    for (; e + 4 * PACK <= n; e += 4 * PACK)
        for (int i = 0; i < 4; i++) {
            const pack d = load(x, bf16, e + PACK * i) - m;
            s[i] += d;
            q[i] = pack_fma(d, d, q[i]);
        }
    /* Not added to the four: with less than four packs left there is nothing to overlap. */
    for (; e + PACK <= n; e += PACK) {
        const pack d = load(x, bf16, e) - m;
        s[0] += d;
        q[0] = pack_fma(d, d, q[0]);
    }
    if (e < n) {
        /* Absent elements are 0, whose deviation would be -mean: they must count nothing. */
        const pack d = (load_last(x, bf16, e, n) - m) * first_of(n - e);
        s[1] += d;
        q[1] = pack_fma(d, d, q[1]);
    }
    *sum += lanes((s[0] + s[1]) + (s[2] + s[3]));
    *squares += lanes((q[0] + q[1]) + (q[2] + q[3]));
}

WF_CPU_INLINE const void *after(const void *a, bool bf16, int64_t e)
{
    return (const char *)a + e * (int64_t)(bf16 ? sizeof(uint16_t) : sizeof(float));
}

/* Two passes with a correction (Chan, Golub and LeVeque 1983): one pass over squares would cancel where the mean is
 * large. */
WF_CPU_INLINE void moments_of(bool bf16, bool about_zero, const void *x, int64_t n, double *mean, double *squares)
{
    const double share = 1 / (double)n;
    double sum = 0, off = 0;
    *squares = 0;
    for (int64_t at = 0; at < n && !about_zero; at += BLOCK)
        sum += sum_of(after(x, bf16, at), bf16, wf_cpu_min(BLOCK, n - at));
    const float about = (float)(sum * share);
    for (int64_t at = 0; at < n; at += BLOCK)
        deviations_of(after(x, bf16, at), bf16, wf_cpu_min(BLOCK, n - at), about, &off, squares);
    *mean = 0;
    if (about_zero)
        return;
    /* `about` is the mean in float; what rounding left of it the second pass measured. */
    *mean = about + off * share;
    *squares -= off * off * share;
}

/* --- what all rows share ------------------------------------------------------------------------------------------ */

/* One row as it is computed with: floats, or bf16 where all arrays are. f16 goes through room for three rows. */
typedef struct runs_job {
    const wf_group_norm_args *a;
    bool bf16;
    float *gamma, *beta; /* [channels] */
    float *room;         /* each thread: 3 rows; then sums of parameters */
    double *total;       /* each segment: 2 rows */
    size_t bytes;
    void *work;
    int64_t segments;
    bool factors; /* dgamma or dbeta is wanted, and made here */
} runs_job;

/* Two rows of doubles for each segment, then gamma and beta as floats, then 5 rows of floats for each segment. */
static wf_status take_run(wf_ctx *ctx, const wf_group_norm_args *a, bool bf16, bool factors, runs_job *j)
{
    const int64_t c = a->channels, segments = wf_cpu_min(a->rows / ROW_FLUSH + 1, ROW_SEGMENTS);
    *j = (runs_job){.a = a, .bf16 = bf16, .segments = segments, .factors = factors};
    j->bytes = (size_t)(2 * segments * c) * sizeof(double) + (size_t)((2 + 5 * segments) * c) * sizeof(float);
    WF_TRY(wf_pool_take(ctx, j->bytes, &j->work));
    j->total = j->work;
    j->gamma = (float *)(j->total + 2 * segments * c);
    j->beta = j->gamma + c;
    j->room = j->beta + c;
    const float *const gamma = wf_cpu_read(a->gamma, 0, c, j->gamma), *const beta = wf_cpu_read(a->beta, 0, c, j->beta);
    /* Absent gamma is 1 and absent beta 0, so loops have no cases. */
    for (int64_t e = 0; e < c; e++) {
        j->gamma[e] = gamma ? gamma[e] : 1.0F;
        j->beta[e] = beta ? beta[e] : 0.0F;
    }
    return WF_OK;
}

static void give_run(wf_ctx *ctx, const runs_job *j)
{
    wf_pool_give(ctx, j->work, j->bytes);
}

static const void *run_row(const runs_job *j, const wf_array *a, int64_t row, float *room)
{
    return long_read(a, row * j->a->channels, j->a->channels, j->bf16, room);
}

static void *place_row(const runs_job *j, const wf_array *a, int64_t row, float *room)
{
    const int64_t at = row * j->a->channels;
    return j->bf16 ? (void *)((uint16_t *)a->data + at) : wf_cpu_place(a, at, j->a->channels, false, room);
}

static void put_row(const runs_job *j, const wf_array *a, int64_t row, const void *from)
{
    if (!j->bf16)
        wf_cpu_put(a, row * j->a->channels, j->a->channels, from);
}

/* --- forward ------------------------------------------------------------------------------------------------------ */

WF_CPU_INLINE void scale(bool bf16, const void *x, void *y, int64_t lo, int64_t hi, float mean, float inverse,
                         const float *gamma, const float *beta)
{
#pragma omp simd
    for (int64_t e = lo; e < hi; e++)
        wf_cpu_set(y, bf16, e, wf_fma(wf_cpu_at(x, bf16, e) - mean, inverse * gamma[e], beta[e]));
}

static void run_moments(const runs_job *j, const void *x, int64_t lo, int64_t hi, double *mean, double *squares)
{
    if (j->bf16)
        moments_of(true, j->a->about_zero, after(x, true, lo), hi - lo, mean, squares);
    else
        moments_of(false, j->a->about_zero, after(x, false, lo), hi - lo, mean, squares);
}

static void stats_row(const runs_job *j, int64_t row, float *room)
{
    const wf_group_norm_args *const a = j->a;
    const void *const x = run_row(j, a->x, row, room);
    const int64_t k = a->rows * a->groups;
    double *const sums = a->sums->data;
    for (int64_t g = 0; g < a->groups; g++) {
        int64_t lo, hi;
        const int64_t at = row * a->groups + g;
        double mean = 0, squares = 0;
        wf_group_channels(a, g, &lo, &hi);
        /* A rank that has no channel of a group writes zeros, which change nothing when ranks are summed. */
        if (lo < hi)
            run_moments(j, x, lo, hi, &mean, &squares);
        sums[at] = lo < hi ? (double)(hi - lo) : 0;
        sums[k + at] = mean;
        sums[2 * k + at] = squares;
    }
}

static void apply_run(const runs_job *j, int64_t row, float *room)
{
    const wf_group_norm_args *const a = j->a;
    const void *const x = run_row(j, a->x, row, room);
    void *const y = place_row(j, a->y, row, room + a->channels);
    const int64_t k = a->rows * a->groups;
    const double *const given = a->sums ? a->sums->data : NULL;
    float *const stats = a->stats->data;
    for (int64_t g = 0; g < a->groups; g++) {
        int64_t lo, hi;
        /* Given sums are those of all ranks, joined by the layer; without them the row here is the whole group. */
        const int64_t at = row * a->groups + g;
        double mean = given ? given[at] : 0, squares = given ? given[k + at] : 0;
        wf_group_channels(a, g, &lo, &hi);
        if (!given)
            run_moments(j, x, lo, hi, &mean, &squares);
        const float middle = (float)mean, inverse = wf_group_inverse(a, squares);
        stats[at] = middle;
        stats[k + at] = inverse;
        if (j->bf16)
            scale(true, x, y, lo, hi, middle, inverse, j->gamma, j->beta);
        else
            scale(false, x, y, lo, hi, middle, inverse, j->gamma, j->beta);
    }
    put_row(j, a->y, row, y);
}

/* --- few channels in f32, a row of which is a group: SIDE rows side by side ----------------------------------------
 */

static bool is_side(const wf_group_norm_args *a)
{
    return a->groups == 1 && a->channels <= SHORT_ROW && a->size == a->channels && !a->sums &&
           wf_cpu_is(a->x, WF_F32) && wf_cpu_is(a->y, WF_F32) && wf_cpu_is(a->dy, WF_F32) && wf_cpu_is(a->dx, WF_F32);
}

/* A number of each of SIDE rows. */
typedef struct side_values {
    _Alignas(64) float v[SIDE];
} side_values;

/* Means and inverse deviations of the rows of x, as moments_of makes them, but for sums, which have at most SHORT_ROW
 * terms and stay floats. */
static void side_moments(const wf_group_norm_args *a, const float *x, side_values *mean, side_values *inverse)
{
    const int64_t c = a->channels;
    const float share = 1.0F / (float)c, eps = (float)a->eps, of_count = a->count > 0 ? (float)(1 / a->count) : 0.0F;
    side_values sum = {0}, squares = {0}, about;
    for (int64_t e = 0; e < c && !a->about_zero; e++) {
#pragma omp simd
        for (int64_t r = 0; r < SIDE; r++)
            sum.v[r] += x[e * SIDE + r];
    }
#pragma omp simd
    for (int64_t r = 0; r < SIDE; r++) {
        about.v[r] = sum.v[r] * share;
        sum.v[r] = 0;
    }
    for (int64_t e = 0; e < c; e++) {
#pragma omp simd
        for (int64_t r = 0; r < SIDE; r++) {
            const float d = x[e * SIDE + r] - about.v[r];
            sum.v[r] += d;
            squares.v[r] = wf_fma(d, d, squares.v[r]);
        }
    }
    const float off = a->about_zero ? 0.0F : share;
#pragma omp simd
    for (int64_t r = 0; r < SIDE; r++) {
        mean->v[r] = about.v[r] + sum.v[r] * off;
        squares.v[r] -= sum.v[r] * sum.v[r] * off;
        inverse->v[r] = a->count > 0 ? 1.0F / sqrtf(squares.v[r] * of_count + eps) : 0.0F;
    }
}

/* Rows [row, row + n), n <= SIDE. */
static void apply_side(const runs_job *j, int64_t row, int64_t n)
{
    const wf_group_norm_args *const a = j->a;
    const int64_t c = a->channels;
    float *const stats = a->stats->data;
    _Alignas(64) float x[SHORT_ROW * SIDE];
    side_values mean, inverse;
    side_take(n, c, (const float *)a->x->data + row * c, x);
    side_moments(a, x, &mean, &inverse);
    memcpy(stats + row, mean.v, (size_t)n * sizeof(float));
    memcpy(stats + a->rows + row, inverse.v, (size_t)n * sizeof(float));
    for (int64_t e = 0; e < c; e++) {
        const float gamma = j->gamma[e], beta = j->beta[e];
#pragma omp simd
        for (int64_t r = 0; r < SIDE; r++)
            x[e * SIDE + r] = wf_fma(x[e * SIDE + r] - mean.v[r], inverse.v[r] * gamma, beta);
    }
    side_put(n, c, x, (float *)a->y->data + row * c);
}

/* All rows, in segments whose bounds depend on the shape alone; without `work` they are normalised side by side. */
static void each_row(wf_ctx *ctx, const runs_job *j, void (*work)(const runs_job *j, int64_t row, float *room))
{
    const wf_group_norm_args *const a = j->a;
#pragma omp parallel for num_threads(wf_cpu_team(ctx, a->rows * a->channels)) schedule(static)
    for (int64_t s = 0; s < j->segments; s++) {
        /* A segment is a unit of work: its room is no other's, so threads need not be counted. */
        int64_t lo, hi;
        wf_block(a->rows, j->segments, s, &lo, &hi);
        for (int64_t row = lo; row < hi && !work; row += SIDE)
            apply_side(j, row, wf_cpu_min(SIDE, hi - row));
        for (int64_t row = lo; row < hi && work; row++)
            work(j, row, j->room + 5 * s * a->channels);
    }
}

wf_status wf_cpu_group_runs_stats(wf_ctx *ctx, const wf_group_norm_args *args)
{
    runs_job j;
    WF_TRY(take_run(ctx, args, wf_cpu_is(args->x, WF_BF16), false, &j));
    each_row(ctx, &j, stats_row);
    give_run(ctx, &j);
    return WF_OK;
}

wf_status wf_cpu_group_runs_forward(wf_ctx *ctx, const wf_group_norm_args *args)
{
    runs_job j;
    WF_TRY(take_run(ctx, args, wf_cpu_is(args->x, WF_BF16) && wf_cpu_is(args->y, WF_BF16), false, &j));
    each_row(ctx, &j, is_side(args) ? NULL : apply_run);
    give_run(ctx, &j);
    return WF_OK;
}

/* --- backward ----------------------------------------------------------------------------------------------------- */

/* Sums of gamma dy and gamma dy (x - mean), without those of parameters. */
WF_CPU_INLINE void add_group(bool bf16, const void *x, const void *dy, int64_t lo, int64_t hi, float mean,
                             const float *gamma, double *sum, double *sum_x)
{
    for (int64_t at = lo; at < hi; at += BLOCK) {
        const int64_t end = wf_cpu_min(at + BLOCK, hi);
        const pack m = mean - (pack){0};
        pack s[2] = {{0}}, q[2] = {{0}};
        int64_t e = at;
        for (; e + 2 * PACK <= end; e += 2 * PACK)
            for (int i = 0; i < 2; i++) {
                const pack g = load(dy, bf16, e + PACK * i) * pack_load(gamma + e + PACK * i);
                s[i] += g;
                q[i] = pack_fma(g, load(x, bf16, e + PACK * i) - m, q[i]);
            }
        for (; e + PACK <= end; e += PACK) {
            const pack g = load(dy, bf16, e) * pack_load(gamma + e);
            s[0] += g;
            q[0] = pack_fma(g, load(x, bf16, e) - m, q[0]);
        }
        if (e < end) {
            const pack g = load_last(dy, bf16, e, end) * load_last(gamma, false, e, end);
            s[1] += g;
            q[1] = pack_fma(g, load_last(x, bf16, e, end) - m, q[1]);
        }
        *sum += lanes(s[0] + s[1]);
        *sum_x += lanes(q[0] + q[1]);
    }
}

/* dgamma and dbeta, of one row. */
WF_CPU_INLINE void add_factors(bool bf16, const void *x, const void *dy, int64_t lo, int64_t hi, float mean,
                               float inverse, float *restrict dgamma, float *restrict dbeta)
{
#pragma omp simd
    for (int64_t e = lo; e < hi; e++) {
        const float g = wf_cpu_at(dy, bf16, e);
        dgamma[e] = wf_fma(g * inverse, wf_cpu_at(x, bf16, e) - mean, dgamma[e]);
        dbeta[e] += g;
    }
}

WF_CPU_INLINE void give_dx(bool bf16, const void *x, const void *dy, void *dx, int64_t lo, int64_t hi, float mean,
                           float of_g, float of_x, float rest, const float *gamma)
{
#pragma omp simd
    for (int64_t e = lo; e < hi; e++) {
        const float back = wf_fma(of_x, wf_cpu_at(x, bf16, e) - mean, rest);
        wf_cpu_set(dx, bf16, e, wf_fma(of_g * gamma[e], wf_cpu_at(dy, bf16, e), back));
    }
}

WF_CPU_INLINE void backward_group(bool bf16, const runs_job *j, int64_t at, const void *x, const void *dy, void *dx,
                                  int64_t lo, int64_t hi, float *factors)
{
    const wf_group_norm_args *const a = j->a;
    const int64_t k = a->rows * a->groups;
    const float *const stats = a->stats->data, mean = stats[at], inverse = stats[k + at];
    double *const sums = a->sums ? a->sums->data : NULL;
    double sum = 0, sum_x = 0;
    /* With dx and sums, the sums are those of all ranks and only dx is made; with sums and no dx, this rank's are
     * stored for the layer to add; with dx only, both happen here. */
    if (sums && dx) {
        sum = sums[at];
        sum_x = sums[k + at];
    } else {
        add_group(bf16, x, dy, lo, hi, mean, j->gamma, &sum, &sum_x);
        sum_x *= inverse;
    }
    if (j->factors)
        add_factors(bf16, x, dy, lo, hi, mean, inverse, factors, factors + a->channels);
    /* dx = inverse (gamma dy - mean of gamma dy - xhat times mean of gamma dy xhat), means over the whole group. */
    if (dx) {
        const double share = -(double)inverse / a->count;
        give_dx(bf16, x, dy, dx, lo, hi, mean, inverse, (float)(share * inverse * sum_x),
                a->about_zero ? 0.0F : (float)(share * sum), j->gamma);
    } else if (sums) {
        sums[at] = sum;
        sums[k + at] = sum_x;
    }
}

static void gradient_run(const runs_job *j, int64_t row, float *room)
{
    const wf_group_norm_args *const a = j->a;
    const int64_t c = a->channels;
    const void *const x = run_row(j, a->x, row, room), *const dy = run_row(j, a->dy, row, room + c);
    void *const dx = a->dx ? place_row(j, a->dx, row, room + 2 * c) : NULL;
    for (int64_t g = 0; g < a->groups; g++) {
        int64_t lo, hi;
        wf_group_channels(a, g, &lo, &hi);
        if (j->bf16)
            backward_group(true, j, row * a->groups + g, x, dy, dx, lo, hi, room + 3 * c);
        else
            backward_group(false, j, row * a->groups + g, x, dy, dx, lo, hi, room + 3 * c);
    }
    if (dx)
        put_row(j, a->dx, row, dx);
}

/* dgamma and dbeta of SIDE rows at a time, not yet summed over these. */
typedef struct side_factors {
    _Alignas(64) float dgamma[SHORT_ROW * SIDE];
    _Alignas(64) float dbeta[SHORT_ROW * SIDE];
} side_factors;

/* Gradients of rows [row, row + n), n <= SIDE, as backward_group makes them. */
static void gradient_side(const runs_job *j, int64_t row, int64_t n, side_factors *to)
{
    const wf_group_norm_args *const a = j->a;
    const int64_t c = a->channels;
    const float *const stats = a->stats->data;
    const float share = (float)(-1 / a->count), rest_share = a->about_zero ? 0.0F : share;
    _Alignas(64) float x[SHORT_ROW * SIDE], dy[SHORT_ROW * SIDE];
    side_values mean = {0}, inverse = {0}, sum = {0}, sum_x = {0};
    side_take(n, c, (const float *)a->x->data + row * c, x);
    side_take(n, c, (const float *)a->dy->data + row * c, dy);
    memcpy(mean.v, stats + row, (size_t)n * sizeof(float));
    memcpy(inverse.v, stats + a->rows + row, (size_t)n * sizeof(float));
    for (int64_t e = 0; e < c; e++) {
        const float gamma = j->gamma[e];
#pragma omp simd
        for (int64_t r = 0; r < SIDE; r++) {
            const int64_t at = e * SIDE + r;
            const float d = (x[at] - mean.v[r]) * inverse.v[r], g = dy[at];
            x[at] = d;
            to->dgamma[at] = wf_fma(g, d, to->dgamma[at]);
            to->dbeta[at] += g;
            sum.v[r] = wf_fma(gamma, g, sum.v[r]);
            sum_x.v[r] = wf_fma(gamma * g, d, sum_x.v[r]);
        }
    }
#pragma omp simd
    for (int64_t r = 0; r < SIDE; r++) {
        sum.v[r] *= inverse.v[r] * rest_share;
        sum_x.v[r] *= inverse.v[r] * share;
    }
    if (!a->dx)
        return;
    for (int64_t e = 0; e < c; e++) {
        const float gamma = j->gamma[e];
#pragma omp simd
        for (int64_t r = 0; r < SIDE; r++) {
            const int64_t at = e * SIDE + r;
            x[at] = wf_fma(inverse.v[r] * gamma, dy[at], wf_fma(sum_x.v[r], x[at], sum.v[r]));
        }
    }
    side_put(n, c, x, (float *)a->dx->data + row * c);
}

/* Rows [lo, hi), no more than are summed in f32; their sums go to factors. */
static void gradient_sides(const runs_job *j, int64_t lo, int64_t hi, float *factors)
{
    const int64_t c = j->a->channels;
    side_factors to;
    memset(to.dgamma, 0, (size_t)(c * SIDE) * sizeof(float));
    memset(to.dbeta, 0, (size_t)(c * SIDE) * sizeof(float));
    for (int64_t row = lo; row < hi; row += SIDE)
        gradient_side(j, row, wf_cpu_min(SIDE, hi - row), &to);
    for (int64_t e = 0; e < c; e++)
        for (int64_t r = 0; r < SIDE; r++) {
            factors[e] += to.dgamma[e * SIDE + r];
            factors[c + e] += to.dbeta[e * SIDE + r];
        }
}

/* Sums of parameters are floats for a few rows, then doubles. */
static void backward_segment(const runs_job *j, int64_t s)
{
    const int64_t c = j->a->channels;
    float *const room = j->room + 5 * s * c, *const factors = room + 3 * c;
    double *const total = j->total + 2 * s * c;
    int64_t lo, hi;
    wf_block(j->a->rows, j->segments, s, &lo, &hi);
    memset(total, 0, (size_t)(2 * c) * sizeof *total);
    for (int64_t from = lo; from < hi; from += ROW_FLUSH) {
        memset(factors, 0, (size_t)(2 * c) * sizeof *factors);
        const int64_t until = wf_cpu_min(from + ROW_FLUSH, hi);
        if (is_side(j->a))
            gradient_sides(j, from, until, factors);
        for (int64_t row = from; row < until && !is_side(j->a); row++)
            gradient_run(j, row, room);
        /* Flushed after ROW_FLUSH rows, so that rounding does not grow with the batch. */
        for (int64_t e = 0; e < 2 * c && j->factors; e++)
            total[e] += factors[e];
    }
}

static void store_factor(const runs_job *j, const wf_array *to, int64_t which)
{
    const int64_t c = j->a->channels;
    if (!to)
        return;
    for (int64_t e = 0; e < c; e++) {
        double sum = 0;
        for (int64_t s = 0; s < j->segments; s++)
            sum += j->total[(2 * s + which) * c + e];
        ((float *)to->data)[e] = (float)sum;
    }
}

wf_status wf_cpu_group_runs_backward(wf_ctx *ctx, const wf_group_norm_args *args)
{
    runs_job j;
    const bool bf16 = wf_cpu_is(args->x, WF_BF16) && wf_cpu_is(args->dy, WF_BF16) && wf_cpu_is(args->dx, WF_BF16);
    /* With given sums, dgamma and dbeta were made with them by the call that found them. */
    const bool given = args->dx && args->sums;
    WF_TRY(take_run(ctx, args, bf16, (args->dgamma || args->dbeta) && !given, &j));
#pragma omp parallel for num_threads(wf_cpu_team(ctx, args->rows * args->channels)) schedule(static)
    for (int64_t s = 0; s < j.segments; s++)
        backward_segment(&j, s);
    if (j.factors) {
        store_factor(&j, args->dgamma, 0);
        store_factor(&j, args->dbeta, 1);
    }
    give_run(ctx, &j);
    return WF_OK;
}
