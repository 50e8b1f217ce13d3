/* Convolutions and products of the sizes that networks have, where a device takes its fastest forms: against ref in
 * f64, by the norm of the difference over the norm. On a GPU f32 is judged as tf32 unless WEFT_TF32=0. */
#include "core/config_author.h"
#include "tests/core/contract.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MOST_RESULTS = 4 };

typedef struct size_case {
    int nd;
    int64_t n, c, f, groups, length, kernel, stride, dilation, pad;
} size_case;

static const size_case convolutions[] = {
    {2, 4, 3, 64, 1, 32, 3, 1, 1, 1},                                       /* the first layer */
    {2, 4, 64, 64, 1, 16, 3, 1, 1, 1},                                      /* VGG */
    {2, 4, 64, 128, 1, 16, 4, 2, 1, 1}, {2, 4, 128, 64, 1, 16, 1, 1, 1, 0}, /* DCGAN; scores */
    {2, 2, 64, 32, 1, 16, 2, 2, 1, 0},  {2, 2, 64, 64, 2, 16, 3, 1, 2, 2},  /* up and down a U-Net; groups, dilation */
    {2, 3, 63, 65, 1, 9, 3, 1, 1, 1},                                       /* nothing is a multiple of 8 */
    {3, 1, 32, 32, 1, 12, 3, 1, 1, 1},  {3, 1, 16, 32, 1, 12, 2, 2, 1, 0},  {1, 8, 64, 64, 1, 200, 5, 1, 1, 2}};

/* Arrays that came out, one after another, and the first number of each. */
typedef struct parts {
    int count;
    int64_t at[MOST_RESULTS + 1];
} parts;

static void hand_over(run *r, parts *p, const wf_array *a)
{
    run_result(r, a, 0);
    p->at[++p->count] = r->results;
}

static wf_shape shape_of(const size_case *t, int64_t n, int64_t c, int64_t length)
{
    int64_t dim[5] = {n, c, length, length, length};
    return wf_shape_make(t->nd + 2, dim);
}

static void convolve(run *r, const size_case *t, parts *p)
{
    const int64_t out = (t->length + 2 * t->pad - t->dilation * (t->kernel - 1) - 1) / t->stride + 1;
    const wf_epilogue leaky = {.act = WF_ACT_LEAKY_RELU, .slope = 0.2};
    wf_conv_geom g = {.nd = t->nd, .groups = t->groups};
    for (int d = 0; d < t->nd; d++) {
        g.kernel[d] = t->kernel;
        g.stride[d] = t->stride;
        g.dilation[d] = t->dilation;
        g.pad_lo[d] = g.pad_hi[d] = t->pad;
    }
    const wf_shape xs = shape_of(t, t->n, t->c, t->length), ys = shape_of(t, t->n, t->f, out),
                   ws = shape_of(t, t->f, t->c / t->groups, t->kernel);
    const wf_array x = run_in(r, xs, LAST, -1, 1), w = run_in(r, ws, LAST, -1, 1), dy = run_in(r, ys, LAST, -1, 1);
    const wf_array bias = run_in(r, WF_SHAPE(t->f), ROW, -1, 1);
    const wf_array y = run_out(r, ys, LAST, false), dx = run_out(r, xs, LAST, false), dw = run_out(r, ws, LAST, false),
                   db = run_out(r, WF_SHAPE(t->f), ROW, false);
    run_call(r, r->k->conv_forward(
                    r->ctx, &(wf_conv_args){.geom = &g, .x = &x, .w = &w, .bias = &bias, .epilogue = &leaky, .y = &y}));
    run_call(r, r->k->conv_backward_data(r->ctx, &(wf_conv_args){.geom = &g, .y = &dy, .w = &w, .x = &dx}));
    run_call(r,
             r->k->conv_backward_filter(r->ctx, &(wf_conv_args){.geom = &g, .x = &x, .y = &dy, .w = &dw, .bias = &db}));
    hand_over(r, p, &y);
    hand_over(r, p, &dx);
    hand_over(r, p, &dw);
    hand_over(r, p, &db);
}

/* x [n,c] and weights [f,c], and the two gradients. */
static void multiply(run *r, const size_case *t, parts *p)
{
    const wf_shape xs = WF_SHAPE(t->n, t->c), ws = WF_SHAPE(t->f, t->c), ys = WF_SHAPE(t->n, t->f);
    const wf_array x = run_in(r, xs, ROW, -1, 1), w = run_in(r, ws, ROW, -1, 1), dy = run_in(r, ys, ROW, -1, 1);
    const wf_array bias = run_in(r, WF_SHAPE(t->f), ROW, -1, 1);
    const wf_array y = run_out(r, ys, ROW, false), dx = run_out(r, xs, ROW, false), dw = run_out(r, ws, ROW, true);
    run_call(r,
             r->k->matmul(r->ctx, &(wf_matmul_args){.a = &x, .b = &w, .b_transposed = true, .bias = &bias, .c = &y}));
    run_call(r, r->k->matmul(r->ctx, &(wf_matmul_args){.a = &dy, .b = &w, .c = &dx}));
    run_call(r, r->k->matmul(r->ctx,
                             &(wf_matmul_args){.a = &dy, .a_transposed = true, .b = &x, .c = &dw, .accumulate = true}));
    hand_over(r, p, &y);
    hand_over(r, p, &dx);
    hand_over(r, p, &dw);
}

static double most_of(wf_dtype dtype, const wf_ctx *ctx)
{
    const bool tf32 = wf_config_get()->tf32 && !ctx->k->host;
    return dtype == WF_F32 ? (tf32 ? 1e-3 : 2e-5) : dtype == WF_F16 ? 1e-3 : 5e-3;
}

typedef void (*sized)(run *r, const size_case *t, parts *p);

static run perform(wf_ctx *ctx, wf_dtype dtype, wf_dtype round, sized body, const size_case *t, parts *p)
{
    run r = run_on(ctx, dtype);
    r.round = round;
    *p = (parts){0};
    body(&r, t, p);
    return r;
}

static double relative_error(const double *a, const double *b, int64_t n)
{
    double difference = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        difference += (a[i] - b[i]) * (a[i] - b[i]);
        size += b[i] * b[i];
    }
    return sqrt(difference / size);
}

static void check(const char *what, sized body, const size_case *t)
{
    static const wf_dtype types[] = {WF_F32, WF_BF16, WF_F16};
    static const char *const result[] = {"output", "input's gradient", "weights' gradient", "bias's gradient"};
    for (int i = 0; i < 3; i++) {
        parts p, q;
        run want = perform(contract_ref(), WF_F64, types[i], body, t, &p);
        run got = perform(contract_device(), types[i], types[i], body, t, &q);
        const double most = most_of(types[i], got.ctx);
        for (int k = 0; k < p.count; k++) {
            const double d = relative_error(got.value + p.at[k], want.value + p.at[k], p.at[k + 1] - p.at[k]);
            WF_EXPECT(d < most, "%s in %s, %d-d %lld -> %lld length %lld kernel %lld: %s is %.2g off, should be %.2g",
                      what, wf_dtype_name(types[i]), t->nd, (long long)t->c, (long long)t->f, (long long)t->length,
                      (long long)t->kernel, result[k], d, most);
        }
        run_free(&want);
        run_free(&got);
    }
}

static void convolution(void)
{
    for (size_t i = 0; i < sizeof convolutions / sizeof *convolutions; i++)
        check("convolution", convolve, &convolutions[i]);
}

static void product(void)
{
    static const size_case products[] = {
        {.n = 128, .c = 512, .f = 256}, {.n = 64, .c = 100, .f = 1024}, {.n = 33, .c = 515, .f = 1}};
    for (size_t i = 0; i < sizeof products / sizeof *products; i++)
        check("product", multiply, &products[i]);
}

int main(int argc, char **argv)
{
    return contract_main(argc, argv, (test_case[]){{"convolution", convolution}, {"product", product}, {0}});
}
