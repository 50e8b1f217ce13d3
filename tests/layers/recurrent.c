/* Recurrent layers: outputs and final states beside plain loops, gradients of the cpu filling beside those of ref, and
 * what the layers refuse. Their gradients are checked in gradcheck_layers.c. */
#include "layers/layers.h"
#include "tests/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 4096, ARRAYS = 20 };

typedef struct recurrent_case {
    bool gru, both, biases, lengths, state;
    int levels;
    int64_t n, t, in, hidden;
} recurrent_case;

/* Values as doubles: parameters in the layer's order, inputs, and what came out. */
typedef struct outcome {
    int params;
    double param[16][MOST];
    double y[MOST], last[MOST];
    int grads;
    double grad[ARRAYS][MOST];
    int64_t count[ARRAYS];
} outcome;

static double x_value[MOST], state_value[MOST];
static int32_t lengths_value[16];

static void export_doubles(const wf_tensor *t, double *to)
{
    wf_tensor *wide = t ? wf_tensor_copy(t, WF_F64, WF_ROW_MAJOR) : NULL;
    WF_EXPECT(wide && wf_tensor_count(wide) <= MOST, "no values, or too many: %s", wf_error_message());
    if (wide)
        WF_EXPECT_OK(wf_tensor_export(wide, to, wf_tensor_bytes(wide)));
    wf_tensor_free(wide);
}

static wf_tensor *import_doubles(wf_ctx *ctx, wf_shape shape, const double *from)
{
    wf_tensor *wide = wf_tensor_from_host(ctx, WF_F64, shape, from);
    wf_tensor *t = wf_tensor_copy(wide, wf_ctx_dtype(ctx), WF_ROW_MAJOR);
    wf_tensor_free(wide);
    return t;
}

static wf_layer *make_layer(wf_ctx *ctx, const recurrent_case *c)
{
    const wf_recurrent_opts o = {
        .in = c->in, .hidden = c->hidden, .levels = c->levels, .both = c->both, .no_bias = !c->biases};
    return wf_layer_named(c->gru ? wf_gru(ctx, o) : wf_lstm(ctx, o), "r");
}

static int64_t state_rows(const recurrent_case *c)
{
    return (c->both ? 2 : 1) * c->levels * (c->gru ? 1 : 2);
}

static void keep_gradient(outcome *out, const wf_tensor *gradient)
{
    out->count[out->grads] = wf_tensor_count(gradient);
    export_doubles(gradient, out->grad[out->grads++]);
}

static void run_layer(wf_ctx *ctx, const recurrent_case *c, outcome *out)
{
    wf_tape *tape = wf_tape_new(ctx);
    wf_layer *layer = make_layer(ctx, c);
    wf_tensor *x = import_doubles(ctx, WF_SHAPE(c->n, c->t, c->in), x_value);
    wf_tensor *s = import_doubles(ctx, WF_SHAPE(c->n, state_rows(c), c->hidden), state_value);
    wf_tensor *l = wf_tensor_from_host(ctx, WF_I32, WF_SHAPE(c->n), lengths_value);
    wf_var *input[3] = {wf_leaf(tape, x)}, *last;
    wf_var *const state = wf_leaf(tape, s);
    int n = 1;
    if (c->lengths)
        input[n++] = wf_input(tape, l);
    if (c->state)
        input[n++] = state;
    wf_var *y = wf_recurrent(layer, input, n, &last);
    WF_EXPECT(y && last, "%s", wf_error_message());
    export_doubles(wf_value(y), out->y);
    export_doubles(wf_value(last), out->last);
    wf_param *const *params;
    int64_t count;
    WF_EXPECT_OK(wf_layer_params(layer, &count, &params));
    out->params = (int)count;
    out->grads = 0;
    wf_var *loss = wf_add(wf_sum(wf_mul(y, y)), wf_sum(wf_sigmoid(last)));
    WF_EXPECT_OK(wf_backward(loss));
    keep_gradient(out, wf_grad(input[0]));
    if (c->state)
        keep_gradient(out, wf_grad(state));
    for (int i = 0; i < count; i++) {
        export_doubles(wf_param_value(params[i]), out->param[i]);
        keep_gradient(out, wf_param_grad(params[i]));
    }
    WF_EXPECT_OK(wf_tape_reset(tape));
    /* The form without final states. */
    y = wf_apply_n(layer, (wf_var *[]){wf_input(tape, x), wf_input(tape, c->lengths ? l : s), wf_input(tape, s)},
                   c->lengths && c->state ? 3 : n);
    double again[MOST];
    export_doubles(wf_value(y), again);
    WF_EXPECT(test_distance(wf_tensor_count(wf_value(y)), again, out->y) == 0, "wf_apply_n gives another y");
    WF_EXPECT_OK(wf_tape_reset(tape));
    wf_tensor_free(x);
    wf_tensor_free(s);
    wf_tensor_free(l);
    wf_layer_free(layer);
    wf_tape_free(tape);
}

/* --- plain loops -------------------------------------------------------------------------------------------------- */

static double logistic(double v)
{
    return 1 / (1 + exp(-v));
}

static double dot(int64_t n, const double *row, const double *x, const double *bias, int64_t at)
{
    double sum = bias ? bias[at] : 0;
    for (int64_t i = 0; i < n; i++)
        sum += row[at * n + i] * x[i];
    return sum;
}

/* One step of one sample: h and cell become those after it. */
static void step_plain(const recurrent_case *c, double *const *p, int64_t in, const double *x, double *h, double *cell)
{
    double a[256], b[256], before[64];
    const int64_t size = c->hidden;
    for (int64_t k = 0; k < (c->gru ? 3 : 4) * size; k++) {
        a[k] = dot(in, p[0], x, c->biases ? p[2] : NULL, k);
        b[k] = dot(size, p[1], h, c->biases ? p[3] : NULL, k);
    }
    memcpy(before, h, (size_t)size * sizeof *h);
    for (int64_t j = 0; j < size; j++) {
        if (c->gru) {
            const double r = logistic(a[j] + b[j]), z = logistic(a[size + j] + b[size + j]);
            h[j] = (1 - z) * tanh(a[2 * size + j] + r * b[2 * size + j]) + z * before[j];
            continue;
        }
        const double i = logistic(a[j] + b[j]), f = logistic(a[size + j] + b[size + j]);
        cell[j] = f * cell[j] + i * tanh(a[2 * size + j] + b[2 * size + j]);
        h[j] = logistic(a[3 * size + j] + b[3 * size + j]) * tanh(cell[j]);
    }
}

/* All of sample n from the values of the parameters. */
static void run_sample(const recurrent_case *c, outcome *of, int64_t n, double *y, double *last)
{
    static double x[MOST], up[MOST];
    const int sides = c->both ? 2 : 1, each = c->biases ? 4 : 2;
    const int64_t length = !c->lengths ? c->t : lengths_value[n] < c->t ? lengths_value[n] : c->t;
    int64_t in = c->in;
    memcpy(x, x_value + n * c->t * in, (size_t)(c->t * in) * sizeof *x);
    for (int level = 0; level < c->levels; level++) {
        memset(up, 0, sizeof up);
        for (int d = 0; d < sides; d++) {
            const int index = level * sides + d;
            double *p[4], h[64] = {0}, cell[64] = {0};
            for (int i = 0; i < each; i++)
                p[i] = of->param[index * each + i];
            const double *const first = state_value + (n * state_rows(c) + index) * c->hidden;
            for (int64_t j = 0; j < c->hidden && c->state; j++) {
                h[j] = first[j];
                cell[j] = c->gru ? 0 : first[c->levels * sides * c->hidden + j];
            }
            for (int64_t i = 0; i < length; i++) {
                const int64_t t = d == 0 ? i : length - 1 - i;
                step_plain(c, p, in, x + t * in, h, cell);
                memcpy(up + t * sides * c->hidden + d * c->hidden, h, (size_t)c->hidden * sizeof *h);
            }
            memcpy(last + index * c->hidden, h, (size_t)c->hidden * sizeof *h);
            if (!c->gru)
                memcpy(last + (c->levels * sides + index) * c->hidden, cell, (size_t)c->hidden * sizeof *cell);
        }
        in = sides * c->hidden;
        memcpy(x, up, (size_t)(c->t * in) * sizeof *x);
    }
    memcpy(y, x, (size_t)(c->t * in) * sizeof *y);
}

static void compare_plain(const recurrent_case *c, outcome *of, double most, const char *what)
{
    static double y[MOST], last[MOST];
    const int64_t rows = c->t * (c->both ? 2 : 1) * c->hidden, states = state_rows(c) * c->hidden;
    for (int64_t n = 0; n < c->n; n++)
        run_sample(c, of, n, y + n * rows, last + n * states);
    const double far = test_distance(c->n * rows, of->y, y), far_last = test_distance(c->n * states, of->last, last);
    WF_EXPECT(far <= most && far_last <= most, "%s: y differs by %g from plain loops, final states by %g", what, far,
              far_last);
}

static void compare_gradients(const outcome *a, const outcome *b, double most, const char *what)
{
    WF_EXPECT(a->grads == b->grads && a->grads > 2, "%d gradients, and %d", a->grads, b->grads);
    for (int i = 0; i < a->grads; i++) {
        const double far = test_distance(a->count[i], a->grad[i], b->grad[i]);
        WF_EXPECT(a->count[i] == b->count[i] && far <= most, "%s: gradient %d differs by %g from ref's", what, i, far);
    }
}

static void values(void)
{
    static const recurrent_case list[] = {
        {.levels = 1, .n = 2, .t = 3, .in = 4, .hidden = 5, .biases = true},
        {.gru = true, .levels = 1, .n = 2, .t = 3, .in = 4, .hidden = 5, .biases = true},
        {.levels = 2,
         .both = true,
         .n = 4,
         .t = 5,
         .in = 3,
         .hidden = 6,
         .biases = true,
         .lengths = true,
         .state = true},
        {.gru = true,
         .levels = 2,
         .both = true,
         .n = 4,
         .t = 5,
         .in = 3,
         .hidden = 6,
         .biases = true,
         .lengths = true,
         .state = true},
        {.levels = 2, .both = true, .n = 3, .t = 4, .in = 2, .hidden = 3, .state = true},
        {.gru = true, .both = true, .levels = 1, .n = 5, .t = 4, .in = 2, .hidden = 33, .lengths = true},
        {.levels = 1, .n = 3, .t = 1, .in = 2, .hidden = 3, .state = true, .biases = true},
    };
    static outcome exact, single, narrow;
    test_rng rng = {11};
    for (int i = 0; i < MOST; i++) {
        x_value[i] = (double)test_int(&rng, -96, 96) / 64; /* bf16 holds them */
        state_value[i] = (double)test_int(&rng, -64, 64) / 64;
    }
    for (int i = 0; i < 16; i++)
        lengths_value[i] = (int32_t)((i * 3 + 2) % 7); /* 2, 5, 1, 4, 0, 3, 6 */
    wf_ctx *ref = wf_ctx_new((wf_ctx_opts){.device = "ref", .dtype = WF_F64, .seed = 5});
    wf_ctx *cpu = wf_ctx_new((wf_ctx_opts){.device = test_device("cpu"), .seed = 5, .threads = 2});
    wf_ctx *half = wf_ctx_new((wf_ctx_opts){.device = test_device("cpu"), .seed = 5});
    WF_EXPECT_OK(wf_ctx_set_compute(half, WF_BF16));
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        run_layer(ref, &list[i], &exact);
        run_layer(cpu, &list[i], &single);
        run_layer(half, &list[i], &narrow);
        compare_plain(&list[i], &exact, 1e-13, "ref");
        compare_plain(&list[i], &single, 1e-5, "f32");
        compare_plain(&list[i], &narrow, 2e-2, "bf16");
        compare_gradients(&single, &exact, 2e-5, "f32");
        compare_gradients(&narrow, &exact, 8e-2, "bf16");
    }
    WF_EXPECT_OK(wf_ctx_free(ref));
    WF_EXPECT_OK(wf_ctx_free(cpu));
    WF_EXPECT_OK(wf_ctx_free(half));
}

/* A sequence in two halves, the state handed on, is the sequence. */
static void halves(void)
{
    const recurrent_case c = {.levels = 2, .n = 2, .t = 6, .in = 3, .hidden = 4, .biases = true};
    wf_ctx *ctx = wf_ctx_new((wf_ctx_opts){.device = "ref", .dtype = WF_F64, .seed = 5});
    wf_tape *tape = wf_tape_new(ctx);
    wf_layer *layer = make_layer(ctx, &c);
    wf_tensor *t = import_doubles(ctx, WF_SHAPE(c.n, c.t, c.in), x_value);
    wf_var *x = wf_input(tape, t), *half[2], *state, *last;
    WF_EXPECT(wf_split(x, 1, 2, NULL, half), "%s", wf_error_message());
    wf_var *whole = wf_recurrent(layer, &x, 1, &last);
    wf_var *first = wf_recurrent(layer, &half[0], 1, &state);
    wf_var *second = wf_recurrent(layer, (wf_var *[]){half[1], state}, 2, &state);
    wf_var *joined = wf_concat(2, (wf_var *[]){first, second}, 1);
    double a[MOST], b[MOST];
    export_doubles(wf_value(whole), a);
    export_doubles(wf_value(joined), b);
    WF_EXPECT(test_distance(c.n * c.t * c.hidden, b, a) == 0, "two halves differ from the whole");
    export_doubles(wf_value(last), a);
    export_doubles(wf_value(state), b);
    WF_EXPECT(test_distance(c.n * 4 * c.hidden, b, a) == 0, "final states of two halves differ");
    WF_EXPECT_OK(wf_tape_reset(tape));
    wf_tensor_free(t);
    wf_layer_free(layer);
    wf_tape_free(tape);
    WF_EXPECT_OK(wf_ctx_free(ctx));
}

static void refuse(wf_status code, const char *words, bool refused)
{
    WF_EXPECT(refused && wf_error_code() == code && strstr(wf_error_message(), words),
              "is \"%s\" (%s), should have \"%s\"", wf_error_message(), wf_status_name(wf_error_code()), words);
    wf_error_clear();
}

static void errors(void)
{
    wf_ctx *ctx = wf_ctx_new((wf_ctx_opts){.device = "ref"});
    wf_tape *tape = wf_tape_new(ctx);
    wf_layer *lstm = wf_lstm(ctx, (wf_recurrent_opts){.in = 3, .hidden = 4, .levels = 2});
    wf_layer *linear = wf_linear(ctx, (wf_linear_opts){.in = 3, .out = 1});
    wf_tensor *a = wf_tensor_new(ctx, WF_F32, WF_SHAPE(2, 5, 3)), *b = wf_tensor_new(ctx, WF_F32, WF_SHAPE(2, 2, 4));
    wf_tensor *n = wf_tensor_from_host(ctx, WF_I32, WF_SHAPE(2), lengths_value);
    WF_EXPECT_OK(wf_tensor_fill(a, 0));
    WF_EXPECT_OK(wf_tensor_fill(b, 0));
    wf_var *x = wf_input(tape, a), *state = wf_input(tape, b), *lengths = wf_input(tape, n), *last;
    refuse(WF_ERR_ARGUMENT, "hidden is 0", !wf_lstm(ctx, (wf_recurrent_opts){.in = 3}));
    refuse(WF_ERR_ARGUMENT, "-1 levels", !wf_gru(ctx, (wf_recurrent_opts){.in = 3, .hidden = 1, .levels = -1}));
    refuse(WF_ERR_ARGUMENT, "rate 1 is", !wf_gru(ctx, (wf_recurrent_opts){.in = 3, .hidden = 1, .dropout = 1}));
    refuse(WF_ERR_SHAPE, "should be [N,T,3]", !wf_apply(lstm, state));
    refuse(WF_ERR_SHAPE, "should be [2,4,4]", !wf_apply_n(lstm, WF_INPUTS(x, state)));
    refuse(WF_ERR_ARGUMENT, "not two", !wf_apply_n(lstm, WF_INPUTS(x, lengths, lengths)));
    refuse(WF_ERR_ARGUMENT, "should be an lstm or a gru", !wf_recurrent(linear, &x, 1, &last));
    WF_EXPECT(!last, "a refused layer gives a state");
    WF_EXPECT_OK(wf_tape_reset(tape));
    wf_tensor_free(a);
    wf_tensor_free(b);
    wf_tensor_free(n);
    wf_layer_free(lstm);
    wf_layer_free(linear);
    wf_tape_free(tape);
    WF_EXPECT_OK(wf_ctx_free(ctx));
}

int main(int argc, char **argv)
{
    return test_main(argc, argv, (test_case[]){{"values", values}, {"halves", halves}, {"errors", errors}, {0}});
}
