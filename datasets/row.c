/* Stores a sample as a row of a batch: converts the type and the order of memory. Samples are row-major [C, pixels];
 * rows of a batch may be [pixels, C]. The batcher calls it, once for each sample. */
#include "datasets/iterator_impl.h"

#include <string.h>

wf_row_format wf_row_format_make(const wf_dataset_info *info, wf_dtype float_type, bool raw)
{
    wf_row_format format = {.from = info->dtype, .to = info->dtype, .channels = 1};
    /* Labels kept as i32 or i64 samples, and halves, stay what they are. */
    if (!raw && (info->dtype == WF_U8 || info->dtype == WF_F32 || info->dtype == WF_F64))
        format.to = float_type;
    const int64_t elements = wf_shape_count(info->shape);
    const int rank = info->shape.rank + 1;
    format.order = wf_dtype_is_float(format.to) ? wf_order_default(rank) : WF_ROW_MAJOR;
    format.pixels = elements;
    if (format.order == WF_CHANNELS_LAST && elements > 0) {
        format.channels = info->shape.dim[0];
        format.pixels = elements / format.channels;
    }
    /* Both orders are the same where one of the two dimensions is 1. */
    const bool as_it_lies = format.channels == 1 || format.pixels == 1;
    format.direct = format.from == format.to && as_it_lies;
    return format;
}

/* A loop nest for one pair of types; a few channels with the count known lets the compiler unroll. */
#define STORE(name, in_type, out_type, value)                                                                          \
    static void name(int64_t channels, int64_t pixels, const in_type *x, out_type *y)                                  \
    {                                                                                                                  \
        if (channels == 1) {                                                                                           \
            for (int64_t p = 0; p < pixels; p++)                                                                       \
                y[p] = value(x[p]);                                                                                    \
        } else if (channels == 3) {                                                                                    \
            const in_type *r = x, *g = x + pixels, *b = x + 2 * pixels;                                                \
            for (int64_t p = 0; p < pixels; p++) {                                                                     \
                y[3 * p] = value(r[p]);                                                                                \
                y[3 * p + 1] = value(g[p]);                                                                            \
                y[3 * p + 2] = value(b[p]);                                                                            \
            }                                                                                                          \
        } else {                                                                                                       \
            for (int64_t p = 0; p < pixels; p++)                                                                       \
                for (int64_t c = 0; c < channels; c++)                                                                 \
                    y[p * channels + c] = value(x[c * pixels + p]);                                                    \
        }                                                                                                              \
    }

/* Divided, not multiplied by 1 / 255: the quotient is the nearest float. */
#define UNIT_F32(v) ((float)(v) / 255.0f)
#define UNIT_F64(v) ((double)(v) / 255.0)
#define TO_F32(v)   ((float)(v))
#define TO_F64(v)   ((double)(v))
#define SAME(v)     (v)

STORE(u8_to_f32, uint8_t, float, UNIT_F32)
STORE(u8_to_f64, uint8_t, double, UNIT_F64)
STORE(f32_to_f32, float, float, SAME)
STORE(f32_to_f64, float, double, TO_F64)
STORE(f64_to_f32, double, float, TO_F32)
STORE(f64_to_f64, double, double, SAME)
STORE(half_to_half, uint16_t, uint16_t, SAME)

void wf_row_store(const wf_row_format *format, const void *sample, void *row)
{
    const int64_t c = format->channels, p = format->pixels;
    const bool wide = format->to == WF_F64;
    if (format->from == WF_U8 && wide)
        u8_to_f64(c, p, sample, row);
    else if (format->from == WF_U8)
        /* Bytes become [0, 1], as images are usually given to networks. */
        u8_to_f32(c, p, sample, row);
    else if (format->from == WF_F32 && wide)
        f32_to_f64(c, p, sample, row);
    else if (format->from == WF_F32)
        f32_to_f32(c, p, sample, row);
    else if (format->from == WF_F64 && wide)
        f64_to_f64(c, p, sample, row);
    else if (format->from == WF_F64)
        f64_to_f32(c, p, sample, row);
    else
        half_to_half(c, p, sample, row);
}
