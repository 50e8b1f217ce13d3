/* Attention in windows and neighbourhoods of images that ranks share, by rows, columns, samples and heads, at even,
 * uneven and empty cuts: y, dx and the gradients of all parameters are those of the serial layer, and the exchanges
 * move the pixels that windows or neighbourhoods lack, and no more. */
#include "tests/layers/attention_parts.h"

enum { SAMPLES = 2, FEATURES = 8, BOUNDS_MOST = 9 };

/* How rows and columns are cut: into balanced blocks, or at bounds with parts of none. */
typedef enum parts_kind { BALANCED, UNEVEN, ONE_HAS_ALL, PARTS } parts_kind;

typedef struct window_case {
    const char *name;
    int64_t rows, columns, window[2], shift[2];
    double dropout;
    parts_kind parts;
} window_case;

static const window_case cases[] = {
    {"whole windows", 8, 6, {2, 3}, {0, 0}, 0, BALANCED},
    {"shifted windows", 9, 6, {3, 3}, {1, 2}, 0.3, UNEVEN},
    {"padded windows", 7, 8, {3, 3}, {1, 1}, 0.3, BALANCED},
    {"padded windows, empty parts", 7, 5, {2, 2}, {1, 1}, 0, ONE_HAS_ALL},
    {"one window", 3, 2, {3, 3}, {1, 1}, 0.3, BALANCED},
};

static wf_layer *make_windows(const window_case *t, const wf_mesh *mesh)
{
    const wf_init init = {WF_INIT_UNIFORM, -0.5, 0.5};
    wf_layer *layer = wf_window_attention(
        ctx, (wf_window_attention_opts){.features = FEATURES,
                                        .heads = 4,
                                        .window_nd = {t->window[0], t->window[1]},
                                        .shift_nd = {t->shift[0], t->shift[1]},
                                        .dropout = t->dropout,
                                        .w_init = init,
                                        .mesh = mesh && wf_mesh_size(mesh, WF_AXIS_CHANNEL) > 1 ? mesh : NULL});
    return wf_layer_named(layer, "windows");
}

static void choose_bounds(parts_kind kind, int64_t length, int parts, int64_t *bounds)
{
    for (int r = 0; r <= parts; r++)
        bounds[r] = kind == BALANCED ? length * r / parts
                    : kind == UNEVEN ? length * r * r / (parts * parts)
                    : 2 * r > parts  ? length
                                     : 0;
}

static wf_layout cut_image(const window_case *t, const wf_mesh *mesh)
{
    int64_t rows[BOUNDS_MOST], columns[BOUNDS_MOST];
    wf_layout layout;
    choose_bounds(t->parts, t->rows, wf_mesh_size(mesh, WF_AXIS_HEIGHT), rows);
    choose_bounds(t->parts, t->columns, wf_mesh_size(mesh, WF_AXIS_WIDTH), columns);
    WF_EXPECT_OK(wf_mesh_layout(
        mesh, WF_SHAPE(SAMPLES, FEATURES, t->rows, t->columns),
        (wf_layout_opts){.dim = {[WF_AXIS_DATA] = WF_DIM(0), [WF_AXIS_HEIGHT] = WF_DIM(2), [WF_AXIS_WIDTH] = WF_DIM(3)},
                         .bounds = {[WF_AXIS_HEIGHT] = rows, [WF_AXIS_WIDTH] = columns}},
        &layout));
    return layout;
}

/* The rank of this place among `parts`; what is behind the end belongs to the last one. */
static int owner_of(const int64_t *bounds, int parts, int64_t at)
{
    int p = 0;
    while (p < parts - 1 && at >= bounds[p + 1])
        p++;
    return p;
}

/* Rows that the ranks of the height axis get from others in one exchange, of an image that no other axis cuts. */
static int64_t rows_moved(const window_case *t, const wf_layout *layout, int parts)
{
    const int64_t window = t->window[0], padded = (t->rows + window - 1) / window * window;
    const int64_t shift = padded > window ? t->shift[0] : 0, *const bounds = layout->bounds[WF_AXIS_HEIGHT];
    int64_t moved = 0;
    for (int64_t r = 0; r < padded; r++) {
        const int64_t first = r / window * window + shift, at = (r + shift) % padded;
        moved += owner_of(bounds, parts, first) != owner_of(bounds, parts, at);
    }
    return moved;
}

typedef struct window_outcome {
    double y[MOST], dx[MOST];
    uint64_t bytes;
    wf_layout layout; /* of y */
} window_outcome;

static void train_layer(const char *name, wf_layer *layer, const wf_mesh *mesh, wf_tape *tape, const wf_tensor *x,
                        window_outcome *to)
{
    WF_EXPECT(layer, "%s: %s", name, wf_error_message());
    set_biases(layer);
    WF_EXPECT_OK(wf_tape_set_iteration(tape, 3));
    const wf_comm *group = mesh ? wf_mesh_comm(mesh, WF_AXIS_BIT(WF_AXIS_HEIGHT)) : comm;
    const uint64_t before = wf_comm_traffic(group).bytes_sent;
    wf_var *leaf = wf_leaf(tape, x), *out = wf_apply(layer, leaf), *loss = wf_sum(wf_mul(out, wf_mul(out, out)));
    WF_EXPECT(loss, "%s: %s", name, wf_error_message());
    values_get(wf_value(out), to->y);
    to->layout = wf_value(out)->layout;
    WF_EXPECT_OK(wf_backward(loss));
    to->bytes = wf_comm_traffic(group).bytes_sent - before;
    values_get(wf_grad(leaf), to->dx);
    WF_EXPECT_OK(wf_tape_reset(tape));
}

static void compare_outcomes(const char *name, const wf_mesh *mesh, const wf_layout *layout,
                             const window_outcome *serial, const window_outcome *parallel)
{
    const double y = part_error(layout, serial->y, parallel->y), dx = part_error(layout, serial->dx, parallel->dx);
    WF_EXPECT(y < 1e-12, "%s on %s: y is off by %g", name, wf_mesh_text(mesh), y);
    WF_EXPECT(dx < 1e-12, "%s on %s: dx is off by %g", name, wf_mesh_text(mesh), dx);
}

static void compare_gradients(const char *name, const wf_mesh *mesh, wf_layer *one, wf_layer *all, int64_t params)
{
    int64_t count = 0, others = 0;
    wf_param *const *a, *const *b;
    WF_EXPECT_OK(wf_layer_params(one, &count, &a));
    WF_EXPECT_OK(wf_layer_params(all, &others, &b));
    WF_EXPECT(count == params && others == params, "%s: %lld and %lld parameters", name, (long long)count,
              (long long)others);
    for (int64_t i = 0; i < count && i < others; i++)
        compare_gradient(name, mesh, a[i], b[i]);
}

static void compare_bytes(const window_case *t, const wf_mesh *mesh, const wf_layout *layout, uint64_t bytes)
{
    const int high = wf_mesh_size(mesh, WF_AXIS_HEIGHT);
    double sent = (double)bytes;
    if (high == 1 || wf_mesh_size(mesh, WF_AXIS_WIDTH) > 1 || wf_mesh_size(mesh, WF_AXIS_CHANNEL) > 1)
        return;
    WF_EXPECT_OK(wf_allreduce_f64(wf_mesh_comm(mesh, WF_AXIS_BIT(WF_AXIS_HEIGHT)), &sent, 1, WF_SUM));
    const int64_t samples = layout->box.hi[0] - layout->box.lo[0];
    const double want = (double)(4 * rows_moved(t, layout, high) * samples * FEATURES * t->columns * 8);
    WF_EXPECT(sent == want, "%s: %g bytes were sent, should be %g", t->name, sent, want);
}

/* A serial layer that wf_parallelize places on the mesh takes an image that only samples cut, and gives one that all
 * axes cut. Takes the layer. */
static void compare_placed(const char *name, const wf_mesh *mesh, wf_layer *serial, wf_layer *mine, const wf_tensor *x,
                           const window_outcome *want)
{
    static window_outcome got;
    wf_layout layout;
    int64_t count = 0, others = 0;
    wf_param *const *a, *const *b;
    wf_tape *tape = wf_tape_new(ctx);
    WF_EXPECT_OK(wf_parallelize(mine, mesh, WF_PARALLEL_SPATIAL));
    WF_EXPECT_OK(wf_mesh_layout(mesh, x->shape, (wf_layout_opts){.dim = {[WF_AXIS_DATA] = WF_DIM(0)}}, &layout));
    wf_tensor *part = wf_tensor_redistribute(x, layout);
    train_layer(name, mine, mesh, tape, part, &got);
    const int high = wf_mesh_size(mesh, WF_AXIS_HEIGHT), wide = wf_mesh_size(mesh, WF_AXIS_WIDTH);
    WF_EXPECT(wf_layout_is_sharded(&got.layout, 2) == (high > 1) && wf_layout_is_sharded(&got.layout, 3) == (wide > 1),
              "%s on %s: wf_parallelize does not cut the image", name, wf_mesh_text(mesh));
    WF_EXPECT(part_error(&got.layout, want->y, got.y) < 1e-12 && part_error(&layout, want->dx, got.dx) < 1e-12,
              "%s on %s: y or dx is off after wf_parallelize", name, wf_mesh_text(mesh));
    WF_EXPECT_OK(wf_layer_params(serial, &count, &a));
    WF_EXPECT_OK(wf_layer_params(mine, &others, &b));
    for (int64_t i = 0; i < count && i < others; i++)
        compare_gradient(name, mesh, a[i], b[i]);
    wf_layer_free(mine);
    wf_tensor_free(part);
    wf_tape_free(tape);
}

static void compare_windows(const window_case *t, const wf_mesh *mesh)
{
    static window_outcome serial, parallel;
    double host[MOST];
    test_rng rng = {11};
    wf_tape *tape = wf_tape_new(ctx);
    wf_tensor *x = wf_tensor_new(ctx, WF_F64, WF_SHAPE(SAMPLES, FEATURES, t->rows, t->columns));
    for (int i = 0; i < MOST; i++)
        host[i] = test_uniform(&rng, -1, 1);
    values_set(x, host);
    const wf_layout layout = cut_image(t, mesh);
    wf_tensor *part = wf_tensor_redistribute(x, layout);
    wf_layer *one = make_windows(t, NULL), *all = make_windows(t, mesh);
    train_layer(t->name, one, NULL, tape, x, &serial);
    train_layer(t->name, all, mesh, tape, part, &parallel);
    compare_outcomes(t->name, mesh, &layout, &serial, &parallel);
    compare_bytes(t, mesh, &layout, parallel.bytes);
    compare_gradients(t->name, mesh, one, all, 9);
    if (wf_mesh_size(mesh, WF_AXIS_CHANNEL) == 1 && t->parts == BALANCED)
        compare_placed(t->name, mesh, one, make_windows(t, NULL), x, &serial);
    wf_layer_free(one);
    wf_layer_free(all);
    wf_tensor_free(part);
    wf_tensor_free(x);
    wf_tape_free(tape);
}

#include "tests/layers/neighbour_parts.h"

static void compare_all(const wf_mesh *mesh)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        compare_windows(&cases[i], mesh);
    for (size_t i = 0; i < sizeof near_cases / sizeof *near_cases; i++)
        compare_near(&near_cases[i], mesh);
}

static void windows(void)
{
    begin_ranks();
    for (int high = 1; high <= size; high++)
        for (int wide = 1; high * wide <= size; wide++) {
            const int rest = size / (high * wide);
            if (high * wide * rest != size)
                continue;
            /* Both by rows and by columns: heads are cut too. */
            const bool heads = high > 1 || wide > 1;
            wf_mesh *mesh = wf_mesh_open(
                comm,
                (wf_mesh_opts){.data = heads ? 1 : rest, .channel = heads ? rest : 1, .height = high, .width = wide});
            WF_EXPECT(mesh, "%s", wf_error_message());
            compare_all(mesh);
            wf_mesh_close(mesh);
        }
    if (size == 4) {
        wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.data = 2, .height = 2});
        compare_all(mesh);
        wf_mesh_close(mesh);
    }
    WF_EXPECT_OK(wf_comm_close(comm));
}

static int run(int argc, char **argv)
{
    return test_main(argc, argv, (test_case[]){{"windows", windows}, {0}});
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, run);
}
