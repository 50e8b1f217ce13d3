/* Arrays as rows of C channels, seen as wide rows of W = m C elements so that few channels still fill vectors. The last
 * rows (fewer than m) are the tail. */
#ifndef WF_CORE_CPU_ROWS_IMPL_H
#define WF_CORE_CPU_ROWS_IMPL_H

#include "core/cpu/narrow_impl.h"

typedef struct wide_rows {
    int64_t c, rows; /* as the array has them */
    int64_t m, w;    /* w = m c */
    int64_t full;    /* wide rows */
    int64_t tail;    /* rows after them */
} wide_rows;

static inline wide_rows wide_rows_of(const wf_array *a)
{
    wide_rows r = {.m = 1};
    r.rows = wf_cpu_rows(a, &r.c);
    while (r.c > 0 && r.c < 128 && (r.c * r.m % 16 != 0 || r.c * r.m < 64))
        r.m *= 2;
    r.w = r.c * r.m;
    r.full = r.rows / r.m;
    r.tail = r.rows % r.m;
    return r;
}

/* out[e] = of[e % c] for e < w; `otherwise` where `of` is absent. */
static inline void wide_fill(const wide_rows *r, const wf_array *of, float otherwise, float *out)
{
    const float *const in = wf_cpu_read(of, 0, r->c, out);
    for (int64_t c = 0; c < r->c; c++)
        out[c] = in ? in[c] : otherwise;
    for (int64_t j = 1; j < r->m; j++)
        memcpy(out + j * r->c, out, (size_t)r->c * sizeof *out);
}

/* Reductions over rows are made in segments whose bounds depend on the shape alone, and in each in blocks of rows that
 * stay in the second-level cache. */
enum { WIDE_SEGMENTS = 32, WIDE_BLOCK = 16384 };

static inline int64_t wide_segments(const wide_rows *r)
{
    const int64_t n = r->full / 64 + 1;
    return n < WIDE_SEGMENTS ? n : WIDE_SEGMENTS;
}

static inline int64_t wide_block(const wide_rows *r)
{
    const int64_t n = WIDE_BLOCK / r->w / 4 * 4;
    return n < 16 ? 16 : n;
}

/* Elements of such a block as floats, where the array has others. */
static inline int64_t wide_room(const wide_rows *r, const wf_array *a)
{
    return wf_cpu_is_narrow(a) ? wide_block(r) * r->w : 0;
}

#endif
