/* Layers whose channels, pixels and samples are split at once against the serial ones on the whole input: initial
 * values, output, gradients, running statistics, the adjoint, and the bytes that travel. */
#include "tests/layers/mesh_volumes.h"
#include "tests/world.h"

enum { RANDOM = 120 };

static wf_layer *mesh_layer(const wf_mesh *mesh, const geometry *g)
{
    if (g->kind > TRANSPOSE)
        return spatial_layer(mesh, g);
    return g->kind == TRANSPOSE ? wf_mesh_conv_transpose(mesh, conv_opts(g)) : wf_mesh_conv(mesh, conv_opts(g));
}

/* All sets of split axes: their communicators carry everything that a layer sends. */
static int64_t bytes_sent(const wf_mesh *mesh)
{
    int64_t bytes = 0;
    unsigned split = 0;
    for (int a = 0; a < WF_AXES; a++)
        split |= wf_mesh_size(mesh, (wf_axis)a) > 1 ? 1u << a : 0;
    for (unsigned axes = 1; axes < 1u << WF_AXES; axes++)
        if ((axes & split) == axes)
            bytes += (int64_t)wf_comm_traffic(wf_mesh_comm(mesh, axes)).bytes_sent;
    return bytes;
}

/* This rank's slices; gradients summed over the axes that the optimizer sums them over. */
static void expect_param(const char *name, const wf_mesh *mesh, wf_param *serial, wf_param *mine, bool grads)
{
    wf_tensor *whole = grads ? wf_param_grad(serial) : wf_param_value(serial);
    wf_tensor *seen = wf_tensor_copy(grads ? wf_param_grad(mine) : wf_param_value(mine), run.dtype, serial->order);
    wf_tensor *view = wf_tensor_view(whole, mine->box), *should = wf_tensor_copy(view, run.dtype, serial->order);
    WF_EXPECT(wf_shape_equal(mine->global, serial->shape), "%s: the serial shape of %s is another", name, serial->name);
    if (grads)
        WF_EXPECT_OK(wf_allreduce(wf_mesh_comm(mesh, mine->axes), seen, seen, WF_SUM));
    expect_equal(name, serial->name, seen, should, whole, false);
    wf_tensor_free(view);
    wf_tensor_free(should);
    wf_tensor_free(seen);
}

static void expect_params(const char *name, const wf_mesh *mesh, const wf_layer *serial, const wf_layer *mine,
                          bool grads)
{
    for (int i = 0; i < serial->n_params; i++)
        if (!grads || serial->params[i]->trainable)
            expect_param(name, mesh, serial->params[i], mine->params[i], grads);
}

static void expect_traffic(const char *name, const moves *m, const int64_t sent[3])
{
    double bytes[2];
    int64_t moved[2] = {sent[1] - sent[0], sent[2] - sent[1]};
    predict(m, &bytes[0], &bytes[1]);
    WF_EXPECT_OK(wf_allreduce_i64(run.comm, moved, 2, WF_SUM));
    for (int way = 0; way < 2; way++)
        WF_EXPECT((double)moved[way] == bytes[way], "%s: %s %lld bytes, should be %.0f", name,
                  way ? "backward" : "forward", (long long)moved[way], bytes[way]);
}

/* A layer in both forms, on an input laid out like this. */
typedef struct subject {
    const char *name;
    const wf_mesh *mesh;
    const geometry *conv; /* NULL: no convolution */
    wf_layout layout;
    wf_layer *serial, *mine;
} subject;

static void expect_gradients(const subject *s, const wf_var *a, const wf_var *b)
{
    wf_tensor *dx = part_of(wf_grad(a), s->layout);
    expect_equal(s->name, "dx", wf_grad(b), dx, wf_grad(a), false);
    expect_params(s->name, s->mesh, s->serial, s->mine, true);
    expect_params(s->name, s->mesh, s->serial, s->mine, false);
    wf_tensor_free(dx);
}

static void expect_all(const subject *s, wf_var *a, wf_var *b, test_rng *rng)
{
    int64_t sent[3] = {bytes_sent(s->mesh), 0, 0};
    wf_var *y = wf_apply(s->serial, a), *z = wf_apply(s->mine, b);
    sent[1] = bytes_sent(s->mesh);
    WF_EXPECT(y && z, "%s: %s", s->name, wf_error_trail());
    if (!y || !z)
        return;
    const wf_layout out = wf_tensor_layout(wf_value(z));
    wf_tensor *should = part_of(wf_value(y), out), *dy = random_tensor(wf_var_shape(y), rng);
    wf_tensor *dz = part_of(dy, out), *kept = wf_keep(z);
    WF_EXPECT(wf_shape_equal(out.global, wf_var_shape(y)), "%s: the output's global shape is wrong", s->name);
    expect_equal(s->name, "y", kept, should, wf_value(y), false);
    WF_EXPECT_OK(wf_backward_from(y, dy));
    WF_EXPECT_OK(wf_backward_from(z, dz));
    sent[2] = bytes_sent(s->mesh);
    expect_gradients(s, a, b);
    if (s->conv && is_linear(s->conv))
        expect_adjoint(s->name, wf_value(b), wf_grad(b), kept, dz);
    if (s->conv && s->conv->conv.groups <= 1) {
        const moves m = moves_of(s->mesh, s->conv, s->mine, &s->layout, &out);
        expect_traffic(s->name, &m, sent);
    }
    wf_tensor_free(should);
    wf_tensor_free(dy);
    wf_tensor_free(dz);
    wf_tensor_free(kept);
}

/* Frees the layers. */
static void compare(const subject *s, test_rng *rng)
{
    WF_EXPECT(s->serial && s->mine, "%s: %s", s->name, wf_error_trail());
    if (s->serial && s->mine) {
        /* One name: initial values and noise are the same. */
        WF_EXPECT(wf_layer_named(s->mine, "m") && wf_layer_named(s->serial, "m"), "%s", wf_error_message());
        expect_params(s->name, s->mesh, s->serial, s->mine, false);
        wf_tensor *x = random_tensor(s->layout.global, rng), *part = part_of(x, s->layout);
        expect_all(s, wf_leaf(run.tape, x), wf_leaf(run.tape, part), rng);
        WF_EXPECT_OK(wf_tape_reset(run.tape));
        wf_tensor_free(x);
        wf_tensor_free(part);
    }
    wf_error_clear();
    wf_layer_free(s->serial);
    wf_layer_free(s->mine);
}

static void check(const geometry *g, wf_mesh_opts grid, held how, uint64_t seed)
{
    char name[480];
    test_rng rng = {.state = seed};
    const wf_mesh *mesh = mesh_of(grid);
    subject s = {.name = name, .mesh = mesh, .conv = g->kind <= TRANSPOSE ? g : NULL};
    wf_shape shape = {.rank = g->nd + 2, .dim = {g->n, g->conv.in ? g->conv.in : 3}};
    memcpy(shape.dim + 2, g->length, (size_t)g->nd * sizeof *g->length);
    geometry exact = *g;
    /* Parts of a sum that are rounded before they are added may end on the other side of zero. */
    if (run.flows != run.dtype) {
        exact.conv.act = WF_ACT_NONE;
        exact.conv.noise = 0;
        g = &exact;
        s.conv = s.conv ? g : NULL;
    }
    describe(name, sizeof name, g, grid);
    snprintf(name + strlen(name), sizeof name - strlen(name), " groups %d form %d x %d%s", (int)g->conv.groups,
             (int)g->conv.form, (int)how, g->conv.replicate ? " y whole" : "");
    s.layout = random_layout(mesh, shape, how, &rng);
    s.serial = serial_layer(g);
    s.mine = mesh_layer(mesh, g);
    compare(&s, &rng);
}

/* Grids: every one that fits. */

typedef void (*on_grid)(const geometry *g, wf_mesh_opts grid, int number);

static void every_grid(const geometry *g, on_grid visit)
{
    const int size = wf_comm_size(run.comm);
    int number = 0;
    for (int c = 1; c <= size; c++)
        for (int d = 1; d <= (g->nd > 2 ? size / c : 1); d++)
            for (int h = 1; h <= (g->nd > 1 ? size / c / d : 1); h++)
                for (int w = 1; w <= size / c / d / h; w++)
                    if (size % (c * d * h * w) == 0)
                        visit(g, (wf_mesh_opts){.channel = c, .depth = d, .height = h, .width = w}, number++);
}

/* One way after the other: form, how x is cut, whether y is whole. */
static void one_way(const geometry *g, wf_mesh_opts grid, int number)
{
    geometry now = *g;
    const int way = number + (int)(g->length[0] + g->conv.in);
    now.conv.form = g->conv.groups > 1 ? WF_FORM_AUTO : (wf_form)(way % 4);
    now.conv.replicate = way % 5 == 0;
    check(&now, grid, (held)(way % HELDS), (uint64_t)way);
}

static void all_ways(const geometry *g, wf_mesh_opts grid, int number)
{
    geometry now = *g;
    for (int way = 0; way < 4 * 2 * HELDS; way++) {
        now.conv.form = (wf_form)(way % 4);
        now.conv.replicate = way / 4 % 2;
        check(&now, grid, (held)(way / 8), (uint64_t)(100 * number + way));
    }
}

/* The fixed list. */

static const geometry convs[] = {
    {"k1", CONV, 2, 2, {5, 6}, CONV_OF(8, 9, 1, 1, 1, .no_bias = true)},
    {"k1 s2", CONV, 2, 2, {7, 8}, CONV_OF(9, 8, 1, 2, 1, .no_bias = true)},
    {"k2 s2", CONV, 2, 1, {8, 9}, CONV_OF(10, 8, 2, 2, 1, .no_bias = true)},
    {"k3 p1", CONV, 2, 2, {9, 8}, CONV_OF(8, 11, 3, 1, 1, PAD(1))},
    {"k4 s2 p1", CONV, 2, 3, {12, 10}, CONV_OF(9, 12, 4, 2, 1, PAD(1), .act = WF_ACT_RELU)},
    {"k5 p2 groups", CONV, 2, 2, {10, 11}, CONV_OF(8, 12, 5, 1, 1, PAD(2), .groups = 2)},
    {"k3 three groups", CONV, 2, 2, {6, 7}, CONV_OF(9, 12, 3, 1, 1, PAD(1), .groups = 3, .act = WF_ACT_RELU)},
    {"k3 depthwise", CONV, 2, 1, {8, 9}, CONV_OF(10, 10, 3, 1, 1, PAD(1), .groups = 10)},
    {"k2 s3", CONV, 2, 1, {11, 12}, CONV_OF(8, 8, 2, 3, 1, .no_bias = true)},
    {"k3 d2 s2", CONV, 2, 2, {12, 11}, CONV_OF(8, 9, 3, 2, 2, PAD(2))},
    {"k3 p5", CONV, 2, 1, {6, 7}, CONV_OF(8, 8, 3, 1, 1, PAD(5))},
    {"one", CONV, 2, 1, {1, 1}, CONV_OF(9, 9, 3, 1, 1, PAD(1))},
    {"none", CONV, 2, 0, {6, 6}, CONV_OF(8, 9, 3, 1, 1, PAD(1))},
    {"1-d", CONV, 1, 3, {17}, CONV_OF(8, 9, 5, 2, 1, PAD(2))},
    {"3-d", CONV, 3, 2, {4, 5, 4}, CONV_OF(8, 9, 3, 1, 1, PAD(1), .no_bias = true)},
    {"noise",
     CONV,
     2,
     3,
     {9, 6},
     CONV_OF(8, 10, 3, 1, 1, PAD(1), .act = WF_ACT_LEAKY_RELU, .slope = 0.2, .noise = 0.5)},
    {"unequal",
     CONV,
     2,
     2,
     {9, 14},
     .conv = {.in = 9,
              .out = 8,
              .kernel_nd = {3, 6},
              .stride_nd = {1, 2},
              .dilation_nd = {2, 1},
              .pad_lo_nd = {4, 0},
              .pad_hi_nd = {1, 3}}},
    {"gan", TRANSPOSE, 2, 2, {5, 6}, CONV_OF(9, 8, 4, 2, 1, PAD(1))},
    {"groups", TRANSPOSE, 2, 2, {5, 6}, CONV_OF(8, 10, 3, 2, 1, PAD(1), .output_pad_nd = ALL(1), .groups = 2)},
    {"3-d", TRANSPOSE, 3, 1, {3, 4, 3}, CONV_OF(8, 9, 3, 2, 1, PAD(1), .no_bias = true)},
};

static const geometry in_all_ways = {"all ways", CONV,   2,
                                     2,          {9, 8}, CONV_OF(9, 11, 3, 1, 1, PAD(1), .act = WF_ACT_RELU)};

static void convolutions(void)
{
    for (size_t i = 0; i < sizeof convs / sizeof *convs; i++)
        every_grid(&convs[i], one_way);
    every_grid(&in_all_ways, wf_comm_size(run.comm) > 6 ? one_way : all_ways);
}

/* Pooling and upsampling leave channels where they are. */
static void images(void)
{
    static const geometry list[] = {
        {"max", MAX_POOL, 2, 2, {9, 10}, .pool = {.kernel = 3, .stride = 2, .pad = 1, .ceil_mode = true}},
        {"average", AVG_POOL, 2, 2, {9, 10}, .pool = {.kernel = 3, .stride = 1, .pad = 1}},
        {"nearest", UPSAMPLE, 2, 2, {4, 5}, .upsample = {.scale = 2}},
        {"linear", UPSAMPLE, 2, 2, {4, 5}, .upsample = {.mode = WF_UPSAMPLE_LINEAR}},
        {"area", RESIZE, 2, 2, {5, 8}, .resize = {.size = {3, 7}, .mode = WF_RESIZE_AREA}},
        {"largest", RESIZE, 2, 2, {5, 8}, .resize = {.size = {3, 7}, .mode = WF_RESIZE_AREA}, .largest = true},
        {"global max", GLOBAL_MAX, 2, 2, {6, 7}, .conv = {0}},
        {"global average", GLOBAL_AVG, 2, 2, {6, 7}, .conv = {0}},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        every_grid(&list[i], one_way);
}

/* Statistics are those of all samples and pixels of a channel, on whatever rank they are. */
static void norm(const geometry *g, wf_mesh_opts grid, int number)
{
    const wf_init some = {WF_INIT_UNIFORM, -1, 1};
    const wf_batchnorm_opts o = {
        .channels = g->conv.in, .gamma_init = some, .beta_init = some, .act = number % 2 ? WF_ACT_RELU : WF_ACT_NONE};
    char name[160];
    test_rng rng = {.state = (uint64_t)number};
    const wf_mesh *mesh = mesh_of(grid);
    describe(name, sizeof name, g, grid);
    const subject s = {
        .name = name,
        .mesh = mesh,
        .layout = random_layout(mesh, WF_SHAPE(g->n, g->conv.in, g->length[0], g->length[1]), HELD_BLOCKS, &rng),
        .serial = wf_batchnorm(run.ctx, o),
        .mine = wf_channel_sync_batchnorm(mesh, o)};
    compare(&s, &rng);
}

static void norms(void)
{
    const geometry g = {"batchnorm", CONV, 2, 3, {5, 6}, .conv = {.in = 10}};
    every_grid(&g, norm);
}

/* The pool of a chain becomes a spatial one. */
static void lp_pool(const geometry *g, wf_mesh_opts grid, int number)
{
    char name[160];
    test_rng rng = {.state = (uint64_t)number};
    const wf_mesh *mesh = mesh_of(grid);
    describe(name, sizeof name, g, grid);
    wf_layer *mine = wf_lp_pool2d(run.ctx, 2, g->pool);
    WF_EXPECT_OK(wf_parallelize(mine, mesh, WF_PARALLEL_SPATIAL));
    const subject s = {.name = name,
                       .mesh = mesh,
                       .layout = random_layout(mesh, WF_SHAPE(g->n, 3, g->length[0], g->length[1]), HELD_WHOLE, &rng),
                       .serial = wf_lp_pool2d(run.ctx, 2, g->pool),
                       .mine = mine};
    compare(&s, &rng);
}

static void lp_pools(void)
{
    const geometry g = {"lp pool", AVG_POOL, 2, 2, {9, 10}, .pool = {.kernel = 3, .stride = 2, .pad = 1}};
    every_grid(&g, lp_pool);
}

/* The maxima and a hundredth of their places, which are those in the whole image. */
static wf_var *add_places(wf_layer *self, void *user, wf_var *x)
{
    wf_var *places, *y = wf_max_pool_with_places(wf_layer_child(self, "pool"), x, &places);
    (void)user;
    return wf_add(y, wf_scale(wf_cast(places, wf_tensor_dtype(wf_value(x))), 0.01));
}

static wf_layer *places_of(wf_layer *pool, const wf_mesh *mesh)
{
    wf_layer *module = wf_module(run.ctx, add_places, NULL);
    wf_module_add(module, "pool", pool);
    if (mesh)
        WF_EXPECT_OK(wf_parallelize(module, mesh, WF_PARALLEL_SPATIAL));
    return module;
}

/* Back into the image, of which each rank has some samples and channels: pixels that are cut are refused. */
static wf_var *put_back(wf_layer *self, void *user, wf_var *x)
{
    const wf_shape shape = wf_var_shape(x);
    wf_var *places, *y = wf_max_pool_with_places(wf_layer_child(self, "pool"), x, &places);
    (void)user;
    return wf_max_unpool(wf_mul(y, y), places, (wf_pool_opts){0}, WF_SHAPE(shape.dim[2], shape.dim[3]));
}

static wf_layer *unpool_of(const geometry *g)
{
    wf_layer *module = wf_module(run.ctx, put_back, NULL);
    wf_module_add(module, "pool", serial_layer(g));
    return module;
}

static void refuse_cut_pixels(const subject *s, test_rng *rng)
{
    wf_tensor *whole = random_tensor(s->layout.global, rng), *part = part_of(whole, s->layout);
    wf_var *x = wf_input(run.tape, part), *at = wf_cast(wf_scale(x, 0), WF_I64);
    wf_var *y = wf_max_unpool(x, at, (wf_pool_opts){.kernel = 2}, (wf_shape){0});
    WF_EXPECT(!y && strstr(wf_error_message(), "max_unpool needs all pixels of an image, and its input is"), "%s: %s",
              s->name, wf_error_message());
    wf_error_clear();
    WF_EXPECT_OK(wf_tape_reset(run.tape));
    wf_tensor_free(part);
    wf_tensor_free(whole);
}

static void places_on(const geometry *g, wf_mesh_opts grid, int number)
{
    char name[160];
    test_rng rng = {.state = (uint64_t)number};
    const wf_mesh *mesh = mesh_of(grid);
    const bool cut = grid.height > 1 || grid.width > 1;
    const wf_shape shape = WF_SHAPE(g->n, 11, g->length[0], g->length[1]);
    describe(name, sizeof name, g, grid);
    subject s = {.name = name,
                 .mesh = mesh,
                 .layout = random_layout(mesh, shape, HELD_BLOCKS, &rng),
                 .serial = places_of(serial_layer(g), NULL),
                 .mine = places_of(serial_layer(g), mesh)};
    compare(&s, &rng);
    s.layout = random_layout(mesh, shape, HELD_BLOCKS, &rng);
    if (cut) {
        refuse_cut_pixels(&s, &rng);
        return;
    }
    s.serial = unpool_of(g);
    s.mine = unpool_of(g);
    compare(&s, &rng);
}

static void places(void)
{
    static const geometry list[] = {
        {"places", MAX_POOL, 2, 3, {9, 10}, .pool = {.kernel = 3, .stride = 2, .pad = 1, .ceil_mode = true}},
        {"places, adaptive", RESIZE, 2, 2, {7, 8}, .resize = {.size = {4, 3}, .mode = WF_RESIZE_AREA}, .largest = true},
        {"places, global", GLOBAL_MAX, 2, 2, {6, 7}, .conv = {0}},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        every_grid(&list[i], places_on);
}

/* Random geometries. */

static wf_mesh_opts draw_grid(const geometry *g, test_rng *rng)
{
    const int size = wf_comm_size(run.comm);
    for (;;) {
        const wf_mesh_opts grid = {.channel = (int)test_int(rng, 1, size),
                                   .depth = g->nd > 2 ? (int)test_int(rng, 1, size) : 1,
                                   .height = g->nd > 1 ? (int)test_int(rng, 1, size) : 1,
                                   .width = (int)test_int(rng, 1, size)};
        if (size % (grid.channel * grid.depth * grid.height * grid.width) == 0)
            return grid;
    }
}

static void random_geometries(void)
{
    const char *text = getenv("EQUIV_SEED");
    const uint64_t seed = text ? strtoull(text, NULL, 10) : 20261121 + (uint64_t)wf_comm_size(run.comm);
    test_rng rng = {.state = seed};
    if (wf_comm_rank(run.comm) == 0)
        printf("random geometries from seed %llu\n", (unsigned long long)seed);
    for (int done = 0, count = test_samples(RANDOM); done < count;) {
        geometry g;
        if (!draw(&g, (kind)test_int(&rng, CONV, TRANSPOSE), &rng))
            continue;
        const wf_mesh_opts grid = draw_grid(&g, &rng);
        wf_conv_opts *o = &g.conv;
        const int64_t least = (grid.channel + o->groups - 1) / o->groups;
        o->in = o->groups * (least + test_int(&rng, 0, 2));
        o->out = o->groups * (least + test_int(&rng, 0, 3));
        o->form = o->groups > 1 ? WF_FORM_AUTO : (wf_form)test_int(&rng, WF_FORM_AUTO, WF_FORM_BOTH);
        o->replicate = test_int(&rng, 0, 3) == 0;
        check(&g, grid, (held)test_int(&rng, 0, HELDS - 1), test_u64(&rng));
        done++;
    }
}

static void every(const char *device, wf_dtype dtype, wf_dtype compute, double tolerance)
{
    open_mixed_run(device, dtype, compute, tolerance);
    convolutions();
    images();
    norms();
    lp_pools();
    places();
    random_geometries();
    close_run();
}

static void f64_ref(void)
{
    every("ref", WF_F64, WF_F32, 1e-12);
}

static void f32_cpu(void)
{
    every("cpu", WF_F32, WF_F32, 1e-5);
}

/* Parts of a sum over channels are rounded before they are added, so the tolerance is that of a few roundings. */
static void bf16_cpu(void)
{
    every("cpu", WF_F32, WF_BF16, 3e-2);
}

static int on_ranks(int argc, char **argv)
{
    return test_main(argc, argv,
                     (test_case[]){{"f64_ref", f64_ref}, {"f32_cpu", f32_cpu}, {"bf16_cpu", bf16_cpu}, {0}});
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
