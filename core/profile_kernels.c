/* A kernel table that times the device's own kernels, with what each call computes and moves: operations of products,
 * and the bytes of its arrays, each read or written once. A kernel that another one calls counts in that one. */
#include "core/profile_impl.h"

static double bytes_of(const wf_array *a)
{
    return a && a->data ? (double)wf_array_count(a) * (double)wf_dtype_size(a->dtype) : 0;
}

static double strided_bytes(const wf_strided *a)
{
    double count = 1;
    for (int d = 0; d < a->rank; d++)
        count *= (double)a->dim[d];
    return count * (double)wf_dtype_size(a->dtype);
}

/* A dimension with a stride of 0 is read or written once: the cache has it afterwards. */
static double held_bytes(const wf_strided *a)
{
    double count = 1;
    for (int d = 0; a && d < a->rank; d++)
        count *= a->stride[d] == 0 ? 1 : (double)a->dim[d];
    return a ? count * (double)wf_dtype_size(a->dtype) : 0;
}

static double fold_bytes(const wf_fold_args *a)
{
    return held_bytes(a->a) + held_bytes(a->b) + held_bytes(a->c) + held_bytes(a->y);
}

/* A multiplication and an addition for each weight of a filter and each element of y. The same in all three directions;
 * minimal filtering does fewer, and may seem faster than the processor is. */
static double conv_flops(const wf_conv_args *a)
{
    const double filters = (double)a->w->shape.dim[0];
    return filters > 0 ? 2 * (double)wf_array_count(a->y) * (double)wf_array_count(a->w) / filters : 0;
}

static double matmul_flops(const wf_matmul_args *a)
{
    const wf_shape c = a->c->shape;
    return 2 * (double)c.dim[0] * (double)c.dim[1] * (double)a->a->shape.dim[a->a_transposed ? 0 : 1];
}

/* Two products of T x S, five backward; of what a causal mask hides, too: models are compared by this number. */
static double attention_flops(const wf_attention_args *a)
{
    const wf_attention_sizes z = wf_attention_sizes_of(a);
    const double scores = 2 * (double)z.n * (double)a->heads * (double)z.t * (double)z.s;
    return scores * (a->dy ? (double)(3 * z.d + 2 * z.e) : (double)(z.d + z.e));
}

static double attention_bytes(const wf_attention_args *a)
{
    return bytes_of(a->q) + bytes_of(a->k) + bytes_of(a->v) + bytes_of(a->y) + bytes_of(a->dy) + bytes_of(a->dq) +
           bytes_of(a->dk) + bytes_of(a->dv);
}

/* As attention, with the pixels that a query sees as its keys. */
static double neighbourhood_flops(const wf_neighbourhood_args *a)
{
    const wf_neighbourhood_sizes z = wf_neighbourhood_sizes_of(a);
    const double scores = 2 * (double)z.n * (double)a->heads * (double)z.queries * (double)z.seen;
    return scores * (a->dy ? (double)(3 * z.d + 2 * z.e) : (double)(z.d + z.e));
}

static double neighbourhood_bytes(const wf_neighbourhood_args *a)
{
    return bytes_of(a->q) + bytes_of(a->k) + bytes_of(a->v) + bytes_of(a->y) + bytes_of(a->dy) + bytes_of(a->dq) +
           bytes_of(a->dk) + bytes_of(a->dv);
}

static double stack_flops(const wf_matmul_stack_args *a)
{
    const wf_product_stack *const s = a->stack;
    return 2 * (double)wf_stack_count(s) * (double)s->m * (double)s->n * (double)s->k;
}

/* Bytes by what the device's kernels read, not by what the slot names. */
static double norm_bytes(const wf_ctx *ctx, const wf_norm_args *a)
{
    /* The cuda filling finds the sign of y from x where it can, the cpu filling in f32 if the caller
     * asks for no g (wf_cpu_sign_of_x). */
    const bool unread = a->y_of_x && a->x && (!ctx->k->host || (!a->g && a->x->dtype == WF_F32));
    return bytes_of(a->x) + bytes_of(a->residual) + (unread ? 0 : bytes_of(a->y)) + bytes_of(a->dy) + bytes_of(a->g) +
           bytes_of(a->dx);
}

/* Parameters and states are read and written, gradients read. */
static double optim_bytes(wf_dtype dtype, int64_t segments, const wf_optim_segment *segment)
{
    double bytes = 0;
    for (int64_t i = 0; i < segments; i++) {
        const int arrays = 3 + (segment[i].state1 ? 2 : 0) + (segment[i].state2 ? 2 : 0);
        bytes += arrays * (double)segment[i].n * (double)wf_dtype_size(dtype);
    }
    return bytes;
}

/* Only the outermost kernel is recorded: what it calls is part of its time. */
static void done(wf_profile *p, const char *name, int64_t start_ns, double flops, double bytes)
{
    if (--p->depth > 0)
        return;
    wf_profile_add(
        p, WF_PROFILE_KERNEL, name,
        &(wf_profile_event){.start_ns = start_ns, .end_ns = wf_profile_clock(), .flops = flops, .bytes = bytes});
}

/* The slot of this name, with these parameters and arguments. The clock is read for the outermost call; those inside
 * only count the depth. */
#define TIMED(slot, parameters, arguments, flops, bytes)                                                               \
    static wf_status timed_##slot parameters                                                                           \
    {                                                                                                                  \
        wf_profile *p = ctx->profile;                                                                                  \
        const int64_t start_ns = p->depth++ == 0 ? wf_profile_clock() : 0;                                             \
        const wf_status status = p->device->slot arguments;                                                            \
        done(p, #slot, start_ns, flops, bytes);                                                                        \
        return status;                                                                                                 \
    }
#define TIMED_ARGS(slot, type, flops, bytes) TIMED(slot, (wf_ctx * ctx, const type *a), (ctx, a), flops, bytes)

/* A conversion counts each side in its own type. */
TIMED(copy, (wf_ctx * ctx, const wf_strided *src, const wf_strided *dst, bool accumulate), (ctx, src, dst, accumulate),
      0, strided_bytes(src) + (accumulate ? 2 : 1) * strided_bytes(dst))
TIMED(fill, (wf_ctx * ctx, const wf_array *y, double value), (ctx, y, value), 0, bytes_of(y))
TIMED(random, (wf_ctx * ctx, wf_distribution dist, const wf_random *random_key, double a, double b, const wf_array *y),
      (ctx, dist, random_key, a, b, y), 0, bytes_of(y))
TIMED_ARGS(conv_forward, wf_conv_args, conv_flops(a), bytes_of(a->x) + bytes_of(a->y) + bytes_of(a->w))
TIMED_ARGS(conv_backward_data, wf_conv_args, conv_flops(a), bytes_of(a->x) + bytes_of(a->y) + bytes_of(a->w))
TIMED_ARGS(conv_backward_filter, wf_conv_args, conv_flops(a), bytes_of(a->x) + bytes_of(a->y) + bytes_of(a->w))
TIMED(bias_backward, (wf_ctx * ctx, const wf_array *dy, const wf_array *db, bool accumulate), (ctx, dy, db, accumulate),
      0, bytes_of(dy))
TIMED(epilogue_backward,
      (wf_ctx * ctx, const wf_epilogue *epilogue, const wf_array *y, const wf_array *dy, const wf_array *dv),
      (ctx, epilogue, y, dy, dv), 0, bytes_of(y) + bytes_of(dy) + bytes_of(dv))
TIMED_ARGS(matmul, wf_matmul_args, matmul_flops(a), bytes_of(a->a) + bytes_of(a->b) + bytes_of(a->c))
TIMED_ARGS(matmul_stack, wf_matmul_stack_args, stack_flops(a), bytes_of(a->a) + bytes_of(a->b) + bytes_of(a->c))
TIMED_ARGS(pool_forward, wf_pool_args, 0, bytes_of(a->x) + bytes_of(a->y) + bytes_of(a->index))
TIMED_ARGS(pool_backward, wf_pool_args, 0, bytes_of(a->x) + bytes_of(a->y) + bytes_of(a->index))
TIMED_ARGS(pool_places, wf_places_args, 0, bytes_of(a->index) + bytes_of(a->y))
TIMED_ARGS(unpool_index, wf_unpool_args, 0, bytes_of(a->places) + bytes_of(a->index) + bytes_of(a->taken))
TIMED(pick_pixels, (wf_ctx * ctx, const wf_array *x, const wf_array *index, const wf_array *y), (ctx, x, index, y), 0,
      bytes_of(x) + bytes_of(index) + bytes_of(y))
TIMED_ARGS(resample_forward, wf_resample_args, 0, bytes_of(a->x) + bytes_of(a->y))
TIMED_ARGS(resample_backward, wf_resample_args, 0, bytes_of(a->x) + bytes_of(a->y))
TIMED_ARGS(taps, wf_taps_args, 0, bytes_of(a->x) + bytes_of(a->y))
TIMED_ARGS(norm_stats, wf_norm_args, 0, bytes_of(a->x))
TIMED(norm_part,
      (wf_ctx * ctx, const wf_norm_head *head, const wf_array *mean, const wf_array *m2, const wf_array *part),
      (ctx, head, mean, m2, part), 0, bytes_of(mean) + bytes_of(m2) + bytes_of(part))
TIMED(norm_merge,
      (wf_ctx * ctx, const wf_array *parts, const wf_array *mean, const wf_array *m2, const wf_array *count),
      (ctx, parts, mean, m2, count), 0, bytes_of(parts) + bytes_of(mean) + bytes_of(m2))
TIMED_ARGS(norm_finish, wf_norm_args, 0, bytes_of(a->m2) + bytes_of(a->invstd))
TIMED_ARGS(norm_forward, wf_norm_args, 0, norm_bytes(ctx, a))
TIMED_ARGS(norm_backward_stats, wf_norm_args, 0, norm_bytes(ctx, a))
TIMED_ARGS(norm_backward, wf_norm_args, 0, norm_bytes(ctx, a))
TIMED_ARGS(group_norm_stats, wf_group_norm_args, 0, bytes_of(a->x))
TIMED(group_norm_merge, (wf_ctx * ctx, const wf_array *parts, const wf_array *sums), (ctx, parts, sums), 0,
      bytes_of(parts) + bytes_of(sums))
TIMED_ARGS(group_norm_forward, wf_group_norm_args, 0, bytes_of(a->x) + bytes_of(a->y))
TIMED_ARGS(group_norm_backward_stats, wf_group_norm_args, 0, bytes_of(a->x) + bytes_of(a->dy))
TIMED_ARGS(group_norm_backward, wf_group_norm_args, 0, bytes_of(a->x) + bytes_of(a->dy) + bytes_of(a->dx))
TIMED_ARGS(act_forward, wf_act_args, 0, bytes_of(a->x) + bytes_of(a->y))
TIMED_ARGS(act_backward, wf_act_args, 0, bytes_of(a->x) + bytes_of(a->y) + bytes_of(a->dy) + bytes_of(a->dx))
TIMED_ARGS(binary, wf_binary_args, 0, bytes_of(a->a) + bytes_of(a->b) + bytes_of(a->y))
TIMED_ARGS(fold, wf_fold_args, 0, fold_bytes(a))
TIMED(dropout, (wf_ctx * ctx, double rate, const wf_random *random_key, const wf_array *x, const wf_array *y),
      (ctx, rate, random_key, x, y), 0, bytes_of(x) + bytes_of(y))
TIMED(epilogue_forward, (wf_ctx * ctx, const wf_epilogue *epilogue, const wf_array *x, const wf_array *y),
      (ctx, epilogue, x, y), 0, bytes_of(x) + bytes_of(y))
TIMED(sum, (wf_ctx * ctx, const wf_array *x, double scale, const wf_array *y), (ctx, x, scale, y), 0, bytes_of(x))
TIMED(sum_squares, (wf_ctx * ctx, const wf_array *x, const wf_array *out, bool accumulate), (ctx, x, out, accumulate),
      0, bytes_of(x))
TIMED(softmax_forward, (wf_ctx * ctx, bool logarithm, const wf_array *x, const wf_array *y), (ctx, logarithm, x, y), 0,
      bytes_of(x) + bytes_of(y))
TIMED(softmax_backward, (wf_ctx * ctx, bool logarithm, const wf_array *y, const wf_array *dy, const wf_array *dx),
      (ctx, logarithm, y, dy, dx), 0, bytes_of(y) + bytes_of(dy) + bytes_of(dx))
TIMED_ARGS(attention_forward, wf_attention_args, attention_flops(a), attention_bytes(a))
TIMED_ARGS(attention_backward, wf_attention_args, attention_flops(a), attention_bytes(a))
TIMED_ARGS(neighbourhood_forward, wf_neighbourhood_args, neighbourhood_flops(a), neighbourhood_bytes(a))
TIMED_ARGS(neighbourhood_backward, wf_neighbourhood_args, neighbourhood_flops(a), neighbourhood_bytes(a))
TIMED_ARGS(gates_forward, wf_gates_args, 0,
           bytes_of(a->input) + bytes_of(a->recurrent) + bytes_of(a->gates) + bytes_of(a->kept) + 3 * bytes_of(a->h))
TIMED_ARGS(gates_backward, wf_gates_args, 0,
           bytes_of(a->gates) + bytes_of(a->dinput) + bytes_of(a->drecurrent) + 5 * bytes_of(a->dy))
TIMED(row_most, (wf_ctx * ctx, const wf_array *x, const wf_array *y, const wf_array *index), (ctx, x, y, index), 0,
      bytes_of(x) + bytes_of(y) + bytes_of(index))
TIMED(row_most_backward, (wf_ctx * ctx, const wf_array *index, const wf_array *dy, const wf_array *dx),
      (ctx, index, dy, dx), 0, bytes_of(index) + bytes_of(dy) + bytes_of(dx))
TIMED_ARGS(take_forward, wf_take_args, 0, bytes_of(a->index) + 2 * bytes_of(a->y))
TIMED_ARGS(take_backward, wf_take_args, 0, bytes_of(a->index) + bytes_of(a->y) + bytes_of(a->table))
TIMED_ARGS(loss_forward, wf_loss_args, 0, bytes_of(a->x) + bytes_of(a->target))
TIMED_ARGS(loss_backward, wf_loss_args, 0, bytes_of(a->x) + bytes_of(a->target) + bytes_of(a->dx))
TIMED(nll_forward,
      (wf_ctx * ctx, const wf_array *logp, const wf_array *labels, int64_t ignored, double scale, const wf_array *loss),
      (ctx, logp, labels, ignored, scale, loss), 0, bytes_of(labels))
TIMED(nll_backward,
      (wf_ctx * ctx, const wf_array *labels, int64_t ignored, const wf_array *dloss, double scale, const wf_array *dx),
      (ctx, labels, ignored, dloss, scale, dx), 0, bytes_of(dx))
TIMED_ARGS(entropy_forward, wf_entropy_args, 0, bytes_of(a->x) + bytes_of(a->labels) + bytes_of(a->log_sum))
TIMED_ARGS(entropy_backward, wf_entropy_args, 0,
           bytes_of(a->x) + bytes_of(a->labels) + bytes_of(a->log_sum) + bytes_of(a->dx))
TIMED(count_correct,
      (wf_ctx * ctx, const wf_array *scores, const wf_array *labels, int64_t ignored, int64_t k,
       const wf_array *correct),
      (ctx, scores, labels, ignored, k, correct), 0, bytes_of(scores))
TIMED_ARGS(label_place, wf_label_place_args, 0, bytes_of(a->x))
TIMED(count_labels, (wf_ctx * ctx, const wf_array *labels, int64_t ignored, const wf_array *count),
      (ctx, labels, ignored, count), 0, bytes_of(labels))
TIMED(optim_update,
      (wf_ctx * ctx, wf_optim_kind kind, const wf_optim_hyper *hyper, wf_dtype dtype, int64_t segments,
       const wf_optim_segment *segment),
      (ctx, kind, hyper, dtype, segments, segment), 0, optim_bytes(dtype, segments, segment))

/* A slot that is not taken over is the device's own, untimed: forgetting one loses a row of the profile and breaks
 * nothing. */
#define TAKE(slot) table->slot = timed_##slot

/* Activations, functions of rows, attention, losses. */
static void take_functions(wf_kernels *table)
{
    TAKE(act_forward);
    TAKE(act_backward);
    TAKE(binary);
    TAKE(fold);
    TAKE(dropout);
    TAKE(epilogue_forward);
    TAKE(sum);
    TAKE(sum_squares);
    TAKE(softmax_forward);
    TAKE(softmax_backward);
    TAKE(attention_forward);
    TAKE(attention_backward);
    TAKE(neighbourhood_forward);
    TAKE(neighbourhood_backward);
    TAKE(gates_forward);
    TAKE(gates_backward);
    TAKE(row_most);
    TAKE(row_most_backward);
    TAKE(take_forward);
    TAKE(take_backward);
    TAKE(loss_forward);
    TAKE(loss_backward);
    TAKE(nll_forward);
    TAKE(nll_backward);
    TAKE(entropy_forward);
    TAKE(entropy_backward);
    TAKE(count_correct);
    TAKE(label_place);
    TAKE(count_labels);
}

/* Slots that do next to nothing, such as loss_scale, stay as they are. */
void wf_profile_table(wf_kernels *table)
{
    TAKE(copy);
    TAKE(fill);
    TAKE(random);
    TAKE(conv_forward);
    TAKE(conv_backward_data);
    TAKE(conv_backward_filter);
    TAKE(bias_backward);
    TAKE(epilogue_backward);
    TAKE(matmul);
    TAKE(matmul_stack);
    TAKE(pool_forward);
    TAKE(pool_backward);
    TAKE(pool_places);
    TAKE(unpool_index);
    TAKE(pick_pixels);
    TAKE(resample_forward);
    TAKE(resample_backward);
    TAKE(taps);
    TAKE(norm_stats);
    TAKE(norm_part);
    TAKE(norm_merge);
    TAKE(norm_finish);
    TAKE(norm_forward);
    TAKE(norm_backward_stats);
    TAKE(norm_backward);
    TAKE(group_norm_stats);
    TAKE(group_norm_merge);
    TAKE(group_norm_forward);
    TAKE(group_norm_backward_stats);
    TAKE(group_norm_backward);
    take_functions(table);
    TAKE(optim_update);
}
