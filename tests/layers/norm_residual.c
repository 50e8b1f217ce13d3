/* Batch normalisation with a residual (wf_apply_residual) gives what normalisation, addition and activation give one
 * after the other: output, gradients, running statistics; where the residual has another gradient already, is the input
 * itself, or wants none; in less memory. And running statistics that are a plain mean over batches. */
#include "layers/layer_author.h"
#include "layers/layers.h"
#include "tests/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 1 << 15, CHANNELS = 67 };

typedef struct setting {
    const char *device;
    wf_dtype dtype;   /* of parameters */
    wf_dtype of_x;    /* of the activations */
    double tolerance; /* of the largest element; 0: the same bits */
} setting;

/* The order of operations is that of the parts: with f64 nothing is rounded in between. Narrow types round the two
 * values in between, which the fused form never stores. */
static const setting settings[] = {
    {"ref", WF_F64, WF_F64, 0},    {"ref", WF_F32, WF_F32, 1e-6}, {"ref", WF_F32, WF_BF16, 2e-2},
    {"cpu", WF_F64, WF_F64, 0},    {"cpu", WF_F32, WF_F32, 1e-5}, {"cpu", WF_F32, WF_BF16, 2e-2},
    {"ref", WF_F32, WF_F16, 2e-3}, {"cpu", WF_F32, WF_F16, 2e-3},
};

/* What the residual is. */
typedef enum source { OTHER = 0, USED_AGAIN, SAME_AS_X, CONSTANT, CONSTANT_X, SOURCES } source;

typedef struct run {
    const setting *setting;
    wf_ctx *ctx;
    wf_tape *tape;
    wf_shape shape;
    wf_tensor *x, *residual, *dy;
    source source;
    char what[160];
} run;

typedef struct result {
    double y[MOST], dx[MOST], dr[MOST], dgamma[CHANNELS], dbeta[CHANNELS], mean[CHANNELS], var[CHANNELS];
} result;

static void fetch(const wf_tensor *t, double *value)
{
    wf_tensor *copy = t ? wf_tensor_copy(t, WF_F64, WF_ROW_MAJOR) : NULL;
    if (copy)
        WF_EXPECT_OK(wf_tensor_export(copy, value, wf_tensor_bytes(copy)));
    wf_tensor_free(copy);
}

/* Numbers of this magnitude and of either sign. */
static wf_tensor *numbers(const run *r, wf_dtype dtype, wf_shape shape, double lo, double hi, uint64_t seed)
{
    static double value[MOST];
    test_rng rng = {seed};
    for (int64_t i = 0; i < wf_shape_count(shape); i++)
        value[i] = (test_int(&rng, 0, 1) ? 1 : -1) * test_uniform(&rng, lo, hi);
    wf_tensor *wide = wf_tensor_from_host(r->ctx, WF_F64, shape, value);
    wf_tensor *t = wf_tensor_copy(wide, dtype, wf_order_default(shape.rank));
    wf_tensor_free(wide);
    return t;
}

static wf_layer *norm_new(const run *r, wf_batchnorm_opts opts)
{
    opts.channels = r->shape.dim[1];
    opts.gamma_init = (wf_init){WF_INIT_UNIFORM, 0.5, 1.2};
    opts.beta_init = (wf_init){WF_INIT_UNIFORM, -0.5, 0.5};
    return wf_layer_named(wf_batchnorm(r->ctx, opts), "norm"); /* of one name: the same initial values */
}

static wf_var *variable(const run *r, wf_tensor *value, bool constant)
{
    return constant ? wf_input(r->tape, value) : wf_leaf(r->tape, value);
}

/* One step. `parts`: by normalisation, addition and activation, each a function of its own. */
static void step(const run *r, wf_batchnorm_opts opts, bool parts, wf_layer *norm, result *out)
{
    wf_var *leaf_x = variable(r, r->x, r->source == CONSTANT_X);
    wf_var *leaf_r = variable(r, r->residual, r->source == CONSTANT);
    wf_var *x = wf_scale(leaf_x, 0.5), *residual = r->source == SAME_AS_X ? x : wf_scale(leaf_r, 0.5);
    wf_var *y;
    if (parts) {
        wf_var *sum = wf_add(wf_apply(norm, x), residual);
        y = wf_activate(sum, opts.act, opts.slope, 0);
    } else {
        y = wf_apply_residual(norm, x, residual);
    }
    /* Its gradient comes before that of the normalisation, and shares memory with that of y. */
    if (r->source == USED_AGAIN)
        y = wf_add(y, residual);
    WF_EXPECT(y, "%s: %s", r->what, wf_error_message());
    memset(out, 0, sizeof *out);
    if (!y)
        return;
    fetch(wf_value(y), out->y);
    if (wf_tape_mode(r->tape) == WF_TRAIN) {
        WF_EXPECT_OK(wf_backward_from(y, r->dy));
        fetch(r->source == CONSTANT_X ? NULL : wf_grad(leaf_x), out->dx);
        fetch(r->source == CONSTANT ? NULL : wf_grad(leaf_r), out->dr);
        fetch(opts.no_gamma ? NULL : wf_param_grad(wf_layer_param(norm, "gamma")), out->dgamma);
        fetch(opts.no_beta ? NULL : wf_param_grad(wf_layer_param(norm, "beta")), out->dbeta);
    }
    fetch(wf_param_value(wf_layer_param(norm, "avg_mean")), out->mean);
    fetch(wf_param_value(wf_layer_param(norm, "avg_var")), out->var);
    WF_EXPECT_OK(wf_tape_reset(r->tape));
}

static void near(const run *r, const char *name, int64_t n, const double *seen, const double *should)
{
    double most = 1e-3, off = 0;
    for (int64_t i = 0; i < n; i++) {
        most = fmax(most, fabs(should[i]));
        const double d = fabs(seen[i] - should[i]);
        off = d <= off ? off : isnan(d) ? INFINITY : d;
    }
    WF_EXPECT(off <= r->setting->tolerance * most, "%s: %s is off by %g of %g", r->what, name, off, most);
}

static void compare(run *r, wf_batchnorm_opts opts, wf_mode mode)
{
    static result seen, should;
    const int64_t n = wf_shape_count(r->shape), c = r->shape.dim[1];
    wf_batchnorm_opts plain = opts;
    char text[WF_SHAPE_TEXT];
    plain.act = WF_ACT_NONE;
    wf_layer *fused = norm_new(r, opts), *norm = norm_new(r, plain);
    snprintf(r->what, sizeof r->what, "%s %s %s act %d source %d mode %d", r->setting->device,
             wf_dtype_name(r->setting->of_x), wf_shape_text(r->shape, text), (int)opts.act, (int)r->source, (int)mode);
    WF_EXPECT(fused && norm, "%s: %s", r->what, wf_error_message());
    WF_EXPECT_OK(wf_tape_set_mode(r->tape, mode));
    step(r, opts, false, fused, &seen);
    step(r, opts, true, norm, &should);
    near(r, "y", n, seen.y, should.y);
    near(r, "dx", n, seen.dx, should.dx);
    near(r, "the residual's gradient", n, seen.dr, should.dr);
    near(r, "gamma's gradient", c, seen.dgamma, should.dgamma);
    near(r, "beta's gradient", c, seen.dbeta, should.dbeta);
    near(r, "the running mean", c, seen.mean, should.mean);
    near(r, "the running variance", c, seen.var, should.var);
    wf_layer_free(fused);
    wf_layer_free(norm);
}

static void equal_on(const setting *s, wf_shape shape)
{
    static const wf_batchnorm_opts forms[] = {{.act = WF_ACT_RELU},
                                              {.act = WF_ACT_LEAKY_RELU, .slope = 0.25, .no_gamma = true},
                                              {.no_beta = true, .decay = 0.5}};
    run r = {.setting = s, .shape = shape};
    r.ctx = wf_ctx_new((wf_ctx_opts){.device = test_device(s->device), .dtype = s->dtype, .threads = 2});
    r.tape = wf_tape_new(r.ctx);
    r.x = numbers(&r, s->of_x, shape, 0, 2, 1);
    r.dy = numbers(&r, s->of_x, shape, 0, 1, 3);
    /* Half of them: far from the corner of the activation, on whose other side rounding may not bring a sum. */
    r.residual = numbers(&r, s->of_x, shape, 10, 12, 2);
    for (int f = 0; f < 3; f++)
        for (int source_of = 0; source_of < SOURCES; source_of++) {
            r.source = (source)source_of;
            /* There x itself is near the corner. */
            if (r.source == SAME_AS_X && s->tolerance > 0 && f < 2)
                continue;
            compare(&r, forms[f], WF_TRAIN);
            compare(&r, forms[f], WF_EVAL);
        }
    wf_tensor_free(r.x);
    wf_tensor_free(r.dy);
    wf_tensor_free(r.residual);
    wf_tape_free(r.tape);
    wf_ctx_free(r.ctx);
}

static void equal(void)
{
    const wf_shape shapes[] = {WF_SHAPE(6, 5),          WF_SHAPE(3, 7, 5),    WF_SHAPE(2, 16, 4, 4),
                               WF_SHAPE(2, 3, 2, 3, 4), WF_SHAPE(0, 4, 2, 2), WF_SHAPE(2, CHANNELS, 13, 11)};
    for (size_t s = 0; s < sizeof settings / sizeof *settings; s++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
            equal_on(&settings[s], shapes[i]);
}

/* Checks that the output is wider if one input is. */
static void two_types(void)
{
    wf_ctx *ctx = wf_ctx_new((wf_ctx_opts){.device = test_device("cpu")});
    wf_tape *tape = wf_tape_new(ctx);
    wf_layer *norm = wf_batchnorm(ctx, (wf_batchnorm_opts){.channels = 3, .act = WF_ACT_RELU});
    wf_tensor *wide = wf_tensor_new(ctx, WF_F32, WF_SHAPE(2, 3, 2, 2));
    wf_tensor *narrow = wf_tensor_new(ctx, WF_BF16, WF_SHAPE(2, 3, 2, 2));
    WF_EXPECT_OK(wf_tensor_fill(wide, 1.125));
    WF_EXPECT_OK(wf_tensor_fill(narrow, 0.5));
    for (int i = 0; i < 2; i++) {
        wf_var *a = wf_leaf(tape, wide), *b = wf_leaf(tape, narrow);
        wf_var *y = i ? wf_apply_residual(norm, a, b) : wf_apply_residual(norm, b, a);
        WF_EXPECT(y && wf_tensor_dtype(wf_value(y)) == WF_F32, "%s", wf_error_message());
        WF_EXPECT_OK(wf_backward(wf_sum(y)));
        WF_EXPECT(wf_tensor_dtype(wf_grad(a)) == WF_F32 && wf_tensor_dtype(wf_grad(b)) == WF_BF16,
                  "types of gradients");
        WF_EXPECT_OK(wf_tape_reset(tape));
    }
    wf_tensor_free(wide);
    wf_tensor_free(narrow);
    wf_layer_free(norm);
    wf_tape_free(tape);
    wf_ctx_free(ctx);
}

/* Checks the arrays of the input's size that are kept: forward keeps only the output, and backward takes two more, dx
 * and the incoming gradient, whose memory becomes that of the residual. */
static void memory(void)
{
    wf_ctx *ctx = wf_ctx_new((wf_ctx_opts){.device = test_device("cpu")});
    wf_tape *tape = wf_tape_new(ctx);
    wf_layer *norm = wf_batchnorm(ctx, (wf_batchnorm_opts){.channels = 64, .act = WF_ACT_RELU});
    wf_tensor *t = wf_tensor_new(ctx, WF_F32, WF_SHAPE(8, 64, 32, 32));
    const size_t array = wf_tensor_bytes(t);
    WF_EXPECT_OK(wf_tensor_fill(t, 0.5));
    wf_var *x = wf_scale(wf_leaf(tape, t), 2), *residual = wf_scale(wf_leaf(tape, t), 3);
    const size_t before = wf_ctx_memory(ctx).bytes_in_use;
    wf_var *y = wf_apply_residual(norm, x, residual);
    const size_t kept = wf_ctx_memory(ctx).bytes_in_use - before;
    WF_EXPECT(kept < array + array / 8, "forward keeps %zu bytes, the output has %zu", kept, array);
    WF_EXPECT_OK(wf_backward(wf_sum(y)));
    const size_t most = wf_ctx_memory(ctx).bytes_peak - before;
    WF_EXPECT(most < 3 * array + array / 8, "backward brings it to %zu bytes, three arrays have %zu", most, 3 * array);
    wf_tensor_free(t);
    wf_tape_free(tape);
    wf_layer_free(norm);
    wf_ctx_free(ctx);
}

/* Running statistics without moving averages: what three batches have, each alike, whatever was there before. */
static void averaged(void)
{
    static const double value[3][4] = {{1, 3, 2, 6}, {-1, 1, 5, 5}, {2, 2, 2, 10}}; /* means 3, 2.5, 4 */
    const double mean = (3 + 2.5 + 4) / 3, var = (14.0 / 3 + 9 + 16) / 3;           /* unbiased */
    wf_ctx *ctx = wf_ctx_new((wf_ctx_opts){.device = "ref", .dtype = WF_F64});
    wf_tape *tape = wf_tape_new(ctx);
    wf_layer *norm = wf_batchnorm(ctx, (wf_batchnorm_opts){.channels = 1, .eps = WF_ZERO});
    wf_layer *model = wf_sequential(ctx, WF_LAYERS(wf_lambda(ctx, wf_relu), wf_sequential(ctx, WF_LAYERS(norm))));
    for (int pass = 0; pass < 2; pass++) {
        for (int k = -1; k < 3; k++) { /* the first one counts with the usual decay, and is forgotten */
            wf_tensor *x = wf_tensor_from_host(ctx, WF_F64, WF_SHAPE(4, 1), value[k < 0 ? 2 : k]);
            WF_EXPECT_OK(wf_batchnorm_average(model, k + 1));
            WF_EXPECT_OK(wf_check(wf_apply(norm, wf_input(tape, x))));
            WF_EXPECT_OK(wf_tape_reset(tape));
            wf_tensor_free(x);
        }
        const double is[2] = {wf_tensor_item(wf_param_value(wf_layer_param(norm, "avg_mean"))),
                              wf_tensor_item(wf_param_value(wf_layer_param(norm, "avg_var")))};
        WF_EXPECT(fabs(is[0] - mean) < 1e-14 && fabs(is[1] - var) < 1e-13,
                  "mean %.17g and variance %.17g, not %.17g and %.17g", is[0], is[1], mean, var);
    }
    WF_EXPECT_ERROR(WF_ERR_ARGUMENT, wf_batchnorm_average(model, -1));
    wf_layer_free(model);
    wf_tape_free(tape);
    wf_ctx_free(ctx);
}

int main(int argc, char **argv)
{
    return test_main(
        argc, argv,
        (test_case[]){{"equal", equal}, {"two_types", two_types}, {"memory", memory}, {"averaged", averaged}, {0}});
}
