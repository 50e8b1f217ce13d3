/* Losses: values by hand, with weights, and without reduction. */
#include "core/opts.h"
#include "core/tape_author.h"
#include "layers/layers.h"
#include "tests/layers/functions_fixture.h"

/* Numbers as PyTorch defines these losses: huber_loss, smooth_l1_loss, kl_div (batchmean), sigmoid_focal_loss. */
static void robust_losses(void)
{
    begin();
    wf_var *a = leaf(WF_SHAPE(2), (double[]){0, 2}), *b = leaf(WF_SHAPE(2), (double[]){3, 1});
    expect_values("huber", wf_huber(a, b, 2), 1, (double[]){(2 * (3 - 1) + 0.5) / 2});
    expect_values("smooth_l1", wf_smooth_l1(a, b, 2), 1, (double[]){(3 - 1 + 0.25) / 2});
    expect_values("smooth_l1 of 0", wf_smooth_l1(a, b, 0), 1, (double[]){2});

    wf_var *logq = leaf(WF_SHAPE(2, 2), (double[]){-log(2), -log(2), -log(4), log(3) - log(4)});
    wf_tensor *p = wf_tensor_from_host(ctx, WF_F32, WF_SHAPE(2, 2), (float[]){1, 0, 0.5, 0.5});
    expect_values("kl_div", wf_kl_div(logq, p), 1, (double[]){(log(2) + (log(2) + log(2. / 3)) / 2) / 2});
    wf_var *image = leaf(WF_SHAPE(1, 2, 1, 2), (double[]){-log(2), -log(4), -log(2), log(3) - log(4)});
    wf_tensor *q = wf_tensor_from_host(ctx, WF_F32, WF_SHAPE(1, 2, 1, 2), (float[]){1, 0.5, 0, 0.5});
    expect_values("kl_div of pixels", wf_kl_div(image, q), 1, (double[]){(log(2) + (log(2) + log(2. / 3)) / 2) / 2});

    wf_tensor *target = wf_tensor_from_host(ctx, WF_U8, WF_SHAPE(2), (uint8_t[]){1, 0});
    const double miss = 1 / (1 + exp(-2)), bce = 2 + log1p(exp(-2));
    expect_values("focal_logits", wf_focal_logits(a, target, (wf_focal_opts){0}), 1,
                  (double[]){(0.25 * 0.25 * log(2) + 0.75 * miss * miss * bce) / 2});
    expect_values("focal_logits of 0", wf_focal_logits(a, target, (wf_focal_opts){.gamma = WF_ZERO, .alpha = WF_ZERO}),
                  1, (double[]){bce / 2});
    expect_values("focal_logits unweighted",
                  wf_focal_logits(a, target, (wf_focal_opts){.gamma = 1, .unweighted = true}), 1,
                  (double[]){(0.5 * log(2) + miss * bce) / 2});
    wf_tensor_free(p);
    wf_tensor_free(q);
    wf_tensor_free(target);
    end();
}

/* PyTorch's cross_entropy of two rows that count and one that does not, with weights and label_smoothing; and each
 * loss by itself. */
static void weighted_entropy(void)
{
    enum { ROWS = 3, C = 3 };
    static const double host[ROWS * C] = {1, 2, 3, 5, 5, 5, 0, 4, 0}, weight[C] = {1, 3, 0.5};
    static const int64_t label[ROWS] = {2, 0, 1};
    const double smoothing = 0.25;
    double row[ROWS] = {0}, slope[ROWS * C] = {0}, weights = 0;
    begin();
    for (int r = 0; r < 2; r++) {
        const double *const x = host + (size_t)r * C, z = log(exp(x[0]) + exp(x[1]) + exp(x[2]));
        for (int j = 0; j < C; j++) {
            const double part = (smoothing / C + (j == label[r] ? 1 - smoothing : 0) *
                                                     (j == label[r] ? weight[label[r]] / weight[j] : 0)) *
                                weight[j];
            row[r] += part * (z - x[j]);
            for (int k = 0; k < C; k++)
                slope[r * C + k] += part * (exp(x[k] - z) - (k == j));
        }
        weights += weight[label[r]];
    }
    wf_tensor *labels = wf_tensor_from_host(ctx, WF_I64, WF_SHAPE(ROWS), label);
    wf_tensor *w = wf_tensor_from_host(ctx, WF_F64, WF_SHAPE(C), weight);
    wf_label_opts opts = {.ignores = true, .ignored = 1, .smoothing = smoothing, .weight = w};
    wf_var *x = leaf(WF_SHAPE(ROWS, C), host), *mean = wf_softmax_cross_entropy(x, labels, opts);
    expect_values("weighted mean", mean, 1, (double[]){(row[0] + row[1]) / weights});
    WF_EXPECT(mean->loss_counted && mean->loss_count == weights, "the mean counts %g", mean->loss_count);
    opts.reduction = WF_REDUCTION_SUM;
    expect_values("weighted sum", wf_softmax_cross_entropy(x, labels, opts), 1, (double[]){row[0] + row[1]});
    opts.reduction = WF_REDUCTION_NONE;
    wf_var *each = wf_softmax_cross_entropy(x, labels, opts);
    expect_values("weighted rows", each, ROWS, row);
    wf_tensor *dy = wf_tensor_from_host(ctx, WF_F64, WF_SHAPE(ROWS), (double[]){1, 2, 3});
    WF_EXPECT_OK(wf_backward_from(each, dy));
    for (int k = C; k < 2 * C; k++)
        slope[k] *= 2;
    expect_tensor("slopes of weighted rows", wf_grad(x), ROWS * C, slope);
    wf_tensor_free(labels);
    wf_tensor_free(w);
    wf_tensor_free(dy);
    end();
}

/* Tokens are rows one behind the other: losses and slopes are those of [N T,C]. */
static void token_entropy(void)
{
    enum { N = 2, T = 3, C = 4, ROWS = N * T };
    double host[ROWS * C], rows[ROWS], slopes[ROWS * C];
    int64_t label[ROWS];
    begin();
    for (int i = 0; i < ROWS * C; i++)
        host[i] = 0.1 * (i * i % 17);
    for (int i = 0; i < ROWS; i++)
        label[i] = i == 2 ? -1 : i % C;
    wf_label_opts opts = {.ignores = true, .ignored = -1, .reduction = WF_REDUCTION_NONE};
    wf_tensor *flat = wf_tensor_from_host(ctx, WF_I64, WF_SHAPE(ROWS), label);
    wf_tensor *labels = wf_tensor_from_host(ctx, WF_I64, WF_SHAPE(N, T), label);
    wf_var *x = leaf(WF_SHAPE(ROWS, C), host), *tokens = leaf(WF_SHAPE(N, T, C), host);
    wf_var *each = wf_softmax_cross_entropy(x, flat, opts);
    wf_var *same = wf_token_cross_entropy(tokens, labels, opts);
    WF_EXPECT_OK(wf_tensor_export(wf_value(each), rows, sizeof rows));
    expect_values("losses of tokens", same, ROWS, rows);
    WF_EXPECT(wf_shape_equal(wf_var_shape(same), WF_SHAPE(N, T)), "losses of tokens have another shape");
    opts.reduction = WF_REDUCTION_MEAN;
    WF_EXPECT_OK(wf_backward(wf_softmax_cross_entropy(x, flat, opts)));
    WF_EXPECT_OK(wf_tensor_export(wf_grad(x), slopes, sizeof slopes));
    WF_EXPECT_OK(wf_backward(wf_token_cross_entropy(tokens, labels, opts)));
    expect_tensor("slopes of tokens", wf_grad(tokens), (int64_t)ROWS * C, slopes);
    expect_null("tokens with labels of rows", wf_token_cross_entropy(leaf(WF_SHAPE(N, T, C), host), flat, opts),
                WF_ERR_SHAPE, "takes scores [N,T,C] and labels [N,T], not [2,3,4] and [6]");
    wf_tensor_free(flat);
    wf_tensor_free(labels);
    end();
}

/* Losses as sums, and element by element. */
static void unreduced_losses(void)
{
    begin();
    wf_var *a = leaf(WF_SHAPE(2), (double[]){0, 2}), *b = leaf(WF_SHAPE(2), (double[]){3, 1});
    wf_tensor *target = wf_tensor_from_host(ctx, WF_U8, WF_SHAPE(2), (uint8_t[]){1, 0});
    const double bce[] = {log(2), 2 + log1p(exp(-2))};
    expect_values("huber, each", wf_huber_reduced(a, b, 2, WF_REDUCTION_NONE), 2, (double[]){4, 0.5});
    expect_values("smooth_l1, each", wf_smooth_l1_reduced(a, b, 2, WF_REDUCTION_NONE), 2, (double[]){2, 0.25});
    expect_values("l1, sum", wf_l1_reduced(a, b, WF_REDUCTION_SUM), 1, (double[]){4});
    expect_values("bce, each", wf_bce_logits_reduced(a, target, WF_REDUCTION_NONE), 2, bce);
    expect_values("focal, sum",
                  wf_focal_logits(a, target,
                                  (wf_focal_opts){.gamma = WF_ZERO, .unweighted = true, .reduction = WF_REDUCTION_SUM}),
                  1, (double[]){bce[0] + bce[1]});
    wf_var *logq = leaf(WF_SHAPE(1, 2), (double[]){-log(4), log(3) - log(4)});
    wf_tensor *p = wf_tensor_from_host(ctx, WF_F32, WF_SHAPE(1, 2), (float[]){0.5, 0.5});
    expect_values("kl_div, each", wf_kl_div_reduced(logq, p, WF_REDUCTION_NONE), 2,
                  (double[]){log(2) / 2, log(2. / 3) / 2});
    wf_var *each = wf_mse_reduced(a, b, WF_REDUCTION_NONE);
    expect_values("mse, each", each, 2, (double[]){9, 1});
    WF_EXPECT(!each->loss_mean && !wf_mse_reduced(a, b, WF_REDUCTION_SUM)->loss_mean, "a sum is marked as a mean");
    WF_EXPECT_OK(wf_backward(wf_sum(wf_mul(each, b))));
    expect_tensor("slopes of mse, each", wf_grad(a), 2, (double[]){-18, 2});
    wf_tensor_free(target);
    wf_tensor_free(p);
    end();
}

/* MONAI's DiceLoss, written out. */
static void dice_losses(void)
{
    enum { N = 2, C = 2, PIXELS = 3, ALL = N * C * PIXELS };
    static const double host[ALL] = {0.5, 0.25, 1, 0.5, 0.75, 0, 0.125, 0, 1, 0.875, 1, 0};
    static const uint8_t label[N * PIXELS] = {0, 1, 0, 1, 1, 0};
    float hot[ALL];
    double both[N][C] = {{0}}, all[N][C] = {{0}}, squares[N][C] = {{0}}, each[N * C];
    begin();
    for (int i = 0; i < ALL; i++) {
        const int n = i / (C * PIXELS), c = i / PIXELS % C;
        hot[i] = label[n * PIXELS + i % PIXELS] == c ? 1.0F : 0.0F;
        both[n][c] += host[i] * (double)hot[i];
        all[n][c] += host[i] + (double)hot[i];
        squares[n][c] += host[i] * host[i] + (double)hot[i];
    }
    wf_tensor *labels = wf_tensor_from_host(ctx, WF_U8, WF_SHAPE(N, PIXELS), label);
    wf_tensor *target = wf_tensor_from_host(ctx, WF_F32, WF_SHAPE(N, C, PIXELS), hot);
    wf_var *p = leaf(WF_SHAPE(N, C, PIXELS), host);
    for (int i = 0; i < N * C; i++)
        each[i] = 1 - (2 * both[i / C][i % C] + 1e-5) / (all[i / C][i % C] + 1e-5);
    expect_values("dice", wf_dice(p, labels, (wf_dice_opts){0}), 1,
                  (double[]){(each[0] + each[1] + each[2] + each[3]) / 4});
    expect_values("dice, each", wf_dice(p, target, (wf_dice_opts){.reduction = WF_REDUCTION_NONE}), N * C, each);
    expect_values("dice without background", wf_dice(p, target, (wf_dice_opts){.skip_background = true}), 1,
                  (double[]){(each[1] + each[3]) / 2});
    const wf_dice_opts batch = {.batch = true, .squared = true, .smooth_top = 1, .smooth_bottom = WF_ZERO};
    double sum = 0;
    for (int c = 0; c < C; c++)
        sum += 1 - (2 * (both[0][c] + both[1][c]) + 1) / (squares[0][c] + squares[1][c]);
    wf_var *mean = wf_dice(p, labels, batch);
    expect_values("dice of the batch", mean, 1, (double[]){sum / C});
    WF_EXPECT(mean->loss_mean && mean->loss_count == N, "the batch counts %g samples", mean->loss_count);
    expect_null("dice of other pixels", wf_dice(leaf(WF_SHAPE(N, 1, 2), host), labels, (wf_dice_opts){0}), WF_ERR_SHAPE,
                "[2,3]");
    expect_null("background alone",
                wf_dice(leaf(WF_SHAPE(N, 1, PIXELS), host), labels, (wf_dice_opts){.skip_background = true}),
                WF_ERR_SHAPE, "no class but the background");
    wf_tensor_free(labels);
    wf_tensor_free(target);
    end();
}

int main(int argc, char **argv)
{
    return test_main(argc, argv,
                     (test_case[]){{"robust_losses", robust_losses},
                                   {"weighted_entropy", weighted_entropy},
                                   {"token_entropy", token_entropy},
                                   {"unreduced_losses", unreduced_losses},
                                   {"dice_losses", dice_losses},
                                   {0}});
}
