/* VGG-16 for images [3,32,32], with batch normalisation and dropout. */
#ifndef EXAMPLES_MODELS_VGG_H
#define EXAMPLES_MODELS_VGG_H

#include <weft/weft.h>

/* Zero is the default of every field. */
typedef struct vgg_opts {
    int64_t width;   /* channels of the first group; 64. The others have 2, 4, 8 and 8 times as many */
    int64_t classes; /* 10 */
    int64_t side;    /* of the images, a multiple of 32; 32 */
    bool no_dropout;
} vgg_opts;

/* [N,3,side,side] -> scores [N,classes]. */
wf_layer *vgg16(wf_ctx *ctx, vgg_opts opts);

#endif
