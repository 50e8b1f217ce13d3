/* Models whose fastest plan is known by construction, and a machine whose times are given by a formula. */
#ifndef WF_TESTS_OPTIM_PLANNER_MODELS_H
#define WF_TESTS_OPTIM_PLANNER_MODELS_H

#include "layers/layers.h"
#include "optim/planner_author.h"
#include "tests/test.h"

#include <math.h>

static wf_ctx *ctx;

/* --- a meter of operations --------------------------------------------------------------------------------------- */

#define OPERATION_S 1e-9

static inline double operations(const wf_planner_leaf *leaf, wf_shape x, double in, double out)
{
    const wf_part_info *i = &leaf->info;
    double pixels = (double)x.dim[0], window = 1;
    for (int d = 2; d < x.rank; d++)
        pixels *= (double)x.dim[d];
    for (int d = 0; d < i->nd; d++)
        window *= (double)i->window[d].kernel;
    if (i->kind == WF_PART_CONV)
        return pixels * (double)i->in / in * (double)i->out / out * window;
    if (i->kind == WF_PART_LINEAR)
        return (double)x.dim[0] * (double)i->in / in * (double)i->out / out;
    return (double)wf_shape_count(x) * 0.1;
}

static inline wf_status step_of(void *own, const wf_planner_model *m, int64_t batch, wf_planner_times *t)
{
    const double kept = *(const double *)own;
    t->batch = batch;
    t->forward_s = t->backward_s = t->kept = t->fixed = t->more = 0;
    for (int i = 0; i < m->n_leaves; i++) {
        wf_shape x = m->leaf[i].x;
        x.dim[0] = batch;
        t->leaf_forward_s[i] = OPERATION_S * operations(&m->leaf[i], x, 1, 1);
        t->leaf_backward_s[i] = 2 * t->leaf_forward_s[i];
        t->forward_s += t->leaf_forward_s[i];
        t->backward_s += t->leaf_backward_s[i];
        t->fixed += 12 * m->leaf[i].params;
    }
    t->kept = kept * (double)batch;
    t->update_s = t->fixed * 1e-12;
    return WF_OK;
}

static inline wf_status part_of(void *own, const wf_planner_leaf *leaf, wf_shape x, int64_t in, int64_t out,
                                wf_planner_part *t)
{
    *t = (wf_planner_part){.seconds = 3 * OPERATION_S * operations(leaf, x, (double)in, (double)out)};
    return WF_OK;
}

static double kept_bytes; /* of a sample */

static inline wf_planner_meter meter_new(double kept)
{
    kept_bytes = kept;
    return (wf_planner_meter){.own = &kept_bytes,
                              .step = step_of,
                              .part = part_of,
                              .state_words = 1,
                              .links = wf_price_model_default(),
                              .exchange = {{1e-6, 1e-10}, {25e-6, 1e-9}},
                              .one_way = {25e-6, 1e-9}};
}

/* --- models ------------------------------------------------------------------------------------------------------ */

static inline wf_layer *conv(int64_t in, int64_t out)
{
    return wf_conv2d(ctx, (wf_conv_opts){.in = in, .out = out, .kernel = 3, .pad = 1});
}

static inline wf_layer *images(int layers)
{
    wf_layer *list[16];
    for (int i = 0; i < layers; i++)
        list[i] = conv(i ? 8 : 3, 8);
    return wf_sequential(ctx, layers, list);
}

static inline wf_layer *dense(int layers, int64_t width)
{
    wf_layer *list[16];
    for (int i = 0; i < layers; i++)
        list[i] = wf_linear(ctx, (wf_linear_opts){.in = width, .out = width, .replicate = i + 1 == layers});
    return wf_sequential(ctx, layers, list);
}

static inline wf_training_plan *plan_of(wf_layer *model, wf_shape input, const wf_planner_meter *meter,
                                        wf_planner_opts o)
{
    wf_planner_model m;
    wf_shape two = input;
    two.dim[0] = 1;
    o.batch = input.dim[0];
    o.nodes = o.nodes ? o.nodes : 1;
    o.split = -1;
    if (wf_planner_trace(model, two, &m) != WF_OK)
        return NULL;
    wf_training_plan *plan = wf_planner_search(&m, meter, &o);
    wf_planner_model_clear(&m);
    return plan;
}

static inline void free_both(wf_training_plan *plan, wf_layer *model)
{
    wf_training_plan_free(plan);
    wf_layer_free(model);
}

#define EVERYTHING  (WF_PLANNER_CHANNEL | WF_PLANNER_SPATIAL | WF_PLANNER_STAGE | WF_PLANNER_RECOMPUTE)

#define EQUAL(a, b) (fabs((a) - (b)) < 1e-6 * fabs(b))

#endif
