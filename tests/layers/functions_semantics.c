/* Functions and losses: layouts, what a mean stands for, random numbers, what backward promises. */
#include "core/tape_author.h"
#include "layers/layer.h"
#include "layers/loss.h"
#include "layers/pool.h"
#include "tests/test.h"

#include <math.h>
#include <string.h>

static wf_ctx *ctx;
static wf_tape *tape;
static char place; /* the mesh is opaque here: an address is all it needs */
static const wf_mesh *mesh = (const wf_mesh *)(const void *)&place;

static void begin(void)
{
    ctx = wf_ctx_new((wf_ctx_opts){.device = test_device("ref"), .dtype = WF_F64, .seed = 7});
    tape = wf_tape_new(ctx);
}

static void end(void)
{
    WF_EXPECT_OK(wf_tape_reset(tape));
    wf_tape_free(tape);
    WF_EXPECT_OK(wf_ctx_free(ctx));
}

/* A leaf whose elements are start, start + 1, ... */
static wf_var *counted(wf_shape shape, double start, const wf_layout *layout)
{
    wf_tensor *t = wf_tensor_new(ctx, WF_F64, shape);
    double host[4096];
    for (int64_t i = 0; i < wf_tensor_count(t); i++)
        host[i] = start + (double)i;
    WF_EXPECT_OK(wf_tensor_import(t, host, wf_tensor_bytes(t)));
    if (layout)
        WF_EXPECT_OK(wf_tensor_set_layout(t, *layout));
    wf_var *x = wf_leaf(tape, t);
    wf_tensor_free(t);
    return x;
}

/* Rows [lo, hi) of a batch of `rows` rows of 3. */
static wf_var *part(int64_t rows, int64_t lo, int64_t hi)
{
    const wf_layout layout = wf_layout_batch(mesh, WF_SHAPE(rows, 3), lo, hi);
    return counted(WF_SHAPE(hi - lo, 3), 3.0 * (double)lo, &layout);
}

static void expect_null(const char *what, const void *result, wf_status code, const char *part_of_message)
{
    WF_EXPECT(!result, "%s gave a result", what);
    WF_EXPECT(wf_error_code() == code, "%s: is %s, should be %s", what, wf_status_name(wf_error_code()),
              wf_status_name(code));
    WF_EXPECT(strstr(wf_error_message(), part_of_message), "%s: \"%s\" does not say \"%s\"", what, wf_error_message(),
              part_of_message);
    wf_error_clear();
}

static void expect_number(const char *what, double got, double expected)
{
    WF_EXPECT(fabs(got - expected) <= 1e-12 * (1 + fabs(expected)), "%s is %.15g, not %.15g", what, got, expected);
}

static double grad_at(const wf_var *x, int64_t i)
{
    double host[4096];
    return wf_grad(x) && wf_tensor_export(wf_grad(x), host, wf_tensor_bytes(wf_grad(x))) == WF_OK ? host[i] : NAN;
}

static void global_means(void)
{
    begin();
    wf_var *x = part(8, 2, 5), *loss = wf_mean(x);
    const wf_layout layout = wf_tensor_layout(wf_value(loss));
    expect_number("part of a mean", wf_item(loss), (6 + 14) * 9 / 2.0 / 24);
    WF_EXPECT(layout.known && layout.mesh == mesh && layout.global.rank == 0, "the layout of a mean");
    WF_EXPECT(layout.placement[WF_AXIS_DATA] == WF_PARTIAL, "a mean over a sharded batch is not partial");
    WF_EXPECT(layout.placement[WF_AXIS_HEIGHT] == WF_REPLICATED, "a mean is partial over an axis that does not cut");
    WF_EXPECT(!loss->loss_mean, "a global mean counts as local");
    /* The parts of all ranks make up the serial value. */
    double parts = 0;
    for (int64_t r = 0; r < 3; r++) {
        int64_t lo, hi;
        wf_block(8, 3, r, &lo, &hi);
        parts += wf_item(wf_mse(part(8, lo, hi), wf_scale(part(8, lo, hi), 3)));
    }
    wf_var *whole = part(8, 0, 8);
    expect_number("parts of mse", parts, wf_item(wf_mse(whole, wf_scale(whole, 3))));
    expect_number("an empty part", wf_item(wf_mean(part(8, 4, 4))), 0);
    wf_var *total = wf_add(wf_scale(loss, 3), wf_sum(wf_mean(x)));
    WF_EXPECT(wf_layout_is_partial(&wf_value(total)->layout), "sums of parts are not parts");
    WF_EXPECT_OK(wf_backward(total));
    expect_number("gradient of a part", grad_at(x, 8), 4.0 / 24);
    end();
}

static void global_labels(void)
{
    begin();
    wf_tensor *labels = wf_tensor_from_host(ctx, WF_I64, WF_SHAPE(3), (int64_t[]){0, 2, 1});
    wf_var *x = part(8, 2, 5), *loss = wf_nll(x, labels, (wf_label_opts){0});
    expect_number("part of nll", wf_item(loss), -(6 + 11 + 13) / 8.0);
    WF_EXPECT_OK(wf_tensor_set_layout(labels, wf_layout_batch(mesh, WF_SHAPE(8), 2, 5)));
    expect_number("labels with a layout", wf_item(wf_nll(x, labels, (wf_label_opts){0})), -(6 + 11 + 13) / 8.0);
    WF_EXPECT_OK(wf_tensor_set_layout(labels, wf_layout_batch(mesh, WF_SHAPE(8), 3, 6)));
    expect_null("labels of other samples", wf_nll(x, labels, (wf_label_opts){0}), WF_ERR_SHAPE, "[3,6)");
    wf_var *logits = wf_log_softmax(x);
    WF_EXPECT(wf_layout_equal(&wf_value(logits)->layout, &wf_value(x)->layout), "log_softmax loses the layout");
    wf_tensor_free(labels);
    end();
}

static void local_means(void)
{
    begin();
    wf_var *x = counted(WF_SHAPE(4, 3), 0, NULL), *few = counted(WF_SHAPE(2, 3), 0, NULL);
    wf_var *none = counted(WF_SHAPE(0, 3), 0, NULL);
    wf_var *mean = wf_mean(x), *bce = wf_bce_logits_constant(x, 1);
    WF_EXPECT(mean->loss_mean && mean->loss_count == 4, "a mean of 4 counts %lld", (long long)mean->loss_count);
    WF_EXPECT(bce->loss_mean && bce->loss_count == 4, "a loss of 4 counts %lld", (long long)bce->loss_count);
    wf_var *sum = wf_sum(x);
    WF_EXPECT(!sum->loss_mean, "a sum counts as a mean");
    wf_var *both = wf_sub(wf_scale(mean, 2), wf_add(bce, mean));
    WF_EXPECT(both->loss_mean && both->loss_count == 4, "a sum of means counts %lld", (long long)both->loss_count);
    wf_var *more = wf_add(wf_mean(mean), wf_detach(wf_scale(sum, 0.5)));
    WF_EXPECT(more->loss_mean && more->loss_count == 4, "a mean and a number count %lld", (long long)more->loss_count);
    WF_EXPECT(wf_reshape(mean, WF_SHAPE(1))->loss_mean, "reshape forgets what a mean stands for");
    WF_EXPECT(wf_detach(mean)->loss_mean, "detach forgets what a mean stands for");
    wf_var *empty = wf_mean(none);
    expect_number("mean of nothing", wf_item(empty), 0);
    WF_EXPECT(empty->loss_mean && empty->loss_count == 0, "a mean of nothing counts %lld",
              (long long)empty->loss_count);
    expect_null("means of 4 and of 2", wf_add(mean, wf_mean(few)), WF_ERR_STATE, "4 local samples");
    wf_var *no = wf_no_loss(tape);
    WF_EXPECT(wf_add(no, wf_scale(wf_mean(no), 2)) == no, "no loss and no loss is no loss");
    expect_null("a loss and no loss", wf_add(mean, no), WF_ERR_STATE, "wf_no_loss");
    end();
}

static void mixtures(void)
{
    begin();
    wf_var *local = counted(WF_SHAPE(3, 3), 0, NULL), *x = part(8, 2, 5), *y = part(8, 3, 6);
    wf_var *loss = wf_mean(x);
    expect_null("a part and a local mean", wf_add(loss, wf_mean(local)), WF_ERR_STATE, "mixing");
    expect_null("a local sum less a part", wf_sub(wf_sum(local), loss), WF_ERR_STATE, "mixing");
    expect_null("tanh of a part", wf_tanh(loss), WF_ERR_SHAPE, "not linear");
    expect_null("product of parts", wf_mul(loss, loss), WF_ERR_SHAPE, "not linear");
    expect_null("dropout of a part", wf_dropout(loss, 0.5), WF_ERR_SHAPE, "not linear");
    expect_null("mse of parts", wf_mse(loss, loss), WF_ERR_SHAPE, "not linear");
    expect_null("other rows", wf_add(x, y), WF_ERR_SHAPE, "[3,6)");
    expect_null("sharded and local", wf_mul(x, local), WF_ERR_SHAPE, "local");
    expect_null("mse of other rows", wf_mse(x, y), WF_ERR_SHAPE, "[2,5)");
    end();
}

static void bad_losses(void)
{
    begin();
    wf_var *row = counted(WF_SHAPE(3), 0, NULL), *x = counted(WF_SHAPE(3, 3), 0, NULL);
    const wf_tensor *const target = wf_value(x);
    expect_null("huber of 0", wf_huber(x, x, 0), WF_ERR_ARGUMENT, "delta is 0, should be above 0");
    expect_null("smooth_l1 of -1", wf_smooth_l1(x, x, -1), WF_ERR_ARGUMENT, "beta is -1, should be 0 or more");
    expect_null("kl_div of a row", wf_kl_div(row, wf_value(row)), WF_ERR_SHAPE, "log-probabilities [N,C,...], not [3]");
    expect_null("focal_logits, gamma", wf_focal_logits(x, target, (wf_focal_opts){.gamma = -2}), WF_ERR_ARGUMENT,
                "gamma is -2, should be 0");
    expect_null("focal_logits, alpha", wf_focal_logits(x, target, (wf_focal_opts){.alpha = 1.5}), WF_ERR_ARGUMENT,
                "alpha is 1.5, should be in [0, 1]");
    expect_null("focal_logits, shape", wf_focal_logits(row, target, (wf_focal_opts){0}), WF_ERR_SHAPE,
                "focal_logits takes a target of the input's shape [3], not [3,3]");
    wf_layout chunk = wf_layout_batch(mesh, WF_SHAPE(8, 3), 2, 5);
    chunk.chunk = true;
    expect_null("dice of a chunk's batch",
                wf_dice(counted(WF_SHAPE(3, 3), 0, &chunk), target, (wf_dice_opts){.batch = true}), WF_ERR_UNSUPPORTED,
                "a chunk of a pipeline, whose other samples are not known");
    end();
}

/* Missing labels and targets are told where they are missing, not as a loss that is NULL. */
static void missing_targets(void)
{
    begin();
    wf_var *x = counted(WF_SHAPE(3, 3), 0, NULL);
    expect_null("no labels", wf_softmax_cross_entropy(x, NULL, (wf_label_opts){0}), WF_ERR_ARGUMENT,
                "the tensor of labels is NULL");
    expect_null("no labels", wf_token_cross_entropy(x, NULL, (wf_label_opts){0}), WF_ERR_ARGUMENT,
                "token_cross_entropy: the tensor of labels is NULL");
    expect_null("no places", wf_max_unpool(x, NULL, (wf_pool_opts){0}, wf_shape_scalar()), WF_ERR_ARGUMENT,
                "max_unpool: the variable of places is NULL");
    expect_null("no labels", wf_nll(x, NULL, (wf_label_opts){0}), WF_ERR_ARGUMENT, "nll: the tensor of labels is NULL");
    expect_null("no target", wf_bce_logits(x, NULL), WF_ERR_ARGUMENT, "bce_logits: the target is NULL");
    expect_null("no target", wf_dice(x, NULL, (wf_dice_opts){0}), WF_ERR_ARGUMENT, "dice: the target is NULL");
    WF_EXPECT(!wf_softmax_cross_entropy(NULL, NULL, (wf_label_opts){0}) && wf_error_code() == WF_OK,
              "NULL scores are a new error");
    end();
}

/* Values that are equal as wholes and in other parts here: the message says so, and which call helps. */
static void other_parts(void)
{
    begin();
    wf_var *x = part(8, 2, 5), *y = part(8, 2, 4), *wide = part(9, 2, 4);
    wf_tensor *labels = wf_tensor_from_host(ctx, WF_I64, WF_SHAPE(8), (int64_t[8]){0});
    wf_tensor *whole = wf_tensor_new(ctx, WF_F64, WF_SHAPE(8, 3));
    expect_null("concat", wf_concat(2, (wf_var *[]){x, y}, 1), WF_ERR_SHAPE,
                "it is the parts that differ, wf_redistribute one");
    expect_null("concat", wf_concat(2, (wf_var *[]){x, part(8, 3, 6)}, 1), WF_ERR_SHAPE, "wf_redistribute one of them");
    expect_null("mse", wf_mse(x, y), WF_ERR_SHAPE, "mse takes equal layouts, not ([8,3] sharded over data");
    expect_null("mse of other wholes", wf_mse(x, wide), WF_ERR_SHAPE, "mse takes equal shapes, not [3,3] and [2,3]");
    expect_null("whole labels", wf_nll(x, labels, (wf_label_opts){0}), WF_ERR_SHAPE,
                "not [3,3] (this rank's part of [8,3]) and [8]");
    expect_null("whole target", wf_bce_logits(x, whole), WF_ERR_SHAPE, "[3,3] (this rank's part of [8,3]), not");
    expect_null("dice, whole target", wf_dice(x, whole, (wf_dice_opts){0}), WF_ERR_SHAPE, "this rank's part of [8,3]");
    wf_tensor_free(labels);
    wf_tensor_free(whole);
    end();
}

static void dimensions(void)
{
    begin();
    wf_var *x = counted(WF_SHAPE(2, 3), 0, NULL), *both[] = {x, x};
    const wf_shape last = wf_var_shape(wf_concat(2, both, -1)), first = wf_var_shape(wf_concat(2, both, -2));
    WF_EXPECT(wf_shape_equal(last, WF_SHAPE(2, 6)) && wf_shape_equal(first, WF_SHAPE(4, 3)), "counted from the last");
    expect_null("concat", wf_concat(2, both, 2), WF_ERR_ARGUMENT, "dimension 2 of [2,3], should be -2 to 1");
    expect_null("concat", wf_concat(2, both, -3), WF_ERR_ARGUMENT, "dimension -3 of [2,3], should be -2 to 1");
    expect_null("mean", wf_mean_over(x, WF_DIMS(2), false), WF_ERR_SHAPE, "dimension 2 of [2,3], should be -2 to 1");
    end();
}

static void layouts_follow(void)
{
    begin();
    const wf_layout batch = wf_layout_batch(mesh, WF_SHAPE(8, 2, 2, 3), 2, 5);
    wf_var *x = counted(WF_SHAPE(3, 2, 2, 3), 0, &batch);
    WF_EXPECT(wf_layout_equal(&wf_value(wf_gelu(x))->layout, &batch), "gelu loses the layout");
    WF_EXPECT(wf_layout_equal(&wf_value(wf_dropout(x, 0.5))->layout, &batch), "dropout loses the layout");
    WF_EXPECT(wf_layout_equal(&wf_value(wf_detach(x))->layout, &batch), "detach loses the layout");
    const wf_layout flat = wf_tensor_layout(wf_value(wf_flatten(x)));
    const wf_layout expected = wf_layout_batch(mesh, WF_SHAPE(8, 12), 2, 5);
    WF_EXPECT(wf_layout_equal(&flat, &expected), "the layout after flatten");
    const wf_layout moved = wf_tensor_layout(wf_value(wf_transpose(x, (int[]){1, 0, 2, 3})));
    WF_EXPECT(moved.dim[WF_AXIS_DATA] == 1 && moved.global.dim[1] == 8 && moved.box.lo[1] == 2, "after transpose");
    const wf_layout wide = wf_tensor_layout(wf_value(wf_concat(2, (wf_var *[]){x, x}, 1)));
    const wf_layout doubled = wf_layout_batch(mesh, WF_SHAPE(8, 4, 2, 3), 2, 5);
    WF_EXPECT(wf_layout_equal(&wide, &doubled), "the layout after concat");
    const wf_box half = {.rank = 4, .hi = {3, 1, 2, 3}}, rows = {.rank = 4, .hi = {2, 2, 2, 3}};
    const wf_layout thin = wf_tensor_layout(wf_value(wf_slice(x, half)));
    const wf_layout halved = wf_layout_batch(mesh, WF_SHAPE(8, 1, 2, 3), 2, 5);
    WF_EXPECT(wf_layout_equal(&thin, &halved), "the layout after slice");
    expect_null("slice of rows", wf_slice(x, rows), WF_ERR_SHAPE, "wf_redistribute");
    expect_null("concat of rows", wf_concat(2, (wf_var *[]){x, x}, 0), WF_ERR_SHAPE, "wf_redistribute");
    expect_null("rows merged", wf_reshape(x, WF_SHAPE(6, -1)), WF_ERR_SHAPE, "wf_redistribute");
    wf_var *turned = wf_transpose(x, (int[]){1, 0, 2, 3});
    expect_null("softmax over a sharded dimension", wf_softmax(turned), WF_ERR_SHAPE, "wf_redistribute");
    end();
}

/* Elements of rows [lo, hi) of a [12,2,4,4] batch, drawn or dropped, as the program would see them in iteration 0. */
static void rows_of(wf_var *(*draw)(wf_var *like), int64_t lo, int64_t hi, double *host)
{
    const wf_layout layout = wf_layout_batch(mesh, WF_SHAPE(12, 2, 4, 4), lo, hi);
    WF_EXPECT_OK(wf_tape_reset(tape));
    WF_EXPECT_OK(wf_tape_set_iteration(tape, 0));
    wf_var *y = draw(counted(WF_SHAPE(hi - lo, 2, 4, 4), 32.0 * (double)lo + 1, &layout));
    WF_EXPECT(y && wf_value(y)->layout.box.lo[0] == lo, "%s", wf_error_message());
    WF_EXPECT_OK(wf_tensor_export(wf_value(y), host, wf_tensor_bytes(wf_value(y))));
}

static wf_var *dropped(wf_var *x)
{
    return wf_dropout(x, 0.4);
}

static wf_var *noisy(wf_var *x)
{
    return wf_gaussian_noise(x, 2.0);
}

static wf_var *normal(wf_var *x)
{
    return wf_randn(x->tape, wf_var_shape(x), x);
}

static wf_var *uniform(wf_var *x)
{
    return wf_rand_uniform(x->tape, wf_var_shape(x), -1, 1, x);
}

static void partitions(void)
{
    wf_var *(*const draws[])(wf_var *) = {dropped, noisy, normal, uniform};
    static double whole[384], parts[384];
    begin();
    for (int k = 0; k < 4; k++) {
        rows_of(draws[k], 0, 12, whole);
        for (int64_t r = 0; r < 5; r++) {
            int64_t lo, hi;
            wf_block(12, 5, r, &lo, &hi);
            rows_of(draws[k], lo, hi, parts + 32 * lo);
        }
        WF_EXPECT(memcmp(whole, parts, sizeof whole) == 0, "random function %d depends on the partition", k);
    }
    end();
}

static void moments(const char *what, const wf_var *y, double mean, double variance)
{
    static double host[65536];
    const int64_t n = wf_tensor_count(wf_value(y));
    double sum = 0, squares = 0;
    WF_EXPECT_OK(wf_tensor_export(wf_value(y), host, wf_tensor_bytes(wf_value(y))));
    for (int64_t i = 0; i < n; i++) {
        sum += host[i];
        squares += (host[i] - mean) * (host[i] - mean);
    }
    WF_EXPECT(fabs(sum / (double)n - mean) < 5 * sqrt(variance / (double)n), "%s: mean %g", what, sum / (double)n);
    WF_EXPECT(fabs(squares / (double)n / variance - 1) < 0.05, "%s: variance %g", what, squares / (double)n);
}

static void statistics(void)
{
    begin();
    wf_tensor *ones = wf_tensor_new(ctx, WF_F64, WF_SHAPE(256, 256));
    WF_EXPECT_OK(wf_tensor_fill(ones, 1.0));
    wf_var *x = wf_leaf(tape, ones);
    moments("dropout", wf_dropout(x, 0.25), 1, 0.25 / 0.75);
    moments("gaussian noise", wf_gaussian_noise(x, 0.5), 1, 0.25);
    wf_var *first = wf_randn(tape, WF_SHAPE(256, 256), NULL), *second = wf_randn(tape, WF_SHAPE(256, 256), NULL);
    moments("randn", first, 0, 1);
    moments("difference of two randn", wf_sub(first, second), 0, 2);
    moments("rand_uniform", wf_rand_uniform(tape, WF_SHAPE(256, 256), 2, 5, NULL), 3.5, 0.75);
    WF_EXPECT(wf_dropout(x, 0) == x, "dropout of rate 0 is not the identity");
    WF_EXPECT_OK(wf_tape_set_mode(tape, WF_EVAL));
    WF_EXPECT(wf_dropout(x, 0.5) == x && wf_gaussian_noise(x, 1) == x, "not the identity in evaluation");
    WF_EXPECT_OK(wf_tape_set_mode(tape, WF_TRAIN));
    wf_tensor_free(ones);
    const wf_layout batch = wf_layout_batch(mesh, WF_SHAPE(8, 3), 2, 5);
    wf_var *like = counted(WF_SHAPE(3, 3), 0, &batch), *z = wf_randn(tape, WF_SHAPE(3, 5, 2), like);
    const wf_layout expected = wf_layout_batch(mesh, WF_SHAPE(8, 5, 2), 2, 5);
    WF_EXPECT(wf_layout_equal(&wf_value(z)->layout, &expected), "the layout of randn");
    end();
}

/* No two draws of a step are alike, inside layers or between their applications; nor are two steps. A step that is done
 * again draws the same. */
static void draws_differ(void)
{
    enum { DRAWS = 6 };
    double host[3 * DRAWS][32];
    begin();
    wf_layer *noise = wf_lambda(ctx, normal), *nothing = wf_lambda(ctx, wf_relu);
    for (int step = 0; step < 3; step++) {
        WF_EXPECT_OK(wf_tape_set_iteration(tape, step % 2));
        wf_var *x = counted(WF_SHAPE(32), 0, NULL), *z[DRAWS];
        for (int i = 0; i < DRAWS; i++) {
            z[i] = i % 2 ? wf_apply(noise, x) : wf_randn(tape, WF_SHAPE(32), NULL);
            WF_EXPECT(wf_apply(nothing, x), "%s", wf_error_message());
        }
        for (int i = 0; i < DRAWS; i++)
            WF_EXPECT_OK(wf_tensor_export(wf_value(z[i]), host[step * DRAWS + i], sizeof host[0]));
        WF_EXPECT_OK(wf_tape_reset(tape));
    }
    for (int i = 0; i < 2 * DRAWS; i++)
        for (int j = 0; j < i; j++)
            WF_EXPECT(memcmp(host[i], host[j], sizeof host[0]) != 0, "draws %d and %d are alike", j, i);
    WF_EXPECT(memcmp(host[0], host[2 * DRAWS], DRAWS * sizeof host[0]) == 0, "iteration 0 done again draws otherwise");
    wf_layer_free(noise);
    wf_layer_free(nothing);
    end();
}

/* The mask of backward is that of forward. */
static void dropout_backward(void)
{
    begin();
    wf_var *x = counted(WF_SHAPE(5, 2, 3, 3), 1, NULL), *y = wf_dropout(x, 0.5);
    double host[90];
    WF_EXPECT_OK(wf_tensor_export(wf_value(y), host, sizeof host));
    WF_EXPECT_OK(wf_backward(wf_sum(y)));
    for (int i = 0; i < 90; i++)
        WF_EXPECT(grad_at(x, i) == (host[i] != 0 ? 2 : 0), "element %d: %g, gradient %g", i, host[i], grad_at(x, i));
    end();
}

static wf_param *parameter(double value)
{
    wf_param *p = wf_param_new(
        ctx, "W",
        (wf_param_opts){.dtype = WF_F64, .shape = WF_SHAPE(2), .init = {.kind = WF_INIT_CONSTANT, .a = value}});
    WF_EXPECT(p && wf_param_value(p), "%s", wf_error_message());
    return p;
}

static void parameters(void)
{
    begin();
    wf_param *p = parameter(2);
    double host[2];
    wf_var *a = counted(WF_SHAPE(2), 3, NULL), *b = counted(WF_SHAPE(2), 10, NULL);
    wf_var *first = wf_mul(wf_param_var(tape, p), a), *second = wf_mul(b, wf_param_var(tape, p));
    WF_EXPECT_OK(wf_backward(wf_sum(wf_add(first, second))));
    WF_EXPECT_OK(wf_tensor_export(wf_param_grad(p), host, sizeof host));
    WF_EXPECT(host[0] == 13 && host[1] == 15, "used twice, the gradient is %g, %g", host[0], host[1]);
    wf_var *w = wf_param_var(tape, p), *square = wf_mul(w, w);
    WF_EXPECT_OK(wf_backward(wf_sum(square)));
    WF_EXPECT_OK(wf_tensor_export(wf_param_grad(p), host, sizeof host));
    WF_EXPECT(host[0] == 4, "the gradient of a square is %g", host[0]);
    wf_var *loss = wf_sum(wf_mul(wf_param_var(tape, p), a));
    WF_EXPECT_OK(wf_tensor_fill(wf_param_value(p), 5));
    WF_EXPECT_ERROR(WF_ERR_STATE, wf_backward(loss));
    WF_EXPECT_OK(wf_tape_reset(tape));
    wf_param_free(p);
    end();
}

static void backward_promises(void)
{
    begin();
    wf_var *x = counted(WF_SHAPE(3), 1, NULL), *y = wf_sigmoid(x), *loss = wf_sum(wf_mul(wf_detach(y), x));
    const double s = 1 / (1 + exp(-2));
    WF_EXPECT_OK(wf_backward(loss));
    expect_number("gradient beside detach", grad_at(x, 1), s);
    WF_EXPECT_ERROR(WF_ERR_STATE, wf_backward(loss));
    wf_var *h = wf_tanh(x), *again = wf_sum(h);
    WF_EXPECT_OK(wf_backward(again));
    expect_null("a value that is gone", wf_relu(h), WF_ERR_STATE, "backward that passed it");
    expect_null("detach of it", wf_detach(h), WF_ERR_STATE, "backward that passed it");
    WF_EXPECT_ERROR(WF_ERR_STATE, wf_backward(wf_sum(wf_detach(x))));
    end();
}

/* Passing a gradient on takes no memory beyond it. */
static void passes_on(void)
{
    begin();
    wf_var *x = counted(WF_SHAPE(4, 3), 0, NULL), *z = counted(WF_SHAPE(12), 0, NULL);
    wf_var *loss = wf_sum(wf_add(wf_reshape(wf_scale(x, 1), WF_SHAPE(12)), z));
    WF_EXPECT_OK(wf_backward(loss));
    WF_EXPECT(wf_grad(x)->storage == wf_grad(z)->storage, "add and reshape copied the gradient");
    end();
}

static void all_functions(wf_var *x, const wf_tensor *labels)
{
    wf_var *h = wf_softplus(wf_elu(wf_leaky_relu(wf_relu(wf_gaussian_noise(x, 0.1)), 0.2), 1));
    wf_var *g = wf_dropout(wf_gelu(wf_tanh(wf_sigmoid(h))), 0.3);
    wf_var *both = wf_concat(2, (wf_var *[]){wf_mul(g, h), wf_sub(x, g)}, 1);
    wf_var *flat = wf_flatten(wf_slice(both, (wf_box){.rank = 4, .hi = {3, 3, 2, 2}}));
    wf_var *loss = wf_softmax_cross_entropy(flat, labels, (wf_label_opts){0});
    wf_var *z = wf_randn(x->tape, WF_SHAPE(3, 12), x);
    wf_var *more = wf_add(wf_mse(flat, z), wf_bce_logits_constant(wf_softmax(flat), 1));
    WF_EXPECT_OK(wf_backward(wf_add(loss, wf_add(more, wf_sum(wf_transpose(flat, (int[]){1, 0}))))));
}

/* After two steps of one shape, the library asks for no more memory. */
static void steady_memory(void)
{
    begin();
    wf_tensor *labels = wf_tensor_from_host(ctx, WF_I32, WF_SHAPE(3), (int32_t[]){0, 11, 4});
    int64_t before = 0;
    for (int step = 0; step < 6; step++) {
        if (step == 2)
            before = wf_ctx_memory(ctx).system_allocations;
        wf_var *x = counted(WF_SHAPE(3, 2, 2, 2), -10, NULL), *turned = wf_transpose(x, (int[]){1, 0, 2, 3});
        all_functions(wf_transpose(turned, (int[]){1, 0, 2, 3}), labels);
        WF_EXPECT_OK(wf_tape_reset(tape));
    }
    const int64_t after = wf_ctx_memory(ctx).system_allocations;
    WF_EXPECT(before > 0 && after == before, "%lld allocations in steps 3 to 6", (long long)(after - before));
    wf_tensor_free(labels);
    end();
}

int main(int argc, char **argv)
{
    return test_main(argc, argv,
                     (test_case[]){{"global_means", global_means},
                                   {"global_labels", global_labels},
                                   {"local_means", local_means},
                                   {"mixtures", mixtures},
                                   {"bad_losses", bad_losses},
                                   {"missing_targets", missing_targets},
                                   {"other_parts", other_parts},
                                   {"dimensions", dimensions},
                                   {"layouts_follow", layouts_follow},
                                   {"partitions", partitions},
                                   {"statistics", statistics},
                                   {"draws_differ", draws_differ},
                                   {"dropout_backward", dropout_backward},
                                   {"parameters", parameters},
                                   {"backward_promises", backward_promises},
                                   {"passes_on", passes_on},
                                   {"steady_memory", steady_memory},
                                   {0}});
}
