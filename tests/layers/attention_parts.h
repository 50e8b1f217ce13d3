/* Attention on parts beside the serial one: contexts of several ranks, parts of arrays, gradients of parameters. */
#ifndef WF_TESTS_ATTENTION_PARTS_H
#define WF_TESTS_ATTENTION_PARTS_H

#include "comm/mesh_author.h"
#include "layers/layers.h"
#include "tests/optim/optim_model.h"
#include "tests/ranks.h"

#include <string.h>

enum { MOST = 3000 };

static void begin_ranks(void)
{
    comm =
        test_comm_open("flat", (wf_ctx_opts){.device = test_device("ref"), .dtype = WF_F64, .threads = 1, .seed = 3});
    ctx = wf_comm_ctx(comm);
    size = wf_comm_size(comm);
}

/* Biases are 0 at first, by which one that is added too often would not show. */
static void set_biases(wf_layer *layer)
{
    int64_t count = 0;
    wf_param *const *param;
    WF_EXPECT_OK(wf_layer_params(layer, &count, &param));
    for (int64_t i = 0; i < count; i++)
        if (strcmp(param[i]->name, "b") == 0)
            WF_EXPECT_OK(wf_tensor_fill(wf_param_value(param[i]), 0.25));
}

static double part_error(const wf_layout *layout, const double *whole, const double *part)
{
    double host[MOST];
    wf_tensor *all = wf_tensor_new(ctx, WF_F64, layout->global);
    values_set(all, whole);
    wf_tensor *view = wf_tensor_view(all, layout->box);
    values_get(view, host);
    const double error = test_distance(wf_tensor_count(view), host, part);
    wf_tensor_free(view);
    wf_tensor_free(all);
    return error;
}

/* The gradient of one parameter, summed over the ranks as an optimizer does, beside its part of the serial one. */
static void compare_gradient(const char *name, const wf_mesh *mesh, wf_param *serial, wf_param *parallel)
{
    double want[MOST] = {0}, got[MOST] = {0}, part[MOST];
    values_get(wf_param_grad(serial), want);
    values_get(wf_param_grad(parallel), got);
    const int64_t n = wf_tensor_count(wf_param_grad(parallel));
    for (int a = 0; a < WF_AXES; a++)
        if ((parallel->axes >> a & 1) && wf_mesh_size(mesh, (wf_axis)a) > 1)
            WF_EXPECT_OK(wf_allreduce_f64(wf_mesh_comm(mesh, WF_AXIS_BIT(a)), got, (int)n, WF_SUM));
    wf_tensor *whole = wf_tensor_new(ctx, WF_F64, serial->shape);
    values_set(whole, want);
    wf_tensor *view = parallel->shard_axes ? wf_tensor_view(whole, parallel->box) : wf_tensor_alias(whole);
    values_get(view, part);
    WF_EXPECT(test_distance(n, got, part) < 1e-12, "%s: the gradient of %s is off by %g", name, wf_param_path(parallel),
              test_distance(n, got, part));
    wf_tensor_free(view);
    wf_tensor_free(whole);
}

#endif
