/* Layers and inputs of the spatial equality test: what they are, in words, and at random. */
#ifndef WF_TESTS_SPATIAL_GEOMETRY_H
#define WF_TESTS_SPATIAL_GEOMETRY_H

#include "core/window.h"
#include "layers/layers.h"
#include "tests/test.h"

#include <stdio.h>
#include <string.h>

typedef enum kind { CONV, TRANSPOSE, MAX_POOL, AVG_POOL, UPSAMPLE, RESIZE, GLOBAL_MAX, GLOBAL_AVG, KINDS } kind;

typedef struct geometry {
    const char *name;
    kind kind;
    int nd;
    int64_t n, length[3];
    wf_conv_opts conv;
    wf_pool_opts pool;
    wf_upsample_opts upsample;
    wf_resize_opts resize;
    bool largest; /* RESIZE by area: the adaptive maximum */
} geometry;

static inline void describe(char *text, size_t size, const geometry *g, wf_mesh_opts grid)
{
    int at = snprintf(text, size, "%s kind %d %dd n %d on %dx%dx%dx%dx%d:", g->name, (int)g->kind, g->nd, (int)g->n,
                      grid.data, grid.channel, grid.depth, grid.height, grid.width);
    for (int d = 0; d < g->nd && at < (int)size; d++)
        at += snprintf(text + at, size - (size_t)at, " L%d", (int)g->length[d]);
    for (int d = 0; d < g->nd && at < (int)size; d++) {
        const wf_conv_opts *o = &g->conv;
        const wf_pool_opts *p = &g->pool;
        const bool pool = g->kind > TRANSPOSE;
        at += snprintf(text + at, size - (size_t)at, " (k%d s%d d%d p%d,%d)",
                       (int)(pool ? p->kernel_nd : o->kernel_nd)[d], (int)(pool ? p->stride_nd : o->stride_nd)[d],
                       (int)(pool ? p->dilation_nd : o->dilation_nd)[d], (int)(pool ? p->pad_lo_nd : o->pad_lo_nd)[d],
                       (int)(pool ? p->pad_hi_nd : o->pad_hi_nd)[d]);
    }
    if (g->kind <= TRANSPOSE && at < (int)size)
        snprintf(text + at, size - (size_t)at, " %d->%d", (int)g->conv.in, (int)g->conv.out);
}

static inline int64_t outputs(const geometry *g, int d)
{
    const int64_t *k = g->conv.kernel_nd, *s = g->conv.stride_nd, *l = g->conv.dilation_nd;
    const wf_window w = {k[d], s[d], l[d], g->conv.pad_lo_nd[d], g->conv.pad_hi_nd[d]};
    if (g->kind == TRANSPOSE)
        return (g->length[d] - 1) * w.stride - w.pad_lo - w.pad_hi + wf_window_extent(w) + g->conv.output_pad_nd[d];
    return wf_window_outputs(w, g->length[d], g->pool.ceil_mode);
}

static inline void draw_resize(geometry *g, test_rng *rng)
{
    wf_resize_opts *o = &g->resize;
    o->mode = (wf_resize_mode)test_int(rng, 0, 3);
    o->antialias = (o->mode == WF_RESIZE_LINEAR || o->mode == WF_RESIZE_CUBIC) && test_int(rng, 0, 1);
    if (o->mode != WF_RESIZE_AREA && !o->antialias)
        o->places = (wf_resize_places)test_int(rng, 0, 3);
    for (int d = 0; d < g->nd; d++)
        o->size[d] = test_int(rng, 0, 2 * g->length[d]);
    g->largest = o->mode == WF_RESIZE_AREA && test_int(rng, 0, 1);
}

static inline bool draw(geometry *g, kind what, test_rng *rng)
{
    *g = (geometry){.name = "random", .kind = what, .nd = (int)test_int(rng, 1, 3)};
    const bool pool = g->kind == MAX_POOL || g->kind == AVG_POOL;
    wf_conv_opts *o = &g->conv;
    g->n = test_int(rng, 0, 9) == 0 ? 0 : test_int(rng, 1, 3);
    g->pool.ceil_mode = pool && test_int(rng, 0, 1);
    g->pool.count_include_pad = test_int(rng, 0, 1);
    o->groups = test_int(rng, 0, 3) == 0 ? 2 : 1;
    o->in = o->groups * test_int(rng, 1, 3);
    o->out = o->groups * test_int(rng, 1, 3);
    o->no_bias = test_int(rng, 0, 2) == 0;
    o->act = test_int(rng, 0, 3) == 0 ? WF_ACT_RELU : WF_ACT_NONE;
    g->upsample = (wf_upsample_opts){.mode = (wf_upsample_mode)test_int(rng, 0, 1)};
    g->upsample.align_corners = g->upsample.mode == WF_UPSAMPLE_LINEAR && test_int(rng, 0, 1);
    for (int d = 0; d < g->nd; d++) {
        g->length[d] = test_int(rng, 1, g->nd == 1 ? 40 : g->nd == 2 ? 14 : 7);
        o->kernel_nd[d] = test_int(rng, 1, 7);
        o->stride_nd[d] = test_int(rng, 1, 3);
        o->dilation_nd[d] = test_int(rng, 1, 3);
        const int64_t most = pool ? (o->dilation_nd[d] * (o->kernel_nd[d] - 1) + 1) / 2 : o->kernel_nd[d] + 1;
        o->pad_lo_nd[d] = test_int(rng, 0, most);
        o->pad_hi_nd[d] = test_int(rng, 0, most);
        if (g->kind == TRANSPOSE && test_int(rng, 0, 1))
            o->output_pad_nd[d] = test_int(rng, 0, o->stride_nd[d] - 1);
        g->upsample.scale_nd[d] = test_int(rng, 1, 4);
        if (g->kind != UPSAMPLE && g->kind != RESIZE && outputs(g, d) < 1)
            return false;
    }
    if (g->kind == RESIZE)
        draw_resize(g, rng);
    memcpy(g->pool.kernel_nd, o->kernel_nd, sizeof o->kernel_nd);
    memcpy(g->pool.stride_nd, o->stride_nd, sizeof o->stride_nd);
    memcpy(g->pool.dilation_nd, o->dilation_nd, sizeof o->dilation_nd);
    memcpy(g->pool.pad_lo_nd, o->pad_lo_nd, sizeof o->pad_lo_nd);
    memcpy(g->pool.pad_hi_nd, o->pad_hi_nd, sizeof o->pad_hi_nd);
    return true;
}

#endif
