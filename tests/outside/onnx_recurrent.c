/* Recurrent layers of one direction, written with products and activations, a step for each place of the sequence. */
#include "tests/outside/onnx.h"

#include <string.h>

enum { STEPS = 16, GATES = 4 };

/* Weights without their dimension of directions, and where time and samples are in x. */
typedef struct recurrent {
    int gates, steps;
    bool batch_first;
    wf_var *x[STEPS], *w, *r, *w_bias, *r_bias, *h, *c;
} recurrent;

/* Element `index` of a dimension, which goes away. */
static wf_var *one_of(wf_var *x, int dim, int64_t index)
{
    return wf_squeeze(onnx_pick(x, dim, 1, &index), dim);
}

/* What a state is at first: an input, or zeros. */
static wf_var *first_state(onnx_call *call, int port, bool batch_first, int64_t samples, int64_t features)
{
    if (port < call->node->n_in && call->in[port])
        return one_of(call->in[port], batch_first ? 1 : 0, 0);
    wf_tensor *zeros = wf_tensor_new(call->run->ctx, onnx_dtype(call->in[0]), WF_SHAPE(samples, features));
    WF_EXPECT_OK(wf_tensor_fill(zeros, 0));
    return wf_input(call->run->tape, onnx_hold(call, zeros));
}

/* True if no sequence ends before the others. */
static bool are_whole(const onnx_call *call, int steps)
{
    int64_t length[ONNX_TENSORS];
    const int n = onnx_read(call, 4, ONNX_TENSORS, length);
    for (int i = 0; i < n; i++)
        if (length[i] != steps)
            return false;
    return true;
}

/* False for what no case has: two directions, other activations, sequences of several lengths. */
static bool read_recurrent(onnx_call *call, int gates, recurrent *of)
{
    const wf_shape x = wf_var_shape(call->in[0]);
    *of = (recurrent){.gates = gates, .batch_first = onnx_int(call, "layout", 0) != 0};
    of->steps = (int)x.dim[of->batch_first ? 1 : 0];
    if (of->steps > STEPS || !are_whole(call, of->steps) || onnx_find(call, "direction") ||
        onnx_find(call, "activations"))
        return false;
    for (int t = 0; t < of->steps; t++)
        of->x[t] = one_of(call->in[0], of->batch_first ? 1 : 0, t);
    of->w = one_of(call->in[1], 0, 0);
    of->r = one_of(call->in[2], 0, 0);
    if (call->in[3]) {
        wf_var *half[2];
        if (!wf_split(one_of(call->in[3], 0, 0), 0, 2, NULL, half))
            return false;
        of->w_bias = half[0];
        of->r_bias = half[1];
    }
    const int64_t samples = x.dim[of->batch_first ? 0 : 1], features = wf_var_shape(of->r).dim[1];
    of->h = first_state(call, 5, of->batch_first, samples, features);
    of->c = first_state(call, 6, of->batch_first, samples, features);
    return true;
}

/* x W^T + b, gate for gate. */
static bool multiply_gates(const recurrent *of, wf_var *x, wf_var *w, wf_var *bias, wf_var *gate[GATES])
{
    wf_var *all = wf_matmul(x, w, (wf_matmul_opts){.b_transposed = true});
    return wf_split(bias ? wf_add(all, bias) : all, 1, of->gates, NULL, gate);
}

/* The outputs of all steps, and the last states. */
static wf_var *give_states(onnx_call *call, const recurrent *of, wf_var **h)
{
    const int direction = of->batch_first ? 1 : 0;
    call->out[1] = wf_unsqueeze(h[of->steps - 1], direction);
    if (of->gates == GATES)
        call->out[2] = wf_unsqueeze(of->c, direction);
    return of->batch_first ? wf_unsqueeze(wf_stack(of->steps, h, 1), 2) : wf_unsqueeze(wf_stack(of->steps, h, 0), 1);
}

static wf_var *say_rnn(onnx_call *call)
{
    recurrent of;
    wf_var *h[STEPS], *x[GATES], *r[GATES];
    if (!read_recurrent(call, 1, &of))
        return NULL;
    for (int t = 0; t < of.steps; t++) {
        if (!multiply_gates(&of, of.x[t], of.w, of.w_bias, x) || !multiply_gates(&of, of.h, of.r, of.r_bias, r))
            return NULL;
        of.h = h[t] = wf_tanh(wf_add(x[0], r[0]));
    }
    return give_states(call, &of, h);
}

/* Gates: update, reset, candidate. */
static wf_var *say_gru(onnx_call *call)
{
    recurrent of;
    wf_var *h[STEPS], *x[GATES], *r[GATES];
    if (!read_recurrent(call, 3, &of))
        return NULL;
    const bool after = onnx_int(call, "linear_before_reset", 0) != 0;
    for (int t = 0; t < of.steps; t++) {
        if (!multiply_gates(&of, of.x[t], of.w, of.w_bias, x) || !multiply_gates(&of, of.h, of.r, of.r_bias, r))
            return NULL;
        wf_var *update = wf_sigmoid(wf_add(x[0], r[0])), *reset = wf_sigmoid(wf_add(x[1], r[1]));
        wf_var *part = wf_mul(reset, r[2]), *again[GATES];
        if (!after) {
            if (!multiply_gates(&of, wf_mul(reset, of.h), of.r, of.r_bias, again))
                return NULL;
            part = again[2];
        }
        wf_var *candidate = wf_tanh(wf_add(x[2], part)), *change = wf_mul(update, wf_sub(of.h, candidate));
        of.h = h[t] = wf_add(candidate, change);
    }
    return give_states(call, &of, h);
}

/* Gates: input, output, forget, cell; peepholes of the first three. */
static wf_var *say_lstm(onnx_call *call)
{
    recurrent of;
    wf_var *h[STEPS], *x[GATES], *r[GATES], *peep[3] = {NULL};
    if (!read_recurrent(call, GATES, &of))
        return NULL;
    if (call->in[7] && !wf_split(one_of(call->in[7], 0, 0), 0, 3, NULL, peep))
        return NULL;
    for (int t = 0; t < of.steps; t++) {
        if (!multiply_gates(&of, of.x[t], of.w, of.w_bias, x) || !multiply_gates(&of, of.h, of.r, of.r_bias, r))
            return NULL;
        wf_var *gate[GATES];
        for (int g = 0; g < GATES; g++)
            gate[g] = wf_add(x[g], r[g]);
        for (int g = 0; g < 3 && peep[0]; g += 2)
            gate[g] = wf_add(gate[g], wf_mul(peep[g], of.c));
        wf_var *kept = wf_mul(wf_sigmoid(gate[2]), of.c), *new = wf_mul(wf_sigmoid(gate[0]), wf_tanh(gate[3]));
        of.c = wf_add(kept, new);
        if (peep[0])
            gate[1] = wf_add(gate[1], wf_mul(peep[1], of.c));
        of.h = h[t] = wf_mul(wf_sigmoid(gate[1]), wf_tanh(of.c));
    }
    return give_states(call, &of, h);
}

const onnx_operator onnx_recurrent[] = {
    {"RNN", say_rnn, ONNX_WHOLE}, {"GRU", say_gru, ONNX_WHOLE}, {"LSTM", say_lstm, ONNX_WHOLE}, {0}};
