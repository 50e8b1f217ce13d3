/* The losses of sharded_functions, of one variable each. */
#ifndef WF_TESTS_SHARDED_LOSSES_H
#define WF_TESTS_SHARDED_LOSSES_H

static wf_var *bce(wf_var *x)
{
    return wf_bce_logits_constant(x, 0.25);
}

static wf_var *mse(wf_var *x)
{
    wf_var *other = wf_scale(wf_tanh(x), 0.5);
    return wf_mse(x, other);
}

/* Moves x to other shard bounds: each bound but the first and the last is one higher, where the length
 * allows. x itself where nothing cuts it. */
static wf_var *at_other_bounds(wf_var *x)
{
    wf_layout layout = wf_tensor_layout(wf_value(x));
    int64_t bounds[WF_AXES][MOST];
    wf_layout_opts cut = {.dim = {0}};
    for (int a = 0; a < WF_AXES && layout.known; a++) {
        const int ranks = wf_mesh_size(layout.mesh, (wf_axis)a);
        if (layout.placement[a] != WF_SHARDED)
            continue;
        const int64_t length = layout.global.dim[layout.dim[a]];
        for (int r = 0; r <= ranks; r++)
            bounds[a][r] = r > 0 && layout.bounds[a][r] < length ? layout.bounds[a][r] + 1 : layout.bounds[a][r];
        cut.dim[a] = WF_DIM(layout.dim[a]);
        cut.bounds[a] = bounds[a];
    }
    if (!layout.known)
        return x;
    WF_EXPECT_OK(wf_mesh_layout(layout.mesh, layout.global, cut, &layout));
    return wf_redistribute(x, layout);
}

static wf_var *mse_at_other_bounds(wf_var *x)
{
    return wf_mse(x, at_other_bounds(wf_scale(wf_tanh(x), 0.5)));
}

static wf_var *huber_at_other_bounds(wf_var *x)
{
    return wf_huber_reduced(x, at_other_bounds(wf_scale(wf_tanh(x), 0.5)), 0.3, WF_REDUCTION_NONE);
}

/* Its condition, of bytes, and its second choice lie elsewhere. */
static wf_var *where_at_other_bounds(wf_var *x)
{
    wf_var *moved = at_other_bounds(x);
    return wf_where(wf_cast(wf_relu(wf_scale(moved, 8)), WF_U8), x, wf_tanh(moved));
}

static wf_var *l1(wf_var *x)
{
    wf_var *other = wf_scale(wf_tanh(x), 0.5);
    return wf_l1(x, other);
}

static wf_var *huber(wf_var *x)
{
    wf_var *other = wf_scale(wf_tanh(x), 0.5);
    return wf_huber(x, other, 0.3);
}

/* Towards x's own probabilities, so that a part has those of its elements. */
static wf_var *divergence(wf_var *x)
{
    return wf_kl_div(x, wf_value(wf_sigmoid(x)));
}

static wf_var *focal(wf_var *x)
{
    return wf_focal_logits(x, wf_value(wf_sigmoid(wf_scale(x, 3))), (wf_focal_opts){0});
}

static wf_var *huber_of_elements(wf_var *x)
{
    wf_var *other = wf_scale(wf_tanh(x), 0.5);
    return wf_huber_reduced(x, other, 0.3, WF_REDUCTION_NONE);
}

static wf_var *squares_summed(wf_var *x)
{
    wf_var *other = wf_scale(wf_tanh(x), 0.5);
    return wf_mse_reduced(x, other, WF_REDUCTION_SUM);
}

static wf_var *dice(wf_var *x)
{
    return wf_dice(wf_sigmoid(x), wf_value(wf_sigmoid(wf_scale(x, 3))), (wf_dice_opts){.squared = true});
}

static wf_var *dice_of_batch(wf_var *x)
{
    const wf_dice_opts opts = {.batch = true, .reduction = WF_REDUCTION_SUM};
    return wf_dice(wf_sigmoid(x), wf_value(wf_sigmoid(wf_scale(x, 3))), opts);
}

/* x, of which a variable is a part, for labels that do not depend on how it is cut. */
static const wf_tensor *uncut;

static wf_tensor *labels_for(const wf_var *x, bool some)
{
    const wf_layout layout = wf_tensor_layout(wf_value(x));
    wf_box box = layout.known ? layout.box : wf_box_of_shape(wf_tensor_shape(uncut));
    const int64_t channels = wf_tensor_shape(uncut).dim[1];
    int64_t inner = 1;
    box.lo[1] = 0;
    box.hi[1] = channels;
    wf_shape shape = wf_box_shape(box);
    for (int d = 2; d < shape.rank; d++)
        inner *= shape.dim[d];
    double host[MOST];
    int32_t label[MOST];
    wf_tensor *rows = wf_tensor_view(uncut, box);
    WF_EXPECT_OK(wf_tensor_export(rows, host, (size_t)wf_tensor_count(rows) * sizeof *host));
    wf_tensor_free(rows);
    for (int64_t n = 0; n < shape.dim[0]; n++)
        for (int64_t i = 0; i < inner; i++) {
            const double v = host[n * channels * inner + i];
            label[n * inner + i] = some && v < -0.5 ? -100 : (int32_t)((int64_t)((v + 2) * 1000) % channels);
        }
    shape.rank--;
    for (int d = 1; d < shape.rank; d++)
        shape.dim[d] = shape.dim[d + 1];
    wf_tensor *labels = wf_tensor_new(ctx, WF_I32, shape);
    WF_EXPECT_OK(wf_tensor_import(labels, label, wf_tensor_bytes(labels)));
    return labels;
}

static wf_var *counted(wf_var *x, wf_label_opts opts)
{
    wf_tensor *labels = labels_for(x, true);
    opts.ignores = true;
    opts.ignored = -100;
    wf_var *loss = wf_softmax_cross_entropy(x, labels, opts);
    wf_tensor_free(labels);
    return loss;
}

static wf_var *dice_of_labels(wf_var *x)
{
    wf_tensor *labels = labels_for(x, false);
    wf_var *loss = wf_dice(wf_softmax(x), labels, (wf_dice_opts){.batch = true, .skip_background = true});
    wf_tensor_free(labels);
    return loss;
}

/* The scores are no logarithms: a row reads the one at its label alone. */
static wf_var *weighed_nll(wf_var *x)
{
    double host[MOST];
    for (int i = 0; i < MOST; i++)
        host[i] = 0.25 + i % 5;
    wf_tensor *labels = labels_for(x, true);
    wf_tensor *weight = wf_tensor_from_host(ctx, WF_F64, WF_SHAPE(wf_var_shape(x).dim[1]), host);
    wf_var *loss = wf_nll(x, labels, (wf_label_opts){.ignores = true, .ignored = -100, .weight = weight});
    wf_tensor_free(labels);
    wf_tensor_free(weight);
    return loss;
}

static wf_var *counted_nll(wf_var *x)
{
    return counted(x, (wf_label_opts){0});
}

static wf_var *weighed_entropy(wf_var *x)
{
    double host[MOST];
    for (int i = 0; i < MOST; i++)
        host[i] = 0.25 + i % 5;
    wf_tensor *weight = wf_tensor_from_host(ctx, WF_F64, WF_SHAPE(wf_tensor_shape(uncut).dim[1]), host);
    wf_var *loss = counted(x, (wf_label_opts){.smoothing = 0.2, .weight = weight});
    wf_tensor_free(weight);
    return loss;
}

static wf_var *plain_entropy(wf_var *x)
{
    wf_tensor *labels = labels_for(x, false);
    wf_var *loss = wf_softmax_cross_entropy(wf_scale(x, 3), labels, (wf_label_opts){0});
    wf_tensor_free(labels);
    return loss;
}

static wf_var *summed_entropy(wf_var *x)
{
    return counted(x, (wf_label_opts){.smoothing = 0.1, .reduction = WF_REDUCTION_SUM});
}

/* A loss for each row, which the rows' own losses weigh. */
static wf_var *rows_of_entropy(wf_var *x)
{
    wf_var *each = counted(x, (wf_label_opts){.smoothing = 0.2, .reduction = WF_REDUCTION_NONE});
    return wf_mean(wf_mul(each, each));
}

#endif
