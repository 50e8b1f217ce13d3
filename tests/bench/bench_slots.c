/* Calls of single slots for bench_kernels. */
#include "tests/bench/bench_slots.h"

struct bench_slots {
    wf_ctx *ctx;
    wf_array x, y, z, dy;           /* of the whole shape */
    wf_array half;                  /* with half the pixels of each side */
    wf_array index, places;         /* of half's shape; places are those of the maxima */
    wf_array taken;                 /* of the whole shape */
    wf_array sum, loss, labels;     /* channels; a scalar; rows */
    wf_array tap_start, tap_weight; /* of rows, each of two of half as many */
    wf_array row, log_sum;          /* numbers of pixels in a mixed order; of attention */
    wf_random random;
    wf_epilogue relu, noisy;
    wf_pool_geom max, average;
    wf_resample_geom linear, nearest;
    wf_optim_hyper *hyper; /* in device memory */
    wf_optim_segment whole;
    double *squares;                            /* in device memory */
    wf_array input, recurrent, gates, state[7]; /* of a recurrent step; the first four states are wide */
};

static wf_status slot_fill(void *p)
{
    const bench_slots *s = p;
    return s->ctx->k->fill(s->ctx, &s->y, 1);
}

static wf_status slot_uniform(void *p)
{
    const bench_slots *s = p;
    return s->ctx->k->random(s->ctx, WF_UNIFORM, &s->random, 0, 1, &s->y);
}

static wf_status slot_normal(void *p)
{
    const bench_slots *s = p;
    return s->ctx->k->random(s->ctx, WF_NORMAL, &s->random, 0, 1, &s->y);
}

static wf_status slot_dropout(void *p)
{
    const bench_slots *s = p;
    return s->ctx->k->dropout(s->ctx, 0.5, &s->random, &s->x, &s->y);
}

static wf_status slot_bias(void *p)
{
    const bench_slots *s = p;
    return s->ctx->k->bias_backward(s->ctx, &s->dy, &s->sum, false);
}

static wf_status slot_epilogue(void *p)
{
    const bench_slots *s = p;
    return s->ctx->k->epilogue_forward(s->ctx, &s->relu, &s->x, &s->y);
}

static wf_status slot_epilogue_noisy(void *p)
{
    const bench_slots *s = p;
    return s->ctx->k->epilogue_forward(s->ctx, &s->noisy, &s->x, &s->y);
}

static wf_status act(const bench_slots *s, wf_act kind, bool back)
{
    const wf_act_args args = {
        .act = kind, .slope = 0.2, .x = &s->x, .y = &s->y, .dy = back ? &s->dy : NULL, .dx = back ? &s->z : NULL};
    return back ? s->ctx->k->act_backward(s->ctx, &args) : s->ctx->k->act_forward(s->ctx, &args);
}

static wf_status slot_leaky(void *p)
{
    return act(p, WF_ACT_LEAKY_RELU, false);
}

static wf_status slot_leaky_back(void *p)
{
    return act(p, WF_ACT_LEAKY_RELU, true);
}

static wf_status slot_elu(void *p)
{
    return act(p, WF_ACT_ELU, false);
}

static wf_status slot_gelu(void *p)
{
    return act(p, WF_ACT_GELU, false);
}

static wf_status slot_gelu_back(void *p)
{
    return act(p, WF_ACT_GELU, true);
}

static wf_status slot_sigmoid(void *p)
{
    return act(p, WF_ACT_SIGMOID, false);
}

static wf_status slot_softplus(void *p)
{
    return act(p, WF_ACT_SOFTPLUS, false);
}

static wf_status slot_product(void *p)
{
    const bench_slots *s = p;
    return s->ctx->k->binary(s->ctx,
                             &(wf_binary_args){.op = WF_BINARY_MUL, .alpha = 1, .a = &s->x, .b = &s->dy, .y = &s->y});
}

static wf_status slot_sum(void *p)
{
    const bench_slots *s = p;
    return s->ctx->k->sum(s->ctx, &s->x, 1, &s->loss);
}

static wf_status pooling(const bench_slots *s, const wf_pool_geom *geom, bool back)
{
    const wf_pool_args args = {
        .geom = geom, .x = back ? &s->z : &s->x, .y = &s->half, .index = geom->kind == WF_POOL_MAX ? &s->index : NULL};
    return back ? s->ctx->k->pool_backward(s->ctx, &args) : s->ctx->k->pool_forward(s->ctx, &args);
}

static wf_status slot_max(void *p)
{
    const bench_slots *s = p;
    return pooling(s, &s->max, false);
}

static wf_status slot_max_back(void *p)
{
    const bench_slots *s = p;
    return pooling(s, &s->max, true);
}

static wf_status slot_average(void *p)
{
    const bench_slots *s = p;
    return pooling(s, &s->average, false);
}

static wf_status slot_average_back(void *p)
{
    const bench_slots *s = p;
    return pooling(s, &s->average, true);
}

static wf_status slot_places(void *p)
{
    const bench_slots *s = p;
    wf_places_args args = {.nd = 2, .index = &s->index, .y = &s->places};
    for (int d = 0; d < 2; d++)
        args.length[d] = args.whole[d] = s->x.shape.dim[2 + d];
    return s->ctx->k->pool_places(s->ctx, &args);
}

static wf_status slot_unpool(void *p)
{
    const bench_slots *s = p;
    const wf_unpool_args args = {.places = &s->places, .index = &s->index, .taken = &s->taken};
    WF_TRY(s->ctx->k->unpool_index(s->ctx, &args));
    return s->ctx->k->pick_pixels(s->ctx, &s->half, &s->taken, &s->y);
}

static wf_status slot_unpool_back(void *p)
{
    const bench_slots *s = p;
    return s->ctx->k->pick_pixels(s->ctx, &s->x, &s->index, &s->half);
}

static wf_status resample(const bench_slots *s, const wf_resample_geom *geom, bool back)
{
    const wf_resample_args args = {.geom = geom, .x = &s->half, .y = back ? &s->dy : &s->y};
    return back ? s->ctx->k->resample_backward(s->ctx, &args) : s->ctx->k->resample_forward(s->ctx, &args);
}

static wf_status slot_linear(void *p)
{
    const bench_slots *s = p;
    return resample(s, &s->linear, false);
}

static wf_status slot_linear_back(void *p)
{
    const bench_slots *s = p;
    return resample(s, &s->linear, true);
}

static wf_status slot_nearest(void *p)
{
    const bench_slots *s = p;
    return resample(s, &s->nearest, false);
}

/* Half the image to the whole along its rows, by two taps. */
static wf_status slot_taps(void *p)
{
    const bench_slots *s = p;
    const int64_t n = s->x.shape.dim[0], c = s->x.shape.dim[1], h = s->x.shape.dim[2];
    wf_array x = s->x, y = s->y;
    x.order = y.order = WF_ROW_MAJOR;
    x.shape = WF_SHAPE(n, h / 2, h * c);
    y.shape = WF_SHAPE(n, h, h * c);
    const wf_taps_args args = {.x = &x, .y = &y, .start = &s->tap_start, .weight = &s->tap_weight};
    return s->ctx->k->taps(s->ctx, &args);
}

static wf_status slot_softmax(void *p)
{
    const bench_slots *s = p;
    return s->ctx->k->softmax_forward(s->ctx, false, &s->x, &s->y);
}

static wf_status slot_log_softmax(void *p)
{
    const bench_slots *s = p;
    return s->ctx->k->softmax_forward(s->ctx, true, &s->x, &s->y);
}

static wf_status slot_softmax_back(void *p)
{
    const bench_slots *s = p;
    return s->ctx->k->softmax_backward(s->ctx, false, &s->y, &s->dy, &s->z);
}

static wf_status loss(const bench_slots *s, wf_loss_kind kind, bool back)
{
    const wf_loss_args args = {.kind = kind,
                               .x = &s->x,
                               .target = &s->dy,
                               .scale = 1e-3,
                               .loss = &s->loss,
                               .dloss = back ? &s->loss : NULL,
                               .dx = back ? &s->z : NULL};
    return back ? s->ctx->k->loss_backward(s->ctx, &args) : s->ctx->k->loss_forward(s->ctx, &args);
}

static wf_status slot_entropy(void *p)
{
    return loss(p, WF_LOSS_BCE_LOGITS, false);
}

static wf_status slot_entropy_back(void *p)
{
    return loss(p, WF_LOSS_BCE_LOGITS, true);
}

static wf_status slot_square(void *p)
{
    return loss(p, WF_LOSS_MSE, false);
}

static wf_status slot_square_back(void *p)
{
    return loss(p, WF_LOSS_MSE, true);
}

static wf_status slot_labels_back(void *p)
{
    const bench_slots *s = p;
    return s->ctx->k->nll_backward(s->ctx, &s->labels, WF_NONE_IGNORED, &s->loss, 1e-3, &s->z);
}

/* A step of an LSTM of a quarter as many features as its gates have elements. */
static wf_gates_args gates_of(bench_slots *s)
{
    wf_array *const rows[] = {&s->input, &s->recurrent, &s->gates};
    const int64_t c = s->x.shape.dim[1], n = wf_array_count(&s->x) / (4 * c);
    for (int i = 0; i < 3; i++)
        rows[i]->shape = WF_SHAPE(n, 4 * c);
    for (int i = 0; i < 7; i++)
        s->state[i].shape = WF_SHAPE(n, c);
    return (wf_gates_args){.cell = WF_CELL_LSTM, .gates = &s->gates, .kept = &s->state[0], .cell_before = &s->state[1]};
}

static wf_status slot_gates(void *p)
{
    bench_slots *s = p;
    wf_gates_args args = gates_of(s);
    args.input = &s->input;
    args.recurrent = &s->recurrent;
    args.before = &s->state[4];
    args.h = &s->state[5];
    args.y = &s->state[6];
    return s->ctx->k->gates_forward(s->ctx, &args);
}

static wf_status slot_gates_back(void *p)
{
    bench_slots *s = p;
    wf_gates_args args = gates_of(s);
    wf_array to = s->y;
    to.shape = s->gates.shape;
    args.dinput = &to;
    args.dy = &s->state[4];
    args.dh = &s->state[2];
    args.dcell = &s->state[3];
    return s->ctx->k->gates_backward(s->ctx, &args);
}

/* Channels-last memory as rows of channels. */
static wf_array rows_of(const wf_array *a, wf_shape shape)
{
    return (wf_array){.data = a->data, .dtype = a->dtype, .order = WF_ROW_MAJOR, .shape = shape};
}

static wf_status take(const bench_slots *s, const wf_array *table, const wf_array *y, bool back)
{
    const wf_shape shape = WF_SHAPE(wf_array_count(&s->row), s->x.shape.dim[1]);
    const wf_array from = rows_of(table, shape), to = rows_of(y, shape);
    const wf_take_args args = {
        .table = &from, .index = &s->row, .y = &to, .whole = shape.dim[0], .ignored = WF_NONE_IGNORED};
    return back ? s->ctx->k->take_backward(s->ctx, &args) : s->ctx->k->take_forward(s->ctx, &args);
}

static wf_status slot_take(void *p)
{
    const bench_slots *s = p;
    return take(s, &s->x, &s->y, false);
}

static wf_status slot_take_back(void *p)
{
    const bench_slots *s = p;
    return take(s, &s->z, &s->dy, true);
}

/* Each row of pixels is a sample of as many tokens, with heads of 32 channels. */
static wf_status attention(const bench_slots *s, bool back)
{
    const int64_t n = s->x.shape.dim[0], c = s->x.shape.dim[1], h = s->x.shape.dim[2];
    const wf_shape shape = WF_SHAPE(n * h, h, c);
    const wf_array q = rows_of(&s->x, shape), k = rows_of(&s->z, shape), v = rows_of(&s->dy, shape);
    const wf_array y = rows_of(&s->y, shape), dq = rows_of(&s->input, shape), dk = rows_of(&s->recurrent, shape);
    const wf_array dv = rows_of(&s->gates, shape);
    wf_attention_args args = {.heads = c % 32 == 0 ? c / 32 : 1, .scale = 0.2, .q = &q, .k = &k, .v = &v, .y = &y};
    const wf_array log_sum = rows_of(&s->log_sum, WF_SHAPE(n * h, args.heads, h));
    args.lse = &log_sum;
    if (!back)
        return s->ctx->k->attention_forward(s->ctx, &args);
    args.dy = &y;
    args.dq = &dq;
    args.dk = &dk;
    args.dv = &dv;
    return s->ctx->k->attention_backward(s->ctx, &args);
}

static wf_status slot_attention(void *p)
{
    return attention(p, false);
}

static wf_status slot_attention_back(void *p)
{
    return attention(p, true);
}

static wf_status update(bench_slots *s, wf_optim_kind kind)
{
    return s->ctx->k->optim_update(s->ctx, kind, s->hyper, s->x.dtype, 1, &s->whole);
}

static wf_status slot_momentum(void *p)
{
    return update(p, WF_OPTIM_SGD);
}

static wf_status slot_rmsprop(void *p)
{
    return update(p, WF_OPTIM_RMSPROP);
}

static wf_status slot_trust(void *p)
{
    return update(p, WF_OPTIM_TRUST);
}

const bench_slot bench_slot_table[] = {{"fill", 1, false, slot_fill},
                                       {"random, uniform", 1, true, slot_uniform},
                                       {"random, normal", 1, true, slot_normal},
                                       {"dropout", 2, false, slot_dropout},
                                       {"bias_backward", 1, false, slot_bias},
                                       {"epilogue_forward", 2, false, slot_epilogue},
                                       {"epilogue_forward, noise", 2, false, slot_epilogue_noisy},
                                       {"leaky ReLU", 2, false, slot_leaky},
                                       {"leaky ReLU, backward", 3, false, slot_leaky_back},
                                       {"ELU", 2, false, slot_elu},
                                       {"GELU", 2, false, slot_gelu},
                                       {"GELU, backward", 3, false, slot_gelu_back},
                                       {"sigmoid", 2, false, slot_sigmoid},
                                       {"softplus", 2, false, slot_softplus},
                                       {"product", 3, false, slot_product},
                                       {"sum", 1, false, slot_sum},
                                       {"max pooling", 1.5, false, slot_max},
                                       {"max pooling, backward", 1.5, false, slot_max_back},
                                       {"average pooling", 1.25, false, slot_average},
                                       {"average pooling, backward", 1.25, false, slot_average_back},
                                       {"places of maxima", 0.75, false, slot_places},
                                       {"unpooling", 4, false, slot_unpool},
                                       {"unpooling, backward", 1.5, false, slot_unpool_back},
                                       {"linear upsampling", 1.25, false, slot_linear},
                                       {"linear upsampling, backw.", 1.25, false, slot_linear_back},
                                       {"nearest upsampling", 1.25, false, slot_nearest},
                                       {"two taps of rows", 1.5, false, slot_taps},
                                       {"softmax", 2, false, slot_softmax},
                                       {"log softmax", 2, false, slot_log_softmax},
                                       {"softmax, backward", 3, false, slot_softmax_back},
                                       {"loss, BCE", 2, false, slot_entropy},
                                       {"loss, BCE, backward", 3, false, slot_entropy_back},
                                       {"loss, squares", 2, false, slot_square},
                                       {"loss, squares, backward", 3, false, slot_square_back},
                                       {"nll_backward", 1, false, slot_labels_back},
                                       {"gates of an LSTM", 4.25, false, slot_gates},
                                       {"gates, backward", 3.75, false, slot_gates_back},
                                       {"take", 2, false, slot_take},
                                       {"take, backward", 2, false, slot_take_back},
                                       {"attention over rows", 4, false, slot_attention},
                                       {"attention, backward", 8, true, slot_attention_back},
                                       {"momentum", 5, true, slot_momentum},
                                       {"RMSprop", 5, true, slot_rmsprop},
                                       {"trust", 3, true, slot_trust}};
const int bench_slot_count = (int)(sizeof bench_slot_table / sizeof *bench_slot_table);

static void *device_copy(wf_ctx *ctx, const void *host, size_t bytes)
{
    void *data;
    WF_MUST(wf_pool_take(ctx, bytes, &data));
    WF_MUST(ctx->k->to_device(ctx, data, host, bytes));
    return data;
}

/* An array of zeros of whole numbers. */
static wf_array zeros(wf_ctx *ctx, wf_dtype dtype, wf_order order, wf_shape shape)
{
    wf_array a = {.dtype = dtype, .order = order, .shape = shape};
    const size_t bytes = (size_t)wf_shape_count(shape) * wf_dtype_size(dtype);
    void *const none = calloc(bytes, 1);
    a.data = device_copy(ctx, none, bytes);
    free(none);
    return a;
}

/* Row o of h is made of rows o / 2 and the next one of h / 2. */
static void make_taps(bench_slots *s, int64_t h)
{
    int32_t *const start = calloc((size_t)h, sizeof *start);
    float *const weight = calloc((size_t)(2 * h), sizeof *weight);
    for (int64_t o = 0; o < h; o++) {
        start[o] = (int32_t)(o / 2);
        weight[2 * o] = 0.75F;
        weight[2 * o + 1] = 0.25F;
    }
    s->tap_start = (wf_array){
        .data = device_copy(s->ctx, start, (size_t)h * sizeof *start), .dtype = WF_I32, .shape = WF_SHAPE(h)};
    s->tap_weight = (wf_array){.data = device_copy(s->ctx, weight, (size_t)(2 * h) * sizeof *weight),
                               .dtype = WF_F32,
                               .shape = WF_SHAPE(h, 2)};
    free(start);
    free(weight);
}

/* 7919 is a prime, so each pixel comes once unless it divides their number. */
static void make_rows(bench_slots *s, int64_t pixels)
{
    int32_t *const row = calloc((size_t)pixels, sizeof *row);
    for (int64_t i = 0; i < pixels; i++)
        row[i] = (int32_t)(i * 7919 % pixels);
    s->row = (wf_array){
        .data = device_copy(s->ctx, row, (size_t)pixels * sizeof *row), .dtype = WF_I32, .shape = WF_SHAPE(pixels)};
    free(row);
}

bench_slots *bench_slots_open(wf_ctx *ctx, wf_dtype dtype, wf_shape shape)
{
    bench_slots *const s = calloc(1, sizeof *s);
    const int64_t n = shape.dim[0], c = shape.dim[1], h = shape.dim[2];
    const wf_shape half = WF_SHAPE(n, c, h / 2, h / 2);
    const wf_dtype wide = dtype == WF_F64 ? WF_F64 : WF_F32;
    const wf_optim_hyper hyper = {.lr = 1e-9, .momentum = 0.9, .alpha = 0.9, .eps = 1e-3, .grad_scale = 1};
    const double squares[2] = {1, 1};
    s->ctx = ctx;
    s->x = bench_array(ctx, dtype, shape);
    s->y = bench_array(ctx, dtype, shape);
    s->z = bench_array(ctx, dtype, shape);
    s->dy = bench_array(ctx, dtype, shape);
    s->half = bench_array(ctx, dtype, half);
    s->sum = bench_array(ctx, wide, WF_SHAPE(c));
    s->loss = bench_array(ctx, wide, wf_shape_scalar());
    const int64_t all = wf_shape_count(shape);
    s->input = bench_array(ctx, wide, WF_SHAPE(all));
    s->recurrent = bench_array(ctx, wide, WF_SHAPE(all));
    s->gates = bench_array(ctx, dtype, WF_SHAPE(all));
    for (int i = 0; i < 7; i++)
        s->state[i] = bench_array(ctx, i < 4 ? wide : dtype, WF_SHAPE(all / 4));
    s->index = zeros(ctx, WF_I32, wf_order_default(4), half);
    s->places = zeros(ctx, WF_I64, wf_order_default(4), half);
    s->taken = zeros(ctx, WF_I32, wf_order_default(4), shape);
    s->labels = zeros(ctx, WF_U8, WF_ROW_MAJOR, WF_SHAPE(n, h, h));
    s->random = (wf_random){.seed = 3, .global = shape, .box = wf_box_of_shape(shape)};
    s->relu = (wf_epilogue){.act = WF_ACT_LEAKY_RELU, .slope = 0.2};
    s->noisy = s->relu;
    s->noisy.noise = 0.2;
    s->noisy.random = s->random;
    s->max = (wf_pool_geom){.kind = WF_POOL_MAX, .nd = 2, .kernel = {2, 2}, .stride = {2, 2}, .dilation = {1, 1}};
    s->average = s->max;
    s->average.kind = WF_POOL_AVG;
    s->nearest = (wf_resample_geom){.nd = 2, .scale = {2, 2}, .in = {h / 2, h / 2}};
    s->linear = s->nearest;
    s->linear.linear = true;
    make_taps(s, h);
    make_rows(s, n * h * h);
    s->log_sum = bench_array(ctx, wide, WF_SHAPE(all));
    s->hyper = device_copy(ctx, &hyper, sizeof hyper);
    s->squares = device_copy(ctx, squares, sizeof squares);
    s->whole = (wf_optim_segment){.p = s->x.data,
                                  .g = s->dy.data,
                                  .state1 = s->y.data,
                                  .state2 = s->z.data,
                                  .n = wf_array_count(&s->x),
                                  .squares = s->squares};
    return s;
}

void bench_slots_close(bench_slots *s)
{
    wf_array *const arrays[] = {&s->x,    &s->y,     &s->z,      &s->dy,    &s->half,  &s->sum,
                                &s->loss, &s->index, &s->places, &s->taken, &s->labels};
    wf_array *const of_gates[] = {&s->input, &s->recurrent, &s->gates};
    bench_array_free(s->ctx, &s->log_sum);
    wf_pool_give(s->ctx, s->row.data, 0);
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        bench_array_free(s->ctx, arrays[i]);
    for (int i = 0; i < 3; i++)
        bench_array_free(s->ctx, of_gates[i]);
    for (int i = 0; i < 7; i++)
        bench_array_free(s->ctx, &s->state[i]);
    wf_pool_give(s->ctx, s->hyper, 0);
    wf_pool_give(s->ctx, s->tap_start.data, 0);
    wf_pool_give(s->ctx, s->tap_weight.data, 0);
    wf_pool_give(s->ctx, s->squares, 0);
    free(s);
}
