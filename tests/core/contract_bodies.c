/* Convolutions, products, pooling and resampling of one geometry. */
#include "tests/core/contract_bodies.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int64_t conv_length(int64_t in, int64_t lo, int64_t hi, int64_t kernel, int64_t stride, int64_t dilation)
{
    const int64_t room = in + lo + hi - dilation * (kernel - 1) - 1;
    return room < 0 ? 0 : room / stride + 1;
}

static wf_shape spatial_shape(int64_t n, int64_t c, int nd, const int64_t *length)
{
    int64_t dim[5] = {n, c};
    for (int d = 0; d < nd; d++)
        dim[2 + d] = length[d];
    return wf_shape_make(nd + 2, dim);
}

wf_shape conv_output(const conv_case *t)
{
    const wf_conv_geom *const g = &t->geom;
    int64_t out[3];
    for (int d = 0; d < g->nd; d++)
        out[d] = conv_length(t->in[d], g->pad_lo[d], g->pad_hi[d], g->kernel[d], g->stride[d], g->dilation[d]);
    return spatial_shape(t->n, t->f, g->nd, out);
}

static void conv_note(run *r, const conv_case *t)
{
    const wf_conv_geom *const g = &t->geom;
    int used = snprintf(r->note, sizeof r->note, "n %lld c %lld f %lld groups %lld bias %d acc %d act %d noise %g",
                        (long long)t->n, (long long)t->c, (long long)t->f, (long long)g->groups, t->bias, t->accumulate,
                        t->epilogue ? (int)t->act : -1, t->noise);
    for (int d = 0; d < g->nd; d++)
        used += snprintf(r->note + used, sizeof r->note - (size_t)used, " | in %lld k %lld s %lld d %lld p %lld,%lld",
                         (long long)t->in[d], (long long)g->kernel[d], (long long)g->stride[d],
                         (long long)g->dilation[d], (long long)g->pad_lo[d], (long long)g->pad_hi[d]);
}

static wf_shape filter_shape(const conv_case *t)
{
    return spatial_shape(t->f, t->c / t->geom.groups, t->geom.nd, t->geom.kernel);
}

static wf_epilogue conv_epilogue(run *r, const conv_case *t, wf_shape shape)
{
    return (wf_epilogue){.act = t->act, .slope = 0.2, .noise = t->noise, .random = run_random(r, shape)};
}

/* Both directions that give activations. With forms: a first call with other numbers in the filter, so that a packed
 * copy that outlives its version is seen; and a third with the copy in place. */
static void conv_body(run *r, wf_conv_fn *slot, bool backward)
{
    const conv_case *const t = r->args;
    const wf_shape xs = spatial_shape(t->n, t->c, t->geom.nd, t->in), ys = conv_output(t);
    const wf_shape from = backward ? ys : xs, to = backward ? xs : ys;
    conv_note(r, t);
    const wf_array x = run_in(r, from, WF_CHANNELS_LAST, -1, 1),
                   w = run_in(r, filter_shape(t), WF_CHANNELS_LAST, -1, 1);
    const wf_array b = run_in(r, WF_SHAPE(to.dim[1]), WF_ROW_MAJOR, -1, 1);
    const wf_array y = run_out(r, to, WF_CHANNELS_LAST, false);
    const wf_epilogue epilogue = conv_epilogue(r, t, to);
    wf_conv_args args = {.geom = &t->geom, .x = backward ? &y : &x, .y = backward ? &x : &y};
    wf_packed_form *forms = NULL;
    if (t->forms) {
        wf_array old = run_in(r, filter_shape(t), WF_CHANNELS_LAST, -1, 1);
        old.forms = &forms;
        old.version = 4;
        args.w = &old;
        run_call(r, slot(r->ctx, &args));
    }
    wf_array current = w;
    args.w = &current;
    if (t->forms) {
        current.forms = &forms;
        current.version = 5;
        run_call(r, slot(r->ctx, &args));
    }
    args.bias = t->bias ? &b : NULL;
    args.epilogue = t->epilogue ? &epilogue : NULL;
    run_call(r, slot(r->ctx, &args));
    wf_packed_free(r->ctx, &forms);
    run_result(r, &y, 2);
}

void conv_forward_body(run *r)
{
    conv_body(r, r->k->conv_forward, false);
}

void conv_data_body(run *r)
{
    conv_body(r, r->k->conv_backward_data, true);
}

/* A gradient of the run's type, or of f32 if that type is narrow. A device may round f32 once to the narrow type on the
 * way. */
static wf_array gradient(run *r, wf_shape shape, wf_order order, bool wide, bool keep)
{
    return run_out_of(r, wide ? run_wide(r) : r->dtype, wide ? run_wide_round(r) : r->round, shape, order, keep);
}

static double gradient_weight(const run *r, bool wide)
{
    const bool narrow = r->dtype == WF_BF16 || r->dtype == WF_F16;
    return wide && narrow && r->k->host ? 0.1 : 3;
}

void conv_filter_body(run *r)
{
    const conv_case *const t = r->args;
    conv_note(r, t);
    const wf_array x = run_in(r, spatial_shape(t->n, t->c, t->geom.nd, t->in), WF_CHANNELS_LAST, -1, 1);
    const wf_array dy = run_in(r, conv_output(t), WF_CHANNELS_LAST, -1, 1);
    const wf_array dw = gradient(r, filter_shape(t), WF_CHANNELS_LAST, t->wide, t->accumulate);
    const wf_array db = gradient(r, WF_SHAPE(t->f), WF_ROW_MAJOR, t->wide, t->accumulate);
    const wf_conv_args args = {
        .geom = &t->geom, .x = &x, .y = &dy, .w = &dw, .bias = t->bias ? &db : NULL, .accumulate = t->accumulate};
    run_call(r, r->k->conv_backward_filter(r->ctx, &args));
    run_result(r, &dw, gradient_weight(r, t->wide));
    if (t->bias)
        run_result(r, &db, gradient_weight(r, t->wide));
}

void matmul_body(run *r)
{
    const matmul_case *const t = r->args;
    snprintf(r->note, sizeof r->note, "m %lld n %lld k %lld ta %d tb %d bias %d acc %d", (long long)t->m,
             (long long)t->n, (long long)t->k, t->ta, t->tb, t->bias, t->accumulate);
    const wf_array a = run_in(r, t->ta ? WF_SHAPE(t->k, t->m) : WF_SHAPE(t->m, t->k), WF_ROW_MAJOR, -1, 1);
    const wf_array b = run_in(r, t->tb ? WF_SHAPE(t->n, t->k) : WF_SHAPE(t->k, t->n), WF_ROW_MAJOR, -1, 1);
    const wf_array bias = run_in(r, WF_SHAPE(t->n), WF_ROW_MAJOR, -1, 1);
    const wf_array c = gradient(r, WF_SHAPE(t->m, t->n), WF_ROW_MAJOR, t->wide, t->accumulate);
    const wf_matmul_args args = {.a = &a,
                                 .a_transposed = t->ta,
                                 .b = &b,
                                 .b_transposed = t->tb,
                                 .bias = t->bias ? &bias : NULL,
                                 .c = &c,
                                 .accumulate = t->accumulate};
    run_call(r, r->k->matmul(r->ctx, &args));
    run_result(r, &c, t->wide ? gradient_weight(r, true) : 2);
}

/* A matrix that serves several products, and its transpose, which has its shape: a packed copy of the other one, or of
 * the values before a change, is seen. */
void matmul_reused_body(run *r)
{
    const matmul_case *const t = r->args;
    snprintf(r->note, sizeof r->note, "m %lld, square of %lld, bias %d acc %d", (long long)t->m, (long long)t->n,
             t->bias, t->accumulate);
    const wf_array a = run_in(r, WF_SHAPE(t->m, t->n), WF_ROW_MAJOR, -1, 1);
    const wf_array bias = run_in(r, WF_SHAPE(t->n), WF_ROW_MAJOR, -1, 1);
    wf_packed_form *forms = NULL;
    for (int version = 0; version < 2; version++) {
        wf_array b = run_in(r, WF_SHAPE(t->n, t->n), WF_ROW_MAJOR, -1, 1);
        b.forms = &forms;
        b.version = (uint64_t)version;
        for (int product = 0; product < 3; product++) {
            const wf_array c = gradient(r, WF_SHAPE(t->m, t->n), WF_ROW_MAJOR, t->wide, t->accumulate);
            const wf_matmul_args args = {.a = &a,
                                         .b = &b,
                                         .b_transposed = product != 1,
                                         .b_reused = true,
                                         .bias = t->bias ? &bias : NULL,
                                         .c = &c,
                                         .accumulate = t->accumulate};
            run_call(r, r->k->matmul(r->ctx, &args));
            run_result(r, &c, t->wide ? gradient_weight(r, true) : 2);
        }
    }
    wf_packed_free(r->ctx, &forms);
}

/* Matrices of a factor from the first to the last that a product reaches. */
static int64_t matrices_of(const wf_product_stack *s, wf_stack_factor factor)
{
    int64_t count = 1;
    for (int d = 0; d < s->rank; d++)
        count += (s->dim[d] - 1) * s->step[factor][d];
    return wf_stack_count(s) == 0 ? 0 : count;
}

void matmul_stack_body(run *r)
{
    const stack_case *const t = r->args;
    const wf_product_stack *const s = &t->stack;
    int at = snprintf(r->note, sizeof r->note, "m %lld n %lld k %lld ta %d tb %d acc %d:", (long long)s->m,
                      (long long)s->n, (long long)s->k, t->ta, t->tb, t->accumulate);
    int64_t terms = 1;
    for (int d = 0; d < s->rank; d++) {
        at += snprintf(r->note + at, sizeof r->note - (size_t)at, " %lld (%lld,%lld,%lld)", (long long)s->dim[d],
                       (long long)s->step[0][d], (long long)s->step[1][d], (long long)s->step[2][d]);
        terms *= s->step[WF_STACK_C][d] == 0 ? s->dim[d] : 1;
    }
    const wf_array a = run_in(r, WF_SHAPE(matrices_of(s, WF_STACK_A), s->m, s->k), WF_ROW_MAJOR, -1, 1);
    const wf_array b = run_in(r, WF_SHAPE(matrices_of(s, WF_STACK_B), s->k, s->n), WF_ROW_MAJOR, -1, 1);
    const wf_array c = run_out(r, WF_SHAPE(matrices_of(s, WF_STACK_C), s->m, s->n), WF_ROW_MAJOR, t->accumulate);
    run_call(r, r->k->matmul_stack(r->ctx, &(wf_matmul_stack_args){.stack = s,
                                                                   .a = &a,
                                                                   .b = &b,
                                                                   .c = &c,
                                                                   .a_transposed = t->ta,
                                                                   .b_transposed = t->tb,
                                                                   .accumulate = t->accumulate}));
    run_result(r, &c, 2 + (double)terms);
}

/* In the ceil form a window must start inside the input or the padding before it. */
static wf_shape pool_output(const pool_case *t)
{
    const wf_pool_geom *const g = &t->geom;
    int64_t out[3];
    if (g->adaptive)
        return spatial_shape(t->n, t->c, g->nd, t->out);
    for (int d = 0; d < g->nd; d++) {
        const int64_t more = t->ceil ? g->stride[d] - 1 : 0;
        out[d] = conv_length(t->in[d], g->pad_lo[d], g->pad_hi[d] + more, g->kernel[d], g->stride[d], g->dilation[d]);
        if (t->ceil && out[d] > 1 && (out[d] - 1) * g->stride[d] >= t->in[d] + g->pad_lo[d])
            out[d]--;
    }
    return spatial_shape(t->n, t->c, g->nd, out);
}

static void pool_note(run *r, const pool_case *t)
{
    const wf_pool_geom *const g = &t->geom;
    int used = snprintf(r->note, sizeof r->note, "kind %d n %lld c %lld ceil %d acc %d", (int)g->kind, (long long)t->n,
                        (long long)t->c, t->ceil, t->accumulate);
    for (int d = 0; d < g->nd; d++)
        used += snprintf(r->note + used, sizeof r->note - (size_t)used, " | in %lld k %lld s %lld d %lld p %lld,%lld",
                         (long long)t->in[d], (long long)g->kernel[d], (long long)g->stride[d],
                         (long long)g->dilation[d], (long long)g->pad_lo[d], (long long)g->pad_hi[d]);
    for (int d = 0; d < g->nd && g->adaptive; d++)
        used +=
            snprintf(r->note + used, sizeof r->note - (size_t)used, " | %lld from %lld of %lld over %lld",
                     (long long)t->out[d], (long long)g->out_lo[d], (long long)g->outputs[d], (long long)g->inputs[d]);
}

void pool_body(run *r)
{
    const pool_case *const t = r->args;
    const wf_shape xs = spatial_shape(t->n, t->c, t->geom.nd, t->in), ys = pool_output(t);
    const bool indexed = t->geom.kind == WF_POOL_MAX;
    pool_note(r, t);
    r->grid = 0.25;
    const wf_array x = run_in(r, xs, WF_CHANNELS_LAST, -1, 1), dy = run_in(r, ys, WF_CHANNELS_LAST, -1, 1);
    const wf_array y = run_out(r, ys, WF_CHANNELS_LAST, false), dx = run_out(r, xs, WF_CHANNELS_LAST, t->accumulate);
    const wf_array index = run_out_of(r, WF_I32, WF_I32, ys, WF_CHANNELS_LAST, false);
    run_call(r, r->k->pool_forward(
                    r->ctx, &(wf_pool_args){.geom = &t->geom, .x = &x, .y = &y, .index = indexed ? &index : NULL}));
    const wf_pool_args args = {
        .geom = &t->geom, .y = &dy, .index = indexed ? &index : NULL, .x = &dx, .accumulate = t->accumulate};
    run_call(r, r->k->pool_backward(r->ctx, &args));
    run_result(r, &y, indexed ? 0 : 1);
    if (indexed)
        run_result(r, &index, 0);
    run_result(r, &dx, 2);
}

static wf_array pixel_numbers(run *r, const places_case *t, wf_dtype dtype, const int64_t *length, int64_t least)
{
    const wf_shape shape = spatial_shape(t->n, t->c, t->nd, t->small);
    const int64_t pixels = wf_shape_count(spatial_shape(1, 1, t->nd, length)), count = wf_shape_count(shape);
    double *value = calloc((size_t)count + 1, sizeof *value);
    for (int64_t i = 0; i < count; i++)
        value[i] = (double)test_int(&r->rng, least, t->equal ? pixels / 9 : pixels - 1);
    const wf_array a = run_array(r, dtype, shape, WF_CHANNELS_LAST, value);
    free(value);
    return a;
}

void places_body(run *r)
{
    const places_case *const t = r->args;
    const wf_shape small = spatial_shape(t->n, t->c, t->nd, t->small),
                   large = spatial_shape(t->n, t->c, t->nd, t->large);
    char text[2][WF_SHAPE_TEXT];
    snprintf(r->note, sizeof r->note, "%s in %s of %s, equal %d, lo %d %d %d", wf_shape_text(small, text[0]),
             wf_shape_text(large, text[1]), wf_dtype_name(t->dtype), t->equal, (int)t->lo[0], (int)t->lo[1],
             (int)t->lo[2]);
    const wf_array x = run_in(r, small, WF_CHANNELS_LAST, -1, 1), dy = run_in(r, large, WF_CHANNELS_LAST, -1, 1);
    const wf_array places = pixel_numbers(r, t, t->dtype, t->large, t->dtype == WF_U8 ? 0 : -1),
                   in_box = pixel_numbers(r, t, WF_I32, t->length, -1);
    const wf_array y = run_out(r, large, WF_CHANNELS_LAST, false), dx = run_out(r, small, WF_CHANNELS_LAST, false);
    const wf_array whole = run_array(r, WF_I64, small, WF_CHANNELS_LAST, NULL);
    const wf_array index = run_array(r, WF_I32, small, WF_CHANNELS_LAST, NULL);
    const wf_array taken = run_array(r, WF_I32, large, WF_CHANNELS_LAST, NULL);
    wf_places_args args = {.nd = t->nd, .index = &in_box, .y = &whole};
    memcpy(args.lo, t->lo, sizeof args.lo);
    memcpy(args.length, t->length, sizeof args.length);
    memcpy(args.whole, t->large, sizeof args.whole);
    run_call(r, r->k->pool_places(r->ctx, &args));
    run_call(r, r->k->unpool_index(r->ctx, &(wf_unpool_args){.places = &places, .index = &index, .taken = &taken}));
    run_call(r, r->k->pick_pixels(r->ctx, &x, &taken, &y));
    run_call(r, r->k->pick_pixels(r->ctx, &dy, &index, &dx));
    run_result(r, &whole, 0);
    run_result(r, &index, 0);
    run_result(r, &taken, 0);
    run_result(r, &y, 0);
    run_result(r, &dx, 0);
}

void resample_body(run *r)
{
    const resample_case *const t = r->args;
    const wf_resample_geom *const g = &t->geom;
    char text[2][WF_SHAPE_TEXT];
    snprintf(r->note, sizeof r->note, "%s to %s, scale %lld %lld %lld, linear %d aligned %d acc %d",
             wf_shape_text(t->x, text[0]), wf_shape_text(t->y, text[1]), (long long)g->scale[0], (long long)g->scale[1],
             (long long)g->scale[2], g->linear, g->align_corners, t->accumulate);
    const wf_array x = run_in(r, t->x, WF_CHANNELS_LAST, -1, 1), y = run_out(r, t->y, WF_CHANNELS_LAST, false);
    const wf_array dx = run_out(r, t->x, WF_CHANNELS_LAST, t->accumulate),
                   dy = run_in(r, t->y, WF_CHANNELS_LAST, -1, 1);
    run_call(r, r->k->resample_forward(r->ctx, &(wf_resample_args){.geom = g, .x = &x, .y = &y}));
    run_call(r, r->k->resample_backward(
                    r->ctx, &(wf_resample_args){.geom = g, .y = &dy, .x = &dx, .accumulate = t->accumulate}));
    run_result(r, &y, 1);
    run_result(r, &dx, 4);
}

/* Starts go up and down, and before and behind x; a weight in four is 0. */
void taps_body(run *r)
{
    const taps_case *const t = r->args;
    double start[64], weight[64 * 8];
    test_rng rng = {(uint64_t)(t->rows * 100 + t->taps)};
    for (int64_t o = 0; o < t->rows; o++) {
        start[o] = (double)test_int(&rng, t->x_lo - t->taps, t->x_lo + t->in);
        for (int64_t k = 0; k < t->taps; k++)
            weight[o * t->taps + k] = test_int(&rng, 0, 3) == 0 ? 0 : (double)test_int(&rng, -8, 8) / 8;
    }
    snprintf(r->note, sizeof r->note, "outer %d, %d to %d of %d, inner %d, taps %d, acc %d", (int)t->outer, (int)t->in,
             (int)t->out, (int)t->rows, (int)t->inner, (int)t->taps, t->accumulate);
    const wf_array x = run_in(r, WF_SHAPE(t->outer, t->in, t->inner), WF_ROW_MAJOR, -1, 1),
                   starts = run_array(r, WF_I32, WF_SHAPE(t->rows), WF_ROW_MAJOR, start),
                   weights = run_array(r, run_wide(r), WF_SHAPE(t->rows, t->taps), WF_ROW_MAJOR, weight);
    const wf_array y = run_out(r, WF_SHAPE(t->outer, t->out, t->inner), WF_ROW_MAJOR, t->accumulate);
    run_call(r, r->k->taps(r->ctx, &(wf_taps_args){.x = &x,
                                                   .y = &y,
                                                   .start = &starts,
                                                   .weight = &weights,
                                                   .x_lo = t->x_lo,
                                                   .y_lo = t->y_lo,
                                                   .accumulate = t->accumulate}));
    run_result(r, &y, 4);
}

/* Outputs [out_lo, out_lo + y) of the whole, and the inputs that they read with up to one more at either end. */
void cut_part(test_rng *rng, resample_case *t, int d)
{
    wf_resample_geom *const g = &t->geom;
    const int64_t outputs = g->in[d] * g->scale[d], lo = test_int(rng, 0, outputs - 1),
                  hi = test_int(rng, lo + 1, outputs);
    int64_t first = wf_resample_taps(g, d, lo).at[0], last = wf_resample_taps(g, d, hi - 1).at[1];
    first -= first > 0 ? test_int(rng, 0, 1) : 0;
    last += last + 1 < g->in[d] ? test_int(rng, 0, 1) : 0;
    g->out_lo[d] = lo;
    g->in_lo[d] = first;
    t->y.dim[2 + d] = hi - lo;
    t->x.dim[2 + d] = last + 1 - first;
}

void bias_backward_body(run *r)
{
    const conv_case *const t = r->args;
    const wf_shape s = t->geom.nd ? spatial_shape(t->n, t->c, t->geom.nd, t->in) : WF_SHAPE(t->n, t->c);
    snprintf(r->note, sizeof r->note, "n %lld c %lld nd %d acc %d", (long long)t->n, (long long)t->c, t->geom.nd,
             t->accumulate);
    const wf_array dy = run_in(r, s, run_order(s), -1, 1);
    const wf_array db = gradient(r, WF_SHAPE(t->c), WF_ROW_MAJOR, t->wide, t->accumulate);
    run_call(r, r->k->bias_backward(r->ctx, &dy, &db, t->accumulate));
    run_result(r, &db, t->wide ? gradient_weight(r, true) : 2);
}
