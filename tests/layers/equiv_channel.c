/* Channel-parallel layers against the serial ones: initial values, y, dx, dw, db, running statistics; and the bytes
 * that move against the table in layers/channel.h. */
#include "layers/functions.h"
#include "layers/parallelize.h"
#include "tests/layers/channel_fixture.h"
#include "tests/world.h"

static const wf_init some = {WF_INIT_UNIFORM, -1, 1};

/* Layers one by one. */

typedef struct geometry {
    const char *name;
    int nd;
    bool transposed;
    int64_t n, space[3];
    wf_conv_opts opts;
} geometry;

static const geometry geometries[] = {
    {"1d", 1, false, 3, {9}, {.in = 9, .out = 8, .kernel = 3, .pad = 1}},
    {"2d", 2, false, 2, {7, 6}, {.in = 8, .out = 8, .kernel = 3, .pad = 1}},
    {"2d uneven", 2, false, 2, {5, 5}, {.in = 10, .out = 11, .kernel = 2, .stride = 2}},
    {"2d pointwise", 2, false, 2, {3, 4}, {.in = 13, .out = 8, .kernel = 1}},
    {"2d dilated, relu", 2, false, 1, {9, 8}, {.in = 9, .out = 9, .kernel = 3, .dilation = 2, .act = WF_ACT_RELU}},
    {"2d noise", 2, false, 2, {4, 4}, {.in = 9, .out = 9, .kernel = 3, .act = WF_ACT_LEAKY_RELU, .noise = 0.5}},
    {"3d", 3, false, 1, {3, 4, 3}, {.in = 9, .out = 8, .kernel = 2}},
    {"k5 p7", 1, false, 2, {4}, {.in = 8, .out = 9, .kernel = 5, .pad = 7}},
    {"k6 s3", 1, false, 2, {13}, {.in = 9, .out = 8, .kernel = 6, .stride = 3, .pad = 2}},
    {"k7 d3", 1, false, 1, {20}, {.in = 8, .out = 8, .kernel = 7, .dilation = 3, .pad = 3}},
    {"k2 s3", 2, false, 2, {6, 7}, {.in = 8, .out = 8, .kernel = 2, .stride = 3}},
    {"unequal",
     2,
     false,
     1,
     {5, 7},
     {.in = 8,
      .out = 10,
      .kernel_nd = {3, 6},
      .stride_nd = {1, 2},
      .dilation_nd = {2, 1},
      .pad_lo_nd = {4, 0},
      .pad_hi_nd = {1, 3}}},
    {"empty batch", 2, false, 0, {4, 4}, {.in = 9, .out = 8, .kernel = 3}},
    {"transposed 1d", 1, true, 2, {4}, {.in = 9, .out = 9, .kernel = 4, .stride = 2, .pad = 1}},
    {"transposed 2d", 2, true, 2, {3, 4}, {.in = 9, .out = 8, .kernel = 4, .stride = 2, .pad = 1}},
    {"transposed 2d, relu", 2, true, 2, {3, 3}, {.in = 9, .out = 8, .kernel = 3, .act = WF_ACT_RELU}},
    {"transposed 3d", 3, true, 1, {2, 3, 2}, {.in = 9, .out = 8, .kernel = 3, .stride = 2, .output_pad = 1}},
};

static const geometry grouped[] = {
    {"depthwise", 2, false, 2, {5, 4}, {.in = 12, .out = 12, .kernel = 3, .groups = 12}},
    {"depthwise, two each", 2, false, 2, {5, 4}, {.in = 5, .out = 10, .kernel = 3, .groups = 5}},
    {"depthwise, relu", 2, false, 2, {5, 4}, {.in = 7, .out = 7, .kernel = 3, .groups = 7, .act = WF_ACT_RELU}},
    {"two groups", 2, false, 2, {5, 4}, {.in = 6, .out = 14, .kernel = 3, .groups = 2}},
    {"three groups", 1, false, 2, {6}, {.in = 9, .out = 12, .kernel = 2, .groups = 3}},
    {"four groups, noise",
     2,
     false,
     1,
     {4, 4},
     {.in = 8, .out = 20, .kernel = 3, .groups = 4, .act = WF_ACT_RELU, .noise = 0.3}},
    {"transposed depthwise", 2, true, 2, {3, 3}, {.in = 7, .out = 7, .kernel = 2, .stride = 2, .groups = 7}},
    {"transposed groups", 1, true, 2, {5}, {.in = 9, .out = 6, .kernel = 3, .groups = 3, .act = WF_ACT_RELU}},
    {"transposed two groups", 2, true, 1, {3, 3}, {.in = 8, .out = 10, .kernel = 3, .groups = 2}},
};

static void one_geometry(fixture *b, const geometry *g, wf_form form, held how, bool replicate)
{
    static wf_layer *(*const serial[2])(wf_ctx *, wf_conv_opts) = {wf_conv, wf_conv_transpose};
    static wf_layer *(*const parallel[2])(const wf_mesh *, wf_conv_opts) = {wf_channel_conv, wf_channel_conv_transpose};
    char what[240];
    wf_conv_opts o = g->opts;
    wf_shape shape = {.rank = g->nd + 2, .dim = {g->n, o.in}};
    for (int d = 0; d < g->nd; d++)
        shape.dim[2 + d] = g->space[d];
    o.nd = g->nd;
    o.b_init = some;
    o.form = form;
    o.replicate = replicate;
    for (int bias = 0; bias < 2; bias++) {
        o.no_bias = !bias;
        snprintf(what, sizeof what, "%s, form %d, x %d, %s%s", g->name, (int)form, (int)how,
                 replicate ? "y whole" : "y sharded", bias ? "" : ", no bias");
        wf_layer *a = serial[g->transposed](b->ctx, o), *c = parallel[g->transposed](b->mesh, o);
        compare_models(b, what, a, c, shape, how, !bias && o.act == WF_ACT_NONE);
        wf_layer_free(a);
        wf_layer_free(c);
    }
}

static void convolutions_on(const char *device, wf_dtype dtype)
{
    fixture b = fixture_of_channels(device, dtype);
    for (size_t g = 0; g < sizeof geometries / sizeof *geometries; g++)
        for (int form = WF_FORM_AUTO; form <= WF_FORM_BOTH; form++)
            for (int how = 0; how < HELDS; how++)
                for (int replicate = 0; replicate < 2; replicate++)
                    one_geometry(&b, &geometries[g], (wf_form)form, (held)how, replicate);
    fixture_close(&b);
}

static void groups_on(const char *device, wf_dtype dtype)
{
    fixture b = fixture_of_channels(device, dtype);
    for (size_t g = 0; g < sizeof grouped / sizeof *grouped; g++)
        for (int how = 0; how < HELDS && b.size <= (grouped[g].transposed ? grouped[g].opts.in : grouped[g].opts.out);
             how++)
            for (int replicate = 0; replicate < 2; replicate++)
                one_geometry(&b, &grouped[g], WF_FORM_AUTO, (held)how, replicate);
    fixture_close(&b);
}

static int64_t extent(const wf_conv_opts *o, int d)
{
    return o->dilation_nd[d] * (o->kernel_nd[d] - 1) + 1;
}

static bool random_geometry(test_rng *rng, int size, bool transposed, geometry *g)
{
    *g = (geometry){.name = "random", .nd = (int)test_int(rng, 1, 3), .transposed = transposed};
    wf_conv_opts *o = &g->opts;
    const int64_t widest = g->nd == 1 ? 7 : g->nd == 2 ? 5 : 3;
    g->n = test_int(rng, 0, 9) ? test_int(rng, 1, 2) : 0;
    o->groups = test_int(rng, 0, 2) ? 1 : test_int(rng, 2, 5);
    o->in = o->groups * ((size + o->groups - 1) / o->groups + test_int(rng, 0, 3));
    o->out = o->groups * ((size + o->groups - 1) / o->groups + test_int(rng, 0, 4));
    o->act = test_int(rng, 0, 2) ? WF_ACT_NONE : WF_ACT_LEAKY_RELU;
    o->noise = o->act && test_int(rng, 0, 1) ? 0.25 : 0;
    for (int d = 0; d < g->nd; d++) {
        o->kernel_nd[d] = test_int(rng, 1, widest);
        o->stride_nd[d] = test_int(rng, 1, 3);
        o->dilation_nd[d] = test_int(rng, 1, g->nd == 1 ? 3 : 2);
        o->pad_lo_nd[d] = test_int(rng, 0, o->kernel_nd[d] + 1);
        o->pad_hi_nd[d] = test_int(rng, 0, o->kernel_nd[d] + 1);
        g->space[d] = test_int(rng, 1, g->nd == 1 ? 12 : 4);
        const int64_t pads = o->pad_lo_nd[d] + o->pad_hi_nd[d];
        if ((transposed ? (g->space[d] - 1) * o->stride_nd[d] - pads + extent(o, d)
                        : g->space[d] + pads - extent(o, d) + 1) < 1)
            return false;
    }
    return true;
}

enum { RANDOM = 500 };

static void one_random(fixture *b, const geometry *drawn, int i, test_rng *rng)
{
    char name[160];
    geometry g = *drawn;
    const wf_conv_opts *o = &g.opts;
    snprintf(name, sizeof name, "%d: %s%dd, %d to %d, groups %d, kernel %d %d %d, stride %d %d %d", i,
             g.transposed ? "transposed " : "", g.nd, (int)o->in, (int)o->out, (int)o->groups, (int)o->kernel_nd[0],
             (int)o->kernel_nd[1], (int)o->kernel_nd[2], (int)o->stride_nd[0], (int)o->stride_nd[1],
             (int)o->stride_nd[2]);
    g.name = name;
    const wf_form form = o->groups > 1 ? WF_FORM_AUTO : (wf_form)test_int(rng, WF_FORM_AUTO, WF_FORM_BOTH);
    const held how = (held)test_int(rng, 0, HELDS - 1);
    one_geometry(b, &g, form, how, test_int(rng, 0, 1));
}

static void random_geometries(void)
{
    const int count = test_samples(RANDOM);
    fixture b = fixture_of_channels("ref", WF_F64);
    for (int transposed = 0; transposed < 2; transposed++) {
        test_rng rng = {20240924 + (uint64_t)(100 * transposed + b.size)};
        if (b.rank == 0)
            printf("%d random geometries%s from seed %llu\n", count, transposed ? ", transposed," : "",
                   (unsigned long long)rng.state);
        for (int i = 0; i < count;) {
            geometry g;
            if (random_geometry(&rng, b.size, transposed, &g))
                one_random(&b, &g, i++, &rng);
        }
    }
    fixture_close(&b);
}

static void random_linears(void)
{
    const int count = test_samples(RANDOM);
    fixture b = fixture_of_channels("ref", WF_F64);
    test_rng rng = {20240925 + (uint64_t)b.size};
    if (b.rank == 0)
        printf("%d random linear layers from seed %llu\n", count, (unsigned long long)rng.state);
    for (int i = 0; i < count; i++) {
        char what[160];
        const int64_t channels = b.size + test_int(&rng, 0, 9);
        const int64_t rest = test_int(&rng, 0, 1) ? test_int(&rng, 2, 5) : 1, n = test_int(&rng, 0, 4);
        const wf_linear_opts o = {.in = channels * rest,
                                  .out = b.size + test_int(&rng, 0, 9),
                                  .form = (wf_form)test_int(&rng, WF_FORM_AUTO, WF_FORM_BOTH),
                                  .b_init = some,
                                  .no_bias = test_int(&rng, 0, 1),
                                  .replicate = test_int(&rng, 0, 1)};
        const wf_shape shape = rest > 1 ? WF_SHAPE(n, channels, rest) : WF_SHAPE(n, channels);
        const held how = (held)test_int(&rng, 0, HELDS - 1);
        snprintf(what, sizeof what, "%d: linear, %d of [%d,%d,%d] to %d, form %d, x %d, replicate %d", i, (int)o.in,
                 (int)n, (int)channels, (int)rest, (int)o.out, (int)o.form, (int)how, o.replicate);
        wf_layer *a = wf_linear(b.ctx, o), *c = wf_channel_linear(b.mesh, o);
        compare_models(&b, what, a, c, shape, how, o.no_bias);
        wf_layer_free(a);
        wf_layer_free(c);
    }
    fixture_close(&b);
}

/* Normalisation of sharded channels: outputs, gradients, running statistics. */
static void random_norms(void)
{
    const int count = test_samples(RANDOM);
    fixture b = fixture_of_channels("ref", WF_F64);
    test_rng rng = {20240926 + (uint64_t)b.size};
    if (b.rank == 0)
        printf("%d random normalisations from seed %llu\n", count, (unsigned long long)rng.state);
    for (int i = 0; i < count; i++) {
        char what[160];
        wf_shape shape = {.rank = (int)test_int(&rng, 2, 5), .dim = {test_int(&rng, 2, 4)}};
        const bool sync = test_int(&rng, 0, 1);
        const wf_batchnorm_opts o = {.channels = b.size + test_int(&rng, 0, 7),
                                     .no_gamma = test_int(&rng, 0, 3) == 0,
                                     .no_beta = test_int(&rng, 0, 3) == 0,
                                     .decay = test_uniform(&rng, 0.1, 0.9),
                                     .act = test_int(&rng, 0, 1) ? WF_ACT_RELU : WF_ACT_NONE,
                                     .gamma_init = some,
                                     .beta_init = some};
        shape.dim[1] = o.channels;
        for (int d = 2; d < shape.rank; d++)
            shape.dim[d] = test_int(&rng, 1, 4);
        snprintf(what, sizeof what, "%d: %s of %d channels, rank %d", i, sync ? "sync_batchnorm" : "batchnorm",
                 (int)o.channels, shape.rank);
        wf_layer *a = wf_batchnorm(b.ctx, o);
        wf_layer *c = sync ? wf_channel_sync_batchnorm(b.mesh, o) : wf_channel_batchnorm(b.mesh, o);
        compare_models(&b, what, a, c, shape, HELD_BLOCKS, false);
        wf_layer_free(a);
        wf_layer_free(c);
    }
    fixture_close(&b);
}

static void linears_on(const char *device, wf_dtype dtype)
{
    static const int64_t sizes[][2] = {{8, 8}, {13, 9}, {8, 25}};
    fixture b = fixture_of_channels(device, dtype);
    char what[160];
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int form = WF_FORM_AUTO; form <= WF_FORM_BOTH; form++)
            for (int mode = 0; mode < 2 * 2 * HELDS * 2; mode++) {
                const held how = (held)(mode / 8);
                const int64_t rest = mode & 4 ? 6 : 1;
                const wf_linear_opts o = {.in = sizes[i][0] * rest,
                                          .out = sizes[i][1],
                                          .form = (wf_form)form,
                                          .b_init = some,
                                          .no_bias = mode & 2,
                                          .replicate = mode & 1};
                const wf_shape shape = rest > 1 ? WF_SHAPE(4, sizes[i][0], 3, 2) : WF_SHAPE(4, o.in);
                snprintf(what, sizeof what, "linear %d to %d, form %d, x %d, %s%s%s", (int)o.in, (int)o.out, form,
                         (int)how, o.replicate ? "y whole" : "y sharded", o.no_bias ? ", no bias" : "",
                         rest > 1 ? ", of images" : "");
                wf_layer *a = wf_linear(b.ctx, o), *c = wf_channel_linear(b.mesh, o);
                compare_models(&b, what, a, c, shape, how, o.no_bias);
                wf_layer_free(a);
                wf_layer_free(c);
            }
    fixture_close(&b);
}

/* The paired form, to scores on every rank. */

static wf_layer *chain_new(fixture *b, bool parallel, bool sync)
{
    const wf_conv_opts first = {.in = 3, .out = 14, .kernel = 3, .pad = 1, .form = WF_FORM_FILTER, .no_bias = true};
    const wf_conv_opts second = {.in = 14, .out = 6, .kernel = 2, .stride = 2, .form = WF_FORM_CHANNEL, .b_init = some};
    const wf_batchnorm_opts norm = {.channels = 14, .gamma_init = some, .beta_init = some};
    const wf_linear_opts last = {.in = 6 * 3 * 2, .out = 5, .form = WF_FORM_CHANNEL, .b_init = some, .replicate = true};
    wf_layer *bn = sync ? wf_channel_sync_batchnorm(b->mesh, norm) : wf_channel_batchnorm(b->mesh, norm);
    if (!parallel) {
        wf_layer_free(bn);
        return wf_sequential(b->ctx,
                             WF_LAYERS(wf_conv2d(b->ctx, first), wf_batchnorm(b->ctx, norm), wf_lambda(b->ctx, wf_relu),
                                       wf_conv2d(b->ctx, second), wf_lambda(b->ctx, wf_tanh),
                                       wf_lambda(b->ctx, wf_flatten), wf_linear(b->ctx, last)));
    }
    return wf_sequential(b->ctx, WF_LAYERS(wf_channel_conv2d(b->mesh, first), bn, wf_lambda(b->ctx, wf_relu),
                                           wf_channel_conv2d(b->mesh, second), wf_lambda(b->ctx, wf_tanh),
                                           wf_lambda(b->ctx, wf_flatten), wf_channel_linear(b->mesh, last)));
}

static void chains_on(const char *device, wf_dtype dtype)
{
    fixture b = fixture_of_channels(device, dtype);
    for (int sync = 0; sync < 2; sync++) {
        wf_layer *a = chain_new(&b, false, false), *c = chain_new(&b, true, sync);
        compare_models(&b, "chain", a, c, WF_SHAPE(4, 3, 6, 4), HELD_WHOLE, false);
        wf_layer_free(a);
        wf_layer_free(c);
    }
    fixture_close(&b);
}

/* Bytes that this rank sends over the channel axis: forward, and forward with backward. */

static void measure(fixture *b, wf_layer *layer, wf_shape shape, held how, int64_t sent[2])
{
    wf_comm *group = wf_mesh_comm(b->mesh, WF_AXIS_BIT(WF_AXIS_CHANNEL));
    double *x = numbers(wf_shape_count(shape), 7);
    wf_tensor *part = tensor_of(b, x, layout_of(b, shape, how));
    const uint64_t before = wf_comm_traffic(group).bytes_sent;
    wf_var *y = wf_apply(layer, wf_leaf(b->tape, part));
    WF_EXPECT(y, "no output: %s", wf_error_message());
    wf_tensor *kept = wf_keep(y);
    sent[0] = (int64_t)(wf_comm_traffic(group).bytes_sent - before);
    WF_EXPECT_OK(wf_backward_from(y, kept));
    sent[1] = (int64_t)(wf_comm_traffic(group).bytes_sent - before) - sent[0];
    WF_EXPECT_OK(wf_allreduce_i64(group, sent, 2, WF_SUM));
    wf_tensor_free(kept);
    WF_EXPECT_OK(wf_tape_reset(b->tape));
    wf_tensor_free(part);
    free(x);
}

typedef struct traffic_case {
    const char *name;
    wf_form form;
    held how;
    bool replicate;
    int x_forward, y_forward, x_backward, y_backward; /* times (p - 1) / p of what x and y hold */
} traffic_case;

static void traffic(void)
{
    static const traffic_case cases[] = {
        {"filter, x sharded", WF_FORM_FILTER, HELD_BLOCKS, false, 1, 0, 1, 0},
        {"filter, x whole", WF_FORM_FILTER, HELD_WHOLE, false, 0, 0, 2, 0},
        {"filter, x whole, y whole", WF_FORM_FILTER, HELD_WHOLE, true, 0, 1, 2, 0},
        {"channel, y sharded", WF_FORM_CHANNEL, HELD_BLOCKS, false, 0, 1, 0, 1},
        {"channel, y whole", WF_FORM_CHANNEL, HELD_BLOCKS, true, 0, 2, 0, 0},
        {"channel, x whole", WF_FORM_CHANNEL, HELD_WHOLE, false, 0, 1, 1, 1},
    };
    fixture b = fixture_of_channels("ref", WF_F64);
    const int64_t n = 2, in = 12, out = 24, pixels = 256, size = (int64_t)sizeof(double);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const traffic_case *t = &cases[i];
        const wf_conv_opts conv = {.in = in, .out = out, .kernel = 1, .form = t->form, .replicate = t->replicate};
        const wf_linear_opts linear = {.in = in, .out = out, .form = t->form, .replicate = t->replicate};
        const int64_t x = (b.size - 1) * n * in * pixels * size, y = (b.size - 1) * n * out * pixels * size;
        const int64_t should[2] = {t->x_forward * x + t->y_forward * y, t->x_backward * x + t->y_backward * y};
        for (int kind = 0; kind < 2; kind++) { /* pixels are samples to a linear layer */
            wf_layer *layer = kind ? wf_channel_linear(b.mesh, linear) : wf_channel_conv2d(b.mesh, conv);
            int64_t sent[2];
            measure(&b, layer, kind ? WF_SHAPE(n * pixels, in) : WF_SHAPE(n, in, 16, 16), t->how, sent);
            for (int way = 0; way < 2; way++)
                WF_EXPECT(sent[way] == should[way], "%s %s, %d ranks, %s: %lld bytes, should be %lld",
                          kind ? "linear" : "convolution", t->name, b.size, way ? "backward" : "forward",
                          (long long)sent[way], (long long)should[way]);
            wf_layer_free(layer);
        }
    }
    fixture_close(&b);
}

/* In the form for both, x moves inside the blocks of inputs; y costs at most what one whole sum does. */
static void traffic_both(void)
{
    fixture b = fixture_of_channels("ref", WF_F64);
    const wf_conv_opts o = {.in = 12, .out = 24, .kernel = 1, .form = WF_FORM_BOTH};
    wf_layer *layer = wf_channel_conv2d(b.mesh, o);
    int64_t sent[2];
    measure(&b, layer, WF_SHAPE(2, 12, 4, 4), HELD_BLOCKS, sent);
    const int64_t x = 2 * 12 * 16 * 8, y = 2 * 24 * 16 * 8;
    const int filters = b.size == 4 ? 2 : b.size == 6 ? 3 : 1, inputs = b.size / filters;
    if (filters > 1) {
        WF_EXPECT(sent[0] > (filters - 1) * x + (inputs - 1) * y && sent[0] <= (filters - 1) * x + inputs * y,
                  "both, %d ranks, forward: %lld bytes, not in (%lld, %lld]", b.size, (long long)sent[0],
                  (long long)((filters - 1) * x + (inputs - 1) * y), (long long)((filters - 1) * x + inputs * y));
        WF_EXPECT(sent[1] == sent[0], "both, %d ranks: %lld bytes forward, %lld backward", b.size, (long long)sent[0],
                  (long long)sent[1]);
    }
    wf_layer_free(layer);
    fixture_close(&b);
}

/* Nothing moves where shards end at groups, and between the layers of a pair. */
static void traffic_nothing(void)
{
    fixture b = fixture_of_channels("ref", WF_F64);
    int64_t sent[2];
    wf_layer *groups = wf_channel_conv2d(b.mesh, (wf_conv_opts){.in = 24, .out = 12, .kernel = 3, .groups = 12});
    measure(&b, groups, WF_SHAPE(2, 24, 4, 4), HELD_BLOCKS, sent);
    WF_EXPECT(sent[0] == 0 && sent[1] == 0, "aligned groups: %lld and %lld bytes", (long long)sent[0],
              (long long)sent[1]);
    wf_layer_free(groups);
    wf_layer *norm = wf_channel_batchnorm(b.mesh, (wf_batchnorm_opts){.channels = 7});
    measure(&b, norm, WF_SHAPE(2, 7, 4, 4), HELD_BLOCKS, sent);
    WF_EXPECT(sent[0] == 0 && sent[1] == 0, "batch normalisation: %lld and %lld bytes", (long long)sent[0],
              (long long)sent[1]);
    wf_layer_free(norm);
    fixture_close(&b);
}

/* Misuse: the same error on all ranks. */

static void expect_no(const char *what, const void *made, wf_status code)
{
    const wf_status seen = wf_error_code();
    WF_EXPECT(!made && seen == code, "%s: %s, %s; should be %s", what, made ? "works" : wf_status_name(seen),
              wf_error_message(), wf_status_name(code));
    wf_error_clear();
}

static void misuse(void)
{
    fixture b = fixture_of_channels("ref", WF_F64);
    const wf_conv_opts good = {.in = 6, .out = 6, .kernel = 1};
    wf_conv_opts o = good;
    wf_layer *layer = wf_channel_conv2d(b.mesh, good), *serial = wf_conv2d(b.ctx, good);
    if (b.size > 1) {
        o.out = b.size - 1;
        o.form = WF_FORM_FILTER;
        expect_no("fewer outputs than ranks", wf_channel_conv2d(b.mesh, o), WF_ERR_ARGUMENT);
        o.form = WF_FORM_CHANNEL;
        o.in = b.size - 1;
        expect_no("fewer inputs than ranks", wf_channel_conv2d(b.mesh, o), WF_ERR_ARGUMENT);
        expect_no("fewer features than ranks",
                  wf_channel_linear(b.mesh, (wf_linear_opts){.in = b.size - 1, .out = b.size - 1}), WF_ERR_ARGUMENT);
        expect_no("fewer normalised channels than ranks",
                  wf_channel_batchnorm(b.mesh, (wf_batchnorm_opts){.channels = b.size - 1}), WF_ERR_ARGUMENT);
    }
    o = (wf_conv_opts){.in = 12, .out = 12, .kernel = 1, .groups = 2, .form = WF_FORM_BOTH};
    expect_no("groups in both", wf_channel_conv2d(b.mesh, o), WF_ERR_UNSUPPORTED);
    o.form = (wf_form)9;
    expect_no("no form", wf_channel_conv2d(b.mesh, o), WF_ERR_ARGUMENT);
    o = (wf_conv_opts){.in = 12, .out = 12};
    expect_no("no kernel", wf_channel_conv2d(b.mesh, o), WF_ERR_ARGUMENT);
    WF_EXPECT(!wf_channel_conv2d(NULL, good) && !wf_channel_linear(NULL, (wf_linear_opts){.in = 1, .out = 1}),
              "layers without a mesh");
    if (b.size > 1) { /* the last: what a rank says of it may reach the others in the barrier */
        const wf_status others = wf_barrier(b.comm);
        WF_EXPECT(others == WF_OK || others == WF_ERR_SHAPE, "barrier: %s", wf_error_trail());
        wf_error_clear();
        double *x = numbers(6 * 4, 1);
        wf_tensor *part = tensor_of(&b, x, layout_of(&b, WF_SHAPE(1, 6, 2, 2), HELD_BLOCKS));
        expect_no("a sharded input to a serial layer", wf_apply(serial, wf_input(b.tape, part)), WF_ERR_SHAPE);
        wf_layout unknown = wf_tensor_layout(part);
        unknown.bounds[WF_AXIS_CHANNEL] = NULL;
        WF_EXPECT_OK(wf_tensor_set_layout(part, unknown));
        expect_no("unknown shard bounds", wf_apply(layer, wf_input(b.tape, part)), WF_ERR_SHAPE);
        WF_EXPECT_OK(wf_tape_reset(b.tape));
        wf_tensor_free(part);
        free(x);
    }
    wf_layer_free(layer);
    wf_layer_free(serial);
    fixture_close(&b);
}

/* A rank holds its part and no more. */
static void memory(void)
{
    fixture b = fixture_of_channels("ref", WF_F64);
    for (int form = WF_FORM_FILTER; form <= WF_FORM_BOTH; form++) {
        wf_layer *layer =
            wf_channel_conv2d(b.mesh, (wf_conv_opts){.in = 12, .out = 24, .kernel = 3, .form = (wf_form)form});
        WF_EXPECT(wf_layer_param_count(layer) == (24 * 12 * 9 + 24) / b.size, "form %d: %lld parameters on each of %d",
                  form, (long long)wf_layer_param_count(layer), b.size);
        wf_layer_free(layer);
    }
    fixture_close(&b);
}

/* Indices that follow from x. */
static wf_var *embed(wf_layer *self, void *user, wf_var *x)
{
    const int64_t *rows = user;
    wf_var *places = wf_scale(wf_abs(x), 0.999 * (double)*rows);
    wf_var *y = wf_apply(wf_layer_child(self, "table"), wf_cast(places, WF_I32));
    return wf_add(wf_unsqueeze(x, -1), y);
}

static wf_layer *embedder(fixture *b, int64_t *rows, wf_layer *table)
{
    wf_layer *module = wf_module(b->ctx, embed, rows);
    WF_EXPECT(wf_module_add(module, "table", table), "%s", wf_error_message());
    return module;
}

/* Tables cut by rows, made so or by wf_parallelize. */
static void embeddings_on(const char *device, wf_dtype dtype)
{
    fixture b = fixture_of_channels(device, dtype);
    static const wf_shape shapes[] = {{2, {4, 5}}, {2, {0, 5}}, {3, {2, 3, 2}}};
    for (int i = 0; i < 12; i++) {
        int64_t rows = b.size + i % 4 * 3;
        char what[80];
        const wf_embedding_opts o = {.count = rows, .features = 3, .ignores = i % 2, .ignored = 1};
        snprintf(what, sizeof what, "embedding of %d rows, case %d", (int)rows, i);
        wf_layer *a = embedder(&b, &rows, wf_embedding(b.ctx, o)), *c;
        if (i % 2)
            c = embedder(&b, &rows, wf_channel_embedding(b.mesh, o));
        else
            c = embedder(&b, &rows, wf_embedding(b.ctx, o));
        if (i % 2 == 0)
            WF_EXPECT_OK(wf_parallelize(c, b.mesh, WF_PARALLEL_CHANNEL));
        WF_EXPECT(wf_layer_param_count(c) == 3 * ((rows + b.size - 1 - b.rank) / b.size), "%s: rank %d has %lld", what,
                  b.rank, (long long)wf_layer_param_count(c));
        compare_models(&b, what, a, c, shapes[i / 4], HELD_WHOLE, false);
        wf_layer_free(a);
        wf_layer_free(c);
    }
    fixture_close(&b);
}

/* One all-reduce forward, nothing backward. */
static void traffic_embedding(void)
{
    fixture b = fixture_of_channels("ref", WF_F64);
    int64_t rows = 40, sent[2];
    wf_layer *layer =
        embedder(&b, &rows, wf_channel_embedding(b.mesh, (wf_embedding_opts){.count = rows, .features = 48}));
    measure(&b, layer, WF_SHAPE(16, 16), HELD_WHOLE, sent);
    const int64_t should = (int64_t)(b.size - 1) * 2 * 16 * 16 * 48 * 8;
    WF_EXPECT(sent[0] == should && sent[1] == 0, "embedding, %d ranks: %lld and %lld bytes, should be %lld and 0",
              b.size, (long long)sent[0], (long long)sent[1], (long long)should);
    wf_layer_free(layer);
    fixture_close(&b);
}

static void embeddings(void)
{
    embeddings_on("ref", WF_F64);
    embeddings_on("cpu", WF_F32);
}

static void convolutions_f64(void)
{
    convolutions_on("ref", WF_F64);
}

static void convolutions_f32(void)
{
    convolutions_on("cpu", WF_F32);
}

static void groups(void)
{
    groups_on("ref", WF_F64);
    groups_on("cpu", WF_F32);
}

static void linears(void)
{
    linears_on("ref", WF_F64);
    linears_on("cpu", WF_F32);
}

static void chains(void)
{
    chains_on("ref", WF_F64);
    chains_on("cpu", WF_F32);
}

static int on_ranks(int argc, char **argv)
{
    return test_main(argc, argv,
                     (test_case[]){{"convolutions_f64", convolutions_f64},
                                   {"convolutions_f32", convolutions_f32},
                                   {"groups", groups},
                                   {"random_geometries", random_geometries},
                                   {"random_linears", random_linears},
                                   {"random_norms", random_norms},
                                   {"linears", linears},
                                   {"chains", chains},
                                   {"embeddings", embeddings},
                                   {"traffic", traffic},
                                   {"traffic_both", traffic_both},
                                   {"traffic_embedding", traffic_embedding},
                                   {"traffic_nothing", traffic_nothing},
                                   {"misuse", misuse},
                                   {"memory", memory},
                                   {0}});
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
