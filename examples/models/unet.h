/* A U-Net: what is what in an image or a volume. */
#ifndef EXAMPLES_MODELS_UNET_H
#define EXAMPLES_MODELS_UNET_H

#include <weft/weft.h>

typedef enum unet_norm {
    UNET_BATCH = 0,
    UNET_GROUP,    /* groups of channels: unet_opts.groups */
    UNET_INSTANCE, /* each channel by itself */
    UNET_LAYER,    /* the channels of each pixel */
    UNET_NO_NORM,
    UNET_NORMS
} unet_norm;

/* Zero is the default of every field. */
typedef struct unet_opts {
    int dims;        /* 2: images (default), 3: volumes */
    int64_t in;      /* channels of the input; 3 */
    int64_t classes; /* 2 */
    int64_t width;   /* channels at full resolution; 32. Each level below has twice as many */
    int levels;      /* times that the side is halved; 3. Sides are multiples of 2^levels */
    unet_norm norm;  /* after each convolution of 3 */
    int64_t groups;  /* of UNET_GROUP, a divisor of `width`; 8, or `width` if that is less */
    bool upsample;   /* go up by nearest neighbours and a convolution, not by a transposed convolution */
} unet_opts;

/* [N,in,(D,)H,W] -> scores [N,classes,(D,)H,W]. */
wf_layer *unet(wf_ctx *ctx, unet_opts opts);

#endif
