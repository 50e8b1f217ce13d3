/* Losses of scores and labels. */
#include "tests/outside/onnx.h"

#include <stdlib.h>
#include <string.h>

typedef struct loss_question {
    wf_var *logp, *labels; /* [N,C,D...], [N,D...] */
    wf_label_opts opts;
    double *weight; /* of each class; NULL: 1 */
} loss_question;

/* The weight of each element of [N,C,D]: that of its class at the label, else 0. *sum: of all. */
static wf_var *weights_of(onnx_call *call, const loss_question *q, double *sum)
{
    const wf_shape s = wf_var_shape(q->logp);
    const int64_t inner = wf_shape_count(s) / (s.dim[0] * s.dim[1]), rows = s.dim[0] * inner;
    double *label = onnx_numbers(q->labels), *weight = calloc((size_t)wf_shape_count(s) + 1, sizeof *weight);
    *sum = 0;
    for (int64_t i = 0; i < rows; i++) {
        const int64_t c = (int64_t)label[i];
        if (q->opts.ignores && c == q->opts.ignored)
            continue;
        const double w = q->weight ? q->weight[c] : 1;
        weight[(i / inner * s.dim[1] + c) * inner + i % inner] = w;
        *sum += w;
    }
    wf_var *all = onnx_constant(call, onnx_dtype(q->logp), s, weight);
    free(label);
    free(weight);
    return all;
}

/* Labels of the part of the scores that is held here. */
static wf_var *labels_here(wf_var *labels, const wf_var *scores)
{
    const wf_layout layout = wf_tensor_layout(wf_value(scores));
    if (!layout.known)
        return labels;
    wf_box box = layout.box;
    box.rank--;
    for (int d = 1; d < box.rank; d++) {
        box.lo[d] = box.lo[d + 1];
        box.hi[d] = box.hi[d + 1];
    }
    return wf_slice(labels, box);
}

/* A rank holds its part of a loss of the whole: their sum. */
static wf_var *whole_loss(onnx_call *call, wf_var *loss)
{
    double part = wf_item(loss);
    WF_EXPECT_OK(wf_allreduce_f64(wf_mesh_world(call->run->mesh), &part, 1, WF_SUM));
    return onnx_constant(call, onnx_dtype(loss), wf_shape_scalar(), &part);
}

/* Without weights the loss of the library; with them, or one for each row, a sum of products. */
static wf_var *loss_of(onnx_call *call, const loss_question *q)
{
    const bool none = onnx_word_is(call, "reduction", "none"), sum = onnx_word_is(call, "reduction", "sum");
    if (!none && !q->weight) {
        wf_var *mean = wf_nll(q->logp, wf_value(labels_here(q->labels, q->logp)), q->opts);
        mean = call->run->mesh ? whole_loss(call, mean) : mean;
        return sum ? wf_scale(mean, (double)wf_count_labels(wf_value(q->labels), q->opts)) : mean;
    }
    double all;
    loss_question whole = *q;
    whole.logp = wf_unshard(q->logp);
    wf_var *weights = weights_of(call, &whole, &all);
    wf_var *terms = wf_scale(wf_mul(whole.logp, weights), -1);
    if (none)
        return wf_sum_over(terms, WF_DIMS(1), false);
    return sum ? wf_sum(terms) : wf_scale(wf_sum(terms), 1 / all);
}

/* Labels of more dimensions than the scores here, which have those from 2 on as one, become flat too. */
static wf_var *say_loss(onnx_call *call, bool logits)
{
    const onnx_attribute *ignored = onnx_find(call, "ignore_index");
    const wf_shape x = onnx_whole_shape(call->in[0]), given = wf_var_shape(call->in[1]);
    loss_question q = {.logp = logits ? wf_log_softmax_over(call->in[0], WF_DIMS(1)) : call->in[0],
                       .labels = call->in[1]};
    if (given.rank > x.rank)
        q.labels = wf_reshape(q.labels, WF_SHAPE(x.dim[0], -1));
    if (ignored)
        q.opts = (wf_label_opts){.ignores = true, .ignored = (int64_t)ignored->real[0]};
    if (call->node->n_in > 2 && call->in[2])
        q.weight = onnx_numbers(call->in[2]);
    if (logits && call->node->n_out > 1)
        call->out[1] = q.logp;
    wf_var *loss = loss_of(call, &q);
    free(q.weight);
    return loss && onnx_rank(loss) > 0 ? wf_reshape(loss, given) : loss;
}

static wf_var *say_softmax_cross_entropy_loss(onnx_call *call)
{
    return say_loss(call, true);
}

static wf_var *say_negative_log_likelihood_loss(onnx_call *call)
{
    return say_loss(call, false);
}

const onnx_operator onnx_losses[] = {{"SoftmaxCrossEntropyLoss", say_softmax_cross_entropy_loss, ONNX_IMAGES},
                                     {"NegativeLogLikelihoodLoss", say_negative_log_likelihood_loss, ONNX_IMAGES},
                                     {0}};
