/* Whole models of spatially parallel layers: three SGD steps of a small U-Net, and of a classifier that ends in a
 * global pool and a linear layer, equal three steps of the serial model on the whole batch. */
#include "layers/layer_author.h"
#include "layers/layers.h"
#include "optim/multi_node.h"
#include "tests/test.h"
#include "tests/world.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { STEPS = 3, SAMPLES = 2, SIDE = 48, CLASSES = 3 };

typedef struct setting {
    const char *device;
    wf_dtype dtype;
    double tolerance;
} setting;

static struct {
    wf_comm *comm;
    wf_ctx *ctx;
    wf_tape *tape;
    const setting *s;
} run;

/* Layers by form: mesh NULL is the serial one. */

static wf_layer *conv(const wf_mesh *mesh, int64_t in, int64_t out, int64_t kernel, wf_act act)
{
    const wf_conv_opts o = {.in = in, .out = out, .kernel = kernel, .pad = kernel / 2, .act = act};
    return mesh ? wf_spatial_conv2d(mesh, o) : wf_conv2d(run.ctx, o);
}

static wf_layer *up(const wf_mesh *mesh, int64_t in, int64_t out)
{
    const wf_conv_opts o = {.in = in, .out = out, .kernel = 4, .stride = 2, .pad = 1};
    return mesh ? wf_spatial_conv_transpose2d(mesh, o) : wf_conv_transpose2d(run.ctx, o);
}

static wf_layer *pool(const wf_mesh *mesh, bool max)
{
    const wf_pool_opts wide = {.kernel = 3, .stride = 2, .pad = 1, .ceil_mode = false}, o = {.kernel = 2};
    if (max)
        return mesh ? wf_spatial_max_pool2d(mesh, o) : wf_max_pool2d(run.ctx, o);
    return mesh ? wf_spatial_avg_pool2d(mesh, wide) : wf_avg_pool2d(run.ctx, wide);
}

static wf_layer *resample(const wf_mesh *mesh)
{
    const wf_upsample_opts o = {.mode = WF_UPSAMPLE_LINEAR};
    return mesh ? wf_spatial_upsample2d(mesh, o) : wf_upsample2d(run.ctx, o);
}

static wf_var *through(wf_layer *self, const char *name, wf_var *x)
{
    return wf_apply(wf_layer_child(self, name), x);
}

static wf_var *unet_forward(wf_layer *self, void *user, wf_var *x)
{
    wf_var *top = through(self, "in", x);
    wf_var *middle = through(self, "down1", through(self, "pool1", top));
    wf_var *low = through(self, "down2", through(self, "pool2", middle));
    low = wf_dropout(low, 0.3);
    wf_var *rise = through(self, "up1", low);
    wf_var *joined = wf_concat(2, (wf_var *[]){rise, middle}, 1);
    rise = through(self, "up2", through(self, "join1", joined));
    joined = wf_concat(2, (wf_var *[]){rise, top}, 1);
    return through(self, "out", through(self, "join2", joined));
}

static wf_layer *unet(const wf_mesh *mesh)
{
    wf_layer *m = wf_module(run.ctx, unet_forward, NULL);
    wf_module_add(m, "in", conv(mesh, 2, 3, 3, WF_ACT_RELU));
    wf_module_add(m, "pool1", pool(mesh, true));
    wf_module_add(m, "down1", conv(mesh, 3, 4, 5, WF_ACT_LEAKY_RELU));
    wf_module_add(m, "pool2", pool(mesh, false));
    wf_module_add(m, "down2", conv(mesh, 4, 6, 3, WF_ACT_RELU));
    wf_module_add(m, "up1", up(mesh, 6, 4));
    wf_module_add(m, "join1", conv(mesh, 8, 4, 3, WF_ACT_LEAKY_RELU));
    wf_module_add(m, "up2", resample(mesh));
    wf_module_add(m, "join2", conv(mesh, 7, 3, 3, WF_ACT_RELU));
    wf_module_add(m, "out", conv(mesh, 3, 1, 1, WF_ACT_NONE));
    return m;
}

static wf_layer *classifier(const wf_mesh *mesh)
{
    wf_layer *last = mesh ? wf_spatial_global_avg_pool(mesh) : wf_global_avg_pool(run.ctx);
    return wf_sequential(run.ctx, WF_LAYERS(conv(mesh, 2, 4, 3, WF_ACT_RELU), pool(mesh, true),
                                            conv(mesh, 4, 6, 3, WF_ACT_LEAKY_RELU), last,
                                            wf_linear(run.ctx, (wf_linear_opts){.in = 6, .out = CLASSES})));
}

/* Data. */

static wf_tensor *image(int64_t channels, uint64_t seed, bool mask)
{
    const wf_shape shape = WF_SHAPE(SAMPLES, channels, SIDE, SIDE);
    const int64_t n = wf_shape_count(shape);
    double *host = malloc((size_t)n * sizeof *host);
    test_rng rng = {.state = seed};
    for (int64_t i = 0; i < n; i++)
        host[i] = mask ? (double)test_int(&rng, 0, 1) : test_uniform(&rng, -1, 1);
    wf_tensor *wide = wf_tensor_from_host(run.ctx, WF_F64, shape, host);
    wf_tensor *t = wf_tensor_copy(wide, run.s->dtype, WF_CHANNELS_LAST);
    wf_tensor_free(wide);
    free(host);
    return t;
}

static wf_tensor *part_of(const wf_tensor *whole, const wf_mesh *mesh)
{
    wf_layout layout;
    WF_EXPECT_OK(wf_mesh_layout_activation(mesh, wf_tensor_shape(whole), &layout));
    wf_tensor *view = wf_tensor_view(whole, layout.box);
    wf_tensor *part = wf_tensor_copy(view, run.s->dtype, WF_CHANNELS_LAST);
    WF_EXPECT_OK(wf_tensor_set_layout(part, layout));
    wf_tensor_free(view);
    return part;
}

static wf_tensor *labels_of(const wf_var *scores)
{
    static const int32_t label[SAMPLES] = {1, 2};
    const wf_layout layout = wf_tensor_layout(wf_value(scores));
    const int64_t lo = layout.known ? layout.box.lo[0] : 0, n = wf_var_shape(scores).dim[0];
    return wf_tensor_from_host(run.ctx, WF_I32, WF_SHAPE(n), label + lo);
}

/* Steps. */

static double step(wf_layer *model, wf_optim *optim, const wf_mesh *mesh, bool classify, int number)
{
    wf_tensor *x = image(2, (uint64_t)number, false), *mask = image(1, 100 + (uint64_t)number, true), *labels = NULL;
    wf_tensor *x_part = mesh ? part_of(x, mesh) : wf_tensor_alias(x);
    wf_tensor *mask_part = mesh ? part_of(mask, mesh) : wf_tensor_alias(mask);
    wf_var *y = wf_apply(model, wf_input(run.tape, x_part)), *loss;
    if (classify) {
        labels = labels_of(y);
        loss = wf_softmax_cross_entropy(y, labels, (wf_label_opts){0});
    } else
        loss = wf_bce_logits(y, mask_part);
    WF_EXPECT_OK(wf_optim_step(optim, loss));
    const double value = wf_item(loss);
    wf_tensor_free(x);
    wf_tensor_free(x_part);
    wf_tensor_free(mask);
    wf_tensor_free(mask_part);
    wf_tensor_free(labels);
    return value;
}

static double farthest(const wf_tensor *a, const wf_tensor *b)
{
    const int64_t n = wf_tensor_count(a);
    double *x = calloc((size_t)n + 1, sizeof *x), *y = calloc((size_t)n + 1, sizeof *y);
    wf_tensor *wide[2] = {wf_tensor_copy(a, WF_F64, wf_tensor_order(a)), wf_tensor_copy(b, WF_F64, wf_tensor_order(b))};
    WF_EXPECT_OK(wf_tensor_export(wide[0], x, wf_tensor_bytes(wide[0])));
    WF_EXPECT_OK(wf_tensor_export(wide[1], y, wf_tensor_bytes(wide[1])));
    const double off = test_distance(n, x, y);
    wf_tensor_free(wide[0]);
    wf_tensor_free(wide[1]);
    free(x);
    free(y);
    return off;
}

static void compare(const char *name, wf_layer *model, wf_layer *serial)
{
    int64_t n = 0;
    wf_param *const *a, *const *b;
    WF_EXPECT_OK(wf_layer_params(model, &n, &a));
    WF_EXPECT_OK(wf_layer_params(serial, &n, &b));
    for (int64_t i = 0; i < n; i++) {
        const double off = farthest(wf_param_value(a[i]), wf_param_value(b[i]));
        WF_EXPECT(off <= run.s->tolerance, "%s: %s is off by %g", name, wf_param_path(a[i]), off);
    }
}

static void train(wf_mesh_opts grid, bool classify)
{
    char name[96];
    wf_mesh *mesh = wf_mesh_open(run.comm, grid);
    WF_EXPECT(mesh, "%s", wf_error_trail());
    snprintf(name, sizeof name, "%s on %s", classify ? "classifier" : "u-net", wf_mesh_text(mesh));
    wf_layer *serial = classify ? classifier(NULL) : unet(NULL), *model = classify ? classifier(mesh) : unet(mesh);
    WF_EXPECT(wf_layer_named(model, "net") && wf_layer_named(serial, "net"), "%s", wf_error_message());
    wf_optim *reference = wf_sgd(serial, (wf_sgd_opts){.lr = 0.3, .momentum = 0.9});
    wf_optim *optim =
        wf_mesh_multi_node(mesh, wf_sgd(model, (wf_sgd_opts){.lr = 0.3, .momentum = 0.9}), (wf_multi_node_opts){0});
    WF_EXPECT(reference && optim, "%s: %s", name, wf_error_trail());
    for (int i = 0; i < STEPS && reference && optim; i++) {
        const double should = step(serial, reference, NULL, classify, i), seen = step(model, optim, mesh, classify, i);
        WF_EXPECT(fabs(seen - should) <= run.s->tolerance * (1 + fabs(should)), "%s: loss %.12g, should be %.12g", name,
                  seen, should);
        compare(name, model, serial);
        WF_EXPECT_OK(wf_tape_reset(run.tape));
    }
    wf_optim_free(optim);
    wf_optim_free(reference);
    wf_layer_free(model);
    wf_layer_free(serial);
    wf_mesh_close(mesh);
}

static void check(const setting *s)
{
    run.s = s;
    run.comm = test_comm_open(test_communicator("flat"),
                              (wf_ctx_opts){.device = test_device(s->device), .dtype = s->dtype, .threads = 1});
    run.ctx = wf_comm_ctx(run.comm);
    run.tape = wf_tape_new(run.ctx);
    const int size = wf_comm_size(run.comm);
    for (int data = 1; data <= SAMPLES; data++)
        for (int height = 1; height <= size; height++)
            if (size % (data * height) == 0) {
                const wf_mesh_opts grid = {.data = data, .height = height, .width = size / (data * height)};
                if (grid.height == 8 || grid.width == 8) /* too narrow for equal blocks at every level */
                    continue;
                train(grid, false);
                train(grid, true);
            }
    wf_tape_free(run.tape);
    WF_EXPECT_OK(wf_comm_close(run.comm));
}

static void f64_ref(void)
{
    check(&(setting){"ref", WF_F64, 1e-10});
}

static void f32_cpu(void)
{
    check(&(setting){"cpu", WF_F32, 1e-4});
}

static int on_ranks(int argc, char **argv)
{
    return test_main(argc, argv, (test_case[]){{"f64_ref", f64_ref}, {"f32_cpu", f32_cpu}, {0}});
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
