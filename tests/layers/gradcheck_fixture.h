/* Gradients of functions of variables against central differences, in f64 on `ref`: ranks 0 to 5, both orders of
 * memory, empty tensors, and gradients that are added to what is there. */
#ifndef WF_TESTS_GRADCHECK_FIXTURE_H
#define WF_TESTS_GRADCHECK_FIXTURE_H

#include "core/tape_author.h"
#include "layers/functions.h"
#include "tests/test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#ifndef INPUTS
#define INPUTS 3
#endif
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
static inline void check_unary(const char *name, wf_var *(*f)(wf_var *x), int least, int most)
{
    for (int s = 0; s < SHAPES; s++)
        for (int order = WF_ROW_MAJOR; order <= (shapes[s].rank > 2 ? WF_CHANNELS_LAST : WF_ROW_MAJOR); order++)
            if (shapes[s].rank >= least && shapes[s].rank <= most)
                check(name, (function){.one = f}, 1, (wf_shape[]){shape_of(s)}, (wf_order[]){(wf_order)order});
}

static inline void check_binary(const char *name, wf_var *(*f)(wf_var *a, wf_var *b))
{
    for (int s = 0; s < SHAPES; s++)
        for (int orders = 0; orders < (shapes[s].rank > 2 ? 4 : 1); orders++)
            check(name, (function){.two = f}, 2, (wf_shape[]){shape_of(s), shape_of(s)},
                  (wf_order[]){(wf_order)(orders & 1), (wf_order)(orders >> 1)});
}

#endif
