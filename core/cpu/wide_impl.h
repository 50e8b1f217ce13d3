/* Slots for what has no fast form: where there are 16-bit floats, the slot of the cpu filling computes on f32 copies of
 * them; everything else goes to ref. */
#ifndef WF_CORE_CPU_WIDE_IMPL_H
#define WF_CORE_CPU_WIDE_IMPL_H

#include "core/cpu/cpu_impl.h"

wf_status wf_wide_conv_forward(wf_ctx *ctx, const wf_conv_geom *geom, const wf_array *x, const wf_array *w,
                               const wf_array *bias, const wf_epilogue *epilogue, const wf_array *y);
wf_status wf_wide_conv_backward_data(wf_ctx *ctx, const wf_conv_geom *geom, const wf_array *dy, const wf_array *w,
                                     const wf_array *bias, const wf_epilogue *epilogue, const wf_array *dx);
wf_status wf_wide_conv_backward_filter(wf_ctx *ctx, const wf_conv_geom *geom, const wf_array *x, const wf_array *dy,
                                       const wf_array *dw, const wf_array *dbias, bool accumulate);
wf_status wf_wide_bias_backward(wf_ctx *ctx, const wf_array *dy, const wf_array *db, bool accumulate);
wf_status wf_wide_epilogue_backward(wf_ctx *ctx, const wf_epilogue *epilogue, const wf_array *y, const wf_array *dy,
                                    const wf_array *dv);
wf_status wf_wide_matmul(wf_ctx *ctx, const wf_array *a, bool a_transposed, const wf_array *b, bool b_transposed,
                         const wf_array *bias, const wf_array *c, bool accumulate);
wf_status wf_wide_pool_forward(wf_ctx *ctx, const wf_pool_geom *geom, const wf_array *x, const wf_array *y,
                               const wf_array *index);
wf_status wf_wide_pool_backward(wf_ctx *ctx, const wf_pool_geom *geom, const wf_array *dy, const wf_array *index,
                                const wf_array *dx, bool accumulate);
wf_status wf_wide_resample_forward(wf_ctx *ctx, const wf_resample_geom *geom, const wf_array *x, const wf_array *y);
wf_status wf_wide_resample_backward(wf_ctx *ctx, const wf_resample_geom *geom, const wf_array *dy, const wf_array *dx,
                                    bool accumulate);
wf_status wf_wide_norm_stats(wf_ctx *ctx, const wf_array *x, const wf_array *mean, const wf_array *m2);
wf_status wf_wide_norm_forward(wf_ctx *ctx, const wf_array *x, const wf_array *mean, const wf_array *invstd,
                               const wf_array *gamma, const wf_array *beta, const wf_epilogue *epilogue,
                               const wf_array *y);
wf_status wf_wide_norm_backward_stats(wf_ctx *ctx, const wf_array *x, const wf_array *mean, const wf_array *invstd,
                                      const wf_epilogue *epilogue, const wf_array *y, const wf_array *dy,
                                      const wf_array *sum_g, const wf_array *sum_gx);
wf_status wf_wide_norm_backward(wf_ctx *ctx, const wf_array *x, const wf_array *mean, const wf_array *invstd,
                                const wf_array *gamma, const wf_epilogue *epilogue, const wf_array *y,
                                const wf_array *dy, const wf_array *sum_g, const wf_array *sum_gx, wf_count count,
                                const wf_array *dx);
wf_status wf_wide_act_forward(wf_ctx *ctx, wf_act act, double slope, const wf_array *x, const wf_array *y);
wf_status wf_wide_act_backward(wf_ctx *ctx, wf_act act, double slope, const wf_array *x, const wf_array *y,
                               const wf_array *dy, const wf_array *dx, bool accumulate);
wf_status wf_wide_binary(wf_ctx *ctx, wf_binary op, double alpha, const wf_array *a, double beta, const wf_array *b,
                         const wf_array *y, bool accumulate);
wf_status wf_wide_dropout(wf_ctx *ctx, double rate, const wf_random *random, const wf_array *x, const wf_array *y);
wf_status wf_wide_epilogue_forward(wf_ctx *ctx, const wf_epilogue *epilogue, const wf_array *x, const wf_array *y);
wf_status wf_wide_sum(wf_ctx *ctx, const wf_array *x, double scale, const wf_array *y);
wf_status wf_wide_sum_squares(wf_ctx *ctx, const wf_array *x, const wf_array *out, bool accumulate);
wf_status wf_wide_softmax_forward(wf_ctx *ctx, bool logarithm, const wf_array *x, const wf_array *y);
wf_status wf_wide_softmax_backward(wf_ctx *ctx, bool logarithm, const wf_array *y, const wf_array *dy,
                                   const wf_array *dx);
wf_status wf_wide_loss_forward(wf_ctx *ctx, wf_loss_kind kind, const wf_array *x, const wf_array *target, double value,
                               double scale, const wf_array *loss);
wf_status wf_wide_loss_backward(wf_ctx *ctx, wf_loss_kind kind, const wf_array *x, const wf_array *target, double value,
                                const wf_array *dloss, double scale, const wf_array *dx);
wf_status wf_wide_nll_backward(wf_ctx *ctx, const wf_array *labels, const wf_array *dloss, double scale,
                               const wf_array *dx);

#endif
