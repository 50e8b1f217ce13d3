/* Functions and losses: values by hand, shapes, memory order, errors. */
#include "core/tape_author.h"
#include "layers/layers.h"
#include "tests/layers/functions_fixture.h"

static void activations(void)
{
    begin();
    const double host[] = {-2, -0.5, 0, 1, 3};
    wf_var *x = leaf(WF_SHAPE(5), host);
    expect_values("relu", wf_relu(x), 5, (double[]){0, 0, 0, 1, 3});
    expect_values("leaky_relu", wf_leaky_relu(x, 0.2), 5, (double[]){-0.4, -0.1, 0, 1, 3});
    expect_values("leaky_relu 0", wf_leaky_relu(x, 0), 5, (double[]){0, 0, 0, 1, 3});
    expect_values("elu", wf_elu(x, 2), 5, (double[]){2 * expm1(-2), 2 * expm1(-0.5), 0, 1, 3});
    expect_values("gelu", wf_gelu(x), 5,
                  (double[]){-0.045500263896358417, -0.15426876936299344, 0, 0.84134474606854293, 2.9959503059040934});
    expect_values("sigmoid", wf_sigmoid(x), 5,
                  (double[]){1 / (1 + exp(2)), 1 / (1 + exp(0.5)), 0.5, 1 / (1 + exp(-1)), 1 / (1 + exp(-3))});
    expect_values("tanh", wf_tanh(x), 5, (double[]){tanh(-2), tanh(-0.5), 0, tanh(1), tanh(3)});
    expect_values("softplus", wf_softplus(x), 5,
                  (double[]){log1p(exp(-2)), log1p(exp(-0.5)), log(2), log1p(exp(1)), log1p(exp(3))});
    /* PyTorch's numbers: F.silu, F.gelu(approximate="tanh"), F.hardswish, F.selu. */
    expect_values("silu", wf_silu(x), 5,
                  (double[]){-2 / (1 + exp(2)), -0.5 / (1 + exp(0.5)), 0, 1 / (1 + exp(-1)), 3 / (1 + exp(-3))});
    expect_values("gelu_tanh", wf_gelu_tanh(x), 5,
                  (double[]){-0.045402305912224981, -0.15428599017485606, 0, 0.8411919906082768, 2.996362607918227});
    expect_values("hard_swish", wf_hard_swish(x), 5, (double[]){-1.0 / 3, -1.25 / 6, 0, 2.0 / 3, 3});
    expect_values("selu", wf_selu(x), 5,
                  (double[]){1.0507009873554805 * 1.6732632423543772 * expm1(-2),
                             1.0507009873554805 * 1.6732632423543772 * expm1(-0.5), 0, 1.0507009873554805,
                             3 * 1.0507009873554805});
    WF_EXPECT(wf_activate(x, WF_ACT_NONE, 0, 0) == x, "no activation is not the identity");
    end();
}

static void functions_of_one(void)
{
    begin();
    wf_var *x = leaf(WF_SHAPE(4), (double[]){-1, 0.25, 1, 4}), *few = leaf(WF_SHAPE(2), (double[]){0, 2.5});
    expect_values("exp", wf_exp(x), 4, (double[]){exp(-1), exp(0.25), exp(1), exp(4)});
    expect_values("log", wf_log(few), 2, (double[]){-INFINITY, log(2.5)});
    expect_values("sqrt", wf_sqrt(few), 2, (double[]){0, sqrt(2.5)});
    expect_values("abs", wf_abs(x), 4, (double[]){1, 0.25, 1, 4});
    expect_values("pow 3", wf_pow(x, 3), 4, (double[]){-1, 1.0 / 64, 1, 64});
    expect_values("pow -0.5", wf_pow(few, -0.5), 2, (double[]){INFINITY, pow(2.5, -0.5)});
    expect_values("clip", wf_clip(x, -0.5, 1), 4, (double[]){-0.5, 0.25, 1, 1});
    WF_EXPECT_OK(wf_backward(wf_sum(wf_clip(x, -0.5, 1))));
    expect_tensor("the gradient of clip", wf_grad(x), 4, (double[]){0, 1, 1, 0});
    expect_null("bounds the wrong way round", wf_clip(x, 2, 1), WF_ERR_ARGUMENT, "[2, 1]");
    wf_var *bad = wf_log(leaf(WF_SHAPE(1), (double[]){-1}));
    WF_EXPECT(isnan(wf_item(bad)), "the logarithm of -1 is %g", wf_item(bad));
    wf_var *rows = leaf(WF_SHAPE(2, 1), (double[]){1, 2}), *line = leaf(WF_SHAPE(3), (double[]){1, 10, 100});
    expect_values("sums of a table", wf_add(rows, line), 6, (double[]){2, 11, 101, 3, 12, 102});
    expect_values("quotients", wf_div(rows, line), 6, (double[]){1, 0.1, 0.01, 2, 0.2, 0.02});
    expect_null("shapes", wf_mul(line, leaf(WF_SHAPE(2), (double[]){1, 2})), WF_ERR_SHAPE, "not [3] and [2]");
    end();
}

static void over_dimensions(void)
{
    begin();
    wf_var *x = counted(WF_SHAPE(2, 3, 2), WF_CHANNELS_LAST), *y = wf_sum_over(x, WF_DIMS(0, 2), false);
    expect_values("sum over two", y, 3, (double[]){14, 22, 30});
    expect_values("mean over one", wf_mean_over(x, WF_DIMS(-2), true), 4, (double[]){2, 3, 8, 9});
    WF_EXPECT(wf_var_shape(wf_mean_over(x, WF_DIMS(1), true)).rank == 3, "keep loses the dimension");
    wf_var *z = leaf(WF_SHAPE(2, 3), (double[]){1, 7, 7, -3, -4, -2});
    expect_values("max", wf_max_over(z, WF_DIMS(1), false), 2, (double[]){7, -2});
    expect_values("max of columns", wf_max_over(z, WF_DIMS(0), false), 3, (double[]){1, 7, 7});
    int64_t place[2];
    const wf_tensor *index = wf_value(wf_argmax_over(z, WF_DIMS(-1), false));
    WF_EXPECT_OK(wf_tensor_export(index, place, sizeof place));
    WF_EXPECT(place[0] == 1 && place[1] == 2, "argmax is %lld, %lld", (long long)place[0], (long long)place[1]);
    wf_var *pair = leaf(WF_SHAPE(2, 2), (double[]){0, log(3), log(2), log(2)});
    expect_values("softmax of columns", wf_softmax_over(pair, WF_DIMS(0)), 4, (double[]){1.0 / 3, 0.6, 2.0 / 3, 0.4});
    expect_values("softmax of all", wf_softmax_over(pair, WF_DIMS(0, 1)), 4, (double[]){0.125, 0.375, 0.25, 0.25});
    expect_null("no such dimension", wf_sum_over(z, WF_DIMS(2), false), WF_ERR_SHAPE, "dimension 2 of [2,3]");
    expect_null("twice", wf_max_over(z, WF_DIMS(1, -1), false), WF_ERR_ARGUMENT, "twice");
    expect_null("max of nothing", wf_max_over(leaf(WF_SHAPE(2, 0), NULL), WF_DIMS(1), false), WF_ERR_SHAPE, "[2,0]");
    end();
}

static void products(void)
{
    begin();
    wf_var *a = leaf(WF_SHAPE(2, 1, 2), (double[]){1, 2, 3, 4}),
           *b = leaf(WF_SHAPE(2, 2), (double[]){1, 10, 100, 1000});
    expect_values("matmul", wf_matmul(a, b, (wf_matmul_opts){0}), 4, (double[]){201, 2010, 403, 4030});
    expect_values("matmul, b transposed", wf_matmul(a, b, (wf_matmul_opts){.b_transposed = true}), 4,
                  (double[]){21, 2100, 43, 4300});
    expect_null("depths", wf_matmul(a, leaf(WF_SHAPE(3, 1), (double[]){1, 2, 3}), (wf_matmul_opts){0}), WF_ERR_SHAPE,
                "matmul of [2,1,2] and [3,1] sums over 2 and 3 elements");
    expect_null("a vector", wf_matmul(a, leaf(WF_SHAPE(2), (double[]){1, 2}), (wf_matmul_opts){0}), WF_ERR_SHAPE,
                "[2,1,2] and [2]");
    end();
}

static void choices(void)
{
    begin();
    wf_tensor *mask = wf_tensor_from_host(ctx, WF_U8, WF_SHAPE(2, 1), (uint8_t[]){1, 0});
    wf_var *which = wf_input(tape, mask), *a = leaf(WF_SHAPE(2), (double[]){1, 2}),
           *b = leaf(WF_SHAPE(1), (double[]){9});
    wf_var *y = wf_where(which, a, b), *part[3], *line = leaf(WF_SHAPE(4), (double[]){1.5, -2.5, 300, 4});
    expect_values("where", y, 4, (double[]){1, 2, 9, 9});
    WF_EXPECT_OK(wf_backward(wf_sum(y)));
    expect_tensor("the gradient of a", wf_grad(a), 2, (double[]){1, 1});
    expect_tensor("the gradient of b", wf_grad(b), 1, (double[]){2});
    WF_EXPECT(wf_split(line, 0, 2, NULL, part), "%s", wf_error_message());
    expect_values("the second half", part[1], 2, (double[]){300, 4});
    WF_EXPECT(!wf_split(line, 0, 3, NULL, part) && !part[0], "thirds of 4");
    expect_null("thirds", NULL, WF_ERR_SHAPE, "dimension 0 of [4] into 3 equal parts");
    expect_values("stack", wf_stack(2, (wf_var *[]){a, wf_scale(a, 10)}, 1), 4, (double[]){1, 10, 2, 20});
    expect_null("squeeze", wf_squeeze(line, 0), WF_ERR_SHAPE, "dimension 0 of [4]");
    WF_EXPECT(wf_var_shape(wf_unsqueeze(line, -1)).dim[1] == 1, "unsqueeze");
    expect_null("a condition of i32", wf_where(wf_cast(line, WF_I32), line, line), WF_ERR_DTYPE, "i32");
    uint8_t bytes[4];
    WF_EXPECT_OK(wf_tensor_export(wf_value(wf_cast(line, WF_U8)), bytes, sizeof bytes));
    WF_EXPECT(bytes[0] == 1 && bytes[1] == 0 && bytes[2] == 255 && bytes[3] == 4, "as u8: %d %d %d %d", bytes[0],
              bytes[1], bytes[2], bytes[3]);
    expect_values("there and back", wf_cast(wf_cast(line, WF_I64), WF_F64), 4, (double[]){1, -2, 300, 4});
    wf_tensor_free(mask);
    end();
}

static void tokens(void)
{
    begin();
    wf_var *x = counted(WF_SHAPE(1, 2, 2, 2), WF_CHANNELS_LAST), *rows = counted(WF_SHAPE(1, 2, 2, 2), WF_ROW_MAJOR);
    const double *const want = (double[]){0, 4, 1, 5, 2, 6, 3, 7};
    wf_var *t = wf_tokens(x), *y = wf_image(t, WF_SHAPE(2, 2));
    expect_values("tokens", t, 8, want);
    expect_values("tokens of a row-major image", wf_tokens(rows), 8, want);
    expect_values("the image of tokens", wf_reshape(y, WF_SHAPE(8)), 8, (double[]){0, 1, 2, 3, 4, 5, 6, 7});
    WF_EXPECT(wf_value(t)->data == wf_value(x)->data && wf_value(y)->data == wf_value(x)->data, "tokens are copied");
    wf_var *blocks = counted(WF_SHAPE(1, 1, 2, 4), WF_ROW_MAJOR);
    expect_values("merged patches", wf_reshape(wf_merge_patches(blocks, 2), WF_SHAPE(8)), 8,
                  (double[]){0, 2, 4, 6, 1, 3, 5, 7});
    /* Sums of the patches 0 1 4 5 and 2 3 6 7, and features of a merged image. */
    wf_layer *sums =
        wf_patch_embed(ctx, (wf_patch_embed_opts){.in = 1, .out = 1, .patch = 2, .w_init = {WF_INIT_CONSTANT, 1, 0}});
    wf_layer *merging = wf_patch_merging(ctx, (wf_patch_merging_opts){.channels = 1});
    expect_values("patches", wf_apply(sums, blocks), 2, (double[]){10, 18});
    WF_EXPECT(wf_shape_equal(wf_var_shape(wf_apply(merging, blocks)), WF_SHAPE(1, 2, 1, 2)), "merged: %s",
              wf_error_message());
    expect_null("a part of a block", wf_merge_patches(x, 3), WF_ERR_SHAPE, "whole blocks of 3, not [1,2,2,2]");
    expect_null("a table", wf_tokens(wf_flatten(x)), WF_ERR_SHAPE, "not [1,8]");
    expect_null("other pixels", wf_image(t, WF_SHAPE(3, 2)), WF_ERR_SHAPE, "not [1,4,2] and [3,2]");
    wf_layer_free(sums);
    wf_layer_free(merging);
    end();
}

static void prelu(void)
{
    begin();
    wf_layer *layer = wf_prelu(ctx, (wf_prelu_opts){.channels = 2, .slope = 0.5});
    wf_var *x = leaf(WF_SHAPE(2, 2), (double[]){-2, -4, 3, -6}), *y = wf_apply(layer, x);
    expect_values("prelu", y, 4, (double[]){-1, -2, 3, -3});
    WF_EXPECT_OK(wf_backward(wf_sum(y)));
    expect_tensor("its gradient by x", wf_grad(x), 4, (double[]){0.5, 0.5, 1, 0.5});
    expect_tensor("its gradient by the slopes", wf_param_grad(wf_layer_param(layer, "W")), 2, (double[]){-2, -10});
    wf_layer_free(layer);
    end();
}

static void arithmetic(void)
{
    begin();
    wf_var *a = leaf(WF_SHAPE(3), (double[]){1, 2, 3}), *b = leaf(WF_SHAPE(3), (double[]){4, -5, 6});
    expect_values("add", wf_add(a, b), 3, (double[]){5, -3, 9});
    expect_values("sub", wf_sub(a, b), 3, (double[]){-3, 7, -3});
    expect_values("mul", wf_mul(a, b), 3, (double[]){4, -10, 18});
    expect_values("scale", wf_scale(a, -2), 3, (double[]){-2, -4, -6});
    expect_values("sum", wf_sum(b), 1, (double[]){5});
    expect_values("mean", wf_mean(b), 1, (double[]){5.0 / 3});
    WF_EXPECT(wf_scale(a, 1) == a, "scale by 1 is not the variable itself");
    WF_EXPECT(wf_value(wf_detach(a))->storage == wf_value(a)->storage, "detach copies");

    wf_var *rows = counted(WF_SHAPE(1, 2, 1, 3), WF_ROW_MAJOR), *last = counted(WF_SHAPE(1, 2, 1, 3), WF_CHANNELS_LAST);
    expect_values("add of two orders", wf_add(rows, last), 6, (double[]){0, 2, 4, 6, 8, 10});
    wf_var *product = wf_mul(last, rows);
    expect_values("mul of two orders", product, 6, (double[]){0, 1, 4, 9, 16, 25});
    WF_EXPECT(wf_value(product)->order == WF_CHANNELS_LAST, "mul does not take the first order");
    WF_EXPECT_OK(wf_backward(wf_sum(wf_sub(product, rows))));
    expect_tensor("d mul", wf_grad(last), 6, (double[]){0, 1, 2, 3, 4, 5});
    expect_tensor("d mul - rows", wf_grad(rows), 6, (double[]){-1, 0, 1, 2, 3, 4});
    end();
}

static void softmaxes(void)
{
    begin();
    const double host[] = {1, 2, 3, 1000, 1000, 1000};
    const double z = exp(-2) + exp(-1) + 1;
    wf_var *x = leaf(WF_SHAPE(2, 3), host);
    expect_values("softmax", wf_softmax(x), 6, (double[]){exp(-2) / z, exp(-1) / z, 1 / z, 1. / 3, 1. / 3, 1. / 3});
    expect_values("log_softmax", wf_log_softmax(x), 6,
                  (double[]){-2 - log(z), -1 - log(z), -log(z), -log(3), -log(3), -log(3)});
    /* [1,2,1,2]: softmax over the channels of each pixel, whatever the order. */
    const double pair[] = {0, 5, 0, 4}, expected[] = {0.5, 1 / (1 + exp(-1)), 0.5, 1 / (1 + exp(1))};
    expect_values("softmax, rows", wf_softmax(leaf_ordered(WF_SHAPE(1, 2, 1, 2), WF_ROW_MAJOR, pair)), 4, expected);
    expect_values("softmax, last", wf_softmax(leaf(WF_SHAPE(1, 2, 1, 2), pair)), 4, expected);
    expect_null("softmax of rank 1", wf_softmax(leaf(WF_SHAPE(2), pair)), WF_ERR_SHAPE, "rank 2 to 5");
    end();
}

/* In f64 on ref one node has the bits of two, where rows are ignored and classes follow pixels, too. */
static void cross_entropy_of_parts(void)
{
    const wf_label_opts some = {.ignores = true, .ignored = 200};
    const uint8_t label[] = {2, 0, 200, 1, 1, 0};
    double host[18], got[2], slopes[2][18];
    begin();
    for (int i = 0; i < 18; i++)
        host[i] = 4 * sin(i * i) + (i < 9 ? 0 : 1000);
    wf_tensor *labels = wf_tensor_from_host(ctx, WF_U8, WF_SHAPE(2, 3), label);
    for (int parts = 0; parts < 2; parts++) {
        wf_var *x = leaf_ordered(WF_SHAPE(2, 3, 3), WF_ROW_MAJOR, host), *loss;
        if (parts)
            loss = wf_nll(wf_log_softmax(x), labels, some);
        else
            loss = wf_softmax_cross_entropy(x, labels, some);
        got[parts] = wf_item(loss);
        WF_EXPECT_OK(wf_backward(wf_scale(loss, 0.7)));
        WF_EXPECT_OK(wf_tensor_export(wf_grad(x), slopes[parts], sizeof slopes[parts]));
    }
    WF_EXPECT(got[0] == got[1], "the loss is %.17g, of its parts %.17g", got[0], got[1]);
    for (int i = 0; i < 18; i++)
        WF_EXPECT(slopes[0][i] == slopes[1][i], "slope %d is %.17g, of the parts %.17g", i, slopes[0][i], slopes[1][i]);
    wf_tensor_free(labels);
    end();
}

static void losses(void)
{
    begin();
    const int32_t label[] = {2, 0};
    const uint8_t bytes[] = {1, 1};
    wf_tensor *labels = wf_tensor_from_host(ctx, WF_I32, WF_SHAPE(2), label);
    wf_tensor *pixels = wf_tensor_from_host(ctx, WF_U8, WF_SHAPE(1, 1, 2), bytes);
    wf_var *x = leaf(WF_SHAPE(2, 3), (double[]){1, 2, 3, 5, 5, 5});
    const double z = exp(-2) + exp(-1) + 1;
    expect_values("cross entropy", wf_softmax_cross_entropy(x, labels, (wf_label_opts){0}), 1,
                  (double[]){(log(z) + log(3)) / 2});
    expect_values("nll", wf_nll(x, labels, (wf_label_opts){0}), 1, (double[]){-(3 + 5) / 2.});
    WF_EXPECT(wf_count_correct(x, labels, (wf_label_opts){0}) == 2, "count_correct is %lld",
              (long long)wf_count_correct(x, labels, (wf_label_opts){0}));
    wf_var *spread = leaf(WF_SHAPE(2, 3), (double[]){3, 2, 1, 5, 5, 5});
    for (int k = 1; k <= 4; k++)
        WF_EXPECT(wf_count_top_k(spread, labels, k, (wf_label_opts){0}) == (k < 3 ? 1 : 2), "among %d: %lld", k,
                  (long long)wf_count_top_k(spread, labels, k, (wf_label_opts){0}));
    WF_EXPECT(wf_count_top_k(spread, labels, 0, (wf_label_opts){0}) == -1, "among none");
    WF_EXPECT(strstr(wf_error_message(), "k is 0, should be 1 or more"), "%s", wf_error_message());
    wf_error_clear();
    wf_var *image = leaf(WF_SHAPE(1, 2, 1, 2), (double[]){7, 8, 9, 1});
    expect_values("nll of pixels", wf_nll(image, pixels, (wf_label_opts){0}), 1, (double[]){-(9 + 1) / 2.});
    WF_EXPECT(wf_count_correct(image, pixels, (wf_label_opts){0}) == 1, "count_correct of pixels");

    /* Labels of rank 4 lie channels-last; rows are counted row-major. */
    const uint8_t voxel[] = {0, 1, 0, 0};
    wf_tensor *voxels = wf_tensor_from_host(ctx, WF_U8, WF_SHAPE(1, 2, 2, 1), voxel);
    wf_var *volume = leaf(WF_SHAPE(1, 2, 2, 2, 1), (double[]){1, 0, 5, 0, 0, 1, 0, 7});
    expect_values("nll of voxels", wf_nll(volume, voxels, (wf_label_opts){0}), 1, (double[]){-(1 + 1 + 5 + 0) / 4.});
    WF_EXPECT(wf_count_correct(volume, voxels, (wf_label_opts){0}) == 3, "count_correct of voxels");
    wf_tensor_free(voxels);

    wf_var *a = leaf(WF_SHAPE(2), (double[]){0, 2}), *b = leaf(WF_SHAPE(2), (double[]){3, 1});
    wf_tensor *target = wf_tensor_from_host(ctx, WF_U8, WF_SHAPE(2), (uint8_t[]){1, 0});
    expect_values("bce", wf_bce_logits_constant(a, 1), 1, (double[]){(log(2) + log1p(exp(-2))) / 2});
    expect_values("bce with", wf_bce_logits(a, target), 1, (double[]){(log(2) + 2 + log1p(exp(-2))) / 2});
    expect_values("mse", wf_mse(a, b), 1, (double[]){5});
    expect_values("l1", wf_l1(a, b), 1, (double[]){2});
    wf_tensor_free(labels);
    wf_tensor_free(pixels);
    wf_tensor_free(target);
    end();
}

/* Expects the error from the call, or from the first read of a number if the device runs asynchronously. */
static void expect_bad_label(wf_var *loss)
{
    double value;
    const wf_status status = loss ? wf_tensor_export(wf_value(loss), &value, sizeof value) : wf_error_code();
    WF_EXPECT(status == WF_ERR_ARGUMENT, "a label too large: is %s", wf_status_name(status));
    WF_EXPECT(strstr(wf_error_message(), "3"), "a label too large: \"%s\" does not name it", wf_error_message());
    wf_error_clear();
}

/* Rows with the ignored label, whatever that is, do not count in the mean. */
static void ignored_labels(void)
{
    static const int64_t ignored[] = {-1, -100, 255, 1};
    for (int i = 0; i < 4; i++) {
        begin();
        const wf_label_opts opts = {.ignores = true, .ignored = ignored[i]};
        const int64_t label[] = {2, ignored[i], 0}, none[] = {ignored[i], ignored[i], ignored[i]};
        wf_tensor *labels = wf_tensor_from_host(ctx, WF_I64, WF_SHAPE(3), label),
                  *nothing = wf_tensor_from_host(ctx, WF_I64, WF_SHAPE(3), none);
        wf_var *x = leaf(WF_SHAPE(3, 3), (double[]){1, 2, 3, 4, 4, 4, 5, 5, 5}), *loss = wf_nll(x, labels, opts);
        expect_values("nll of two rows", loss, 1, (double[]){-(3 + 5) / 2.});
        WF_EXPECT(wf_count_correct(x, labels, opts) == 2, "correct of two");
        WF_EXPECT(wf_count_labels(labels, opts) == 2 && wf_count_labels(labels, (wf_label_opts){0}) == 3, "rows");
        WF_EXPECT_OK(wf_backward(loss));
        double grad[9];
        WF_EXPECT_OK(wf_tensor_export(wf_grad(x), grad, sizeof grad));
        for (int k = 0; k < 9; k++)
            WF_EXPECT(grad[k] == (k == 2 || k == 6 ? -0.5 : 0), "gradient %d is %g", k, grad[k]);
        wf_var *zero = wf_nll(leaf(WF_SHAPE(3, 3), (double[9]){0}), nothing, opts);
        expect_values("nll of nothing", zero, 1, (double[]){0});
        WF_EXPECT_OK(wf_backward(zero));
        wf_tensor_free(labels);
        wf_tensor_free(nothing);
        end();
    }
    WF_EXPECT(wf_count_labels(NULL, (wf_label_opts){0}) == -1, "rows of NULL");
}

/* F.nll_loss(x, [2, 1, 0], weight=[2, 3, 5], ignore_index=1) by hand, and the gradient. */
static void weighted_classes(void)
{
    begin();
    wf_tensor *labels = wf_tensor_from_host(ctx, WF_I64, WF_SHAPE(3), (int64_t[]){2, 1, 0});
    wf_tensor *weight = wf_tensor_from_host(ctx, WF_F64, WF_SHAPE(3), (double[]){2, 3, 5});
    for (int ignores = 0; ignores < 2; ignores++) {
        const wf_label_opts opts = {.weight = weight, .ignores = ignores, .ignored = 1};
        wf_var *x = leaf(WF_SHAPE(3, 3), (double[]){1, 2, 3, 4, 4, 4, 6, 5, 5}), *loss = wf_nll(x, labels, opts);
        const double all = ignores ? 7 : 10, sum = 5 * 3 + (ignores ? 0 : 3 * 4) + 2 * 6;
        double grad[9];
        expect_values("weighted nll", loss, 1, (double[]){-sum / all});
        WF_EXPECT_OK(wf_backward(loss));
        WF_EXPECT_OK(wf_tensor_export(wf_grad(x), grad, sizeof grad));
        for (int k = 0; k < 9; k++) {
            const double w = k == 2 ? 5 : k == 6 ? 2 : k == 4 && !ignores ? 3 : 0;
            WF_EXPECT(test_distance(1, &grad[k], (double[]){-w / all}) < 1e-12, "gradient %d is %g", k, grad[k]);
        }
    }
    wf_tensor_free(labels);
    wf_tensor_free(weight);
    end();
}

static void label_errors(void)
{
    begin();
    const int64_t label[] = {1, 3};
    wf_tensor *bad = wf_tensor_from_host(ctx, WF_I64, WF_SHAPE(2), label);
    wf_tensor *few = wf_tensor_from_host(ctx, WF_I64, WF_SHAPE(1), label);
    wf_tensor *reals = wf_tensor_from_host(ctx, WF_F64, WF_SHAPE(2), (double[]){0, 1});
    wf_var *x = leaf(WF_SHAPE(2, 3), (double[]){1, 2, 3, 5, 5, 5});
    expect_bad_label(wf_softmax_cross_entropy(x, bad, (wf_label_opts){0}));
    expect_null("too few labels", wf_softmax_cross_entropy(x, few, (wf_label_opts){0}), WF_ERR_SHAPE, "[1]");
    wf_tensor *line = wf_tensor_from_host(ctx, WF_I64, WF_SHAPE(1, 2), label);
    expect_null("labels of other pixels", wf_nll(counted(WF_SHAPE(1, 4, 3), WF_ROW_MAJOR), line, (wf_label_opts){0}),
                WF_ERR_SHAPE, "[1,2]");
    wf_tensor_free(line);
    expect_null("real labels", wf_nll(x, reals, (wf_label_opts){0}), WF_ERR_DTYPE, "f64");
    expect_null("smoothing of 2", wf_softmax_cross_entropy(x, bad, (wf_label_opts){.smoothing = 2}), WF_ERR_ARGUMENT,
                "smoothing is 2, should be in [0, 1]");
    expect_null("two weights", wf_softmax_cross_entropy(x, bad, (wf_label_opts){.weight = reals}), WF_ERR_SHAPE,
                "takes weights [3], not [2]");
    expect_null("another reduction",
                wf_softmax_cross_entropy(x, bad, (wf_label_opts){.reduction = (wf_loss_reduction)7}), WF_ERR_ARGUMENT,
                "reduction is 7");
    expect_null("nll with smoothing", wf_nll(x, bad, (wf_label_opts){.smoothing = 0.1}), WF_ERR_UNSUPPORTED,
                "wf_softmax_cross_entropy does");
    expect_null("nll of two weights", wf_nll(x, bad, (wf_label_opts){.weight = reals}), WF_ERR_SHAPE,
                "nll of 3 classes takes weights [3], not [2]");
    expect_null("mse, another reduction", wf_mse_reduced(x, x, (wf_loss_reduction)-1), WF_ERR_ARGUMENT,
                "mse: reduction is -1");
    WF_EXPECT(wf_count_correct(x, bad, (wf_label_opts){0}) == -1, "count_correct counted a label that is out of range");
    wf_error_clear();
    WF_EXPECT(wf_count_correct(NULL, bad, (wf_label_opts){0}) == -1, "count_correct of NULL");
    wf_tensor_free(bad);
    wf_tensor_free(few);
    wf_tensor_free(reals);
    end();
}

/* A GPU finds a wrong number while it computes, and says so when a result is read. */
static void refused_number(const char *what, wf_var *y, const char *says)
{
    if (y)
        wf_item(wf_sum(y));
    WF_EXPECT(wf_error_code() == WF_ERR_ARGUMENT && strstr(wf_error_message(), says), "%s: \"%s\"", what,
              wf_error_message());
    wf_error_clear();
}

/* INT64_MIN stands for no ignored label in the kernels, and is a wrong label and a wrong index like others. */
static void least_number(void)
{
    begin();
    const int64_t label[] = {0, INT64_MIN};
    const wf_label_opts least = {.ignores = true, .ignored = INT64_MIN};
    wf_tensor *low = wf_tensor_from_host(ctx, WF_I64, WF_SHAPE(2), label);
    wf_var *x = leaf(WF_SHAPE(2, 3), (double[]){1, 2, 3, 5, 5, 5});
    expect_null("ignoring it", wf_nll(x, low, least), WF_ERR_ARGUMENT,
                "nll: ignored is -9223372036854775808, should be -9223372036854775807 or more");
    WF_EXPECT(wf_count_correct(x, low, least) == -1 && wf_count_labels(low, least) == -1, "hits ignoring it");
    wf_error_clear();
    refused_number("the label", wf_nll(x, low, (wf_label_opts){0}),
                   "label -9223372036854775808 in row 1 is outside [0, 3)");
    refused_number("the index", wf_take(x, wf_input(tape, low)),
                   "index -9223372036854775808 in place 1 is outside [0, 2)");
    WF_EXPECT(wf_count_correct(x, low, (wf_label_opts){0}) == -1, "hits of the label");
    wf_error_clear();
    WF_EXPECT(wf_count_labels(low, (wf_label_opts){0}) == 2, "the label does not count");
    wf_tensor_free(low);
    end();
}

static void concat_and_slice(void)
{
    begin();
    for (int order = WF_ROW_MAJOR; order <= WF_CHANNELS_LAST; order++) {
        wf_var *x = counted(WF_SHAPE(1, 2, 2, 2), (wf_order)order), *y = counted(WF_SHAPE(1, 1, 2, 2), WF_ROW_MAJOR);
        wf_var *all = wf_concat(2, (wf_var *[]){x, y}, 1);
        expect_values("concat", all, 12, (double[]){0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3});
        WF_EXPECT(wf_value(all)->order == (wf_order)order, "concat does not take the first order");
        const wf_box box = {.rank = 4, .lo = {0, 1, 0, 1}, .hi = {1, 3, 2, 2}};
        expect_values("slice", wf_slice(all, box), 4, (double[]){5, 7, 1, 3});
    }
    wf_var *x = counted(WF_SHAPE(4, 3), WF_ROW_MAJOR);
    const wf_box rows = {.rank = 2, .lo = {1, 0}, .hi = {3, 3}}, all = {.rank = 2, .hi = {4, 3}};
    const wf_box none = {.rank = 2, .lo = {2, 0}, .hi = {2, 3}}, out = {.rank = 2, .hi = {5, 3}};
    wf_var *middle = wf_slice(x, rows);
    expect_values("slice of rows", middle, 6, (double[]){3, 4, 5, 6, 7, 8});
    WF_EXPECT(wf_value(middle)->storage == wf_value(x)->storage, "a slice that is dense was copied");
    WF_EXPECT(wf_slice(x, all) == x, "a slice of everything is not the variable itself");
    expect_values("empty slice", wf_slice(x, none), 0, NULL);
    expect_null("slice outside", wf_slice(x, out), WF_ERR_SHAPE, "[0,5)");
    expect_null("concat elsewhere", wf_concat(2, (wf_var *[]){x, middle}, 1), WF_ERR_SHAPE, "[2,3]");
    expect_null("concat along 2", wf_concat(2, (wf_var *[]){x, x}, 2), WF_ERR_ARGUMENT, "dimension 2");
    expect_null("concat of none", wf_concat(0, (wf_var *[]){x}, 0), WF_ERR_ARGUMENT, "0 variables");
    WF_EXPECT(!wf_concat(2, (wf_var *[]){x, NULL}, 0) && wf_error_code() == WF_OK, "NULL does not pass silently");
    end();
}

static void expect_shape(const char *what, const wf_var *y, wf_shape shape)
{
    char is[WF_SHAPE_TEXT], should[WF_SHAPE_TEXT];
    WF_EXPECT(y && wf_shape_equal(wf_var_shape(y), shape), "%s: %s, not %s", what, wf_shape_text(wf_var_shape(y), is),
              wf_shape_text(shape, should));
}

static void reshapes(void)
{
    begin();
    const double rows[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    wf_var *x = counted(WF_SHAPE(2, 6), WF_ROW_MAJOR), *y = wf_reshape(x, WF_SHAPE(2, 3, -1, 1));
    expect_shape("reshape", y, WF_SHAPE(2, 3, 2, 1));
    expect_values("reshape", y, 12, rows);
    WF_EXPECT(wf_value(y)->storage == wf_value(x)->storage, "a reshape of rows copies");
    wf_var *one = wf_reshape(x, WF_SHAPE(-1, 6, 1, 1));
    WF_EXPECT(wf_value(one)->order == WF_CHANNELS_LAST && wf_value(one)->storage == wf_value(x)->storage,
              "[2,6,1,1] is channels-last without a copy");
    wf_var *image = counted(WF_SHAPE(1, 2, 2, 3), WF_CHANNELS_LAST), *flat = wf_flatten(image);
    expect_shape("flatten", flat, WF_SHAPE(1, 12));
    expect_values("flatten keeps the logical order", flat, 12, rows);
    expect_values("channels regrouped", wf_reshape(image, WF_SHAPE(1, 3, 2, 2)), 12, rows);
    wf_var *lines = wf_reshape(image, WF_SHAPE(1, 2, 6));
    expect_values("pixels regrouped", lines, 12, rows);
    WF_EXPECT(wf_value(lines)->storage == wf_value(image)->storage, "regrouping pixels copies");
    WF_EXPECT(wf_value(wf_flatten(one))->storage == wf_value(x)->storage, "flattening [2,6,1,1] copies");
    expect_shape("flatten of rank 1", wf_flatten(counted(WF_SHAPE(4), WF_ROW_MAJOR)), WF_SHAPE(4, 1));
    wf_var *empty = counted(WF_SHAPE(0, 3, 4), WF_ROW_MAJOR);
    expect_shape("an empty batch", wf_reshape(empty, WF_SHAPE(0, -1)), WF_SHAPE(0, 12));
    expect_shape("an empty batch, -1 first", wf_reshape(empty, WF_SHAPE(-1, 12)), WF_SHAPE(0, 12));
    expect_shape("flatten of nothing", wf_flatten(empty), WF_SHAPE(0, 12));
    expect_null("other elements", wf_reshape(x, WF_SHAPE(5, 2)), WF_ERR_SHAPE, "[5,2]");
    expect_null("does not divide", wf_reshape(x, WF_SHAPE(5, -1)), WF_ERR_SHAPE, "[5,-1]");
    expect_null("two unknown", wf_reshape(x, WF_SHAPE(-1, -1)), WF_ERR_SHAPE, "[-1,-1]");
    end();
}

static void transposes(void)
{
    begin();
    wf_var *x = counted(WF_SHAPE(2, 3), WF_ROW_MAJOR), *y = wf_transpose(x, (int[]){1, 0});
    expect_shape("transpose", y, WF_SHAPE(3, 2));
    expect_values("transpose", y, 6, (double[]){0, 3, 1, 4, 2, 5});
    wf_var *image = counted(WF_SHAPE(1, 2, 2, 2), WF_CHANNELS_LAST), *last = wf_transpose(image, (int[]){0, 2, 3, 1});
    expect_values("channels to the end", last, 8, (double[]){0, 4, 1, 5, 2, 6, 3, 7});
    WF_EXPECT(wf_value(last)->storage == wf_value(image)->storage, "a transpose that is a change of name copies");
    expect_null("not a permutation", wf_transpose(x, (int[]){0, 0}), WF_ERR_ARGUMENT, "permutation");
    end();
}

static void bad_arguments(void)
{
    begin();
    wf_tape *other = wf_tape_new(ctx);
    wf_var *x = counted(WF_SHAPE(2, 3), WF_ROW_MAJOR), *y = counted(WF_SHAPE(3, 2), WF_ROW_MAJOR);
    wf_tensor *ints = wf_tensor_from_host(ctx, WF_I32, WF_SHAPE(2), (int32_t[]){1, 2});
    wf_tensor *halves = wf_tensor_copy(wf_value(x), WF_BF16, WF_ROW_MAJOR);
    expect_null("slope", wf_leaky_relu(x, -1), WF_ERR_ARGUMENT, "-1");
    expect_null("alpha", wf_elu(x, NAN), WF_ERR_ARGUMENT, "nan");
    expect_null("act", wf_activate(x, WF_ACTS, 0, 0), WF_ERR_ARGUMENT, "activation");
    expect_null("noise", wf_gaussian_noise(x, -0.5), WF_ERR_ARGUMENT, "-0.5");
    expect_null("rate", wf_dropout(x, 1), WF_ERR_ARGUMENT, "[0, 1)");
    expect_null("shapes", wf_add(x, y), WF_ERR_SHAPE, "[3,2]");
    expect_null("types", wf_mul(x, wf_input(tape, halves)), WF_ERR_DTYPE, "bf16");
    expect_null("ints", wf_relu(wf_input(tape, ints)), WF_ERR_DTYPE, "i32");
    expect_null("tapes", wf_add(x, wf_leaf(other, wf_value(x))), WF_ERR_ARGUMENT, "two tapes");
    expect_null("range", wf_rand_uniform(tape, WF_SHAPE(2), 1, 0, NULL), WF_ERR_ARGUMENT, "[1, 0)");
    expect_null("shape", wf_randn(tape, WF_SHAPE(2, -1), NULL), WF_ERR_SHAPE, "[2,-1]");
    WF_EXPECT(!wf_mean(wf_relu(NULL)) && wf_error_code() == WF_OK, "NULL does not pass silently");
    WF_EXPECT_ERROR(WF_ERR_ARGUMENT, wf_backward(wf_mean(wf_relu(wf_leaky_relu(x, -1)))));
    WF_EXPECT(wf_tensor_dtype(wf_value(wf_relu(wf_input(tape, halves)))) == WF_BF16, "relu changes the type");
    wf_tensor_free(ints);
    wf_tensor_free(halves);
    wf_tape_free(other);
    end();
}

int main(int argc, char **argv)
{
    return test_main(argc, argv,
                     (test_case[]){{"activations", activations},
                                   {"functions_of_one", functions_of_one},
                                   {"prelu", prelu},
                                   {"tokens", tokens},
                                   {"choices", choices},
                                   {"products", products},
                                   {"over_dimensions", over_dimensions},
                                   {"arithmetic", arithmetic},
                                   {"softmaxes", softmaxes},
                                   {"cross_entropy_of_parts", cross_entropy_of_parts},
                                   {"losses", losses},
                                   {"ignored_labels", ignored_labels},
                                   {"weighted_classes", weighted_classes},
                                   {"label_errors", label_errors},
                                   {"least_number", least_number},
                                   {"concat_and_slice", concat_and_slice},
                                   {"reshapes", reshapes},
                                   {"transposes", transposes},
                                   {"bad_arguments", bad_arguments},
                                   {0}});
}
