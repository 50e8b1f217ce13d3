/* Losses, reductions, dropout and noise on sharded tensors mean what they mean in the serial program: values, gradients
 * and random numbers do not depend on how a tensor lies over a mesh. */
#include "comm/mesh_author.h"
#include "layers/layer_author.h"
#include "layers/layers.h"
#include "tests/test.h"
#include "tests/world.h"

#include <math.h>
#include <string.h>

enum { MOST = 2048 };

static wf_comm *comm;
static wf_ctx *ctx;
static wf_tape *tape;
static int size;

#include "tests/layers/sharded_losses.h"

static wf_var *half_dropped(wf_var *x)
{
    return wf_dropout(x, 0.5);
}

static wf_var *noisy(wf_var *x)
{
    return wf_gaussian_noise(x, 0.3);
}

static wf_var *noisy_leaky(wf_var *x)
{
    return wf_activate(x, WF_ACT_LEAKY_RELU, 0.2, 0.5);
}

static wf_var *twice_dropped(wf_var *x)
{
    wf_var *once = wf_dropout(x, 0.3);
    return wf_dropout(once, 0.3);
}

static wf_var *mean_of_squares(wf_var *x)
{
    return wf_mean(wf_mul(x, x));
}

static wf_var *sum_of_dropped(wf_var *x)
{
    return wf_sum(wf_dropout(x, 0.5));
}

/* Means and sums may be combined, as long as nothing but a linear function follows. */
static wf_var *combined(wf_var *x)
{
    wf_var *a = wf_scale(wf_mean(x), 3);
    wf_var *b = wf_sum(wf_sigmoid(x));
    return wf_sub(a, b);
}

/* Labels that follow from the first channel, so that a part has those of its rows; some are -100 if `some`. */
typedef struct subject {
    const char *name;
    wf_var *(*function)(wf_var *x);
    bool scalar;
} subject;

static const subject subjects[] = {
    {"dropout", half_dropped, false},
    {"gaussian_noise", noisy, false},
    {"activate with noise", noisy_leaky, false},
    {"dropout twice", twice_dropped, false},
    {"bce_logits", bce, true},
    {"mse", mse, true},
    {"l1", l1, true},
    {"huber", huber, true},
    {"mse at other bounds", mse_at_other_bounds, true},
    {"huber of elements at other bounds", huber_at_other_bounds, false},
    {"where at other bounds", where_at_other_bounds, false},
    {"kl_div", divergence, true},
    {"focal_logits", focal, true},
    {"huber of elements", huber_of_elements, false},
    {"sum of squares", squares_summed, true},
    {"dice", dice, true},
    {"dice of a batch", dice_of_batch, true},
    {"mean", mean_of_squares, true},
    {"sum", sum_of_dropped, true},
    {"combined", combined, true},
};

/* The first three need all channels. */
static const subject labelled[] = {
    {"nll of rows that count", counted_nll, true},   {"nll with weights", weighed_nll, true},
    {"dice of labels", dice_of_labels, true},        {"cross entropy", plain_entropy, true},
    {"sum of cross entropy", summed_entropy, true},  {"cross entropy with weights", weighed_entropy, true},
    {"cross entropy of rows", rows_of_entropy, true}};

static wf_tensor *part_of(const wf_tensor *whole, wf_layout layout)
{
    wf_tensor *view = wf_tensor_view(whole, layout.box);
    wf_tensor *part = wf_tensor_copy(view, WF_F64, wf_tensor_order(whole));
    WF_EXPECT_OK(wf_tensor_set_layout(part, layout));
    wf_tensor_free(view);
    return part;
}

static wf_tensor *random_tensor(wf_shape shape, test_rng *rng)
{
    double host[MOST];
    for (int64_t i = 0; i < wf_shape_count(shape); i++)
        host[i] = test_uniform(rng, -2, 2);
    return wf_tensor_from_host(ctx, WF_F64, shape, host);
}

/* `seen` is the part `box` of `should`. */
static void expect_part(const char *what, const char *name, const wf_mesh *mesh, const wf_tensor *seen, wf_box box,
                        const wf_tensor *should, double tolerance)
{
    double a[MOST], b[MOST];
    wf_tensor *view = wf_tensor_view(should, box);
    WF_EXPECT(seen && view && wf_shape_equal(wf_tensor_shape(seen), wf_tensor_shape(view)), "%s of %s: another shape",
              what, name);
    WF_EXPECT_OK(wf_tensor_export(seen, a, wf_tensor_bytes(seen)));
    WF_EXPECT_OK(wf_tensor_export(view, b, (size_t)wf_tensor_count(view) * sizeof *b));
    const double d = test_distance(wf_tensor_count(view), a, b);
    WF_EXPECT(d <= tolerance, "%s: %s of %s is off by %g", wf_mesh_text(mesh), what, name, d);
    wf_tensor_free(view);
}

/* What all ranks together have of a scalar: a replica counts once. */
static double total(const wf_mesh *mesh, const wf_var *y)
{
    const wf_layout layout = wf_tensor_layout(wf_value(y));
    double value;
    WF_EXPECT_OK(wf_tensor_export(wf_value(y), &value, sizeof value));
    for (int a = 0; a < WF_AXES; a++)
        if (layout.placement[a] != WF_PARTIAL)
            value /= wf_mesh_size(mesh, (wf_axis)a);
    WF_EXPECT_OK(wf_allreduce_f64(comm, &value, 1, WF_SUM));
    return value;
}

/* The samples, or weights, for which all parts of a loss stand are those of the serial one. */
static void check_mark(const char *name, const wf_var *y, const wf_var *part)
{
    const wf_layout layout = wf_tensor_layout(wf_value(part));
    double all = part->loss_part;
    for (int a = 0; a < WF_AXES; a++)
        if (layout.known && layout.placement[a] != WF_PARTIAL)
            all /= wf_mesh_size(layout.mesh, (wf_axis)a);
    WF_EXPECT_OK(wf_allreduce_f64(comm, &all, 1, WF_SUM));
    WF_EXPECT(y->loss_count == 0 || fabs(all - y->loss_count) < 1e-9, "%s stands for %g, its parts for %g", name,
              y->loss_count, all);
    WF_EXPECT(!y->loss_mean || fabs(part->loss_count - y->loss_count) < 1e-9, "%s stands for %g, each part for %g",
              name, y->loss_count, part->loss_count);
}

static void check(const subject *s, const wf_mesh *mesh, wf_shape shape, test_rng *rng)
{
    wf_layout layout;
    WF_EXPECT_OK(wf_mesh_layout_activation(mesh, shape, &layout));
    wf_tensor *x = random_tensor(shape, rng), *x_part = part_of(x, layout);
    wf_layer *serial = wf_lambda(ctx, s->function), *parallel = wf_lambda(ctx, s->function);
    WF_EXPECT(wf_layer_named(parallel, "m") && wf_layer_named(serial, "m"), "%s", wf_error_message());
    uncut = x;
    wf_var *a = wf_leaf(tape, x), *b = wf_leaf(tape, x_part);
    wf_var *y = wf_apply(serial, a), *y_part = wf_apply(parallel, b);
    WF_EXPECT(y && y_part, "%s: %s", s->name, wf_error_message());
    if (s->scalar)
        check_mark(s->name, y, y_part);
    if (s->scalar) {
        double should;
        WF_EXPECT_OK(wf_tensor_export(wf_value(y), &should, sizeof should));
        const double is = total(mesh, y_part);
        WF_EXPECT(fabs(is - should) <= 1e-12 * (1 + fabs(should)), "%s: %s is %.15g, should be %.15g",
                  wf_mesh_text(mesh), s->name, is, should);
        WF_EXPECT_OK(wf_backward(y));
        WF_EXPECT_OK(wf_backward(y_part));
    } else {
        wf_tensor *dy = random_tensor(shape, rng), *dy_part = part_of(dy, layout);
        expect_part("the value", s->name, mesh, wf_value(y_part), layout.box, wf_value(y), 0);
        WF_EXPECT_OK(wf_backward_from(y, dy));
        WF_EXPECT_OK(wf_backward_from(y_part, dy_part));
        wf_tensor_free(dy);
        wf_tensor_free(dy_part);
    }
    expect_part("the gradient", s->name, mesh, wf_grad(b), layout.box, wf_grad(a), s->scalar ? 1e-12 : 0);
    WF_EXPECT_OK(wf_tape_reset(tape));
    wf_layer_free(serial);
    wf_layer_free(parallel);
    wf_tensor_free(x);
    wf_tensor_free(x_part);
}

/* Two sums of rows cross the axis that cuts the classes, and no scores. */
static void check_traffic(const wf_mesh *mesh, test_rng *rng)
{
    enum { ROWS = 4, CLASSES = 500 };
    wf_layout layout;
    wf_comm *group = wf_mesh_comm(mesh, WF_AXIS_BIT(WF_AXIS_CHANNEL));
    const int ranks = wf_mesh_size(mesh, WF_AXIS_CHANNEL);
    WF_EXPECT_OK(wf_mesh_layout_activation(mesh, WF_SHAPE(ROWS, CLASSES), &layout));
    wf_tensor *x = random_tensor(WF_SHAPE(ROWS, CLASSES), rng), *x_part = part_of(x, layout);
    uncut = x;
    wf_var *part = wf_leaf(tape, x_part);
    const wf_traffic before = wf_comm_traffic(group);
    WF_EXPECT_OK(wf_backward(plain_entropy(part)));
    const wf_traffic after = wf_comm_traffic(group);
    WF_EXPECT(after.collectives - before.collectives == 2, "%d collectives on %d ranks",
              (int)(after.collectives - before.collectives), ranks);
    const uint64_t bytes = after.bytes_sent - before.bytes_sent;
    WF_EXPECT(bytes <= 2u * ROWS * sizeof(double) * (uint64_t)ranks, "%d bytes on %d ranks", (int)bytes, ranks);
    WF_EXPECT_OK(wf_tape_reset(tape));
    wf_tensor_free(x);
    wf_tensor_free(x_part);
}

/* The dimensions of x that are in `dims`, the others of length 1, cut as x is. */
static wf_layout repeated_layout(const wf_layout *x, unsigned dims)
{
    wf_layout layout = *x;
    for (int d = 0; d < x->global.rank; d++)
        if (!(dims >> d & 1)) {
            layout.global.dim[d] = layout.box.hi[d] = 1;
            layout.box.lo[d] = 0;
        }
    for (int a = 0; a < WF_AXES; a++)
        if (layout.placement[a] == WF_SHARDED && !(dims >> layout.dim[a] & 1)) {
            layout.placement[a] = WF_REPLICATED;
            layout.dim[a] = 0;
            layout.bounds[a] = NULL;
        }
    return layout;
}

typedef wf_var *binary_function(wf_var *a, wf_var *b);

/* x op b, where b has some of the dimensions of x and is replicated along the others. */
static void check_repeated(const char *name, binary_function *f, bool swapped, const wf_mesh *mesh, wf_shape shape,
                           unsigned dims, test_rng *rng)
{
    wf_layout layout;
    WF_EXPECT_OK(wf_mesh_layout_activation(mesh, shape, &layout));
    const wf_layout few = repeated_layout(&layout, dims);
    wf_tensor *x = random_tensor(shape, rng), *b = random_tensor(few.global, rng), *dy = random_tensor(shape, rng);
    wf_tensor *x_part = part_of(x, layout), *b_part = part_of(b, few), *dy_part = part_of(dy, layout);
    wf_var *xs = wf_leaf(tape, x), *bs = wf_leaf(tape, b), *xp = wf_leaf(tape, x_part), *bp = wf_leaf(tape, b_part);
    wf_var *y = swapped ? f(bs, xs) : f(xs, bs), *y_part = swapped ? f(bp, xp) : f(xp, bp);
    WF_EXPECT(y && y_part, "%s: %s", name, wf_error_message());
    expect_part("the value", name, mesh, wf_value(y_part), layout.box, wf_value(y), 0);
    WF_EXPECT_OK(wf_backward_from(y, dy));
    WF_EXPECT_OK(wf_backward_from(y_part, dy_part));
    expect_part("the gradient", name, mesh, wf_grad(xp), layout.box, wf_grad(xs), 1e-12);
    expect_part("the repeated gradient", name, mesh, wf_grad(bp), few.box, wf_grad(bs), 1e-12);
    WF_EXPECT_OK(wf_tape_reset(tape));
    wf_tensor *all[] = {x, b, dy, x_part, b_part, dy_part};
    for (int i = 0; i < 6; i++)
        wf_tensor_free(all[i]);
}

/* A variable that is whole where the other is cut, and repeats nothing there. */
static void check_refused(const wf_mesh *mesh, wf_shape shape, test_rng *rng)
{
    wf_layout layout;
    WF_EXPECT_OK(wf_mesh_layout_activation(mesh, shape, &layout));
    if (wf_shape_equal(wf_box_shape(layout.box), shape))
        return;
    wf_tensor *x = random_tensor(shape, rng), *x_part = part_of(x, layout);
    WF_EXPECT_OK(wf_tensor_set_layout(
        x, (wf_layout){.known = true, .mesh = mesh, .global = shape, .box = wf_box_of_shape(shape)}));
    WF_EXPECT(!wf_div(wf_leaf(tape, x_part), wf_leaf(tape, x)) && strstr(wf_error_message(), "wf_redistribute"),
              "div of a part by the whole: %s", wf_error_message());
    wf_error_clear();
    WF_EXPECT_OK(wf_tape_reset(tape));
    wf_tensor_free(x);
    wf_tensor_free(x_part);
}

/* a where it is above 0. */
static wf_var *positive(wf_var *a, wf_var *b)
{
    wf_var *above = wf_detach(wf_relu(a));
    return wf_where(above, a, b);
}

static void check_broadcast(const wf_mesh *mesh, wf_shape shape, test_rng *rng)
{
    check_repeated("add", wf_add, false, mesh, shape, 0x2, rng);
    check_repeated("mul", wf_mul, true, mesh, shape, 0x0, rng);
    check_repeated("div", wf_div, false, mesh, shape, 0x1, rng);
    check_repeated("div", wf_div, true, mesh, shape, ~0x2u & 0x1f, rng);
    check_repeated("sub", wf_sub, true, mesh, shape, 0x1f, rng);
    check_repeated("where", positive, false, mesh, shape, 0x2, rng);
    check_repeated("where", positive, true, mesh, shape, 0x0, rng);
}

/* Slopes of channels: those of a rank are the channels that it has, and gradients are summed over the axes. */
static void check_prelu(const wf_mesh *mesh, wf_shape shape, test_rng *rng)
{
    wf_layout layout;
    WF_EXPECT_OK(wf_mesh_layout_activation(mesh, shape, &layout));
    wf_tensor *x = random_tensor(shape, rng), *dy = random_tensor(shape, rng);
    wf_tensor *x_part = part_of(x, layout), *dy_part = part_of(dy, layout);
    wf_layer *serial = wf_prelu(ctx, (wf_prelu_opts){.channels = shape.dim[1]});
    wf_layer *parallel = wf_prelu(ctx, (wf_prelu_opts){.channels = shape.dim[1]});
    wf_param *w = wf_layer_param(serial, "W"), *w_part = wf_layer_param(parallel, "W");
    wf_tensor *slopes = random_tensor(WF_SHAPE(shape.dim[1]), rng);
    WF_EXPECT_OK(wf_tensor_assign(wf_param_value(w), slopes));
    WF_EXPECT_OK(wf_tensor_assign(wf_param_value(w_part), slopes));
    wf_var *a = wf_leaf(tape, x), *b = wf_leaf(tape, x_part);
    wf_var *y = wf_apply(serial, a), *y_part = wf_apply(parallel, b);
    WF_EXPECT(y && y_part, "prelu: %s", wf_error_message());
    expect_part("the value", "prelu", mesh, wf_value(y_part), layout.box, wf_value(y), 0);
    WF_EXPECT_OK(wf_backward_from(y, dy));
    WF_EXPECT_OK(wf_backward_from(y_part, dy_part));
    expect_part("the gradient", "prelu", mesh, wf_grad(b), layout.box, wf_grad(a), 0);
    wf_tensor *sum = wf_tensor_copy(wf_param_grad(w_part), WF_F64, WF_ROW_MAJOR);
    WF_EXPECT_OK(wf_allreduce(wf_mesh_comm(mesh, w_part->axes), sum, sum, WF_SUM));
    expect_part("the gradient of slopes", "prelu", mesh, sum, wf_box_of_shape(sum->shape), wf_param_grad(w), 1e-12);
    WF_EXPECT_OK(wf_tape_reset(tape));
    wf_layer_free(serial);
    wf_layer_free(parallel);
    wf_tensor *all[] = {x, dy, x_part, dy_part, slopes, sum};
    for (int i = 0; i < 6; i++)
        wf_tensor_free(all[i]);
}

/* Over channels, where they are whole, and over the last dimension: what stays keeps its part; else one line. */
static void check_over(const wf_mesh *mesh, wf_shape shape, test_rng *rng)
{
    wf_layout layout;
    WF_EXPECT_OK(wf_mesh_layout_activation(mesh, shape, &layout));
    wf_tensor *x = random_tensor(shape, rng), *x_part = part_of(x, layout);
    for (int d = 1; d<shape.rank; d += shape.rank> 2 ? shape.rank - 2 : 1) {
        wf_var *a = wf_leaf(tape, x), *b = wf_leaf(tape, x_part);
        const bool whole = !wf_layout_is_sharded(&layout, d);
        wf_var *means = wf_mean_over(b, WF_DIMS(d), true), *soft = wf_softmax_over(b, WF_DIMS(d));
        WF_EXPECT(!means == !whole && !soft == !whole, "over dimension %d of %s", d, wf_mesh_text(mesh));
        WF_EXPECT(whole || strstr(wf_error_message(), "wf_redistribute"), "%s", wf_error_message());
        wf_error_clear();
        if (!whole)
            continue;
        wf_box box = layout.box;
        box.lo[d] = 0, box.hi[d] = 1;
        expect_part("mean", "over", mesh, wf_value(means), box, wf_value(wf_mean_over(a, WF_DIMS(d), true)), 1e-12);
        expect_part("max", "over", mesh, wf_value(wf_max_over(b, WF_DIMS(d), true)), box,
                    wf_value(wf_max_over(a, WF_DIMS(d), true)), 0);
        expect_part("softmax", "over", mesh, wf_value(soft), layout.box, wf_value(wf_softmax_over(a, WF_DIMS(d))),
                    1e-12);
        const wf_layout known = wf_tensor_layout(wf_value(means));
        WF_EXPECT(known.known && known.global.dim[d] == 1 && known.global.dim[0] == shape.dim[0],
                  "the layout of means");
    }
    WF_EXPECT_OK(wf_tape_reset(tape));
    wf_tensor_free(x);
    wf_tensor_free(x_part);
}

/* Images [N,C,...] by a matrix: the last dimension is summed where it is whole, and rows of a may be cut in any way. */
static void check_product(const wf_mesh *mesh, wf_shape shape, bool transposed, test_rng *rng)
{
    const int last = shape.rank - 1;
    wf_layout layout;
    WF_EXPECT_OK(wf_mesh_layout_activation(mesh, shape, &layout));
    wf_shape side = transposed ? WF_SHAPE(3, shape.dim[last]) : WF_SHAPE(shape.dim[last], 3), result = shape;
    result.dim[last] = 3;
    wf_layout whole = {.known = true, .mesh = mesh, .global = side, .box = wf_box_of_shape(side)};
    wf_tensor *x = random_tensor(shape, rng), *w = random_tensor(side, rng), *dy = random_tensor(result, rng);
    wf_tensor *x_part = part_of(x, layout), *w_part = part_of(w, whole);
    wf_var *xs = wf_leaf(tape, x), *ws = wf_leaf(tape, w), *xp = wf_leaf(tape, x_part), *wp = wf_leaf(tape, w_part);
    const wf_matmul_opts opts = {.b_transposed = transposed};
    wf_var *y = wf_matmul(xs, ws, opts), *y_part = wf_matmul(xp, wp, opts);
    WF_EXPECT(y && !y_part == wf_layout_is_sharded(&layout, last), "matmul: %s", wf_error_message());
    if (y_part) {
        wf_box box = layout.box;
        box.lo[last] = 0, box.hi[last] = 3;
        wf_layout cut = layout;
        cut.global = result, cut.box = box;
        wf_tensor *dy_part = part_of(dy, cut);
        expect_part("the value", "matmul", mesh, wf_value(y_part), box, wf_value(y), 1e-12);
        WF_EXPECT_OK(wf_backward_from(y, dy));
        WF_EXPECT_OK(wf_backward_from(y_part, dy_part));
        expect_part("the gradient", "matmul", mesh, wf_grad(xp), layout.box, wf_grad(xs), 1e-12);
        expect_part("the matrix's gradient", "matmul", mesh, wf_grad(wp), whole.box, wf_grad(ws), 1e-12);
        wf_tensor_free(dy_part);
    } else {
        WF_EXPECT(strstr(wf_error_message(), "wf_redistribute"), "%s", wf_error_message());
        wf_error_clear();
    }
    WF_EXPECT_OK(wf_tape_reset(tape));
    wf_tensor *all[] = {x, w, dy, x_part, w_part};
    for (int i = 0; i < 5; i++)
        wf_tensor_free(all[i]);
}

/* Tokens of a part are tokens of the whole where rows of the first spatial dimension alone are cut. */
static void check_tokens(const wf_mesh *mesh, wf_shape shape, test_rng *rng)
{
    wf_layout layout;
    WF_EXPECT_OK(wf_mesh_layout_activation(mesh, shape, &layout));
    bool whole_rows = true;
    int64_t width = 1;
    for (int d = 3; d < shape.rank; d++) {
        whole_rows = whole_rows && !wf_layout_is_sharded(&layout, d);
        width *= shape.dim[d];
    }
    wf_tensor *x = random_tensor(shape, rng), *x_part = part_of(x, layout);
    wf_var *a = wf_leaf(tape, x), *b = wf_leaf(tape, x_part), *t = wf_tokens(a), *t_part = wf_tokens(b);
    WF_EXPECT(t && !t_part == !whole_rows, "tokens of %s: %s", wf_mesh_text(mesh), wf_error_message());
    if (t_part) {
        const wf_box own = {.rank = 3,
                            .lo = {layout.box.lo[0], layout.box.lo[2] * width, layout.box.lo[1]},
                            .hi = {layout.box.hi[0], layout.box.hi[2] * width, layout.box.hi[1]}};
        const wf_layout known = wf_tensor_layout(wf_value(t_part));
        WF_EXPECT(wf_shape_equal(known.global, wf_var_shape(t)), "the layout of tokens");
        expect_part("the value", "tokens", mesh, wf_value(t_part), own, wf_value(t), 0);
        wf_shape pixels = {.rank = shape.rank - 2};
        for (int d = 0; d < pixels.rank; d++)
            pixels.dim[d] = x_part->shape.dim[2 + d];
        wf_var *y = wf_image(t_part, pixels);
        WF_EXPECT(y && wf_layout_equal(&wf_value(y)->layout, &layout), "image of tokens: %s", wf_error_message());
        expect_part("the image", "tokens", mesh, wf_value(y), layout.box, x, 0);
        WF_EXPECT_OK(wf_backward_from(y, x_part));
        expect_part("the gradient", "tokens", mesh, wf_grad(b), layout.box, x, 0);
    } else {
        WF_EXPECT(strstr(wf_error_message(), "wf_redistribute"), "%s", wf_error_message());
        wf_error_clear();
    }
    WF_EXPECT_OK(wf_tape_reset(tape));
    wf_tensor_free(x);
    wf_tensor_free(x_part);
}

/* Merged patches where every part has whole blocks and all channels. */
static void check_merged(const wf_mesh *mesh, wf_shape shape, test_rng *rng)
{
    wf_layout layout;
    WF_EXPECT_OK(wf_mesh_layout_activation(mesh, shape, &layout));
    bool fits = !wf_layout_is_sharded(&layout, 1);
    for (int d = 2; d < 4; d++) {
        const wf_axis axis = d == 2 ? WF_AXIS_HEIGHT : WF_AXIS_WIDTH;
        for (int r = 0; layout.placement[axis] == WF_SHARDED && r <= wf_mesh_size(mesh, axis); r++)
            fits = fits && layout.bounds[axis][r] % 2 == 0;
    }
    wf_tensor *x = random_tensor(shape, rng), *x_part = part_of(x, layout);
    wf_var *a = wf_leaf(tape, x), *b = wf_leaf(tape, x_part), *y = wf_merge_patches(a, 2);
    wf_var *y_part = wf_merge_patches(b, 2);
    WF_EXPECT(y && !y_part == !fits, "merged patches on %s: %s", wf_mesh_text(mesh), wf_error_message());
    if (y_part) {
        wf_box own = layout.box;
        own.hi[1] *= 4;
        for (int d = 2; d < 4; d++)
            own.lo[d] /= 2, own.hi[d] /= 2;
        expect_part("the value", "merged patches", mesh, wf_value(y_part), own, wf_value(y), 0);
        WF_EXPECT(wf_shape_equal(wf_value(y_part)->layout.global, wf_var_shape(y)), "the layout of merged patches");
        WF_EXPECT_OK(wf_backward_from(y_part, wf_value(y_part)));
        expect_part("the gradient", "merged patches", mesh, wf_grad(b), layout.box, x, 0);
    } else {
        WF_EXPECT(strstr(wf_error_message(), "wf_redistribute"), "%s", wf_error_message());
        wf_error_clear();
    }
    WF_EXPECT_OK(wf_tape_reset(tape));
    wf_tensor_free(x);
    wf_tensor_free(x_part);
}

static wf_var *drawn_like(wf_var *x)
{
    return wf_randn(x->tape, WF_SHAPE(wf_var_shape(x).dim[0], 3), x);
}

/* Numbers like a variable: its samples' along data, the same on the ranks of the other axes. */
static void check_randn(const wf_mesh *mesh, wf_shape shape, test_rng *rng)
{
    wf_layout layout;
    WF_EXPECT_OK(wf_mesh_layout_activation(mesh, shape, &layout));
    wf_tensor *x = random_tensor(shape, rng), *x_part = part_of(x, layout);
    wf_layer *serial = wf_lambda(ctx, drawn_like), *parallel = wf_lambda(ctx, drawn_like);
    WF_EXPECT(wf_layer_named(parallel, "m") && wf_layer_named(serial, "m"), "%s", wf_error_message());
    wf_var *y = wf_apply(serial, wf_input(tape, x)), *y_part = wf_apply(parallel, wf_input(tape, x_part));
    WF_EXPECT(y && y_part, "randn: %s", wf_error_message());
    const wf_box rows = {.rank = 2, .lo = {layout.box.lo[0], 0}, .hi = {layout.box.hi[0], 3}};
    expect_part("the value", "randn", mesh, wf_value(y_part), rows, wf_value(y), 0);
    WF_EXPECT_OK(wf_tape_reset(tape));
    wf_layer_free(serial);
    wf_layer_free(parallel);
    wf_tensor_free(x);
    wf_tensor_free(x_part);
}

/* Parts are uneven, and some are empty. */
static void on_mesh(const wf_mesh *mesh, test_rng *rng)
{
    const wf_shape shapes[] = {WF_SHAPE(5, 7, 3, 6), WF_SHAPE(2, 5, 3, 2, 5), WF_SHAPE(9, 7)};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        for (size_t k = 0; k < sizeof subjects / sizeof *subjects; k++)
            check(&subjects[k], mesh, shapes[i], rng);
        for (size_t k = wf_mesh_size(mesh, WF_AXIS_CHANNEL) > 1 ? 3 : 0; k < sizeof labelled / sizeof *labelled; k++)
            check(&labelled[k], mesh, shapes[i], rng);
        check_randn(mesh, shapes[i], rng);
        check_broadcast(mesh, shapes[i], rng);
        check_refused(mesh, shapes[i], rng);
        check_prelu(mesh, shapes[i], rng);
        check_over(mesh, shapes[i], rng);
        check_product(mesh, shapes[i], i == 0, rng);
        if (shapes[i].rank > 2)
            check_tokens(mesh, shapes[i], rng);
    }
    /* Dimensions of length 1 are cut, by which one rank of the axis has all. */
    check_broadcast(mesh, WF_SHAPE(1, 7, 1, 6), rng);
    check_broadcast(mesh, WF_SHAPE(1, 1), rng);
    check_merged(mesh, WF_SHAPE(2, 3, 8, 4), rng);
    if (wf_mesh_size(mesh, WF_AXIS_CHANNEL) > 1)
        check_traffic(mesh, rng);
}

static void every_mesh(void)
{
    test_rng rng = {77};
    for (int data = 1; data <= size; data++)
        for (int channel = 1; channel <= size; channel++)
            for (int height = 1; height <= size; height++) {
                const int product = data * channel * height;
                if (product > size || size % product != 0)
                    continue;
                wf_mesh *mesh = wf_mesh_open(
                    comm, (wf_mesh_opts){.data = data, .channel = channel, .height = height, .width = size / product});
                WF_EXPECT(mesh, "%s", wf_error_message());
                on_mesh(mesh, &rng);
                wf_mesh_close(mesh);
            }
}

static int on_ranks(int argc, char **argv)
{
    comm = test_comm_open("flat", (wf_ctx_opts){.device = "ref", .dtype = WF_F64, .threads = 1, .seed = 3});
    WF_MUST(wf_check(comm));
    ctx = wf_comm_ctx(comm);
    size = wf_comm_size(comm);
    tape = wf_tape_new(ctx);
    const int failed = test_main(argc, argv, (test_case[]){{"every_mesh", every_mesh}, {0}});
    wf_tape_free(tape);
    WF_MUST(wf_comm_close(comm));
    return failed;
}

int main(int argc, char **argv)
{
    return ranks_main(argc, argv, on_ranks);
}
