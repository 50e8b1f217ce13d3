/* Writes images to files. */
#ifndef WF_DATASETS_IMAGE_H
#define WF_DATASETS_IMAGE_H

#include "core/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Writes the first rows x cols images of x [N,C,H,W] (C is 1 or 3; any float type) as one PNG, row by row, with a thin
 * border; values lo to hi become black to white, and cells without an image stay black. The file appears under its name
 * when it is whole. Local. */
wf_status wf_write_png_grid(const char *path, const wf_tensor *x, int64_t rows, int64_t cols, double lo,
                            double hi) WF_NODISCARD;

#ifdef __cplusplus
}
#endif
#endif
