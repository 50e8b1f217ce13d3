/* How many elements a mesh convolution moves, all ranks together: sums over ranks of what they need and do not hold,
 * from the parts of the filter that they hold and from how x and y are cut. Knows nothing of plans and exchanges. */
#ifndef WF_TESTS_MESH_VOLUMES_H
#define WF_TESTS_MESH_VOLUMES_H

#include "tests/layers/mesh_fixture.h"

/* Channels of a rank of the channel axis. */
typedef struct channels {
    wf_range x, y;         /* that it computes with, and makes or adds to */
    wf_range has_x, has_y; /* that it holds */
} channels;

typedef struct moves {
    const wf_mesh *mesh;
    const geometry *g;
    const wf_layout *x, *y;
    int p; /* ranks of the channel axis */
    channels c[64];
    bool apart_x, apart_y; /* the ranks' parts follow each other */
} moves;

static inline int64_t length_of(wf_range r)
{
    return r.hi > r.lo ? r.hi - r.lo : 0;
}

static inline int64_t overlap(wf_range a, wf_range b)
{
    return length_of((wf_range){a.lo > b.lo ? a.lo : b.lo, a.hi < b.hi ? a.hi : b.hi});
}

static inline wf_range held_channels(const wf_layout *l, int rank)
{
    if (l->placement[WF_AXIS_CHANNEL] != WF_SHARDED)
        return (wf_range){0, l->global.dim[1]};
    return (wf_range){l->bounds[WF_AXIS_CHANNEL][rank], l->bounds[WF_AXIS_CHANNEL][rank + 1]};
}

/* What the layer's own filter says of this rank's channels, of all ranks. Collective. */
static inline moves moves_of(const wf_mesh *mesh, const geometry *g, const wf_layer *layer, const wf_layout *x,
                             const wf_layout *y)
{
    moves m = {.mesh = mesh, .g = g, .x = x, .y = y, .p = wf_mesh_size(mesh, WF_AXIS_CHANNEL)};
    const wf_box w = layer->params[0]->box;
    const int rows = g->kind == TRANSPOSE ? 0 : 1;
    const channels mine = {.x = {w.lo[rows], w.hi[rows]}, .y = {w.lo[1 - rows], w.hi[1 - rows]}};
    WF_EXPECT_OK(wf_allgather_bytes(wf_mesh_comm(mesh, WF_AXIS_BIT(WF_AXIS_CHANNEL)), &mine, sizeof mine, m.c));
    m.apart_x = m.apart_y = true;
    for (int r = 0; r < m.p; r++) {
        m.c[r].has_x = held_channels(x, r);
        m.c[r].has_y = held_channels(y, r);
        m.apart_x = m.apart_x && m.c[r].x.lo == (r ? m.c[r - 1].x.hi : 0);
        m.apart_y = m.apart_y && m.c[r].y.lo == (r ? m.c[r - 1].y.hi : 0);
    }
    m.apart_x = m.apart_x && m.c[m.p - 1].x.hi == x->global.dim[1];
    m.apart_y = m.apart_y && m.c[m.p - 1].y.hi == y->global.dim[1];
    return m;
}

typedef struct pixels {
    double has, needs, both;
} pixels;

/* Pixels summed over all places of the spatial axes: an element counts once for each place that has or needs it. */
static inline pixels pixels_of(const moves *m, bool back, const wf_layout *have, const wf_layout *want)
{
    pixels all = {1, 1, 1};
    for (int d = 0; d < m->g->nd; d++) {
        const int64_t length = have->global.dim[2 + d];
        int axis = -1;
        for (int a = WF_AXIS_DEPTH; a <= WF_AXIS_WIDTH; a++)
            if (have->placement[a] == WF_SHARDED && have->dim[a] == 2 + d)
                axis = a;
        pixels along = {0};
        for (int r = 0; r < (axis < 0 ? 1 : wf_mesh_size(m->mesh, (wf_axis)axis)); r++) {
            wf_range has = {0, length}, needs = has;
            if (axis >= 0) {
                has = (wf_range){have->bounds[axis][r], have->bounds[axis][r + 1]};
                needs = reads(m->g, back, d, (wf_range){want->bounds[axis][r], want->bounds[axis][r + 1]}, length);
            }
            along.has += (double)length_of(has);
            along.needs += (double)length_of(needs);
            along.both += (double)overlap(has, needs);
        }
        all.has *= along.has;
        all.needs *= along.needs;
        all.both *= along.both;
    }
    return all;
}

/* The words of a group that gather what they compute with, out of what they hold. */
static inline double gathered(const moves *m, bool y, double has)
{
    double sum = 0;
    for (int r = 0; r < m->p; r++) {
        const channels *c = &m->c[r];
        sum += (double)(y ? length_of(c->y) - overlap(c->y, c->has_y) : length_of(c->x) - overlap(c->x, c->has_x));
    }
    return sum * has;
}

/* What the ranks made goes to who holds it, where it is not a sum over all. */
static inline double put(const moves *m, bool y, double has)
{
    double sum = 0;
    for (int to = 0; to < m->p; to++)
        for (int from = 0; from < m->p; from++)
            if (to != from)
                sum += (double)(y ? overlap(m->c[from].y, m->c[to].has_y) : overlap(m->c[from].x, m->c[to].has_x));
    return sum * has;
}

/* What is held everywhere is a sum over all: an all-reduce in every group, as comm/comm.h counts it. */
static inline bool is_sum(const moves *m, bool y)
{
    return !(y ? m->apart_y : m->apart_x) && (y ? m->y : m->x)->placement[WF_AXIS_CHANNEL] != WF_SHARDED;
}

/* Bytes that the groups send for it. */
static inline double sum_bytes(const moves *m, bool y)
{
    const wf_layout *l = y ? m->y : m->x;
    double all = 0;
    for (int r = 0; r < wf_comm_size(run.comm); r++) {
        int place[WF_AXES];
        wf_mesh_place(m->mesh, r, place);
        if (place[WF_AXIS_CHANNEL] > 0)
            continue;
        wf_box box = wf_box_of_shape(l->global);
        for (int a = 0; a < WF_AXES; a++)
            if (l->placement[a] == WF_SHARDED) {
                box.lo[l->dim[a]] = l->bounds[a][place[a]];
                box.hi[l->dim[a]] = l->bounds[a][place[a] + 1];
            }
        const double bytes = (double)(wf_shape_count(wf_box_shape(box)) * (int64_t)wf_dtype_size(run.flows));
        all += bytes * (m->p - 1) * (bytes * m->p <= 32768 ? m->p : 2);
    }
    return all;
}

/* Bytes that go forward and backward, from all ranks together. */
static inline void predict(const moves *m, double *forward, double *backward)
{
    const bool back = m->g->kind == TRANSPOSE, sharded = m->x->placement[WF_AXIS_CHANNEL] == WF_SHARDED;
    const bool sum_x = is_sum(m, false), sum_y = is_sum(m, true);
    const pixels x = pixels_of(m, back, m->x, m->y), y = pixels_of(m, !back, m->y, m->x);
    const double size = (double)(m->g->n * (int64_t)wf_dtype_size(run.flows));
    double width_x = 0, width_y = 0, in = 0;
    for (int r = 0; r < m->p; r++) {
        width_x += (double)length_of(m->c[r].x);
        width_y += (double)length_of(m->c[r].y);
        in += (double)length_of(m->c[r].x) * x.needs - (double)overlap(m->c[r].x, m->c[r].has_x) * x.both;
    }
    const double dy_halo = x.needs > x.both ? width_y * (y.needs - y.both) : 0, halo = width_x * (x.needs - x.both);
    const double into = sum_x ? sum_bytes(m, false) : put(m, false, x.has) * size;
    *forward = in * size + (sum_y ? sum_bytes(m, true) : put(m, true, y.has) * size);
    *backward = gathered(m, true, y.has) * size;
    if (wf_config_get()->deterministic || dy_halo <= halo)
        *backward += dy_halo * size + into;
    else
        *backward += in * size + (sharded ? 0 : into);
}

#endif
