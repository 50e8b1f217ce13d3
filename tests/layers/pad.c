/* Padding and rolls on one rank: every element by the formula of its edge, known numbers, gradients against central
 * differences, types. */
#include "core/tape_author.h"
#include "layers/functions.h"
#include "tests/layers/pad_question.h"

#include <math.h>

static wf_ctx *ctx;
static wf_tape *tape;

static void check_local(const question *q, wf_order order)
{
    static double want[MOST_ELEMENTS], got[MOST_ELEMENTS], want_dx[MOST_ELEMENTS], values[MOST_ELEMENTS];
    WF_EXPECT_OK(wf_tape_reset(tape));
    serial(q, want, want_dx);
    const int64_t n = fill(wf_box_of_shape(q->whole), 1, values);
    wf_tensor *x = tensor_of(ctx, q->whole, values, order);
    fill(wf_box_of_shape(q->out), 2, values);
    wf_tensor *dy = tensor_of(ctx, q->out, values, order);
    /* Half as often: the gradient is added to that of another use. */
    wf_var *leaf = wf_leaf(tape, x), *y = ask(q, leaf);
    WF_EXPECT(y && wf_shape_equal(wf_var_shape(y), q->out), "%s", wf_error_message());
    const int64_t count = y ? read_all(wf_value(y), got) : 0;
    WF_EXPECT(memcmp(want, got, sizeof *got * (size_t)count) == 0, "a shape of rank %d: off by %g", q->whole.rank,
              test_distance(count, got, want));
    if (y && y != leaf) {
        WF_EXPECT_OK(wf_backward_from(y, dy));
        read_all(wf_grad(leaf), got);
        WF_EXPECT(test_distance(n, got, want_dx) < 1e-14, "dx is off by %g", test_distance(n, got, want_dx));
    }
    WF_EXPECT_OK(wf_tape_reset(tape));
    wf_tensor_free(x);
    wf_tensor_free(dy);
}

static void by_formula(void)
{
    test_rng rng = {.state = 51};
    for (int i = 0; i < test_samples(2000); i++) {
        const question q = i % 4 ? random_pad(&rng, 4) : random_roll(&rng, 4);
        check_local(&q, i % 2 ? wf_order_default(q.whole.rank) : WF_ROW_MAJOR);
    }
}

/* As in the header, and as PyTorch's F.pad and torch.roll, and NumPy's pad, have it. */
static void known_answers(void)
{
    static const double a[4] = {1, 2, 3, 4};
    static const struct {
        wf_edge edge;
        double y[8];
    } edges[] = {{WF_EDGE_DEFAULT, {9, 9, 1, 2, 3, 4, 9, 9}},   {WF_EDGE_CONSTANT, {9, 9, 1, 2, 3, 4, 9, 9}},
                 {WF_EDGE_CIRCULAR, {3, 4, 1, 2, 3, 4, 1, 2}},  {WF_EDGE_REFLECT, {3, 2, 1, 2, 3, 4, 3, 2}},
                 {WF_EDGE_SYMMETRIC, {2, 1, 1, 2, 3, 4, 4, 3}}, {WF_EDGE_REPLICATE, {1, 1, 1, 2, 3, 4, 4, 4}}};
    double got[16];
    wf_tensor *x = wf_tensor_from_host(ctx, WF_F64, WF_SHAPE(4), a);
    for (size_t i = 0; i < sizeof edges / sizeof *edges; i++) {
        const wf_boundary b = {.edge = edges[i].edge, .value = 9};
        read_all(wf_value(wf_pad(wf_leaf(tape, x), (int64_t[]){2}, (int64_t[]){2}, b)), got);
        WF_EXPECT(test_distance(8, got, edges[i].y) == 0, "%s: %g %g ... %g %g", wf_edge_name(b.edge), got[0], got[1],
                  got[6], got[7]);
    }
    read_all(wf_value(wf_roll(wf_leaf(tape, x), 1, (int64_t[]){1}, (int[]){0})), got);
    WF_EXPECT(test_distance(4, got, (double[]){4, 1, 2, 3}) == 0, "a roll by 1 begins with %g %g", got[0], got[1]);
    /* Rows of latitude 1 to 4 and 5 to 8: beyond the pole row 1 goes on, half a turn away. */
    wf_tensor *sphere = wf_tensor_from_host(ctx, WF_F64, WF_SHAPE(2, 4), (double[]){1, 2, 3, 4, 5, 6, 7, 8});
    wf_boundary pole = {.edge = WF_EDGE_CIRCULAR, .lo = {WF_EDGE_POLE}, .hi = {WF_EDGE_POLE}};
    read_all(wf_value(wf_pad(wf_leaf(tape, sphere), (int64_t[]){1, 0}, (int64_t[]){0, 0}, pole)), got);
    WF_EXPECT(test_distance(4, got, (double[]){3, 4, 1, 2}) == 0, "%g %g %g %g", got[0], got[1], got[2], got[3]);
    pole.row_on_pole = true;
    read_all(wf_value(wf_pad(wf_leaf(tape, sphere), (int64_t[]){1, 0}, (int64_t[]){0, 0}, pole)), got);
    WF_EXPECT(test_distance(4, got, (double[]){7, 8, 5, 6}) == 0, "%g %g %g %g", got[0], got[1], got[2], got[3]);
    WF_EXPECT_OK(wf_tape_reset(tape));
    wf_tensor_free(x);
    wf_tensor_free(sphere);
}

static double objective(const question *q, const double *values, const double *weight)
{
    static double got[MOST_ELEMENTS];
    double sum = 0;
    WF_EXPECT_OK(wf_tape_reset(tape));
    wf_tensor *x = wf_tensor_from_host(ctx, WF_F64, q->whole, values);
    wf_var *y = ask(q, wf_leaf(tape, x));
    const int64_t n = read_all(wf_value(y), got);
    for (int64_t i = 0; i < n; i++)
        sum += weight[i] * got[i] * got[i];
    wf_tensor_free(x);
    return sum;
}

/* The gradient of sum weight y^2, x used twice, against central differences. */
static void central_differences(void)
{
    static double values[MOST_ELEMENTS], weight[MOST_ELEMENTS], got[MOST_ELEMENTS];
    test_rng rng = {.state = 52};
    for (int i = 0; i < 25; i++) {
        const question q = i % 4 ? random_pad(&rng, 3) : random_roll(&rng, 3);
        const int64_t n = fill(wf_box_of_shape(q.whole), 3, values);
        fill(wf_box_of_shape(q.out), 4, weight);
        wf_tensor *x = wf_tensor_from_host(ctx, WF_F64, q.whole, values);
        wf_tensor *w = wf_tensor_from_host(ctx, WF_F64, q.out, weight);
        WF_EXPECT_OK(wf_tape_reset(tape));
        wf_var *leaf = wf_leaf(tape, x), *y = ask(&q, leaf), *same = ask(&q, leaf), *square = wf_mul(y, same);
        WF_EXPECT_OK(wf_backward_from(square, w));
        WF_EXPECT(read_all(wf_grad(leaf), got) == n, "%s", wf_error_message());
        for (int64_t k = 0; k < n; k++) {
            const double kept = values[k], h = 1e-4;
            values[k] = kept + h;
            const double above = objective(&q, values, weight);
            values[k] = kept - h;
            const double below = objective(&q, values, weight);
            values[k] = kept;
            WF_EXPECT(fabs(got[k] - (above - below) / (2 * h)) < 1e-8,
                      "sample %d: gradient %d is %g, differences say %g", i, (int)k, got[k], (above - below) / (2 * h));
        }
        WF_EXPECT_OK(wf_tape_reset(tape));
        wf_tensor_free(x);
        wf_tensor_free(w);
    }
}

/* Types that are not f64 travel as they are; integers too, but not with another sign. */
static void types(void)
{
    const int64_t values[4] = {1, 2, 3, INT64_MAX}, channel = 0;
    int64_t got[6];
    wf_tensor *x = wf_tensor_from_host(ctx, WF_I64, WF_SHAPE(4), values);
    wf_var *y = wf_pad(wf_input(tape, x), (int64_t[]){1}, (int64_t[]){1}, (wf_boundary){.edge = WF_EDGE_CIRCULAR});
    WF_EXPECT_OK(wf_tensor_export(wf_value(y), got, sizeof got));
    WF_EXPECT(got[0] == INT64_MAX && got[4] == INT64_MAX && got[5] == 1, "i64");
    wf_tensor *image = wf_tensor_new(ctx, WF_I32, WF_SHAPE(2, 1, 2));
    WF_EXPECT_OK(wf_tensor_fill(image, 1));
    const wf_boundary pole = {.edge = WF_EDGE_CIRCULAR, .lo = {WF_EDGE_POLE}, .n_negated = 1, .negated = &channel};
    WF_EXPECT(!wf_pad(wf_input(tape, image), (int64_t[]){1, 0, 0}, (int64_t[3]){0}, pole) &&
                  wf_error_code() == WF_ERR_DTYPE,
              "%s", wf_error_message());
    wf_error_clear();
    WF_EXPECT_OK(wf_tape_reset(tape));
    wf_tensor_free(x);
    wf_tensor_free(image);
}

/* The list of channels may be gone when the gradient is asked for. */
static void list_is_copied(void)
{
    int64_t channel = 1;
    double got[8];
    wf_tensor *x = wf_tensor_new(ctx, WF_F64, WF_SHAPE(1, 2, 2, 2)),
              *dy = wf_tensor_new(ctx, WF_F64, WF_SHAPE(1, 2, 3, 2));
    WF_EXPECT_OK(wf_tensor_fill(x, 1));
    WF_EXPECT_OK(wf_tensor_fill(dy, 1));
    wf_boundary pole = {.edge = WF_EDGE_CIRCULAR, .n_negated = 1, .negated = &channel};
    pole.lo[2] = WF_EDGE_POLE;
    wf_var *leaf = wf_leaf(tape, x), *y = wf_pad(leaf, (int64_t[]){0, 0, 1, 0}, (int64_t[4]){0}, pole);
    channel = 0;
    WF_EXPECT_OK(wf_backward_from(y, dy));
    read_all(wf_grad(leaf), got);
    WF_EXPECT(test_distance(8, got, (double[]){2, 2, 1, 1, 0, 0, 1, 1}) == 0, "%g %g and %g %g", got[0], got[2], got[4],
              got[6]);
    WF_EXPECT_OK(wf_tape_reset(tape));
    wf_tensor_free(x);
    wf_tensor_free(dy);
}

int main(int argc, char **argv)
{
    ctx = wf_ctx_new((wf_ctx_opts){.device = test_device("cpu"), .threads = 1});
    tape = wf_tape_new(ctx);
    const int failed = test_main(argc, argv,
                                 (test_case[]){{"by_formula", by_formula},
                                               {"known_answers", known_answers},
                                               {"central_differences", central_differences},
                                               {"types", types},
                                               {"list_is_copied", list_is_copied},
                                               {0}});
    wf_tape_free(tape);
    return wf_ctx_free(ctx) != WF_OK || failed;
}
