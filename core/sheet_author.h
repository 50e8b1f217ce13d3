/* Images of a tensor as bytes, side by side on one sheet, for code that writes them as pictures. */
#ifndef WF_CORE_SHEET_AUTHOR_H
#define WF_CORE_SHEET_AUTHOR_H

#include "core/status_author.h"
#include "core/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct wf_sheet {
    int64_t channels, height, width; /* of the sheet, in pixels; channels are 1 or 3 */
    unsigned char *pixels;           /* [height, width, channels]; the caller frees it */
} wf_sheet;

/* Draws the first rows x cols images of x [N,C,H,W] (C is 1 or 3; any float type), row by row, with a thin border;
 * values lo to hi become 0 to 255, and cells without an image stay 0. `name` is in messages. On failure
 * sheet->pixels is NULL: WF_ERR_SHAPE, WF_ERR_DTYPE, WF_ERR_ARGUMENT for other images, types and sizes. Local. */
wf_status wf_sheet_draw(const char *name, const wf_tensor *x, int64_t rows, int64_t cols, double lo, double hi,
                        wf_sheet *sheet) WF_NODISCARD;

#ifdef __cplusplus
}
#endif
#endif
