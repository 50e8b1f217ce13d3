/* The inside of the `ref` filling: arrays as doubles, and the slots by family.
 *
 * A slot opens a frame, asks for its arrays as doubles, computes with plain loops, and closes the frame, which rounds
 * the outputs to their type. f64 arrays are used where they lie. The first failure sticks to the frame.
 */
#ifndef WF_CORE_REF_IMPL_H
#define WF_CORE_REF_IMPL_H

#include "core/context_author.h"

#define REF_BLOCKS 16

typedef struct wf_ref_block {
    double *data;
    size_t bytes;
    const wf_array *out; /* where the doubles go at the end; NULL: nowhere */
} wf_ref_block;

typedef struct wf_ref_frame {
    wf_ctx *ctx;
    wf_status status;
    int count;
    wf_ref_block block[REF_BLOCKS];
} wf_ref_frame;

wf_ref_frame wf_ref_begin(wf_ctx *ctx);
/* Rounds and stores the outputs (if all went well), gives the workspace back, returns the frame's status. */
wf_status wf_ref_end(wf_ref_frame *frame);

/* NULL for an absent array (NULL, or without data though it has elements); never NULL for an empty one. */
const double *wf_ref_in(wf_ref_frame *frame, const wf_array *a);
/* Not initialised, unless `keep`, which loads what the array holds. */
double *wf_ref_out(wf_ref_frame *frame, const wf_array *a, bool keep);
double *wf_ref_work(wf_ref_frame *frame, int64_t count);
bool wf_ref_present(const wf_array *a);

/* n elements between memory of any type, `stride` elements from one to the next, and doubles. Storing rounds to nearest
 * even; to an integer type it cuts the fraction, saturates, and makes NaN 0. */
void wf_ref_load(wf_dtype dtype, const void *data, int64_t stride, int64_t n, double *out);
void wf_ref_store(wf_dtype dtype, void *data, int64_t stride, int64_t n, const double *in);

/* The numbers of a random fill, in the order of the array: uniform in [0,1) or standard normal. */
void wf_ref_draw(const wf_random *random, wf_order order, wf_distribution dist, double *out);
/* v = act(v + noise n) over the n elements of an array of this order. NULL: nothing to do. */
void wf_ref_epilogue(wf_ref_frame *frame, const wf_epilogue *epilogue, wf_order order, int64_t n, double *v);
/* What dy is multiplied by where the epilogue gave y. */
double wf_ref_epilogue_slope(const wf_epilogue *epilogue, double y);

/* Spatial dimensions filled up to three: 1s in front. */
typedef struct wf_ref_window {
    int64_t in[3], out[3];
    int64_t kernel[3], stride[3], dilation[3], pad_lo[3], pad_hi[3];
} wf_ref_window;
wf_ref_window wf_ref_window_make(int nd, const wf_shape *in, const wf_shape *out, const int64_t *kernel,
                                 const int64_t *stride, const int64_t *dilation, const int64_t *pad_lo,
                                 const int64_t *pad_hi);
/* Entry of the input under tap k of output o along dimension d; may lie outside [0, in). */
static inline int64_t wf_ref_window_at(const wf_ref_window *w, int d, int64_t o, int64_t k)
{
    return o * w->stride[d] - w->pad_lo[d] + k * w->dilation[d];
}

static inline double wf_ref_count(wf_count count)
{
    return count.device ? *count.device : count.value;
}

/* Element i of u8, i32 or i64; WF_ERR_DTYPE of "labels", the name that is given, otherwise. */
wf_status wf_ref_integer(const char *what, const wf_array *a, int64_t i, int64_t *value);

/* Rows of a channels-last array: samples times pixels. */
void wf_ref_rows(const wf_array *a, int64_t *rows, int64_t *c);

/* The slots. Host memory is the device; work is done when its call returns. */
wf_alloc_fn wf_ref_alloc;
wf_release_fn wf_ref_release;
wf_transfer_fn wf_ref_transfer;
wf_transfer_begin_fn wf_ref_transfer_begin;
wf_device_count_fn wf_ref_device_count;
wf_device_choose_fn wf_ref_device_choose;
wf_device_identity_fn wf_ref_device_identity;
wf_device_of_fn wf_ref_device_of;
wf_stream_new_fn wf_ref_stream_new;
wf_stream_free_fn wf_ref_stream_free;
wf_stream_fn wf_ref_stream_done;
wf_event_new_fn wf_ref_event_new;
wf_event_free_fn wf_ref_event_free;
wf_event_stream_fn wf_ref_event_pass;
wf_event_done_fn wf_ref_event_done;
wf_share_fn wf_ref_share;
wf_map_fn wf_ref_map;
wf_unmap_fn wf_ref_unmap;
wf_copy_fn wf_ref_copy;
wf_fill_fn wf_ref_fill;
wf_random_fn wf_ref_random;
wf_conv_fn wf_ref_conv_forward, wf_ref_conv_backward_data, wf_ref_conv_backward_filter;
wf_bias_backward_fn wf_ref_bias_backward;
wf_matmul_fn wf_ref_matmul;
wf_matmul_stack_fn wf_ref_matmul_stack;
wf_pool_fn wf_ref_pool_forward, wf_ref_pool_backward;
wf_places_fn wf_ref_pool_places;
wf_unpool_fn wf_ref_unpool_index;
wf_pick_pixels_fn wf_ref_pick_pixels;
wf_resample_fn wf_ref_resample_forward, wf_ref_resample_backward;
wf_taps_fn wf_ref_taps;
wf_norm_fn wf_ref_norm_stats, wf_ref_norm_finish, wf_ref_norm_forward, wf_ref_norm_backward_stats, wf_ref_norm_backward;
wf_norm_part_fn wf_ref_norm_part;
wf_norm_merge_fn wf_ref_norm_merge;
wf_group_norm_fn wf_ref_group_norm_stats, wf_ref_group_norm_forward, wf_ref_group_norm_backward_stats,
    wf_ref_group_norm_backward;
wf_group_norm_merge_fn wf_ref_group_norm_merge;
wf_act_fn wf_ref_act_forward, wf_ref_act_backward;
wf_binary_fn wf_ref_binary;
wf_fold_fn wf_ref_fold;
wf_dropout_fn wf_ref_dropout;
wf_epilogue_forward_fn wf_ref_epilogue_forward;
wf_epilogue_backward_fn wf_ref_epilogue_backward;
wf_sum_fn wf_ref_sum;
wf_sum_squares_fn wf_ref_sum_squares;
wf_softmax_forward_fn wf_ref_softmax_forward;
wf_softmax_backward_fn wf_ref_softmax_backward;
wf_attention_fn wf_ref_attention_forward, wf_ref_attention_backward;
wf_neighbourhood_fn wf_ref_neighbourhood_forward, wf_ref_neighbourhood_backward;
wf_gates_fn wf_ref_gates_forward, wf_ref_gates_backward;
wf_row_most_fn wf_ref_row_most;
wf_row_most_backward_fn wf_ref_row_most_backward;
wf_take_fn wf_ref_take_forward, wf_ref_take_backward;
wf_loss_fn wf_ref_loss_forward, wf_ref_loss_backward;
wf_nll_forward_fn wf_ref_nll_forward;
wf_nll_backward_fn wf_ref_nll_backward;
wf_entropy_fn wf_ref_entropy_forward, wf_ref_entropy_backward;
wf_count_correct_fn wf_ref_count_correct;
wf_label_place_fn wf_ref_label_place;
wf_count_labels_fn wf_ref_count_labels;
wf_optim_update_fn wf_ref_optim_update;
wf_step_verdict_fn wf_ref_step_verdict;
wf_loss_scale_fn wf_ref_loss_scale;
wf_clip_scale_fn wf_ref_clip_scale;
wf_shutdown_fn wf_ref_shutdown;

#endif
