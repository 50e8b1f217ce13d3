/* Folds: every operation, with inputs that are repeated and sums over every set of dimensions, in both orders of
 * memory. And the largest elements of rows, and rows by their numbers. */
#include "tests/core/contract.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct fold_case {
    wf_shape shape;
    wf_fold_op op;
    unsigned repeated[3], folded; /* sets of dimensions: of a, b and c, and of y */
    wf_order order;
    bool accumulate, one, mask, wide, in_place;
} fold_case;

static wf_shape without(wf_shape shape, unsigned dims)
{
    for (int d = 0; d < shape.rank; d++)
        if (dims >> d & 1)
            shape.dim[d] = 1;
    return shape;
}

static wf_strided view(const wf_array *a, wf_shape whole, unsigned dims)
{
    wf_strided v = wf_array_strided(a);
    for (int d = 0; d < whole.rank; d++) {
        v.dim[d] = whole.dim[d];
        v.stride[d] = dims >> d & 1 ? 0 : v.stride[d];
    }
    return v;
}

static wf_array mask_of(run *r, wf_shape shape, wf_order order)
{
    double value[8192];
    for (int64_t i = 0; i < wf_shape_count(shape); i++)
        value[i] = (double)(test_uniform(&r->rng, 0, 1) < 0.5 ? 0 : 1 + i % 3);
    return run_array(r, WF_U8, shape, order, value);
}

static double terms_of(const fold_case *t)
{
    double terms = 1;
    for (int d = 0; d < t->shape.rank; d++)
        terms *= t->folded >> d & 1 ? (double)t->shape.dim[d] : 1;
    return terms;
}

static void fold_body(run *r)
{
    const fold_case *const t = r->args;
    const bool signs = t->op != WF_FOLD_DIV && t->op != WF_FOLD_MULDIV;
    char text[WF_SHAPE_TEXT];
    snprintf(r->note, sizeof r->note,
             "%s op %d repeated %x %x %x folded %x %s accumulate %d one %d mask %d wide %d in place %d",
             wf_shape_text(t->shape, text), (int)t->op, t->repeated[0], t->repeated[1], t->repeated[2], t->folded,
             t->order == WF_ROW_MAJOR ? "rows" : "last", t->accumulate, t->one, t->mask, t->wide, t->in_place);
    const wf_shape as = without(t->shape, t->repeated[0]), bs = without(t->shape, t->repeated[1]),
                   cs = without(t->shape, t->repeated[2]), ys = without(t->shape, t->folded);
    /* y lies in the other order than its inputs: no step of one is taken for one of the other. */
    const wf_order other = t->order == WF_ROW_MAJOR && ys.rank > 2 ? WF_CHANNELS_LAST : WF_ROW_MAJOR;
    const wf_array c = t->mask ? mask_of(r, cs, t->order) : run_in(r, cs, t->order, 0.5, 1.5);
    const wf_array b = run_in(r, bs, t->order, signs ? -1 : 0.5, 1.5);
    const wf_array y = run_out_of(r, t->wide ? run_wide(r) : r->dtype, t->wide ? run_wide_round(r) : r->round, ys,
                                  other, t->accumulate);
    const wf_array a = run_in(r, as, t->order, -1, 1);
    if (t->in_place)
        run_mutable(r);
    const wf_strided av = view(&a, t->shape, t->repeated[0]), bv = view(&b, t->shape, t->repeated[1]);
    const wf_strided cv = view(&c, t->shape, t->repeated[2]), yv = view(&y, t->shape, t->folded);
    const bool third = t->op == WF_FOLD_MULDIV || t->op == WF_FOLD_WHERE || t->op == WF_FOLD_PRELU_X;
    const wf_fold_args args = {.op = t->op,
                               .alpha = 1.5,
                               .beta = -0.75,
                               .a = t->op == WF_FOLD_WHERE && t->one && t->accumulate ? NULL : &av,
                               .b = t->one && !(t->op == WF_FOLD_WHERE && t->accumulate) ? NULL : &bv,
                               .c = third ? &cv : NULL,
                               .y = t->in_place ? &av : &yv,
                               .accumulate = t->accumulate};
    run_call(r, r->k->fold(r->ctx, &args));
    run_result(r, t->in_place ? &a : &y, 4 + terms_of(t));
}

static wf_shape shape_of(int i)
{
    switch (i) {
    case 0:
        return wf_shape_scalar();
    case 1:
        return WF_SHAPE(5);
    case 2:
        return WF_SHAPE(3, 33);
    case 3:
        return WF_SHAPE(2, 5, 3);
    case 4:
        return WF_SHAPE(2, 3, 5, 7);
    case 5:
        return WF_SHAPE(2, 3, 2, 5, 3);
    case 6:
        return WF_SHAPE(2, 1, 3, 2, 2, 3);
    case 7:
        return WF_SHAPE(3, 0, 2);
    default:
        return WF_SHAPE(4, 33, 8, 6);
    }
}

static void folds(void)
{
    test_rng rng = {contract_seed()};
    for (int i = 0; i < 9; i++)
        for (int op = 0; op < WF_FOLD_OPS; op++)
            for (int v = 0; v < 8; v++) {
                fold_case t = {.shape = shape_of(i), .op = (wf_fold_op)op, .accumulate = v & 1, .wide = v == 4};
                for (int o = 0; o < 3; o++)
                    t.repeated[o] = v < 2 ? 0 : (unsigned)test_uniform(&rng, 0, 64);
                t.folded = v == 0 ? 0 : (unsigned)test_uniform(&rng, 0, 64);
                t.order = t.shape.rank > 2 && v & 2 ? WF_CHANNELS_LAST : WF_ROW_MAJOR;
                t.mask = op == WF_FOLD_WHERE && v & 4;
                t.one = (op == WF_FOLD_LINEAR || op == WF_FOLD_WHERE) && v >= 5;
                t.in_place = v == 0 && op == WF_FOLD_LINEAR;
                contract_check("fold", fold_body, &t, contract_seed() + (uint64_t)(8 * i + v));
            }
}

/* Large enough for parts of sums and for several chunks: over leading, trailing, middle and all dimensions. */
static void large_folds(void)
{
    const unsigned sets[] = {0, 0x1, 0x2, 0x3, 0x4, 0x5, 0x6, 0x7};
    for (int i = 0; i < 3; i++)
        for (unsigned s = 0; s < 8; s++) {
            const fold_case t = {.shape = i == 0   ? WF_SHAPE(70, 5, 300)
                                          : i == 1 ? WF_SHAPE(300, 70, 3)
                                                   : WF_SHAPE(3, 2, 9000),
                                 .op = s & 1 ? WF_FOLD_MUL : WF_FOLD_LINEAR,
                                 .repeated = {0, sets[7 - s], 0},
                                 .folded = sets[s],
                                 .order = WF_ROW_MAJOR};
            contract_check("fold", fold_body, &t, contract_seed() + s);
        }
}

typedef struct most_case {
    wf_shape shape;
    bool equal, indices_alone;
} most_case;

static void most_body(run *r)
{
    const most_case *const t = r->args;
    char text[WF_SHAPE_TEXT];
    snprintf(r->note, sizeof r->note, "%s equal %d indices alone %d", wf_shape_text(t->shape, text), t->equal,
             t->indices_alone);
    r->grid = t->equal ? 0.5 : 0;
    const wf_shape rows = WF_SHAPE(t->shape.dim[0]);
    const wf_array x = run_in(r, t->shape, ROW, -2, 2), y = run_out(r, rows, ROW, false);
    const wf_array index = run_array(r, WF_I64, rows, ROW, NULL);
    const wf_array dy = run_in(r, rows, ROW, -1, 1), dx = run_out(r, t->shape, ROW, false);
    run_call(r, r->k->row_most(r->ctx, &x, t->indices_alone ? NULL : &y, &index));
    run_call(r, r->k->row_most_backward(r->ctx, &index, &dy, &dx));
    if (!t->indices_alone)
        run_result(r, &y, 0);
    run_result(r, &index, 0);
    run_result(r, &dx, 0);
}

static void largest(void)
{
    const int64_t sides[][2] = {{1, 1}, {7, 5}, {3, 33}, {300, 3}, {40, 700}, {2, 5000}, {0, 4}};
    for (size_t i = 0; i < sizeof sides / sizeof *sides; i++)
        for (int v = 0; v < 3; v++) {
            const most_case t = {WF_SHAPE(sides[i][0], sides[i][1]), v > 0, v == 2};
            contract_check("row_most", most_body, &t, contract_seed() + i);
        }
}

static void known_most_body(run *r)
{
    const wf_array x = run_array(r, r->dtype, WF_SHAPE(3, 4), ROW, LIST(1, 5, 5, 2, -3, -2, NAN, 9, -7, -7, -7, -7));
    const wf_array index = run_array(r, WF_I64, WF_SHAPE(3), ROW, NULL);
    run_call(r, r->k->row_most(r->ctx, &x, NULL, &index));
    expect(r, "places", &index, LIST(1, 2, 0));
}
BOTH(known_most_body)

typedef struct take_case {
    int64_t rows, width, places;
    int64_t first, whole;
    wf_dtype index;
    bool ignores, accumulate, wide;
} take_case;

/* Many places take one row; some take rows that the table does not have, and with `ignores` some take none. */
static wf_array numbers_of(run *r, const take_case *t)
{
    double value[4096];
    for (int64_t i = 0; i < t->places; i++) {
        const int64_t any = test_int(&r->rng, 0, (int)t->whole - 1), few = any % (1 + t->whole / 8);
        value[i] = (double)(t->ignores && i % 5 == 0 ? t->first + 1 : i % 2 ? few : any);
    }
    return run_array(r, t->index, WF_SHAPE(t->places), ROW, value);
}

static void take_body(run *r)
{
    const take_case *const t = r->args;
    snprintf(r->note, sizeof r->note, "%d rows of %d from %d of %d, %d places of %s, ignores %d accumulate %d wide %d",
             (int)t->rows, (int)t->width, (int)t->first, (int)t->whole, (int)t->places, wf_dtype_name(t->index),
             t->ignores, t->accumulate, t->wide);
    const wf_shape table = WF_SHAPE(t->rows, t->width), rows = WF_SHAPE(t->places, t->width);
    const wf_array x = run_in(r, table, ROW, -2, 2), index = numbers_of(r, t), y = run_out(r, rows, ROW, false);
    const wf_array dy = run_in(r, rows, ROW, -1, 1);
    const wf_array dx = t->wide ? run_out_of(r, run_wide(r), run_wide_round(r), table, ROW, t->accumulate)
                                : run_out(r, table, ROW, t->accumulate);
    wf_take_args args = {.table = &x,
                         .index = &index,
                         .y = &y,
                         .first = t->first,
                         .whole = t->whole,

                         .ignored = t->ignores ? t->first + 1 : WF_NONE_IGNORED};
    run_call(r, r->k->take_forward(r->ctx, &args));
    args.table = &dx;
    args.y = &dy;
    args.accumulate = t->accumulate;
    run_call(r, r->k->take_backward(r->ctx, &args));
    run_result(r, &y, 0);
    run_result(r, &dx, sqrt((double)t->places + 1));
}

static void takes(void)
{
    static const take_case cases[] = {
        {5, 7, 40, 0, 5, WF_I32, false, false, false},   {1, 1, 3, 0, 1, WF_U8, false, true, false},
        {40, 3, 300, 20, 90, WF_I64, true, false, true}, {17, 33, 100, 3, 20, WF_U8, true, true, false},
        {300, 5, 65, 0, 300, WF_I64, false, true, true}, {4, 2100, 9, 2, 6, WF_I32, false, true, false},
        {6, 3, 0, 0, 6, WF_I32, false, false, false},    {6, 0, 5, 0, 6, WF_I32, false, false, false},
        {0, 4, 5, 6, 9, WF_I64, true, false, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        contract_check("take", take_body, &cases[i], contract_seed() + i);
}

static void known_take_body(run *r)
{
    const wf_array x = run_array(r, r->dtype, WF_SHAPE(3, 2), ROW, LIST(1, 2, 3, 4, 5, 6));
    const wf_array index = run_array(r, WF_I32, WF_SHAPE(2, 2), ROW, LIST(2, 0, 9, 2));
    const wf_array y = run_array(r, r->dtype, WF_SHAPE(2, 2, 2), ROW, NULL);
    const wf_array dx = run_array(r, r->dtype, WF_SHAPE(3, 2), ROW, LIST(100, 200, 300, 400, 500, 600));
    wf_take_args args = {.table = &x, .index = &index, .y = &y, .whole = 3, .ignored = 9};
    run_call(r, r->k->take_forward(r->ctx, &args));
    expect(r, "rows", &y, LIST(5, 6, 1, 2, 0, 0, 5, 6));
    args.table = &dx;
    args.accumulate = true;
    run_call(r, r->k->take_backward(r->ctx, &args));
    expect(r, "sums of rows", &dx, LIST(101, 202, 300, 400, 510, 612));
}
BOTH(known_take_body)

/* Bad numbers are an error of the call, or of the next one that reads a number, and of that alone. */
static void refuse_number(wf_ctx *of, double bad, const char *says)
{
    run r = run_on(of, WF_F32);
    const wf_array x = run_array(&r, WF_F32, WF_SHAPE(3, 2), ROW, LIST(1, 2, 3, 4, 5, 6));
    const wf_array y = run_array(&r, WF_F32, WF_SHAPE(2, 2), ROW, LIST(0, 0, 0, 0));
    const wf_array index = run_array(&r, WF_I64, WF_SHAPE(2), ROW, LIST(1, bad));
    float host[4];
    const wf_take_args args = {.table = &x, .index = &index, .y = &y, .whole = 3, .ignored = WF_NONE_IGNORED};
    wf_status status = r.k->take_forward(r.ctx, &args);
    if (status == WF_OK)
        status = r.k->to_host(r.ctx, host, y.data, sizeof host);
    WF_EXPECT(status == WF_ERR_ARGUMENT && strstr(wf_error_message(), says), "%s: %s", r.k->name, wf_error_message());
    wf_error_clear();
    WF_EXPECT_OK(r.k->to_host(r.ctx, host, y.data, sizeof host));
    run_free(&r);
}

static void wrong_numbers(void)
{
    wf_ctx *const contexts[] = {contract_ref(), contract_device()};
    for (int i = 0; i < 2; i++) {
        refuse_number(contexts[i], -7, "index -7 in place 1 is outside [0, 3)");
        refuse_number(contexts[i], 3, "index 3 in place 1 is outside [0, 3)");
        /* The number that stands for none ignored is one like others. */
        refuse_number(contexts[i], (double)INT64_MIN, "index -9223372036854775808 in place 1 is outside [0, 3)");
    }
}

static void known_body(run *r)
{
    const wf_array a = run_array(r, r->dtype, WF_SHAPE(2, 3), ROW, LIST(1, 2, 3, 4, 5, 6));
    const wf_array b = run_array(r, r->dtype, WF_SHAPE(3), ROW, LIST(1, 10, 100));
    const wf_array y = run_array(r, r->dtype, WF_SHAPE(2), ROW, NULL),
                   z = run_array(r, r->dtype, WF_SHAPE(3), ROW, NULL);
    const wf_strided av = wf_array_strided(&a);
    wf_strided bv = av, yv = av, zv = av;
    bv.data = b.data, bv.stride[0] = 0, bv.stride[1] = 1;
    yv.data = y.data, yv.stride[0] = 1, yv.stride[1] = 0;
    zv.data = z.data, zv.stride[0] = 0, zv.stride[1] = 1;
    run_call(r, r->k->fold(r->ctx, &(wf_fold_args){.op = WF_FOLD_MUL, .alpha = 1, .a = &av, .b = &bv, .y = &yv}));
    expect(r, "sums of rows", &y, LIST(321, 654));
    run_call(r, r->k->fold(r->ctx, &(wf_fold_args){.op = WF_FOLD_LINEAR, .alpha = 2, .a = &av, .y = &zv}));
    expect(r, "sums of columns", &z, LIST(10, 14, 18));
}
BOTH(known_body)

int main(int argc, char **argv)
{
    static const test_case cases[] = {{"folds", folds},
                                      {"large_folds", large_folds},
                                      {"known", known_body_both},
                                      {"largest", largest},
                                      {"known_most", known_most_body_both},
                                      {"takes", takes},
                                      {"known_take", known_take_body_both},
                                      {"wrong_numbers", wrong_numbers},
                                      {NULL, NULL}};
    return contract_main(argc, argv, cases);
}
