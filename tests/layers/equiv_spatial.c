/* Every spatially parallel layer against the serial one on the whole input: output, input gradient, parameter
 * gradients, and the bytes that travel. On `ref` outputs, and input gradients that are recomputed, must be equal bit
 * for bit. */
#include "tests/layers/mesh_fixture.h"
#include "tests/world.h"

typedef struct volumes {
    int64_t sent, received, all; /* elements of one channel and sample: by this rank, and by all */
} volumes;

static volumes volumes_of(const wf_mesh *mesh, const geometry *g, bool back, const wf_layout *have,
                          const wf_layout *want)
{
    volumes v = {0};
    const int size = wf_comm_size(run.comm), me = wf_comm_rank(run.comm);
    int mine[WF_AXES], other[WF_AXES];
    wf_mesh_place(mesh, me, mine);
    for (int from = 0; from < size; from++)
        for (int to = 0; to < size; to++) {
            int64_t moved = 1;
            wf_mesh_place(mesh, from, mine);
            wf_mesh_place(mesh, to, other);
            if (from == to || mine[WF_AXIS_DATA] != other[WF_AXIS_DATA])
                continue;
            for (int d = 0; d < g->nd; d++) {
                wf_range has = {0, have->global.dim[2 + d]}, needs = has;
                for (int a = WF_AXIS_DEPTH; a <= WF_AXIS_WIDTH; a++)
                    if (have->placement[a] == WF_SHARDED && have->dim[a] == 2 + d) {
                        const int64_t *h = have->bounds[a] + mine[a], *w = want->bounds[a] + other[a];
                        has = (wf_range){h[0], h[1]};
                        needs = reads(g, back, d, (wf_range){w[0], w[1]}, have->global.dim[2 + d]);
                    }
                const int64_t lo = has.lo > needs.lo ? has.lo : needs.lo, hi = has.hi < needs.hi ? has.hi : needs.hi;
                moved *= hi > lo ? hi - lo : 0;
            }
            v.all += moved;
            v.sent += from == me ? moved : 0;
            v.received += to == me ? moved : 0;
        }
    return v;
}

static uint64_t bytes_sent(const wf_mesh *mesh)
{
    unsigned axes = 0;
    for (int a = WF_AXIS_DEPTH; a <= WF_AXIS_WIDTH; a++)
        if (wf_mesh_size(mesh, (wf_axis)a) > 1)
            axes |= 1u << a;
    return axes ? wf_comm_traffic(wf_mesh_comm(mesh, axes)).bytes_sent : 0;
}

/* The check. */

static wf_tensor *summed(const wf_tensor *grad)
{
    wf_tensor *all = wf_tensor_copy(grad, run.dtype, wf_tensor_order(grad));
    WF_EXPECT_OK(wf_allreduce(run.comm, grad, all, WF_SUM));
    return all;
}

static void expect_params(const char *name, wf_layer *serial, wf_layer *spatial, bool grads)
{
    static const char *const names[] = {"W", "b"};
    int64_t n = 0;
    wf_param *const *params;
    WF_EXPECT_OK(wf_layer_params(serial, &n, &params));
    for (int64_t i = 0; i < n; i++) {
        wf_param *a = wf_layer_param(serial, names[i]), *b = wf_layer_param(spatial, names[i]);
        if (!grads) {
            expect_equal(name, "an initial value", wf_param_value(b), wf_param_value(a), wf_param_value(a), true);
            continue;
        }
        wf_tensor *all = summed(wf_param_grad(b));
        expect_equal(name, i ? "db" : "dw", all, wf_param_grad(a), wf_param_grad(a), false);
        wf_tensor_free(all);
    }
}

/* What a layer moves forward, and in backward by both formulas; which of them it takes. Pooling and upsampling add the
 * gradients of halos back; of what every rank reads it has the gradient itself. */
typedef struct formula {
    volumes forward, dy;
    bool recompute;
} formula;

static formula formula_of(const wf_mesh *mesh, const geometry *g, const wf_layout *x, const wf_layout *y)
{
    const bool back = g->kind == TRANSPOSE, windows = g->kind <= TRANSPOSE;
    formula f = {.forward = volumes_of(mesh, g, back, x, g->kind == GLOBAL_MAX ? x : y)};
    f.dy = windows && f.forward.all > 0 ? volumes_of(mesh, g, !back, y, x) : (volumes){0};
    f.recompute =
        windows && (wf_config_get()->deterministic || f.dy.all * y->box.hi[1] <= f.forward.all * x->box.hi[1]);
    return f;
}

static void expect_traffic(const char *name, const formula *f, const geometry *g, const wf_layout *x,
                           const wf_layout *y, const uint64_t sent[3])
{
    const int64_t planes = x->box.hi[0] - x->box.lo[0], size = (int64_t)wf_dtype_size(run.flows);
    const int64_t of_x = planes * x->box.hi[1] * size, of_y = planes * y->box.hi[1] * size;
    const int64_t backward = f->recompute ? of_y * f->dy.sent : g->kind == GLOBAL_MAX ? 0 : of_x * f->forward.received;
    WF_EXPECT((int64_t)(sent[1] - sent[0]) == of_x * f->forward.sent, "%s: forward sent %lld bytes, should send %lld",
              name, (long long)(sent[1] - sent[0]), (long long)(of_x * f->forward.sent));
    WF_EXPECT((int64_t)(sent[2] - sent[1]) == backward, "%s: backward sent %lld bytes, should send %lld", name,
              (long long)(sent[2] - sent[1]), (long long)backward);
    run.recomputed += f->recompute && f->forward.all > 0;
    run.added += g->kind <= TRANSPOSE && !f->recompute;
}

static void compare(const char *name, const wf_mesh *mesh, const geometry *g, wf_layer *serial, wf_layer *spatial,
                    test_rng *rng)
{
    wf_shape shape = {.rank = g->nd + 2, .dim = {g->n, g->conv.in ? g->conv.in : 3}};
    memcpy(shape.dim + 2, g->length, (size_t)g->nd * sizeof *g->length);
    wf_tensor *x = random_tensor(shape, rng), *x_part = part_of(x, random_layout(mesh, shape, HELD_WHOLE, rng));
    uint64_t sent[3] = {bytes_sent(mesh)};
    wf_var *a = wf_leaf(run.tape, x), *b = wf_leaf(run.tape, x_part);
    wf_var *y = wf_apply(serial, a), *y_part = wf_apply(spatial, b);
    sent[1] = bytes_sent(mesh);
    WF_EXPECT(y && y_part, "%s: %s", name, wf_error_trail());
    if (y && y_part) {
        wf_layout layout = wf_tensor_layout(wf_value(y_part)), x_layout = wf_tensor_layout(x_part);
        wf_tensor *should = part_of(wf_value(y), layout), *dy = random_tensor(wf_var_shape(y), rng);
        wf_tensor *dy_part = part_of(dy, layout);
        WF_EXPECT(wf_shape_equal(layout.global, wf_var_shape(y)), "%s: the output's global shape is wrong", name);
        expect_equal(name, "y", wf_value(y_part), should, wf_value(y), run.exact && g->kind != GLOBAL_AVG);
        wf_tensor *y_kept = wf_keep(y_part);
        WF_EXPECT_OK(wf_backward_from(y, dy));
        WF_EXPECT_OK(wf_backward_from(y_part, dy_part));
        sent[2] = bytes_sent(mesh);
        const formula f = g->kind != GLOBAL_AVG ? formula_of(mesh, g, &x_layout, &layout) : (formula){0};
        if (g->kind != GLOBAL_AVG)
            expect_traffic(name, &f, g, &x_layout, &layout, sent);
        wf_tensor *dx = part_of(wf_grad(a), x_layout);
        expect_equal(name, "dx", wf_grad(b), dx, wf_grad(a), run.exact && f.recompute);
        if (is_linear(g))
            expect_adjoint(name, x_part, wf_grad(b), y_kept, dy_part);
        wf_tensor_free(y_kept);
        wf_tensor_free(should);
        wf_tensor_free(dy);
        wf_tensor_free(dy_part);
        wf_tensor_free(dx);
        if (g->kind <= TRANSPOSE)
            expect_params(name, serial, spatial, true);
    }
    wf_error_clear();
    WF_EXPECT_OK(wf_tape_reset(run.tape));
    wf_tensor_free(x);
    wf_tensor_free(x_part);
}

static void check(const geometry *g, wf_mesh_opts grid, uint64_t seed)
{
    char name[400];
    test_rng rng = {.state = seed};
    const wf_mesh *mesh = mesh_of(grid);
    describe(name, sizeof name, g, grid);
    wf_layer *serial = serial_layer(g), *spatial = spatial_layer(mesh, g);
    WF_EXPECT(serial && spatial, "%s: %s", name, wf_error_trail());
    if (serial && spatial) {
        /* One name: initial values and noise are the same. */
        WF_EXPECT(wf_layer_named(spatial, "m") && wf_layer_named(serial, "m"), "%s", wf_error_message());
        if (g->kind <= TRANSPOSE)
            expect_params(name, serial, spatial, false);
        compare(name, mesh, g, serial, spatial, &rng);
    }
    wf_layer_free(serial);
    wf_layer_free(spatial);
}

/* Every grid of this many ranks over the last nd axes, and samples where `data`. */
static void on_every_grid(const geometry *g, bool data)
{
    const int size = wf_comm_size(run.comm);
    for (int n = 1; n <= (data ? size : 1); n++)
        for (int d = 1; d <= (g->nd > 2 ? size : 1); d++)
            for (int h = 1; h <= (g->nd > 1 ? size : 1); h++)
                if (size % (n * d * h) == 0 && n * d * h <= size)
                    check(g, (wf_mesh_opts){.data = n, .depth = d, .height = h, .width = size / (n * d * h)},
                          (uint64_t)(n + 10 * d + 100 * h));
}

/* The fixed list. All settings in *_nd fields. */

static const geometry convs[] = {
    {"k1", CONV, 2, 2, {7, 8}, CONV_OF(3, 4, 1, 1, 1, .no_bias = false)},
    {"k1 s2", CONV, 2, 2, {7, 8}, CONV_OF(3, 2, 1, 2, 1, .no_bias = true)},
    {"k2 s2", CONV, 2, 1, {8, 9}, CONV_OF(3, 2, 2, 2, 1, .no_bias = true)},
    {"k3 p1", CONV, 2, 2, {9, 8}, CONV_OF(3, 4, 3, 1, 1, PAD(1))},
    {"k3 p1 large", CONV, 2, 1, {70, 6}, CONV_OF(4, 2, 3, 1, 1, PAD(1))},
    {"k3 p1 tall n5", CONV, 2, 5, {40, 4}, CONV_OF(2, 3, 3, 1, 1, PAD(1))},
    {"k3 s2 p1", CONV, 2, 2, {9, 10}, CONV_OF(2, 3, 3, 2, 1, PAD(1))},
    {"k4 s2 p1", CONV, 2, 2, {12, 10}, CONV_OF(3, 2, 4, 2, 1, PAD(1))},
    {"k5 p2 groups", CONV, 2, 2, {10, 11}, CONV_OF(4, 6, 5, 1, 1, PAD(2), .groups = 2)},
    {"k7 p3 relu", CONV, 2, 1, {9, 12}, CONV_OF(2, 3, 7, 1, 1, PAD(3), .act = WF_ACT_RELU)},
    {"k6 s3 depthwise", CONV, 2, 1, {13, 12}, CONV_OF(4, 4, 6, 3, 1, PAD(2), .groups = 4)},
    {"k2 s3", CONV, 2, 1, {11, 12}, CONV_OF(2, 2, 2, 3, 1, .no_bias = true)},
    {"k3 d2 p2", CONV, 2, 1, {10, 9}, CONV_OF(3, 1, 3, 1, 2, PAD(2))},
    {"k3 d3 s2", CONV, 2, 2, {12, 11}, CONV_OF(1, 3, 3, 2, 3, PAD(3))},
    {"k3 p5", CONV, 2, 1, {6, 7}, CONV_OF(2, 2, 3, 1, 1, PAD(5))},
    {"short", CONV, 2, 2, {2, 3}, CONV_OF(2, 2, 3, 1, 1, PAD(1))},
    {"one", CONV, 2, 1, {1, 1}, CONV_OF(2, 2, 3, 1, 1, PAD(1))},
    {"none", CONV, 2, 0, {6, 6}, CONV_OF(2, 3, 3, 1, 1, PAD(1))},
    {"1-d", CONV, 1, 3, {17}, CONV_OF(2, 3, 5, 2, 1, PAD(2))},
    {"3-d", CONV, 3, 2, {6, 5, 7}, CONV_OF(2, 3, 3, 1, 1, PAD(1))},
    {"3-d s2", CONV, 3, 1, {6, 7, 8}, CONV_OF(2, 2, 4, 2, 1, PAD(1))},
    {"noise",
     CONV,
     2,
     3,
     {20, 6},
     CONV_OF(2, 3, 3, 1, 1, PAD(1), .act = WF_ACT_LEAKY_RELU, .slope = 0.2, .noise = 0.5)},
    {"crop", CONV, 2, 1, {12, 13}, CONV_OF(2, 2, 3, 1, 1, PAD(-2))},
    {"unequal",
     CONV,
     2,
     2,
     {9, 14},
     .conv = {.in = 2,
              .out = 3,
              .kernel_nd = {3, 6},
              .stride_nd = {1, 2},
              .dilation_nd = {2, 1},
              .pad_lo_nd = {4, 0},
              .pad_hi_nd = {1, 3}}},
    {"4-d gan", TRANSPOSE, 2, 2, {5, 6}, CONV_OF(3, 2, 4, 2, 1, PAD(1))},
    {"k3 s2 out 1", TRANSPOSE, 2, 2, {5, 6}, CONV_OF(2, 3, 3, 2, 1, PAD(1), .output_pad_nd = ALL(1))},
};

static void fixed(void)
{
    for (size_t i = 0; i < sizeof convs / sizeof *convs; i++) {
        geometry g = convs[i];
        on_every_grid(&g, i == 3 || i == 21);
        if (g.kind == TRANSPOSE)
            continue;
        g.kind = TRANSPOSE;
        if (strcmp(g.name, "k3 p5") != 0)
            on_every_grid(&g, false);
    }
}

#define POOL_OF(k, s, ...) .pool = {.kernel_nd = ALL(k), .stride_nd = ALL(s), .dilation_nd = ALL(1), __VA_ARGS__}
static const geometry pools[] = {
    {"2 2", MAX_POOL, 2, 2, {8, 9}, POOL_OF(2, 2, .ceil_mode = false)},
    {"3 2 1", MAX_POOL, 2, 2, {9, 10}, POOL_OF(3, 2, PAD(1))},
    {"3 2 1 ceil", MAX_POOL, 2, 2, {10, 11}, POOL_OF(3, 2, PAD(1), .ceil_mode = true)},
    {"5 1 2", MAX_POOL, 2, 1, {7, 6}, POOL_OF(5, 1, PAD(2))},
    {"2 3 ceil", MAX_POOL, 2, 1, {10, 11}, POOL_OF(2, 3, .ceil_mode = true)},
    {"1-d", MAX_POOL, 1, 2, {13}, POOL_OF(3, 2, .ceil_mode = true)},
    {"3-d", MAX_POOL, 3, 1, {5, 6, 7}, POOL_OF(3, 2, PAD(1))},
    {"padded", MAX_POOL, 2, 1, {9, 10}, POOL_OF(4, 3, PAD(2), .ceil_mode = true, .count_include_pad = true)},
    {"dilated",
     MAX_POOL,
     2,
     1,
     {9, 10},
     .pool = {.kernel_nd = ALL(3), .stride_nd = ALL(1), .dilation_nd = ALL(2), PAD(2)}},
};

static void fixed_pools(void)
{
    for (size_t i = 0; i < sizeof pools / sizeof *pools; i++) {
        geometry g = pools[i];
        on_every_grid(&g, i == 0);
        g.kind = AVG_POOL;
        on_every_grid(&g, false);
    }
    geometry global = {.name = "global", .kind = GLOBAL_MAX, .nd = 2, .n = 2, .length = {6, 7}};
    on_every_grid(&global, true);
    global.kind = GLOBAL_AVG;
    on_every_grid(&global, true);
}

static void fixed_upsamples(void)
{
    static const wf_upsample_opts opts[] = {{0},
                                            {.scale = 3},
                                            {.mode = WF_UPSAMPLE_LINEAR},
                                            {.mode = WF_UPSAMPLE_LINEAR, .align_corners = true},
                                            {.mode = WF_UPSAMPLE_LINEAR, .scale_nd = {3, 1, 2}}};
    for (size_t i = 0; i < sizeof opts / sizeof *opts; i++)
        for (int nd = 1; nd <= 3; nd++) {
            const geometry g = {"upsample", UPSAMPLE, nd, 2, {4, 5, 3}, .upsample = opts[i]};
            on_every_grid(&g, nd == 2);
        }
}

static void fixed_resizes(void)
{
    static const wf_resize_opts opts[] = {{.size = {9, 3, 5}},
                                          {.size = {7, 9, 2}, .mode = WF_RESIZE_LINEAR},
                                          {.size = {2, 7, 4}, .mode = WF_RESIZE_CUBIC, .antialias = true},
                                          {.size = {3, 0, 2}, .mode = WF_RESIZE_AREA}};
    for (size_t i = 0; i < sizeof opts / sizeof *opts; i++)
        on_every_grid(&(const geometry){"resize", RESIZE, 2, 2, {5, 8}, .resize = opts[i]}, i == 3);
    on_every_grid(&(const geometry){"adaptive max", RESIZE, 2, 2, {5, 8}, .resize = opts[3], .largest = true}, true);
}

/* Random geometries. */

static wf_mesh_opts draw_grid(const geometry *g, test_rng *rng)
{
    const int size = wf_comm_size(run.comm);
    for (;;) {
        wf_mesh_opts grid = {.data = (int)test_int(rng, 1, 2),
                             .depth = g->nd > 2 ? (int)test_int(rng, 1, size) : 1,
                             .height = g->nd > 1 ? (int)test_int(rng, 1, size) : 1};
        const int others = grid.data * grid.depth * grid.height;
        if (size % others != 0)
            continue;
        grid.width = size / others;
        return grid;
    }
}

/* `count` of each kind of layer. */
static void random_geometries(int count)
{
    const char *text = getenv("EQUIV_SEED");
    const uint64_t first = text ? strtoull(text, NULL, 10) : 20240917 + (uint64_t)wf_comm_size(run.comm);
    for (int k = CONV; k <= RESIZE; k++) {
        test_rng rng = {.state = first + (uint64_t)(100 * k)};
        int done = 0;
        if (wf_comm_rank(run.comm) == 0)
            printf("%d random geometries of kind %d from seed %llu\n", count, k, (unsigned long long)rng.state);
        while (done < count) {
            geometry g;
            if (!draw(&g, (kind)k, &rng))
                continue;
            const wf_mesh_opts grid = draw_grid(&g, &rng);
            check(&g, grid, test_u64(&rng));
            done++;
        }
    }
}

static void every(const char *device, wf_dtype dtype, wf_dtype compute, double tolerance, int random)
{
    open_mixed_run(device, dtype, compute, tolerance);
    fixed();
    fixed_pools();
    fixed_upsamples();
    fixed_resizes();
    random_geometries(test_samples(random));
    if (wf_comm_size(run.comm) > 1)
        WF_EXPECT(run.recomputed > 0 && (run.added > 0) == !wf_config_get()->deterministic,
                  "%lld input gradients were recomputed, %lld added back", (long long)run.recomputed,
                  (long long)run.added);
    close_run();
}

static void f64_ref(void)
{
    every("ref", WF_F64, WF_F32, 1e-12, 500);
}

static void f32_cpu(void)
{
    every("cpu", WF_F32, WF_F32, 1e-5, 100);
}

/* The tolerance is that of a few roundings. */
static void bf16_cpu(void)
{
    every("cpu", WF_F32, WF_BF16, 2e-2, 50);
}

static void f16_cpu(void)
{
    every("cpu", WF_F32, WF_F16, 2.5e-3, 20);
}

static int on_ranks(int argc, char **argv)
{
    return test_main(
        argc, argv,
        (test_case[]){{"f64_ref", f64_ref}, {"f32_cpu", f32_cpu}, {"bf16_cpu", bf16_cpu}, {"f16_cpu", f16_cpu}, {0}});
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
