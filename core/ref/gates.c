/* Steps of recurrent cells in plain loops: the oracle. */
#include "core/ref/ref_impl.h"

#include <math.h>

/* exp may overflow to infinity here: the quotient is 0 then, as it should be. */
static double logistic(double v)
{
    return 1 / (1 + exp(-v));
}

/* Samples of a batch may end at different steps. A sample that has ended keeps its state and gives 0. */
static bool takes_part(const wf_gates_args *a, int64_t n)
{
    return !a->lengths || a->step < ((const int32_t *)a->lengths->data)[n];
}

/* Entry (n, column) of what came from the input or from the state before. */
static double product_at(const double *products, const double *bias, int64_t width, int64_t n, int64_t column)
{
    return products[n * width + column] + (bias ? bias[column] : 0);
}

/* Arrays of one step: [samples,size], those of gates and products wider by the number of gates. */
typedef struct step_values {
    const double *input, *recurrent, *bias, *recurrent_bias, *cell_before, *before;
    double *gates, *kept, *h, *y;
} step_values;

/* Gates in the order input, forget, candidate, output; `kept` is the new cell: c' = f c + i g, h = o tanh(c'). */
static void step_lstm(const step_values *v, int64_t size, int64_t n, int64_t j)
{
    double g[4];
    for (int k = 0; k < 4; k++) {
        const double sum = product_at(v->input, v->bias, 4 * size, n, k * size + j) +
                           product_at(v->recurrent, v->recurrent_bias, 4 * size, n, k * size + j);
        g[k] = k == 2 ? tanh(sum) : logistic(sum);
        v->gates[(4 * n + k) * size + j] = g[k];
    }
    const int64_t e = n * size + j;
    v->kept[e] = g[1] * v->cell_before[e] + g[0] * g[2];
    v->y[e] = v->h[e] = g[3] * tanh(v->kept[e]);
}

/* Gates in the order reset, update, candidate. The reset multiplies the product with its bias, as in cuDNN and PyTorch,
 * so that product is kept for backward. */
static void step_gru(const step_values *v, int64_t size, int64_t n, int64_t j)
{
    double a[3], b[3];
    for (int k = 0; k < 3; k++) {
        a[k] = product_at(v->input, v->bias, 3 * size, n, k * size + j);
        b[k] = product_at(v->recurrent, v->recurrent_bias, 3 * size, n, k * size + j);
    }
    const double r = logistic(a[0] + b[0]), z = logistic(a[1] + b[1]), c = tanh(a[2] + r * b[2]);
    const int64_t e = n * size + j;
    v->gates[3 * n * size + j] = r;
    v->gates[(3 * n + 1) * size + j] = z;
    v->gates[(3 * n + 2) * size + j] = c;
    v->kept[e] = b[2];
    v->y[e] = v->h[e] = (1 - z) * c + z * v->before[e];
}

wf_status wf_ref_gates_forward(wf_ctx *ctx, const wf_gates_args *args)
{
    const int64_t samples = args->h->shape.dim[0], size = args->h->shape.dim[1], blocks = wf_cell_gates(args->cell);
    wf_ref_frame frame = wf_ref_begin(ctx);
    step_values v = {.input = wf_ref_in(&frame, args->input),
                     .recurrent = wf_ref_in(&frame, args->recurrent),
                     .bias = wf_ref_in(&frame, args->bias),
                     .recurrent_bias = wf_ref_in(&frame, args->recurrent_bias),
                     .cell_before = wf_ref_in(&frame, args->cell_before),
                     .before = wf_ref_in(&frame, args->before)};
    v.gates = wf_ref_out(&frame, args->gates, false);
    v.kept = wf_ref_out(&frame, args->kept, false);
    v.h = wf_ref_out(&frame, args->h, false);
    v.y = wf_ref_out(&frame, args->y, false);
    for (int64_t n = 0; n < samples && frame.status == WF_OK; n++)
        for (int64_t j = 0; j < size; j++) {
            const int64_t e = n * size + j;
            if (takes_part(args, n)) {
                (args->cell == WF_CELL_LSTM ? step_lstm : step_gru)(&v, size, n, j);
                continue;
            }
            /* Gates of 0 give no gradient at a step that the sample did not take. */
            for (int64_t k = 0; k < blocks; k++)
                v.gates[(blocks * n + k) * size + j] = 0;
            v.kept[e] = args->cell == WF_CELL_LSTM ? v.cell_before[e] : 0;
            v.h[e] = v.before[e];
            v.y[e] = 0;
        }
    return wf_ref_end(&frame);
}

typedef struct step_gradients {
    const double *gates, *kept, *cell_before, *before, *dy;
    double *dh, *dcell, *dinput, *drecurrent;
} step_gradients;

/* dcell is read as the gradient of the new cell and becomes that of the cell before. */
static void back_lstm(const step_gradients *v, int64_t size, int64_t n, int64_t j)
{
    const int64_t e = n * size + j, at = 4 * n * size + j;
    const double i = v->gates[at], f = v->gates[at + size], g = v->gates[at + 2 * size], o = v->gates[at + 3 * size];
    const double t = tanh(v->kept[e]), d = v->dy[e] + v->dh[e], c = v->dcell[e] + d * o * (1 - t * t);
    v->dinput[at] = c * g * i * (1 - i);
    v->dinput[at + size] = c * v->cell_before[e] * f * (1 - f);
    v->dinput[at + 2 * size] = c * i * (1 - g * g);
    v->dinput[at + 3 * size] = d * t * o * (1 - o);
    v->dcell[e] = c * f;
    /* The state before acts through the recurrent product alone, whose gradient the caller adds. */
    v->dh[e] = 0;
}

/* dinput and drecurrent differ in the candidate only, where the reset stands between the two products. */
static void back_gru(const step_gradients *v, int64_t size, int64_t n, int64_t j)
{
    const int64_t e = n * size + j, at = 3 * n * size + j;
    const double r = v->gates[at], z = v->gates[at + size], c = v->gates[at + 2 * size], d = v->dy[e] + v->dh[e];
    const double dc = d * (1 - z) * (1 - c * c);
    v->dinput[at] = v->drecurrent[at] = dc * v->kept[e] * r * (1 - r);
    v->dinput[at + size] = v->drecurrent[at + size] = d * (v->before[e] - c) * z * (1 - z);
    v->dinput[at + 2 * size] = dc;
    v->drecurrent[at + 2 * size] = dc * r;
    /* The direct path of the state before; the caller adds what comes through the product. */
    v->dh[e] = d * z;
}

wf_status wf_ref_gates_backward(wf_ctx *ctx, const wf_gates_args *args)
{
    const int64_t samples = args->dy->shape.dim[0], size = args->dy->shape.dim[1], blocks = wf_cell_gates(args->cell);
    const bool lstm = args->cell == WF_CELL_LSTM;
    wf_ref_frame frame = wf_ref_begin(ctx);
    step_gradients v = {.gates = wf_ref_in(&frame, args->gates),
                        .kept = wf_ref_in(&frame, args->kept),
                        .cell_before = lstm ? wf_ref_in(&frame, args->cell_before) : NULL,
                        .before = lstm ? NULL : wf_ref_in(&frame, args->before),
                        .dy = wf_ref_in(&frame, args->dy)};
    v.dh = wf_ref_out(&frame, args->dh, true);
    v.dcell = lstm ? wf_ref_out(&frame, args->dcell, true) : NULL;
    v.dinput = wf_ref_out(&frame, args->dinput, false);
    v.drecurrent = lstm ? NULL : wf_ref_out(&frame, args->drecurrent, false);
    for (int64_t n = 0; n < samples && frame.status == WF_OK; n++)
        for (int64_t j = 0; j < size; j++) {
            /* For a sample that has ended dh and dcell pass to the step before as they are. */
            if (takes_part(args, n)) {
                (lstm ? back_lstm : back_gru)(&v, size, n, j);
                continue;
            }
            for (int64_t k = 0; k < blocks; k++) {
                v.dinput[(blocks * n + k) * size + j] = 0;
                if (!lstm)
                    v.drecurrent[(blocks * n + k) * size + j] = 0;
            }
        }
    return wf_ref_end(&frame);
}
