/* Neighbourhood attention of images that ranks share, beside the serial one: for tests/layers/equiv_windows.c. */
#ifndef WF_TESTS_NEIGHBOUR_PARTS_H
#define WF_TESTS_NEIGHBOUR_PARTS_H

#include "tests/layers/attention_parts.h"

typedef struct near_case {
    const char *name;
    int64_t rows, columns, kernel[2], dilation[2];
    bool no_relative;
    parts_kind parts;
} near_case;

static const near_case near_cases[] = {
    {"odd kernels", 9, 7, {3, 5}, {1, 1}, false, BALANCED},
    {"even kernels, uneven parts", 10, 8, {4, 2}, {1, 1}, false, UNEVEN},
    {"parts smaller than the kernel", 8, 8, {7, 6}, {1, 1}, false, BALANCED},
    {"dilated kernels", 11, 9, {3, 4}, {3, 2}, false, UNEVEN},
    {"empty parts", 7, 6, {5, 3}, {1, 2}, true, ONE_HAS_ALL},
    {"one pixel", 5, 4, {1, 1}, {1, 1}, false, BALANCED},
};

static wf_layer *make_near(const near_case *t, const wf_mesh *mesh)
{
    const wf_init init = {WF_INIT_UNIFORM, -0.5, 0.5};
    wf_layer *layer = wf_neighbourhood_attention(
        ctx, (wf_neighbourhood_attention_opts){.features = FEATURES,
                                               .heads = 4,
                                               .kernel_nd = {t->kernel[0], t->kernel[1]},
                                               .dilation_nd = {t->dilation[0], t->dilation[1]},
                                               .no_relative = t->no_relative,
                                               .w_init = init,
                                               .mesh = mesh && wf_mesh_size(mesh, WF_AXIS_CHANNEL) > 1 ? mesh : NULL});
    return wf_layer_named(layer, "around");
}

/* Rows that a rank of the height axis reads and does not have: those of its pixels' windows, found pixel by pixel. */
static int64_t rows_read(const near_case *t, const wf_layout *layout, int part)
{
    const int64_t step = t->dilation[0], kernel = t->kernel[0], *const bounds = layout->bounds[WF_AXIS_HEIGHT];
    int64_t lo = t->rows, hi = 0;
    for (int64_t i = bounds[part]; i < bounds[part + 1]; i++) {
        const int64_t rest = i % step, n = (t->rows - rest + step - 1) / step;
        int64_t first = i / step - kernel / 2;
        first = first < 0 ? 0 : first + kernel > n ? n - kernel : first;
        const int64_t from = first * step + rest, to = from + (kernel - 1) * step + 1;
        lo = from < lo ? from : lo;
        hi = to > hi ? to : hi;
    }
    return hi > lo ? hi - lo - (bounds[part + 1] - bounds[part]) : 0;
}

static void compare_near_bytes(const near_case *t, const wf_mesh *mesh, const wf_layout *layout, uint64_t bytes)
{
    const int high = wf_mesh_size(mesh, WF_AXIS_HEIGHT);
    double sent = (double)bytes, rows = 0;
    if (high == 1 || wf_mesh_size(mesh, WF_AXIS_WIDTH) > 1 || wf_mesh_size(mesh, WF_AXIS_CHANNEL) > 1)
        return;
    for (int p = 0; p < high; p++)
        rows += (double)rows_read(t, layout, p);
    WF_EXPECT_OK(wf_allreduce_f64(wf_mesh_comm(mesh, WF_AXIS_BIT(WF_AXIS_HEIGHT)), &sent, 1, WF_SUM));
    /* Keys and values there, and their gradients back. */
    const double want = 4 * rows * (double)((layout->box.hi[0] - layout->box.lo[0]) * FEATURES * t->columns * 8);
    WF_EXPECT(sent == want, "%s: %g bytes were sent, should be %g", t->name, sent, want);
}

static void compare_near(const near_case *t, const wf_mesh *mesh)
{
    static window_outcome serial, parallel;
    double host[MOST];
    test_rng rng = {12};
    wf_tape *tape = wf_tape_new(ctx);
    wf_tensor *x = wf_tensor_new(ctx, WF_F64, WF_SHAPE(SAMPLES, FEATURES, t->rows, t->columns));
    for (int i = 0; i < MOST; i++)
        host[i] = test_uniform(&rng, -1, 1);
    values_set(x, host);
    const window_case cut = {.name = t->name, .rows = t->rows, .columns = t->columns, .parts = t->parts};
    const wf_layout layout = cut_image(&cut, mesh);
    wf_tensor *part = wf_tensor_redistribute(x, layout);
    wf_layer *one = make_near(t, NULL), *all = make_near(t, mesh);
    train_layer(t->name, one, NULL, tape, x, &serial);
    train_layer(t->name, all, mesh, tape, part, &parallel);
    compare_outcomes(t->name, mesh, &layout, &serial, &parallel);
    compare_near_bytes(t, mesh, &layout, parallel.bytes);
    compare_gradients(t->name, mesh, one, all, t->no_relative ? 8 : 9);
    if (wf_mesh_size(mesh, WF_AXIS_CHANNEL) == 1 && t->parts == BALANCED)
        compare_placed(t->name, mesh, one, make_near(t, NULL), x, &serial);
    wf_layer_free(one);
    wf_layer_free(all);
    wf_tensor_free(part);
    wf_tensor_free(x);
    wf_tape_free(tape);
}

#endif
