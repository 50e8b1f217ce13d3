/* Synchronised batch normalisation on P ranks, each with its part of a batch, gives what the plain layer gives on one
 * rank with the whole: output, gradients, running statistics; in groups, on parts of pixels, on data where the naive
 * variance fails; with one message in each direction. */
#include "core/tape_author.h"
#include "layers/layer_author.h"
#include "layers/layers.h"
#include "optim/multi_node.h"
#include "tests/optim/optim_model.h"
#include "tests/world.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { CHANNELS = 3, MOST = 4096, STEPS = 2 };

typedef struct setting {
    const char *device;
    wf_dtype dtype;
    double tolerance;
    double mean, spread; /* of the data */
} setting;

typedef struct run {
    const setting *setting;
    const char *what;
    wf_comm *world;
    wf_ctx *ctx;
    int rank, size;
} run;

/* One normalisation: what the communicator of the layer holds, and what this rank holds of it. */
typedef struct part {
    wf_comm *comm;
    wf_layout whole, own;
    bool layout; /* tell the layer */
} part;

static run run_open(const setting *s)
{
    run r = {.setting = s};
    r.world = test_comm_open(test_communicator("flat"),
                             (wf_ctx_opts){.device = test_device(s->device), .dtype = s->dtype, .threads = 1});
    WF_EXPECT(r.world, "no communicator: %s", wf_error_message());
    r.ctx = wf_comm_ctx(r.world);
    r.rank = wf_comm_rank(r.world);
    r.size = wf_comm_size(r.world);
    return r;
}

static void expect_near(const run *r, const char *what, int64_t n, const double *seen, const double *should)
{
    double most = 1e-3, off = 0;
    for (int64_t i = 0; i < n; i++) {
        most = fmax(most, fabs(should[i]));
        const double d = fabs(seen[i] - should[i]);
        off = d <= off ? off : isnan(d) ? INFINITY : d;
    }
    WF_EXPECT(off <= r->setting->tolerance * most, "%s %s: %s on rank %d of %d is off by %g of %g", r->setting->device,
              r->what, what, r->rank, r->size, off, most);
}

/* The numbers of `box` out of the whole, whose shape is that of `from`. */
static void cut_out(wf_ctx *ctx, wf_layout from, wf_box box, const double *whole, double *part_of_it)
{
    wf_tensor *all = wf_tensor_from_host(ctx, WF_F64, wf_box_shape(from.box), whole);
    wf_tensor *view = wf_tensor_view(all, wf_box_relative(box, from.box));
    WF_EXPECT_OK(wf_tensor_export(view, part_of_it, wf_tensor_bytes(view)));
    wf_tensor_free(view);
    wf_tensor_free(all);
}

static wf_tensor *tensor_of(const run *r, wf_layout layout, bool tell, const double *value)
{
    wf_tensor *x = wf_tensor_new(r->ctx, r->setting->dtype, wf_box_shape(layout.box));
    values_set(x, value);
    if (tell)
        WF_EXPECT_OK(wf_tensor_set_layout(x, layout));
    return x;
}

typedef struct result {
    double y[MOST], dx[MOST], dr[MOST], dgamma[CHANNELS], dbeta[CHANNELS], mean[CHANNELS], var[CHANNELS];
} result;

static void param_get(wf_layer *layer, const char *name, bool grad, double *value)
{
    wf_param *p = wf_layer_param(layer, name);
    memset(value, 0, CHANNELS * sizeof *value);
    if (!p)
        wf_error_clear();
    else if (!grad || wf_param_grad(p))
        values_get(grad ? wf_param_grad(p) : wf_param_value(p), value);
}

typedef struct data {
    double x[MOST], residual[MOST], dy[MOST];
} data;

static void apply(const run *r, wf_tape *tape, wf_layer *layer, wf_layout layout, bool tell, bool residual,
                  const data *of, result *out)
{
    wf_tensor *in = tensor_of(r, layout, tell, of->x), *gradient = tensor_of(r, layout, tell, of->dy);
    wf_tensor *added = tensor_of(r, layout, tell, of->residual);
    wf_var *leaf = wf_leaf(tape, in), *other = wf_leaf(tape, added);
    wf_var *y = residual ? wf_apply_residual(layer, leaf, other) : wf_apply(layer, leaf);
    WF_EXPECT(y, "%s: %s", r->what, wf_error_message());
    if (y) {
        values_get(wf_value(y), out->y);
        WF_EXPECT_OK(wf_backward_from(y, gradient));
        values_get(wf_grad(leaf), out->dx);
        if (residual)
            values_get(wf_grad(other), out->dr);
    }
    param_get(layer, "gamma", true, out->dgamma);
    param_get(layer, "beta", true, out->dbeta);
    param_get(layer, "avg_mean", false, out->mean);
    param_get(layer, "avg_var", false, out->var);
    wf_tensor_free(in);
    wf_tensor_free(added);
    wf_tensor_free(gradient);
}

/* Checks that all ranks have the same bits. */
static void expect_same(const run *r, wf_comm *comm, const char *what, const double *mine)
{
    double first[CHANNELS];
    memcpy(first, mine, sizeof first);
    WF_EXPECT_OK(wf_bcast_bytes(comm, first, sizeof first, 0));
    WF_EXPECT(memcmp(first, mine, sizeof first) == 0, "%s: %s differs on rank %d", r->what, what, r->rank);
}

static void compare(const run *r, const part *p, bool residual, result *seen, const result *should)
{
    static double whole[MOST];
    const int64_t n = wf_shape_count(wf_box_shape(p->own.box));
    cut_out(r->ctx, p->whole, p->own.box, should->y, whole);
    expect_near(r, "y", n, seen->y, whole);
    cut_out(r->ctx, p->whole, p->own.box, should->dx, whole);
    expect_near(r, "dx", n, seen->dx, whole);
    cut_out(r->ctx, p->whole, p->own.box, should->dr, whole);
    if (residual)
        expect_near(r, "the residual's gradient", n, seen->dr, whole);
    WF_EXPECT_OK(wf_allreduce_f64(p->comm, seen->dgamma, CHANNELS, WF_SUM));
    WF_EXPECT_OK(wf_allreduce_f64(p->comm, seen->dbeta, CHANNELS, WF_SUM));
    expect_near(r, "gradient of gamma", CHANNELS, seen->dgamma, should->dgamma);
    expect_near(r, "gradient of beta", CHANNELS, seen->dbeta, should->dbeta);
    expect_near(r, "running mean", CHANNELS, seen->mean, should->mean);
    expect_near(r, "running variance", CHANNELS, seen->var, should->var);
    expect_same(r, p->comm, "the running mean", seen->mean);
    expect_same(r, p->comm, "the running variance", seen->var);
}

static void numbers(const run *r, uint64_t seed, double mean, double spread, int64_t n, double *value)
{
    test_rng rng = {seed};
    for (int64_t i = 0; i < n; i++) {
        const double v = mean + spread * test_uniform(&rng, -1, 1);
        value[i] = r->setting->dtype == WF_F64 ? v : (double)(float)v;
    }
}

/* The second step has a residual. */
static void train(const run *r, const part *p, wf_batchnorm_opts opts, uint64_t seed)
{
    static data all, own;
    static result seen, should;
    const int64_t n = wf_shape_count(wf_box_shape(p->whole.box));
    opts.channels = CHANNELS;
    opts.gamma_init = (wf_init){WF_INIT_CONSTANT, 1.5, 0};
    opts.beta_init = (wf_init){WF_INIT_CONSTANT, -0.25, 0};
    wf_layer *sync = wf_sync_batchnorm(p->comm, opts), *plain = wf_batchnorm(r->ctx, opts);
    WF_EXPECT(sync && plain, "no layers: %s", wf_error_message());
    /* One name: they draw the same noise. */
    WF_EXPECT(wf_layer_named(sync, "norm") && wf_layer_named(plain, "norm"), "%s", wf_error_message());
    wf_tape *tape = wf_tape_new(r->ctx);
    for (int step = 0; step < STEPS && sync && plain; step++) {
        const bool residual = step == 1;
        numbers(r, seed++, r->setting->mean, r->setting->spread, n, all.x);
        numbers(r, seed++, 0.1, 1, n, all.dy);
        numbers(r, seed + 50, -0.2, 1, n, all.residual);
        cut_out(r->ctx, p->whole, p->own.box, all.x, own.x);
        cut_out(r->ctx, p->whole, p->own.box, all.dy, own.dy);
        cut_out(r->ctx, p->whole, p->own.box, all.residual, own.residual);
        apply(r, tape, sync, p->own, p->layout, residual, &own, &seen);
        apply(r, tape, plain, p->whole, p->layout, residual, &all, &should);
        compare(r, p, residual, &seen, &should);
        WF_EXPECT_OK(wf_tape_reset(tape));
    }
    wf_tape_free(tape);
    wf_layer_free(sync);
    wf_layer_free(plain);
}

static const wf_batchnorm_opts forms[] = {
    {0},
    {.act = WF_ACT_RELU, .decay = 0.5},
    {.no_gamma = true, .act = WF_ACT_LEAKY_RELU, .slope = 0.2, .noise = 0.2, .eps = 1e-3},
    {.no_beta = true, .no_gamma = true, .decay = WF_ZERO},
};
enum { FORMS = sizeof forms / sizeof *forms };

/* Samples of ranks, cut in four ways. */
typedef enum cut { BLOCKS = 0, FIRST_HAS_ALL, LAST_HAS_ALL, GROWING, CUTS } cut;

static void range_of(cut how, int64_t n, int64_t p, int64_t rank, int64_t *lo, int64_t *hi)
{
    wf_block(n, p, rank, lo, hi);
    if (how == FIRST_HAS_ALL || how == LAST_HAS_ALL) {
        const int64_t one = how == FIRST_HAS_ALL ? 0 : p - 1;
        *lo = rank <= one ? 0 : n;
        *hi = rank < one ? 0 : n;
    }
    if (how == GROWING) {
        *lo = n * rank * (rank + 1) / (p * (p + 1));
        *hi = n * (rank + 1) * (rank + 2) / (p * (p + 1));
    }
}

static void samples(const setting *s)
{
    const int64_t batch[] = {1, 5, 8};
    uint64_t seed = 1;
    char what[96];
    run r = run_open(s);
    const wf_mesh *mesh = wf_comm_mesh(r.world);
    for (int at = 0; at < CUTS; at++)
        for (int b = 0; b < 3; b++)
            for (int f = 0; f < FORMS; f++) {
                const wf_shape shapes[] = {WF_SHAPE(batch[b], CHANNELS), WF_SHAPE(batch[b], CHANNELS, 5),
                                           WF_SHAPE(batch[b], CHANNELS, 4, 3), WF_SHAPE(batch[b], CHANNELS, 2, 3, 2)};
                const wf_shape shape = shapes[(at + b + f) % 4];
                int64_t lo, hi;
                range_of((cut)at, batch[b], r.size, r.rank, &lo, &hi);
                snprintf(what, sizeof what, "cut %d, batch %d, form %d", at, (int)batch[b], f);
                r.what = what;
                const part p = {.comm = r.world,
                                .whole = wf_layout_batch(mesh, shape, 0, batch[b]),
                                .own = wf_layout_batch(mesh, shape, lo, hi),
                                .layout = forms[f].noise > 0 || at % 2 == 0};
                train(&r, &p, forms[f], seed);
                seed += 100;
            }
    WF_EXPECT_OK(wf_comm_close(r.world));
}

/* Groups of two ranks share statistics; the batch is that of all. */
static void groups(const setting *s)
{
    run r = run_open(s);
    r.what = "groups";
    const int color = r.rank / 2;
    wf_comm *pair = wf_comm_split(r.world, color, r.rank);
    const int members = wf_comm_size(pair), first = 2 * color;
    const wf_shape shape = WF_SHAPE(9, CHANNELS, 4, 3);
    int64_t lo, hi, from, to, skip;
    range_of(BLOCKS, 9, r.size, r.rank, &lo, &hi);
    range_of(BLOCKS, 9, r.size, first, &from, &skip);
    range_of(BLOCKS, 9, r.size, first + members - 1, &skip, &to);
    const part p = {.comm = pair,
                    .whole = wf_layout_batch(wf_comm_mesh(r.world), shape, from, to),
                    .own = wf_layout_batch(wf_comm_mesh(r.world), shape, lo, hi),
                    .layout = true};
    for (int f = 0; f < FORMS; f++)
        train(&r, &p, forms[f], 1000 + (uint64_t)(100 * color + f));
    WF_EXPECT_OK(wf_comm_close(pair));
    WF_EXPECT_OK(wf_comm_close(r.world));
}

/* Height, width and samples are cut; three rows for four ranks leave one empty. */
static void pixels_on(run *r, wf_mesh_opts opts)
{
    wf_mesh *mesh = wf_mesh_open(r->world, opts);
    const wf_shape shapes[] = {WF_SHAPE(3, CHANNELS, 5, 7), WF_SHAPE(2, CHANNELS, 3, 3),
                               WF_SHAPE(2, CHANNELS, 4, 3, 5)};
    WF_EXPECT(mesh, "no mesh: %s", wf_error_message());
    for (int i = 0; i < 3 && mesh; i++)
        for (int f = 0; f < FORMS; f++) {
            part p = {.comm = wf_mesh_world(mesh),
                      .whole = wf_layout_batch(mesh, shapes[i], 0, shapes[i].dim[0]),
                      .layout = true};
            WF_EXPECT_OK(wf_mesh_layout_activation(mesh, shapes[i], &p.own));
            r->what = wf_mesh_text(mesh);
            train(r, &p, forms[f], (uint64_t)(10 * i + f));
        }
    wf_mesh_close(mesh);
}

static void pixels(const setting *s)
{
    run r = run_open(s);
    pixels_on(&r, (wf_mesh_opts){.height = r.size});
    pixels_on(&r, (wf_mesh_opts){.width = r.size});
    if (r.size % 2 == 0) {
        pixels_on(&r, (wf_mesh_opts){.height = 2, .width = r.size / 2});
        pixels_on(&r, (wf_mesh_opts){.height = 2, .data = r.size / 2});
    }
    WF_EXPECT_OK(wf_comm_close(r.world));
}

enum { RANDOM = 500 };

/* Shapes, options and meshes at random; samples too are uneven, and some ranks have none. */
static void random_parts(const setting *s)
{
    run r = run_open(s);
    const int half = r.size % 2 ? 1 : 2;
    const wf_mesh_opts grids[] = {
        {.data = r.size}, {.height = r.size}, {.width = half, .height = r.size / half}, {.width = half}};
    wf_mesh *mesh[4];
    test_rng rng = {20241005 + (uint64_t)r.size};
    const int count = test_samples(RANDOM);
    if (r.rank == 0)
        printf("%d random parts from seed %llu\n", count, (unsigned long long)rng.state);
    for (int m = 0; m < 4; m++)
        mesh[m] = wf_mesh_open(r.world, grids[m]);
    for (int i = 0; i < count; i++) {
        char what[96];
        const int m = (int)test_int(&rng, 0, 3);
        wf_shape shape = {.rank = (int)test_int(&rng, m == 0 ? 2 : 4, 5), .dim = {test_int(&rng, 1, 6), CHANNELS}};
        wf_batchnorm_opts o = forms[test_int(&rng, 0, FORMS - 1)];
        o.decay = test_uniform(&rng, 0.1, 0.9);
        for (int d = 2; d < shape.rank; d++)
            shape.dim[d] = test_int(&rng, 1, 5);
        part p = {
            .comm = wf_mesh_world(mesh[m]), .whole = wf_layout_batch(mesh[m], shape, 0, shape.dim[0]), .layout = true};
        WF_EXPECT_OK(wf_mesh_layout_activation(mesh[m], shape, &p.own));
        snprintf(what, sizeof what, "%d: rank %d on %s", i, shape.rank, wf_mesh_text(mesh[m]));
        r.what = what;
        train(&r, &p, o, test_u64(&rng) % 100000);
    }
    for (int m = 0; m < 4; m++)
        wf_mesh_close(mesh[m]);
    WF_EXPECT_OK(wf_comm_close(r.world));
}

static const setting f64 = {"ref", WF_F64, 1e-12, 0.5, 2}, f32 = {"cpu", WF_F32, 1e-5, 0.5, 2};

static void samples_f64(void)
{
    samples(&f64);
}

static void samples_f32(void)
{
    samples(&f32);
}

static void groups_f64(void)
{
    groups(&f64);
}

static void groups_f32(void)
{
    groups(&f32);
}

static void pixels_f64(void)
{
    pixels(&f64);
}

static void pixels_f32(void)
{
    pixels(&f32);
}

static void random_f64(void)
{
    random_parts(&f64);
}

/* The difference of mean square and squared mean has an error of 1e8 times that of the type, more than the variance.
 * The tolerance is what rounding of x to the type does: 1e4 / spread times its error. */
static void hard_data(void)
{
    const setting wide = {"ref", WF_F64, 1e-6, 1e4, 1e-3}, narrow = {"cpu", WF_F32, 0.1, 1e4, 0.5};
    const setting *const all[] = {&wide, &narrow};
    for (int i = 0; i < 2; i++) {
        run r = run_open(all[i]);
        const wf_shape shape = WF_SHAPE(16, CHANNELS, 4, 4);
        int64_t lo, hi;
        range_of(GROWING, 16, r.size, r.rank, &lo, &hi);
        const part p = {.comm = r.world,
                        .whole = wf_layout_batch(wf_comm_mesh(r.world), shape, 0, 16),
                        .own = wf_layout_batch(wf_comm_mesh(r.world), shape, lo, hi)};
        r.what = "mean 1e4";
        train(&r, &p, (wf_batchnorm_opts){.eps = 1e-12}, 5);
        WF_EXPECT_OK(wf_comm_close(r.world));
    }
}

/* The payload of one all-gather and one all-reduce. */
static void one_message(void)
{
    run r = run_open(&f32);
    const uint64_t others = (uint64_t)r.size - 1, rounds = (uint64_t)ceil(log2(r.size));
    wf_layer *sync = wf_sync_batchnorm(r.world, (wf_batchnorm_opts){.channels = CHANNELS});
    wf_tensor *x = wf_tensor_new(r.ctx, WF_F32, WF_SHAPE(4, CHANNELS, 2, 2));
    WF_EXPECT_OK(wf_tensor_fill(x, 0.5));
    wf_tape *tape = wf_tape_new(r.ctx);
    const wf_traffic before = wf_comm_traffic(r.world);
    wf_var *y = wf_apply(sync, wf_leaf(tape, x));
    const wf_traffic between = wf_comm_traffic(r.world);
    WF_EXPECT_OK(wf_backward_from(y, x));
    const wf_traffic after = wf_comm_traffic(r.world);
    const uint64_t forth = between.bytes_sent - before.bytes_sent, back = after.bytes_sent - between.bytes_sent;
    WF_EXPECT(between.collectives - before.collectives == 1, "forward has %d collectives",
              (int)(between.collectives - before.collectives));
    WF_EXPECT(after.collectives - between.collectives == (others > 0), "backward has %d collectives",
              (int)(after.collectives - between.collectives));
    WF_EXPECT(forth == others * (16 * CHANNELS + 48), "forward sends %d bytes", (int)forth);
    WF_EXPECT(back == others * 16 * CHANNELS, "backward sends %d bytes", (int)back);
    WF_EXPECT(between.messages - before.messages == rounds, "forward has %d messages",
              (int)(between.messages - before.messages));
    WF_EXPECT(after.messages - between.messages == rounds, "backward has %d messages",
              (int)(after.messages - between.messages));
    WF_EXPECT_OK(wf_tape_reset(tape));
    WF_EXPECT_OK(wf_tape_set_mode(tape, WF_EVAL));
    y = wf_apply(sync, wf_input(tape, x));
    WF_EXPECT(y && wf_comm_traffic(r.world).collectives == after.collectives, "evaluation sends");
    wf_tape_free(tape);
    wf_tensor_free(x);
    wf_layer_free(sync);
    WF_EXPECT_OK(wf_comm_close(r.world));
}

/* Swapping keeps objects, names and values. */
static void conversion(void)
{
    run r = run_open(&f64);
    r.what = "conversion";
    wf_layer *inner = wf_batchnorm(r.ctx, (wf_batchnorm_opts){.channels = CHANNELS, .act = WF_ACT_RELU});
    wf_layer *block = wf_sequential(r.ctx, WF_LAYERS(wf_lambda(r.ctx, wf_tanh), inner));
    wf_layer *model =
        wf_sequential(r.ctx, WF_LAYERS(block, wf_batchnorm(r.ctx, (wf_batchnorm_opts){.channels = CHANNELS})));
    wf_param *mean = wf_layer_param(model, "0/1/avg_mean");
    static double x[MOST];
    double before[CHANNELS], after[CHANNELS], loss[2];
    numbers(&r, 3, 0, 1, 4 * CHANNELS, x);
    values_set(wf_param_value(mean), x);
    param_get(inner, "avg_mean", false, before);
    wf_tape *tape = wf_tape_new(r.ctx);
    WF_EXPECT_OK(wf_tape_set_mode(tape, WF_EVAL));
    for (int i = 0; i < 2; i++) {
        wf_tensor *in = wf_tensor_from_host(r.ctx, WF_F64, WF_SHAPE(4, CHANNELS), x);
        wf_var *y = wf_apply(model, wf_input(tape, in));
        loss[i] = wf_item(wf_mean(wf_mul(y, y)));
        wf_tensor_free(in);
        WF_EXPECT_OK(wf_tape_reset(tape));
        if (i == 0)
            WF_EXPECT_OK(wf_to_sync_batchnorm(model, r.world));
    }
    param_get(inner, "avg_mean", false, after);
    WF_EXPECT(loss[0] == loss[1], "the loss was %g and is %g", loss[0], loss[1]);
    WF_EXPECT(memcmp(before, after, sizeof before) == 0, "the running mean is another");
    WF_EXPECT(wf_layer_param(model, "0/1/avg_mean") == mean, "the parameter is another");
    WF_EXPECT_OK(wf_tape_set_mode(tape, WF_TRAIN));
    const wf_traffic then = wf_comm_traffic(r.world);
    wf_tensor *in = wf_tensor_from_host(r.ctx, WF_F64, WF_SHAPE(4, CHANNELS), x);
    WF_EXPECT(wf_apply(model, wf_input(tape, in)), "%s", wf_error_message());
    WF_EXPECT(wf_comm_traffic(r.world).collectives == then.collectives + 2, "not both are synchronised");
    WF_EXPECT_OK(wf_to_sync_batchnorm(inner, r.world));
    wf_tensor_free(in);
    wf_tape_free(tape);
    wf_layer_free(model);
    WF_EXPECT_OK(wf_comm_close(r.world));
}

static void wrong_use(void)
{
    run r = run_open(&f64);
    wf_ctx *other = wf_ctx_new((wf_ctx_opts){.device = test_device("ref"), .dtype = WF_F64});
    wf_layer *foreign = wf_batchnorm(other, (wf_batchnorm_opts){.channels = 2});
    WF_EXPECT_ERROR(WF_ERR_ARGUMENT, wf_to_sync_batchnorm(foreign, r.world));
    WF_EXPECT(!wf_sync_batchnorm(r.world, (wf_batchnorm_opts){0}), "no channels are taken");
    wf_error_clear();
    wf_layer_free(foreign);
    wf_ctx_free(other);
    WF_EXPECT_OK(wf_comm_close(r.world));
}

/* One rank's input, or its residual, is wrong: it fails, and all others with it. */
static void one_fails_by(bool residual)
{
    run r = run_open(&f64);
    wf_layer *sync = wf_sync_batchnorm(r.world, (wf_batchnorm_opts){.channels = CHANNELS});
    wf_tape *tape = wf_tape_new(r.ctx);
    const bool bad = r.rank == r.size - 1;
    wf_tensor *good = wf_tensor_new(r.ctx, WF_F64, WF_SHAPE(2, CHANNELS));
    wf_tensor *x = wf_tensor_new(r.ctx, WF_F64, WF_SHAPE(2, bad ? CHANNELS + 1 : CHANNELS));
    WF_EXPECT_OK(wf_tensor_fill(good, 1));
    WF_EXPECT_OK(wf_tensor_fill(x, 1));
    wf_var *in = wf_input(tape, x);
    WF_EXPECT(!(residual ? wf_apply_residual(sync, wf_input(tape, good), in) : wf_apply(sync, in)), "rank %d goes on",
              r.rank);
    WF_EXPECT(wf_error_code() == WF_ERR_SHAPE, "rank %d: %s", r.rank, wf_error_message());
    wf_error_clear();
    wf_tensor_free(good);
    wf_tensor_free(x);
    wf_tape_free(tape);
    wf_layer_free(sync);
    wf_comm_close(r.world);
    wf_error_clear();
}

static void one_fails(void)
{
    one_fails_by(false);
    one_fails_by(true);
}

/* The communicator holds a part of the pixels: an error, not other statistics. */
static void parts_missing_in(bool converts)
{
    run r = run_open(&f64);
    wf_mesh *mesh = wf_mesh_open(r.world, (wf_mesh_opts){.height = r.size});
    wf_comm *alone = wf_mesh_comm(mesh, WF_AXIS_BIT(WF_AXIS_DATA));
    const wf_batchnorm_opts opts = {.channels = CHANNELS};
    wf_layer *sync = converts ? wf_batchnorm(r.ctx, opts) : wf_sync_batchnorm(alone, opts);
    const char *name = converts ? "wf_to_sync_batchnorm: the 1 ranks" : " sync_batchnorm: the 1 ranks";
    wf_layer *plain = wf_batchnorm(r.ctx, opts);
    if (converts)
        WF_EXPECT_OK(wf_to_sync_batchnorm(sync, alone));
    wf_layout layout;
    static const double zero[MOST];
    WF_EXPECT_OK(wf_mesh_layout_activation(mesh, WF_SHAPE(2, CHANNELS, 8, 2), &layout));
    wf_tape *tape = wf_tape_new(r.ctx);
    wf_tensor *x = tensor_of(&r, layout, true, zero);
    WF_EXPECT(!wf_apply(plain, wf_input(tape, x)) == (r.size > 1), "plain batch normalisation of a part");
    WF_EXPECT(r.size == 1 || strstr(wf_error_message(), "wf_sync_batchnorm"), "%s", wf_error_message());
    wf_error_clear();
    WF_EXPECT(!wf_apply(sync, wf_input(tape, x)) == (r.size > 1), "statistics of a part");
    WF_EXPECT(wf_error_code() == (r.size > 1 ? WF_ERR_ARGUMENT : WF_OK), "%s", wf_error_message());
    WF_EXPECT(r.size == 1 || strstr(wf_error_message(), name), "%s", wf_error_message());
    wf_error_clear();
    wf_tensor_free(x);
    wf_tape_free(tape);
    wf_layer_free(sync);
    wf_layer_free(plain);
    wf_mesh_close(mesh);
    wf_comm_close(r.world);
    wf_error_clear();
}

static void parts_missing(void)
{
    parts_missing_in(false);
    parts_missing_in(true);
}

static int on_ranks(int argc, char **argv)
{
    return test_main(argc, argv,
                     (test_case[]){{"samples_f64", samples_f64},
                                   {"samples_f32", samples_f32},
                                   {"groups_f64", groups_f64},
                                   {"groups_f32", groups_f32},
                                   {"pixels_f64", pixels_f64},
                                   {"pixels_f32", pixels_f32},
                                   {"random_f64", random_f64},
                                   {"hard_data", hard_data},
                                   {"one_message", one_message},
                                   {"conversion", conversion},
                                   {"wrong_use", wrong_use},
                                   {"one_fails", one_fails},
                                   {"parts_missing", parts_missing},
                                   {0}});
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
