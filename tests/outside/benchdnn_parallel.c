/* The shapes that oneDNN tests itself with, on layers: the serial layer on the whole input beside the parallel one,
 * whose image is cut over two ranks, by depth, height or width, whichever comes first. Output, gradient of the input
 * and gradients of parameters. benchdnn_parallel TABLE [WORK]. */
#include "layers/mesh_norm.h"
#include "tests/layers/mesh_fixture.h"
#include "tests/outside/benchdnn.h"

static const char *table;
static double most_work = 3e5;

static wf_mesh *mesh_for(int nd)
{
    const int ranks = wf_comm_size(run.comm);
    return mesh_of(nd == 3   ? (wf_mesh_opts){.depth = ranks}
                   : nd == 2 ? (wf_mesh_opts){.height = ranks}
                             : (wf_mesh_opts){.width = ranks});
}

/* Returns false for what has no spatial layer: other factors, and pads of pooling beyond half a window. */
static bool geometry_of(const benchdnn_shape *s, geometry *g)
{
    *g = (geometry){.name = driver_name[s->driver], .kind = s->driver == OF_DECONV ? TRANSPOSE : CONV, .nd = s->nd};
    g->n = s->n;
    g->conv = (wf_conv_opts){.in = s->c, .out = s->f, .groups = s->groups};
    if (s->driver == OF_POOL)
        g->kind = s->c % 2 ? AVG_POOL : MAX_POOL;
    if (s->driver == OF_RESAMPLING)
        g->kind = UPSAMPLE;
    g->upsample.mode = s->c % 3 ? WF_UPSAMPLE_LINEAR : WF_UPSAMPLE_NEAREST;
    for (int d = 0; d < s->nd; d++) {
        const int64_t extent = s->dilation[d] * (s->kernel[d] - 1) + 1;
        g->length[d] = s->in[d];
        g->conv.kernel_nd[d] = g->pool.kernel_nd[d] = s->kernel[d];
        g->conv.stride_nd[d] = g->pool.stride_nd[d] = s->stride[d];
        g->conv.dilation_nd[d] = g->pool.dilation_nd[d] = s->dilation[d];
        g->conv.pad_lo_nd[d] = g->pool.pad_lo_nd[d] = s->lo[d];
        g->conv.pad_hi_nd[d] = g->pool.pad_hi_nd[d] = s->hi[d];
        if (s->driver == OF_POOL && (2 * s->lo[d] > extent || 2 * s->hi[d] > extent || s->lo[d] < 0 || s->hi[d] < 0))
            return false;
        if (s->driver == OF_RESAMPLING) {
            if (s->out[d] % s->in[d] != 0 || s->out[d] == 0)
                return false;
            g->upsample.scale_nd[d] = s->out[d] / s->in[d];
        } else if (window_length(s, d) < 1) {
            return false;
        }
    }
    return true;
}

static bool layers_of(const benchdnn_shape *s, const wf_mesh *mesh, wf_layer **serial, wf_layer **parallel)
{
    geometry g;
    if (s->driver == OF_BNORM) {
        const wf_batchnorm_opts opts = {.channels = s->c};
        *serial = wf_batchnorm(run.ctx, opts);
        *parallel = wf_sync_batchnorm(run.comm, opts);
    } else if (s->driver == OF_GNORM) {
        const wf_groupnorm_opts opts = {.channels = s->c, .groups = s->groups};
        *serial = wf_groupnorm(run.ctx, opts);
        *parallel = wf_mesh_groupnorm(mesh, opts);
    } else {
        if (!geometry_of(s, &g))
            return false;
        *serial = serial_layer(&g);
        *parallel = spatial_layer(mesh, &g);
    }
    WF_EXPECT(*serial && *parallel, "%s: %s", driver_name[s->driver], wf_error_trail());
    return *serial && *parallel && wf_layer_named(*serial, "m") && wf_layer_named(*parallel, "m");
}

static void expect_gradients(const char *name, wf_layer *serial, wf_layer *parallel)
{
    wf_param *const *params;
    int64_t n = 0;
    WF_EXPECT_OK(wf_layer_params(serial, &n, &params));
    for (int64_t i = 0; i < n; i++) {
        if (!wf_param_trainable(params[i]))
            continue;
        wf_tensor *grad = wf_param_grad(wf_layer_param(parallel, wf_param_name(params[i])));
        wf_tensor *all = grad ? wf_tensor_copy(grad, run.dtype, wf_tensor_order(grad)) : NULL;
        WF_EXPECT(all, "%s: no gradient of %s", name, wf_param_name(params[i]));
        WF_EXPECT_OK(wf_allreduce(run.comm, grad, all, WF_SUM));
        expect_equal(name, wf_param_name(params[i]), all, wf_param_grad(params[i]), wf_param_grad(params[i]), false);
        wf_tensor_free(all);
    }
}

static void compare_layers(const char *name, const wf_mesh *mesh, wf_shape shape, wf_layer *serial, wf_layer *parallel)
{
    test_rng rng = {.state = 11};
    wf_layout layout;
    WF_EXPECT_OK(wf_mesh_layout_activation(mesh, shape, &layout));
    wf_tensor *x = random_tensor(shape, &rng), *x_part = part_of(x, layout);
    wf_var *a = wf_leaf(run.tape, x), *b = wf_leaf(run.tape, x_part);
    wf_var *y = wf_apply(serial, a), *y_part = wf_apply(parallel, b);
    WF_EXPECT(y && y_part, "%s: %s", name, wf_error_trail());
    if (y && y_part) {
        const wf_layout out = wf_tensor_layout(wf_value(y_part));
        wf_tensor *should = part_of(wf_value(y), out), *dy = random_tensor(wf_var_shape(y), &rng);
        wf_tensor *dy_part = part_of(dy, out);
        expect_equal(name, "y", wf_value(y_part), should, wf_value(y), false);
        WF_EXPECT_OK(wf_backward_from(y, dy));
        WF_EXPECT_OK(wf_backward_from(y_part, dy_part));
        wf_tensor *dx = part_of(wf_grad(a), layout);
        expect_equal(name, "dx", wf_grad(b), dx, wf_grad(a), false);
        expect_gradients(name, serial, parallel);
        wf_tensor_free(dx);
        wf_tensor_free(should);
        wf_tensor_free(dy);
        wf_tensor_free(dy_part);
    }
    WF_EXPECT_OK(wf_tape_reset(run.tape));
    wf_tensor_free(x);
    wf_tensor_free(x_part);
}

static bool check_layers(const benchdnn_shape *s)
{
    const bool cut = s->driver <= OF_GNORM || s->driver == OF_RESAMPLING; /* others have no pixels */
    if (!cut || s->nd < 1)
        return false;
    const wf_mesh *mesh = mesh_for(s->nd);
    wf_layer *serial = NULL, *parallel = NULL;
    char name[300];
    int at = snprintf(name, sizeof name, "%s groups %d n %d %d->%d", driver_name[s->driver], (int)s->groups, (int)s->n,
                      (int)s->c, (int)s->f);
    for (int d = 0; d < s->nd; d++)
        at += snprintf(name + at, sizeof name - (size_t)at, " | %d k%d s%d p%d,%d d%d", (int)s->in[d],
                       (int)s->kernel[d], (int)s->stride[d], (int)s->lo[d], (int)s->hi[d], (int)s->dilation[d]);
    const bool good = layers_of(s, mesh, &serial, &parallel);
    wf_shape shape = {.rank = s->nd + 2, .dim = {s->n, s->c}};
    memcpy(shape.dim + 2, s->in, (size_t)s->nd * sizeof *s->in);
    if (good)
        compare_layers(name, mesh, shape, serial, parallel);
    wf_layer_free(serial);
    wf_layer_free(parallel);
    wf_error_clear();
    return good;
}

static void parallel_shapes(void)
{
    open_run("cpu", WF_F32, 1e-4);
    each_shape(table, most_work, check_layers);
    close_run();
}

static int run_cases(int argc, char **argv)
{
    (void)argc;
    return test_main(1, argv, (test_case[]){{"parallel_shapes", parallel_shapes}, {0}});
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "benchdnn_parallel TABLE [WORK]\n");
        return 1;
    }
    table = argv[1];
    most_work = argc > 2 ? atof(argv[2]) : most_work;
    return ranks_main(argc, argv, run_cases);
}
