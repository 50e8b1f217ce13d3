/* Writes a grid of images as PNG, under a temporary name until it is whole. Called by programs that look at what a
 * network makes. The rest of the data sets does not use it. */
#include "datasets/image.h"
#include "comm/file_author.h"
#include "core/tensor_author.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stb/stb_image_write.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BORDER = 2 };

typedef struct sheet {
    int64_t channels, height, width; /* of an image */
    int64_t rows, cols, sheet_height, sheet_width;
    unsigned char *pixels; /* interleaved */
} sheet;

static unsigned char grey(float value, double lo, double hi)
{
    const double unit = ((double)value - lo) / (hi - lo);
    /* Written so that NaN becomes black, too. */
    if (!(unit > 0))
        return 0;
    return unit >= 1 ? 255 : (unsigned char)lrint(unit * 255);
}

static void place(sheet *s, int64_t image, const float *x, double lo, double hi)
{
    const int64_t top = BORDER + image / s->cols * (s->height + BORDER);
    const int64_t left = BORDER + image % s->cols * (s->width + BORDER);
    for (int64_t c = 0; c < s->channels; c++)
        for (int64_t h = 0; h < s->height; h++)
            for (int64_t w = 0; w < s->width; w++) {
                const int64_t pixel = (top + h) * s->sheet_width + left + w;
                s->pixels[pixel * s->channels + c] = grey(*x++, lo, hi);
            }
}

/* The picture is a sheet of the images of x on black. */
static wf_status draw(sheet *s, const wf_tensor *x, double lo, double hi)
{
    wf_ctx *ctx = wf_tensor_ctx(x);
    const int64_t size = s->channels * s->height * s->width, count = wf_tensor_shape(x).dim[0];
    const size_t bytes = (size_t)(count * size) * sizeof(float);
    s->pixels = wf_calloc(ctx, (size_t)(s->sheet_height * s->sheet_width), (size_t)s->channels);
    if (!s->pixels)
        return WF_ERR_MEMORY;
    float *values = wf_malloc(ctx, bytes ? bytes : 1);
    /* The tensor may lie in a blocked order or on the device; the copy does not. */
    wf_tensor *plain = wf_tensor_copy(x, WF_F32, WF_ROW_MAJOR);
    wf_status status = !values ? WF_ERR_MEMORY : wf_check(plain);
    if (status == WF_OK)
        status = wf_tensor_export(plain, values, bytes);
    for (int64_t i = 0; i < s->rows * s->cols && i < count && status == WF_OK; i++)
        place(s, i, values + i * size, lo, hi);
    wf_tensor_free(plain);
    free(values);
    return status;
}

static void to_file(void *file, void *data, int bytes)
{
    /* A failure stays in the stream's error flag. */
    const size_t written = fwrite(data, 1, (size_t)bytes, file);
    (void)written;
}

static wf_status write_png(const sheet *s, const char *path, const char *temporary)
{
    FILE *file = fopen(temporary, "wb");
    WF_CHECK(file, WF_ERR_IO, "%s: cannot write: %s", path, strerror(errno));
    errno = 0;
    const int done = stbi_write_png_to_func(to_file, file, (int)s->sheet_width, (int)s->sheet_height, (int)s->channels,
                                            s->pixels, (int)(s->sheet_width * s->channels));
    const bool failed = fflush(file) != 0 || ferror(file);
    const int reason = errno;
    const bool closed = fclose(file) == 0;
    if (done && !failed && closed && rename(temporary, path) == 0)
        return WF_OK;
    const int why = failed ? reason : errno;
    remove(temporary);
    WF_FAIL(WF_ERR_IO, "%s: cannot write: %s", path, !done ? "no memory" : strerror(why));
}

wf_status wf_write_png_grid(const char *path, const wf_tensor *x, int64_t rows, int64_t cols, double lo, double hi)
{
    WF_NEED(path);
    WF_NEED(x);
    char text[WF_SHAPE_TEXT], end[32], target[WF_FILE_PATH], temporary[WF_FILE_PATH];
    const wf_shape shape = wf_tensor_shape(x);
    WF_CHECK(shape.rank == 4 && (shape.dim[1] == 1 || shape.dim[1] == 3), WF_ERR_SHAPE,
             "%s: images of shape %s: should be [N,1,H,W] or [N,3,H,W]", path, wf_shape_text(shape, text));
    WF_CHECK(wf_dtype_is_float(wf_tensor_dtype(x)), WF_ERR_DTYPE, "%s: images of type %s: should be a float type", path,
             wf_dtype_name(wf_tensor_dtype(x)));
    WF_CHECK(rows > 0 && cols > 0 && rows < 1 << 15 && cols < 1 << 15, WF_ERR_ARGUMENT,
             "%s: a grid of %lld x %lld images", path, (long long)rows, (long long)cols);
    WF_CHECK(hi > lo, WF_ERR_ARGUMENT, "%s: black at %g and white at %g", path, lo, hi);
    sheet s = {.channels = shape.dim[1], .height = shape.dim[2], .width = shape.dim[3], .rows = rows, .cols = cols};
    s.sheet_height = BORDER + rows * (s.height + BORDER);
    s.sheet_width = BORDER + cols * (s.width + BORDER);
    WF_CHECK(s.sheet_height < INT_MAX / 4 / s.sheet_width, WF_ERR_ARGUMENT, "%s: a picture of %lld x %lld pixels", path,
             (long long)s.sheet_height, (long long)s.sheet_width);
    snprintf(end, sizeof end, ".%ld.tmp", (long)getpid());
    WF_TRY(wf_file_target(path, end, target, temporary));
    wf_status status = draw(&s, x, lo, hi);
    if (status == WF_OK)
        status = write_png(&s, target, temporary);
    free(s.pixels);
    return status;
}
