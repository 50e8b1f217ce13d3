/* Window arithmetic against enumeration of every tap. */
#include "core/window.h"
#include "tests/test.h"

typedef void (*visit)(wf_window w, int64_t length, int64_t outputs);

static void every_window(visit check)
{
    for (int64_t k = 1; k <= 5; k++)
        for (int64_t s = 1; s <= 4; s++)
            for (int64_t d = 1; d <= 3; d++)
                for (int64_t lo = -1; lo <= 4; lo++)
                    for (int64_t hi = -1; hi <= 3; hi++)
                        for (int64_t length = 1; length <= 11; length += 2) {
                            const wf_window w = {k, s, d, lo, hi};
                            const int64_t outputs = wf_window_outputs(w, length, false);
                            if (outputs > 0)
                                check(w, length, outputs);
                        }
}

static bool tap(wf_window w, int64_t length, int64_t output, int64_t input)
{
    for (int64_t t = 0; t < w.kernel; t++)
        if (w.stride * output - w.pad_lo + w.dilation * t == input)
            return input >= 0 && input < length;
    return false;
}

static void outputs_fit(wf_window w, int64_t length, int64_t outputs)
{
    int64_t count = 0;
    while (w.stride * count + wf_window_extent(w) <= length + w.pad_lo + w.pad_hi)
        count++;
    WF_EXPECT(count == outputs, "%ld outputs, should be %ld", (long)outputs, (long)count);
}

/* Everything read lies in the range, and the range's ends are within a window of something read: where d or s skips,
 * the range may hold inputs that no tap reads. */
static void reads_cover(wf_window w, int64_t length, int64_t outputs)
{
    for (int64_t a = 0; a < outputs; a++)
        for (int64_t b = a; b <= outputs; b++) {
            const wf_range range = wf_window_reads(w, (wf_range){a, b}, length);
            WF_EXPECT(range.lo >= 0 && range.lo <= range.hi && range.hi <= length, "[%ld,%ld) of %ld", (long)range.lo,
                      (long)range.hi, (long)length);
            for (int64_t o = a; o < b; o++)
                for (int64_t i = 0; i < length; i++)
                    WF_EXPECT(!tap(w, length, o, i) || (i >= range.lo && i < range.hi),
                              "output %ld reads %ld outside [%ld,%ld)", (long)o, (long)i, (long)range.lo,
                              (long)range.hi);
            const wf_window local = wf_window_local(w, (wf_range){a, b}, range);
            if (range.hi > range.lo)
                WF_EXPECT(wf_window_outputs(local, range.hi - range.lo, false) == b - a,
                          "the local window gives %ld outputs, should be %ld",
                          (long)wf_window_outputs(local, range.hi - range.lo, false), (long)(b - a));
        }
}

static void readers_cover(wf_window w, int64_t length, int64_t outputs)
{
    for (int64_t a = 0; a < length; a++)
        for (int64_t b = a; b <= length; b++) {
            const wf_range range = wf_window_readers(w, (wf_range){a, b}, outputs);
            int64_t first = outputs, last = -1;
            for (int64_t i = a; i < b; i++)
                for (int64_t o = 0; o < outputs; o++)
                    if (tap(w, length, o, i)) {
                        first = o < first ? o : first;
                        last = o > last ? o : last;
                    }
            WF_EXPECT(last < 0 || (range.lo <= first && last < range.hi),
                      "[%ld,%ld) is read by %ld to %ld, not [%ld,%ld)", (long)a, (long)b, (long)first, (long)last,
                      (long)range.lo, (long)range.hi);
            if (w.dilation == 1 && w.kernel >= w.stride && last >= 0)
                WF_EXPECT(range.lo == first && range.hi == last + 1, "the range [%ld,%ld) is wider than %ld to %ld",
                          (long)range.lo, (long)range.hi, (long)first, (long)last);
        }
}

static void anchors_partition(wf_window w, int64_t length, int64_t outputs)
{
    for (int64_t p = 1; p <= 4; p++) {
        int64_t next = 0;
        for (int64_t r = 0; r < p; r++) {
            const int64_t lo = length * r / p, hi = length * (r + 1) / p;
            const wf_range range = wf_window_anchored(w, (wf_range){lo, hi}, outputs, r == 0, r == p - 1);
            WF_EXPECT(range.lo == next || range.lo == range.hi, "part %ld starts at %ld, should be %ld", (long)r,
                      (long)range.lo, (long)next);
            next = range.hi > range.lo ? range.hi : next;
        }
        WF_EXPECT(next == outputs, "parts end at %ld of %ld", (long)next, (long)outputs);
    }
}

static void outputs(void)
{
    every_window(outputs_fit);
    WF_EXPECT(wf_window_outputs((wf_window){3, 2, 1, 0, 0}, 6, true) == 3, "ceil rounds up");
    WF_EXPECT(wf_window_outputs((wf_window){2, 2, 1, 0, 1}, 4, true) == 2, "no window starts in the right padding");
    WF_EXPECT(wf_window_outputs((wf_window){5, 1, 1, 0, 0}, 4, false) == 0, "does not fit");
}

static void reads(void)
{
    every_window(reads_cover);
}

static void readers(void)
{
    every_window(readers_cover);
}

static void anchored(void)
{
    every_window(anchors_partition);
}

int main(int argc, char **argv)
{
    return test_main(
        argc, argv,
        (test_case[]){{"outputs", outputs}, {"reads", reads}, {"readers", readers}, {"anchored", anchored}, {0}});
}
