/* The inside of the `ref` filling: arrays as doubles, and the slots by family.
 *
 * A slot opens a frame, asks for its arrays as doubles, computes with plain loops, and closes the frame, which rounds
 * the outputs to their type. f64 arrays are used where they lie. The first failure sticks to the frame.
 */
#ifndef WF_CORE_REF_IMPL_H
#define WF_CORE_REF_IMPL_H

#include "core/context_author.h"

#define REF_BLOCKS 16

typedef struct ref_block {
    double *data;
    size_t bytes;
    const wf_array *out; /* where the doubles go at the end; NULL: nowhere */
} ref_block;

typedef struct ref_frame {
    wf_ctx *ctx;
    wf_status status;
    int count;
    ref_block block[REF_BLOCKS];
} ref_frame;

ref_frame ref_begin(wf_ctx *ctx);
/* Rounds and stores the outputs (if all went well), gives the workspace back, returns the frame's status. */
wf_status ref_end(ref_frame *frame);

/* NULL for an absent array (NULL, or without data though it has elements); never NULL for an empty one. */
const double *ref_in(ref_frame *frame, const wf_array *a);
/* Not initialised, unless `keep`, which loads what the array holds. */
double *ref_out(ref_frame *frame, const wf_array *a, bool keep);
double *ref_work(ref_frame *frame, int64_t count);
bool ref_present(const wf_array *a);

/* n elements between memory of any type, `stride` elements apart, and doubles. Storing rounds to nearest even; to an
 * integer type it cuts the fraction, saturates, and makes NaN 0. */
void ref_load(wf_dtype dtype, const void *data, int64_t stride, int64_t n, double *out);
void ref_store(wf_dtype dtype, void *data, int64_t stride, int64_t n, const double *in);

/* The numbers of a random fill, in the order of the array: uniform in [0,1) or standard normal. */
void ref_draw(const wf_random *random, wf_order order, wf_distribution dist, double *out);
/* v = act(v + noise n) over the n elements of an array of this order. NULL: nothing to do. */
void ref_epilogue(ref_frame *frame, const wf_epilogue *epilogue, wf_order order, int64_t n, double *v);
/* What dy is multiplied by where the epilogue gave y. */
double ref_epilogue_slope(const wf_epilogue *epilogue, double y);

/* Spatial dimensions filled up to three: 1s in front. */
typedef struct ref_window {
    int64_t in[3], out[3];
    int64_t kernel[3], stride[3], dilation[3], pad_lo[3], pad_hi[3];
} ref_window;
ref_window ref_window_make(int nd, const wf_shape *in, const wf_shape *out, const int64_t *kernel,
                           const int64_t *stride, const int64_t *dilation, const int64_t *pad_lo,
                           const int64_t *pad_hi);
/* Entry of the input under tap k of output o along dimension d; may lie outside [0, in). */
static inline int64_t ref_window_at(const ref_window *w, int d, int64_t o, int64_t k)
{
    return o * w->stride[d] - w->pad_lo[d] + k * w->dilation[d];
}

static inline double ref_count(wf_count count)
{
    return count.device ? *count.device : count.value;
}

/* Rows of a channels-last array: samples times pixels. */
void ref_rows(const wf_array *a, int64_t *rows, int64_t *c);

/* The slots. Host memory is the device; work is done when its call returns. */
wf_alloc_fn ref_alloc;
wf_release_fn ref_release;
wf_transfer_fn ref_transfer;
wf_transfer_begin_fn ref_transfer_begin;
wf_device_count_fn ref_device_count;
wf_device_choose_fn ref_device_choose;
wf_device_identity_fn ref_device_identity;
wf_stream_new_fn ref_stream_new;
wf_stream_free_fn ref_stream_free;
wf_stream_fn ref_stream_done;
wf_event_new_fn ref_event_new;
wf_event_free_fn ref_event_free;
wf_event_stream_fn ref_event_pass;
wf_event_done_fn ref_event_done;
wf_share_fn ref_share;
wf_index_map_fn ref_map;
wf_unmap_fn ref_unmap;
wf_copy_fn ref_copy;
wf_fill_fn ref_fill;
wf_random_fn ref_random;
wf_conv_fn ref_conv_forward, ref_conv_backward_data, ref_conv_backward_filter;
wf_bias_backward_fn ref_bias_backward;
wf_matmul_fn ref_matmul;
wf_pool_fn ref_pool_forward, ref_pool_backward;
wf_resample_fn ref_resample_forward, ref_resample_backward;
wf_norm_fn ref_norm_stats, ref_norm_finish, ref_norm_forward, ref_norm_backward_stats, ref_norm_backward;
wf_norm_part_fn ref_norm_part;
wf_norm_merge_fn ref_norm_merge;
wf_act_fn ref_act_forward, ref_act_backward;
wf_binary_fn ref_binary;
wf_dropout_fn ref_dropout;
wf_epilogue_forward_fn ref_epilogue_forward;
wf_epilogue_backward_fn ref_epilogue_backward;
wf_sum_fn ref_sum;
wf_sum_squares_fn ref_sum_squares;
wf_softmax_forward_fn ref_softmax_forward;
wf_softmax_backward_fn ref_softmax_backward;
wf_loss_fn ref_loss_forward, ref_loss_backward;
wf_nll_forward_fn ref_nll_forward;
wf_nll_backward_fn ref_nll_backward;
wf_count_correct_fn ref_count_correct;
wf_optim_update_fn ref_optim_update;
wf_loss_scale_fn ref_loss_scale;
wf_clip_scale_fn ref_clip_scale;
wf_shutdown_fn ref_shutdown;

#endif
