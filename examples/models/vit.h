/* The vision transformer of Dosovitskiy et al. 2021 ("An image is worth 16x16 words"), with the sizes of Touvron et al.
 * 2021; ViT-B is torchvision's vit_b_16. */
#ifndef EXAMPLES_MODELS_VIT_H
#define EXAMPLES_MODELS_VIT_H

#include <weft/weft.h>

typedef enum vit_size {
    VIT_TINY = 0, /* 5.7 M parameters with 1000 classes */
    VIT_SMALL,    /* 22.1 M */
    VIT_BASE,     /* 86.6 M */
    VIT_SIZES
} vit_size;

typedef struct vit_opts {
    vit_size size;
    int64_t image;           /* pixels along a side; default 224 */
    int64_t patch;           /* default 16 */
    int64_t channels;        /* of the image; default 3 */
    int64_t classes;         /* default 10 */
    int64_t features, heads; /* default those of the size: 192 and 3, 384 and 6, 768 and 12 */
    int blocks;              /* default 12 */
    double dropout;
    const wf_mesh
        *mesh; /* heads and hidden features are cut over its channel axis (layers/transformer.h); NULL: serial */
} vit_opts;

/* [N,channels,image,image] -> scores [N,classes]. */
wf_layer *vit(wf_ctx *ctx, vit_opts opts);

#endif
