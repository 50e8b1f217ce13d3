/* Layer, RMS, group and instance normalisation of inputs that are cut over a mesh in samples, channels and pixels, in
 * balanced, uneven and empty parts, give what the serial layers give of the whole: output and gradients; with one
 * message in each direction over the ranks that share groups, and none where groups are whole. */
#include "tests/layers/mesh_fixture.h"

typedef enum form { LAYER = 0, LAST, RMS, RMS_LAST, GROUP, INSTANCE } form;

typedef struct norm_case {
    const char *name;
    form form;
    wf_shape x;
    int64_t groups; /* of GROUP */
    int last;       /* dimensions of LAST and RMS_LAST */
    bool plain;     /* neither gamma nor beta */
} norm_case;

static wf_shape last_of(const norm_case *c)
{
    return wf_shape_make(c->last, c->x.dim + c->x.rank - c->last);
}

/* mesh NULL: the serial layer. Both have one name, and so equal random parameters. */
static wf_layer *make(const norm_case *c, const wf_mesh *mesh)
{
    const wf_init random = {WF_INIT_NORMAL, 0.5, 1};
    const bool last = c->form == LAST || c->form == RMS_LAST;
    const wf_layernorm_opts l = {.shape = last ? last_of(c) : (wf_shape){0},
                                 .channels = last ? 0 : c->x.dim[1],
                                 .eps = 1e-3,
                                 .no_gamma = c->plain,
                                 .no_beta = c->plain,
                                 .gamma_init = random,
                                 .beta_init = random};
    const wf_rmsnorm_opts r = {l.shape, l.channels, l.eps, l.no_gamma, random};
    const wf_groupnorm_opts g = {l.channels, c->groups, l.eps, l.no_gamma, l.no_beta, random, random};
    const wf_instancenorm_opts i = {l.channels, l.eps, l.no_gamma, l.no_beta, random, random};
    wf_layer *layer = NULL;
    if (c->form == LAYER || c->form == LAST)
        layer = mesh ? wf_mesh_layernorm(mesh, l) : wf_layernorm(run.ctx, l);
    else if (c->form == RMS || c->form == RMS_LAST)
        layer = mesh ? wf_mesh_rmsnorm(mesh, r) : wf_rmsnorm(run.ctx, r);
    else if (c->form == GROUP)
        layer = mesh ? wf_mesh_groupnorm(mesh, g) : wf_groupnorm(run.ctx, g);
    else
        layer = mesh ? wf_mesh_instancenorm(mesh, i) : wf_instancenorm(run.ctx, i);
    WF_EXPECT(layer, "%s: %s", c->name, wf_error_trail());
    return wf_layer_named(layer, "norm");
}

static wf_order order_of(wf_shape shape)
{
    return shape.rank >= 3 ? WF_CHANNELS_LAST : WF_ROW_MAJOR;
}

static wf_tensor *cut_out(const wf_tensor *whole, const wf_layout *layout)
{
    wf_tensor *view = wf_tensor_view(whole, layout->box),
              *part = wf_tensor_copy(view, run.flows, order_of(layout->global));
    WF_EXPECT_OK(wf_tensor_set_layout(part, *layout));
    wf_tensor_free(view);
    return part;
}

/* The gradient of a parameter, summed over the ranks that have parts of it, beside the serial one. */
static void compare_factor(const norm_case *c, const wf_mesh *mesh, wf_layer *layer, wf_layer *serial, const char *name)
{
    wf_param *own = wf_layer_param(layer, name), *whole = wf_layer_param(serial, name);
    const int64_t n = wf_shape_count(wf_param_shape(whole));
    double *should = values(wf_param_grad(whole));
    double *seen = wf_param_grad(own) ? values(wf_param_grad(own)) : calloc((size_t)n, sizeof *seen);
    WF_EXPECT_OK(wf_allreduce_f64(wf_mesh_comm(mesh, own->axes), seen, n, WF_SUM));
    double most = 1e-3, off = 0;
    for (int64_t i = 0; i < n; i++) {
        most = fmax(most, fabs(should[i]));
        off = fmax(off, fabs(seen[i] - should[i]));
    }
    WF_EXPECT(off <= run.tolerance * most, "%s: gradient of %s is off by %g of %g", c->name, name, off, most);
    free(seen);
    free(should);
}

/* One application and its backward. */
static void compare(const norm_case *c, const wf_mesh *mesh, const wf_layout *layout, test_rng *rng)
{
    char name[WF_LAYOUT_TEXT + 96], text[WF_LAYOUT_TEXT];
    wf_layer *layer = make(c, mesh), *serial = make(c, NULL);
    wf_tensor *x = random_tensor(c->x, rng), *dy = random_tensor(c->x, rng);
    wf_tensor *own_x = cut_out(x, layout), *own_dy = cut_out(dy, layout);
    snprintf(name, sizeof name, "%s of %s on %s", c->name, wf_layout_text(layout, text), wf_mesh_text(mesh));
    norm_case named = *c;
    named.name = name;
    wf_var *leaf = wf_leaf(run.tape, x), *own_leaf = wf_leaf(run.tape, own_x);
    wf_var *y = wf_apply(serial, leaf), *own_y = wf_apply(layer, own_leaf);
    WF_EXPECT(y && own_y, "%s: %s", name, wf_error_trail());
    if (y && own_y) {
        wf_tensor *part = cut_out(wf_value(y), layout);
        expect_equal(name, "y", wf_value(own_y), part, wf_value(y), false);
        wf_tensor_free(part);
        WF_EXPECT_OK(wf_backward_from(y, dy));
        WF_EXPECT_OK(wf_backward_from(own_y, own_dy));
        part = cut_out(wf_grad(leaf), layout);
        expect_equal(name, "dx", wf_grad(own_leaf), part, wf_grad(leaf), false);
        wf_tensor_free(part);
        if (!c->plain)
            compare_factor(&named, mesh, layer, serial, "gamma");
        if (!c->plain && c->form != RMS && c->form != RMS_LAST)
            compare_factor(&named, mesh, layer, serial, "beta");
    }
    WF_EXPECT_OK(wf_tape_reset(run.tape));
    wf_tensor_free(own_dy);
    wf_tensor_free(own_x);
    wf_tensor_free(dy);
    wf_tensor_free(x);
    wf_layer_free(serial);
    wf_layer_free(layer);
}

static int meshes(wf_mesh_opts list[8])
{
    const int p = wf_comm_size(run.comm);
    int n = 0;
    list[n++] = (wf_mesh_opts){.channel = p};
    list[n++] = (wf_mesh_opts){.height = p};
    list[n++] = (wf_mesh_opts){.width = p};
    list[n++] = (wf_mesh_opts){.data = p};
    if (p % 2 == 0 && p > 2) {
        list[n++] = (wf_mesh_opts){.channel = 2, .height = p / 2};
        list[n++] = (wf_mesh_opts){.height = 2, .width = p / 2};
        list[n++] = (wf_mesh_opts){.data = 2, .channel = p / 2};
        list[n++] = (wf_mesh_opts){.data = 2, .width = p / 2};
    }
    return n;
}

static const norm_case *cases(int *count)
{
    static norm_case list[24];
    int n = 0;
    list[n++] = (norm_case){"layernorm of channels", LAYER, WF_SHAPE(3, 5, 4, 6), 0, 0, false};
    list[n++] = (norm_case){"layernorm of a matrix", LAYER, WF_SHAPE(5, 9), 0, 0, false};
    list[n++] = (norm_case){"layernorm of tokens", LAST, WF_SHAPE(3, 5, 7), 0, 1, false};
    list[n++] = (norm_case){"layernorm of planes", LAST, WF_SHAPE(3, 4, 3, 5), 0, 2, false};
    list[n++] = (norm_case){"layernorm of images", LAST, WF_SHAPE(4, 4, 3, 2), 0, 3, false};
    list[n++] = (norm_case){"rmsnorm of channels", RMS, WF_SHAPE(2, 7, 3, 3), 0, 0, false};
    list[n++] = (norm_case){"rmsnorm of tokens", RMS_LAST, WF_SHAPE(3, 5, 6), 0, 1, false};
    list[n++] = (norm_case){"plain rmsnorm", RMS_LAST, WF_SHAPE(3, 5, 4), 0, 2, true};
    list[n++] = (norm_case){"groupnorm", GROUP, WF_SHAPE(3, 6, 4, 5), 2, 0, false};
    list[n++] = (norm_case){"groupnorm in pairs", GROUP, WF_SHAPE(2, 8, 5, 3), 4, 0, false};
    list[n++] = (norm_case){"groupnorm of all", GROUP, WF_SHAPE(3, 5, 3, 4), 1, 0, true};
    list[n++] = (norm_case){"groupnorm of a volume", GROUP, WF_SHAPE(2, 6, 2, 3, 4), 3, 0, false};
    list[n++] = (norm_case){"groupnorm of a matrix", GROUP, WF_SHAPE(5, 9), 3, 0, false};
    list[n++] = (norm_case){"instancenorm", INSTANCE, WF_SHAPE(3, 5, 4, 3), 0, 0, false};
    list[n++] = (norm_case){"plain instancenorm", INSTANCE, WF_SHAPE(2, 4, 9), 0, 0, true};
    *count = n;
    return list;
}

static void every_cut(const char *device, wf_dtype dtype, double tolerance, int layouts)
{
    wf_mesh_opts grid[8];
    test_rng rng = {20260711};
    int count;
    const norm_case *const list = cases(&count);
    open_run(device, dtype, tolerance);
    const int grids = meshes(grid);
    for (int g = 0; g < grids; g++)
        for (int i = 0; i < count; i++)
            for (int way = 0; way < layouts; way++) {
                const wf_mesh *mesh = mesh_of(grid[g]);
                const wf_layout layout = random_layout(mesh, list[i].x, (held)(way % HELDS), &rng);
                compare(&list[i], mesh, &layout, &rng);
            }
    close_run();
}

static void every_cut_f64(void)
{
    every_cut("ref", WF_F64, 1e-12, test_samples(60));
}

static void every_cut_f32(void)
{
    every_cut("cpu", WF_F32, 2e-5, test_samples(30));
}

/* Collectives and bytes by the formulas of layers/mesh_norm.h. */
typedef struct traffic_case {
    norm_case norm;
    wf_mesh_opts grid;
    int64_t columns; /* 0: nothing is sent */
} traffic_case;

static void traffic(void)
{
    open_run("cpu", WF_F32, 1e-5);
    const int p = wf_comm_size(run.comm);
    const wf_shape image = WF_SHAPE(2, 2 * p, 8, 8), odd = WF_SHAPE(2, 3 * p, 8, 8);
    const wf_mesh_opts rows = {.height = p}, channels = {.channel = p}, data = {.data = p};
    const traffic_case list[] = {
        {{"pixels of groups", GROUP, image, p, 0, false}, rows, (int64_t)2 * p},
        {{"pixels of instances", INSTANCE, image, 0, 0, false}, rows, (int64_t)4 * p},
        {{"pixels of layers", LAYER, image, 0, 0, false}, rows, 0},
        {{"channels of layers", LAYER, image, 0, 0, false}, channels, 2 * 64},
        {{"channels of instances", INSTANCE, image, 0, 0, false}, channels, 0},
        {{"channels between groups", GROUP, image, p, 0, false}, channels, 0},
        {{"channels inside groups", GROUP, odd, 1, 0, false}, channels, 2},
        {{"rows of the last dimension", LAST, image, 0, 1, false}, rows, 0},
        {{"rows of the last two", LAST, image, 0, 2, false}, rows, (int64_t)4 * p},
        {{"samples", GROUP, image, p, 0, false}, data, 0},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        const traffic_case *const t = &list[i];
        const wf_mesh *mesh = mesh_of(t->grid);
        const uint64_t others = (uint64_t)p - 1, columns = p > 1 ? (uint64_t)t->columns : 0;
        test_rng rng = {i + 1};
        wf_layout layout;
        WF_EXPECT_OK(wf_mesh_layout_activation(mesh, t->norm.x, &layout));
        wf_layer *layer = make(&t->norm, mesh);
        wf_tensor *whole = random_tensor(t->norm.x, &rng), *x = cut_out(whole, &layout);
        wf_comm *over = wf_mesh_comm(mesh, p == 1            ? 0
                                           : t->grid.height  ? WF_AXIS_BIT(WF_AXIS_HEIGHT)
                                           : t->grid.channel ? WF_AXIS_BIT(WF_AXIS_CHANNEL)
                                                             : WF_AXIS_BIT(WF_AXIS_DATA));
        const wf_traffic before = wf_comm_traffic(over);
        wf_var *leaf = wf_leaf(run.tape, x), *y = wf_apply(layer, leaf);
        const wf_traffic between = wf_comm_traffic(over);
        WF_EXPECT_OK(wf_backward_from(y, x));
        const wf_traffic after = wf_comm_traffic(over);
        WF_EXPECT(between.collectives - before.collectives == (columns > 0), "%s: forward has %d collectives",
                  t->norm.name, (int)(between.collectives - before.collectives));
        WF_EXPECT(after.collectives - between.collectives == (columns > 0), "%s: backward has %d collectives",
                  t->norm.name, (int)(after.collectives - between.collectives));
        WF_EXPECT(between.bytes_sent - before.bytes_sent == others * 24 * columns, "%s: forward sends %d bytes",
                  t->norm.name, (int)(between.bytes_sent - before.bytes_sent));
        WF_EXPECT(after.bytes_sent - between.bytes_sent == others * 16 * columns, "%s: backward sends %d bytes",
                  t->norm.name, (int)(after.bytes_sent - between.bytes_sent));
        WF_EXPECT_OK(wf_tape_reset(run.tape));
        wf_tensor_free(x);
        wf_tensor_free(whole);
        wf_layer_free(layer);
    }
    close_run();
}

/* A large mean beside a small spread: squares are taken from the mean, also across ranks. */
static void hard_data(void)
{
    open_run("ref", WF_F64, 1e-6);
    const norm_case c = {"mean 1e4", GROUP, WF_SHAPE(2, 6, 5, 7), 2, 0, false};
    const wf_mesh *mesh = mesh_of((wf_mesh_opts){.height = wf_comm_size(run.comm)});
    test_rng rng = {3};
    wf_layer *layer = make(&c, mesh), *serial = make(&c, NULL);
    wf_tensor *x = random_tensor(c.x, &rng), *dense = wf_tensor_copy(x, WF_F64, WF_ROW_MAJOR);
    double *host = values(dense);
    for (int64_t i = 0; i < wf_tensor_count(x); i++)
        host[i] = 1e4 + 1e-2 * host[i];
    WF_EXPECT_OK(wf_tensor_import(x, host, wf_tensor_bytes(x)));
    wf_layout layout;
    WF_EXPECT_OK(wf_mesh_layout_activation(mesh, c.x, &layout));
    wf_tensor *own = cut_out(x, &layout);
    wf_var *y = wf_apply(serial, wf_input(run.tape, x)), *own_y = wf_apply(layer, wf_input(run.tape, own));
    wf_tensor *part = cut_out(wf_value(y), &layout);
    expect_equal(c.name, "y", wf_value(own_y), part, wf_value(y), false);
    free(host);
    wf_tensor_free(part);
    wf_tensor_free(own);
    wf_tensor_free(dense);
    wf_tensor_free(x);
    WF_EXPECT_OK(wf_tape_reset(run.tape));
    wf_layer_free(serial);
    wf_layer_free(layer);
    close_run();
}

static void expect_refused(wf_var *y, wf_status code, const char *text)
{
    WF_EXPECT(!y, "is not refused; should be: %s", text);
    WF_EXPECT(wf_error_code() == code && strstr(wf_error_message(), text), "%s does not say %s", wf_error_message(),
              text);
    wf_error_clear();
}

/* The serial layers refuse a cut through groups, those of a mesh an input of another mesh. */
static void wrong_use(void)
{
    open_run("ref", WF_F64, 1e-12);
    const int p = wf_comm_size(run.comm);
    const norm_case c = {"groupnorm", GROUP, WF_SHAPE(2, 6, 8, 8), 2, 0, false};
    const wf_mesh *mesh = mesh_of((wf_mesh_opts){.height = p}), *other = mesh_of((wf_mesh_opts){.width = p});
    WF_EXPECT_OK(wf_barrier(run.comm)); /* else a failure below may end a rank that still opens its mesh */
    test_rng rng = {3};
    wf_layout layout;
    WF_EXPECT_OK(wf_mesh_layout_activation(mesh, c.x, &layout));
    wf_tensor *x = random_tensor(c.x, &rng), *part = cut_out(x, &layout);
    wf_layer *serial = make(&c, NULL), *elsewhere = make(&c, other);
    wf_layer *rows = wf_layernorm(run.ctx, (wf_layernorm_opts){.channels = 6});
    WF_EXPECT(wf_apply(rows, wf_input(run.tape, part)), "whole groups: %s", wf_error_message());
    if (p > 1) {
        expect_refused(wf_apply(serial, wf_input(run.tape, part)), WF_ERR_SHAPE, "wf_mesh_groupnorm takes parts");
        expect_refused(wf_apply(elsewhere, wf_input(run.tape, part)), WF_ERR_ARGUMENT, "another mesh");
    }
    WF_EXPECT_OK(wf_tape_reset(run.tape));
    wf_layer_free(rows);
    wf_layer_free(elsewhere);
    wf_layer_free(serial);
    wf_tensor_free(part);
    wf_tensor_free(x);
    for (int i = 0; i < run.n; i++)
        wf_mesh_close(run.mesh[i]);
    wf_tape_free(run.tape);
    wf_comm_close(run.comm); /* which failed, where there are others */
    wf_error_clear();
}

/* One rank's input is wrong: it fails, and all others with it. */
static void one_fails(void)
{
    open_run("ref", WF_F64, 1e-12);
    const int p = wf_comm_size(run.comm);
    const wf_mesh *mesh = mesh_of((wf_mesh_opts){.height = p});
    const bool bad = wf_comm_rank(run.comm) == p - 1;
    WF_EXPECT_OK(wf_barrier(run.comm)); /* as in wrong_use */
    wf_layout layout;
    WF_EXPECT_OK(wf_mesh_layout_activation(mesh, WF_SHAPE(2, bad ? 4 : 6, 8, 8), &layout));
    wf_tensor *x = wf_tensor_new(run.ctx, WF_F64, wf_box_shape(layout.box));
    WF_EXPECT_OK(wf_tensor_fill(x, 1));
    WF_EXPECT_OK(wf_tensor_set_layout(x, layout));
    wf_layer *layer = wf_mesh_instancenorm(mesh, (wf_instancenorm_opts){.channels = 6});
    expect_refused(wf_apply(layer, wf_input(run.tape, x)), WF_ERR_SHAPE, "input [2,4,8,8], should be [N,6]");
    wf_tensor_free(x);
    wf_layer_free(layer);
    for (int i = 0; i < run.n; i++)
        wf_mesh_close(run.mesh[i]);
    wf_tape_free(run.tape);
    wf_comm_close(run.comm);
    wf_error_clear();
}

static int on_ranks(int argc, char **argv)
{
    return test_main(argc, argv,
                     (test_case[]){{"every_cut_f64", every_cut_f64},
                                   {"every_cut_f32", every_cut_f32},
                                   {"traffic", traffic},
                                   {"hard_data", hard_data},
                                   {"wrong_use", wrong_use},
                                   {"one_fails", one_fails},
                                   {0}});
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
