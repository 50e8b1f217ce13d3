/* Recurrent layers beside PyTorch's (tests/outside/torch_recurrent.py writes the cases): outputs, final states and all
 * gradients, on `ref` in f64 to 1e-11 and `cpu` in f32 to 1e-4. torch_recurrent FILE. */
#include "core/core.h"
#include "layers/layers.h"
#include "tests/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 8192 };

typedef struct recurrent_case {
    int gru, levels, both, biases, lengths, state, n, t, in, hidden;
} recurrent_case;

static FILE *file;
static int number;

/* The next line of n numbers. */
static void read_numbers(int64_t n, double *to)
{
    for (int64_t i = 0; i < n; i++)
        if (fscanf(file, "%lf", &to[i]) != 1)
            test_failed(__FILE__, __LINE__, "case %d: numbers are missing", number);
}

static wf_tensor *read_tensor(wf_ctx *ctx, wf_dtype dtype, wf_shape shape)
{
    static double host[MOST];
    read_numbers(wf_shape_count(shape), host);
    wf_tensor *wide = wf_tensor_from_host(ctx, WF_F64, shape, host), *t = wf_tensor_copy(wide, dtype, WF_ROW_MAJOR);
    wf_tensor_free(wide);
    return t;
}

static void compare(const char *what, const wf_tensor *got, double most)
{
    static double a[MOST], b[MOST];
    wf_tensor *wide = got ? wf_tensor_copy(got, WF_F64, WF_ROW_MAJOR) : NULL;
    WF_EXPECT(wide, "case %d: no %s: %s", number, what, wf_error_message());
    if (!wide)
        return;
    WF_EXPECT_OK(wf_tensor_export(wide, a, wf_tensor_bytes(wide)));
    read_numbers(wf_tensor_count(wide), b);
    const double far = test_distance(wf_tensor_count(wide), a, b);
    WF_EXPECT(far <= most, "case %d: %s differs by %g from PyTorch's", number, what, far);
    wf_tensor_free(wide);
}

static void run_case(const recurrent_case *c, wf_ctx *ctx, double most)
{
    const wf_dtype dtype = wf_ctx_dtype(ctx);
    const wf_recurrent_opts o = {
        .in = c->in, .hidden = c->hidden, .levels = c->levels, .both = c->both, .no_bias = !c->biases};
    wf_layer *layer = c->gru ? wf_gru(ctx, o) : wf_lstm(ctx, o);
    wf_tape *tape = wf_tape_new(ctx);
    const int rows = c->levels * (c->both ? 2 : 1) * (c->gru ? 1 : 2);
    wf_tensor *held[3] = {read_tensor(ctx, dtype, WF_SHAPE(c->n, c->t, c->in))};
    wf_var *input[3] = {wf_leaf(tape, held[0])}, *last, *state = NULL;
    int n = 1;
    if (c->lengths) {
        held[n] = read_tensor(ctx, WF_I32, WF_SHAPE(c->n));
        input[n] = wf_input(tape, held[n]);
        n++;
    }
    if (c->state) {
        held[n] = read_tensor(ctx, dtype, WF_SHAPE(c->n, rows, c->hidden));
        state = input[n] = wf_leaf(tape, held[n]);
        n++;
    }
    wf_param *const *params;
    int64_t count;
    WF_EXPECT_OK(wf_layer_params(layer, &count, &params));
    for (int64_t i = 0; i < count; i++) {
        wf_tensor *value = read_tensor(ctx, dtype, wf_param_shape(params[i]));
        WF_EXPECT_OK(wf_tensor_assign(wf_param_value(params[i]), value));
        wf_tensor_free(value);
    }
    wf_var *y = wf_recurrent(layer, input, n, &last);
    compare("y", wf_value(y), most);
    compare("the final state", wf_value(last), most);
    WF_EXPECT_OK(wf_backward(wf_add(wf_sum(wf_mul(y, wf_sigmoid(y))), wf_sum(wf_tanh(last)))));
    compare("dx", wf_grad(input[0]), most);
    if (c->state)
        compare("the gradient of the initial state", wf_grad(state), most);
    for (int64_t i = 0; i < count; i++)
        compare(wf_param_name(params[i]), wf_param_grad(params[i]), most);
    WF_EXPECT_OK(wf_tape_reset(tape));
    for (int i = 0; i < n; i++)
        wf_tensor_free(held[i]);
    wf_layer_free(layer);
    wf_tape_free(tape);
}

int main(int argc, char **argv)
{
    recurrent_case c;
    if (argc < 2 || !(file = fopen(argv[1], "r"))) {
        fprintf(stderr, "torch_recurrent FILE, which tests/outside/torch_recurrent.py writes\n");
        return 2;
    }
    wf_ctx *ref = wf_ctx_new((wf_ctx_opts){.device = "ref", .dtype = WF_F64});
    wf_ctx *cpu = wf_ctx_new((wf_ctx_opts){.device = "cpu", .threads = 1});
    while (fscanf(file, " case %d %d %d %d %d %d %d %d %d %d", &c.gru, &c.levels, &c.both, &c.biases, &c.lengths,
                  &c.state, &c.n, &c.t, &c.in, &c.hidden) == 10) {
        const long at = ftell(file);
        run_case(&c, ref, 1e-11);
        fseek(file, at, SEEK_SET);
        run_case(&c, cpu, 1e-4);
        number++;
    }
    printf("%d cases, %lld differences\n", number, (long long)test_failures());
    fclose(file);
    WF_EXPECT_OK(wf_ctx_free(ref));
    WF_EXPECT_OK(wf_ctx_free(cpu));
    return test_failures() > 0 || number == 0;
}
