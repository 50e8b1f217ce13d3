/* Residual networks of He et al. 2016, as torchvision has them. */
#ifndef EXAMPLES_MODELS_RESNET_H
#define EXAMPLES_MODELS_RESNET_H

#include <weft/weft.h>

typedef enum resnet_depth {
    RESNET_18 = 0, /* 11.7 M parameters with 1000 classes and the large stem */
    RESNET_34,     /* 21.8 M */
    RESNET_50,     /* 25.6 M; from here on blocks are bottlenecks */
    RESNET_101,    /* 44.5 M */
    RESNET_152,    /* 60.2 M */
    RESNET_DEPTHS
} resnet_depth;

typedef struct resnet_opts {
    resnet_depth depth;
    int64_t width;   /* channels of the first stage (default 64); the others have 2, 4 and 8 times as many */
    int64_t classes; /* default 10 */
    bool large; /* begins with a 7x7 convolution of stride 2 and pooling, for images of 224 x 224; else with a 3x3 of
                   stride 1 */
} resnet_opts;

/* [N,3,H,W] -> scores [N,classes] */
wf_layer *resnet(wf_ctx *ctx, resnet_opts opts);

#endif
