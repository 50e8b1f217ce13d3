/* Whole models: steps of SGD and of Adam on P ranks are those of one. */
#include "datasets/datasets.h"
#include "examples/models/convnext.h"
#include "examples/models/dcgan.h"
#include "examples/models/gpt.h"
#include "examples/models/resnet.h"
#include "examples/models/swin.h"
#include "examples/models/unet.h"
#include "examples/models/vgg.h"
#include "examples/models/vit.h"
#include "tests/optim/optim_model.h"
#include "tests/world.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { STEPS = 5, BATCH = 6, CLASSES = 3, MOST = BATCH * 3 * 32 * 32 };

/* The device, the precision and the optimizer. In f32 the steps are small, since rounding that takes an element across
 * a ReLU's corner changes a gradient for good. */
typedef struct setting {
    const char *device;
    wf_dtype dtype;
    double tolerance, lr, gan_lr;
    bool adam;
} setting;

static const setting *now;

/* What is trained, on images [BATCH,in,...]. */
typedef struct subject {
    const char *name;
    wf_shape image; /* with the samples */
    bool pixels;    /* a label for each */
    wf_layer *(*make)(wf_ctx *ctx);
} subject;

static wf_layer *make_vgg(wf_ctx *ctx)
{
    return vgg16(ctx, (vgg_opts){.width = 3, .classes = CLASSES});
}

static wf_layer *make_resnet(wf_ctx *ctx)
{
    return resnet(ctx, (resnet_opts){.width = 3, .classes = CLASSES});
}

static wf_layer *make_convnext(wf_ctx *ctx)
{
    return convnext(
        ctx,
        (convnext_opts){
            .blocks = {1, 1, 2, 1}, .width = 3, .patch = 2, .classes = CLASSES, .drop_path = 0.4, .layerscale = 1});
}

/* Images of 9 by 8 patches: windows are padded, parts end within windows and within blocks that are merged. */
static wf_layer *make_swin(wf_ctx *ctx)
{
    return swin(ctx, (swin_opts){.blocks = {2, 1, 1, 1},
                                 .width = 4,
                                 .heads = 1,
                                 .window = 3,
                                 .patch = 1,
                                 .classes = CLASSES,
                                 .dropout = 0.2,
                                 .drop_path = 0.4});
}

static wf_layer *make_unet(wf_ctx *ctx)
{
    return unet(ctx, (unet_opts){.width = 4, .levels = 2, .classes = CLASSES});
}

static wf_layer *make_unet_group(wf_ctx *ctx)
{
    return unet(ctx, (unet_opts){.width = 4, .levels = 1, .classes = CLASSES, .norm = UNET_GROUP, .groups = 2});
}

static wf_layer *make_unet_instance(wf_ctx *ctx)
{
    return unet(ctx, (unet_opts){.width = 4, .levels = 1, .classes = CLASSES, .norm = UNET_INSTANCE});
}

static wf_layer *make_unet_layer(wf_ctx *ctx)
{
    return unet(ctx, (unet_opts){.width = 4, .levels = 1, .classes = CLASSES, .norm = UNET_LAYER});
}

static wf_layer *make_unet_none(wf_ctx *ctx)
{
    return unet(ctx, (unet_opts){.width = 4, .levels = 1, .classes = CLASSES, .norm = UNET_NO_NORM});
}

static wf_layer *make_unet_upsample(wf_ctx *ctx)
{
    return unet(ctx, (unet_opts){.width = 4, .levels = 1, .classes = CLASSES, .upsample = true});
}

static wf_layer *make_unet_3d(wf_ctx *ctx)
{
    return unet(ctx, (unet_opts){.dims = 3, .in = 1, .width = 4, .levels = 1, .classes = CLASSES});
}

/* Halves of pixels that ranks share come back at other shard bounds. */
static wf_layer *make_skips(wf_ctx *ctx)
{
    const wf_conv_opts first = {.in = 3, .out = 4, .kernel = 3, .pad = 1},
                       inner = {.in = 4, .out = 4, .kernel = 3, .pad = 1};
    const wf_conv_opts last = {.in = 4, .out = CLASSES, .kernel = 1, .replicate = true};
    const wf_pool_opts half = {.kernel = 2, .stride = 2};
    return wf_sequential(ctx,
                         WF_LAYERS(wf_conv2d(ctx, first), wf_skip_stash(ctx, "a"), wf_max_pool2d(ctx, half),
                                   wf_conv2d(ctx, inner), wf_upsample2d(ctx, (wf_upsample_opts){.scale = 2}),
                                   wf_skip_stash(ctx, "b"), wf_lambda(ctx, wf_tanh), wf_skip_pop(ctx, "a", wf_add),
                                   wf_lambda(ctx, wf_sigmoid), wf_skip_pop(ctx, "b", wf_mul), wf_conv2d(ctx, last)));
}

/* Steps of one program: serial, or on all ranks of a mesh. */
typedef struct program {
    wf_ctx *ctx;
    const wf_mesh *mesh; /* NULL: serial */
    wf_tape *tape;
} program;

/* Both programs use one tape, whose steps they count alike, so that they draw the same random numbers. */
static void begin(const program *p, int64_t i)
{
    WF_EXPECT_OK(wf_tape_set_iteration(p->tape, i));
}

static wf_optim *optimizer(const program *p, wf_layer *model, double lr)
{
    wf_optim *one =
        now->adam ? wf_adam(model, (wf_adam_opts){.lr = lr}) : wf_sgd(model, (wf_sgd_opts){.lr = lr, .momentum = 0.9});
    wf_optim *all = p->mesh ? wf_mesh_multi_node(p->mesh, one, (wf_multi_node_opts){0}) : one;
    WF_EXPECT(all, "no optimizer: %s", wf_error_message());
    return all;
}

/* This rank's part of the samples: uneven, and none for some ranks. */
static void samples_of(const program *p, int64_t *lo, int64_t *hi)
{
    const int64_t size = p->mesh ? wf_mesh_size(p->mesh, WF_AXIS_DATA) : 1;
    const int64_t rank = p->mesh ? wf_mesh_rank(p->mesh, WF_AXIS_DATA) : 0;
    *lo = BATCH * rank * (rank + 1) / (size * (size + 1));
    *hi = BATCH * (rank + 1) * (rank + 2) / (size * (size + 1));
}

static wf_tensor *part_of(const program *p, wf_shape shape, wf_dtype dtype, const void *value)
{
    int64_t lo, hi;
    samples_of(p, &lo, &hi);
    wf_tensor *all = wf_tensor_from_host(p->ctx, dtype, shape, value);
    wf_box box = wf_box_of_shape(shape);
    box.lo[0] = lo;
    box.hi[0] = hi;
    wf_tensor *view = wf_tensor_view(all, box);
    wf_tensor *mine = wf_tensor_copy(view, dtype == WF_F64 ? now->dtype : dtype, wf_order_default(shape.rank));
    if (p->mesh)
        WF_EXPECT_OK(wf_tensor_set_layout(mine, wf_layout_batch(p->mesh, shape, lo, hi)));
    wf_tensor_free(view);
    wf_tensor_free(all);
    return mine;
}

static double value[MOST];
static int64_t label[MOST];

static void make_batch(const subject *s, uint64_t seed)
{
    test_rng rng = {seed};
    const int64_t n = wf_shape_count(s->image);
    for (int64_t i = 0; i < n; i++)
        value[i] = test_uniform(&rng, -1, 1);
    for (int64_t i = 0; i < n; i++)
        label[i] = test_int(&rng, 0, CLASSES - 1);
}

/* A layout without dimension 1. */
static wf_layout without_channels(wf_layout of)
{
    wf_layout l = of;
    l.global.rank = l.box.rank = of.global.rank - 1;
    for (int d = 1; d < WF_MAX_RANK; d++) {
        const bool there = d + 1 < of.global.rank;
        l.global.dim[d] = there ? of.global.dim[d + 1] : 0;
        l.box.lo[d] = there ? of.box.lo[d + 1] : 0;
        l.box.hi[d] = there ? of.box.hi[d + 1] : 0;
    }
    for (int a = 0; a < WF_AXES; a++)
        l.dim[a] = (uint8_t)(of.dim[a] > 1 ? of.dim[a] - 1 : of.dim[a]);
    return l;
}

/* Labels for what of the scores is here. */
static wf_tensor *labels_for(const program *p, const subject *s, const wf_var *scores)
{
    if (!s->pixels)
        return part_of(p, WF_SHAPE(BATCH), WF_I64, label);
    wf_shape global = s->image;
    const wf_layout of = wf_tensor_layout(wf_value(scores));
    global.dim[1] = CLASSES;
    const wf_layout whole = {.global = global, .box = wf_box_of_shape(global)};
    const wf_layout all = without_channels(whole), mine = without_channels(of.known ? of : whole);
    wf_tensor *everything = wf_tensor_from_host(p->ctx, WF_I64, all.global, label);
    wf_tensor *view = wf_tensor_view(everything, mine.box);
    wf_tensor *t = wf_tensor_copy(view, WF_I64, wf_order_default(all.global.rank));
    if (of.known)
        WF_EXPECT_OK(wf_tensor_set_layout(t, mine));
    wf_tensor_free(everything);
    wf_tensor_free(view);
    return t;
}

static double step(const program *p, const subject *s, wf_layer *model, wf_optim *optim)
{
    wf_tensor *x = part_of(p, s->image, WF_F64, value);
    wf_var *scores = wf_apply(model, wf_input(p->tape, x));
    WF_EXPECT(scores, "%s: %s", s->name, wf_error_message());
    wf_tensor *t = labels_for(p, s, scores);
    wf_var *loss = wf_softmax_cross_entropy(scores, t, (wf_label_opts){0});
    WF_EXPECT_OK(wf_optim_step(optim, loss));
    const double is = wf_item(loss);
    wf_tensor_free(x);
    wf_tensor_free(t);
    WF_EXPECT_OK(wf_tape_reset(p->tape));
    return is;
}

static double distance_of(const wf_tensor *a, const wf_tensor *b)
{
    const int64_t n = wf_tensor_count(a);
    double *va = calloc((size_t)n + 1, sizeof *va), *vb = calloc((size_t)n + 1, sizeof *vb);
    values_get(a, va);
    values_get(b, vb);
    const double d = test_distance(n, va, vb);
    free(va);
    free(vb);
    return d;
}

static bool has_running_mean(const wf_layer *layer)
{
    for (int i = 0; i < layer->n_params; i++)
        if (!strcmp(layer->params[i]->name, "avg_mean"))
            return true;
    return false;
}

/* The layer that comes after the parameter's own in a chain is a batch normalisation. */
static bool is_normalised(const wf_param *param)
{
    const wf_layer *owner = param->owner, *parent = owner->parent;
    for (int i = 0; parent && i + 1 < parent->n_children; i++)
        if (parent->children[i] == owner)
            return has_running_mean(parent->children[i + 1]);
    return false;
}

/* Adam amplifies the rounding of a gradient that is zero: of a bias before a batch normalisation, which passes to the
 * running mean. */
static bool is_rounding(const wf_param *param)
{
    return now->adam && (!strcmp(param->name, "avg_mean") || (!strcmp(param->name, "b") && is_normalised(param)));
}

/* A parameter of `seen` may be a part of that of the serial program. */
static void compare(const char *name, wf_layer *seen, wf_layer *should)
{
    for (int64_t i = 0; param_of(should, i); i++) {
        wf_param *a = param_of(seen, i), *b = param_of(should, i);
        if (is_rounding(b))
            continue;
        wf_tensor *part = wf_tensor_view(wf_param_value(b), a->box);
        const double d = distance_of(wf_param_value(a), part);
        WF_EXPECT(d <= now->tolerance, "%s: %s is off by %g", name, wf_param_path(b), d);
        wf_tensor_free(part);
    }
}

/* Two models of equal parts draw the same numbers if they have the same name. */
static void set_alike(wf_layer *to, wf_layer *from)
{
    WF_EXPECT(wf_layer_named(to, "model") && wf_layer_named(from, "model"), "%s", wf_error_message());
}

static wf_comm *open_world(void)
{
    wf_comm *comm = test_comm_open(
        "flat", (wf_ctx_opts){.device = test_device(now->device), .dtype = now->dtype, .threads = 1, .seed = 5});
    WF_EXPECT(comm, "no communicator: %s", wf_error_message());
    return comm;
}

/* How the ranks are used. */
typedef struct partition {
    int ranks;
    wf_mesh_opts mesh;
    unsigned how;
    const char *name;
} partition;

static const partition partitions[] = {
    {0, {0}, WF_PARALLEL_SYNC_BN, "samples"},
    {1, {0}, WF_PARALLEL_SPATIAL | WF_PARALLEL_SYNC_BN, "one rank, spatial"},
    {2, {.height = 2}, WF_PARALLEL_SPATIAL, "2 rows"},
    {2, {.width = 2}, WF_PARALLEL_SPATIAL | WF_PARALLEL_SYNC_BN, "2 columns"},
    {2, {.channel = 2}, WF_PARALLEL_CHANNEL, "2 by channels"},
    {3, {.height = 3}, WF_PARALLEL_SPATIAL, "3 rows"},
    {3, {.channel = 3}, WF_PARALLEL_CHANNEL | WF_PARALLEL_SYNC_BN, "3 by channels"},
    {4, {.height = 2, .width = 2}, WF_PARALLEL_SPATIAL, "2x2 pixels"},
    {4, {.height = 2}, WF_PARALLEL_SPATIAL | WF_PARALLEL_SYNC_BN, "2 rows by samples"},
    {4, {.channel = 2}, WF_PARALLEL_CHANNEL | WF_PARALLEL_SYNC_BN, "2 by channels by samples"},
    {6, {.height = 2, .width = 3}, WF_PARALLEL_SPATIAL, "2x3 pixels"},
    {6, {.channel = 3}, WF_PARALLEL_CHANNEL | WF_PARALLEL_SYNC_BN, "3 by channels by samples"},
    {8, {.height = 4, .width = 2}, WF_PARALLEL_SPATIAL | WF_PARALLEL_SYNC_BN, "4x2 pixels"},
    {8, {.height = 2, .width = 2}, WF_PARALLEL_SPATIAL | WF_PARALLEL_SYNC_BN, "2x2 pixels by samples"},
    {4, {.channel = 2, .height = 2}, WF_PARALLEL_CHANNEL | WF_PARALLEL_SPATIAL, "2 by channels, 2 rows"},
    {6, {.channel = 3, .width = 2}, WF_PARALLEL_CHANNEL | WF_PARALLEL_SPATIAL, "3 by channels, 2 columns"},
    {8,
     {.channel = 2, .height = 2, .width = 2},
     WF_PARALLEL_CHANNEL | WF_PARALLEL_SPATIAL,
     "2 by channels, 2x2 pixels"},
    {8,
     {.channel = 2, .height = 2},
     WF_PARALLEL_CHANNEL | WF_PARALLEL_SPATIAL | WF_PARALLEL_SYNC_BN,
     "2 by channels, 2 rows, 2 by samples"},
    /* volumes alone */
    {2, {.depth = 2}, WF_PARALLEL_SPATIAL, "2 slabs"},
    {4, {.depth = 2, .width = 2}, WF_PARALLEL_SPATIAL | WF_PARALLEL_SYNC_BN, "2x2 voxels"},
    {8, {.depth = 2, .height = 2, .width = 2}, WF_PARALLEL_SPATIAL, "2x2x2 voxels"},
};
enum { PARTITIONS = sizeof partitions / sizeof *partitions };

static void train(const subject *s, const partition *how)
{
    wf_comm *comm = open_world();
    wf_ctx *ctx = wf_comm_ctx(comm);
    wf_tape *tape = wf_tape_new(ctx);
    wf_mesh *mesh = wf_mesh_open(comm, how->mesh);
    wf_layer *model = s->make(ctx), *serial = s->make(ctx);
    WF_EXPECT(mesh && model && serial, "%s: %s", s->name, wf_error_message());
    set_alike(model, serial);
    WF_EXPECT_OK(wf_parallelize(model, mesh, how->how));
    const program alone = {ctx, NULL, tape}, all = {ctx, mesh, tape};
    wf_optim *opt_serial = optimizer(&alone, serial, now->lr), *opt = optimizer(&all, model, now->lr);
    for (uint64_t i = 0; i < STEPS; i++) {
        make_batch(s, 10 + i);
        begin(&alone, (int64_t)i);
        const double should = step(&alone, s, serial, opt_serial);
        begin(&all, (int64_t)i);
        const double is = step(&all, s, model, opt);
        WF_EXPECT(fabs(is - should) <= now->tolerance * (1 + fabs(should)),
                  "%s, %s: step %d has loss %.15g, should be %.15g", s->name, how->name, (int)i, is, should);
    }
    compare(s->name, model, serial);
    wf_optim_free(opt_serial);
    wf_optim_free(opt);
    wf_tape_free(tape);
    wf_layer_free(model);
    wf_layer_free(serial);
    wf_mesh_close(mesh);
    WF_EXPECT_OK(wf_comm_close(comm));
}

static int ranks_here(void)
{
    wf_comm *comm = open_world();
    const int ranks = wf_comm_size(comm);
    WF_EXPECT_OK(wf_comm_close(comm));
    return ranks;
}

/* Every partition for this number of ranks; wf_parallelize does not cut the heads of attention. */
static void on_every(const subject *s, void (*run)(const subject *s, const partition *how))
{
    const int ranks = ranks_here();
    for (int i = 0; i < PARTITIONS; i++)
        if ((partitions[i].ranks == 0 || partitions[i].ranks == ranks) &&
            (partitions[i].mesh.depth < 2 || s->image.rank == 5) &&
            (partitions[i].mesh.channel < 2 || s->make != make_swin))
            run(s, &partitions[i]);
}

/* DCGAN: two models, noise. */
typedef struct gan {
    wf_layer *gen, *dis;
    wf_optim *opt_gen, *opt_dis;
} gan;

static gan gan_new(const program *p, wf_layer *gen, wf_layer *dis)
{
    return (gan){gen, dis, optimizer(p, gen, now->gan_lr), optimizer(p, dis, now->gan_lr)};
}

static void gan_free(gan *g)
{
    wf_optim_free(g->opt_gen);
    wf_optim_free(g->opt_dis);
    wf_layer_free(g->gen);
    wf_layer_free(g->dis);
}

static void gan_step(const program *p, const gan *g, double loss[2])
{
    wf_tensor *images = part_of(p, WF_SHAPE(BATCH, 3, 32, 32), WF_F64, value);
    wf_var *real = wf_input(p->tape, images);
    wf_var *z = wf_rand_uniform(p->tape, WF_SHAPE(wf_var_shape(real).dim[0], 4), -1, 1, real);
    wf_var *fake = wf_apply(g->gen, z);
    wf_var *loss_real = wf_bce_logits_constant(wf_apply(g->dis, real), 1);
    wf_var *loss_fake = wf_bce_logits_constant(wf_apply(g->dis, wf_detach(fake)), 0);
    wf_var *loss_dis = wf_add(loss_real, loss_fake);
    WF_EXPECT_OK(wf_optim_step(g->opt_dis, loss_dis));
    wf_var *loss_gen = wf_bce_logits_constant(wf_apply(g->dis, fake), 1);
    WF_EXPECT_OK(wf_optim_step(g->opt_gen, loss_gen));
    loss[0] = wf_item(loss_dis);
    loss[1] = wf_item(loss_gen);
    wf_tensor_free(images);
    WF_EXPECT_OK(wf_tape_reset(p->tape));
}

static void adversaries(const subject *images, const partition *how)
{
    wf_comm *comm = open_world();
    wf_ctx *ctx = wf_comm_ctx(comm);
    wf_tape *tape = wf_tape_new(ctx);
    wf_mesh *mesh = wf_mesh_open(comm, how->mesh);
    const program alone = {ctx, NULL, tape}, all = {ctx, mesh, tape};
    gan one = gan_new(&alone, dcgan_generator(ctx, 24, 4), dcgan_discriminator(ctx, 24));
    wf_layer *gen = dcgan_generator(ctx, 24, 4), *dis = dcgan_discriminator(ctx, 24);
    set_alike(gen, one.gen);
    set_alike(dis, one.dis);
    WF_EXPECT_OK(wf_parallelize(gen, mesh, how->how));
    WF_EXPECT_OK(wf_parallelize(dis, mesh, how->how));
    gan many = gan_new(&all, gen, dis);
    for (uint64_t i = 0; i < STEPS; i++) {
        double should[2], is[2];
        make_batch(images, 50 + i);
        begin(&alone, (int64_t)i);
        gan_step(&alone, &one, should);
        begin(&all, (int64_t)i);
        gan_step(&all, &many, is);
        WF_EXPECT(fabs(is[0] - should[0]) <= now->tolerance * (1 + fabs(should[0])) &&
                      fabs(is[1] - should[1]) <= now->tolerance * (1 + fabs(should[1])),
                  "DCGAN, %s: step %d has losses %.15g and %.15g, should be %.15g and %.15g", how->name, (int)i, is[0],
                  is[1], should[0], should[1]);
    }
    compare("generator", many.gen, one.gen);
    compare("discriminator", many.dis, one.dis);
    gan_free(&one);
    gan_free(&many);
    wf_tape_free(tape);
    wf_mesh_close(mesh);
    WF_EXPECT_OK(wf_comm_close(comm));
}

static void every_model(const setting *how)
{
    now = how;
    on_every(&(subject){"VGG", WF_SHAPE(BATCH, 3, 32, 32), false, make_vgg}, train);
    on_every(&(subject){"ResNet", WF_SHAPE(BATCH, 3, 8, 8), false, make_resnet}, train);
    on_every(&(subject){"ConvNeXt", WF_SHAPE(BATCH, 3, 16, 16), false, make_convnext}, train);
    on_every(&(subject){"Swin", WF_SHAPE(BATCH, 3, 9, 8), false, make_swin}, train);
    on_every(&(subject){"U-Net", WF_SHAPE(BATCH, 3, 8, 8), true, make_unet}, train);
    on_every(&(subject){"U-Net, group", WF_SHAPE(BATCH, 3, 8, 6), true, make_unet_group}, train);
    on_every(&(subject){"U-Net, instance", WF_SHAPE(BATCH, 3, 8, 6), true, make_unet_instance}, train);
    on_every(&(subject){"U-Net, layer", WF_SHAPE(BATCH, 3, 8, 6), true, make_unet_layer}, train);
    on_every(&(subject){"U-Net, no norm", WF_SHAPE(BATCH, 3, 8, 6), true, make_unet_none}, train);
    on_every(&(subject){"U-Net with upsampling", WF_SHAPE(BATCH, 3, 8, 6), true, make_unet_upsample}, train);
    on_every(&(subject){"skips", WF_SHAPE(BATCH, 3, 6, 10), true, make_skips}, train);
    on_every(&(subject){"U-Net, 3-D", WF_SHAPE(BATCH, 1, 4, 4, 4), true, make_unet_3d}, train);
    on_every(&(subject){"DCGAN", WF_SHAPE(BATCH, 3, 32, 32), false, NULL}, adversaries);
}

static void sgd_f64(void)
{
    every_model(&(setting){"ref", WF_F64, 1e-10, 0.05, 0.02, false});
}

static void sgd_f32(void)
{
    every_model(&(setting){"cpu", WF_F32, 1e-4, 0.002, 0.0002, false});
}

static void adam_f64(void)
{
    every_model(&(setting){"ref", WF_F64, 1e-10, 0.002, 0.002, true});
}

static void count_trained(wf_layer *model, int64_t should)
{
    wf_param *const *params = NULL;
    int64_t count = 0, elements = 0;
    WF_EXPECT_OK(wf_layer_params(model, &count, &params));
    for (int64_t i = 0; i < count; i++)
        elements += wf_param_trainable(params[i]) ? wf_shape_count(wf_param_shape(params[i])) : 0;
    WF_EXPECT(elements == should, "%lld trained numbers, should be %lld", (long long)elements, (long long)should);
    wf_layer_free(model);
}

/* As many as torchvision's have. */
static void resnets(void)
{
    static const int64_t should[RESNET_DEPTHS] = {11689512, 21797672, 25557032, 44549160, 60192808};
    wf_ctx *ctx = wf_ctx_new((wf_ctx_opts){.device = "cpu"});
    for (int i = 0; i < RESNET_DEPTHS; i++)
        count_trained(resnet(ctx, (resnet_opts){.depth = (resnet_depth)i, .classes = 1000, .large = true}), should[i]);
    WF_EXPECT_OK(wf_ctx_free(ctx));
}

static void convnexts(void)
{
    static const int64_t should[CONVNEXT_SIZES] = {28589128, 50223688, 88591464, 197767336};
    wf_ctx *ctx = wf_ctx_new((wf_ctx_opts){.device = "cpu"});
    for (int i = 0; i < CONVNEXT_SIZES; i++)
        count_trained(convnext(ctx, (convnext_opts){.size = (convnext_size)i, .classes = 1000}), should[i]);
    WF_EXPECT_OK(wf_ctx_free(ctx));
}

static void swins(void)
{
    static const int64_t should[SWIN_SIZES] = {28288354, 49606258, 87768224};
    wf_ctx *ctx = wf_ctx_new((wf_ctx_opts){.device = "cpu"});
    for (int i = 0; i < SWIN_SIZES; i++)
        count_trained(swin(ctx, (swin_opts){.size = (swin_size)i, .classes = 1000}), should[i]);
    WF_EXPECT_OK(wf_ctx_free(ctx));
}

/* A small one learns two images by heart. */
static void train_vit(wf_ctx *ctx)
{
    static const int64_t labels[2] = {0, 2};
    const vit_opts small = {.image = 8, .patch = 4, .features = 8, .heads = 2, .blocks = 2, .classes = CLASSES};
    wf_layer *model = wf_layer_named(vit(ctx, small), "vit");
    wf_optim *adam = wf_adam(model, (wf_adam_opts){.lr = 0.01});
    wf_tape *tape = wf_tape_new(ctx);
    wf_tensor *x = wf_tensor_new_ordered(ctx, WF_F32, WF_SHAPE(2, 3, 8, 8), WF_CHANNELS_LAST);
    wf_tensor *t = wf_tensor_from_host(ctx, WF_I64, WF_SHAPE(2), labels);
    test_rng rng = {9};
    double first = 0, last = 0;
    for (int i = 0; i < 384; i++)
        value[i] = test_uniform(&rng, -1, 1);
    values_set(x, value);
    for (int step = 0; step < 30; step++) {
        wf_var *scores = wf_apply(model, wf_input(tape, x));
        wf_var *loss = wf_softmax_cross_entropy(scores, t, (wf_label_opts){0});
        WF_EXPECT_OK(wf_optim_step(adam, loss));
        last = wf_item(loss);
        first = step == 0 ? last : first;
        WF_EXPECT_OK(wf_tape_reset(tape));
    }
    WF_EXPECT(last < 0.1 * first, "the loss of a ViT goes from %g to %g in 30 steps", first, last);
    wf_tensor_free(t);
    wf_tensor_free(x);
    wf_tape_free(tape);
    wf_optim_free(adam);
    wf_layer_free(model);
}

static void vits(void)
{
    static const int64_t should[VIT_SIZES] = {5717416, 22050664, 86567656};
    wf_ctx *ctx = wf_ctx_new((wf_ctx_opts){.device = "cpu"});
    for (int i = 0; i < VIT_SIZES; i++)
        count_trained(vit(ctx, (vit_opts){.size = (vit_size)i, .classes = 1000}), should[i]);
    train_vit(ctx);
    WF_EXPECT_OK(wf_ctx_free(ctx));
}

/* The last is GPT-2's small one, whose head is its embedding's matrix. */
static void gpts(void)
{
    static const int64_t should[GPT_SIZES] = {842496, 30361600, 124439808};
    wf_ctx *ctx = wf_ctx_new((wf_ctx_opts){.device = "cpu"});
    for (int i = 0; i < GPT_SIZES; i++)
        count_trained(gpt(ctx, (gpt_opts){.size = (gpt_size)i}), should[i]);
    WF_EXPECT_OK(wf_ctx_free(ctx));
}

static int on_ranks(int argc, char **argv)
{
    return test_main(argc, argv,
                     (test_case[]){{"sgd_f64", sgd_f64},
                                   {"sgd_f32", sgd_f32},
                                   {"adam_f64", adam_f64},
                                   {"resnets", resnets},
                                   {"convnexts", convnexts},
                                   {"swins", swins},
                                   {"vits", vits},
                                   {"gpts", gpts},
                                   {0}});
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
