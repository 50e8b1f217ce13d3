/* The geometry of a window in three dimensions, whatever the number of spatial dimensions, so that convolution and
 * pooling are written once. */
#include "core/ref/ref_impl.h"

wf_ref_window wf_ref_window_make(int nd, const wf_shape *in, const wf_shape *out, const int64_t *kernel,
                                 const int64_t *stride, const int64_t *dilation, const int64_t *pad_lo,
                                 const int64_t *pad_hi)
{
    wf_ref_window w;
    for (int d = 0; d < 3; d++) {
        const int s = d - (3 - nd);
        w.in[d] = s < 0 ? 1 : in->dim[2 + s];
        w.out[d] = s < 0 ? 1 : out->dim[2 + s];
        w.kernel[d] = s < 0 ? 1 : kernel[s];
        w.stride[d] = s < 0 ? 1 : stride[s];
        w.dilation[d] = s < 0 ? 1 : dilation[s];
        w.pad_lo[d] = s < 0 ? 0 : pad_lo[s];
        w.pad_hi[d] = s < 0 ? 0 : pad_hi[s];
    }
    return w;
}
