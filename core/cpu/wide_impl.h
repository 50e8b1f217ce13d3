/* Slots for what has no fast form: where there are 16-bit floats, the slot of the cpu filling computes on f32 copies of
 * them; everything else goes to ref. */
#ifndef WF_CORE_CPU_WIDE_IMPL_H
#define WF_CORE_CPU_WIDE_IMPL_H

#include "core/cpu/cpu_impl.h"

wf_conv_fn wf_wide_conv_forward, wf_wide_conv_backward_data, wf_wide_conv_backward_filter;
wf_matmul_fn wf_wide_matmul;
wf_sum_fn wf_wide_sum;
wf_sum_squares_fn wf_wide_sum_squares;
wf_softmax_forward_fn wf_wide_softmax_forward;
wf_softmax_backward_fn wf_wide_softmax_backward;
wf_loss_fn wf_wide_loss_forward, wf_wide_loss_backward;
wf_nll_backward_fn wf_wide_nll_backward;

#endif
