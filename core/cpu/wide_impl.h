/* Slots for what has no fast form: where there are 16-bit floats, the slot of the cpu filling computes on f32 copies of
 * them; everything else goes to ref. */
#ifndef WF_CORE_CPU_WIDE_IMPL_H
#define WF_CORE_CPU_WIDE_IMPL_H

#include "core/cpu/cpu_impl.h"

wf_conv_fn wf_wide_conv_forward, wf_wide_conv_backward_data, wf_wide_conv_backward_filter;
wf_bias_backward_fn wf_wide_bias_backward;
wf_matmul_fn wf_wide_matmul;
wf_pool_fn wf_wide_pool_forward, wf_wide_pool_backward;
wf_resample_fn wf_wide_resample_forward, wf_wide_resample_backward;
wf_norm_fn wf_wide_norm_stats, wf_wide_norm_forward, wf_wide_norm_backward_stats, wf_wide_norm_backward;
wf_act_fn wf_wide_act_forward, wf_wide_act_backward;
wf_binary_fn wf_wide_binary;
wf_dropout_fn wf_wide_dropout;
wf_epilogue_forward_fn wf_wide_epilogue_forward;
wf_epilogue_backward_fn wf_wide_epilogue_backward;
wf_sum_fn wf_wide_sum;
wf_sum_squares_fn wf_wide_sum_squares;
wf_softmax_forward_fn wf_wide_softmax_forward;
wf_softmax_backward_fn wf_wide_softmax_backward;
wf_loss_fn wf_wide_loss_forward, wf_wide_loss_backward;
wf_nll_backward_fn wf_wide_nll_backward;

#endif
