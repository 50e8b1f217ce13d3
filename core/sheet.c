/* A sheet of images: rows of a tensor become bytes, side by side. Writers of pictures call it; it knows no format. */
#include "core/sheet_author.h"
#include "core/tensor_author.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>

/* Black pixels between images and around them. */
enum { BORDER = 2 };

typedef struct cells {
    int64_t height, width, rows, cols; /* of an image, and of the grid */
} cells;

static unsigned char grey(float value, double lo, double hi)
{
    const double unit = ((double)value - lo) / (hi - lo);
    /* Written so that NaN becomes black, too. */
    if (!(unit > 0))
        return 0;
    return unit >= 1 ? 255 : (unsigned char)lrint(unit * 255);
}

/* The image's pixels come channel by channel and leave pixel by pixel, as formats of pictures want them. */
static void place(wf_sheet *s, cells grid, int64_t image, const float *x, double lo, double hi)
{
    const int64_t top = BORDER + image / grid.cols * (grid.height + BORDER);
    const int64_t left = BORDER + image % grid.cols * (grid.width + BORDER);
    for (int64_t c = 0; c < s->channels; c++)
        for (int64_t h = 0; h < grid.height; h++)
            for (int64_t w = 0; w < grid.width; w++) {
                const int64_t pixel = (top + h) * s->width + left + w;
                s->pixels[pixel * s->channels + c] = grey(*x++, lo, hi);
            }
}

/* The images of x on black. */
static wf_status draw(wf_sheet *s, cells grid, const wf_tensor *x, double lo, double hi)
{
    wf_ctx *ctx = wf_tensor_ctx(x);
    const int64_t size = s->channels * grid.height * grid.width, count = wf_tensor_shape(x).dim[0];
    const size_t bytes = (size_t)(count * size) * sizeof(float);
    s->pixels = wf_calloc(ctx, (size_t)(s->height * s->width), (size_t)s->channels);
    if (!s->pixels)
        return WF_ERR_MEMORY;
    float *values = wf_malloc(ctx, bytes ? bytes : 1);
    /* The tensor may lie in a blocked order or on the device; the copy does not. */
    wf_tensor *plain = wf_tensor_copy(x, WF_F32, WF_ROW_MAJOR);
    wf_status status = !values ? WF_ERR_MEMORY : wf_check(plain);
    if (status == WF_OK)
        status = wf_tensor_export(plain, values, bytes);
    /* Cells without an image stay black, and images without a cell are left out. */
    for (int64_t i = 0; i < grid.rows * grid.cols && i < count && status == WF_OK; i++)
        place(s, grid, i, values + i * size, lo, hi);
    wf_tensor_free(plain);
    free(values);
    return status;
}

wf_status wf_sheet_draw(const char *name, const wf_tensor *x, int64_t rows, int64_t cols, double lo, double hi,
                        wf_sheet *sheet)
{
    WF_NEED(name);
    WF_NEED(sheet);
    *sheet = (wf_sheet){0};
    WF_NEED(x);
    char text[WF_SHAPE_TEXT];
    const wf_shape shape = wf_tensor_shape(x);
    WF_CHECK(shape.rank == 4 && (shape.dim[1] == 1 || shape.dim[1] == 3), WF_ERR_SHAPE,
             "%s: images of shape %s: should be [N,1,H,W] or [N,3,H,W]", name, wf_shape_text(shape, text));
    WF_CHECK(wf_dtype_is_float(wf_tensor_dtype(x)), WF_ERR_DTYPE, "%s: images of type %s: should be a float type", name,
             wf_dtype_name(wf_tensor_dtype(x)));
    /* Bounds of the grid, so that the products below do not overflow with images of any usual size. */
    WF_CHECK(rows > 0 && cols > 0 && rows < 1 << 15 && cols < 1 << 15, WF_ERR_ARGUMENT,
             "%s: a grid of %lld x %lld images", name, (long long)rows, (long long)cols);
    WF_CHECK(hi > lo, WF_ERR_ARGUMENT, "%s: black at %g and white at %g", name, lo, hi);
    const cells grid = {.height = shape.dim[2], .width = shape.dim[3], .rows = rows, .cols = cols};
    sheet->channels = shape.dim[1];
    sheet->height = BORDER + rows * (grid.height + BORDER);
    sheet->width = BORDER + cols * (grid.width + BORDER);
    WF_CHECK(sheet->height < INT_MAX / 4 / sheet->width, WF_ERR_ARGUMENT, "%s: a picture of %lld x %lld pixels", name,
             (long long)sheet->height, (long long)sheet->width);
    const wf_status status = draw(sheet, grid, x, lo, hi);
    if (status != WF_OK) {
        free(sheet->pixels);
        sheet->pixels = NULL;
    }
    return status;
}
