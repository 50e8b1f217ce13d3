/* The Swin Transformer of Liu et al. 2021 ("Hierarchical Vision Transformer using Shifted Windows"), as torchvision has
 * it. */
#ifndef EXAMPLES_MODELS_SWIN_H
#define EXAMPLES_MODELS_SWIN_H

#include <weft/weft.h>

typedef enum swin_size {
    SWIN_TINY = 0, /* 28.3 M parameters with 1000 classes */
    SWIN_SMALL,    /* 49.6 M */
    SWIN_BASE,     /* 87.8 M */
    SWIN_SIZES
} swin_size;

typedef struct swin_opts {
    swin_size size;
    int blocks[4];    /* of each stage; default those of the size: 2, 2, 6 and 2, or 2, 2, 18 and 2 */
    int64_t width;    /* channels of the first stage (default: of the size); the others have 2, 4 and 8 times as many */
    int64_t heads;    /* of the first stage (default: of the size); the others have 2, 4 and 8 times as many */
    int64_t window;   /* pixels along a side of the windows; default 7 */
    int64_t channels; /* of the image; default 3 */
    int64_t classes;  /* default 10 */
    int64_t patch;    /* pixels along a side of the patches of the first layer; default 4 */
    double dropout;   /* of the weights of attention */
    double drop_path; /* of the last block, and less of those before it; default that of the size, WF_ZERO: none */
} swin_opts;

/* [N,channels,H,W] -> scores [N,classes]; H and W are at least a patch long. Ranks may share rows and columns. */
wf_layer *swin(wf_ctx *ctx, swin_opts opts);

#endif
