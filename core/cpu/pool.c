/* Pooling: windows in the outer loops, channels in the inner one. Windows are clipped once per output pixel, so the
 * inner loops meet real elements only. Windows of few taps in f32 are taken by registers of channels, each of which
 * visits all taps before it is stored; backward then gathers what the windows over a pixel give it. */
#include "core/cpu/narrow_impl.h"
#include "core/cpu/simd_impl.h"

#include <omp.h>

/* Spatial dimensions filled up to three: 1s in front. */
typedef struct windows {
    wf_pool_kind kind;
    int64_t n, c, in_pixels, out_pixels, taps;
    int64_t in[3], out[3], kernel[3], stride[3], dilation[3], lo[3], hi[3];
    int64_t jump[3]; /* pixels of the input from one tap to the next */
    const wf_pool_geom *geom;
} windows;

static windows windows_of(const wf_pool_geom *geom, const wf_array *x, const wf_array *y)
{
    windows w = {.geom = geom,
                 .kind = geom->kind,
                 .n = x->shape.dim[0],
                 .c = x->shape.dim[1],
                 .in_pixels = 1,
                 .out_pixels = 1,
                 .taps = 1};
    for (int d = 0; d < 3; d++) {
        const int s = d - (3 - geom->nd);
        w.in[d] = s < 0 ? 1 : x->shape.dim[2 + s];
        w.out[d] = s < 0 ? 1 : y->shape.dim[2 + s];
        w.kernel[d] = s < 0 ? 1 : geom->kernel[s];
        w.stride[d] = s < 0 ? 1 : geom->stride[s];
        w.dilation[d] = s < 0 ? 1 : geom->dilation[s];
        w.lo[d] = s < 0 ? 0 : geom->pad_lo[s];
        w.hi[d] = s < 0 ? 0 : geom->pad_hi[s];
        w.in_pixels *= w.in[d];
        w.out_pixels *= w.out[d];
        w.taps *= w.kernel[d];
    }
    w.jump[2] = w.dilation[2];
    w.jump[1] = w.dilation[1] * w.in[2];
    w.jump[0] = w.dilation[0] * w.in[1] * w.in[2];
    return w;
}

/* The taps of a window along one dimension that count. */
typedef struct span {
    int64_t first, count; /* taps on real elements */
    int64_t padded;       /* taps that are not beyond the padded input */
    int64_t at;           /* the input under tap `first` */
} span;

static span span_of(const windows *w, int d, int64_t o)
{
    const int spatial = d - (3 - w->geom->nd);
    /* Windows of adaptive pooling begin and end where the formula says, have no pads and differ in length. */
    if (w->geom->adaptive && spatial >= 0) {
        const wf_range r = wf_pool_adaptive(w->geom, spatial, o);
        return (span){.count = r.hi - r.lo, .padded = r.hi - r.lo, .at = r.lo};
    }
    const int64_t start = o * w->stride[d] - w->lo[d], step = w->dilation[d];
    const int64_t end = w->in[d] + w->hi[d], real_end = wf_cpu_min(end, w->in[d]);
    /* Most windows lie inside the input, and all their taps count. */
    if (start >= 0 && start + (w->kernel[d] - 1) * step < real_end)
        return (span){.count = w->kernel[d], .padded = w->kernel[d], .at = start};
    span s = {0};
    while (s.first < w->kernel[d] && start + s.first * step < 0)
        s.first++;
    /* A tap may be beyond the real input and inside the padded one; the last window of ceil mode may reach beyond
     * both. */
    for (int64_t k = 0; k < w->kernel[d]; k++) {
        const int64_t i = start + k * step;
        s.padded += i < end;
        s.count += k >= s.first && i < real_end;
    }
    s.at = start + s.first * step;
    return s;
}

typedef struct window {
    span s[3];
    int64_t count, divisor;
} window;

/* The dimensions before the last, which outputs of a row share. Divisions are made here, once for a row: they had taken
 * longer than windows of few channels. */
static void window_row(const windows *w, window *v, int64_t row)
{
    v->s[0] = span_of(w, 0, row / w->out[1]);
    v->s[1] = span_of(w, 1, row % w->out[1]);
}

/* To output o of the row. */
static void window_move(const windows *w, window *v, int64_t o)
{
    v->s[2] = span_of(w, 2, o);
    v->count = v->divisor = 1;
    for (int d = 0; d < 3; d++) {
        v->count *= v->s[d].count;
        /* An average with padding divides by the taps in the padded input (count_include_pad of PyTorch), without by
         * the real ones. */
        v->divisor *= w->kind == WF_POOL_AVG_PADDED ? v->s[d].padded : v->s[d].count;
    }
}

/* A real tap of a window. */
typedef struct tap {
    int64_t k[2];  /* its number along the last dimensions */
    int64_t pixel; /* of the input */
} tap;

static tap tap_first(const windows *w, const window *v)
{
    return (tap){.pixel = (v->s[0].at * w->in[1] + v->s[1].at) * w->in[2] + v->s[2].at};
}

/* Taps in row-major order, so sums have one order and ties of max pooling go to the first. */
static void tap_next(const windows *w, const window *v, tap *t)
{
    t->pixel += w->jump[2];
    if (++t->k[1] < v->s[2].count)
        return;
    t->k[1] = 0;
    t->pixel += w->jump[1] - v->s[2].count * w->jump[2];
    if (++t->k[0] < v->s[1].count)
        return;
    t->k[0] = 0;
    t->pixel += w->jump[0] - v->s[1].count * w->jump[1];
}

/* The first tap. Each function of taps is inlined for f32 and for bf16, which it widens in registers: a call for the
 * few channels of a window takes longer than they do. */
WF_CPU_INLINE void max_start(int64_t c, const void *restrict x, bool bf16, int32_t pixel, float *restrict y,
                             int32_t *restrict index)
{
    for (int64_t i = 0; i < c; i++)
        y[i] = wf_cpu_at(x, bf16, i);
    for (int64_t i = 0; i < c && index; i++)
        index[i] = pixel;
}

WF_CPU_INLINE void max_step(int64_t c, const void *restrict x, bool bf16, int32_t pixel, float *restrict y,
                            int32_t *restrict index)
{
    for (int64_t i = 0; i < c && !index; i++) {
        const float v = wf_cpu_at(x, bf16, i);
        /* Bitwise or: both comparisons are vectors, and NaN wins. */
        y[i] = ((v > y[i]) | (v != v)) ? v : y[i];
    }
    for (int64_t i = 0; i < c && index; i++) {
        const float v = wf_cpu_at(x, bf16, i), best = y[i];
        const int wins = (v > best) | ((v != v) & (best == best));
        y[i] = wins ? v : best;
        index[i] = wins ? pixel : index[i];
    }
}

WF_CPU_INLINE void max_tap(int64_t c, const void *x, bool bf16, bool first, int32_t pixel, float *y, int32_t *index)
{
    if (first)
        max_start(c, x, bf16, pixel, y, index);
    else
        max_step(c, x, bf16, pixel, y, index);
}

/* Channels [first, first + c) of a window; y has room for c. */
static void max_window(const windows *w, const window *v, const wf_array *x, int64_t image, int64_t first, int64_t c,
                       float *y, int32_t *index)
{
    float room[WF_CPU_CHUNK];
    tap t = tap_first(w, v);
    for (int64_t i = 0; i < v->count; i++, tap_next(w, v, &t)) {
        const int64_t at = (image + t.pixel) * w->c + first;
        if (x->dtype == WF_BF16)
            max_tap(c, (const uint16_t *)x->data + at, true, i == 0, (int32_t)t.pixel, y, index);
        else
            max_tap(c, wf_cpu_read(x, at, c, room), false, i == 0, (int32_t)t.pixel, y, index);
    }
    /* A window of pads only has no largest element: backward finds index -1 and gives nothing. */
    for (int64_t i = 0; v->count == 0 && i < c; i++) {
        y[i] = -INFINITY;
        if (index)
            index[i] = -1;
    }
}

static void average_window(const windows *w, const window *v, const wf_array *x, int64_t image, int64_t first,
                           int64_t c, float *restrict y)
{
    float room[WF_CPU_CHUNK];
    const float scale = v->divisor > 0 ? 1.0F / (float)v->divisor : 0.0F;
    tap t = tap_first(w, v);
    for (int64_t i = 0; i < c; i++)
        y[i] = 0;
    for (int64_t k = 0; k < v->count; k++, tap_next(w, v, &t)) {
        const float *const restrict in = wf_cpu_read(x, (image + t.pixel) * w->c + first, c, room);
#pragma omp simd
        for (int64_t i = 0; i < c; i++)
            y[i] += in[i];
    }
    for (int64_t i = 0; i < c; i++)
        y[i] *= scale;
}

/* --- windows of few taps, in f32 -----------------------------------------------------------------------------------
 */

/* Taps of a window, or windows over a pixel, that have a list. */
enum { LIST_MOST = 64 };

/* A list of taps: pixels of the input, relative to `at` along the last dimension. */
typedef struct tap_list {
    int64_t count, full, at; /* full: taps along the last dimension that the list has; 0: none yet */
    int64_t pixel[LIST_MOST];
} tap_list;

/* Windows of a row that have all taps along the last dimension have one list, which moves with them. */
static void list_taps(const windows *w, const window *v, tap_list *list)
{
    if (list->full == w->kernel[2] && v->s[2].count == w->kernel[2] && v->s[2].first == 0) {
        list->at = v->s[2].at;
        return;
    }
    window here = *v;
    tap t;
    list->at = v->s[2].at;
    list->full = v->s[2].count;
    list->count = v->count;
    here.s[2].at = 0;
    t = tap_first(w, &here);
    for (int64_t i = 0; i < v->count; i++, tap_next(w, &here, &t))
        list->pixel[i] = t.pixel;
}

/* The largest of each channel and its pixel: what is larger than the best so far wins, and the first NaN stays. */
static void max_list(const tap_list *list, int64_t c, const float *image, float *y, int32_t *index)
{
    const float *const x = image + list->at * c;
    int64_t i = 0;
    for (; i + PACK <= c; i += PACK) {
        pack best = pack_load(x + list->pixel[0] * c + i);
        pack_mask place = (int32_t)list->pixel[0] - (pack_mask){0};
        for (int64_t t = 1; t < list->count; t++) {
            const pack v = pack_load(x + list->pixel[t] * c + i);
            const pack_mask wins = ~(v <= best) & pack_numbers(best);
            best = pack_select(wins, v, best);
            place = (pack_mask)pack_select(wins, (pack)((int32_t)list->pixel[t] - (pack_mask){0}), (pack)place);
        }
        pack_store(y + i, best);
        place += (int32_t)list->at;
        if (index)
            memcpy(index + i, &place, sizeof place);
    }
    for (; i < c; i++) {
        float best = x[list->pixel[0] * c + i];
        int64_t place = list->pixel[0];
        for (int64_t t = 1; t < list->count; t++) {
            const float v = x[list->pixel[t] * c + i];
            const bool wins = (v > best) | ((v != v) & (best == best));
            best = wins ? v : best;
            place = wins ? list->pixel[t] : place;
        }
        y[i] = best;
        if (index)
            index[i] = (int32_t)(place + list->at);
    }
}

static void average_list(const tap_list *list, int64_t c, float scale, const float *image, float *y)
{
    const float *const x = image + list->at * c;
    int64_t i = 0;
    for (; i + PACK <= c; i += PACK) {
        pack sum = {0};
        for (int64_t t = 0; t < list->count; t++)
            sum += pack_load(x + list->pixel[t] * c + i);
        pack_store(y + i, sum * pack_of(scale));
    }
    for (; i < c; i++) {
        float sum = 0;
        for (int64_t t = 0; t < list->count; t++)
            sum += x[list->pixel[t] * c + i];
        y[i] = sum * scale;
    }
}

/* All channels of output pixel i of all samples, whose window is v of the image that begins at that pixel. */
static void forward_window(const windows *w, const window *v, const wf_pool_args *args, int64_t i, int64_t image)
{
    int32_t *const places = wf_cpu_data(args->index);
    for (int64_t first = 0; first < w->c; first += WF_CPU_CHUNK) {
        float room[WF_CPU_CHUNK];
        const int64_t c = wf_cpu_min(WF_CPU_CHUNK, w->c - first), at = i * w->c + first;
        float *const out = wf_cpu_place(args->y, at, c, false, room);
        if (w->kind == WF_POOL_MAX)
            max_window(w, v, args->x, image, first, c, out, places ? places + at : NULL);
        else
            average_window(w, v, args->x, image, first, c, out);
        wf_cpu_put(args->y, at, c, out);
    }
}

/* Output pixel i, whose window has real taps. */
static void forward_list(const windows *w, const window *v, const wf_pool_args *args, int64_t i, int64_t image,
                         tap_list *list)
{
    const float *const x = (const float *)args->x->data + image * w->c;
    float *const y = (float *)args->y->data + i * w->c;
    int32_t *const places = wf_cpu_data(args->index);
    list_taps(w, v, list);
    if (w->kind == WF_POOL_MAX)
        max_list(list, w->c, x, y, places ? places + i * w->c : NULL);
    else
        average_list(list, w->c, 1.0F / (float)v->divisor, x, y);
}

wf_status wf_cpu_pool_forward(wf_ctx *ctx, const wf_pool_args *args)
{
    const wf_array *const x = args->x, *const y = args->y;
    if (!wf_cpu_is_float(x) || !wf_cpu_is_float(y) || wf_array_count(x) == 0 || wf_array_count(y) == 0)
        return REF->pool_forward(ctx, args);
    const windows w = windows_of(args->geom, x, y);
    const int64_t rows = w.out[0] * w.out[1];
    const bool few = !args->geom->adaptive && w.taps <= LIST_MOST && x->dtype == WF_F32 && y->dtype == WF_F32;
/* A row of outputs belongs to one thread: it writes no other's, and shares the spans of its row. */
#pragma omp parallel for num_threads(wf_cpu_team(ctx, w.n *w.out_pixels *w.c *w.taps)) schedule(static)
    for (int64_t row = 0; row < w.n * rows; row++) {
        window v;
        tap_list list;
        list.full = list.count = 0;
        window_row(&w, &v, row % rows);
        for (int64_t o = 0; o < w.out[2]; o++) {
            window_move(&w, &v, o);
            if (few && v.count > 0)
                forward_list(&w, &v, args, row * w.out[2] + o, row / rows * w.in_pixels, &list);
            else
                forward_window(&w, &v, args, row * w.out[2] + o, row / rows * w.in_pixels);
        }
    }
    return WF_OK;
}

static void max_spread(int64_t c, int32_t pixel, const float *restrict dy, const int32_t *restrict index,
                       float *restrict dx)
{
#pragma omp simd
    for (int64_t i = 0; i < c; i++) {
        const float given = dy[i];
        dx[i] += index[i] == pixel ? given : 0.0F;
    }
}

static void average_spread(int64_t c, float scale, const float *restrict dy, float *restrict dx)
{
#pragma omp simd
    for (int64_t i = 0; i < c; i++)
        dx[i] = wf_fma(dy[i], scale, dx[i]);
}

/* One output pixel, of which dy's first element is `from`; `out` is the gradient of its sample. */
static void spread_window(const windows *w, const window *v, const wf_pool_args *args, int64_t from, float *out)
{
    float room[WF_CPU_CHUNK];
    const float scale = v->divisor > 0 ? 1.0F / (float)v->divisor : 0.0F;
    const int32_t *const index = wf_cpu_data(args->index);
    for (int64_t first = 0; first < w->c; first += WF_CPU_CHUNK) {
        const int64_t c = wf_cpu_min(WF_CPU_CHUNK, w->c - first), at = from + first;
        const float *const in = wf_cpu_read(args->y, at, c, room);
        tap t = tap_first(w, v);
        for (int64_t i = 0; i < v->count; i++, tap_next(w, v, &t)) {
            float *const under = out + t.pixel * w->c + first;
            if (w->kind == WF_POOL_MAX)
                max_spread(c, (int32_t)t.pixel, in, index + at, under);
            else
                average_spread(c, scale, in, under);
        }
    }
}

/* Sample n: windows may overlap, so it belongs to one thread. `out` is its gradient. */
static void spread_sample(const windows *w, int64_t n, const wf_pool_args *args, float *out)
{
    window v;
    for (int64_t row = 0; row < w->out[0] * w->out[1]; row++) {
        window_row(w, &v, row);
        for (int64_t o = 0; o < w->out[2]; o++) {
            window_move(w, &v, o);
            spread_window(w, &v, args, (n * w->out_pixels + row * w->out[2] + o) * w->c, out);
        }
    }
}

/* --- backward of windows that are few over a pixel, in f32 ---------------------------------------------------------
 */

/* Windows over a pixel: outputs of a sample, in their order, and what an average multiplies by. */
typedef struct cover {
    int64_t count, output[LIST_MOST];
    float scale[LIST_MOST];
} cover;

/* Outputs [lo, hi) along dimension d whose windows have input i. */
static wf_range covers_of(const windows *w, int d, int64_t i)
{
    const int64_t place = i + w->lo[d], before = place - w->kernel[d] + 1;
    return (wf_range){before > 0 ? (before + w->stride[d] - 1) / w->stride[d] : 0,
                      wf_cpu_min(place / w->stride[d] + 1, w->out[d])};
}

/* The windows that have `last` along the last dimension and r[0] and r[1] along the others. */
static void find_cover(const windows *w, const wf_range r[2], wf_range last, cover *found)
{
    found->count = 0;
    for (int64_t a = r[0].lo; a < r[0].hi; a++)
        for (int64_t b = r[1].lo; b < r[1].hi; b++)
            for (int64_t o = last.lo; o < last.hi; o++)
                found->output[found->count++] = (a * w->out[1] + b) * w->out[2] + o;
    for (int64_t k = 0; k < found->count && w->kind != WF_POOL_MAX; k++) {
        window v;
        window_row(w, &v, found->output[k] / w->out[2]);
        window_move(w, &v, found->output[k] % w->out[2]);
        found->scale[k] = v.divisor > 0 ? 1.0F / (float)v.divisor : 0.0F;
    }
}

static void max_gather(const cover *from, int64_t c, int32_t pixel, const float *dy, const int32_t *index, bool add,
                       float *dx)
{
    int64_t i = 0;
    for (; i + PACK <= c; i += PACK) {
        pack sum = add ? pack_load(dx + i) : (pack){0};
        for (int64_t k = 0; k < from->count; k++) {
            pack_mask here;
            memcpy(&here, index + from->output[k] * c + i, sizeof here);
            sum += (pack)((here == pixel) & (pack_mask)pack_load(dy + from->output[k] * c + i));
        }
        pack_store(dx + i, sum);
    }
    for (; i < c; i++) {
        float sum = add ? dx[i] : 0;
        for (int64_t k = 0; k < from->count; k++)
            sum += index[from->output[k] * c + i] == pixel ? dy[from->output[k] * c + i] : 0.0F;
        dx[i] = sum;
    }
}

static void average_gather(const cover *from, int64_t c, const float *dy, bool add, float *dx)
{
    int64_t i = 0;
    for (; i + PACK <= c; i += PACK) {
        pack sum = add ? pack_load(dx + i) : (pack){0};
        for (int64_t k = 0; k < from->count; k++)
            sum = pack_scaled(from->scale[k], pack_load(dy + from->output[k] * c + i), sum);
        pack_store(dx + i, sum);
    }
    for (; i < c; i++) {
        float sum = add ? dx[i] : 0;
        for (int64_t k = 0; k < from->count; k++)
            sum = wf_fma(dy[from->output[k] * c + i], from->scale[k], sum);
        dx[i] = sum;
    }
}

/* Returns true if the windows over a pixel are an interval of outputs along each dimension, and have a list. */
static bool covers_are_few(const windows *w)
{
    int64_t most = 1;
    for (int d = 0; d < 3; d++) {
        if (w->dilation[d] != 1 || w->lo[d] < 0 || w->hi[d] < 0)
            return false;
        most *= (w->kernel[d] + w->stride[d] - 1) / w->stride[d];
    }
    return !w->geom->adaptive && most <= LIST_MOST;
}

/* Row `row` of dx of all samples. */
static void gather_row(const windows *w, int64_t row, const wf_pool_args *args)
{
    const int64_t rows = w->in[0] * w->in[1], n = row / rows, here = row % rows, outputs = n * w->out_pixels * w->c;
    const wf_range over[2] = {covers_of(w, 0, here / w->in[1]), covers_of(w, 1, here % w->in[1])};
    const float *const dy = (const float *)args->y->data + outputs;
    const int32_t *const places = wf_cpu_data(args->index), *const index = places ? places + outputs : NULL;
    cover from;
    wf_range known = {-1, -1};
    from.count = 0;
    for (int64_t i = 0; i < w->in[2]; i++) {
        float *const dx = (float *)args->x->data + (row * w->in[2] + i) * w->c;
        const wf_range last = covers_of(w, 2, i);
        /* Neighbours mostly lie under the same windows. */
        if (last.lo != known.lo || last.hi != known.hi)
            find_cover(w, over, last, &from);
        known = last;
        if (w->kind == WF_POOL_MAX)
            max_gather(&from, w->c, (int32_t)(here * w->in[2] + i), dy, index, args->accumulate, dx);
        else
            average_gather(&from, w->c, dy, args->accumulate, dx);
    }
}

/* Sums of 16 bits are made in f32, a sample's at a time for each thread. */
wf_status wf_cpu_pool_backward(wf_ctx *ctx, const wf_pool_args *args)
{
    const wf_array *const dy = args->y, *const dx = args->x;
    if (!wf_cpu_is_float(dy) || !wf_cpu_is_float(dx) || wf_array_count(dx) == 0 || wf_array_count(dy) == 0)
        return REF->pool_backward(ctx, args);
    const windows w = windows_of(args->geom, dx, dy);
    const int64_t image = w.in_pixels * w.c;
    const int team = wf_cpu_team(ctx, w.n * image);
    if (dy->dtype == WF_F32 && dx->dtype == WF_F32 && covers_are_few(&w)) {
#pragma omp parallel for num_threads(team) schedule(static)
        for (int64_t row = 0; row < w.n * w.in[0] * w.in[1]; row++)
            gather_row(&w, row, args);
        return WF_OK;
    }
    const size_t bytes = wf_cpu_is_narrow(dx) ? (size_t)(team * image) * sizeof(float) : 0;
    void *room = NULL;
    WF_TRY(wf_pool_take(ctx, bytes, &room));
#pragma omp parallel for num_threads(team) schedule(static)
    for (int64_t n = 0; n < w.n; n++) {
        /* For narrow gradients the room holds the f32 sums of the sample that this thread is at. */
        float *const own = room ? (float *)room + omp_get_thread_num() * image : NULL;
        float *const out = wf_cpu_place(dx, n * image, image, args->accumulate, own);
        if (!args->accumulate)
            memset(out, 0, (size_t)image * sizeof *out);
        spread_sample(&w, n, args, out);
        wf_cpu_put(dx, n * image, image, out);
    }
    wf_pool_give(ctx, room, bytes);
    return WF_OK;
}
