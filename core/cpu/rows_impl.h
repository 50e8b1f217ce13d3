/* Arrays as rows of C channels, seen as long rows of W = m C elements so that few channels still fill vectors. The last
 * rows (fewer than m) are the tail. */
#ifndef WF_CORE_CPU_ROWS_IMPL_H
#define WF_CORE_CPU_ROWS_IMPL_H

#include "core/cpu/narrow_impl.h"

typedef struct long_rows {
    int64_t c, rows; /* as the array has them */
    int64_t m, w;    /* w = m c */
    int64_t full;    /* long rows */
    int64_t tail;    /* rows after them */
} long_rows;

static inline long_rows long_rows_of(const wf_array *a)
{
    long_rows r = {.m = 1};
    r.rows = wf_cpu_rows(a, &r.c);
    while (r.c > 0 && r.c < 128 && (r.c * r.m % 16 != 0 || r.c * r.m < 64))
        r.m *= 2;
    r.w = r.c * r.m;
    r.full = r.rows / r.m;
    r.tail = r.rows % r.m;
    return r;
}

/* out[e] = of[e % c] for e < w; `otherwise` where `of` is absent. */
static inline void long_fill(const long_rows *r, const wf_array *of, float otherwise, float *out)
{
    const float *const in = wf_cpu_read(of, 0, r->c, out);
    for (int64_t c = 0; c < r->c; c++)
        out[c] = in ? in[c] : otherwise;
    for (int64_t j = 1; j < r->m; j++)
        memcpy(out + j * r->c, out, (size_t)r->c * sizeof *out);
}

/* Returns true if normalisation backward computes the sign of y from x and does not read y: in f32, where steps of
 * ResNets take 4 % and of VGG 2 % less time. In bf16, whose arrays are half as long, the arithmetic costs more than it
 * saves. */
static inline bool wf_cpu_sign_of_x(const wf_norm_args *args)
{
    return args->y_of_x && wf_cpu_is(args->x, WF_F32);
}

/* Reductions over rows are made in segments whose bounds depend on the shape alone, and in each in blocks of rows that
 * stay in the second-level cache. */
enum { LONG_SEGMENTS = 32, LONG_BLOCK = 16384 };

static inline int64_t long_segments(const long_rows *r)
{
    const int64_t n = r->full / 64 + 1;
    return n < LONG_SEGMENTS ? n : LONG_SEGMENTS;
}

static inline int64_t long_block(const long_rows *r)
{
    const int64_t n = LONG_BLOCK / r->w / 4 * 4;
    return n < 16 ? 16 : n;
}

/* Elements of such a block as floats, where the array has others. direct: all arrays are of bf16 and are read where
 * they are, so no room is needed. */
static inline int64_t long_room(const long_rows *r, const wf_array *a, bool direct)
{
    return wf_cpu_is_narrow(a) && !direct ? long_block(r) * r->w : 0;
}

/* The work of one thread on an array [rows, c] of which it has all: what normalisation of groups does to a sample.
 * `work` is room for the bytes that the function before it says.
 *
 * Mean and squared deviations of each column. */
size_t wf_cpu_column_moments_room(const wf_array *x);
void wf_cpu_column_moments(const wf_array *x, void *work, double *mean, double *m2);
/* Sums of dy, and of dy (x - mean), of each column; mean is wide (long_fill). */
size_t wf_cpu_column_sums_room(const wf_array *x, const wf_array *dy);
void wf_cpu_column_sums(const wf_array *x, const wf_array *dy, const float *mean, void *work, double *sum_g,
                        double *sum_gx);
/* y = (x - k[0]) k[1] + k[2], and dx = k[1] dy + k[2] (x - k[0]) + k[3]; k: five wide rows, one after the other. */
void wf_cpu_column_scale(const wf_array *x, const wf_array *y, float *k);
void wf_cpu_column_backward(const wf_array *x, const wf_array *dy, const wf_array *dx, float *k);

/* Elements [at, at + n): where they are, if `direct`, else as floats. */
static inline const void *long_read(const wf_array *a, int64_t at, int64_t n, bool direct, float *room)
{
    return direct ? (const uint16_t *)a->data + at : (const void *)wf_cpu_read(a, at, n, room);
}

#endif
