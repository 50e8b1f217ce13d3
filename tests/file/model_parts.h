/* A model that is trained whole, or cut into stages, in any division of the ranks. */
#ifndef WF_TESTS_FILE_MODEL_PARTS_H
#define WF_TESTS_FILE_MODEL_PARTS_H

#include "core/param_author.h"
#include "layers/layers.h"
#include "layers/pipeline.h"
#include "optim/multi_node.h"
#include "tests/file/folder.h"

enum { PARTS_IN = 6, PARTS_CLASSES = 4 };

typedef struct form {
    const char *name;
    int ranks;
    wf_mesh_opts mesh; /* data 0: what remains */
    bool whole;        /* not cut, however many stages */
    bool interleaved;
    bool sharded_state;
} form;

typedef struct parted {
    const form *f;
    wf_comm *comm;
    wf_mesh *mesh;
    wf_pipeline *pipe; /* NULL: whole */
    wf_layer *model;
} parted;

static inline wf_layer *parts_linear(const wf_mesh *mesh, int64_t in, int64_t out)
{
    const wf_linear_opts opts = {.in = in, .out = out, .replicate = true};
    return wf_mesh_size(mesh, WF_AXIS_CHANNEL) > 1 ? wf_channel_linear(mesh, opts) : wf_linear(ctx, opts);
}

/* Eight layers with parameters, two of them in a chain of their own. The seventh one has the weights of the first.
 * norms: two of them are normalisations; else dense layers. */
static inline wf_layer *parts_chain(const wf_mesh *mesh, bool norms)
{
    const wf_batchnorm_opts norm = {.channels = 8, .eps = 0.5, .decay = 0.7};
    wf_layer *inner = wf_sequential(ctx, WF_LAYERS(parts_linear(mesh, 6, 8), parts_linear(mesh, 8, 8)));
    wf_layer *model = wf_layer_named(
        wf_sequential(
            ctx, WF_LAYERS(parts_linear(mesh, PARTS_IN, 8), norms ? wf_batchnorm(ctx, norm) : parts_linear(mesh, 8, 8),
                           wf_lambda(ctx, wf_tanh), parts_linear(mesh, 8, 6), inner,
                           norms ? wf_batchnorm(ctx, norm) : parts_linear(mesh, 8, 8), parts_linear(mesh, 8, 6),
                           wf_lambda(ctx, wf_tanh), parts_linear(mesh, 6, 8), parts_linear(mesh, 8, PARTS_CLASSES))),
        "net");
    WF_EXPECT_OK(wf_layer_tie(model, "8/W", "0/W"));
    return model;
}

static inline parted parts_open(const form *f, wf_comm *over, bool norms)
{
    parted p = {.f = f, .comm = over, .mesh = wf_mesh_open(over, f->mesh)};
    WF_EXPECT(p.mesh, "%s: %s", f->name, wf_error_trail());
    p.model = parts_chain(p.mesh, norms);
    const wf_pipeline_opts opts = {.loss = wf_mean_cross_entropy,
                                   .chunks = 2,
                                   .schedule = f->interleaved ? WF_PIPELINE_INTERLEAVED : WF_PIPELINE_1F1B};
    if (f->whole)
        return p;
    p.pipe = wf_pipeline_new(p.mesh, p.model, opts);
    WF_EXPECT(p.pipe, "%s: %s", f->name, wf_error_trail());
    p.model = wf_pipeline_model(p.pipe);
    return p;
}

static inline void parts_close(parted *p)
{
    if (p->pipe)
        wf_pipeline_free(p->pipe);
    else
        wf_layer_free(p->model);
    wf_mesh_close(p->mesh);
}

#endif
