/* One dimension of a sliding window (convolution, pooling): output lengths, which inputs an output range reads, and
 * which outputs read an input range. Pure arithmetic.
 *
 * Input index i = s o - pad_lo + d t for output o and tap t; what lies outside [0, length) is padding. Dimensions are
 * independent: an n-d region is the product of its ranges. All ranges are half-open; an empty one is [0, 0).
 */
#ifndef WF_CORE_WINDOW_H
#define WF_CORE_WINDOW_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct wf_window {
    int64_t kernel, stride, dilation; /* at least 1 */
    int64_t pad_lo, pad_hi;           /* negative ones crop */
} wf_window;

typedef struct wf_range {
    int64_t lo, hi;
} wf_range;

/* d (k - 1) + 1. */
int64_t wf_window_extent(wf_window window);
/* Outputs of an input of this length; 0 or less if the window does not fit. `ceil` rounds up, but drops a last window
 * that would start in the right padding. */
int64_t wf_window_outputs(wf_window window, int64_t length, bool ceil);
/* Inputs that outputs [A, B) read, cut to [0, length). */
wf_range wf_window_reads(wf_window window, wf_range outputs, int64_t length);
/* Outputs in [0, outputs) that read any of the inputs [a, b). */
wf_range wf_window_readers(wf_window window, wf_range inputs, int64_t outputs);
/* The window that computes the outputs [A, B) from an array that holds the inputs [a, b) alone: the same kernel with
 * other pads, which are negative where inputs of the array are not read. [a, b) must contain what the outputs read. */
wf_window wf_window_local(wf_window window, wf_range outputs, wf_range inputs);
/* The outputs whose anchor, the input of the centre tap, lies in [a, b); an anchor may lie in the padding. A
 * partition of the inputs gives a partition of the outputs in this way, with narrow halos. `first` and `last` extend
 * the range to the first and the last output. */
wf_range wf_window_anchored(wf_window window, wf_range inputs, int64_t outputs, bool first, bool last);

#ifdef __cplusplus
}
#endif
#endif
