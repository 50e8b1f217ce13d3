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

/* The slots, as in core/kernels_author.h. */
wf_status ref_alloc(wf_ctx *ctx, size_t bytes, void **data);
void ref_release(wf_ctx *ctx, void *data, size_t bytes);
wf_status ref_transfer(wf_ctx *ctx, void *to, const void *from, size_t bytes);

/* device.c: host memory is the device; work is done when its call returns. */
int ref_device_count(void);
wf_status ref_device_choose(wf_ctx *ctx, int ordinal);
wf_status ref_device_identity(wf_ctx *ctx, char identity[WF_DEVICE_IDENTITY]);
wf_status ref_stream_new(wf_ctx *ctx, wf_stream **stream);
void ref_stream_free(wf_ctx *ctx, wf_stream *stream);
wf_status ref_stream_done(wf_ctx *ctx, wf_stream *stream);
wf_status ref_event_new(wf_ctx *ctx, wf_event **event);
void ref_event_free(wf_ctx *ctx, wf_event *event);
wf_status ref_event_pass(wf_ctx *ctx, wf_event *event, wf_stream *stream);
wf_status ref_event_done(wf_ctx *ctx, wf_event *event, bool *done);
wf_status ref_transfer_begin(wf_ctx *ctx, void *to, const void *from, size_t bytes, wf_stream *stream);
wf_status ref_share(wf_ctx *ctx, void *data, size_t bytes, wf_share *share);
wf_status ref_map(wf_ctx *ctx, const wf_share *share, void **data);
void ref_unmap(wf_ctx *ctx, void *data);
wf_status ref_copy(wf_ctx *ctx, const wf_strided *src, const wf_strided *dst, bool accumulate);
wf_status ref_fill(wf_ctx *ctx, const wf_array *y, double value);
wf_status ref_random(wf_ctx *ctx, wf_distribution dist, const wf_random *random, double a, double b, const wf_array *y);
wf_status ref_dropout(wf_ctx *ctx, double rate, const wf_random *random, const wf_array *x, const wf_array *y);

wf_status ref_conv_forward(wf_ctx *ctx, const wf_conv_geom *geom, const wf_array *x, const wf_array *w,
                           const wf_array *bias, const wf_epilogue *epilogue, const wf_array *y);
wf_status ref_conv_backward_data(wf_ctx *ctx, const wf_conv_geom *geom, const wf_array *dy, const wf_array *w,
                                 const wf_array *bias, const wf_epilogue *epilogue, const wf_array *dx);
wf_status ref_conv_backward_filter(wf_ctx *ctx, const wf_conv_geom *geom, const wf_array *x, const wf_array *dy,
                                   const wf_array *dw, const wf_array *dbias, bool accumulate);
wf_status ref_bias_backward(wf_ctx *ctx, const wf_array *dy, const wf_array *db, bool accumulate);
wf_status ref_matmul(wf_ctx *ctx, const wf_array *a, bool a_transposed, const wf_array *b, bool b_transposed,
                     const wf_array *bias, const wf_array *c, bool accumulate);

wf_status ref_pool_forward(wf_ctx *ctx, const wf_pool_geom *geom, const wf_array *x, const wf_array *y,
                           const wf_array *index);
wf_status ref_resample_forward(wf_ctx *ctx, const wf_resample_geom *geom, const wf_array *x, const wf_array *y);
wf_status ref_resample_backward(wf_ctx *ctx, const wf_resample_geom *geom, const wf_array *dy, const wf_array *dx,
                                bool accumulate);
wf_status ref_pool_backward(wf_ctx *ctx, const wf_pool_geom *geom, const wf_array *dy, const wf_array *index,
                            const wf_array *dx, bool accumulate);

wf_status ref_norm_stats(wf_ctx *ctx, const wf_array *x, const wf_array *mean, const wf_array *m2);
wf_status ref_norm_forward(wf_ctx *ctx, const wf_array *x, const wf_array *mean, const wf_array *invstd,
                           const wf_array *gamma, const wf_array *beta, const wf_epilogue *epilogue, const wf_array *y);
wf_status ref_norm_backward_stats(wf_ctx *ctx, const wf_array *x, const wf_array *mean, const wf_array *invstd,
                                  const wf_epilogue *epilogue, const wf_array *y, const wf_array *dy,
                                  const wf_array *sum_g, const wf_array *sum_gx);
wf_status ref_norm_backward(wf_ctx *ctx, const wf_array *x, const wf_array *mean, const wf_array *invstd,
                            const wf_array *gamma, const wf_epilogue *epilogue, const wf_array *y, const wf_array *dy,
                            const wf_array *sum_g, const wf_array *sum_gx, wf_count count, const wf_array *dx);
wf_status ref_norm_part(wf_ctx *ctx, const wf_norm_head *head, const wf_array *mean, const wf_array *m2,
                        const wf_array *part);
wf_status ref_norm_merge(wf_ctx *ctx, const wf_array *parts, const wf_array *mean, const wf_array *m2,
                         const wf_array *count);
wf_status ref_norm_finish(wf_ctx *ctx, const wf_array *mean, const wf_array *m2, wf_count count, double eps,
                          double decay, const wf_array *invstd, const wf_array *running_mean,
                          const wf_array *running_var);

wf_status ref_act_forward(wf_ctx *ctx, wf_act act, double slope, const wf_array *x, const wf_array *y);
wf_status ref_act_backward(wf_ctx *ctx, wf_act act, double slope, const wf_array *x, const wf_array *y,
                           const wf_array *dy, const wf_array *dx, bool accumulate);
wf_status ref_binary(wf_ctx *ctx, wf_binary op, double alpha, const wf_array *a, double beta, const wf_array *b,
                     const wf_array *y, bool accumulate);
wf_status ref_epilogue_forward(wf_ctx *ctx, const wf_epilogue *epilogue, const wf_array *x, const wf_array *y);
wf_status ref_epilogue_backward(wf_ctx *ctx, const wf_epilogue *epilogue, const wf_array *y, const wf_array *dy,
                                const wf_array *dv);
wf_status ref_sum(wf_ctx *ctx, const wf_array *x, double scale, const wf_array *y);
wf_status ref_sum_squares(wf_ctx *ctx, const wf_array *x, const wf_array *out, bool accumulate);

wf_status ref_softmax_forward(wf_ctx *ctx, bool logarithm, const wf_array *x, const wf_array *y);
wf_status ref_softmax_backward(wf_ctx *ctx, bool logarithm, const wf_array *y, const wf_array *dy, const wf_array *dx);
wf_status ref_loss_forward(wf_ctx *ctx, wf_loss_kind kind, const wf_array *x, const wf_array *target, double value,
                           double scale, const wf_array *loss);
wf_status ref_loss_backward(wf_ctx *ctx, wf_loss_kind kind, const wf_array *x, const wf_array *target, double value,
                            const wf_array *dloss, double scale, const wf_array *dx);
wf_status ref_nll_forward(wf_ctx *ctx, const wf_array *logp, const wf_array *labels, double scale,
                          const wf_array *loss);
wf_status ref_nll_backward(wf_ctx *ctx, const wf_array *labels, const wf_array *dloss, double scale,
                           const wf_array *dx);
wf_status ref_count_correct(wf_ctx *ctx, const wf_array *scores, const wf_array *labels, const wf_array *correct);

wf_status ref_optim_update(wf_ctx *ctx, wf_optim_kind kind, const wf_optim_hyper *hyper, wf_dtype dtype,
                           int64_t segments, const wf_optim_segment *segment);
wf_status ref_loss_scale(wf_ctx *ctx, const double *sum_squares, wf_loss_scaling *scaling, wf_optim_hyper *hyper);
wf_status ref_clip_scale(wf_ctx *ctx, const double *sum_squares, double max_norm, wf_optim_hyper *hyper);
void ref_shutdown(wf_ctx *ctx);

#endif
