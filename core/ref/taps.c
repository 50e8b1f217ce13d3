/* Weighted sums of neighbouring rows in plain loops. */
#include "core/ref/ref_impl.h"

wf_status wf_ref_taps(wf_ctx *ctx, const wf_taps_args *args)
{
    const wf_shape in = args->x->shape, out = args->y->shape;
    const int64_t taps = args->weight->shape.dim[1], inner = out.dim[2];
    wf_ref_frame frame = wf_ref_begin(ctx);
    const double *const x = wf_ref_in(&frame, args->x), *const weight = wf_ref_in(&frame, args->weight);
    double *const y = wf_ref_out(&frame, args->y, args->accumulate);
    const int32_t *const start = args->start->data;
    if (frame.status != WF_OK || wf_array_count(args->y) == 0)
        return wf_ref_end(&frame);
    for (int64_t a = 0; a < out.dim[0]; a++)
        for (int64_t o = 0; o < out.dim[1]; o++)
            for (int64_t i = 0; i < inner; i++) {
                const int64_t row = args->y_lo + o;
                double *const to = &y[(a * out.dim[1] + o) * inner + i], sum = 0;
                for (int64_t t = 0; t < taps; t++) {
                    const int64_t at = start[row] + t - args->x_lo;
                    /* Taps of weight 0 fill a row up, and may lie on another rank's input that is not finite. */
                    if (at >= 0 && at < in.dim[1] && weight[row * taps + t] != 0)
                        sum += weight[row * taps + t] * x[(a * in.dim[1] + at) * inner + i];
                }
                *to = args->accumulate ? *to + sum : sum;
            }
    return wf_ref_end(&frame);
}
