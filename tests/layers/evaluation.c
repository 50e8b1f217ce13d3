/* What layers do in WF_EVAL for speed: pooling keeps no indices, and convolutions of few pixels are products with
 * packed filters. Outputs are those of training, also after the filter has changed. */
#include "layers/layers.h"
#include "tests/test.h"

#include <math.h>
#include <stdlib.h>

typedef struct outputs {
    int64_t count;
    double *value;
} outputs;

static outputs apply(wf_tape *tape, wf_mode mode, wf_layer *layer, const wf_tensor *x)
{
    WF_EXPECT_OK(wf_tape_set_mode(tape, mode));
    wf_tensor *y = wf_tensor_copy(wf_value(wf_apply(layer, wf_input(tape, x))), WF_F64, WF_ROW_MAJOR);
    outputs made = {.count = wf_tensor_count(y)};
    made.value = calloc((size_t)made.count + 1, sizeof *made.value);
    WF_EXPECT_OK(wf_tensor_export(y, made.value, wf_tensor_bytes(y)));
    wf_tensor_free(y);
    WF_EXPECT_OK(wf_tape_reset(tape));
    return made;
}

/* The largest difference, in units of the largest element. */
static double difference(outputs a, outputs b)
{
    double most = 0, largest = 1e-30;
    for (int64_t i = 0; i < a.count; i++) {
        most = fmax(most, fabs(a.value[i] - b.value[i]));
        largest = fmax(largest, fabs(a.value[i]));
    }
    return a.count == b.count ? most / largest : INFINITY;
}

static wf_tensor *numbers(wf_ctx *ctx, wf_shape shape, uint64_t seed)
{
    const int64_t n = wf_shape_count(shape);
    double *value = malloc((size_t)n * sizeof *value);
    test_rng rng = {seed};
    for (int64_t i = 0; i < n; i++)
        value[i] = test_uniform(&rng, -1, 1);
    wf_tensor *wide = wf_tensor_from_host(ctx, WF_F64, shape, value);
    wf_tensor *t = wf_tensor_copy(wide, wf_ctx_compute(ctx), wf_order_default(shape.rank));
    wf_tensor_free(wide);
    free(value);
    return t;
}

typedef struct setting {
    const char *device;
    wf_dtype dtype, compute; /* compute WF_F32: in the type of parameters */
    double tolerance;
} setting;

static const setting settings[] = {
    {"ref", WF_F64, WF_F32, 0},    {"ref", WF_F32, WF_F32, 0},     {"cpu", WF_F64, WF_F32, 1e-12},
    {"cpu", WF_F32, WF_F32, 1e-5}, {"cpu", WF_F32, WF_BF16, 2e-2},
};

static wf_ctx *context(const setting *s)
{
    return wf_ctx_new((wf_ctx_opts){.device = s->device, .dtype = s->dtype, .compute = s->compute});
}

/* Runs one layer in both modes, before and after its filter changes. */
static void convolution(const setting *s, wf_conv_opts o, wf_shape shape)
{
    wf_ctx *ctx = context(s);
    wf_tape *tape = wf_tape_new(ctx);
    wf_layer *layer = wf_conv2d(ctx, o);
    wf_tensor *x = numbers(ctx, shape, 5), *w = wf_param_value(wf_layer_param(layer, "W"));
    outputs seen[2];
    for (int round = 0; round < 2; round++) {
        const outputs should = apply(tape, WF_TRAIN, layer, x);
        seen[round] = apply(tape, WF_EVAL, layer, x);
        const double off = difference(should, seen[round]);
        WF_EXPECT(off <= s->tolerance, "%s, compute %s, %lld channels, round %d: outputs differ by %g", s->device,
                  wf_dtype_name(s->compute), (long long)o.in, round, off);
        free(should.value);
        wf_tensor *other = numbers(ctx, wf_tensor_shape(w), 9),
                  *wide = wf_tensor_copy(other, s->dtype, WF_CHANNELS_LAST);
        WF_EXPECT_OK(wf_tensor_assign(w, wide));
        wf_tensor_free(other);
        wf_tensor_free(wide);
    }
    WF_EXPECT(difference(seen[0], seen[1]) > 0.1, "%s: outputs of two filters are equal", s->device);
    free(seen[0].value);
    free(seen[1].value);
    wf_tensor_free(x);
    wf_layer_free(layer);
    wf_tape_free(tape);
    WF_EXPECT_OK(wf_ctx_free(ctx));
}

/* Many channels on few pixels, and on too few or too many for a product; with what follows in the same pass. */
static void convolutions(void)
{
    const wf_conv_opts deep = {.in = 256, .out = 512, .kernel = 3, .pad = 1};
    const wf_conv_opts half = {.in = 256, .out = 512, .kernel = 1, .stride = 2, .act = WF_ACT_LEAKY_RELU, .slope = 0.2};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        convolution(&settings[i], deep, WF_SHAPE(1, 256, 4, 4));
        convolution(&settings[i], deep, WF_SHAPE(2, 256, 2, 3));
        convolution(&settings[i], deep, WF_SHAPE(1, 256, 1, 1));
        convolution(&settings[i], half, WF_SHAPE(1, 256, 7, 7));
        convolution(&settings[i], half, WF_SHAPE(2, 256, 7, 7));
    }
}

/* Maxima and averages of every type: 83 channels are vectors and a rest, 7 a rest alone. */
static void pooling(void)
{
    const wf_pool_opts window = {.kernel = 3, .stride = 2, .pad = 1};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        for (int form = 0; form < 4; form++) {
            wf_ctx *ctx = context(&settings[i]);
            wf_tape *tape = wf_tape_new(ctx);
            wf_layer *layer = form == 0   ? wf_max_pool2d(ctx, window)
                              : form == 1 ? wf_avg_pool2d(ctx, window)
                              : form == 2 ? wf_global_max_pool(ctx)
                                          : wf_global_avg_pool(ctx);
            for (int64_t channels = 7; channels <= 83; channels += 76) {
                wf_tensor *x = numbers(ctx, WF_SHAPE(2, channels, 9, 8), 3);
                const outputs should = apply(tape, WF_TRAIN, layer, x), seen = apply(tape, WF_EVAL, layer, x);
                WF_EXPECT(difference(should, seen) == 0, "%s, form %d: outputs of both modes differ by %g",
                          settings[i].device, form, difference(should, seen));
                free(should.value);
                free(seen.value);
                wf_tensor_free(x);
            }
            wf_layer_free(layer);
            wf_tape_free(tape);
            WF_EXPECT_OK(wf_ctx_free(ctx));
        }
}

/* Training keeps an index beside each maximum; evaluation takes memory for the output alone. */
static void memory(void)
{
    wf_ctx *ctx = wf_ctx_new((wf_ctx_opts){.device = test_device("cpu")});
    wf_tape *tape = wf_tape_new(ctx);
    wf_layer *layer = wf_max_pool2d(ctx, (wf_pool_opts){.kernel = 2, .stride = 2});
    wf_tensor *x = wf_tensor_new(ctx, WF_F32, WF_SHAPE(2, 64, 32, 32));
    const size_t output = wf_tensor_bytes(x) / 4;
    size_t most[2];
    WF_EXPECT_OK(wf_tensor_fill(x, 0.5));
    for (int trains = 0; trains < 2; trains++) {
        WF_EXPECT_OK(wf_tape_set_mode(tape, trains ? WF_TRAIN : WF_EVAL));
        wf_var *in = wf_leaf(tape, x);
        const size_t before = wf_ctx_memory(ctx).bytes_in_use;
        WF_EXPECT(wf_apply(layer, in), "%s", wf_error_message());
        most[trains] = wf_ctx_memory(ctx).bytes_peak - before;
        WF_EXPECT_OK(wf_tape_reset(tape));
    }
    WF_EXPECT(most[0] < output + output / 4 && most[1] >= 2 * output,
              "evaluation takes %zu bytes, training %zu, the output has %zu", most[0], most[1], output);
    wf_tensor_free(x);
    wf_layer_free(layer);
    wf_tape_free(tape);
    WF_EXPECT_OK(wf_ctx_free(ctx));
}

int main(int argc, char **argv)
{
    return test_main(argc, argv,
                     (test_case[]){{"convolutions", convolutions}, {"pooling", pooling}, {"memory", memory}, {0}});
}
