/* The kernel table of the guarded device: every slot checks what it is given, opens the memory, and lets another
 * filling compute (ref in f64, cpu else).
 *
 * A new slot needs SLOT_OF(form, slot), where it takes a struct `wf_<form>_args` whose fields FIELDS_<form> lists, or
 * SLOT(n, slot, parameters, kinds, names), where it takes n values; and TAKE(slot) in filled(). A type of argument that
 * is new needs a line in LOOK, which checks where it points to, and one in SAVE, which keeps it for a captured step.
 * Without TAKE the slot is NULL, which contract_device finds. */
#include "tests/fake/guard_impl.h"

#include <stdio.h>

static int devices = 8;

void guard_devices(int count)
{
    devices = count;
}

/* --- what a slot is given ------------------------------------------------------------------------------------------
 */

static void look_strided(const char *slot, const wf_strided *v)
{
    int64_t reach = 1;
    if (!v)
        return;
    for (int d = 0; d < v->rank; d++) {
        if (v->dim[d] == 0)
            return;
        reach += (v->dim[d] - 1) * v->stride[d];
    }
    guard_need_device(slot, v->data, (size_t)reach * wf_dtype_size(v->dtype));
}

static void look_array(const char *slot, const wf_array *a)
{
    if (a && a->data)
        guard_need_device(slot, a->data, (size_t)wf_array_count(a) * wf_dtype_size(a->dtype));
}

static void look_random(const char *slot, const wf_random *random)
{
    if (random && random->iteration)
        guard_need_device(slot, random->iteration, sizeof *random->iteration);
}

static void look_epilogue(const char *slot, const wf_epilogue *epilogue)
{
    if (epilogue && epilogue->noise > 0)
        look_random(slot, &epilogue->random);
}

static void look_const_hyper(const char *slot, const wf_optim_hyper *hyper)
{
    guard_need_device(slot, hyper, sizeof *hyper);
}

static void look_hyper(const char *slot, wf_optim_hyper *hyper)
{
    look_const_hyper(slot, hyper);
}

static void look_count(const char *slot, wf_count count)
{
    if (count.device)
        guard_need_device(slot, count.device, sizeof *count.device);
}

static void look_double(const char *slot, const double *value)
{
    guard_need_device(slot, value, sizeof *value);
}

static void look_scaling(const char *slot, wf_loss_scaling *scaling)
{
    guard_need_device(slot, scaling, sizeof *scaling);
}

/* What is no tensor: the trailer of a step. */
static void look_bytes(const char *slot, const void *data)
{
    guard_need_device(slot, data, WF_TRAILER * sizeof(float));
}

/* The list is the host's, what it points to the device's. */
static void look_segment(const char *slot, const wf_optim_segment *segment)
{
    guard_need_host(slot, segment, sizeof *segment);
    if (segment->n == 0)
        return;
    guard_need_device(slot, segment->p, 1);
    guard_need_device(slot, segment->g, 1);
    if (segment->direction)
        guard_need_device(slot, segment->direction, 1);
    if (segment->squares)
        guard_need_device(slot, segment->squares, 2 * sizeof *segment->squares);
}

static void look_nothing(const char *slot, ...)
{
}

/* clang-format off */
#define LOOK(x)                                                                                                        \
    _Generic((x), const wf_strided *: look_strided, const wf_array *: look_array, const wf_random *: look_random,      \
        const wf_epilogue *: look_epilogue, const wf_optim_hyper *: look_const_hyper, wf_optim_hyper *: look_hyper,    \
        wf_loss_scaling *: look_scaling, const double *: look_double, const wf_optim_segment *: look_segment,       \
        wf_count: look_count, const void *: look_bytes, default: look_nothing)(slot_name, x);
/* clang-format on */
#define EACH1(DO, a) DO(a)
#define EACH2(DO, a, ...)                                                                                              \
    DO(a)                                                                                                              \
    EACH1(DO, __VA_ARGS__)
#define EACH3(DO, a, ...)                                                                                              \
    DO(a)                                                                                                              \
    EACH2(DO, __VA_ARGS__)
#define EACH4(DO, a, ...)                                                                                              \
    DO(a)                                                                                                              \
    EACH3(DO, __VA_ARGS__)
#define EACH5(DO, a, ...)                                                                                              \
    DO(a)                                                                                                              \
    EACH4(DO, __VA_ARGS__)

/* --- arguments of what is captured ---------------------------------------------------------------------------------
 */

static int64_t whole; /* the last of its kind: how long a list is that follows */

static guard_value save_whole(int64_t i)
{
    whole = i;
    return (guard_value){.i = i};
}

static guard_value save_double(double d)
{
    return (guard_value){.d = d};
}

static guard_value save_segments(const wf_optim_segment *list)
{
    return guard_save(list, (size_t)whole * sizeof *list);
}

static guard_value save_device(const void *p)
{
    return (guard_value){.p = (void *)p};
}

#define SAVE_OF(name, type)                                                                                            \
    static guard_value save_##name(const type *x)                                                                      \
    {                                                                                                                  \
        return guard_save(x, sizeof *x);                                                                               \
    }
SAVE_OF(strided, wf_strided)
SAVE_OF(random, wf_random)
SAVE_OF(epilogue, wf_epilogue)
SAVE_OF(conv, wf_conv_geom)
SAVE_OF(pool, wf_pool_geom)
SAVE_OF(resample, wf_resample_geom)
SAVE_OF(stack, wf_product_stack)
SAVE_OF(head, wf_norm_head)

static guard_value save_count(wf_count count)
{
    return (guard_value){.p = (void *)count.device, .d = count.value};
}

/* clang-format off */
#define SAVE(x)                                                                                                        \
    value[at++] = _Generic((x), const wf_array *: guard_save_array, const wf_strided *: save_strided,                  \
        const wf_random *: save_random, const wf_epilogue *: save_epilogue, const wf_conv_geom *: save_conv,           \
        const wf_pool_geom *: save_pool, const wf_resample_geom *: save_resample,                                      \
        const wf_product_stack *: save_stack,                                                                                  \
        const wf_optim_segment *: save_segments, const wf_optim_hyper *: save_device, wf_optim_hyper *: save_device,   \
        wf_loss_scaling *: save_device, const double *: save_device, const wf_norm_head *: save_head,                  \
        wf_count: save_count, const void *: save_device, double: save_double, default: save_whole)(x);
/* clang-format on */
/* Each argument, once for LOOK and once for SAVE. */
#define P(n)      value[n].p
#define I(n)      value[n].i
#define D(n)      value[n].d
#define C(n)      ((wf_count){.value = value[n].d, .device = value[n].p})
#define LIST(...) __VA_ARGS__

/* The fields of the structs, each with what takes it from what was saved. */
/* clang-format off */
#define FIELDS_conv(F) F(P, geom) F(P, x) F(P, y) F(P, w) F(P, bias) F(P, epilogue) F(I, accumulate)
#define FIELDS_matmul(F) F(P, a) F(P, b) F(P, bias) F(P, c) F(I, a_transposed) F(I, b_transposed) F(I, accumulate)
#define FIELDS_matmul_stack(F) F(P, stack) F(P, a) F(P, b) F(P, c) F(I, a_transposed) F(I, b_transposed) F(I, accumulate)
#define FIELDS_pool(F) F(P, geom) F(P, x) F(P, y) F(P, index) F(I, accumulate)
#define FIELDS_resample(F) F(P, geom) F(P, x) F(P, y) F(I, accumulate)
#define FIELDS_taps(F) F(P, x) F(P, y) F(P, start) F(P, weight) F(I, x_lo) F(I, y_lo) F(I, accumulate)
#define FIELDS_norm(F)                                                                                                 \
    F(P, x) F(P, y) F(P, dy) F(P, dx) F(P, residual) F(P, g) F(P, mean) F(P, m2) F(P, invstd) F(P, gamma) F(P, beta) F(P, sum_g)              \
    F(P, sum_gx) F(P, running_mean) F(P, running_var) F(P, epilogue) F(C, count) F(D, eps) F(D, decay)   \
    F(I, y_of_x)
#define FIELDS_group_norm(F)                                                                                           \
    F(I, rows) F(I, places) F(I, channels) F(I, groups) F(I, size) F(I, first) F(D, count) F(D, eps) F(I, about_zero)  \
    F(P, x) F(P, y) F(P, dy) F(P, dx) F(P, gamma) F(P, beta) F(P, stats) F(P, sums) F(P, dgamma) F(P, dbeta)
#define EACH_OF(F, field) F(I, field[0]) F(I, field[1]) F(I, field[2])
#define FIELDS_places(F) F(I, nd) F(P, index) F(P, y) EACH_OF(F, length) EACH_OF(F, lo) EACH_OF(F, whole)
#define FIELDS_unpool(F) F(P, places) F(P, index) F(P, taken)
#define FIELDS_attention(F)                                                                                            \
    F(I, heads) F(D, scale) F(P, q) F(P, k) F(P, v) F(P, y) F(P, lse) F(P, dy) F(P, dq) F(P, dk) F(P, dv) F(P, bias)   \
    F(P, index) F(P, dbias) F(P, mask) F(P, lengths) F(P, q_region) F(P, k_region) F(I, causal) F(I, first_query)      \
    F(I, first_key) F(I, first_sample) F(I, grid.first_row) F(I, grid.rows) F(I, grid.all_rows)                           \
    F(I, grid.first_column) F(I, grid.columns) F(I, grid.all_columns) F(I, joins) F(I, adds)          \
    F(D, dropout) F(P, random)
#define FIELDS_neighbourhood(F)                                                                                        \
    EACH_OF(F, around.length) EACH_OF(F, around.kernel) EACH_OF(F, around.dilation) EACH_OF(F, around.first_query)     \
    EACH_OF(F, around.first_key) F(I, heads) F(D, scale) F(P, q) F(P, k) F(P, v) F(P, y) F(P, lse) F(P, dy) F(P, dq)    \
    F(P, dk) F(P, dv) F(P, bias) F(P, dbias)
#define FIELDS_gates(F)                                                                                                \
    F(I, cell) F(I, step) F(P, lengths) F(P, input) F(P, recurrent) F(P, bias) F(P, recurrent_bias) F(P, gates)        \
    F(P, kept) F(P, cell_before) F(P, before) F(P, h) F(P, y) F(P, dy) F(P, dh) F(P, dcell) F(P, dinput) F(P, drecurrent)
#define FIELDS_act(F) F(I, act) F(D, slope) F(P, x) F(P, y) F(P, dy) F(P, dx) F(I, accumulate)
#define FIELDS_binary(F) F(I, op) F(D, alpha) F(D, beta) F(P, a) F(P, b) F(P, y) F(I, accumulate)
#define FIELDS_fold(F) F(I, op) F(D, alpha) F(D, beta) F(P, a) F(P, b) F(P, c) F(P, y) F(I, accumulate)
#define FIELDS_take(F)                                                                                                 \
    F(P, table) F(P, index) F(P, y) F(I, first) F(I, whole) F(I, ignored) F(I, accumulate)
#define FIELDS_loss(F)                                                                                                 \
    F(I, kind) F(P, x) F(P, target) F(D, value) F(D, scale) F(D, delta) F(D, gamma) F(D, alpha)                       \
    F(P, loss) F(P, dloss) F(P, dx)
#define FIELDS_entropy(F)                                                                                              \
    F(P, x) F(P, labels) F(I, ignored) F(D, scale) F(P, weight) F(D, smoothing) F(P, log_sum) F(P, loss) F(P, dloss) F(P, dx) \
    F(P, most) F(I, first) F(I, whole)
#define FIELDS_label_place(F) F(P, x) F(P, labels) F(I, ignored) F(I, first) F(I, whole) F(P, at) F(P, before)
/* clang-format on */

#define LOOK_FIELD(kind, field) LOOK(args->field)
#define SAVE_FIELD(kind, field) SAVE(args->field)
#define TAKE_FIELD(kind, field) args.field = kind(at), at++;

/* --- the slots -----------------------------------------------------------------------------------------------------
 */

static const wf_kernels *under(const wf_ctx *ctx)
{
    return ctx->dtype == WF_F64 ? wf_kernels_ref() : wf_kernels_cpu();
}

/* The slot, once the stream in use has come so far. */
#define CALL(slot, ...)                                                                                                \
    guard_stream_catch_up();                                                                                           \
    guard_open_for(ctx);                                                                                               \
    const wf_status status = under(ctx)->slot(ctx, __VA_ARGS__);                                                       \
    guard_close();                                                                                                     \
    return status;

/* A slot that is given a struct; `form` is the struct's. */
#define SLOT_OF(form, slot)                                                                                            \
    static wf_status again_##slot(wf_ctx *ctx, const guard_value *value)                                               \
    {                                                                                                                  \
        wf_##form##_args args = {0};                                                                                   \
        int at = 0;                                                                                                    \
        FIELDS_##form(TAKE_FIELD) CALL(slot, &args)                                                                    \
    }                                                                                                                  \
    static wf_status guard_##slot(wf_ctx *ctx, const wf_##form##_args *args)                                           \
    {                                                                                                                  \
        static const char slot_name[] = #slot;                                                                         \
        FIELDS_##form(LOOK_FIELD) if (guard_capturing())                                                               \
        {                                                                                                              \
            guard_value value[GUARD_VALUES] = {0};                                                                     \
            int at = 0;                                                                                                \
            FIELDS_##form(SAVE_FIELD) return guard_keep_call(again_##slot, value);                                     \
        }                                                                                                              \
        CALL(slot, args)                                                                                               \
    }

/* A slot whose parameters are named a to e in their order; `kinds` takes them from what was saved. */
#define SLOT(n, slot, parameters, kinds, ...)                                                                          \
    static wf_status again_##slot(wf_ctx *ctx, const guard_value *value)                                               \
    {                                                                                                                  \
        CALL(slot, LIST kinds)                                                                                         \
    }                                                                                                                  \
    static wf_status guard_##slot parameters                                                                           \
    {                                                                                                                  \
        static const char slot_name[] = #slot;                                                                         \
        EACH##n(LOOK, __VA_ARGS__) if (guard_capturing())                                                              \
        {                                                                                                              \
            guard_value value[GUARD_VALUES] = {0};                                                                     \
            int at = 0;                                                                                                \
            EACH##n(SAVE, __VA_ARGS__) return guard_keep_call(again_##slot, value);                                    \
        }                                                                                                              \
        CALL(slot, __VA_ARGS__)                                                                                        \
    }

#define CTX   wf_ctx *ctx
#define ARRAY const wf_array
#define EPI   const wf_epilogue

SLOT(3, copy, (CTX, const wf_strided *a, const wf_strided *b, bool c), (P(0), P(1), I(2)), a, b, c)
SLOT(2, fill, (CTX, ARRAY *a, double b), (P(0), D(1)), a, b)
SLOT(5, random, (CTX, wf_distribution a, const wf_random *b, double c, double d, ARRAY *e),
     (I(0), P(1), D(2), D(3), P(4)), a, b, c, d, e)
SLOT_OF(conv, conv_forward)
SLOT_OF(conv, conv_backward_data)
SLOT_OF(conv, conv_backward_filter)
SLOT(3, bias_backward, (CTX, ARRAY *a, ARRAY *b, bool c), (P(0), P(1), I(2)), a, b, c)
SLOT(4, epilogue_backward, (CTX, EPI *a, ARRAY *b, ARRAY *c, ARRAY *d), (P(0), P(1), P(2), P(3)), a, b, c, d)
SLOT_OF(matmul, matmul)
SLOT_OF(matmul_stack, matmul_stack)
SLOT_OF(pool, pool_forward)
SLOT_OF(pool, pool_backward)
SLOT_OF(places, pool_places)
SLOT_OF(unpool, unpool_index)
SLOT(3, pick_pixels, (CTX, ARRAY *a, ARRAY *b, ARRAY *c), (P(0), P(1), P(2)), a, b, c)
SLOT_OF(resample, resample_forward)
SLOT_OF(resample, resample_backward)
SLOT_OF(taps, taps)
SLOT_OF(norm, norm_stats)
SLOT_OF(norm, norm_forward)
SLOT_OF(norm, norm_backward_stats)
SLOT_OF(norm, norm_backward)
SLOT(4, norm_part, (CTX, const wf_norm_head *a, ARRAY *b, ARRAY *c, ARRAY *d), (P(0), P(1), P(2), P(3)), a, b, c, d)
SLOT(4, norm_merge, (CTX, ARRAY *a, ARRAY *b, ARRAY *c, ARRAY *d), (P(0), P(1), P(2), P(3)), a, b, c, d)
SLOT_OF(norm, norm_finish)
SLOT_OF(group_norm, group_norm_stats)
SLOT_OF(group_norm, group_norm_forward)
SLOT_OF(group_norm, group_norm_backward_stats)
SLOT_OF(group_norm, group_norm_backward)
SLOT(2, group_norm_merge, (CTX, ARRAY *a, ARRAY *b), (P(0), P(1)), a, b)
SLOT_OF(act, act_forward)
SLOT_OF(act, act_backward)
SLOT_OF(binary, binary)
SLOT_OF(fold, fold)
SLOT(4, dropout, (CTX, double a, const wf_random *b, ARRAY *c, ARRAY *d), (D(0), P(1), P(2), P(3)), a, b, c, d)
SLOT(3, epilogue_forward, (CTX, EPI *a, ARRAY *b, ARRAY *c), (P(0), P(1), P(2)), a, b, c)
SLOT(3, sum, (CTX, ARRAY *a, double b, ARRAY *c), (P(0), D(1), P(2)), a, b, c)
SLOT(3, sum_squares, (CTX, ARRAY *a, ARRAY *b, bool c), (P(0), P(1), I(2)), a, b, c)
SLOT(3, softmax_forward, (CTX, bool a, ARRAY *b, ARRAY *c), (I(0), P(1), P(2)), a, b, c)
SLOT(4, softmax_backward, (CTX, bool a, ARRAY *b, ARRAY *c, ARRAY *d), (I(0), P(1), P(2), P(3)), a, b, c, d)
SLOT_OF(attention, attention_forward)
SLOT_OF(attention, attention_backward)
SLOT_OF(neighbourhood, neighbourhood_forward)
SLOT_OF(neighbourhood, neighbourhood_backward)
SLOT_OF(gates, gates_forward)
SLOT_OF(gates, gates_backward)
SLOT(3, row_most, (CTX, ARRAY *a, ARRAY *b, ARRAY *c), (P(0), P(1), P(2)), a, b, c)
SLOT(3, row_most_backward, (CTX, ARRAY *a, ARRAY *b, ARRAY *c), (P(0), P(1), P(2)), a, b, c)
SLOT_OF(take, take_forward)
SLOT_OF(take, take_backward)
SLOT_OF(loss, loss_forward)
SLOT_OF(loss, loss_backward)
SLOT(5, nll_forward, (CTX, ARRAY *a, ARRAY *b, int64_t c, double d, ARRAY *e), (P(0), P(1), I(2), D(3), P(4)), a, b, c,
     d, e)
SLOT(5, nll_backward, (CTX, ARRAY *a, int64_t b, ARRAY *c, double d, ARRAY *e), (P(0), I(1), P(2), D(3), P(4)), a, b, c,
     d, e)
SLOT_OF(entropy, entropy_forward)
SLOT_OF(entropy, entropy_backward)
SLOT(5, count_correct, (CTX, ARRAY *a, ARRAY *b, int64_t c, int64_t d, ARRAY *e), (P(0), P(1), I(2), I(3), P(4)), a, b,
     c, d, e)
SLOT_OF(label_place, label_place)
SLOT(3, count_labels, (CTX, ARRAY *a, int64_t b, ARRAY *c), (P(0), I(1), P(2)), a, b, c)
SLOT(5, optim_update, (CTX, wf_optim_kind a, const wf_optim_hyper *b, wf_dtype c, int64_t d, const wf_optim_segment *e),
     (I(0), P(1), I(2), I(3), P(4)), a, b, c, d, e)
SLOT(4, step_verdict, (CTX, const void *a, wf_dtype b, double c, wf_optim_hyper *d), (P(0), I(1), D(2), P(3)), a, b, c,
     d)
SLOT(3, loss_scale, (CTX, const double *a, wf_loss_scaling *b, wf_optim_hyper *c), (P(0), P(1), P(2)), a, b, c)
SLOT(3, clip_scale, (CTX, const double *a, double b, wf_optim_hyper *c), (P(0), D(1), P(2)), a, b, c)

static wf_status guard_to_device(wf_ctx *ctx, void *device, const void *host, size_t bytes)
{
    return guard_to_device_begin(ctx, device, host, bytes, NULL);
}

static wf_status guard_to_host(wf_ctx *ctx, void *host, const void *device, size_t bytes)
{
    return guard_to_host_begin(ctx, host, device, bytes, NULL);
}

static int guard_device_count(void)
{
    return devices;
}

/* The device of this process, which has one context that communicates. */
static int chosen;
static int current;

void guard_here(void)
{
    current = chosen;
}

bool guard_is_here(void)
{
    return current == chosen;
}

void guard_set_device(int ordinal)
{
    current = ordinal;
}

static wf_status guard_device_choose(wf_ctx *ctx, int ordinal)
{
    WF_CHECK(ordinal >= 0 && ordinal < devices, WF_ERR_ARGUMENT, "there is no device %d of %d", ordinal, devices);
    chosen = current = ordinal;
    return WF_OK;
}

static wf_status guard_device_identity(wf_ctx *ctx, char identity[WF_DEVICE_IDENTITY])
{
    snprintf(identity, WF_DEVICE_IDENTITY, "guard-%d", chosen);
    return WF_OK;
}

static wf_status guard_device_of(wf_ctx *ctx, const void *data, int *ordinal)
{
    *ordinal = chosen;
    WF_CHECK(guard_holds(data), WF_ERR_ARGUMENT, "memory at %p is not memory of device %d", data, chosen);
    return WF_OK;
}

static void guard_shutdown(wf_ctx *ctx)
{
    wf_kernels_cpu()->shutdown(ctx);
}

static wf_kernels filled(void)
{
    wf_kernels k = {.name = "cuda", .alloc = guard_alloc, .release = guard_release, .shutdown = guard_shutdown};
    const wf_kernels *host = wf_kernels_ref();
    k.library = wf_kernels_cpu()->library; /* which computes */
    k.device_count = guard_device_count;
    k.device_choose = guard_device_choose;
    k.device_identity = guard_device_identity;
    k.device_of = guard_device_of;
    k.stream_new = guard_stream_new;
    k.stream_free = guard_stream_free;
    k.stream_use = guard_stream_use;
    k.stream_finish = guard_stream_finish;
    k.event_new = guard_event_new;
    k.event_free = guard_event_free;
    k.event_record = guard_event_record;
    k.event_wait = guard_event_wait;
    k.event_done = guard_event_done;
    k.capture_begin = guard_capture_begin;
    k.capture_end = guard_capture_end;
    k.graph_launch = guard_graph_launch;
    k.graph_free = guard_graph_free;
    k.pinned_alloc = host->pinned_alloc;
    k.pinned_release = host->pinned_release;
    k.to_device_begin = guard_to_device_begin;
    k.to_host_begin = guard_to_host_begin;
    k.share = guard_share;
    k.map = guard_map;
    k.unmap = guard_unmap;
    k.to_device = guard_to_device;
    k.to_host = guard_to_host;
#define TAKE(slot) k.slot = guard_##slot
    TAKE(copy), TAKE(fill), TAKE(random), TAKE(conv_forward), TAKE(conv_backward_data), TAKE(conv_backward_filter);
    TAKE(bias_backward), TAKE(epilogue_backward), TAKE(matmul), TAKE(matmul_stack), TAKE(pool_forward),
        TAKE(pool_backward), TAKE(pool_places), TAKE(unpool_index), TAKE(pick_pixels);
    TAKE(resample_forward), TAKE(resample_backward), TAKE(taps), TAKE(norm_stats), TAKE(norm_forward),
        TAKE(norm_backward_stats);
    TAKE(norm_backward), TAKE(norm_part), TAKE(norm_merge), TAKE(norm_finish), TAKE(group_norm_stats);
    TAKE(group_norm_merge), TAKE(group_norm_forward), TAKE(group_norm_backward_stats), TAKE(group_norm_backward);
    TAKE(act_forward), TAKE(act_backward), TAKE(binary), TAKE(fold), TAKE(dropout);
    TAKE(epilogue_forward), TAKE(sum), TAKE(sum_squares), TAKE(softmax_forward), TAKE(softmax_backward);
    TAKE(neighbourhood_forward), TAKE(neighbourhood_backward);
    TAKE(attention_forward), TAKE(attention_backward), TAKE(gates_forward), TAKE(gates_backward), TAKE(row_most),
        TAKE(row_most_backward), TAKE(take_forward), TAKE(take_backward), TAKE(loss_forward), TAKE(loss_backward),
        TAKE(nll_forward), TAKE(nll_backward), TAKE(entropy_forward), TAKE(entropy_backward), TAKE(count_correct),
        TAKE(label_place), TAKE(count_labels);
    TAKE(optim_update), TAKE(step_verdict), TAKE(loss_scale), TAKE(clip_scale);
    return k;
}

bool wf_cuda_found(void)
{
    return true;
}

const wf_kernels *wf_kernels_cuda(void)
{
    static wf_kernels table;
    if (!table.name)
        table = filled();
    return &table;
}
