/* Gradients of every function and loss against central differences, in f64 on `ref`: ranks 0 to 5, both orders of
 * memory, empty tensors, and gradients that are added to what is there. */
#include "core/tape_author.h"
#include "layers/loss.h"
#include "tests/layers/gradcheck_fixture.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static wf_var *leaky(wf_var *x)
{
    return wf_leaky_relu(x, 0.2);
}

static wf_var *elu(wf_var *x)
{
    return wf_elu(x, 0.7);
}

static wf_var *noisy_leaky(wf_var *x)
{
    return wf_activate(x, WF_ACT_LEAKY_RELU, 0.3, 0.5);
}

static wf_var *noisy_gelu(wf_var *x)
{
    return wf_activate(x, WF_ACT_GELU, 0, 0.5);
}

static wf_var *noise(wf_var *x)
{
    return wf_gaussian_noise(x, 0.5);
}

static wf_var *dropout(wf_var *x)
{
    return wf_dropout(x, 0.4);
}

static void activations(void)
{
    begin();
    check_unary("relu", wf_relu, 0, 5);
    check_unary("leaky_relu", leaky, 0, 5);
    check_unary("elu", elu, 0, 5);
    check_unary("gelu", wf_gelu, 0, 5);
    check_unary("sigmoid", wf_sigmoid, 0, 5);
    check_unary("tanh", wf_tanh, 0, 5);
    check_unary("softplus", wf_softplus, 0, 5);
    check_unary("noisy leaky_relu", noisy_leaky, 0, 5);
    check_unary("noisy gelu", noisy_gelu, 0, 5);
    check_unary("gaussian_noise", noise, 0, 5);
    check_unary("dropout", dropout, 0, 5);
    check_unary("softmax", wf_softmax, 2, 5);
    check_unary("log_softmax", wf_log_softmax, 2, 5);
    end();
}

static wf_var *scale(wf_var *x)
{
    return wf_scale(x, -1.5);
}

static wf_var *unscaled(wf_var *x)
{
    return wf_scale(x, 1);
}

/* Each x has a part that is cut off: the gradient is that of the rest. */
static wf_var *beside_detach(wf_var *x)
{
    return wf_sub(wf_mul(x, x), wf_scale(wf_detach(x), 0));
}

static void arithmetic(void)
{
    begin();
    check_binary("add", wf_add);
    check_binary("sub", wf_sub);
    check_binary("mul", wf_mul);
    check_unary("scale", scale, 0, 5);
    check_unary("scale by 1", unscaled, 0, 5);
    check_unary("sum", wf_sum, 0, 5);
    check_unary("mean", wf_mean, 0, 5);
    check_unary("detach", beside_detach, 0, 5);
    end();
}

/* Half of every dimension that has two or more, from 1 on. */
static wf_var *inner(wf_var *x)
{
    wf_box box = wf_box_of_shape(wf_var_shape(x));
    for (int d = 0; d < box.rank; d++)
        if (box.hi[d] > 1)
            box.lo[d] = 1;
    return wf_slice(x, box);
}

static wf_var *first_rows(wf_var *x)
{
    wf_box box = wf_box_of_shape(wf_var_shape(x));
    box.hi[0] = box.hi[0] > 1 ? 1 : box.hi[0];
    return wf_slice(x, box);
}

static wf_var *line(wf_var *x)
{
    return wf_reshape(x, WF_SHAPE(-1));
}

static wf_var *regrouped(wf_var *x)
{
    const wf_shape shape = wf_var_shape(x);
    return wf_reshape(x, WF_SHAPE(shape.dim[0], shape.dim[1], -1));
}

static wf_var *image(wf_var *x)
{
    return wf_reshape(x, WF_SHAPE(wf_var_shape(x).dim[0], -1, 1, 1));
}

static wf_var *reversed(wf_var *x)
{
    int perm[WF_MAX_RANK] = {0};
    const int rank = wf_var_shape(x).rank;
    for (int d = 0; d < rank; d++)
        perm[d] = rank - 1 - d;
    return wf_transpose(x, perm);
}

static wf_var *channels_to_end(wf_var *x)
{
    int perm[WF_MAX_RANK] = {0};
    const int rank = wf_var_shape(x).rank;
    for (int d = 1; d < rank; d++)
        perm[d] = d == rank - 1 ? 1 : d + 1;
    return wf_transpose(x, perm);
}

static void shape_changes(void)
{
    begin();
    check_unary("slice", inner, 1, 5);
    check_unary("slice of rows", first_rows, 1, 5);
    check_unary("reshape to a line", line, 0, 5);
    check_unary("reshape to an image", image, 1, 1);
    check_unary("reshape to an image", image, 4, 4);
    check_unary("flatten", wf_flatten, 1, 5);
    check_unary("transpose", reversed, 0, 5);
    check_unary("transpose of channels", channels_to_end, 1, 5);
    check("regrouped", (function){.one = regrouped}, 1, (wf_shape[]){WF_SHAPE(2, 3, 2, 2)},
          (wf_order[]){WF_CHANNELS_LAST});
    check("regrouped", (function){.one = regrouped}, 1, (wf_shape[]){WF_SHAPE(2, 3, 2, 2)}, (wf_order[]){WF_ROW_MAJOR});
    end();
}

static wf_var *concat_0(wf_var *const *x)
{
    return wf_concat(3, x, 0);
}

static wf_var *concat_1(wf_var *const *x)
{
    return wf_concat(3, x, 1);
}

static wf_var *concat_2(wf_var *const *x)
{
    return wf_concat(3, x, 2);
}

static void concats(void)
{
    static wf_var *(*const along[])(wf_var *const *) = {concat_0, concat_1, concat_2};
    begin();
    for (int dim = 0; dim < 3; dim++)
        for (int rank = dim + 1; rank <= 5; rank++)
            for (int orders = 0; orders < (rank > 2 ? 4 : 1); orders++) {
                wf_shape shape[INPUTS];
                for (int i = 0; i < INPUTS; i++) {
                    shape[i] = wf_shape_make(rank, (const int64_t[]){2, 3, 2, 1, 2});
                    shape[i].dim[dim] = (int64_t[]){2, 0, 3}[i];
                }
                check("concat", (function){.many = along[dim]}, 3, shape,
                      (wf_order[]){(wf_order)(orders & 1), WF_ROW_MAJOR, (wf_order)(orders >> 1)});
            }
    end();
}

static wf_var *bce_one(wf_var *x)
{
    return wf_bce_logits_constant(x, 1.0);
}

static wf_var *bce_between(wf_var *x)
{
    return wf_bce_logits_constant(x, 0.3);
}

/* Targets of 0, 1 and between, of x's shape. The loss keeps what it needs of a target or of labels: these go at once.
 */
static wf_var *towards(wf_var *(*f)(wf_var *, const wf_tensor *), wf_var *x)
{
    float host[ELEMENTS];
    wf_tensor *t = wf_tensor_new(ctx, WF_F32, wf_var_shape(x));
    for (int i = 0; i < ELEMENTS; i++)
        host[i] = (float)(i % 4) / 3;
    WF_EXPECT_OK(wf_tensor_import(t, host, wf_tensor_bytes(t)));
    wf_var *y = f(x, t);
    wf_tensor_free(t);
    return y;
}

static wf_var *bce_target(wf_var *x)
{
    return towards(wf_bce_logits, x);
}

static wf_var *focal_default(wf_var *x, const wf_tensor *t)
{
    return wf_focal_logits(x, t, (wf_focal_opts){0});
}

static wf_var *focal_other(wf_var *x, const wf_tensor *t)
{
    return wf_focal_logits(x, t, (wf_focal_opts){.gamma = 0.5, .unweighted = true});
}

static wf_var *focal(wf_var *x)
{
    return towards(focal_default, x);
}

static wf_var *focal_of_half(wf_var *x)
{
    return towards(focal_other, x);
}

static wf_var *divergence(wf_var *x)
{
    return towards(wf_kl_div, x);
}

static wf_var *huber(wf_var *a, wf_var *b)
{
    return wf_huber(a, b, 0.8);
}

static wf_var *smooth(wf_var *a, wf_var *b)
{
    return wf_smooth_l1(a, b, 0.4);
}

static wf_var *labelled(wf_var *(*f)(wf_var *, const wf_tensor *), wf_var *x)
{
    const wf_shape in = wf_var_shape(x);
    wf_shape shape = {.rank = in.rank - 1, .dim = {in.dim[0]}};
    uint8_t host[ELEMENTS];
    for (int d = 2; d < in.rank; d++)
        shape.dim[d - 1] = in.dim[d];
    for (int i = 0; i < ELEMENTS; i++)
        host[i] = (uint8_t)((2 * i + 1) % in.dim[1]);
    wf_tensor *labels = wf_tensor_new(ctx, WF_U8, shape);
    WF_EXPECT_OK(wf_tensor_import(labels, host, wf_tensor_bytes(labels)));
    wf_var *y = f(x, labels);
    wf_tensor_free(labels);
    return y;
}

static wf_var *every_row(wf_var *logp, const wf_tensor *labels)
{
    return wf_nll(logp, labels, (wf_label_opts){0});
}

static wf_var *nll(wf_var *x)
{
    return labelled(every_row, x);
}

static wf_var *some(wf_var *logp, const wf_tensor *labels)
{
    return wf_nll(logp, labels, (wf_label_opts){.ignores = true, .ignored = 1});
}

/* Weights of classes, of up to ELEMENTS of which one is 0. */
static wf_var *weighted(wf_var *logp, const wf_tensor *labels)
{
    double weight[ELEMENTS];
    const int64_t classes = wf_var_shape(logp).dim[1];
    for (int64_t c = 0; c < classes; c++)
        weight[c] = 0.5 * (double)c;
    wf_tensor *table = wf_tensor_from_host(ctx, WF_F64, WF_SHAPE(classes), weight);
    wf_var *loss = wf_nll(logp, labels, (wf_label_opts){.weight = table});
    wf_tensor_free(table);
    return loss;
}

static wf_var *weighted_nll(wf_var *x)
{
    return labelled(weighted, x);
}

static wf_var *nll_of_some(wf_var *x)
{
    return labelled(some, x);
}

static wf_var *cross_entropy(wf_var *x)
{
    return labelled(wf_mean_cross_entropy, x);
}

static wf_var *entropy_of_tokens(wf_var *x, const wf_tensor *labels)
{
    return wf_token_cross_entropy(wf_tokens(x), labels, (wf_label_opts){.smoothing = 0.2});
}

static wf_var *cross_entropy_of_tokens(wf_var *x)
{
    return labelled(entropy_of_tokens, x);
}

static wf_var *some_rows(wf_var *x, const wf_tensor *labels)
{
    return wf_softmax_cross_entropy(x, labels, (wf_label_opts){.ignores = true, .ignored = 1});
}

static wf_var *cross_entropy_of_some(wf_var *x)
{
    return labelled(some_rows, x);
}

/* Weights of the classes, a part of the target for each, some rows that do not count. */
static wf_var *weighed(wf_var *x, const wf_tensor *labels, wf_loss_reduction reduction)
{
    const int64_t classes = wf_var_shape(x).dim[1];
    double host[ELEMENTS];
    for (int i = 0; i < ELEMENTS; i++)
        host[i] = 0.5 + i % 3;
    wf_tensor *weight = wf_tensor_from_host(ctx, WF_F64, WF_SHAPE(classes), host);
    wf_var *y = wf_softmax_cross_entropy(
        x, labels,
        (wf_label_opts){.ignores = true, .ignored = 1, .smoothing = 0.3, .weight = weight, .reduction = reduction});
    wf_tensor_free(weight);
    return y;
}

static wf_var *weighed_mean(wf_var *x, const wf_tensor *labels)
{
    return weighed(x, labels, WF_REDUCTION_MEAN);
}

static wf_var *weighed_rows(wf_var *x, const wf_tensor *labels)
{
    return weighed(x, labels, WF_REDUCTION_NONE);
}

static wf_var *cross_entropy_weighed(wf_var *x)
{
    return labelled(weighed_mean, x);
}

static wf_var *cross_entropy_of_rows(wf_var *x)
{
    return labelled(weighed_rows, x);
}

static wf_var *huber_of_elements(wf_var *a, wf_var *b)
{
    return wf_huber_reduced(a, b, 0.8, WF_REDUCTION_NONE);
}

static wf_var *squares_summed(wf_var *a, wf_var *b)
{
    return wf_mse_reduced(a, b, WF_REDUCTION_SUM);
}

/* Probabilities, so that no divisor is near 0. */
static wf_var *dice_of(wf_var *x, const wf_tensor *target)
{
    return wf_dice(wf_sigmoid(x), target, (wf_dice_opts){.smooth_top = 0.5, .smooth_bottom = 0.25});
}

static wf_var *dice_of_batch(wf_var *x, const wf_tensor *target)
{
    return wf_dice(
        wf_sigmoid(x), target,
        (wf_dice_opts){.batch = true, .squared = true, .smooth_bottom = 0.25, .reduction = WF_REDUCTION_NONE});
}

static wf_var *dice(wf_var *x)
{
    return towards(dice_of, x);
}

static wf_var *dice_batch(wf_var *x)
{
    return labelled(dice_of_batch, x);
}

/* The first, the last and again the first rows, in a square. */
static wf_var *taken(wf_var *x)
{
    const int64_t rows = wf_var_shape(x).dim[0];
    const int32_t host[] = {0, (int32_t)rows - 1, 0, 0};
    wf_tensor *index = wf_tensor_new(ctx, WF_I32, rows > 0 ? WF_SHAPE(2, 2) : WF_SHAPE(0));
    WF_EXPECT_OK(wf_tensor_import(index, host, wf_tensor_bytes(index)));
    wf_var *y = wf_take(x, wf_input(tape, index));
    wf_tensor_free(index);
    return y;
}

static void rows(void)
{
    begin();
    check_unary("take", taken, 1, 5);
    end();
}

static void losses(void)
{
    begin();
    check_binary("mse", wf_mse);
    check_binary("l1", wf_l1);
    check_binary("huber", huber);
    check_binary("smooth_l1", smooth);
    check_binary("huber without reduction", huber_of_elements);
    check_binary("mse, a sum", squares_summed);
    check_unary("cross_entropy with weights", cross_entropy_weighed, 2, 5);
    check_unary("cross_entropy of rows", cross_entropy_of_rows, 2, 5);
    check_unary("dice", dice, 2, 5);
    check_unary("dice of a batch", dice_batch, 2, 5);
    check_unary("kl_div", divergence, 2, 5);
    check_unary("focal_logits", focal, 0, 5);
    check_unary("focal_logits of 0.5", focal_of_half, 0, 5);
    check_unary("bce_logits 1", bce_one, 0, 5);
    check_unary("bce_logits 0.3", bce_between, 0, 5);
    check_unary("bce_logits_with", bce_target, 0, 5);
    check_unary("nll", nll, 2, 5);
    check_unary("nll of rows that count", nll_of_some, 2, 5);
    check_unary("weighted nll", weighted_nll, 2, 5);
    check_unary("softmax_cross_entropy", cross_entropy, 2, 5);
    check_unary("token_cross_entropy", cross_entropy_of_tokens, 3, 3);
    check_unary("softmax_cross_entropy of rows that count", cross_entropy_of_some, 2, 5);
    end();
}

int main(int argc, char **argv)
{
    return test_main(argc, argv,
                     (test_case[]){{"activations", activations},
                                   {"arithmetic", arithmetic},
                                   {"shape_changes", shape_changes},
                                   {"concats", concats},
                                   {"rows", rows},
                                   {"losses", losses},
                                   {0}});
}
