/* ConvNeXt of Liu et al. 2022 ("A ConvNet for the 2020s"), as torchvision has it. */
#ifndef EXAMPLES_MODELS_CONVNEXT_H
#define EXAMPLES_MODELS_CONVNEXT_H

#include <weft/weft.h>

typedef enum convnext_size {
    CONVNEXT_TINY = 0, /* 28.6 M parameters with 1000 classes */
    CONVNEXT_SMALL,    /* 50.2 M */
    CONVNEXT_BASE,     /* 88.6 M */
    CONVNEXT_LARGE,    /* 197.8 M */
    CONVNEXT_SIZES
} convnext_size;

typedef struct convnext_opts {
    convnext_size size;
    int blocks[4];    /* of each stage; default those of the size: 3, 3, 9 and 3, or 3, 3, 27 and 3 */
    int64_t width;    /* channels of the first stage (default: of the size); the others have 2, 4 and 8 times as many */
    int64_t channels; /* of the image; default 3 */
    int64_t classes;  /* default 10 */
    int64_t patch;    /* pixels along a side of the patches of the first layer; default 4 */
    double drop_path; /* of the last block, and less of those before it; default that of the size, WF_ZERO: none */
    double layerscale; /* initial value; default 1e-6 */
} convnext_opts;

/* [N,channels,H,W] -> scores [N,classes]; H and W are at least 8 patches long. */
wf_layer *convnext(wf_ctx *ctx, convnext_opts opts);

#endif
