/* Residual networks of He et al. 2016. */
#ifndef EXAMPLES_MODELS_RESNET_H
#define EXAMPLES_MODELS_RESNET_H

#include <weft/weft.h>

typedef struct resnet_opts {
    bool deep;       /* 50 layers, whose blocks are bottlenecks; else 18 */
    int64_t width;   /* channels of the first stage (default 64); the others have 2, 4 and 8 times as many */
    int64_t classes; /* default 10 */
    bool large; /* begins with a 7x7 convolution of stride 2 and pooling, for images of 224 x 224; else with a 3x3 of
                   stride 1 */
} resnet_opts;

/* [N,3,H,W] -> scores [N,classes] */
wf_layer *resnet(wf_ctx *ctx, resnet_opts opts);

#endif
