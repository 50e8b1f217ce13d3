/* Arithmetic of sliding windows in one dimension. Serial layers compute their output lengths with it, parallel ones
 * their halos. Pure functions on integers. */
#include "core/window.h"

static int64_t clamp(int64_t x, int64_t lo, int64_t hi)
{
    return x < lo ? lo : x > hi ? hi : x;
}

/* Treats a stride of 0, which no layer takes, as 1. */
static int64_t floor_div(int64_t a, int64_t b)
{
    if (b == 0)
        return a;
    return a >= 0 ? a / b : -((-a + b - 1) / b);
}

static int64_t ceil_div(int64_t a, int64_t b)
{
    return -floor_div(-a, b);
}

/* An empty range is {0, 0} everywhere, so that ranges can be compared as bytes. */
static wf_range clip_range(int64_t lo, int64_t hi, int64_t length)
{
    const wf_range range = {clamp(lo, 0, length), clamp(hi, 0, length)};
    return range.lo < range.hi ? range : (wf_range){0, 0};
}

int64_t wf_window_extent(wf_window w)
{
    return w.dilation * (w.kernel - 1) + 1;
}

int64_t wf_window_outputs(wf_window w, int64_t length, bool ceil)
{
    const int64_t room = length + w.pad_lo + w.pad_hi - wf_window_extent(w);
    if (room < 0)
        return 0;
    int64_t outputs = (ceil ? ceil_div(room, w.stride) : floor_div(room, w.stride)) + 1;
    if (ceil && (outputs - 1) * w.stride >= length + w.pad_lo)
        outputs--;
    return outputs;
}

wf_range wf_window_reads(wf_window w, wf_range outputs, int64_t length)
{
    if (outputs.lo >= outputs.hi)
        return (wf_range){0, 0};
    const int64_t lo = w.stride * outputs.lo - w.pad_lo;
    return clip_range(lo, w.stride * (outputs.hi - 1) - w.pad_lo + wf_window_extent(w), length);
}

wf_range wf_window_readers(wf_window w, wf_range inputs, int64_t outputs)
{
    if (inputs.lo >= inputs.hi)
        return (wf_range){0, 0};
    /* Output o reads [s o - p, s o - p + extent). Solved for the first and the last o that touch `inputs`; with gaps
     * between taps (dilation) a reader may read none of them, which costs a row and is never wrong. */
    return clip_range(ceil_div(inputs.lo + w.pad_lo - wf_window_extent(w) + 1, w.stride),
                      floor_div(inputs.hi - 1 + w.pad_lo, w.stride) + 1, outputs);
}

wf_window wf_window_local(wf_window w, wf_range outputs, wf_range inputs)
{
    const int64_t lo = w.stride * outputs.lo - w.pad_lo;
    const int64_t hi = w.stride * (outputs.hi - 1) - w.pad_lo + wf_window_extent(w);
    /* Both may be negative: the part of the input at hand then begins before the first window, and is skipped. */
    w.pad_lo = inputs.lo - lo;
    w.pad_hi = hi - inputs.hi;
    return w;
}

wf_range wf_window_anchored(wf_window w, wf_range inputs, int64_t outputs, bool first, bool last)
{
    /* The output belongs to the rank that owns the input under the middle of its window, so that both sides of a cut
     * need about the same halo. The first and the last rank take what hangs over the ends. */
    const int64_t anchor = (wf_window_extent(w) - 1) / 2;
    const wf_range range = {first ? 0 : clamp(ceil_div(inputs.lo + w.pad_lo - anchor, w.stride), 0, outputs),
                            last ? outputs : clamp(ceil_div(inputs.hi + w.pad_lo - anchor, w.stride), 0, outputs)};
    return range.lo < range.hi ? range : (wf_range){range.lo, range.lo};
}
