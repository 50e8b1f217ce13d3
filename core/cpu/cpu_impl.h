/* Inside the cpu filling: its slots, and what they share. Float32 has fast forms throughout; what a slot has no fast
 * form for goes to the ref slot of the same name. Results depend on the inputs alone or, where oneDNN sums, on the
 * inputs and the number of threads. */
#ifndef WF_CORE_CPU_CPU_IMPL_H
#define WF_CORE_CPU_CPU_IMPL_H

#include "core/context_author.h"

#include <stdint.h>

/* Clang says where it did not make vectors of a loop, as under sanitizers; that is no error. */
#if defined(__clang__)
#pragma clang diagnostic ignored "-Wpass-failed"
#endif

#define REF wf_kernels_ref()

/* Threads worth waking for `work` elements of light arithmetic. */
static inline int wf_cpu_team(const wf_ctx *ctx, int64_t work)
{
    return work < 16384 || ctx->threads < 1 ? 1 : ctx->threads;
}

/* How many of `pieces`, each a millisecond or so of heavy arithmetic, are computed before messages get a turn: all
 * where none are on their way. */
static inline int64_t wf_cpu_turn(const wf_ctx *ctx, int64_t pieces)
{
    const int64_t few = 2 * (ctx->threads < 1 ? 1 : ctx->threads);
    return ctx->progress && few < pieces ? few : pieces;
}

/* a b + c: rounded once where the processor does that, else twice. A call of fmaf would keep a loop from vectors. */
static inline float wf_fma(float a, float b, float c)
{
#if defined(__FMA__) || defined(__FP_FAST_FMAF)
    return __builtin_fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

static inline int64_t wf_cpu_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* The elements of an array that may be absent: NULL, or without data. */
static inline void *wf_cpu_data(const wf_array *a)
{
    return a ? a->data : NULL;
}

/* Returns true if an array is absent or of this type. */
static inline bool wf_cpu_is(const wf_array *a, wf_dtype dtype)
{
    return !a || !a->data || a->dtype == dtype;
}

/* Element i of an array of u8, i32 or i64. */
static inline int64_t wf_cpu_integer(const wf_array *a, int64_t i)
{
    if (a->dtype == WF_U8)
        return ((const uint8_t *)a->data)[i];
    return a->dtype == WF_I32 ? ((const int32_t *)a->data)[i] : ((const int64_t *)a->data)[i];
}

/* Returns true if an array of numbers has one of these types, and all are in [0, below), or `ignored`. Checked before
 * anything is written, in one pass; the loop that writes then needs no check. */
static inline bool wf_cpu_integers_fit(const wf_array *a, int64_t n, int64_t below, int64_t ignored)
{
    if (a->dtype != WF_U8 && a->dtype != WF_I32 && a->dtype != WF_I64)
        return false;
    for (int64_t i = 0; i < n; i++) {
        const int64_t v = wf_cpu_integer(a, i);
        if (!wf_is_ignored(v, ignored) && (v < 0 || v >= below))
            return false;
    }
    return true;
}

/* The number of rows of C contiguous elements of a rank 2 to 5 array. */
static inline int64_t wf_cpu_rows(const wf_array *a, int64_t *channels)
{
    int64_t n = 0, pixels = 0;
    wf_array_ncp(a, &n, channels, &pixels);
    return n * pixels;
}

static inline bool wf_epilogue_is_plain(const wf_epilogue *epilogue)
{
    return !epilogue || (epilogue->act == WF_ACT_NONE && epilogue->noise == 0);
}

/* The slope of the epilogue's activation on negative values: 1 for none, 0 for ReLU. */
static inline float wf_epilogue_slope(const wf_epilogue *epilogue)
{
    if (!epilogue || epilogue->act == WF_ACT_NONE)
        return 1.0F;
    return epilogue->act == WF_ACT_RELU ? 0.0F : (float)epilogue->slope;
}

/* Elements of a chunk that stays in the first-level cache, a multiple of 16. */
#define WF_CPU_CHUNK 2048

/* Standard normal numbers for elements [lo, lo + n) of the array in memory, n <= WF_CPU_CHUNK; `out` holds n numbers.
 * wf_cpu_uniforms: numbers in [0, 1). */
void wf_cpu_normals(const wf_random *random, wf_order order, int64_t lo, int64_t n, float *out);
void wf_cpu_uniforms(const wf_random *random, wf_order order, int64_t lo, int64_t n, float *out);

/* y = act(x + sd n) of `count` elements that start at element `lo` of the array; the activation and the noise are the
 * epilogue's (not NULL). x and y may be the same. */
void wf_epilogue_apply(const wf_epilogue *epilogue, wf_order order, int64_t lo, int64_t count, const float *x,
                       float *y);

/* y[row][c] = epilogue(x[row][c] + bias[c]), in place where y is x; bias and epilogue may be NULL. f32, bf16 or f16. */
wf_status wf_cpu_bias_epilogue(wf_ctx *ctx, const wf_array *bias, const wf_epilogue *epilogue, const wf_array *x,
                               const wf_array *y);

/* Convolutions as products of matrices, and whether that is faster than oneDNN's and minimal filtering: types that
 * wf_cpu_matmul multiplies, no negative pads. wf_cpu_columns_data knows no bias and no epilogue. */
bool wf_cpu_columns_pay(const wf_conv_args *args);
bool wf_cpu_columns_data_pay(const wf_conv_args *args);
bool wf_cpu_columns_gradient_pay(const wf_conv_args *args);
wf_conv_fn wf_cpu_columns_forward, wf_cpu_columns_data, wf_cpu_columns_gradient;

/* The slots. */
wf_library_fn wf_cpu_library;
wf_multiplies_fn wf_cpu_multiplies;
wf_alloc_fn wf_cpu_alloc;
wf_release_fn wf_cpu_release;
wf_copy_fn wf_cpu_copy;
wf_fill_fn wf_cpu_fill;
wf_random_fn wf_cpu_random;
wf_conv_fn wf_cpu_conv_forward, wf_cpu_conv_backward_data, wf_cpu_conv_backward_filter;
wf_bias_backward_fn wf_cpu_bias_backward;
wf_matmul_fn wf_cpu_matmul;
wf_matmul_stack_fn wf_cpu_matmul_stack;
wf_pool_fn wf_cpu_pool_forward, wf_cpu_pool_backward;
wf_places_fn wf_cpu_pool_places;
wf_unpool_fn wf_cpu_unpool_index;
wf_pick_pixels_fn wf_cpu_pick_pixels;
wf_resample_fn wf_cpu_resample_forward, wf_cpu_resample_backward;
wf_taps_fn wf_cpu_taps;
wf_norm_fn wf_cpu_norm_stats, wf_cpu_norm_forward, wf_cpu_norm_backward_stats, wf_cpu_norm_backward;
wf_group_norm_fn wf_cpu_group_norm_stats, wf_cpu_group_norm_forward, wf_cpu_group_norm_backward_stats,
    wf_cpu_group_norm_backward;
wf_act_fn wf_cpu_act_forward, wf_cpu_act_backward;
wf_binary_fn wf_cpu_binary;
wf_fold_fn wf_cpu_fold;
wf_dropout_fn wf_cpu_dropout;
wf_epilogue_forward_fn wf_cpu_epilogue_forward;
wf_epilogue_backward_fn wf_cpu_epilogue_backward;
wf_sum_fn wf_cpu_sum;
wf_sum_squares_fn wf_cpu_sum_squares;
wf_softmax_forward_fn wf_cpu_softmax_forward;
wf_softmax_backward_fn wf_cpu_softmax_backward;
wf_attention_fn wf_cpu_attention_forward, wf_cpu_attention_backward;
wf_neighbourhood_fn wf_cpu_neighbourhood_forward, wf_cpu_neighbourhood_backward;
wf_gates_fn wf_cpu_gates_forward, wf_cpu_gates_backward;
wf_row_most_fn wf_cpu_row_most;
wf_row_most_backward_fn wf_cpu_row_most_backward;
wf_take_fn wf_cpu_take_forward, wf_cpu_take_backward;
wf_loss_fn wf_cpu_loss_forward, wf_cpu_loss_backward;
wf_nll_forward_fn wf_cpu_nll_forward;
wf_nll_backward_fn wf_cpu_nll_backward;
wf_entropy_fn wf_cpu_entropy_forward, wf_cpu_entropy_backward;
wf_optim_update_fn wf_cpu_optim_update;
wf_shutdown_fn wf_cpu_shutdown;

/* Slots for what has no fast form: where there are 16-bit floats, the slot of the cpu filling computes on f32 copies of
 * them; everything else goes to ref. */
wf_conv_fn wf_wide_conv_forward, wf_wide_conv_backward_data, wf_wide_conv_backward_filter;
wf_matmul_fn wf_wide_matmul;
wf_matmul_stack_fn wf_wide_matmul_stack;
wf_neighbourhood_fn wf_wide_neighbourhood_forward, wf_wide_neighbourhood_backward;
wf_sum_fn wf_wide_sum;
wf_sum_squares_fn wf_wide_sum_squares;
wf_softmax_forward_fn wf_wide_softmax_forward;
wf_softmax_backward_fn wf_wide_softmax_backward;
wf_loss_fn wf_wide_loss_forward, wf_wide_loss_backward;
wf_nll_backward_fn wf_wide_nll_backward;
wf_entropy_fn wf_wide_entropy_forward, wf_wide_entropy_backward;

/* Filters in the form that an algorithm wants, kept beside the array where it lets one. */
typedef struct wf_filter_form {
    void *data;
    void *temporary; /* of the pool, where the array keeps no forms */
    size_t bytes;
} wf_filter_form;

/* Makes the form of `w` at `form`; `how` says which. */
typedef wf_status (*wf_filter_form_maker)(wf_ctx *ctx, const void *how, const wf_array *w, void *form);

/* The form of w under this key, made anew if w has changed since. Give it back with wf_filter_form_give. */
wf_status wf_filter_form_take(wf_ctx *ctx, const wf_array *w, uint64_t key, size_t bytes, wf_filter_form_maker make,
                              const void *how, wf_filter_form *form);
void wf_filter_form_give(wf_ctx *ctx, wf_filter_form *form);

/* Filter gradients of depthwise convolutions (core/cpu/depthwise.c), of f32 or bf16, without the bias's. `has`: whether
 * it has this geometry and is the fastest way. Pads are not negative. */
bool wf_depthwise_has_gradient(const wf_conv_args *args);
wf_status wf_depthwise_gradient(wf_ctx *ctx, const wf_conv_args *args);

/* Convolutions of groups of four or eight channels (core/cpu/grouped.c), of f32 or bf16 with pads that are not
 * negative. `pays`: whether it has this form and is faster. forward: with bias and leaky ReLU of this slope; data: with
 * neither (the args have no bias); gradient: of the filter in f32, without the bias's. */
bool wf_grouped_pays(const wf_conv_args *args);
bool wf_grouped_data_pays(const wf_conv_args *args);
bool wf_grouped_gradient_pays(const wf_conv_args *args);
wf_status wf_grouped_forward(wf_ctx *ctx, const wf_conv_args *args, float slope);
wf_status wf_grouped_data(wf_ctx *ctx, const wf_conv_args *args);
wf_status wf_grouped_gradient(wf_ctx *ctx, const wf_conv_args *args);

/* Filter gradients of convolutions with a kernel of one pixel (core/cpu/pointwise.c), in f32 from f32 or bf16, with the
 * bias's. `pays`: whether it has this form and is faster. */
bool wf_pointwise_gradient_pays(const wf_conv_args *args);
wf_status wf_pointwise_gradient(wf_ctx *ctx, const wf_conv_args *args);

#endif
