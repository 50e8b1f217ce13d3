/* A batch whose samples the ranks along a mesh's data axis share. */
#ifndef WF_TESTS_FILE_BATCH_H
#define WF_TESTS_FILE_BATCH_H

#include "comm/mesh.h"
#include "tests/test.h"

#include <math.h>
#include <stdlib.h>

/* This rank's samples of a batch of `shape`, f64, and their labels, both with their layouts. Equal in every call. */
static inline void batch_open(const wf_mesh *mesh, wf_shape shape, int64_t classes, wf_tensor **x, wf_tensor **labels)
{
    const int64_t samples = shape.dim[0], each = wf_shape_count(shape) / samples;
    double *host = malloc((size_t)(samples * each) * sizeof *host);
    int64_t *label = malloc((size_t)samples * sizeof *label), lo, hi;
    wf_block(samples, wf_mesh_size(mesh, WF_AXIS_DATA), wf_mesh_rank(mesh, WF_AXIS_DATA), &lo, &hi);
    for (int64_t i = lo * each; i < hi * each; i++)
        host[i - lo * each] = sin(0.7 * (double)i) + 0.2 * cos(0.11 * (double)i);
    for (int64_t i = lo; i < hi; i++)
        label[i - lo] = (i * i + 1) % classes;
    wf_ctx *ctx = wf_comm_ctx(wf_mesh_world(mesh));
    wf_shape own = shape;
    own.dim[0] = hi - lo;
    *x = wf_tensor_from_host(ctx, WF_F64, own, host);
    *labels = wf_tensor_from_host(ctx, WF_I64, WF_SHAPE(hi - lo), label);
    const wf_layout_opts dim = {.dim = {[WF_AXIS_DATA] = WF_DIM(0)}};
    wf_layout layout;
    WF_EXPECT_OK(wf_mesh_layout(mesh, shape, dim, &layout));
    WF_EXPECT_OK(wf_tensor_set_layout(*x, layout));
    WF_EXPECT_OK(wf_mesh_layout(mesh, WF_SHAPE(samples), dim, &layout));
    WF_EXPECT_OK(wf_tensor_set_layout(*labels, layout));
    free(host);
    free(label);
}

#endif
