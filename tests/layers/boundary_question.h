/* Layers whose inputs go on beyond the edges, drawn at random, and what they compute by a formula for each element. */
#ifndef WF_TESTS_LAYERS_BOUNDARY_QUESTION_H
#define WF_TESTS_LAYERS_BOUNDARY_QUESTION_H

#include "tests/comm/boundary_formula.h"
#include "tests/layers/mesh_fixture.h"

/* --- drawing --------------------------------------------------------------------------------------------------------
 */

static inline wf_boundary *boundary_of(geometry *g)
{
    return g->kind <= TRANSPOSE ? &g->conv.boundary : g->kind == UPSAMPLE ? &g->upsample.boundary : &g->pool.boundary;
}

static inline int64_t scale_of(const geometry *g, int d)
{
    return g->upsample.scale_nd[d];
}

static inline int64_t outputs_of(const geometry *g, int d)
{
    return g->kind == UPSAMPLE ? g->length[d] * scale_of(g, d) : outputs(g, d);
}

static inline wf_shape whole_of(const geometry *g)
{
    wf_shape whole = {.rank = g->nd + 2, .dim = {g->n, g->conv.in}};
    memcpy(whole.dim + 2, g->length, (size_t)g->nd * sizeof *g->length);
    return whole;
}

static inline wf_shape result_of(const geometry *g)
{
    wf_shape y = whole_of(g);
    y.dim[1] = g->kind <= TRANSPOSE ? g->conv.out : g->conv.in;
    for (int d = 0; d < g->nd; d++)
        y.dim[2 + d] = outputs_of(g, d);
    return y;
}

/* The elements that outputs [lo, hi) read, beyond the edges too, between the first and the last of them. */
static inline wf_range far_reads(const geometry *g, int d, int64_t lo, int64_t hi)
{
    const wf_boundary *b = boundary_of((geometry *)g);
    const int64_t length = g->length[d], s = g->conv.stride_nd[d], p = g->conv.pad_lo_nd[d];
    const int64_t extent = g->conv.dilation_nd[d] * (g->conv.kernel_nd[d] - 1) + 1;
    wf_range r = {s * lo - p, s * (hi - 1) - p + extent};
    if (lo >= hi)
        return (wf_range){0, 0};
    if (g->kind == TRANSPOSE) {
        const int64_t first = lo + p - extent + 1, last = hi - 1 + p;
        r.lo = first >= 0 ? (first + s - 1) / s : -(-first / s);
        r.hi = (last >= 0 ? last / s : -((-last + s - 1) / s)) + 1;
    } else if (g->kind == UPSAMPLE) {
        const int64_t u = scale_of(g, d);
        const bool beyond = g->upsample.mode == WF_UPSAMPLE_LINEAR && !g->upsample.align_corners && u > 1;
        r = (wf_range){sources(g, d, lo, length).lo, sources(g, d, hi - 1, length).hi};
        r.lo = beyond && 2 * lo + 1 < u ? -1 : r.lo;
        r.hi = beyond && 2 * (length * u - hi) + 1 < u ? length + 1 : r.hi;
    } else if (r.hi > length + g->conv.pad_hi_nd[d])
        r.hi = length + g->conv.pad_hi_nd[d]; /* of a window that a rounded length adds */
    if (formula_edge(b, 2 + d, false) == WF_EDGE_DEFAULT)
        r.lo = r.lo < 0 ? 0 : r.lo;
    if (formula_edge(b, 2 + d, true) == WF_EDGE_DEFAULT)
        r.hi = r.hi > length ? length : r.hi;
    return r.lo < r.hi ? r : (wf_range){0, 0};
}

/* The boundary is defined as far as the outputs read. */
static inline bool question_holds(const geometry *g)
{
    const wf_boundary *b = boundary_of((geometry *)g);
    const int turned = b->turned ? b->turned - 1 : g->nd + 1;
    for (int d = 0; d < g->nd; d++) {
        const wf_range r = far_reads(g, d, 0, outputs_of(g, d));
        const bool circular =
            formula_edge(b, 2 + d, false) == WF_EDGE_CIRCULAR || formula_edge(b, 2 + d, true) == WF_EDGE_CIRCULAR;
        if (-r.lo > formula_most(b, 2 + d, false, g->length[d], 1 << 20) ||
            r.hi - g->length[d] > formula_most(b, 2 + d, true, g->length[d], 1 << 20))
            return false;
        if (g->kind == TRANSPOSE && circular && outputs(g, d) != g->conv.stride_nd[d] * g->length[d])
            return false;
        if (2 + d == turned)
            continue;
        if ((r.lo < 0 && formula_edge(b, 2 + d, false) == WF_EDGE_POLE) ||
            (r.hi > g->length[d] && formula_edge(b, 2 + d, true) == WF_EDGE_POLE))
            if (g->length[turned - 2] % 2 != 0)
                return false;
    }
    return true;
}

/* Edges of every kind, mixed; every third with a pole where there are two dimensions. */
static inline void draw_boundary(geometry *g, test_rng *rng)
{
    static const int64_t channels[] = {0, 2};
    wf_boundary *b = boundary_of(g);
    *b = (wf_boundary){.edge = (wf_edge)test_int(rng, WF_EDGE_DEFAULT, WF_EDGE_REPLICATE),
                       .value = (double)test_int(rng, -3, 3)};
    for (int d = 2; d < 2 + g->nd; d++) {
        b->lo[d] = (wf_edge)test_int(rng, WF_EDGE_DEFAULT, WF_EDGE_REPLICATE);
        b->hi[d] = test_int(rng, 0, 1) ? b->lo[d] : (wf_edge)test_int(rng, WF_EDGE_DEFAULT, WF_EDGE_REPLICATE);
    }
    if (g->nd < 2 || test_int(rng, 0, 2) > 0)
        return;
    const int pole = 2 + (int)test_int(rng, 0, g->nd - 1);
    const int turned = 2 + (pole - 2 + 1 + (int)test_int(rng, 0, g->nd - 2)) % g->nd;
    b->turned = turned == g->nd + 1 && test_int(rng, 0, 1) ? 0 : WF_DIM(turned);
    b->lo[turned] = b->hi[turned] = WF_EDGE_CIRCULAR;
    b->row_on_pole = test_int(rng, 0, 1);
    g->length[turned - 2] += g->length[turned - 2] % 2;
    b->lo[pole] = test_int(rng, 0, 3) ? WF_EDGE_POLE : b->lo[pole];
    b->hi[pole] = test_int(rng, 0, 3) ? WF_EDGE_POLE : b->hi[pole];
    if (b->lo[pole] != WF_EDGE_POLE && b->hi[pole] != WF_EDGE_POLE)
        b->lo[pole] = WF_EDGE_POLE;
    b->negated = channels;
    b->n_negated = g->conv.in > 2 ? (int)test_int(rng, 0, 2) : (int)test_int(rng, 0, 1);
}

/* A layer of this kind that the boundary suits, or, every 16th time, does not. */
static inline geometry draw_question(kind what, test_rng *rng)
{
    geometry g;
    for (;;) {
        if (!draw(&g, what, rng))
            continue;
        for (int d = 0; d < g.nd && what == TRANSPOSE && test_int(rng, 0, 3); d++) {
            /* Outputs are stride times the inputs, as a circular dimension wants it. */
            wf_conv_opts *o = &g.conv;
            const int64_t cut = o->dilation_nd[d] * (o->kernel_nd[d] - 1) + 1 - o->stride_nd[d];
            o->output_pad_nd[d] = 0;
            o->pad_lo_nd[d] = cut > 0 ? test_int(rng, 0, cut) : 0;
            o->pad_hi_nd[d] = cut - o->pad_lo_nd[d];
        }
        draw_boundary(&g, rng);
        bool any = true;
        for (int d = 0; d < g.nd && g.kind != UPSAMPLE; d++)
            any = any && outputs(&g, d) > 0;
        if (any && (question_holds(&g) || test_int(rng, 0, 15) == 0))
            return g;
    }
}

/* --- the formula ----------------------------------------------------------------------------------------------------
 */

/* Tells about one element that an output reads: its place in x and its weight; -1: the boundary's value. */
typedef struct reading {
    int64_t y, x, w; /* places of the output, of the source, and of the filter's element */
    double weight;   /* of the source, beside the filter's */
} reading;
typedef void reader(void *own, const reading *r);

static inline bool step_on(int nd, const int64_t *end, int64_t *at)
{
    for (int d = nd - 1; d >= 0; d--) {
        if (++at[d] < end[d])
            return true;
        at[d] = 0;
    }
    return false;
}

static inline int64_t place_in(wf_shape shape, const int64_t *at)
{
    int64_t place = 0;
    for (int d = 0; d < shape.rank; d++)
        place = place * shape.dim[d] + at[d];
    return place;
}

/* Returns false where nothing is: beyond a default edge. */
static inline bool look(const geometry *g, const int64_t *at, reading *r)
{
    const wf_boundary *b = boundary_of((geometry *)g);
    const wf_shape whole = whole_of(g);
    int64_t source[WF_MAX_RANK];
    for (int d = 0; d < g->nd; d++)
        if ((at[2 + d] < 0 || at[2 + d] >= g->length[d]) && formula_edge(b, 2 + d, at[2 + d] >= 0) == WF_EDGE_DEFAULT)
            return false;
    const int sign = formula_source(whole, b, at, source);
    r->x = sign ? place_in(whole, source) : -1;
    r->weight = sign ? sign : b->value;
    return true;
}

/* The input's element that tap t of an output reads; false: none. */
static inline bool tapped(const geometry *g, int d, int64_t o, int64_t t, int64_t *i)
{
    const int64_t s = g->conv.stride_nd[d], l = g->conv.dilation_nd[d], p = g->conv.pad_lo_nd[d];
    if (g->kind != TRANSPOSE) {
        *i = s * o - p + l * t;
        return *i < g->length[d] + g->conv.pad_hi_nd[d]; /* of a window that a rounded length adds */
    }
    *i = (o + p - l * t) / s;
    const int64_t rest = (o + p - l * t) % s;
    return rest == 0;
}

/* Every element that the output at[] (samples, channels, pixels) reads of input channel c. */
static inline void read_window(const geometry *g, const int64_t *at, int64_t c, int64_t w, reader *visit, void *own,
                               reading *r)
{
    int64_t t[3] = {0}, from[WF_MAX_RANK] = {at[0], c};
    int64_t tap = 0;
    do {
        bool there = true;
        for (int d = 0; d < g->nd; d++)
            there = tapped(g, d, at[2 + d], t[d], &from[2 + d]) && there;
        r->w = w + tap++;
        if (there && look(g, from, r))
            visit(own, r);
    } while (step_on(g->nd, g->conv.kernel_nd, t));
}

/* Reads for an interpolation: between the pixel at or before a place and the next one; default edges take the last
 * pixel. */
static inline void read_between(const geometry *g, const int64_t *at, reader *visit, void *own, reading *r)
{
    const wf_boundary *b = boundary_of((geometry *)g);
    const int64_t two[3] = {2, 2, 2};
    int64_t k[3] = {0};
    do {
        int64_t from[WF_MAX_RANK] = {at[0], at[1]};
        double weight = 1;
        for (int d = 0; d < g->nd; d++) {
            const int64_t u = scale_of(g, d), o = at[2 + d], length = g->length[d];
            double place = (double)(o / u);
            if (g->upsample.mode == WF_UPSAMPLE_LINEAR)
                place = !g->upsample.align_corners ? ((double)o + 0.5) / (double)u - 0.5
                        : length * u > 1           ? (double)(o * (length - 1)) / (double)(length * u - 1)
                                                   : 0;
            int64_t i = (int64_t)floor(place) + k[d];
            weight *= k[d] ? place - floor(place) : 1 - (place - floor(place));
            if (i < 0 && formula_edge(b, 2 + d, false) == WF_EDGE_DEFAULT)
                i = 0;
            if (i >= length && formula_edge(b, 2 + d, true) == WF_EDGE_DEFAULT)
                i = length - 1;
            from[2 + d] = i;
        }
        if (weight != 0 && look(g, from, r)) {
            r->weight *= weight;
            visit(own, r);
        }
    } while (step_on(g->nd, two, k));
}

static inline void read_output(const geometry *g, const int64_t *at, reader *visit, void *own)
{
    reading r = {.y = place_in(result_of(g), at)};
    const int64_t in = g->conv.in, out = g->conv.out, groups = g->conv.groups;
    int64_t taps = 1;
    for (int d = 0; d < g->nd; d++)
        taps *= g->conv.kernel_nd[d];
    if (g->kind == UPSAMPLE)
        read_between(g, at, visit, own, &r);
    else if (g->kind > TRANSPOSE)
        read_window(g, at, at[1], 0, visit, own, &r);
    else
        for (int64_t k = 0; k < in / groups; k++) {
            const int64_t c = at[1] / (out / groups) * (in / groups) + k;
            const int64_t w = g->kind == CONV ? at[1] * (in / groups) + k : c * (out / groups) + at[1] % (out / groups);
            read_window(g, at, c, w * taps, visit, own, &r);
        }
}

/* y of x, and the gradients of a dy. Arrays in logical order. */
typedef struct answer {
    const double *x, *w, *b, *dy; /* b NULL: none */
    double *y, *dx, *dw, *db;
    /* the output at hand */
    double best, sum;
    int64_t found, source, sign;
    bool back;
} answer;

static inline void answer_linear(void *own, const reading *r)
{
    answer *a = own;
    const double x = r->x < 0 ? 1 : a->x[r->x], w = a->w ? a->w[r->w] : 1;
    a->found++;
    if (!a->back) {
        a->sum += w * r->weight * x;
        return;
    }
    if (r->x >= 0)
        a->dx[r->x] += w * r->weight * a->best;
    if (a->dw)
        a->dw[r->w] += r->weight * x * a->best;
}

/* The first of equals. */
static inline void answer_max(void *own, const reading *r)
{
    answer *a = own;
    const double v = r->x < 0 ? r->weight : r->weight * a->x[r->x];
    if (a->found++ > 0 && v <= a->best)
        return;
    a->best = v;
    a->source = r->x;
    a->sign = r->weight < 0 ? -1 : 1;
}

/* What an average divides by: elements that are there, and zeros of default edges where they count. */
static inline double divisor_of(const geometry *g, const int64_t *at, int64_t found)
{
    int64_t t[3] = {0}, n = 0, i;
    if (!g->pool.count_include_pad)
        return (double)found;
    do {
        bool padded = true;
        for (int d = 0; d < g->nd; d++)
            padded = tapped(g, d, at[2 + d], t[d], &i) && padded;
        n += padded;
    } while (step_on(g->nd, g->conv.kernel_nd, t));
    return (double)n;
}

static inline void answer_output(const geometry *g, const int64_t *at, answer *a)
{
    const int64_t y = place_in(result_of(g), at);
    a->found = 0;
    a->sum = 0;
    a->back = false;
    if (g->kind == MAX_POOL) {
        read_output(g, at, answer_max, a);
        a->y[y] = a->found ? a->best : -INFINITY;
        if (a->found && a->source >= 0)
            a->dx[a->source] += (double)a->sign * a->dy[y];
        return;
    }
    read_output(g, at, answer_linear, a);
    const double divisor = g->kind == AVG_POOL ? divisor_of(g, at, a->found) : 1;
    double v = divisor > 0 ? a->sum / divisor : 0;
    v += a->b ? a->b[at[1]] : 0;
    const bool off = g->kind <= TRANSPOSE && g->conv.act == WF_ACT_RELU && v <= 0;
    a->y[y] = off ? 0 : v;
    a->best = off || divisor == 0 ? 0 : a->dy[y] / divisor;
    if (a->db)
        a->db[at[1]] += a->best;
    a->back = true;
    read_output(g, at, answer_linear, a);
}

static inline void answer_all(const geometry *g, answer *a)
{
    const wf_shape y = result_of(g);
    int64_t at[WF_MAX_RANK] = {0};
    if (wf_shape_count(y) > 0)
        do
            answer_output(g, at, a);
        while (step_on(y.rank, y.dim, at));
}

#endif
