/* Layers whose inputs go on beyond the edges, on one rank: convolution, transposed convolution, pooling and upsampling
 * by the formula of each element, output and gradients; known numbers; central differences; what is refused. */
#include "core/tape_author.h"
#include "layers/functions.h"
#include "layers/pad.h"
#include "tests/layers/boundary_question.h"

static const double *part(const wf_layer *layer, int which, double **memory)
{
    wf_param *p = layer->n_params > which ? layer->params[which] : NULL;
    *memory = p ? values(wf_param_value(p)) : NULL;
    return *memory;
}

static void expect_close(const char *name, const char *what, const wf_tensor *seen, const double *should, int64_t n)
{
    double *got = seen ? values(seen) : NULL, most = 1, off = 0;
    WF_EXPECT(got && wf_tensor_count(seen) == n, "%s: no %s: %s", name, what, wf_error_message());
    for (int64_t i = 0; got && i < n; i++) {
        most = fmax(most, isfinite(should[i]) ? fabs(should[i]) : 0);
        if (got[i] != should[i])
            off = fmax(off, isfinite(got[i] - should[i]) ? fabs(got[i] - should[i]) : INFINITY);
    }
    WF_EXPECT(off <= run.tolerance * most, "%s: %s is off by %g of %g", name, what, off, most);
    free(got);
}

static void expect_answer(const char *name, const geometry *g, wf_layer *layer, wf_var *y, wf_var *leaf,
                          const wf_tensor *x, const wf_tensor *dy)
{
    const int64_t n = wf_shape_count(result_of(g)), m = wf_shape_count(whole_of(g));
    double *w, *b, *in = values(x), *up = values(dy);
    answer a = {.x = in, .dy = up, .w = part(layer, 0, &w), .b = part(layer, 1, &b)};
    const int64_t n_w = w ? wf_tensor_count(wf_param_value(layer->params[0])) : 0;
    a.y = calloc((size_t)n + 1, sizeof *a.y);
    a.dx = calloc((size_t)m + 1, sizeof *a.dx);
    a.dw = w ? calloc((size_t)n_w + 1, sizeof *a.dw) : NULL;
    a.db = b ? calloc((size_t)g->conv.out + 1, sizeof *a.db) : NULL;
    answer_all(g, &a);
    expect_close(name, "y", wf_value(y), a.y, n);
    WF_EXPECT_OK(wf_backward_from(y, dy));
    expect_close(name, "dx", wf_grad(leaf), a.dx, m);
    if (w)
        expect_close(name, "dw", wf_param_grad(layer->params[0]), a.dw, n_w);
    if (b)
        expect_close(name, "db", wf_param_grad(layer->params[1]), a.db, g->conv.out);
    free(w);
    free(b);
    free(in);
    free(up);
    free(a.y);
    free(a.dx);
    free(a.dw);
    free(a.db);
}

static void describe_question(char *text, size_t size, const geometry *g)
{
    const wf_boundary *b = boundary_of((geometry *)g);
    describe(text, size, g, (wf_mesh_opts){0});
    for (int d = 2; d < 2 + g->nd; d++)
        snprintf(text + strlen(text), size - strlen(text), " %s %s", wf_edge_name(formula_edge(b, d, false)),
                 wf_edge_name(formula_edge(b, d, true)));
    snprintf(text + strlen(text), size - strlen(text), " turned %d row %d signs %d", b->turned, b->row_on_pole,
             b->n_negated);
}

static void check(const geometry *g, test_rng *rng)
{
    char name[640];
    describe_question(name, sizeof name, g);
    wf_layer *layer = wf_layer_named(serial_layer(g), "m");
    wf_tensor *x = random_tensor(whole_of(g), rng), *dy = random_tensor(result_of(g), rng);
    wf_var *leaf = wf_leaf(run.tape, x), *y = wf_apply(layer, leaf);
    WF_EXPECT((y != NULL) == question_holds(g), "%s: %s", name, wf_error_message());
    if (!y)
        WF_EXPECT(wf_error_code() == WF_ERR_SHAPE, "%s: %s", name, wf_error_message());
    else
        expect_answer(name, g, layer, y, leaf, x, dy);
    wf_error_clear();
    WF_EXPECT_OK(wf_tape_reset(run.tape));
    wf_layer_free(layer);
    wf_tensor_free(x);
    wf_tensor_free(dy);
}

static void by_formula(const char *device, wf_dtype dtype, double tolerance, int count)
{
    test_rng rng = {.state = 77};
    open_run(device, dtype, tolerance);
    for (int i = 0; i < test_samples(count); i++) {
        const geometry g = draw_question((kind)(i % (UPSAMPLE + 1)), &rng);
        check(&g, &rng);
    }
    close_run();
}

static void formula(void)
{
    by_formula("ref", WF_F64, 1e-12, 1500);
}

static void formula_cpu(void)
{
    by_formula("cpu", WF_F32, 1e-5, 500);
}

/* --- known numbers --------------------------------------------------------------------------------------------------
 */

static const double row[4] = {1, 2, 3, 4};

static wf_var *ask_row(wf_layer *layer)
{
    wf_tensor *x = wf_tensor_from_host(run.ctx, WF_F64, WF_SHAPE(1, 1, 4), row);
    wf_var *y = wf_apply(wf_layer_named(layer, "m"), wf_input(run.tape, x));
    WF_EXPECT(y, "%s", wf_error_message());
    wf_tensor_free(x);
    return y;
}

/* Sums of three neighbours, as PyTorch's Conv1d has them with each padding_mode and all weights 1; maxima and averages
 * of those; an interpolation across the seam. */
static void known(void)
{
    static const struct {
        wf_edge edge;
        double sum[4], max[4];
    } edges[] = {{WF_EDGE_CIRCULAR, {7, 6, 9, 8}, {4, 3, 4, 4}},   {WF_EDGE_REFLECT, {5, 6, 9, 10}, {2, 3, 4, 4}},
                 {WF_EDGE_REPLICATE, {4, 6, 9, 11}, {2, 3, 4, 4}}, {WF_EDGE_SYMMETRIC, {4, 6, 9, 11}, {2, 3, 4, 4}},
                 {WF_EDGE_CONSTANT, {12, 6, 9, 16}, {9, 3, 4, 9}}, {WF_EDGE_DEFAULT, {3, 6, 9, 7}, {2, 3, 4, 4}}};
    open_run("ref", WF_F64, 1e-12);
    for (size_t i = 0; i < sizeof edges / sizeof *edges; i++) {
        const wf_boundary b = {.edge = edges[i].edge, .value = 9};
        const char *const name = wf_edge_name(b.edge);
        wf_layer *conv = wf_conv1d(run.ctx, (wf_conv_opts){.in = 1,
                                                           .out = 1,
                                                           .kernel = 3,
                                                           .pad = 1,
                                                           .no_bias = true,
                                                           .w_init = {.kind = WF_INIT_CONSTANT, .a = 1},
                                                           .boundary = b});
        wf_layer *max = wf_max_pool1d(run.ctx, (wf_pool_opts){.kernel = 3, .stride = 1, .pad = 1, .boundary = b});
        wf_layer *mean = wf_avg_pool1d(run.ctx, (wf_pool_opts){.kernel = 3, .stride = 1, .pad = 1, .boundary = b});
        double means[4];
        for (int k = 0; k < 4; k++)
            means[k] = edges[i].sum[k] / (b.edge == WF_EDGE_DEFAULT && k % 3 == 0 ? 2 : 3);
        expect_close(name, "sum", wf_value(ask_row(conv)), edges[i].sum, 4);
        expect_close(name, "maximum", wf_value(ask_row(max)), edges[i].max, 4);
        expect_close(name, "mean", wf_value(ask_row(mean)), means, 4);
        WF_EXPECT_OK(wf_tape_reset(run.tape));
        wf_layer_free(conv);
        wf_layer_free(max);
        wf_layer_free(mean);
    }
    wf_layer *up =
        wf_upsample1d(run.ctx, (wf_upsample_opts){.mode = WF_UPSAMPLE_LINEAR, .boundary = {.edge = WF_EDGE_CIRCULAR}});
    expect_close("upsample", "y", wf_value(ask_row(up)), (double[]){1.75, 1.25, 1.75, 2.25, 2.75, 3.25, 3.75, 3.25}, 8);
    WF_EXPECT_OK(wf_tape_reset(run.tape));
    wf_layer_free(up);
    close_run();
}

/* --- central differences --------------------------------------------------------------------------------------------
 */

static double objective(const geometry *g, wf_layer *layer, const double *x, const double *weight)
{
    double sum = 0;
    WF_EXPECT_OK(wf_tape_reset(run.tape));
    wf_tensor *host = wf_tensor_from_host(run.ctx, WF_F64, whole_of(g), x);
    wf_var *y = wf_apply(layer, wf_leaf(run.tape, host));
    double *got = values(wf_value(y));
    for (int64_t i = 0; i < wf_shape_count(result_of(g)); i++)
        sum += weight[i] * got[i] * got[i];
    free(got);
    wf_tensor_free(host);
    return sum;
}

/* The gradient of sum weight y^2, of a layer that is used twice. */
static void check_differences(const geometry *g, test_rng *rng)
{
    wf_layer *layer = wf_layer_named(serial_layer(g), "m");
    const wf_shape in = whole_of(g), out = result_of(g);
    wf_tensor *x = random_tensor(in, rng), *weight = random_tensor(out, rng);
    double *at = values(x), *w = values(weight);
    wf_var *leaf = wf_leaf(run.tape, x);
    wf_var *y = wf_apply(layer, leaf), *again = wf_apply(layer, leaf);
    wf_var *square = wf_mul(y, again);
    WF_EXPECT_OK(wf_backward_from(square, weight));
    double *dx = values(wf_grad(leaf));
    for (int64_t i = 0; i < wf_shape_count(in); i++) {
        const double kept = at[i], h = 1e-5;
        at[i] = kept + h;
        const double above = objective(g, layer, at, w);
        at[i] = kept - h;
        const double below = objective(g, layer, at, w);
        at[i] = kept;
        const double seen = (above - below) / (2 * h);
        WF_EXPECT(fabs(dx[i] - seen) < 1e-6 * fmax(1, fabs(seen)), "gradient %d of kind %d is %g, differences say %g",
                  (int)i, (int)g->kind, dx[i], seen);
    }
    WF_EXPECT_OK(wf_tape_reset(run.tape));
    free(at);
    free(w);
    free(dx);
    wf_tensor_free(x);
    wf_tensor_free(weight);
    wf_layer_free(layer);
}

/* Pooled maxima are of distinct elements, or a difference would not be one. */
static void differences(void)
{
    test_rng rng = {.state = 78};
    open_run("ref", WF_F64, 1e-12);
    for (int i = 0; i < 12; i++) {
        geometry g = draw_question((kind)(i % 2 ? (i / 2) % 2 : i % 4 == 0 ? AVG_POOL : UPSAMPLE), &rng);
        while (!question_holds(&g) || g.n == 0 || wf_shape_count(whole_of(&g)) > 300)
            g = draw_question(g.kind, &rng);
        g.conv.act = WF_ACT_NONE;
        check_differences(&g, &rng);
    }
    close_run();
}

/* --- large images ----------------------------------------------------------------------------------------------------
 */

/* Images large enough for rows and samples of their own: as wf_pad ahead of a layer without pads has it. */
static void check_large(geometry g, test_rng *rng)
{
    int64_t lo[WF_MAX_RANK] = {0}, hi[WF_MAX_RANK] = {0};
    wf_boundary b = *boundary_of(&g);
    const char *const name = wf_edge_name(b.edge);
    wf_layer *layer = wf_layer_named(serial_layer(&g), "m");
    for (int d = 0; d < g.nd; d++) {
        lo[2 + d] = g.conv.pad_lo_nd[d];
        hi[2 + d] = g.conv.pad_hi_nd[d];
        g.conv.pad_lo_nd[d] = g.conv.pad_hi_nd[d] = 0;
    }
    memset(&g.conv.boundary, 0, sizeof g.conv.boundary);
    wf_layer *plain = wf_layer_named(serial_layer(&g), "m");
    wf_tensor *x = random_tensor(whole_of(&g), rng);
    wf_var *leaf = wf_leaf(run.tape, x), *other = wf_leaf(run.tape, x);
    wf_var *y = wf_apply(layer, leaf), *wide = wf_pad(other, lo, hi, b);
    wf_var *z = wf_apply(plain, wide);
    WF_EXPECT(y && z, "%s: %s", name, wf_error_message());
    wf_tensor *dy = random_tensor(wf_var_shape(z), rng);
    expect_equal(name, "y", wf_value(y), wf_value(z), wf_value(z), run.exact);
    WF_EXPECT_OK(wf_backward_from(y, dy));
    WF_EXPECT_OK(wf_backward_from(z, dy));
    expect_equal(name, "dx", wf_grad(leaf), wf_grad(other), wf_grad(other), false);
    for (int i = 0; i < layer->n_params; i++)
        expect_equal(name, i ? "db" : "dw", wf_param_grad(layer->params[i]), wf_param_grad(plain->params[i]),
                     wf_param_grad(plain->params[i]), false);
    WF_EXPECT_OK(wf_tape_reset(run.tape));
    wf_tensor_free(x);
    wf_tensor_free(dy);
    wf_layer_free(layer);
    wf_layer_free(plain);
}

/* oneDNN's fault of wide low padding (core/cpu/dnn_faults.c), without a boundary: zeros ahead of the image. */
static void wide_padding(void)
{
    geometry g = {"wide", CONV, 1, 2, {59}, CONV_OF(4, 4, 7, 2, 3, PAD(17), .groups = 1)};
    test_rng rng = {.state = 80};
    open_run("cpu", WF_F32, 1e-5);
    check(&g, &rng);
    close_run();
}

static void large_on(const char *device, wf_dtype dtype, double tolerance)
{
    static const geometry list[] = {
        {"3x3", CONV, 2, 2, {48, 46}, CONV_OF(4, 8, 3, 1, 1, PAD(1), .boundary = {.edge = WF_EDGE_CIRCULAR})},
        {"5x5",
         CONV,
         2,
         1,
         {47, 50},
         CONV_OF(3, 9, 5, 1, 1, PAD(2), .groups = 3, .boundary = {.edge = WF_EDGE_REFLECT})},
        {"stride", CONV, 2, 2, {96, 98}, CONV_OF(2, 9, 3, 2, 1, PAD(1), .boundary = {.edge = WF_EDGE_SYMMETRIC})},
        {"one side", CONV, 2, 3, {50, 48}, CONV_OF(2, 8, 3, 1, 1, PAD(1), .boundary = {.lo[2] = WF_EDGE_REPLICATE})},
    };
    test_rng rng = {.state = 79};
    open_run(device, dtype, tolerance);
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        geometry g = list[i];
        g.conv.groups = g.conv.groups ? g.conv.groups : 1;
        check_large(g, &rng);
    }
    close_run();
}

static void large(void)
{
    large_on("ref", WF_F64, 1e-12);
}

static void large_cpu(void)
{
    large_on("cpu", WF_F32, 1e-5);
}

/* --- what is refused ------------------------------------------------------------------------------------------------
 */

static void expect_refused(wf_layer *layer, wf_status why, const char *what)
{
    wf_tensor *x = wf_tensor_new(run.ctx, WF_F64, WF_SHAPE(1, 2, 3, 4));
    WF_EXPECT(!wf_apply(layer, wf_input(run.tape, x)) && wf_error_code() == why, "%s: %s", what, wf_error_message());
    wf_error_clear();
    WF_EXPECT_OK(wf_tape_reset(run.tape));
    wf_tensor_free(x);
    wf_layer_free(layer);
}

static wf_layer *bounded(int64_t pad, wf_boundary b)
{
    return wf_conv2d(run.ctx, (wf_conv_opts){.in = 2, .out = 1, .kernel = 9, .pad = pad, .boundary = b});
}

static void refused(void)
{
    open_run("ref", WF_F64, 1e-12);
    expect_refused(bounded(4, (wf_boundary){.edge = WF_EDGE_CIRCULAR}), WF_ERR_SHAPE, "4 beyond a ring of 3");
    expect_refused(bounded(3, (wf_boundary){.edge = WF_EDGE_REFLECT}), WF_ERR_SHAPE, "3 beyond a mirror of 3");
    expect_refused(bounded(3, (wf_boundary){.lo[2] = WF_EDGE_POLE}), WF_ERR_SHAPE, "a pole that turns no ring");
    expect_refused(wf_conv_transpose2d(
                       run.ctx, (wf_conv_opts){.in = 2, .out = 1, .kernel = 3, .boundary = {.edge = WF_EDGE_CIRCULAR}}),
                   WF_ERR_SHAPE, "5 outputs of a ring of 3");
    static const struct {
        wf_boundary b;
        const char *what;
    } none[] = {{{.edge = WF_EDGES}, "no edge"},
                {{.lo[2] = WF_EDGE_POLE, .lo[3] = WF_EDGE_POLE}, "two poles"},
                {{.lo[2] = WF_EDGE_POLE, .turned = WF_DIM(1)}, "a pole that turns channels"},
                {{.lo[2] = WF_EDGE_POLE, .n_negated = 1}, "no list"}};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        WF_EXPECT(!bounded(1, none[i].b) && wf_error_code() == WF_ERR_ARGUMENT, "%s: %s", none[i].what,
                  wf_error_message());
        wf_error_clear();
    }
    close_run();
}

int main(int argc, char **argv)
{
    return test_main(argc, argv,
                     (test_case[]){{"formula", formula},
                                   {"formula_cpu", formula_cpu},
                                   {"known", known},
                                   {"large", large},
                                   {"large_cpu", large_cpu},
                                   {"wide_padding", wide_padding},
                                   {"differences", differences},
                                   {"refused", refused},
                                   {0}});
}
