/* Resizes planes of pictures: bilinear, and where the plane shrinks the mean of what a pixel covers, weighted by a
 * triangle. Of our own since Debian's stb_image_resize aborts the program for some sizes, such as 9 to 7 pixels. Called
 * for pictures and by wf_transform_resize, from the prefetch thread too. */
#include "datasets/datasets_impl.h"

#include <math.h>
#include <stdlib.h>

/* How one dimension is resized: output o is the sum of weight[at[o] + k] * input[first[o] + k], k below at[o + 1] -
 * at[o].
 */
typedef struct taps {
    int64_t *first, *at;
    float *weight;
} taps;

static void taps_free(taps *t)
{
    free(t->first);
    free(t->at);
    free(t->weight);
}

/* The weights of output o, which sum to 1. Inputs beyond the ends are the ends. */
static void make_taps(taps *t, int64_t o, int64_t in, int64_t out)
{
    const double ratio = (double)in / (double)out, reach = ratio > 1 ? ratio : 1;
    const double centre = ((double)o + 0.5) * ratio - 0.5;
    const int64_t lo = (int64_t)ceil(centre - reach), hi = (int64_t)floor(centre + reach);
    const int64_t first = lo < 0 ? 0 : lo, last = hi >= in ? in - 1 : hi;
    float *weight = t->weight + t->at[o];
    double sum = 0;
    for (int64_t i = first; i <= last; i++)
        weight[i - first] = 0;
    for (int64_t i = lo; i <= hi; i++) {
        const double w = 1 - fabs((double)i - centre) / reach;
        weight[(i < first ? first : i > last ? last : i) - first] += (float)w;
        sum += w;
    }
    for (int64_t i = first; i <= last; i++)
        weight[i - first] = (float)(weight[i - first] / sum);
    t->first[o] = first;
    t->at[o + 1] = t->at[o] + last - first + 1;
}

static bool taps_make(taps *t, int64_t in, int64_t out)
{
    const int64_t most = 2 * (in > out ? in / out + 1 : 1) + 1; /* of an output */
    *t = (taps){.first = malloc((size_t)out * sizeof *t->first),
                .at = malloc(((size_t)out + 1) * sizeof *t->at),
                .weight = malloc((size_t)(out * most) * sizeof *t->weight)};
    if (!t->first || !t->at || !t->weight)
        return false;
    t->at[0] = 0;
    for (int64_t o = 0; o < out; o++)
        make_taps(t, o, in, out);
    return true;
}

static float pixel(wf_dtype dtype, const void *plane, int64_t i)
{
    return dtype == WF_U8 ? (float)((const uint8_t *)plane)[i] : ((const float *)plane)[i];
}

/* Row h of the input becomes a row of `width`. */
static void resize_row(wf_dtype dtype, const void *in, int64_t in_width, int64_t h, const taps *t, int64_t width,
                       float *row)
{
    for (int64_t w = 0; w < width; w++) {
        const float *weight = t->weight + t->at[w];
        float sum = 0;
        for (int64_t k = 0; k < t->at[w + 1] - t->at[w]; k++)
            sum += weight[k] * pixel(dtype, in, h * in_width + t->first[w] + k);
        row[w] = sum;
    }
}

static void resize_column(wf_dtype dtype, const float *rows, const taps *t, int64_t h, int64_t width, void *out)
{
    const float *weight = t->weight + t->at[h];
    for (int64_t w = 0; w < width; w++) {
        float sum = 0;
        for (int64_t k = 0; k < t->at[h + 1] - t->at[h]; k++)
            sum += weight[k] * rows[(t->first[h] + k) * width + w];
        if (dtype == WF_U8)
            ((uint8_t *)out)[h * width + w] = (uint8_t)(sum < 0 ? 0 : sum > 255 ? 255 : sum + 0.5f);
        else
            ((float *)out)[h * width + w] = sum;
    }
}

wf_status wf_plane_resize(wf_dtype dtype, const void *in, int64_t in_height, int64_t in_width, void *out,
                          int64_t height, int64_t width)
{
    taps across = {0}, down = {0};
    float *rows = malloc((size_t)in_height * (size_t)width * sizeof *rows);
    const bool made = rows && taps_make(&across, in_width, width) && taps_make(&down, in_height, height);
    for (int64_t h = 0; made && h < in_height; h++)
        resize_row(dtype, in, in_width, h, &across, width, rows + h * width);
    for (int64_t h = 0; made && h < height; h++)
        resize_column(dtype, rows, &down, h, width, out);
    taps_free(&across);
    taps_free(&down);
    free(rows);
    WF_CHECK(made, WF_ERR_MEMORY, "no memory to resize %lldx%lld pixels to %lldx%lld", (long long)in_height,
             (long long)in_width, (long long)height, (long long)width);
    return WF_OK;
}
