/* Gradients of arithmetic with broadcasting, functions of one number, reductions over some dimensions, products of
 * matrices, choices and splits. */
#include "tests/layers/gradcheck_fixture.h"

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

static wf_var *sum_of_last(wf_var *x)
{
    return wf_sum_over(x, WF_DIMS(-1), false);
}

static wf_var *mean_of_two(wf_var *x)
{
    return wf_mean_over(x, WF_DIMS(-1, 0), true);
}

static wf_var *sum_of_first(wf_var *x)
{
    return wf_sum_over(x, WF_DIMS(0), true);
}

static wf_var *max_of_second(wf_var *x)
{
    return wf_max_over(x, WF_DIMS(1), false);
}

static wf_var *max_of_two(wf_var *x)
{
    return wf_max_over(x, WF_DIMS(2, 0), true);
}

static wf_var *softmax_of_two(wf_var *x)
{
    return wf_softmax_over(x, WF_DIMS(-1, 1));
}

static wf_var *log_softmax_of_first(wf_var *x)
{
    return wf_log_softmax_over(x, WF_DIMS(0));
}

/* What is without elements has no largest one. */
static void check_largest(const char *name, wf_var *(*f)(wf_var *x), int least)
{
    for (int s = 0; s < SHAPES; s++)
        for (int order = 0; order <= (shapes[s].rank > 2); order++)
            if (shapes[s].rank >= least && wf_shape_count(shape_of(s)) > 0)
                check(name, (function){.one = f}, 1, (wf_shape[]){shape_of(s)}, (wf_order[]){(wf_order)order});
}

static void over_dimensions(void)
{
    begin();
    check_unary("sum over the last", sum_of_last, 1, 5);
    check_unary("mean over two", mean_of_two, 2, 5);
    check_unary("sum over the first", sum_of_first, 1, 5);
    check_largest("max over the second", max_of_second, 2);
    check_largest("max over two", max_of_two, 3);
    check_unary("softmax over two", softmax_of_two, 3, 5);
    check_unary("log_softmax over the first", log_softmax_of_first, 1, 5);
    end();
}

static wf_var *product_nn(wf_var *a, wf_var *b)
{
    return wf_matmul(a, b, (wf_matmul_opts){0});
}

static wf_var *product_nt(wf_var *a, wf_var *b)
{
    return wf_matmul(a, b, (wf_matmul_opts){.b_transposed = true});
}

static wf_var *product_tn(wf_var *a, wf_var *b)
{
    return wf_matmul(a, b, (wf_matmul_opts){.a_transposed = true});
}

static wf_var *product_tt(wf_var *a, wf_var *b)
{
    return wf_matmul(a, b, (wf_matmul_opts){.a_transposed = true, .b_transposed = true});
}

/* The matrices are [2,3] and [3,4], behind leading dimensions that are equal, missing, repeated, or empty. */
static void products(void)
{
    static const struct {
        const char *name;
        wf_var *(*f)(wf_var *a, wf_var *b);
        bool a, b;
    } forms[] = {{"matmul", product_nn, false, false},
                 {"matmul nt", product_nt, false, true},
                 {"matmul tn", product_tn, true, false},
                 {"matmul tt", product_tt, true, true}};
    static const struct {
        int rank[2];
        int64_t dim[2][3];
    } leads[] = {{{0, 0}, {{0}, {0}}},    {{1, 1}, {{3}, {3}}},       {{2, 0}, {{2, 3}, {0}}}, {{0, 1}, {{0}, {3}}},
                 {{2, 1}, {{2, 3}, {3}}}, {{2, 2}, {{2, 1}, {1, 3}}}, {{1, 1}, {{0}, {0}}},    {{1, 1}, {{1}, {2}}}};
    begin();
    for (size_t f = 0; f < sizeof forms / sizeof *forms; f++)
        for (size_t l = 0; l < sizeof leads / sizeof *leads; l++)
            for (int order = 0; order < 2; order++) {
                wf_shape s[2];
                for (int i = 0; i < 2; i++) {
                    const bool t = i == 0 ? forms[f].a : forms[f].b;
                    const int64_t rows = i == 0 ? 2 : 3, columns = i == 0 ? 3 : 4;
                    s[i] = wf_shape_make(leads[l].rank[i], leads[l].dim[i]);
                    s[i].dim[s[i].rank++] = t ? columns : rows;
                    s[i].dim[s[i].rank++] = t ? rows : columns;
                }
                const wf_order last = order ? WF_CHANNELS_LAST : WF_ROW_MAJOR;
                check(forms[f].name, (function){.two = forms[f].f}, 2, s,
                      (wf_order[]){s[0].rank > 2 ? last : WF_ROW_MAJOR, s[1].rank > 2 ? last : WF_ROW_MAJOR});
            }
    end();
}

/* Every third element of the last dimension, and the first, from a. */
static wf_var *chosen(wf_var *a, wf_var *b)
{
    const wf_shape shape = wf_var_shape(a);
    const int64_t n = shape.rank > 0 ? shape.dim[shape.rank - 1] : 1;
    uint8_t host[ELEMENTS] = {0};
    for (int64_t i = 0; i < n; i += 3)
        host[i] = 1;
    wf_tensor *which = wf_tensor_from_host(ctx, WF_U8, shape.rank > 0 ? WF_SHAPE(n) : wf_shape_scalar(), host);
    wf_var *y = wf_where(wf_input(tape, which), a, b);
    wf_tensor_free(which);
    return y;
}

static wf_var *parts_of_second(wf_var *x)
{
    wf_var *part[2];
    const int64_t whole = wf_var_shape(x).dim[1], length[2] = {whole / 2, whole - whole / 2};
    if (!wf_split(x, 1, 2, length, part))
        return NULL;
    return wf_concat(2, (wf_var *[]){wf_scale(part[1], 2), part[0]}, 1);
}

static wf_var *stacked(wf_var *a, wf_var *b)
{
    wf_var *y = wf_stack(3, (wf_var *[]){a, wf_scale(b, 3), a}, -1);
    return wf_var_shape(y).rank < WF_MAX_RANK ? wf_squeeze(wf_unsqueeze(y, 0), 0) : y;
}

/* Tokens of rank 3 to 5 and the image of them again, each of which is scaled so that a lost one is seen. */
static wf_var *tokens_and_back(wf_var *x)
{
    const wf_shape shape = wf_var_shape(x);
    if (shape.rank < 3 || shape.rank > 5)
        return wf_scale(x, 2);
    wf_shape pixels = {.rank = shape.rank - 2};
    memcpy(pixels.dim, shape.dim + 2, (size_t)pixels.rank * sizeof *pixels.dim);
    return wf_image(wf_silu(wf_tokens(x)), pixels);
}

static void choices(void)
{
    begin();
    check_binary("where", chosen);
    check_unary("split", parts_of_second, 2, 5);
    check_binary("stack", stacked);
    check_unary("tokens", tokens_and_back, 0, 5);
    end();
}

int main(int argc, char **argv)
{
    return test_main(argc, argv,
                     (test_case[]){{"functions_of_one", functions_of_one},
                                   {"broadcasting", broadcasting},
                                   {"over_dimensions", over_dimensions},
                                   {"choices", choices},
                                   {"products", products},
                                   {0}});
}
