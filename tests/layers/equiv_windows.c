/* Attention in windows of images that ranks share, by rows, columns, samples and heads, at even, uneven and empty cuts:
 * y, dx and the gradients of all parameters are those of the serial layer, and two exchanges in each direction move
 * the pixels that windows lack, and no more. */
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
} window_outcome;

static wf_layer *train_windows(const window_case *t, const wf_mesh *mesh, wf_tape *tape, const wf_tensor *x,
                               window_outcome *to)
{
    wf_layer *layer = make_windows(t, mesh);
    WF_EXPECT(layer, "%s: %s", t->name, wf_error_message());
    set_biases(layer);
    WF_EXPECT_OK(wf_tape_set_iteration(tape, 3));
    const wf_comm *group = mesh ? wf_mesh_comm(mesh, WF_AXIS_HEIGHT) : comm;
    const uint64_t before = wf_comm_traffic(group).bytes_sent;
    wf_var *leaf = wf_leaf(tape, x), *out = wf_apply(layer, leaf), *loss = wf_sum(wf_mul(out, wf_mul(out, out)));
    WF_EXPECT(loss, "%s: %s", t->name, wf_error_message());
    values_get(wf_value(out), to->y);
    WF_EXPECT_OK(wf_backward(loss));
    to->bytes = wf_comm_traffic(group).bytes_sent - before;
    values_get(wf_grad(leaf), to->dx);
    WF_EXPECT_OK(wf_tape_reset(tape));
    return layer;
}

static void compare_bytes(const window_case *t, const wf_mesh *mesh, const wf_layout *layout, uint64_t bytes)
{
    const int high = wf_mesh_size(mesh, WF_AXIS_HEIGHT);
    double sent = (double)bytes;
    if (high == 1 || wf_mesh_size(mesh, WF_AXIS_WIDTH) > 1 || wf_mesh_size(mesh, WF_AXIS_CHANNEL) > 1)
        return;
    WF_EXPECT_OK(wf_allreduce_f64(wf_mesh_comm(mesh, WF_AXIS_HEIGHT), &sent, 1, WF_SUM));
    const int64_t samples = layout->box.hi[0] - layout->box.lo[0];
    const double want = (double)(4 * rows_moved(t, layout, high) * samples * FEATURES * t->columns * 8);
    WF_EXPECT(sent == want, "%s: %g bytes were sent, should be %g", t->name, sent, want);
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
    wf_layer *one = train_windows(t, NULL, tape, x, &serial);
    wf_layer *all = train_windows(t, mesh, tape, part, &parallel);
    WF_EXPECT(part_error(&layout, serial.y, parallel.y) < 1e-12, "%s on %s: y is off by %g", t->name,
              wf_mesh_text(mesh), part_error(&layout, serial.y, parallel.y));
    WF_EXPECT(part_error(&layout, serial.dx, parallel.dx) < 1e-12, "%s on %s: dx is off by %g", t->name,
              wf_mesh_text(mesh), part_error(&layout, serial.dx, parallel.dx));
    compare_bytes(t, mesh, &layout, parallel.bytes);
    int64_t count = 0, others = 0;
    wf_param *const *a, *const *b;
    WF_EXPECT_OK(wf_layer_params(one, &count, &a));
    WF_EXPECT_OK(wf_layer_params(all, &others, &b));
    WF_EXPECT(count == 9 && others == 9, "%s: %lld and %lld parameters", t->name, (long long)count, (long long)others);
    for (int64_t i = 0; i < count && i < others; i++)
        compare_gradient(t->name, mesh, a[i], b[i]);
    wf_layer_free(one);
    wf_layer_free(all);
    wf_tensor_free(part);
    wf_tensor_free(x);
    wf_tape_free(tape);
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
            for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
                compare_windows(&cases[i], mesh);
            wf_mesh_close(mesh);
        }
    if (size == 4) {
        wf_mesh *mesh = wf_mesh_open(comm, (wf_mesh_opts){.data = 2, .height = 2});
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
            compare_windows(&cases[i], mesh);
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
