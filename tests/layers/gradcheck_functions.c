/* Gradients of every function and loss against central differences, in f64 on `ref`: ranks 0 to 5, both orders of
 * memory, empty tensors, and gradients that are added to what is there. */
#include "core/tape_author.h"
#include "layers/loss.h"
#include "tests/test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define INPUTS   3
#define ELEMENTS 256

/* A function of one, two or many variables. */
typedef struct function {
    wf_var *(*one)(wf_var *x);
    wf_var *(*two)(wf_var *a, wf_var *b);
    wf_var *(*many)(wf_var *const *x);
} function;

static wf_ctx *ctx;
static wf_tape *tape;
static test_rng rng = {2024};

typedef struct problem {
    const char *name;
    function f;
    int n;
    wf_tensor *x[INPUTS];
    double host[INPUTS][ELEMENTS];
    double weight[ELEMENTS]; /* the objective is sum weight y */
} problem;

static const char *described(const problem *p)
{
    static char text[512];
    char shape[WF_SHAPE_TEXT];
    int at = snprintf(text, sizeof text, "%s", p->name);
    for (int i = 0; i < p->n; i++)
        at += snprintf(text + at, sizeof text - (size_t)at, " %s%s", wf_shape_text(p->x[i]->shape, shape),
                       p->x[i]->order == WF_CHANNELS_LAST ? "last" : "");
    return text;
}

/* `use`, where given, becomes x / 2 ahead of the function. */
static wf_var *run(const problem *p, wf_var **x, wf_var **use)
{
    WF_EXPECT_OK(wf_tape_reset(tape));
    WF_EXPECT_OK(wf_tape_set_iteration(tape, 0));
    for (int i = 0; i < p->n; i++) {
        WF_EXPECT_OK(wf_tensor_import(p->x[i], p->host[i], wf_tensor_bytes(p->x[i])));
        x[i] = wf_leaf(tape, p->x[i]);
        if (use)
            use[i] = wf_scale(x[i], 0.5);
    }
    wf_var *y = p->f.one ? p->f.one(x[0]) : p->f.two ? p->f.two(x[0], x[1]) : p->f.many(x);
    WF_EXPECT(y, "%s: %s", described(p), wf_error_message());
    return y;
}

static double objective(const problem *p)
{
    wf_var *x[INPUTS], *y = run(p, x, NULL);
    double host[ELEMENTS], sum = 0;
    WF_EXPECT_OK(wf_tensor_export(wf_value(y), host, wf_tensor_bytes(wf_value(y))));
    for (int64_t i = 0; i < wf_tensor_count(wf_value(y)); i++)
        sum += p->weight[i] * host[i];
    return sum;
}

static void gradient(const problem *p, const wf_var *x, double *host)
{
    const wf_tensor *g = wf_grad(x);
    WF_EXPECT(g && wf_shape_equal(g->shape, wf_var_shape(x)), "%s: no gradient, or not of this shape", described(p));
    if (g)
        WF_EXPECT_OK(wf_tensor_export(g, host, wf_tensor_bytes(g)));
}

static wf_tensor *weights(const problem *p, const wf_var *y)
{
    wf_tensor *w = wf_tensor_new_like(wf_value(y));
    WF_EXPECT_OK(wf_tensor_import(w, p->weight, wf_tensor_bytes(w)));
    return w;
}

/* Checks a function of which each input has a second use, whose gradient comes after or before that of the function. */
static void check_added(const problem *p, bool before, double (*expected)[ELEMENTS])
{
    wf_var *x[INPUTS], *use[INPUTS], *y = run(p, x, before ? NULL : use);
    double got[ELEMENTS] = {0};
    wf_tensor *w = weights(p, y);
    wf_var *total = wf_sum(wf_mul(y, wf_input(tape, w)));
    for (int i = 0; i < p->n; i++)
        total = wf_add(total, wf_sum(before ? wf_scale(x[i], 0.5) : use[i]));
    wf_tensor_free(w);
    WF_EXPECT_OK(wf_backward(total));
    for (int i = 0; i < p->n; i++) {
        gradient(p, x[i], got);
        for (int64_t k = 0; k < wf_tensor_count(p->x[i]); k++)
            WF_EXPECT(fabs(got[k] - 0.5 - expected[i][k]) < 1e-12 * (1 + fabs(got[k])),
                      "%s: input %d, element %lld is %.12g with a use %s, else %.12g", described(p), i, (long long)k,
                      got[k] - 0.5, before ? "behind it" : "ahead of it", expected[i][k]);
    }
}

static void check_problem(problem *p)
{
    static double got[INPUTS][ELEMENTS];
    const double h = 1e-5;
    wf_var *x[INPUTS], *y = run(p, x, NULL);
    wf_tensor *w = weights(p, y);
    WF_EXPECT_OK(wf_backward_from(y, w));
    wf_tensor_free(w);
    for (int i = 0; i < p->n; i++)
        gradient(p, x[i], got[i]);
    for (int i = 0; i < p->n; i++)
        for (int64_t k = 0; k < wf_tensor_count(p->x[i]); k++) {
            const double at = p->host[i][k];
            p->host[i][k] = at + h;
            const double above = objective(p);
            p->host[i][k] = at - h;
            const double slope = (above - objective(p)) / (2 * h);
            p->host[i][k] = at;
            WF_EXPECT(fabs(slope - got[i][k]) < 2e-8 * (1 + fabs(slope)),
                      "%s: input %d, element %lld is %.10g, not %.10g", described(p), i, (long long)k, got[i][k],
                      slope);
        }
    check_added(p, false, got);
    check_added(p, true, got);
}

/* Values keep away from 0, where some functions have a corner. */
static void check(const char *name, function f, int n, const wf_shape *shape, const wf_order *order)
{
    static problem p;
    p = (problem){.name = name, .f = f, .n = n};
    for (int i = 0; i < n; i++) {
        p.x[i] = wf_tensor_new_ordered(ctx, WF_F64, shape[i], order[i]);
        for (int k = 0; k < ELEMENTS; k++) {
            const double v = test_uniform(&rng, 0.05, 1.5);
            p.host[i][k] = test_int(&rng, 0, 1) ? v : -v;
        }
    }
    for (int k = 0; k < ELEMENTS; k++)
        p.weight[k] = test_uniform(&rng, -1, 1);
    check_problem(&p);
    WF_EXPECT_OK(wf_tape_reset(tape));
    for (int i = 0; i < n; i++)
        wf_tensor_free(p.x[i]);
}

static const struct {
    int rank;
    int64_t dim[WF_MAX_RANK];
} shapes[] = {
    {0, {0}},       {1, {5}},          {1, {0}},          {2, {3, 4}},       {2, {0, 3}},         {3, {2, 3, 4}},
    {3, {2, 3, 0}}, {4, {2, 3, 2, 3}}, {4, {3, 1, 2, 2}}, {4, {0, 3, 2, 2}}, {5, {2, 2, 3, 1, 2}}};

enum { SHAPES = sizeof shapes / sizeof *shapes };

static wf_shape shape_of(int i)
{
    return wf_shape_make(shapes[i].rank, shapes[i].dim);
}

static void begin(void)
{
    ctx = wf_ctx_new((wf_ctx_opts){.device = test_device("ref"), .dtype = WF_F64, .seed = 3});
    tape = wf_tape_new(ctx);
}

static void end(void)
{
    WF_EXPECT_OK(wf_tape_reset(tape));
    wf_tape_free(tape);
    WF_EXPECT_OK(wf_ctx_free(ctx));
}

/* Every shape of `least` to `most` dimensions, in both orders where they differ. */
static void check_unary(const char *name, wf_var *(*f)(wf_var *x), int least, int most)
{
    for (int s = 0; s < SHAPES; s++)
        for (int order = WF_ROW_MAJOR; order <= (shapes[s].rank > 2 ? WF_CHANNELS_LAST : WF_ROW_MAJOR); order++)
            if (shapes[s].rank >= least && shapes[s].rank <= most)
                check(name, (function){.one = f}, 1, (wf_shape[]){shape_of(s)}, (wf_order[]){(wf_order)order});
}

static void check_binary(const char *name, wf_var *(*f)(wf_var *a, wf_var *b))
{
    for (int s = 0; s < SHAPES; s++)
        for (int orders = 0; orders < (shapes[s].rank > 2 ? 4 : 1); orders++)
            check(name, (function){.two = f}, 2, (wf_shape[]){shape_of(s), shape_of(s)},
                  (wf_order[]){(wf_order)(orders & 1), (wf_order)(orders >> 1)});
}

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

static wf_var *root(wf_var *x)
{
    return wf_sqrt(wf_add(wf_mul(x, x), wf_softplus(x)));
}

static wf_var *logarithm(wf_var *x)
{
    return wf_log(wf_softplus(wf_scale(x, 2)));
}

static wf_var *power(wf_var *x)
{
    return wf_pow(wf_softplus(x), -1.7);
}

static wf_var *cube(wf_var *x)
{
    return wf_pow(x, 3);
}

static wf_var *clipped(wf_var *x)
{
    return wf_clip(wf_scale(x, 1.0001), -0.7, 0.4);
}

static void functions_of_one(void)
{
    begin();
    check_unary("silu", wf_silu, 0, 5);
    check_unary("gelu_tanh", wf_gelu_tanh, 0, 5);
    check_unary("hard_swish", wf_hard_swish, 0, 5);
    check_unary("selu", wf_selu, 0, 5);
    check_unary("exp", wf_exp, 0, 5);
    check_unary("log", logarithm, 0, 5);
    check_unary("sqrt", root, 0, 5);
    check_unary("pow", power, 0, 5);
    check_unary("cube", cube, 0, 5);
    check_unary("abs", wf_abs, 0, 5);
    check_unary("clip", clipped, 0, 5);
    end();
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

static void check_broadcast(const char *name, wf_var *(*f)(wf_var *a, wf_var *b))
{
    static const struct {
        int rank[2];
        int64_t dim[2][WF_MAX_RANK];
    } pairs[] = {{{2, 1}, {{3, 4}, {4}}},
                 {{1, 2}, {{4}, {3, 4}}},
                 {{2, 0}, {{3, 4}, {0}}},
                 {{2, 2}, {{3, 1}, {1, 4}}},
                 {{4, 4}, {{2, 3, 2, 3}, {1, 3, 1, 1}}},
                 {{4, 3}, {{2, 3, 2, 3}, {3, 1, 3}}},
                 {{3, 3}, {{2, 1, 4}, {1, 3, 1}}},
                 {{2, 1}, {{0, 3}, {3}}},
                 {{2, 1}, {{1, 1}, {1}}},
                 {{4, 1}, {{2, 3, 2, 2}, {1}}},
                 {{5, 3}, {{2, 2, 3, 1, 2}, {3, 4, 1}}}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        for (int orders = 0; orders < 4; orders++) {
            const wf_shape a = wf_shape_make(pairs[i].rank[0], pairs[i].dim[0]);
            const wf_shape b = wf_shape_make(pairs[i].rank[1], pairs[i].dim[1]);
            check(name, (function){.two = f}, 2, (wf_shape[]){a, b},
                  (wf_order[]){a.rank > 2 ? (wf_order)(orders & 1) : WF_ROW_MAJOR,
                               b.rank > 2 ? (wf_order)(orders >> 1) : WF_ROW_MAJOR});
        }
}

/* Divisors keep away from 0, where central differences say little. */
static wf_var *quotient(wf_var *a, wf_var *b)
{
    return wf_div(a, wf_softplus(wf_scale(b, 2)));
}

static void broadcasting(void)
{
    begin();
    check_binary("div", quotient);
    check_broadcast("add", wf_add);
    check_broadcast("sub", wf_sub);
    check_broadcast("mul", wf_mul);
    check_broadcast("div", quotient);
    end();
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
    return wf_bce_logits(x, 1.0);
}

static wf_var *bce_between(wf_var *x)
{
    return wf_bce_logits(x, 0.3);
}

/* The loss keeps what it needs of a target or of labels: these go at once. */
static wf_var *bce_target(wf_var *x)
{
    float host[ELEMENTS];
    wf_tensor *t = wf_tensor_new(ctx, WF_F32, wf_var_shape(x));
    for (int i = 0; i < ELEMENTS; i++)
        host[i] = (float)(i % 4) / 3;
    WF_EXPECT_OK(wf_tensor_import(t, host, wf_tensor_bytes(t)));
    wf_var *y = wf_bce_logits_with(x, t);
    wf_tensor_free(t);
    return y;
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

static wf_var *nll(wf_var *x)
{
    return labelled(wf_nll, x);
}

static wf_var *some(wf_var *logp, const wf_tensor *labels)
{
    return wf_nll_with(logp, labels, (wf_label_opts){.ignores = true, .ignored = 1});
}

static wf_var *nll_of_some(wf_var *x)
{
    return labelled(some, x);
}

static wf_var *cross_entropy(wf_var *x)
{
    return labelled(wf_softmax_cross_entropy, x);
}

static wf_var *some_rows(wf_var *x, const wf_tensor *labels)
{
    return wf_softmax_cross_entropy_with(x, labels, (wf_label_opts){.ignores = true, .ignored = 1});
}

static wf_var *cross_entropy_of_some(wf_var *x)
{
    return labelled(some_rows, x);
}

static void losses(void)
{
    begin();
    check_binary("mse", wf_mse);
    check_binary("l1", wf_l1);
    check_unary("bce_logits 1", bce_one, 0, 5);
    check_unary("bce_logits 0.3", bce_between, 0, 5);
    check_unary("bce_logits_with", bce_target, 0, 5);
    check_unary("nll", nll, 2, 5);
    check_unary("nll of rows that count", nll_of_some, 2, 5);
    check_unary("softmax_cross_entropy", cross_entropy, 2, 5);
    check_unary("softmax_cross_entropy of rows that count", cross_entropy_of_some, 2, 5);
    end();
}

int main(int argc, char **argv)
{
    return test_main(argc, argv,
                     (test_case[]){{"activations", activations},
                                   {"functions_of_one", functions_of_one},
                                   {"arithmetic", arithmetic},
                                   {"broadcasting", broadcasting},
                                   {"shape_changes", shape_changes},
                                   {"concats", concats},
                                   {"losses", losses},
                                   {0}});
}
