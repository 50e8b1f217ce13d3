/* Slots that see arrays as flat: activations, sums, dropout, epilogues, optimizers. */
#include "tests/core/contract.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

static const wf_shape *shapes(int *count)
{
    static wf_shape list[12];
    int n = 0;
    list[n++] = wf_shape_scalar();
    list[n++] = WF_SHAPE(1);
    list[n++] = WF_SHAPE(7);
    list[n++] = WF_SHAPE(3, 33);
    list[n++] = WF_SHAPE(2, 5, 3);
    list[n++] = WF_SHAPE(2, 3, 5, 7);
    list[n++] = WF_SHAPE(3, 16, 9, 9);
    list[n++] = WF_SHAPE(2, 3, 2, 5, 3);
    list[n++] = WF_SHAPE(0, 3, 4, 4);
    list[n++] = WF_SHAPE(2, 33, 17, 15); /* large enough for several threads */
    *count = n;
    return list;
}

typedef struct flat_case {
    wf_shape shape;
    wf_act act;
    wf_binary op;
    double slope, spread, noise;
    bool accumulate, in_place, second, other;
} flat_case;

static void flat_note(run *r, const flat_case *t)
{
    char text[WF_SHAPE_TEXT];
    snprintf(r->note, sizeof r->note,
             "%s act %d slope %g op %d spread %g noise %g accumulate %d in place %d second %d other %d",
             wf_shape_text(t->shape, text), (int)t->act, t->slope, (int)t->op, t->spread, t->noise, t->accumulate,
             t->in_place, t->second, t->other);
}

static wf_order flat_order(wf_shape shape)
{
    return wf_order_default(shape.rank);
}

static void act_body(run *r)
{
    const flat_case *const t = r->args;
    const wf_order order = flat_order(t->shape);
    flat_note(r, t);
    const bool signs = t->act != WF_ACT_LOG && t->act != WF_ACT_POW && t->act != WF_ACT_SQRT;
    const double most = t->act == WF_ACT_EXP ? 2 : t->spread;
    const wf_array y = run_out(r, t->shape, order, false);
    const wf_array x = run_in(r, t->shape, order, signs ? -most : 0.25, most);
    if (t->in_place)
        run_mutable(r);
    run_call(r, r->k->act_forward(
                    r->ctx, &(wf_act_args){.act = t->act, .slope = t->slope, .x = &x, .y = t->in_place ? &x : &y}));
    run_result(r, t->in_place ? &x : &y, 1);
}

/* x and y need not belong together for the derivative to be defined by its formula. */
static void act_backward_body(run *r)
{
    const flat_case *const t = r->args;
    const wf_order order = flat_order(t->shape);
    const bool by_x = wf_act_by_x(t->act), signs = t->act != WF_ACT_LOG && t->act != WF_ACT_POW;
    const double lowest = t->act == WF_ACT_SIGMOID                        ? 0
                          : t->act == WF_ACT_SQRT || t->act == WF_ACT_EXP ? 0.25
                          : t->act == WF_ACT_ELU                          ? -t->slope
                                                                          : -1;
    flat_note(r, t);
    r->grid = t->act == WF_ACT_RELU ? 0.25 : 0;
    const wf_array x = run_in(r, t->shape, order, signs ? -t->spread : 0.25, t->spread);
    const wf_array y = run_in(r, t->shape, order, lowest, 1);
    const wf_array dx = run_out(r, t->shape, order, t->accumulate), dy = run_in(r, t->shape, order, -1, 1);
    if (t->in_place)
        run_mutable(r);
    const wf_array *const xp = by_x || t->other ? &x : NULL, *const yp = !by_x || t->other ? &y : NULL;
    const wf_act_args args = {.act = t->act,
                              .slope = t->slope,
                              .x = xp,
                              .y = yp,
                              .dy = &dy,
                              .dx = t->in_place ? &dy : &dx,
                              .accumulate = t->accumulate};
    run_call(r, r->k->act_backward(r->ctx, &args));
    run_result(r, t->in_place ? &dy : &dx, 2);
}

static void activations(void)
{
    int count;
    const wf_shape *const list = shapes(&count);
    for (int i = 0; i < count; i++)
        for (int act = 0; act < WF_ACTS; act++)
            for (int v = 0; v < 4; v++) {
                const flat_case t = {.shape = list[i],
                                     .act = (wf_act)act,
                                     .slope = act == WF_ACT_ELU ? 1.0 : 0.2,
                                     .spread = v & 1 ? 30 : 2,
                                     .in_place = v == 3,
                                     .accumulate = v == 1,
                                     .other = v == 2};
                contract_check("act_forward", act_body, &t, contract_seed() + (uint64_t)i);
                contract_check("act_backward", act_backward_body, &t, contract_seed() + (uint64_t)i);
            }
}

static void binary_body(run *r)
{
    const flat_case *const t = r->args;
    const wf_order order = flat_order(t->shape);
    flat_note(r, t);
    const wf_array b = run_in(r, t->shape, order, -1, 1), y = run_out(r, t->shape, order, t->accumulate);
    const wf_array a = run_in(r, t->shape, order, -1, 1);
    if (t->in_place)
        run_mutable(r);
    const wf_binary_args args = {.op = t->op,
                                 .alpha = 1.5,
                                 .a = &a,
                                 .beta = -0.75,
                                 .b = t->second ? &b : NULL,
                                 .y = t->in_place ? &a : &y,
                                 .accumulate = t->accumulate};
    run_call(r, r->k->binary(r->ctx, &args));
    run_result(r, t->in_place ? &a : &y, 1);
}

static void binary(void)
{
    int count;
    const wf_shape *const list = shapes(&count);
    for (int i = 0; i < count; i++)
        for (int v = 0; v < 16; v++) {
            const flat_case t = {.shape = list[i],
                                 .op = v & 1 ? WF_BINARY_MUL : WF_BINARY_LINEAR,
                                 .second = v & 2,
                                 .accumulate = v & 4,
                                 .in_place = v & 8};
            contract_check("binary", binary_body, &t, contract_seed());
        }
}

static void dropout_body(run *r)
{
    const flat_case *const t = r->args;
    const wf_order order = flat_order(t->shape);
    flat_note(r, t);
    const wf_array x = run_in(r, t->shape, order, 1, 2), y = run_out(r, t->shape, order, false);
    const wf_random random = run_random(r, t->shape);
    run_call(r, r->k->dropout(r->ctx, t->spread, &random, &x, &y));
    run_result(r, &y, 1);
}

/* Values of x are at least 1, so a mask that differs in one place is seen. */
static void dropout(void)
{
    static const double rates[] = {0, 0.25, 0.3, 0.999};
    int count;
    const wf_shape *const list = shapes(&count);
    for (int i = 0; i < count; i++)
        for (int v = 0; v < 4; v++) {
            const flat_case t = {.shape = list[i], .spread = rates[v]};
            contract_check("dropout", dropout_body, &t, contract_seed() + (uint64_t)v);
        }
}

static void epilogue_body(run *r)
{
    const flat_case *const t = r->args;
    const wf_order order = flat_order(t->shape);
    flat_note(r, t);
    r->grid = 0.25;
    const wf_epilogue e = {.act = t->act, .slope = t->slope, .noise = t->noise, .random = run_random(r, t->shape)};
    const wf_array y = run_out(r, t->shape, order, false), dv = run_out(r, t->shape, order, false);
    const wf_array made = run_in(r, t->shape, order, -1, 1), x = run_in(r, t->shape, order, -1, 1);
    if (t->in_place)
        run_mutable(r);
    const wf_array dy = run_in(r, t->shape, order, -1, 1);
    if (t->in_place)
        run_mutable(r);
    run_call(r, r->k->epilogue_forward(r->ctx, &e, &x, t->in_place ? &x : &y));
    run_call(r, r->k->epilogue_backward(r->ctx, &e, &made, &dy, t->in_place ? &dy : &dv));
    run_result(r, t->in_place ? &x : &y, 2);
    run_result(r, t->in_place ? &dy : &dv, 1);
}

static void epilogue(void)
{
    static const wf_act acts[] = {WF_ACT_NONE, WF_ACT_RELU, WF_ACT_LEAKY_RELU};
    int count;
    const wf_shape *const list = shapes(&count);
    for (int i = 0; i < count; i++)
        for (int v = 0; v < 12; v++) {
            const flat_case t = {
                .shape = list[i], .act = acts[v % 3], .slope = 0.2, .noise = v % 2 ? 0.7 : 0, .in_place = v >= 6};
            contract_check("epilogue", epilogue_body, &t, contract_seed() + (uint64_t)v);
        }
}

/* sum_squares adds to what is there, so its tolerance is relative to the sum. */
static void sum_body(run *r)
{
    const flat_case *const t = r->args;
    const wf_order order = flat_order(t->shape);
    flat_note(r, t);
    const wf_array x = run_in(r, t->shape, order, -1, 1.5), y = run_out(r, wf_shape_scalar(), WF_ROW_MAJOR, false);
    const wf_array out = run_out_of(r, WF_F64, WF_F64, wf_shape_scalar(), WF_ROW_MAJOR, t->accumulate);
    run_call(r, r->k->sum(r->ctx, &x, 0.125, &y));
    run_call(r, r->k->sum_squares(r->ctx, &x, &out, t->accumulate));
    run_result(r, &y, 2);
    run_result(r, &out, r->dtype == WF_BF16 ? 0.01 : r->dtype == WF_F16 ? 0.05 : 1);
}

static void sums(void)
{
    int count;
    const wf_shape *const list = shapes(&count);
    for (int i = 0; i < count; i++)
        for (int v = 0; v < 2; v++) {
            const flat_case t = {.shape = list[i], .accumulate = v};
            contract_check("sum", sum_body, &t, contract_seed());
        }
}

typedef struct optim_case {
    wf_optim_kind kind;
    wf_optim_hyper hyper;
    int segments;
    bool directions; /* in place of updates */
} optim_case;

static void optim_body(run *r)
{
    static const int64_t lengths[] = {1, 33, 0, 20011, 7};
    const optim_case *const t = r->args;
    const bool second = t->kind == WF_OPTIM_ADAM || t->kind == WF_OPTIM_ADAMW || t->kind == WF_OPTIM_RADAM ||
                        t->kind == WF_OPTIM_RMSPROP_SGD;
    const bool first = t->kind == WF_OPTIM_SGD ? t->hyper.momentum != 0 : t->kind != WF_OPTIM_TRUST;
    static const double squares[5][2] = {{2, 0.5}, {0, 1}, {0}, {0.09, 4}, {3, 0}};
    wf_optim_segment segment[5];
    wf_array p[5], s1[5], s2[5], d[5];
    snprintf(r->note, sizeof r->note, "kind %d segments %d momentum %g nesterov %g decay %g scale %g clip %g%s",
             (int)t->kind, t->segments, t->hyper.momentum, t->hyper.nesterov, t->hyper.decay, t->hyper.grad_scale,
             t->hyper.clip_value, t->directions ? " directions" : "");
    const wf_optim_hyper *const hyper = run_bytes(r, &t->hyper, sizeof t->hyper);
    for (int i = 0; i < t->segments; i++) {
        const wf_shape shape = WF_SHAPE(lengths[i]);
        const wf_array g = run_in(r, shape, WF_ROW_MAJOR, -1, 1);
        p[i] = run_out(r, shape, WF_ROW_MAJOR, true);
        s1[i] = run_in(r, shape, WF_ROW_MAJOR, first && !second ? 0 : -1, 1);
        run_mutable(r);
        s2[i] = run_in(r, shape, WF_ROW_MAJOR, 0.01, 1);
        run_mutable(r);
        d[i] = run_out(r, shape, WF_ROW_MAJOR, true);
        segment[i] = (wf_optim_segment){.p = p[i].data,
                                        .g = g.data,
                                        .state1 = first ? s1[i].data : NULL,
                                        .state2 = second ? s2[i].data : NULL,
                                        .n = lengths[i],
                                        .no_decay = i == 3,
                                        .grouped = i != 1,
                                        .lr_scale = 0.25 * i,
                                        .decay = i == 3 ? 0.5 : 0.01 * i,
                                        .direction = t->directions ? d[i].data : NULL,
                                        .squares = run_bytes(r, squares[i], sizeof squares[i])};
    }
    run_call(r, r->k->optim_update(r->ctx, t->kind, hyper, r->dtype, t->segments, segment));
    for (int i = 0; i < t->segments; i++) {
        run_result(r, &p[i], 2);
        run_result(r, &s1[i], 1);
        run_result(r, &s2[i], 1);
        run_result(r, &d[i], 2);
    }
}

static void optimizers(void)
{
    for (int kind = 0; kind <= WF_OPTIM_TRUST; kind++)
        for (int v = 0; v < (kind == WF_OPTIM_TRUST ? 16 : 24); v++) {
            const optim_case t = {.kind = (wf_optim_kind)kind,
                                  .hyper = {.lr = 0.1,
                                            .momentum = v & 1 ? 0.9 : 0,
                                            .beta1 = 0.5,
                                            .beta2 = 0.99,
                                            .eps = 1e-3,
                                            .alpha = 0.9,
                                            .decay = v & 2 ? 0.05 : 0,
                                            .bias1 = 0.5,
                                            .bias2 = v % 3 ? 0.02 : 0.2, /* RADAM: both forms */
                                            .grad_scale = v & 4 ? 0.5 : 1,
                                            .clip_value = v & 8 ? 0.3 : 0,
                                            .nesterov = v & 4 ? 1 : 0,
                                            .sgd = v & 1 ? 0.25 : 1,
                                            .rms = v & 2 ? 0.02 : 0,
                                            .skip = v == 14},
                                  .segments = v == 15 ? 0 : 5,
                                  .directions = v >= 16};
            contract_check("optim_update", optim_body, &t, contract_seed());
        }
}

static void clip_body(run *r)
{
    const double *const given = r->args; /* sum of squares, scale, largest norm */
    const wf_optim_hyper h = {.lr = 3, .grad_scale = given[1], .bias1 = 4};
    snprintf(r->note, sizeof r->note, "squares %g scale %g norm %g", given[0], given[1], given[2]);
    const double *const squares = run_bytes(r, given, sizeof *given);
    wf_optim_hyper *const hyper = run_bytes(r, &h, sizeof h);
    run_call(r, r->k->clip_scale(r->ctx, squares, given[2], hyper));
    run_result_bytes(r, (const double *)(const void *)hyper, sizeof h / sizeof(double), 0.001);
}

static void clip_scale(void)
{
    static const double list[][3] = {{25, 1, 1}, {25, 1, 10}, {0, 1, 1}, {25, 0.5, 1}, {25, 0.125, 1}, {25, 1, 5}};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        contract_check("clip_scale", clip_body, list[i], contract_seed());
}

/* A sum of squares; then what is in wf_loss_scaling, growth to skipped; then whether the update is skipped already. */
static void loss_scale_body(run *r)
{
    const double *const given = r->args;
    const wf_optim_hyper h = {.beta1 = 0.9, .beta2 = 0.99, .bias1 = 4, .grad_scale = 0.5, .step = 9, .skip = given[7]};
    const wf_loss_scaling s = {.growth = given[1],
                               .backoff = given[2],
                               .interval = given[3],
                               .scale = given[4],
                               .good = given[5],
                               .skipped = given[6],
                               .seed = 7};
    snprintf(r->note, sizeof r->note, "squares %g growth %g backoff %g interval %g scale %g good %g skipped %g",
             given[0], given[1], given[2], given[3], given[4], given[5], given[6]);
    const double *const squares = run_bytes(r, given, sizeof *given);
    wf_optim_hyper *const hyper = run_bytes(r, &h, sizeof h);
    wf_loss_scaling *const scaling = run_bytes(r, &s, sizeof s);
    float seed = 0;
    run_call(r, r->k->loss_scale(r->ctx, squares, scaling, hyper));
    run_result_bytes(r, (const double *)(const void *)hyper, sizeof h / sizeof(double), 0.001);
    run_result_bytes(r, (const double *)(const void *)scaling, offsetof(wf_loss_scaling, seed) / sizeof(double), 0.001);
    WF_EXPECT_OK(r->k->to_host(r->ctx, &seed, &scaling->seed, sizeof seed));
    double scale = 0;
    WF_EXPECT_OK(r->k->to_host(r->ctx, &scale, &scaling->scale, sizeof scale));
    WF_EXPECT((double)seed == (given[7] != 0 ? 7 : scale), "seed %g, scale %g", seed, scale);
}

static void loss_scale(void)
{
    static const double list[][8] = {
        {25, 2, 0.5, 3, 65536, 0, 0},  {25, 2, 0.5, 3, 65536, 2, 4},    {INFINITY, 2, 0.5, 3, 65536, 2, 4},
        {NAN, 2, 0.25, 1, 8, 0, 0},    {0, 2, 0.5, 1, 0x1p100, 0, 1},   {NAN, 2, 0.5, 1, 0x1p-100, 0, 0},
        {1e300, 1, 0.5, 2, 0.5, 7, 8}, {25, 2, 0.5, 1, 65536, 0, 4, 1}, {NAN, 2, 0.5, 1, 65536, 0, 4, 1},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        contract_check("loss_scale", loss_scale_body, list[i], contract_seed());
}

/* Sums of a trailer over three ranks, some of which compare draws. */
typedef struct verdict_case {
    double weight, sharded, local, parts, overflow, changed, ranks, compared, bit, scale, skip;
} verdict_case;

static void fill_trailer(double trailer[WF_TRAILER], const verdict_case *c)
{
    memset(trailer, 0, WF_TRAILER * sizeof *trailer);
    trailer[WF_TRAILER_LOSS] = NAN;
    trailer[WF_TRAILER_WEIGHT] = c->weight;
    trailer[WF_TRAILER_SHARDED] = c->sharded;
    trailer[WF_TRAILER_LOCAL] = c->local;
    trailer[WF_TRAILER_PARTS] = c->parts;
    trailer[WF_TRAILER_OVERFLOW] = c->overflow;
    trailer[WF_TRAILER_CHANGED] = c->changed;
    trailer[WF_TRAILER_RANKS] = c->ranks;
    trailer[WF_TRAILER_COMPARED] = c->compared;
    trailer[WF_TRAILER_DRAWS] = c->compared;
    trailer[WF_TRAILER_DRAWS + WF_DRAWS_BITS - 1] = c->bit;
}

static void expect_verdict(wf_ctx *ctx, const verdict_case *c, bool wide)
{
    double trailer[WF_TRAILER];
    float narrow[WF_TRAILER];
    wf_optim_hyper h = {.lr = 3, .grad_scale = 0.5};
    void *sums, *hyper;
    fill_trailer(trailer, c);
    for (int i = 0; i < WF_TRAILER; i++)
        narrow[i] = (float)trailer[i];
    WF_EXPECT_OK(wf_pool_take(ctx, sizeof trailer, &sums));
    WF_EXPECT_OK(wf_pool_take(ctx, sizeof h, &hyper));
    WF_EXPECT_OK(ctx->k->to_device(ctx, sums, wide ? (const void *)trailer : narrow,
                                   WF_TRAILER * (wide ? sizeof *trailer : sizeof *narrow)));
    WF_EXPECT_OK(ctx->k->to_device(ctx, hyper, &h, sizeof h));
    WF_EXPECT_OK(ctx->k->step_verdict(ctx, sums, wide ? WF_F64 : WF_F32, 3, hyper));
    WF_EXPECT_OK(ctx->k->to_host(ctx, &h, hyper, sizeof h));
    WF_EXPECT(h.skip == c->skip && h.grad_scale == (c->skip != 0 ? 0.5 : c->scale) && h.lr == 3,
              "weight %g, kinds %g %g %g, overflow %g, changed %g, ranks %g, bit %g of %g: skip %g, scale %g",
              c->weight, c->sharded, c->local, c->parts, c->overflow, c->changed, c->ranks, c->bit, c->compared, h.skip,
              h.grad_scale);
    wf_pool_give(ctx, sums, sizeof trailer);
    wf_pool_give(ctx, hyper, sizeof h);
}

static void step_verdict(void)
{
    static const verdict_case list[] = {
        {.weight = 3, .local = 2, .ranks = 3, .scale = 1 / 3.0},
        {.weight = 3, .parts = 3, .ranks = 3, .scale = 1 / 3.0},
        {.weight = 0, .local = 3, .ranks = 3, .scale = 1},
        {.weight = 0, .sharded = 3, .ranks = 3, .compared = 3, .bit = 3, .scale = 1},
        {.ranks = 3, .scale = 1},
        {.weight = 3, .local = 3, .ranks = 2, .skip = 1},
        {.weight = 3, .local = 3, .ranks = NAN, .skip = 1},
        {.weight = 3, .local = 2, .ranks = 3, .changed = 1, .skip = 1},
        {.weight = 3, .local = 3, .ranks = 3, .overflow = 1, .skip = 1},
        {.weight = 3, .local = 2, .sharded = 1, .ranks = 3, .skip = 1},
        {.weight = 3, .parts = 2, .local = 1, .ranks = 3, .skip = 1},
        {.weight = 3, .parts = 2, .sharded = 1, .ranks = 3, .skip = 1},
        {.weight = 3, .local = 3, .ranks = 3, .compared = 3, .bit = 2, .skip = 1},
        {.weight = 3, .local = 3, .ranks = 3, .compared = 2, .bit = 1, .skip = 1},
    };
    for (int device = 0; device < 2; device++) {
        wf_ctx *ctx = wf_ctx_new((wf_ctx_opts){.device = device ? test_device("cpu") : "ref"});
        for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
            expect_verdict(ctx, &list[i], false);
            expect_verdict(ctx, &list[i], true);
        }
        wf_ctx_free(ctx);
    }
}

/* --- gates of recurrent cells --------------------------------------------------------------------------------------
 */

typedef struct gates_case {
    wf_cell cell;
    int64_t n, size;
    bool biases, wide, lengths;
} gates_case;

static wf_array wide_array(run *r, wf_shape shape, bool input, bool keep)
{
    if (input)
        return run_in_of(r, run_wide(r), run_wide_round(r), shape, ROW, -2, 2);
    return run_out_of(r, run_wide(r), run_wide_round(r), shape, ROW, keep);
}

/* Lengths 0, 1, 2, ... in turn: at step 2 two of five samples take part. */
static wf_array lengths_of(run *r, int64_t n)
{
    int32_t host[64];
    for (int64_t i = 0; i < n && i < 64; i++)
        host[i] = (int32_t)(i % 5);
    wf_array a = {.dtype = WF_I32, .order = ROW, .shape = WF_SHAPE(n)};
    a.data = run_bytes(r, host, (size_t)n * sizeof *host);
    return a;
}

static void gates_body(run *r)
{
    const gates_case *const t = r->args;
    const bool lstm = t->cell == WF_CELL_LSTM;
    const int64_t width = wf_cell_gates(t->cell) * t->size;
    const wf_shape rows = WF_SHAPE(t->n, width), states = WF_SHAPE(t->n, t->size), column = WF_SHAPE(width);
    snprintf(r->note, sizeof r->note, "%s n %lld size %lld biases %d wide %d lengths %d", lstm ? "lstm" : "gru",
             (long long)t->n, (long long)t->size, t->biases, t->wide, t->lengths);
    const wf_array input = wide_array(r, rows, true, false), recurrent = wide_array(r, rows, true, false);
    const wf_array bias = t->wide ? wide_array(r, column, true, false) : run_in(r, column, ROW, -1, 1);
    const wf_array other = t->wide ? wide_array(r, column, true, false) : run_in(r, column, ROW, -1, 1);
    const wf_array cell = wide_array(r, states, true, false), before = run_in(r, states, ROW, -1, 1);
    const wf_array dy = run_in(r, states, ROW, -1, 1), lengths = lengths_of(r, t->n);
    const wf_array gates = run_out(r, rows, ROW, false), kept = wide_array(r, states, false, false);
    const wf_array h = run_out(r, states, ROW, false), y = run_out(r, states, ROW, false);
    const wf_array dh = wide_array(r, states, false, true), dcell = wide_array(r, states, false, true);
    const wf_array dinput = run_out(r, rows, ROW, false), drecurrent = run_out(r, rows, ROW, false);
    wf_gates_args args = {.cell = t->cell,
                          .step = 2,
                          .lengths = t->lengths ? &lengths : NULL,
                          .input = &input,
                          .recurrent = &recurrent,
                          .bias = t->biases ? &bias : NULL,
                          .recurrent_bias = t->biases ? &other : NULL,
                          .gates = &gates,
                          .kept = &kept,
                          .cell_before = lstm ? &cell : NULL,
                          .before = &before,
                          .h = &h,
                          .y = &y};
    run_call(r, r->k->gates_forward(r->ctx, &args));
    run_result(r, &gates, 2);
    run_result(r, &kept, 4);
    run_result(r, &h, 4);
    run_result(r, &y, 4);
    args.dy = &dy;
    args.dh = &dh;
    args.dcell = lstm ? &dcell : NULL;
    args.dinput = &dinput;
    args.drecurrent = lstm ? NULL : &drecurrent;
    run_call(r, r->k->gates_backward(r->ctx, &args));
    run_result(r, &dinput, 16);
    run_result(r, &dh, 16);
    if (lstm)
        run_result(r, &dcell, 16);
    else
        run_result(r, &drecurrent, 16);
}

static void gates(void)
{
    static const int64_t list[][2] = {{1, 1}, {3, 5}, {5, 64}, {9, 257}, {7, 1025}, {0, 4}, {4, 0}};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        for (int v = 0; v < 8; v++)
            contract_check("gates", gates_body,
                           &(gates_case){.cell = v & 1 ? WF_CELL_GRU : WF_CELL_LSTM,
                                         .n = list[i][0],
                                         .size = list[i][1],
                                         .biases = v & 2,
                                         .wide = v % 3 == 0,
                                         .lengths = v & 4},
                           contract_seed() + i);
}

int main(int argc, char **argv)
{
    return contract_main(argc, argv,
                         (test_case[]){{"activations", activations},
                                       {"binary", binary},
                                       {"dropout", dropout},
                                       {"epilogue", epilogue},
                                       {"gates", gates},
                                       {"sums", sums},
                                       {"optimizers", optimizers},
                                       {"clip_scale", clip_scale},
                                       {"loss_scale", loss_scale},
                                       {"step_verdict", step_verdict},
                                       {0}});
}
