/* Places of maxima, and images made of them. Channels of a pixel lie side by side, so a thread has some channels of one
 * sample and walks the pixels. Numbers that are wrong go to ref, which says what is wrong. */
#include "core/cpu/cpu_impl.h"

#include <string.h>

/* Channels of a thread: a cache line of i32. */
#define LANES 16

wf_status wf_cpu_pool_places(wf_ctx *ctx, const wf_places_args *a)
{
    const int64_t count = wf_array_count(a->y);
    const int32_t *const restrict index = a->index->data;
    int64_t *const restrict y = a->y->data;
    for (int d = 1; d < a->nd; d++)
        if (a->length[d] != a->whole[d])
            return REF->pool_places(ctx, a);
    /* The box has whole rows, so that its places are those of the image but for where it begins. */
    int64_t lo = a->lo[0];
    for (int d = 1; d < a->nd; d++)
        lo *= a->whole[d];
#pragma omp parallel for num_threads(wf_cpu_team(ctx, count)) schedule(static)
    for (int64_t i = 0; i < count; i++)
        y[i] = index[i] >= 0 ? index[i] + lo : -1;
    return WF_OK;
}

/* Some channels of one sample: places and taken ones. */
typedef struct plane {
    int64_t c, pixels, first, lanes; /* channels of the arrays, and those at hand */
    int64_t from;                    /* the sample's first element in places and index */
    int32_t *index, *taken;          /* of the sample */
} plane;

static void take_plane(const wf_array *places, const plane *p)
{
    for (int64_t o = 0; o < p->pixels; o++)
        for (int64_t l = 0; l < p->lanes; l++) {
            const int64_t at = o * p->c + p->first + l, place = wf_cpu_integer(places, p->from + at);
            p->index[at] = (int32_t)place;
            if (place >= 0)
                p->taken[place * p->c + p->first + l] = (int32_t)o;
        }
    for (int64_t o = 0; o < p->pixels; o++)
        for (int64_t l = 0; l < p->lanes; l++) {
            const int64_t at = o * p->c + p->first + l;
            if (p->index[at] >= 0 && p->taken[(int64_t)p->index[at] * p->c + p->first + l] != o)
                p->index[at] = -1;
        }
}

wf_status wf_cpu_unpool_index(wf_ctx *ctx, const wf_unpool_args *a)
{
    int64_t n, c, pixels, places;
    wf_array_ncp(a->taken, &n, &c, &places);
    wf_array_ncp(a->index, &n, &c, &pixels);
    /* -1 is no place, and left out. */
    if (!wf_cpu_integers_fit(a->places, n * c * pixels, places, -1))
        return REF->unpool_index(ctx, a);
    const int64_t groups = (c + LANES - 1) / LANES;
    if (n * c * places == 0)
        return WF_OK;
    memset(a->taken->data, 0xff, (size_t)(n * c * places) * sizeof(int32_t));
#pragma omp parallel for num_threads(wf_cpu_team(ctx, n *c *places)) schedule(static)
    for (int64_t g = 0; g < n * groups; g++) {
        const int64_t sample = g / groups, first = g % groups * LANES;
        take_plane(a->places, &(plane){.c = c,
                                       .pixels = pixels,
                                       .first = first,
                                       .lanes = wf_cpu_min(LANES, c - first),
                                       .from = sample * pixels * c,
                                       .index = (int32_t *)a->index->data + sample * pixels * c,
                                       .taken = (int32_t *)a->taken->data + sample * places * c});
    }
    return WF_OK;
}

/* The channels of one pixel of y, from the image x, whose elements have this size. */
#define PICK(type)                                                                                                     \
    static void pick_##type(const type *restrict x, const int32_t *restrict index, type *restrict y, int64_t c)        \
    {                                                                                                                  \
        for (int64_t i = 0; i < c; i++)                                                                                \
            y[i] = index[i] < 0 ? 0 : x[index[i] * c + i];                                                             \
    }
PICK(uint16_t)
PICK(uint32_t)
PICK(uint64_t)

wf_status wf_cpu_pick_pixels(wf_ctx *ctx, const wf_array *x, const wf_array *index, const wf_array *y)
{
    int64_t n, c, from, to;
    wf_array_ncp(x, &n, &c, &from);
    wf_array_ncp(y, &n, &c, &to);
    const size_t size = wf_dtype_size(x->dtype);
    const int64_t rows = n * to;
    if (rows * c == 0)
        return WF_OK;
#pragma omp parallel for num_threads(wf_cpu_team(ctx, rows *c)) schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        const void *const image = (const char *)x->data + (size_t)(row / to * from * c) * size;
        const int32_t *const at = (const int32_t *)index->data + row * c;
        void *const out = (char *)y->data + (size_t)(row * c) * size;
        if (size == 2)
            pick_uint16_t(image, at, out, c);
        else if (size == 4)
            pick_uint32_t(image, at, out, c);
        else
            pick_uint64_t(image, at, out, c);
    }
    return WF_OK;
}
